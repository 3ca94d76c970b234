"""The command ``torch-lapeig``: ``embed`` makes Laplacian eigenmaps of a file, ``transform`` embeds new rows.

    torch-lapeig embed --input points.csv [--index id] [--labels kind] [--out folder]
    torch-lapeig transform folder new.csv

If a file can be read in several ways, it asks for an option. It prints first what it used (docs/command.md). Needs
the extra ``embed``.
"""

from __future__ import annotations

import argparse
import warnings
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torch_lapeig
from torch_lapeig.command import choices, columns, report
from torch_lapeig.command.columns import Array, Used
from torch_lapeig.command.reading import InputError, path_and_member, read
from torch_lapeig.methods import LaplacianEigenmaps
from torch_lapeig.support.extras import how_to_install

__all__ = ["InputError", "load", "main"]

READING = ("header", "separator", "decimal", "thousands", "encoding", "missing", "skip_lines", "index")
NOT_OF_PAIRS = ("standardize", "weighting", "one_hot", "drop_rows_with_missing")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; raise SystemExit with a message if the data cannot be embedded."""
    parser = argparse.ArgumentParser("torch-lapeig", description="Differentiable spectral embedding for PyTorch.")
    parser.add_argument("--version", action="version", version=f"torch_lapeig {torch_lapeig.__version__}")
    commands = parser.add_subparsers(required=True)
    of_embed = commands.add_parser("embed", help="Laplacian eigenmaps of a file")
    of_embed.set_defaults(run=embed)
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
    add("--device", default="cpu", help="cpu (default), cuda, …")
    new = commands.add_parser("transform", help="new rows, by the module of a run", argument_default=argparse.SUPPRESS)
    new.set_defaults(
        run=transform, out=None, overwrite=False, drop_rows_with_missing=False, given=None, labels=None, leave_out=[]
    )
    new.add_argument("folder", type=Path, metavar="RUN", help="folder that embed wrote")
    new.add_argument("new", metavar="FILE", help="rows with the columns of the run, read by its options")
    for add in (of_embed.add_argument, new.add_argument):
        add("--out", type=Path, metavar="PATH", help="to write to (default: embedding-FILE)")
        add("--overwrite", action="store_true", help="write over what is there already")
        add("--index", metavar="COLUMN", help="names of the rows (default: a first column without a name)")
        add("--header", action=argparse.BooleanOptionalAction, help="line 1 names the columns, or is a row")
        add("--separator", metavar="SIGN", help="of cells: ';', tab, blank … (default: a comma, of .tsv a tab)")
        add("--decimal", metavar="SIGN", help="in numbers (default: a point)")
        add("--thousands", metavar="SIGN", help="in numbers (default: none)")
        add("--encoding", metavar="NAME", help="of text (default: UTF-8)")
        add("--missing", nargs="+", metavar="MARK", help="missing cells, beside empty ones, NA, nan, null")
        add("--skip-lines", nargs="+", type=int, metavar="NUMBER", help="numbers of lines that are not rows, from 1")
        add("--drop-rows-with-missing", action="store_true", help="leave out rows with missing or infinite numbers")
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except ImportError as error:
        raise SystemExit(f"error: {error}: {how_to_install('embed')}") from error
    except (InputError, OSError) as error:  # errors of input files have their own messages; an OSError is of --out
        raise SystemExit(f"error: {error}") from None


def embed(options: Namespace) -> None:
    """Read, embed, write and report; raise `InputError`, before anything is written, if that is impossible."""
    for name in ("bokeh", "matplotlib", "pandas"):  # before the embedding, which may take long
        import_module(name)
    out = options.out or Path(f"embedding-{stem(options.input)}")
    if out.exists() and not options.overwrite and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already: pass --overwrite, or another --out")
    for name in {None: [], "distance": NOT_OF_PAIRS}.get(options.given, [*NOT_OF_PAIRS, "neighbors", "bandwidth"]):
        if getattr(options, name):
            raise InputError(f"--{name.replace('_', '-')} does not go with --given {options.given}")
    data = read(options.input, options)
    used = columns.used_of(data, options)
    used.advice += [] if options.given else columns.advice(used, data)
    print(*report.of_input(used), sep="\n", flush=True)
    scaling = None
    if options.standardize:
        deviation = np.where((used.x == used.x[0]).all(0), 1, used.x.std(0, dtype=np.float64))
        scaling = np.stack([used.x.mean(0, dtype=np.float64), deviation])
    answer = choices.embed(scaled(used.x, scaling), options)
    print(*report.of_answer(answer, used.index), sep="\n")
    y, name = answer.module.embedding_.numpy(), options.labels or ""
    png = report.picture(answer, used, name)
    html = report.page(f"{options.input}: {len(y):,} points", answer, used, name, png)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.html").write_text(html, encoding="utf-8")
    (out / "embedding.png").write_bytes(png)
    np.save(out / "embedding.npy", y)
    write_rows(out / "embedding.csv", used, y)
    (out / "model.pt").unlink(missing_ok=True)
    if not options.given:
        saved = {
            "module": [y.shape[1], int(answer.choices[0].value), options.weighting or "heat", options.bandwidth],
            "state": answer.module.state_dict(),
            "columns": used.columns,
            "one_hot": used.categories,
            "scaling": None if scaling is None else torch.from_numpy(scaling),
            "reading": {name: getattr(options, name) for name in READING},
        }
        torch.save(saved, out / "model.pt")
        print(f"{out / 'model.pt'} embeds new rows: torch-lapeig transform {out} FILE")
    print(f"{out / 'report.html'} has all of this, with a picture")


def transform(options: Namespace) -> None:
    """Embed new rows by the module of a run, and write them as CSV."""
    out = options.out or Path(f"embedding-{stem(options.new)}.csv")
    if out.exists() and not options.overwrite:
        raise InputError(f"{out} is there already: pass --overwrite, or another --out")
    module, saved = load(options.folder)
    asked = Namespace(**saved["reading"] | vars(options) | {name: saved[name] for name in ("columns", "one_hot")})
    data = read(options.new, asked)
    if not hasattr(options, "index") and asked.index not in data.rows:  # new rows need no names
        asked.index = None
    used = columns.used_of(data, asked)
    print(*report.of_input(used), sep="\n", flush=True)
    if not len(used.x):
        raise InputError(f"{options.new} has no rows to embed")
    scaling = None if saved["scaling"] is None else saved["scaling"].numpy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            y = module.transform(torch.tensor(scaled(used.x, scaling), dtype=module.embedding_.dtype)).numpy()
        except ValueError as error:
            raise InputError(f"{options.new}: {' '.join(str(error).split())}") from error
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"note: {message}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_rows(out, used, y)
    print(f"{out} has their columns")


def load(folder: str | Path) -> tuple[LaplacianEigenmaps, dict[str, Any]]:
    """Return the fitted module of a run, and what else it saved: columns, categories, scaling, options of reading."""
    path = Path(folder) / "model.pt"
    if not path.is_file():
        raise InputError(f"{path} is not there: embed writes it for points, not for --given")
    try:
        saved = torch.load(path, weights_only=True)
        module = choices.module_of(*saved["module"]).to(saved["state"]["embedding_"].dtype)
        module.load_state_dict(saved["state"])
    except Exception as error:  # of a damaged file, or one of another version
        raise InputError(f"{path} is damaged or of another version: {' '.join(str(error).split())}") from error
    return module, saved


def write_rows(path: Path, used: Used, y: Array) -> None:
    """Write an embedding as CSV with the names of its rows."""
    import pandas

    pandas.DataFrame(y, used.index, [f"column {i + 1}" for i in range(y.shape[1])]).to_csv(
        path, index_label=used.index.name or "row"
    )


def stem(given: str) -> str:
    """Return the name of a file without its endings."""
    return Path(path_and_member(given)[0].name.removesuffix(".gz")).stem


def scaled(x: Any, scaling: Array | None) -> Any:
    """Return points less the mean of each column, over its deviation; mean and deviation are ``(2, D)``."""
    return x if scaling is None else ((x - scaling[0]) / scaling[1]).astype(x.dtype)
