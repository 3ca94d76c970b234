"""A small network for few labels: trained alone, by itself, by another method, or with smoothness on a graph.

A training takes about a second, so that it is one cell of a run, in a plain loop: that of docs/losses.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, RandomSampler

from experiments.data import Split
from experiments.fewlabels import CLASSES, UNKNOWN, known, labelled
from torch_lapeig import KNN, Graph, HeatKernel, laplacian_smoothness
from torch_lapeig.samplers import NeighborhoodSampler

NEIGHBORS = 10  # of graphs, and of the centres of neighbourhoods
LABELLED = 32  # labelled images in a batch at most
SURE = 0.95  # probability from which self-training takes a prediction for a label
ROUNDS = 5  # of self-training
LAYERS = ("softmax", "logits")
# Batches with their graph, by name.
BATCHES = {"own": "random, with a graph of their own", "near": "neighbourhoods of the global graph"}


class Kind(NamedTuple):
    """How a network is trained.

    Attributes:
        batches: alone (labelled images only), self (self-training), taught (labels of the recipe for all), or one of
            `BATCHES`, with smoothness.
        layer: of `LAYERS`, whose outputs are smooth.
        strength: λ.
    """

    batches: str
    layer: str = ""
    strength: float = 0.0


class Problem(NamedTuple):
    """A split into training and held-out part, and the graph of the former, with the library's defaults."""

    split: Split
    graph: Graph

    @classmethod
    def of(cls, split: Split) -> Problem:
        """Return the smoothing problem of a split."""
        return cls(split, HeatKernel()(split.train, KNN(NEIGHBORS)(split.train)))


class Schedule(NamedTuple):
    """Steps of a training, images in a batch besides labelled ones, and the largest rate of Adam."""

    steps: int
    batch: int
    rate: float


def network(side: int) -> nn.Sequential:
    """Return logits ``(N, 10)`` of images ``(N, side²)`` by two convolutions and two linear maps."""
    halved = side > 16
    last = -(-side // (4 if halved else 2))
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)),
        nn.AvgPool2d(2) if halved else nn.Identity(),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * last**2, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def trained(
    problem: Problem, count: int, kind: Kind, seed: int, schedule: Schedule, teacher: Callable[[Tensor], Tensor]
) -> nn.Sequential:
    """Return a network trained with ``count`` labelled images of each class.

    Args:
        problem: images and graph.
        count: labelled images of each class, chosen by the seed.
        kind: of the training.
        seed: also of batches and first weights, which are the same for all kinds.
        schedule: how long, and in what steps.
        teacher: gives labels of all training images from those of the labelled ones.
    """
    split = problem.split
    chosen = labelled(split.train_labels, count, seed)
    given = known(split.train_labels, chosen)
    targets = torch.where(given == UNKNOWN, teacher(given), given) if kind.batches == "taught" else given
    torch.manual_seed(seed)
    model = network(round(split.train.shape[1] ** 0.5))
    optimizer = torch.optim.Adam(model.parameters(), schedule.rate, fused=True)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, schedule.rate, schedule.steps)
    batches = islice(batches_of(problem, chosen, kind, schedule, seed), schedule.steps)
    for step, nodes in enumerate(batches):
        if kind.batches == "self" and step and step % -(-schedule.steps // ROUNDS) == 0:
            targets = with_sure_predictions(model, split.train, given)
        optimizer.zero_grad()
        loss_of(model, problem, targets, nodes, kind).backward()
        optimizer.step()
        rate.step()
    return model


def loss_of(model: nn.Module, problem: Problem, targets: Tensor, nodes: Tensor, kind: Kind) -> Tensor:
    """Return cross-entropy of those of a batch whose label is known, and λ × the smoothness of a layer."""
    pixels = problem.split.train[nodes]
    logits: Tensor = model(pixels)
    loss = cross_entropy(logits, targets[nodes], ignore_index=UNKNOWN)
    if kind.batches not in BATCHES:
        return loss
    if kind.batches == "own":
        graph = HeatKernel()(pixels, KNN(NEIGHBORS)(pixels))
    else:
        graph = problem.graph.subgraph(nodes)
    y = logits.softmax(1) if kind.layer == "softmax" else logits
    return loss + kind.strength * laplacian_smoothness(y, graph, "weighted_mean")


def batches_of(problem: Problem, chosen: Tensor, kind: Kind, schedule: Schedule, seed: int) -> Iterator[Tensor]:
    """Yield batches of distinct indices ``(M,)`` without end, at most `LABELLED` of them labelled."""
    generator = torch.Generator().manual_seed(seed)
    count = len(problem.split.train)
    others: Iterator[list[int]] = repeat([])
    if kind.batches == "near":
        sampler = NeighborhoodSampler(problem.graph, schedule.batch, neighbors=NEIGHBORS, seed=seed)
        others = chain.from_iterable(repeat(sampler))
    elif kind.batches != "alone":
        order = RandomSampler(range(count), generator=torch.Generator().manual_seed(seed))
        others = chain.from_iterable(repeat(BatchSampler(order, schedule.batch, drop_last=True)))
    for other in others:
        drawn = chosen[torch.randperm(len(chosen), generator=generator)[:LABELLED]]
        yield torch.cat([drawn, torch.tensor(other, dtype=torch.int64)]).unique()


@torch.no_grad()
def with_sure_predictions(model: nn.Module, pixels: Tensor, given: Tensor) -> Tensor:
    """Return the labels that are given, and predictions where the network is sure of them."""
    share, label = model(pixels).softmax(1).max(1)
    return torch.where(given == UNKNOWN, label.masked_fill(share < SURE, UNKNOWN), given)


@torch.no_grad()
def accuracy(model: nn.Module, split: Split) -> float:
    """Return share of the held-out images whose class is right."""
    return float((model(split.heldout).argmax(1) == split.heldout_labels).double().mean())
