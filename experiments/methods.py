"""Methods side by side: maps of five data sets by the library's methods and by those that people would take instead."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from experiments import data
from experiments.faces import SCENE
from experiments.metrics import NEIGHBORS, Numbers, between, bootstrap, neighbour_agreement, ranks, trustworthiness
from experiments.plots import COLOURS
from experiments.runs import Run, check_least, check_names, pick_device, table
from experiments.speech import phone_numbers
from experiments.words import vectors_of
from torch_lapeig import (
    KNN,
    LLE,
    MDS,
    DensityCorrected,
    HeatKernel,
    ImprovedWeights,
    Isomap,
    LaplacianEigenmaps,
    SelfTuning,
    SimpleWeights,
)

COMPONENTS = 2
WEIGHTINGS: dict[str, tuple[str, Callable[[], Any]]] = {
    "simple": ("eigenmaps, simple", SimpleWeights),
    "heat": ("eigenmaps, heat", HeatKernel),
    "self_tuning": ("eigenmaps, self-tuning", SelfTuning),
    "density_corrected": ("eigenmaps, density-corrected", DensityCorrected),
    "improved": ("eigenmaps, Improved LE", ImprovedWeights),
}
METHODS = {
    "pca": "PCA",
    "mds": "MDS",
    "isomap": "Isomap",
    "lle": "LLE",
    **{name: label for name, (label, _) in WEIGHTINGS.items()},
    "tsne": "t-SNE",
    "umap": "UMAP",
}
NAMES = ["words", "speech", "faces", "digits", "mnist"]
MEASURES = ("accuracy", "trustworthiness", "seconds")
Loaded = tuple[Numbers, Any, NDArray[np.int64], int]  # points, classes, blocks, apart


class Points(NamedTuple):
    """A data set.

    Attributes:
        x: ``(N, D)``, float64.
        classes: of each point ``(N,)``; None where there are none.
        blocks: points that are not independent have one number ``(N,)``.
        apart: points whose numbers differ by at most this much are no neighbours: frames that overlap.
        neighbors: k of the neighbourhood graphs.
    """

    x: Numbers
    classes: NDArray[Any] | None
    blocks: NDArray[np.int64]
    apart: int
    neighbors: int


def methods(
    out: Path = Path("runs/methods"),
    sets: list[str] = NAMES,
    points: int = 1500,
    neighbors: int = 14,
    device: str = "auto",
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Methods side by side: eigenmaps of each weighting, PCA, MDS, Isomap, LLE, t-SNE and UMAP on five data sets.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        sets: which of words, speech, faces, digits, mnist.
        points: of each data set at most; drawn at random where it has more.
        neighbors: k of the neighbourhood graphs; more where a data set's graph is not connected, as Isomap needs it.
        device: "auto" (CUDA where there is one), "cpu" or "cuda", for the library's methods.
        data_dir: folder of the files; default: that of the environment variable TORCH_LAPEIG_DATA.
        quick: 300 points of the digits.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        sets, points = ["digits"], 300
    check_names("sets", sets, NAMES)
    check_least("points", points, 50)
    run = Run(out, locals())
    place = pick_device(device)
    found = {name: load(name, points, neighbors, data_dir) for name in sets}
    names = [name for name in METHODS if name != "umap" or importlib.util.find_spec("umap")]

    def score(name: str, method: str) -> dict[str, Any]:
        start = time.perf_counter()
        y = embedding(found[name], method, place)
        seconds = time.perf_counter() - start
        return {**scores(found[name], y), "seconds": seconds, "map": y.round(6).tolist()}

    cells = run.cells("maps", score, [(name, method) for name in sets for method in names])
    drawn = {name: {method: np.array(cells[name, method].pop("map")) for method in names} for name in sets}
    metrics = {name: {method: cells[name, method] for method in names} for name in sets}
    about = {name: {"points": len(each.x), "neighbors": each.neighbors} for name, each in found.items()}
    run.figure("methods", figure(found, drawn), dpi=80)
    tables = [score_table(metrics, names, measure) for measure in MEASURES]
    run.finish({"sets": about, **metrics}, *tables)


def load(name: str, points: int, neighbors: int, data_dir: Path | None) -> Points:
    """Return at most ``points`` points of a data set, and the least k ≥ ``neighbors`` that connects them."""
    x, classes, block, apart = LOADERS[name](data_dir)
    chosen = np.arange(len(x))
    if len(x) > points:
        chosen = np.sort(np.random.default_rng(0).choice(len(x), points, replace=False))
    x = np.ascontiguousarray(x[chosen], float)
    given = torch.from_numpy(x)
    k = next(k for k in range(neighbors, len(x)) if KNN(k, "union")(given).connected_components().max() == 0)
    return Points(x, None if classes is None else np.array(classes)[chosen], block[chosen], apart, k)


def _words(folder: Path | None) -> Loaded:
    found = data.brown_words(300, folder)
    return vectors_of(found, "root"), found.classes, np.arange(300), 0


def _speech(folder: Path | None) -> Loaded:
    frames = data.speech_frames("speech/sentence", folder)
    return frames.spectra, frames.classes, phone_numbers(frames), 5  # frames of 30 ms every 5 ms


def _faces(folder: Path | None) -> Loaded:
    images = data.frey_faces(folder)
    return images.reshape(len(images), -1), None, np.arange(len(images)) // SCENE, 0


def _digits(folder: Path | None) -> Loaded:
    bunch = load_digits()
    return bunch.data / 16, bunch.target, np.arange(len(bunch.data)), 0


def _mnist(folder: Path | None) -> Loaded:
    pixels, labels = data.mnist_test(folder)
    return pixels.numpy(), labels.numpy(), np.arange(len(pixels)), 0


LOADERS: dict[str, Callable[[Path | None], Loaded]] = {
    "words": _words,
    "speech": _speech,
    "faces": _faces,
    "digits": _digits,
    "mnist": _mnist,
}


def embedding(points: Points, method: str, place: torch.device) -> Numbers:
    """Return the points in two dimensions."""
    if method in OTHERS:
        with warnings.catch_warnings():  # UMAP's imports warn of what is deprecated elsewhere
            warnings.simplefilter("ignore")
            return np.asarray(OTHERS[method]().fit_transform(points.x), float)
    rule = KNN(points.neighbors, "union")
    module: MDS | Isomap | LLE | LaplacianEigenmaps
    if method in WEIGHTINGS:
        problem: Any = "unnormalized" if method == "improved" else "random_walk"
        module = LaplacianEigenmaps(COMPONENTS, rule, WEIGHTINGS[method][1](), normalization=problem)
    elif method == "lle":
        module = LLE(COMPONENTS, KNN(points.neighbors))
    else:
        module = MDS(COMPONENTS) if method == "mds" else Isomap(COMPONENTS, rule)
    return np.asarray(module.fit(torch.from_numpy(points.x).to(place)).embedding_.cpu().numpy())


OTHERS: dict[str, Callable[[], Any]] = {
    "pca": lambda: PCA(COMPONENTS, random_state=0),
    "tsne": lambda: TSNE(COMPONENTS, random_state=0),
    "umap": lambda: import_module("umap").UMAP(n_components=COMPONENTS, random_state=0),
}


def scores(points: Points, y: Numbers) -> dict[str, Any]:
    """Return 5-NN accuracy of the classes, each point left out in turn, and trustworthiness, with intervals."""
    result = {"trustworthiness": bootstrap(trustworthiness(ranks(points.x), y), points.blocks)}
    if points.classes is not None:
        correct = neighbour_agreement(y, list(points.classes), NEIGHBORS, points.apart)["majority"]
        result["accuracy"] = bootstrap(correct, points.blocks)
    return result


def score_table(metrics: dict[str, Any], names: list[str], measure: str) -> Table:
    """Rows: methods; columns: the data sets that have such a score."""
    sets = [name for name in metrics if measure in metrics[name][names[0]]]

    def cell(found: Any) -> str:
        return f"{found:.1f}" if measure == "seconds" else between(found)

    rows = [[METHODS[method], *(cell(metrics[name][method][measure]) for name in sets)] for method in names]
    return table(measure, ["method", *sets], rows)


def figure(points: dict[str, Points], maps: dict[str, dict[str, Numbers]]) -> Figure:
    """Rows: data sets; columns: methods; coloured by class, or by the order of the film."""
    methods = list(next(iter(maps.values())))
    figure = Figure(figsize=(1.75 * len(methods), 1.75 * len(maps)))  # a constrained layout of so many takes seconds
    figure.subplots_adjust(0.02, 0.01, 0.995, 0.96, wspace=0.05, hspace=0.05)
    panels = figure.subplots(len(maps), len(methods), squeeze=False)
    for row, (name, by_method) in zip(panels, maps.items(), strict=True):
        classes, style = points[name].classes, {"s": 2, "lw": 0, "rasterized": True}
        for panel, y in zip(row, by_method.values(), strict=True):
            if classes is None:
                panel.scatter(*y.T, c=np.arange(len(y)), cmap="viridis", **style)
            else:
                numbers = np.unique(classes, return_inverse=True)[1]
                panel.scatter(*y.T, c=[COLOURS[i % len(COLOURS)] for i in numbers], **style)
            panel.set(xticks=[], yticks=[])
            panel.set_box_aspect(1)
            panel.spines[:].set_color("0.8")
        row[0].set_ylabel(name)
    for panel, method in zip(panels[0], methods, strict=True):
        panel.set_title(METHODS[method].replace("eigenmaps, ", "LE, "), fontsize=9)
    return figure
