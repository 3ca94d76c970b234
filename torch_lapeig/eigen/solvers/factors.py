"""Sparse direct factors, for the solves of `ShiftInvert` and as a preconditioner.

Compiled loops compute factors L D Lᵀ. Where nothing is compiled, SuperLU computes L U in four to ten times the time.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.symmetric import entries_of
from torch_lapeig.native import calls
from torch_lapeig.native.sparse import Limits, SymbolicFactor, SymmetricFactors
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property

UNLIMITED = Limits()
PROBE = 1e-11  # largest change of the matrix over its bound that pivots which are not exchanged may cost
NEAR = 1e-9  # distance of σ to an eigenvalue over the bound, below which the inverse hides the others
STEPS = (0, 1e-8, -1e-8, 1e-6)  # over the bound, by which σ moves away from an eigenvalue


class Shifted(NamedTuple):
    """Matrix A − σ M of one graph in float64: ``times`` the values on CSR rows, plus a diagonal."""

    pattern: Any  # that owns the rows; None for rows made from a matrix
    crow: np.ndarray[Any, Any]  # int32, or int64 from SciPy
    col: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    times: float
    diagonal: np.ndarray[Any, Any]
    mass: np.ndarray[Any, Any] | None = None  # M on the same rows, zero at nodes that take no part; None for 1

    @property
    def is_readable(self) -> bool:
        """Return whether compiled loops factorise the matrix."""
        return calls.library() is not None and self.col.dtype == self.crow.dtype == np.int32

    def at(self, sigma: float) -> Shifted:
        """Return this matrix − σ M."""
        if self.mass is None:
            return self._replace(diagonal=self.diagonal - sigma)
        return self._replace(values=self.values - sigma * self.mass)

    def structure(self, most: Limits = UNLIMITED, memory: float = math.inf) -> SymbolicFactor | None:
        """Return the positions of the factors' entries; None beyond limits or bytes. See `SymbolicFactor.of`."""
        most = most._replace(entries=min(most.entries, memory / 8))
        owner = self.col if self.pattern is None else self.pattern
        found, limits = _structures.get(owner, (None, Limits(-1, -1)))
        if found is None and not most.are_within(limits):
            _structures[owner] = (found := SymbolicFactor.of(self.crow, self.col, most)), most
        return found if found is not None and found.size.are_within(most) and found.bytes <= memory else None

    def to_scipy(self) -> Any:
        """Return the matrix in SciPy's CSC."""
        from scipy.sparse import csc_array, dia_array

        shape = (len(self.diagonal),) * 2
        columns = csc_array((self.times * self.values, self.col, self.crow), shape=shape)  # rows are columns
        return (columns + dia_array((self.diagonal[None], [0]), shape=shape)).tocsc()


# Symbolic factors of living patterns, None if they exceed the limits, and the limits of their computation: the choice
# of a solver shares them with the solver and with graphs of other weights.
_structures: Any = WeakIdKeyDictionary()


@dataclass(frozen=True, eq=False)
class Factors:
    """(A − σ M)⁻¹ by factors, on the CPU; blocks on another device are copied there and back."""

    matrix: Shifted
    factors: Any

    @property
    def bytes(self) -> float:
        """Return the memory that the factors take."""
        if isinstance(self.factors, SymmetricFactors):
            return float(self.factors.symbolic.bytes)
        return 12 * float(self.factors.nnz)  # of L and U, each entry a number and an index

    @property
    def negative(self) -> int | None:
        """Return the number of negative pivots, and of negative eigenvalues; None where pivots are off the diagonal."""
        if isinstance(self.factors, SymmetricFactors):
            return self.factors.negative
        is_diagonal = np.array_equal(self.factors.perm_r, self.factors.perm_c)
        return int((self.factors.U.diagonal() < 0).sum()) if is_diagonal else None

    def __call__(self, r: Tensor) -> Tensor:
        """Return (A − σ M)⁻¹ r of a vector ``(N,)`` or a block ``(N, m)`` or ``(1, N, m)``, solved in float64."""
        block = r.detach().double().cpu().numpy()
        found = self.factors.solve(block[0] if block.ndim == 3 else block)
        return torch.from_numpy(found).reshape(r.shape).to(r)

    @cached_property
    def probe(self) -> tuple[float, float]:
        """Return the sizes of E, where the factors are those of the matrix + E, and of its least eigenvalue."""
        # Two solves enlarge most the components along eigenvectors close to σ, for which E matters.
        b = np.random.default_rng(0).standard_normal((len(self.matrix.diagonal), 2))
        x = self.factors.solve(b)
        sizes = np.linalg.norm(x, axis=0)
        left = np.linalg.norm(self.matrix.to_scipy() @ x - b, axis=0) / sizes
        return float(left.max()), 1 / float(sizes.max())

    def count_below(self, cut: float, room: float) -> int | None:
        """Count the eigenvalues of this matrix below a cut by Sylvester's law of inertia."""
        # None where E may reach an eigenvalue, at least `room` from the cut, or pivots are off the diagonal.
        try:
            found = factorize(self.matrix.at(cut))
        except (RuntimeError, MemoryError):
            return None
        return found.negative if found.negative is not None and found.probe[0] < 0.01 * room else None

    # A copy shares the factors, and unpickling computes them again from the matrix.
    def __deepcopy__(self, memo: dict[int, Any]) -> Factors:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return factors_of, (self.matrix._replace(pattern=None), SparseFactors())


