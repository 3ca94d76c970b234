"""All eigenpairs of dense matrices, with the rule of `torch_lapeig.eigen.gradient.rule`, and functions of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.gradient.matrix_functions import near_zero
from torch_lapeig.eigen.gradient.rule import Pairs, values_of
from torch_lapeig.eigen.gradient.system import Complement, GradientOptions, off_diagonal
from torch_lapeig.eigen.matrices import with_real_peaks
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.problem import Solution
from torch_lapeig.eigen.solvers.blocks import eigh_of_batch
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.solver import RitzPairs
from torch_lapeig.graph.pattern import DensePattern, signs
from torch_lapeig.native import calls as native
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import deep_copy


class AllPairs(NamedTuple("AllPairs", [("values", Tensor), ("vectors", Tensor), ("projected", Tensor)])):
    """All eigenpairs of a matrix ``(..., N, N)``: A = V Λ Vᴴ.

    Attributes:
        values: λ, real and ascending, ``(..., N)``.
        vectors: V ``(..., N, N)``, orthonormal columns; the largest entry of each is real and positive.
        projected: Λ = Vᴴ A V as a matrix ``(..., N, N)``. Where eigenvalues may be equal, functions of values and
            vectors together have correct gradients only through it.

    >>> eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).values
    tensor([1., 3.])
    """

    _matrix: Tensor | None = None  # A, in which functions of it are differentiated

    @precision.full_precision
    def matrix_function(self, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Return f(A) = V f(Λ) Vᴴ ``(..., N, N)``, with derivatives of first and second order at any gaps.

        Args:
            f: function of real numbers, entry by entry, such as ``torch.sqrt``, ``torch.rsqrt``, ``torch.log``,
                ``torch.exp`` or ``lambda x: x**0.3``; finite with its derivative at all eigenvalues, twice
                differentiable, and accurate: ``-torch.expm1(-x)``, not ``1 - torch.exp(-x)``. Derivatives ask for it
                between eigenvalues, too. Gradients flow to tensors that it uses.

        Raises: TypeError, ValueError: no function; a result of another shape or dtype, or not finite, such as the
        logarithm of a matrix that is not positive definite.

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
            return value

        if self.values.numel() == 0:
            return self.vectors
        values, vectors = checks.primal(self.values), checks.primal(self.vectors)
        value = response(values.reshape(-1, 1)).reshape(values.shape)
        checks.check_finite(value, "f(eigenvalues)", "take a function that is finite at every eigenvalue")
        found = vectors * value[..., None, :]
        if checks.needs_derivatives(self.projected):
            matrix = self.vectors @ self.projected @ self.vectors.mH if self._matrix is None else self._matrix
            change = (matrix + matrix.mH) / 2
            change = change - checks.primal(change)
            turned = precision.matmul(precision.matmul(vectors.mH, change), vectors)
            found = found + precision.matmul(vectors, near_zero(turned, response, values, value))
        return precision.matmul(found, vectors.mH)


AllPairs.__deepcopy__ = deep_copy  # type: ignore[attr-defined]


@precision.full_precision
def eigh(matrix: Tensor) -> AllPairs:
    """Compute all eigenpairs of symmetric or Hermitian matrices, with gradients that are finite at equal eigenvalues.

    In the place of `torch.linalg.eigh`, whose gradients are NaN or noise where eigenvalues are equal. Here they are
    exact for functions of the eigenspaces, and for the vectors themselves where eigenvalues are distinct; second
    derivatives and forward mode, too. A `DegeneracyWarning` reports a loss that has no gradient, because it depends on
    the choice of basis among eigenvectors of equal eigenvalues: terms that depend on the choice are left out.

    Args:
        matrix: ``(..., N, N)``, float32, float64, complex64 or complex128; half precision is taken as float32.

    >>> matrix = torch.eye(3, dtype=torch.float64, requires_grad=True)
    >>> pairs = eigh(matrix)
    >>> pairs.matrix_function(torch.log).trace().backward()
    >>> matrix.grad.diagonal()
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    checks.check_tensor(matrix, "matrix")
    matrix = checks.half_to_float32(matrix)
    if matrix.dtype not in (*checks.FLOATS, torch.complex64, torch.complex128):
        raise TypeError(f"matrix must be float or complex, got {matrix.dtype}; use matrix.float()")
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"matrix must have shape (..., N, N), got {tuple(matrix.shape)}")
    checks.check_outside_func(matrix, "matrix")
    if matrix.numel() == 0:
        values, vectors = torch.linalg.eigh(matrix)
        return AllPairs(values, vectors, matrix)
    shape, n = matrix.shape, matrix.shape[-1]
    if (found := native.small_eigh(matrix.detach(), n, is_whole=True)) is None:
        checks.check_finite(matrix, "matrix", "check what it is computed from")
        if not torch.equal(checks.primal(matrix), mirror := checks.primal(matrix).mH):
            checks.check_symmetric_matrix(matrix, mirror, "matrix", DensePattern(matrix.shape[:-1]))
            matrix = matrix + (matrix.mH - matrix) / 2
    elif not checks.needs_derivatives(matrix):
        return AllPairs(found[0], found[1], found[0].diag_embed())
    given = matrix.clone() if checks.needs_derivatives(matrix) else None  # `matrix` may be changed in place later
    known = None if found is None else (found[0].reshape(-1, n), found[1].reshape(-1, n, n))
    parts = _pairs_of(matrix.reshape(-1, n, n), known)
    vectors, projected = (part.reshape(shape) for part in parts)
    if matrix.is_complex():
        off = off_diagonal(projected, projected.shape[-1])
        vectors, phase = with_real_peaks(vectors)
        projected = projected + (phase.mH * off * phase - off)
    pairs = AllPairs(values_of(projected, projected.real.dtype), vectors, projected)
    pairs._matrix = given
    return pairs


