"""Thick-restart Lanczos, and the search for the copies of multiple eigenvalues that a Krylov space cannot see."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torch_lapeig._graphs import captured
from torch_lapeig._tuning import ALIGNMENT
from torch_lapeig.eigen.blocks import basis, eigh, residual, shared, to_device, to_host
from torch_lapeig.eigen.chebyshev import ChebyshevSubspace, Known, needed_growth
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solver import (
    SETTLED,
    Progress,
    Request,
    RitzPairs,
    check_options,
    fewest_active,
    one_by_one,
    with_guards,
)

FILTERED = 4  # columns in the search for copies
SEARCH = 1000  # products that the search may take, or twice as many as the solve
POLISH = 1000  # the same for the filters that polish an answer
SMALL_VALUE = 0.02  # of the bound: a spectrum that begins beyond is too narrow for a preconditioner to gain by it
LEARNED = 3  # restarts before a rate of convergence is believed
LARGEST_LOSS = 30.0  # of orthogonality, against round-off, in Lanczos vectors


@dataclass(frozen=True)
class Lanczos:
    """Thick-restart Lanczos (Wu & Simon 2000) with full reorthogonalisation: least work for well separated values.

    The null vectors are constraints. A Krylov space of one vector holds one vector of a multiple eigenvalue; the others
    are searched for with a filtered random block once the pairs have converged, and solved for. A copy is overlooked
    with a probability of 1 in 10⁵.

    Args:
        basis: vectors kept at most; default max(20, 2k + 2).
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
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """``k`` pairs and the guards that are left of the basis."""
        m = min(with_guards(k), fewest_active(operator))
        return one_by_one(self._solve, operator, k, m, tolerance, start, progress)

    def _solve(self, request: Request) -> RitzPairs:
        operator, columns = request.operator, request.columns
        free = fewest_active(operator) - request.null.shape[1]
        size = min(free, max(20, 2 * columns + 2 if self.basis is None else self.basis, columns + 2))
        columns = min(columns, size)
        space, kept = KrylovSpace(operator, request.null, size, self.seed), 0
        trend = Trend()
        while True:
            values, turn, residuals = space.fill(kept)
            shortfall, _ = request.shortfall(space.products, values, residuals)
            trend.add(space.products, shortfall)
            is_solved = shortfall <= 1
            if is_solved and size < free:
                space.keep(turn[:, :columns])
                copy, is_certain = self._search_copy(request, space, values, residuals, columns)
                if copy is None or space.products >= self.max_products:
                    finished = copy is None and is_certain
                    return self._verify(request, values[:columns], space.vectors(columns), space.products, finished)
                # The wanted pairs stay, and what was overlooked begins a Krylov space beside them.
                kept, following = request.wanted, copy
            elif is_solved or space.products >= self.max_products or self._is_hopeless(request, values, trend):
                x = space.vectors(size) @ to_device(turn[:, :columns], space.rows)
                return request.answer(values[:columns], x, space.products, is_solved)
            else:
                kept, following = min(columns, size - 1), space.following
                space.keep(turn[:, :kept])
            space.restart(values[:kept], following)

    def _search_copy(
        self, request: Request, space: KrylovSpace, values: Tensor, residuals: Tensor, columns: int
    ) -> tuple[Tensor | None, bool]:
        """What `copy_below` finds beside the pairs of a space, and whether it could look closely enough."""
        most, seed = max(SEARCH, 2 * space.products), self.seed + space.products
        rows = space.rows[: space.first + columns]
        found, work = copy_below(request, rows, values, residuals, seed, most)
        space.products += min(work, most)
        return found, work <= most

    def _verify(self, request: Request, values: Tensor, x: Tensor, products: int, finished: bool) -> RitzPairs:
        """The pairs if their true residuals are small enough, else polished by filters.

        The recurrence forgets what was left of the residuals when a copy began a Krylov space of its own.
        """
        answer = request.answer(values, x, products, finished)
        _, residuals = residual(request.operator, x, request.operator.matmul(x), to_device(values, x))
        if not finished or request.shortfall(products, values, residuals)[0] <= 1:
            return answer
        k = request.null.shape[1] + request.wanted
        polish = ChebyshevSubspace(max_products=max(POLISH, products), seed=self.seed)
        polished = polish(request.operator, k, request.tolerance, answer)
        done = polished if polished.finished.all() else answer._replace(finished=polished.finished)
        return done._replace(iterations=products + polished.iterations, inverses=answer.inverses)

    def _is_hopeless(self, request: Request, values: Tensor, trend: Trend) -> bool:
        """Whether Ritz values, over the bound of the spectrum, belong to a problem for another solver."""
        if self.alternative is None or trend.products < self.patience:
            return False
        return float(values[max(request.wanted, 1) - 1]) < SMALL_VALUE * request.bound and trend.left > self.alternative


