"""The contract of reading: one row of a table for each promise of docs/command.md."""

import bz2
import gzip
import io
import os
import re
import shlex
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.io import mmwrite
from scipy.spatial.distance import cdist, squareform

from torch_lapeig.command import InputError, columns, main
from torch_lapeig.command.reading import read

pandas = pytest.importorskip("pandas")
pytest.importorskip("bokeh")
pytest.importorskip("matplotlib")

X = np.round(np.random.default_rng(0).normal(size=(30, 3)), 4)
FRAME = pandas.DataFrame(X, columns=["a", "b", "c"])
PAIRS = cdist(X, X)
NEAR = np.where(np.sort(PAIRS, 1)[:, [5]] >= PAIRS, PAIRS, 0)  # distances to the five nearest, as scikit-learn has them
NAMES = [f"r{i}" for i in range(30)]
TURNED = pandas.DataFrame(PAIRS, NAMES, NAMES[::-1]).to_csv()
np.save(NPY := io.BytesIO(), X)
KINDS = ["u", "v", "w"] * 10
IDS = FRAME.assign(id=[f"{7 * i:04}" for i in range(30)])
OF_IDS = IDS[["id"]].assign(k=KINDS).to_csv(index=False)
RING = "\n".join(f"n{i},n{(i + 1) % 30}" for i in range(30))


def csv(frame=FRAME, **more):
    return frame.to_csv(index=False, **more)


def also(**columns):
    return csv(FRAME.assign(**columns))


def archive(member):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archived:
        archived.writestr(member, csv())
    return file.getvalue()


def lines(*changes, text=None):
    """CSV with some lines replaced: number from 0 and text."""
    found = (text or csv()).split("\n")
    for number, line in changes:
        found[number] = line
    return "\n".join(found)


@pytest.fixture
def used(tmp_path, monkeypatch):
    """What the command uses of files, given as names and contents or the text of one, under some options."""
    monkeypatch.chdir(tmp_path)

    def of(files, arguments):
        files = {"t.csv": files} if isinstance(files, str | bytes) else files
        for name, content in files.items():
            if isinstance(content, np.ndarray):
                np.save(name, content)
            elif sparse.issparse(content):
                sparse.save_npz(name, content)
            elif callable(content):
                content(name)
            else:
                Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        found = []
        monkeypatch.setattr("torch_lapeig.command.embed", found.append)
        main(["embed", "--input", next(iter(files)), *shlex.split(arguments)])
        data = read(found[0].input, found[0])
        return columns.used_of(data, found[0])

    return of


