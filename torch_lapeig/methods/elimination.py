"""Potentials of a graph whose nodes leak to a ground, by an elimination that never subtracts.

The system is (diag(leak) + D − W) X = B with W ≥ 0, D = diag(W 1) and leak ≥ 0. Its diagonal is never stored: each
pivot is a sum of weights and leak, as of Grassmann, Taksar & Heyman (*Operations Research* 1985). So each entry of X is
right relative to its size if B ≥ 0, whatever the range of the weights, where the differences of a factorisation or of
conjugate gradients lose edges of 1e-16 of their neighbours (O'Cinneide, *Numerische Mathematik* 1993).
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

Array = NDArray[Any]

MOST_UPDATES = 3_000_000  # of edges, for which Python needs some seconds
TIGHT = 1e-10  # differences of potential within a group of nodes, relative to the potential


def grounded_potentials(ends: Array, weight: Array, leak: Array, rhs: Array) -> Array | None:
    """Return X ``(N, m)``, or None where the elimination would take more than some seconds.

    Nodes that are joined so strongly that their potentials are equal to ten digits are one node of the elimination.

    Args:
        ends: int ``(2, E)``, both directions of each edge, without loops. weight: ``(E,)``, positive, float64.
        leak: ``(N,)``, ≥ 0; a path leads from each node to a node with a leak. rhs: B ``(N, m)``, of any sign.

    >>> ends, weight = np.array([[0, 1], [1, 0]]), np.array([1e-200, 1e-200])
    >>> grounded_potentials(ends, weight, np.array([0.0, 1.0]), np.array([[0.0], [1.0]]))
    array([[1.],
           [1.]])
    """
    number, group = np.unique(_groups(ends, weight, leak), return_inverse=True)
    near: list[dict[int, float]] = [{} for _ in number]
    between = group[ends]
    for i, j, w in zip(*between.tolist(), weight.tolist(), strict=True):
        if i != j:
            near[i][j] = near[i].get(j, 0.0) + w
    sums = [np.bincount(group, part, len(number)) for part in (leak, *rhs.T)]
    found = _eliminated(near, sums[0].tolist(), np.stack(sums[1:], 1))
    return None if found is None else found[group]


def _groups(ends: Array, weight: Array, leak: Array) -> Array:
    """Return the group of each node, as a node of it: the largest groups within which potentials are equal.

    A part that edges of at least w hold together is one if its weights to others are at most `TIGHT` w over its size:
    they carry what its potential at most differs by, and no path within the part is longer than its size.
    """
    group, level = np.arange(len(leak)), np.floor(np.log2(weight) / 4)
    for least in np.unique(level)[::-1]:
        strong = level >= least
        matrix = csr_array((np.ones(strong.sum()), ends[:, strong]), (len(leak), len(leak)))
        count, part = connected_components(matrix, directed=False)
        outward = part[ends[0]] != part[ends[1]]
        flow = np.bincount(part, leak, count) + np.bincount(part[ends[0][outward]], weight[outward], count)
        _, first, size = np.unique(part, return_index=True, return_counts=True)
        is_tight = size * flow <= TIGHT * 16.0**least
        group = np.where(is_tight[part], first[part], group)
    return group


def _eliminated(near: list[dict[int, float]], leak: list[float], rhs: Array) -> Array | None:
    """Return X, given the weights of each node to its neighbours, by node of least degree first; None if too large."""
    queue, updates = [(len(edges), i) for i, edges in enumerate(near)], 0
    heapq.heapify(queue)
    steps: list[tuple[int, float, list[tuple[int, float]]]] = []
    gone = [False] * len(near)
    while queue:
        degree, i = heapq.heappop(queue)
        if gone[i] or degree != len(near[i]):
            continue
        gone[i], edges, updates = True, list(near[i].items()), updates + degree**2
        if updates > MOST_UPDATES:
            return None
        pivot = leak[i] + sum(w for _, w in edges)
        shares = [(j, w / pivot) for j, w in edges]
        steps.append((i, pivot, shares))
        for place, (j, share) in enumerate(shares):
            leak[j] += share * leak[i]
            rhs[j] += share * rhs[i]
            near[j].pop(i, None)
            for k, w in edges[place + 1 :]:
                if share * w > 0:
                    near[j][k] = near[k][j] = near[j].get(k, 0.0) + share * w
        for j, _ in shares:
            heapq.heappush(queue, (len(near[j]), j))
    for i, pivot, shares in reversed(steps):
        rhs[i] /= pivot
        for j, share in shares:
            rhs[i] += share * rhs[j]
    return rhs
