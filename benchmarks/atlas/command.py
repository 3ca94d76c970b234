"""The atlas: eigenpairs of many families of graphs, by every solver of ours and every peer that can be installed.

    python -m benchmarks atlas --only grid "swiss roll" --sizes 2000 20000 --residual 1e-10

Everybody has the loosest of his tolerances that reaches the residual with the right eigenvalues. A peer that misses
copies has failed, one beyond ten times our time is stopped; both are recorded so.

Goals, over graphs of at least 2000 nodes: our default takes at most the time of the best peer as shipped on each, 0.4
in the geometric mean; 1.1 and 0.8 of the best expert's way; and 1.15 of our best other solver.
"""

import argparse

from benchmarks.atlas import report, runner
from benchmarks.atlas.candidates import CANDIDATES, missing
from benchmarks.atlas.families import FAMILIES
from benchmarks.record import Record

QUICK = ("path", "balanced tree", "grid", "power law", "swiss roll")
QUICK_NAMES = ("default", "ChebyshevSubspace", "Lobpcg", "ShiftInvert", "scikit-learn arpack", "SciPy eigsh")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", metavar="FAMILY", choices=FAMILIES, help="of: " + ", ".join(FAMILIES))
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N", help="in the place of each family's own")
    parser.add_argument("--most", type=int, default=20_000, help="leave out larger sizes; up to 1,000,000")
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, metavar="NAME", help=", ".join(CANDIDATES))
    parser.add_argument("--residual", type=float, default=1e-6)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)


def graphs_of(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return families and sizes that are asked for, the small ones first."""
    names = options.only or (QUICK if options.quick else list(FAMILIES))
    asked = tuple(options.sizes) if options.sizes else (2_000,) if options.quick else None
    graphs = [(name, size) for name in names for size in FAMILIES[name].sizes_of(asked)]
    return sorted((graph for graph in graphs if options.sizes or graph[1] <= options.most), key=lambda graph: graph[1])


def run(record: Record, options: argparse.Namespace) -> None:
    """Measure all graphs and show them, and those so far where the user interrupts."""
    names = tuple(options.candidates or (QUICK_NAMES if options.quick else CANDIDATES))
    rounds = 2 if options.quick else options.rounds
    settings = runner.Settings(options.k, options.residual, options.threads, names, rounds=rounds)
    found: list[report.Record] = []
    try:
        for one in runner.run(graphs_of(options), settings, record.say):
            found.append(one)
    except KeyboardInterrupt:
        record.say("interrupted; these are the graphs so far")
    title = f"Atlas, residual {options.residual:.0e}, {options.threads} threads"
    record.show(report.table(found, f"{title}, seconds"), *report.summary(found), report.shares(found))
    record.show(*(f"{name}: {package} is not installed" for name in CANDIDATES if (package := missing(name))))
    record.show(report.seconds_of(found, f"{title}: seconds of right answers"))
