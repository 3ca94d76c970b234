"""Parametric eigenmaps: an encoder trained in mini-batches to be the eigenfunctions of a graph Laplacian."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table
from scipy.linalg import subspace_angles
from sklearn.kernel_ridge import KernelRidge
from torch import Tensor

from experiments.data import digits
from experiments.encoders import Encoder, MiniBatches, Objective
from experiments.metrics import Numbers, mean_and_interval, plus_minus
from experiments.runs import Run, check_least, check_names, replacing, table
from experiments.shapes import MANIFOLDS
from experiments.training import QUIET, Flags, train
from torch_lapeig import KNN, Graph, HeatKernel, LaplacianEigenmaps, Whitening

TRAINER: Flags = {**QUIET, "max_epochs": -1, "max_steps": 300, "log_every_n_steps": 10}
COMPONENTS = {"sphere": 8, "digits": 9}
NAMES = list(COMPONENTS)
ENCODERS: dict[str, tuple[str, Objective]] = {
    "edges": ("spectral loss, edges", "spectral"),
    "spectralnet": ("SpectralNet, edges", "spectralnet"),
    "neuralef": ("NeuralEF, edges", "neuralef"),
}
KINDS = list(ENCODERS)
WIDTHS = (1.0, 4.0, 16.0, 64.0, 256.0)  # of the ridge regression's kernel, times the graph's


class Cloud(NamedTuple):
    """Points ``(N, D)`` and ``(M, D)`` to be learnt from and held out, float32.

    Attributes:
        train, heldout: points.
        truth: eigenfunctions at the held-out points ``(M, k)`` where they are known.
    """

    train: Tensor
    heldout: Tensor
    truth: Numbers | None = None


def parametric(
    out: Path = Path("runs/parametric"),
    data: list[str] = NAMES,
    encoders: list[str] = KINDS,
    points: int = 2000,
    neighbors: int = 10,
    batch: int = 512,
    width: int = 128,
    rate: float = 3e-3,
    seeds: int = 10,
    trainer: Flags = TRAINER,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Parametric: an encoder trained to be the eigenfunctions, against exact eigenvectors and Nyström at new points.

    Args:
        out: folder of metrics.json, the figures, the trained encoders and what is finished.
        data: sphere, digits.
        encoders: their losses on mini-batches of edges; edges: the spectral loss; spectralnet, neuralef.
        points: of each data set at most; a fifth of every set is held out.
        neighbors: k of the graphs.
        batch: edges in a mini-batch.
        width: of the encoder's three hidden layers.
        rate: the largest learning rate.
        seeds: number of trainings of each kind, with other splits.
        trainer: flags of Lightning's Trainer.
        quick: a short training on a sphere.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        data, encoders, points, batch, width, seeds = ["sphere"], ["edges"], 1200, 512, 64, 1
        trainer = {**trainer, "max_steps": 250}
    _check(data, encoders, points, seeds)
    run = Run(out, locals())
    training = Training(run, points, neighbors, batch, width, rate, trainer)
    cases = [(name, seed, kind) for name in data for seed in range(seeds) for kind in encoders]
    cells = run.cells("training", training.once, cases, keeps=["encoder.pt"])
    metrics = summary(cells, data, encoders, seeds)
    run.figure("angles", angles_figure(metrics), dpi=90)
    run.finish(metrics, *angle_tables(metrics))


@dataclass(frozen=True)
class Training:
    """Trains one encoder; arguments as those of `parametric`."""

    run: Run
    points: int
    neighbors: int
    batch: int
    width: int
    rate: float
    trainer: Flags

    def once(self, name: str, seed: int, kind: str) -> dict[str, Any]:
        """Train one, save it, and compare it with the ways that need none."""
        rule = KNN(self.neighbors, "union")
        exact = reference(name, self.points, rule, seed)
        torch.manual_seed(seed)
        encoder = Encoder(exact.cloud.train, COMPONENTS[name], self.width, self.rate, ENCODERS[kind][1])
        batches = MiniBatches(exact.cloud.train, exact.graph, self.batch, seed)
        folder = self.run.folder("training", name, seed, kind)
        start = time.perf_counter()
        train(folder, encoder, batches, self.trainer, seed)
        seconds = time.perf_counter() - start
        with replacing(folder / "encoder.pt") as part:
            torch.save(encoder.state_dict(), part)
        return {**assess(encoder, exact), "training_seconds": seconds}


@lru_cache(maxsize=1)  # of the trainings that follow each other with the same split
def reference(name: str, points: int, rule: KNN, seed: int) -> Reference:
    """Return the split of a seed, and what needs no encoder."""
    return Reference.of(load(name, points, seed), COMPONENTS[name], rule)


def _check(data: list[str], encoders: list[str], points: int, seeds: int) -> None:
    """Raise unless names are known and numbers are not too small."""
    check_names("data", data, NAMES)
    check_names("encoders", encoders, KINDS)
    check_least("seeds", seeds, 1)
    check_least("points", points, 100)


def load(name: str, points: int, seed: int) -> Cloud:
    """Return a data set, another split for each seed."""
    if name == "digits":
        split = digits(seed=seed)
        return Cloud(split.train, split.heldout)
    new = points // 5
    sphere = MANIFOLDS["sphere"]()
    u = sphere.sample(points, 0.0, np.random.default_rng(seed))
    x = torch.from_numpy(sphere.embed(u)).float()
    modes = [mode.function(u[:new]) for mode in sphere.modes[1 : COMPONENTS["sphere"] + 1]]
    return Cloud(x[new:], x[:new], np.stack(modes, 1))


class Reference(NamedTuple):
    """Results without an encoder: exact eigenvectors at training points, and three ways at held-out points.

    Attributes:
        cloud, graph: the points, and the graph of the training part.
        exact, eigenvalues: eigenvectors ``(N, k)`` of that graph and their eigenvalues ``(k,)``.
        refit, refit_new: those of the graph of all points, what a new solve would give: ``(N, k)``, ``(M, k)``.
        nystrom, ridge: at held-out points ``(M, k)``, by Nyström's formula and by kernel ridge regression.
        seconds: of the two.
    """

    cloud: Cloud
    graph: Graph
    exact: Numbers
    eigenvalues: Tensor
    refit: Numbers
    refit_new: Numbers
    nystrom: Numbers
    ridge: Numbers
    seconds: dict[str, float]

    @classmethod
    @torch.no_grad()
    def of(cls, cloud: Cloud, n_components: int, rule: KNN) -> Reference:
        """Solve for the training points and for all."""
        graph = HeatKernel()(cloud.train, rule(cloud.train))
        eigenmaps = LaplacianEigenmaps(n_components, rule).fit(cloud.train)
        exact, eigenvalues = eigenmaps.embedding_.numpy(), eigenmaps.eigenvalues_
        start = time.perf_counter()
        nystrom = eigenmaps.transform(cloud.heldout).numpy()
        middle = time.perf_counter()
        ridge = regressed(cloud, graph, exact)
        seconds = {"nystrom_seconds": middle - start, "ridge_seconds": time.perf_counter() - middle}
        every = LaplacianEigenmaps(n_components, rule).fit(torch.cat([cloud.train, cloud.heldout])).embedding_.numpy()
        n = len(exact)
        return cls(cloud, graph, exact, eigenvalues, every[:n], every[n:], nystrom, ridge, seconds)


def regressed(cloud: Cloud, graph: Graph, exact: Numbers) -> Numbers:
    """Return eigenvectors at held-out points by kernel ridge regression on those of the training points.

    A Gaussian whose width, among `WIDTHS` times the median squared length of the graph's edges, is that of the smallest
    angle on a fifth of the training points, after regression on the others.
    """
    x, unit = cloud.train.double().numpy(), float(graph.pattern.squared_lengths(cloud.train).median())
    y = exact / exact.std(0)
    new = np.arange(len(x)) % 5 == 0

    def fitted(times: float, rows: Any) -> KernelRidge:
        return KernelRidge(alpha=1e-3, kernel="rbf", gamma=1 / (times * unit)).fit(x[rows], y[rows])

    best = min(WIDTHS, key=lambda times: mean_angle(fitted(times, ~new).predict(x[new]), y[new]))
    return np.asarray(fitted(best, slice(None)).predict(cloud.heldout.double().numpy()))


@torch.no_grad()
def assess(encoder: Encoder, reference: Reference) -> dict[str, float]:
    """Return angles between the encoder's span, exact eigenvectors and other ways."""
    cloud, refit_new = reference.cloud, reference.refit_new
    y = encoder(cloud.train)
    start = time.perf_counter()
    y_new = encoder(cloud.heldout)
    encoder_seconds = time.perf_counter() - start
    values = {"encoder": y_new.numpy(), "nystrom": reference.nystrom, "ridge": reference.ridge}
    result = {
        "train_encoder": mean_angle(y.numpy(), reference.exact),
        **{f"heldout_{name}": mean_angle(value, refit_new) for name, value in values.items()},
        "refit": mean_angle(reference.exact, reference.refit),
        **{f"largest_{name}": largest_angle(value, refit_new) for name, value in values.items()},
        "encoder_seconds": encoder_seconds,
        **reference.seconds,
    }
    if cloud.truth is not None:
        truth = {**values, "refit": refit_new}
        result |= {f"truth_{name}": mean_angle(value, cloud.truth) for name, value in truth.items()}
    try:
        whitening = Whitening(y.shape[1]).fit(y, reference.graph)
    except ValueError:  # outputs that do not vary in k directions: the training has failed
        result |= {"failed": 1.0}
    else:
        result |= {"failed": 0.0, "energy": float(whitening.eigenvalues_.sum() / reference.eigenvalues.sum())}
    return result


