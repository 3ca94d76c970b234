"""The choice of a solver, itself a solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch_lapeig import _checks
from torch_lapeig._tuning import DENSE_PRODUCTS, DENSE_WORK, FALLBACK_NODES, SMALL_NODES
from torch_lapeig.eigen.chebyshev import ChebyshevSubspace
from torch_lapeig.eigen.check import Solution, check_answer
from torch_lapeig.eigen.direct import SparseLU
from torch_lapeig.eigen.eigh import Eigh
from torch_lapeig.eigen.lanczos import Lanczos
from torch_lapeig.eigen.lobpcg import Lobpcg
from torch_lapeig.eigen.operator import Operator, knows_entries
from torch_lapeig.eigen.solver import BREAKDOWN, Progress, RitzPairs, Solver, fewest_active
from torch_lapeig.eigen.symmetric import SymmetricOperator

# Where the spectrum begins so crowded that multigrid is faster, see `Lanczos`: rolls and rings have 10 to 15, data of
# five and more dimensions 20 and more. Otherwise 150 to 300 products are usual.
CROWDED, PATIENCE = 17.5, 1000


class Choice(NamedTuple):
    """Solvers to ask one after the other, until one converges, and why these."""

    solvers: tuple[Solver, ...]
    reason: str


@dataclass(frozen=True)
class Auto:
    """The solver that suits a problem by its size, storage, batch and spectrum, and another should it not converge.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian
    >>> Auto().choose(Laplacian(KNN(5)(torch.rand(300, 3))).symmetric, 4)
    Choice(solvers=(Eigh(),), reason='all pairs of small graphs at once')
    """

    def choose(self, operator: Operator, k: int, start: RitzPairs | None = None) -> Choice:
        """The solvers for the ``k`` smallest pairs of an operator, given those of a similar one or None.

        Measured on two cores; docs/theory.md has the table.
        """
        if not knows_entries(operator):
            return Choice((Lanczos(), ChebyshevSubspace()), "a matrix of which nothing is known but its products")
        n, batch, m = operator.num_nodes, operator.batch_size, ChebyshevSubspace().block_size(k)
        if batch * n**3 <= DENSE_WORK or fewest_active(operator) < 4 * m:
            return Choice((Eigh(),), "all pairs of small graphs at once")
        last: Solver = Eigh() if n <= FALLBACK_NODES else Lanczos()
        is_sparse = isinstance(operator, SymmetricOperator) and operator.is_sparse
        if batch == 1 and not getattr(operator, "of_affinities", False):
            inverse = SparseLU() if is_sparse else None
            return Choice((Lobpcg(preconditioner=inverse), last), "a kernel: dense, or with factors that stay sparse")
        if is_sparse and (batch == 1 or n > SMALL_NODES):
            if start is not None and any(inverse is not None for inverse in start.inverses):
                return Choice((Lobpcg(), last), "a similar graph was solved by multigrid")
            first = Lanczos(patience=PATIENCE, crowded=CROWDED if n > SMALL_NODES else 0.0)
            return Choice((first, Lobpcg(), last), "a sparse graph: multigrid where its spectrum begins crowded")
        if n > FALLBACK_NODES:
            return Choice((ChebyshevSubspace(), Lobpcg(), last), "a large dense graph")
        # What does not come in about the time of `Eigh` is left to it. An entry of a CSR matrix costs 10 dense ones.
        entries = n if not is_sparse else 10 * _edges(operator) / (batch * n)
        products = DENSE_PRODUCTS * n / m * min(max(n / entries, 1), 4)
        filters = ChebyshevSubspace(max_products=max(60, int(products)))
        return Choice((filters, last), "graphs together, in products that take less time than all their pairs")

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """The pairs of the first solver that converges, or of the last one that gives any."""
        return first_converged(self.choose(operator, k, start).solvers, operator, k, tolerance, start, progress).ritz


def _edges(operator: Operator) -> int:
    return operator.values.numel() if isinstance(operator, SymmetricOperator) else 0


def first_converged(
    solvers: tuple[Solver, ...],
    operator: Operator,
    k: int,
    tolerance: float,
    start: RitzPairs | None,
    progress: Progress | None,
) -> Solution:
    """The answer of the first solver that converges, or of the last one that has any; breakdowns are passed over.

    Raises:
        ConvergenceError: all of them break down.
    """
    answer, failure = None, None
    for solver in solvers:
        try:
            ritz = solver(operator, k, tolerance, start, progress)
            answer = check_answer(operator, k, solver, tolerance, ritz)
        except BREAKDOWN as error:
            failure = _checks.ConvergenceError(f"{solver} broke down ({error}); use another solver")
            failure.__cause__ = error
            continue
        if answer.converged.all():
            break
    if answer is None:
        assert failure is not None
        raise failure
    return answer
