"""Weights of a network that make it as well connected as a budget allows, by gradients of several eigenvalues.

The algebraic connectivity λ₂ of the Laplacian is concave in the weights (Fiedler 1973; Boyd 2006). At its maximum under
a budget several eigenvalues are equal, where λ₂ alone has no gradient. −log Σ_i exp(−β λ_i) / β of the first ones has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from scipy.sparse import csc_array
from scipy.sparse.linalg import eigsh
from torch import Tensor

from experiments.metrics import Numbers, mean_and_interval, plus_minus
from experiments.runs import Refusal, Run, check_least, check_names, table
from torch_lapeig import Graph, Laplacian, eigenpairs, knn_graph

WAYS = {
    "smooth": "eigenpairs, several eigenvalues",
    "eigh": "torch.linalg.eigh, the second alone",
    "by_hand": "eigsh, Hellmann–Feynman by hand",
    "sdp": "semidefinite program (cvxpy, SCS)",
}
NEIGHBORS = 6
MULTIPLE = 0.01  # relative distance from λ₂ within which eigenvalues are counted as equal to it
LARGE = 4000  # nodes from which on one network is tried
SHARPNESS = (5.0, 500.0)  # β λ₂ in the first and the last step


def design(
    out: Path = Path("runs/design"),
    ways: list[str] = list(WAYS),  # noqa: B006 (never changed)
    sizes: list[int] = [100, 1000, 4000, 20000],  # noqa: B006
    seeds: int = 3,
    steps: int = 300,
    rate: float = 0.5,
    columns: int = 10,
    cap: float = 180.0,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Weights of a network that connect it best under a budget: several eigenvalues against the second alone.

    Args:
        out: folder of metrics.json and what is finished.
        ways: smooth, eigh, by_hand, sdp (needs cvxpy: pip install cvxpy).
        sizes: numbers of nodes, random points of a square, joined to six neighbours; weights add up to the edges.
        seeds: networks of each size; of 4000 nodes and more one.
        steps: of Adam on logarithms of the weights.
        rate: of Adam, which falls to zero along a cosine.
        columns: eigenvalues after the trivial one in the smooth objective.
        cap: processor seconds for a network; a way that takes more than half of it is not tried on more nodes.
        quick: one network of 100 nodes without the program, few steps.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        ways, sizes, seeds, steps = ["smooth", "eigh"], [100], 1, 60
    check_names("ways", ways, WAYS)
    check_least("seeds", seeds, 1)
    check_least("sizes", min(sizes), NEIGHBORS + columns + 2)
    if "sdp" in ways and find_spec("cvxpy") is None:
        raise Refusal("--ways sdp needs cvxpy: pip install cvxpy, or name other ways")
    run = Run(out, locals())
    cell = Cell(steps, rate, columns, cap)
    found: dict[int, dict[str, list[Result]]] = {}
    for size in sorted(sizes):
        before = [(way, results[0]) for cells in found.values() for way, results in cells.items()]
        slow = {way for way, result in before if not result["ended"] or result["seconds"] > cap / 2}
        tried = [way for way in ways if way not in slow]
        first = run.cells("networks", cell, [(way, size, 0) for way in tried])
        count = seeds if size < LARGE else 1
        rest = [(way, size, seed) for way in tried if first[way, size, 0]["ended"] for seed in range(1, count)]
        cells = first | run.cells("networks", cell, rest)
        found[size] = {way: [result for case, result in cells.items() if case[0] == way] for way in tried}
    metrics = {str(size): summary(cells) for size, cells in found.items()}
    run.finish({"nodes": metrics}, *tables_of(metrics))


class Network:
    """Edges ``(2, m)`` between nearest neighbours among random points ``(N, 2)`` of a square."""

    def __init__(self, nodes: int, seed: int) -> None:
        self.points = torch.from_numpy(np.random.default_rng(seed).random((nodes, 2)))
        pattern = knn_graph(self.points, NEIGHBORS).edge_index
        upper = pattern[0] < pattern[1]
        self.edges = pattern[:, upper]
        self.nodes, self.budget = nodes, int(upper.sum())

    def laplacian(self, weights: Tensor) -> Laplacian:
        """Return the Laplacian of weights of the edges ``(m,)``."""
        both = torch.cat([self.edges, self.edges.flip(0)], 1)
        return Laplacian(Graph.from_edge_index(both, weights.repeat(2), self.nodes), "unnormalized")

    def scipy(self, weights: Tensor) -> csc_array:
        """Return the matrix of the Laplacian."""
        (a, b), w = self.edges.numpy(), weights.detach().numpy()
        entries = np.concatenate([w, w, -w, -w])
        index = np.concatenate([a, b, a, b]), np.concatenate([a, b, b, a])
        return csc_array((entries, index), shape=(self.nodes, self.nodes))

    def smallest(self, weights: Tensor, count: int) -> tuple[Numbers, Numbers]:
        """Return the smallest eigenvalues and vectors after the constant one, by SciPy's shift-invert."""
        start = np.random.default_rng(0).normal(size=self.nodes)
        values, vectors = eigsh(self.scipy(weights), count + 1, sigma=-1e-4, v0=start)
        return values[1:], vectors[:, 1:]


