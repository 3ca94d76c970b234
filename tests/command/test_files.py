"""Files as people have them: the reader returns the intended points, or one sentence with the fix."""

import argparse
import gzip
import re
import sys
import types

import numpy as np
import pytest
import torch
from scipy import io, sparse

from torch_lapeig import command
from torch_lapeig.command import add_options
from torch_lapeig.command.points import labels_of, points_of
from torch_lapeig.command.reading import read
from torch_lapeig.command.tables import InputError

pandas = pytest.importorskip("pandas")

X = np.array([[5.1, 3.5, 1.4], [4.9, -3.0, 1.25], [4.7, 3.2, 10.5], [6.3, 3.3, 6.0], [5.8, 2.7, 5.1]])
FRAME = pandas.DataFrame(X, columns=["len", "wid", "hei"])
KINDS = ["setosa", "versicolor", "setosa", "virginica", "setosa"]
LINES = [",".join(map(repr, row)) for row in X.tolist()]
BARE = "\n".join(LINES)
ROWS = "\n".join(f'"{i + 1}",{line}' for i, line in enumerate(LINES))  # as R writes them
CSV = FRAME.to_csv(index=False)
WHOLE = (X * 100).astype(int)
LARGE = X * 1000
SHUFFLED = FRAME.set_axis([4, 0, 17, 2, 9])


def options_of(*arguments):
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(["--input", "x", *arguments])


