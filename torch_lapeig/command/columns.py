"""The contract of reading: which columns are coordinates, which rows are used, and which labels belong to them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from importlib import import_module
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from torch_lapeig.command import reading
from torch_lapeig.command.reading import SHOWN, Data, InputError, check_distinct, check_known, listed, numbers_of_text

Array = NDArray[Any]

LEAST_POINTS = 4  # two eigenvectors, the constant one, and one more
SPREAD = 100  # ratio of spreads above which one column decides
EXACT = 2**53  # float64 holds no odd integers beyond
ROUNDOFF = 1e-5  # relative difference of the two directions of a pair
SMALL = ("uint8", "int8", "uint16", "int16", "float16", "float32")  # float32 holds these exactly
KINDS = {"b": "booleans", "M": "dates", "m": "durations", "c": "complex numbers"}  # by NumPy's letters
EDGES = {"source", "target"}  # names of the columns of edges
# Options by which words may be numbers, with their signs of decimals and thousands.
TRIED = [("--decimal ,", ",", None), ("--thousands ,", ".", ","), ("--thousands ' '", ".", " ")]
TRIED += [("--decimal , --thousands .", ",", "."), ("--decimal , --thousands ' '", ",", " ")]


@dataclass
class Used:
    """Used part of a file: points ``(N, D)`` or pairs ``(N, N)``, and pandas' index of the rows."""

    x: Any
    index: Any
    columns: list[str] = field(default_factory=list)  # of the file
    names: list[str] = field(default_factory=list)  # of the columns of x
    categories: dict[str, list[str]] = field(default_factory=dict)  # the last columns of x, 0 and 1
    labels: Array | None = None
    shape: tuple[int, ...] = ()  # of each point in the file
    scaling: Array | None = None  # mean and deviation of each column, ``(2, D)``
    lines: dict[str, str] = field(default_factory=dict)  # what was used
    advice: list[str] = field(default_factory=list)  # what changes the answer

    def scale(self, scaling: Any) -> None:
        """Subtract the mean of each column, and divide by its deviation."""
        self.scaling, self.x = scaling, ((self.x - scaling[0]) / scaling[1]).astype(self.x.dtype)
        self.lines["standardized"] = "each column less its mean, over its standard deviation"


def used_of(data: Data, options: Namespace) -> Used:
    """Return the points or pairs of a file, with their labels; raise `InputError` if an option is needed."""
    names = list(getattr(data.rows, "columns", ()))
    check_known([*options.columns, *options.one_hot, *options.leave_out], names, data.source)
    is_sparse, of_table = sparse.issparse(data.rows), _edges if options.given == "edges" else _table
    used = Used(data.rows, data.index) if is_sparse else of_table(data, options)
    used.lines = {"file": f"{data.source}: {data.said}", **data.lines, "rows": "", **used.lines}
    if options.labels:
        names += _label(used, data, options)
    check_known(filter(None, [options.index]), [*names, *filter(None, [data.index.name])], data.source)
    name = used.index.name
    named = "counted from 0, as there is no index" if name is None else f"named by the index {name!r}"
    if options.given:
        _check_pairs(used, data.source, options.given)
    else:
        named += _drop_missing(used, data.source, options)
    used.lines["rows"] = f"{len(used.index):,}, {named}"
    if not options.given and not isinstance(options.one_hot, dict):  # else new rows
        _check_points(used, data)
        if options.standardize:
            deviation = np.where((used.x == used.x[0]).all(0), 1, used.x.std(0, dtype=np.float64))
            used.scale(np.stack([used.x.mean(0, dtype=np.float64), deviation]))
        _advise(used)
    return used


