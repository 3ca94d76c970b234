"""The few smallest eigenpairs of a Laplacian, with the one differentiation rule of the library."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._tuning import REORDER_NODES
from torch_lapeig.eigen.auto import Auto, first_converged, one_more
from torch_lapeig.eigen.check import Solution, check_answer, report_failure, residual_norms
from torch_lapeig.eigen.clusters import DEGENERACIES, Degeneracy, Rule, rule_of
from torch_lapeig.eigen.eigh import Eigh, refined
from torch_lapeig.eigen.laplacian import NORMALIZATIONS, Laplacian, Normalization, needs_derivatives
from torch_lapeig.eigen.lobpcg import Lobpcg
from torch_lapeig.eigen.operator import Operator, is_operator
from torch_lapeig.eigen.rule import ImplicitEigenpairs
from torch_lapeig.eigen.shift_invert import ShiftInvert
from torch_lapeig.eigen.solver import APART, Progress, Solver, fewest_active
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.eigen.tails import with_tails
from torch_lapeig.graph.graph import Graph, check_graph

FINEST = 1e-10  # tolerance of float64
NOISE = 100  # units of round-off in values


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The k smallest eigenpairs of a Laplacian, with the quality of the answer.

    Attributes:
        values: ascending ``(k,)`` or ``(B, k)``; carry gradients.
        vectors: ``(N, k)`` or ``(B, N, k)``, rows of nodes of degree zero are zero; carry gradients. Orthonormal, but
            for ``normalization="random_walk"`` the generalised eigenvectors y = D^-½ v of L y = λ D y with
            Yᵀ D Y = I. The entry of largest magnitude of each is positive (the first of those within 0.1 %).
        projected: Λ = Vᵀ A V of the symmetric operator, diag(``values``) as a matrix ``(k, k)`` or ``(B, k, k)``. Where
            eigenvalues may coincide, functions of values and vectors together (diffusion distances, heat kernels) have
            correct gradients only through it: ``V @ torch.matrix_exp(-projected) @ V.mT``, not ``values.neg().exp()``.
        residuals: ‖A v − λ v‖ of each pair of the symmetric operator, same shape as ``values``.
        gap: λ_{k+1} − λ_k, ``()`` or ``(B,)``, within a tenth of itself; infinite if there is no further pair.
        converged: bool ``()`` or ``(B,)``: all residuals allowed by the tolerance, the next value settled, copies of
            multiple values searched for, and vectors orthonormal.
        iterations: of the solver.
        solver: the one that gave the answer.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.ones(4, dtype=torch.float64))
    >>> pairs = eigenpairs(Laplacian(path), 2)
    >>> pairs.vectors.shape, pairs.gap.round(decimals=6), bool(pairs.converged)
    (torch.Size([3, 2]), tensor(1., dtype=torch.float64), True)
    """

    values: Tensor
    vectors: Tensor
    projected: Tensor
    residuals: Tensor
    gap: Tensor
    converged: Tensor
    iterations: int
    solver: Solver

    def reshaped(self, lead: tuple[int, ...], dtype: torch.dtype) -> Eigenpairs:
        """Return the pairs of a batch with another batch axis, ``()`` or ``(B,)``, in a dtype."""
        names = ("values", "vectors", "projected", "residuals", "gap")
        parts = [getattr(self, name).to(dtype) for name in names]
        shaped = [part.reshape((*lead, *part.shape[1:])) for part in parts]
        changed = dict(zip(names, shaped, strict=True))
        return dataclasses.replace(self, **changed, converged=self.converged.reshape(lead))


