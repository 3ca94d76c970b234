"""Points spread over ranks by locality: most neighbours are on one rank, so that little must be exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.distributed.halo import offsets_of
from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.distributed.selection import at_place
from torch_lapeig.support import checks


@dataclass(frozen=True, eq=False)
class ShardedPoints:
    """Points ``(N, D)`` spread over ranks by locality, and the exchange back to the ranks that passed them.

    Attributes:
        ranks: the processes that share the points.
        x: ``(n, D)``, the points that this rank stores, neighbours together; differentiable in the passed points.
        numbers: int64 ``(n,)``, the row of each point among all passed points, rank by rank.
        offsets: the points ``offsets[r]`` to ``offsets[r + 1]`` of all belong to rank r; these are their places.
        leaf: int64 ``(n,)``, ascending, the part of its rank's points to which each point belongs; the number of parts
            is a power of two, by repeated halving.
        given: the number of rows that this rank passed.

    >>> points = ShardedPoints.spread(torch.tensor([[3.0], [1.0], [2.0]]), Ranks())
    >>> points.given, points.numbers.sort().values
    (3, tensor([0, 1, 2]))
    """

    ranks: Ranks
    x: Tensor
    numbers: Tensor
    offsets: list[int]
    leaf: Tensor
    given: int
    _first: Tensor  # given rows, in the order of sending
    _send: list[int]
    _recv: list[int]
    _second: Tensor  # received rows, in the order of storage

    @classmethod
    def spread(cls, x: Tensor, ranks: Ranks) -> ShardedPoints:
        """Spread the points of all ranks, ``(n_r, D)`` on rank r, n_r ≥ 0, by bisection along their longest directions.

        Raises: DistributedError: another rank has raised an error; D or dtype differ between ranks.
        """
        ranks.agree("ShardedPoints.spread", lambda: _facts_of(x))
        sizes = ranks.sizes(len(x))
        if sum(sizes) < 2:
            raise ranks.alike(ValueError(f"x must hold at least 2 points on all ranks together, got {sum(sizes)}"))
        begin = offsets_of(sizes)[ranks.rank]
        numbers = torch.arange(begin, begin + len(x), device=x.device)
        bare = checks.primal(x)
        part = bisect(bare, ranks.world, ranks)
        first = part.argsort(stable=True)
        send = torch.bincount(part, minlength=ranks.world).tolist()
        recv = ranks.counts(send)
        arrived = ranks.moved(x.index_select(0, first), send, recv)
        numbers = ranks.exchange(numbers[first], send, recv)
        # Parts of some 32 points, so that neighbours in space are neighbours in memory. Their number is a power of two,
        # so that aligned runs of leaves are boxes, with small balls around them.
        halvings = max(0, (len(arrived) // 32).bit_length() - 1)
        leaves = bisect(checks.primal(arrived), 2**halvings, Ranks.alone())
        second = leaves.argsort(stable=True)
        offsets = offsets_of(ranks.sizes(len(second)))
        stored = arrived.index_select(0, second), numbers[second], offsets, leaves[second]
        return cls(ranks, *stored, len(x), first, send, recv, second)

    def home(self, y: Tensor) -> Tensor:
        """Send rows ``(n, ...)`` of these points to the ranks that passed them, in their order; differentiable."""
        self.ranks.agree("ShardedPoints.home", lambda: _facts_of_rows(y, len(self.x)))
        received = y.index_select(0, self._second.argsort())
        return self.ranks.moved(received, self._recv, self._send).index_select(0, self._first.argsort())

    def here(self, y: Tensor) -> Tensor:
        """Send rows ``(given, ...)`` of the passed points to the ranks that store the points; differentiable."""
        self.ranks.agree("ShardedPoints.here", lambda: _facts_of_rows(y, self.given))
        sent = self.ranks.moved(y.index_select(0, self._first), self._send, self._recv)
        return sent.index_select(0, self._second)


def _facts_of(x: Tensor) -> dict[str, Any]:
    checks.check_points(x, batched=False, min_points=0)
    return checks.facts_of_rows(x=x)


def _facts_of_rows(y: Tensor, rows: int) -> dict[str, Any]:
    if len(y) != rows:
        raise ValueError(f"y must have {rows} rows to go with the points, got {len(y)}")
    return checks.facts_of_rows(y=y)


def bisect(x: Tensor, parts: int, ranks: Ranks) -> Tensor:
    """Return the part of each point ``(n, D)``, 0 … parts − 1, by halving all parts across their longest directions."""
    group, counts = torch.zeros(len(x), dtype=torch.int64, device=x.device), [parts]
    x = x.double()
    while max(counts) > 1:
        count = torch.tensor(counts, device=x.device)
        size, along = _along_longest(x, group, len(counts), ranks)
        left = (count + 1) // 2
        cut = torch.where(count > 1, at_place(ranks, along, group, (size * left / count).long()), torch.inf)
        begin = (1 + (count > 1).long()).cumsum(0) - (1 + (count > 1).long())
        group = begin[group] + (along > cut[group])
        counts = [part for n in counts for part in ((n - n // 2, n // 2) if n > 1 else (n,))]
    return group


def _along_longest(x: Tensor, group: Tensor, groups: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Return the size of each group, and each point's coordinate along a direction in which its group is long."""
    d = x.shape[1]

    def sums(values: Tensor) -> Tensor:
        return ranks.sum(values.new_zeros(groups, values.shape[1]).index_add_(0, group, values))

    moments = sums(torch.cat([x.new_ones(len(x), 1), x], 1))
    size = moments[:, 0]
    centred = x - (moments[:, 1:] / size.clamp_min(1)[:, None])[group]
    spread = sums(centred.square())
    direction = torch.nn.functional.one_hot(spread.argmax(1), d).to(x.dtype)
    along = centred.gather(1, spread.argmax(1)[group][:, None])
    # A few steps of the power method suffice: any direction in which a part is long will do.
    for _ in range(3 if d > 1 else 0):
        following = sums(along * centred)
        length = following.norm(dim=1, keepdim=True)
        direction = torch.where(length > 0, following / length, direction)
        along = (centred * direction[group]).sum(1, keepdim=True)
    return size, along[:, 0]
