"""Rows that a rank needs from other ranks."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from torch_lapeig.distributed.ranks import Ranks


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