@dataclass(frozen=True)
class Solve:
    """Options of an eigensolve. Every method and encoding takes one as ``solve=``, or a solver in its place.

    Args:
        solver: `Auto`, which chooses by size, storage, batch and the work that each would take, and asks another should
            the first not converge; `Eigh`, `ChebyshevSubspace`, `Lobpcg`, `ShiftInvert`, `TorchLobpcg` of
            `torch_lapeig.eigen`; or a `Solver` of yours. Where float32 does not resolve the gap (residual > gap / 1000)
            or values from each other (residual > difference / 100) it is solved and differentiated in float64, and the
            answer rounded.
        tolerance: residual allowed, relative to the gap after the k-th value, but never below round-off; default
            1e-10 in float64 and 1e-4 in float32.
        backward_tolerance: relative residual of the backward's linear solve; default 1e-10 and 1e-6.
        degeneracy: how eigenvalues closer than the cluster width enter the gradient. ``"mask"``: their rotation into
            each other is left out, which is exact for losses that do not depend on the basis of an eigenspace.
            ``"lorentz"``: 1/Δ becomes Δ/(Δ² + width²), smooth in Δ and finite for any loss, but biased.
            ``"exact"``: 1/Δ as it is, right for any loss as long as the eigenvalues are distinct, noise
            or NaN where they are not.
        cluster_width: see ``degeneracy``; default the larger of 10 residuals and 50 eps · (bound of the spectrum +
            λ_k), eps of the solve and of the weights as they were given; √eps · bound for ``"lorentz"``.
        on_failure: what to do where a graph has not converged: ``"warn"`` or ``"raise"``.
        progress: True for a bar by tqdm (to be installed), or a function of (iteration, largest residual, residual
            allowed), called in every iteration of an iterative solver.

    Raises:
        TypeError, ValueError: an option of another kind or out of range.

    >>> Solve(tolerance=1e-3, on_failure="raise").tolerance
    0.001
    >>> Solve(Eigh()).solver
    Eigh()
    """

    solver: Solver = field(default_factory=Auto)
    tolerance: float | None = None
    backward_tolerance: float | None = None
    degeneracy: Degeneracy = "mask"
    cluster_width: float | None = None
    on_failure: Literal["warn", "raise"] = "warn"
    progress: Progress | bool = False

    def __post_init__(self) -> None:
        _checks.check_function(self.solver, "solver", "a solver such as Eigh()")
        for name in ("tolerance", "backward_tolerance", "cluster_width"):
            if (value := getattr(self, name)) is not None:
                _checks.keep(self, **{name: _checks.check_positive(value, name)})
        _checks.check_choice(self.degeneracy, "degeneracy", DEGENERACIES)
        _checks.check_choice(self.on_failure, "on_failure", ("warn", "raise"))
        if not isinstance(self.progress, bool):
            _checks.check_function(self.progress, "progress", "True, False or a function")

    def rule(self, dtype: torch.dtype, loss: torch.dtype | None = None) -> Rule:
        """Return the options of the gradient for a problem of a dtype and a loss in it, or in a coarser one."""
        return rule_of(dtype, loss, self.backward_tolerance, self.degeneracy, self.cluster_width)

    @classmethod
    def of(cls, value: Solve | Solver | None) -> Solve:
        """The options given, those with a solver alone, or the default ones. TypeError for anything else."""
        if isinstance(value, Solve):
            return value
        return cls() if value is None else cls(value)


@_checks.full_precision
def eigenpairs(
    laplacian: Laplacian | Operator, k: int, solve: Solve | Solver | None = None, *, fill: bool = False, **options: Any
) -> Eigenpairs:
    """The ``k`` smallest eigenpairs of a Laplacian, differentiable in its weights.

    The null space is set in closed form: the first pairs are 0 with the D^½-weighted indicators of the connected
    components, the first of them constant over the whole graph. Nodes of degree zero take no part.

    Args:
        laplacian: of one graph or a batch; a `SymmetricOperator`; or an `Operator` of yours, without gradients.
        k: pairs with the trivial ones, at most the number of nodes of positive degree (of each graph, see ``fill``).
        solve: a `Solve`, or a solver alone. ``options``: fields of `Solve` by name, which take precedence.
        fill: let graphs have fewer than ``k`` nodes of positive degree, or none at all, as in batches of unequal
            sizes. The pairs they lack have zero vectors, eigenvalues +∞ (zero in ``projected``), and no gradient.

    Gradients follow the implicit rule of ``torch_lapeig.eigen.rule``, never that of ``torch.linalg.eigh``: they are
    finite, and with equal eigenvalues exact for losses that do not depend on the choice of basis in an eigenspace (that
    mix values and vectors through `Eigenpairs.projected`). A `DegeneracyWarning` says when a loss does, or when the cut
    after pair k splits a cluster, a `ConvergenceWarning` when the backward's solve fails. Forward mode follows it too.

    Raises:
        TypeError, ValueError: no nodes, k out of range, unknown option. ConvergenceError, ImportError
            (no tqdm): see `Solve`; `TorchLobpcg` raises the first, too, where `torch.lobpcg` breaks down.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> eigenpairs(Laplacian(path), 3, tolerance=1e-6).values.round(decimals=5) + 0  # 1 − cos(πj/2)
    tensor([0., 1., 2.])
    """
    return eigenpairs_for(None, laplacian, k, dataclasses.replace(Solve.of(solve), **options), fill)


