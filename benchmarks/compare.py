"""The speed guard: this checkout against an earlier commit, the same rows in turn, in one run.

    python -m benchmarks.compare [CHECKOUT] [--rows "layer.*"] [--rounds 11] [--threads 1]

Claim: no row takes more than 1.1 of the time of commit b8882eae, and the geometric mean of all is at most 1. Without
CHECKOUT that commit is unpacked into ``runs/compare``, and its loops are compiled. Each side runs in a process, which
stays for the whole run; in each round both time the row, now one and now the other first: seconds of the processor
with one thread, elapsed ones with more. A row's ratio is the median of this checkout over the median of the other.
Machines are noisy: a row, or the mean to two digits, is too slow only if the median of the rounds' ratios says so, too.
The command ends with 1 if anything is too slow.
"""

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.child import Child, Ended
from benchmarks.compare_worker import ROWS
from benchmarks.timing import ratio

HERE = Path(__file__).resolve().parents[1]
BASE = "b8882eae"
SLOWER, MEAN = 1.1, 1.0
LONGEST = 60.0  # seconds that a row takes; after them three rounds are enough


def unpacked(commit: str, folder: Path) -> Path:
    """Return a folder with the files of a commit and its compiled loops; an earlier run may have made it."""
    if not folder.exists():
        folder.mkdir(parents=True)
        packed = subprocess.run(["git", "archive", commit], cwd=HERE, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
        subprocess.run([sys.executable, "hatch_build.py"], cwd=folder, check=True)
    return folder


class Side(Child):
    """A process that times rows with the package of one checkout."""

    def __init__(self, checkout: Path, threads: int) -> None:
        worker = Path(__file__).with_name("compare_worker.py")
        super().__init__([sys.executable, str(worker)], threads, {"PYTHONPATH": str(checkout)})
        if checkout not in (found := Path(self.answer()["torch_lapeig"])).parents:
            self.end()
            raise SystemExit(f"error: {checkout} holds no torch_lapeig; {found} was imported")

    def time(self, row: str) -> tuple[float, float]:
        """Return seconds, and the norm of what came out."""
        try:
            answer = self.ask({"row": row})
        except Ended as ended:
            raise SystemExit(f"error: {ended}") from ended
        if not answer["is_compiled"]:
            raise SystemExit("error: a side has no compiled loops; run `python hatch_build.py` in its checkout")
        return answer["seconds"], answer["result"]


def compare(row: str, here: Side, there: Side, rounds: int) -> tuple[list[float], list[float], float]:
    """Return seconds of both sides in each round after one of warm-up, and how far their results differ in relation."""
    # There are rounds of them, or as many as `LONGEST` allows, at least three.
    seconds: dict[Side, list[float]] = {here: [], there: []}
    results: dict[Side, float] = {}
    for number in range(rounds + 1):
        for side in (here, there) if number % 2 else (there, here):
            taken, results[side] = side.time(row)
            seconds[side].append(taken)
        if number >= 3 and sum(map(sum, seconds.values())) > LONGEST:
            break
    difference = abs(results[here] - results[there]) / max(abs(results[there]), 1e-30)
    return seconds[here][1:], seconds[there][1:], difference


def judge(ratios: Mapping[str, tuple[float, float]]) -> tuple[str, bool]:
    """Return a line on the rows' ratios (of the medians, median of the rounds), and whether all is fast enough."""
    slower = [row for row, both in ratios.items() if min(both) > SLOWER]
    mean, of_rounds = (round(statistics.geometric_mean(way), 2) for way in zip(*ratios.values(), strict=True))
    means = f"geometric mean {mean:.2f}, of rounds {of_rounds:.2f} (goal ≤ {MEAN})"
    return f"{means}; above {SLOWER}: {', '.join(slower) or 'none'}", not slower and min(mean, of_rounds) <= MEAN


def main() -> int:
    """Compare the rows, and show the table; 1 where a row or the mean is slower."""
    parser = argparse.ArgumentParser(
        "benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?", help=f"folder of another torch_lapeig; default commit {BASE}")
    parser.add_argument("--rows", default="", help="regular expression that the names of rows are searched for")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    rows = [*filter(re.compile(options.rows).search, ROWS)]
    if not rows or (options.other and options.other.resolve() == HERE):
        parser.error(f"{options.other} is this checkout" if rows else f"no row has {options.rows!r} in its name")
    other = options.other or unpacked(BASE, HERE / "runs" / "compare" / BASE)
    here, there = Side(HERE, options.threads), Side(other.resolve(), options.threads)
    table = Table(title=f"{options.threads} threads, {options.rounds} rounds in turn")
    for heading in ("row", "other ms", "here ms", "ratio", "of rounds", "results differ by"):
        table.add_column(heading, justify="left" if heading == "row" else "right")
    ratios: dict[str, tuple[float, float]] = {}
    for row in rows:
        ours, theirs, difference = compare(row, here, there, options.rounds)
        ratios[row] = of_medians, of_rounds = statistics.median(ours) / statistics.median(theirs), ratio(ours, theirs)
        milliseconds = (f"{1e3 * statistics.median(seconds):.2f}" for seconds in (theirs, ours))
        table.add_row(row, *milliseconds, f"{of_medians:.2f}", f"{of_rounds:.2f}", f"{difference:.0e}")
        print(f"{row}: {of_medians:.2f}", file=sys.stderr)
    here.end()
    there.end()
    console = Console(width=120)
    console.print(table)
    said, is_fast = judge(ratios)
    console.print(said, highlight=False)
    return int(not is_fast)


if __name__ == "__main__":
    sys.exit(main())
