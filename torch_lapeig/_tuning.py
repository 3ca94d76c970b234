"""Constants that depend on the machine, each with its reason or its measurement."""

# Eigensolvers, measured on two cores -------------------------------------------------------------------------------

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
