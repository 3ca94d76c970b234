"""A field of stiffness from noisy modes at few sensors, with derivatives of eigenvectors and by ways without.

A membrane −∇·(c ∇u) = λ u on the unit square, held at its edge, by linear finite elements with a consistent mass. The
logarithm of c is bilinear between coefficients on a grid. The data are the first modes at the sensors. Ways that fit
them compare matrices Σ_i f(λ_i) φ_i φ_iᵀ, which depend on no sign and no basis, with one penalty on rough fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import torch
from scipy.optimize import least_squares, linear_sum_assignment, minimize
from scipy.sparse import csc_array
from scipy.sparse.linalg import eigsh, splu
from scipy.spatial.distance import cdist
from sklearn.compose import TransformedTargetRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import torch_lapeig
from experiments.metrics import Numbers
from experiments.runs import Refusal, Run, check_least, check_names
from experiments.searches import ITERATIONS, Search, attempt, cma, descend, summary, tables_of
from torch_lapeig import eigenpairs

WAYS = {
    "layer": "eigenpairs, symmetric start",
    "layer_eigh": "torch_lapeig.eigh, symmetric start",
    "eigh": "torch.linalg.eigh, symmetric start",
    "eigh_jittered": "torch.linalg.eigh, jittered start",
    "nelson": "eigsh, Nelson by hand, jittered start",
    "fox_kapoor": "eigsh, Fox and Kapoor by hand, jittered start",
    "least_squares": "eigsh, finite differences, least squares",
    "cma": "eigsh, CMA-ES",
    "eigenvalues": "eigenpairs, eigenvalues only",
    "linear": "one step of linearisation",
    "matrix_exp": "matrix_exp, no eigenvectors",
    "resolvent": "implicit steps of diffusion, no eigenvectors",
    "perceptron": "perceptron trained on simulations",
}
CELLS = {64: 6, 400: 15, 1000: 23, 4000: 45, 20000: 100}  # along a side of the mesh, for about so many free nodes
MODES = 13  # which cut no pair of equal eigenvalues of the uniform square
SUMMED = 4 * MODES  # modes of Fox and Kapoor's sum
TIMES = tuple(part / (10 * np.pi**2) for part in (0.25, 0.5, 1.0, 2.0))  # 10 π² is in the middle of the values
STEPS = 8  # implicit ones of a diffusion
PENALTY = 3e-5
PENALTIES = {"linear": 3e-3, "eigenvalues": 3e-3}
JITTER = 0.02
ROUGHNESS = 1.5  # power by which amplitudes of waves fall
SIMULATIONS = 800
HIDDEN = (512,)
OTHERS = ("layer", "nelson", "resolvent")  # ways that are tried in other conditions
ROUNDS = 5  # of ways that know no modes


class Trial(NamedTuple):
    """Conditions: kind of mesh, approximate number of nodes, sensors, noise, coefficients along a side."""

    mesh: str
    nodes: int
    sensors: int
    noise: float
    side: int


def inverse(
    out: Path = Path("runs/inverse"),
    ways: list[str] = list(WAYS),  # noqa: B006 (never changed)
    sizes: list[int] = [64, 400, 1000, 4000, 20000],  # noqa: B006
    seeds: list[int] = [2, 10, 10, 3, 3],  # noqa: B006
    few_seeds: int = 3,
    first_seed: int = 0,
    sensors: int = 16,
    noise: float = 0.02,
    side: int = 16,
    cap: float = 180.0,
    jobs: int = 1,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """A field of stiffness from noisy modes at few sensors, with derivatives of eigenvectors and by ways without.

    Args:
        out: folder of metrics.json and what is finished.
        ways: layer, layer_eigh, eigh, eigh_jittered, nelson, fox_kapoor, least_squares, cma, eigenvalues, linear,
            matrix_exp, resolvent, perceptron.
        sizes: of 64, 400, 1000, 4000, 20000 free nodes of the symmetric mesh; with 400 other conditions, too.
        seeds: numbers of fields for each of the sizes; a way that takes more than a sixth of the cap tries one.
        few_seeds: number of fields in the other conditions.
        first_seed: number of the first field.
        sensors: at places that differ between seeds.
        noise: of a mode at a sensor over its root mean square; eigenvalues have a tenth of it.
        side: of the grid of coefficients.
        cap: processor seconds for a field. A way that would exceed it if its time grew with the nodes is not tried.
        jobs: processes.
        quick: one field of 64 nodes, four ways.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        ways, sizes, seeds, few_seeds, side = ["layer", "eigh", "eigenvalues", "linear"], [64], [1], 1, 4
    check_names("ways", ways, WAYS)
    check_names("sizes", map(str, sizes), map(str, CELLS))
    check_least("seeds", min(*seeds, few_seeds), 1)
    if len(seeds) != len(sizes):
        raise Refusal(f"--seeds must have a number for each of {len(sizes)} sizes, got {len(seeds)}")
    run = Run(out, locals())
    by_size = {Trial("symmetric", size, sensors, noise, side): count for size, count in zip(sizes, seeds, strict=True)}
    usual = Trial("symmetric", 400, sensors, noise, side)
    others = [
        usual._replace(mesh="irregular"),
        usual._replace(noise=4 * noise),
        usual._replace(sensors=sensors // 2),
        usual._replace(side=side // 2),
    ]
    others = others if 400 in sizes else []
    found: dict[Trial, dict[str, list[Result]]] = {}
    for trial in sorted((*by_size, *others), key=lambda trial: trial.nodes):
        count = by_size.get(trial, few_seeds)
        tried = [way for way in ways if (way in OTHERS or trial in by_size) and projected(way, found, trial) < cap]
        first = run.cells("fields", Cell(cap), [(*trial, way, first_seed) for way in tried], jobs)
        fast = [case[-2] for case, cell in first.items() if cell["seconds"] < cap / 6]
        rest = [(*trial, way, seed) for way in fast for seed in range(first_seed + 1, first_seed + count)]
        cells = first | run.cells("fields", Cell(cap), rest, jobs)
        found[trial] = {way: [cell for case, cell in cells.items() if case[-2] == way] for way in tried}
    metrics = {trial: summary(cells) for trial, cells in found.items()}
    tables = tables_of("by size", "the field", WAYS, {f"{trial.nodes} nodes": metrics[trial] for trial in by_size})
    if others:
        tables += tables_of(
            "at 400 nodes",
            "the field",
            WAYS,
            {
                condition(trial): {way: metrics[trial][way] for way in OTHERS if way in metrics[trial]}
                for trial in (usual, *others)
            },
        )
    run.finish(
        {"by_size": {str(t.nodes): metrics[t] for t in by_size}, "others": {condition(t): metrics[t] for t in others}},
        *tables,
    )


def projected(way: str, found: dict[Trial, dict[str, list[Result]]], trial: Trial) -> float:
    """Return seconds that a way takes for a trial if they grow with the nodes; infinite if it failed before."""
    smaller = [
        (before, cells[way][0]) for before, cells in found.items() if way in cells and before.nodes < trial.nodes
    ]
    if any(cell["end"] != "converged" for _, cell in smaller):
        return np.inf
    before, cell = max(smaller, key=lambda pair: pair[0].nodes, default=(trial, {"seconds": 0.0}))
    return float(cell["seconds"] * trial.nodes / before.nodes)


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
    def of(cls, mesh: str, cells: int) -> Membrane:
        """Return the membrane on a mesh with the symmetry of the square, or with its inner vertices displaced."""
        vertices, faces = crossed_square(cells)
        is_free = ((vertices > 1e-9) & (vertices < 1 - 1e-9)).all(1)
        if mesh == "irregular":
            noise = torch.rand(vertices.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            vertices = vertices + 0.4 / cells * (noise - 0.5) * is_free[:, None]
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
        membrane = Membrane.of(trial.mesh, CELLS[trial.nodes])
        spots = (np.arange(trial.sensors)[:, None] * [0.7548776662466927, 0.5698402909980532] + generator.random(2)) % 1
        sensors = linear_sum_assignment(cdist(spots, membrane.places))[1]
        truth = random_field(membrane.centres, generator)
        values, modes = solved(membrane, membrane.stiffness(truth))
        values, modes = with_noise(values, modes[sensors], trial.noise, generator)
        measured = torch.from_numpy(values), torch.from_numpy(modes)
        basis = bilinear(membrane.centres, trial.side)
        return cls(membrane, basis, torch.from_numpy(sensors), *measured, truth, trial.noise)

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


class ByHand(torch.autograd.Function):
    """Eigenvalues and modes by SciPy, and derivatives as in a textbook, of distinct eigenvalues."""

    @staticmethod
    def forward(ctx: Any, entries: Tensor, membrane: Membrane, formula: str) -> tuple[Tensor, Tensor]:
        """Return the first `MODES` values and modes at all nodes."""
        ctx.values, ctx.modes = solved(membrane, entries, SUMMED if formula == "fox_kapoor" else MODES)
        ctx.entries, ctx.membrane, ctx.formula = entries, membrane, formula
        return torch.from_numpy(ctx.values[:MODES]), torch.from_numpy(ctx.modes[:, :MODES])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient in the entries: Σ_i g_i u_i u_iᵀ − z_i u_iᵀ with (K − λ_i M) z_i = (I − M U Uᵀ) G_i."""
        of_values, of_modes = (part.numpy() for part in cotangents)
        row, col = ctx.membrane.index.numpy()
        total = np.zeros(len(row))
        for i in range(MODES):
            mode = ctx.modes[:, i]
            if ctx.formula == "nelson":
                z = nelson(ctx.membrane, ctx.entries, ctx.values[i], mode, of_modes[:, i])
            else:  # Fox & Kapoor 1968, a sum over modes
                others = np.delete(ctx.modes, i, 1)
                z = others @ ((others.T @ of_modes[:, i]) / (np.delete(ctx.values, i) - ctx.values[i]))
            total += (of_values[i] * mode - z)[row] * mode[col]
        return torch.from_numpy(total), None, None


def nelson(membrane: Membrane, entries: Tensor, value: float, mode: Numbers, cotangent: Numbers) -> Numbers:
    """Return the solution of the singular system, with its largest component of the mode fixed (Nelson 1976)."""
    mass = membrane.scipy(membrane.mass)
    weighted = mass @ mode
    right = cotangent - weighted * (mode @ cotangent)
    kept = np.delete(np.arange(len(mode)), np.abs(mode).argmax())
    shifted = membrane.scipy(entries.detach() - value * membrane.mass)
    z = np.zeros_like(mode)
    z[kept] = splu(shifted[kept][:, kept].tocsc()).solve(right[kept])
    orthogonal: Numbers = z - mode * (weighted @ z)
    return orthogonal


class Implicit(torch.autograd.Function):
    """Matrices Sᵀ ((M + τ K)⁻¹ M)ⁿ M⁻¹ S at the sensors, by sparse factors, and their adjoint."""

    @staticmethod
    def forward(ctx: Any, entries: Tensor, membrane: Membrane, sensors: Tensor) -> Tensor:
        """Return ``(T, s, s)``; all steps are kept for the derivative."""
        mass, ctx.kept = membrane.scipy(membrane.mass), []
        for duration in TIMES:
            factor = splu(membrane.scipy(membrane.mass + duration / STEPS * entries.detach()))
            start = np.zeros((len(membrane.places), len(sensors)))
            start[sensors.numpy(), np.arange(len(sensors))] = 1
            blocks = [factor.solve(start)]
            for _ in range(STEPS - 1):
                blocks.append(factor.solve(mass @ blocks[-1]))
            ctx.kept.append(blocks)
        ctx.membrane = membrane
        return torch.from_numpy(np.stack([blocks[-1][sensors.numpy()] for blocks in ctx.kept]))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient in the entries: the j-th factor has blocks j and n − 1 − j on its sides."""
        row, col = ctx.membrane.index.numpy()
        total = np.zeros(len(row))
        for duration, blocks, cotangent in zip(TIMES, ctx.kept, cotangents[0].numpy(), strict=True):
            for left, right in zip(blocks[::-1], blocks, strict=True):
                total -= duration / STEPS * ((left @ cotangent)[row] * right[col]).sum(1)
        return torch.from_numpy(total), None, None


Result = dict[str, Any]
Kernels = Callable[[Problem, Tensor], Tensor]  # matrices at the sensors (T, s, s), of entries of K


def heat(values: Tensor, modes: Tensor) -> Tensor:
    """Return Σ exp(−t λ) φ φᵀ at the sensors for each time, of values ``(m, m)`` and modes ``(s, m)``."""
    return torch.stack([modes @ torch.matrix_exp(-duration * values) @ modes.mT for duration in TIMES])


def by_eigenpairs(problem: Problem, entries: Tensor) -> Tensor:
    """Return the matrices by `eigenpairs`."""
    membrane = problem.membrane
    pairs = eigenpairs(membrane.sparse(entries), MODES, mass=membrane.sparse(membrane.mass))
    return heat(pairs.projected, pairs.vectors[problem.sensors])


def whitened(problem: Problem, entries: Tensor) -> tuple[Tensor, Tensor]:
    """Return R⁻¹ K R⁻ᵀ and rows of R⁻ᵀ at the sensors, with M = R Rᵀ."""
    membrane = problem.membrane
    inverse = inverse_root(membrane)
    dense = inverse @ membrane.sparse(entries).to_dense() @ inverse.mT
    return dense, inverse.mT[problem.sensors]


@cache
def inverse_root(membrane: Membrane) -> Tensor:
    """Return R⁻¹ of a mass M = R Rᵀ."""
    root = torch.linalg.cholesky(membrane.sparse(membrane.mass).to_dense())
    inverse: Tensor = torch.linalg.solve_triangular(root, torch.eye(len(root), dtype=root.dtype), upper=False)
    return inverse


def by_our_eigh(problem: Problem, entries: Tensor) -> Tensor:
    """Return the matrices by `torch_lapeig.eigh`."""
    dense, rows = whitened(problem, entries)
    _, vectors, projected = torch_lapeig.eigh(dense)
    return heat(projected[:MODES, :MODES], rows @ vectors[:, :MODES])


def by_eigh(problem: Problem, entries: Tensor) -> Tensor:
    """Return the matrices by `torch.linalg.eigh`."""
    dense, rows = whitened(problem, entries)
    values, vectors = torch.linalg.eigh(dense)
    return heat(values[:MODES].diag(), rows @ vectors[:, :MODES])


def by_hand(formula: str) -> Kernels:
    """Return the function of matrices by SciPy and a formula."""

    def kernels(problem: Problem, entries: Tensor) -> Tensor:
        values, modes = ByHand.apply(entries, problem.membrane, formula)
        return heat(values.diag(), modes[problem.sensors])

    return kernels


def eigenvalues_only(problem: Problem, entries: Tensor) -> Tensor:
    """Return the eigenvalues in ascending order, each as a matrix."""
    membrane = problem.membrane
    return eigenpairs(membrane.sparse(entries), MODES, mass=membrane.sparse(membrane.mass)).values[:, None, None]


def by_matrix_exp(problem: Problem, entries: Tensor) -> Tensor:
    """Return the matrices of all modes, without eigenvectors."""
    dense, rows = whitened(problem, entries)
    return torch.stack([rows @ torch.matrix_exp(-duration * dense) @ rows.mT for duration in TIMES])


def by_steps(problem: Problem, entries: Tensor) -> Tensor:
    """Return the matrices of all modes after implicit steps in the place of the exponential."""
    found: Tensor = Implicit.apply(entries, problem.membrane, problem.sensors)
    return found


def matrices(values: Tensor, modes: Tensor, kind: str) -> Tensor:
    """Return what a way compares, of eigenvalues ``(m,)`` and modes at the sensors ``(s, m)``."""
    if kind == "values":
        return values[:, None, None]
    if kind == "steps":
        return torch.stack([(modes * (1 + duration / STEPS * values) ** -STEPS) @ modes.mT for duration in TIMES])
    return heat(values.diag(), modes)


class Fit(NamedTuple):
    """Matrices of a way, what they are compared with, and whether the start is jittered."""

    kernels: Kernels
    kind: str = "heat"
    jittered: bool = False


FITS = {
    "layer": Fit(by_eigenpairs),
    "layer_eigh": Fit(by_our_eigh),
    "eigh": Fit(by_eigh),
    "eigh_jittered": Fit(by_eigh, jittered=True),
    "nelson": Fit(by_hand("nelson"), jittered=True),
    "fox_kapoor": Fit(by_hand("fox_kapoor"), jittered=True),
    "eigenvalues": Fit(eigenvalues_only, "values", jittered=True),
    "matrix_exp": Fit(by_matrix_exp),
    "resolvent": Fit(by_steps, "steps"),
}


SCIPY = Fit(by_hand("none"))  # of ways that take no derivative


class Misfit(Search):
    """The loss of one way."""

    def __init__(self, problem: Problem, way: str, cap: float) -> None:
        super().__init__(problem.basis.shape[1], cap, PENALTIES.get(way, PENALTY))
        self.problem, self.fit = problem, FITS.get(way, SCIPY)
        self.target = self.measured = matrices(problem.values, problem.modes, self.fit.kind)

    def fitted(self, coefficients: Tensor) -> Tensor:
        """Return differences of matrices over their size."""
        problem = self.problem
        found = self.fit.kernels(problem, problem.membrane.stiffness(problem.basis @ coefficients))
        scale = self.target.flatten(1).norm(dim=1)[:, None, None] * len(TIMES) ** 0.5
        residuals: Tensor = ((found - self.target) / scale).flatten()
        return residuals

    def add_others(self) -> None:
        """Add to what is measured the other modes at the best coefficients, for matrices of all modes."""
        problem = self.problem
        entries = problem.membrane.stiffness(problem.basis @ self.best)
        values, modes = (torch.from_numpy(part) for part in solved(problem.membrane, entries))
        known = matrices(values, modes[problem.sensors], self.fit.kind)
        self.target = self.measured + self.fit.kernels(problem, entries) - known
        self.least = np.inf


def without_modes(search: Misfit, start: Numbers) -> None:
    """Minimise by L-BFGS in rounds, each with the modes that are not measured as they are at its start."""
    for _ in range(ROUNDS):
        search.add_others()
        options = {"maxiter": ITERATIONS // ROUNDS}
        minimize(search.with_gradient, search.best.numpy(), jac=True, method="L-BFGS-B", options=options)


def by_least_squares(search: Misfit, start: Numbers) -> None:
    """Minimise by a trust region of Gauss–Newton's model, its Jacobian by differences."""
    least_squares(search.weighed, start, search.slope, ftol=1e-5, xtol=1e-4)


def one_step(search: Misfit, start: Numbers) -> None:
    """Minimise the loss of residuals that are linear about the start."""
    step = np.linalg.lstsq(search.slope(start), search.weighed(start), rcond=None)[0]
    search.best = torch.from_numpy(start - step)


def perceptron(search: Misfit, start: Numbers) -> None:
    """Train a perceptron on simulated fields of the truth's own kind, and apply it to what is measured."""
    problem, generator = search.problem, np.random.default_rng(1)
    membrane, inverse = problem.membrane, torch.linalg.pinv(problem.basis)
    upper = torch.ones(len(problem.sensors), len(problem.sensors)).triu().bool()
    inputs, outputs = [], []
    for _ in range(SIMULATIONS):
        search.check()
        field = random_field(membrane.centres, generator)
        values, modes = solved(membrane, membrane.stiffness(field))
        seen = with_noise(values, modes[problem.sensors], problem.noise, generator)
        inputs.append(
            heat(*(torch.from_numpy(part) for part in (np.diag(seen[0]), seen[1])))[:, upper].flatten().numpy()
        )
        outputs.append((inverse @ field).numpy())
    regressor = MLPRegressor(hidden_layer_sizes=HIDDEN, alpha=0.1, early_stopping=True, random_state=0)
    network = TransformedTargetRegressor(make_pipeline(StandardScaler(), regressor), transformer=StandardScaler())
    network.fit(np.array(inputs), np.array(outputs))
    search.best = torch.from_numpy(network.predict(search.target[:, upper].flatten()[None].numpy())[0])
    search.check()


SEARCHES = {
    "matrix_exp": without_modes,
    "resolvent": without_modes,
    "least_squares": by_least_squares,
    "cma": cma,
    "linear": one_step,
    "perceptron": perceptron,
}


@dataclass(frozen=True)
class Cell:
    """Recovers one field by one way within seconds of the processor."""

    cap: float

    def __call__(
        self, mesh: str, nodes: int, sensors: int, noise: float, side: int, way: str, seed: int
    ) -> dict[str, Any]:
        """Return what `attempt` does, and the error of the field."""
        problem = Problem.of(Trial(mesh, nodes, sensors, noise, side), seed)
        search = Misfit(problem, way, self.cap)
        start = JITTER * search.fit.jittered * np.random.default_rng(seed).normal(size=side**2)
        return {**attempt(search, SEARCHES.get(way, descend), start), "error": problem.error(search.best)}


def condition(trial: Trial) -> str:
    """Return a name of conditions for tables and values."""
    return f"{trial.mesh}, {trial.sensors} sensors, noise {trial.noise:.0%}, {trial.side}² unknowns"
