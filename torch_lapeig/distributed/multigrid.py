"""Multigrid on several ranks: the finest level is distributed, and every rank has all coarser levels.

The method is that of `torch_lapeig.eigen.solvers.multigrid`, with unsmoothed aggregates within each rank: the first
coarse Laplacian is the Laplacian of the graph of aggregates. Every rank builds the hierarchy of that graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.distributed.halo import Halo, offsets_of
from torch_lapeig.eigen.solvers import multigrid
from torch_lapeig.eigen.solvers.multigrid import Hierarchy, SmoothedAggregation, inverse_root
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.algebra import multiply


@dataclass(frozen=True, eq=False)
class ShardedMultigrid:
    """V-cycle as an approximate A⁻¹ on blocks ``(n, m)``: three exchanges of the halo and a sum of coarse rows."""

    halo: Halo
    matrix: Tensor  # (n, n + h), D^-½ L D^-½, for the finest Laplacian L and its diagonal D
    aggregate: Tensor  # (n + h,), the coarse node of each own node and of each node of the halo
    share: Tensor  # (n + h, 1), the entry of the prolongation at these nodes, in scaled coordinates
    coarse: Hierarchy
    scale: Tensor  # (n, 1), see `Multigrid`, divided by its maximum over all ranks
    largest: Tensor  # this maximum
    smoothing: int
    near_null: int

    def __call__(self, r: Tensor) -> Tensor:
        """Return approximately A⁻¹ r, for columns whose squares fit float32: lengths from 1e-18 to 1e18."""
        b = (self.scale * r).to(self.share.dtype)
        x = self._smooth(b, torch.zeros_like(b))
        residual = self._residual(x, b)
        part = residual.new_zeros(len(self.coarse.diagonal), b.shape[1])
        part.index_add_(0, self.aggregate[: len(b)], self.share[: len(b)] * residual)
        part = self.halo.ranks.sum(part).to(self.coarse.coarse_inverse.dtype)
        (e,) = self.halo.ranks.same_on_all_ranks(self.coarse.cycle(part))
        # Enlarge coarse corrections, because unsmoothed aggregates are too stiff (Braess 1995). No exchange is needed.
        e = self.share * (1.5 * e).to(self.share.dtype).index_select(0, self.aggregate)
        x = self._smooth(multiply(self.matrix, e, residual, times=-1), x.add_(e[: len(b)]))
        return x.to(r.dtype).mul_(self.scale).mul_(self.largest).mul_(self.largest)

    def _smooth(self, r: Tensor, x: Tensor) -> Tensor:
        """Smooth x of residual r; the spectrum ends at 2 with a unit diagonal."""
        return multigrid.smooth(self._residual, r, torch.empty_like(r), x, 2.0, self.smoothing)

    def _residual(self, x: Tensor, b: Tensor) -> Tensor:
        return multiply(self.matrix, self.halo.with_halo(x), b, times=-1)


def multigrid_on_ranks(
    pattern: Any, operator: SymmetricOperator, options: SmoothedAggregation
) -> ShardedMultigrid | None:
    """Return the preconditioner of a sharded Laplacian; None where coarsening stops early."""
    if not operator.of_affinities or operator.null is None:
        raise TypeError("operator must be a Laplacian for multigrid, got another; use Lobpcg(preconditioner=None)")
    ranks, halo = pattern.ranks, pattern.halo
    ground = operator.null.ground.reshape(-1)
    mass, affinity = ground.double().square(), pattern.scaled(operator.values.detach(), ground).double()
    affinity = affinity.masked_fill(pattern.row == pattern.col, 0).clamp_min(0)
    diagonal, least = pattern.sum_rows(affinity), multigrid.LEAST_DIAGONAL * float(operator.bound) * mass
    raised, diagonal = ((diagonal > 0) & (diagonal < least)).sum(), multigrid.no_smaller(diagonal, least)
    root = inverse_root(diagonal)
    # The aggregates of each rank, −1 for nodes without edges, are numbered from its first one among all.
    largest = affinity.new_zeros(pattern.total).scatter_reduce_(0, pattern.row.long(), affinity, "amax")
    row, col, size = (part.index_select(0, pattern.inside) for part in (pattern.row, pattern.col, affinity))
    generator = torch.Generator(affinity.device).manual_seed(options.seed + ranks.rank)
    strong = multigrid.strong_edges(row, col, size, largest)
    aggregate, count = multigrid.aggregates(*strong, diagonal > 0, generator)
    offsets = offsets_of(ranks.sizes(count))
    aggregate = torch.where(aggregate >= 0, aggregate + offsets[ranks.rank], -1)
    coarse = _coarse(pattern, affinity, mass, aggregate, offsets, options)
    if ranks.any(coarse is None):
        return None
    assert coarse is not None
    (near_null,) = ranks.same_on_all_ranks(ranks.sum(raised) + coarse.near_null)
    dtype = torch.float32 if options.single else torch.float64
    matrix = pattern.assemble((diagonal > 0).double(), -pattern.scaled(affinity, root)).to(dtype)
    own_root, aggregate = halo.with_halo(diagonal.sqrt()[:, None]), halo.with_halo(aggregate)
    share = (own_root * inverse_root(coarse.diagonal)[aggregate] * (aggregate >= 0)[:, None]).to(dtype)
    scale = ground[:, None] * root[:, None]
    largest = operator.nodes.largest(scale).clamp_min(torch.finfo(scale.dtype).tiny)
    scale, largest, aggregate = (scale / largest).to(ground.dtype), largest.to(ground.dtype), aggregate.clamp_min(0)
    smoothing, near_null = options.smoothing, int(near_null)
    return ShardedMultigrid(halo, matrix, aggregate, share, coarse, scale, largest, smoothing, near_null)


def _coarse(
    pattern: Any, affinity: Tensor, mass: Tensor, aggregate: Tensor, offsets: list[int], options: SmoothedAggregation
) -> Hierarchy | None:
    """Return the hierarchy of the whole graph of aggregates, built on every rank; None where coarsening stops early."""
    ranks, total, begin = pattern.ranks, offsets[-1], offsets[pattern.ranks.rank]
    first, second = aggregate[pattern.row.long()], pattern.halo.with_halo(aggregate)[pattern.col.long()]
    across = (affinity > 0) & (first != second)
    keys, position = (first * total + second)[across].unique(return_inverse=True)  # ascending, and so among all ranks
    weight = affinity.new_zeros(len(keys)).index_add_(0, position, affinity[across])
    own = aggregate >= 0
    mass = mass.new_zeros(offsets[ranks.rank + 1] - begin).index_add_(0, aggregate[own] - begin, mass[own])
    keys, weight, mass = ranks.gather(keys), ranks.gather(weight), ranks.gather(mass)
    if total == 0:
        return None
    return options.hierarchy((keys // total).int(), (keys % total).int(), weight, mass)