def eigenpairs_for(
    loss: torch.dtype | None, laplacian: Laplacian | Operator, k: int, solve: Solve, fill: bool
) -> Eigenpairs:
    """`eigenpairs` for a loss that is computed in a coarser dtype than they are; None for their own."""
    operator = _operator_of(laplacian)
    names = ("solver", "tolerance", "backward_tolerance", "degeneracy", "cluster_width", "on_failure")
    operator.agree("eigenpairs", lambda: {"k": k, "fill": fill, **{name: getattr(solve, name) for name in names}})
    k = _check_request(operator, k, fill, solve)
    if operator.is_sharded and isinstance(laplacian, Laplacian) and isinstance(solve.solver, Auto):
        return laplacian.graph.pattern.eigenpairs(loss, laplacian, k, solve, fill)  # type: ignore[no-any-return]
    return _eigenpairs(laplacian, operator, k, solve, loss)


def _eigenpairs(
    laplacian: Laplacian | Operator, operator: Operator, k: int, solve: Solve, loss: torch.dtype | None
) -> Eigenpairs:
    worked, order, unit = operator, None, None
    if isinstance(worked, SymmetricOperator):
        worked, unit = worked.in_unit()
        if _is_large(worked):
            worked, order = worked.reordered()
    is_differentiated = isinstance(worked, SymmetricOperator) and needs_derivatives(worked.values, worked.diagonal)
    with torch.no_grad(), _progress_function(solve.progress) as report:
        bare = worked.frozen() if isinstance(worked, SymmetricOperator) else worked
        report = report if unit is None else _in_unit(report, float(unit.amax()))
        solution = _solution(bare, min(k, operator.all_nodes), solve, report, is_differentiated)
    factor = laplacian.factor if isinstance(laplacian, Laplacian) and is_differentiated and order is None else None
    projected, vectors, solution = _differentiable(worked, solution, solve, is_differentiated, loss, factor)
    if unit is not None:
        projected, gap = projected * unit[:, None, None], solution.gap * unit
        solution = dataclasses.replace(solution, residuals=solution.residuals * unit[:, None], gap=gap)
    if not solution.is_converged:
        report_failure(solution, solve.on_failure)
    projected, vectors, values, residuals = _fill(projected, vectors, solution, k)
    if order is not None:
        vectors = torch.empty_like(vectors).index_copy(1, order, vectors)
    if isinstance(laplacian, Laplacian) and is_differentiated and laplacian.symmetric.most_null > 1:
        vectors = _beside_trivial(laplacian, vectors)
    if isinstance(laplacian, Laplacian) and laplacian.factor is not None:
        projected, vectors = _apply_factor(laplacian, projected, vectors, solution)
    lead = operator.shape[:-1]
    return Eigenpairs(
        values=values.reshape(*lead, k),
        vectors=vectors.reshape(*operator.shape, k),
        projected=projected.reshape(*lead, k, k),
        residuals=residuals.reshape(*lead, k),
        gap=solution.gap.reshape(lead),
        converged=solution.converged.reshape(lead),
        iterations=solution.ritz.iterations,
        solver=solution.solver,
    )


