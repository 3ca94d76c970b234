"""The choice of a solver, itself a solver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from torch_lapeig import _checks, _tuning
from torch_lapeig._compiled.sparse import Limits
from torch_lapeig._tuning import DENSE_WORK, FALLBACK_NODES, SMALL_NODES, dense_products, eigh_nodes
from torch_lapeig.eigen.chebyshev import ChebyshevSubspace
from torch_lapeig.eigen.check import Solution, check_answer
from torch_lapeig.eigen.direct import SparseLU, shifted
from torch_lapeig.eigen.eigh import Eigh
from torch_lapeig.eigen.fill import MESHED, Fill, fill_within, share_of_ball, width_of_ball
from torch_lapeig.eigen.lanczos import BASIS, Lanczos
from torch_lapeig.eigen.lobpcg import Lobpcg
from torch_lapeig.eigen.operator import Operator, knows_entries
from torch_lapeig.eigen.shift_invert import ShiftInvert
from torch_lapeig.eigen.solver import BREAKDOWN, Progress, RitzPairs, Solver, fewest_active, with_guards
from torch_lapeig.eigen.symmetric import SymmetricOperator

MULTIGRID, FILTERS = Lobpcg(), ChebyshevSubspace()  # by their defaults: to check options takes time
OVER_LAW, OVER_OTHERS = 6.0, 3.0  # products that filters may take, over what they or others were to take
FINE = 1e-5  # tolerance up to which a Krylov space, which gains with every step, pays on graphs of some size


class Choice(NamedTuple):
    """Solvers to ask one after the other, until one converges, and why these.

    >>> Choice((Lanczos(), Eigh()), "clusters").solvers[0].max_products
    10000
    """

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

    def choose(self, operator: Operator, k: int, tolerance: float | None = None) -> Choice:
        """Choose the solvers for the ``k`` smallest pairs of an operator.

        ``tolerance``: of residuals, over the gap; None for the finest. Measured on two cores; docs/theory.md has the
        table.
        """
        if operator.is_sharded:
            return Choice((Lobpcg(), Lanczos()), "rows on several ranks: as few sums as possible")
        if not knows_entries(operator):
            return Choice((Lanczos(), ChebyshevSubspace()), "a matrix of which nothing is known but its products")
        n, batch, m = operator.num_nodes, operator.batch_size, FILTERS.block_size(k)
        is_sparse = isinstance(operator, SymmetricOperator) and operator.is_sparse
        if batch * n**3 <= DENSE_WORK or fewest_active(operator) < 4 * m:
            return Choice((Eigh(),), "all pairs of small graphs at once")
        last = last_resort(n)
        if batch == 1 and not getattr(operator, "of_affinities", False):
            inverse = SparseLU() if is_sparse else None
            return Choice((Lobpcg(preconditioner=inverse), last), "a kernel: dense, or with factors that stay sparse")
        if is_sparse and (batch == 1 or n > SMALL_NODES):
            return choose_for_graph(next(operator.items()), k, tolerance is None or tolerance <= FINE)
        if n <= eigh_nodes(operator.device, is_sparse):
            return Choice((Eigh(),), "all pairs of graphs together, of which the backward has nothing left to solve")
        if n > FALLBACK_NODES:
            return Choice((ChebyshevSubspace(), Lobpcg(), last), "a large dense graph")
        # What does not come in about the time of `Eigh` is left to it. An entry of a CSR matrix costs 10 dense ones.
        entries = n if not is_sparse else 10 * _edges(operator) / (batch * n)
        products = dense_products(operator.device) * n / m * min(max(n / entries, 1), 4)
        filters = ChebyshevSubspace(max_products=max(60, int(products)))
        return Choice((filters, last), "graphs together, in products that take less time than all their pairs")

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """The pairs of the first solver that converges, or of the last one that gives any."""
        solvers = self.choose(operator, k, tolerance).solvers
        return first_converged(solvers, operator, k, tolerance, progress).ritz


def last_resort(n: int) -> Solver:
    """What to ask when nothing else has converged."""
    return Eigh() if n <= FALLBACK_NODES else Lanczos()


class Work(NamedTuple):
    """What solvers would take for one sparse Laplacian, in the nanoseconds of `torch_lapeig._tuning`.

    ``multigrid`` is a whole solve; ``step`` is one of Lanczos, ``product`` one of a filter; ``few`` is less than any
    solve by these takes.
    """

    multigrid: float
    step: float
    product: float
    few: float

    @classmethod
    def of(cls, operator: Operator, k: int) -> Work:
        """That for the ``k`` smallest pairs."""
        n, entries, columns, t = operator.num_nodes, _edges(operator), with_guards(k), _tuning
        steps, block = t.COMPILED_STEPS if operator.compiled else t.TORCH_STEPS, FILTERS.block_size(k)
        step = steps.lanczos_calls + steps.lanczos_entry * entries
        per_row = steps.lanczos_row * Lanczos().basis_of(columns) / BASIS
        product = steps.filter_calls + block * (steps.filter_entry * entries + steps.filter_row * n)
        return cls(
            multigrid=t.MULTIGRID_CALLS + columns * (t.MULTIGRID_ENTRY * entries + t.MULTIGRID_ROW * n),
            step=step + per_row * n,
            product=product,
            few=steps.few * max(block, t.FEW_COLUMNS) * (step + steps.lanczos_row * n) * _lost_by_threads(n),
        )


def choose_for_graph(operator: Operator, k: int, is_fine: bool) -> Choice:
    """The solvers for one sparse Laplacian, by the work they would take.

    That of factors is counted or predicted (`torch_lapeig.eigen.fill`), that of multigrid is much the same on all
    graphs of a size. How many products a Krylov space or a filter needs depends on the spectrum. On meshes it begins
    crowded, by Weyl's law, and products alone take longer than factors, and than multigrid from some ten thousand nodes
    on. Elsewhere it only shows on the way: they are tried as long as what is left promises to be less than
    what the others would take.
    """
    n = operator.num_nodes
    if int(operator.nullity) > k:
        return Choice((Lanczos(), last_resort(n)), "more components than pairs: null vectors, known in closed form")
    if operator.device.type != "cpu":
        filters = ChebyshevSubspace(max_products=_tuning.DEVICE_PRODUCTS, patient=False)
        why = "a sparse graph on an accelerator: filters, unless its spectrum begins crowded"
        return Choice((filters, Lobpcg(), last_resort(n)), why)
    work, matrix = Work.of(operator, k), shifted(operator, 0.0, Auto())
    memory, last = _tuning.budget_of(operator.device).factors, last_resort(n)
    # The factors of others fill in, and their values are crowded where an inverse tells them from each other no better.
    share, is_for_filters = share_of_ball(matrix), _is_for_filters(operator, k, is_fine)
    has_shape = share >= MESHED
    follows_law = has_shape and is_for_filters and matrix.is_readable
    if follows_law:
        expected = _filters_on_mesh(operator, k, width_of_ball(n, share), work.product)
        if expected - work_of_factors(operator, k, Fill.least(n), True) < _work_of_order(operator):
            filters = ChebyshevSubspace(max_products=int(OVER_LAW * expected / work.product))
            why = "a small sparse graph: filters, which take less than it takes to know more"
            return Choice((filters, ShiftInvert(), MULTIGRID, last), why)
    fill = fill_within(matrix, _limits(work, memory)) if has_shape else None
    direct = math.inf if fill is None else work_of_factors(operator, k, fill, matrix.is_readable)
    # Factors bear weights of all sizes: where multigrid fails, they come before what takes longest.
    fits = fill is not None and fill.bytes <= memory
    factors: tuple[Solver, ...] = (ShiftInvert(memory=math.inf if fits else None),)
    others: tuple[Solver, ...] = (MULTIGRID, *factors, last)
    least, what = work.multigrid, "multigrid"
    if fill is not None and fits and direct < work.multigrid:
        others = (*factors, MULTIGRID, last)
        least, what = direct, f"{fill.entries / n:.3g} entries a row in its factors"
        by_law = _filters_on_mesh(operator, k, fill.width(n), work.product)
        if least <= (by_law if follows_law else work.few):
            return Choice(others, f"a sparse graph with {what}")
    steps = int(least / work.step)
    first = Lanczos(alternative=steps, patience=steps)
    if is_for_filters:
        filters = ChebyshevSubspace(max_products=int(OVER_OTHERS * least / work.product))
        return Choice((filters, *others), "a sparse graph of some size at most: filters, as long as others would take")
    if (what != "multigrid" or n > _tuning.MESH_NODES) and has_shape:
        return Choice(others, f"a large mesh: {what}")
    return Choice((first, *others), "a sparse graph of many dimensions, clusters or hubs, or a body of some size")


def _is_for_filters(operator: Operator, k: int, is_fine: bool) -> bool:
    """Whether filters of a block take no more time than single products: of few columns, which stay in the cache."""
    n, block = operator.num_nodes, FILTERS.block_size(k)
    if n <= _tuning.FILTER_NODES and operator.compiled is None:
        return True
    most = _tuning.FINELY_FILTERED if is_fine else _tuning.LOOSELY_FILTERED
    return operator.compiled is not None and block <= most and n * block <= _tuning.ALONE


def _filters_on_mesh(operator: Operator, k: int, width: float, product: float) -> float:
    """What compiled filters take on a surface, whose values rise in proportion to their number (Weyl); more on a curve.

    They take products as one over the root of the values between the wanted ones and the end of the block.
    """
    n, free = operator.num_nodes, FILTERS.block_size(k) - k
    products = _tuning.MESH_PRODUCTS * math.sqrt(n / free) * max(width, 1e-2) ** -0.25
    found: float = products * product * _lost_by_threads(n)
    return found


def work_of_factors(operator: Operator, k: int, fill: Fill, is_compiled: bool) -> float:
    """What a solve with factors of this fill would take, in the nanoseconds of `Work`, once nodes are in order."""
    n, columns, costs = operator.num_nodes, with_guards(k), _tuning.FACTORS[is_compiled]
    found = costs.calls + costs.multiplication * fill.work + (costs.entry + costs.solved_entry * columns) * fill.entries
    return (found + costs.solved_row * columns * n) * _lost_by_threads(n)


def _work_of_order(operator: Operator) -> float:
    """What the order of the nodes takes that compiled factors begin with."""
    found = _tuning.ORDER_ROW * operator.num_nodes + _tuning.ORDER_ENTRY * _edges(operator)
    return found * _lost_by_threads(operator.num_nodes)


def _lost_by_threads(n: int) -> float:
    """How much more others gain by threads than factors, and filters, which gain little more: of their block, parts."""
    return float(torch.get_num_threads() ** _tuning.THREADS_GAIN) if n > _tuning.FILTER_NODES else 1.0


def _limits(work: Work, memory: float) -> Limits:
    """Beyond which there is no need to know more of factors: others take less, or they do not fit."""
    costs = _tuning.FACTORS[True]
    looks = _tuning.ORDER_SHARE * min(work.multigrid, 4 * work.few) / _tuning.ORDER_LOOK
    return Limits(work.multigrid / costs.multiplication, memory / 8, looks)


def _edges(operator: Operator) -> int:
    return operator.values.numel() if isinstance(operator, SymmetricOperator) else 0


def first_converged(
    solvers: tuple[Solver, ...],
    operator: Operator,
    k: int,
    tolerance: float,
    progress: Progress | None,
    has_guards: bool = True,
) -> Solution:
    """The answer of the first solver that converges, or of the last one that has any; breakdowns are passed over.

    Raises:
        ConvergenceError: all of them break down.
    """
    found, failure = None, None
    for position, solver in enumerate(solvers):
        try:
            ritz = solver(operator, k, tolerance, progress=progress)
            found = partial(check_answer, operator, k, solver, tolerance, ritz, has_guards)
            # On a device a check that is in vain costs less than a look whether it will be.
            is_device, others = ritz.finished.device.type != "cpu", solvers[position + 1 :]
            if is_device or bool(ritz.finished.all() if operator.batch_size == 1 else ritz.finished.any()):
                answer = found()
                if answer.is_converged:
                    return answer
                if others and (few := answer.few(~answer.converged)):
                    return answer.with_others(one_more(few, others, operator, k, tolerance, has_guards))
        except BREAKDOWN as error:
            failure = _checks.ConvergenceError(f"{solver} broke down ({error}); use another solver")
            failure.__cause__ = error
    if found is None:
        assert failure is not None
        raise failure
    return found()


def one_more(
    graphs: list[int],
    solvers: tuple[Solver, ...],
    operator: Operator,
    k: int,
    tolerance: float,
    has_guards: bool,
) -> dict[int, Solution]:
    """The answers for single graphs of a batch, as `first_converged` gives them."""
    assert isinstance(operator, SymmetricOperator)  # see `Solution.few`
    found = {}
    for graph in graphs:
        alone = operator.part(slice(graph, graph + 1))
        found[graph] = first_converged(solvers, alone, k, tolerance, None, has_guards)
    return found
