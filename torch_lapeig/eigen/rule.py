"""The one differentiation rule of eigenpairs: its derivation, and the autograd Functions that carry it out.

A = diag(c) − M is symmetric with A v_i = λ_i v_i, V = [v_1 … v_k], P = I − V Vᵀ. For a change dA:

    dλ_i = v_iᵀ dA v_i
    dv_i = Σ_{j≠i, j≤k} v_j (v_jᵀ dA v_i) / (λ_i − λ_j)  −  [P (A − λ_i) P]⁺ dA v_i

With cotangents λ̄ and V̄ and C = Vᵀ V̄ the gradient is the symmetric part of Σ_i y_i v_iᵀ,

    Y = V (diag λ̄ + F ∘ ½(C − Cᵀ)) + Z,   F_ji = 1/(λ_i − λ_j), F_ii = 0,   z_i = −[P (A − λ_i) P]⁺ P v̄_i,

of which only the entries on the edges and the diagonal are ever formed. The skew part of C is what is left of C once
the two terms of a pair (i, j) are put together, because F is skew itself.

Equal eigenvalues. Where |λ_i − λ_j| is round-off, F_ji is set to 0. For a loss that does not change when the basis of
the eigenspace is turned, the skew part of C vanishes there, so nothing is lost and the gradient is exact, where
1/(λ_i − λ_j) would be 0 · ∞. If it does not vanish, the loss has no gradient: a warning says so. If the cut k | k+1
goes through a cluster, the eigenspace itself has no gradient (it grows like 1/gap): a warning too, and the
cluster's guard vectors are left out of Z, so that the answer stays finite.

Z by conjugate gradients: on the complement of V every A − λ_i is positive semidefinite. The guards U of the solver
precondition them by U (Λ_U − λ_i)⁻¹ Uᵀ + (I − U Uᵀ). After `Eigh`, U is the whole complement, the preconditioner is
the inverse, and the first guess is the answer: one rule serves every solver. With any other solver the system is
solved in float64, whatever the dtype of the problem: what float32 rounds away is amplified by bound / gap.

Second derivatives: every step is differentiable, V and λ are outputs of the rule itself, and Z is the solution of

    A Z − Z Λ + V μ = −V̄,   Vᵀ Z = 0,

a symmetric system. With Y the solution for the cotangent Z̄ in the place of V̄, and ν for μ, the cotangents are
those of A: Y Zᵀ, of Λ: −Zᵀ Y, of V: Y μᵀ + Z νᵀ, and of V̄: Y, with μ = −Vᵀ (V̄ + A Z) and ν = −Vᵀ (Z̄ + A Y).
A perturbation turns the basis of a cluster by first-order angles while Λ = Vᵀ A V becomes a full matrix on it. Only
both together are well defined, so the rule returns Λ as a matrix: its entries off the diagonal are zero within a
cluster, but their cotangents carry what the masked rotation leaves out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.eigen.cg import conjugate_gradients
from torch_lapeig.eigen.check import Solution, norms
from torch_lapeig.eigen.operator import SymmetricOperator
from torch_lapeig.eigen.solvers import multigrid

Degeneracy = Literal["mask", "lorentz", "exact"]

BACKWARD_ITERATIONS, REFINEMENTS = 2000, 4
# Eigenvalues that count as equal may be different from this part of the width on.
NEAR = 0.1
# A solution whose own round-off is a larger part of the right-hand side than this is no solution.
NOISE = 1e-2


@dataclass(frozen=True)
class Rule:
    """Options of the differentiation rule, see `eigenpairs`; and eps of the problem as it was given."""

    tolerance: float
    degeneracy: Degeneracy
    width: float | None
    eps: float


class ImplicitEigenpairs(torch.autograd.Function):
    """(M on the edges, c) -> (Λ, V) of a solution found beforehand."""

    @staticmethod
    @_checks.without_autocast
    def forward(edges: Tensor, diagonal: Tensor, solution: Solution, rule: Rule) -> tuple[Tensor, Tensor]:
        """The pairs of the solution."""
        return torch.diag_embed(solution.values), solution.vectors.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what either mode needs."""
        edges, diagonal, ctx.solution, ctx.rule = inputs
        ctx.save_for_backward(edges, diagonal, *output)
        ctx.save_for_forward(edges, diagonal, *output)

    @staticmethod
    @_checks.without_autocast
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Cotangents of Λ and V to those of M on the edges and of c."""
        edges, diagonal, projected, vectors = ctx.saved_tensors
        s: Solution = ctx.solution
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
        """Tangents of M on the edges and of c to those of Λ and V."""
        edges, diagonal, projected, vectors = ctx.saved_tensors
        s: Solution = ctx.solution
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
        solution: Solution,
        rule: Rule,
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
        s: Solution = ctx.solution
        (to_z,) = cotangents
        y = _ComplementSolve.apply(edges, diagonal, projected, vectors, to_z, s, ctx.rule)
        of_g, of_z = (_multiplier(s, edges, diagonal, vectors, rhs, x) for rhs, x in ((g, z), (to_z, y)))
        to_vectors = y @ of_g.mT + z @ of_z.mT
        return *_edge_gradient(s, y, z), -s.operator.inner(z, y), to_vectors, y, None, None

    @staticmethod
    @_checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        edges, diagonal, projected, vectors, g, z = ctx.saved_tensors
        s: Solution = ctx.solution
        of_projected, of_vectors, of_g = (
            torch.zeros_like(x) if t is None else t for t, x in zip(tangents[2:5], (projected, vectors, g), strict=True)
        )
        multiplier = _multiplier(s, edges, diagonal, vectors, g, z)
        rhs = of_g + _change(s, tangents[0], tangents[1], z) - z @ of_projected + of_vectors @ multiplier
        outside = _ComplementSolve.apply(edges, diagonal, projected, vectors, rhs, s, ctx.rule)
        change: Tensor = outside - vectors @ s.operator.inner(of_vectors, z)
        return change


def _multiplier(s: Solution, edges: Tensor, diagonal: Tensor, vectors: Tensor, rhs: Tensor, x: Tensor) -> Tensor:
    """μ of A X − X Λ + V μ = −RHS: −Vᵀ (RHS + A X)."""
    product = s.operator.graph.pattern.matmul(edges, x)
    return -s.operator.inner(vectors, rhs + diagonal.reshape(x.shape[:2])[..., None] * x - product)


def _change(s: Solution, edges: Tensor | None, diagonal: Tensor | None, x: Tensor) -> Tensor:
    """dA X for changes of M on the edges and of c, of which the symmetric part counts."""
    pattern = s.operator.graph.pattern
    product = torch.zeros_like(x)
    if diagonal is not None:
        product = product + diagonal.reshape(x.shape[:2])[..., None] * x
    if edges is not None:
        product = product - pattern.matmul((edges + pattern.transpose(edges)) / 2, x)
    return product


def _edge_gradient(s: Solution, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient in M on the edges and in c of <A, Σ_i y_i v_iᵀ> for A = diag(c) − (M + Mᵀ)/2."""
    pattern = s.operator.graph.pattern
    both = pattern.products(torch.cat([y, v], -1), torch.cat([v, y], -1))  # cheaper than finding the reversed edges
    return both / -2, (y * v).sum(-1).reshape(pattern.shape)


