"""Command line of the campaign; see the package."""

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console

from experiments.tables import Table
from tests import campaign
from tests.campaign import outcomes, runner


def counted(tally: runner.Tally) -> Table:
    found = Table("All counts; those in brackets are no failures", {"probe": "", "of": "", "tests": ",", "counts": ""})
    for probe, group in dict.fromkeys((key.probe, key.group) for key in sorted(tally.counts)):
        rest = {key.kind: n for key, n in sorted(tally.counts.items()) if key[:2] == (probe, group) and key.kind and n}
        said = ", ".join(f"{kind}: {count}" for kind, count in rest.items())
        found.add(probe, group, tally.counts[runner.Key(probe, group)], said)
    return found


def goals(tally: runner.Tally, title: str) -> Table:
    found = Table(title, {"counts": "", "now": ",", "of": ",", "goal": ""})
    for goal in runner.GOALS:
        if of := tally.total(goal.probes, goal.groups, None):
            found.add(goal.name, tally.total(goal.probes, goal.groups, goal.kinds), of, goal.goal)
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
    parser = argparse.ArgumentParser(
        "tests.campaign", description=campaign.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--probes", nargs="+", choices=runner.PROBES, default=list(runner.PROBES))
    parser.add_argument("--folder", type=Path, default=Path("runs/campaign"), help="of the files of failures")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="files of failures, or their folder")
    options = parser.parse_args(arguments)
    console = Console(width=120)
    torch.set_num_threads(options.threads)
    if options.replay:
        try:
            return int(replay(console, options.replay) > 0)
        except ValueError as error:
            parser.error(str(error))
    tally = runner.run(options.minutes, options.seed, options.probes, options.folder)
    console.print(counted(tally).rich(), goals(tally, f"{options.minutes} minutes, seed {options.seed}").rich())
    for seconds, *of in tally.slowest:
        console.print(f"slow: {seconds} s, {', '.join(of)}", highlight=False)
    failures = sorted(options.folder.glob("*.pt"))
    console.print(f"{len(failures)} files of failures in {options.folder}; judge them again with --replay")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
