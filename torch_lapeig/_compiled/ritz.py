"""What is asked of Ritz pairs between long loops: `ritz.c`."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig import _compiled
from torch_lapeig._compiled import LANE_BYTES, TYPES, Rows
from torch_lapeig._compiled.sparse import BLOCK

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