# The promise, files, options, coordinates, and what is said.
READ = {
    "a header": (csv(), "", X, "line 1 names the columns"),
    "tabs": ({"t.tsv": csv(sep="\t")}, "", X, ""),
    "tabs by name": ({"t.txt": csv(sep="\t")}, "--separator tab", X, ""),
    "blanks": ({"t.txt": csv(sep=" ").replace(" ", "   ")}, "--separator blank", X, ""),
    "decimal commas": (csv(sep=";", decimal=","), "--separator ; --decimal ,", X, ""),
    "thousands": ('a,b\n"1,234",1\n5,2\n6,4\n7,1\n', "--thousands ,", [[1234, 1], [5, 2], [6, 4], [7, 1]], ""),
    "Latin-1": (csv(FRAME.rename(columns={"a": "größe"})).encode("latin-1"), "--encoding latin-1", X, "größe"),
    "a byte order mark": (csv().encode("utf-8-sig"), "", X, "'a'"),
    "blank lines": ("\n\n" + csv().replace("\n", "\r\n\r\n"), "", X, ""),
    "old line ends": (csv().replace("\n", "\r"), "", X, ""),
    "lines to skip": ("Title\n" + lines((0, "a,b,c\ncm,cm,kg")), "--skip-lines 1 3", X, ""),
    "numbers in quotes": (csv(quoting=1), "", X, ""),
    "gzip": ({"t.csv.gz": gzip.compress(csv().encode())}, "", X, ""),
    "text of any name": ({"t.npy": csv().encode()}, "", X, ""),
    "numbers as names": (csv(FRAME.set_axis([2000, 2010, 2015], axis=1)), "--header", X, "'2000'"),
    "no names": (csv(header=False), "--no-header", X, "columns, which are counted from 0"),
    "names that pandas would change": (csv().replace("a,b,c", "a,a.1,Unnamed: 3"), "", X, "'a', 'a.1', 'Unnamed: 3'"),
    "a name for no column": (csv().replace("a,b,c", "a,,c"), "", X, "'a', '', 'c'"),
    "long cells": (also(n="x" * 140_000), "--leave-out n", X, ""),
    "blanks around cells": (csv().replace(",", " , "), "", X, "'a', 'b', 'c'"),
    "blanks around marks": (lines((4, "1 , NA ,2")), "--drop-rows-with-missing", np.delete(X, 3, 0), ""),
    "line breaks in cells": (also(n="x\ny"), "--quotes --leave-out n", X, "61 = 1 names + 30 within cells + 30 rows"),
    "quotes as signs": (also(n='"x').replace('"""x"', '"x'), "--no-quotes --leave-out n", X, "31 = 1 names + 30 rows"),
    "quoted decimals": (csv(decimal=",", quoting=1), "--decimal ,", X, ""),
    "French thousands": (
        "a;b\n1\u202f234,5;1\n5;2\n-6\u00a0000 000;4\n7;1\n", "--separator ; --decimal , --thousands ' '",
        [[1234.5, 1], [5, 2], [-6e6, 4], [7, 1]], "",
    ),
    "Swiss thousands": ("a\n1’234.5\n5\n6'000\n7\n", '--thousands "\'"', [[1234.5], [5], [6000], [7]], ""),
    "German thousands": ("a\n1.234.567\n5\n6\n7\n", "--thousands . --decimal ,", [[1234567], [5], [6], [7]], ""),
    "two byte order marks": (csv().encode("utf-8-sig").decode().encode("utf-8-sig"), "", X, "'a'"),
    "the word NA": (also(k=["NA", "null", "w"] * 10), "--one-hot k --keep NA null", None, "'NA', 'null', 'w'"),
    "other bytes": ({"x.npy": X.astype(">f8")}, "", X, ""),
    "a cell of blanks alone": (csv() + "\n \n", "", X, "33 = 1 names + 30 rows + 2 blank"),
    "the index of pandas": (FRAME.to_csv(), "", X, "the first one, which has no name, is the index"),
    "the names of R": (FRAME.set_axis(NAMES).to_csv()[1:], "--index name", X, "is the index"),
    "numbers of R": (FRAME.to_csv()[1:], "--index name", X, "named by the index 'name'"),
    "another index": (FRAME.to_csv(), "--index a", X[:, 1:], "which has no name, is left out as --index"),
    "a column of names": (csv(IDS), "--index id", X, "named by the index 'id'"),
    "any name of an index": (also(row=KINDS), "--index row", X, "named by the index 'row'"),
    "all columns": (csv(FRAME.assign(row=KINDS).assign(row=1.0)), "", np.c_[X, np.ones(30)], "4: 'a', 'b', 'c', 'row'"),
    "columns left out": (csv(), "--leave-out b", X[:, [0, 2]], "'b' (--leave-out)"),
    "columns named twice": (csv(), "--columns a a b", X[:, :2], "2: 'a', 'b'"),
    "columns chosen": (csv(), "--columns c a", X[:, [2, 0]], "'b' (not among the columns)"),
    "categories as written": (
        also(k=["1", "1.0", "NA"] * 10), "--one-hot k --drop-rows-with-missing", None, "'1', '1.0'",
    ),
    "categories": (also(k=KINDS), "--one-hot k", np.c_[X, np.tile(np.eye(3), (10, 1))], "'u', 'v', 'w'"),
    "rows dropped": (lines((4, "1,,2")), "--drop-rows-with-missing", np.delete(X, 3, 0), "1 more have missing"),
    "marks": (lines((4, "1,?,2")), "--missing ? --drop-rows-with-missing", np.delete(X, 3, 0), ""),
    "an array": ({"x.npy": X}, "", X, "3: '0', '1', '2'"),
    "columns of an array": ({"x.npy": X}, "--leave-out 1", X[:, [0, 2]], ""),
    "one column": ({"x.npy": X[:, 0]}, "", X[:, :1], ""),
    "images": ({"x.npy": (X[:, :, None] > 0) * np.ones(2, np.uint8)}, "", np.repeat(X > 0, 2, 1), "30×3×2, uint8"),
    "flags": ({"x.npy": X > 0}, "", X > 0, "bool"),
    "a table of NumPy's": ({"x.npy": FRAME.to_records(index=False)}, "", X, "'a'"),
    "half precision": ({"x.npy": X.astype(np.float16)}, "", X.astype(np.float16), ""),
    "a sparse matrix": ({"x.npz": sparse.csr_array(X)}, "", X, "its zeros written out"),
    "diagonals of a sparse matrix": ({"x.npz": sparse.dia_array(X)}, "", X, "its zeros written out"),
    "a Matrix Market file": ({"x.mtx": lambda name: mmwrite(name, sparse.coo_array(X))}, "", X, ""),
    "a tensor": ({"x.pt": lambda name: torch.save({"x": torch.from_numpy(X), "epoch": 3}, name)}, "", X, ""),
    "distances": ({"x.npy": PAIRS}, "--given distance", PAIRS, "symmetric"),
    "named pairs": ({"x.csv": pandas.DataFrame(PAIRS).to_csv()}, "--given distance --header", PAIRS, "is the index"),
    "stored pairs": (
        {"x.npz": sparse.csr_array(NEAR)}, "--given distance", NEAR, "the stored pairs are the neighbours",
    ),
    "flags of pairs": ({"x.npz": sparse.csr_array(PAIRS > 2)}, "--given affinity", PAIRS > 2, "symmetric"),
    "affinities": ({"x.npy": np.exp(-PAIRS)}, "--given affinity", np.exp(-PAIRS), "symmetric"),
    "edges": ({"e.csv": "a,b\n" + RING + "\nn1,n0\nn4,n4\n"}, "--given edges", None, "30, 1 loops and 1 repeated"),
    "edges in an array": ({"e.npy": np.c_[range(30), np.roll(range(30), 1)]}, "--given edges", None, "30, 0 loops"),
    "edges, no names": ({"e.csv": RING}, "--given edges --no-header", None, "30, 0 loops and 0 repeated"),
    "a column of labels": (also(k=KINDS), "--labels k", X, "the column 'k', 3 different"),
    "labels by place": ({"t.csv": csv(), "y.txt": "\n".join(KINDS)}, "--labels y.txt", X, "by place"),
    "labels below a name": ({"t.csv": csv(), "y.txt": "kind\n" + "\n".join(KINDS)}, "--labels y.txt", X, "by place"),
    "labels of numbers": ({"t.csv": csv(), "y.npy": np.arange(30)}, "--labels y.npy", X, "by place"),
    "labels in an array": ({"x.npy": X, "y.npy": np.c_[X[:, 0], range(30)]}, "--labels y.npy:1", X, "by place"),
    "advice on spread": (also(c=FRAME.c * 1e4), "", X * [1, 1, 1e4], "decides nearly all distances"),
    "advice on row numbers": (also(n=range(30, 0, -1)), "", np.c_[X, range(30, 0, -1)], "'n' counts the rows"),
    "advice on zeros": ({"x.npy": np.maximum(NEAR, NEAR.T)}, "--given distance", None, "leave those that are unknown"),
    "rounded diagonals": ({"x.npy": PAIRS + 1e-9 * np.eye(30)}, "--given distance", None, "symmetric"),
    "advice on counters": (also(n=range(30)), "", np.c_[X, range(30)], "'n' counts the rows"),
    "advice on integers": (also(n=[2**60 + i**3 for i in range(30)]), "", None, "integers above 2⁵³"),
    "advice on larger integers": (also(n=[2**70 + 2**60 * i**3 for i in range(30)]), "", None, "integers above 2⁵³"),
    "advice on edges": (csv(FRAME.set_axis(["Source", "target", "c"], axis=1)), "", X, "edges are --given edges"),
    "advice on constants": (also(n=1), "", np.c_[X, np.ones(30)], "constant change no distance: 'n'"),
    "advice on pairs": ({"x.npy": PAIRS}, "", PAIRS, "square and symmetric"),
    "advice on ids": ({"t.csv": csv(IDS), "y.csv": OF_IDS}, "--labels y.csv:k", None, "--index id joins"),
}  # fmt: skip


