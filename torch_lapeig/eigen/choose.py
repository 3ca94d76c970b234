"""The choice of a solver, itself a solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from torch_lapeig.eigen.check import Problem, Solution, check_answer
from torch_lapeig.eigen.operator import Operator, knows_entries
from torch_lapeig.eigen.solvers.chebyshev import ChebyshevSubspace
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.factors import Shifted, SparseLU, shifted, structure_within
from torch_lapeig.eigen.solvers.lobpcg import Lobpcg
from torch_lapeig.eigen.solvers.shift_invert import ShiftInvert
from torch_lapeig.eigen.solvers.solver import Progress, RitzPairs, Solver, joined
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.native.sparse import Limits
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import (
    BATCHED_NODES,
    DENSE_EIGH_NODES,
    EIGH_NODES,
    FALLBACK_NODES,
    SPARSE_PRODUCTS,
    budget_of,
    solves_all_pairs,
)

# Made once, because checking options takes time.
FILTERS, MULTIGRID, FACTORS = ChebyshevSubspace(max_products=SPARSE_PRODUCTS), Lobpcg(), ShiftInvert()
MESH_SHARE = 0.5  # share of inner nodes of a ball from which on a graph is a mesh: of a curve, a surface or a body


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


@dataclass(frozen=True)
class Auto:
    """Choice of a solver by the size, storage, batch and factors of a problem, with others if it does not converge.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian
    >>> Auto().choose(Laplacian(KNN(5)(torch.rand(200, 3))).symmetric, 4)
    Choice(solvers=(Eigh(),), reason='all pairs of small graphs at once')
    """

    def choose(self, operator: Operator, k: int) -> Choice:
        """Choose the solvers for the ``k`` smallest pairs of an operator; docs/theory.md has the reasons."""
        n, batch, block = operator.num_nodes, operator.batch_size, FILTERS.block_size(k)
        if operator.is_sharded:
            return Choice((MULTIGRID, ChebyshevSubspace()), "rows on several ranks: as few sums as possible")
        if not knows_entries(operator):
            return Choice((ChebyshevSubspace(),), "a matrix that is known only by its products")
        # One small graph does not send a batch of large ones to `eigh`, unless it has too few nodes for k pairs.
        if solves_all_pairs(batch, n, operator.device) or n < 4 * block or operator.fewest_active <= k:
            return Choice((Eigh(),), "all pairs of small graphs at once")
        is_sparse = isinstance(operator, SymmetricOperator) and operator.is_sparse
        if batch == 1 and not getattr(operator, "of_affinities", False):
            lobpcg = Lobpcg(preconditioner=SparseLU() if is_sparse else None)
            return Choice((lobpcg, last_resort(n)), "a kernel: dense, or with factors that stay sparse")
        if is_sparse and (batch == 1 or n > BATCHED_NODES):
            return choose_for_graph(next(operator.items()), k)
        if n <= (EIGH_NODES if is_sparse else DENSE_EIGH_NODES):
            return Choice((Eigh(),), "all pairs of the graphs together, after which the backward has nothing to solve")
        if n > FALLBACK_NODES:
            return Choice((ChebyshevSubspace(), MULTIGRID, last_resort(n)), "a large dense graph")
        # Graphs that Chebyshev filters do not solve in about the time of `Eigh` are left to `Eigh`, which for dense
        # graphs takes the time of 4 n / m products with m vectors: for m = 16, of 100 at n = 512 and 500 at n = 2000.
        most = SPARSE_PRODUCTS if is_sparse else int(4 * n / block)
        filters = ChebyshevSubspace(max_products=most)
        # Curves and surfaces need more products, and have thin factors: four of 2000 nodes take 0.06 s, by `eigh` 13 s.
        between = (FACTORS,) if is_sparse and operator.device.type == "cpu" else ()
        reason = "graphs together, in products that take less time than all their pairs"
        return Choice((filters, *between, Eigh()), reason)

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """Return the pairs of the first solver that converges, or of the last one that finds any."""
        return first_converged(self.choose(operator, k).solvers, Problem(operator, k, tolerance), progress).ritz


def last_resort(n: int) -> Solver:
    """Return the solver to try when no other has converged."""
    return Eigh() if n <= FALLBACK_NODES else ChebyshevSubspace()


def choose_for_graph(operator: Operator, k: int) -> Choice:
    """Choose the solvers for the ``k`` smallest pairs of one sparse Laplacian.

    The smallest eigenvalues of curves and surfaces are close together, by Weyl's law, so that filters need many
    products; the factors of such graphs stay sparse, and handle weights of all sizes. The factors of bodies and of
    graphs without a shape fill in.
    """
    n, last = operator.num_nodes, last_resort(operator.num_nodes)
    if int(operator.nullity) > k:
        return Choice((MULTIGRID, last), "more components than pairs: null vectors, known in closed form")
    if operator.device.type != "cpu":
        return Choice((FILTERS, MULTIGRID, last), "a sparse graph on an accelerator: filters")
    matrix = shifted(operator, 0.0, Auto())
    if not matrix.is_readable:
        return _choose_without_loops(matrix, last)
    # Of small graphs, only curves and plain surfaces have factors that take less time than filters.
    is_mesh = matrix.share_of_ball() >= (0.72 if n <= BATCHED_NODES else MESH_SHARE)
    # Multiplications of factors over n times the entries of the matrix: surfaces have 0.02 to 0.13 whatever their size,
    # bodies 0.3 and more.
    within = Limits(work=0.2 * n * len(matrix.col))
    structure = structure_within(matrix, budget_of(operator.device).factors, within) if is_mesh else None
    if structure is not None:
        reason = f"a mesh with {structure.entries / n:.3g} entries a row in its factors"
        return Choice((FACTORS, MULTIGRID, last), reason)
    reason = "a body, whose factors fill in" if is_mesh else "a small graph, or clusters, hubs or many dimensions"
    return Choice((FILTERS, MULTIGRID, FACTORS, last), reason)


def _choose_without_loops(matrix: Shifted, last: Solver) -> Choice:
    """Choose where nothing is compiled: the fill of SuperLU's factors is known only after they are made."""
    if matrix.is_thin:
        return Choice((FACTORS, MULTIGRID, last), "nearly a tree: its factors do not fill in")
    # SuperLU's factors of a body of 20,000 nodes take 0.6 GiB.
    is_small_mesh = len(matrix.diagonal) <= 20_000 and matrix.share_of_ball() >= MESH_SHARE
    factors = (FACTORS,) if is_small_mesh else ()
    return Choice((FILTERS, *factors, MULTIGRID, last), "a sparse graph, with nothing compiled: filters first")


