"""Constants that depend on the machine, each with its reason, and one policy for the size of a block of work.

Work that would need too much memory at once is done in blocks of rows: queries, edges, sources of paths. A block takes
the rows that fit a budget of bytes, which depends on the kind of device and on the use of the block (`Budget`).
Tolerances and other numerics stand beside their users.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

import torch


class Budget(NamedTuple):
    """Maximum bytes of one piece of work on a kind of device."""

    search: int  # a neighbour search beside its input: its table of points and a block of distances
    memory: int  # a block of temporary tensors, read and written a few times
    cache: int  # a block written and read once, faster while it stays in the processor's cache
    factors: int  # sparse factors of a matrix, which are kept


MIB = 2**20
BUDGETS = {
    # search: 10⁶ points × 50 in float32 are then searched in 512 MiB beside the input (benchmarks/RESULTS.md).
    # cache: half of the second-level cache of a server's core. Squared lengths of 260,000 edges × 50 in float64 took
    # 61 ms in blocks of 1 MiB, 90 ms of 8 MiB and 163 ms of 32 MiB; distances of 300,000 pairs × 50 took 64, 110, 232.
    "cpu": Budget(search=384 * MIB, memory=128 * MIB, cache=1 * MIB, factors=2048 * MIB),
    # Every other device. A launch costs some microseconds whatever its size, so blocks are as large as fits beside a
    # network; smaller blocks gain nothing. A search then handles tens of thousands of queries at a time with 50,000
    # points, and two thousand with 10⁶.
    "accelerator": Budget(search=16384 * MIB, memory=512 * MIB, cache=512 * MIB, factors=0),
}


def steps_between_checks(device: torch.device) -> int:
    """Return the number of steps between two checks of convergence, a divisor of `CHECK_EVERY` in gradient/cg.py."""
    # A synchronisation takes some 30 µs, the time of five kernels; superfluous steps do no harm. The CPU has none.
    return 1 if device.type == "cpu" else 5


def budget_of(device: torch.device) -> Budget:
    """Return the budget for work on a device."""
    budget = BUDGETS["cpu" if device.type == "cpu" else "accelerator"]
    if device.type == "cuda" and torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(device).total_memory
        return budget._replace(search=min(budget.search, memory // 8))  # leave the rest to a network
    return budget


def rows_of_block(row_bytes: float, device: torch.device, room: Literal["memory", "cache"] = "memory") -> int:
    """Return how many rows of ``row_bytes`` each make a block on a device; at least one."""
    return max(1, int(getattr(budget_of(device), room) // max(row_bytes, 1)))


def check_dense(rows: int, columns: int, number_bytes: int, device: torch.device, what: str, advice: str) -> None:
    """Raise MemoryError for a dense matrix of more than half of a device's free memory: methods need it twice."""
    size = rows * columns * number_bytes
    if size > 2**30 and size > (free := _free_bytes(device)) / 2:
        raise MemoryError(
            f"{what} needs a dense matrix of {rows} × {columns} numbers, {size / 1e9:.0f} GB and more than half of the "
            f"{free / 1e9:.0f} GB that are free on {device}; {advice}"
        )


def _free_bytes(device: torch.device) -> int:
    """Return the free memory of a device; without a way to ask for it, 64 GiB."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:  # with the memory of caches, which the kernel gives back
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        names = getattr(os, "sysconf_names", {})
        pages = "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if pages else 2**36


# --- Eigensolvers, measured on two cores -----------------------------------------------------------------------------

# Limits of `eigh` on the processor, for each sparse graph of a batch and for dense graphs, by forward and backward
# together: `eigh` finds all pairs, and the backward has nothing left to solve. Milliseconds with Chebyshev filters and
# with `eigh`, sparse: 256 of 100 nodes 279 and 244 in float32, 541 and 342 in float64; 64 of 160 nodes 97 and 110, 273
# and 201. Dense: 16 of 512 nodes 875 and 621, 2565 and 1509; one of 1000 nodes 245 and 213, 712 and 297; one of 2000,
# float32, 1015 and 1266.
EIGH_NODES = 128
DENSE_EIGH_NODES = 1200
# Graphs of a batch are solved together up to this number of nodes, and one by one beyond.
BATCHED_NODES = 2000
# Linear systems are solved by Cholesky factors up to this value of graphs · nodes³: a fifteenth of the work of `eigh`,
# and exact, where conjugate gradients need 100 products of small blocks.
DENSE_SOLVE = 1e9
# Graphs of up to this number of nodes for which no solver converges are solved by `Eigh`: 8000² float64 are 0.5 GiB.
FALLBACK_NODES = 8000
# One sparse graph of more nodes is solved in reverse Cuthill–McKee order, which makes products several times faster.
# On the processor only: an accelerator's cache holds a block of vectors of a million nodes, and SciPy needs a second
# to order a million nodes, longer than the solve.
REORDER_NODES = 10**5
# Products of Chebyshev filters of a sparse graph beyond which multigrid takes less time.
SPARSE_PRODUCTS = 1000

# --- Threads of the processor ----------------------------------------------------------------------------------------

# Parts of a batch for each thread. With more parts than threads, a thread whose core is busy leaves parts to others.
PARTS_OF_THREAD = 4
# Numbers from which on `eigh` of a batch is done in parts of at least this size. An entry takes 25 to 50 ns from 24² to
# 512², so that a part takes 0.1 ms or more; handing it to a thread takes 0.05 ms.
PART_OF_EIGH = 4096
# Numbers in the block of one graph up to which a single-threaded compiled loop is faster than torch's threads.
SINGLE_THREADED_NUMBERS = 2**19
# Least numbers in the block of vectors of a part of a batch. In smaller parts Python's calls, which threads run one
# after the other, take so large a share of the time that torch's own threads in each operation are faster. Forward and
# backward of 32 × 256 on two threads took 97 ms with 2¹⁵ and 78 with 2¹⁷, 16 × 512 114 and 82, 64 × 1000 650 and 580;
# beside a busy process 203 and 252 (`eigh` there: 584).
PART_OF_BLOCK = 2**17
# Numbers of the smaller of two tall blocks from which on XᵀY is summed over slices of their rows. MKL shares such
# products badly among threads: in float64, with 10⁶ × 28 and 10⁶ × 14 numbers by rows, it took 58 ms with one thread,
# 145 with two, 30 in slices; with 10⁴ rows 0.41 and 0.22 (in slices).
TALL = 2**16
