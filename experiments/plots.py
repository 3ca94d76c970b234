"""Figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
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
