"""The smallest eigenpairs of a Laplacian, with the one differentiation rule of the library."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, Literal

import torch
from torch import Tensor

from torch_lapeig.eigen import matrices
from torch_lapeig.eigen.choose import Choice, choose
from torch_lapeig.eigen.gradient.rule import Pairs, values_of
from torch_lapeig.eigen.gradient.system import DEGENERACIES, Complement, Degeneracy, GradientOptions
from torch_lapeig.eigen.gradient.tails import tiny_degree_rows
from torch_lapeig.eigen.laplacian import NORMALIZATIONS, Laplacian, Normalization, warn_of_isolated
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.pencil import MASS_RATIO, checked_mass, solve_pencil
from torch_lapeig.eigen.problem import Differentiated, Problem, Solution, check_answer, normalise, report
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.solver import RitzPairs, Solver, joined
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.directed import SignedGraph
from torch_lapeig.graph.graph import Graph, batches_of_components, check_graph
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import deep_copy
from torch_lapeig.support.kinds import refuse
from torch_lapeig.support.progress import Progress, bar

End = Literal["smallest", "largest", "nearest"]
InnerProduct = Literal["identity", "degrees", "mass", "similarity"]
NUMBERS, FLAGS = ("values", "vectors", "projected", "residuals", "gap"), ("converged", "resolved")  # of `Eigenpairs`
Mass = tuple[Tensor | None, SymmetricOperator | None]  # M^½ of M = diag(M^½)², or M as a form


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The k smallest eigenpairs of a Laplacian, with the quality of the answer, and what kind of pairs they are.

    All tensors have the dtype and device of the weights. Functions that take eigenpairs check ``is_complex``,
    ``inner_product`` and ``is_sharded`` first, and refuse the kinds that they do not support.

    Attributes:
        values: ``(k,)`` or ``(B, k)``, ascending; carry gradients.
        vectors: ``(N, k)`` or ``(B, N, k)``, zero in the rows of nodes of degree zero; carry gradients. Orthonormal;
            with a ``mass`` the generalised eigenvectors u = M^-½ v of L u = λ M u with Uᵀ M U = I, and with
            ``normalization="random_walk"`` those of M = D. The entry of largest magnitude of each column is positive
            (the first within 0.1 % of it).
        projected: Λ = Vᵀ A V of the symmetric operator, diag(``values``) as a matrix ``(k, k)`` or ``(B, k, k)``. Where
            eigenvalues may coincide, functions of values and vectors together (diffusion distances, heat kernels) have
            correct gradients only through it: ``V @ torch.matrix_exp(-projected) @ V.mT``, not ``values.neg().exp()``.
        residuals: ‖A v − λ v‖ of each pair of the symmetric operator, same shape as ``values``.
        gap: λ_{k+1} − λ_k, ``()`` or ``(B,)``, with a relative error of at most 10 %; infinite if there is no further
            pair.
        converged: bool ``()`` or ``(B,)``: all residuals are within the tolerance, the next value is settled, copies of
            multiple values have been searched for, the vectors are orthonormal, and the values are resolved. This is
            decided in float64; ``residuals`` belong to the returned vectors, after rounding to float32 where the
            weights are float32.
        resolved: bool ``()`` or ``(B,)``: the round-off of the solve, some eps times the norm of the matrix, is well
            below the range of the values and the next one, known null vectors aside. If not, vectors may be any mixture
            of each other, and a `ResolutionWarning` says so. Equal values do not clear this flag; see ``gap``.
        iterations: number of iterations of the solver.
        solver: the solver that found the pairs.
        is_sharded: whether the rows of ``vectors`` lie on several ranks, of which this process has its own.
        inner_product: the M in which the vectors are orthonormal, Vᴴ M V = I: ``"identity"``; ``"degrees"`` with
            ``normalization="random_walk"``; ``"mass"`` with a mass; ``"similarity"`` of `ImprovedWeights`, whose
            affinities are not symmetric.
        which: ``"smallest"``, ``"largest"``, of which the values descend, or ``"nearest"`` to a number, of which they
            ascend, and ``gap`` is the difference of the distances from it.

    >>> path = Graph.from_edge_index(
    ...     torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.ones(4, dtype=torch.float64)
    ... )
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
    resolved: Tensor
    iterations: int
    solver: Solver
    is_sharded: bool = False
    inner_product: InnerProduct = "identity"
    which: End = "smallest"
    __deepcopy__ = deep_copy

    @property
    def is_complex(self) -> bool:
        """Return whether the vectors are complex, as of a `MagneticLaplacian`: then Λ is Hermitian, V φ(Λ) Vᴴ."""
        return self.vectors.is_complex()

    @classmethod
    def of(cls, solution: Solution, found: Differentiated, dtype: torch.dtype) -> Eigenpairs:
        """Return a solution with its differentiable pairs, which a dtype is to hold."""
        facts = (solution.residuals, solution.gap, solution.converged & solution.resolved, solution.resolved)
        solver, is_sharded = (solution.ritz.iterations, solution.solver), solution.operator.nodes.is_sharded
        return cls(values_of(found.projected, dtype), *found, *facts, *solver, is_sharded=is_sharded)

    @classmethod
    def stacked(cls, items: Sequence[Eigenpairs]) -> Eigenpairs:
        """Return the pairs of single problems as the pairs of a batch."""
        parts: dict[str, Any] = {name: torch.stack([getattr(item, name) for item in items]) for name in NUMBERS + FLAGS}
        return dataclasses.replace(items[0], **parts, iterations=max(item.iterations for item in items))

    def item(self, b: int, n: int) -> Eigenpairs:
        """Return the pairs of one graph of a batch, of n nodes."""
        parts = {name: getattr(self, name)[b] for name in NUMBERS + FLAGS}
        return dataclasses.replace(self, **parts | {"vectors": self.vectors[b, :n]})

    def reshaped(self, lead: tuple[int, ...], dtype: torch.dtype, **kind: Any) -> Eigenpairs:
        """Return the pairs of a batch, ``()`` or ``(B,)`` by ``lead``, in a dtype, and what kind of pairs they are."""
        parts = {name: getattr(self, name) for name in NUMBERS + FLAGS}
        parts |= {name: parts[name].to(dtype) for name in NUMBERS}
        parts = parts if lead else {name: x[0] for name, x in parts.items()}
        return dataclasses.replace(self, **parts, **kind)


@dataclass(frozen=True)
class Auto:
    """Solver that ``torch_lapeig.eigen.choose`` chooses for a problem, with others if it does not converge.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian
    >>> Auto().choose(Laplacian(KNN(5)(torch.rand(200, 3))).symmetric, 4)
    Choice(solvers=(Eigh(),), reason='all pairs of small graphs at once')
    """

    def choose(self, operator: Operator, k: int) -> Choice:
        """Choose the solvers for the ``k`` smallest pairs of an operator, with the reason."""
        return choose(operator, k)

    def __call__(self, operator: Operator, k: int, tolerance: float, progress: Progress | None = None) -> RitzPairs:
        """Return the pairs of the first solver that converges, or of the last one that finds any."""
        return first_converged(self.choose(operator, k).solvers, Problem(operator, k, tolerance), progress).ritz


@dataclass(frozen=True)
class Solve:
    """Options of an eigensolve. Every method and encoding accepts one as ``solve=``, or just a solver.

    Args:
        solver: `Auto`, which chooses by size, storage, batch and estimated work, and tries another solver where the
            first does not converge; `Eigh`, `ChebyshevSubspace`, `Lobpcg`, `ShiftInvert` of
            `torch_lapeig.eigen`; or your own `Solver`. A problem in float32 is solved and differentiated in float64,
            and the answer is rounded.
        tolerance: maximum residual, relative to the gap after the k-th value, but never below round-off; default
            1e-10 in float64 and 1e-8 in float32, but 1e-4 for your own `Operator` in float32.
        backward_tolerance: relative residual of the linear solve of the backward pass; default 1e-10 in float64 and
            1e-6 in float32.
        degeneracy: treatment of eigenvalues closer than the cluster width in the gradient. ``"mask"``: their rotation
            into each other is left out, which is exact for losses that do not depend on the basis of an eigenspace.
            ``"lorentz"``: 1/Δ becomes Δ/(Δ² + width²), smooth in Δ and finite for any loss, but biased.
            ``"exact"``: 1/Δ is used, correct for any loss if the eigenvalues are distinct, noise or NaN if they are
            not.
        cluster_width: see ``degeneracy``, positive; default: the larger of 10 residuals and 50 eps · (bound of the
            spectrum + λ_k), with the eps of the solve and of the given weights; √eps · bound for ``"lorentz"``.
        on_failure: reaction to a graph that has not converged: ``"warn"`` or ``"raise"``.
        progress: True for a progress bar (needs tqdm), or a function of (iteration, largest residual, maximum
            residual), called in every iteration of an iterative solver. Methods on points call it during the search
            for neighbours, too, after each block of a large set: (finished blocks, share of blocks left, 0).
        loss_dtype: dtype in which a loss of the pairs is computed, if it is coarser than that of the weights: the
            round-off of its cotangents is no reason for a `DegeneracyWarning`.

    An option of another type raises TypeError, one out of range ValueError.

    >>> Solve(Eigh(), tolerance=1e-3, on_failure="raise").solver
    Eigh()
    """

    solver: Solver = field(default_factory=Auto)
    tolerance: float | None = None
    backward_tolerance: float | None = None
    degeneracy: Degeneracy = "mask"
    cluster_width: float | None = None
    on_failure: Literal["warn", "raise"] = "warn"
    progress: Progress | bool = False
    loss_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        checks.check_function(self.solver, "solver", "a solver such as Eigh() (a mass has its name, mass=)")
        for name in ("tolerance", "backward_tolerance", "cluster_width"):
            if (value := getattr(self, name)) is not None:
                checks.set_frozen(self, **{name: checks.check_positive(value, name)})
        checks.check_choice(self.degeneracy, "degeneracy", DEGENERACIES)
        checks.check_choice(self.on_failure, "on_failure", ("warn", "raise"))
        if self.loss_dtype is not None:
            checks.check_instance(self.loss_dtype, "loss_dtype", torch.dtype, "None or a dtype such as torch.bfloat16")
        if not isinstance(self.progress, bool):
            checks.check_function(self.progress, "progress", "True, False or a function")

    def allowed(self, solved: torch.dtype, returned: torch.dtype) -> float:
        """Return the tolerance of pairs that are solved in a dtype and rounded to another."""
        if self.tolerance is not None:
            return self.tolerance
        if solved != returned:
            return 1e-8  # the answer is rounded to float32
        return 1e-10 if solved == torch.float64 else 1e-4  # an operator of the user's with products in float32

    def gradient_options(self, dtype: torch.dtype, factor: Tensor | None = None) -> GradientOptions:
        """Return the options of the gradient for a problem of a dtype; ``factor``: see ``GradientOptions``."""
        tolerance = self.backward_tolerance or (1e-10 if dtype == torch.float64 else 1e-6)
        loss_eps = max(torch.finfo(dtype).eps, torch.finfo(self.loss_dtype or dtype).eps)
        return GradientOptions(tolerance, self.degeneracy, self.cluster_width, dtype, loss_eps, factor)

    @classmethod
    def of(cls, value: Solve | Solver | None, **options: Any) -> Solve:
        """Return options, of a solver, or the default for None, changed by name; raise TypeError for unknown names."""
        for name in options.keys() - vars(DEFAULT).keys():
            ours = OF_OTHERS.get(name, f"options are {', '.join(vars(DEFAULT))}")
            raise TypeError(f"{name} is not an option of this solve; {ours}")
        found = value if isinstance(value, Solve) else DEFAULT if value is None else cls(value)
        return dataclasses.replace(found, **options) if options else found


DEFAULT = Solve()
# Options of `scipy.sparse.linalg.eigsh`, `torch.lobpcg` and others, and what takes their place.
OF_OTHERS = {
    "which": "eigenpairs takes largest=True (by value: LA), or nearest=, such as nearest=0 (SM)",
    "sigma": "eigenpairs takes nearest=",
    **dict.fromkeys(("M", "B"), "eigenpairs takes mass="),
    **dict.fromkeys(("v0", "X"), "solvers begin with random columns of a seed, such as Krylov(seed=1)"),
    "tol": "use tolerance=, relative to the gap",
    **dict.fromkeys(("maxiter", "niter"), "use a solver with a limit, such as Krylov(max_products=1000)"),
    "mask": "padding belongs to the graph; fixed= holds nodes at 0",
}


@precision.full_precision
def eigenpairs(
    laplacian: Laplacian | Operator | Tensor | Any,
    k: int,
    solve: Solve | Solver | None = None,
    *,
    mass: Any = None,
    fill: bool = False,
    largest: bool = False,
    nearest: float | None = None,
    fixed: Tensor | None = None,
    **options: Any,
) -> Eigenpairs:
    """Compute the ``k`` smallest eigenpairs of a Laplacian or any symmetric matrix, differentiable in its entries.

    The null space of a Laplacian is known in closed form: the first values are 0, one for each connected component. The
    first vector belongs to the whole graph, in proportion to 1 (to D^½ 1 with ``"symmetric"``); the others complete a
    basis. Nodes of degree zero take no part.

    Args:
        laplacian: of one graph or a batch; a symmetric or Hermitian matrix, definite or not: a dense tensor ``(N, N)``
            or ``(B, N, N)``, a sparse tensor in COO or (without batch) CSR, with sparse gradients, or a SciPy matrix,
            half precision as float32; a `SymmetricOperator`; a `FunctionOperator`, or an `Operator` of yours, with
            gradients to its ``parameters``.
        k: number of pairs including the trivial ones, at most the number of nodes of positive degree of each graph; but
            see ``fill``.
        solve: a `Solve`, or just a solver. ``options``: fields of `Solve` by name, which take precedence.
        mass: m > 0, the diagonal of M in L u = λ M u, ``(N,)`` or ``(B, N)``, float32 or float64; gradients flow to it.
            Then the vectors are M-orthonormal: A = M^-½ L M^-½ is solved, and u = M^-½ v. A Laplacian must be
            ``"unnormalized"``; with its degrees as the mass the pairs are those of ``"random_walk"``. Nodes of degree
            zero take no part, whatever their mass. Or M as a symmetric positive definite matrix ``(N, N)`` of one
            graph: a tensor, dense or sparse (COO, CSR), or a sparse matrix of SciPy; ``(B, N, N)``, dense
            or COO, beside a batch. Then the pencil itself is solved, by sparse factors of K + s M on the CPU beyond 600
            nodes. A diagonal that spans more than 10⁴ is solved in this way, too, unless ``solve`` names an iterative
            solver or more than half of the pairs are wanted. Residuals are (λ + s) ‖(K + s M)⁻¹ (K u − λ M u)‖_M,
            bounds of the errors of values to first order.
        fill: accept graphs of fewer than ``k`` nodes of positive degree, as in batches of unequal sizes. Missing pairs
            have zero vectors, eigenvalues +∞ (zero in ``projected``), and no gradient.
        largest: the ``k`` largest pairs instead: values descend, and ``gap`` is the distance to the next smaller one.
        nearest: σ, for the ``k`` pairs whose values are nearest to it, ascending, of one matrix or pencil with entries.
            Sparse ones are solved by factors of A − σM (Grimes, Lewis & Simon 1994), as by SciPy's ``eigsh(sigma=)``,
            and two counts of inertia prove that none is missing.
        fixed: nodes held at 0, as Dirichlet's condition asks: bool of the operator's shape, or int64 numbers ``(M,)``
            of one graph. Their entries are 0, and the pairs are those of the rows and columns of all other nodes.

    Gradients follow the implicit rule of ``torch_lapeig.eigen.gradient.rule``, not that of ``torch.linalg.eigh``. They
    are finite. With equal eigenvalues they are exact for losses that do not depend on the choice of basis in an
    eigenspace; such losses mix values and vectors through `Eigenpairs.projected`. A `DegeneracyWarning` reports a loss
    that depends on this choice, or a cut after pair k that splits a cluster. A `ConvergenceWarning` reports a failed
    linear solve of the backward pass. Forward mode follows the same rule.

    Raises: ValueError: a mass so small that eigenvalues overflow, or beside a normalised Laplacian. ConvergenceError:
    with ``on_failure="raise"``.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> # 1 − cos(πj/2)
    >>> eigenpairs(Laplacian(path), 3, tolerance=1e-6).values.round(decimals=5) + 0
    tensor([0., 1., 2.])
    """
    solve = Solve.of(solve, **options)
    laplacian, mass = checks.half_to_float32(laplacian), checks.half_to_float32(mass)
    if not isinstance(laplacian, Laplacian) and matrices.is_matrix(laplacian):
        if matrices.is_complex(laplacian) or (matrices.is_matrix(mass) and matrices.is_complex(mass)):
            real, size = matrices.real_form_of_matrix(laplacian, "matrix")
            ends = {"mass": matrices.real_form_of_mass(mass, size), "largest": largest, "nearest": nearest}
            if fixed is not None:
                real = real.clamped(_mask_of(fixed, size, real).repeat_interleave(2, -1))
            return pairs_of_real_form(real, size, k, solve, fill, **ends)
        laplacian = matrices.operator_of(laplacian, "matrix")
    given: Any = laplacian
    shape = tuple(given.shape) if isinstance(given, SymmetricOperator) else ()
    of_matrices = tuple(getattr(mass, "shape", ())) == (*shape, *shape[1:]) or isinstance(mass, SymmetricOperator)
    if len(shape) == 2 and shape[0] and of_matrices:
        held = given if fixed is None else given.clamped(_mask_of(fixed, shape, given))
        options = {"fill": fill, "largest": largest, "nearest": nearest}
        each = zip(held.items(), matrices.operator_of(mass, "mass").items(), strict=True)
        return Eigenpairs.stacked([eigenpairs(a, k, solve, mass=m, **options) for a, m in each])
    # Float32 resolves some gaps and not others, and the gap is not known yet: everything is solved in float64.
    exact: Any = given.double() if isinstance(given, Operator) else given
    operator: Any = _operator_of(exact)
    if fixed is not None:
        refuse("eigenpairs, fixed", operator=operator)
        operator = operator.clamped(_mask_of(fixed, tuple(operator.shape), operator))
    k = _check_request(operator, k, fill, solve)
    if isinstance(exact, Laplacian) and exact.has.isolated:
        warn_of_isolated(exact.active, exact.graph.mask)
    elif isinstance(graph := getattr(given, "graph", None), SignedGraph):
        warn_of_isolated(given.active, graph.mask)
    checks.check_flag(largest, "largest")
    if nearest is not None:
        refuse("eigenpairs, nearest", operator=operator)
        nearest = checks.check_number(nearest, "nearest")
        if largest or fill or len(operator.shape) > 1:
            raise ValueError(
                f"nearest must be None with largest=True, fill=True and for a batch, got {nearest}; solve its matrices "
                "one by one"
            )
    root, form, is_default = None, None, isinstance(solve.solver, Eigh | Auto)
    if mass is not None:
        refuse("eigenpairs, mass", operator=operator, laplacian=exact)
        is_similar, scales = isinstance(exact, Laplacian) and exact.graph.similarity is not None, False
        if is_similar and not (isinstance(mass, Tensor) and mass.ndim == 1):
            refuse("eigenpairs, mass matrix", laplacian=exact)
        if isinstance(mass, Tensor) and mass.layout == torch.strided and mass.shape == operator.shape:
            # A diagonal scales A in a batch, for an iterative solver, for most pairs, of which the largest would lose
            # digits in the inverse of a pencil, and where its numbers are near each other.
            root, own = _root_of_mass(mass, operator), checks.primal(mass)[operator.active.reshape(mass.shape)]
            scales = mass.ndim > 1 or not is_default or (2 * k > len(own) and nearest is None)
            scales = (scales or bool(own.max() <= MASS_RATIO * own.min())) and not is_similar
        if not scales:
            root, form = None, checked_mass(mass, operator)
    if form is not None and k > operator.fewest_active:
        raise ValueError(
            f"k must be at most {operator.fewest_active}, the nodes of positive degree, with a mass matrix, beside "
            f"which no missing pairs are filled, got k={k}"
        )
    if (form is not None or nearest is not None) and not is_default:
        asked = "a mass matrix" if nearest is None else f"nearest={nearest}"
        raise ValueError(f"solver must be None or Eigh() with {asked}, got {solve.solver}")
    if largest:
        refuse("eigenpairs, largest", operator=operator)
        if fill:
            raise ValueError("largest must be False with fill=True, got True")
    if isinstance(given, Laplacian) and isinstance(solve.solver, Auto):
        found = solve_on_ranks(given.graph.pattern, given, k, solve, fill)
        if found is not None:
            return found
    end: End = "largest" if largest else "smallest" if nearest is None else "nearest"
    pairs = _pairs_of(exact, operator, (root, form), k, solve, given.dtype, end, nearest)
    product: InnerProduct = "identity" if mass is None else "mass"
    if isinstance(exact, Laplacian) and exact.normalization != "symmetric":
        is_walk = exact.normalization == "random_walk" and mass is None
        product = "similarity" if exact.graph.similarity is not None else "degrees" if is_walk else product
    return pairs.reshaped(operator.shape[:-1], given.dtype, inner_product=product, which=end)


def _mask_of(fixed: Any, shape: tuple[int, ...], operator: Operator) -> Tensor:
    if not isinstance(fixed, Tensor) or fixed.dtype != torch.bool:
        checks.check_indices(fixed, "fixed", shape[-1])
        if fixed.ndim != 1 or len(shape) > 1:
            raise ValueError(f"fixed must be numbers (M,) of nodes of one graph, or a mask {shape}, got {fixed.shape}")
        fixed = torch.zeros(shape, dtype=torch.bool, device=fixed.device).index_fill(0, fixed, True)
    if tuple(fixed.shape) != shape:
        raise ValueError(f"fixed must have shape {shape}, got {tuple(fixed.shape)}")
    checks.check_same_device(fixed, "fixed", operator.bound, "laplacian")
    mask: Tensor = fixed
    return mask


def _pairs_of(
    exact: Any, operator: Operator, mass: Mass, k: int, solve: Solve, dtype: torch.dtype, end: End, sigma: float | None
) -> Eigenpairs:
    """Return the pairs at one end of the spectrum or inside."""
    is_laplacian, (root, form) = isinstance(exact, Laplacian), mass
    factor, inverse = exact.factor if is_laplacian and form is None else None, None
    if root is not None:
        inverse = 1 / root
        factor = inverse if factor is None else factor / root
    normal = normalise(operator, inverse, form, largest=end == "largest", is_inside=sigma is not None)
    bare, k_there = normal.operator.frozen(), min(k, operator.all_nodes)
    tolerance, origin = solve.allowed(bare.dtype, dtype), None if is_laplacian else normal.shift
    target = None if sigma is None else sigma * (1.0 if normal.factor is None else float(normal.factor))
    unit = 1.0 if normal.factor is None else float(1 / normal.factor.abs().amin())
    problem = Problem(bare, k_there, tolerance, checks.needs_derivatives(*normal.operator.tensors), origin, target)
    with torch.no_grad(), _progress_function(solve.progress, unit) as progress:
        solver = solve.solver
        if form is not None or sigma is not None:
            solution = solve_pencil(problem, solver, progress)
        else:
            solvers = solver.choose(bare, problem.k).solvers if isinstance(solver, Auto) else (solver,)
            solution = first_converged(solvers, problem, progress)  # checks each answer
    at_nodes = None if factor is None else checks.primal(factor).reshape(operator.batch_size, -1)
    at_nodes = at_nodes if at_nodes is None or normal.order is None else at_nodes[:, normal.order]
    found = differentiable(normal.operator, solution, solve.gradient_options(dtype, at_nodes))
    if dtype != solution.values.dtype and bare.mass is None:  # of the rounded vectors; a pencil keeps its own
        with torch.no_grad():
            rounded = checks.primal(found.vectors).to(dtype).to(solution.values.dtype)
            rest = bare.matmul(rounded) - solution.values[:, None, :] * rounded
            solution = dataclasses.replace(solution, residuals=bare.nodes.dots(rest, rest).sqrt())
    solution, found = normal.back(solution, found)
    values = checks.primal(found.projected).diagonal(dim1=1, dim2=2)
    _check_range(values, solution.present, dtype, root if form is None else form)
    report(solution, values, solve.on_failure)
    if (is_laplacian or root is not None) and form is None and end == "smallest":
        found = _with_trivial(exact, operator, root, found, solution)
    if factor is not None:
        found = _with_factor(exact if end == "smallest" else None, operator, factor, found, solution)
    pairs = Eigenpairs.of(solution, found, dtype)
    return pairs if k <= operator.fewest_active else _filled(pairs, solution, k)


def pairs_of_real_form(
    operator: SymmetricOperator, shape: tuple[int, ...], k: int, solve: Solve, fill: bool, mass: Any = None, **ends: Any
) -> Eigenpairs:
    """Compute k complex pairs of the shape ``(..., N)`` by 2k real pairs of real forms of a matrix and a mass."""
    if solve.degeneracy == "exact" or solve.cluster_width is not None:
        raise ValueError(
            'degeneracy must be "mask" or "lorentz", and cluster_width None, got '
            f"{solve.degeneracy!r} and {solve.cluster_width}: the real form has each eigenvalue twice"
        )
    k = checks.check_width(k, "k")
    if not checks.check_flag(fill, "fill") and 2 * k > operator.fewest_active:
        raise ValueError(
            f"k must be at most the number of nodes of positive degree, got k={k} with "
            f"{operator.fewest_active // 2} of them"
        )
    pairs = eigenpairs(operator, 2 * k, solve, fill=fill, mass=mass, **ends)
    return matrices.complex_pairs(pairs, operator, mass, shape, k)  # type: ignore[no-any-return]


@singledispatch
def solve_on_ranks(pattern: Any, laplacian: Laplacian, k: int, solve: Solve, fill: bool) -> Eigenpairs | None:
    """Solve a Laplacian by the way that a pattern on several ranks registers; return None for other patterns."""
    return None


def first_converged(solvers: tuple[Solver, ...], problem: Problem, progress: Progress | None) -> Solution:
    """Return the answer of the first solver that converges, or the last answer; solvers that break down are skipped."""
    operator, answer, failure = problem.operator, None, None
    for position, solver in enumerate(solvers):
        try:
            ritz = solver(operator, problem.k, problem.tolerance, progress=progress)
            answer, others = check_answer(problem, solver, ritz), solvers[position + 1 :]
            if answer.flags.are_converged:
                return answer
            is_batch = isinstance(operator, SymmetricOperator) and operator.device.type == "cpu"
            failed = answer.converged.logical_not().nonzero().flatten().tolist() if is_batch and others else []
            if 0 < 2 * len(failed) < operator.batch_size:  # others solve them again, one after the other
                assert isinstance(operator, SymmetricOperator)
                parts = [ritz.part(slice(b, b + 1)) for b in range(operator.batch_size)]
                for b in failed:
                    one = problem._replace(operator=operator.part(slice(b, b + 1)), has_guards=True)
                    again = first_converged(others, one, None)
                    parts[b] = again.ritz._replace(iterations=ritz.iterations + again.ritz.iterations)
                whole = joined(operator, [part._replace(inverses=()) for part in parts], problem.k)
                return check_answer(problem, again.solver, whole)
        except (torch.linalg.LinAlgError, checks.ConvergenceError) as error:  # type: ignore[attr-defined]
            failure = checks.ConvergenceError(f"{solver} broke down ({error}); use another solver")
            failure.__cause__ = error
    if answer is None:
        assert failure is not None
        raise failure
    return answer


def differentiable(operator: Operator, solution: Solution, gradient: GradientOptions) -> Differentiated:
    """Return the pairs of a solution, with gradients to the parameters of the operator."""
    tensors = operator.tensors
    if checks.needs_derivatives(*tensors):
        return Differentiated(*Pairs.apply(Complement(solution, gradient), *tensors))
    return Differentiated(solution.vectors, torch.diag_embed(solution.values))


def _operator_of(laplacian: Any) -> Operator:
    """Return the operator that is solved: the symmetric operator of a Laplacian, or an operator itself."""
    if isinstance(laplacian, Laplacian):
        return laplacian.symmetric
    if isinstance(laplacian, Operator):
        laplacian.check()
        for name in ("inner", "dots", "largest", "signs"):
            if callable(getattr(laplacian, name, None)):
                way = f"give {type(laplacian).__name__} `nodes`, a torch_lapeig.graph.pattern.PatternBase that has it"
                raise TypeError(f"laplacian must have no method {name}, which nothing calls; {way}")
        if tuple(getattr(laplacian.bound, "shape", ("none",))) != (laplacian.batch_size,):
            sizes = f"a tensor {(laplacian.batch_size,)}, a number for each graph"
            raise ValueError(f"bound of the operator must be {sizes}, got {checks.describe(laplacian.bound)}")
        for tensor in laplacian.parameters:
            checks.check_outside_func(tensor, "a parameter of the operator")
        return laplacian
    advice = checks.way_out(laplacian, "laplacian", "operator")
    if isinstance(laplacian, Graph):
        advice = f"; use {laplacian.operator or 'Laplacian'}(graph)"
    elif hasattr(laplacian, "eigenpairs"):
        advice = "; use its eigenpairs(k)"
    raise TypeError(f"laplacian must be a Laplacian or a symmetric matrix, got {checks.describe(laplacian)}{advice}")


def _root_of_mass(mass: Any, operator: Operator) -> Tensor:
    """Return M^½, of the operator's shape and dtype and with gradients; 1 at nodes that take no part."""
    checks.check_floating(mass, "mass")
    if tuple(mass.shape) != tuple(operator.shape):
        raise ValueError(f"mass must have shape {tuple(operator.shape)}, got {tuple(mass.shape)}")
    checks.check_same_device(mass, "mass", operator.bound, "laplacian")
    checks.check_finite(mass, "mass")
    active = operator.active.reshape(mass.shape)
    if not (sound := checks.primal(mass) >= torch.finfo(mass.dtype).tiny).logical_or(~active).all():
        node = (active & ~sound).nonzero()[0].tolist()
        value = float(checks.primal(mass)[tuple(node)])
        raise ValueError(f"mass must be positive and not subnormal, got {value} at node {node}")
    return torch.where(active, mass, 1).double().sqrt().to(operator.dtype)


