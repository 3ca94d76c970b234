"""Point sets: symmetric ones, and those that layers meet in training. ``CLOUDS[name](rng, n)`` is ``(about n, D)``."""

import itertools
import math
from collections.abc import Callable

import numpy as np

from tests.campaign.edges import Edges, Floats, of_dense

Rng = np.random.Generator
Cloud = Callable[[Rng, int], Floats]


def _circle(n: int) -> Floats:
    angle = 2 * math.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def torus(rng: Rng, n: int) -> Floats:
    """Return Clifford's torus on a regular grid."""
    side = max(3, math.isqrt(n))
    one = _circle(side)
    return np.concatenate([np.repeat(one, side, 0), np.tile(one, (side, 1))], 1)


def lattice(rng: Rng, n: int) -> Floats:
    d = int(rng.integers(1, 4))
    return np.array(list(itertools.product(range(max(2, round(n ** (1 / d)))), repeat=d)), dtype=np.float64)


def polytope(rng: Rng, n: int) -> Floats:
    """Return corners of cubes, cross-polytopes, simplices, the icosahedron, or the 24-cell."""
    d = max(2, min(7, round(math.log2(max(n, 4)))))
    kind = int(rng.integers(5))
    if kind == 0:
        return np.array(list(itertools.product((-1.0, 1.0), repeat=d)))
    if kind == 1:
        return np.concatenate([np.eye(d + 2), -np.eye(d + 2)])
    if kind == 2:
        return np.eye(d + 3)
    if kind == 3:
        golden = (1 + math.sqrt(5)) / 2
        corner = np.array([(0.0, a, b * golden) for a in (-1, 1) for b in (-1, 1)])
        return np.concatenate([np.roll(corner, s, 1) for s in range(3)])
    return np.array([p for p in itertools.product((-1.0, 0.0, 1.0), repeat=4) if sum(map(abs, p)) == 2])


def sphere(rng: Rng, n: int) -> Floats:
    """Return rings of latitude with as many points each: invariant under turns about the axis."""
    side = max(3, math.isqrt(n))
    height = np.linspace(-0.9, 0.9, side)
    ring = np.tile(_circle(side), (side, 1)) * np.repeat(np.sqrt(1 - height**2), side)[:, None]
    return np.concatenate([ring, np.repeat(height, side)[:, None]], 1)


def gaussian(rng: Rng, n: int) -> Floats:
    return rng.standard_normal((max(n, 4), int(rng.integers(1, 9))))


def heavy_tails(rng: Rng, n: int) -> Floats:
    n, spread = max(n, 4), rng.choice([1.0, 1.5, 3.0])
    found: Floats = rng.standard_normal((n, int(rng.integers(1, 5)))) * np.exp(spread * rng.standard_normal((n, 1)))
    return found


def near_copies(rng: Rng, n: int) -> Floats:
    """Return points in pairs or triples that are 1e-14 to 1e-4 apart."""
    base = gaussian(rng, max(n // 3, 4))
    apart = 10 ** rng.uniform(-14, -4)
    return np.concatenate([base, base + apart * rng.standard_normal(base.shape), base[: len(base) // 2]])


def exact_copies(rng: Rng, n: int) -> Floats:
    base = gaussian(rng, max(n // 2, 4))
    return np.concatenate([base, base[rng.integers(0, len(base), len(base) // 2)]])


def outliers(rng: Rng, n: int) -> Floats:
    """Return one to three points 10 to 10⁷ away from the others."""
    x = gaussian(rng, n)
    far = rng.integers(0, len(x), int(rng.integers(1, 4)))
    x[far] *= 10 ** rng.uniform(1, 7)
    return x


def clusters(rng: Rng, n: int) -> Floats:
    """Return tight clusters, far apart."""
    centres = 10 ** rng.uniform(0, 3) * rng.standard_normal((int(rng.integers(2, 6)), 3))
    found: Floats = centres[rng.integers(0, len(centres), max(n, 6))] + rng.standard_normal((max(n, 6), 3))
    return found


def chain_of_rings(rng: Rng, n: int) -> Floats:
    """Return noisy circles in a row, at most a diameter apart."""
    count = int(rng.integers(2, 8))
    x = _circle(max(n, 6))
    x[:, 0] += rng.uniform(2.05, 4) * rng.integers(0, count, len(x))
    found: Floats = x + 10 ** rng.uniform(-6, -1) * rng.standard_normal(x.shape)
    return found


def line(rng: Rng, n: int) -> Floats:
    """Return evenly spaced points on a line in space."""
    found: Floats = np.linspace(0, 1, max(n, 4))[:, None] * np.array([[1.0, 2.0, -1.0]])
    return found


SYMMETRIC: dict[str, Cloud] = {
    "circle": lambda rng, n: _circle(max(n, 3)),
    "pair of circles": lambda rng, n: np.concatenate([_circle(max(n // 2, 3)) + np.array([x, 0]) for x in (0, 10)]),
    "torus": torus,
    "lattice": lattice,
    "polytope": polytope,
    "sphere": sphere,
    "line": line,
}
IRREGULAR: dict[str, Cloud] = {
    "gaussian": gaussian,
    "heavy tail": heavy_tails,
    "cauchy law": lambda rng, n: rng.standard_cauchy((max(n, 4), int(rng.integers(1, 4)))),
    "cloud of near copies": near_copies,
    "cloud of exact copies": exact_copies,
    "cloud with outliers": outliers,
    "set of clusters": clusters,
    "chain of rings": chain_of_rings,
}
CLOUDS: dict[str, Cloud] = SYMMETRIC | IRREGULAR


def squared_distances(x: Floats) -> Floats:
    """Return all squared distances, to round-off of the distances themselves."""
    total: Floats = sum(((axis[:, None] - axis) ** 2 for axis in x.T), np.zeros((len(x), len(x))))
    return total


def heat_graph(rng: Rng, x: Floats) -> Edges:
    """Return a heat kernel on the k nearest neighbours and all as far as the k-th, which keeps symmetry."""
    d2 = squared_distances(x)
    k = int(rng.integers(2, 12))
    radius = np.sort(d2, 1)[:, min(k, len(x) - 1)]
    near = d2 <= radius[:, None] * (1 + 1e-9)
    near |= near.T
    np.fill_diagonal(near, False)
    lengths = d2[near]
    # A fixed bandwidth suits few of the points: many weights are round-off beside others, or vanish.
    suits = rng.random() < 0.7
    t = np.median(lengths) * 10 ** rng.choice([-1.0, 0.0, 1.0]) if suits else 10 ** rng.uniform(-1, 2)
    kernel = np.exp(-d2 / (t if t > 0 else 1.0))
    return of_dense(np.where(near, kernel, 0.0))
