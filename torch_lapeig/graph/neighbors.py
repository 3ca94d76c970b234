"""Exact neighbour search in blocks, on any device; approximate search through faiss. Chooses edges: no gradients.

Distances of a block of queries come from one matrix product (`tables`), whose rounding is bounded. A product loses the
digits in which distances of close points far from the origin differ, so each row is decided in three steps:

1. where the k + 1 smallest values lie further apart than their error, and are not small beside it, they are the answer;
2. elsewhere a few more candidates than asked for are measured again by direct differences. All other points are at
   least as far as the farthest candidate, up to the error: where the k-th is closer than that, the row is done;
3. what remains is searched among all points whose values could be among the k nearest, by direct differences.

On the processor, where points of many dimensions lie near fewer, most rows are decided before that, by distances in
these (`projection`).

Ties go to the smaller index. Squared distances are good to 0.1 % at least, mostly to round-off.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._tuning import TREE_SET, WHOLE_ROWS, budget_of, projection_may_pay, rows_of_block
from torch_lapeig.graph.ann import approximate_neighbors
from torch_lapeig.graph.copies import first_copies
from torch_lapeig.graph.distances import (
    Metric,
    least_reach,
    nearest_directly,
    nearest_of_candidates,
    pair_distances,
    radii_no_less,
    roots_no_less,
)
from torch_lapeig.graph.projection import nearest_by_projection, projection_that_pays
from torch_lapeig.graph.selection import sorted_rows
from torch_lapeig.graph.sets import Sets, prepare, warn_of_underflow
from torch_lapeig.graph.tables import Block, Table, Values, nearest_by_blocks, order_for_tiles, row_bytes, table_of
from torch_lapeig.graph.tree import Tree, pairs_within, tree_pays

Backend = Literal["exact", "faiss"]

SPARE = 5  # candidates beyond k that are measured again: enough for the ties and near ties of most rows
RECALL = 0.99  # of an approximate search that is not told otherwise
SMALL = 1e3  # times the error of the product: a squared distance above it is good to 0.1 %


class Neighbors(NamedTuple):
    """Neighbours of each query, ascending by distance, ties by index.

    ``indices`` int64 and ``squared_distances`` of the points' dtype, both ``(Q, k)`` or ``(B, Q, k)``; ``recall`` is
    the share of true neighbours found, 1 for an exact search and estimated on a sample for an approximate one.

    >>> nearest_neighbors(torch.tensor([[0.0], [1.0], [3.0]]), 1)
    Neighbors(indices=tensor([[1],
            [0],
            [1]]), squared_distances=tensor([[1.],
            [1.],
            [4.]]), recall=1.0)
    """

    indices: Tensor
    squared_distances: Tensor
    recall: float = 1.0


class NeighborPairs(NamedTuple):
    """Pairs of a query and a point within its reach.

    ``item`` (of the batch), ``query`` and ``point`` int64 ``(E,)``; ``squared_distances`` ``(E,)``.

    >>> pairs = radius_neighbors(torch.tensor([[0.0], [1.0], [3.0]]), 1.5)
    >>> pairs.query.tolist(), pairs.point.tolist(), pairs.squared_distances.tolist()
    ([0, 1], [1, 0], [1.0, 1.0])
    """

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
    recall: float | None = None,
    budget: int | None = None,
) -> Neighbors:
    """The k nearest points of every query, or of every point among the others.

    Args:
        x: points ``(N, D)`` or ``(B, N, D)``, float32 or float64.
        k: neighbours, from 1 to the number of valid points, less one without ``queries``.
        queries: ``(Q, D)`` or ``(B, Q, D)``, of the dtype of ``x``; None: the points themselves, none its own
            neighbour, however many copies of it there are.
        metric: ``"euclidean"``, or ``"cosine"``: squared distances are then 2 (1 − cos).
        mask: bool ``(N,)`` or ``(B, N)``, False for padding, which is nobody's neighbour. Rows of masked points
            themselves mean nothing.
        backend: ``"exact"``, or ``"faiss"`` (extra ``ann``), an approximate search with ``recall=0.99``.
        recall: share of the true neighbours to be found, in (0, 1]; below 1 the search is approximate, through faiss
            (extra ``ann``). It is measured on a sample and returned; an exact search is done where that costs less.
        budget: bytes of memory for the search: its table of points and a block of distances; default: by device.

    Raises:
        TypeError: wrong dtype. ValueError: wrong rank or option; non-finite points; k out of range; a zero vector with
            ``"cosine"``. ImportError: an approximate search asked for and faiss not installed.

    Warns:
        ConvergenceWarning: the recall that was measured is below the one asked for. GraphWarning: squared distances of
            distinct points underflow, so that their order is not known.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> nearest_neighbors(x, 2, queries=torch.tensor([[2.5]])).indices
    tensor([[2, 1]])
    """
    sets = prepare(x, queries, mask, metric)
    k, budget = _checks.check_count(k, "k"), _check_budget(budget, x)
    asked = check_recall(backend, recall)
    fewest = x.shape[-2] if mask is None else int(sets.valid.sum(1).min())
    if k > fewest - sets.itself:
        limit = "smaller than" if sets.itself else "at most"
        raise ValueError(f"k must be {limit} the number of points, got k={k} with {fewest} points")
    share = 1.0
    if asked < 1:
        indices, distances, share = _approximate_neighbors(sets, k, asked, budget)
    else:
        indices, distances = _exact_neighbors(sets, k, budget)
    warn_of_underflow(sets, indices, distances)
    lead = (x if queries is None else queries).shape[:-1]
    return Neighbors(indices.reshape(*lead, k), distances.reshape(*lead, k), share)


@torch.no_grad()
@_checks.full_precision
def radius_neighbors(
    x: Tensor,
    radius: float | Tensor,
    queries: Tensor | None = None,
    *,
    metric: Metric = "euclidean",
    mask: Tensor | None = None,
    budget: int | None = None,
) -> NeighborPairs:
    """All pairs of a query and a point (or of two distinct points) at squared distance ≤ radius².

    Args:
        x, queries, metric, mask, budget: as for `nearest_neighbors`.
        radius: one positive number, or the reach ≥ 0 of each point, of the shape of ``x`` without its last axis.

    Returns:
        Pairs in ascending order of item, query and point.

    Raises:
        TypeError, ValueError: as `nearest_neighbors`; a radius that is not positive, or reaches of another shape.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> radius_neighbors(x, 1.0, queries=torch.tensor([[2.5]])).point
    tensor([2])
    """
    sets = prepare(x, queries, mask, metric)
    budget = _check_budget(budget, x)
    reach = _squared_reach(radius, x, sets.valid)
    found = [_pairs_of_item(sets, b, reach[b], budget) for b in range(len(sets.points))]
    item = [torch.full_like(query, b) for b, (query, _, _) in enumerate(found)]
    query, point, distances = (torch.cat(parts) for parts in zip(*found, strict=True))
    return NeighborPairs(torch.cat(item), query, point, distances)


@torch.no_grad()
@_checks.full_precision
def nearest_and_reaching(
    x: Tensor,
    k: int,
    radius: Tensor,
    queries: Tensor,
    *,
    metric: Metric = "euclidean",
    budget: int | None = None,
) -> tuple[Neighbors, NeighborPairs]:
    """`nearest_neighbors` and `radius_neighbors` of queries ``(Q, D)`` to points ``(N, D)`` from the same distances.

    ``radius`` ``(N,)`` is the reach of each point. Takes little longer than the nearest neighbours alone. Pairs come in
    no particular order.
    """
    sets = prepare(x, queries, None, metric)
    k, budget = _checks.check_count(k, "k"), _check_budget(budget, x)
    if k > len(x):
        raise ValueError(f"k must be at most the number of points, got k={k} with {len(x)} points")
    reach = _squared_reach(radius, x, sets.valid)[0]
    if tree_pays(x, len(queries), k):
        by_tree = pairs_within(sets.points[0], sets.queries[0], sets.valid[0], reach, False, budget)
        if by_tree is not None:
            near = Tree(sets.points[0], sets.valid[0], budget).nearest(sets.queries[0], k, False)
            return Neighbors(*near), NeighborPairs(torch.zeros_like(by_tree[0]), *by_tree)
    order = order_for_tiles(reach)
    reach, points = reach[order], sets.points[:, order]
    table = table_of(points, sets.valid, k + SPARE, budget)
    nearest, pairs = [], []
    for block in table.blocks(sets.queries, False):
        nearest.append(_nearest_of_block(table, block, points[0], k, order))
        pairs.append(_pairs_of_block(table, block, points[0], reach))
    indices, distances = (torch.cat(parts) for parts in zip(*nearest, strict=True))
    query, point, of_pairs = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    reached = NeighborPairs(torch.zeros_like(query), query, order[point], of_pairs)
    return Neighbors(indices, distances), reached


@torch.no_grad()
def reach_of_points(x: Tensor, others: Tensor, metric: Metric) -> Tensor:
    """The distance of each point ``(N, D)`` to another, whose square is no less than that of direct differences.

    A search by values knows squared distances to 0.1 %: points exactly as far would be out of reach.
    """
    points = prepare(x, None, None, metric).points[0]
    squares = pair_distances(points, torch.arange(len(points), device=x.device), points, others)
    return roots_no_less(squares).clamp_min(least_reach(metric, x.dtype))


def check_recall(backend: Any, recall: Any) -> float:
    """The recall that two options ask for, 1 for an exact search."""
    _checks.check_choice(backend, "backend", ("exact", "faiss"))
    if recall is None:
        return RECALL if backend == "faiss" else 1.0
    if (asked := _checks.check_positive(recall, "recall")) > 1:
        raise ValueError(f"recall must be in (0, 1], got {recall}")
    return asked


def _approximate_neighbors(sets: Sets, k: int, recall: float, budget: int) -> tuple[Tensor, Tensor, float]:
    """Numbers and squared distances ``(B, Q, k)`` of an approximate search, and the smallest recall of the items."""
    found = [_approximate_item(item, k, recall, budget) for item in sets.items()]
    indices, distances, shares = zip(*found, strict=True)
    return torch.stack(indices), torch.stack(distances), min(shares)


def _approximate_item(sets: Sets, k: int, recall: float, budget: int) -> tuple[Tensor, Tensor, float]:
    (points,), (queries,), (valid,) = sets.points, sets.queries, sets.valid

    def exact(rows: Tensor) -> tuple[Tensor, Tensor]:
        return _exact_rows(sets, rows, k, budget, _exact_neighbors)

    return approximate_neighbors(points, queries, valid, sets.itself, k, recall, exact)


def _check_budget(budget: int | None, x: Tensor) -> int:
    """The checked budget; by default the one for the device of ``x``."""
    return budget_of(x.device).search if budget is None else _checks.check_count(budget, "budget", maximum=2**62)


def _squared_reach(radius: float | Tensor, x: Tensor, valid: Tensor) -> Tensor:
    """Checked squared radius of each point, ``(B, N)``."""
    if isinstance(radius, Tensor):
        _checks.check_floating(radius, "radius")
        if radius.shape != x.shape[:-1] or not (radius.reshape(valid.shape)[valid] >= 0).all():
            raise ValueError(
                f"radius must be non-negative, one for each point, of shape {tuple(x.shape[:-1])}, got "
                f"{tuple(radius.shape)}"
            )
        reach = torch.where(valid, radius.reshape(valid.shape), 0).double().square().to(x.dtype)
    else:
        radius, least = _checks.check_positive(radius, "radius"), math.sqrt(torch.finfo(x.dtype).tiny)
        if radius < least:
            raise ValueError(
                f"radius must be at least {least:.1e} for squared distances in {x.dtype}, got {radius:.1e}; rescale "
                "the points"
            )
        reach = radii_no_less(radius, x, valid.shape).double().square().to(x.dtype)
    return reach.clamp_max(torch.finfo(reach.dtype).max / 8)  # farther than any two points


def _exact_neighbors(sets: Sets, k: int, budget: int) -> tuple[Tensor, Tensor]:
    """Numbers and squared distances ``(B, Q, k)``; where points have many copies, among a few of each."""
    by_tree = tree_pays(sets.points, sets.queries.shape[1], k)
    if not (by_tree and sets.points.shape[1] > TREE_SET) and (found := nearest_directly(*sets, k)) is not None:
        return found
    if by_tree:  # which sees to copies itself
        return _by_cheapest(sets, k, budget)
    most = k + 1 + sets.itself
    kept = [first_copies(points, valid, most) for points, valid in zip(sets.points, sets.valid, strict=True)]
    if all(few is None for few in kept):
        return _by_cheapest(sets, k, budget)
    parts = []
    for item, few in zip(sets.items(), kept, strict=True):
        parts.append(_by_cheapest(item, k, budget) if few is None else _among(item, few, k, budget))
    return torch.cat([numbers for numbers, _ in parts]), torch.cat([squares for _, squares in parts])


def _among(item: Sets, few: Tensor, k: int, budget: int) -> tuple[Tensor, Tensor]:
    """The neighbours of one item among some of its points, of which no other can be one."""
    among = Sets(item.points[:, few], item.queries, item.valid[:, few], False)
    indices, distances = (part[0] for part in _by_cheapest(among, k + item.itself, budget))
    indices = few[indices]
    if item.itself:
        indices, distances = _without_own(indices, distances, torch.arange(len(indices)))
    return indices[None], distances[None]


def _by_cheapest(sets: Sets, k: int, budget: int) -> tuple[Tensor, Tensor]:
    """Numbers and squared distances ``(B, Q, k)``, by the search that costs least."""
    items = list(zip(sets.points, sets.queries, sets.valid, strict=True))
    if tree_pays(sets.points, sets.queries.shape[1], k):
        of_items = [Tree(points, valid, budget).nearest(asked, k, sets.itself) for points, asked, valid in items]
    elif projection_may_pay(sets.points, sets.queries.shape[1]):
        of_items = [_by_projection(*item, sets.itself, k, budget) for item in items]
    else:
        return _by_values(sets, k, budget)
    return torch.stack([numbers for numbers, _ in of_items]), torch.stack([squares for _, squares in of_items])


def _by_projection(
    points: Tensor, queries: Tensor, valid: Tensor, itself: bool, k: int, budget: int
) -> tuple[Tensor, Tensor]:
    """Numbers and squared distances ``(Q, k)`` of one item; what a projection leaves goes to `_by_values`."""
    item = Sets(points[None], queries[None], valid[None], itself)
    projection = projection_that_pays(points, queries, valid, itself, k)
    if projection is None:
        indices, distances = _by_values(item, k, budget)
        return indices[0], distances[0]
    found = nearest_by_projection(projection, points, queries, valid, itself, k, budget)
    return _completed(*found, item, k, budget)


def _completed(
    indices: Tensor, distances: Tensor, left: Tensor, item: Sets, k: int, budget: int
) -> tuple[Tensor, Tensor]:
    """Numbers and squared distances ``(Q, k)`` of one item, with those of the rows that are left by `_by_values`."""
    if len(left):
        indices[left], distances[left] = _exact_rows(item, left, k, budget, _by_values)
    return indices, distances


def _exact_rows(sets: Sets, rows: Tensor, k: int, budget: int, search: Any) -> tuple[Tensor, Tensor]:
    """The neighbours of some queries of one item: of those that are points, one more is searched and it is left out."""
    if len(rows) == sets.queries.shape[1]:
        found = search(sets, k, budget)
        return found[0][0], found[1][0]
    among = Sets(sets.points, sets.queries[:, rows], sets.valid, False)
    indices, distances = (part[0] for part in search(among, k + sets.itself, budget))
    return _without_own(indices, distances, rows) if sets.itself else (indices, distances)


def _without_own(indices: Tensor, distances: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours ``(Q, k + 1)`` of points without these themselves, of numbers ``own``."""
    itself = indices == own[:, None]
    itself[:, -1] |= ~itself.any(1)  # hidden behind k + 1 copies
    k = indices.shape[1] - 1
    return indices[~itself].reshape(-1, k), distances[~itself].reshape(-1, k)