def _operator_of(laplacian: Any) -> Operator:
    """Return the operator that is solved: the symmetric operator of a Laplacian, or an operator itself."""
    if isinstance(laplacian, Laplacian):
        return laplacian.symmetric
    if isinstance(laplacian, SymmetricOperator):
        laplacian.check()
        return laplacian
    if is_operator(laplacian):
        return laplacian
    raise TypeError(f"laplacian must be a Laplacian, got {_checks.arrived(laplacian)}; use Laplacian(graph)")


def _is_large(operator: SymmetricOperator) -> bool:
    is_one = len(operator.shape) == 1 and not operator.is_sharded and operator.device.type == "cpu"
    return operator.is_sparse and is_one and operator.num_nodes > REORDER_NODES


def _differentiable(
    operator: Operator,
    solution: Solution,
    solve: Solve,
    is_needed: bool,
    loss: torch.dtype | None,
    factor: Tensor | None,
) -> tuple[Tensor, Tensor, Solution]:
    """Λ ``(B, k, k)`` and V ``(B, N, k)`` of a solution, with gradients to the entries of the operator if needed.

    A float32 operator that was solved in float64 is differentiated there too, and what is returned is rounded.
    """
    if not isinstance(operator, SymmetricOperator):
        return torch.diag_embed(solution.values), solution.vectors, solution
    dtype, finer = operator.dtype, solution.values.dtype != operator.dtype
    rule = solve.rule(dtype, loss)
    if factor is not None:
        rule = dataclasses.replace(rule, factor=_checks.primal(factor).reshape(operator.batch_size, -1).abs())
    if is_needed:
        exact = operator.double() if finer else operator
        projected, vectors = ImplicitEigenpairs.apply(exact.values, exact.diagonal, solution, rule)
    else:
        projected, vectors = torch.diag_embed(solution.values), solution.vectors
    if not finer:
        return projected, vectors, solution
    projected, vectors = projected.to(dtype), vectors.to(dtype)
    with torch.no_grad():
        # The residuals of what is returned, not of what it was rounded from.
        bare, values = operator.frozen(), solution.values.to(dtype)
        residuals = residual_norms(bare, values, _checks.primal(vectors))
        gap = solution.gap.to(dtype)
        asked = _tolerance(solve, dtype) * gap.masked_fill(gap.isinf(), 0)  # as of the solve, and what rounding adds
        converged = solution.converged & (residuals.amax(1) <= asked + operator.round_off)
    return projected, vectors, dataclasses.replace(solution, residuals=residuals, gap=gap, converged=converged)


def _beside_trivial(laplacian: Laplacian, vectors: Tensor) -> Tensor:
    """V with the derivative of its first vector, which is known in closed form, and of the others beside it.

    Several components have as many eigenvalues 0, within whose eigenspace the rule turns nothing: but the first vector
    there is always that of the whole graph.
    """
    operator, ground = laplacian.symmetric, laplacian.ground[..., None]
    ground = ground / _checks.power_of_two(operator.largest(_checks.primal(ground))[..., None, :], (-2,))
    squares = operator.dots(ground, ground)[..., None, :]
    first = ground / torch.where(squares > 0, squares, 1).sqrt()
    first = first * operator.inner(_checks.primal(first), _checks.primal(vectors[..., :1])).sign()
    others = vectors[..., 1:]
    turned = operator.inner(
        first, others
    )  # 0, but for its derivative: the rule has these beside a first vector at rest
    beside = others - _checks.matmul(first, turned)
    beside = (
        beside + _checks.matmul(beside, _checks.matmul(turned.mT, turned)) / 2
    )  # of length 1 for second derivatives, too
    whole = torch.cat([first, beside], -1)
    several = (operator.nullity > 1)[:, None, None]
    return torch.where(several, _checks.primal(vectors) + (whole - _checks.primal(whole)), vectors)


