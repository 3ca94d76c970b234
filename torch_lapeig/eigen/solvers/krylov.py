"""Thick-restart Lanczos: few pairs of dense matrices, and of matrices that are known by their products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.blocks import (
    BlockOperator,
    basis,
    eigh,
    residual,
    same_on_all_ranks,
    to_device,
    to_host,
)
from torch_lapeig.eigen.solvers.lobpcg import lobpcg
from torch_lapeig.eigen.solvers.solver import (
    Inverse,
    Progress,
    Request,
    RitzPairs,
    check_options,
    one_by_one,
    with_guards,
)

# Return whether the smallest Ritz values ``(p,)`` with their residuals are good enough, given the number of the check.
Check = Callable[[int, Tensor, Tensor], bool]

# Residual of the next value over the gap to it: the gap then has five digits or more.
NEXT_RESIDUAL = 1e-3
ROUNDOFF_UNITS = 10.0  # lengths, in eps of the largest product, up to which a part outside the space is round-off
LEAST_LEFT = 0.1  # length of a unit vector outside the space, below which care is needed
LEAST_PIVOT, SOUND_PIVOT = 1e-3, 0.1  # least pivot of a block: for Cholesky factors, and to be orthonormal by them
ROWS_AT_ONCE = 24  # MKL takes four times as long for a product of 4 rows with 28 and more
CHECK_EVERY = 10  # products between two checks of Ritz pairs, which take the time of one or two products of 700²


@dataclass(frozen=True)
class Krylov:
    """Krylov spaces of one vector, orthogonalised in full and restarted by their Ritz vectors (Wu & Simon 2000).

    One product at a time finds a few pairs in the fewest products, but only one copy of a multiple eigenvalue. So the
    complement of the pairs found is searched from a new random vector, until its smallest value is none of the wanted
    ones. ARPACK, which restarts in the same way, leaves out this search and misses copies.

    Args:
        max_products: maximum number of products with one vector, at least 1.
        seed: of random vectors.

    Raises:
        TypeError, ValueError: an option of another type or out of range.

    >>> import torch
    >>> from torch_lapeig import Graph, Laplacian, eigenpairs
    >>> x = torch.rand(
    ...     300, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ... )
    >>> laplacian = Laplacian(Graph.from_dense(torch.exp(-(torch.cdist(x, x) ** 2))))
    >>> values = torch.linalg.eigvalsh(laplacian.to_dense())[:4]
    >>> torch.allclose(eigenpairs(laplacian, 4, Krylov()).values, values)
    True
    """

    max_products: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, max_products=1)

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """Return ``k`` pairs and the next one, or as many as there are nodes of positive degree."""
        return one_by_one(self._solve, operator, k, with_guards(k), tolerance, progress)

    def _solve(self, request: Request) -> RitzPairs:
        def is_done(checks: int, values: Tensor, residuals: Tensor) -> bool:
            return request.shortfall(checks, values, residuals)[0] <= 1

        free = int(request.operator.active_count) - request.null.shape[1]
        accuracy = (request.tolerance, request.round_off)
        extent = Extent(free, self.max_products, self.seed)
        found = pairs_with_copies(request.operator, request.null, request.wanted, extent, is_done, accuracy)
        values, x, checks, is_finished = found.values, found.vectors, found.checks, found.finished
        if request.wanted == 0:  # the null vectors are all that is wanted
            return request.answer(values, x, checks, is_finished)
        return request.answer(*self._confirmed(request, values, x, checks), checks, is_finished)

    def _confirmed(self, request: Request, values: Tensor, x: Tensor, checks: int) -> tuple[Tensor, Tensor]:
        """Return the pairs with residuals below the maximum that the gap allows, which copies may have changed."""
        _, norms = residual(request.operator, x, request.operator.matmul(x), to_device(values, x))
        if request.shortfall(checks + 1, values, to_host(norms)[0])[0] <= 1:
            return values, x
        values, x, _, _ = lobpcg(request.operator, x, request.null, None, request.shortfall, 20)
        return values, x


@dataclass(frozen=True)
class Inverted:
    """−(K + s M)⁻¹ M in the inner product of M: its smallest eigenvalues are of the smallest of the pencil.

    Args:
        operator: K, of the sums over nodes and of random columns.
        inverse: (K + s M)⁻¹ of blocks ``(N, p)``. weigh: M of blocks.
    """

    operator: BlockOperator
    inverse: Inverse
    weigh: Callable[[Tensor], Tensor]

    def matmul(self, y: Tensor) -> Tensor:
        """Return −(K + s M)⁻¹ M Y."""
        return self.inverse(self.weigh(y)).neg_()

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Return Xᵀ M Y."""
        return self.operator.inner(x, self.weigh(y))

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        """Return inner products of columns."""
        return self.operator.dots(x, self.weigh(y))

    def random(self, m: int, seed: int) -> Tensor:
        """Return random columns."""
        return self.operator.random(m, seed)


