"""Algebra of blocks of vectors that the iterative solvers share: orthonormal bases, small problems, residuals.

Blocks stay on their device. Matrices whose size is the number of columns are solved on the host, where a launch costs
nothing. A step copies them to the host once, which synchronises, and sends the results back without synchronising.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.graph.pattern import signs
from torch_lapeig.native import calls as native
from torch_lapeig.support.precision import VERSION
from torch_lapeig.support.threads import by_rows, in_parts
from torch_lapeig.support.tuning import PART_OF_EIGH


def to_host(*tensors: Tensor) -> list[Tensor]:
    """Return small tensors of one dtype on the processor, in one copy; tensors on the processor themselves."""
    if tensors[0].device.type == "cpu":
        return list(tensors)
    flat = torch.cat([t.reshape(-1) for t in tensors]).cpu()
    parts = flat.split([t.numel() for t in tensors])
    return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]


def to_device(x: Tensor, like: Tensor) -> Tensor:
    """Return a small tensor on the device of another one, without synchronising."""
    return x.to(like.device, non_blocking=True)


def residual(
    operator: Operator, x: Tensor, ax: Tensor, values: Tensor, room: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return A x − x λ of a block ``(N, m)``, in ``room`` if there is one, and its norms ``(m,)``."""
    r = torch.addcmul(ax, x, values, value=-1, out=room)
    return r, operator.nodes.dots(r, r).sqrt()


def matmul_into_(x: Tensor, q: int, w: Tensor, c: Tensor) -> Tensor:
    """Store [Q W] C in the first columns of X, of which Q is the first q; return these columns."""
    m = c.shape[1]

    def rotate(rows: slice) -> None:
        x[rows, :m] = torch.addmm(w[rows] @ c[q:], x[rows, :q], c[:q])

    by_rows(rotate, len(x), (q + 2 * m + w.shape[1]) * x.element_size(), x.device)
    return x[:, :m]


def right_multiply(x: Tensor, c: Tensor, *, is_own: bool) -> Tensor:
    """Return X C for a block ``(N, m)``, in the storage of X; in its place if it is one's own and C is square."""
    if _is_by_columns(x):
        return (c.mT @ x.mT).mT
    if not is_own or c.shape[0] != c.shape[1]:
        return x @ c

    def combine(rows: slice) -> None:
        x[rows] = x[rows] @ c

    by_rows(combine, len(x), 3 * x[:1].nbytes, x.device)
    return x


def without(w: Tensor, q: Tensor, c: Tensor, *, is_own: bool) -> Tensor:
    """Return W − Q C for blocks ``(N, ·)``, in place of W if it is one's own."""
    # Two blocks stored by columns take half the time of mixed storages.
    if _is_by_columns(w) and (is_own or _is_by_columns(q)):
        return (w.mT.addmm_ if is_own else partial(torch.addmm, w.mT))(c.mT, q.mT, alpha=-1).mT
    return (w.addmm_ if is_own else partial(torch.addmm, w))(q, c, alpha=-1)


def _is_by_columns(x: Tensor) -> bool:
    return x.stride(0) == 1 and x.mT.is_contiguous()


def symmetric_eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenpairs of the symmetric part of a small matrix, or of each of several."""
    values, vectors = torch.linalg.eigh((a + a.mT) / 2)
    return values, vectors


def eigh_of_batch(a: Tensor, count: int | None = None, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return all values, ascending, and the first ``count`` vectors of symmetric matrices, by their lower triangles."""
    # Times a `factor` `(B, n)`, if that is given, the vectors have their `signs`.
    count = a.shape[-1] if count is None else count
    if (pairs := native.small_eigh(a, count, factor)) is not None:
        return pairs
    # Accelerators solve matrices of these sizes one after the other in torch before 2.12: 64 of 33² took 29 ms there
    # and 0.7 on 16 cores, copies included; of 64² 46 and 2.6, of 128² 98 and 19.
    if a.device.type != "cpu" and 32 < a.shape[-1] <= 128 and VERSION < (2, 12):
        values, vectors = (to_device(part, a) for part in eigh_of_batch(a.cpu(), count))
    # Smaller ones are solved single-threaded: beside other processes, 300² took 11 ms, and 70 to 1700 on two threads.
    elif a.shape[-1] > 512 and len(a) < torch.get_num_threads():
        values, vectors = torch.linalg.eigh(a)
    else:
        try:
            values, vectors = in_parts(torch.linalg.eigh, a, PART_OF_EIGH)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            values, vectors = torch.linalg.eigh(a)  # names the failed matrix in its error
    vectors = vectors[..., :count]
    return values, vectors if factor is None else vectors * signs(factor[..., None] * vectors)


