"""The command ``torch-lapeig``: ``embed`` makes Laplacian eigenmaps of a file, ``transform`` embeds new rows.

If a file can be read in several ways, it asks for an option. It prints first what it used. Needs the extra ``embed``.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import shlex
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import torch_lapeig
from torch_lapeig.command import choices, columns, report
from torch_lapeig.command.columns import Array, Used
from torch_lapeig.command.reading import TEXT, InputError, path_and_member, read
from torch_lapeig.methods import LaplacianEigenmaps
from torch_lapeig.support.extras import how_to_install

__all__ = ["InputError", "load", "main"]

NOT_OF_PAIRS = ("standardize", "weighting", "one_hot", "drop_rows_with_missing")
NOT_OF_GRAPHS = (*NOT_OF_PAIRS, "neighbors", "bandwidth")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; raise SystemExit with one line if it fails, and no other exception."""
    parser = argparse.ArgumentParser("torch-lapeig", description="Differentiable spectral embedding for PyTorch.")
    parser.add_argument("--version", action="version", version=f"torch_lapeig {torch_lapeig.__version__}")
    commands = parser.add_subparsers(required=True)
    of_embed = commands.add_parser("embed", help="Laplacian eigenmaps of a file")
    of_embed.set_defaults(run=embed, count=None)
    add = of_embed.add_argument
    add("--input", required=True, metavar="FILE", help="a row is a point; file.npz:NAME is one array of several")
    add("--labels", metavar="COLUMN|FILE", help="colours: a column, or a file with a label for each row")
    add("--given", choices=("distance", "affinity", "edges"), help="the input has pairs of points")
    add("--leave-out", nargs="+", default=[], metavar="COLUMN", help="columns that are not coordinates")
    add("--columns", nargs="+", default=[], metavar="COLUMN", help="the coordinates (default: all other columns)")
    add("--one-hot", nargs="+", default=[], metavar="COLUMN", help="categories: a column of 0 and 1 for each")
    add("--standardize", action="store_true", help="subtract each column's mean, divide by its standard deviation")
    add("--neighbors", type=int, metavar="K", help="of each point (default: 10, more while the graph falls apart)")
    add("--weighting", choices=choices.WEIGHTINGS, help="of the edges (default: heat)")
    add("--bandwidth", type=float, metavar="T", help="of the heat kernel, in squared units (default: a median)")
    add("--components", type=int, metavar="K", help="columns of the embedding (default: 10)")
    add("--clusters", metavar="auto|N", help="clusters of the points (default: none)")
    add("--device", default="cpu", help="cpu (default), cuda, ...")
    new = commands.add_parser("transform", help="new rows, by the module of a run")
    new.set_defaults(run=transform, count=None, given=None, labels=None, leave_out=[])
    new.add_argument("folder", type=Path, metavar="RUN", help="folder that embed wrote")
    new.add_argument("input", metavar="FILE", help="rows with the columns of the run, read by its options")
    for add in (of_embed.add_argument, new.add_argument):
        add("--out", type=Path, metavar="PATH", help="to write to (default: embedding-FILE)")
        add("--overwrite", action="store_true", help="write over what is there already")
        add("--index", metavar="COLUMN", help="names of the rows (default: a first column without a name)")
        add("--header", action=argparse.BooleanOptionalAction, help="line 1 names the columns, or is a row")
        add("--quotes", action=argparse.BooleanOptionalAction, help="cells hold line breaks, or quotes are signs")
        add("--separator", metavar="SIGN", help="of cells: ';', tab, blank, ... (default: a comma, of .tsv a tab)")
        add("--decimal", metavar="SIGN", help="in numbers (default: a point)")
        add("--thousands", metavar="SIGN", help="in numbers (default: none); a blank means all kinds of blanks")
        add("--encoding", metavar="NAME", help="of text (default: UTF-8)")
        add("--missing", nargs="+", metavar="MARK", help="missing cells, next to empty ones, NA, nan, null")
        add("--keep", nargs="+", metavar="WORD", help="words that are not missing cells, such as NA")
        add("--skip-lines", nargs="+", type=int, metavar="NUMBER", help="numbers of lines that are not rows, from 1")
        add("--drop-rows-with-missing", action="store_true", help="leave out rows with missing or infinite numbers")
    options = parser.parse_args(arguments)
    options.line = sys.argv[1:] if arguments is None else arguments
    has_file = bool(options.labels) and path_and_member(options.labels)[0].is_file()  # on which options may act, too
    options.own = set() if has_file else {name for name in TEXT if getattr(options, name) is not None}
    try:
        for name in ("bokeh", "matplotlib", "pandas"):  # before the embedding, which may take long
            import_module(name)
        options.run(options)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        ways = {InputError: "", ImportError: f": {how_to_install('embed')}", MemoryError: "not enough memory"}
        known = [way for kind, way in ways.items() if isinstance(error, kind)]
        way = known[0] if known else f" ({type(error).__name__}, a fault: please report it)"
        raise SystemExit(f"error: {' '.join(str(error).split())}{way}") from None


