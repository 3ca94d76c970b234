"""Parametric eigenmaps: an encoder trained in mini-batches to be the eigenfunctions of a graph Laplacian."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from rich.table import Table
from scipy.linalg import orthogonal_procrustes, subspace_angles
from sklearn.datasets import make_swiss_roll
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from experiments.data import digits, mnist_test
from experiments.metrics import Numbers, mean_and_interval, plus_minus
from experiments.runs import Refusal, Run, check_least, check_names, load_tensors, replacing, table
from experiments.shapes import MANIFOLDS
from experiments.training import QUIET, Batches, Flags, train
from torch_lapeig import KNN, Graph, HeatKernel, LaplacianEigenmaps, Whitening
from torch_lapeig.losses import spectral_loss

TRAINER: Flags = {**QUIET, "max_epochs": -1, "max_steps": 1500, "log_every_n_steps": 10}
COMPONENTS = {"sphere": 8, "swiss_roll": 3, "digits": 9, "mnist": 9}
NAMES = list(COMPONENTS)
EPOCH = 50  # steps, after each of which a checkpoint is written
Sampling = Literal["edges", "points"]
SAMPLINGS: list[Sampling] = ["edges", "points"]
MAPS = {"refit": "eigenvectors of the graph of all", "nystrom": "Nyström", "encoder": "encoder"}
WAY_OUT = "delete it to compute its cell again, or pass --fresh true to start anew"  # of damaged maps


class Cloud(NamedTuple):
    """Points ``(N, D)`` and ``(M, D)`` to be learnt from and held out, float32.

    Attributes:
        train, heldout: points.
        colour: of the held-out ones, in figures.
        truth: eigenfunctions at the held-out points ``(M, k)`` where they are known.
    """

    train: Tensor
    heldout: Tensor
    colour: Numbers
    truth: Numbers | None = None


class Encoder(LightningModule):
    """A perceptron of three hidden layers whose k outputs come to span the smallest eigenfunctions.

    Args:
        points: ``(N, D)``, whose mean and spread the inputs are freed of.
        n_components: k.
        width: of the hidden layers.
        rate: the largest learning rate.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, points: Tensor, n_components: int, width: int, rate: float) -> None:
        super().__init__()
        self.register_buffer("mean", points.mean(0))
        self.register_buffer("spread", (points - points.mean(0)).square().mean().sqrt())
        sizes = [points.shape[1], width, width, width]
        hidden = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.GELU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, n_components))
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Outputs ``(N, k)`` at points ``(N, D)``."""
        y: Tensor = self.layers((x - self.mean) / self.spread)
        return y

    def training_step(self, batch: tuple[Tensor, Graph]) -> Tensor:
        """The spectral loss of some points on a graph of theirs."""
        x, graph = batch
        loss = spectral_loss(self(x), graph)
        self.log("loss", loss, batch_size=len(x))
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Adam; the rate rises and falls once."""
        optimiser = torch.optim.Adam(self.parameters(), lr=self.rate)
        if not math.isfinite(steps := self.trainer.estimated_stepping_batches):
            raise Refusal("--trainer.max_steps or --trainer.max_epochs must be positive: the rate follows a schedule")
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, self.rate, total_steps=int(steps))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class MiniBatches(LightningDataModule):
    """Points with a graph of theirs, for each step.

    Args:
        x: all points ``(N, D)``.
        graph: of all of them.
        neighbors: rule of the graph of ``points``.
        sampling: ``"edges"``: as many edges of the whole graph, with the points they join. Sums over edges and over
            their ends estimate Yᵀ L Y and Yᵀ D Y of the whole graph without bias. ``"points"``: as many points, joined
            and weighted among themselves: a graph of other edges, whose eigenfunctions are about those of the whole.
        size: edges or points in a batch.
        seed: of the order.
    """

    def __init__(self, x: Tensor, graph: Graph, neighbors: KNN, sampling: Sampling, size: int, seed: int) -> None:
        super().__init__()
        self.batches = _EdgeSample(x, graph) if sampling == "edges" else _PointSample(x, neighbors)
        self.sampler = Batches(len(self.batches), size, seed, EPOCH)

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches ``(points, graph)``."""
        return DataLoader(self.batches, sampler=self.sampler, batch_size=None)


class _EdgeSample(Dataset[Any]):
    def __init__(self, x: Tensor, graph: Graph) -> None:
        stored = graph.to_scipy().tocoo()
        both = torch.from_numpy(np.stack([stored.row, stored.col])).long()
        weight = torch.from_numpy(stored.data)
        once = (both[0] < both[1]) & (weight > 0)
        self.x, self.edges, self.weight = x, both[:, once], weight[once]

    def __len__(self) -> int:
        return len(self.weight)

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Graph]:
        nodes, ends = self.edges[:, index].unique(return_inverse=True)
        both, weight = torch.cat([ends, ends.flip(0)], 1), self.weight[index].repeat(2)
        return self.x[nodes], Graph.from_edge_index(both, weight, len(nodes))


class _PointSample(Dataset[Any]):
    def __init__(self, x: Tensor, neighbors: KNN) -> None:
        self.x, self.neighbors = x, neighbors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Graph]:
        x = self.x[index]
        return x, HeatKernel()(x, self.neighbors(x))


def parametric(
    out: Path = Path("runs/parametric"),
    data: list[str] = NAMES,
    sampling: list[Sampling] = SAMPLINGS,
    points: int = 5000,
    neighbors: int = 10,
    batch: int = 1024,
    width: int = 256,
    rate: float = 3e-3,
    seeds: int = 3,
    trainer: Flags = TRAINER,
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Parametric: an encoder trained to be the eigenfunctions, against exact eigenvectors and Nyström at new points.

    Args:
        out: folder of metrics.json, the figures, the trained encoders and what is finished.
        data: which of sphere, swiss_roll, digits, mnist.
        sampling: what mini-batches are: edges of the whole graph, or points with a graph of their own.
        points: of sphere and swiss roll; a fifth of every set is held out.
        neighbors: k of the graphs.
        batch: edges or points in a mini-batch.
        width: of the encoder's three hidden layers.
        rate: the largest learning rate.
        seeds: number of trainings of each kind, with other splits.
        trainer: flags of Lightning's Trainer.
        data_dir: folder of the MNIST test set; default: that of TORCH_LAPEIG_DATA.
        quick: a short training on a sphere.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        data, sampling, points, batch, width, seeds = ["sphere"], ["edges"], 1200, 512, 64, 1
        trainer = {**trainer, "max_steps": 250}
    _check(data, sampling, points, seeds)
    run = Run(out, locals())

    def training(name: str, kind: Sampling, seed: int) -> dict[str, Any]:
        cloud, k, rule = load(name, points, seed, data_dir), COMPONENTS[name], KNN(neighbors, "union")
        graph = HeatKernel()(cloud.train, rule(cloud.train))
        torch.manual_seed(seed)
        encoder = Encoder(cloud.train, k, width, rate)
        folder = run.folder("training", name, kind, seed)
        start = time.perf_counter()
        train(folder, encoder, MiniBatches(cloud.train, graph, rule, kind, batch, seed), trainer, seed)
        seconds = time.perf_counter() - start
        result, maps = assess(encoder, cloud, graph, LaplacianEigenmaps(k, rule))
        save(folder / "encoder.pt", encoder.state_dict())
        save(folder / "maps.pt", {"colour": torch.from_numpy(cloud.colour), **maps})
        return {**result, "training_seconds": seconds}

    cases = [(name, kind, seed) for name in data for kind in sampling for seed in range(seeds)]
    cells = run.cells("training", training, cases, keeps=["encoder.pt", "maps.pt"])
    metrics = summary(cells, data, sampling, seeds)
    run.figure("angles", angles_figure(metrics), dpi=90)
    paths = {name: run.folder("training", name, sampling[0], 0) / "maps.pt" for name in data}
    run.figure("maps", maps_figure({name: load_tensors(path, WAY_OUT) for name, path in paths.items()}), dpi=80)
    run.finish(metrics, angle_table(metrics, seeds))


def _check(data: list[str], sampling: list[Sampling], points: int, seeds: int) -> None:
    """Raise unless names are known and numbers are not too small."""
    check_names("data", data, NAMES)
    check_names("sampling", sampling, SAMPLINGS)
    check_least("seeds", seeds, 1)
    check_least("points", points, 100)


def save(path: Path, content: dict[str, Tensor]) -> None:
    """Write tensors, all or none."""
    with replacing(path) as part:
        torch.save(content, part)


def load(name: str, points: int, seed: int, data_dir: Path | None) -> Cloud:
    """A data set, another split for each seed."""
    if name == "digits":
        split = digits(seed=seed)
        return Cloud(split.train, split.heldout, split.heldout_labels.numpy())
    if name == "mnist":
        x, labels = mnist_test(data_dir)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        train, heldout = order[len(x) // 5 :], order[: len(x) // 5]
        return Cloud(x[train], x[heldout], labels[heldout].numpy())
    new = points // 5
    if name == "swiss_roll":
        roll, along = make_swiss_roll(points, random_state=seed)
        x = torch.from_numpy(roll).float()
        return Cloud(x[new:], x[:new], along[:new])
    sphere = MANIFOLDS["sphere"]()
    u = sphere.sample(points, 0.0, np.random.default_rng(seed))
    x = torch.from_numpy(sphere.embed(u)).float()
    modes = [mode.function(u[:new]) for mode in sphere.modes[1 : COMPONENTS["sphere"] + 1]]
    return Cloud(x[new:], x[:new], u[:new, 0], np.stack(modes, 1))


@torch.no_grad()
def assess(
    encoder: Encoder, cloud: Cloud, graph: Graph, eigenmaps: LaplacianEigenmaps
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Angles between the encoder's span, the exact eigenvectors and Nyström's values; maps of the held-out points.

    The reference at held-out points is what a new solve would give there: the eigenvectors of the graph of all points.
    """
    y, y_new = encoder(cloud.train), encoder(cloud.heldout)
    whitening = Whitening(eigenmaps.n_components).fit(y, graph)
    exact = eigenmaps.fit(cloud.train).embedding_.numpy()
    start = time.perf_counter()
    nystrom = eigenmaps.transform(cloud.heldout).numpy()
    nystrom_seconds = time.perf_counter() - start
    start = time.perf_counter()
    whitening(encoder(cloud.heldout))
    encoder_seconds = time.perf_counter() - start
    energy = float(whitening.eigenvalues_.sum() / eigenmaps.eigenvalues_.sum())
    every = eigenmaps.fit(torch.cat([cloud.train, cloud.heldout])).embedding_.numpy()
    refit, refit_new = every[: len(exact)], every[len(exact) :]
    result = {
        "train_encoder": mean_angle(y.numpy(), exact),
        "heldout_encoder": mean_angle(y_new.numpy(), refit_new),
        "heldout_nystrom": mean_angle(nystrom, refit_new),
        "refit": mean_angle(exact, refit),
        "largest_encoder": largest_angle(y_new.numpy(), refit_new),
        "largest_nystrom": largest_angle(nystrom, refit_new),
        "energy": energy,
        "encoder_seconds": encoder_seconds,
        "nystrom_seconds": nystrom_seconds,
    }
    if cloud.truth is not None:
        values = {"encoder": y_new.numpy(), "nystrom": nystrom, "refit": refit_new}
        result |= {f"truth_{name}": mean_angle(value, cloud.truth) for name, value in values.items()}
    functions = {"refit": refit_new, "nystrom": nystrom, "encoder": whitening(y_new).numpy()}
    return result, {name: torch.from_numpy(_turned(f, refit_new)[:, :2]) for name, f in functions.items()}