@pytest.mark.parametrize("promise", READ)
def test_what_is_read_is_used_and_said(promise, used):
    files, arguments, expected, says = READ[promise]
    found = used(files, arguments)
    assert says in "\n".join([*found.lines.values(), *found.advice])
    if expected is not None:
        x = found.x.toarray() if sparse.issparse(found.x) else found.x
        np.testing.assert_allclose(x, np.asarray(expected, dtype=float))
        assert len(found.index) == len(x)


WITHOUT = np.delete(X, 3, 0)
SVMLIGHT = "\n".join("1 " + " ".join(f"{i}:{a}" for i, a in enumerate(row, 1)) for row in X)
# What the command asks or refuses: files, options, part of its one message; advised options or a file, coordinates.
REFUSED = {
    "numbers in line 1": (csv(header=False), "", r"line 1 has numbers .*--header .*--no-header", "--no-header", X),
    "some numbers in line 1": ("x,1990,2000\na,1,2\n", "", "--header .*--no-header"),
    "another separator": (csv(sep=";"), "", "--separator ';'", "--separator ';'", X),
    "blanks": ({"t.txt": csv(sep=" ")}, "", "--separator ' '", "--separator ' '", X),
    "decimal commas": (csv(sep=";", decimal=","), "--separator ;", "--decimal ,", "--separator ';' --decimal ,", X),
    "decimal commas between commas": (
        "x\n" + "\n".join(f"1,{i}" for i in range(9)), "", "--decimal ,", "--separator ; --decimal ,",
        [[1 + i / 10] for i in range(9)],
    ),
    "one sign for both": (csv(), "--decimal ,", "no effect .*another --separator"),
    "thousands": (also(d="1,234"), "", "'d' .words, such as '1,234' .*--thousands ,"),
    "Latin-1": ("größe\n1\n".encode("latin-1"), "", "--encoding cp1252"),
    "UTF-16": (csv().encode("utf-16"), "", "--encoding utf-16", "--encoding utf-16", X),
    "UTF-16 without a mark": (csv().encode("utf-16-le"), "", "--encoding utf-16, or"),
    "no encoding": (csv(), "--encoding utf8000", "utf8000"),
    "two signs": (csv(), "--separator ||", "--separator is one sign"),
    "one sign for decimals and thousands": (csv(), "--thousands .", "--thousands . needs another"),
    "a line of number 0": (csv(), "--skip-lines 0", "numbers of lines from 1, got 0"),
    "a comment as header": ("# a b c\n1 2 3\n", "--separator blank", "'c' 1"),
    "a short second line": (lines((1, "1,2")), "", "1 of 30 rows .*'c' 1"),
    "gzip twice": ({"t.csv.gz": gzip.compress(gzip.compress(csv().encode()))}, "", "twice.*gzip.open", "once.gz", X),
    "Stata": ({"t.dta": b"<stata_dta><header>"}, "", "Stata.*read_stata"),
    "a column of labels in an archive": (
        {"x.npy": X, "y.npz": lambda name: np.savez(name, y=X)}, "--labels y.npz:y", r"keep one of them: .*x\[:, 0\]",
    ),
    "no format": ({"x.bin": b"SQLite\0\0\xff"}, "", "is not text in utf-8: save what it holds as .npy"),
    "empty names": (
        ",,\n" + csv(header=False), "", "line 2 has numbers.*: say --header .* or --no-header", "--no-header", X,
    ),
    "numbers of R": (FRAME.to_csv()[1:], "", "--index name if the first", "--index name", X),
    "decimal commas that count": (
        "a\n" + "\n".join(f"{i},5" for i in range(30)), "", "--decimal ,",
        "--separator ';' --decimal ,", np.arange(30)[:, None] + 0.5,
    ),
    "a wrong index beside names": (FRAME.to_csv(), "--index idd", "no 'idd'; it has 'a', 'b', 'c', 'name'"),
    "a title": ("Instrument 7\n" + csv(), "", "--skip-lines 1 if", "--skip-lines 1", X),
    "units": (lines((0, "a,b,c\ncm,cm,kg")), "", "--skip-lines", "--skip-lines 2", X),
    "a longer second line": ("1,2\n1,2,3\n2,3,4\n4,5,6\n", "--no-header", "line 2 has 3 cells, those above 2"),
    "a long line": (lines((4, "1,2,3,4")), "", "line 5", "--skip-lines 5", WITHOUT),
    "a separator at the end": (csv().replace("\n", ",\n").replace("c,", "c"), "", "line 2 has 4 cells"),
    "an open quote": ('a,b\n1,2\n"3,4\n', "", "a quote is not closed.*--no-quotes"),
    "nothing": ("\n \n", "", "t.csv is empty"),
    "all that are no numbers": (
        also(d="2024-01-02", f=[True, False] * 15, k=KINDS), "",
        "'d' .words.*'f' .words.*'k' .words, such as 'u' in line 2.*--leave-out d f k, take .*--one-hot, .*--columns",
        "--leave-out d f k", X,
    ),
    "minus signs": (csv().replace("-", "−"), "", "'a' .words, such as '−.*write numbers as -1.5"),
    "numbers as words": ({"x.npy": X.astype(str)}, "", "'0' .words, such as '0[.]1257' in row 0"),
    "integers rounded": ({"x.npy": np.arange(30).reshape(10, 3) % 2 + 2**60}, "", "not all equal in float64"),
    "minus signs in line 1": ("−1,−2\n1,2\n3,4\n", "", "line 1 has numbers .'−1', '−2'"),
    "marks": (
        lines((4, "1,?,2")), "", "'b' .words, such as '[?]' in line 5.*--missing '[?]'; skip lines by --skip-lines 5",
        "--skip-lines 5", WITHOUT,
    ),
    "missing values": (lines((4, "1,,2"), (6, "1,2,inf")), "", "2 of 30 rows .*'3', '5'.*--drop-rows-with-missing"),
    "missing categories": (also(k=["u", None, "w"] * 10), "--one-hot k", "10 of 30 rows .*'k=u' 10"),
    "a short line": (lines((4, "1,2")), "", "1 of 30 rows .*'c' 1"),
    "a name twice in line 1": (
        csv().replace("a,b,c", "a,b,a"), "--leave-out a", "'a' come twice: .*--no-header --skip-lines 1",
        "--no-header --skip-lines 1", X,
    ),
    "a second index": (
        FRAME.reset_index().to_csv(), "", "and 'index' count rows: .*--leave-out i", "--leave-out index", X,
    ),
    "line breaks in cells": (also(n="x\ny"), "--leave-out n", "'x.*y'.*--quotes", "--quotes --leave-out n", X),
    "quotes that swallow lines": (
        also(n=['"x' if i in (5, 20) else "y" for i in range(30)]).replace('""""x"', '"x').replace('"""x"', '"x'),
        "--leave-out n", "line breaks .*--no-quotes", "--no-quotes --leave-out n", X,
    ),
    "comments": ("# x\n# y\n" + csv(), "", "line 3 has 3 cells.*--skip-lines 1 2 if", "--skip-lines 1 2", X),
    "a long line below a title": (
        "title\n" + lines((4, "1,2,3,4")), "--skip-lines 1", "--skip-lines 1 6 if", "--skip-lines 1 6", WITHOUT,
    ),
    "quoted decimals": (csv(decimal=",", quoting=1), "", "'0,1257' in line 2.*say --decimal ,;", "--decimal ,", X),
    "grouped numbers": (
        csv(FRAME.assign(a=[f"{i * 1000:,}" for i in range(30)])), "--leave-out b", "say --thousands ,;",
        "--thousands , --leave-out b", np.c_[np.arange(30) * 1000, X[:, 2]],
    ),
    "numbers in groups of two": (also(n="1,23"), "--thousands ,", "--thousands has no effect"),
    "marks that are nowhere": (csv(), "--missing ?", "--missing has no effect"),
    "words that are kept nowhere": (csv(), "--keep NA", "--keep has no effect"),
    "signs in an array": ({"x.npy": X}, "--separator ;", "--separator has no effect: x.npy is not a text"),
    "lines that are not there": (csv(), "--skip-lines 99", "got 99; t.csv has 31 lines"),
    "a column as an array": (csv(), "--input t.csv:a", "t.csv holds one table, and no 'a'"),
    "left out twice": (csv(), "--columns a --leave-out b", "--leave-out has no effect next to --columns"),
    "blank cells of one column": ("a\n1\n\n3\n\n", "", "2 of 4 rows have missing .*row '1', '3'"),
    "edges by their names": ("source,target\nx,y\n", "", "--given edges"),
    "one label too few": (
        {"t.csv": csv(), "y.txt": "kind\n" + "\n".join(KINDS[1:])}, "--labels y.txt", "y.txt:kind if .*y.txt:0 if",
        "--labels y.txt:0", X,
    ),
    "an empty last label": (
        {"t.csv": csv(), "y.txt": "kind\n" + "\n".join(KINDS[:-1]) + "\n\n"}, "--labels y.txt", "y.txt:kind if",
        "--labels y.txt:kind", X,
    ),
    "labels of nodes by place": (
        {"e.csv": "a,b\n" + RING, "y.txt": "\n".join(KINDS)}, "--given edges --labels y.txt", "joined by their names",
    ),
    "a wrong name": (also(size=1), "--leave-out sise", "no 'sise'; it has .a.*.size."),
    "a name twice": (csv(), "--columns a b --leave-out b", "contradict each other: 'b'"),
    "one row": (csv(FRAME[:1]), "", "must have 4 rows"),
    "no rows": ("a,b\n", "", "must have 4 rows"),
    "equal rows": ({"x.npy": np.ones((9, 2))}, "", "not all equal"),
    "squares that overflow": ({"x.npy": X * 1e160}, "", "take other units"),
    "complex numbers": ({"x.npy": X * 1j}, "", "complex numbers"),
    "several arrays": (
        {"x.npz": lambda name: np.savez(name, x=X, y=X)}, "", "'x', 'y'; x.npz:NAME", "--input x.npz:x", X,
    ),
    "a checkpoint": ({"x.pt": lambda name: torch.save({"epoch": 3}, name)}, "", "has no array"),
    "svmlight with queries": ({"x.svm": "# c\n1\n1 qid:3 1:0.5\n"}, "", "load_svmlight_file"),
    "svmlight": ({"x.svm": SVMLIGHT}, "", "sparse rows .svmlight.*load_svmlight_file", "points.npz", X),
    "JSON with a mark": ({"x.json": b'\xef\xbb\xbf{"a": 1}'}, "", "JSON.*read_json"),
    "a folder": ({"folder": os.mkdir}, "", "no file folder, but a folder"),
    "Arrow": ({"x.feather": b"ARROW1"}, "", "read_feather"),
    "bzip2": ({"x.data": bz2.compress(csv().encode())}, "", "a compressed file .*bz2.open", "table.csv", X),
    "JSON": ({"x.json": FRAME.to_json()}, "", "JSON.*read_json", "table.csv", X),
    "lines of JSON": ({"x.jsonl": FRAME.to_json(orient="records", lines=True)}, "", "lines=True", "table.csv", X),
    "HDF5": ({"x.h5": b"\x89HDF\r\n\x1a\n"}, "", "h5py.File|pip install anndata"),
    "a workbook": ({"x.xlsx": archive("xl/workbook.xml")}, "", "Excel.*read_excel"),
    "an archive": ({"x.zip": archive("t.csv")}, "", "an archive of files.*unpack_archive", "t.csv", X),
    "entries stored twice": (
        {"x.mtx": "%%MatrixMarket matrix coordinate real general\n4 4 3\n1 2 1\n1 2 1\n2 1 2\n"}, "--given distance",
        "stores 1 entries of its matrix more than once: .*sum_duplicates",
    ),
    "missing values of chosen columns": (
        lines((4, "1,,2")), "--columns a b", "fill them in, or leave out these rows by --drop[a-z-]+$",
        "--columns a b --drop-rows-with-missing", WITHOUT[:, :2],
    ),
    "Excel": ({"x.xlsx": b"\xd0\xcf\x11\xe0"}, "", "Excel.*read_excel"),
    "a pickle": ({"x.pkl": b"\x80\x04K\x01."}, "", "Python objects"),
    "a list": ({"x.pt": lambda name: torch.save([torch.ones(3), torch.ones(3)], name)}, "", "'0', '1'; x.pt:NAME"),
    "objects": ({"x.npy": lambda name: np.save(name, np.array([1, None]))}, "", "Object arrays.*x.astype"),
    "a picture": ({"x.png": b"\x89PNG\r\n"}, "", "a picture"),
    "a broken array": ({"x.npy": b"\x93NUMPY\x01"}, "", "cannot be read"),
    "two arrays in a row": ({"x.npy": 2 * NPY.getvalue()}, "", "more bytes after its first array"),
    "bytes without a type": ({"x.npy": np.zeros(30, "V4")}, "", "bytes without a type, not rows"),
    "a broken archive": ({"x.npz": b"PK\x03\x04"}, "", "cannot be read"),
    "a broken gzip": ({"x.csv.gz": b"\x1f\x8b1"}, "", "cannot be read"),
    "a broken matrix": ({"x.mtx": "%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1\n"}, "", "Truncated"),
    "a large sparse matrix": ({"x.npz": sparse.csr_array((10**5, 10**5))}, "", "GiB with its zeros"),
    "condensed distances": ({"x.npy": squareform(PAIRS, checks=False)}, "--given distance", "squareform"),
    "a diagonal": (
        {"x.npy": PAIRS + np.eye(30)}, "--given distance", "its diagonal is not zero",
        "--given affinity", PAIRS + np.eye(30),
    ),
    "infinite distances": ({"x.npy": np.where(PAIRS > 3, np.inf, PAIRS)}, "--given distance", "replace them"),
    "columns in another order": ({"x.csv": TURNED}, "--given distance", "columns have the same names in different"),
    "one half": ({"x.npy": np.triu(PAIRS)}, "--given distance", "it is not symmetric, by .*: x [+] x.T completes"),
    "negative affinities": ({"x.npy": np.corrcoef(X)}, "--given affinity", "entries are negative"),
    "edges in a sparse matrix": ({"x.npz": sparse.csr_array(NEAR)}, "--given edges", "it is not symmetric"),
    "one-sided affinities": ({"x.npz": sparse.csr_array(NEAR)}, "--given affinity", "it is not symmetric"),
    "complex pairs": ({"x.npz": sparse.csr_array(NEAR * 1j)}, "--given affinity", "complex numbers"),
    "columns of sparse pairs": (
        {"x.npz": sparse.csr_array(NEAR)}, "--given distance --leave-out 1", "has no '1'", "--given distance", NEAR,
    ),
    "edges in line 1": ({"e.csv": RING}, "--given edges", "--header .*--no-header"),
    "edges with two weights": ({"e.csv": "a,b,w\nx,y,1\ny,x,2\n"}, "--given edges", "'x' and 'y' have two weights"),
    "words as weights": ({"e.npy": np.array([[*"xyw"], [*"yz1"]])}, "--given edges", "row 0 lacks a name or a finite"),
    "edges of four columns": ({"e.csv": "a,b,c,d\nx,y,1,2\n"}, "--given edges", "--columns"),
    "labels of several columns": (
        {"t.csv": csv(), "y.csv": "id;k\n" + "\n".join(30 * ["1;u"])}, "--labels y.csv",
        r"pandas.read_csv.'y.csv', sep=';'.*sep=','",
    ),
    "labels with ids": ({"t.csv": csv(), "y.csv": OF_IDS}, "--labels y.csv", "y.csv:NAME.*--index"),
    "few labels": ({"t.csv": csv(), "y.txt": "\n".join(KINDS[1:])}, "--labels y.txt", "each of the 30 rows, got 28|29"),
    "labels of others": ({"t.csv": FRAME.to_csv(), "y.csv": ",k\nx,1\ny,2\n"}, "--labels y.csv", "none of '0'"),
    "equal ids": (
        {"t.csv": csv(IDS), "y.csv": "id,k\n0007,1\n0007,2\n"}, "--labels y.csv --index id", "'0007' come twice",
    ),
    "no labels": (csv(), "--labels kind", "no file kind, and t.csv has no 'kind'"),
    "no file": (csv(), "--labels x.npz:y", "no file"),
}  # fmt: skip