def _check_range(values: Tensor, present: Tensor, dtype: torch.dtype, mass: Any) -> None:
    """Check that eigenvalues ``(B, k)`` that are there stay in the range of the dtype in which they are returned."""
    most, name = torch.finfo(dtype).max, "laplacian" if mass is None else "mass"

    def refuse_range() -> None:
        raise ValueError(
            f"{name} must leave the eigenvalues below {most:.1e} in {dtype}, got up to {values.abs().max():.1e}; "
            f"divide the matrix{'' if mass is None else ', or multiply the mass,'} by a number"
        )

    precision.check_at_next_sync((~(values.abs() <= most) & present).any(), refuse_range)


def _with_trivial(
    given: Any, operator: Operator, root: Tensor | None, found: Differentiated, solution: Solution
) -> Differentiated:
    """Return pairs with the closed-form derivative of the first vector, to which the other vectors stay orthogonal."""
    # Several components have as many eigenvalues 0, or of round-off where faint edges join them. The rule rotates
    # nothing within their space, but its first vector is always the whole graph's, whose derivative is known: it is in
    # proportion to the ground of ``given``, times M^½ with a mass.
    vectors = found.vectors
    if not (vectors.requires_grad or checks.is_dual(vectors)) or not solution.flags.has_faint:
        return found
    ground = given.ground if isinstance(given, Laplacian) else given.null.ground
    ground = (ground if root is None else ground * root.reshape(ground.shape))[..., None]
    ground = ground / checks.power_of_two(operator.nodes.largest(checks.primal(ground))[..., None, :], (-2,))
    squares = operator.nodes.dots(ground, ground)[..., None, :]
    first = ground / torch.where(squares > 0, squares, 1).sqrt()
    first = first * operator.nodes.inner(checks.primal(first), checks.primal(vectors[..., :1])).sign()
    others = vectors[..., 1:]
    # Zero with a derivative: the rule gives the others' derivative as if the first vector were constant.
    turned = operator.nodes.inner(first, others)
    beside = others - precision.matmul(first, turned)
    # Of length 1 for second derivatives, too.
    beside = beside + precision.matmul(beside, precision.matmul(turned.mT, turned)) / 2
    whole = torch.cat([first, beside], -1)
    moved = checks.primal(vectors) + (whole - checks.primal(whole))
    return found._replace(vectors=torch.where(solution.faint[:, None, None], moved, vectors))


