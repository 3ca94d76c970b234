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
    """Options of the differentiation rule; ``degeneracy`` and ``width`` are those of `torch_lapeig.Solve`."""

    tolerance: float  # relative residual of the linear solve
    degeneracy: Degeneracy
    width: float | None
    dtype: torch.dtype  # of the given problem
    loss_eps: float  # machine epsilon of the loss; cotangents have its round-off
    factor: Tensor | None = None  # ``(B, N)``, by which vectors are multiplied for the loss; None for 1

    @property
    def eps(self) -> float:
        """Return the machine epsilon of the given problem."""
        return torch.finfo(self.dtype).eps

    @property
    def masked(self) -> GradientOptions:
        """Return the options without the rotation within a cluster."""
        return dataclasses.replace(self, degeneracy="mask")

    def for_cotangents(self, x: Tensor) -> GradientOptions:
        """Return the options with float32's epsilon for the loss if the cotangents show a loss computed in float32."""
        single = torch.finfo(torch.float32).eps
        if self.loss_eps >= single:
            return self
        if self.factor is not None:
            factor = self.factor.to(x)[..., None]
            x = torch.where(factor > 0, x / torch.where(factor > 0, factor, 1), 0)
        # Float32 has all numbers of such a loss, and some need all its digits. 1 and 0 may be of a loss in any dtype.
        for part in (x.reshape(-1)[:1000], x):  # the first 1000 numbers mostly decide
            if not _is_of(part, torch.float32):
                return self
        return self if _is_of(x, torch.bfloat16) else dataclasses.replace(self, loss_eps=single)


def _is_of(x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a coarser dtype holds all numbers, up to the round-off of a factor."""
    return bool(((x.to(dtype).to(x.dtype) - x).abs() <= 2 * torch.finfo(x.dtype).eps * x.abs()).all())


def noise_width(s: Solution, options: GradientOptions) -> Tensor:
    """Return the difference ``(B, 1, 1)`` below which entries, solve or residuals do not resolve eigenvalues."""
    # At a distance δ the gradient of a pair's rotation has a relative error of eps / δ: 2 % at 50 eps of the scale.
    solve = 50 * torch.finfo(s.values.dtype).eps * s.operator.bound
    known = torch.add(solve, s.operator.sensitivity(s.values), alpha=50 * options.eps)
    return torch.maximum(10 * s.residuals.amax(1).to(known), known)[:, None, None]


class Differences(NamedTuple):
    """Differences Δ = λ_i − μ_j of eigenvalues ``(B, j, i)`` and their sizes."""

    values: Tensor
    sizes: Tensor
    noise: Tensor  # width of noise, ``(B, 1, 1)``
    width: Tensor  # ``(B, 1, 1)``; eigenvalues at this distance at most count as equal

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
    """Return 1 / Δ, as ``degeneracy`` says where Δ is small."""
    difference, equal = found.values, found.are_equal
    if options.degeneracy == "lorentz":
        width = math.sqrt(options.eps) * s.operator.bound if options.width is None else options.width
        square = torch.as_tensor(width, dtype=difference.dtype, device=difference.device).square().reshape(-1, 1, 1)
        # Differences within the noise count as equal: Δ / (Δ² + width²) would enlarge it. The default width
        # √eps · bound enlarges round-off by at most 1/√eps.
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
    """Return f of a diagonal matrix ``(..., k, k)``, as `Eigenpairs.projected`, by f, f' and f'' of eigenvalues."""
    values = matrix.diagonal(dim1=-2, dim2=-1)
    # Where eigenvalues are equal, the entries E off the diagonal describe the turn of the eigenspace, and f(Λ) changes
    # by f'(λ) E + ½ f''(λ) E². Between distinct eigenvalues they have no derivative.
    middle = (values[..., :, None] + values[..., None, :]) / 2
    off = off_diagonal(matrix, matrix.shape[-1])
    return torch.diag_embed(value(values)) + slope(middle) * off + curvature(middle) / 2 * matmul(off, off)


def off_diagonal(matrix: Tensor, m: int) -> Tensor:
    """Return the entries off the diagonal of the last ``m`` rows and columns of a matrix ``(..., k, k)``."""
    matrix = matrix[..., matrix.shape[-1] - m :, matrix.shape[-1] - m :]
    return matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
