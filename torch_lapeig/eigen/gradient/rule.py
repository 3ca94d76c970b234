"""The one differentiation rule of eigenpairs: its derivation, and the autograd Function that computes it.

A = diag(c) − M is symmetric with A v_i = λ_i v_i, V = [v_1 … v_k], P = I − V Vᵀ. For a change dA:

    dλ_i = v_iᵀ dA v_i
    dv_i = Σ_{j≠i, j≤k} v_j (v_jᵀ dA v_i) / (λ_i − λ_j)  −  [P (A − λ_i) P]⁺ dA v_i

With cotangents λ̄ and V̄ and C = Vᵀ V̄ the gradient is the symmetric part of Σ_i y_i v_iᵀ,

    Y = V (diag λ̄ + F ∘ ½(C − Cᵀ)) + Z,   F_ji = 1/(λ_i − λ_j), F_ii = 0,   z_i = −[P (A − λ_i) P]⁺ P v̄_i,

which is never formed. For A = A(θ) the gradient in θ is that of <Y, A(θ) V> with Y and V held fixed
(`Operator.pullback`); for a matrix on edges it has its entries on the edges and on the diagonal. Of C only the skew
part enters, because F is skew: the two terms of a pair (i, j) combine.

Equal eigenvalues. Where |λ_i − λ_j| is round-off, F_ji is set to 0. If the loss does not change when the basis of the
eigenspace is turned, the skew part of C vanishes there. Then nothing is lost and the gradient is exact, where
1/(λ_i − λ_j) would give 0 · ∞. If the skew part does not vanish, the loss has no gradient, and a warning says so. If
the cut k | k+1 goes through a cluster, the eigenspace itself has no gradient (it grows like 1/gap). A warning says so,
and the cluster's guard vectors are left out of Z, so that the answer stays finite.

Conjugate gradients compute Z: on the complement of V every A − λ_i is positive semidefinite. The guards U of the solver
precondition them by U (Λ_U − λ_i)⁻¹ Uᵀ + τ (I − U Uᵀ), τ of the size of A⁻¹. After `Eigh`, U is the whole complement,
the preconditioner is the inverse, and the first guess is the answer: one rule serves every solver. The system is solved
in float64, whatever the dtype of the problem, because rounding to float32 is amplified by bound / gap.

Second derivatives: every step is differentiable, V and λ are outputs of the rule itself, and Z is the solution of

    A Z − Z Λ + V μ = −V̄,   Vᵀ Z = 0,

a symmetric system. Let Y be the solution for the cotangent Z̄ in place of V̄, with multiplier ν in place of μ. The
cotangents are Y Zᵀ for A, −Zᵀ Y for Λ, Y μᵀ + Z νᵀ for V and Y for V̄, with μ = −Vᵀ (V̄ + A Z) and ν = −Vᵀ (Z̄ + A Y).
A perturbation turns the basis of a cluster by first-order angles, while Λ = Vᵀ A V becomes a full matrix on the
cluster. Only basis and Λ together are well defined, so the rule returns Λ as a matrix: its entries off the diagonal are
zero within a cluster, but their cotangents carry the part that the masked rotation leaves out.

Pencils K u = λ M u, Vᵀ M V = I. With T = Vᵀ dK V − ½(Λ W + W Λ) and W = Vᵀ dM V, T replaces Vᵀ dA V, the vectors change
by − ½ V W, too, and Z solves K Z − M Z Λ + M V μ = −V̄, Vᵀ M Z = 0. With R = diag λ̄ + F ∘ ½(C − Cᵀ) the gradient in M
is the symmetric part of −(½ V (Λ R + R Λ + ½(C + Cᵀ)) + Z Λ) Vᵀ.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.eigen.check import Solution
from torch_lapeig.eigen.gradient.clusters import (
    Differences,
    GradientOptions,
    differences,
    inverse_differences,
    noise_width,
)
from torch_lapeig.eigen.gradient.complement import Complement, PencilComplement, implicit_solve
from torch_lapeig.eigen.pencil import Pencil
from torch_lapeig.support import checks, precision


class ImplicitEigenpairs(precision.Function):
    """Function θ -> (Λ, V) of a solution found beforehand, for the parameters θ of its operator."""

    @staticmethod
    @precision.without_autocast
    def forward(solution: Solution, options: GradientOptions, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of the solution."""
        return torch.diag_embed(solution.values), solution.vectors.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Save the tensors that either mode needs."""
        ctx.solution, ctx.options, *parameters = inputs
        ctx.is_differentiated = False
        ctx.save_for_backward(*parameters, *output)
        ctx.save_for_forward(*parameters, *output)

    @staticmethod
    @precision.without_autocast
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Return the cotangents of the parameters for cotangents of Λ and V."""
        *parameters, projected, vectors = ctx.saved_tensors
        s: Solution = ctx.solution
        to_projected, to_vectors = cotangents
        options = ctx.options if s.operator.is_sharded else ctx.options.for_cotangents(to_vectors.detach())
        to_projected = s.operator.sum(to_projected)  # each rank has Λ, and a part of the loss
        values = projected.diagonal(dim1=-2, dim2=-1)
        noise = noise_width(s, options)
        found = differences(values, values, noise, options)
        inverse, cluster = inverse_differences(found, s, options)
        skew = s.operator.inner(vectors, to_vectors)
        skew, whole = (skew - skew.mT) / 2, (to_projected + to_projected.mT) / 2
        is_differentiated = torch.is_grad_enabled() or ctx.is_differentiated
        if _has_close(s, options, found):
            sizes = s.operator.dots(to_vectors.detach(), to_vectors.detach()).sqrt()
            # Cotangents from a derivative of this rule have the errors of its linear solve.
            error = options.tolerance if ctx.is_differentiated else 0.0
            _warn_if_undefined(s, options, found, to_projected.detach(), sizes, skew.detach(), error)
            equal = _unknown(s, options, found, sizes, skew.detach())
            if is_differentiated:
                error, rotation = max(100 * torch.finfo(s.values.dtype).eps, error), (inverse * skew).detach()
                equal = equal | _close(s, options, found, rotation.masked_fill(equal, 0), whole.detach(), sizes, error)
            inverse, cluster = inverse.masked_fill(equal, 0), cluster | equal
        ctx.is_differentiated = is_differentiated
        rotation = inverse * skew
        if torch.is_grad_enabled():
            # Zero with a derivative: X Λ − Λ X = ½(C − Cᵀ) with the entries of Λ off its diagonal.
            off = projected - torch.diag_embed(values)
            rotation = rotation - inverse * (precision.matmul(rotation, off) - precision.matmul(off, rotation))
        turn = cluster * whole + rotation
        z = implicit_solve(_complement(s, options, noise), projected, vectors, to_vectors, *parameters)
        y = precision.matmul(vectors, turn) + z
        if not isinstance(s.operator, Pencil):
            return None, None, *s.operator.pullback(parameters, y, vectors)
        inner = s.operator.inner(vectors, to_vectors)
        turn = precision.matmul(projected, turn) + precision.matmul(turn, projected) + (inner + inner.mT) / 2
        to_mass = precision.matmul(vectors, turn) / 2 + precision.matmul(z, projected)
        return None, None, *s.operator.pullback_of_both(parameters, y, vectors, -to_mass, vectors)

    @staticmethod
    @precision.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the tangents of Λ and V for tangents of the parameters."""
        *parameters, projected, vectors = ctx.saved_tensors
        s: Solution = ctx.solution
        values = projected.diagonal(dim1=-2, dim2=-1)
        noise = noise_width(s, ctx.options)
        inverse, cluster = inverse_differences(differences(values, values, noise, ctx.options), s, ctx.options)
        change = s.operator.pushforward(parameters, tangents[2:], vectors)  # dA V
        turned = s.operator.inner(vectors, change)
        stretched = torch.zeros_like(turned)
        if isinstance(s.operator, Pencil):
            mass_change = s.operator.change_of_mass(tangents[2:], vectors)  # dM V
            stretched = s.operator.inner(vectors, mass_change) / 2
            change = change - precision.matmul(mass_change, projected)
            turned = turned - precision.matmul(projected, stretched) - precision.matmul(stretched, projected)
        z = implicit_solve(_complement(s, ctx.options, noise), projected, vectors, change, *parameters)
        return cluster * (turned + turned.mT) / 2, precision.matmul(vectors, inverse * turned - stretched) + z


def _complement(s: Solution, options: GradientOptions, noise: Tensor) -> Complement | PencilComplement:
    """Return the linear system of the gradient outside the span of the vectors."""
    return (PencilComplement if isinstance(s.operator, Pencil) else Complement)(s, options, noise)


def _has_close(s: Solution, options: GradientOptions, found: Differences) -> bool:
    """Return whether values may be so close to each other, or to the next one, that a case below holds."""
    close = max(options.loss_eps**0.5, torch.finfo(s.values.dtype).eps ** (1 / 3)) * s.operator.bound[:, None, None]
    apart = torch.cat([found.sizes.diagonal(1, dim1=1, dim2=2), s.gap[:, None]], 1)
    return not bool((apart > torch.maximum(found.width, close)[..., 0]).all())


def _unknown(s: Solution, options: GradientOptions, found: Differences, sizes: Tensor, skew: Tensor) -> Tensor:
    """Return close eigenvalues whose skew part is round-off of cotangents of these norms, bool ``(B, k, k)``."""
    if options.degeneracy != "mask" or options.width is not None:
        return torch.zeros_like(skew, dtype=torch.bool)
    # A loss blind to the basis leaves the round-off of its own arithmetic, which 1/Δ would turn into a gradient.
    round_off = 8 * options.loss_eps * (sizes[:, :, None] + sizes[:, None, :])
    unknown: Tensor = (skew.abs() <= round_off) & (
        found.sizes < options.loss_eps**0.5 * s.operator.bound[:, None, None]
    )
    return unknown


def _close(
    s: Solution,
    options: GradientOptions,
    found: Differences,
    rotation: Tensor,
    whole: Tensor,
    sizes: Tensor,
    error: float,
) -> Tensor:
    """Return close eigenvalues that may count as equal where the gradient is differentiated, bool ``(B, k, k)``."""
    # The derivative of 1/(λ_i − λ_j) contains its square, which cancels unless the loss depends on the basis.
    difference, eps, bound = found.sizes.detach(), torch.finfo(s.values.dtype).eps, s.operator.bound[:, None, None]
    near = (difference > found.width) & (difference < eps ** (1 / 3) * bound)
    if options.degeneracy != "mask" or not near.any():
        return torch.zeros_like(near)
    # A loss that takes Λ as a matrix does not need it: the cotangents of Λ and of the rotation are equal, up to the
    # ``error`` of the cotangents over Δ. A loss of only one of two vectors depends on the basis even where both
    # cotangents are zero by symmetry.
    size = sizes.norm(dim=1)[:, None, None]
    noise = error * size / difference.clamp_min(eps * bound)
    is_same = (rotation - whole).abs() <= 1e-3 * (rotation.abs() + whole.abs()) + noise
    is_seen = (sizes > 0) | (whole != 0).any(-1)
    is_same = is_same & (is_seen[:, :, None] == is_seen[:, None, :])
    # Where a loss depends on the basis, rotations are larger in terms of the cotangents over the bound.
    cancels = (rotation.abs() * bound <= 1e3 * size) & (difference < (100 * eps) ** 0.5 * bound)
    lost = near & ~is_same & cancels
    if torch.is_grad_enabled() and lost.any():  # later passes need no further warning
        checks.warn(
            "second derivatives of a loss that depends on the basis among eigenvectors of close eigenvalues are not "
            "accurate; use functions of values and vectors together, through Eigenpairs.projected",
            checks.DegeneracyWarning,
        )
    return near & is_same  # type: ignore[no-any-return]


def _warn_if_undefined(
    s: Solution,
    options: GradientOptions,
    found: Differences,
    to_projected: Tensor,
    sizes: Tensor,
    skew: Tensor,
    error: float,
) -> None:
    """Warn where the loss distinguishes equal eigenvalues, given the ``error`` of its cotangents."""
    # Three cases: the masked skew part within a cluster is not zero; gradients to equal eigenvalues differ, though the
    # loss does not take their matrix (`Eigenpairs.projected`); the cut k | k+1 goes through a cluster.
    noise = math.sqrt(options.loss_eps)
    size = sizes.norm(dim=1)
    equal = found.are_equal.to(skew.dtype)
    lost = skew * equal
    # Eigenvalues too close to resolve: the omitted terms are small, but so are their divisors.
    near = lost.abs() * (found.sizes > 0.1 * found.noise) * (options.degeneracy == "mask")
    unresolved = (near.amax((1, 2)) > max(8 * options.loss_eps, error) * size) & (options.width is None)
    to_values = to_projected.diagonal(dim1=-2, dim2=-1)
    # The eigenvalue of the null vector of the whole graph is 0 for all parameters, whatever its cotangent.
    varies = torch.ones_like(to_values)
    varies[:, 0] = s.operator.nullity == 0
    spread = equal * varies[:, :, None] * varies[:, None, :] * (to_values[:, :, None] - to_values[:, None, :])
    whole = to_projected - torch.diag_embed(to_values)
    # Cotangents of a smooth function of values differ within a cluster by the accuracy of the solve.
    accuracy = (s.residuals.amax(1) / s.gap.clamp_min(torch.finfo(s.gap.dtype).tiny)).clamp(noise, max(noise, 1e-2))
    apart = (spread.abs().amax((1, 2)) > accuracy * to_values.abs().amax(1)) & (whole == 0).all((1, 2))
    effect = {
        "mask": "terms that depend on that choice are left out",
        "lorentz": "terms that depend on that choice are damped",
        "exact": "terms that depend on that choice are noise",
    }[options.degeneracy]
    # Count columns of small cotangents, too, unless they are round-off of large cotangents.
    pair_size = (sizes[:, :, None] + sizes[:, None, :]) / 2 + 1e-2 * size[:, None, None]
    undefined = (lost.abs() > noise * pair_size).any(dim=(1, 2)) | apart
    if (unresolved & ~undefined).any():
        checks.warn(
            "eigenvalues are closer together than their residuals resolve: they count as equal, and terms of the "
            "gradient that depend on their difference are left out; use float64 or a smaller tolerance",
            checks.DegeneracyWarning,
        )
    if undefined.any():
        checks.warn(
            "the loss depends on the choice of basis among eigenvectors of equal eigenvalues: its gradient is not "
            f"defined, and {effect}; use a loss that is invariant to rotations within an "
            "eigenspace (functions of values and vectors together: through Eigenpairs.projected)",
            checks.DegeneracyWarning,
        )
    cut = (s.gap <= found.width.flatten()) & ((size > 0) | ((varies * to_values)[:, -1] != 0))
    if cut.any():
        b = int(cut.nonzero()[0])
        checks.warn(
            f"k={s.values.shape[1]} splits a cluster of eigenvalues (gap {s.gap[b]:.1e}): the gradient of its "
            f"part is not defined; {_nearest_whole_cut(s, found.width, b)}",
            checks.DegeneracyWarning,
        )


def _nearest_whole_cut(s: Solution, width: Tensor, b: int) -> str:
    """Return advice: the number of pairs nearest to k after which the gap is wider than a cluster."""
    values = torch.cat([s.values[b], s.guard_values[b]])
    whole = (values.diff() > width[b].item()).nonzero().flatten() + 1
    if len(whole) == 0:
        return f"no cut among the {len(values)} known eigenvalues is outside a cluster"
    return f"the nearest k that does not is {int(whole[(whole - s.values.shape[1]).abs().argmin()])}"
