"""Ritz pairs of blocks of vectors, and Ritz values of a projection: `ritz.c` and `small.c`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_lapeig import _compiled
from torch_lapeig._compiled import LINE_BYTES, Rows, call, structure
from torch_lapeig._compiled.sparse import BLOCK


def ritz_values(projection: Tensor, m: int, gram: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return Ritz values ``(m,)``, ascending, and residual norms, in a third of the time that vectors take.

    Args:
        projection: of A on orthonormal vectors, float64, contiguous rows; its first ``m`` rows and columns count,
            the lower triangle.
        gram: ``(p, p)``, Gram matrix of the last p products outside the space.

    Returns:
        None where nothing is compiled, or the projection is for others: not finite, or p beyond 4.
    """
    ends = len(gram)
    if _compiled.library() is None or ends > min(m, BLOCK) or not _compiled.is_readable(projection, gram):
        return None
    values, residuals, room = projection.new_empty(m), projection.new_empty(m), projection.new_empty(m * (m + 8))
    sizes = (projection.stride(0), m, ends)
    is_sound = call("ritz_values", projection, *sizes, gram.contiguous(), values, residuals, room)
    return (values, residuals) if is_sound else None


def room_of_ritz(m: int) -> int:
    """Return how many float64 numbers the pairs of a block of ``m`` columns need beside the block."""
    return m * (4 * m + 10)


def least_of(dtype: torch.dtype) -> float:
    """Return the least diagonal entry of a Cholesky factor at which unit columns count as independent."""
    return 10 * math.sqrt(torch.finfo(dtype).eps)


def ritz_pairs(
    rows: Rows, x: Tensor, null: Tensor | None = None, bound: Tensor | None = None, outside: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return Ritz values ``(B, m)``, ascending, vectors ``(B, N, m)`` and residual norms ``(B, m)`` of a block's span.

    None where C cannot read it, or where columns are dependent to working precision, in a graph or on the columns that
    they have to be orthogonal to.

    Args:
        rows: of B graphs. x: ``(B, N, m)``.
        null: orthonormal null vectors ``(B, N, c)``, or columns of zeros. They count as of the value −``bound``
            ``(B,)``, that no small value mixes with them, and no value is given back below 0.
        outside: orthonormal rows ``(c, N)`` of one graph, of which the pairs shall have no part.
    """
    given = [block for block in (x, null, bound, outside) if block is not None]
    if x.shape[2] == 0 or not rows.reads(*given):
        return None
    (graphs, n, m), lanes = x.shape, LINE_BYTES // x.element_size()
    x = x if graphs == 1 else x.contiguous()
    null, bound = (None if block is None else block.contiguous() for block in (null, bound))
    if outside is not None and outside.stride(1) != 1:
        outside = outside.contiguous()
    wide, threads = -(-m // lanes) * lanes, torch.get_num_threads()
    teams, nulls = min(graphs, threads), 0 if null is None else null.shape[2]
    values, vectors, residuals = x.new_empty(graphs, m), x.new_empty(graphs, n, m), x.new_empty(graphs, m)
    step = (0, 0) if outside is None else (len(outside), outside.stride(0))
    work, sound = x.new_empty(teams * (3 * (n + m) * wide + step[0] * lanes)), x.new_empty(graphs, dtype=torch.int64)
    room = x.new_empty(teams * room_of_ritz(m), dtype=torch.float64)
    strides = x.stride()[1:] if graphs == 1 else (m, 1)
    sizes = (graphs, n, m, wide, *strides, min(nulls, m), nulls, *step)
    blocks = (x, null, bound, outside, values, vectors, residuals, work, room, sound)
    task = structure("ritz", rows.pointers, *sizes, *blocks, least_of(x.dtype), dtype=x.dtype)
    call("ritz", task, graphs, threads, dtype=x.dtype)
    return (values, vectors, residuals) if bool(sound.all()) else None
