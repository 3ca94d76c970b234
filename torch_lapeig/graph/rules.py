"""Rules that turn points into neighbourhood graphs, and extend the graphs to new points.

A rule is any object that is called as a `NeighborRule`. A rule that also has the methods of an `ExtendingRule` embeds
new points. The search chooses the edges without gradients; weightings compute their lengths again with gradients.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.graph.algebra import both_ways
from torch_lapeig.graph.distances import Precomputed as Precomputed
from torch_lapeig.graph.distances import blocks_of_rows, check_all_stored, check_metric, distances
from torch_lapeig.graph.graph import WITHOUT_MASK, Graph, check_graph
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.search import neighbors as search
from torch_lapeig.graph.search.exact import (
    COORDINATES,
    Metric,
    least_reach,
    pair_distances,
    radii_no_less,
    roots_no_less,
)
from torch_lapeig.graph.stored import weighted_by_stored
from torch_lapeig.graph.weights import HeatKernel, Weighting, check_weighting
from torch_lapeig.support import checks, precision

Symmetrize = Literal["union", "mutual", "mean"]
MOST_NME_POINTS = 1000  # of larger sets `NME` looks at every second, third, … point

# First and second nodes b * N + i of the edges from points to neighbours, int64 ``(E,)``, and the recall of the search.
DirectedEdges = tuple[Tensor, Tensor, float]


def _undirected_graph(
    edges: DirectedEdges, rule: KNN | Radius, x: Tensor, mask: Tensor | None, self_loops: bool = False
) -> Graph:
    """Return the undirected graph of directed edges of points; raise ValueError where a radius gives one set none."""
    shape, (row, col, recall) = tuple(x.shape[:-1]), edges
    if isinstance(rule, Radius) and len(row) == 0 and x.ndim == 2:
        raise ValueError(f"radius must reach at least one neighbour, got {rule.radius}; use a larger radius")
    total = math.prod(shape)
    if self_loops:
        node = torch.arange(total, device=x.device) if mask is None else mask.flatten().nonzero().flatten()
        row, col = torch.cat([row, node]), torch.cat([col, node])
    row, col, weight = kept_edges(*both_ways(row, col, total), rule.symmetrize, x.dtype)
    pattern = SparsePattern.trusted(row, col, shape, self_loops)
    return Graph.trusted(pattern, weight, mask, metric=rule.metric, recall=recall)


def kept_edges(
    row: Tensor, col: Tensor, directions: Tensor, symmetrize: Symmetrize, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, columns and weights ``(E,)`` of the edges of `both_ways` that ``symmetrize`` keeps."""
    if symmetrize == "mutual":
        chosen = (directions == 2).nonzero().flatten()
        row, col = row.index_select(0, chosen), col.index_select(0, chosen)
    weight = directions.to(dtype) / 2 if symmetrize == "mean" else torch.ones_like(row, dtype=dtype)
    return row, col, weight


def knn_graph(
    x: Tensor,
    k: int,
    *,
    symmetrize: Symmetrize = "mean",
    mask: Tensor | None = None,
    metric: Metric = "euclidean",
    self_loops: bool = False,
    backend: search.Backend = "exact",
    recall: float | None = None,
) -> Graph:
    """Build the symmetrised k-nearest-neighbour graph, every edge of weight 1 (½ where only one end chose the other).

    Args:
        x: points ``(N, D)`` or ``(B, N, D)``, float32 or float64.
        k, symmetrize, metric, backend, recall: as for `KNN`.
        mask: bool ``(B, N)`` or ``(N,)``, False for padding.
        self_loops: add an edge of weight 1 from each point to itself.

    >>> knn_graph(torch.tensor([[0.0], [1.0], [3.0]]), k=1).to_dense()
    tensor([[0.0000, 1.0000, 0.0000],
            [1.0000, 0.0000, 0.5000],
            [0.0000, 0.5000, 0.0000]])
    """
    checks.check_flag(self_loops, "self_loops")
    return _graph_of(KNN(k, symmetrize, metric, backend, recall), x, mask, self_loops)


