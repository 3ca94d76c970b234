"""Manifolds (Baghani & Araabi, *Improved Laplacian eigenmaps*, Figure 2): weightings against true eigenfunctions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table
from scipy.integrate import quad
from scipy.linalg import subspace_angles
from torch import Tensor

import torch_lapeig as tl
from experiments.metrics import Numbers, mean_and_interval, plus_minus
from experiments.runs import Case, Refusal, Run, check_least, check_names, pick_device, table
from experiments.shapes import MANIFOLDS, Manifold

METHODS = {
    "weighted": "weighted LE",
    "simple": "simple LE",
    "improved": "Improved LE",
    "density_corrected": "density-corrected, α = 1",
    "self_tuning": "self-tuning",
}
WITH_SCALE = [*METHODS][:-1]  # whose eigenvalues approach −Δ's times a constant: all but self-tuning
MEASURES = {"angle": "principal angle (degrees)", "eigenvalue": "error of eigenvalues (%)"}
SAMPLINGS = {"uniform": "uniform", "tilted": "non-uniform"}
NAMES = list(MANIFOLDS)
SEEDS = {500: 5, 1000: 5, 2000: 4, 4000: 2}
SWEPT = ["circle", "square", "sphere"]
TILT = 1.0  # non-uniform samples have a density ∝ exp(TILT · x₁), |x₁| ≤ 1
SPACES = 2  # eigenspaces that are compared after the constant, each as a whole
TOLERANCE = 1e-3  # residual of the eigenvectors, relative to the eigengap
SWEEPS = {"degree": [15.0, 25.0, 80.0, 160.0], "fall": [0.5, 1.0, 2.0, 8.0, 16.0], "noise": [0.1, 0.2, 0.4]}
AXES = {"degree": "neighbours of a point within ε", "fall": "ε²/t, the exponent at ε", "noise": "noise over ε"}


class Setting(NamedTuple):
    """How a sample is joined and weighted.

    Attributes:
        degree: expected neighbours of a point within ε among 500 uniform ones; ε shrinks as N^(−1/(d + 2)).
        fall: ε² over the heat kernel's t. noise: standard deviation of each coordinate's noise over ε.
    """

    degree: float = 40.0
    fall: float = 4.0
    noise: float = 0.0


def manifolds(
    out: Path = Path("runs/manifolds"),
    shapes: list[str] = NAMES,
    seeds: dict[int, int] = SEEDS,
    reference: int = 2000,
    swept: list[str] = SWEPT,
    points_of_sweeps: int = 1000,
    seeds_of_sweeps: int = 3,
    device: str = "auto",
    jobs: int | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Manifolds: eigenvectors and eigenvalues of each weighting against those of the Laplace–Beltrami operator.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        shapes: which manifolds: circle, eight, disc, ring, square, sphere, cylinder.
        seeds: number of random samples for each number of points N.
        reference: N of the tables and the figure of embeddings; one of those in seeds.
        swept: manifolds, non-uniform samples, for which one setting is changed at a time: neighbours within ε, the
            kernel's fall at ε, noise.
        points_of_sweeps: N of the sweeps.
        seeds_of_sweeps: number of random samples for each value.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        jobs: processes that work on the samples; default: one for each core, on CUDA one.
        quick: one sample of 500 points of circle, square and sphere; of the sweeps circles of 500 points.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        shapes, seeds, reference, jobs = ["circle", "square", "sphere"], {500: 1}, 500, 1
        swept, points_of_sweeps, seeds_of_sweeps = ["circle"], 500, 1
    _check(shapes, swept, seeds, reference)
    run = Run(out, locals())
    samples = Samples(pick_device(device))
    plan = Plan(shapes, seeds, swept, points_of_sweeps, seeds_of_sweeps)
    jobs = 1 if jobs is None and samples.place.type == "cuda" else jobs
    cells = run.cells("samples", samples.measured, plan.cases(), jobs)
    metrics, of_sweeps = plan.over_sizes(cells), plan.over_sweeps(cells)
    run.figure("convergence", convergence_figure(metrics, list(seeds)), dpi=80)
    run.figure("sweeps", sweeps_figure(of_sweeps), dpi=80)
    run.figure("manifolds", embeddings_figure({shape: samples.maps(shape, reference) for shape in shapes}), dpi=75)
    run.finish({**metrics, "sweeps": of_sweeps}, *(measure_table(metrics, reference, measure) for measure in MEASURES))


class Plan(NamedTuple):
    """Samples to draw, and the averages over them; the arguments as for `manifolds`."""

    shapes: list[str]
    seeds: dict[int, int]
    swept: list[str]
    points: int
    repeats: int

    def cases(self) -> list[Case]:
        """Return shape, sampling, number of points, seed and setting of each sample."""
        of_sizes = [
            case
            for n in self.seeds
            for shape in self.shapes
            for sampling in SAMPLINGS
            for case in self._of_size(shape, sampling, n)
        ]
        settings = (setting for name in SWEEPS for setting in self._settings(name))
        of_sweeps = [case for setting in settings for case in self._of_setting(setting)]
        return list(dict.fromkeys([*of_sizes, *of_sweeps]))

    def over_sizes(self, cells: dict[Any, Any]) -> dict[str, Any]:
        """Return `over_samples` by sampling, manifold and N."""

        def mean(shape: str, sampling: str, n: int) -> dict[str, Any]:
            return over_samples([cells[case] for case in self._of_size(shape, sampling, n)])

        return {
            sampling: {shape: {f"N={n}": mean(shape, sampling, n) for n in self.seeds} for shape in self.shapes}
            for sampling in SAMPLINGS
        }

    def over_sweeps(self, cells: dict[Any, Any]) -> dict[str, Any]:
        """Return `over_samples` by setting and its value."""
        return {
            name: {
                f"{getattr(setting, name):g}": over_samples([cells[case] for case in self._of_setting(setting)])
                for setting in self._settings(name)
            }
            for name in SWEEPS
        }

    def _of_size(self, shape: str, sampling: str, n: int) -> list[Case]:
        return [(shape, sampling, n, seed, *Setting()) for seed in range(self.seeds[n])]

    def _of_setting(self, setting: Setting) -> list[Case]:
        return [(shape, "tilted", self.points, seed, *setting) for shape in self.swept for seed in range(self.repeats)]

    def _settings(self, name: str) -> list[Setting]:
        """Return the values of one setting, that of the base among them."""
        return sorted({Setting(), *(Setting(**{name: value}) for value in SWEEPS[name])})


@dataclass(frozen=True)
class Samples:
    """Random points of manifolds, and what the weightings make of them; the arguments as those of `manifolds`."""

    place: torch.device

    def draw(self, shape: str, sampling: str, n: int, seed: int, noise: float) -> tuple[Numbers, Tensor]:
        """Return coordinates on the manifold, and points in space with noise of a standard deviation."""
        generator = np.random.default_rng([NAMES.index(shape), n, seed])
        manifold = manifold_of(shape)
        u = manifold.sample(n, TILT if sampling == "tilted" else 0.0, generator)
        x = manifold.embed(u)
        x = x + noise * generator.standard_normal(x.shape)
        return u, torch.from_numpy(x).to(self.place)

    def measured(
        self, shape: str, sampling: str, n: int, seed: int, degree: float, fall: float, noise: float
    ) -> dict[str, Any]:
        """Return by method the angles to the true eigenspaces, and the relative errors of eigenvalues."""
        manifold = manifold_of(shape)
        epsilon = radius(manifold, n, degree)
        u, x = self.draw(shape, sampling, n, seed, noise * epsilon)
        spaces = manifold.eigenspaces(SPACES)
        functions = [np.stack([mode.function(u) for mode in modes], 1) for modes in spaces]
        true = np.array([modes[0].value for modes in spaces])
        sizes = [len(modes) for modes in spaces]
        result: dict[str, Any] = {}
        for method, values, vectors in eigenvectors(x, epsilon, fall, sum(sizes)):
            result[method] = {"angle": mean_angles(functions, vectors)}
            if method in WITH_SCALE:
                found = [part.mean() for part in np.split(values, np.cumsum(sizes)[:-1])]
                error = np.array(found) / constant(method, manifold.dimension, epsilon, fall) / true - 1
                result[method]["eigenvalue"] = (100 * error).tolist()
        return result

    def maps(self, shape: str, n: int) -> tuple[Numbers, dict[str, Numbers]]:
        """Return points of non-uniform density, and two (in space three) first eigenvectors by method."""
        epsilon = radius(manifold_of(shape), n, Setting().degree)
        _, x = self.draw(shape, "tilted", n, 0, 0.0)
        found = eigenvectors(x, epsilon, Setting().fall, x.shape[1])
        return x.cpu().numpy(), {method: vectors for method, _, vectors in found}


@cache
def manifold_of(shape: str) -> Manifold:
    """Return the manifold of a name: its modes take a moment to find."""
    return MANIFOLDS[shape]()


def _check(shapes: list[str], swept: list[str], seeds: dict[int, int], reference: int) -> None:
    """Raise unless the names are those of manifolds, and the reference is one of the sizes."""
    check_names("shapes", shapes, NAMES)
    check_names("swept", swept, NAMES)
    check_least("seeds", min(seeds.values(), default=0), 1)
    if reference not in seeds:
        raise Refusal(f"--reference must be one of the numbers of points in --seeds, {list(seeds)}, got {reference}")


def radius(manifold: Manifold, n: int, degree: float) -> float:
    """Return ε at which a point among n uniform ones has ``degree`` · (n / 500)^(2 / (d + 2)) neighbours."""
    d = manifold.dimension
    ball = degree * (n / 500) ** (2 / (d + 2)) * manifold.volume / n
    return float(ball / 2 if d == 1 else np.sqrt(ball / np.pi))


def constant(method: str, d: int, epsilon: float, fall: float) -> float:
    """Return c such that eigenvalues of the graph approach c times those of −Δ in dimension d.

    For a kernel K(s) = exp(−fall · s²) of s = r/ε < 1, a row of the Laplacian is an average of f(x) − f(y) over the
    ball of radius ε, whose second order is −Δf/(2d) times the mean square distance: weighted by K over ∫K where rows
    are divided by degrees, over the ball's volume in Improved LE, where they are divided by numbers of neighbours.
    """
    exponent = 0.0 if method == "simple" else fall

    def moment(power: int, exponent: float) -> float:
        return float(quad(lambda s: s ** (d - 1 + power) * np.exp(-exponent * s**2), 0, 1)[0])

    mass = moment(0, 0.0 if method == "improved" else exponent)
    return epsilon**2 / (2 * d) * moment(2, exponent) / mass


def eigenvectors(x: Tensor, epsilon: float, fall: float, count: int) -> Iterator[tuple[str, Numbers, Numbers]]:
    """Yield the first ``count`` eigenvalues and eigenvectors ``(N, count)`` after the constant one, for each method.

    All are on the graph that joins points within ε, with a heat kernel that falls to e^−fall there; self-tuning
    weights, whose scale is that of the nearest neighbours, on the graph of the 20 nearest.
    """
    t = epsilon**2 / fall
    graph = tl.Radius(epsilon)(x)
    problems: dict[str, tuple[tl.Graph, Literal["random_walk", "unnormalized"]]] = {
        "weighted": (tl.HeatKernel(t)(x, graph), "random_walk"),
        "simple": (tl.SimpleWeights()(x, graph), "random_walk"),
        "improved": (tl.ImprovedWeights(t)(x, graph), "unnormalized"),
        "density_corrected": (tl.DensityCorrected(1.0, tl.HeatKernel(t))(x, graph), "random_walk"),
        "self_tuning": (tl.SelfTuning()(x, tl.KNN(20, "union")(x)), "random_walk"),
    }
    for method, (weighted, normalization) in problems.items():
        pairs = tl.eigenpairs(tl.Laplacian(weighted, normalization), count + 1, tolerance=TOLERANCE)
        yield method, pairs.values[1:].cpu().numpy(), pairs.vectors[:, 1:].cpu().numpy()


def mean_angles(true: list[Numbers], vectors: Numbers) -> list[float]:
    """Return the mean angle in degrees between each space of true functions and the same eigenvectors."""
    ends = np.cumsum([space.shape[1] for space in true])
    found = np.split(vectors, ends[:-1], axis=1)
    return [float(np.degrees(subspace_angles(a, b)).mean()) for a, b in zip(true, found, strict=True)]


def over_samples(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return by method the mean angle over eigenspaces, and the mean error of eigenvalues, over samples."""
    return {
        method: {
            measure: mean_and_interval([float(np.abs(result[method][measure]).mean()) for result in results])
            for measure in results[0][method]
        }
        for method in METHODS
    }


