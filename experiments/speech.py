"""Synthetic speech (after Belkin & Niyogi, *Laplacian eigenmaps and spectral techniques*, 2001, Figures 4, 5)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from sklearn.decomposition import PCA

from experiments.data import PHONE_CLASSES, Speech, speech_frames
from experiments.metrics import Numbers, between, bootstrap, neighbour_agreement
from experiments.plots import COLOURS, map_with_zooms, spread_labels
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
    """Speech: spectra of short frames of a sentence, a synthesised one, gather by class of phone.

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
    embed = partial(embedding, frames, neighbors, place)
    (cell,) = run.cells(
        "embeddings",
        lambda _: scores({method: embed(method) for method in METHODS}, frames, agreement),
        [(sentence,)],
    ).values()
    counts = {name: frames.classes.count(name) for name in PHONE_CLASSES}
    metrics = {**cell, "frames": len(frames.classes), "frames_of_class": counts}
    run.figure("speech", figure(embed("laplacian_eigenmaps"), frames), dpi=100)
    run.finish(metrics, accuracy_table(cell))


def embedding(frames: Speech, neighbors: int, place: torch.device, method: str) -> Numbers:
    """The frames in as many dimensions as are compared at most."""
    if method == "pca":
        y: Numbers = PCA(max(DIMENSIONS), random_state=0).fit_transform(frames.spectra)
        return y
    module = LaplacianEigenmaps(max(DIMENSIONS), KNN(neighbors, "union"), SimpleWeights())
    return module.fit(torch.from_numpy(frames.spectra).to(place)).embedding_.cpu().numpy()


def scores(maps: dict[str, Numbers], frames: Speech, agreement: int) -> dict[str, Any]:
    """Shares of frames whose class the nearest ones vote for, of any phone or of other ones only, and differences.

    Intervals are by phones: the frames of one are much alike, and overlap.
    """
    phone = frames.instances
    eigenmaps, pca = METHODS
    result: dict[str, Any] = {}
    for key, bound in (("accuracy", None), ("of_others", frames.bound)):
        given = neighbour_agreement(frames.spectra, frames.classes, agreement, bound)["majority"]
        result.setdefault("spectra", {})[key] = bootstrap(given, phone)
        for d in DIMENSIONS:
            each = {
                method: neighbour_agreement(y[:, :d], frames.classes, agreement, bound)["majority"]
                for method, y in maps.items()
            }
            each["difference"] = each[eigenmaps] - each[pca]
            for name, values in each.items():
                result.setdefault(name, {}).setdefault(f"{d}-D", {})[key] = bootstrap(values, phone)
    largest = max(frames.classes.count(name) for name in set(frames.classes)) / len(frames.classes)
    return {**result, "phones": int(phone[-1]), "largest_class": largest}


def accuracy_table(cell: dict[str, Any]) -> Table:
    """Rows: neighbours and methods; columns: dimensions."""
    rows = []
    for key, title in (("of_others", "of other phones"), ("accuracy", "all frames")):
        for name, label, sign in [*((*method, "") for method in METHODS.items()), ("difference", "difference", "+")]:
            rows.append([title, label, *(between(cell[name][f"{d}-D"][key], sign=sign) for d in DIMENSIONS)])
        rows.append([title, "the 256 coefficients", *[between(cell["spectra"][key])] * len(DIMENSIONS)])
    rows.append(["–", "always the largest class", *[f"{cell['largest_class']:.3f}"] * len(DIMENSIONS)])
    return table("accuracy", ["neighbours", "method", *(f"{d}-D" for d in DIMENSIONS)], rows)


def figure(y: Numbers, frames: Speech) -> Figure:
    """The frames at their places, coloured by class of phone, and three zooms with the phones."""
    names = [name for name in [*PHONE_CLASSES, "other"] if name in frames.classes]
    colours = dict(zip(names, COLOURS, strict=False))
    of_frame = [colours[name] for name in frames.classes]

    def draw(axes: Axes, chosen: NDArray[np.int64], zoomed: bool) -> None:
        colour = [of_frame[i] for i in chosen]
        axes.scatter(y[chosen, 0], y[chosen, 1], s=0 if zoomed else 14, c=colour, lw=0, alpha=0.8)

    title = f"{len(y)} frames of a synthesised sentence: Laplacian eigenmap, coloured by class of phone"
    result = map_with_zooms(y[:, :2], draw, 25, title)
    dots = [result.axes[0].scatter([], [], s=30, color=colours[name]) for name in names]
    result.legend(dots, names, loc="outside lower left", ncols=len(names), frameon=False, fontsize=9)
    result.draw_without_rendering()
    for axes in result.axes[1:4]:
        spread_labels(axes, y[:, :2], frames.phones, of_frame, 10)
    return result