@precision.full_precision
def _graph_of(rule: KNN | Radius, x: Tensor, mask: Tensor | None, self_loops: bool = False) -> Graph:
    if rule.metric not in COORDINATES:
        return _by_rows(rule, x, mask, self_loops)[0]
    if isinstance(rule, KNN):
        edges = _directed_edges(search.nearest_or_all(x, rule.k, rule.metric, mask, rule.backend, rule.recall), mask)
    else:
        found = search.radius_neighbors(x, rule.radius, metric=rule.metric, mask=mask)
        start = found.item * x.shape[-2]
        edges = start + found.query, start + found.point, 1.0
    return _undirected_graph(edges, rule, x, mask, self_loops)


def _directed_edges(found: search.Neighbors, mask: Tensor | None) -> DirectedEdges:
    """Return the edges from each valid point to its neighbours at finite distance."""
    n, k = found.indices.shape[-2:]
    indices = found.indices.reshape(-1, n, k)
    node = torch.arange(len(indices) * n, device=indices.device).reshape(-1, n, 1)
    row, col = node.expand_as(indices), indices + node[:, :1]
    if mask is None and n > k:
        return row.flatten(), col.flatten(), found.recall
    there = found.squared_distances.isfinite().reshape(row.shape)
    there = there if mask is None else there & mask.reshape(-1, n, 1)
    return row[there], col[there], found.recall


def radius_graph(
    x: Tensor, radius: float, *, mask: Tensor | None = None, metric: Metric = "euclidean", self_loops: bool = False
) -> Graph:
    """Build the graph that joins points at distance ≤ ``radius`` (ε-neighbourhoods), every edge of weight 1.

    Args:
        radius, metric: as for `Radius`.
        x, mask, self_loops: as for `knn_graph`.

    Raises: ValueError: a radius that reaches no neighbour in a single set of points.

    >>> radius_graph(torch.tensor([[0.0], [1.0], [3.0]]), radius=1.5).to_dense()
    tensor([[0., 1., 0.],
            [1., 0., 0.],
            [0., 0., 0.]])
    """
    checks.check_flag(self_loops, "self_loops")
    return _graph_of(Radius(radius, metric), x, mask, self_loops)


class Extension(NamedTuple):
    """Edges between new points and the points of a graph.

    A query that equals a point of the graph has the edges of that point.

    Attributes:
        query, point: int64 ``(E,)``, the number of the new point and of the graph's point, each pair once.
        connectivity: ``(E,)``, of the points' dtype: 1, or ½ for one-sided edges of ``symmetrize="mean"``.
        same: int64 ``(Q,)``, the point that equals a query (the first of several), or −1.
        metric: defines the lengths of the edges, as `Graph.metric` does.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> new = Radius(1.0).extend(torch.tensor([[3.0], [0.5]]), x, torch.ones(3))
    >>> # the first query equals point 2
    >>> new.query.tolist(), new.point.tolist(), new.same.tolist()
    ([0, 1, 1], [2, 0, 1], [2, -1])
    """

    query: Tensor
    point: Tensor
    connectivity: Tensor
    same: Tensor
    metric: Metric = "euclidean"


@runtime_checkable
class NeighborRule(Protocol):
    """Rule of a method's graph: `KNN`, `Radius`, or a function or object of the user's own.

    The search runs without gradients; the weighting computes the lengths of the edges again, with gradients. A method
    with such a rule embeds the points of its graph. To embed new points the rule must be an `ExtendingRule`.

    >>> from torch_lapeig import LaplacianEigenmaps
    >>> # joins each point to the next one, and the last to the first
    >>> def ring(x, mask=None):
    ...     node = torch.arange(len(x))
    ...     edges = torch.stack([node, node.roll(-1)])
    ...     ones = torch.ones(2 * len(x), dtype=x.dtype)
    ...     return Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), ones)
    >>> angle = torch.arange(12, dtype=torch.float64) * torch.pi / 6
    >>> x = torch.stack([angle.cos(), angle.sin()], 1)
    >>> LaplacianEigenmaps(2, ring)(x).shape
    torch.Size([12, 2])
    """

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Graph:
        """Return the graph of points ``(N, D)`` or ``(B, N, D)``, float32 or float64.

        The weights of the graph are the connectivity, at most 1, in the dtype of ``x``; the weighting multiplies them.
        ``mask`` is None, or bool ``(N,)`` or ``(B, N)``, False for padding, which must have no edges. A method raises
        ValueError for a graph with another number of nodes, another mask or edges at padding.
        """
        ...


