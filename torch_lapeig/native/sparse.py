"""Compiled factors L D Lᵀ of sparse symmetric matrices, and projections for Krylov spaces of their inverse."""

from __future__ import annotations

import ctypes
import math
import weakref
from ctypes import c_int64
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from torch_lapeig.native import calls
from torch_lapeig.native.calls import NUMBERS, call, fill_struct, library

Array = np.ndarray[Any, Any]
SINGULAR, NO_MEMORY = NUMBERS["SINGULAR"], NUMBERS["NO_MEMORY"]
BLOCK = NUMBERS["BLOCK"]  # maximum vectors of a block
ONE_BLOCK = {"steps": 1, "matrix": None, "diagonal": None, "small": None, "size": 0, "known": 0}  # of `Projection`
ROWS_PART = 2**14  # least numbers of a vector for each thread: with four of them and 30 rows some 0.1 ms


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
    """Positions of the entries in the factors of a symmetric matrix, in an order of little fill."""

    # Nodes are eliminated by approximate minimum degree (Amestoy, Davis & Duff 1996). Columns of L with the same rows
    # below them are eliminated together, as a dense matrix (Duff & Reid 1983).

    def __init__(self, pointer: int) -> None:
        found: Any = library().structures["SymbolicFactor"].from_address(pointer)
        # Work is in multiplications, c² for each column of c entries; entries hold some zeros.
        self.pointer, self.work, self.nodes = pointer, float(found.work), int(found.nodes)
        self.entries: int = c_int64.from_address(found.column_start + 8 * found.supers).value
        self.size = Limits(self.work, self.entries)
        self.bytes = 8 * (self.entries + call("room_of_factors", pointer))
        weakref.finalize(self, call, "release", pointer)

    @classmethod
    def of(cls, crow: Array, col: Array, most: Limits | None = None) -> SymbolicFactor | None:
        """Return the structure of a symmetric matrix of int32 rows; None where factors exceed limits or memory."""
        limits = Limits() if most is None else most
        n, rows, room = len(crow) - 1, (_at(crow, np.int32), _at(col, np.int32)), np.empty_like(crow)
        if not call("is_symmetric", n, len(col), *rows, _at(room, np.int32)):
            raise ValueError(
                f"rows must hold ascending columns from 0 to {n - 1}, and with each entry (i, j) an entry (j, i); use "
                "(matrix + matrix.T) / 2"
            )
        task = fill_struct("Limits", **limits._asdict())
        pointer = call("symbolic_factor", n, *rows, ctypes.byref(task))
        found = cls(pointer) if pointer else None
        return found if found is not None and found.size.are_within(limits) else None


@dataclass(frozen=True, eq=False)
class SymmetricFactors:
    """Factors L and D of a matrix."""

    symbolic: SymbolicFactor
    numbers: Array  # of L and D
    negative: int  # entries of D below zero, as many as there are eigenvalues (Sylvester 1852)

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
        """Return the factors of ``diagonal`` and ``times`` the values, float64, on the rows of this structure."""
        n, numbers = symbolic.nodes, np.empty(symbolic.entries)
        if len(crow) != n + 1 or len(col) != len(values) or (diagonal is not None and len(diagonal) != n):
            raise ValueError(f"rows must be those of the structure of {n} nodes, got {len(crow) - 1}")
        rows = (_at(crow, np.int32), _at(col, np.int32), _at(values))
        negative = call("numeric_factor", symbolic.pointer, *rows, float(times), _at(diagonal), _at(numbers))
        if negative == NO_MEMORY:
            raise MemoryError
        if negative == SINGULAR:
            raise RuntimeError("a pivot is zero or not finite")
        return cls(symbolic, numbers, negative)

    def solve(self, b: Array) -> Array:
        """Return X of A X = B for float64 ``(n,)`` or ``(n, m)``."""
        n, is_by_columns = self.symbolic.nodes, b.flags.f_contiguous
        if b.ndim not in (1, 2) or len(b) != n:
            raise ValueError(f"right-hand sides must have shape ({n},) or ({n}, m), got {b.shape}")
        b = b if is_by_columns else np.ascontiguousarray(b)
        x, columns = np.empty_like(b), b.size // max(n, 1)
        steps = (1, n) if is_by_columns else (columns, 1)
        blocks = (_at(b.T if is_by_columns else b), _at(x.T if is_by_columns else x))
        if not call("solve_factors", self.symbolic.pointer, _at(self.numbers), *blocks, columns, *steps):
            raise MemoryError
        return x


class BlockLimits(NamedTuple):
    """Limits of a sound block."""

    least: float  # length at most of a vector that is round-off, so far
    unit: float  # the same over the norm of the products
    pivot: float = 1e-3  # least pivot for Cholesky factors
    sound: float = 0.1  # least pivot to be orthonormal by them


class NextBlock(NamedTuple):
    """Result of `next_block`."""

    products: Tensor  # ``(m, p)``, of the rows with the given block
    # F ``(p, p)``: the given block is F times the new one, beside its parts in the span of the rows
    factor: Tensor
    least: float  # length of round-off
    is_made: bool  # whether the new block is orthonormal, and orthogonal to the rows


def next_block(rows: Tensor, block: Tensor, near: int, limits: BlockLimits, mass: Any = None, **more: Any) -> NextBlock:
    """Make one or more blocks ``(p, N)``, p ≤ `BLOCK`, the next of orthonormal rows ``(m, N)``, in place; float64."""
    (width, n), threads, steps = block.shape, calls.num_threads(), ONE_BLOCK | more
    products, factor = rows.new_empty(len(rows) + (steps["steps"] - 1) * width, BLOCK), rows.new_empty(BLOCK, BLOCK)
    parts = (None, None, None) if mass is None else (mass.crow_indices(), mass.col_indices(), mass.values())
    csr = fill_struct("Rows_double", **dict(zip(("crow", "col", "values"), parts, strict=True)), diagonal=None)
    sizes = {"nodes": n, "rows": len(rows), "near": near, "width": width, "mass": csr, "weighted": None, "work": None}
    # A unit vector that has a length of less than 0.1 outside the space needs care.
    blocks = {"basis": rows, "block": block, "products": products, "factor": factor, "least_left": 0.1}
    task = fill_struct("Projection", **sizes, **blocks, **limits._asdict(), **steps)
    is_made = call("next_block", ctypes.byref(task), max(1, min(threads, n // ROWS_PART)), threads)
    if is_made == NO_MEMORY:
        raise MemoryError
    return NextBlock(products[: task.rows, :width], factor[:width, :width], task.least, bool(is_made))