def _angles(a: Numbers, b: Numbers) -> Numbers:
    """Return principal angles in degrees between the spans of columns, after the constant is taken out of both.

    A span of fewer dimensions than there are columns is at 90° in the others.
    """
    centred = [(y - y.mean(0)).astype(np.float64) for y in (a, b)]
    angles: Numbers = np.degrees(subspace_angles(*centred))
    return np.pad(angles, (0, min(a.shape[1], b.shape[1]) - len(angles)), constant_values=90)


def mean_angle(a: Numbers, b: Numbers) -> float:
    """Return mean principal angle in degrees between the spans of the centred columns ``(N, k)``."""
    return float(_angles(a, b).mean())


def largest_angle(a: Numbers, b: Numbers) -> float:
    """Return the largest one."""
    return float(_angles(a, b).max())


def summary(cells: dict[Any, dict[str, float]], data: list[str], kinds: list[str], seeds: int) -> dict[str, Any]:
    """Return mean and 95 % interval of every number over seeds, by data set and kind of encoder."""

    def over_seeds(name: str, kind: str) -> dict[str, Any]:
        found = [cells[name, seed, kind] for seed in range(seeds)]
        # Encoders of a kind share their splits with the others and with Nyström: differences are paired.
        paired = [cell["heldout_encoder"] - cell["heldout_nystrom"] for cell in found]
        return {
            **{key: mean_and_interval([cell[key] for cell in found]) for key in found[0] if key != "energy"},
            "energy": mean_and_interval([cell["energy"] for cell in found if "energy" in cell] or [math.nan]),
            "encoder_over_nystrom": mean_and_interval(paired, len(kinds)),
        }

    return {name: {kind: over_seeds(name, kind) for kind in kinds} for name in data}


