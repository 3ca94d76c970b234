"""Files as tables or sparse matrices: the format by the first bytes, a text by the options of the command."""

from __future__ import annotations

import csv
import gzip
import re
import tempfile
import warnings
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.io import mmread

with suppress(ImportError):  # `main` says so
    import pandas

TEXT = ("header", "quotes", "separator", "decimal", "thousands", "encoding", "missing", "keep", "skip_lines")  # options
SIGNS = {"tab": "\t", r"\t": "\t", "blank": " ", "space": " "}  # other ways to write separators
ALIKE = (" \u00a0\u2009\u202f", "'\u2019")  # separators of thousands: each of a group means all
MISSING = {"#N/A", "#NA", "-NaN", "-nan", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
SHOWN = 5  # names in a sentence
LIKELY = ("utf-8", "cp1252", "utf-16", "utf-16-be", "utf-32", "mac_roman", "cp1251")  # encodings of other texts
OTHERWISE = {".h5ad": "h5py.File('FILE')['NAME'][:]", "pickle": "x.astype(float)"}  # what may be saved instead
SEVERAL = "say --separator {1!r} if it is several, --separator {2!r} if it is one"
SEVERAL_LABELS = "in Python: pandas.read_csv({0!r}, sep={1!r}).to_csv('labels.csv', sep={2!r}, index=False)"
FEW_LABELS = "{} must hold a label for each of the {} rows, got {}; an --index NAME of both files joins labels"
SHORT = 4  # signs of cells
LARGEST = 4 << 30  # bytes of a sparse matrix that is written out
TO_CSV = ".to_csv('table.csv', index=False)"
SVMLIGHT = rb"(#[^\n]*\n|[-+\d.]+[ \t\r]*\n)*[-+]?[\d.,]+([ \t]+(qid|\d+):[^:\s]+)+\s"  # comments, rows of zeros, a row
LOAD_SVMLIGHT = "scipy.sparse.save_npz('points.npz', sklearn.datasets.load_svmlight_file({0!r})[0])"
DECOMPRESS = "pathlib.Path('table.csv').write_bytes(bz2.open({0!r}).read()), of .xz lzma.open, .zst zstandard.open"
# How bytes begin (an archive by its members), the format, and Python that writes what is read if the format is not.
FORMATS = (
    (rb"\x93NUMPY", ".npy", ""),
    (rb"PK.*\.npy ", ".npz", ""),
    (rb"PK.*data\.pkl ", ".pt", ""),
    (rb"(?i:%%MatrixMarket)", ".mtx", ""),
    (rb"PAR1", ".parquet", ""),
    (rb"\x89HDF", ".h5ad", ""),
    (rb"PK.* (xl/|content\.xml )|\xd0\xcf\x11\xe0", "an Excel workbook", "pandas.read_excel({0!r})" + TO_CSV),
    (rb"PK|.{257}ustar", "an archive of files", "shutil.unpack_archive({0!r}), then embed one of them"),
    (rb"\x1f\x8b", "a file that is compressed twice", "pathlib.Path('once.gz').write_bytes(gzip.open({0!r}).read())"),
    (rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd", "a compressed file that is no .gz", DECOMPRESS),
    (rb"<stata_dta>", "a table of Stata", "pandas.read_stata({0!r})" + TO_CSV),
    (rb"\s*<", "a web page or XML", "pandas.read_html({0!r})[0]" + TO_CSV),
    (rb"\s*(\{[^\n]*\}\s*\{|\[[^\n]*\]\s*\[)", "JSON in lines", "pandas.read_json({0!r}, lines=True)" + TO_CSV),
    (rb"\s*[{\[]", "JSON", "pandas.read_json({0!r})" + TO_CSV),
    (rb"ARROW1", "a table of Arrow", "pandas.read_feather({0!r})" + TO_CSV),
    (rb"(?i:@relation)", "ARFF", "pandas.DataFrame(scipy.io.arff.loadarff({0!r})[0])" + TO_CSV),
    (rb"MATLAB 5", "arrays of MATLAB", "numpy.save('points.npy', scipy.io.loadmat({0!r})['NAME'])"),
    (SVMLIGHT, "sparse rows (svmlight)", LOAD_SVMLIGHT),
    (rb"\x89PNG|\xff\xd8\xff|GIF8|II\*\0|MM\0\*", "a picture", "numpy.save('points.npy', numpy.stack(pictures))"),
    (rb"\x80", "Python objects, whose loading can run code", "numpy.save('points.npy', x.astype(float))"),
    (rb"", "text", ""),
)


class InputError(ValueError):
    """Error of data that cannot be embedded; the message names the data, what arrived, and what to do instead."""


class Data(NamedTuple):
    """Rows of a file: a DataFrame, in which columns without names are "0", "1", …, or a sparse matrix in CSR form."""

    source: str
    said: str  # how they were read
    rows: Any
    index: Any = None  # of pandas: the column of --index, the names in the file, or numbers from 0 without a name
    labels: Any = None  # DataFrame of columns that may only be labels
    shape: tuple[int, ...] = ()  # of a row whose columns have no names in the file, such as height and width
    lines: Mapping[str, str] = {}  # the account of a text: lines = names + skipped + blank + rows
    skipped: Mapping[int, str] = {}  # lines of a text, by their numbers
    has_members: bool = False  # several arrays with names, of which this is one


def read(given: str, options: Namespace) -> Data:
    """Return the rows of a file, ``points.npz:x`` for the array x of several, or a file of `options.count` labels."""
    path, member = path_and_member(given)
    if not path.is_file():
        raise InputError(f"there is no file {path}" + ", but a folder or a device" * path.exists())
    kind = "text"
    try:
        with path.open("rb") as plain:
            opened: Any = gzip.open if plain.read(2) == b"\x1f\x8b" else open
        with opened(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SciPy 1.18 announces arrays for matrices, torch speaks of its archives
            kind = _kind(path, file)
            data = _text(path, file, member, options) if kind == "text" else _binary(path, file, kind, member, options)
    except InputError:
        raise
    except Exception as error:  # a broken file may raise anything
        why = f"cannot be read: {' '.join(str(error).split()).split('. ')[0] or type(error).__name__}"
        if isinstance(error, ImportError):
            why = f"needs a library that is not here: pip install {error.name or 'pyarrow'}"
        elif ways := [way for word, way in OTHERWISE.items() if word in kind + why]:
            why += f"; in Python: numpy.save('points.npy', {ways[0]})"
        raise InputError(f"{path} {why}") from error
    if member and options.count is None and not data.has_members:
        raise InputError(f"{path} holds one table, and no {member!r}: choose columns by --columns")
    if kind != "text" and (idle := [name for name in TEXT if name in options.own]):
        raise InputError(f"--{idle[0].replace('_', '-')} has no effect: {path} is not a text")
    index = data.rows[options.index] if options.index in getattr(data.rows, "columns", ()) else data.index
    return data._replace(index=pandas.RangeIndex(data.rows.shape[0]) if index is None else pandas.Index(index))


def path_and_member(given: str) -> tuple[Path, str]:
    """Return a path, and the name of an array or a column in it."""
    before, colon, after = given.rpartition(":")
    return (Path(before), after) if colon and not Path(given).is_file() else (Path(given), "")


def check_known(asked: Iterable[Any], names: Iterable[Any], given: str) -> None:
    """Raise `InputError` with all names that are not among others, and with these."""
    names = [str(name) for name in names]
    if lost := [name for name in dict.fromkeys(map(str, asked)) if name not in names]:
        raise InputError(f"{given} has no {listed(lost)}; it has {listed(names) or 'no names'}")


def check_distinct(names: Iterable[Any], given: str, way: str) -> None:
    """Raise `InputError` with the names that come twice."""
    if twice := [name for name, times in Counter(map(str, names)).items() if times > 1]:
        raise InputError(f"{given}: {listed(twice, SHOWN)} come twice: {way}")


def listed(names: Iterable[Any], most: int = 12) -> str:
    """Return names in quotes, the middle left out if there are many.

    >>> listed("abcd", 3)
    "'a', 'b', …, 'd'"
    """
    names = [repr(str(name)) for name in names]
    return ", ".join(names if len(names) <= most else [*names[: most - 1], "…", names[-1]])


def _kind(path: Path, file: Any) -> str:
    start: bytes = file.read(1000).removeprefix(b"\xef\xbb\xbf")
    if start.startswith(b"PK\x03\x04"):
        start = " ".join(["PK", *zipfile.ZipFile(file).namelist(), ""]).encode()
    file.seek(0)
    kind, way = next((kind, way) for pattern, kind, way in FORMATS if re.match(pattern, start, re.DOTALL))
    if way:
        raise InputError(f"{path} holds {kind}, which is not read; in Python: {way.format(str(path))}")
    return kind


def _loaded(path: Path, file: Any, kind: str, member: str) -> Any:
    if kind in (".parquet", ".h5ad"):
        library, function = ("pandas", "read_parquet") if kind == ".parquet" else ("anndata", "read_h5ad")
        return getattr(import_module(library), function)(path)
    if kind == ".pt":
        return torch.load(file, map_location="cpu", weights_only=True)
    if kind == ".mtx":  # SciPy reads a path itself: by a file of Python's, a broken one ends the process
        with tempfile.NamedTemporaryFile(suffix=".mtx") as copy:
            Path(copy.name).write_bytes(file.read())
            return mmread(copy.name)
    found = np.load(file, allow_pickle=False)
    if kind == ".npy":
        if file.read(1):
            raise ValueError("there are more bytes after its first array, such as of a second one")
        return found
    if {"format", "shape", "data"} <= found.keys():
        file.seek(0)
        return sparse.load_npz(file)
    return {name: found[name] for name in ([member] if member in found.files else found.files)}


def _binary(path: Path, file: Any, kind: str, member: str, options: Namespace) -> Data:
    found: Any = _loaded(path, file, kind, member)
    said, index, labels, names, shape = "a table", None, None, dict[str, Any](), tuple[int, ...]()
    if kind == ".h5ad":
        cells, labels, found = found, found.obs, {}
        index = labels.index.rename(labels.index.name or "name")
        groups = {"adata": {"X": cells.X}, "layers": cells.layers, "obsm": cells.obsm, "obsp": cells.obsp}
        for place, name in ((place, name) for place, group in groups.items() for name in group):
            key = name if sum(name in other for other in groups.values()) == 1 else f"{place}.{name}"
            found[key] = groups[place][name]  # a name of several says whose it is
            names |= {key: [*map(str, cells.var_names)]} if place in ("adata", "layers") else {}
    if has_members := not hasattr(found, "shape"):
        several = found.items() if isinstance(found, Mapping) else enumerate(found)
        arrays = {str(name): array for name, array in several if hasattr(array, "shape")}
        if not arrays:
            raise ValueError("it has no array at its top")
        if not member and len(arrays) > 1:
            raise InputError(f"{path} holds the arrays {listed(arrays)}; {path}:NAME is one of several")
        check_known([member] if member else [], arrays, str(path))
        member = member or next(iter(arrays))
        found, names = arrays[member], names.get(member, {})
    if not isinstance(found, pandas.DataFrame):
        said, found = _as_array(path, found, options)
        if sparse.issparse(found):
            return Data(str(path), said, found, index, labels, has_members=has_members)
        shape = () if names or found.dtype.names else found.shape[1:] or (1,)
        flat = found.reshape(len(found), int(np.prod(shape))) if shape else found
        found = pandas.DataFrame(flat, columns=names or None)
    elif index is None and not isinstance(found.index, pandas.RangeIndex):
        index = found.index.rename(found.index.name or "name")
    check_distinct(found.columns, f"the columns of {path}", "rename one; of genes, adata.var_names_make_unique() does")
    rows = found.rename(columns=str).reset_index(drop=True)
    return Data(str(path), said, rows, index, labels, shape, has_members=has_members)


def _as_array(path: Path, found: Any, options: Namespace) -> tuple[str, Any]:
    """Return what an array is, and its numbers in an array of NumPy, or in a sparse matrix if it has pairs."""
    said = f"{'sparse' if sparse.issparse(found) else 'array'} of {'×'.join(map(str, found.shape))}, {found.dtype}"
    if isinstance(found, torch.Tensor):
        found = found.detach().to_dense()
        found = (found.float() if found.dtype == torch.bfloat16 else found).numpy()
        said += "; 0.5 will not read tensors: numpy.save('points.npy', x.numpy()) saves an array"
    if sparse.issparse(found):
        stored = found.tocoo()
        if twice := stored.nnz - stored.tocsr().nnz:  # which adds entries of one place
            raise InputError(f"{path} stores {twice} entries of its matrix more than once: take x.sum_duplicates()")
        if options.given and found.dtype.kind in "biuf":
            return said, found.astype(float).tocsr()
        if (size := int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize) > LARGEST:
            raise InputError(f"{path} takes {size >> 30} GiB with its zeros: reduce its columns, by TruncatedSVD")
        found, said = found.toarray(), f"{said}, its zeros written out"
    if not found.ndim or (found.dtype.kind == "V" and not found.dtype.names):
        raise InputError(f"{path} holds one number, or bytes without a type, not rows")
    # pandas computes with the bytes of this machine
    return said, found.astype(np.uint8 if found.dtype == bool else found.dtype.newbyteorder("="))


def _text(path: Path, file: Any, member: str, options: Namespace) -> Data:
    separator, count = _separator(path, options), options.count
    lines = dict(enumerate(_decoded(path, file, options.encoding or "utf-8").removesuffix("\n").split("\n"), 1))
    asked = options.skip_lines or {}
    if not isinstance(asked, Mapping) and (lost := [i for i in asked if i not in lines]):
        raise InputError(f"--skip-lines has numbers of lines from 1, got {lost[0]}; {path} has {len(lines)} lines")
    # Of lines that were skipped in another file only those of the same text.
    skipped = {i: lines[i] for i in asked if not isinstance(asked, Mapping) or asked[i] == lines.get(i)}
    cells, breaks = _cells(path, {i: line for i, line in lines.items() if i not in skipped}, separator, options)
    is_named, cells = (options.header, cells) if count is None else _label_cells(path, cells, member, count)
    names = _names(path, cells, is_named, skipped, options)
    is_named, said = is_named is not False, f"line {cells.index[0]} names the columns"
    said = said if is_named else "no line names the columns, which are counted from 0"
    rows = cells.set_axis(names, axis=1).iloc[int(is_named) :]
    table = rows if options.given == "edges" else _table(path, rows, separator, options)
    if len(names) == 1 and not options.separator and table[names[0]].dtype.kind not in "iuf":
        signs, way = (";\t|, ", SEVERAL) if count is None else (";\t|,", SEVERAL_LABELS)  # which may have blanks
        for sign in (sign for sign in signs if sign in cells.iloc[0, 0]):
            said = f"{path}: line {cells.index[0]} is one cell, {cells.iloc[0, 0]!r}"
            raise InputError(f"{said}: {way.format(str(path), sign, separator)}")
    parts = {"names": int(is_named), "skipped": len(skipped), "within cells": breaks, "rows": len(rows)}
    parts["blank"] = len(lines) - sum(parts.values())
    account = f"{len(lines):,} = {' + '.join(f'{n:,} {what}' for what, n in parts.items() if n)}"
    account += "".join(f"; skipped: {i} {line[:40]!r}" for i, line in [*skipped.items()][:SHOWN])
    account += "".join(f"; not skipped, unlike before: {i}" for i in [*asked][:SHOWN] if i not in skipped)
    index = None if names[0] else table.pop("").rename("name")
    if index is not None:
        role = "left out as --index names another" if options.index in table else "the index"
        said += f"; the first one, which has no name, is {role}"
    shape = () if is_named else (len(names),)
    return Data(str(path), said, table, index, shape=shape, lines={"lines": account}, skipped=skipped)


def _cells(path: Path, lines: dict[int, str], separator: str, options: Namespace) -> tuple[Any, int]:
    """Return cells without the blanks around them, by the numbers of their lines, and the count of line breaks."""
    text = (f"{line}\n" for line in (*lines.values(), ""))
    if separator == " ":
        text = (re.sub(r"[ \t]+", " ", line).replace(" \n", "\n") for line in text)
    quoting: Any = csv.QUOTE_NONE if options.quotes is False else csv.QUOTE_MINIMAL
    reader = csv.reader(text, delimiter=separator, quoting=quoting, skipinitialspace=True)
    rows, numbers, place, limit = dict[Any, list[str]](), [*lines, None], 0, csv.field_size_limit(2**31 - 1)
    short = dict[str, str]()  # equal cells as one object, which makes columns of small numbers four times as fast
    try:
        for row in reader:
            cells = map(str.strip, row)
            rows[numbers[place]] = [short.setdefault(cell, cell) if len(cell) < SHORT else cell for cell in cells]
            place = reader.line_num
    finally:
        csv.field_size_limit(limit)  # of the whole process
    if rows.pop(None, True):  # the empty line at the end is a row, unless a quote is open
        raise InputError(f"{path}: a quote is not closed: --no-quotes makes quotes signs like others")
    breaks, start = len(lines) - len(rows), next((i for i, row in rows.items() if any(row)), None)
    if start is None:
        raise InputError(f"{path} is empty")
    if breaks and not options.quotes:
        cell = next((cell for row in rows.values() for cell in row if "\n" in cell), "")[:40]
        way = "--quotes if cells hold line breaks, --no-quotes if quotes are signs"
        raise InputError(f"{path}: line breaks lie within quoted cells, such as {cell!r}: say {way}")
    if "quotes" in options.own and not (breaks if options.quotes else any('"' in line for line in lines.values())):
        raise InputError(f"--{'' if options.quotes else 'no-'}quotes has no effect on {path}: leave it out")
    rows = {i: row for i, row in rows.items() if i >= start}
    lacks_name = [len(row) - len(rows[start]) for row in [*rows.values()][1:2]] == [1]  # as R writes tables
    if options.index == "name" and lacks_name:
        rows[start].insert(0, "")
    width = len(rows[start])
    for place, (i, row) in enumerate(rows.items()):
        row += [""] * (width - len(row))
        if len(row) > width:
            above = range(1, i)
            ways = ["--index name if the first column names the rows"] if lacks_name and place == 1 else []
            ways += [f"--skip-lines {' '.join(map(str, above))} if there are titles above"] if place < SHOWN else []
            skipped = " ".join(map(str, [*(j for j in above if j not in lines), i]))
            ways.append(f"--skip-lines {skipped} if that is no row, --separator ';' --decimal , if commas are decimal")
            said = f"{path}: line {i} has {len(row)} cells, those above {width}"
            raise InputError(f"{said}: say {', '.join(ways)}")
    rows = {i: row for i, row in rows.items() if width == 1 or any(row)}  # a blank line of one column is a missing cell
    return pandas.DataFrame.from_dict(rows, orient="index", dtype=object).rename_axis("line"), breaks


def _label_cells(path: Path, cells: Any, member: str, count: int) -> tuple[bool | None, Any]:
    """Return whether line 1 of labels is a name, None if that is not known, and cells without blank ones at the end."""
    name, *labels = cells[0].tolist()
    if cells.shape[1] > 1:
        is_counted = member.isdigit() and int(member) < cells.shape[1]
        return True if member in cells.iloc[0].tolist() else False if is_counted else None, cells
    check_known([member] if member else [], [name, "0"], str(path))
    spare, blank = len(cells) - count, next((i for i, label in enumerate(reversed(labels)) if label), 0)
    can_name, can_label = 1 <= spare <= blank + 1 and member in ("", name), 0 <= spare <= blank and member in ("", "0")
    if not (can_name or can_label):
        raise InputError(FEW_LABELS.format(path, count, f"{len(cells)} lines"))
    numbers, times = numbers_of_text(cells[0], ".", None).notna().tolist(), Counter(filter(None, labels))
    is_odd = not numbers[0] and name not in times and (all(numbers[1:]) or min(times.values(), default=1) > 1)
    if can_label and (can_name or (not member and is_odd)):
        raise InputError(f"say {path}:{name} if line 1 is a name and labels are missing, {path}:0 if it is a label")
    return can_name, cells.iloc[: count + can_name]


def _names(path: Path, cells: Any, is_named: Any, skipped: Any, options: Namespace) -> list[str]:
    line, start, is_input = cells.iloc[0], int(cells.index[0]), options.count is None
    numbers = line[numbers_of_text(line.str.replace("−", "-"), options.decimal or ".", options.thousands).notna()]
    if is_named is None and (len(numbers) or not any(line)):
        found = f"numbers ({listed(numbers, 4)})" if len(numbers) else "no names"
        way = "say --header if it names the columns, or --no-header if it is a row like the others"
        way = way if is_input else f"say {path}:NAME with a name in it, or {path}:0 for a column by its number"
        raise InputError(f"{path}: line {start} has {found}: {way}")
    if is_named is False:
        return [str(i) for i in range(len(line))]
    way = f", or count columns by --no-header --skip-lines {' '.join(map(str, sorted({*skipped, start})))}"
    way = "rename one" + way * (is_input and not isinstance(options.one_hot, dict))  # but of new rows
    check_distinct(line, f"the names in line {start} of {path}", way)
    return [*line]


def _table(path: Path, cells: Any, separator: str, options: Namespace) -> Any:
    decimal, thousands, columns, grouped = options.decimal or ".", options.thousands, {}, False
    missing, words = {*(options.missing or ())}, {*(options.keep or ())}
    marks, kept = {"", *MISSING} - words | missing, {options.index, *([] if cells.columns[0] else [""])}
    for name, column in cells.items():
        column = column if name in kept else column.mask(column.isin(marks))
        numbers = numbers_of_text(column, decimal, thousands)
        grouped = grouped or (thousands and not numbers.equals(numbers_of_text(column, decimal, None)))
        is_number = name not in (*kept, *options.one_hot) and bool((numbers.notna() == column.notna()).all())
        columns[name] = numbers if is_number else column
    written = {*cells.to_numpy().flat} if options.own else set()
    idle = {
        "decimal": "." not in (decimal, thousands) and not any(decimal in cell for cell in written),
        "missing": missing - written,
        "thousands": not grouped,
        "keep": words - (MISSING & written),
    }
    for name in (name for name, is_idle in idle.items() if is_idle and name in options.own):
        way = "another --separator such as ';', if cells end there" if decimal == separator else "leave it out"
        raise InputError(f"--{name} has no effect on {path}, where nothing is written so: {way}")
    return pandas.DataFrame(columns, cells.index)


def numbers_of_text(cells: Any, decimal: str, thousands: str | None) -> Any:
    """Return the numbers that cells write with these signs, NaN where a cell is none: 1,23 is not 123."""
    values = cells.to_numpy(object)
    if decimal == "." and not thousands and not any("_" in cell for cell in values if isinstance(cell, str)):
        for dtype in np.int64, np.float64:  # ten times as fast as to_numeric
            with suppress(ValueError, OverflowError):
                return pandas.Series(values.astype(dtype), cells.index)
    if thousands:
        sign = next((f"[{group}]" for group in ALIKE if thousands in group), re.escape(thousands))
        number = rf"[-+]?[0-9]{{1,3}}({sign}[0-9]{{3}})+({re.escape(decimal)}[0-9]*)?"
        cells = cells.mask(cells.str.fullmatch(number, na=False), cells.str.replace(sign, "", regex=True))
    if decimal != ".":
        cells = cells.str.replace(".", "x", regex=False).str.replace(decimal, ".", regex=False)
    return pandas.to_numeric(cells, errors="coerce")


def _separator(path: Path, options: Namespace) -> str:
    usual = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    separator = SIGNS.get(options.separator, usual if options.separator is None else options.separator)
    decimal = "." if options.decimal is None else options.decimal
    thousands = " " if options.thousands is None else options.thousands
    for name, sign in ("separator", separator), ("decimal", decimal), ("thousands", thousands):
        if len(sign) != 1 or sign.isalnum() or sign in '"+-\n\r' or not (sign.isascii() or name == "thousands"):
            raise InputError(f"--{name} is one sign, or for --separator tab or blank, got {sign!r}")
    if decimal == thousands:
        raise InputError(f"--thousands {thousands} needs another sign of decimals: --decimal ,")
    return separator


def _decoded(path: Path, file: Any, encoding: str) -> str:
    content: bytes = file.read()
    for name in (encoding, *LIKELY):
        with suppress(UnicodeError, LookupError):
            text = content.decode(name)
            if "\0" not in text and name == encoding:
                return text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
            if "\0" not in text:
                raise InputError(f"{path} is not text in {encoding}: say --encoding {name}, or another that it is in")
    raise InputError(f"{path} is not text in {encoding}: save what it holds as .npy")
