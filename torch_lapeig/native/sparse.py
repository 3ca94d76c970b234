"""Compiled factors L D Lᵀ of sparse symmetric matrices: `order.c`, `structure.c`, `factors.c`, `krylov.c`."""

from __future__ import annotations

import ctypes
import math
import weakref
from ctypes import c_int64
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from torch_lapeig.native.loops import NUMBERS, call, fill_struct, library, num_threads

Array = np.ndarray[Any, Any]
SINGULAR, NO_MEMORY = NUMBERS["SINGULAR"], NUMBERS["NO_MEMORY"]
BLOCK = NUMBERS["BLOCK"]  # maximum vectors of a block
SPACE_PART = 2**14  # least numbers of a vector for each thread: with four of them and 30 others some 0.1 ms


class Limits(NamedTuple):
    """Maximum cost of factors: multiplications and entries."""

    work: float = math.inf
    entries: float = math.inf

    def are_within(self, others: Limits) -> bool:
        """Return whether no limit is larger than the other's."""
        return all(mine <= other for mine, other in zip(self, others, strict=True))


def _at(x: Array | None, dtype: Any = np.float64) -> int | None:
    """Return the address of a dense array of a dtype; NumPy's own ``ctypes`` takes four times as long."""
    if x is not None and not (x.dtype == dtype and x.flags.c_contiguous):
        raise TypeError(f"arrays of loops must be contiguous and of {np.dtype(dtype)}, got {x.dtype}, {x.strides}")
    return None if x is None else x.__array_interface__["data"][0]


class SymbolicFactor:
    """Positions of the entries in the factors of a symmetric matrix, in an order of little fill.

    Nodes are eliminated by approximate minimum degree (Amestoy, Davis & Duff 1996). Columns of L with the same rows
    below them are eliminated together, as a dense matrix (Duff & Reid 1983).

    Attributes:
        nodes: rows of the matrix. entries: numbers that L holds, with some zeros.
        work: multiplications, c² for each column of c entries.
        bytes: maximum memory of the factors and of their computation.
    """

    def __init__(self, pointer: int) -> None:
        found: Any = library().structures["SymbolicFactor"].from_address(pointer)  # type: ignore[union-attr]
        self.pointer, self.work, self.nodes = pointer, float(found.work), int(found.nodes)
        self.entries = c_int64.from_address(found.column_start + 8 * found.supers).value
        self.bytes = 8 * (self.entries + call("room_of_factors", pointer))
        weakref.finalize(self, library().release, pointer)  # type: ignore[union-attr]

    @classmethod
    def of(cls, crow: Array, col: Array, most: Limits | None = None) -> SymbolicFactor | None:
        """Return the structure of a symmetric matrix of int32 rows, with or without its diagonal.

        None where factors take more than the limits, or more memory than there is.

        Raises:
            ValueError: columns out of range or not ascending in a row, or an entry without its reverse.
        """
        limits = Limits() if most is None else most
        n, rows, room = len(crow) - 1, (_at(crow, np.int32), _at(col, np.int32)), np.empty_like(crow)
        if not call("is_symmetric", n, len(col), *rows, _at(room, np.int32)):
            raise ValueError(
                f"rows must hold ascending columns from 0 to {n - 1}, and with each entry (i, j) an entry (j, i); use "
                "(matrix + matrix.T) / 2"
            )
        task = fill_struct("Limits", **limits._asdict())
        pointer = call("symbolic_factor", n, *rows, ctypes.byref(task))
        found = None if pointer is None else cls(pointer)
        return found if found is not None and found.size.are_within(limits) else None

    @property
    def size(self) -> Limits:
        """Return the cost of these factors as limits."""
        return Limits(self.work, self.entries)


