"""Reductions over groups of numbers: the edges of a node, of a component or of a graph.

Sums are the same from run to run. The processor adds in the order of the values, float32 in float64: one by one it
would lose digits, 1 % at a hub of two million equal edges. An accelerator would add by atomic operations in any order,
so that there each group is brought together and summed by itself (`torch.segment_reduce`, of which torch knows neither
a second derivative nor a forward mode). The derivative of such sums is a gather, whose derivative is the sum again: two
functions, closed under differentiation of any order and mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._cached import cached_property

FEW = 5000  # entries up to which one sort of all takes less than the calls for a sort of each row
COUNTED = 1000  # entries from which on they are counted into their groups
TABLE_SHARE = 1 / 16  # of all nodes, from which on a table of all of them is faster than a search


class Groups:
    """Which of ``total`` groups each value belongs to.

    Args:
        index: int32 or int64 ``(E,)``, the group of each value.
        total: number of groups; some may be empty.
        ascending: whether ``index`` is sorted.
        offsets: what is known of them; see there.

    >>> groups = Groups(torch.tensor([2, 0, 2]), 3)
    >>> groups.sum(torch.tensor([1.0, 2.0, 3.0]))
    tensor([2., 0., 4.])
    >>> groups.spread(torch.tensor([5.0, 6.0, 7.0]))
    tensor([7., 5., 7.])
    """

    def __init__(self, index: Tensor, total: int, *, ascending: bool = False, offsets: Tensor | None = None) -> None:
        self.index, self.total, self.ascending = index, total, ascending
        if offsets is not None:
            self.offsets = offsets

    @cached_property
    def order(self) -> Tensor:
        """Positions of the values by group, in one group as they come; ``(E,)``."""
        if self.index.device.type != "cpu" or len(self.index) <= COUNTED:
            return self.index.argsort(stable=True).to(self.index.dtype)
        number, ends = np.arange(len(self.index), dtype=self.index.numpy().dtype), [0, len(self.index)]
        # To store a row by columns counts its entries into them: half of the time of a sort, or a third.
        return torch.from_numpy(csr_array((number, self.index.numpy(), ends), shape=(1, self.total)).tocsc().data)

    @cached_property
    def offsets(self) -> Tensor:
        """Where each group begins when the values are in order, and their number; ``(total + 1,)``."""
        if _checks.is_plain_host(self.index):  # on one thread: to wake another takes longer
            numbers = self.index.numpy()
            offsets = np.zeros(self.total + 1, dtype=numbers.dtype)
            np.bincount(numbers, minlength=self.total)[: self.total].cumsum(out=offsets[1:])
            return torch.from_numpy(offsets)
        index = self.index if self.ascending else self.index.index_select(0, self.order)
        groups = torch.arange(self.total + 1, device=index.device, dtype=index.dtype)
        return torch.searchsorted(index, groups, out_int32=index.dtype == torch.int32)

    def sum(self, values: Tensor) -> Tensor:
        """Σ of the values ``(E, ...)`` of each group, ``(total, ...)``; differentiable at any order and in any mode."""
        if values.device.type == "cpu":
            wide = values.double() if values.dtype == torch.float32 else values
            return wide.new_zeros(self.total, *values.shape[1:]).index_add(0, self.index, wide).to(values.dtype)
        result: Tensor = Sum.apply(values, self)
        return result

    def spread(self, sums: Tensor) -> Tensor:
        """For each value that of its group, ``(E, ...)``; differentiable as `sum`."""
        if sums.device.type == "cpu":
            return sums.index_select(0, self.index)
        result: Tensor = Spread.apply(sums, self)
        return result


class Sum(torch.autograd.Function):
    """`Groups.sum` by segments."""

    @staticmethod
    def forward(values: Tensor, groups: Groups) -> Tensor:
        """Each segment of the values in order is summed by itself."""
        values = values if groups.ascending else values.index_select(0, groups.order)
        if not len(values) or not groups.total:
            return values.new_zeros(groups.total, *values.shape[1:])
        return torch.segment_reduce(values.contiguous(), "sum", offsets=groups.offsets, initial=0, unsafe=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Groups], output: Tensor) -> None:
        """Keep the groups."""
        ctx.groups = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """To each value the cotangent of its group."""
        return Spread.apply(grads[0], ctx.groups), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        """The sums of tangents."""
        result: Tensor = Sum.apply(tangents[0], ctx.groups)
        return result


class Spread(torch.autograd.Function):
    """`Groups.spread`, the transpose of `Sum`."""

    @staticmethod
    def forward(sums: Tensor, groups: Groups) -> Tensor:
        """A gather."""
        return sums.index_select(0, groups.index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Groups], output: Tensor) -> None:
        """Keep the groups."""
        ctx.groups = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The sums of cotangents."""
        return Sum.apply(grads[0], ctx.groups), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        """To each value the tangent of its group."""
        result: Tensor = Spread.apply(tangents[0], ctx.groups)
        return result