class _Matrices(Operator):
    """Hermitian matrices ``(B, N, N)`` as parameters of the differentiation rule."""

    bound = torch.empty(0)  # a solution has its scale

    def __init__(self, matrix: Tensor) -> None:
        self.shape, self.dtype, self.device, self.parameters = matrix.shape[:2], matrix.dtype, matrix.device, (matrix,)

    def matmul_at(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return A Y."""
        return precision.matmul(parameters[0], y)

    def gradients(self, x: Tensor, y: Tensor, to_mass: Tensor | None, needed: Sequence[bool]) -> Sequence[Tensor]:
        """Return Y Xᴴ."""
        return (precision.matmul(y, x.mH),)


def _pairs_of(matrix: Tensor, found: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Return V and Λ of Hermitian matrices ``(B, N, N)``, with derivatives; λ and V if they are known."""
    if found is not None:
        values, vectors = found
    elif matrix.is_complex():
        values, vectors = torch.linalg.eigh(checks.primal(matrix))
    else:
        values, vectors = eigh_of_batch(checks.primal(matrix))
        vectors = vectors * signs(vectors)
    if not checks.needs_derivatives(matrix):
        return vectors, torch.diag_embed(values).to(vectors.dtype)
    info = torch.finfo(values.dtype)
    scale = values.abs().amax(1).clamp_min(info.tiny)
    true, n = torch.ones_like(scale, dtype=torch.bool), values.shape[1]
    facts = {"gap": torch.full_like(scale, torch.inf), "converged": true, "scale": scale}
    facts["residuals"] = (0.5 * n**0.5 * info.eps * scale)[:, None]  # of `torch.linalg.eigh`
    solution = Solution.of(_Matrices(matrix), Eigh(), RitzPairs(values, vectors, 1, true), n, **facts)
    options = GradientOptions(info.eps, "mask", None, values.dtype, info.eps)
    return Pairs.apply(Complement(solution, options), matrix)  # type: ignore[no-any-return]
