"""Edges between new points, on any rank, and points that lie on several ranks: how `KNN` and `Radius` go on to them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.distributed.halo import Halo, counts_by_rank, owners
from torch_lapeig.distributed.pattern import ShardedPattern
from torch_lapeig.distributed.search import Search
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.rules import KNN, Radius


class ShardedExtension(NamedTuple):
    """Edges of new points: see `torch_lapeig.graph.rules.Extension`; ``place`` int64 ``(E,)`` among all points."""

    query: Tensor
    place: Tensor
    connectivity: Tensor
    same: Tensor


def extension(search: Search, rule: KNN | Radius, queries: Tensor, reach: Tensor) -> ShardedExtension:
    """Edges of new points ``(Q, D)`` by a rule, with the ``reach`` ``(n,)`` of each own point: as its ``extend``."""
    total = search.points.offsets[-1]
    reached = search.within(reach, queries)
    same = _first_equal(reached.query[reached.equal], reached.place[reached.equal], len(queries), total)
    if isinstance(rule, Radius):
        return ShardedExtension(reached.query, reached.place, torch.ones_like(queries[:, 0])[reached.query], same)
    k = min(rule.k, total)
    nearest = search.nearest(k, queries).places
    query = torch.arange(len(queries), device=queries.device).repeat_interleave(k)
    keys, back = query * total + nearest.flatten(), reached.query * total + reached.place
    mutual, alone = torch.isin(keys, back), ~torch.isin(back, keys)
    if rule.symmetrize == "mutual":
        query, place = query[mutual], nearest.flatten()[mutual]
        return ShardedExtension(query, place, queries.new_ones(len(query)), same)
    one_sided = 0.5 if rule.symmetrize == "mean" else 1.0
    weight = torch.where(mutual, 1.0, one_sided).to(queries.dtype)
    query = torch.cat([query, reached.query[alone]])
    place = torch.cat([nearest.flatten(), reached.place[alone]])
    return ShardedExtension(query, place, torch.cat([weight, weight.new_full((int(alone.sum()),), one_sided)]), same)


def with_own_edges(found: ShardedExtension, pattern: ShardedPattern, weight: Tensor) -> ShardedExtension:
    """The edges with those of queries that are points replaced by these points' own, of ``weight`` each."""
    asked = (found.same >= 0).nonzero().flatten()
    ranks, offsets = pattern.ranks, pattern.offsets
    places = found.same[asked]
    order = owners(places, offsets).argsort(stable=True)
    send = counts_by_rank(places, offsets)
    recv = ranks.counts(send)
    nodes = ranks.exchange(places[order], send, recv) - offsets[ranks.rank]
    position, edge = SparsePattern.edges_of(pattern, nodes)
    begin = offsets[ranks.rank]
    every = torch.cat([torch.arange(begin, begin + pattern.total, device=edge.device), pattern.halo.needed])
    count = torch.bincount(position, minlength=len(nodes))
    back = [int(part.sum()) for part in count.split(recv)]
    coming = ranks.counts(back)
    degree = ranks.exchange(count, recv, send)
    others = ranks.exchange(every[pattern.col[edge].long()], back, coming)
    connectivity = ranks.exchange(weight[edge], back, coming)
    query = asked[order].repeat_interleave(degree)
    rest = found.same[found.query] < 0
    return ShardedExtension(
        torch.cat([found.query[rest], query]),
        torch.cat([found.place[rest], others]),
        torch.cat([found.connectivity[rest], connectivity.to(found.connectivity.dtype)]),
        found.same,
    )


def fetched(search: Search, place: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """The number of each place among the distinct ones, and the rows there of own rows ``(n, ...)``; differentiable."""
    distinct, number = place.unique(return_inverse=True)
    halo = Halo(search.ranks, search.points.offsets, distinct)
    return number, *(halo.fetch(part) for part in rows)


def _first_equal(query: Tensor, place: Tensor, queries: int, total: int) -> Tensor:
    """A point equal to each query, int64 ``(Q,)``, the first one by place; −1 for none."""
    none = torch.full((queries,), total, device=query.device)
    first = none.scatter_reduce(0, query, place, "amin")
    return torch.where(first < total, first, -1)
