"""The few smallest eigenpairs of a Laplacian, with the one differentiation rule of the library."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.direct import SparseLU
from torch_lapeig.graph import Graph
from torch_lapeig.laplacian import Laplacian, Normalization
from torch_lapeig.operator import SymmetricOperator
from torch_lapeig.solvers import (
    ChebyshevSubspace,
    Eigh,
    Lanczos,
    Lobpcg,
    Progress,
    RitzPairs,
    Solver,
    allowed_residual,
    multigrid,
)
from torch_lapeig.tails import with_tails

Degeneracy = Literal["mask", "lorentz", "exact"]

# Dense `eigh` wins up to about here, in graphs · nodes³: one graph of 430 nodes, or 64 of 108 (measured on 2 cores).
DENSE_WORK = 8e7
# Graphs of a batch are solved together up to here, and one by one beyond; one graph up to here is left to Lanczos for
# longer.
SMALL_NODES = 2000
# What does not converge otherwise is done again by `Eigh` up to here: 8000² float64 are 0.5 GiB.
FALLBACK_NODES = 8000
# Where the spectrum begins so crowded that multigrid is faster, see `Lanczos`: rolls and rings have 10 to 15, data of
# five and more dimensions 20 and more. Otherwise 150 to 300 products are usual.
CROWDED, MOST_PRODUCTS = 17.5, 1000
BACKWARD_ITERATIONS = 2000
# One sparse graph of more nodes is solved in reverse Cuthill–McKee order: its products are several times faster.
REORDER_NODES = 10**5


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The k smallest eigenpairs of a Laplacian, with the quality of the answer.

    Attributes:
        values: ascending ``(k,)`` or ``(B, k)``; carry gradients.
        vectors: ``(N, k)`` or ``(B, N, k)``, rows of nodes of degree zero are zero; carry gradients. Orthonormal, but
            for ``normalization="random_walk"`` the generalised eigenvectors y = D^-½ v of L y = λ D y with
            Yᵀ D Y = I. The entry of largest magnitude of each is positive (the first of those within 0.1 %).
        projected: Λ = Vᵀ A V of the symmetric operator, diag(``values``) as a matrix ``(k, k)`` or ``(B, k, k)``. Where
            eigenvalues may coincide, functions of values and vectors together (diffusion distances, heat kernels) have
            correct gradients only through it: ``V @ torch.matrix_exp(-projected) @ V.mT``, not ``values.neg().exp()``.
        residuals: ‖A v − λ v‖ of each pair of the symmetric operator, same shape as ``values``.
        gap: λ_{k+1} − λ_k, ``()`` or ``(B,)``; infinite if there is no further pair.
        converged: bool ``()`` or ``(B,)``: all residuals allowed by the tolerance, and vectors orthonormal.
        iterations: of the solver.
        solver: the one that gave the answer.
        restart: what ``warm_start`` needs: all vectors the solver had, and its multigrid hierarchies.
    """

    values: Tensor
    vectors: Tensor
    projected: Tensor
    residuals: Tensor
    gap: Tensor
    converged: Tensor
    iterations: int
    solver: Solver
    restart: Restart = field(repr=False)


@dataclass(frozen=True, eq=False)
class Restart:
    """Where a solver stopped, for the next solve of a similar problem: in the node order it worked in, if not None."""

    ritz: RitzPairs
    solver: Solver
    order: Tensor | None


