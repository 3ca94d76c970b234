"""How far the factors of a sparse matrix will fill in, for a few percent of the work of factorising it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torch_lapeig.eigen.direct import factorize

LEAST_PART = 500  # nodes of the part that is factorised
SHARE = 16  # of the nodes are in that part
SMALLEST = 16  # nodes of a region that is not divided any further
MESHED = 0.5  # share of a ball that is inside, from which on its factors tell those of the whole
PRUNED = 0.05  # of the nodes have to be leaves for another round of pruning


class Fill(NamedTuple):
    """Size of triangular factors: ``entries`` of L, and ``work``, the multiplications that it takes to make them."""

    entries: float
    work: float


def fill_of(factor: Any) -> Fill:
    """What a triangular factor in SciPy's CSC has: a column of c entries takes c² multiplications."""
    column = np.diff(factor.indptr).astype(np.float64)
    return Fill(float(column.sum()), float(np.square(column).sum()))


def predict_fill(matrix: Any) -> Fill:
    """The fill of a symmetric matrix, SciPy's CSR with a positive diagonal, within a factor of five or so.

    Leaves do not fill in: they are pruned first. Nested dissection (George 1973) cuts a region in two by a separator,
    whose rows and columns become dense: of s nodes, s² entries and s³ multiplications. Breadth-first balls give
    separators for regions of all sizes at once. They are too large by a factor that depends on the kind of graph. A
    small ball that is factorised tells it, the better the less of the ball is surface.
    """
    pruned, leaves = _without_leaves(matrix)
    n = pruned.shape[0]
    if n <= LEAST_PART:
        found = fill_of(factorize(pruned).L) if n else Fill(0, 0)
        return Fill(found.entries + 2 * leaves, found.work + 4 * leaves)
    order, cuts = _balls(pruned)
    m = max(n // SHARE, LEAST_PART)
    rough, inside = _by_dissection(cuts, n), 1 - float(cuts[m // 2]) / (m // 2)
    if inside < MESHED:  # expanders: a ball is a tree, the whole is not
        return rough
    ball = np.sort(order[:m])
    part, expected = fill_of(factorize(pruned[ball][:, ball]).L), _by_dissection(cuts, m)
    entries, work = (r * (p / e) ** inside for r, p, e in zip(rough, part, expected, strict=True))
    return Fill(entries + 2 * leaves, work + 4 * leaves)


def _without_leaves(matrix: Any) -> tuple[Any, int]:
    """The matrix without nodes of one neighbour, again and again while these are many; and how many they were."""
    n = matrix.shape[0]
    row = np.repeat(np.arange(n), np.diff(matrix.indptr))
    col, off = matrix.indices.astype(np.int64), matrix.indices != row
    degree = np.bincount(row[off], minlength=n)
    others = np.bincount(row[off], weights=col[off], minlength=n)  # the last neighbour of a node is their sum
    alive, count = np.ones(n, dtype=bool), 0
    while True:
        leaf = np.flatnonzero(alive & (degree <= 1))
        if len(leaf) <= PRUNED * (n - count):
            break
        alive[leaf], count = False, count + len(leaf)
        last = leaf[degree[leaf] == 1]
        stem = others[last].astype(np.int64)
        np.subtract.at(degree, stem, 1)
        np.subtract.at(others, stem, last)
    return (matrix if count == 0 else matrix[alive][:, alive]), count


def _balls(matrix: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Nodes in breadth-first order from one end of the graph; and at m the nodes among the first m with an edge out."""
    from scipy.sparse.csgraph import breadth_first_order

    n, linked = matrix.shape[0], matrix
    found = breadth_first_order(linked, 0, return_predecessors=False)
    if len(found) < n:
        linked = _linked(matrix)
        found = breadth_first_order(linked, 0, return_predecessors=False)
    order = breadth_first_order(linked, found[-1], return_predecessors=False)
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    farthest = np.maximum.reduceat(place[linked.indices], linked.indptr[:-1])
    closed = np.bincount(farthest, minlength=n).cumsum()
    return order, np.arange(n) - np.concatenate([[0], closed[:-1]])


def _linked(matrix: Any) -> Any:
    """The matrix with an edge from each connected component to the next."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, component = connected_components(matrix, connection="strong")  # the same, without making it symmetric first
    first = np.unique(component, return_index=True)[1]
    link = coo_array((np.ones(count - 1), (first[:-1], first[1:])), shape=matrix.shape)
    return (matrix + link + link.T).tocsr()


def _by_dissection(cuts: np.ndarray[Any, Any], n: int) -> Fill:
    """Fill of the first n nodes, halved again and again by balls."""
    entries, work, parts, size = float(n), float(n), 1, n
    while size >= SMALLEST:
        separator = float(cuts[size // 2])
        entries, work = entries + parts * separator**2, work + parts * separator**3
        parts, size = 2 * parts, size // 2
    return Fill(entries, work)