def angle_tables(metrics: dict[str, Any]) -> list[Table]:
    """Return encoders at training and held-out points; then the other ways at held-out points."""
    keys = ["train_encoder", "energy", "heldout_encoder", "encoder_over_nystrom", "training_seconds"]
    rows = [
        [name, ENCODERS[kind][0], *(plus_minus(by_key[key]) for key in keys), f"{by_key['failed']['mean']:.0%}"]
        for name, by_kind in metrics.items()
        for kind, by_key in by_kind.items()
    ]
    columns = ["training points (°)", "Ritz values / λ", "held out (°)", "less Nyström's (°)", "training (s)", "failed"]
    others = ["heldout_nystrom", "heldout_ridge", "refit"]
    more = [
        [name, *(plus_minus(next(iter(by_kind.values()))[key]) for key in others)] for name, by_kind in metrics.items()
    ]
    return [
        table("encoders", ["data", "encoder, mini-batches", *columns], rows),
        table("other ways", ["data", "Nyström (°)", "kernel ridge regression (°)", "graphs differ by (°)"], more),
        *([truth_table(metrics["sphere"])] if "sphere" in metrics else []),
    ]


def truth_table(by_kind: dict[str, Any]) -> Table:
    """Return angles to the spherical harmonics at the held-out points."""
    first = next(iter(by_kind.values()))
    rows = [[ENCODERS[kind][0], plus_minus(by_key["truth_encoder"])] for kind, by_key in by_kind.items()]
    names = {"nystrom": "Nyström", "ridge": "kernel ridge regression", "refit": "graph of all points"}
    rows += [[label, plus_minus(first[f"truth_{name}"])] for name, label in names.items()]
    return table("truth on the sphere", ["way", "angle to the harmonics (°)"], rows)


def angles_figure(metrics: dict[str, Any]) -> Figure:
    """Return angles at training and held-out points, for each data set."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    kinds = list(next(iter(metrics.values())))
    encoders = [[(key, kind, ENCODERS[kind][0]) for kind in kinds] for key in ("train_encoder", "heldout_encoder")]
    others = [
        [("refit", kinds[0], "graph of all points")],
        [("heldout_nystrom", kinds[0], "Nyström"), ("heldout_ridge", kinds[0], "kernel ridge regression")],
    ]
    titles = ["training points, from the exact eigenvectors", "held out, from those of the graph of all points"]
    for panel, group, more, title in zip(panels, encoders, others, titles, strict=True):
        for i, (key, kind, name) in enumerate([*group, *more]):
            found = [by_kind[kind][key] for by_kind in metrics.values()]
            place = np.arange(len(metrics)) + (i - (len(kinds) + 1) / 2) * 0.14
            panel.bar(
                place,
                [each["mean"] for each in found],
                0.13,
                yerr=[each["interval"] or 0 for each in found],
                label=name,
                color=f"C{i}" if i < len(kinds) else ("0.6", "0.3")[i - len(kinds)],
                error_kw={"lw": 0.8},
            )
        panel.set_xticks(range(len(metrics)), [name.replace("_", " ") for name in metrics])
        panel.set_title(title, fontsize=10)
        panel.legend(frameon=False, fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean principal angle (degrees)")
    return figure
