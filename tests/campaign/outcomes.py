"""Inputs and results of a check of the campaign; failures as files."""

import contextlib
import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from tests.campaign.edges import Edges
from torch_lapeig import ConvergenceWarning, DegeneracyWarning, GraphWarning

# Plain values, tensors, and lists of `Edges`: all that a check needs, so that a file of it replays anywhere.
Case = dict[str, Any]


class Finding(NamedTuple):
    """Kind and numbers of a fault."""

    kind: str
    detail: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of one check: findings, each of which is a failure, its group, and further counts."""

    group: str
    family: str
    findings: list[Finding]
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


@contextlib.contextmanager
def watched(findings: list[Finding]) -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings of what runs within; an error that ends it is a finding."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield caught
        except Exception as error:
            findings.append(Finding("crash", f"{type(error).__name__}: {str(error)[:160]}"))


def is_due(warning: warnings.WarningMessage) -> bool:
    """Return whether a warning is legitimate: not converged, or entries that round-off hides."""
    hidden = issubclass(warning.category, GraphWarning) and "hidden in round-off" in str(warning.message)
    return hidden or issubclass(warning.category, ConvergenceWarning)


def may_be_off(caught: list[warnings.WarningMessage]) -> bool:
    """Return whether a warning says that a gradient may be undefined or inaccurate."""
    return any(w.category is DegeneracyWarning or is_due(w) for w in caught)


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
