"""Manifolds with known eigenfunctions."""

import math

import numpy as np
import pytest
from scipy.special import iv

from experiments.shapes import LOOP, MANIFOLDS


@pytest.mark.parametrize("name", MANIFOLDS)
def test_modes_are_orthogonal(name):
    """On a sample of the uniform density the Gram matrix of the normalised modes is near the identity."""
    manifold, n = MANIFOLDS[name](), 40000
    u = manifold.sample(n, 0.0, np.random.default_rng(0))
    modes = np.stack([mode.function(u) for mode in manifold.modes[:9]], 1)
    modes /= np.sqrt((modes**2).mean(0))
    np.testing.assert_allclose(modes.T @ modes / n, np.eye(9), atol=6 / np.sqrt(n))


@pytest.mark.parametrize("name", MANIFOLDS)
def test_modes_solve_the_eigenvalue_problem(name):
    """−Δ f = λ f by central differences in the interior, in the coordinates of each manifold."""
    manifold, h = MANIFOLDS[name](), 1e-3
    u = manifold.sample(200, 0.0, np.random.default_rng(0))

    def second(f, axis):
        e = h * np.eye(u.shape[1])[axis]
        return (f(u + e) - 2 * f(u) + f(u - e)) / h**2

    def first(f, axis):
        e = h * np.eye(u.shape[1])[axis]
        return (f(u + e) - f(u - e)) / (2 * h)

    def laplacian(f):
        if name in ("disc", "ring"):
            r = u[:, 0]
            return second(f, 0) + first(f, 0) / r + second(f, 1) / r**2
        if name == "sphere":  # of f extended along rays
            return sum(second(lambda v: f(v / np.linalg.norm(v, axis=1, keepdims=True)), i) for i in range(3))
        return sum(second(f, axis) for axis in range(u.shape[1]))

    interior = np.ones(len(u), bool)
    if name == "disc":
        interior = u[:, 0] > 0.1
    if name == "eight":  # the second derivative is taken along a loop
        interior = (np.abs(u[:, 0] - LOOP) > 2 * h) & (u[:, 0] > 2 * h) & (u[:, 0] < 2 * LOOP - 2 * h)
    for mode in manifold.modes[:9]:
        f = mode.function(u)
        error = np.abs(-laplacian(mode.function) - mode.value * f)[interior]
        assert error.max() < 2e-3 * max(mode.value, 1) * np.abs(f).max()


KNOWN = {
    "circle": [(1, 2), (4, 2), (9, 2)],
    "eight": [((wave * np.pi / 2.622057554) ** 2, copies) for wave, copies in ((1, 1), (2, 3), (3, 1))],
    "disc": [(1.841183781**2, 2), (3.054236928**2, 2), (3.831705970**2, 1)],
    "square": [(np.pi**2 / 4, 2), (np.pi**2 / 2, 1), (np.pi**2, 2)],
    "sphere": [(2, 3), (6, 5), (12, 7)],
    "cylinder": [(1, 2), (np.pi**2 / 4, 1), (1 + np.pi**2 / 4, 2)],
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_eigenvalues(name):
    spaces = MANIFOLDS[name]().eigenspaces(3)
    assert [len(space) for space in spaces] == [count for _, count in KNOWN[name]]
    np.testing.assert_allclose([space[0].value for space in spaces], [value for value, _ in KNOWN[name]], rtol=1e-8)


def test_density_of_tilted_samples():
    """Means of x₁ on the square under ∝ exp(a x): coth a − 1/a; on the circle I₁(a)/I₀(a)."""
    a, n = 1.5, 40000
    for name, mean in (("square", 1 / math.tanh(a) - 1 / a), ("circle", iv(1, a) / iv(0, a))):
        manifold = MANIFOLDS[name]()
        x = manifold.embed(manifold.sample(n, a, np.random.default_rng(0)))[:, 0]
        assert x.mean() == pytest.approx(mean, abs=4 / math.sqrt(n))
