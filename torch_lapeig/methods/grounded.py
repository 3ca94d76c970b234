"""Harmonic functions of a graph with some grounded nodes: the linear system with gradients, for any range of weights.

The system is (D − W) X = B at the nodes that are not grounded, with W ≥ 0 and D = diag(W 1). Conjugate gradients and
factorisations subtract, which loses edges below 1e-16 of their neighbours (O'Cinneide, *Numerische Mathematik* 1993).
Where this matters, nodes are eliminated with pivots that are sums of the weights of a node (Grassmann, Taksar & Heyman,
*Operations Research* 1985): all terms are positive, so that the solution is right relative to its size.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lapeig.eigen import Laplacian, Operator, solve_linear
from torch_lapeig.graph import Graph, SparsePattern
from torch_lapeig.graph.weights import inverse_power
from torch_lapeig.support import checks

Array = NDArray[Any]
# Eliminated node, the sum of its weights, the nodes that stay so far, and their shares in the sum.
Step = tuple[int, float, Array, Array]

FEW = 2000  # nodes that are eliminated without another solve
ACCURATE = 1e-10  # error of the potential that is 1 from which on nodes are eliminated if they are few
ACCEPTED = 1e-7  # its largest error
MOST_UPDATES = 3e9  # changed weights of a matrix, which take some seconds
SPARSE_DEGREE = 50  # largest degree of nodes that are eliminated in lists of neighbours
TIGHT = 1e-10  # differences of X within a group of nodes, relative to X


class Grounded(Operator):
    """Operator D − W at the free nodes of a graph, whose other nodes are grounded, and 1 at the others."""

    # Weights are float64, without loops, and a path leads from each free node to a grounded one.

    operator = property(lambda self: self)  # of this system, for `Outside`

    def __init__(self, graph: Graph, free: Tensor) -> None:
        self.shape, self.dtype, self.device = graph.shape, graph.weight.dtype, graph.weight.device
        self.graph, self.free = graph._with(weight=checks.primal(graph.weight)), free
        self.rest: tuple[Array, list[Step], Grounded] | None = None  # groups, steps and the system of the other nodes

    def matmul_at(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return A Y at other weights."""
        pattern, (weight,), free = self.graph.pattern, parameters, self.free[..., None]
        blocks = y.reshape(*self.shape, -1)
        # Sums of differences, so that derivatives of strong edges are right beside those of weak ones.
        columns = torch.where(free, blocks, 0).unbind(-1)
        flows = [pattern.sum_rows(weight * (pattern.at_row(x) - pattern.at_col(x))) for x in columns]
        return torch.where(free, torch.stack(flows, -1), blocks).reshape(y.shape)

    @torch.no_grad()
    def solve(self, g: Tensor) -> Tensor:
        """Return Z of A Z = −G at free nodes, 0 at others; warn of free nodes that are not solved for."""
        flow = -g.reshape(*self.shape, -1) * self.free[..., None]
        if self.rest is None:
            with warnings.catch_warnings(record=True) as caught:  # an elimination answers them
                warnings.simplefilter("always")
                z, error = self._iterated(flow)
            for limit, most in ((ACCURATE, FEW), (ACCEPTED, self.free.numel())):
                hard = error > limit
                if not hard.any():
                    for warning in caught:
                        checks.warn(str(warning.message), warning.category)
                    return z.reshape(g.shape)
                if int(hard.sum()) <= most and (found := eliminate(self.graph, hard)) is not None:
                    self.rest = (*found[:2], Grounded(found[2], (self.free & ~hard).reshape(-1)))
                    break
        if self.rest is None:
            those = f"{int(hard.sum())} of {int(self.free.sum())} nodes that only tiny weights join to labels"
            advice = "their scores or gradients are zero; use a larger bandwidth or more neighbours"
            checks.warn(f"harmonic functions are not computed at {those}: {advice}", checks.ConvergenceWarning)
            return torch.where(hard[..., None], 0, z).reshape(g.shape)
        group, steps, system = self.rest
        columns = flow.reshape(len(group), -1).cpu().numpy().T
        rhs = np.stack([np.bincount(group, column, len(group)) for column in columns], 1)
        for node, _, others, shares in steps:
            rhs[others] += shares[:, None] * rhs[node]
        x = system.solve(-torch.as_tensor(rhs).to(flow)).cpu().numpy()
        for node, pivot, others, shares in reversed(steps):
            x[node] = rhs[node] / pivot + shares @ x[others]
        return torch.as_tensor(x[group]).to(flow).reshape(g.shape)

    def _iterated(self, flow: Tensor) -> tuple[Tensor, Tensor]:
        """Return Z by conjugate gradients, and the error at each node of the potential that is 1 at grounded nodes."""
        # This potential is 1 everywhere. A residual by differences is small where a weak part of the graph is solved
        # for, so that each further solve resolves weaker parts, until a solve gains nothing.
        laplacian, pattern, weight = Laplacian(self.graph, "symmetric"), self.graph.pattern, self.graph.weight
        free, root = self.free[..., None], inverse_power(laplacian.degrees, 0.5)[..., None]
        degrees = torch.where(free, laplacian.degrees[..., None], 1)
        system = laplacian.symmetric.clamped(~self.free)
        flow = torch.cat([flow, free * pattern.matmul(weight, (~free).double(), is_symmetric=True)], -1)
        z, wrong = torch.zeros_like(flow), self.free.numel() + 1
        while True:
            rest = flow if wrong > self.free.numel() else flow - free * self.matmul_at((weight,), z)
            found = root * solve_linear(system, root * rest)
            # A mean of the neighbours: without it a node of tiny degree has the error of its row of D^½ Z.
            found = z + torch.where(free, rest + pattern.matmul(weight, found, is_symmetric=True), 0) / degrees
            error = torch.where(degrees[..., 0] > 1e-290, (found[..., -1] - 1).abs(), torch.inf)  # products underflow
            error = error.masked_fill(~self.free, 0)
            before, wrong = wrong, int((error > ACCEPTED).sum())
            if wrong <= FEW or wrong > 0.9 * before:
                return found[..., :-1], error
            z = found


