"""Isomap: classical scaling of geodesic distances on a neighbourhood graph."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen import Eigenpairs, Solve, Solver
from torch_lapeig.graph import KNN, NeighborRule
from torch_lapeig.graph.algebra import geodesic_distances
from torch_lapeig.graph.distances import distances, edge_lengths
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.rules import check_rule, graph_with_state
from torch_lapeig.graph.search.exact import COORDINATES, measured
from torch_lapeig.methods.kernels import CentredKernelEmbedding
from torch_lapeig.methods.on_graph import edges_of_new, warn_of_unreached
from torch_lapeig.support import checks
from torch_lapeig.support.fitted import State
from torch_lapeig.support.kinds import refuse
from torch_lapeig.support.tuning import check_dense


class Isomap(CentredKernelEmbedding):
    """Isomap (Tenenbaum, de Silva & Langford 2000): classical scaling of geodesic distances, differentiable.

    Geodesics are shortest paths on the neighbourhood graph, by Dijkstra's algorithm on the CPU. Gradients flow to the
    points along the edges of the paths; the paths are fixed. The kernel mostly has negative eigenvalues, too; see
    `MDS`. A new point x has the geodesics D̃(x, i) = min_j ‖x − x_j‖ + D(j, i) over its neighbours j by the rule of the
    graph; other paths do not lead through it. A new point that equals a training point has the neighbours of the
    training point, and so its row.

    With landmarks (de Silva & Tenenbaum 2003) the eigenproblem is solved on the landmarks only, and all other points
    are embedded as new points; only distances to landmarks are computed and kept. Without landmarks, new points follow
    the formula of landmark Isomap with the training set as landmarks.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        neighbors: rule of the graph, ``KNN(k)``, ``Radius(r)`` or another `NeighborRule`. For given geodesic distances
            use `MDS`.
        landmarks: None for all points; a number of points, drawn with ``seed``; or indices, int64 ``(L,)``, among the
            valid points of each set. In an item of a batch with fewer points than that number, all are landmarks.
        seed: seed of the drawn landmarks.
        solve: options of the eigensolve, a `Solve`, or just a solver.

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        embedding_: ``(N, n_components)``. eigenvalues_: of K̃ of the landmarks, descending, and residuals_,
        ``(n_components,)``. geodesics_: of all points to the landmarks, ``(N, L)``. landmarks_: int64 ``(L,)``.

    Raises (``fit``, ``forward``):
        ValueError: a graph of several components; fewer positive eigenvalues than components; landmarks out of range.

    >>> angle = torch.linspace(0, 3, 40, dtype=torch.float64)  # half a circle
    >>> x = torch.stack([angle.cos(), angle.sin()], 1)
    >>> y = Isomap(1, KNN(2)).fit(x).embedding_[:, 0]
    >>> torch.allclose((y - y[0]).abs(), angle, atol=0.01)  # rolled out, but for chords
    True
    """

    FITTED: ClassVar[tuple[str, ...]] = (
        *CentredKernelEmbedding.FITTED,
        "train_rule",
        "train_edges",
        "landmarks_",
        "geodesics_",
    )

    def __init__(
        self,
        n_components: int = 2,
        neighbors: NeighborRule = KNN(10),  # noqa: B008 (frozen)
        *,
        landmarks: int | Tensor | None = None,
        seed: int = 0,
        solve: Solve | Solver | None = None,
    ) -> None:
        super().__init__(n_components, solve)
        refuse("Isomap", neighbors=neighbors)
        check_rule(neighbors)
        if isinstance(landmarks, (int, float, str, np.generic)):
            landmarks = checks.check_count(landmarks, "landmarks", 2)
        elif landmarks is not None:
            checks.check_indices(landmarks, "landmarks")
            checks.check_distinct(landmarks, "landmarks", "landmarks.unique()")
        self.neighbors = neighbors
        self.landmarks = landmarks
        self.seed = checks.check_seed(seed)

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        chosen = self._chosen(x, fill)
        # Dijkstra's distances, in float64.
        check_dense(len(x), len(chosen), 8, torch.device("cpu"), type(self).__name__, "use landmarks=1000")
        graph, train_rule = graph_with_state(self.neighbors, x.detach())
        sizes = graph.connected_components().bincount().sort(descending=True).values.tolist()
        if len(sizes) > 1:
            shown = ", ".join(map(str, sizes[:10])) + (", …" if len(sizes) > 10 else "")
            raise ValueError(
                f"the neighbourhood graph has {len(sizes)} connected components, of {shown} points, and geodesics "
                "between them are infinite; use more neighbours or a larger radius, or embed each on its own"
            )
        graph = graph.to_sparse()
        assert isinstance(graph.pattern, SparsePattern)
        if graph.metric in COORDINATES:
            points = measured(x, graph.metric)
            unit = checks.power_of_two(points, (0, 1))
            lengths = _root(graph.pattern.squared_lengths(points / unit)) * unit[0]
        else:
            lengths = edge_lengths(x, graph)
        geodesics = geodesic_distances(graph.pattern, lengths, chosen)
        if self.landmarks is not None:
            geodesics = geodesics.mT.contiguous()
        among = geodesics if self.landmarks is None else geodesics[chosen]
        state = self._embed_kernel(among.square().mul_(-0.5), solved, fill=fill)
        state |= {"train_points": x, "train_rule": train_rule, "train_edges": graph.edge_index}
        state |= {"landmarks_": chosen, "geodesics_": geodesics}
        if self.landmarks is not None:
            state["embedding_"] = self._extension(geodesics.square() / -2, state["embedding_"], state)
        return state

    def _chosen(self, x: Tensor, fill: bool) -> Tensor:
        n = len(x)
        if self.landmarks is None:
            return torch.arange(n, device=x.device)
        if isinstance(self.landmarks, Tensor):
            checks.check_indices(self.landmarks, "landmarks", n)
            return self.landmarks.to(x.device)
        if self.landmarks > n and not fill:
            raise ValueError(f"landmarks must be at most the number of points, got {self.landmarks} with {n} points")
        drawn = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed))[: self.landmarks]
        return drawn.sort().values.to(x.device)

    def _width(self, state: State) -> int:
        return 6 * state["geodesics_"].shape[1]

    def _extend(self, x: Tensor, state: State) -> Tensor:
        connectivity = x.new_ones(state["train_edges"].shape[1])
        query, point, _, same, metric = edges_of_new(self.neighbors, x, state, connectivity)
        points = state["train_points"]
        query, order = query.sort(stable=True)
        point = point[order]
        warn_of_unreached(len(x) - len(query.unique()), len(x))
        if metric in COORDINATES:
            points, places = measured(points, metric), measured(x, metric)
            unit = checks.power_of_two(points, (0, 1))
            lengths = _root((places[query] / unit - points[point] / unit).square().sum(1)) * unit[0]
        else:
            lengths = distances(metric, x, points)[query, point]
        reach = _shortest(lengths, query, point, state["geodesics_"], len(x))
        reach = torch.where(same[:, None] == state["landmarks_"], 0, reach)
        # Centring a kernel that is the mean gives zero.
        kernel = torch.where(reach.isinf(), state["train_means"], reach.square() / -2)
        return self._extension(kernel, state["embedding_"][state["landmarks_"]], state)


def _shortest(lengths: Tensor, query: Tensor, point: Tensor, geodesics: Tensor, queries: int) -> Tensor:
    """Return ``(Q, L)``: the minimum over neighbours j of a query of its distance to j plus the geodesics from j."""
    # One neighbour of each query is handled at a time, so that memory does not depend on the number of neighbours.
    # Edge number E means no path.
    lengths = torch.cat([lengths, lengths.new_full((1,), torch.inf)])
    point = torch.cat([point, point.new_zeros(1)])
    with torch.no_grad():
        best = geodesics.new_full((queries, geodesics.shape[1]), torch.inf)
        via = torch.full_like(best, len(query), dtype=torch.int64)
        count = query.bincount(minlength=queries)
        first = count.cumsum(0) - count
        for rank in range(int(count.max())):
            here = (count > rank).nonzero().flatten()
            edge = first[here] + rank
            reach = lengths[edge, None] + geodesics[point[edge]]
            closer = reach < best[here]
            best[here] = torch.where(closer, reach, best[here])
            via[here] = torch.where(closer, edge[:, None], via[here])
    landmark = torch.arange(geodesics.shape[1], device=geodesics.device)
    return lengths[via] + geodesics[point[via], landmark]


def _root(squares: Tensor) -> Tensor:
    """Return √, with a zero gradient at zero."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1).sqrt(), 0)