def measure_table(metrics: dict[str, Any], n: int, measure: str) -> Table:
    """Rows: samplings and manifolds; columns: methods."""
    methods = METHODS if measure == "angle" else {method: METHODS[method] for method in WITH_SCALE}
    rows = [
        [SAMPLINGS[sampling], shape, *(plus_minus(by_n[f"N={n}"][method][measure], 1) for method in methods)]
        for sampling, by_shape in metrics.items()
        for shape, by_n in by_shape.items()
    ]
    return table(f"{measure}s", ["sampling", "manifold", *methods.values()], rows)


def _curves(panel: Any, at: Sequence[float], found: list[dict[str, Any]], measure: str) -> None:
    """Draw a line for each method, with intervals, on logarithmic axes."""
    for i, (method, name) in enumerate(METHODS.items()):
        if measure in found[0][method]:
            mean = np.array([each[method][measure]["mean"] for each in found])
            half = np.array([each[method][measure]["interval"] or 0 for each in found])
            # On a logarithmic axis the lower end of the bar has to stay above zero.
            ends = np.stack([np.minimum(half, 0.9 * mean), half])
            panel.errorbar(at, mean, ends, fmt="o-", ms=3, lw=1.2, elinewidth=0.7, color=f"C{i}", label=name)
    panel.set(yscale="log")
    panel.minorticks_off()
    panel.spines[["top", "right"]].set_visible(False)


