"""Edges whose first nodes lie on this rank, with the interface of `torch_lapeig.graph.pattern.SparsePattern`.

Weights, Laplacian, operator, solvers and the differentiation rule use only patterns, so all of them work on shards.
Each rank stores its own rows. Their columns are renumbered to [own | halo], and values at the halo's nodes are fetched.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from torch_lapeig.distributed.gathered import GatheredGraph, eigenpairs_on_ranks
from torch_lapeig.distributed.halo import Halo, ShardedMatrix, owners
from torch_lapeig.distributed.multigrid import multigrid_on_ranks
from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.distributed.selection import medians_of_groups
from torch_lapeig.eigen.solve import solve_on_ranks
from torch_lapeig.eigen.solvers.multigrid import cycle_on_ranks
from torch_lapeig.graph.algebra import csr, edge_products, label_components
from torch_lapeig.graph.pattern import PatternBase, SparsePattern
from torch_lapeig.graph.search.exact import pair_distances
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property


def needs_whole(self: Any, *_: Any, **__: Any) -> NoReturn:
    """Refuse a call, as a method of objects that several ranks share."""
    raise TypeError("this call needs a whole graph, got rows on several ranks; docs/distributed.md lists what does not")


class ShardedPattern(SparsePattern):
    """Edges that begin on this rank; the two directions of an edge may lie on different ranks.

    Args:
        ranks: the processes that share the graph; each method must be called on all of them.
        offsets: the nodes ``offsets[r]`` to ``offsets[r + 1]`` of all belong to rank r.
        row: int64 ``(E,)``, first node of each edge among the own ones, ascending.
        place: int64 ``(E,)``, second node among all, ascending within each row.
        numbers: int64 ``(n,)``, 0 to N − 1, a number of each own node that does not depend on the ranks; random vectors
            and ties depend on it.

    The arguments are not checked here; `ShardedGraph.from_rows` checks the edges that it receives.

    >>> row, col = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> path = ShardedPattern(Ranks(), [0, 3], row, col, torch.arange(3))
    >>> path.sum_rows(torch.ones(4))
    tensor([1., 2., 1.])
    """

    is_sharded = True

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
        own.update(sum=ranks.total, sums=ranks.totals, maximum=ranks.maximum, any=ranks.any, agree=ranks.agree)
        own.update(compare=ranks.agree, same_on_all_ranks=ranks.same_on_all_ranks, number_of=lambda n: offsets[-1])
        self.halo = Halo(ranks, offsets, needed)
        is_own = self.col < n
        self.inner, self.cross = is_own.nonzero().flatten(), (~is_own).nonzero().flatten()

    def __repr__(self) -> str:
        return f"ShardedPattern({self.total} of {self.offsets[-1]} nodes, {len(self)} edges, {self.ranks})"

    # --- Operations on all nodes --------------------------------------------------------------------------------------

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest magnitude in each column over all ranks; infinite where there is a NaN."""
        return self.ranks.maximum(super().largest(x).nan_to_num(torch.inf, torch.inf))

    def centre(self, x: Tensor) -> Tensor:
        """Return the mean ``(..., 1, D)`` of node values over all ranks, a constant."""
        return self.ranks.sum(checks.primal(x).sum(-2, keepdim=True)) / self.offsets[-1]

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

        Each rank labels the components within its own nodes. Then the smallest number of each component is exchanged
        through the halos until nothing changes: at most as many rounds as a path changes ranks.
        """
        n, numbers = self.total, self.numbers
        inner, cross = (edges[weight[edges] > 0] for edges in (self.inner, self.cross))
        part = label_components(self.row[inner].int(), self.col[inner].int(), n) if n else numbers
        parts = int(part.max()) + 1 if n else 0
        label = numbers.new_full((parts,), torch.iinfo(torch.int64).max).scatter_reduce(0, part, numbers, "amin")
        first, second = part[self.row[cross].long()], self.col[cross].long() - n
        changed = self.ranks.world > 1
        while changed:
            reached = label.scatter_reduce(0, first, self.halo.fetch(label[part])[second], "amin")
            changed = self.ranks.any(not torch.equal(reached, label))
            label = reached
        at_node = label[part]
        roots = self.ranks.gather(numbers[at_node == numbers]).sort().values
        return torch.searchsorted(roots, at_node)

    # --- Values at the ends of edges ----------------------------------------------------------------------------------

    def at_col(self, nodes: Tensor) -> Tensor:
        """Return node values at the second node of each edge."""
        return self.halo.with_halo(nodes.reshape(-1)).index_select(0, self.col)

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
        reverse = self.inner[self.col[self.inner].argsort(stable=True)]
        far = self.col[self.cross].long() - self.total
        rank = owners(self.halo.needed, self.offsets)[far]
        counts: list[int] = torch.bincount(rank, minlength=self.ranks.world).tolist()
        # Sent by rank and second node, received by rank and first node: both list the edges in one order.
        sent, received = self.cross[far.argsort(stable=True)], self.cross[rank.argsort(stable=True)]
        return self.inner, reverse, sent, received, counts

    # --- Products -----------------------------------------------------------------------------------------------------

    def direct_matmul(self, values: Tensor, y: Tensor) -> Tensor:
        """Return `matmul` without gradients, for ``(n, m)``."""
        return self.to_matrix(values).times(y)

    def direct_products(self, x: Tensor, y: Tensor) -> Tensor:
        """Return `products` without gradients, for ``(n, m)``."""
        return edge_products(self.crow, self.row, self.col, x, self.halo.with_halo(y.detach()))

    def direct_lengths(self, x: Tensor) -> Tensor:
        """Return `squared_lengths` without gradients."""
        others = self.halo.with_halo(self._points(x.detach()))
        return pair_distances(others, self.row, others, self.col) if len(self) else x.new_zeros(0)

    direct_tension = PatternBase.direct_tension  # the ends lie on several ranks: a product is used

    def smoothness(self, values: Tensor, y: Tensor) -> Tensor:
        """Return this rank's share of ½ Σ m_ij ‖y_i − y_j‖², from the edges that begin here; differentiable."""
        return (values * self.squared_lengths(y)).sum() / 2

    def to_matrix(self, values: Tensor) -> ShardedMatrix:  # type: ignore[override]
        """Return M as a matrix for `multiply`, without gradients."""
        values = values.detach()
        return self._sharded(self._inner_pattern.to_matrix(values.index_select(0, self.inner)), values)

    def assemble(self, diagonal: Tensor, values: Tensor) -> ShardedMatrix:  # type: ignore[override]
        """Return diag + M as a matrix for `multiply`, without gradients."""
        values = values.detach()
        return self._sharded(self._inner_pattern.assemble(diagonal, values.index_select(0, self.inner)), values)

    def multiply(  # type: ignore[override]
        self,
        matrix: ShardedMatrix,
        y: Tensor,
        other: Tensor | None = None,
        *,
        times: float = 1,
        plus: float = 1,
        in_place: bool = False,
    ) -> Tensor:
        """Return times · matrix · y + plus · other for a matrix of this pattern and ``(..., n, m)``, in new memory."""
        others = None if other is None else self._points(other)
        return matrix.times(self._points(y), others, times, plus).reshape(y.shape)

    @cached_property
    def _inner_pattern(self) -> SparsePattern:
        return SparsePattern.trusted(self.row[self.inner], self.col[self.inner], self.shape)

    @cached_property
    def _far(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the border, rows with edges to the halo, where the edges of each begin, and their columns there."""
        border, counts = self.row[self.cross].unique_consecutive(return_counts=True)
        begin = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        return border, begin.to(torch.int32), (self.col[self.cross] - self.total).to(torch.int32)

    def _sharded(self, own: Tensor, values: Tensor) -> ShardedMatrix:
        border, begin, col = self._far
        far = csr(begin, col, values.index_select(0, self.cross), (len(border), len(self.halo)))
        return ShardedMatrix(own, far, border, self.halo)

    # Operations that one rank cannot do.
    keys = to_dense = edges_of = restrict = part_of = item_of = bandwidth_reducing_order = to = needs_whole


solve_on_ranks.register(ShardedPattern, eigenpairs_on_ranks)
cycle_on_ranks.register(ShardedPattern, multigrid_on_ranks)
