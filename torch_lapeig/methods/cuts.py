"""The normalised cut of a graph: its value, with gradients, and a local search for a smaller one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.graph import Graph
from torch_lapeig.graph.algebra import sum_of_groups
from torch_lapeig.graph.graph import check_graph
from torch_lapeig.support import checks, precision

SUM_TOLERANCE = 1e-3  # error of the sums of a soft assignment, or two roundings of half precision


@precision.full_precision
def normalized_cut(labels: Tensor, graph: Graph) -> Tensor:
    """Compute Σ_A cut(A, V∖A) / vol(A) over the clusters A (Shi & Malik 2000, section 2), in O(E·K).

    cut(A, V∖A) = Σ_{i∈A, j∉A} W_ij and vol(A) = Σ_{i∈A} d_i, so the value lies in [0, K] for K clusters. It is at least
    λ_1 + … + λ_K of L y = λ D y. A cluster without volume contributes 0. A batch has a value of each graph.

    Args:
        labels: integers ``(N,)`` or ``(B, N)``, 0, 1, … and −1 for nodes of no cluster, whose edges to other nodes
            count as cut; or bool, two clusters. Or soft assignments ``(N, K)`` or ``(B, N, K)``, floating,
            non-negative, with rows that sum to 1 (within 1e-3, in half precision within twice its eps; rows of padding
            are not checked). Their value is expected cut over expected volume, Σ_k h_kᵀ W (1 − h_k) / dᵀ h_k (Nazi et
            al., *GAP*, 2019).
        graph: graph of the same nodes. Gradients flow to its weights, and to soft assignments.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> normalized_cut(torch.tensor([0, 0, 1]), path)  # 1/3 + 1/1
    tensor(1.3333)
    """
    check_graph(graph, "graph", "normalized_cut")
    assignment = _assignment(labels, graph)
    pattern = graph.pattern
    volume = (pattern.sum_rows(graph.weight)[..., None] * assignment).sum(-2)
    # Sum the cut itself: the difference of volume and inner weight cancels for small cuts. A self loop is never cut.
    between = pattern.without_loops(graph.weight)
    cut = (assignment * pattern.matmul(between, 1 - assignment, is_symmetric=True)).sum(-2)
    return _over(cut, volume).sum(-1)


def _assignment(labels: Tensor, graph: Graph) -> Tensor:
    """Return soft assignments ``(..., N, K)`` unchanged, and labels as indicators of the clusters."""
    checks.check_tensor(labels, "labels")
    if not labels.dtype.is_floating_point and not labels.dtype.is_complex:
        labels = labels.long()
        if tuple(labels.shape) != tuple(graph.shape):
            raise ValueError(f"labels must have shape {graph.shape} to go with the graph, got {tuple(labels.shape)}")
        if (labels < -1).any():
            raise ValueError(f"labels must be 0, 1, … or −1 for no cluster, got a minimum of {int(labels.min())}")
        clusters = torch.arange(checks.check_classes(labels), device=labels.device)
        return (labels[..., None] == clusters).to(graph.weight.dtype)
    tolerance = max(SUM_TOLERANCE, 2 * torch.finfo(labels.dtype).eps)
    labels = checks.half_to_float32(labels)
    checks.check_floating(labels, "labels")
    if tuple(labels.shape[:-1]) != tuple(graph.shape):
        raise ValueError(f"labels must have shape {(*graph.shape, 'K')} if they are soft, got {tuple(labels.shape)}")
    checks.check_finite(labels, "labels")
    if (labels < 0).any():
        least = f"got a minimum of {labels.min():.3g}; use labels.softmax(-1) of logits"
        raise ValueError(f"labels must be non-negative if they are soft, {least}")
    sums = labels.detach().sum(-1)
    wrong = (sums - 1).abs() > tolerance
    wrong = wrong if graph.mask is None else wrong & graph.mask
    if wrong.any():
        first = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"labels must have rows that sum to one if they are soft, got a sum of {sums[first]:.4g} in row {first}; "
            "use labels / labels.sum(-1, keepdim=True), labels.softmax(-1) of logits, or labels.argmax(-1)"
        )
    return labels.to(graph.weight.dtype)


@torch.no_grad()
@precision.full_precision
def refine_cut(labels: Tensor, graph: Graph, *, rounds: int = 50) -> Tensor:
    """Return labels of a smaller normalised cut, by moves of single nodes to other clusters; never of a larger one.

    A round computes the gains of all moves at once, in O(E·K), and makes the best ones together, or the better half of
    them in the next round, and so on, until no move of one node gains anything. No cluster loses its last node that has
    an edge. Each graph of a batch is refined on its own.

    Args:
        labels: integers ``(N,)`` or ``(B, N)``, 0, 1, … and −1 for nodes of no cluster, which stay so; or bool.
        graph: graph of the same nodes.
        rounds: maximum number of rounds. Some ten suffice for a thousand nodes.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]))
    >>> refine_cut(torch.tensor([0, 1, 1, 1]), path)
    tensor([0, 0, 1, 1])
    """
    checks.check_tensor(labels, "labels")
    if labels.is_floating_point():
        way = "labels.argmax(-1) of soft ones" if labels.ndim > 1 else "labels.long()"
        raise TypeError(f"labels must be numbers of clusters, got {labels.dtype}; use {way}")
    labels = labels.long() if labels.dtype == torch.bool else labels
    checks.check_indices(labels, "labels", least=-1)
    check_graph(graph, "graph", "refine_cut")
    if not (labels >= 0).any():
        return labels.clone()
    _assignment(labels, graph)  # checks the shape
    weight = graph.weight.double()
    between = graph.pattern.without_loops(weight)
    lines = (graph.batch_size, graph.num_nodes)
    link_sums, degrees = graph.pattern.sum_rows(between).reshape(lines), graph.pattern.sum_rows(weight).reshape(lines)
    k = checks.check_classes(labels)

    def moves_of(labels: Tensor) -> Moves:
        clusters = (labels[..., None] == torch.arange(k, device=labels.device)).double()
        links = graph.pattern.matmul(between, clusters.reshape(*graph.shape, k), is_symmetric=True)
        return Moves.of(labels, links.reshape(*lines, k), link_sums, degrees)

    now = moves_of(labels.reshape(lines))
    allowed = (now.gain > 0).sum(1)
    for _ in range(checks.check_count(rounds, "rounds")):
        if not allowed.any():
            break
        rank = now.gain.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        chosen = (now.gain > 0) & (rank < allowed[:, None])
        tried = moves_of(torch.where(chosen, now.target, now.labels))
        better = (tried.cut < now.cut) & ((tried.volume > 0) == (now.volume > 0)).all(1)
        # Transposed, so that one truth value of each graph is broadcast.
        now = Moves(*(torch.where(better, new.t(), old.t()).t() for new, old in zip(tried, now, strict=True)))
        allowed = torch.where(better, (2 * allowed).minimum((now.gain > 0).sum(1)), allowed // 2)
    return now.labels.reshape(labels.shape)


class Moves(NamedTuple):
    """Partitions of B graphs into K clusters, and the gain of the best move of each node."""

    labels: Tensor  # int64 (B, N)
    cut: Tensor  # (B,), normalised
    volume: Tensor  # (B, K), the degrees of each cluster, with self loops
    gain: Tensor  # (B, N), by which the cut gets smaller if the node moves to its target, above round-off; else 0
    target: Tensor  # int64 (B, N)

    @classmethod
    def of(cls, labels: Tensor, links: Tensor, link_sums: Tensor, degrees: Tensor) -> Moves:
        """Return the moves, given the weights between each node and each cluster, and between it and all others."""
        k, own = links.shape[2], labels.clamp_min(0)
        outside = (link_sums - links.gather(2, own[..., None])[..., 0]) * (labels >= 0)
        graphs = len(labels)
        cluster = (own + k * torch.arange(graphs, device=own.device)[:, None]).flatten()
        parts = torch.stack([degrees * (labels >= 0), outside], -1).flatten(0, 1)
        volume, cut = sum_of_groups(parts, cluster, graphs * k).reshape(graphs, k, 2).unbind(-1)
        share = _over(cut, volume)
        # No other node gains anything by a move: all its links are in its cluster.
        item, node = (outside > 0).nonzero(as_tuple=True)
        link, degree, start = links[item, node], degrees[item, node][:, None], own[item, node][:, None]
        # A node that leaves its cluster cuts its links there, and no longer its links to others; one that joins does
        # the opposite.
        change = link_sums[item, node][:, None] - 2 * link
        left = (share[item] - _over(cut[item] - change, volume[item] - degree)).gather(1, start)[:, 0]
        joined = share[item] - _over(cut[item] + change, volume[item] + degree)
        best, place = joined.masked_fill(volume[item] == 0, -torch.inf).scatter(1, start, -torch.inf).max(1)
        is_last = (volume[item].gather(1, start) - degree)[:, 0] <= 1e-12 * degree[:, 0]
        gained = (left + best).masked_fill(is_last, 0)
        cut = share.sum(1)
        gain, target = torch.zeros_like(degrees), own.clone()
        gain[item, node] = torch.where(gained > 1e-12 * cut[item].clamp_min(1e-300), gained, 0)
        target[item, node] = place
        return cls(labels, cut, volume, gain, target)


def _over(cut: Tensor, volume: Tensor) -> Tensor:
    return torch.where(volume > 0, cut / torch.where(volume > 0, volume, 1), 0)
