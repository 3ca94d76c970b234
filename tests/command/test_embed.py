"""The command `torch-lapeig embed`: what it chooses, writes and refuses, on files as people have them."""

import runpy
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from torch_lapeig import KNN, LaplacianEigenmaps, SelfTuning
from torch_lapeig.command import main
from torch_lapeig.command.reading import READERS, InputError, labels_of, points_of, read

pytest.importorskip("matplotlib")


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
    assert "the first 1 columns only tell them apart" in said
    assert "points of each part: 40, 40" in said
    near = np.concatenate([points(12), points(40, seed=1) + 3])  # joined by the 12th neighbours
    np.save("near.npy", near)
    embed("--input", "near.npy")
    assert "15 " in (said := capsys.readouterr().out)
    assert "with 10 the graph falls apart" in said
    assert int(KNN(10)(torch.from_numpy(near)).connected_components().max()) == 1
    assert int(KNN(15)(torch.from_numpy(near)).connected_components().max()) == 0


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


@pytest.mark.parametrize("labels", [np.arange(60) / 7, np.array(["<b>a", "b"] * 30), np.arange(60) % 2 == 0])
def test_labels_of_any_kind_are_colours(labels, folder):
    np.save("y.npy", labels)
    embed("--input", "points.npy", "--labels", "y.npy", "--components", 1)
    assert "<b>a" not in Path("embedding-points/report.html").read_text()


# Files


def test_tables_have_names_words_and_an_index(folder, capsys):
    lines = [f"{i},{a},{b},{'yes' if i % 2 else 'no'}" for i, (a, b, _) in enumerate(points())]
    Path("table.csv").write_text("\ufeff,a,b,kind\n" + "\n".join(lines) + "\n", encoding="utf-8")
    refused("column 'kind' has words \\('no' in row 1\\): leave it out by --leave-out", "--input", "table.csv")
    embed("--input", "table.csv", "--labels", "kind")
    said = capsys.readouterr().out
    assert "line 1 holds the names of the columns" in said
    assert "column '' numbers the rows and is left out" in said
    assert "60 points in 2 dimensions" in said
    embed("--input", "table.csv", "--leave-out", "kind", "--out", "other")
    assert (np.load("other/embedding.npy") == np.load("embedding-table/embedding.npy")).all()
    refused(
        "table.csv has no column 'c'; it has , a, b, kind", "--input", "table.csv", "--leave-out", "c", "--out", "x"
    )


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_cells_may_be_separated_by_other_signs(delimiter, folder):
    np.savetxt("t.csv", points(), delimiter=delimiter)
    notes = []
    np.testing.assert_allclose(points_of(read("t.csv", notes), "t.csv", (), notes), points())
    assert any("line 1 is a point" in note for note in notes)


def points_in(text):
    Path("t.csv").write_text(text, encoding="utf-8")
    return points_of(read("t.csv", notes := []), "t.csv", (), notes), " ".join(notes)


def test_tables_of_other_programs(folder):
    """Row names of R, also of some of the rows; columns that pandas counts; decimal commas of Excel and R."""
    x = points()
    rows = [",".join(map(repr, row)) for row in x.tolist()]
    for first in (1, 0, 17):
        named = "\n".join(f'"{i + first + i // 9}",{row}' for i, row in enumerate(rows))
        found, notes = points_in(f'"","a","b","c"\n{named}')
        np.testing.assert_array_equal(found, x)
        assert "numbers the rows and is left out" in notes
    for header, lines in (("0,1,2", rows), (",0,1,2", [f"{i},{row}" for i, row in enumerate(rows)])):
        found, notes = points_in("\n".join([header, *lines]))
        np.testing.assert_array_equal(found, x)
        assert "line 1 counts the columns" in notes
    commas = [row.replace(",", ";").replace(".", ",") for row in rows]
    for lines in (["a;b;c", *commas], commas):
        found, notes = points_in("\n".join(lines))
        np.testing.assert_array_equal(found, x)
        assert "decimal commas" in notes
    for text, says in (("1,234;5,678\n9;1,000", "separate thousands"), ("0,1\n2,3\n4,5", "names or a point")):
        with pytest.raises(InputError, match=says):
            points_in(text)


