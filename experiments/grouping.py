"""A map learned from a few labelled points of each set, so that spectral clusters group new sets by what matters.

Channels that matter and those that distract have one covariance, and an invertible nonlinear map mixes them, so that
variances tell nothing about which is which.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
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
    "itml": "pairs: ITML, a linear map",
    "network": "pairs: the best of three EdgeConv networks",
    "harmonic": "labels, through HarmonicFunction",
    "evolution": "the layer's loss, evolution strategy",
    "whitened": "the same, from whitened channels",
    "pca": "the same, from two components of PCA",
    "diffusion": "pairs, through powers of the walk",
    "layer": "pairs, through eigenvectors: the layer",
    "oracle": "the channels that matter, given",
}
RELEVANT = {"moons": 2, "digits": 6}  # channels that matter
EIGENVECTORS = 32  # of each graph
GROUPS = {"moons": 2, "digits": 3}
HIDDEN = 12  # units of a learned map
RESTARTS = 3  # of networks


def grouping(
    out: Path = Path("runs/grouping"),
    tasks: list[str] = list(TASKS),  # noqa: B006 (never changed)
    variants: list[str] = list(VARIANTS),  # noqa: B006
    seeds: int = 10,
    first_seed: int = 0,
    sets: int = 96,
    heldout: int = 12,
    points: int = 64,
    labelled: int = 6,
    neighbors: int = 8,
    steps: int = 150,
    rate: float = 0.03,
    batch: int = 4,
    jobs: int = 1,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Grouping: a map learned through eigenvectors from a few labelled points, against ways without.

    Args:
        out: folder of metrics.json and what is finished.
        tasks: moons (planted), digits (real).
        variants: fixed, itml, network, harmonic, evolution, whitened, pca, diffusion, layer, oracle. Evolution begins
            where the layer does, at whitened channels, or at the two principal components with the least loss.
        seeds: repetitions of each task and variant, each with its own sets and its own mixture of channels.
        first_seed: number of the first one.
        sets: of training.
        heldout: sets of the test, of which no label is known.
        points: of a set.
        labelled: points of a training set whose group is known.
        neighbors: k of the graphs.
        steps: of a training; each network's has three times as many, an evolution strategy six times.
        rate: of Adam.
        batch: sets in a step.
        jobs: processes.
        quick: moons, one seed, fixed, itml and layer.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        tasks, variants, seeds, sets, heldout, steps = ["moons"], ["fixed", "itml", "layer"], 1, 48, 8, 60
    check_names("tasks", tasks, TASKS)
    check_names("variants", variants, VARIANTS)
    check_least("seeds", seeds, 1)
    if not 2 <= labelled <= points or not batch <= sets or not neighbors < points:
        raise Refusal(
            "--labelled must be 2 to --points, --batch at most --sets, --neighbors less than --points, got "
            f"{labelled}, {points}, {batch}, {sets} and {neighbors}"
        )
    run = Run(out, locals())
    numbers = tuple(range(first_seed, first_seed + seeds))
    trials = Trials(numbers, sets, heldout, points, labelled, neighbors, steps, rate, batch)
    cells = run.cells("trials", trials, [(variant, task) for task in tasks for variant in variants], jobs)
    metrics = {task: {variant: summary(cells[variant, task]) for variant in variants} for task in tasks}
    differences(metrics)
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

    def mapped(self, parameters: Tensor) -> Sets:
        """Return all sets in one row, ``(R · S, N, E)``, after the map ``(R, P)`` of their repetition."""
        linear, inner, outer = parts_of_map(parameters, self.x.shape[-1])
        x = self.x @ linear[:, None] + (self.x @ inner[:, None]).tanh() @ outer[:, None]
        return Sets(*(part.flatten(0, 1) for part in self._replace(x=x)))


def parts_of_map(parameters: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return A ``(R, D, E)``, C ``(R, D, H)`` and B ``(R, H, E)`` of maps x ↦ xA + tanh(xC)B of D channels."""
    outputs = (parameters.shape[1] - size * HIDDEN) // (size + HIDDEN)
    shapes = (size, outputs), (size, HIDDEN), (HIDDEN, outputs)
    parts = parameters.split([rows * columns for rows, columns in shapes], 1)
    linear, inner, outer = (part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True))
    return linear, inner, outer


