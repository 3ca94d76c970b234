"""Constants that depend on the machine, each with its reason, and one policy for the size of a block of work.

Work that would need too much memory at once is done in blocks of rows: queries, edges, sources of paths. A block takes
the rows that fit a budget of bytes, which depends on the kind of device and on the use of the block (`Budget`).
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
    # Every other device. A launch costs some microseconds whatever its size, so blocks are as large as fits beside a
    # network; the cache gains nothing. A search then takes tens of thousands of queries at a time at 50,000 points and
    # two thousand at 10⁶.
    "accelerator": Budget(search=16384 * MIB, memory=512 * MIB, cache=512 * MIB, factors=0),
}


# Steps of an iteration on accelerators between two synchronisations, in which the host checks for convergence. A
# synchronisation takes some 30 µs, the time of five more kernels. A step too many does no harm. On the processor the
# check is free. The number divides `torch_lapeig.eigen.gradient.cg.REPLACED`.
LOOK = 5


def steps_between_looks(device: torch.device) -> int:
    """Return the number of steps between two synchronisations with a device."""
    return 1 if device.type == "cpu" else LOOK


# Share of the memory of a CUDA device that a search may take, beside a network.
SEARCH_SHARE = 1 / 8


def budget_of(device: torch.device) -> Budget:
    """Return the budget for work on a device."""
    budget = BUDGETS["cpu" if device.type == "cpu" else "accelerator"]
    if device.type == "cuda" and torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(device).total_memory
        budget = budget._replace(search=min(budget.search, int(SEARCH_SHARE * memory)))
    return budget


def rows_of_block(row_bytes: float, device: torch.device, room: Literal["memory", "cache"] = "memory") -> int:
    """Return how many rows of ``row_bytes`` each make a block on a device; at least one."""
    return max(1, int(getattr(budget_of(device), room) // max(row_bytes, 1)))


# --- Neighbour search -------------------------------------------------------------------------------------------------

# Points of a set, their dimensions and the neighbours of each up to which compiled loops over all pairs take less time
# than products and what follows: half with 256 points × 16, a third with 4000, 0.6 with 4000 × 64; with 1000 × 100 as
# much; with 150 neighbours of 256 points × 16 0.6.
SMALL_SET, SMALL_DIMENSIONS, FEW_NEIGHBORS = 4096, 64, 160
# The same for larger sets: 30,000 × 10 took 0.9 s, by products 1.3.
FEW_DIMENSIONS, FEW_NUMBERS = 16, 2**20
# Dimensions up to which squares are added one after the other: torch's sums are slow on such short rows.
SHORT_ROW = 8

# Columns of a matrix up to which NumPy's partition finds the smallest of its rows: of 2²¹ numbers, 14 of each row, in
# 128 columns 11 against 31 ms by `topk`, in 256 16 against 28, in 1024 12 against 16. Where the processor has no AVX2
# it takes 1.2 to 2 times as long as `topk`.
PARTITION_COLUMNS = 1024
# Columns whose minima are taken while they are in the cache, and queries against them at a time.
TILE, PRODUCT_ROWS = 2048, 256
# Columns to a group, of which one minimum is kept: the row of minima is shorter by this factor.
GROUP = 32
# Bytes of the distances of several graphs of a batch that are computed together on the processor.
PRODUCT_BYTES = 16 * MIB

# Tiles of points, on the processor: points from which they are tried, and points of a tile at least; dimensions of the
# images whose boxes rule tiles out; queries from which tiles are worth building; blocks of queries that are looked at,
# and the share of all tiles that these may be near for the others to be searched by tiles.
TILED_SET, TILE_POINTS, TILE_DIRECTIONS, TILE_QUERIES, TILE_SAMPLE, TILE_SHARE = 4096, 32, 8, 2000, 16, 0.4

# Images, on the processor: dimensions a point has at least, terms of the product of all distances from which it is
# worth looking whether they pay, points their directions are learnt from, queries on which bounds are tried, and the
# numbers of directions that are tried. MNIST (10,000 × 784, 15 neighbours) leaves 58 points to each query with 96
# directions, 40 with 128, 26 with 192.
PROJECTED_DIMENSIONS, PROJECTED_TERMS = 128, 2e10
PROJECTED_SAMPLE, PROJECTED_QUERIES = 2048, 128
DIRECTIONS = (32, 64, 96, 128, 192, 256)
# Times of a term of a product in float32: a number of a pair of points that is measured by direct differences, for each
# of its bytes, and a value of a table that is looked at. 600,000 pairs of 784 numbers took 0.2 s in float32, 10⁸ values
# of 784 terms 1.7 s.
MEASURED_BYTE, LOOKED_AT = 6, 40
# Maximum share of the whole product's time that images may take by this count.
PROJECTED_SHARE = 0.7

# Copies of points: nodes from which on a search looks for them, points it looks at, and the share of these that have to
# be copies of others among them. A point with a share s of all of them takes s² of all pairs.
COPIES_NODES, COPIES_LOOKED_AT, COPIES_SHARE = 4_000, 1_000, 0.02

# Approximate search by inverted lists: cells for the root of the number of points, points to learn each from, and what
# a distance in a list costs, in those of the blocked search. 15 neighbours of 100,000 × 50 points in 100 clusters at a
# recall of 0.99 took 7.9 s with 1 √N cells, 5.9 s with 2 √N, 6.9 s with 4 √N; 25 s in the blocked search, and 3 s for
# each hundredth of the points that a query was compared with. A graph of neighbours (HNSW) took 24 s.
CELLS = 3
CELL_SAMPLE = 64
SCANNED = 12

# --- Eigensolvers, measured on two cores -----------------------------------------------------------------------------

# Dense `eigh` wins up to about here, in graphs · nodes³: one graph of 270 nodes, or 64 of 68. A layer's forward and
# backward with filters and with `eigh`: one set of 300 points 17.6 and 22.3 ms, of 400 19 and 30, 8 of 200 30 and 34.
DENSE_WORK = 2e7
# The same on accelerators, in graphs · nodes: there `eigh` takes about 9 µs for each, and filters 40 ms whatever the
# size of small graphs, for their launches (H200: one of 500 nodes 4.6 and 45 ms, 32 of 256 65 and 40).
ACCELERATOR_ROWS = 4800
# Rows of matrices that `eigh` on accelerators takes one after the other in torch before 2.12, and the host in less
# time: 64 of 33² took 29 ms there and 0.7 on 16 cores with both copies, of 64² 46 and 2.6, of 128² 98 and 19.
HOST_ROWS = range(33, 129 if torch.__version__ < "2.12" else 33)
# Limits for each graph of a batch, and for a dense graph, on the processor, counting a forward and its backward: `eigh`
# finds all pairs, and the backward has nothing left to solve. Milliseconds with filters and with `eigh`, sparse: 256 of
# 100 nodes 279 and 244 in float32, 541 and 342 in float64; 64 of 160 nodes 97 and 110, 273 and 201. Dense: 16 of 512
# nodes 875 and 621, 2565 and 1509; one of 1000 nodes 245 and 213, 712 and 297; one of 2000, float32, 1015 and 1266.
EIGH_NODES = 128
DENSE_EIGH_NODES = 1200


def solves_all_pairs(graphs: int, nodes: int, device: torch.device) -> bool:
    """Return whether `eigh` of so many small graphs takes less time than filters."""
    if device.type == "cpu":
        return graphs * nodes**3 <= DENSE_WORK
    return nodes <= EIGH_NODES or (nodes <= DENSE_EIGH_NODES and graphs * nodes <= ACCELERATOR_ROWS)


# Graphs of a batch are solved together up to here, and one by one beyond.
SMALL_NODES = 2000
# Linear systems are solved by Cholesky factors up to here, in graphs · nodes³: a fifteenth of the work of `eigh`, and
# exact, where conjugate gradients take 100 products of small blocks.
DENSE_SOLVE = 1e9
# Products of a block of m vectors with a dense matrix that take the time of its `eigh`, times m / n. For m = 16: 100 at
# n = 512, 230 at 1000, 500 at 2000 (on one core).
DENSE_PRODUCTS = 4.0
# Graphs up to here that do not converge otherwise are solved again by `Eigh`: 8000² float64 are 0.5 GiB.
FALLBACK_NODES = 8000
# One sparse graph of more nodes is solved in reverse Cuthill–McKee order: its products are several times faster. On
# the processor only: an accelerator's cache holds a block of vectors of a million nodes, and SciPy takes a second to
# order these, longer than the solve.
REORDER_NODES = 10**5
# Mean distance in memory, in numbers, between two neighbours in a block of filters, from which on a smaller graph is
# reordered too: then the second cache is full. A product of 20,000 nodes in clusters with 32 columns took 2.5 and 1.3
# ms, the order itself 10.
SCATTERED = 2**16
# Products of a filter of a sparse graph from which on multigrid takes less time.
SPARSE_PRODUCTS = 1000
# Nodes up to which SuperLU factorises a mesh that filters do not solve: of a body it takes 0.6 GiB there.
SUPERLU_NODES = 20_000

# --- Threads of the processor ----------------------------------------------------------------------------------------

# Parts of a batch for each thread: a thread whose core another process takes for a while leaves more to the others.
PARTS_OF_THREAD = 4
# Numbers from which on `eigh` of a batch is done in parts of at least this size. An entry takes 25 to 50 ns from 24² to
# 512², so that a part takes 0.1 ms or more, where handing it over takes 0.05.
PART_OF_EIGH = 4096
# Least multiplications of a part of compiled work: some 20 µs, where waking a waiting thread takes 5.
COMPILED_PART = 2**18
# Numbers in the block of one graph up to which a single-threaded compiled loop is faster than torch's threads.
ALONE = 2**19
# Multiplications after which a compiled solve gives Python a chance to be interrupted: about a second.
UNINTERRUPTED = 2**31
# A matrix of more rows is left to LAPACK's threads where there are fewer such matrices than threads. Below, beside
# other processes, one of 300² took 11 ms single-threaded and 70 to 1700 on two threads.
WHOLE_EIGH = 512
# Least numbers in the block of vectors of a part of a batch: below, Python's calls, which threads do one after the
# other, are so large a share that torch's own threads in each operation are faster. Forward and backward of 32 × 256 on
# two threads took 97 ms with 2¹⁵ and 78 with 2¹⁷, 16 × 512 114 and 82, 64 × 1000 650 and 580; beside a busy process 203
# and 252 (`eigh` there: 584).
PART_OF_BLOCK = 2**17
# Numbers of the smaller of two tall blocks from which on XᵀY is summed over slices of their rows, the number of slices,
# and columns of both. MKL shares such products badly: in float64, of 10⁶ × 28 and 10⁶ × 14 numbers by rows, it took 58
# ms with one thread, 145 with two, 30 in slices; of 10⁴ rows 0.41 and 0.22. With one column it is four times slower.
TALL = 2**16
SLICES = 16
SLICED_COLUMNS = 3
# Numbers of two blocks up to which their columns' products are made as a whole. 10,000 × 10 took 0.11 ms, in slices of
# the rows 0.25; from 50,000 × 10 on slices take less, at 400,000 × 10 less than half.
WHOLE_DOTS = 2**17
# Bytes up to which torch's threads share each operation on all rows, where more would be done in slices that fit the
# cache. An update of LOBPCG's basis of 10,000 rows (6 MB) took 0.4 ms, in slices 1.1, of 100,000 rows 22 and 8.
WHOLE_ON_THREADS = 2**24
