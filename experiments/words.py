"""Words (Belkin & Niyogi, *Laplacian eigenmaps and spectral techniques*, 2001, Figures 2, 3): frequent words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from scipy.stats import rankdata
from sklearn.decomposition import PCA

from experiments.data import PARTS_OF_SPEECH, Words, brown_words
from experiments.metrics import Numbers, between, bootstrap, neighbour_agreement
from experiments.plots import COLOURS, map_with_zooms, spread_labels
from experiments.runs import Run, pick_device, table
from torch_lapeig import KNN, LaplacianEigenmaps, SimpleWeights

METHODS = {"laplacian_eigenmaps": "Laplacian eigenmaps", "pca": "PCA"}
SCALINGS = {"counts": "counts, as in the paper", "root": "square roots of relative counts"}
DIMENSIONS = (2, 3, 10)
SHOWN = {"verb": "verbs", "preposition": "prepositions", "modal or auxiliary": "modal and auxiliary verbs"}  # Figure 3
REGION = 14  # words of a zoom


def words(
    out: Path = Path("runs/words"),
    count: int = 300,
    scalings: list[Literal["counts", "root"]] = ["counts", "root"],  # noqa: B006 (never changed)
    neighbors: int = 14,
    agreement: int = 5,
    device: str = "auto",
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Words: the most frequent words of the Brown corpus, placed by their neighbours, gather by part of speech.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        count: number of words, the most frequent ones.
        scalings: of the vectors: counts of neighbours, as in the paper, or square roots of relative counts.
        neighbors: k of the neighbourhood graph, weights 1.
        agreement: nearest words in the map whose part of speech is compared.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        data_dir: folder of brown.zip; default: that of the environment variable TORCH_LAPEIG_DATA.
        quick: vectors of counts only.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        scalings = ["counts"]
    run = Run(out, locals())
    place = pick_device(device)
    found = brown_words(count, data_dir)

    def embed(scaling: str, method: str) -> Numbers:
        vectors = vectors_of(found, scaling)
        if method == "pca":
            y: Numbers = PCA(max(DIMENSIONS), random_state=0).fit_transform(vectors)
            return y
        module = LaplacianEigenmaps(max(DIMENSIONS), KNN(neighbors, "union"), SimpleWeights())
        return module.fit(torch.from_numpy(vectors).to(place)).embedding_.cpu().numpy()

    cells = run.cells(
        "scalings",
        lambda scaling: scores({method: embed(scaling, method) for method in METHODS}, found.classes, agreement),
        [(scaling,) for scaling in scalings],
    )
    shares = np.array(list(Counter(found.classes).values())) / count
    metrics: dict[str, Any] = {"chance": float((shares**2).sum()), "words": count, **cells}
    for scaling in scalings:
        drawing, metrics[scaling]["labels"] = figure(embed(scaling, "laplacian_eigenmaps"), found, SCALINGS[scaling])
        run.figure(f"words_{scaling}", drawing, dpi=110)
    run.finish(metrics, agreement_table(cells), class_table(cells, Counter(found.classes)))


def vectors_of(found: Words, scaling: str) -> Numbers:
    """Return vectors ``(n, 2n)``: counts of left and right neighbours, or roots of their share in a word's tokens."""
    return found.counts if scaling == "counts" else np.sqrt(found.counts / found.frequency[:, None])


def scores(maps: dict[str, Numbers], classes: list[str], agreement: int) -> dict[str, Any]:
    """Return by method and dimension the share of neighbours of a word's part of speech; differences; by class."""
    each = {
        (method, d): neighbour_agreement(y[:, :d], classes, agreement)["share"]
        for method, y in maps.items()
        for d in DIMENSIONS
    }
    eigenmaps, pca = METHODS

    def of_class(method: str, name: str) -> float:
        return float(each[method, 2][np.array(classes) == name].mean())

    return {
        **{method: {f"{d}-D": bootstrap(each[method, d]) for d in DIMENSIONS} for method in METHODS},
        "difference": {f"{d}-D": bootstrap(each[eigenmaps, d] - each[pca, d]) for d in DIMENSIONS},
        "classes": {name: {method: of_class(method, name) for method in METHODS} for name in sorted(set(classes))},
    }


def agreement_table(cells: dict[str, dict[str, Any]]) -> Table:
    """Rows: scalings and methods; columns: dimensions."""
    rows = [
        [SCALINGS[scaling], label, *(between(cell[key][f"{d}-D"], sign=sign) for d in DIMENSIONS)]
        for scaling, cell in cells.items()
        for key, label, sign in [*((*method, "") for method in METHODS.items()), ("difference", "difference", "+")]
    ]
    return table("agreement", ["vectors", "method", *(f"{d}-D" for d in DIMENSIONS)], rows)


def class_table(cells: dict[str, dict[str, Any]], sizes: Counter[str]) -> Table:
    """Rows: parts of speech by number; columns: agreement in the plane by scaling and method."""
    columns = [(scaling, method) for scaling in cells for method in METHODS]
    rows = [
        [name, str(number), *(f"{cells[scaling]['classes'][name][method]:.2f}" for scaling, method in columns)]
        for name, number in sizes.most_common()
    ]
    heads = [f"{scaling}: {METHODS[method]}" for scaling, method in columns]
    return table("parts of speech", ["part of speech", "words", *heads], rows)


def figure(y: Numbers, found: Words, vectors: str) -> tuple[Figure, int]:
    """Draw the words by rank of coordinates, coloured by part of speech, three zooms, and the number of labels."""
    names = [name for name in [*PARTS_OF_SPEECH, "other"] if name in found.classes]
    colours = {name: COLOURS[[*PARTS_OF_SPEECH, "other"].index(name)] for name in names}
    of_word = [colours[name] for name in found.classes]
    place = rankdata(y[:, :2], axis=0) / len(y)

    def draw(axes: Axes, chosen: NDArray[np.int64], zoomed: bool) -> None:
        axes.scatter(place[chosen, 0], place[chosen, 1], s=0)  # sets the limits: dots and labels follow the layout

    title = f"Laplacian eigenmap of {len(y)} words by {vectors}; axes: ranks"
    centres = {
        f"{letter}: {SHOWN[name]}": densest(place, np.array(found.classes) == name)
        for letter, name in zip("abc", SHOWN, strict=True)
    }
    result = map_with_zooms(place, draw, REGION, title, centres)
    panels = result.axes
    dots = [panels[0].scatter([], [], s=30, color=colours[name]) for name in names]
    result.legend(
        dots, names, loc="outside lower left", ncols=len(names), frameon=False, fontsize=8.5, handletextpad=0.1
    )
    result.draw_without_rendering()
    written = [
        spread_labels(axes, place, found.words, of_word, size)
        for axes, size in zip(panels, (8, 10, 10, 10), strict=True)
    ]
    return result, len(written[0])


def densest(y: Numbers, members: NDArray[np.bool_]) -> int:
    """Return the member of a class among whose nearest points ``(N, d)`` are most of its class."""
    distances = np.linalg.norm(y[:, None] - y[None], axis=2)
    count = members[distances.argsort(1)[:, :REGION]].sum(1)
    radius = np.sort(distances, 1)[:, REGION - 1] / distances.max()  # the narrower one of equals
    return int(np.where(members, count - radius, -np.inf).argmax())