def start_from(linear: Tensor) -> Tensor:
    """Return parameters ``(R, P)`` of a map that is linear ``(R, D, E)`` at first, with random C."""
    count, size, outputs = linear.shape
    inner = torch.randn(count, size, HIDDEN, dtype=linear.dtype) / size**0.5
    return torch.cat([linear.flatten(1), inner.flatten(1), linear.new_zeros(count, HIDDEN * outputs)], 1)


def stacked(repetitions: list[Sets]) -> Sets:
    """Return ``(R, S, N, D)`` and so on of R repetitions."""
    return Sets(*(torch.stack(part) for part in zip(*repetitions, strict=True)))


def make_sets(task: str, count: int, points: int, labelled: int, generator: np.random.Generator, new: bool) -> Sets:
    """Return sets whose first channels have the groups that matter, and the others groups that do not, or noise.

    Args:
        task: the first channels are two moons, turned by a random angle, or a digit. The next are two blobs
            and noise, or another digit; which point is in which has nothing to do with the groups. In planted sets
            the covariance of each plane is the identity.
        count, points, labelled: sets; points of each; those whose group is known.
        generator: of random numbers.
        new: of digits 5 to 9 instead of 0 to 4.
    """
    digits = task == "digits"
    made = [digits_set(points, generator, new) if digits else planted_set(points, generator) for _ in range(count)]
    known = np.zeros((count, points), bool)
    for row in known:
        row[generator.choice(points, labelled, replace=False)] = True
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


