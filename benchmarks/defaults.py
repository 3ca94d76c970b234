"""Defaults of `LaplacianEigenmaps` by measurement: symmetrisation, weighting and number of neighbours.

    python -m benchmarks defaults --data FOLDER            # MNIST and Brown corpus from FOLDER; ten to fifteen minutes
    python -m benchmarks defaults --data FOLDER --quick    # few draws of the small sets, three minutes

Every setting embeds the same draws of every data set, and is scored by what its neighbours in the embedding tell about
labels that it never saw, or by how well a linear map leads from the embedding to the true coordinates of a manifold.
Differences are paired by draw. Over data sets the unit is the data set: the interval is that of their mean differences,
and the choice is repeated with each set left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from scipy.stats import rankdata, t
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.manifold import SpectralEmbedding

from benchmarks.record import Record, Table
from experiments.data import brown_words, ionosphere, locate, mnist_test
from torch_lapeig import (
    KNN,
    ImprovedWeights,
    LaplacianEigenmaps,
)
from torch_lapeig.command.choices import WEIGHTINGS

Array = NDArray[np.float64]
Scores = dict["Setting", Array]  # of each setting (draws, measures)

DIMENSIONS = (2, 10)
VOTERS = 5  # neighbours in the embedding that vote
FOLDS, REPEATS = 10, 4
NEAR = 20  # neighbours among which there are always enough of other folds
KEPT = 10  # neighbours on the manifold that an embedding is to keep

PAPER = "improved, L y = λ y"  # the weighting's own problem, without the degrees
PEER = "scikit-learn"
NEIGHBORS = (5, 7, 10, 15, 20, 30)


class Setting(NamedTuple):
    """How a graph is made. ``rule``: a symmetrisation, or of scikit-learn, which counts the point itself among k."""

    weighting: str
    rule: str
    k: int

    def __str__(self) -> str:
        return f"{self.rule}, {self.weighting}, k = {self.k}" if self.rule else f"{self.weighting}, k = {self.k}"

    def embed(self, x: NDArray[np.floating], columns: int) -> Array:
        """The first columns after the constant one, ``(N, columns)``."""
        if self.weighting == PEER:
            peer = SpectralEmbedding(columns, affinity="nearest_neighbors", n_neighbors=self.k, random_state=0)
            return np.asarray(peer.fit_transform(x), dtype=float)
        rule = KNN(self.k, symmetrize=self.rule)  # type: ignore[arg-type]
        if self.weighting == PAPER:
            module = LaplacianEigenmaps(columns, rule, ImprovedWeights(), normalization="unnormalized")
        else:
            module = LaplacianEigenmaps(columns, rule, WEIGHTINGS[self.weighting]())
        with torch.no_grad():
            y: Array = module(torch.from_numpy(x)).double().numpy()
        return y


BEFORE = Setting("heat", "union", 10)
MEAN = BEFORE._replace(rule="mean")
GRID = [Setting(*parts) for parts in itertools.product(WEIGHTINGS, ("union", "mean"), NEIGHBORS)]
REFERENCE = [
    *(Setting("heat", "mutual", k) for k in (10, 30)),
    *(Setting(PAPER, rule, 10) for rule in ("union", "mean")),
    *(Setting(PEER, "", k) for k in (10, 11)),
]


# Settings shown one by one: all with ten neighbours, and any number of them with the default weighting.
SHOWN = [s for s in (*GRID, *REFERENCE) if s.k == 10 or s.weighting in ("heat", PEER)]


# ------------------------------------------------------------------------------------------------------- data sets


class Source(NamedTuple):
    """A data set: ``draw`` gives points and truth, integer labels ``(N,)`` or coordinates ``(N, c)``.

    ``share`` is that of the points which a draw takes from a set of given size; None where every draw is new.
    """

    draw: Callable[[Generator], tuple[NDArray[np.floating], NDArray[np.generic]]]
    draws: int
    share: float | None = None

    @property
    def spread(self) -> float:
        """The variance of the mean of a difference over draws, over the variance of the difference among draws.

        Draws that share points differ less than new data would. For parts of the share s without replacement the
        delete-d jackknife (Shao & Wu 1989) has the factor s / (1 − s) in the place of one over their number.
        """
        return 1 / self.draws if self.share is None else self.share / (1 - self.share)


def part(
    x: NDArray[np.floating], truth: NDArray[np.generic], share: float, generator: Generator
) -> tuple[NDArray[np.floating], NDArray[np.generic]]:
    """A random part of the points, of each class its share."""
    order = generator.permutation(len(x))
    place = np.empty(len(x))
    for label in np.unique(truth):
        members = order[truth[order] == label]
        place[members] = (np.arange(len(members)) + generator.random()) / len(members)
    chosen = np.sort(order[np.argsort(place[order], kind="stable")][: round(share * len(x))])
    return x[chosen], truth[chosen]


def standardised(x: Array) -> Array:
    return np.asarray((x - x.mean(0)) / x.std(0))


def blobs(dimension: int, generator: Generator) -> tuple[Array, NDArray[np.generic]]:
    """Five Gaussian classes of 45 to 225 points that overlap, the widest six times as wide as the narrowest."""
    count, width = np.array([225, 150, 112, 68, 45]), np.array([1.5, 0.25, 0.75, 0.4, 1.0])
    label = np.repeat(np.arange(5), count)
    centre = generator.standard_normal((5, dimension)) * (3.2 if dimension == 2 else 1.1)
    return centre[label] + width[label, None] * generator.standard_normal((len(label), dimension)), label


def swiss_roll(noise: float, uneven: bool, generator: Generator, n: int = 800) -> tuple[Array, NDArray[np.generic]]:
    """A roll of about 90 × 60, nearly uniform or six times as dense at its inner end; its two arc lengths."""
    u = generator.random(n)
    u = np.log1p(u * (1 / 6 - 1)) / np.log(1 / 6) if uneven else u
    first, last = 1.5 * np.pi, 4.5 * np.pi
    angle = np.sqrt(first**2 + u * (last**2 - first**2))
    length = (angle * np.sqrt(1 + angle**2) + np.arcsinh(angle)) / 2
    height = 60 * generator.random(n)
    points = np.column_stack([angle * np.cos(angle), height, angle * np.sin(angle)])
    return points + noise * generator.standard_normal(points.shape), np.column_stack([length, height])


def s_curve(noise: float, generator: Generator, n: int = 800) -> tuple[Array, NDArray[np.generic]]:
    """An S of about 9.4 × 6, uniform in its area; its two arc lengths."""
    angle = 3 * np.pi * (generator.random(n) - 0.5)
    height = 6 * generator.random(n)
    points = np.column_stack([np.sin(angle), height, np.sign(angle) * (np.cos(angle) - 1)])
    return points + noise * generator.standard_normal(points.shape), np.column_stack([angle, height])


def sources(folder: Path, quick: bool) -> dict[str, Source]:
    def of(x: NDArray[np.floating], truth: NDArray[np.generic], draws: int = 10, share: float = 0.8) -> Source:
        return Source(partial(part, x, truth, share), 3 if quick else draws, share)

    def new(draw: Callable[[Generator], tuple[Array, NDArray[np.generic]]]) -> Source:
        return Source(draw, 3 if quick else 10)

    iris, wine, cancer, digits = load_iris(), load_wine(), load_breast_cancer(), load_digits()
    radar = np.loadtxt(locate("ionosphere.data", folder), delimiter=",", usecols=34, dtype=str)
    found = {
        "iris": of(standardised(iris.data), iris.target),
        "wine": of(standardised(wine.data), wine.target),
        "breast cancer": of(standardised(cancer.data), cancer.target),
        "ionosphere": of(ionosphere(folder), np.unique(radar, return_inverse=True)[1]),
    }
    if not quick:
        words, (images, classes) = brown_words(600, folder), mnist_test(folder)
        roots = np.sqrt(words.counts / words.frequency[:, None])
        found["words"] = of(roots, np.unique(words.classes, return_inverse=True)[1])
        found["digits"] = of(digits.data, digits.target, share=0.6)
        found["MNIST"] = of(images.numpy(), classes.numpy(), 4, 0.3)
    return found | {
        "blobs 2-D": new(partial(blobs, 2)),
        "blobs 10-D": new(partial(blobs, 10)),
        "swiss roll": new(partial(swiss_roll, 0.0, False)),
        "swiss roll, uneven": new(partial(swiss_roll, 0.0, True)),
        "swiss roll, noise": new(partial(swiss_roll, 1.0, False)),
        "S-curve, noise": new(partial(s_curve, 0.2)),
    }


# --------------------------------------------------------------------------------------------------------- quality


def right_votes(y: Array, labels: NDArray[np.generic], generator: Generator) -> Array:
    """How often the 5 nearest neighbours of each point in other folds vote for its label, ``(N,)`` in [0, 1].

    Accuracy of the 5-nearest-neighbour classifier in stratified 10-fold cross-validation, repeated.
    """
    n, numbers = len(y), np.unique(labels, return_inverse=True)[1]
    near = cKDTree(y).query(y, k=NEAR)[1]
    right = np.zeros(n)
    for _ in range(REPEATS):
        fold = np.empty(n, dtype=int)
        order = generator.permutation(n)
        fold[order[np.argsort(numbers[order], kind="stable")]] = np.arange(n) % FOLDS
        elsewhere = fold[near] != fold[:, None]  # so that the point itself has no vote
        first = np.argsort(~elsewhere, axis=1, kind="stable")[:, :VOTERS]
        votes = np.eye(numbers.max() + 1, dtype=int)[numbers[np.take_along_axis(near, first, 1)]].sum(1)
        right += votes.argmax(1) == numbers
    return right / REPEATS


def explained(y: Array, coordinates: Array) -> float:
    """Mean R² of the coordinates by a linear map of the embedding."""
    columns = np.column_stack([np.ones(len(y)), y * len(y)])
    residual = coordinates - columns @ np.linalg.lstsq(columns, coordinates, rcond=None)[0]
    return float(1 - (residual.var(0) / coordinates.var(0)).mean())


def kept(coordinates: Array, y: Array) -> float:
    """Trustworthiness of ``y`` with the 10 nearest on the manifold as the truth (Venna & Kaski 2001).

    Continuity is that of the two in exchange.
    """
    n = len(y)
    near = cKDTree(y).query(y, k=KEPT + 1)[1][:, 1:]
    distance = cdist(coordinates, coordinates)
    reach = np.take_along_axis(distance, near, 1)
    rank = (distance[:, None, :] < reach[:, :, None]).sum(2)  # the point itself counts, so that the nearest has 1
    return float(1 - 2 / (n * KEPT * (2 * n - 3 * KEPT - 1)) * np.maximum(rank - KEPT, 0).sum())


def quality(y: Array, truth: NDArray[np.generic], seed: int, neighbourhoods: bool) -> list[float]:
    """The score with 2 and with 10 columns; of a manifold also trustworthiness and continuity of 2 columns, or NaN."""
    if truth.ndim == 1:
        return [float(right_votes(y[:, :d], truth, np.random.default_rng(seed)).mean()) for d in DIMENSIONS]
    coordinates = truth.astype(float)
    pairs = ((coordinates, y[:, :2]), (y[:, :2], coordinates))
    of_pairs = [kept(*pair) if neighbourhoods else np.nan for pair in pairs]
    return [*(explained(y[:, :d], coordinates) for d in DIMENSIONS), *of_pairs]


def pieces(x: NDArray[np.floating], rule: str, k: int) -> int:
    """Number of components of the graph."""
    graph = KNN(k, symmetrize=rule)(torch.from_numpy(x))  # type: ignore[arg-type]
    return len(graph.connected_components().unique())


class Measured(NamedTuple):
    """``scores`` of a data set in hundredths, and ``components`` of its graphs by rule and k, one for each draw."""

    source: Source
    shape: tuple[int, int, int]
    scores: Scores
    components: dict[tuple[str, int], list[int]]


def measure(source: Source, settings: Sequence[Setting]) -> Measured:
    rows: dict[Setting, list[list[float]]] = {setting: [] for setting in settings}
    counts: dict[tuple[str, int], list[int]] = {key: [] for key in itertools.product(("union", "mutual"), NEIGHBORS)}
    shape = (0, 0, 0)
    for seed in range(source.draws):
        x, truth = source.draw(np.random.default_rng(seed))
        shape = (*x.shape, len(np.unique(truth)) if truth.ndim == 1 else 0)
        for setting in settings:
            rows[setting].append(quality(setting.embed(x, max(DIMENSIONS)), truth, seed, setting in SHOWN))
        for key, found in counts.items():
            found.append(pieces(x, *key))
    return Measured(source, shape, {setting: 100 * np.array(of_draws) for setting, of_draws in rows.items()}, counts)


# ------------------------------------------------------------------------------------------------------ comparisons


class Contrast(NamedTuple):
    """The mean score of ``ours`` minus that of ``theirs``, pair by pair."""

    name: str
    ours: list[Setting]
    theirs: list[Setting]

    def values(self, measured: Measured, measure: int) -> Array:
        """One difference for each draw."""
        of = measured.scores
        pairs = zip(self.ours, self.theirs, strict=True)
        return np.asarray(np.mean([of[a][:, measure] - of[b][:, measure] for a, b in pairs], 0))


def against(name: str, of_grid: list[Setting], **changed: Any) -> Contrast:
    """A contrast of settings with the same ones but for what is ``changed``."""
    return Contrast(name, of_grid, [setting._replace(**changed) for setting in of_grid])


def main_effects() -> list[Contrast]:
    """Each choice against the default before the study, averaged over all other choices of the grid."""
    rules = [against("mean − union", [s for s in GRID if s.rule == "mean"], rule="union")]
    weightings = [
        against(f"{name} − heat", [s for s in GRID if s.weighting == name], weighting="heat")
        for name in list(WEIGHTINGS)[1:]
    ]
    counts = [against(f"k = {k} − 10", [s for s in GRID if s.k == k], k=10) for k in NEIGHBORS if k != 10]
    return rules + weightings + counts


def single(settings: Sequence[Setting], base: Setting) -> list[Contrast]:
    """Each setting against one."""
    return [Contrast(str(s), [s], [base]) for s in settings if s != base]


def half_width(values: Array, spread: float) -> float:
    """Half of the 95 % interval of a mean by Student's t; ``spread`` as of `Source`."""
    return float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) * spread**0.5)


