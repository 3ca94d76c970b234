"""The choice of a solver, by size, storage, batch and the shape of the graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.chebyshev import ChebyshevSubspace
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.factors import SparseFactors, shifted
from torch_lapeig.eigen.solvers.krylov import Krylov
from torch_lapeig.eigen.solvers.lobpcg import Lobpcg
from torch_lapeig.eigen.solvers.shift_invert import ShiftInvert
from torch_lapeig.eigen.solvers.solver import Solver
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.native.sparse import Limits
from torch_lapeig.native.versions import warn_of_no_loops
from torch_lapeig.support import tuning

# Made once, because checking options takes time.
FILTERS, MULTIGRID, FACTORS = ChebyshevSubspace(max_products=tuning.SPARSE_PRODUCTS), Lobpcg(), ShiftInvert()
INVERSE = Lobpcg(preconditioner=SparseFactors())
# Dense matrices up to which `Eigh` takes less time than Krylov spaces, for no pairs and for each pair more, without and
# with gradients. Over its time these took, without and with them, with 600 nodes and 8 pairs 0.7 to 1.1 and 0.8 to 2.4,
# with 800 and 2 0.4 to 0.8 and 0.3 to 0.8 (clusters 1.8): RBF, cosines, clusters, random graphs.
SUBSET_NODES = {False: (520, 8), True: (700, 40)}
LARGE_WITHOUT_LOOPS = 5_000  # nodes from which on torch takes seconds more than compiled loops
MESH_NODES = 800  # up to which filters take less time than factors of a surface
MESH_SHARE = 0.5  # share of inner nodes of a ball from which on a graph is a mesh: of a curve, a surface or a body


def solves_all_pairs(graphs: int, nodes: int, device: torch.device) -> bool:
    """Return whether `eigh` of so many small graphs takes less time than Chebyshev filters."""
    if device.type == "cpu":
        # One graph of 240 nodes, or 64 of 68. Milliseconds of a layer's forward and backward with filters and with
        # `eigh`: one set of 240 points 13.6 and 13.7, of 260 13.6 and 15.7, 8 of 130 20 and 27, 16 of 100 43 and 29.
        return graphs * nodes**3 <= (2e7 if nodes <= 100 else 1.4e7)
    # On accelerators `eigh` takes about 9 µs for each row. Filters take 40 ms for their launches, whatever the size of
    # small graphs (milliseconds of `eigh` and filters on an H200: one of 500 nodes 4.6 and 45, 32 of 256 65 and 40).
    return nodes <= tuning.EIGH_NODES or (nodes <= tuning.DENSE_EIGH_NODES and graphs * nodes <= 4800)


def is_small(graphs: int, nodes: int, device: torch.device) -> bool:
    """Return whether graphs of so many nodes are solved as a dense batch."""
    # Graphs of up to 64 nodes are faster dense, whatever their number. A matrix of 2²⁴ numbers takes 128 MiB, and some
    # ten matrices are held at a time.
    return (nodes <= 64 or solves_all_pairs(graphs, nodes, device)) and graphs * nodes**2 <= 2**24


class Choice(NamedTuple):
    """Solvers to try one after the other, until one converges, and the reason for them.

    Attributes:
        solvers: the solvers in the order of the attempts.
        reason: one clause in English, for messages and logs.

    >>> Choice((ChebyshevSubspace(), Eigh()), "clusters").solvers[1]
    Eigh()
    """

    solvers: tuple[Solver, ...]
    reason: str


def choose(operator: Operator, k: int) -> Choice:
    """Choose the solvers for the ``k`` smallest pairs of any operator, with the reason."""
    n, batch, block = operator.num_nodes, operator.batch_size, FILTERS.block_size(k)
    if operator.nodes.is_sharded:
        return Choice((MULTIGRID, ChebyshevSubspace()), "rows on several ranks: as few sums as possible")
    if not isinstance(operator, SymmetricOperator):
        first = (Krylov(),) if batch == 1 else ()
        return Choice((*first, ChebyshevSubspace()), "a matrix that is known only by its products")
    # One small graph does not send a batch of large ones to `eigh`, unless it has too few nodes for k pairs.
    if solves_all_pairs(batch, n, operator.device) or n < 4 * block or operator.fewest_active <= k:
        return Choice((Eigh(),), "all pairs of small graphs at once")
    is_sparse = operator.is_sparse
    if is_sparse and (batch == 1 or n > tuning.BATCHED_NODES):
        return choose_for_graph(next(operator.items()), k)
    is_host = operator.device.type == "cpu"
    nodes, of_pair = SUBSET_NODES[any(parameter.requires_grad for parameter in operator.parameters)]
    subset = nodes + of_pair * k
    if n <= (tuning.EIGH_NODES if is_sparse else subset if is_host else tuning.DENSE_EIGH_NODES):
        return Choice((Eigh(),), "all pairs of the graphs together, or the first ones where no gradient needs all")
    if n > tuning.FALLBACK_NODES:
        return Choice((Krylov(), ChebyshevSubspace()), "large dense graphs")
    if not is_sparse and is_host:
        # `Eigh` takes the time of as many products: calls take most of the time of small ones.
        krylov = Krylov(max_products=min(n // 3, n**2 // 3600))
        return Choice((krylov, Eigh()), "few pairs of dense graphs, by one block of products after the other")
    # Graphs that Chebyshev filters do not solve in about the time of `Eigh` are left to `Eigh`, which for dense
    # graphs takes the time of 4 n / m products with m vectors: for m = 16, of 100 at n = 512 and 500 at n = 2000.
    most = tuning.SPARSE_PRODUCTS if is_sparse else int(4 * n / block)
    filters = ChebyshevSubspace(max_products=most)
    # Curves and surfaces need more products, and have thin factors: four of 2000 nodes take 0.06 s, by `eigh` 13 s.
    between = (FACTORS,) if is_sparse and is_host else ()
    reason = "graphs together, in products that take less time than all their pairs"
    return Choice((filters, *between, Eigh()), reason)


def choose_for_graph(operator: SymmetricOperator, k: int) -> Choice:
    """Choose the solvers for the ``k`` smallest pairs of one sparse matrix, mostly a Laplacian."""
    # The smallest eigenvalues of curves and surfaces are close together, by Weyl's law, so that filters need many
    # products; the factors of such graphs stay sparse, and handle weights of all sizes. The factors of bodies and of
    # graphs without a shape fill in. Multigrid needs affinities; with entries of other signs inverse iteration takes
    # its place. A null vector beside such entries belongs to a stiffness or to a square, as in locally linear
    # embedding, whose eigenvalues crowd near 0 so much that filters always take longer than factors.
    n = operator.num_nodes
    last: Solver = Eigh() if n <= tuning.FALLBACK_NODES else ChebyshevSubspace()
    iterative = MULTIGRID if operator.of_affinities else INVERSE
    if int(operator.nullity) > k:
        return Choice((iterative, last), "more components than pairs: null vectors, known in closed form")
    if operator.device.type != "cpu":
        first = (FILTERS,) if operator.of_affinities or operator.null is None else ()
        return Choice((*first, iterative, last), "a sparse graph on an accelerator: filters")
    graph = operator.pattern
    assert isinstance(graph, SparsePattern)
    if not operator.of_affinities and operator.null is not None:
        return Choice((FACTORS, iterative, last), "a null vector beside entries of both signs: a square or a stiffness")
    if operator.compiled is None:  # the fill of SuperLU's factors is known only after they are made
        if n >= LARGE_WITHOUT_LOOPS:
            warn_of_no_loops()
        if is_thin(graph):
            return Choice((FACTORS, iterative, last), "nearly a tree: its factors do not fill in")
        # SuperLU's factors of a body of 20,000 nodes take 0.6 GiB.
        between = (FACTORS,) if n <= 20_000 and interior_fraction(graph) >= MESH_SHARE else ()
        return Choice((FILTERS, *between, iterative, last), "a sparse graph, with nothing compiled: filters first")
    # Of small graphs, only curves and plain surfaces have factors that take less time than filters, of the smallest
    # only trees and cycles: filters take 0.25 to 0.8 of the time on others, with a backward pass.
    is_small = n <= tuning.BATCHED_NODES
    is_mesh = (n > MESH_NODES or is_thin(graph)) and interior_fraction(graph) >= (0.72 if is_small else MESH_SHARE)
    # Multiplications of factors over n times the entries of the matrix: surfaces have 0.02 to 0.13 whatever their size,
    # bodies 0.3 and more.
    within, memory = Limits(work=0.2 * n * len(graph.col)), tuning.BUDGETS["cpu"].factors
    if is_mesh and (structure := shifted(operator, 0.0, "Auto()").structure(within, memory)) is not None:
        reason = f"a mesh with {structure.entries / n:.3g} entries a row in its factors"
        return Choice((FACTORS, iterative, last), reason)
    reason = "a body, whose factors fill in" if is_mesh else "a small graph, or clusters, hubs or many dimensions"
    return Choice((FILTERS, *((FACTORS, iterative) if is_small else (iterative, FACTORS)), last), reason)


def is_thin(graph: SparsePattern) -> bool:
    """Return whether a graph is nearly a tree, whose factors do not fill in: at most 2.5 neighbours a node."""
    return len(graph.col) <= 2.5 * graph.total


def interior_fraction(graph: SparsePattern) -> float:
    """Return the share of inner nodes of a ball at one end of a graph: near 1 on surfaces, near 0 on expanders."""
    n = graph.total
    size = max(n // 32, 125)
    if n <= 2 * size or is_thin(graph):
        return 1.0
    # Imported at first use, because it loads SciPy's linear algebra.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    rows = csr_array((np.ones(len(graph.col)), graph.col.numpy(), graph.crow.numpy()), shape=(n, n))
    last = breadth_first_order(rows, 0, return_predecessors=False)[-1]
    ball = breadth_first_order(rows, last, return_predecessors=False)[:size]
    if len(ball) < size:  # all of a component
        return 1.0
    outside = np.ones(n)
    outside[ball] = 0
    return float(np.mean((rows @ outside)[ball] == 0))
