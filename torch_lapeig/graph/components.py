"""Connected components of a graph, by search on the CPU and by propagation of labels elsewhere; an order of nodes."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torch_lapeig._tuning import steps_between_looks

SQUARED_WORK = 3e5  # graphs · nodes³ up to which a dense graph is squared: less than a call of SciPy costs
SMALL = 64  # nodes up to which the edges of a dense graph are soon listed; most such are padded, and never reached
STEPS = 12  # products with a dense graph; those of real data have a diameter of a few edges


def label_components(row: Tensor, col: Tensor, total: int, crow: Tensor | None = None) -> Tensor:
    """Labels int64 ``(total,)``, equal within each connected component and ascending by its first node.

    Args:
        row, col: ``(E,)``, both directions of every edge, ascending by row.
        crow: ``(total + 1,)``, where the edges of each row begin, if that is known.
    """
    if row.device.type != "cpu":
        roots = propagate_labels(row.long(), col.long(), total)
        return ((roots == torch.arange(total, device=row.device)).cumsum(0) - 1)[roots]
    if crow is None:
        crow = torch.searchsorted(row, torch.arange(total + 1, dtype=row.dtype), out_int32=row.dtype == torch.int32)
    # It comes with SciPy's linear algebra: not with this library.
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    data = np.ones(len(col))  # of the type that SciPy makes of it anyway
    structure = csr_array((data, col.numpy(), crow.numpy()), shape=(total, total))
    # Most graphs are connected, which a search from one node sees in a third of the time.
    if total and len(breadth_first_order(structure, 0, return_predecessors=False)) == total:
        return torch.zeros(total, dtype=torch.int64)
    # With both directions of every edge the strong components are the components, and take half the time: no transpose.
    count, found = connected_components(structure, connection="strong")
    first = np.empty(count, dtype=np.int64)
    first[found[::-1]] = np.arange(total)[::-1]  # of several assignments the last one counts
    return torch.from_numpy(first.argsort().argsort()[found])


def propagate_labels(row: Tensor, col: Tensor, total: int) -> Tensor:
    """The smallest node number of each connected component, by propagation and pointer jumping on the device."""
    labels = torch.arange(total, device=row.device)
    while True:
        reached = labels
        for _ in range(steps_between_looks(row.device)):
            labels = reached
            told = reached.scatter_reduce(0, row, reached[col], "amin")
            told = told.scatter_reduce(0, reached, told, "amin")  # tell the component's representative
            reached = told[told]
        if torch.equal(reached, labels):
            return labels
        labels = reached


def label_dense_components(weight: Tensor) -> Tensor:
    """Labels of dense graphs ``(B, N, N)`` by edges of positive weight, ``(B, N)``, ascending by node in each."""
    n = weight.shape[-1]
    if weight.numel() * n <= SQUARED_WORK:
        return labels_by_squaring(weight)
    if n > SMALL and first_reaches_all(weight):
        return torch.zeros(weight.shape[:2], dtype=torch.int64, device=weight.device)
    joined = weight.reshape(-1, n) > 0
    place = joined.flatten().nonzero().flatten()
    crow = torch.nn.functional.pad(joined.sum(1).cumsum(0), (1, 0))
    row = place // n
    col = place - (row - row // n) * n  # counted through all items
    return label_components(row.int(), col.int(), len(joined), crow.int()).reshape(weight.shape[:2])


def labels_by_squaring(weight: Tensor) -> Tensor:
    """Labels ``(B, N)`` of dense graphs ``(B, N, N)``, by repeated squaring: 0, 1, … in each by first node."""
    reach = (weight > 0).to(weight.dtype)
    reach.diagonal(dim1=1, dim2=2).fill_(1)
    for _ in range(max(weight.shape[1] - 2, 0).bit_length()):
        reach = (reach @ reach).clamp_max_(1)
    first = (reach > 0).to(torch.int8).argmax(2)
    number = (first == torch.arange(weight.shape[1], device=weight.device)).cumsum(1) - 1
    return number.gather(1, first)


def first_reaches_all(weight: Tensor) -> bool:
    """Whether a few steps lead from the first node of every graph ``(B, N, N)`` to all others, as in most dense graphs.

    False also where it would take more steps.
    """
    reached = weight[:, 0] > 0
    reached[:, 0] = True
    for _ in range(STEPS):
        if reached.all():
            return True
        further = (weight @ reached[..., None].to(weight.dtype))[..., 0] > 0
        if (further <= reached).all():  # nothing new
            return False
        reached |= further
    return bool(reached.all())


def bandwidth_reducing_order(crow: Tensor, col: Tensor) -> Tensor:
    """Reverse Cuthill–McKee order, int64, of the nodes of a graph in CSR order, both directions of every edge."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee  # as above

    parts, total = (np.ones(len(col), dtype=np.int8), col.cpu().numpy(), crow.cpu().numpy()), len(crow) - 1
    order = reverse_cuthill_mckee(csr_array(parts, shape=(total, total)), symmetric_mode=True)
    return torch.from_numpy(order.astype(np.int64)).to(col.device)
