"""Connected components of a graph, by SciPy on the CPU and by label propagation elsewhere."""

from __future__ import annotations

import numpy as np
import scipy
import torch
from torch import Tensor

from torch_lapeig.graph.groups import offsets_of_groups
from torch_lapeig.support.tuning import steps_between_checks


def label_components(row: Tensor, col: Tensor, total: int, crow: Tensor | None = None) -> Tensor:
    """Return labels int64 ``(total,)`` of the connected components of sorted edges, ascending by their first nodes."""
    if row.device.type != "cpu":
        roots = propagate_labels(row.long(), col.long(), total)
        return ((roots == torch.arange(total, device=row.device)).cumsum(0) - 1)[roots]
    # Imported here, as it loads all of SciPy's linear algebra.
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    crow = offsets_of_groups(row, total) if crow is None else crow
    structure = scipy.sparse.csr_array((np.ones(len(col)), col.numpy(), crow.numpy()), shape=(total, total))
    # Most graphs are connected, which a search from one node shows in a quarter of the time.
    if total and len(breadth_first_order(structure, 0, return_predecessors=False)) == total:
        return torch.zeros(total, dtype=torch.int64)
    return torch.from_numpy(connected_components(structure, directed=False)[1].astype(np.int64))


def propagate_labels(row: Tensor, col: Tensor, total: int) -> Tensor:
    """Return the smallest node number of each connected component, by propagation and pointer jumping on the device."""
    labels = torch.arange(total, device=row.device)
    while True:
        reached = labels
        for _ in range(steps_between_checks(row.device)):
            labels = reached
            lowest = labels.scatter_reduce(0, row, labels[col], "amin")
            lowest = lowest.scatter_reduce(0, labels, lowest, "amin")  # update the node that labels the component, too
            reached = lowest[lowest]
        if torch.equal(reached, labels):
            return labels
        labels = reached
