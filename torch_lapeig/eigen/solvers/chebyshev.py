"""Subspace iteration with Chebyshev filters, batched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.blocks import eigh_of_batch, orthonormalize, to_device, to_host
from torch_lapeig.eigen.solvers.solver import (
    SETTLED,
    Progress,
    RitzPairs,
    allowed_residual,
    check_options,
    in_parts_of_batch,
    joined,
)
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.native import LINE, Spectrum, is_for_one_thread, least_pivot, subspace
from torch_lapeig.support.tuning import REORDER_NODES

Array = np.ndarray[Any, Any]


class FilterSettings(NamedTuple):
    """Numbers by which compiled loop and Python steps choose Chebyshev filters; `kernels.h` has the same names."""

    beyond: float  # start of the damped interval above a cluster, as a fraction of the rest of the spectrum
    highest: float  # maximum start of the damped interval, over the bound of the spectrum
    overflow: float  # maximum growth by a filter, as a power of the largest number
    damping: float  # maximum logarithm of the damping of unwanted pairs against the k-th
    # maximum growth of a converged pair over pairs that contain nothing of it, as a power of 1/eps
    clean: float
    spare: float  # logarithm of the damping beyond the need of residuals
    # maximum residual over the bound at which values closer than the residual count as one cluster
    close: float
    settled: float  # `SETTLED`
    tolerance: float  # of `Solver`
    # number of iterations after which Ritz values predict the remaining products
    shown: int
    # minimum degree of a filter: shorter ones take less time than a check of the pairs
    least_degree: int
    # maxima of `ChebyshevSubspace`
    iterations: int
    degree: int
    products: int


class SubspaceSearch(NamedTuple):
    """Search for the ``k`` smallest pairs by a block of ``m`` columns, with its known null vectors ``(B, N, c)``."""

    operator: Operator
    k: int
    m: int
    null: Tensor
    settings: FilterSettings
    progress: Progress | None


@dataclass(frozen=True)
class ChebyshevSubspace:
    """Subspace iteration with Chebyshev filters: only products and small dense problems, batched.

    A Chebyshev filter is the Chebyshev polynomial that stays in [−1, 1] between the largest Ritz value of the block and
    the bound of the spectrum, and grows fastest below (Zhou, Saad, Tiago & Chelikowsky 2006, section 2). Random columns
    are filtered once before the first check, because their own Ritz values only lie near the mean of the spectrum.
    Compiled loops iterate each graph of a batch separately; without them all graphs have filters of one degree. As a
    block method it finds multiple eigenvalues up to the size of its block. It needs many products where the wanted
    values are tiny compared with the spectrum.

    Args:
        guards: number of Ritz vectors beyond the wanted ones, at least 1; default max(5, k/2), increased to a multiple
            of 8 columns.
        max_iterations: maximum number of filters.
        max_degree: maximum degree of a filter.
        max_products: maximum number of products of the block with the matrix; None for no limit beside the others. The
            solver gives up as soon as Ritz values show that each graph needs more.
        seed: of the random start.

    Raises:
        TypeError, ValueError: an option of another type or out of range.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(
    ...     400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ... )
    >>> laplacian = Laplacian(KNN(8)(x))
    >>> values = torch.linalg.eigvalsh(laplacian.to_dense())[:4]
    >>> torch.allclose(
    ...     eigenpairs(laplacian, 4, ChebyshevSubspace(guards=12)).values, values
    ... )
    True
    """

    guards: int | None = None
    max_iterations: int = 60
    max_degree: int = 120
    max_products: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, guards=1, max_iterations=0, max_degree=1, max_products=0)

    def block_size(self, k: int) -> int:
        """Return the columns of the block for ``k`` wanted pairs, by default a multiple of 8: 9 take as long as 16."""
        least = k + max(5, k // 2)
        return -(-least // LINE) * LINE if self.guards is None else k + self.guards

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """Return the block of ``block_size(k)`` Ritz pairs, or as many as there are nodes of positive degree."""
        m = min(self.block_size(k), operator.fewest_active)
        if m == k < int(operator.active_count.max()):  # larger graphs need a larger block
            return joined(operator, [self(item, k, tolerance, progress) for item in operator.items()], k)
        order = None
        if _is_scattered(operator, m):
            operator, order = operator.reordered()
        null = operator.null_vectors(min(m, operator.most_null))
        search = SubspaceSearch(operator, k, m, null, self._settings(operator.dtype, tolerance), progress)
        found = self._whole(search) if progress is None else None
        if found is None and progress is None and len(operator.parts(k)) > 1:
            found = in_parts_of_batch(self, operator, k, tolerance)
        if found is None:
            found = self._step_by_step(search)
        if order is None:
            return found
        return found._replace(vectors=torch.empty_like(found.vectors).index_copy(1, order, found.vectors))

    def _settings(self, dtype: torch.dtype, tolerance: float) -> FilterSettings:
        """Return the settings of filters in a dtype."""
        return FilterSettings(
            beyond=0.05,
            highest=float(1 - torch.finfo(dtype).eps ** 0.4),  # a narrower interval holds only round-off
            overflow=0.5,
            damping=18.0,
            clean=0.9,
            spare=2.0,
            close=1e-2,
            settled=SETTLED,
            tolerance=tolerance,
            shown=2,
            least_degree=8,
            iterations=self.max_iterations,
            degree=self.max_degree,
            products=2**62 if self.max_products is None else self.max_products,  # beyond any number of products
        )

    def _whole(self, search: SubspaceSearch) -> RitzPairs | None:
        """Return the Ritz pairs by one compiled loop, graph by graph; None where Python must compute them."""
        operator = search.operator
        rows = operator.compiled
        if rows is None or (operator.batch_size == 1 and not is_for_one_thread(operator.num_nodes * search.m)):
            return None
        bound, centre = operator.bound, operator.mean_value
        random = operator.random(search.m, self.seed)
        centre = None if centre is None else centre.to(bound)
        spectrum = Spectrum(operator.nullity, bound, operator.round_off.to(bound), centre)
        found = subspace(rows, random, search.null, search.k, spectrum, search.settings._asdict())
        return None if found is None else RitzPairs(*found)

    def _step_by_step(self, search: SubspaceSearch) -> RitzPairs:
        """Return the Ritz pairs of filters that Python applies to all graphs at once."""
        operator, k, settings = search.operator, search.k, search.settings
        spectrum = HostSpectrum.of(operator)
        block, products = self._first_filter(search, spectrum)
        ritz = _rayleigh_ritz(search, block, spectrum)
        assert ritz is not None  # orthonormal columns and random ones are finite
        iteration = 0
        for iteration in range(min(products, 1), settings.iterations + 1):
            needed = _shortfall(ritz, search, iteration)
            if not ritz.is_measured and (needed <= 0).all():
                # The small matrices show convergence: confirm it by residuals of the vectors.
                ritz = _measured(operator, ritz)
                needed = _shortfall(ritz, search)
            needed = _shared(operator, needed)
            finished: Array = np.all(needed <= 0, axis=1)
            if finished.all():
                return _answer(ritz, iteration, finished)
            if iteration == settings.iterations:
                break
            degree, low = _degree(ritz, needed, k, settings)
            growth = log_growth(_numbers(ritz.values[:, k - 1]), low, spectrum.bound)
            settled = np.full_like(growth, _settled(ritz, search))
            degree, growth, settled = _shared(operator, np.stack([degree, growth, settled]))
            degree = degree.astype(np.int64)
            products += int(degree.max()) + 1
            # Predict the products of the graph that needs fewest.
            left = (needed[:, 0] / growth).min() if iteration >= settings.shown else 0.0
            if self.max_products is not None and max(products, products - degree.max() + left) > settings.products:
                break
            edge = to_device(torch.from_numpy(low).to(search.null.dtype), search.null)
            found, rest = ritz.vectors.tensor_split([int(settled[0])], 2)
            filtered = operator.chebyshev(rest, torch.from_numpy(degree), edge, operator.bound)
            filtered = filtered if found.shape[2] == 0 else torch.cat([found, filtered], 2)
            if (following := _rayleigh_ritz(search, filtered, spectrum)) is None:
                break
            ritz = following
        needed = _shortfall(_measured(operator, ritz), search)
        return _answer(ritz, iteration, finished & np.all(_shared(operator, needed) <= 0, axis=1))

    def _first_block(self, search: SubspaceSearch) -> Tensor:
        """Return a first block of null vectors and random columns."""
        operator, null = search.operator, search.null
        first, c = operator.random(search.m, self.seed), null.shape[2]
        known = torch.arange(c, device=null.device) < operator.nullity[:, None]
        first = first - null @ operator.inner(null, first)
        return torch.cat([torch.where(known[:, None, :], null, first[..., :c]), first[..., c:]], 2)

    def _first_filter(self, search: SubspaceSearch, spectrum: HostSpectrum) -> tuple[Tensor, int]:
        """Return random columns damped above the centre of the spectrum, near most eigenvalues; and the products."""
        settings, operator, x = search.settings, search.operator, self._first_block(search)
        most = min(settings.degree, settings.products)
        if spectrum.centre is None or min(most, settings.iterations) < 1 or not (spectrum.bound > 0).all():
            return x, 0
        low = np.minimum(spectrum.centre, settings.highest * spectrum.bound)
        # With more damping, columns would become dependent.
        enough = -math.log(least_pivot(x.dtype)) / log_growth(np.zeros_like(low), low, spectrum.bound)
        degree = np.floor(enough).clip(1, most).astype(np.int64)
        edge = to_device(torch.from_numpy(low).to(x.dtype), x)
        return operator.chebyshev(x, torch.from_numpy(degree), edge, operator.bound), int(degree.max()) + 1


@np.errstate(all="ignore")
def _degree(ritz: Ritz, needed: Array, k: int, settings: FilterSettings) -> tuple[Array, Array]:
    """Return degrees, int64 ``(B,)``, and the lower ends ``(B,)`` of the damped intervals."""
    values, bound, info = _numbers(ritz.values), ritz.spectrum.bound, torch.finfo(ritz.values.dtype)
    # If residuals leave the whole block in one cluster, the damped interval begins above the cluster.
    worst = _numbers(ritz.residuals)[:, k - 1 :].max(1)
    same = np.maximum(ritz.spectrum.round_off, np.where(worst <= settings.close * bound, worst, 0))
    within = values[:, -1] - values[:, k - 1] <= same
    low = np.minimum(values[:, -1] + settings.beyond * within * (bound - values[:, -1]), settings.highest * bound)
    kth, following = (log_growth(values[:, i], low, bound) for i in (k - 1, min(k, values.shape[1] - 1)))
    # Damp unwanted pairs against the k-th as far as residuals require, by e^−18 at most.
    enough = np.maximum((needed[:, 0] + settings.spare) / kth, np.where(needed[:, 1] > 0, needed[:, 1] / following, 0))
    # Use one degree for all graphs as far as possible: a product for some graphs copies the others.
    wanted = np.minimum(enough, settings.damping / kth).max().clip(settings.least_degree, settings.degree)
    # Wanted pairs may grow over each other by 1/√eps, and the first by eps^−¾ over the pair after the wanted ones, so
    # that its round-off does not exceed that pair; converged pairs by more, of which the others contain little.
    # Each graph of a batch has its own maximum: the polynomial of another graph would overflow.
    without = np.log((values[:, k - 1 : k] - values[:, :k]) / _numbers(ritz.residuals)[:, :k])
    room = np.minimum(np.fmax(without, -0.5 * math.log(info.eps)), -settings.clean * math.log(info.eps))
    own = log_growth(values[:, :k], low[:, None], bound[:, None])
    wider = np.maximum(own - kth[:, None], (own - following[:, None]) / 1.5)
    longest = (room / np.maximum(wider, 1e-7)).min(1)
    # A value of 0 that is not found yet must not overflow either.
    longest = np.minimum(longest, settings.overflow * math.log(info.max) / log_growth(np.zeros_like(low), low, bound))
    return np.ceil(np.minimum(wanted, longest.clip(1))).astype(np.int64), low


def _is_scattered(operator: Operator, columns: int) -> TypeGuard[SymmetricOperator]:
    """Return whether products wait for memory: no cache holds a block between the rows of two neighbours."""
    if not isinstance(operator, SymmetricOperator) or operator.is_sharded or len(operator.shape) > 1:
        return False
    # `eigenpairs` reorders graphs of more than `REORDER_NODES` for all solvers.
    n, pattern = operator.num_nodes, operator.pattern
    # Mean distance in memory between neighbours, in numbers, that fills the second-level cache. A product with 32
    # columns of 20,000 nodes in clusters took 2.5 ms, after reordering 1.3; reordering took 10.
    scattered = 2**16
    is_large = n * columns > scattered and n <= REORDER_NODES and operator.device.type == "cpu"
    if not is_large or not isinstance(pattern, SparsePattern) or len(pattern) == 0:
        return False
    return float((pattern.row - pattern.col).abs().mean(dtype=torch.float32)) * columns > scattered


def _answer(ritz: Ritz, iterations: int, finished: Array) -> RitzPairs:
    done = to_device(torch.from_numpy(finished), ritz.vectors)
    return RitzPairs(to_device(ritz.values, ritz.vectors), ritz.vectors, iterations, done)


def _numbers(x: Tensor) -> Array:
    """Return numbers on the host in float64, in NumPy, where small operations take a third of torch's time."""
    x = x.detach().double()
    try:
        found: Array = x.numpy()
    except RuntimeError:  # inside a transform of torch.func a tensor has no memory of its own
        found = np.array(x.tolist())
    return found


