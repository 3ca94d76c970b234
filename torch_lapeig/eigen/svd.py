"""Singular triplets: the largest eigenpairs of H = [[0, A], [Aᴴ, 0]], whose vectors are (u, v) / √2.

H has the eigenvalues −σ and 0, too. Beside a small σ they are so close that a computed vector mixes with theirs, by
eps ‖A‖ / σ, which changes no residual. So U and V are orthonormalised, from the largest σ on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_lapeig.eigen.function import FunctionOperator
from torch_lapeig.eigen.gradient.system import off_diagonal
from torch_lapeig.eigen.matrices import coordinates, is_complex, is_matrix, with_real_peaks
from torch_lapeig.eigen.solve import Auto, Solve, eigenpairs
from torch_lapeig.eigen.solvers.krylov import Krylov
from torch_lapeig.eigen.solvers.solver import Solver
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import deep_copy

MATRIX_NODES = 800  # m + n of dense matrices up to which H is made for few triplets, too


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

    Raises: TypeError, ValueError: another type, dtype or shape, NaN, k out of range; see `eigenpairs`,
    `FunctionOperator`.

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
    given = _bordered(matrix, size, k, parameters, is_free=isinstance(solve.solver, Auto | Krylov))
    kind = matrix.dtype if isinstance(matrix, Tensor) else given.dtype
    if isinstance(given, Tensor) and given.is_sparse and len(given) > MATRIX_NODES and isinstance(solve.solver, Auto):
        solve = replace(solve, solver=Krylov())  # the largest pairs are not as crowded as a Laplacian's smallest
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


def _bordered(matrix: Any, size: tuple[int, ...], k: int, parameters: Any, *, is_free: bool) -> Any:
    """Return H of a matrix, or of functions; by products, in float64, for few triplets of a large dense matrix.

    The solver ``is_free`` if products are enough for it.
    """
    m, n = size[-2:]
    if (layout := getattr(matrix, "layout", None)) == torch.strided:
        checks.check_outside_func(matrix, "matrix")
        checks.check_finite(matrix, "matrix", "check what it is computed from")
        if m + n <= MATRIX_NODES or 10 * k > min(m, n) or is_complex(matrix) or not is_free:
            return torch.cat([pad(matrix, (m, 0)), pad(matrix.mH, (0, n))], -2)
        checks.check_floating(matrix, "matrix")
        matrix, parameters = (lambda y, a: a @ y, lambda x, a: a.mT @ x), (matrix.double(),)
    if isinstance(matrix, tuple | list):
        forward, adjoint = matrix

        def both(y: Tensor, *given: Tensor) -> Tensor:
            return torch.cat([forward(y[..., m:, :], *given), adjoint(y[..., :m, :], *given)], -2)

        return FunctionOperator(both, (*size[:-2], m + n), parameters)
    if len(size) > 2:
        raise TypeError(f"matrix must be dense in a batch, got {layout} of {size}; use matrix.to_dense()")
    index, entries = coordinates(matrix, "matrix")
    index = torch.stack([index[0], index[1] + m])
    index, entries = torch.cat([index, index.flip(0)], 1), torch.cat([entries, entries.conj()])
    return torch.sparse_coo_tensor(index, entries, (m + n, m + n), check_invariants=False)


def _orthonormal(raw: Tensor, is_positive: Tensor) -> Tensor:
    """Return orthonormal vectors for those of H, with their gradients; where σ is 0, constants beside the others."""
    bare = checks.primal(raw)
    basis, r = torch.linalg.qr(bare)  # zero columns, too, become unit vectors beside the others
    basis = basis * torch.where((turn := r.diagonal(dim1=-2, dim2=-1).sgn()) == 0, 1, turn)[..., None, :]
    first, rest = torch.where(is_positive, basis + (raw - bare), 0), torch.where(is_positive, 0, basis)
    turned = precision.matmul(first.mH, rest)  # zero with a derivative
    rest = rest - precision.matmul(first, turned)
    return first + rest + precision.matmul(rest, precision.matmul(turned.mH, turned)) / 2
