"""Pencils K u = λ M u with a symmetric positive definite mass M, in its inner product, and pairs inside a spectrum.

(K + s M)⁻¹ M is self-adjoint in the inner product of M, with eigenvalues 1 / (λ + s) and the same eigenvectors. The
shift s > 0 is so small that K + s M is positive definite and −s a little below the spectrum. Small pencils are
solved whole: with K + s M = L Lᵀ the largest eigenvalues of L⁻¹ M L⁻ᵀ are accurate, however small some masses are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.check import Problem, Solution
from torch_lapeig.eigen.matrices import entries_of_matrix, is_matrix
from torch_lapeig.eigen.operator import Operator, name_of
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.factors import Factors, Shifted, factorize, factors_near, to_scipy
from torch_lapeig.eigen.solvers.krylov import Form, Krylov, pairs_by_krylov
from torch_lapeig.eigen.solvers.solver import Request, RitzPairs, Solver
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.pattern import Pattern, SparsePattern, signs
from torch_lapeig.native.sparse import Limits
from torch_lapeig.support import checks
from torch_lapeig.support.progress import Progress
from torch_lapeig.support.tuning import budget_of

SPARSE_NODES = 300  # up to which a sparse pencil is solved whole
DENSE_NODES = 600  # the same where K or M is dense
DENSE_PRODUCTS = 3000  # the same where K gives products only
MASS_RATIO = 1e4  # largest ratio of the diagonal of M that costs no digits
PRODUCTS = 1000  # with M⁻¹ K, which find the pairs of most matrices of no shape
POLISH_STEPS = 30  # of the inverse inside the spectrum, until residuals are round-off
SHIFT = 0.1  # s over an estimate of the first eigenvalue


def is_scaling(mass: Any, operator: Operator, k: int, *, is_iterative: bool, is_inside: bool) -> bool:
    """Return whether a mass is a diagonal that scales K: of a batch, for an iterative solver, or of near numbers.

    So is one of which more than half of the pairs are wanted: in the inverse the largest values lose digits.
    """
    if not isinstance(mass, Tensor) or mass.layout != torch.strided or mass.ndim != 1 or len(operator.shape) != 1:
        return isinstance(mass, Tensor) and mass.layout == torch.strided and mass.shape == operator.shape
    if not mass.is_floating_point() or len(mass) != operator.num_nodes:
        return True  # refused where it scales
    own = checks.primal(mass)[operator.active[0]]
    return is_iterative or (2 * k > len(own) and not is_inside) or bool(own.max() <= MASS_RATIO * own.min())


def checked_mass(mass: Any, operator: Operator) -> SymmetricOperator:
    """Return a mass, a diagonal ``(N,)`` or a matrix ``(N, N)``, in the operator's dtype, zero at inactive nodes."""
    n, shape, active = operator.num_nodes, tuple(getattr(mass, "shape", ())), operator.active[0]
    if not is_matrix(mass):
        checks.check_tensor(mass, "mass")
    if tuple(operator.shape) != (n,) or shape not in ((n,), (n, n)):
        batch = operator.shape[:-1]
        other = f"{(*batch, n, n)} beside matrices of that shape" if batch else f"{(n, n)}"
        raise ValueError(f"mass must have shape {tuple(operator.shape)} or {other}, got {shape}")
    if len(shape) == 1:
        checks.check_floating(mass, "mass")
        checks.check_finite(mass, "mass")
        nothing = torch.empty(0, dtype=torch.int64, device=mass.device)
        pattern: Pattern = SparsePattern.trusted(nothing, nothing, (n,))
        values, diagonal = mass[:0], mass
    else:
        pattern, values = entries_of_matrix(mass, "mass")
        if not isinstance(mass, Tensor):
            pattern, values = pattern.to(operator.device), values.to(operator.device)
        checks.check_floating(values, "mass")
        keep = pattern.at_row(active) & pattern.at_col(active)
        values, diagonal = torch.where(keep, -values, 0), active.new_zeros(n)
    checks.check_same_device(values, "mass", operator.bound, "laplacian")
    dtype = operator.dtype  # float32 of products in float32 alone
    return SymmetricOperator(pattern, values.to(dtype), torch.where(active, diagonal, 0).to(dtype), trusted=True)


def _not_definite(seen: str) -> ValueError:
    return ValueError(f"mass must be positive definite, got {seen}")


def _check_diagonal(mass: Any) -> None:
    """Raise ValueError unless the diagonal of M is positive."""
    if not (mass > 0).all():
        raise _not_definite(
            f"{float(mass.min()):.1e} on its diagonal; eliminate nodes b without a mass, K_aa − K_ab K_bb⁻¹ K_ba, or "
            "leave out those that are held at 0"
        )