def convergence_figure(metrics: dict[str, Any], sizes: list[int]) -> Figure:
    """Return angle and error of eigenvalues against N for each manifold (columns) and sampling (rows)."""
    shapes = list(metrics["uniform"])
    figure = Figure(figsize=(15, 10))
    kinds = [(sampling, measure) for measure in MEASURES for sampling in SAMPLINGS]
    panels = figure.subplots(
        len(kinds), len(shapes), squeeze=False, sharex=True, sharey="row", gridspec_kw={"wspace": 0.08, "hspace": 0.12}
    )
    figure.subplots_adjust(0.06, 0.09, 0.99, 0.97)
    for row, (sampling, measure) in zip(panels, kinds, strict=True):
        for panel, shape in zip(row, shapes, strict=True):
            _curves(panel, sizes, [metrics[sampling][shape][f"N={n}"] for n in sizes], measure)
            panel.set(xscale="log", xticks=sizes, xticklabels=[f"{n / 1000:g}" for n in sizes])
            panel.minorticks_off()
        row[0].set_ylabel(f"{SAMPLINGS[sampling]}\n{MEASURES[measure]}")
    for panel, shape in zip(panels[0], shapes, strict=True):
        panel.set_title(shape, fontsize=11)
    for panel in panels[-1]:
        panel.set_xlabel("N / 1000")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(METHODS), frameon=False)
    return figure