@runtime_checkable
class ExtendingRule(NeighborRule, Protocol):
    """A `NeighborRule` that also joins new points to the points of its graph, as `KNN` and `Radius` do.

    Methods keep the state of a fit in their ``state_dict`` and hand it to ``extend`` together with the points.

    >>> from torch_lapeig import HeatKernel, LaplacianEigenmaps
    >>> class Stretched:  # neighbours after the coordinates are multiplied by numbers
    ...     rule, scale = KNN(8), torch.tensor([1.0, 3.0], dtype=torch.float64)
    ...
    ...     def __call__(self, x, mask=None):
    ...         return self.rule(x * self.scale, mask)
    ...
    ...     def with_state(self, x):
    ...         return self.rule.with_state(x * self.scale)
    ...
    ...     def extend(self, queries, x, state):
    ...         return self.rule.extend(queries * self.scale, x * self.scale, state)
    >>> x = torch.rand(100, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> module = LaplacianEigenmaps(2, Stretched(), HeatKernel(0.02)).fit(x)
    >>> torch.allclose(module.transform(x[:5]), module.embedding_[:5])
    True
    """

    def with_state(self, x: Tensor) -> tuple[Graph, Tensor]:
        """Return the graph of points ``(N, D)``, and each point's state for ``extend``: ``(N,)`` or ``(N, s)``."""
        ...

    def extend(self, queries: Tensor, x: Tensor, state: Tensor) -> Extension:
        """Return the edges of new points ``(Q, D)`` to the graph's points ``(N, D)``, given the state of the latter."""
        ...


def check_rule(neighbors: Any, others: str = "") -> None:
    """Raise TypeError, which names ``others`` as accepted too, unless a rule is called as a `NeighborRule` is."""
    function = neighbors.forward if isinstance(neighbors, torch.nn.Module) else neighbors
    try:
        named = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # not callable, or not a function of Python
        named = set()
    if isinstance(neighbors, type) or "mask" not in named:
        expected = f"KNN(k), Radius(r){others} or another NeighborRule, called as neighbors(x, mask)"
        raise TypeError(f"neighbors must be {expected}, got {checks.describe(neighbors)}")


def graph_with_state(neighbors: Any, x: Tensor) -> tuple[Graph, Tensor]:
    """Return the graph of points ``(N, D)`` and the rule's state, zeros ``(N,)`` for a rule that does not extend."""
    if not isinstance(neighbors, ExtendingRule):
        return _check_graph_of(neighbors(x, None), x, None), x.new_zeros(len(x))
    graph, state = neighbors.with_state(x)
    checks.check_tensor(state, "state of neighbors")
    if state.shape[:1] != x.shape[:1]:
        raise ValueError(f"state of neighbors must have a row for each of {len(x)} points, got {tuple(state.shape)}")
    return _check_graph_of(graph, x, None), state


def _check_graph_of(graph: Any, x: Tensor, mask: Tensor | None) -> Graph:
    """Return a rule's graph in the dtype and with the mask of the points; raise unless it is a graph of the points."""
    if not isinstance(graph, Graph):
        raise TypeError(f"neighbors must give a Graph of the points, got {checks.describe(graph)}")
    name = "the graph of neighbors"
    check_graph(graph, name)
    if tuple(graph.shape) != (shape := tuple(x.shape[:-1])):
        raise ValueError(f"neighbors must give a graph of shape {shape}, one node for each point, got {graph.shape}")
    checks.check_same_device(graph.weight, name, x, "x")
    found = graph if graph.weight.dtype == x.dtype else graph.to(x.dtype)
    if mask is None or found.mask is mask:
        return found
    if found.mask is not None and not torch.equal(found.mask, mask):
        raise ValueError(f"{name} must have the mask of the points, got another mask")
    found = found._with(mask=mask)
    found._check_padding(name)
    return found


