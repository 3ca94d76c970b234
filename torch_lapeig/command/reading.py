"""Points, labels and names of columns from files of numbers; data that cannot be right is refused with advice."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[Any]
Columns = Mapping[str, Array]

LEAST_POINTS = 4  # two eigenvectors, the constant one, and one more
DENSE_BYTES = 4 << 30  # maximum of a sparse matrix written out as a dense one
PICKLED = b"\x80"  # first byte of a pickle; older NumPy reports any unreadable file as pickled
SHOWN = 5  # numbers of rows in a message
DECIMAL_COMMA = re.compile(r"[+-]?\d*,(\d+)(?:[eE][+-]?\d+)?")


class InputError(ValueError):
    """Error of data that cannot be embedded; the message names the data, what arrived, and what to do instead."""


def read(given: str, notes: list[str]) -> Array | Columns:
    """Return the array of a file, or its columns by name.

    Args:
        given: path of a .npy, .npz, .csv or .parquet file; ``points.npz:x`` is the array x of several.
        notes: gets a line for each thing that was decided on the way.

    Raises:
        InputError: there is no such file, or it is damaged, of another kind, empty, or holds Python objects.
    """
    path, member = _member(given)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: the file must end in {', '.join(READERS)}, got {path.suffix or 'no ending'!r}")
    try:
        return reader(path, member, notes)
    except InputError:
        raise
    except (ValueError, OSError, EOFError, BadZipFile, csv.Error) as error:
        if "Object arrays" in str(error) or _begins(path, PICKLED):
            raise InputError(
                f"{path} holds Python objects, which are not loaded since that can run code: save numbers, such as "
                "np.save(file, x.astype(float))"
            ) from error
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _begins(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def is_file(given: str) -> bool:
    """Return whether `read` would find a file."""
    return _member(given)[0].is_file()


def _member(given: str) -> tuple[Path, str]:
    """Return a path, and the name of an array in it."""
    before, _, after = given.rpartition(":")
    return (Path(before), after) if before.lower().endswith(".npz") else (Path(given), "")


def _npy(path: Path, member: str, notes: list[str]) -> Array:
    with path.open("rb") as file:
        found: Array = np.load(file, allow_pickle=False)
        return found


def _npz(path: Path, member: str, notes: list[str]) -> Array:
    """Return the one array of an archive, the named one, or a sparse matrix of SciPy's as a dense array."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        names = archive.files
        if {"format", "shape", "data"} <= set(names):
            size = int(np.prod(archive["shape"])) * archive["data"].itemsize
        elif member in names or (len(names) == 1 and not member):
            return np.asarray(archive[member or names[0]])
        else:
            named = f"{member!r}" if member else "which"
            raise InputError(f"{path} holds the arrays {', '.join(names) or 'none'}: write {path}:NAME, got {named}")
    if size > DENSE_BYTES:
        raise InputError(
            f"{path} is a sparse matrix of {size >> 30} GiB when written out, and distances need it so: reduce it "
            "first, for example by scikit-learn's TruncatedSVD"
        )
    notes.append(f"{path.name} is a sparse matrix; its zeros are written out")
    return np.asarray(sparse.load_npz(path).toarray())


def _csv(path: Path, member: str, notes: list[str]) -> Columns:
    """Return columns of words or numbers; the first line holds names if none of its cells is a number."""
    text = path.read_text(encoding="utf-8-sig")
    first = text.partition("\n")[0]
    delimiter = next((sign for sign in ";\t" if sign in first), ",")  # other delimiters leave the comma for decimals
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = [(reader.line_num, row) for row in reader if row]
    if not rows:
        raise InputError(f"{path} is empty")
    width = len(rows[0][1])
    for line, row in rows:
        if len(row) != width:
            raise InputError(f"{path} must have as many cells in each line: line {line} has {len(row)}, not {width}")
    cells = np.array([row for _, row in rows])
    notes.append(f"{path.name}: cells are separated by {delimiter!r}")
    if delimiter != ",":
        cells = _with_decimal_points(cells, path, notes)
    if _counts_columns(cells, path):
        notes.append(f"{path.name}: line 1 counts the columns, as pandas names them, and is no point")
        return {name.strip(): cells[1:, i] for i, name in enumerate(cells[0])}
    if any(_is_number(cell) for cell in cells[0]):
        notes.append(f"{path.name}: line 1 is a point, as it holds numbers; columns are named 1 to {width}")
        return {str(i + 1): cells[:, i] for i in range(width)}
    names = [name.strip() for name in cells[0]]
    if len(set(names)) < width:
        raise InputError(f"{path}: names of columns must differ, got {', '.join(names)}")
    notes.append(f"{path.name}: line 1 holds the names of the columns")
    return {name: cells[1:, i] for i, name in enumerate(names)}


