"""Pencils K u = λ M u with a symmetric positive definite mass M, in its inner product, and pairs inside a spectrum.

(K + s M)⁻¹ M is self-adjoint in the inner product of M, with eigenvalues 1 / (λ + s) and the same eigenvectors. The
shift s > 0 is so small that K + s M is positive definite and −s a little below the spectrum. Small pencils are
solved whole: with K + s M = L Lᵀ the largest eigenvalues of L⁻¹ M L⁻ᵀ are accurate, however small some masses are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.matrices import is_matrix, operator_of
from torch_lapeig.eigen.operator import Operator, name_of
from torch_lapeig.eigen.problem import CONGRUENT, RESIDUAL_UNITS, Measure, Problem, Solution, check_answer
from torch_lapeig.eigen.solvers.blocks import symmetric_eigh
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.factors import Factors, Shifted, factorize, factors_near, shifted, symmetrised, to_scipy
from torch_lapeig.eigen.solvers.krylov import WIDTH, Form, Krylov, pairs_by_krylov
from torch_lapeig.eigen.solvers.solver import Request, RitzPairs, Solver
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.pattern import Pattern, SparsePattern
from torch_lapeig.native.sparse import Limits
from torch_lapeig.support import checks
from torch_lapeig.support.progress import Progress
from torch_lapeig.support.tuning import budget_of

SPARSE_NODES = 300  # up to which a sparse pencil is solved whole
DENSE_NODES = 600  # the same where K or M is dense
DENSE_PRODUCTS = 3000  # the same where K gives products only
MASS_RATIO = 1e4  # largest ratio of the diagonal of M that costs no digits
MOST_SOLVES = 20_000  # of the factors
PRODUCTS = 1000  # with M⁻¹ K, which find the pairs of most matrices of no shape
POLISH_STEPS = 30  # of the inverse inside the spectrum, until residuals of wanted pairs are round-off
SHIFT = 0.1  # s over an estimate of the first eigenvalue; of all pairs, one from traces costs large values no digits

F = TypeVar("F")


def checked_mass(mass: Any, operator: Operator) -> SymmetricOperator:
    """Return a mass, a diagonal ``(N,)`` or a matrix ``(N, N)``, in the operator's dtype, zero at inactive nodes."""
    n, shape, active = operator.num_nodes, tuple(getattr(mass, "shape", ())), operator.active[0]
    if not is_matrix(mass) and not isinstance(mass, SymmetricOperator):
        checks.check_tensor(mass, "mass")
    if tuple(operator.shape) != (n,) or shape not in ((n,), (n, n)):
        batch = operator.shape[:-1]
        other = f"{(*batch, n, n)} beside matrices of that shape" if batch else f"{(n, n)}"
        raise ValueError(f"mass must have shape {tuple(operator.shape)} or {other}, got {shape}")
    if len(shape) == 1 and isinstance(mass, Tensor):
        checks.check_floating(mass, "mass")
        checks.check_finite(mass, "mass")
        nothing = torch.empty(0, dtype=torch.int64, device=mass.device)
        pattern: Pattern = SparsePattern.trusted(nothing, nothing, (n,))
        values, diagonal = mass[:0], mass
    else:
        form = operator_of(mass, "mass")
        pattern, values, diagonal = form.pattern, form.values, form.diagonal.to(active.device)
        if hasattr(mass, "tocsr"):
            pattern, values = pattern.to(operator.device), values.to(operator.device)
        checks.check_floating(values, "mass")
        values = torch.where(pattern.at_row(active) & pattern.at_col(active), values, 0)
    checks.check_same_device(values, "mass", operator.bound, "laplacian")
    dtype = operator.dtype  # float32 of products in float32 alone
    return SymmetricOperator(pattern, values.to(dtype), torch.where(active, diagonal, 0).to(dtype), trusted=True)


def _not_definite(seen: str) -> ValueError:
    return ValueError(f"mass must be positive definite, got {seen}")


def _check_diagonal(mass: Any) -> None:
    if not (mass > 0).all():
        way = "; eliminate nodes b without a mass, K_aa − K_ab K_bb⁻¹ K_ba, or leave out those that are held at 0"
        raise _not_definite(f"{float(mass.min()):.1e} on its diagonal{way if mass.min() == 0 else ''}")


