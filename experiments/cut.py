"""Normalised cuts (Shi & Malik 2000) and Cheeger's bounds: the second eigenvector against the best of all cuts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sklearn.cluster
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import Tensor

from experiments.data import digits, mnist_test
from experiments.metrics import Numbers, mean_and_interval, plus_minus
from experiments.runs import Run, pick_device, table
from torch_lapeig import KNN, Graph, GraphWarning, HeatKernel, Laplacian, SpectralClustering, eigenpairs, normalized_cut

KINDS = {"blobs": "two blobs", "square": "uniform in a square", "random": "random weights"}
KNOWN = {"hypercube": "hypercube", "path": "path", "cycle": "cycle", "dumbbell": "dumbbell", "complete": "complete"}
RESAMPLES = 100  # of a score's interval
METHODS = {"njw": "Ng–Jordan–Weiss", "shi_malik": "Shi–Malik", "scikit_learn": "scikit-learn"}


def cut(
    out: Path = Path("runs/cut"),
    nodes: int = 16,
    graphs: int = 100,
    data: list[Literal["digits", "mnist"]] = ["digits", "mnist"],  # noqa: B006 (never changed)
    neighbors: int = 10,
    seeds: int = 3,
    device: str = "auto",
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Normalised cuts by the second eigenvector against the exact optimum, and spectral clustering of digits.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        nodes: of the small graphs; all 2^(nodes − 1) − 1 cuts are tried.
        graphs: number of small graphs of each kind.
        data: what is clustered into ten: scikit-learn's digits, the MNIST test set.
        neighbors: k of the neighbourhood graph of the digits.
        seeds: of k-means.
        device: "auto" (CUDA where there is one), "cpu" or "cuda"; scikit-learn works on the CPU.
        data_dir: folder of the MNIST test set; default: that of the environment variable TORCH_LAPEIG_DATA.
        quick: ten small graphs of each kind; of the digits one seed, no MNIST.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        graphs, seeds, data = min(graphs, 10), 1, ["digits"]
    run = Run(out, locals())
    place = pick_device(device)
    points: dict[str, tuple[Tensor, Tensor]] = {name: _points(name, data_dir) for name in data}
    small = run.cells(
        "small graphs",
        lambda kind, seed: cuts_of(small_graph(kind, nodes, seed)),
        [(kind, seed) for kind in KINDS for seed in range(graphs)],
    )
    known = {name: cuts_of(known_graph(name)) for name in KNOWN}
    cases = [(name, method, seed) for name in data for method in METHODS for seed in range(seeds)]
    clusterings = run.cells("clusterings", partial(scores, points, place, neighbors), cases)
    cuts = {kind: ratios([small[kind, seed] for seed in range(graphs)]) for kind in KINDS}
    bounds = {kind: cheeger([small[kind, seed] for seed in range(graphs)]) for kind in KINDS}
    bounds |= {name: cheeger([result]) for name, result in known.items()}
    clusters: dict[str, dict[str, dict[str, float]]] = {
        name: {method: means([clusterings[name, method, seed] for seed in range(seeds)]) for method in METHODS}
        for name in data
    }
    run.figure("cut", figure(small, known, clusters), dpi=80)
    tables = cut_table(cuts), cheeger_table(bounds), cluster_table(clusters)
    run.finish({"small_graphs": cuts, "cheeger": bounds, "clusterings": clusters}, *tables)


def _points(name: str, data_dir: Path | None) -> tuple[Tensor, Tensor]:
    if name == "mnist":
        return mnist_test(data_dir)
    split = digits()
    return torch.cat([split.train, split.heldout]), torch.cat([split.train_labels, split.heldout_labels])


def small_graph(kind: str, nodes: int, seed: int) -> Graph:
    """Return a connected weighted graph: heat weights on 4-NN, or uniform weights on half of all pairs."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.rand(nodes, 2, generator=generator, dtype=torch.float64)
        if kind == "random":
            upper = torch.rand(nodes, nodes, generator=generator, dtype=torch.float64).triu(1)
            upper = upper * (torch.rand(nodes, nodes, generator=generator) < 0.5)
            graph = Graph.from_dense(upper + upper.T)
        else:
            if kind == "blobs":
                x = torch.randn(nodes, 2, generator=generator, dtype=torch.float64)
                x[nodes // 2 :, 0] += 3
            graph = HeatKernel()(x, KNN(4, "union")(x))
        if graph.connected_components().max() == 0:
            return graph


def known_graph(name: str) -> Graph:
    """Return a graph of 16 nodes with known λ₂ and h; see tests/experiments/test_metrics.py."""
    node = np.arange(16)
    apart = np.abs(node[:, None] - node)
    weights = {
        "hypercube": np.isin(node[:, None] ^ node, [1, 2, 4, 8]),
        "path": apart == 1,
        "cycle": (apart == 1) | (apart == 15),
        "dumbbell": (apart > 0) & ((node[:, None] // 8 == node // 8) | ((node[:, None] + node == 15) & (apart == 1))),
        "complete": apart > 0,
    }
    return Graph.from_dense(torch.from_numpy(weights[name].astype(float)))


def cuts_of(graph: Graph) -> dict[str, Any]:
    """Return λ₂, the smallest normalised cut, and the cuts by threshold and sign of the second eigenvector.

    ``conductance`` is Cheeger's h, the smallest cut over the smaller volume, and ``sweep_conductance`` the smallest of
    the second eigenvector's thresholds.
    """
    weights = graph.to_dense().numpy()
    n = len(weights)
    pairs = eigenpairs(Laplacian(graph, "random_walk"), 2)
    y = pairs.vectors[:, 1].numpy()
    every = (np.arange(1, 2 ** (n - 1))[:, None] >> np.arange(n)) & 1  # the last node is always in part 0
    thresholds = (y[:, None] > np.unique(y)[None, :-1]).T
    return {
        "second_eigenvalue": float(pairs.values[1]),
        "optimum": float(normalized_cuts(weights, every).min()),
        "sweep": float(normalized_cuts(weights, thresholds).min()),
        "sign": float(normalized_cut((pairs.vectors[:, 1] > 0).long(), graph)),
        "conductance": float(conductances(weights, every).min()),
        "sweep_conductance": float(conductances(weights, thresholds).min()),
    }


def cuts_and_volumes(weights: Numbers, parts: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Cut and both volumes of each of many two-part partitions, rows of ``parts`` ``(P, N)`` in {0, 1}."""
    degrees = weights.sum(0)
    a = parts.astype(float)
    volume = a @ degrees
    return ((a @ weights) * (1 - a)).sum(1), volume, degrees.sum() - volume


def normalized_cuts(weights: Numbers, parts: Numbers) -> Numbers:
    """Return cut · (1/vol A + 1/vol B) of each partition."""
    cut, a, b = cuts_and_volumes(weights, parts)
    return np.asarray(cut * (1 / a + 1 / b))


def conductances(weights: Numbers, parts: Numbers) -> Numbers:
    """Return cut / min(vol A, vol B) of each partition."""
    cut, a, b = cuts_and_volumes(weights, parts)
    return np.asarray(cut / np.minimum(a, b))


def ratios(results: list[dict[str, float]]) -> dict[str, Any]:
    """Return mean and largest ratio of the sweep and the sign cut to the optimum, and how often they are optimal."""
    optimum = np.array([result["optimum"] for result in results])
    summary: dict[str, Any] = {
        "eigenvalue_over_optimum": mean_and_interval([r["second_eigenvalue"] / r["optimum"] for r in results])
    }
    for name in ("sweep", "sign"):
        ratio = np.array([result[name] for result in results]) / optimum
        summary[name] = {
            **mean_and_interval(ratio),
            "greatest": float(ratio.max()),
            "exact": float((ratio < 1 + 1e-9).mean()),
        }
    return summary


def cheeger(results: list[dict[str, float]]) -> dict[str, Any]:
    """Return the spread of λ₂/2 ≤ h ≤ sweep ≤ √(2 λ₂), and how often all hold (up to round-off)."""
    second, h, sweep = (
        np.array([result[key] for result in results])
        for key in ("second_eigenvalue", "conductance", "sweep_conductance")
    )
    lower, upper = second / 2, np.sqrt(2 * second)
    chain = np.stack([lower, h, sweep, upper])
    return {
        **{
            key: mean_and_interval(values)
            for key, values in {
                "lower": lower,
                "conductance": h,
                "upper": upper,
                "h_over_lower": h / lower,
                "upper_over_h": upper / h,
                "sweep_over_h": sweep / h,
            }.items()
        },
        "holds": float((chain[1:] >= chain[:-1] * (1 - 1e-9)).all(0).mean()),
        "graphs": len(results),
    }


def scores(
    points: dict[str, tuple[Tensor, Tensor]], place: torch.device, neighbors: int, name: str, method: str, seed: int
) -> dict[str, Any]:
    """Return agreement of one clustering with the classes, half the width of its 95 % interval, and seconds."""
    x, classes = points[name]
    start = time.perf_counter()
    labels = labels_of(x.to(place), method, neighbors, seed)
    seconds = time.perf_counter() - start
    true = classes.numpy()
    return {
        **with_interval("nmi", normalized_mutual_info_score, true, labels),
        **with_interval("ari", adjusted_rand_score, true, labels),
        "seconds": seconds,
    }


def with_interval(name: str, score: Callable[..., Any], classes: Numbers, labels: Numbers) -> dict[str, float]:
    """Return a score of labels, and 1.96 of its standard deviations over resampled points."""
    generator = np.random.default_rng(0)
    draws = (generator.integers(len(labels), size=len(labels)) for _ in range(RESAMPLES))
    again = [score(classes[chosen], labels[chosen]) for chosen in draws]
    return {name: float(score(classes, labels)), f"{name}_interval": float(1.96 * np.std(again))}


def labels_of(x: Tensor, method: str, neighbors: int, seed: int) -> Numbers:
    """Return ten clusters of points."""
    if method == "scikit_learn":
        model = sklearn.cluster.SpectralClustering(
            10, affinity="nearest_neighbors", n_neighbors=neighbors, random_state=seed
        )
        with warnings.catch_warnings():  # of a graph that is not connected, which is an answer too
            warnings.simplefilter("ignore", UserWarning)
            return np.asarray(model.fit_predict(x.cpu().numpy()))
    variant: Literal["njw", "shi_malik"] = "njw" if method == "njw" else "shi_malik"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        return SpectralClustering(10, KNN(neighbors, "union"), variant=variant, seed=seed).fit_predict(x).cpu().numpy()


def means(results: list[dict[str, float]]) -> dict[str, float]:
    """Return mean of each score."""
    return {key: float(np.mean([result[key] for result in results])) for key in results[0]}


def cut_table(cuts: dict[str, dict[str, Any]]) -> Table:
    """Rows: kinds of small graphs; columns: cuts over the smallest one."""
    rows = [
        [
            label,
            *(f"{plus_minus(cuts[kind][of], 3)}, {cuts[kind][of]['exact']:.0%} exact" for of in ("sweep", "sign")),
            plus_minus(cuts[kind]["eigenvalue_over_optimum"], 3),
        ]
        for kind, label in KINDS.items()
    ]
    return table("cuts", ["graphs", "best threshold", "signs", "λ₂ over it"], rows)


def cheeger_table(bounds: dict[str, dict[str, Any]]) -> Table:
    """Rows: graphs; columns: the bounds and what lies between them."""
    keys = ("lower", "conductance", "upper", "h_over_lower", "upper_over_h", "sweep_over_h")
    rows = [
        [
            (KINDS | KNOWN)[name],
            *(f"{of_kind[key]['mean']:.3f}" for key in keys),
            f"{of_kind['holds'] * of_kind['graphs']:.0f} of {of_kind['graphs']}",
        ]
        for name, of_kind in bounds.items()
    ]
    columns = ["graphs", "λ₂/2", "h", "√(2λ₂)", "h over λ₂/2", "√(2λ₂) over h", "best threshold over h", "both hold"]
    return table("Cheeger", columns, rows)


def cluster_table(clusters: dict[str, dict[str, dict[str, float]]]) -> Table:
    """Rows: data sets and methods; columns: their scores."""
    rows = [
        [
            name,
            METHODS[method],
            *(f"{mean[key]:.3f} ± {mean[f'{key}_interval']:.3f}" for key in ("nmi", "ari")),
            f"{mean['seconds']:.1f}",
        ]
        for name, by_method in clusters.items()
        for method, mean in by_method.items()
    ]
    return table("clusters", ["data", "method", "NMI", "ARI", "seconds"], rows)


def figure(
    small: dict[Any, dict[str, float]],
    known: dict[str, dict[str, float]],
    clusterings: dict[str, dict[str, dict[str, float]]],
) -> Figure:
    """Cut of the second eigenvector against the best cut; Cheeger's bounds; scores of the clusterings."""
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    left, middle, *right = figure.subplots(1, 2 + len(clusterings), width_ratios=[1.2, 1.2, *[0.8] * len(clusterings)])
    for i, (kind, label) in enumerate(KINDS.items()):
        of_kind = [result for (name, _), result in small.items() if name == kind]
        optimum, sweep, sign = (np.array([r[key] for r in of_kind]) for key in ("optimum", "sweep", "sign"))
        left.scatter(optimum, sign, s=22, facecolors="none", edgecolors=f"C{i}", lw=0.7, label=f"{label}: signs")
        left.scatter(optimum, sweep, s=9, color=f"C{i}", lw=0, label=f"{label}: best threshold")
        middle.scatter(*bounded(of_kind), s=12, color=f"C{i}", lw=0, alpha=0.7, label=label)
    left.axline((0.5, 0.5), slope=1, color="0.6", lw=0.8, zorder=0)
    left.set(xlabel="smallest normalised cut", ylabel="cut by the second eigenvector")
    cheeger_panel(middle, known)
    for panel, (name, by_method) in zip(right, clusterings.items(), strict=True):
        for i, (method, label) in enumerate(METHODS.items()):
            heights, errors = (
                [by_method[method][f"{key}{end}"] for key in ("nmi", "ari")] for end in ("", "_interval")
            )
            panel.bar(np.arange(2) + 0.27 * (i - 1), heights, 0.25, yerr=errors, label=label, error_kw={"lw": 0.8})
        panel.set(xticks=[0, 1], xticklabels=["NMI", "ARI"], ylim=(0, 1.15), title=name)
    for panel in figure.axes:
        panel.legend(frameon=False, fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def bounded(results: list[dict[str, float]]) -> tuple[list[float], list[float]]:
    """Return λ₂ and h."""
    return [r["second_eigenvalue"] for r in results], [r["conductance"] for r in results]


def cheeger_panel(panel: Axes, known: dict[str, dict[str, float]]) -> None:
    """Draw the bounds as lines, and the known graphs by name."""
    values = np.geomspace(0.001, 1.2, 50)
    panel.plot(values, values / 2, "k-", lw=0.8, label="λ₂/2 ≤ h ≤ √(2λ₂)")
    panel.plot(values, np.sqrt(2 * values), "k-", lw=0.8)
    panel.plot(*bounded(list(known.values())), "ks", ms=3)
    for name, result in known.items():
        panel.annotate(name, (result["second_eigenvalue"], result["conductance"]), (3, -8), textcoords="offset points")
    panel.set(xscale="log", yscale="log", xlabel="λ₂", ylabel="h, smallest cut over smaller volume")
