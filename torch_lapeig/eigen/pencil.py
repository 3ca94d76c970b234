"""Pencils K u = λ M u with a symmetric positive definite mass matrix M, in the inner product of M.

(K + s M)⁻¹ M is self-adjoint in the inner product of M, with eigenvalues 1 / (λ + s) and the same eigenvectors. The
shift s > 0 is so small that K + s M is positive definite and −s a little below the spectrum. Small pencils are
solved whole: with K + s M = L Lᵀ the largest eigenvalues of L⁻¹ M L⁻ᵀ are accurate, however small some masses are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.check import Solution
from torch_lapeig.eigen.matrices import entries_of_matrix, is_matrix
from torch_lapeig.eigen.operator import Operator, knows_entries
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.factors import Factors, Shifted, factorize, to_scipy
from torch_lapeig.eigen.solvers.krylov import Form, Krylov, pairs_by_krylov
from torch_lapeig.eigen.solvers.solver import Request, RitzPairs, Solver
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.pattern import Pattern, SparsePattern, signs
from torch_lapeig.native.sparse import Limits
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.progress import Progress
from torch_lapeig.support.tuning import budget_of

SPARSE_NODES = 300  # up to which a sparse pencil is solved whole
DENSE_NODES = 600  # the same where K or M is dense
DENSE_PRODUCTS = 3000  # the same where K gives products only
MASS_RATIO = 1e4  # largest ratio of the diagonal of M that costs no digits
PRODUCTS = 1000  # with M⁻¹ K, which find the pairs of most matrices of no shape
SHIFT = 0.1  # s over an estimate of the first eigenvalue


class Pencil(Operator):
    """K of an operator and M as parameters of the differentiation rule; ``matmul`` is the product with K.

    Attributes:
        inverse: (K + s M)⁻¹, once it is known.
    """

    inverse: Any = None

    def __init__(self, stiffness: Operator, mass: SymmetricOperator) -> None:
        self.stiffness, self.mass = stiffness, mass
        self.shape, self.dtype, self.device = stiffness.shape, stiffness.dtype, stiffness.device
        self.bound = stiffness.bound

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Return the parameters of K and of M."""
        return (*self.stiffness.parameters, *self.mass.parameters)

    @property
    def active(self) -> Tensor:
        """Return the nodes that take part; see `Operator.active`."""
        return self.stiffness.active

    @property
    def nullity(self) -> Tensor:
        """Return the number of known null vectors; see `Operator.nullity`."""
        return self.stiffness.nullity

    def matmul(self, y: Tensor) -> Tensor:
        """Return K Y."""
        return self.stiffness.matmul(y)

    def matmul_at(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return K Y at other parameters; see `Operator.matmul_at`."""
        own = parameters[: -len(self.mass.parameters)]
        return self.stiffness.matmul_at(own, y) if own else self.stiffness.matmul(y)

    @cached_property
    def mass_matrix(self) -> Tensor:
        """Return M without gradients."""
        return self.mass.frozen().to_matrix()

    def weigh(self, x: Tensor) -> Tensor:
        """Return M X for ``(..., N, m)`` without gradients; torch's products with one vector are the fastest."""
        product: Tensor = self.mass_matrix @ x.detach().reshape(x.shape[-2:])
        return product.reshape(x.shape)

    def images(self, parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return K X and M X at other parameters, with derivatives."""
        own = self.mass.parameters
        return self.matmul_at(parameters, x), self.mass.matmul_at(parameters[-len(own) :], x)


class Spectrum(NamedTuple):
    """All pairs of a small pencil: L of K + s M = L Lᵀ on active nodes, eigenvectors Q of L⁻¹ M L⁻ᵀ, and θ."""

    nodes: Tensor  # int64 (n,)
    cholesky: Tensor
    q: Tensor
    theta: Tensor  # descending
    shift: float

    def vectors(self) -> Tensor:
        """Return L⁻ᵀ Q ``(n, n)``, of length θ^½ in the inner product of M."""
        return torch.linalg.solve_triangular(self.cholesky.mT, self.q, upper=True)

    def inverse(self, r: Tensor) -> Tensor:
        """Return (K + s M)⁻¹ R for ``(N, m)``."""
        return torch.zeros_like(r).index_copy(0, self.nodes, torch.cholesky_solve(r[self.nodes], self.cholesky))


def is_scaling(mass: Any, operator: Operator, k: int, *, is_iterative: bool) -> bool:
    """Return whether a mass is a diagonal that scales K: of a batch, for an iterative solver, or of near numbers.

    So is one of which more than half of the pairs are wanted: in the inverse the largest values lose digits.
    """
    if not isinstance(mass, Tensor) or mass.layout != torch.strided or mass.ndim != 1 or len(operator.shape) != 1:
        return isinstance(mass, Tensor) and mass.layout == torch.strided and mass.shape == operator.shape
    if not mass.is_floating_point() or len(mass) != operator.num_nodes:
        return True  # refused where it scales
    own = checks.primal(mass)[operator.active[0]]
    return is_iterative or 2 * k > len(own) or bool(own.max() <= MASS_RATIO * own.min())


def checked_mass(mass: Any, operator: Operator) -> SymmetricOperator:
    """Return a mass in float64 with gradients, a diagonal ``(N,)`` or a matrix ``(N, N)``, zero at inactive nodes.

    Raises:
        TypeError, ValueError: another shape, dtype or layout, numbers that are not finite, or no symmetric matrix.
    """
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
        checks.check_symmetric_matrix(values, back := pattern.transpose(values), "mass")
        keep = pattern.at_row(active) & pattern.at_col(active)
        values, diagonal = torch.where(keep, -(values + back) / 2, 0), active.new_zeros(n)
    checks.check_same_device(values, "mass", operator.bound, "laplacian")
    return SymmetricOperator(pattern, values.double(), torch.where(active, diagonal, 0).double(), trusted=True)


def _not_definite(seen: str) -> ValueError:
    return ValueError(f"mass must be positive definite, got {seen}; drop nodes of no mass")


def solve_pencil(
    operator: Operator, mass: SymmetricOperator, k: int, solver: Solver, tolerance: float, progress: Progress | None
) -> tuple[Pencil, Solution]:
    """Return the pencil with what its gradient needs, and its ``k`` smallest pairs.

    Raises:
        TypeError, ValueError: M is not positive definite, or K gives products only and is large.
        ConvergenceError: no factors.
    """
    pencil, n = Pencil(operator, mass), operator.num_nodes
    is_sparse = isinstance(operator, SymmetricOperator) and operator.is_sparse and mass.is_sparse
    most = SPARSE_NODES if is_sparse else DENSE_NODES if knows_entries(operator) else DENSE_PRODUCTS
    is_dense = isinstance(solver, Eigh) or n <= most
    frozen = Pencil(operator.frozen(), mass.frozen())
    with torch.no_grad():
        count = int(operator.active_count)
        c = min(int(operator.nullity), k)
        null = _orthonormal(frozen, frozen.stiffness.null_vectors(c)[0])
        if is_dense:
            shift, answer = _solve_whole(frozen, null, k, count)
        else:
            shift, answer = _solve_sparse(frozen, Request(frozen, null, k - c, k - c + 1, tolerance, progress))
        answer = answer._replace(inverses=(None if is_dense else frozen.inverse,))
        return pencil, _solution(pencil, frozen, answer, shift, k, tolerance, Eigh() if is_dense else Krylov())


def _answer(values: Tensor, x: Tensor, iterations: int, finished: bool) -> RitzPairs:
    return RitzPairs(values[None], x[None], iterations, torch.tensor([finished], device=x.device))


def _orthonormal(pencil: Pencil, x: Tensor) -> Tensor:
    """Return M-orthonormal columns of which the first j span the first j columns of ``x``."""
    if x.shape[1] == 0:
        return x
    weighted = pencil.weigh(x)
    for _ in range(2):
        cholesky, failed = torch.linalg.cholesky_ex(x.mT @ weighted)
        if int(failed):
            raise _not_definite("a vector x with xᵀ M x ≤ 0")
        x, weighted = (torch.linalg.solve_triangular(cholesky.mT, y, upper=True, left=False) for y in (x, weighted))
    return x


def _solve_whole(frozen: Pencil, null: Tensor, k: int, count: int) -> tuple[float, RitzPairs]:
    """Return the shift and all pairs, null ones first."""
    n, nodes = frozen.num_nodes, frozen.active[0].nonzero()[:, 0]
    eye = torch.eye(n, dtype=null.dtype, device=null.device)
    stiffness, mass = (f(eye)[nodes][:, nodes] for f in (frozen.matmul, frozen.weigh))
    root = mass.diagonal().clamp_min(0).sqrt()
    if not bool((root > 0).all()):
        raise _not_definite(f"{float(mass.diagonal().min()):.1e} on its diagonal")
    if int(torch.linalg.cholesky_ex(mass / root / root[:, None])[1]):
        raise _not_definite("a matrix without a Cholesky factor")
    shift, failed = _first_shift(stiffness.diagonal(), mass.diagonal()), 1
    for _ in range(100):
        cholesky, failed = torch.linalg.cholesky_ex((stiffness + stiffness.mT) / 2 + shift * mass)
        if not int(failed):
            break
        shift *= 4
    if int(failed):
        raise checks.ConvergenceError("no shift makes K + s M positive definite; rescale the operator or the mass")
    half = torch.linalg.solve_triangular(cholesky, mass, upper=False)
    theta, q = torch.linalg.eigh(torch.linalg.solve_triangular(cholesky, half.mT, upper=False))
    theta, q = theta.flip(0).clamp_min(0), q.flip(1)
    spectrum = Spectrum(nodes, cholesky, q, theta, shift)
    theta = theta.clamp_min(torch.finfo(theta.dtype).tiny)
    x = null.new_zeros(n, count).index_copy(0, nodes, spectrum.vectors() / theta.sqrt())
    c, some = null.shape[1], min(k + 1, count)
    x = torch.cat([null, _beside(frozen, null, x[:, c:some]), x[:, some:]], 1)
    frozen.inverse = spectrum.inverse
    return shift, _answer(1 / theta - shift, x, 1, True)


def _first_shift(stiffness: Any, mass: Any) -> float:
    """Return a shift of the size of the first eigenvalue of a surface, given both diagonals."""
    ratio = abs(float(stiffness.sum())) / (float(mass.sum()) * max(len(mass), 1))
    return SHIFT * ratio if ratio > 0 else 1.0


def _solve_sparse(frozen: Pencil, request: Request) -> tuple[float, RitzPairs]:
    """Return the shift and the first k + 1 pairs, by Krylov spaces of (K + s M)⁻¹ M, or of M⁻¹ K for an infinite s."""
    from scipy.sparse import diags_array

    # A copy: SciPy rearranges entries in place, and these are those of the tensor.
    operator, mass = frozen.stiffness, to_scipy(frozen.mass, "a mass matrix").copy()
    if not knows_entries(operator):
        raise TypeError(
            f"mass must be None or near a multiple of 1 beyond {DENSE_PRODUCTS} nodes of a {type(operator).__name__}, "
            "which has products only: K + s M is factorised"
        )
    idle = ~operator.active[0].cpu().numpy()
    stiffness = to_scipy(operator, "a mass matrix") + diags_array(np.where(idle, float(operator.above), 0.0))
    sizes = mass.diagonal()[~idle]
    if not (sizes > 0).all():
        raise _not_definite(f"{sizes.min():.1e} on its diagonal")
    crow, col, both = _symmetric_rows(stiffness + 1j * mass)  # one pattern, and one structure of factors
    whole = Shifted(None, crow, col, both.real.copy(), 1.0, np.zeros(len(idle)), both.imag.copy())
    rows = _symmetric_rows(mass)
    is_own = len(rows[1]) < len(col)
    rows = rows if is_own else (crow, col, both.imag.copy())
    weights, shift = Shifted(None, *rows, 1.0, idle.astype(float)), math.inf
    # Where K fills in and M does not, many products with K take less time than the factors of K + s M.
    is_direct = is_own and weights.is_readable and sizes.max() <= MASS_RATIO * sizes.min()
    if is_direct:
        own = weights.structure()
        work = math.inf if own is None else own.work + PRODUCTS * (len(col) + 2 * own.entries)
        is_direct = whole.structure(Limits(work)) is None
    is_dominated = bool((2 * mass.diagonal() > abs(mass).sum(1))[~idle].all())
    inverse = _inverse_of_definite(weights) if is_direct or not is_dominated else None
    if inverse is None and not is_dominated:
        raise _not_definite("an eigenvalue that is not positive")
    finished = False
    if is_direct and inverse is not None:
        of_mass = inverse
        form = Form(frozen, lambda x: of_mass(frozen.matmul(x)), frozen.mass_matrix)
        values, x, products, finished, _ = pairs_by_krylov(request, form, PRODUCTS, 0)
    if not finished:
        first = _first_shift(stiffness.diagonal()[~idle], sizes)
        shift, inverse = _least_shift(lambda s: _inverse_of_definite(whole.at(-s)), first)
        of_both, memory = inverse, budget_of(torch.device("cpu")).factors
        form = Form(frozen, lambda x: of_both(form.weighted(x)), frozen.mass_matrix, of_both, -shift, memory=memory)
        values, x, products, finished, _ = pairs_by_krylov(request, form, Krylov().max_products, 0)
    frozen.inverse, null = inverse, request.null
    values = torch.cat([null.new_zeros(null.shape[1]), values.to(null)])
    return shift, _answer(values, torch.cat([null, x], 1), products, finished)


def _symmetric_rows(matrix: Any) -> tuple[Any, Any, Any]:
    """Return the CSR rows of the symmetric part of a matrix."""
    found = ((matrix + matrix.T) / 2).tocsr().sorted_indices()
    return found.indptr.astype(np.int32), found.indices.astype(np.int32), found.data


def _beside(pencil: Pencil, null: Tensor, x: Tensor) -> Tensor:
    """Return an M-orthonormal basis of ``x`` beside ``null``, in the order of the columns."""
    return _orthonormal(pencil, x - null @ (pencil.weigh(null).mT @ x))


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
    pencil: Pencil, frozen: Pencil, answer: RitzPairs, shift: float, k: int, tolerance: float, solver: Solver
) -> Solution:
    """Return the checked pairs, with residuals (λ + s) ‖(K + s M)⁻¹ (K u − λ M u)‖_M, which bound the error of λ."""
    (values, more), (x, others) = (part[0].tensor_split([k + 1], -1) for part in answer[:2])
    eps = torch.finfo(values.dtype).eps
    c = min(int(pencil.nullity), k)
    x = x * signs(x[None])[0]
    weighted, image = frozen.weigh(x), frozen.matmul(x)
    values = values + (x * (image - weighted * values)).sum(0) / (x * weighted).sum(0)
    values[:c] = 0
    values[c:], order = values[c:].sort(stable=True)
    order = torch.cat([torch.arange(c, device=order.device), order + c])
    x, weighted, image = x[:, order], weighted[:, order], image[:, order]
    rest = frozen.inverse(image - weighted * values)
    rest = rest - x[:, :c] @ (weighted[:, :c].mT @ rest)
    share = torch.ones_like(values) if math.isinf(shift) else (values + shift).abs()
    residuals = share * (rest * frozen.weigh(rest)).sum(0).clamp_min(0).sqrt()
    bound = (frozen.stiffness.bound.amax() * x[:, :k].square().sum(0) + 2 * values[:k].abs()).amax()
    gap = (values[k] - values[k - 1]).clamp_min(0) if len(values) > k else values.new_tensor(torch.inf)
    residuals[:c] = 0
    # The inverse enlarges the round-off of low frequencies.
    round_off = 40 * eps * bound * (share[k - 1] / share[: c + 1][-1]).clamp_min(1)
    allowed = torch.maximum(tolerance * gap.nan_to_num(posinf=0.0), round_off)
    skewness = (x[:, :k].mT @ weighted[:, :k] - torch.eye(k).to(x)).abs().max()
    converged = answer.finished & (residuals[:k].amax() <= allowed) & (skewness <= eps**0.5)
    return Solution(
        operator=pencil,
        solver=solver,
        ritz=answer,
        values=values[None, :k],
        vectors=x[None, :, :k],
        present=torch.ones(1, k, dtype=torch.bool, device=x.device),
        guard_values=torch.cat([values[k:], more])[None],
        guard_vectors=torch.cat([x[:, k:], others], 1)[None],
        residuals=residuals[None, :k],
        gap=gap[None],
        converged=converged,
        resolved=((values[-1] - values[0] > 8 * eps * bound) | (len(values) == c) | (len(values) == 1))[None],
        faint=torch.zeros_like(converged),
        scale=bound[None],
    )
