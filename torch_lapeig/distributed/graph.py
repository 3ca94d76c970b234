"""Graphs whose nodes lie on several ranks, given by edges or built from points by `KNN` and `Radius`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_lapeig.distributed.halo import offsets_of, owners, to_ranks
from torch_lapeig.distributed.pattern import ShardedPattern, needs_whole
from torch_lapeig.distributed.points import ShardedPoints
from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.distributed.search import ShardedSearch
from torch_lapeig.graph.graph import Graph
from torch_lapeig.graph.rules import KNN, Radius, Symmetrize, kept_edges
from torch_lapeig.graph.search.exact import radii_no_less
from torch_lapeig.support import checks
from torch_lapeig.support.cached import derived_property
from torch_lapeig.support.kinds import refuse


class ShardedGraph(Graph):
    """Graph spread over ranks: each rank stores n of its nodes, and the edges that begin there.

    `from_rows` and `sharded_graph` construct it. Weightings, `Laplacian`, `eigenpairs` and their derivatives accept it
    like any `Graph`, provided that all ranks call them. Functions that need the whole graph in one process raise
    TypeError.

    >>> from torch_lapeig import Laplacian, eigenpairs
    >>> row, col = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> path = ShardedGraph.from_rows(Ranks(), row, col, torch.ones(4), 3)
    >>> eigenpairs(Laplacian(path), 2).values.round(decimals=6) + 0
    tensor([0., 1.])
    """

    @classmethod
    def from_rows(cls, ranks: Ranks, row: Tensor, col: Tensor, weight: Tensor, nodes: int) -> ShardedGraph:
        """Return the graph of the edges of all ranks; each rank passes the edges that begin at its nodes.

        Both directions of every edge must be passed. The nodes are numbered rank by rank and stay on their ranks, so
        most neighbours should be on one rank.

        Args:
            row, col: int64 ``(E,)``, first node among this rank's ``nodes``, second node among all; each pair once.
            weight: ``(E,)``, float32 or float64, equal for both directions; gradients flow to it.
            nodes: number of nodes of this rank, ≥ 0.

        Raises: DistributedError: another rank has invalid arguments.
        """
        call = "ShardedGraph.from_rows"
        ranks.agree(call, lambda: _facts_of_rows(row, col, weight, nodes))
        offsets = offsets_of(ranks.sizes(nodes))
        ranks.agree(call, lambda: checks.check_indices(col, "col", offsets[-1]))
        order = (row * offsets[-1] + col).argsort()
        row, col, weight = row[order], col[order], weight.index_select(0, order)
        begin = offsets[ranks.rank]
        (arrived,) = to_ranks(ranks, owners(col, offsets), torch.stack([col, row + begin], 1))
        given, asked = row * offsets[-1] + col, ((arrived[:, 0] - begin) * offsets[-1] + arrived[:, 1]).sort().values
        if ranks.any(not torch.equal(given, asked)):
            message = "row and col must hold both directions of every edge once, got others; add the reversed edges"
            raise ranks.alike(ValueError(message))
        numbers = torch.arange(begin, begin + nodes, device=row.device)
        pattern = ShardedPattern(ranks, offsets, row, col, numbers)
        weight = weight.index_select(0, pattern.given_order)
        reverse = pattern.transpose(weight.detach())
        ranks.agree(call, lambda: checks.check_symmetric(weight, reverse, "weight"))
        return cls.trusted(pattern, weight)

    @derived_property
    def _components(self) -> Tensor:
        return self.pattern.components(self.weight.detach())

    to_scipy = subgraph = nodes_of_components = needs_whole


def sharded_graph(points: ShardedPoints, rule: KNN | Radius) -> ShardedGraph:
    """Return the graph of points by a rule, every edge of weight 1, or ½ where only one end chose the other ("mean").

    It equals the graph of all points by the rule on one process, up to the order of the nodes.

    Args:
        points: points spread over ranks. rule: an exact `KNN`, or `Radius`.

    >>> points = ShardedPoints.spread(torch.tensor([[0.0], [1.0], [3.0]]), Ranks())
    >>> sharded_graph(points, KNN(1)).weight.sum()
    tensor(3.)
    """
    ranks = points.ranks
    ranks.agree("sharded_graph", lambda: {"neighbors": check_rule(rule)})
    search = ShardedSearch(points, rule.metric)
    if isinstance(rule, KNN):
        k = min(rule.k, points.offsets[-1] - 1)
        found = search.nearest(k).places
        row = torch.arange(len(found), device=found.device).repeat_interleave(k)
        place = found.flatten()
    else:
        row, place, _ = search.within(radii_no_less(rule.radius, search.x, (len(search.x),)).clone())
        if not ranks.any(len(row) > 0):
            message = f"radius must reach at least one neighbour, got {rule.radius} and no edge; use a larger radius"
            raise ranks.alike(ValueError(message))
    offsets = points.offsets
    begin, total = offsets[ranks.rank], offsets[-1]
    (chosen_by,) = to_ranks(ranks, owners(place, offsets), place * total + (row + begin))
    both = torch.cat([row * total + place, chosen_by - begin * total])
    del chosen_by  # the array is as large as the graph
    keys, directions = both.sort().values.unique_consecutive(return_counts=True)
    del both
    symmetrize: Symmetrize = rule.symmetrize if isinstance(rule, KNN) else "union"
    row, place, weight = kept_edges(keys // total, keys % total, directions, symmetrize, points.x.dtype)
    pattern = ShardedPattern(ranks, offsets, row, place, points.numbers)
    return ShardedGraph.trusted(pattern, weight.index_select(0, pattern.given_order))._with(metric=rule.metric)


def _facts_of_rows(row: Tensor, col: Tensor, weight: Tensor, nodes: int) -> dict[str, Any]:
    checks.check_count(nodes, "nodes", 0)
    checks.check_indices(row, "row", nodes)
    checks.check_indices(col, "col")
    checks.check_floating(weight, "weight")
    if not row.shape == col.shape == weight.shape or row.ndim != 1:
        got = f"{tuple(row.shape)}, {tuple(col.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"row, col and weight must have the same shape (E,), got {got}")
    checks.check_finite(weight, "weight")
    checks.check_non_negative(weight, "weight")
    return checks.facts_of_rows(weight=weight)


def check_rule(rule: Any) -> Any:
    """Return a rule that finds exact neighbours on several ranks; raise for another."""
    checks.check_instance(rule, "neighbors", (KNN, Radius), "KNN(k) or Radius(r) of points on several ranks")
    refuse("Sharded", neighbors=rule)
    if isinstance(rule, KNN) and (rule.backend != "exact" or (rule.recall or 1) < 1):
        raise ValueError(f"neighbors must be an exact search on several ranks, got {rule}")
    return rule