def _apply_factor(
    laplacian: Laplacian, projected: Tensor, vectors: Tensor, solution: Solution
) -> tuple[Tensor, Tensor]:
    """Λ and the eigenvectors of a Laplacian that is similar to a symmetric one, from those of the latter."""
    assert laplacian.factor is not None
    y = laplacian.factor.reshape(vectors.shape[:2])[..., None] * vectors
    if laplacian.normalization == "random_walk" and laplacian.has.slight:
        m = solution.residuals.shape[1]  # beyond, no graph has pairs
        found = vectors[..., :m], y[..., :m], projected[:, :m, :m]
        y = torch.cat([with_tails(laplacian, *found, solution.residuals, solution.gap), y[..., m:]], -1)
    # Λ as a matrix is that of the vectors as they are returned: their signs are its signs.
    sign = laplacian.symmetric.signs(y)
    return projected * sign * sign.mT, y * sign


@dataclass(frozen=True, eq=False)
class ComponentEigenpairs:
    """Eigenpairs of one connected component: its ``nodes``, int64 ``(M,)`` in ascending order, and their ``pairs``.

    >>> pair = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> parts = component_eigenpairs(Graph.from_dense(torch.block_diag(pair, pair)), 2)
    >>> [part.nodes.tolist() for part in parts]
    [[0, 1], [2, 3]]
    """

    nodes: Tensor
    pairs: Eigenpairs


def component_eigenpairs(
    graph: Graph,
    k: int,
    normalization: Normalization = "symmetric",
    solve: Solve | Solver | None = None,
    **options: Any,
) -> list[ComponentEigenpairs]:
    """The ``k`` smallest eigenpairs of each connected component on its own, differentiable in the weights.

    Args:
        graph: one graph or a batch; in a batch the nodes are numbered through as ``b * N + i``.
        k: pairs of each component, or as many as it has nodes. The first one is trivial.
        normalization: of the Laplacians. solve, options: see `eigenpairs`.

    Returns:
        The components of two or more nodes, by their first nodes; isolated nodes have no eigenpairs.

    >>> pair = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> [len(part.pairs.values) for part in component_eigenpairs(Graph.from_dense(torch.block_diag(pair, pair)), 2)]
    [2, 2]
    """
    check_graph(graph)
    k = _checks.check_width(k, "k")
    _checks.check_choice(normalization, "normalization", NORMALIZATIONS)
    found = []
    for nodes in graph.nodes_of_components():
        laplacian = Laplacian(graph.subgraph(nodes), normalization)
        found.append(ComponentEigenpairs(nodes, eigenpairs(laplacian, min(k, len(nodes)), solve, **options)))
    return found


@contextlib.contextmanager
def _progress_function(progress: Progress | bool) -> Iterator[Progress | None]:
    """The function to call in every iteration."""
    if progress is not True:
        yield progress or None
        return
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm, or pass a function") from error
    with tqdm(desc="eigenpairs", unit=" iterations") as bar:

        def show(iteration: int, residual: float, allowed: float) -> None:
            bar.set_postfix_str(f"residual {residual:.1e}, goal {allowed:.1e}", refresh=False)
            bar.update(iteration - bar.n)

        yield show


def _in_unit(report: Progress | None, unit: float) -> Progress | None:
    """The function, called with residuals of a problem over a unit."""
    return None if report is None else lambda number, residual, allowed: report(number, residual * unit, allowed * unit)


