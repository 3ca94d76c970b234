"""Graphs that message passing cannot tell apart, and encodings of nodes that tell them apart, or do not.

Circular skip links (Murphy et al., *Relational pooling*, 2019) differ in their eigenvalues. The cubelike
graphs come in pairs of the same eigenvalues of high multiplicity: what differs are the projectors on eigenspaces.
"""

from __future__ import annotations

import dataclasses
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from experiments.metrics import mean_and_interval, plus_minus
from experiments.runs import Run, check_least, check_names, table
from torch_lapeig import Eigenpairs, Graph, Laplacian, StableEncoding, eigenpairs, spectral_signature
from torch_lapeig.methods import HeatResponse, PolynomialResponse, SignInvariant

NODES = 41
SKIPS = (2, 3, 4, 5, 6, 9, 11, 12, 13, 16)  # the classes
COPIES = 8
ENCODINGS = {
    "none": "no encoding",
    "random": "random numbers",
    "vectors": "eigenvectors, random signs",
    "values": "eigenvectors and eigenvalues",
    "signatures": "heat kernel signatures",
    "signed": "sign-invariant (SignNet)",
    "stable": "basis-invariant (SPE)",
}
GRAPHS = {"csl": "circular skip links", "cubelike": "pairs of equal spectra", "regular": "strongly regular pair"}
# Neighbours of 0 in Cayley graphs of Z_2^5, where i and j are neighbours if i xor j is in the set: three pairs of one
# spectrum each, with eigenvalues of multiplicity up to 15. Found among random sets.
CUBELIKE = (
    (5, 6, 12, 16, 21, 22, 24, 25, 29),
    (3, 7, 10, 16, 24, 27, 28, 30, 31),
    (2, 6, 13, 15, 16, 19, 24, 26, 27, 28),
    (1, 2, 8, 9, 11, 15, 19, 22, 25, 26),
    (5, 8, 9, 11, 12, 22, 28, 29),
    (5, 10, 15, 21, 22, 23, 26, 30),
)
# The same in Z_4 x Z_4: the rook's graph and Shrikhande's, strongly regular with the parameters (16, 6, 2, 2).
STRONGLY_REGULAR = (
    ((0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)),
    ((0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)),
)
BATCH, WIDTH, RATE = 16, 32, 0.005  # graphs in a step; of the network; of Adam