def sweeps_figure(sweeps: dict[str, Any]) -> Figure:
    """Return both measures (rows) against each setting (columns)."""
    figure = Figure(figsize=(12, 6.4))
    panels = figure.subplots(len(MEASURES), len(sweeps), squeeze=False, sharex="col", sharey="row")
    figure.subplots_adjust(0.07, 0.16, 0.99, 0.98, wspace=0.06, hspace=0.08)
    for column, (name, of_sweep) in zip(panels.T, sweeps.items(), strict=True):
        at = [float(value) for value in of_sweep]
        for panel, measure in zip(column, MEASURES, strict=True):
            _curves(panel, at, list(of_sweep.values()), measure)
            panel.set(xscale="linear" if name == "noise" else "log", xticks=at, xticklabels=list(of_sweep))
            panel.minorticks_off()
        column[-1].set_xlabel(AXES[name])
    for row, label in zip(panels, MEASURES.values(), strict=True):
        row[0].set_ylabel(label)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(METHODS), frameon=False)
    return figure


def embeddings_figure(maps: dict[str, tuple[Numbers, dict[str, Numbers]]]) -> Figure:
    """Rows: the manifolds; columns: a non-uniform sample, then its first eigenvectors for each method, two or three."""
    figure = Figure(figsize=(13, 2.15 * len(maps)))  # a constrained layout of so many panels takes seconds
    grid = figure.add_gridspec(len(maps), 1 + len(METHODS), wspace=0.06, hspace=0.06)
    figure.subplots_adjust(0.04, 0.01, 0.99, 0.97)
    for i, (shape, (x, vectors)) in enumerate(maps.items()):
        colour = np.arctan2(x[:, 1], x[:, 0])
        for j, (title, y) in enumerate({f"{len(x)} points": x, **{METHODS[m]: vectors[m] for m in METHODS}}.items()):
            panel: Any = figure.add_subplot(grid[i, j], projection="3d" if y.shape[1] == 3 else None)
            y = y / np.abs(y).max(0)
            panel.scatter(*y.T, s=1.5, c=colour, cmap="hsv", lw=0, rasterized=True)
            panel.set_box_aspect((1, 1, 1) if y.shape[1] == 3 else 1)
            panel.set(**{f"{axis}ticks": [] for axis in "xyz"[: y.shape[1]]})
            if y.shape[1] == 2:
                panel.spines[:].set_color("0.8")
            if i == 0:
                panel.set_title(title, fontsize=11)
            if j == 0:
                figure.text(0.015, 0.985 - 0.96 * (i + 0.5) / len(maps), shape, rotation=90, fontsize=12, va="center")
    return figure
