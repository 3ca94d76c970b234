"""Matrices as they come, dense or sparse, symmetric or Hermitian, definite or not.

A Hermitian matrix is solved as a real symmetric one of twice the size. For H = P + iR the real matrix A of 2 × 2 blocks
[[P_jl, −R_jl], [R_jl, P_jl]] acts on (Re z_j, Im z_j) as H on z. It has each eigenvalue of H twice: for the real forms
of z and of iz. So 2k real pairs V, Λ are solved for, and k complex pairs are combined of them. Let Z ``(N, 2k)`` be the
complex form of V. Zᴴ Z has k eigenvalues 2 and k eigenvalues 0. With the eigenvectors E of the former, Q = Z E / √2 is
an orthonormal basis of the complex eigenspaces. The eigenvectors S of Qᴴ H Q separate these: Y = Q S. Where k splits a
multiple eigenvalue, 2k real pairs hold a part of its eigenspace, and Zᴴ Z has eigenvalues between 0 and 2: the k
largest are used.

Gradients. E and S are constants: Y = Z W / √2 and Yᴴ H Y = Wᴴ Λ W with W = E S. The rule of the real pairs leaves out
rotations within the eigenspaces of A. Such a rotation of Z turns Y, to first order, by a unitary matrix within the
eigenspace of H, so that losses which do not depend on the basis of an eigenspace have exact gradients. The phase that
makes an entry of each vector real is differentiated, so that vectors of simple eigenvalues may be used in any loss.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.eigen.gradient.rule import values_of
from torch_lapeig.eigen.problem import in_unit
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph import algebra
from torch_lapeig.graph.graph import canonical_csr
from torch_lapeig.graph.pattern import DensePattern, Pattern, SparsePattern, first_of_largest
from torch_lapeig.support import checks


def is_matrix(value: Any) -> bool:
    """Return whether a value is a tensor, or a SciPy sparse matrix."""
    return isinstance(value, Tensor) or hasattr(value, "tocsr")  # without loading SciPy


def operator_of(matrix: Any, name: str) -> SymmetricOperator:
    """Return the operator of symmetric matrices, with gradients to their entries; an operator itself."""
    is_one = isinstance(matrix, SymmetricOperator)
    return matrix if is_one else operator_of_entries(*entries_of_matrix(matrix, name))


def operator_of_entries(pattern: Pattern, entries: Tensor) -> SymmetricOperator:
    """Return the operator of a symmetric matrix on the edges of a pattern, with gradients to its entries."""
    most = pattern.sum_rows(checks.primal(entries).abs()).reshape(-1, pattern.shape[-1]).amax(1)
    bound, nothing = torch.where(most > 0, most, 1), entries.new_zeros(pattern.shape)
    return SymmetricOperator(pattern, -entries, nothing, bound=bound, trusted=True)._with(definite=False)


def entries_of_matrix(matrix: Any, name: str) -> tuple[Pattern, Tensor]:
    """Return the pattern of symmetric or Hermitian matrices ``(N, N)`` or ``(B, N, N)`` and their entries; checked."""
    # Gradients flow to the entries, of which each is the mean of itself and its mirror image.
    square, layout = tuple(matrix.shape), getattr(matrix, "layout", None)
    ranks = (2, 3) if layout in (torch.strided, torch.sparse_coo) else (2,)
    if len(square) not in ranks or square[-1] != square[-2] or math.prod(square) == 0:
        raise ValueError(f"{name} must have shape (N, N), or dense or COO (B, N, N), with N ≥ 1, got {square}")
    checks.check_outside_func(matrix, name)
    pattern: Pattern
    if layout == torch.strided:
        pattern, values = DensePattern(square[:-1]), matrix
    else:
        index, values = coordinates(matrix, name)
    if not values.is_complex():
        checks.check_floating(values, name)
    checks.check_finite(values, name, "check what it is computed from")
    if layout != torch.strided:
        pattern, values = _both_ways(index, values, square[:-1])
    back = pattern.transpose(values).conj()
    checks.check_symmetric_matrix(values, back, name, pattern)
    return pattern, values + (back - values) / 2  # (a + b) / 2 may overflow


def coordinates(matrix: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return places and values of the entries of a sparse matrix of torch, with gradients, or of SciPy, as float64."""
    layout = getattr(matrix, "layout", None)
    if layout in (torch.sparse_coo, torch.sparse_csr) and matrix.dense_dim() == 0:
        matrix = matrix.coalesce() if layout == torch.sparse_coo else matrix
        return algebra.index_of(matrix).long(), algebra.entries(matrix)
    if not hasattr(matrix, "tocsr"):
        raise TypeError(f"{name} must be dense, COO, CSR or of SciPy, got {layout}; use {name}.to_dense()")
    coo = canonical_csr(matrix, name).tocoo()
    if coo.dtype.kind not in "biufc":
        raise TypeError(f"{name} must hold numbers, got {coo.dtype}")
    kind = torch.complex128 if coo.dtype.kind == "c" else torch.float64
    return torch.stack([torch.from_numpy(x).long() for x in coo.coords]), torch.from_numpy(coo.data).to(kind)


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