def _angles(a: Numbers, b: Numbers) -> Numbers:
    """Principal angles in degrees between the spans of columns, after the constant is taken out of both."""
    centred = [(y - y.mean(0)).astype(np.float64) for y in (a, b)]
    angles: Numbers = np.degrees(subspace_angles(*centred))
    return angles


def mean_angle(a: Numbers, b: Numbers) -> float:
    """Mean principal angle in degrees between the spans of the centred columns ``(N, k)``."""
    return float(_angles(a, b).mean())


def largest_angle(a: Numbers, b: Numbers) -> float:
    """The largest one."""
    return float(_angles(a, b).max())


def _turned(y: Numbers, reference: Numbers) -> Numbers:
    """Columns of unit length, turned as near to the reference as a rotation can: bases of eigenspaces are free."""
    unit, aim = (v / np.linalg.norm(v, axis=0) for v in (y, reference))
    turned: Numbers = unit @ orthogonal_procrustes(unit, aim)[0]
    return turned


def summary(cells: dict[Any, dict[str, float]], data: list[str], kinds: list[Sampling], seeds: int) -> dict[str, Any]:
    """Mean and 95 % interval of every number over seeds, by data set and kind of mini-batch."""

    def over_seeds(name: str, kind: Sampling) -> dict[str, Any]:
        found = [cells[name, kind, seed] for seed in range(seeds)]
        return {key: mean_and_interval([cell[key] for cell in found]) for key in found[0]}

    return {name: {kind: over_seeds(name, kind) for kind in kinds} for name in data}


