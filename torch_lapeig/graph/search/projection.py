"""Images of points of many dimensions in fewer, whose distances bound those of the points.

Let the columns of V ``(D, p)`` be orthonormal, z = Vᵀx and ρ = ‖x − V z‖. By Pythagoras and the triangle inequality

    ‖z_q − z_x‖² + (ρ_q − ρ_x)²  ≤  ‖q − x‖².

So the images (z, ρ) of p + 1 dimensions are never farther apart than the points. A product of images costs (p + 1) / D
of a product of the points, and `exact` measures the points whose bounds are small enough.

**Rounding.** A number of z is a sum of D products and off by at most D u ‖x‖, commonly √D u ‖x‖, for centred points;
so is ρ, which comes from x − V z and not from a difference of squares. V is orthonormal up to a few u. All this changes
a bound by some multiple of √D u (‖q‖² + ‖x‖²), as the product of the images and the direct differences do: `SLACK`
times the slack of a product of D terms covers all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.support.tuning import (
    DIRECTIONS,
    LOOKED_AT,
    MEASURED_BYTE,
    PROJECTED_QUERIES,
    PROJECTED_SAMPLE,
    PROJECTED_SHARE,
    rows_of_block,
)

IN_SINGLE = 1e-10, 1e15  # least and largest coordinate of centred points, whose images are float32
SLACK = 8  # times the slack of a product, see above
STEPS = 2  # products with the sample that turn random directions into principal ones


class Images(NamedTuple):
    """Images of points ``(N, p + 1)`` and queries ``(Q, p + 1)``; ``unit``: slack of products, in squared norms."""

    points: Tensor
    queries: Tensor
    unit: float


def unit_of_slack(points: Tensor) -> float:
    """Return the largest error of a product of points ``(..., D)``, in units of the squared norms."""
    return torch.finfo(points.dtype).eps * (4 + math.sqrt(points.shape[-1]))


def images_that_pay(points: Tensor, queries: Tensor, itself: bool, k: int) -> Images | None:
    """Return the images of points ``(N, D)`` that leave the least work; None where the product of the points is less.

    The work is counted on a sample: the bounds of some queries are compared with the distances to their k-th neighbour.
    """
    (n, d), middle = points.shape, points.mean(0)
    largest = max(float((x - middle).abs().amax()) for x in (points, *([] if itself else [queries])))
    # Bounds serve as well in float32, of numbers whose squares it holds, and products take half the time.
    dtype = torch.float32 if IN_SINGLE[0] <= largest <= IN_SINGLE[1] else points.dtype
    unit = SLACK * unit_of_slack(points[:1].to(dtype))
    some = spread_rows(n, max(PROJECTED_SAMPLE, min(n // 8, rows_of_block(8 * d, points.device))))
    rows = spread_rows(len(queries), PROJECTED_QUERIES)
    x, q = (points[some] - middle).to(dtype), (queries[rows] - middle).to(dtype)
    widths = [p for p in DIRECTIONS if 2 * p <= d]
    directions = principal_directions(x[spread_rows(len(x), PROJECTED_SAMPLE)], widths[-1])
    z, y, squares, of_points = q @ directions, x @ directions, q.square().sum(1, keepdim=True), x.square().sum(1)
    apart = squares + of_points - 2 * q @ x.mT
    if itself:
        apart.masked_fill_(some == rows[:, None], torch.inf)
    # As far as the k-th of all points, about.
    limit = apart.kthvalue(math.ceil(k * len(x) / n), dim=1, keepdim=True).values
    limit += unit * (squares + of_points.amax())
    work = {}
    for p in widths:
        (first, own), (mine, rest) = _image(y, of_points[:, None], p), _image(z, squares, p)
        bounds = first.square().sum(1) + mine.square().sum(1, keepdim=True) - 2 * mine @ first.mT
        near = float((bounds + (own.mT - rest).square() <= limit).sum()) * n / apart.numel()
        work[p] = n * (p + LOOKED_AT) + (near + k) * d * points.element_size() * MEASURED_BYTE
    best = min(work, key=work.__getitem__)
    if work[best] > PROJECTED_SHARE * n * (d + LOOKED_AT):
        return None
    directions = directions[:, :best].contiguous()
    of_points = _images(points, middle, directions)
    return Images(of_points, of_points if itself else _images(queries, middle, directions), unit)


def spread_rows(n: int, count: int) -> Tensor:
    """Return at most ``count`` of n numbers, at equal steps."""
    return torch.linspace(0, n - 1, min(count, n), dtype=torch.float64).long()


def principal_directions(sample: Tensor, p: int) -> Tensor:
    """Return orthonormal columns ``(D, p)``, about the principal directions of a centred sample ``(S, D)``, in order.

    By subspace iteration from random ones.
    """
    start = torch.randn(len(sample), p, dtype=sample.dtype, generator=torch.Generator().manual_seed(0))
    directions = torch.linalg.qr(sample.mT @ start)[0]
    for _ in range(STEPS):
        directions = torch.linalg.qr(sample.mT @ (sample @ directions))[0]
    images = sample @ directions
    turned: Tensor = torch.linalg.qr(directions @ torch.linalg.eigh(images.mT @ images)[1].flip(1))[0]
    return turned


def _image(z: Tensor, squares: Tensor, p: int) -> tuple[Tensor, Tensor]:
    """Return the first p numbers of z, and ρ ``(·, 1)`` for these, about."""
    first = z[:, :p]
    return first, (squares - first.square().sum(1, keepdim=True)).clamp_min(0).sqrt()


def _images(x: Tensor, middle: Tensor, directions: Tensor) -> Tensor:
    """Return (z, ρ) of points, in blocks, in the dtype of the directions."""
    d, p = directions.shape
    found = directions.new_empty(len(x), p + 1)
    step = rows_of_block(16 * d, x.device)
    for part, into in zip(x.split(step), found.split(step), strict=True):
        centred = (part - middle).to(directions.dtype)
        torch.mm(centred, directions, out=into[:, :p])
        centred.addmm_(into[:, :p], directions.mT, alpha=-1)
        torch.linalg.vector_norm(centred, dim=1, out=into[:, p])
    return found
