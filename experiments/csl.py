"""Circular skip links (Murphy et al., *Relational pooling*, 2019): graphs that encodings of nodes tell apart."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from experiments.metrics import mean_and_interval, plus_minus
from experiments.runs import Run, check_least, check_names, table
from torch_lapeig import laplacian_positional_encoding

NODES = 41
SKIPS = (2, 3, 4, 5, 6, 9, 11, 12, 13, 16)  # the classes
COPIES = 15
ENCODINGS = {
    "none": "no encoding",
    "random": "random numbers",
    "vectors": "eigenvectors, random signs",
    "values": "eigenvectors and eigenvalues",
}
BATCH = 30


def csl(
    out: Path = Path("runs/csl"),
    encodings: list[str] = list(ENCODINGS),  # noqa: B006 (never changed)
    columns: int = 20,
    seeds: int = 3,
    folds: int = 5,
    epochs: int = 120,
    width: int = 32,
    rate: float = 0.005,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Circular skip links: regular graphs that no message passing tells apart, and the same network with encodings.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        encodings: none, random (new random numbers in each step), vectors (Laplacian eigenvectors, with random signs in
            training), values (with the eigenvalues too).
        columns: of the encodings.
        seeds: splits of the graphs.
        folds: of each split; each is the test once.
        epochs: of a training.
        width: of the network.
        rate: of Adam.
        quick: one split in two folds, 200 epochs, none and values.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        encodings, seeds, folds, epochs = ["none", "values"], 1, 2, 200
    check_names("encodings", encodings, ENCODINGS)
    check_least("seeds", seeds, 1)
    check_least("folds", folds, 2)
    run = Run(out, locals())
    adjacency, labels = skip_links()
    vectors, values = encoding(adjacency, columns)

    def accuracy(name: str, seed: int, fold: int) -> dict[str, Any]:
        split = StratifiedKFold(folds, shuffle=True, random_state=seed).split(np.zeros(len(labels)), labels)
        train, test = (torch.from_numpy(part) for part in list(split)[fold])
        torch.manual_seed(1000 * seed + fold)
        network = Gin(columns if name in ("random", "vectors") else 2 * columns if name == "values" else 1, width)

        def features(rows: Tensor) -> Tensor:
            return features_of(name, vectors[rows], values[rows], network.training)

        fit(network, features, adjacency, labels, train, epochs, rate)
        with torch.no_grad():
            right = network(features(test), adjacency[test]).argmax(1) == labels[test]
        return {"accuracy": float(right.float().mean())}

    cases = [(name, seed, fold) for name in encodings for seed in range(seeds) for fold in range(folds)]
    cells = run.cells("trainings", accuracy, cases)
    metrics = {name: summary([[cells[name, s, f] for f in range(folds)] for s in range(seeds)]) for name in encodings}
    run.figure("csl", figure(values, labels), dpi=80)
    rows = [[ENCODINGS[name], plus_minus(metrics[name], 1, 100)] for name in encodings]
    title = "accuracy (%), mean ± 95 % interval over splits"
    run.finish({**metrics, "splits": seeds}, table(title, ["features of the nodes", "accuracy"], rows))


def summary(splits: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return mean accuracy of splits; folds of one split share graphs, so that the interval is that of the splits."""
    found = [float(np.mean([fold["accuracy"] for fold in folds])) for folds in splits]
    return {**mean_and_interval(found), "splits": found}


def features_of(name: str, vectors: Tensor, values: Tensor, training: bool) -> Tensor:
    """Return features ``(B, N, d)`` of nodes, from eigenvectors ``(B, N, k)`` and eigenvalues ``(B, k)``."""
    if name == "none":
        return torch.ones(len(vectors), NODES, 1)
    if name == "random":
        return torch.randn(vectors.shape)
    signs = torch.randint(0, 2, values.shape)[:, None] * 2.0 - 1
    signed = vectors * (signs if training else 1)
    return signed if name == "vectors" else torch.cat([signed, values[:, None].expand(vectors.shape)], -1)


def skip_links() -> tuple[Tensor, Tensor]:
    """Return adjacency ``(150, 41, 41)`` and classes: a circle with skips of one length, its nodes in random order."""
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for skip in SKIPS:
        circle = torch.eye(NODES)
        plain = circle.roll(1, 0) + circle.roll(-1, 0) + circle.roll(skip, 0) + circle.roll(-skip, 0)
        for _ in range(COPIES):
            order = torch.randperm(NODES, generator=generator)
            graphs.append(plain[order][:, order])
    return torch.stack(graphs), torch.arange(len(SKIPS)).repeat_interleave(COPIES)


def encoding(adjacency: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Return eigenvectors ``(C, N, k)``, of mean square 1, and eigenvalues ``(C, k)`` of all graphs in one call."""
    count, n = adjacency.shape[:2]
    item, row, col = adjacency.nonzero(as_tuple=True)
    edges = torch.stack([row + n * item, col + n * item])
    batch = torch.arange(count).repeat_interleave(n)
    found = laplacian_positional_encoding(edges, batch, columns, torch.ones(edges.shape[1]))
    return found.vectors.reshape(count, n, columns) * n**0.5, found.values


class Gin(nn.Module):
    """Three layers of the graph isomorphism network (Xu et al. 2019), and the mean over nodes: as strong as 1-WL."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        sizes = [inputs, width, width, width]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(a, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, b), nn.ReLU())
            for a, b in pairwise(sizes)
        )
        self.head = nn.Linear(width, len(SKIPS))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Return logits ``(B, classes)`` of features ``(B, N, d)``."""
        for layer in self.layers:
            x = layer(x + adjacency @ x)
        logits: Tensor = self.head(x.mean(1))
        return logits


def fit(
    network: Gin,
    features: Callable[[Tensor], Tensor],
    adjacency: Tensor,
    labels: Tensor,
    train: Tensor,
    epochs: int,
    rate: float,
) -> None:
    """Train by cross-entropy; the network is left in evaluation mode."""
    optimizer = torch.optim.Adam(network.parameters(), rate)
    for _ in range(epochs):
        for rows in train[torch.randperm(len(train))].split(BATCH):
            loss = nn.functional.cross_entropy(network(features(rows), adjacency[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()


def figure(values: Tensor, labels: Tensor) -> Figure:
    """Return the eigenvalues of each class."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for label, skip in enumerate(SKIPS):
        spectrum = values[labels == label][0]
        axes.plot(range(1, len(spectrum) + 1), spectrum.numpy(), "o-", ms=3, lw=0.8, label=f"skip {skip}")
    axes.set(xlabel="column", ylabel="eigenvalue", xticks=range(2, len(spectrum) + 1, 2))
    axes.set_title("eigenvalues of the ten kinds of graphs")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
