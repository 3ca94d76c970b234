"""Manifolds whose Laplace–Beltrami eigenfunctions (Neumann, where there is a boundary) are known in closed form."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.spatial import ConvexHull
from scipy.special import beta, ellipj, jnp_zeros, jv, jvp, yv, yvp
from torch import Tensor

Array = NDArray[np.float64]

ORDERS = 8  # angular and axial orders of the modes that are listed
INNER = 0.5  # radius of the ring's hole
HEIGHT = 2.0  # of the cylinder
LOOP = float(beta(0.25, 0.5)) / 2  # ϖ, length of one loop of the lemniscate


class Mode(NamedTuple):
    """An eigenfunction of −Δ: its eigenvalue, and its values ``(N,)`` at intrinsic coordinates ``(N, c)``."""

    value: float
    function: Callable[[Array], Array]


class Manifold(NamedTuple):
    """A compact manifold in R² or R³, within the unit interval of the first axis: |x₁| ≤ 1.

    Attributes:
        dimension: its own, 1 or 2.
        volume: length or area.
        draw: n intrinsic coordinates ``(n, c)``, uniform in volume.
        embed: points ``(N, 2)`` or ``(N, 3)`` of coordinates.
        modes: by ascending eigenvalue, the constant first.
    """

    dimension: int
    volume: float
    draw: Callable[[Generator, int], Array]
    embed: Callable[[Array], Array]
    modes: list[Mode]

    def sample(self, n: int, tilt: float, generator: Generator) -> Array:
        """Return ``(n, c)`` coordinates of a density ∝ exp(tilt · x₁) (0 for uniform), which varies by exp(2 tilt)."""
        kept = np.empty((0, self.draw(generator, 1).shape[1]))
        while len(kept) < n:
            u = self.draw(generator, n)
            accepted = generator.random(n) < np.exp(tilt * (self.embed(u)[:, 0] - 1))
            kept = np.concatenate([kept, u[accepted]])
        return np.asarray(kept[:n])

    def eigenspaces(self, count: int) -> list[list[Mode]]:
        """Return the modes of the ``count`` smallest eigenvalues after 0, those of one eigenvalue together."""
        groups = itertools.groupby(self.modes, key=lambda mode: round(mode.value, 8))
        return [list(modes) for _, modes in itertools.islice(groups, 1, count + 1)]


def circle() -> Manifold:
    """Return the unit circle; coordinate: the angle. Fourier modes."""

    def draw(generator: Generator, n: int) -> Array:
        return generator.uniform(0, 2 * np.pi, (n, 1))

    return Manifold(1, 2 * np.pi, draw, lambda u: _polar(1.0, u[:, 0]), _sorted(_angular(0)))


def eight() -> Manifold:
    """Return Bernoulli's lemniscate; coordinate: arc length s from the crossing, the right loop before s = ϖ.

    A neighbourhood graph cannot tell the branches apart at the crossing, so this is two loops of length ϖ joined at a
    point: its eigenfunctions are continuous there, and their four slopes add up to zero (Kirchhoff).
    """

    def draw(generator: Generator, n: int) -> Array:
        return generator.uniform(0, 2 * LOOP, (n, 1))

    def embed(u: Array) -> Array:
        sn, cn, dn, _ = ellipj(np.sqrt(2) * u[:, 0], 0.5)
        r = sn / dn / np.sqrt(2)  # the lemniscate sine; cn is the cosine
        x = r * np.sqrt((1 + r**2) / 2)
        return np.stack([x, x * cn], 1)

    def loopwise(k: float) -> Mode:
        return Mode(k**2, lambda u: np.where(u[:, 0] < LOOP, 1, -1) * np.sin(k * u[:, 0]))

    modes = [Mode(0, lambda u: np.ones(len(u)))]
    for order in range(1, ORDERS + 1):
        k = order * np.pi / LOOP
        modes.append(_sine(k, 0))
        if order % 2 == 0:
            modes += [_cosine(k, 0), loopwise(k)]
    return Manifold(1, 2 * LOOP, draw, embed, _sorted(modes))


def disc() -> Manifold:
    """Return the unit disc; coordinates: radius and angle. J_m(k r) with J_m'(k) = 0, times angular modes."""
    modes = [Mode(0, lambda u: np.ones(len(u)))]
    for m in range(ORDERS):
        for k in jnp_zeros(m, 3):
            modes += _with_angle(k, m, partial(_bessel, k=k, m=m))
    return Manifold(2, np.pi, _draw_ring(0.0), lambda u: _polar(u[:, 0], u[:, 1]), _sorted(modes))


