"""Tables and summary of the atlas's records."""

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
AGAINST = {"shipped": "best peer as shipped", "expert": "best expert's way", "ours": "our best other solver"}
UNMEASURED = "not measured"  # a ratio needs two names: what no other candidate was measured against


def result_of(record: Record, name: str) -> Record | None:
    return next((result for result in record["results"] if result["name"] == name), None)


def others(record: Record, column: str, status: str) -> list[Record]:
    """Return the results of a column with this status, the fastest first, without the default."""
    found = [r for r in record["results"] if (r["column"], r["status"]) == (column, status) and r["name"] != DEFAULT]
    return sorted(found, key=lambda result: float(result["seconds"]))


def ratio(record: Record, column: str) -> float | None:
    """Return the default's time over the best time of others in a column; if all were stopped, over their limit."""
    # Infinite where the default has no right answer and the column has; None where there is nothing to compare.
    ours, right, stopped = result_of(record, DEFAULT), others(record, column, "ok"), others(record, column, "stopped")
    if ours is None or ours["status"] != "ok":
        return math.inf if right else None
    least = right[:1] or stopped[-1:]
    return ours["seconds"] / max(least[0]["seconds"], SHORTEST) if least else None


def said(record: Record, column: str) -> str:
    """Return time and name of the best of a column."""
    return next((f"{best['seconds']:.3f} {best['name']}" for best in others(record, column, "ok")), "–")


def ordered(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (r["threads"], -r["residual"], r["family"], r["size"]))


def table(records: Sequence[Record], title: str) -> Table:
    columns = {"graph": "", "nodes": ",", "default": ".3f", "solver": ""}
    columns |= dict.fromkeys(("our best", "as shipped", "expert"), "")
    columns |= {f"default / {column}": ".2f" for column in GOALS}
    found = Table(title, columns | {"failed": ""})
    for record in ordered(records):
        ours = result_of(record, DEFAULT)
        failed = ", ".join(r["name"] for r in record["results"] if r["status"] == "failed")
        best = (said(record, column) for column in ("ours", "shipped", "expert"))
        ratios = ((UNMEASURED if (x := ratio(record, column)) is None else x) for column in GOALS)
        seconds = None if ours is None else ours["seconds"] if ours["status"] == "ok" else ours["status"]
        solver = str(record["choice"]["solvers"]).partition("(")[0]
        found.add(record["family"], record["nodes"], seconds, solver, *best, *ratios, failed)
    return found


def summary(records: Sequence[Record]) -> Iterator[str]:
    """Yield the lines that have goals, over graphs of at least 2000 nodes."""
    counted = [record for record in records if record["size"] >= LEAST]
    for column, (worst, mean) in GOALS.items():
        ratios = {(r["family"], r["nodes"]): x for r in counted if (x := ratio(r, column)) is not None}
        said, missing = UNMEASURED, len(counted) - len(ratios)
        if ratios:
            most = max(ratios, key=lambda graph: ratios[graph])
            above, middle = sum(x > worst for x in ratios.values()), statistics.geometric_mean(ratios.values())
            said = (
                f"worst {ratios[most]:.2f} ({most[0]}, {most[1]:,}), geometric mean {middle:.2f}, above {worst} on "
                f"{above} of {len(ratios)} graphs" + (f", {UNMEASURED} on {missing}" if missing else "")
            )
        yield f"default / {AGAINST[column]}: {said} (goal ≤ {worst}" + (f", {mean})" if math.isfinite(mean) else ")")
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
