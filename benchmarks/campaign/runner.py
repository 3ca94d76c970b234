"""Runs probes in turn for some minutes, keeps a line of each draw, and goes on where an earlier run stopped."""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaign import outcomes
from benchmarks.campaign.directed import Directed
from benchmarks.campaign.gradients import Gradient
from benchmarks.campaign.layers import Layer
from benchmarks.campaign.meshes import Mesh
from benchmarks.campaign.outcomes import Outcome, Probe
from benchmarks.campaign.products import Products
from benchmarks.campaign.solves import Solve

PROBES: dict[str, Probe] = {
    probe.name: probe for probe in (Solve(), Gradient(), Layer(), Mesh(), Directed(), Products())
}


def generator(seed: int, probe: str, index: int) -> np.random.Generator:
    """Return the random numbers of one draw."""
    return np.random.default_rng([seed, zlib.crc32(probe.encode()), index])


@dataclass
class Tally:
    """Findings of a campaign so far, read from its lines."""

    seconds: Counter[str] = field(default_factory=Counter)  # by probe
    draws: Counter[str] = field(default_factory=Counter)
    tests: Counter[tuple[str, str]] = field(default_factory=Counter)  # by probe and group
    kinds: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # and kind of finding
    unconverged: Counter[tuple[str, str]] = field(default_factory=Counter)
    slowest: list[tuple[float, str, str, str]] = field(default_factory=list)

    def add(self, line: dict[str, Any]) -> None:
        """Add one draw."""
        probe = line["probe"]
        self.seconds[probe] += line["seconds"]
        self.draws[probe] = max(self.draws[probe], line["index"] + 1)
        for entry in line["outcomes"]:
            group = entry["group"]
            self.tests[probe, group] += entry["tests"]
            self.unconverged[probe, group] += entry["unconverged"]
            for kind in {kind for kind, _ in entry["findings"]}:
                self.kinds[probe, group, kind] += 1
            for kind, count in entry["counts"].items():
                self.kinds[probe, group, kind] += count
            self.slowest.append((entry["seconds"], probe, group, entry["family"]))
        self.slowest = sorted(self.slowest, reverse=True)[:5]


def _count(counter: Counter[tuple[str, str, str]], probes: str, groups: str, kinds: str) -> int:
    """Return sum over keys whose parts begin with one of the words given, separated by bars; every one if empty."""
    wanted = [tuple(words.split("|")) for words in (probes, groups, kinds)]
    return sum(n for key, n in counter.items() if all(part.startswith(w) for part, w in zip(key, wanted, strict=True)))


# Row, the probes and groups it counts, their kinds, and the goal.
GOALS = [
    ("wrong value, said to be converged, default", "solve", "default", "wrong value", "0 of 10⁴"),
    ("wrong gap, said to be converged, default", "solve", "default", "wrong gap", "0 of 10⁴"),
    ("crash of the default", "solve|gradient", "default", "crash", "0"),
    ("another promise broken, default", "solve", "default", "dish|not |sign|pad|proj|unconverged in|stray", "0"),
    ("round-off in silence, or a false alarm", "solve", "", "round-off|false", "0"),
    ("unconverged, default", "solve", "default", "unconverged", "≤ 1 in 10³"),
    ("unconverged without a warning", "solve", "default", "unconverged without", "0"),
    ("gradient wrong without a warning, float64", "gradient", "default float64", "wrong grad|undefined", "0"),
    ("gradient wrong without a warning, float32", "gradient", "default float32", "wrong grad|undefined", "0"),
    ("second derivative wrong without a warning", "gradient", "default float64", "wrong second", "0"),
    ("gradient not finite", "gradient", "default", "gradient not finite", "0"),
    ("crash, adversarial step", "layer", "float", "crash", "0"),
    ("not finite, adversarial step", "layer", "float", "output not|gradient not", "0"),
    ("gradient wrong, adversarial step", "layer", "float", "wrong gradient", "0"),
    ("wrong answer, meshes", "mesh", "default", "wrong|dish|not |sign|pad|proj|unconverged in|stray|crash|grad", "0"),
    ("signed and directed", "directed", "default", "wrong|dish|not |sign|pad|proj|unconv|undef|crash|grad", "0"),
    ("wrong value or crash, by products", "products", "default", "wrong value|crash|without a warning", "0"),
    ("gradient wrong, by products", "products", "default", "wrong gradient", "0"),
]


