"""Algebra on blocks of vectors that the iterative solvers share: orthonormal bases, small problems, residuals."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from torch_lapeig._threads import in_parts
from torch_lapeig._tuning import PART_OF_EIGH, WHOLE_EIGH


class Space(Protocol):
    """What this algebra needs of an operator."""

    def matmul(self, y: Tensor) -> Tensor:
        """A Y."""
        ...

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Xᵀ Y."""
        ...

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        """Inner products of columns."""
        ...

    def random(self, m: int, seed: int) -> Tensor:
        """Random columns."""
        ...


def residual(operator: Space, x: Tensor, ax: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """A x − x λ of a block ``(N, m)`` and its norms ``(m,)``."""
    r = torch.addcmul(ax, x, values, value=-1)
    return r, operator.dots(r, r).sqrt()


def eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs of the symmetric part of a small matrix."""
    values, vectors = torch.linalg.eigh((a + a.mT) / 2)
    return values, vectors


def eigh_of_batch(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs of symmetric matrices ``(B, n, n)``, of which the lower triangles count; see `in_parts`.

    Fewer large ones than there are threads are left to the threads of LAPACK.

    Raises:
        torch.linalg.LinAlgError: one that has not converged.
    """
    if a.shape[-1] > WHOLE_EIGH and len(a) < torch.get_num_threads():
        return _eigh(a)
    try:
        values, vectors = in_parts(_eigh, a, PART_OF_EIGH)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return _eigh(a)  # which says its number among all
    return values, vectors


def _eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(a)
    return values, vectors


def basis(operator: Space, w: Tensor, *others: Tensor) -> Tensor:
    """An orthonormal basis of the span of ``w`` orthogonal to ``others``, without the directions that are round-off."""
    eps = torch.finfo(w.dtype).eps
    for drop in (50 * eps, eps ** (2 / 3)):
        before, w = _outside(operator, w, others)
        gram = operator.inner(w, w)
        size = gram.diagonal()
        some = size > torch.finfo(w.dtype).tiny
        if not some.any():
            return w[:, some]
        scale = torch.where(some, size, torch.inf).rsqrt()
        values, turn = eigh(scale[:, None] * gram * scale)
        keep = values > drop * values[-1]
        w = w @ (scale[:, None] * turn[:, keep] * values[keep].rsqrt())
        # Where next to nothing cancelled, once is enough.
        if values[0] > 0.1 * values[-1] and (size > 0.1 * before).all():
            break
    return w


def _outside(operator: Space, w: Tensor, others: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The squares of the columns of ``w``, and their part outside orthonormal ``others``."""
    if getattr(operator, "is_sharded", False):  # `others` are orthogonal to each other: one message for all
        before, *overlaps = operator.overlaps(w, *others)  # type: ignore[attr-defined]
        for q, overlap in zip(others, overlaps, strict=True):
            w = torch.addmm(w, q, overlap, alpha=-1)
        return before, w
    before = operator.dots(w, w)
    for q in others:
        w = torch.addmm(w, q, operator.inner(q, w), alpha=-1)
    return before, w


def small_basis(c: Tensor, against: Tensor) -> Tensor:
    """Orthonormal columns that span ``c`` orthogonally to the orthonormal ``against``: coordinates, not nodes."""
    for _ in range(2):
        c = c - against @ (against.mT @ c)
        u, size, _ = torch.linalg.svd(c, full_matrices=False)
        c = u[:, size > 1e3 * torch.finfo(c.dtype).eps * max(float(size[0]), 1e-3)] if len(size) else c
    return c


def orthonormalize(operator: Space, x: Tensor) -> Tensor:
    """An orthonormal basis of the span of ``x`` ``(B, N, m)`` from its Gram matrix, twice for full accuracy.

    By Cholesky, or where columns are dependent to working precision by eigenvectors (SVQB, Stathopoulos & Wu 2002).
    """
    info = torch.finfo(x.dtype)
    for _ in range(2):
        gram = operator.inner(x, x)
        size = gram.diagonal(dim1=-2, dim2=-1).clamp_min(info.tiny).rsqrt()
        gram = size[:, :, None] * gram * size[:, None, :]
        factor, failed = torch.linalg.cholesky_ex(gram)
        if failed.any() or factor.diagonal(dim1=-2, dim2=-1).amin() < 10 * info.eps**0.5:
            weight, turn = torch.linalg.eigh(gram)
            x = x @ (size[:, :, None] * turn * weight.clamp_min(info.eps).rsqrt()[:, None, :])
        else:
            eye = torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
            inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
            x = x @ (size[:, :, None] * inverse.mT)
    return x
