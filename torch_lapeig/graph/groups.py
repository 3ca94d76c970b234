"""Reductions over groups of numbers: the edges of a node, of a component or of a graph."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_logsumexp(values: Tensor, group: Tensor, total: int) -> Tensor:
    """log Σ exp of the values of each of ``total`` groups; −∞ where a group is empty."""
    top = values.new_full((total,), -torch.inf).scatter_reduce(0, group, values.detach(), "amax")
    shift = torch.where(top.isinf(), 0, top)
    summed = values.new_zeros(total).index_add(0, group, (values - shift[group]).exp())
    return torch.where(summed > 0, torch.where(summed > 0, summed, 1).log() + shift, -torch.inf)


def kth_of_groups(values: Tensor, group: Tensor, total: int, k: int) -> Tensor:
    """The k-th smallest value ``(total,)`` of each group, or its largest if it has fewer; 1 for a group without any.

    Args:
        values: ``(E,)``; gradients flow to those that are chosen. group: int64 ``(E,)``, of each value.
    """
    order, begin, count = order_by_group(values, group, total)
    if len(order) == 0:
        return values.new_ones(total)
    place = (begin + count.clamp_max(k) - 1).clamp(0, len(order) - 1)
    return torch.where(count > 0, values[order[place]], 1.0)


def median_of_groups(values: Tensor, group: Tensor, total: int) -> Tensor:
    """The lower median ``(total,)`` of each group; 1 for a group without any. Arguments as `kth_of_groups`."""
    if len(values) == 0:
        return values.new_ones(total)
    if values.device.type == "cpu" and (group.diff() >= 0).all():  # selection is faster than sorting
        count = torch.bincount(group, minlength=total)
        parts = values.detach().split(count.tolist())
        within = [part.kthvalue((len(part) + 1) // 2).indices if len(part) else count.new_zeros(()) for part in parts]
        places = count.cumsum(0) - count + torch.stack(within)
    else:
        order, begin, count = order_by_group(values, group, total)
        places = order[(begin + (count - 1).clamp_min(0) // 2).clamp_max(len(order) - 1)]
    return torch.where(count > 0, values[places.clamp_max(len(values) - 1)], 1.0)


def order_by_group(values: Tensor, group: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions by group, then by value; and where each of ``total`` groups begins, and how many it has."""
    order = values.detach().argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    count = torch.bincount(group, minlength=total)
    return order, count.cumsum(0) - count, count
