"""Whole runs of the command: what is written, new rows, the report, and what options change."""

import errno
import io
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.spatial.distance import cdist

from problems import chromium, complaints, wait_for
from torch_lapeig import KNN, HeatKernel, LaplacianEigenmaps, SelfTuning
from torch_lapeig.command import load, main

pandas = pytest.importorskip("pandas")
pytest.importorskip("bokeh")
pytest.importorskip("matplotlib")

SAMPLE = Path(__file__).parents[2] / "docs" / "shells.csv"
FILES = {"report.html", "embedding.png", "embedding.npy", "embedding.csv", "model.pt"}


def points(n=60, d=3, seed=0):
    return np.random.default_rng(seed).random((n, d))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, empty but for points.npy."""
    monkeypatch.chdir(tmp_path)
    np.save("points.npy", points())
    return tmp_path


def embed(*arguments):
    main(["embed", *map(str, arguments)])


def refused(says, *arguments):
    """The command ends with this message and writes nothing."""
    before = set(Path.cwd().rglob("*"))
    with pytest.raises(SystemExit, match=says) as ended:
        main([*map(str, arguments)])
    assert str(ended.value).startswith("error: ")
    assert set(Path.cwd().rglob("*")) == before


def test_a_terminal_shows_the_search(folder, capsys, monkeypatch):
    pytest.importorskip("tqdm")
    np.save("many.npy", points(6000))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    embed("--input", "many.npy", "--neighbors", 5)
    assert "neighbours: 100%" in capsys.readouterr().err


def test_report_module_and_files_agree(folder, capsys):
    embed("--input", "points.npy", "--components", 4)
    said = capsys.readouterr().out
    out = folder / "embedding-points"
    assert {file.name for file in out.iterdir()} == FILES
    module = LaplacianEigenmaps(4, KNN(10)).fit(torch.from_numpy(points()))
    np.testing.assert_allclose(np.load(out / "embedding.npy"), module.embedding_)
    np.testing.assert_allclose(pandas.read_csv(out / "embedding.csv", index_col="row"), module.embedding_)
    page = (out / "report.html").read_text()
    for text in (*(f"{value:.6g}" for value in module.eigenvalues_.tolist()), "given by --components", "neighbors"):
        assert text in said
        assert text in page
    assert said.index("What was used") < said.index("What was chosen") < said.index("Eigenvalues")
    assert page.index("What was used") < page.index("What was chosen")


def test_sample_runs_as_the_readme_says(folder, capsys, monkeypatch):
    readme = SAMPLE.parents[1] / "README.md"
    line = re.search(r"^torch-lapeig (embed .*docs/\S+\.csv.*)$", readme.read_text(), re.MULTILINE)[1]
    monkeypatch.chdir(SAMPLE.parents[1])
    main([*line.split(), "--out", str(folder / "out")])
    assert "180, named by the index 'shell'" in capsys.readouterr().out
    assert len(np.load(folder / "out" / "embedding.npy")) == 180


def table(n, seed=0):
    x = points(n, 3, seed) * [1, 50, 0.1] + 7
    frame = pandas.DataFrame(x, columns=["long, thin", "b", "c"])
    return frame.assign(kind=np.where(x[:, 1] > 9, "u", "v"), id=[f"{i:03}" for i in range(n)])


def test_new_rows_are_embedded_by_names_from_any_folder(folder, capsys, monkeypatch):
    table(60).to_csv("t.csv", index=False, sep=";", decimal=",")
    embed("--input", "t.csv", "--separator", ";", "--decimal", ",", "--index", "id", "--one-hot", "kind",
          "--standardize", "--weighting", "self-tuning", "--neighbors", 15, "--out", "run")  # fmt: skip
    Path("elsewhere").mkdir()
    shutil.move("run", "elsewhere/moved")
    monkeypatch.chdir("elsewhere")
    new = table(5, seed=1)
    turned = new.assign(more="x")[["c", "more", "id", "kind", "b", "long, thin"]]
    turned.to_csv("new.csv", index=False, sep=";", decimal=",")
    capsys.readouterr()
    main(["transform", "moved", "new.csv"])
    assert "left out      'more' (not among the columns), 'id' (--index)" in capsys.readouterr().out
    found = pandas.read_csv("embedding-new.csv", dtype={"id": str}).set_index("id")
    x, y = (np.c_[t[["long, thin", "b", "c"]], t.kind == "u", t.kind == "v"].astype(float) for t in (table(60), new))
    mean, deviation = x.mean(0), x.std(0)
    module = LaplacianEigenmaps(10, KNN(15), SelfTuning()).fit(torch.from_numpy((x - mean) / deviation))
    expected = module.transform(torch.from_numpy((y - mean) / deviation))
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert list(found.index) == list(new.id)
    loaded, saved = load("moved")
    assert saved["columns"] == ["long, thin", "b", "c", "kind"]
    np.testing.assert_allclose(loaded.transform(torch.from_numpy((y - mean) / deviation)), expected, atol=1e-8)
    refused("embedding-new.csv is there already", "transform", "moved", "new.csv")
    new.drop(columns=["b", "c"]).to_csv("less.csv", index=False, sep=";")
    refused("less.csv has no 'b', 'c'; it has", "transform", "moved", "less.csv")
    new.assign(kind="w").to_csv("w.csv", index=False, sep=";", decimal=",")
    refused("'kind' has 'w', its categories are 'u', 'v'", "transform", "moved", "w.csv")
    new.assign(b=np.nan).to_csv("gap.csv", index=False, sep=";", decimal=",")
    says = "5 of 5 rows have missing .*fill them in$"
    refused(says, "transform", "moved", "gap.csv")
    new.assign(b=1e300).to_csv("huge.csv", index=False, sep=";", decimal=",")
    refused("huge.csv: queries must be at most", "transform", "moved", "huge.csv")
    new.assign(b="x").to_csv("words.csv", index=False, sep=";", decimal=",")
    refused("'b' .words, such as 'x' in line 2.: write numbers as -1.5", "transform", "moved", "words.csv")
    new.drop(columns="id").to_csv("plain.csv", index=False)  # options of reading may be given anew
    main(["transform", "moved", "plain.csv", "--separator", ",", "--decimal", ".", "--out", "p.csv"])
    np.testing.assert_allclose(pandas.read_csv("p.csv", index_col="row"), expected, atol=1e-8)
    Path("moved/model.pt").write_bytes(b"broken")
    refused("is damaged or of another version", "transform", "moved", "new.csv", "--overwrite")
    refused("model.pt is not there", "transform", "nowhere", "new.csv", "--overwrite")


def test_distances_and_affinities_give_what_their_points_give(folder):
    x = points()
    embed("--input", "points.npy", "--out", "x")
    expected = np.load("x/embedding.npy")
    graph = KNN(10)(torch.from_numpy(x))
    weights = HeatKernel("median")(torch.from_numpy(x), graph).to_scipy()
    nearest = np.where(cdist(x, x) <= np.sort(cdist(x, x), 1)[:, [10]], cdist(x, x), 0)
    np.save("distance.npy", cdist(x, x))
    sparse.save_npz("stored.npz", sparse.csr_array(nearest))
    sparse.save_npz("affinity.npz", weights)
    row, col = sparse.triu(weights).nonzero()
    edges = pandas.DataFrame({"from": row, "to": col, "weight": weights[row, col]})
    edges.to_csv("edges.csv", index=False)
    for name, given in (("distance.npy", "distance"), ("stored.npz", "distance"), ("affinity.npz", "affinity")):
        embed("--input", name, "--given", given, "--out", name[:4])
        np.testing.assert_allclose(np.load(f"{name[:4]}/embedding.npy"), expected, atol=1e-6)
        assert not Path(f"{name[:4]}/model.pt").exists()
    embed("--input", "edges.csv", "--given", "edges", "--out", "edges")
    found = pandas.read_csv("edges/embedding.csv", index_col="name").sort_index()
    np.testing.assert_allclose(abs(found), abs(expected), atol=1e-6)
    of_distances = ("--given", "distance", "--input")
    refused("--neighbors does not go with sparse", "embed", *of_distances, "stored.npz", "--neighbors", 3)
    refused("--standardize does not go with", "embed", *of_distances, "distance.npy", "--standardize")
    uneven = nearest.copy()
    uneven[np.triu(uneven) > 0] *= 2
    sparse.save_npz("uneven.npz", sparse.csr_array(uneven))
    refused("a pair must be equal in both directions", "embed", *of_distances, "uneven.npz")


def test_neighbors_are_added_until_the_graph_is_connected(folder, capsys):
    np.save("near.npy", np.concatenate([points(12), points(40, seed=1) + 3]))  # joined by the 12th neighbours
    embed("--input", "near.npy")
    assert re.search("neighbors +15 +with 10 the graph falls apart", capsys.readouterr().out)
    np.save("two.npy", np.concatenate([points(40), points(40, seed=1) + 100]))
    embed("--input", "two.npy")
    said = capsys.readouterr().out
    assert "up to 30 the graph falls apart all the same" in said
    assert "40, 40 points: the first 1 columns only tell them apart" in said


def test_points_without_weights_are_counted(folder, capsys):
    refused("60 of 60 points have no edge of positive weight", "embed", "--input", "points.npy", "--bandwidth", "1e-9")
    x = points(100)
    x[:4] *= 1000  # weights that underflow
    np.save("far.npy", x)
    embed("--input", "far.npy")
    assert re.search("isolated +4 +too far from all", capsys.readouterr().out)


def test_folder_is_written_over_only_if_asked(folder):
    Path("mine").mkdir()
    embed("--input", "points.npy", "--out", "mine")  # empty
    Path("mine/notes.txt").write_text("mine")
    refused("mine is there already: pass --overwrite", "embed", "--input", "points.npy", "--out", "mine")
    embed("--input", "points.npy", "--out", "mine", "--overwrite")
    assert Path("mine/notes.txt").read_text() == "mine"
    Path("file").touch()
    refused("file is there already", "embed", "--input", "points.npy", "--out", "file", "--overwrite")
    Path("link").symlink_to("file")
    embed("--input", "points.npy", "--out", "x")
    refused("link is there already, as a link", "transform", "x", "points.npy", "--out", "link", "--overwrite")


def test_a_folder_that_cannot_be_written_is_found_before_the_work(folder, capsys):
    Path("file").touch()
    refused("file/inside cannot be written: Not a directory", "embed", "--input", "points.npy", "--out", "file/inside")
    assert capsys.readouterr().out == ""


def test_a_full_disk_leaves_nothing_half_written(folder, monkeypatch):
    embed("--input", "points.npy", "--out", "x")
    before = {file.name: file.read_bytes() for file in Path("x").iterdir()}
    write = Path.write_bytes
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(
        Path, "write_bytes", lambda path, data: write(path, data[:9]) if "png" not in path.name else _raise(full)
    )
    other = ("--input", "points.npy", "--components", "3", "--out")
    refused("x/embedding.png cannot be written: No space left", "embed", *other, "x", "--overwrite")
    refused("y/embedding.png cannot be written: No space left", "embed", *other, "y")
    assert {file.name: file.read_bytes() for file in Path("x").iterdir()} == before


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("error", "says", "status"),
    [
        (KeyboardInterrupt(), "error: interrupted\n", 130),
        (MemoryError(), "error: not enough memory", 1),
        (RecursionError("deep"), "error: deep .RecursionError, a fault", 1),
    ],
)
def test_no_exception_leaves_the_command(error, says, status, folder, monkeypatch, capsys):
    monkeypatch.setattr("torch_lapeig.command.choices.embed", lambda *_: _raise(error))
    with pytest.raises(SystemExit) as ended:
        embed("--input", "points.npy")
    assert re.match(says, str(ended.value) if status == 1 else capsys.readouterr().err)
    assert status == 1 or ended.value.code == status
    assert not Path("embedding-points").exists()


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", None])
def test_what_the_terminal_cannot_show_does_not_stop_the_work(encoding, folder, monkeypatch):
    table(60).assign(größe=[2**60 + i**3 for i in range(60)]).drop(columns="id").to_csv("t.csv", index=False)
    read, write = os.pipe()
    os.close(read)  # None: a pipe that nobody reads
    with os.fdopen(write, "w") if encoding is None else io.TextIOWrapper(io.BytesIO(), encoding) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        embed("--input", "t.csv", "--labels", "kind")
    assert {file.name for file in Path("embedding-t").iterdir()} == FILES


def test_new_rows_have_the_shape_and_the_lines_of_the_run(folder, capsys):
    """Lines are skipped where they have the text of the run; counted columns need rows of the same shape."""
    text = table(60)[["b", "c"]].to_csv(index=False)
    Path("units.csv").write_text(text.replace("\n", "\nm,kg\n", 1))
    embed("--input", "units.csv", "--skip-lines", 2, "--out", "run")
    assert "62 = 1 names + 1 skipped + 60 rows; skipped: 2 'm,kg'" in capsys.readouterr().out
    Path("plain.csv").write_text(text)
    for name, says in (("units", "1 skipped"), ("plain", "not skipped, unlike before: 2")):
        main(["transform", "run", f"{name}.csv"])
        assert says in capsys.readouterr().out
    a, b = (pandas.read_csv(f"embedding-{name}.csv") for name in ("units", "plain"))
    np.testing.assert_array_equal(a, b)
    assert len(b) == 60
    images = points(60, 48).reshape(60, 3, 4, 4)
    np.save("first.npy", images)
    np.save("last.npy", np.moveaxis(images, 1, -1))
    embed("--input", "first.npy", "--columns", 0, 40, "--out", "channels")
    refused("last.npy has rows of 4×4×3, and the run had 3×4×4", "transform", "channels", "last.npy")
    np.save("two.npy", points(60, 2))
    refused("two.npy has rows of 2, and the run had columns with names", "transform", "run", "two.npy")


def test_clusters_and_labels_are_written(folder, capsys):
    x = np.concatenate([points(30), points(30, seed=1) + 1.5, points(30, seed=2) - 1.5])
    pandas.DataFrame(x, columns=[*"abc"]).assign(kind=np.repeat(["$u$", "$v_$", "w"], 30)).to_csv("t.csv", index=False)
    for wish in ("auto", "3"):
        embed("--input", "t.csv", "--labels", "kind", "--clusters", wish, "--out", wish)
        rows = pandas.read_csv(f"{wish}/embedding.csv", index_col="row")
        assert (
            rows.groupby("label").cluster.nunique().tolist() == [1, 1, 1] == rows.cluster.value_counts().eq(30).tolist()
        )
        assert re.search("clusters +3 .*: 30, 30, 30 points", capsys.readouterr().out)
    refused("--clusters is auto, or a number below", "embed", "--input", "t.csv", "--labels", "kind", "--clusters", "x")


def test_advice_is_of_what_was_embedded(folder, capsys):
    table(60)[["b", "c"]].assign(c=lambda t: t.c * 1e-4).to_csv("t.csv", index=False)
    embed("--input", "t.csv", "--out", "x")
    assert "decides nearly all distances" in capsys.readouterr().out
    embed("--input", "t.csv", "--standardize", "--out", "y")
    said = capsys.readouterr().out
    assert "decides nearly all distances" not in said
    assert "standardized  each column less its mean" in said
    assert "torch-lapeig embed --input t.csv --standardize --out y" in said


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (["--neighbors", "60"], "--neighbors must be from 1 to 59"),
        (["--components", "0"], "--components must be from 1 to 58"),
        (["--bandwidth", "nan"], "--bandwidth is a positive number"),
        (["--bandwidth", "1", "--weighting", "simple"], "for --weighting heat or improved"),
        (["--device", "nowhere"], "nowhere"),
    ],
)
def test_wishes_that_cannot_be_fulfilled_are_refused(wish, says, folder):
    refused(says, "embed", "--input", "points.npy", *wish)


LABELS = (
    np.arange(60) / 7,
    np.array(["</script><b>a", "b"] * 30),
    np.arange(60) % 2 == 0,
    np.arange(60) % 15,
    np.array([f"word {i}" for i in range(60)]),
    np.where(np.arange(60) < 9, np.nan, 1.0),
    np.array(["$x_$", "$HOME/_$", "\\$", "漢"] * 15),
)


@pytest.mark.parametrize("labels", LABELS)
def test_labels_of_any_kind_are_colours(labels, folder):
    """A page loads nothing, and no label is code in it; images are drawn."""
    np.save("y.npy", labels)
    np.save("images.npy", (points(60, 100) * 255).astype(np.uint8).reshape(60, 10, 10))
    embed("--input", "images.npy", "--labels", "y.npy", "--components", 1)
    page = Path("embedding-images/report.html").read_text()
    assert "</script><b>" not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert (page.count("<li><i") == len({*labels.tolist()})) == (labels.dtype.kind in "Ub" or labels.dtype.kind == "i")
    assert '"@index"' in page
    assert '"@label"' in page
    assert re.search(r"""<(?:script|img|link)[^>]* (?:src|href)=["'](?!data:)""", page) is None


def test_browser_shows_the_scatter_without_a_network(folder):
    with chromium(folder / "chromium") as browser:
        embed("--input", SAMPLE, "--index", "shell", "--labels", "kind", "--out", "out")
        browser.get((folder / "out" / "report.html").as_uri())
        wait_for(browser, "window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
        sources = "Bokeh.documents[0]._all_models.values()"
        names = f"Array.from({sources}).filter(m => m.type === 'ColumnDataSource').map(m => m.data.index)[0]"
        assert "S001" in list(browser.execute_script(f"return Array.from({names})"))
        browser.execute_script("const m = document.getElementById('y'); m.value = 'column 3'; m.onchange()")
        found = browser.execute_script(
            "const find = name => Bokeh.documents[0].get_model_by_name(name), data = find('points').data_source.data;"
            "return [find('axis y').axis_label, Array.from(data.y), Array.from(data['column 3'])]"
        )
        assert found[0] == "column 3"
        assert found[1] == found[2]
        assert complaints(browser) == []
