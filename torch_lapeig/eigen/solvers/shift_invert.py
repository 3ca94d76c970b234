"""Block Lanczos on the inverse, by sparse factors."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.block_krylov import BlockKrylov, Trend
from torch_lapeig.eigen.solvers.blocks import basis, rayleigh_ritz, residual
from torch_lapeig.eigen.solvers.factors import Factors, Shifted, count_below, factors_of, shifted, structure_within
from torch_lapeig.eigen.solvers.lobpcg import lobpcg
from torch_lapeig.eigen.solvers.solver import (
    SETTLED,
    Inverse,
    Progress,
    Request,
    RitzPairs,
    Shortfall,
    check_options,
    one_by_one,
    with_guards,
)
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import budget_of

WIDTH = 4  # columns of a block: solves of four take the time of a bit more than two
POLISH_STEPS = 40  # maximum steps of `Lobpcg` at the end
COUNT_BLOCKS = 6  # blocks of solves that cost about as much as factors for a count of eigenvalues


@dataclass(frozen=True)
class ShiftInvert:
    """Block Lanczos on (A + σ)⁻¹ by sparse factors: for graphs whose factors stay sparse, however hard they are.

    Paths, trees, grids, meshes, roads and data on curves and surfaces are such graphs; on data of many dimensions the
    factors fill in. Nodes are ordered by minimum degree. The wanted values become the largest and well apart, so that
    some eight blocks of four solves are enough (Grimes, Lewis & Simon 1994). A block holds as many copies of a multiple
    eigenvalue as it has columns; where there may be more, the eigenvalues below are counted by Sylvester's law of
    inertia, and lacking ones are searched for outside the found pairs. The pairs are improved by steps
    of `Lobpcg` until the residuals of A itself are as asked. The gradient's linear solve takes the same factors. Works
    in float64, on the CPU.

    Args:
        basis: vectors kept at most; default max(48, 3k).
        max_products: solves with the factors, at most.
        shift: σ over the bound of the spectrum: large enough that a singular A has factors. A larger one is taken where
            rounding of the entries, to float32 at most, has made an eigenvalue negative.
        memory: bytes that the factors may take; None for the budget of the machine, infinite for no limit. Beyond, the
            solve ends with a ConvergenceError, before anything is factorised where there are compiled loops.
        seed: of the random blocks.

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
        checks.keep(self, shift=checks.check_positive(self.shift, "shift"))
        if self.memory is not None and not (isinstance(self.memory, float) and self.memory == math.inf):
            checks.keep(self, memory=checks.check_number(self.memory, "memory", 0))

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """Return ``k`` pairs and some guards.

        Raises:
            TypeError: an operator that gives products only. ConvergenceError: factors that would take too much memory;
                an eigenvalue that is negative beyond rounding.
        """
        return one_by_one(self._solve, operator, k, with_guards(k), tolerance, progress)

    def factors(self, operator: Operator) -> Factors:
        """Return the factors of one graph, if they fit into the memory; raise as a call does."""
        matrix, memory = shifted(operator, self.shift, self), self.budget
        is_known = matrix.is_readable and memory < math.inf  # SuperLU's fill is known only from the factors
        if is_known and structure_within(matrix, memory) is None:
            raise self._too_large(matrix)
        factors = factors_of(matrix, self)
        if factors.bytes > memory:
            raise self._too_large(matrix)
        return factors

    def _too_large(self, matrix: Shifted) -> checks.ConvergenceError:
        """Return the error of factors that do not fit into the memory."""
        return checks.ConvergenceError(
            f"the factors of the matrix of {len(matrix.diagonal)} nodes would take more than memory="
            f"{self.budget / 2**30:.3g} GiB of {self}; use Lobpcg() or the default solver"
        )

    @property
    def budget(self) -> float:
        """Return the number of bytes that the factors may take."""
        return budget_of(torch.device("cpu")).factors if self.memory is None else self.memory

    def _solve(self, request: Request) -> RitzPairs:
        inverse = self.factors(request.operator)
        try:
            found = self._attempt(request, inverse)
        except _IndefiniteError as error:  # by the rounding of the entries, perhaps to float32
            return dataclasses.replace(self, shift=max(2 * self.shift, error.share))._solve(request)
        if bool(found.finished) or 2 * found.iterations >= self.max_products:
            return found
        # A copy found last may have closed the gap to which the tolerance was relative: now to round-off.
        again = dataclasses.replace(
            self, seed=self.seed + 1, max_products=self.max_products - found.iterations
        )._attempt(request, inverse, tolerance=0.0)
        solves = found.iterations + again.iterations
        if not bool(again.finished):  # the steps at the end begin with the first space
            again = dataclasses.replace(self, max_products=found.iterations)._attempt(request, inverse)
        return again._replace(iterations=solves)

    def _attempt(self, request: Request, inverse: Inverse, tolerance: float | None = None) -> RitzPairs:
        """Return the pairs from one random start; ``tolerance`` of the space if it is not the pairs' tolerance."""
        goal = request if tolerance is None else dataclasses.replace(request, tolerance=tolerance)
        explored = self._converge(goal, inverse)
        solves, is_certain = explored.solves, explored.verdict.is_certain
        values, x, missing = _ritz_pairs_of(request, explored)
        may_repeat = tolerance is None and 2 * solves < self.max_products
        # Up to a factor of 1000, steps at the end are cheaper than a restart to round-off.
        is_blunt = may_repeat and is_certain and 1000 < missing < math.inf
        if is_blunt or (is_certain and missing <= 1):
            return request.answer(values, x, solves, not is_blunt, inverse)

        def shortfall(iteration: int, values: Tensor, residuals: Tensor) -> Shortfall:
            return request.shortfall(solves + iteration, values, residuals)

        if (lost := request.columns - x.shape[1]) > 0:  # where few solves are allowed
            x = torch.cat([x, request.operator.random(lost, self.seed)[0].to(x)], 1)
        # Lanczos leaves small parts of all other vectors in a vector. Parts of large eigenvalues hardly show in the
        # inverse, but do in the residuals of A. The factors remove them in a step or two.
        found = lobpcg(request.operator, x, request.null, inverse, shortfall, POLISH_STEPS)
        is_done = is_certain and found.finished
        return request.answer(found.values, found.vectors, solves + found.iterations, is_done, inverse)

    def _converge(self, request: Request, inverse: Inverse) -> Explored:
        """Return (A + σ)⁻¹ X for as many Ritz vectors X as asked, and whether copies are overlooked.

        The pairs that a count shows to be lacking are searched for outside the found pairs, until all are found.
        Without a count, where a value has as many copies as the block has columns, there may be more: the smallest
        outside are searched for until no new one comes.
        """
        found = self._space(request, inverse)
        x, solves, verdict = found.images, found.solves, found.verdict
        operator, w = request.operator, request.wanted
        while verdict.lacking and solves < self.max_products:
            known = torch.cat([request.null, basis(operator, x[:, :w], request.null)], 1)
            free, ceiling = operator.fewest_active - known.shape[1], _ceiling_of(request, x)
            if free <= 0 or ceiling is None:
                return Explored(x, solves, Verdict(True))
            few, (needs, sharp) = min(verdict.lacking, free), verdict.outside(request.tolerance)
            others = dataclasses.replace(
                request, null=known, wanted=few, columns=min(few + WIDTH, free), tolerance=sharp, progress=None
            )
            # With the first random block, nothing would be left outside.
            again = dataclasses.replace(self, seed=self.seed + solves, max_products=self.max_products - solves)
            found = again._space(others, inverse, needs, ceiling)
            solves += found.solves
            outside, _ = rayleigh_ritz(operator, found.images, known)
            least = float(outside[0])
            values, x = rayleigh_ritz(operator, torch.cat([x, found.images], 1), request.null)
            x = x[:, : request.columns]
            is_next = least >= float(values[min(w, len(values) - 1)]) - 10 * float(operator.round_off)
            verdict = verdict.after(found.verdict.is_certain, values, least, is_next)
        return Explored(x, solves, verdict)

    def _space(
        self, request: Request, inverse: Inverse, needs: Needs = "all", ceiling: float | None = None
    ) -> Explored:
        """Return (A + σ)⁻¹ X from one space that begins with one block, and a verdict on the copies it may lack.

        Copies make a difference up to a ``ceiling``; None stands for the next value.
        """
        operator, null, columns = request.operator, request.null, request.columns
        free = operator.fewest_active - null.shape[1]
        # Next to a solve, vectors are cheap.
        most = max(48, 3 * columns) if self.basis is None else max(self.basis, columns + 2 * WIDTH)
        size = min(free, most)
        space = BlockKrylov(operator, inverse, null, size, min(WIDTH, free), self.seed)
        inner = dataclasses.replace(request, progress=None)
        shift, may_count = self.shift * float(operator.bound), needs == "all"
        # No space has converged before: a check takes as long as three solves.
        trend, look = Trend(WIDTH), 2 * columns + min(columns, 12)
        while True:
            space.fill(min(look, self.max_products))
            values, residuals = space.look()
            _check_definite(values, shift, request.bound)
            round_off = float(operator.round_off) / float(operator.bound) * float(values[0])
            shortfall, allowed = inner.shortfall(space.products, 2 * values[0] - values, residuals, round_off)
            if request.progress is not None:  # in terms of A, approximated by the inverse
                scale = allowed / float(values[min(request.wanted, len(values)) - 1]) ** 2
                request.progress(space.products, shortfall * scale, scale)
            trend.add(space.products, shortfall)
            look = space.products + trend.until_next
            verdict = Verdict(space.filled == free)
            if not verdict.is_certain and space.filled >= columns and shortfall <= 1:
                copies = Copies.of(request, values, residuals, shift, ceiling)
                verdict = self._verdict(request, inverse, copies, space, needs, may_count)
                may_count = False
            if verdict.is_certain or verdict.lacking or space.products >= self.max_products:
                return Explored(space.images(space.ritz(columns)[1]), space.products, verdict)
            if space.is_full:
                kept = min(columns + WIDTH, size - space.following)
                values, turn = space.ritz(kept)
                space.keep(values[:kept], turn)

    def _verdict(
        self, request: Request, inverse: Inverse, copies: Copies, space: BlockKrylov, needs: Needs, may_count: bool
    ) -> Verdict:
        """Return the verdict on a converged space; by a count of eigenvalues where this is cheaper than more solves."""
        if needs == "any":
            return Verdict(True)
        most = copies.most if needs == "all" else min(copies.most, space.width - 1)
        missing = copies.missing(space.degree, space.width - most)
        if missing <= 0:
            return Verdict(True)
        if may_count and missing > COUNT_BLOCKS and (inertia := self._inertia(request, inverse, copies)) is not None:
            if inertia.number > request.columns:
                return Verdict(False, WIDTH)
            lacking = inertia.number - copies.known
            return Verdict(lacking == 0, lacking, inertia)
        return Verdict(False, 0 if most < space.width else WIDTH)

    def _inertia(self, request: Request, inverse: Inverse, copies: Copies) -> Inertia | None:
        """Return the number of eigenvalues before the next one, without null ones; None where it cannot be counted."""
        memory = dataclasses.replace(self, memory=None).budget if self.memory == math.inf else self.budget
        if not isinstance(inverse, Factors) or 2 * inverse.bytes > memory:
            return None
        below = count_below(request.operator, copies.cut, copies.room, self)
        number = -1 if below is None else below - request.null.shape[1]
        return None if number < copies.known else Inertia(copies.cut, number)


