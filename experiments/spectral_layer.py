"""Classification of point clouds by a network with Laplacian eigenmaps inside, against the same network without."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from pytorch_lightning import LightningDataModule, LightningModule
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from experiments.clouds import SHAPES, Clouds, make_clouds, rotations
from experiments.metrics import Numbers, mean_and_interval, plus_minus
from experiments.runs import Refusal, Run, check_least, check_names, table
from experiments.training import QUIET, Batches, Flags, train
from torch_lapeig import KNN, GraphWarning, HeatKernel, LaplacianEigenmaps

TRAINER = {**QUIET, "max_epochs": 60, "check_val_every_n_epoch": 5, "num_sanity_val_steps": 0, "log_every_n_steps": 5}
VARIANTS = {
    "learned": "layer on learned features",
    "fixed": "layer on the points",
    "none": "no layer",
    "none_longer": "no layer, 10 × the epochs",
}
LONGER = 10
NAMES = list(SHAPES)
TIMES = 8  # of the heat kernel: FIRST_TIME · 2^j
FIRST_TIME = 2.0
FEATURES = 8


def spectral_layer(
    out: Path = Path("runs/spectral_layer"),
    shapes: list[str] = NAMES,
    variants: list[str] = list(VARIANTS),  # noqa: B006 (never changed)
    nuisance: list[int] = [0, 3],  # noqa: B006
    seeds: int = 5,
    clouds: int = 80,
    heldout: int = 512,
    points: tuple[int, int] = (72, 96),
    noise: float = 0.05,
    spread: float = 0.3,
    neighbors: int = 8,
    eigenvectors: int = 16,
    rate: float = 0.005,
    batch: int = 16,
    trainer: Flags = TRAINER,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Spectral layer: point clouds classified by a network with Laplacian eigenmaps inside, and by the same without.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        shapes: the classes: sphere, torus, cylinder, moebius, rings, trefoil, helix, roll.
        variants: learned (the layer on learned features), fixed (on the points, nothing to learn before it), none (a
            perceptron in its place), none_longer (the same, ten times the epochs).
        nuisance: numbers of channels of noise beside the three coordinates; each is a task of its own.
        seeds: trainings of each variant and task, each with its own clouds.
        clouds: of training.
        heldout: clouds of the test; half as many for the learning curve.
        points: fewest and most points of a cloud.
        noise: standard deviation of the coordinates' noise, at a root mean square radius of 1.
        spread: standard deviation of the nuisance channels.
        neighbors: k of the layer's graphs.
        eigenvectors: of each graph, the constant one included.
        rate: learning rate of Adam.
        batch: clouds in a step.
        trainer: flags of Lightning's Trainer.
        quick: three classes of small clouds, one seed, no nuisance, 15 epochs, learned and none.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        shapes, variants, nuisance, seeds = ["sphere", "torus", "rings"], ["learned", "none"], [0], 1
        clouds, heldout, points, neighbors, eigenvectors = 48, 96, (36, 48), 5, 10
        trainer = {**trainer, "max_epochs": 15, "log_every_n_steps": 3}
    _check(shapes, variants, nuisance, seeds, points, neighbors, eigenvectors)
    run = Run(out, locals())
    counts = {"train": clouds, "validation": heldout // 2, "test": heldout}
    training = Training(run, shapes, counts, points, noise, spread, neighbors, eigenvectors, rate, batch, trainer)
    cases = [(variant, channels, seed) for channels in nuisance for seed in range(seeds) for variant in variants]
    cells = run.cells("training", training, cases)
    metrics = {
        f"nuisance={c}": {variant: summary([cells[variant, c, seed] for seed in range(seeds)]) for variant in variants}
        for c in nuisance
    }
    run.figure("spectral_layer", results_figure(metrics, cells, nuisance[-1], seeds), dpi=80)
    run.figure("clouds", clouds_figure(shapes, points, noise, neighbors), dpi=75)
    run.finish(metrics, results_table(metrics, seeds))


def _check(
    shapes: list[str],
    variants: list[str],
    nuisance: list[int],
    seeds: int,
    points: tuple[int, int],
    neighbors: int,
    eigenvectors: int,
) -> None:
    """Raise unless names are known and every cloud has more eigenvectors than components, and enough points."""
    check_names("shapes", shapes, NAMES)
    check_names("variants", variants, VARIANTS)
    check_least("seeds", seeds, 1)
    if not nuisance or min(nuisance) < 0:
        raise Refusal(f"--nuisance must be numbers of channels, at least one of them, got {nuisance}")
    fewest, most = points
    if not neighbors < fewest <= most or not most // (neighbors + 1) < eigenvectors < fewest:
        raise Refusal(
            f"--points must be [n, m] with k = {neighbors} < n ≤ m, and --eigenvectors more than m / (k + 1) (the "
            f"components that a graph may have) and less than n, got {list(points)} and {eigenvectors}"
        )


@dataclass(frozen=True)
class Training:
    """Trains one network; arguments as those of `spectral_layer`, with the number of clouds of each part."""

    run: Run
    shapes: list[str]
    counts: dict[str, int]
    points: tuple[int, int]
    noise: float
    spread: float
    neighbors: int
    eigenvectors: int
    rate: float
    batch: int
    trainer: Flags

    def __call__(self, variant: str, channels: int, seed: int) -> dict[str, Any]:
        """Train, and test."""
        torch.manual_seed(seed)
        network, classes = variant.removesuffix("_longer"), len(self.shapes)
        module = Classifier(network, 3 + channels, classes, self.neighbors, self.eigenvectors, self.rate, seed)
        data = CloudsModule(self.shapes, self.counts, self.points, self.noise, channels, self.spread, self.batch, seed)
        folder = self.run.folder("training", variant, channels, seed)
        flags = longer(self.trainer) if variant != network else self.trainer
        steps = train(folder, module, data, flags, seed).global_step
        return {**outcome(module, data.parts["test"], classes), "steps": steps}


def longer(trainer: Flags) -> Flags:
    """Flags of a training that is ``LONGER`` times as long, with as many validations."""
    lengths = ("max_epochs", "max_steps", "check_val_every_n_epoch")
    return {**trainer, **{name: LONGER * trainer[name] for name in lengths if (trainer.get(name) or -1) > 0}}


class CloudsModule(LightningDataModule):
    """Clouds for training, validation and test.

    Args:
        shapes: the classes. parts: number of clouds of each part. points, noise, channels, spread: see `clouds`.
        batch: clouds in a step of the training. seed: of the clouds and their order.
    """

    def __init__(
        self,
        shapes: list[str],
        parts: dict[str, int],
        points: tuple[int, int],
        noise: float,
        channels: int,
        spread: float,
        batch: int,
        seed: int,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.parts = {
            part: make_clouds(shapes, count, points, noise, channels, spread, generator)
            for part, count in parts.items()
        }
        self.batch, self.seed = batch, seed

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches in another order in each epoch."""
        batches = Batches(len(self.parts["train"].labels), self.batch, self.seed)
        return DataLoader(TensorDataset(*self.parts["train"]), sampler=batches, batch_size=None)

    def val_dataloader(self) -> DataLoader[Any]:
        """All in order."""
        return DataLoader(TensorDataset(*self.parts["validation"]), batch_size=64)


