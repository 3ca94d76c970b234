"""Exact neighbours among the points of one rank, whose parts have balls that rule most of them out.

Points of few intrinsic dimensions in a space of many have no k-d tree that pays, but their parts by bisection are small
and apart: a tile of queries needs the tiles near it only. Where most tiles are near each other, and where a tree pays,
all points are searched at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig._tuning import rows_of_block
from torch_lapeig.graph.distances import pair_distances
from torch_lapeig.graph.neighbors import nearest_neighbors
from torch_lapeig.graph.tree import tree_pays

# Points of a tile, about; as many queries are searched together. 100,000 points of a roll in 10 dimensions took 7.9 s
# with 128, 11.6 with 256, 14 with 512, and 27 s all at once.
TILE = 128
SAMPLE = 16  # tiles that are looked at to see whether the others are far enough
WORTH = 0.4  # of the points near a tile, up to which it pays to gather them


def merged(leaf: Tensor, leaves: int, most: int) -> Tensor:
    """The leaves put together to at most so many parts, by the halves that they came from."""
    while leaves > most:
        leaf, leaves = leaf // 2, (leaves + 1) // 2
    return leaf


class Tiles:
    """Points ``(n, D)`` with neighbours in space mostly together, and a ball around each tile of them.

    Args:
        numbers: int64 ``(n,)``; ties go to the smaller one. leaf: int64 ``(n,)``, ascending: the part of each point.
    """

    def __init__(self, x: Tensor, numbers: Tensor, leaf: Tensor) -> None:
        self.x, self.numbers = x, numbers
        self.order = numbers.argsort()
        leaves = int(leaf.max()) + 1 if len(leaf) else 0
        tile = merged(leaf, leaves, max(1, len(x) // TILE))
        tiles = int(tile.max()) + 1 if len(tile) else 0
        self.size = torch.bincount(tile, minlength=tiles)
        self.begin = self.size.cumsum(0) - self.size
        points = x.double()
        self.centre = points.new_zeros(tiles, x.shape[1]).index_add_(0, tile, points) / self.size[:, None].clamp_min(1)
        away = (points - self.centre[tile]).norm(dim=1)
        self.radius = away.new_zeros(tiles).scatter_reduce_(0, tile, away, "amax")
        self.slack = 1 + 8 * (x.shape[1] + 4) * torch.finfo(x.dtype).eps

    def nearest(self, k: int, queries: Tensor | None = None, reach: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Positions and squared distances ``(Q, k)`` of the points nearest to queries, or to each other point.

        Args:
            k: at most the number of points, less one without queries.
            reach: ``(Q,)``, distance beyond which neighbours are of no interest: there may be none (−1, infinitely
                far) or any.
        """
        asked = self.x if queries is None else queries
        if len(self.size) < 4 or tree_pays(self.x, len(asked), k):
            return self._among(asked, k, self.order, queries is None, 0)
        blocks = self._blocks(queries, reach, k)
        sample = blocks[:: max(1, len(blocks) // SAMPLE)]
        near = sum(int(self.size[self._near(asked[rows], r)].sum()) for rows, r in sample)
        if near > WORTH * len(sample) * len(self.x):
            return self._among(asked, k, self.order, queries is None, 0)
        # Kept where it belongs at once: small tensors between large ones that come and go hold their memory.
        index = torch.empty(len(asked), k, dtype=torch.int64, device=asked.device)
        distances = asked.new_empty(len(asked), k)
        for rows, r in blocks:
            tiles = self._near(asked[rows], r)
            size = self.size[tiles]
            shift = (self.begin[tiles] - (size.cumsum(0) - size)).repeat_interleave(size)
            members = torch.arange(int(size.sum()), device=shift.device) + shift
            members = members[self.numbers[members].argsort()]
            index[rows], distances[rows] = self._among(asked[rows], k, members, queries is None, rows.start)
        return index, distances

    def _blocks(self, queries: Tensor | None, reach: Tensor | None, k: int) -> list[tuple[slice, Tensor]]:
        """Queries that are searched together, and how far each may have to look."""
        if queries is not None:
            bound = self._bound(queries, k)
            reach = bound if reach is None else torch.minimum(reach.double(), bound)
            starts = range(0, len(queries), TILE)
            return [(slice(s, min(s + TILE, len(queries))), reach[s : s + TILE]) for s in starts]
        blocks = []
        for begin, size in zip(self.begin.tolist(), self.size.tolist(), strict=True):
            rows = slice(begin, begin + size)
            if size > k:
                apart = torch.cdist(self.x[rows].double(), self.x[rows].double()).fill_diagonal_(torch.inf)
                within = apart.kthvalue(k, dim=1).values * (1 + 1e-6) + 1e-6 * self.radius.max()
            else:
                within = self._bound(self.x[rows], k + 1)
            blocks.append((rows, within))
        return blocks

    def _bound(self, queries: Tensor, k: int) -> Tensor:
        """A distance ``(Q,)`` within which each query has ``k`` points, by the balls that hold as many."""
        full = self.size >= k
        if not full.any():
            return queries.new_full((len(queries),), torch.inf, dtype=torch.float64)
        centre, radius = self.centre[full], self.radius[full]
        step = rows_of_block(24 * len(centre), queries.device, "cache")
        blocks = queries.double().split(step)
        return torch.cat([(torch.cdist(block, centre) + radius).amin(1) for block in blocks]) * (1 + 1e-6)

    def _near(self, queries: Tensor, reach: Tensor) -> Tensor:
        """The tiles that may hold a point within reach of one of the queries, ascending."""
        queries, reach = queries.double(), reach * self.slack
        middle = queries.mean(0)
        farthest = ((queries - middle).norm(dim=1) + reach).amax()
        some = ((self.centre - middle).norm(dim=1) - self.radius <= farthest * (1 + 1e-9)).nonzero().flatten()
        apart = torch.cdist(queries, self.centre[some], compute_mode="donot_use_mm_for_euclid_dist")
        least = apart * (1 - 1e-9) - self.radius[some] * (1 + 1e-9)
        near: Tensor = some[(least <= reach[:, None]).any(0)]
        return near

    def _among(self, asked: Tensor, k: int, members: Tensor, itself: bool, first: int) -> tuple[Tensor, Tensor]:
        """The nearest of ``members``, ascending by number; with ``itself`` the queries are points from ``first`` on."""
        points = self.x[members]
        if itself and len(asked) == len(self.x):  # all of them, in another order
            found = nearest_neighbors(points[None], k).indices[0]
            index = torch.empty_like(found).index_copy_(0, members, members[found])
        else:
            here = min(k + itself, len(members))
            if here == 0:
                none = torch.full((len(asked), k), -1, device=members.device)
                return none, asked.new_full(none.shape, torch.inf)
            index = members[nearest_neighbors(points[None], here, asked[None]).indices[0]]
            if itself:
                own = index == torch.arange(first, first + len(asked), device=index.device)[:, None]
                own[:, -1] |= ~own.any(1)  # hidden behind k + 1 copies
                index = index[~own].reshape(-1, k)
        row = torch.arange(len(asked), device=index.device)[:, None].expand_as(index)
        distances = pair_distances(asked, row.flatten(), self.x, index.flatten())
        pad = (0, k - index.shape[1])  # fewer in reach than asked for
        distances = torch.nn.functional.pad(distances.reshape(index.shape), pad, value=torch.inf)
        return torch.nn.functional.pad(index, pad, value=-1), distances
