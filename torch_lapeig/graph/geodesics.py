"""Geodesic distances on a neighbourhood graph: SciPy finds the shortest paths, gradients flow along their edges."""

from __future__ import annotations

import torch
from scipy.sparse import csr_array
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._tuning import rows_of_block
from torch_lapeig.graph.pattern import SparsePattern


def geodesic_distances(pattern: SparsePattern, lengths: Tensor, sources: Tensor) -> Tensor:
    """Lengths of the shortest paths from some nodes of one graph to all, by Dijkstra's algorithm on the CPU.

    Differentiable in the lengths, with the paths fixed: the derivative of a distance is the sum of those of its edges.
    Where several paths are equally short, that is one of the subgradients. With gradients it keeps O(S·N) integers.

    Args:
        pattern: both directions of every edge. lengths: of the edges, non-negative and symmetric, ``(E,)``.
        sources: int64 ``(S,)``.

    Returns:
        ``(S, N)`` of the dtype and device of ``lengths``; infinite where no path leads.
    """
    from scipy.sparse.csgraph import dijkstra  # as in components.py

    n = pattern.shape[-1]
    data = _checks.primal(lengths).cpu().double().numpy()
    structure = csr_array((data, pattern.col.cpu().numpy(), pattern.crow.cpu().numpy()), shape=(n, n))
    graded = (torch.is_grad_enabled() and lengths.requires_grad) or _checks.is_dual(lengths)
    found = dijkstra(structure, indices=sources.cpu().numpy(), return_predecessors=graded)
    distances = torch.from_numpy(found[0] if graded else found).to(lengths)
    if not graded:
        return distances
    before = torch.from_numpy(found[1]).to(lengths.device)
    # An entry takes about eight integers: its parent, place, order, level, …
    blocks = before.split(rows_of_block(64 * n, lengths.device))
    followed = torch.cat([_along_paths(pattern, lengths, block) for block in blocks])
    return torch.where(distances.isinf(), torch.inf, followed)


def _along_paths(pattern: SparsePattern, lengths: Tensor, before: Tensor) -> Tensor:
    """Distances ``(S, N)`` as sums along trees: each node's is that of the node before it, plus an edge.

    Nodes are taken by the number of edges to their source, so that each level needs only the one before it.

    Args:
        before: the node before each on its path, ``(S, N)``; negative where there is none.
    """
    s, n = before.shape
    place = torch.arange(s * n, device=before.device)
    row = torch.arange(s, device=before.device)[:, None]
    parent = torch.where(before >= 0, before + n * row, place.reshape(s, n)).flatten()
    count = _steps_to_root(parent, place)
    order = count.argsort(stable=True)
    levels = order.split(count.bincount().tolist())
    position = torch.empty_like(place)  # of each entry in its level
    for level in levels:
        position[level] = place[: len(level)]
    keys = pattern.keys()
    distances = [lengths.new_zeros(len(levels[0]))]
    for level in levels[1:]:
        above = parent.index_select(0, level)
        edge = torch.searchsorted(keys, above % n * n + level % n)
        distances.append(distances[-1].index_select(0, position[above]) + lengths.index_select(0, edge))
    back = torch.empty_like(place).index_copy_(0, order, place)
    return torch.cat(distances).index_select(0, back).reshape(s, n)


def _steps_to_root(parent: Tensor, place: Tensor) -> Tensor:
    """Steps from each entry of a forest to its root, which is its own parent, by pointer jumping."""
    count = (parent != place).int()
    while (further := count.index_select(0, parent)).any():
        count, parent = count + further, parent.index_select(0, parent)
    return count
