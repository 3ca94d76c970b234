"""Inputs and results of a check of the campaign; failures as files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks.campaign.edges import Edges
from benchmarks.campaign.pairs import Finding

__all__ = ["Case", "Finding", "Outcome", "Probe", "load", "save"]

# Plain values, tensors, and lists of `Edges`: all that a check needs, so that a file of it replays anywhere.
Case = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one check: findings, each of which is a failure, its group, and further counts."""

    group: str
    family: str
    findings: list[Finding]
    seconds: float
    unconverged: bool = False
    tests: int = 1
    counts: dict[str, int] = field(default_factory=dict)


class Probe(Protocol):
    """One kind of check: ``draw`` makes cases of random numbers, ``check`` judges one."""

    @property
    def name(self) -> str: ...

    @property
    def share(self) -> float: ...

    def draw(self, rng: np.random.Generator) -> Iterator[Case]: ...

    def check(self, case: Case) -> Outcome: ...


def save(folder: Path, probe: str, case: Case, outcome: Outcome) -> Path:
    """Write a failure under a name that says what it is: the same failure has the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = {
        key: [part.pack() for part in value] if isinstance(value, list) and isinstance(value[0], Edges) else value
        for key, value in case.items()
    }
    kind = outcome.findings[0].kind.replace(" ", "-")
    digest = hashlib.sha256(repr(sorted(packed.items())).encode()).hexdigest()[:10]
    path = folder / f"{probe}-{kind}-{outcome.group.split()[0]}-{digest}.pt"
    torch.save({"probe": probe, "case": packed, "findings": [list(f) for f in outcome.findings]}, path)
    return path


def load(path: Path) -> tuple[str, Case, list[Finding]]:
    """Return the probe, the case and what was found when the file was written. ValueError for any other file."""
    try:
        kept = torch.load(path, weights_only=True)
        case = {
            key: [Edges.unpack(part) for part in value] if isinstance(value, list) and "pairs" in value[0] else value
            for key, value in kept["case"].items()
        }
        return kept["probe"], case, [Finding(*f) for f in kept["findings"]]
    except Exception as error:
        raise ValueError(f"{path} is no failure of a campaign ({error}); give one of its folder's failures") from error