def plus_minus(values: Array, spread: float) -> str:
    """Mean ± half of its interval, in bold where that leaves out zero."""
    mean, half = float(values.mean()), half_width(values, spread)
    text = f"{mean:+.1f} ± {half:.1f}"
    return f"**{text}**" if abs(mean) > half else text


def show(record: Record, title: str, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title, dict.fromkeys(heading, ""))
    for row in rows:
        table.add(*row)
    record.show(table)


def show_contrasts(
    record: Record, title: str, found: dict[str, Measured], contrasts: list[Contrast], dimension: int
) -> None:
    """A row for each contrast: its difference on each data set, and over data sets."""
    column = DIMENSIONS.index(dimension)
    labelled = np.array([measured.shape[2] > 0 for measured in found.values()])
    rows = []
    for contrast in contrasts:
        values = [contrast.values(measured, column) for measured in found.values()]
        cells = [plus_minus(v, m.source.spread) for v, m in zip(values, found.values(), strict=True)]
        means = np.array([v.mean() for v in values])
        others = [np.delete(means, i).mean() for i in range(len(means))]
        over = [plus_minus(group, 1 / len(group)) for group in (means[labelled], means[~labelled], means)]
        won = f"{(means > 0.05).sum()} : {(means < -0.05).sum()}"
        rows.append([contrast.name, *over, f"{min(others):+.1f} to {max(others):+.1f}", won, *cells])
    heading = ["", "labelled sets", "manifolds", "all sets", "all, one left out", "better : worse", *found]
    show(record, f"{title}, {dimension} columns", heading, rows)


