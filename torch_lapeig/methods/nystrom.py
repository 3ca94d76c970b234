"""Nyström's formula: eigenvectors of a data-dependent kernel extended to points that are not in it.

One formula serves Laplacian eigenmaps, classical scaling, Isomap, LLE and kernel PCA (Bengio et al., NIPS 2003,
"Out-of-sample extensions for LLE, Isomap, MDS, eigenmaps, and spectral clustering"), y_k(x) = (1/λ_k) Σ_i K̃(x, i) v_ik;
they differ in the kernel:

| method | K̃(x, i) | eigenvalue |
|---|---|---|
| Laplacian eigenmaps | W(x, i) / D(x), see `nystrom` | 1 − λ |
| MDS, Isomap | −½ d² centred, d Euclidean or geodesic, see `kernels.centred` | of the training kernel |
| kernel PCA | K centred | of the training kernel |
| LLE | weights that reconstruct x from its neighbours | 1 |
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.graph.groups import segment_logsumexp, sum_of_groups
from torch_lapeig.support import checks, precision


class NewAffinities(NamedTuple):
    """Affinities between new points and fitted points."""

    log_affinity: Tensor  # (E,), with gradients
    query: Tensor  # int64 (E,), the new point of each
    point: Tensor  # int64 (E,), the fitted point of each
    same: Tensor  # int64 (Q,), the fitted point that a new point equals, or −1


def nystrom(
    new: NewAffinities,
    num_queries: int,
    embedding: Tensor,  # Y (N, k)
    eigenvalues: Tensor,  # λ (k,), or (N, k) if training points belong to separate problems
    *,
    normalized: bool = True,
    degrees: Tensor | None = None,  # d (N,) if Y has the eigenvectors of L_sym
    off: Tensor | None = None,  # (k, k) or (N, k, k) off the diagonal of Λ: 0, with derivatives at equal eigenvalues
    same: Tensor | None = None,  # (Q,), the training point that a query equals, or −1
    noise: Tensor | None = None,  # (N,), the error of λ at each training point, for L y = λ y
) -> Tensor:
    """Return Laplacian eigenmaps of new points: solve the row of the eigenproblem at x for y(x).

    For the generalised problem L y = λ D y (``normalized``) the solution is

        y(x) = Σ_i P(x, i) y_i / (1 − λ),   P(x, i) = W(x, i) / D(x),   D(x) = Σ_i W(x, i),

    Nyström's formula with the kernel in random-walk form (Bengio et al. 2003, equations 6 and 9). The form of that
    paper has v = D^½ y, the eigenvectors of L_sym, and W(x, i) / (D(x) d_i)^½ instead of P (``degrees``). For L y = λ y
    the solution is y(x) = Σ_i W(x, i) y_i / (D(x) − λ). At a training point each formula is the point's own row of the
    problem and returns its row of Y.

    Rows are zero without any weight. If the formula divides by less than 1e-3 of D(x), or by the error of λ, they are
    the training row of a training point, and zero, with a `GraphWarning`, for another query.
    """
    log_affinity, query, point, _ = new
    total = segment_logsumexp(log_affinity, query, num_queries)
    level = torch.where(total.isinf(), 0, total)
    share = scaled = torch.where(log_affinity.isinf(), 0, (log_affinity - level[query]).exp())
    edge_values = eigenvalues if eigenvalues.ndim == 1 else eigenvalues[point]
    error = edge_values.new_zeros(1) if noise is None else noise[point]
    degree = total.new_ones(1, 1) if normalized else total[query].exp()[:, None]
    small, growth, inverse = growth_of(degree, edge_values, error[:, None])
    far = total.isfinite() & (total < math.log(torch.finfo(total.dtype).tiny))
    if far.any():
        checks.warn(
            f"{int(far.sum())} of {len(total)} new points are so far away that all their affinities underflow: their "
            "rows are those of the nearest training points (over 1 − λ)",
            checks.GraphWarning,
        )
    if degrees is not None:  # D(x)^½ / d_i^½, by logarithms; 0 for a training point without edges, whose row is zero
        root = torch.where(degrees > 0, torch.where(degrees > 0, degrees, 1).log() / 2, torch.inf)
        scaled = share * ((level / 2)[query] - root[point]).exp()
    grown = embedding.index_select(0, point) * growth
    if off is not None:  # y D (F + F E F + F E F E F + …), F = (D − λ)⁻¹; later terms vanish to second order
        off = off if off.ndim == 2 else off[point]
        once = precision.matmul(grown[:, None], off)[:, 0] * inverse
        grown = grown + once + precision.matmul(once[:, None], off)[:, 0] * inverse
    rows = sum_of_groups(scaled[:, None] * grown, query, num_queries)
    is_known = torch.zeros(num_queries, dtype=torch.bool, device=query.device) if same is None else same >= 0
    # An eigenvalue of 0 may be one of round-off, at a training point of so small a degree.
    faint = is_known[query] & (total.exp()[query] < 1e3 * error)
    if not (small.any() or faint.any()):
        return rows
    lost = sum_of_groups(((small | faint[:, None]) & (share > 0)[:, None]).to(rows.dtype), query, num_queries) > 0
    if (lost & ~is_known[:, None]).any():
        checks.warn(
            "an eigenvalue too close to the degree of a new point cannot be extended to it (Nyström divides by "
            "1 − λ / D): zero is returned there; use fewer components or fewer neighbours",
            checks.GraphWarning,
        )
    return rows if same is None else torch.where(lost & is_known[:, None], embedding[same.clamp_min(0)], rows)


def growth_of(degree: Tensor, eigenvalues: Tensor, error: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where divisors are tiny, and D / (D − λ) and 1 / (D − λ), zero there."""
    # 1 / (1 − λ / D) as D / (D − λ), which is 1 for λ = 0 and does not overflow where D is tiny.
    degree = torch.where(eigenvalues == 0, 1, degree)
    # Where 1 − λ / D is smaller, the formula divides by almost nothing, or by the error of λ.
    small = (degree - eigenvalues).abs() < torch.where(eigenvalues == 0, 0, 1e3 * error).maximum(1e-3 * degree)
    rest, info = torch.where(small, 1, degree - eigenvalues), torch.finfo(degree.dtype)
    overflows = rest.abs() < info.tiny / info.eps
    inverse = torch.where(small | overflows, 0, 1 / torch.where(overflows, 1, rest))
    return small, torch.where(small, 0, degree / rest), inverse
