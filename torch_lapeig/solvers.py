"""Eigensolvers for the smallest eigenpairs of a symmetric operator. Forward only: gradients are `eigen`'s matter.

A solver is a frozen dataclass of its options, called with an operator and the number of pairs. Of the operator it
uses ``matmul``, ``chebyshev``, ``inner``, ``dots``, ``to_dense``, ``bound``, ``active`` and ``null_vectors``, as
`Laplacian` has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.laplacian import Laplacian


class RitzPairs(NamedTuple):
    """Approximate eigenpairs, ascending; those beyond the ones asked for are guards.

    ``values (B, m)``, orthonormal ``vectors (B, N, m)``, number of ``iterations``.
    """

    values: Tensor
    vectors: Tensor
    iterations: int


class Solver(Protocol):
    """What `eigenpairs` asks of a solver."""

    def __call__(self, operator: Laplacian, k: int, tolerance: float) -> RitzPairs:
        """At least ``k`` smallest pairs of each graph, to residuals that `allowed_residual` allows."""
        ...


def allowed_residual(values: Tensor, k: int, bound: Tensor, tolerance: float) -> Tensor:
    """Residual ``(B,)`` that is small enough: ``tolerance`` times the gap after the k-th value, or round-off.

    By Davis and Kahan the sine of the angle between the computed and the true eigenspace is at most residual / gap,
    so an absolute tolerance would mean nothing where eigenvalues are close together.
    """
    gap = values[:, k] - values[:, k - 1] if values.shape[1] > k else torch.zeros_like(values[:, 0])
    return torch.maximum(tolerance * gap, 40 * torch.finfo(values.dtype).eps * bound)


@dataclass(frozen=True)
class Eigh:
    """All eigenpairs by `torch.linalg.eigh` of the dense matrix: exact, O(N³) time and O(N²) memory a graph."""

    def __call__(self, operator: Laplacian, k: int, tolerance: float) -> RitzPairs:
        """All N pairs; inactive nodes come last with values above the spectrum."""
        b, n = operator.graph.batch_size, operator.graph.num_nodes
        null = operator.null_vectors(int(operator.active_components[1].max()))[0]
        dense = operator.to_dense().reshape(b, n, n)
        # Known null vectors below the spectrum, so that no small eigenvalue mixes with them; inactive nodes above it.
        dense = torch.baddbmm(dense, null * operator.bound[:, None, None], null.mT, alpha=-1)
        inactive = (~operator.active).reshape(b, n)
        dense.diagonal(dim1=-2, dim2=-1).add_(inactive * (operator.bound[:, None] + 1))
        values, vectors = torch.linalg.eigh(dense)
        return RitzPairs(values.clamp_min(0), vectors, 1)


@dataclass(frozen=True)
class ChebyshevSubspace:
    """Subspace iteration on a Chebyshev filter: products and small dense problems only, batched.

    The filter is the Chebyshev polynomial that stays in [−1, 1] between the largest Ritz value of the block and the
    bound of the spectrum and grows fastest below (Zhou, Saad, Tiago & Chelikowsky 2006, section 2). Being a block
    method, it finds multiple eigenvalues up to the size of its block. It is at its best where the wanted
    values are not tiny compared with the spectrum; otherwise it needs many products.

    Args:
        guards: Ritz vectors beyond the wanted ones; default max(8, k/2).
        max_iterations: filters applied at most.
        max_degree: highest degree of a filter.
        seed: of the random start, from a generator of its own.
    """

    guards: int | None = None
    max_iterations: int = 60
    max_degree: int = 120
    seed: int = 0

    def __post_init__(self) -> None:
        if self.guards is not None:
            _checks.check_count(self.guards, "guards")
        _checks.check_count(self.max_iterations, "max_iterations", 0)
        _checks.check_count(self.max_degree, "max_degree")

    def block_size(self, k: int) -> int:
        """Columns of the block for ``k`` wanted pairs."""
        return k + (max(8, k // 2) if self.guards is None else self.guards)

    def __call__(self, operator: Laplacian, k: int, tolerance: float) -> RitzPairs:
        """The block of ``block_size(k)`` Ritz pairs.

        Raises:
            ValueError: a graph has fewer nodes of positive degree than the block has columns.
        """
        m = self.block_size(k)
        fewest = operator.fewest_active
        if m > fewest:
            raise ValueError(
                f"ChebyshevSubspace needs at least {m} nodes of positive degree for k={k}, got {fewest}; use Eigh()"
            )
        null = operator.null_vectors(m)[0]
        values, vectors, residuals = _rayleigh_ritz(operator, self._start(operator, m), null)
        for iteration in range(self.max_iterations):
            allowed = allowed_residual(values, k, operator.bound, tolerance)
            # The next value has to have settled too: the gap is part of the answer.
            settled = residuals[:, k] <= torch.maximum(0.05 * values[:, k], allowed)
            if ((residuals[:, :k].amax(1) <= allowed) & settled).all():
                return RitzPairs(values, vectors, iteration)
            low = torch.minimum(values[:, -1], 0.9 * operator.bound)
            filtered = operator.chebyshev(vectors, self._degree(values, low, k, operator.bound), low, operator.bound)
            values, vectors, residuals = _rayleigh_ritz(operator, filtered, null)
        return RitzPairs(values, vectors, self.max_iterations)

    def _start(self, operator: Laplacian, m: int) -> Tensor:
        """Known null vectors and random columns, zero on inactive nodes: those are never mixed in again."""
        null, dimension = operator.null_vectors(m)
        generator = torch.Generator(null.device).manual_seed(self.seed)
        noise = torch.randn(null.shape[1:], dtype=null.dtype, device=null.device, generator=generator)
        noise = noise * operator.active.reshape(null.shape[:2])[..., None]
        known = torch.arange(m, device=null.device) < dimension[:, None]
        return torch.where(known[:, None, :], null, noise)

    def _degree(self, values: Tensor, low: Tensor, k: int, bound: Tensor) -> int:
        """Degree that damps the unwanted by e^−12 against the k-th, but spreads the wanted by no more than 1/√eps."""
        scale = 2 / (bound - low)

        def growth(value: Tensor) -> Tensor:  # of |T_degree| at a value, logarithm for each degree
            return torch.acosh(1 + (scale * (low - value)).clamp_min(1e-7))

        kth, first = growth(values[:, k - 1]), growth(values[:, 0])
        spread = -0.5 * math.log(torch.finfo(values.dtype).eps)
        degree = torch.minimum(12 / kth, spread / (first - kth).clamp_min(1e-7)).max()
        return int(degree.clamp(8, self.max_degree).ceil())


def _orthonormalized(operator: Laplacian, x: Tensor) -> Tensor:
    """An orthonormal basis of the span of ``x`` from its Gram matrix, twice for full accuracy (SVQB)."""
    info = torch.finfo(x.dtype)
    for _ in range(2):
        gram = operator.inner(x, x)
        size = gram.diagonal(dim1=-2, dim2=-1).clamp_min(info.tiny).rsqrt()
        weight, turn = torch.linalg.eigh(size[:, :, None] * gram * size[:, None, :])
        x = x @ (size[:, :, None] * turn * weight.clamp_min(info.eps).rsqrt()[:, None, :])
    return x


def _rayleigh_ritz(operator: Laplacian, x: Tensor, null: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values ``(B, m)``, vectors ``(B, N, m)`` and residual norms ``(B, m)`` of the span of ``x``.

    The known null vectors count as below the spectrum, so that no small eigenvalue mixes with them.
    """
    x = _orthonormalized(operator, x)
    ax = operator.matmul(x.reshape(*operator.graph.shape, -1)).reshape(x.shape)
    projected, overlap = operator.inner(x, ax), operator.inner(null, x)
    projected = (projected + projected.mT) / 2 - operator.bound[:, None, None] * (overlap.mT @ overlap)
    values, turn = torch.linalg.eigh(projected)
    values = values.clamp_min(0)
    x, ax = x @ turn, ax @ turn
    residual = ax - values[:, None, :] * x
    return values, x, operator.dots(residual, residual).sqrt()