class Extent(NamedTuple):
    """Extent of a search by Krylov spaces.

    Attributes:
        free: dimension of the complement of what is known. most: maximum number of columns multiplied.
        seed: of random vectors. width: number of vectors of a block.
    """

    free: int
    most: int
    seed: int
    width: int = 1


class KrylovPairs(NamedTuple):
    """Smallest Ritz pairs of a Krylov space.

    Attributes:
        values: ``(p,)``, ascending, on the host. vectors: ``(N, p)``, orthonormal.
        products, checks: numbers of both. finished: whether the pairs were good enough.
    """

    values: Tensor
    vectors: Tensor
    products: int
    checks: int
    finished: bool


def pairs_with_copies(
    operator: BlockOperator,
    null: Tensor,
    wanted: int,
    extent: Extent,
    check: Check,
    accuracy: tuple[float, float],
) -> KrylovPairs:
    """Return the smallest pairs beside ``null``, with all copies of multiple values, and the next one where there is.

    Args:
        accuracy: tolerance relative to the gap, and the round-off of residuals.
    """
    free = extent.free
    found = smallest_pairs(operator, null, min(wanted + 1, free), extent, check)
    if wanted == 0:
        return found
    x, values = found.vectors[:, :wanted], found.values[:wanted]
    products, checks, is_finished = found.products, found.checks, found.finished
    tolerance, round_off = accuracy
    # The complement of the pairs found holds the next value, or copies that the first space could not find.
    is_known = x.shape[1] < wanted or x.shape[1] == free
    while is_finished and not is_known:
        known, most = torch.cat([null, x], 1), float(values[wanted - 1])

        def is_told(_: int, ritz: Tensor, residuals: Tensor, most: float = most) -> bool:
            value, r = float(ritz[0]), float(residuals[0])
            # The gap is not known yet: a copy that was missed lies within it.
            share = NEXT_RESIDUAL if value > most else tolerance
            return r <= max(share * abs(value - most), round_off)

        c = x.shape[1]
        rest = extent._replace(free=free - c, most=extent.most - products, seed=extent.seed + c + 1)
        found = smallest_pairs(operator, known, 1, rest, is_told)
        products, checks, is_finished = products + found.products, checks + found.checks, found.finished
        is_known = float(found.values[0]) >= most - round_off or x.shape[1] + 1 == free
        values, order = torch.cat([values, found.values]).sort(stable=True)
        x = torch.cat([x, found.vectors], 1).index_select(1, to_device(order, x))
    return KrylovPairs(values, x, products, checks, is_finished)


