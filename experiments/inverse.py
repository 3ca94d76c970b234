"""A field of stiffness from noisy modes at few sensors: derivatives of eigenvectors, a reduced basis, equation error.

The membrane and its data are those of `experiments.membrane`. Ways that solve for modes compare matrices
Σ_i exp(−t λ_i) φ_i φ_iᵀ at the sensors, which depend on no sign and no basis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import block_array, csc_array
from scipy.sparse.linalg import splu
from torch import Tensor

from experiments.membrane import CELLS, MODES, Membrane, Problem, Trial, solved
from experiments.metrics import Numbers
from experiments.runs import Refusal, Run, check_least, check_names
from experiments.searches import Search, attempt, descend, gauss_newton, summary, tables_of
from torch_lapeig import eigenpairs

WAYS = {
    "layer": "eigenpairs, symmetric start",
    "eigh": "torch.linalg.eigh, symmetric start",
    "eigh_jittered": "torch.linalg.eigh, jittered start",
    "nelson": "eigsh, Nelson by hand, jittered start",
    "reduced": "torch.linalg.eigh in 100 modes, jittered start",
    "differences": "finite differences in 100 modes",
    "equation": "equation error, no eigenvectors",
    "eigenvalues": "eigenpairs, eigenvalues only",
}
ONE_FIELD = {"eigh": 400, "eigh_jittered": 1000, "differences": 20000}  # ways that try one, and their largest meshes
OTHERS = ("layer", "nelson", "reduced", "differences", "equation")  # ways that are tried in other conditions
REDUCED = 100  # modes of a basis
TIMES = tuple(part / (10 * np.pi**2) for part in (0.25, 0.5, 1.0, 2.0))  # 10 π² is in the middle of the values
PENALTY = 3e-5  # where the noise is 0.02; it grows with the square of the noise, as squares of residuals do
PENALTIES = {"equation": 1.0, "eigenvalues": 3e-3}
JITTER = 0.02
ORDER = "MMD_AT_PLUS_A"  # of elimination, twice as fast as SciPy's usual one on symmetric patterns


def inverse(
    out: Path = Path("runs/inverse"),
    ways: list[str] = list(WAYS),  # noqa: B006 (never changed)
    sizes: list[int] = [400, 1000, 4000],  # noqa: B006
    seeds: list[int] = [10, 10, 3],  # noqa: B006
    few_seeds: list[int] = [3, 3, 1],  # noqa: B006
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
        ways: layer, eigh, eigh_jittered, nelson, reduced, differences, equation, eigenvalues.
        sizes: of 64, 400, 1000, 4000, 20000 free nodes.
        seeds: numbers of fields for each of the sizes; of torch.linalg.eigh and finite differences one.
        few_seeds: the same for eigenvalues only, and for other conditions above 400 nodes.
        first_seed: number of the first field.
        sensors: at places that differ between seeds; the last table has half as many.
        noise: of a mode at a sensor over its root mean square; eigenvalues have a tenth of it. The second table has
            four times as much.
        side: of the grid of coefficients.
        cap: processor seconds for a field.
        jobs: processes.
        quick: one field of 64 nodes, five ways.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        ways, sizes, side = ["layer", "eigh", "reduced", "equation", "eigenvalues"], [64], 4
        seeds = few_seeds = [1]
    check_names("ways", ways, WAYS)
    check_names("sizes", map(str, sizes), map(str, CELLS))
    check_least("seeds", min(*seeds, *few_seeds), 1)
    if {len(seeds), len(few_seeds)} != {len(sizes)}:
        raise Refusal(f"--seeds and --few_seeds must have a number for each of {len(sizes)} sizes")
    run = Run(out, locals())
    usual = Trial(sizes[0], sensors, noise, side)
    conditions = {"by_size": usual}
    if not quick:
        conditions |= {"noise": usual._replace(noise=4 * noise), "sensors": usual._replace(sensors=sensors // 2)}
    metrics: dict[str, Any] = {}
    tables = []
    for condition, trial in conditions.items():
        metrics[condition] = {}
        for size, many, few in zip(sizes, seeds, few_seeds, strict=True):
            tried = [w for w in ways if size <= ONE_FIELD.get(w, size) and (trial == usual or w in OTHERS)]
            fewer = ["eigenvalues"] if trial == usual or size <= 400 else tried
            count = {w: 1 if w in ONE_FIELD else few if w in fewer else many for w in tried}
            cases = [(*trial._replace(nodes=size), w, first_seed + i) for w in tried for i in range(count[w])]
            cells = run.cells("fields", Cell(cap), cases, jobs)
            metrics[condition][str(size)] = summary({w: [cells[c] for c in cases if c[-2] == w] for w in tried})
        title = f"{trial.sensors} sensors, noise {trial.noise:.0%}"
        columns = {f"{size} nodes": found for size, found in metrics[condition].items()}
        tables += tables_of(title, "the field", WAYS, columns)[: 2 if trial == usual else 1]
    run.finish(metrics, *tables)


class ByHand(torch.autograd.Function):
    """Eigenvalues and modes by SciPy, and derivatives by Nelson's formula, of distinct eigenvalues."""

    @staticmethod
    def forward(ctx: Any, entries: Tensor, membrane: Membrane) -> tuple[Tensor, Tensor]:
        """Return the first `MODES` values and modes at all nodes."""
        ctx.values, ctx.modes = solved(membrane, entries)
        ctx.entries, ctx.membrane = entries, membrane
        return torch.from_numpy(ctx.values), torch.from_numpy(ctx.modes)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        """Return the gradient in the entries: Σ_i g_i u_i u_iᵀ − z_i u_iᵀ with (K − λ_i M) z_i = (I − M U Uᵀ) G_i."""
        row, col = ctx.membrane.index.numpy()
        total = np.zeros(len(row))
        for value, mode, of_value, of_mode in zip(
            ctx.values, ctx.modes.T, cotangents[0].numpy(), cotangents[1].numpy().T, strict=True
        ):
            z = nelson(ctx.membrane, ctx.entries, value, mode, of_mode)
            total += (of_value * mode - z)[row] * mode[col]
        return torch.from_numpy(total), None


