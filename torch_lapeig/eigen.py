"""The few smallest eigenpairs of a Laplacian, with the one differentiation rule of the library."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_lapeig import _checks
from torch_lapeig.laplacian import Laplacian, edge_products, inverse_power
from torch_lapeig.solvers import ChebyshevSubspace, Eigh, RitzPairs, Solver, allowed_residual, column_norms

# Dense `eigh` wins up to about here for one graph (measured on the digits graph, 2 cores); beyond it, Chebyshev.
DENSE_NODES = 400
# A Chebyshev solve that does not converge is done again by `Eigh` up to here: 8000² float64 are 0.5 GiB.
FALLBACK_NODES = 8000
BACKWARD_ITERATIONS = 2000


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The k smallest eigenpairs of a Laplacian, with the quality of the answer.

    Attributes:
        values: ascending ``(k,)`` or ``(B, k)``; carry gradients.
        vectors: ``(N, k)`` or ``(B, N, k)``, rows of nodes of degree zero are zero; carry gradients. Orthonormal, but
            for ``normalization="random_walk"`` the generalised eigenvectors y = D^-½ v of L y = λ D y with
            Yᵀ D Y = I. The entry of largest magnitude of each is positive (the first of those within 0.1 %).
        residuals: ‖A v − λ v‖ of each pair of the symmetric operator, same shape as ``values``.
        gap: λ_{k+1} − λ_k, ``()`` or ``(B,)``; infinite if there is no further pair.
        converged: bool ``()`` or ``(B,)``: all residuals allowed by the tolerance, and vectors orthonormal.
        iterations: of the solver.
        solver: the one that gave the answer.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    gap: Tensor
    converged: Tensor
    iterations: int
    solver: Solver


@_checks.full_precision
def eigenpairs(
    laplacian: Laplacian,
    k: int,
    solver: Solver | None = None,
    *,
    tolerance: float | None = None,
    backward_tolerance: float | None = None,
    on_failure: Literal["warn", "raise"] = "warn",
) -> Eigenpairs:
    """The ``k`` smallest eigenpairs of a Laplacian, differentiable in its weights.

    The null space is set in closed form: the first pairs are 0 with the D^½-weighted indicators of the connected
    components, the first of them constant over the whole graph. Nodes of degree zero take no part.

    Args:
        laplacian: of one graph or a batch, in any normalisation.
        k: pairs, 1 ≤ k ≤ number of nodes of positive degree (of each graph of a batch), trivial ones included.
        solver: `Eigh`, `ChebyshevSubspace`, or None for a choice: `Eigh` up to 400 nodes (or where k is a large part
            of them), else `ChebyshevSubspace`, and `Eigh` again up to 8000 nodes should that not converge.
        tolerance: residual allowed, relative to the gap after the k-th value, but never below round-off; default
            1e-8 in float64 and 1e-4 in float32.
        backward_tolerance: relative residual of the backward's linear solve; default 1e-10 and 1e-5.
        on_failure: what to do where a graph has not converged: ``"warn"`` or ``"raise"``.

    Gradients follow the implicit rule below, never that of ``torch.linalg.eigh``: they are finite and exact with
    equal eigenvalues for every loss that does not depend on the choice of basis in an eigenspace. A
    `DegeneracyWarning` says when a loss does, or when the cut between k and k + 1 splits a cluster of eigenvalues.

    Raises:
        TypeError, ValueError: k out of range, unknown option. ConvergenceError: see ``on_failure``.
    """
    operator = laplacian.symmetrized()
    _check_request(operator, k, on_failure)
    double = operator.values.dtype == torch.float64
    tolerance = (1e-8 if double else 1e-4) if tolerance is None else tolerance
    backward_tolerance = (1e-10 if double else 1e-5) if backward_tolerance is None else backward_tolerance
    _checks.check_positive(tolerance, "tolerance")
    _checks.check_positive(backward_tolerance, "backward_tolerance")
    with torch.no_grad():
        solution, solver = _solve(operator, k, solver, tolerance)
    if not solution.converged.all():
        _report_failure(solution, solver, on_failure)
    values, vectors = _ImplicitEigenpairs.apply(
        operator.values, operator.diagonal, operator, solution, backward_tolerance
    )
    if laplacian.normalization == "random_walk":
        degrees = laplacian.degrees.reshape(vectors.shape[:2])
        vectors = _signed(inverse_power(degrees, 0.5)[..., None] * vectors)
    lead = laplacian.graph.shape[:-1]
    return Eigenpairs(
        values=values.reshape(*lead, k),
        vectors=vectors.reshape(*laplacian.graph.shape, k),
        residuals=solution.residuals.reshape(*lead, k),
        gap=solution.gap.reshape(lead),
        converged=solution.converged.reshape(lead),
        iterations=solution.iterations,
        solver=solver,
    )


def _check_request(operator: Laplacian, k: int, on_failure: str) -> None:
    _checks.check_count(k, "k")
    _checks.check_choice(on_failure, "on_failure", ("warn", "raise"))
    _checks.check_finite(operator.values, "laplacian")
    fewest = int(operator.active.reshape(operator.graph.batch_size, -1).sum(1).min())
    if k > fewest:
        raise ValueError(f"k must be at most the number of nodes of positive degree, got k={k} with {fewest} of them")


@dataclass(frozen=True)
class _Solution:
    """Checked eigenpairs of a symmetric operator, batched; guards are further, approximate pairs."""

    values: Tensor  # (B, k)
    vectors: Tensor  # (B, N, k)
    guard_values: Tensor  # (B, g)
    guard_vectors: Tensor  # (B, N, g)
    residuals: Tensor  # (B, k)
    gap: Tensor  # (B,)
    converged: Tensor  # (B,)
    iterations: int


def _solve(operator: Laplacian, k: int, solver: Solver | None, tolerance: float) -> tuple[_Solution, Solver]:
    if solver is not None:
        return _checked_solution(operator, k, solver(operator, k, tolerance), tolerance), solver
    n, chebyshev = operator.graph.num_nodes, ChebyshevSubspace()
    active = int(operator.active.reshape(operator.graph.batch_size, -1).sum(1).min())
    if n > DENSE_NODES and active >= 4 * chebyshev.block_size(k):
        solution = _checked_solution(operator, k, chebyshev(operator, k, tolerance), tolerance)
        if solution.converged.all() or n > FALLBACK_NODES:
            return solution, chebyshev
    return _checked_solution(operator, k, Eigh()(operator, k, tolerance), tolerance), Eigh()


def _checked_solution(operator: Laplacian, k: int, ritz: RitzPairs, tolerance: float) -> _Solution:
    """Closed-form null vectors, signs, float64 Rayleigh quotients, residuals, gap and status of a solver's pairs."""
    vectors, dimension = _with_exact_null_space(operator, ritz.vectors)
    vectors = _signed(vectors)
    head = vectors[..., :k]
    image = operator.matmul(head.reshape(*operator.graph.shape, k)).reshape(head.shape)
    quotients = (head.double() * image.double()).sum(1) / head.double().square().sum(1)
    null = torch.arange(k, device=head.device) < dimension[:, None]
    # Round-off may exchange neighbours: ascending is the contract.
    values, order = quotients.clamp_min(0).masked_fill(null, 0).to(head.dtype).sort(dim=1, stable=True)
    head, image = (t.gather(2, order[:, None, :].expand_as(t)) for t in (head, image))
    residuals = column_norms(operator, image - values[:, None, :] * head)
    further = ritz.values[:, k:]
    gap = further[:, 0] - values[:, -1] if further.shape[1] else torch.full_like(values[:, 0], torch.inf)
    gap = torch.where(gap > operator.bound, torch.inf, gap.clamp_min(0))  # inactive nodes are put above the spectrum
    allowed = allowed_residual(torch.cat([values, further[:, :1]], 1), k, operator.bound, tolerance)
    eye = torch.eye(k, dtype=head.dtype, device=head.device)
    skew = (operator.inner(head, head) - eye).abs().amax((1, 2))
    converged = (residuals.amax(1) <= allowed) & (skew <= math.sqrt(torch.finfo(head.dtype).eps))
    return _Solution(values, head, further, vectors[..., k:], residuals, gap, converged, ritz.iterations)


