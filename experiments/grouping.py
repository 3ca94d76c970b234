"""A map learned from a few labelled points of each set, so that spectral clusters group new sets by what matters.

Channels that matter and those that distract have one covariance, and an invertible nonlinear map mixes them, so that
variances tell nothing about which is which.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Table
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_moons
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn

from experiments.metrics import Numbers, mean_and_interval, plus_minus
from experiments.runs import Refusal, Run, check_least, check_names, table
from torch_lapeig import (
    KNN,
    DegeneracyWarning,
    GraphWarning,
    HarmonicFunction,
    HeatKernel,
    LaplacianEigenmaps,
    SpectralClustering,
)

TASKS = {"moons": "two moons", "digits": "pairs of digits"}
WAVES = {"moons": 0.3, "digits": 0.6}  # slopes of the waves that mix channels; invertible below 1
VARIANTS = {
    "fixed": "nothing: all channels alike",
    "pca": "pairs choose two principal components",
    "fobi": "pairs choose two components of fourth moments (FOBI)",
    "itml": "pairs: ITML, a linear map",
    "harmonic": "labels, through HarmonicFunction",
    "diffusion": "pairs, through powers of the walk",
    "layer": "pairs, through eigenvectors: the layer",
    "oracle": "the channels that matter, given",
}
RELEVANT = {"moons": 2, "digits": 6}  # channels that matter
EIGENVECTORS = 32  # of each graph
GROUPS = {"moons": 2, "digits": 3}
HIDDEN = 12  # units of a learned map
POINTS, NEIGHBORS = 64, 8  # of a set; of a graph
BATCH, RATE = 4, 0.03  # sets in a step, and rate of Adam


def grouping(
    out: Path = Path("runs/grouping"),
    tasks: list[str] = list(TASKS),  # noqa: B006 (never changed)
    variants: list[str] = list(VARIANTS),  # noqa: B006
    seeds: int = 10,
    first_seed: int = 0,
    sets: int = 96,
    heldout: int = 12,
    labelled: int = 6,
    steps: int = 150,
    jobs: int = 1,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Grouping: a map learned through eigenvectors from a few labelled points, against ways without.

    Args:
        out: folder of metrics.json and what is finished.
        tasks: moons (planted), digits (real).
        variants: fixed, pca, fobi, itml, harmonic, diffusion, layer, oracle; the first four take no derivative.
        seeds: repetitions of each task and variant, each with its own sets and its own mixture of channels.
        first_seed: number of the first one.
        sets: of training.
        heldout: sets of the test, of which no label is known.
        labelled: of the 64 points of a training set, those whose group is known.
        steps: of a training.
        jobs: processes.
        quick: moons, one seed, fixed, itml and layer.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        tasks, variants, seeds, sets, heldout, steps = ["moons"], ["fixed", "itml", "layer"], 1, 48, 8, 60
    check_names("tasks", tasks, TASKS)
    check_names("variants", variants, VARIANTS)
    check_least("seeds", seeds, 1)
    if not 2 <= labelled <= POINTS or sets < BATCH:
        raise Refusal(f"--labelled must be 2 to {POINTS}, --sets at least {BATCH}, got {labelled} and {sets}")
    run = Run(out, locals())
    trials = Trials(tuple(range(first_seed, first_seed + seeds)), sets, heldout, labelled, steps)
    cells = run.cells("trials", trials, [(variant, task) for task in tasks for variant in variants], jobs)
    metrics = {task: summary({variant: cells[variant, task] for variant in variants}) for task in tasks}
    run.finish({**metrics, "seeds": seeds}, results_table(metrics))


class Sets(NamedTuple):
    """Sets of points ``(S, N, D)``, the channels that matter, the group of each ``(S, N)``, and whether it is known.

    With one dimension more, ``(R, S, N, D)``, R repetitions of the experiment are computed side by side.
    """

    x: Tensor
    source: Tensor
    group: Tensor
    known: Tensor

    def some(self, rows: Tensor) -> Sets:
        """Return sets ``rows`` ``(R, B)`` of each repetition."""
        repetition = torch.arange(len(rows))[:, None]
        return Sets(*(part[repetition, rows] for part in self))

    def mapped(self, parameters: list[Tensor]) -> Sets:
        """Return all sets in one row, ``(R · S, N, E)``, after the map x ↦ xA + tanh(xC)B of their repetition."""
        linear, inner, outer = (part[:, None] for part in parameters)
        x = self.x @ linear + (self.x @ inner).tanh() @ outer
        return Sets(*(part.flatten(0, 1) for part in self._replace(x=x)))


def start_from(linear: Tensor) -> list[Tensor]:
    """Return A ``(R, D, E)``, C ``(R, D, H)`` and B ``(R, H, E)`` of a map that is linear at first, with random C."""
    count, size, outputs = linear.shape
    inner = torch.randn(count, size, HIDDEN, dtype=linear.dtype) / size**0.5
    return [linear, inner, linear.new_zeros(count, HIDDEN, outputs)]


def make_sets(task: str, count: int, labelled: int, generator: np.random.Generator, new: bool) -> Sets:
    """Return sets whose first channels have the groups that matter, and the others groups that do not, or noise.

    The first are two moons, turned by a random angle, or a digit; the next are two blobs and noise, or another digit
    (5 to 9 with ``new``, else 0 to 4). In planted sets the covariance of each plane is the identity.
    """
    digits = task == "digits"
    made = [digits_set(generator, new) if digits else planted_set(generator) for _ in range(count)]
    known = np.zeros((count, POINTS), bool)
    for row in known:
        row[generator.choice(POINTS, labelled, replace=False)] = True
    x, group = (np.stack(part) for part in zip(*made, strict=True))
    source = x[..., : RELEVANT[task]].copy()
    return Sets(*map(torch.from_numpy, (x, source, group, known)))


def mixture(size: int, wave: float, generator: np.random.Generator) -> Callable[[Tensor], Tensor]:
    """Return an invertible map of channels: a random rotation, waves along each channel, another rotation."""
    before, after = (torch.from_numpy(np.linalg.qr(generator.normal(size=(size, size)))[0]) for _ in range(2))

    def mix(x: Tensor) -> Tensor:
        turned = x @ before
        mixed: Tensor = (turned + wave * turned.sin()) @ after
        return mixed

    return mix


def planted_set(generator: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Return points ``(N, 6)`` and groups ``(N,)``."""
    seed = int(generator.integers(1 << 30))
    shape = make_moons(POINTS, noise=0.05, random_state=seed)
    blobs = np.stack([3.0 * generator.integers(0, 2, POINTS) - 1.5, np.zeros(POINTS)], 1)
    blobs += 0.4 * generator.normal(size=(POINTS, 2))
    planes = (shape[0], blobs, generator.normal(size=(POINTS, 2)))
    return np.concatenate([white(plane, generator) for plane in planes], 1), shape[1]