def _table(data: Data, options: Namespace) -> Used:
    names, roles = list(data.rows), dict.fromkeys(options.leave_out, "--leave-out")
    roles |= {name: option for name, option in ((options.index, "--index"), (options.labels, "--labels")) if name}
    columns = list(dict.fromkeys(options.columns)) or [name for name in names if name not in roles]
    if wrong := [*({*options.columns} & {*roles}), *({*options.one_hot} - {*columns})]:
        raise InputError(f"options contradict each other: {wrong[0]!r} is to be a coordinate, and is not to be one")
    if options.columns and options.leave_out:
        raise InputError("--leave-out has no effect next to --columns, which names all coordinates")
    left_out = [f"{name!r} ({roles.get(name, 'not among the columns')})" for name in names if name not in columns]
    categories = options.one_hot
    if not (is_new := isinstance(categories, dict)):  # else those of a run, with their values
        categories = {name: sorted(set(data.rows[name].dropna().astype(str))) for name in categories}
    for name in columns if data.lines and data.index.name and not (options.index or options.columns) else []:
        if data.rows[name].dtype.kind in "iu" and _counts(data.rows[name].to_numpy()):
            way = f"say --index or --leave-out {quote(name)}"
            raise InputError(f"{data.source}: the first column, without a name, and {name!r} count rows: {way}")
    plain = [name for name in columns if name not in categories]
    _check_numbers(data, plain, is_new)
    is_small = bool(plain) and all(str(dtype) in SMALL for dtype in data.rows.dtypes[plain])
    x: Array = data.rows[plain].to_numpy(np.float32 if is_small else np.float64, na_value=np.nan)
    x = np.ascontiguousarray(x)  # pandas stores column by column, which makes a search slow
    for name, values in categories.items():
        cells, is_missing = data.rows[name].astype(str).to_numpy(object), data.rows[name].isna().to_numpy()
        if (strange := {*cells[~is_missing]} - {*values}) or not values:
            raise InputError(f"{data.source}: {name!r} has {listed(strange)}, its categories are {listed(values)}")
        hot = np.where(is_missing[:, None], np.nan, cells[:, None] == np.array(values, dtype=object))
        x, plain = np.concatenate([x, hot], 1), [*plain, *(f"{name}={value}" for value in values)]
    used = Used(x, data.index, columns, plain, categories, shape=() if left_out or categories else data.shape)
    used.lines["columns"] = f"{len(columns)}: {listed(columns, 12 if data.shape else 100)}"  # of arrays they count
    used.lines |= {f"one-hot {name}": listed(values, 40) for name, values in categories.items()}
    used.lines |= {"left out": ", ".join(left_out[:40]) + ", …" * (len(left_out) > 40)} if left_out else {}
    return used


def _check_numbers(data: Data, columns: list[str], is_new: bool) -> None:
    """Raise `InputError` with all columns that are not numbers, and with options that were tried on their cells."""
    others = [name for name, dtype in data.rows.dtypes[columns].items() if dtype.kind not in "iuf"]
    if not others or not len(data.rows):
        return
    has_points = bool((data.rows[columns].select_dtypes("float") % 1 > 0).any(axis=None))
    said, ways, bad = [], [], set[tuple[int, str]]()  # rows and words between numbers
    for name in others:
        cells = data.rows[name].dropna()
        words = cells.astype(str)[numbers_of_text(cells.astype(str), ".", None).isna()]
        first = (words if len(words) else cells.astype(str))[:1].items()  # else numbers, written as text
        where = "".join(f", such as {cell!r} in {cells.index.name or 'row'} {i}" for i, cell in first)
        said.append(f"{name!r} ({KINDS.get(cells.dtype.kind, 'words')}{where})")
        bad |= {*words.items()} if len(words) < len(cells) else set()
        for option, decimal, thousands in TRIED if data.lines else ():
            is_idle = thousands and numbers_of_text(cells, decimal, None).notna().all()
            is_tried = not is_idle and (decimal == "." or not has_points)
            if is_tried and numbers_of_text(cells, decimal, thousands).notna().all():
                ways.append(f"say {option}")
    if not is_new:
        ways.append(f"leave out by --leave-out {' '.join(map(quote, others))}, take categories by --one-hot")
        ways[-1] += ", colours by --labels, row names by --index, or name coordinates by --columns"
    ways += ["take edges by --given edges"] * EDGES.issubset(map(str.lower, others))
    lines = {i for i, _ in bad}
    if data.lines and 0 < len(lines) <= SHOWN:
        ways.append(f"read missing cells by --missing {' '.join(sorted({quote(word) for _, word in bad}))}")
        ways.append(f"skip lines by --skip-lines {' '.join(map(str, sorted({*lines, *data.skipped})))}")
    ways.append("write numbers as -1.5" if data.lines else "save numbers: x.astype(float)")
    what = f"{len(others)} of {len(columns)} columns are not numbers: {', '.join(said[:12])}"
    raise InputError(f"{data.source}: {what}: {'; '.join(dict.fromkeys(ways))}")


