"""Block Lanczos on the inverse, by sparse factors."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._process import one_blas_thread
from torch_lapeig._tuning import budget_of
from torch_lapeig.eigen.block_krylov import BlockKrylov
from torch_lapeig.eigen.blocks import basis, eigh, to_device, to_host
from torch_lapeig.eigen.direct import Factors, factors_of, shifted
from torch_lapeig.eigen.fill import Fill, predict_fill
from torch_lapeig.eigen.lobpcg import lobpcg
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solver import (
    SETTLED,
    Inverse,
    Progress,
    Request,
    RitzPairs,
    check_options,
    fewest_active,
    one_by_one,
    with_guards,
)
from torch_lapeig.eigen.trend import Trend

WIDTH = 4  # of a block: solves of four columns take the time of a bit more than two
BASIS = 48  # vectors, at least: next to a solve they cost little
POLISH = 20  # steps at the end, at most
OUTSIDE_TOLERANCE = 1e-6  # of pairs outside those that are found, whose values have to be told from these
MISSED = 5e-6  # probability to overlook a copy: of four random columns, that of a share of less than 0.05 in each
BYTES = 24  # of an entry of L and of its place in U: two numbers and two indices


@dataclass(frozen=True)
class ShiftInvert:
    """Block Lanczos on (A + σ)⁻¹ by sparse factors: for graphs whose factors stay sparse, however hard they are.

    Paths, trees, grids, meshes, roads and data on curves and surfaces are such graphs; on data of many dimensions the
    factors fill in. SuperLU orders by minimum degree. The wanted values become the largest and well apart, so that some
    eight blocks of four solves are enough (Grimes, Lewis & Simon 1994). A block holds as many copies of a multiple
    eigenvalue as it has columns; where that many are found, a random block is added to it. The pairs are
    improved by steps of `Lobpcg` until the residuals of A itself are as asked. The gradient's linear solve takes the
    same factors. Works in float64, on the CPU.

    Args:
        basis: vectors kept at most; default max(48, 3k).
        max_products: solves with the factors, at most.
        shift: σ over the bound of the spectrum: large enough that a singular A has factors.
        memory: bytes that the factors may take by prediction; None for the budget of the machine, infinite for no
            limit. Beyond, the solve ends with a ConvergenceError before anything is factorised.
        seed: of the random blocks.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
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
        _checks.keep(self, shift=_checks.check_positive(self.shift, "shift"))
        if self.memory not in (None, math.inf):
            _checks.keep(self, memory=_checks.check_number(self.memory, "memory", 0))

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """``k`` pairs and some guards.

        Raises:
            TypeError: an operator that gives products only. ConvergenceError: factors that would take too much memory.
        """
        with one_blas_thread():
            return one_by_one(self._solve, operator, k, with_guards(k), tolerance, start, progress)

    def factors(self, operator: Operator) -> Factors:
        """The factors of one graph, if they fit into the memory. Raises: as a call."""
        matrix = shifted(operator, self.shift, self)
        memory, n = budget_of(torch.device("cpu")).factors if self.memory is None else self.memory, matrix.shape[0]
        if BYTES * n * n / 2 > memory and (needed := bytes_of(predict_fill(matrix))) > memory:
            raise _checks.ConvergenceError(
                f"the factors of the matrix of {n} nodes would take about {needed / 2**30:.3g} GiB, more than memory="
                f"{memory / 2**30:.3g} GiB of {self}; use Lobpcg() or the default solver"
            )
        return factors_of(matrix, self)

    def _solve(self, request: Request) -> RitzPairs:
        operator, null = request.operator, request.null
        inverse = self.factors(operator)
        x, solves, is_certain = self._converge(request, inverse)

        def shortfall(iteration: int, values: Tensor, residuals: Tensor) -> tuple[float, float]:
            return request.shortfall(solves + iteration, values, residuals)

        # What Lanczos leaves in a vector are small parts of all others. Those of large eigenvalues hardly show in the
        # inverse, but in the residuals of A. The factors take them out in a step or two.
        values, x, more, is_done = lobpcg(operator, x, null, inverse, shortfall, POLISH)
        return request.answer(values, x, solves + more, is_certain and is_done, inverse)

    def _converge(self, request: Request, inverse: Inverse) -> tuple[Tensor, int, bool]:
        """(A + σ)⁻¹ X for Ritz vectors X of as many columns as asked; solves; and whether none is overlooked.

        Where a value has as many copies as the block has columns there may be more: outside the pairs that are found
        the smallest are looked for, until there is none that was not known.
        """
        x, solves, is_certain, is_full = self._space(request, inverse)
        operator, w = request.operator, request.wanted
        while is_full and solves < self.max_products:
            known = torch.cat([request.null, basis(operator, x[:, :w], request.null)], 1)
            free = fewest_active(operator) - known.shape[1]
            if free <= 0:
                return x, solves, True
            few, some = min(WIDTH, free), min(2 * WIDTH, free)
            sharp = min(request.tolerance, OUTSIDE_TOLERANCE)
            others = dataclasses.replace(request, null=known, wanted=few, columns=some, tolerance=sharp, progress=None)
            # Of the same random block nothing would be left outside.
            again = dataclasses.replace(self, seed=self.seed + solves, max_products=self.max_products - solves)
            y, more, is_certain, _ = again._space(others, inverse, are_some=True)
            solves += more
            least = float(_rayleigh_ritz(operator, y, known)[0][0])
            values, x = _rayleigh_ritz(operator, torch.cat([x, y], 1), request.null)
            x = x[:, : request.columns]
            # The next value is the least outside the wanted ones, or more copies have to be looked for.
            is_full = is_certain and least < float(values[min(w, len(values) - 1)]) - 10 * float(operator.round_off)
        return x, solves, is_certain

    def _space(self, request: Request, inverse: Inverse, *, are_some: bool = False) -> tuple[Tensor, int, bool, bool]:
        """What `_converge` gives, from one space that begins with one block; and whether a value has filled that.

        ``are_some``: some of the smallest pairs will do, of a value with more copies than columns those that there are.
        """
        operator, null, columns = request.operator, request.null, request.columns
        free = fewest_active(operator) - null.shape[1]
        size = min(free, max(BASIS, 3 * columns) if self.basis is None else max(self.basis, columns + 2 * WIDTH))
        space = BlockKrylov(operator, inverse, null, size, min(WIDTH, free), self.seed)
        inner, block = dataclasses.replace(request, progress=None), space.random()
        shift = self.shift * float(operator.bound)
        trend, look = Trend(WIDTH), 2 * columns
        while True:
            space.extend(block[:, : space.room])
            if space.products < min(look, self.max_products) and 0 < space.rest.shape[1] <= space.room:
                block = space.following()
                continue
            values, turn, residuals = space.ritz()
            round_off = float(operator.round_off) / float(operator.bound) * float(values[0])
            shortfall, allowed = inner.shortfall(space.products, 2 * values[0] - values, residuals, round_off)
            if request.progress is not None:  # in terms of A, as far as the inverse tells
                scale = allowed / float(values[min(request.wanted, len(values)) - 1]) ** 2
                request.progress(space.products, shortfall * scale, scale)
            trend.add(space.products, shortfall)
            look = space.products + trend.until_next
            is_solved = space.filled >= columns and shortfall <= 1
            found = Copies.of(request, values, residuals, shift) if is_solved else None
            if found is not None and are_some:
                found = dataclasses.replace(found, most=min(found.most, space.width - 1))
            is_whole = space.filled == free
            is_certain = is_whole or (found is not None and found.are_found(space.degree, space.width))
            is_full = found is not None and found.most >= space.width and not is_whole
            if is_certain or is_full or space.products >= self.max_products:
                return space.images(turn[:, :columns]), space.products, is_certain, is_full
            block = space.following()
            if space.room < block.shape[1]:
                kept = min(columns + WIDTH, size - block.shape[1])
                space.keep(values[:kept], turn[:, :kept])


