"""Weightings in training: cross-entropy of few labels plus λ × smoothness on the graph of each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from pytorch_lightning import LightningDataModule, LightningModule
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import in_turn, ratio
from experiments import data
from experiments.data import Split
from experiments.metrics import mean_and_interval, plus_minus
from experiments.runs import Refusal, Run, check_least, check_names, table
from experiments.training import QUIET, Batches, Flags, train
from torch_lapeig import (
    KNN,
    DensityCorrected,
    Graph,
    HeatKernel,
    ImprovedWeights,
    SelfTuning,
    SimpleWeights,
    laplacian_smoothness,
)
from torch_lapeig.graph import Weighting, nearest_neighbors

# By name: how it is called, and the module, given the bandwidth of the data set.
WEIGHTINGS: dict[str, tuple[str, Callable[[float], Weighting | None]]] = {
    "none": ("none", lambda t: None),
    "fixed": ("heat, t fixed", HeatKernel),
    "median": ("heat, median", lambda t: HeatKernel()),
    "learnable": ("heat, learnable", lambda t: HeatKernel(learnable=True)),
    "simple": ("simple", lambda t: SimpleWeights()),
    "self_tuning": ("self-tuning", lambda t: SelfTuning()),
    "density_corrected": ("density-corrected", lambda t: DensityCorrected()),
    "improved": ("Improved LE", lambda t: ImprovedWeights()),
}
SETS: dict[str, tuple[str, Callable[[Path | None], Split]]] = {
    "digits": ("digits", lambda data_dir: data.digits()),
    "mnist": ("MNIST test set", lambda data_dir: data.split_by_class(*data.mnist_test(data_dir))),
}
SET_NAMES, WEIGHTING_NAMES = list(SETS), list(WEIGHTINGS)
LABELS = [1, 5, 10]
CLASSES = 10
UNKNOWN = -1  # label that the loss leaves out
CALLS = 5  # steps that are timed together
TRAINER = {**QUIET, "max_epochs": 5, "log_every_n_steps": 10}


def weightings(
    out: Path = Path("runs/weightings"),
    sets: list[str] = SET_NAMES,
    labels: list[int] = LABELS,
    methods: list[str] = WEIGHTING_NAMES,
    seeds: int = 5,
    batch: int = 256,
    steps: int = 24,
    neighbors: int = 10,
    smoothness: float = 0.3,
    learning_rate: float = 2e-3,
    rounds: int = 11,
    trainer: Flags = TRAINER,
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Weightings: accuracy of a small network trained with few labels and smoothness by each weighting, and the time.

    Args:
        out: folder of metrics.json, the figure and what is finished.
        sets: which data sets: digits, mnist.
        labels: numbers of labelled images of each class.
        methods: which weightings: none (first), fixed, median, learnable, simple, self_tuning, density_corrected,
            improved.
        seeds: number of trainings of each kind, with other labelled images, first weights and batches.
        batch: images in a batch, all labelled ones among them.
        steps: batches in an epoch.
        neighbors: k of the graph of a batch, and of the neighbourhoods a batch is made of.
        smoothness: λ, the factor of the smoothness of the logits.
        learning_rate: of Adam.
        rounds: in which the steps of all methods are timed in turn, on the CPU.
        trainer: flags of Lightning's Trainer.
        data_dir: folder of the MNIST files; default: TORCH_LAPEIG_DATA.
        quick: digits with 1 label a class, none and learnable, fewer steps.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        sets, labels, methods, seeds, rounds, batch = ["digits"], [1], ["none", "learnable"], 3, 1, 128
        trainer = {**trainer, "max_epochs": 3}
    _check(sets, labels, methods, seeds, batch, neighbors, rounds)
    run = Run(out, locals())
    problem = cache(lambda name: Problem.of(SETS[name][1](data_dir), neighbors))
    training = Training(run, problem, batch, steps, neighbors, smoothness, learning_rate, trainer)
    cells = run.cells("training", training, product(sets, labels, methods, range(seeds)))
    overhead = partial(training.overhead, max(labels), methods, rounds)
    seconds = run.cells("overhead", overhead, [(name,) for name in sets])
    metrics: dict[str, Any] = {
        "accuracy": accuracies(cells, sets, labels, methods, seeds),
        "overhead": {name: overheads(times) for name, times in seconds.items()},
        "threads": torch.get_num_threads(),
        "bandwidth": {name: problem(name).bandwidth for name in sets},
    }
    run.figure("weightings", figure(metrics["accuracy"]), dpi=80)
    run.finish(metrics, accuracy_table(metrics["accuracy"], seeds), overhead_table(metrics["overhead"], batch))


@dataclass(frozen=True)
class Training:
    """Trains one network; arguments as those of `weightings`, with the data sets by name."""

    run: Run
    problem: Callable[[str], Problem]
    batch: int
    steps: int
    neighbors: int
    smoothness: float
    learning_rate: float
    trainer: Flags

    def __call__(self, name: str, count: int, method: str, seed: int) -> dict[str, Any]:
        """Train, and test on what is held out."""
        module, few = self.parts(name, count, method, seed)
        train(self.run.folder("training", name, count, method, seed), module, few, self.trainer, seed)
        split = self.problem(name).split
        accuracy = module.accuracy(split.heldout, split.heldout_labels)
        return {"accuracy": accuracy, "factor": learned_factor(module.weights)}

    def parts(self, name: str, count: int, method: str, seed: int) -> tuple[Classifier, FewLabels]:
        """A new network and its batches."""
        given = self.problem(name)
        torch.manual_seed(seed)  # the same first weights for all methods
        weights = WEIGHTINGS[method][1](given.bandwidth)
        side = round(given.split.train.shape[1] ** 0.5)
        module = Classifier(side, weights, self.neighbors, self.smoothness, self.learning_rate)
        return module, FewLabels(given, count, self.batch, self.steps, seed)

    def overhead(self, count: int, methods: list[str], rounds: int, name: str) -> dict[str, list[float]]:
        """Seconds of a step of each method in each round."""
        return in_turn({m: timed_step(*self.parts(name, count, m, 0)) for m in methods}, rounds, CALLS)


def _check(
    sets: list[str], labels: list[int], methods: list[str], seeds: int, batch: int, neighbors: int, rounds: int
) -> None:
    """Raise unless names are known and numbers allow the batches and the intervals."""
    check_names("sets", sets, SET_NAMES)
    check_names("methods", methods, WEIGHTING_NAMES)
    if methods[0] != "none":
        raise Refusal(f"--methods must begin with none, which the others are compared with, got {methods[0]}")
    check_least("seeds", seeds, 2)
    check_least("rounds", rounds, 1)
    if not labels or min(labels) < 1 or CLASSES * max(labels) > batch:
        raise Refusal(f"--labels must be positive, {CLASSES} times each at most --batch {batch}, got {labels}")
    if not 0 < neighbors < batch:
        raise Refusal(f"--neighbors must be positive and less than --batch {batch}, got {neighbors}")


class Problem(NamedTuple):
    """A data set, its neighbourhoods and its bandwidth.

    Attributes:
        split: images as rows of pixels.
        near: each training image and its nearest others, int64 ``(N, 1 + k)``.
        bandwidth: t of the fixed heat kernel, the median of the squared distances to those.
    """

    split: Split
    near: Tensor
    bandwidth: float

    @classmethod
    def of(cls, split: Split, neighbors: int) -> Problem:
        """Neighbourhoods and bandwidth of the training part."""
        found = nearest_neighbors(split.train, neighbors)
        itself = torch.arange(len(split.train))[:, None]
        return cls(split, torch.cat([itself, found.indices], 1), found.squared_distances.median().item())


class Classifier(LightningModule):
    """A convolutional network, trained with cross-entropy of the labelled images and smoothness of all logits.

    Args:
        side: of the square images.
        weights: weighting of the graph of the images of a batch; None for no smoothness.
        neighbors: k of that graph.
        smoothness: λ, the factor of `roughness`.
        learning_rate: of Adam, also for the parameters of the weighting.
    """

    def __init__(
        self, side: int, weights: Weighting | None, neighbors: int, smoothness: float, learning_rate: float
    ) -> None:
        super().__init__()
        stride = 2 if side > 16 else 1
        last = -(-side // (2 * stride))
        self.network = nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            nn.Conv2d(1, 32, 5, stride, padding=2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * last**2, 64),
            nn.ReLU(),
            nn.Linear(64, CLASSES),
        )
        self.weights, self.neighbors = weights, KNN(neighbors, "union")
        self.smoothness, self.learning_rate = smoothness, learning_rate

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits ``(N, 10)`` of images ``(N, side²)``."""
        logits: Tensor = self.network(pixels)
        return logits

    def losses(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What is minimised, ``loss``, and its parts; labels ``(N,)`` are −1 where they are not known."""
        logits = self(pixels)
        parts = {"cross_entropy": cross_entropy(logits, labels, ignore_index=UNKNOWN)}
        if self.weights is None:
            return {"loss": parts["cross_entropy"], **parts}
        graph = self.weights(pixels, self.neighbors(pixels))
        parts["roughness"] = roughness(logits.float(), graph)
        return {"loss": parts["cross_entropy"] + self.smoothness * parts["roughness"], **parts}

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch, logged with its parts."""
        losses = self.losses(*batch)
        self.log_dict(losses)
        return losses["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam for all parameters."""
        return torch.optim.Adam(self.parameters(), self.learning_rate)

    @torch.no_grad()
    def accuracy(self, pixels: Tensor, labels: Tensor) -> float:
        """Share of images whose class is right."""
        return float((self(pixels).argmax(1) == labels).float().mean())


def learned_factor(weights: Weighting | None) -> float | None:
    """What a learnable median bandwidth has been multiplied by; None for other weightings."""
    return weights.factor if isinstance(weights, HeatKernel) and weights.learnable else None


def roughness(y: Tensor, graph: Graph) -> Tensor:
    """Σ W_ij ‖y_i − y_j‖² / Σ W_ij, the mean over edges in proportion to their weights.

    λ thus means the same for all weightings, and a learnable bandwidth gains nothing from making all weights small.
    """
    return 2 * laplacian_smoothness(y, graph, "sum") / graph.weight.sum()


class FewLabels(LightningDataModule):
    """Batches of images with few labels: the others are −1.

    Args:
        problem: the images.
        count: labelled images of each class, chosen by the seed.
        batch, steps: images in a batch, batches in an epoch.
        seed: of the choice and the batches.
    """

    def __init__(self, problem: Problem, count: int, batch: int, steps: int, seed: int) -> None:
        super().__init__()
        self.problem, self.count, self.batch, self.steps, self.seed = problem, count, batch, steps, seed

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Pixels ``(batch, side²)`` and labels ``(batch,)``."""
        split = self.problem.split
        chosen = labelled(split.train_labels, self.count, self.seed)
        known = torch.full_like(split.train_labels, UNKNOWN).index_copy_(0, chosen, split.train_labels[chosen])
        sampler = Neighborhoods(self.problem.near, chosen, self.batch, self.steps, self.seed)
        return DataLoader(TensorDataset(split.train, known), sampler=sampler, batch_size=None)


def labelled(labels: Tensor, count: int, seed: int) -> Tensor:
    """Indices of ``count`` random examples of each class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return torch.cat([order[labels[order] == c][:count] for c in range(CLASSES)])


class Neighborhoods(Batches):
    """Batches of distinct indices: all labelled ones, then neighbourhoods, of labelled and of any ones in turn.

    Among a random batch the nearest are not near.

    Args:
        near: each point and its nearest others, int64 ``(N, 1 + k)``.
        labelled: indices ``(L,)``, L ≤ size.
        size: of a batch; at most N.
        steps: batches in an epoch.
        seed: of the batches.
    """

    def __init__(self, near: Tensor, labelled: Tensor, size: int, steps: int, seed: int) -> None:
        super().__init__(len(near), size, seed, steps)
        self.near, self.labelled = near, labelled

    def __iter__(self) -> Iterator[list[int]]:
        generator = self.generator()
        for _ in range(self.count):
            points = torch.randperm(self.n, generator=generator)  # all: whatever overlaps, a batch gets full
            known = self.labelled[torch.randint(len(self.labelled), (self.size // 4,), generator=generator)]
            centres = torch.stack([known, points[: len(known)]], 1).flatten()
            candidates = torch.cat([self.labelled, self.near[centres].flatten(), points])
            yield list(dict.fromkeys(candidates.tolist()))[: self.size]


def timed_step(module: Classifier, few: FewLabels) -> Callable[[], None]:
    """A whole step of training, without the loading of batches: they are a few, in turn."""
    batches = cycle(list(islice(few.train_dataloader(), CALLS)))
    optimizer = module.configure_optimizers()

    def step() -> None:
        optimizer.zero_grad()
        module.losses(*next(batches))["loss"].backward()
        optimizer.step()

    return step


def overheads(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Milliseconds of a step, median over rounds, and how much more it is than without smoothness, as a share."""
    return {
        method: {"milliseconds": 1e3 * float(np.median(times)), "overhead": ratio(times, seconds["none"]) - 1}
        for method, times in seconds.items()
    }


def summary(results: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Accuracies over seeds of each method, and their differences to those of the same seeds without smoothness.

    ``mean`` and ``interval`` of both, see `mean_and_interval`; the factors a bandwidth has learned.
    """
    accuracy = {method: np.array([cell["accuracy"] for cell in cells]) for method, cells in results.items()}
    return {
        method: {
            "accuracy": mean_and_interval(values),
            "gain": mean_and_interval(values - accuracy["none"]),
            "values": values.tolist(),
            **({"factors": factors} if (factors := [c["factor"] for c in results[method] if c["factor"]]) else {}),
        }
        for method, values in accuracy.items()
    }


def accuracies(
    cells: dict[Any, dict[str, Any]], sets: list[str], labels: list[int], methods: list[str], seeds: int
) -> dict[str, Any]:
    """The `summary` of each data set and number of labels."""
    return {
        name: {
            f"labels={count}": summary({m: [cells[name, count, m, seed] for seed in range(seeds)] for m in methods})
            for count in labels
        }
        for name in sets
    }


def accuracy_table(metrics: dict[str, Any], seeds: int) -> Table:
    """Rows: weightings; columns: data sets and numbers of labels."""
    columns = [(name, count) for name, by_count in metrics.items() for count in by_count]
    headings = [f"{name}, {count.partition('=')[2]}" for name, count in columns]
    methods = metrics[columns[0][0]][columns[0][1]]
    rows = []
    for method in methods:
        cells = [metrics[name][count][method] for name, count in columns]
        rows.append([WEIGHTINGS[method][0], *(plus_minus(cell["accuracy"], 1, 100) for cell in cells)])
        if method != "none":
            rows.append(["  − none", *(plus_minus(cell["gain"], 1, 100, "+") for cell in cells)])
    return table(f"held-out accuracy (%), data and labels a class, 95 % interval, {seeds} seeds", ["", *headings], rows)


def overhead_table(metrics: dict[str, Any], batch: int) -> Table:
    """Rows: weightings; columns: data sets."""
    rows = [
        [
            WEIGHTINGS[method][0],
            *(f"{of[method]['milliseconds']:.1f} ms, {100 * of[method]['overhead']:+.0f} %" for of in metrics.values()),
        ]
        for method in next(iter(metrics.values()))
    ]
    return table(f"a step of training, {batch} images, and more than without smoothness", ["", *metrics], rows)


def figure(metrics: dict[str, Any]) -> Figure:
    """Accuracy with intervals by weighting: rows data sets, columns numbers of labels."""
    counts = list(next(iter(metrics.values())))
    figure = Figure(figsize=(1 + 3.9 * len(counts), 0.6 + 2.5 * len(metrics)), layout="constrained")
    panels = figure.subplots(len(metrics), len(counts), squeeze=False, sharey=True)
    for row, (name, by_count) in zip(panels, metrics.items(), strict=True):
        for panel, (count, by_method) in zip(row, by_count.items(), strict=True):
            labels = [WEIGHTINGS[method][0] for method in by_method]
            place = np.arange(len(labels))[::-1]
            means, widths = (
                100 * np.array([cell["accuracy"][key] for cell in by_method.values()]) for key in ("mean", "interval")
            )
            panel.errorbar(means[1:], place[1:], xerr=widths[1:], fmt="o", ms=5, color="C0", capsize=2)
            panel.errorbar(means[:1], place[:1], xerr=widths[:1], fmt="o", ms=5, color="0.4", capsize=2)
            panel.axvline(means[0], color="0.7", lw=0.8, zorder=0)
            panel.set_yticks(place, labels)
            panel.set_title(f"{SETS[name][0]}, {count.partition('=')[2]} a class", fontsize=11)
            panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[-1]:
        panel.set_xlabel("held-out accuracy (%)")
    return figure
