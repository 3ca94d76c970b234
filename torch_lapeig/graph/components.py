"""Connected components of a graph, by SciPy on the CPU and by label propagation elsewhere; geodesic distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from torch_lapeig.graph.groups import gather, offsets_of_groups
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import rows_of_block, steps_between_checks


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


def geodesic_distances(pattern: Any, lengths: Tensor, sources: Tensor) -> Tensor:
    """Return lengths ``(S, N)`` of the shortest paths from nodes of one sparse graph to all, infinite for none.

    Differentiable in the lengths, with the paths fixed: a distance is the sum of the lengths on its path. Where several
    are equally short, the gradient is one of the subgradients. Gradients need S·N integers of memory for each doubling
    of the number of edges on the longest path.
    """
    from scipy.sparse.csgraph import dijkstra  # slow to import, as above

    n = pattern.shape[-1]
    data = checks.primal(lengths).cpu().double().numpy()
    structure = scipy.sparse.csr_array((data, pattern.col.cpu().numpy(), pattern.crow.cpu().numpy()), shape=(n, n))
    graded = (torch.is_grad_enabled() and lengths.requires_grad) or checks.is_dual(lengths)
    found = dijkstra(structure, indices=sources.cpu().numpy(), return_predecessors=graded)
    distances = torch.from_numpy(found[0] if graded else found).to(lengths)
    if not graded:
        return distances
    before = torch.from_numpy(found[1]).to(lengths.device)
    # An entry needs about four integers: its parent in each step.
    blocks = before.split(rows_of_block(32 * n, lengths.device))
    followed = torch.cat([_along_paths(pattern, lengths, block) for block in blocks])
    return torch.where(distances.isinf(), torch.inf, followed)


def _along_paths(pattern: Any, lengths: Tensor, before: Tensor) -> Tensor:
    """Return distances ``(S, N)`` as sums along trees of the nodes ``before`` each, negative where there is none."""
    s, n = before.shape
    place = torch.arange(s * n, device=before.device)
    parent = torch.where(before >= 0, before + n * torch.arange(s, device=before.device)[:, None], -1).flatten()
    child = (parent >= 0).nonzero().flatten()
    parent = torch.where(parent >= 0, parent, place)
    edge = torch.searchsorted(pattern.keys(), parent[child] % n * n + child % n)
    far = lengths.new_zeros(s * n).index_copy(0, child, gather(lengths, edge))
    # Pointer jumping: each step doubles the edges summed.
    while not torch.equal(further := parent.index_select(0, parent), parent):
        far, parent = far + gather(far, parent), further
    return far.reshape(s, n)
