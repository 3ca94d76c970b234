"""Edges of small sets of points in one list, for `KNN` and `HeatKernel`: few calls, with gradients."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.graph.neighbors import nearest_neighbors
from torch_lapeig.graph.rules import KNN
from torch_lapeig.graph.weights import HeatKernel


class WeightedEdges(NamedTuple):
    """Edges of a batch of graphs, both directions of each; an edge that comes more than once has the sum of its weights.

    ``row`` and ``col`` int64 ``(E,)``, nodes numbered through the batch; ``weight`` float64 ``(E,)``, with gradients.
    """

    row: Tensor
    col: Tensor
    weight: Tensor


def has_short_way(neighbors: object, weights: object) -> bool:
    """Return whether a rule and a weighting are those that `edges_of_small` knows."""
    if type(neighbors) is not KNN or type(weights) is not HeatKernel:
        return False
    is_exact = neighbors.backend == "exact" and neighbors.recall is None
    return is_exact and neighbors.metric == "euclidean" and weights.t != "component-median"


def edges_of_small(x: Tensor, neighbors: KNN, weights: HeatKernel, mask: Tensor | None) -> WeightedEdges:
    """Return the weighted edges of sets of points ``(B, N, D)`` with more valid points than neighbours.

    Gradients flow to the points and to a learnable bandwidth. Where a bandwidth is 0, as of copies, weights are not
    finite.
    """
    (graphs, n), k = x.shape[:2], neighbors.k
    found = nearest_neighbors(x.detach(), k, mask=mask)
    row = torch.arange(graphs * n, device=x.device)[:, None]
    col = found.indices.reshape(-1, k) + row // n * n
    share, once = _shares(found.indices, neighbors.symmetrize)
    if mask is not None:
        share, once = share * mask[..., None], once & mask[..., None]
        col = torch.where(mask.reshape(-1, 1), col, row)
    points = x if mask is None else torch.where(mask[..., None], x, 0)
    row, col = row.expand_as(col).reshape(-1), col.reshape(-1)
    lengths: Tensor = _Lengths.apply(points.double(), row, col, found.squared_distances.double())
    t = _bandwidth(lengths, once.reshape(graphs, -1), weights)
    weight = (share.reshape(graphs, -1) * (lengths / -t).exp()).reshape(-1)
    return WeightedEdges(torch.cat([row, col]), torch.cat([col, row]), torch.cat([weight, weight]))


def _shares(index: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Return the weight ``(B, N, k)`` that each neighbour adds in either direction, and which are of edges not yet seen.

    An edge that both of its ends have chosen is among the neighbours twice.
    """
    graphs, n, _ = index.shape
    chosen = torch.zeros(graphs, n, n, dtype=torch.bool, device=index.device).scatter_(2, index, True)
    mutual = chosen.mT.gather(2, index)
    is_first = ~mutual | (index > torch.arange(n, device=index.device)[:, None])
    if rule == "mean":
        return torch.full_like(index, 0.5, dtype=torch.float64), is_first
    if rule == "mutual":
        return mutual / 2.0, is_first & mutual
    return 1 - mutual / 2.0, is_first


class _Lengths(torch.autograd.Function):
    """Squared lengths ``(B, E)`` of edges between points ``(B, N, D)``, as the search has found them.

    With C = c̄ + c̄ᵀ of the cotangent as matrices the gradient is 2 (diag(C 1) − C) X, a Laplacian.
    """

    @staticmethod
    def forward(x: Tensor, row: Tensor, col: Tensor, found: Tensor) -> Tensor:
        return found.reshape(len(x), -1).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: Tensor) -> None:
        x, ctx.row, ctx.col, _ = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (x,), (graphs, n, _) = ctx.saved_tensors, ctx.saved_tensors[0].shape
        c = grads[0].new_zeros(graphs * n * n).index_add(0, ctx.row * n + ctx.col % n, grads[0].reshape(-1))
        c = c.reshape(graphs, n, n)
        c = c + c.mT
        centred = x - _checks.primal(x).mean(1, keepdim=True)  # what cancels gets smaller
        return 2 * (c.sum(2, keepdim=True) * centred - c @ centred), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        (x,), u = ctx.saved_tensors, tangents[0].flatten(0, 1)
        difference = x.flatten(0, 1)[ctx.row] - x.flatten(0, 1)[ctx.col]
        change: Tensor = 2 * (difference * (u[ctx.row] - u[ctx.col])).sum(-1)
        return change.reshape(len(x), -1)


def _bandwidth(lengths: Tensor, once: Tensor, weights: HeatKernel) -> Tensor:
    """Return the bandwidth of each graph, to broadcast with its lengths ``(B, E)``, of which some count."""
    t = _medians(lengths, once)[:, None] if weights.t == "median" else lengths.new_full((1, 1), weights.t)
    return t if weights.log_factor is None else t * weights.log_factor.double().exp()


def _medians(lengths: Tensor, once: Tensor) -> Tensor:
    """Return the lower median ``(B,)`` of some lengths, with a gradient in equal parts to equal ones."""
    bare = _checks.primal(lengths)
    if bare.device.type == "cpu":
        pairs = zip(bare.numpy(), once.numpy(), strict=True)
        medians = bare.new_tensor([_median(part[counts]) for part, counts in pairs])
    else:
        ascending = torch.where(once, bare, torch.inf).sort(1).values
        middle = (2 * once.sum(1, keepdim=True) - 1) // 4  # each edge has two directions
        medians = ascending.gather(1, middle.clamp_min(0))[:, 0]
    equal = once & (bare == medians[:, None])
    change = torch.where(equal, lengths - bare, 0).sum(1) / equal.sum(1)
    return medians + change


def _median(values: np.ndarray) -> float:
    """Return the lower median of some numbers that count twice each; NaN of none."""
    middle = (2 * len(values) - 1) // 4
    return float(np.partition(values, middle)[middle]) if len(values) else math.nan
