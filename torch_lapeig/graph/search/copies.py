"""Points with many copies: a search can find only the first few of each.

Copies are equally far from everything, and ties end by the smaller index. Where a point has thousands of them, a search
would measure each against each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig.support.tuning import COPIES_LOOKED_AT, COPIES_NODES, COPIES_SHARE, rows_of_block


def first_copies(points: Tensor, valid: Tensor, most: int) -> Tensor | None:
    """Return ascending numbers of valid points ``(N, D)``, without copies beyond the first ``most`` of each.

    None where a check of some points shows too few copies for this to pay.
    """
    n = len(points)
    if points.device.type != "cpu" or n < COPIES_NODES:
        return None
    # Golden-ratio steps, which no pattern in the order of points matches.
    some = torch.arange(COPIES_LOOKED_AT, dtype=torch.float64).mul(0.6180339887498949).frac().mul(n).long()
    if _rank_of_copies(points[some]).count_nonzero() < COPIES_SHARE * len(some):
        return None
    numbers = valid.nonzero().flatten()
    return numbers[_rank_of_copies(points[numbers]) < most]


def _rank_of_copies(points: Tensor) -> Tensor:
    """Return the number of points before each one that equal it, int64 ``(N,)``."""
    bits = (points + 0.0).contiguous().view(torch.int32 if points.dtype == torch.float32 else torch.int64)
    generator = torch.Generator().manual_seed(0)
    odd = torch.randint(-(2**62), 2**62, (points.shape[1],), generator=generator) * 2 + 1
    step = rows_of_block(16 * points.shape[1], points.device, "cache")
    key = torch.cat([(part * odd).sum(1) for part in bits.split(step)])  # modulo 2⁶⁴: equal for equal rows
    order = key.argsort(stable=True)
    begins = torch.ones(len(points), dtype=torch.bool)
    begins[1:] = (points[order[1:]] != points[order[:-1]]).any(1)  # different rows may share a key
    place = torch.arange(len(points))
    first = torch.where(begins, place, 0).cummax(0).values
    return torch.empty_like(place).index_copy_(0, order, place - first)