def solve_pencil(problem: Problem, solver: Solver, progress: Progress | None, target: float | None = None) -> Solution:
    """Return the smallest pairs of K u = λ M u, or those nearest to a target, of K alone, too."""
    operator, k, n = problem.operator, problem.k, problem.operator.num_nodes
    is_sparse = isinstance(operator, SymmetricOperator) and operator.is_sparse
    is_sparse = is_sparse and (operator.mass is None or operator.mass.is_sparse)
    has_entries = isinstance(operator, SymmetricOperator)
    most = SPARSE_NODES if is_sparse else DENSE_NODES if has_entries else DENSE_PRODUCTS
    is_filled = target is not None and has_entries and not is_sparse  # its factors are no sparser
    is_dense = isinstance(solver, Eigh) or n <= most or is_filled
    c = 0 if target is not None else min(int(operator.nullity), k)
    null = _orthonormal(operator, operator.null_vectors(c)[0])
    if is_dense:
        found = _solve_whole(operator, null, k, int(operator.active_count), target)
    else:
        request = Request(operator, null, k - c, k - c + 1, problem.tolerance, progress)
        found = _solve_sparse(operator, request, target)
    return _solution(operator, found, problem, c, target, Eigh() if is_dense else Krylov())


class _Found(NamedTuple):
    """Pairs, in the order of the wanted ones, and how the error of a value is measured."""

    values: Tensor
    vectors: Tensor
    iterations: int
    finished: bool
    measure: Callable[[Tensor], Tensor]  # (K + s M)⁻¹, or M⁻¹ where s is infinite
    shift: float  # s
    inverse: Factors | None = None  # (K − σ M)⁻¹ or another preconditioner of the gradient
    sigma: float | None = None  # σ inside the spectrum


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


def _solve_whole(operator: Operator, null: Tensor, k: int, count: int, target: float | None) -> _Found:
    """Return all pairs, null ones or those nearest to the target first."""
    n, nodes = operator.num_nodes, operator.active[0].nonzero()[:, 0]
    eye = torch.eye(n, dtype=null.dtype, device=null.device)
    stiffness, mass = (f(eye)[nodes][:, nodes] for f in (operator.matmul, operator.weigh))
    if operator.mass is None:
        values, found = torch.linalg.eigh((stiffness + stiffness.mT) / 2)
        order = (values - (target or 0.0)).abs().argsort(stable=True)
        x = null.new_zeros(n, count).index_copy(0, nodes, found[:, order])
        return _Found(values[order], x, 1, True, lambda r: r, math.inf)
    _check_diagonal(mass.diagonal())
    root = mass.diagonal().sqrt()
    of_mass, failed = torch.linalg.cholesky_ex(mass / root / root[:, None])
    if int(failed):
        raise _not_definite("a matrix without a Cholesky factor")
    shift = _first_shift(stiffness.diagonal(), mass.diagonal())
    for _ in range(100):
        low, failed = torch.linalg.cholesky_ex((stiffness + stiffness.mT) / 2 + shift * mass)
        if not int(failed):
            break
        shift *= 4
    else:
        raise checks.ConvergenceError("no shift makes K + s M positive definite; rescale the operator or the mass")
    half = torch.linalg.solve_triangular(low, mass, upper=False)
    theta, q = torch.linalg.eigh(torch.linalg.solve_triangular(low, half.mT, upper=False))
    theta, q = theta.flip(0).clamp_min(torch.finfo(theta.dtype).tiny), q.flip(1)
    values, found = 1 / theta - shift, torch.linalg.solve_triangular(low.mT, q, upper=True) / theta.sqrt()
    if target is not None:
        order = (values - target).abs().argsort(stable=True)
        values, found, low, shift = values[order], found[:, order], root[:, None] * of_mass, math.inf
    x, c = null.new_zeros(n, count).index_copy(0, nodes, found), null.shape[1]
    _, beside, others = x.tensor_split([c, min(k + 1, count)], 1)
    beside = _orthonormal(operator, beside - null @ (operator.weigh(null).mT @ beside))
    x = torch.cat([null, beside, others], 1)

    def measure(r: Tensor) -> Tensor:
        return torch.zeros_like(r).index_copy(0, nodes, torch.cholesky_solve(r[nodes], low))

    return _Found(values, x, 1, True, measure, shift)


def _first_shift(stiffness: Any, mass: Any) -> float:
    """Return a shift of the size of the first eigenvalue of a surface, given both diagonals."""
    ratio = abs(float(stiffness.sum())) / (float(mass.sum()) * max(len(mass), 1))
    return SHIFT * ratio if ratio > 0 else 1.0


