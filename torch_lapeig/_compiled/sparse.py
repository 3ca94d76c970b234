"""Compiled factors L D Lᵀ of sparse symmetric matrices: `sparse.c`."""

from __future__ import annotations

import ctypes
import math
import weakref
from ctypes import c_double, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig import _compiled

Array = np.ndarray[Any, Any]
SINGULAR, NO_MEMORY = -1, -2  # what `numbers_of` gives in the place of a count
BLOCK = 4  # vectors of a block, at most
SPACE_PART = 2**14  # numbers of a vector that a thread has at least: with four of them and 30 others some 0.1 ms


class Limits(NamedTuple):
    """Multiplications that factors may take, and their entries."""

    work: float = math.inf
    entries: float = math.inf

    def are_within(self, others: Limits) -> bool:
        """Whether none of them is larger."""
        return all(mine <= other for mine, other in zip(self, others, strict=True))


def _at(x: Array | None) -> c_void_p:
    """Where C finds numbers; NumPy's own ``ctypes`` takes four times as long."""
    return c_void_p(None if x is None else x.__array_interface__["data"][0])


def components(crow: Tensor, col: Tensor) -> Tensor | None:
    """Labels int64 ``(n,)`` of connected components, ascending by first node; None where C cannot read the rows."""
    if not _compiled.reads_rows(crow, col):
        return None
    labels = torch.empty(len(crow) - 1, dtype=torch.int64)
    where = (c_void_p(part.data_ptr()) for part in (crow, col, labels))
    found = _compiled.library().components_of(c_int64(len(labels)), *where)  # type: ignore[union-attr]
    return None if found < 0 else labels


def share_inside(crow: Array, col: Array, size: int) -> float:
    """Of so many nodes of a ball at one end of a graph, the share that has no edge out of it. Raises: MemoryError."""
    rows = (_at(crow), _at(col))
    found: float = _compiled.library().share_inside(c_int64(len(crow) - 1), *rows, c_int64(size))  # type: ignore[union-attr]
    if found < 0:
        raise MemoryError
    return found


class Structure:
    """Where the factors of a symmetric matrix have entries, in an order of little fill.

    Nodes are eliminated by approximate minimum degree (Amestoy, Davis & Duff 1996). Columns of L with the same rows
    below them are eliminated together, as a dense matrix (Duff & Reid 1983).

    Attributes:
        entries: numbers that L holds, with some zeros. work: multiplications that it takes, a column of c entries c².
        bytes: memory of the factors and of what makes them, at most.
    """

    def __init__(self, shape: int) -> None:
        library = _compiled.library()
        sizes, work = np.zeros(4, dtype=np.int64), c_double()
        library.sizes_of(c_void_p(shape), _at(sizes), ctypes.byref(work))  # type: ignore[union-attr]
        entries, _, widest, waiting = sizes.tolist()
        self.pointer, self.entries, self.work, self.widest = c_void_p(shape), entries, work.value, widest
        self.bytes = 8 * (entries + waiting + (widest + 32) * (widest + 4))
        weakref.finalize(self, library.release, self.pointer)  # type: ignore[union-attr]

    @classmethod
    def of(cls, crow: Array, col: Array, most: Limits | None = None) -> Structure | None:
        """That of a matrix of these symmetric rows, int32, with or without its diagonal.

        None where factors take more than the limits, or more memory than there is.
        """
        rows, limits = (_at(crow), _at(col)), Limits() if most is None else most
        call = _compiled.library().shape_of  # type: ignore[union-attr]
        shape = call(c_int64(len(crow) - 1), *rows, (c_double * 2)(*limits))
        found = None if shape is None else cls(shape)
        return found if found is not None and found.size.are_within(limits) else None

    @property
    def size(self) -> Limits:
        """The limits that these factors just keep."""
        return Limits(self.work, self.entries)


