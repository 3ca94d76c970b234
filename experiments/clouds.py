"""Point clouds of curves and surfaces that differ in topology, under random rotations, proportions and noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

TURN = 2 * torch.pi
CANDIDATES = 4  # uniform points for each that is kept


def _sphere(u: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    height = 2 * v - 1
    radius = (1 - height**2).sqrt()
    return radius * (TURN * u).cos(), radius * (TURN * u).sin(), (0.7 + 0.6 * p) * height


def _torus(u: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tube = 0.3 + 0.2 * p
    radius = 1 + tube * (TURN * v).cos()
    return radius * (TURN * u).cos(), radius * (TURN * u).sin(), tube * (TURN * v).sin()


def _cylinder(u: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (TURN * u).cos(), (TURN * u).sin(), (0.6 + 0.6 * p) * (v - 0.5)


def _moebius(u: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    across = (0.6 + 0.6 * p) * (v - 0.5)
    radius = 1 + across * (TURN * u / 2).cos()
    return radius * (TURN * u).cos(), radius * (TURN * u).sin(), across * (TURN * u / 2).sin()


def _rings(u: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first, radius = v < 0.5, 0.7 + 0.6 * p
    x, y = (TURN * u).cos(), (TURN * u).sin()
    return torch.where(first, x, 1 + radius * x), torch.where(first, y, 0), torch.where(first, 0, radius * y)


def _trefoil(u: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = TURN * u
    return a.sin() + 2 * (2 * a).sin(), a.cos() - 2 * (2 * a).cos(), (0.7 + 0.6 * p) * (3 * a).sin()


def _helix(u: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (2 * TURN * u).cos(), (2 * TURN * u).sin(), (2 + p) * u


def _roll(u: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    angle = 1.5 * TURN * u.sqrt()  # the sheet is evenly sampled
    radius = 0.3 + angle / TURN
    return radius * angle.cos(), radius * angle.sin(), (1 + p) * v


# From two coordinates and a proportion in [0, 1] to a point. The coordinate v chooses among the two rings; those of
# the curves do not depend on it.
SHAPES: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    "sphere": _sphere,
    "torus": _torus,
    "cylinder": _cylinder,
    "moebius": _moebius,
    "rings": _rings,
    "trefoil": _trefoil,
    "helix": _helix,
    "roll": _roll,
}


class Clouds(NamedTuple):
    """Points ``(C, N, 3 + nuisance)``, a mask ``(C, N)`` of those that there are, and the classes ``(C,)``."""

    points: Tensor
    mask: Tensor
    labels: Tensor


def make_clouds(
    shapes: list[str],
    count: int,
    sizes: tuple[int, int],
    noise: float,
    nuisance: int,
    spread: float,
    generator: torch.Generator,
) -> Clouds:
    """Return ``count`` clouds, of each shape as many as of the others (but for one).

    Args:
        shapes: names, whose places are the classes.
        sizes: smallest and largest number of points.
        noise: standard deviation of each coordinate, where the root mean square distance from the centre is 1.
        nuisance: further channels of independent normal numbers.
        spread: their standard deviation.
        generator: of everything random.
    """
    labels = torch.arange(count) % len(shapes)
    u, v = torch.rand(2, count, CANDIDATES * sizes[1], generator=generator)
    proportion = torch.rand(count, 1, generator=generator)
    points = u.new_empty(*u.shape, 3)
    for label, shape in enumerate(shapes):
        chosen = labels == label
        points[chosen] = torch.stack(SHAPES[shape](u[chosen], v[chosen], proportion[chosen]), -1)
    points = farthest(points, sizes[1]) @ rotations(count, generator)
    size = torch.randint(sizes[0], sizes[1] + 1, (count, 1), generator=generator)
    mask = torch.arange(sizes[1]) < size
    points = normalized(points, mask)
    points = points + noise * torch.randn(points.shape, generator=generator)
    others = spread * torch.randn(count, sizes[1], nuisance, generator=generator)
    points = torch.cat([points, others], -1)
    return Clouds(points.masked_fill(~mask[..., None], 0), mask, labels)


def farthest(points: Tensor, n: int) -> Tensor:
    """Return ``n`` of the points ``(C, N, 3)``: the first one, then each the farthest from those before.

    Eldar et al., *The farthest point strategy for progressive image sampling* (1997), the usual sampling of clouds for
    networks: without gaps, and so are its beginnings.
    """
    cloud = torch.arange(len(points))
    chosen = torch.zeros(len(points), n, dtype=torch.int64)
    nearest = points.new_full(points.shape[:2], torch.inf)
    for i in range(1, n):
        last = points[cloud, chosen[:, i - 1]][:, None]
        nearest = torch.minimum(nearest, (points - last).square().sum(-1))
        chosen[:, i] = nearest.argmax(1)
    return points[cloud[:, None], chosen]


def normalized(points: Tensor, mask: Tensor) -> Tensor:
    """Return points ``(C, N, 3)`` with their centre at 0 and a root mean square distance of 1 from it."""
    valid, size = mask[..., None], mask.sum(1)[:, None, None]
    points = points - (points * valid).sum(1, keepdim=True) / size
    square = (points.square() * valid).sum((1, 2), keepdim=True) / size
    return points / square.sqrt()


def rotations(count: int, generator: torch.Generator) -> Tensor:
    """Return ``(count, 3, 3)``, uniform among all rotations: of unit quaternions."""
    q = torch.randn(count, 4, generator=generator)
    w, x, y, z = (q / q.norm(dim=1, keepdim=True)).unbind(1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, 1).reshape(count, 3, 3)
