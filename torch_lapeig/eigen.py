"""The few smallest eigenpairs of a Laplacian, with the one differentiation rule of the library."""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.laplacian import Laplacian
from torch_lapeig.solvers import ChebyshevSubspace, Eigh, Solver, allowed_residual

# Dense `eigh` wins up to about here for one graph (measured on the digits graph, 2 cores); beyond it, Chebyshev.
DENSE_NODES = 400
# A Chebyshev solve that does not converge is done again by `Eigh` up to here: 8000² float64 are 0.5 GiB.
FALLBACK_NODES = 8000
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
    """

    values: Tensor
    vectors: Tensor
    projected: Tensor
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
            of them), else `ChebyshevSubspace`, and `Eigh` again up to 8000 nodes should that not converge. Where
            float32 does not resolve the gap (residual > gap / 10) it is done in float64 and the answer rounded.
        tolerance: residual allowed, relative to the gap after the k-th value, but never below round-off; default
            1e-10 in float64 and 1e-4 in float32.
        backward_tolerance: relative residual of the backward's linear solve; default 1e-10 and 1e-5.
        on_failure: what to do where a graph has not converged: ``"warn"`` or ``"raise"``.

    Gradients follow the implicit rule below, never that of ``torch.linalg.eigh``: they are finite, and with equal
    eigenvalues exact for losses that do not depend on the choice of basis in an eigenspace (that mix values and vectors
    through `Eigenpairs.projected`). A `DegeneracyWarning` says when a loss does, or when the cut between k and k + 1
    splits a cluster of eigenvalues.

    Raises:
        TypeError, ValueError: k out of range, unknown option. ConvergenceError: see ``on_failure``.
    """
    if not isinstance(laplacian, Laplacian):
        raise TypeError(f"laplacian must be a Laplacian, got {type(laplacian).__name__}; use Laplacian(graph)")
    symmetric, factor = laplacian.symmetrized()
    _check_request(symmetric, k, on_failure)
    double = symmetric.values.dtype == torch.float64
    tolerance = (1e-10 if double else 1e-4) if tolerance is None else tolerance
    backward_tolerance = (1e-10 if double else 1e-5) if backward_tolerance is None else backward_tolerance
    _checks.check_positive(tolerance, "tolerance")
    _checks.check_positive(backward_tolerance, "backward_tolerance")
    graph = laplacian.graph
    operator, order = symmetric, None
    if graph.is_sparse and len(graph.shape) == 1 and graph.num_nodes > REORDER_NODES:
        operator, order = symmetric.reordered()
    with torch.no_grad():
        solution = _solve(operator, k, solver, tolerance)
    if not solution.converged.all():
        _report_failure(solution, on_failure)
    projected, vectors = _ImplicitEigenpairs.apply(operator.values, operator.diagonal, solution, backward_tolerance)
    values = projected.diagonal(dim1=-2, dim2=-1)
    if order is not None:
        vectors = torch.empty_like(vectors).index_copy(1, order, vectors)
    if factor is not None:
        vectors = _signed(factor.reshape(vectors.shape[:2])[..., None] * vectors)
    lead = graph.shape[:-1]
    return Eigenpairs(
        values=values.reshape(*lead, k),
        vectors=vectors.reshape(*graph.shape, k),
        projected=projected.reshape(*lead, k, k),
        residuals=solution.residuals.reshape(*lead, k),
        gap=solution.gap.reshape(lead),
        converged=solution.converged.reshape(lead),
        iterations=solution.iterations,
        solver=solution.solver,
    )


def _check_request(operator: Laplacian, k: int, on_failure: str) -> None:
    _checks.check_count(k, "k")
    _checks.check_choice(on_failure, "on_failure", ("warn", "raise"))
    for part in (operator.values, operator.degrees):
        _checks.check_finite(part, "laplacian")
    if (operator.values < 0).any() or (operator.degrees < 0).any():
        raise ValueError("laplacian must be of non-negative weights, got negative ones")
    if k > (fewest := operator.fewest_active):
        item = int(operator.active.reshape(operator.graph.batch_size, -1).sum(1).argmin())
        raise ValueError(
            f"k must be at most the number of nodes of positive degree, got k={k} with {fewest} of them in graph {item}"
        )