def points(folder, name, content, *arguments):
    """The points of a file with this text or these bytes, and the notes."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    wishes, notes = options_of(*arguments), []
    found = points_of(
        read(str(path), wishes, notes), name, wishes.leave_out, wishes.drop_rows_with_missing, notes
    )  # fmt: skip
    return found.x, "\n".join(notes)


def with_lines(*changed, text="len,wid,hei\n" + BARE):
    """A text of which some lines, from 1, are others."""
    lines = text.split("\n")
    for number, line in changed:
        lines[number - 1] = line
    return "\n".join(lines)


def in_groups(decimal, group):
    return "\n".join(
        ";".join(f"{value:,.2f}".translate(str.maketrans({",": group, ".": decimal})) for value in row) for row in LARGE
    )


# Text that is read as it is meant: name, text or bytes, words of a note, options.
READ = {
    "names": ("t.csv", CSV, "line 1 names the columns"),
    "no names": ("t.csv", BARE, "numbered from 1 to 3"),
    "index of pandas": ("t.csv", FRAME.to_csv(), "without a name .* left out"),
    "filtered and shuffled index": ("t.csv", SHUFFLED.to_csv(), "without a name .* left out"),
    "index of words": ("t.csv", FRAME.set_axis(list("abcde")).to_csv(), "left out"),
    "index saved twice": ("t.csv", FRAME.reset_index(names="Unnamed: 0").to_csv(), "'Unnamed: 0'|without a name"),
    "index without a header": ("t.csv", FRAME.to_csv(header=False), "column '1' numbers"),
    "column id": ("t.csv", FRAME.assign(id=[2**63 + i for i in range(5)]).to_csv(index=False), "'id' numbers"),
    "index of two levels": (
        "t.csv", FRAME.set_axis(pandas.MultiIndex.from_product([range(5), [0]])).to_csv(), "without a name, with",
    ),
    "customers": ("t.csv", FRAME.assign(c=[10**18 + i for i in range(5)]).to_csv(index=False), "'c' numbers"),
    "empty column": ("t.csv", FRAME.assign(note="").to_csv(index=False), "'note' is empty"),
    "aligned by blanks": ("t.txt", "  " + BARE.replace(",", "  ").replace("\n", "\n  "), "separated by"),
    "names 0, 1, 2": ("t.csv", pandas.DataFrame(X).to_csv(index=False), "line 1 names"),
    "index and names 0, 1, 2": ("t.csv", pandas.DataFrame(X).to_csv(), "line 1 names"),
    "names are wavelengths": ("t.csv", "400,402.5,405,407.5\n" + ",7.5\n".join([*LINES, ""]), "line 1 names"),
    "years and words": ("t.csv", "at,2019,2020,2021\nC," + "\nC,".join(LINES), "names", "--leave-out", "at"),
    "R's write.csv": ("t.csv", '"","len","wid","hei"\n' + ROWS, "left out"),
    "R's write.csv2": ("t.csv", FRAME.to_csv(index=False, sep=";", decimal=","), "decimal commas"),
    "R's write.table": ("t.txt", '"len" "wid" "hei"\n' + ROWS.replace(",", " "), "separated by"),
    "NumPy's savetxt": ("t.txt", BARE.replace(",", " "), "separated by"),
    "NumPy's savetxt with names": ("t.txt", "# len wid hei\n" + BARE.replace(",", " "), "separated by"),
    "columns of blanks": ("t.txt", BARE.replace(",", "    "), "separated by"),
    "tabs and blanks": ("t.txt", BARE.replace(",", "\t ", 5).replace(",", "  "), "separated by blanks"),
    "tabs": ("t.tsv", FRAME.to_csv(index=False, sep="\t"), "separated by"),
    "bars": ("t.txt", FRAME.to_csv(index=False, sep="|"), "separated by"),
    "Excel's own line": ("t.csv", "sep=;\n" + FRAME.to_csv(index=False, sep=";"), "separated by"),
    "Excel's empty rows": ("t.csv", CSV + ",,\n,,\n", "names"),
    "Excel in UTF-16": ("t.txt", FRAME.to_csv(index=False, sep="\t").encode("utf-16"), "separated by"),
    "UTF-16 without a mark": (
        "t.csv", CSV.encode("utf-16-le"), "names", "--encoding", "utf-16-le",
    ),
    "mark of UTF-8, ends of Windows": ("t.csv", "\ufeff" + CSV.replace("\n", "\r\n"), "names"),
    "ends of old Macs": ("t.csv", CSV.replace("\n", "\r"), "names"),
    "Latin-1": ("t.csv", FRAME.set_axis(["Länge", "b", "c"], axis=1).to_csv(index=False).encode("latin-1"), "cp1252"),
    "blanks after commas": ("t.csv", BARE.replace(",", ", "), "separated by"),
    "trailing commas": ("t.csv", "len,wid,hei,\n" + BARE.replace("\n", ",\n") + ",", "names"),
    "trailing commas below names": ("t.csv", "len,wid,hei\n" + BARE.replace("\n", ",\n") + ",", "names"),
    "comments and empty lines": ("t.csv", "# by hand\n\nlen,wid,hei\n" + BARE.replace("\n", "\n\n#more\n"), "names"),
    "equal names": ("t.csv", "len,len,len\n" + BARE, "names"),
    "quoted numbers": ("t.csv", FRAME.to_csv(index=False, quoting=1), "names"),
    "compressed": ("t.csv.gz", gzip.compress(CSV.encode()), "names"),
    "compressed, by another name": ("t.csv", gzip.compress(CSV.encode()), "names"),
    "compressed by name only": ("t.csv.gz", CSV, "names"),
    "classes left out": ("t.csv", FRAME.assign(kind=KINDS).to_csv(index=False), "names", "--leave-out", "kind"),
    "text with commas": ("t.csv", FRAME.assign(kind="a, 'b; c'").to_csv(index=False), "names", "--leave-out", "kind"),
    "text of two lines": ("t.csv", FRAME.assign(kind="a\nb").to_csv(index=False), "names", "--leave-out", "kind"),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_text_is_read_as_it_is_meant(case, tmp_path):
    name, content, note, *arguments = READ[case]
    found, notes = points(tmp_path, name, content, *arguments)
    if case == "names are wavelengths":
        found = found[:, :3]
    np.testing.assert_array_equal(found, X)
    assert re.search(note, notes)


def test_numbers_are_read_as_they_are_meant(tmp_path):
    for decimal, group in ((",", "."), (".", ",")):
        np.testing.assert_allclose(points(tmp_path, "t.csv", in_groups(decimal, group))[0], LARGE)
    for option, factor in (("comma", 1), ("point", 1000)):
        text = "a;b\n1,234;2,500\n3,100;9,100\n5,500;4,125\n"
        found = points(tmp_path, "t.csv", text, "--decimal", option)[0]
        np.testing.assert_allclose(found, np.array([[1.234, 2.5], [3.1, 9.1], [5.5, 4.125]]) * factor)
    assert points(tmp_path, "t.csv", "a,b\n\u22121,2\n1,3\n2,5\n")[0].tolist() == [[-1, 2], [1, 3], [2, 5]]
    found = points(tmp_path, "t.csv", "a,b\nTrue,1\nFalse,2\n,3\n", "--drop-rows-with-missing")[0]
    np.testing.assert_array_equal(found, [[1, 1], [0, 2]])
    found, _ = points(tmp_path, "t.csv", "0,1\n2,3\n4,5\n", "--header", "no")
    assert len(found) == 3
    assert points(tmp_path, "t.csv", "pixels\n1\n2\n3\n")[0].shape == (3, 1)


# Text that nobody can embed as it is: name, text, the sentence.
REFUSED = {
    "empty": ("", "t.csv is empty"),
    "only comments": ("# a\n# b\n", "t.csv is empty"),
    "NA": (with_lines((3, "4.9,NA,1.25"), (5, "6.3,nan,6")), r"2 of 5 rows .*\(line 3, 5; column 'wid' has 2\)"),
    "question marks": (with_lines((4, "?,3.2,10.5")), "line 4; .*--drop-rows-with-missing"),
    "empty cells": (with_lines((4, ",3.2,10.5"), text="\n" + BARE), "line 4;"),
    "infinite": (with_lines((2, "inf,3.2,10.5")), "line 2;"),
    "short row": (with_lines((4, "4.7,3.2")), "line 4; column 'hei'"),
    "long row": (with_lines((4, "4.7,3.2,1,1")), "line 4 has 4 cells, where others have 3"),
    "classes": (FRAME.assign(kind=KINDS).to_csv(index=False), "'kind' of words .*'setosa' in line 2.*--leave-out kind"),
    "two columns of words": (FRAME.assign(a="x", b=KINDS).to_csv(index=False), "columns 'a', 'b' .*--leave-out a b"),
    "dates": (FRAME.assign(date="2024-01-02").to_csv(index=False), "words or dates .*--leave-out date"),
    "one word among numbers": (with_lines((4, "4.7,abc,1")), "'wid' has 1 cells that are no numbers .'abc' in line 4"),
    "units below names": (with_lines((1, "len,wid,hei\ncm,cm,cm")), "line 2 has words .*'cm', 'cm'.: take it out"),
    "thousands or decimals": ("a;b\n1,234;2,500\n3,100;9,100\n", "--decimal comma or --decimal point"),
    "names or a point": ("0,1\n2,3\n4,5\n", "--header yes or --header no"),
    "title": ("Instrument 7\n\n" + CSV, "the first line has 1 cells, where others have 3: take out titles"),
    "unclosed quote": ('a,b\n"1,2\n3,4\n', "cannot be read"),
    "UTF-16 without a mark": ("\0".join(BARE), "--encoding utf-16-le"),
    "Excel workbook": ("PK\x03\x04", "an Excel workbook or an archive"),
    "web page": ("<!DOCTYPE html>", "a web page"),
    "numbers of Python": ("a,b\n1_0,2\n3,4\n5,6\n", "'1_0' in line 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_text_that_is_no_points_is_refused_with_a_way_out(case, tmp_path):
    text, says = REFUSED[case]
    with pytest.raises(InputError, match=says) as refused:
        points(tmp_path, "t.csv", text)
    assert "\n" not in str(refused.value)


def test_options_that_read_name_what_they_cannot(tmp_path):
    for option, value, says in (
        ("--encoding", "utf8000", "unknown encoding"),
        ("--encoding", "ascii", "not in ascii"),
        ("--leave-out", "weight", r"no 'weight': did you mean '\+weight'"),
    ):
        with pytest.raises(InputError, match=says):
            points(tmp_path, "t.csv", "ä,+weight\n1,2\n3,4\n", option, value)


def test_columns_that_may_be_labels_are_offered(tmp_path):
    for name, values, is_offered in (("label", [1, 2, 1, 2, 1], True), ("size", [1, 2, 1, 2, 1], False)):
        notes = points(tmp_path, "t.csv", FRAME.assign(**{name: values}).to_csv(index=False))[1]
        assert ("say --labels label" in notes) == is_offered


def test_rows_with_missing_values_can_be_left_out(tmp_path):
    found, notes = points(tmp_path, "t.csv", with_lines((3, "4.9,NA,1.25")), "--drop-rows-with-missing")
    np.testing.assert_array_equal(found, X[[0, 2, 3, 4]])
    assert "1 of 5 rows have missing values and are left out" in notes


def test_formats_hold_the_same_points(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wishes, half = options_of(), X * (X > 3)
    np.save("x.npy", X)
    np.savez("x.npz", points=X, y=np.arange(5))
    torch.save({"points": torch.from_numpy(X), "epoch": 3}, "x.pt")
    sparse.save_npz("sparse.npz", sparse.csr_array(half))
    io.mmwrite("x.mtx", sparse.coo_array(half))
    np.save("images.npy", (X[:, :, None] * np.ones(4)).reshape(5, 3, 2, 2).astype(np.uint8))
    with gzip.open("x.npy.gz", "wb") as file:
        np.save(file, X)
    for name, expected in (
        ("x.npy", X), ("x.npy.gz", X), ("x.npz:points", X), ("x.pt", X), ("sparse.npz", half), ("x.mtx", half),
    ):  # fmt: skip
        np.testing.assert_allclose(points_of(read(name, wishes, []), name, [], False, []).x, expected)
    images = points_of(read("images.npy", wishes, []), "images.npy", [], False, notes := []).x
    assert images.shape == (5, 12)
    assert images.dtype == np.float32
    assert "each 3×2×2 array" in notes[0]
    for name, says in (
        ("x.npz", "holds the arrays points, y: write x.npz:NAME"),
        ("x.npz:point", "did you mean 'points'"),
        ("none.npy", "there is no such file"),
        ("x.xlsx", "must end in .csv, .* got an Excel workbook"),
        ("x.png", r"must end in .csv, .* got '.png'"),
        ("broken.npy", "broken.npy cannot be read"),
        ("text.npy", "text.npy is text, although its name says otherwise"),
        ("y.npz:x", "y.npz: there is no such file, did you mean 'x.npz'"),
        (".", "is a folder: name a file in it"),
        ("broken.pt", "broken.pt (cannot be read|holds Python objects)"),
        ("broken.csv.gz", "broken.csv.gz cannot be read"),
        ("objects.npy", "holds Python objects"),
    ):
        if name.partition(".")[0] in ("broken", "x", "text") and "npz" not in name:
            content = {"gz": b"\x1f\x8b1", "npy": b"\x93NUMPY", "xlsx": b"PK\x03\x04"}.get(
                name.rpartition(".")[2], b"\0"
            )
            (tmp_path / name).write_bytes(b"1" if name.startswith("text") else content)
        np.save("objects.npy", np.array([1, None]))
        with pytest.raises(InputError, match=says):
            read(name, wishes, [])


def test_tables_of_parquet(tmp_path, monkeypatch):
    """Pandas' own reader is replaced, which needs pyarrow."""
    (tmp_path / "t.parquet").touch()
    frame = FRAME.assign(flag=pandas.array([True, False, None, True, True]), day=pandas.Timestamp("2024-01-02"))
    monkeypatch.setattr(pandas, "read_parquet", lambda path: frame)
    found = read(str(tmp_path / "t.parquet"), options_of(), [])
    with pytest.raises(InputError, match="'day' of words or dates"):
        points_of(found, "t", [], False, [])
    with pytest.raises(InputError, match="row 2; column 'flag' has 1"):
        points_of(found, "t", ["day"], False, [])
    np.testing.assert_array_equal(points_of(found, "t", ["day", "flag"], False, []).x, X)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas pyarrow"):
        read(str(tmp_path / "t.parquet"), options_of(), [])
    (tmp_path / "t.csv").write_text(BARE)
    with pytest.raises(InputError, match=r"pip install 'torch-lapeig\[embed\]'"):
        read(str(tmp_path / "t.csv"), options_of(), [])


