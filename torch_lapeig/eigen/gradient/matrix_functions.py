"""Functions of eigenvalues whose matrix has derivatives off its diagonal, exact at equal and at close eigenvalues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.gradient.system import off_diagonal
from torch_lapeig.support import checks, precision

_POINTS, _FINE = (torch.from_numpy(part) / 2 for part in np.polynomial.legendre.leggauss(9))  # Gauss and Legendre
_POINTS = _POINTS + 0.5
_ROUGH = torch.zeros_like(_FINE)  # every other point, exact for degree 5
_ROUGH[::2] = torch.linalg.solve(torch.vander(_POINTS[::2], increasing=True).mT, 1 / torch.arange(1.0, 6).double())


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
    """Return φ of Λ ``(..., k, k)``; derivatives off the diagonal belong to turns of equal eigenvalues' vectors."""
    present, at = present[..., None], projected.diagonal(dim1=-2, dim2=-1).real
    at = torch.where(present[..., 0], at, at[..., :1]).reshape(-1, 1)

    def shaped(part: Tensor) -> Tensor:
        # Without a graph of their own, they keep tangents of forward mode.
        part = part if torch.is_grad_enabled() else part.detach()
        return torch.where(present, part.reshape(*present.shape[:-1], -1), 0)

    if not checks.needs_derivatives(projected):
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


def function_of_matrix(projected: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Return f of a diagonal matrix ``(..., k, k)``, as `Eigenpairs.projected`."""
    present = torch.ones(projected.shape[:-1], dtype=torch.bool, device=projected.device)
    return expanded(projected, present, f).applied(torch.eye(projected.shape[-1]).to(projected))


def near_zero(turned: Tensor, f: Callable[[Tensor], Tensor], values: Tensor, value: Tensor) -> Tensor:
    """Return f(diag λ + T) − diag f(λ), to second order in Hermitian T ``(..., N, N)``, zero with derivatives."""
    # It is f[λ_i, λ_j] T_ij + Σ_k f[λ_i, λ_k, λ_j] T_ik T_kj (Daleckii and Krein); see `_divided_differences`.
    first, second = _divided_differences(f, values, value)
    return first * turned + _SecondOrder.apply(turned, values, checks.primal(second))  # type: ignore[no-any-return]


def _divided_differences(f: Callable[[Tensor], Tensor], values: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return f[a, b] and f[a, b, b] for all pairs of eigenvalues ``(..., N)``, accurate whatever their distance."""
    # The quotient (f(b) − f(a)) / (b − a) has the round-off of f over b − a; the mean of f′ from a to b has the error
    # of a quadrature. The mean is taken where this error, which a second quadrature shows, is the smaller one, and
    # where it agrees with the quotient: f may jump, or have a pole. `value` is f of the ascending `values`, with its
    # graph.

    @torch.enable_grad()
    def slopes(at: Tensor) -> tuple[Tensor, Tensor]:
        at = at.clone().requires_grad_()
        total = (f(at.reshape(-1, 1)).reshape(at.shape) + 0 * at).sum()  # depends on `at` even if f is constant
        return torch.autograd.grad(total, at, create_graph=True)[0], at

    i, j = torch.triu_indices(values.shape[-1], values.shape[-1], device=values.device)
    order = torch.arange(values.shape[-1], device=values.device)
    place = torch.zeros(len(order), len(order), dtype=torch.int64, device=values.device)
    place[i, j] = place[j, i] = torch.arange(len(i), device=values.device)
    points, fine, rough = (part.to(values) for part in (_POINTS, _FINE, _ROUGH))
    with torch.enable_grad():
        at = values.reshape(-1, 1).clone().requires_grad_()
        slope = _derivative(f(at), at).reshape(values.shape)
    checks.check_finite(slope, "the derivative of phi", "leave the pair out, or take a phi that is smooth there")
    rise, width = value[..., j] - value[..., i], values[..., j] - values[..., i]
    at = values[..., i, None] + points * width[..., None]
    with torch.no_grad():
        round_off = 32 * torch.finfo(values.dtype).eps * (value.abs() + (values * slope).abs())
        trial = slopes(at)[0]
        near = (width * (trial @ (fine - rough))).abs() <= round_off[..., i] + round_off[..., j]
        near &= (rise - width * (trial @ fine)).abs() <= round_off.amax(-1, keepdim=True)
    close, at = slopes(at[near])
    (curvature,) = torch.autograd.grad(close.sum() + 0 * at.sum(), at, retain_graph=value.requires_grad)
    curvature = torch.where(curvature.isfinite(), curvature, 0)
    if not value.requires_grad:  # f uses no tensor that learns
        slope, close = slope.detach(), close.detach()
    width = width.masked_fill(near, 1)
    first = (rise / width).masked_scatter(near, close @ fine)
    to_end = ((slope[..., j] - first) / width).masked_scatter(near, curvature @ (fine * points))
    to_begin = ((first - slope[..., i]) / width).masked_scatter(near, curvature @ (fine * (1 - points)))
    return first[..., place], torch.where(order >= order[:, None], to_end[..., place], to_begin[..., place])


class _SecondOrder(precision.Function):
    """Function Σ_k f[λ_i, λ_k, λ_j] T_ik T_kj at T = 0, Hermitian ``(..., N, N)``; 0, but not its derivatives."""

    @staticmethod
    def forward(turned: Tensor, values: Tensor, table: Tensor) -> Tensor:
        return torch.zeros_like(turned)

    @staticmethod
    def backward(ctx: Any, to_sum: Tensor) -> tuple[Tensor | None, ...]:
        is_zero = not checks.needs_derivatives(ctx.saved_tensors[0])
        return None if is_zero else _products((to_sum + to_sum.mH) / 2, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _products(tangent, *ctx.saved_tensors)


def _products(x: Tensor, z: Tensor, values: Tensor, table: Tensor) -> Tensor:
    """Return Σ_k f[λ_i, λ_k, λ_j] (X_ik Z_kj + Z_ik X_kj) of Hermitian X and Z; see `_SecondOrder`."""
    # Of a ≤ b ≤ c, f[a, b, c] is the mean of f[a, b, b] and f[c, b, b] with weights (b − a) / (c − a) and
    # (c − b) / (c − a): nothing cancels. They are products of terms of two indices, so that triangles of X and Z,
    # multiplied as matrices, have the sums over k between i and j, after them and before them.
    size, order = values.abs().amax(-1)[..., None, None], torch.arange(values.shape[-1]).to(values)
    span = (values[..., None, :] - values[..., :, None]) / torch.where(size > 0, size, 1)
    span = span + torch.finfo(span.dtype).eps ** 2 * (order - order[:, None])  # in order where values are equal
    inverse = span.masked_fill(span == 0, torch.inf).reciprocal()
    to_end, to_begin = span * table, span * table.mT  # (λ_j − λ_i) f[λ_i, λ_j, λ_j] and (λ_j − λ_i) f[λ_i, λ_i, λ_j]
    product = precision.matmul

    def above(x: Tensor, y: Tensor) -> Tensor:
        between = product((to_end * x).triu(), y.triu()) + product(x.triu(), (to_begin * y).triu())
        after, before = (inverse * x).triu(1), (inverse * y).triu(1)
        found = inverse * between + to_end * product(after, y.tril(-1)) + to_begin * product(x.tril(-1), before)
        return found - product(after, (to_end * y).tril(-1)) - product((to_begin * x).tril(-1), before)

    found = (above(x, z) + above(z, x)).triu(1)
    return found + found.mH + torch.diag_embed(2 * (table.mT * (x * z.conj()).real).sum(-1))


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