def solve_pencil(problem: Problem, solver: Solver, progress: Progress | None) -> Solution:
    """Return the wanted pairs of K u = λ M u, or those of K alone that are nearest to a number."""
    operator, k, n = problem.operator, problem.k, problem.operator.num_nodes
    forms = (operator, operator.mass or operator)
    is_sparse = all(isinstance(form, SymmetricOperator) and form.is_sparse for form in forms)
    has_entries = isinstance(operator, SymmetricOperator)
    most = SPARSE_NODES if is_sparse else DENSE_NODES if has_entries else DENSE_PRODUCTS
    is_filled = problem.target is not None and has_entries and not is_sparse  # its factors are no sparser
    null = _orthonormal(operator, operator.null_vectors(min(int(operator.nullity), k))[0])
    if isinstance(solver, Eigh) or n <= most or is_filled:
        return check_answer(problem, Eigh(), *_solve_whole(problem, null))
    c = null.shape[1]
    request = Request(operator, null, k - c, k - c + 1, problem.tolerance, progress)
    return check_answer(problem, Krylov(), *_solve_sparse(problem, request))


def _orthonormal(operator: Operator, x: Tensor) -> Tensor:
    """Return M-orthonormal columns of which the first j span the first j columns of ``x``."""
    if x.shape[1] == 0:
        return x
    weighted = operator.weigh(x)
    for _ in range(2):
        cholesky, failed = torch.linalg.cholesky_ex(x.mT @ weighted)
        if int(failed):
            raise _not_definite("a vector x with xᵀ M x ≤ 0")
        x, weighted = (torch.linalg.solve_triangular(cholesky.mT, y, upper=True, left=False) for y in (x, weighted))
    return x


