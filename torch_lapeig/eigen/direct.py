"""Sparse direct factors, by SuperLU: what `ShiftInvert` solves with, and a preconditioner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._process import one_blas_thread
from torch_lapeig.eigen.operator import Operator, entries_of

PROBES = 2  # solves that tell what rounding has made of factors
ROUNDING = 0.01  # of the room around a cut: as much of it bears that


@dataclass(frozen=True, eq=False)
class Factors:
    """LU factors of A + σ by SuperLU as A⁻¹. They live on the CPU; blocks on another device travel there and back.

    SuperLU's object can be neither copied nor pickled: a copy shares it, and unpickling factorises ``matrix`` again.
    """

    matrix: Any  # SciPy's CSR
    factors: Any

    def __call__(self, r: Tensor) -> Tensor:
        """(A + σ)⁻¹ r of a vector ``(N,)`` or a block ``(N, m)``, solved in float64."""
        block = r.detach().double().cpu().numpy()
        with one_blas_thread():
            solution = self.factors.solve(block)
        return torch.from_numpy(solution).to(r)

    def __deepcopy__(self, memo: dict[int, Any]) -> Factors:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return factors_of, (self.matrix, SparseLU())


@dataclass(frozen=True)
class SparseLU:
    """(A + σ)⁻¹ as a preconditioner of `Lobpcg`, which with it is inverse iteration on a block: a few iterations.

    For sparse positive semidefinite matrices that are no Laplacian, such as (I − W)ᵀ(I − W) of locally linear
    embedding, whose smallest eigenvalues are 10⁻¹⁰ of the largest. The factors fill in: on graphs of surfaces they have
    a few times the entries of A, on those of high-dimensional data up to N²/2.

    Args:
        shift: σ over the bound of the spectrum: large enough that a singular A has factors.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> laplacian = Laplacian(KNN(8)(x))
    >>> values = torch.linalg.eigvalsh(laplacian.to_dense())[:4]
    >>> from torch_lapeig.eigen import Lobpcg
    >>> torch.allclose(eigenpairs(laplacian, 4, Lobpcg(preconditioner=SparseLU())).values, values)
    True
    """

    shift: float = 1e-14

    def __post_init__(self) -> None:
        _checks.keep(self, shift=_checks.check_positive(self.shift, "shift"))

    def __call__(self, operator: Operator) -> Factors:
        """The factors of one sparse operator.

        Raises:
            TypeError: an operator that gives products only. ConvergenceError: no factors, or no memory for them.
        """
        return factors_of(shifted(operator, self.shift, self), self)


def shifted(operator: Operator, shift: float, needed_by: object) -> Any:
    """A + shift · bound of one graph in SciPy's CSR, float64. TypeError for an operator that gives products only.

    Nodes that are not active, where A is zero, get a number above the spectrum: their round-off would be enlarged most.
    """
    active = operator.active[0].cpu().numpy()
    more = np.where(active, shift * float(operator.bound), float(operator.above))
    return plus_diagonal(to_scipy(operator, needed_by), more)


def plus_diagonal(matrix: Any, more: np.ndarray[Any, Any]) -> Any:
    """A matrix in SciPy's CSR with numbers added to its diagonal."""
    from scipy.sparse import csr_array, dia_array

    n = matrix.shape[0]
    row = np.repeat(np.arange(n, dtype=matrix.indices.dtype), np.diff(matrix.indptr))
    diagonal = np.flatnonzero(matrix.indices == row)
    if not np.array_equal(row[diagonal], np.arange(n)):
        return (matrix + dia_array((more[None], [0]), shape=(n, n)).tocsr()).tocsr()
    data = matrix.data.copy()  # what it was made of may be the operator's own
    data[diagonal] += more
    return csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def count_below(operator: Operator, cut: float, room: float, needed_by: object) -> int | None:
    """How many eigenvalues of A lie below a cut that is so far from the nearest: as many as pivots of A − cut are < 0.

    By Sylvester's law of inertia, of A − cut + E for the E that rounding has made of it. None where that may be as
    large as the room, or where the pivots are not on the diagonal.
    """
    matrix = shifted(operator, -cut / float(operator.bound), needed_by)
    try:
        factors = factorize(matrix)
    except (RuntimeError, MemoryError):
        return None
    if not np.array_equal(factors.perm_r, factors.perm_c):
        return None
    # What they solve is enlarged most along eigenvectors close to the cut, where E would make a difference.
    b = operator.random(PROBES, 0)[0].double().cpu().numpy()
    x = factors.solve(b)
    rounding = np.linalg.norm(matrix @ x - b, axis=0) / np.linalg.norm(x, axis=0)
    if not rounding.max() < ROUNDING * room:
        return None
    return int((factors.U.diagonal() < 0).sum())


def to_scipy(operator: Operator, needed_by: object) -> Any:
    """A of one graph in SciPy's CSR, float64. TypeError for an operator that gives products only."""
    # At the first use: few solves need factors, and SciPy's solvers are slow to import.
    from scipy.sparse import csr_array

    matrix = entries_of(operator, needed_by).to_matrix()
    if matrix.layout is torch.sparse_csr:
        parts = (matrix.values().double(), matrix.col_indices(), matrix.crow_indices())
        return csr_array(tuple(part.cpu().numpy() for part in parts), shape=tuple(matrix.shape))
    return csr_array(matrix.double().cpu().numpy())


def factorize(matrix: Any) -> Any:
    """SuperLU's factors of a symmetric positive definite matrix in SciPy's CSR, ordered by minimum degree."""
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import splu

    columns = csc_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)  # which are the rows
    # Pivots on the diagonal are stable here, and keep the order that was chosen for little fill.
    options = {"SymmetricMode": True}
    with one_blas_thread():
        return splu(columns, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)


def factors_of(matrix: Any, needed_by: object) -> Factors:
    """The factors of a matrix in SciPy's CSR. ConvergenceError: it is singular, or memory is not enough."""
    try:
        return Factors(matrix, factorize(matrix))
    except (RuntimeError, MemoryError) as error:
        reason = "there is not enough memory" if isinstance(error, MemoryError) else str(error)
        raise _checks.ConvergenceError(
            f"{needed_by} has no factors of the matrix of {matrix.shape[0]} nodes ({reason}); use Lobpcg() or Lanczos()"
        ) from error