@_checks.full_precision
def eigenpairs(
    laplacian: SymmetricOperator,
    k: int,
    solver: Solver | None = None,
    *,
    tolerance: float | None = None,
    backward_tolerance: float | None = None,
    degeneracy: Degeneracy = "mask",
    cluster_width: float | None = None,
    warm_start: Eigenpairs | None = None,
    fill: bool = False,
    on_failure: Literal["warn", "raise"] = "warn",
    progress: Progress | bool = False,
) -> Eigenpairs:
    """The ``k`` smallest eigenpairs of a Laplacian, differentiable in its weights.

    The null space is set in closed form: the first pairs are 0 with the D^½-weighted indicators of the connected
    components, the first of them constant over the whole graph. Nodes of degree zero take no part.

    Args:
        laplacian: of one graph or a batch, in any normalisation; or another `SymmetricOperator`.
        k: pairs, 1 ≤ k ≤ number of nodes of positive degree (of each graph of a batch, see ``fill``), trivial ones
            included.
        solver: `Eigh`, `ChebyshevSubspace`, `Lanczos`, `Lobpcg`, `TorchLobpcg`, or None for a choice by size, storage,
            batch and hardness, with another one should the first not converge (docs/theory.md has the table). Where
            float32 does not resolve the gap (residual > gap / 10) it is done in float64 and the answer rounded.
        tolerance: residual allowed, relative to the gap after the k-th value, but never below round-off; default
            1e-10 in float64 and 1e-4 in float32.
        backward_tolerance: relative residual of the backward's linear solve; default 1e-10 and 1e-4.
        degeneracy: how eigenvalues closer than the cluster width enter the gradient. ``"mask"``: their rotation into
            each other is left out, which is exact for losses that do not depend on the basis of an eigenspace.
            ``"lorentz"``: 1/Δ becomes Δ/(Δ² + width²), smooth in Δ and finite for any loss, but biased.
            ``"exact"``: 1/Δ as it is, right for any loss as long as the eigenvalues are distinct, noise
            or NaN where they are not.
        cluster_width: see ``degeneracy``; default the larger of 50 eps · bound of the spectrum and 10 residuals.
        warm_start: eigenpairs of a similar problem of the same size, from an earlier step of a training. Begins with
            its vectors and keeps its multigrid hierarchy as long as that leads to the answer quickly.
        fill: let graphs have fewer than ``k`` nodes of positive degree, or none at all, as in batches of unequal
            sizes. The pairs they lack have zero vectors, eigenvalues +∞ (zero in ``projected``), and no gradient.
        on_failure: what to do where a graph has not converged: ``"warn"`` or ``"raise"``.
        progress: True for a bar by tqdm (to be installed), or a function of (iteration, largest residual, residual
            allowed), called in every iteration of an iterative solver.

    Gradients follow the implicit rule below, never that of ``torch.linalg.eigh``: they are finite, and with equal
    eigenvalues exact for losses that do not depend on the choice of basis in an eigenspace (that mix values and vectors
    through `Eigenpairs.projected`). A `DegeneracyWarning` says when a loss does, or when the cut between k and k + 1
    splits a cluster of eigenvalues. Forward-mode derivatives (`torch.autograd.forward_ad`) follow the same rule.

    Raises:
        TypeError, ValueError: k out of range, unknown option, a warm start of another size. ConvergenceError: see
        ``on_failure``; `TorchLobpcg` also raises it where `torch.lobpcg` breaks down. ImportError: no tqdm.
    """
    if not isinstance(laplacian, SymmetricOperator):
        raise TypeError(f"laplacian must be a Laplacian, got {type(laplacian).__name__}; use Laplacian(graph)")
    if solver is not None and (isinstance(solver, type) or not callable(solver)):
        raise TypeError(f"solver must be a solver such as Eigh(), got {solver!r}")
    symmetric, factor = laplacian.symmetrized()
    _check_request(symmetric, k, on_failure, fill, solver)
    rule = _rule(symmetric, backward_tolerance, degeneracy, cluster_width)
    tolerance = (1e-10 if symmetric.values.dtype == torch.float64 else 1e-4) if tolerance is None else tolerance
    _checks.check_positive(tolerance, "tolerance")
    graph = laplacian.graph
    restart = None if warm_start is None else _checked_restart(warm_start, symmetric)
    operator, order = symmetric, None
    if graph.is_sparse and len(graph.shape) == 1 and graph.num_nodes > REORDER_NODES:
        operator, order = symmetric.reordered(None if restart is None else restart.order)
    with torch.no_grad(), _reporting(progress) as report:
        solution = _solve(operator.frozen(), min(k, graph.num_nodes), solver, tolerance, restart, report)
    if not solution.converged.all():
        _report_failure(solution, on_failure)
    projected, vectors = _ImplicitEigenpairs.apply(operator.values, operator.diagonal, solution, rule)
    projected, vectors, values, residuals = _filled(projected, vectors, solution, k)
    if order is not None:
        vectors = torch.empty_like(vectors).index_copy(1, order, vectors)
    if factor is not None:
        y = factor.reshape(vectors.shape[:2])[..., None] * vectors
        if isinstance(laplacian, Laplacian) and laplacian.normalization == "random_walk" and laplacian.uneven.any():
            y = with_tails(laplacian, vectors, y, projected)
        vectors = _signed(y)
    lead = graph.shape[:-1]
    return Eigenpairs(
        values=values.reshape(*lead, k),
        vectors=vectors.reshape(*graph.shape, k),
        projected=projected.reshape(*lead, k, k),
        residuals=residuals.reshape(*lead, k),
        gap=solution.gap.reshape(lead),
        converged=solution.converged.reshape(lead),
        iterations=solution.ritz.iterations,
        solver=solution.solver,
        restart=Restart(solution.ritz, solution.solver, order),
    )


@dataclass(frozen=True, eq=False)
class ComponentEigenpairs:
    """Eigenpairs of one connected component: its ``nodes``, int64 ``(M,)`` in ascending order, and their ``pairs``."""

    nodes: Tensor
    pairs: Eigenpairs