class _OfPoints:
    """Steps that `KNN` and `Radius` share."""

    def __call__(self: Any, x: Tensor, mask: Tensor | None = None) -> Graph:
        """Return the graph of points ``(N, D)`` or ``(B, N, D)``; see `NeighborRule`."""
        return _graph_of(self, x, mask)

    def extend(self: Any, queries: Tensor, x: Tensor, state: Tensor) -> Extension:
        """Return the edges of new points ``(Q, D)`` to the graph's points ``(N, D)``, with the state of `with_state`.

        `Radius` joins points within the radius. With `KNN`, query q reaches point i if i is among the k nearest of q; i
        reaches q if q is no farther than i's own k-th neighbour. ``symmetrize`` combines these two directions. The
        search is exact, for every backend.
        """
        if self.metric not in COORDINATES:
            found = distances(self.metric, queries, x)
            chosen, reached, least = self._chosen(found), found <= state[:, 0], found.amin(1, keepdim=True)
            query, point = (chosen | reached).nonzero(as_tuple=True)
            directions = (chosen.int() + reached)[query, point]
            # A point that is as near as points are to themselves, by round-off; the first of equal ones.
            same = torch.where(least[:, 0] <= 2 * state[:, 1].amax(), (found == least).int().argmax(1), -1)
        else:
            within = search.radius_neighbors(x, state, queries, metric=self.metric)
            keys, every = within.query * len(x) + within.point, torch.arange(len(queries), device=x.device)
            if isinstance(self, KNN):
                nearest = search.nearest_neighbors(x, min(self.k, len(x)), queries, metric=self.metric).indices
                keys = torch.cat([keys, (every[:, None] * len(x) + nearest).flatten()])
            keys, directions = keys.unique(return_counts=True)
            query, point = keys // len(x), keys % len(x)
            # The first point equal to each query, or of its direction with "cosine": equal points are within reach.
            equal = within.squared_distances <= least_reach(self.metric, x.dtype) ** 2
            first = torch.full_like(every, len(x)).scatter_reduce(0, within.query[equal], within.point[equal], "amin")
            same = torch.where(first < len(x), first, -1)
        return Extension(*kept_edges(query, point, directions, self.symmetrize, x.dtype), same, self.metric)