def ring() -> Manifold:
    """Return the annulus ½ ≤ r ≤ 1; coordinates: radius and angle. J_m(k r) Y_m'(k/2) − J_m'(k/2) Y_m(k r)."""
    modes = [Mode(0, lambda u: np.ones(len(u)))]
    for m in range(ORDERS):
        for k in _ring_roots(m):
            modes += _with_angle(k, m, partial(_cross_product, k=k, m=m))
    area = np.pi * (1 - INNER**2)
    return Manifold(2, area, _draw_ring(INNER), lambda u: _polar(u[:, 0], u[:, 1]), _sorted(modes))


def square() -> Manifold:
    """Return [−1, 1]²; coordinates: those of the plane. Products of cosines."""

    def draw(generator: Generator, n: int) -> Array:
        return generator.uniform(-1, 1, (n, 2))

    return Manifold(2, 4.0, draw, lambda u: u, _products(_interval(0, -1.0, 2.0), _interval(1, -1.0, 2.0)))


def sphere() -> Manifold:
    """Return the unit sphere; coordinates: those of space. Harmonic polynomials of degree l, eigenvalue l (l + 1)."""

    def draw(generator: Generator, n: int) -> Array:
        x = generator.standard_normal((n, 3))
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))

    polynomials: dict[int, list[Callable[[Array, Array, Array], Array]]] = {
        0: [lambda x, y, z: np.ones_like(x)],
        1: [lambda x, y, z: x, lambda x, y, z: y, lambda x, y, z: z],
        2: [
            lambda x, y, z: x * y,
            lambda x, y, z: y * z,
            lambda x, y, z: z * x,
            lambda x, y, z: x**2 - y**2,
            lambda x, y, z: 3 * z**2 - 1,
        ],
        3: [
            lambda x, y, z: x * y * z,
            lambda x, y, z: z * (x**2 - y**2),
            lambda x, y, z: x * (x**2 - 3 * y**2),
            lambda x, y, z: y * (3 * x**2 - y**2),
            lambda x, y, z: x * (5 * z**2 - 1),
            lambda x, y, z: y * (5 * z**2 - 1),
            lambda x, y, z: z * (5 * z**2 - 3),
        ],
    }

    def harmonic(degree: int, polynomial: Callable[[Array, Array, Array], Array]) -> Mode:
        return Mode(degree * (degree + 1), lambda u: polynomial(*u.T))

    modes = [harmonic(degree, polynomial) for degree, basis in polynomials.items() for polynomial in basis]
    return Manifold(2, 4 * np.pi, draw, lambda u: u, modes)


def cylinder() -> Manifold:
    """Return the side of a cylinder of radius 1 and height 2; coordinates: angle and height. Products."""

    def draw(generator: Generator, n: int) -> Array:
        return generator.uniform([0, 0], [2 * np.pi, HEIGHT], (n, 2))

    def embed(u: Array) -> Array:
        return np.concatenate([_polar(1.0, u[:, 0]), u[:, 1:]], 1)

    return Manifold(2, 2 * np.pi * HEIGHT, draw, embed, _products(_angular(0), _interval(1, 0.0, HEIGHT)))


MANIFOLDS: dict[str, Callable[[], Manifold]] = {
    "circle": circle,
    "eight": eight,
    "disc": disc,
    "ring": ring,
    "square": square,
    "sphere": sphere,
    "cylinder": cylinder,
}


def _polar(r: Array | float, angle: Array) -> Array:
    return np.stack([r * np.cos(angle), r * np.sin(angle)], 1)