def component_eigenpairs(
    graph: Graph, k: int, normalization: Normalization = "symmetric", solver: Solver | None = None, **options: Any
) -> list[ComponentEigenpairs]:
    """The ``k`` smallest eigenpairs of each connected component on its own, differentiable in the weights.

    Args:
        graph: one graph or a batch; in a batch the nodes are numbered through as ``b * N + i``.
        k: pairs of each component, or as many as it has nodes. The first one is trivial.
        normalization: of the Laplacians. solver, options: see `eigenpairs`.

    Returns:
        The components of two or more nodes, by their first nodes; isolated nodes have no eigenpairs.
    """
    _checks.check_count(k, "k")
    found = []
    for nodes in graph.nodes_of_components():
        laplacian = Laplacian(graph.subgraph(nodes), normalization)
        found.append(ComponentEigenpairs(nodes, eigenpairs(laplacian, min(k, len(nodes)), solver, **options)))
    return found


@contextlib.contextmanager
def _reporting(progress: Progress | bool) -> Iterator[Progress | None]:
    """The function to call in every iteration."""
    if progress is not True:
        yield progress or None
        return
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm, or pass a function") from error
    with tqdm(desc="eigenpairs", unit=" iterations") as bar:

        def show(iteration: int, residual: float, allowed: float) -> None:
            bar.set_postfix_str(f"residual {residual:.1e}, goal {allowed:.1e}", refresh=False)
            bar.update(iteration - bar.n)

        yield show


