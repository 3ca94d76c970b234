"""A model of what a run on several processes costs, fitted to measured runs and extrapolated.

    T(N, W) = Σ over phases of rate · N / W  +  collectives · α · ⌈log₂ W⌉  +  bytes / β
    bytes   = iterations · (products · halo · columns · 8 + coarse),   halo = c · (N / W)^½

Rates are processor seconds of one rank for each point; α and β are measured between two ranks of the loopback; c comes
from the halos. Assumptions: data of two intrinsic dimensions spread evenly, iterations and collectives of an iteration
as measured, whatever N and W (more levels would take more), the work on the gathered coarse level left out, one thread
a rank, a network like the loopback, and enough memory for each rank.
"""

from __future__ import annotations

from statistics import mean, median
from typing import Any, NamedTuple

from experiments.tables import Table

POINTS = (10**7, 10**8, 10**9)
RANKS = (8, 64, 256, 1024)


class Model(NamedTuple):
    """Seconds a point, seconds a collective, bytes a second, halo over the root of a rank's points, and counts."""

    rate: float
    latency: float
    bandwidth: float
    halo: float
    iterations: float
    collectives: float
    bytes_of_halo_row: float

    def seconds(self, points: float, ranks: int) -> float:
        """Of a whole run."""
        steps = max(ranks - 1, 0).bit_length()
        messages = self.iterations * self.collectives * self.latency * steps
        halo = self.halo * (points / ranks) ** 0.5 if ranks > 1 else 0.0
        return self.rate * points / ranks + messages + self.iterations * halo * self.bytes_of_halo_row / self.bandwidth


def fitted(found: list[dict[str, Any]]) -> Model | None:
    """The model of the runs of the roll; None without such on one rank and on several."""
    rolls = [r for r in found if r["data"] == "roll"]
    alone, several = [r for r in rolls if r["ranks"] == 1], [r for r in rolls if r["ranks"] > 1]
    if not alone or not several:
        return None
    return Model(
        rate=mean(sum(r["busy"].values()) / r["nodes"] for r in alone),
        latency=median(r["latency"] for r in several),
        bandwidth=median(r["bandwidth"] for r in several),
        halo=mean(r["halo"] / r["own"] ** 0.5 for r in several),
        iterations=mean(r["iterations"] for r in rolls),
        collectives=mean(r["calls"] / max(r["iterations"], 1) for r in several),
        bytes_of_halo_row=mean(r["sent"] / max(r["iterations"] * r["halo"], 1) for r in several),
    )


def predictions(model: Model, found: list[dict[str, Any]]) -> list[Table]:
    """What the model says of what was measured, and of more points and ranks."""
    columns = {"points": ".0f", "ranks": ".0f", "s": ".1f", "processor s": ".1f", "model s": ".1f"}
    measured = Table("The model against the runs", columns)
    for r in found:
        if r["data"] == "roll":
            seconds, busy = sum(r["seconds"].values()), sum(r["busy"].values())
            measured.add(r["nodes"], r["ranks"], seconds, busy, model.seconds(r["nodes"], r["ranks"]))
    columns = {"points": ".0e", **{f"{ranks} ranks": ".0f" for ranks in RANKS}}
    beyond = Table("Seconds from points to eigenvectors, by the model", columns)
    for points in POINTS:
        beyond.add(points, *(model.seconds(points, ranks) for ranks in RANKS))
    names = {"µs a point": ".1f", "µs a collective": ".0f", "MB a second": ".0f", "halo / √(N/W)": ".2f"}
    parameters = Table("Parameters", names | {"iterations": ".0f", "collectives an iteration": ".1f"})
    parameters.add(
        model.rate * 1e6,
        model.latency * 1e6,
        model.bandwidth / 1e6,
        model.halo,
        model.iterations,
        model.collectives,
    )
    return [parameters, measured, beyond]
