"""Exact neighbour search. Chooses edges only: nothing here carries a gradient.

Distances are taken by direct differences rather than the expanded square ‖x‖² − 2x·y + ‖y‖², which cancels in
float32 for points far from the origin. Rows go in blocks, so memory stays at ``BLOCK`` entries, not N × N.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 2**24  # entries of a block of distances: 64 MiB in float32


def squared_distances(queries: Tensor, references: Tensor) -> Tensor:
    """Squared Euclidean distances ``(..., Q, N)`` of ``(..., Q, D)`` to ``(..., N, D)``."""
    return torch.cdist(queries, references, compute_mode="donot_use_mm_for_euclid_dist").square()


def _blocks_without_self(x: Tensor, mask: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Squared distances of consecutive rows to all points, infinite to the point itself and where masked."""
    b, n, _ = x.shape
    rows = max(1, BLOCK // (b * n))
    for start in range(0, n, rows):
        d2 = squared_distances(x[:, start : start + rows], x)
        d2.diagonal(offset=start, dim1=-2, dim2=-1).fill_(torch.inf)
        yield start, d2.masked_fill_(~mask[:, None, :], torch.inf)


@torch.no_grad()
def k_nearest(x: Tensor, k: int, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The k nearest other points of every point.

    Args:
        x: points ``(B, N, D)``.
        k: neighbours of each point, at most the number of valid points less one.
        mask: valid points ``(B, N)``; the others are nobody's neighbour.

    Returns:
        Indices ``(B, N, k)`` into each batch item and squared distances ``(B, N, k)``, ascending. A point is never
        its own neighbour, however many copies of it there are. Rows of masked points are to be ignored.
    """
    found = [d2.topk(k, largest=False) for _, d2 in _blocks_without_self(x, mask)]
    return torch.cat([f.indices for f in found], 1), torch.cat([f.values for f in found], 1)


@torch.no_grad()
def within_radius(x: Tensor, radius: float, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All pairs of distinct valid points at distance ≤ ``radius``: batch item, first and second index, each (E,)."""
    found = []
    for start, d2 in _blocks_without_self(x, mask):
        item, i, j = (d2 <= radius**2).nonzero(as_tuple=True)
        keep = mask[item, i + start]
        found.append((item[keep], i[keep] + start, j[keep]))
    item, i, j = (torch.cat(parts) for parts in zip(*found, strict=True))
    return item, i, j
