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
from scipy.sparse.linalg import splu
from torch import Tensor

from experiments.design import quadratic
from experiments.inverse import ORDER
from experiments.membrane import CELLS, Membrane, bilinear, random_field, solved
from experiments.metrics import Numbers, plus_minus
from experiments.runs import Refusal, Run, check_least, check_names, table
from experiments.searches import Search, attempt, descend, gauss_newton, summary
from torch_lapeig import eigenpairs

WAYS = {
    "truth": "modes of the true field",
    "pca": "principal components and uniform modes",
    "kriging": "kriging, the best of five covariances",
    "differences": "finite differences in a reduced basis",
    "filter": "rational filter",
    "forces": "eigenvalues with a little of the snapshots' forces",
    "layer": "eigenpairs",
}
NODES = 400  # free ones of the mesh, about
MODES, SNAPSHOTS, SENSORS, WAVES = 20, 8, 40, 200
CONTRAST = 1.6  # over that of `random_field`
NOISE, AT_SENSORS = 0.1, 0.05  # of snapshots and of what sensors see, over the root mean square
PENALTY = 1e-3
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the uniform covariance
POLES = 8  # above the axis, of the filter 1 / (1 + (λ / cut)^16)
ADDED = 1e-2  # forces over the stiffness
BASIS, ROUNDS = 120, 3  # modes of the reduced basis, and how often it is renewed