@dataclass(frozen=True, eq=False)
class SymmetricFactors:
    """Factors L and D of a matrix.

    Attributes:
        numbers: of L and D. negative: entries of D below zero, as many as there are eigenvalues (Sylvester 1852).
    """

    symbolic: SymbolicFactor
    numbers: Array
    negative: int

    @classmethod
    def of(
        cls,
        symbolic: SymbolicFactor,
        crow: Array,
        col: Array,
        values: Array,
        times: float = 1.0,
        diagonal: Array | None = None,
    ) -> SymmetricFactors:
        """Return the factors of ``diagonal`` and ``times`` the values, float64, on the rows of this structure.

        Raises:
            RuntimeError: an entry of D is zero or not finite. ValueError: arrays of other lengths. MemoryError.
        """
        n, numbers = symbolic.nodes, np.empty(symbolic.entries)
        if len(crow) != n + 1 or len(col) != len(values) or (diagonal is not None and len(diagonal) != n):
            raise ValueError(f"rows must be those of the structure of {n} nodes, got {len(crow) - 1}")
        rows = (_at(crow, np.int32), _at(col, np.int32), _at(values))
        negative = call("numeric_factor", symbolic.pointer, *rows, times, _at(diagonal), _at(numbers))
        if negative == NO_MEMORY:
            raise MemoryError
        if negative == SINGULAR:
            raise RuntimeError("a pivot is zero or not finite")
        return cls(symbolic, numbers, negative)

    @property
    def nnz(self) -> int:
        """Return the number of entries of L."""
        entries: int = self.symbolic.entries
        return entries

    def solve(self, b: Array) -> Array:
        """Return X of A X = B for float64 ``(n,)`` or ``(n, m)``.

        Raises:
            ValueError: another shape. MemoryError.
        """
        b, n = np.ascontiguousarray(b), self.symbolic.nodes
        if b.ndim not in (1, 2) or len(b) != n:
            raise ValueError(f"right-hand sides must have shape ({n},) or ({n}, m), got {b.shape}")
        x = np.empty_like(b)
        columns = b.size // max(n, 1)
        if not call("solve_factors", self.symbolic.pointer, _at(self.numbers), _at(b), _at(x), columns):
            raise MemoryError
        return x


class PivotLimits(NamedTuple):
    """Least pivots of a block: of its own vectors, after the space is removed, and where once is enough."""

    dependent: float
    least: float
    enough: float


class Space:
    """Block Krylov space of A⁻¹ that compiled loops extend in the memory of its owner; see `BlockKrylov`.

    Args:
        factors: of A. rows: float64 ``(first + size + width, N)``, in one piece. projected: ``(size, size)``, likewise.
        width: of a block, at most `BLOCK`. pivots: limits of `BlockKrylov` for blocks.

    Attributes:
        rest: ``(width, N)``, of the last products.
    """

    def __init__(
        self, factors: SymmetricFactors, rows: Tensor, projected: Tensor, width: int, pivots: PivotLimits
    ) -> None:
        (total, n), size, threads = rows.shape, len(projected), num_threads()
        parts = max(1, min(threads, n // SPACE_PART))
        self._team, self.rest = (parts, threads), rows.new_empty(width, n)
        gram = rows.new_empty(width, width)
        self._space = fill_struct(
            "Space",
            symbolic=factors.symbolic.pointer,
            factors=_at(factors.numbers),
            nodes=n,
            known=total - size - width,
            size=size,
            width=width,
            filled=0,
            blocks=0,
            basis=rows,
            projected=projected,
            rest=self.rest,
            gram=gram,
            **pivots._asdict(),
            rows=0,
            begin=0,
            block=None,
            work=None,
        )
        self._kept = (factors, rows, projected, gram)  # keeps their memory alive

    def follow(self, filled: int, source: Tensor) -> bool:
        """Turn rows ``(width, N)`` into the block that follows the first ``filled`` vectors, if the block is sound."""
        self._space.filled = filled
        return bool(call("next_block", ctypes.byref(self._space), source.data_ptr(), *self._team))

    def extend(self, filled: int, upto: int) -> tuple[int, int, bool]:
        """Append the next block, and further blocks up to so many vectors while there is room for another.

        Returns:
            The number of vectors then, the number of appended blocks, and whether every later block was built
            from the previous residual.
        """
        self._space.filled, self._space.blocks = filled, 0
        is_sound = call("extend_space", ctypes.byref(self._space), upto, *self._team)
        if is_sound == NO_MEMORY:
            raise MemoryError
        return self._space.filled, self._space.blocks, bool(is_sound)