def _shared(operator: Operator, x: Array) -> Array:
    """Return numbers that every rank computed, identical on all."""
    return _numbers(operator.same_on_all_ranks(torch.from_numpy(x))[0])


class HostSpectrum(NamedTuple):
    """Numbers ``(B,)`` about the spectrum of an operator, float64 on the host."""

    bound: Array
    round_off: Array
    centre: Array | None

    @classmethod
    def of(cls, operator: Operator) -> HostSpectrum:
        """Return the numbers of an operator, by one synchronisation."""
        dtype, centre = operator.bound.dtype, operator.mean_value
        there = (operator.bound, operator.round_off.to(dtype))
        found = to_host(*there, *(() if centre is None else (centre.to(dtype),)))
        bound, round_off = map(_numbers, found[:2])
        return cls(bound, round_off, None if centre is None else _numbers(found[2]))


class Ritz(NamedTuple):
    """Ritz values ``(B, m)`` and residual norms ``(B, m)`` on the host, and vectors ``(B, N, m)``."""

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    spectrum: HostSpectrum
    is_measured: bool  # residuals were computed from the vectors, not from small matrices


def _shortfall(ritz: Ritz, search: SubspaceSearch, iteration: int | None = None) -> Array:
    """Return logarithms of the factors by which residuals of k pairs, and of the next, must still fall, ``(B, 2)``."""
    k = search.k
    values, residuals, round_off = _numbers(ritz.values), _numbers(ritz.residuals), ritz.spectrum.round_off
    gap, worst, allowed = np.diff(values[:, k - 1 : k + 1]), residuals[:, :k].max(1), _allowed(ritz, search)
    if iteration is not None and search.progress is not None:
        b = (worst / allowed).argmax()
        search.progress(iteration, float(worst[b]), float(allowed[b]))
    shortfall = np.zeros((len(values), 2))
    with np.errstate(all="ignore"):  # the logarithm of a zero residual is infinite
        shortfall[:, 0] = worst / allowed
        if gap.shape[1]:
            # Ritz values are upper bounds: if the gap between them is round-off, so is the gap of the eigenvalues.
            unsettled = residuals[:, k] / np.maximum(SETTLED * gap[:, 0], allowed)
            shortfall[:, 1] = np.where(gap[:, 0] <= round_off, 0, unsettled)
        return np.log(shortfall)


