"""Block Krylov spaces: the largest pairs of a symmetric matrix, with copies of multiple ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torch_lapeig import native
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.blocks import basis, without
from torch_lapeig.eigen.solvers.factors import Factors
from torch_lapeig.native.sparse import BLOCK, PivotLimits, Space, SymmetricFactors

LEAST_LEFT = 0.1  # minimum fraction of a column outside the space; below, a rank-revealing basis is needed
ENOUGH_LEFT = 0.7  # fraction below which a column is orthogonalised twice, so that the space stays orthogonal
COMPILED_PIVOT = 1e-3  # minimum fraction of a column outside its block for the compiled orthonormalisation


class BlockKrylov:
    """Orthonormal vectors as rows, after known vectors, with the projection Vᵀ B V of a matrix B.

    A space that begins with a block of p random vectors holds up to p vectors of each eigenspace. The next block is
    stored in the rows after the space.

    Args:
        operator: operator on the same nodes, for sums over nodes and for random vectors.
        product: B Y for a block ``(N, m)``.
        known: orthonormal columns ``(N, c)``; the space is orthogonal to them.
        size: maximum number of vectors. width: number of columns of a block.
        seed: of the random blocks.

    Attributes:
        filled: number of vectors whose products are known. projected: Vᵀ B V ``(size, size)``.
        degree: number of blocks since the last random one. products: number of columns multiplied so far.
        rest: part of the last products outside the space and all its former vectors, ``(N, m)``.
        following: number of columns of the next block; 0 before it is computed.
    """

    def __init__(
        self, operator: Operator, product: Callable[[Tensor], Tensor], known: Tensor, size: int, width: int, seed: int
    ) -> None:
        self.operator, self.product, self.size, self.width, self.seed = operator, product, size, width, seed
        self.first = known.shape[1]
        self.rows = known.new_empty(self.first + size + width, len(known))
        self.rows[: self.first] = known.mT
        self.projected = known.new_zeros(size, size)
        self.filled = self.degree = self.products = self.following = 0
        self._rest = known.mT[:0]
        self.compiled = self._compiled()
        self._set_random()

    def _compiled(self) -> Space | None:
        """Return the compiled extension of the space if its matrix is the inverse by compiled factors; else None."""
        factors = self.product.factors if isinstance(self.product, Factors) else None
        if not isinstance(factors, SymmetricFactors) or not 0 < self.width <= BLOCK:
            return None
        if self.rows.dtype != torch.float64 or not native.memory_supported(self.rows):
            return None
        pivots = PivotLimits(dependent=COMPILED_PIVOT, least=LEAST_LEFT, enough=ENOUGH_LEFT)
        return Space(factors, self.rows, self.projected, self.width, pivots)

    @property
    def room(self) -> int:
        """Return the number of vectors that still fit in."""
        return self.size - self.filled

    @property
    def rest(self) -> Tensor:
        """Return the part of the last products outside the space."""
        return self._rest.mT

    @property
    def is_full(self) -> bool:
        """Return whether the next block does not fit in."""
        if not self.following:
            self._set_following()
        return self.following > self.room

    def columns(self, m: int) -> Tensor:
        """Return the known vectors and the first ``m`` of the space, ``(N, c + m)``."""
        return self.rows[: self.first + m].mT

    def fill(self, products: int) -> None:
        """Append blocks, at least one, until so many columns have been multiplied or the next block would not fit."""
        while True:
            if not self.following:
                self._set_following()
            if self.compiled is not None and self.following == self.width <= self.room:
                self._extend_compiled(self.compiled, products)
            else:
                self._extend()
            if self.products >= products or not 0 < len(self._rest) <= self.room:
                return

    def _extend_compiled(self, compiled: Space, products: int) -> None:
        filled, blocks, is_sound = compiled.extend(self.filled, self.filled + products - self.products)
        self.products, self.degree = self.products + filled - self.filled, self.degree + blocks
        self.filled, self.following, self._rest = filled, 0, compiled.rest
        if not is_sound:
            self._set_following()

    def _extend(self) -> None:
        """Extend the space by the next block, as far as it fits, and by its products."""
        some = min(self.following, self.room)
        old, new = self.filled, self.filled + some
        self.filled, self.degree, self.products, self.following = new, self.degree + 1, self.products + some, 0
        known, block = self.columns(new), self.rows[self.first + old : self.first + new].mT
        w = self.product(block)
        h = self.operator.inner(known, w)
        self._rest = without(w, known, h).mT.contiguous()  # `_outside` projects once more, for the next block
        h = h[self.first :]
        self.projected[:new, old:new], self.projected[old:new, :new] = h, h.mT
        inner = h[old:new]
        self.projected[old:new, old:new] = (inner + inner.mT) / 2

    def _set_following(self) -> None:
        """Set the next block of the space: random columns if the space is invariant."""
        block = self._outside(self.rest)
        if block.shape[1]:
            self._set(block)
        else:
            self._set_random()

    def _set_random(self) -> None:
        """Continue with a random block outside the space, which finds further copies in all eigenspaces."""
        self.degree = 0
        self._set(self.random())

    def _set(self, block: Tensor) -> None:
        self.following, where = block.shape[1], self.first + self.filled
        self.rows[where : where + self.following] = block.mT

    def random(self, *others: Tensor) -> Tensor:
        """Return random orthonormal columns outside the space and others."""
        noise = self.operator.random(self.width, self.seed + self.products)[0].mT.contiguous().mT
        return self._outside(noise, *others)

    def _outside(self, w: Tensor, *others: Tensor) -> Tensor:
        """Return an orthonormal basis of the part of a block outside the space and others."""
        compiled = self.compiled if not others and w.shape[1] == self.width else None
        if compiled is not None and compiled.follow(self.filled, w.mT.contiguous()):
            return self.rows[self.first + self.filled :][: self.width].mT
        known = (self.columns(self.filled), *others)
        block, r = torch.linalg.qr(w)
        block, left = self._without(block, known)
        # Columns that depend on others, or lie in the space, are rare; a rank-revealing basis handles them.
        pivots = (r.diagonal() / torch.linalg.vector_norm(w, dim=0)).abs()
        # From pivots of 1e-6 on, one more orthogonalisation reaches round-off.
        if not ((pivots > 1e-6).all() and left > LEAST_LEFT):
            return basis(self.operator, w, *known)
        return block if left > ENOUGH_LEFT else self._without(block, known)[0]

    def _without(self, block: Tensor, known: tuple[Tensor, ...]) -> tuple[Tensor, float]:
        """Return an orthonormal basis of columns outside known ones, and the least length left of a column."""
        for q in known:
            block = without(block, q, self.operator.inner(q, block))
        block, r = torch.linalg.qr(block)
        return block, float(r.diagonal().abs().min()) if block.shape[1] else 1.0

    def values_and_residuals(self) -> tuple[Tensor, Tensor]:
        """Return Ritz values, descending, and norms of their residuals."""
        values, turn = self.ritz()
        tail, gram = turn[self.filled - len(self._rest) :], self.operator.inner(self.rest, self.rest)
        return values, (tail * (gram @ tail)).sum(0).clamp_min(0).sqrt()

    def ritz(self, count: int | None = None) -> tuple[Tensor, Tensor]:
        """Return Ritz values, descending, and the coordinates of the first ``count`` Ritz vectors; None for all."""
        m = self.filled
        values, turn = torch.linalg.eigh(-self.projected[:m, :m])
        return -values, turn[:, :count]

    def vectors(self, turn: Tensor) -> Tensor:
        """Return the vectors with coordinates ``turn`` in the space, ``(N, m)``."""
        return (turn.mT @ self.rows[self.first : self.first + self.filled]).mT

    def images(self, turn: Tensor) -> Tensor:
        """Return B times the vectors with these coordinates, without the residuals of vectors kept at a restart."""
        m = self.filled
        inside, outside = self.projected[:m, :m] @ turn, turn[m - len(self._rest) :]
        return torch.addmm(self.vectors(inside), self.rest, outside)

    def keep(self, values: Tensor, turn: Tensor) -> None:
        """Restart with the Ritz vectors of these values and coordinates, and continue with the next block."""
        kept, vectors = turn.shape[1], self.vectors(turn).mT
        if not self.following:
            self._set_following()
        block = self.rows[self.first + self.filled :][: self.following].clone()
        self.rows[self.first : self.first + kept] = vectors
        self.projected.zero_().diagonal()[:kept] = values
        self.filled = kept
        self._set(block.mT)


class Trend:
    """Decrease of the residuals, and the predicted number of products until the next check of Ritz pairs.

    Args:
        least: minimum number of products between two checks.
    """

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
