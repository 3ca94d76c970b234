"""Reductions over groups of numbers: the edges of a node, of a component or of a graph.

Sums are equal from run to run. Numbers in float32 are added in float64: in float32 a sum of two million equal edges,
one after the other, is wrong by 1 %. The processor adds in the order of the values. On an accelerator ``index_add``
would add by atomic operations in any order. There ``index_put`` with accumulation sorts the values by group, and one
thread adds the values of a group one by one. Large groups are therefore divided, and the sums of the parts added.
Groups ``(total, 1)`` are the rows of a matrix of values ``(total, n)``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
import torch
from torch import Tensor

from torch_lapeig.support import checks


def sum_of_groups(values: Tensor, group: Tensor, total: int) -> Tensor:
    """Return Σ of the values ``(E, ...)`` of each of ``total`` groups; differentiable at any order and in any mode.

    >>> sum_of_groups(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 0, 2]), 3)
    tensor([2., 0., 4.])
    """
    if group.ndim == 2:
        return values.sum(1)
    wide = values.double() if values.dtype == torch.float32 else values
    if values.device.type == "cpu":
        return wide.new_zeros(total, *values.shape[1:]).index_add(0, group, wide).to(values.dtype)
    group, parts = _divided(group, total)
    sums = wide.new_zeros(parts * total, *values.shape[1:]).index_put((group,), wide, accumulate=True)
    return (sums if parts == 1 else sums.unflatten(0, (parts, total)).sum(0)).to(values.dtype)


def gather(values: Tensor, index: Tensor) -> Tensor:
    """Return the values at ``index``; the derivative sums as `sum_of_groups` does."""
    if values.device.type == "cpu":
        return values.index_select(0, index)
    index, parts = _divided(index, len(values))
    return (values if parts == 1 else values.expand(parts, *values.shape).flatten(0, 1))[index]


def _divided(group: Tensor, total: int) -> tuple[Tensor, int]:
    """Return the part of a group for each value, and the number of parts; part p of group g is p · total + g."""
    # Parts of about 64 values: one thread takes 75 ns a value, so that the median length of 15 million edges took 4.7 s
    # without parts (H200).
    group, parts = group.long(), max(1, len(group) // (64 * max(total, 1)))
    # Neighbouring values, which often belong to one group, go to different parts.
    if parts > 1:
        group = group + total * (torch.arange(len(group), device=group.device) % parts)
    return group, parts


def order_of_groups(group: Tensor, total: int) -> Tensor:
    """Return positions of values by group ``(E,)``, in their order within a group."""
    if not checks.is_plain_host(group):
        return group.argsort(stable=True).to(group.dtype)
    number, ends = np.arange(len(group), dtype=group.numpy().dtype), [0, len(group)]
    # SciPy counts the entries of a row into columns, up to ten times faster than a sort.
    return torch.from_numpy(scipy.sparse.csr_array((number, group.numpy(), ends), shape=(1, total)).tocsc().data)


def offsets_of_groups(group: Tensor, total: int) -> Tensor:
    """Return the position ``(total + 1,)`` where each group begins in an ascending ``group``; last, its length."""
    groups = torch.arange(total + 1, device=group.device, dtype=group.dtype)
    return torch.searchsorted(group, groups, out_int32=group.dtype == torch.int32)


def segment_logsumexp(values: Tensor, group: Tensor, total: int) -> Tensor:
    """Return log Σ exp of the values of each of ``total`` groups; −∞ where a group is empty."""
    bare, none = values.detach(), values.new_full((total,), -torch.inf)
    top = bare.amax(1) if group.ndim == 2 else none.scatter_reduce(0, group, bare, "amax")
    shift = torch.where(top.isinf(), 0, top)
    summed = sum_of_groups((values - shift[group]).exp(), group, total)
    return torch.where(summed > 0, torch.where(summed > 0, summed, 1).log() + shift, -torch.inf)


def kth_of_groups(values: Tensor, group: Tensor, total: int, k: int | None) -> Tensor:
    """Return each group's k-th smallest value (None: lower median), its largest if it has fewer, 1 if it is empty."""
    if len(values) == 0:
        return values.new_ones(total)
    bare = checks.primal(values)
    order = bare.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    begin = offsets_of_groups(group[order], total)
    count = begin.diff()
    rank = (count + 1) // 2 if k is None else count.clamp_max(k)
    place = (begin[:-1] + rank - 1).clamp(0, len(order) - 1)
    return with_equal_parts(torch.where(count > 0, bare[order[place]], 1.0), values, group)


def median_of_groups(values: Tensor, group: Tensor, total: int) -> Tensor:
    """Return the lower median ``(total,)`` of each group; 1 for an empty group. Arguments as `kth_of_groups`."""
    if values.device.type != "cpu" or (group.diff() < 0).any():
        return kth_of_groups(values, group, total, None)
    counts = [int(count) for count in group.bincount(minlength=total)]  # tolist fails in torch.func before torch 2.11
    parts = checks.primal(values).split(counts)
    medians = [part.median() if len(part) else part.new_ones(()) for part in parts]  # selection is faster than sorting
    return with_equal_parts(torch.stack(medians), values, group)


def with_equal_parts(
    chosen: Tensor, values: Tensor, group: Tensor, add: Callable[[Tensor], Tensor] = lambda part: part
) -> Tensor:
    """Return each group's ``chosen`` value ``(total,)``; its gradient is shared equally by all values equal to it."""
    # A gradient to one of the equal values would be a subgradient, too, but depend on the order of the nodes.
    equal = checks.primal(values) == chosen.index_select(0, group)
    if values.device.type == "cpu":  # elsewhere the host would have to synchronise
        values, group, equal = values[equal], group[equal], equal[equal]
    copies = add(sum_of_groups(equal.to(chosen.dtype), group, len(chosen))).clamp_min(1)
    change = torch.where(equal, values - checks.primal(values), 0)
    change = add(sum_of_groups(change, group, len(chosen))) / copies
    return chosen + torch.where(chosen.isfinite(), change, 0)  # the value of the change is 0; its derivatives are not


def both_ways(row: Tensor, col: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, columns and directions (1 or 2) of edges and their reverses, ascending by row, then column."""
    if row.device.type != "cpu":
        keys = torch.cat([row * total + col, col * total + row]).sort().values
        keys, directions = keys.unique_consecutive(return_counts=True)
        return keys // total, keys % total, directions
    # SciPy counts entries into rows: a sort takes four times as long, NumPy's on AMD's Zen 4 ten times.
    ones = np.ones(len(row), dtype=np.int8)
    directed = scipy.sparse.coo_array((ones, (row.numpy(), col.numpy())), shape=(total, total)).tocsr()
    both = directed + directed.T.tocsr()
    rows = np.repeat(np.arange(total, dtype=both.indices.dtype), np.diff(both.indptr))
    return torch.from_numpy(rows), torch.from_numpy(both.indices), torch.from_numpy(both.data)
