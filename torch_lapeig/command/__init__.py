"""The command ``torch-lapeig embed``: Laplacian eigenmaps of your own data, with a report and a saved module.

    torch-lapeig embed --input points.csv [--labels y.npy] [--new new.npy] [--out folder]

Nothing is chosen in silence: each choice is printed with its reason. Needs matplotlib and pandas (extra ``embed``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import torch_lapeig
from torch_lapeig.command import choices, points, reading, report
from torch_lapeig.command.choices import Answer
from torch_lapeig.command.points import Array, Points
from torch_lapeig.command.reading import Found
from torch_lapeig.command.tables import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["InputError", "main"]

FILES = (
    "report.html",
    "embedding.png",
    "embedding.npy",
    "embedding_new.npy",
    "model.pt",
    "load.py",
    "scaling.npy",
    "rows.npy",
)
LOADING = """import numpy as np
import torch
{code}
module.load_state_dict(torch.load({model!r}, weights_only=True))
points = torch.from_numpy(np.load("new.npy").astype("{dtype}"))  # (number, {columns})
{scaling}print(module.transform(points))
"""
SCALING = "mean, deviation = torch.from_numpy(np.load({file!r}))\npoints = (points - mean) / deviation\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; raise SystemExit with a message where the data cannot be embedded."""
    parser = argparse.ArgumentParser("torch-lapeig", description="Differentiable spectral embedding for PyTorch.")
    parser.add_argument("--version", action="version", version=f"torch_lapeig {torch_lapeig.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    add_options(commands.add_parser("embed", help="Laplacian eigenmaps of your own data"))
    options = parser.parse_args(arguments)
    try:
        run(options)
    except (InputError, OSError) as error:  # errors of input files have their own messages; an OSError is of --out
        raise SystemExit(f"error: {error}") from None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``embed``."""
    add = parser.add_argument
    add(
        "--input", required=True, metavar="FILE", help=f"a row is a point: {', '.join(reading.READERS)} (file.npz:name)"
    )
    add("--labels", metavar="FILE|COLUMN", help="colours: a label for each point, or a column of the input")
    add("--new", metavar="FILE", help="new points, embedded by Nyström's formula")
    add("--given", choices=("distance", "affinity"), help="the input is a matrix of pairs of points")
    add("--out", type=Path, metavar="FOLDER", help="of the report (default: embedding-INPUT)")
    add("--overwrite", action="store_true", help="write to a folder that there is already")
    add("--neighbors", type=int, metavar="K", help="of each point (default: 10, more while the graph falls apart)")
    add("--weighting", metavar="NAME", help=f"{', '.join(choices.WEIGHTINGS)}, or module:name of your own")
    add("--bandwidth", type=float, metavar="T", help="of the heat kernel, in squared units (default: a median)")
    add("--components", type=int, metavar="K", help="columns of the embedding (default: 10)")
    add("--separate", action="store_true", help="embed each part of a graph that falls apart on its own")
    add("--standardize", action="store_true", help="subtract each column's mean, divide by its standard deviation")
    add("--leave-out", nargs="+", default=[], metavar="COLUMN", help="columns of a table that are no coordinates")
    add(
        "--drop-rows-with-missing",
        action="store_true",
        help="leave out rows with empty cells, NA, ? or infinite numbers",
    )
    add("--header", choices=("yes", "no"), help="line 1 of a text names the columns (default: by its cells)")
    add("--decimal", choices=("point", "comma"), help="decimal sign of a text; the other one separates thousands")
    add("--encoding", metavar="NAME", help="of a text (default: UTF-8, UTF-16 or Windows' by its bytes)")
    add("--device", default="cpu", help="cpu (default), cuda, …")


def run(options: argparse.Namespace) -> None:
    """Read, embed, write and report; raise `InputError`, before anything is written, where that is impossible."""
    figure = report.new_figure()
    path = reading.path_and_member(options.input)[0]
    out = options.out or Path(f"embedding-{path.name.removesuffix('.gz').rpartition('.')[0]}")
    check_out(out, options.overwrite)
    notes: list[str] = []
    scaling: Array | None = None
    kept: Array | None = None
    images: Array | None = None
    device = device_of(options.device)
    found = reading.read(options.input, options, notes)
    labels, without = labels_of(options, found, notes)
    if options.given is None:
        given = points.points_of(found, options.input, without, options.drop_rows_with_missing, notes)
        kept, x = given.kept, given.x
        labels = None if labels is None else labels[kept]
        points.check_points(x, options.input, notes, given.names)
        if (images := given.images()) is not None:
            notes.append(f"points are drawn as images of {images.shape[1]}×{images.shape[2]}")
        new = new_points(options, given, notes)
        if options.standardize:
            scaling = scaling_of(x)
            x, new = (x - scaling[0]) / scaling[1], None if new is None else (new - scaling[0]) / scaling[1]
            notes.append("each column is standardized: less its mean, over its standard deviation")
        title = f"{options.input}: {len(x):,} points in {x.shape[1]} dimensions, {x.dtype}"
    else:
        check_pairs_only(options)
        x, new = points.pairs_of(found, options.input, without, notes), None
        title = f"{options.input}: {x.shape[0]:,} points by their {options.given}"
    answer = choices.embed(x, new, options, notes, device)
    report.draw(figure, title, answer, report.Drawn(labels, options.labels or "", images))
    write(out, title, figure, answer, x, scaling)
    if kept is not None and not kept.all():
        np.save(out / "rows.npy", np.flatnonzero(kept))
    print(report.summary(title, answer))
    module = f"; {out / 'load.py'} embeds new points by the saved module" if answer.code else ""
    print(f"\n  {out / 'report.html'} has all of this{module}")


def check_pairs_only(options: argparse.Namespace) -> None:
    """Raise `InputError` for options that say nothing of given pairs."""
    refused = {"new": None, "standardize": False, "drop_rows_with_missing": False, "weighting": None}
    if options.given == "affinity":
        refused |= {"neighbors": None, "bandwidth": None}
    for name, default in refused.items():
        if getattr(options, name) != default:
            raise InputError(f"--{name.replace('_', '-')} does not go with --given {options.given}")


def check_out(out: Path, overwrite: bool) -> None:
    """Raise `InputError` unless the folder is new or empty, or may be written over."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out must be a folder, got the file {out}")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise InputError(f"{out} is there already: pass --overwrite, or another --out")