def _rayleigh_ritz(operator: Operator, x: Tensor, null: Tensor) -> tuple[Tensor, Tensor]:
    """Ritz values, ascending, on the host, and vectors of the span of ``x`` outside the null vectors."""
    x = basis(operator, x, null)
    values, turn = eigh(*to_host(operator.inner(x, operator.matmul(x))))
    return values, x @ to_device(turn, x)


@dataclass(frozen=True)
class Copies:
    """What a block Krylov space may have overlooked: copies of the wanted values of the inverse.

    A space of degree d from p random vectors holds the image of each polynomial of degree d. That of Chebyshev which
    stays in [−1, 1] on the values not yet known enlarges the wanted ones by a factor for each degree. A vector of an
    eigenspace is overlooked if its share in the block, outside the f copies that are found, is too small for that: in
    p − f columns.

    Attributes:
        most: f, the largest number of copies that the block has found of a value.
        rate: logarithm of the growth for each degree; infinite where no copy could make a difference.
        start: logarithm of what the share of a vector in a random one has to grow by, on average.
    """

    most: int = 0
    rate: float = math.inf
    start: float = 0.0

    @classmethod
    def of(cls, request: Request, values: Tensor, residuals: Tensor, shift: float) -> Copies:
        """Those of Ritz values of the inverse, descending, with their residuals; ``shift``: of the inverse."""
        w, same = request.wanted, 10 * float(request.operator.round_off)
        of_a, following = 1 / values - shift, values[min(w, len(values) - 1) :]
        # Where the cut goes through a cluster, its own copies make no difference: those of the values before it do.
        below = of_a[:w][of_a[:w] < 1 / following[0] - shift - same]
        if len(below) == 0:
            return cls()
        # Values are as far apart as their residuals allow to tell: too many copies counted only cost time.
        unsure = same + 2 * (residuals / values.square())[: len(below), None]
        low = float(values[len(below) - 1])
        settled = int((residuals[w:] <= SETTLED * (low - values[w:])).long().cumprod(0).sum())
        high = float(following[min(settled, len(following) - 1)])
        distance = (low - float(following[0])) / float(values[0])
        return cls(
            most=int(((below[:, None] - of_a).abs() <= unsure).sum(1).max()),
            rate=math.acosh(1 + 2 * max(low / high - 1, 0.0)),
            start=0.5 * math.log(request.operator.num_nodes / max(distance, 1e-15)),
        )

    def are_found(self, degree: int, width: int) -> bool:
        """Whether a space of this degree from a random block has all, but with the probability `MISSED`."""
        if self.most >= width:
            return False
        share = math.log(MISSED) / (width - self.most)
        return degree * self.rate - math.log(2) >= self.start - share


def bytes_of(fill: Fill) -> float:
    """Memory that the two factors of a predicted fill take."""
    return BYTES * fill.entries
