"""Speech (Belkin & Niyogi, *Laplacian eigenmaps and spectral techniques*, 2001, Figures 4, 5): a map of sounds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from sklearn.decomposition import PCA

from experiments.data import PHONE_CLASSES, Speech, speech_frames
from experiments.metrics import Numbers, neighbour_agreement
from experiments.plots import label, map_with_zooms
from experiments.runs import Run, pick_device, table
from torch_lapeig import KNN, LaplacianEigenmaps, SimpleWeights

METHODS = {"laplacian_eigenmaps": "Laplacian eigenmaps", "pca": "PCA"}
DIMENSIONS = (2, 3, 10)


def speech(
    out: Path = Path("runs/speech"),
    sentence: str = "speech/sentence",
    window: float = 0.03,
    step: float = 0.005,
    neighbors: int = 14,
    agreement: int = 5,
    device: str = "auto",
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Speech: spectra of short frames of a sentence gather by class of phone.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        sentence: name of the files in the data folder, without .wav and .phn (phone boundaries, TIMIT's format).
        window: length of a frame in seconds.
        step: from one frame to the next in seconds.
        neighbors: k of the neighbourhood graph, weights 1.
        agreement: nearest frames in the map that vote on a frame's class.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        data_dir: folder of the files; default: that of the environment variable TORCH_LAPEIG_DATA.
        quick: every second frame.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        step = max(step, 0.01)
    run = Run(out, locals())
    place = pick_device(device)
    frames = speech_frames(sentence, data_dir, window, step)
    overlapping = int(np.ceil(window / step)) - 1
    embed = partial(embedding, frames, neighbors, place)
    cells = run.cells(
        "embeddings",
        lambda method: accuracies(embed(method), frames, agreement, overlapping),
        [(method,) for method in METHODS],
    )
    counts = {name: frames.classes.count(name) for name in PHONE_CLASSES}
    metrics = {**cells, "frames": len(frames.classes), "frames_of_class": counts}
    run.figure("speech", figure(embed("laplacian_eigenmaps"), frames), dpi=85)
    run.finish(metrics, accuracy_table(cells, agreement, len(frames.classes)))


def embedding(frames: Speech, neighbors: int, place: torch.device, method: str) -> Numbers:
    """The frames in as many dimensions as are compared at most."""
    if method == "pca":
        y: Numbers = PCA(max(DIMENSIONS), random_state=0).fit_transform(frames.spectra)
        return y
    module = LaplacianEigenmaps(max(DIMENSIONS), KNN(neighbors, "union"), SimpleWeights())
    return module.fit(torch.from_numpy(frames.spectra).to(place)).embedding_.cpu().numpy()


def accuracies(y: Numbers, frames: Speech, agreement: int, overlapping: int) -> dict[str, Any]:
    """By dimension: the share of frames whose class the nearest ones vote for, overlapping ones among them or not."""

    def accuracy(d: int, gap: int) -> float:
        return neighbour_agreement(y[:, :d], frames.classes, agreement, gap)["majority"]

    return {
        f"{d}-D": {"accuracy": accuracy(d, 0), "accuracy_without_overlap": accuracy(d, overlapping)} for d in DIMENSIONS
    }


def accuracy_table(cells: dict[str, dict[str, Any]], agreement: int, frames: int) -> Table:
    """Rows: methods; columns: dimensions."""
    rows = [
        [METHODS[method], label, *(f"{result[f'{d}-D'][key]:.3f}" for d in DIMENSIONS)]
        for key, label in (("accuracy", "all frames"), ("accuracy_without_overlap", "not overlapping ones"))
        for method, result in cells.items()
    ]
    title = f"{agreement}-NN accuracy of phone classes, leave one out, {frames} frames"
    return table(title, ["method", "neighbours", *(f"{d}-D" for d in DIMENSIONS)], rows)


def figure(y: Numbers, frames: Speech) -> Figure:
    """The frames at their places, coloured by class of phone, and three zooms with the phones."""
    names = [name for name in [*PHONE_CLASSES, "other"] if name in frames.classes]
    colours = {name: matplotlib.colormaps["tab10"](i) for i, name in enumerate(names)}

    def draw(axes: Axes, chosen: NDArray[np.int64], zoomed: bool) -> None:
        for name in names:
            of_class = np.array([i for i in chosen if frames.classes[i] == name], dtype=int)
            place = y[of_class, 0], y[of_class, 1]
            axes.scatter(*place, 4 if zoomed else 12, color=colours[name], lw=0, alpha=0.8)
        for i in chosen if zoomed else []:
            label(axes, y[i], frames.phones[i], color=colours[frames.classes[i]], fontsize=8)

    title = f"{len(y)} frames of a sentence: Laplacian eigenmap, coloured by class of phone"
    result = map_with_zooms(y[:, :2], draw, 25, title)
    dots = [result.axes[0].scatter([], [], s=30, color=colours[name]) for name in names]
    result.legend(dots, names, loc="outside lower left", ncols=len(names), frameon=False, fontsize=9)
    return result