class Trend:
    """Shortfalls on the way, and the products that are left to 1 by the rate at which they fall.

    Attributes:
        products: so far. left: of these, infinite where the shortfall does not fall; 0 as long as too few are known.
    """

    def __init__(self) -> None:
        self.known: list[tuple[int, float]] = []

    def add(self, products: int, shortfall: float) -> None:
        """After so many products the residuals were so many times what is allowed."""
        self.known.append((products, math.log(max(shortfall, 1e-300))))

    @property
    def products(self) -> int:
        """So far."""
        return self.known[-1][0]

    @property
    def left(self) -> float:
        """Products to a shortfall of 1, by the better of the rates since the beginning and since halfway."""
        if len(self.known) <= LEARNED:
            return 0.0
        now, last = self.known[-1]
        starts = (self.known[0], self.known[len(self.known) // 2])
        rate = max((before - last) / (now - products) for products, before in starts)
        return last / rate if rate > 0 else math.inf


class KrylovSpace:
    """Orthonormal vectors as rows, the null vectors before them, with the projection Vᵀ A V of the operator.

    Args:
        size: number of the vectors. seed: of the first one.

    Attributes:
        rows: ``(c + size + 1, N)``: null vectors, basis, and the direction that follows. ``columns``: their transpose.
        first: c, the row of the first vector of the basis.
        projected: ``(size, size)``, the upper triangle of Vᵀ A V.
        products: with the operator so far.
    """

    def __init__(self, operator: Operator, null: Tensor, size: int, seed: int) -> None:
        self.operator, self.seed, self.size, self.first = operator, seed, size, null.shape[1]
        step = ALIGNMENT // null.element_size()
        self.rows = null.new_empty(self.first + size + 1, -(-len(null) // step) * step)[:, : len(null)]
        self.columns = self.rows.mT
        self.rows[: self.first] = null.mT
        self.rows[self.first] = self._random(self.columns[:, : self.first], seed)
        self.projected = null.new_zeros(size, size)
        self.products = 0
        self.shift = 0.5 * float(operator.bound)  # as much of A v as possible is not parallel to v: less cancels
        self.round_off = 10 * torch.finfo(null.dtype).eps * float(operator.bound)
        sweep = partial(_sweep, operator, self.rows, self.projected, self.first, self.shift)
        self._sweep = captured(sweep, null.device) if operator.is_recordable else sweep

    @property
    def following(self) -> Tensor:
        """The direction of what A leaves of the last vector outside the space."""
        return self.rows[self.first + self.size]

    def vectors(self, m: int) -> Tensor:
        """The first ``m`` vectors as columns ``(N, m)``."""
        return self.rows[self.first : self.first + m].mT

    def keep(self, turn: Tensor) -> None:
        """Put the combinations ``turn`` ``(size, m)`` of the vectors in the place of the first m."""
        basis = self.rows[self.first : self.first + self.size]
        self.rows[self.first : self.first + turn.shape[1]] = to_device(turn, basis).mT @ basis

    def restart(self, values: Tensor, following: Tensor) -> None:
        """Go on with Ritz vectors, which are in their places, of these values, and a vector beside them."""
        self.rows[self.first + len(values)] = following
        self.projected.zero_().diagonal()[: len(values)] = to_device(values, self.projected)

    def fill(self, kept: int) -> tuple[Tensor, Tensor, Tensor]:
        """Fill the basis after the kept vectors; Ritz values, their coordinates, and residuals, on the host."""
        ahead, beta, projected = self._ahead(kept) if self.rows.device.type != "cpu" else (kept, 0.0, self.projected)
        loss = 1.0
        for j in range(ahead, self.size):
            known = self.columns[:, : self.first + j + 1]
            w = self.operator.matvec(self.rows[self.first + j], self.shift)
            w, h, beta = self._outside(known, w)
            # The loss of orthogonality grows by ‖h‖ / β from vector to vector: orthogonalise again now and then, and
            # where a sweep begins and ends, so that nothing is handed on.
            (square,) = shared(self.operator, h.dot(h))
            loss *= max(1.0, math.sqrt(square) / max(beta, self.round_off))
            if loss > LARGEST_LOSS or j in (ahead, self.size - 1):
                once, loss = beta, 1.0
                w, again, beta = self._outside(known, w)
                h = h + again
                if beta < 0.5 * once:  # what was left was round-off: the basis is invariant
                    beta = 0.0
            self.projected[: j + 1, j] = h[self.first :]
            if beta > self.round_off:
                torch.div(w, beta, out=self.rows[self.first + j + 1])
            elif j + 1 < self.size:
                self.rows[self.first + j + 1] = self._random(known, self.seed + j + 1)
        projected = to_host(self.projected)[0] if ahead < self.size else projected
        projected.diagonal()[kept:] += self.shift
        self.products += self.size - kept
        values, turn = shared(self.operator, *torch.linalg.eigh(projected, UPLO="U"))
        return values, turn, beta * turn[-1].abs()

    def _ahead(self, kept: int) -> tuple[int, float, Tensor]:
        """Fill the basis without a look at it, orthogonalising each vector twice; then the host waits, once.

        Where nothing of a product was left outside, what follows means nothing: the number of the vector to begin at
        again, the norm of what the last product left, and the projection on the host.
        """
        projected, betas = to_host(self.projected, self._sweep(kept))
        lost = (~(betas[kept : self.size - 1] > self.round_off)).nonzero()
        last = float(betas[-1])
        return kept + int(lost[0]) if len(lost) else self.size, last if last > self.round_off else 0.0, projected

    def _outside(self, known: Tensor, w: Tensor) -> tuple[Tensor, Tensor, float]:
        """The part of ``w`` outside orthonormal columns, its coordinates in them, and the norm of that part."""
        h = self.operator.inner(known, w)
        w = torch.addmv(w, known, h, alpha=-1)
        return w, h, math.sqrt(self.operator.inner(w, w))

    def _random(self, known: Tensor, seed: int) -> Tensor:
        """A random unit vector orthogonal to orthonormal columns."""
        w = self.operator.random(1, seed)[0, :, 0]
        for _ in range(2):
            w, _, size = self._outside(known, w)
            w = w / size
        return w


def _sweep(operator: Operator, rows: Tensor, projected: Tensor, first: int, shift: float, kept: int) -> Tensor:
    """Write the vectors after the kept ones, and their projection; norms ``(size,)`` of what products left outside."""
    betas, tiny = rows.new_zeros(len(projected)), torch.finfo(rows.dtype).tiny
    for j in range(kept, len(projected)):
        known = rows[: first + j + 1].mT
        w = operator.matvec(rows[first + j], shift)
        h = operator.inner(known, w)
        w = torch.addmv(w, known, h, alpha=-1)
        again = operator.inner(known, w)
        w = torch.addmv(w, known, again, alpha=-1)
        projected[: j + 1, j] = (h + again)[first:]
        betas[j] = operator.inner(w, w).sqrt()
        torch.div(w, betas[j].clamp_min(tiny), out=rows[first + j + 1])
    return betas


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
    ritz, bound, round_off = values.tolist(), request.bound, request.round_off
    top = ritz[min(w, len(ritz) - 1)]
    # Where the cut goes through a cluster, its own copies make no difference: those of the values before it do.
    low = max((x for x in ritz[:w] if x < top - 10 * round_off), default=None)
    if low is None:
        return None, 0
    is_settled = residuals[w : len(rows) - c] <= torch.maximum(
        SETTLED * (values[w : len(rows) - c] - low), values.new_tensor(round_off)
    )
    known = w + int(is_settled.long().cumprod(0).sum())
    # What lies between is enlarged too, but less: the block has room for a few.
    high = min(max(ritz[min(known + 1, len(rows) - c - 1)], top), 0.9 * bound)
    if high <= low:
        return None, 0
    needed = needed_growth(Known.of(operator), torch.tensor([[top - low]], dtype=values.dtype))
    growth = float(*shared(operator, needed)) + math.log(2)
    work = 0
    while True:
        degree = math.ceil(growth / math.acosh(1 + 2 * (high - low) / (bound - high)))
        if (work := work + degree) > most:
            return None, work
        x = _filter(operator, rows[: c + known], degree, high, seed)
        if x.shape[1] == 0:
            return None, work
        found, turn = shared(operator, *eigh(*to_host(operator.inner(x, operator.matmul(x)))))
        if float(found[0]) < 0.5 * (low + top):
            return x @ to_device(turn[:, 0], x), work
        if high <= top or float(found[-1]) >= high:
            return None, work
        high = top  # all of the block lies below: what is enlarged there, as copies of those values, took its room


def _filter(operator: Operator, rows: Tensor, degree: int, high: float, seed: int) -> Tensor:
    """A random block orthogonal to ``rows`` after a polynomial of a degree that stays in [−1, 1] from ``high`` on.

    What round-off leaves of the rows, which lie below, is taken out now and then.
    """
    bound, edge = float(operator.bound), torch.full_like(operator.bound, high)
    fastest = math.acosh(1 + 2 * high / (bound - high))  # growth at zero
    every = max(1, int(-0.4 * math.log(torch.finfo(rows.dtype).eps) / fastest))

    def project(x: Tensor) -> Tensor:
        return torch.addmm(x[0], rows.mT, operator.inner(rows.mT, x[0]), alpha=-1)[None]

    x = basis(operator, operator.random(FILTERED, seed)[0], rows.mT)[None]
    degrees = torch.tensor([degree])
    return basis(operator, operator.chebyshev(x, degrees, edge, operator.bound, project, every)[0], rows.mT)
