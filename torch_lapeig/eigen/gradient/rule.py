"""The one differentiation rule of eigenpairs: its derivation, and the autograd Function that computes it.

A = diag(c) − M is symmetric with A v_i = λ_i v_i, V = [v_1 … v_k], P = I − V Vᵀ. For a change dA:

    dλ_i = v_iᵀ dA v_i
    dv_i = Σ_{j≠i, j≤k} v_j (v_jᵀ dA v_i) / (λ_i − λ_j)  −  [P (A − λ_i) P]⁺ dA v_i

With cotangents λ̄ and V̄ and C = Vᵀ V̄ the gradient is the symmetric part of Σ_i y_i v_iᵀ,

    Y = V (diag λ̄ + F ∘ ½(C − Cᵀ)) + Z,   F_ji = 1/(λ_i − λ_j), F_ii = 0,   z_i = −[P (A − λ_i) P]⁺ P v̄_i,

which is never formed. For A = A(θ) the gradient in θ is that of <Y, A(θ) V> with Y and V held fixed, by torch's own
derivatives of the product (`pull`). Of C only the skew part enters, because F is skew: the two terms of a pair (i, j)
combine. Complex matrices have ᴴ in place of ᵀ; of all pairs of a matrix Z is 0.

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

a symmetric system. With the solution Y for the cotangent Z̄ in place of V̄, and its multiplier ν in place of μ, the
cotangents of A, Λ, V and V̄ are those of <Y, A Z − Z Λ + V μ + V̄> + <ν, Vᵀ Z>, Y, Z, μ and ν held fixed (`Outside`).
In second order the skew part of C within a cluster is S_ji (g_i − g_j), S = Vᵀ dA V and g the cotangents of λ, which
over λ_i − λ_j is a divided difference of g. A loss that takes Λ as a matrix passes it on as the cotangent of Λ_ji, and
`Values` does so for a loss that takes λ as numbers.

A perturbation turns the basis of a cluster by first-order angles, while Λ = Vᵀ A V becomes a full matrix on the
cluster. Only basis and Λ together are well defined, so the rule returns Λ as a matrix: its entries off the diagonal are
zero within a cluster, but their cotangents carry the part that the masked rotation leaves out.

With a mass, K u = λ M u and Vᵀ M V = I. With T = Vᵀ dK V − ½(Λ W + W Λ) and W = Vᵀ dM V, T replaces Vᵀ dA V, the
vectors change by − ½ V W, too, and Z solves K Z − M Z Λ + M V μ = −V̄, Vᵀ M Z = 0. With R = diag λ̄ + F ∘ ½(C − Cᵀ) the
gradient in M is the symmetric part of −(½ V (Λ R + R Λ + ½(C + Cᵀ)) + Z Λ) Vᵀ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.eigen.gradient.system import Complement, couplings, differences, inverse_differences
from torch_lapeig.support import checks
from torch_lapeig.support.precision import Function, matmul

# From tensors to results, of which some may be None.
Map = Callable[..., Sequence[Tensor | None]]


def pull(function: Map, tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients of Σ <cotangent, result> in the tensors, None for those that need none."""
    # Where gradients are recorded they are differentiable in the cotangents and in the tensors.
    if checks.is_inside_func():
        count = len([c for c in cotangents if c is not None])
        back = torch.func.vjp(lambda *own: tuple(function(*own))[:count], *tensors)[1]
        return list(back(tuple(cotangents)[:count]))
    is_recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        # What else the function uses may depend on the tensors: views of them hold it fixed.
        own = [x.view_as(x) if is_recorded else x.detach().requires_grad_(x.requires_grad) for x in tensors]
        needed = [x for x in own if x.requires_grad]
        found = iter(_gradients(function(*own) if needed else (), needed, cotangents, create_graph=is_recorded))
    return [next(found) if x.requires_grad else None for x in own]


def push(function: Map, tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the changes of the results for tangents of the tensors."""
    if checks.is_inside_func():
        moved = [torch.zeros_like(x) if t is None else t for x, t in zip(tensors, tangents, strict=True)]
        return torch.func.jvp(function, tuple(tensors), tuple(moved))[1]  # type: ignore[no-any-return]
    # Modes of torch.autograd do not nest as those of torch.func do. But the gradients of <y, result> are linear in y:
    # their inner product with the tangents is <y, change>.
    moved = [t for t in tangents if t is not None]
    is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, *moved))
    with torch.enable_grad():
        both = zip(tensors, tangents, strict=True)
        own = [x.clone() if x.requires_grad else x.detach().requires_grad_(t is not None) for x, t in both]
        results = [r for r in function(*own) if r is not None]
        weights = [torch.zeros_like(r, requires_grad=True) for r in results]
        inputs = [x for x, t in zip(own, tangents, strict=True) if t is not None]
        pulled = _gradients(results, inputs, weights, create_graph=True)
        terms = [(p * t.conj()).sum().real for p, t in zip(pulled, moved, strict=True) if p is not None]
        total = torch.stack(terms).sum() if terms else None  # tensors that the function does not use
        if total is None or not total.requires_grad:
            return [torch.zeros_like(r) for r in results]
        found = torch.autograd.grad(total, weights, create_graph=is_recorded, allow_unused=True)
    return [torch.zeros_like(r) if f is None else f for r, f in zip(results, found, strict=True)]


def _gradients(results: Any, inputs: list[Tensor], weights: Any, *, create_graph: bool) -> Sequence[Tensor | None]:
    """Return the gradients of Σ <weight, result>; None for inputs on which no result depends."""
    pairs = [(r, w) for r, w in zip(results, weights, strict=False) if w is not None and r.requires_grad]
    if not pairs or not inputs:
        return [None] * len(inputs)
    outputs, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(outputs, inputs, grads, create_graph=create_graph, allow_unused=True)


class _Implicit(Function):
    """Function of a system and tensors whose derivatives need the tensors and the results."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the tensors that either mode needs."""
        ctx.system, *tensors = inputs
        ctx.seen = None  # what an earlier pass has seen whose result is differentiated
        results = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*tensors, *results)
        ctx.save_for_forward(*tensors, *results)


