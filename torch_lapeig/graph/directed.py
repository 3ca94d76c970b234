"""Graphs whose weights are no affinities: weights of either sign, and weights of arcs, which have a direction.

They are built, stored and batched as a `Graph`. Functions that take a `Graph` of affinities refuse them by name.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.graph.graph import Graph
from torch_lapeig.support import checks
from torch_lapeig.support.cached import derived_property


class _OfAffinities(Graph):
    """Graph that has a `Graph` of affinities on the same edges."""

    def _check(self, name: str, slack: float = 0.0) -> None:
        if self.similarity is not None:
            raise ValueError(f"similarity must be None in a {type(self).__name__}")
        super()._check(name, slack)

    @derived_property
    def _components(self: Any) -> Tensor:
        return self.affinities().connected_components()  # type: ignore[no-any-return]


class SignedGraph(_OfAffinities):
    """Undirected graph with weights of either sign, for `SignedLaplacian`: W_ij < 0 joins nodes that are unlike.

    ``SignedGraph.from_dense``, ``from_edge_index`` and ``from_scipy`` take what those of `Graph` take, and symmetric
    weights of either sign. Components are those of the affinities |W_ij|.

    >>> friends = SignedGraph.from_dense(torch.tensor([[0.0, -2.0], [-2.0, 0.0]]))
    >>> friends.affinities().to_dense()
    tensor([[0., 2.],
            [2., 0.]])
    """

    operator = "SignedLaplacian"

    def affinities(self) -> Graph:
        """Return the graph of |W_ij|, whose gradient at a weight of 0 is 0, the mean of the one-sided derivatives."""
        self.check_again()
        return Graph.trusted(self.pattern, self.weight.abs(), self.mask)

    def _check_weights(self, name: str, allowed: float | Tensor) -> None:
        checks.check_symmetric(self.weight, self.pattern.transpose(self.weight), name, allowed)


class DirectedGraph(_OfAffinities):
    """Directed graph, for `MagneticLaplacian`: W_ij ≥ 0 is the weight of the arc from node i to node j.

    ``DirectedGraph.from_dense``, ``from_edge_index`` and ``from_scipy`` take what those of `Graph` take, except that
    each arc is given in its own direction only. ``weight`` and ``edge_index`` have both directions of every edge, the
    missing ones with weight 0. Components are those without directions.

    >>> arc = DirectedGraph.from_edge_index(torch.tensor([[0], [1]]), torch.tensor([3.0]))
    >>> arc.to_dense(), arc.affinities().weight
    (tensor([[0., 3.],
            [0., 0.]]), tensor([1.5000, 1.5000]))
    """

    operator = "MagneticLaplacian"

    def affinities(self) -> Graph:
        """Return the graph of (W + Wᵀ) / 2."""
        self.check_again()
        return Graph.trusted(self.pattern, self.weight / 2 + self.pattern.transpose(self.weight) / 2, self.mask)

    def _check_weights(self, name: str, allowed: float | Tensor) -> None:
        checks.check_non_negative(self.weight, name, allowed)

    @classmethod
    def _of_edges(
        cls, keys: Tensor, weight: Tensor, shape: tuple[int, ...], mask: Tensor | None, *names: str
    ) -> DirectedGraph:
        """Return the graph of arcs in CSR order, with the missing directions of weight 0."""
        total = math.prod(shape)
        both = torch.cat([keys, keys % total * total + keys // total]).unique()
        whole = weight.new_zeros(len(both)).index_copy(0, torch.searchsorted(both, keys), weight)
        return super()._of_edges(both, whole, shape, mask, *names)


torch.serialization.add_safe_globals([SignedGraph, DirectedGraph])