def _with_factor(
    given: Any, operator: Operator, factor: Tensor, found: Differentiated, solution: Solution
) -> Differentiated:
    """Return the pairs of a problem that is similar to a symmetric operator, from the pairs of that operator."""
    vectors, projected = found
    y = factor.reshape(vectors.shape[:2])[..., None] * vectors
    if isinstance(given, Laplacian) and given.normalization == "random_walk" and given.has.tiny_degrees:
        y = tiny_degree_rows(given, vectors, y, projected, solution.residuals, solution.gap)
    # Λ as a matrix belongs to the vectors as they are returned: it takes their signs.
    sign = operator.nodes.signs(y)
    return Differentiated(y * sign, projected * sign * sign.mT)


@dataclass(frozen=True, eq=False)
class ComponentEigenpairs:
    """Eigenpairs of one connected component of a graph.

    Attributes:
        nodes: int64 ``(M,)``, the nodes of the component in ascending order.
        pairs: the eigenpairs, with vectors ``(M, min(k, M))`` in the order of ``nodes``.

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
    """Compute the ``k`` smallest eigenpairs of each connected component on its own, differentiable in the weights.

    Args:
        graph: one graph or a batch; node i of graph b of a batch has the number ``b * N + i``.
        k: number of pairs of each component, the trivial pair included; a component of M < k nodes has M pairs.
        normalization: normalization of the Laplacians, see `Laplacian`.
        solve, options: see `eigenpairs`.

    Returns: The components of two or more nodes, in the order of their first nodes; isolated nodes have no eigenpairs.

    >>> pair = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> graph = Graph.from_dense(torch.block_diag(pair, pair))
    >>> [len(part.pairs.values) for part in component_eigenpairs(graph, 2)]
    [2, 2]
    """
    check_graph(graph)
    k = checks.check_width(k, "k")
    checks.check_choice(normalization, "normalization", NORMALIZATIONS)
    found = []
    for nodes, part in batches_of_components(graph, k):
        sizes = [part.num_nodes] if part.mask is None else part.mask.sum(1).tolist()
        pairs = eigenpairs(Laplacian(part, normalization), min(k, *sizes), solve, **options)
        for b, own in enumerate(nodes.split(sizes)):
            found.append(ComponentEigenpairs(own, pairs if part.mask is None else pairs.item(b, len(own))))
    return sorted(found, key=lambda one: int(one.nodes[0]))


@contextlib.contextmanager
def _progress_function(progress: Progress | bool, scale: float) -> Iterator[Progress | None]:
    """Yield the function to call in every iteration with residuals in another unit."""
    if not progress or (progress is not True and scale == 1):
        yield progress or None
    elif progress is not True:
        yield lambda iteration, residual, allowed: progress(iteration, residual * scale, allowed * scale)
    else:
        with bar(desc="eigenpairs", unit=" iterations") as shown:

            def show(iteration: int, residual: float, allowed: float) -> None:
                shown.set_postfix_str(f"residual {residual * scale:.1e}, goal {allowed * scale:.1e}", refresh=False)
                shown.update(iteration - shown.n)

            yield show


def _filled(pairs: Eigenpairs, s: Solution, k: int) -> Eigenpairs:
    """Return ``k`` pairs, of which a graph may lack the last; see ``fill`` of `eigenpairs`."""
    pad, more = torch.nn.functional.pad, k - s.values.shape[1]
    present = pad(s.present, (0, more))
    projected = pad(pairs.projected, (0, more, 0, more))
    # No gradient flows from a missing pair, whatever a loss makes of it.
    projected = torch.where(present[:, None, :] & present[:, :, None], projected, 0)
    vectors = torch.where(present[:, None, :], pad(pairs.vectors, (0, more)), 0)
    values, residuals = torch.where(present, pad(pairs.values, (0, more)), torch.inf), pad(pairs.residuals, (0, more))
    return dataclasses.replace(pairs, projected=projected, vectors=vectors, values=values, residuals=residuals)


def _check_request(operator: Operator, k: int, fill: bool, solve: Solve) -> int:
    def facts() -> dict[str, Any]:
        parameters = {f"parameters[{i}]": parameter for i, parameter in enumerate(operator.parameters)}
        return checks.facts_of_rows(**parameters) | vars(solve) | {"progress": None, "k": k, "fill": fill}

    operator.nodes.compare("eigenpairs", facts)
    k, fill = checks.check_width(k, "k"), checks.check_flag(fill, "fill")
    if k <= operator.fewest_active:
        return k
    if not fill:
        item = int(operator.active_count.argmin())
        raise ValueError(
            f"k must be at most the number of nodes of positive degree, got k={k} with {operator.fewest_active} of "
            f"them in graph {item}"
        )
    if not isinstance(solve.solver, (Auto, Eigh)):
        raise ValueError(f"solver must be Eigh() or None to fill graphs of fewer than k={k} nodes, got {solve.solver}")
    return k
