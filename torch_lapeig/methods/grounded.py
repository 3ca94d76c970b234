"""Potentials of a graph with some grounded nodes: the linear system with gradients, for any range of weights.

The functions with given values at some nodes and harmonic at the others are such potentials.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import scipy
import torch
from torch import Tensor

from torch_lapeig.eigen import Laplacian, NullSpace, Operator, SymmetricOperator
from torch_lapeig.eigen.gradient.rule import outside
from torch_lapeig.eigen.linear import solve_linear
from torch_lapeig.graph import Graph
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.weights import inverse_power
from torch_lapeig.methods.elimination import Elimination, eliminate
from torch_lapeig.support import checks

FEW = 2000  # nodes that are eliminated without another solve
ACCURATE = 1e-10  # error of the potential that is 1 from which on nodes are eliminated if they are few
ACCEPTED = 1e-7  # its largest error


def harmonic_extension(graph: Graph, free: Tensor, known: Tensor) -> Tensor:
    """Return F ``(..., N, C)``: ``known`` at grounded nodes, and the mean of the neighbours at ``free`` nodes."""
    weight = graph.weight  # float64, without loops; a path leads from each free node to a grounded one
    inflow = free[..., None] * graph.pattern.matmul(weight, known, is_symmetric=True)
    blocks = inflow.reshape(graph.batch_size, graph.num_nodes, -1)
    none = blocks[..., :0]
    z = outside(Grounded(graph, free), none[:, :0], none, -blocks, weight)
    return torch.where(free[..., None], z.reshape(known.shape), known)


class Grounded(Operator):
    """Operator D − W at the free nodes of a graph, whose other nodes are grounded, and 1 at the others."""

    def __init__(self, graph: Graph, free: Tensor) -> None:
        self.shape, self.dtype, self.device = graph.shape, graph.weight.dtype, graph.weight.device
        self.graph, self.free = graph._with(weight=checks.primal(graph.weight)), free
        self.rest: tuple[Elimination, Grounded] | None = None

    @property
    def bound(self) -> Tensor:  # type: ignore[override]
        """Return Gershgorin's bound ``(B,)``, twice the largest degree."""
        degrees = self.graph.pattern.sum_rows(self.graph.weight).reshape(self.graph.batch_size, -1)
        return 2 * degrees.amax(1)

    @property
    def operator(self) -> Operator:
        """Return the operator of this system, for `Outside`."""
        return self

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
                if int(hard.sum()) <= most and (rest := self._without(hard)) is not None:
                    self.rest = rest
                    break
        if self.rest is None:
            checks.warn(
                f"harmonic functions are not solved for at {int(hard.sum())} of {int(self.free.sum())} nodes without "
                "label, which are joined to labels by tiny weights only: their scores or gradients are zero; use a "
                "larger bandwidth or more neighbours",
                checks.ConvergenceWarning,
            )
            return torch.where(hard[..., None], 0, z).reshape(g.shape)
        elimination, others = self.rest
        reduced = elimination.reduced(flow.reshape(-1, flow.shape[-1]).cpu().numpy())
        z = others.solve(-torch.as_tensor(reduced).to(flow))
        return torch.as_tensor(elimination.solution(z.cpu().numpy(), reduced)).to(flow).reshape(g.shape)

    def _iterated(self, flow: Tensor) -> tuple[Tensor, Tensor]:
        """Return Z by conjugate gradients, and the error at each node of the potential that is 1 at grounded nodes."""
        # This potential is 1 everywhere. A residual by differences is small where a weak part of the graph is solved
        # for, so that each further solve resolves weaker parts, until a solve gains nothing.
        laplacian, pattern, weight = Laplacian(self.graph, "symmetric"), self.graph.pattern, self.graph.weight
        free, root = self.free[..., None], inverse_power(laplacian.degrees, 0.5)[..., None]
        degrees = torch.where(free, laplacian.degrees[..., None], 1)
        system = damped(laplacian, self.free.double())
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

    def _without(self, hard: Tensor) -> tuple[Elimination, Grounded] | None:
        """Return the elimination of some nodes, and the system of the other nodes; None if it is too large."""
        graph = self.graph.to_sparse()
        ends = graph.edge_index.cpu().numpy()
        weight, chosen = graph.weight.cpu().numpy(), hard.reshape(-1).cpu().numpy()
        ends, weight = ends[:, weight > 0], weight[weight > 0]
        elimination = eliminate(ends, weight, chosen)
        if elimination is None:
            return None
        kept = ~chosen[ends].any(0)
        ends, weight = np.c_[ends[:, kept], elimination.ends], np.r_[weight[kept], elimination.weight]
        matrix = scipy.sparse.coo_array((weight, ends), (len(chosen),) * 2).tocsr()
        row, col = (torch.as_tensor(part.astype(np.int64)).to(self.device) for part in matrix.tocoo().coords)
        pattern = SparsePattern.trusted(row, col, (len(chosen),))
        others = Graph.trusted(pattern, torch.as_tensor(matrix.data).to(self.device))
        return elimination, Grounded(others, (self.free & ~hard).reshape(-1))


def damped(laplacian: Laplacian, keep: Tensor) -> SymmetricOperator:
    """Return A = I − Q S Q for factors 0 ≤ q ≤ 1 at the nodes, ``keep`` ``(N,)`` or ``(B, N)``: N A N is D − Q W Q.

    D − Q W Q is the Laplacian of Q W Q plus the excess e_i = Σ_j w_ij (1 − q_i q_j), a sum without cancellation. q = √α
    is the system of label spreading. q = 0 at labels and 1 elsewhere takes the labels out of the system: edges to them
    only count on the diagonal.
    """
    graph, batch = laplacian.graph, laplacian.graph.batch_size
    pattern, degrees = graph.pattern, checks.primal(laplacian.degrees).reshape(batch, -1)
    excess = pattern.sum_rows(checks.primal(graph.weight) * (1 - pattern.at_row(keep) * pattern.at_col(keep)))
    part = torch.zeros_like(degrees, dtype=torch.int64)
    return SymmetricOperator(
        pattern,
        pattern.scaled(laplacian.values, keep),
        torch.ones_like(keep),
        bound=degrees.new_full((batch,), 2.0),
        null=NullSpace(degrees.sqrt(), part, part[:, 0]),
        of_affinities=True,
        trusted=True,
        excess=excess.reshape(batch, -1),
    )
