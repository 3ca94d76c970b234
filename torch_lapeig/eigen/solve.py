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
from torch_lapeig.eigen.check import Solution, checked, report_failure, residual_norms, signs
from torch_lapeig.eigen.direct import SparseLU
from torch_lapeig.eigen.laplacian import NORMALIZATIONS, Laplacian, Normalization
from torch_lapeig.eigen.operator import SymmetricOperator
from torch_lapeig.eigen.rule import Degeneracy, ImplicitEigenpairs, Rule, rule_of
from torch_lapeig.eigen.solvers import BREAKDOWN, ChebyshevSubspace, Eigh, Lanczos, Lobpcg, Progress, RitzPairs, Solver
from torch_lapeig.eigen.tails import with_tails
from torch_lapeig.graph.graph import Graph, check_graph

# Dense `eigh` wins up to about here, in graphs · nodes³: one graph of 430 nodes, or 64 of 108 (measured on 2 cores).
DENSE_WORK = 8e7
# Graphs of a batch are solved together up to here, and one by one beyond; one graph up to here is left to Lanczos for
# longer.
SMALL_NODES = 2000
# Products of a block of m vectors with a dense matrix that take the time of its `eigh`, times m / n. For m = 16: 100 at
# n = 512, 230 at 1000, 500 at 2000 (measured on one core). An entry of a sparse matrix costs 10 of a dense one.
DENSE_PRODUCTS = 4.0
# What does not converge otherwise is done again by `Eigh` up to here: 8000² float64 are 0.5 GiB.
FALLBACK_NODES = 8000
# Where the spectrum begins so crowded that multigrid is faster, see `Lanczos`: rolls and rings have 10 to 15, data of
# five and more dimensions 20 and more. Otherwise 150 to 300 products are usual.
CROWDED, PATIENCE = 17.5, 1000
# Eigenvectors are within this angle of the true ones, by residual over gap, or float32 is given up for float64.
RESOLVED = 1e-2
# One sparse graph of more nodes is solved in reverse Cuthill–McKee order: its products are several times faster.
REORDER_NODES = 10**5


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
        restart: what ``warm_start`` needs: all vectors the solver had, and its multigrid hierarchies.
    """

    values: Tensor
    vectors: Tensor
    projected: Tensor
    residuals: Tensor
    gap: Tensor
    converged: Tensor
    iterations: int
    solver: Solver
    restart: Restart = field(repr=False)


@dataclass(frozen=True, eq=False)
class Restart:
    """Where a solver stopped, for the next solve of a similar problem: in the node order it worked in, if not None."""

    ritz: RitzPairs
    solver: Solver
    order: Tensor | None


@dataclass(frozen=True)
class Solve:
    """Options of an eigensolve. Every method and encoding takes one as ``solve=``, or a solver in its place.

    Args:
        solver: `Eigh`, `ChebyshevSubspace`, `Lanczos`, `Lobpcg`, `TorchLobpcg`, or None for a choice by size, storage,
            batch and hardness, with another one should the first not converge (docs/theory.md has the table). Where
            float32 does not resolve the gap (residual > gap / 100) it is solved and differentiated in float64, and
            the answer rounded.
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
        warm_start: eigenpairs of a similar problem of the same size, from an earlier step of a training. Begins with
            its vectors and keeps its preconditioner as long as that leads to the answer quickly. What they may
            overlook, smaller pairs of the new problem, is searched for with random vectors. In a module also True: each
            call begins with the pairs of the call before, where these are of the same size.
        on_failure: what to do where a graph has not converged: ``"warn"`` or ``"raise"``.
        progress: True for a bar by tqdm (to be installed), or a function of (iteration, largest residual, residual
            allowed), called in every iteration of an iterative solver.

    Raises:
        TypeError, ValueError: an option of another kind or out of range.
    """

    solver: Solver | None = None
    tolerance: float | None = None
    backward_tolerance: float | None = None
    degeneracy: Degeneracy = "mask"
    cluster_width: float | None = None
    warm_start: Eigenpairs | bool | None = None
    on_failure: Literal["warn", "raise"] = "warn"
    progress: Progress | bool = False

    def __post_init__(self) -> None:
        _checks.check_solver(self.solver)
        for name in ("tolerance", "backward_tolerance", "cluster_width"):
            if (value := getattr(self, name)) is not None:
                _checks.keep(self, **{name: _checks.check_positive(value, name)})
        _checks.check_choice(self.degeneracy, "degeneracy", ("mask", "lorentz", "exact"))
        if self.warm_start is not None and not isinstance(self.warm_start, bool):
            _checks.check_instance(self.warm_start, "warm_start", Eigenpairs, "Eigenpairs, True or None")
        _checks.check_choice(self.on_failure, "on_failure", ("warn", "raise"))
        if not isinstance(self.progress, bool):
            _checks.check_function(self.progress, "progress", "True, False or a function")

    @classmethod
    def of(cls, value: Solve | Solver | None) -> Solve:
        """The options given, those with a solver alone, or the default ones. TypeError for anything else."""
        return value if isinstance(value, Solve) else cls(value)


@_checks.full_precision
def eigenpairs(
    laplacian: SymmetricOperator, k: int, solve: Solve | Solver | None = None, *, fill: bool = False, **options: Any
) -> Eigenpairs:
    """The ``k`` smallest eigenpairs of a Laplacian, differentiable in its weights.

    The null space is set in closed form: the first pairs are 0 with the D^½-weighted indicators of the connected
    components, the first of them constant over the whole graph. Nodes of degree zero take no part.

    Args:
        laplacian: of one graph or a batch, in any normalisation; or another `SymmetricOperator`.
        k: pairs, 1 ≤ k ≤ number of nodes of positive degree (of each graph of a batch, see ``fill``), trivial ones
            included.
        solve: a `Solve`, or a solver alone. ``options``: fields of `Solve` by name, which take precedence:
            ``eigenpairs(laplacian, 8, tolerance=1e-6)``.
        fill: let graphs have fewer than ``k`` nodes of positive degree, or none at all, as in batches of unequal
            sizes. The pairs they lack have zero vectors, eigenvalues +∞ (zero in ``projected``), and no gradient.

    Gradients follow the implicit rule of `torch_lapeig.eigen.rule`, never that of ``torch.linalg.eigh``: they are
    finite, and with equal eigenvalues exact for losses that do not depend on the choice of basis in an eigenspace (that
    mix values and vectors through `Eigenpairs.projected`). A `DegeneracyWarning` says when a loss does, or when the cut
    between k and k + 1 splits a cluster of eigenvalues, and a `ConvergenceWarning` when the linear solve of the
    backward fails. Forward-mode derivatives (`torch.autograd.forward_ad`) follow the same rule.

    Raises:
        TypeError, ValueError: k out of range, unknown option, a warm start of another size. ConvergenceError: see
            `Solve`; `TorchLobpcg` also raises it where `torch.lobpcg` breaks down. ImportError: no tqdm.
    """
    if not isinstance(laplacian, SymmetricOperator):
        raise TypeError(f"laplacian must be a Laplacian, got {_checks.arrived(laplacian)}; use Laplacian(graph)")
    solve = dataclasses.replace(Solve.of(solve), **options) if options else Solve.of(solve)
    if solve.warm_start is True:
        raise ValueError("warm_start must be Eigenpairs here, got True, which modules take: they keep their last pairs")
    k, fill = _checks.check_count(k, "k"), _checks.check_flag(fill, "fill")
    symmetric, factor = laplacian.symmetrized()
    _check_request(symmetric, k, fill, solve.solver)
    rule = rule_of(symmetric, solve.backward_tolerance, solve.degeneracy, solve.cluster_width)
    tolerance = solve.tolerance or (1e-10 if symmetric.values.dtype == torch.float64 else 1e-4)
    graph, solver = laplacian.graph, solve.solver
    restart = _checked_restart(solve.warm_start, symmetric) if isinstance(solve.warm_start, Eigenpairs) else None
    operator, order = symmetric, None
    if graph.is_sparse and len(graph.shape) == 1 and graph.num_nodes > REORDER_NODES:
        operator, order = symmetric.reordered(None if restart is None else restart.order)
    with torch.no_grad(), _reporting(solve.progress) as report:
        solution = _solve(operator.frozen(), min(k, graph.num_nodes), solver, tolerance, restart, report)
    if solution.values.dtype != operator.values.dtype:
        parts, solution = _in_double(operator, solution, rule)
    else:
        parts = ImplicitEigenpairs.apply(operator.values, operator.diagonal, solution, rule)
    if not solution.converged.all():
        report_failure(solution, solve.on_failure)
    projected, vectors, values, residuals = _filled(*parts, solution, k)
    if order is not None:
        vectors = torch.empty_like(vectors).index_copy(1, order, vectors)
    if factor is not None:
        y = factor.reshape(vectors.shape[:2])[..., None] * vectors
        if isinstance(laplacian, Laplacian) and laplacian.normalization == "random_walk" and laplacian.uneven.any():
            y = with_tails(laplacian, vectors, y, projected)
        # Λ as a matrix is that of the vectors as they are returned: their signs are its signs.
        sign = signs(y)
        vectors, projected = y * sign, projected * sign * sign.mT
    lead = graph.shape[:-1]
    return Eigenpairs(
        values=values.reshape(*lead, k),
        vectors=vectors.reshape(*graph.shape, k),
        projected=projected.reshape(*lead, k, k),
        residuals=residuals.reshape(*lead, k),
        gap=solution.gap.reshape(lead),
        converged=solution.converged.reshape(lead),
        iterations=solution.ritz.iterations,
        solver=solution.solver,
        restart=Restart(solution.ritz, solution.solver, order),
    )


def _in_double(operator: SymmetricOperator, finer: Solution, rule: Rule) -> tuple[tuple[Tensor, Tensor], Solution]:
    """Λ and V of a float32 operator that was solved in float64, differentiated there too, and rounded at the end."""
    double, dtype = operator.double(), operator.values.dtype
    projected, vectors = (
        part.to(dtype) for part in ImplicitEigenpairs.apply(double.values, double.diagonal, finer, rule)
    )
    with torch.no_grad():
        # The residuals of what is returned, not of what it was rounded from.
        bare, values = operator.frozen(), finer.values.to(dtype)
        residuals = residual_norms(bare, values, _checks.primal(vectors))
        converged = finer.converged & (residuals.amax(1) <= operator.round_off)
    rounded = dataclasses.replace(finer, residuals=residuals, gap=finer.gap.to(dtype), converged=converged)
    return (projected, vectors), rounded


@dataclass(frozen=True, eq=False)
class ComponentEigenpairs:
    """Eigenpairs of one connected component: its ``nodes``, int64 ``(M,)`` in ascending order, and their ``pairs``."""

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
    """
    check_graph(graph)
    k = _checks.check_count(k, "k")
    _checks.check_choice(normalization, "normalization", NORMALIZATIONS)
    found = []
    for nodes in graph.nodes_of_components():
        laplacian = Laplacian(graph.subgraph(nodes), normalization)
        found.append(ComponentEigenpairs(nodes, eigenpairs(laplacian, min(k, len(nodes)), solve, **options)))
    return found


