"""Block Lanczos on the inverse, by sparse factors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.blocks import basis, rayleigh_ritz, residual
from torch_lapeig.eigen.solvers.factors import Factors, Shifted, count_below, factors_of, shifted, structure_within
from torch_lapeig.eigen.solvers.krylov import Inverted, Space
from torch_lapeig.eigen.solvers.lobpcg import lobpcg
from torch_lapeig.eigen.solvers.solver import (
    SETTLED,
    Progress,
    Request,
    RitzPairs,
    check_options,
    one_by_one,
    ratio_to_allowed,
    with_guards,
)
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import budget_of

WIDTH = 4  # columns of a block: a solve of four takes a little more than twice the time of one
POLISH_STEPS = 40  # maximum steps of `Lobpcg` at the end
COUNT_BLOCKS = 6  # solves of blocks that cost about as much as the factors for a count of eigenvalues


@dataclass(frozen=True)
class ShiftInvert:
    """Block Lanczos on (A + σ)⁻¹ by sparse factors: for graphs whose factors stay sparse, however hard they are.

    Paths, trees, grids, meshes, roads and data on curves and surfaces are such graphs; on data of many dimensions the
    factors fill in. Nodes are ordered by minimum degree. The wanted eigenvalues of A become the largest of the inverse
    and well separated, so that some eight blocks of four solves are enough (Grimes, Lewis & Simon 1994). A block finds
    at most as many copies of a multiple eigenvalue as it has columns. Where there may be more, Sylvester's law of
    inertia counts the eigenvalues below the gap, and missing ones are searched for outside the found pairs. Steps of
    `Lobpcg` improve the pairs until the residuals of A itself are small enough. The gradient's linear solve reuses the
    factors. The solver computes in float64, on the CPU.

    Args:
        basis: maximum number of kept vectors, at least 3; default max(48, 3k).
        max_products: maximum number of solves with the factors.
        shift: σ over the bound of the spectrum, positive: large enough that a singular A has factors. It is increased
            where rounding of the entries, to float32 at most, has made an eigenvalue negative.
        memory: maximum bytes of the factors; None for the budget of the machine, infinite for no limit. Larger factors
            raise a ConvergenceError, with compiled loops before anything is factorised.
        seed: of the random blocks.

    Raises:
        TypeError, ValueError: an option of another type or out of range.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(
    ...     400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ... )
    >>> laplacian = Laplacian(KNN(8)(x))
    >>> values = torch.linalg.eigvalsh(laplacian.to_dense())[:4]
    >>> torch.allclose(eigenpairs(laplacian, 4, ShiftInvert()).values, values)
    True
    """

    basis: int | None = None
    max_products: int = 2000
    shift: float = 1e-14
    memory: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, basis=3, max_products=0)
        checks.set_frozen(self, shift=checks.check_positive(self.shift, "shift"))
        if self.memory is not None and not (isinstance(self.memory, float) and self.memory == math.inf):
            checks.set_frozen(self, memory=checks.check_number(self.memory, "memory", 0))

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """Return ``k`` pairs and the guards of `with_guards`.

        Raises:
            TypeError: an operator that gives products only. ConvergenceError: factors that would take too much memory;
                an eigenvalue that is negative beyond rounding.
        """
        return one_by_one(self._solve, operator, k, with_guards(k), tolerance, progress)

    def _solve(self, request: Request) -> RitzPairs:
        shift = self.shift
        while True:
            factors = self._factors(request.operator, shift)
            try:
                return self._repeated(Search(request, factors, shift * request.bound, self.seed, self.max_products))
            except _IndefiniteError as error:  # by the rounding of the entries, perhaps to float32
                shift = max(2 * shift, error.share)

    def _factors(self, operator: Operator, shift: float) -> Factors:
        """Return the factors of one graph, if they fit into the memory; raise as a call does."""
        matrix, memory = shifted(operator, shift, self), self.budget
        is_known = matrix.is_readable and memory < math.inf  # the fill of SuperLU is known only from its factors
        if is_known and structure_within(matrix, memory) is None:
            raise self._too_large(matrix)
        factors = factors_of(matrix, self)
        if factors.bytes > memory:
            raise self._too_large(matrix)
        return factors

    def _too_large(self, matrix: Shifted) -> checks.ConvergenceError:
        """Return the error of factors that do not fit into the memory."""
        return checks.ConvergenceError(
            f"factors of the matrix of {len(matrix.diagonal)} nodes would take more than memory="
            f"{self.budget / 2**30:.3g} GiB of {self}; use Lobpcg() or the default solver"
        )

    @property
    def budget(self) -> float:
        """Return the number of bytes that the factors may take."""
        return budget_of(torch.device("cpu")).factors if self.memory is None else self.memory

    def _repeated(self, search: Search) -> RitzPairs:
        """Return the pairs, searched for again where the first spaces are too blunt."""
        tolerance = search.request.tolerance
        found = self._attempt(search, tolerance)
        if bool(found.finished) or 2 * found.iterations >= search.most:
            return found
        # A copy found last may have closed the gap to which the tolerance is relative: solve again to round-off.
        again = self._attempt(search.anew(1, search.most - found.iterations), 0.0)
        solves = found.iterations + again.iterations
        if not bool(again.finished):  # repeat the first space, with the final steps of `Lobpcg`
            again = self._attempt(search.anew(0, found.iterations), tolerance)
        return again._replace(iterations=solves)

    def _attempt(self, search: Search, tolerance: float) -> RitzPairs:
        """Return the pairs from one random start, with the ``tolerance`` of its spaces."""
        request, inverse = search.request, search.inverse
        images, verdict = self._converge(search, tolerance)
        values, x, missing = _ritz_pairs_of(request, images, search.solves)
        may_repeat = tolerance > 0 and 2 * search.solves < search.most
        # Up to a factor of 1000 in the residual, final steps are cheaper than a solve to round-off.
        is_blunt = may_repeat and verdict.is_certain and 1000 < missing < math.inf
        if is_blunt or (verdict.is_certain and missing <= 1):
            return request.answer(values, x, search.solves, not is_blunt, inverse)

        def shortfall(iteration: int, values: Tensor, residuals: Tensor) -> tuple[float, float]:
            return request.shortfall(search.solves + iteration, values, residuals)

        if (lost := request.columns - x.shape[1]) > 0:  # with a small ``max_products``
            x = torch.cat([x, request.operator.random(lost, search.seed)[0].to(x)], 1)
        # Lanczos leaves small components of all other eigenvectors in a vector. Components of large eigenvalues hardly
        # matter to the inverse, but do to the residuals of A. The factors remove them in a step or two.
        values, x, steps, finished = lobpcg(request.operator, x, request.null, inverse, shortfall, POLISH_STEPS)
        return request.answer(values, x, search.solves + steps, verdict.is_certain and finished, inverse)

    def _converge(self, search: Search, tolerance: float) -> tuple[Tensor, MultiplicityCheck]:
        """Return (A + σ)⁻¹ X ``(N, m)`` of requested Ritz vectors X, and a verdict on overlooked copies."""
        request, null, w = search.request, search.request.null, search.request.wanted
        operator = request.operator
        x, verdict = self._space(search, Goal(null, w, request.columns, tolerance))
        # With a count, missing pairs are searched for outside the found ones until all are found. Without it, a value
        # with as many copies as the block has columns may have more: search until no new one is found.
        while verdict.lacking and search.solves < search.most:
            known = torch.cat([null, basis(operator, x[:, :w], null)], 1)
            free, ceiling = operator.fewest_active - known.shape[1], _ceiling_of(request, x)
            if free <= 0 or ceiling is None:
                return x, MultiplicityCheck(True)
            wanted = min(verdict.lacking, free)
            goal = Goal(known, wanted, min(wanted + WIDTH, free), *verdict.outside(tolerance), ceiling)
            images, verdict_outside = self._space(search, goal)
            outside, _ = rayleigh_ritz(operator, images, known)
            least = float(outside[0])
            values, x = rayleigh_ritz(operator, torch.cat([x, images], 1), null)
            x = x[:, : request.columns]
            is_next = least >= float(values[min(w, len(values) - 1)]) - 10 * request.round_off
            verdict = verdict.after(verdict_outside.is_certain, values, least, is_next)
        return x, verdict

    def _space(self, search: Search, goal: Goal) -> tuple[Tensor, MultiplicityCheck]:
        """Return (A + σ)⁻¹ X from one space of one first block, and a verdict on the copies it may lack."""
        request, columns, most = search.request, goal.columns, search.most - search.solves
        free = request.operator.fewest_active - goal.null.shape[1]
        # Keep many vectors, which are cheap compared with solves.
        size = min(free, max(48, 3 * columns) if self.basis is None else max(self.basis, columns + 2 * WIDTH))
        # A new seed for each space: the found pairs span the first random block.
        seed = search.seed + search.solves
        space = Space(Inverted(request.operator, search.inverse), goal.null, size, free, seed, WIDTH)
        may_count = goal.needs == "all"
        # No space has converged earlier, and a check takes as long as three solves.
        trend, next_check = Trend(WIDTH), 2 * columns + min(columns, 12)
        while True:
            space.expand(max(min(next_check, most) - space.products, 1))
            ritz, turn, residuals = space.ritz()
            shortfall = _shortfall_of_inverse(search, goal, space.products, -ritz, residuals)
            trend.add(space.products, shortfall)
            next_check = space.products + trend.until_next
            verdict = MultiplicityCheck(space.is_whole)
            if not verdict.is_certain and space.dimension >= columns and shortfall <= 1:
                copies = MissedMultiplicity.of(request, goal, -ritz, residuals, search.shift)
                verdict = self._verdict(search, copies, space, goal.needs, may_count)
                may_count = False
            if verdict.is_certain or verdict.lacking or space.products >= most:
                search.solves += space.products
                return space.images(turn[:, :columns]), verdict
            if space.is_full:
                space.restart(ritz, turn, min(columns + WIDTH, size - space.following))

    def _verdict(
        self, search: Search, copies: MissedMultiplicity, space: Space, needs: SearchScope, may_count: bool
    ) -> MultiplicityCheck:
        """Return the verdict on a converged space, by a count of eigenvalues if that is cheaper than more solves."""
        if needs == "any":
            return MultiplicityCheck(True)
        most = copies.most if needs == "all" else min(copies.most, space.width - 1)
        missing = copies.missing(space.degree, space.width - most)
        if missing <= 0:
            return MultiplicityCheck(True)
        if may_count and missing > COUNT_BLOCKS and (inertia := self._inertia(search, copies)) is not None:
            _, number = inertia
            if number > search.request.columns:
                return MultiplicityCheck(False, WIDTH)
            lacking = number - copies.known
            return MultiplicityCheck(lacking == 0, lacking, inertia)
        return MultiplicityCheck(False, 0 if most < space.width else WIDTH)

    def _inertia(self, search: Search, copies: MissedMultiplicity) -> tuple[float, int] | None:
        """Return the cut and the number of nonzero eigenvalues below it; None where they cannot be counted."""
        memory = budget_of(torch.device("cpu")).factors if self.memory == math.inf else self.budget
        if 2 * search.inverse.bytes > memory:
            return None
        below = count_below(search.request.operator, copies.cut, copies.room, self)
        number = -1 if below is None else below - search.request.null.shape[1]
        return None if number < copies.known else (copies.cut, number)


# "all": every one of the smallest pairs; "some": one of several overlooked copies; "any": copies may be overlooked.
SearchScope = Literal["all", "some", "any"]


@dataclass
class Search:
    """State of a search: what all its spaces share, and the solves that they have taken."""

    request: Request
    inverse: Factors  # (A + σ)⁻¹
    shift: float  # σ
    seed: int  # of the first random block
    most: int  # maximum number of solves
    solves: int = 0

    def anew(self, more: int, most: int) -> Search:
        """Return a search by the same factors from another seed."""
        return Search(self.request, self.inverse, self.shift, self.seed + more, most)


class Goal(NamedTuple):
    """Pairs that one space is to find: the smallest ones beside ``null`` ``(N, c)``."""

    null: Tensor
    wanted: int  # number of pairs without guards
    columns: int  # and with them
    tolerance: float  # of the residuals, relative to the gap
    needs: SearchScope = "all"
    ceiling: float | None = None  # largest value of which copies matter, in a search outside of found pairs


def _shortfall_of_inverse(search: Search, goal: Goal, solves: int, values: Tensor, residuals: Tensor) -> float:
    """Return the largest ratio of a residual of the inverse to its maximum; call ``progress`` in terms of A."""
    request, largest = search.request, float(values[0])
    _check_definite(values, search.shift, request.bound)
    round_off = request.round_off / request.bound * largest
    ratio, _, allowed = ratio_to_allowed(2 * largest - values, residuals, goal.wanted, goal.tolerance, round_off)
    if request.progress is not None and goal.needs == "all":  # approximated by the inverse
        scale = allowed / float(values[min(goal.wanted, len(values)) - 1]) ** 2
        request.progress(search.solves + solves, ratio * scale, scale)
    return ratio


def _ritz_pairs_of(request: Request, images: Tensor, solves: int) -> tuple[Tensor, Tensor, float]:
    """Return Ritz values and vectors of the span of ``images``, and their shortfall, ∞ if it is dependent."""
    operator = request.operator
    values, x = rayleigh_ritz(operator, images, request.null[:, :0])
    if x.shape[1] < images.shape[1]:
        return values, x, math.inf
    _, residuals = residual(operator, x, operator.matmul(x), values)
    return values, x, request.shortfall(solves, values, residuals)[0]


class _IndefiniteError(Exception):
    """Error of a matrix A + σ with a small negative eigenvalue; ``share``: a shift over the bound that removes it."""

    def __init__(self, share: float) -> None:
        super().__init__(share)
        self.share = share


def _check_definite(values: Tensor, shift: float, bound: float) -> None:
    """Raise if Ritz values of (A + σ)⁻¹, descending, show that it is not positive definite."""
    least = float(values[-1])
    # Up to 1e-10 of the largest value, a negative value may be round-off.
    if not (least < -0.5 / bound and least < -1e-10 * float(values[0])):
        return
    negative = shift - 1 / least  # of A, its size
    if negative > 1e-5 * bound:  # more than rounding to float32 may make of zero
        raise checks.ConvergenceError(
            f"the matrix must be positive semidefinite, got an eigenvalue of about {-negative:.1e}; add a number to "
            "its diagonal and subtract it from the eigenvalues"
        )
    raise _IndefiniteError(2 * negative / bound)


class MultiplicityCheck(NamedTuple):
    """Verdict on a space."""

    is_certain: bool  # the space has overlooked nothing
    lacking: int = 0  # number of pairs to search for outside
    # a cut and the number of nonzero eigenvalues of A below it, if they are counted
    inertia: tuple[float, int] | None = None

    def outside(self, tolerance: float) -> tuple[float, SearchScope]:
        """Return the tolerance of pairs outside, given the tolerance of all pairs, and which to search for."""
        if self.inertia is None:  # the pairs must be resolved from the found values
            return min(tolerance, 1e-6), "some"
        return 1e-3 if tolerance else 0.0, "any"

    def after(self, is_certain: bool, values: Tensor, least: float, is_next: bool) -> MultiplicityCheck:
        """Return the verdict after a search outside.

        Args:
            is_certain: whether that search overlooked nothing.
            values: all values, with the new ones.
            least: the smallest new value. is_next: whether no wanted value is larger.
        """
        if self.inertia is None:  # if the new value is not the next one, search for more copies
            return MultiplicityCheck(is_certain, WIDTH * (is_certain and not is_next))
        cut, number = self.inertia
        lacking = max(number - int((values < cut).sum()), 0)
        is_there = least < cut  # else the search has not found a counted pair: give up
        return MultiplicityCheck(is_certain and lacking == 0, lacking * is_there, self.inertia)


def _ceiling_of(request: Request, x: Tensor) -> float | None:
    """Return the largest value of which a copy would matter, below the cluster of the cut; None if there is none."""
    w, values = request.wanted, rayleigh_ritz(request.operator, x, request.null)[0]
    wanted = values[:w]
    if len(values) > w:
        wanted = wanted[wanted < values[w] - 10 * request.round_off]
    return float(wanted[-1]) if len(wanted) else None


class Trend:
    """Decrease of the residuals, and the predicted number of products until the next check, ``least`` at a minimum."""

    def __init__(self, least: int) -> None:
        self.known: list[tuple[int, float]] = []
        self.least = least

    def add(self, products: int, shortfall: float) -> None:
        """Record the ratio of residuals to their maximum after so many products."""
        self.known.append((products, math.log(max(shortfall, 1e-300))))

    @property
    def until_next(self) -> int:
        """Return the products until the next check: half of the prediction by the last rate, at most a third of all."""
        most = max(self.least, self.known[-1][0] // 3)
        if len(self.known) < 2:
            return most
        (before, high), (now, low) = self.known[-2:]
        promised = low * (now - before) / (high - low) if low < high else math.inf
        return max(self.least, int(min(most, promised / 2)))  # convergence accelerates


@dataclass(frozen=True)
class MissedMultiplicity:
    """Copies of wanted values of the inverse that a block Krylov space may have overlooked.

    A space of degree d from p random vectors holds the image of each polynomial of degree d. The Chebyshev polynomial
    that stays in [−1, 1] on the unknown values enlarges the wanted values by a factor for each degree. A vector of an
    eigenspace is overlooked if its share in the block is too small for that, in each of the p − f columns outside the f
    found copies.
    """

    most: int = 0  # f, the largest number of copies of one value that the block has found
    rate: float = math.inf  # logarithm of the growth for each degree; infinite where no copy could matter
    start: float = 0.0  # logarithm of the factor by which the mean share of a vector in a random vector must grow
    known: int = 0  # number of values of which an overlooked copy would matter
    cut: float = 0.0  # number between the last of these values, as eigenvalues of A, and the next
    room: float = 0.0  # least distance of both from the cut

    @classmethod
    def of(cls, request: Request, goal: Goal, values: Tensor, residuals: Tensor, shift: float) -> MissedMultiplicity:
        """Return the copies, from Ritz values of (A + ``shift``)⁻¹, descending, and their residuals."""
        w, ceiling, same = goal.wanted, goal.ceiling, 10 * request.round_off
        # Lists are fastest for so few numbers. Replace zero, which has no reciprocal.
        inverse, left = [x or 1e-200 for x in values.tolist()], residuals.tolist()
        eigenvalues, first = [1 / x - shift for x in inverse], min(w, len(inverse) - 1)
        # If the cut goes through a cluster, copies in it do not matter, but copies of smaller values do.
        after = eigenvalues[first]
        # If copies of the ceiling continue beyond the wanted values, the next search finds them.
        known_up_to = ceiling if ceiling is not None and 0 < ceiling < after - same else None
        limit = after - same if known_up_to is None else known_up_to + same
        known = sum(x < limit for x in eigenvalues[:w])
        if known:
            last, low = eigenvalues[known - 1], inverse[known - 1]
        elif known_up_to is not None:
            last, low = known_up_to, 1 / (known_up_to + shift)
        else:
            return cls()
        # Residuals limit the resolution of values, and counting too many copies only costs time. Of more nearly equal
        # values than columns a block holds mixtures, so values between link the first and the last.
        unsure = [same + 2 * (size / x) / x for size, x in zip(left, inverse, strict=True)]
        most = run = min(known, 1)
        for i in range(1, len(eigenvalues) if known else 0):
            is_linked = eigenvalues[i] - eigenvalues[i - 1] <= 4 * (unsure[i] + unsure[i - 1])
            if i >= known and not is_linked:
                break
            run = run + 1 if is_linked else 1
            most = max(most, run)
        settled = w
        while settled < len(inverse) and left[settled] <= SETTLED * (low - inverse[settled]):
            settled += 1
        # Not half of the gap, because in the middle of a symmetric spectrum a pivot is zero.
        room = 0.4 * (after - last)
        high = inverse[max(min(settled, len(inverse) - 1), first)]
        return cls(
            most=most,
            rate=math.acosh(1 + 2 * max(low / high - 1, 0.0)),
            start=0.5 * math.log(request.operator.num_nodes / max((low - inverse[first]) / inverse[0], 1e-15)),
            known=known,
            cut=last + room,
            room=room,
        )

    def missing(self, degree: float, spare: int) -> float:
        """Return the degrees that a space lacks before it has all copies almost surely; ``spare``: p − f."""
        if self.rate == math.inf:
            return 0.0
        if spare <= 0 or self.rate == 0:
            return math.inf
        # Probability of overlooking a copy: its share is below 0.05 in each of four random columns.
        missed = 5e-6
        return (self.start - math.log(missed) / spare + math.log(2)) / self.rate - degree