def _label(used: Used, data: Data, options: Namespace) -> list[str]:
    """Find each row's label in a column, or in a file joined by index or place; return the columns of that file."""
    tables = [table for table in (data.rows, data.labels) if hasattr(table, "columns")]
    own = [name for table in tables for name in table]
    for table in (table for table in tables if options.labels in table and options.given != "edges"):
        used.labels = table[options.labels].to_numpy(object)
        used.lines["labels"] = f"the column {options.labels!r}, {table[options.labels].nunique()} different"
        return []
    path, member = reading.path_and_member(options.labels)
    if not path.is_file():
        raise InputError(f"there is no file {path}, and {data.source} has no {options.labels!r}; it has {listed(own)}")
    others: dict[str, Any] = {"given": None, "one_hot": [], "skip_lines": data.skipped, "count": len(used.index)}
    found = reading.read(options.labels, Namespace(**vars(options) | others))
    names = [name for name in found.rows if name != options.index]
    if member in names or (member and found.lines and len(names) > 1):
        check_known([member], names, str(path))
        names = [member]
    if len(names) != 1:
        way = f"say {path}:NAME, and --index NAME for names of the rows in both files"
        way = way if found.lines else "keep one of them: numpy.save('labels.npy', x[:, 0])"
        raise InputError(f"{path} has the columns {listed(found.rows)}: {way}")
    labels, how = found.rows[names[0]].astype(object), "by place, as not both files have an index"
    if None not in (used.index.name, found.index.name):
        rows, there = used.index.astype(str), labels.set_axis(found.index.astype(str))
        for joined in (rows, there.index):
            check_distinct(joined, f"labels of {path} cannot be joined by the index", "give each row its own name")
        labels, lost, spare = there.reindex(rows), len(rows.difference(there.index)), len(there.index.difference(rows))
        if lost == len(rows):
            raise InputError(f"{path} has labels of {listed(there.index, SHOWN)}, and none of {listed(rows, SHOWN)}")
        how = f"joined by the index {rows.name!r}: {lost} rows have no label, {spare} labels no row"
    elif options.given == "edges":
        raise InputError("labels of nodes are joined by their names: say --index NAME for the column of names")
    elif len(labels) != len(used.index):
        raise InputError(reading.FEW_LABELS.format(path, len(used.index), len(labels)))
    elif shared := [name for name in found.rows if name in own and name != names[0] and not found.shape]:
        used.advice.append(f"both files have a column {shared[0]!r}: --index {quote(shared[0])} joins labels by it")
    used.labels, used.lines["labels"] = labels.to_numpy(object), f"{options.labels} ({found.said}), {how}"
    return list(found.rows) if used.index.name is not None else []


def _drop_missing(used: Used, source: str, options: Namespace) -> str:
    finite = np.isfinite(used.x)
    complete = finite.all(1)
    if complete.all():
        return ""
    bad, lost = used.index[~complete], (~finite).sum(0)
    where = f"{bad.name or 'row'} {listed(bad, SHOWN)}"
    if not options.drop_rows_with_missing:
        said = ", ".join(f"{used.names[i]!r} {lost[i]}" for i in np.argsort(-lost, kind="stable")[:SHOWN] if lost[i])
        what = f"{len(bad)} of {len(complete)} rows have missing or infinite values ({where}; by column {said})"
        ways = "fill them in" + ", or leave out these rows by --drop-rows-with-missing" * bool(complete.any())
        raise InputError(f"{source}: {what}: {ways}{'' if options.columns else ', or columns by --leave-out'}")
    used.x, used.index = used.x[complete], used.index[complete]
    used.labels = None if used.labels is None else used.labels[complete]
    return f"; {len(bad):,} more have missing values and are left out (--drop-rows-with-missing): {where}"


def _check_points(used: Used, data: Data) -> None:
    x = used.x
    if len(x) < LEAST_POINTS or x.shape[1] == 0 or not (x != x[0]).any():
        raise InputError(f"{data.source} must have {LEAST_POINTS} rows, not all equal in {x.dtype}, got {x.shape}")
    width, limits = np.ptp(x.astype(np.float64), axis=0).max(), np.finfo(x.dtype)
    if not 1e4 * float(limits.tiny) ** 0.5 < width < 1e-4 * float(limits.max) ** 0.5:
        raise InputError(f"{data.source}: spreads over {width:.1e}, whose square leaves {x.dtype}: take other units")
    for name, column in zip(used.names, x.T, strict=True):
        if _counts(column):
            used.advice.append(f"column {name!r} counts the rows: --index or --leave-out if it is no coordinate")
        is_read = name in used.columns and (data.lines or data.rows[name].dtype.kind in "iu")
        if is_read and abs(column).max() >= EXACT and (column == np.floor(column)).all():
            used.advice.append(f"column {name!r} has integers above 2⁵³, which are rounded: row names are --index")


def _advise(used: Used) -> None:
    """Add sentences on columns that may change the answer, of points as they are embedded."""
    x, names, width = used.x, used.names, np.ptp(used.x.astype(np.float64), axis=0)
    spread = x.std(0, dtype=np.float64) * (width > 0)  # the deviation of equal numbers may be round-off
    first, others = int(spread.argmax()), np.delete(spread, spread.argmax())
    typical = np.median(others[others > 0]) if (others > 0).any() else np.inf
    if spread[first] > SPREAD * typical:
        what = f"column {names[first]!r} spreads {spread[first] / typical:.0f} times as wide as the others"
        used.advice.append(f"{what} and decides nearly all distances: --standardize makes all count alike")
    if not width.all():
        used.advice.append(f"columns that are constant change no distance: {listed(np.array(names)[width == 0])}")
    if x.shape[0] == x.shape[1] and _asymmetry(x) <= ROUNDOFF:
        used.advice.append("the table is square and symmetric: pairs are --given distance or --given affinity")
    if EDGES.issubset(map(str.lower, names)):
        used.advice.append("columns are named source and target: edges are --given edges")


