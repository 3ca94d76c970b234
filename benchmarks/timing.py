"""Fair timing on a noisy machine: candidates in turn, medians, ratios within a round."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

from experiments.tables import Table

PAUSE = 0.3  # seconds


def clock() -> Callable[[], float]:
    """Return the processor's time with one thread, since busy neighbours hardly change it; else the wall's."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def in_turn(candidates: Mapping[str, Callable[[], object]], rounds: int = 15, calls: int = 1) -> dict[str, list[float]]:
    """Return seconds of each candidate in each round after a warm-up; the mean of ``calls`` if it is short."""
    # A pause before each lets the worker threads of the one before go to sleep: those of OpenBLAS and OpenMP go on
    # spinning for a while, which costs a peer in the same process up to half of a two-core machine.
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    now = clock()
    for _ in range(rounds + 1):
        for name, call in candidates.items():
            if torch.get_num_threads() > 1:
                time.sleep(PAUSE)
            start = now()
            for _ in range(calls):
                call()
            seconds[name].append((now() - start) / calls)
    return {name: values[1:] for name, values in seconds.items()}


def median(seconds: list[float], unit: float = 1.0) -> float:
    """Return the median in parts of a second, 1e3 for milliseconds."""
    return unit * statistics.median(seconds)


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Return median over rounds of our time over theirs."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def compared(
    title: str, candidates: Mapping[str, Callable[[], object]], peer: str, rounds: int, calls: int = 1
) -> tuple[Table, dict[str, list[float]]]:
    """Return a table of median times, in milliseconds and over the peer's, and all seconds."""
    seconds = in_turn(candidates, rounds, calls)
    heading = f"{title}, {torch.get_num_threads()} threads, median of {rounds}"
    table = Table(heading, {"": "", "ms": ",.2f", f"time / {peer}": ".2f"})
    for name, times in seconds.items():
        table.add(name, median(times, 1e3), ratio(times, seconds[peer]))
    return table, seconds