def snapshots(
    out: Path = Path("runs/snapshots"),
    ways: list[str] = list(WAYS),  # noqa: B006 (never changed)
    sides: list[int] = [8, 16],  # noqa: B006
    seeds: list[int] = [10, 3],  # noqa: B006
    cap: float = 60.0,
    jobs: int = 1,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """A medium's stiffness from few snapshots of waves: modes that span them, by derivatives and by ways without.

    Args:
        out: folder of metrics.json and what is finished.
        ways: truth, pca, kriging, differences, filter, forces, layer.
        sides: of grids of coefficients of the field.
        seeds: numbers of media for each of the grids.
        cap: processor seconds for a medium.
        jobs: processes.
        quick: one medium, 4² coefficients, three ways.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        ways, sides, seeds = ["pca", "forces", "layer"], [4], [1]
    check_names("ways", ways, WAYS)
    check_least("seeds", min(seeds), 1)
    if len(seeds) != len(sides):
        raise Refusal(f"--seeds must have a number for each of {len(sides)} grids, got {len(seeds)}")
    run = Run(out, locals())
    cases = [(side, way, seed) for side, n in zip(sides, seeds, strict=True) for way in ways for seed in range(n)]
    cells = run.cells("media", Cell(cap), cases, jobs)
    metrics = {
        str(side**2): summary({way: [cells[case] for case in cases if case[:2] == (side, way)] for way in ways})
        for side in sides
    }
    run.finish({"unknowns": metrics}, results_table(metrics))


class Medium:
    """A membrane with a true field, snapshots ``(N, S)`` of norm 1 in the mass, and waves that sensors see."""

    def __init__(self, side: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.membrane = Membrane.of(CELLS[NODES])
        self.mass = self.membrane.scipy(self.membrane.mass)
        self.basis = bilinear(self.membrane.centres, side)
        field = CONTRAST * random_field(self.membrane.centres, generator)
        self.truth = solved(self.membrane, self.membrane.stiffness(field), MODES)[1]
        seen = self.truth @ generator.normal(size=(MODES, SNAPSHOTS))
        seen += NOISE * np.sqrt((seen**2).mean()) * generator.normal(size=seen.shape)
        self.covariance = seen @ seen.T / SNAPSHOTS
        self.snapshots = seen / np.sqrt((seen * (self.mass @ seen)).sum(0))
        self.waves = self.truth @ generator.normal(size=(MODES, WAVES))
        self.sensors = generator.choice(len(seen), SENSORS, replace=False)
        self.variance = AT_SENSORS**2 * (self.waves**2).mean()
        noise = self.variance**0.5 * generator.normal(size=(SENSORS, WAVES))
        self.measured = self.waves[self.sensors] + noise

    def modes(self, coefficients: Tensor, count: int = MODES) -> tuple[Numbers, Numbers]:
        """Return eigenvalues and modes of a field, by SciPy."""
        return solved(self.membrane, self.membrane.stiffness(self.basis @ coefficients), count)

    def error(self, covariance: Numbers) -> float:
        """Return the error of waves over their norm, each estimated from sensors as the mean given what they see."""
        inner = covariance[np.ix_(self.sensors, self.sensors)] + self.variance * np.eye(SENSORS)
        found = covariance[:, self.sensors] @ np.linalg.solve(inner, self.measured)
        return float(np.linalg.norm(found - self.waves) / np.linalg.norm(self.waves))

    def without_field(self, way: str, uniform: Numbers) -> float:
        """Return the error of a way that fits no field, given the uniform modes."""
        if way == "truth":
            return self.error(self.truth @ self.truth.T)
        if way == "kriging":  # an oracle: the share is the best for the waves themselves
            return min(self.error(share * uniform @ uniform.T + (1 - share) * self.covariance) for share in SHARES)
        root = np.linalg.cholesky(self.mass.toarray()).T
        found = np.linalg.svd(root @ self.snapshots, full_matrices=False)[0]
        rest = root @ uniform - found @ (found.T @ (root @ uniform))
        rest = np.linalg.svd(rest, full_matrices=False)[0][:, : MODES - SNAPSHOTS]
        modes = scipy.linalg.solve_triangular(root, np.c_[found, rest])
        return self.error(modes @ modes.T)


class Spanned(Search):
    """The loss of a field: what of the snapshots is outside of the span of its first modes."""

    def __init__(self, medium: Medium, way: str, cap: float) -> None:
        super().__init__(medium.basis.shape[1], cap, PENALTY)
        self.medium, self.way = medium, way
        self.images = medium.mass @ medium.snapshots
        self.frame = np.empty(0)  # a reduced basis

    def fitted(self, coefficients: Tensor) -> Tensor:
        """Return the root of the loss, or what is outside of the span in a reduced basis."""
        entries = self.medium.membrane.stiffness(self.medium.basis @ coefficients)
        if self.way != "differences":
            return (SNAPSHOTS - INSIDE[self.way](self, entries)).sqrt()[None]
        stiffness, seen = self.medium.membrane.scipy(entries), self.frame.T @ self.images
        modes = scipy.linalg.eigh(self.frame.T @ (stiffness @ self.frame), subset_by_index=[0, MODES - 1])[1]
        return torch.from_numpy((seen - modes @ (modes.T @ seen)).ravel())


def by_eigenpairs(search: Spanned, entries: Tensor) -> Tensor:
    """Return the squares of the snapshots' parts in the span of the modes by `eigenpairs`."""
    membrane = search.medium.membrane
    pairs = eigenpairs(membrane.sparse(entries), MODES, mass=membrane.sparse(membrane.mass))
    return (pairs.vectors.mT @ torch.from_numpy(search.images)).square().sum()


def by_forces(search: Spanned, entries: Tensor) -> Tensor:
    """Return the same as the slope of Σ_i λ_i in a part of K that is a square of the snapshots' images."""
    stiffness, mass = search.medium.membrane.scipy(entries.detach()).toarray(), search.medium.mass.toarray()
    total = entries.new_zeros(())
    for sign in (1, -1):
        more = stiffness + sign * ADDED * search.images @ search.images.T
        modes = scipy.linalg.eigh(more, mass, subset_by_index=[0, MODES - 1])[1]
        inside = ((search.images.T @ modes) ** 2).sum() / 2
        total = total + inside + sign * quadratic(search.medium.membrane, entries, modes).sum() / (2 * ADDED)
    return total


def by_filter(search: Spanned, entries: Tensor) -> Tensor:
    """Return Σ_s x_sᵀ M f(M⁻¹ K) x_s with f(λ) = 1 / (1 + (λ / cut)^16), by its poles z: Σ −z / 16 / (λ / cut − z).

    The cut is between the last mode and the next. As d xᵀ M (K − z M)⁻¹ M x = −yᵀ dK y with y = (K − z M)⁻¹ M x, a
    linear function of K has the value and the slope.
    """
    membrane, images = search.medium.membrane, search.images
    edge = solved(membrane, entries, MODES + 1)[1][:, -2:]
    cut = quadratic(membrane, entries, edge).prod().sqrt()
    row, col = membrane.index.numpy()
    value, slope = 0.0, np.zeros(len(row))
    for angle in np.pi * (np.arange(POLES) + 0.5) / POLES:
        pole = cut.item() * np.exp(1j * angle)
        matrix = membrane.scipy(entries.detach()) - pole * search.medium.mass
        moved = splu(matrix.tocsc(), permc_spec=ORDER).solve(images.astype(complex))
        value -= (pole * (images * moved).sum()).real / POLES
        slope += (pole * (moved[row] * moved[col]).sum(1)).real / POLES
    scaled = entries * (cut.item() / cut)  # f(λ / cut) at another cut is f of other entries
    return value + torch.from_numpy(slope) @ (scaled - entries.detach())


INSIDE: dict[str, Callable[[Spanned, Tensor], Tensor]] = {
    "layer": by_eigenpairs,
    "forces": by_forces,
    "filter": by_filter,
}


def in_bases(search: Spanned, start: Numbers) -> None:
    """Minimise by Gauss–Newton with finite differences, in rounds with a basis of modes each."""
    for _ in range(ROUNDS):
        search.frame, search.least = search.medium.modes(search.best, BASIS)[1], np.inf
        gauss_newton(search, search.best.numpy())


@dataclass(frozen=True)
class Cell:
    """Reconstructs waves in one medium by one way."""

    cap: float

    def __call__(self, side: int, way: str, seed: int) -> dict[str, Any]:
        """Return what `attempt` does, and the error of waves."""
        medium = Medium(side, seed)
        search = Spanned(medium, way, self.cap)
        if way not in (*INSIDE, "differences"):
            error = medium.without_field(way, medium.modes(search.best)[1])
            return {"end": "converged", "seconds": 0.0, "memory": 0.0, "evaluations": 0, "error": error}
        found = attempt(search, in_bases if way == "differences" else descend, search.best.numpy())
        modes = medium.modes(search.best)[1]
        return {**found, "error": medium.error(modes @ modes.T)}


def results_table(metrics: dict[str, dict[str, Any]]) -> Table:
    """Return errors of each way, how far they are above the layer's, and seconds."""

    def cells(found: dict[str, Any]) -> list[str]:
        behind = found.get("it_less_layer")
        above = plus_minus(behind, 3, sign="+") if behind else "–"
        return [plus_minus(found["error"], 3), above, f"{found['seconds']:.1f}"]

    ways = next(iter(metrics.values()))
    rows = [[WAYS[way], *(cell for found in metrics.values() for cell in cells(found[way]))] for way in ways]
    heads = [head for count in metrics for head in (f"{count} unknowns", "less eigenpairs", "seconds")]
    return table("error of waves between sensors", ["way", *heads], rows)
