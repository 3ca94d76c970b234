"""A shape from its spectrum (Cosmo et al. 2019), and from its modes at a few landmarks, by gradients and without.

A star-shaped surface has radii 1 + Σ c_lm Y_lm over the sphere. Its Laplacian is that of linear finite elements with a
consistent mass. The start is the sphere, on a mesh with the symmetry of the icosahedron, where eigenvalues are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse import csc_array
from scipy.sparse.linalg import eigsh
from scipy.spatial.transform import Rotation
from scipy.special import lpmv
from torch import Tensor

from experiments.metrics import Numbers, mean_and_interval
from experiments.runs import Run, check_names
from experiments.searches import Search, attempt, descend, gauss_newton, summary, tables_of
from experiments.shapes import icosphere
from torch_lapeig import eigenpairs, mesh_laplacian
from torch_lapeig.eigen import MeshLaplacian

WAYS = {
    "layer": "eigenpairs, symmetric start",
    "eigh": "torch.linalg.eigh, symmetric start",
    "eigh_jittered": "torch.linalg.eigh, jittered start",
    "by_hand": "eigsh, Hellmann–Feynman by hand",
    "reduced": "torch.linalg.eigh in 100 modes, jittered start",
    "differences": "eigsh, finite differences",
}
ONLY = {"by_hand": "spectrum", "eigh": "landmarks"}  # the data of ways that are not tried with both
DATA = {"spectrum": "eigenvalues", "landmarks": "eigenvalues and modes at landmarks"}
MODES = 36  # with the constant one; the sphere's multiplets of degree 0 to 5
REDUCED, BASES = 100, 5  # modes of a basis; bases one after the other
BEYOND = 100  # eigenvalues up to which the spectra are compared
DEGREES = {"truth": 4, "unknown": 6}  # of harmonics, from 2 on
TIMES = (0.02, 0.05, 0.1, 0.2)  # of the heat kernels at landmarks
AMPLITUDE = 0.1  # standard deviation of the radii
PENALTY = 1e-6
JITTER = 0.01


def isospectral(
    out: Path = Path("runs/isospectral"),
    ways: list[str] = list(WAYS),  # noqa: B006 (never changed)
    level: int = 3,
    seeds: int = 4,
    landmarks: int = 16,
    cap: float = 40.0,
    jobs: int = 1,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """A shape from its spectrum alone, and with modes at landmarks, by gradients of eigenpairs and without.

    Args:
        out: folder of metrics.json and what is finished.
        ways: layer, eigh, eigh_jittered, by_hand (eigenvalues only), reduced, differences.
        level: refinements of the icosahedron, 10 · 4^level + 2 vertices.
        seeds: shapes; torch.linalg.eigh tries one.
        landmarks: vertices at which modes are known.
        cap: processor seconds for a shape.
        jobs: processes.
        quick: one shape of 162 vertices by the layer and by eigh.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        ways, level, seeds, cap = ["layer", "eigh"], 2, 1, 1.0
    check_names("ways", ways, WAYS)
    run = Run(out, locals())
    cell = partial(attempted, level, landmarks, cap)
    cases = [(data, way) for data in DATA for way in ways if ONLY.get(way, data) == data]
    rest = [(*case, seed) for case in cases if case[1] not in ("eigh", "eigh_jittered") for seed in range(1, seeds)]
    cells = run.cells("shapes", cell, [*((*case, 0) for case in cases), *rest], jobs)
    metrics = {
        data: summary({w: [cells[case] for case in cells if case[:2] == (data, w)] for d, w in cases if d == data})
        for data in DATA
    }
    for data, way in cases:
        beyond = [found["beyond"] for case, found in cells.items() if case[:2] == (data, way)]
        metrics[data][way]["beyond"] = mean_and_interval(beyond)
    run.finish(metrics, *tables_of("from", "the shape", WAYS, {DATA[data]: metrics[data] for data in DATA}))


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

    iterations = 100

    def __init__(self, level: int, landmarks: int, data: str, way: str, seed: int, cap: float) -> None:
        self.vertices, self.faces = icosphere(level)
        basis = harmonics(self.vertices.numpy(), DEGREES["unknown"])
        super().__init__(basis.shape[1], cap, PENALTY)
        generator = np.random.default_rng(seed)
        self.basis, self.truth, self.data = torch.from_numpy(basis), np.zeros(basis.shape[1]), data
        solvers = {"layer": by_eigenpairs, "eigh": by_eigh, "eigh_jittered": by_eigh, "reduced": self.in_basis}
        self.solve: Solver = solvers.get(way, by_scipy)
        known = (DEGREES["truth"] + 1) ** 2 - 4
        self.truth[:known] = generator.normal(size=known)
        self.truth *= AMPLITUDE / np.linalg.norm(self.truth)
        self.landmarks = torch.from_numpy(generator.choice(len(basis), landmarks, replace=False))
        self.start = JITTER * generator.normal(size=len(self.truth)) * (way not in ("layer", "eigh", "differences"))
        with torch.no_grad():
            self.target = [part.clone() for part in self.seen(torch.from_numpy(self.truth), by_scipy)]

    def matrices(self, coefficients: Tensor) -> MeshLaplacian:
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
        (values, *kernels), (known, *others) = self.seen(coefficients, self.solve), self.target
        apart = [(found - other).flatten() / other.norm() for found, other in zip(kernels, others, strict=True)]
        return torch.cat([(values / known - 1) / len(known) ** 0.5, *apart])

    def in_basis(self, matrices: MeshLaplacian) -> Solved:
        """Return eigenpairs of `torch.linalg.eigh` among the combinations of the basis."""
        products = matrices.stiffness.matmul(self.frame), matrices.mass @ self.frame
        values, projected, modes = by_cholesky(*(self.frame.mT @ product for product in products))
        return values, projected, self.frame @ modes

    @torch.no_grad()
    def renew(self) -> None:
        """Take for a basis the first modes of the best shape so far."""
        self.frame, self.least = by_scipy(self.matrices(self.best), REDUCED)[2], np.inf

    def error(self) -> float:
        """Return the error of the radii over the deviation of the true ones, up to rotations and reflections."""
        places, degree = icosphere(2)[0].numpy(), DEGREES["truth"]
        truth = self.truth[: (degree + 1) ** 2 - 4]
        found = harmonics(places, DEGREES["unknown"]) @ self.best.numpy()

        def apart(turn: Numbers, side: int) -> float:
            moved = side * Rotation.from_rotvec(turn).apply(places)
            return float(np.sqrt(np.mean((harmonics(moved, degree) @ truth - found) ** 2)) / np.linalg.norm(truth))

        turns = [np.zeros(3), *Rotation.random(100, random_state=0).as_rotvec()]
        starts = sorted((apart(turn, side), side, tuple(turn)) for turn in turns for side in (1, -1))
        ends = [minimize(apart, turn, side, method="Nelder-Mead") for _, side, turn in starts[:3]]
        return float(min(end.fun for end in ends))

    @torch.no_grad()
    def beyond(self) -> float:
        """Return the root mean square of relative differences of eigenvalues after those that were fitted."""
        pairs = [by_scipy(self.matrices(c), BEYOND)[0] for c in (self.best, torch.from_numpy(self.truth))]
        return float((pairs[0] / pairs[1] - 1)[MODES:].square().mean().sqrt())


