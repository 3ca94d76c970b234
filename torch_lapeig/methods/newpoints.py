"""New points on a fitted graph: the state that a fit keeps, and the affinities of new points with fitted ones."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig.graph import Graph, Precomputed
from torch_lapeig.graph.distances import differentiable_pair_distances, measured
from torch_lapeig.graph.groups import sum_of_groups
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.rules import KNN, Extension, GraphRule, NeighborRule, Radius, check_extends, graph_with_state
from torch_lapeig.graph.weights import NewEdges, Weighting
from torch_lapeig.methods.module import warn_of_unreached
from torch_lapeig.methods.nystrom import NewAffinities
from torch_lapeig.support import checks
from torch_lapeig.support.fitted import State

# State that `fitted_graph` keeps, as part of ``FITTED``.
GRAPH_STATE = ("train_rule", "train_weighting", "train_edges", "train_connectivity")


def fitted_graph(neighbors: GraphRule, weights: Weighting | None, x: Tensor | Graph) -> tuple[Graph, State]:
    """Return the weighted graph of points ``(N, D)``, or the graph given, and the state that new points need of it."""
    if isinstance(x, Graph):
        return x, {}
    assert weights is not None
    graph, train_rule = graph_with_state(neighbors, x.detach())
    graph = graph.to_sparse()  # of a rule of the user's own
    weighted = weights(x, graph)
    counts = weighted.weight.detach() > 0  # a fitted point as a new one has no edge that underflows here
    return weighted, {
        "train_points": x,
        "train_rule": train_rule,
        "train_weighting": weights.state(x, graph),
        "train_edges": graph.edge_index,
        "train_connectivity": torch.where(counts, graph.weight, 0),
    }


def affinities_of_new(neighbors: GraphRule, weights: Weighting | None, x: Tensor, state: State) -> NewAffinities:
    """Return affinities of new points ``(Q, D)``, or given ones ``(Q, N)``; warn of points without affinities."""
    if isinstance(neighbors, Precomputed) or weights is None:
        checks.check_non_negative(x, "affinities")
        query, point = x.detach().nonzero(as_tuple=True)
        # Given affinities do not show which new points equal fitted ones.
        log_affinity, same = x[query, point].log(), query.new_full((len(x),), -1)
    else:
        query, point, connectivity, same, metric = edges_of_new(neighbors, x, state, state["train_connectivity"])
        points = measured(state["train_points"], metric)
        squared_lengths = differentiable_pair_distances(measured(x, metric), query, points, point)
        edges = NewEdges(query, point, squared_lengths, connectivity, len(x))
        log_affinity = weights.extend(edges, state["train_weighting"])
        # In a fit an edge whose weight underflows does not exist, and a node with no other edge is isolated. A fitted
        # point lacks these edges only now: the scale of a point, as in `SelfTuning`, depends on all its edges.
        weight = log_affinity.detach().exp()
        active = sum_of_groups(weight, query, len(same)) > torch.finfo(weight.dtype).tiny
        there = (same < 0)[query] | ((weight > 0) & active[query])
        log_affinity, query, point = log_affinity[there], query[there], point[there]
    warn_of_unreached(int((query.bincount(minlength=len(x)) == 0).sum()), len(x))
    return NewAffinities(log_affinity, query, point, same)


@torch.no_grad()
def edges_of_new(neighbors: NeighborRule, x: Tensor, state: State, connectivity: Tensor) -> Extension:
    """Return the edges of queries to training points; a query that equals a fitted point gets its edges."""
    points = state["train_points"].detach()
    found = extended(neighbors, x.detach(), points, state["train_rule"])
    coincides = found.same >= 0  # searches for these would find the point itself, and may resolve ties otherwise
    if not coincides.any():
        return found
    row, col = state["train_edges"]
    pattern = SparsePattern.trusted(row, col, (len(points),))
    position, edge = pattern.edges_of(found.same[coincides])
    other = ~coincides[found.query]
    return found._replace(
        query=torch.cat([found.query[other], coincides.nonzero().flatten()[position]]),
        point=torch.cat([found.point[other], pattern.col[edge].long()]),
        connectivity=torch.cat([found.connectivity[other], connectivity[edge]]),
    )


def extended(neighbors: NeighborRule, queries: Tensor, x: Tensor, state: Tensor) -> Extension:
    """Return a rule's edges of new points ``(Q, D)`` to graph points ``(N, D)``; raise unless they are an Extension."""
    found = check_extends(neighbors).extend(queries, x, state)
    if isinstance(neighbors, (KNN, Radius)):
        return found
    checks.check_instance(found, "extend of neighbors", tuple, "an Extension(query, point, connectivity, same)")
    found = Extension(*found)
    checks.check_indices(found.query, "query of the Extension", len(queries))
    checks.check_indices(found.point, "point of the Extension", len(x))
    checks.check_indices(found.same, "same of the Extension", len(x), least=-1)
    if found.same.shape != (len(queries),):
        raise ValueError(f"same of the Extension must have shape ({len(queries)},), got {tuple(found.same.shape)}")
    checks.check_floating(found.connectivity, "connectivity of the Extension")
    if not found.query.shape == found.point.shape == found.connectivity.shape:
        shapes = ", ".join(str(tuple(part.shape)) for part in found[:3])
        raise ValueError(f"query, point and connectivity of the Extension must have one shape (E,), got {shapes}")
    checks.check_distinct(found.query * len(x) + found.point, "query and point of the Extension")
    return found
