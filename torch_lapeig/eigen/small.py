"""Eigenpairs of small graphs as one dense batch: few calls, all eigenvectors at once.

Graphs of up to some 200 nodes take less time as dense matrices than as lists of edges, because the calls are what takes
time. So a batch of them is one tensor ``(B, N, N)``, solved in float64 by one `eigh`, which costs about as much as in
float32 there and resolves what float32 does not. The derivatives are those of the one rule
(`torch_lapeig.eigen.rule`); its complement needs no linear solve where all eigenvectors are known.

Only plain graphs are solved here: finite, connected, of more nodes than pairs, and without degrees so small that they
underflow, or magnify round-off. `torch_lapeig.eigen.eigenpairs` has the warnings, errors and conventions for all
others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig._checks import primal
from torch_lapeig.eigen.blocks import eigh_of_batch
from torch_lapeig.eigen.check import Solution
from torch_lapeig.eigen.clusters import Rule
from torch_lapeig.eigen.eigh import Eigh
from torch_lapeig.eigen.laplacian import Normalization, needs_derivatives
from torch_lapeig.eigen.null_space import NullSpace
from torch_lapeig.eigen.rule import ImplicitEigenpairs
from torch_lapeig.eigen.solve import TOLERANCE, Eigenpairs
from torch_lapeig.eigen.solver import RitzPairs
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.nodes import signs
from torch_lapeig.graph.pattern import DensePattern

SMALL_NODES = 64  # up to which dense graphs take less time than sparse ones, whatever their number
SMALL_WORK = 2e7  # graphs · nodes³ up to which they do so, too: calls are what takes time
SMALL_NUMBERS = 2**24  # graphs · nodes² at most: 128 MiB a matrix of the batch, of which some ten are held at a time
# In terms of the bound of the spectrum:
CONNECTED = 1e-9  # second eigenvalue, from which on a graph is certainly connected
OUTSIDE = 1.5  # eigenvalue of nodes that take no part
ROUND_OFF = 40 * torch.finfo(torch.float64).eps  # residual that rounding leaves


def is_small(graphs: int, nodes: int) -> bool:
    """Return whether graphs of so many nodes are solved as a dense batch."""
    pays = nodes <= SMALL_NODES or graphs * nodes**3 <= SMALL_WORK
    return pays and graphs * nodes**2 <= SMALL_NUMBERS


class DenseGraphs(NamedTuple):
    """Matrices A = diag(c) − M of a batch of graphs in float64, with gradients.

    Attributes:
        values: M ``(B, N, N)``, symmetric, ≥ 0, without loops.
        diagonal: c ``(B, N)``, 1 or the degrees; 0 for nodes that take no part.
        active: bool ``(B, N)``, nodes that take part.
        ground: ``(B, N)``, in proportion to the null vector of a whole graph, D^½ 1 or 1; without gradients.
    """

    values: Tensor
    diagonal: Tensor
    active: Tensor
    ground: Tensor


def graphs_of_walk(values: Tensor, scale: Tensor, active: Tensor) -> DenseGraphs:
    """Return the matrices of D^-½ W D^-½ and D^-½."""
    return DenseGraphs(values, active.to(values.dtype), active, torch.where(active, 1 / primal(scale), 0))


def normalized_graphs(affinity: Tensor, active: Tensor, normalization: Normalization) -> tuple[DenseGraphs, Tensor]:
    """Return the matrices of affinities ``(B, N, N)``, and the factor ``(B, N)`` that their vectors take."""
    degrees = affinity.sum(2)
    if normalization == "unnormalized":
        one = active.to(affinity.dtype)
        return DenseGraphs(affinity, degrees, active, one), one
    scale = torch.where(active, degrees, 1).rsqrt() * active
    values = scale[:, :, None] * affinity * scale[:, None, :]
    graphs = graphs_of_walk(values, scale, active)
    return graphs, graphs.diagonal if normalization == "symmetric" else scale


def small_eigenpairs(
    graphs: DenseGraphs, factor: Tensor, k: int, rule: Rule, dtype: torch.dtype, tolerance: float | None = None
) -> tuple[Eigenpairs, Tensor]:
    """Return the ``k`` smallest pairs of each graph, with gradients, and where a graph is plain, bool ``(B,)``.

    What belongs to other graphs is not to be used.

    Args:
        graphs: at least ``k`` + 1 nodes wide. factor: ``(B, N)`` of the vectors, D^-½ for L y = λ D y.
        k: pairs with the trivial one.
        rule: options of the gradient. dtype: of the weights that were given.
        tolerance: of residuals, relative to the gap; default 1e-10.
    """
    is_differentiated = needs_derivatives(graphs.values, graphs.diagonal)
    count = graphs.values.shape[1] if is_differentiated else k
    solution, is_plain = _solution(graphs, factor, k, count, TOLERANCE if tolerance is None else tolerance)
    is_plain = is_plain & _has_plain_degrees(graphs, dtype)
    projected, vectors = torch.diag_embed(solution.values), solution.vectors
    if is_differentiated:
        projected, vectors = ImplicitEigenpairs.apply(graphs.values, graphs.diagonal, solution, rule)
    return Eigenpairs(
        values=projected.diagonal(dim1=1, dim2=2),
        vectors=factor[..., None] * vectors,
        projected=projected,
        residuals=solution.residuals,
        gap=solution.gap,
        converged=solution.converged,
        iterations=1,
        solver=solution.solver,
    ), is_plain


def _solution(graphs: DenseGraphs, factor: Tensor, k: int, count: int, tolerance: float) -> tuple[Solution, Tensor]:
    """Return all values of each matrix and ``count`` vectors, the first k as the wanted ones; and where it is plain."""
    values, diagonal, ground = primal(graphs.values), primal(graphs.diagonal), graphs.ground
    bound = 2 * diagonal.amax(1)
    outside = torch.where(graphs.active, diagonal, OUTSIDE * bound[:, None])
    matrix = torch.diag_embed(outside) - values
    is_sound = matrix.sum((1, 2)).isfinite()
    if not is_sound.all():
        matrix = torch.where(is_sound[:, None, None], matrix, 0)
    ritz, vectors = eigh_of_batch(matrix, count)
    ritz[:, 0] = 0
    vectors[:, :, 0] = ground / ground.square().sum(1, keepdim=True).sqrt()
    wanted, known, gap = vectors[:, :, :k], ritz[:, :k], ritz[:, k] - ritz[:, k - 1]
    wanted *= signs(primal(factor)[..., None] * wanted)  # of the answer
    rest = torch.baddbmm(wanted * known[:, None, :], matrix, wanted, beta=-1)
    residuals = rest.square().sum(1).sqrt()
    converged = residuals.amax(1) <= torch.maximum(tolerance * gap, ROUND_OFF * bound)
    is_connected = (ritz[:, 1] > CONNECTED * bound) & (ritz[:, k] < 0.9 * OUTSIDE * bound)
    solution = Solution(
        operator=_operator(graphs, values, diagonal, bound),
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
    return solution, is_sound & converged & is_connected


def _has_plain_degrees(graphs: DenseGraphs, dtype: torch.dtype) -> Tensor:
    """Return where no degree is so small that derivatives may overflow, or that D^-½ magnifies round-off, ``(B,)``."""
    least = torch.where(graphs.active, graphs.ground, torch.inf).amin(1).square()
    largest = graphs.ground.amax(1).square()
    info = torch.finfo(dtype)
    is_in_range = (least > info.tiny**0.25) & (largest < info.max**0.25)
    plain: Tensor = is_in_range & (least > torch.finfo(torch.float64).eps ** 0.75 * largest)
    return plain


def _operator(graphs: DenseGraphs, values: Tensor, diagonal: Tensor, bound: Tensor) -> SymmetricOperator:
    """Return the matrices as the operator of the rule."""
    part = torch.zeros_like(graphs.active, dtype=torch.int64)
    return SymmetricOperator(
        DensePattern._trusted(tuple(diagonal.shape)),
        values,
        diagonal,
        bound=bound,
        null=NullSpace(graphs.ground, part, part.new_ones(len(part))),
        active=graphs.active,
        of_affinities=True,
        trusted=True,
    )