Solved = tuple[Tensor, Tensor, Tensor]  # values (m,), the same as a matrix (m, m), modes (N, m)
Solver = Callable[[MeshLaplacian], Solved]


def by_eigenpairs(matrices: MeshLaplacian) -> Solved:
    """Return eigenpairs of the library."""
    pairs = eigenpairs(matrices.stiffness, MODES, mass=matrices.mass)
    return pairs.values, pairs.projected, pairs.vectors


def by_eigh(matrices: MeshLaplacian) -> Solved:
    """Return eigenpairs of whole matrices."""
    return by_cholesky(matrices.stiffness.to_dense(), matrices.mass.to_dense())


def by_cholesky(stiffness: Tensor, mass: Tensor) -> Solved:
    """Return eigenpairs of dense matrices by `torch.linalg.eigh`."""
    root = torch.linalg.cholesky(mass)
    half = torch.linalg.solve_triangular(root, stiffness, upper=False)
    values, vectors = torch.linalg.eigh(torch.linalg.solve_triangular(root, half.mT, upper=False))
    modes = torch.linalg.solve_triangular(root.mT, vectors[:, :MODES], upper=True)
    return values[:MODES], values[:MODES].diag(), modes


def by_scipy(matrices: MeshLaplacian, count: int = MODES) -> Solved:
    """Return eigenpairs by shift-invert, the values with the slopes uᵀ (dK − λ dM) u of Hellmann and Feynman."""
    parts = [matrices.stiffness.to_matrix().to_sparse_coo(), matrices.mass.detach()]
    stiffness, mass = (
        csc_array((part.values().numpy(), tuple(part.indices().numpy())), shape=part.shape)
        for part in (part.coalesce() for part in parts)
    )
    start = np.random.default_rng(0).normal(size=stiffness.shape[0])
    values, modes = map(torch.from_numpy, eigsh(stiffness, count, mass, sigma=-0.1, v0=start))
    slopes = [(modes * product).sum(0) for product in (matrices.stiffness.matmul(modes), matrices.mass @ modes)]
    return slopes[0] - values * (slopes[1] - 1), values.diag(), modes


def in_basis(search: Surface, start: Numbers) -> None:
    """Minimise in bases of modes, each of the best shape in the last one."""
    search.iterations //= BASES
    for _ in range(BASES):
        search.renew()
        descend(search, start)
        start = search.best.numpy()


def attempted(level: int, landmarks: int, cap: float, data: str, way: str, seed: int) -> dict[str, Any]:
    """Return what `attempt` does for one shape, and the errors of radii and of eigenvalues beyond."""
    search = Surface(level, landmarks, data, way, seed, cap)
    method = {"reduced": in_basis, "differences": gauss_newton}.get(way, descend)
    found = attempt(search, method, search.start)
    return {**found, "error": search.error(), "beyond": search.beyond()}
