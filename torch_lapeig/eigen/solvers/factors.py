"""Sparse direct factors, for the solves of `ShiftInvert` and as a preconditioner.

Compiled loops make them, L D Lᵀ, where there are any; else SuperLU, which takes four to ten times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from torch_lapeig.eigen.operator import Operator, entries_of
from torch_lapeig.native import loops
from torch_lapeig.native.sparse import Limits, Structure, SymmetricFactors
from torch_lapeig.support import checks

UNLIMITED = Limits()


class Shifted(NamedTuple):
    """Matrix A + σ of one graph in float64: ``times`` the values on rows, and a diagonal.

    Attributes:
        pattern: of which the rows are; None where they were made for this. crow, col: the rows; int32, unless SciPy
            needs more.
    """

    pattern: Any
    crow: np.ndarray[Any, Any]
    col: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    times: float
    diagonal: np.ndarray[Any, Any]

    @property
    def is_readable(self) -> bool:
        """Return whether compiled loops factorise the matrix."""
        return loops.library() is not None and self.col.dtype == self.crow.dtype == np.int32

    def structure(self, most: Limits = UNLIMITED) -> Structure | None:
        """Return where factors have entries; None beyond limits. See `Structure.of`."""
        if self.pattern is None:
            return Structure.of(self.crow, self.col, most)
        known: _Known | None = _structures.get(self.pattern)
        if known is None or (known.found is None and not most.are_within(known.most)):
            _structures[self.pattern] = known = _Known(Structure.of(self.crow, self.col, most), most)
        return known.found if known.found is not None and known.found.size.are_within(most) else None


class _Known(NamedTuple):
    """Structure of a pattern's factors, None if there is none within the limits."""

    found: Structure | None
    most: Limits


# Of living patterns: the choice of a solver shares its result with the solver and graphs of other weights.
_structures: Any = WeakIdKeyDictionary()


@dataclass(frozen=True, eq=False)
class Factors:
    """Factors of A + σ as A⁻¹. They live on the CPU; blocks on another device travel there and back.

    They can be neither copied nor pickled: a copy shares them, and unpickling makes them of the matrix again.
    """

    matrix: Shifted
    factors: Any

    @property
    def bytes(self) -> float:
        """Return the memory that the factors take."""
        if isinstance(self.factors, SymmetricFactors):
            return float(self.factors.structure.bytes)
        return 12 * float(self.factors.nnz)  # of L and U, each entry a number and an index

    def __call__(self, r: Tensor) -> Tensor:
        """Return (A + σ)⁻¹ r of a vector ``(N,)`` or a block ``(N, m)``, solved in float64."""
        block = r.detach().double().cpu().numpy()
        return torch.from_numpy(self.factors.solve(block)).to(r)

    def __deepcopy__(self, memo: dict[int, Any]) -> Factors:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return factors_of, (self.matrix._replace(pattern=None), SparseLU())


@dataclass(frozen=True)
class SparseLU:
    """Preconditioner (A + σ)⁻¹ of `Lobpcg`, which then is inverse iteration on a block: a few iterations.

    For sparse positive semidefinite matrices that are no Laplacian, such as (I − W)ᵀ(I − W) of locally linear
    embedding, whose smallest eigenvalues are 10⁻¹⁰ of the largest. The factors fill in: they have a few times the
    entries of A on graphs of surfaces, and up to N²/2 on graphs of high-dimensional data.

    Args:
        shift: σ over the bound of the spectrum: large enough that a singular A has factors.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(
    ...     400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ... )
    >>> laplacian = Laplacian(KNN(8)(x))
    >>> values = torch.linalg.eigvalsh(laplacian.to_dense())[:4]
    >>> from torch_lapeig.eigen import Lobpcg
    >>> torch.allclose(
    ...     eigenpairs(laplacian, 4, Lobpcg(preconditioner=SparseLU())).values, values
    ... )
    True
    """

    shift: float = 1e-14

    def __post_init__(self) -> None:
        checks.keep(self, shift=checks.check_positive(self.shift, "shift"))

    def __call__(self, operator: Operator) -> Factors:
        """Return the factors of one sparse operator.

        Raises:
            TypeError: an operator that gives products only. ConvergenceError: no factors, or no memory for them.
        """
        return factors_of(shifted(operator, self.shift, self), self)


def structure_within(matrix: Shifted, memory: float, most: Limits = UNLIMITED) -> Structure | None:
    """Return where compiled factors have entries if they fit into so many bytes and within limits; else None."""
    found = matrix.structure(most._replace(entries=min(most.entries, memory / 8)))
    return found if found is not None and found.bytes <= memory else None