def _cosine(k: float, axis: int, start: float = 0.0) -> Mode:
    return Mode(k**2, lambda u: np.cos(k * (u[:, axis] - start)))


def _sine(k: float, axis: int) -> Mode:
    return Mode(k**2, lambda u: np.sin(k * u[:, axis]))


def _angular(axis: int) -> list[Mode]:
    """Return modes of a circle of radius 1."""
    return [_cosine(0, axis)] + [mode(m, axis) for m in range(1, ORDERS) for mode in (_cosine, _sine)]


def _interval(axis: int, start: float, length: float) -> list[Mode]:
    """Return modes of an interval, of slope 0 at both ends."""
    return [_cosine(np.pi * m / length, axis, start) for m in range(ORDERS)]


def _products(first: list[Mode], second: list[Mode]) -> list[Mode]:
    """Return modes of a product: eigenvalues add, functions multiply."""

    def product(a: Mode, b: Mode) -> Mode:
        return Mode(a.value + b.value, lambda u: a.function(u) * b.function(u))

    return _sorted([product(a, b) for a in first for b in second])


def _with_angle(k: float, m: int, radial: Callable[[Array], Array]) -> list[Mode]:
    """Return cos(m θ) and sin(m θ) times a function of the radius; one mode for m = 0."""

    def mode(angular: Mode) -> Mode:
        return Mode(k**2, lambda u: radial(u[:, 0]) * angular.function(u))

    return [mode(angular) for angular in ([_cosine(m, 1), _sine(m, 1)] if m else [_cosine(0, 1)])]


def _bessel(r: Array, k: float, m: int) -> Array:
    values: Array = jv(m, k * r)
    return values


def _cross_product(r: Array, k: float, m: int) -> Array:
    """Return the solution of Bessel's equation whose slope is 0 at the inner radius."""
    values: Array = jv(m, k * r) * yvp(m, k * INNER) - jvp(m, k * INNER) * yv(m, k * r)
    return values


def _draw_ring(inner: float) -> Callable[[Generator, int], Array]:
    def draw(generator: Generator, n: int) -> Array:
        squared_radius, angle = generator.uniform([inner**2, 0], [1, 2 * np.pi], (n, 2)).T
        return np.stack([np.sqrt(squared_radius), angle], 1)

    return draw


def _ring_roots(m: int) -> list[float]:
    """Return the k up to 16 at which J_m(k r) Y_m'(k/2) − J_m'(k/2) Y_m(k r) has slope 0 at r = 1 too."""

    def slope(k: float) -> float:
        return float(jvp(m, k) * yvp(m, k * INNER) - jvp(m, k * INNER) * yvp(m, k))

    grid = np.linspace(0.1, 16, 400)
    values = [slope(k) for k in grid]
    changes = [i for i in range(len(grid) - 1) if values[i] * values[i + 1] < 0]
    return [float(brentq(slope, grid[i], grid[i + 1])) for i in changes]


def _sorted(modes: list[Mode]) -> list[Mode]:
    return sorted(modes, key=lambda mode: mode.value)


@cache
def icosphere(level: int) -> tuple[Tensor, Tensor]:
    """Return vertices on the sphere and triangles of a refined icosahedron."""
    long = (1 + 5**0.5) / 2
    corners = [np.roll((0, a, b * long), turn) for turn in range(3) for a in (-1, 1) for b in (-1, 1)]
    vertices = torch.from_numpy(np.array(corners))
    faces = torch.from_numpy(ConvexHull(vertices.numpy()).simplices).long()
    for _ in range(level):
        sides = torch.stack([faces, faces.roll(-1, 1)], 2).sort(2)[0].flatten(0, 1)
        edges, number = sides.unique(dim=0, return_inverse=True)
        middle = (number + len(vertices)).reshape(-1, 3)
        vertices = torch.cat([vertices, vertices[edges].mean(1)])
        around = [torch.stack([faces[:, i], middle[:, i], middle[:, i - 1]], 1) for i in range(3)]
        faces = torch.cat([*around, middle])
    return vertices / vertices.norm(dim=1, keepdim=True), faces