def rule_of(operator: SymmetricOperator, tolerance: float | None, degeneracy: Degeneracy, width: float | None) -> Rule:
    """The rule with its options checked."""
    _checks.check_choice(degeneracy, "degeneracy", ("mask", "lorentz", "exact"))
    if width is not None:
        width = _checks.check_positive(width, "cluster_width")
    dtype = operator.values.dtype
    tolerance = (1e-10 if dtype == torch.float64 else 1e-6) if tolerance is None else tolerance
    tolerance = _checks.check_positive(tolerance, "backward_tolerance")
    return Rule(tolerance, degeneracy, width, torch.finfo(dtype).eps)


def _noise_width(s: Solution, rule: Rule) -> Tensor:
    """Difference ``(B, 1, 1)`` of eigenvalues that is noise: of the entries as given, of the solve, or 10 residuals.

    At a distance δ the gradient of a pair's rotation is uncertain by eps / δ of itself: 1 % at 50 eps of the scale.
    """
    solve = torch.finfo(s.values.dtype).eps * s.operator.bound
    given = rule.eps * s.operator.sensitivity(s.values)
    return torch.maximum(10 * s.residuals.amax(1).to(solve), 50 * (solve + given))[:, None, None]


def _cluster_width(s: Solution, rule: Rule) -> Tensor:
    """Difference ``(B, 1, 1)`` at which eigenvalues count as equal."""
    if rule.width is not None:
        return s.values.new_full((len(s.values), 1, 1), rule.width)
    return _noise_width(s, rule)


