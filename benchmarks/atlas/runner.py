"""One graph after the other, each with every candidate."""

import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scipy.sparse import csr_array, save_npz

from benchmarks.atlas import judge
from benchmarks.atlas.candidates import CANDIDATES, DEFAULT, missing
from benchmarks.atlas.families import graph_of
from benchmarks.child import Child, Ended

TOLERANCES = [10 ** (-p / 2) for p in range(2, 27)]
TIGHT = 1e-8  # tolerance of the reference
PATIENCE, OWN_PATIENCE = 10.0, 3.0  # times the default's time that a peer is given, and another solver of ours
LEAST_PATIENCE = 1.0  # seconds
ELAPSED = 8.0  # how much longer than its processor time a process may last beside busy neighbours
WORKER = (sys.executable, "-m", "benchmarks.atlas.worker")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    k: int = 8  # pairs, trivial ones included
    residual: float = 1e-6  # that everybody has to reach
    threads: int = 1  # one is timed by the processor's clock, more by the wall's
    names: tuple[str, ...] = tuple(CANDIDATES)  # of those that take part
    seconds: float = 900.0  # the default's own limit
    rounds: int = 5  # of timing, at most
    command: tuple[str, ...] = WORKER

    @property
    def clock(self) -> str:
        return "processor" if self.threads == 1 else "elapsed"


@dataclass
class Result:
    """Result of one candidate: ``status`` is ok, failed, stopped or missing; ``why`` explains it."""

    name: str
    column: str
    status: str = "ok"
    why: str = ""
    seconds: float | None = None
    tolerance: float | None = None
    residual: float | None = None
    times: list[float] = field(default_factory=list)


class Beaten(Exception):
    """An answer has smaller eigenvalues than the reference: that of the candidate of this name."""


class Bench:
    """A graph in a worker, which is given it again after a candidate had to be stopped."""

    def __init__(self, file: Path, settings: Settings) -> None:
        self.file, self.settings = file, settings
        self.child = Child(settings.command, settings.threads)
        self.about = self.load()

    def load(self) -> dict[str, Any]:
        about: dict[str, Any] = self.child.ask({"do": "load", "file": str(self.file), "k": self.settings.k})
        return about

    def ask(self, limit: float, **request: Any) -> dict[str, Any]:
        """Return the answer, or what ended the worker as an ``error``; {"stopped": …} where it was the limit."""
        limits = {"elapsed": ELAPSED * limit + 10, self.settings.clock: limit}
        try:
            found: dict[str, Any] = self.child.ask({**request, "limit": limits})
        except Ended as ended:
            self.load()
            return {"stopped": True} if ended.stopped else {"error": str(ended)}
        return found


def search(bench: Bench, name: str, reference: Sequence[float] | None, limit: float) -> Result:
    """Return the loosest tolerance that reaches the residual with right eigenvalues; any without a reference."""
    target, spent = bench.settings.residual, 0.0
    result, place = Result(name, CANDIDATES[name].column if name in CANDIDATES else "shipped"), 0
    result.status, result.why = "failed", "no tolerance reaches the residual"
    while place < len(TOLERANCES):
        answer = bench.ask(limit, do="solve", name=name, tolerance=TOLERANCES[place])
        if "error" in answer:
            result.why = answer["error"]
            return result
        if "stopped" in answer:
            result.status, result.why, result.seconds = "stopped", f"not done in {limit:.3g} s", limit
            return result
        found = judge.Quality(answer["values"], answer["residual"], answer["dependence"])
        result.tolerance, result.residual = TOLERANCES[place], found.residual
        result.seconds = answer[bench.settings.clock]
        spent += answer[bench.settings.clock]
        if not math.isfinite(found.residual):
            result.why = "vectors that are not finite"
            return result
        if found.residual <= target:
            if reference is not None and judge.is_beaten(reference, found, target):
                raise Beaten(name)
            wrong = None if reference is None else judge.fault(found, reference, target)
            if wrong is None:
                result.status, result.why = "ok", ""
                return result
            result.why, step = wrong, 3
        else:
            step = max(1, int(2 * math.log10(found.residual / target)) - 1)
        if spent > limit:
            result.status, result.why = "stopped", f"looser tolerances took {spent:.3g} s: {result.why}"
            return result
        place += min(step, max(1, len(TOLERANCES) - 1 - place))
    return result


