"""Given distances of stored neighbours: a sparse matrix is the graph, and its entries are the lengths of the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.graph.algebra import entries, index_of, sum_of_groups
from torch_lapeig.graph.distances import Precomputed, check_given, check_zero
from torch_lapeig.graph.graph import Graph, check_entries
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.weights import Weighting, by_lengths
from torch_lapeig.support import checks, precision


@precision.full_precision
def weighted_by_stored(x: Any, weights: Weighting, mask: Tensor | None) -> Graph:
    """Return the weighted graph of stored distances ``(N, N)``; a pair stored in one direction has connectivity ½."""
    x = _as_tensor(x)
    if mask is not None:
        raise ValueError("mask must be None with stored distances, got one; leave out rows and columns of padding")
    if x.ndim != 2 or x.shape[0] != x.shape[1]:
        raise ValueError(f"x must have shape (N, N), got {tuple(x.shape)}, with distances of stored neighbours")
    n, (row, col) = len(x), index_of(x).long()
    checks.check_distinct(row * n + col, "row * N + column of stored distances", "one entry for each pair")
    x = x.coalesce() if x.layout == torch.sparse_coo else x
    (row, col), distance = index_of(x).long(), entries(x)
    check_given(distance)
    check_zero(distance[row == col], distance)
    between = row != col
    row, col, distance = row[between], col[between], distance[between].repeat(2)
    keys, place, directions = torch.cat([row * n + col, col * n + row]).unique(return_inverse=True, return_counts=True)
    lengths = sum_of_groups(distance, place, len(keys)) / directions
    if not torch.allclose(distance.detach(), lengths.detach()[place], atol=0):
        most = 2 * (distance - lengths[place]).detach().abs().max()
        got = f"some that differ by up to {most:.3g}; use x.maximum(x.T) of a SciPy matrix"
        raise ValueError(f"stored distances of a pair must be equal in both directions, got {got}")
    pattern = SparsePattern.trusted(keys // n, keys % n, (n,), False)
    graph = Graph.trusted(pattern, directions.to(lengths) / 2, metric=Precomputed("distance"))
    return weights(*by_lengths(lengths, graph))._with(pattern=pattern, metric="euclidean")


def _as_tensor(x: Any) -> Tensor:
    """Return a sparse matrix as a COO or CSR tensor, not coalesced; raise TypeError for formats of other entries."""
    if getattr(x, "format", None) in ("coo", "csr", "csc", "lil", "dok") and hasattr(x, "tocoo"):
        check_entries(x, "x")
        stored = x.tocoo()
        values = torch.as_tensor(stored.data.astype(np.promote_types(stored.data.dtype, np.float32)))
        index = torch.as_tensor(np.stack([stored.row, stored.col]))
        x = torch.sparse_coo_tensor(index, values, stored.shape, check_invariants=False)
    if getattr(x, "layout", None) not in (torch.sparse_coo, torch.sparse_csr):
        expected = "a sparse matrix of stored distances, CSR or COO, which joins the pairs that it stores"
        advice = 'of all distances take neighbors=KNN(10, metric=Precomputed("distance"))'
        raise TypeError(f"x must be {expected}, got {checks.describe(x)}; {advice}")
    if not x.is_floating_point():
        raise TypeError(f"x must hold distances in float32 or float64, got {x.dtype}; use abs(x), or x.float()")
    return checks.half_to_float32(x)  # type: ignore[no-any-return]