def _with_decimal_points(cells: Array, path: Path, notes: list[str]) -> Array:
    """Return cells with points for decimal commas (Excel, R); raise `InputError` if commas may separate thousands."""
    found = [DECIMAL_COMMA.fullmatch(cell.strip()) for cell in cells.flat]
    if not (digits := [match[1] for match in found if match]):
        return cells
    if all(len(after) == 3 for after in digits) or any("." in cell and _is_number(cell) for cell in cells.flat):
        raise InputError(
            f"{path}: commas in numbers may be decimal commas or separate thousands: write numbers with decimal points"
        )
    notes.append(f"{path.name}: commas in numbers are decimal commas")
    pairs = zip(cells.flat, found, strict=True)
    return np.array([cell.replace(",", ".") if match else cell for cell, match in pairs]).reshape(cells.shape)


def _counts_columns(cells: Array, path: Path) -> bool:
    """Return whether the first line counts 0, 1, 2, …; raise `InputError` where it may be a point of whole numbers."""
    named = cells[:, 1:] if cells.shape[1] > 1 and not cells[0, 0].strip() else cells
    width = named.shape[1]
    if width < 2 or len(cells) < 2 or named[0].tolist() != [str(i) for i in range(width)]:
        return False
    if all(cell.strip().lstrip("+-").isdigit() for cell in named[1:].flat):
        raise InputError(
            f"{path}: line 1 counts the columns (0, 1, …) and may be their names or a point: give the columns "
            "names, or save the points as .npy"
        )
    return True


def _parquet(path: Path, member: str, notes: list[str]) -> Columns:
    try:
        import pandas

        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise InputError(f"{path}: .parquet is read by pandas and pyarrow: pip install pandas pyarrow") from error
    return {str(name): frame[name].to_numpy() for name in frame.columns}