def planted_set(points: int, generator: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Return points ``(N, 6)`` and groups ``(N,)``."""
    seed = int(generator.integers(1 << 30))
    shape = make_moons(points, noise=0.05, random_state=seed)
    blobs = np.stack([3.0 * generator.integers(0, 2, points) - 1.5, np.zeros(points)], 1)
    blobs += 0.4 * generator.normal(size=(points, 2))
    planes = (shape[0], blobs, generator.normal(size=(points, 2)))
    return np.concatenate([white(plane) @ turn(generator) for plane in planes], 1), shape[1]


def white(points: Numbers) -> Numbers:
    """Return points with mean 0 and covariance 1, turned as they were."""
    centred = points - points.mean(0)
    left, _, right = np.linalg.svd(centred, full_matrices=False)
    whitened: Numbers = np.sqrt(len(points)) * left @ right
    return whitened


def turn(generator: np.random.Generator) -> Numbers:
    """A rotation of the plane."""
    angle = generator.uniform(0, 2 * np.pi)
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def digits_set(points: int, generator: np.random.Generator, new: bool) -> tuple[Numbers, Numbers]:
    """Points ``(N, 12)`` and groups ``(N,)``: six components of each of two images, both of one of three classes."""
    components, labels = components_of_digits()
    halves, groups = [], []
    for _ in range(2):
        classes = 5 * new + generator.choice(5, 3, replace=False)
        group = generator.integers(0, 3, points)
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
    points: int
    labelled: int
    neighbors: int
    steps: int
    rate: float
    batch: int

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
        trains, tests = [], []
        for seed in self.seeds:
            generator = np.random.default_rng(seed)
            train = make_sets(task, self.sets, self.points, self.labelled, generator, new=False)
            test = make_sets(task, self.heldout, self.points, self.labelled, generator, new=True)
            mix = mixture(train.x.shape[-1], WAVES[task], generator)
            trains.append(train._replace(x=mix(train.x)))
            tests.append(test._replace(x=mix(test.x)))
        return stacked(trains), stacked(tests)

    def learned(self, variant: str, train: Sets, groups: int) -> Callable[[Sets], Tensor]:
        """Return what makes rows for k-means of sets: of a network, or eigenvectors after a learned map."""
        if variant == "network":
            return self.best_network(train)
        layer = SpectralClustering(groups, KNN(self.neighbors))
        if variant == "oracle":
            return lambda part: layer(part.source.flatten(0, 1))
        found = start_from(torch.eye(train.x.shape[-1], dtype=torch.float64).repeat(len(self.seeds), 1, 1))
        if variant == "itml":
            found = start_from(torch.stack([itml(Sets(*part)) for part in zip(*train, strict=True)]))
        elif variant in ("evolution", "whitened", "pca"):
            starts = {"evolution": [found], "whitened": [start_from(whitening(train))]}
            found = evolve(
                starts.get(variant) or [start_from(pair) for pair in pairs_of_components(train)], train, self
            )
        elif variant != "fixed":
            found.requires_grad_()

            def loss(part: Sets, done: float) -> Tensor:
                return self.loss(variant, part.mapped(found), groups, done)

            self.descend([found], loss, train, self.rate, self.steps)
        return lambda part: layer(part.mapped(found.detach()).x)

    def best_network(self, train: Sets) -> Callable[[Sets], Tensor]:
        """Return rows of the network that fits known pairs of a repetition best, of several that are trained."""
        networks, losses = [], []
        for _ in range(RESTARTS):
            network = Networks(len(self.seeds), train.x.shape[-1], self.neighbors)
            fit = partial(fit_of_network, network)
            self.descend(list(network.parameters()), fit, train, 0.005, 3 * self.steps)
            networks.append(network)
            with torch.no_grad():
                losses.append(fit(train, 1.0).reshape(len(self.seeds), -1).mean(1))
        best = torch.stack(losses).argmin(0)

        def rows(part: Sets) -> Tensor:
            each = torch.stack([network(part.x).unflatten(0, part.x.shape[:2]) for network in networks])
            return each[best, torch.arange(len(best))].flatten(0, 1)

        return rows

    def loss(self, variant: str, part: Sets, groups: int, done: float) -> Tensor:
        """Return the loss ``(B,)`` of a variant for each of mapped sets, after a share ``done`` of the training."""
        if variant == "layer":
            return pair_loss(through_eigenvectors(part.x, self.neighbors, diffusion_time(done)), part)
        if variant == "diffusion":
            graph = HeatKernel("median")(part.x, KNN(self.neighbors)(part.x))
            return pair_loss(diffused(graph.to_dense(), round(diffusion_time(done))), part)
        return harmonic(part, groups, self.neighbors)

    def descend(
        self, parameters: list[Tensor], loss: Callable[[Sets, float], Tensor], train: Sets, rate: float, steps: int
    ) -> None:
        """Minimise a loss of random batches by Adam, with a rate that falls to zero along a cosine."""
        optimizer = torch.optim.Adam(parameters, rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for step in range(steps):
            rows = torch.rand(len(self.seeds), self.sets).argsort(1)[:, : self.batch]
            value = loss(train.some(rows), step / steps).sum()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()


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


def fit_of_network(network: Networks, part: Sets, done: float) -> Tensor:
    """Return the loss of known pairs in rows of networks, ``(R · S,)``."""
    return pair_loss(network(part.x), part._replace(group=part.group.flatten(0, 1), known=part.known.flatten(0, 1)))


def diffusion_time(done: float) -> float:
    """Return the steps of the walk after a share of the training: 4 at first, which see near points, 128 at last."""
    return float(4 * 32.0**done)


def through_eigenvectors(x: Tensor, neighbors: int, time: float) -> Tensor:
    """Return eigenvectors ``(B, N, 32)`` of points' graphs, times what a lazy random walk leaves of each."""
    found = LaplacianEigenmaps(EIGENVECTORS, KNN(neighbors)).embed(x)
    rows: Tensor = found.embedding * (1 - found.eigenvalues / 2)[:, None] ** time
    return rows


def squared_distances(x: Tensor) -> Tensor:
    """Return ``(B, N, N)`` of points ``(B, N, D)``."""
    squares = x.square().sum(-1)
    return (squares[:, :, None] + squares[:, None] - 2 * x @ x.mT).clamp_min(1e-12)


def harmonic(part: Sets, groups: int, neighbors: int) -> Tensor:
    """Return the cross-entropy of half of the known points, given the others."""
    order = torch.rand(part.known.shape).masked_fill(~part.known, 2).argsort(1).argsort(1)
    shown = order < part.known.sum(1, keepdim=True) // 2
    scores = HarmonicFunction(KNN(neighbors), n_classes=groups)(part.x, part.group.where(shown, -1))
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


def whitening(train: Sets) -> Tensor:
    """Return the map ``(R, D, D)`` that gives the pooled points of each repetition the covariance 1."""
    points = train.x.flatten(1, 2)
    values, vectors = torch.linalg.eigh(points.mT @ points / points.shape[1])
    whitened: Tensor = vectors / values.sqrt()[:, None]
    return whitened


def pairs_of_components(train: Sets) -> list[Tensor]:
    """Return all pairs of principal components of each repetition's points, ``(R, D, 2)``."""
    components = torch.linalg.svd(train.x.flatten(1, 2), full_matrices=False)[2].mT
    return [components[..., list(pair)] for pair in combinations(range(components.shape[-1]), 2)]


@torch.no_grad()
def evolve(starts: list[Tensor], train: Sets, trials: Trials) -> Tensor:
    """Minimise the layer's loss over parameters ``(R, P)`` by a (1 + 1) evolution strategy from the best start."""
    part = train.some(torch.arange(2 * trials.batch).expand(len(train.x), -1))

    def loss(at: Tensor) -> Tensor:
        mapped = part.mapped(at)
        rows = through_eigenvectors(mapped.x, trials.neighbors, 32.0)
        return pair_loss(rows, mapped).reshape(len(train.x), -1).mean(1)

    losses = torch.stack([loss(start) for start in starts])
    chosen, least = losses.argmin(0), losses.amin(0)
    best = torch.stack(starts)[chosen, torch.arange(len(chosen))]
    size = torch.full((len(best), 1), 0.1, dtype=best.dtype)
    for _ in range(6 * trials.steps):
        tried = best + size * torch.randn_like(best)
        value = loss(tried)
        better = value < least
        best, least = torch.where(better[:, None], tried, best), torch.where(better, value, least)
        size = size * torch.where(better, 1.5, 0.9)[:, None]
    return best


class Linear(nn.Module):
    """A linear map of each repetition, of ``(R, …, inputs)``."""

    def __init__(self, repetitions: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(repetitions, inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(repetitions, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(R, …, outputs)``."""
        return (x.flatten(1, -2) @ self.weight + self.bias).reshape(*x.shape[:-1], -1)


class Networks(nn.Module):
    """Three layers of EdgeConv (Wang et al., *Dynamic graph CNN*, 2019) for each repetition."""

    def __init__(self, repetitions: int, channels: int, neighbors: int, width: int = 32) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.layers = nn.ModuleList(
            nn.Sequential(
                Linear(repetitions, 2 * size, width), nn.LayerNorm(width), nn.ReLU(), Linear(repetitions, width, width)
            )
            for size in (channels, width, width)
        )
        self.head = Linear(repetitions, width, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return rows ``(R · S, N, 8)`` of points ``(R, S, N, D)``."""
        x = x.float()
        repetition, item = torch.arange(len(x))[:, None, None, None], torch.arange(x.shape[1])[:, None, None]
        for layer in self.layers:
            distances = squared_distances(x.detach().flatten(0, 1)).reshape(*x.shape[:3], -1)
            around = x[repetition, item, distances.topk(self.neighbors, largest=False).indices]
            centre = x[:, :, :, None].expand_as(around)
            x = layer(torch.cat([centre, around - centre], -1)).amax(3)
        rows: Tensor = self.head(x).flatten(0, 1)
        return rows


def summary(cell: dict[str, Any]) -> dict[str, Any]:
    """Over seeds: the index with its interval, and the mean time."""
    found = cell["agreement"]
    return {
        "agreement": {**mean_and_interval(found), "least": min(found)},
        "seconds": cell["seconds"] / len(found),
    }


def differences(metrics: dict[str, Any]) -> None:
    """Add the paired difference of the layer and each variant."""
    for by_variant in metrics.values():
        layer = by_variant.get("layer")
        for found in (found for found in by_variant.values() if layer and found is not layer):
            pairs = zip(layer["agreement"]["seeds"], found["agreement"]["seeds"], strict=True)
            found["layer_less_it"] = mean_and_interval([ours - other for ours, other in pairs], len(by_variant) - 1)


def results_table(metrics: dict[str, Any]) -> Table:
    """The index of each variant and task, what the layer is ahead, and seconds."""
    rows = []
    for variant in next(iter(metrics.values())):
        row = [VARIANTS[variant]]
        for by_variant in metrics.values():
            found = by_variant[variant]
            row.append(plus_minus(found["agreement"]))
            row.append(plus_minus(found["layer_less_it"], sign="+") if "layer_less_it" in found else "–")
        rows.append([*row, f"{np.mean([by_variant[variant]['seconds'] for by_variant in metrics.values()]):.1f}"])
    columns = [name for task in metrics for name in (TASKS[task], "layer less it")]
    return table("adjusted Rand index of new sets, mean ± 95 % interval", ["learned from", *columns, "seconds"], rows)
