"""Draw docs/images/speed.png from the table of speed in README.md."""

import re
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

ROOT = Path(__file__).parents[1]


def rows() -> list[tuple[str, str, float]]:
    """Return the work, the fastest other and the ratio of each row of the table."""
    section = (
        (ROOT / "README.md").read_text().partition("## Speed")[2].partition("\n## ")[0]
    )
    cells = [
        line.strip("|").split("|")
        for line in section.splitlines()
        if re.match(r"\|.*\d", line)
    ]
    return [
        (
            work.strip(),
            other.partition(":")[0].replace("`", "").strip(),
            float(ratio.strip(" *")),
        )
        for work, _, other, ratio in cells
    ]


def draw() -> Figure:
    """Return bars of the ratios; left of 1 this library is faster."""
    table = rows()
    figure = Figure(figsize=(9, 0.42 * len(table) + 1), layout="constrained")
    axes = figure.subplots()
    for place, (_, other, ratio) in enumerate(reversed(table)):
        is_faster = ratio < 1
        colour = "tab:blue" if is_faster else "tab:orange"
        axes.barh(place, ratio - 1, left=1, height=0.65, color=colour)
        side, shift = ("left", 5) if is_faster else ("right", -5)
        text = {"textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(f"{ratio:g} × {other}", (1, place), (shift, 0), ha=side, **text)
    axes.set_yticks(
        range(len(table)), [work for work, _, _ in reversed(table)], fontsize=9
    )
    axes.set_xscale("log")
    axes.set_xlim(0.09, 8)
    axes.xaxis.set_major_locator(FixedLocator([0.1, 0.25, 0.5, 1, 2, 4]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("time of this library / time of the fastest other")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    draw().savefig(ROOT / "docs" / "images" / "speed.png", dpi=110)
