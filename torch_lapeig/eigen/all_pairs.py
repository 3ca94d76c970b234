"""All eigenpairs of dense matrices, with the rule of `torch_lapeig.eigen.gradient.rule` where no pair is left out.

V is square, so that nothing of the rule but its first sum remains, for Hermitian matrices with ᴴ in place of ᵀ:

    Ā = V (diag λ̄ + F ∘ ½(C − Cᴴ)) Vᴴ,   C = Vᴴ V̄,   F_ji = 1/(λ_i − λ_j).

Between equal eigenvalues F is 0, and the cotangent of Λ as a matrix takes the place of F ∘ ½(C − Cᴴ). A function of the
eigenspaces that mixes values and vectors through that matrix has the same number in both places, up to Δ², where values
are close: there the first has the round-off of C over Δ, and the second has not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.gradient.clusters import off_diagonal
from torch_lapeig.eigen.gradient.functions import expanded
from torch_lapeig.eigen.magnetic import with_real_peaks
from torch_lapeig.support import checks, precision


class AllPairs(NamedTuple):
    """All eigenpairs of a matrix ``(..., N, N)``: A = V Λ Vᴴ.

    Attributes:
        values: λ, real and ascending, ``(..., N)``.
        vectors: V ``(..., N, N)``, orthonormal columns; the largest entry of each is real and positive.
        projected: Λ = Vᴴ A V as a matrix ``(..., N, N)``. Where eigenvalues may be equal, functions of values and
            vectors together have correct gradients only through it.

    >>> eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).values
    tensor([1., 3.])
    """

    values: Tensor
    vectors: Tensor
    projected: Tensor

    @precision.full_precision
    def matrix_function(self, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Return f(A) = V f(Λ) Vᴴ ``(..., N, N)``, with exact gradients of first and second order.

        Args:
            f: function of real eigenvalues, entry by entry, such as ``torch.sqrt``, ``torch.rsqrt``, ``torch.log``,
                ``torch.exp`` or ``lambda x: x**0.3``; finite with its derivative at all of them, and twice
                differentiable. Gradients flow to tensors that it uses.

        Raises:
            TypeError, ValueError: no function; a result of another shape or dtype, or not finite, such as the logarithm
                of a matrix that is not positive definite.

        >>> covariance = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
        >>> eigh(covariance).matrix_function(torch.rsqrt)
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])
        """
        checks.check_function(f, "f", "a function of eigenvalues such as torch.sqrt")

        def response(at: Tensor) -> Tensor:
            value = f(at)
            if not isinstance(value, Tensor) or value.shape != at.shape or value.dtype != at.dtype:
                raise TypeError(f"f must return the shape and dtype of its argument, got {checks.describe(value)}")
            checks.check_finite(value, "f(eigenvalues)", "take a function that is finite at every eigenvalue")
            return value

        if self.values.numel() == 0:
            return self.vectors
        found = expanded(self.projected, torch.ones_like(self.values, dtype=torch.bool), response)
        return precision.matmul(self.vectors, found.applied(self.vectors.mH))


