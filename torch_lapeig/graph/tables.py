"""Approximate squared distances of blocks of queries by one matrix product, and which points they leave in question.

    d² ≈ ‖q‖² + [−2x, ‖x‖²] · [q, 1]        of centred points x and queries q

The term ‖q‖² changes no order within a row, so that a table holds the product alone, its *values*. The error of a value
is at most its row's `slack`, from the rounding of a product of D terms. `neighbors` decides by this bound which values
suffice and which points it measures again.

A table is a `WholeRows` (few points: every value of a row in one piece, several graphs of a batch together) or a
`Tiles` (many points: the m smallest values of a row lie in the m groups of columns with the smallest minima, so that a
row is narrowed by levels of minima instead of one `topk` over it).
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from torch_lapeig._threads import together
from torch_lapeig._tuning import DEVICE_TILE_ROWS, FAN, LEVELS, THREAD_ROWS, TILE_ROWS, WHOLE_ROWS, tile_of
from torch_lapeig.graph.selection import smallest_of_rows

AnyValues = TypeVar("AnyValues", bound="Values")


class Block(NamedTuple):
    """The queries whose values a table holds, item after item.

    ``first`` is the number of the first query in its item, ``per_item`` how many there are of each item; ``queries``
    ``(R, D)``; ``squares`` ``(R,)``, ‖q‖² of the centred query; ``slack`` ``(R,)``, the largest error of a value.
    """

    first: int
    per_item: int
    queries: Tensor
    squares: Tensor
    slack: Tensor


class Table:
    """The points of a product, centred: rows [−2x, ‖x‖² − reach], an infinite last number for padding.

    Args:
        points: ``(..., N, D)``. valid: bool ``(..., N)``.
        reach: ``(..., N)``, subtracted from the squared distances.
        padding: rows to append.
    """

    def __init__(self, points: Tensor, valid: Tensor, reach: Tensor | float = 0.0, padding: int = 0) -> None:
        *lead, n, d = points.shape
        self.points_of_item = n
        count = valid.sum(-1, keepdim=True).clamp_min(1)
        self.centre = (points.sum(-2) / count)[..., None, :]
        # In place, as a table of millions of points is the larger part of the memory of a search.
        self.columns = points.new_empty(*lead, n + padding, d + 1)
        self.columns[..., n:, :d] = 0
        # Rows of padding hold finite numbers, whatever: the infinity in the last column is what counts.
        centred = torch.sub(points, self.centre, out=self.columns[..., :n, :d])
        squares = _squared_norms(centred)
        self.largest = squares.masked_fill(~valid, 0).amax(-1)
        centred.mul_(-2)
        self.columns[..., d] = torch.inf
        self.columns[..., :n, d] = (squares - reach).masked_fill(~valid, torch.inf)

    def rows(self, queries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[q, 1], ‖q‖² and the slack of queries ``(..., Q, D)``."""
        centred = queries - self.centre
        squares = _squared_norms(centred)
        slack = unit_of_slack(queries) * (squares + self.largest[..., None])
        return torch.cat([centred, torch.ones_like(centred[..., :1])], -1), squares, slack


def unit_of_slack(points: Tensor) -> float:
    """What a value of points ``(..., D)`` may be off by, in units of the squared norms."""
    return torch.finfo(points.dtype).eps * (4 + math.sqrt(points.shape[-1]))