@checks.with_advice
@dataclass(frozen=True)
class KNN(_OfPoints):
    """The rule of `knn_graph` with its arguments: ``KNN(10)(x)`` is ``knn_graph(x, 10)``.

    Args:
        k: neighbours of each point, at least 1. A point is never its own neighbour. In a set of k points or fewer,
            single or in a batch, all pairs are joined. ``"nme"`` returns the rule `NME` in place of this one, which
            takes the number from the points.
        symmetrize: ``"mean"`` averages the two directions, so that an edge that only one of its ends has chosen has
            weight ½, as in scikit-learn; measured to be at least as good as the union.
            ``"union"`` gives such edges the weight 1 (Belkin & Niyogi 2003, section 2), ``"mutual"`` leaves them out.
        metric: of the search, see `nearest_neighbors`, and of the lengths that weightings measure, see `Graph`.
            ``Precomputed("distance")``: ``x`` holds distances, ``(N, N)`` or ``(B, N, N)``, those of new points
            ``(Q, N)``, with gradients. A function of ``(Q, D)`` and ``(N, D)`` to distances ``(Q, N)``, differentiable
            where it is; a name of SciPy's ``cdist`` such as ``"hamming"``, without gradients. Exact, in blocks of rows.
        backend: of the search.
        recall: share of the true neighbours to be found, in (0, 1]; below 1 the search is approximate, through faiss.
            It is measured on a sample: the graph's ``recall``. New points are always searched exactly.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> graph, radii = KNN(1).with_state(x)
    >>> radii
    tensor([1., 1., 2.])
    >>> # 2.5 is nearest to 3, and too far from 0 and 1
    >>> KNN(1).extend(torch.tensor([[2.5]]), x, radii)[:2]
    (tensor([0]), tensor([2]))
    """

    k: int = 10
    symmetrize: Symmetrize = "mean"
    metric: Metric = "euclidean"
    backend: search.Backend = "exact"
    recall: float | None = None

    def __new__(cls, k: Any = 10, *options: Any, **named: Any) -> KNN:
        """Return a rule of this class, or `NME`."""
        found: Any = NME(*options, **named) if isinstance(k, str) and k == "nme" else super().__new__(cls)
        return found  # type: ignore[no-any-return]

    def __post_init__(self) -> None:
        k = checks.check_count(self.k, "k")
        checks.check_choice(self.symmetrize, "symmetrize", ("union", "mutual", "mean"))
        asked = search.check_recall(self.backend, self.recall)
        if self.metric not in COORDINATES:
            check_metric(self.metric)
            if asked < 1:
                raise ValueError(f'metric must be "euclidean" or "cosine" for an approximate search, got {self.metric}')
        checks.set_frozen(self, k=k, recall=None if self.recall is None else asked)

    def with_state(self, x: Tensor) -> tuple[Graph, Tensor]:
        """Return the graph of points ``(N, D)``, and each point's distance ``(N,)`` to its k-th neighbour.

        With a metric without coordinates the state is ``(N, 2)``: also the distance of each point to itself.
        """
        if self.metric not in COORDINATES:
            return _by_rows(self, x)
        return self.with_neighbors(search.nearest_or_all(x, self.k, self.metric, None, self.backend, self.recall), x)

    def _chosen(self, rows: Tensor) -> Tensor:
        """Return True for the k smallest finite distances of each row ``(Q, N)``, ties by column."""
        kth = rows.topk(min(self.k, rows.shape[1]), largest=False).values.amax(1, keepdim=True)
        below, equal = rows < kth, (rows == kth) & rows.isfinite()
        return below | (equal & (equal.cumsum(1) <= self.k - below.sum(1, keepdim=True)))

    def with_neighbors(self, found: search.Neighbors, x: Tensor) -> tuple[Graph, Tensor]:
        """Return the graph and the state of `with_state` from the result of a search."""
        graph = _undirected_graph(_directed_edges(found, None), self, x, None)
        points, farthest = search.prepare(x, None, None, self.metric).points[0], found.indices[:, -1]
        # A product has errors of up to 0.1 %, which would put points at exactly this distance out of reach.
        squares = pair_distances(points, torch.arange(len(points), device=x.device), points, farthest)
        return graph, roots_no_less(squares).clamp_min(least_reach(self.metric, x.dtype))


