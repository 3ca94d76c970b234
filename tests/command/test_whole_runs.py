"""Whole runs of the command: what is written, new rows, the report, and what options change."""

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
    says = "5 of 5 rows have missing .*fill them in, or leave out these rows by --drop-rows-with-missing$"
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
    refused("a distance of its own in each direction", "embed", *of_distances, "uneven.npz")


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
    refused("file is there already", "embed", "--input", "points.npy", "--out", "file")
    refused("error: .*file", "embed", "--input", "points.npy", "--out", "file/inside")


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
)


@pytest.mark.parametrize("labels", LABELS)
def test_labels_of_any_kind_are_colours(labels, folder):
    """A page loads nothing, and no label is code in it; images are drawn."""
    np.save("y.npy", labels)
    np.save("images.npy", (points(60, 100) * 255).astype(np.uint8).reshape(60, 10, 10))
    embed("--input", "images.npy", "--labels", "y.npy", "--components", 1)
    page = Path("embedding-images/report.html").read_text()
    assert "</script><b>" not in page
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
        assert complaints(browser) == []
