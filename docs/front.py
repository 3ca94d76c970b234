"""Draw docs/images/front.png, the digits of the site's front page."""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

from torch_lapeig import KNN, LaplacianEigenmaps

ROOT = Path(__file__).parents[1]
COLOURS = [f"C{digit}" for digit in range(10)]


def ranks(values: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """Return the share of ``among`` below each value, column by column."""
    ascending = among.sort(0).values.T.contiguous()
    return torch.searchsorted(ascending, values.T.contiguous()).T / len(among)


def draw() -> Figure:
    """Return 80 % of the digits in two columns, and the others by Nyström's formula."""
    pixels, digits = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    fitted, new = order[:1437], order[1437:]
    model = LaplacianEigenmaps(2, KNN(10)).fit(pixels[fitted])
    y = ranks(model.embedding_, model.embedding_)
    y_new = ranks(model.transform(pixels[new]), model.embedding_)

    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    for rows, at, size in ((fitted, y, 6), (new, y_new, 14)):
        colours = [COLOURS[digit] for digit in digits[rows].tolist()]
        axes.scatter(*at.T, c=colours, s=size, linewidths=0)
    axes.scatter(*y_new.T, s=40, facecolors="none", edgecolors="0.4", linewidths=0.6)
    for digit, colour in enumerate(COLOURS):
        x, height = y[digits[fitted] == digit].median(0).values.tolist()
        box = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": colour}
        axes.annotate(
            f"{digit}",
            (x, height),
            ha="center",
            va="center",
            fontsize=24,
            color=colour,
            bbox=box,
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("eigenvector 1 (rank)", fontsize=20)
    axes.set_ylabel("eigenvector 2 (rank)", fontsize=20)
    axes.margins(0.04)
    return figure


if __name__ == "__main__":
    draw().savefig(ROOT / "docs" / "images" / "front.png", dpi=120)