class Reversed(torch.autograd.Function):
    """Values in an order that is its own inverse."""

    @staticmethod
    def forward(values: Tensor, order: Tensor) -> Tensor:
        """A gather."""
        return values.index_select(0, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the order."""
        ctx.order = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The same."""
        return Reversed.apply(grads[0], ctx.order), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        """The same."""
        return None if tangents[0] is None else Reversed.apply(tangents[0], ctx.order)


def reverse(values: Tensor, order: Tensor) -> Tensor:
    """Values ``(E,)`` in an order that is its own inverse; differentiable at any order and in any mode."""
    if values.device.type == "cpu":
        return values.index_select(0, order)
    result: Tensor = Reversed.apply(values, order)
    return result


def sum_of_groups(values: Tensor, group: Tensor, total: int) -> Tensor:
    """Σ of the values ``(E, ...)`` of each of ``total`` groups, in any order; see `Groups.sum`."""
    return Groups(group, total).sum(values)


def segment_logsumexp(values: Tensor, group: Tensor, total: int) -> Tensor:
    """log Σ exp of the values of each of ``total`` groups; −∞ where a group is empty."""
    top = values.new_full((total,), -torch.inf).scatter_reduce(0, group, values.detach(), "amax")
    shift = torch.where(top.isinf(), 0, top)
    groups = Groups(group, total)
    summed = groups.sum((values - groups.spread(shift)).exp())
    return torch.where(summed > 0, torch.where(summed > 0, summed, 1).log() + shift, -torch.inf)


def kth_of_groups(values: Tensor, group: Tensor, total: int, k: int) -> Tensor:
    """Return the k-th smallest value ``(total,)`` of each group, or its largest if it has fewer; 1 for an empty group.

    Args:
        values: ``(E,)``; gradients flow as in `with_equal_parts`. group: int64 ``(E,)``, of each value.
    """
    order, begin, count = order_by_group(values, group, total)
    if len(order) == 0:
        return values.new_ones(total)
    place = (begin + count.clamp_max(k) - 1).clamp(0, len(order) - 1)
    return with_equal_parts(torch.where(count > 0, _checks.primal(values)[order[place]], 1.0), values, group)


def median_of_groups(values: Tensor, group: Tensor, total: int) -> Tensor:
    """Return the lower median ``(total,)`` of each group; 1 for an empty group. Arguments as `kth_of_groups`."""
    if len(values) == 0:
        return values.new_ones(total)
    bare = _checks.primal(values)
    if _checks.is_plain_host(values) and (group.diff() >= 0).all():  # selection is faster than sorting
        parts = np.split(bare.numpy(), torch.bincount(group, minlength=total).cumsum(0)[:-1].numpy())
        medians = bare.new_tensor([_median(part) for part in parts])
    else:
        order, begin, count = order_by_group(values, group, total)
        places = order[(begin + (count - 1).clamp_min(0) // 2).clamp_max(len(order) - 1)]
        medians = torch.where(count > 0, bare[places], 1.0)
    return with_equal_parts(medians, values, group)


def _median(values: np.ndarray) -> float:
    """Return the lower median of some numbers, of which NaN counts as the largest; 1 of none."""
    middle = (len(values) - 1) // 2
    return float(np.partition(values, middle)[middle]) if len(values) else 1.0


def with_equal_parts(
    chosen: Tensor, values: Tensor, group: Tensor, add: Callable[[Tensor], Tensor] = lambda part: part
) -> Tensor:
    """Return the value chosen of each group ``(total,)``, with a gradient in equal parts to all values equal to it.

    Each of the equal values alone would have a subgradient, but one that depends on the order of the nodes.

    Args:
        chosen: ``(total,)``, without gradients.
        values: ``(E,)``, to which gradients flow. group: int64 ``(E,)``, of each value.
        add: adds up over the places where values lie, with derivatives; see ``Nodes.sum``.
    """
    equal = _checks.primal(values) == chosen.index_select(0, group)
    if values.device.type == "cpu":  # elsewhere the host would wait for their number
        values, group, equal = values[equal], group[equal], equal[equal]
    groups = Groups(group, len(chosen))
    copies = add(groups.sum(equal.to(chosen.dtype))).clamp_min(1)
    change = add(groups.sum(torch.where(equal, values - _checks.primal(values), 0))) / copies
    return chosen + torch.where(chosen.isfinite(), change, 0)  # the change is 0, but for its derivatives


def order_by_group(values: Tensor, group: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions by group, then by value; and where each of ``total`` groups begins, and how many it has."""
    order = values.detach().argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    begin = Groups(group[order], total, ascending=True).offsets
    return order, begin[:-1], begin.diff()


def places_among(nodes: Tensor, asked: Tensor, total: int) -> Tensor:
    """Where in ``nodes`` (int64 ``(M,)``, distinct, of ``total``) each of those asked for is, −1 for nowhere."""
    if len(nodes) > total * TABLE_SHARE:
        count = torch.arange(len(nodes), dtype=asked.dtype, device=nodes.device)
        return asked.new_full((total,), -1).scatter_(0, nodes, count).index_select(0, asked)
    # By search, not in a table of all nodes: these may be millions, and the ones asked for a mini-batch.
    ascending, number = nodes.sort()
    place = torch.searchsorted(ascending, asked).clamp_max(max(len(nodes) - 1, 0))
    return torch.where(ascending[place] == asked, number[place], -1).to(asked.dtype)


def by_column(row: Tensor, col: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """The columns of entries in ascending rows, ascending in each row, and where they were."""
    if row.device.type != "cpu" or len(row) <= FEW:
        keys, order = (row.long() * total + col).sort()
        return keys % max(total, 1), order
    # Row by row: several times faster than one sort of all.
    offsets = Groups(row, total, ascending=True).offsets
    places = np.arange(len(row), dtype=offsets.numpy().dtype)
    entries = csr_array((places, col.numpy(), offsets.numpy()), shape=(total, total))
    entries.has_sorted_indices = False
    entries.sort_indices()
    return torch.from_numpy(entries.indices), torch.from_numpy(entries.data)


def both_ways(row: Tensor, col: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
    """Directed edges and their reverses, ascending by row, then by column; and of each how many of the two there were.

    On the processor as a sum of sparse matrices, whose entries are counted into their rows: a sort of all takes four
    times as long, and ten times where vector instructions that pack numbers are slow (NumPy's on AMD's Zen 4).
    """
    if row.device.type != "cpu":
        keys, directions = (
            torch.cat([row * total + col, col * total + row]).sort().values.unique_consecutive(return_counts=True)
        )
        return keys // total, keys % total, directions
    ones = np.ones(len(row), dtype=np.int8)
    directed = coo_array((ones, (row.numpy(), col.numpy())), shape=(total, total)).tocsr()
    both = directed + directed.T.tocsr()
    rows = np.repeat(np.arange(total, dtype=both.indices.dtype), np.diff(both.indptr))
    return torch.from_numpy(rows), torch.from_numpy(both.indices), torch.from_numpy(both.data)
