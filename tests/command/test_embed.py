"""The command `torch-lapeig embed`: what it chooses, writes and refuses, on files as people have them."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.spatial.distance import cdist

from torch_lapeig import KNN, HeatKernel, LaplacianEigenmaps, SelfTuning
from torch_lapeig.command import choices, main
from torch_lapeig.command.points import labels_of, points_of
from torch_lapeig.command.reading import READERS
from torch_lapeig.command.tables import InputError
from torch_lapeig.graph import rules

pytest.importorskip("matplotlib")
pandas = pytest.importorskip("pandas")


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
        embed(*arguments)
    assert str(ended.value).startswith("error: ")
    assert set(Path.cwd().rglob("*")) == before


# What comes out


def test_embedding_report_and_module_agree(folder, capsys):
    np.save("new.npy", points(5, seed=1))
    np.save("y.npy", np.arange(60) % 3)
    embed("--input", "points.npy", "--labels", "y.npy", "--new", "new.npy", "--components", 4)
    said = capsys.readouterr().out
    out = folder / "embedding-points"
    assert {file.name for file in out.iterdir()} == {
        "report.html", "embedding.png", "embedding.npy", "embedding_new.npy", "model.pt", "load.py",
    }  # fmt: skip
    module = LaplacianEigenmaps(4, KNN(10)).fit(torch.from_numpy(points()))
    np.testing.assert_allclose(np.load(out / "embedding.npy"), module.embedding_)
    np.testing.assert_allclose(
        np.load(out / "embedding_new.npy"), module.transform(torch.from_numpy(points(5, seed=1)))
    )
    page = (out / "report.html").read_text()
    for value in module.eigenvalues_.tolist():
        assert f"{value:.6g}" in said
        assert f"{value:.6g}" in page
    for choice in ("neighbours", "weighting", "bandwidth", "components", "parts of the graph"):
        assert choice in said
        assert choice in page
    assert "given by --components" in said
    assert "data:image/png;base64," in page


def test_saved_module_is_loaded_by_the_lines_that_are_shown(folder, capsys, monkeypatch):
    np.save("points.npy", points() * [1, 50, 0.1] + 7)
    np.save("new.npy", points(5, seed=1) * [1, 50, 0.1] + 7)
    embed("--input", "points.npy", "--new", "new.npy", "--standardize", "--weighting", "self-tuning", "--out", "out")
    Path("new.npy").rename("out/new.npy")
    monkeypatch.chdir("out")
    shown = runpy.run_path("load.py")
    np.testing.assert_allclose(shown["module"].transform(shown["points"]), np.load("embedding_new.npy"))
    assert isinstance(shown["module"].weights, SelfTuning)


def test_choices_have_reasons(folder, capsys):
    two = np.concatenate([points(40), points(40, seed=1) + 100])
    np.save("two.npy", two)
    embed("--input", "two.npy")
    said = capsys.readouterr().out
    assert "up to 30 the graph falls apart all the same" in said
    assert "the first 1 columns only tell them apart; --separate embeds each" in said
    assert "points of each part: 40, 40" in said
    near = np.concatenate([points(12), points(40, seed=1) + 3])  # joined by the 12th neighbours
    np.save("near.npy", near)
    embed("--input", "near.npy")
    assert "15 " in (said := capsys.readouterr().out)
    assert "with 10 the graph falls apart" in said
    assert int(KNN(10)(torch.from_numpy(near)).connected_components().max()) == 1
    assert int(KNN(15)(torch.from_numpy(near)).connected_components().max()) == 0


def test_parts_are_embedded_on_their_own(folder, capsys):
    two = np.concatenate([points(40), points(45, seed=1) + 100])
    np.save("two.npy", two)
    embed("--input", "two.npy", "--neighbors", 10, "--bandwidth", 0.1, "--separate", "--components", 3, "--out", "out")
    said = capsys.readouterr().out
    assert "each embedded on its own by --separate" in said
    for name, part in (("part 1 (40 points)", two[:40]), ("part 2 (45 points)", two[40:])):
        alone = LaplacianEigenmaps(3, KNN(10), HeatKernel(0.1)).fit(torch.from_numpy(part))
        assert name in said
        assert f"{alone.eigenvalues_[0]:.6g}" in said
    np.save("many.npy", np.concatenate([points(20, seed=i) + 100 * i for i in range(6)]))
    embed("--input", "many.npy", "--neighbors", 10, "--separate")
    assert "and 2 parts more, in report.html" in capsys.readouterr().out
    np.save("out/new.npy", two[:5])
    assert 'components="separate"' in Path("out/load.py").read_text()
    os.chdir("out")
    shown = runpy.run_path("load.py")
    np.testing.assert_allclose(shown["module"].transform(shown["points"]), np.load("embedding.npy")[:5], atol=1e-9)


def test_parts_that_hardly_hold_together_are_named(folder, capsys):
    x = np.concatenate([points(60), points(7, seed=1) * 0.1 + [4, 0.5, 0.5]])
    np.save("x.npy", x)
    embed("--input", "x.npy", "--neighbors", 8)
    said = capsys.readouterr().out
    assert "tells a nearly separate part of 7 points from the others (rows 60, 61, 62, 63, 64, … of" in said
    assert "--standardize, --weighting self-tuning or more --neighbors join it" in said
    embed("--input", "points.npy")
    assert "nearly separate" not in capsys.readouterr().out


def test_bandwidths_under_which_weights_vanish_are_named(folder, capsys):
    refused("under --bandwidth 1e-09 weights vanish", "--input", "points.npy", "--bandwidth", "1e-9")
    x = points(100)
    x[:4] *= 1000  # weights that underflow
    np.save("far.npy", x)
    embed("--input", "far.npy")
    said = capsys.readouterr().out
    assert re.search("parts of the graph +1 +it joins all others", said)
    assert re.search("isolated points +4 +too far from all for the bandwidth: their rows are zero", said)
    assert "tell them apart" not in said


def test_pairs_are_given(folder, capsys):
    """Distances give what their points give; affinities may be sparse."""
    x = points()
    names = ",".join(f"p{i}" for i in range(60))
    lines = [f"p{i}," + ",".join(map(repr, row)) for i, row in enumerate(cdist(x, x).tolist())]
    Path("d.csv").write_text(f",{names}\n" + "\n".join(lines))
    embed("--input", "points.npy", "--out", "x")
    embed("--input", "d.csv", "--out", "asked")
    assert "d.csv is square and symmetric: if it holds pairs of points, say --given distance" in capsys.readouterr().out
    embed("--input", "d.csv", "--given", "distance", "--out", "d")
    np.testing.assert_allclose(np.load("d/embedding.npy"), np.load("x/embedding.npy"), atol=1e-6)
    graph = LaplacianEigenmaps(10, KNN(10)).fit(torch.from_numpy(x))
    weighted = graph.weights(torch.from_numpy(x), KNN(10)(torch.from_numpy(x))).to_dense().numpy()
    np.save("w.npy", weighted)
    sparse.save_npz("w.npz", sparse.csr_array(weighted))
    for name in ("w.npy", "w.npz"):
        embed("--input", name, "--given", "affinity", "--out", name[2:])
        np.testing.assert_allclose(np.load(f"{name[2:]}/embedding.npy"), np.load("x/embedding.npy"), atol=1e-6)
    assert not Path("npy/load.py").exists()
    refused("--new does not go with --given affinity", "--input", "w.npy", "--given", "affinity", "--new", "w.npy")
    refused("must be square to be of pairs", "--input", "points.npy", "--given", "distance")
    np.save("negative.npy", -weighted)
    refused("non-negative", "--input", "negative.npy", "--given", "affinity")


def test_folder_is_written_over_only_if_asked(folder, capsys):
    Path("mine").mkdir()
    embed("--input", "points.npy", "--out", "mine")  # empty
    Path("mine/notes.txt").write_text("mine")
    refused("mine is there already: pass --overwrite", "--input", "points.npy", "--out", "mine")
    embed("--input", "points.npy", "--out", "mine", "--overwrite")
    assert Path("mine/notes.txt").read_text() == "mine"
    Path("file").touch()
    refused("error: .*file", "--input", "points.npy", "--out", "file/inside")
    refused("--out must be a folder, got the file", "--input", "points.npy", "--out", "file")


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(60) / 7,
        np.array(["<b>a", "b"] * 30),
        np.arange(60) % 2 == 0,
        np.array([f"word {i}" for i in range(60)]),
    ],
)
def test_labels_of_any_kind_are_colours(labels, folder):
    np.save("y.npy", labels)
    embed("--input", "points.npy", "--labels", "y.npy", "--components", 1)
    assert "<b>a" not in Path("embedding-points/report.html").read_text()


# Files


def test_tables_have_labels_in_a_column(folder, capsys):
    rows = [f"{a},{b},{'yes' if i % 2 else 'no'}" for i, (a, b, _) in enumerate(points())]
    rows[7] = "NA,1,no"
    Path("table.csv").write_text("a,b,kind\n" + "\n".join(rows), encoding="utf-8")
    asked = ["--input", "table.csv", "--labels", "kind"]
    refused("1 of 60 rows have missing or infinite values .line 9; .*--drop-rows-with-missing", *asked)
    refused("there is no such file, and table.csv has no 'kinds': did you mean 'kind'", *asked[:3], "kinds")
    embed(*asked, "--drop-rows-with-missing")
    said = capsys.readouterr().out
    assert "59 points in 2 dimensions" in said
    assert np.load("embedding-table/rows.npy").tolist() == [*range(7), *range(8, 60)]
    assert "1 of 60 rows have missing values and are left out" in said
    embed("--input", "table.csv", "--leave-out", "kind", "--drop-rows-with-missing", "--out", "other")
    assert (np.load("other/embedding.npy") == np.load("embedding-table/embedding.npy")).all()


def test_the_numbers_of_neighbours_are_tried_by_one_search(folder, monkeypatch):
    searches, search = [], choices.nearest_neighbors
    monkeypatch.setattr(choices, "nearest_neighbors", lambda x, k, *rest: searches.append(k) or search(x, k, *rest))
    monkeypatch.setattr(rules, "nearest_neighbors", lambda x, k, *rest, **more: searches.append(k))
    np.save("two.npy", np.concatenate([points(40), points(40, seed=1) + 100]))
    embed("--input", "two.npy")
    assert searches == [30]
    expected = np.load("embedding-two/embedding.npy")
    monkeypatch.setattr(choices, "LONG", 0)  # as if it took long: in blocks
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    embed("--input", "two.npy", "--out", "blocks")
    np.testing.assert_array_equal(np.load("blocks/embedding.npy"), expected)


def damaged(array, rows, value):
    array = array.copy()
    array[rows] = value
    return array


BAD = {
    "one dimension": (points()[:, 0], r"must be of shape \(points, columns\), got \(60,\): x\[:, None\]"),
    "a number": (np.array(3.0), r"got \(\)"),
    "not a number": (
        damaged(points(), [3, 7], np.nan),
        r"2 of 60 rows have missing or infinite values \(row, from 0, 3, 7; column 0 \(from 0\) has 2\)",
    ),
    "infinite": (damaged(points(), [1], np.inf), "1 of 60 rows"),
    "objects": (np.array([[1, None], [2, 3]] * 4, dtype=object), "holds Python objects, which are not loaded since"),
    "complex": (points() * 1j, "must hold real numbers, got complex128"),
    "words": (points().astype(str), "must hold real numbers, got <U"),
    "one point": (points()[:1], "must have at least 4 points, got 1"),
    "no columns": (points()[:, :0], "at least one column of numbers"),
    "no points": (points()[:0], "at least 4 points, got 0"),
    "all equal": (np.ones((9, 2)), "all 9 points are equal"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_points_is_refused(case, folder):
    array, says = BAD[case]
    np.save("bad.npy", array)
    refused(says, "--input", "bad.npy")


def test_columns_that_say_nothing_or_all_are_noted(folder, capsys):
    x = np.concatenate([points(), np.full((60, 1), 3.0)], 1) * [1, 1, 5000, 1]
    np.save("x.npy", x)
    embed("--input", "x.npy")
    said = capsys.readouterr().out
    assert "1 of 4 columns are constant and change no distance" in said
    assert "column 2 (from 0) spreads" in said
    assert "--standardize makes all columns count alike" in said


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8, np.int16, np.int32, bool])
def test_numbers_of_other_kinds_are_computed_in_float(dtype, folder):
    notes = []
    found = points_of((points() * 2).astype(dtype), "x", [], False, notes)
    assert found.x.dtype == (np.float64 if dtype == np.int32 else np.float32)
    assert bool(notes) == (dtype != np.float32)


def test_labels_must_be_there_for_each_point(folder):
    for found, says in (
        (np.arange(59), r"a label for each of the 60 points, got shape \(59,\)"),
        (np.zeros((60, 2)), r"got shape \(60, 2\)"),
        (pandas.DataFrame({"a": np.arange(60), "b": np.arange(60)}), "has columns a, b: write y:NAME"),
        (np.full(60, np.nan), "NaN"),
        (np.full(60, 1j), "numbers or words, got complex128"),
    ):
        with pytest.raises(InputError, match=says):
            labels_of(found, "y", 60, [])
    refused("no such file, and no such column in the input", "--input", "points.npy", "--labels", "kind")


# Wishes


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (["--neighbors", "60"], "--neighbors must be from 1 to 59"),
        (["--neighbors", "0"], "--neighbors must be from 1 to 59"),
        (["--components", "59"], "--components must be from 1 to 58"),
        (["--bandwidth", "0"], "--bandwidth must be a positive number, got 0.0"),
        (["--bandwidth", "nan"], "--bandwidth must be a positive number"),
        (["--bandwidth", "1", "--weighting", "simple"], "--bandwidth is the heat kernel's"),
        (["--weighting", "heet"], "--weighting must be of heat, .*or module:name of your own, got 'heet'"),
        (["--weighting", "no_module:Mine"], "No module named 'no_module'; a module in this folder"),
        (["--weighting", "math:Mine"], "no attribute 'Mine'"),
        (["--weighting", "math:pi"], "must be or make a torch_lapeig.graph.Weighting, got float"),
        (["--device", "nowhere"], "--device nowhere"),
        (["--leave-out", "a"], "points.npy is an array, whose columns have no names"),
    ],
)
def test_wishes_that_cannot_be_fulfilled_are_refused(wish, says, folder):
    refused(says, "--input", "points.npy", *wish)


@pytest.mark.parametrize(
    ("new", "says"),
    [(points(5, 2), r"points of 3 columns as the input has, got shape \(5, 2\)"), (points(0), "got shape")],
)
def test_new_points_are_of_the_same_kind(new, says, folder):
    np.save("new.npy", new)
    refused(says, "--input", "points.npy", "--new", "new.npy")


def test_weighting_of_one_s_own_comes_by_its_path(folder, capsys, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    Path("own.py").write_text(
        "import torch\nfrom torch_lapeig import KernelWeights\n"
        "def rational():\n    return KernelWeights(lambda squares: 1 / (1 + squares))\n"
        "ready = rational()\n"
    )
    for name in ("rational", "ready"):
        embed("--input", "points.npy", "--weighting", f"own:{name}", "--out", name)
        assert f"own:{name}" in capsys.readouterr().out
        assert f"from own import {name}" in Path(name, "load.py").read_text()
    assert (np.load("rational/embedding.npy") == np.load("ready/embedding.npy")).all()


@pytest.mark.parametrize("n", [4, 12])
def test_few_points_are_embedded(n, folder):
    np.save("few.npy", points(n))
    embed("--input", "few.npy")
    assert np.load("embedding-few/embedding.npy").shape == (n, min(10, n - 2))


@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_units_whose_squares_are_no_numbers_are_refused(scale, folder):
    np.save("x.npy", points() * scale)
    refused("leave float64: take other units", "--input", "x.npy")


def test_units_do_not_change_the_embedding(folder):
    for scale in (1e-100, 1e100):
        np.save("x.npy", points() * scale)
        embed("--input", "x.npy", "--out", f"x{scale}")
    np.testing.assert_allclose(np.load("x1e-100/embedding.npy"), np.load("x1e+100/embedding.npy"), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("module", ["matplotlib.figure", "pandas"])
def test_libraries_are_named(module, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    refused(r"needs matplotlib and pandas: pip install 'torch-lapeig\[embed\]'", "--input", "points.npy")


def test_both_faces_lead_to_the_command(folder):
    root = Path(__file__).parents[2]
    for module in ("torch_lapeig", "experiments"):
        done = subprocess.run(
            [sys.executable, "-m", module, "embed", "--input", folder / "absent.npy"],
            cwd=root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert "absent.npy: there is no such file" in done.stderr


def test_columns_of_new_points_are_taken_by_their_names(folder):
    x = points(60, 2) * [1, 5]

    def table(name, columns):
        lines = [",".join(columns), *(",".join(map(repr, row)) for row in np.stack([*columns.values()], 1).tolist())]
        Path(name).write_text("\n".join(lines))

    table("all.csv", {"w": x[:, 0], "h": x[:, 1], "label": np.arange(60.0) % 3})
    table("new.csv", {"h": x[:5, 1], "more": x[:5, 1], "w": x[:5, 0]})
    embed("--input", "all.csv", "--labels", "label", "--new", "new.csv", "--out", "out")
    np.testing.assert_allclose(np.load("out/embedding_new.npy"), np.load("out/embedding.npy")[:5], atol=1e-9)
    table("other.csv", {"h": x[:5, 1], "width": x[:5, 0]})
    refused("other.csv has no 'w': it has h, width",
            "--input", "all.csv", "--labels", "label", "--new", "other.csv")  # fmt: skip


def test_arrays_may_be_read_only(folder, monkeypatch):
    """Read-only arrays come from pandas 3 and from memory maps."""
    monkeypatch.setitem(READERS, ".npy", lambda request: np.load(request.path, mmap_mode="r"))
    embed("--input", "points.npy", "--new", "points.npy")
    assert (folder / "embedding-points" / "embedding_new.npy").exists()


def test_new_points_of_few_rows_keep_all_columns(folder):
    """In one row any whole number counts the rows."""
    table = np.random.default_rng(0).integers(0, 9, (40, 3))
    np.savetxt("in.csv", table, fmt="%d", delimiter=",")
    Path("new.csv").write_text("5,6,7\n6,9,1\n7,1,1\n")
    embed("--input", "in.csv", "--new", "new.csv")
    new = np.array([[5, 6, 7], [6, 9, 1], [7, 1, 1]], dtype=np.float64)
    expected = LaplacianEigenmaps(10, KNN(10)).fit(torch.from_numpy(table).double()).transform(torch.from_numpy(new))
    np.testing.assert_allclose(np.load("embedding-in/embedding_new.npy"), expected, atol=1e-8)


def test_a_first_line_of_names_may_begin_with_a_hash(folder):
    rows = [f"{i},{a},{b}" for i, (a, b, _) in enumerate(points())]
    Path("h.csv").write_text("\n".join(["# made today", "#,x,y", *rows]))
    embed("--input", "h.csv", "--leave-out", "y")
    np.save("x.npy", points()[:, :1])
    embed("--input", "x.npy")
    assert (np.load("embedding-h/embedding.npy") == np.load("embedding-x/embedding.npy")).all()


def test_the_bandwidth_of_given_distances_is_that_of_points(folder, capsys):
    x = np.concatenate([np.repeat(points(10), 8, 0), points(12, seed=1)])
    np.save("x.npy", x)
    np.save("d.npy", np.linalg.norm(x[:, None] - x, axis=-1))
    found = []
    for arguments in (["x.npy"], ["d.npy", "--given", "distance"]):
        embed("--input", *arguments, "--neighbors", "8", "--components", "2")
        said = capsys.readouterr().out
        found.append(float(re.search(r"bandwidth +([0-9.e-]+)", said).group(1)))
    assert found[0] == pytest.approx(found[1], rel=1e-4)
