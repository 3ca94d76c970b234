"""Measure what `import torch_lapeig` costs after torch and SciPy's sparse matrices.

    python -m benchmarks import_time

Claim: the library's own modules take at most 50 ms. One thread, a new interpreter for each round, bytecode compiled
before. That of SciPy only ``scipy.sparse`` is loaded is a test, tests/project/test_imports.py.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys

from benchmarks.record import Record
from experiments.tables import Table

LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(torch_lapeig\S*)")


def own_seconds() -> dict[str, float]:
    """Return seconds of each module of this library, without what it imports."""
    command = [sys.executable, "-X", "importtime", "-c", "import torch, scipy.sparse, torch_lapeig"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stderr
    return {name: int(microseconds) / 1e6 for microseconds, name in LINE.findall(said)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=11)


def run(record: Record, options: argparse.Namespace) -> None:
    rounds = [own_seconds() for _ in range((2 if options.quick else options.rounds) + 1)][1:]
    total = statistics.median(sum(seconds.values()) for seconds in rounds)
    modules = {name: statistics.median(seconds[name] for seconds in rounds) for name in rounds[0]}
    table = Table(f"Import, median of {len(rounds)}", {"module": "", "ms": ".1f"})
    table.add("all of this library's", 1e3 * total)
    for name in sorted(modules, key=lambda name: -modules[name])[:5]:
        table.add(name, 1e3 * modules[name])
    record.show(table)