def _solve_whole(problem: Problem, null: Tensor) -> tuple[RitzPairs, Measure]:
    """Return all pairs, null ones or those nearest to the target first."""
    operator, nodes = problem.operator, problem.operator.active[0].nonzero()[:, 0]
    eye = torch.eye(operator.num_nodes, dtype=null.dtype, device=null.device)
    stiffness, mass = (f(eye)[nodes][:, nodes] for f in (operator.matmul, operator.weigh))
    if operator.mass is None:
        (values, found), low, shift = symmetric_eigh(stiffness), mass, math.inf
    else:
        values, found, low, shift = _eigh_of_pencil(stiffness, mass, is_inside=problem.target is not None)
    rank, order = problem.rank(values).sort(stable=True)
    values, x = values[order], null.new_zeros(len(eye), len(nodes)).index_copy(0, nodes, found[:, order])
    _, first, others = x.tensor_split([null.shape[1], min(problem.k + 1, len(nodes))], 1)
    first = _orthonormal(operator, first - null @ (operator.weigh(null).mT @ first))

    def at_nodes(solve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda r: torch.zeros_like(r).index_copy(0, nodes, solve(r[nodes]))

    measure = Measure(at_nodes(lambda r: torch.cholesky_solve(r, low)), shift)
    if problem.target is not None and operator.mass is not None:
        # The inverse of K + s M hardly sees light masses. At an eigenvalue K − σ M has no inverse.
        away = max(float(rank[first.shape[1] - 1]), 1e-8 * float(values.abs().max()))
        factors = torch.linalg.lu_factor(stiffness - (problem.target + 1e-4 * away) * mass)
        near = at_nodes(lambda r: torch.linalg.lu_solve(*factors, r))
        values[: first.shape[1]], first = _polished(problem, first, near, measure.inverse)
    done = torch.ones(1, dtype=torch.bool, device=x.device)
    return RitzPairs(values[None], torch.cat([null, first, others], 1)[None], 1, done), measure


def _eigh_of_pencil(stiffness: Tensor, mass: Tensor, *, is_inside: bool) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return all values, ascending, and vectors, and the Cholesky factor of K + s M with s, or of M with infinity."""
    _check_diagonal(mass.diagonal())
    root = mass.diagonal().sqrt()
    of_mass, failed = torch.linalg.cholesky_ex(mass / root / root[:, None])
    if int(failed):
        raise _not_definite("a matrix without a Cholesky factor")

    def factor(shift: float) -> Tensor | None:
        low, failed = torch.linalg.cholesky_ex((stiffness + stiffness.mT) / 2 + shift * mass)
        return None if int(failed) else low

    shift, low = _least_shift(factor, abs(float(stiffness.trace())) / (float(mass.trace()) * len(mass)))
    half = torch.linalg.solve_triangular(low, mass, upper=False)
    theta, q = torch.linalg.eigh(torch.linalg.solve_triangular(low, half.mT, upper=False))
    theta, q = theta.flip(0).clamp_min(torch.finfo(theta.dtype).tiny), q.flip(1)
    values, found = 1 / theta - shift, torch.linalg.solve_triangular(low.mT, q, upper=True) / theta.sqrt()
    return (values, found, root[:, None] * of_mass, math.inf) if is_inside else (values, found, low, shift)


def _least_shift(factor: Callable[[float], F | None], first: float) -> tuple[float, F]:
    """Return a shift that makes K + s M definite, the ``first`` eigenvalue's or near the least, and its factors."""
    failed, shift = 0.0, SHIFT * first if first > 0 else 1.0
    for _ in range(500):  # to the end of float64
        if (found := factor(shift)) is not None:
            break
        failed, shift = shift, 4 * shift
    else:
        raise checks.ConvergenceError(f"no shift makes K + s M positive definite; {CONGRUENT}")
    for _ in range(3 if failed else 0):  # a Krylov space with −s near the spectrum needs fewer steps
        middle = failed**0.5 * shift**0.5
        if (closer := factor(middle)) is None:
            failed = middle
        else:
            shift, found = middle, closer
    return shift, found


class _SparsePencil(NamedTuple):
    """Rows of a pencil for sparse factors; idle nodes lie above the spectrum, or have the mass 1."""

    both: Shifted  # K, with M on the same rows
    mass: Shifted  # M, on rows with fewer entries if it has fewer
    diagonals: tuple[Any, Any]  # of K and M at active nodes
    is_dominated: bool  # whether diagonal dominance shows that M is positive definite

    @classmethod
    def of(cls, operator: SymmetricOperator, mass: Operator, target: float | None) -> _SparsePencil:
        """Return the rows of an operator and a mass; raise for masses that are not positive."""
        from scipy.sparse import diags_array

        # A copy: SciPy rearranges entries in place, and these are those of the tensor.
        n, m = operator.num_nodes, to_scipy(mass, "a mass matrix").copy()
        active, far = operator.active[0].cpu().numpy(), float(operator.above) * (-1 if (target or 0) > 0 else 1)
        stiffness = to_scipy(operator, "a mass matrix") + diags_array(np.where(active, 0.0, far))
        diagonals = stiffness.diagonal()[active], m.diagonal()[active]
        _check_diagonal(diagonals[1])
        crow, col, values = symmetrised(stiffness + 1j * m)  # one pattern, and one structure of factors
        both = Shifted(None, crow, col, values.real.copy(), 1.0, np.zeros(n), values.imag.copy())
        rows = symmetrised(m)
        rows = rows if len(rows[1]) < len(col) else (crow, col, values.imag.copy())
        is_dominated = bool((2 * m.diagonal() > abs(m).sum(1))[active].all())
        return cls(both, Shifted(None, *rows, 1.0, (~active).astype(float)), diagonals, is_dominated)

    @property
    def fills_in(self) -> bool:
        """Return whether many products with M⁻¹ K take less time than the factors of K + s M, as K fills in."""
        (both, mass), masses = self[:2], self.diagonals[1]
        has_own_rows, is_even = len(mass.col) < len(both.col), masses.max() <= MASS_RATIO * masses.min()
        own = mass.structure() if has_own_rows and is_even and mass.is_readable else None
        if own is None:
            return False
        return both.structure(Limits(own.work + PRODUCTS * (len(both.col) + 2 * own.entries))) is None


def _solve_sparse(problem: Problem, request: Request) -> tuple[RitzPairs, Measure]:
    """Return the first k + 1 pairs by Krylov spaces of (K − σ M)⁻¹ M, or of M⁻¹ K."""
    operator, target, mass = problem.operator, problem.target, problem.operator.mass
    if not isinstance(operator, SymmetricOperator):
        raise TypeError(
            f"{'nearest' if mass is None else 'mass'} must be None beyond {DENSE_PRODUCTS} nodes of a "
            f"{name_of(operator)}, which has products only: K − σ M is factorised"
            f"{'' if mass is None else '; a mass near a multiple of 1 may be a diagonal'}"
        )
    if mass is None:
        matrix = shifted(operator, 0.0, "nearest")
        if (target or 0) > 0:  # nodes that take no part are put below the spectrum, not above
            matrix.diagonal[~operator.active[0].cpu().numpy()] *= -1
        return _solve_inside(problem, request, matrix, None, lambda x: x)
    pencil, of_mass, mass = _SparsePencil.of(operator, mass, target), None, mass.to_matrix()
    fills_in = target is None and pencil.fills_in
    if fills_in or target is not None or not pencil.is_dominated:
        if (of_mass := _inverse_of_definite(pencil.mass)) is None:
            raise _not_definite("an eigenvalue that is not positive")
        if target is not None:
            return _solve_inside(problem, request, pencil.both, mass, of_mass)
    if fills_in and (of_one := of_mass) is not None:
        found = pairs_by_krylov(request, Form(operator, lambda x: of_one(operator.matmul(x)), mass), PRODUCTS, seed=0)
        if bool(found.finished):
            return found._replace(inverses=(of_one,)), Measure(of_one)
    own, masses = (part[pencil.diagonals[0] != 0] for part in pencil.diagonals)
    area = float((masses / abs(own)).sum())  # of a surface with elements of M_ii / K_ii, of all sizes
    shift, inverse = _least_shift(lambda s: _inverse_of_definite(pencil.both.at(-s)), 1 / area if area else 0.0)
    form = Form(operator, inverse, mass, inverse, -shift, width=WIDTH, memory=budget_of(torch.device("cpu")).factors)
    return pairs_by_krylov(request, form, MOST_SOLVES, seed=0), Measure(inverse, shift)


def _solve_inside(
    problem: Problem, request: Request, matrix: Shifted, mass: Tensor | None, of_mass: Callable[[Tensor], Tensor]
) -> tuple[RitzPairs, Measure]:
    """Return the k + 1 pairs nearest to the target by factors of K − σ M, at the target or next to it."""
    operator, target, bound = problem.operator, problem.target or 0.0, float(problem.operator.bound)
    step, inverse = factors_near(matrix.at(target), bound, "eigenpairs(nearest=...)")
    sigma, memory = target + step, budget_of(torch.device("cpu")).factors

    def refined(b: Tensor) -> Tensor:
        x = inverse(b)
        return x + inverse(b - operator.matmul(x) + sigma * operator.weigh(x))

    # Where pivots are not exchanged, the factors are those of another matrix, with other eigenvectors.
    rounding, round_off = inverse.probe[0], RESIDUAL_UNITS * torch.finfo(torch.float64).eps * bound
    solve = inverse if rounding <= round_off else refined
    form = Form(operator, solve, mass, inverse, sigma, target, memory, min(rounding, round_off), WIDTH)
    found = pairs_by_krylov(request, form, MOST_SOLVES, seed=0)
    values, x = _polished(problem, found.vectors[0], refined, of_mass)
    return found._replace(values=values[None], vectors=x[None]), Measure(of_mass, sigma=sigma)


def _polished(
    problem: Problem, x: Tensor, inverse: Callable[[Tensor], Tensor], of_mass: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the pairs of a block after steps of an inverse, which hardly sees eigenvectors of values far away."""
    operator = problem.operator
    eps, bound = torch.finfo(x.dtype).eps, float(operator.bound)
    allowed = x.new_full((x.shape[1],), RESIDUAL_UNITS * eps * bound)
    allowed[problem.k :] = eps ** (2 / 3) * bound  # a guard only tells the gap, by the square of its residual
    for _ in range(POLISH_STEPS):
        x = _orthonormal(operator, inverse(operator.weigh(x)))
        values, turn = symmetric_eigh(x.mT @ operator.matmul(x))
        order = problem.rank(values).argsort(stable=True)
        values, x = values[order], x @ turn[:, order]
        left = operator.matmul(x) - operator.weigh(x) * values
        if bool(((of_mass(left) * left).sum(0) <= allowed.square()).all()):
            break
    return values, x


def _inverse_of_definite(matrix: Shifted) -> Factors | None:
    """Return the inverse of a positive definite matrix by its factors; None for another one."""
    try:
        factors = factorize(matrix)
    except RuntimeError:
        return None
    except MemoryError as error:
        raise checks.ConvergenceError(
            f"there is not enough memory for factors of K + s M of {len(matrix.diagonal)} nodes; use a diagonal mass"
        ) from error
    return None if factors.negative else factors
