"""How far the factors of a sparse matrix will fill in.

Compiled loops order the nodes, which tells it, and which is the first step of making them. SuperLU's order is to be had
with its factors alone: what these will be is predicted for a few percent of their work.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from torch_lapeig._compiled.sparse import Limits, share_inside
from torch_lapeig.eigen.direct import SUPERLU_BYTES, Shifted, superlu

LEAST_PART = 250  # nodes of the part that is factorised
SHARE = 16  # of the nodes are in that part
SMALLEST = 16  # nodes of a region that is not divided any further
MESHED = 0.5  # share of a ball that is inside, from which on its factors tell those of the whole
LEAST_ENTRIES = 15  # a row, of factors of graphs that are not all but a tree
BALL_WIDTH = 0.22  # surface of a ball of m nodes over √m: 1.4 in a grid, 3 to 4.5 on surfaces, in bodies, of neighbours
THIN = 2.5  # edges of a node, loops too, up to which a graph is all but a tree
PRUNED = 0.05  # of the nodes have to be leaves for another round of pruning


class Fill(NamedTuple):
    """Size of triangular factors.

    Attributes:
        entries: of L.
        work: the multiplications that it takes to make them.
        bytes: memory of the factors.
    """

    entries: float
    work: float
    bytes: float

    @classmethod
    def least(cls, n: int) -> Fill:
        """Less than that of all graphs of n nodes but trees and curves."""
        return cls(LEAST_ENTRIES * n, 0.0, 0.0)

    def width(self, n: int) -> float:
        """How wide a graph of n nodes is: the mean column, of separators, over √n.

        Curves and trees have 0.1 and less, squares 0.3, closed surfaces 0.9, bodies 2.
        """
        return self.work / max(self.entries, 1) / math.sqrt(n)


def fill_within(matrix: Shifted, most: Limits) -> Fill | None:
    """That of factors of a matrix; None where compiled loops find them, or their order, beyond ``most``."""
    if matrix.is_readable:
        found = matrix.structure(most)
        return None if found is None else Fill(found.entries, found.work, found.bytes)
    return predict_fill(matrix.rows())


def fits(matrix: Shifted, memory: float) -> bool:
    """Whether factors fit into so many bytes."""
    if memory == math.inf or SUPERLU_BYTES * len(matrix.diagonal) ** 2 / 2 <= memory:
        return True
    found = fill_within(matrix, Limits(entries=memory / 8))
    return found is not None and found.bytes <= memory


def is_mesh(matrix: Shifted) -> bool:
    """Whether most nodes of a ball lie inside: the graph is that of a curve, a surface or a body, or a tree."""
    return share_of_ball(matrix) >= MESHED


def share_of_ball(matrix: Shifted) -> float:
    """The share of the nodes of a ball that have all neighbours in it; 1 for trees, and for small graphs."""
    n = len(matrix.diagonal)
    if n <= LEAST_PART or len(matrix.col) <= THIN * n:
        return 1.0
    if matrix.is_readable:
        return share_inside(matrix.crow, matrix.col, _half_ball(n))
    pruned, _ = _without_leaves(matrix.rows())
    return 1.0 if pruned.shape[0] <= LEAST_PART else _share_inside(_balls(pruned)[1])


def width_of_ball(n: int, share: float) -> float:
    """About what `Fill.width` will be, by the share of a ball inside: one part or two where factors have one."""
    return BALL_WIDTH * (1 - share) * math.sqrt(_half_ball(n))


def fill_of(matrix: Any) -> Fill:
    """That of SuperLU's factors of a matrix of such a pattern: a column of c entries takes c² multiplications."""
    n = matrix.shape[0]
    factors = superlu(Shifted(None, matrix.indptr, matrix.indices, matrix.data, 1.0, np.full(n, 2.0)))
    column = np.diff(factors.L.indptr).astype(np.float64)
    entries = float(column.sum())
    return Fill(entries, float(np.square(column).sum()), SUPERLU_BYTES * entries)


