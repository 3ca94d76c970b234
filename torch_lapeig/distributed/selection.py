"""Exact order statistics of numbers that lie on several ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.graph.algebra import with_equal_parts
from torch_lapeig.support import checks

BITS = 8  # bits of a number that one round of selection decides, by a histogram of 2^BITS counts for each group
WORD = {torch.float32: torch.int32, torch.float64: torch.int64}


def medians_of_groups(ranks: Ranks, values: Tensor, group: Tensor, total: int) -> Tensor:
    """Return the lower median ``(total,)`` of the values ≥ 0 of each group over all ranks; 1 for an empty group."""
    bare = checks.primal(values) + 0.0  # −0 has the sign bit
    bits, among = bare.view(WORD[bare.dtype]).long(), group
    count = ranks.sum(torch.bincount(group, minlength=total))
    left, found = (count + 1) // 2, torch.zeros_like(count)
    # Non-negative numbers have the order of their bits, of which each round decides some, from the highest on, exactly.
    for shift in range(8 * bare.element_size() - BITS, -1, -BITS):
        digit = (bits >> shift) & (2**BITS - 1)
        counts = torch.bincount(among * 2**BITS + digit, minlength=total * 2**BITS)
        below = ranks.sum(counts).reshape(total, 2**BITS).cumsum(1)
        chosen = (below < left[:, None]).sum(1).clamp_max(2**BITS - 1)
        left = left - torch.where(chosen > 0, below.gather(1, (chosen - 1).clamp_min(0)[:, None])[:, 0], 0)
        found = (found << BITS) + chosen
        keep = digit == chosen[among]
        bits, among = bits[keep], among[keep]
    medians = torch.where(count > 0, found.to(WORD[bare.dtype]).view(bare.dtype), 1.0)
    return with_equal_parts(medians, values, group, ranks.total)
