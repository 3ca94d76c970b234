"""Thick-restart Lanczos, and the search for the copies of multiple eigenvalues that a Krylov space cannot see."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.blocks import rayleigh_ritz, residual, shared, to_device, to_host
from torch_lapeig.eigen.chebyshev import ChebyshevSubspace, Known, needed_growth
from torch_lapeig.eigen.krylov import KrylovSpace
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solver import (
    NEARER,
    SETTLED,
    Progress,
    Request,
    RitzPairs,
    allowed_residual,
    check_options,
    fewest_active,
    one_by_one,
    with_guards,
)
from torch_lapeig.eigen.trend import Trend

FILTERED = 4  # columns in the search for copies
SEARCH = 1000  # products that the search may take, or twice as many as the solve
POLISH = 1000  # the same for the filters that answer in its place
SMALL_VALUE = 0.02  # of the bound: a spectrum that begins beyond is too narrow for a preconditioner to gain by it
BASIS = 60  # vectors kept, at least: with half of them it takes a fifth more products, with twice as many as many
LOOK = 8  # products between looks at the Ritz pairs, at least: a look takes the time of three, in torch of six
SHARP = 0.5  # of the residual that is allowed with a copy: what pairs may have where a space of its own forgets it
KNOWN = 1000  # units of round-off, beyond which residuals are what the recurrence says
KEEP = 0.3  # of the basis, when it begins anew: fewer cost products, more cost projections


@dataclass(frozen=True)
class Lanczos:
    """Thick-restart Lanczos (Wu & Simon 2000): least work for well separated values.

    Vectors are orthogonalised against all others only where they would lose too much (Simon 1984). The null vectors are
    constraints. A Krylov space of one vector holds one vector of a multiple eigenvalue; the others
    are searched for with a filtered random block once the pairs have converged, and solved for. A copy is overlooked
    with a probability of 1 in 10⁵.

    Args:
        basis: vectors kept at most; default 60, or three times the pairs with guards.
        max_products: with the matrix, at most.
        alternative: products that another solver would cost. Give up as soon as those that are left, by the rate at
            which residuals fall, are more, if the wanted values are small against the bound of the spectrum: others
            are of use for these only. None to go on.
        patience: products before which it does not give up so.
        seed: of the random start.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> laplacian = Laplacian(KNN(8)(x))
    >>> values = torch.linalg.eigvalsh(laplacian.to_dense())[:4]
    >>> torch.allclose(eigenpairs(laplacian, 4, Lanczos(basis=40)).values, values)
    True
    """

    basis: int | None = None
    max_products: int = 10_000
    alternative: int | None = None
    patience: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, basis=3, max_products=0, alternative=1, patience=0)

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """``k`` pairs and the guards that are left of the basis."""
        return one_by_one(self._solve, operator, k, with_guards(k), tolerance, progress)

    def basis_of(self, columns: int) -> int:
        """Vectors kept at most for so many pairs with guards."""
        return max(columns + 2, max(BASIS, 3 * columns) if self.basis is None else self.basis)

    def _solve(self, request: Request) -> RitzPairs:
        operator, columns = request.operator, request.columns
        free = fewest_active(operator) - request.null.shape[1]
        least = max(20, 2 * columns + 2)
        size = min(free, self.basis_of(columns))
        columns = min(columns, size)
        space, look, trend = KrylovSpace(operator, request.null, size, self.seed), least, Trend(LOOK)
        small = math.inf  # residuals have to be, for what a search has shown
        while True:
            space.fill(min(look, size))
            values, residuals = space.look(columns + 1)
            shortfall, allowed = request.shortfall(space.products, values, residuals)
            shortfall = max(shortfall, _worst(request, residuals) / small)
            trend.add(space.products, shortfall)
            is_last = space.products >= self.max_products or self._is_hopeless(request, values, trend)
            if shortfall > 1 and not is_last:
                if space.filled == size:
                    kept = min(max(columns, int(KEEP * size)), size - 1)
                    values, turn, _ = space.ritz(kept)
                    space.restart(values, space.ritz_vectors(turn), space.following())
                look = space.filled + trend.until_next
                continue
            vectors = space.ritz_vectors(space.ritz(columns)[1])
            if shortfall > 1 or space.filled == free:
                x = _orthonormal(operator, vectors)
                return request.answer(values[:columns], x, space.products, shortfall <= 1)
            else:
                copy, is_certain = self._search_copy(request, space, vectors, values, residuals)
                if copy is None or space.products >= self.max_products:
                    finished, x = copy is None and is_certain, _orthonormal(operator, vectors)
                    if not space.forgets and allowed > KNOWN * request.round_off:
                        return request.answer(values[:columns], x, space.products, finished)
                    return self._verify(request, values[:columns], x, space.products, finished)
                small = min(small, SHARP * _allowed_beside(request, values, copy))
                if space.forgets or _worst(request, residuals) <= small:
                    # The wanted pairs stay, and what was overlooked begins a Krylov space beside them.
                    space.restart(values[: request.wanted], vectors[: request.wanted], copy, forgets=True)
                    small = math.inf
                else:  # a space beside them would forget what is left of their residuals
                    trend = Trend(LOOK)
                    trend.add(space.products, _worst(request, residuals) / small)
            look = space.filled + trend.until_next

    def _search_copy(
        self, request: Request, space: KrylovSpace, vectors: Tensor, values: Tensor, residuals: Tensor
    ) -> tuple[Tensor | None, bool]:
        """What `copy_below` finds beside Ritz pairs of a space, and whether it could look closely enough."""
        most, seed = max(SEARCH, 2 * space.products), self.seed + space.products
        rows = torch.cat([space.rows[: space.first], vectors])
        found, work = copy_below(request, rows, values, residuals, seed, most)
        space.products += min(work, most)
        return found, work <= most

    def _verify(self, request: Request, values: Tensor, x: Tensor, products: int, finished: bool) -> RitzPairs:
        """Return the pairs, or those of filters where their true residuals are not small enough.

        The recurrence forgets what was left of the residuals when a copy began a Krylov space of its own.
        """
        answer = request.answer(values, x, products, finished)
        _, residuals = residual(request.operator, x, request.operator.matmul(x), to_device(values, x))
        if not finished or request.shortfall(products, values, residuals)[0] <= 1:
            return answer
        k = request.null.shape[1] + request.wanted
        filters = ChebyshevSubspace(max_products=max(POLISH, products), seed=self.seed)
        found = filters(request.operator, k, request.tolerance)
        done = found if found.finished.all() else answer._replace(finished=found.finished)
        return done._replace(iterations=products + found.iterations)

    def _is_hopeless(self, request: Request, values: Tensor, trend: Trend) -> bool:
        """Whether Ritz values, over the bound of the spectrum, belong to a problem for another solver."""
        if self.alternative is None or trend.products < self.patience:
            return False
        return float(values[max(request.wanted, 1) - 1]) < SMALL_VALUE * request.bound and trend.left > self.alternative


def _worst(request: Request, residuals: Tensor) -> float:
    """The largest residual of the wanted pairs."""
    return float(residuals[: request.wanted].amax()) if request.wanted else 0.0


def _allowed_beside(request: Request, values: Tensor, copy: Tensor) -> float:
    """Residual that is small enough if the Rayleigh quotient of a unit vector is one of the values."""
    quotient = request.operator.inner(copy, request.operator.matvec(copy))
    with_copy = torch.cat([values, to_host(quotient[None].to(copy))[0].to(values)]).sort().values[None]
    return float(allowed_residual(with_copy, request.wanted, values.new_tensor([request.round_off]), request.tolerance))


def _orthonormal(operator: Operator, vectors: Tensor) -> Tensor:
    """Rows that are orthonormal but for a small loss, as columns without it: a step to the polar factor."""
    x = vectors.mT
    return 1.5 * x - 0.5 * x @ operator.inner(x, x)


def copy_below(
    request: Request, rows: Tensor, values: Tensor, residuals: Tensor, seed: int, most: int
) -> tuple[Tensor | None, int]:
    """A unit vector of a smaller Rayleigh quotient that Ritz pairs have missed, or None; and products with the matrix.

    Where the values known are too close together to tell within ``most`` products, these are more.

    A Krylov space of one vector holds one vector of each eigenspace: what it can miss are copies. In the complement of
    the pairs that have settled, a random block is filtered by a Chebyshev polynomial that stays in [−1, 1] from a later
    Ritz value on and grows below, until a copy that is left rules the block; from the value after the wanted ones on
    where the block had no room left. A vector in the complement that lies below that value proves that one is missing.
    That none does proves nothing only if the share of the copy happened to be small in all columns:
    `torch_lapeig.eigen.chebyshev.SMALL_SHARE`, 1 in 10⁵.

    Args:
        rows: ``(c + m, N)``, the null vectors and those of the ``m`` smallest Ritz values.
        values, residuals: Ritz values and residuals of these and more.
    """
    operator, w, c = request.operator, request.wanted, request.null.shape[1]
    ritz, left, bound, round_off = values.tolist(), residuals.tolist(), request.bound, request.round_off
    top = ritz[min(w, len(ritz) - 1)]
    # Where the cut goes through a cluster, its own copies make no difference: those of the values before it do.
    low = max((x for x in ([0.0] * bool(c) + ritz[:w]) if x < top - 10 * round_off), default=None)
    if low is None:
        return None, 0
    known = w
    while known < len(rows) - c and left[known] <= max(SETTLED * (ritz[known] - low), round_off):
        known += 1
    # What lies between is enlarged too, but less: the block has room for a few.
    high = min(max(ritz[min(known + 1, len(ritz) - 1)], top), 0.9 * bound)
    if high <= low:
        return None, 0
    margin = NEARER / 2 * (top - low)  # what is farther below the value after the wanted ones than twice that, is seen
    needed = needed_growth(Known.of(operator), np.array([[margin]]))
    growth = float(shared(operator, torch.from_numpy(needed))[0]) + math.log(2)
    work = 0
    while True:
        degree = math.ceil(growth / math.acosh(1 + 2 * (high - low) / (bound - high)))
        if (work := work + degree) > most:
            return None, work
        block = _filter(operator, rows[: c + known], degree, high, seed)
        found, x = rayleigh_ritz(operator, block, rows[: c + known].mT)
        if len(found) == 0:
            return None, work
        if float(found[0]) < top - margin:
            return x[:, 0], work
        if high <= top or float(found[-1]) >= high:
            return None, work
        high = top  # all of the block lies below: what is enlarged there, as copies of those values, took its room


def _filter(operator: Operator, rows: Tensor, degree: int, high: float, seed: int) -> Tensor:
    """A random block outside ``rows`` after a polynomial of a degree that stays in [−1, 1] from ``high`` on.

    What round-off leaves of the rows, which lie below, is taken out now and then, the last of it not.
    """
    bound, edge = float(operator.bound), torch.full_like(operator.bound, high)
    fastest = math.acosh(1 + 2 * high / (bound - high))  # growth at zero
    every = max(1, int(-0.4 * math.log(torch.finfo(rows.dtype).eps) / fastest))

    x, degrees = operator.random(FILTERED, seed), torch.tensor([degree])
    return operator.chebyshev(x, degrees, edge, operator.bound, rows, every)[0]
