"""Singular triplets: the largest eigenpairs of H = [[0, A], [Aᴴ, 0]], whose vectors are (u, v) / √2.

H has the eigenvalues −σ and 0, too. Beside a small σ they are so close that a computed vector mixes with theirs, by
eps ‖A‖ / σ, which changes no residual. So U and V are orthonormalised, from the largest σ on.

Few pairs of a large H are found by AᵀA on the shorter side of A: half of the products, in a smaller space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_lapeig.eigen.choose import Choice, choose
from torch_lapeig.eigen.factored import SparseRows, parts_of
from torch_lapeig.eigen.function import FunctionOperator
from torch_lapeig.eigen.gradient.system import off_diagonal
from torch_lapeig.eigen.matrices import coordinates, is_complex, is_matrix, operator_of, with_real_peaks
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.problem import Differentiated, Problem, normalise
from torch_lapeig.eigen.solve import Auto, Solve, eigenpairs, first_converged
from torch_lapeig.eigen.solvers.krylov import Krylov
from torch_lapeig.eigen.solvers.solver import RitzPairs, Solver, with_guards
from torch_lapeig.graph.algebra import assembled, product
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import deep_copy
from torch_lapeig.support.progress import Progress

MATRIX_NODES = 800  # m + n up to which H is made for few triplets, too
GRAM_NODES = 6000  # columns up to which dense AᵀA takes less time than 300 products with a vector
FEW_ENTRIES = 4  # mean of the entries in a row of sparse A, weighted by themselves, up to which AᵀA is made


@dataclass(frozen=True, eq=False)
class SingularTriplets:
    """The k largest singular triplets of a matrix, A ≈ U diag(S) Vᴴ, with gradients; unpacks to ``U, S, Vh``.

    ``U`` ``(..., m, k)`` and ``Vh`` ``(..., k, n)`` are orthonormal; the largest entry of each column of U is positive
    (the first within 0.1 %). ``S`` ``(..., k)`` descends. ``projected`` is diag(S) as a matrix ``(..., k, k)``, through
    which functions of values and vectors together have correct gradients at equal singular values. ``residuals`` are
    √(‖A v − σ u‖² + ‖Aᴴ u − σ v‖²) of the solver's vectors. ``gap`` ``(...)`` is the distance of the last value to the
    next one; after min(m, n) of them, to 0, or −σ of a square matrix. ``converged``: see `Eigenpairs`.

    >>> svd(torch.tensor([[3.0, 0.0], [0.0, -4.0], [0.0, 0.0]])).S
    tensor([4., 3.])
    """

    U: Tensor
    S: Tensor
    Vh: Tensor
    projected: Tensor
    residuals: Tensor
    gap: Tensor
    converged: Tensor

    __deepcopy__ = deep_copy

    def __iter__(self) -> Iterator[Tensor]:
        """Yield U, S and Vh."""
        yield from (self.U, self.S, self.Vh)


@precision.full_precision
def svd(
    matrix: Any,
    k: int | None = None,
    solve: Solve | Solver | None = None,
    *,
    shape: Any = (),
    parameters: Any = (),
    **options: Any,
) -> SingularTriplets:
    """Compute the ``k`` largest singular triplets of a matrix A, with the gradients of `eigenpairs`.

    Args:
        matrix: dense tensor ``(m, n)`` or ``(B, m, n)``, sparse tensor ``(m, n)`` in COO or CSR (with sparse gradients)
            or sparse matrix of SciPy, real or complex; or two functions, ``(Y, *θ)`` to A Y and ``(X, *θ)`` to Aᵀ X.
        k: number of triplets; default: all min(m, n).
        solve, options: see `eigenpairs`.
        shape, parameters: of functions only: ``(m, n)`` or ``(B, m, n)``, and tensors θ, see `FunctionOperator`.

    Gradients are exact for losses that do not depend on the basis where singular values are equal, such as functions of
    ``U @ projected @ Vh``; a `DegeneracyWarning` reports others. Singular values up to 50 eps σ₁ count as 0: they have
    no gradient (the nuclear norm has its shortest subgradient), and their vectors just stay orthogonal to the others.

    >>> matrix = torch.eye(3, dtype=torch.float64, requires_grad=True)
    >>> svd(matrix).S.sum().backward()  # at equal singular values
    >>> matrix.grad.diagonal().round(decimals=6)
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    is_functions = isinstance(matrix, tuple | list) and len(matrix) == 2 and all(map(callable, matrix))
    if not (is_functions or is_matrix(matrix)):
        got = f"{checks.describe(matrix)}{checks.way_out(matrix, 'matrix')}"
        raise TypeError(f"matrix must be a tensor, a sparse matrix, or two functions with shape=(m, n), got {got}")
    checks.check_instance(shape, "shape", (tuple, list), "(m, n) or (B, m, n) of two functions")
    if not is_functions and (len(shape) or len(parameters)):
        raise ValueError("shape and parameters must be left out with a matrix, which has its own; functions need them")
    size = tuple(shape) if is_functions else tuple(matrix.shape)
    if len(size) not in (2, 3) or min(size) < 1:
        raise ValueError(f"{'shape' if is_functions else 'matrix'} must be (m, n) or (B, m, n), from 1 on, got {size}")
    k = min(size[-2:]) if k is None else checks.check_count(k, "k", maximum=min(size[-2:]))
    solve, matrix = Solve.of(solve, **options), checks.half_to_float32(matrix)
    given, solver = _bordered(matrix, size, k, parameters, solve.solver)
    solve, kind = replace(solve, solver=solver), matrix.dtype if isinstance(matrix, Tensor) else given.dtype
    pairs = whole = eigenpairs(given, k, solve, largest=True)
    level = checks.primal(whole.values).clamp_min(0)
    is_positive = (level > 50 * torch.finfo(kind).eps * level[..., :1])[..., None, :]
    ranks = is_positive.sum(-1).flatten()
    if isinstance(given, Tensor) and len(ranks) > 1 and bool((ranks != ranks[0]).any()):
        alike = [(ranks == rank).nonzero().flatten() for rank in ranks.unique()]
        parts, order = [vars(svd(matrix[at], k, solve)) for at in alike], torch.cat(alike).argsort()
        return SingularTriplets(**{name: torch.cat([part[name] for part in parts])[order] for name in parts[0]})
    if 0 < (rank := int(ranks.max())) < k:  # a cut among zeros has no gradient
        pairs = eigenpairs(given, rank, solve, largest=True)
    more = k - pairs.values.shape[-1]
    parts = pad(pairs.vectors * 2**0.5, (0, more)).split(size[-2:], -2)
    u, v = (_orthonormal(part, is_positive) for part in parts)
    u, phase = with_real_peaks(u)
    projected = pad(pairs.projected, (0, more, 0, more))
    projected = torch.where(is_positive & is_positive.mT, projected, torch.diag_embed(level).to(u))
    off = off_diagonal(projected, k)
    projected = (projected + (phase.mH * off * phase - off)).to(kind)
    values = projected.diagonal(dim1=-2, dim2=-1).real
    residuals, gap = (whole.residuals * 2**0.5).to(values.dtype), whole.gap.to(values.dtype)
    return SingularTriplets(u.to(kind), values, (v * phase).mH.to(kind), projected, residuals, gap, whole.converged)


