"""Connected components of a graph whose rows lie on several ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig.distributed.halo import Halo
from torch_lapeig.graph.components import label_components


def sharded_components(halo: Halo, row: Tensor, col: Tensor, numbers: Tensor) -> Tensor:
    """Labels 0, 1, … ``(n,)`` of the components, by the smallest number of a node of each.

    The components within each rank are found at once. Then the smallest number of each goes through the halos, until
    nothing changes: as many rounds as a path has changes of rank at most.

    Args:
        row, col: int64 ``(E,)``, edges to [own | halo] in the order of their rows.
        numbers: int64 ``(n,)``, distinct names of the nodes.
    """
    ranks, n = halo.ranks, len(numbers)
    inside = col < n
    part = label_components(row[inside].int(), col[inside].int(), n) if n else numbers
    parts = int(part.max()) + 1 if n else 0
    label = numbers.new_full((parts,), torch.iinfo(torch.int64).max).scatter_reduce(0, part, numbers, "amin")
    first, second = part[row[~inside]], col[~inside] - n
    while ranks.world > 1:
        near = halo.fetch(label[part])[second]
        reached = label.scatter_reduce(0, first, near, "amin")
        changed = ranks.any(not torch.equal(reached, label))
        label = reached
        if not changed:
            break
    at_node = label[part]
    roots = ranks.gather(numbers[at_node == numbers]).sort().values
    return torch.searchsorted(roots, at_node)
