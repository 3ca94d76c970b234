"""Thick-restart Lanczos: few pairs of dense matrices, and of matrices that are known by their products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.blocks import (
    BlockOperator,
    basis,
    eigh,
    residual,
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
from torch_lapeig.native import loops
from torch_lapeig.native.sparse import BLOCK, LEAST_LEFT, BlockLimits, NextBlock, next_block

# Return whether the smallest Ritz values ``(p,)`` with their residuals are good enough, given the number of the check.
Check = Callable[[int, Tensor, Tensor], bool]

# Residual of the next value over the gap to it: the gap then has five digits or more.
NEXT_RESIDUAL = 1e-3
ROUNDOFF_UNITS = 10.0  # lengths, in eps of the largest product, up to which a part outside the space is round-off
ROWS_AT_ONCE = 24  # MKL takes four times as long for a product of 4 rows with 28 and more
CHECK_EVERY = 5  # products between two checks of Ritz pairs, which take the time of one or two products of 700²
FEWEST_CHECKS = 3  # of a search for copies: a random start may hold next to nothing of one, until products amplify it


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
    """−(A + σ)⁻¹, or −(K + s M)⁻¹ M in the inner product of M: its smallest eigenvalues are of the smallest of A.

    Args:
        operator: of the sums over nodes, on one machine, and of random columns.
        inverse: (A + σ)⁻¹ of blocks ``(N, p)``. mass: M, dense or sparse; None for the identity.
    """

    operator: BlockOperator
    inverse: Inverse
    mass: Tensor | None = None

    def weighted(self, y: Tensor) -> Tensor:
        """Return M Y."""
        return y if self.mass is None else self.mass @ y

    @property
    def has_plain_sums(self) -> bool:
        """Return whether C may sum over nodes, with a mass that it reads; see `Operator.has_plain_sums`."""
        mass, is_plain = self.mass, self.operator.has_plain_sums
        if mass is None or not is_plain or mass.layout is not torch.sparse_csr:
            return is_plain and mass is None
        return loops.csr_supported(mass.crow_indices(), mass.col_indices(), mass.values())

    def matmul(self, y: Tensor) -> Tensor:
        """Return −(K + s M)⁻¹ M Y."""
        return self.inverse(self.weighted(y)).neg_()

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Return Xᵀ M Y."""
        return self.operator.inner(x, self.weighted(y))

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        """Return inner products of columns."""
        return self.operator.dots(x, self.weighted(y))

    def overlaps(self, w: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """Return inner products of a block with itself, column by column, and with others."""
        weighted = self.weighted(w)
        return self.operator.dots(w, weighted), *(self.operator.inner(q, weighted) for q in others)

    def same_on_all_ranks(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return small tensors of the one machine."""
        return tensors

    def random(self, m: int, seed: int) -> Tensor:
        """Return random columns."""
        return self.operator.random(m, seed)


class Extent(NamedTuple):
    """Extent of a search by Krylov spaces."""

    free: int  # dimension of the complement of what is known
    most: int  # maximum number of columns multiplied
    seed: int  # of random vectors
    width: int = 1  # number of vectors of a block


class KrylovPairs(NamedTuple):
    """Smallest Ritz pairs of a Krylov space."""

    values: Tensor  # ``(p,)``, ascending, on the host
    vectors: Tensor  # ``(N, p)``, orthonormal
    products: int  # number of products
    checks: int  # number of checks
    finished: bool  # whether the pairs were good enough


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

        def is_told(number: int, ritz: Tensor, residuals: Tensor, most: float = most) -> bool:
            value, r = float(ritz[0]), float(residuals[0])
            # The gap is not known yet: a copy that was missed lies within it.
            share = NEXT_RESIDUAL if value > most else tolerance
            return number >= FEWEST_CHECKS and r <= max(share * abs(value - most), round_off)

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
            space.restart(values, turn, min(count + (len(values) - count) // 2, space.size - space.following))
    raise AssertionError


class Space:
    """Orthonormal rows ``(c + size + width, N)``: c known ones, a basis of a block Krylov space, and its next block.

    A space that begins with a block of p random vectors holds up to p vectors of each eigenspace. Vectors that lie in
    the space are left out of the next block; where none is left, a random block finds further copies.

    With V the basis, T = Vᵀ A V, E the last columns of 1 and Q the next block, A V = V T + Q C Eᵀ.

    Args:
        known: orthonormal columns ``(N, c)`` of invariant subspaces. free: dimension of their complement.
        size: maximum number of basis vectors. seed: of random vectors.
        width: number of vectors of a block.

    Attributes:
        dimension: number of basis vectors. products: number of columns multiplied so far.
        following: number of vectors of the next block. coupling: C ``(following, p)``, on the host.
        degree: largest degree of the polynomials of A whose images of the first block it holds: the number of blocks,
            or infinite once the space was invariant.
    """

    def __init__(self, operator: BlockOperator, known: Tensor, size: int, free: int, seed: int, width: int = 1) -> None:
        self.operator, self.c, self.size, self.free, self.seed = operator, known.shape[1], size, free, seed
        self.width = min(width, free)
        self.rows = known.new_empty(self.c + size + self.width, len(known))
        self.rows[: self.c] = known.mT
        self.matrix = torch.zeros(size, size, dtype=known.dtype)  # lower triangle of A on the basis, on the host
        self.dimension = self.products = self.following = 0
        self._near = 0  # number of the first basis vectors that have no products with the next block
        self.degree = self._least = 0.0
        self._unit = ROUNDOFF_UNITS * torch.finfo(known.dtype).eps
        self.next_block = self._next_block
        can_load = loops.memory_supported(known) and loops.library() is not None and known.dtype == torch.float64
        if can_load and self.width <= BLOCK and operator.has_plain_sums:
            self.next_block = partial(next_block, mass=operator.mass if isinstance(operator, Inverted) else None)
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
            self._extend()

    def _extend(self) -> None:
        """Append the next block; blocks before the last two have no products with it but after a restart."""
        j, p = self.dimension, self.following
        end, count = j + p, self.c + j + p
        rest = self.rows[count : count + p]
        rest.copy_(self.operator.matmul(self.rows[self.c + j : count].mT).mT)
        found = self.next_block(self.rows[:count], rest, self.c + self._near, BlockLimits(self._least, self._unit))
        self.matrix[j:end, :end] = found.products[self.c :].mT
        self.dimension, self._near, self._least, self.coupling = end, j, found.least, found.factor.mT
        self.degree, self.products = self.degree + 1, self.products + p
        self.following = p
        if not found.is_made or end + p > self.free:
            self._take_care(rest)

    def _take_care(self, rest: Tensor) -> None:
        """Make the next block from a rest ``(p, N)`` that nearly depends on itself or the space, or is round-off."""
        count = self.c + self.dimension
        size = to_host(self.operator.dots(rest.mT, rest.mT))[0].sqrt() * torch.linalg.vector_norm(self.coupling, dim=1)
        q = rest.mT[:, to_device(size > min(self._least, 1e-8), rest)]
        if q.shape[1]:
            q = basis(self.operator, q, self.rows[:count].mT)[:, : self.free - self.dimension]
        self.following = q.shape[1]
        if not self.following:
            self.degree = math.inf
            return self._begin(len(self.coupling.mT))
        self.coupling = to_host(self.operator.inner(q, rest.mT))[0] @ self.coupling
        self.rows[count : count + self.following] = q.mT

    def _begin(self, p: int) -> None:
        """Make a random next block, with which the last ``p`` vectors have no products."""
        count = self.c + self.dimension
        q = basis(self.operator, self._random(min(self.width, self.free - self.dimension)), self.rows[:count].mT)
        self.following, self.coupling = q.shape[1], self.matrix.new_zeros(q.shape[1], p)
        self.rows[count : count + self.following] = q.mT
        if not self.following:
            self.free = self.dimension

    def _next_block(self, rows: Tensor, block: Tensor, near: int, limits: BlockLimits) -> NextBlock:
        """Do the work of the compiled `next_block`, in the operator's inner product and on any device."""
        products = rows.new_zeros(len(rows), len(block), device="cpu")
        products[near:] = self._remove_(block, rows[near:])
        least = max(limits.least, limits.unit * float(torch.linalg.vector_norm(products)))
        removed = self._remove_(block, rows)
        products += removed
        factor = torch.eye(len(block), dtype=block.dtype)
        for smallest in (least, LEAST_LEFT, LEAST_LEFT):
            (gram,) = to_host(self.operator.inner(block.mT, block.mT))
            squares = gram.diagonal().tolist()
            if not all(smallest**2 < x < math.inf for x in squares) or (own := cholesky(gram, limits.pivot)) is None:
                return NextBlock(products, factor, least, False)
            turn = torch.linalg.inv(own)
            block.copy_(to_device(turn, block) @ block)
            factor = factor @ own
            is_sound = bool((own.diagonal() > limits.sound * gram.diagonal().sqrt()).all())
            if is_sound and all(x <= y for x, y in zip(removed.square().sum(0).tolist(), squares, strict=True)):
                return NextBlock(products, factor, least, True)
            removed = self._remove_(block, rows)
        return NextBlock(products, factor, least, False)

    def _remove_(self, block: Tensor, known: Tensor) -> Tensor:
        """Remove the parts of a block in the span of known rows; return their products with it, on the host."""
        sums, weighted = self.operator, block.mT
        if isinstance(self.operator, Inverted):  # one product with M for all rows
            sums, weighted = self.operator.operator, self.operator.weighted(block.mT)
        found = [sums.inner(rows.mT, weighted) for rows in (known.split(ROWS_AT_ONCE) if len(block) > 1 else (known,))]
        for parts, rows in zip(found, known.split(len(found[0])), strict=True):
            block.addmm_(parts.mT, rows, alpha=-1)
        return to_host(torch.cat(found) if len(found) > 1 else found[0])[0]

    def _random(self, m: int) -> Tensor:
        """Return columns ``(N, m)`` that differ at each call."""
        self.seed += 1000
        noise = self.operator.random(m, self.seed - 1000)
        return noise.reshape(noise.shape[-2:]).mT.contiguous().mT

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return Ritz values, ascending, their coordinates in the space and the norms of their residuals."""
        values, turn = self.operator.same_on_all_ranks(*eigh(self._projected()))
        return values, turn, torch.linalg.vector_norm(self.coupling @ self._tail(turn), dim=0)

    def _tail(self, turn: Tensor) -> Tensor:
        """Return the coordinates in the last block."""
        return turn[self.dimension - self.coupling.shape[1] :]

    def _projected(self) -> Tensor:
        """Return A projected on the basis."""
        lower = self.matrix[: self.dimension, : self.dimension].tril()
        return lower + lower.tril(-1).mT

    def combine(self, turn: Tensor) -> Tensor:
        """Return combinations ``(p, N)`` of the basis by columns ``(dimension, p)``."""
        return to_device(turn, self.rows).mT @ self.rows[self.c : self.c + len(turn)]

    def images(self, turn: Tensor) -> Tensor:
        """Return A times combinations ``(N, p)``, without the residuals of vectors kept at a restart."""
        inside, outside = self.combine(self._projected() @ turn), to_device(self.coupling @ self._tail(turn), self.rows)
        return inside.addmm_(outside.mT, self.rows[self.c + self.dimension :][: self.following]).mT

    def restart(self, values: Tensor, turn: Tensor, keep: int) -> None:
        """Reduce the space to its first Ritz vectors, and the next block, which holds the residual of each."""
        block = self.rows[self.c + self.dimension :][: self.following].clone()
        self.rows[self.c : self.c + keep] = self.combine(turn[:, :keep])
        self.rows[self.c + keep :][: len(block)] = block
        self.matrix.zero_().diagonal()[:keep] = values[:keep]
        self.dimension, self._near = keep, 0


def cholesky(gram: Tensor, least: float) -> Tensor | None:
    """Return the Cholesky factor of a Gram matrix on the host; None where rows nearly depend on others."""
    if len(gram) == 1:
        return gram.sqrt()
    size = gram.diagonal().sqrt()
    factor, failed = torch.linalg.cholesky_ex(gram / size / size[:, None])
    return None if int(failed) or float(factor.diagonal().amin()) < least else size[:, None] * factor
