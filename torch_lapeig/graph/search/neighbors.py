"""Nearest neighbours and neighbours within reach: exact, on any device; approximate through faiss. No gradients.

Large sets on the processor are searched by tiles, which exclude most points (`tiles`). Other sets, and data of which
tiles exclude too little, are searched by all distances (`exact`). Ties go to the smaller index.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.graph.search import exact
from torch_lapeig.graph.search.approximate import approximate_neighbors
from torch_lapeig.graph.search.exact import NeighborPairs as NeighborPairs
from torch_lapeig.graph.search.tiles import TILED_SET, Tiles, without_own
from torch_lapeig.support import checks, precision
from torch_lapeig.support.tuning import budget_of, rows_of_block

Backend = Literal["exact", "faiss"]
check_budget = functools.partial(checks.check_count, name="budget", maximum=2**62)


class Neighbors(NamedTuple):
    """Neighbours of each query, ascending by distance, ties by index.

    Attributes:
        indices: int64 ``(Q, k)`` or ``(B, Q, k)``.
        squared_distances: of the points' dtype and the shape of ``indices``.
        recall: share of the true neighbours found, 1 after an exact search, estimated on a sample after an approximate
            one.

    >>> found = nearest_neighbors(torch.tensor([[0.0], [1.0], [3.0]]), 1)
    >>> found.indices.tolist(), found.squared_distances.tolist(), found.recall
    ([[1], [0], [1]], [[1.0], [1.0], [4.0]], 1.0)
    """

    indices: Tensor
    squared_distances: Tensor
    recall: float = 1.0


@torch.no_grad()
@precision.full_precision
def nearest_neighbors(
    x: Tensor,
    k: int,
    queries: Tensor | None = None,
    *,
    metric: exact.Metric = "euclidean",
    mask: Tensor | None = None,
    backend: Backend = "exact",
    recall: float | None = None,
    budget: int | None = None,
) -> Neighbors:
    """Find the k nearest points of every query, or of every point among the others.

    Args:
        x: points ``(N, D)`` or ``(B, N, D)``, float32 or float64.
        k: number of neighbours, from 1 to the number of valid points; without ``queries`` to one less.
        queries: ``(Q, D)`` or ``(B, Q, D)``, of the dtype of ``x``; None: the points themselves. Then no point is its
            own neighbour, however many copies of it there are.
        metric: ``"euclidean"``, or ``"cosine"``: squared distances are then 2 (1 − cos).
        mask: bool ``(N,)`` or ``(B, N)``, False for padding, which is nobody's neighbour. The rows of padding in the
            result are undefined.
        backend: ``"exact"``, or ``"faiss"`` (extra ``ann``), an approximate search with ``recall=0.99``.
        recall: share of the true neighbours to find, in (0, 1]; below 1 the search is approximate, through faiss (extra
            ``ann``). The recall is measured on a sample and returned; where the exact search costs less, it is done.
        budget: bytes of memory for the search: its table of points and a block of distances; default: by device.

    Warns: ConvergenceWarning: the measured recall is below the requested one. GraphWarning: squared distances of
    distinct points underflow, so that their order is not known.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> nearest_neighbors(x, 2, queries=torch.tensor([[2.5]])).indices
    tensor([[2, 1]])
    """
    sets = prepare(x, queries, mask, metric)
    k, asked = checks.check_count(k, "k"), check_recall(backend, recall)
    budget = None if budget is None else check_budget(budget)
    fewest = x.shape[-2] if mask is None else int(sets.valid.sum(1).min())
    if k > fewest - sets.itself:
        limit = "smaller than" if sets.itself else "at most"
        raise ValueError(f"k must be {limit} the number of points, got k={k} with {fewest} points")
    return _nearest(sets, (x if queries is None else queries).shape[:-1], k, asked, budget)


@torch.no_grad()
@precision.full_precision
def nearest_or_all(
    x: Tensor, k: int, metric: exact.Metric, mask: Tensor | None, backend: Backend, recall: float | None
) -> Neighbors:
    """Return the k nearest of each point, or all others in smaller sets: what these lack is infinitely far."""
    sets, k = prepare(x, None, mask, metric), min(k, max(x.shape[-2] - 1, 1))
    return _nearest(sets, x.shape[:-1], k, check_recall(backend, recall), None)


def _nearest(sets: exact.Sets, shape: tuple[int, ...], k: int, recall: float, budget: int | None) -> Neighbors:
    found, share = (_exact(sets, k, budget), 1.0) if recall == 1 else _approximate(sets, k, recall, budget)
    _warn_of_underflow(sets, found)
    return Neighbors(found.indices.reshape(*shape, k), found.squared_distances.reshape(*shape, k), share)


@torch.no_grad()
@precision.full_precision
def radius_neighbors(
    x: Tensor,
    radius: float | Tensor,
    queries: Tensor | None = None,
    *,
    metric: exact.Metric = "euclidean",
    mask: Tensor | None = None,
    budget: int | None = None,
) -> NeighborPairs:
    """Find all pairs of a query and a point (or two distinct points) at distance ≤ radius, by item, query and point.

    Args:
        x, queries, metric, mask, budget: as for `nearest_neighbors`.
        radius: one positive number, or the reach ≥ 0 of each point, of the shape of ``x`` without its last axis.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> radius_neighbors(x, 1.0, queries=torch.tensor([[2.5]])).point
    tensor([2])
    """
    sets = prepare(x, queries, mask, metric)
    most = budget_of(x.device).search
    budget = most if budget is None else check_budget(budget)
    reach = _squared_reach(radius, x, sets.valid)
    (b, n, _), q = sets.points.shape, sets.queries.shape[1]
    count = 1 if n >= TILED_SET else max(1, budget // (4 * q * n * x.element_size()))
    parts = zip(range(0, b, count), sets.split(count), reach.split(count), strict=True)
    found = [(begin, _pairs_of_items(some, reaches, budget)) for begin, some, reaches in parts]
    return NeighborPairs.cat([pairs._replace(item=pairs.item + begin) for begin, pairs in found])


def check_recall(backend: Any, recall: Any) -> float:
    """Return the recall that two options request, 1 for an exact search."""
    checks.check_choice(backend, "backend", ("exact", "faiss"))
    if recall is None:
        return 0.99 if backend == "faiss" else 1.0
    if (asked := checks.check_positive(recall, "recall")) > 1:
        raise ValueError(f"recall must be in (0, 1], got {recall}")
    return asked


def _approximate(sets: exact.Sets, k: int, recall: float, budget: int | None) -> tuple[exact.Nearest, float]:
    """Return the neighbours ``(B, Q, k)`` that an approximate search finds, and the smallest recall of the items."""

    def of_rows(item: exact.Sets, rows: Tensor) -> exact.Nearest:
        """Return the neighbours of some queries; a query that is a point of the set is not its neighbour."""
        if len(rows) == item.queries.shape[1]:
            return _exact(item, k, budget).first()
        some = item._replace(queries=item.queries[:, rows], itself=False)
        found = _exact(some, k + item.itself, budget).first()
        return without_own(found, rows) if item.itself else found

    items = sets.split(1)
    found, shares = zip(
        *(approximate_neighbors(x, k, recall, functools.partial(of_rows, x)) for x in items), strict=True
    )
    return exact.Nearest(*map(torch.stack, zip(*found, strict=True))), min(shares)


def _squared_reach(radius: float | Tensor, x: Tensor, valid: Tensor) -> Tensor:
    """Return the checked squared radius of each point, ``(B, N)``."""
    if isinstance(radius, Tensor):
        checks.check_floating(radius, "radius")
        if radius.shape != x.shape[:-1] or not (radius.reshape(valid.shape)[valid] >= 0).all():
            expected = f"one for each point, of shape {tuple(x.shape[:-1])}"
            raise ValueError(f"radius must be non-negative, {expected}, got {tuple(radius.shape)}")
        radii = torch.where(valid, radius.reshape(valid.shape), 0)
    else:
        radius, least = checks.check_positive(radius, "radius"), math.sqrt(torch.finfo(x.dtype).tiny)
        if radius < least:
            expected = f"at least {least:.1e} for squares in {x.dtype}"
            raise ValueError(f"radius must be {expected}, got {radius:.1e}; rescale the points")
        radii = exact.radii_no_less(radius, x, valid.shape)
    reach = radii.double().square().to(x.dtype)
    return reach.clamp_max(torch.finfo(x.dtype).max / 8)  # more than any squared distance


def _exact(sets: exact.Sets, k: int, budget: int | None) -> exact.Nearest:
    """Return the exact neighbours ``(B, Q, k)``: small sets are searched together, large sets one by one."""
    if sets.points.device.type != "cpu" or sets.points.shape[1] < TILED_SET:
        return exact.nearest_in_sets(sets, k, budget)
    found = [_nearest_of_many(item, k, budget) for item in sets.split(1)]
    return exact.Nearest(*map(torch.stack, zip(*found, strict=True)))


def _nearest_of_many(item: exact.Sets, k: int, budget: int | None) -> exact.Nearest:
    """Return the neighbours ``(Q, k)`` of one item, searched among its valid points without superfluous copies."""
    (points,), (queries,), (valid,), itself = item
    if int(valid.sum()) < k + itself:  # of which all are neighbours
        return exact.nearest_in_sets(item, k, budget).first()
    kept = first_copies(points, valid, k + 1 + itself)
    if len(kept) == len(points):
        return _by_tiles_or_all(points, None if itself else queries, k, budget)
    found = _by_tiles_or_all(points[kept], queries, k + itself, budget)
    found = found._replace(indices=kept[found.indices])
    return without_own(found, torch.arange(len(queries))) if itself else found


def first_copies(points: Tensor, valid: Tensor, most: int) -> Tensor:
    """Return ascending numbers of valid points ``(N, D)``, without copies beyond the first ``most`` of each point."""
    # A search can find only these: ties go to the smaller index. Measuring each pair of copies took 12 times as long
    # with 6000 copies among 20,000 × 50.
    numbers = valid.nonzero().flatten()
    x = points[numbers] + 0.0  # zeros of one sign
    bits = x.view(torch.int32 if x.dtype == torch.float32 else torch.int64)
    odd = torch.randint(-(2**62), 2**62, (x.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    step = rows_of_block(16 * x.shape[1], x.device, "cache")
    key = torch.cat([(part * odd).sum(1) for part in bits.split(step)])  # a hash modulo 2⁶⁴: equal for equal rows
    key, order = key.sort(stable=True)
    begins = torch.ones(len(x), dtype=torch.bool)
    begins[1:] = key.diff() != 0
    if begins.all():
        return numbers
    begins[1:] |= (x[order[1:]] != x[order[:-1]]).any(1)  # different points may share a key
    place = torch.arange(len(x))
    rank = place - torch.where(begins, place, 0).cummax(0).values  # the number of copies before each one
    return numbers[order[rank < most].sort().values]


def _by_tiles_or_all(points: Tensor, queries: Tensor | None, k: int, budget: int | None) -> exact.Nearest:
    """Return the points nearest to queries, or to each other point, ``(Q, k)``."""
    asked, images = points if queries is None else queries, None
    if _is_large(points, asked):
        found = Tiles(points, k).nearest(k, queries, budget)
        if found is not None:
            return found
        if points.shape[1] >= exact.IMAGED_DIMENSIONS:
            images = exact.images_that_pay(points, asked, queries is None, k, budget)
    sets = exact.Sets(points[None], asked[None], points.new_ones(1, len(points), dtype=torch.bool), queries is None)
    return exact.nearest_in_sets(sets, k, budget, images).first()


def _is_large(points: Tensor, queries: Tensor) -> bool:
    """Return whether a search of points ``(N, D)`` takes so long that preparing the points pays."""
    return points.device.type == "cpu" and min(len(points), 2 * len(queries)) >= TILED_SET


def _pairs_of_items(sets: exact.Sets, reach: Tensor, budget: int) -> NeighborPairs:
    """Return all pairs with d² ≤ ``reach`` ``(B, N)`` of the point."""
    numbers = sets.valid[0].nonzero().flatten()
    if len(sets.points) == 1 and _is_large(numbers, sets.queries[0]):
        queries = None if sets.itself else sets.queries[0]
        found = Tiles(sets.points[0, numbers]).within(reach[0, numbers], queries, budget)
        if found is not None:
            query = numbers[found.query] if sets.itself else found.query
            return found._replace(query=query, point=numbers[found.point])
    return exact.pairs_in_sets(sets, reach, budget)


def prepare(x: Tensor, queries: Tensor | None, mask: Tensor | None, metric: exact.Metric) -> exact.Sets:
    """Return the checked arguments of a search, with the points of the metric, see `measured`."""
    checks.check_choice(metric, "metric", ("euclidean", "cosine"))
    checks.check_outside_func(x, "x")
    x = checks.primal(checks.check_points(x, mask=mask, is_squared=True))
    points = x.reshape(-1, *x.shape[-2:])
    valid = points.new_ones(points.shape[:2], dtype=torch.bool) if mask is None else mask.reshape(points.shape[:2])
    if queries is None:
        points = exact.measured(points, metric, valid)
        return exact.Sets(points, points, valid, True)
    queries = checks.primal(checks.check_points(queries, "queries", min_points=1, is_squared=True))
    if queries.dtype != x.dtype or queries.shape[-1] != x.shape[-1] or queries.shape[:-2] != x.shape[:-2]:
        got = f"{tuple(queries.shape)} and {queries.dtype}"
        raise ValueError(f"queries must go with x of shape {tuple(x.shape)} and {x.dtype}, got {got}")
    asked = queries.reshape(-1, *queries.shape[-2:])
    return exact.Sets(exact.measured(points, metric, valid), exact.measured(asked, metric), valid, False)


def _warn_of_underflow(sets: exact.Sets, found: exact.Nearest) -> None:
    """Warn where the squared distance of distinct neighbours is no normal number."""
    distances = found.squared_distances
    least = torch.finfo(distances.dtype).tiny

    def say() -> None:
        close = distances < least
        if sets.itself:
            close &= sets.valid[..., None]
        item, query, place = close.nonzero(as_tuple=True)
        lost, d = 0, sets.points.shape[2]
        for part in torch.arange(len(item), device=item.device).split(rows_of_block(16 * d, item.device)):
            graph, point = item[part], found.indices[item[part], query[part], place[part]]
            lost += int((sets.points[graph, point] != sets.queries[graph, query[part]]).any(1).sum())
        if lost:
            those = f"squared distances of {lost} pairs of distinct points underflow, below {least:.1e}"
            checks.warn(f"{those}: the order of these neighbours is not known; rescale the points", checks.GraphWarning)

    precision.check_at_next_sync((distances < least).any(), say)
