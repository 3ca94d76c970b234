"""One block Krylov loop: few pairs of matrices, of matrices known by products, of inverses and of pencils."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.blocks import basis, residual, symmetric_eigh, to_device, to_host
from torch_lapeig.eigen.solvers.factors import Factors
from torch_lapeig.eigen.solvers.lobpcg import lobpcg
from torch_lapeig.eigen.solvers.solver import Request, RitzPairs, check_options, one_by_one, ratio_to_allowed
from torch_lapeig.native import calls
from torch_lapeig.native.sparse import BLOCK, BlockLimits, NextBlock, next_block
from torch_lapeig.support.progress import Progress

WIDTH = 4  # vectors of a block for factors: a solve of four takes a little more than twice the time of one
# The same for products: two show copies, so that simple values need no second search, in as many products in all as one
# vector and the search; four take 1.2 to 1.7 times as many.
PAIR = 2
# Residual of the next value over the gap to it: the gap then has five digits or more.
NEXT_RESIDUAL = 1e-3
ROUNDOFF_UNITS = 10.0  # lengths, in eps of the largest product, up to which a part outside the space is round-off
CHECK_EVERY = 5  # products between two checks of Ritz pairs, which take the time of one or two products of 700²
FEWEST_CHECKS = 3  # of a search for copies: a random start may hold next to nothing of one, until products amplify it
POLISH_STEPS = 40  # maximum steps of `Lobpcg` at the end
FAINT = 1e-5  # share of the largest value of an inverse, below which its round-off hides digits of another value
FAINT_TO_ROUNDOFF, FAINT_INSIDE = 0.1, 1e-3  # the same where all digits are wanted; inside the spectrum
# Tolerance of a block's pairs, by which a copy has appeared that the random columns hold so little of; values nearer
# to each other than a hundred times as much are counted as copies.
SURE = 1e-6
CLOSE = 100 * SURE


@dataclass(frozen=True)
class Krylov:
    """Krylov spaces of two vectors, orthogonalised in full, restarted by Ritz vectors (Wu & Simon 2000).

    A space finds as many copies of an eigenvalue as vectors begin it. Where it has found so many, the complement of the
    pairs is searched for more. ARPACK, which restarts in the same way from one vector, misses copies.

    Args:
        max_products: maximum number of products with one vector, at least 1; half of it if residuals predict more.
        seed: of random vectors.

    >>> from torch_lapeig import eigenpairs
    >>> bool(eigenpairs(torch.arange(400.0).diag(), 4, Krylov()).converged)
    True
    """

    max_products: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, max_products=1)

    def __call__(self, operator: Operator, k: int, tolerance: float, progress: Progress | None = None) -> RitzPairs:
        """Return ``k`` pairs and the next one, or as many as there are nodes of positive degree."""
        return one_by_one(self._solve, operator, k, tolerance, progress)

    def _solve(self, request: Request) -> RitzPairs:
        form = Form(request.operator, request.operator.matmul, dense=request.operator.dense)
        return pairs_by_krylov(request, form, self.max_products, self.seed)


@dataclass(frozen=True)
class Form:
    """Function f(A, M) of a problem A x = λ M x, self-adjoint in M, whose eigenvalues θ are found from one end."""

    operator: Operator  # A, with the sums over nodes and random columns of the problem
    matmul: Callable[[Tensor], Tensor]  # A or M⁻¹ A of blocks ``(N, p)``; with an inverse (A − σ M)⁻¹
    mass: Tensor | None = None  # M, dense or sparse; None for 1
    inverse: Factors | None = None  # (A − σ M)⁻¹, where θ = 1 / (λ − σ); None where θ = λ
    sigma: float = 0.0  # σ, below the spectrum, or near the target
    target: float | None = None  # a number inside, to which the wanted values are the nearest
    memory: float = math.inf  # maximum bytes of factors
    rounding: float = 0.0  # size of E, where the inverse inside the spectrum is that of A + E − σ M
    width: int = PAIR  # number of vectors of a block
    dense: dict[str, Tensor] | None = None  # `Operator.dense` where f(A, M) = A

    def rank(self, theta: Tensor) -> Tensor:
        """Return numbers by which the wanted values are the smallest: θ or −1 / the distance of λ."""
        if self.target is None:
            return theta if self.inverse is None else -theta
        # Below round-off all distances are one: copies of a value at the target count as equal.
        round_off = 300 * torch.finfo(theta.dtype).eps * float(self.operator.bound)
        far = (1 - theta * (self.target - self.sigma)).abs() / theta.abs()
        return -1 / far.clamp_min(round_off)

    def product(self, y: Tensor) -> Tensor:
        """Return f(A, M) Y."""
        return self.matmul(y if self.inverse is None else self.weighted(y))

    def weighted(self, y: Tensor) -> Tensor:
        """Return M Y."""
        return y if self.mass is None else self.mass @ y

    @property
    def has_plain_sums(self) -> bool:
        """Return whether C may sum over nodes, with a mass that it reads; see ``PatternBase.has_plain_sums``."""
        mass, is_plain = self.mass, self.operator.nodes.has_plain_sums
        if mass is None or not is_plain or mass.layout is not torch.sparse_csr:
            return is_plain and mass is None
        return calls.csr_supported(mass.crow_indices(), mass.col_indices(), mass.values())

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Return Xᵀ M Y."""
        return self.operator.nodes.inner(x, self.weighted(y))

    def overlaps(self, w: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """Return inner products of a block with itself, column by column, and with others."""
        if self.mass is None:
            return self.operator.nodes.overlaps(w, *others)
        weighted = self.mass @ w
        return self.operator.nodes.dots(w, weighted), *(self.operator.nodes.inner(q, weighted) for q in others)

    def same_on_all_ranks(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return small tensors, identical on all ranks."""
        return self.operator.nodes.same_on_all_ranks(*tensors)

    def random(self, m: int, seed: int) -> Tensor:
        """Return random columns ``(N, m)``."""
        noise = self.operator.random(m, seed)
        return noise.reshape(noise.shape[-2:]).mT.contiguous().mT

    def count(self, distance: float, room: float) -> int | None:
        """Return the number of values within a distance of σ or the target, ``room`` from its ends; None if unknown."""
        inverse, middle = self.inverse, 0.0 if self.target is None else self.target - self.sigma
        if inverse is None or 2 * inverse.bytes > self.memory:
            return None
        above = inverse.count_below(middle + distance, room)
        below = 0 if self.target is None else inverse.count_below(middle - distance, room)
        return None if above is None or below is None else above - below


def pairs_by_krylov(request: Request, form: Form, most: int, seed: int, size: int = 0) -> RitzPairs:
    """Return the pairs of a request, with all copies of multiple values, and the next one or more."""
    search = _Search(request, form, most, itertools.count(seed), size)
    values, x, finished, shortfall = search.attempt(request.tolerance)
    # A copy found last may have closed the gap to which the tolerance is relative: solve again to round-off. Inside the
    # spectrum steps of the inverse follow.
    is_short = finished and shortfall > 1 and form.target is None
    if is_short and request.tolerance > 0 and 2 * search.products < most:
        values, x, finished, _ = search.attempt(0.0)
    return request.answer(values, x, search.products, finished, form.inverse)


class _Ritz(NamedTuple):
    """Pairs of one space, in the order of `Form.rank`: all θ and residuals, and the first vectors."""

    theta: Tensor
    residuals: Tensor
    vectors: Tensor
    finished: bool
    is_whole: bool  # whether nothing is left outside the space


@dataclass
class _Search:
    """Search by several spaces, and what they share."""

    request: Request
    form: Form
    most: int
    seeds: Iterator[int]  # one for each random block: a seed drawn twice would hide what the first block has missed
    size: int
    products: int = 0

    def attempt(self, tolerance: float) -> tuple[Tensor, Tensor, bool, float]:
        """Return values, vectors and success with a tolerance of their spaces, and residuals over allowed ones."""
        form, null = self.form, self.request.null
        tolerance = min(tolerance, SURE)
        locked = null[:, :0]
        while True:
            known, count = torch.cat([null, locked], 1), self.request.wanted - locked.shape[1]
            found = self._space(known, count + 1, partial(self._shortfall, tolerance, count))
            # Values far beyond the others hide these in the round-off of the inverse: search for those beside them.
            share = FAINT_INSIDE if form.target is not None else FAINT if tolerance > 0 else FAINT_TO_ROUNDOFF
            size = found.theta[:count].abs()
            faint = (size > size[-1:] / share) & (size > share * size[:1])
            if form.inverse is None or not found.finished or not bool(faint.any()):
                break
            locked = torch.cat([locked, basis(form, found.vectors[:, : int(faint.sum())], known)], 1)
        x, is_certain, of_copies = self._with_copies(found, known, count, tolerance)
        values, x, shortfall = self._ritz_pairs_of(torch.cat([locked, x], 1), found.vectors[:, count:], of_copies)
        return values, x, found.finished and is_certain, shortfall

    def _space(self, known: Tensor, count: int, shortfall: Callable[[Tensor, Tensor], float], fewest: int = 1) -> _Ritz:
        """Return the first ``count`` pairs orthogonal to known columns, and guards, after at least so many checks."""
        form, request = self.form, self.request
        is_direct = form.inverse is None
        columns = count if is_direct or form.target is not None else count + request.columns - request.wanted - 1
        free = int(request.operator.active_count) - known.shape[1]
        size, count = self.size or max(64 if is_direct else 48, 3 * columns), min(count, free)
        space = Space(form, known, min(size, free), free, self.seeds, form.width)
        # No space has converged earlier.
        before, checks, step, last = self.products, 0, 2 * columns + min(columns, 12), math.inf
        while True:
            space.expand(step := max(CHECK_EVERY if is_direct else 1, step))
            self.products, checks = before + space.products, checks + 1
            theta, turn, residuals = space.ritz()
            order = form.rank(theta).argsort(stable=True)
            theta, turn, residuals = theta[order], turn[:, order], residuals[order]
            ratio = max(shortfall(theta, residuals), 1e-300) if len(theta) >= count else math.inf
            done = space.is_whole or (checks >= fewest and ratio <= 1)
            # Half of the solves that the last decrease predicts, because convergence accelerates.
            rate = math.log(last / ratio) / step if ratio < last < math.inf else 0.0
            more = int(math.log(max(ratio, 1)) / rate / 2) if rate else space.products
            step = min(space.products // (2 if is_direct else 3), more)
            last, predicted = ratio, min(more, self.products) if is_direct else 0
            if done or (self.products + predicted >= self.most and len(theta) >= count):
                turn = turn[:, :columns]
                vectors = space.combine(turn).mT if is_direct else space.images(turn)
                return _Ritz(theta, residuals, vectors, done, space.is_whole)
            if space.is_full:
                more = (len(theta) - count) // 2 if is_direct else WIDTH
                keep = min(columns + more, space.size - space.following)
                space.restart(theta[:keep], turn[:, :keep])

    def _round_off(self, theta: Tensor) -> Tensor:
        request, form, size = self.request, self.form, theta.abs()
        if form.inverse is None and form.mass is None:
            return torch.full_like(size, request.round_off)
        share = request.round_off / request.bound
        # (A + E − σ M)⁻¹ differs from the inverse by θ² E, which only matters inside the spectrum, close to σ.
        return share * size.max() + size.square() * form.rounding

    def _shortfall(self, tolerance: float, count: int, theta: Tensor, residuals: Tensor) -> float:
        """Return the ratio of residuals of the first pairs to allowed ones; call ``progress`` in terms of A."""
        request, form, rank = self.request, self.form, self.form.rank(theta)[: count + 1]
        rank = rank if form.inverse is None else rank - 2 * rank[0]
        noise = self._round_off(theta)[: count + 1]
        last = noise[max(count, 1) - 1]
        scaled = residuals[: count + 1] * (last / noise).clamp_max(1)
        ratio, worst, allowed = ratio_to_allowed(rank, scaled, count, tolerance, float(last))
        if form.target is not None and len(rank) > count:  # the gap in θ may be wide beside a θ of the next value
            next_allowed = max(SURE * float(theta[count].abs()), float(noise[count]))
            ratio = max(ratio, float(residuals[count]) / next_allowed)
        if request.progress is not None:
            scale = 1.0 if form.inverse is None else float(theta[max(count, 1) - 1]) ** -2
            request.progress(self.products, worst * scale, allowed * scale)
        return ratio

    def _with_copies(self, found: _Ritz, known: Tensor, count: int, tolerance: float) -> tuple[Tensor, bool, float]:
        """Return vectors with copies that the first space lacks, whether none can be missing, and their shortfall."""
        # One vector finds one copy of a multiple value, a block as many as it has columns. Factors count what is there;
        # else the complement is searched from new vectors, until its first value is none of the wanted ones.
        theta, residuals, x = found.theta, found.residuals, found.vectors[:, :count]
        rank, round_off = self.form.rank(theta), float(self._round_off(theta)[: count + 1][-1])
        is_shown, last = not found.finished or found.is_whole or count == 0, rank[self.form.width - 1 :][:count]
        if not is_shown and len(last) == count:
            # No value before the cut may have more copies than a block has columns; those that it splits do not matter.
            first, next_rank = rank[:count], rank[count]
            matters, beyond = first < next_rank - 10 * round_off, 0 * next_rank if self.form.inverse else next_rank
            is_shown = not bool((matters & (last - first <= CLOSE * (beyond - first) + round_off)).any())
        if is_shown:
            return x, True, 0.0
        number, cut = self._counted(rank, count, round_off, known.shape[1])
        free = int(self.request.operator.active_count) - known.shape[1]
        rank, theta, residuals, is_last, is_certain = rank[:count], theta[:count], residuals[:count], False, True
        while not is_last and (number is None or int((rank < cut).sum()) < number):
            most = float(rank[count - 1])

            def excess(theta: Tensor, residuals: Tensor, most: float = most) -> Tensor:
                far = self.form.rank(theta) - most
                # The gap is not known yet: a copy that was missed lies within it. What is counted is there.
                share = torch.where((far > 0) | (number is not None and tolerance > 0), NEXT_RESIDUAL, tolerance)
                return residuals / (share * far.abs()).maximum(self._round_off(theta)).clamp_min(round_off)

            outside = torch.cat([known, basis(self.form, x, known)], 1)
            new = self._space(outside, 1, lambda *pairs: float(excess(*pairs)[0]), FEWEST_CHECKS)
            own = new.vectors.shape[1]
            told = max(int((excess(new.theta[:own], new.residuals[:own]) <= 10).cumprod(0).sum()), 1)
            theta, residuals = torch.cat([theta, new.theta[:told]]), torch.cat([residuals, new.residuals[:told]])
            rank, order = self.form.rank(theta).sort(stable=True)
            theta, residuals = theta[order], residuals[order]
            x = torch.cat([x, new.vectors[:, :told]], 1)[:, to_device(order, x)]
            limit = most - round_off if number is None else cut
            is_beyond = float(self.form.rank(new.theta[:1])) >= limit or x.shape[1] == free
            is_last, is_certain = is_beyond or not new.finished, new.finished
        is_certain = is_certain and (number is None or int((rank < cut).sum()) >= number)
        return x, is_certain, self._shortfall(tolerance, count, theta, residuals)

    def _counted(self, rank: Tensor, count: int, round_off: float, known: int) -> tuple[int | None, float]:
        """Return the number of values before a cut between wanted and other ones, and the cut, as a rank."""
        if self.form.inverse is None or len(rank) <= count:
            return None, 0.0
        before = int((rank[:count] < rank[count] - 10 * round_off).sum())
        if before == 0 or float(rank[count]) >= 0:
            return None, 0.0
        near, far = -1 / float(rank[before - 1]), -1 / float(rank[count])
        room = 0.4 * (far - near)  # not half: in the middle of a symmetric spectrum a pivot is zero
        number = self.form.count(near + room, room)
        number = None if number is None or number - known < before else number - known
        return number, -1 / (near + room)

    def _ritz_pairs_of(self, x: Tensor, guards: Tensor, shortfall: float) -> tuple[Tensor, Tensor, float]:
        """Return Ritz pairs of A, and the ratio of their residuals to the allowed ones; the given one with a mass."""
        # A space of the inverse leaves components of large eigenvalues, which hardly matter to it, but to A; and the
        # gap that copies close asks for smaller residuals: steps of `Lobpcg` remove both. Guards have not converged,
        # and stay apart: mixed with them, copies of one value would lose digits.
        form, request, null = self.form, self.request, self.request.null
        operator, x = request.operator, basis(form, x, null)
        if (lost := request.wanted - x.shape[1]) > 0:  # dependent columns, or few products
            x = torch.cat([x, basis(form, form.random(lost, next(self.seeds)).to(x), null, x)], 1)
        own, x = x.shape[1], torch.cat([x, basis(form, guards, null, x)], 1)
        ax, values, turns = operator.matmul(x), [], []
        (small,) = to_host(operator.nodes.inner(x, ax))
        for part in (slice(own), slice(own, None)):
            ritz, turn = form.same_on_all_ranks(*symmetric_eigh(small[part, part]))
            order = (ritz if form.target is None else (ritz - form.target).abs()).argsort(stable=True)
            values.append(ritz[order])
            turns.append(turn[:, order])
        ritz, turn = torch.cat(values)[: request.columns], torch.block_diag(*turns)[:, : request.columns]
        x, ax = x @ to_device(turn, x), ax @ to_device(turn, x)
        if form.mass is not None or form.target is not None:
            return ritz, x, shortfall
        _, norms = residual(operator, x, ax, to_device(ritz, x))

        def check(iteration: int, values: Tensor, residuals: Tensor) -> tuple[float, float]:
            return request.shortfall(self.products + iteration, values, residuals)

        ratio, _ = check(0, ritz, to_host(norms)[0])
        if ratio > 1:
            improved, y, steps, _ = lobpcg(operator, x, null, form.inverse, check, POLISH_STEPS)
            self.products += steps
            _, norms = residual(operator, y, operator.matmul(y), to_device(improved, y))
            if (other := check(0, improved, to_host(norms)[0])[0]) < ratio:  # at round-off steps may do harm
                return improved, y, other
        return ritz, x, ratio


class Space:
    """Orthonormal rows ``(c + size + width, N)``: c known ones, a basis of a block Krylov space, and its next block."""

    # A space that begins with a block of p random vectors holds up to p vectors of each eigenspace. Vectors that lie in
    # the space are left out of the next block; where none is left, a random block finds further copies.
    # With V the basis, T = Vᵀ A V, E the last columns of 1 and Q the next block, A V = V T + Q C Eᵀ.
    # The known columns `(N, c)` are orthonormal and span invariant subspaces, with a complement of dimension `free`.

    coupling: Tensor  # C ``(following, p)``, on the host

    def __init__(self, form: Form, known: Tensor, size: int, free: int, seeds: Iterator[int], width: int) -> None:
        self.form, self.c, self.size, self.free, self.seeds = form, known.shape[1], size, free, seeds
        self.width = min(width, free)
        self.rows = known.new_empty(self.c + size + self.width, len(known))
        self.rows[: self.c] = known.mT
        self.matrix = torch.zeros(size, size, dtype=known.dtype)  # lower triangle of A on the basis, on the host
        self.dimension = self.products = self.following = 0  # numbers of basis vectors, products and next vectors
        self._near = 0  # number of the first basis vectors that have no products with the next block
        self._least = 0.0
        self._unit = ROUNDOFF_UNITS * torch.finfo(known.dtype).eps
        self.next_block, self.steps = self._next_block, dict[str, Any]()
        can_load = calls.memory_supported(known) and calls.library() is not None and known.dtype == torch.float64
        if can_load and self.width <= BLOCK and form.has_plain_sums:
            self.next_block = partial(next_block, mass=form.mass)
            if form.dense is not None:
                self.steps = {**form.dense, "small": self.matrix, "size": size, "known": self.c}
        self._begin(0)

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is left outside the space."""
        return self.dimension == self.free

    @property
    def is_full(self) -> bool:
        """Return whether the next block does not fit in."""
        return self.dimension + self.following > self.size

    def expand(self, products: int) -> None:
        """Append blocks until so many more columns are multiplied, the next one does not fit in or none is left."""
        goal = self.products + products
        while self.products < goal and not self.is_full and not self.is_whole:
            j, p = self.dimension, self.following
            count, steps = self.c + j + p, dict(self.steps)
            rest = self.rows[count : count + p]
            if steps:  # C multiplies, block after block
                steps["steps"] = min(-(-(goal - self.products) // p), (min(self.size, self.free) - j) // p)
            else:
                rest.copy_(self.form.product(self.rows[self.c + j : count].mT).mT)
            # Blocks before the last two have no products with the next one but after a restart.
            limits = BlockLimits(self._least, self._unit)
            found = self.next_block(self.rows[:count], rest, self.c + self._near, limits, **steps)
            end = len(found.products) - self.c
            self.matrix[end - p : end, :end] = found.products[self.c :].mT
            self.dimension, self._near, self._least, self.coupling = end, end - p, found.least, found.factor.mT
            self.products, self.following = self.products + end - j, p
            if not found.is_made or end + p > self.free:
                self._take_care(self.rows[self.c + end :][:p])

    def _take_care(self, rest: Tensor) -> None:
        """Make the next block from a rest ``(p, N)`` that nearly depends on itself or the space, or is round-off."""
        count = self.c + self.dimension
        size = to_host(self.form.overlaps(rest.mT)[0])[0].sqrt() * torch.linalg.vector_norm(self.coupling, dim=1)
        q = rest.mT[:, to_device(size > min(self._least, 1e-8), rest)]
        if q.shape[1]:
            q = basis(self.form, q, self.rows[:count].mT)[:, : self.free - self.dimension]
        self.following = q.shape[1]
        if not self.following:
            return self._begin(len(self.coupling.mT))
        self.coupling = to_host(self.form.inner(q, rest.mT))[0] @ self.coupling
        self.rows[count : count + self.following] = q.mT

    def _begin(self, p: int) -> None:
        """Make a random next block, with which the last ``p`` vectors have no products."""
        count = self.c + self.dimension
        noise = self.form.random(min(self.width, self.free - self.dimension), next(self.seeds))
        q = basis(self.form, noise.to(self.rows), self.rows[:count].mT)
        self.following, self.coupling = q.shape[1], self.matrix.new_zeros(q.shape[1], p)
        self.rows[count : count + self.following] = q.mT
        if not self.following:
            self.free = self.dimension

    def _next_block(self, rows: Tensor, block: Tensor, near: int, limits: BlockLimits) -> NextBlock:
        """Begin the work of the compiled `next_block`, which `_take_care` completes on any device."""
        products = rows.new_zeros(len(rows), len(block))
        products[near:] = self.form.inner(rows[near:].mT, block.mT)
        block.addmm_(products[near:].mT, rows[near:], alpha=-1)
        (products,) = to_host(products)
        least = max(limits.least, limits.unit * float(torch.linalg.vector_norm(products)))
        return NextBlock(products, torch.eye(len(block), dtype=block.dtype), least, False)

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return Ritz values, ascending, their coordinates in the space and the norms of their residuals."""
        values, turn = self.form.same_on_all_ranks(*torch.linalg.eigh(self.matrix[: self.dimension, : self.dimension]))
        return values, turn, torch.linalg.vector_norm(self._outside(turn), dim=0)

    def _outside(self, turn: Tensor) -> Tensor:
        """Return the part of the next block in A times combinations: C times the coordinates in the last block."""
        return self.coupling @ turn[self.dimension - self.coupling.shape[1] :]

    def _projected(self) -> Tensor:
        lower = self.matrix[: self.dimension, : self.dimension].tril()
        return lower + lower.tril(-1).mT

    def combine(self, turn: Tensor) -> Tensor:
        """Return combinations ``(p, N)`` of the basis by columns ``(dimension, p)``."""
        return to_device(turn, self.rows).mT @ self.rows[self.c : self.c + len(turn)]

    def images(self, turn: Tensor) -> Tensor:
        """Return A times combinations ``(N, p)``, without the residuals of vectors kept at a restart."""
        inside, outside = self.combine(self._projected() @ turn), to_device(self._outside(turn), self.rows)
        return inside.addmm_(outside.mT, self.rows[self.c + self.dimension :][: self.following]).mT

    def restart(self, values: Tensor, turn: Tensor) -> None:
        """Reduce the space to some Ritz vectors, and the next block, which holds the residual of each."""
        keep = len(values)
        block = self.rows[self.c + self.dimension :][: self.following].clone()
        self.rows[self.c : self.c + keep] = self.combine(turn)
        self.rows[self.c + keep :][: len(block)] = block
        self.matrix.zero_().diagonal()[:keep] = values
        self.dimension, self._near = keep, 0