class HeatSignatures(nn.Module):
    """Heat kernel signatures of a learned graph: what its eigenpairs say whatever their signs and bases.

    The layer's eigenvalues and vectors enter by p_t = f_t(Λ), f_t(λ) = exp(−tλ) − exp(−tλ_k), alone: the diagonal of
    Y p_t Yᵀ, over its mean (Sun, Ovsjanikov & Guibas, *A concise and provably informative multi-scale signature based
    on heat diffusion*, 2009), and log tr p_t. Both are differentiable in the edge weights where λ_i cross, i < k. Where
    λ_k and λ_(k + 1) do they are continuous, with bounded gradients: f falls to 0 at the last pair, and
    |f_t(λ_i)| / (λ_(k + 1) − λ_i) ≤ t.

    Args:
        neighbors: of the graph. eigenvectors: k, the constant one included; more than a graph has components.
    """

    def __init__(self, neighbors: int, eigenvectors: int) -> None:
        super().__init__()
        self.kernel = HeatKernel("median", learnable=True)
        self.layer = LaplacianEigenmaps(eigenvectors, KNN(neighbors, "union"), self.kernel, drop_trivial=False)

    @property
    def bandwidth_factor(self) -> float:
        """What the median of squared edge lengths is multiplied by."""
        return self.kernel.factor

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Signatures ``(B, N, TIMES)``, minus their mean 1, and traces ``(B, TIMES)`` of features ``(B, N, d)``."""
        with warnings.catch_warnings():  # linked rings have two components, and the signatures are those of both
            warnings.filterwarnings("ignore", "the neighbourhood graph has .* connected components", GraphWarning)
            (pairs,) = self.layer.embed(x.double(), mask=mask).pairs  # whose gaps may be as small as float32 can tell
        signatures, traces = heat(pairs.vectors, pairs.projected)
        mean = signatures.sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        return (signatures / mean - 1).to(x.dtype), traces.log().to(x.dtype)


def heat(vectors: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
    """diag(Y p_t Yᵀ) ``(B, N, TIMES)`` and tr p_t ``(B, TIMES)`` of Y ``(B, N, k)`` and Λ ``(B, k, k)``.

    Λ is diagonal, but its gradient is that of a matrix, without which none is defined for equal eigenvalues.
    """
    identity = torch.eye(projected.shape[-1], dtype=projected.dtype, device=projected.device)
    decay = torch.matrix_exp(-FIRST_TIME * projected)
    signatures, traces = [], []
    for _ in range(TIMES):
        kernel = decay - decay[:, -1:, -1:] * identity
        signatures.append(((vectors @ kernel) * vectors).sum(-1))
        traces.append(kernel.diagonal(dim1=-2, dim2=-1).sum(-1))
        decay = decay @ decay
    return torch.stack(signatures, -1), torch.stack(traces, -1)


class Perceptron(nn.Module):
    """In the place of the layer: numbers of the same shapes from each point alone, and their means."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2 * TIMES))

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, N, TIMES)`` and ``(B, TIMES)`` of features ``(B, N, d)``."""
        of_points, for_clouds = self.layers(x).chunk(2, -1)
        return of_points, (for_clouds * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class Classifier(LightningModule):
    """Points → features → signatures → one perceptron for all points → maximum and mean → classes.

    Args:
        variant: "learned": signatures of the features; "fixed": of the points as they are; "none": a `Perceptron` of
            the features in their place.
        channels: of the points, of which the first three are turned at random in training.
        classes: their number.
        neighbors, eigenvectors: see `HeatSignatures`.
        rate: of Adam.
        seed: of the rotations.
    """

    def __init__(
        self, variant: str, channels: int, classes: int, neighbors: int, eigenvectors: int, rate: float, seed: int
    ) -> None:
        super().__init__()
        self.variant, self.rate, self.seed = variant, rate, seed
        self.lift = nn.Linear(channels, FEATURES, bias=False)
        last = nn.Linear(32, FEATURES)
        self.bend = nn.Sequential(nn.Linear(channels, 32), nn.ReLU(), last)
        self.points = nn.Sequential(nn.Linear(FEATURES + TIMES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(128 + TIMES, 64), nn.ReLU(), nn.Linear(64, classes))
        # Distances of features are at first those of the points, so that training begins with their graph.
        nn.init.orthogonal_(self.lift.weight)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.signatures = Perceptron() if variant == "none" else HeatSignatures(neighbors, eigenvectors)
        self.history: dict[str, list[float]] = {name: [] for name in ("loss", "gradient", "at_layer", "seconds")}
        self.history |= {"step": [], "accuracy": []}
        self._latest: dict[str, float] = {}

    def features(self, x: Tensor) -> Tensor:
        """``(B, N, FEATURES)`` of points ``(B, N, channels)``."""
        features: Tensor = self.lift(x) + self.bend(x)
        return features

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Logits ``(B, classes)`` of points ``(B, N, channels)``."""
        features = self.features(x)
        entering = x if self.variant == "fixed" else features.clone()
        if entering.requires_grad:
            entering.register_hook(self._note_gradient)
        of_points, of_clouds = self.signatures(entering, mask)
        rows = self.points(torch.cat([features, of_points], -1))
        largest = rows.masked_fill(~mask[..., None], -math.inf).amax(1)
        mean = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        logits: Tensor = self.head(torch.cat([largest, mean, of_clouds], -1))
        return logits

    def _note_gradient(self, gradient: Tensor) -> None:
        self._latest["at_layer"] = float(gradient.norm())

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Cross-entropy of turned clouds."""
        self._start = time.perf_counter()
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
        self._latest |= {"gradient": float(norm), "seconds": time.perf_counter() - self._start}
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
        """With what was noted."""
        checkpoint["history"] = self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """With what was noted."""
        self.history = checkpoint["history"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), self.rate)


@torch.no_grad()
def outcome(module: Classifier, test: Clouds, classes: int) -> dict[str, Any]:
    """What is kept of a training: accuracy on the test clouds, in all and by class, and the history."""
    module.eval()
    chunks = zip(test.points.split(64), test.mask.split(64), strict=True)
    right = torch.cat([module(x, mask).argmax(1) for x, mask in chunks]) == test.labels
    return {
        "accuracy": float(right.float().mean()),
        "by_class": [float(right[test.labels == label].float().mean()) for label in range(classes)],
        "bandwidth_factor": getattr(module.signatures, "bandwidth_factor", None),
        "parameters": sum(p.numel() for p in module.parameters()),
        "history": module.history,
    }


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Over seeds: accuracy with its interval; gradients of all steps; how many were not finite."""
    history = {name: np.array([cell["history"][name] for cell in cells]) for name in cells[0]["history"]}
    finite = np.isfinite(history["loss"]) & np.isfinite(history["gradient"])
    accuracy = np.array([cell["accuracy"] for cell in cells])
    return {
        "accuracy": {**mean_and_interval(accuracy), "seeds": accuracy.tolist()},
        "by_class": np.mean([cell["by_class"] for cell in cells], axis=0).tolist(),
        "gradient": quantiles(history["gradient"]),
        "at_layer": quantiles(history["at_layer"]),
        "not_finite": int((~finite).sum()),
        "steps": finite.size,
        "milliseconds": 1000 * float(np.median(history["seconds"])),
        "bandwidth_factor": [cell["bandwidth_factor"] for cell in cells],
        "parameters": cells[0]["parameters"],
    }


