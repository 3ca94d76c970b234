"""Options of the gradient; clusters of equal eigenvalues, 1/(λ_i − λ_j), and functions of Λ."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.check import Solution
from torch_lapeig.support.precision import matmul

Degeneracy = Literal["mask", "lorentz", "exact"]
DEGENERACIES = ("mask", "lorentz", "exact")


@dataclass(frozen=True)
class GradientOptions:
    """Options of the differentiation rule, see `torch_lapeig.Solve`.

    Attributes:
        tolerance: relative residual of the linear solve.
        degeneracy, width: see ``degeneracy`` and ``cluster_width`` of `torch_lapeig.Solve`.
        dtype: dtype of the given problem.
        loss_eps: machine epsilon of the loss; cotangents have its round-off.
        factor: ``(B, N)``, by which vectors are multiplied before the loss gets them; None for 1.
    """

    tolerance: float
    degeneracy: Degeneracy
    width: float | None
    dtype: torch.dtype
    loss_eps: float
    factor: Tensor | None = None

    @property
    def eps(self) -> float:
        """Return the machine epsilon of the given problem."""
        return torch.finfo(self.dtype).eps

    @property
    def masked(self) -> GradientOptions:
        """Return the options without the rotation within a cluster."""
        return dataclasses.replace(self, degeneracy="mask")

    def for_cotangents(self, x: Tensor) -> GradientOptions:
        """Return the options with float32's epsilon for the loss if the cotangents show a loss computed in float32.

        All such cotangents are float32 numbers, and some need all digits of float32. Numbers such as 1 and 0 may come
        from a loss in any dtype.
        """
        single = torch.finfo(torch.float32).eps
        if self.loss_eps >= single:
            return self
        if self.factor is not None:
            factor = self.factor.to(x)[..., None]
            x = torch.where(factor > 0, x / torch.where(factor > 0, factor, 1), 0)
        for part in (x.reshape(-1)[:1000], x):  # the first 1000 numbers mostly decide
            if not _is_of(part, torch.float32):
                return self
        return self if _is_of(x, torch.bfloat16) else dataclasses.replace(self, loss_eps=single)


def _is_of(x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a coarser dtype holds all numbers, up to the round-off of a factor."""
    return bool(((x.to(dtype).to(x.dtype) - x).abs() <= 2 * torch.finfo(x.dtype).eps * x.abs()).all())


def noise_width(s: Solution, options: GradientOptions) -> Tensor:
    """Return the difference ``(B, 1, 1)`` of eigenvalues below which entries, solve or residuals do not resolve them.

    At a distance δ the gradient of a pair's rotation has a relative error of eps / δ: 2 % at 50 eps of the scale.
    """
    solve = 50 * torch.finfo(s.values.dtype).eps * s.operator.bound
    known = torch.add(solve, s.operator.sensitivity(s.values), alpha=50 * options.eps)
    return torch.maximum(10 * s.residuals.amax(1).to(known), known)[:, None, None]


class Differences(NamedTuple):
    """Differences Δ = λ_i − μ_j of eigenvalues ``(B, j, i)``, their sizes, and the width of noise, ``(B, 1, 1)``.

    Eigenvalues at a distance of at most ``width``, ``(B, 1, 1)``, count as equal.
    """

    values: Tensor
    sizes: Tensor
    noise: Tensor
    width: Tensor

    @property
    def are_equal(self) -> Tensor:
        """Return equal pairs, bool ``(B, j, i)``."""
        return self.sizes <= self.width


def differences(rows: Tensor, columns: Tensor, noise: Tensor, options: GradientOptions) -> Differences:
    """Return the differences of ``columns``_i and ``rows``_j, given the width of noise, ``(B, 1, 1)``."""
    values = columns[:, None, :] - rows[:, :, None]
    return Differences(
        values, values.abs(), noise, noise if options.width is None else torch.full_like(noise, options.width)
    )


class InverseDifferences(NamedTuple):
    """Inverses 1 / Δ ``(B, j, i)``, and a bool mask of eigenvalues that count as equal."""

    values: Tensor
    are_equal: Tensor


def inverse_differences(found: Differences, s: Solution, options: GradientOptions) -> InverseDifferences:
    """Return 1 / Δ, as ``degeneracy`` says where Δ is small.

    Differences within the noise count as equal under ``"lorentz"``, too: Δ / (Δ² + width²) would enlarge the noise. The
    default width √eps · bound enlarges round-off by at most 1/√eps.
    """
    difference, equal = found.values, found.are_equal
    if options.degeneracy == "lorentz":
        width = math.sqrt(options.eps) * s.operator.bound if options.width is None else options.width
        square = torch.as_tensor(width, dtype=difference.dtype, device=difference.device).square().reshape(-1, 1, 1)
        broadened = torch.where(found.sizes <= found.noise, 0, difference / (difference.square() + square))
        return InverseDifferences(broadened, equal)
    if options.degeneracy == "exact":  # only each value equals itself
        equal = torch.eye(*equal.shape[1:], dtype=torch.bool, device=equal.device).expand(equal.shape)
    return InverseDifferences(difference.masked_fill(equal, torch.inf).reciprocal(), equal)


def function_of_matrix(
    matrix: Tensor,
    value: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    curvature: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return f of a diagonal matrix ``(..., k, k)`` whose entries off the diagonal have symmetric derivatives.

    `Eigenpairs.projected` is such a matrix. Where eigenvalues are equal, the entries E off its diagonal describe the
    turn of the eigenspace, and f(Λ) changes by f'(λ) E + ½ f''(λ) E². Between distinct eigenvalues they have no
    derivative.

    Args:
        value, slope, curvature: f, f' and f'' of eigenvalues.
    """
    values = matrix.diagonal(dim1=-2, dim2=-1)
    middle = (values[..., :, None] + values[..., None, :]) / 2
    off = off_diagonal(matrix, matrix.shape[-1])
    return torch.diag_embed(value(values)) + slope(middle) * off + curvature(middle) / 2 * matmul(off, off)


def off_diagonal(matrix: Tensor, m: int) -> Tensor:
    """Return the entries off the diagonal of the last ``m`` rows and columns of a matrix ``(..., k, k)``."""
    matrix = matrix[..., matrix.shape[-1] - m :, matrix.shape[-1] - m :]
    return matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
