"""Run tests and write what ran into the table of docs/releasing.md.

    python -m benchmarks.ran --name "tests of the command" tests/command
    make ran    # the package's tests, as `make test` runs them

Each run is a row of benchmarks/ran.json: commit, versions, counts. A newer run of the same name with the same Python
and torch takes the place of the older one.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "benchmarks" / "ran.json", ROOT / "docs" / "releasing.md"
COLUMNS = ("commit", "python", "torch", "numpy", "scipy", "scikit-learn", "tests", "passed", "failed", "skipped")
BEGIN, END = "<!-- table by benchmarks/ran.py -->\n", "<!-- table ends -->"


def run(name: str, arguments: list[str]) -> dict[str, str]:
    """Run pytest with arguments, and return a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        subprocess.run(command, cwd=ROOT, check=False, env={"OMP_NUM_THREADS": "1", **os.environ})
        suites = list(ElementTree.parse(report).iter("testsuite"))
    counts = {key: sum(int(one.get(key, 0)) for one in suites) for key in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    git = ["git", "describe", "--always", "--exclude=*", "--dirty= with changes"]
    return {
        "commit": subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip(),
        "python": platform.python_version(),
        **{library: version(library) for library in COLUMNS[2:6]},
        "tests": name,
        "passed": str(counts["tests"] - failed - counts["skipped"]),
        "failed": str(failed),
        "skipped": str(counts["skipped"]),
    }


def added(rows: list[dict[str, str]], row: dict[str, str]) -> list[dict[str, str]]:
    """Return the rows with one more, which takes the place of an older run of the same tests and versions."""
    same = ("python", "torch", "tests")
    kept = [old for old in rows if [old[key] for key in same] != [row[key] for key in same]]
    return sorted([*kept, row], key=lambda row: [int(n) for n in re.findall(r"\d+", row["torch"] + row["python"])])


def table(rows: list[dict[str, str]]) -> str:
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(tuple(row[column] for column in COLUMNS) for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    """Run, record and write the page; exit with 1 if a test failed."""
    parser = argparse.ArgumentParser("python -m benchmarks.ran")
    parser.add_argument("--name", required=True, help="what the tests are, for the table")
    options, arguments = parser.parse_known_args()
    row = run(options.name, arguments)
    rows = added(json.loads(RECORD.read_text()), row)
    RECORD.write_text(json.dumps(rows, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table(rows)}{END}{rest.partition(END)[2]}")
    sys.exit(row["failed"] != "0")


if __name__ == "__main__":
    main()
