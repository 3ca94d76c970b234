"""A medium's stiffness from few snapshots of waves in it, so that its modes reconstruct other waves from sensors.

A snapshot is a random combination of the first modes of a membrane with an unknown stiffness, with noise. A field is
fitted so that the first modes span the snapshots, and judged by waves that are known at sensors only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import torch
from rich.table import Table
from scipy.optimize import least_squares
from scipy.sparse.linalg import eigsh, splu
from torch import Tensor

from experiments.membrane import Membrane, bilinear, random_field
from experiments.metrics import Numbers, mean_and_interval, plus_minus
from experiments.runs import Run, check_least, check_names, table
from experiments.searches import Search, attempt, descend
from torch_lapeig import eigenpairs

WAYS = {
    "truth": "modes of the true field",
    "uniform": "modes of the uniform field",
    "pca": "PCA of the snapshots, uniform modes added",
    "kriging": "kriging, snapshots' covariance shrunk to the uniform modes'",
    "filter": "rational filter, no eigenvectors",
    "differences": "eigh in a reduced basis, finite differences",
    "layer": "eigenpairs",
}
CELLS = 15  # along a side of the mesh, with 421 free nodes
MODES, SNAPSHOTS, SENSORS, WAVES = 20, 8, 40, 200
CONTRAST = 1.6  # over that of `random_field`
NOISE, AT_SENSORS = 0.1, 0.05  # of snapshots and of what sensors see, over the root mean square
PENALTY = 1e-3
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the uniform covariance
POLES = 8  # above the axis, of the filter 1 / (1 + (λ / cut)^16)
BASIS, ROUNDS = 120, 3  # modes of the reduced basis; fits in bases or with cuts of their own


def snapshots(
    out: Path = Path("runs/snapshots"),
    ways: list[str] = list(WAYS),  # noqa: B006 (never changed)
    sides: list[int] = [8, 16],  # noqa: B006
    seeds: int = 10,
    cap: float = 60.0,
    jobs: int = 1,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """A medium's stiffness from few snapshots of waves: modes that span them, by derivatives and by ways without.

    Args:
        out: folder of metrics.json and what is finished.
        ways: truth, uniform, pca, kriging, filter, differences, layer.
        sides: of the grid of coefficients of the field.
        seeds: media.
        cap: processor seconds for a medium.
        jobs: processes.
        quick: one medium, 4² coefficients, three ways.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        ways, sides, seeds = ["uniform", "pca", "layer"], [4], 1
    check_names("ways", ways, WAYS)
    check_least("seeds", seeds, 1)
    run = Run(out, locals())
    cases = [(side, way, seed) for side in sides for way in ways for seed in range(seeds)]
    cells = run.cells("media", Cell(cap), cases, jobs)
    by_side = {
        str(side): summary({way: [cells[side, way, seed] for seed in range(seeds)] for way in ways}) for side in sides
    }
    run.finish({"unknowns": {str(int(side) ** 2): found for side, found in by_side.items()}}, results_table(by_side))


