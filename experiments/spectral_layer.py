"""Classification of point clouds: a network with Laplacian eigenmaps inside, against networks and forests without."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from pytorch_lightning import LightningDataModule, LightningModule
from rich.table import Table
from sklearn.ensemble import ExtraTreesClassifier
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from experiments.clouds import SHAPES, Clouds, make_clouds, rotations
from experiments.metrics import Numbers, mean_and_interval, plus_minus
from experiments.pointnets import NETWORKS, Body, HeatSignatures
from experiments.runs import Refusal, Run, check_least, check_names, table
from experiments.training import QUIET, Batches, Flags, train

TRAINER = {**QUIET, "max_epochs": 48, "check_val_every_n_epoch": 6, "num_sanity_val_steps": 0, "log_every_n_steps": 5}
VARIANTS = {
    "layer": "network with the layer",
    "frozen": "the same, its graph frozen",
    "dgcnn": "DGCNN",
    "quantiles": "forest on quantiles of distances",
    "signatures": "forest on fixed signatures",
}
RATES = {"layer": 0.005, "frozen": 0.005, "dgcnn": 0.002}  # of Adam
LENGTHS = {"dgcnn": 2}  # epochs in multiples of the layer's; with as many DGCNN takes half as long again
COMPARED, NAMES = list(VARIANTS), list(SHAPES)
LEVELS = 64  # quantiles of a cloud's distances
NOISE, SPREAD = (
    0.05,
    0.3,
)  # deviation of the coordinates' noise, at a root mean square radius of 1; of nuisance channels


def spectral_layer(
    out: Path = Path("runs/spectral_layer"),
    shapes: list[str] = NAMES,
    variants: list[str] = COMPARED,
    nuisance: list[int] = [0, 3],  # noqa: B006 (never changed)
    seeds: int = 6,
    first_seed: int = 0,
    restarts: int = 2,
    clouds: int = 80,
    heldout: int = 512,
    points: tuple[int, int] = (48, 64),
    pca: bool = False,
    neighbors: int = 6,
    eigenvectors: int = 12,
    batch: int = 16,
    trainer: Flags = TRAINER,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Spectral layer: point clouds classified by a network with Laplacian eigenmaps inside, and by strong others.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        shapes: the classes: sphere, torus, cylinder, moebius, rings, trefoil, helix, roll.
        variants: layer, frozen, dgcnn (networks of one size; frozen is that with the layer, whose graph is the one of
            the points and is not learned); quantiles, signatures (forests on features that are not learned: quantiles
            of the distances of a cloud; heat kernel signatures of its own graph).
        nuisance: numbers of channels of noise beside the three coordinates; each is a task of its own.
        seeds: trainings of each variant and task, each with its own clouds.
        first_seed: number of the first one.
        restarts: a training whose loss says that it failed is begun anew, from other weights, this many times at most.
        clouds: of training.
        heldout: clouds of the test; a quarter as many for the learning curve.
        points: fewest and most points of a cloud.
        pca: reduce the channels of all clouds to three, by PCA of the points of training, which needs no label.
        neighbors: k of the graphs.
        eigenvectors: of each graph, the constant one included.
        batch: clouds in a step.
        trainer: flags of Lightning's Trainer.
        quick: three classes, one seed, no nuisance, 15 epochs, without dgcnn.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        shapes, nuisance, seeds = ["sphere", "torus", "rings"], [0], 1
        variants, restarts = ["layer", "frozen", "quantiles", "signatures"], 0
        clouds, heldout, points, neighbors, eigenvectors = 48, 96, (36, 48), 5, 10
        trainer = {**trainer, "max_epochs": 15, "check_val_every_n_epoch": 5, "log_every_n_steps": 3}
    check_names("shapes", shapes, NAMES)
    check_names("variants", variants, VARIANTS)
    check_least("seeds", seeds, 1)
    check_least("nuisance", min(nuisance, default=-1), 0)
    if not neighbors < points[0] <= points[1] or not points[1] // (neighbors + 1) < eigenvectors < points[0]:
        raise Refusal(
            f"--points must be [n, m] with k = {neighbors} < n ≤ m, and --eigenvectors more than m / (k + 1) (the "
            f"components that a graph may have) and less than n, got {list(points)} and {eigenvectors}"
        )
    run = Run(out, locals())
    counts = {"train": clouds, "validation": heldout // 4, "test": heldout}
    training = Training(run, Maker(shapes, counts, points, pca), neighbors, eigenvectors, batch, trainer)
    numbers = list(range(first_seed, first_seed + seeds))
    cases = [(variant, channels, seed) for seed in numbers for channels in nuisance for variant in variants]
    cells = run.cells("forest", partial(forest, training), [case for case in cases if case[0] not in NETWORKS])
    cells |= restarted(run, training, [case for case in cases if case[0] in NETWORKS], restarts)
    metrics = {
        f"nuisance={c}": {variant: summary([cells[variant, c, seed] for seed in numbers]) for variant in variants}
        for c in nuisance
    }
    run.figure("spectral_layer", results_figure(metrics, cells, nuisance[-1], numbers), dpi=80)
    run.finish({**metrics, "seeds": seeds}, *results_tables(metrics, seeds))


def restarted(run: Run, training: Training, cases: list[Any], restarts: int) -> dict[Any, dict[str, Any]]:
    """Train each network until its training loss says that it learned, ``restarts`` times more at most.

    Returns:
        The outcome of the last training of each case, with the ``trainings`` it took and the ``seconds`` of all.
    """
    result: dict[Any, dict[str, Any]] = {}
    for attempt in range(1 + restarts):
        found = run.cells("training", training, [(*case, attempt) for case in cases])
        for case in cases:
            key = (*case, attempt)
            before, cell = result.get(case, {"seconds": 0.0}), found[key]
            result[case] = {**cell, "trainings": attempt + 1, "seconds": before["seconds"] + cell["seconds"]}
        cases = [case for case in cases if failed(result[case])]
    return result


def failed(cell: dict[str, Any]) -> bool:
    """Return whether a loss is not finite, or the last tenth of the steps has more than half the loss of guessing."""
    losses, guessing = np.array(cell["history"]["loss"]), math.log(cell["classes"])
    return bool(not np.isfinite(losses).all() or losses[-max(1, len(losses) // 10) :].mean() > guessing / 2)


@dataclass(frozen=True)
class Maker:
    """Makes the clouds of a seed; arguments as those of `spectral_layer`, with the number of clouds of each part."""

    shapes: list[str]
    counts: dict[str, int]
    points: tuple[int, int]
    pca: bool = False

    def __call__(self, channels: int, seed: int) -> dict[str, Clouds]:
        """The clouds of each part."""
        generator = torch.Generator().manual_seed(seed)
        parts = {
            part: make_clouds(self.shapes, count, self.points, NOISE, channels, SPREAD, generator)
            for part, count in self.counts.items()
        }
        if not self.pca:
            return parts
        axes = torch.linalg.svd(parts["train"].points[parts["train"].mask], full_matrices=False)[2][:3]
        return {part: clouds._replace(points=clouds.points @ axes.T) for part, clouds in parts.items()}


@dataclass(frozen=True)
class Training:
    """Trains one network; arguments as those of `spectral_layer`."""

    run: Run
    maker: Maker
    neighbors: int
    eigenvectors: int
    batch: int
    trainer: Flags

    def __call__(self, variant: str, channels: int, seed: int, attempt: int = 0) -> dict[str, Any]:
        """Train, and test. Another attempt has the same clouds, and other weights, batches and rotations."""
        clouds = self.maker(channels, seed)
        folder = self.run.folder("training", variant, channels, seed, attempt)
        seed += 1000 * attempt
        torch.manual_seed(seed)
        body = NETWORKS[variant](clouds["train"].points.shape[-1], self.neighbors, self.eigenvectors)
        module = Classifier(body, len(self.maker.shapes), RATES[variant], seed)
        data = CloudsModule(clouds, self.batch, seed)
        steps = train(folder, module, data, longer(self.trainer, LENGTHS.get(variant, 1)), seed).global_step
        return {**outcome(module, data.parts["test"]), "classes": len(self.maker.shapes), "steps": steps}


def forest(training: Training, variant: str, channels: int, seed: int) -> dict[str, Any]:
    """Fit extremely randomised trees on features that are not learned, and test."""
    start = time.process_time()
    clouds = training.maker(channels, seed)
    of = {part: features(training, variant, clouds[part]) for part in ("train", "test")}
    trees = ExtraTreesClassifier(500, random_state=seed).fit(of["train"], clouds["train"].labels.numpy())
    accuracy = trees.score(of["test"], clouds["test"].labels.numpy())
    return {"accuracy": accuracy, "seconds": time.process_time() - start}


@torch.no_grad()
def features(training: Training, variant: str, clouds: Clouds) -> Numbers:
    """Return quantiles of distances of each cloud, or of signatures of its graph, and their traces."""
    if variant == "quantiles":
        levels = torch.linspace(0, 1, LEVELS)
        inside = (x[mask] for x, mask in zip(clouds.points, clouds.mask, strict=True))
        return torch.stack([torch.pdist(x).quantile(levels) for x in inside]).numpy().astype(np.float64)
    layer = HeatSignatures(training.neighbors, training.eigenvectors)
    of_points, of_clouds = layer(clouds.points, clouds.mask)
    inside = (rows[mask] for rows, mask in zip(of_points, clouds.mask, strict=True))
    spread = torch.stack([rows.quantile(torch.linspace(0, 1, 9), 0).flatten() for rows in inside])
    return torch.cat([spread, of_clouds], 1).numpy().astype(np.float64)


def longer(trainer: Flags, times: int) -> Flags:
    """Return flags of a training that is ``times`` as long, with as many validations."""
    lengths = ("max_epochs", "max_steps", "check_val_every_n_epoch")
    return {**trainer, **{name: times * trainer[name] for name in lengths if (trainer.get(name) or -1) > 0}}


class CloudsModule(LightningDataModule):
    """Clouds for training, validation and test; ``batch`` in a step of the training, and the seed of their order."""

    def __init__(self, parts: dict[str, Clouds], batch: int, seed: int) -> None:
        super().__init__()
        self.parts, self.batch, self.seed = parts, batch, seed

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches in another order in each epoch."""
        batches = Batches(len(self.parts["train"].labels), self.batch, self.seed)
        return DataLoader(TensorDataset(*self.parts["train"]), sampler=batches, batch_size=None)

    def val_dataloader(self) -> DataLoader[Any]:
        """All in order."""
        return DataLoader(TensorDataset(*self.parts["validation"]), batch_size=64)


