"""Symmetric matrices as they come, dense or sparse, definite or not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.eigen.normal import Entries
from torch_lapeig.graph.graph import canonical_csr
from torch_lapeig.graph.pattern import DensePattern, Pattern, SparsePattern
from torch_lapeig.support import checks


@dataclass(frozen=True, eq=False)
class Hermitian:
    """A complex Hermitian matrix as it was given."""

    given: Any


def is_matrix(value: Any) -> bool:
    """Return whether a value is a tensor, or a SciPy sparse matrix."""
    return isinstance(value, Tensor) or _is_of_scipy(value)


def operator_of_matrix(matrix: Any) -> Entries:
    """Return the operator of a real symmetric matrix, with gradients to the entries of a tensor; refuse other ones."""
    pattern, values = entries_of_matrix(matrix, "matrix")
    checks.check_floating(values, "matrix")
    checks.check_symmetric_matrix(values, back := pattern.transpose(values), "matrix")
    return operator_of_entries(pattern, (values + back) / -2)


def operator_of_entries(pattern: Pattern, values: Tensor) -> Entries:
    """Return the operator −M of a symmetric M on the edges of a pattern."""
    most = pattern.sum_rows(checks.primal(values).abs()).reshape(-1, pattern.shape[-1]).amax(1)
    bound = torch.where(most > 0, most, 1)
    return Entries(pattern, values, values.new_zeros(pattern.shape), bound=bound, definite=False, trusted=True)


def entries_of_matrix(matrix: Any, name: str) -> tuple[Pattern, Tensor]:
    """Return the pattern of a matrix ``(N, N)`` or ``(B, N, N)`` and its entries, with gradients; checked."""
    square, layout = tuple(matrix.shape), getattr(matrix, "layout", None)
    ranks = (2, 3) if layout == torch.strided else (2,)
    if len(square) not in ranks or square[-1] != square[-2] or math.prod(square) == 0:
        raise ValueError(f"{name} must have shape (N, N), or dense (B, N, N), with N ≥ 1, got {square}")
    if _is_of_scipy(matrix):
        matrix = canonical_csr(matrix, name)
        if matrix.dtype.kind not in "biufc":
            raise TypeError(f"{name} must hold numbers, got {matrix.dtype}")
        kind = torch.complex128 if matrix.dtype.kind == "c" else torch.float64
        coo = matrix.tocoo()
        index, values = torch.stack([torch.from_numpy(x).long() for x in coo.coords]), torch.from_numpy(coo.data)
        values = values.to(kind)
    elif layout == torch.strided:
        checks.check_outside_func(matrix, name)
        checks.check_finite(matrix, name, "check what it is computed from")
        return DensePattern(square[:-1]), matrix
    elif layout == torch.sparse_coo:
        matrix = matrix.coalesce()
        index, values = matrix.indices(), matrix.values()
    elif layout == torch.sparse_csr:
        count = matrix.crow_indices().diff()
        row = torch.arange(square[0], device=count.device).repeat_interleave(count)
        index = torch.stack([row, matrix.col_indices().long()])
        order = (index[0] * square[0] + index[1]).argsort()
        index, values = index[:, order], matrix.values()[order]
    else:
        raise TypeError(f"{name} must be dense, COO, CSR or of SciPy, got {layout}; use {name}.to_sparse_coo()")
    checks.check_finite(values, name, "check what it is computed from")
    return _symmetric_pattern(index, values, square[0], name)


def _symmetric_pattern(index: Tensor, values: Tensor, n: int, name: str) -> tuple[Pattern, Tensor]:
    """Return entries in CSR order without those whose mirror image is not stored; raise unless they are round-off."""
    pattern = SparsePattern.trusted(index[0], index[1], (n,))
    row, col = (part.index_select(0, pattern.reverse) for part in (pattern.row, pattern.col))
    if torch.equal(row, pattern.col) and torch.equal(col, pattern.row):
        return pattern, values
    lonely = ~torch.isin(index[0] * n + index[1], index[1] * n + index[0])
    size = checks.primal(values).abs()
    if (most := size[lonely].max()) > 10 * torch.finfo(values.dtype).eps ** 0.5 * size.max():
        raise ValueError(
            f"{name} must be symmetric, got entries that differ from their transpose by up to {most:.3g}; average the "
            "two, (A + A.T) / 2"
        )
    index, values = index[:, ~lonely], values[~lonely]
    return SparsePattern.trusted(index[0], index[1], (n,)), values


def _is_of_scipy(matrix: Any) -> bool:
    """Return whether this is a sparse matrix of SciPy, without loading SciPy."""
    return not isinstance(matrix, Tensor) and hasattr(matrix, "tocsr")


def is_complex(matrix: Any) -> bool:
    """Return whether the entries of a matrix are complex."""
    return matrix.dtype in (torch.complex64, torch.complex128) or getattr(matrix.dtype, "kind", "") == "c"
