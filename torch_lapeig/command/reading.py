"""Files as tables or sparse matrices: the format by the first bytes, a text by the options of the command."""

from __future__ import annotations

import csv
import gzip
import io
import re
import tempfile
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.io import mmread

BLANKS = r"\s+"  # separator: any number of blanks
SIGNS = {"tab": "\t", r"\t": "\t", " ": BLANKS, "blank": BLANKS, "space": BLANKS}  # other ways to write separators
# Encodings of a text that is not UTF-8.
LIKELY = ("utf-8", "cp1252", "utf-16", "utf-16-be", "utf-32", "mac_roman", "cp1251")
LARGEST = 4 << 30  # bytes of a sparse matrix that is written out
UNNAMED = "Unnamed: 0"  # pandas' name of a first column without one
# What is read: how its bytes begin (an archive by its members), the library that reads it, and what numpy.save would
# save of a file of this kind that the command does not read.
FORMATS = {
    ".npy": (rb"\x93NUMPY", "numpy", "x.astype(float)"),
    ".npz": (rb"PK.*\.npy ", "numpy", ""),
    ".pt": (rb"PK.*data\.pkl ", "torch", "torch.load({0!r}, weights_only=True)['NAME'].detach().numpy()"),
    ".mtx": (rb"%%MatrixMarket", "scipy", ""),
    ".parquet": (rb"PAR1", "pyarrow", ""),
    ".h5ad": (rb"\x89HDF", "anndata", "h5py.File({0!r})['NAME'][:]"),
    "text": (rb"", "pandas", ""),
}
TO_CSV = ".to_csv('table.csv', index=False)"
SVMLIGHT = rb"(#[^\n]*\n|[-+\d.]+[ \t\r]*\n)*[-+]?[\d.,]+([ \t]+(qid|\d+):[^:\s]+)+\s"  # comments, rows of zeros, a row
DECOMPRESS = "pathlib.Path('table.csv').write_bytes(bz2.open({0!r}).read()), of .xz lzma.open, .zst zstandard.open"
MESH = rb"ply\s+format|OFF\s+\d+ \d+ \d+|solid [^\n]*\n\s*facet"
LOAD_SVMLIGHT = "scipy.sparse.save_npz('points.npz', sklearn.datasets.load_svmlight_file({0!r})[0])"
# What is not read: its first bytes, its name, and Python that writes a file which is read.
REFUSED = (
    (rb"PK.* (xl/|content\.xml )|\xd0\xcf\x11\xe0", "an Excel workbook", "pandas.read_excel({0!r})" + TO_CSV),
    (rb"PK|.{257}ustar", "an archive of files", "shutil.unpack_archive({0!r}), then embed one of them"),
    (rb"\x1f\x8b", "a file that is compressed twice", "pathlib.Path('once.gz').write_bytes(gzip.open({0!r}).read())"),
    (rb"version https://git-lfs", "the address of a file (Git LFS)", "subprocess.run(['git', 'lfs', 'pull'])"),
    (rb"<stata_dta>", "a table of Stata", "pandas.read_stata({0!r})" + TO_CSV),
    (rb"RDX|X\n\0", "objects of R", "pyreadr.read_r({0!r})['NAME']" + TO_CSV),
    (rb"\s*<", "a web page or XML", "pandas.read_html({0!r})[0]" + TO_CSV),
    (rb"\s*(\{[^\n]*\}\s*\{|\[[^\n]*\]\s*\[)", "JSON in lines", "pandas.read_json({0!r}, lines=True)" + TO_CSV),
    (rb"\s*[{\[]", "JSON", "pandas.read_json({0!r})" + TO_CSV),
    (rb">[ -~]+\s+[A-Za-z*-]+\s", "sequences (FASTA)", "[str(r.seq) for r in Bio.SeqIO.parse({0!r}, 'fasta')]"),
    (MESH, "a mesh or a cloud (PLY, OFF, STL)", "numpy.save('points.npy', trimesh.load({0!r}).vertices)"),
    (SVMLIGHT, "sparse rows (svmlight)", LOAD_SVMLIGHT),
    (rb"(?i:@relation)", "ARFF", "pandas.DataFrame(scipy.io.arff.loadarff({0!r})[0])" + TO_CSV),
    (rb"MATLAB 5", "arrays of MATLAB", "numpy.save('points.npy', scipy.io.loadmat({0!r})['x'])"),
    (rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|II\*\0|MM\0\*", "a picture", "numpy.save('points.npy', numpy.stack(pictures))"),
    (rb"\x80", "Python objects, whose loading can run code", "numpy.save('points.npy', x.astype(float))"),
    (rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd", "a compressed file that is no .gz", DECOMPRESS),
    (rb"ARROW1", "a table of Arrow", "pandas.read_feather({0!r})" + TO_CSV),
)


class InputError(ValueError):
    """Error of data that cannot be embedded; the message names the data, what arrived, and what to do instead."""


class Data(NamedTuple):
    """Rows of a file: a DataFrame, in which arrays have columns "0", "1", …, or a sparse matrix in CSR form."""

    source: str
    said: str  # how they were read
    rows: Any
    index: Any = None  # Series of their names
    labels: Any = None  # DataFrame of columns that may only be labels
    shape: tuple[int, ...] = ()  # of each row of an array, such as height and width


def read(given: str, options: Namespace, count: int | None = None) -> Data:
    """Return the rows of a file, ``points.npz:x`` for the array x of several; ``count`` labels should be there."""
    path, member = path_and_member(given)
    if not path.is_file():
        raise InputError(f"{path} is a folder: name a file in it" if path.is_dir() else f"there is no file {path}")
    kind = "text"
    try:
        kind = _kind(path)
        return _text(path, options, count) if kind == "text" else _binary(path, kind, member, options.given)
    except InputError:
        raise
    except Exception as error:  # a broken file may raise anything
        why = f"cannot be read: {' '.join(str(error).split()).split('. ')[0] or type(error).__name__}"
        if isinstance(error, ImportError):
            why = f"needs a library that is not here: pip install {FORMATS[kind][1]}"
        rescue = FORMATS[kind][2].format(str(path)) if "eights only" not in why else "model.NAME.detach().numpy()"
        way = f"; in Python: numpy.save('points.npy', {rescue})" if rescue else ""
        raise InputError(f"{path} {why}{way}") from error


def path_and_member(given: str) -> tuple[Path, str]:
    """Return a path, and the name of an array or a column in it."""
    before, colon, after = given.rpartition(":")
    return (Path(before), after) if colon and not Path(given).is_file() else (Path(given), "")


def check_known(asked: Iterable[Any], names: Iterable[Any], given: str) -> None:
    """Raise `InputError` with all names that are not among others, and the nearest of these."""
    names = [str(name) for name in names]
    if lost := [name for name in dict.fromkeys(map(str, asked)) if name not in names]:
        raise InputError(f"{given} has no {listed(lost)}; it has {listed(names) or 'no names'}")


def listed(names: Iterable[Any], most: int = 12) -> str:
    """Return names in quotes, the middle left out if there are many.

    >>> listed("abcd", 3)
    "'a', 'b', …, 'd'"
    """
    names = [repr(str(name)) for name in names]
    return ", ".join(names if len(names) <= most else [*names[: most - 1], "…", names[-1]])


def _kind(path: Path) -> str:
    """Return the kind of a file by its first bytes; raise `InputError` for kinds that are not read."""
    with _opened(path) as file:
        start: bytes = file.read(1000).removeprefix(b"\xef\xbb\xbf")
        if start.startswith(b"PK\x03\x04"):
            start = " ".join(["PK", *zipfile.ZipFile(file).namelist(), ""]).encode()
    kind = next(kind for kind, (pattern, _, _) in FORMATS.items() if re.match(pattern, start))
    for pattern, what, line in REFUSED if kind == "text" else ():
        if re.match(pattern, start, re.DOTALL):
            raise InputError(f"{path} holds {what}, which is not read; in Python: {line.format(str(path))}")
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind == "text" and ending in FORMATS:
        raise InputError(f"{path} is not a {ending} file, although its name says so: if it is a table, name it .csv")
    return kind


def _opened(path: Path) -> Any:
    """Open a file, uncompressed by its first bytes, whatever its name says."""
    with path.open("rb") as file:
        is_gzipped = file.read(2) == b"\x1f\x8b"
    return (gzip.open if is_gzipped else open)(path, "rb")


def _loaded(path: Path, kind: str) -> Any:
    """Return the array, sparse matrix, tensor, table or annotated data of a file, or several arrays by their names."""
    if kind == ".parquet":
        return import_module("pandas").read_parquet(path)
    if kind == ".h5ad":
        return import_module("anndata").read_h5ad(path)
    with _opened(path) as file, warnings.catch_warnings(), tempfile.NamedTemporaryFile(suffix=".mtx") as copy:
        warnings.simplefilter("ignore")  # SciPy 1.18 announces arrays for matrices, torch speaks of its archives
        if kind == ".pt":
            return torch.load(file, map_location="cpu", weights_only=True)
        if kind == ".mtx":  # SciPy reads a path itself: by a file of Python's, a broken one ends the process
            copy.write(file.read())
            copy.flush()
            return mmread(copy.name)
        found = np.load(file, allow_pickle=False)
        if kind == ".npz" and {"format", "shape", "data"} <= found.keys():
            file.seek(0)
            return sparse.load_npz(file)
        return dict(found) if kind == ".npz" else found


def _binary(path: Path, kind: str, member: str, given: str | None) -> Data:
    """Return a table of Parquet, or an array; a sparse matrix is written out, but for ``given`` pairs."""
    import pandas

    index, labels, found = None, None, _loaded(path, kind)
    if kind == ".parquet":
        index = None if isinstance(found.index, pandas.RangeIndex) else _names_of(found)
    if kind == ".h5ad":
        index, labels = _names_of(found.obs), found.obs
        groups = {"adata": {"X": found.X}, "obsm": found.obsm, "obsp": found.obsp, "layers": found.layers}
        found = {  # a name of several says whose it is
            name if sum(name in other for other in groups.values()) == 1 else f"{place}.{name}": array
            for place, group in groups.items()
            for name, array in group.items()
        }
    if not hasattr(found, "shape"):
        several = found.items() if isinstance(found, Mapping) else enumerate(found)
        arrays = {str(name): array for name, array in several if hasattr(array, "shape")}
        if not arrays:
            raise ValueError("it has no array at its top")
        if not member and len(arrays) > 1:
            raise InputError(f"{path} holds the arrays {listed(arrays)}; {path}:NAME is one of several")
        check_known([member] if member else [], arrays, str(path))
        found = arrays[member or next(iter(arrays))]
    if isinstance(found, pandas.DataFrame):
        return Data(str(path), "a table", found.rename(columns=str).reset_index(drop=True), index, labels)
    if isinstance(found, torch.Tensor):
        found = found.detach().to_dense()
        found = (found.float() if found.dtype == torch.bfloat16 else found).numpy()
    said = f"{'sparse' if sparse.issparse(found) else 'array'} of {'×'.join(map(str, found.shape))}, {found.dtype}"
    if found.dtype.names:  # a table of NumPy's
        return Data(str(path), said, pandas.DataFrame(found))
    if sparse.issparse(found):
        once = found.tocoo(copy=True)
        once.sum_duplicates()
        if twice := found.nnz - once.nnz:
            way = "keep one of each, or add them by sum_duplicates() if they are meant to be added"
            raise InputError(f"{path} stores {twice} entries of its matrix more than once: {way}")
        if given and found.dtype.kind in "biuf":
            return Data(str(path), said, found.astype(float).tocsr(), index, labels)
        if (size := int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize) > LARGEST:
            way = "reduce its columns first, by sklearn.decomposition.TruncatedSVD for instance"
            raise InputError(f"{path} takes {size >> 30} GiB with its zeros, which distances need: {way}")
        found, said = found.toarray(), f"{said}, its zeros written out"
    flat = found.reshape(len(found), int(np.prod(found.shape[1:])))
    frame = pandas.DataFrame(flat.astype(np.uint8) if flat.dtype == bool else flat).rename(columns=str)
    return Data(str(path), said, frame, index, labels, found.shape[1:])


def _names_of(table: Any) -> Any:
    """Return the index of a DataFrame as a Series; one without a name is called "name"."""
    return table.index.to_series(name=table.index.name or "name")


def _text(path: Path, options: Namespace, count: int | None) -> Data:
    """Return the table of a text by pandas; a first column without a name is the index."""
    import pandas

    separator, decimal = signs = _signs(path, options)
    text = _decoded(path, options)
    first, second = (*_first_rows(text, separator), [], [])[:2]
    if count is not None and len(first) == 1:  # of labels, one for each row: exactly one of the two readings can be
        has_header = sum(map(bool, map(str.strip, text.split("\n")))) == count + 1
        options = Namespace(**vars(options) | {"header": has_header})
    header = _header(path, first, second, signs, options)
    if header == "names of R":
        text = f'""{" " if separator == BLANKS else separator}{text}'
    has_header, is_edge = header != "a row", options.given == "edges" and count is None
    is_unnamed = header == "names of R" or (has_header and not first[0])
    try:
        frame = pandas.read_csv(
            io.StringIO(text),
            sep=separator,
            header=0 if has_header else None,
            names=None if has_header else [str(i) for i in range(len(first))],
            converters=dict.fromkeys(filter(None, [options.index, UNNAMED * is_unnamed]), str),  # keep 007
            dtype=str if is_edge else dict.fromkeys(options.one_hot, str),  # as written: 1 is another value than 1.0
            keep_default_na=not is_edge,
            decimal=decimal,
            thousands=options.thousands,
            na_values=options.missing,
            skipinitialspace=True,
            low_memory=False,
        )
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
        why = " ".join(str(error).removeprefix("Error tokenizing data. C error: ").split())
        raise InputError(f"{path}: {why}; --skip-lines leaves lines out, --separator names another sign") from error
    if len(first) == 1 and not options.separator and frame.iloc[:, 0].dtype.kind not in "iuf":
        for other in (sign for sign in (";\t|, " if count is None else ";\t|") if sign in first[0]):
            raise InputError(f"{path}: line 1 is one cell, {first[0]!r}: say --separator {other!r} if it is several")
    said = "line 1 names the columns" if has_header else "no line names the columns, which are counted from 0"
    if not is_unnamed:
        return Data(str(path), said, frame)
    index, way = frame.pop(UNNAMED).rename("name"), "the index"
    if options.index in frame:
        index, way = None, "left out as --index names another"
    return Data(str(path), f"{said}; the first one, which has no name, is {way}", frame, index)


def _signs(path: Path, options: Namespace) -> tuple[str, str]:
    """Return the separator of cells and the sign of decimals; raise `InputError` if two signs are one, or a word."""
    usual = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    given = SIGNS.get(options.separator, usual if options.separator is None else options.separator)
    decimal = options.decimal or "."
    for name, sign in ("separator", given), ("decimal", decimal), ("thousands", options.thousands or "'"):
        if len(sign) != 1 and sign != BLANKS:
            raise InputError(f"--{name} is one sign, or for --separator tab or blank, got {sign!r}")
    if decimal in (given, options.thousands):
        raise InputError(f"--decimal {decimal} needs another separator of cells and of thousands: --separator ';'")
    return given, decimal


def _decoded(path: Path, options: Namespace) -> str:
    """Return the text of a file without the lines to skip, and without blank lines at the beginning."""
    with _opened(path) as file:
        content: bytes = file.read()
    encoding = options.encoding or "utf-8"
    text = _as_text(content, encoding)
    if text is None:
        likely = next((name for name in LIKELY if _as_text(content, name)), "")
        way = f"say --encoding {likely}, or another that it is in" if likely else "save what it holds as .npy"
        raise InputError(f"{path} is not text in {encoding}: {way}")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if options.skip_lines:
        if min(options.skip_lines) < 1:
            raise InputError(f"--skip-lines has numbers of lines from 1, got {min(options.skip_lines)}")
        text = "\n".join(line for i, line in enumerate(text.split("\n"), 1) if i not in options.skip_lines)
    if not text.strip():
        raise InputError(f"{path} is empty")
    return re.sub(r"\A([ \t]*\n)+", "", text)


def _as_text(content: bytes, encoding: str) -> str | None:
    """Return bytes as text, or None if they are none, or hold zeros."""
    try:
        text = content.decode(encoding)
    except (UnicodeError, LookupError):
        return None
    return None if "\0" in text else text


def _first_rows(text: str, separator: str) -> list[list[str]]:
    """Return the cells of the first two lines that are not blank."""
    rows: Iterable[list[str]] = (line.split() for line in io.StringIO(text))
    if separator != BLANKS:
        rows = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    cells = ([cell.strip().strip('"') for cell in row] for row in rows)
    return list(islice((row for row in cells if row not in ([], [""])), 2))


def _header(path: Path, first: list[str], second: list[str], signs: tuple[str, str], options: Namespace) -> str:
    """Return what line 1 is: "names", "names of R", which lack one for the names of rows, or "a row"."""
    separator, decimal = signs
    numbers = [cell for cell in first if is_number(cell.replace(decimal, ".").replace("−", "-"))]
    if options.header is None and (numbers or not any(first)):
        way = "say --header if it names the columns, or --no-header if it is a row like the others"
        raise InputError(f"{path}: line 1 has {f'numbers ({listed(numbers, 4)})' if numbers else 'no names'}: {way}")
    if not second or len(second) == len(first):
        return "a row" if options.header is False else "names"
    is_clear = second[-1] != "" and (separator != "," or not is_number(second[0]))  # else it may have decimal commas
    if options.header is not False and len(second) == len(first) + 1 and (options.index == "name" or is_clear):
        return "names of R"
    cells = f"line 1 has {len(first)} cells ({listed(first, 4)}), the next {len(second)} ({listed(second, 4)})"
    way = "drop separators at line ends, lines above the names by --skip-lines, or say --separator ';' or --decimal ,"
    raise InputError(f"{path}: {cells}: {way}, or --index name if the first one, without a name, names the rows")


def is_number(cell: Any) -> bool:
    """Return whether a cell is a number, or writes a finite one."""
    try:
        return not isinstance(cell, (bool, np.bool_)) and bool(np.isfinite(float(cell)))
    except (TypeError, ValueError):
        return False
