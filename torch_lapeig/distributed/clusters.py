"""From rows of eigenvectors on several ranks to labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_lapeig.distributed.points import ShardedPoints
from torch_lapeig.methods.labels import k_means

SAMPLE = 20_000  # rows that k-means begins with, of all ranks together, on each rank
ROUNDS = 300  # of k-means at most, as scikit-learn's


def sharded_labels(module: Any, points: ShardedPoints, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Labels int64 ``(n,)`` of own rows ``(n, k)``, −1 for zeros, and the centres, or the axes of cluster_qr."""
    active = rows[:, 0] != 0
    if module.assign_labels == "cluster_qr":
        axes = _axes(points, rows)
        labels = (rows @ axes).abs().argmax(1)
        return labels.masked_fill(~active, -1), axes
    centres = _first_centres(module, points, rows[active], points.numbers[active])
    labels, before = torch.full_like(points.numbers, -1), centres
    for _ in range(ROUNDS):
        found = torch.cdist(rows, centres).argmin(1).masked_fill(~active, -1)
        changed = points.ranks.any((found != labels).any())
        labels = found
        if not changed:
            break
        inside = labels >= 0
        sums = rows.new_zeros(len(centres), rows.shape[1] + 1)
        ones = torch.cat([rows[inside], rows.new_ones(int(inside.sum()), 1)], 1)
        sums = points.ranks.sum(sums.index_add_(0, labels[inside], ones))
        before = centres
        centres = torch.where(sums[:, -1:] > 0, sums[:, :-1] / sums[:, -1:].clamp_min(1), before)
    return labels, centres


def _first_centres(module: Any, points: ShardedPoints, rows: Tensor, numbers: Tensor) -> Tensor:
    """The centres that k-means finds of a sample of the rows of all ranks, the same on each."""
    share = max(1, -(-points.offsets[-1] // SAMPLE))
    some = numbers % share == 0
    sample, number = points.ranks.gather(rows[some]), points.ranks.gather(numbers[some])
    means = k_means(module.n_clusters, module.n_init, module.seed).fit(sample[number.argsort()].cpu().numpy())
    centres = torch.as_tensor(means.cluster_centers_).to(rows)
    # Of the first rank: threads of the others may have summed in another order.
    return points.ranks.sum(centres if points.ranks.rank == 0 else torch.zeros_like(centres))


def _axes(points: ShardedPoints, rows: Tensor) -> Tensor:
    """The axes ``(k, k)`` of `torch_lapeig.methods.labels.cluster_qr`: each pivot is the longest row of any rank."""
    ranks, rest, pivots = points.ranks, rows, []
    for _ in range(rows.shape[1]):
        squares = rest.square().sum(1)
        longest = ranks.maximum(torch.cat([squares, squares.new_zeros(1)]).amax())
        candidates = points.numbers[squares == longest]
        last = candidates.new_full((1,), torch.iinfo(torch.int64).max)
        number = -ranks.maximum(-torch.cat([candidates, last]).amin())
        mine = (points.numbers == number).to(rows.dtype)
        pair = ranks.sum(torch.stack([mine @ rows, mine @ rest]))
        pivots.append(pair[0])
        direction = pair[1] / longest.sqrt().clamp_min(torch.finfo(rows.dtype).tiny)
        rest = rest - (rest @ direction)[:, None] * direction
    u, _, v = torch.linalg.svd(torch.stack(pivots, 1))
    (axes,) = ranks.shared(u @ v)
    return axes
