"""Block Krylov spaces: the largest pairs of a symmetric matrix, with copies of multiple ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_lapeig.eigen.blocks import basis, without
from torch_lapeig.eigen.operator import Operator

LEAST_PIVOT = 1e-6  # of a column, that its neighbours leave: orthogonalising once more takes to round-off
LEAST_LEFT = 0.1  # of a column, that the space leaves
ENOUGH_LEFT = 0.7  # the same: below, what the space has lost of its own orthogonality grows, unless it is done twice


class BlockKrylov:
    """Orthonormal vectors as rows, known vectors before them, with the projection Vᵀ B V of a matrix B.

    A space that begins with a block of random vectors holds as many vectors of each eigenspace as the block has.

    Args:
        operator: of the same rows, for sums over these and for random vectors.
        product: B Y for a block ``(N, m)``.
        known: orthonormal columns ``(N, c)``, outside which the space lies.
        size: vectors at most. width: of a block.
        seed: of the random blocks.

    Attributes:
        filled: vectors whose products are known. projected: ``(size, size)``.
        degree: blocks since the last random one. products: columns multiplied so far.
        rest: what the last products have outside the space and all vectors that were in it, ``(N, m)``.
    """

    def __init__(
        self, operator: Operator, product: Callable[[Tensor], Tensor], known: Tensor, size: int, width: int, seed: int
    ) -> None:
        self.operator, self.product, self.size, self.width, self.seed = operator, product, size, width, seed
        self.first = known.shape[1]
        self.rows = known.new_empty(self.first + size, len(known))
        self.rows[: self.first] = known.mT
        self.projected = known.new_zeros(size, size)
        self.filled = self.degree = self.products = 0
        self.rest = known[:, :0]

    @property
    def room(self) -> int:
        """Vectors that still fit in."""
        return self.size - self.filled

    def columns(self, m: int) -> Tensor:
        """The known vectors and the first ``m`` of the space, ``(N, c + m)``."""
        return self.rows[: self.first + m].mT

    def extend(self, block: Tensor) -> None:
        """Take in orthonormal columns outside the space, which shall fit, and their products."""
        old, new = self.filled, self.filled + block.shape[1]
        self.rows[self.first + old : self.first + new] = block.mT
        self.filled, self.degree, self.products = new, self.degree + 1, self.products + block.shape[1]
        known, w = self.columns(new), self.product(block)
        h = self.operator.inner(known, w)
        self.rest = without(w, known, h)  # to round-off of the product; `following` does it again
        h = h[self.first :]
        self.projected[:new, old:new], self.projected[old:new, :new] = h, h.mT
        inner = h[old:new]
        self.projected[old:new, old:new] = (inner + inner.mT) / 2

    def following(self) -> Tensor:
        """The block that goes on with the space; a random one where the space is invariant."""
        block = self._outside(self.rest)
        return block if block.shape[1] else self.random(block)

    def random(self, *others: Tensor) -> Tensor:
        """A random block outside the space and others: what it leads to is another look at all eigenspaces."""
        self.degree = 0
        noise = self.operator.random(self.width, self.seed + self.products)[0].mT.contiguous().mT
        return self._outside(noise, *others)

    def _outside(self, w: Tensor, *others: Tensor) -> Tensor:
        """An orthonormal basis of what a block has outside the space and others."""
        known = (self.columns(self.filled), *others)
        block, r = torch.linalg.qr(w)
        block, left = self._without(block, known)
        # Columns that depend on others, or lie in the space, are rare, and left to a search for the rank.
        pivots = (r.diagonal() / torch.linalg.vector_norm(w, dim=0)).abs()
        if not ((pivots > LEAST_PIVOT).all() and left > LEAST_LEFT):
            return basis(self.operator, w, *known)
        return block if left > ENOUGH_LEFT else self._without(block, known)[0]

    def _without(self, block: Tensor, known: tuple[Tensor, ...]) -> tuple[Tensor, float]:
        """What orthonormal columns have outside known ones, orthonormal; and of one at least so much was left."""
        for q in known:
            block = without(block, q, self.operator.inner(q, block))
        block, r = torch.linalg.qr(block)
        return block, float(r.diagonal().abs().min()) if block.shape[1] else 1.0

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ritz values, descending, the coordinates of their vectors in the space, and residuals."""
        m, last = self.filled, self.rest.shape[1]
        values, turn = torch.linalg.eigh(self.projected[:m, :m])
        values, turn = values.flip(0), turn.flip(1)
        tail = turn[m - last :]
        square = (tail * (self.operator.inner(self.rest, self.rest) @ tail)).sum(0)
        return values, turn, square.clamp_min(0).sqrt()

    def vectors(self, turn: Tensor) -> Tensor:
        """Vectors of these coordinates, ``(N, m)``."""
        return (turn.mT @ self.rows[self.first : self.first + self.filled]).mT

    def images(self, turn: Tensor) -> Tensor:
        """B times the vectors of these coordinates, but for what was left of those kept when the space began anew."""
        m = self.filled
        inside = self.vectors(self.projected[:m, :m] @ turn)
        return torch.addmm(inside, self.rest, turn[m - self.rest.shape[1] :])

    def keep(self, values: Tensor, turn: Tensor) -> None:
        """Begin anew with Ritz vectors of these values and coordinates; `following` goes on with them."""
        kept = turn.shape[1]
        self.rows[self.first : self.first + kept] = self.vectors(turn).mT
        self.projected.zero_().diagonal()[:kept] = values
        self.filled = kept