def _inverse_differences(rows: Tensor, columns: Tensor, s: Solution, rule: Rule) -> tuple[Tensor, Tensor]:
    """1 / (columns_i − rows_j) as ``(B, j, i)``, by the rule for small ones; and where they are small, as 0 and 1.

    What is within the noise counts as equal under ``"lorentz"`` too: Δ / (Δ² + width²) would enlarge it. Its default
    width √eps · bound enlarges round-off by no more than 1/√eps.
    """
    difference = columns[:, None, :] - rows[:, :, None]
    equal = difference.abs() <= _cluster_width(s, rule)
    if rule.degeneracy == "lorentz":
        width = math.sqrt(rule.eps) * s.operator.bound if rule.width is None else rule.width
        square = torch.as_tensor(width, dtype=rows.dtype, device=rows.device).square().reshape(-1, 1, 1)
        broadened = torch.where(
            difference.abs() <= _noise_width(s, rule), 0, difference / (difference.square() + square)
        )
        return broadened, equal.to(rows.dtype)
    if rule.degeneracy == "exact":  # but for each value and itself
        equal = torch.eye(*equal.shape[1:], dtype=torch.bool, device=equal.device).expand(equal.shape)
    return torch.where(equal, 0, 1 / torch.where(equal, 1, difference)), equal.to(rows.dtype)


def _complement_solve(s: Solution, g: Tensor, rule: Rule) -> Tensor:
    """Z of the rule above, ``(B, N, k)``; what float32 cannot solve, float64 does. What is not solved is said."""
    if s.values.dtype == torch.float64 or _is_whole(s):
        z, solved = _complement_attempt(s, g, rule)
        if solved.all():
            return z
    if s.values.dtype != torch.float64:
        z, solved = _complement_attempt(s.double, g.double(), rule)
        z = z.to(g.dtype)
    if not solved.all():
        _checks.warn(
            f"the linear solve of the gradient has not reached its tolerance for {int((~solved).sum())} of "
            f"{solved.numel()} eigenvectors: their gradients are inexact; use a cut with a wider eigengap",
            _checks.ConvergenceWarning,
        )
    return z


def _is_whole(s: Solution) -> bool:
    """Whether vectors and guards span the whole space, so that they are an exact inverse."""
    return s.vectors.shape[2] + s.guard_vectors.shape[2] >= s.vectors.shape[1]


