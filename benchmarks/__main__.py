"""One command for all figures.

    python -m benchmarks                                   # lists benchmarks and programs
    python -m benchmarks NAME [--quick] [--json FILE]      # runs one; its own options by NAME --help
    python -m benchmarks all [--quick] [--threads 1 2]     # runs all, records in benchmarks/records, then results
    python -m benchmarks results                           # RESULTS.md from the records

A benchmark is a module with ``run(record, options)`` and, if it has options of its own, ``add_options(parser)``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.child import THREADS

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "records"
BENCHMARKS = (
    *("embedding", "eigensolvers", "atlas", "backward", "neighbors", "layer", "positional_encoding", "meshes"),
    *("matrix_free", "import_time", "launches", "degeneracy"),
)
PROGRAMS = ("campaign", "compare", "gpu", "kill_and_resume", "mutants", "sanitize")


def module_of(name: str) -> Any:
    """Return the module of a benchmark or a program."""
    return importlib.import_module("benchmarks.atlas.command" if name == "atlas" else f"benchmarks.{name}")


def first_line(name: str) -> str:
    """Return the first line of a module's docstring."""
    return (module_of(name).__doc__ or "").strip().splitlines()[0]


def listing(console: Console) -> None:
    """Print the benchmarks and programs."""
    for title, names in (("benchmarks", BENCHMARKS), ("programs, with command lines of their own", PROGRAMS)):
        console.print(f"[bold]{title}[/bold]")
        for name in names:
            console.print(f"  {name:20s} {first_line(name)}", highlight=False)
    console.print("[bold]for all of them[/bold]\n  all, results")


def parser_of(name: str, module: Any) -> argparse.ArgumentParser:
    """Return the command line of one benchmark."""
    parser = argparse.ArgumentParser(
        f"benchmarks {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller problems, fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the record")
    parser.add_argument("--threads", type=int, default=1, help="1: seconds of the processor; more: elapsed")
    parser.add_argument("--data", type=Path, help="folder of data files; default TORCH_LAPEIG_DATA")
    if hasattr(module, "add_options"):
        module.add_options(parser)
    return parser


def run(name: str, arguments: Sequence[str], console: Console) -> None:
    """Run one benchmark in this process."""
    module = module_of(name)
    options = parser_of(name, module).parse_args(arguments)
    import torch
    from threadpoolctl import threadpool_limits

    from benchmarks.record import Record

    if options.data is not None:
        os.environ["TORCH_LAPEIG_DATA"] = str(options.data)
    for variable in THREADS:  # for processes that are started from here
        os.environ[variable] = str(options.threads)
    torch.set_num_threads(options.threads)
    command = " ".join(["python -m benchmarks", name, *without_paths(arguments)])
    record = Record(name, command, options.threads, quick=options.quick, console=console)
    with warnings.catch_warnings(), threadpool_limits(options.threads):
        warnings.simplefilter("ignore")
        module.run(record, options)
    if options.json is not None:
        record.write(options.json)


def without_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without this machine's folders and files, as a record shows them."""
    named = {"--data": "--data FOLDER", "--folder": "", "--json": "", "--snapatac2": "--snapatac2 PYTHON"}
    shown, skip = [], False
    for argument in arguments:
        option = argument.partition("=")[0]
        if skip:
            skip = False
        elif option in named:
            shown += [named[option]] if named[option] else []
            skip = "=" not in argument
        else:
            shown.append(argument)
    return shown


def run_all(arguments: Sequence[str], console: Console) -> int:
    """Run each benchmark in a process of its own, with a record for each; return the number of failures."""
    parser = argparse.ArgumentParser("benchmarks all")
    parser.add_argument("--quick", action="store_true", help="smaller problems, fewer rounds: ten minutes on two cores")
    parser.add_argument("--threads", type=int, nargs="+", default=None, help="default 1 and 2; quick: 1")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--records", type=Path, default=None, help="default benchmarks/records; quick: runs/records")
    options = parser.parse_args(arguments)
    folder = options.records or (Path("runs/records") if options.quick else RECORDS)
    failed, begin = 0, time.perf_counter()
    for name in options.only:
        for threads in options.threads or ([1] if options.quick else [1, 2]):
            file = folder / (f"{name}.json" if threads == 1 else f"{name}-{threads}.json")
            command = [sys.executable, "-m", "benchmarks", name, "--threads", str(threads), "--json", str(file)]
            command += ["--quick"] if options.quick else []
            command += ["--data", str(options.data)] if options.data else []
            console.print(f"==> {name}, {threads} threads, {time.perf_counter() - begin:.0f} s so far", highlight=False)
            failed += subprocess.run(command, check=False).returncode != 0
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmark or program, or list them."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(width=160)
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in PROGRAMS:
        sys.argv = [f"benchmarks {name}", *rest]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    elif name in BENCHMARKS:
        run(name, rest, console)
    elif name == "all":
        return run_all(rest, console)
    elif name == "results":
        importlib.import_module("benchmarks.results").main()
    else:
        listing(console)
        return int(name not in ("", "-h", "--help"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
