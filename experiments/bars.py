"""Bars (Belkin & Niyogi, *Laplacian eigenmaps and spectral techniques*, 2001, Figure 1): two families of images."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.decomposition import PCA

from experiments import data
from experiments.metrics import Numbers, two_means_accuracy
from experiments.runs import Run, pick_device, table
from torch_lapeig import KNN, GraphWarning, LaplacianEigenmaps, SimpleWeights

METHODS = {"laplacian_eigenmaps": "Laplacian eigenmaps", "pca": "PCA"}


def bars(
    out: Path = Path("runs/bars"),
    images: int = 1000,
    size: int = 40,
    length: int = 20,
    width: int = 3,
    neighbors: int = 14,
    seeds: int = 20,
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
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        quick: two seeds.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        seeds = min(seeds, 2)
    run = Run(out, locals())
    place = pick_device(device)

    def embed(seed: int) -> tuple[Numbers, Numbers, Numbers, dict[str, Numbers]]:
        pixels, vertical = data.bars(images, size, seed, length, width)
        flat = pixels.reshape(images, -1)
        module = LaplacianEigenmaps(2, KNN(neighbors, "union"), SimpleWeights())
        with warnings.catch_warnings():  # where the graph falls into two parts the first column tells them apart
            warnings.simplefilter("ignore", GraphWarning)
            y = module.fit(torch.from_numpy(flat).to(place)).embedding_.cpu().numpy()
        maps = {"laplacian_eigenmaps": y, "pca": PCA(2, random_state=0).fit_transform(flat)}
        return pixels, vertical, module.eigenvalues_.cpu().numpy(), maps

    def accuracies(seed: int) -> dict[str, Any]:
        _, vertical, eigenvalues, maps = embed(seed)
        scores = {name: two_means_accuracy(y, vertical) for name, y in maps.items()}
        return {**scores, "eigenvalues": eigenvalues.tolist()}

    cells = run.cells("seeds", accuracies, [(seed,) for seed in range(seeds)])
    metrics: dict[str, Any] = {}
    for name in METHODS:
        values = np.array([cell[name] for cell in cells.values()])
        metrics[name] = {"mean": values.mean(), "sd": values.std(), "least": values.min(), "greatest": values.max()}
    metrics["connected_graphs"] = sum(cell["eigenvalues"][0] > 0 for cell in cells.values())
    pixels, vertical, _, maps = embed(0)
    run.figure("bars", figure(pixels, vertical, maps), dpi=90)
    rows = [
        [label, f"{metrics[name]['mean']:.4f} ± {metrics[name]['sd']:.4f}", f"{metrics[name]['least']:.4f}"]
        for name, label in METHODS.items()
    ]
    run.finish(metrics, table(f"2-means accuracy in 2-D, {seeds} seeds", ["", "mean ± sd", "least"], rows))


def figure(pixels: Numbers, vertical: Numbers, maps: dict[str, Numbers]) -> Figure:
    """Two images, then both maps."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    example, *axes = figure.subplots(1, 3)
    example.imshow(np.concatenate([pixels[-1], np.full((len(pixels[0]), 2), 0.5), pixels[0]], 1), cmap="gray_r")
    example.set_title("two of the images", fontsize=11)
    for panel, (name, label) in zip(axes, METHODS.items(), strict=True):
        x, y = maps[name].T
        panel.scatter(x[vertical], y[vertical], s=9, c="C0", lw=0, label="vertical")
        panel.scatter(x[~vertical], y[~vertical], s=16, c="C3", marker="+", lw=0.7, label="horizontal")
        panel.set_title(label, fontsize=11)
    axes[-1].legend(frameon=False, fontsize=9, markerscale=1.5)
    for panel in figure.axes:
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_color("0.8")
    return figure