def _by_values(sets: Sets, k: int, budget: int) -> tuple[Tensor, Tensor]:
    """By tables of values; as many items at a time as fit the budget with all their queries."""
    n, q = sets.points.shape[1], sets.queries.shape[1]
    step = max(1, budget // (q * row_bytes(sets.points, k + SPARE))) if n <= WHOLE_ROWS else 1
    parts = []
    for points, queries, valid in zip(*(part.split(step) for part in sets[:3]), strict=True):
        nearest = functools.partial(_nearest_of_block, points=points.flatten(0, 1), k=k)
        table = table_of(points, valid, k + SPARE, budget)
        parts.append(nearest_by_blocks(table, queries, sets.itself, k, points.dtype, nearest))
    indices, distances = (torch.cat(part) for part in zip(*parts, strict=True))
    return indices, distances


def _nearest_of_block(
    table: Values, block: Block, points: Tensor, k: int, names: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Numbers in their item and squared distances ``(R, k)`` of the nearest of ``points``, all items' ``(B·N, D)``.

    Of a single item in another order, ``names`` ``(N,)`` are the numbers of the points, by which ties end.
    """

    def named(place: Tensor) -> Tensor:
        return place if names is None else names[place]

    values, candidates = table.smallest(k + SPARE)
    if values.device.type == "cpu":
        places, distances, certain = _rank_by_values(values, candidates, block, k)
        indices, doubtful = named(places), (~certain).nonzero().flatten()
    else:  # to measure all again costs less than to look which
        indices, distances = named(candidates[:, :k]).clone(), values[:, :k].clone()
        doubtful = torch.arange(len(values), device=values.device)
    if len(doubtful):
        values, candidates = values[doubtful], candidates[doubtful]
        missing, near = values.isinf(), points[candidates + table.first_points(block, doubtful)[:, None]]
        found = nearest_of_candidates(block.queries[doubtful], near, named(candidates), missing, k)
        indices[doubtful], distances[doubtful] = found
        if candidates.shape[1] < table.points_of_item:
            others = values.amax(1) + block.squares[doubtful] - block.slack[doubtful]  # no other point is closer
            is_open = (distances[doubtful, -1] >= others) & ~missing.any(1)
            if _checks.look(is_open.any())[0]:
                open_rows = doubtful[is_open]
                limit = distances[open_rows, -1] + (block.slack - block.squares)[open_rows]
                found = _nearest_within(table, block, open_rows, limit, points, k, names)
                indices[open_rows], distances[open_rows] = found
    return indices, distances


def _rank_by_values(values: Tensor, candidates: Tensor, block: Block, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k nearest candidates and their squared distances by values alone, and for which rows values suffice."""
    if values.shape[1] == k:  # their order is not known
        return candidates.clone(), values.clone(), torch.zeros_like(block.slack, dtype=torch.bool)
    smallest, order = sorted_rows(values, k + 1)
    apart = (smallest.diff(dim=1) > 2 * block.slack[:, None]).all(1)
    certain = apart & (smallest[:, 0] + block.squares > SMALL * block.slack)
    return candidates.gather(1, order[:, :k]), smallest[:, :k] + block.squares[:, None], certain


def _nearest_within(
    table: Values,
    block: Block,
    rows: Tensor,
    limit: Tensor,
    points: Tensor,
    k: int,
    names: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The k nearest of some rows among all points of a value ≤ limit, ``(P,)``, by direct differences."""
    parts = []
    # All points may be within the limit, copies of one: six numbers of 8 bytes for each, beside the value.
    step = rows_of_block(64 * table.points_of_item, points.device)
    for piece, bound in zip(rows.split(step), limit.split(step), strict=True):
        row, point = (table.of_rows(piece) <= bound[:, None]).nonzero(as_tuple=True)
        if names is not None:
            by_name = names[point].argsort()
            row, point = row[by_name], point[by_name]
        query = piece[row]
        distances = pair_distances(block.queries, query, points, point + table.first_points(block, query))
        order = distances.argsort(stable=True)
        order = order[row[order].argsort(stable=True)]
        count = torch.bincount(row, minlength=len(piece))
        chosen = order[(count.cumsum(0) - count)[:, None] + torch.arange(k, device=rows.device)]
        parts.append((point[chosen] if names is None else names[point[chosen]], distances[chosen]))
    indices, distances = (torch.cat(part) for part in zip(*parts, strict=True))
    return indices, distances


def _pairs_of_item(sets: Sets, b: int, reach: Tensor, budget: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, point and squared distance of all pairs of an item with d² ≤ reach of the point."""
    points, queries, valid = sets.points[b], sets.queries[b], sets.valid[b]
    if tree_pays(points, len(queries), 1):
        by_tree = pairs_within(points, queries, valid, reach, sets.itself, budget)
        if by_tree is not None:
            return by_tree
    table = Table(points, valid, reach)
    rows = max(1, budget // (4 * len(points) * points.element_size()))
    found = []
    for start in range(0, len(queries), rows):
        block = queries[start : start + rows]
        augmented, squares, slack = table.rows(block)
        near = augmented @ table.columns.mT <= (slack + _reach_slack(reach) - squares)[:, None]
        near &= valid
        if sets.itself:
            near.diagonal(offset=start).fill_(False)
            near &= valid[start : start + rows, None]
        query, point = near.nonzero(as_tuple=True)
        found.append(_pairs_within(block, query, points, point, reach, start))
    query, point, distances = (torch.cat(parts) for parts in zip(*found, strict=True))
    return query, point, distances


def _pairs_of_block(table: Values, block: Block, points: Tensor, reach: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`_pairs_of_item` of the queries whose values a table holds."""
    query, point = table.within(reach, block.slack + _reach_slack(reach) - block.squares)
    return _pairs_within(block.queries, query, points, point, reach, block.first)


def _pairs_within(
    queries: Tensor, query: Tensor, points: Tensor, point: Tensor, reach: Tensor, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs with d² ≤ reach of the point by direct differences; queries are numbered from ``first``."""
    distances = pair_distances(queries, query, points, point)
    inside = distances <= reach[point]
    return query[inside] + first, point[inside], distances[inside]


def _reach_slack(reach: Tensor) -> Tensor:
    """Rounding of ‖x‖² − reach."""
    return 4 * torch.finfo(reach.dtype).eps * reach.amax()
