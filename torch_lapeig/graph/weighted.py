"""Points to weighted graph: the one place where a rule and a weighting are checked and applied together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_lapeig.graph.graph import Graph
from torch_lapeig.graph.rules import NeighborRule, Precomputed, check_rule, graph_of_points
from torch_lapeig.graph.weights import HeatKernel, Weighting, check_weighting
from torch_lapeig.support import checks

Rule = NeighborRule | Precomputed


def check_rule_and_weights(neighbors: Any, weights: Any) -> Weighting | None:
    """Return the weighting of a graph's edges, `HeatKernel` where it is None; None with ``Precomputed("affinity")``.

    Raises:
        TypeError, ValueError: ``neighbors`` is neither a rule nor ``Precomputed("affinity")``, ``weights`` is no
            `Weighting`, or there is one though the affinities are given.
    """
    check_weighting(weights)
    if not isinstance(neighbors, Precomputed):
        check_rule(neighbors, ', Precomputed("affinity")')
        return HeatKernel() if weights is None else weights
    if neighbors.kind != "affinity":
        raise ValueError(f'neighbors must be Precomputed("affinity") if it is precomputed, got {neighbors}')
    if weights is not None:
        raise ValueError('weights must be None with Precomputed("affinity"); weight the graph beforehand')
    return None


def weighted_graph(neighbors: Rule, weights: Weighting | None, x: Tensor | Graph, mask: Tensor | None = None) -> Graph:
    """Return the weighted graph of points, of affinities with ``Precomputed("affinity")``, or the `Graph` given."""
    if isinstance(neighbors, Precomputed) or weights is None:
        if isinstance(x, Graph) and mask is not None:
            raise ValueError("mask must be None with a Graph, which carries its own")
        return x if isinstance(x, Graph) else Graph.from_dense(_without_padding(x, mask), mask)
    if isinstance(x, Graph):
        raise TypeError('x must be points, got a Graph; use neighbors=Precomputed("affinity")')
    return weights(x, graph_of_points(neighbors, x, mask))


def _without_padding(affinity: Any, mask: Tensor | None) -> Any:
    """Return affinities that are zero where ``mask`` marks padding, which may hold anything."""
    if mask is None or not isinstance(affinity, Tensor) or affinity.ndim not in (2, 3):
        return affinity
    checks.check_mask(mask, affinity)
    return torch.where(mask[..., :, None] & mask[..., None, :], affinity, 0)
