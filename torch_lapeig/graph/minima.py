"""Minima of groups of columns of a matrix product, with the member of the group that has them.

    key(r, c) = rows[r] · columns[c], its five lowest bits replaced by the number of c in its group of 32

One minimum over keys gives value and place together, and no two keys of a group are equal. So a product of millions of
columns leaves two numbers for each 32 of them. In torch operations, or where Triton is installed and the device runs
CUDA by a kernel that never writes the product (`torch_lapeig.graph.triton_minima`); both give the same contract.
"""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor

from torch_lapeig import _checks

GROUP = 32  # columns: members are counted in five bits
COLUMNS = 128  # of which a multiple is to be given
INNER = 32  # and of this many terms of a product
PADDING = 2.0**60  # values of columns that do not count; above all others, and finite: infinities have no bits to lose


def group_minima(rows: Tensor, columns: Tensor, own: int | None = None) -> tuple[Tensor, Tensor]:
    """The smallest and the second smallest key of each group of columns, float32 ``(R, C / 32)``.

    Args:
        rows: ``(R, K)`` bfloat16. columns: ``(C, K)`` bfloat16; 32 divides K, 128 divides C.
        own: None, or the number of the point that row 0 stands for, whose keys with itself are left out; the point of
            column c is c % 32 · C / 32 + c // 32, and row r stands for point ``own + r``.

    The product is accumulated in float32. Values are finite and at most 2⁶⁰ in size.
    """
    if kernel_is_chosen(rows.device):
        try:
            return _kernel(rows, columns, own)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of a compiler: there are as many kinds as there are compilers
            _give_up(f"{type(error).__name__}: {error}".splitlines()[0])
    return minima_by_torch(rows, columns, own)


def minima_by_torch(rows: Tensor, columns: Tensor, own: int | None = None) -> tuple[Tensor, Tensor]:
    """`group_minima` in torch operations, which write the product."""
    count, groups = len(rows), len(columns) // GROUP
    if rows.device.type == "cuda":
        keys = torch.mm(rows, columns.mT, out_dtype=torch.float32)
    else:  # bfloat16 has all its products in float32: the same sums, rounded in another order
        keys = rows.float() @ columns.float().mT
    if own is not None:
        point = torch.arange(own, own + count, device=rows.device)
        keys.scatter_(1, (point % groups * GROUP + point // groups)[:, None], PADDING)
    members = torch.arange(GROUP, dtype=torch.int32, device=rows.device)
    grouped = keys.view(torch.int32).view(count, groups, GROUP)
    grouped.bitwise_and_(~(GROUP - 1)).bitwise_or_(members)
    keys = keys.view(count, groups, GROUP)
    first = keys.amin(2)
    return first, keys.masked_fill_(keys == first[:, :, None], torch.inf).amin(2)


def members(keys: Tensor) -> Tensor:
    """The number in its group, int64, of the column that has each key."""
    return (keys.view(torch.int32) & (GROUP - 1)).long()


_failed: list[str] = []  # why the kernel is not used in this process


def kernel_is_chosen(device: torch.device) -> bool:
    """Whether the kernel does the work on a device."""
    return device.type == "cuda" and not _failed and _is_installed()


@functools.cache
def _is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def _kernel(rows: Tensor, columns: Tensor, own: int | None) -> tuple[Tensor, Tensor]:
    from torch_lapeig.graph.triton_minima import minima_by_triton

    return minima_by_triton(rows, columns, own, GROUP, PADDING)


def _give_up(reason: str) -> None:
    _failed.append(reason)
    _checks.warn(
        f"the Triton kernel of the neighbour search does not run here ({reason}); the search goes on in PyTorch's "
        "operations, which take longer",
        RuntimeWarning,
    )