def test_files_are_known_by_their_first_bytes(tmp_path):
    """Whatever their names say; a table of NumPy's, and text of any name, are tables."""
    with (tmp_path / "x.csv").open("wb") as file:
        np.save(file, X)
    np.save(tmp_path / "table.npy", FRAME.to_records(index=False))
    (tmp_path / "iris.data").write_text(CSV)
    for name in ("x.csv", "table.npy", "iris.data"):
        found = points_of(read(str(tmp_path / name), options_of(), []), name, [], False, [])
        np.testing.assert_array_equal(found.x, X)


def test_images_are_known_by_shape_or_by_pixels():
    smooth = np.add.outer(np.arange(30) * 3, np.add.outer(np.arange(8), np.arange(8)) * 9)  # bytes that vary slowly
    for array, shape in (
        (smooth, (30, 8, 8)),
        (np.stack([smooth] * 3, 1), (30, 8, 8, 3)),
        (smooth[..., None], (30, 8, 8, 1)),
        (smooth.reshape(30, 64), (30, 8, 8)),
        (np.random.default_rng(0).permuted(smooth.reshape(30, 64), axis=1), None),
        (smooth.reshape(30, 64) / 7, None),
        (smooth[:, :4, :4], None),
    ):
        images = points_of(array, "x", [], False, []).images()
        assert (None if images is None else images.shape) == shape