Result = dict[str, Any]
Objective = Callable[[Network, Tensor, int, float], tuple[Tensor, Tensor]]


def several(network: Network, weights: Tensor, columns: int, sharpness: float) -> tuple[Tensor, Tensor]:
    """Return a smooth lower bound of λ₂ by the first eigenvalues, and λ₂."""
    values = eigenpairs(network.laplacian(weights), columns + 1).values[1:]
    beta = sharpness / values[0].item()
    return -(-beta * values).logsumexp(0) / beta, values[0]


def by_eigh(network: Network, weights: Tensor, columns: int, sharpness: float) -> tuple[Tensor, Tensor]:
    """Return λ₂ by `torch.linalg.eigh`."""
    a, b = network.edges
    dense = weights.new_zeros(network.nodes, network.nodes).index_put((a, b), weights)
    dense = dense + dense.mT
    second = torch.linalg.eigh(dense.sum(1).diag() - dense)[0][1]
    return second, second


def by_hand(network: Network, weights: Tensor, columns: int, sharpness: float) -> tuple[Tensor, Tensor]:
    """Return λ₂ by SciPy, as a linear function with the slope of Hellmann and Feynman, (u_a − u_b)²."""
    _, vectors = network.smallest(weights, 1)
    slope = torch.from_numpy(vectors[network.edges[0], 0] - vectors[network.edges[1], 0]).square()
    second = slope @ weights  # λ₂ = uᵀ L u
    return second, second


OBJECTIVES: dict[str, Objective] = {"smooth": several, "eigh": by_eigh, "by_hand": by_hand}


