"""Faces (Baghani & Araabi, *Improved Laplacian eigenmaps*, Figure 3): frames of one face on a map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness

from experiments.data import frey_faces
from experiments.metrics import NEIGHBORS, Numbers
from experiments.plots import map_with_zooms, thumbnails
from experiments.runs import Run, pick_device, table
from torch_lapeig import HeatKernel, ImprovedWeights, LaplacianEigenmaps, Radius, radius_graph

METHODS = {"improved": "Improved LE", "weighted": "weighted LE", "pca": "PCA"}
DIMENSIONS = (2, 3)


def faces(
    out: Path = Path("runs/faces"),
    dimensions: int = 100,
    radius: float = 2.0,
    device: str = "auto",
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Faces: Improved Laplacian eigenmaps of the Frey faces in two and three dimensions, with the faces on the map.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        dimensions: of the space that PCA takes the images to first.
        radius: ε of the neighbourhoods, for pixels in [0, 1]; frames outside the largest component are left out.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        data_dir: folder of frey_rawface.mat; default: that of the environment variable TORCH_LAPEIG_DATA.
        quick: the first 700 frames.
        fresh: start anew where the folder holds a run already.
    """
    run = Run(out, locals())
    place = pick_device(device)
    images = frey_faces(data_dir)[: 700 if quick else None]
    pca = PCA(dimensions, random_state=0)
    reduced = torch.from_numpy(pca.fit_transform(images.reshape(len(images), -1)))
    component = radius_graph(reduced, radius).connected_components()
    kept = component == component.bincount().argmax()
    x, images = reduced[kept], images[kept.numpy()]

    def embed(method: str) -> Numbers:
        if method == "pca":
            return x[:, : max(DIMENSIONS)].numpy()
        t = radius**2 / 4  # e⁻⁴ at the radius
        if method == "improved":
            module = LaplacianEigenmaps(3, Radius(radius), ImprovedWeights(t), normalization="unnormalized")
        else:
            module = LaplacianEigenmaps(3, Radius(radius), HeatKernel(t))
        return module.fit(x.to(place)).embedding_.cpu().numpy()

    def score(method: str) -> dict[str, Any]:
        y = embed(method)
        return {f"{d}-D": float(trustworthiness(x.numpy(), y[:, :d], n_neighbors=NEIGHBORS)) for d in DIMENSIONS}

    cells = run.cells("embeddings", score, [(method,) for method in METHODS])
    y = embed("improved")
    run.figure("faces", map_figure(y, images), dpi=75)
    run.figure("faces_3d", space_figure(y), dpi=75)
    metrics = {
        "trustworthiness": cells,
        "frames": len(images),
        "left_out": int((~kept).sum()),
        "variance_of_pca": float(pca.explained_variance_ratio_.sum()),
    }
    rows = [[METHODS[method], *(f"{result[f'{d}-D']:.3f}" for d in DIMENSIONS)] for method, result in cells.items()]
    title = f"trustworthiness ({NEIGHBORS} neighbours) of {len(images)} frames"
    run.finish(metrics, table(title, ["method", *(f"{d}-D" for d in DIMENSIONS)], rows))


def map_figure(y: Numbers, images: Numbers) -> Figure:
    """The frames by the rank of their first two coordinates, some of them as pictures, and three zooms.

    Most frames lie close together in the middle of long arms, so the axes show ranks.
    """
    place = rankdata(y[:, :2], axis=0) / len(y)

    def draw(axes: Axes, chosen: NDArray[np.int64], zoomed: bool) -> None:
        axes.scatter(
            place[chosen, 0], place[chosen, 1], 6, c=chosen, cmap="viridis", vmin=0, vmax=len(y), lw=0, alpha=0.6
        )
        thumbnails(axes, images[chosen], place[chosen], 0.16 if zoomed else 0.055, 1.0, "gray")

    title = f"{len(y)} Frey faces: Improved Laplacian eigenmap; axes: ranks; colour: order in the film"
    return map_with_zooms(place, draw, 60, title)


def space_figure(y: Numbers) -> Figure:
    """The first three coordinates, from two sides."""
    figure = Figure(figsize=(11, 5))  # a constrained layout collapses around axes in space before Matplotlib 3.11
    figure.subplots_adjust(0, 0, 1, 1, wspace=0)
    for i, azimuth in enumerate((-60, 30)):
        axes: Any = figure.add_subplot(1, 2, i + 1, projection="3d")
        axes.scatter(*y.T, s=5, c=matplotlib.colormaps["viridis"](np.arange(len(y)) / len(y)), lw=0)
        axes.view_init(25, azimuth)
        axes.set(xticklabels=[], yticklabels=[], zticklabels=[])
    return figure