@dataclass(frozen=True)
class _Solution:
    """Checked eigenpairs of a symmetric operator, batched; guards are further, approximate pairs."""

    operator: Laplacian
    solver: Solver
    values: Tensor  # (B, k)
    vectors: Tensor  # (B, N, k)
    guard_values: Tensor  # (B, g)
    guard_vectors: Tensor  # (B, N, g)
    residuals: Tensor  # (B, k)
    gap: Tensor  # (B,)
    converged: Tensor  # (B,)
    iterations: int


def _solve(operator: Laplacian, k: int, solver: Solver | None, tolerance: float) -> _Solution:
    """The solution of a solver or of the one that suits the size; in float64 where float32 does not resolve the gap."""
    solution = _solve_as_given(operator, k, solver, tolerance)
    if operator.values.dtype == torch.float64 or (solution.residuals.amax(1) <= 0.1 * solution.gap).all():
        return solution
    finer = _solve_as_given(operator.double(), k, solver, tolerance)
    cast: dict[str, Any] = {
        field.name: value.to(operator.values.dtype)
        for field in dataclasses.fields(finer)
        if isinstance(value := getattr(finer, field.name), Tensor) and value.is_floating_point()
    }
    rounded = dataclasses.replace(finer, operator=operator, **cast)
    # The residuals of what is returned, not of what it was rounded from.
    return dataclasses.replace(rounded, residuals=_residuals(operator, rounded.values, rounded.vectors))


def _residuals(operator: Laplacian, values: Tensor, vectors: Tensor) -> Tensor:
    """‖A v − λ v‖ ``(B, k)``."""
    image = operator.matmul(vectors.reshape(*operator.graph.shape, -1)).reshape(vectors.shape)
    return _norms(operator, image - values[:, None, :] * vectors)


def _solve_as_given(operator: Laplacian, k: int, solver: Solver | None, tolerance: float) -> _Solution:
    if solver is not None:
        return _checked(operator, k, solver, tolerance)
    n, chebyshev = operator.graph.num_nodes, ChebyshevSubspace()
    if n > DENSE_NODES and operator.fewest_active >= 4 * chebyshev.block_size(k):
        solution = _checked(operator, k, chebyshev, tolerance)
        if solution.converged.all() or n > FALLBACK_NODES:
            return solution
    return _checked(operator, k, Eigh(), tolerance)


def _checked(operator: Laplacian, k: int, solver: Solver, tolerance: float) -> _Solution:
    """A solver's pairs with the null space in closed form, float64 Rayleigh quotients, residuals, gap and status."""
    ritz = solver(operator, k, tolerance)
    basis, dimension = _with_exact_null_space(operator, ritz.vectors)
    null = torch.arange(basis.shape[2], device=basis.device) < dimension[:, None]
    guard_values = ritz.values.masked_fill(null, 0)[:, k:]
    vectors = _signed(basis[..., :k] * operator.active.reshape(basis.shape[:2])[..., None])
    image = operator.matmul(vectors.reshape(*operator.graph.shape, k)).reshape(vectors.shape)
    quotients = (vectors.double() * image.double()).sum(1) / vectors.double().square().sum(1)
    # Ascending is the contract, and round-off may exchange neighbours.
    values, order = quotients.clamp_min(0).masked_fill(null[:, :k], 0).to(vectors.dtype).sort(dim=1, stable=True)
    vectors, image = (t.gather(2, order[:, None, :].expand_as(t)) for t in (vectors, image))
    residuals = _norms(operator, image - values[:, None, :] * vectors)
    allowed = allowed_residual(torch.cat([values, guard_values[:, :1]], 1), k, operator.bound, tolerance)
    gram = operator.inner(vectors, vectors)
    skewness = (gram - torch.eye(k, dtype=gram.dtype, device=gram.device)).abs().amax((1, 2))
    return _Solution(
        operator=operator,
        solver=solver,
        values=values,
        vectors=vectors,
        guard_values=guard_values,
        guard_vectors=basis[..., k:],
        residuals=residuals,
        gap=_gap(operator, values, guard_values),
        converged=(residuals.amax(1) <= allowed) & (skewness <= math.sqrt(torch.finfo(gram.dtype).eps)),
        iterations=ritz.iterations,
    )


