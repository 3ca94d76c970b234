"""Symmetric matrices as they come, dense or sparse, definite or not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph import products
from torch_lapeig.graph.graph import canonical_csr
from torch_lapeig.graph.pattern import DensePattern, Pattern, SparsePattern
from torch_lapeig.support import checks


@dataclass(frozen=True, eq=False)
class Hermitian:
    """A complex Hermitian matrix as it was given."""

    given: Any


def pencils_of(operators: SymmetricOperator, masses: Tensor) -> Iterator[tuple[SymmetricOperator, Tensor]]:
    """Yield the operator and the mass ``(N, N)`` of each graph of a batch, with gradients."""
    pattern, values = entries_of_matrix(masses, "mass")
    for b, bare in enumerate(operators.items()):
        edges, (own, part) = operators.pattern.item_of(b)[1], pattern.item_of(b)
        mass = values[part]
        if isinstance(own, SparsePattern):
            mass = products.assembled(torch.stack([own.row, own.col]).long(), mass, masses.shape[1:])
        yield bare._with(values=operators.values[edges], diagonal=operators.diagonal[b]), mass


def is_matrix(value: Any) -> bool:
    """Return whether a value is a tensor, or a SciPy sparse matrix."""
    return isinstance(value, Tensor) or hasattr(value, "tocsr")  # without loading SciPy


def operator_of_matrix(matrix: Any) -> SymmetricOperator:
    """Return the operator of a real symmetric matrix, with gradients to the entries of a tensor; refuse other ones."""
    pattern, values = entries_of_matrix(matrix, "matrix")
    return operator_of_entries(pattern, -values)


def operator_of_entries(pattern: Pattern, values: Tensor) -> SymmetricOperator:
    """Return the operator −M of a symmetric M on the edges of a pattern."""
    most = pattern.sum_rows(checks.primal(values).abs()).reshape(-1, pattern.shape[-1]).amax(1)
    bound = torch.where(most > 0, most, 1)
    operator = SymmetricOperator(pattern, values, values.new_zeros(pattern.shape), bound=bound, trusted=True)
    return operator._with(definite=False)


def entries_of_matrix(matrix: Any, name: str) -> tuple[Pattern, Tensor]:
    """Return the pattern of symmetric or Hermitian matrices ``(N, N)`` or ``(B, N, N)`` and their entries; checked.

    Gradients flow to the entries, of which each is the mean of itself and its mirror image.
    """
    square, layout = tuple(matrix.shape), getattr(matrix, "layout", None)
    ranks = (2, 3) if layout in (torch.strided, torch.sparse_coo) else (2,)
    if len(square) not in ranks or square[-1] != square[-2] or math.prod(square) == 0:
        raise ValueError(f"{name} must have shape (N, N), or dense or COO (B, N, N), with N ≥ 1, got {square}")
    checks.check_outside_func(matrix, name)
    pattern: Pattern
    if layout == torch.strided:
        pattern, values = DensePattern(square[:-1]), matrix
    elif layout in (torch.sparse_coo, torch.sparse_csr) and matrix.dense_dim() == 0:
        matrix = matrix.coalesce() if layout == torch.sparse_coo else matrix
        index, values = products.index_of(matrix).long(), products.entries(matrix)
    elif hasattr(matrix, "tocsr"):
        matrix = canonical_csr(matrix, name)
        if matrix.dtype.kind not in "biufc":
            raise TypeError(f"{name} must hold numbers, got {matrix.dtype}")
        kind = torch.complex128 if matrix.dtype.kind == "c" else torch.float64
        coo = matrix.tocoo()
        index, values = torch.stack([torch.from_numpy(x).long() for x in coo.coords]), torch.from_numpy(coo.data)
        values = values.to(kind)
    else:
        raise TypeError(f"{name} must be dense, COO, CSR or of SciPy, got {layout}; use {name}.to_dense()")
    if not values.is_complex():
        checks.check_floating(values, name)
    checks.check_finite(values, name, "check what it is computed from")
    if layout != torch.strided:
        pattern, values = _both_ways(index, values, square[:-1])
    back = pattern.transpose(values).conj()
    checks.check_symmetric_matrix(values, back, name, pattern)
    return pattern, values + (back - values) / 2  # (a + b) / 2 may overflow


def _both_ways(index: Tensor, values: Tensor, shape: tuple[int, ...]) -> tuple[SparsePattern, Tensor]:
    """Return entries in CSR order, with a 0 for each whose mirror image alone is stored."""
    row, col = index[-2:] + (shape[-1] * index[0] if len(shape) > 1 else 0)
    pattern = SparsePattern.trusted(row, col, shape)
    there, back = (part.index_select(0, pattern.reverse) for part in (pattern.row, pattern.col))
    if torch.equal(there, pattern.col) and torch.equal(back, pattern.row):
        return pattern, values
    total = math.prod(shape)
    keys, place = torch.cat([row * total + col, col * total + row]).unique(return_inverse=True)
    pattern = SparsePattern.trusted(keys // total, keys % total, shape)
    return pattern, values.new_zeros(len(keys)).index_add(0, place[: len(row)], values)


def is_complex(matrix: Any) -> bool:
    """Return whether the entries of a matrix are complex."""
    return matrix.dtype in (torch.complex64, torch.complex128) or getattr(matrix.dtype, "kind", "") == "c"
