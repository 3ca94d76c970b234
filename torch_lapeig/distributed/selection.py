"""Exact order statistics of numbers that lie on several ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.graph.algebra import with_equal_parts
from torch_lapeig.support import checks

BITS = 8  # bits of a number that one round of selection decides, by a histogram of 2^BITS counts for each group
SIGN = torch.iinfo(torch.int64).min


def at_place(ranks: Ranks, values: Tensor, group: Tensor, place: Tensor) -> Tensor:
    """Return the float64 value at a place ``(g,)``, 1 for the smallest, of each group over all ranks; else NaN."""
    bits = (values + 0.0).view(torch.int64)  # −0 has the sign bit
    # Numbers have the order of their keys, of which each round decides some bits, from the highest on, exactly.
    keys, among, found = torch.where(bits < 0, ~bits, bits ^ SIGN), group, torch.zeros_like(place)
    for shift in range(64 - BITS, -1, -BITS):
        digit = (keys >> shift) & (2**BITS - 1)
        counts = torch.bincount(among * 2**BITS + digit, minlength=len(place) * 2**BITS)
        below = ranks.sum(counts).reshape(-1, 2**BITS).cumsum(1)
        chosen = (below < place[:, None]).sum(1).clamp_max(2**BITS - 1)
        place = place - torch.where(chosen > 0, below.gather(1, (chosen - 1).clamp_min(0)[:, None])[:, 0], 0)
        found = (found << BITS) + chosen
        keep = digit == chosen[among]
        keys, among = keys[keep], among[keep]
    return torch.where(found < 0, found ^ SIGN, ~found).view(torch.float64)


def medians_of_groups(ranks: Ranks, values: Tensor, group: Tensor, total: int) -> Tensor:
    """Return the lower median ``(total,)`` of the values ≥ 0 of each group over all ranks; 1 for an empty group."""
    count = ranks.sum(torch.bincount(group, minlength=total))
    medians = at_place(ranks, checks.primal(values).double(), group, (count + 1) // 2)
    return with_equal_parts(torch.where(count > 0, medians, 1.0).to(values.dtype), values, group, ranks.total)