def first_converged(solvers: tuple[Solver, ...], problem: Problem, progress: Progress | None) -> Solution:
    """Return the answer of the first solver that converges, or the last answer; solvers that break down are skipped.

    Raises:
        ConvergenceError: all of them break down.
    """
    operator, answer, failure = problem.operator, None, None
    for position, solver in enumerate(solvers):
        try:
            ritz = solver(operator, problem.k, problem.tolerance, progress=progress)
            answer, others = check_answer(problem, solver, ritz), solvers[position + 1 :]
            if answer.is_converged:
                return answer
            is_batch = isinstance(operator, SymmetricOperator) and operator.device.type == "cpu"
            failed = answer.converged.logical_not().nonzero().flatten().tolist() if is_batch and others else []
            if 0 < 2 * len(failed) < operator.batch_size:
                return _solved_again(problem, ritz, failed, others)
        except (torch.linalg.LinAlgError, checks.ConvergenceError) as error:  # type: ignore[attr-defined]
            failure = checks.ConvergenceError(f"{solver} broke down ({error}); use another solver")
            failure.__cause__ = error
    if answer is None:
        assert failure is not None
        raise failure
    return answer


def _solved_again(problem: Problem, ritz: RitzPairs, failed: list[int], solvers: tuple[Solver, ...]) -> Solution:
    """Return the answer for a batch in which other solvers solve the failed graphs again, one after the other."""
    operator = problem.operator
    assert isinstance(operator, SymmetricOperator)
    parts = [ritz.part(slice(b, b + 1)) for b in range(operator.batch_size)]
    for b in failed:
        one = problem._replace(operator=operator.part(slice(b, b + 1)), has_guards=True)
        again = first_converged(solvers, one, None)
        parts[b] = again.ritz._replace(iterations=ritz.iterations + again.ritz.iterations)
    whole = joined(operator, [part._replace(inverses=()) for part in parts], problem.k)
    return check_answer(problem, again.solver, whole)
