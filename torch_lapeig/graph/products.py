"""Derivatives, of any order and mode, of functions that patterns compute from values on edges.

The product M Y of a matrix on edges and the sampled product (X Yᵀ)_ij on edges are each other's derivatives:

    Z = M Y:         ∂M_ij = (Z̄ Yᵀ)_ij,    ∂Y = Mᵀ Z̄
    p = (X Yᵀ)_ij:   ∂X = P̄ Y,             ∂Y = P̄ᵀ X        with P̄ the matrix of p̄ on the edges,

so two functions are closed under differentiation of any order. Mᵀ has the values of the reversed edges. Lengths and
smoothness are computed by direct differences, and their derivatives are such products again.

Each function here takes its values from the method ``direct_...`` of a pattern, which knows no gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_lapeig.support import checks

Pattern = Any  # a `SparsePattern` or a `DensePattern`, which import this module


def product(values: Tensor, y: Tensor, pattern: Pattern, *, is_symmetric: bool = False) -> Tensor:
    """Return M Y ``(total, m)`` for values ``(E,)`` of M on the edges and ``(total, m)``.

    ``is_symmetric``: M is known to be, so that first derivatives need no search for the value of each reversed edge,
    which takes longer than the product: they lie all over the memory. Higher ones do: the tensors behind M may not be.
    """
    result: Tensor = _Product.apply(values, y, pattern, is_symmetric)
    return result


def sampled_product(x: Tensor, y: Tensor, pattern: Pattern) -> Tensor:
    """Return (X Yᵀ)_ij ``(E,)`` on the edges for ``(total, m)``."""
    result: Tensor = _SampledProduct.apply(x, y, pattern)
    return result


def squared_lengths(x: Tensor, pattern: Pattern) -> Tensor:
    """Return ‖x_i − x_j‖² on the edges for ``(..., N, D)``."""
    result: Tensor = _SquaredLengths.apply(x, pattern)
    return result


def smoothness(values: Tensor, y: Tensor, pattern: Pattern) -> Tensor:
    """Return ½ Σ m_ij ‖y_i − y_j‖² for symmetric values m on the edges and ``(..., N, m)``."""
    result: Tensor = _Smoothness.apply(values, y, pattern)[0]
    return result


class _OfTwo(torch.autograd.Function):
    """Function on a pattern that is linear in each of two tensors."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        one, other, ctx.pattern, *ctx.options = inputs
        ctx.save_for_backward(one, other)
        ctx.save_for_forward(one, other)


class _Product(_OfTwo):
    @staticmethod
    @checks.without_autocast
    def forward(values: Tensor, y: Tensor, pattern: Pattern, is_symmetric: bool) -> Any:
        return pattern.direct_matmul(values, y)

    @staticmethod
    @checks.without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (values, y), pattern = grads, ctx.saved_tensors, ctx.pattern
        to_values = sampled_product(g, y, pattern) if ctx.needs_input_grad[0] else None
        to_y = None
        if ctx.needs_input_grad[1]:
            is_own = ctx.options[0] and not torch.is_grad_enabled()
            to_y = product(values if is_own else pattern.transpose(values), g, pattern)
        return to_values, to_y, None, None

    @staticmethod
    @checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (values, y), pattern = ctx.saved_tensors, ctx.pattern
        result: Tensor = torch.zeros_like(y)
        if tangents[0] is not None:
            result = result + product(tangents[0], y, pattern)
        if tangents[1] is not None:
            result = result + product(values, tangents[1], pattern)
        return result


class _SampledProduct(_OfTwo):
    @staticmethod
    @checks.without_autocast
    def forward(x: Tensor, y: Tensor, pattern: Pattern) -> Any:
        return pattern.direct_products(x, y)

    @staticmethod
    @checks.without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (p,), (x, y), pattern = grads, ctx.saved_tensors, ctx.pattern
        to_x = product(p, y, pattern) if ctx.needs_input_grad[0] else None
        to_y = product(pattern.transpose(p), x, pattern) if ctx.needs_input_grad[1] else None
        return to_x, to_y, None

    @staticmethod
    @checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (x, y), pattern = ctx.saved_tensors, ctx.pattern
        result: Tensor = x.new_zeros(len(pattern))
        if tangents[0] is not None:
            result = result + sampled_product(tangents[0], y, pattern)
        if tangents[1] is not None:
            result = result + sampled_product(x, tangents[1], pattern)
        return result