def reference_of(bench: Bench, name: str = DEFAULT) -> dict[str, Any]:
    """Return a candidate's eigenvalues at a tight tolerance, and whether a count of eigenvalues agrees with them."""
    answer = bench.ask(bench.settings.seconds, do="solve", name=name, tolerance=TIGHT)
    if "values" not in answer:
        return {"by": name, "values": None, "checked": f"none: {answer}"}
    null = min(bench.about["components"], len(answer["values"]))
    values, residual = [0.0] * null + answer["values"][null:], answer["residual"]
    reference = {"by": name, "values": values, "residual": residual}
    place = judge.place_of_count(values, residual)
    if place is None:
        return {**reference, "checked": "by agreement: all values are one group"}
    limit = max(30.0, PATIENCE * answer[bench.settings.clock])
    found = bench.ask(limit, do="count", sigma=place[0]).get("count")
    if found is None:
        return {**reference, "checked": "by agreement: no factors"}
    said = f"{found} eigenvalues below {place[0]:.6g}, {place[1]} known"
    return {**reference, "checked": f"by count: {said}" if found == place[1] else f"WRONG: {said}"}


def measure(bench: Bench, reference: dict[str, Any], say: Say) -> list[Result]:
    """Return the result of every candidate's search, and of rounds of the relevant ones in turn."""
    settings, results = bench.settings, {}
    limit = settings.seconds
    for name in settings.names:
        candidate = CANDIDATES.get(name)
        if candidate is not None and candidate.most is not None and bench.about["nodes"] > candidate.most:
            continue
        if package := missing(name):
            results[name] = Result(name, CANDIDATES[name].column, "missing", f"{package} is not installed")
            continue
        own = candidate is not None and candidate.column == "ours" and name != DEFAULT
        patience = limit * OWN_PATIENCE / PATIENCE if own else limit
        result = results[name] = search(bench, name, reference["values"], patience)
        if name == DEFAULT and reference["checked"].startswith("WRONG") and reference["by"] == DEFAULT:
            result.status, result.why = "failed", reference["checked"]
        if name == DEFAULT and result.seconds is not None:
            limit = max(LEAST_PATIENCE, PATIENCE * result.seconds)
        say(f"    {name:26s} {result.status:8s} {result.seconds or 0:9.4f} s  {result.why}")
    time_in_turn(bench, results, limit)
    return list(results.values())


def time_in_turn(bench: Bench, results: dict[str, Result], limit: float) -> None:
    """Add medians of rounds, of the default and of candidates within three times the best of their column."""
    right = {name: result for name, result in results.items() if result.status == "ok" and result.seconds is not None}
    best: dict[str, float] = {}
    for result in right.values():
        assert result.seconds is not None
        best[result.column] = min(best.get(result.column, math.inf), result.seconds)
    contenders = [r for r in right.values() if r.name == DEFAULT or (r.seconds or 0) <= 3 * best[r.column]]
    longest = max((r.seconds or 0 for r in contenders), default=0.0)
    rounds = max(1, min(bench.settings.rounds, int(20 / max(longest, 1e-9))))
    # A worker that was stopped has begun anew, and what is called first in it waits for libraries and for memory.
    for result in contenders:
        bench.ask(2 * limit + 10, do="solve", name=result.name, tolerance=result.tolerance)
    for _ in range(rounds):
        for result in contenders:
            answer = bench.ask(2 * limit + 10, do="solve", name=result.name, tolerance=result.tolerance)
            if (seconds := answer.get(bench.settings.clock)) is not None:
                result.times.append(seconds)
    for result in contenders:
        if result.times:
            result.seconds = statistics.median(result.times)


def run_graph(family: str, size: int, settings: Settings, say: Say) -> dict[str, Any]:
    graph = graph_of(family, size)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "affinity.npz"
        save_npz(file, csr_array(graph.to_scipy()), compressed=False)
        say(f"{family}, {graph.num_nodes:,} nodes, {len(graph.weight):,} entries")
        bench = Bench(file, settings)
        try:
            choice = bench.child.ask({"do": "choose"})
            reference = reference_of(bench)
            say(f"    {choice['solvers']}: {choice['reason']}; reference {reference['checked']}")
            for _ in range(3):
                try:
                    results = measure(bench, reference, say)
                    break
                except Beaten as beaten:
                    say(f"    {beaten} has smaller eigenvalues: it is the reference now")
                    reference = reference_of(bench, str(beaten))
            else:
                results = []
        finally:
            bench.child.end()
    return {
        "family": family, "size": size, "nodes": graph.num_nodes, "entries": len(graph.weight), "k": settings.k,
        "residual": settings.residual, "threads": settings.threads, "clock": settings.clock, "choice": choice,
        "reference": reference, "results": [vars(result) for result in results],
    }  # fmt: skip


def run(graphs: Sequence[tuple[str, int]], settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Yield the record of each graph; those whose data are not there are skipped."""
    for family, size in graphs:
        try:
            yield run_graph(family, size, settings, say)
        except FileNotFoundError as error:
            say(f"skipped: {family}: {error}")