def smallest_pairs(operator: BlockOperator, known: Tensor, count: int, extent: Extent, check: Check) -> KrylovPairs:
    """Return the ``count`` smallest pairs orthogonal to ``known`` columns ``(N, c)`` of invariant subspaces.

    Products, inner products and random columns are those of the operator, which may have an inner product of its own.
    """
    free, limit, seed, width = extent
    space = Space(operator, known, min(max(2 * count + 20, 40), free), free, seed, width)
    for checks in itertools.count(1):
        space.expand(max(CHECK_EVERY, count))
        values, turn, residuals = space.ritz()
        is_told = len(values) >= count and check(checks, values[:count], residuals[:count])
        if (is_finished := is_told or space.is_whole) or space.products >= limit:
            vectors = space.combine(turn[:, :count]).mT
            return KrylovPairs(values[:count], vectors, space.products, checks, is_finished)
        if space.is_full:
            space.restart(values, turn, min(count + (len(values) - count) // 2, space.size - space.ahead))
    raise AssertionError


class Space:
    """Orthonormal rows ``(c + size + width, N)``: c known ones, a basis of a block Krylov space, and its next block.

    A space that begins with a block of p random vectors holds up to p vectors of each eigenspace. Vectors that lie in
    the space are left out of the next block; where none is left, a random block finds further copies.

    Args:
        known: orthonormal columns ``(N, c)`` of invariant subspaces. free: dimension of their complement.
        size: maximum number of basis vectors. seed: of random vectors.
        width: number of vectors of a block.

    Attributes:
        dimension: number of basis vectors. products: number of columns multiplied so far.
        following: number of vectors of the next block, once it is made.
        rest: rows ``(p, N)``, the last products without their part in the space: the next block before it is made.
    """

    def __init__(self, operator: BlockOperator, known: Tensor, size: int, free: int, seed: int, width: int = 1) -> None:
        self.operator, self.c, self.size, self.free, self.seed = operator, known.shape[1], size, free, seed
        self.width = min(width, free)
        self.rows = known.new_empty(self.c + size + self.width, len(known))
        self.rows[: self.c] = known.mT
        self.matrix = torch.zeros(
            size, size, dtype=known.dtype
        )  # A projected on the basis, on the host; lower triangle
        self.dimension = self.products = self._coupled = self.following = 0
        self._room = known.new_empty(self.width, len(known))
        self.rest, self.least, self.is_ready = self._room[:0], 0.0, False
        self._removed: list[float] | None = None  # squares of the parts of the rest in the space, once it has none
        self.eps = torch.finfo(known.dtype).eps

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is left outside the space."""
        return self.dimension == self.free

    @property
    def ahead(self) -> int:
        """Return the maximum number of vectors of the next block."""
        return min(self.width, self.free - self.dimension)

    @property
    def is_full(self) -> bool:
        """Return whether the next block does not fit in."""
        return self.dimension + self.ahead > self.size

    def expand(self, products: int) -> None:
        """Append blocks until so many more columns are multiplied, the next one does not fit in or none is left."""
        goal = self.products + products
        while self.products < goal and not self.is_full and not self.is_whole:
            self._extend()

    def _extend(self) -> None:
        """Append the next block and its products; blocks before the last two have none but after a restart."""
        if not self.is_ready:
            self._follow()
        if not self.following:
            self.free = self.dimension
            return
        j, p, near = self.dimension, self.following, self._coupled
        end, block, last = j + p, self.rows[self.c + j :][:p].mT, self.rows[self.c + near : self.c + j + p]
        self.rest = self._room[:p].copy_(self.operator.matmul(block).mT)
        column = self._remove_(self.rest, last)
        self.matrix[j:end, near:end] = column.mT
        self.least = max(self.least, ROUNDOFF_UNITS * self.eps * float(torch.linalg.vector_norm(column)))
        self.dimension, self._coupled, self.is_ready, self._removed = end, j, False, None
        self.products += p

    def _settle(self) -> list[float]:
        """Move parts of the rest in the space, which round-off has left, to the projected matrix; return their squares.

        The inverse of a nearly singular matrix enlarges them.
        """
        if self._removed is None:
            parts = self._remove_(self.rest, self.rows[: self.c + self.dimension])
            self.matrix[self.dimension - len(self.rest) : self.dimension, : self.dimension] += parts[self.c :].mT
            self._removed = parts.square().sum(0).tolist()
        return self._removed

    def _follow(self) -> None:
        """Make the next block of the rest: orthonormal, orthogonal to the space, and random where nothing is left."""
        count, p = self.c + self.dimension, len(self.rest)
        known = self.rows[:count]
        self.following = p
        if 0 < p <= self.ahead and self._is_made(self.rows[count : count + p], known):
            return
        q = self._remaining(known.mT)[:, : self.ahead]
        if not q.shape[1]:
            q = basis(self.operator, self._random(self.ahead), known.mT)
        self.following = q.shape[1]
        self.rows[count : count + self.following] = q.mT

    def _remaining(self, known: Tensor) -> Tensor:
        """Return an orthonormal basis of the rest outside known columns, without what is round-off."""
        size = to_host(self.operator.dots(self.rest.mT, self.rest.mT))[0].sqrt()
        return basis(self.operator, self.rest.mT[:, to_device(size > min(self.least, 1e-8), known)], known)

    def _is_made(self, block: Tensor, known: Tensor) -> bool:
        """Store an orthonormal basis of the rest as the next block, by Cholesky factors of its Gram matrix.

        Once is enough where no row nearly depends on others. Return False where rows do, or nearly lie in the space.
        """
        removed = self._settle()
        for least in (self.least, LEAST_LEFT, LEAST_LEFT):
            (gram,) = to_host(self.operator.inner(self.rest.mT, self.rest.mT))
            squares = gram.diagonal().tolist()
            if not all(least**2 < square < math.inf for square in squares) or (turn := _whitening(gram)) is None:
                return False
            torch.mm(to_device(turn.matrix, block), self.rest, out=block)
            if turn.is_sound and all(x <= square for x, square in zip(removed, squares, strict=True)):
                return True
            removed = self._remove_(self.rest.copy_(block), known).square().sum(0).tolist()
        return False

    def _remove_(self, block: Tensor, known: Tensor) -> Tensor:
        """Remove the parts of a block in the span of known rows; return their products with it, on the host."""
        found = []
        for rows in known.split(ROWS_AT_ONCE) if len(block) > 1 else (known,):
            found.append(self.operator.inner(rows.mT, block.mT))
            block.addmm_(found[-1].mT, rows, alpha=-1)
        return to_host(torch.cat(found) if len(found) > 1 else found[0])[0]

    def _random(self, m: int) -> Tensor:
        """Return columns ``(N, m)`` that differ at each call."""
        self.seed += 1000
        noise = self.operator.random(m, self.seed - 1000)
        return noise.reshape(noise.shape[-2:]).mT.contiguous().mT

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return Ritz values, ascending, their coordinates in the space and the norms of their residuals."""
        j, p = self.dimension, len(self.rest)
        self._settle()
        values, turn = same_on_all_ranks(self.operator, *eigh(self._projected()))
        (gram,), tail = to_host(self.operator.inner(self.rest.mT, self.rest.mT)), turn[j - p :]
        return values, turn, (tail * (gram @ tail)).sum(0).clamp_min(0).sqrt()

    def _projected(self) -> Tensor:
        """Return A projected on the basis."""
        lower = self.matrix[: self.dimension, : self.dimension].tril()
        return lower + lower.tril(-1).mT

    def combine(self, turn: Tensor) -> Tensor:
        """Return combinations ``(p, N)`` of the basis by columns ``(dimension, p)``."""
        return to_device(turn, self.rows).mT @ self.rows[self.c : self.c + len(turn)]

    def restart(self, values: Tensor, turn: Tensor, keep: int) -> None:
        """Reduce the space to its first Ritz vectors, and the next block, which holds the residual of each."""
        self._follow()
        block = self.rows[self.c + self.dimension :][: self.following].clone()
        self.rows[self.c : self.c + keep] = self.combine(turn[:, :keep])
        self.rows[self.c + keep :][: len(block)] = block
        self.matrix.zero_().diagonal()[:keep] = values[:keep]
        self.dimension, self._coupled, self.is_ready = keep, 0, True


class Whitening(NamedTuple):
    """Lower triangular T with T G Tᵀ = 1 for a Gram matrix G, and whether round-off leaves the rows orthonormal."""

    matrix: Tensor
    is_sound: bool


def _whitening(gram: Tensor) -> Whitening | None:
    """Return the whitening of rows with a Gram matrix; None where they nearly depend on others."""
    g = gram.numpy()  # whose calls take less time than torch's
    size = np.sqrt(g.diagonal())
    try:
        factor = np.linalg.cholesky(g / size / size[:, None])
    except np.linalg.LinAlgError:
        return None
    pivot = factor.diagonal().min()
    if pivot < LEAST_PIVOT:
        return None
    return Whitening(torch.from_numpy(np.linalg.inv(factor) / size), bool(pivot > SOUND_PIVOT))
