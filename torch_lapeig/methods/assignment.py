"""Labels from rows of eigenvectors: k-means, pivoted QR, and the nearest partition up to a rotation.

Each returns labels ``(N,)`` and the centres (or axes) used to label new rows, which get the nearest one.
All but k-means run on the device of the rows. A common factor of all rows does not matter.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.graph.algebra import sum_of_groups
from torch_lapeig.support import checks
from torch_lapeig.support.extras import needed

Assignment = Literal["kmeans", "cluster_qr", "discretize"]
ASSIGNMENTS = ("kmeans", "cluster_qr", "discretize")


def cluster_qr(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels ``(N,)`` of ``(N, k)`` by QR with column pivoting, and the axes ``(k, k)`` as columns.

    Damle, Minden & Ying, *Information and Inference* 2019. The pivots are rows as orthogonal to each other as possible,
    one of each cluster. The nearest rotation takes the rows of a cluster to an axis, in any basis of the columns.

    >>> cluster_qr(torch.tensor([[1.0, 0.1], [0.9, -0.1], [0.1, 1.0], [0.0, -0.8]]))[0]
    tensor([0, 0, 1, 1])
    """
    rows = rows / checks.power_of_two(rows, (0, 1))  # so that no square overflows
    rest, pivots = rows, []
    for _ in range(rows.shape[1]):
        squares = rest.square().sum(1)
        pivots.append(squares.argmax())
        direction = rest[pivots[-1]] / squares[pivots[-1]].sqrt().clamp_min(torch.finfo(rows.dtype).tiny)
        rest = rest - (rest @ direction)[:, None] * direction
    axes = _rotation(rows[torch.stack(pivots)].mT)
    return nearest_axis(rows, axes, signed=False), axes


def discretize(rows: Tensor, random: np.random.RandomState) -> tuple[Tensor, Tensor]:
    """Return labels ``(N,)`` by the partition nearest to the rotated rows, and the axes ``(k, k)`` as columns."""
    # Yu & Shi, *Multiclass spectral clustering*, 2003. Partition and rotation are computed in turn until neither
    # changes. The first rotation has a random row and the rows most orthogonal to it.
    n, k = rows.shape
    # Scale columns to length √N, with signs that do not depend on those of the eigenvectors, as in scikit-learn.
    unit = checks.power_of_two(rows, (0,))
    columns = rows / unit
    signs = torch.where(columns[0] > 0, -1, 1)
    scale = signs * n**0.5 / torch.linalg.vector_norm(columns, dim=0)
    columns = columns * scale
    directions = columns / torch.linalg.vector_norm(columns, dim=1, keepdim=True)
    chosen, alike = [directions[int(random.randint(n))]], directions.new_zeros(n)
    for _ in range(1, k):
        alike = alike + (directions @ chosen[-1]).abs()
        chosen.append(directions[alike.argmin()])
    rotation = torch.stack(chosen, 1)
    labels = nearest_axis(directions, rotation)
    # At most 20 rotations beside the first, as in the authors' code.
    for _ in range(20):
        before, rotation = labels, _rotation(sum_of_groups(directions, labels, k).mT)
        labels = nearest_axis(directions, rotation)
        if torch.equal(labels, before):
            break
    return labels, (scale / unit[0])[:, None] * rotation


def _rotation(matrix: Tensor) -> Tensor:
    u, _, v = torch.linalg.svd(matrix)
    return u @ v  # type: ignore[no-any-return]


def nearest_axis(rows: Tensor, axes: Tensor, *, signed: bool = True) -> Tensor:
    """Return the axis of each row's largest coordinate, int64 ``(N,)``; of either sign if not ``signed``."""
    # Column by column: in a product, the rounding of a row depends on the number of rows.
    parts = torch.stack([(rows * axis).sum(1) for axis in axes.mT], 1)
    return _first_of_largest(parts if signed else parts.abs())


def nearest_centre(rows: Tensor, centres: Tensor) -> Tensor:
    """Return the nearest centre of each row, int64 ``(N,)``: the first one of several."""
    unit = checks.power_of_two(centres, (0, 1))  # so that no square overflows
    rows, centres = rows / unit.to(rows.dtype), (centres / unit).to(rows.dtype)
    return _first_of_largest(-torch.stack([(rows - centre).square().sum(1) for centre in centres], 1))


def _first_of_largest(parts: Tensor) -> Tensor:
    """Return the first of the largest entries of each row, up to round-off."""
    # Points of a symmetric set may lie exactly between two clusters. As new points they have other round-off, but must
    # get their fitted label.
    # The rows of a fitted point and of an equal new point differ by at most this power of eps.
    noise = torch.finfo(parts.dtype).eps ** 0.6 * parts.abs().amax(1, keepdim=True)
    return (parts >= parts.amax(1, keepdim=True) - noise).long().argmax(1)  # type: ignore[no-any-return]


def k_means(n_clusters: int, n_init: int, random: np.random.RandomState | int, verbose: int = 0) -> Any:
    """Return scikit-learn's estimator, which works on the CPU; raise ImportError without scikit-learn."""
    why = 'SpectralClustering.fit needs scikit-learn for k-means, not for assign_labels="cluster_qr"'
    KMeans = needed("sklearn.cluster", why, "sklearn").KMeans
    return KMeans(n_clusters, n_init=n_init, random_state=random, verbose=verbose)
