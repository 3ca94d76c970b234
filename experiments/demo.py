"""The main job: Laplacian eigenmaps of handwritten digits, new digits by Nyström, and learning through the layer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn
from tqdm import trange

from experiments.data import Split, digits
from experiments.metrics import NEIGHBORS, mean_and_interval, plus_minus, scores
from experiments.runs import Run, check_least, table
from torch_lapeig import KNN, GraphWarning, HeatKernel, LaplacianEigenmaps
from torch_lapeig.plots import plot_embedding, plot_spectrum

DIMENSIONS = (2, 10)
Array = NDArray[np.float32]


class LearnedEigenmaps(nn.Module):
    """A linear map of the input (the identity at first), then Laplacian eigenmaps with a learnable bandwidth."""

    def __init__(self, dimension: int, n_components: int, neighbors: int) -> None:
        super().__init__()
        self.map = nn.Linear(dimension, dimension, bias=False)
        nn.init.eye_(self.map.weight)
        self.kernel = HeatKernel("median", learnable=True)
        self.eigenmaps = LaplacianEigenmaps(n_components, KNN(neighbors, "union"), self.kernel, scale="unit")

    def forward(self, x: Tensor) -> Tensor:
        """Return embedding ``(N, n_components)`` of ``(N, D)``."""
        y: Tensor = self.eigenmaps(self.map(x))
        return y


def neighbour_loss(y: Tensor, labels: Tensor) -> Tensor:
    """Return the mean −log probability that a stochastic neighbour has one's label (Goldberger et al. 2004)."""
    itself = torch.eye(len(y), dtype=torch.bool)
    log_p = torch.cdist(y, y).square().neg().masked_fill(itself, -torch.inf).log_softmax(1)
    same = (labels[:, None] == labels) & ~itself
    return -log_p.masked_fill(~same, -torch.inf).logsumexp(1).mean()


