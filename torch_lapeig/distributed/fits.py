"""State of a fit that new points need, distributed by points, and its form in a state dict."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.distributed.dtensors import by_number
from torch_lapeig.distributed.graph import ShardedGraph, sharded_graph
from torch_lapeig.distributed.halo import Halo, owners, to_ranks
from torch_lapeig.distributed.points import ShardedPoints
from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.distributed.search import ShardedSearch
from torch_lapeig.graph import KNN, SparsePattern
from torch_lapeig.graph.search.exact import least_reach, measured, radii_no_less, roots_no_less
from torch_lapeig.support import checks
from torch_lapeig.support.fitted import State

# Entries of a state dict: tensors with a row for each point, in the order of numbers; tensors equal on every rank.
ROWS = ("train_points", "train_vectors", "train_weighting", "train_degrees", "train_noise", "embedding_", "labels_")
SMALL = ("eigenvalues_", "residuals_", "gap_", "cluster_centers_", "cluster_axes_")


class ShardedFit:
    """Fitted points spread over the ranks, their unweighted graph, and the node values that new points need."""

    def __init__(
        self, module: Any, points: ShardedPoints, graph: ShardedGraph, nodes: State, eigenvalues: Tensor
    ) -> None:
        self.module, self.points, self.nodes = module, points, nodes
        self.eigenvalues = eigenvalues.masked_fill(eigenvalues.isinf(), 0)
        self.pattern: Any = graph.pattern
        self.connectivity = graph.weight
        self.search = ShardedSearch(points, module.neighbors.metric)
        # The reach of each own point: the state of `torch_lapeig.graph.KNN` and `Radius`.
        rule, own = module.neighbors, self.search.x
        if isinstance(rule, KNN):
            farthest = self.search.nearest(min(rule.k, points.offsets[-1] - 1)).squared_distances[:, -1]
            self.reach = roots_no_less(farthest).clamp_min(least_reach(rule.metric, own.dtype))
        else:
            self.reach = radii_no_less(rule.radius, own, (len(own),)).clone()

    @classmethod
    def loaded(cls, module: Any, ranks: Ranks, rows: State, small: State) -> ShardedFit:
        """Return the fit of rows in the form of ``kept``, in equal parts on these ranks."""
        full = {name: checks.half_to_float32(value) for name, value in {**rows, **small}.items()}
        points = ShardedPoints.spread(full["train_points"], ranks)
        nodes = {name: points.here(full[name]) for name in ROWS[1:5] if name in full}
        return cls(module, points, sharded_graph(points, module.neighbors), nodes, full["eigenvalues_"])

    def kept(self, more: State) -> State:
        """Return rows for a state dict, in equal parts in the order of numbers; ``more``: further rows of points."""
        every = {"train_points": self.points.x, **self.nodes, **more}
        return {name: by_number(self.points, rows) for name, rows in every.items()}

    def rows_of(self, x: Tensor) -> Tensor:
        """Return the rows of new points, to which the method extends the nearby part of its fit."""
        state = self._part_near(checks.primal(x))
        if len(x) == 0:
            return x.sum(1, keepdim=True) * self.eigenvalues
        return self.module._extend_in_blocks(x, state)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _part_near(self, x: Tensor) -> State:
        """Return the fit of the points to which new points may be joined, in the order of their numbers."""
        rule, ranks, offsets = self.module.neighbors, self.points.ranks, self.points.offsets
        queries = measured(x, rule.metric)
        _, reached, is_equal = self.search.within(self.reach, queries)
        ends, connectivity = self._edges_of(reached[is_equal].unique())
        near = [reached, ends.flatten(), torch.arange(2, device=x.device)]  # a fit has at least two points
        if isinstance(rule, KNN):
            near.append(self.search.nearest(min(rule.k, offsets[-1]), queries).places.flatten())
        place = torch.cat(near).unique()
        own = {"numbers": self.points.numbers, "train_points": self.points.x, "train_rule": self.reach, **self.nodes}
        halo = Halo(ranks, offsets, place)
        part = {name: halo.fetch(rows) for name, rows in own.items()}
        order = part.pop("numbers").argsort()
        state = {name: rows[order] for name, rows in part.items()}
        row, col = order.argsort()[torch.searchsorted(place, ends)].unbind(1)
        edges = (row * len(place) + col).argsort()
        state |= {"train_edges": torch.stack([row, col])[:, edges], "train_connectivity": connectivity[edges]}
        return state | {"embedding_": state["train_vectors"], "train_eigenvalues": self.eigenvalues}

    def _edges_of(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return edges that begin at ascending places on any rank: both ends, int64 ``(E, 2)``, and connectivity."""
        pattern, ranks, offsets = self.pattern, self.points.ranks, self.points.offsets
        begin, rank = offsets[ranks.rank], torch.full_like(places, ranks.rank)
        asked, source = to_ranks(ranks, owners(places, offsets), places, rank)
        position, edge = SparsePattern.edges_of(pattern, asked - begin)
        every = torch.cat([torch.arange(begin, begin + pattern.total, device=edge.device), pattern.halo.needed])
        ends = torch.stack([asked[position], every[pattern.col[edge].long()]], 1)
        found, connectivity = to_ranks(ranks, source[position], ends, self.connectivity[edge])
        return found, connectivity


def centres_or_axes(module: Any, points: ShardedPoints, rows: Tensor, eigenvalues: Tensor) -> Tensor:
    """Return centres ``(c, k)`` or axes ``(k, c)`` that label rows ``(n, k)``, found on the first rank."""
    ranks, given = points.ranks, points.home(rows)
    whole = ranks.to_first(given, ranks.sizes(len(given)))

    def found() -> Tensor:
        fitted = copy.copy(module)
        fitted.embedding_, fitted.eigenvalues_ = whole, eigenvalues
        return fitted._parted(np.random.RandomState(module.seed))  # type: ignore[no-any-return]

    return ranks.of_first(found).to(rows.device)  # type: ignore[no-any-return]