class Values(Table, ABC):
    """A table that holds the values of one block of queries at a time; what it answers is about that block."""

    step: int  # queries of an item in a block
    rooms: int = 1  # tables that fit the budget together, each with room for a block

    def blocks(self, asked: Tensor, itself: bool) -> Iterator[Block]:
        """The queries ``(B, Q, D)`` block by block; ``itself``: they are the points, none its own neighbour."""
        for first in range(0, asked.shape[1], self.step):
            yield self.block(asked, first, itself)

    def block(self, asked: Tensor, first: int, itself: bool) -> Block:
        """One of the `blocks`: that which begins with query ``first`` of each item."""
        queries = asked[:, first : first + self.step]
        augmented, squares, slack = self.rows(queries)
        self.compute(augmented, first if itself else None)
        return Block(first, queries.shape[1], queries.reshape(-1, asked.shape[2]), squares.flatten(), slack.flatten())

    def twin(self: AnyValues) -> AnyValues:
        """A table of the same points, in the same memory, with room of its own for a block."""
        other = copy.copy(self)
        other.make_room()
        return other

    def make_room(self) -> None:
        """Allocate what values are written to, where that is kept from block to block."""

    def first_points(self, block: Block, rows: Tensor) -> Tensor:
        """The number, through all items, of the first point of the item of each of some rows of a block."""
        return rows // block.per_item * self.points_of_item

    @abstractmethod
    def compute(self, augmented: Tensor, first: int | None) -> None:
        """The values of queries ``(B, Q, D + 1)``; infinite between query r and point ``first + r``, unless None."""

    @abstractmethod
    def smallest(self, m: int) -> tuple[Tensor, Tensor]:
        """The m smallest values (fewer if there are fewer points) of each query, and their points in its item."""

    @abstractmethod
    def of_rows(self, rows: Tensor) -> Tensor:
        """All values ``(P, N)`` of some queries, int64 ``(P,)``, of the block."""

    @abstractmethod
    def within(self, reach: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        """Query and point of values ≤ reach + limit, ``(N,)`` and ``(R,)``; for a single item."""


class WholeRows(Values):
    """Every value of a row in one piece, items ``(B, N, D)`` together; blocks of ``m`` candidates fit the budget."""

    def __init__(self, points: Tensor, valid: Tensor, m: int, budget: int) -> None:
        super().__init__(points, valid)
        self.step = max(1, budget // (len(points) * row_bytes(points, m)))
        self.values = points.new_empty(0)

    def compute(self, augmented: Tensor, first: int | None) -> None:
        """One product."""
        values = augmented @ self.columns.mT
        if first is not None:
            values.diagonal(offset=first, dim1=-2, dim2=-1).fill_(torch.inf)
        self.values = values.flatten(0, 1)

    def smallest(self, m: int) -> tuple[Tensor, Tensor]:
        """Of the whole row."""
        return smallest_of_rows(self.values, min(m, self.values.shape[1]))

    def of_rows(self, rows: Tensor) -> Tensor:
        """A copy of the rows."""
        return self.values[rows]

    def within(self, reach: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        """Each value compared."""
        query, point = (self.values <= reach + limit[:, None]).nonzero(as_tuple=True)
        return query, point


def table_of(points: Tensor, valid: Tensor, m: int, budget: int) -> Values:
    """A table for points ``(B, N, D)`` and m candidates of each query; for a single item if they are many."""
    kind = WholeRows if points.shape[1] <= WHOLE_ROWS else Tiles
    return kind(points, valid, m, budget)


def nearest_by_blocks(
    table: AnyValues,
    queries: Tensor,
    itself: bool,
    k: int,
    dtype: torch.dtype,
    nearest: Callable[[AnyValues, Block], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Numbers and squared distances ``(B, Q, k)`` of queries ``(B, Q, D)``, from what ``nearest`` finds in each block.

    Blocks are done one after the other with all threads in each, or on threads of their own where there is room.
    """
    b, q, _ = queries.shape
    indices = torch.empty(b, q, k, dtype=torch.int64, device=queries.device)
    distances = torch.empty(b, q, k, dtype=dtype, device=queries.device)
    tables: queue.SimpleQueue[AnyValues] = queue.SimpleQueue()
    for twin in (table, *(table.twin() for _ in range(table.rooms - 1))):
        tables.put(twin)

    def search(first: int) -> None:
        mine = tables.get()
        try:
            block = mine.block(queries, first, itself)
            rows = slice(first, first + block.per_item)
            found = nearest(mine, block)
            indices[:, rows], distances[:, rows] = (part.reshape(b, -1, k) for part in found)
        finally:
            tables.put(mine)

    tasks = [functools.partial(search, first) for first in range(0, q, table.step)]
    if table.rooms > 1:
        together(tasks)
    else:
        for task in tasks:
            task()
    return indices, distances


def row_bytes(points: Tensor, m: int) -> int:
    """What a query of `WholeRows` takes: its values, and m candidates to measure again."""
    n, d = points.shape[-2:]
    return (n + m * d) * points.element_size()


class Tiles(Values):
    """Values of a block against tiles of columns, with room for them and the levels of their minima; for one item."""

    def __init__(self, points: Tensor, valid: Tensor, m: int, budget: int) -> None:
        n, d = points.shape[-2:]
        self.tile = tile_of(n, points.device)
        count = -(-n // self.tile)
        super().__init__(points, valid, padding=count * self.tile - n)
        self.tiles = self.columns.reshape(count, self.tile, -1).mT
        # A query takes its values, their minima, and m candidates to measure again.
        query_bytes = (count * self.tile * FAN / (FAN - 1) + m * d) * points.element_size()
        left = budget - self.columns.numel() * points.element_size()
        rows, threads = int(left / query_bytes), torch.get_num_threads() if points.device.type == "cpu" else 1
        self.rooms = threads if rows >= threads * THREAD_ROWS else 1
        most = TILE_ROWS if points.device.type == "cpu" else min(DEVICE_TILE_ROWS, n)
        self.step = max(16, min(most, rows // self.rooms))
        self.rows_held = 0
        self.make_room()

    def make_room(self) -> None:
        """Values, then minima of FAN of the level before; the last by row, to be searched as a whole."""
        count = len(self.tiles)
        self.levels = [self.columns.new_empty(count, self.step, self.tile // FAN**level) for level in range(LEVELS)]
        self.top = self.columns.new_empty(self.step, count, self.tile // FAN**LEVELS)

    def compute(self, augmented: Tensor, first: int | None) -> None:
        """A product for each tile, and its minima while it is in the cache."""
        r = self.rows_held = augmented.shape[1]
        for t, tile in enumerate(self.tiles):
            values = torch.mm(augmented[0], tile, out=self.levels[0][t, :r])
            if first is not None and (t * self.tile < first + r and first < (t + 1) * self.tile):
                low = max(first, t * self.tile)
                values[low - first :, low - t * self.tile :].diagonal().fill_(torch.inf)
            for finer, coarser in itertools.pairwise([*(level[t, :r] for level in self.levels), self.top[:r, t]]):
                torch.amin(finer.reshape(r, FAN, -1), 1, out=coarser)

    def smallest(self, m: int) -> tuple[Tensor, Tensor]:
        """Of the minima of the coarsest groups, then of the members of the groups chosen, level by level."""
        tops = self.top[: self.rows_held].flatten(1)
        values, chosen = smallest_of_rows(tops, min(m, tops.shape[1]))
        tile, column = chosen // self.top.shape[2], chosen % self.top.shape[2]
        for level in reversed(self.levels):
            tile, column, values = _smallest_members(level, tile, column, m)
        # Columns of padding have infinite values and may stand for any point.
        return values, (tile * self.tile + column).clamp_max(self.points_of_item - 1)

    def of_rows(self, rows: Tensor) -> Tensor:
        """A copy of the rows, out of all tiles."""
        return self.levels[0][:, rows].transpose(0, 1).flatten(1)

    def forget(self, candidates: Tensor) -> None:
        """Let points ``(R, m)`` of each query be infinitely far; minima stay what they were."""
        tile, column = candidates // self.tile, candidates % self.tile
        row = torch.arange(len(candidates), device=candidates.device)[:, None]
        places = (tile * self.step + row) * self.tile + column
        self.levels[0].view(-1).index_fill_(0, places.flatten(), torch.inf)

    def groups_within(self, limit: Tensor) -> Tensor:
        """How many groups of FAN points have one with a value ≤ limit ``(R,)`` for each query; int64 ``(R,)``."""
        return (self.levels[1][:, : len(limit)] <= limit[:, None]).sum((0, 2))

    def within(self, reach: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        """By the minima of groups first: members of a group are looked at only where its minimum is small enough."""
        minima = self.levels[1][:, : len(limit)]
        count = len(self.tiles)
        reaches = torch.nn.functional.pad(reach, (0, count * self.tile - len(reach)), value=-torch.inf).reshape(
            count, -1
        )
        farthest = reaches.reshape(count, FAN, -1).amax(1)
        tile, row, group = (minima <= farthest[:, None] + limit[:, None]).nonzero(as_tuple=True)
        member = group[:, None] + torch.arange(FAN, device=reach.device) * (self.tile // FAN)
        column = tile[:, None] * self.tile + member
        place = (tile * self.step + row)[:, None] * self.tile + member
        near = self.levels[0].view(-1).take(place) <= reaches.flatten().take(column) + limit[row][:, None]
        return row[:, None].expand_as(near)[near], column[near]


def _smallest_members(level: Tensor, tile: Tensor, column: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of the FAN members of each chosen group, the m smallest of each row: tiles, columns, values."""
    r, (_, rows, width) = len(tile), level.shape
    members = column[:, :, None] + torch.arange(FAN, device=tile.device) * (width // FAN)
    row = torch.arange(r, device=tile.device)[:, None]
    places = (((tile * rows + row) * width)[:, :, None] + members).flatten(1)
    values, best = smallest_of_rows(level.view(-1).take(places), min(m, places.shape[1]))
    return tile.gather(1, best // FAN), members.flatten(1).gather(1, best), values


def order_for_tiles(values: Tensor) -> Tensor:
    """An order of points in which a group of columns holds similar values: `Tiles.within` looks into few groups."""
    order, tile = values.argsort(descending=True), tile_of(len(values), values.device)
    whole = len(order) // tile * tile
    tiles = order[:whole].reshape(-1, tile // FAN, FAN).mT
    return torch.cat([tiles.flatten(), order[whole:]])


def _squared_norms(x: Tensor) -> Tensor:
    """‖x‖² of rows, without a copy of all their entries."""
    squares: Tensor = torch.linalg.vector_norm(x, dim=-1).square_()
    return squares
