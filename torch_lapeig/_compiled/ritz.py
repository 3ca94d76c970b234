"""What is asked of Ritz pairs between long loops: `ritz.c`."""

from __future__ import annotations

import ctypes
import math
from ctypes import c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig import _compiled
from torch_lapeig._compiled import LANE_BYTES, SMALL, TYPES, Rows
from torch_lapeig._compiled.sparse import BLOCK

RITZ = {
    dtype: _compiled.structure(
        "Ritz",
        "a:a n:graphs,n,m,wide,down,across,nulls,of_null,count,ld "
        "p:x,null,bound,rows,values,vectors,residuals,work,room,sound r:least",
        real,
    )
    for dtype, (_, real) in TYPES.items()
}
_CHECKS = {
    dtype: _compiled.structure(
        "Check", "a:a n:n,k,wide,nulls,down,across p:given,null,vectors,work,quotients,residuals d:skewness"
    )
    for dtype in TYPES
}


def ritz_values(projection: Tensor, m: int, gram: Tensor) -> tuple[Tensor, Tensor] | None:
    """Ritz values ``(m,)``, ascending, and norms of residuals, without vectors: a third of the time of these.

    Args:
        projection: of A on orthonormal vectors, float64, rows in one piece; that of the first ``m`` counts, and of it
            the lower triangle.
        gram: ``(p, p)``, of what the products of the last p of them have outside the space.

    Returns:
        None where nothing is compiled, or the projection is for others: not finite, or p beyond 4.
    """
    ends, library = len(gram), _compiled.library()
    if library is None or ends > min(m, BLOCK) or not _compiled.is_readable(projection, gram):
        return None
    values, residuals, room = projection.new_empty(m), projection.new_empty(m), projection.new_empty(m * (m + 8))
    sizes = (c_int64(x) for x in (projection.stride(0), m, ends))
    at = (c_void_p(x.data_ptr()) for x in (gram.contiguous(), values, residuals, room))
    is_sound = library.ritz_values(c_void_p(projection.data_ptr()), *sizes, *at)
    return (values, residuals) if is_sound else None