@contextlib.contextmanager
def _reporting(progress: Progress | bool) -> Iterator[Progress | None]:
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


def _filled(projected: Tensor, vectors: Tensor, s: Solution, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Λ, V, values and residuals of ``k`` pairs, of which a graph may lack the last; see ``fill``."""
    if k <= s.operator.fewest_active:
        return projected, vectors, projected.diagonal(dim1=-2, dim2=-1), s.residuals
    more = k - s.values.shape[1]
    pad = torch.nn.functional.pad
    present = pad(s.present, (0, more))
    # Nothing flows back from a pair that is not there, whatever a loss makes of it.
    vectors = torch.where(present[:, None, :], pad(vectors, (0, more)), 0)
    projected = torch.where(present[:, None, :] & present[:, :, None], pad(projected, (0, more, 0, more)), 0)
    values = torch.where(present, projected.diagonal(dim1=-2, dim2=-1), torch.inf)
    return projected, vectors, values, pad(s.residuals, (0, more))


def _check_request(operator: SymmetricOperator, k: int, fill: bool, solver: Solver | None) -> None:
    operator.check()
    if k > operator.fewest_active and fill and solver is not None and not isinstance(solver, Eigh):
        raise ValueError(f"solver must be Eigh() or None to fill graphs of fewer than k={k} nodes, got {solver}")
    if k > (fewest := operator.fewest_active) and not fill:
        item = int(operator.active.reshape(operator.graph.batch_size, -1).sum(1).argmin())
        raise ValueError(
            f"k must be at most the number of nodes of positive degree, got k={k} with {fewest} of them in graph {item}"
        )


def _checked_restart(warm_start: Eigenpairs, operator: SymmetricOperator) -> Restart:
    restart, graph = warm_start.restart, operator.graph
    given, expected = tuple(restart.ritz.vectors.shape[:2]), (graph.batch_size, graph.num_nodes)
    if given != expected:
        raise ValueError(f"warm_start must be of {expected[0]} graphs of {expected[1]} nodes, got {given}")
    vectors = restart.ritz.vectors.to(operator.values)
    return dataclasses.replace(restart, ritz=restart.ritz._replace(vectors=vectors))


def _solve(
    operator: SymmetricOperator,
    k: int,
    solver: Solver | None,
    tolerance: float,
    restart: Restart | None,
    progress: Progress | None,
) -> Solution:
    """The solution of a solver or of the one that suits the problem; in float64 where float32 does not resolve it."""
    start = None if restart is None else restart.ritz
    candidates = (solver,) if solver is not None else _candidates(operator, k, restart)
    if operator.values.dtype == torch.float64:
        return _first_finished(operator, k, candidates, tolerance, start, progress)
    # Of float32 the first choice is asked, but not multigrid: what that is needed for is beyond float32.
    if solver is not None or not isinstance(candidates[0], Lobpcg):
        with contextlib.suppress(_checks.ConvergenceError):
            solution = _first_finished(operator, k, candidates[:1], tolerance, start, progress)
            if solution.converged.all() and (solution.residuals.amax(1) <= RESOLVED * solution.gap).all():
                return solution
            if not solution.ritz.finished.all():  # in float64 it would not either
                candidates = candidates[1:] or candidates
    start = None if start is None else start._replace(vectors=start.vectors.double())
    return _first_finished(operator.double(), k, candidates, tolerance, start, progress)


def _candidates(operator: SymmetricOperator, k: int, restart: Restart | None) -> tuple[Solver, ...]:
    """The solvers to try one after the other."""
    graph, chebyshev = operator.graph, ChebyshevSubspace()
    n, m = graph.num_nodes, chebyshev.block_size(k)
    if graph.batch_size * n**3 <= DENSE_WORK or operator.fewest_active < 4 * m:
        return (Eigh(),)
    last: Solver = Eigh() if n <= FALLBACK_NODES else Lanczos()
    if graph.batch_size == 1 and not isinstance(operator, Laplacian):  # kernels are dense and their spectra decay
        return (Lobpcg(preconditioner=SparseLU() if graph.is_sparse else None), last)
    if graph.is_sparse and (graph.batch_size == 1 or n > SMALL_NODES):
        if restart is not None and isinstance(restart.solver, Lobpcg):
            return (Lobpcg(), last)
        return (Lanczos(patience=PATIENCE, crowded=CROWDED if n > SMALL_NODES else 0.0), Lobpcg(), last)
    if n > FALLBACK_NODES:
        return (chebyshev, Lobpcg(), last)
    # What does not come in about the time of `Eigh` is left to it.
    entries = n if not graph.is_sparse else 10 * graph.weight.numel() / (graph.batch_size * n)
    products = DENSE_PRODUCTS * n / m * min(max(n / entries, 1), 4)
    return (ChebyshevSubspace(max_products=max(60, int(products))), last)


def _first_finished(
    operator: SymmetricOperator,
    k: int,
    candidates: tuple[Solver, ...],
    tolerance: float,
    start: RitzPairs | None,
    progress: Progress | None,
) -> Solution:
    """The answer of the first candidate that converges, or of the last one that has any; breakdowns are passed over."""
    answer, failure = None, None
    for solver in candidates:
        try:
            ritz = solver(operator, k, tolerance, start, progress)
            answer = checked(operator, k, solver, tolerance, ritz)
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