class Campaign:
    """A folder with ``campaign.json`` (the seed), ``cases.jsonl`` (a line of each draw) and ``failures``."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed, self.tally = folder, seed, Tally()
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "campaign.json"
        if kept.exists() and (other := json.loads(kept.read_text())["seed"]) != seed:
            raise ValueError(f"{folder} is a campaign of seed {other}, not {seed}; use another --folder")
        kept.write_text(json.dumps({"seed": seed}))
        self.log = folder / "cases.jsonl"
        self._read()

    def _read(self) -> None:
        """Read the lines so far; a draw that was cut off is drawn again."""
        if not self.log.exists():
            return
        text = self.log.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.log.write_text(whole)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self.tally.add(json.loads(line))
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"line {number} of {self.log} is damaged ({error}); delete it or the folder") from None

    def run(self, minutes: float, probes: list[str]) -> None:
        """Draw until the minutes are spent, earlier ones included; the probe behind its share is next."""
        begin, before = time.perf_counter(), sum(self.tally.seconds.values())
        share = {name: PROBES[name].share for name in probes}
        while before + time.perf_counter() - begin < 60 * minutes:
            name = min(share, key=lambda name: self.tally.seconds[name] / share[name])
            start, index = time.perf_counter(), self.tally.draws[name]
            found = []
            for case in PROBES[name].draw(generator(self.seed, name, index)):
                outcome = PROBES[name].check(case)
                found.append(outcome)
                if outcome.findings:
                    outcomes.save(self.folder / "failures", name, case, outcome)
            self._write(name, start, found)

    def _write(self, probe: str, start: float, found: list[Outcome]) -> None:
        line = {
            "probe": probe,
            "index": self.tally.draws[probe],
            "seconds": round(time.perf_counter() - start, 4),
            "outcomes": [
                {
                    "group": o.group,
                    "family": o.family,
                    "tests": o.tests,
                    "findings": [list(f) for f in o.findings],
                    "counts": o.counts,
                    "unconverged": o.unconverged,
                    "seconds": round(o.seconds, 4),
                }
                for o in found
            ],
        }
        with self.log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.tally.add(line)

    def _goal(self, name: str, probes: str, groups: str, kinds: str, goal: str) -> dict[str, Any]:
        tests = Counter({(*key, ""): count for key, count in self.tally.tests.items()})
        counted = self.tally.kinds
        if kinds == "unconverged":
            counted = Counter({(*key, kinds): count for key, count in self.tally.unconverged.items()})
        now, of = _count(counted, probes, groups, kinds), _count(tests, probes, groups, "")
        return {"probe": name, "now": now, "of": of, "goal": goal}

    def results(self) -> dict[str, Any]:
        """Return counts as JSON has them, also written to ``results.json``."""
        tally = self.tally
        table: dict[str, Any] = {}
        for (probe, group), tests in sorted(tally.tests.items()):
            kinds = {kind: count for (p, g, kind), count in sorted(tally.kinds.items()) if (p, g) == (probe, group)}
            row = {"tests": tests, "unconverged": tally.unconverged[probe, group], **kinds}
            table.setdefault(probe, {})[group] = row
        goals = [self._goal(*goal) for goal in GOALS]
        found = {
            "seed": self.seed,
            "minutes": round(sum(tally.seconds.values()) / 60, 2),
            "draws": dict(tally.draws),
            "goals": [goal for goal in goals if goal["of"]],
            "counts": table,
            "slowest": tally.slowest,
        }
        (self.folder / "results.json").write_text(json.dumps(found, indent=1, ensure_ascii=False))
        return found


def replay(path: Path) -> Outcome:
    """Judge the problem of a failure's file again."""
    probe, case, _ = outcomes.load(path)
    return PROBES[probe].check(case)
