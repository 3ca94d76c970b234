"""Edges whose first nodes lie on this rank, with the interface of `torch_lapeig.graph.pattern.SparsePattern`.

Weights, Laplacian, operator, solvers and the differentiation rule use only patterns, so all of them work on shards.
Each rank stores its own rows. Their columns are renumbered to [own | halo], and values at the halo's nodes are fetched.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from torch_lapeig.distributed.gathered import GatheredGraph, eigenpairs_on_ranks
from torch_lapeig.distributed.halo import Halo, owners
from torch_lapeig.distributed.multigrid import multigrid_on_ranks
from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.distributed.selection import medians_of_groups
from torch_lapeig.eigen.solve import solve_on_ranks
from torch_lapeig.eigen.solvers.multigrid import cycle_on_ranks
from torch_lapeig.graph.algebra import label_components
from torch_lapeig.graph.pattern import PatternBase, SparsePattern
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property


def needs_whole(self: Any, *_: Any, **__: Any) -> NoReturn:
    """Refuse a call, as a method of objects that several ranks share."""
    raise TypeError("this call needs a whole graph, got rows on several ranks; use the graph of ranks.gather(x)")


class ShardedPattern(SparsePattern):
    """Edges that begin on this rank; the two directions of an edge may lie on different ranks.

    Args:
        ranks: the processes that share the graph; each method must be called on all of them.
        offsets: the nodes ``offsets[r]`` to ``offsets[r + 1]`` of all belong to rank r.
        row: int64 ``(E,)``, first node of each edge among the own ones, ascending.
        place: int64 ``(E,)``, second node among all, ascending within each row.
        numbers: int64 ``(n,)``, 0 to N − 1, a number of each own node that does not depend on the ranks; random vectors
            and ties depend on it.

    >>> row, col = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> path = ShardedPattern(Ranks(), [0, 3], row, col, torch.arange(3))
    >>> path.sum_rows(torch.ones(4))
    tensor([1., 2., 1.])
    """

    is_sharded = True
    has_hubs = False  # all ranks have to exchange rows of one dtype

    def __init__(self, ranks: Ranks, offsets: list[int], row: Tensor, place: Tensor, numbers: Tensor) -> None:
        begin, end = offsets[ranks.rank], offsets[ranks.rank + 1]
        n = end - begin
        inside = (place >= begin) & (place < end)
        needed, position = place[~inside].unique(return_inverse=True)
        col = place - begin
        col[~inside] = n + position
        order = (row * (n + len(needed) + 1) + col).argsort()  # the own columns first in each row
        self._put(row[order], col[order], (n,), None)
        self.given_order = order  # order of the given edges in storage
        self.ranks, self.num_ranks, self.offsets, self.numbers = ranks, ranks.world, offsets, numbers
        own = vars(self)
        own.update(sum=ranks.total, maximum=ranks.maximum, any=ranks.any, agree=ranks.agree)
        own.update(compare=ranks.agree, same_on_all_ranks=ranks.same_on_all_ranks, number_of=lambda n: offsets[-1])
        self.halo, self.columns = Halo(ranks, offsets, needed), n + len(needed)
        is_own = self.col < n
        self.inside, self.cross = is_own.nonzero().flatten(), (~is_own).nonzero().flatten()

    def __repr__(self) -> str:
        return f"ShardedPattern({self.total} of {self.offsets[-1]} nodes, {len(self)} edges, {self.ranks})"

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Return Xᵀ Y, the sum over all ranks; see ``PatternBase.inner``."""
        return self.sum(super().inner(x, y))

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        """Return inner products of columns, summed over all ranks."""
        return self.sum(super().dots(x, y))

    def overlaps(self, w: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """Return ``dots`` of a block with itself, and ``inner`` of others with it, by one message."""
        return self.ranks.totals(super().dots(w, w), *(PatternBase.inner(self, q, w) for q in others))

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest magnitude in each column over all ranks; infinite where there is a NaN."""
        return self.ranks.maximum(super().largest(x).nan_to_num(torch.inf, torch.inf))

    def numbered_parts(self, labels: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Return component labels ``(1, n)`` counted over active nodes (0 elsewhere), and their number ``(1,)``."""
        count = int(self.largest(labels.reshape(-1, 1) + 1))
        present = self.ranks.maximum(labels.new_zeros(count).index_fill(0, labels[active], 1))
        number = present.cumsum(0) - 1
        return torch.where(active, number[labels], 0), present.sum()[None]

    def noise(self, m: int, seed: int, dtype: torch.dtype) -> Tensor:
        """Return random columns ``(n, m)`` that depend only on the nodes' numbers: each is drawn for all nodes."""
        generator, n = torch.Generator(self.numbers.device).manual_seed(seed), self.offsets[-1]
        noise = torch.empty(self.total, m, dtype=dtype, device=self.numbers.device)
        for j in range(m):
            whole = torch.randn(n, dtype=torch.float64, device=self.numbers.device, generator=generator)
            noise[:, j] = whole[self.numbers]
        return noise

    def medians(self, values: Tensor, group: Tensor, total: int) -> Tensor:
        """Return the lower median ``(total,)`` of each group of the edges of all ranks; 1 for an empty group."""
        return medians_of_groups(self.ranks, values, group, total)

    def signs(self, x: Tensor) -> Tensor:
        """Return ±1 for each column of ``(1, n, m)``: see ``torch_lapeig.graph.pattern.signs``, first by number."""
        bare = checks.primal(x)
        size = bare.abs()
        candidate = size >= 0.999 * self.largest(bare)[:, None, :]
        last = torch.iinfo(torch.int64).max
        number = torch.where(candidate, self.numbers[:, None], last)
        pad = number.new_full((1, 1, x.shape[-1]), last)
        first = -self.ranks.maximum(-torch.cat([number, pad], -2).amin(-2, keepdim=True))
        sign = self.ranks.sum(torch.where(number == first, bare.sign(), 0).sum(-2, keepdim=True))
        return torch.where(sign == 0, 1, sign.sign())

    @cached_property
    def gathered(self) -> GatheredGraph:
        """Return the edges of all ranks on the first."""
        return GatheredGraph.of(self)

    def components(self, weight: Tensor) -> Tensor:
        """Return labels 0, 1, … ``(n,)`` of connected components by edges of positive weight, by first number.

        Each rank labels the components within its own nodes. Then all ranks join them by the edges between ranks.
        """
        n, numbers = self.total, self.numbers
        inner, cross = (edges[weight[edges] > 0] for edges in (self.inside, self.cross))
        part = label_components(self.row[inner].int(), self.col[inner].int(), n) if n else numbers
        first = numbers.new_full((n,), self.offsets[-1]).scatter_reduce(0, part, numbers, "amin")[part]
        roots = self.ranks.gather(numbers[first == numbers]).sort().values
        place = torch.searchsorted(roots, first)
        keys = place[self.row[cross].long()] * len(roots) + self.halo.fetch(place)[self.col[cross].long() - n]
        keys = self.ranks.gather(keys.unique()).unique()
        return label_components((keys // len(roots)).int(), (keys % len(roots)).int(), len(roots))[place]

    def at_columns(self, y: Tensor) -> Tensor:
        """Return the own rows ``(n, m)`` and those that this rank needs from others."""
        return self.halo.with_halo(y)

    def transpose(self, values: Tensor) -> Tensor:
        """Return the values of the reversed edges."""
        places, reverse, sent, received, counts = self._reversed
        result = values.new_zeros(len(self)).index_copy(0, places, values.index_select(0, reverse))
        if self.ranks.world == 1:
            return result
        others = self.ranks.moved(values.index_select(0, sent), counts, counts)
        return result.index_copy(0, received, others)

    @cached_property
    def _reversed(self) -> tuple[Tensor, Tensor, Tensor, Tensor, list[int]]:
        """Return the edges within this rank and their reverses, those sent and received, and their number by rank."""
        reverse = self.inside[self.col[self.inside].argsort(stable=True)]
        far = self.col[self.cross].long() - self.total
        rank = owners(self.halo.needed, self.offsets)[far]
        counts: list[int] = torch.bincount(rank, minlength=self.ranks.world).tolist()
        # Sent by rank and second node, received by rank and first node: both list the edges in one order.
        sent, received = self.cross[far.argsort(stable=True)], self.cross[rank.argsort(stable=True)]
        return self.inside, reverse, sent, received, counts

    direct_tension = PatternBase.direct_tension  # the ends lie on several ranks: a product is used

    def smoothness(self, values: Tensor, y: Tensor) -> Tensor:
        """Return this rank's share of ½ Σ m_ij ‖y_i − y_j‖², from the edges that begin here; differentiable."""
        return (values * self.squared_lengths(y)).sum() / 2

    # Operations that one rank cannot do.
    keys = to_dense = edges_of = restrict = part_of = bandwidth_reducing_order = to = needs_whole


solve_on_ranks.register(ShardedPattern, eigenpairs_on_ranks)
cycle_on_ranks.register(ShardedPattern, multigrid_on_ranks)