def angle_table(metrics: dict[str, Any], seeds: int) -> Table:
    """Rows: data sets and kinds of mini-batches; columns: what is compared."""
    columns = ["training points: encoder", "Ritz values / λ", "held out: encoder", "Nyström", "graphs differ by"]
    keys = ["train_encoder", "energy", "heldout_encoder", "heldout_nystrom", "refit"]
    rows = [
        [f"{name}, {kind}", *(plus_minus(by_key[key]) for key in keys)]
        for name, by_kind in metrics.items()
        for kind, by_key in by_kind.items()
    ]
    title = f"mean principal angle in degrees (Ritz values: a ratio), mean and 95 % interval over {seeds} seeds"
    return table(title, ["data, mini-batches", *columns], rows)


def angles_figure(metrics: dict[str, Any]) -> Figure:
    """Angles at training and held-out points, for each data set."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    kinds = list(next(iter(metrics.values())))
    panels = figure.subplots(1, 2, sharey=True)
    bars = [
        [("train_encoder", kind, f"encoder, {kind}") for kind in kinds] + [("refit", kinds[0], "graph of all points")],
        [("heldout_encoder", kind, f"encoder, {kind}") for kind in kinds] + [("heldout_nystrom", kinds[0], "Nyström")],
    ]
    titles = ["training points, from the exact eigenvectors", "held out, from those of the graph of all points"]
    for panel, group, title in zip(panels, bars, titles, strict=True):
        for i, (key, kind, name) in enumerate(group):
            found = [by_kind[kind][key] for by_kind in metrics.values()]
            place = np.arange(len(metrics)) + (i - (len(group) - 1) / 2) * 0.27
            colour = f"C{i}" if i < len(kinds) else "0.6"
            panel.bar(
                place,
                [each["mean"] for each in found],
                0.25,
                yerr=[each["interval"] or 0 for each in found],
                label=name,
                color=colour,
                error_kw={"lw": 0.8},
            )
        panel.set_xticks(range(len(metrics)), [name.replace("_", " ") for name in metrics])
        panel.set_title(title, fontsize=10)
        panel.legend(frameon=False, fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean principal angle (degrees)")
    return figure


def maps_figure(maps: dict[str, dict[str, Tensor]]) -> Figure:
    """Rows: data sets; columns: the first two eigenfunctions at held-out points by each method."""
    figure = Figure(figsize=(9, 2.7 * len(maps)), layout="constrained")
    for row, (name, found) in zip(figure.subplots(len(maps), len(MAPS), squeeze=False), maps.items(), strict=True):
        colours = "viridis" if found["colour"].is_floating_point() else "tab10"
        for panel, (method, title) in zip(row, MAPS.items(), strict=True):
            panel.scatter(*found[method].T, s=3, c=found["colour"], cmap=colours, lw=0, rasterized=True)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_color("0.8")
            if name == next(iter(maps)):
                panel.set_title(title, fontsize=10)
        row[0].set_ylabel(name.replace("_", " "))
    return figure
