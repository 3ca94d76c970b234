"""All distances of sets of points: the nearest of each query, and pairs within reach. Chooses edges: no gradients.

Small sets are searched by compiled loops over direct differences. For others, squared distances of a block of queries
come from one matrix product,

    d² ≈ ‖q‖² + [−2x, ‖x‖²] · [q, 1]        of centred points x and queries q.

The term ‖q‖² changes no order within a row, so that a table holds the product alone, its *values*. The error of a value
is at most its row's `slack`, from the rounding of a product of D terms. A product loses the digits in which distances
of close points far from the origin differ, so each row is decided in two steps:

1. a few more candidates than asked for are measured again by direct differences. All other points are at least as far
   as the farthest candidate, up to the error: where the k-th is closer than that, the row is done;
2. what remains is searched among all points whose values could be among the k nearest, by direct differences.

Ties go to the smaller index.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.graph.distances import nearest_directly, nearest_of_measured, pair_distances
from torch_lapeig.graph.search.projection import Images, unit_of_slack
from torch_lapeig.support import checks
from torch_lapeig.support.threads import together
from torch_lapeig.support.tuning import GROUP, PARTITION_COLUMNS, PRODUCT_BYTES, PRODUCT_ROWS, TILE, rows_of_block

T = TypeVar("T")

VECTOR = 16  # minima of a tile come in whole vectors of so many numbers
FEWEST_ROWS = 16  # of a block, whatever the budget
SPARE = 5  # candidates beyond k that are measured again: enough for the ties and near ties of most rows


class Sets(NamedTuple):
    """Points ``(B, N, D)``, queries ``(B, Q, D)`` and which points are valid, bool ``(B, N)``.

    ``itself``: the queries are the points, and none is its own neighbour.
    """

    points: Tensor
    queries: Tensor
    valid: Tensor
    itself: bool

    def split(self, count: int) -> list[Sets]:
        """Return the items of the batch, ``count`` together."""
        parts = zip(self.points.split(count), self.queries.split(count), self.valid.split(count), strict=True)
        return [Sets(*part, self.itself) for part in parts]


class Values(NamedTuple):
    """Values ``(T, R, C)`` of R queries of all items against T tiles of C columns; squares and slack ``(R,)``."""

    tiles: Tensor
    minima: Tensor  # (R, T, C / GROUP), of the columns that are C / GROUP apart; not of few columns
    squares: Tensor
    slack: Tensor


class Table:
    """The points ``(B, N, D)`` of a product, centred: rows [−2x, ‖x‖² − reach], an infinite last number for padding."""

    def __init__(
        self, points: Tensor, valid: Tensor, reach: Tensor | float = 0.0, rounding: float | None = None
    ) -> None:
        b, n, d = points.shape
        self.rounding = unit_of_slack(points) if rounding is None else rounding
        count = -(-n // TILE) if points.device.type == "cpu" else 1
        unit = GROUP if n < VECTOR * GROUP else VECTOR * GROUP
        self.width = math.ceil(n / count / unit) * unit
        self.centre = points.sum(1, keepdim=True) / valid.sum(1).clamp_min(1)[:, None, None]
        # In place, as the table of millions of points is the larger part of the memory of a search.
        columns = points.new_zeros(b, count * self.width, d + 1)
        centred = torch.sub(points, self.centre, out=columns[:, :n, :d])
        squares = torch.linalg.vector_norm(centred, dim=2).square_()
        self.largest = squares.masked_fill(~valid, 0).amax(1, keepdim=True)
        centred.mul_(-2)
        columns[..., d] = torch.inf
        columns[:, :n, d] = (squares - reach).masked_fill(~valid, torch.inf)
        self.tiles = columns.reshape(b, count, self.width, d + 1).movedim(1, 0).mT

    def rows(self, row_bytes: float, budget: int) -> int:
        """Return how many queries of each item fit the budget, if they take ``row_bytes`` beside their values."""
        on_cpu, row_bytes = self.tiles.device.type == "cpu", row_bytes + 1.5 * self.tiles[:, :, 0].nbytes
        left = (budget - self.tiles.nbytes) / (torch.get_num_threads() if on_cpu else 1)
        return max(FEWEST_ROWS, min(int(left / row_bytes), PRODUCT_ROWS if on_cpu else TILE**2))

    def each_block(self, queries: Tensor, itself: bool, rows: int, work: Callable[[Values, slice], T]) -> list[T]:
        """Return ``work`` of the values of so many queries of each item, ``(B, Q, D)``, after the other.

        ``itself``: queries are the points, and values of a point and itself are infinite. On the processor each thread
        has blocks of its own, one after the other in the same memory.
        """
        rooms: dict[int, Tensor] = {}
        rows = min(rows, queries.shape[1])

        def task(first: int) -> T:
            part, thread = slice(first, first + rows), threading.get_ident()
            if thread not in rooms:
                rooms[thread] = self.tiles.new_empty(self.tiles[:, :, 0].numel() * rows * (GROUP + 1) // GROUP)
            return work(self._values(queries[:, part], rooms[thread], first if itself else None), part)

        tasks = [functools.partial(task, first) for first in range(0, queries.shape[1], rows)]
        return together(tasks, queries.device)

    def _values(self, queries: Tensor, room: Tensor, first: int | None) -> Values:
        """Compute values of queries ``(B, R, D)``; infinite between query r and point ``first + r``, unless None."""
        (b, r, _), (count, _, _, width) = queries.shape, self.tiles.shape
        centred = queries - self.centre
        squares = torch.linalg.vector_norm(centred, dim=2).square_()
        augmented = torch.cat([centred, torch.ones_like(centred[..., :1])], 2)
        size = count * b * r * width
        tiles = room[:size].view(count, b, r, width)
        minima = room[size : size + size // GROUP].view(b * r, count, width // GROUP)
        for t, columns in enumerate(self.tiles):
            torch.bmm(augmented, columns, out=tiles[t])
            low = 0 if first is None else max(first, t * self.width)
            if first is not None and low < min(first + r, (t + 1) * self.width):
                tiles[t, :, low - first :, low - t * self.width :].diagonal(dim1=1, dim2=2).fill_(torch.inf)
            if count * width > PARTITION_COLUMNS:
                torch.amin(tiles[t].reshape(b * r, GROUP, -1), 1, out=minima[:, t])
        slack = self.rounding * (squares + self.largest)
        return Values(tiles.flatten(1, 2), minima, squares.flatten(), slack.flatten())


def nearest_in_sets(sets: Sets, k: int, budget: int, images: Images | None = None) -> tuple[Tensor, Tensor]:
    """Return numbers and squared distances ``(B, Q, k)`` of the nearest valid points, ascending, ties by number.

    Each set has k valid points, not counting the query. ``budget``: bytes. ``images``: of a single set, whose products
    bound the distances.
    """
    if images is None and (found := nearest_directly(*sets, k)) is not None:
        return found
    (b, q, d), n = sets.queries.shape, sets.points.shape[1]
    query_bytes = (1.5 * n + (k + SPARE) * d) * sets.points.element_size()
    most = min(budget, PRODUCT_BYTES) if sets.points.device.type == "cpu" else budget
    items = max(1, int(most / (q * query_bytes)))
    if items < b:
        tasks = [functools.partial(nearest_in_sets, part, k, budget) for part in sets.split(items)]
        parts = together(tasks, sets.points.device)
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    products = sets if images is None else sets._replace(points=images.points[None], queries=images.queries[None])
    table = Table(products.points, sets.valid, rounding=None if images is None else images.unit)
    indices = torch.empty(b, q, k, dtype=torch.int64, device=sets.points.device)
    distances = sets.points.new_empty(b, q, k)

    def search(values: Values, part: slice) -> None:
        found = _nearest_of_block(values, sets.points, sets.queries[:, part], k)
        indices[:, part], distances[:, part] = (numbers.reshape(b, -1, k) for numbers in found)

    table.each_block(products.queries, sets.itself, table.rows(b * query_bytes, budget), search)
    return indices, distances


def pairs_in_sets(sets: Sets, reach: Tensor, budget: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return item, query, point and squared distance of all pairs with d² ≤ ``reach`` ``(B, N)`` of the point.

    ``budget``: bytes, for a block of the queries of all items. Pairs ascend by item, query and point.
    """
    b, n, _ = sets.points.shape
    table = Table(sets.points, sets.valid, reach)
    rounding = 4 * torch.finfo(reach.dtype).eps * reach.amax(1, keepdim=True)

    def search(values: Values, part: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        asked = sets.queries[:, part]
        limit = (values.slack - values.squares).view(b, -1) + rounding
        row, point = _true_places((values.tiles <= limit.reshape(-1, 1)).transpose(0, 1).flatten(1))
        item, query = row // asked.shape[1], row % asked.shape[1] + part.start
        if sets.itself:
            kept = sets.valid[item, query]
            item, query, point, row = item[kept], query[kept], point[kept], row[kept]
        distances = pair_distances(asked.flatten(0, 1), row, sets.points.flatten(0, 1), item * n + point)
        inside = distances <= reach[item, point]
        return item[inside], query[inside], point[inside], distances[inside]

    rows = table.rows(3 * b * n * reach.element_size(), budget)
    parts = table.each_block(sets.queries, sets.itself, rows, search)
    item, query, point, squares = (torch.cat(found) for found in zip(*parts, strict=True))
    if b > 1 and len(parts) > 1:  # each block has some queries of all items
        order = (item * sets.queries.shape[1] + query).argsort(stable=True)
        item, query, point, squares = item[order], query[order], point[order], squares[order]
    return item, query, point, squares


def _true_places(near: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and columns of the true entries of a matrix, row by row."""
    if near.device.type != "cpu":
        row, column = near.nonzero(as_tuple=True)
        return row, column
    place = torch.from_numpy(np.flatnonzero(near.numpy()))  # an eighth of the time of `nonzero`
    return place // near.shape[1], place % near.shape[1]


def _nearest_of_block(values: Values, points: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return numbers and squared distances ``(R, k)`` of the points ``(B, N, D)`` nearest to queries of all items."""
    n, count = points.shape[1], queries.shape[1]
    points, queries = points.flatten(0, 1), queries.flatten(0, 1)
    smallest, number = _smallest_values(values, min(k + SPARE, n))
    number = number.clamp_max(n - 1)  # columns of padding have infinite values and may stand for any point
    row = torch.arange(len(queries), device=queries.device)
    begin = row // count * n
    pairs = (row.repeat_interleave(number.shape[1]), points, (number + begin[:, None]).flatten())
    measured = pair_distances(queries, *pairs).reshape(number.shape).masked_fill_(smallest.isinf(), torch.inf)
    indices, distances = nearest_of_measured(measured, number, k)
    if number.shape[1] < n:
        others = smallest.amax(1) + values.squares - values.slack  # no other point is closer
        is_open = (distances[:, -1] >= others) & others.isfinite()
        if checks.look(is_open.any())[0]:
            limit = (distances[:, -1] + values.slack - values.squares).masked_fill(~is_open, -torch.inf)
            _search_within(values.tiles, limit.to(values.tiles.dtype), queries, points, begin, indices, distances)
    return indices, distances


def _smallest_values(values: Values, m: int) -> tuple[Tensor, Tensor]:
    """Return the m smallest values of each query and their columns ``(R, m)``, from the m groups of least minima."""
    minima = values.minima.flatten(1)
    if GROUP * minima.shape[1] <= PARTITION_COLUMNS or minima.shape[1] <= 2 * m:
        return smallest_of_rows(values.tiles.transpose(0, 1).flatten(1), m)
    row = torch.arange(len(minima), device=minima.device)[:, None]
    chosen = smallest_of_rows(minima, m)[1]
    _, r, width = values.tiles.shape
    groups = width // GROUP
    tile, group = (chosen // groups)[..., None], (chosen % groups)[..., None]
    member = group + torch.arange(GROUP, device=group.device) * groups
    place = ((tile * r + row[..., None]) * width + member).flatten(1)
    found, best = smallest_of_rows(values.tiles.view(-1).take(place), m)
    return found, (tile * width + member).flatten(1).gather(1, best)


def _search_within(
    tiles: Tensor, limit: Tensor, queries: Tensor, points: Tensor, begin: Tensor, indices: Tensor, distances: Tensor
) -> None:
    """Search rows among all points of a value ≤ limit ``(R,)``, by direct differences, and correct what was found."""
    (count, r, width), k = tiles.shape, indices.shape[1]
    # All points may be within the limit, copies of one: six numbers of 8 bytes for each, beside the value.
    step = rows_of_block(64 * count * width, points.device)
    for first in range(0, r, step):
        near = tiles[:, first : first + step] <= limit[first : first + step, None]
        line, column = _true_places(near.flatten(0, 1))
        row, point = line % near.shape[1] + first, line // near.shape[1] * width + column
        squares = pair_distances(queries, row, points, point + begin[row])
        nearer = squares <= distances[row, -1]
        row, point, squares = row[nearer], point[nearer], squares[nearer]
        order = point.argsort()
        order = order[squares[order].argsort(stable=True)]
        order = order[row[order].argsort(stable=True)]
        found = torch.bincount(row, minlength=r)
        rows = found.nonzero().flatten()
        chosen = order[(found.cumsum(0) - found)[rows, None] + torch.arange(k, device=rows.device)]
        indices[rows], distances[rows] = point[chosen], squares[chosen]


def smallest_of_rows(values: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return the m smallest values of each row ``(R, N)`` and their columns, ``(R, m)`` each, in no order.

    Short rows are parted by NumPy on the processor, with vector instructions; others by `torch.topk`.
    """
    r, n = values.shape
    if values.device.type == "cpu" and m < n <= PARTITION_COLUMNS:
        limit = np.partition(values.numpy(), m - 1, axis=1)[:, m - 1 : m]
        row, column = _true_places(values <= torch.from_numpy(limit))
        if len(row) == r * m:  # else others equal the m-th
            column = column.view(r, m)
            return values.gather(1, column), column
    smallest, column = values.topk(m, largest=False, sorted=False)
    return smallest, column
