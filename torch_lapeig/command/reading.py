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
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.io import mmread

TEXT = ("header", "quotes", "separator", "decimal", "thousands", "encoding", "missing", "keep", "skip_lines")  # options
SIGNS = {"tab": "\t", r"\t": "\t", "blank": " ", "space": " "}  # other ways to write separators
ALIKE = (" \u00a0\u2009\u202f", "'\u2019")  # separators of thousands: each of a group means all
MISSING = ["#N/A", "#NA", "-NaN", "-nan", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
AS_WRITTEN: dict[str, Any] = {"header": None, "dtype": str, "na_filter": False, "low_memory": False}
AS_WRITTEN |= {"skip_blank_lines": False, "skipinitialspace": True}
SHOWN = 5  # names in a sentence
# Encodings of a text that is not UTF-8.
LIKELY = ("utf-8", "cp1252", "utf-16", "utf-16-be", "utf-32", "mac_roman", "cp1251")
LARGEST = 4 << 30  # bytes of a sparse matrix that is written out
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
    """Rows of a file: a DataFrame, in which columns without names are "0", "1", …, or a sparse matrix in CSR form."""

    source: str
    said: str  # how they were read
    rows: Any
    index: Any = None  # Series of their names
    labels: Any = None  # DataFrame of columns that may only be labels
    shape: tuple[int, ...] = ()  # of a row whose columns have no names in the file, such as height and width
    lines: str = ""  # the account of a text: lines = names + skipped + blank + rows
    skipped: dict[int, str] | None = None  # lines of a text, by their numbers


def read(given: str, options: Namespace, count: int | None = None) -> Data:
    """Return the rows of a file, ``points.npz:x`` for the array x of several; ``count`` labels should be there."""
    path, member = path_and_member(given)
    if not path.is_file():
        what = "a folder: name a file in it" if path.is_dir() else "not a regular file: save it as one first"
        raise InputError(f"{path} is {what}" if path.exists() else f"there is no file {path}")
    kind = "text"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SciPy 1.18 announces arrays for matrices, torch speaks of its archives
            kind = _kind(path)
            data, unused = (
                _text(path, member, options, count) if kind == "text" else _binary(path, kind, member, options.given)
            )
    except InputError:
        raise
    except Exception as error:  # a broken file may raise anything
        why = f"cannot be read: {' '.join(str(error).split()).split('. ')[0] or type(error).__name__}"
        if isinstance(error, ImportError):
            why = f"needs a library that is not here: pip install {FORMATS[kind][1]}"
        rescue = FORMATS[kind][2].format(str(path)) if "eights only" not in why else "model.NAME.detach().numpy()"
        way = f"; in Python: numpy.save('points.npy', {rescue})" if rescue else ""
        raise InputError(f"{path} {why}{way}") from error
    if unused and count is None:
        raise InputError(
            f"{path} holds one table without names of arrays: choose columns by --columns, not by :{unused}"
        )
    if kind != "text" and (idle := [name for name in TEXT if name in options.own]):
        raise InputError(f"--{idle[0].replace('_', '-')} has no effect: {path} is not a text")
    return data


def path_and_member(given: str) -> tuple[Path, str]:
    """Return a path, and the name of an array or a column in it."""
    before, colon, after = given.rpartition(":")
    return (Path(before), after) if colon and not Path(given).is_file() else (Path(given), "")


def check_known(asked: Iterable[Any], names: Iterable[Any], given: str) -> None:
    """Raise `InputError` with all names that are not among others, and with these."""
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
    with _opened(path) as file, tempfile.NamedTemporaryFile(suffix=".mtx") as copy:
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


def _binary(path: Path, kind: str, member: str, given: str | None) -> tuple[Data, str]:
    """Return a table of Parquet, or an array, and a member that names none; only ``given`` pairs stay sparse."""
    import pandas

    index, labels, found = None, None, _loaded(path, kind)
    genes: dict[str, Any] = {}
    if kind == ".parquet":
        index = None if isinstance(found.index, pandas.RangeIndex) else _names_of(found)
    if kind == ".h5ad":
        index, labels = _names_of(found.obs), found.obs
        names = [*map(str, found.var_names)]
        groups = {"adata": {"X": found.X}, "obsm": found.obsm, "obsp": found.obsp, "layers": found.layers}
        found = {}
        for place, name, array in ((place, *item) for place, group in groups.items() for item in group.items()):
            key = name if sum(name in other for other in groups.values()) == 1 else f"{place}.{name}"
            found[key] = array  # a name of several says whose it is
            genes |= {key: names} if place in ("adata", "layers") else {}
    if not hasattr(found, "shape"):
        several = found.items() if isinstance(found, Mapping) else enumerate(found)
        arrays = {str(name): array for name, array in several if hasattr(array, "shape")}
        if not arrays:
            raise ValueError("it has no array at its top")
        if not member and len(arrays) > 1:
            raise InputError(f"{path} holds the arrays {listed(arrays)}; {path}:NAME is one of several")
        check_known([member] if member else [], arrays, str(path))
        key, member = member or next(iter(arrays)), ""
        found, genes = arrays[key], genes.get(key, {})
    if isinstance(found, pandas.DataFrame):
        return Data(str(path), "a table", _named(found, path), index, labels), member
    if isinstance(found, torch.Tensor):
        found = found.detach().to_dense()
        found = (found.float() if found.dtype == torch.bfloat16 else found).numpy()
    if found.ndim == 0:
        raise InputError(f"{path} holds one number, not rows")
    said = f"{'sparse' if sparse.issparse(found) else 'array'} of {'×'.join(map(str, found.shape))}, {found.dtype}"
    if kind == ".pt":
        said += "; 0.5 will not read tensors (.pt): numpy.save('points.npy', x.numpy()) saves one as an array"
    if sparse.issparse(found):
        once = found.tocoo(copy=True)
        once.sum_duplicates()
        if twice := found.nnz - once.nnz:
            way = "keep one of each, or add them by sum_duplicates() if they are meant to be added"
            raise InputError(f"{path} stores {twice} entries of its matrix more than once: {way}")
        if given and found.dtype.kind in "biuf":
            return Data(str(path), said, found.astype(float).tocsr(), index, labels), member
        if (size := int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize) > LARGEST:
            way = "reduce its columns first, by sklearn.decomposition.TruncatedSVD for instance"
            raise InputError(f"{path} takes {size >> 30} GiB with its zeros, which distances need: {way}")
        found, said = found.toarray(), f"{said}, its zeros written out"
    found = found.astype(found.dtype.newbyteorder("="))  # pandas computes with the bytes of this machine only
    if found.dtype.names:  # a table of NumPy's
        return Data(str(path), said, _named(pandas.DataFrame(found), path)), member
    flat = found.reshape(len(found), int(np.prod(found.shape[1:])))
    frame = pandas.DataFrame(flat.astype(np.uint8) if flat.dtype == bool else flat, columns=genes or None)
    return Data(str(path), said, _named(frame, path), index, labels, () if genes else found.shape[1:] or (1,)), member


def _names_of(table: Any) -> Any:
    """Return the index of a DataFrame as a Series; one without a name is called "name"."""
    return table.index.to_series(name=table.index.name or "name")


def _named(frame: Any, path: Path) -> Any:
    """Return a DataFrame whose columns have names of text; raise `InputError` if one comes twice."""
    if twice := [name for name, count in Counter(map(str, frame.columns)).items() if count > 1]:
        way = "rename one; of genes, adata.var_names_make_unique() does"
        raise InputError(f"{path} has several columns of one name, {listed(twice, SHOWN)} come twice: {way}")
    return frame.rename(columns=str).reset_index(drop=True)


def _text(path: Path, member: str, options: Namespace, count: int | None) -> tuple[Data, str]:
    separator, decimal = _signs(path, options)
    lines = dict(enumerate(_decoded(path, options).removesuffix("\n").split("\n"), 1))
    skipped = _skipped(path, lines, options.skip_lines or [])
    rest = {i: line for i, line in lines.items() if i not in skipped}
    start = next((i for i, line in rest.items() if line.strip()), None)
    if start is None:
        raise InputError(f"{path} is empty")
    rest = {i: line for i, line in rest.items() if i >= start}
    cells = _cells(path, rest, separator, options)
    breaks = len(rest) - len(cells)
    if cells.shape[1] > 1:  # of one column a blank line is a missing cell
        cells = cells[(cells != "").any(axis=1)]
    first, is_named = cells.iloc[0].tolist(), options.header
    if count is not None:
        is_named, over = _is_named(path, cells, member, count)
        cells = cells.iloc[: len(cells) - over]
    numbers = numbers_of_text(cells.iloc[0].str.replace("−", "-"), decimal, options.thousands).notna().to_numpy()
    if is_named is None and (numbers.any() or not any(first)):
        found = f"numbers ({listed(np.array(first)[numbers], 4)})" if numbers.any() else "no names"
        way = "say --header if it names the columns, or --no-header if it is a row like the others"
        way = way if count is None else f"say {path}:NAME with a name in it, or {path}:0 for a column by its number"
        raise InputError(f"{path}: line {start} has {found}: {way}")
    is_named = is_named is not False
    names, cells = (first, cells.iloc[1:]) if is_named else ([str(i) for i in range(len(first))], cells)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        way = (
            f", or count the columns from 0 by --no-header --skip-lines {' '.join(map(str, sorted({*skipped, start})))}"
        )
        raise InputError(f"{path}: line {start} names {listed(twice)} twice: rename one{way * (count is None)}")
    is_unnamed = is_named and not names[0]
    kept = {options.index, "" if is_unnamed else options.index}
    frame = cells.set_axis(names, axis=1)  # of edges
    if options.given != "edges":
        frame = _columns(path, cells, names, (separator, decimal), kept, options)
    if len(first) == 1 and not options.separator and frame.iloc[:, 0].dtype.kind not in "iuf":
        for other in (
            sign for sign in ";\t|, " if sign in first[0] and sign != separator and (count is None or sign != " ")
        ):
            way = f"say --separator {other!r} if it is several, --separator {separator!r} if it is one"
            if count is not None:
                way = f"pandas.read_csv({str(path)!r}, sep={other!r}).to_csv('labels.csv', {separator!r}, index=False)"
                way = f"its separator must be that of the input; in Python: {way}"
            raise InputError(f"{path}: line {start} is one cell, {first[0]!r}: {way}")
    parts = {"names": int(is_named), "skipped": len(skipped), "within cells": breaks, "rows": len(cells)}
    parts["blank"] = len(lines) - sum(parts.values())
    account = f"{len(lines):,} = {' + '.join(f'{n:,} {what}' for what, n in parts.items() if n)}"
    account += f"; skipped: {', '.join(f'{i} {line[:40]!r}' for i, line in [*skipped.items()][:SHOWN])}" * bool(skipped)
    if lost := [i for i in options.skip_lines or () if i not in skipped]:
        account += f"; not skipped, as they differ from those of before: {', '.join(map(str, lost[:SHOWN]))}"
    said = f"line {start} names the columns" if is_named else "no line names the columns, which are counted from 0"
    index = None
    if is_unnamed:
        index, way = frame.pop("").rename("name"), "the index"
        if options.index in frame:
            index, way = None, "left out as --index names another"
        said += f"; the first one, which has no name, is {way}"
    shape = () if is_named else (len(names),)
    return Data(str(path), said, frame, index, None, shape, account, skipped), member


def _skipped(path: Path, lines: dict[int, str], asked: Any) -> dict[int, str]:
    if isinstance(asked, dict):  # lines that were skipped in another file: here only those of the same text
        return {i: line for i, line in asked.items() if lines.get(i) == line}
    if lost := [i for i in asked if i not in lines]:
        raise InputError(f"--skip-lines has numbers of lines from 1, got {lost[0]}; {path} has {len(lines)} lines")
    return {i: lines[i] for i in sorted(asked)}


def _cells(path: Path, lines: dict[int, str], separator: str, options: Namespace) -> Any:
    """Return the cells of all lines by pandas, as they are written, without blanks around them.

    Each line must be a row: if pandas finds fewer rows, quoted cells have swallowed lines, which is a question.
    """
    import pandas

    text = "".join(f"{line}\n" for line in lines.values())
    if separator == " ":
        text = re.sub(r"[ \t]+", " ", re.sub(r"^[ \t]+|[ \t]+$", "", text, flags=re.MULTILINE))
    quoting = csv.QUOTE_NONE if options.quotes is False else csv.QUOTE_MINIMAL
    for start in "", f'""{separator}':  # for the second, line 1 lacks the name of the first column
        try:
            frame = pandas.read_csv(io.StringIO(start + text), sep=separator, quoting=quoting, **AS_WRITTEN)
            break
        except pandas.errors.ParserError as error:
            why = " ".join(str(error).removeprefix("Error tokenizing data. C error: ").split())
            if "EOF" in why:
                raise InputError(
                    f"{path}: a quote is not closed: --no-quotes makes quotes signs like others"
                ) from error
            most, row, found = map(int, re.findall(r"\d+", why))
            if options.index == "name" and row == 2 and found == most + 1:
                continue
            line = [*lines][row - 1]
            way = f"--skip-lines {line} leaves it out" if row > 2 else "--skip-lines leaves lines of titles out"
            way += (
                ", --index name takes the first column, without a name, as names of the rows"
                if found == most + 1 and row == 2
                else ""
            )
            cells = f"line {line} has {found} cells, the lines above it {most}"
            raise InputError(
                f"{path}: {cells}: {way}; --separator ';' or another, and --decimal , may be needed"
            ) from error
    breaks = len(lines) - len(frame)
    if breaks and not options.quotes:
        cell = next((cell for name in frame for cell in frame[name] if "\n" in cell), "")[:40]
        way = "say --quotes if cells hold line breaks, --no-quotes if quotes are signs like others"
        raise InputError(f"{path}: line breaks lie within quoted cells, such as {cell!r}: {way}")
    if "quotes" in options.own and not (breaks if options.quotes else '"' in text):
        raise InputError(f"--{'no-' * (not options.quotes)}quotes has no effect on {path}: leave it out")
    if not breaks:
        frame.index = pandas.Index([*lines], name="line")
    return frame.apply(lambda cells: cells.str.strip())


def _is_named(path: Path, cells: Any, member: str, count: int) -> tuple[bool | None, int]:
    """Return whether line 1 of a file of labels has names, and how many blank lines end it: one reading must fit."""
    first, width = cells.iloc[0].tolist(), cells.shape[1]
    if width > 1:
        return True if member in first else False if member.isdigit() and int(member) < width else None, 0
    check_known([member] if member else [], [first[0], "0"], str(path))
    name, *labels = cells[0].tolist()
    blank = next((i for i, label in enumerate(reversed(labels)) if label), 0)
    fits = [(named, over) for named in (True, False) for over in range(blank + 1) if len(cells) - named - over == count]
    fits = [fit for fit in fits if member in ("", name if fit[0] else "0")]
    numbers, times = numbers_of_text(cells[0], ".", None).notna().tolist(), Counter(filter(None, labels))
    is_odd = not numbers[0] and name not in times and (all(numbers[1:]) or min(times.values(), default=1) > 1)
    if not fits:
        way = "labels are joined by an index, if both files have it: --index NAME"
        raise InputError(f"{path} must hold a label for each of the {count} rows, got {len(cells)} lines; {way}")
    if len(fits) > 1 or (not member and not fits[0][0] and is_odd):
        way = f"say {path}:{name} if it is a name, and a label is missing or empty, {path}:0 if it is a label"
        raise InputError(f"{path}: line 1, {name!r}, may be a name or a label: {way}")
    return fits[0]


def _columns(path: Path, cells: Any, names: list[str], signs: tuple[str, str], kept: Any, options: Namespace) -> Any:
    """Return cells as numbers where all of a column are, NaN where one is missing; ``kept`` columns as written."""
    import pandas

    (separator, decimal), thousands, has_acted = signs, options.thousands, False
    marks, columns = {"", *MISSING} - {*(options.keep or ())} | {*(options.missing or ())}, {}
    for name, (_, column) in zip(names, cells.items(), strict=True):
        columns[name] = column if name in kept else column.mask(column.isin(marks))
        numbers = numbers_of_text(columns[name], decimal, thousands)
        if name not in kept and name not in options.one_hot and (numbers.notna() == columns[name].notna()).all():
            has_acted |= bool(thousands) and not numbers.equals(numbers_of_text(columns[name], decimal, None))
            columns[name] = numbers
    words = [*(options.missing or ()), *(options.keep or ())]
    idle = [f"--missing or --keep {mark}" for mark in words if not (cells == mark).any(axis=None)]
    idle += [f"--keep {word}" for word in options.keep or () if word not in MISSING]
    idle += [f"--thousands {thousands}"] if thousands and not has_acted else []
    has_point = cells.apply(lambda column: column.str.contains(decimal, regex=False)).any(axis=None)
    idle += [f"--decimal {decimal}"] if decimal != "." and not has_point else []
    if idle and (options.own & {"missing", "keep", "thousands", "decimal"}):
        way = "say --separator ';' if cells end there, or leave it out" if decimal == separator else "leave it out"
        raise InputError(f"{path}: {idle[0]} has no effect: {way}")
    return pandas.DataFrame(columns, cells.index)


def numbers_of_text(cells: Any, decimal: str, thousands: str | None) -> Any:
    """Return the numbers that cells write with these signs, NaN where a cell is none: 1,23 is not 123."""
    import pandas

    if thousands:
        sign, point = (
            next((f"[{group}]" for group in ALIKE if thousands in group), re.escape(thousands)),
            re.escape(decimal),
        )
        is_grouped = cells.str.fullmatch(rf"[-+]?[0-9]{{1,3}}({sign}[0-9]{{3}})+({point}[0-9]*)?", na=False)
        cells = cells.mask(is_grouped, cells.str.replace(sign, "", regex=True))
    if decimal != ".":
        cells = cells.str.replace(".", "x", regex=False).str.replace(decimal, ".", regex=False)
    return pandas.to_numeric(cells, errors="coerce")


def _signs(path: Path, options: Namespace) -> tuple[str, str]:
    """Return the separator of cells and the sign of decimals; raise `InputError` if two signs are one, or a word."""
    usual = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    separator = SIGNS.get(options.separator, usual if options.separator is None else options.separator)
    decimal = "." if options.decimal is None else options.decimal
    thousands = " " if options.thousands is None else options.thousands
    for name, sign in ("separator", separator), ("decimal", decimal), ("thousands", thousands):
        if len(sign) != 1 or sign.isalnum() or sign in '"+-\n\r' or not (sign.isascii() or name == "thousands"):
            raise InputError(f"--{name} is one sign, or for --separator tab or blank, got {sign!r}")
    if decimal == thousands:
        raise InputError(
            f"--thousands {thousands} needs another sign of decimals: --decimal {'.' if decimal == ',' else ','}"
        )
    return separator, decimal


def _decoded(path: Path, options: Namespace) -> str:
    """Return the text of a file, with line ends of Unix."""
    with _opened(path) as file:
        content: bytes = file.read()
    encoding = options.encoding or "utf-8"
    text = _as_text(content, encoding)
    if text is None:
        likely = next((name for name in LIKELY if _as_text(content, name)), "")
        way = f"say --encoding {likely}, or another that it is in" if likely else "save what it holds as .npy"
        raise InputError(f"{path} is not text in {encoding}: {way}")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _as_text(content: bytes, encoding: str) -> str | None:
    """Return bytes as text, or None if they are none, or hold zeros."""
    try:
        text = content.decode(encoding)
    except (UnicodeError, LookupError):
        return None
    return None if "\0" in text else text
