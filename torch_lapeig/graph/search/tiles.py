"""Exact neighbours by tiles: parts of the points in boxes, which rule most points out.

Points are projected on a few principal directions and halved again and again across the direction in which each part is
longest, to tiles of equal size. Images under an orthogonal projection are never farther apart than the points, so that
a query is at least as far from all points of a tile as its image is from the box around theirs. The k-th neighbour in
one tile near a block of queries says how far each has to look; the tiles within that are searched, by all distances
between the block and their points (`exact`).

Bounds are computed in float64, with room for the rounding of the distances that they are compared with. Where a sample
of the blocks is near most of the tiles, these do not pay.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.graph.search.exact import Sets, nearest_in_sets, pairs_in_sets
from torch_lapeig.graph.search.projection import principal_directions, spread_rows
from torch_lapeig.support.threads import together
from torch_lapeig.support.tuning import TILE_DIRECTIONS, TILE_POINTS, TILE_SAMPLE, TILE_SHARE, rows_of_block

ROUNDING = 1e-9  # relative, of a bound in float64
DIRECTION_SAMPLE = 1024  # points that the directions of images are learnt from
FEWEST_QUERIES = 8  # of a block


FindsTiles = Callable[[Tensor], tuple[Tensor, Tensor]]


class Blocks(NamedTuple):
    """Rows in blocks of equal size: numbers and images ``(T, S)`` and ``(T, S, p)``; bool ``valid``: not padding.

    Padding repeats some of the rows, at equal steps.
    """

    number: Tensor
    image: Tensor
    valid: Tensor


class Tiles:
    """Tiles of points ``(N, D)``, finite, on the processor, for searches of k neighbours or less."""

    def __init__(self, x: Tensor, k: int = 0) -> None:
        self.x, self.size = x, max(TILE_POINTS, 2 * k)
        sample = x[spread_rows(len(x), DIRECTION_SAMPLE)].double()
        self.middle = sample.mean(0)
        self.directions = principal_directions(sample - self.middle, min(TILE_DIRECTIONS, x.shape[1]))
        self.own, largest = self._blocks(x)
        self.low, self.high = self.own.image.aminmax(dim=1)
        self.padding = int((~self.own.valid).sum(1).max())
        limits, d = torch.finfo(x.dtype), x.shape[1]
        self.slack = 1 + 8 * (d + 4) * limits.eps  # times a distance: what it may be if its square is rounded
        # Distances whose squares underflow, and the rounding of images.
        self.least = math.sqrt(2 * d * limits.tiny) + 64 * d * 2.0**-52 * largest

    def nearest(
        self, k: int, queries: Tensor | None, budget: int, reach: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Return numbers and squared distances ``(Q, k)`` of the points nearest to queries, or to each other point.

        Ascending, ties by number. None where tiles do not pay.

        Args:
            k: neighbours. queries: ``(Q, D)``; None: the points, none its own neighbour.
            reach: ``(Q,)``, distance beyond which neighbours may be any.
        """
        itself = queries is None
        blocks, asked = (self.own, self.x) if queries is None else (self._blocks(queries)[0], queries)
        wanted = k + self.padding + itself
        if wanted > self.own.number.shape[1]:
            return None
        guide = torch.arange(len(self.low))
        if queries is not None:
            guide = torch.cdist(blocks.image.mean(1), (self.low + self.high) / 2).argmin(1)

        def near(some: Tensor) -> tuple[Tensor, Tensor]:
            numbers = self.own.number[guide[some]]
            known = Sets(self.x[numbers], asked[blocks.number[some]], torch.ones_like(numbers, dtype=torch.bool), False)
            squares = nearest_in_sets(known, wanted, budget)[1][..., -1]
            within = squares.double().sqrt() * self.slack + self.least
            if reach is not None:
                within = torch.minimum(within, reach.double()[blocks.number[some]] * self.slack + self.least)
            return self._near(blocks.image[some], within, torch.zeros_like(self.low[:, 0]), guide[some])

        pairs = self._pairs_of_blocks(len(blocks.number), near)
        if pairs is None:
            return None
        indices = torch.empty(len(asked), k, dtype=torch.int64)
        distances = self.x.new_empty(len(asked), k)

        def search(some: Tensor, members: Tensor) -> None:
            number, is_query = blocks.number[some], blocks.valid[some]
            there = members < len(self.x)
            members = members.clamp_max(len(self.x) - 1)
            found, squares = nearest_in_sets(Sets(self.x[members], asked[number], there, False), k + itself, budget)
            found = members.gather(1, found.flatten(1)).view(found.shape)[is_query]
            squares, number = squares[is_query], number[is_query]
            if itself:
                found, squares = without_own(found, squares, number)
            indices[number], distances[number] = found, squares

        self._search_blocks(*pairs, search)
        return indices, distances

    def within(self, reach: Tensor, queries: Tensor | None, budget: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return query, point and squared distance of all pairs with d² ≤ ``reach`` ``(N,)`` of the point, in order.

        None where tiles do not pay. The arguments are those of `nearest`.
        """
        blocks, asked = (self.own, self.x) if queries is None else (self._blocks(queries)[0], queries)
        farthest = reach[self.own.number].amax(1).double().sqrt() * self.slack + self.least

        def near(some: Tensor) -> tuple[Tensor, Tensor]:
            image = blocks.image[some]
            return self._near(image, image.new_zeros(image.shape[:2]), farthest, None)

        pairs = self._pairs_of_blocks(len(blocks.number), near)
        if pairs is None:
            return None
        found = []

        def search(some: Tensor, members: Tensor) -> None:
            number, there = blocks.number[some], members < len(self.x)
            members = members.clamp_max(len(self.x) - 1)
            sets = Sets(self.x[members], asked[number], there, False)
            item, query, point, squares = pairs_in_sets(sets, reach[members], budget)
            kept = blocks.valid[some][item, query]
            query, point = number[item, query], members[item, point]
            if queries is None:
                kept &= query != point
            found.append((query[kept], point[kept], squares[kept]))

        self._search_blocks(*pairs, search)
        query, point, squares = (torch.cat(parts) for parts in zip(*found, strict=True))
        order = torch.from_numpy(np.argsort((query * len(self.x) + point).numpy()))
        return query[order], point[order], squares[order]

    def _blocks(self, x: Tensor) -> tuple[Blocks, float]:
        """Return points or queries in blocks by their images, and the largest distance of one from the middle."""
        images, largest = [], 0.0
        for part in x.split(rows_of_block(16 * x.shape[1], x.device, "cache")):
            centred = part - self.middle
            images.append(centred @ self.directions)
            largest = max(largest, float(torch.linalg.vector_norm(centred, dim=1).amax()))
        # Few queries in blocks as large in space as the tiles are.
        size = min(self.size, max(FEWEST_QUERIES, self.size * len(x) // len(self.x)))
        return _bisected(torch.cat(images), size), largest

    def _near(self, image: Tensor, within: Tensor, reach: Tensor, always: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return pairs of a block and a tile that some of its queries may reach, and of each block and one tile.

        Args:
            image: ``(b, S, p)``. within: ``(b, S)``, how far each query looks. reach: ``(T,)``, how far each tile
                reaches beyond its box. always: ``(b,)``, the tile that is near whatever the distance.
        """
        low, high = image.aminmax(dim=1)
        squares = _squared_gaps(low[:, None], high[:, None], self.low, self.high)
        is_near = squares <= ((within.amax(1, keepdim=True) + reach) * (1 + ROUNDING)).square_()
        if always is not None:
            is_near[torch.arange(len(image)), always] = True
        block, tile = is_near.nonzero(as_tuple=True)
        kept = []
        step = rows_of_block(32 * image[0, :, 0].numel(), image.device, "cache")
        for b, t in zip(block.split(step), tile.split(step), strict=True):
            squares = _squared_gaps(image[b], image[b], self.low[t, None], self.high[t, None])
            kept.append((squares <= ((within[b] + reach[t, None]) * (1 + ROUNDING)).square_()).any(1))
        keep = torch.cat(kept)
        if always is not None:
            keep |= tile == always[block]
        return block[keep], tile[keep]

    def _pairs_of_blocks(self, count: int, near: FindsTiles) -> tuple[Tensor, Tensor] | None:
        """Return what ``near`` finds of all blocks, block by block; None where a sample is near most of the points."""
        sample = torch.arange(0, count, max(1, count // TILE_SAMPLE))
        if len(near(sample)[1]) > TILE_SHARE * len(sample) * len(self.low):
            return None
        step = rows_of_block(
            8 * max(len(self.low), self.own.number.shape[1] * self.x.shape[1] * 4), self.x.device, "cache"
        )
        parts = torch.arange(count).split(step)
        found = together([functools.partial(near, some) for some in parts])
        block = torch.cat([some[block] for some, (block, _) in zip(parts, found, strict=True)])
        return block, torch.cat([tile for _, tile in found])

    def _search_blocks(self, block: Tensor, tile: Tensor, search: Callable[[Tensor, Tensor], None]) -> None:
        """Call ``search`` with blocks ``(b,)`` and the points in their tiles ``(b, m)``, ascending, padded by N."""
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
            search(some, members[:, : int((members < len(self.x)).sum(1).max())])

        row_bytes = member.shape[1] * (self.x.shape[1] * self.x.element_size() + 16)
        most = rows_of_block(row_bytes, self.x.device, "cache")
        piece = (count[order].cumsum(0) - 1) // max(most, 1)
        sizes = torch.bincount(piece)
        together([functools.partial(task, some) for some in order.split(sizes[sizes > 0].tolist())])


def _bisected(y: Tensor, size: int) -> Blocks:
    """Return rows ``(n, p)`` in blocks of at least ``size``, a power of two of them, by halving all parts at once."""
    n, p = y.shape
    parts = 2 ** max(0, math.floor(math.log2(n / size)))
    whole = math.ceil(n / parts) * parts
    slot, number = torch.arange(whole)[None], torch.arange(n)
    number = torch.cat([number, spread_rows(n, whole - n)])
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
    """Return squared distances between boxes, of their corners ``(..., p)``."""
    squares = low.new_zeros(())
    for corners in zip(*(corner.unbind(-1) for corner in (low, high, other_low, other_high)), strict=True):
        least, most, other_least, other_most = corners
        squares = squares + torch.maximum(least - other_most, other_least - most).clamp_min_(0).square_()
    return squares


def without_own(indices: Tensor, distances: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Return neighbours ``(Q, k)`` of ``(Q, k + 1)`` without the points of numbers ``own``."""
    itself = indices == own[:, None]
    itself[:, -1] |= ~itself.any(1)  # hidden behind k + 1 copies
    k = indices.shape[1] - 1
    return indices[~itself].reshape(-1, k), distances[~itself].reshape(-1, k)
