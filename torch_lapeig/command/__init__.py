"""The command ``torch-lapeig embed``: Laplacian eigenmaps of your own data, with a report and a saved module.

    torch-lapeig embed --input points.npy [--labels y.npy] [--new new.npy] [--out folder]

Nothing is chosen in silence: each choice is printed with its reason. Needs matplotlib (extra ``embed``), and pandas for
.parquet.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from torch_lapeig.command import choices, reading, report
from torch_lapeig.command.choices import Answer
from torch_lapeig.command.reading import Array, Columns, InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["InputError", "main"]

FILES = ("report.html", "embedding.png", "embedding.npy", "embedding_new.npy", "model.pt", "load.py", "scaling.npy")
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
    add("--input", required=True, metavar="FILE", help=".npy, .npz (file.npz:name), .csv or .parquet: a row is a point")
    add(
        "--labels",
        metavar="FILE|COLUMN",
        help="colours: a file with one label for each point, or a column of the input",
    )
    add("--new", metavar="FILE", help="new points, embedded by Nyström's formula")
    add("--out", type=Path, metavar="FOLDER", help="of the report (default: embedding-INPUT)")
    add("--overwrite", action="store_true", help="write to a folder that there is already")
    add("--neighbors", type=int, metavar="K", help="of each point (default: 10, more while the graph falls apart)")
    add("--weighting", metavar="NAME", help=f"{', '.join(choices.WEIGHTINGS)}, or module:name of your own")
    add("--bandwidth", type=float, metavar="T", help="of the heat kernel, in squared units (default: a median)")
    add("--components", type=int, metavar="K", help="columns of the embedding (default: 10)")
    add("--standardize", action="store_true", help="subtract each column's mean, divide by its standard deviation")
    add("--leave-out", nargs="+", default=[], metavar="COLUMN", help="columns of a table that are no coordinates")
    add("--device", default="cpu", help="cpu (default), cuda, …")


def run(options: argparse.Namespace) -> None:
    """Read, embed, write and report; raise `InputError`, before anything is written, where that is impossible."""
    figure = report.new_figure()
    out = options.out or Path(f"embedding-{Path(options.input.rpartition('.')[0]).name}")
    check_out(out, options.overwrite)
    notes: list[str] = []
    found = reading.read(options.input, notes)
    label_column = isinstance(found, dict) and options.labels in found
    without = [*options.leave_out, *([options.labels] if label_column else [])]
    x = reading.points_of(found, options.input, without, notes)
    reading.check_points(x, options.input, notes)
    labels = labels_of(options.labels, found, len(x), label_column, notes)
    x_new = new_points(options.new, without, found, x, notes)
    scaling = scaling_of(x) if options.standardize else None
    if scaling is not None:
        x = (x - scaling[0]) / scaling[1]
        x_new = None if x_new is None else (x_new - scaling[0]) / scaling[1]
        notes.append("each column is standardized: less its mean, over its standard deviation")
    answer = choices.embed(x, x_new, options, notes, device_of(options.device))
    title = f"{options.input}: {len(x):,} points in {x.shape[1]} dimensions, {x.dtype}"
    report.draw(figure, answer, labels, options.labels or "")
    write(out, title, figure, answer, x, scaling)
    print(report.summary(title, answer))
    print(f"\n  {out / 'report.html'} has all of this; {out / 'load.py'} embeds new points by the saved module")


def check_out(out: Path, overwrite: bool) -> None:
    """Raise `InputError` unless the folder is new or empty, or may be written over."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out must be a folder, got the file {out}")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise InputError(f"{out} is there already: pass --overwrite, or another --out")


def labels_of(given: str | None, found: Array | Columns, n: int, column: bool, notes: list[str]) -> Array | None:
    """Return the labels of a file or of a column of the input."""
    if given is None:
        return None
    if column and not isinstance(found, np.ndarray):
        return reading.labels_of({given: found[given]}, f"column {given!r}", n, notes)
    if not reading.is_file(given):
        raise InputError(f"--labels {given}: there is no such file, and no such column in the input")
    return reading.labels_of(reading.read(given, notes), given, n, notes)


def new_points(
    given: str | None, without: Sequence[str], like: Array | Columns, x: Array, notes: list[str]
) -> Array | None:
    """Return new points with the columns and dtype of the others; named columns are taken by name."""
    if given is None:
        return None
    found = reading.read(given, notes)
    if not isinstance(found, np.ndarray):
        if not isinstance(like, np.ndarray):
            found = reading.as_named(found, given, reading.named_points(like, without), notes)
        without = [name for name in without if name in found]
    new = reading.points_of(found, given, without if not isinstance(found, np.ndarray) else [], notes)
    if new.shape[1] != x.shape[1] or len(new) == 0:
        raise InputError(f"{given} must have points of {x.shape[1]} columns as the input has, got shape {new.shape}")
    return new.astype(x.dtype)


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
    code = LOADING.format(
        code=answer.code,
        model="model.pt",
        dtype=x.dtype,
        columns=x.shape[1],
        scaling="" if scaling is None else SCALING.format(file="scaling.npy"),
    )
    (out / "load.py").write_text(f'"""In the folder of this file: embeds the points of new.npy."""\n\n{code}')
    (out / "report.html").write_text(report.page(title, answer, out / "embedding.png", code), encoding="utf-8")