class Classifier(LightningModule):
    """A network of `pointnets`, and a perceptron from its vector of each cloud to classes.

    Args:
        body: the network. classes: their number. rate: of Adam. seed: of the rotations, by which the first three
            channels are turned in training.
    """

    def __init__(self, body: Body, classes: int, rate: float, seed: int) -> None:
        super().__init__()
        self.body, self.rate, self.seed = body, rate, seed
        self.head = nn.Sequential(nn.Linear(body.width, 64), nn.ReLU(), nn.Linear(64, classes))
        self.history: dict[str, list[float]] = {name: [] for name in ("loss", "gradient", "at_layer", "seconds")}
        self.history |= {"step": [], "accuracy": []}
        self._latest: dict[str, float] = {}

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Logits ``(B, classes)`` of points ``(B, N, channels)``."""
        logits: Tensor = self.head(self.body(x, mask))
        return logits

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Cross-entropy of turned clouds."""
        self._start = time.process_time()
        x, mask, labels = batch
        generator = torch.Generator().manual_seed(hash((self.seed, self.global_step)))
        turn = rotations(len(x), generator).to(x.device)
        x = torch.cat([x[..., :3] @ turn, x[..., 3:]], -1)
        loss = nn.functional.cross_entropy(self(x, mask), labels)
        self._latest["loss"] = float(loss.detach())
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the step, with the norm of the gradient before it is clipped, if it is."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters() if p.grad is not None])
        seconds = time.process_time() - self._start
        self._latest |= {"gradient": float(norm), "at_layer": getattr(self.body, "at_layer", 0.0), "seconds": seconds}
        self.log_dict(self._latest)
        for name, value in self._latest.items():
            self.history[name].append(value)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        """Accuracy."""
        x, mask, labels = batch
        self.log("accuracy", (self(x, mask).argmax(1) == labels).float().mean(), batch_size=len(x))

    def on_validation_epoch_end(self) -> None:
        """Keep the accuracy for the learning curve."""
        self.history["step"].append(self.global_step)
        self.history["accuracy"].append(float(self.trainer.callback_metrics["accuracy"]))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the history."""
        checkpoint["history"] = self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the history."""
        self.history = checkpoint["history"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), self.rate)


