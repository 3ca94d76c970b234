"""Stiffnesses of a membrane that keep a patch quiet: design of eigenvectors, by their derivatives and by ways without.

A membrane −∇·(c ∇u) = λ u on the unit square, held at its edge, has a stiffness c in each finite element, between a
tenth of its mean and ten times as much. Its first modes shall be small on a patch, Σ_i u_iᵀ W u_i with the mass W of
the patch, while the first eigenvalue stays above 0.8 of that of the uniform membrane.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from scipy.sparse import coo_array, diags_array
from scipy.sparse.linalg import eigsh, splu
from scipy.spatial import cKDTree
from torch import Tensor

import torch_lapeig
from experiments.inverse import ORDER, nelson, whole
from experiments.membrane import CELLS, Membrane
from experiments.metrics import Numbers, mean_and_interval
from experiments.runs import Refusal, Run, check_least, check_names, table
from experiments.searches import Search, attempt, descend
from torch_lapeig import eigenpairs

WAYS = {
    "layer": "eigenpairs",
    "nelson": "eigsh, Nelson's formula by hand",
    "fox_kapoor": "eigsh, Fox and Kapoor's sum by hand",
    "basis": "torch_lapeig.eigh in a reduced basis",
    "basis_eigh": "torch.linalg.eigh in a reduced basis",
    "basis_jittered": "torch.linalg.eigh, jitter, in a reduced basis",
    "eigh": "torch.linalg.eigh",
    "eigh_jittered": "torch.linalg.eigh, jitter",
    "masses": "eigenvalues with a little mass on the patch",
    "compliance": "compliance of the patch",
}
MODES = 6  # which cut no pair of equal eigenvalues of the uniform square
SUMMED, BASIS = 60, 100  # modes of Fox and Kapoor's sum, and of a reduced basis
ROUNDS = 4  # of descents, each in the basis of modes at its start
CONTRAST = 2.3  # largest logarithm of c, before its mean is made 1
PATCH, FILTER = 0.12, 0.06  # radii: of the patch, and of the mean over elements that smooths c
KEPT = 0.8  # of the first eigenvalue
ADDED = 1e-3  # mass on the patch over that of the membrane there
ENDS = {"NaN": "NaN", "cap": "not ended"}
START = {False: 0.02, True: 0.2}  # size of the random start; the symmetric mean makes it smaller
JITTER = 1e-5  # of the matrix's diagonal, over the first eigenvalue


def design(
    out: Path = Path("runs/design"),
    ways: list[str] = list(WAYS),  # noqa: B006 (never changed)
    sizes: list[int] = [1000, 4000],  # noqa: B006
    seeds: list[int] = [10, 3],  # noqa: B006
    symmetric: int = 400,
    symmetric_seeds: int = 10,
    iterations: int = 40,
    cap: float = 60.0,
    jobs: int = 1,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Stiffnesses of a membrane that keep a patch quiet: design of eigenvectors, by their derivatives and without.

    Args:
        out: folder of metrics.json and what is finished.
        ways: layer, nelson, fox_kapoor, basis, basis_eigh, basis_jittered, eigh, eigh_jittered, masses, compliance.
        sizes: of 64, 400, 1000, 4000 free nodes; patches lie anywhere. Ways with jitter are for the symmetric mesh.
        seeds: numbers of patches for each of the sizes; a way that takes more than a sixth of the cap tries one.
        symmetric: free nodes of the mesh with all symmetries of the square.
        symmetric_seeds: number of starts there.
        iterations: of L-BFGS, from a random start that is the same for all ways.
        cap: processor seconds for a design.
        jobs: processes.
        quick: one design of 64 nodes, three ways.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        ways, sizes, seeds, symmetric, symmetric_seeds = ["layer", "masses", "eigh"], [64], [1], 64, 1
        iterations = 10
    check_names("ways", ways, WAYS)
    check_names("sizes", map(str, [*sizes, symmetric]), map(str, CELLS))
    check_least("seeds", min(*seeds, symmetric_seeds), 1)
    if len(seeds) != len(sizes):
        raise Refusal(f"--seeds must have a number for each of {len(sizes)} sizes, got {len(seeds)}")
    run = Run(out, locals())
    cell = Cell(iterations, cap)

    def compared(nodes: int, mirrored: bool, count: int) -> dict[str, Any]:
        tried = [way for way in ways if mirrored or not way.endswith("jittered")]
        first = run.cells("designs", cell, [(nodes, mirrored, way, 0) for way in tried], jobs)
        fast = [case[2] for case, result in first.items() if result["seconds"] < cap / 6]
        rest = [(nodes, mirrored, way, seed) for way in fast for seed in range(1, count)]
        cells = first | run.cells("designs", cell, rest, jobs)
        return summary({way: [result for case, result in cells.items() if case[2] == way] for way in tried})

    anywhere = {f"{nodes} nodes": compared(nodes, False, count) for nodes, count in zip(sizes, seeds, strict=True)}
    kept = compared(symmetric, True, symmetric_seeds)
    tables = [*tables_of("", anywhere), *tables_of("symmetric, ", {f"{symmetric} nodes": kept})]
    run.finish({"nodes": dict(zip(map(str, sizes), anywhere.values(), strict=True)), "symmetric": kept}, *tables)


@dataclass(frozen=True)
class Cell:
    """Designs one membrane by one way; arguments as those of `design`."""

    iterations: int
    cap: float

    def __call__(self, nodes: int, symmetric: bool, way: str, seed: int) -> dict[str, Any]:
        """Return what `attempt` does, the energy and the eigenvalue over the uniform ones, and seconds of a solve."""
        spot = Spot(nodes, symmetric, seed)
        search = Quiet(spot, way, self.cap, self.iterations)
        found = attempt(search, in_rounds if way.startswith("basis") else descend, spot.start)
        begin = time.process_time()
        energy, first, gap = spot.measured(search.best)
        solve = time.process_time() - begin
        unknowns = len(spot.start)
        return {
            **found,
            "energy": energy / spot.uniform[0],
            "first": first / spot.uniform[1],
            "gap": gap,
            "differences": found["evaluations"] * (unknowns + 1) * solve,
        }


class Spot:
    """A membrane and its patch; with ``symmetric`` true, the patch and all designs have the symmetry of the square."""

    def __init__(self, nodes: int, symmetric: bool, seed: int) -> None:
        self.membrane = Membrane.of(CELLS[nodes])
        self.generator = np.random.default_rng(seed)
        centre = np.full(2, 0.5) if symmetric else self.generator.uniform(0.25, 0.75, 2)
        inside = ((self.membrane.places.numpy() - centre) ** 2).sum(1) < PATCH**2
        masses = self.membrane.scipy(self.membrane.mass).sum(1)
        self.weights = torch.from_numpy(inside * masses)
        self.mean = smoothing(self.membrane, symmetric)
        count = len(self.membrane.areas)
        self.start = START[symmetric] * self.generator.normal(size=count)
        self.uniform = self.measured(torch.zeros(count, dtype=torch.float64))

    def entries(self, unknowns: Tensor) -> Tensor:
        """Return entries of K of unknowns, one for each element: c is smooth, within bounds, and 1 in the mean."""
        field = CONTRAST * (self.mean @ unknowns).tanh()
        shares = self.membrane.areas / self.membrane.areas.sum()
        return self.membrane.stiffness(field - (shares @ field.exp()).log())

    def solved(self, entries: Tensor, count: int = MODES, added: float = 0.0) -> tuple[Numbers, Numbers]:
        """Return eigenvalues and modes by SciPy's shift-invert, with a share of the patch's mass added to it."""
        mass = self.membrane.scipy(self.membrane.mass) + added * diags_array(self.weights.numpy())
        start = np.random.default_rng(0).normal(size=mass.shape[0])
        values, modes = eigsh(self.membrane.scipy(entries.detach()), count, mass.tocsc(), sigma=0, v0=start)
        return values, modes

    def energy(self, modes: Tensor) -> Tensor:
        """Return what modes ``(N, m)`` have on the patch."""
        return self.weights @ modes.square().sum(1)

    def measured(self, unknowns: Tensor) -> tuple[float, float, float]:
        """Return the energy, the first eigenvalue, and the smallest relative gap between modes that are counted."""
        values, modes = self.solved(self.entries(unknowns), MODES + 1)
        energy = self.energy(torch.from_numpy(modes[:, :MODES])).item()
        return energy, float(values[0]), float((values[1:] / values[:-1] - 1).min())


@cache
def smoothing(membrane: Membrane, symmetric: bool) -> Tensor:
    """Return the matrix of means over near elements ``(T, T)``, and over the eight images of an element."""
    centres = membrane.centres.numpy()
    tree, count = cKDTree(centres), len(centres)
    near = tree.query_pairs(FILTER, output_type="ndarray")
    row, col = np.concatenate([near, near[:, ::-1], np.arange(count)[:, None].repeat(2, 1)]).T
    mean = coo_array((np.ones(len(row)), (row, col)), shape=(count, count)).tocsr()
    mean = diags_array(1 / mean.sum(1)) @ mean
    if symmetric:
        turned = [centres, centres[:, ::-1]]
        flips = [[0, 0], [0, 1], [1, 0], [1, 1]]
        images = [tree.query(np.abs(flip - places))[1] for places in turned for flip in flips]
        index = np.tile(np.arange(count), 8), np.concatenate(images)
        mean = mean @ coo_array((np.full(8 * count, 0.125), index), shape=(count, count)).tocsr()
    places = torch.from_numpy(np.stack(mean.nonzero()).astype(np.int64))
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(mean[mean.nonzero()]), mean.shape, check_invariants=True
    ).coalesce()


class Quiet(Search):
    """The loss of one way: the energy over that of the uniform membrane, and how far the first eigenvalue falls."""

    def __init__(self, spot: Spot, way: str, cap: float, iterations: int) -> None:
        super().__init__(len(spot.start), cap, 1e-5 / len(spot.start))
        self.spot, self.way, self.iterations = spot, way, iterations
        self.frame = whole(spot.membrane) if "eigh" in way else torch.empty(0)  # orthonormal in M
        self.scale = spot.uniform[0]
        if way == "compliance":
            self.scale = by_compliance(self, spot.entries(self.best))[1].item()

    def fitted(self, coefficients: Tensor) -> Tensor:
        """Return the root of the energy, and ten times what the eigenvalue falls short."""
        first, energy = MEASURES.get(self.way, by_eigh)(self, self.spot.entries(coefficients))
        return torch.stack([(energy / self.scale).sqrt(), 10 * (KEPT - first / self.spot.uniform[1]).relu()])

    def renew(self) -> None:
        """Take the modes of the best design for a frame."""
        self.frame = torch.from_numpy(self.spot.solved(self.spot.entries(self.best), BASIS)[1])
        self.least = np.inf


Result = dict[str, Any]
Measured = tuple[Tensor, Tensor]  # the first eigenvalue and the energy of entries of K


def by_eigenpairs(search: Quiet, entries: Tensor) -> Measured:
    """Measure by `eigenpairs`."""
    membrane = search.spot.membrane
    pairs = eigenpairs(membrane.sparse(entries), MODES, mass=membrane.sparse(membrane.mass))
    return pairs.values[0], search.spot.energy(pairs.vectors)


class ByHand(torch.autograd.Function):
    """Eigenvalues and modes by SciPy, and derivatives as in a textbook, of distinct eigenvalues."""

    @staticmethod
    def forward(ctx: Any, entries: Tensor, spot: Spot, summed: int) -> Measured:
        """Return the first values and modes; `summed` is 0 for Nelson's formula."""
        ctx.values, ctx.modes = spot.solved(entries, max(summed, MODES))
        ctx.entries, ctx.spot, ctx.summed = entries, spot, summed
        return torch.from_numpy(ctx.values[:MODES]), torch.from_numpy(ctx.modes[:, :MODES])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        """Return Σ_i g_i u_i u_iᵀ − z_i u_iᵀ at the entries, with (K − λ_i M) z_i = (I − M u_i u_iᵀ) G_i."""
        of_values, of_modes = (part.numpy() for part in cotangents)
        row, col = ctx.spot.membrane.index.numpy()
        total = np.zeros(len(row))
        for i in range(MODES):
            mode = ctx.modes[:, i]
            if ctx.summed:  # Fox & Kapoor 1968
                others = np.delete(ctx.modes, i, 1)
                z = others @ ((others.T @ of_modes[:, i]) / (np.delete(ctx.values, i) - ctx.values[i]))
            else:
                z = nelson(ctx.spot.membrane, ctx.entries, ctx.values[i], mode, of_modes[:, i])
            total += (of_values[i] * mode - z)[row] * mode[col]
        return torch.from_numpy(total), None, None


