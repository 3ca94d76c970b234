"""New points on a fitted graph: the state that a fit keeps, their affinities, and Nyström's formula.

One formula serves Laplacian eigenmaps, classical scaling, Isomap, LLE and kernel PCA (Bengio et al., NIPS 2003,
"Out-of-sample extensions for LLE, Isomap, MDS, eigenmaps, and spectral clustering"), y_k(x) = (1/λ_k) Σ_i K̃(x, i) v_ik;
they differ in the kernel:

| method | K̃(x, i) | eigenvalue |
|---|---|---|
| Laplacian eigenmaps | W(x, i) / D(x), see `nystrom` | 1 − λ |
| MDS, Isomap | −½ d² centred, d Euclidean or geodesic, see `kernels.centred` | of the training kernel |
| kernel PCA | K centred | of the training kernel |
| LLE | weights that reconstruct x from its neighbours | 1 |
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.graph import Graph, Precomputed
from torch_lapeig.graph.distances import differentiable_pair_distances, measured
from torch_lapeig.graph.groups import segment_logsumexp, sum_of_groups
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.rules import KNN, Extension, GraphRule, NeighborRule, Radius, check_extends, graph_with_state
from torch_lapeig.graph.weights import NewEdges, Weighting
from torch_lapeig.support import checks, precision
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


class NewAffinities(NamedTuple):
    """Affinities between new points and fitted points."""

    log_affinity: Tensor  # (E,), with gradients
    query: Tensor  # int64 (E,), the new point of each
    point: Tensor  # int64 (E,), the fitted point of each
    same: Tensor  # int64 (Q,), the fitted point that a new point equals, or −1


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


def warn_of_unreached(unreached: int, queries: int) -> None:
    """Warn of new points that no edge of the graph reaches."""
    if unreached > 0:
        checks.warn(
            f"{unreached} of {queries} new points have no neighbour in the graph: their rows are zero; use more "
            "neighbours or a larger radius",
            checks.GraphWarning,
        )


def nystrom(
    new: NewAffinities,
    embedding: Tensor,  # Y (N, k)
    eigenvalues: Tensor,  # λ (k,), or (N, k) if training points belong to separate problems
    *,
    normalized: bool = True,
    degrees: Tensor | None = None,  # d (N,) if Y has the eigenvectors of L_sym
    off: Tensor | None = None,  # (k, k) or (N, k, k) off the diagonal of Λ: 0, with derivatives at equal eigenvalues
    noise: Tensor | None = None,  # (N,), the error of λ at each training point, for L y = λ y
) -> Tensor:
    """Return Laplacian eigenmaps of new points: solve the row of the eigenproblem at x for y(x).

    For the generalised problem L y = λ D y (``normalized``) the solution is

        y(x) = Σ_i P(x, i) y_i / (1 − λ),   P(x, i) = W(x, i) / D(x),   D(x) = Σ_i W(x, i),

    Nyström's formula with the kernel in random-walk form (Bengio et al. 2003, equations 6 and 9). The form of that
    paper has v = D^½ y, the eigenvectors of L_sym, and W(x, i) / (D(x) d_i)^½ instead of P (``degrees``). For L y = λ y
    the solution is y(x) = Σ_i W(x, i) y_i / (D(x) − λ). At a training point each formula is the point's own row of the
    problem and returns its row of Y.

    Rows are zero without any weight. If the formula divides by less than 1e-3 of D(x), or by the error of λ, they are
    the training row of a training point, and zero, with a `GraphWarning`, for another query.
    """
    log_affinity, query, point, same = new
    num_queries, is_known = len(same), same >= 0
    total = segment_logsumexp(log_affinity, query, num_queries)
    level = torch.where(total.isinf(), 0, total)
    share = scaled = torch.where(log_affinity.isinf(), 0, (log_affinity - level[query]).exp())
    edge_values = eigenvalues if eigenvalues.ndim == 1 else eigenvalues[point]
    error = edge_values.new_zeros(1) if noise is None else noise[point]
    degree = total.new_ones(1, 1) if normalized else total[query].exp()[:, None]
    small, growth, inverse = growth_of(degree, edge_values, error[:, None])
    far = total.isfinite() & (total < math.log(torch.finfo(total.dtype).tiny))
    if far.any():
        checks.warn(
            f"{int(far.sum())} of {len(total)} new points are so far away that all their affinities underflow: their "
            "rows are those of the nearest training points (over 1 − λ)",
            checks.GraphWarning,
        )
    if degrees is not None:  # D(x)^½ / d_i^½, by logarithms; 0 for a training point without edges, whose row is zero
        root = torch.where(degrees > 0, torch.where(degrees > 0, degrees, 1).log() / 2, torch.inf)
        scaled = share * ((level / 2)[query] - root[point]).exp()
    grown = embedding.index_select(0, point) * growth
    if off is not None:  # y D (F + F E F + F E F E F + …), F = (D − λ)⁻¹; later terms vanish to second order
        off = off if off.ndim == 2 else off[point]
        once = precision.matmul(grown[:, None], off)[:, 0] * inverse
        grown = grown + once + precision.matmul(once[:, None], off)[:, 0] * inverse
    rows = sum_of_groups(scaled[:, None] * grown, query, num_queries)
    # An eigenvalue of 0 may be one of round-off, at a training point of so small a degree.
    faint = is_known[query] & (total.exp()[query] < 1e3 * error)
    if not (small.any() or faint.any()):
        return rows
    lost = sum_of_groups(((small | faint[:, None]) & (share > 0)[:, None]).to(rows.dtype), query, num_queries) > 0
    if (lost & ~is_known[:, None]).any():
        checks.warn(
            "an eigenvalue too close to the degree of a new point cannot be extended to it (Nyström divides by "
            "1 − λ / D): zero is returned there; use fewer components or fewer neighbours",
            checks.GraphWarning,
        )
    return torch.where(lost & is_known[:, None], embedding[same.clamp_min(0)], rows)


def growth_of(degree: Tensor, eigenvalues: Tensor, error: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where divisors are tiny, and D / (D − λ) and 1 / (D − λ), zero there."""
    # 1 / (1 − λ / D) as D / (D − λ), which is 1 for λ = 0 and does not overflow where D is tiny.
    degree = torch.where(eigenvalues == 0, 1, degree)
    # Where 1 − λ / D is smaller, the formula divides by almost nothing, or by the error of λ.
    small = (degree - eigenvalues).abs() < torch.where(eigenvalues == 0, 0, 1e3 * error).maximum(1e-3 * degree)
    rest, info = torch.where(small, 1, degree - eigenvalues), torch.finfo(degree.dtype)
    overflows = rest.abs() < info.tiny / info.eps
    inverse = torch.where(small | overflows, 0, 1 / torch.where(overflows, 1, rest))
    return small, torch.where(small, 0, degree / rest), inverse
