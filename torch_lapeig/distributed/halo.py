"""Rows that a rank needs from other ranks, and matrices whose rows lie on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.graph.products import csr, multiply


class Halo:
    """Rows of other ranks that this rank needs, and the lists of rows to send, made once."""

    def __init__(self, ranks: Ranks, offsets: list[int], needed: Tensor) -> None:
        # The rows offsets[r] to offsets[r + 1] of all lie on rank r; needed are numbers among all, int64, ascending.
        self.ranks, self.offsets, self.needed = ranks, offsets, needed
        self.recv = counts_by_rank(needed, offsets)  # by rank
        self.send = ranks.counts(self.recv)
        self.sent = ranks.exchange(needed, self.recv, self.send) - offsets[ranks.rank]
        if ranks.world == 1:
            self.sent = needed

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


def counts_by_rank(numbers: Tensor, offsets: list[int]) -> list[int]:
    """Return the number of row numbers on each rank."""
    counts: list[int] = torch.bincount(owners(numbers, offsets), minlength=len(offsets) - 1).tolist()
    return counts


def to_owners(ranks: Ranks, offsets: list[int], numbers: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """Send rows ``(m, ...)`` to the owners of their row numbers ``(m,)``, and return the rows received there."""
    order, send = owners(numbers, offsets).argsort(stable=True), counts_by_rank(numbers, offsets)
    recv = ranks.counts(send)
    return tuple(ranks.exchange(part[order], send, recv) for part in rows)


def offsets_of(sizes: list[int]) -> list[int]:
    """Return the first row of each rank among all rows, and the total number of rows."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return offsets


@dataclass(frozen=True, eq=False)
class ShardedMatrix:
    """Own rows of a matrix: CSR over the own columns, and a CSR over the halo's columns for the rows that have any."""

    own: Tensor  # (n, n)
    far: Tensor  # (b, h), of the rows border (b,)
    border: Tensor
    halo: Halo

    def times(
        self,
        y: Tensor,
        other: Tensor | None = None,
        times: float = 1,
        plus: float = 1,
        rows: Tensor | None = None,
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


def csr_of(row: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the CSR of entries in ascending order of their rows."""
    crow = torch.searchsorted(row, torch.arange(shape[0] + 1, device=row.device, dtype=row.dtype))
    return csr(crow.to(torch.int32), col.to(torch.int32), values, shape)