def _with_exact_null_space(operator: Laplacian, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors with the known null vectors in front, the others orthogonal to them; null dimension ``(B,)``."""
    null, dimension = operator.null_vectors(vectors.shape[2])
    rest = vectors - null @ operator.inner(null, vectors)
    rest = rest / column_norms(operator, rest)[:, None, :].clamp_min(torch.finfo(rest.dtype).tiny)
    known = torch.arange(vectors.shape[2], device=vectors.device) < dimension[:, None]
    return torch.where(known[:, None, :], null, rest), dimension


def _signed(vectors: Tensor) -> Tensor:
    """Turn each column so that its entry of largest magnitude is positive; the factor carries no gradient.

    Among entries within 0.1 % of the largest the first one counts, so that round-off cannot decide between the two
    ends of a symmetric graph.
    """
    size = vectors.detach().abs()
    first = (size >= 0.999 * size.amax(-2, keepdim=True)).to(torch.int8).argmax(-2, keepdim=True)
    sign = vectors.detach().gather(-2, first).sign()
    return vectors * torch.where(sign == 0, 1, sign)


def _report_failure(solution: _Solution, solver: Solver, on_failure: str) -> None:
    worst = int(solution.residuals.amax(1).argmax())
    message = (
        f"{solver} has not converged after {solution.iterations} iterations: {int((~solution.converged).sum())} of "
        f"{len(solution.converged)} graphs, largest residual {solution.residuals[worst].max():.2e} with a gap of "
        f"{solution.gap[worst]:.2e}; use Eigh(), more iterations, or a larger tolerance"
    )
    if on_failure == "raise":
        raise _checks.ConvergenceError(message)
    warnings.warn(message, _checks.ConvergenceWarning, stacklevel=4)


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


class _ImplicitEigenpairs(torch.autograd.Function):
    """(M on the edges, c) -> (values, vectors) of a solution found beforehand."""

    @staticmethod
    def forward(
        ctx: Any, edges: Tensor, diagonal: Tensor, operator: Laplacian, solution: _Solution, tolerance: float
    ) -> tuple[Tensor, Tensor]:
        ctx.operator, ctx.solution, ctx.tolerance = operator, solution, tolerance
        return solution.values.clone(), solution.vectors.clone()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        operator, s = ctx.operator, ctx.solution
        to_values, to_vectors = cotangents
        within = _masked_inverse_differences(s.values, s.values, s)
        skew = operator.inner(s.vectors, to_vectors)
        skew = (skew - skew.mT) / 2
        _warn_if_undefined(s, to_vectors, skew * (within == 0))
        y = s.vectors @ (torch.diag_embed(to_values) + within * skew)
        y = (y + _complement_solve(operator, s, to_vectors, ctx.tolerance)).flatten(0, 1)
        v = s.vectors.flatten(0, 1)
        to_edges = None
        if ctx.needs_input_grad[0]:
            products = edge_products(operator.graph, y, v)
            to_edges = -(products + products[operator.graph.reverse]) / 2
        to_diagonal = (y * v).sum(1).reshape(operator.diagonal.shape) if ctx.needs_input_grad[1] else None
        return to_edges, to_diagonal, None, None, None


def _cluster_width(s: _Solution) -> Tensor:
    """Difference ``(B, 1, 1)`` below which eigenvalues count as equal: the larger of √eps and 10 residuals."""
    width = (10 * s.residuals.amax(1)).clamp_min(math.sqrt(torch.finfo(s.values.dtype).eps))
    return width[:, None, None]


def _masked_inverse_differences(rows: Tensor, columns: Tensor, s: _Solution) -> Tensor:
    """1 / (columns_i − rows_j) as ``(B, j, i)``, 0 within a cluster."""
    difference = columns[:, None, :] - rows[:, :, None]
    equal = difference.abs() <= _cluster_width(s)
    return torch.where(equal, 0, 1 / torch.where(equal, 1, difference))


def _complement_solve(operator: Laplacian, s: _Solution, g: Tensor, tolerance: float) -> Tensor:
    """Z of the rule above, ``(B, N, k)``, by preconditioned block conjugate gradients with a shift per column."""
    inverse = -_masked_inverse_differences(s.guard_values, s.values, s)  # (Λ_U − λ_i)⁻¹, 0 in a split cluster
    split = (inverse == 0).to(g.dtype)

    def project(x: Tensor) -> Tensor:
        x = x - s.vectors @ operator.inner(s.vectors, x)
        return x - s.guard_vectors @ (split * operator.inner(s.guard_vectors, x))

    def precondition(r: Tensor) -> Tensor:
        coefficients = operator.inner(s.guard_vectors, r)
        return project(r + s.guard_vectors @ ((inverse - 1) * coefficients))

    def image(x: Tensor) -> Tensor:
        ax = operator.matmul(x.reshape(*operator.graph.shape, -1)).reshape(x.shape)
        return project(ax - s.values[:, None, :] * x)

    target = -project(g * operator.active.reshape(g.shape[:2])[..., None])

    def excess(r: Tensor, z: Tensor) -> Tensor:
        floor = 8 * torch.finfo(z.dtype).eps * operator.bound[:, None] * column_norms(operator, z)  # round-off of A z
        return column_norms(operator, r) - torch.maximum(tolerance * column_norms(operator, target), floor)

    z = precondition(target)
    r = target - image(z)
    direction, energy = torch.zeros_like(z), torch.ones_like(s.values)
    for _ in range(BACKWARD_ITERATIONS):
        going = excess(r, z) > 0  # converged columns stand still
        if not going.any():
            return z
        conditioned = precondition(r)
        fresh = _column_products(operator, r, conditioned)
        direction = conditioned + torch.where(going, fresh / energy, 0)[:, None, :] * direction
        energy = fresh
        pushed = image(direction)
        step = torch.where(going, fresh / _column_products(operator, direction, pushed), 0)[:, None, :]
        z, r = z + step * direction, r - step * pushed
    warnings.warn(
        f"the linear solve of the gradient has not converged in {BACKWARD_ITERATIONS} iterations: residual norms up to "
        f"{column_norms(operator, r).max():.1e} of {column_norms(operator, target).max():.1e}",
        _checks.ConvergenceWarning,
        stacklevel=2,
    )
    return z


def _column_products(operator: Laplacian, x: Tensor, y: Tensor) -> Tensor:
    """Inner products ``(B, m)`` of the columns of x with those of y."""
    return operator.inner(x, y).diagonal(dim1=-2, dim2=-1)


def _warn_if_undefined(s: _Solution, to_vectors: Tensor, lost: Tensor) -> None:
    """Warn where the masked part of the skew matrix, or the cut through a cluster, makes the gradient undefined."""
    size = to_vectors.norm(dim=(1, 2))
    noise = math.sqrt(torch.finfo(size.dtype).eps)
    if (lost.norm(dim=(1, 2)) > noise * size).any():
        warnings.warn(
            "the loss depends on the choice of basis among eigenvectors of equal eigenvalues: its gradient is not "
            "defined and that part is taken as zero; use a loss that is invariant to rotations within an eigenspace",
            _checks.DegeneracyWarning,
            stacklevel=2,
        )
    cut = (s.gap <= _cluster_width(s).flatten()) & (size > 0)
    if cut.any():
        b = int(cut.nonzero()[0])
        warnings.warn(
            f"k={s.values.shape[1]} splits a cluster of eigenvalues (gap {s.gap[b]:.1e}): the gradient of the vectors "
            f"is not defined; {_nearest_whole_cut(s, b)}",
            _checks.DegeneracyWarning,
            stacklevel=2,
        )


def _nearest_whole_cut(s: _Solution, b: int) -> str:
    """Advice on the number of pairs nearest to k whose last gap is wider than a cluster."""
    values = torch.cat([s.values[b], s.guard_values[b]])
    whole = (values.diff() > _cluster_width(s)[b].item()).nonzero().flatten() + 1
    if len(whole) == 0:
        return f"no cut among the {len(values)} known eigenvalues is outside a cluster"
    return f"the nearest k that does not is {int(whole[(whole - s.values.shape[1]).abs().argmin()])}"