def test_columns_that_name_the_rows_are_left_out(tmp_path):
    """Different words in the first column, and keys of databases; dates and lengths with a unit are neither."""
    names = FRAME.assign(gene=["ABC1", "b", "c", "d", "e"])[["gene", "len", "wid", "hei"]]
    for frame in (names, FRAME.assign(customer_id=[9, 3, 5, 1, 7]), FRAME.assign(PassengerId=[9, 3, 5, 1, 7])):
        found, notes = points(tmp_path, "t.csv", frame.to_csv(index=False))
        np.testing.assert_array_equal(found, X)
        assert "numbers or names the rows" in notes
    for first in ("1 cm", "2024-01-02"):
        cells = [first.replace("1", str(i)).replace("2024", str(2020 + i)) for i in range(5)]
        with pytest.raises(InputError, match="--leave-out at"):
            points(tmp_path, "t.csv", names.assign(gene=cells).rename(columns={"gene": "at"}).to_csv(index=False))
    assert points(tmp_path, "t.csv", FRAME.assign(site_id=[1, 1, 2, 2, 3]).to_csv(index=False))[0].shape == (5, 4)


def test_annotated_data(tmp_path, monkeypatch):
    """The test replaces anndata by a stand-in."""
    path = tmp_path / "a.h5ad"
    path.touch()
    data = types.SimpleNamespace(X=sparse.csr_array(X), obs=FRAME.assign(kind=KINDS), obsm={})
    monkeypatch.setitem(sys.modules, "anndata", types.SimpleNamespace(read_h5ad=lambda path: data))
    assert (read(str(path), options_of(), []) != data.X).nnz == 0
    data.obsm["X_pca"] = X[:, :2]
    np.testing.assert_array_equal(read(str(path), options_of(), notes := []), X[:, :2])
    assert "obsm['X_pca']" in notes[0]
    given, without = command.labels_of(options_of("--input", str(path), "--labels", "kind"), X, [])
    assert given.tolist() == KINDS
    assert without == []
    with pytest.raises(InputError, match="has no 'X_pcs': did you mean 'X_pca'"):
        read(f"{path}:X_pcs", options_of(), [])
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(InputError, match="pip install anndata"):
        read(str(path), options_of(), [])


