"""Frey faces (after Baghani & Araabi, *Improved Laplacian eigenmaps*, Figure 3): frames of a film on a map."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from scipy.stats import rankdata
from sklearn.decomposition import PCA
from torch import Tensor

from experiments.data import frey_faces
from experiments.metrics import Numbers, between, bootstrap, ranks, trustworthiness
from experiments.plots import map_with_zooms
from experiments.runs import Run, check_names, pick_device, table
from torch_lapeig import DensityCorrected, HeatKernel, ImprovedWeights, LaplacianEigenmaps, Radius, radius_graph
from torch_lapeig.plots import plot_embedding

METHODS = {"improved": "Improved LE", "weighted": "weighted LE", "density_corrected": "density-corrected", "pca": "PCA"}
DIFFERENCES = {
    "improved_over_weighted": ("improved", "weighted", "Improved − weighted"),
    "corrected_over_improved": ("density_corrected", "improved", "corrected − Improved"),
}
DIMENSIONS = (2, 3)
RADII = [1.75, 2.0, 2.25, 2.5, 2.75, 3.0]
SCENE = 50  # frames one after the other that a bootstrap draws together: they are much alike


class Film(NamedTuple):
    """Frames in the order of the film, and those of them that are used at a radius.

    Attributes:
        images: ``(N, 28, 20)``. x: their principal components ``(N, dimensions)``, float64.
        number: of each frame in the film ``(N,)``.
        neighbors: median number of neighbours within the radius.
    """

    images: Numbers
    x: Tensor
    number: NDArray[np.int64]
    neighbors: int = 0

    def within(self, radius: float) -> Film:
        """Return the frames in the largest component of the graph that joins those within a radius."""
        graph = radius_graph(self.x, radius)
        component = graph.connected_components()
        kept = component == component.bincount().argmax()
        degree = graph.pattern.sum_rows(graph.weight)[kept]
        return Film(self.images[kept.numpy()], self.x[kept], self.number[kept.numpy()], int(degree.median()))


def faces(
    out: Path = Path("runs/faces"),
    dimensions: int = 100,
    radius: float = 2.0,
    radii: list[float] = RADII,
    device: str = "auto",
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Faces: Improved Laplacian eigenmaps of the Frey faces in two and three dimensions, with the faces on the map.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        dimensions: of the space that PCA takes the images to first.
        radius: ε of the figures, for pixels in [0, 1]; frames outside the largest component are left out.
        radii: ε of the table over radii; ``radius`` is one of them.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        data_dir: folder of frey_rawface.mat; default: that of the environment variable TORCH_LAPEIG_DATA.
        quick: the first 700 frames, one radius.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        radii = [radius]
    check_names("radius", [str(float(radius))], [str(float(each)) for each in radii])
    run = Run(out, locals())
    place = pick_device(device)
    images = frey_faces(data_dir)[: 700 if quick else None]
    pca = PCA(dimensions, random_state=0)
    reduced = torch.from_numpy(pca.fit_transform(images.reshape(len(images), -1)))
    film = Film(images, reduced, np.arange(len(images)))
    cells = run.cells("radii", lambda radius: scores(film.within(radius), radius, place), [(each,) for each in radii])
    shown = film.within(radius)
    y = embedding(shown.x, radius, "improved", place)
    run.figure("faces", map_figure(y, shown), dpi=75)
    run.figure("faces_3d", space_figure(y, shown), dpi=75)
    run.figure("faces_film", film_figure(y, shown), dpi=75)
    metrics = {
        **cells[radius],
        "variance_of_pca": float(pca.explained_variance_ratio_.sum()),
        "radii": {f"{each:g}": cell for each, cell in cells.items()},
    }
    tables = [radius_table(cells, f"{d}-D") for d in DIMENSIONS]
    run.finish(metrics, trustworthiness_table(cells[radius]), *tables)


def embedding(x: Tensor, radius: float, method: str, place: torch.device) -> Numbers:
    """Return the frames in three dimensions."""
    if method == "pca":
        y: Numbers = x[:, : max(DIMENSIONS)].numpy()
        return y
    t = radius**2 / 4  # e⁻⁴ at the radius
    if method == "improved":
        module = LaplacianEigenmaps(3, Radius(radius), ImprovedWeights(t), normalization="unnormalized")
    else:
        weights = HeatKernel(t) if method == "weighted" else DensityCorrected(1.0, HeatKernel(t))
        module = LaplacianEigenmaps(3, Radius(radius), weights)
    return module.fit(x.to(place)).embedding_.cpu().numpy()


def scores(film: Film, radius: float, place: torch.device) -> dict[str, Any]:
    """Return trustworthiness by method and dimension, and differences, with intervals by scenes of the film."""
    rank, scene = ranks(film.x.numpy()), film.number // SCENE
    each = {
        (method, d): trustworthiness(rank, y[:, :d])
        for method in METHODS
        for y in [embedding(film.x, radius, method, place)]
        for d in DIMENSIONS
    }
    return {
        "frames": len(film.x),
        "neighbors": film.neighbors,
        "trustworthiness": {
            method: {f"{d}-D": bootstrap(each[method, d], scene) for d in DIMENSIONS} for method in METHODS
        },
        "differences": {
            name: {f"{d}-D": bootstrap(each[first, d] - each[second, d], scene) for d in DIMENSIONS}
            for name, (first, second, _) in DIFFERENCES.items()
        },
    }


def trustworthiness_table(cell: dict[str, Any]) -> Table:
    """Rows: methods; columns: dimensions."""
    rows = [
        [label, *(between(cell["trustworthiness"][method][f"{d}-D"]) for d in DIMENSIONS)]
        for method, label in METHODS.items()
    ]
    return table("trustworthiness", ["method", *(f"{d}-D" for d in DIMENSIONS)], rows)


def radius_table(cells: dict[float, dict[str, Any]], dimension: str) -> Table:
    """Rows: radii; columns: the frames that are used, trustworthiness in one dimension, differences of methods."""
    rows = [
        [
            f"{radius:g}",
            str(cell["frames"]),
            str(cell["neighbors"]),
            *(f"{cell['trustworthiness'][method][dimension]['mean']:.3f}" for method in METHODS),
            *(between(cell["differences"][name][dimension], sign="+") for name in DIFFERENCES),
        ]
        for radius, cell in cells.items()
    ]
    columns = ["ε", "frames", "neighbours", *METHODS.values(), *(label for *_, label in DIFFERENCES.values())]
    return table(f"radii {dimension}", columns, rows)


def map_figure(y: Numbers, film: Film) -> Figure:
    """Return the frames by the rank of their first two coordinates, some of them as pictures, and three zooms.

    Most frames lie close together in the middle of long arms, so the axes show ranks.
    """
    place = rankdata(y[:, :2], axis=0) / len(y)

    def draw(axes: Axes, chosen: NDArray[np.int64], zoomed: bool) -> None:
        plot_embedding(place, film.number, images=film.images, parts=[chosen], axes=[axes], legend=False)
        axes.set(xlabel="", ylabel="")

    title = f"{len(y)} Frey faces: Improved Laplacian eigenmap; axes: ranks of the first two coordinates"
    figure = map_with_zooms(place, draw, 60, title)
    _film_bar(figure, film, location="bottom", shrink=0.6, aspect=50, pad=0.02)
    return figure


def _film_bar(figure: Figure, film: Film, **style: Any) -> None:
    """Draw a bar that shows the colour of each time in the film."""
    colours = ScalarMappable(Normalize(film.number[0], film.number[-1]), "viridis")
    figure.colorbar(colours, ax=figure.axes, label="frame of the film", **style)


def space_figure(y: Numbers, film: Film) -> Figure:
    """Return the first three coordinates from two sides, some frames as pictures."""
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    place = rankdata(y, axis=0) / len(y) - 0.5
    up = np.radians(25)
    for axes, turn in zip(figure.subplots(1, 2), np.radians([-60, 30]), strict=True):
        away = place[:, 0] * np.cos(turn) + place[:, 1] * np.sin(turn)
        across = place[:, 1] * np.cos(turn) - place[:, 0] * np.sin(turn)
        seen = np.stack([across, place[:, 2] * np.cos(up) - away * np.sin(up)], 1)
        plot_embedding(seen, film.number, images=film.images, axes=axes, legend=False)
        axes.set(xlabel="", ylabel="")
    figure.suptitle(f"{len(y)} Frey faces in three dimensions, from two sides: ranks of coordinates", fontsize=12)
    _film_bar(figure, film, shrink=0.6)
    return figure


def film_figure(y: Numbers, film: Film) -> Figure:
    """Return frames at equal steps of the film, and below them the three coordinates along the film."""
    figure = Figure(figsize=(13, 6.5), layout="constrained")
    strip, *axes = figure.subplots(4, 1, height_ratios=[0.75, 1, 1, 1])
    shown = np.linspace(0, len(y) - 1, 24).astype(int)
    strip.imshow(np.concatenate(list(film.images[shown]), 1), cmap="gray")
    strip.set(xticks=np.arange(24) * 20 + 10, xticklabels=film.number[shown], yticks=[])
    strip.set_title(f"{len(shown)} of {len(y)} Frey faces in the order of the film", fontsize=12, loc="left")
    place = rankdata(y, axis=0) / len(y)
    for i, panel in enumerate(axes):
        panel.plot(film.number, place[:, i], lw=0.5, color="0.7")
        panel.scatter(film.number, place[:, i], s=3, c=film.number, cmap="viridis", lw=0)
        panel.set(ylabel=f"coordinate {i + 1} (rank)", xlim=(0, film.number[-1]), yticks=[])
        panel.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("frame of the film")
    return figure
