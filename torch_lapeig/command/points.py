"""Points and labels of what a file holds; data that cannot be right is refused with advice."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import takewhile
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from torch_lapeig.command.reading import Found, known
from torch_lapeig.command.tables import InputError
from torch_lapeig.plots import CLASSES

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Array = NDArray[Any]

LEAST_POINTS = 4  # two eigenvectors, the constant one, and one more
SHOWN = 5  # numbers of rows in a sentence
ASYMMETRY = 1e-5  # relative difference of two directions that is round-off
UNNAMED = re.compile(r"Unnamed: ?\d+(\.\d+)?|__index_level_\d+__|")
COUNTER = re.compile(r"#|id|idx|index|row([ ._-]?(id|names?|no|number|index))?", re.IGNORECASE)
KEY = re.compile(r"(?i:.*[ ._-]id)|.*[a-z]I[dD]")
LABEL = re.compile(r"label|labels|class|target|category|species|y", re.IGNORECASE)


class Points(NamedTuple):
    """Points ``(N, D)``; ``kept`` tells which rows of the file they are, ``names`` are the names of their columns.

    ``shape``: of each point, if the file holds arrays of more than two dimensions.
    """

    x: Array
    kept: Array
    names: list[str] | None
    shape: tuple[int, ...]

    def images(self) -> Array | None:
        """Return the points as images ``(N, height, width)``, or with colours last; None where they are none."""
        x, shape, side = self.x, self.shape, math.isqrt(self.x.shape[1])
        smallest, channels = 8, (1, 3, 4)  # pixels of a side; grey, colours, colours with transparency
        if not shape and side >= smallest and side**2 == x.shape[1] and _are_pixels(x, side):
            shape = (side, side)
        if len(shape) == 3 and shape[0] in channels and shape[2] not in channels:
            x = np.moveaxis(x.reshape(len(x), *shape), 1, -1)
            shape = x.shape[1:]
        is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] in channels)
        return x.reshape(len(x), *shape) if is_image and min(shape[:2]) >= smallest else None


def _are_pixels(x: Array, side: int) -> bool:
    """Return whether rows are bytes of square images, whose neighbouring pixels are more alike than others are."""
    sample = x[:: len(x) // 200 + 1]
    if sample.min() < 0 or sample.max() > 255 or (sample % 1).any():
        return False
    images = sample.reshape(-1, side, side)
    far = np.abs(images - np.roll(images, (side // 2, side // 2), (1, 2))).mean()
    # Of photographs neighbours differ by half as much as distant pixels, of noise by as much.
    return all(np.abs(np.diff(images, axis=axis)).mean() < 0.8 * far for axis in (1, 2))


def points_of(
    found: Found, given: str, without: Sequence[str], drop: bool, notes: list[str], *, is_settled: bool = False
) -> Points:
    """Return the points of the result of `read`, float32 or float64, ``without`` some columns.

    Args:
        found: array, sparse matrix or table. given: the user's name for it.
        without: names of columns that are no coordinates.
        drop: leave out rows with missing values.
        notes: gets a line for each thing that was decided.
        is_settled: whether all columns of a table are coordinates, as of new points, chosen by the names of others.

    Raises:
        InputError: these are no finite real numbers.
    """
    names, shape = None, tuple(getattr(found, "shape", ()))[1:]
    if hasattr(found, "columns"):
        table = coordinates_of(found, given, without, notes, is_settled)
        names, rows, unit = list(table.columns), table.index, table.index.name or "row"
        found = _as_array(table)
    elif without:
        raise InputError(f"{given} is an array, whose columns have no names: got {', '.join(map(repr, without))}")
    else:
        found = _dense(found, given, notes)
        rows, unit = np.arange(len(found) if found.ndim else 0), "row, from 0,"
    x = _as_float(found, given, notes)
    complete = np.asarray(np.isfinite(x).all(1))
    bad = np.asarray(rows)[~complete]
    if len(bad) and not drop:
        shown = ", ".join(map(str, bad[:SHOWN])) + (", …" if len(bad) > SHOWN else "")
        worst = int((~np.isfinite(x)).sum(0).argmax())
        column = f"{names[worst]!r}" if names else f"{worst} (from 0)"
        raise InputError(
            f"{given}: {len(bad)} of {len(x)} rows have missing or infinite values ({unit} {shown}; column {column} "
            f"has {int((~np.isfinite(x[:, worst])).sum())}): leave the rows out by --drop-rows-with-missing"
            + (f", or the column by --leave-out {quote(names[worst])}" if names else ", or fill them")
        )
    if len(bad):
        notes.append(f"{given}: {len(bad)} of {len(x)} rows have missing values and are left out")
    return Points(np.ascontiguousarray(x[complete]), complete, names, shape if len(shape) > 1 else ())


def coordinates_of(
    table: DataFrame, given: str, without: Sequence[str], notes: list[str], is_settled: bool = False
) -> DataFrame:
    """Return the columns of a table that are coordinates, as numbers; raise `InputError` for words."""
    for name in without:
        known(name, table.columns, given)
    kept = table[[name for name in table.columns if name not in without]]
    empty = [name for name in kept if len(kept) and not kept[name].notna().any() and not is_settled]
    index = [] if is_settled else _index_of(kept.drop(columns=empty))
    for left_out, why in ((empty, "is empty"), (index, "numbers or names the rows")):
        if left_out:
            said = ["without a name" if UNNAMED.fullmatch(name) else repr(name) for name in left_out]
            notes.append(f"{given}: column {', '.join(said)} {why} and is left out")
            kept = kept.drop(columns=left_out)
    for name in filter(LABEL.fullmatch, kept):
        if kept[name].nunique() <= CLASSES:
            notes.append(f"{given}: column {name!r} is taken for a coordinate: of classes, say --labels {quote(name)}")
    converted = {name: _numbers(kept[name]) for name, dtype in kept.dtypes.items() if dtype.kind not in "iuf"}
    words = {name: kept[name][kept[name].notna() & cells.isna()] for name, cells in converted.items()}
    words = {name: cells for name, cells in words.items() if len(cells)}
    if words:
        raise InputError(f"{given}: {_said_of_words(kept, words)}")
    return kept.assign(**converted)


def _index_of(table: DataFrame) -> list[str]:
    """Return the columns that number or name the rows, as pandas, R and databases write them."""
    columns = list(table.columns)
    found = set(takewhile(UNNAMED.fullmatch, columns)) | set(filter(COUNTER.fullmatch, columns))
    whole = table.select_dtypes("integer")
    exact = 2**53  # float64 holds no whole numbers beyond
    found |= set(whole.columns[(whole.max() > exact) | (whole.min() < -exact)])
    found |= {name for name in filter(KEY.fullmatch, columns) if table[name].is_unique}
    if len(columns) > 1 and _are_names(table[columns[0]]):
        found.add(columns[0])
    is_unnamed = columns == [str(i + 1) for i in range(len(columns))]
    if is_unnamed and len(columns) > 1 and len(table) > 2 and "1" in whole:  # two rows may count by chance
        found |= {"1"} if (table["1"].diff().iloc[1:] == 1).all() else set()
    return [name for name in columns if name in found]


def _are_names(cells: Series) -> bool:
    """Return whether cells are words, all different, none of which begins as a number or a date does."""
    words = cells.dropna().astype(str)
    is_of_words = len(words) > 1 and words.is_unique and _numbers(cells).isna().all()
    return bool(is_of_words and not words.str.match(r"\s*[-+.,\d]").any())


def _numbers(cells: Series) -> Series:
    """Return a column as numbers, NaN for words, dates and empty cells."""
    import pandas

    if cells.dtype == np.bool_:
        return cells.astype("uint8")
    if pandas.api.types.is_numeric_dtype(cells):
        return cells
    if cells.dtype.kind in "mM":
        return pandas.Series(np.nan, cells.index)
    return pandas.to_numeric(cells.astype(object), errors="coerce")


def _as_array(table: DataFrame) -> Array:
    is_small = all(dtype in (np.uint8, np.int8, np.uint16, np.int16, np.float16, np.float32) for dtype in table.dtypes)
    found: Array = table.to_numpy(np.float32 if is_small and table.shape[1] else np.float64, na_value=np.nan)
    return found


def _said_of_words(table: DataFrame, words: dict[str, Series]) -> str:
    """Return the columns that have words, and the options that help."""
    name, cells = next(iter(words.items()))
    rows = {row for column in words.values() for row in column.index}
    if len(words) > 1 and len(rows) == 1 < len(table):
        found = ", ".join(repr(str(column.iloc[0])) for column in list(words.values())[:SHOWN])
        return (
            f"{table.index.name or 'row'} {rows.pop()} has words where the others have numbers ({found}): take it out, "
            "or the lines above if it names the columns"
        )
    example = f"{str(cells.iloc[0])!r} in {table.index.name or 'row'} {cells.index[0]}"
    if 2 * len(cells) < table[name].notna().sum():
        return (
            f"column {name!r} has {len(cells)} cells that are no numbers ({example}): correct or empty them, or leave "
            f"the column out by --leave-out {quote(name)}"
        )
    columns = f"column{'s' * (len(words) > 1)} {', '.join(map(repr, words))}"
    said = f"{columns} of words or dates ({example}): leave out by --leave-out {' '.join(map(quote, words))}"
    classes = {name: table[name].nunique() for name in words}
    offered = [name for name, count in classes.items() if 1 < count <= min(CLASSES, len(table) // 2)]
    return f"{said}; --labels {quote(offered[0])} colours by its {classes[offered[0]]} classes" if offered else said


def _dense(found: Any, given: str, notes: list[str]) -> Array:
    """Return an array; a sparse matrix is written out, and images ``(N, …)`` are rows."""
    if sparse.issparse(found):
        # A sparse matrix is written out up to 4 GiB.
        if (size := int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize) > 4 << 30:
            raise InputError(
                f"{given} is a sparse matrix of {size >> 30} GiB when written out, and distances need it so: reduce it "
                "first, for example by scikit-learn's TruncatedSVD"
            )
        notes.append(f"{given} is a sparse matrix; its zeros are written out")
        found = found.toarray()
    if found.ndim > 2:
        notes.append(f"{given}: each {'×'.join(map(str, found.shape[1:]))} array of its {len(found)} is a point")
        found = found.reshape(len(found), -1)
    if found.ndim != 2:
        raise InputError(f"{given} must be of shape (points, columns), got {found.shape}: x[:, None] is one column")
    return np.asarray(found)


def _as_float(found: Array, given: str, notes: list[str]) -> Array:
    if found.dtype.kind not in "biuf":
        raise InputError(f"{given} must hold real numbers, got {found.dtype}")
    if found.dtype not in (np.float32, np.float64):
        to = np.float32 if found.dtype.itemsize <= 2 else np.float64  # float64 or float32 holds these numbers exactly
        notes.append(f"{given} is {found.dtype}, computed in {np.dtype(to)}")
        found = found.astype(to)
    return found


def check_points(x: Array, given: str, notes: list[str], names: Sequence[str] | None = None) -> None:
    """Raise `InputError` if nothing can be embedded; note columns that are constant or dominate, and a matrix of pairs.

    >>> check_points(np.ones((5, 2)), "ones.npy", [])
    Traceback (most recent call last):
    torch_lapeig.command.tables.InputError: ones.npy: all 5 points are equal
    """
    if len(x) < LEAST_POINTS:
        raise InputError(f"{given} must have at least {LEAST_POINTS} points, got {len(x)}")
    if x.shape[1] == 0:
        raise InputError(f"{given} must have at least one column of numbers")
    if not (x != x[0]).any():
        raise InputError(f"{given}: all {len(x)} points are equal")
    check_units(x, given)
    spread = x.std(0, dtype=np.float64)
    if constant := int((x == x[0]).all(0).sum()):
        notes.append(f"{constant} of {x.shape[1]} columns are constant and change no distance")
    widest = repr(names[spread.argmax()]) if names else f"{spread.argmax()} (from 0)"
    varying = spread[(x != x[0]).any(0)]
    if len(varying) > 1 and varying.max() > 100 * np.median(varying):
        notes.append(
            f"column {widest} spreads {varying.max() / np.median(varying):.0f} times as wide as "
            "the median column and decides nearly all distances; --standardize makes all columns count alike"
        )
    if _is_symmetric(x):
        kind = "distance" if (np.diag(x) == 0).all() else "affinity"
        notes.append(f"{given} is square and symmetric: if it holds pairs of points, say --given {kind}")


def _is_symmetric(pairs: Any) -> bool:
    if pairs.shape[0] != pairs.shape[1]:
        return False
    return bool(abs(pairs - pairs.T).max() <= ASYMMETRY * abs(pairs).max())


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


def pairs_of(found: Found, given: str, without: Sequence[str], notes: list[str]) -> Any:
    """Return a symmetric matrix of distances or affinities, an array or sparse, of the result of `read`."""
    if getattr(found, "ndim", 2) == 1:
        raise InputError(
            f"{given} must be a matrix, got shape {found.shape}: scipy.spatial.distance.squareform makes one"
        )
    if not sparse.issparse(found):
        found = points_of(found, given, without, False, notes).x
    elif not np.isfinite(found.data).all():
        raise InputError(f"{given} must be finite")
    if found.shape[0] != found.shape[1]:
        raise InputError(f"{given} must be square to be of pairs, got shape {found.shape}")
    if not _is_symmetric(found):
        is_half = any(abs(part).max() == 0 for part in (sparse.tril(found, -1), sparse.triu(found, 1)))
        why = "one half of it is empty: add its transpose" if is_half else "make it so, for example by (x + x.T) / 2"
        raise InputError(f"{given} must be symmetric to be of pairs: {why}")
    if found.shape[0] < LEAST_POINTS or found.min() < 0 or not found.max() > 0:
        raise InputError(f"{given} must be of {LEAST_POINTS} or more points, and non-negative but for zeros")
    return (found + found.T) / 2


def labels_of(found: Found, given: str, n: int, notes: list[str]) -> Array:
    """Return a label for each of ``n`` points of the result of `read`: numbers or words, NaN or None for none."""
    import pandas

    if hasattr(found, "columns"):
        index = _index_of(found) if found.shape[1] > 1 else []
        kept = [name for name in found if name not in index]
        if len(kept) != 1:
            raise InputError(f"{given} has columns {', '.join(kept)}: write {given}:NAME for that of the labels")
        found = found[kept[0]]
    labels: Array = np.asarray(found)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (n,):
        raise InputError(f"{given} must hold a label for each of the {n} points, got shape {labels.shape}")
    if labels.dtype.kind == "c":
        raise InputError(f"{given} must hold numbers or words, got {labels.dtype}")
    missing = int(pandas.isna(labels).sum())
    if missing == n:
        raise InputError(f"{given} must hold labels, got empty cells or NaN")
    if missing:
        notes.append(f"{given}: {missing} points have no label")
    return labels
