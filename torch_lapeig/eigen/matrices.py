"""Symmetric matrices as they come, dense or sparse, definite or not, and the negatives of operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.eigen.function import ends_of_spectrum
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.graph import canonical_csr
from torch_lapeig.graph.pattern import DensePattern, Pattern, SparsePattern
from torch_lapeig.support import checks

SMALL_NODES = 256  # up to which LAPACK, which needs no bound, is faster than the twenty products of a close one


@dataclass(frozen=True, eq=False)
class Hermitian:
    """A complex Hermitian matrix as it was given."""

    given: Any


@dataclass(frozen=True, eq=False)
class ShiftedOperator(SymmetricOperator):
    """Operator A + c I of a symmetric matrix A that may be indefinite; see `Operator.spectral_shift`."""

    spectral_shift: Tensor | None = None

    def double(self) -> ShiftedOperator:
        """Return the operator in float64, shifted so that no eigenvalue is negative."""
        wide = super().double()
        assert isinstance(wide, ShiftedOperator)
        return wide if wide.spectral_shift is not None else wide._shifted()

    def scaled(self, factor: Tensor) -> ShiftedOperator:
        """Return S A S, shifted anew; see `Operator.scaled`."""
        bare: SymmetricOperator = self
        if self.spectral_shift is not None:
            bare = self._with(diagonal=self.diagonal - self._at_nodes(self.spectral_shift), spectral_shift=None)
        found = SymmetricOperator.scaled(bare, factor)
        assert isinstance(found, ShiftedOperator)
        return found._shifted()

    def _at_nodes(self, shift: Tensor) -> Tensor:
        return (shift[:, None] * self.active).reshape(self.shape)

    def _over(self, unit: Tensor) -> SymmetricOperator:
        shift = None if self.spectral_shift is None else self.spectral_shift / unit
        return super()._over(unit)._with(spectral_shift=shift)

    @torch.no_grad()
    def _shifted(self) -> ShiftedOperator:
        """Return the operator with a shift and a bound: Gershgorin's, Frobenius's, or those of Lanczos if closer."""
        values, diagonal = checks.primal(self.values), checks.primal(self.diagonal)
        others = self.pattern.without_loops(values)
        centre = diagonal - self.pattern.sum_loops(values)
        radius = self.pattern.sum_rows(others.abs())
        least = (centre - radius).reshape(self.batch_size, -1).amin(1)
        most = (centre + radius).reshape(self.batch_size, -1).amax(1)
        unit = checks.next_power(torch.maximum(least.abs(), most.abs()))
        scaled = self.frozen()._over(unit)  # squares neither overflow nor vanish
        if self.num_nodes > SMALL_NODES:
            ends = ends_of_spectrum(scaled, seed=0).times(unit)
            lower, upper = ends.lower, ends.upper
        else:
            squares = self.pattern.sum_rows(self.pattern.without_loops(scaled.values).square())
            squares = squares.reshape(self.batch_size, -1).sum(1)
            centre = centre.reshape(self.batch_size, -1) / unit[:, None]
            upper = unit * (squares + centre.square().sum(1)).sqrt()
            lower = -upper
        least, most = torch.maximum(least, lower), torch.minimum(most, upper)
        shift = -least.clamp_max(0)
        bound = torch.where(most + shift > 0, most + shift, 1)
        with torch.enable_grad():
            return self._with(diagonal=self.diagonal + self._at_nodes(shift), bound=bound, spectral_shift=shift)  # type: ignore[return-value]


class NegatedProducts(Operator):
    """b I − A for an operator A with the bound b that gives products only: its smallest pairs are the largest of A."""

    def __init__(self, inside: Operator) -> None:
        self.shape, self.dtype, self.device, self.bound = inside.shape, inside.dtype, inside.device, inside.bound
        self._inside = inside

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Return the tensors of A."""
        return self._inside.parameters

    @property
    def active(self) -> Tensor:
        """Return the nodes that take part; see `Operator.active`."""
        return self._inside.active

    @property
    def spectral_shift(self) -> Tensor:
        """Return b, less the shift of A; see `Operator.spectral_shift`."""
        return _shift_of_negative(self._inside)

    def in_unit(self) -> tuple[Operator, Tensor | None]:
        """Return this operator over a power of two near its bound; see `Operator.in_unit`."""
        inside, unit = self._inside.in_unit()
        return (self, None) if unit is None else (NegatedProducts(inside), unit)

    def matmul_at(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return b Y − A Y; see `Operator.matmul_at`."""
        bound = self.bound.reshape(-1, *[1] * (len(self.shape)))
        inside, bound = self._inside, bound if y.ndim > len(self.shape) and len(self.shape) > 1 else self.bound[0]
        return bound * y - (inside.matmul_at(parameters, y) if parameters else inside.matmul(y))


def negated(operator: Operator) -> Operator:
    """Return an operator whose smallest pairs, less its shift, are those of −A, without known null vectors."""
    if not isinstance(operator, SymmetricOperator):
        return NegatedProducts(operator)
    return ShiftedOperator(
        operator.pattern,
        -operator.values,
        (operator.bound[:, None] * operator.active).reshape(operator.shape) - operator.diagonal,
        bound=operator.bound,
        active=operator.active,
        given=operator.given,
        trusted=True,
        spectral_shift=_shift_of_negative(operator),
    )


def _shift_of_negative(operator: Operator) -> Tensor:
    shift = operator.spectral_shift
    return operator.bound if shift is None else operator.bound - shift


def is_matrix(value: Any) -> bool:
    """Return whether a value is a tensor, or a SciPy sparse matrix."""
    return isinstance(value, Tensor) or _is_of_scipy(value)


def operator_of_matrix(matrix: Any) -> ShiftedOperator:
    """Return the operator of a real symmetric matrix, with gradients to the entries of a tensor; refuse other ones."""
    pattern, values = entries_of_matrix(matrix, "matrix")
    checks.check_floating(values, "matrix")
    checks.check_symmetric_matrix(values, back := pattern.transpose(values), "matrix")
    return operator_of_entries(pattern, (values + back) / -2)


def operator_of_entries(pattern: Pattern, values: Tensor) -> ShiftedOperator:
    """Return the operator −M of a symmetric M on the edges of a pattern."""
    most = pattern.sum_rows(checks.primal(values).abs()).reshape(-1, pattern.shape[-1]).amax(1)
    bound = torch.where(most > 0, most, 1)
    return ShiftedOperator(pattern, values, values.new_zeros(pattern.shape), bound=bound, trusted=True)


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
