"""Bars (Belkin & Niyogi, *Laplacian eigenmaps and spectral techniques*, 2001, Figure 1): two families of images."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from sklearn.decomposition import PCA

from experiments import data
from experiments.metrics import Numbers, mean_and_interval, plus_minus, two_means_accuracy
from experiments.runs import Run, pick_device, table
from torch_lapeig import KNN, GraphWarning, LaplacianEigenmaps, SimpleWeights

METHODS = {"laplacian_eigenmaps": "Laplacian eigenmaps", "pca": "PCA"}
SIZES = [(12, 3), (14, 3), (16, 3), (18, 3), (20, 3), (24, 3), (30, 3), (40, 3), (12, 4), (16, 2), (20, 2), (20, 4)]


class Maps(NamedTuple):
    """A set of images, the maps of it, and which component of the graph each image is in."""

    pixels: Numbers
    vertical: NDArray[np.bool_]
    component: Numbers
    maps: dict[str, Numbers]


def bars(
    out: Path = Path("runs/bars"),
    images: int = 1000,
    size: int = 40,
    length: int = 16,
    width: int = 3,
    neighbors: int = 14,
    seeds: int = 12,
    others: list[tuple[int, int]] = SIZES,
    seeds_of_others: int = 3,
    device: str = "auto",
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Bars: images of a horizontal or vertical bar fall into two parts under Laplacian eigenmaps, not under PCA.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        images: number of images, half of them with a vertical bar.
        size: side of an image in pixels.
        length: of the bar in pixels.
        width: of the bar in pixels.
        neighbors: k of the neighbourhood graph, weights 1.
        seeds: number of random sets of images.
        others: lengths and widths of the bars in the table over sizes.
        seeds_of_others: number of random sets of images of each of these.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        quick: two seeds, two other sizes.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        seeds, others, seeds_of_others = min(seeds, 2), others[:2], 1
    run = Run(out, locals())
    embed = partial(embedded, images, size, neighbors, pick_device(device))
    cases = [(length, width, seed) for seed in range(seeds)]
    cases += [(*other, seed) for other in others for seed in range(seeds_of_others) if (*other, seed) not in cases]
    cells = run.cells("sets of images", lambda *case: scores(embed(*case)), cases)
    metrics = summary([cells[length, width, seed] for seed in range(seeds)])
    sizes = {
        f"{a} × {b}": summary([cells[a, b, seed] for seed in range(seeds_of_others)])
        for a, b in others  # the same seeds of each
    }
    run.figure("bars", figure(embed(length, width, 0), sizes, width), dpi=90)
    run.finish({**metrics, "sizes": sizes}, accuracy_table(metrics), size_table(sizes))


def embedded(images: int, size: int, neighbors: int, place: torch.device, length: int, width: int, seed: int) -> Maps:
    """Return a random set of images in two dimensions by each method."""
    pixels, vertical = data.bars(images, size, seed, length, width)
    flat = pixels.reshape(images, -1)
    x = torch.from_numpy(flat).to(place)
    module = LaplacianEigenmaps(2, KNN(neighbors, "union"), SimpleWeights())
    with warnings.catch_warnings():  # where the graph falls into parts the first columns tell them apart
        warnings.simplefilter("ignore", GraphWarning)
        y = module.fit(x).embedding_.cpu().numpy()
    component = KNN(neighbors, "union")(x).connected_components().cpu().numpy()
    maps = {"laplacian_eigenmaps": y, "pca": PCA(2, random_state=0).fit_transform(flat)}
    return Maps(pixels, vertical, component, maps)


def scores(found: Maps) -> dict[str, Any]:
    """Return the 2-means accuracy of each map, the number of components, and the accuracy by components."""
    vertical = np.bincount(found.component, found.vertical)
    count = np.bincount(found.component)
    return {
        **{name: two_means_accuracy(y, found.vertical) for name, y in found.maps.items()},
        "components": len(count),
        "components_alone": float(np.maximum(vertical, count - vertical).sum() / len(found.vertical)),
    }


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return over sets of images: accuracies, the number of connected graphs, and accuracy by components."""
    metrics: dict[str, Any] = {}
    for name in METHODS:
        values = [result[name] for result in results]
        metrics[name] = {**mean_and_interval(values), "least": min(values), "greatest": max(values)}
    return {
        **metrics,
        "sets": len(results),
        "connected": sum(result["components"] == 1 for result in results),
        "components": float(np.median([result["components"] for result in results])),
        "components_alone": float(np.mean([result["components_alone"] for result in results])),
    }


def accuracy_table(metrics: dict[str, Any]) -> Table:
    """Return 2-means accuracy of the methods."""
    rows = [
        [label, plus_minus(metrics[name], 4), f"{metrics[name]['least']:.4f}", f"{metrics[name]['greatest']:.4f}"]
        for name, label in METHODS.items()
    ]
    return table("accuracy", ["method", "2-means accuracy in 2-D", "least", "greatest"], rows)


def size_table(sizes: dict[str, dict[str, Any]]) -> Table:
    """Rows: sizes of bars; columns: their graphs, and the accuracy."""
    rows = [
        [
            name,
            f"{of_size['connected']} of {of_size['sets']}",
            f"{of_size['components']:g}",
            f"{of_size['components_alone']:.3f}",
            plus_minus(of_size["laplacian_eigenmaps"], 3),
            f"{of_size['laplacian_eigenmaps']['least']:.3f}",
            plus_minus(of_size["pca"], 3),
        ]
        for name, of_size in sizes.items()
    ]
    columns = ["bar", "connected graphs", "components", "these alone", "eigenmaps", "least", "PCA"]
    return table("sizes", columns, rows)


def figure(found: Maps, sizes: dict[str, dict[str, Any]], width: int) -> Figure:
    """Return two images, both maps, and the accuracy by length of the bars of one width."""
    figure = Figure(figsize=(14, 3.8), layout="constrained")
    example, *axes, lengths = figure.subplots(1, 4)
    pixels, vertical = found.pixels, found.vertical
    example.imshow(np.concatenate([pixels[-1], np.full((len(pixels[0]), 2), 0.5), pixels[0]], 1), cmap="gray_r")
    example.set_title("two of the images", fontsize=11)
    for panel, (name, label) in zip(axes, METHODS.items(), strict=True):
        x, y = found.maps[name].T
        panel.scatter(x[vertical], y[vertical], s=9, c="C0", lw=0, label="vertical")
        panel.scatter(x[~vertical], y[~vertical], s=16, c="C3", marker="+", lw=0.7, label="horizontal")
        panel.set_title(label, fontsize=11)
    axes[0].legend(frameon=False, fontsize=9, markerscale=1.5, loc="center")
    for panel in (example, *axes):
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_color("0.8")
    of_width = {int(name.split()[0]): of_size for name, of_size in sizes.items() if name.endswith(f" {width}")}
    for i, (name, label) in enumerate(METHODS.items()):
        each = [of_size[name] for of_size in of_width.values()]
        lengths.plot(list(of_width), [value["mean"] for value in each], "o-", ms=4, color=f"C{i}", label=label)
        lengths.fill_between(list(of_width), *([v[end] for v in each] for end in ("least", "greatest")), alpha=0.2)
    lengths.plot(
        list(of_width), [v["components_alone"] for v in of_width.values()], "k:", lw=1, label="components alone"
    )
    lengths.set(xlabel="length of the bar (pixels)", ylabel="2-means accuracy", ylim=(0.48, 1.02))
    lengths.spines[["top", "right"]].set_visible(False)
    lengths.legend(frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.9))
    return figure