def ranks(found: dict[str, Measured]) -> Array:
    """Rank of each setting of the grid by its mean score, 1 for the best, ``(sets, settings)``, of both dimensions."""
    both = [
        [rankdata([-m.scores[s][:, column].mean() for s in GRID]) for m in found.values()]
        for column in range(len(DIMENSIONS))
    ]
    return np.asarray(np.mean(both, 0))


def show_ranks(record: Record, found: dict[str, Measured], count: int = 12) -> list[Setting]:
    """The best settings of the grid by mean rank, and what is best with each data set left out. Returns the best."""
    table = ranks(found)
    mean = table.mean(0)
    order = [int(i) for i in np.argsort(mean)]
    labelled = np.array([measured.shape[2] > 0 for measured in found.values()])
    place = order.index(GRID.index(BEFORE)) + 1
    rows = [
        [
            str(number),
            str(GRID[i]),
            *(f"{part.mean():.1f}" for part in (table[:, i], table[labelled, i], table[~labelled, i])),
        ]
        for number, i in enumerate(order, 1)
        if number <= count or number == place or number == len(order)
    ]
    title = f"Mean rank among the {len(GRID)} settings of the grid, of both dimensions"
    show(record, title, ["", "setting", "all sets", "labelled sets", "manifolds"], rows)
    rows = []
    for i, (name, measured) in enumerate(found.items()):
        best = GRID[int(np.delete(table, i, 0).mean(0).argmin())]
        contrast = Contrast("", [best], [BEFORE])
        gains = [plus_minus(contrast.values(measured, c), measured.source.spread) for c in range(len(DIMENSIONS))]
        rows.append([name, str(best), *gains])
    heading = ["left out", "best on the others by mean rank", *(f"its gain there, {d} columns" for d in DIMENSIONS)]
    show(record, "The choice without a set, judged on it, against the default before the study", heading, rows)
    return [GRID[i] for i in order]