def _filled(projected: Tensor, vectors: Tensor, s: _Solution, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Λ, V, values and residuals of ``k`` pairs, of which a graph may lack the last; see ``fill``."""
    if k <= s.operator.fewest_active:
        return projected, vectors, projected.diagonal(dim1=-2, dim2=-1), s.residuals
    more = k - s.values.shape[1]
    pad = torch.nn.functional.pad
    present = pad(s.present, (0, more))
    # Nothing flows back from a pair that is not there, whatever a loss makes of it.
    vectors = torch.where(present[:, None, :], pad(vectors, (0, more)), 0)
    projected = torch.where(present[:, None, :] & present[:, :, None], pad(projected, (0, more, 0, more)), 0)
    values = torch.where(present, projected.diagonal(dim1=-2, dim2=-1), torch.inf)
    return projected, vectors, values, pad(s.residuals, (0, more))


def _check_request(operator: SymmetricOperator, k: int, on_failure: str, fill: bool, solver: Solver | None) -> None:
    _checks.check_count(k, "k")
    _checks.check_choice(on_failure, "on_failure", ("warn", "raise"))
    operator.check()
    if k > operator.fewest_active and fill and solver is not None and not isinstance(solver, Eigh):
        raise ValueError(f"solver must be Eigh() or None to fill graphs of fewer than k={k} nodes, got {solver}")
    if k > (fewest := operator.fewest_active) and not fill:
        item = int(operator.active.reshape(operator.graph.batch_size, -1).sum(1).argmin())
        raise ValueError(
            f"k must be at most the number of nodes of positive degree, got k={k} with {fewest} of them in graph {item}"
        )


def _checked_restart(warm_start: Eigenpairs, operator: SymmetricOperator) -> Restart:
    if not isinstance(warm_start, Eigenpairs):
        raise TypeError(f"warm_start must be Eigenpairs, got {type(warm_start).__name__}")
    restart, graph = warm_start.restart, operator.graph
    given, expected = tuple(restart.ritz.vectors.shape[:2]), (graph.batch_size, graph.num_nodes)
    if given != expected:
        raise ValueError(f"warm_start must be of {expected[0]} graphs of {expected[1]} nodes, got {given}")
    vectors = restart.ritz.vectors.to(operator.values)
    return dataclasses.replace(restart, ritz=restart.ritz._replace(vectors=vectors))


@dataclass(frozen=True)
class _Solution:
    """Checked eigenpairs of a symmetric operator, batched; guards are further, approximate pairs."""

    operator: SymmetricOperator
    solver: Solver
    ritz: RitzPairs
    values: Tensor  # (B, k)
    vectors: Tensor  # (B, N, k)
    present: Tensor  # (B, k), False where a graph has no such pair: its vector is zero, its value above the spectrum
    guard_values: Tensor  # (B, g)
    guard_vectors: Tensor  # (B, N, g)
    residuals: Tensor  # (B, k)
    gap: Tensor  # (B,)
    converged: Tensor  # (B,)


def _solve(
    operator: SymmetricOperator,
    k: int,
    solver: Solver | None,
    tolerance: float,
    restart: Restart | None,
    progress: Progress | None,
) -> _Solution:
    """The solution of a solver or of the one that suits the problem; in float64 where float32 does not resolve it."""
    start = None if restart is None else restart.ritz
    candidates = (solver,) if solver is not None else _candidates(operator, k, restart)
    if operator.values.dtype == torch.float64:
        return _first_finished(operator, k, candidates, tolerance, start, progress)
    # Of float32 the first choice is asked, but not multigrid: what that is needed for is beyond float32.
    if solver is not None or not isinstance(candidates[0], Lobpcg):
        solution = _first_finished(operator, k, candidates[:1], tolerance, start, progress)
        done = solver is not None or bool(solution.converged.all())
        if done and (solution.residuals.amax(1) <= 0.1 * solution.gap).all():
            return solution
    start = None if start is None else start._replace(vectors=start.vectors.double())
    return _rounded(_first_finished(operator.double(), k, candidates, tolerance, start, progress), operator)


def _rounded(finer: _Solution, operator: SymmetricOperator) -> _Solution:
    """A float64 solution in the precision of the operator."""
    cast: dict[str, Any] = {
        field.name: value.to(operator.values.dtype)
        for field in dataclasses.fields(finer)
        if isinstance(value := getattr(finer, field.name), Tensor) and value.is_floating_point()
    }
    rounded = dataclasses.replace(finer, operator=operator, **cast)
    # The residuals of what is returned, not of what it was rounded from.
    residuals = _residuals(operator, rounded.values, rounded.vectors)
    converged = rounded.converged & (residuals.amax(1) <= operator.round_off)
    return dataclasses.replace(rounded, residuals=residuals, converged=converged)


def _candidates(operator: SymmetricOperator, k: int, restart: Restart | None) -> tuple[Solver, ...]:
    """The solvers to try one after the other."""
    graph, chebyshev = operator.graph, ChebyshevSubspace()
    n = graph.num_nodes
    if graph.batch_size * n**3 <= DENSE_WORK or operator.fewest_active < 4 * chebyshev.block_size(k):
        return (Eigh(),)
    last: Solver = Eigh() if n <= FALLBACK_NODES else Lanczos()
    if graph.batch_size == 1 and not isinstance(operator, Laplacian):  # kernels are dense and their spectra decay
        return (Lobpcg(preconditioner=SparseLU() if graph.is_sparse else None), last)
    if graph.is_sparse and (graph.batch_size == 1 or n > SMALL_NODES):
        if restart is not None and isinstance(restart.solver, Lobpcg):
            return (Lobpcg(), last)
        return (Lanczos(max_products=MOST_PRODUCTS, crowded=CROWDED if n > SMALL_NODES else 0.0), Lobpcg(), last)
    return (chebyshev, Lobpcg(), last) if n > FALLBACK_NODES else (chebyshev, last)


def _first_finished(
    operator: SymmetricOperator,
    k: int,
    candidates: tuple[Solver, ...],
    tolerance: float,
    start: RitzPairs | None,
    progress: Progress | None,
) -> _Solution:
    for solver in candidates[:-1]:
        ritz = solver(operator, k, tolerance, start, progress)
        if ritz.finished and (solution := _checked(operator, k, solver, tolerance, ritz)).converged.all():
            return solution
    ritz = candidates[-1](operator, k, tolerance, start, progress)
    return _checked(operator, k, candidates[-1], tolerance, ritz)


def _residuals(operator: SymmetricOperator, values: Tensor, vectors: Tensor) -> Tensor:
    """‖A v − λ v‖ ``(B, k)``."""
    image = operator.matmul(vectors.reshape(*operator.graph.shape, -1)).reshape(vectors.shape)
    return _norms(operator, image - values[:, None, :] * vectors)


def _checked(operator: SymmetricOperator, k: int, solver: Solver, tolerance: float, ritz: RitzPairs) -> _Solution:
    """A solver's pairs with the null space in closed form, float64 Rayleigh quotients, residuals, gap and status."""
    basis, dimension = _with_exact_null_space(operator, ritz.vectors)
    null = torch.arange(basis.shape[2], device=basis.device) < dimension[:, None]
    guard_values = ritz.values.masked_fill(null, 0)[:, k:]
    active = operator.active.reshape(basis.shape[:2])
    present = torch.arange(k, device=basis.device) < active.sum(1, keepdim=True)
    vectors = _signed(basis[..., :k] * (active[..., None] & present[:, None, :]))
    image = operator.matmul(vectors.reshape(*operator.graph.shape, k)).reshape(vectors.shape)
    squares = vectors.double().square().sum(1)
    quotients = (vectors.double() * image.double()).sum(1) / torch.where(present, squares, 1)
    quotients = quotients.clamp_min(0).masked_fill(null[:, :k], 0).to(vectors.dtype)
    # Ascending is the contract, and round-off may exchange neighbours.
    values, order = torch.where(present, quotients, operator.bound[:, None] + 1).sort(dim=1, stable=True)
    vectors, image = (t.gather(2, order[:, None, :].expand_as(t)) for t in (vectors, image))
    residuals = _norms(operator, image - values[:, None, :] * vectors)
    allowed = allowed_residual(torch.cat([values, guard_values[:, :1]], 1), k, operator.round_off, tolerance)
    gram = operator.inner(vectors, vectors)
    skewness = (gram - torch.diag_embed(present.to(gram.dtype))).abs().amax((1, 2))
    return _Solution(
        operator=operator,
        solver=solver,
        ritz=ritz,
        values=values,
        vectors=vectors,
        present=present,
        guard_values=guard_values,
        guard_vectors=basis[..., k:],
        residuals=residuals,
        gap=_gap(operator, values, guard_values),
        converged=(residuals.amax(1) <= allowed) & (skewness <= math.sqrt(torch.finfo(gram.dtype).eps)),
    )


def _gap(operator: SymmetricOperator, values: Tensor, guard_values: Tensor) -> Tensor:
    """λ_{k+1} − λ_k ``(B,)``; infinite where the k pairs are all there are."""
    k = values.shape[1]
    exhausted = operator.active.reshape(len(values), -1).sum(1) <= k
    following = guard_values[:, 0] if guard_values.shape[1] else values[:, -1]
    return (following - values[:, -1]).clamp_min(0).masked_fill(exhausted, torch.inf)


def _with_exact_null_space(operator: SymmetricOperator, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors with the known null vectors in front, the others orthogonal to them; null dimension ``(B,)``."""
    c = min(int(operator.nullity.max()), vectors.shape[2])
    null, dimension = operator.null_vectors(c)
    rest = vectors - null @ operator.inner(null, vectors)
    rest = rest / _norms(operator, rest)[:, None, :].clamp_min(torch.finfo(rest.dtype).tiny)
    known = torch.arange(c, device=vectors.device) < dimension[:, None]
    return torch.cat([torch.where(known[:, None, :], null, rest[..., :c]), rest[..., c:]], 2), dimension


def _signed(vectors: Tensor) -> Tensor:
    """Turn each column so that its entry of largest magnitude is positive; the factor carries no gradient.

    Among entries within 0.1 % of the largest the first one counts, so that round-off cannot decide between the two
    ends of a symmetric graph.
    """
    size = vectors.detach().abs()
    first = (size >= 0.999 * size.amax(-2, keepdim=True)).to(torch.int8).argmax(-2, keepdim=True)
    sign = vectors.detach().gather(-2, first).sign()
    turned: Tensor = vectors * torch.where(sign == 0, 1, sign)
    return turned


def _report_failure(solution: _Solution, on_failure: str) -> None:
    worst = int(solution.residuals.amax(1).argmax())
    message = (
        f"{solution.solver} has not converged after {solution.ritz.iterations} iterations: "
        f"{int((~solution.converged).sum())} of {len(solution.converged)} graphs, largest residual "
        f"{solution.residuals[worst].max():.2e} with a gap of {solution.gap[worst]:.2e}; use Eigh(), more "
        "iterations, or a larger tolerance"
    )
    if on_failure == "raise":
        raise _checks.ConvergenceError(message)
    warnings.warn(message, _checks.ConvergenceWarning, stacklevel=4)


def _norms(operator: SymmetricOperator, x: Tensor) -> Tensor:
    """Norms ``(B, m)`` of the columns of ``(B, N, m)``."""
    return operator.dots(x, x).sqrt()


# The differentiation rule
# ------------------------
# A = diag(c) − M is symmetric with A v_i = λ_i v_i, V = [v_1 … v_k], P = I − V Vᵀ. For a change dA:
#
#     dλ_i = v_iᵀ dA v_i
#     dv_i = Σ_{j≠i, j≤k} v_j (v_jᵀ dA v_i) / (λ_i − λ_j)  −  [P (A − λ_i) P]⁺ dA v_i
#
# With cotangents λ̄ and V̄ and C = Vᵀ V̄ the gradient is the symmetric part of Σ_i y_i v_iᵀ,
#
#     Y = V (diag λ̄ + F ∘ ½(C − Cᵀ)) + Z,   F_ji = 1/(λ_i − λ_j), F_ii = 0,   z_i = −[P (A − λ_i) P]⁺ P v̄_i,
#
# of which only the entries on the edges and the diagonal are ever formed. The skew part of C is what is left of C once
# the two terms of a pair (i, j) are put together, because F is skew itself.
#
# Equal eigenvalues. Where |λ_i − λ_j| is round-off, F_ji is set to 0. For a loss that does not change when the basis of
# the eigenspace is turned, the skew part of C vanishes there, so nothing is lost and the gradient is exact, where
# 1/(λ_i − λ_j) would be 0 · ∞. If it does not vanish, the loss has no gradient: a warning says so. If the cut k | k+1
# goes through a cluster, the eigenspace itself has no gradient (it grows like 1/gap): a warning too, and the
# cluster's guard vectors are left out of Z, so that the answer stays finite.
#
# Z by conjugate gradients: on the complement of V every A − λ_i is positive semidefinite. The guards U of the solver
# precondition them by U (Λ_U − λ_i)⁻¹ Uᵀ + (I − U Uᵀ). After `Eigh`, U is the whole complement, the preconditioner is
# the inverse, and the first guess is the answer: one rule serves every solver.
#
# Second derivatives: every step is differentiable, V and λ are outputs of the rule itself, and Z is the solution of
#
#     A Z − Z Λ + V μ = −V̄,   Vᵀ Z = 0,
#
# a symmetric system. With Y the solution for the cotangent Z̄ in the place of V̄, and ν for μ, the cotangents are
# those of A: Y Zᵀ, of Λ: −Zᵀ Y, of V: Y μᵀ + Z νᵀ, and of V̄: Y, with μ = −Vᵀ (V̄ + A Z) and ν = −Vᵀ (Z̄ + A Y).
# A perturbation turns the basis of a cluster by first-order angles while Λ = Vᵀ A V becomes a full matrix on it. Only
# both together are well defined, so the rule returns Λ as a matrix: its entries off the diagonal are zero within a
# cluster, but their cotangents carry what the masked rotation leaves out.


@dataclass(frozen=True)
class _Rule:
    """Options of the differentiation rule; see `eigenpairs`."""

    tolerance: float
    degeneracy: Degeneracy
    width: float | None


class _ImplicitEigenpairs(torch.autograd.Function):
    """(M on the edges, c) -> (Λ, V) of a solution found beforehand."""

    @staticmethod
    @_checks.without_autocast
    def forward(edges: Tensor, diagonal: Tensor, solution: _Solution, rule: _Rule) -> tuple[Tensor, Tensor]:
        return torch.diag_embed(solution.values), solution.vectors.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        edges, diagonal, ctx.solution, ctx.rule = inputs
        ctx.save_for_backward(edges, diagonal, *output)
        ctx.save_for_forward(edges, diagonal, *output)

    @staticmethod
    @_checks.without_autocast
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        edges, diagonal, projected, vectors = ctx.saved_tensors
        s: _Solution = ctx.solution
        to_projected, to_vectors = cotangents
        values = projected.diagonal(dim1=-2, dim2=-1)
        inverse, cluster = _inverse_differences(values, values, s, ctx.rule)
        skew = s.operator.inner(vectors, to_vectors)
        skew = (skew - skew.mT) / 2
        _warn_if_undefined(s, ctx.rule, to_projected.detach(), to_vectors.detach(), skew.detach())
        rotation = inverse * skew
        # Zero, but for its derivative: X Λ − Λ X = ½(C − Cᵀ) with the entries of Λ off its diagonal.
        off = projected - torch.diag_embed(values)
        rotation = rotation - inverse * (rotation @ off - off @ rotation)
        y = vectors @ (cluster * (to_projected + to_projected.mT) / 2 + rotation)
        y = y + _ComplementSolve.apply(edges, diagonal, projected, vectors, to_vectors, s, ctx.rule)
        return *_edge_gradient(s, y, vectors), None, None

    @staticmethod
    @_checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor]:
        edges, diagonal, projected, vectors = ctx.saved_tensors
        s: _Solution = ctx.solution
        values = projected.diagonal(dim1=-2, dim2=-1)
        inverse, cluster = _inverse_differences(values, values, s, ctx.rule)
        change = _change(s, tangents[0], tangents[1], vectors)  # dA V
        turned = s.operator.inner(vectors, change)
        z = _ComplementSolve.apply(edges, diagonal, projected, vectors, change, s, ctx.rule)
        return cluster * (turned + turned.mT) / 2, vectors @ (inverse * turned) + z


class _ComplementSolve(torch.autograd.Function):
    """(M on the edges, c, Λ, V, V̄) -> Z of the rule above."""

    @staticmethod
    @_checks.without_autocast
    def forward(
        edges: Tensor,
        diagonal: Tensor,
        projected: Tensor,
        vectors: Tensor,
        g: Tensor,
        solution: _Solution,
        rule: _Rule,
    ) -> Tensor:
        # The squares of cotangents of tiny degrees would overflow.
        scale = _checks.power_of_two(g, (1,))
        return _complement_solve(solution, g / scale, rule) * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.solution, ctx.rule = inputs
        ctx.save_for_backward(*tensors, output)
        ctx.save_for_forward(*tensors, output)

    @staticmethod
    @_checks.without_autocast
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        edges, diagonal, projected, vectors, g, z = ctx.saved_tensors
        s: _Solution = ctx.solution
        (to_z,) = cotangents
        y = _ComplementSolve.apply(edges, diagonal, projected, vectors, to_z, s, ctx.rule)
        of_g, of_z = (_multiplier(s, edges, diagonal, vectors, rhs, x) for rhs, x in ((g, z), (to_z, y)))
        to_vectors = y @ of_g.mT + z @ of_z.mT
        return *_edge_gradient(s, y, z), -s.operator.inner(z, y), to_vectors, y, None, None

    @staticmethod
    @_checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        edges, diagonal, projected, vectors, g, z = ctx.saved_tensors
        s: _Solution = ctx.solution
        of_projected, of_vectors, of_g = (
            torch.zeros_like(x) if t is None else t for t, x in zip(tangents[2:5], (projected, vectors, g), strict=True)
        )
        multiplier = _multiplier(s, edges, diagonal, vectors, g, z)
        rhs = of_g + _change(s, tangents[0], tangents[1], z) - z @ of_projected + of_vectors @ multiplier
        outside = _ComplementSolve.apply(edges, diagonal, projected, vectors, rhs, s, ctx.rule)
        change: Tensor = outside - vectors @ s.operator.inner(of_vectors, z)
        return change


def _multiplier(s: _Solution, edges: Tensor, diagonal: Tensor, vectors: Tensor, rhs: Tensor, x: Tensor) -> Tensor:
    """μ of A X − X Λ + V μ = −RHS: −Vᵀ (RHS + A X)."""
    product = s.operator.graph.pattern.matmul(edges, x)
    return -s.operator.inner(vectors, rhs + diagonal.reshape(x.shape[:2])[..., None] * x - product)


def _change(s: _Solution, edges: Tensor | None, diagonal: Tensor | None, x: Tensor) -> Tensor:
    """dA X for changes of M on the edges and of c, of which the symmetric part counts."""
    pattern = s.operator.graph.pattern
    product = torch.zeros_like(x)
    if diagonal is not None:
        product = product + diagonal.reshape(x.shape[:2])[..., None] * x
    if edges is not None:
        product = product - pattern.matmul((edges + pattern.transpose(edges)) / 2, x)
    return product


def _edge_gradient(s: _Solution, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient in M on the edges and in c of <A, Σ_i y_i v_iᵀ> for A = diag(c) − (M + Mᵀ)/2."""
    pattern = s.operator.graph.pattern
    both = pattern.products(torch.cat([y, v], -1), torch.cat([v, y], -1))  # cheaper than finding the reversed edges
    return both / -2, (y * v).sum(-1).reshape(pattern.shape)


def _rule(operator: SymmetricOperator, tolerance: float | None, degeneracy: Degeneracy, width: float | None) -> _Rule:
    _checks.check_choice(degeneracy, "degeneracy", ("mask", "lorentz", "exact"))
    if width is not None:
        _checks.check_positive(width, "cluster_width")
    double = operator.values.dtype == torch.float64
    tolerance = (1e-10 if double else 1e-4) if tolerance is None else tolerance
    _checks.check_positive(tolerance, "backward_tolerance")
    return _Rule(tolerance, degeneracy, width)


def _cluster_width(s: _Solution, rule: _Rule) -> Tensor:
    """Difference ``(B, 1, 1)`` at which eigenvalues count as equal: round-off of the spectrum, or 10 residuals.

    At a distance δ the gradient of a pair's rotation is uncertain by eps / δ of itself: 1 % at 50 eps of the bound.
    """
    if rule.width is not None:
        return s.gap.new_full((len(s.gap), 1, 1), rule.width)
    round_off = 50 * torch.finfo(s.values.dtype).eps * s.operator.bound
    width: Tensor = torch.maximum(10 * s.residuals.amax(1), round_off)
    return width[:, None, None]


def _inverse_differences(rows: Tensor, columns: Tensor, s: _Solution, rule: _Rule) -> tuple[Tensor, Tensor]:
    """1 / (columns_i − rows_j) as ``(B, j, i)``, by the rule for small ones; and where they are small, as 0 and 1."""
    difference, width = columns[:, None, :] - rows[:, :, None], _cluster_width(s, rule)
    equal = difference.abs() <= width
    if rule.degeneracy == "lorentz":
        broadened: Tensor = difference / (difference.square() + width.square())
        return broadened, equal.to(rows.dtype)
    if rule.degeneracy == "exact":  # but for each value and itself
        equal = torch.eye(*equal.shape[1:], dtype=torch.bool, device=equal.device).expand(equal.shape)
    return torch.where(equal, 0, 1 / torch.where(equal, 1, difference)), equal.to(rows.dtype)


def _complement_solve(s: _Solution, g: Tensor, rule: _Rule) -> Tensor:
    """Z of the rule above, ``(B, N, k)``, by preconditioned block conjugate gradients with a shift per column."""
    operator, tolerance = s.operator, rule.tolerance
    multigrid_inverse = multigrid(operator, s.ritz.hierarchies)
    # A cluster that the cut splits cannot be told from V: its guards are left out, whatever the rule within V.
    inverse, split = _inverse_differences(s.guard_values, s.values, s, dataclasses.replace(rule, degeneracy="mask"))
    inverse = -inverse  # (Λ_U − λ_i)⁻¹

    def project(x: Tensor) -> Tensor:
        x = x - s.vectors @ operator.inner(s.vectors, x)
        return x - s.guard_vectors @ (split * operator.inner(s.guard_vectors, x))

    def precondition(r: Tensor) -> Tensor:
        coefficients = operator.inner(s.guard_vectors, r)
        if multigrid_inverse is None:
            return project(r + s.guard_vectors @ ((inverse - 1) * coefficients))
        rest = multigrid_inverse(r - s.guard_vectors @ coefficients)
        again = operator.inner(s.guard_vectors, rest)
        return project(rest + s.guard_vectors @ (inverse * coefficients - again))

    def image(x: Tensor) -> Tensor:
        ax = operator.matmul(x.reshape(*operator.graph.shape, -1)).reshape(x.shape)
        return project(ax - s.values[:, None, :] * x)

    target = -project(g * operator.active.reshape(g.shape[:2])[..., None])

    def excess(r: Tensor, z: Tensor) -> Tensor:
        # What is left of g after the projection, and of A z, is not better than their round-off.
        floor = 8 * torch.finfo(z.dtype).eps * (operator.bound[:, None] * _norms(operator, z) + size)
        return _norms(operator, r) - torch.maximum(tolerance * _norms(operator, target), floor)

    size = _norms(operator, g)
    z = precondition(target)
    r = target - image(z)
    direction, energy = torch.zeros_like(z), torch.ones_like(s.values)
    for _ in range(BACKWARD_ITERATIONS):
        going = excess(r, z) > 0  # converged columns stand still
        if not going.any():
            return z
        conditioned = precondition(r)
        fresh = operator.dots(r, conditioned)
        direction = conditioned + torch.where(going, fresh / energy, 0)[:, None, :] * direction
        energy = fresh
        pushed = image(direction)
        step = torch.where(going, fresh / operator.dots(direction, pushed), 0)[:, None, :]
        z, r = z + step * direction, r - step * pushed
    warnings.warn(
        f"the linear solve of the gradient has not converged in {BACKWARD_ITERATIONS} iterations: residual norms up to "
        f"{_norms(operator, r).max():.1e} of {_norms(operator, target).max():.1e}",
        _checks.ConvergenceWarning,
        stacklevel=2,
    )
    return z


def _warn_if_undefined(s: _Solution, rule: _Rule, to_projected: Tensor, to_vectors: Tensor, skew: Tensor) -> None:
    """Warn where equal eigenvalues make the gradient undefined: three ways in which a loss can tell them apart.

    Its skew part within a cluster, which is masked, is not zero; its gradients to equal eigenvalues differ, though it
    does not take their matrix (`Eigenpairs.projected`); the cut k | k+1 goes through a cluster.
    """
    noise = math.sqrt(torch.finfo(to_vectors.dtype).eps)
    size = to_vectors.norm(dim=(1, 2))
    equal = _inverse_differences(s.values, s.values, s, dataclasses.replace(rule, degeneracy="mask"))[1]
    lost = skew * equal
    to_values = to_projected.diagonal(dim1=-2, dim2=-1)
    spread = (equal * (to_values[:, :, None] - to_values[:, None, :])).abs().amax((1, 2))
    whole = to_projected - torch.diag_embed(to_values)
    apart = (spread > noise * to_values.abs().amax(1)) & (whole == 0).all((1, 2))
    what = {
        "mask": "what depends on that choice is left out",
        "lorentz": "what depends on that choice is damped",
        "exact": "what depends on that choice is noise",
    }[rule.degeneracy]
    if ((lost.norm(dim=(1, 2)) > noise * size) | apart).any():
        warnings.warn(
            "the loss depends on the choice of basis among eigenvectors of equal eigenvalues: its gradient is not "
            f"defined, and {what}; use a loss that is invariant to rotations within an "
            "eigenspace (functions of values and vectors together: through Eigenpairs.projected)",
            _checks.DegeneracyWarning,
            stacklevel=2,
        )
    cut = (s.gap <= _cluster_width(s, rule).flatten()) & ((size > 0) | (to_values[:, -1] != 0))
    if cut.any():
        b = int(cut.nonzero()[0])
        warnings.warn(
            f"k={s.values.shape[1]} splits a cluster of eigenvalues (gap {s.gap[b]:.1e}): the gradient of its "
            f"part is not defined; {_nearest_whole_cut(s, rule, b)}",
            _checks.DegeneracyWarning,
            stacklevel=2,
        )


def _nearest_whole_cut(s: _Solution, rule: _Rule, b: int) -> str:
    """Advice on the number of pairs nearest to k whose last gap is wider than a cluster."""
    values = torch.cat([s.values[b], s.guard_values[b]])
    whole = (values.diff() > _cluster_width(s, rule)[b].item()).nonzero().flatten() + 1
    if len(whole) == 0:
        return f"no cut among the {len(values)} known eigenvalues is outside a cluster"
    return f"the nearest k that does not is {int(whole[(whole - s.values.shape[1]).abs().argmin()])}"