def by_hand(search: Quiet, entries: Tensor) -> Measured:
    """Measure by SciPy and a formula."""
    values, modes = ByHand.apply(entries, search.spot, SUMMED if search.way == "fox_kapoor" else 0)
    return values[0], search.spot.energy(modes)


def by_eigh(search: Quiet, entries: Tensor) -> Measured:
    """Measure by all eigenvectors of the matrix in a frame, a whole one or modes of an earlier design."""
    (row, col), frame = search.spot.membrane.index, search.frame
    matrix = frame.mT @ torch.zeros_like(frame).index_add(0, row, entries[:, None] * frame[col])
    if search.way.endswith("jittered"):
        noise = torch.from_numpy(np.random.default_rng(5).normal(size=len(matrix)))
        matrix = matrix + JITTER * search.spot.uniform[1] * noise.diag()
    values, vectors = (torch_lapeig.eigh if search.way == "basis" else torch.linalg.eigh)(matrix)[:2]
    return values[0], search.spot.energy(frame @ vectors[:, :MODES])


def quadratic(spot: Spot, entries: Tensor, blocks: Numbers) -> Tensor:
    """Return bᵀ K b of each column; of a mode it has the value and, by Hellmann and Feynman, the slope of λ."""
    row, col = spot.membrane.index
    fixed = torch.from_numpy(blocks)
    return entries @ (fixed[row] * fixed[col])