def show_scores(record: Record, found: dict[str, Measured]) -> None:
    """Scores at k = 10 and of the peer; of manifolds trustworthiness and continuity too."""
    at_ten = [s for s in SHOWN if s.k == 10 or s.weighting == PEER]
    for column, dimension in enumerate(DIMENSIONS):
        rows = [[str(s), *(f"{m.scores[s][:, column].mean():.1f}" for m in found.values())] for s in at_ten]
        show(record, f"Scores, {dimension} columns", ["", *found], rows)
    manifolds = {name: m for name, m in found.items() if not m.shape[2]}
    rows = [
        [str(s), *(f"{m.scores[s][:, 2].mean():.1f} / {m.scores[s][:, 3].mean():.1f}" for m in manifolds.values())]
        for s in SHOWN
    ]
    show(record, "Trustworthiness / continuity of 2 columns against the manifold", ["", *manifolds], rows)


def show_components(record: Record, found: dict[str, Measured]) -> None:
    """Share of draws whose graph falls into parts, and the mean number of components."""
    keys = list(itertools.product(("union", "mutual"), NEIGHBORS))
    rows = []
    for name, measured in found.items():
        counts = [np.array(measured.components[key]) for key in keys]
        rows.append([name, *("–" if c.max() == 1 else f"{(c > 1).mean():.0%}, {c.mean():.1f}" for c in counts)])
    heading = ["", *(f"{'union, mean' if rule == 'union' else rule}, k = {k}" for rule, k in keys)]
    show(record, "Draws with a graph of several components, and their mean number", heading, rows)


