"""Clusters of equal eigenvalues, 1/(λ_i − λ_j) within them, and functions of Λ: the options of the gradient."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.check import Solution
from torch_lapeig.support.checks import matmul

Degeneracy = Literal["mask", "lorentz", "exact"]
DEGENERACIES = ("mask", "lorentz", "exact")


@dataclass(frozen=True)
class GradientOptions:
    """Options of the differentiation rule, see `torch_lapeig.Solve`.

    ``dtype``: of the problem as it was given. ``loss_eps``: machine epsilon of the loss, whose round-off cotangents
    have. ``factor``: ``(B, N)``, by which the vectors are multiplied before the loss gets them; None for 1.
    """

    tolerance: float
    degeneracy: Degeneracy
    width: float | None
    dtype: torch.dtype
    loss_eps: float
    factor: Tensor | None = None

    @property
    def eps(self) -> float:
        """Return the round-off of the problem as it was given."""
        return torch.finfo(self.dtype).eps

    @property
    def masked(self) -> GradientOptions:
        """Return the options without the rotation within a cluster."""
        return dataclasses.replace(self, degeneracy="mask")

    def for_cotangents(self, x: Tensor) -> GradientOptions:
        """Return the options with float32's round-off of the loss, where cotangents show a loss computed in float32.

        Such cotangents are float32 numbers, some of which need all digits of float32. Numbers like 1 and 0 may come
        from any loss.
        """
        single = torch.finfo(torch.float32).eps
        if self.loss_eps >= single:
            return self
        if self.factor is not None:
            factor = self.factor.to(x)[..., None]
            x = torch.where(factor > 0, x / torch.where(factor > 0, factor, 1), 0)
        for part in (x.reshape(-1)[:1000], x):  # a few numbers first: mostly they tell
            if not _is_of(part, torch.float32):
                return self
        return self if _is_of(x, torch.bfloat16) else dataclasses.replace(self, loss_eps=single)


def _is_of(x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a coarser dtype holds all numbers, but for the round-off of a factor."""
    return bool(((x.to(dtype).to(x.dtype) - x).abs() <= 2 * torch.finfo(x.dtype).eps * x.abs()).all())


def noise_width(s: Solution, options: GradientOptions) -> Tensor:
    """Return the difference ``(B, 1, 1)`` of eigenvalues that entries as given, the solve, or residuals do not resolve.

    At a distance δ the gradient of a pair's rotation is uncertain by eps / δ of itself: 1 % at 50 eps of the scale.
    """
    solve = 50 * torch.finfo(s.values.dtype).eps * s.operator.bound
    known = torch.add(solve, s.symmetric.sensitivity(s.values), alpha=50 * options.eps)
    return torch.maximum(10 * s.residuals.amax(1).to(known), known)[:, None, None]


class Differences(NamedTuple):
    """Differences Δ = λ_i − μ_j of eigenvalues ``(B, j, i)``, their sizes, and the width of noise, ``(B, 1, 1)``.

    Eigenvalues that are no farther apart than ``width``, ``(B, 1, 1)``, count as equal.
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
    """Return the differences of ``columns``_i and ``rows``_j, by the width of noise, ``(B, 1, 1)``."""
    values = columns[:, None, :] - rows[:, :, None]
    return Differences(
        values, values.abs(), noise, noise if options.width is None else torch.full_like(noise, options.width)
    )


class InverseDifferences(NamedTuple):
    """Inverses 1 / Δ ``(B, j, i)``, and a mask: 1 where eigenvalues count as equal, 0 elsewhere."""

    values: Tensor
    are_equal: Tensor


def inverse_differences(found: Differences, s: Solution, options: GradientOptions) -> InverseDifferences:
    """Return 1 / Δ, as ``degeneracy`` says where Δ is small.

    Differences within the noise count as equal under ``"lorentz"`` too: Δ / (Δ² + width²) would enlarge it. Its default
    width √eps · bound enlarges round-off by no more than 1/√eps.
    """
    difference, equal = found.values, found.are_equal
    if options.degeneracy == "lorentz":
        width = math.sqrt(options.eps) * s.operator.bound if options.width is None else options.width
        square = torch.as_tensor(width, dtype=difference.dtype, device=difference.device).square().reshape(-1, 1, 1)
        broadened = torch.where(found.sizes <= found.noise, 0, difference / (difference.square() + square))
        return InverseDifferences(broadened, equal.to(difference.dtype))
    if options.degeneracy == "exact":  # except each value with itself
        equal = torch.eye(*equal.shape[1:], dtype=torch.bool, device=equal.device).expand(equal.shape)
    return InverseDifferences(difference.masked_fill(equal, torch.inf).reciprocal(), equal.to(difference.dtype))


def function_of_matrix(
    matrix: Tensor,
    value: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    curvature: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return f of a symmetric matrix ``(..., k, k)`` that is diagonal, but whose other entries have derivatives.

    As `Eigenpairs.projected` is: where eigenvalues are equal, its other entries E stand for how the eigenspace turns,
    and f(Λ) changes by f'(λ) E + ½ f''(λ) E² there. Between others they have no derivative.

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
