"""Alignment of an embedding to a reference: rotations, signs and order of its columns."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen import Eigenpairs, eigh
from torch_lapeig.methods.module import Embedding
from torch_lapeig.support import checks, precision

APART = 0.1  # difference of eigenvalues, over the larger one, from which on they are no cluster
MIXED = 0.05  # share of a column that another one may have without a warning


class Alignment(NamedTuple):
    """Embedding aligned to a reference.

    Attributes:
        embedding: Y T, ``(..., N, m)`` for a reference of m columns.
        transform: T ``(..., k, m)``, with orthonormal columns.
        distance: ‖(Y T)_rows − reference‖ over ‖reference‖, in Frobenius's norm, ``(...)``; +∞ for zeros.

    >>> y = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> align(y, -y, how="signs").distance
    tensor(0.)
    """

    embedding: Tensor
    transform: Tensor
    distance: Tensor


@precision.full_precision
def align(
    y: Tensor | Embedding | Eigenpairs,
    reference: Tensor,
    rows: Tensor | None = None,
    how: Literal["rotation", "signs", "order"] = "rotation",
) -> Alignment:
    """Align an embedding to a reference, differentiable in both.

    Eigenvectors are known up to signs, and those of equal or close eigenvalues up to a rotation, so that embeddings of
    two subsets, or of two steps of a training, cannot be compared before.

    Args:
        y: Y ``(N, k)`` or ``(B, N, k)``, or what has it: an `Embedding`, or `Eigenpairs`.
        reference: ``(M, m)`` or ``(B, M, m)`` of the dtype of Y; m = k but for ``"order"``, where m ≤ k.
        rows: the rows of Y that belong to those of the reference, int64 ``(M,)``; default: all, M = N.
        how: ``"rotation"``, or a reflection: the orthogonal T nearest to the reference in least squares (orthogonal
            Procrustes, Schönemann 1966); ``"signs"``: T = ±1 for each column; ``"order"``: the columns, each with a
            sign, whose inner products with those of the reference have the largest sum (SciPy's assignment).

    Raises: ValueError: rows that do not determine the rotation, such as fewer than k.

    Warns: DegeneracyWarning: a rotation mixes columns of eigenvalues of `Embedding` or `Eigenpairs` that are well
    separated, whose columns are determined but for signs.

    >>> y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    >>> turned = y @ torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    >>> torch.allclose(align(turned, y[:2], rows=torch.arange(2)).embedding, y)
    True
    """
    points: Any = y.embedding if isinstance(y, Embedding) else y.vectors if isinstance(y, Eigenpairs) else y
    values = y.eigenvalues if isinstance(y, Embedding) else y.values if isinstance(y, Eigenpairs) else None
    known = None if values is None else checks.primal(values)
    for name, part in (("y", points), ("reference", reference)):
        checks.check_points(part, name, min_points=1)
    checks.check_choice(how, "how", ("rotation", "signs", "order"))
    if rows is not None:
        checks.check_indices(rows, "rows", points.shape[-2])
    common, k, m = points if rows is None else points.index_select(-2, rows), points.shape[-1], reference.shape[-1]
    fits = reference.shape[:-1] == common.shape[:-1] and (m == k or (how == "order" and m < k))
    if not fits or reference.dtype != points.dtype:
        expected, got = (*common.shape[:-1], k), f"{tuple(reference.shape)} and {reference.dtype}"
        raise ValueError(f"reference must have shape {expected} and {points.dtype}, as these rows of y, got {got}")
    inner = common.mT.double() @ reference.double()
    turn = {"rotation": _rotation, "signs": _signs, "order": _order}[how](inner)
    if how == "rotation" and known is not None and known.shape == (*inner.shape[:-2], k):
        far = (known[..., :, None] - known[..., None, :]).abs()
        most = torch.maximum(known[..., :, None].abs(), known[..., None, :].abs())
        if ((far > APART * most) & (checks.primal(turn).square() > MIXED)).any():
            finding = "the rotation mixes columns whose eigenvalues are well separated"
            reason = "the embeddings differ by more than a choice of basis"
            checks.warn(f'{finding}: {reason}; use how="order", or look at distance', checks.DegeneracyWarning)
    turn = turn.to(points.dtype)
    left, size = (
        torch.linalg.vector_norm(x, dim=(-2, -1)) for x in (precision.matmul(common, turn) - reference, reference)
    )
    distance = torch.where(size > 0, left / torch.where(size > 0, size, 1), torch.inf)
    return Alignment(precision.matmul(points, turn), turn, distance)


def _rotation(inner: Tensor) -> Tensor:
    """Return the orthogonal factor C (CᵀC)^-½ of inner products C, with gradients at equal singular values, too."""
    scale = checks.power_of_two(inner, (-2, -1))
    inner = inner / scale
    left, least, right = torch.linalg.svd(checks.primal(inner))
    if (least[..., -1] <= 1e-6 * least[..., 0]).any():
        got = 'common rows that leave one free; give more rows, fewer columns, or how="signs"'
        raise ValueError(f"rows must determine the rotation of {inner.shape[-1]} columns, got {got}")
    found = inner @ eigh(inner.mT @ inner).matrix_function(torch.rsqrt)
    exact: Tensor = left @ right + (found - checks.primal(found))  # squares lose half of the digits
    return exact


def _signs(inner: Tensor) -> Tensor:
    diagonal = checks.primal(inner).diagonal(dim1=-2, dim2=-1)
    return torch.diag_embed(torch.where(diagonal < 0, -1.0, 1.0).to(inner))


def _order(inner: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment  # slow to import

    found = torch.zeros_like(inner).reshape(-1, *inner.shape[-2:])
    for one, turn in zip(checks.primal(inner).reshape(found.shape).cpu(), found, strict=True):
        row, col = map(torch.as_tensor, linear_sum_assignment(-one.abs().numpy()))
        turn[row, col] = torch.where(one[row, col] < 0, -1.0, 1.0).to(turn)
    return found.reshape(inner.shape)