@torch.no_grad()
def outcome(module: Classifier, test: Clouds) -> dict[str, Any]:
    """Return what is kept of a training: accuracy on the test clouds, and the history."""
    module.eval()
    chunks = zip(test.points.split(64), test.mask.split(64), strict=True)
    right = torch.cat([module(x, mask).argmax(1) for x, mask in chunks]) == test.labels
    return {
        "accuracy": float(right.float().mean()),
        "bandwidth_factor": getattr(getattr(module.body, "signatures", None), "bandwidth_factor", None),
        "parameters": sum(p.numel() for p in module.parameters()),
        "seconds": sum(module.history["seconds"]),
        "history": module.history,
    }


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return accuracy over seeds; of networks gradients of all steps, and trainings that `failed`."""
    accuracy = np.array([cell["accuracy"] for cell in cells])
    found = {
        "accuracy": {**mean_and_interval(accuracy), "least": float(accuracy.min())},
        "seconds": float(np.median([cell["seconds"] for cell in cells])),
    }
    if "history" not in cells[0]:
        return found
    history = {name: np.array([cell["history"][name] for cell in cells]) for name in cells[0]["history"]}
    finite = np.isfinite(history["loss"]) & np.isfinite(history["gradient"])
    return found | {
        "failed": sum(failed(cell) for cell in cells),
        "restarts": sum(cell["trainings"] - 1 for cell in cells),
        "gradient": quantiles(history["gradient"]),
        "at_layer": quantiles(history["at_layer"]),
        "not_finite": int((~finite).sum()),
        "steps": finite.size,
        "milliseconds": 1000 * float(np.median(history["seconds"])),
        "bandwidth_factor": [cell["bandwidth_factor"] for cell in cells],
        "parameters": cells[0]["parameters"],
    }


def quantiles(norms: Numbers) -> dict[str, float]:
    """Median, 99th percentile and largest of norms."""
    return {"median": float(np.median(norms)), "p99": float(np.quantile(norms, 0.99)), "max": float(norms.max())}


def results_tables(metrics: dict[str, Any], seeds: int) -> list[Table]:
    """Accuracy of each variant and task, with what it cost; gradients of the layer's trainings."""
    tasks = [(task.partition("=")[2], by_variant) for task, by_variant in metrics.items()]
    rows = []
    for variant in tasks[0][1]:
        found = [by_variant[variant] for _, by_variant in tasks]
        of_networks = ["–"] * 5
        if "steps" in found[0]:
            of_networks = [" / ".join(str(one[key]) for one in found) for key in ("restarts", "failed")]
            of_networks += [f"{found[0]['parameters']:,}", f"{found[0]['steps'] // seeds:,}"]
            of_networks += [f"{found[0]['milliseconds']:.0f}"]
        least = " / ".join(f"{one['accuracy']['least']:.2f}" for one in found)
        seconds = f"{np.mean([one['seconds'] for one in found]):.1f}"
        means = [plus_minus(one["accuracy"], 3) for one in found]
        rows.append([VARIANTS[variant], *means, least, *of_networks, seconds])
    columns = [f"{task} channels of noise" for task, _ in tasks]
    columns = ["", *columns, "least of the seeds", "restarts", "failed", "parameters", "steps", "ms a step", "seconds"]
    tables = [table("accuracy on held-out clouds, mean ± 95 % interval", columns, rows)]
    if "layer" in metrics[next(iter(metrics))]:
        lines = [
            [task, where, *(f"{one['layer'][key][q]:.2f}" for q in ("median", "p99", "max")), not_finite]
            for task, one in tasks
            for where, key in (("all parameters", "gradient"), ("features that enter the layer", "at_layer"))
            for not_finite in [f"{one['layer']['not_finite']} of {one['layer']['steps']:,}"]
        ]
        columns = ["channels of noise", "gradient of", "median", "99 %", "largest", "steps not finite"]
        tables.append(table("norms of gradients with the layer, no clipping", columns, lines))
    return tables