# Files of labels for five points: text, the labels.
LABELS = {
    "words": ("\n".join(KINDS), KINDS),
    "words below a name": ("kind\n" + "\n".join(KINDS), KINDS),
    "words with blanks": ("New York\nParis\nParis\nNew York\nRome", ["New York", "Paris", "Paris", "New York", "Rome"]),
    "words, some with commas": ("a\nb\nc, d\ne\nf", ["a", "b", "c, d", "e", "f"]),
    "whole numbers": ("3\n1\n2\n1\n1", [3, 1, 2, 1, 1]),
    "whole numbers with points": ("3.0\n1.0\n2.0\n1.0\n1.0", [3, 1, 2, 1, 1]),
    "numbers below an index": (",kind\n" + "\n".join(f"{i},{i % 2}" for i in range(5)), [0, 1, 0, 1, 0]),
    "one is missing": ("kind\n3\n1\nNA\n1\n1", [3, 1, np.nan, 1, 1]),
    "numbers": ("0.5\n1\n2\n1\n1", [0.5, 1, 2, 1, 1]),
    "flags": ("True\nFalse\nTrue\nTrue\nTrue", [True, False, True, True, True]),
}


def test_labels_of_other_kinds(tmp_path):
    for given, expected in (
        (pandas.Series([1, None, 2]), [1, np.nan, 2]),
        (pandas.Series(["a", "b", "a"], dtype="category"), ["a", "b", "a"]),
        (np.array([1.0, np.inf, 2.0]), [1.0, np.inf, 2.0]),
        (np.array([True, False, True]), [True, False, True]),
        (np.array([[3], [1], [2]]), [3, 1, 2]),
    ):
        np.testing.assert_array_equal(labels_of(given, "y", 3, []), np.asarray(expected))


@pytest.mark.parametrize("case", LABELS)
def test_labels_are_read_as_they_are_meant(case, tmp_path):
    text, expected = LABELS[case]
    (tmp_path / "y.txt").write_text(text)
    found = labels_of(read(str(tmp_path / "y.txt"), options_of(), [], 5), "y.txt", 5, [])
    np.testing.assert_array_equal(found, expected)