class Medium:
    """A membrane with a true field, snapshots ``(N, S)`` of norm 1 in the mass, and waves that sensors see."""

    def __init__(self, side: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.membrane = Membrane.of(CELLS)
        self.mass = self.membrane.scipy(self.membrane.mass)
        self.basis = bilinear(self.membrane.centres, side)
        truth = self.modes(self.membrane.stiffness(CONTRAST * random_field(self.membrane.centres, generator)), MODES)[1]
        self.truth = truth
        seen = truth @ generator.normal(size=(MODES, SNAPSHOTS))
        seen += NOISE * np.sqrt((seen**2).mean()) * generator.normal(size=seen.shape)
        self.covariance = seen @ seen.T / SNAPSHOTS
        self.snapshots = seen / np.sqrt((seen * (self.mass @ seen)).sum(0))
        self.waves = truth @ generator.normal(size=(MODES, WAVES))
        self.sensors = generator.choice(len(truth), SENSORS, replace=False)
        self.variance = AT_SENSORS**2 * (self.waves**2).mean()
        noise = self.variance**0.5 * generator.normal(size=(SENSORS, WAVES))
        self.measured = self.waves[self.sensors] + noise

    def modes(self, entries: Tensor, count: int) -> tuple[Numbers, Numbers]:
        """Return eigenvalues and modes of entries of K, by SciPy."""
        start = np.random.default_rng(0).normal(size=self.mass.shape[0])
        values, modes = eigsh(self.membrane.scipy(entries.detach()), count, self.mass, sigma=0, v0=start)
        return values, modes

    def entries(self, coefficients: Tensor) -> Tensor:
        """Return the entries of K of a field's coefficients."""
        return self.membrane.stiffness(self.basis @ coefficients)

    def of_field(self, coefficients: Tensor) -> Numbers:
        """Return the covariance of waves that combine the first modes of a field."""
        modes = self.modes(self.entries(coefficients), MODES)[1]
        return modes @ modes.T

    def error(self, covariance: Numbers) -> float:
        """Return the error of waves over their norm, each estimated from sensors as the mean given what they see."""
        inner = covariance[np.ix_(self.sensors, self.sensors)] + self.variance * np.eye(SENSORS)
        found = covariance[:, self.sensors] @ np.linalg.solve(inner, self.measured)
        return float(np.linalg.norm(found - self.waves) / np.linalg.norm(self.waves))

    def completed(self, uniform: Numbers) -> Numbers:
        """Return principal components of the snapshots, and uniform modes for the rest, orthogonal to them."""
        root = np.linalg.cholesky(self.mass.toarray()).T
        snapshots, modes = root @ self.snapshots, root @ uniform
        components = np.linalg.svd(snapshots, full_matrices=False)[0]
        rest = modes - components @ (components.T @ modes)
        rest = np.linalg.svd(rest, full_matrices=False)[0][:, : MODES - SNAPSHOTS]
        found: Numbers = scipy.linalg.solve_triangular(root, np.c_[components, rest])
        return found


class Spanned(Search):
    """The loss of a field: what of the snapshots is outside of the span of its first modes."""

    def __init__(self, medium: Medium, cap: float) -> None:
        super().__init__(medium.basis.shape[1], cap, PENALTY)
        self.medium = medium
        self.images = torch.from_numpy(medium.mass @ medium.snapshots)
        self.cut = 0.0

    def fitted(self, coefficients: Tensor) -> Tensor:
        """Return the root of the loss."""
        entries = self.medium.entries(coefficients)
        inside = self.filtered(entries) if self.cut else self.projected(entries)
        return (SNAPSHOTS - inside).sqrt()[None]

    def projected(self, entries: Tensor) -> Tensor:
        """Return the squares of the snapshots' parts in the span of the modes by `eigenpairs`."""
        membrane = self.medium.membrane
        pairs = eigenpairs(membrane.sparse(entries), MODES, mass=membrane.sparse(membrane.mass))
        return (pairs.vectors.mT @ self.images).square().sum()

    def filtered(self, entries: Tensor) -> Tensor:
        """Return Σ_s x_sᵀ M f(M⁻¹ K) x_s with f(λ) = 1 / (1 + (λ / cut)^16), by its poles z: Σ −z / 16 / (λ / cut − z).

        As d xᵀ M (K − z M)⁻¹ M x = −yᵀ dK y with y = (K − z M)⁻¹ M x, a linear function of K has value and slope.
        """
        row, col = self.medium.membrane.index
        total = entries.new_zeros(())
        for angle in np.pi * (np.arange(POLES) + 0.5) / POLES:
            pole = self.cut * np.exp(1j * angle)
            matrix = self.medium.membrane.scipy(entries.detach()) - pole * self.medium.mass
            solved = splu(matrix.tocsc()).solve(self.images.numpy().astype(complex))
            slope = torch.from_numpy((pole * (solved[row.numpy()] * solved[col.numpy()]).sum(1)).real) / POLES
            value = -(pole * (self.images.numpy() * solved).sum()).real / POLES
            total = total + value + slope @ (entries - entries.detach())
        return total


def by_filter(search: Spanned, start: Numbers) -> None:
    """Descend with the rational filter, its cut between the modes at the best coefficients."""
    search.iterations //= ROUNDS
    for _ in range(ROUNDS):
        values = search.medium.modes(search.medium.entries(search.best), MODES + 1)[0]
        search.cut, search.least = float(np.sqrt(values[-2] * values[-1])), np.inf
        descend(search, search.best.numpy())


def by_differences(search: Spanned, start: Numbers) -> None:
    """Fit by Gauss–Newton with finite differences of `eigh` in a basis of modes, which is renewed."""
    medium, found = search.medium, start
    for _ in range(ROUNDS):
        basis = medium.modes(medium.entries(torch.from_numpy(found)), BASIS)[1]
        seen = basis.T @ search.images.numpy()

        def residuals(at: Numbers, basis: Numbers = basis, seen: Numbers = seen) -> Numbers:
            search.check()
            search.evaluations += 1
            stiffness = medium.membrane.scipy(medium.entries(torch.from_numpy(at)))
            modes = scipy.linalg.eigh(basis.T @ (stiffness @ basis), subset_by_index=[0, MODES - 1])[1]
            return np.r_[(seen - modes @ (modes.T @ seen)).ravel(), PENALTY**0.5 * at]

        found = least_squares(residuals, found, ftol=1e-3, xtol=1e-3, max_nfev=10, diff_step=1e-4).x
        search.best = torch.from_numpy(found)


SEARCHES: dict[str, Callable[[Spanned, Numbers], None]] = {
    "filter": by_filter,
    "differences": by_differences,
    "layer": descend,
}


@dataclass(frozen=True)
class Cell:
    """Reconstructs waves in one medium by one way."""

    cap: float

    def __call__(self, side: int, way: str, seed: int) -> dict[str, Any]:
        """Return the error of waves, and what `attempt` returns of a search."""
        medium = Medium(side, seed)
        search = Spanned(medium, self.cap)
        zero = search.best
        if way in SEARCHES:
            found = attempt(search, SEARCHES[way], zero.numpy())
            return {**found, "error": medium.error(medium.of_field(search.best))}
        uniform = medium.of_field(zero)
        if way == "kriging":  # an oracle: the share is the best for the waves themselves
            errors = [medium.error(share * uniform + (1 - share) * medium.covariance) for share in SHARES]
            return {"error": min(errors), "seconds": 0.0}
        completed = medium.completed(medium.modes(medium.entries(zero), MODES)[1])
        known = {"truth": medium.truth, "pca": completed}
        covariance = known[way] @ known[way].T if way in known else uniform
        return {"error": medium.error(covariance), "seconds": 0.0}


def summary(cells: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return errors of each way, the paired difference of the layer's, and mean seconds."""
    found: dict[str, Any] = {}
    for way, results in cells.items():
        errors = np.array([cell["error"] for cell in results])
        found[way] = {
            "error": mean_and_interval(errors),
            "seconds": float(np.mean([cell["seconds"] for cell in results])),
        }
        if way != "layer" and "layer" in cells:
            behind = errors - np.array([cell["error"] for cell in cells["layer"]])
            found[way]["it_less_layer"] = mean_and_interval(behind, len(cells) - 1)
    return found


def results_table(metrics: dict[str, dict[str, Any]]) -> Table:
    """Return errors, differences and seconds of each way."""
    rows = []
    for way in next(iter(metrics.values())):
        row = [WAYS[way]]
        for found in (by_way[way] for by_way in metrics.values()):
            behind = found.get("it_less_layer")
            row += [plus_minus(found["error"], 3), plus_minus(behind, 3, sign="+") if behind else "–"]
            row += [f"{found['seconds']:.1f}"]
        rows.append(row)
    heads = [head for side in metrics for head in (f"{side}² unknowns", "less eigenpairs", "seconds")]
    return table("error of waves between sensors", ["way", *heads], rows)