@dataclass(frozen=True, eq=False)
class SymmetricFactors:
    """L and D of a matrix.

    Attributes:
        numbers: of L and D. negative: entries of D below zero, as many as there are eigenvalues (Sylvester 1852).
    """

    structure: Structure
    nodes: int
    numbers: Array
    negative: int

    @classmethod
    def of(
        cls,
        structure: Structure,
        crow: Array,
        col: Array,
        values: Array,
        times: float = 1.0,
        diagonal: Array | None = None,
    ) -> SymmetricFactors:
        """Those of ``diagonal`` and ``times`` the values, float64, on rows of this structure.

        Raises:
            RuntimeError: an entry of D is zero or not finite. MemoryError.
        """
        numbers = np.empty(structure.entries)
        rows, last = (_at(x) for x in (crow, col, values)), (_at(diagonal), _at(numbers))
        call = _compiled.library().numbers_of  # type: ignore[union-attr]
        negative = call(structure.pointer, *rows, c_double(times), *last)
        if negative == NO_MEMORY:
            raise MemoryError
        if negative == SINGULAR:
            raise RuntimeError("a pivot is zero or not finite")
        return cls(structure, len(crow) - 1, numbers, negative)

    @property
    def nnz(self) -> int:
        """Numbers that L holds."""
        entries: int = self.structure.entries
        return entries

    def solve(self, b: Array) -> Array:
        """X of A X = B for float64 ``(n,)`` or ``(n, m)``. Raises: MemoryError."""
        b = np.ascontiguousarray(b)
        x = np.empty_like(b)
        where = (_at(part) for part in (self.numbers, b, x))
        columns = c_int64(b.size // max(self.nodes, 1))
        if not _compiled.library().solve_factors(self.structure.pointer, *where, columns):  # type: ignore[union-attr]
            raise MemoryError
        return x


_Space = _compiled.structure(
    "Space",
    "p:shape,l n:n,first,size,width,filled,blocks p:rows,projected,rest,gram d:dependent,least,enough "
    "p:work n:count,begin p:block,room",
)


class Space:
    """A block Krylov space of A⁻¹ that compiled loops extend, on memory of its owner; see `BlockKrylov`.

    Args:
        factors: of A. rows: float64 ``(first + size + width, N)``, in one piece. projected: ``(size, size)``, likewise.
        width: of a block, at most `BLOCK`. pivots: what `BlockKrylov` asks of blocks.

    Attributes:
        rest: ``(width, N)``, of the last products.
    """

    def __init__(
        self, factors: SymmetricFactors, rows: Tensor, projected: Tensor, width: int, pivots: tuple[float, float, float]
    ) -> None:
        (total, n), size, threads = rows.shape, len(projected), torch.get_num_threads()
        parts = max(1, min(threads, n // SPACE_PART))
        self._team, self.rest = (c_int64(parts), c_int64(threads)), rows.new_empty(width, n)
        work = rows.new_empty((parts + 1) * total * BLOCK)
        room = rows.new_empty((n + factors.structure.widest + 1) * BLOCK)
        gram = rows.new_empty(width, width)
        head = (factors.structure.pointer, factors.numbers.ctypes.data, n, total - size - width, size, width, 0, 0)
        blocks = (block.data_ptr() for block in (rows, projected, self.rest, gram))
        self._space = _Space(*head, *blocks, *pivots, work.data_ptr(), 0, 0, None, room.data_ptr())
        self._kept = (factors, rows, projected, gram, work, room)  # as long as their memory is read

    def follow(self, filled: int, source: Tensor) -> bool:
        """Make of rows ``(width, N)`` the block that follows the first ``filled`` vectors; whether that is sound."""
        self._space.filled = filled
        call = _compiled.library().next_block  # type: ignore[union-attr]
        return bool(call(ctypes.byref(self._space), c_void_p(source.data_ptr()), *self._team))

    def extend(self, filled: int, upto: int) -> tuple[int, int, bool]:
        """Take in the block that follows, and further ones up to so many vectors while there is room for another.

        Returns:
            The vectors then, the blocks taken in, and whether each but the first could be made of the rest before.
        """
        self._space.filled, self._space.blocks = filled, 0
        call = _compiled.library().extend_space  # type: ignore[union-attr]
        is_sound = bool(call(ctypes.byref(self._space), c_int64(upto), *self._team))
        return self._space.filled, self._space.blocks, is_sound