def _bordered(matrix: Any, size: tuple[int, ...], k: int, parameters: Any, solver: Solver) -> tuple[Any, Solver]:
    """Return H of a matrix, or of functions, and its solver; by products, in float64, for few triplets."""
    (m, n), layout, is_auto = size[-2:], getattr(matrix, "layout", None), isinstance(solver, Auto)
    rows: Any = None
    is_large = m + n > MATRIX_NODES
    is_few = is_large and 10 * k <= min(m, n)
    if isinstance(matrix, tuple | list):
        forward, adjoint = matrix
    elif layout == torch.strided:
        checks.check_outside_func(matrix, "matrix")
        checks.check_finite(matrix, "matrix", "check what it is computed from")
        if not is_few or is_complex(matrix) or not isinstance(solver, Auto | Krylov):
            return torch.cat([pad(matrix, (m, 0)), pad(matrix.mH, (0, n))], -2), solver
        checks.check_floating(matrix, "matrix")
        forward, adjoint, parameters = (lambda y, a: a @ y), (lambda x, a: a.mT @ x), (matrix.double(),)
    elif len(size) > 2:
        raise TypeError(f"matrix must be dense in a batch, got {layout} of {size}; use matrix.to_dense()")
    else:
        index, entries = coordinates(matrix, "matrix")
        if not (is_few and is_auto and len(entries)) or is_complex(entries):
            index = torch.stack([index[0], index[1] + m])
            index, entries = torch.cat([index, index.flip(0)], 1), torch.cat([entries, entries.conj()])
            found = torch.sparse_coo_tensor(index, entries, (m + n, m + n), check_invariants=False)
            return found, Krylov() if is_large and is_auto else solver
        checks.check_finite(entries, "matrix", "check what it is computed from")
        entries, rows = parts_of(assembled(index, entries.double(), size))
        turned, parameters = rows.flipped, (entries,)
        forward, adjoint = (lambda y, a: product(a, y, rows)), (lambda x, a: product(a, x, turned))

    def both(y: Tensor, *given: Tensor) -> Tensor:
        return torch.cat([forward(y[..., m:, :], *given), adjoint(y[..., :m, :], *given)], -2)

    bordered = FunctionOperator(both, (*size[:-2], m + n), parameters)
    few_columns = min(m, n) <= GRAM_NODES or rows is not None
    if isinstance(matrix, tuple | list) or not (is_auto and few_columns) or len(size) > 2:
        return bordered, solver
    bare = checks.primal(parameters[0]) / checks.next_power(checks.primal(parameters[0]).abs().amax())
    if rows is None:
        return bordered, _ByGram(bare if m >= n else bare.mT, None, m < n)
    return bordered, _ByGram(bare, rows if m >= n else turned, m < n)