def test_isolated_points_are_no_components(folder, capsys):
    """Four far points have weights that underflow: the report says so, and that the others are connected."""
    x = points(100)
    x[:4] *= 1000
    np.save("far.npy", x)
    embed("--input", "far.npy")
    said = capsys.readouterr().out
    assert "1, and 4 alone" in said
    assert "the others are connected; 4 points are too far from all" in said
    assert "tell them apart" not in said


def test_the_numbers_of_neighbours_are_tried_by_one_search(folder, monkeypatch):
    searches = []
    call, state = KNN.__call__, KNN.with_state
    monkeypatch.setattr(KNN, "__call__", lambda rule, x, mask=None: searches.append(rule.k) or call(rule, x, mask))
    monkeypatch.setattr(KNN, "with_state", lambda rule, x: searches.append(rule.k) or state(rule, x))
    np.save("two.npy", np.concatenate([points(40), points(40, seed=1) + 100]))
    embed("--input", "two.npy")
    assert searches == [10]


def test_archives_hold_one_array_several_or_a_sparse_matrix(folder, capsys):
    np.savez("one.npz", points())
    np.savez("two.npz", x=points(), y=np.arange(60))
    sparse.save_npz("sparse.npz", sparse.csr_array(points() * (points() > 0.5)))
    notes = []
    assert (read("one.npz", notes) == points()).all()
    assert (read("two.npz:x", notes) == points()).all()
    assert (read("sparse.npz", notes) == points() * (points() > 0.5)).all()
    assert notes == ["sparse.npz is a sparse matrix; its zeros are written out"]
    embed("--input", "two.npz:x", "--labels", "two.npz:y")
    assert Path("embedding-two").is_dir()
    refused("two.npz holds the arrays x, y: write two.npz:NAME", "--input", "two.npz", "--out", "a")
    refused("got 'z'", "--input", "two.npz:z", "--out", "a")


def test_tables_of_pandas_are_read_or_their_readers_named(folder, monkeypatch):
    Path("t.parquet").touch()
    monkeypatch.setitem(sys.modules, "pandas", None)
    refused("t.parquet: .parquet is read by pandas and pyarrow: pip install pandas", "--input", "t.parquet")

    class Frame:
        """Stand-in for a data frame, with the methods that the command calls."""

        columns = ("a", "b", "c")

        def __getitem__(self, name):
            return types.SimpleNamespace(to_numpy=lambda: points()[:, self.columns.index(name)])

    fake = types.ModuleType("pandas")
    fake.read_parquet = lambda path: Frame()
    monkeypatch.setitem(sys.modules, "pandas", fake)
    assert (points_of(read("t.parquet", []), "t.parquet", ["b"], []) == points()[:, [0, 2]]).all()


def damaged(array, rows, value):
    array = array.copy()
    array[rows] = value
    return array


BAD = {
    "one dimension": (points()[:, 0], r"must be of shape \(points, columns\), got \(60,\): x\[:, None\]"),
    "images": (points().reshape(20, 3, 3), r"got \(20, 3, 3\): x.reshape\(len\(x\), -1\)"),
    "a number": (np.array(3.0), r"got \(\)"),
    "not a number": (
        damaged(points(), [3, 7], np.nan),
        r"NaN, infinite or empty cells in 2 of 60 rows \(from 0: 3, 7\)",
    ),
    "infinite": (damaged(points(), [1], np.inf), "in 1 of 60 rows"),
    "objects": (np.array([[1, None], [2, 3]] * 4, dtype=object), "holds Python objects, which are not loaded since"),
    "complex": (points() * 1j, "must hold real numbers, got complex128"),
    "words": (points().astype(str), "must hold real numbers, got <U"),
    "one point": (points()[:1], "must have at least 4 points, got 1"),
    "no columns": (points()[:, :0], "at least one column"),
    "no points": (points()[:0], "at least 4 points, got 0"),
    "all equal": (np.ones((9, 2)), "all 9 points are equal"),
}


@pytest.mark.parametrize("case", BAD)
def test_files_without_points_are_refused(case, folder):
    array, says = BAD[case]
    np.save("bad.npy", array)
    refused(says, "--input", "bad.npy")