def real_form_of_matrix(matrix: Any, name: str) -> tuple[SymmetricOperator, tuple[int, ...]]:
    """Return the real form of Hermitian matrices, and their shape ``(N,)`` or ``(B, N)``."""
    pattern, values = entries_of_matrix(matrix, name)
    real, imaginary = (values.real, values.imag) if values.is_complex() else (values, torch.zeros_like(values))
    form = real_form(pattern, real[..., None], imaginary[..., None], pattern.shape[:-1])
    return operator_of_entries(*form), pattern.shape


def real_form_of_mass(mass: Any, shape: tuple[int, ...]) -> Any:
    """Return the real form of a mass, a diagonal of a shape ``(N,)`` or ``(B, N)`` or matrices."""
    if not is_matrix(mass):
        return mass
    if isinstance(mass, Tensor) and tuple(mass.shape) == shape:
        return mass.repeat_interleave(2, -1)
    if tuple(mass.shape) != (*shape, shape[-1]):
        raise ValueError(f"mass must have shape {shape} or {(*shape, shape[-1])}, got {tuple(mass.shape)}")
    return real_form_of_matrix(mass, "mass")[0]


def real_form(pattern: Pattern, real: Tensor, imaginary: Tensor, lead: tuple[int, ...]) -> tuple[Pattern, Tensor]:
    """Return pattern and values of the 2 × 2 blocks of entries on the edges for each of Q charges, ``(..., Q)``."""
    rows = [torch.stack([real, -imaginary], -1), torch.stack([imaginary, real], -1)]
    n, count, blocks = pattern.shape[-1], real.shape[-1], torch.stack(rows, -2)
    shape = (*lead, 2 * n)
    if isinstance(pattern, DensePattern):
        values = blocks.reshape(-1, n, n, count, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return DensePattern(shape), values.reshape(*shape, 2 * n)
    # Node i of graph b, of number b · N + i, has the number (b · Q + j) · N + i for charge j.
    number, part = torch.arange(count, device=blocks.device), torch.arange(2, device=blocks.device)
    shift = (pattern.item.long()[:, None] * (count - 1) + number) * n
    row, col = (2 * (end.long()[:, None] + shift)[..., None, None] for end in (pattern.row, pattern.col))
    row, col = (one.flatten() for one in torch.broadcast_tensors(row + part[:, None], col + part))
    order = (row * (math.prod(lead) * 2 * n) + col).argsort()
    return SparsePattern.trusted(row[order], col[order], shape), blocks.flatten().index_select(0, order)


def complex_pairs(pairs: Any, operator: SymmetricOperator, mass: Any, shape: tuple[int, ...], k: int) -> Any:
    """Return k complex pairs of the shape ``(..., N)`` from 2k real `Eigenpairs` of real forms of A and M."""
    batch, lead = operator.batch_size, shape[:-1]
    real, vectors = pairs.projected.reshape(batch, 2 * k, -1), pairs.vectors.reshape(batch, -1, 2 * k)
    present = pairs.values.reshape(batch, -1).isfinite()
    errors = pairs.residuals.reshape(batch, -1)
    bare = checks.primal(real), checks.primal(vectors)
    turn, columns, residuals = _combined(operator, mass, bare, errors, present, pairs.which == "largest")
    rounding = max(1e-12, 40 * torch.finfo(operator.dtype).eps)  # of the returned pairs of a pencil
    allowed = 100 * errors.amax(1) + (operator.round_off if mass is None else rounding * bare[0].abs().amax((1, 2)))
    if (pairs.converged.reshape(batch) & (residuals.amax(1) > allowed)).any():
        raise checks.ConvergenceError(
            f"{pairs.solver} has missed a copy of an eigenvalue: its pairs do not combine to complex ones, with "
            f"residuals of up to {residuals.max():.2e}; use Eigh() or the default solver"
        )
    z = _complex(vectors)
    turn = turn.to(z)
    y, phase = with_real_peaks(z @ columns.to(z))
    inner = turn.mH @ (real.to(z) @ turn)
    values = values_of(inner, inner.real.dtype)
    # Zero with a derivative: functions of Λ alone then have no gradient to vectors, not even round-off.
    off = inner - checks.primal(inner)
    off = off - torch.diag_embed(off.diagonal(dim1=-2, dim2=-1))
    projected = torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1).real).to(z) + phase.mH * off * phase
    values = torch.where(present[:, ::2], values, torch.inf)
    found = {"vectors": y.reshape(*shape, k), "projected": projected.reshape(*lead, k, k)}
    found |= {"values": values.reshape(*lead, k), "residuals": residuals.to(values).reshape(*lead, k)}
    found |= {name: getattr(pairs, name).reshape(lead) for name in ("gap", "converged", "resolved")}
    return dataclasses.replace(pairs, **found)


