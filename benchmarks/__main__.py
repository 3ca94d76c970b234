"""One command for all figures.

    python -m benchmarks                                   # lists benchmarks and programs
    python -m benchmarks NAME [--quick] [--json FILE]      # runs one; its own options by NAME --help
    python -m benchmarks all [--quick]                     # runs all, records in benchmarks/records, then results
    python -m benchmarks results                           # RESULTS.md from the records

A benchmark is a module with ``run(record, options)`` and, if it has options of its own, ``add_options(parser)``.
MNIST's test set lies in the folder that TORCH_LAPEIG_DATA names.
"""

import argparse
import importlib
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.child import THREADS

HERE = Path(__file__).resolve().parent
BENCHMARKS = ("embedding", "atlas", "backward", "neighbors", "layer", "positional_encoding", "import_time", "launches")
PROGRAMS = ("compare", "gpu", "kill_and_resume", "mutants", "sanitize")


def module_of(name: str) -> Any:
    return importlib.import_module("benchmarks.atlas.command" if name == "atlas" else f"benchmarks.{name}")


def listing(console: Console) -> None:
    """Print the benchmarks and programs, with the first line of each one's docstring."""
    for title, names in (("benchmarks", BENCHMARKS), ("programs, with command lines of their own", PROGRAMS)):
        console.print(f"[bold]{title}[/bold]")
        for name in names:
            console.print(f"  {name:20s} {module_of(name).__doc__.splitlines()[0]}", highlight=False)
    console.print("[bold]for all of them[/bold]\n  all, results")


def parser_of(name: str, module: Any) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        f"benchmarks {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller problems, fewer rounds")
    parser.add_argument("--threads", type=int, default=1, help="1: seconds of the processor; more: elapsed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the record")
    if hasattr(module, "add_options"):
        module.add_options(parser)
    return parser


def run(name: str, arguments: Sequence[str], console: Console) -> None:
    module = module_of(name)
    options = parser_of(name, module).parse_args(arguments)
    import torch
    from threadpoolctl import threadpool_limits

    from benchmarks.record import Record

    for variable in THREADS:  # for processes that are started from here
        os.environ[variable] = str(options.threads)
    torch.set_num_threads(options.threads)
    shown = [part for part in arguments if part != "--json" and Path(part.removeprefix("--json=")) != options.json]
    command = " ".join(["python -m benchmarks", name, *shown])
    record = Record(name, command, options.threads, quick=options.quick, console=console)
    with warnings.catch_warnings(), threadpool_limits(options.threads):
        warnings.simplefilter("ignore")
        module.run(record, options)
    if options.json is not None:
        record.write(options.json)


def run_all(arguments: Sequence[str], console: Console) -> int:
    """Run each benchmark in a process of its own, with a record for each; return the number of failures."""
    parser = argparse.ArgumentParser("benchmarks all")
    parser.add_argument("--quick", action="store_true", help="smaller problems, fewer rounds, records in runs/records")
    is_quick = parser.parse_args(arguments).quick
    folder = Path("runs/records") if is_quick else HERE / "records"
    failed = 0
    for name in BENCHMARKS:
        for threads in [1] if is_quick else [1, 2]:
            file = folder / (f"{name}.json" if threads == 1 else f"{name}-{threads}.json")
            command = [sys.executable, "-m", "benchmarks", name, "--threads", str(threads), "--json", str(file)]
            console.print(f"==> {name}, {threads} threads", highlight=False)
            failed += subprocess.run(command + ["--quick"] * is_quick, check=False).returncode != 0
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
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
        module_of("results").main()
    else:
        listing(console)
        return int(name not in ("", "-h", "--help"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
