"""Geodesic distances on a neighbourhood graph: SciPy finds the shortest paths; gradients flow to their edges."""

from __future__ import annotations

import scipy
import torch
from torch import Tensor

from torch_lapeig.graph.groups import gather
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import rows_of_block


def geodesic_distances(pattern: SparsePattern, lengths: Tensor, sources: Tensor) -> Tensor:
    """Return lengths ``(S, N)`` of the shortest paths from nodes of one graph to all, infinite where there is none.

    Differentiable in the lengths, with the paths fixed: a distance is the sum of the lengths on its path. Where several
    are equally short, the gradient is one of the subgradients. Gradients need S·N integers of memory for each doubling
    of the number of edges on the longest path.
    """
    from scipy.sparse.csgraph import dijkstra  # slow to import, as in components.py

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


def _along_paths(pattern: SparsePattern, lengths: Tensor, before: Tensor) -> Tensor:
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