class Pairs(_Implicit):
    """Function θ -> (V, Λ) of the solution of a system."""

    @staticmethod
    def forward(system: Complement, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of the solution."""
        return system.s.vectors.clone(), torch.diag_embed(system.s.values).to(system.s.vectors.dtype)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Return the cotangents of the parameters for cotangents of V and Λ."""
        *parameters, vectors, projected = ctx.saved_tensors
        (to_vectors, to_projected), operator = cotangents, ctx.system.operator
        vectors = vectors.view_as(vectors) if torch.is_grad_enabled() else vectors
        whole = operator.nodes.sum((to_projected + to_projected.mH) / 2)  # each rank has Λ, and a part of the loss
        inner, values = operator.nodes.inner(vectors, to_vectors), projected.diagonal(dim1=-2, dim2=-1).real
        (inverse, equal), seen = couplings(ctx.system, values, inner, whole, to_vectors, ctx.seen)
        if torch.is_grad_enabled():
            ctx.seen = seen
            if seen is not None and not checks.is_inside_func():
                vectors.register_hook(seen.keep)
        rotation = inverse * (inner - inner.mH) / 2
        if torch.is_grad_enabled():
            # Zero with a derivative: X Λ − Λ X = ½(C − Cᴴ) with the entries of Λ off its diagonal.
            off = projected - torch.diag_embed(values)
            rotation = rotation - inverse * (matmul(rotation, off) - matmul(off, rotation))
        turn = equal * whole + rotation
        z = outside(ctx.system, projected, vectors, to_vectors, *parameters)
        y, y_mass = matmul(vectors, turn) + z, None
        if operator.mass is not None:
            turn = (matmul(projected, turn) + matmul(turn, projected) + (inner + inner.mH) / 2) / 2
            y_mass = -(matmul(vectors, turn) + matmul(z, projected))
        held = vectors if torch.is_grad_enabled() else vectors.detach()
        found = operator.gradients(held, y, y_mass, ctx.needs_input_grad[1:])
        if found is None:
            found = pull(lambda *own: operator.images(own, held), parameters, (y, y_mass))
        return None, *found

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the tangents of V and Λ for tangents of the parameters."""
        *parameters, vectors, projected = ctx.saved_tensors
        operator, values = ctx.system.operator, projected.diagonal(dim1=-2, dim2=-1).real
        inverse, equal = inverse_differences(ctx.system, differences(ctx.system, values, values))
        change, of_mass = push(lambda *own: operator.images(own, vectors), parameters, tangents[1:])  # dA V, dM V
        turned, stretched = operator.nodes.inner(vectors, change), torch.zeros_like(projected)
        if operator.mass is not None:
            stretched = operator.nodes.inner(vectors, of_mass) / 2
            change = change - matmul(of_mass, projected)
            turned = turned - matmul(projected, stretched) - matmul(stretched, projected)
        z = outside(ctx.system, projected, vectors, change, *parameters)
        return matmul(vectors, inverse * turned - stretched) + z, equal * (turned + turned.mH) / 2


class Values(_Implicit):
    """Function Λ -> λ, its diagonal, with the second derivatives of symmetric functions of equal eigenvalues.

    In place of a system it takes the machine epsilon of the loss.

    Where values are equal such a function φ has the second derivative of φ(Λ) as a matrix function: its cotangents g
    have the divided differences (g_i − g_j) / (λ_i − λ_j) = ∂g_i/∂λ_i − ∂g_i/∂λ_j, which stand before Λ_ij.
    """

    @staticmethod
    def forward(system: float, projected: Tensor) -> Tensor:
        """Return λ ``(..., k)`` of Λ ``(..., k, k)``."""
        return projected.diagonal(dim1=-2, dim2=-1).real.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[None, Tensor]:
        """Return the cotangent of Λ."""
        (to_values,), (projected, values) = cotangents, ctx.saved_tensors
        whole = torch.diag_embed(to_values).to(projected.dtype)
        if not (torch.is_grad_enabled() and to_values.requires_grad):
            return None, whole
        bare, eps = values.detach(), ctx.system
        apart, size = (bare[..., :, None] - bare[..., None, :]).abs(), bare.abs().amax(-1)[..., None, None]
        # A difference of cotangents has an error of eps / Δ, their derivative one of Δ.
        close = apart <= eps**0.5 * size
        close.diagonal(dim1=-2, dim2=-1).fill_(False)
        slopes = torch.zeros_like(apart)
        for i in close.reshape(-1, *close.shape[-2:]).any(2).any(0).nonzero().flatten().tolist():
            of_one = to_values[..., i].sum()
            (slope,) = torch.autograd.grad(of_one, values, retain_graph=True, allow_unused=True)
            slopes[..., i, :] = 0 if slope is None else slope
        own = slopes.diagonal(dim1=-2, dim2=-1)
        quotients = (own[..., :, None] + own[..., None, :] - slopes - slopes.mT) / 2
        # A loss that is not symmetric in the values takes something else, too, such as their vectors.
        to_one, to_other = to_values.detach()[..., :, None], to_values.detach()[..., None, :]
        noise = 1e-6 * (to_one.abs() + to_other.abs()) + 2 * quotients.abs() * (apart + 8 * eps * size)
        is_symmetric = close & ((to_one - to_other).abs() <= noise)
        return None, whole + torch.where(is_symmetric, quotients, 0) * projected

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the tangent of λ."""
        assert tangents[1] is not None
        return tangents[1].diagonal(dim1=-2, dim2=-1).real.clone()


def values_of(projected: Tensor, dtype: torch.dtype) -> Tensor:
    """Return λ of Λ, with derivatives where Λ has them, for a loss that is computed in a dtype."""
    if checks.needs_derivatives(projected):
        return Values.apply(torch.finfo(dtype).eps, projected)  # type: ignore[no-any-return]
    return projected.diagonal(dim1=-2, dim2=-1).real.clone()


class Outside(_Implicit):
    """Function (Λ, V, G, θ) -> Z of A(θ) Z − M(θ) Z Λ + M V μ = −G, Vᵀ M Z = 0; Λ and V may have no columns."""

    # The system that is given has an `operator` of A and M, and a method `solve(g)`, which returns Z.

    @staticmethod
    def forward(system: Any, projected: Tensor, vectors: Tensor, g: Tensor, *parameters: Tensor) -> Tensor:
        """Return Z ``(B, N, m)``."""
        return system.solve(checks.primal(g)).clone()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Return the cotangents of Λ, V, G and θ for a cotangent of Z."""
        (*tensors, z), (to_z,) = ctx.saved_tensors, cotangents
        projected, vectors, g, *parameters = tensors
        y = outside(ctx.system, projected, vectors, to_z, *parameters)
        mu, nu = (_multiplier(ctx.system, tensors, rhs, x) for rhs, x in ((g, z), (to_z, y)))
        return None, *pull(lambda *own: _equations(ctx.system, own, z, mu), tensors, (y, nu))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the tangent of Z for tangents of Λ, V, G and θ."""
        *tensors, z = ctx.saved_tensors
        projected, vectors, g, *parameters = tensors
        mu, operator = _multiplier(ctx.system, tensors, g, z), ctx.system.operator
        rest, turned = push(lambda *own: _equations(ctx.system, own, z, mu), tensors, tangents[1:])
        return outside(ctx.system, projected, vectors, rest, *parameters) - matmul(vectors, operator.nodes.sum(turned))


def outside(system: Any, *tensors: Tensor) -> Tensor:
    """Apply `Outside` to Λ, V, G and θ; where no derivatives can be asked for, only its solve; 0 of all pairs."""
    if tensors[1].shape[2] == system.operator.all_nodes:
        return torch.zeros_like(tensors[2])
    is_recorded = torch.is_grad_enabled() or checks.is_dual(*tensors)
    return Outside.apply(system, *tensors) if is_recorded else system.solve(tensors[2])  # type: ignore[no-any-return]


def _multiplier(system: Any, tensors: Sequence[Tensor], rhs: Tensor, x: Tensor) -> Tensor:
    """Return μ of A X − M X Λ + M V μ = −RHS: −Vᵀ (RHS + A X)."""
    _, vectors, _, *parameters = tensors
    return -system.operator.nodes.inner(vectors, rhs + system.operator.images(parameters, x)[0])  # type: ignore[no-any-return]


def _equations(system: Any, tensors: Sequence[Tensor], z: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    """Return both sides' differences at Z and μ, the second one of the rows of this rank."""
    projected, vectors, g, *parameters = tensors
    image, weighted = system.operator.images(parameters, z)
    beside = system.operator.images(parameters, vectors)[1] if system.operator.mass is not None else vectors
    image = image - matmul(weighted, projected) if projected.shape[2] else image
    image = image + matmul(beside, mu) if vectors.shape[2] else image
    return image + g, matmul(beside.mH, z)
