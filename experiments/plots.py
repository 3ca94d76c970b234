"""Figures."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
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