def _counts(x: Array) -> bool:
    return len(x) > 1 and np.ptp(x) == len(x) - 1 and bool((np.diff(np.sort(x)) == 1).all())


def _asymmetry(pairs: Any) -> float:
    return float(abs(pairs - pairs.T).max() / max(abs(pairs).max(), np.finfo(float).tiny))


def _check_pairs(used: Used, source: str, given: str) -> None:
    pairs, is_sparse, failed = used.x, sparse.issparse(used.x), ""
    n, m = pairs.shape
    if n != m or n < LEAST_POINTS:
        failed = f"it must be square, of {LEAST_POINTS} rows, got {n} × {m}: --leave-out some, or squareform(x)"
    elif (rows := [*map(str, used.index)]) != used.names and sorted(rows) == sorted(used.names):
        failed = "its rows and its columns have the same names in different orders"
    elif bad := int((~np.isfinite(pairs.data if is_sparse else pairs)).sum()):
        failed = f"{bad} entries are missing or infinite: replace them, by a distance above all others for instance"
    elif (least := pairs.min()) < 0:
        failed = f"entries are negative, down to {least:.3g}: of correlations, take (1 + x) / 2 or abs(x)"
    elif pairs.max() == 0:
        failed = "no entry is positive"
    elif given == "distance" and pairs.diagonal().max() > ROUNDOFF * pairs.max():
        failed = f"its diagonal is not zero, up to {pairs.diagonal().max():.3g}: similarities are --given affinity"
    elif (given != "distance" or not is_sparse) and (off := _asymmetry(pairs)) > ROUNDOFF:
        failed = f"it is not symmetric, by {off:.2g} of the largest: x + x.T completes a half, (x + x.T) / 2 averages"
    if failed:
        raise InputError(f"{source} is not a matrix for --given {given}: {failed}")
    how = "the stored pairs are the neighbours" if is_sparse and given == "distance" else "symmetric"
    used.lines["pairs"] = f"by --given {given}, {how}"
    if given == "distance" and not is_sparse and (same := np.count_nonzero(np.triu(pairs == 0, 1))):
        used.advice.append(f"{same:,} pairs have distance zero: leave those that are unknown out of a sparse matrix")


def _edges(data: Data, options: Namespace) -> Used:
    """Return the affinities of edges: two columns of names, or three with a weight."""
    pandas = import_module("pandas")
    if options.index in data.rows:
        raise InputError(f"{data.source}: nodes have the names in the edges: say --leave-out {quote(options.index)}")
    rows = data.rows[options.columns or [name for name in data.rows if name not in options.leave_out]]
    if rows.shape[1] not in (2, 3):
        raise InputError(f"{data.source}: edges are two names, perhaps a weight: choose of {listed(rows)} by --columns")
    weight, signs = np.ones(len(rows)), (options.decimal or ".", options.thousands) if data.lines else (".", None)
    for _, column in [*rows.items()][2:]:
        weight = numbers_of_text(column, *signs).to_numpy(float, na_value=np.nan)
    if (lost := (rows.isna() | (rows == "")).any(axis=1).to_numpy() | ~np.isfinite(weight)).any():
        where = f"{rows.index.name or 'row'} {rows.index[lost.argmax()]}"
        raise InputError(f"{data.source}: the edge in {where} lacks a name or a finite weight")
    code, names = pandas.factorize(rows.iloc[:, :2].astype(str).to_numpy(object).ravel())
    if options.header is None and data.lines and (both := {*rows.columns[:2]} & {*names}):
        way = "--header if it names the columns, --no-header if it is an edge"
        raise InputError(f"{data.source}: line 1 has {listed(sorted(both))}, as later lines do: say {way}")
    i, j = np.sort(code.reshape(-1, 2), 1).T
    table = pandas.DataFrame({"i": i, "j": j, "weight": weight})[i != j]
    once = table.drop_duplicates()
    for twice in once[once.duplicated(["i", "j"])].itertuples():
        raise InputError(f"{data.source}: {names[twice.i]!r} and {names[twice.j]!r} have two weights: give them one")
    half = sparse.csr_array((once.weight, (once.i, once.j)), (len(names), len(names)))
    used = Used(half + half.T, pandas.Index(names, name="name"))
    loops, repeated = len(rows) - len(table), len(table) - len(once)
    used.lines |= {"columns": listed(rows), "edges": f"{len(once):,}, {loops} loops and {repeated} repeated left out"}
    return used
