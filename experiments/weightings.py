"""Few labels: methods on a graph, whatever its weighting, against networks, alone and with smoothness as a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor

from experiments import data
from experiments.fewlabels import COLUMNS, PLAIN, PRIOR, WEIGHTINGS, Method, Points, Transduction, new_points
from experiments.metrics import mean_and_interval, plus_minus
from experiments.runs import Refusal, Run, check_least, check_names, table
from experiments.smoothing import BATCHES, LAYERS, Kind, Problem, Schedule, accuracy, trained
from torch_lapeig import KNN

SETS: dict[str, tuple[str, Callable[[Path | None], Points]]] = {
    "digits": ("digits", lambda data_dir: Points(*data.digits_points())),
    "mnist": ("MNIST test set", lambda data_dir: Points(*data.mnist_test(data_dir))),
}
SET_NAMES = list(SETS)
LABELS = [1, 5, 10]
MANY = [1, 10, 100]
STRENGTHS = [1.0, 10.0]
BATCH, RATE = 64, 1e-2  # images in a batch, besides up to 32 labelled ones; the largest rate of Adam
TUNING = 100  # first seed of the splits that choose, none of which is reported

# What the recipe is chosen from, on the digits.
KINDS = [("spreading", 0.9), ("spreading", 0.99), ("spreading", 0.999), ("harmonic", 0.0)]
KINDS += [("regression", columns) for columns in (20.0, 50.0)]
GRID = [
    Method(weighting, neighbors, symmetrize, kind, number)
    for weighting in ("heat", "self_tuning")
    for neighbors in (5, 10, 15)
    for symmetrize in ("mean", "union")
    for kind, number in KINDS
]
# What is compared on all sets, at the library's defaults.
COMPARED = [
    Method(kind="pixels", number=0.0),
    Method(kind="eigenmaps", number=0.0),
    Method(kind="regression", number=20.0),
    *(Method(weighting) for weighting in WEIGHTINGS),
    Method(kind="harmonic", number=0.0),
]
ALONE, SELF, TAUGHT = Kind("alone"), Kind("self"), Kind("taught")

Accuracies = dict[str, dict[str, list[float]]]  # by name, by number of labels: of each split


def weightings(
    out: Path = Path("runs/weightings"),
    sets: list[str] = SET_NAMES,
    labels: list[int] = LABELS,
    splits: int = 20,
    tuning: int = 10,
    trainings: int = 10,
    labels_new: list[int] = MANY,
    strengths: list[float] = STRENGTHS,
    tuned_at: int = 10,
    steps: int = 400,
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Few labels: methods on a graph with each weighting against networks, alone and with smoothness as a loss.

    Args:
        out: folder of metrics.json, the figure and what is finished.
        sets: which data sets: digits, mnist.
        labels: numbers of labelled images of each class.
        splits: choices of the labelled images for methods on a graph of all points, seeds from 0 on.
        tuning: choices, seeds from 100 on, by which the recipe is chosen on the digits.
        trainings: splits into training and held-out part, for networks and for methods at new points.
        labels_new: numbers of labelled images of each class there.
        strengths: λ of the smoothness. Layer and λ of a data set are those that are best on the other one, or with one
            set alone softmax and the middle λ.
        tuned_at: labelled images of each class where all λ are tried; one of labels_new.
        steps: of a training.
        data_dir: folder of the MNIST files; default: TORCH_LAPEIG_DATA.
        quick: digits with 1 label a class, few splits, one λ, fewer steps.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        sets, labels, splits, tuning, trainings, labels_new = ["digits"], [1], 4, 1, 2, [1]
        strengths, tuned_at, steps = [1.0], 1, 30
    _check(locals())
    run = Run(out, locals())
    points = loaded(sets, data_dir)
    pattern = cache(lambda name, k, symmetrize: KNN(k, symmetrize)(points(name).x))
    carry = Transduction(points, pattern, labels)
    grid = GRID if not quick else [way for way in GRID if (way.neighbors, way.weighting) == (10, "heat")]
    choice = tuned(carry, run, grid, tuning)
    recipe = max(choice, key=lambda way: choice[way])
    found = carried(carry, run, [*COMPARED, recipe._replace(variant=PLAIN)], sets, splits)
    on_graph = {name: summaries(of, str(recipe)) for name, of in found.items()}
    problem = lru_cache(1)(lambda name, seed: Problem.of(data.split_by_class(*points(name), seed=seed)))
    training = Training(run, problem, recipe, Schedule(steps, BATCH, RATE), labels_new, trainings)
    metrics = {
        "recipe": {"name": str(recipe), "digits_tuning": choice[recipe], **of_recipe(on_graph, recipe)},
        "graph": on_graph,
        **training.outcome(sets, strengths, tuned_at),
    }
    run.finish(metrics, *tables(metrics, choice, splits, tuning, trainings, tuned_at))


def loaded(sets: list[str], data_dir: Path | None) -> Callable[[str], Points]:
    """Return the points of a data set, each read once, before the work: what is missing is said at once."""
    points = cache(lambda name: SETS[name][1](data_dir))
    for name in sets:
        points(name)
    return points


def _check(given: dict[str, Any]) -> None:
    """Raise unless names are known and numbers allow intervals and batches."""
    check_names("sets", given["sets"], SET_NAMES)
    for option, least in {"splits": 2, "tuning": 1, "trainings": 2, "steps": 1}.items():
        check_least(option, given[option], least)
    for option, smallest in {"labels": 1, "labels_new": 1, "strengths": 1e-9}.items():
        check_least(option, min(given[option], default=0), smallest)
    if (most := max(given["labels"] + given["labels_new"])) > TUNING:
        raise Refusal(f"--labels and --labels_new must be at most {TUNING}, as many as every class has, got {most}")
    if given["tuned_at"] not in given["labels_new"]:
        raise Refusal(f"--tuned_at must be one of --labels_new {given['labels_new']}, got {given['tuned_at']}")


# ------------------------------------------------------------------------------------------------ methods on a graph


def tuned(carry: Transduction, run: Run, grid: Sequence[Method], splits: int) -> dict[Method, float]:
    """Return mean accuracy of each candidate on the digits, over numbers of labels and the splits that choose."""
    cases = [("digits", TUNING, splits, *way.case) for way in grid]
    found = run.cells("choice", carry, cases)
    return {
        way._replace(variant=variant): float(np.mean([by_count[variant] for by_count in found[case].values()]))
        for way, case in zip(grid, cases, strict=True)
        for variant in next(iter(found[case].values()))
    }


def carried(
    carry: Transduction, run: Run, ways: Iterable[Method], sets: Iterable[str], splits: int
) -> dict[str, Accuracies]:
    """Return accuracies of each method on each set."""
    cases = {(name, way): (name, 0, splits, *way.case) for name in sets for way in ways}
    found = run.cells("graph", carry, dict.fromkeys(cases.values()))
    result: dict[str, Accuracies] = {}
    for (name, way), case in cases.items():
        for variant in (PLAIN, PRIOR):
            of = {count: values[variant] for count, values in found[case].items() if variant in values}
            if of:
                result.setdefault(name, {})[str(way._replace(variant=variant))] = of
    return result


# --------------------------------------------------------------------------------------------------------- networks


@dataclass(frozen=True)
class Training:
    """Trains networks, and lets methods on a graph tell new points, on splits by name and seed."""

    run: Run
    problem: Callable[[str, int], Problem]
    recipe: Method
    schedule: Schedule
    counts: list[int]
    seeds: int

    def outcome(self, sets: list[str], strengths: list[float], tuned_at: int) -> dict[str, Any]:
        """Return accuracies at new points, and what each smoothness gains; draws the figure."""
        new = self.run.cells("new", self.on_graph, product(sets, range(self.seeds)))
        kinds = [Kind(*parts) for parts in product(BATCHES, LAYERS, strengths)]
        swept = self.cells(sets, [tuned_at], [ALONE, *kinds])
        chosen = {name: best_elsewhere(swept, name, sets, strengths) for name in sets}
        of = {}
        for name in sets:
            found = self.cells([name], self.counts, [ALONE, SELF, chosen[name], TAUGHT])
            of[name] = at_new_points(new, found, name, self.counts, self.seeds)
        result = {
            "new": {name: summaries(of[name], "recipe") for name in sets},
            "strength": {name: gains(swept, name, tuned_at) for name in sets},
            "chosen": {name: kind._asdict() for name, kind in chosen.items()},
        }
        self.run.figure("weightings", figure(result, self.counts, strengths), dpi=80)
        return result

    def on_graph(self, name: str, seed: int) -> dict[str, Any]:
        """Return accuracies of methods on a graph at the held-out points."""
        return new_points(self.problem(name, seed).split, self.counts, seed, self.recipe)

    def cells(self, sets: list[str], counts: list[int], kinds: Sequence[Kind]) -> dict[Any, float]:
        """Return accuracy at the held-out points by (set, number of labels, kind, seed)."""
        every = product(sets, range(self.seeds), counts, dict.fromkeys(kinds))
        found = self.run.cells("network", self.train, [(name, seed, count, *kind) for name, seed, count, kind in every])
        return {(name, count, Kind(*kind), seed): of["accuracy"] for (name, seed, count, *kind), of in found.items()}

    def train(self, name: str, seed: int, count: int, *kind: Any) -> dict[str, float]:
        """Train, and test on what is held out."""
        problem = self.problem(name, seed)

        def teacher(known: Tensor) -> Tensor:
            labels: Tensor = self.recipe.module().fit(problem.split.train, known).predict()
            return labels

        model = trained(problem, count, Kind(*kind), seed, self.schedule, teacher)
        return {"accuracy": accuracy(model, problem.split)}


def best_elsewhere(swept: dict[Any, float], name: str, sets: list[str], strengths: list[float]) -> Kind:
    """Return layer and λ of neighbourhoods: the best of the other sets, so that no label of this one has a say."""
    others = [other for other in sets if other != name]
    kinds = [kind for kind in _kinds(swept) if kind.batches == "near" and others]
    mean = {k: np.mean([v for (of, _, kind, _), v in swept.items() if kind == k and of in others]) for k in kinds}
    middle = Kind("near", LAYERS[0], strengths[len(strengths) // 2])
    return max(mean, key=lambda kind: mean[kind]) if mean else middle


def _kinds(swept: dict[Any, float]) -> list[Kind]:
    return list(dict.fromkeys(kind for _, _, kind, _ in swept))


def at_new_points(new: dict[Any, Any], found: dict[Any, float], name: str, labels: list[int], seeds: int) -> Accuracies:
    """Return accuracies of one set at the held-out points: of the methods on a graph and of the networks."""
    result: Accuracies = {
        method: {str(count): [new[name, seed][method][str(count)] for seed in range(seeds)] for count in labels}
        for method in new[name, 0]
    }
    for kind in _kinds(found):
        result[kind.batches] = {
            str(count): [found[name, count, kind, seed] for seed in range(seeds)] for count in labels
        }
    return result


# ---------------------------------------------------------------------------------------------------------- outcome


def summaries(of: Accuracies, base: str) -> dict[str, Any]:
    """Return mean and interval of each accuracy, and of its difference to that of ``base`` on the same splits."""
    return {
        method: {
            count: {
                "accuracy": mean_and_interval(values),
                "difference": mean_and_interval(np.subtract(values, of[base][count]), len(of) - 1),
            }
            for count, values in by_count.items()
        }
        for method, by_count in of.items()
    }


def of_recipe(on_graph: dict[str, Any], recipe: Method) -> dict[str, Any]:
    """Return accuracies of the recipe by data set and number of labels, and what they are without its class prior."""
    plain = str(recipe._replace(variant=PLAIN))
    return {
        name: {
            count: {**cell["accuracy"], "plain": of[plain][count]["accuracy"]}
            for count, cell in of[str(recipe)].items()
        }
        for name, of in on_graph.items()
    }


def gains(swept: dict[Any, float], name: str, count: int) -> dict[str, Any]:
    """Return the gain of each smoothness over the network without it, seed by seed."""
    seeds = sorted({seed for of, _, _, seed in swept if of == name})
    of = {kind: np.array([swept[name, count, kind, seed] for seed in seeds]) for kind in _kinds(swept)}
    alone = {"alone": mean_and_interval(of[ALONE])}
    rest = {
        f"{kind.batches}.{kind.layer}.{kind.strength:g}": mean_and_interval(values - of[ALONE], len(of) - 1)
        for kind, values in of.items()
        if kind != ALONE
    }
    return alone | rest


NETWORKS = {
    "pixels": "pixels, 1-NN",
    "eigenmaps": f"eigenmaps, {COLUMNS} columns, 1-NN",
    "recipe": "the recipe",
    "alone": "network alone",
    "self": "network, self-training",
    "near": "network, smoothness, " + BATCHES["near"],
    "taught": "network taught by the recipe",
}

COLOURS = dict(zip(NETWORKS, ("0.6", "C1", "C3", "k", "C7", "C0", "C4"), strict=True))


def tables(
    metrics: dict[str, Any], choice: dict[Method, float], splits: int, tuning: int, trainings: int, tuned_at: int
) -> list[Table]:
    """Return the printed and recorded tables."""
    recipe = metrics["recipe"]["name"]
    order = sorted(choice, key=lambda way: -choice[way])
    kinds = {(way.kind, way.number, way.variant): way for way in reversed(order)}  # the best of each kind
    shown = [way for way in order if way in kinds.values() or way in order[:5]]
    same = {method: method for method in next(iter(metrics["graph"].values()))}
    whole = f"{splits} splits"
    result = [
        table(
            f"candidates on the digits, mean accuracy (%), {tuning} splits",
            ["", "%"],
            [[str(way), f"{100 * choice[way]:.2f}"] for way in shown],
        ),
        _by_count(f"all points at hand, accuracy (%), {whole}", metrics["graph"], same, "accuracy"),
        _by_count(
            f"all points at hand, difference to the recipe, {whole}", metrics["graph"], same, "difference", recipe
        ),
    ]
    return [*result, *_of_networks(metrics, trainings, tuned_at)]


def _of_networks(metrics: dict[str, Any], trainings: int, tuned_at: int) -> list[Table]:
    """Return the accuracies of the networks at new points."""
    held = f"new points, {trainings} splits"
    swept = metrics["strength"]
    strengths = list(dict.fromkeys(key.split(".", 2)[2] for key in next(iter(swept.values())) if key != "alone"))
    rows = [
        [
            BATCHES[batches],
            layer,
            *(plus_minus(swept[name][f"{batches}.{layer}.{of}"], 1, 100, "+") for name in swept for of in strengths),
        ]
        for batches, layer in product(BATCHES, LAYERS)
    ]
    headings = ["batches, graph", "layer", *(f"{SETS[name][0]}, λ = {of}" for name in swept for of in strengths)]
    return [
        _by_count(f"{held}, accuracy (%)", metrics["new"], NETWORKS, "accuracy"),
        _by_count(f"{held}, difference to the recipe", metrics["new"], NETWORKS, "difference", "recipe"),
        table(f"smoothness, gain over the network alone, {tuned_at} labels a class, {held}", headings, rows),
    ]


def _by_count(title: str, metrics: dict[str, Any], names: dict[str, str], of: str, base: str = "") -> Table:
    """Rows: methods but for ``base``; columns: data sets and numbers of labels."""
    columns = [(name, count) for name, by in metrics.items() for count in next(iter(by.values()))]
    sign = "+" if base else ""
    rows = [
        [label, *(plus_minus(metrics[name][method][count][of], 1, 100, sign) for name, count in columns)]
        for method, label in names.items()
        if method != base
    ]
    return table(title, ["labels a class", *(f"{SETS[name][0]}, {count}" for name, count in columns)], rows)


def figure(metrics: dict[str, Any], labels: list[int], strengths: list[float]) -> Figure:
    """Above: accuracy at new points against labels. Below: what smoothness adds, against λ."""
    sets = list(metrics["new"])
    figure = Figure(figsize=(0.6 + 5.4 * len(sets), 8.2), layout="constrained")
    panels = figure.subplots(2, len(sets), squeeze=False)
    for place, name in enumerate(sets):
        _curves(panels[0, place], metrics["new"][name], labels)
        panels[0, place].set_title(f"{SETS[name][0]}, new points", fontsize=11)
        _sweep(panels[1, place], metrics["strength"][name], strengths)
    panels[0, 0].legend(frameon=False, fontsize=8)
    panels[1, 0].legend(frameon=False, fontsize=8)
    return figure


def _curves(panel: Axes, of: dict[str, Any], labels: list[int]) -> None:
    for method, label in NETWORKS.items():
        cells = [of[method][str(count)]["accuracy"] for count in labels]
        mean, half = (100 * np.array([cell[key] for cell in cells]) for key in ("mean", "interval"))
        style = "--" if label.startswith("network") else "-"
        panel.errorbar(labels, mean, half, fmt="o", ls=style, ms=3, capsize=2, color=COLOURS[method], label=label)
    panel.set(xscale="log", xlabel="labelled images of each class", ylabel="accuracy (%)")
    panel.set_xticks(labels, [str(count) for count in labels])
    panel.spines[["top", "right"]].set_visible(False)


def _sweep(panel: Axes, of: dict[str, Any], strengths: list[float]) -> None:
    panel.axhline(0, color="0.7", lw=0.8)
    for (batches, label), colour in zip(BATCHES.items(), ("C2", "C0"), strict=True):
        for layer, style in zip(LAYERS, ("-", "--"), strict=True):
            cells = [of[f"{batches}.{layer}.{strength:g}"] for strength in strengths]
            mean, half = (100 * np.array([cell[key] for cell in cells]) for key in ("mean", "interval"))
            name = f"{label}, {layer}"
            panel.errorbar(strengths, mean, half, fmt="o", ls=style, ms=3, capsize=2, color=colour, label=name)
    panel.set(xscale="log", xlabel="λ", ylabel="gain over the network alone (points)")
    panel.spines[["top", "right"]].set_visible(False)
