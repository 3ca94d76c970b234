"""Exact neighbours by tiles: parts of the points in boxes, most of which a bound excludes.

Points are projected on a few principal directions. The set is halved repeatedly, each part across the direction in
which it is longest, to tiles of equal size. Images under an orthogonal projection are never farther apart than the
points, so the distance of a query to the points of a tile is at least the distance of its image to the box around their
images. One tile near a block of queries is searched first; the distance to the k-th neighbour there bounds the search
of each query. The tiles within this bound are searched, by all distances between the block and their points (`exact`).

Bounds are computed in float64, with a margin for the rounding of the distances that they are compared with. Tiles do
not pay where a sample of the blocks is near most of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.graph.search import exact
from torch_lapeig.support.progress import reporting
from torch_lapeig.support.threads import together
from torch_lapeig.support.tuning import rows_of_block

TILED_SET = 4096  # points from which on tiles are tried; half as many queries are enough to try them
TILE_POINTS = 32  # minimum points of a tile
TILE_SHARE = 0.4  # maximum share of all tiles that a sample of blocks may be near


# Blocks of queries, and for each a tile that some of them may reach, both int64 ``(E,)``, block by block.
BlockTiles = tuple[Tensor, Tensor]


class Blocks(NamedTuple):
    """Points or queries in blocks of equal size: numbers ``(T, S)``, images ``(T, S, p)``, and bool ``(T, S)``."""

    number: Tensor
    image: Tensor
    valid: Tensor  # False for padding, which repeats points or queries at equal steps


class Tiles:
    """Tiles of points ``(N, D)``, finite, on the processor, for searches of at most k neighbours."""

    def __init__(self, x: Tensor, k: int = 0) -> None:
        self.x, self.size = x, max(TILE_POINTS, 2 * k)
        sample = x[exact.spread_rows(len(x), 1024)].double()  # to learn the directions from
        self.middle = sample.mean(0)
        self.directions = exact.principal_directions(sample - self.middle, min(8, x.shape[1]))
        self.own, largest = self._blocks(x)
        self.low, self.high = self.own.image.aminmax(dim=1)
        self.padding = int((~self.own.valid).sum(1).max())
        limits, d = torch.finfo(x.dtype), x.shape[1]
        # Largest factor between a distance and the root of its rounded square.
        self.slack = 1 + 8 * (d + 4) * limits.eps
        # Distances whose squares underflow, and the rounding of images.
        self.least = math.sqrt(2 * d * limits.tiny) + 64 * d * 2.0**-52 * largest

    def nearest(
        self, k: int, queries: Tensor | None, budget: int | None, reach: Tensor | None = None
    ) -> exact.Nearest | None:
        """Return the points nearest to queries, or to each other point, ``(Q, k)``; None where tiles do not pay."""
        itself = queries is None
        blocks, asked = (self.own, self.x) if queries is None else (self._blocks(queries)[0], queries)
        wanted = k + self.padding + itself
        if wanted > self.own.number.shape[1]:
            return None
        guide = torch.arange(len(self.low))
        if queries is not None:
            guide = torch.cdist(blocks.image.mean(1), (self.low + self.high) / 2).argmin(1)

        def near(some: Tensor) -> BlockTiles:
            numbers = self.own.number[guide[some]]
            there = torch.ones_like(numbers, dtype=torch.bool)
            sets = exact.Sets(self.x[numbers], asked[blocks.number[some]], there, False)
            kth = exact.nearest_in_sets(sets, wanted, budget).squared_distances[..., -1]
            within = kth.double().sqrt() * self.slack + self.least
            if reach is not None:  # beyond which the result may hold any points
                within = torch.minimum(within, reach.double()[blocks.number[some]] * self.slack + self.least)
            return self._near(blocks.image[some], within, torch.zeros_like(self.low[:, 0]), guide[some])

        indices = torch.empty(len(asked), k, dtype=torch.int64)
        distances = self.x.new_empty(len(asked), k)

        def search(number: Tensor, is_query: Tensor, members: Tensor, sets: exact.Sets) -> None:
            place, squares = exact.nearest_in_sets(sets, k + itself, budget)
            found = exact.Nearest(members.gather(1, place.flatten(1)).view(place.shape)[is_query], squares[is_query])
            number = number[is_query]
            indices[number], distances[number] = without_own(found, number) if itself else found

        return exact.Nearest(indices, distances) if self._search(blocks, asked, near, search) else None

    def within(self, reach: Tensor, queries: Tensor | None, budget: int) -> exact.NeighborPairs | None:
        """Return all pairs with d² ≤ ``reach`` ``(N,)`` of the point, ascending; None where tiles do not pay."""
        blocks, asked = (self.own, self.x) if queries is None else (self._blocks(queries)[0], queries)
        farthest = reach[self.own.number].amax(1).double().sqrt() * self.slack + self.least

        def near(some: Tensor) -> BlockTiles:
            image = blocks.image[some]
            return self._near(image, image.new_zeros(image.shape[:2]), farthest, None)

        nobody = self.own.number.new_zeros(0)
        found = [exact.NeighborPairs(nobody, nobody, nobody, self.x.new_zeros(0))]

        def search(number: Tensor, is_query: Tensor, members: Tensor, sets: exact.Sets) -> None:
            item, query, point, squares = exact.pairs_in_sets(sets, reach[members], budget)
            kept = is_query[item, query]
            query, point = number[item, query], members[item, point]
            if queries is None:
                kept &= query != point
            found.append(exact.NeighborPairs(torch.zeros_like(query), query, point, squares).take(kept))

        if not self._search(blocks, asked, near, search):
            return None
        every = exact.NeighborPairs.cat(found)
        return every.take(torch.from_numpy(np.argsort((every.query * len(self.x) + every.point).numpy())))

    def _blocks(self, x: Tensor) -> tuple[Blocks, float]:
        """Return points or queries in blocks by their images, and their largest distance from the middle."""
        images, largest = [], 0.0
        for part in x.split(rows_of_block(16 * x.shape[1], x.device, "cache")):
            centred = part - self.middle
            images.append(centred @ self.directions)
            largest = max(largest, float(torch.linalg.vector_norm(centred, dim=1).amax()))
        # Fewer queries than points form smaller blocks, so that a block fills as much space as a tile.
        size = min(self.size, max(8, self.size * len(x) // len(self.x)))
        return _bisected(torch.cat(images), size), largest

    def _near(self, image: Tensor, within: Tensor, reach: Tensor, always: Tensor | None) -> BlockTiles:
        """Return the tiles that queries of a block may reach, by reaches of queries ``(b, S)`` and tiles ``(T,)``."""
        rounding = 1 + 1e-9  # relative, of a bound in float64
        low, high = image.aminmax(dim=1)
        squares = _squared_gaps(low[:, None], high[:, None], self.low, self.high)
        is_near = squares <= ((within.amax(1, keepdim=True) + reach) * rounding).square_()
        if always is not None:
            is_near[torch.arange(len(image)), always] = True
        block, tile = is_near.nonzero(as_tuple=True)
        kept = []
        step = rows_of_block(32 * image[0, :, 0].numel(), image.device, "cache")
        for b, t in zip(block.split(step), tile.split(step), strict=True):
            squares = _squared_gaps(image[b], image[b], self.low[t, None], self.high[t, None])
            kept.append((squares <= ((within[b] + reach[t, None]) * rounding).square_()).any(1))
        keep = torch.cat(kept)
        if always is not None:
            keep |= tile == always[block]
        return block[keep], tile[keep]

    def _search(
        self, blocks: Blocks, asked: Tensor, near: Callable[[Tensor], BlockTiles], search: Callable[..., None]
    ) -> bool:
        """Call ``search`` with queries ``(b, S)``, which are valid, points of their tiles ``(b, m)``, and the sets."""
        # Return False, without a search, where a sample of blocks is near most of the tiles.
        every = torch.arange(len(blocks.number))
        sample = every[:: max(1, len(every) // 16)]
        if len(near(sample)[1]) > TILE_SHARE * len(sample) * len(self.low):
            return False
        row_bytes = 8 * max(len(self.low), self.own.number.shape[1] * self.x.shape[1] * 4)
        step = rows_of_block(row_bytes, self.x.device, "cache")
        parts = every.split(step)
        found = together([functools.partial(near, some) for some in parts])
        block = torch.cat([some[block] for some, (block, _) in zip(parts, found, strict=True)])
        tile = torch.cat([tile for _, tile in found])
        member = torch.where(self.own.valid, self.own.number, len(self.x))
        count = torch.bincount(block)
        begin, order = count.cumsum(0) - count, count.argsort()
        order = order[count[order] > 0]

        def task(some: Tensor) -> None:
            column = torch.arange(int(count[some].max()))
            there = column < count[some][:, None]
            tiles = tile[torch.where(there, begin[some][:, None] + column, 0)]
            members = member[tiles].masked_fill_(~there[..., None], len(self.x)).flatten(1)
            members = torch.from_numpy(np.sort(members.numpy(), axis=1))
            members = members[:, : int((members < len(self.x)).sum(1).max())]
            number, there = blocks.number[some], members < len(self.x)
            members = members.clamp_max(len(self.x) - 1)
            search(number, blocks.valid[some], members, exact.Sets(self.x[members], asked[number], there, False))

        row_bytes = member.shape[1] * (self.x.shape[1] * self.x.element_size() + 16)
        most = rows_of_block(row_bytes, self.x.device, "cache")
        piece = (count[order].cumsum(0) - 1) // max(most, 1)
        sizes = torch.bincount(piece)
        together(reporting([functools.partial(task, some) for some in order.split(sizes[sizes > 0].tolist())]))
        return True


def _bisected(y: Tensor, size: int) -> Blocks:
    """Return rows ``(n, p)`` in 2^h blocks of at least ``size`` rows, by halving all parts h times."""
    n, p = y.shape
    parts = 2 ** max(0, math.floor(math.log2(n / size)))
    whole = math.ceil(n / parts) * parts
    slot, number = torch.arange(whole)[None], torch.arange(n)
    number = torch.cat([number, exact.spread_rows(n, whole - n)])
    y = y[number][None]
    while len(slot) < parts:
        half = slot.shape[1] // 2
        longest = y.var(1).argmax(1)[:, None, None].expand(-1, 2 * half, 1)
        order = torch.from_numpy(np.argpartition(y.gather(2, longest)[..., 0].numpy(), half, axis=1))
        slot = slot.gather(1, order).view(-1, half)
        place = (order + torch.arange(len(order))[:, None] * order.shape[1]).flatten()
        y = y.flatten(0, 1).index_select(0, place).view(-1, half, p)
    return Blocks(number[slot], y, slot < n)


def _squared_gaps(low: Tensor, high: Tensor, other_low: Tensor, other_high: Tensor) -> Tensor:
    """Return squared distances between boxes, given their lower and upper corners ``(..., p)``."""
    squares = low.new_zeros(())
    for corners in zip(*(corner.unbind(-1) for corner in (low, high, other_low, other_high)), strict=True):
        least, most, other_least, other_most = corners
        squares = squares + torch.maximum(least - other_most, other_least - most).clamp_min_(0).square_()
    return squares


def without_own(found: exact.Nearest, own: Tensor) -> exact.Nearest:
    """Return neighbours ``(Q, k)`` of ``(Q, k + 1)`` without each query's own number ``own`` ``(Q,)``."""
    itself = found.indices == own[:, None]
    itself[:, -1] |= ~itself.any(1)  # the query itself is absent behind k + 1 copies
    return exact.Nearest(*(part[~itself].reshape(-1, part.shape[1] - 1) for part in found))