def eliminate(graph: Graph, hard: Tensor) -> tuple[Array, list[Step], Graph] | None:
    """Eliminate hard nodes, from each of which a path leads to others; None if it would take more than some seconds.

    Return the node that stands for each node, itself unless it is eliminated; the steps in their order; and the graph
    of the other nodes, flat if there is a batch, in which eliminated nodes are isolated.

    >>> path = torch.diag(torch.tensor([1e-200, 1.0], dtype=torch.float64), 1)
    >>> eliminate(Graph.from_dense(path + path.mT), torch.arange(3) == 1)[2].to_dense()[0]
    tensor([ 0.0000e+00,  0.0000e+00, 1.0000e-200], dtype=torch.float64)
    """
    edges, chosen = graph.to_sparse(), hard.reshape(-1).cpu().numpy()
    ends, weight = edges.edge_index.cpu().numpy(), edges.weight.cpu().numpy()
    ends, weight = ends[:, weight > 0], weight[weight > 0]
    group, nodes, number = np.arange(len(chosen)), np.flatnonzero(chosen), np.cumsum(chosen) - 1
    touches, inside = chosen[ends].any(0), chosen[ends].all(0)
    leaving = chosen[ends[0]] & ~inside
    leak = np.bincount(ends[0][leaving], weight[leaving], len(chosen))[nodes]
    # Nodes joined so strongly that X is equal at them to ten digits are one node.
    group[nodes] = nodes[_groups(number[ends[:, inside]], weight[inside], leak)]
    near: dict[int, dict[int, float]] = {}
    for i, j, w in zip(*group[ends[:, touches]].tolist(), weight[touches].tolist(), strict=True):
        if i != j:
            of_node = near.setdefault(i, {})
            of_node[j] = of_node.get(j, 0.0) + w
    left = {i for i in near if chosen[i]}
    steps = _sparse_steps(near, left)
    rim = sorted({j for i in left for j in near[i]} - left)
    if len(left) * (len(left) + len(rim)) ** 2 > MOST_UPDATES:
        return None
    found = [(i, j, w) for i, of_node in near.items() for j, w in of_node.items() if not {i, j} & left]
    dense, more = _dense_steps(near, sorted(left), rim)
    kept = np.vstack([ends[:, ~touches], weight[~touches]])
    first, second, weights = np.concatenate([kept, np.array(found).reshape(-1, 3).T, more], 1)
    matrix = scipy.sparse.coo_array((weights, (first.astype(int), second.astype(int))), (len(chosen),) * 2).tocsr()
    row, col = (torch.as_tensor(part.astype(np.int64)).to(hard.device) for part in matrix.tocoo().coords)
    pattern = SparsePattern.trusted(row, col, (len(chosen),))
    return group, steps + dense, Graph.trusted(pattern, torch.as_tensor(matrix.data).to(hard.device))


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
