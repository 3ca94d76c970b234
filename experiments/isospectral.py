"""A shape from its spectrum (Cosmo et al. 2019), and from its modes at a few landmarks, by gradients and without.

A star-shaped surface has radii 1 + Σ c_lm Y_lm over the sphere. Its Laplacian is that of linear finite elements with a
consistent mass. The start is the sphere, on a mesh with the symmetry of the icosahedron, where eigenvalues are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.optimize import minimize
from scipy.sparse import csc_array
from scipy.sparse.linalg import eigsh
from scipy.spatial.transform import Rotation
from scipy.special import lpmv
from torch import Tensor

from experiments.metrics import Numbers
from experiments.runs import Run, check_least, check_names
from experiments.searches import Search, attempt, cma, descend, summary, tables_of
from torch_lapeig import eigenpairs, mesh_laplacian
from torch_lapeig.eigen import MeshLaplacian

WAYS = {
    "layer": "eigenpairs, symmetric start",
    "eigh": "torch.linalg.eigh, symmetric start",
    "eigh_jittered": "torch.linalg.eigh, jittered start",
    "by_hand": "eigsh, Hellmann–Feynman by hand",
    "cma": "eigsh, CMA-ES",
}
DATA = {"spectrum": "eigenvalues", "landmarks": "eigenvalues and modes at landmarks"}
MODES = 36  # with the constant one; the sphere's multiplets of degree 0 to 5
BEYOND = 100  # eigenvalues up to which the spectra are compared
DEGREES = {"truth": 4, "unknown": 6}  # of harmonics, from 2 on
TIMES = (0.02, 0.05, 0.1, 0.2)  # of the heat kernels at landmarks
AMPLITUDE = 0.15  # standard deviation of the radii
PENALTY = 1e-5
JITTER = 0.01


def isospectral(
    out: Path = Path("runs/isospectral"),
    ways: list[str] = list(WAYS),  # noqa: B006 (never changed)
    level: int = 4,
    seeds: int = 3,
    landmarks: int = 8,
    cap: float = 120.0,
    jobs: int = 1,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """A shape from its spectrum alone, and with modes at landmarks, by gradients of eigenpairs and without.

    Args:
        out: folder of metrics.json, the figure and what is finished.
        ways: layer, eigh, eigh_jittered, by_hand (eigenvalues only), cma.
        level: refinements of the icosahedron, 10 · 4^level + 2 vertices.
        seeds: shapes; a way that does not end within the cap tries one.
        landmarks: vertices at which modes are known.
        cap: processor seconds for a shape.
        jobs: processes.
        quick: one shape of 162 vertices by the layer and by eigh.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        ways, level, seeds, cap = ["layer", "eigh"], 2, 1, 3.0
    check_names("ways", ways, WAYS)
    check_least("seeds", seeds, 1)
    check_least("level", level, 2)
    run = Run(out, locals())
    cell = Cell(level, landmarks, cap)
    cases = [(data, way) for data in DATA for way in ways if data == "spectrum" or way != "by_hand"]
    first = run.cells("shapes", cell, [(*case, 0) for case in cases], jobs)
    fast = [case[:2] for case, found in first.items() if found["end"] == "converged"]
    cells = first | run.cells("shapes", cell, [(*case, seed) for case in fast for seed in range(1, seeds)], jobs)
    metrics = {
        data: summary({w: [cells[case] for case in cells if case[:2] == (data, w)] for d, w in cases if d == data})
        for data in DATA
    }
    for data, way in cases:
        beyond = [found["beyond"] for case, found in cells.items() if case[:2] == (data, way)]
        metrics[data][way]["beyond"] = {"mean": float(np.mean(beyond)), "seeds": beyond}
    run.figure("isospectral", figure({way: cells["landmarks", way, 0] for d, way in cases if d == "landmarks"}), dpi=80)
    run.finish(metrics, *tables_of("from", "the shape", WAYS, {DATA[data]: metrics[data] for data in DATA}))