def basis(nodes: Any, w: Tensor, *others: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of ``w`` orthogonal to ``others``, without directions of round-off.

    Inner products are those of the ``nodes`` of an operator, or of the `Form` of a problem with a mass.
    """
    given, eps = w, torch.finfo(w.dtype).eps
    for drop in (50 * eps, eps ** (2 / 3)):
        before, *overlaps = nodes.overlaps(w, *others)
        for q, overlap in zip(others, overlaps, strict=True):
            w = without(w, q, overlap, is_own=w is not given)
        gram, before = to_host(nodes.inner(w, w), before)
        size = gram.diagonal()
        some = size > torch.finfo(w.dtype).tiny
        if not some.any():
            return w[:, :0]
        scale = torch.where(some, size, torch.inf).rsqrt()
        values, turn = nodes.same_on_all_ranks(*symmetric_eigh(scale[:, None] * gram * scale))
        keep = values > drop * values[-1]
        # In place from the second step on: new memory for large blocks costs as much as the products.
        own = to_device(scale[:, None] * turn[:, keep] * values[keep].rsqrt(), w)
        w = right_multiply(w, own, is_own=w is not given)
        # If almost nothing cancelled, one pass is enough.
        if values[0] > 0.1 * values[-1] and (size > 0.1 * before).all():
            break
    return w


def small_basis(operator: Operator, c: Tensor, against: Tensor) -> Tensor:
    """Return orthonormal columns that span the part of ``c`` orthogonal to the orthonormal ``against``."""
    for _ in range(2):
        c = c - against @ (against.mT @ c)
        u, size = operator.nodes.same_on_all_ranks(*torch.linalg.svd(c, full_matrices=False)[:2])
        c = u[:, size > 1e3 * torch.finfo(c.dtype).eps * max(float(size[0]), 1e-3)] if len(size) else c
    return c


def orthonormalize(operator: Operator, x: Tensor, *, careful: bool = True) -> tuple[Tensor, Tensor]:
    """Return an orthonormal basis of the span of ``x`` ``(B, N, m)`` by its Gram matrix, and its success ``(B,)``."""
    # Cholesky factors orthonormalise twice for full accuracy. Where columns are dependent to working precision,
    # eigenvectors do (SVQB, Stathopoulos & Wu 2002), until the last factor is nearly the identity. A dependent column
    # then holds round-off, or random numbers if it was zero. Unless `careful`, the host does not synchronise: Cholesky
    # factors orthonormalise three times, the first time with a shift that keeps the matrix definite in spite of
    # rounding (Fukaya, Kannan, Nakatsukasa, Yamamoto & Yanagisawa 2020).
    info, m = torch.finfo(x.dtype), x.shape[2]
    eye = torch.eye(m, dtype=x.dtype, device=x.device)
    sound = torch.ones(len(x), dtype=torch.bool, device=x.device)
    # Up to six passes where columns are dependent, else two.
    shifts = (0.0,) * 6 if careful else (10 * m * info.eps, 0.0, 0.0)
    for number, shift in enumerate(shifts):
        gram = operator.nodes.inner(x, x)
        size = gram.diagonal(dim1=-2, dim2=-1).clamp_min(info.tiny).rsqrt()
        gram = size[:, :, None] * gram * size[:, None, :]
        factor, failed = torch.linalg.cholesky_ex(gram + shift * eye if shift else gram)
        factor, failed = operator.nodes.same_on_all_ranks(factor, failed.to(factor.dtype))
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        is_dependent = careful and bool(failed.any() or diagonal.amin() < 10 * info.eps**0.5)
        if is_dependent:
            empty = gram.diagonal(dim1=-2, dim2=-1) == 0
            if empty.any():
                x = torch.where(empty[:, None, :], operator.random(m, number), x)
                continue
            weight, turn = operator.nodes.same_on_all_ranks(*torch.linalg.eigh(gram))
            x = x @ (size[:, :, None] * turn * weight.clamp_min(info.eps).rsqrt()[:, None, :])
        else:
            inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
            x = x @ (size[:, :, None] * inverse.mT)
            if not careful:
                sound = sound & (failed == 0)
            elif number > 0 and diagonal.amin() > 0.5:
                break
    # The last factor belongs to a Gram matrix close to the identity.
    return x, sound if careful else sound & (diagonal.amin(1) > 0.5)