@dataclass(frozen=True)
class SparseFactors:
    """Preconditioner (A + σ)⁻¹ of `Lobpcg`, which then is inverse iteration on a block: a few iterations.

    Use it for sparse positive semidefinite matrices that are no Laplacian, such as (I − W)ᵀ(I − W) of locally linear
    embedding, whose smallest eigenvalues are 10⁻¹⁰ of the largest. The factors have a few times the entries of A on
    graphs of surfaces, and up to N²/2 on graphs of high-dimensional data.

    Args:
        shift: σ over the bound of the spectrum, positive: large enough that a singular A has factors.

    >>> from torch_lapeig.eigen import Lobpcg, eigenpairs
    >>> matrix = torch.arange(400.0).diag().to_sparse()
    >>> bool(eigenpairs(matrix, 4, Lobpcg(preconditioner=SparseFactors())).converged)
    True
    """

    shift: float = 1e-14

    def __post_init__(self) -> None:
        checks.set_frozen(self, shift=checks.check_positive(self.shift, "shift"))

    def __call__(self, operator: Operator) -> Factors:
        """Return the factors of one sparse operator; raise ConvergenceError without any, or memory for them."""
        return factors_of(shifted(operator, self.shift, self), self)


def shifted(operator: Operator, shift: float, needed_by: object) -> Shifted:
    """Return A + shift · bound of one graph, float64; raise TypeError for an operator that gives products only."""
    # Inactive nodes, where A is zero, get a number above the spectrum: an inverse would enlarge their round-off most.
    more = np.full(operator.num_nodes, shift * float(operator.bound))
    if operator.fewest_active < len(more):
        more[~operator.active[0].cpu().numpy()] = float(operator.above)
    rows = entries_of(operator, needed_by).compiled
    if rows is not None:
        crow, col, values = (part.numpy() for part in (rows.crow, rows.col, rows.values))
        diagonal = 1 + more if rows.diagonal is None else rows.diagonal.numpy() + more
        return Shifted(getattr(operator, "pattern", None), crow, col, values, -1.0, diagonal)
    # Zeros on one side of a matrix that is symmetric to round-off: factors need a structure that is symmetric exactly.
    return Shifted(None, *symmetrised(to_scipy(operator, needed_by)), 1.0, more)


def symmetrised(matrix: Any) -> tuple[Any, Any, Any]:
    """Return the CSR rows of the symmetric part of a matrix in SciPy's format."""
    found = ((matrix + matrix.T) / 2).tocsr().sorted_indices()
    return found.indptr.astype(np.int32), found.indices.astype(np.int32), found.data


def factors_near(matrix: Shifted, bound: float, needed_by: object) -> tuple[float, Factors]:
    """Return a shift of a matrix near 0, inside its spectrum, and the factors there; raise as `factors_of` does."""
    # Pivots that are not exchanged may be tiny, and an eigenvalue at the shift hides the others: then the shift moves a
    # little, and at last SuperLU exchanges pivots.
    for step in STEPS:
        moved = matrix.at(step * bound)
        with contextlib.suppress(RuntimeError):
            found = factorize(moved)
            rounding, least = found.probe
            if rounding <= PROBE * bound and least >= NEAR * bound:
                return step * bound, found
    return step * bound, factors_of(moved, needed_by, threshold=1.0)


def to_scipy(operator: Operator, needed_by: object) -> Any:
    """Return A of one graph in SciPy's CSR, float64."""
    # Imported at first use: few solves need SciPy's solvers, which are slow to import.
    from scipy.sparse import csr_array

    matrix = entries_of(operator, needed_by).to_matrix()
    if matrix.layout is torch.sparse_csr:
        parts = (matrix.values().double(), matrix.col_indices(), matrix.crow_indices())
        found = csr_array(tuple(part.cpu().numpy() for part in parts), shape=tuple(matrix.shape))
        found.check_format(full_check=True)  # of a class of the user
        return found
    return csr_array(matrix.double().cpu().numpy())


def factorize(matrix: Shifted) -> Factors:
    """Return factors of a symmetric matrix with pivots on its diagonal, in an order of little fill."""
    if not matrix.is_readable:
        return superlu(matrix)
    if (structure := matrix.structure()) is None:
        raise MemoryError
    return Factors(matrix, SymmetricFactors.of(structure, *matrix[1:6]))


def superlu(matrix: Shifted, threshold: float = 0.0) -> Factors:
    """Return SuperLU's factors, ordered by minimum degree; raise as `factorize` does."""
    # Pivots stay on the diagonal, which is stable in definite matrices, unless `threshold` is 1.
    from scipy.sparse.linalg import splu

    options = {"SymmetricMode": threshold == 0}
    found = splu(matrix.to_scipy(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=threshold, options=options)
    return Factors(matrix, found)


def factors_of(matrix: Shifted, needed_by: object, threshold: float = 0.0) -> Factors:
    """Return the factors of a matrix; raise ConvergenceError if it is singular or memory is not enough."""
    try:
        return superlu(matrix, threshold) if threshold else factorize(matrix)
    except (RuntimeError, MemoryError) as error:
        reason = "there is not enough memory" if isinstance(error, MemoryError) else str(error)
        raise checks.ConvergenceError(
            f"{needed_by} has no factors of the matrix of {len(matrix.diagonal)} nodes ({reason})"
            + ("" if isinstance(needed_by, str) else "; use Krylov() or ChebyshevSubspace()")
        ) from error