CELLS = {
    "": "is empty",
    "a,b\n": "at least 4 points, got 0",
    "1,2\n3\n": "line 2 has 1, not 2",
    "a,a\n1,2\n": "names of columns must differ",
    "a,b\n1,2\n3,\n5,6\n7,8\n": r"empty cells in 1 of 4 rows \(from 0: 1\)",
    "a,2\n1,2\n3,4\n5,6\n": r"column '1' has words \('a' in row 1\)",
    "1;2,500\n2;3,000\n3;4,000\n4;5,000\n": "decimal commas or separate thousands",
    "1_0,2\n3,4\n5,6\n7,8\n": r"column '1' has words \('1_0'",
    '"1,2\n3,4\n': "cannot be read: unexpected end of data",
}


@pytest.mark.parametrize("text", CELLS, ids=repr)
def test_tables_that_are_no_points_are_refused(text, folder):
    Path("bad.csv").write_text(text)
    refused(CELLS[text], "--input", "bad.csv")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("absent.npy", None, "absent.npy: there is no such file"),
        ("x.txt", b"1 2", r"must end in .npy, .npz, .csv, .parquet, got '.txt'"),
        ("x.npy", b"\x93NUMPY", "x.npy cannot be read"),
        ("x.npy", b"", "x.npy cannot be read"),
        ("x.npz", b"PK\x03\x04", "x.npz cannot be read"),
        ("x.csv", b"\xff\xfe1\x00", "x.csv cannot be read"),
    ],
)
def test_damaged_files_are_named(name, content, says, folder):
    if content is not None:
        Path(name).write_bytes(content)
    refused(says, "--input", name)


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
    found = points_of((points() * 2).astype(dtype), "x", (), notes)
    assert found.dtype == (np.float64 if dtype == np.int32 else np.float32)
    assert bool(notes) == (dtype != np.float32)


def test_labels_must_be_there_for_each_point(folder):
    for found, says in (
        (np.arange(59), r"a label for each of the 60 points, got shape \(59,\)"),
        (np.zeros((60, 2)), r"got shape \(60, 2\)"),
        ({"a": np.arange(60), "b": np.arange(60)}, "one column of labels, got a, b"),
        (np.full(60, np.nan), "NaN"),
        (np.full(60, 1j), "numbers or words, got complex128"),
    ):
        with pytest.raises(InputError, match=says):
            labels_of(found, "y", 60, [])
    words = np.array(["b", "c"] * 29 + ["d"])
    assert labels_of({"a": words}, "y", 60, []).tolist() == ["a", *words]  # its first line was no name
    assert labels_of({"a": words}, "y", 59, []).tolist() == [*words]
    np.save("y.npy", np.array([f"word {i}" for i in range(60)]))
    refused(
        "labels must be numbers, or at most 20 different words, got 60", "--input", "points.npy", "--labels", "y.npy"
    )
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


@pytest.mark.parametrize("n", [4, 5, 12])
def test_few_points_are_embedded(n, folder):
    np.save("few.npy", points(n))
    embed("--input", "few.npy")
    assert np.load("embedding-few/embedding.npy").shape == (n, min(10, n - 2))


@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_units_whose_squares_overflow_are_refused(scale, folder):
    np.save("x.npy", points() * scale)
    refused("leave float64: take other units", "--input", "x.npy")


def test_units_do_not_change_the_embedding(folder):
    for scale in (1e-100, 1e100):
        np.save("x.npy", points() * scale)
        embed("--input", "x.npy", "--out", f"x{scale}")
    np.testing.assert_allclose(np.load("x1e-100/embedding.npy"), np.load("x1e+100/embedding.npy"), rtol=1e-6, atol=1e-9)


def test_picture_s_library_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused(r"drawn by matplotlib: pip install 'torch-lapeig\[embed\]'", "--input", "points.npy")


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
    refused("other.csv must have the columns of the input: 'w' is not among h, width",
            "--input", "all.csv", "--labels", "label", "--new", "other.csv")  # fmt: skip


def test_arrays_may_be_read_only(folder, monkeypatch):
    """As columns of pandas are from version 3 on, and memory maps."""
    monkeypatch.setitem(READERS, ".npy", lambda path, *_: np.load(path, mmap_mode="r"))
    embed("--input", "points.npy", "--new", "points.npy")
    assert (folder / "embedding-points" / "embedding_new.npy").exists()