def quantiles(norms: Numbers) -> dict[str, float] | None:
    """Median, 99th percentile and largest of norms; None without any."""
    if norms.size == 0:
        return None
    return {"median": float(np.median(norms)), "p99": float(np.quantile(norms, 0.99)), "max": float(norms.max())}


def results_table(metrics: dict[str, Any], seeds: int) -> Table:
    """Rows: numbers of nuisance channels and variants; columns: accuracy, time and gradients."""
    rows = [
        [
            task.partition("=")[2],
            VARIANTS[variant],
            plus_minus(found["accuracy"], 3),
            f"{found['milliseconds']:.0f}",
            *(f"{found['gradient'][key]:.2f}" for key in ("median", "p99", "max")),
            *(f"{found['at_layer'][key]:.2f}" if found["at_layer"] else "" for key in ("median", "p99", "max")),
            f"{found['not_finite']} of {found['steps']}",
        ]
        for task, by_variant in metrics.items()
        for variant, found in by_variant.items()
    ]
    columns = ["nuisance", "", "accuracy", "ms", "gradient", "99 %", "max", "at layer", "99 %", "max", "not finite"]
    return table(f"test accuracy, mean ± 95 % interval, {seeds} seeds", columns, rows)


def results_figure(metrics: dict[str, Any], cells: dict[Any, dict[str, Any]], channels: int, seeds: int) -> Figure:
    """Test accuracy of each variant and task; of the last task learning curves, and norms of gradients."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    bars, curves, norms = figure.subplots(1, 3)
    variants = list(next(iter(metrics.values())))
    width = 0.8 / len(variants)
    for i, variant in enumerate(variants):
        found = [by_variant[variant]["accuracy"] for by_variant in metrics.values()]
        at = np.arange(len(found)) + (i - (len(variants) - 1) / 2) * width
        errors = [accuracy["interval"] or 0 for accuracy in found]
        means = [accuracy["mean"] for accuracy in found]
        bars.bar(at, means, 0.9 * width, yerr=errors, color=f"C{i}", label=VARIANTS[variant], error_kw={"lw": 1})
        histories = [cells[variant, channels, seed]["history"] for seed in range(seeds)]
        accuracy = np.mean([history["accuracy"] for history in histories], axis=0)
        curves.plot(histories[0]["step"], accuracy, "o-", ms=3, lw=1.2, color=f"C{i}")
        gradient = np.array([history["gradient"] for history in histories])
        steps = 1 + np.arange(gradient.shape[1])
        norms.plot(steps, np.median(gradient, 0), lw=0.8, color=f"C{i}", zorder=-i)  # the longest behind
        if variant == "learned":
            at_layer = np.median([history["at_layer"] for history in histories], 0)
            norms.plot(steps, at_layer, lw=1, color=f"C{i}", ls=":", label="at the features that enter the layer")
            norms.legend(frameon=False, fontsize=9)
    bars.set_xticks(range(len(metrics)), [name.replace("nuisance=", "") for name in metrics])
    bars.set(xlabel="nuisance channels", ylim=(0, 1), title="test accuracy")
    curves.set(xscale="log", xlabel="step", ylim=(0, 1), title=f"validation accuracy, {channels} nuisance channels")
    norms.set(xscale="log", yscale="log", xlabel="step", title="norm of the gradient, median of seeds")
    handles, labels = bars.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(variants), frameon=False)
    for panel in (bars, curves, norms):
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def clouds_figure(shapes: list[str], points: tuple[int, int], noise: float, neighbors: int) -> Figure:
    """A cloud of each class, coloured by the first eigenvector after the constant one; nearer points are larger."""
    examples = make_clouds(shapes, len(shapes), points, noise, 0, 0.0, torch.Generator().manual_seed(0))
    with warnings.catch_warnings():  # of linked rings it tells them apart
        warnings.simplefilter("ignore", GraphWarning)
        first = LaplacianEigenmaps(1, KNN(neighbors, "union"))(examples.points.double(), mask=examples.mask)[..., 0]
    columns = min(4, len(shapes))
    figure = Figure(figsize=(3 * columns, 3 * math.ceil(len(shapes) / columns)), layout="constrained")
    for i, shape in enumerate(shapes):
        panel = figure.add_subplot(math.ceil(len(shapes) / columns), columns, i + 1)
        x, y, depth = examples.points[i][examples.mask[i]].T.numpy()
        panel.scatter(x, y, c=first[i][examples.mask[i]].numpy(), s=26 + 14 * depth, cmap="coolwarm", lw=0)
        panel.set(xlim=(-1.9, 1.9), ylim=(-1.9, 1.9), aspect="equal")
        panel.set_axis_off()
        panel.set_title(shape, fontsize=11)
    return figure