@dataclass(frozen=True, eq=False)
class _ByGram(Auto):
    """Solver of H by AᵀA, of a matrix or its transpose, and by `Krylov` where it fails."""

    a: Tensor  # A, dense, or its entries
    rows: SparseRows | None  # where the entries are; None for a dense A
    is_turned: bool

    def choose(self, operator: Operator, k: int) -> Choice:
        """Choose this way first."""
        return Choice((self.solve, Krylov()), "few triplets")

    def solve(self, operator: Operator, k: int, tolerance: float, progress: Progress | None = None) -> RitzPairs:
        """Return the first pairs; see `Solver`."""
        # The round-off of AᵀA, eps σ₁², is eps σ₁² / σ in residuals of H. Pairs for which this is too much follow from
        # a dense A without the others, A − U Uᵀ A, of a smaller σ₁.
        a, eps, level = self.a, torch.finfo(operator.dtype).eps, self.a.new_zeros(0)
        columns = min(self.rows.size if self.rows else a.shape)
        u, v, done = a.new_zeros(operator.num_nodes - columns, 0), a.new_zeros(columns, 0), True
        while (count := k - len(level)) > 0:
            forth, gram = _gram(a, self.rows)
            normal = normalise(gram, None, None, largest=True, is_inside=False)
            # The largest pairs are not as crowded as a Laplacian's smallest.
            solvers = choose(normal.operator, count).solvers if self.rows is None else (Krylov(),)
            found = first_converged(solvers, Problem(normal.operator, count, tolerance / 2), progress)
            w = torch.cat([found.vectors, found.guard_vectors], 2)[..., : with_guards(count)]
            w = normal.back(found, Differentiated(w, torch.diag_embed(found.values)))[1].vectors[0]
            w = torch.linalg.qr(torch.cat([v, w], 1))[0][:, len(level) :]
            q = torch.linalg.qr(torch.cat([u, image := forth(w)], 1))[0][:, len(level) :]
            left, new, right = torch.linalg.svd(q.mT @ image)
            least = 40 * eps * torch.cat([level, new])[0]
            allowed = (tolerance * (new[count - 1] - new[count:][:1].sum())).maximum(least)
            is_sound = 10 * eps * new[0].square() <= new[:count] * allowed
            is_whole, done = bool(is_sound.all() or new[0] <= least), done and bool(found.converged)
            some = int(is_sound.sum()) if self.rows is None and not is_whole else None
            level = torch.cat([level, new[:some]])
            u, v = torch.cat([u, q @ left[:, :some]], 1), torch.cat([v, w @ right[:some].mT], 1)
            a = a if some is None else a - u @ (u.mT @ a)
        x = torch.cat([v, u] if self.is_turned else [u, v]) / 2**0.5
        values, is_done = (x * operator.matmul(x)).sum(0)[None], found.converged & (done and is_whole)
        return RitzPairs(values, x[None], found.ritz.iterations, is_done)


def _gram(a: Tensor, rows: SparseRows | None) -> tuple[Callable[[Tensor], Tensor], Operator]:
    """Return A Y as a function, and AᵀA: its entries, or products where these take less time."""
    if rows is None:
        return a.__matmul__, operator_of(a.mT @ a, "matrix")
    forth, back = (partial(product, a, pattern=part) for part in (rows, rows.flipped))
    if checks.is_plain_host(a):
        entries = rows.to_scipy(a).tocsr()
        if np.square(np.diff(entries.indptr).astype(float)).sum() <= FEW_ENTRIES * entries.nnz:
            return forth, operator_of(entries.T @ entries, "matrix")
    options: dict[str, Any] = {"dtype": a.dtype, "device": a.device}
    return forth, FunctionOperator(lambda y: back(forth(y)), min(rows.size), **options)


def _orthonormal(raw: Tensor, is_positive: Tensor) -> Tensor:
    """Return orthonormal vectors for those of H, with their gradients; where σ is 0, constants beside the others."""
    bare = checks.primal(raw)
    basis, r = torch.linalg.qr(bare)  # zero columns, too, become unit vectors beside the others
    basis = basis * torch.where((turn := r.diagonal(dim1=-2, dim2=-1).sgn()) == 0, 1, turn)[..., None, :]
    first, rest = torch.where(is_positive, basis + (raw - bare), 0), torch.where(is_positive, 0, basis)
    turned = precision.matmul(first.mH, rest)  # zero with a derivative
    rest = rest - precision.matmul(first, turned)
    return first + rest + precision.matmul(rest, precision.matmul(turned.mH, turned)) / 2
