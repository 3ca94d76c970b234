"""Exact neighbour search in blocks, on any device; approximate search through faiss. Chooses edges: no gradients.

Distances of a block come from one matrix product, −2 q·x + ‖x‖², on centred points. The m smallest of a row lie in
the m groups of columns with the smallest minima, so that a row of N columns is narrowed by levels of minima
instead of one `topk` over it. That product cancels for points far apart: where distances are not
further apart than its error, or small beside it, a few more candidates than asked for are measured again by direct
differences, and a row whose excluded points could still compete is searched by direct differences altogether. Ties go
to the smaller index. Squared distances are good to 0.1 % at least, mostly to round-off.
"""

from __future__ import annotations

import itertools
import logging
import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig import _checks

Metric = Literal["euclidean", "cosine"]
Backend = Literal["exact", "faiss"]

BUDGET = 384 * 2**20  # bytes of a search above its input
SPARE = 5  # candidates beyond k that are measured again
WHOLE = 4096  # points up to which rows of distances are taken whole, several items of a batch together
TILE = 2048  # columns whose minima are taken while they are in the cache
ROWS = 1024  # queries at a time against them, where the budget allows
FAN = 8  # columns to a group, groups to a group of groups, ...
LEVELS = 3  # ... and so on

logger = logging.getLogger("torch_lapeig")


class Neighbors(NamedTuple):
    """Neighbours of each query, ascending by distance, ties by index.

    ``indices`` int64 and ``squared_distances``, both ``(Q, k)`` or ``(B, Q, k)``; ``recall`` is the share of true
    neighbours found, 1 for an exact search and estimated on a sample for an approximate one.
    """

    indices: Tensor
    squared_distances: Tensor
    recall: float = 1.0


class NeighborPairs(NamedTuple):
    """Pairs of a query and a point in reach: batch ``item``, ``query`` and ``point``, int64, with squared distances."""

    item: Tensor
    query: Tensor
    point: Tensor
    squared_distances: Tensor


@torch.no_grad()
@_checks.full_precision
def nearest_neighbors(
    x: Tensor,
    k: int,
    queries: Tensor | None = None,
    *,
    metric: Metric = "euclidean",
    mask: Tensor | None = None,
    backend: Backend = "exact",
    budget: int = BUDGET,
) -> Neighbors:
    """The k nearest points of every query, or of every point among the others.

    Args:
        x: points ``(N, D)`` or ``(B, N, D)``, float32 or float64.
        k: neighbours, at most the number of valid points, less one without ``queries``.
        queries: ``(Q, D)`` or ``(B, Q, D)``; None: the points themselves, none its own neighbour, however many copies
            of it there are.
        metric: ``"euclidean"``, or ``"cosine"``: squared distances are then 2 (1 − cos).
        mask: bool ``(N,)`` or ``(B, N)``, False for padding, which is nobody's neighbour. Rows of masked points
            themselves mean nothing.
        backend: ``"exact"``, or ``"faiss"`` (extra ``ann``): HNSW below 10⁶ points, inverted lists above.
        budget: bytes of memory for the search: its table of points and a block of distances.

    Raises:
        TypeError, ValueError: wrong dtype, rank or option; non-finite points; k out of range; a zero vector with
            ``"cosine"``. ImportError: faiss asked for and not installed.
    """
    points, asked, valid = _prepare(x, queries, mask, metric)
    k, budget = _checks.check_count(k, "k"), _checks.check_count(budget, "budget")
    _checks.check_choice(backend, "backend", ("exact", "faiss"))
    itself = queries is None
    fewest = int(valid.sum(1).min())
    if k > fewest - itself:
        limit = "smaller than" if itself else "at most"
        raise ValueError(f"k must be {limit} the number of points, got k={k} with {fewest} points")
    if backend == "faiss":
        found = _approximate(points, k, asked, valid, itself)
    else:
        found = _exact(points, k, asked, valid, itself, budget)
    lead = (x if queries is None else queries).shape[:-1]
    return Neighbors(found.indices.reshape(*lead, k), found.squared_distances.reshape(*lead, k), found.recall)


