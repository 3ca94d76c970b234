"""Eigenpairs of small graphs as one dense batch: few calls, all eigenvectors at once.

Graphs of up to some 200 nodes take less time as dense matrices than as lists of edges, because the calls are what takes
time. So a batch of them is one tensor ``(B, N, N)``, solved in float64 by one `eigh`, which costs about as much as in
float32 there and resolves what float32 does not. The derivatives are those of the one rule
(`torch_lapeig.eigen.rule`); its complement needs no linear solve where all eigenvectors are known.

Only plain graphs are solved here: connected, every node of a positive degree, as many nodes as pairs and one more. For
anything else the answer is None, and `torch_lapeig.eigen.eigenpairs` of the same graph has the warnings, errors and
conventions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig._checks import primal
from torch_lapeig.eigen.blocks import eigh_of_batch
from torch_lapeig.eigen.check import Solution
from torch_lapeig.eigen.clusters import rule_of
from torch_lapeig.eigen.eigh import Eigh
from torch_lapeig.eigen.laplacian import needs_derivatives
from torch_lapeig.eigen.null_space import NullSpace
from torch_lapeig.eigen.rule import ImplicitEigenpairs
from torch_lapeig.eigen.solve import FINEST, Eigenpairs, Solve
from torch_lapeig.eigen.solver import RitzPairs
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.nodes import signs
from torch_lapeig.graph.pattern import DensePattern
from torch_lapeig.graph.small import NormalizedAffinity

SMALL_NODES = 128  # up to which dense graphs take less time than sparse ones, whatever their number
SMALL_WORK = 2e7  # graphs · nodes³ up to which they do so, too: calls are what takes time
CONNECTED = 1e-9  # eigenvalue of the second pair from which on a graph is certainly connected
OUTSIDE = 3.0  # eigenvalue of padding, above the spectrum
ROUND_OFF = 80 * torch.finfo(torch.float64).eps  # residual that rounding leaves


def is_small(graphs: int, nodes: int) -> bool:
    """Return whether graphs of so many nodes are solved as a dense batch."""
    return nodes <= SMALL_NODES or graphs * nodes**3 <= SMALL_WORK


def small_eigenpairs(
    graphs: NormalizedAffinity, shape: tuple[int, ...], mask: Tensor | None, k: int, solve: Solve, dtype: torch.dtype
) -> Eigenpairs | None:
    """Return the ``k`` smallest pairs of L y = λ D y of plain graphs; None where one of them is not plain.

    Args:
        graphs: without loops.
        shape: of the answer, ``(N,)`` or ``(B, N)``.
        mask: bool of that shape, False for padding; None for no padding.
        k: pairs with the trivial one, fewer than nodes.
        solve: options of the eigensolve, of which those of the gradient count.
        dtype: of the answer, and of what the weights come from: what counts as equal eigenvalues goes by it.
    """
    lead, n = shape[:-1], shape[-1]
    values, scale = graphs
    mask = None if mask is None else mask.reshape(-1, n)
    solution = _solution(primal(values), primal(scale), mask, k, solve.tolerance)
    if solution is None:
        return None
    projected, vectors = torch.diag_embed(solution.values), solution.vectors
    if needs_derivatives(values):
        rule = rule_of(dtype, None, solve.backward_tolerance, solve.degeneracy, solve.cluster_width)
        projected, vectors = ImplicitEigenpairs.apply(values, solution.symmetric.diagonal, solution, rule)
    return Eigenpairs(
        values=projected.diagonal(dim1=1, dim2=2).to(dtype).reshape(*lead, k),
        vectors=(scale[..., None] * vectors).to(dtype).reshape(*lead, n, k),
        projected=projected.to(dtype).reshape(*lead, k, k),
        residuals=solution.residuals.to(dtype).reshape(*lead, k),
        gap=solution.gap.to(dtype).reshape(lead),
        converged=solution.converged.reshape(lead),
        iterations=1,
        solver=solution.solver,
    )


def _solution(values: Tensor, scale: Tensor, mask: Tensor | None, k: int, tolerance: float | None) -> Solution | None:
    """Return all pairs of diag(1) − M, the first k of them as the wanted ones; None where a graph is not plain."""
    matrix, diagonal = -values, torch.ones_like(scale)
    if mask is None:
        matrix.diagonal(dim1=1, dim2=2).add_(1)
    else:
        diagonal = mask.to(values.dtype)
        matrix.diagonal(dim1=1, dim2=2).add_(torch.where(mask, 1.0, OUTSIDE))
    if not bool(matrix.sum().isfinite()):  # a node without edges, or numbers that overflow
        return None
    ritz, vectors = eigh_of_batch(matrix)
    ritz[:, 0] = 0
    ground = torch.where(scale > 0, 1 / scale, 0)
    vectors[:, :, 0] = ground / ground.square().sum(1, keepdim=True).sqrt()
    wanted = vectors[:, :, :k]
    wanted *= signs(scale[..., None] * wanted)  # of the answer
    known = ritz[:, :k]
    residuals = torch.baddbmm(wanted * known[:, None, :], matrix, wanted, beta=-1).square().sum(1).sqrt()
    gap = ritz[:, k] - ritz[:, k - 1]
    allowed = ((FINEST if tolerance is None else tolerance) * gap).clamp_min(ROUND_OFF)
    converged = residuals.amax(1) <= allowed
    if not bool((converged & (ritz[:, 1] > CONNECTED) & (ritz[:, k] < OUTSIDE - 0.5)).all()):
        return None
    return Solution(
        operator=_operator(values, diagonal, ground, mask),
        solver=Eigh(),
        ritz=RitzPairs(ritz, vectors, 1, converged),
        values=known,
        vectors=wanted,
        present=torch.ones_like(known, dtype=torch.bool),
        guard_values=ritz[:, k:],
        guard_vectors=vectors[:, :, k:],
        residuals=residuals,
        gap=gap,
        converged=converged,
    )


def _operator(values: Tensor, diagonal: Tensor, ground: Tensor, mask: Tensor | None) -> SymmetricOperator:
    """Return the matrix as the operator of the rule."""
    active = torch.ones_like(ground, dtype=torch.bool) if mask is None else mask
    one = torch.ones(len(values), dtype=torch.int64, device=values.device)
    return SymmetricOperator(
        DensePattern(tuple(diagonal.shape)),
        values,
        diagonal,
        bound=torch.full_like(diagonal[:, 0], 2.0),
        null=NullSpace(ground, torch.zeros_like(active, dtype=torch.int64), one),
        active=active,
        of_affinities=True,
        trusted=True,
    )