@dataclass(frozen=True)
class Cell:
    """Finds the weights of a network by one way; arguments as those of `design`."""

    steps: int
    rate: float
    columns: int
    cap: float

    def __call__(self, way: str, nodes: int, seed: int) -> dict[str, Any]:
        """Return λ₂ over that of equal weights, how many eigenvalues equal it, seconds, and whether the way ended."""
        network = Network(nodes, seed)
        begin = time.process_time()
        weights, ended = sdp(network, self.cap) if way == "sdp" else self.ascend(way, network)
        seconds = time.process_time() - begin
        values, _ = network.smallest(weights, self.columns)
        before, _ = network.smallest(torch.ones_like(weights), 1)
        multiplicity = int((values < (1 + MULTIPLE) * values[0]).sum())
        gain, spectrum = float(values[0] / before[0]), (values / values[0]).tolist()
        return {"gain": gain, "multiplicity": multiplicity, "seconds": seconds, "ended": ended, "spectrum": spectrum}

    def ascend(self, way: str, network: Network) -> tuple[Tensor, bool]:
        """Return the weights with the largest λ₂ among those of Adam's steps, and whether all steps were done."""
        logarithms = torch.zeros(network.budget, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([logarithms], self.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        best, most, deadline = logarithms.detach().exp(), 0.0, time.process_time() + self.cap
        for step in range(self.steps):
            weights = network.budget * logarithms.softmax(0)
            sharpness = SHARPNESS[0] * (SHARPNESS[1] / SHARPNESS[0]) ** (step / self.steps)
            objective, second = OBJECTIVES[way](network, weights, self.columns, sharpness)
            if second.item() > most:
                best, most = weights.detach(), second.item()
            optimizer.zero_grad()
            (-objective / objective.detach()).backward()
            optimizer.step()
            schedule.step()
            if time.process_time() > deadline:
                return best, False
        return best, True


def sdp(network: Network, cap: float) -> tuple[Tensor, bool]:
    """Return the solution of the semidefinite program (Boyd 2006) within the seconds, and whether it converged."""
    cvxpy = import_module("cvxpy")
    n, m = network.nodes, network.budget
    a, b = network.edges.numpy()
    edge = np.arange(m)
    incidence = csc_array((np.repeat([1.0, -1.0], m), (np.r_[a, b], np.r_[edge, edge])), shape=(n, m))
    weights, least = cvxpy.Variable(m, nonneg=True), cvxpy.Variable()
    laplacian = incidence @ cvxpy.diag(weights) @ incidence.T
    constraints = [laplacian - least * (np.eye(n) - 1 / n) >> 0, cvxpy.sum(weights) == m]
    problem = cvxpy.Problem(cvxpy.Maximize(least), constraints)
    try:
        problem.solve(solver="SCS", time_limit_secs=2 * cap)  # of the clock, on a loaded machine
    except cvxpy.SolverError:
        return torch.ones(m, dtype=torch.float64), False
    found = torch.from_numpy(np.maximum(weights.value, 0)) if weights.value is not None else torch.ones(m).double()
    return found * (m / found.sum()), problem.status == "optimal"


def summary(cells: dict[str, list[Result]]) -> dict[str, Any]:
    """Return means over networks, the gain of each, and how far it is below that of several eigenvalues."""
    found: dict[str, Any] = {}
    for way, results in cells.items():
        gains = [result["gain"] for result in results]
        found[way] = {key: float(np.mean([result[key] for result in results])) for key in ("seconds", "multiplicity")}
        found[way] |= {"gain": mean_and_interval(gains), "ended": all(result["ended"] for result in results)}
        pairs = zip(gains, cells.get("smooth", []), strict=False)
        if behind := [1 - gain / ours["gain"] for gain, ours in pairs]:
            found[way]["behind"] = mean_and_interval(behind, max(len(cells) - 1, 1))
    return found


def tables_of(metrics: dict[str, dict[str, Any]]) -> list[Table]:
    """Return what each way gains, and its seconds and multiplicity."""
    ways = [way for way in WAYS if any(way in found for found in metrics.values())]

    def rows(cell: Callable[[dict[str, Any]], str]) -> list[list[str]]:
        return [[WAYS[way], *(cell(found[way]) if way in found else "–" for found in metrics.values())] for way in ways]

    def gain(found: dict[str, Any]) -> str:
        return f"{found['gain']['mean']:.3f}" + ("" if found["ended"] else ", did not end")

    def behind(found: dict[str, Any]) -> str:
        return plus_minus(found["behind"], 2, 100, "+") if "behind" in found else "–"

    heads = ["way", *(f"{size} nodes" for size in metrics)]
    return [
        table("connectivity over that of equal weights", heads, rows(gain)),
        table("below several eigenvalues (%)", heads, rows(behind)),
        table("seconds", heads, rows(lambda found: f"{found['seconds']:.3g}")),
        table("eigenvalues within 1 % of the second", heads, rows(lambda found: f"{found['multiplicity']:.1f}")),
    ]
