"""Words (Belkin & Niyogi, *Laplacian eigenmaps and spectral techniques*, 2001, Figures 2, 3): frequent words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from experiments.data import PARTS_OF_SPEECH, Words, brown_words
from experiments.metrics import Numbers, neighbour_agreement
from experiments.plots import label, map_with_zooms
from experiments.runs import Run, pick_device, table
from torch_lapeig import KNN, LaplacianEigenmaps, SimpleWeights

METHODS = {"laplacian_eigenmaps": "Laplacian eigenmaps", "pca": "PCA"}
SCALINGS = {"counts": "counts, as in the paper", "root": "square roots of relative counts"}
DIMENSIONS = (2, 3, 10)


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

    def score(scaling: str, method: str) -> dict[str, Any]:
        y = embed(scaling, method)
        return {f"{d}-D": neighbour_agreement(y[:, :d], found.classes, agreement) for d in DIMENSIONS}

    cells = run.cells("embeddings", score, [(scaling, method) for scaling in scalings for method in METHODS])
    shares = np.array(list(Counter(found.classes).values())) / count
    metrics: dict[str, Any] = {"chance": float((shares**2).sum()), "words": count}
    for (scaling, method), result in cells.items():
        metrics.setdefault(scaling, {})[method] = result
    for scaling in scalings:
        run.figure(f"words_{scaling}", figure(embed(scaling, "laplacian_eigenmaps"), found), dpi=85)
    rows = [
        [SCALINGS[scaling], METHODS[method], *(f"{result[f'{d}-D']['share']:.3f}" for d in DIMENSIONS)]
        for (scaling, method), result in cells.items()
    ]
    title = f"share of the {agreement} nearest words of the same part of speech ({metrics['chance']:.3f} by chance)"
    run.finish(metrics, table(title, ["vectors", "method", *(f"{d}-D" for d in DIMENSIONS)], rows))


def vectors_of(found: Words, scaling: str) -> Numbers:
    """Vectors ``(n, 2n)``: counts of left and right neighbours, or roots of their share in a word's tokens."""
    return found.counts if scaling == "counts" else np.sqrt(found.counts / found.frequency[:, None])


def figure(y: Numbers, found: Words) -> Figure:
    """The words at their places, coloured by part of speech, and three zooms."""
    names = [*PARTS_OF_SPEECH, "other"]
    colours = {name: matplotlib.colormaps["tab10"](i) for i, name in enumerate(names)}

    def draw(axes: Axes, chosen: NDArray[np.int64], zoomed: bool) -> None:
        colour = [colours[found.classes[i]] for i in chosen]
        if not zoomed:
            axes.scatter(y[chosen, 0], y[chosen, 1], s=7, c=colour, lw=0)
        for i, of_word in zip(chosen, colour, strict=True):
            if zoomed:
                label(axes, y[i], found.words[i], color=of_word, fontsize=9, ha="center", va="center")
            else:
                label(axes, y[i], found.words[i], color=of_word, fontsize=5, alpha=0.8)

    title = f"{len(y)} most frequent words of the Brown corpus: Laplacian eigenmap"
    result = map_with_zooms(y[:, :2], draw, 16, title)
    dots = [result.axes[0].scatter([], [], s=30, color=colours[name]) for name in names if name in found.classes]
    shown = [name for name in names if name in found.classes]
    result.legend(dots, shown, loc="outside lower left", ncols=len(shown), frameon=False, fontsize=8, handletextpad=0.1)
    return result