def _fill(projected: Tensor, vectors: Tensor, s: Solution, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Λ, V, values and residuals of ``k`` pairs, of which a graph may lack the last; see ``fill``."""
    if k <= fewest_active(s.operator):
        return projected, vectors, projected.diagonal(dim1=-2, dim2=-1), s.residuals
    more = k - s.values.shape[1]
    pad = torch.nn.functional.pad
    present = pad(s.present, (0, more))
    # Nothing flows back from a pair that is not there, whatever a loss makes of it.
    vectors = torch.where(present[:, None, :], pad(vectors, (0, more)), 0)
    projected = torch.where(present[:, None, :] & present[:, :, None], pad(projected, (0, more, 0, more)), 0)
    values = torch.where(present, projected.diagonal(dim1=-2, dim2=-1), torch.inf)
    return projected, vectors, values, pad(s.residuals, (0, more))


def _check_request(operator: Operator, k: int, fill: bool, solve: Solve) -> int:
    """The number of pairs, checked against the sizes of the graphs and the solver."""
    k, fill = _checks.check_width(k, "k"), _checks.check_flag(fill, "fill")
    if k <= fewest_active(operator):
        return k
    if not fill:
        item = int(operator.active_count.argmin())
        raise ValueError(
            f"k must be at most the number of nodes of positive degree, got k={k} with {fewest_active(operator)} of "
            f"them in graph {item}"
        )
    if not isinstance(solve.solver, (Auto, Eigh)):
        raise ValueError(f"solver must be Eigh() or None to fill graphs of fewer than k={k} nodes, got {solve.solver}")
    return k


def _tolerance(solve: Solve, dtype: torch.dtype) -> float:
    """Of residuals against the gap."""
    return solve.tolerance or (FINEST if dtype == torch.float64 else 1e-4)


def _solution(operator: Operator, k: int, solve: Solve, progress: Progress | None, has_guards: bool) -> Solution:
    """Return the answer of the solver; in float64 where float32 does not resolve the eigenvalues."""
    solver, tolerance = solve.solver, _tolerance(solve, operator.dtype)
    solvers = solver.choose(operator, k).solvers if isinstance(solver, Auto) else (solver,)
    if operator.dtype == torch.float64 or not isinstance(operator, SymmetricOperator):
        return first_converged(solvers, operator, k, tolerance, progress, has_guards)
    # Of float32 the first choice is asked, but not what is chosen for eigenvalues beyond float32.
    if not isinstance(solvers[0], ShiftInvert) and not (isinstance(solver, Auto) and isinstance(solvers[0], Lobpcg)):
        with contextlib.suppress(_checks.ConvergenceError):
            single = first_converged(solvers[:1], operator, k, tolerance, progress, has_guards)
            if single.is_converged and single.is_resolved:
                return single
            return _solved_in_float64(single, solvers, k, solve, progress)
    return first_converged(solvers, operator.double(), k, tolerance, progress, has_guards)


def _solved_in_float64(
    single: Solution, solvers: tuple[Solver, ...], k: int, solve: Solve, progress: Progress | None
) -> Solution:
    """Return the solution of an operator in float64, of whose solution in float32 some graphs are not resolved.

    Each graph is solved anew, so that no smaller eigenvalue is overlooked; only all N pairs of `Eigh` are refined.
    """
    exact, tolerance, has_guards = single.symmetric.double(), _tolerance(solve, torch.float32), single.has_guards
    if not single.ritz.finished.all():  # in float64 it would not either
        solvers = solvers[1:] or solvers
    if isinstance(single.solver, Eigh) and single.ritz.vectors.shape[2] == exact.num_nodes:
        again = check_answer(exact, k, single.solver, tolerance, refined(exact, k, single.ritz), has_guards)
        if again.is_converged:
            return again
    kept = single.converged & single.has_span  # but for values that are close
    finest = tolerance if solve.tolerance is not None else FINEST
    if few := single.few(~(single.converged & single.resolved)):
        found = one_more(few, solvers, exact, k, tolerance, has_guards)
        found = {b: _told_apart(one, solvers, k, finest) for b, one in found.items()}
        found = {b: one for b, one in found.items() if one.is_converged or not kept[b]}
        return single.in_double(exact).with_others(found) if found else single
    again = first_converged(solvers, exact, k, tolerance, progress, has_guards)
    again = _told_apart(again, solvers, k, finest)
    return single if not again.is_converged and kept.all() else again


def _told_apart(found: Solution, solvers: tuple[Solver, ...], k: int, finest: float) -> Solution:
    """Return a solution in float64, solved to a finer tolerance where residuals do not resolve distinct values.

    Values are known to the squares of residuals over gaps, far better than vectors.
    """
    residual = found.residuals.amax(1)
    noise = 10 * residual.square() / found.gap + NOISE * torch.finfo(residual.dtype).eps * found.operator.bound
    if not found.is_converged or found.tells_apart(noise).all():
        return found
    finer = max(finest, float((APART * found.closest(noise) / found.gap).amin()))
    again = first_converged(solvers, found.operator, k, finer, None, found.has_guards)
    return again if again.is_converged else found