def by_masses(search: Quiet, entries: Tensor) -> Measured:
    """Measure the energy as the slope of −Σ_i log λ_i in a mass on the patch, by a difference of eigenvalues."""
    more, less = (quadratic(search.spot, entries, search.spot.solved(entries, MODES, s * ADDED)[1]) for s in (1, -1))
    return (more[0] + less[0]) / 2, (less.log() - more.log()).sum() / (2 * ADDED)


def by_compliance(search: Quiet, entries: Tensor) -> Measured:
    """Measure tr W K⁻¹ in the place of the energy, which differentiates a linear system."""
    spot = search.spot
    patch = spot.weights.nonzero()[:, 0].numpy()
    load = np.zeros((len(spot.weights), len(patch)))
    load[patch, np.arange(len(patch))] = spot.weights[patch].sqrt()
    moved = splu(spot.membrane.scipy(entries.detach()), permc_spec=ORDER).solve(load)
    compliance = 2 * float((load * moved).sum()) - quadratic(spot, entries, moved).sum()
    return quadratic(spot, entries, spot.solved(entries, 1)[1])[0], compliance


MEASURES: dict[str, Callable[[Quiet, Tensor], Measured]] = {
    "layer": by_eigenpairs,
    "nelson": by_hand,
    "fox_kapoor": by_hand,
    "masses": by_masses,
    "compliance": by_compliance,
}


