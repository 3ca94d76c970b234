"""Lengths of edges and their scales: Gaussians, m-th neighbours, medians of graphs and components."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig.graph.graph import Graph
from torch_lapeig.graph.groups import gather, kth_of_groups
from torch_lapeig.graph.logarithms import finite_log
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.support import checks

NEGLIGIBLE = 1e3  # exponent whose negative gives e to 0 in every dtype


def rescale(x: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """Return points over a power of two near each graph's largest coordinate, and the power, ``(1,)`` or ``(B, 1)``.

    A kernel that does not depend on the unit has the same values to the last bit, and neither its lengths nor their
    derivatives overflow or underflow with the unit of the points.
    """
    unit = checks.power_of_two(graph.pattern.largest(x)[..., None, :], (-2, -1))
    return x / unit, unit[..., 0]


def gaussian(graph: Graph, squared_lengths: Tensor, scale: Tensor) -> Graph:
    """Return ``graph`` with its weights times exp(−d²/scale). Edges on which the factor is zero are constant."""
    near = checks.primal(squared_lengths) <= NEGLIGIBLE * checks.primal(scale)
    # Far edges have a zero derivative, since the quotient's may be ∞.
    exponent = -torch.where(near, squared_lengths, NEGLIGIBLE) / torch.where(near, scale, 1)
    exponent = checks.finite_gradient(exponent)
    log_weight: Tensor | None = exponent
    if has_differentiable_zeros(graph):
        log_weight = None
    elif graph.weight.requires_grad or checks.is_dual(graph.weight):
        log_weight = exponent + (finite_log(graph.weight) if graph.log_weight is None else graph.log_weight)
    return graph._with(weight=graph.weight * exponent.exp(), log_weight=log_weight)


def has_differentiable_zeros(graph: Graph) -> bool:
    """Return whether derivatives may be asked for in weights of 0, which cannot pass through a logarithm."""
    w = graph.weight
    return graph.log_weight is None and (w.requires_grad or checks.is_dual(w)) and bool((w.detach() == 0).any())


def lengths_by_node(squared_lengths: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """Return squared lengths of the edges of positive weight between distinct nodes, and the first node of each."""
    pattern = graph.pattern
    if isinstance(pattern, SparsePattern):
        proper = pattern.without_loops(graph.weight.detach()).nonzero().flatten()
        return squared_lengths[proper], pattern.row[proper].long()
    n = graph.num_nodes
    item, i, j = pattern.without_loops(graph.weight.detach()).reshape(-1, n, n).nonzero(as_tuple=True)
    return squared_lengths.reshape(-1, n, n)[item, i, j], item * n + i


def local_scales(squared_lengths: Tensor, node: Tensor, total: int, m: int) -> Tensor:
    """Return σ ``(total,)`` of each node: the length of its m-th shortest edge, or of its longest; 1 without edges."""
    squared = kth_of_groups(squared_lengths, node, total, m)
    if (squared <= 0).any():
        raise ValueError(
            f"m={m} neighbours of node {int((squared <= 0).nonzero()[0])} are copies of it, so that its scale is 0; "
            "use a larger m, or remove duplicates"
        )
    return squared.sqrt()


def median_at_nodes(squared_lengths: Tensor, graph: Graph, group: Tensor, total: int) -> Tensor:
    """Return the lower median of the squared edge lengths of each of ``total`` groups of nodes, at its nodes."""
    pattern = graph.pattern
    lengths, node = lengths_by_node(squared_lengths, graph)
    of_edge = group.flatten()[node]
    medians = pattern.medians(lengths, of_edge, total)
    none = medians <= 0

    def warn() -> None:
        checks.warn(
            f"at least half of the edges join copies of the same point in {int(none.sum())} of {total} "
            "graphs or components: their bandwidth is the median of the positive lengths; set t, or remove duplicates",
            checks.GraphWarning,
        )

    checks.later(none.any(), warn)
    if none.any():
        positive = (lengths.detach() > 0).nonzero().flatten()
        medians = torch.where(none, pattern.medians(lengths[positive], of_edge[positive], total), medians)
    # Sums over edges and nodes that overflow would cancel to NaN.
    return checks.finite_gradient(gather(checks.finite_gradient(medians), group.flatten()).reshape(group.shape))
