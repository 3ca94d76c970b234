"""Normalised cuts (Shi & Malik 2000): the second eigenvector against the best of all cuts, and clusters of digits."""

from __future__ import annotations

import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sklearn.cluster
import torch
from matplotlib.figure import Figure
from rich.table import Table
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import Tensor

from experiments.data import digits, mnist_test
from experiments.metrics import Numbers
from experiments.runs import Run, pick_device, table
from torch_lapeig import KNN, Graph, GraphWarning, HeatKernel, Laplacian, SpectralClustering, eigenpairs, normalized_cut

KINDS = {"blobs": "two blobs", "square": "uniform in a square", "random": "random weights"}
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
    cases = [(name, method, seed) for name in data for method in METHODS for seed in range(seeds)]
    clusterings = run.cells("clusterings", partial(scores, points, place, neighbors), cases)
    cuts = {kind: ratios([small[kind, seed] for seed in range(graphs)]) for kind in KINDS}
    clusters: dict[str, dict[str, dict[str, float]]] = {
        name: {method: means([clusterings[name, method, seed] for seed in range(seeds)]) for method in METHODS}
        for name in data
    }
    run.figure("cut", figure(small, clusters), dpi=80)
    tables = cut_table(cuts, graphs, nodes), cluster_table(clusters)
    run.finish({"small_graphs": cuts, "clusterings": clusters}, *tables)


def _points(name: str, data_dir: Path | None) -> tuple[Tensor, Tensor]:
    if name == "mnist":
        return mnist_test(data_dir)
    split = digits()
    return torch.cat([split.train, split.heldout]), torch.cat([split.train_labels, split.heldout_labels])


def small_graph(kind: str, nodes: int, seed: int) -> Graph:
    """A connected weighted graph: heat weights on the 4-NN graph of points, or uniform weights on half of all pairs."""
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


def cuts_of(graph: Graph) -> dict[str, Any]:
    """λ₂, the smallest normalised cut, and those that the second eigenvector gives: its best threshold, its signs."""
    weights = graph.to_dense().numpy()
    n = len(weights)
    pairs = eigenpairs(Laplacian(graph, "random_walk"), 2)
    y = pairs.vectors[:, 1].numpy()
    every = (np.arange(1, 2 ** (n - 1))[:, None] >> np.arange(n)) & 1  # the last node is always in part 0
    thresholds = (y[:, None] > np.sort(y)[None, :-1]).T
    return {
        "second_eigenvalue": float(pairs.values[1]),
        "optimum": float(normalized_cuts(weights, every).min()),
        "sweep": float(normalized_cuts(weights, thresholds).min()),
        "sign": float(normalized_cut((pairs.vectors[:, 1] > 0).long(), graph)),
    }


def normalized_cuts(weights: Numbers, parts: Numbers) -> Numbers:
    """cut · (1/vol A + 1/vol B) of each of many two-part partitions, rows of ``parts`` ``(P, N)`` in {0, 1}."""
    degrees = weights.sum(0)
    a = parts.astype(float)
    volume = a @ degrees
    cut = ((a @ weights) * (1 - a)).sum(1)
    return np.asarray(cut * (1 / volume + 1 / (degrees.sum() - volume)))


def ratios(results: list[dict[str, float]]) -> dict[str, float]:
    """Of the sweep and the sign cut: mean and largest ratio to the optimum, and how often they are it."""
    optimum = np.array([result["optimum"] for result in results])
    summary = {"eigenvalue_over_optimum": float(np.mean([r["second_eigenvalue"] / r["optimum"] for r in results]))}
    for name in ("sweep", "sign"):
        ratio = np.array([result[name] for result in results]) / optimum
        summary |= {
            f"{name}_mean": ratio.mean(),
            f"{name}_max": ratio.max(),
            f"{name}_exact": (ratio < 1 + 1e-9).mean(),
        }
    return {key: float(value) for key, value in summary.items()}


def scores(
    points: dict[str, tuple[Tensor, Tensor]], place: torch.device, neighbors: int, name: str, method: str, seed: int
) -> dict[str, Any]:
    """Agreement of one clustering with the classes, and its seconds."""
    x, classes = points[name]
    start = time.perf_counter()
    labels = labels_of(x.to(place), method, neighbors, seed)
    seconds = time.perf_counter() - start
    nmi, ari = (score(classes, labels) for score in (normalized_mutual_info_score, adjusted_rand_score))
    return {"nmi": float(nmi), "ari": float(ari), "seconds": seconds}


def labels_of(x: Tensor, method: str, neighbors: int, seed: int) -> Numbers:
    """Ten clusters of points."""
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
    """Mean of each score."""
    return {key: float(np.mean([result[key] for result in results])) for key in results[0]}


def cut_table(cuts: dict[str, dict[str, float]], graphs: int, nodes: int) -> Table:
    """Rows: kinds of small graphs; columns: cuts over the smallest one."""
    rows = [
        [
            label,
            *(f"{cuts[kind][f'{of}_mean']:.3f}, {cuts[kind][f'{of}_exact']:.0%} exact" for of in ("sweep", "sign")),
            f"{cuts[kind]['eigenvalue_over_optimum']:.3f}",
        ]
        for kind, label in KINDS.items()
    ]
    title = f"cut by the second eigenvector over the smallest of all, mean of {graphs} graphs of {nodes} nodes"
    return table(title, ["graphs", "best threshold", "signs", "λ₂ over it"], rows)


def cluster_table(clusters: dict[str, dict[str, dict[str, float]]]) -> Table:
    """Rows: data sets and methods; columns: their scores."""
    rows = [
        [name, METHODS[method], *(f"{mean[key]:.3f}" for key in ("nmi", "ari")), f"{mean['seconds']:.1f}"]
        for name, by_method in clusters.items()
        for method, mean in by_method.items()
    ]
    return table("spectral clustering into ten", ["data", "method", "NMI", "ARI", "seconds"], rows)


def figure(small: dict[Any, dict[str, float]], clusterings: dict[str, dict[str, dict[str, float]]]) -> Figure:
    """Cut of the second eigenvector against the best cut; scores of the clusterings."""
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    left, *right = figure.subplots(1, 1 + len(clusterings))
    for i, (kind, label) in enumerate(KINDS.items()):
        of_kind = [result for (name, _), result in small.items() if name == kind]
        optimum, sweep, sign = (np.array([r[key] for r in of_kind]) for key in ("optimum", "sweep", "sign"))
        left.scatter(optimum, sign, s=22, facecolors="none", edgecolors=f"C{i}", lw=0.7, label=f"{label}: sign")
        left.scatter(optimum, sweep, s=9, color=f"C{i}", lw=0, label=f"{label}: sweep")
    left.axline((0.5, 0.5), slope=1, color="0.6", lw=0.8, zorder=0)
    left.set(xlabel="smallest normalised cut", ylabel="cut by the second eigenvector")
    left.legend(frameon=False, fontsize=8)
    for panel, (name, by_method) in zip(right, clusterings.items(), strict=True):
        for i, (method, label) in enumerate(METHODS.items()):
            panel.bar(
                np.arange(2) + 0.27 * (i - 1), [by_method[method][key] for key in ("nmi", "ari")], 0.25, label=label
            )
        panel.set(xticks=[0, 1], xticklabels=["NMI", "ARI"], ylim=(0, 1), title=name)
        panel.legend(frameon=False, fontsize=8, loc="upper right")
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure
