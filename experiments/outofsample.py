"""New points against other training points (Bengio et al., NIPS 2003, section 5 and Figure 1), for five methods."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform
from sklearn.datasets import make_swiss_roll
from sklearn.decomposition import PCA
from sklearn.neighbors import kneighbors_graph
from torch import Tensor

from experiments import data
from experiments.metrics import mean_and_interval
from experiments.runs import Refusal, Run, check_least, table
from torch_lapeig import KNN, LLE, MDS, Isomap, LaplacianEigenmaps, Precomputed

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Curves = dict[str, dict[str, dict[str, Any]]]  # by data set and method
Module = MDS | LaplacianEigenmaps | Isomap | LLE
SetName = Literal["swiss_roll", "ionosphere", "frey_faces", "isomap_faces"]

COMPONENTS = 2
DISTANCES = ("variability", "error", "error_as_written", "variability_of_all")
DRAWS = 100  # of a split, until all its training sets have a connected graph

SETS: dict[str, tuple[str, Callable[[int, int, Path | None], Array]]] = {
    "swiss_roll": ("swiss roll", lambda points, seed, _: make_swiss_roll(points, random_state=seed)[0]),
    "ionosphere": ("ionosphere", lambda points, seed, folder: data.ionosphere(folder)),
    "frey_faces": ("Frey faces", lambda points, seed, folder: data.frey_faces(folder)),
    "isomap_faces": ("Isomap faces, binarised", lambda points, seed, folder: data.isomap_faces(folder)),
}
METHODS: dict[str, tuple[str, Callable[[int], Module]]] = {
    "mds": ("MDS", lambda k: MDS(COMPONENTS, metric=Precomputed("distance"))),
    "gaussian": ("eigenmaps, complete Gaussian", lambda k: LaplacianEigenmaps(COMPONENTS, Precomputed("affinity"))),
    "eigenmaps": ("eigenmaps, kNN graph", lambda k: LaplacianEigenmaps(COMPONENTS, KNN(k, "union"))),
    "isomap": ("Isomap", lambda k: Isomap(COMPONENTS, KNN(k, "union"))),
    "lle": ("LLE", lambda k: LLE(COMPONENTS, KNN(k))),
}


class Sample(NamedTuple):
    """A data set D as it is used: distinct points.

    Attributes:
        points: ``(n, D)``. distances: between them, ``(n, n)``.
        neighbors: k of the neighbourhood graphs. copies: number of points left out because they equal another one.
        sigma: standard deviation of the complete Gaussian kernel.
    """

    points: Array
    distances: Array
    neighbors: int
    copies: int
    sigma: float


class Split(NamedTuple):
    """D in three parts, as indices, with the points of F to be left out in turn; redrawn: draws that were refused."""

    fixed: Indices
    halves: tuple[Indices, Indices]
    left_out: Indices
    redrawn: int

    def train(self, half: int, without: int | None = None) -> Indices:
        """Return F ∪ R1 (``half`` 0) or F ∪ R2 (1), ascending, perhaps without one point."""
        chosen = np.union1d(self.fixed, self.halves[half])
        return chosen if without is None else chosen[chosen != without]


def outofsample(
    out: Path = Path("runs/outofsample"),
    sets: tuple[SetName, ...] = ("swiss_roll", "ionosphere", "isomap_faces"),
    points: int = 300,
    neighbors: int = 10,
    sigma: float = 0.1,
    fractions: tuple[float, ...] = (0.01, 0.02, 0.04, 0.16),
    repeats: int = 30,
    left_out: int = 2,
    seed: int = 0,
    data_dir: Path | None = None,
    jobs: int | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Out-of-sample error of MDS, eigenmaps, Isomap and LLE against what other training points change.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        sets: which of swiss_roll, ionosphere, frey_faces, isomap_faces.
        points: of each data set at most; drawn at random where it has more.
        neighbors: k of the neighbourhood graphs; more where a data set's graph is not connected.
        sigma: standard deviation of the complete Gaussian kernel, over the largest distance in the data.
        fractions: shares of the training set that are substituted.
        repeats: random splits of each fraction.
        left_out: points left out in turn in each of them.
        seed: of all draws.
        data_dir: folder of the files; default: what TORCH_LAPEIG_DATA names.
        jobs: processes that work on the splits; default: one for each core.
        quick: two splits of at most 100 points of the swiss roll, two points left out, three fractions.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        points, repeats, left_out, fractions, jobs = min(points, 100), 2, 2, (0.04, 0.1, 0.25), 1
        sets = ("swiss_roll",)
    fractions = tuple(sorted(set(fractions)))
    check_least("repeats", repeats, 2)
    if not fractions or not all(0 < fraction < 1 for fraction in fractions):
        raise Refusal(f"--fractions must be in (0, 1), at least one, got {list(fractions)}")
    run = Run(out, locals())
    samples: dict[str, Sample] = {name: sample(name, points, neighbors, seed, data_dir, sigma) for name in sets}
    for name, fraction in itertools.product(sets, fractions):
        _check_split(name, samples[name], fraction, left_out)

    def compare(name: str, fraction: float, repeat: int) -> dict[str, Any]:
        generator = np.random.default_rng([seed, list(SETS).index(name), round(1e6 * fraction), repeat])
        split = draw_split(samples[name], fraction, left_out, generator)
        return {"redrawn": split.redrawn, **{method: compared(samples[name], method, split) for method in METHODS}}

    cells = run.cells("splits", compare, itertools.product(sets, fractions, range(repeats)), jobs)
    by_set = {name: [[cells[name, f, r] for r in range(repeats)] for f in fractions] for name in sets}
    curves: Curves = {
        name: {m: curve([[cell[m] for cell in row] for row in rows], fractions) for m in METHODS}
        for name, rows in by_set.items()
    }
    about: dict[str, Any] = {name: about_sample(samples[name], rows) for name, rows in by_set.items()}
    for name in sets:
        run.figure(name, figure(SETS[name][0], curves[name], fractions), dpi=90)
    tables = summary(curves, fractions, ""), summary(curves, fractions, "median_"), kernel_table(about)
    run.finish({"sets": about, "curves": curves}, *tables)


def sample(name: str, points: int, neighbors: int, seed: int, data_dir: Path | None, sigma: float = 0.1) -> Sample:
    """Return at most ``points`` distinct points of a data set, and the least k ≥ ``neighbors`` that connects them."""
    everything = SETS[name][1](points, seed, data_dir)
    flat = everything.reshape(len(everything), -1)
    first = np.sort(np.unique(flat, axis=0, return_index=True)[1])
    chosen = first
    if len(first) > points:
        chosen = np.sort(np.random.default_rng(seed).choice(first, points, replace=False))
    x = flat[chosen]
    if x.shape[1] > len(x):  # all principal components: the same distances, in fewer numbers
        x = PCA(svd_solver="full").fit_transform(x)
    distances = squareform(pdist(x))
    k = next(k for k in itertools.count(neighbors) if connected(distances, k))
    return Sample(x, distances, k, len(flat) - len(first), sigma * distances.max())


def about_sample(sample: Sample, cells: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the metrics of a data set, given the results of its splits by fraction and repeat."""
    largest = sample.distances.max()
    sigmas = {"as_given": 0.01, "of_largest": 0.01 * largest, "used": sample.sigma}
    return {
        "largest_distance": float(largest),
        "sigma": {name: {"sigma": float(value), **parts(sample.distances, value)} for name, value in sigmas.items()},
        "points": len(sample.points),
        "copies_dropped": sample.copies,
        "neighbors": sample.neighbors,
        "splits_redrawn": sum(cell["redrawn"] for row in cells for cell in row),
    }


def connected(distances: Array, k: int) -> bool:
    """Return whether the graph of k nearest neighbours, either way, is."""
    graph = kneighbors_graph(distances, min(k, len(distances) - 1), metric="precomputed")
    return bool(connected_components(graph, directed=False, return_labels=False) == 1)


def parts(distances: Array, sigma: float) -> dict[str, float]:
    """Return the components of the complete Gaussian graph in float64, and the share of isolated points."""
    affinity = gaussian(distances, sigma)
    np.fill_diagonal(affinity, 0)
    components = connected_components(affinity > 0, directed=False, return_labels=False)
    return {"components": int(components), "alone": float((affinity.max(1) == 0).mean())}


def gaussian(distances: Array, sigma: float) -> Array:
    """Return exp(−d²/2σ²)."""
    return np.asarray(np.exp(-(distances**2) / (2 * sigma**2)))


def kernel_table(about: dict[str, Any]) -> Table:
    """Return the loss of the complete Gaussian graph in float64: the paper's σ in two units, and ours."""
    rows = [
        [
            SETS[name][0],
            f"{of_set['largest_distance']:.1f}",
            *(f"{kernel['components']} ({kernel['alone']:.0%} alone)" for kernel in of_set["sigma"].values()),
        ]
        for name, of_set in about.items()
    ]
    columns = ["data set", "largest distance", "σ = 0.01", "σ = 0.01 of the largest distance", "σ used"]
    return table("components of the complete graph", columns, rows)


def substituted(points: int, fraction: float) -> int:
    """Return |R1| = |R2| such that it is a ``fraction`` of |F ∪ R1|."""
    return round(points * fraction / (1 + fraction))


def _check_split(name: str, sample: Sample, fraction: float, left_out: int) -> None:
    """Raise `Refusal` unless there are enough points for such a split."""
    n = len(sample.points)
    half = substituted(n, fraction)
    fixed = n - 2 * half
    if half < 1 or fixed < max(left_out, 10) or fixed + half < sample.neighbors + 3:
        raise Refusal(
            f"--fractions {fraction} of the {n} points of {name} leaves {fixed} fixed points and {half} substituted "
            f"ones, too few for {sample.neighbors} neighbours and {left_out} points to leave out; use fractions "
            "nearer the middle of (0, 1) or more points"
        )


def draw_split(sample: Sample, fraction: float, left_out: int, generator: np.random.Generator) -> Split:
    """Return a random split whose graphs are connected, as all methods but MDS need; drawn again if not.

    Raises:
        Refusal: none of `DRAWS` draws would do.
    """
    n = len(sample.points)
    half = substituted(n, fraction)
    for redrawn in range(DRAWS):
        order = generator.permutation(n)
        parts = order[2 * half :], (order[:half], order[half : 2 * half]), order[2 * half : 2 * half + left_out]
        split = Split(np.sort(parts[0]), parts[1], parts[2], redrawn)
        trains = [split.train(0), split.train(1), *(split.train(0, without) for without in split.left_out)]
        if all(connected(sample.distances[np.ix_(train, train)], sample.neighbors) for train in trains):
            return split
    raise Refusal(
        f"{DRAWS} random splits with a fraction of {fraction} had a graph of {sample.neighbors} neighbours that falls "
        "apart; use more --neighbors or more --points"
    )


def compared(sample: Sample, method: str, split: Split) -> dict[str, Any]:
    """Return distances of each left-out point, over the RMS distance of F from its mean in the embedding of F ∪ R1.

    Returns:
        ``variability``: between its places in the embeddings of F ∪ R1 and F ∪ R2; ``error``: between its place in the
        former and where the formula puts it given the rest of F ∪ R1; ``variability_of_all``: the mean over F. Each
        time the other embedding is first mapped to that of F ∪ R1, by the affine map that fits best on F (less the
        point left out). ``error_as_written``: the paper aligns the two embeddings of the variability only, so here the
        signs of the columns, which are arbitrary, are all that is made equal.
    """
    target, _ = embed(sample, method, split.train(0), split.fixed, [])
    other, _ = embed(sample, method, split.train(1), split.fixed, [])
    unit = np.sqrt(np.mean(np.sum((target - target.mean(0)) ** 2, 1)))
    moved = np.linalg.norm(affine(other, target)(other) - target, axis=1) / unit
    errors: dict[str, list[float]] = {"error": [], "error_as_written": []}
    for point in split.left_out:
        rest = split.fixed != point
        without, new = embed(sample, method, split.train(0, point), split.fixed[rest], [point])
        signs = np.where((without * target[rest]).sum(0) < 0, -1, 1)
        for key, place in (("error", affine(without, target[rest])(new)), ("error_as_written", signs * new)):
            errors[key].append(float(np.linalg.norm(place - target[~rest]) / unit))
    places = np.searchsorted(split.fixed, split.left_out)
    return {"variability": moved[places].tolist(), **errors, "variability_of_all": moved.mean()}


def embed(sample: Sample, method: str, train: Indices, shown: Indices, new: list[int]) -> tuple[Array, Array]:
    """Return the embedding of ``train``, its rows of ``shown``, and that of new points by the formula."""

    def given(which: Any) -> Tensor:
        if method not in ("mds", "gaussian"):
            return torch.from_numpy(sample.points[which])
        distances = sample.distances[np.ix_(which, train)]
        return torch.from_numpy(distances if method == "mds" else gaussian(distances, sample.sigma))

    module = METHODS[method][1](sample.neighbors).fit(given(train))
    rows: Array = module.embedding_[np.searchsorted(train, shown)].numpy()
    return rows, module.transform(given(new)).numpy() if new else rows[:0]


def affine(source: Array, target: Array) -> Callable[[Array], Array]:
    """Return the affine map that takes points ``source`` ``(m, d)`` to ``target`` by least squares."""

    def padded(y: Array) -> Array:
        return np.column_stack([y, np.ones(len(y))])

    matrix = np.linalg.lstsq(padded(source), target, rcond=None)[0]
    return lambda y: padded(y) @ matrix


def curve(cells: list[list[dict[str, Any]]], fractions: tuple[float, ...]) -> dict[str, Any]:
    """Return the curve of one method and data set, from the cells of each fraction.

    Returns:
        By fraction: ``difference``, the mean of variability minus error, with the ``half_width`` of its 95 % interval
        (Student's t of the means of the repeats, whose points share training sets); means and medians of the
        distances themselves. ``equal_at``: the fraction from which on the difference is positive, interpolated, 0 if
        it always is; ``comparable_from`` and ``clear_from``: the first fractions from which on no interval lies below
        0, and all lie above; None for never.
    """

    def paired(error: str) -> Array:
        return np.array([[np.subtract(c["variability"], c[error]).mean() for c in row] for row in cells])

    by_fraction = [mean_and_interval(values) for values in paired("error")]
    difference, half_width = (np.array([found[key] for found in by_fraction]) for key in ("mean", "interval"))
    means = {key: [float(np.mean([c[key] for c in row])) for row in cells] for key in DISTANCES}
    medians = {f"median_{key}": [float(np.median([c[key] for c in row])) for row in cells] for key in DISTANCES[:3]}
    of_medians = np.subtract(medians["median_variability"], medians["median_error"])
    return {
        "difference": difference.tolist(),
        "half_width": half_width.tolist(),
        "by_fraction": {f"{fraction:g}": found for fraction, found in zip(fractions, by_fraction, strict=True)},
        "difference_as_written": paired("error_as_written").mean(1).tolist(),
        "median_difference": of_medians.tolist(),
        **means,
        **medians,
        "equal_at": crossing(fractions, difference),
        "median_equal_at": crossing(fractions, of_medians),
        "comparable_from": _from(fractions, difference + half_width >= 0),
        "clear_from": _from(fractions, difference - half_width > 0),
    }


def crossing(fractions: tuple[float, ...], difference: Array) -> float | None:
    """Return where a broken line becomes positive for good; 0 if always, None if not at the end."""
    negative = np.flatnonzero(difference < 0)
    if not len(negative):
        return 0.0
    last = negative[-1]
    if last == len(fractions) - 1:
        return None
    return float(np.interp(0, difference[last : last + 2], fractions[last : last + 2]))


def _from(fractions: tuple[float, ...], holds: NDArray[np.bool_]) -> float | None:
    """Return the first of the fractions from which on all hold."""
    failing = np.flatnonzero(~holds)
    first = failing[-1] + 1 if len(failing) else 0
    return fractions[first] if first < len(fractions) else None


def summary(curves: Curves, fractions: tuple[float, ...], kind: Literal["", "median_"]) -> Table:
    """Return a row for each curve: errors, variability at each fraction, and their crossing; means or medians."""

    def percent(value: float | None, never: str) -> str:
        return never if value is None else f"{100 * value:.2g}"

    largest = f"> {100 * fractions[-1]:g}"
    rows = [
        [
            SETS[name][0],
            METHODS[method][0],
            *(percent(float(np.mean(one[f"{kind}{key}"])), "") for key in ("error", "error_as_written")),
            *(percent(value, "") for value in one[f"{kind}variability"]),
            f"< {100 * fractions[0]:g}" if one[f"{kind}equal_at"] == 0 else percent(one[f"{kind}equal_at"], largest),
            *([] if kind else [percent(one["clear_from"], largest)]),
        ]
        for name, of_set in curves.items()
        for method, one in of_set.items()
    ]
    shares = [f"{100 * f:g} %" for f in fractions]
    last = [] if kind else ["clear from"]
    columns = ["data set", "method", "error", "error as written", *shares, "equal at", *last]
    return table("medians" if kind else "means", columns, rows)


def figure(title: str, curves: dict[str, dict[str, Any]], fractions: tuple[float, ...]) -> Figure:
    """Return variability minus out-of-sample error against the share substituted, one panel for each method."""
    figure = Figure(figsize=(12, 6.2), layout="constrained")
    figure.suptitle(title, fontsize=12)
    at = 100 * np.array(fractions)
    panels = figure.subplots(2, 3, sharex=True)
    for panel, (method, one) in zip(panels.flat, curves.items(), strict=False):
        difference, half_width, written, median = (
            100 * np.array(one[key])
            for key in ("difference", "half_width", "difference_as_written", "median_difference")
        )
        panel.axhline(0, color="0.6", lw=0.8)
        panel.errorbar(at, difference, half_width, fmt="o-", ms=4, lw=1.2, capsize=3, label="mean, 95 % interval")
        panel.plot(at, written, "s--", ms=3, lw=1, color="C1", label="mean, error not aligned (the paper)")
        panel.plot(at, median, "^:", ms=3, lw=1, color="C2", label="median variability − median error")
        panel.set_title(METHODS[method][0], fontsize=11, loc="left")
        panel.spines[["top", "right"]].set_visible(False)
    panels.flat[-1].axis("off")
    panels.flat[-1].legend(*panels.flat[0].get_legend_handles_labels(), frameon=False, loc="center")
    figure.supxlabel("share of the training set substituted, %", fontsize=10)
    figure.supylabel("variability − out-of-sample error, % of the RMS radius", fontsize=10)
    return figure
