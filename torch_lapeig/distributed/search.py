"""Exact neighbours among points that lie on several ranks. Nothing here has gradients: a search only chooses edges.

Each query is searched among the points of one rank first. The distance to the k-th neighbour found there excludes the
ranks whose points all lie farther, by balls around parts of their points. The others are queried, in rounds in which no
rank receives more queries than it has points: memory is O(N / W). Distances are direct differences, and ties go to the
smaller number, so the answer does not depend on the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.distributed.halo import to_ranks
from torch_lapeig.distributed.points import ShardedPoints
from torch_lapeig.graph.search.exact import least_reach, measured, pair_distances
from torch_lapeig.graph.search.neighbors import nearest_neighbors, radius_neighbors
from torch_lapeig.graph.search.tiles import TILED_SET, Tiles
from torch_lapeig.support import checks, precision
from torch_lapeig.support.tuning import budget_of, rows_of_block

BALLS = 256  # maximum parts of a rank's points, each with a ball around it that all ranks know
ANSWERS = 2**14  # queries whose answers are sorted together
BALL_NUMBERS = 2**22  # maximum numbers for the balls of all ranks


class ShardedNeighbors(NamedTuple):
    """Neighbours of each query, ascending: places and numbers int64 ``(Q, k)``, squared distances ``(Q, k)``."""

    places: Tensor
    numbers: Tensor
    squared_distances: Tensor


class ShardedSearch:
    """Search among the points of all ranks, for queries that are results of `measured`."""

    def __init__(self, points: ShardedPoints, metric: Any = "euclidean") -> None:
        self.points, self.ranks, self.metric = points, points.ranks, metric
        if metric == "cosine" and self.ranks.any((points.x == 0).all(1).any()):
            raise self.ranks.alike(ValueError('metric="cosine" needs vectors of positive length, got zero vectors'))
        self.x = measured(checks.primal(points.x), metric)
        # Store points in the order of their numbers, so that ties go to the smaller number.
        self.order = points.numbers.argsort()
        self.sorted = self.x[self.order]

    @precision.full_precision
    def nearest(self, k: int, queries: Tensor | None = None) -> ShardedNeighbors:
        """Return the ``k`` nearest points of every query of this rank, or of every own point among the others."""
        most = self.points.offsets[-1] - (queries is None)
        if k > most:
            limit = f"{'smaller than' if queries is None else 'at most'} the number of points"
            got = f"got k={k} with {self.points.offsets[-1]} points"
            raise self.ranks.alike(ValueError(f"k must be {limit}, {got}"))
        if self.ranks.world == 1:
            return self._own(k, queries, None)
        asked = self.x if queries is None else checks.primal(queries)
        first = torch.zeros(len(asked), self.ranks.world, dtype=torch.bool, device=asked.device)
        if queries is None:
            found = self._own(k, None, None)
            pending = self._bounds(asked, self._reach(found)[:, 0])
            first[:, self.ranks.rank] = True
        else:
            pending = self._bounds(asked)
            first[torch.arange(len(asked), device=asked.device), pending.argmin(1)] = True
            found = self._ask(asked, first, self._nothing(len(asked), k), k)
        return self._ask(asked, (pending <= self._reach(found)) & ~first, found, k)

    def _reach(self, found: ShardedNeighbors) -> Tensor:
        """Return the distance ``(Q, 1)`` within which closer points than the found ones may lie."""
        return found.squared_distances[:, -1:].double().sqrt() * self._slack

    @precision.full_precision
    def within(self, reach: Tensor, queries: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return own numbers of queries, places of points and whether both are equal, for pairs within ``reach``."""
        begin, same = self.points.offsets[self.ranks.rank], least_reach(self.metric, self.x.dtype) ** 2
        given = None if queries is None else checks.primal(queries)
        asked = self.x if given is None else given

        def answer(asked: Tensor | None) -> Tensor:
            """Return query, place of a point and 1 for equal ones, of each pair ``(P, 3)``; None: own points ask."""
            if len(self.x) < 1 + (asked is None) or (asked is not None and len(asked) == 0):
                return self.order.new_zeros(0, 3)
            radii = reach[self.order][None].to(self.x.dtype)
            pairs = radius_neighbors(self.sorted[None], radii, None if asked is None else asked[None])
            query = self.order[pairs.query] if asked is None else pairs.query
            return torch.stack([query, self.order[pairs.point] + begin, (pairs.squared_distances <= same).long()], 1)

        found = [answer(None) if given is None else self.order.new_zeros(0, 3)]
        wanted = self._bounds(asked, torch.zeros_like(asked[:, 0], dtype=torch.float64), reach) <= 0
        wanted[:, self.ranks.rank] &= given is not None  # own points have been answered
        for chosen, send, recv in self._rounds(wanted):
            number, rows = (self.ranks.exchange(part, send, recv) for part in (chosen, asked[chosen]))
            pairs = answer(rows)
            source = _sources(recv, pairs.device)[pairs[:, 0]]
            pairs[:, 0] = number[pairs[:, 0]]
            found += to_ranks(self.ranks, source, pairs)
        pairs = torch.cat(found)
        return pairs[:, 0], pairs[:, 1], pairs[:, 2] > 0

    @property
    def _slack(self) -> float:
        """Return the factor of a distance that covers the rounding of its square."""
        return 1 + 8 * (self.x.shape[1] + 4) * torch.finfo(self.x.dtype).eps

    def _own(self, k: int, queries: Tensor | None, reach: Tensor | None) -> ShardedNeighbors:
        """Return the ``k`` nearest of this rank's own points; if it has fewer, the rest is at infinite distance."""
        asked = self.x if queries is None else queries
        here = min(k, len(self.x) - (queries is None))
        found = self._nothing(len(asked), k)
        if here < 1 or len(asked) == 0:
            return found
        near: Any = None
        if self.x.device.type == "cpu" and min(len(self.x), 2 * len(asked)) >= TILED_SET:
            near = Tiles(self.sorted, here).nearest(here, queries, budget_of(self.x.device).search, reach)
        if near is None:  # a set of a batch may have a single point
            near = nearest_neighbors(self.sorted[None], here, None if queries is None else queries[None])
        index = self.order[near.indices.view(len(asked), here)]
        if queries is None:
            index = torch.empty_like(index).index_copy_(0, self.order, index)
        row = torch.arange(len(asked), device=index.device).repeat_interleave(here)
        # Measure all pairs by one function, so that distances do not depend on the ranks of the points.
        distances = pair_distances(asked, row, self.x, index.flatten()).view(index.shape)
        begin = self.points.offsets[self.ranks.rank]
        for rows in _blocks(len(asked)):  # intermediate results need several times the memory of the answer
            near = _sorted(ShardedNeighbors(index[rows] + begin, self.points.numbers[index[rows]], distances[rows]))
            for whole, part in zip(found, near, strict=True):
                whole[rows, :here] = part
        return found

    def _nothing(self, queries: int, k: int) -> ShardedNeighbors:
        none = torch.full((queries, k), -1, device=self.x.device)
        last = torch.full_like(none, torch.iinfo(torch.int64).max)
        return ShardedNeighbors(none, last, self.x.new_full((queries, k), torch.inf))

    def _ask(self, queries: Tensor, wanted: Tensor, found: ShardedNeighbors, k: int) -> ShardedNeighbors:
        """Return ``found``, updated for each query by the ranks ``wanted``, bool ``(Q, W)``."""
        for chosen, send, recv in self._rounds(wanted):
            reach = found.squared_distances[chosen, -1:].sqrt().to(queries.dtype) * self._slack
            arrived = self.ranks.exchange(torch.cat([queries[chosen], reach], 1), send, recv)
            theirs = self._own(k, arrived[:, :-1].contiguous(), arrived[:, -1])
            answers = ShardedNeighbors(*(self.ranks.exchange(part, recv, send) for part in theirs))
            begin = 0
            for count in send:  # a query may go to several ranks, once to each
                for block in _blocks(count):
                    part = slice(begin + block.start, begin + min(block.stop, count))
                    rows = chosen[part]
                    both = (torch.cat([old[rows], new[part]], 1) for old, new in zip(found, answers, strict=True))
                    for old, new in zip(found, _sorted(ShardedNeighbors(*both)), strict=True):
                        old[rows] = new[:, :k]
                begin += count
        return found

    def _rounds(self, wanted: Tensor) -> list[tuple[Tensor, list[int], list[int]]]:
        """Return for each round the queries to send, by the rank asked, and their counts to and from each rank."""
        world, rank = self.ranks.world, self.ranks.rank
        counts = self.ranks.gather(wanted.sum(0)[None], [1] * world).cpu()  # (source, target)
        place = torch.arange(world)
        # Also a rank with fewer points may receive up to 4096 queries in one round.
        room = torch.tensor(self.points.offsets).diff().clamp_min(4096)
        # All ranks are asked in one round if they have room, else rank r asks rank r + s in the round s.
        shift = (place - place[:, None]) % world
        rounds = []
        for in_round in [shift == s for s in range(world)] if (counts.sum(0) > room).any() else [shift >= 0]:
            if (asked := counts * in_round).any():
                chosen = torch.cat([wanted[:, r].nonzero().flatten() for r in place[in_round[rank]].tolist()])
                rounds.append((chosen, asked[rank].tolist(), asked[:, rank].tolist()))
        return rounds

    def _balls(self, reach: Tensor | None) -> tuple[Tensor, list[int]]:
        """Build centre and radius ``(b, D + 1)`` of the balls of all ranks, and the number of each rank's balls."""
        # With the reach `(n,)` of each own point, a ball contains everything within the reach of its points.
        leaf = self.points.leaf
        count = int(leaf.max()) + 1 if len(leaf) else 0
        most = max(1, min(BALLS, BALL_NUMBERS // (self.ranks.world * (self.x.shape[1] + 1))))
        while count > most:  # merge the two halves of each part
            leaf, count = leaf // 2, (count + 1) // 2
        x = self.x.double()
        size = torch.bincount(leaf, minlength=count).clamp_min(1)
        centre = x.new_zeros(count, x.shape[1]).index_add_(0, leaf, x) / size[:, None]
        away = (x - centre[leaf]).norm(dim=1)
        away = away if reach is None else away + reach.double() * self._slack
        radius = away.new_zeros(count).scatter_reduce_(0, leaf, away, "amax")
        sizes = self.ranks.sizes(count)
        return self.ranks.gather(torch.cat([centre, radius[:, None]], 1), sizes), sizes

    def _bounds(self, queries: Tensor, within: Tensor | None = None, reach: Tensor | None = None) -> Tensor:
        """Return lower bounds ``(Q, W)`` of distances to each rank's points, or to balls of ``reach`` around them."""
        balls, sizes = self._balls(reach)
        owner, centre, radius = _sources(sizes, balls.device), balls[:, :-1], balls[:, -1]
        everything = torch.arange(len(balls), device=balls.device)
        # Infinite for a rank without points, and for some that are farther than within.
        bounds = torch.full((len(queries), self.ranks.world), torch.inf, dtype=torch.float64, device=queries.device)
        # Compare at most 512 queries at a time with the balls.
        step = min(512, rows_of_block(24 * max(1, len(balls)), queries.device))
        for begin in range(0, len(queries), step):
            rows = slice(begin, begin + step)
            block, near = queries[rows].double(), everything
            if within is not None:  # successive queries are mostly close: exclude far balls for all of them at once
                middle = block.mean(0)
                limit = ((block - middle).norm(dim=1) + within[rows]).amax() * (1 + 1e-9)
                near = ((centre - middle).norm(dim=1) * (1 - 1e-9) - radius <= limit).nonzero().flatten()
            apart = torch.cdist(block, centre[near], compute_mode="donot_use_mm_for_euclid_dist")
            least = (apart * (1 - 1e-9) - radius[near] * (1 + 1e-9)).clamp_min(0)
            rank = owner[near].expand(len(block), -1)
            bounds[rows] = bounds[rows].scatter_reduce(1, rank, least, "amin")
        return bounds


def _sources(counts: list[int], device: torch.device) -> Tensor:
    """Return the rank of each row, for ``counts`` rows from each rank in order."""
    return torch.arange(len(counts), device=device).repeat_interleave(torch.tensor(counts, device=device))


def _blocks(n: int) -> Iterator[slice]:
    return (slice(begin, begin + ANSWERS) for begin in range(0, n, ANSWERS))


def _sorted(found: ShardedNeighbors) -> ShardedNeighbors:
    """Return the neighbours ascending by distance, ties by number."""
    order = found.numbers.argsort(1)
    order = order.gather(1, found.squared_distances.gather(1, order).argsort(dim=1, stable=True))
    return ShardedNeighbors(*(part.gather(1, order) for part in found))
