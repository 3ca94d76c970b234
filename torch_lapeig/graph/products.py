"""Derivatives, of any order and mode, of what patterns compute of values on edges.

The product M Y of a matrix on edges and the sampled product (X Yᵀ)_ij on edges are each other's derivatives:

    Z = M Y:         ∂M_ij = (Z̄ Yᵀ)_ij,    ∂Y = Mᵀ Z̄
    p = (X Yᵀ)_ij:   ∂X = P̄ Y,             ∂Y = P̄ᵀ X        with P̄ the matrix of p̄ on the edges,

so two functions are closed under differentiation of any order. Mᵀ has the values of the reversed edges. Lengths and
smoothness are computed by direct differences, and their derivatives are such products again.

Each function here takes its values from the method ``direct_...`` of a pattern, which knows no gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from torch_lapeig import _checks

SAMPLE, GOLDEN = 1000, 0.6180339887498949  # points that tell how far most are apart, and the step between them


class Edges(Protocol):
    """What the functions need of a sparse or dense pattern."""

    def at_row(self, nodes: Tensor) -> Tensor:
        """Node values at the first node of each edge."""

    def at_col(self, nodes: Tensor) -> Tensor:
        """Node values at the second node of each edge."""

    def centre(self, x: Tensor) -> Tensor:
        """The mean of node values over all nodes, a constant."""

    def any(self, flag: Tensor) -> bool:
        """Whether a flag is true wherever nodes are."""

    def sum_rows(self, values: Tensor) -> Tensor:
        """Σ_j of edge values."""

    def transpose(self, values: Tensor) -> Tensor:
        """The values of the reversed edges."""

    def has_loops(self, values: Tensor) -> bool:
        """Whether there may be self loops."""

    def without_loops(self, values: Tensor) -> Tensor:
        """The values with those of self loops set to zero."""

    def matmul(self, values: Tensor, y: Tensor, *, is_symmetric: bool = False) -> Tensor:
        """M Y, differentiable."""

    def products(self, x: Tensor, y: Tensor) -> Tensor:
        """(X Yᵀ)_ij, differentiable."""

    def squared_lengths(self, x: Tensor) -> Tensor:
        """‖x_i − x_j‖², differentiable."""

    def direct_lengths(self, x: Tensor) -> Tensor:
        """‖x_i − x_j‖² without gradients."""

    def direct_smoothness(self, values: Tensor, y: Tensor, with_pull: bool) -> tuple[Tensor, Tensor | None]:
        """½ Σ m_ij ‖y_i − y_j‖² without gradients; and `direct_pull` if asked for, where both take less together."""

    def direct_pull(self, values: Tensor, x: Tensor) -> Tensor | None:
        """Σ_j m_ij (x_j − x_i) by direct differences, without gradients; None where a product takes less."""


class SparseEdges(Edges, Protocol):
    """What the functions of sparse patterns need besides."""

    @property
    def is_sharded(self) -> bool:
        """Whether nodes lie on several ranks."""

    @property
    def crow(self) -> Tensor:
        """Where each row's edges begin."""

    @property
    def col(self) -> Tensor:
        """The second node of each edge."""

    def sum_cols(self, values: Tensor) -> Tensor:
        """Σ_i of edge values."""

    def scaled(self, values: Tensor, nodes: Tensor) -> Tensor:
        """s_i m_ij s_j, differentiable."""

    def direct_matmul(self, values: Tensor, y: Tensor) -> Tensor:
        """M Y without gradients."""

    def direct_products(self, x: Tensor, y: Tensor) -> Tensor:
        """(X Yᵀ)_ij without gradients."""


def product(values: Tensor, y: Tensor, pattern: SparseEdges, *, is_symmetric: bool = False) -> Tensor:
    """M Y ``(total, m)`` for values ``(E,)`` of M on the edges and ``(total, m)``.

    ``is_symmetric``: M is known to be, so that first derivatives need not look for the value of each reversed edge,
    which takes longer than the product: they lie all over the memory. Higher ones do: what M comes from may not be.
    """
    result: Tensor = _Product.apply(values, y, pattern, is_symmetric)
    return result


def sampled_product(x: Tensor, y: Tensor, pattern: SparseEdges) -> Tensor:
    """(X Yᵀ)_ij ``(E,)`` on the edges for ``(total, m)``."""
    result: Tensor = _SampledProduct.apply(x, y, pattern)
    return result


def scaled_by_nodes(values: Tensor, nodes: Tensor, pattern: SparseEdges) -> Tensor:
    """s_i m_ij s_j ``(E,)`` for values m on the edges and s at the nodes."""
    result: Tensor = _NodeScaling.apply(values, nodes, pattern)
    return result


def squared_lengths(x: Tensor, pattern: Edges) -> Tensor:
    """‖x_i − x_j‖² on the edges for ``(..., N, D)``."""
    result: Tensor = _SquaredLengths.apply(x, pattern)
    return result