def csl(
    out: Path = Path("runs/csl"),
    graphs: list[str] = list(GRAPHS),  # noqa: B006 (never changed)
    encodings: list[str] = list(ENCODINGS),  # noqa: B006
    columns: int = 31,
    seeds: int = 10,
    epochs: int = 150,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Regular graphs that no message passing tells apart, of equal spectra too, and the same network with encodings.

    Args:
        out: folder of metrics.json, the figures and what is finished.
        graphs: csl (circular skip links), cubelike (pairs of graphs with the same multiple eigenvalues), regular (the
            rook's graph and Shrikhande's: every spectral projector is a combination of 1, A and the matrix of ones).
        encodings: none, random (new random numbers in each step), vectors (Laplacian eigenvectors, with random signs in
            training), values (with the eigenvalues too), signatures (of the heat kernel), signed (by SignInvariant of
            eigenvectors and eigenvalues), stable (by StableEncoding).
        columns: of the encodings; an odd number cuts no eigenspace of csl, 31 none of cubelike.
        seeds: splits of the graphs into halves, one for training, and trainings.
        epochs: of a training.
        quick: one split of csl, none and values, 60 epochs.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        graphs, encodings, seeds, epochs = ["csl"], ["none", "values"], 1, 60
    check_names("graphs", graphs, GRAPHS)
    check_names("encodings", encodings, ENCODINGS)
    check_least("seeds", seeds, 1)
    run = Run(out, locals())
    made = {"csl": skip_links, "cubelike": cubelike_graphs, "regular": strongly_regular_graphs}
    sets = {name: made[name]() for name in graphs}
    pairs = {name: pairs_of(adjacency, columns) for name, (adjacency, _) in sets.items()}

    def accuracy(kind: str, name: str, seed: int) -> dict[str, Any]:
        adjacency, labels = sets[kind]
        train, test = train_test_split(torch.arange(len(labels)), test_size=0.5, stratify=labels, random_state=seed)
        torch.manual_seed(seed)
        network = Network(name, pairs[kind].values.shape[1] - 1, int(labels.max()) + 1)
        fit(network, pairs[kind], adjacency, labels, train, epochs)
        with torch.no_grad():
            right = network(rows_of(pairs[kind], test), adjacency[test]).argmax(1) == labels[test]
        return {"accuracy": float(right.float().mean())}

    cases = list(product(graphs, encodings, range(seeds)))
    cells = run.cells("trainings", accuracy, cases)

    def scores(kind: str, name: str) -> list[float]:
        return [cells[kind, name, seed]["accuracy"] for seed in range(seeds)]

    last = encodings[-1]
    others = max(len(encodings) - 1, 1)
    metrics = {
        kind: {name: summary(scores(kind, name), scores(kind, last), others) for name in encodings} for kind in graphs
    }
    run.figure("csl", figure(pairs[graphs[0]].values[:, 1:], sets[graphs[0]][1]), dpi=80)

    def told(found: dict[str, Any]) -> list[str]:
        return [plus_minus(found, 1, 100), plus_minus(found["behind"], 1, 100)]

    rows = [[ENCODINGS[name], *chain(*(told(metrics[kind][name]) for kind in graphs))] for name in encodings]
    rows[-1][2::2] = ["–"] * len(graphs)
    title = "accuracy (%), mean ± 95 % interval over splits"
    heads = chain(*([GRAPHS[kind], f"{last} less it"] for kind in graphs))
    run.finish({**metrics, "splits": seeds}, table(title, ["features of the nodes", *heads], rows))


def summary(found: list[float], other: list[float], others: int) -> dict[str, Any]:
    """Return mean accuracy of splits, and how far it is behind that of another encoding on the same splits."""
    behind = mean_and_interval([b - a for a, b in zip(found, other, strict=True)], others)
    return {**mean_and_interval(found), "behind": behind}


def skip_links() -> tuple[Tensor, Tensor]:
    """Return adjacency ``(80, 41, 41)`` and classes: a circle with skips of one length, its nodes in random order."""
    circle = torch.eye(NODES)
    half = [circle.roll(1, 0) + circle.roll(skip, 0) for skip in SKIPS]
    return in_random_order([one + one.T for one in half])


def cubelike_graphs() -> tuple[Tensor, Tensor]:
    """Return adjacency ``(48, 32, 32)`` and classes: Cayley graphs of Z_2^5, their nodes in random order."""
    node = torch.arange(32)
    plain = [torch.isin(node[:, None] ^ node, torch.tensor(half)).float() for half in CUBELIKE]
    return in_random_order(plain)


def strongly_regular_graphs() -> tuple[Tensor, Tensor]:
    """Return adjacency ``(16, 16, 16)`` and classes: two Cayley graphs of Z_4 x Z_4, their nodes in random order."""
    node = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    step = (node[:, None] - node) % 4
    plain = [(step[:, :, None] == torch.tensor(half)).all(-1).any(-1).float() for half in STRONGLY_REGULAR]
    return in_random_order(plain)


def in_random_order(plain: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return copies of graphs with their nodes in random order, and their numbers."""
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(one), generator=generator) for one in plain for _ in range(COPIES)]
    graphs = [plain[i // COPIES][order][:, order] for i, order in enumerate(orders)]
    return torch.stack(graphs), torch.arange(len(plain)).repeat_interleave(COPIES)


def pairs_of(adjacency: Tensor, columns: int) -> Eigenpairs:
    """Return the first eigenpair and ``columns`` more of all graphs, an even number where eigenvalues come in pairs.

    Bases of eigenspaces are drawn at random: those of a solver are arbitrary, and may have a pattern of their own.
    """
    k = min(columns - columns % 2 if adjacency.shape[1] % 2 else columns, adjacency.shape[1] - 1) + 1
    pairs, generator = eigenpairs(Laplacian(Graph.from_dense(adjacency)), k), torch.Generator().manual_seed(1)
    vectors = pairs.vectors.clone()
    for graph, values in zip(vectors, pairs.values, strict=True):
        ends = [*((values.diff() > 1e-4).nonzero().flatten() + 1).tolist(), k]
        for begin, end in pairwise([0, *ends]):  # uniform, by QR of normal numbers (Mezzadri 2007)
            turn, r = torch.linalg.qr(torch.randn(end - begin, end - begin, generator=generator))
            graph[:, begin:end] = graph[:, begin:end] @ (turn * r.diagonal().sign())
    return dataclasses.replace(pairs, vectors=vectors)


def rows_of(pairs: Eigenpairs, rows: Tensor) -> Eigenpairs:
    """Return the pairs of some graphs of a batch."""
    names = ("values", "vectors", "projected", "residuals", "gap", "converged")
    return dataclasses.replace(pairs, **{name: getattr(pairs, name)[rows] for name in names})


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


class Network(nn.Module):
    """Encoding of the nodes of one kind, and a `Gin` on it."""

    def __init__(self, name: str, columns: int, classes: int) -> None:
        super().__init__()
        self.name = name
        self.encode: nn.Module = nn.Identity()
        inputs = {"none": 1, "random": columns, "vectors": columns, "values": 2 * columns, "signatures": 12}
        if name == "signed":
            self.encode = SignInvariant(perceptron(2, 4))
        if name == "stable":
            phi = PolynomialResponse(11, 12)
            nn.init.eye_(phi.coefficients)
            self.encode = StableEncoding(phi, perceptron(12, WIDTH))
        size = inputs.get(name, 4 * columns if name == "signed" else WIDTH)
        self.norm = nn.BatchNorm1d(size)
        self.gin = Gin(size, classes)

    def forward(self, pairs: Eigenpairs, adjacency: Tensor) -> Tensor:
        """Return logits ``(B, classes)``."""
        features = self.features(pairs)
        logits: Tensor = self.gin(self.norm(features.flatten(0, 1)).view_as(features), adjacency)
        return logits

    def features(self, pairs: Eigenpairs) -> Tensor:
        """Return features ``(B, N, d)`` of nodes."""
        n = pairs.vectors.shape[1]
        vectors, values = pairs.vectors[..., 1:] * n**0.5, pairs.values[:, 1:]
        if self.name == "none":
            return torch.ones_like(vectors[..., :1])
        if self.name == "random":
            return torch.randn_like(vectors)
        if self.name == "signatures":
            return spectral_signature(pairs, HeatResponse((2.0 ** torch.linspace(-3, 5, 12)).tolist()))
        if self.name == "signed":
            signed: Tensor = self.encode(vectors, values)
            return signed.flatten(-2)
        if self.name == "stable":
            stable: Tensor = self.encode(dataclasses.replace(pairs, vectors=pairs.vectors * n**0.25))
            return stable
        signs = torch.randint(0, 2, values.shape)[:, None] * 2.0 - 1
        vectors = vectors * (signs if self.training else 1)
        return vectors if self.name == "vectors" else torch.cat([vectors, values[:, None].expand(vectors.shape)], -1)


class Gin(nn.Module):
    """Three layers of the graph isomorphism network (Xu et al. 2019), and the mean over nodes: as strong as 1-WL."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        sizes = [inputs, WIDTH, WIDTH, WIDTH]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(a, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, b), nn.ReLU())
            for a, b in pairwise(sizes)
        )
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Return logits ``(B, classes)`` of features ``(B, N, d)``."""
        for layer in self.layers:
            x = layer(x + adjacency @ x)
        logits: Tensor = self.head(x.mean(1))
        return logits


def fit(network: Network, pairs: Eigenpairs, adjacency: Tensor, labels: Tensor, train: Tensor, epochs: int) -> None:
    """Train by cross-entropy; the network is left in evaluation mode."""
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    steps = epochs * -(-len(train) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
    for _ in range(epochs):
        for rows in train[torch.randperm(len(train))].split(BATCH):
            loss = nn.functional.cross_entropy(network(rows_of(pairs, rows), adjacency[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()


def figure(values: Tensor, labels: Tensor) -> Figure:
    """Return the eigenvalues of each class."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    kinds = labels.unique().tolist()
    for label in kinds:
        spectrum = values[labels == label][0]
        name = f"skip {SKIPS[label]}" if len(kinds) == len(SKIPS) else f"kind {label}"
        axes.plot(range(1, len(spectrum) + 1), spectrum.numpy(), "o-", ms=3, lw=0.8, label=name)
    axes.set(xlabel="column", ylabel="eigenvalue", xticks=range(2, len(spectrum) + 1, 2))
    axes.set_title("eigenvalues of the kinds of graphs")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
