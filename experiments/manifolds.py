"""Manifolds (Baghani & Araabi, *Improved Laplacian eigenmaps*, Figure 2): weightings against true eigenfunctions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table
from scipy.linalg import subspace_angles
from torch import Tensor

from experiments.metrics import Numbers
from experiments.runs import Refusal, Run, check_least, check_names, pick_device, table
from experiments.shapes import MANIFOLDS, Manifold
from torch_lapeig import (
    KNN,
    DensityCorrected,
    Graph,
    HeatKernel,
    ImprovedWeights,
    Laplacian,
    Radius,
    SelfTuning,
    SimpleWeights,
    eigenpairs,
)

METHODS = {
    "weighted": "weighted LE",
    "simple": "simple LE",
    "improved": "Improved LE",
    "density_corrected": "density-corrected, α = 1",
    "self_tuning": "self-tuning",
}
Normalization = Literal["random_walk", "unnormalized"]
SAMPLINGS = {"uniform": "uniform", "tilted": "non-uniform"}
NAMES = list(MANIFOLDS)
SEEDS = {500: 20, 1000: 20, 2000: 20, 4000: 5, 8000: 3}


def manifolds(
    out: Path = Path("runs/manifolds"),
    shapes: list[str] = NAMES,
    seeds: dict[int, int] = SEEDS,
    reference: int = 2000,
    tilt: float = 1.0,
    degree: float = 40.0,
    eigenspaces: int = 2,
    tolerance: float = 1e-3,
    device: str = "auto",
    jobs: int | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Manifolds: angles between eigenvectors of each weighting and the eigenfunctions of the Laplace–Beltrami operator.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        shapes: which manifolds: circle, eight, disc, ring, square, sphere, cylinder.
        seeds: number of random samples for each number of points N.
        reference: N of the table and the figure of embeddings; one of those in seeds.
        tilt: non-uniform samples have a density ∝ exp(tilt · x₁), |x₁| ≤ 1: it varies by exp(2 tilt).
        degree: expected neighbours of a point within ε among 500 uniform ones; ε shrinks as N^(−1/(d + 2)).
        eigenspaces: how many of them are compared after the constant, each as a whole.
        tolerance: residual of the eigenvectors, relative to the eigengap.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        jobs: processes that work on the samples; default: one for each core, on CUDA one.
        quick: one sample of 500 points of circle, square and sphere.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        shapes, seeds, reference, jobs = ["circle", "square", "sphere"], {500: 1}, 500, 1
    _check(shapes, seeds, reference)
    run = Run(out, locals())
    place = pick_device(device)
    samples = Samples({shape: MANIFOLDS[shape]() for shape in shapes}, tilt, degree, tolerance, place)
    cases = [
        (shape, sampling, n, seed)
        for n, count in seeds.items()
        for shape in shapes
        for sampling in SAMPLINGS
        for seed in range(count)
    ]
    jobs = 1 if jobs is None and place.type == "cuda" else jobs
    cells = run.cells("samples", partial(samples.angles, eigenspaces), cases, jobs)
    metrics = summary(cells, shapes, seeds)
    run.figure("convergence", convergence_figure(metrics, list(seeds)), dpi=80)
    maps = {shape: samples.maps(shape, "tilted", reference, 0) for shape in shapes}
    run.figure("manifolds", embeddings_figure(maps, reference), dpi=75)
    run.finish(metrics, angle_table(metrics, reference, seeds[reference]))


@dataclass(frozen=True)
class Samples:
    """Random points of manifolds, and what the weightings make of them; the arguments as those of `manifolds`."""

    manifold: dict[str, Manifold]
    tilt: float
    degree: float
    tolerance: float
    place: torch.device

    def draw(self, shape: str, sampling: str, n: int, seed: int) -> tuple[Numbers, Tensor]:
        """Coordinates on the manifold and points in space."""
        generator = np.random.default_rng([NAMES.index(shape), n, seed])
        u = self.manifold[shape].sample(n, self.tilt if sampling == "tilted" else 0.0, generator)
        return u, torch.from_numpy(self.manifold[shape].embed(u)).to(self.place)

    def angles(self, eigenspaces: int, shape: str, sampling: str, n: int, seed: int) -> dict[str, Any]:
        """Angles to the true eigenspaces, by method."""
        u, x = self.draw(shape, sampling, n, seed)
        spaces = self.manifold[shape].eigenspaces(eigenspaces)
        true = [np.stack([mode.function(u) for mode in modes], 1) for modes in spaces]
        epsilon = radius(self.manifold[shape], n, self.degree)
        found = eigenvectors(x, epsilon, sum(space.shape[1] for space in true), self.tolerance)
        return {method: mean_angles(true, vectors) for method, vectors in found}

    def maps(self, shape: str, sampling: str, n: int, seed: int) -> tuple[Numbers, dict[str, Numbers]]:
        """Points, and their first two eigenvectors by method."""
        _, x = self.draw(shape, sampling, n, seed)
        epsilon = radius(self.manifold[shape], n, self.degree)
        return x.cpu().numpy(), dict(eigenvectors(x, epsilon, 2, self.tolerance))


def angle_table(metrics: dict[str, Any], n: int, samples: int) -> Table:
    """Rows: samplings and manifolds; columns: methods."""
    rows = [
        [
            SAMPLINGS[sampling],
            shape,
            *(f"{by_n[f'N={n}'][method]['mean']:.1f} ± {by_n[f'N={n}'][method]['sd']:.1f}" for method in METHODS),
        ]
        for sampling, by_shape in metrics.items()
        for shape, by_n in by_shape.items()
    ]
    title = f"principal angle in degrees, mean ± sd, N = {n}, {samples} samples"
    return table(title, ["sampling", "manifold", *METHODS.values()], rows)


def _check(shapes: list[str], seeds: dict[int, int], reference: int) -> None:
    """Raise unless the names are those of manifolds and the reference is one of the sizes."""
    check_names("shapes", shapes, NAMES)
    check_least("seeds", min(seeds.values(), default=0), 1)
    if reference not in seeds:
        raise Refusal(f"--reference must be one of the numbers of points in --seeds, {list(seeds)}, got {reference}")


def radius(manifold: Manifold, n: int, degree: float) -> float:
    """ε at which a point among n uniform ones has ``degree`` · (n / 500)^(2 / (d + 2)) neighbours."""
    d = manifold.dimension
    ball = degree * (n / 500) ** (2 / (d + 2)) * manifold.volume / n
    return float(ball / 2 if d == 1 else np.sqrt(ball / np.pi))


def eigenvectors(x: Tensor, epsilon: float, count: int, tolerance: float) -> Iterator[tuple[str, Numbers]]:
    """The first ``count`` eigenvectors ``(N, count)`` after the constant one, for each method.

    All are on the graph that joins points within ε, with a heat kernel that falls to e⁻⁴ there; self-tuning weights,
    whose scale is that of the nearest neighbours, on the graph of the 20 nearest.
    """
    t = epsilon**2 / 4
    graph = Radius(epsilon)(x)
    problems: dict[str, tuple[Graph, Normalization]] = {
        "weighted": (HeatKernel(t)(x, graph), "random_walk"),
        "simple": (SimpleWeights()(x, graph), "random_walk"),
        "improved": (ImprovedWeights(t)(x, graph), "unnormalized"),
        "density_corrected": (DensityCorrected(1.0, HeatKernel(t))(x, graph), "random_walk"),
        "self_tuning": (SelfTuning()(x, KNN(20, "union")(x)), "random_walk"),
    }
    for method, (weighted, normalization) in problems.items():
        pairs = eigenpairs(Laplacian(weighted, normalization), count + 1, tolerance=tolerance)
        yield method, pairs.vectors[:, 1:].cpu().numpy()


def mean_angles(true: list[Numbers], vectors: Numbers) -> list[float]:
    """Mean principal angle in degrees between each space of true functions and the eigenvectors of the same numbers."""
    ends = np.cumsum([space.shape[1] for space in true])
    found = np.split(vectors, ends[:-1], axis=1)
    return [float(np.degrees(subspace_angles(a, b)).mean()) for a, b in zip(true, found, strict=True)]


def summary(cells: dict[Any, dict[str, list[float]]], shapes: list[str], seeds: dict[int, int]) -> dict[str, Any]:
    """Mean and sd over seeds of the angle averaged over eigenspaces, by sampling, manifold, N and method."""

    def over_seeds(shape: str, sampling: str, n: int, method: str) -> dict[str, Any]:
        angles = np.array([cells[shape, sampling, n, seed][method] for seed in range(seeds[n])])
        each = angles.mean(1)
        return {"mean": each.mean(), "sd": each.std(), "by_eigenspace": angles.mean(0).tolist()}

    return {
        sampling: {
            shape: {f"N={n}": {method: over_seeds(shape, sampling, n, method) for method in METHODS} for n in seeds}
            for shape in shapes
        }
        for sampling in SAMPLINGS
    }


def convergence_figure(metrics: dict[str, Any], sizes: list[int]) -> Figure:
    """Angle against N for each manifold (columns) and sampling (rows)."""
    figure = Figure(figsize=(15, 5.6))
    shapes = list(metrics["uniform"])
    panels = figure.subplots(
        len(SAMPLINGS), len(shapes), squeeze=False, sharex=True, sharey=True, gridspec_kw={"wspace": 0.08}
    )
    figure.subplots_adjust(0.06, 0.17, 0.99, 0.95)
    for row, (sampling, label) in zip(panels, SAMPLINGS.items(), strict=True):
        for panel, shape in zip(row, shapes, strict=True):
            for i, (method, name) in enumerate(METHODS.items()):
                angles = [metrics[sampling][shape][f"N={n}"][method] for n in sizes]
                mean, sd = (np.array([angle[key] for angle in angles]) for key in ("mean", "sd"))
                # On a logarithmic axis the lower end of the bar has to stay above zero.
                bars = np.stack([np.minimum(sd, 0.9 * mean), sd])
                panel.errorbar(sizes, mean, bars, fmt="o-", ms=3, lw=1.2, elinewidth=0.7, color=f"C{i}", label=name)
            panel.set(xscale="log", yscale="log", xticks=sizes, xticklabels=[f"{n / 1000:g}" for n in sizes])
            panel.minorticks_off()
            panel.spines[["top", "right"]].set_visible(False)
            panel.set_title(shape if sampling == "uniform" else "", fontsize=11)
        row[0].set_ylabel(f"{label}\nprincipal angle (degrees)")
    for panel in panels[-1]:
        panel.set_xlabel("N / 1000")
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=len(METHODS), frameon=False)
    return figure


def embeddings_figure(maps: dict[str, tuple[Numbers, dict[str, Numbers]]], n: int) -> Figure:
    """Rows: the manifolds; columns: a non-uniform sample, then its first two eigenvectors for each method."""
    figure = Figure(figsize=(13, 2.1 * len(maps)))  # a constrained layout of so many panels takes seconds
    panels = figure.subplots(len(maps), 1 + len(METHODS), squeeze=False, gridspec_kw={"wspace": 0.06, "hspace": 0.06})
    figure.subplots_adjust(0.04, 0.01, 0.99, 0.97)
    for row, (shape, (x, vectors)) in zip(panels, maps.items(), strict=True):
        colour = np.arctan2(x[:, 1], x[:, 0])
        depth = 0.35 * x[:, 2:].sum(1)  # a third axis is drawn aslant
        row[0].scatter(x[:, 0] + depth, x[:, 1] + 1.2 * depth, s=1.5, c=colour, cmap="hsv", lw=0, rasterized=True)
        row[0].set_aspect("equal")
        row[0].set_ylabel(shape, fontsize=12)
        for panel, method in zip(row[1:], METHODS, strict=True):
            y = vectors[method] / np.abs(vectors[method]).max(0)
            panel.scatter(y[:, 0], y[:, 1], s=1.5, c=colour, cmap="hsv", lw=0, rasterized=True)
            panel.set_box_aspect(1)
    for panel, title in zip(panels[0], [f"{n} points", *METHODS.values()], strict=True):
        panel.set_title(title, fontsize=11)
    for panel in panels.flat:
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_color("0.8")
    return figure
