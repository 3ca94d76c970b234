"""Products with matrices in torch's CSR storage, without gradients and unchecked."""

from __future__ import annotations

import functools
import itertools
import math
import warnings

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from torch_lapeig import _compiled
from torch_lapeig._tuning import ALIGNMENT, BAG_COLUMNS, WIDE_BAG, product_terms, rows_of_block


def csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A CSR tensor, unchecked."""
    _hear_beta_notice()
    crow, col, values = (aligned(part.contiguous()) for part in (crow, col, values))
    return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)


def sparse_product(crow: Tensor, col: Tensor, values: Tensor, y: Tensor) -> Tensor:
    """M Y of a CSR matrix and ``(n, m)``, without gradients."""
    is_wide = y.dtype == torch.float32 and y.shape[1] >= WIDE_BAG
    if not is_wide and (found := _compiled_product((crow, col, values), y)) is not None:
        return found
    if y.device.type == "cpu" and y.dtype == torch.float32 and y.shape[1] >= BAG_COLUMNS:
        return embedding_bag(col, y, crow, mode="sum", per_sample_weights=values, include_last_offset=True)
    return csr(crow, col, values, (len(crow) - 1, len(y))) @ aligned(y)


def multiply(
    matrix: Tensor,
    y: Tensor,
    other: Tensor | None = None,
    *,
    times: float = 1,
    plus: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """times · M Y + plus · other of a CSR or dense matrix, without gradients; ``out`` may be ``other``."""
    if matrix.layout == torch.sparse_csr and y.device.type == "cpu" and matrix.shape[1] == len(y):
        parts = (matrix.crow_indices(), matrix.col_indices(), matrix.values())
        if (found := _compiled_product(parts, y, other, out, times, plus)) is not None:
            return found
    if other is None:
        product = torch.mm(matrix, y, out=out)
        return product if times == 1 else product.mul_(times)
    return torch.addmm(other, matrix, y, beta=plus, alpha=times, out=out)


def sparse_pull(crow: Tensor, col: Tensor, values: Tensor, y: Tensor) -> Tensor | None:
    """Σ_j m_ij (y_j − y_i) for ``(n, m)``, without gradients; None where nothing is compiled."""
    return _compiled_product((crow, col, values), y, is_pull=True)


def sparse_tension(crow: Tensor, col: Tensor, values: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """Σ_j m_ij (y_j − y_i) ``(n, m)`` and Σ_j m_ij ‖y_j − y_i‖² ``(n,)``; None where nothing is compiled."""
    fits = len(col) == len(values) and len(crow) == len(y) + 1
    return _compiled.tension(crow, col, values, y) if fits and _compiled.reads(crow, col, values, y) else None


def _compiled_product(
    parts: tuple[Tensor, Tensor, Tensor],
    y: Tensor,
    other: Tensor | None = None,
    out: Tensor | None = None,
    times: float = 1,
    plus: float = 1,
    is_pull: bool = False,
) -> Tensor | None:
    """`multiply` or `sparse_pull`; None where nothing is compiled for such tensors."""
    blocks = [x for x in (y, other, out) if x is not None]
    shape = (len(parts[0]) - 1, y.shape[1])
    fits = len(parts[1]) == len(parts[2]) and all(x.shape == shape for x in blocks[1:])
    if not (fits and _compiled.reads(*parts, *blocks)):
        return None
    out = y.new_empty(shape) if out is None else out
    _compiled.product(*parts, y, out, other, times=times, plus=plus, is_pull=is_pull)
    return out


def sparse_sparse_product(left: Tensor, right: Tensor) -> Tensor:
    """The product of two CSR matrices, in chunks of rows whose terms, before equal places are added, fit the device."""
    most = product_terms(left.device)
    if math.isinf(most):
        return left @ right
    crow, col, shape = left.crow_indices(), left.col_indices(), (left.shape[0], right.shape[1])
    # Terms of the rows before each.
    terms = right.crow_indices().diff().index_select(0, col).long().cumsum(0)
    before = torch.nn.functional.pad(terms, (1, 0)).index_select(0, crow)
    total = int(before[-1])
    if total <= most:
        return left @ right
    ends = torch.arange(1, math.ceil(total / most) + 1, device=col.device) * most
    cuts = [0, *(torch.searchsorted(before, ends, right=True) - 1).tolist(), shape[0]]
    parts = []
    for first, last in itertools.pairwise(sorted(set(cuts))):
        begin, end = int(crow[first]), int(crow[last])
        rows = csr(
            crow[first : last + 1] - begin, col[begin:end], left.values()[begin:end], (last - first, left.shape[1])
        )
        parts.append(rows @ right)
    counts = torch.cat([part.crow_indices().diff() for part in parts])
    crow = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(crow.dtype)
    col, values = (torch.cat(found) for found in zip(*((p.col_indices(), p.values()) for p in parts), strict=True))
    return csr(crow, col, values, shape)


def with_diagonal(row: Tensor, col: Tensor, crow: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``crow`` and ``col`` of a square matrix with one entry more in each row, and where entries and diagonal go there.

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


def edge_products(crow: Tensor, row: Tensor, col: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """x_i · y_j on the edges ``(E,)`` of CSR order between rows of X and of Y, without gradients."""
    if len(row) == 0:
        return x.new_zeros(0)
    if (found := _compiled_edges(crow, col, x, y)) is not None:
        return found
    if x.is_cuda or torch.backends.mkl.is_available():  # elsewhere torch has no sampled product
        sampled = csr(crow, col, x.new_zeros(len(row)), (len(x), len(y)))
        # Into itself: a new matrix would copy the pattern, which takes longer than the products.
        torch.sparse.sampled_addmm(sampled, x.contiguous(), y.contiguous().mT, beta=0, out=sampled)
        return sampled.values()
    step = rows_of_block(3 * x.shape[1] * x.element_size(), x.device)
    pairs = zip(row.split(step), col.split(step), strict=True)
    return torch.cat([(x.index_select(0, i) * y.index_select(0, j)).sum(1) for i, j in pairs])


def edge_lengths(crow: Tensor, col: Tensor, x: Tensor) -> Tensor | None:
    """‖x_i − x_j‖² on the edges, without gradients; None where nothing is compiled."""
    return _compiled_edges(crow, col, x, None)


def _compiled_edges(crow: Tensor, col: Tensor, x: Tensor, y: Tensor | None) -> Tensor | None:
    blocks = [block for block in (x, y) if block is not None]
    if not _compiled.reads(crow, col, *blocks) or blocks[-1].shape[1] != x.shape[1]:
        return None
    out = x.new_empty(len(col))
    _compiled.of_edges(crow, col, x, y, out)
    return out


def aligned(x: Tensor) -> Tensor:
    """``x``, as a copy where its memory does not begin as sparse products of accelerators may want it.

    Kernels of cuSPARSE read 16 bytes at a time; a part of a batch or a row of odd length may begin anywhere.
    """
    return x.clone() if x.device.type != "cpu" and x.data_ptr() % ALIGNMENT else x


@functools.cache
def _hear_beta_notice() -> None:
    """Torch warns once a process that its CSR storage is beta; have it said where nobody is bothered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = torch.zeros(2, dtype=torch.int32)
        torch.sparse_csr_tensor(index, index[:0], torch.zeros(0), (1, 1), check_invariants=False)