@checks.with_advice
@dataclass(frozen=True)
class NME:
    """Rule that takes as many neighbours as give the widest eigengap; ``KNN("nme")`` makes it.

    Park et al., *Auto-tuning spectral clustering for speaker diarization using normalized maximum eigengap*, 2020:
    of p from 2 to a quarter of the points, the one with the least p / g_p, g_p the widest of the first
    ``max_clusters`` gaps over the largest eigenvalue, of the Laplacian of the graph of p neighbours without weights.
    The Laplacian is the normalised one here, which `SpectralClustering` solves. Each item of a batch has its own p, and
    a fit keeps it: `SpectralClustering.n_neighbors_`. The work is 20 decompositions of at most 1,000 points.

    Args:
        symmetrize: as for `KNN`. metric: ``"euclidean"`` or ``"cosine"``.
        max_clusters: number of gaps that are looked at.

    >>> rule = KNN("nme")
    >>> rule, rule.number_of_neighbors(torch.eye(3).repeat_interleave(9, 0))
    (NME(symmetrize='mean', metric='euclidean', max_clusters=10), 2)
    """

    symmetrize: Symmetrize = "mean"
    metric: Metric = "euclidean"
    max_clusters: int = 10

    def __post_init__(self) -> None:
        checks.check_choice(self.metric, "metric", ("euclidean", "cosine"))
        self._rule(1)
        checks.set_frozen(self, max_clusters=checks.check_count(self.max_clusters, "max_clusters"))

    def _rule(self, p: int) -> KNN:
        return KNN(p, self.symmetrize, self.metric)

    @torch.no_grad()
    def number_of_neighbors(self, x: Tensor) -> int:
        """Return p for points ``(N, D)``."""
        checks.check_points(x, batched=False)
        some = x.detach()[:: math.ceil(len(x) / MOST_NME_POINTS)]
        n = len(some)
        most = min(max(n // 4, 2), n - 1)
        nearest, best = search.nearest_neighbors(some, most, metric=self.metric).indices, (math.inf, 1)
        for p in np.unique(np.linspace(min(2, most), most, 20).astype(int)).tolist():
            chosen = torch.zeros(n, n, dtype=torch.float64, device=x.device).scatter_(1, nearest[:, :p], 0.5)
            weight = chosen + chosen.mT
            root = weight.sum(1).sqrt()
            values = 1 - torch.linalg.eigvalsh(weight / root / root[:, None]).flip(0)
            ratio = float(values[-1] * p / values.diff()[: self.max_clusters].max().clamp_min(1e-10))
            best = min(best, (ratio, p))
        return best[1] * len(x) // n

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Graph:
        """Return the graph of points ``(N, D)`` or ``(B, N, D)``."""
        points, _, valid, _ = search.prepare(x, None, mask, "euclidean")
        items = zip(points, valid, strict=True)
        p = [self.number_of_neighbors(points[there]) if there.sum() > 1 else 1 for points, there in items]
        found = search.nearest_or_all(x, most := max(p), self.metric, mask, "exact", None)
        rank = torch.arange(found.indices.shape[-1], device=x.device)
        left_out = rank >= torch.tensor(p, device=x.device).reshape(*x.shape[:-2], 1, 1)
        found = found._replace(squared_distances=found.squared_distances.masked_fill(left_out, torch.inf))
        return _undirected_graph(_directed_edges(found, valid), self._rule(most), x, mask)

    def with_state(self, x: Tensor) -> tuple[Graph, Tensor]:
        """Return the graph of points ``(N, D)``, and each point's distance to its p-th neighbour and p, ``(N, 2)``."""
        p = self.number_of_neighbors(x)
        graph, reach = self._rule(p).with_state(x)
        return graph, torch.stack([reach, torch.full_like(reach, p)], 1)

    def fixed(self, state: Tensor) -> tuple[KNN, Tensor]:
        """Return the rule of the number in a state, and the state of that rule."""
        return self._rule(int(state[0, 1])), state[:, 0]

    def extend(self, queries: Tensor, x: Tensor, state: Tensor) -> Extension:
        """Return the edges of new points ``(Q, D)``, see `KNN`."""
        rule, reach = self.fixed(state)
        return rule.extend(queries, x, reach)


@checks.with_advice
@dataclass(frozen=True)
class Radius(_OfPoints):
    """The rule of `radius_graph` with its arguments: ``Radius(0.5)(x)`` is ``radius_graph(x, 0.5)``.

    Args:
        radius: largest distance ‖x_i − x_j‖ of two points that are joined (of unit vectors for ``metric="cosine"``),
            positive. Belkin & Niyogi's ε bounds its square: their ε-neighbourhoods are ``Radius(ε ** 0.5)``.
        metric: as for `KNN`.

    >>> Radius(1.5)(torch.tensor([[0.0], [1.0], [3.0]])).connected_components()
    tensor([0, 0, 1])
    """

    radius: float
    metric: Metric = "euclidean"
    symmetrize: ClassVar[Symmetrize] = "union"

    def __post_init__(self) -> None:
        checks.set_frozen(self, radius=checks.check_positive(self.radius, "radius"))
        check_metric(self.metric)

    def with_state(self, x: Tensor) -> tuple[Graph, Tensor]:
        """Return the graph of points ``(N, D)``, and the radius for each, ``(N,)``."""
        if self.metric not in COORDINATES:
            return _by_rows(self, x)
        return self(x), radii_no_less(self.radius, x, (len(x),)).clone()

    def _chosen(self, rows: Tensor) -> Tensor:
        return rows <= self.radius


@torch.no_grad()
def _by_rows(
    rule: KNN | Radius, x: Tensor, mask: Tensor | None = None, self_loops: bool = False
) -> tuple[Graph, Tensor]:
    """Return the graph of a metric without coordinates, and the reach of points and round-off, ``(B · N, 2)``."""
    if isinstance(rule.metric, Precomputed):
        check_all_stored(x)
    checks.check_floating(x, "x")
    checks.check_outside_func(x, "x")
    if mask is not None:
        checks.check_mask(mask, x)
    checks.check_points(x if mask is None else x.detach().nan_to_num())
    state, ends = x.new_zeros(math.prod(x.shape[:-1]), 2), [torch.zeros(2, 0, dtype=torch.int64, device=x.device)]
    for first, begin, rows in blocks_of_rows(rule.metric, checks.primal(x), mask):
        own, nodes = rows.diagonal(begin), slice(first + begin, first + begin + len(rows))
        rows = rows.diagonal_scatter(torch.full_like(own, torch.inf), begin)
        chosen = rule._chosen(rows)
        ends.append(chosen.nonzero().T + torch.tensor([[nodes.start], [first]], device=x.device))
        reach = torch.where(chosen, rows, 0).amax(1) if isinstance(rule, KNN) else torch.full_like(own, rule.radius)
        state[nodes] = torch.stack([reach, own], 1)
    row, col = torch.cat(ends, 1)
    return _undirected_graph((row, col, 1.0), rule, x, mask, self_loops), state


# --- Rules and weightings together ------------------------------------------------------------------------------------

GraphRule = NeighborRule | Precomputed


def check_rule_and_weights(neighbors: Any, weights: Any) -> Weighting | None:
    """Return the weighting of a graph's edges, `HeatKernel` where it is None; None with ``Precomputed("affinity")``."""
    check_weighting(weights)
    if not isinstance(neighbors, Precomputed):
        check_rule(neighbors, ', Precomputed("affinity" or "distance")')
    elif neighbors.kind == "kernel":
        raise ValueError(f'neighbors must be a rule such as KNN(10), or Precomputed("affinity"), got {neighbors}')
    if not isinstance(neighbors, Precomputed) or neighbors.kind == "distance":
        return HeatKernel() if weights is None else weights
    if weights is not None:
        got = checks.describe(weights)
        raise ValueError(f'weights must be None with Precomputed("affinity"), got {got}; weight the graph beforehand')
    return None


def weighted_graph(
    neighbors: GraphRule, weights: Weighting | None, x: Tensor | Graph, mask: Tensor | None = None
) -> Graph:
    """Return the weighted graph of points, of affinities with ``Precomputed("affinity")``, or the `Graph` given."""
    if weights is None:
        if isinstance(x, Graph) and mask is not None:
            raise ValueError(f"mask must be None with a Graph, got a mask too; {WITHOUT_MASK}")
        if isinstance(x, Tensor) and mask is not None and x.ndim in (2, 3):
            checks.check_mask(mask, x)
            x = torch.where(mask[..., :, None] & mask[..., None, :], x, 0)  # padding may hold anything
        return x if isinstance(x, Graph) else Graph.from_dense(x, mask)
    if isinstance(x, Graph):
        raise TypeError('x must be points, got a Graph; use neighbors=Precomputed("affinity")')
    if isinstance(neighbors, Precomputed):
        return weighted_by_stored(x, weights, mask)
    return weights(x, _check_graph_of(neighbors(x, mask), x, mask))