def shifted(operator: Operator, shift: float, needed_by: object) -> Shifted:
    """Return A + shift · bound of one graph, float64; raise TypeError for an operator that gives products only.

    Nodes that are not active, where A is zero, get a number above the spectrum: their round-off would be enlarged most.
    """
    more = np.full(operator.num_nodes, shift * float(operator.bound))
    if operator.fewest_active < len(more):
        more[~operator.active[0].cpu().numpy()] = float(operator.above)
    rows = entries_of(operator, needed_by).compiled
    if rows is not None:
        crow, col, values = (part.numpy() for part in (rows.crow, rows.col, rows.values))
        diagonal = 1 + more if rows.diagonal is None else rows.diagonal.numpy() + more
        return Shifted(getattr(operator, "pattern", None), crow, col, values, -1.0, diagonal)
    matrix = to_scipy(operator, needed_by)
    return Shifted(None, matrix.indptr, matrix.indices, matrix.data, 1.0, more)


def count_below(operator: Operator, cut: float, room: float, needed_by: object) -> int | None:
    """Count the eigenvalues of A below a cut far from the nearest eigenvalue: the negative pivots of A − cut.

    By Sylvester's law of inertia, of A − cut + E for the E that rounding has made of it. None where that may be as
    large as the room, or where the pivots are not on the diagonal.
    """
    try:
        factors = factorize(shifted(operator, -cut / float(operator.bound), needed_by))
    except (RuntimeError, MemoryError):
        return None
    if (negative := _negative(factors)) is None:
        return None
    # Solutions are enlarged most along eigenvectors close to the cut, where E would matter.
    b = operator.random(2, 0)[0].double()
    x = torch.from_numpy(factors.solve(b.cpu().numpy())).to(b)
    left = operator.matmul(x.to(operator.dtype)).double() - cut * x - b
    rounding = torch.linalg.vector_norm(left, dim=0) / torch.linalg.vector_norm(x, dim=0)
    return negative if bool(rounding.max() < 0.01 * room) else None


def _negative(factors: Any) -> int | None:
    """Return how many pivots are negative; None where pivots are off the diagonal."""
    if isinstance(factors, SymmetricFactors):
        return factors.negative
    is_diagonal = np.array_equal(factors.perm_r, factors.perm_c)
    return int((factors.U.diagonal() < 0).sum()) if is_diagonal else None


def to_scipy(operator: Operator, needed_by: object) -> Any:
    """Return A of one graph in SciPy's CSR, float64; raise TypeError for an operator that gives products only."""
    # At the first use: few solves need it, and SciPy's solvers are slow to import.
    from scipy.sparse import csr_array

    matrix = entries_of(operator, needed_by).to_matrix()
    if matrix.layout is torch.sparse_csr:
        parts = (matrix.values().double(), matrix.col_indices(), matrix.crow_indices())
        return csr_array(tuple(part.cpu().numpy() for part in parts), shape=tuple(matrix.shape))
    return csr_array(matrix.double().cpu().numpy())


def factorize(matrix: Shifted) -> Any:
    """Return factors of a symmetric matrix with pivots on its diagonal, in an order of little fill.

    Raises:
        RuntimeError: it is singular. MemoryError.
    """
    if not matrix.is_readable:
        return superlu(matrix)
    if (structure := matrix.structure()) is None:
        raise MemoryError
    return SymmetricFactors.of(structure, *matrix[1:])


def superlu(matrix: Shifted) -> Any:
    """Return SuperLU's factors, ordered by minimum degree; raise as `factorize` does."""
    from scipy.sparse import csc_array, dia_array
    from scipy.sparse.linalg import splu

    shape = (len(matrix.diagonal),) * 2
    columns = csc_array((matrix.times * matrix.values, matrix.col, matrix.crow), shape=shape)  # which are the rows
    # Pivots on the diagonal are stable here, and keep the order that was chosen for little fill.
    options = {"SymmetricMode": True}
    whole = (columns + dia_array((matrix.diagonal[None], [0]), shape=shape)).tocsc()
    return splu(whole, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)


def factors_of(matrix: Shifted, needed_by: object) -> Factors:
    """Return the factors of a matrix; raise ConvergenceError if it is singular or memory is not enough."""
    try:
        return Factors(matrix, factorize(matrix))
    except (RuntimeError, MemoryError) as error:
        reason = "there is not enough memory" if isinstance(error, MemoryError) else str(error)
        raise checks.ConvergenceError(
            f"{needed_by} has no factors of the matrix of {len(matrix.diagonal)} nodes ({reason}); use Lobpcg() or "
            "ChebyshevSubspace()"
        ) from error