def white(points: Numbers, generator: np.random.Generator) -> Numbers:
    """Return points of a plane with mean 0 and covariance 1, turned by a random angle."""
    left, _, right = np.linalg.svd(points - points.mean(0), full_matrices=False)
    angle = generator.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.asarray(np.sqrt(len(points)) * left @ right @ turn)


def digits_set(generator: np.random.Generator, new: bool) -> tuple[Numbers, Numbers]:
    """Return points ``(N, 12)`` and groups ``(N,)``: six components of two images, each of one of three classes."""
    components, labels = components_of_digits()
    halves, groups = [], []
    for _ in range(2):
        classes = 5 * new + generator.choice(5, 3, replace=False)
        group = generator.integers(0, 3, POINTS)
        halves.append(np.stack([components[generator.choice(np.flatnonzero(labels == classes[g]))] for g in group]))
        groups.append(group)
    return np.concatenate(halves, 1), groups[0]


@cache
def components_of_digits() -> tuple[Numbers, Numbers]:
    """Return six principal components of the images, and the labels."""
    images, labels = load_digits(return_X_y=True)
    components = PCA(RELEVANT["digits"], random_state=0).fit_transform(images)
    return components / components.std(), labels


@dataclass(frozen=True)
class Trials:
    """Learns from training sets and groups test sets, all seeds side by side; arguments as those of `grouping`."""

    seeds: tuple[int, ...]
    sets: int
    heldout: int
    labelled: int
    steps: int

    def __call__(self, variant: str, task: str) -> dict[str, Any]:
        """Return the mean adjusted Rand index of each seed's test sets, and the processor's seconds of all seeds."""
        torch.manual_seed(self.seeds[0])
        train, test = self.data(task)
        start = time.process_time()
        with warnings.catch_warnings():
            for harmless in (GraphWarning, DegeneracyWarning):  # several components; a closed cut k | k + 1
                warnings.simplefilter("ignore", harmless)
            embed = self.learned(variant, train, GROUPS[task])
            seconds = time.process_time() - start
            with torch.no_grad():
                rows = embed(test)
        means = KMeans(GROUPS[task], n_init=2, random_state=0)
        scores = [
            adjusted_rand_score(group, means.fit_predict(row))
            for row, group in zip(rows.numpy(), test.group.flatten(0, 1).numpy(), strict=True)
        ]
        return {"agreement": np.reshape(scores, (len(self.seeds), -1)).mean(1).tolist(), "seconds": seconds}

    @cache  # noqa: B019 (one instance a run)
    def data(self, task: str) -> tuple[Sets, Sets]:
        """Return training sets and test sets ``(R, S, N, D)``, their channels mixed."""
        made = []
        for seed in self.seeds:
            generator = np.random.default_rng(seed)
            train = make_sets(task, self.sets, self.labelled, generator, new=False)
            test = make_sets(task, self.heldout, self.labelled, generator, new=True)
            mix = mixture(train.x.shape[-1], WAVES[task], generator)
            made.append([part._replace(x=mix(part.x)) for part in (train, test)])
        train, test = (Sets(*map(torch.stack, zip(*parts, strict=True))) for parts in zip(*made, strict=True))
        return train, test

    def learned(self, variant: str, train: Sets, groups: int) -> Callable[[Sets], Tensor]:
        """Return what makes rows for k-means of sets: eigenvectors after a learned map."""
        layer = SpectralClustering(groups, KNN(NEIGHBORS))
        if variant == "oracle":
            return lambda part: layer(part.source.flatten(0, 1))
        found = start_from(torch.eye(train.x.shape[-1], dtype=torch.float64).repeat(len(self.seeds), 1, 1))
        if variant == "itml":
            found = start_from(torch.stack([itml(Sets(*part)) for part in zip(*train, strict=True)]))
        elif variant in ("pca", "fobi"):
            found = start_from(chosen(components(train.x.flatten(1, 2), variant == "fobi"), train))
        elif variant != "fixed":
            self.descend(found, variant, train, groups)
        return lambda part: layer(part.mapped(found).x)

    def descend(self, found: list[Tensor], variant: str, train: Sets, groups: int) -> None:
        """Minimise a loss of random batches by Adam, with a rate that falls to zero along a cosine."""
        optimizer = torch.optim.Adam([part.requires_grad_() for part in found], RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        for step in range(self.steps):
            rows = torch.rand(len(self.seeds), self.sets).argsort(1)[:, :BATCH]
            value = loss_of(variant, train.some(rows).mapped(found), groups, step / self.steps).sum()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()


def loss_of(variant: str, part: Sets, groups: int, done: float) -> Tensor:
    """Return the loss ``(B,)`` of a variant for each of mapped sets, after a share ``done`` of the training."""
    time = 4 * 32.0**done  # steps of the walk: at first 4, which see near points, at last 128
    if variant == "layer":
        return pair_loss(through_eigenvectors(part.x, time), part)
    if variant == "diffusion":
        graph = HeatKernel("median")(part.x, KNN(NEIGHBORS)(part.x))
        return pair_loss(diffused(graph.to_dense(), round(time)), part)
    return harmonic(part, groups)


def known_pairs(part: Sets) -> tuple[Tensor, Tensor]:
    """Return which pairs of known points ``(B, N, N)`` are of one group, and which of two; each pair once."""
    both = (part.known[:, :, None] & part.known[:, None, :]).triu(1)
    same = part.group[:, :, None] == part.group[:, None, :]
    return both & same, both & ~same


def pair_loss(rows: Tensor, part: Sets) -> Tensor:
    """Return how far cosines of rows ``(B, N, k)`` fall below 1 in groups, and exceed 0 between them: ``(B,)``."""
    rows = nn.functional.normalize(rows, dim=-1)
    cosines = rows @ rows.mT
    same, other = known_pairs(part)
    return mean_of((1 - cosines).square(), same) + mean_of(cosines.clamp_min(0).square(), other)


def mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of chosen pairs ``(B, N, N)`` of each set ``(B,)``, 0 where there are none."""
    return (values * chosen).sum((1, 2)) / chosen.sum((1, 2)).clamp_min(1)


def through_eigenvectors(x: Tensor, time: float) -> Tensor:
    """Return eigenvectors ``(B, N, 32)`` of points' graphs, times what a lazy random walk leaves of each."""
    found = LaplacianEigenmaps(EIGENVECTORS, KNN(NEIGHBORS)).embed(x)
    rows: Tensor = found.embedding * (1 - found.eigenvalues / 2)[:, None] ** time
    return rows


def harmonic(part: Sets, groups: int) -> Tensor:
    """Return the cross-entropy of half of the known points, given the others."""
    order = torch.rand(part.known.shape).masked_fill(~part.known, 2).argsort(1).argsort(1)
    shown = order < part.known.sum(1, keepdim=True) // 2
    scores = HarmonicFunction(KNN(NEIGHBORS), n_classes=groups)(part.x, part.group.where(shown, -1))
    right = scores.gather(2, part.group[..., None])[..., 0]
    loss: Tensor = (-(right + 1e-3).log() * (part.known & ~shown)).sum(-1)
    return loss


def diffused(weights: Tensor, steps: int) -> Tensor:
    """Return rows of a lazy random walk's power, made symmetric and without what all rows have in common."""
    degrees = weights.sum(-1) + 1e-6
    root = degrees.sqrt()
    walk = weights / (root[..., None] * root[..., None, :])
    lazy = (walk + torch.eye(weights.shape[-1], dtype=weights.dtype)) / 2
    limit = root[..., None] * root[..., None, :] / degrees.sum(-1)[..., None, None]
    rows: Tensor = torch.linalg.matrix_power(lazy, steps) - limit
    return rows


def itml(train: Sets, cycles: int = 20) -> Tensor:
    """Return a map whose metric information-theoretic metric learning gives (Davis et al. 2007), with slack γ = 1."""
    same, other = known_pairs(train)
    found = [(train.x[s, i] - train.x[s, j]).numpy() for s, i, j in (same.nonzero().T, other.nonzero().T)]
    differences = np.concatenate(found)
    signs = np.repeat([1.0, -1.0], [len(part) for part in found])
    lengths = (differences**2).sum(1)
    bounds = np.where(signs > 0, np.quantile(lengths, 0.05), np.quantile(lengths, 0.95))
    metric, duals = np.eye(differences.shape[1]), np.zeros(len(differences))
    for _ in range(cycles):
        for i in np.random.default_rng(0).permutation(len(differences)):
            image = metric @ differences[i]
            length = differences[i] @ image
            step = min(duals[i], signs[i] / 2 * (1 / length - 1 / bounds[i]))
            factor = signs[i] * step / (1 - signs[i] * step * length)
            bounds[i] = bounds[i] / (1 + signs[i] * step * bounds[i])
            duals[i] -= step
            metric += factor * np.outer(image, image)
    values, vectors = np.linalg.eigh(metric)
    return torch.from_numpy(vectors * np.sqrt(values.clip(0)))


def components(points: Tensor, fourth: bool) -> Tensor:
    """Return the map ``(R, D, D)`` to uncorrelated components of variance 1 of points ``(R, M, D)``.

    Args:
        points: of which the components are principal ones, without labels.
        fourth: turn them so that E ‖y‖² y yᵀ is diagonal, too, as independent components have it (FOBI, Cardoso 1989).
    """
    centred = points - points.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(centred.mT @ centred / centred.shape[1])
    whitened: Tensor = vectors / values.sqrt()[:, None]
    rows = centred @ whitened
    weighted = rows * rows.square().sum(-1, keepdim=True)
    turned: Tensor = whitened @ torch.linalg.eigh(rows.mT @ weighted / rows.shape[1])[1]
    return turned if fourth else whitened


@torch.no_grad()
def chosen(found: Tensor, train: Sets) -> Tensor:
    """Return those two of components ``(R, D, D)`` that have the least of the layer's loss in half of the sets."""
    part = train.some(torch.arange(train.x.shape[1] // 2).expand(len(found), -1))
    pairs = [found[..., list(pair)] for pair in combinations(range(found.shape[-1]), 2)]
    losses = [loss_of("layer", part.mapped(start_from(pair)), 2, 1.0).reshape(len(found), -1).mean(1) for pair in pairs]
    return torch.stack(pairs)[torch.stack(losses).argmin(0), torch.arange(len(found))]


def summary(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the index of each variant with its interval, its mean time, and the paired difference of the layer."""
    found: dict[str, Any] = {}
    for variant, cell in cells.items():
        index = np.array(cell["agreement"])
        found[variant] = {"agreement": mean_and_interval(index), "seconds": cell["seconds"] / len(index)}
        if variant != "layer" and "layer" in cells:
            ahead = np.array(cells["layer"]["agreement"]) - index
            found[variant]["layer_less_it"] = mean_and_interval(ahead, len(cells) - 1)
    return found


def results_table(metrics: dict[str, Any]) -> Table:
    """Return the index of each variant and task, how far the layer is ahead, and seconds."""

    def cells(found: dict[str, Any]) -> list[str]:
        ahead = plus_minus(found["layer_less_it"], sign="+") if "layer_less_it" in found else "–"
        return [plus_minus(found["agreement"]), ahead, f"{found['seconds']:.1f}"]

    variants = next(iter(metrics.values()))
    rows = [[VARIANTS[name], *(cell for found in metrics.values() for cell in cells(found[name]))] for name in variants]
    columns = [name for task in metrics for name in (TASKS[task], "layer less it", "seconds")]
    return table("adjusted Rand index of new sets, mean ± 95 % interval", ["learned from", *columns], rows)
