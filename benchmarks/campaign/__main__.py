"""Command line of the campaign; see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import campaign
from benchmarks.campaign import outcomes, runner


def table(results: dict[str, Any]) -> Table:
    """Return tests and failures by probe and group."""
    found = Table(title="All counts; those in brackets are no failures")
    for heading in ("probe", "of", "tests", "unconverged", "failures and other counts"):
        found.add_column(heading, justify="left" if heading in ("probe", "of") else "right")
    for probe, groups in results["counts"].items():
        for group, row in groups.items():
            rest = [f"{kind}: {count}" for kind, count in row.items() if kind not in ("tests", "unconverged")]
            found.add_row(probe, group, str(row["tests"]), str(row["unconverged"]), "\n".join(rest) or "–")
        found.add_section()
    return found


def goals(results: dict[str, Any]) -> Table:
    """Return the counts that have goals."""
    found = Table(title=f"{results['minutes']} minutes, seed {results['seed']}")
    for heading in ("probe", "now", "of", "goal"):
        found.add_column(heading, justify="left" if heading == "probe" else "right")
    for row in results["goals"]:
        found.add_row(row["probe"], str(row["now"]), str(row["of"]), row["goal"])
    return found


def replay(console: Console, paths: list[Path]) -> int:
    """Judge failures again; the number that still fail."""
    files = [file for path in paths for file in (sorted(path.glob("*.pt")) if path.is_dir() else [path])]
    failing = 0
    for file in files:
        before = outcomes.load(file)[2]
        outcome = runner.replay(file)
        failing += bool(outcome.findings)
        console.print(f"{file.name} ({outcome.family})", highlight=False)
        for name, findings in (("was", before), ("is ", outcome.findings)):
            said = "; ".join(f"{kind}: {detail}" for kind, detail in findings) or "right"
            console.print(f"  {name} {said}", highlight=False)
    console.print(f"{failing} of {len(files)} still fail")
    return failing


def main(arguments: list[str] | None = None) -> int:
    """Run or replay; 1 where failures were found."""
    parser = argparse.ArgumentParser(
        "benchmarks.campaign", description=campaign.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="in all, earlier runs of the folder included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--probes", nargs="+", choices=runner.PROBES, default=list(runner.PROBES))
    parser.add_argument("--folder", type=Path, default=Path("runs/campaign"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="files of failures, or their folder")
    options = parser.parse_args(arguments)
    console = Console(width=120)
    torch.set_num_threads(options.threads)
    try:
        if options.replay:
            return int(replay(console, options.replay) > 0)
        found = runner.Campaign(options.folder, options.seed)
    except ValueError as error:
        parser.error(str(error))
    try:
        found.run(options.minutes, options.probes)
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here")
    results = found.results()
    console.print(table(results), goals(results), sep="\n")
    for seconds, *of in results["slowest"]:
        console.print(f"slow: {seconds:.1f} s, {', '.join(of)}", highlight=False)
    failures = sorted((options.folder / "failures").glob("*.pt"))
    console.print(f"{len(failures)} files of failures in {options.folder / 'failures'}; replay them with --replay")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
