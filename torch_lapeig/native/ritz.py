"""Ritz pairs of blocks of vectors: `ritz.c` and `small.c`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_lapeig.native import LINE, Rows, call, structure


def room_of_ritz(m: int) -> int:
    """Return how many float64 numbers the pairs of a block of ``m`` columns need beside the block."""
    return m * (4 * m + 10)


def least_of(dtype: torch.dtype) -> float:
    """Return the least diagonal entry of a Cholesky factor at which unit columns count as independent."""
    return 10 * math.sqrt(torch.finfo(dtype).eps)


def ritz_pairs(rows: Rows, x: Tensor, null: Tensor, bound: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return Ritz values ``(B, m)``, ascending, vectors ``(B, N, m)`` and residual norms ``(B, m)`` of a block's span.

    None where C cannot read it, or where columns are dependent to working precision in a graph.

    Args:
        rows: of B graphs. x: ``(B, N, m)``.
        null: orthonormal null vectors ``(B, N, c)``, or columns of zeros. They count as of the value −``bound``
            ``(B,)``, that no small value mixes with them, and no value is given back below 0.
    """
    if x.shape[2] == 0 or not rows.reads(x, null, bound):
        return None
    (graphs, n, m), threads = x.shape, torch.get_num_threads()
    x, null, bound = x.contiguous(), null.contiguous(), bound.contiguous()
    wide, teams, nulls = -(-m // LINE) * LINE, min(graphs, threads), null.shape[2]
    values, vectors, residuals = x.new_empty(graphs, m), x.new_empty(graphs, n, m), x.new_empty(graphs, m)
    work, sound = x.new_empty(teams * 3 * (n + m) * wide), x.new_empty(graphs, dtype=torch.int64)
    blocks = (x, null, bound, values, vectors, residuals, work, x.new_empty(teams * room_of_ritz(m)), sound)
    task = structure("ritz", rows.pointers, graphs, n, m, wide, min(nulls, m), nulls, *blocks, least_of(x.dtype))
    call("ritz", task, graphs, threads)
    return (values, vectors, residuals) if bool(sound.all()) else None