def show_whole(record: Record, folder: Path, settings: Sequence[Setting]) -> None:
    """The whole MNIST test set; intervals of paired differences over its points."""
    images, classes = mnist_test(folder)
    right: dict[Setting, list[Array]] = {}
    for setting in settings:
        y = setting.embed(images.numpy(), max(DIMENSIONS))
        right[setting] = [100 * right_votes(y[:, :d], classes.numpy(), np.random.default_rng(0)) for d in DIMENSIONS]
    rows = []
    for setting, of in right.items():
        cells = []
        for ours, theirs in zip(of, right[BEFORE], strict=True):
            difference = "" if setting == BEFORE else plus_minus(ours - theirs, 1 / len(ours))
            cells += [f"{ours.mean():.2f}", difference]
        rows.append([str(setting), *cells])
    heading = [text for d in DIMENSIONS for text in (f"accuracy, {d} columns", "difference")]
    show(record, f"MNIST test set, N = {len(images)}", ["", *heading], rows)


def run(record: Record, options: argparse.Namespace) -> None:
    """Measure and show."""
    if (folder := options.data or os.environ.get("TORCH_LAPEIG_DATA")) is None:
        raise SystemExit("error: name the folder of the data files by --data or TORCH_LAPEIG_DATA")
    found: dict[str, Measured] = {}
    for name, source in sources(Path(folder), options.quick).items():
        start = time.perf_counter()
        found[name] = measure(source, [*GRID, *REFERENCE])
        n, d, classes = found[name].shape
        truth = f"{classes} classes" if classes else "coordinates"
        seconds = time.perf_counter() - start
        record.show(f"{name}: N = {n}, D = {d}, {truth}, {source.draws} draws, {seconds:.0f} s")
    show_components(record, found)
    show_scores(record, found)
    for dimension in DIMENSIONS:
        show_contrasts(record, "Main effects over the grid", found, main_effects(), dimension)
        show_contrasts(record, f"Against {BEFORE}", found, single(SHOWN, BEFORE), dimension)
        show_contrasts(
            record, f"Against {MEAN}", found, single([s for s in SHOWN if s.rule == "mean"], MEAN), dimension
        )
    best = show_ranks(record, found)
    if not options.quick:
        means = [Setting(name, "mean", 10) for name in WEIGHTINGS]
        counts = [Setting("heat", "mean", k) for k in (7, 15)]
        show_whole(
            record, Path(folder), list(dict.fromkeys([BEFORE, *means, *counts, *best[:2], Setting(PEER, "", 10)]))
        )