def results_figure(
    metrics: dict[str, Any], cells: dict[Any, dict[str, Any]], channels: int, seeds: list[int]
) -> Figure:
    """Test accuracy of each seed, variant and task; of the last task learning curves."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    bars, curves = figure.subplots(1, 2)
    variants = list(next(iter(metrics.values())))
    width = 0.8 / len(variants)
    for i, variant in enumerate(variants):
        mark: dict[str, Any] = {"fmt": "_", "ms": 9, "mew": 2, "lw": 1.2, "color": f"C{i}"}
        for task, by_variant in enumerate(metrics.values()):
            accuracy, place = by_variant[variant]["accuracy"], task + (i - (len(variants) - 1) / 2) * width
            left = [place - 0.2 * width] * len(seeds)
            bars.scatter(left, accuracy["seeds"], s=9, lw=0, color=f"C{i}", alpha=0.7)
            bars.errorbar(place + 0.2 * width, accuracy["mean"], accuracy["interval"] or 0, **mark)
        bars.plot([], [], "s", color=f"C{i}", label=VARIANTS[variant])
        if variant not in NETWORKS:
            continue
        histories = [cells[variant, channels, seed]["history"] for seed in seeds]
        curve = np.mean([history["accuracy"] for history in histories], axis=0)
        spent = np.median([np.cumsum(history["seconds"]) for history in histories], axis=0)
        steps = np.array(histories[0]["step"])
        curves.plot(spent[steps - 1], curve, "o-", ms=3, lw=1.2, color=f"C{i}")
    bars.set_xticks(range(len(metrics)), [name.replace("nuisance=", "") for name in metrics])
    bars.set(xlabel="channels of noise", ylim=(0, 1.02), title="test accuracy: seeds, mean and 95 %")
    curves.set(xlabel="seconds of the processor", ylim=(0, 1), title=f"validation, {channels} channels of noise")
    handles, labels = bars.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    for panel in (bars, curves):
        panel.spines[["top", "right"]].set_visible(False)
    return figure