def _allowed(ritz: Ritz, search: SubspaceSearch) -> Array:
    """Return the maximum residuals ``(B,)``, as defined by `allowed_residual`."""
    gap = np.diff(_numbers(ritz.values)[:, search.k - 1 : search.k + 1]).sum(1)
    return allowed_residual(search.settings.tolerance, gap, ritz.spectrum.round_off)  # type: ignore[no-any-return]


def _settled(ritz: Ritz, search: SubspaceSearch) -> int:
    """Return the number of leading pairs that have converged in all graphs and are not filtered any more."""
    residuals, allowed = _numbers(ritz.residuals)[:, : search.k], _allowed(ritz, search)
    is_found = (residuals <= allowed[:, None]).all(0)
    return int(is_found.cumprod().sum()) // LINE * LINE


@np.errstate(all="ignore")
def log_growth(value: Array, low: Array, bound: Array) -> Array:
    """Return the growth rate ``(B,)`` of Chebyshev polynomials on [low, bound] at a value below: log T_d ≈ d · rate."""
    return np.arccosh(1 + np.maximum(2 / (bound - low) * (low - value), 1e-7))  # type: ignore[no-any-return]


def _rayleigh_ritz(search: SubspaceSearch, x: Tensor, spectrum: HostSpectrum) -> Ritz | None:
    """Return the Ritz pairs of the span of ``x``; None where it is not finite."""
    operator, null = search.operator, search.null
    size = operator.largest(x)
    largest, is_host = size.amax(1), x.device.type == "cpu"
    if is_host and not largest.isfinite().all():
        return None
    if not is_host or largest.amax() > torch.finfo(x.dtype).max ** 0.25:  # squares of filtered columns overflow
        x = x / size.clamp_min(torch.finfo(x.dtype).tiny)[:, None, :]
    for careful in (is_host, True):
        basis, sound = orthonormalize(operator, x, careful=careful)
        image = operator.matmul(basis)
        small, overlap = operator.inner(basis, image), operator.inner(null, basis)
        rest = torch.baddbmm(image, basis, small, alpha=-1)
        sent = small, overlap, operator.inner(rest, rest), largest, sound.to(largest.dtype)
        small, overlap, squares, largest, sound = to_host(*sent)
        if not largest.isfinite().all():
            return None
        if sound.all():
            break
    bound = torch.from_numpy(spectrum.bound).to(small)[:, None, None]
    # Below the spectrum, known null vectors mix with no vector of a small eigenvalue.
    projected = (small + small.mT) / 2 - bound * (overlap.mT @ overlap)
    values, turn = operator.same_on_all_ranks(*eigh_of_batch(projected))
    values = values.clamp_min(0)
    # With R = A X − X H, H = Xᵀ A X, the residual of X c is R c + X (H − λ) c, two orthogonal terms whose lengths come
    # from small matrices, so that the host synchronises once. Where terms of R c nearly cancel, round-off hides the
    # length: the smallest possible one is returned.
    within = small @ turn - values[:, None, :] * turn
    parts = (squares.diagonal(dim1=1, dim2=2).sqrt()[:, None] @ turn.abs())[:, 0]
    noise = 10 * torch.finfo(squares.dtype).eps * parts.square()
    outside = ((turn * (squares @ turn)).sum(1) - noise).clamp_min(0)
    (residuals,) = operator.same_on_all_ranks((outside + within.square().sum(1)).sqrt())
    return Ritz(values, basis @ to_device(turn, basis), residuals, spectrum, is_measured=False)


def _measured(operator: Operator, ritz: Ritz) -> Ritz:
    """Return the pairs with residual norms computed from the vectors themselves."""
    if ritz.is_measured:
        return ritz
    values = to_device(ritz.values, ritz.vectors)
    rest = operator.matmul(ritz.vectors) - values[:, None, :] * ritz.vectors
    return ritz._replace(residuals=to_host(operator.dots(rest, rest).sqrt())[0], is_measured=True)
