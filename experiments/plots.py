"""Figures."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from numpy.typing import NDArray

from experiments.data import Split

matplotlib.use("Agg")

Array = NDArray[np.float32]


def embedding_figure(
    path: Path,
    split: Split,
    before: tuple[Array, Array],
    after: tuple[Array, Array],
    eigenvalues: tuple[list[float], list[float]],
) -> None:
    """The embedding of the digits with some of them drawn in place, the learned one, and both spectra.

    Eigenvectors of clustered data put each cluster almost into one point, so the axes show ranks: each coordinate as
    the share of fitted points below it.

    Args:
        path: PNG to write.
        split: the digits.
        before, after: 2-D embeddings of the training and the held-out part, without and with learning.
        eigenvalues: of both.
    """
    before, after = _ranks(*before), _ranks(*after)
    figure = Figure(figsize=(13, 7.4), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1.75, 1])
    main = figure.add_subplot(grid[:, 0])
    _scatter(main, split, *before, size=12)
    _thumbnails(main, split.train.numpy(), before[0])
    main.set_title("Laplacian eigenmaps of handwritten digits", fontsize=13, loc="left")
    main.set(xlabel="eigenvector 1 (rank)", ylabel="eigenvector 2 (rank)")
    dots = [main.scatter([], [], s=30, color=matplotlib.colormaps["tab10"](digit)) for digit in range(10)]
    kinds = [main.scatter([], [], s=14, c="0.5"), main.scatter([], [], s=26, c="0.8", edgecolors="k", linewidths=0.8)]
    labels = [*map(str, range(10)), "fitted (80 %)", "held out, by Nyström (20 %)"]
    style = {"frameon": False, "columnspacing": 1.0, "handletextpad": 0.1, "fontsize": 9}
    figure.legend([*dots, *kinds], labels, loc="outside lower left", ncols=12, **style)

    learned = figure.add_subplot(grid[0, 1])
    _scatter(learned, split, *after, size=5)
    learned.set_title("after learning a linear map and the bandwidth", fontsize=11, loc="left")

    spectrum = figure.add_subplot(grid[1, 1])
    for values, label, colour in zip(eigenvalues, ("as given", "learned"), ("C0", "C3"), strict=True):
        spectrum.plot(range(1, len(values) + 1), values, "o-", label=label, color=colour)
    spectrum.set(xlabel="k", xticks=range(1, len(eigenvalues[0]) + 1), ylim=(0, None))
    spectrum.set_title("eigenvalues of the normalised Laplacian", fontsize=11, loc="left")
    spectrum.legend(frameon=False)
    spectrum.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _ranks(train: Array, heldout: Array) -> tuple[Array, Array]:
    """Each coordinate of both parts as the share of training points below it."""
    order = np.sort(train, axis=0)

    def share(y: Array) -> Array:
        columns = [np.searchsorted(order[:, j], y[:, j]) / len(train) for j in range(y.shape[1])]
        return np.stack(columns, 1).astype(np.float32)

    return share(train), share(heldout)


def _scatter(axes: Axes, split: Split, train: Array, heldout: Array, size: float) -> None:
    """Points coloured by digit; held-out ones larger, with a dark edge."""
    for digit in range(10):
        colour = matplotlib.colormaps["tab10"](digit)
        x, y = train[split.train_labels == digit].T
        axes.scatter(x, y, s=size, color=colour, alpha=0.75, lw=0)
        x, y = heldout[split.heldout_labels == digit].T
        axes.scatter(x, y, s=1.9 * size, color=colour, edgecolors="k", linewidths=0.6, zorder=3)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("0.8")


def _thumbnails(axes: Axes, pixels: Array, y: Array, spacing: float = 0.075) -> None:
    """Draw images at their place, each at least ``spacing`` of the figure's side away from those before."""
    place = (y - y.min(0)) / np.ptp(y, axis=0)
    drawn: list[int] = []
    for i in range(len(y)):
        if all(np.linalg.norm(place[i] - place[j]) > spacing for j in drawn):
            drawn.append(i)
            image = OffsetImage(pixels[i].reshape(8, 8), cmap="gray_r", zoom=2.4)
            box = AnnotationBbox(image, (float(y[i, 0]), float(y[i, 1])), pad=0.1, bboxprops={"lw": 0.4, "ec": "0.4"})
            axes.add_artist(box)
