"""A membrane of unknown stiffness and what few sensors measure of its modes.

−∇·(c ∇u) = λ u on the unit square, held at its edge, by linear finite elements with a consistent mass. The logarithm of
c is bilinear between coefficients on a grid. The data are the first modes at the sensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy.linalg
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csc_array
from scipy.sparse.linalg import eigsh
from scipy.spatial.distance import cdist
from torch import Tensor

from experiments.metrics import Numbers

CELLS = {64: 6, 400: 15, 1000: 23, 4000: 45, 20000: 100}  # along a side of the mesh, for about so many free nodes
MODES = 13  # which cut no pair of equal eigenvalues of the uniform square
ROUGHNESS = 1.5  # power by which amplitudes of waves fall


class Trial(NamedTuple):
    """Conditions: approximate number of nodes, sensors, noise, coefficients along a side."""

    nodes: int
    sensors: int
    noise: float
    side: int


@dataclass(frozen=True, eq=False)
class Membrane:
    """Finite elements of a mesh: K(c) and M at the free nodes.

    Attributes:
        places: of the free nodes, ``(N, 2)``.
        index: rows and columns of entries of K and M, ``(2, E)``.
        share: entries of K of each triangle where c = 1, flat; ``triangle``, ``entry``: of what they are shares.
        mass: entries of M, ``(E,)``.
        centres, areas: of the triangles.
    """

    places: Tensor
    index: Tensor
    share: Tensor
    triangle: Tensor
    entry: Tensor
    mass: Tensor
    centres: Tensor
    areas: Tensor

    @classmethod
    @cache
    def of(cls, cells: int) -> Membrane:
        """Return the membrane on a mesh with the symmetry of the square."""
        vertices, faces = crossed_square(cells)
        is_free = ((vertices > 1e-9) & (vertices < 1 - 1e-9)).all(1)
        corners = vertices[faces]
        sides = corners.roll(-1, 1) - corners.roll(-2, 1)
        areas = (sides[:, 0, 0] * sides[:, 1, 1] - sides[:, 0, 1] * sides[:, 1, 0]).abs() / 2
        number = torch.where(is_free, is_free.cumsum(0) - 1, -1)[faces]
        row, col = (side.expand(-1, 3, 3).flatten() for side in (number[:, :, None], number[:, None]))
        kept = ((row >= 0) & (col >= 0)).nonzero().flatten()
        n = int(is_free.sum())
        keys, entry = (row * n + col)[kept].unique(return_inverse=True)
        share = (sides @ sides.mT / (4 * areas[:, None, None])).flatten()[kept]
        masses = (areas[:, None, None] / 12 * (1 + torch.eye(3, dtype=torch.float64))).flatten()[kept]
        mass = torch.zeros(len(keys), dtype=torch.float64).index_add(0, entry, masses)
        index = torch.stack([keys // n, keys % n])
        return cls(vertices[is_free], index, share, kept // 9, entry, mass, corners.mean(1), areas)

    def stiffness(self, field: Tensor) -> Tensor:
        """Return the entries of K for the logarithms of c in the triangles."""
        parts = self.share * field.exp()[self.triangle]
        return torch.zeros_like(self.mass).index_add(0, self.entry, parts)

    def sparse(self, entries: Tensor) -> Tensor:
        """Return a sparse matrix of torch."""
        n = len(self.places)
        return torch.sparse_coo_tensor(self.index, entries, (n, n), is_coalesced=True, check_invariants=False)

    def scipy(self, entries: Tensor | Numbers) -> csc_array:
        """Return a sparse matrix of SciPy; entries are symmetric, so that rows serve as columns."""
        n = len(self.places)
        return csc_array((np.asarray(entries), tuple(self.index.numpy())), shape=(n, n))


def crossed_square(cells: int) -> tuple[Tensor, Tensor]:
    """Return vertices and triangles of the unit square: cells of four triangles each, around their centres."""
    lines = torch.linspace(0, 1, cells + 1, dtype=torch.float64)
    vertices = torch.cat([torch.cartesian_prod(lines, lines), torch.cartesian_prod(*[lines[:-1] + 0.5 / cells] * 2)])
    first, second = torch.cartesian_prod(torch.arange(cells), torch.arange(cells)).T
    corner = first * (cells + 1) + second
    around = [corner, corner + 1, corner + cells + 2, corner + cells + 1]
    centre = (cells + 1) ** 2 + torch.arange(cells**2)
    faces = [torch.stack([a, b, centre], 1) for a, b in zip(around, [*around[1:], around[0]], strict=True)]
    return vertices, torch.cat(faces)


@dataclass(frozen=True, eq=False)
class Problem:
    """A membrane, its sensors, and what is measured there.

    Attributes:
        basis: field in the triangles of each coefficient, ``(T, P)``.
        sensors: nodes, ``(s,)``.
        values, modes: measured, ``(MODES,)`` and ``(s, MODES)``.
        truth: the field in the triangles.
        noise: of the modes.
    """

    membrane: Membrane
    basis: Tensor
    sensors: Tensor
    values: Tensor
    modes: Tensor
    truth: Tensor
    noise: float

    @classmethod
    def of(cls, trial: Trial, seed: int) -> Problem:
        """Return the problem of a seed."""
        generator = np.random.default_rng(seed)
        membrane = Membrane.of(CELLS[trial.nodes])
        spots = (np.arange(trial.sensors)[:, None] * [0.7548776662466927, 0.5698402909980532] + generator.random(2)) % 1
        sensors = linear_sum_assignment(cdist(spots, membrane.places))[1]
        truth = random_field(membrane.centres, generator)
        values, modes = solved(membrane, membrane.stiffness(truth))
        values, modes = with_noise(values, modes[sensors], trial.noise, generator)
        measured = torch.from_numpy(values), torch.from_numpy(modes)
        basis = bilinear(membrane.centres, trial.side)
        return cls(membrane, basis, torch.from_numpy(sensors), *measured, truth, trial.noise)

    def entries(self, coefficients: Tensor) -> Tensor:
        """Return the entries of K for coefficients."""
        return self.membrane.stiffness(self.basis @ coefficients)

    def error(self, coefficients: Tensor) -> float:
        """Return the error of the field over its own norm: 1 for the uniform one."""
        areas = self.membrane.areas
        squares = ((self.basis @ coefficients - self.truth).square(), self.truth.square())
        return float(((areas * squares[0]).sum() / (areas * squares[1]).sum()).sqrt())


def random_field(places: Tensor, generator: np.random.Generator) -> Tensor:
    """Return the logarithm of a random c at places: waves of falling amplitude, of standard deviation ½."""
    p, q = torch.cartesian_prod(torch.arange(5), torch.arange(5))[1:].T
    amplitudes = torch.from_numpy(generator.normal(size=len(p))) / (1 + p**2 + q**2) ** (ROUGHNESS / 2)
    waves = (torch.pi * places[:, :1] * p).cos() * (torch.pi * places[:, 1:] * q).cos()
    field = waves @ amplitudes
    scaled: Tensor = 0.5 * (field - field.mean()) / field.std()
    return scaled


def with_noise(
    values: Numbers, modes: Numbers, noise: float, generator: np.random.Generator
) -> tuple[Numbers, Numbers]:
    """Return what is measured of eigenvalues and of modes ``(s, m)`` at the sensors."""
    size = noise * np.sqrt((modes**2).mean(0))
    values = values * (1 + noise / 10 * generator.normal(size=len(values)))
    return values, modes + size * generator.normal(size=modes.shape)


def bilinear(places: Tensor, side: int) -> Tensor:
    """Return functions at places, ``(T, side²)``: hats of a grid, turned so that the penalty is the sum of squares.

    The penalty is that of differences between neighbours on the grid and, with a small weight, of values.
    """
    knots = torch.linspace(0, 1, side, dtype=torch.float64)
    along = (1 - (places[:, :, None] - knots).abs() * (side - 1)).clamp_min(0)
    hats = (along[:, 0, :, None] * along[:, 1, None, :]).flatten(1)
    one = torch.eye(side, dtype=torch.float64)
    second = one.diff(dim=0).T @ one.diff(dim=0)
    penalty = torch.kron(second, one) + torch.kron(one, second) + 7 / side**2 * torch.eye(side**2, dtype=torch.float64)
    turned: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(penalty), hats.T, upper=False)
    return turned.T


def solved(membrane: Membrane, entries: Tensor, count: int = MODES) -> tuple[Numbers, Numbers]:
    """Return eigenvalues and modes by SciPy: whole matrices where they are small, else shift-invert."""
    stiffness, mass = membrane.scipy(entries.detach()), membrane.scipy(membrane.mass)
    if len(membrane.places) < 100:
        values, modes = scipy.linalg.eigh(stiffness.toarray(), mass.toarray(), subset_by_index=[0, count - 1])
        return values, modes
    start = np.random.default_rng(0).normal(size=len(membrane.places))
    values, modes = eigsh(stiffness, count, mass, sigma=0, v0=start)
    return values, modes
