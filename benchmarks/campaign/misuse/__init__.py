"""Misuse of the public interface: what must end in a clear error, and what is rightly accepted.

An error is clear where it is a TypeError or ValueError (or another kind, where a probe says so) whose message names the
argument and what arrived. `run` counts; `python -m benchmarks.campaign.misuse` prints the counts and every failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.campaign.misuse import faces, graphs, objects, options, points, values
from benchmarks.campaign.misuse.probes import Accepted, Clear, Probe, outcome_of

__all__ = ["Accepted", "Clear", "misuse", "outcome_of", "run"]


def misuse() -> Iterator[Probe]:
    """Yield every probe: its name, a call without arguments, and what is expected of it."""
    for topic in (options, points, graphs, objects, values, faces):
        yield from topic.probes()


def run() -> dict[str, Any]:
    """Return counts of the outcomes, and the failures as lines of text."""
    counts: dict[str, Any] = {"clear": 0, "unclear": 0, "accepted wrongly": 0, "accepted rightly": 0}
    counts["failures"] = []
    for name, call, expectation in misuse():
        outcome, said = outcome_of(call, expectation)
        counts[outcome] += 1
        if outcome in ("unclear", "accepted wrongly"):
            counts["failures"].append(f"{name}: {outcome}: {said}")
    return counts
