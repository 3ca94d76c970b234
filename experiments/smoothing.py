"""A small network for few labels, trained alone, by itself, by another method, or with smoothness on a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from experiments.data import Split
from experiments.fewlabels import CLASSES, UNKNOWN, known, labelled
from experiments.training import Batches
from torch_lapeig import KNN, Graph, LaplacianSmoothness
from torch_lapeig.lightning import SmoothnessCallback
from torch_lapeig.samplers import NeighborhoodSampler

NEIGHBORS = 10  # of graphs, and of the centres of neighbourhoods
LABELLED = 32  # labelled images in a batch at most
SURE = 0.95  # probability from which self-training takes a prediction for a label
LAYERS = ("softmax", "logits")
# Batches with their graph, by name.
BATCHES = {
    "own": "random batch, graph of its own",
    "part": "random batch, part of the global graph",
    "near": "neighbourhoods of the global graph",
}


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

    def callbacks(self, graph: Graph, pixels: Tensor) -> list[Callback]:
        """What is added to the training of the network alone."""
        if self.batches == "self":
            return [SelfTraining(pixels)]
        if self.batches not in BATCHES:
            return []
        source: Graph | Callable[[Any], Tensor] = graph if self.batches != "own" else lambda batch: batch[0]
        loss = LaplacianSmoothness(KNN(NEIGHBORS), reduction="weighted_mean")
        return [SmoothnessCallback(self.strength, self.layer, loss, graph_from=source)]


class Classifier(LightningModule):
    """A convolutional network, trained with cross-entropy of the images whose label is known.

    Args:
        side: of the square images.
        targets: labels of all training images ``(N,)``, −1 where there is none.
        learning_rate: the largest of Adam's, which rises and falls once.
    """

    targets: Tensor

    def __init__(self, side: int, targets: Tensor, learning_rate: float) -> None:
        super().__init__()
        stride = 2 if side > 16 else 1
        last = -(-side // (2 * stride))
        self.logits = nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            nn.Conv2d(1, 16, 5, stride, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * last**2, 64),
            nn.ReLU(),
            nn.Linear(64, CLASSES),
        )
        self.softmax = nn.Softmax(1)
        self.register_buffer("targets", targets, persistent=False)
        self.learning_rate = learning_rate

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits ``(N, 10)`` of images ``(N, side²)``."""
        logits: Tensor = self.logits(pixels)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy of the images ``(M, side²)`` of a batch whose label is known, given with their numbers."""
        pixels, nodes = batch
        logits = self(pixels)
        self.softmax(logits)  # for the callback that smooths its output
        loss = cross_entropy(logits, self.targets[nodes], ignore_index=UNKNOWN)
        self.log("cross_entropy", loss)
        return loss

    def configure_optimizers(self) -> Any:
        """Adam, one cycle of the rate."""
        optimizer = torch.optim.Adam(self.parameters(), self.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    @torch.no_grad()
    def accuracy(self, pixels: Tensor, labels: Tensor) -> float:
        """Share of images whose class is right."""
        return float((self(pixels).argmax(1) == labels).float().mean())


class SelfTraining(Callback):
    """Takes, from the second epoch on, predictions that are sure for labels, anew at each epoch's beginning.

    Args:
        pixels: of all training images ``(N, side²)``.
    """

    def __init__(self, pixels: Tensor) -> None:
        self.pixels, self.given = pixels, torch.empty(0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the labels that are given."""
        assert isinstance(pl_module, Classifier)
        self.given = pl_module.targets.clone()

    @torch.no_grad()
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Predict."""
        assert isinstance(pl_module, Classifier)
        if trainer.current_epoch == 0:
            return
        share, label = pl_module(self.pixels.to(pl_module.device)).softmax(1).max(1)
        predicted = label.masked_fill(share < SURE, UNKNOWN)
        pl_module.targets.copy_(torch.where(self.given == UNKNOWN, predicted, self.given))


class FewLabels(LightningDataModule):
    """Batches of images and their numbers, some labelled ones among them.

    Args:
        split: of which the training part is taken.
        graph: of that part.
        chosen: numbers of the labelled images.
        kind: says which batches.
        batch, steps: images in a batch besides labelled ones, batches in an epoch.
        seed: of the batches.
    """

    def __init__(
        self, split: Split, graph: Graph, chosen: Tensor, kind: Kind, batch: int, steps: int, seed: int
    ) -> None:
        super().__init__()
        self.split, self.graph, self.chosen, self.kind = split, graph, chosen, kind
        self.batch, self.steps, self.seed = batch, steps, seed

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Pixels ``(M, side²)`` and numbers ``(M,)``."""
        pixels = self.split.train
        others: NeighborhoodSampler | Batches | None = None
        if self.kind.batches == "near":
            others = NeighborhoodSampler(self.graph, self.batch, neighbors=NEIGHBORS, seed=self.seed)
        elif self.kind.batches != "alone":
            others = Batches(len(pixels), self.batch, self.seed, self.steps)
        sampler = WithLabels(self.chosen, others, self.steps, self.seed)
        return DataLoader(TensorDataset(pixels, torch.arange(len(pixels))), sampler=sampler, batch_size=None)


class WithLabels(Batches):
    """Batches of distinct indices: those of another sampler, and some labelled ones.

    Args:
        labelled: indices ``(L,)``, of which each batch gets `LABELLED` at most.
        others: gives batches, and has ``set_epoch``; None for labelled ones alone.
        steps: batches in an epoch.
        seed: of the choice.
    """

    def __init__(self, labelled: Tensor, others: NeighborhoodSampler | Batches | None, steps: int, seed: int) -> None:
        super().__init__(len(labelled), min(LABELLED, len(labelled)), seed, steps)
        self.labelled, self.others = labelled, others

    def __iter__(self) -> Iterator[list[int]]:
        for drawn, other in zip(super().__iter__(), self._others(), strict=False):
            yield sorted({*self.labelled[drawn].tolist(), *other})

    def _others(self) -> Iterable[list[int]]:
        if self.others is None:
            return repeat([])
        self.others.set_epoch(self.epoch * self.count)  # of its epochs one of ours takes fewer than it has batches
        return chain.from_iterable(repeat(self.others))


def parts(
    split: Split,
    graph: Graph,
    count: int,
    kind: Kind,
    seed: int,
    sizes: tuple[int, int],
    learning_rate: float,
    teacher: Callable[[Tensor], Tensor],
) -> tuple[Classifier, FewLabels, list[Callback]]:
    """A new network, its batches, and what is added to its training.

    Args:
        split, graph: images, and the graph of their training part.
        count: labelled images of each class, chosen by the seed.
        kind: of the training.
        seed: also of the first weights, which are the same for all kinds.
        sizes: images in a batch and batches in an epoch.
        learning_rate: see `Classifier`.
        teacher: gives labels of all training images from those of the labelled ones.
    """
    chosen = labelled(split.train_labels, count, seed)
    targets = known(split.train_labels, chosen)
    if kind.batches == "taught":
        targets = torch.where(targets == UNKNOWN, teacher(targets), targets)
    torch.manual_seed(seed)
    module = Classifier(round(split.train.shape[1] ** 0.5), targets, learning_rate)
    return module, FewLabels(split, graph, chosen, kind, *sizes, seed), kind.callbacks(graph, split.train)