def embed(options: Namespace) -> None:
    """Read, embed, write and report; raise `InputError`, before anything is written, if that is impossible."""
    out = place_of(options, is_folder=True)
    idle = {None: (), "distance": NOT_OF_PAIRS, "affinity": NOT_OF_GRAPHS, "edges": (*NOT_OF_GRAPHS, "missing", "keep")}
    for name in idle[options.given]:
        if getattr(options, name):
            raise InputError(f"--{name.replace('_', '-')} does not go with --given {options.given}")
    data = read(options.input, options)
    used = columns.used_of(data, options)
    used.lines["command"] = shlex.join(["torch-lapeig", *options.line])
    say(*report.of_input(used))
    answer = choices.embed(used.x, options)
    say(*report.of_answer(answer))
    y, name = answer.module.embedding_.numpy(), options.labels or "cluster"
    more = {name: found for name, found in (("label", used.labels), ("cluster", answer.clusters)) if found is not None}
    png = report.picture(answer, used, next(iter(more.values()), None), name)
    page = report.page(f"{options.input}: {len(y):,} points", answer, used, more, name, png)
    np.save(array := io.BytesIO(), y)
    files = {"report.html": page, "embedding.png": png, "embedding.npy": array.getvalue()}
    files["embedding.csv"] = rows_of(used, y, more)
    if not options.given:
        saved = {
            "module": [y.shape[1], answer.choices["neighbors"][0], options.weighting or "heat", options.bandwidth],
            "state": answer.module.state_dict(),
            "columns": used.columns,
            "shape": data.shape,
            "one_hot": used.categories,
            "scaling": None if used.scaling is None else torch.from_numpy(used.scaling),
            "reading": {name: getattr(options, name) for name in (*TEXT, "index")} | {"skip_lines": data.skipped},
        }
        torch.save(saved, model := io.BytesIO())
        files["model.pt"] = model.getvalue()
    write(out, files)
    if options.given:
        (out / "model.pt").unlink(missing_ok=True)  # of another run
    else:
        say(f"{out / 'model.pt'} embeds new rows: torch-lapeig transform {out} FILE")
    say(f"{out / 'report.html'} has all of this, with a picture")


def transform(options: Namespace) -> None:
    """Embed new rows by the module of a run, and write them as CSV."""
    out = place_of(options, is_folder=False)
    module, saved = load(options.folder)
    given = {name: value for name, value in vars(options).items() if value is not None or name not in saved["reading"]}
    asked = Namespace(**saved["reading"] | given | {name: saved[name] for name in ("columns", "one_hot")})
    data = read(options.input, asked)
    if data.shape != saved["shape"]:
        rows, those = ("×".join(map(str, shape)) or "columns with names" for shape in (data.shape, saved["shape"]))
        raise InputError(f"{options.input} has rows of {rows}, and the run had {those}: bring new rows to that form")
    if options.index is None and asked.index not in data.rows:  # new rows need no names
        asked.index = None
    used = columns.used_of(data, asked)
    say(*report.of_input(used))
    if not len(used.x):
        raise InputError(f"{options.input} has no rows to embed")
    if saved["scaling"] is not None:
        used.scale(saved["scaling"].numpy())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            y = module.transform(torch.tensor(used.x, dtype=module.embedding_.dtype)).numpy()
        except ValueError as error:
            raise InputError(f"{options.input}: {error}") from error
    say(*(f"note: {message}" for message in dict.fromkeys(str(warning.message) for warning in caught)))
    write(out.parent, {out.name: rows_of(used, y, {})})
    say(f"{out} has their columns")


def say(*parts: Any) -> None:
    """Print in the signs that the terminal has; a pipe that is closed does not stop the work."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        for part in parts:
            print(str(part).encode(encoding, "replace").decode(encoding), flush=True)
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # what the buffer holds goes nowhere, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def place_of(options: Namespace, *, is_folder: bool) -> Path:
    """Return where results go; raise `InputError` if they cannot be written there, before they are computed."""
    name = Path(path_and_member(options.input)[0].name.removesuffix(".gz")).stem
    out: Path = options.out or Path(f"embedding-{name}{'' if is_folder else '.csv'}")
    if os.path.lexists(out) and not (is_folder and out.is_dir() and not any(out.iterdir())):
        if not (out.is_dir() if is_folder else out.is_file() and not out.is_symlink()):
            raise InputError(f"{out} is there already, as a link, a device or of another kind: choose another --out")
        if not options.overwrite:
            raise InputError(f"{out} is there already: pass --overwrite, or another --out")
    write(out if is_folder else out.parent, {})
    return out


def write(folder: Path, files: dict[str, bytes]) -> None:
    """Write files aside, and then move all of them into a folder; without files only try the place."""
    place = folder
    try:
        base = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with TemporaryDirectory(prefix=".torch-lapeig-", dir=base) as aside:
            for name, content in files.items():
                if (place := folder / name).is_dir():
                    raise IsADirectoryError(errno.EISDIR, "a folder of that name is there")
                Path(aside, name).write_bytes(content)
            if files:
                folder.mkdir(parents=True, exist_ok=True)
            for name in files:
                Path(aside, name).replace(place := folder / name)
    except OSError as error:
        raise InputError(f"{place} cannot be written: {error.strerror or error}") from error


def load(folder: str | Path) -> tuple[LaplacianEigenmaps, dict[str, Any]]:
    """Return the fitted module of a run, and what else it saved: columns, categories, scaling, options of reading."""
    path = Path(folder) / "model.pt"
    if not path.is_file():
        raise InputError(f"{path} is not there: embed writes it for points, not for --given")
    try:
        saved = torch.load(path, weights_only=True)
        module = choices.module_of(*saved["module"]).to(saved["state"]["embedding_"].dtype)
        module.load_state_dict(saved["state"])
        saved["shape"] = tuple(saved["shape"])
    except Exception as error:  # of a damaged file, or one of another version
        raise InputError(f"{path} is damaged or of another version: {str(error).split('. ')[0]}") from error
    return module, saved


def rows_of(used: Used, y: Array, more: dict[str, Array]) -> bytes:
    """Return an embedding as CSV with the names of its rows, and more columns."""
    import pandas

    table = pandas.DataFrame(y, used.index, [f"column {i + 1}" for i in range(y.shape[1])]).assign(**more)
    name = used.index.name or "row"
    text: str = table.to_csv(index_label=f"name: {name}" if name in table else name)
    return text.encode("utf-8", "replace")
