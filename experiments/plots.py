"""Figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from experiments.data import Split
from torch_lapeig.plots import plot_embedding, plot_spectrum

matplotlib.use("Agg")

Array = NDArray[np.float32]
Numbers = NDArray[Any]  # float32 or float64


def embedding_figure(
    split: Split,
    before: tuple[Array, Array],
    after: tuple[Array, Array],
    eigenvalues: tuple[list[float], list[float]],
) -> Figure:
    """Return the embedding of the digits with some of them drawn in place, the learned one, and both spectra.

    Eigenvectors of clustered data put each cluster almost into one point, so the axes show ranks: each coordinate as
    the share of fitted points below it.

    Args:
        split: the digits.
        before, after: 2-D embeddings of the training and the held-out part, without and with learning.
        eigenvalues: of both.
    """
    figure = Figure(figsize=(10, 5.7), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1.75, 1])
    main, learned, spectrum = (figure.add_subplot(part) for part in (grid[:, 0], grid[0, 1], grid[1, 1]))
    labels = np.concatenate([split.train_labels, split.heldout_labels])
    images = np.concatenate([split.train, split.heldout]).reshape(-1, 8, 8)
    for axes, columns, pictures in ((main, before, images), (learned, after, None)):
        places = _ranks(*columns)
        both = np.concatenate(places)
        plot_embedding(both, labels, new=places[1], images=pictures, axes=axes, legend=axes is main)
    main.set_title("Laplacian eigenmaps of handwritten digits; rings: held out, by Nyström", fontsize=11, loc="left")
    main.set(xlabel="eigenvector 1 (rank)", ylabel="eigenvector 2 (rank)")
    learned.set_title("after learning a linear map and the bandwidth", fontsize=9, loc="left")
    learned.set(xlabel="", ylabel="")
    for values, label in zip(eigenvalues, ("as given", "learned"), strict=True):
        plot_spectrum(values, axes=spectrum, label=label)
    spectrum.set_ylim(0, None)
    spectrum.set_title("eigenvalues of the normalised Laplacian", fontsize=9, loc="left")
    spectrum.legend(frameon=False)
    return figure


def _ranks(train: Array, heldout: Array) -> tuple[Array, Array]:
    """Return each coordinate of both parts as the share of training points below it."""
    order = np.sort(train, axis=0)

    def share(y: Array) -> Array:
        columns = [np.searchsorted(order[:, j], y[:, j]) / len(train) for j in range(y.shape[1])]
        return np.stack(columns, 1).astype(np.float32)

    return share(train), share(heldout)


# Eleven colours on white that are far apart by the eye's measure, not only by number (CIELAB, at least 25 apart).
COLOURS = (
    "#e6194b", "#f58231", "#4363d8", "#000000", "#3cb44b", "#911eb4", "#00a5b5", "#9a6324", "#f032e6", "#808000",
    "#a9a9a9",
)  # fmt: skip


def spread_labels(
    axes: Axes, y: Numbers, texts: Sequence[str], colours: Sequence[str], size: float, others: Numbers | None = None
) -> list[int]:
    """Draw a dot at each place and write texts beside their dots, as many as lie within the axes and over nothing else.

    Args:
        axes: of a figure whose layout is done (`Figure.draw_without_rendering`).
        y: places ``(N, 2)``.
        texts, colours: of each; earlier ones are written first.
        size: of the letters in points.
        others: places ``(M, 2)`` of dots that are drawn already, over which no text is written either.

    Returns:
        The numbers of the texts that are written, over no dot and no other text.
    """
    figure: Any = axes.get_figure()
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes.scatter(y[:, 0], y[:, 1], s=size, c=list(colours), lw=0, alpha=0.8, zorder=1)
    pixel = figure.dpi / 72
    gap = (0.5 * size**0.5 + 0.5) * pixel  # a dot's radius and a little more
    dots = axes.transData.transform(y if others is None else np.concatenate([y, others]))
    frame = axes.bbox.get_points()
    taken: dict[int, Numbers] = {}
    for i, (place, text, colour) in enumerate(zip(dots[: len(y)], texts, colours, strict=True)):
        artist = axes.annotate(text, y[i], color=colour, fontsize=size, ha="center", va="center")
        artist.set_in_layout(False)  # hundreds would make it slow
        extent = artist.get_window_extent(renderer)
        half = np.array([extent.width, extent.height]) / 2
        for side in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1), (1, 1), (-1, -1)):
            centre = place + side * (half + gap)
            box = np.stack([centre - half, centre + half])
            free = (frame[0] < box[0]).all() and (box[1] < frame[1]).all()
            free = free and not ((dots > box[0] - 0.8 * gap) & (dots < box[1] + 0.8 * gap)).all(1).any()
            if free and not any((box[0] < other[1]).all() and (other[0] < box[1]).all() for other in taken.values()):
                taken[i] = box
                artist.set_position(tuple((centre - place) / pixel))
                artist.set_anncoords("offset points")
                break
        else:
            artist.remove()
    return list(taken)


def map_with_zooms(
    y: Numbers,
    draw: Callable[[Axes, NDArray[np.int64], bool], None],
    points: int,
    title: str,
    centres: dict[str, int] | None = None,
) -> Figure:
    """Return a map and, beside it, three of its regions enlarged.

    Args:
        y: the map ``(N, 2)``.
        draw: puts the points of the given indices into axes; the last argument says whether these are a zoom.
        points: nearest to the centre of each region that it holds at least.
        title: of the map.
        centres: titles of three regions, and the point in the middle of each; default: tips of the map, far from the
            middle and from each other in units of each axis's standard deviation.
    """
    figure = Figure(figsize=(13, 7.4), layout="constrained")
    grid = figure.add_gridspec(3, 2, width_ratios=[2, 1])
    main = figure.add_subplot(grid[:, 0])
    draw(main, np.arange(len(y)), False)
    main.set_title(title, fontsize=12, loc="left")
    unit = (y - y.mean(0)) / y.std(0)
    centres = dict(zip("abc", _tips(unit), strict=True)) if centres is None else centres
    for row, (name, centre) in enumerate(centres.items()):
        near = np.argsort(np.linalg.norm(unit - unit[centre], axis=1))[:points]
        low, high = y[near].min(0), y[near].max(0)
        margin = 0.12 * np.maximum(high - low, 0.01 * np.ptp(y, axis=0))
        (left, bottom), (width, height) = low - margin, high - low + 2 * margin
        main.add_patch(Rectangle((left, bottom), width, height, fill=False, lw=0.8, ec="k", zorder=4))
        _letter(main, name[0], y, (left, bottom), (left + width, bottom + height))
        zoom = figure.add_subplot(grid[row, 1])
        draw(zoom, np.flatnonzero(((y >= low - margin) & (y <= high + margin)).all(1)), True)
        zoom.set(xlim=(left, left + width), ylim=(bottom, bottom + height))
        zoom.set_title(name, fontsize=11, loc="left", weight="bold")
    for axes in figure.axes:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("0.8")
    return figure


def _letter(axes: Axes, text: str, y: Numbers, low: Sequence[float], high: Sequence[float]) -> None:
    """Write a region's letter outside of that of its corners around which the fewest points lie."""
    near = 0.03 * np.ptp(y, axis=0)
    corners = [(low[0], high[1], -1, 1), (high[0], high[1], 1, 1), (low[0], low[1], -1, -1), (high[0], low[1], 1, -1)]

    def points(corner: tuple[float, float, int, int]) -> int:
        centre = np.array(corner[:2]) + 0.5 * near * corner[2:]
        return int((np.abs(y - centre) < 0.6 * near).all(1).sum())

    x, height, right, up = min(corners, key=points)
    side: dict[str, Any] = {"ha": "left" if right > 0 else "right", "va": "bottom" if up > 0 else "top"}
    axes.annotate(text, (x, height), fontsize=11, weight="bold", **side)


def _tips(y: Numbers, count: int = 3) -> list[int]:
    """Return points far apart: the farthest from the middle, then each the farthest from those before."""
    tips: list[int] = []
    distance = np.linalg.norm(y - y.mean(0), axis=1)
    while len(tips) < count:
        tips.append(int(distance.argmax()))
        to_last = np.linalg.norm(y - y[tips[-1]], axis=1)
        distance = to_last if len(tips) == 1 else np.minimum(distance, to_last)
    return tips
