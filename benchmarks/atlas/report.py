"""Tables and summary of the atlas's records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.atlas.candidates import DEFAULT
from experiments.tables import Table

Record = dict[str, Any]
SHORTEST = 1e-6  # seconds: the processor's clock of a virtual machine may show none for a short burst
FACTORS = (1.0, 2.0, 10.0)
LEAST = 2_000  # nodes (of the size asked for) from which on goals count
GOALS = {"shipped": (1.0, 0.4), "expert": (1.1, 0.8), "ours": (1.15, math.inf)}
AGAINST = {"shipped": "best peer as shipped", "expert": "best expert's way", "ours": "our own best"}


def result_of(record: Record, name: str) -> Record | None:
    return next((result for result in record["results"] if result["name"] == name), None)


def best_of(record: Record, column: str) -> Record | None:
    """Return the fastest right answer of a column; of ours, the default counts too."""
    right = [r for r in record["results"] if r["column"] == column and r["status"] == "ok"]
    return min(right, key=lambda result: float(result["seconds"]), default=None)


def ratio(record: Record, column: str) -> float | None:
    """Return the default's time over the best time of a column; if all were stopped, over their least limit.

    Infinite where the default has no right answer and the column has; None where the column has nothing to compare.
    """
    ours, best = result_of(record, DEFAULT), best_of(record, column)
    stopped = [r["seconds"] for r in record["results"] if r["column"] == column and r["status"] == "stopped"]
    least = best["seconds"] if best else max(stopped, default=None)
    if least is None:
        return None
    return math.inf if ours is None or ours["status"] != "ok" else ours["seconds"] / max(least, SHORTEST)


def said(record: Record, column: str) -> str:
    """Time and name of the best of a column."""
    best = best_of(record, column)
    return f"{best['seconds']:.3f} {best['name']}" if best else "–"


def ordered(records: Sequence[Record]) -> list[Record]:
    return sorted(
        records, key=lambda record: (record["threads"], -record["residual"], record["family"], record["size"])
    )


def table(records: Sequence[Record], title: str) -> Table:
    """Return a row for each graph."""
    columns = {
        "graph": "",
        "nodes": ",",
        "default": ".3f",
        "solver": "",
        "our best": "",
        "as shipped": "",
        "expert": "",
    }
    columns |= {f"default / {column}": ".2f" for column in GOALS}
    found = Table(title, columns | {"failed": ""})
    for record in ordered(records):
        ours = result_of(record, DEFAULT)
        failed = ", ".join(r["name"] for r in record["results"] if r["status"] == "failed")
        best = (said(record, column) for column in ("ours", "shipped", "expert"))
        ratios = (ratio(record, column) for column in GOALS)
        seconds = None if ours is None else ours["seconds"] if ours["status"] == "ok" else ours["status"]
        row = record["family"], record["nodes"], seconds, solver_of(record), *best, *ratios
        found.add(*row, failed)
    return found


def solver_of(record: Record) -> str:
    """Return the first solver that the default chose."""
    return str(record["choice"]["solvers"]).partition("(")[0]


def summary(records: Sequence[Record]) -> Iterator[str]:
    """Yield the lines that have goals, over graphs of at least 2000 nodes."""
    counted = [record for record in records if record["size"] >= LEAST]
    for column, (worst, mean) in GOALS.items():
        ratios = {(r["family"], r["nodes"]): x for r in counted if (x := ratio(r, column)) is not None}
        if not ratios:
            continue
        most = max(ratios, key=lambda graph: ratios[graph])
        goal = f"goal ≤ {worst}" + (f", {mean}" if math.isfinite(mean) else "")
        above, middle = sum(x > worst for x in ratios.values()), statistics.geometric_mean(ratios.values())
        yield (
            f"default / {AGAINST[column]}: worst {ratios[most]:.2f} ({most[0]}, {most[1]:,}), geometric mean "
            f"{middle:.2f}, above {worst} on {above} of {len(ratios)} graphs ({goal})"
        )
    wrong = [f"{r['family']} {r['nodes']:,}" for r in records if r["reference"]["checked"].startswith("WRONG")]
    if wrong:
        yield f"REFERENCE WRONG on {', '.join(wrong)}"


def seconds_of(records: Sequence[Record], title: str) -> Table:
    """Return seconds of every candidate on every graph, or what became of it."""
    names = list(dict.fromkeys(result["name"] for record in records for result in record["results"]))
    found = Table(title, {"graph": "", "nodes": ","} | dict.fromkeys(names, ".4f"))
    for record in ordered(records):
        by_name = {r["name"]: r["seconds"] if r["status"] == "ok" else r["status"] for r in record["results"]}
        found.add(record["family"], record["nodes"], *(by_name.get(name) for name in names))
    return found


def shares(records: Sequence[Record]) -> Table:
    """Return how often a candidate is right within a factor of the best time (Dolan and Moré 2002)."""
    solved = [{r["name"]: r["seconds"] for r in record["results"] if r["status"] == "ok"} for record in records]
    least = [max(min(seconds.values(), default=0), SHORTEST) for seconds in solved]

    def share(name: str, factor: float) -> float:
        within = [s.get(name, math.inf) <= factor * best for s, best in zip(solved, least, strict=True)]
        return within.count(True) / len(within)

    names = dict.fromkeys(result["name"] for record in records for result in record["results"])
    table = Table("Share of graphs done within a factor of the best", {"solver": ""})
    table.columns |= {f"× {factor:g}": ".0%" for factor in FACTORS}
    for name in sorted(names, key=lambda name: (-share(name, 2.0), name)):
        table.add(name, *(share(name, factor) for factor in FACTORS))
    return table
