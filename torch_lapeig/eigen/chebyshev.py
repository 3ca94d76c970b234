"""Subspace iteration on a Chebyshev filter, batched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._compiled import is_for_one_thread
from torch_lapeig._compiled.ritz import ritz_pairs
from torch_lapeig.eigen.blocks import eigh_of_batch, orthonormalize, shared, to_device, to_host
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solver import (
    SETTLED,
    Progress,
    RitzPairs,
    allowed_residual,
    check_options,
    fewest_active,
    in_parts_of_batch,
    joined,
    most_null,
    parts_of_batch,
)

BEYOND = 0.05  # of the rest of the spectrum, from the end of a cluster on
OVERFLOW = 0.5  # of the logarithm of the largest number: what a filter may grow to
SMALL_SHARE = 0.05  # of a vector in a random column: one that has less in all columns is overlooked
DAMPING = 18.0  # logarithm of the factor between the k-th pair and the unwanted ones after a filter, at most
WEAK = 12.0  # the same of the longest filter, where the impatient give up
SPARE = 2.0  # the same beyond what the residuals need, as long as a filter is


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
        max_products: of the block with the matrix, at most; None for no limit beside the others.
        patient: False to give up as soon as a filter of the highest degree is too weak for the wanted pairs, whose
            values are then tiny compared with the spectrum: `Lobpcg` is faster.
        seed: of the random start, from a generator of its own.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> laplacian = Laplacian(KNN(8)(x))
    >>> values = torch.linalg.eigvalsh(laplacian.to_dense())[:4]
    >>> torch.allclose(eigenpairs(laplacian, 4, ChebyshevSubspace(guards=12)).values, values)
    True
    """

    guards: int | None = None
    max_iterations: int = 60
    max_degree: int = 120
    max_products: int | None = None
    seed: int = 0
    patient: bool = True

    def __post_init__(self) -> None:
        check_options(self, guards=1, max_iterations=0, max_degree=1, max_products=0)
        _checks.keep(self, patient=_checks.check_flag(self.patient, "patient"))

    def block_size(self, k: int) -> int:
        """Columns of the block for ``k`` wanted pairs."""
        return k + (max(8, k // 2) if self.guards is None else self.guards)

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """The block of ``block_size(k)`` Ritz pairs, or as many as there are nodes of positive degree."""
        if progress is None and len(parts_of_batch(operator, k)) > 1:
            return in_parts_of_batch(self, operator, k, tolerance, start)
        m = min(self.block_size(k), fewest_active(operator))
        if m == k < int(operator.active_count.max()):  # larger graphs need a larger block
            starts = [None if start is None else start.part(slice(b, b + 1)) for b in range(operator.batch_size)]
            each = zip(operator.items(), starts, strict=True)
            return joined(operator, [self(item, k, tolerance, first, progress) for item, first in each], k)
        null = operator.null_vectors(m)
        ritz = _rayleigh_ritz(operator, self._first_block(operator, null, k, start), null, None)
        assert ritz is not None  # orthonormal columns and random ones are finite
        known = ritz.known
        products, grown, iteration = 0, torch.zeros_like(known.bound), 0
        for iteration in range(self.max_iterations + 1):
            needed, gap = _shortfall(ritz, known.round_off, k, tolerance, iteration, progress)
            if (needed <= 0).all():
                # So say the small matrices: see whether it is true.
                ritz = ritz._replace(residuals=_residuals(operator, ritz))
                needed, gap = _shortfall(ritz, known.round_off, k, tolerance, iteration, None)
            if start is not None:  # random columns have to show first that nothing smaller was overlooked
                needed[:, 0] = torch.maximum(needed[:, 0], needed_growth(known, gap) - grown)
            finished = (shared(operator, needed)[0] <= 0).all(1)
            if finished.all():
                return RitzPairs(to_device(ritz.values, null), ritz.vectors, iteration, to_device(finished, null))
            if iteration == self.max_iterations:
                break
            degree, low = self._degree(ritz.values, needed, k, known)
            degree = shared(operator, degree.to(low))[0].long()
            products += int(degree.max()) + 1
            grown += degree * log_growth(ritz.values[:, k - 1], low, known.bound) - math.log(2)
            if self.max_products is not None and products > self.max_products:
                break
            weak = self.max_degree * log_growth(ritz.values[:, k - 1], low, known.bound) < WEAK
            if not self.patient and iteration > 0 and weak.any():
                break
            filtered = operator.chebyshev(ritz.vectors, degree, to_device(low, null), operator.bound)
            if (following := _rayleigh_ritz(operator, filtered, null, known)) is None:
                break
            ritz = following
        needed, _ = _shortfall(
            ritz._replace(residuals=_residuals(operator, ritz)), known.round_off, k, tolerance, 0, None
        )
        finished &= (shared(operator, needed)[0] <= 0).all(1)
        return RitzPairs(to_device(ritz.values, null), ritz.vectors, iteration, to_device(finished, null))

    def _first_block(self, operator: Operator, null: Tensor, k: int, start: RitzPairs | None) -> Tensor:
        """The null vectors and random columns; or the vectors of a start, and random columns for half of the guards."""
        m = null.shape[2]
        known = torch.arange(m, device=null.device) < operator.nullity[:, None]
        first = torch.where(known[:, None, :], null, operator.random(m, self.seed))
        if start is None:
            return first
        # Old pairs may all be eigenpairs still, but no longer the smallest.
        given = start.vectors[..., : min(m, k + (m - k) // 2)]
        return torch.cat([given, first[..., given.shape[2] :]], 2)

    def _degree(self, values: Tensor, needed: Tensor, k: int, known: Known) -> tuple[Tensor, Tensor]:
        """Degrees, int64 ``(B,)``, and where what is damped begins, ``(B,)``.

        The unwanted are damped against the k-th pair as residuals need, by e^−18 at most, the wanted ones spread by
        1/√eps at most, and the next by eps^−¾: beyond, the first would drown it. The cap is that of each graph of a
        batch: a polynomial that another one needs would overflow.
        """
        bound = known.bound
        # Where the whole block lies in one cluster, what grows begins beyond it.
        within = values[:, -1] - values[:, k - 1] <= known.round_off
        low = values[:, -1] + BEYOND * within.to(values) * (bound - values[:, -1])
        low = torch.minimum(low, 0.9 * bound)
        first, kth, following = (log_growth(values[:, i], low, bound) for i in (0, k - 1, min(k, values.shape[1] - 1)))
        spread = -0.5 * math.log(torch.finfo(values.dtype).eps)
        enough = torch.maximum((needed[:, 0] + SPARE) / kth, torch.where(needed[:, 1] > 0, needed[:, 1] / following, 0))
        # As many for all graphs as far as that goes: a product of fewer graphs takes a copy of the others.
        longest = enough.minimum(DAMPING / kth).amax()
        widest = torch.maximum(first - kth, (first - following) / 1.5)
        degree = torch.minimum(longest, spread / widest.clamp_min(1e-7))
        most = (OVERFLOW * math.log(torch.finfo(values.dtype).max) / first).clamp_min(1)
        return torch.minimum(degree.clamp(8, self.max_degree), most).ceil().long(), low


class Known(NamedTuple):
    """Numbers ``(B,)`` of an operator, on the host."""

    bound: Tensor
    round_off: Tensor
    active_count: Tensor

    @classmethod
    def of(cls, operator: Operator) -> Known:
        """Those of an operator."""
        return cls(*to_host(*cls.there(operator)))

    @classmethod
    def there(cls, operator: Operator) -> Known:
        """The same where they are."""
        dtype = operator.bound.dtype
        return cls(operator.bound, operator.round_off.to(dtype), operator.active_count.to(dtype))


class Ritz(NamedTuple):
    """Ritz values ``(B, m)`` and norms of residuals ``(B, m)`` on the host, vectors ``(B, N, m)`` where they are."""

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    known: Known


def _shortfall(
    ritz: Ritz, round_off: Tensor, k: int, tolerance: float, iteration: int, progress: Progress | None
) -> tuple[Tensor, Tensor]:
    """Logarithms ``(B, 2)`` of what residuals of the k pairs and the one after have to fall by; ≤ 0: they are known.

    And the gap after the k-th, ``(B, 0 or 1)``, which is part of the answer. Ritz values are upper bounds: where the
    gap between them is round-off, so is the gap.
    """
    values, _, residuals, _ = ritz
    allowed = allowed_residual(values, k, round_off, tolerance)
    worst = residuals[:, :k].amax(1)
    gap = values[:, k - 1 : k + 1].diff()
    unsettled = residuals[:, k : k + 1] / torch.maximum(SETTLED * gap, allowed[:, None])
    unsettled = torch.where(gap <= round_off[:, None], 0, unsettled)
    if progress is not None:
        b = (worst / allowed).argmax()
        progress(iteration, worst[b].item(), allowed[b].item())
    shortfall = torch.cat([(worst / allowed)[:, None], unsettled, torch.zeros_like(allowed)[:, None]], 1)[:, :2]
    return shortfall.log(), gap


def log_growth(value: Tensor, low: Tensor, bound: Tensor) -> Tensor:
    """Logarithm, for each degree, of the Chebyshev polynomial on [low, bound] at a value below, all ``(B,)``."""
    return torch.acosh(1 + (2 / (bound - low) * (low - value)).clamp_min(1e-7))


def needed_growth(known: Known, gap: Tensor) -> Tensor:
    """Logarithm of the growth after which an eigenvector rules a random block, ``(B,)``, for gaps ``(B, 0 or 1)``.

    It grows by √n, for its share in a random vector, over the root of the distance that its Rayleigh quotient shall
    come to, and over `SMALL_SHARE`.
    """
    distance = gap.amin(1) if gap.shape[1] else known.bound
    distance = torch.maximum(distance, known.round_off)
    return 0.5 * (known.active_count * known.bound / distance).log() - math.log(SMALL_SHARE)


def _rayleigh_ritz(operator: Operator, x: Tensor, null: Tensor, known: Known | None) -> Ritz | None:
    """The Ritz pairs of the span of ``x``; None where it is not finite. What is not yet ``known`` comes along.

    The known null vectors count as below the spectrum, so that no small eigenvalue mixes with them. The host waits
    once: with R = A X − X H, H = Xᵀ A X, the residual of X c is R c + X (H − λ) c, two orthogonal parts whose lengths
    come from small matrices. Where most of the parts of R c cancel, its length is lost in their round-off: the
    residuals are the least they can be.
    """
    size = operator.largest(x)
    largest, is_host = size.amax(1), x.device.type == "cpu"
    if is_host and not largest.isfinite().all():
        return None
    if not is_host or largest.amax() > torch.finfo(x.dtype).max ** 0.25:  # squares of what a filter enlarges overflow
        x = x / size.clamp_min(torch.finfo(x.dtype).tiny)[:, None, :]
    if (pairs := _compiled_pairs(operator, x, null)) is not None:
        values, vectors, residuals = pairs
        return Ritz(values.clamp_min(0), vectors, residuals, known or Known.of(operator))
    for careful in (is_host, True):
        basis, sound = orthonormalize(operator, x, careful=careful)
        image = operator.matmul(basis)
        small, overlap = operator.inner(basis, image), operator.inner(null, basis)
        rest = torch.baddbmm(image, basis, small, alpha=-1)
        sent = small, overlap, operator.inner(rest, rest), largest, sound.to(largest.dtype)
        found = to_host(*sent, *(Known.there(operator) if known is None else ()))
        (small, overlap, squares, largest, sound), others = found[:5], known or Known(*found[5:])
        if not largest.isfinite().all():
            return None
        if sound.all():
            break
    projected = (small + small.mT) / 2 - others.bound[:, None, None] * (overlap.mT @ overlap)
    values, turn = shared(operator, *eigh_of_batch(projected))
    values = values.clamp_min(0)
    within = small @ turn - values[:, None, :] * turn
    parts = (squares.diagonal(dim1=1, dim2=2).sqrt()[:, None] @ turn.abs())[:, 0]
    noise = 10 * torch.finfo(squares.dtype).eps * parts.square()
    outside = ((turn * (squares @ turn)).sum(1) - noise).clamp_min(0)
    (residuals,) = shared(operator, (outside + within.square().sum(1)).sqrt())
    return Ritz(values, basis @ to_device(turn, basis), residuals, others)


def _compiled_pairs(operator: Operator, x: Tensor, null: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Ritz values, vectors and residuals by compiled loops; None where there are none for this."""
    matrix = operator.compiled
    if matrix is None or not matrix.reads(x, null) or (len(x) == 1 and not is_for_one_thread(x)):
        return None
    return ritz_pairs(matrix, x, null[..., : most_null(operator)], operator.bound)


def _residuals(operator: Operator, ritz: Ritz) -> Tensor:
    """Norms of the residuals on the host, from the vectors themselves."""
    values = to_device(ritz.values, ritz.vectors)
    rest = operator.matmul(ritz.vectors) - values[:, None, :] * ritz.vectors
    return to_host(operator.dots(rest, rest).sqrt())[0]