def pairs_of_projection(projection: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """Eigenvalues ``(m,)``, ascending, and the first vectors ``(m, count)`` of a small projection ``(m, m)``, float64.

    The lower triangle is read. Values are right to round-off of the largest, as Ritz values have to be, and no further:
    LAPACK knows more of the small values of matrices whose entries differ by decades. None where that is to be asked.
    """
    m = len(projection)
    if not 0 < m <= SMALL or _compiled.library() is None or not _compiled.is_readable(projection):
        return None
    if projection.dtype != torch.float64 or projection.stride(1) != 1:
        return None
    values, vectors = projection.new_empty(m), projection.new_empty(m, count)
    blocks = (projection, values, vectors, projection.new_empty(m * (2 * m + 8)))
    sizes, at = (c_int64(x) for x in (m, projection.stride(0), count)), (c_void_p(x.data_ptr()) for x in blocks)
    return (values, vectors) if _compiled.library().eigh_of_one(*sizes, *at) else None  # type: ignore[union-attr]


def room_of_ritz(m: int) -> int:
    """Numbers of float64 that the pairs of one block of ``m`` columns need beside its own."""
    return m * (4 * m + 10)


def least_of(dtype: torch.dtype) -> float:
    """Least entry on the diagonal of a Cholesky factor of columns of length 1 that are not dependent."""
    return 10 * math.sqrt(torch.finfo(dtype).eps)


def ritz_pairs(
    rows: Rows, x: Tensor, null: Tensor | None = None, bound: Tensor | None = None, outside: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Ritz values ``(B, m)``, ascending, vectors ``(B, N, m)`` and residual norms ``(B, m)`` of the span of a block.

    None where C cannot read it, and where columns are dependent to working precision, of a graph or beside those that
    they have to be outside of.

    Args:
        rows: of B graphs. x: ``(B, N, m)``.
        null: orthonormal null vectors ``(B, N, c)``, or columns of zeros. They count as of the value −``bound``
            ``(B,)``, that no small value mixes with them, and no value is given back below 0.
        outside: orthonormal rows ``(c, N)`` of one graph, of which the pairs shall have no part.
    """
    given = [block for block in (x, null, bound, outside) if block is not None]
    if x.shape[2] == 0 or not rows.reads(*given):
        return None
    (graphs, n, m), lanes = x.shape, LANE_BYTES // x.element_size()
    x = x if graphs == 1 else x.contiguous()
    null, bound = (None if block is None else block.contiguous() for block in (null, bound))
    if outside is not None and outside.stride(1) != 1:
        outside = outside.contiguous()
    wide, threads = -(-m // lanes) * lanes, c_int64(torch.get_num_threads())
    teams, nulls = min(graphs, threads.value), 0 if null is None else null.shape[2]
    values, vectors, residuals = x.new_empty(graphs, m), x.new_empty(graphs, n, m), x.new_empty(graphs, m)
    step = (0, 0) if outside is None else (len(outside), outside.stride(0))
    work, sound = x.new_empty(teams * (3 * (n + m) * wide + step[0] * lanes)), x.new_empty(graphs, dtype=torch.int64)
    room = x.new_empty(teams * room_of_ritz(m), dtype=torch.float64)
    strides = x.stride()[1:] if graphs == 1 else (m, 1)
    sizes = (graphs, n, m, wide, *strides, min(nulls, m), nulls, *step)
    at = [None if block is None else block.data_ptr() for block in (x, null, bound, outside)]
    out = (block.data_ptr() for block in (values, vectors, residuals, work, room, sound))
    task = RITZ[x.dtype](rows.pointers, *sizes, *at, *out, least_of(x.dtype))
    getattr(_compiled.library(), f"ritz_{TYPES[x.dtype][0]}")(ctypes.byref(task), c_int64(graphs), threads)
    return (values, vectors, residuals) if bool(sound.all()) else None


def pairs_of_space(
    rows: Rows, basis: Tensor, rest: Tensor, projected: Tensor, columns: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """`ritz_pairs` ``(m,)``, ``(N, m)``, ``(m,)`` of B times the vectors of the largest Ritz values of B in a space.

    Args:
        rows: A, of one graph. basis: of the space, orthonormal rows ``(c, N)``, each in one piece. rest: what the
            products of the last of them have outside, ``(p, N)``. projected: B in the space, float64, of rows in one
            piece. columns: m, at most c.

    Returns:
        None where C cannot read these or columns are dependent.
    """
    (count, n), ends, lanes = basis.shape, len(rest), LANE_BYTES // basis.element_size()
    if not (0 < columns <= count <= SMALL and rows.reads(basis, rest) and projected.dtype == torch.float64):
        return None
    wide, rest = -(-columns // lanes) * lanes, rest.contiguous()
    values, vectors = basis.new_empty(2, columns), basis.new_empty(n, columns)
    numbers = basis.new_empty((4 * n + 3 * columns + count + ends) * wide)
    room = projected.new_empty(room_of_ritz(columns) + count * (2 * count + 9))
    sound, size = torch.empty(1, dtype=torch.int64), basis.element_size()
    x, residuals, work = numbers.data_ptr(), values.data_ptr() + size * columns, numbers.data_ptr() + size * n * wide
    coordinates = work + size * 3 * (n + columns) * wide
    sizes = (1, n, columns, wide, wide, 1, 0, 0, 0, 0)
    out = (values.data_ptr(), vectors.data_ptr(), residuals, work, room.data_ptr(), sound.data_ptr())
    task = RITZ[basis.dtype](rows.pointers, *sizes, x, None, None, None, *out, least_of(basis.dtype))
    space = (c_int64(count), c_void_p(projected.data_ptr()), c_int64(projected.stride(0)), c_int64(basis.stride(0)))
    others = (c_void_p(basis.data_ptr()), c_int64(ends), c_void_p(rest.data_ptr()), c_void_p(coordinates))
    call = getattr(_compiled.library(), f"pairs_of_space_{TYPES[basis.dtype][0]}")
    is_sound = call(
        ctypes.byref(task), c_void_p(x), *space, *others, c_void_p(room.data_ptr() + 8 * room_of_ritz(columns))
    )
    return (values[0], vectors, values[1]) if is_sound else None


class Measured(NamedTuple):
    """Unit vectors ``(N, k)``, their Rayleigh quotients and norms of residuals ``(k,)``, and the largest entry of
    |VᵀV − 1|, ``()``."""

    vectors: Tensor
    quotients: Tensor
    residuals: Tensor
    skewness: Tensor


def measured(rows: Rows, given: Tensor, null: Tensor) -> Measured | None:
    """What columns have outside null vectors, and what is true of it; null vectors in the place of the first columns.

    Each is so turned that the first of its largest numbers is positive; see `torch_lapeig.graph.nodes.signs`.

    Args:
        rows: of one graph. given: ``(N, k)``. null: ``(N, c)``, orthonormal, of no more columns.
    """
    if not (rows.reads(null) and _compiled.is_readable(given) and given.dtype == null.dtype):
        return None
    (n, k), nulls, lanes = given.shape, null.shape[1], LANE_BYTES // given.element_size()
    wide, null = -(-k // lanes) * lanes, null.contiguous()
    numbers = torch.empty(2, wide, dtype=torch.float64)
    vectors, work = given.new_empty(n, k), given.new_empty((2 * n + nulls + k) * wide)
    at, out = (x.data_ptr() for x in (given, null, vectors, work)), numbers.data_ptr()
    task = _CHECKS[given.dtype](rows.pointers, n, k, wide, nulls, *given.stride(), *at, out, out + 8 * wide, 0.0)
    getattr(_compiled.library(), f"check_{TYPES[given.dtype][0]}")(ctypes.byref(task))
    quotients, residuals = numbers[:, :k].to(given.dtype)
    return Measured(vectors, quotients, residuals, quotients.new_tensor(task.skewness))
