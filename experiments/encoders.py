"""Encoders of points that become eigenfunctions of a graph Laplacian, by three losses, and their mini-batches."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import numpy as np
import torch
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from experiments.runs import Refusal
from experiments.training import Batches
from torch_lapeig import Graph, Laplacian, laplacian_smoothness
from torch_lapeig.losses import spectral_loss

EPOCH = 50  # steps, after each of which a checkpoint is written
Objective = Literal["spectral", "spectralnet", "neuralef"]


class Encoder(LightningModule):
    """A perceptron of three hidden layers whose k outputs come to span the smallest eigenfunctions.

    Args:
        points: ``(N, D)``, whose mean and spread the inputs are freed of.
        n_components: k.
        width: of the hidden layers.
        rate: the largest learning rate.
        objective: ``"spectral"``: `spectral_loss`. ``"spectralnet"``: the smoothness, after the last
            layer has been made orthonormal on the batch (Shaham et al., *SpectralNet*, 2018; there on another batch, by
            a layer of its own). ``"neuralef"``: `neural_eigenfunctions`.
    """

    mean: Tensor
    spread: Tensor

    def __init__(
        self, points: Tensor, n_components: int, width: int, rate: float, objective: Objective = "spectral"
    ) -> None:
        super().__init__()
        self.register_buffer("mean", points.mean(0))
        self.register_buffer("spread", (points - points.mean(0)).square().mean().sqrt())
        sizes = [points.shape[1], width, width, width]
        hidden = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.GELU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, n_components))
        self.rate = rate
        self.objective = objective

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs ``(N, k)`` at points ``(N, D)``."""
        y: Tensor = self.layers((x - self.mean) / self.spread)
        return y

    def training_step(self, batch: tuple[Tensor, Graph]) -> Tensor:
        """Return the loss of some points on a graph of theirs."""
        x, graph = batch
        if self.objective == "spectral":
            loss = spectral_loss(self(x), graph)
        elif self.objective == "neuralef":
            loss = neural_eigenfunctions(self(x), graph)
        else:
            self.orthonormalise(x, graph)
            loss = laplacian_smoothness(self(x), graph, "weighted_mean")
        self.log("loss", loss, batch_size=len(x))
        return loss

    @torch.no_grad()
    def orthonormalise(self, x: Tensor, graph: Graph) -> None:
        """Fold SpectralNet's orthonormalisation into the last layer, which it keeps well conditioned."""
        last: Any = self.layers[-1]
        shift, matrix = orthonormalising(self(x), graph)
        last.weight.copy_(matrix.T @ last.weight)
        last.bias.copy_((last.bias - shift) @ matrix)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return Adam; the rate rises and falls once."""
        optimiser = torch.optim.Adam(self.parameters(), lr=self.rate)
        if not math.isfinite(steps := self.trainer.estimated_stepping_batches):
            raise Refusal("--trainer.max_steps or --trainer.max_epochs must be positive: the rate follows a schedule")
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, self.rate, total_steps=int(steps))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def orthonormalising(y: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """Return a shift ``(k,)`` and a matrix ``(k, k)`` such that (y − shift) · matrix is orthonormal under the degrees.

    SpectralNet's last layer, by the Cholesky factor, over the mean degree. The shift takes the constant out, which
    SpectralNet has among its outputs. What is added to the diagonal keeps outputs that have collapsed finite.
    """
    share = _degrees(graph)
    shift = share @ y
    centred = y - shift
    moment = centred.T @ (share[:, None] * centred)
    moment = moment + 1e-6 * moment.diagonal().mean() * torch.eye(len(moment), dtype=y.dtype, device=y.device)
    return shift, torch.linalg.inv(torch.linalg.cholesky(moment)).T


def neural_eigenfunctions(y: Tensor, graph: Graph) -> Tensor:
    """Return NeuralEF's loss (Deng, Shi & Zhu, *NeuralEF*, 2022, section 4).

    −Σ_j R_jj + Σ_{i<j} R_ij² / R_ii with R = Ψᵀ K Ψ, where the earlier function ψ_i takes no gradient, for outputs Ψ
    that are scaled to mean square 1. K is the walk that stays with probability ½, I − L_rw/2, which is positive
    semi-definite, and means are under the degrees; its largest function, the constant, is taken out.
    """
    share = _degrees(graph)
    centred = y - share @ y
    scale = (share @ centred.square()).sqrt().clamp_min(1e-6)
    psi = centred / scale
    volume = graph.pattern.sum_rows(graph.weight).sum()
    walked = share[:, None] * psi - Laplacian(graph, "unnormalized").matmul(psi) / (2 * volume)
    own = (psi * walked).sum(0)
    cross = psi.detach().T @ walked  # R_ij with gradients to the later one only
    penalty = (cross.square() / own.detach()[:, None].clamp_min(1e-6)).triu(1)
    return penalty.sum() - own.sum()


def _degrees(graph: Graph) -> Tensor:
    """Return degrees ``(N,)`` over their sum."""
    degrees = graph.pattern.sum_rows(graph.weight)
    return degrees / degrees.sum()


class MiniBatches(LightningDataModule):
    """As many edges of a graph for each step, with the points they join.

    Sums over edges and over their ends, times the share of edges, have Yᵀ L Y and Yᵀ D Y of the whole graph as their
    expectation (a ratio of both, as in `spectral_loss`, only nearly).

    Args:
        x: all points ``(N, D)``. graph: of all of them. size: edges in a batch. seed: of the order.
    """

    def __init__(self, x: Tensor, graph: Graph, size: int, seed: int) -> None:
        super().__init__()
        self.edges = _EdgeSample(x, graph)
        self.sampler = Batches(len(self.edges), size, seed, EPOCH)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return batches ``(points, graph)``."""
        return DataLoader(self.edges, sampler=self.sampler, batch_size=None)


class _EdgeSample(Dataset[Any]):
    def __init__(self, x: Tensor, graph: Graph) -> None:
        stored = graph.to_scipy().tocoo()
        both = torch.from_numpy(np.stack([stored.row, stored.col])).long()
        weight = torch.from_numpy(stored.data)
        once = (both[0] < both[1]) & (weight > 0)
        self.x, self.edges, self.weight = x, both[:, once], weight[once]

    def __len__(self) -> int:
        return len(self.weight)

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Graph]:
        nodes, ends = self.edges[:, index].unique(return_inverse=True)
        both, weight = torch.cat([ends, ends.flip(0)], 1), self.weight[index].repeat(2)
        return self.x[nodes], Graph.from_edge_index(both, weight, len(nodes))