def _ritz_pairs_of(request: Request, explored: Explored) -> tuple[Tensor, Tensor, float]:
    """Return Ritz values and vectors of the span of columns, and their shortfall, infinite for dependent columns."""
    operator, columns, solves = request.operator, explored.images.shape[1], explored.solves
    values, x = rayleigh_ritz(operator, explored.images, request.null[:, :0])
    if x.shape[1] < columns:
        return values, x, math.inf
    _, residuals = residual(operator, x, operator.matmul(x), values)
    return values, x, request.shortfall(solves, values, residuals).ratio


class _IndefiniteError(Exception):
    """Error of an A + σ with a small negative eigenvalue. ``share``: a shift over the bound that removes it."""

    def __init__(self, share: float) -> None:
        super().__init__(share)
        self.share = share


def _check_definite(values: Tensor, shift: float, bound: float) -> None:
    """Raise where Ritz values of (A + σ)⁻¹, descending, show that it is not positive definite.

    Raises:
        _IndefiniteError: within the rounding to float32. ConvergenceError: beyond that.
    """
    least = float(values[-1])
    # Up to 1e-10 of the largest value, a negative value may be round-off.
    if not (least < -0.5 / bound and least < -1e-10 * float(values[0])):
        return
    negative = shift - 1 / least  # of A, its size
    if negative > 1e-5 * bound:  # more than rounding to float32 may make of zero
        raise checks.ConvergenceError(
            f"the matrix must be positive semidefinite, got an eigenvalue of about {-negative:.1e}; add a number to "
            "its diagonal and take it from the eigenvalues"
        )
    raise _IndefiniteError(2 * negative / bound)


