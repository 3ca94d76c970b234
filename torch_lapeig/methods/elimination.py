"""Elimination of some nodes of a graph whose other nodes stay, without subtractions.

The system is (D − W) X = B at the nodes that are not grounded, with W ≥ 0 and D = diag(W 1). Each pivot is the sum of
the weights of a node (Grassmann, Taksar & Heyman, *Operations Research* 1985), so that all sums are of positive terms.
The solution is right relative to its size for any range of the weights; the differences of a factorisation or of
conjugate gradients lose edges below 1e-16 of their neighbours (O'Cinneide, *Numerische Mathematik* 1993).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[Any]

MOST_UPDATES = 3e9  # changed weights of a matrix, which take some seconds
SPARSE_DEGREE = 50  # largest degree of nodes that are eliminated in lists of neighbours
TIGHT = 1e-10  # differences of X within a group of nodes, relative to X

# Eliminated node, the sum of its weights, the nodes that stay so far, and their shares in the sum.
Step = tuple[int, float, Array, Array]


@dataclass(frozen=True)
class Elimination:
    """Graph without its eliminated nodes, and the way from its right-hand sides and solutions to those of all nodes."""

    group: Array  # int (N,), the node that stands for each node; others than itself for eliminated nodes only
    steps: list[Step]  # in their order
    ends: Array  # int (2, E'), the new edges among the other nodes, both directions
    weight: Array  # (E',)

    def reduced(self, rhs: Array) -> Array:
        """Return B ``(N, m)`` of the smaller graph, and at eliminated nodes what `solution` needs."""
        rhs = np.stack([np.bincount(self.group, column, len(self.group)) for column in rhs.T], 1)
        for node, _, others, shares in self.steps:
            rhs[others] += shares[:, None] * rhs[node]
        return rhs

    def solution(self, x: Array, reduced: Array) -> Array:
        """Return X of all nodes, given X of the smaller graph, ``(N, m)``, and the right-hand side of `reduced`."""
        x = x.copy()
        for node, pivot, others, shares in reversed(self.steps):
            x[node] = reduced[node] / pivot + shares @ x[others]
        return x[self.group]


def eliminate(ends: Array, weight: Array, chosen: Array) -> Elimination | None:
    """Eliminate chosen nodes, from each of which a path leads to others; None if it would take more than some seconds.

    >>> ends, weight = (
    ...     np.array([[0, 1, 1, 2], [1, 0, 2, 1]]),
    ...     np.array([1e-200, 1e-200, 1.0, 1.0]),
    ... )
    >>> found = eliminate(ends, weight, np.array([False, True, False]))
    >>> found.ends.tolist(), found.weight.tolist()
    ([[0, 2], [2, 0]], [1e-200, 1e-200])
    """
    group, nodes, number = np.arange(len(chosen)), np.flatnonzero(chosen), np.cumsum(chosen) - 1
    from_chosen, inside = chosen[ends[0]], chosen[ends].all(0)
    leak = np.bincount(ends[0][from_chosen & ~inside], weight[from_chosen & ~inside], len(chosen))[nodes]
    # Nodes joined so strongly that X is equal at them to ten digits are one node.
    group[nodes] = nodes[_groups(number[ends[:, inside]], weight[inside], leak)]
    near: dict[int, dict[int, float]] = {}
    touches = chosen[ends].any(0)
    for i, j, w in zip(*group[ends[:, touches]].tolist(), weight[touches].tolist(), strict=True):
        if i != j:
            edges = near.setdefault(i, {})
            edges[j] = edges.get(j, 0.0) + w
    left = {i for i in near if chosen[i]}
    steps = _sparse_steps(near, left)
    rim = sorted({j for i in left for j in near[i]} - left)
    if len(left) * (len(left) + len(rim)) ** 2 > MOST_UPDATES:
        return None
    found = [(i, j, w) for i, edges in near.items() for j, w in edges.items() if not {i, j} & left]
    dense, more = _dense_steps(near, sorted(left), rim)
    first, second, weights = np.concatenate([np.array(found).reshape(-1, 3).T, more], 1)
    return Elimination(group, steps + dense, np.stack([first, second]).astype(int), weights)


def _sparse_steps(near: dict[int, dict[int, float]], left: set[int]) -> list[Step]:
    """Eliminate nodes that are ``left``, by node of least degree first, until all degrees are large."""
    queue, steps = [(len(near[i]), i) for i in left], []
    heapq.heapify(queue)
    while queue and queue[0][0] <= SPARSE_DEGREE:
        degree, i = heapq.heappop(queue)
        if i not in left or degree != len(near[i]):
            continue
        left.remove(i)
        edges = list(near.pop(i).items())
        pivot = sum(w for _, w in edges) or np.inf  # weights of 0 by underflow
        shares = [w / pivot for _, w in edges]
        steps.append((i, pivot, np.array([j for j, _ in edges], int), np.array(shares)))
        for place, (j, _) in enumerate(edges):
            near[j].pop(i, None)
            for k, w in edges[place + 1 :]:
                if shares[place] * w > 0:
                    near[j][k] = near[k][j] = near[j].get(k, 0.0) + shares[place] * w
        for j, _ in edges:
            if j in left:
                heapq.heappush(queue, (len(near[j]), j))
    return steps


def _dense_steps(near: dict[int, dict[int, float]], left: list[int], rim: list[int]) -> tuple[list[Step], Array]:
    """Eliminate the nodes that are ``left`` in a matrix; return the new edges ``(3, E)`` among their neighbours."""
    nodes, h, steps = np.array(left + rim, int), len(left), []
    place = {node: at for at, node in enumerate(nodes.tolist())}
    matrix = np.zeros((len(nodes), len(nodes)))
    for i in left:
        matrix[place[i], [place[j] for j in near[i]]] = list(near[i].values())
    matrix[h:, :h] = matrix[:h, h:].T
    for i in range(h):
        row = matrix[i, i + 1 :]
        pivot = row.sum() or np.inf
        shares = row / pivot
        steps.append((int(nodes[i]), pivot, nodes[i + 1 :], shares))
        matrix[i + 1 :, i + 1 :] += row[:, None] * shares
    rest = matrix[h:, h:]
    np.fill_diagonal(rest, 0)
    first, second = rest.nonzero()
    return steps, np.stack([nodes[h:][first], nodes[h:][second], rest[first, second]])


def _groups(ends: Array, weight: Array, leak: Array) -> Array:
    """Return the node that stands for each node, one node of the largest group with equal X that contains it."""
    # A component of the edges of weight w or more is such a group if its weights to other nodes are at most `TIGHT` w
    # over its size: they bound the flow through the component, and its size bounds the length of a path within.
    from scipy.sparse.csgraph import connected_components  # slow to import, as in graph/algebra.py

    n, group, level = len(leak), np.arange(len(leak)), np.floor(np.log2(weight) / 4)
    for least in np.unique(level)[::-1]:
        edges = scipy.sparse.csr_array((weight[level >= least], ends[:, level >= least]), (n, n))
        part = connected_components(edges, directed=False)[1]
        outward = part[ends[0]] != part[ends[1]]
        flow = np.bincount(part, leak, n) + np.bincount(part[ends[0][outward]], weight[outward], n)
        _, first, size = np.unique(part, return_index=True, return_counts=True)
        is_tight = size * flow[: len(size)] <= TIGHT * 16.0**least
        group = np.where(is_tight[part], first[part], group)
    return group