@pytest.mark.parametrize("promise", REFUSED)
def test_what_is_not_clear_is_asked_in_one_message(promise, used):
    files, arguments, says, *advised = REFUSED[promise]
    with pytest.raises(InputError) as refused:
        used(files, arguments)
    assert re.search(says, str(refused.value)), str(refused.value)
    assert "\n" not in str(refused.value)
    if advised:
        line = re.match(".*in Python: (.*?)(, (then|of) .*)?$", str(refused.value))
        if line:  # which writes a file
            exec(f"import bz2, gzip, pandas, pathlib, scipy, shutil, sklearn.datasets; {line[1]}")
            files, advised[0] = {advised[0]: Path(advised[0]).read_bytes()}, ""
        x = used(files, advised[0]).x
        np.testing.assert_allclose(x.toarray() if sparse.issparse(x) else x, advised[1])


def test_labels_are_joined_by_the_index(used):
    """Zeros that lead stay, the order of the other file is free, and rows without a label are counted."""
    there = IDS[["id"]].assign(kind=KINDS)[:25].sample(frac=1, random_state=0)
    found = used(
        {"t.csv": IDS.set_index("id").rename_axis("").to_csv(), "y.csv": csv(there)}, "--index id --labels y.csv"
    )
    assert found.labels[:25].tolist() == KINDS[:25]
    found = used({"t.csv": csv(IDS), "y.csv": csv(there)}, "--index id --labels y.csv")
    assert found.labels[:25].tolist() == KINDS[:25]
    assert pandas.isna(found.labels[25:]).all()
    assert found.index[1] == "0007"
    assert "joined by the index 'id': 5 rows have no label, 0 labels no row" in found.lines["labels"]