def nelson(membrane: Membrane, entries: Tensor, value: float, mode: Numbers, cotangent: Numbers) -> Numbers:
    """Return the solution of the singular system, with its largest component of the mode fixed (Nelson 1976)."""
    weighted = membrane.scipy(membrane.mass) @ mode
    right = cotangent - weighted * (mode @ cotangent)
    kept = np.delete(np.arange(len(mode)), np.abs(mode).argmax())
    shifted = membrane.scipy(entries.detach() - value * membrane.mass)
    z = np.zeros_like(mode)
    z[kept] = splu(shifted[kept][:, kept].tocsc(), permc_spec=ORDER).solve(right[kept])
    orthogonal: Numbers = z - mode * (weighted @ z)
    return orthogonal


class EquationError(torch.autograd.Function):
    """Half of Σ_i a_i ‖(K − λ_i M) u_i‖² + b_i ‖S u_i − φ_i‖² at its least over the fields u_i, without an eigensolver.

    λ_i and φ_i are measured, S takes the sensors, b_i and a_i are one over the squares of their noise, and the first
    norm is that of K₀⁻¹ with K₀ of c = 1. With z = a K₀⁻¹ A u, where A = K − λ M, the least has
    A z + b Sᵀ (S u − φ) = 0, and its derivative in A is z uᵀ.
    """

    @staticmethod
    def forward(ctx: Any, entries: Tensor, problem: Problem) -> Tensor:
        """Return the least sum."""
        membrane, sensors = problem.membrane, problem.sensors.numpy()
        row, col = membrane.index.numpy()
        n, total, ctx.slope = len(membrane.places), 0.0, np.zeros(len(row))
        uniform = membrane.scipy(membrane.stiffness(torch.zeros_like(membrane.areas)))
        seen = csc_array((np.ones(len(sensors)), (sensors, sensors)), shape=(n, n))
        for value, mode in zip(problem.values.numpy(), problem.modes.numpy().T, strict=True):
            a, b = 1 / ((problem.noise / 10) ** 2 * value), 1 / (problem.noise**2 * (mode**2).mean())
            matrix, known = membrane.scipy(entries.detach() - value * membrane.mass), np.zeros(n)
            known[sensors] = mode
            system = block_array([[uniform / -a, matrix], [matrix, b * seen]], format="csc")
            z, u = splu(system, permc_spec=ORDER).solve(np.concatenate([np.zeros(n), b * known])).reshape(2, n)
            total += (z @ (uniform @ z) / a + b * ((u[sensors] - mode) ** 2).sum()) / 2
            ctx.slope += z[row] * u[col]
        return torch.tensor(total, dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        """Return the gradient in the entries."""
        return cotangent * torch.from_numpy(ctx.slope), None


class Equation(Search):
    """The loss of the equation error."""

    def __init__(self, problem: Problem, way: str, cap: float) -> None:
        super().__init__(problem.basis.shape[1], cap, PENALTIES[way])
        self.problem = problem

    def fitted(self, coefficients: Tensor) -> Tensor:
        """Return the root of the least sum."""
        total: Tensor = EquationError.apply(self.problem.entries(coefficients), self.problem)
        return total.sqrt()[None]


class Misfit(Search):
    """The loss of a way that compares matrices at the sensors, or eigenvalues."""

    def __init__(self, problem: Problem, way: str, cap: float) -> None:
        super().__init__(problem.basis.shape[1], cap, PENALTIES.get(way, PENALTY * (problem.noise / 0.02) ** 2))
        self.problem, self.way = problem, way
        self.frame = torch.empty(0)  # columns that span what the modes are sought in, orthonormal in M
        self.target = (
            problem.values[:, None, None] if way == "eigenvalues" else heat(problem.values.diag(), problem.modes)
        )

    def fitted(self, coefficients: Tensor) -> Tensor:
        """Return differences of matrices over their size."""
        found = COMPARED[self.way](self, self.problem.entries(coefficients))
        scale = self.target.flatten(1).norm(dim=1)[:, None, None] * len(TIMES) ** 0.5
        residuals: Tensor = ((found - self.target) / scale).flatten()
        return residuals

    def renew(self) -> None:
        """Take for a basis the first modes at the best coefficients so far."""
        membrane = self.problem.membrane
        count = min(REDUCED, len(membrane.places))
        self.frame = torch.from_numpy(solved(membrane, self.problem.entries(self.best), count)[1])
        self.least, self.iterations = np.inf, Search.iterations // 2


def heat(values: Tensor, modes: Tensor) -> Tensor:
    """Return Σ exp(−t λ) φ φᵀ at the sensors for each time, of values ``(m, m)`` and modes ``(s, m)``."""
    return torch.stack([modes @ torch.matrix_exp(-duration * values) @ modes.mT for duration in TIMES])


def by_eigenpairs(search: Misfit, entries: Tensor) -> Tensor:
    """Return the matrices by `eigenpairs`."""
    membrane = search.problem.membrane
    pairs = eigenpairs(membrane.sparse(entries), MODES, mass=membrane.sparse(membrane.mass))
    return heat(pairs.projected, pairs.vectors[search.problem.sensors])


def by_eigh(search: Misfit, entries: Tensor) -> Tensor:
    """Return the matrices by `torch.linalg.eigh` in the search's basis, by default a whole one."""
    membrane = search.problem.membrane
    if not len(search.frame):
        search.frame = whole(membrane)
    if entries.requires_grad:
        row, col = membrane.index
        image = torch.zeros_like(search.frame).index_add(0, row, entries[:, None] * search.frame[col])
    else:
        image = torch.from_numpy(membrane.scipy(entries) @ search.frame.numpy())
    values, vectors = torch.linalg.eigh(search.frame.mT @ image)
    return heat(values[:MODES].diag(), search.frame[search.problem.sensors] @ vectors[:, :MODES])


@cache
def whole(membrane: Membrane) -> Tensor:
    """Return R⁻ᵀ of a mass M = R Rᵀ."""
    root = torch.linalg.cholesky(membrane.sparse(membrane.mass).to_dense())
    frame: Tensor = torch.linalg.solve_triangular(root.mT, torch.eye(len(root), dtype=root.dtype), upper=True)
    return frame


def by_nelson(search: Misfit, entries: Tensor) -> Tensor:
    """Return the matrices by SciPy and Nelson's formula."""
    values, modes = ByHand.apply(entries, search.problem.membrane)
    return heat(values.diag(), modes[search.problem.sensors])


def eigenvalues_only(search: Misfit, entries: Tensor) -> Tensor:
    """Return the eigenvalues in ascending order, each as a matrix."""
    membrane = search.problem.membrane
    return eigenpairs(membrane.sparse(entries), MODES, mass=membrane.sparse(membrane.mass)).values[:, None, None]


COMPARED: dict[str, Callable[[Misfit, Tensor], Tensor]] = {
    "layer": by_eigenpairs,
    "eigh": by_eigh,
    "eigh_jittered": by_eigh,
    "nelson": by_nelson,
    "reduced": by_eigh,
    "differences": by_eigh,
    "eigenvalues": eigenvalues_only,
}


def in_basis(search: Misfit, start: Numbers) -> None:
    """Minimise in a basis of modes, renew the basis, and minimise again."""
    minimise = gauss_newton if search.way == "differences" else descend
    search.renew()
    minimise(search, start)
    search.renew()
    minimise(search, search.best.numpy())


@dataclass(frozen=True)
class Cell:
    """Recovers one field by one way within seconds of the processor."""

    cap: float

    def __call__(self, nodes: int, sensors: int, noise: float, side: int, way: str, seed: int) -> dict[str, Any]:
        """Return what `attempt` does, and the error of the field."""
        problem = Problem.of(Trial(nodes, sensors, noise, side), seed)
        search = (Equation if way == "equation" else Misfit)(problem, way, self.cap)
        jitter = JITTER * (way in ("eigh_jittered", "nelson", "reduced", "eigenvalues"))
        start = jitter * np.random.default_rng(seed).normal(size=side**2)
        method = in_basis if way in ("reduced", "differences") else descend
        return {**attempt(search, method, start), "error": problem.error(search.best)}