def _complement_attempt(s: Solution, g: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Z by preconditioned block conjugate gradients with a shift per column, and which columns ``(B, k)`` are solved.

    Columns of a cluster that the cut splits have no solution; they count as solved, and a warning of their own.
    """
    operator, eps = s.operator, torch.finfo(g.dtype).eps
    # A cluster that the cut splits cannot be told from V: its guards are left out, whatever the rule within V.
    masked = dataclasses.replace(rule, degeneracy="mask")
    inverse, split = _inverse_differences(s.guard_values, s.values, s, masked)
    precondition = _preconditioner(s, -inverse, split)

    def project(x: Tensor) -> Tensor:
        return _outside(s, split, x)

    def image(x: Tensor) -> Tensor:
        ax = operator.matmul(x.reshape(*operator.graph.shape, -1)).reshape(x.shape)
        return project(ax - s.values[:, None, :] * x)

    target = -project(g * operator.active.reshape(g.shape[:2])[..., None])
    size = norms(operator, target)
    # What is left of g after the projection is no better than its round-off, in the precision it came in.
    enough = torch.maximum(rule.tolerance * size, 8 * max(eps, rule.eps) * norms(operator, g))

    def allowed(z: Tensor) -> Tensor:
        # Nor is what is left of A z; but an iterate whose round-off is as large as the target is no solution.
        return torch.maximum(enough, (8 * eps * operator.bound[:, None] * norms(operator, z)).minimum(NOISE * size))

    # In float32 the first guess is the answer or nearly so: what it leaves is for float64.
    limit = BACKWARD_ITERATIONS if g.dtype == torch.float64 else REFINEMENTS
    found = conjugate_gradients(image, precondition, target, operator.dots, allowed, limit)
    # A NaN of the loss is not hidden, and no failure of the solve.
    unknown = ~size.isfinite()
    z = torch.where(unknown[:, None, :], torch.nan, project(found.z))
    within = s.gap[:, None] <= _cluster_width(s, masked)[:, 0]
    undefined = within & ((s.values[:, -1:] - s.values) <= _cluster_width(s, masked)[:, 0])
    return z, (found.residuals <= allowed(z)) | undefined | unknown


def _outside(s: Solution, split: Tensor, x: Tensor) -> Tensor:
    """The part of ``x`` outside V, and outside the guards of a cluster that the cut splits."""
    x = x - s.vectors @ s.operator.inner(s.vectors, x)
    if split.any():
        x = x - s.guard_vectors @ (split * s.operator.inner(s.guard_vectors, x))
    return x


def _preconditioner(s: Solution, inverse: Tensor, split: Tensor) -> Callable[[Tensor], Tensor]:
    """(A − λ_i)⁻¹ on the guards, one cycle of multigrid, or the identity, on the rest."""
    inner, cycle = s.operator.inner, multigrid(s.operator, s.ritz.hierarchies)

    def precondition(r: Tensor) -> Tensor:
        coefficients = inner(s.guard_vectors, r)
        if cycle is None:
            return _outside(s, split, r + s.guard_vectors @ ((inverse - 1) * coefficients))
        rest = cycle(r - s.guard_vectors @ coefficients)
        again = inner(s.guard_vectors, rest)
        return _outside(s, split, rest + s.guard_vectors @ (inverse * coefficients - again))

    return precondition


def _warn_if_undefined(s: Solution, rule: Rule, to_projected: Tensor, to_vectors: Tensor, skew: Tensor) -> None:
    """Warn where equal eigenvalues make the gradient undefined, or inexact: ways in which a loss can tell them apart.

    Its skew part within a cluster, which is masked, is not zero; its gradients to equal eigenvalues differ, though it
    does not take their matrix (`Eigenpairs.projected`); the cut k | k+1 goes through a cluster.
    """
    noise = math.sqrt(rule.eps)
    size = to_vectors.norm(dim=(1, 2))
    equal = _inverse_differences(s.values, s.values, s, dataclasses.replace(rule, degeneracy="mask"))[1]
    lost = skew * equal
    # Not equal, but closer than can be told apart: what is left out is small, and would have been divided by as little.
    distance = (s.values[:, :, None] - s.values[:, None, :]).abs()
    near = lost.abs() * (distance > NEAR * _noise_width(s, rule)) * (rule.degeneracy == "mask")
    unresolved = (near.amax((1, 2)) > 8 * rule.eps * size) & (rule.width is None)
    to_values = to_projected.diagonal(dim1=-2, dim2=-1)
    spread = (equal * (to_values[:, :, None] - to_values[:, None, :])).abs().amax((1, 2))
    whole = to_projected - torch.diag_embed(to_values)
    apart = (spread > noise * to_values.abs().amax(1)) & (whole == 0).all((1, 2))
    what = {
        "mask": "what depends on that choice is left out",
        "lorentz": "what depends on that choice is damped",
        "exact": "what depends on that choice is noise",
    }[rule.degeneracy]
    undefined = (lost.norm(dim=(1, 2)) > noise * size) | apart
    if (unresolved & ~undefined).any():
        _checks.warn(
            "eigenvalues are closer together than their residuals can tell apart: they count as equal, and what the "
            "gradient depends on their difference is left out; use float64 or a smaller tolerance",
            _checks.DegeneracyWarning,
        )
    if undefined.any():
        _checks.warn(
            "the loss depends on the choice of basis among eigenvectors of equal eigenvalues: its gradient is not "
            f"defined, and {what}; use a loss that is invariant to rotations within an "
            "eigenspace (functions of values and vectors together: through Eigenpairs.projected)",
            _checks.DegeneracyWarning,
        )
    cut = (s.gap <= _cluster_width(s, rule).flatten()) & ((size > 0) | (to_values[:, -1] != 0))
    if cut.any():
        b = int(cut.nonzero()[0])
        _checks.warn(
            f"k={s.values.shape[1]} splits a cluster of eigenvalues (gap {s.gap[b]:.1e}): the gradient of its "
            f"part is not defined; {_nearest_whole_cut(s, rule, b)}",
            _checks.DegeneracyWarning,
        )


def _nearest_whole_cut(s: Solution, rule: Rule, b: int) -> str:
    """Advice on the number of pairs nearest to k whose last gap is wider than a cluster."""
    values = torch.cat([s.values[b], s.guard_values[b]])
    whole = (values.diff() > _cluster_width(s, rule)[b].item()).nonzero().flatten() + 1
    if len(whole) == 0:
        return f"no cut among the {len(values)} known eigenvalues is outside a cluster"
    return f"the nearest k that does not is {int(whole[(whole - s.values.shape[1]).abs().argmin()])}"