def _solve_sparse(operator: Operator, request: Request, target: float | None) -> _Found:
    """Return the first k + 1 pairs by Krylov spaces of (K − σ M)⁻¹ M, or of M⁻¹ K."""
    from scipy.sparse import diags_array, eye_array

    if not isinstance(operator, SymmetricOperator):
        raise TypeError(
            f"{'nearest' if operator.mass is None else 'mass'} must be None beyond {DENSE_PRODUCTS} nodes of a "
            f"{name_of(operator)}, which has products only: K − σ M is factorised"
            f"{'' if operator.mass is None else '; a mass near a multiple of 1 may be a diagonal'}"
        )
    # A copy: SciPy rearranges entries in place, and these are those of the tensor.
    mass = eye_array(operator.num_nodes) if operator.mass is None else to_scipy(operator.mass, "a mass matrix").copy()
    idle, far = ~operator.active[0].cpu().numpy(), float(operator.above) * (-1 if (target or 0) > 0 else 1)
    stiffness = to_scipy(operator, "a mass matrix") + diags_array(np.where(idle, far, 0.0))
    sizes = mass.diagonal()[~idle]
    _check_diagonal(sizes)
    crow, col, both = _symmetric_rows(stiffness + 1j * mass)  # one pattern, and one structure of factors
    whole = Shifted(None, crow, col, both.real.copy(), 1.0, np.zeros(len(idle)), both.imag.copy())
    rows = _symmetric_rows(mass)
    is_own = len(rows[1]) < len(col)
    rows = rows if is_own else (crow, col, both.imag.copy())
    weights = Shifted(None, *rows, 1.0, idle.astype(float))
    # Where K fills in and M does not, many products with K take less time than the factors of K + s M.
    is_direct = target is None and is_own and weights.is_readable and sizes.max() <= MASS_RATIO * sizes.min()
    if is_direct:
        own = weights.structure()
        work = math.inf if own is None else own.work + PRODUCTS * (len(col) + 2 * own.entries)
        is_direct = whole.structure(Limits(work)) is None
    is_dominated = bool((2 * mass.diagonal() > abs(mass).sum(1))[~idle].all())
    of_mass = _inverse_of_definite(weights) if is_direct or target is not None or not is_dominated else None
    if of_mass is None and not is_dominated:
        raise _not_definite("an eigenvalue that is not positive")
    matrix = None if operator.mass is None else operator.mass.to_matrix()
    null, name = request.null, "eigenpairs(nearest=...)"

    def found(form: Form, most: int, shift: float, measure: Factors) -> _Found:
        values, x, products, finished, _ = pairs_by_krylov(request, form, most, 0)
        inverse = form.inverse or measure
        if target is not None:
            # Steps remove what the inverse hardly sees of eigenvectors far away.
            for _ in range(POLISH_STEPS):
                x = _orthonormal(operator, refined(operator.weigh(x)))
                values, turn = torch.linalg.eigh(x.mT @ operator.matmul(x))
                order = (values - target).abs().argsort(stable=True)
                values, x = values[order], x @ turn[:, order]
                left = operator.matmul(x) - operator.weigh(x) * values
                if bool((measure(left) * left).sum(0).amax() <= round_off**2):
                    break
        values, x = torch.cat([null.new_zeros(null.shape[1]), values.to(null)]), torch.cat([null, x], 1)
        sigma = None if target is None else form.sigma
        return _Found(values, x, products, finished, measure, shift, inverse, sigma)

    if is_direct and (of_one := of_mass) is not None:
        direct = found(Form(operator, lambda x: of_one(operator.matmul(x)), matrix), PRODUCTS, math.inf, of_one)
        if direct.finished:
            return direct
    first, memory = _first_shift(stiffness.diagonal()[~idle], sizes), budget_of(torch.device("cpu")).factors
    if target is None:
        shift, inverse = _least_shift(lambda s: _inverse_of_definite(whole.at(-s)), first)
        sigma, measure = -shift, inverse
    else:
        assert of_mass is not None
        step, inverse = factors_near(whole.at(target), float(operator.bound), name)
        shift, sigma, measure = math.inf, target + step, of_mass

    def refined(b: Tensor) -> Tensor:
        x = inverse(b)
        return x + inverse(b - operator.matmul(x) + sigma * operator.weigh(x))

    # Where pivots are not exchanged, the factors are those of another matrix, with other eigenvectors.
    round_off = 40 * torch.finfo(torch.float64).eps * float(operator.bound)
    rounding = 0.0 if target is None else inverse.probe()[0]
    solve: Callable[[Tensor], Tensor] = inverse if rounding <= round_off else refined
    rounding = min(rounding, round_off)
    form = Form(operator, lambda x: solve(form.weighted(x)), matrix, inverse, sigma, target, memory, rounding)
    return found(form, Krylov().max_products, shift, measure)


