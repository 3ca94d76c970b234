"""Constants that depend on the machine, each with its reason, and one policy for the size of a block of work.

Work that would need too much memory at once is done in blocks of rows: queries, edges, sources of paths. A block takes
the rows that fit a budget of bytes, which depends on the kind of device and on what becomes of the block (`Budget`).
Tolerances and other numerics stand beside their users.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

MIB = 2**20


class Budget(NamedTuple):
    """Bytes that work on one kind of device may take at a time.

    ``search``: a neighbour search above its input: its table of points and a block of distances. ``memory``: a block of
    temporary tensors, read and written a few times. ``cache``: a block that is made and used up at once, which costs
    less while it stays in the processor's cache. ``factors``: sparse factors of a matrix, which are kept.
    """

    search: int
    memory: int
    cache: int
    factors: int


BUDGETS = {
    # search: with it 10⁶ points × 50 in float32 are searched in 512 MiB above the input (benchmarks/neighbors.py).
    # cache: half of the second-level cache of a server's core. Squared lengths of 260,000 edges × 50 in float64 took
    # 61 ms in blocks of 1 MiB, 90 ms of 8 MiB and 163 ms of 32 MiB; distances of 300,000 pairs × 50 took 64, 110, 232.
    "cpu": Budget(search=384 * MIB, memory=128 * MIB, cache=1 * MIB, factors=2048 * MIB),
    # Every other device. A launch costs some microseconds whatever its size, so that blocks are as large as fits beside
    # a network; nothing is gained by the cache. Not measured.
    "accelerator": Budget(search=2048 * MIB, memory=512 * MIB, cache=512 * MIB, factors=0),
}


def budget_of(device: torch.device) -> Budget:
    """The budget for work on a device."""
    return BUDGETS["cpu" if device.type == "cpu" else "accelerator"]


def rows_of_block(row_bytes: float, device: torch.device, room: Literal["memory", "cache"] = "memory") -> int:
    """How many rows that take ``row_bytes`` each make a block on a device; at least one."""
    return max(1, int(getattr(budget_of(device), room) // max(row_bytes, 1)))


# --- Neighbour search -------------------------------------------------------------------------------------------------

# Points up to which the search takes whole rows of distances, several graphs of a batch together: beyond, one `topk`
# over a row takes longer than minima of tiles and their search level by level.
WHOLE_ROWS = 4096
# Columns whose minima are taken while they are in the cache, and queries against them at a time: a tile of distances in
# float32 has 8 MiB, a product large enough to run at full speed.
TILE = 2048
TILE_ROWS = 1024
# Columns to a group, groups to a group of groups, and so on for so many levels: the row of minima that is searched as a
# whole is FAN ** LEVELS = 512 times shorter than the row of distances. FAN ** LEVELS divides TILE.
FAN = 8
LEVELS = 3

# --- Eigensolvers, measured on two cores -----------------------------------------------------------------------------

# Dense `eigh` wins up to about here, in graphs · nodes³: one graph of 430 nodes, or 64 of 108.
DENSE_WORK = 8e7
# Graphs of a batch are solved together up to here, and one by one beyond; one graph up to here is left to Lanczos for
# longer.
SMALL_NODES = 2000
# Products of a block of m vectors with a dense matrix that take the time of its `eigh`, times m / n. For m = 16: 100 at
# n = 512, 230 at 1000, 500 at 2000 (on one core).
DENSE_PRODUCTS = 4.0
# What does not converge otherwise is done again by `Eigh` up to here: 8000² float64 are 0.5 GiB.
FALLBACK_NODES = 8000
# One sparse graph of more nodes is solved in reverse Cuthill–McKee order: its products are several times faster.
REORDER_NODES = 10**5
