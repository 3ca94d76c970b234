"""Thick-restart Lanczos: few pairs of dense matrices, and of matrices that are known by their products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.blocks import BlockOperator, eigh, residual, same_on_all_ranks, to_device, to_host
from torch_lapeig.eigen.solvers.lobpcg import lobpcg
from torch_lapeig.eigen.solvers.solver import (
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
        found = pairs_with_copies(
            request.operator, request.null, request.wanted, (free, self.max_products, self.seed), is_done, accuracy
        )
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
    begin: tuple[int, int, int],
    check: Check,
    accuracy: tuple[float, float],
) -> KrylovPairs:
    """Return the smallest pairs beside ``null``, with all copies of multiple values, and the next one where there is.

    Args:
        begin: see `smallest_pairs`.
        accuracy: tolerance relative to the gap, and the round-off of residuals.
    """
    free, left, seed = begin
    found = smallest_pairs(operator, null, min(wanted + 1, free), begin, check)
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

        next_begin = (free - x.shape[1], left - products, seed + x.shape[1] + 1)
        found = smallest_pairs(operator, known, 1, next_begin, is_told)
        products, checks, is_finished = products + found.products, checks + found.checks, found.finished
        is_known = float(found.values[0]) >= most - round_off or x.shape[1] + 1 == free
        values, order = torch.cat([values, found.values]).sort(stable=True)
        x = torch.cat([x, found.vectors], 1).index_select(1, to_device(order, x))
    return KrylovPairs(values, x, products, checks, is_finished)


def smallest_pairs(
    operator: BlockOperator, known: Tensor, count: int, begin: tuple[int, int, int], check: Check
) -> KrylovPairs:
    """Return the ``count`` smallest pairs orthogonal to ``known`` columns ``(N, c)`` of invariant subspaces.

    Products, inner products and random columns are those of the operator, which may have an inner product of its own.

    Args:
        begin: dimension of the complement, maximum number of products, and seed of the first vector.
    """
    free, limit, seed = begin
    space = _Space(operator, known, min(max(2 * count + 20, 40), free), free, seed)
    for checks in itertools.count(1):
        space.expand(max(CHECK_EVERY, count))
        values, turn = same_on_all_ranks(operator, *eigh(space.projected()))
        residuals = (space.coupling * turn[-1]).abs()
        is_finished = space.is_whole or (len(values) >= count and check(checks, values[:count], residuals[:count]))
        if is_finished or space.products >= limit:
            vectors = space.combine(turn[:, :count]).mT
            return KrylovPairs(values[:count], vectors, space.products, checks, is_finished)
        if space.dimension == space.size:
            space.restart(values, turn, count + (len(values) - count) // 2)
    raise AssertionError


class _Space:
    """Orthonormal rows ``(c + size + 1, N)``: c known ones, a basis of a Krylov space, and its next vector."""

    def __init__(self, operator: BlockOperator, known: Tensor, size: int, free: int, seed: int) -> None:
        self.operator, self.c, self.size, self.free, self.seed = operator, known.shape[1], size, free, seed
        self.rows = known.new_empty(self.c + size + 1, len(known))
        self.rows[: self.c] = known.mT
        self.matrix = torch.zeros(size + 1, size + 1, dtype=known.dtype)  # A projected on the basis, on the host
        self.dimension, self.products, self.largest = 0, 0, 0.0
        self.eps = 50 * torch.finfo(known.dtype).eps
        self.is_whole = not self._start_anew()

    @property
    def coupling(self) -> float:
        """Return the length of the next vector before it was normalised."""
        return float(self.matrix[self.dimension, self.dimension - 1])

    def projected(self) -> Tensor:
        """Return A projected on the basis."""
        return self.matrix[: self.dimension, : self.dimension]

    def expand(self, steps: int) -> None:
        """Add as many vectors, unless the space is full, or invariant and nothing is left outside."""
        is_first = True
        most = min(self.size, self.dimension + steps)
        while self.dimension < most and not self.is_whole:
            j = self.dimension
            v = self.rows[self.c + j]
            w = self.operator.matmul(v[:, None])[:, 0]
            self.products += 1
            before = 0.0 if is_first or j == 0 else float(self.matrix[j, j - 1])
            if before:  # the large parts first, so that one pass removes all others to round-off
                w = w - before * self.rows[self.c + j - 1]
            on_itself = float(self.operator.inner(v, w))
            w = torch.sub(w, v, alpha=on_itself)
            parts = self._orthogonalise_(w)
            if is_first:
                parts = parts + self._orthogonalise_(w)
            is_first = False
            column = to_host(parts[self.c :])[0]
            column[j] += on_itself
            if before:
                column[j - 1] += before
            self.matrix[: j + 1, j] = self.matrix[j, : j + 1] = column  # with round-off, where A is much larger
            self.dimension += 1
            length = math.sqrt(max(float(self.operator.inner(w, w)), 0.0))
            self.is_whole = self.dimension == self.free
            self.largest = max(self.largest, abs(on_itself), length)
            if length <= self.eps * self.largest * math.sqrt(self.size) and not self.is_whole:  # an invariant subspace
                length, self.is_whole, is_first = 0.0, not self._start_anew(), True
            elif not self.is_whole:
                torch.mul(w, 1 / length, out=self.rows[self.c + j + 1])
            self.matrix[j, j + 1] = self.matrix[j + 1, j] = length

    def _orthogonalise_(self, w: Tensor) -> Tensor:
        """Remove the part in the span of the known rows and the basis from ``w``; return its coefficients."""
        rows = self.rows[: self.c + self.dimension + 1]
        parts = self.operator.inner(rows.mT, w)
        w.addmv_(rows.mT, parts, alpha=-1)
        return parts

    def _start_anew(self) -> bool:
        """Store a random vector orthogonal to all rows as the next one; return whether there is one."""
        rows = self.rows[: self.c + self.dimension]
        w = self.operator.random(1, self.seed)[..., 0].reshape(-1)
        self.seed += 1000
        before = float(self.operator.inner(w, w))
        for _ in range(3):
            w = w - rows.mT @ self.operator.inner(rows.mT, w)
        length = math.sqrt(max(float(self.operator.inner(w, w)), 0.0))
        if length <= 1e-10 * math.sqrt(before):
            return False
        self.rows[self.c + self.dimension] = w / length
        return True

    def combine(self, turn: Tensor) -> Tensor:
        """Return combinations ``(p, N)`` of the basis by columns ``(dimension, p)``."""
        basis = self.rows[self.c : self.c + self.dimension]
        return to_device(turn, basis).mT @ basis

    def restart(self, values: Tensor, turn: Tensor, keep: int) -> None:
        """Reduce the space to its first Ritz vectors, and the next vector, which is the residual of each."""
        j, length = self.dimension, self.coupling
        self.rows[self.c : self.c + keep] = self.combine(turn[:, :keep])
        self.rows[self.c + keep] = self.rows[self.c + j]
        self.matrix.zero_()
        self.matrix.diagonal()[:keep] = values[:keep]
        self.matrix[keep, :keep] = self.matrix[:keep, keep] = length * turn[-1, :keep]
        self.dimension = keep
