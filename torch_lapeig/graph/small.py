"""Edges of small sets of points in one list, for `KNN` and `HeatKernel`: a minimum of calls, with gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.graph.neighbors import nearest_neighbors
from torch_lapeig.graph.rules import KNN
from torch_lapeig.graph.weights import HeatKernel


class SmallGraphs(NamedTuple):
    """Weighted graphs W = A + Aᵀ: D^-½ W D^-½ ``(B, N, N)`` and D^-½ ``(B, N)``, in float64, with gradients."""

    values: Tensor
    scale: Tensor


def small_graph(x: Tensor, neighbors: object, weights: object, mask: Tensor | None) -> SmallGraphs | None:
    """Return the graphs of sets of points ``(B, N, D)``; None where this short way does not apply.

    It is there for exact Euclidean `KNN` of more points than neighbours in each set, and `HeatKernel` but for
    ``"component-median"``. Gradients flow to the points and to a learnable bandwidth. Where a bandwidth is 0, as of
    copies, values are not finite.
    """
    if type(neighbors) is not KNN or neighbors.metric != "euclidean" or neighbors.recall is not None:
        return None
    if type(weights) is not HeatKernel or weights.t == "component-median" or neighbors.backend != "exact":
        return None
    if (x.shape[1] if mask is None else int(mask.sum(1).min())) <= neighbors.k:
        return None
    index = nearest_neighbors(x.detach(), neighbors.k, mask=mask).indices
    share, once = _shares(index, neighbors.symmetrize)
    if mask is not None:
        index, share, once = index * mask[..., None], share * mask[..., None], once & mask[..., None]
        x = torch.where(mask[..., None], x, 0)
    lengths = _lengths(x.double(), index)
    t = _medians(lengths, once)[:, None, None] if weights.t == "median" else float(weights.t)
    t = t if weights.log_factor is None else t * weights.log_factor.double().exp()
    return _normalized(index, share * (-lengths / t).exp(), mask)


def _normalized(index: Tensor, weight: Tensor, mask: Tensor | None) -> SmallGraphs:
    """Return the graphs W = A + Aᵀ for weights A ``(B, N, k)`` from each node to others."""
    nothing = weight.new_zeros(*index.shape[:2], index.shape[1])
    degrees = weight.sum(2) + nothing.scatter(2, index, weight).sum(1)
    scale = degrees.rsqrt() if mask is None else torch.where(mask, degrees, 1).rsqrt() * mask
    item = torch.arange(len(index), device=index.device)[:, None, None]
    values = nothing.scatter(2, index, scale[..., None] * weight * scale[item, index])
    return SmallGraphs(values + values.mT, scale)


def _shares(index: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Return each neighbour's share of a weight in either direction, and whether its edge occurs for the first time.

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


def _lengths(x: Tensor, index: Tensor) -> Tensor:
    """Return squared lengths ``(B, N, k)`` between points ``(B, N, D)`` and their neighbours.

    The values come from direct differences, the derivatives from the expanded square.
    """
    bare, item = _checks.primal(x), torch.arange(len(x), device=x.device)[:, None, None]
    direct = bare[item, index].sub_(bare[:, :, None]).square_().sum(-1)
    centred = x - bare.mean(1, keepdim=True)  # reduces cancellation
    inner = centred @ centred.mT
    squares = inner.diagonal(dim1=1, dim2=2)
    node = torch.arange(x.shape[1], device=x.device)[:, None]
    expanded = (squares[:, :, None] + squares[:, None, :] - 2 * inner)[item, node, index]
    return expanded + (direct - _checks.primal(expanded))


def _medians(lengths: Tensor, once: Tensor) -> Tensor:
    """Return the lower median ``(B,)`` of some lengths, with a gradient in equal parts to equal ones; NaN of none."""
    lengths, once = lengths.flatten(1), once.flatten(1)
    bare = torch.where(once, _checks.primal(lengths), torch.nan)
    if bare.device.type == "cpu":
        medians = bare.nanmedian(1, keepdim=True).values
    else:  # CUDA has none in deterministic mode; NaN is the largest in a sort
        medians = bare.sort(1).values.gather(1, (once.sum(1, keepdim=True) - 1).clamp_min(0) // 2)
    equal = bare == medians
    change = torch.where(equal, lengths - _checks.primal(lengths), 0).sum(1) / equal.sum(1)
    return medians[:, 0] + change
