"""Neighbourhood graphs of one or many point sets, and the rules that build them.

A search chooses the edges without gradients; `torch_lapeig.weights` then recomputes their lengths with gradients.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csgraph, csr_array
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.neighbors import k_nearest, squared_distances, within_radius

Symmetrize = Literal["union", "mutual", "mean"]


_OF_EDGES = ("reverse", "crow", "csr_index", "csr_index_with_diagonal")


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected weighted graph, or a batch of them side by side, as edges sorted by row.

    Nodes of a batch are numbered through: node i of item b is ``b * N + i``, so that a batch is one block-diagonal
    graph and everything downstream is written once. Both directions of every edge are stored.

    Attributes:
        row: int64 ``(E,)``, first node of each edge, ascending.
        col: int64 ``(E,)``, second node of each edge, ascending within a row.
        weight: float ``(E,)``, non-negative and symmetric; carries gradients.
        shape: ``(N,)`` for one graph, ``(B, N)`` for a batch.
        mask: bool ``(B, N)``, False where a node is padding; None where all are valid.
    """

    row: Tensor
    col: Tensor
    weight: Tensor
    shape: tuple[int, ...]
    mask: Tensor | None = None

    @classmethod
    def from_dense(cls, affinity: Tensor, mask: Tensor | None = None) -> Graph:
        """The graph of a symmetric, non-negative affinity matrix; its non-zero entries are the edges.

        Args:
            affinity: ``(N, N)`` or ``(B, N, N)``, float32 or float64; gradients flow to its non-zero entries.
            mask: bool ``(B, N)`` or ``(N,)``, valid nodes; rows of the others must be zero.

        Raises:
            TypeError: not a float tensor.
            ValueError: not square, not finite, negative, or not symmetric.
        """
        _checks.check_floating(affinity, "affinity")
        if affinity.ndim not in (2, 3) or affinity.shape[-1] != affinity.shape[-2]:
            raise ValueError(f"affinity must have shape (N, N) or (B, N, N), got {tuple(affinity.shape)}")
        _checks.check_finite(affinity, "affinity")
        if (affinity < 0).any():
            raise ValueError(f"affinity must be non-negative, got a minimum of {affinity.min():.3g}")
        if not torch.allclose(affinity, affinity.mT, rtol=1e-5, atol=0):
            worst = (affinity - affinity.mT).abs().max()
            raise ValueError(
                f"affinity must be symmetric, got entries that differ from their transpose by up to {worst:.3g}; "
                "use (affinity + affinity.mT) / 2"
            )
        if mask is not None:
            _checks.check_mask(mask, affinity)
            if (affinity != 0)[~mask].any():
                raise ValueError("affinity must be zero in the rows that mask marks as padding")
        n = affinity.shape[-1]
        item, i, j = affinity.detach().reshape(-1, n, n).nonzero(as_tuple=True)
        weight = affinity.reshape(-1, n, n)[item, i, j]
        return cls(item * n + i, item * n + j, weight, tuple(affinity.shape[:-1]), mask)

    @property
    def num_nodes(self) -> int:
        """Nodes of one graph, padding included: N."""
        return self.shape[-1]

    @property
    def batch_size(self) -> int:
        """Number of graphs; 1 without a batch axis."""
        return self.total_nodes // self.num_nodes

    @property
    def total_nodes(self) -> int:
        """Nodes of all graphs of the batch together: B · N."""
        return int(np.prod(self.shape))

    @cached_property
    def reverse(self) -> Tensor:
        """int64 ``(E,)``: the position of edge (j, i) for every edge (i, j)."""
        keys = self.row * self.total_nodes + self.col
        return torch.searchsorted(keys, self.col * self.total_nodes + self.row)

    @cached_property
    def crow(self) -> Tensor:
        """int64 ``(B·N + 1,)``: where each row's edges begin."""
        return torch.searchsorted(self.row, torch.arange(self.total_nodes + 1, device=self.row.device))

    @cached_property
    def csr_index(self) -> tuple[Tensor, Tensor]:
        """``crow`` and ``col`` as int32 where that suffices: the fastest in torch's sparse products."""
        small = len(self.col) + self.total_nodes < 2**31
        index = torch.int32 if small else torch.int64
        return self.crow.to(index), self.col.to(index)

    @cached_property
    def csr_index_with_diagonal(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``crow`` and ``col`` with a diagonal entry in each row, and where the edges and the diagonal go in them."""
        node = torch.arange(self.total_nodes, device=self.row.device)
        after = (self.col > self.row).long()
        edge = torch.arange(len(self.row), device=self.row.device) + self.row + after
        diagonal = self.crow[1:] + node - torch.zeros_like(node).index_add_(0, self.row, after)
        col = self.col.new_empty(len(edge) + len(node)).index_copy_(0, edge, self.col).index_copy_(0, diagonal, node)
        crow = self.crow + torch.arange(len(self.crow), device=self.row.device)
        index = self.csr_index[0].dtype
        return crow.to(index), col.to(index), edge, diagonal

    @property
    def item(self) -> Tensor:
        """int64 ``(E,)``: the batch item of each edge."""
        return self.row // self.num_nodes

    def with_weight(self, weight: Tensor) -> Graph:
        """The same edges with other weights ``(E,)``."""
        graph = dataclasses.replace(self, weight=weight)
        # What was worked out of the edges alone holds for any weights.
        graph.__dict__.update({name: self.__dict__[name] for name in _OF_EDGES if name in self.__dict__})
        return graph

    def edges_of(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Edges that begin at ``nodes`` (int64 ``(M,)``): the position in ``nodes`` of each, and its number."""
        begin, count = self.crow[nodes], self.crow[nodes + 1] - self.crow[nodes]
        position = torch.arange(len(nodes), device=nodes.device).repeat_interleave(count)
        within = torch.arange(len(position), device=nodes.device) - (count.cumsum(0) - count)[position]
        return position, begin[position] + within

    def subgraph(self, nodes: Tensor) -> Graph:
        """One graph of ``nodes`` (int64 ``(M,)``, ascending, numbered through the batch) and the edges among them."""
        number = self.row.new_full((self.total_nodes,), -1)
        number[nodes] = torch.arange(len(nodes), device=nodes.device)
        row, edge = self.edges_of(nodes)
        col = number[self.col[edge]]
        inside = col >= 0
        return Graph(row[inside], col[inside], self.weight[edge[inside]], (len(nodes),))

    def squared_lengths(self, x: Tensor) -> Tensor:
        """Squared Euclidean edge lengths ``(E,)`` of points ``(N, D)`` or ``(B, N, D)``, with gradients.

        Raises:
            ValueError: the leading shape of ``x`` is not that of the graph.
        """
        if tuple(x.shape[:-1]) != tuple(self.shape):
            raise ValueError(f"x must have shape {(*self.shape, 'D')} to go with the graph, got {tuple(x.shape)}")
        points = x.reshape(self.total_nodes, -1)
        return (points[self.row] - points[self.col]).square().sum(-1)

    def to_dense(self) -> Tensor:
        """The affinity matrix ``(N, N)`` or ``(B, N, N)``, with gradients."""
        n, b = self.num_nodes, self.batch_size
        dense = self.weight.new_zeros(b * n * n).index_add(0, self.row * n + self.col % n, self.weight)
        return dense.reshape(*self.shape, n)

    def connected_components(self) -> Tensor:
        """Labels int64, of the shape of the graph: 0, 1, … in each item by first node; −1 for padding.

        Edges of weight zero do not connect; an isolated node is a component of its own.
        """
        return self._components

    @cached_property
    def _components(self) -> Tensor:
        # SciPy works on the CPU: only the structure of the graph goes there and back, never its values.
        keep = (self.weight.detach() > 0).cpu()
        row, col = self.row.cpu()[keep].numpy(), self.col.cpu()[keep].numpy()
        size = self.total_nodes
        structure = csr_array((np.ones(len(row), dtype=np.int8), (row, col)), shape=(size, size))
        found = csgraph.connected_components(structure, directed=False)[1]
        labels = torch.from_numpy(found.astype(np.int64)).to(self.row.device).reshape(self.batch_size, -1)
        if self.mask is not None:
            labels = torch.where(self.mask.reshape(labels.shape), labels, -1)
        return _count_from_zero(labels).reshape(self.shape)


def _count_from_zero(labels: Tensor) -> Tensor:
    """Renumber ascending labels so that each row counts 0, 1, … from its first node; −1 stays."""
    valid = labels >= 0
    number = torch.full_like(labels, -1)
    number[valid] = labels[valid].unique(return_inverse=True)[1]
    first = torch.where(valid, number, labels.numel()).amin(1, keepdim=True)
    return torch.where(valid, number - first, -1)


def _symmetrized(row: Tensor, col: Tensor, rule: Symmetrize, x: Tensor, mask: Tensor | None) -> Graph:
    """The undirected graph of directed edges (each given once), numbered through the batch."""
    shape = tuple(x.shape[:-1])
    total = int(np.prod(shape))
    both = torch.cat([row * total + col, col * total + row])
    keys, directions = both.unique(return_counts=True)  # 2 where both ends chose each other
    if rule == "mutual":
        keys, directions = keys[directions == 2], directions[directions == 2]
    weight = directions.to(x.dtype) / 2 if rule == "mean" else torch.ones_like(keys, dtype=x.dtype)
    return Graph(keys // total, keys % total, weight, shape, mask)


def _checked(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Points as ``(B, N, D)`` without gradient and their mask ``(B, N)``, after checks; padding is not looked at."""
    _checks.check_floating(x, "x")
    if mask is not None:
        _checks.check_mask(mask, x)
        x = torch.where(mask[..., None], x, 0)
    _checks.check_points(x)
    points = x.detach().reshape(-1, *x.shape[-2:])
    valid = points.new_ones(points.shape[:2], dtype=torch.bool) if mask is None else mask.reshape(points.shape[:2])
    return points, valid


@_checks.full_precision
def knn_graph(x: Tensor, k: int, *, symmetrize: Symmetrize = "union", mask: Tensor | None = None) -> Graph:
    """The symmetrised k-nearest-neighbour graph, every edge of weight 1 (½ for one-sided edges of ``"mean"``).

    Args:
        x: points ``(N, D)`` or ``(B, N, D)``, float32 or float64.
        k: neighbours of each point, 1 ≤ k < number of (valid) points. A point is never its own neighbour.
        symmetrize: ``"union"`` joins i and j if either is among the k nearest of the other (Belkin & Niyogi 2003,
            section 2), ``"mutual"`` if both are, ``"mean"`` averages the two directions.
        mask: bool ``(B, N)`` or ``(N,)``, False for padding.

    Raises:
        TypeError: wrong dtype. ValueError: wrong rank, non-finite points, k out of range, unknown rule.

    >>> knn_graph(torch.tensor([[0.0], [1.0], [3.0]]), k=1).to_dense()
    tensor([[0., 1., 0.],
            [1., 0., 1.],
            [0., 1., 0.]])
    """
    points, valid = _checked(x, mask)
    _checks.check_count(k, "k")
    _checks.check_choice(symmetrize, "symmetrize", ("union", "mutual", "mean"))
    if k >= (fewest := int(valid.sum(1).min())):
        raise ValueError(f"k must be smaller than the number of points, got k={k} with {fewest} points")
    indices, _ = k_nearest(points, k, valid)
    b, n, _ = points.shape
    node = torch.arange(b * n, device=x.device).reshape(b, n, 1)
    row = node.expand_as(indices)[valid].flatten()
    col = (indices + node[:, :1])[valid].flatten()
    return _symmetrized(row, col, symmetrize, x, mask)


@_checks.full_precision
def radius_graph(x: Tensor, radius: float, *, mask: Tensor | None = None) -> Graph:
    """The graph that joins points at distance ≤ ``radius`` (ε-neighbourhoods), every edge of weight 1.

    Args:
        x: points ``(N, D)`` or ``(B, N, D)``, float32 or float64.
        radius: Euclidean distance, positive.
        mask: bool ``(B, N)`` or ``(N,)``, False for padding.

    Raises:
        TypeError: wrong dtype. ValueError: wrong rank, non-finite points, radius ≤ 0, or no edge at all.

    >>> radius_graph(torch.tensor([[0.0], [1.0], [3.0]]), radius=1.5).to_dense()
    tensor([[0., 1., 0.],
            [1., 0., 0.],
            [0., 0., 0.]])
    """
    points, valid = _checked(x, mask)
    _checks.check_positive(radius, "radius")
    item, i, j = within_radius(points, radius, valid)
    if len(i) == 0:
        raise ValueError(f"radius must reach at least one neighbour, got {radius} and no edge; use a larger radius")
    n = points.shape[1]
    return _symmetrized(item * n + i, item * n + j, "union", x, mask)


@dataclass(frozen=True)
class KNN:
    """The rule of `knn_graph` with its arguments: ``KNN(10)(x)`` is ``knn_graph(x, 10)``."""

    k: int = 10
    symmetrize: Symmetrize = "union"

    def __post_init__(self) -> None:
        _checks.check_count(self.k, "k")
        _checks.check_choice(self.symmetrize, "symmetrize", ("union", "mutual", "mean"))

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Graph:
        """The graph of points ``(N, D)`` or ``(B, N, D)``."""
        return knn_graph(x, self.k, symmetrize=self.symmetrize, mask=mask)

    def squared_radii(self, x: Tensor) -> Tensor:
        """Squared distance ``(N,)`` of each of the points ``(N, D)`` to its k-th neighbour."""
        return k_nearest(x[None], self.k, x.new_ones(1, len(x), dtype=torch.bool))[1][0, :, -1]

    def extend(self, queries: Tensor, x: Tensor, squared_radii: Tensor) -> Tensor:
        """Connectivity ``(Q, N)`` of new points to the graph's: the same rule with the training radii.

        Query q reaches i if i is among its k nearest, and is reached by i within i's k-th radius.
        """
        d2 = squared_distances(queries, x)
        nearest = d2.topk(self.k, largest=False).indices
        chosen = torch.zeros_like(d2, dtype=torch.bool).scatter_(1, nearest, True)
        choosing = d2 <= squared_radii
        if self.symmetrize == "mean":
            return (chosen.to(x.dtype) + choosing.to(x.dtype)) / 2
        return ((chosen | choosing) if self.symmetrize == "union" else (chosen & choosing)).to(x.dtype)


@dataclass(frozen=True)
class Radius:
    """The rule of `radius_graph` with its argument: ``Radius(0.5)(x)`` is ``radius_graph(x, 0.5)``."""

    radius: float

    def __post_init__(self) -> None:
        _checks.check_positive(self.radius, "radius")

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Graph:
        """The graph of points ``(N, D)`` or ``(B, N, D)``."""
        return radius_graph(x, self.radius, mask=mask)

    def squared_radii(self, x: Tensor) -> Tensor:
        """The squared radius ``(N,)``, the same for each of the points ``(N, D)``."""
        return x.new_full((len(x),), self.radius**2)

    def extend(self, queries: Tensor, x: Tensor, squared_radii: Tensor) -> Tensor:
        """Connectivity ``(Q, N)`` of new points to the graph's: 1 within the radius."""
        return (squared_distances(queries, x) <= squared_radii).to(x.dtype)