def test_labels_of_nodes_are_joined_by_their_names(used):
    halves = "node,half\n" + "\n".join(f"n{i},{i < 15}" for i in np.random.default_rng(0).permutation(30))
    found = used({"e.csv": "a,b\n" + RING, "y.csv": halves}, "--given edges --labels y.csv:half --index node")
    assert [label == "True" for label in found.labels] == [int(name[1:]) < 15 for name in found.index]


def test_edges_are_symmetric_affinities(used):
    found = used({"e.csv": "a,b,w\nx,y,2\nz,y,3\ny,x,2\nz,t,1\n"}, "--given edges")
    assert found.index.tolist() == ["x", "y", "z", "t"]
    np.testing.assert_array_equal(found.x.toarray(), [[0, 2, 0, 0], [2, 0, 3, 0], [0, 3, 0, 1], [0, 0, 1, 0]])
    found = used(
        {"e.csv": "w;a;b\n1,5;007;7\n2;7;NA\n1;NA;01\n"}, "--given edges --columns a b w --separator ; --decimal ,"
    )
    assert found.index.tolist() == ["007", "7", "NA", "01"]
    assert found.x.sum() == 9


def test_tables_of_libraries_that_are_not_here(used, monkeypatch):
    """Stand-ins give what pyarrow and anndata would give: an index, and columns that may be labels."""
    frame = FRAME.assign(day=pandas.Timestamp("2024-01-02")).set_axis([f"r{i}" for i in range(30)])
    monkeypatch.setattr(pandas, "read_parquet", lambda path: frame)
    with pytest.raises(InputError, match=r"'day' .dates"):
        used({"t.parquet": b"PAR1"}, "")
    found = used({"t.parquet": b"PAR1"}, "--leave-out day")
    np.testing.assert_array_equal(found.x, X)
    assert found.index[0] == "r0"
    obs = pandas.DataFrame({"kind": KINDS}, frame.index)
    data = types.SimpleNamespace(X=sparse.csr_array(X), obs=obs, var_names=[*"abc"], obsm={}, obsp={}, layers={})
    monkeypatch.setitem(sys.modules, "anndata", types.SimpleNamespace(read_h5ad=lambda path: data))
    found = used({"a.h5ad": b"\x89HDF"}, "--labels kind")
    np.testing.assert_array_equal(found.x, X)
    assert (found.labels.tolist(), found.columns) == (KINDS, ["a", "b", "c"])
    data.obsm["X_pca"] = X[:, :2]
    with pytest.raises(InputError, match=r"'X', 'X_pca'; a.h5ad:NAME"):
        used({"a.h5ad": b"\x89HDF"}, "")
    data.obsm["X_pca"] = pandas.DataFrame(X[:, :2], obs.index, ["a", "b"])
    data.layers["X"] = 2 * X  # next to X it is a question which one
    with pytest.raises(InputError, match=r"'adata.X', 'layers.X', 'X_pca'; a.h5ad:NAME"):
        used({"a.h5ad": b"\x89HDF"}, "")
    np.testing.assert_array_equal(used({"a.h5ad": b"\x89HDF"}, "--input a.h5ad:layers.X").x, 2 * X)
    found = used({"a.h5ad": b"\x89HDF"}, "--input a.h5ad:X_pca --labels kind")
    assert (found.names, found.index[0], found.labels.tolist()) == (["a", "b"], "r0", KINDS)
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(InputError, match="pip install anndata"):
        used({"a.h5ad": b"\x89HDF"}, "")
