"""The smallest of each row of a matrix."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lapeig._threads import in_parts
from torch_lapeig._tuning import PARTITION_COLUMNS, rows_of_block

PART = 2**17  # numbers of a matrix that a thread takes at least


def smallest_of_rows(values: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m smallest values of each row ``(R, N)`` and their columns, ``(R, m)`` each, in no order.

    Rows that are short are parted by NumPy on the processor, which does it with vector instructions; long ones, and on
    other devices, by `torch.topk`.
    """
    n = values.shape[1]
    if values.device.type != "cpu" or not m < n <= PARTITION_COLUMNS or values.numel() < PART:
        return _by_topk(values, m)
    found: tuple[Tensor, Tensor] = in_parts(partial(_by_partition, m=m), values, PART)  # type: ignore[assignment]
    return found


def sorted_rows(values: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m smallest values of each short row, ascending, and their columns."""
    if values.device.type != "cpu":
        return values.topk(m, largest=False)
    order = torch.from_numpy(values.numpy().argsort(axis=1)[:, :m])
    return values.gather(1, order), order


def _by_topk(values: Tensor, m: int) -> tuple[Tensor, Tensor]:
    smallest, columns = values.topk(m, largest=False, sorted=False)
    return smallest, columns


def _by_partition(values: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Block by block, in the cache, each parted in the same memory: new memory is cleared by the system."""
    blocks = values.split(rows_of_block(values[0].nbytes, values.device, "cache"))
    room = np.empty_like(blocks[0].numpy())
    smallest, columns = zip(*(_of_block(block, m, room[: len(block)]) for block in blocks), strict=True)
    return torch.cat(smallest), torch.cat(columns)


def _of_block(values: Tensor, m: int, room: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
    """By the m-th smallest of each row, which is compared with all; rows in which others equal it by `topk`."""
    array, (r, n) = values.numpy(), values.shape
    np.copyto(room, array)
    room.partition(m - 1, axis=1)
    near = array <= room[:, m - 1 : m]
    places = torch.from_numpy(np.flatnonzero(near))
    if len(places) != r * m:
        return _by_topk(values, m)
    columns = places.view(r, m) - n * torch.arange(r)[:, None]
    # Ascending: where the first and the last are in their row, so are those between.
    if columns[:, 0].amin() < 0 or columns[:, -1].amax() >= n:
        return _by_topk(values, m)
    return values.take(places).view(r, m), columns
