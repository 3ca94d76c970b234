"""Eigenpairs of small graphs as one dense batch: few calls, all eigenvectors at once.

Graphs of up to some 200 nodes are faster as dense matrices than as lists of edges, because calls dominate the time. So
a batch of them is one tensor ``(B, N, N)``, solved by one `eigh` in float64, which costs about as much as in float32
at these sizes and resolves more. The derivatives come from the one rule (`torch_lapeig.eigen.gradient.rule`); its
complement needs no linear solve where all eigenvectors are known.

Only plain graphs are solved here: finite, connected, with more nodes than pairs, and without degrees so small that they
underflow or magnify round-off. `torch_lapeig.eigen.eigenpairs` handles all other graphs, with warnings and errors.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.laplacian import Normalization
from torch_lapeig.eigen.operator import allowed_residual
from torch_lapeig.eigen.problem import Differentiated, Problem, Solution
from torch_lapeig.eigen.solve import Eigenpairs, Solve, differentiable
from torch_lapeig.eigen.solvers.blocks import eigh_of_batch
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.solver import RitzPairs
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.pattern import DensePattern
from torch_lapeig.support import checks, precision
from torch_lapeig.support.checks import primal


class DenseGraphs(NamedTuple):
    """Matrices A = diag(c) − M of a batch of graphs in float64, with gradients."""

    values: Tensor  # M ``(B, N, N)``, symmetric, ≥ 0, without loops
    diagonal: Tensor  # c ``(B, N)``, 1 or the degrees; 0 for nodes that take no part
    active: Tensor  # bool ``(B, N)``, nodes that take part
    ground: Tensor  # ``(B, N)``, in proportion to the null vector of a whole graph, D^½ 1 or 1; without gradients
    bound: Tensor  # ``(B,)``, of the spectrum
    factor: Tensor  # ``(B, N)``, by which vectors are multiplied, D^-½; or `diagonal` or `ground`, of ones


def dense_from_normalized(values: Tensor, scale: Tensor, active: Tensor) -> DenseGraphs:
    """Return the dense graphs with ``values`` D^-½ W D^-½, given also ``scale`` D^-½."""
    ground = torch.where(active, primal(scale).reciprocal(), 0)
    return DenseGraphs(values, active.to(values.dtype), active, ground, ground.new_full(ground.shape[:1], 2), scale)


def normalized_graphs(affinity: Tensor, active: Tensor, normalization: Normalization) -> DenseGraphs:
    """Return the graphs of affinities ``(B, N, N)``."""
    degrees = affinity.sum(2)
    if normalization == "unnormalized":
        one = active.to(affinity.dtype)
        return DenseGraphs(affinity, degrees, active, one, 2 * primal(degrees).amax(1), one)
    scale = torch.where(active, degrees, 1).rsqrt() * active
    graphs = dense_from_normalized(scale[:, :, None] * affinity * scale[:, None, :], scale, active)
    return graphs._replace(factor=graphs.diagonal) if normalization == "symmetric" else graphs


def small_eigenpairs(graphs: DenseGraphs, k: int, dtype: torch.dtype, solve: Solve) -> Eigenpairs | None:
    """Return the ``k`` < N smallest pairs of each graph, for a dtype, with gradients; None where one is not plain."""
    (values, diagonal, active, ground, bound, factor), info = graphs, torch.finfo(dtype)
    # Graphs have edges, degrees are finite, and neither derivatives nor D^-½ magnify round-off.
    extremes = torch.where(active, ground, ground.amax(1, keepdim=True)).aminmax()  # 0 of a graph without edges
    low, high, most = precision.synchronise(*extremes, bound.amax())
    is_in_range = info.tiny**0.125 < low and high < info.max**0.125 and most < torch.inf
    if not is_in_range or low <= torch.finfo(torch.float64).eps ** 0.375 * high:
        return None
    pattern, bare = DensePattern(diagonal.shape), primal(factor)
    operator = SymmetricOperator(pattern, values, diagonal, bound, None, active, of_affinities=True, trusted=True)
    count = values.shape[1] if checks.needs_derivatives(values, diagonal) else k
    with torch.no_grad():
        null = ground / torch.linalg.vector_norm(ground, dim=1, keepdim=True)
        problem = Problem(operator.frozen(), k, solve.allowed(values.dtype, values.dtype))
        checked = _solution(problem, count, null, bare, dtype)
    if checked is None:
        return None
    solution, residuals = checked
    vectors, projected = differentiable(operator, solution, solve.gradient_options(dtype, bare))
    found = Differentiated(factor[..., None] * vectors, projected)
    is_plain = factor is diagonal or factor is ground  # of ones: no factor
    pairs = Eigenpairs.of(solution, found, dtype)
    return dataclasses.replace(pairs, residuals=residuals, inner_product="identity" if is_plain else "degrees")


def _solution(
    problem: Problem, count: int, null: Tensor, factor: Tensor, dtype: torch.dtype
) -> tuple[Solution, Tensor] | None:
    """Return ``count`` pairs of plain graphs, else None, and the residuals of vectors rounded to ``dtype``."""
    # `check_answer` does the work of this function for all solvers, in twice the time.
    operator, k = problem.operator, problem.k
    assert isinstance(operator, SymmetricOperator)
    bound = operator.bound
    # Nodes that take no part have their eigenvalues far above the spectrum.
    matrix = torch.diag_embed(torch.where(operator.active, operator.diagonal, 4 * bound[:, None]))
    matrix -= operator.values
    # Below the spectrum, the null vector mixes with no vector of a small eigenvalue.
    shifted = torch.baddbmm(matrix, (bound[:, None] * null)[..., None], null[:, None], alpha=-1)
    values, vectors = eigh_of_batch(shifted, count, factor)
    values[:, 0], vectors[:, :, 0] = 0, null
    wanted, known, gap = vectors[:, :, :k], values[:, :k], values[:, k] - values[:, k - 1]
    residuals = _residuals(matrix, known, wanted)
    converged = residuals.amax(1) <= allowed_residual(problem.tolerance, gap, operator.round_off)
    is_connected = (values[:, 1] > 1e-9 * bound) & (values[:, k] <= 1.5 * bound)  # certainly, and k + 1 nodes take part
    if not precision.synchronise((converged & is_connected).all())[0]:
        return None
    rounded = residuals if dtype == values.dtype else _residuals(matrix, known, wanted.to(dtype).to(values.dtype))
    ritz = RitzPairs(values, vectors, 1, converged)
    # Connected: the second value is far above round-off.
    solution = Solution.of(operator, Eigh(), ritz, k, residuals=residuals, gap=gap, converged=converged, scale=bound)
    return solution, rounded


def _residuals(matrix: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
    """Return ‖A v − λ v‖ ``(B, k)`` for matrices ``(B, N, N)``."""
    rest = torch.baddbmm(vectors * values[:, None, :], matrix, vectors, beta=-1)
    return torch.linalg.vector_norm(rest, dim=1)  # type: ignore[no-any-return]
