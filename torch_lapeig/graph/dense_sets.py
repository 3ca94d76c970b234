"""Weighted graphs of small sets of points as dense matrices, in few calls, for `KNN` and `HeatKernel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_lapeig.graph.rules import KNN
from torch_lapeig.graph.search.neighbors import nearest_or_all
from torch_lapeig.graph.weights import HeatKernel
from torch_lapeig.support import checks


def small_graph(x: Tensor, neighbors: object, weights: object, mask: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Return D^-½ W D^-½ ``(B, N, N)`` and D^-½ ``(B, N)`` of one set of points or of a batch, in float64, or None."""
    # Gradients flow to the points and to a learnable bandwidth, in reverse mode only. Where copies of points make a
    # bandwidth 0, values are not finite.
    if type(neighbors) is not KNN or neighbors.metric != "euclidean" or neighbors.recall is not None:
        return None
    words = ("component-median", "steepest")
    if type(weights) is not HeatKernel or weights.t in words or neighbors.backend != "exact":
        return None
    if checks.is_dual(x, weights.log_factor):
        return None
    n, k = x.shape[-2], neighbors.k
    if (n if mask is None else int(mask.sum(-1).min())) <= k:
        return None
    index = _nearest(x, k, mask).reshape(-1, n, k)
    share, once = _shares(index, neighbors.symmetrize)
    x = x if x.ndim == 3 else x[None]
    if mask is not None:
        mask = mask.reshape(-1, n)
        index, share, once = index * mask[..., None], share * mask[..., None], once & mask[..., None]
        x = torch.where(mask[..., None], x, 0)
    places = (torch.arange(len(x), device=x.device)[:, None, None], index)
    lengths = _Lengths.apply(x.double(), places)
    t = _medians(lengths, once) if weights.t == "median" else float(weights.t)
    t = t if weights.log_factor is None else t * weights.log_factor.double().exp()
    values, scale = _Normalized.apply(share * (-lengths / t).exp(), places, mask)
    return values, scale


@torch.no_grad()
def _nearest(x: Tensor, k: int, mask: Tensor | None) -> Tensor:
    """Return the nearest other points ``(..., N, k)``; on a device a sort of all takes a tenth of the launches."""
    if x.device.type == "cpu" or x.dtype != torch.float32:
        return nearest_or_all(x, k, "euclidean", mask, "exact", None).indices
    # Squares of float32 neither overflow nor underflow in float64.
    wide = checks.check_points(x, mask=mask, is_squared=True).double()
    lengths = torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist")
    lengths.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    if mask is not None:
        lengths.masked_fill_(~mask[..., None, :], torch.inf)
    return lengths.sort(stable=True).indices[..., :k]


def _shares(index: Tensor, symmetrize: str) -> tuple[Tensor, Tensor]:
    """Return each neighbour's share of the weight of its edge, and False where an edge of two choices comes again."""
    graphs, n, _ = index.shape
    chosen = torch.zeros(graphs, n, n, dtype=torch.bool, device=index.device).scatter_(2, index, True)
    mutual = chosen.mT.gather(2, index)
    is_first = mutual <= (index > torch.arange(n, device=index.device)[:, None])  # False where the other one is
    if symmetrize == "mean":
        return torch.full_like(index, 0.5, dtype=torch.float64), is_first
    if symmetrize == "mutual":
        return mutual / 2.0, is_first & mutual
    return 1 - mutual / 2, is_first


def _medians(lengths: Tensor, once: Tensor) -> Tensor:
    """Return the lower median ``(B, 1, 1)`` of lengths that count once; NaN without any."""
    bare = torch.where(once, checks.primal(lengths), torch.nan).flatten(1)
    if bare.device.type == "cpu":
        medians = bare.nanmedian(1, keepdim=True).values
    else:  # CUDA has no deterministic nanmedian; a sort puts NaN last
        medians = bare.sort(1).values.gather(1, (once.sum((1, 2))[:, None] - 1).clamp_min(0) // 2)
    # The gradient goes to equal lengths in equal parts.
    equal = bare == medians
    part = equal / equal.sum(1, keepdim=True, dtype=bare.dtype)
    return (part.view_as(lengths) * lengths).sum((1, 2), keepdim=True)


def _both_ways(values: Tensor, index: Tensor) -> Tensor:
    """Return V + Vᵀ ``(B, N, N)`` for values ``(B, N, k)`` from each node to its neighbours."""
    there = values.new_zeros(*index.shape[:2], index.shape[1]).scatter(2, index, values)
    return there + there.mT


class _Lengths(torch.autograd.Function):
    """Squared lengths ``(B, N, k)`` of points ``(B, N, D)`` to neighbours at ``places``, by direct differences."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: tuple[Tensor, Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.places = places
        return x[places].sub_(x[:, :, None]).square_().sum(-1)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        # For C = V + Vᵀ of the cotangents V: 2 (diag(C 1) − C) X, in float64, which autocast does not change.
        (x,) = ctx.saved_tensors
        pull, centred = _both_ways(cotangents[0], ctx.places[1]), x - x.detach().mean(1, keepdim=True)
        return torch.baddbmm(pull.sum(2, keepdim=True) * centred, pull, centred, beta=2, alpha=-2), None


class _Normalized(torch.autograd.Function):
    """D^-½ W D^-½ ``(B, N, N)`` and D^-½ ``(B, N)`` of W = A + Aᵀ for weights A ``(B, N, k)`` to neighbours."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, places: tuple[Tensor, Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor]:
        values = _both_ways(weight, places[1])
        degrees = values.sum(2)
        scale = degrees.rsqrt() if mask is None else torch.where(mask, degrees, 1).rsqrt() * mask
        values.mul_(scale[:, :, None]).mul_(scale[:, None, :])
        ctx.save_for_backward(values, scale)
        ctx.places = places
        return values, scale

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        # A change of W turns s = D^-½ by ds_i = −½ s_i³ Σ_j dW_ij.
        (values, scale), places = ctx.saved_tensors, ctx.places
        both = cotangents[0] + cotangents[0].mT
        pull = torch.addcmul((both * values).sum(2), scale, cotangents[1]) * scale.square() / -2
        direct = both.gather(2, places[1]) * scale[:, :, None] * scale[places]
        return direct + pull[:, :, None] + pull[places], None, None
