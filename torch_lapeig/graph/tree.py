"""Exact neighbour search by SciPy's k-d tree: few dimensions, many points, on the CPU. Chooses edges: no gradients.

The tree works in float64. Its distances choose the neighbours where they lie further apart than direct differences in
the points' dtype are rounded; other rows are decided by direct differences, as in `neighbors`, among more and more
candidates until no other point can be as near. So both searches find the same points, ties by the smaller index.

Queries are asked in the order of the leaves of a tree: what one of them reads, the next finds in the cache. A tree
keeps equal points in one leaf, however many they are, and reads them all whenever one could be a neighbour; where
points have many copies, the tree is built of one of each.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lapeig._tuning import TREE_COPIES, TREE_DIMENSIONS, TREE_PAIRS, TREE_QUERIES, TREE_WORK
from torch_lapeig.graph.distances import nearest_of_candidates, pair_distances


def tree_pays(points: Tensor, queries: int, k: int) -> bool:
    """Whether a tree of points ``(..., N, D)`` costs less than the distances of all of them to so many queries.

    A query visits a number of leaves that grows with 3^D and with k. In more than a few dimensions it depends on the
    data whether it visits nearly all.
    """
    n, d = points.shape[-2:]
    few = points.device.type == "cpu" and d <= TREE_DIMENSIONS and queries >= TREE_QUERIES
    return few and n >= TREE_WORK * 3**d * (1 + k / 16)


class Tree:
    """A k-d tree of the valid ones of points ``(N, D)``, finite, on the CPU; ``budget``: bytes for what is asked."""

    def __init__(self, points: Tensor, valid: Tensor, budget: int) -> None:
        self.points, self.budget = points, budget
        numbers = valid.nonzero().flatten()
        self.tree = _build(points[numbers])
        # Valid points in the order of the leaves, and which of them are equal to the one before.
        self.order = numbers[_leaves(self.tree)]
        ordered = points[self.order]
        begins = torch.cat([valid.new_ones(1), (ordered[1:] != ordered[:-1]).any(1)])
        run = begins.cumsum(0) - 1
        # An entry of the tree stands for `count` equal points, whose numbers, ascending, begin at `first` of `members`.
        self.members, self.first, self.count = numbers, torch.arange(len(numbers)), torch.ones_like(numbers)
        if (count := run.bincount()).square().sum() > TREE_COPIES * len(run):
            by_number = self.order.argsort()
            self.members = self.order[by_number[run[by_number].argsort(stable=True)]]
            self.first, self.count = count.cumsum(0) - count, count
            self.tree = _build(ordered[begins])
        self.most_copies = int(self.count.max())

    def nearest(self, queries: Tensor, k: int, itself: bool) -> tuple[Tensor, Tensor]:
        """Numbers and squared distances ``(Q, k)`` of the k nearest points, ascending, ties by the smaller number.

        ``itself``: the queries are the points, and none is its own neighbour; rows of those not valid are zero.
        """
        indices = torch.zeros(len(queries), k, dtype=torch.int64)
        distances = queries.new_zeros(len(queries), k)
        rows = self.order if itself else _leaves(_build(queries))
        entries = k + itself + 1
        while len(rows):
            entries = min(entries, self.tree.n)
            row_bytes = entries * min(k + itself, self.most_copies) * (64 + 16 * queries.shape[1])
            undecided = []
            for part in rows.split(max(64, self.budget // row_bytes)):
                decided, *answer = self._ask(queries[part], k, entries, part if itself else None)
                indices[part], distances[part] = answer
                undecided.append(part[~decided])
            rows, entries = torch.cat(undecided), 2 * entries
        return indices, distances

    def _ask(self, queries: Tensor, k: int, entries: int, own: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Which queries so many nearest entries of the tree decide, and what is found for all of them.

        ``own``: the number of the point that each query is, itself no candidate.
        """
        near, found = _query(self.tree, queries, entries)
        shift = int(own is not None)
        if self.most_copies == 1:
            first = near[:, : k + shift + 1]
            certain = (first.diff(dim=1) > _rounding(first[:, 1:], queries)).all(1)
            # The point itself comes first where distances are apart.
            indices = self.members[found[:, shift : shift + k]]
            distances = near[:, shift : shift + k].to(queries.dtype)
        else:
            certain = torch.zeros(len(queries), dtype=torch.bool)
            indices, distances = torch.zeros(len(queries), k, dtype=torch.int64), queries.new_zeros(len(queries), k)
        decided, doubtful = certain.clone(), (~certain).nonzero().flatten()
        if len(doubtful):
            numbers, missing = self._candidates(found[doubtful], k + shift)
            if own is not None:
                missing |= numbers == own[doubtful][:, None]
            answer = nearest_of_candidates(queries[doubtful], self.points[numbers], numbers, missing, k)
            indices[doubtful], distances[doubtful] = answer
            farthest, reached = near[doubtful, -1], answer[1][:, -1].double()
            decided[doubtful] = (reached + _rounding(farthest, queries) < farthest) | (entries == self.tree.n)
        return decided, indices, distances

    def _candidates(self, found: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """Numbers of the points that entries ``(R, m)`` stand for, ``most`` of each at most, and which are missing."""
        copy = torch.arange(min(most, self.most_copies))
        missing = copy >= self.count[found][..., None]
        place = torch.where(missing, 0, self.first[found][..., None] + copy)
        return self.members[place].flatten(1), missing.flatten(1)


def pairs_within(
    points: Tensor, queries: Tensor, valid: Tensor, reach: Tensor, itself: bool, budget: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Query, point and squared distance of all pairs with d² ≤ ``reach`` ``(N,)`` of the point, by query and point.

    None where a point reaches so many queries that the blocked search costs less. ``itself``: the queries are the
    points, and none of them reaches itself.
    """
    asked = valid.nonzero().flatten()
    if len(asked) == 0:
        return asked, asked, points.new_empty(0)
    others = asked if itself else torch.arange(len(queries))
    tree = _build(queries[others])
    asked = asked[_leaves(tree if itself else _build(points[asked]))]
    squares = reach[asked].double()
    radii = (squares + _rounding(squares, points)).sqrt().numpy()
    centres = _double(points[asked])

    def reached(rows: Any, **options: Any) -> Any:
        workers = torch.get_num_threads()
        return tree.query_ball_point(centres[rows], radii[rows], workers=workers, return_sorted=False, **options)

    sample = np.linspace(0, len(asked) - 1, min(len(asked), 200)).astype(int)
    if reached(sample, return_length=True).mean() > TREE_PAIRS * len(others):
        return None
    most = max(1, budget // 128)  # pairs at a time: an integer of Python for each, and what is measured
    parts = []
    for rows in np.array_split(np.arange(len(asked)), -(-len(asked) // 2**14)):
        counts = reached(rows, return_length=True)
        for piece, count in _pieces(rows, counts, most):
            found = np.fromiter(itertools.chain.from_iterable(reached(piece)), np.int64, count.sum())
            query = others[torch.from_numpy(found)]
            point = asked[torch.from_numpy(np.repeat(piece, count))]
            distances = pair_distances(queries, query, points, point)
            inside = distances <= reach[point]
            if itself:
                inside &= query != point
            parts.append((query[inside], point[inside], distances[inside]))
    query, point, distances = (torch.cat(part) for part in zip(*parts, strict=True))
    order = (query * len(points) + point).argsort()
    return query[order], point[order], distances[order]


def _pieces(rows: Any, counts: Any, most: int) -> list[tuple[Any, Any]]:
    """Rows and their counts in pieces whose counts sum to about ``most`` at most."""
    cuts = np.flatnonzero(np.diff(counts.cumsum() // most)) + 1
    return list(zip(np.split(rows, cuts), np.split(counts, cuts), strict=True))


def _build(x: Tensor) -> Any:
    from scipy.spatial import cKDTree  # as in components.py

    return cKDTree(_double(x))


def _leaves(tree: Any) -> Tensor:
    """Return the numbers of the points in the order of the leaves: a copy, as SciPy 1.18 gives read-only memory."""
    return torch.tensor(tree.indices)


def _query(tree: Any, queries: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    """Squared distances in float64 and numbers ``(Q, entries)`` of the nearest entries of a tree."""
    # A range: for a single entry, too, the tree answers with a matrix.
    distances, found = tree.query(_double(queries), k=range(1, entries + 1), workers=torch.get_num_threads())
    return torch.from_numpy(distances).square_(), torch.from_numpy(found)


def _double(x: Tensor) -> Any:
    return x.double().contiguous().numpy()


def _rounding(squares: Tensor, x: Tensor) -> Tensor:
    """How far squared distances of about a size may be from direct differences of points ``(..., D)`` in their dtype.

    D + 2 roundings of half an epsilon each, those of the tree in float64, and what underflows.
    """
    limits, d = torch.finfo(x.dtype), x.shape[-1]
    return squares * (4 * (d + 4) * limits.eps) + d * limits.tiny