def smoothness(values: Tensor, y: Tensor, pattern: Edges) -> Tensor:
    """½ Σ m_ij ‖y_i − y_j‖² for symmetric values m on the edges and ``(..., N, m)``."""
    with_pull = y.requires_grad and torch.is_grad_enabled()
    result: Tensor = _Smoothness.apply(values, y, pattern, with_pull)[0]
    return result


class _Product(torch.autograd.Function):
    @staticmethod
    @_checks.without_autocast
    def forward(values: Tensor, y: Tensor, pattern: SparseEdges, is_symmetric: bool) -> Tensor:
        return pattern.direct_matmul(values, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, SparseEdges, bool], output: Tensor) -> None:
        values, y, ctx.pattern, ctx.is_symmetric = inputs
        ctx.save_for_backward(values, y)
        ctx.save_for_forward(values, y)

    @staticmethod
    @_checks.without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (values, y), pattern = grads, ctx.saved_tensors, ctx.pattern
        to_values = sampled_product(g, y, pattern) if ctx.needs_input_grad[0] else None
        to_y = None
        if ctx.needs_input_grad[1]:
            is_own = ctx.is_symmetric and not torch.is_grad_enabled()
            to_y = product(values if is_own else pattern.transpose(values), g, pattern)
        return to_values, to_y, None, None

    @staticmethod
    @_checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (values, y), pattern = ctx.saved_tensors, ctx.pattern
        result: Tensor = torch.zeros_like(y)
        if tangents[0] is not None:
            result = result + product(tangents[0], y, pattern)
        if tangents[1] is not None:
            result = result + product(values, tangents[1], pattern)
        return result


class _NodeScaling(torch.autograd.Function):
    """s_i m_ij s_j on the edges: with autograd's own product, three edge lists would be kept for the backward."""

    @staticmethod
    @_checks.without_autocast
    def forward(values: Tensor, nodes: Tensor, pattern: SparseEdges) -> Tensor:
        return pattern.at_row(nodes).mul_(values).mul_(pattern.at_col(nodes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, SparseEdges], output: Tensor) -> None:
        values, nodes, ctx.pattern = inputs
        ctx.save_for_backward(values, nodes)
        ctx.save_for_forward(values, nodes)

    @staticmethod
    @_checks.without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (values, nodes), pattern = grads, ctx.saved_tensors, ctx.pattern
        to_nodes = None
        if ctx.needs_input_grad[1]:
            both = g * values
            to_nodes = pattern.sum_rows(both * pattern.at_col(nodes)) + pattern.sum_cols(both * pattern.at_row(nodes))
        return pattern.scaled(g, nodes) if ctx.needs_input_grad[0] else None, to_nodes, None

    @staticmethod
    @_checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (values, nodes), pattern = ctx.saved_tensors, ctx.pattern
        result = torch.zeros_like(values)
        if tangents[0] is not None:
            result = result + pattern.scaled(tangents[0], nodes)
        if tangents[1] is not None:
            row, col = pattern.at_row(tangents[1]), pattern.at_col(tangents[1])
            result = result + values * (row * pattern.at_col(nodes) + pattern.at_row(nodes) * col)
        return result


class _SampledProduct(torch.autograd.Function):
    @staticmethod
    @_checks.without_autocast
    def forward(x: Tensor, y: Tensor, pattern: SparseEdges) -> Tensor:
        return pattern.direct_products(x, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, SparseEdges], output: Tensor) -> None:
        x, y, ctx.pattern = inputs
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)

    @staticmethod
    @_checks.without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (p,), (x, y), pattern = grads, ctx.saved_tensors, ctx.pattern
        to_x = product(p, y, pattern) if ctx.needs_input_grad[0] else None
        to_y = product(pattern.transpose(p), x, pattern) if ctx.needs_input_grad[1] else None
        return to_x, to_y, None

    @staticmethod
    @_checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (x, y), pattern = ctx.saved_tensors, ctx.pattern
        result: Tensor = x.new_zeros(len(pattern))
        if tangents[0] is not None:
            result = result + sampled_product(tangents[0], y, pattern)
        if tangents[1] is not None:
            result = result + sampled_product(x, tangents[1], pattern)
        return result