@cache
def icosphere(level: int) -> tuple[Tensor, Tensor]:
    """Return vertices on the sphere and triangles of a refined icosahedron."""
    golden = (1 + 5**0.5) / 2
    pairs = [(a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    vertices = torch.tensor([np.roll((0, *pair), turn) for turn in range(3) for pair in pairs], dtype=torch.float64)
    near = (torch.cdist(vertices, vertices) - 2).abs() < 1e-6
    number = range(12)
    found = [
        (a, b, c)
        for a in number
        for b in number
        for c in number
        if a < b < c and near[a, b] and near[b, c] and near[a, c]
    ]
    faces = torch.tensor(found)
    inward = torch.linalg.det(vertices[faces]) < 0
    faces[inward] = faces[inward].flip(1)
    for _ in range(level):
        corners = [faces, faces.roll(-1, 1)]
        edges, middle = torch.stack(corners, 2).sort(2)[0].flatten(0, 1).unique(dim=0, return_inverse=True)
        middle = (middle + len(vertices)).reshape(-1, 3)
        vertices = torch.cat([vertices, vertices[edges].mean(1)])
        around = [torch.stack([faces[:, i], middle[:, i], middle[:, i - 1]], 1) for i in range(3)]
        faces = torch.cat([*around, middle])
    return vertices / vertices.norm(dim=1, keepdim=True), faces


def harmonics(places: Numbers, degree: int) -> Numbers:
    """Return real spherical harmonics of degree 2 and more at places ``(N, 3)``, of mean square 1: ``(N, P)``."""
    angle, height = np.arctan2(places[:, 1], places[:, 0]), places[:, 2].clip(-1, 1)
    columns = []
    for n in range(2, degree + 1):
        for m in range(-n, n + 1):
            size = math.sqrt((2 - (m == 0)) * (2 * n + 1) * math.factorial(n - abs(m)) / math.factorial(n + abs(m)))
            wave = np.cos(m * angle) if m >= 0 else np.sin(-m * angle)
            columns.append(size * lpmv(abs(m), n, height) * wave)
    return np.stack(columns, 1)


class Surface(Search):
    """The loss of radii 1 + Σ c Y over a mesh of the sphere, by one way and one kind of data, and its truth."""

    def __init__(self, level: int, landmarks: int, data: str, way: str, seed: int, cap: float) -> None:
        self.vertices, self.faces = icosphere(level)
        basis = harmonics(self.vertices.numpy(), DEGREES["unknown"])
        super().__init__(basis.shape[1], cap, PENALTY)
        generator = np.random.default_rng(seed)
        self.basis, self.truth, self.data, self.way = torch.from_numpy(basis), np.zeros(basis.shape[1]), data, way
        known = (DEGREES["truth"] + 1) ** 2 - 4
        self.truth[:known] = generator.normal(size=known)
        self.truth *= AMPLITUDE / np.linalg.norm(self.truth)
        self.landmarks = torch.from_numpy(generator.choice(len(basis), landmarks, replace=False))
        self.start = JITTER * generator.normal(size=len(self.truth)) * (way != "layer" and way != "eigh")
        with torch.no_grad():
            self.target = [part.clone() for part in self.seen(torch.from_numpy(self.truth), by_scipy)]

    def matrices(self, coefficients: Tensor) -> Matrices:
        """Return stiffness and mass."""
        vertices = self.vertices * (1 + self.basis @ coefficients)[:, None]
        return mesh_laplacian(vertices, self.faces, mass="consistent")

    def seen(self, coefficients: Tensor, solve: Solver) -> list[Tensor]:
        """Return eigenvalues after the first, and with landmarks their heat kernels for each time."""
        values, projected, modes = solve(self.matrices(coefficients))
        if self.data == "spectrum":
            return [values[1:]]
        rows = modes[self.landmarks]
        return [values[1:], *(rows @ torch.matrix_exp(-duration * projected) @ rows.mT for duration in TIMES)]

    def fitted(self, coefficients: Tensor) -> Tensor:
        """Return relative differences of eigenvalues, and of kernels over their norms."""
        (values, *kernels), (known, *others) = self.seen(coefficients, SOLVERS[self.way]), self.target
        apart = [(found - other).flatten() / other.norm() for found, other in zip(kernels, others, strict=True)]
        return torch.cat([(values / known - 1) / len(known) ** 0.5, *apart])

    def error(self) -> float:
        """Return the error of the radii over the deviation of the true ones, up to rotations and reflections."""
        places, _ = icosphere(3)
        degree = DEGREES["unknown"]
        found, deviation = harmonics(places.numpy(), degree) @ self.best.numpy(), np.linalg.norm(self.truth)

        def apart(turn: Numbers, side: int) -> float:
            moved = side * Rotation.from_rotvec(turn).apply(places.numpy())
            return float(np.sqrt(np.mean((harmonics(moved, degree) @ self.truth - found) ** 2)) / deviation)

        turns = Rotation.random(300, random_state=0).as_rotvec()
        starts = sorted((apart(turn, side), side, tuple(turn)) for turn in [np.zeros(3), *turns] for side in (1, -1))
        return min(minimize(apart, turn, side, method="Nelder-Mead").fun for _, side, turn in starts[:4])

    def beyond(self) -> float:
        """Return the root mean square of relative differences of eigenvalues after those that were fitted."""
        pairs = [by_scipy(self.matrices(c), BEYOND)[0] for c in (self.best, torch.from_numpy(self.truth))]
        return float((pairs[0] / pairs[1] - 1)[MODES:].square().mean().sqrt())


Matrices = MeshLaplacian
Solved = tuple[Tensor, Tensor, Tensor]  # values (m,), the same as a matrix (m, m), modes (N, m)
Solver = Callable[[Matrices], Solved]


def by_eigenpairs(matrices: Matrices) -> Solved:
    """Return eigenpairs of the library."""
    pairs = eigenpairs(matrices.stiffness, MODES, mass=matrices.mass)
    return pairs.values, pairs.projected, pairs.vectors


def by_eigh(matrices: Matrices) -> Solved:
    """Return eigenpairs of whole matrices, after a Cholesky factor of the mass."""
    root = torch.linalg.cholesky(matrices.mass.to_dense())
    half = torch.linalg.solve_triangular(root, matrices.stiffness.to_matrix().to_dense(), upper=False)
    values, vectors = torch.linalg.eigh(torch.linalg.solve_triangular(root, half.mT, upper=False))
    modes = torch.linalg.solve_triangular(root.mT, vectors[:, :MODES], upper=True)
    return values[:MODES], values[:MODES].diag(), modes


def by_scipy(matrices: Matrices, count: int = MODES) -> Solved:
    """Return eigenpairs by shift-invert, the values with the slopes uᵀ (dK − λ dM) u of Hellmann and Feynman."""
    parts = [matrices.stiffness.to_matrix().to_sparse_coo(), matrices.mass.to_sparse_coo()]
    stiffness, mass = (
        csc_array((part.values().numpy(), tuple(part.indices().numpy())), shape=part.shape)
        for part in (part.detach().coalesce() for part in parts)
    )
    start = np.random.default_rng(0).normal(size=stiffness.shape[0])
    values, modes = map(torch.from_numpy, eigsh(stiffness, count, mass, sigma=-0.1, v0=start))
    slopes = [(modes * (part @ modes)).sum(0) for part in parts]
    return values + slopes[0] - values * slopes[1], values.diag(), modes


SOLVERS: dict[str, Solver] = {
    "layer": by_eigenpairs,
    "eigh": by_eigh,
    "eigh_jittered": by_eigh,
    "by_hand": by_scipy,
    "cma": by_scipy,
}


@dataclass(frozen=True)
class Cell:
    """Finds one shape by one way."""

    level: int
    landmarks: int
    cap: float

    def __call__(self, data: str, way: str, seed: int) -> dict[str, Any]:
        """Return what `attempt` does, the errors of radii and of eigenvalues beyond, and coefficients."""
        search = Surface(self.level, self.landmarks, data, way, seed, self.cap)
        found = attempt(search, cma if way == "cma" else descend, search.start)
        with torch.no_grad():
            return {**found, "error": search.error(), "beyond": search.beyond(), "radii": search.best.tolist()}


def figure(cells: dict[str, dict[str, Any]]) -> Figure:
    """Return the coefficients that each way finds with landmarks, beside the true ones."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots()
    for way, found in cells.items():
        axes.plot(found["radii"], "o-", ms=3, lw=0.6, label=WAYS[way])
    axes.set(xlabel="harmonic, from degree 2 on", ylabel="coefficient of the radii")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