def _complex(parts: Tensor) -> Tensor:
    """Return ``(B, 2N, m)``, real and imaginary part of each node side by side, as complex ``(B, N, m)``."""
    return torch.complex(parts[:, ::2], parts[:, 1::2])


def with_real_peaks(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return vectors ``(B, N, k)`` turned so that their largest entries are positive, and the factors ``(B, 1, k)``."""
    place = first_of_largest(y)
    peak = y.gather(-2, place)
    is_missing = peak.detach() == 0
    peak = torch.where(is_missing, 1, peak)
    phase = peak.conj() / peak.abs()
    # Entries that are real by construction: a derivative of their imaginary part would be round-off.
    return (y * phase).scatter(-2, place, torch.where(is_missing, 0, peak.abs()).to(y)), phase


@torch.no_grad()
def _combined(
    operator: SymmetricOperator, mass: Any, bare: tuple[Tensor, Tensor], errors: Tensor, present: Tensor, largest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how 2k real pairs combine: W of Wᴴ Λ W and C of Y = Z C, ``(B, 2k, k)``, and residuals of Y ``(B, k)``."""
    projected, vectors, k = bare[0], bare[1].double(), bare[1].shape[-1] // 2
    # Squares of residuals may leave the range of the dtype.
    exact, factor, _ = in_unit(operator.double().frozen(), is_pencil=mass is not None)
    unit = torch.ones_like(exact.bound) if factor is None else factor.abs()
    z, image, above = _complex(vectors), _complex(exact.matmul(vectors)), exact.above[:, None]
    if isinstance(mass, SymmetricOperator):
        weighted = _complex(mass.double().matmul(vectors))
    else:
        weighted = z if mass is None else _complex(mass.double().reshape(vectors.shape[:2])[..., None] * vectors)
    # Every other missing column stands for a pair above the spectrum.
    lacking = 2.0 * ~present
    lacking[:, 1::2] = 0
    size, basis = torch.linalg.eigh(z.mH @ weighted + torch.diag_embed(lacking))
    basis = basis[..., k:]
    columns = basis * size[:, None, k:].rsqrt()
    action = z.mH @ image
    action = (action + action.mH) / 2 + torch.diag_embed(lacking * above)
    level, turn = torch.linalg.eigh(columns.mH @ action @ columns)
    columns, turn = columns @ turn, basis @ turn
    residuals = torch.linalg.vector_norm(image @ columns - (z @ columns) * level[:, None], dim=1)
    values = torch.where(present, projected.diagonal(dim1=1, dim2=2), operator.above[:, None])
    if mass is not None:  # A z_j − μ M z_j is the residual of pair j and (λ_j − μ) M z_j, in the norm of M⁻¹
        far = (values[..., None] * unit[:, None, None] - level[:, None]).abs()
        residuals = (columns.abs() * (far + (errors * unit[:, None])[..., None])).sum(1)
    # Round-off may exchange equal values.
    order = (turn.abs().square() * values[..., None]).sum(1).argsort(stable=True, descending=largest)
    at, is_there = order[:, None, :].expand_as(turn), present[:, None, ::2]
    residuals = residuals.gather(1, order) * is_there[:, 0] / unit[:, None]
    return turn.gather(2, at) * is_there, columns.gather(2, at) * is_there, residuals
