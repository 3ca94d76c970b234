"""The kernel of `torch_lapeig.graph.minima.group_minima`: a product reduced tile by tile, on the chip."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 128, 128  # of a tile
SWATH = 8  # tiles of rows that are done with one tile of columns while it is in the cache
NOBODY = -(2**30)  # a number that no point has


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _tile(
    rows: Any,
    columns: Any,
    first: Any,
    second: Any,
    count: Any,
    groups: Any,
    own: Any,
    padding: Any,
    terms: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
) -> None:
    """One tile of R rows and C columns."""
    row_tiles, column_tiles = tl.cdiv(count, R), groups * G // C
    tile = tl.program_id(0)
    begin = tile // (S * column_tiles) * S
    height = tl.minimum(row_tiles - begin, S)
    here = tile % (S * column_tiles)
    row = ((begin + here % height) * R + tl.arange(0, R)).to(tl.int64)
    column = (here // height * C + tl.arange(0, C)).to(tl.int64)
    term = tl.arange(0, K)
    sums = tl.zeros((R, C), dtype=tl.float32)
    for k in range(0, terms, K):
        left = tl.load(rows + row[:, None] * terms + (k + term)[None, :], mask=row[:, None] < count, other=0.0)
        right = tl.load(columns + column[None, :] * terms + (k + term)[:, None])
        sums = tl.dot(left, right, sums, input_precision="ieee")
    point = column % G * groups + column // G
    sums = tl.where(point[None, :] == own + row[:, None], padding, sums)
    bits = (sums.to(tl.int32, bitcast=True) & -G) | (column % G).to(tl.int32)[None, :]
    keys = tl.reshape(bits.to(tl.float32, bitcast=True), (R, C // G, G))
    smallest = tl.min(keys, axis=2)
    others = tl.where(keys == smallest[:, :, None], float("inf"), keys)
    group = here // height * (C // G) + tl.arange(0, C // G)
    place = row[:, None] * groups + group[None, :]
    inside = (row[:, None] < count) & (group[None, :] < groups)
    tl.store(first + place, smallest, mask=inside)
    tl.store(second + place, tl.min(others, axis=2), mask=inside)


def minima_by_triton(
    rows: Tensor, columns: Tensor, own: int | None, group: int, padding: float
) -> tuple[Tensor, Tensor]:
    """`torch_lapeig.graph.minima.group_minima` on CUDA; on the CPU under ``TRITON_INTERPRET=1`` only, for tests.

    ``group``: columns of a group, a power of two. ``padding``: the value between a row and its own point.
    """
    if not rows.is_cuda:  # the interpreter multiplies bfloat16 wrongly; in float32 its products are exact
        rows, columns = rows.float(), columns.float()
    count, terms, groups = len(rows), rows.shape[1], len(columns) // group
    first, second = (torch.empty(count, groups, device=rows.device) for _ in range(2))
    inner = 64 if terms % 64 == 0 else 32
    grid = (triton.cdiv(count, ROWS) * (len(columns) // COLUMNS),)
    with torch.cuda.device_of(rows):
        _tile[grid](
            *(rows.contiguous(), columns.contiguous(), first, second),
            *(count, groups, NOBODY if own is None else own, padding),
            *(terms, ROWS, COLUMNS, inner, group, SWATH),
            num_warps=8,
            num_stages=3,
        )
    return first, second