class _SquaredLengths(torch.autograd.Function):
    """Squared lengths ‖x_i − x_j‖² on edges; C = c̄ + c̄ᵀ of the cotangent gives the gradient 2 (diag(C 1) − C) X."""

    @staticmethod
    @checks.without_autocast
    def forward(x: Tensor, pattern: Pattern) -> Any:
        return pattern.direct_lengths(x.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Pattern], output: Tensor) -> None:
        x, ctx.pattern = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    @checks.without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        (c,), (x,), pattern = grads, ctx.saved_tensors, ctx.pattern
        return -2 * _pull(c + pattern.transpose(c), x, pattern), None

    @staticmethod
    @checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        (x,), pattern = ctx.saved_tensors, ctx.pattern
        # 2 (x_i − x_j)·(u_i − u_j)
        u, x = tangents[0].double(), x.double()  # terms that cancel are as large as the points, not as the edges
        u, x = u - pattern.centre(u), x - pattern.centre(x)
        inner = (x * u).sum(-1)
        crossed = pattern.products(x, u) + pattern.products(u, x)
        change: Tensor = 2 * (pattern.at_row(inner) + pattern.at_col(inner) - crossed)
        return change.to(tangents[0].dtype)


def _pull(values: Tensor, x: Tensor, pattern: Pattern) -> Tensor:
    """Return Σ_j m_ij (x_j − x_i) ``(..., N, D)`` for symmetric values m on the edges, differentiable in both.

    By differences where no derivatives are asked for. Else as a matrix product in float64: terms that cancel in it are
    as large as the points, not as their differences.
    """
    values = pattern.without_loops(values)  # they may be larger than all others, and cancel
    if not (torch.is_grad_enabled() or checks.is_dual(values) or checks.is_dual(x)):
        found = pattern.direct_tension(values, x)
        if found is not None:
            pull: Tensor = found[1]
            return pull
    wide = x.double()
    values, centred = values.double(), wide - pattern.centre(wide)
    result: Tensor = pattern.matmul(values, centred, is_symmetric=True) - pattern.sum_rows(values)[..., None] * centred
    return result.to(x.dtype)


class _Smoothness(torch.autograd.Function):
    """Smoothness ½ Σ m_ij ‖y_i − y_j‖², m symmetric: ∂Y = 2 (diag(M 1) − M) Y, one product, ∂m_ij = ½ ‖y_i − y_j‖².

    The value by direct differences, which are exact zeros for constant Y where tr(Yᵀ L Y) would cancel.
    """

    @staticmethod
    @checks.without_autocast
    def forward(values: Tensor, y: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor | None]:
        values, y = values.detach(), y.detach()
        found = pattern.direct_tension(values, y)
        return ((values * pattern.direct_lengths(y)).sum() / 2, None) if found is None else found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Pattern], output: tuple[Tensor, Tensor | None]) -> None:
        (values, y, ctx.pattern), (_, pull) = inputs, output
        if pull is not None:
            ctx.mark_non_differentiable(pull)
        ctx.save_for_backward(values, y, pull)
        ctx.save_for_forward(values, y)

    @staticmethod
    @checks.without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (values, y, pull), pattern = grads[0], ctx.saved_tensors, ctx.pattern
        to_values = g / 2 * pattern.squared_lengths(y) if ctx.needs_input_grad[0] else None
        to_y = None
        if ctx.needs_input_grad[1]:
            if pull is None or torch.is_grad_enabled() or checks.is_dual(g):
                pull = _pull(values, y, pattern)
            to_y = -2 * g * pull
        return to_values, to_y, None

    @staticmethod
    @checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, None]:
        (values, y), pattern = ctx.saved_tensors, ctx.pattern
        result: Tensor = values.new_zeros(())
        if tangents[0] is not None:
            result = result + (tangents[0] * pattern.squared_lengths(y)).sum() / 2
        if tangents[1] is not None:
            result = result - 2 * (tangents[1] * _pull(values, y, pattern)).sum()
        return result, None