def train(model: LearnedEigenmaps, split: Split, *, steps: int, batch: int, seed: int) -> list[float]:
    """Improve map and bandwidth by gradients through the eigenvectors of random batches; the loss of each step."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    bar = trange(steps, desc="learning", unit="step")
    for _ in bar:
        chosen = torch.randperm(len(split.train), generator=generator)[:batch]
        with warnings.catch_warnings():  # a random batch may be disconnected: the layer embeds it jointly
            warnings.simplefilter("ignore", GraphWarning)
            y = model(split.train[chosen])
        loss = neighbour_loss(y, split.train_labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{sum(losses[-20:]) / len(losses[-20:]):.3f}", refresh=False)
    return losses


class Assessment(NamedTuple):
    """Scores by dimension, and the 2-D embeddings of the training and the held-out part."""

    scores: dict[int, dict[str, Any]]
    plane: tuple[Array, Array]


@torch.no_grad()
def assess(model: LearnedEigenmaps, split: Split, neighbors: int) -> Assessment:
    """Fit eigenmaps to the mapped training part in each dimension, and embed the held-out part."""
    inputs = split._replace(train=model.map(split.train), heldout=model.map(split.heldout))
    modules = {d: LaplacianEigenmaps(d, KNN(neighbors, "union"), model.kernel).fit(inputs.train) for d in DIMENSIONS}
    plane = modules[2].embedding_.numpy(), modules[2].transform(inputs.heldout).numpy()
    return Assessment({d: scores(split, inputs, module) for d, module in modules.items()}, plane)


def demo(
    out: Path = Path("runs/demo"),
    neighbors: int = 10,
    steps: int = 300,
    batch: int = 512,
    seed: int = 0,
    seeds: int = 1,
    quick: bool = False,
) -> None:
    """Embed the digits, embed held-out ones by Nyström, then learn through the embedding.

    Args:
        out: folder of metrics.json and the figure; what is there is replaced.
        neighbors: k of the neighbourhood graph.
        steps: of learning.
        batch: points of each step's graph.
        seed: of the split and the batches.
        seeds: how many, from ``seed`` on, are run; the figure is that of the first.
        quick: 40 steps of 200 points.
    """
    if quick:
        steps, batch = 40, 200
    check_least("seeds", seeds, 1)
    run = Run(out, locals())
    results = [once(each, neighbors, steps, batch) for each in range(seed, seed + seeds)]
    split, stages, learning = results[0]
    scores_of = {name: stage.scores for name, stage in stages.items()}
    found = over_seeds(results)
    metrics = {**scores_of, "learning": learning, "pixels": pixels(split), "over_seeds": found}
    spectra = tuple(scores[max(DIMENSIONS)]["eigenvalues"] for scores in scores_of.values())
    run.figure("embedding", embedding_figure(split, stages["before"].plane, stages["after"].plane, spectra), dpi=143)
    run.finish(metrics, seeds_table(found))


class Result(NamedTuple):
    """Results of one seed: the digits, both assessments, and losses and bandwidth of the learning."""

    split: Split
    stages: dict[str, Assessment]
    learning: dict[str, float]


def once(seed: int, neighbors: int, steps: int, batch: int) -> Result:
    """Embed, learn, embed again."""
    split = digits(seed=seed)
    model = LearnedEigenmaps(split.train.shape[1], max(DIMENSIONS), neighbors)
    print(f"embedding {len(split.train)} digits in {DIMENSIONS} dimensions, {len(split.heldout)} held out")
    before = assess(model, split, neighbors)
    losses = train(model, split, steps=steps, batch=batch, seed=seed)
    after = assess(model, split, neighbors)
    learning = {
        "loss_first_20": sum(losses[:20]) / len(losses[:20]),
        "loss_last_20": sum(losses[-20:]) / len(losses[-20:]),
        "bandwidth_over_median": float(model.kernel.factor),
    }
    return Result(split, {"before": before, "after": after}, learning)


def pixels(split: Split, components: int | None = None) -> float:
    """Return 5-NN accuracy of the held-out digits on their pixels, or on principal components of these."""
    classifier = make_pipeline(PCA(components), KNeighborsClassifier(NEIGHBORS))
    classifier.fit(split.train.numpy(), split.train_labels.numpy())
    return float(classifier.score(split.heldout.numpy(), split.heldout_labels.numpy()))


def over_seeds(results: list[Result]) -> dict[str, Any]:
    """Return mean, interval, least and greatest over seeds of what the table of seeds shows."""

    def summary(values: list[float]) -> dict[str, Any]:
        return {**mean_and_interval(values), "least": min(values), "greatest": max(values)}

    def of_stage(stage: str, d: int) -> dict[str, Any]:
        scores_of = [result.stages[stage].scores[d] for result in results]
        return {
            key: summary([scores[key] for scores in scores_of]) for key in ("knn_heldout", "trustworthiness_heldout")
        }

    found: dict[str, Any] = {stage: {f"{d}-D": of_stage(stage, d) for d in DIMENSIONS} for stage in ("before", "after")}
    splits = [result.split for result in results]
    for d in DIMENSIONS:
        found.setdefault("pca", {})[f"{d}-D"] = {"knn_heldout": summary([pixels(split, d) for split in splits])}
    return {**found, "pixels": {"knn_heldout": summary([pixels(split) for split in splits])}}


def seeds_table(found: dict[str, Any]) -> Table:
    """Return accuracy and trustworthiness of held-out digits before and after learning, over seeds, and on pixels."""

    def row(label: str, value: dict[str, Any], factor: float, places: int) -> list[str]:
        ends = (f"{factor * value[end]:.{places}f}" for end in ("least", "greatest"))
        return [label, plus_minus(value, places, factor), *ends]

    rows = [row("5-NN accuracy (%), pixels", found["pixels"]["knn_heldout"], 100, 1)]
    rows += [row(f"5-NN accuracy (%), {d}-D, PCA", found["pca"][f"{d}-D"]["knn_heldout"], 100, 1) for d in DIMENSIONS]
    for key, label, factor, places in (
        ("knn_heldout", "5-NN accuracy (%)", 100, 1),
        ("trustworthiness_heldout", "trustworthiness", 1, 3),
    ):
        for d in DIMENSIONS:
            for stage in ("before", "after"):
                rows.append(row(f"{label}, {d}-D, {stage} learning", found[stage][f"{d}-D"][key], factor, places))
    return table("held out, over seeds", ["", "mean", "least", "greatest"], rows)


def embedding_figure(
    split: Split,
    before: tuple[Array, Array],
    after: tuple[Array, Array],
    eigenvalues: tuple[list[float], list[float]],
) -> Figure:
    """Return the embedding of the digits with some of them drawn in place, the learned one, and both spectra.

    Eigenvectors of clustered data put each cluster almost into one point, so the axes show ranks: each coordinate as
    the share of fitted points below it.

    Args:
        split: the digits.
        before, after: 2-D embeddings of the training and the held-out part, without and with learning.
        eigenvalues: of both.
    """
    figure = Figure(figsize=(10, 5.7), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1.75, 1])
    main, learned, spectrum = (figure.add_subplot(part) for part in (grid[:, 0], grid[0, 1], grid[1, 1]))
    labels = np.concatenate([split.train_labels, split.heldout_labels])
    images = np.concatenate([split.train, split.heldout]).reshape(-1, 8, 8)
    for axes, columns, pictures in ((main, before, images), (learned, after, None)):
        places = _ranks(*columns)
        both = np.concatenate(places)
        plot_embedding(both, labels, new=places[1], images=pictures, axes=axes, legend=axes is main)
    main.set_title("Laplacian eigenmaps of handwritten digits; rings: held out, by Nyström", fontsize=11, loc="left")
    main.set(xlabel="eigenvector 1 (rank)", ylabel="eigenvector 2 (rank)")
    learned.set_title("after learning a linear map and the bandwidth", fontsize=9, loc="left")
    learned.set(xlabel="", ylabel="")
    for values, label in zip(eigenvalues, ("as given", "learned"), strict=True):
        plot_spectrum(values, axes=spectrum, label=label)
    spectrum.set_ylim(0, None)
    spectrum.set_title("eigenvalues of the normalised Laplacian", fontsize=9, loc="left")
    spectrum.legend(frameon=False)
    return figure


def _ranks(train: Array, heldout: Array) -> tuple[Array, Array]:
    """Return each coordinate of both parts as the share of training points below it."""
    order = np.sort(train, axis=0)

    def share(y: Array) -> Array:
        columns = [np.searchsorted(order[:, j], y[:, j]) / len(train) for j in range(y.shape[1])]
        return np.stack(columns, 1).astype(np.float32)

    return share(train), share(heldout)