class Inertia(NamedTuple):
    """Number of eigenvalues of A below a cut, without the null vectors' ones."""

    cut: float
    number: int


# All of the smallest pairs; some: existing copies of a value with more copies than columns; any: copies may be
# overlooked.
Needs = Literal["all", "some", "any"]


class Verdict(NamedTuple):
    """Verdict on a space: whether it has overlooked nothing, how many to search for outside, and a count of all."""

    is_certain: bool
    lacking: int = 0
    inertia: Inertia | None = None

    def outside(self, tolerance: float) -> tuple[Needs, float]:
        """Return which pairs to search for outside, and their tolerance, given the tolerance of all pairs."""
        if self.inertia is None:  # they must be resolved from the found values
            return "some", min(tolerance, 1e-6)
        return "any", 1e-3 if tolerance else 0.0

    def after(self, is_certain: bool, values: Tensor, least: float, is_next: bool) -> Verdict:
        """Return the verdict after a search outside.

        Args:
            is_certain: whether that search overlooked nothing. values: with the new ones. least: the smallest of
                these; is_next: whether no wanted one is larger.
        """
        if self.inertia is None:  # the next value is found, or a search for more copies follows
            return Verdict(is_certain, WIDTH * (is_certain and not is_next))
        lacking = max(self.inertia.number - int((values < self.inertia.cut).sum()), 0)
        is_there = least < self.inertia.cut  # or none is found where one was counted
        return Verdict(is_certain and lacking == 0, lacking * is_there, self.inertia)


class Explored(NamedTuple):
    """Result of a search: (A + σ)⁻¹ X ``(N, m)`` of Ritz vectors X, the solves so far, and the verdict."""

    images: Tensor
    solves: int
    verdict: Verdict


def _ceiling_of(request: Request, x: Tensor) -> float | None:
    """Return the largest value a copy of which would matter; None for none.

    Where the cut after the wanted values goes through a cluster, copies in it do not matter; smaller ones do.
    """
    w, values = request.wanted, rayleigh_ritz(request.operator, x, request.null)[0]
    wanted = values[:w]
    if len(values) > w:
        wanted = wanted[wanted < values[w] - 10 * request.round_off]
    return float(wanted[-1]) if len(wanted) else None


@dataclass(frozen=True)
class Copies:
    """Copies of wanted values of the inverse that a block Krylov space may have overlooked.

    A space of degree d from p random vectors holds the image of each polynomial of degree d. The Chebyshev one that
    stays in [−1, 1] on the values not yet known enlarges the wanted ones by a factor for each degree. A vector of an
    eigenspace is overlooked if its share in the block, outside the f copies that are found, is too small for that: in
    p − f columns.

    Attributes:
        most: f, the largest number of copies that the block has found of a value.
        rate: logarithm of the growth for each degree; infinite where no copy could make a difference.
        start: logarithm of the factor by which a vector's mean share in a random one has to grow.
        known: number of values a copy of which would matter.
        cut: between these, as eigenvalues of A, and the next; so far from both as ``room``.
    """

    most: int = 0
    rate: float = math.inf
    start: float = 0.0
    known: int = 0
    cut: float = 0.0
    room: float = 0.0

    @classmethod
    def of(
        cls, request: Request, values: Tensor, residuals: Tensor, shift: float, ceiling: float | None = None
    ) -> Copies:
        """Return the copies from Ritz values of the inverse, descending, with residuals; ``shift``: of the inverse.

        Outside pairs that are known, copies of values up to a ``ceiling``.
        """
        w, same = request.wanted, 10 * request.round_off
        # Lists are fastest for a few numbers. A value of zero has no reciprocal.
        inverse, left = [x or 1e-200 for x in values.tolist()], residuals.tolist()
        of_a, first = [1 / x - shift for x in inverse], min(w, len(inverse) - 1)
        # Where the cut goes through a cluster, copies in it do not matter: copies of smaller values do.
        after = of_a[first]
        # Nor does it end there while copies of the ceiling go on beyond the wanted ones: the next search finds them.
        known_up_to = ceiling if ceiling is not None and 0 < ceiling < after - same else None
        limit = after - same if known_up_to is None else known_up_to + same
        known = sum(x < limit for x in of_a[:w])
        if known:
            last, low = of_a[known - 1], inverse[known - 1]
        elif known_up_to is not None:
            last, low = known_up_to, 1 / (known_up_to + shift)
        else:
            return cls()
        # Residuals limit how far values are resolved: counting too many copies only costs time. Of more nearly equal
        # values than columns, a block holds mixtures: others link the first and the last.
        unsure = [same + 2 * (size / x) / x for size, x in zip(left, inverse, strict=True)]
        most = run = min(known, 1)
        for i in range(1, len(of_a) if known else 0):
            is_linked = of_a[i] - of_a[i - 1] <= 4 * (unsure[i] + unsure[i - 1])
            if i >= known and not is_linked:
                break
            run = run + 1 if is_linked else 1
            most = max(most, run)
        settled = w
        while settled < len(inverse) and left[settled] <= SETTLED * (low - inverse[settled]):
            settled += 1
        # Not half of the way: in the middle of a symmetric spectrum a pivot is zero.
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

    def missing(self, degree: int, spare: int) -> float:
        """Return the degrees that a space lacks until it surely has all copies; ``spare``: p − f."""
        if self.rate == math.inf:
            return 0.0
        if spare <= 0 or self.rate == 0:
            return math.inf
        # The probability to overlook a copy: its share is below 0.05 in each of four random columns.
        missed = 5e-6
        return (self.start - math.log(missed) / spare + math.log(2)) / self.rate - degree
