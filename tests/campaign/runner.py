"""Runs probes in turn for some minutes, counts what they find, and keeps failures as files."""

import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.campaign import outcomes
from tests.campaign.directed import Directed
from tests.campaign.gradients import Gradient
from tests.campaign.layers import Layer
from tests.campaign.meshes import Mesh
from tests.campaign.outcomes import Outcome, Probe
from tests.campaign.pencils import PencilProbe
from tests.campaign.products import Products
from tests.campaign.solves import Solve

KINDS: list[Probe] = [Solve(), Gradient(), Layer(), Mesh(), Directed(), Products(), PencilProbe()]
PROBES = {probe.name: probe for probe in KINDS}


class Key(NamedTuple):
    """Key of a count: the probe, its group, and the kind of finding; "" stands for tests."""

    probe: str
    group: str
    kind: str = ""


@dataclass
class Tally:
    """Counts of a campaign so far."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by probe
    draws: Counter[str] = field(default_factory=Counter)
    counts: Counter[Key] = field(default_factory=Counter)
    slowest: list[tuple[float, str, str, str]] = field(default_factory=list)

    def add(self, probe: str, outcome: Outcome, seconds: float) -> None:
        group = outcome.group
        self.counts[Key(probe, group)] += outcome.tests
        self.counts[Key(probe, group, "(unconverged)")] += outcome.unconverged
        self.counts.update({Key(probe, group, kind): 1 for kind, _ in outcome.findings})
        self.counts.update({Key(probe, group, kind): count for kind, count in outcome.counts.items()})
        self.slowest.append((round(seconds, 2), probe, group, outcome.family))
        self.slowest = sorted(self.slowest, reverse=True)[:5]

    def total(self, probes: str, groups: str, kinds: str | None) -> int:
        """Return the sum over keys that begin with one of the words given, separated by bars; tests for None."""
        found = 0
        for key, count in self.counts.items():
            is_counted = key.kind == "" if kinds is None else key.kind != "" and _begins(key.kind, kinds)
            found += count * (is_counted and _begins(key.probe, probes) and _begins(key.group, groups))
        return found


def _begins(name: str, words: str) -> bool:
    return name.startswith(tuple(words.split("|")))


class Goal(NamedTuple):
    """A row with a goal: the probes, groups and kinds that it counts."""

    name: str
    probes: str
    groups: str
    kinds: str
    goal: str = "0"


BROKEN = "wrong|dish|not |sign|pad|proj|unconverged|stray"
GOALS = (
    Goal("wrong value, said to be converged, default", "solve", "default", "wrong value", "0 of 10⁴"),
    Goal("wrong gap, said to be converged, default", "solve", "default", "wrong gap", "0 of 10⁴"),
    Goal("crash of the default", "solve|gradient", "default", "crash"),
    Goal("another promise broken, default", "solve", "default", BROKEN.removeprefix("wrong|")),
    Goal("round-off in silence, or a false alarm", "solve", "", "round-off|false"),
    Goal("unconverged, default", "solve", "default", "(unconverged)", "≤ 1 in 10³"),
    Goal("unconverged without a warning", "solve", "default", "unconverged without"),
    Goal("gradient wrong without a warning, float64", "gradient", "default float64", "wrong grad|undefined"),
    Goal("gradient wrong without a warning, float32", "gradient", "default float32", "wrong grad|undefined"),
    Goal("second derivative wrong without a warning", "gradient", "default float64", "wrong second"),
    Goal("gradient not finite", "gradient", "default", "gradient not finite"),
    Goal("crash, adversarial step", "layer", "float", "crash"),
    Goal("not finite, adversarial step", "layer", "float", "output not|gradient not"),
    Goal("gradient wrong, adversarial step", "layer", "float", "wrong gradient"),
    Goal("wrong answer, meshes", "mesh", "default", f"{BROKEN}|crash|grad"),
    Goal("signed and directed", "directed", "default", f"{BROKEN}|undef|crash|grad"),
    Goal("wrong answer, pencils", "pencil", "default", f"{BROKEN}|crash|grad"),
    Goal("wrong value or crash, by products", "products", "default", "wrong value|crash|unconverged"),
    Goal("gradient wrong, by products", "products", "default", "wrong gradient"),
)


def run(minutes: float, seed: int, probes: Sequence[str], failures: Path) -> Tally:
    """Draw until the minutes are spent, or the user interrupts; the probe behind its share is next."""
    begin, tally = time.perf_counter(), Tally()
    try:
        while time.perf_counter() - begin < 60 * minutes:
            name = min(probes, key=lambda name: tally.seconds[name] / PROBES[name].share)
            start, index = time.perf_counter(), tally.draws[name]
            rng = np.random.default_rng([seed, zlib.crc32(name.encode()), index])
            for case in PROBES[name].draw(rng):
                before = time.perf_counter()
                outcome = PROBES[name].check(case)
                tally.add(name, outcome, time.perf_counter() - before)
                if outcome.findings:
                    outcomes.save(failures, name, case, outcome)
            tally.draws[name] += 1
            tally.seconds[name] += time.perf_counter() - start
    except KeyboardInterrupt:
        print("interrupted; these are the counts so far")
    return tally


def replay(path: Path) -> Outcome:
    probe, case, _ = outcomes.load(path)
    return PROBES[probe].check(case)