def _gap(operator: Laplacian, values: Tensor, guard_values: Tensor) -> Tensor:
    """λ_{k+1} − λ_k ``(B,)``; infinite where the k pairs are all there are."""
    k = values.shape[1]
    exhausted = operator.active.reshape(len(values), -1).sum(1) <= k
    following = guard_values[:, 0] if guard_values.shape[1] else values[:, -1]
    return (following - values[:, -1]).clamp_min(0).masked_fill(exhausted, torch.inf)


def _with_exact_null_space(operator: Laplacian, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors with the known null vectors in front, the others orthogonal to them; null dimension ``(B,)``."""
    null, dimension = operator.null_vectors(vectors.shape[2])
    rest = vectors - null @ operator.inner(null, vectors)
    rest = rest / _norms(operator, rest)[:, None, :].clamp_min(torch.finfo(rest.dtype).tiny)
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
    turned: Tensor = vectors * torch.where(sign == 0, 1, sign)
    return turned


def _report_failure(solution: _Solution, on_failure: str) -> None:
    worst = int(solution.residuals.amax(1).argmax())
    message = (
        f"{solution.solver} has not converged after {solution.iterations} iterations: "
        f"{int((~solution.converged).sum())} of {len(solution.converged)} graphs, largest residual "
        f"{solution.residuals[worst].max():.2e} with a gap of {solution.gap[worst]:.2e}; use Eigh(), more "
        "iterations, or a larger tolerance"
    )
    if on_failure == "raise":
        raise _checks.ConvergenceError(message)
    warnings.warn(message, _checks.ConvergenceWarning, stacklevel=4)


def _norms(operator: Laplacian, x: Tensor) -> Tensor:
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


class _ImplicitEigenpairs(torch.autograd.Function):
    """(M on the edges, c) -> (Λ, V) of a solution found beforehand."""

    @staticmethod
    def forward(
        ctx: Any, edges: Tensor, diagonal: Tensor, solution: _Solution, tolerance: float
    ) -> tuple[Tensor, Tensor]:
        projected, vectors = torch.diag_embed(solution.values), solution.vectors.clone()
        ctx.solution, ctx.tolerance = solution, tolerance
        ctx.save_for_backward(edges, diagonal, projected, vectors)
        return projected, vectors

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        edges, diagonal, projected, vectors = ctx.saved_tensors
        s: _Solution = ctx.solution
        to_projected, to_vectors = cotangents
        values = projected.diagonal(dim1=-2, dim2=-1)
        inverse, cluster = _inverse_differences(values, values, s)
        skew = s.operator.inner(vectors, to_vectors)
        skew = (skew - skew.mT) / 2
        _warn_if_undefined(s, to_projected.detach(), to_vectors.detach(), (skew * cluster).detach())
        rotation = inverse * skew
        # Zero, but for its derivative: X Λ − Λ X = ½(C − Cᵀ) with the entries of Λ off its diagonal.
        off = projected - torch.diag_embed(values)
        rotation = rotation - inverse * (rotation @ off - off @ rotation)
        y = vectors @ (cluster * (to_projected + to_projected.mT) / 2 + rotation)
        y = y + _ComplementSolve.apply(edges, diagonal, projected, vectors, to_vectors, s, ctx.tolerance)
        return *_edge_gradient(s, y, vectors), None, None


class _ComplementSolve(torch.autograd.Function):
    """(M on the edges, c, Λ, V, V̄) -> Z of the rule above."""

    @staticmethod
    def forward(
        ctx: Any,
        edges: Tensor,
        diagonal: Tensor,
        projected: Tensor,
        vectors: Tensor,
        g: Tensor,
        solution: _Solution,
        tolerance: float,
    ) -> Tensor:
        z = _complement_solve(solution, g, tolerance)
        ctx.solution, ctx.tolerance = solution, tolerance
        ctx.save_for_backward(edges, diagonal, projected, vectors, g, z)
        return z

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        edges, diagonal, projected, vectors, g, z = ctx.saved_tensors
        s: _Solution = ctx.solution
        (to_z,) = cotangents
        y = _ComplementSolve.apply(edges, diagonal, projected, vectors, to_z, s, ctx.tolerance)

        def multiplier(rhs: Tensor, x: Tensor) -> Tensor:
            product = s.operator.graph.pattern.matmul(edges, x)
            return -s.operator.inner(vectors, rhs + diagonal.reshape(x.shape[:2])[..., None] * x - product)

        to_vectors = y @ multiplier(g, z).mT + z @ multiplier(to_z, y).mT
        return *_edge_gradient(s, y, z), -s.operator.inner(z, y), to_vectors, y, None, None


def _edge_gradient(s: _Solution, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient in M on the edges and in c of <A, Σ_i y_i v_iᵀ> for A = diag(c) − (M + Mᵀ)/2."""
    pattern = s.operator.graph.pattern
    products = pattern.products(y, v)
    return -(products + pattern.transpose(products)) / 2, (y * v).sum(-1).reshape(pattern.shape)


def _cluster_width(s: _Solution) -> Tensor:
    """Difference ``(B, 1, 1)`` at which eigenvalues count as equal: round-off of the spectrum, or 10 residuals.

    At a distance δ the gradient of a pair's rotation is uncertain by eps / δ of itself: 1 % at 50 eps of the bound.
    """
    round_off = 50 * torch.finfo(s.values.dtype).eps * s.operator.bound
    width: Tensor = torch.maximum(10 * s.residuals.amax(1), round_off)
    return width[:, None, None]


def _inverse_differences(rows: Tensor, columns: Tensor, s: _Solution) -> tuple[Tensor, Tensor]:
    """1 / (columns_i − rows_j) as ``(B, j, i)``, 0 within a cluster; and where that is, as 0 and 1."""
    difference = columns[:, None, :] - rows[:, :, None]
    equal = difference.abs() <= _cluster_width(s)
    return torch.where(equal, 0, 1 / torch.where(equal, 1, difference)), equal.to(rows.dtype)


def _complement_solve(s: _Solution, g: Tensor, tolerance: float) -> Tensor:
    """Z of the rule above, ``(B, N, k)``, by preconditioned block conjugate gradients with a shift per column."""
    operator = s.operator
    inverse, split = _inverse_differences(s.guard_values, s.values, s)
    inverse = -inverse  # (Λ_U − λ_i)⁻¹, 0 in a cluster that the cut splits

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


def _warn_if_undefined(s: _Solution, to_projected: Tensor, to_vectors: Tensor, lost: Tensor) -> None:
    """Warn where equal eigenvalues make the gradient undefined: three ways in which a loss can tell them apart.

    Its skew part within a cluster, which is masked, is not zero; its gradients to equal eigenvalues differ, though it
    does not take their matrix (`Eigenpairs.projected`); the cut k | k+1 goes through a cluster.
    """
    noise = math.sqrt(torch.finfo(to_vectors.dtype).eps)
    size = to_vectors.norm(dim=(1, 2))
    equal = _inverse_differences(s.values, s.values, s)[1]
    to_values = to_projected.diagonal(dim1=-2, dim2=-1)
    spread = (equal * (to_values[:, :, None] - to_values[:, None, :])).abs().amax((1, 2))
    whole = to_projected - torch.diag_embed(to_values)
    apart = (spread > noise * to_values.abs().amax(1)) & (whole == 0).all((1, 2))
    if ((lost.norm(dim=(1, 2)) > noise * size) | apart).any():
        warnings.warn(
            "the loss depends on the choice of basis among eigenvectors of equal eigenvalues: its gradient is not "
            "defined, and what depends on that choice is left out; use a loss that is invariant to rotations within an "
            "eigenspace (functions of values and vectors together: through Eigenpairs.projected)",
            _checks.DegeneracyWarning,
            stacklevel=2,
        )
    cut = (s.gap <= _cluster_width(s).flatten()) & ((size > 0) | (to_values[:, -1] != 0))
    if cut.any():
        b = int(cut.nonzero()[0])
        warnings.warn(
            f"k={s.values.shape[1]} splits a cluster of eigenvalues (gap {s.gap[b]:.1e}): the gradient of its "
            f"part is not defined; {_nearest_whole_cut(s, b)}",
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
