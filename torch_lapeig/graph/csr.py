"""Products with matrices in torch's CSR storage, without gradients and unchecked."""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from torch_lapeig import native
from torch_lapeig.support.tuning import ALIGNMENT, rows_of_block


def csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return an unchecked CSR tensor."""
    _hear_beta_notice()
    crow, col, values = (aligned(part.contiguous()) for part in (crow, col, values))
    return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)


def multiply(
    matrix: Tensor,
    y: Tensor,
    other: Tensor | None = None,
    *,
    times: float = 1,
    plus: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Return times · M Y + plus · other of a CSR or dense matrix, without gradients; ``out`` may be ``other``."""
    if matrix.layout == torch.sparse_csr and y.device.type == "cpu" and matrix.shape[1] == len(y):
        parts = (matrix.crow_indices(), matrix.col_indices(), matrix.values())
        blocks = [x for x in (y, other, out) if x is not None]
        shape = (matrix.shape[0], y.shape[1])
        if all(x.shape == shape for x in blocks[1:]) and native.reads(*parts, *blocks):
            out = y.new_empty(shape) if out is None else out
            native.product(*parts, y, out, other, times=times, plus=plus)
            return out
    if other is None:
        product = matrix @ y if out is None else torch.mm(matrix, y, out=out)
        return product if times == 1 else product.mul_(times)
    return torch.addmm(other, matrix, y, beta=plus, alpha=times, out=out)


def sparse_tension(crow: Tensor, col: Tensor, values: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return Σ_j m_ij (y_j − y_i) ``(n, m)`` and Σ_j m_ij ‖y_j − y_i‖² ``(n,)``; None where nothing is compiled."""
    fits = len(col) == len(values) and len(crow) == len(y) + 1
    return native.tension(crow, col, values, y) if fits and native.reads(crow, col, values, y) else None


def with_diagonal(row: Tensor, col: Tensor, crow: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``crow`` and ``col`` with one more entry in each row, and the places of entries and diagonal.

    The new one stands after the entries up to the diagonal, which may be one of them.
    """
    node = torch.arange(len(crow), dtype=crow.dtype, device=crow.device)
    after = (col > row).to(crow.dtype)
    entry = torch.arange(len(col), device=col.device).add_(row).add_(after)
    count = torch.nn.functional.pad(after.cumsum(0, dtype=crow.dtype), (1, 0)).index_select(0, crow)  # before each row
    crow = crow + node
    diagonal = (crow[1:] - 1 - count.diff()).long()
    columns = col.new_empty(len(col) + len(diagonal)).index_copy_(0, entry, col)
    columns.index_copy_(0, diagonal, node[:-1].to(col.dtype))
    return crow, columns, entry, diagonal


def edge_products(crow: Tensor, row: Tensor, col: Tensor, x: Tensor, y: Tensor | None) -> Tensor:
    """Return x_i · y_j on the edges ``(E,)`` of CSR order between rows of X and of Y, without gradients.

    ‖x_i − x_j‖² where there is no Y.
    """
    other = x if y is None else y
    if x.shape[1] == other.shape[1] and native.reads(crow, col, x, other):
        out = x.new_empty(len(col))
        native.of_edges(crow, col, x, y, out)
        return out
    step = rows_of_block(3 * x.shape[1] * x.element_size(), x.device, "cache")
    ends = (
        (x.index_select(0, i), other.index_select(0, j)) for i, j in zip(row.split(step), col.split(step), strict=True)
    )
    return torch.cat([(a - b).square_().sum(1) if y is None else (a * b).sum(1) for a, b in ends])


def aligned(x: Tensor) -> Tensor:
    """Return ``x``, as a copy where its memory lacks the alignment for sparse products of accelerators.

    Kernels of cuSPARSE read 16 bytes at a time; a part of a batch or a row of odd length may begin anywhere.
    """
    return x.clone() if x.device.type != "cpu" and x.data_ptr() % ALIGNMENT else x


@functools.cache
def _hear_beta_notice() -> None:
    """Trigger torch's notice, given once a process, that its CSR storage is beta, and suppress it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = torch.zeros(2, dtype=torch.int32)
        torch.sparse_csr_tensor(index, index[:0], torch.zeros(0), (1, 1), check_invariants=False)