@precision.full_precision
def eigh(matrix: Tensor) -> AllPairs:
    """Compute all eigenpairs of symmetric or Hermitian matrices, with gradients that are finite at equal eigenvalues.

    In the place of `torch.linalg.eigh`, whose gradients are NaN or noise where eigenvalues are equal. Here they are
    exact for functions of the eigenspaces, and for the vectors themselves where eigenvalues are distinct; second
    derivatives and forward mode, too. A `DegeneracyWarning` reports a loss that has no gradient, because it depends on
    the choice of basis among eigenvectors of equal eigenvalues: terms that depend on the choice are left out.

    Args:
        matrix: ``(..., N, N)``, float32, float64, complex64 or complex128.

    Raises:
        TypeError: another type or dtype. ValueError: not square, not finite, or not symmetric (Hermitian).

    >>> matrix = torch.eye(3, dtype=torch.float64, requires_grad=True)
    >>> pairs = eigh(matrix)
    >>> pairs.matrix_function(torch.log).trace().backward()
    >>> matrix.grad.diagonal()
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    checks.check_instance(matrix, "matrix", Tensor, "a tensor (..., N, N)")
    if matrix.layout != torch.strided or matrix.dtype not in (*checks.FLOATS, torch.complex64, torch.complex128):
        raise TypeError(f"matrix must be a dense float or complex tensor, got {matrix.dtype} in {matrix.layout}")
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"matrix must have shape (..., N, N), got {tuple(matrix.shape)}")
    checks.check_outside_func(matrix, "matrix")
    checks.check_finite(matrix, "matrix", "check what it is computed from")
    if not torch.equal(bare := checks.primal(matrix), bare.mH):
        check_hermitian(matrix, "matrix")
        matrix = (matrix + matrix.mH) / 2
    values, vectors, projected = _AllPairs.apply(matrix)
    if matrix.is_complex() and matrix.numel():
        off = off_diagonal(projected, projected.shape[-1])
        vectors, phase = with_real_peaks(vectors)
        projected = projected + (phase.mH * off * phase - off)
    return AllPairs(values, vectors, projected)


def check_hermitian(matrix: Tensor, name: str) -> None:
    """Raise ValueError, with the largest difference, unless entries equal their mirror images up to round-off."""
    bare = checks.primal(matrix)
    difference = (bare - bare.mH).abs()
    allowed = 10 * torch.finfo(bare.dtype).eps ** 0.5 * bare.abs().amax((-2, -1), keepdim=True) if bare.numel() else 0
    if (difference > allowed).any():
        kind, mirror = ("Hermitian", "mH") if bare.is_complex() else ("symmetric", "mT")
        raise ValueError(
            f"{name} must be {kind}, got entries that differ from their mirror images by up to "
            f"{difference.max():.3g}; average the two, (A + A.{mirror}) / 2"
        )


class _AllPairs(precision.Function):
    """Function A -> (λ, V, Λ) of Hermitian matrices ``(..., N, N)``: a loss takes λ as numbers, or Λ as a matrix."""

    @staticmethod
    def forward(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the eigenvalues, the eigenvectors, and the eigenvalues as matrices."""
        values, vectors = torch.linalg.eigh(matrix)
        if not vectors.is_complex() and vectors.numel():
            low, high = vectors.aminmax(dim=-2, keepdim=True)
            vectors = vectors.mul_(torch.copysign(torch.ones_like(low), high + low))
        return values, vectors, torch.diag_embed(values).to(vectors.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the pairs for either mode."""
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, to_values: Tensor, to_vectors: Tensor, to_projected: Tensor) -> Tensor:
        """Return the cotangent of A for cotangents of λ, V and Λ."""
        _, vectors, projected = ctx.saved_tensors
        values = projected.diagonal(dim1=-2, dim2=-1).real  # derivatives of differences belong to the matrix, too
        skew, inverse = vectors.mH @ to_vectors, _inverse_differences(values)
        skew = skew.sub(skew.mH).div_(2)
        rotation = inverse * skew
        equal = _equal(values, to_values, to_projected, to_vectors, skew, rotation)
        if equal is not None:
            inverse, rotation = inverse.masked_fill(equal, 0), rotation.masked_fill(equal, 0)
        if torch.is_grad_enabled():
            off = off_diagonal(projected, projected.shape[-1])  # zero with a derivative, as in the rule
            rotation = rotation - inverse * (rotation @ off - off @ rotation)
        if equal is not None:
            rotation = torch.where(equal, (to_projected + to_projected.mH) / 2, rotation)
        else:
            to_values = to_values + to_projected.diagonal(dim1=-2, dim2=-1).real
        rotation.diagonal(dim1=-2, dim2=-1).add_(to_values)
        return vectors @ (rotation @ vectors.mH)  # type: ignore[no-any-return]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tangents of λ, V and Λ for a tangent of A."""
        values, vectors, _ = ctx.saved_tensors
        inverse, turned = _inverse_differences(values), vectors.mH @ ((tangent + tangent.mH) / 2) @ vectors
        to_values = turned.diagonal(dim1=-2, dim2=-1).real
        return to_values.clone(), vectors @ (inverse * turned), torch.where(inverse == 0, turned, 0)


def _bound(values: Tensor) -> Tensor:
    """Return the largest magnitude of eigenvalues ``(..., N)``, ``(..., 1, 1)``, positive."""
    return values.abs().amax(-1)[..., None, None].clamp_min(torch.finfo(values.dtype).tiny)


def _inverse_differences(values: Tensor) -> Tensor:
    """Return F of eigenvalues; 0 where they are equal within the round-off of `torch.linalg.eigh`."""
    found, n = values[..., None, :] - values[..., :, None], values.shape[-1]
    width = max(50.0, 5 * n**0.5) * torch.finfo(values.dtype).eps * _bound(values.detach())
    if (values.detach().diff() > width[..., 0]).all():
        found.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)  # faster than a mask
        return found.reciprocal()
    return found.masked_fill(found.detach().abs() <= width, torch.inf).reciprocal()


@torch.no_grad()
def _equal(
    values: Tensor, to_values: Tensor, to_projected: Tensor, to_vectors: Tensor, skew: Tensor, rotation: Tensor
) -> Tensor | None:
    """Return eigenvalues that count as equal, bool ``(..., N, N)``; None if each equals itself only."""
    eps = torch.finfo(values.dtype).eps
    close = eps ** (1 / 3) * _bound(values)
    if (values.diff() > close[..., 0]).all():
        return None
    inverse, whole = _inverse_differences(values), (to_projected + to_projected.mH) / 2
    equal, inverse = inverse == 0, inverse.abs()
    sizes = torch.linalg.vector_norm(to_vectors, dim=-2)
    sizes = sizes[..., :, None] + sizes[..., None, :]
    _warn_if_undefined(equal, to_values, skew, sizes)
    noise = 1e-6 * whole.abs() + 100 * eps * sizes * inverse
    return equal | ((inverse * close > 1) & ((rotation - whole).abs() <= noise))  # type: ignore[no-any-return]


def _warn_if_undefined(equal: Tensor, to_values: Tensor, skew: Tensor, sizes: Tensor) -> None:
    """Warn where a loss distinguishes vectors of equal eigenvalues, or equal eigenvalues that it takes as numbers."""
    noise = torch.finfo(skew.dtype).eps ** 0.5
    apart = (to_values[..., :, None] - to_values[..., None, :]).abs() > noise * to_values.abs().amax(-1)[
        ..., None, None
    ]
    if (equal & ((skew.abs() > noise * (sizes + sizes.mean((-2, -1), keepdim=True))) | apart)).any():
        checks.warn(
            "the loss depends on the choice of basis among eigenvectors of equal eigenvalues: its gradient is not "
            "defined, and terms that depend on that choice are left out; use a loss that is invariant to rotations "
            "within an eigenspace (functions of values and vectors together: matrix_function, or through projected)",
            checks.DegeneracyWarning,
        )
