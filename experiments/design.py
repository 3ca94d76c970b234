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
from experiments.searches import Ended, Search, attempt, descend
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
SYMMETRIC = ", symmetric"
ADDED = 1e-3  # mass on the patch over that of the membrane there
ENDS = {"NaN": "NaN", "singular": "singular", "cap": "not ended"}
START = {False: 0.02, True: 0.2}  # size of the random start; the symmetric mean makes it smaller
JITTER = 1e-5  # of the matrix's diagonal, over the first eigenvalue


def design(
    out: Path = Path("runs/design"),
    ways: list[str] = list(WAYS),  # noqa: B006 (never changed)
    meshes: list[str] = ["1000 nodes", "4000 nodes", "400 nodes, symmetric"],  # noqa: B006
    seeds: list[int] = [10, 3, 10],  # noqa: B006
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
        meshes: 64, 400, 1000 or 4000 nodes with a patch anywhere, or "64 nodes, symmetric" and so on.
        seeds: numbers of patches or, with symmetry, starts on each of the meshes; slow ways try one.
        iterations: of L-BFGS, from a random start that is the same for all ways.
        cap: processor seconds for a design; slow is what takes a sixth of it, and twice as long as the first way.
        jobs: processes.
        quick: one design of 64 nodes, three ways.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        ways, meshes, seeds = ["layer", "masses", "eigh"], ["64 nodes", "64 nodes, symmetric"], [1, 1]
        iterations = 10
    check_names("ways", ways, WAYS)
    check_names("meshes", meshes, [f"{nodes} nodes{kept}" for nodes in CELLS for kept in ("", SYMMETRIC)])
    check_least("seeds", min(seeds), 1)
    if len(seeds) != len(meshes):
        raise Refusal(f"--seeds must have a number for each of {len(meshes)} meshes, got {len(seeds)}")
    run = Run(out, locals())
    cell, metrics = Cell(iterations, cap), {}
    for mesh, count in zip(meshes, seeds, strict=True):
        omitted = ["eigh"] if mesh.startswith("4000") else []  # minutes for an evaluation
        omitted += [] if SYMMETRIC in mesh else ["basis_jittered", "eigh_jittered"]
        tried = [way for way in ways if way not in omitted]
        first = run.cells("designs", cell, [(mesh, way, 0) for way in tried], jobs)
        limit = max(cap / 6, 2 * first[mesh, tried[0], 0]["seconds"])
        fast = [way for way in tried if first[mesh, way, 0]["seconds"] < limit]
        cells = first | run.cells("designs", cell, [(mesh, w, seed) for w in fast for seed in range(1, count)], jobs)
        metrics[mesh] = summary({way: [cell for case, cell in cells.items() if case[1] == way] for way in tried})
    run.finish(metrics, *tables_of(metrics))


Result = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """Designs one membrane by one way; arguments as those of `design`."""

    iterations: int
    cap: float

    def __call__(self, mesh: str, way: str, seed: int) -> Result:
        """Return what `attempt` does, the energy and the eigenvalue over the uniform ones, and seconds of a solve."""
        spot = Spot(int(mesh.split()[0]), SYMMETRIC in mesh, seed)
        search = Quiet(spot, way, self.cap, self.iterations)
        found = attempt(search, in_rounds if way.startswith("basis") else descend, spot.start)
        begin = time.process_time()
        energy, first, gap = spot.measured(search.best)
        solves = found["evaluations"] * (len(spot.start) + 1)
        found["differences"] = solves * (time.process_time() - begin)
        return found | {"energy": energy / spot.uniform[0], "first": first / spot.uniform[1], "gap": gap}


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


Measured = tuple[Tensor, Tensor]  # the first eigenvalue and the energy of entries of K


def by_eigenpairs(search: Quiet, entries: Tensor) -> Measured:
    """Measure by `eigenpairs`."""
    membrane = search.spot.membrane
    pairs = eigenpairs(membrane.sparse(entries), MODES, mass=membrane.sparse(membrane.mass))
    return pairs.values[0], search.spot.energy(pairs.vectors)


def by_hand(search: Quiet, entries: Tensor) -> Measured:
    """Measure by SciPy, with slopes as in a textbook, of distinct eigenvalues.

    The energy's slope in an entry of K is −Σ_i z_i u_iᵀ there, with (K − λ_i M) z_i = (I − M u_i u_iᵀ) 2 W u_i.
    """
    spot, by_sum = search.spot, search.way == "fox_kapoor"
    values, modes = spot.solved(entries, SUMMED if by_sum else MODES)
    row, col = spot.membrane.index.numpy()
    slope = np.zeros(len(row))
    for i in range(MODES):
        pulled = 2 * spot.weights.numpy() * modes[:, i]
        if by_sum:  # Fox & Kapoor 1968
            others, gaps = np.delete(modes, i, 1), np.delete(values, i) - values[i]
            z = others @ ((others.T @ pulled) / gaps)
        else:
            try:
                z = nelson(spot.membrane, entries, values[i], modes[:, i], pulled)
            except RuntimeError as error:  # two eigenvalues are equal
                raise Ended("singular") from error
        slope -= z[row] * modes[col, i]
    energy = spot.energy(torch.from_numpy(modes[:, :MODES]))
    first = quadratic(spot.membrane, entries, modes[:, :1])[0]
    return first, energy + torch.from_numpy(slope) @ (entries - entries.detach())


def by_eigh(search: Quiet, entries: Tensor) -> Measured:
    """Measure by all eigenvectors of the matrix in a frame, a whole one or modes of an earlier design."""
    (row, col), frame = search.spot.membrane.index, search.frame
    matrix = frame.mT @ torch.zeros_like(frame).index_add(0, row, entries[:, None] * frame[col])
    if search.way.endswith("jittered"):
        noise = torch.from_numpy(np.random.default_rng(5).normal(size=len(matrix)))
        matrix = matrix + JITTER * search.spot.uniform[1] * noise.diag()
    values, vectors = (torch_lapeig.eigh if search.way == "basis" else torch.linalg.eigh)(matrix)[:2]
    return values[0], search.spot.energy(frame @ vectors[:, :MODES])


def quadratic(membrane: Membrane, entries: Tensor, blocks: Numbers) -> Tensor:
    """Return bᵀ K b of each column; of a mode it has the value and, by Hellmann and Feynman, the slope of λ."""
    row, col = membrane.index
    fixed = torch.from_numpy(blocks)
    return entries @ (fixed[row] * fixed[col])


def by_masses(search: Quiet, entries: Tensor) -> Measured:
    """Measure the energy as the slope of −Σ_i log λ_i in a mass on the patch, by a difference of eigenvalues."""
    spot = search.spot
    more, less = (quadratic(spot.membrane, entries, spot.solved(entries, MODES, s * ADDED)[1]) for s in (1, -1))
    return (more[0] + less[0]) / 2, (less.log() - more.log()).sum() / (2 * ADDED)


def by_compliance(search: Quiet, entries: Tensor) -> Measured:
    """Measure tr W K⁻¹ in the place of the energy, which differentiates a linear system."""
    spot = search.spot
    patch = spot.weights.nonzero()[:, 0].numpy()
    load = np.zeros((len(spot.weights), len(patch)))
    load[patch, np.arange(len(patch))] = spot.weights[patch].sqrt()
    moved = splu(spot.membrane.scipy(entries.detach()), permc_spec=ORDER).solve(load)
    compliance = 2 * float((load * moved).sum()) - quadratic(spot.membrane, entries, moved).sum()
    return quadratic(spot.membrane, entries, spot.solved(entries, 1)[1])[0], compliance


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
        search.frame = torch.from_numpy(search.spot.solved(search.spot.entries(search.best), BASIS)[1])
        search.least = np.inf
        descend(search, search.best.numpy())


def summary(cells: dict[str, list[Result]]) -> Result:
    """Return geometric means over designs, ratios to the layer's energies, and how many designs ended otherwise."""
    found: Result = {}
    for way, results in cells.items():
        energies = np.array([cell["energy"] for cell in results])
        found[way] = {
            key: float(np.mean([cell[key] for cell in results])) for key in ("seconds", "first", "differences")
        }
        found[way] |= {end: sum(cell["end"] == end for cell in results) for end in ENDS}
        found[way] |= {
            "designs": len(results),
            "equal": sum(cell["gap"] < 1e-9 for cell in results),
            "energy": geometric(energies),
        }
        if way != "layer" and "layer" in cells:
            ratios = [cell["energy"] / ours["energy"] for cell, ours in zip(results, cells["layer"], strict=False)]
            found[way]["over_layer"] = geometric(np.array(ratios), len(cells) - 1)
    return found


def geometric(values: Numbers, among: int = 1) -> Result:
    """Return the geometric mean, the factor by which its interval reaches to both sides, and values by seed."""
    found = mean_and_interval(np.log(values), among)
    factor = None if found["interval"] is None else float(np.exp(found["interval"]))
    return {"mean": float(np.exp(found["mean"])), "interval": factor, "seeds": values.tolist()}


def tables_of(metrics: Result) -> list[Table]:
    """Return energies that are left, with their ratios to the layer's, and seconds."""

    def told(value: Result) -> str:
        return f"{value['mean']:.3g}" + ("" if value["interval"] is None else f" ×/÷ {value['interval']:.2f}")

    def energy(found: Result) -> str:
        ends = "".join(f"; {found[end]} of {found['designs']} {word}" for end, word in ENDS.items() if found[end])
        if "over_layer" not in found:
            return told(found["energy"]) + ends
        return f"{found['energy']['mean']:.3g} ({told(found['over_layer'])}){ends}"

    def rows(cell: Callable[[Result], str]) -> list[list[str]]:
        ways = [way for way in WAYS if any(way in found for found in metrics.values())]
        return [[WAYS[way], *(cell(found[way]) if way in found else "–" for found in metrics.values())] for way in ways]

    heads = ["way", *metrics]
    count = ["finite differences, by count", *(f"{found['layer']['differences']:,.0f}" for found in metrics.values())]
    return [
        table("energy left on the patch (over that of eigenpairs)", heads, rows(energy)),
        table("seconds", heads, [*rows(lambda found: f"{found['seconds']:.2g}"), count]),
    ]