def predict_fill(matrix: Any) -> Fill:
    """The fill of a normalised Laplacian, SciPy's CSR with its diagonal, within a factor of five or so.

    Leaves do not fill in: they are pruned first. Nested dissection (George 1973) cuts a region in two by a separator,
    whose rows and columns become dense: of s nodes, s² entries and s³ multiplications. Breadth-first balls give
    separators for regions of all sizes at once. They are too large by a factor that depends on the kind of graph. A
    small ball that is factorised tells it, the better the less of the ball is surface.
    """
    pruned, leaves = _without_leaves(matrix)
    n = pruned.shape[0]
    if n <= LEAST_PART:
        entries, work = fill_of(pruned)[:2] if n else (0.0, 0.0)
    else:
        order, cuts = _balls(pruned)
        m, inside = max(n // SHARE, LEAST_PART), _share_inside(cuts)
        entries, work = _by_dissection(cuts, n)
        if inside >= MESHED:  # the balls of expanders are trees, which tell nothing of the whole
            ball = np.sort(order[:m])
            part, expected = fill_of(pruned[ball][:, ball]), _by_dissection(cuts, m)
            entries *= (part.entries / expected[0]) ** inside
            work *= (part.work / expected[1]) ** inside
    return Fill(entries + 2 * leaves, work + 4 * leaves, SUPERLU_BYTES * (entries + 2 * leaves))


def _share_inside(cuts: np.ndarray[Any, Any]) -> float:
    """The share of the nodes of a ball that have no edge out of it: near 1 on meshes, near 0 on expanders."""
    m = _half_ball(len(cuts))
    return 1 - float(cuts[m]) / m


def _without_leaves(matrix: Any) -> tuple[Any, int]:
    """The matrix without nodes of one neighbour, again and again while these are many; and how many they were."""
    n = matrix.shape[0]
    if (np.diff(matrix.indptr) <= 2).sum() <= PRUNED * n:
        return matrix, 0
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
        degree -= np.bincount(stem, minlength=n)
        others -= np.bincount(stem, weights=last, minlength=n)
    return (matrix if count == 0 else matrix[alive][:, alive]), count


def _balls(matrix: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Nodes in breadth-first order from one end of the graph; and at m the nodes among the first m with an edge out."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    n = matrix.shape[0]
    # A weight that is zero is an entry like others, but sums of matrices leave zeros out.
    linked = csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
    found = breadth_first_order(linked, 0, return_predecessors=False)
    if len(found) < n:
        linked = _linked(linked)
        found = breadth_first_order(linked, 0, return_predecessors=False)
    order = breadth_first_order(linked, found[-1], return_predecessors=False)
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    farthest = np.maximum.reduceat(place[linked.indices], linked.indptr[:-1])
    closed = np.bincount(farthest, minlength=n).cumsum()
    return order, np.arange(n) - np.concatenate([[0], closed[:-1]])


def _linked(matrix: Any) -> Any:
    """A matrix of ones with an edge from each connected component to the next."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, component = connected_components(matrix, connection="strong")  # the same, without making it symmetric first
    first = np.unique(component, return_index=True)[1]
    link = coo_array((np.ones(count - 1), (first[:-1], first[1:])), shape=matrix.shape)
    return (matrix + link + link.T).tocsr()


def _half_ball(n: int) -> int:
    """Nodes of the ball that is looked at."""
    return max(n // SHARE, LEAST_PART) // 2


def _by_dissection(cuts: np.ndarray[Any, Any], n: int) -> tuple[float, float]:
    """Entries and work of the first n nodes, halved again and again by balls."""
    entries, work, parts, size = float(n), float(n), 1, n
    while size >= SMALLEST:
        separator = float(cuts[size // 2])
        entries, work = entries + parts * separator**2, work + parts * separator**3
        parts, size = 2 * parts, size // 2
    return entries, work
