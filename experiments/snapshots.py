"""A medium's stiffness from few snapshots of waves in it, so that its modes reconstruct other waves from sensors.

A snapshot is a random combination of the first modes of a membrane with an unknown stiffness, with noise. A field is
fitted so that the first modes span the snapshots, and judged by waves that are known at sensors only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from experiments.design import quadratic
from experiments.membrane import CELLS, Membrane, bilinear, random_field, solved
from experiments.metrics import Numbers
from experiments.runs import Run, check_least, check_names
from experiments.searches import Search, attempt, descend, gauss_newton, summary, tables_of
from torch_lapeig import eigenpairs

WAYS = {
    "truth": "modes of the true field",
    "pca": "principal components and uniform modes",
    "kriging": "kriging, the best of five covariances",
    "differences": "finite differences in a reduced basis",
    "forces": "eigenvalues with a little of the snapshots' forces",
    "layer": "eigenpairs",
}
NODES = 400  # free ones of the mesh, about
MODES, SNAPSHOTS, SENSORS, WAVES = 20, 8, 40, 200
CONTRAST = 1.6  # over that of `random_field`
NOISE, AT_SENSORS = 0.1, 0.05  # of snapshots and of what sensors see, over the root mean square
PENALTY = 1e-3
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the uniform covariance
ADDED = 1e-2  # forces over the stiffness
BASIS, ROUNDS = 120, 3  # modes of the reduced basis, and how often it is renewed


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
        ways: truth, pca, kriging, differences, forces, layer.
        sides: of grids of coefficients of the field.
        seeds: media.
        cap: processor seconds for a medium.
        jobs: processes.
        quick: one medium, 4² coefficients, two ways.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        ways, sides, seeds = ["pca", "layer"], [4], 1
    check_names("ways", ways, WAYS)
    check_least("seeds", seeds, 1)
    run = Run(out, locals())
    cells = run.cells("media", Cell(cap), product(sides, ways, range(seeds)), jobs)
    metrics = {
        f"{side**2} unknowns": summary({way: [cells[side, way, seed] for seed in range(seeds)] for way in ways})
        for side in sides
    }
    run.finish(metrics, *tables_of("snapshots", "waves between sensors", WAYS, metrics))


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


INSIDE: dict[str, Callable[[Spanned, Tensor], Tensor]] = {
    "layer": by_eigenpairs,
    "forces": by_forces,
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