def _symmetric_rows(matrix: Any) -> tuple[Any, Any, Any]:
    """Return the CSR rows of the symmetric part of a matrix."""
    found = ((matrix + matrix.T) / 2).tocsr().sorted_indices()
    return found.indptr.astype(np.int32), found.indices.astype(np.int32), found.data


def _least_shift(inverse_at: Callable[[float], Factors | None], shift: float) -> tuple[float, Factors]:
    """Return a shift at which K + s M is positive definite, and the inverse: the first one, or one near the least."""
    failed = 0.0
    for _ in range(40):
        if (inverse := inverse_at(shift)) is not None:
            break
        failed, shift = shift, 4 * shift
    else:
        raise checks.ConvergenceError("no shift makes K + s M positive definite; rescale the operator or the mass")
    for _ in range(3 if failed else 0):  # a Krylov space with −s near the spectrum needs fewer steps
        middle = (failed * shift) ** 0.5
        if (closer := inverse_at(middle)) is None:
            failed = middle
        else:
            shift, inverse = middle, closer
    return shift, inverse


def _inverse_of_definite(matrix: Shifted) -> Factors | None:
    """Return the inverse of a positive definite matrix by its factors; None for another one."""
    try:
        factors = Factors(matrix, factorize(matrix))
    except RuntimeError:
        return None
    except MemoryError as error:
        raise checks.ConvergenceError(
            f"there is not enough memory for factors of K + s M of {len(matrix.diagonal)} nodes; use a diagonal mass"
        ) from error
    return None if factors.negative else factors


def _solution(
    operator: Operator, found: _Found, problem: Problem, c: int, target: float | None, solver: Solver
) -> Solution:
    """Return the checked pairs, with residuals that bound the error of λ: (λ + s) ‖(K + s M)⁻¹ (K u − λ M u)‖_M."""
    k, eps = problem.k, torch.finfo(found.values.dtype).eps
    (values, more), (x, others) = (part.tensor_split([k + 1], -1) for part in found[:2])
    x = x * signs(x[None])[0]
    weighted, image = operator.weigh(x), operator.matmul(x)
    values = values + (x * (image - weighted * values)).sum(0) / (x * weighted).sum(0)
    values[:c] = 0
    rank = values if target is None else (values - target).abs()
    last = rank[c:].argsort(stable=True)[k - c :]  # the pair after the wanted ones, which ascend
    order = values[c:].argsort(stable=True)
    order = torch.cat([torch.arange(c, device=x.device), c + order[~torch.isin(order, last)], c + last])
    values, rank, x, weighted, image = values[order], rank[order], x[:, order], weighted[:, order], image[:, order]
    rest = found.measure(image - weighted * values)
    rest = rest - x[:, :c] @ (weighted[:, :c].mT @ rest)
    share = torch.ones_like(values) if math.isinf(found.shift) else (values + found.shift).abs()
    residuals = share * (rest * operator.weigh(rest)).sum(0).clamp_min(0).sqrt()
    bound = (operator.scale.amax() * x[:, :k].square().sum(0) + 2 * values[:k].abs()).amax()
    gap = (rank[k] - rank[:k].amax()).clamp_min(0) if len(values) > k else values.new_tensor(torch.inf)
    residuals[:c] = 0
    # The inverse enlarges the round-off of low frequencies.
    round_off = 40 * eps * bound * (share[k - 1] / share[: c + 1][-1]).clamp_min(1)
    allowed = torch.maximum(problem.tolerance * gap.nan_to_num(posinf=0.0), round_off)
    floor, is_known = 8 * eps * bound, len(values) in (c, 1)
    skewness = (x[:, :k].mT @ weighted[:, :k] - torch.eye(k).to(x)).abs().max()
    converged = (residuals[:k].amax() <= allowed) & (skewness <= eps**0.5) & found.finished
    every, vectors = torch.cat([values, more])[None], torch.cat([x, others], 1)[None]
    return Solution.of(
        operator,
        solver,
        RitzPairs(every, vectors, found.iterations, converged[None], (found.inverse,)),
        k,
        residuals=residuals[None, :k],
        gap=gap[None],
        converged=converged[None],
        resolved=((values.max() - values.min() > floor) | (floor <= eps**0.5 * values.abs().min()) | is_known)[None],
        scale=bound[None],
        sigma=found.sigma,
    )
