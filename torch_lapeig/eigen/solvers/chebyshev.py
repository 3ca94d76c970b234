"""Subspace iteration with Chebyshev filters, batched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.blocks import eigh_of_batch, orthonormalize, to_device, to_host
from torch_lapeig.eigen.solvers.solver import SETTLED, Array, RitzPairs, check_options, joined, numbers, ratios
from torch_lapeig.eigen.symmetric import SymmetricOperator, entries_of
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.native.calls import LINE, Rows, Spectrum, is_for_one_thread, least_pivot, subspace
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.progress import Progress
from torch_lapeig.support.threads import together
from torch_lapeig.support.tuning import REORDER_NODES


class FilterSettings(NamedTuple):
    """Numbers by which compiled loop and Python steps choose Chebyshev filters; `kernels.h` has the same names."""

    highest: float  # maximum start of the damped interval, over the bound of the spectrum
    tolerance: float  # of `Solver`
    # maxima of `ChebyshevSubspace`
    iterations: int
    degree: int
    products: int
    beyond: float = 0.05  # start of the damped interval above a cluster, as a fraction of the rest of the spectrum
    overflow: float = 0.5  # maximum growth by a filter, as a power of the largest number
    damping: float = 18.0  # maximum logarithm of the damping of unwanted pairs against the k-th
    # maximum growth of a converged pair over pairs that contain nothing of it, as a power of 1/eps
    clean: float = 0.9
    spare: float = 2.0  # logarithm of the damping beyond the need of residuals
    # maximum residual over the bound at which values closer than the residual count as one cluster
    close: float = 1e-2
    settled: float = SETTLED
    shown: int = 2  # number of iterations after which Ritz values predict the remaining products
    least_degree: int = 8  # minimum degree of a filter: shorter ones take less time than a check of the pairs


@dataclass(frozen=True, eq=False)
class SubspaceSearch:
    """Search for the ``k`` smallest pairs by a block of ``m`` columns, with its known null vectors ``(B, N, c)``."""

    operator: Operator
    k: int
    m: int
    null: Tensor
    settings: FilterSettings
    progress: Progress | None
    dtype: torch.dtype  # in which filters are computed

    @cached_property
    def spectrum(self) -> Spectrum:
        """Return numbers about the spectrum, in the dtype of the bound."""
        bound, centre = self.operator.bound, self.operator.mean_value
        centre = None if centre is None else centre.to(bound)
        return Spectrum(self.operator.nullity, bound, self.operator.round_off.to(bound), centre)

    @cached_property
    def on_host(self) -> tuple[Array, ...]:
        """Return the bound, the round-off and, if it is known, the centre, by one synchronisation."""
        return tuple(map(numbers, to_host(*(part for part in self.spectrum[1:] if part is not None))))

    def shared(self, x: Array) -> Array:
        """Return numbers that every rank computed, identical on all."""
        return numbers(self.operator.nodes.same_on_all_ranks(torch.from_numpy(x))[0])


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
        single: filter in float32, for devices on which float64 is slow. A filter changes residuals, and Ritz values and
            their residuals stay in float64, so that pairs are as exact as without. For a matrix with entries.

    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> laplacian = Laplacian(KNN(8)(torch.rand(400, 2).double()))
    >>> bool(eigenpairs(laplacian, 4, ChebyshevSubspace(guards=12)).converged)
    True
    """

    guards: int | None = None
    max_iterations: int = 60
    max_degree: int = 120
    max_products: int | None = None
    seed: int = 0
    single: bool = False

    def __post_init__(self) -> None:
        check_options(self, guards=1, max_iterations=0, max_degree=1, max_products=0)
        checks.set_frozen(self, single=checks.check_flag(self.single, "single"))

    def block_size(self, k: int) -> int:
        """Return the columns of the block for ``k`` wanted pairs, by default a multiple of 8: 9 take as long as 16."""
        least = k + max(5, k // 2)
        return -(-least // LINE) * LINE if self.guards is None else k + self.guards

    def __call__(self, operator: Operator, k: int, tolerance: float, progress: Progress | None = None) -> RitzPairs:
        """Return the block of ``block_size(k)`` Ritz pairs, or as many as there are nodes of positive degree."""
        m = min(self.block_size(k), operator.fewest_active)
        if m == k < int(operator.active_count.max()):  # larger graphs need a larger block
            return joined(operator, [self(item, k, tolerance, progress) for item in operator.items()], k)
        order = None
        if _is_scattered(operator, m):
            operator, order = operator.reordered()
        null = operator.null_vectors(min(m, operator.most_null))
        highest = float(1 - torch.finfo(operator.dtype).eps ** 0.4)  # a narrower interval holds only round-off
        products = 2**62 if self.max_products is None else self.max_products  # beyond any number of products
        settings = FilterSettings(highest, tolerance, self.max_iterations, self.max_degree, products)
        dtype = torch.float32 if self.single else operator.dtype
        search = SubspaceSearch(operator, k, m, null, settings, progress, dtype)
        found, rows, is_batch = None, None if self.single else operator.compiled, operator.batch_size > 1
        if rows is not None and 4 * rows.values.count_nonzero() < 3 * len(rows.values):  # magnetic with q = ¼: half
            there = rows.values.nonzero()[:, 0]
            crow = torch.searchsorted(there, rows.crow.long()).int()
            rows = Rows(crow, rows.col[there], rows.values[there], rows.diagonal)
        if progress is None and rows is not None and (is_batch or is_for_one_thread(operator.num_nodes * m)):
            # One compiled loop, graph by graph.
            pairs = subspace(rows, operator.random(m, self.seed), null, k, search.spectrum, settings._asdict())
            found = None if pairs is None else RitzPairs(*pairs)
        if found is None and progress is None and len(parts := operator.parts(k)) > 1:
            part = operator.part  # type: ignore[attr-defined]  # of batches of entries
            found = joined(operator, together([partial(self, part(graphs), k, tolerance) for graphs in parts]), k)
        if found is None:
            found = self._step_by_step(search)
        if order is None:
            return found
        return found._replace(vectors=torch.empty_like(found.vectors).index_copy(1, order, found.vectors))

    def _step_by_step(self, search: SubspaceSearch) -> RitzPairs:
        """Return the Ritz pairs of filters that Python applies to all graphs at once."""
        k, settings = search.k, search.settings
        block, products = self._first_block(search)
        ritz = _rayleigh_ritz(search, block)
        assert ritz is not None  # orthonormal columns and random ones are finite
        iteration = 0
        for iteration in range(min(products, 1), settings.iterations + 1):
            needed, settled = _shortfall(search, ritz, iteration)
            if not ritz.is_measured and (needed <= 0).all():
                # The small matrices show convergence: confirm it by residuals of the vectors.
                ritz = _measured(search, ritz)
                needed, settled = _shortfall(search, ritz)
            needed = search.shared(needed)
            finished: Array = np.all(needed <= 0, axis=1)
            if finished.all():
                return _answer(ritz, iteration, finished)
            if iteration == settings.iterations:
                break
            degree, low = _degree(search, ritz, needed)
            growth = log_growth(numbers(ritz.values[:, k - 1]), low, search.on_host[0])
            degree, growth, counts = search.shared(np.stack([degree, growth, np.full_like(growth, settled)]))
            degree = degree.astype(np.int64)
            products += int(degree.max()) + 1
            # Predict the products of the graph that needs fewest.
            left = (needed[:, 0] / growth).min() if iteration >= settings.shown else 0.0
            if self.max_products is not None and max(products, products - degree.max() + left) > settings.products:
                break
            found, rest = ritz.vectors.tensor_split([int(counts[0])], 2)
            filtered = _filtered(search, rest, degree, low, numbers(ritz.values)[:, -rest.shape[2] :])
            filtered = filtered if found.shape[2] == 0 else torch.cat([found, filtered], 2)
            if (following := _rayleigh_ritz(search, filtered)) is None:
                break
            ritz = following
        needed, _ = _shortfall(search, _measured(search, ritz))
        return _answer(ritz, iteration, finished & np.all(search.shared(needed) <= 0, axis=1))

    def _first_block(self, search: SubspaceSearch) -> tuple[Tensor, int]:
        """Return null vectors and random columns damped above the centre, near most values; and the products."""
        operator, null, settings, (bound, _, *centre) = search.operator, search.null, search.settings, search.on_host
        first, c = operator.random(search.m, self.seed), null.shape[2]
        known = torch.arange(c, device=null.device) < operator.nullity[:, None]
        first = first - null @ operator.nodes.inner(null, first)
        x = torch.cat([torch.where(known[:, None, :], null, first[..., :c]), first[..., c:]], 2)
        most = min(settings.degree, settings.products)
        if not centre or min(most, settings.iterations) < 1 or not (bound > 0).all():
            return x, 0
        low = np.minimum(centre[0], settings.highest * bound)
        # With more damping, columns would become dependent.
        enough = -math.log(least_pivot(search.dtype)) / log_growth(np.zeros_like(low), low, bound)
        degree = np.floor(enough).clip(1, most).astype(np.int64)
        return _filtered(search, x, degree, low, np.zeros((len(low), search.m))), int(degree.max()) + 1


def _filtered(search: SubspaceSearch, x: Tensor, degree: Array, low: Array, values: Array) -> Tensor:
    """Return T(Ã) X of a block ``(B, N, m)`` with Ritz values ``(B, m)``; see `Operator.chebyshev`."""
    operator, bound = search.operator, search.on_host[0]
    if search.dtype == x.dtype:
        edge = to_device(torch.from_numpy(low).to(x.dtype), x)
        return operator.chebyshev(x, torch.from_numpy(degree), edge, operator.bound)
    # T_j(Ã) X = X T_j(θ) + Y_j for any θ of the columns, with Y_{j+1} = 2 Ã Y_j − Y_{j−1} + 2 R T_j(θ) from Y_0 = 0 and
    # Y_1 = R = Ã X − X θ. Y is rounded relative to R, which vanishes as Ritz values θ converge (Kodali, Panigrahi &
    # Motamarri 2025, R-ChFSI).
    centre, half = (bound + low) / 2, (bound - low) / 2
    terms = [np.ones_like(values), (values - centre[:, None]) / half[:, None]]
    while len(terms) <= degree.max():
        terms.append(2 * terms[1] * terms[-1] - terms[-2])
    of_device = (torch.from_numpy(part) for part in (centre, half, degree, np.stack(terms)[:, :, None]))
    shift, stretch, ends, t = (to_device(part, x) for part in of_device)
    known = entries_of(operator, "ChebyshevSubspace(single=True)")
    rounded = known._with(values=known.values.detach().float(), diagonal=known.diagonal.detach().float())
    rest = (known.twice(shift, stretch)(x, None) / 2 - x * t[1]).float()
    twice, before, now = rounded.twice(shift.float(), stretch.float()), torch.zeros_like(rest), rest.clone()
    for step, of_columns in enumerate(t[1:-1].float(), 1):
        new = twice(now, before).addcmul_(of_columns, rest, value=2)
        before, now = now, new if len(ends) == 1 else torch.where((ends > step)[:, None, None], new, now)
    return x * t[ends, torch.arange(len(ends), device=x.device)] + now


@np.errstate(all="ignore")
def _degree(search: SubspaceSearch, ritz: Ritz, needed: Array) -> tuple[Array, Array]:
    """Return degrees, int64 ``(B,)``, and the lower ends ``(B,)`` of the damped intervals."""
    k, settings, (bound, round_off, *_) = search.k, search.settings, search.on_host
    values, residuals, info = numbers(ritz.values), numbers(ritz.residuals), torch.finfo(search.dtype)
    # If residuals leave the whole block in one cluster, the damped interval begins above the cluster.
    worst = residuals[:, k - 1 :].max(1)
    same = np.maximum(round_off, np.where(worst <= settings.close * bound, worst, 0))
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
    without = np.log((values[:, k - 1 : k] - values[:, :k]) / residuals[:, :k])
    room = np.minimum(np.fmax(without, -0.5 * math.log(info.eps)), -settings.clean * math.log(info.eps))
    own = log_growth(values[:, :k], low[:, None], bound[:, None])
    wider = np.maximum(own - kth[:, None], (own - following[:, None]) / 1.5)
    longest = (room / np.maximum(wider, 1e-7)).min(1)
    # A value of 0 that is not found yet must not overflow either.
    longest = np.minimum(longest, settings.overflow * math.log(info.max) / log_growth(np.zeros_like(low), low, bound))
    return np.ceil(np.minimum(wanted, longest.clip(1))).astype(np.int64), low


def _is_scattered(operator: Operator, columns: int) -> TypeGuard[SymmetricOperator]:
    """Return whether products wait for memory: no cache holds a block between the rows of two neighbours."""
    if not isinstance(operator, SymmetricOperator) or len(operator.shape) > 1:
        return False
    # `eigenpairs` reorders graphs of more than `REORDER_NODES` for all solvers.
    n, pattern = operator.num_nodes, operator.pattern
    # Mean distance in memory between neighbours, in numbers, that fills the second-level cache. A product with 32
    # columns of 20,000 nodes in clusters took 2.5 ms, after reordering 1.3; reordering took 10.
    scattered = 2**16
    is_large = n * columns > scattered and n <= REORDER_NODES and operator.device.type == "cpu"
    if not is_large or type(pattern) is not SparsePattern or len(pattern) == 0:
        return False
    return float((pattern.row - pattern.col).abs().mean(dtype=torch.float32)) * columns > scattered


def _answer(ritz: Ritz, iterations: int, finished: Array) -> RitzPairs:
    done = to_device(torch.from_numpy(finished), ritz.vectors)
    return RitzPairs(to_device(ritz.values, ritz.vectors), ritz.vectors, iterations, done)


class Ritz(NamedTuple):
    """Ritz values ``(B, m)`` and residual norms ``(B, m)`` on the host, and vectors ``(B, N, m)``."""

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    is_measured: bool  # residuals were computed from the vectors, not from small matrices


def _shortfall(search: SubspaceSearch, ritz: Ritz, iteration: int | None = None) -> tuple[Array, int]:
    """Return logarithms ``(B, 2)`` of the `ratios`, and the number of first pairs that need no filter in any graph."""
    residuals, (_, round_off, *_) = numbers(ritz.residuals), search.on_host
    found, worst, allowed = ratios(numbers(ritz.values), residuals, search.k, search.settings.tolerance, round_off)
    if iteration is not None and search.progress is not None:
        b = found[:, 0].argmax()
        search.progress(iteration, float(worst[b]), float(allowed[b]))
    is_found = (residuals[:, : search.k] <= allowed[:, None]).all(0)
    with np.errstate(all="ignore"):  # the logarithm of a zero residual is infinite
        return np.log(found), int(is_found.cumprod().sum()) // LINE * LINE


@np.errstate(all="ignore")
def log_growth(value: Array, low: Array, bound: Array) -> Array:
    """Return the growth rate ``(B,)`` of Chebyshev polynomials on [low, bound] at a value below: log T_d ≈ d · rate."""
    return np.arccosh(1 + np.maximum(2 / (bound - low) * (low - value), 1e-7))  # type: ignore[no-any-return]


def _rayleigh_ritz(search: SubspaceSearch, x: Tensor) -> Ritz | None:
    """Return the Ritz pairs of the span of ``x``; None where it is not finite."""
    operator, null = search.operator, search.null
    size = operator.nodes.largest(x)
    largest, is_host = size.amax(1), x.device.type == "cpu"
    if is_host and not largest.isfinite().all():
        return None
    if not is_host or largest.amax() > torch.finfo(x.dtype).max ** 0.25:  # squares of filtered columns overflow
        x = x / size.clamp_min(torch.finfo(x.dtype).tiny)[:, None, :]
    for careful in (is_host, True):
        basis, sound = orthonormalize(operator, x, careful=careful)
        image = operator.matmul(basis)
        small, overlap = operator.nodes.inner(basis, image), operator.nodes.inner(null, basis)
        rest = torch.baddbmm(image, basis, small, alpha=-1)
        sent = small, overlap, operator.nodes.inner(rest, rest), largest, sound.to(largest.dtype)
        small, overlap, squares, largest, sound = to_host(*sent)
        if not largest.isfinite().all():
            return None
        if sound.all():
            break
    bound = torch.from_numpy(search.on_host[0]).to(small)[:, None, None]
    # Below the spectrum, known null vectors mix with no vector of a small eigenvalue.
    projected = (small + small.mT) / 2 - bound * (overlap.mT @ overlap)
    values, turn = operator.nodes.same_on_all_ranks(*eigh_of_batch(projected))
    values = values.clamp_min(0)
    # With R = A X − X H, H = Xᵀ A X, the residual of X c is R c + X (H − λ) c, two orthogonal terms whose lengths come
    # from small matrices, so that the host synchronises once. Where terms of R c nearly cancel, round-off hides the
    # length: the smallest possible one is returned.
    within = small @ turn - values[:, None, :] * turn
    parts = (squares.diagonal(dim1=1, dim2=2).sqrt()[:, None] @ turn.abs())[:, 0]
    noise = 10 * torch.finfo(squares.dtype).eps * parts.square()
    outside = ((turn * (squares @ turn)).sum(1) - noise).clamp_min(0)
    (residuals,) = operator.nodes.same_on_all_ranks((outside + within.square().sum(1)).sqrt())
    return Ritz(values, basis @ to_device(turn, basis), residuals, is_measured=False)


def _measured(search: SubspaceSearch, ritz: Ritz) -> Ritz:
    """Return the pairs with residual norms computed from the vectors themselves."""
    if ritz.is_measured:
        return ritz
    operator, values = search.operator, to_device(ritz.values, ritz.vectors)
    rest = operator.matmul(ritz.vectors) - values[:, None, :] * ritz.vectors
    return ritz._replace(residuals=to_host(operator.nodes.dots(rest, rest).sqrt())[0], is_measured=True)
