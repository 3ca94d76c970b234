"""Performance profiles (Dolan and Moré, 2002): how often a solver is within a factor of the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SHORTEST = 1e-6  # seconds: the processor's clock of a virtual machine may show none for a short burst
Seconds = Sequence[Mapping[str, float]]  # of each problem, by solver; those who failed are left out


def profile(problems: Seconds, solver: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ascending factors τ, and the share of problems that a solver does within τ times the best time."""
    least = [max(min(seconds.values(), default=0), SHORTEST) for seconds in problems]
    found = zip(problems, least, strict=True)
    ratios = sorted(max(seconds[solver] / best, 1.0) for seconds, best in found if solver in seconds)
    return np.asarray(ratios), np.arange(1, len(ratios) + 1) / max(len(problems), 1)


def share_within(problems: Seconds, solver: str, factor: float) -> float:
    """Return the profile at one factor."""
    ratios, shares = profile(problems, solver)
    return float(shares[ratios <= factor][-1]) if (ratios <= factor).any() else 0.0


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else math.nan


def draw(problems: Seconds, columns: Mapping[str, str], title: str, file: Path, most: float = 20.0) -> None:
    """Draw one line for each solver, dashed for peers as shipped and dotted for experts' ways."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    styles = {"ours": "-", "unchecked": "-", "shipped": "--", "expert": ":"}
    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    for solver, column in columns.items():
        ratios, shares = profile(problems, solver)
        if len(ratios) == 0:
            continue
        x, y = np.r_[1.0, ratios, max(most, ratios[-1])], np.r_[0.0, shares, shares[-1]]
        width = 3.0 if solver == "default" else 1.3
        axes.step(x, y, styles[column], where="post", linewidth=width, label=f"{solver} ({column})")
    axes.set(xscale="log", xlim=(1, most), ylim=(0, 1.01), title=title)
    axes.set(xlabel="time over the best one's", ylabel=f"share of {len(problems)} graphs")
    axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=100)
    plt.close(figure)