READERS: dict[str, Callable[[Path, str, list[str]], Array | Columns]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which numbers in Python may contain


def numbers(cells: Array, name: str) -> Array:
    """Return a column as numbers, NaN for an empty cell; raise `InputError` for words."""
    if cells.dtype.kind in "biuf":
        return cells
    if cells.dtype.kind in "US":
        if words := [(i, cell) for i, cell in enumerate(cells) if cell.strip() and not _is_number(cell)]:
            raise InputError(
                f"column {name!r} has words ({str(words[0][1])!r} in row {words[0][0] + 1}): leave it out by "
                f"--leave-out {name!r}, or colour by it with --labels {name!r}"
            )
        return np.array([cell.strip() or "nan" for cell in cells]).astype(np.float64)
    raise InputError(f"column {name!r} must hold numbers, got {cells.dtype}: leave it out by --leave-out {name!r}")


def points_of(found: Array | Columns, given: str, without: Sequence[str], notes: list[str]) -> Array:
    """Return the points ``(N, D)`` of the result of `read`, float32 or float64, ``without`` some columns.

    ``given`` is the user's name for it; `InputError` unless these are finite real numbers.
    """
    if isinstance(found, Mapping):
        if unknown := [name for name in without if name not in found]:
            raise InputError(f"{given} has no column {unknown[0]!r}; it has {', '.join(found)}")
        kept = {name: found[name] for name in named_points(found, without)}
        if dropped := [name for name in found if name not in kept and name not in without]:
            notes.append(f"column {dropped[0]!r} numbers the rows and is left out")
        columns = [numbers(cells, name) for name, cells in kept.items()]
        found = np.stack(columns, 1) if columns else np.empty((0, 0))
    elif without:
        raise InputError(f"{given} is an array, whose columns have no names: got {', '.join(map(repr, without))}")
    return _checked(found, given, notes)


def named_points(found: Columns, without: Sequence[str]) -> list[str]:
    """Return the names of the columns of points."""
    return [name for name, cells in found.items() if name not in without and not _is_index(name, cells)]


def as_named(found: Columns, given: str, names: Sequence[str], notes: list[str]) -> Columns:
    """Return the columns of these names in this order; raise InputError where one is missing."""
    if lacking := [name for name in names if name not in found]:
        raise InputError(f"{given} must have the columns of the input: {lacking[0]!r} is not among {', '.join(found)}")
    others = [name for name in found if name not in names]
    if others:
        notes.append(f"{given}: columns that the input does not have are left out: {', '.join(others)}")
    return {name: found[name] for name in names}


def _is_index(name: str, cells: Array) -> bool:
    """Return whether an unnamed column numbers the rows, as pandas writes its index and R its row names."""
    if name and not name.startswith("Unnamed"):
        return False
    rows = [str(cell).strip() for cell in cells]
    return all(row.isdecimal() for row in rows) and bool((np.diff([int(row) for row in rows]) > 0).all())


def _checked(found: Array, given: str, notes: list[str]) -> Array:
    if found.ndim != 2:
        way_out = "x.reshape(len(x), -1) makes a row of each point" if found.ndim > 2 else "x[:, None] is one column"
        raise InputError(
            f"{given} must be of shape (points, columns), got {found.shape}: {way_out if found.ndim else ''}"
        )
    if found.dtype.kind not in "biuf":
        raise InputError(f"{given} must hold real numbers, got {found.dtype}")
    if found.dtype not in (np.float32, np.float64):
        to = np.float32 if found.dtype.itemsize <= 2 else np.float64  # float64 or float32 holds these numbers exactly
        notes.append(f"{given} is {found.dtype}, computed in {np.dtype(to)}")
        found = found.astype(to)
    if len(bad := np.flatnonzero(~np.isfinite(found).all(1))):
        rows = ", ".join(map(str, bad[:SHOWN])) + (", …" if len(bad) > SHOWN else "")
        raise InputError(
            f"{given} must be finite, got NaN, infinite or empty cells in {len(bad)} of {len(found)} rows (from 0: "
            f"{rows}): fill them or leave those rows out, with their labels"
        )
    return np.ascontiguousarray(found)


def check_points(x: Array, given: str, notes: list[str]) -> None:
    """Raise `InputError` if nothing can be embedded; note columns that are constant or dominate.

    >>> check_points(np.ones((5, 2)), "ones.npy", [])
    Traceback (most recent call last):
    torch_lapeig.command.reading.InputError: ones.npy: all 5 points are equal
    """
    if len(x) < LEAST_POINTS:
        raise InputError(f"{given} must have at least {LEAST_POINTS} points, got {len(x)}")
    if x.shape[1] == 0:
        raise InputError(f"{given} must have at least one column, got shape {x.shape}")
    if not (x != x[0]).any():
        raise InputError(f"{given}: all {len(x)} points are equal")
    check_units(x, given)
    spread = x.std(0, dtype=np.float64)
    if constant := int((x == x[0]).all(0).sum()):
        notes.append(f"{constant} of {x.shape[1]} columns are constant and change no distance")
    varying = spread[(x != x[0]).any(0)]
    if len(varying) > 1 and varying.max() > 100 * np.median(varying):
        notes.append(
            f"column {int(spread.argmax())} (from 0) spreads {varying.max() / np.median(varying):.0f} times as wide as "
            "the median column and decides nearly all distances; --standardize makes all columns count alike"
        )


def check_units(x: Array, given: str) -> None:
    """Raise `InputError` if squares of distances may leave the range of the dtype."""
    range_of = np.finfo(x.dtype)
    with np.errstate(over="ignore"):
        widest = float(np.ptp(x, axis=0).max())
    if not 1e4 * float(range_of.tiny) ** 0.5 < widest < 1e-4 * float(range_of.max) ** 0.5:
        raise InputError(
            f"{given}: columns spread over {widest:.1e} at most, and squares of such distances leave {x.dtype}: "
            "take other units"
        )


def labels_of(found: Array | Columns, given: str, n: int, notes: list[str]) -> Array:
    """Return one label for each point ``(n,)``, numbers or words, of the result of `read`, or raise `InputError`."""
    if isinstance(found, Mapping):
        if len(found) != 1:
            raise InputError(f"{given} must have one column of labels, got {', '.join(found)}")
        ((name, cells),) = found.items()
        found = cells
        if len(cells) == n - 1 and cells.dtype.kind == "U":  # for words, only the count shows a missing header
            found = np.array([name, *cells])
            notes.append(f"{given}: line 1 is a label after all, as there are {n} points")
        if found.dtype.kind == "U" and all(map(_is_number, found)):
            found = found.astype(np.float64)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.shape != (n,):
        raise InputError(f"{given} must hold a label for each of the {n} points, got shape {found.shape}")
    if found.dtype == object and all(isinstance(label, str) for label in found):
        found = found.astype(str)
    if found.dtype.kind not in "biufUS":
        raise InputError(f"{given} must hold numbers or words, got {found.dtype}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise InputError(f"{given} must be finite, got NaN or infinite labels")
    return found