class _SquaredLengths(torch.autograd.Function):
    """‖x_i − x_j‖² on the edges. With C = c̄ + c̄ᵀ of the cotangent the gradient is 2 (diag(C 1) − C) X, a Laplacian."""

    @staticmethod
    @_checks.without_autocast
    def forward(x: Tensor, pattern: Edges) -> Tensor:
        return pattern.direct_lengths(x.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Edges], output: Tensor) -> None:
        x, ctx.pattern = inputs
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x)

    @staticmethod
    @_checks.without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        (c,), (x, lengths), pattern = grads, ctx.saved_tensors, ctx.pattern
        lengths = _checks.primal(lengths)

        def shortest() -> Tensor:
            positive = torch.where(lengths > 0, lengths, torch.inf)
            return positive.amin().sqrt() if positive.numel() else lengths.new_ones(())

        return -2 * _pull(c + pattern.transpose(c), x, pattern, shortest), None

    @staticmethod
    @_checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        (x,), pattern = ctx.saved_tensors, ctx.pattern
        # 2 (x_i − x_j)·(u_i − u_j)
        u, x = tangents[0].double(), x.double()  # what cancels is as large as the points, not as the edges
        u, x = u - pattern.centre(u), x - pattern.centre(x)
        inner = (x * u).sum(-1)
        crossed = pattern.products(x, u) + pattern.products(u, x)
        change: Tensor = 2 * (pattern.at_row(inner) + pattern.at_col(inner) - crossed)
        return change.to(tangents[0].dtype)


def _pull(values: Tensor, x: Tensor, pattern: Edges, scale: Callable[[], Tensor]) -> Tensor:
    """Σ_j m_ij (x_j − x_i) ``(..., N, D)`` for symmetric values m on the edges, differentiable in both.

    As a matrix product, in which what cancels is as large as the points. Where they reach 10⁴ times the ``scale`` of
    their differences, float32 is summed in float64. On a few edges by differences, where nobody asks for derivatives.
    """
    if pattern.has_loops(values):  # which may be larger than all others, and cancel
        values = pattern.without_loops(values)
    if not (torch.is_grad_enabled() or _checks.is_dual(values) or _checks.is_dual(x)):
        found = pattern.direct_pull(values, x)
        if found is not None:
            return found
    # Shifting the points changes nothing but the size of what cancels.
    centred = x - pattern.centre(x)
    if x.dtype == torch.float32:
        ends = torch.aminmax(_checks.primal(centred)) if x.numel() else 2 * (x.new_zeros(()),)
        if pattern.any(1e-4 * torch.maximum(-ends[0], ends[1]) > scale()):
            values, centred = values.double(), x.double() - pattern.centre(x.double())
    product = pattern.matmul(values, centred, is_symmetric=True)
    return (product - pattern.sum_rows(values)[..., None] * centred).to(x.dtype)


class _Smoothness(torch.autograd.Function):
    """½ Σ m_ij ‖y_i − y_j‖² of symmetric m: ∂Y = 2 (diag(M 1) − M) Y, one product, and ∂m_ij = ½ ‖y_i − y_j‖².

    The value by direct differences, which are exact zeros for constant Y where tr(Yᵀ L Y) would cancel.
    """

    @staticmethod
    @_checks.without_autocast
    def forward(values: Tensor, y: Tensor, pattern: Edges, with_pull: bool) -> tuple[Tensor, Tensor | None]:
        return pattern.direct_smoothness(values.detach(), y.detach(), with_pull)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Edges, bool], output: tuple[Tensor, Tensor | None]
    ) -> None:
        (values, y, ctx.pattern, _), (_, pull) = inputs, output
        if pull is not None:
            ctx.mark_non_differentiable(pull)
        ctx.save_for_backward(values, y, pull)
        ctx.save_for_forward(values, y)

    @staticmethod
    @_checks.without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (values, y, pull), pattern = grads[0], ctx.saved_tensors, ctx.pattern
        to_values = g / 2 * pattern.squared_lengths(y) if ctx.needs_input_grad[0] else None
        to_y = None
        if ctx.needs_input_grad[1]:
            if pull is None or torch.is_grad_enabled() or _checks.is_dual(g):
                pull = _pull_of_smoothness(values, y, pattern)
            to_y = -2 * g * pull
        return to_values, to_y, None, None

    @staticmethod
    @_checks.without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, None]:
        (values, y), pattern = ctx.saved_tensors, ctx.pattern
        result: Tensor = values.new_zeros(())
        if tangents[0] is not None:
            result = result + (tangents[0] * pattern.squared_lengths(y)).sum() / 2
        if tangents[1] is not None:
            result = result - 2 * (tangents[1] * _pull_of_smoothness(values, y, pattern)).sum()
        return result, None


def _pull_of_smoothness(values: Tensor, y: Tensor, pattern: Edges) -> Tensor:
    """(M − diag(M 1)) Y."""

    def scale() -> Tensor:
        # The edges are about as long as most points are apart, however far a few of them lie. Some points tell, taken
        # in golden steps: no pattern in the order of the points goes with these.
        n = y.shape[-2]
        places = torch.arange(min(n, SAMPLE), dtype=torch.float64, device=y.device) * GOLDEN % 1 * n
        some = _checks.primal(y).index_select(-2, places.long()) if n > SAMPLE else _checks.primal(y)
        return (some - some.median(-2, keepdim=True).values).abs().amax(-1).median() / 10

    return _pull(values, y, pattern, scale)
