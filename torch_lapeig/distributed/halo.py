"""Rows that a rank needs from other ranks, and matrices whose rows lie on several ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.graph.algebra import multiply


class Halo:
    """Rows of other ranks that this rank needs, and the lists of rows to send, made once."""

    def __init__(self, ranks: Ranks, offsets: list[int], needed: Tensor) -> None:
        # The rows offsets[r] to offsets[r + 1] of all lie on rank r; needed are numbers among all, int64, ascending.
        self.ranks, self.offsets, self.needed = ranks, offsets, needed
        self.recv = torch.bincount(owners(needed, offsets), minlength=ranks.world).tolist()  # by rank
        self.send = ranks.counts(self.recv)
        self.sent = ranks.exchange(needed, self.recv, self.send) - offsets[ranks.rank]

    def __len__(self) -> int:
        return len(self.needed)

    def fetch(self, y: Tensor) -> Tensor:
        """Return the needed rows from the own rows ``y`` ``(n, ...)`` of every rank; differentiable."""
        return self.ranks.moved(y.index_select(0, self.sent), self.send, self.recv)

    def start(self, y: Tensor) -> Callable[[], Tensor]:
        """Start `fetch` without gradients and continue computing; the returned function waits for the rows."""
        return self.ranks.start(y.index_select(0, self.sent), self.send, self.recv)

    def with_halo(self, y: Tensor) -> Tensor:
        """Return the own rows followed by the needed rows; differentiable."""
        return torch.cat([y, self.fetch(y)]) if self.ranks.world > 1 else y


def owners(numbers: Tensor, offsets: list[int]) -> Tensor:
    """Return the rank of each row number."""
    ends = torch.tensor(offsets[1:-1], device=numbers.device, dtype=numbers.dtype)
    return torch.bucketize(numbers.contiguous(), ends, right=True)


def to_owners(ranks: Ranks, offsets: list[int], numbers: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """Send rows ``(m, ...)`` to the owners of their row numbers ``(m,)``, and return the rows received there."""
    rank = owners(numbers, offsets)
    order, send = rank.argsort(stable=True), torch.bincount(rank, minlength=ranks.world).tolist()
    recv = ranks.counts(send)
    return tuple(ranks.exchange(part[order], send, recv) for part in rows)


def offsets_of(sizes: list[int]) -> list[int]:
    """Return the first row of each rank among all rows, and the total number of rows."""
    return [*itertools.accumulate(sizes, initial=0)]


@dataclass(frozen=True, eq=False)
class ShardedMatrix:
    """Own rows of a matrix: CSR over the own columns, and a CSR over the halo's columns for the rows that have any."""

    own: Tensor  # (n, n)
    far: Tensor  # (b, h), of the rows border (b,)
    border: Tensor
    halo: Halo

    def times(
        self, y: Tensor, other: Tensor | None = None, times: float = 1, plus: float = 1, rows: Tensor | None = None
    ) -> Tensor:
        """Return times · A · y + plus · other for the own rows ``(n, m)`` of all ranks, without gradients."""
        y = y.detach()
        # Exchanged while the own columns are multiplied, by every rank, also one without a halo.
        halo = self.halo.start(y) if self.halo.ranks.world > 1 and rows is None else None
        others = None if other is None else other.detach()
        z = y.clone() if len(y) == 0 else multiply(self.own, y, others, times=times, plus=plus)
        rows = rows if halo is None else halo()
        if rows is None:
            return z
        return z.index_add_(0, self.border, self.far @ rows, alpha=times) if len(self.border) else z

    def to(self, dtype: torch.dtype) -> ShardedMatrix:
        """Return the matrix in another precision."""
        return ShardedMatrix(self.own.to(dtype), self.far.to(dtype), self.border, self.halo)