@torch.no_grad()
@_checks.full_precision
def radius_neighbors(
    x: Tensor,
    radius: float | Tensor,
    queries: Tensor | None = None,
    *,
    metric: Metric = "euclidean",
    mask: Tensor | None = None,
    budget: int = BUDGET,
) -> NeighborPairs:
    """All pairs of a query and a point (or of two distinct points) at squared distance ≤ radius².

    Args:
        x, queries, metric, mask, budget: as for `nearest_neighbors`.
        radius: one number, or the reach of each point, of the shape of ``x`` without its last axis.

    Returns:
        Pairs in ascending order of item, query and point.
    """
    points, asked, valid = _prepare(x, queries, mask, metric)
    budget = _checks.check_count(budget, "budget")
    reach = _reach(radius, x, valid)
    itself = queries is None
    found = [_in_reach(points[b], reach[b], asked[b], valid[b], itself, budget) for b in range(len(points))]
    item = [torch.full_like(query, b) for b, (query, _, _) in enumerate(found)]
    query, point, d2 = (torch.cat(parts) for parts in zip(*found, strict=True))
    return NeighborPairs(torch.cat(item), query, point, d2)


@torch.no_grad()
@_checks.full_precision
def nearest_and_reaching(
    x: Tensor,
    k: int,
    radius: Tensor,
    queries: Tensor,
    *,
    metric: Metric = "euclidean",
    budget: int = BUDGET,
) -> tuple[Neighbors, NeighborPairs]:
    """`nearest_neighbors` and `radius_neighbors` of queries ``(Q, D)`` to points ``(N, D)`` from the same distances.

    ``radius`` ``(N,)`` is the reach of each point. Takes little longer than the nearest neighbours alone. Ties and
    pairs come in no particular order.
    """
    points, asked, valid = _prepare(x, queries, None, metric)
    k, budget = _checks.check_count(k, "k"), _checks.check_count(budget, "budget")
    if k > len(x):
        raise ValueError(f"k must be at most the number of points, got k={k} with {len(x)} points")
    reach = _reach(radius, x, valid)[0]
    order = _grouped(reach)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    found = _exact(points[:, order], k, asked, valid, False, budget, (reach[order], pairs))
    query, point, d2 = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    nearest = Neighbors(order[found.indices[0]], found.squared_distances[0])
    return nearest, NeighborPairs(torch.zeros_like(query), query, order[point], d2)


