"""Functions φ(Λ) of eigenvalues whose matrix has derivatives off its diagonal, exact at equal eigenvalues."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.gradient.clusters import off_diagonal
from torch_lapeig.eigen.laplacian import needs_derivatives
from torch_lapeig.support import checks, precision


class Expansion(NamedTuple):
    """Function of Λ with m responses, to second order in the entries off its diagonal."""

    values: Tensor  # φ at the eigenvalues, ``(..., k, m)``, zero for missing pairs
    # φ′ ``(..., k, m)`` with E ``(..., k, k)``, and φ″/2 with E², complex for complex pairs; empty without derivatives
    terms: tuple[tuple[Tensor, Tensor], ...] = ()

    def applied(self, z: Tensor) -> Tensor:
        """Return φ_c(Λ) z_c of each column c of ``z``, ``(..., k, C)``; one response serves all columns."""
        result = self.values * z
        for weight, matrix in self.terms:
            matrix = matrix.to(z.dtype)
            result = result + (weight * precision.matmul(matrix, z) + precision.matmul(matrix, weight * z)) / 2
        return result

    def bank(self, z: Tensor) -> Tensor:
        """Return φ_m(Λ) z_c of each column c and response m, ``(..., k, C, m)``."""
        count, columns = self.values.shape[-1], z.shape[-1]
        repeat = (*[1] * (z.ndim - 1), columns)
        terms = tuple((weight.repeat(repeat), matrix) for weight, matrix in self.terms)
        found = Expansion(self.values.repeat(repeat), terms).applied(z.repeat_interleave(count, -1))
        return found.reshape(*z.shape, count)

    def at_nodes(self, v: Tensor) -> Tensor:
        """Return the diagonals of V φ_m(Λ) Vᴴ, real ``(..., N, m)``, of ``v``, ``(..., N, k)``."""
        result = precision.matmul((v * v.conj()).real, self.values)
        for weight, matrix in self.terms:
            result = result + precision.matmul((precision.matmul(v, matrix) * v.conj()).real, weight)
        return result


def expanded(projected: Tensor, present: Tensor, response: Callable[[Tensor], Tensor]) -> Expansion:
    """Return φ of Λ ``(..., k, k)``, whose derivatives off the diagonal belong to turns of equal eigenvalues' vectors.

    Args:
        present: bool ``(..., k)``, pairs that are there. response: φ, of eigenvalues ``(n, 1)`` to ``(n, m)``.
    """
    present, at = present[..., None], projected.diagonal(dim1=-2, dim2=-1).real
    at = torch.where(present[..., 0], at, at[..., :1]).reshape(-1, 1)

    def shaped(part: Tensor) -> Tensor:
        # Without a graph of their own, they keep tangents of forward mode.
        part = part if torch.is_grad_enabled() else part.detach()
        return torch.where(present, part.reshape(*present.shape[:-1], -1), 0)

    if not needs_derivatives(projected):
        return Expansion(shaped(response(at)))
    with torch.enable_grad():
        at = at + torch.zeros_like(at).requires_grad_()
        value = response(at)
        slope = _derivative(value, at)
        curvature = _derivative(slope, at)
    checks.check_finite(slope, "the derivative of phi", "leave the pair out, or take a phi that is smooth there")
    curvature = torch.where(curvature.isfinite(), curvature, 0)  # second derivatives of `value` are not finite, either
    off = off_diagonal(projected, projected.shape[-1])
    return Expansion(shaped(value), ((shaped(slope), off), (shaped(curvature) / 2, precision.matmul(off, off))))


def _derivative(value: Tensor, at: Tensor) -> Tensor:
    """Return the derivative of ``value`` ``(n, m)``, whose row i depends on row i of ``at`` alone."""
    value = value + 0 * at  # depends on `at` even if φ is constant
    # Reverse mode gives Σ_m u_m φ′_m, which is linear in u: its derivative in u has all columns at once.
    u = torch.ones_like(value).requires_grad_()
    (weighted,) = torch.autograd.grad(value, at, u, create_graph=True)
    (slope,) = torch.autograd.grad(weighted, u, torch.ones_like(weighted), create_graph=True)
    noise = 10 * torch.finfo(at.dtype).eps * value.abs().max() / at.abs().max()  # of slopes that are all near 0
    if ((slope.sum(1, keepdim=True) - weighted).abs().max() > 0.01 * slope.abs().max() + noise).item():
        raise ValueError("phi must be twice differentiable, got a function with a once_differentiable backward")
    return slope