def in_rounds(search: Quiet, start: Numbers) -> None:
    """Descend in rounds, each in the space of the modes at its start."""
    search.iterations //= ROUNDS
    search.best = torch.from_numpy(start)
    for _ in range(ROUNDS):
        search.renew()
        descend(search, search.best.numpy())


def summary(cells: dict[str, list[Result]]) -> dict[str, Any]:
    """Return geometric means over designs, ratios to the layer's energies, and how many designs ended otherwise."""
    found: dict[str, Any] = {}
    for way, results in cells.items():
        means = {key: float(np.mean([cell[key] for cell in results])) for key in ("seconds", "first", "differences")}
        ends = {end: sum(cell["end"] == end for cell in results) for end in ("NaN", "cap")}
        equal = sum(cell["gap"] < 1e-9 for cell in results)
        energy = factor([cell["energy"] for cell in results])
        found[way] = {"energy": energy, **means, **ends, "equal": equal, "designs": len(results)}
        if way != "layer" and "layer" in cells:
            pairs = zip(results, cells["layer"], strict=False)
            ratios = [cell["energy"] / layer["energy"] for cell, layer in pairs]
            found[way]["over_layer"] = factor(ratios, len(cells) - 1)
    return found


def factor(values: list[float], among: int = 1) -> dict[str, Any]:
    """Return the geometric mean and the factor of its interval, which is that of logarithms."""
    logarithms = mean_and_interval(np.log(values), among)
    half = logarithms["interval"]
    return {
        "mean": float(np.exp(logarithms["mean"])),
        "interval": None if half is None else float(np.exp(half)),
        "seeds": values,
    }


def tables_of(title: str, metrics: dict[str, dict[str, Any]]) -> list[Table]:
    """Return energies that are left, their ratios to the layer's, and seconds."""
    ways = [way for way in WAYS if any(way in found for found in metrics.values())]

    def rows(cell: Callable[[dict[str, Any]], str]) -> list[list[str]]:
        return [[WAYS[way], *(cell(found[way]) if way in found else "–" for found in metrics.values())] for way in ways]

    def told(value: dict[str, Any] | None) -> str:
        if value is None:
            return "–"
        return f"{value['mean']:.3g}" + ("" if value["interval"] is None else f" ×/÷ {value['interval']:.2f}")

    def energy(found: dict[str, Any]) -> str:
        ends = [f"{found[end]} of {found['designs']} {word}" for end, word in ENDS.items() if found[end]]
        return ", ".join([told(found["energy"]), *ends])

    heads = ["way", *metrics]
    by_count = ["finite differences, by count", *(f"{found['layer']['differences']:.2g}" for found in metrics.values())]
    return [
        table(f"{title}energy left on the patch", heads, rows(energy)),
        table(f"{title}energy over that of eigenpairs", heads, rows(lambda found: told(found.get("over_layer")))),
        table(f"{title}seconds", heads, [*rows(lambda found: f"{found['seconds']:.2g}"), by_count]),
    ]
