"""What new points need of fitted ones, each rank having that of its own points; and how it is kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._fitted import State
from torch_lapeig.distributed.dtensors import by_number
from torch_lapeig.distributed.graph import ShardedGraph, sharded_graph
from torch_lapeig.distributed.newpoints import extension, fetched, with_own_edges
from torch_lapeig.distributed.points import ShardedPoints
from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.distributed.search import Search
from torch_lapeig.eigen import Laplacian
from torch_lapeig.graph import KNN, Radius
from torch_lapeig.graph.distances import (
    differentiable_pair_distances,
    least_reach,
    measured,
    pair_distances,
    radii_no_less,
    roots_no_less,
)
from torch_lapeig.graph.weights import NewEdges
from torch_lapeig.methods import SpectralClustering
from torch_lapeig.methods.module import Embedding, warn_of_unreached
from torch_lapeig.methods.newpoints import are_in_fit
from torch_lapeig.methods.nystrom import nystrom

# Of a state dict: with a row for each point, in the order of their numbers, and the same on every rank.
ROWS = ("train_points", "train_vectors", "train_weighting", "train_degrees", "embedding_", "labels_")
SMALL = ("eigenvalues_", "residuals_", "gap_", "cluster_centers_", "cluster_axes_")


class ShardedFit:
    """Fitted points on the ranks where they are worked on.

    Args:
        graph: of the points by the module's rule, before it was weighted.
        nodes: of own points: ``train_vectors``, ``train_weighting``, ``train_degrees`` where the method has them.
    """

    def __init__(
        self,
        module: Any,
        points: ShardedPoints,
        graph: ShardedGraph,
        nodes: State,
        eigenvalues: Tensor,
    ) -> None:
        self.module, self.points, self.nodes = module, points, nodes
        self.eigenvalues = eigenvalues.masked_fill(eigenvalues.isinf(), 0)
        self.pattern: Any = graph.pattern
        self.connectivity = graph.weight
        self.rule: KNN | Radius = module.neighbors
        self.search = Search(points, self.rule.metric)
        if isinstance(self.rule, KNN):
            self.reach = self._reach(min(self.rule.k, points.offsets[-1] - 1))
        else:
            self.reach = radii_no_less(self.rule.radius, points.x, (len(points.x),)).clone()

    def _reach(self, k: int) -> Tensor:
        """The distance of each own point to its k-th neighbour, as `torch_lapeig.graph.KNN` keeps it."""
        own = self.search.x
        number, others = fetched(self.search, self.search.nearest(k).places[:, -1], own)
        reach = roots_no_less(pair_distances(own, torch.arange(len(own), device=own.device), others, number))
        return reach.clamp_min(least_reach(self.rule.metric, own.dtype))

    @classmethod
    def of(
        cls,
        module: Any,
        points: ShardedPoints,
        graph: ShardedGraph,
        laplacian: Laplacian,
        found: Embedding,
        pairs: Any,
    ) -> ShardedFit:
        """That of an embedding."""
        is_njw = getattr(module, "variant", "") == "njw"
        nodes = {
            "train_vectors": pairs[-1].vectors if is_njw else found.columns,
            "train_weighting": module.weights.state(points.x, graph),
        }
        if laplacian.normalization == "symmetric":
            nodes["train_degrees"] = laplacian.degrees
        return cls(module, points, graph, nodes, found.eigenvalues)

    @classmethod
    def loaded(cls, module: Any, ranks: Ranks, rows: State, small: State) -> ShardedFit:
        """That of rows as ``kept`` has them, in equal parts on these ranks, however many have kept them."""
        points = ShardedPoints.spread(rows["train_points"], ranks)
        nodes = {name: points.here(rows[name]) for name in ROWS[1:4] if name in rows}
        return cls(module, points, sharded_graph(points, module.neighbors), nodes, small["eigenvalues_"])

    def kept(self, more: State) -> State:
        """Rows of a state dict: equal parts of all, in the order of their numbers; ``more``: of own points too."""
        every = {"train_points": self.points.x, **self.nodes, **more}
        return {name: by_number(self.points, rows) for name, rows in every.items()}

    def rows_of(self, x: Tensor) -> Tensor:
        """The rows of new points, as `GraphEmbedding` extends its own."""
        x, nodes = measured(x, self.rule.metric), self.nodes
        edges = extension(self.search, self.rule, _checks.primal(x), self.reach)
        edges = with_own_edges(edges, self.pattern, self.connectivity)
        degrees = nodes.get("train_degrees")
        kept = (measured(self.points.x, self.rule.metric), nodes["train_weighting"], nodes["train_vectors"])
        kept = kept if degrees is None else (*kept, degrees)  # type: ignore[assignment]
        number, points, weighting, vectors, *rest = fetched(self.search, edges.place, *kept)
        lengths = differentiable_pair_distances(x, edges.query, points, number)
        new = NewEdges(edges.query, number, lengths, edges.connectivity, len(x))
        log_affinity = self.module.weights.extend(new, weighting)
        there = are_in_fit(log_affinity.detach(), edges.query, edges.same)
        query = edges.query[there]
        warn_of_unreached(int((query.bincount(minlength=len(x)) == 0).sum()), len(x))
        rows = nystrom(
            log_affinity[there],
            query,
            number[there],
            len(x),
            vectors,
            self.eigenvalues,
            normalized=self.module._normalization != "unnormalized",
            degrees=rest[0] if rest else None,
        )
        return self.module._rows(rows) if isinstance(self.module, SpectralClustering) else rows