def labels_of(options: argparse.Namespace, found: Found, notes: list[str]) -> tuple[Array | None, list[str]]:
    """Return the labels of a file or of a column of the input, and the columns that are no coordinates."""
    given, without = options.labels, list(options.leave_out)
    if given is None:
        return None, without
    n = found.shape[0] if found.ndim else 0
    if hasattr(found, "columns") and given in found.columns:
        return points.labels_of(found[given], f"column {given!r}", n, notes), [*without, given]
    if reading.is_file(given):
        return points.labels_of(reading.read(given, options, notes, n), given, n, notes), without
    if (path := reading.path_and_member(options.input)[0]).suffix == ".h5ad":
        of_obs = reading.read(f"{path}:obs/{given}", options, notes)
        return points.labels_of(of_obs, f"obs {given!r}", n, notes), without
    if hasattr(found, "columns"):
        reading.known(given, found.columns, f"--labels {given}: there is no such file, and {options.input}")
    raise InputError(f"--labels {given}: there is no such file, and no such column in the input")


def new_points(options: argparse.Namespace, like: Points, notes: list[str]) -> Array | None:
    """Return new points with the columns and dtype of the others; named columns are taken by name."""
    if options.new is None:
        return None
    found = reading.read(options.new, options, notes)
    if hasattr(found, "columns") and like.names is not None:
        for name in like.names:
            reading.known(name, found.columns, options.new)
        if others := [name for name in found.columns if name not in like.names]:
            notes.append(
                f"{options.new}: columns that are no coordinates of the input are left out: {', '.join(others)}"
            )
        found = found[like.names]
    is_settled = like.names is not None
    new = points.points_of(found, options.new, [], options.drop_rows_with_missing, notes, is_settled=is_settled).x
    if new.shape[1] != like.x.shape[1] or len(new) == 0:
        raise InputError(
            f"{options.new} must have points of {like.x.shape[1]} columns as the input has, got shape {new.shape}"
        )
    return new.astype(like.x.dtype)


def scaling_of(x: Array) -> Array:
    """Return mean and standard deviation of each column ``(2, D)``; 1 for a constant column."""
    deviation = np.where((x == x[0]).all(0), 1, x.std(0, dtype=np.float64))
    return np.stack([x.mean(0, dtype=np.float64), deviation]).astype(x.dtype)


def device_of(name: str) -> torch.device:
    """Return the device of a name."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return device


def write(out: Path, title: str, figure: Figure, answer: Answer, x: Array, scaling: Array | None) -> None:
    """Write the files of the report."""
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    figure.savefig(out / "embedding.png", dpi=110)
    np.save(out / "embedding.npy", answer.columns.cpu().numpy())
    if answer.new is not None:
        np.save(out / "embedding_new.npy", answer.new.cpu().numpy())
    torch.save(answer.module.cpu().state_dict(), out / "model.pt")
    if scaling is not None:
        np.save(out / "scaling.npy", scaling)
    code = ""
    if answer.code:
        code = LOADING.format(
            code=answer.code,
            model="model.pt",
            dtype=x.dtype,
            columns=x.shape[1],
            scaling="" if scaling is None else SCALING.format(file="scaling.npy"),
        )
        (out / "load.py").write_text(f'"""In the folder of this file: embeds the points of new.npy."""\n\n{code}')
    (out / "report.html").write_text(report.page(title, answer, out / "embedding.png", code), encoding="utf-8")
