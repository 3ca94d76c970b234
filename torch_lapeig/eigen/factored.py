"""Cosine similarities of all rows of a matrix, known by its two thin factors: no N × N matrix."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.graph.algebra import csr, edge_products, entries, multiply, product
from torch_lapeig.graph.graph import canonical_csr
from torch_lapeig.native.calls import memory_supported
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import cached_property, check_unchanged, usable

Similarity = Literal["cosine", "shifted"]
NEGATIVE = (
    'x must have no negative entries for similarity="cosine", got {:.3g}: similarities may be negative; use '
    'similarity="shifted" for (1 + cos)/2'
)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Positions of the entries of a sparse matrix X, or of Xᵀ with the values in the order of X."""

    crow: Tensor  # of X, with ``col`` in CSR order
    col: Tensor
    size: tuple[int, int]  # ``(N, D)`` of X
    is_flipped: bool = False  # whether this is Xᵀ

    def __len__(self) -> int:
        return len(self.col)

    @property
    def flipped(self) -> SparseRows:
        """Return the positions of the transpose."""
        return dataclasses.replace(self, is_flipped=not self.is_flipped)

    @cached_property
    def row(self) -> Tensor:
        """Return the row of each entry of X."""
        return torch.arange(self.size[0], device=self.col.device).repeat_interleave(self.crow.diff())

    def transpose(self, values: Tensor) -> Tensor:
        """Return the values of the transpose."""
        return values

    def direct_matmul(self, values: Tensor, y: Tensor) -> Tensor:
        """Return X Y or Xᵀ Y without gradients."""
        values, y = values.detach(), y.detach()
        if not self.is_flipped:
            return multiply(csr(self.crow, self.col, values, self.size), y)
        if not (checks.is_plain_host(values) and checks.is_plain_host(y)):
            return csr(self.crow, self.col, values, self.size).mT @ y
        return torch.from_numpy(self.to_scipy(values) @ y.numpy())

    def to_scipy(self, values: Tensor) -> Any:
        """Return X or Xᵀ in a format of SciPy, whose transposed products take a twentieth of the time of torch's."""
        from scipy.sparse import csr_array  # takes time to load

        rows = csr_array((values.numpy(), self.col.numpy(), self.crow.numpy()), shape=self.size)
        return rows.T if self.is_flipped else rows

    def direct_products(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the inner products of rows of two blocks at the entries, without gradients."""
        x, y = (y, x) if self.is_flipped else (x, y)
        return edge_products(self.crow, self.row, self.col, x.contiguous(), y.contiguous())


class Scaling(NamedTuple):
    """Numbers of each row, 0 for isolated rows."""

    degrees: Tensor  # d, ``(..., N)``
    root: Tensor  # d^-½, ``(..., N, 1)``
    own: Tensor  # the coefficient of a row in its own product: 1 with loops, 1 + 1/d without, ``(..., N, 1)``


class FactoredCosine(Operator):
    """Normalised Laplacian I − D^-½ W D^-½ of the cosine similarities of all rows, W = X̂ X̂ᵀ with unit rows X̂.

    Products take two thin products with X: neither time nor memory grows with N². `eigenpairs` solves it, with
    gradients to X; D^-½ times its eigenvectors are those of L y = λ D y. Spectral embeddings of single cells
    (SnapATAC2: Zhang et al., *Nature Methods* 2024) and of documents are of this kind.

    Rows of zeros, and rows that are orthogonal to all others, are isolated: they take no part, and have rows of zeros.

    Args:
        x: X ``(N, D)``, dense, also ``(B, N, D)``; torch's CSR or COO layout; or a SciPy sparse matrix. float32 or
            float64; SciPy matrices of whole numbers become float64. Gradients flow to a dense X and to the values of
            a sparse tensor.
        loops: whether the diagonal of W, all ones, stays. With it eigenvalues are at most 1, without it at most 2.
        similarity: ``"cosine"``, for X ≥ 0; ``"shifted"``: (1 + cos)/2 in its place, for rows of any signs.

    Raises: ValueError: an entry below zero for ``"cosine"``; columns of CSR that are not ascending; in `eigenpairs`, X
    that has changed in place.

    >>> from torch_lapeig import eigenpairs
    >>> counts = torch.tensor([[3.0, 1, 0], [2, 1, 0], [0, 1, 4], [0, 0, 2]])
    >>> operator = FactoredCosine(counts)
    >>> pairs = eigenpairs(operator, 2)
    >>> pairs.vectors[:, 1].sign()
    tensor([-1., -1.,  1.,  1.])
    """

    def __init__(self, x: Any, *, loops: bool = False, similarity: Similarity = "cosine") -> None:
        self._loops = checks.check_flag(loops, "loops")
        checks.check_choice(similarity, "similarity", ("cosine", "shifted"))
        self._is_shifted = similarity == "shifted"
        values, self._sparse = parts_of(x)
        checks.check_floating(values, "x")
        self.shape = values.shape[:-1] if self._sparse is None else self._sparse.size[:1]
        if values.ndim > 3 or values.ndim < (2 if self._sparse is None else 1) or 0 in self.shape:
            raise ValueError(f"x must have shape (N, D) or (B, N, D) with at least one row, got {tuple(x.shape)}")
        checks.check_finite(values, "x")
        if similarity == "cosine" and values.numel() and (least := float(values.detach().amin())) < 0:
            raise ValueError(NEGATIVE.format(least))
        self.parameters, self.dtype, self.device = (usable(values),), values.dtype, values.device
        self.check()

    def check(self) -> None:
        """Raise ValueError if X has changed in place since the operator was made, which keeps its degrees."""
        check_unchanged(self, "x has", *self.parameters)

    def double(self) -> FactoredCosine:
        """Return the operator of the same X in float64; itself if it is in float64."""
        if self.dtype == torch.float64:
            return self
        double: FactoredCosine = self._with(parameters=(usable(self.parameters[0].double()),), dtype=torch.float64)
        double.check()
        return double

    def _forth(self, x: Tensor, y: Tensor) -> Tensor:
        """Return X Y."""
        # Transposed, products of few columns with 3000 × 50 numbers take half of the time.
        return precision.matmul(y.mT, x.mT).mT if self._sparse is None else product(x, y, self._sparse)

    def _back(self, x: Tensor, y: Tensor) -> Tensor:
        """Return Xᵀ Y."""
        return precision.matmul(y.mT, x).mT if self._sparse is None else product(x, y, self._sparse.flipped)

    @cached_property
    def _both(self) -> tuple[Tensor, Tensor] | None:
        """Return sparse D^-½ X̂ and its transpose on the host, by whose rows products take half of the time."""
        if self._sparse is None or not checks.is_plain_host(self._scaled[0]):
            return None
        rows = csr(self._sparse.crow, self._sparse.col, self._scaled[0], self._sparse.size)
        turned = self._sparse.flipped.to_scipy(self._scaled[0]).tocsr()
        crow, col, values = map(torch.from_numpy, (turned.indptr, turned.indices, turned.data))
        return rows, csr(crow, col, values, turned.shape)

    def _at_entries(self, rows: Tensor) -> Tensor:
        """Return numbers of rows ``(..., N, 1)``, to multiply X with."""
        rows_of = self._sparse
        return rows if rows_of is None else rows[:, 0].repeat_interleave(rows_of.crow.diff(), output_size=len(rows_of))

    def _scaled_at(self, x: Tensor) -> tuple[Tensor, Scaling]:
        """Return D^-½ X̂ for rows X̂ of length 1, or zero, and the scaling; differentiable in X."""
        # Squares must neither overflow nor vanish, however different the rows are.
        bare, size, norms = checks.primal(x), x.new_zeros(*self.shape, 1), torch.linalg.vector_norm
        if self._sparse is not None:
            size = size[:, 0].scatter_reduce(0, self._sparse.row, bare.abs(), "amax")[:, None]
        elif x.numel():
            size = norms(bare, torch.inf, dim=-1, keepdim=True)  # without a copy
        x, present = x / self._at_entries(checks.next_power(size)), size[..., 0] > 0
        if self._sparse is not None:
            squares = self._forth(x.square(), x.new_ones(self._sparse.size[1], 1))
        else:
            squares = norms(x, dim=-1, keepdim=True).square()
        x = _times(x, self._at_entries(torch.where(size > 0, squares, 1).rsqrt()))
        sums = self._forth(x, self._back(x, x.new_ones(*self.shape, 1)))[..., 0]
        if self._is_shifted:
            sums = (sums + present.sum(-1, keepdim=True)) / 2 * present
        degrees = sums if self._loops else sums - present.to(sums.dtype)
        # The difference has the round-off of sums over columns.
        noise = (32 + x.shape[-2 if self._sparse is None else 0] ** 0.5) * torch.finfo(x.dtype).eps
        is_active = checks.primal(degrees) > noise * checks.primal(sums)
        root = (torch.where(is_active, degrees, 1).rsqrt() * is_active)[..., None]
        own = is_active[..., None].to(root.dtype) if self._loops else is_active[..., None] + root.square()
        return _times(x, self._at_entries(root)), Scaling(torch.where(is_active, degrees, 0), root, own)

    @cached_property
    def _scaled(self) -> tuple[Tensor, Scaling]:
        with torch.no_grad():
            x = checks.primal(self.parameters[0])
            # Products by columns take half of the time or less.
            return self._scaled_at(x.mT.contiguous().mT if self._sparse is None and x.device.type == "cpu" else x)

    @property
    def degrees(self) -> Tensor:
        """Return the sums of the rows of W, ``(N,)`` or ``(B, N)``, with gradients."""
        return self._scaled_at(*self.parameters)[1].degrees

    @property
    def active(self) -> Tensor:
        """Return the rows that are similar to another, bool ``(B, N)``."""
        return (self._scaled[1].degrees > 0).reshape(self.batch_size, -1)

    @cached_property
    def bound(self) -> Tensor:  # type: ignore[override]
        """Return 1 with loops; 1 plus the largest 1/d of each graph, and at most 2, without."""
        largest = self._scaled[1].root.reshape(self.batch_size, -1).amax(1).square()
        spread = torch.zeros_like(largest) if self._loops else largest.clamp_max(1)
        return 1 + spread + 32 * torch.finfo(self.dtype).eps

    @property
    def mean_value(self) -> Tensor:  # type: ignore[override]
        """Return the mean eigenvalue: 1 without loops, and at most 1 with them."""
        return torch.ones_like(self.bound)

    @cached_property
    def nullity(self) -> Tensor:
        """Return 1 for each graph: d^½ is a null vector, also of a disconnected graph, whose others are solved for."""
        return (self.active_count > 0).long()

    def null_vectors(self, m: int) -> Tensor:
        """Return d^½ of length 1, ``(B, N, m)``; zeros in further columns."""
        root = self._scaled[1].degrees.reshape(self.batch_size, -1, 1).sqrt()
        first = root / torch.linalg.vector_norm(root, dim=1, keepdim=True).clamp_min(torch.finfo(self.dtype).tiny)
        return torch.nn.functional.pad(first, (0, m - 1)) if m else first[..., :0]

    def matmul(self, y: Tensor) -> Tensor:
        """Return the product with ``y`` ``(B, N, m)``, or ``(N, m)`` of one graph."""
        return self._product(*self._scaled, y)

    def matmul_at(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return the product for another X; see `Operator.matmul_at`."""
        return self._product(*self._scaled_at(*parameters), y)

    @precision.full_precision
    def _product(self, scaled: Tensor, scaling: Scaling, y: Tensor) -> Tensor:
        block = y.reshape(*self.shape, y.shape[-1])
        if scaled is vars(self).get("_scaled", (None,))[0] and memory_supported(block) and (both := self._both):
            similar = multiply(both[0], multiply(both[1], block))
        else:
            similar = self._forth(scaled, self._back(scaled, block))
        if self._is_shifted:
            similar = (similar + scaling.root * (scaling.root * block).sum(-2, keepdim=True)) / 2
        return (scaling.own * block - similar).reshape(y.shape)


def _times(x: Tensor, factor: Tensor) -> Tensor:
    """Return x times a factor, in the memory of x where no gradient needs it."""
    return x * factor if torch.is_grad_enabled() else x.mul_(factor)


def parts_of(x: Any) -> tuple[Tensor, SparseRows | None]:
    """Return a dense X and None, or the values of a sparse X and their positions."""
    if not isinstance(x, Tensor) and hasattr(x, "tocsr"):
        x = canonical_csr(x, "x")
        data = x.data if x.data.dtype in (np.float32, np.float64) else x.data.astype(np.float64)
        values, crow, col = map(torch.from_numpy, (data, x.indptr, x.indices))
        return values, _sparse_rows(crow, col, x.shape)
    checks.check_instance(x, "x", Tensor, "a tensor or a SciPy sparse matrix")
    if x.layout == torch.strided:
        return x, None
    if x.layout not in (torch.sparse_coo, torch.sparse_csr) or x.ndim != 2 or x.dense_dim():
        raise TypeError(f"x must be dense, or CSR or COO of two axes, got {x.layout} of shape {tuple(x.shape)}")
    if x.layout == torch.sparse_csr:
        return x.values(), _sparse_rows(x.crow_indices(), x.col_indices(), x.shape)
    x = x.coalesce()
    row, col = x.indices()
    crow = torch.searchsorted(row.contiguous(), torch.arange(x.shape[0] + 1, device=row.device))
    return entries(x), _sparse_rows(crow, col, x.shape)


def _sparse_rows(crow: Tensor, col: Tensor, size: Sequence[int]) -> SparseRows:
    """Return a copy of the positions, checked, in int32 where it suffices, which is fastest in products."""
    is_right = len(crow) == size[0] + 1 and crow[0] == 0 and crow[-1] == len(col) and (crow.diff() >= 0).all()
    if not is_right or (len(col) and not 0 <= int(col.min()) <= int(col.max()) < size[1]):
        raise ValueError(f"x must have its entries in {size[0]} rows and {size[1]} columns")
    is_same_or_before = col[1:] <= col[:-1]
    starts = crow[1:-1].long()
    is_same_or_before[starts[(starts > 0) & (starts < len(col))] - 1] = False
    if is_same_or_before.any():
        way = "torch.sparse_coo_tensor(c.indices(), c.values(), c.shape).coalesce() of c = x.to_sparse_coo()"
        raise ValueError(f"x must have ascending columns in each row, each once; use {way}")
    # Loops trust these numbers: a copy, so that nobody writes to them.
    dtype = torch.int32 if max(len(col), *size) < 2**31 else torch.int64
    crow, col = (part.to(dtype, copy=True, memory_format=torch.contiguous_format) for part in (crow, col))
    return SparseRows(crow, col, (int(size[0]), int(size[1])))