def _grouped(values: Tensor) -> Tensor:
    """An order of points in which the groups of columns of the tiles are of similar values: few must be looked into."""
    order = values.argsort(descending=True)
    whole = len(order) // TILE * TILE
    tiles = order[:whole].reshape(-1, TILE // FAN, FAN).mT
    return torch.cat([tiles.flatten(), order[whole:]])


def _reach(radius: float | Tensor, x: Tensor, valid: Tensor) -> Tensor:
    """Checked squared radius of each point, ``(B, N)``."""
    if isinstance(radius, Tensor):
        _checks.check_floating(radius, "radius")
        if radius.shape != x.shape[:-1] or not (radius.reshape(valid.shape)[valid] >= 0).all():
            raise ValueError(
                f"radius must be non-negative, one for each point, of shape {tuple(x.shape[:-1])}, got "
                f"{tuple(radius.shape)}"
            )
        reach = torch.where(valid, radius.reshape(valid.shape).to(x.dtype), 0).square()
    else:
        radius = _checks.check_positive(radius, "radius")
        reach = x.new_full(valid.shape, radius).square()
    return reach.clamp_max(torch.finfo(reach.dtype).max / 8)  # farther than any two points


def squared_distances(queries: Tensor, references: Tensor) -> Tensor:
    """‖q − x‖² ``(..., Q, N)`` of ``(..., Q, D)`` and ``(..., N, D)``, by direct differences, without gradients."""
    return torch.cdist(queries.detach(), references.detach(), compute_mode="donot_use_mm_for_euclid_dist").square_()


def _prepare(x: Tensor, queries: Tensor | None, mask: Tensor | None, metric: str) -> tuple[Tensor, Tensor, Tensor]:
    """Checked points ``(B, N, D)``, queries ``(B, Q, D)`` and mask ``(B, N)``; unit vectors for ``"cosine"``."""
    _checks.check_floating(x, "x")
    _checks.check_choice(metric, "metric", ("euclidean", "cosine"))
    if mask is not None:
        _checks.check_mask(mask, x)
        x = torch.where(mask[..., None], x, 0)
    _checks.check_points(x, min_points=1 if x.ndim == 3 else 2)  # items of a batch may be of any size
    x = _checks.primal(x)
    points = x.reshape(-1, *x.shape[-2:])
    valid = points.new_ones(points.shape[:2], dtype=torch.bool) if mask is None else mask.reshape(points.shape[:2])
    asked = points
    if queries is not None:
        _checks.check_points(queries, "queries", min_points=1)
        queries = _checks.primal(queries)
        if queries.dtype != x.dtype or queries.shape[-1] != x.shape[-1] or queries.shape[:-2] != x.shape[:-2]:
            raise ValueError(
                f"queries must go with x of shape {tuple(x.shape)} and {x.dtype}, got {tuple(queries.shape)} and "
                f"{queries.dtype}"
            )
        asked = queries.reshape(-1, *queries.shape[-2:])
    # Squared distances of such points, and what is added to them, stay finite.
    largest = math.sqrt(torch.finfo(x.dtype).max / (64 * x.shape[-1]))
    given = {"x": points} if queries is None else {"x": points, "queries": asked}
    for name, values in given.items():
        lowest, highest = values.aminmax()
        if (size := torch.maximum(-lowest, highest)) > largest:
            raise ValueError(
                f"{name} must be at most {largest:.1e} in size for squared distances in {x.dtype}, got {size:.1e}; "
                "rescale the points"
            )
    if metric == "cosine":
        points, asked = _unit(points, valid), _unit(asked, None if queries is not None else valid)
    return points, asked, valid


def _unit(x: Tensor, valid: Tensor | None) -> Tensor:
    size = x.norm(dim=-1, keepdim=True)
    zero = size[..., 0] == 0 if valid is None else (size[..., 0] == 0) & valid
    if zero.any():
        raise ValueError(f'metric="cosine" needs vectors of positive length, got {int(zero.sum())} zero vectors')
    return x / torch.where(size > 0, size, 1)


class _Table:
    """Points prepared for blocks of approximate squared distances: d² ≈ ‖q‖² + [−2x, ‖x‖² − reach] · [q, 1].

    ``slack`` bounds the error of such a distance, from the rounding of a product of D terms.
    """

    def __init__(self, x: Tensor, valid: Tensor, reach: Tensor | float = 0.0, padding: int = 0) -> None:
        *lead, n, d = x.shape
        count = valid.sum(-1, keepdim=True).clamp_min(1)
        self.centre = (x.sum(-2) / count)[..., None, :]
        # In place, as a table of millions of points is the larger part of the memory of a search.
        self.columns = x.new_empty(*lead, n + padding, d + 1)
        self.columns[..., n:, :d] = 0
        # Rows of padding hold finite numbers, whatever: the infinity in the last column is what counts.
        centred = torch.sub(x, self.centre, out=self.columns[..., :n, :d])
        squares = _squares(centred)
        self.largest = squares.masked_fill(~valid, 0).amax(-1)
        centred.mul_(-2)
        self.columns[..., d] = torch.inf
        self.columns[..., :n, d] = (squares - reach).masked_fill(~valid, torch.inf)

    def rows(self, queries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[q, 1] and ‖q‖² of queries ``(..., Q, D)``, and the slack ``(..., Q)``."""
        centred = queries - self.centre
        squares = _squares(centred)
        unit = _product_precision(queries.dtype) * (4 + math.sqrt(queries.shape[-1]))
        slack = unit * (squares + self.largest[..., None])
        return torch.cat([centred, torch.ones_like(centred[..., :1])], -1), squares, slack


def _squares(x: Tensor) -> Tensor:
    """‖x‖² of rows, without a copy of all their entries."""
    squares: Tensor = torch.linalg.vector_norm(x, dim=-1).square_()
    return squares


def _product_precision(dtype: torch.dtype) -> float:
    """Relative rounding of a product: coarser where the user lets torch take shortcuts in float32 (TF32, bf16)."""
    if dtype == torch.float32:
        return {"highest": torch.finfo(dtype).eps, "high": 2.0**-10}.get(torch.get_float32_matmul_precision(), 2.0**-7)
    return torch.finfo(dtype).eps


# Squared reach of the points of a single item, and a list to append the pairs in reach to: query, point, distance.
Reach = tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]


def _exact(
    points: Tensor, k: int, asked: Tensor, valid: Tensor, itself: bool, budget: int, reach: Reach | None = None
) -> Neighbors:
    b, n, d = points.shape
    if n <= WHOLE:  # whole rows, several items at once
        row_bytes = (n + (k + SPARE) * d) * points.element_size()
        step = max(1, budget // (asked.shape[1] * row_bytes))
        parts = [
            _small(points[i : i + step], k, asked[i : i + step], valid[i : i + step], itself, budget, reach)
            for i in range(0, b, step)
        ]
    else:
        parts = [_large(points[i], k, asked[i], valid[i], itself, budget, reach) for i in range(b)]
    return Neighbors(torch.cat([p.indices for p in parts]), torch.cat([p.squared_distances for p in parts]))


def _small(
    points: Tensor, k: int, asked: Tensor, valid: Tensor, itself: bool, budget: int, reach: Reach | None
) -> Neighbors:
    """Whole rows of distances, for items ``(B, N, D)`` together and blocks of queries."""
    b, n, d = points.shape
    table = _Table(points, valid)
    rows = max(1, budget // (b * (n + (k + SPARE) * d) * points.element_size()))
    found = []
    for start in range(0, asked.shape[1], rows):
        block = asked[:, start : start + rows]
        augmented, squares, slack = table.rows(block)
        d2 = augmented @ table.columns.mT
        if itself:
            d2.diagonal(offset=start, dim1=-2, dim2=-1).fill_(torch.inf)
        values, candidates = d2.topk(min(k + SPARE, n), largest=False, sorted=False)
        if values.shape[-1] > k:
            indices, distances, certain = _apart(candidates, values, squares, slack, k)
        else:  # all points are neighbours
            indices, distances, certain = candidates.clone(), values.clone(), torch.zeros_like(slack, dtype=torch.bool)
        item, row = (~certain).nonzero(as_tuple=True)
        if len(item):
            queries, chosen = block[item, row], candidates[item, row]
            rest = (t[item, row] for t in (values, squares, slack))
            neighbours = points[item[:, None], chosen]
            measured = _measured(neighbours, queries, chosen, *rest, k=k, complete=k + SPARE >= n)
            indices[item, row], distances[item, row] = measured[:2]
            item, row = item[~measured[2]], row[~measured[2]]
            for i in item.unique().tolist():
                left = row[item == i]
                limit = distances[i, left, -1] + (slack - squares)[i, left]
                indices[i, left], distances[i, left] = _all_within(d2[i], left, limit, block[i], points[i], k)
        found.append((indices, distances))
        if reach is not None:
            limit = (slack + _reach_slack(reach[0]) - squares)[0]
            near = (d2[0] <= reach[0] + limit[:, None]).nonzero(as_tuple=True)
            reach[1].append(_in_reach_of(points[0], reach[0], block[0], near, start))
    return Neighbors(torch.cat([f[0] for f in found], 1), torch.cat([f[1] for f in found], 1))


def _large(
    points: Tensor, k: int, asked: Tensor, valid: Tensor, itself: bool, budget: int, reach: Reach | None
) -> Neighbors:
    """Tiles of columns whose minima, level by level, lead to the candidates of each row."""
    search = _Tiles(points, valid, k + SPARE, budget)
    indices = asked.new_empty((len(asked), k), dtype=torch.int64)
    distances = asked.new_empty((len(asked), k))
    for start in range(0, len(asked), search.rows):
        block = asked[start : start + search.rows]
        augmented, squares, slack = search.table.rows(block)
        candidates, values = search.candidates(augmented, k + SPARE, start if itself else None)
        candidates = candidates.clamp_max(len(points) - 1)  # of the padding, whose distance is infinite
        stop = start + len(block)
        indices[start:stop], distances[start:stop], certain = _apart(candidates, values, squares, slack, k)
        open_rows = (~certain).nonzero().flatten()
        if len(open_rows):
            queries, chosen = block[open_rows], candidates[open_rows]
            rest = (t[open_rows] for t in (values, squares, slack))
            found = _measured(points[chosen], queries, chosen, *rest, k=k, complete=False)
            indices[start + open_rows], distances[start + open_rows] = found[:2]
            left = open_rows[~found[2]]
            limit = distances[start + left, -1] + (slack - squares)[left]
            within = _all_within(search.levels[0], left, limit, block, points, k)
            indices[start + left], distances[start + left] = within
        if reach is not None:
            near = search.in_reach(reach[0], slack + _reach_slack(reach[0]) - squares)
            reach[1].append(_in_reach_of(points, reach[0], block, near, start))
    return Neighbors(indices[None], distances[None])


class _Tiles:
    """Blocks of rows against tiles of columns, with room for their distances and minima."""

    def __init__(self, points: Tensor, valid: Tensor, m: int, budget: int) -> None:
        count = -(-len(points) // TILE)
        self.table = _Table(points, valid, padding=count * TILE - len(points))
        self.tiles = self.table.columns.reshape(count, TILE, -1).mT
        # A row is its distances, their minima, and m candidates to measure again.
        row_bytes = (count * TILE * FAN / (FAN - 1) + m * points.shape[1]) * points.element_size()
        left = budget - self.table.columns.numel() * points.element_size()
        rows = self.rows = max(16, min(ROWS, int(left / row_bytes)))
        # Distances, then minima of FAN of the level before; the last by row, to be searched as a whole.
        self.levels = [points.new_empty(count, rows, TILE // FAN**level) for level in range(LEVELS)]
        self.top = points.new_empty(rows, count, TILE // FAN**LEVELS)

    def candidates(self, augmented: Tensor, m: int, first: int | None) -> tuple[Tensor, Tensor]:
        """Columns ``(R, m)`` of the m smallest distances of each row, and those; row r is not column ``first + r``."""
        r = len(augmented)
        for t, tile in enumerate(self.tiles):
            d2 = torch.mm(augmented, tile, out=self.levels[0][t, :r])
            if first is not None and (t * TILE < first + r and first < (t + 1) * TILE):
                low = max(first, t * TILE)
                d2[low - first :, low - t * TILE :].diagonal().fill_(torch.inf)
            for finer, coarser in itertools.pairwise([*(level[t, :r] for level in self.levels), self.top[:r, t]]):
                torch.amin(finer.reshape(r, FAN, -1), 1, out=coarser)
        tops = self.top[:r].flatten(1)
        values, chosen = tops.topk(min(m, tops.shape[1]), largest=False, sorted=False)
        tile, column = chosen // self.top.shape[2], chosen % self.top.shape[2]
        for level in reversed(self.levels):
            tile, column, values = self._narrowed(level, tile, column, m)
        return tile * TILE + column, values

    def in_reach(self, reach: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and columns of distances d² ≤ reach + limit, ``(N,)`` and ``(R,)``; by the minima of groups first."""
        minima = self.levels[1][:, : len(limit)]
        count, _, width = self.levels[0].shape
        reaches = torch.nn.functional.pad(reach, (0, count * width - len(reach)), value=-torch.inf).reshape(count, -1)
        farthest = reaches.reshape(count, FAN, -1).amax(1)
        tile, row, group = (minima <= farthest[:, None] + limit[:, None]).nonzero(as_tuple=True)
        member = group[:, None] + torch.arange(FAN, device=reach.device) * (width // FAN)
        column = tile[:, None] * width + member
        place = (tile * self.rows + row)[:, None] * width + member
        near = self.levels[0].view(-1).take(place) <= reaches.flatten().take(column) + limit[row][:, None]
        return row[:, None].expand_as(near)[near], column[near]

    @staticmethod
    def _narrowed(level: Tensor, tile: Tensor, column: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of the FAN members of each chosen group, the m smallest of each row: tiles, columns, values."""
        r, (_, rows, width) = len(tile), level.shape
        members = column[:, :, None] + torch.arange(FAN, device=tile.device) * (width // FAN)
        row = torch.arange(r, device=tile.device)[:, None]
        places = (((tile * rows + row) * width)[:, :, None] + members).flatten(1)
        values, best = level.view(-1).take(places).topk(min(m, places.shape[1]), largest=False, sorted=False)
        return tile.gather(1, best // FAN), members.flatten(1).gather(1, best), values


def _apart(
    candidates: Tensor, approximate: Tensor, squares: Tensor, slack: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The k nearest by approximate distances, and whether those are too far apart for their error to matter."""
    values, order = approximate.topk(k + 1, largest=False)
    certain = (values.diff(dim=-1) > 2 * slack[..., None]).all(-1) & (values[..., 0] + squares > 1e3 * slack)
    return candidates.gather(-1, order[..., :k]), values[..., :k] + squares[..., None], certain


def _measured(
    neighbours: Tensor,
    queries: Tensor,
    candidates: Tensor,
    approximate: Tensor,
    squares: Tensor,
    slack: Tensor,
    *,
    k: int,
    complete: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The k nearest candidates by direct differences, and whether no other point can be among the k nearest.

    Candidates ``(..., Q, m)`` are those of the smallest approximate distances, so that every other point is at least
    as far as the farthest of them, up to the slack. ``complete``: there are no other points.
    """
    d2 = squared_distances(queries[..., None, :], neighbours).squeeze(-2)
    d2 = d2.masked_fill(approximate.isinf(), torch.inf)
    by_index = candidates.argsort(-1)
    by_distance = d2.gather(-1, by_index).argsort(dim=-1, stable=True)[..., :k]
    order = by_index.gather(-1, by_distance)
    indices, distances = candidates.gather(-1, order), d2.gather(-1, order)
    beyond = approximate.amax(-1) + squares - slack
    sure = (distances[..., -1] < beyond) | approximate.isinf().any(-1)
    return indices, distances, sure | complete


def _all_within(
    approximate: Tensor, rows: Tensor, limit: Tensor, queries: Tensor, points: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The k nearest of some rows among all points of approximate distance ≤ limit, by direct differences.

    ``approximate`` holds the distances of all rows, ``(R, N)`` or in tiles ``(T, R, width)``.
    """
    indices = torch.empty(len(rows), k, dtype=torch.int64, device=rows.device)
    distances = queries.new_empty(len(rows), k)
    step = max(1, 2**22 // len(points))
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        d2 = approximate[piece] if approximate.ndim == 2 else approximate[:, piece].transpose(0, 1).flatten(1)
        row, point = (d2 <= limit[start : start + step, None]).nonzero(as_tuple=True)
        exact = pair_distances(queries, piece[row], points, point)
        by_distance = exact.argsort(stable=True)
        order = by_distance[row[by_distance].argsort(stable=True)]
        count = torch.bincount(row, minlength=len(piece))
        chosen = order[(count.cumsum(0) - count)[:, None] + torch.arange(k, device=rows.device)]
        indices[start : start + step], distances[start : start + step] = point[chosen], exact[chosen]
    return indices, distances


def _direct(points: Tensor, query: Tensor, valid: Tensor, own: int | None, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of all points to one query by direct differences, ties by index."""
    d2 = squared_distances(query[None], points)[0].masked_fill(~valid, torch.inf)
    if own is not None:
        d2[own] = torch.inf
    farthest = d2.kthvalue(k).values
    within = (d2 <= farthest).nonzero().flatten()
    order = d2[within].argsort(stable=True)[:k]
    return within[order], d2[within][order]


def _in_reach(
    points: Tensor, reach: Tensor, asked: Tensor, valid: Tensor, itself: bool, budget: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, point and squared distance of all pairs with d² ≤ reach of the point."""
    table = _Table(points, valid, reach)
    rows = max(1, budget // (4 * len(points) * points.element_size()))
    found = []
    for start in range(0, len(asked), rows):
        block = asked[start : start + rows]
        augmented, squares, slack = table.rows(block)
        near = augmented @ table.columns.mT <= (slack + _reach_slack(reach) - squares)[:, None]
        near &= valid
        if itself:
            near.diagonal(offset=start).fill_(False)
            near &= valid[start : start + rows, None]
        found.append(_in_reach_of(points, reach, block, near.nonzero(as_tuple=True), start))
    query, point, d2 = (torch.cat(parts) for parts in zip(*found, strict=True))
    return query, point, d2


def _in_reach_of(
    points: Tensor, reach: Tensor, block: Tensor, near: tuple[Tensor, ...], start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of pairs of a query and a point those with d² ≤ reach by direct differences; queries count from ``start``."""
    query, point = near
    d2 = pair_distances(block, query, points, point)
    inside = d2 <= reach[point]
    return query[inside] + start, point[inside], d2[inside]


def _reach_slack(reach: Tensor) -> Tensor:
    """Rounding of ‖x‖² − reach."""
    return 4 * torch.finfo(reach.dtype).eps * reach.amax()


def pair_distances(queries: Tensor, query: Tensor, points: Tensor, point: Tensor) -> Tensor:
    """Squared distances ``(E,)`` of pairs by direct differences, without gradients, in pieces."""
    # Of a size that stays in a processor's cache, which is several times as fast.
    size = 2**17 if queries.device.type == "cpu" else 2**22
    pairs = zip(*(index.split(max(1, size // points.shape[1])) for index in (query, point)), strict=True)
    differences = (queries.index_select(0, i).sub_(points.index_select(0, j)) for i, j in pairs)
    return torch.cat([torch.linalg.vecdot(d, d) for d in differences])


def _approximate(points: Tensor, k: int, asked: Tensor, valid: Tensor, itself: bool) -> Neighbors:
    """faiss, each item on its own; candidates are measured again by direct differences."""
    found = [_faiss(points[b], k, asked[b], valid[b], itself) for b in range(len(points))]
    recall = min(f.recall for f in found)
    return Neighbors(torch.stack([f.indices for f in found]), torch.stack([f.squared_distances for f in found]), recall)


def _faiss(points: Tensor, k: int, asked: Tensor, valid: Tensor, itself: bool) -> Neighbors:
    """One item. The index is built on the CPU in float32, whatever the device of the points."""
    try:
        import faiss  # an extra, and slow to import
    except ImportError as error:
        raise ImportError('backend="faiss" needs faiss; pip install "torch-lapeig[ann]"') from error
    numbers = valid.nonzero().flatten()
    base = points[numbers].float().cpu().contiguous().numpy()
    index = _faiss_index(faiss, len(base), base.shape[1])
    if not index.is_trained:
        index.train(base)
    index.add(base)
    spare = min(k + itself + SPARE, len(base))
    raw = torch.from_numpy(index.search(asked.float().cpu().contiguous().numpy(), spare)[1]).to(points.device)
    candidates = torch.where(raw < 0, -1, numbers[raw.clamp_min(0)])
    missing = candidates < 0
    if itself:
        missing |= candidates == torch.arange(len(asked), device=points.device)[:, None]
    parts = []
    for rows in torch.arange(len(asked), device=points.device).split(max(1, 2**22 // (spare * points.shape[1]))):
        infinite = torch.zeros_like(candidates[rows], dtype=points.dtype).masked_fill(missing[rows], torch.inf)
        zero = points.new_zeros(len(rows))
        near = points[candidates[rows].clamp_min(0)]
        parts.append(_measured(near, asked[rows], candidates[rows], infinite, zero, zero, k=k, complete=True)[:2])
    indices, distances = (torch.cat(p) for p in zip(*parts, strict=True))
    short = distances[:, -1].isinf().nonzero().flatten().tolist()  # the index gave fewer than k: search these in full
    for row in short:
        indices[row], distances[row] = _direct(points, asked[row], valid, row if itself else None, k)
    recall = _recall(points, k, asked, valid, itself, indices)
    logger.info("faiss %s found %.2f %% of %d neighbours (sample)", type(index).__name__, 100 * recall, k)
    return Neighbors(indices, distances, recall)


def _faiss_index(faiss: Any, n: int, d: int) -> Any:
    """HNSW below 10⁶ points, inverted lists of about √n cells above; the settings aim at a recall above 99 %."""
    if n < 10**6:
        index = faiss.IndexHNSWFlat(d, 32)
        index.hnsw.efConstruction, index.hnsw.efSearch = 80, 96
        return index
    cells = int(4 * math.sqrt(n))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, cells)
    index.nprobe = max(16, cells // 64)
    return index


def _recall(points: Tensor, k: int, asked: Tensor, valid: Tensor, itself: bool, indices: Tensor) -> float:
    """Share of true neighbours among those found, on up to 200 queries spread over all."""
    sample = torch.linspace(0, len(asked) - 1, min(200, len(asked)), device=points.device).long()
    hits = 0
    for row in sample.tolist():
        true, _ = _direct(points, asked[row], valid, row if itself else None, k)
        hits += int(torch.isin(indices[row], true).sum())
    return hits / (k * len(sample))
