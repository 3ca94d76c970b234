"""Methods and losses on points that several processes hold together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torch_lapeig import _checks
from torch_lapeig._fitted import State
from torch_lapeig.distributed.clusters import sharded_labels
from torch_lapeig.distributed.graph import ShardedGraph, sharded_graph
from torch_lapeig.distributed.newpoints import extension, fetched, with_own_edges
from torch_lapeig.distributed.points import ShardedPoints
from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.distributed.search import Search
from torch_lapeig.eigen import Laplacian
from torch_lapeig.graph import KNN, Precomputed, Radius
from torch_lapeig.graph.distances import differentiable_pair_distances
from torch_lapeig.graph.weights import NewEdges
from torch_lapeig.losses import LaplacianSmoothness, laplacian_smoothness
from torch_lapeig.methods import LaplacianEigenmaps, SpectralClustering
from torch_lapeig.methods.module import EigenSolves, Embedding, warn_of_unreached
from torch_lapeig.methods.nystrom import nystrom


class Sharded(nn.Module):
    """A method or loss on one set of points, of which each process gives its own rows and gets back theirs.

    Every process of the group calls every method, with its rows in any number and order; none is a number too. The
    answer is that of all rows on one process. The loss of a training is the sum of what each process makes of its own
    rows: so `LaplacianSmoothness` gives each its share, and gradients to the rows are those of the sum. Parameters,
    which every process has, get that part of their gradient which its rows have made: `sum_gradients` adds the parts.

    Args:
        module: a `LaplacianEigenmaps`, `SpectralClustering` or `LaplacianSmoothness`, whose graph is one of `KNN`
            or `Radius`; its parameters are those of this module.
        group: the processes: a process group, a dimension of a `DeviceMesh` (``mesh["shard"]``), a `Ranks`, or None for
            all of them; without `torch.distributed` this process alone.
        timeout: seconds that a process waits for the others at most.

    Attributes:
        labels_: int64 ``(n,)``, of the rows that this process gave to ``fit``, of `SpectralClustering`.
        embedding_: ``(n, k)``, of the same rows.

    Raises:
        TypeError, ValueError: another module, or options that need the whole graph in one place
            (``components="separate"``). When called: on the process that gave something wrong, what one process would
            raise, and a `DistributedError` that says it on the others; on all of them if they do not agree.

    >>> from torch_lapeig import KNN, LaplacianEigenmaps
    >>> x = torch.rand(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> module = Sharded(LaplacianEigenmaps(2, KNN(8)))
    >>> y = LaplacianEigenmaps(2, KNN(8))(x)
    >>> torch.allclose(module(x), y)
    True
    >>> torch.allclose(module.fit(x).transform(x[:5]), y[:5])
    True
    """

    def __init__(self, module: nn.Module, group: Any = None, *, timeout: float = 300.0) -> None:
        super().__init__()
        kinds = (LaplacianEigenmaps, SpectralClustering, LaplacianSmoothness)
        _checks.check_instance(module, "module", kinds, "LaplacianEigenmaps, SpectralClustering or LaplacianSmoothness")
        self.module: Any = module
        if isinstance(self.module.neighbors, Precomputed):
            raise ValueError(f"module must be of points, got neighbors={self.module.neighbors}")
        if getattr(module, "components", "joint") == "separate":
            raise ValueError('components must be "joint" or "error" on several processes, got "separate"')
        if getattr(module, "reduction", "mean") == "none":
            raise ValueError('reduction must be "mean" or "sum" on several processes, got "none"')
        if getattr(module, "assign_labels", "kmeans") == "discretize":
            raise ValueError('assign_labels must be "kmeans" or "cluster_qr" on several processes, got "discretize"')
        self.ranks = group if isinstance(group, Ranks) else Ranks(group, timeout=timeout)
        self._layout: ShardedPoints | None = None  # of the call before, which a warm start goes on with
        self._fit: _Fit | None = None

    def forward(self, *given: Tensor) -> Tensor:
        """The rows ``(n, k)`` of the points ``(n, D)`` of this process, or the share ``()`` of a loss of ``(y, x)``."""
        if isinstance(self.module, LaplacianSmoothness):
            return self._smoothness(*given)
        return self.embed(*given).columns

    @_checks.full_precision
    def embed(self, x: Tensor) -> Embedding:
        """What ``forward`` returns, with eigenvalues, residuals and eigengap: see `Embedding`."""
        with self.ranks.guard():
            points = self._spread(x)
            _, found, pairs = self._solve(points, sharded_graph(points, self.module.neighbors))
            columns = points.home(found.columns)
            return found._replace(columns=columns.to(x.dtype) if x.dtype in _checks.HALVES else columns, pairs=pairs)

    @torch.no_grad()
    @_checks.full_precision
    def fit(self, x: Tensor) -> Sharded:
        """Embed points, and cluster them, and keep what new points need. Returns the module."""
        with self.ranks.guard():
            points = self._spread(x)
            graph = sharded_graph(points, self.module.neighbors)
            laplacian, found, pairs = self._solve(points, graph)
            self._fit = _Fit.of(self.module, points, graph, laplacian, found, pairs)
            self.embedding_ = points.home(found.columns)
            self.eigenvalues_, self.residuals_, self.gap_ = found.eigenvalues, found.residuals, found.gap
            if isinstance(self.module, SpectralClustering):
                labels, self.cluster_centers_ = sharded_labels(self.module, points, found.columns)
                self.labels_ = points.home(labels)
        return self

    @_checks.full_precision
    def transform(self, x_new: Tensor) -> Tensor:
        """The rows ``(q, k)`` of new points ``(q, D)`` of this process given the fitted ones, with gradients."""
        fit = self._fit
        if fit is None:
            raise RuntimeError("Sharded must be fitted before it takes new points; call fit first")
        with self.ranks.guard():
            self.ranks.agree(lambda: _check_new(x_new, fit.points.x))
            return fit.rows_of(x_new)

    @torch.no_grad()
    def predict(self, x_new: Tensor) -> Tensor:
        """The cluster of each new point ``(q, D)`` of this process, int64 ``(q,)``; −1 for those without neighbours."""
        rows = self.transform(x_new)
        if self.module.assign_labels == "kmeans":
            labels = torch.cdist(rows, self.cluster_centers_).argmin(1)
        else:
            labels = (rows @ self.cluster_centers_).abs().argmax(1)
        return labels.masked_fill(rows[:, 0] == 0, -1)

    def graph_of(self, x: Tensor) -> tuple[ShardedPoints, ShardedGraph]:
        """The points where they are worked on, and their weighted graph: for what else can be made of them."""
        with self.ranks.guard():
            points = self._spread(x)
            return points, self._graph(points)

    def _smoothness(self, y: Tensor, x: Tensor) -> Tensor:
        with self.ranks.guard():
            points = self._spread(x)
            self.ranks.agree(lambda: _check_rows(y, len(x)))
            graph = self._graph(points)
            return laplacian_smoothness(points.here(y), graph, self.module.reduction)

    def _spread(self, x: Tensor) -> ShardedPoints:
        self.ranks.agree(lambda: {"module": f"{self.module}, training={self.module.training}"})
        x, before = _checks.single(x), self._layout
        keep = getattr(self.module, "solve", None) is not None and EigenSolves(self.module.solve, ()).options.warm_start
        if keep and before is not None and not self.ranks.any(before.given != len(x)):
            return before.with_points(x)
        points = ShardedPoints.spread(x, self.ranks)
        self._layout = points.bare() if keep else None
        return points

    def _graph(self, points: ShardedPoints) -> ShardedGraph:
        graph: ShardedGraph = self.module.weights(points.x, sharded_graph(points, self.module.neighbors))
        return graph

    def _solve(self, points: ShardedPoints, graph: ShardedGraph) -> tuple[Laplacian, Embedding, Any]:
        laplacian = Laplacian(self.module.weights(points.x, graph), self.module._normalization)
        before = self.module._before
        if self.ranks.any(bool(before) and before[0].vectors.shape[:-1] != laplacian.shape):
            before = ()
        solve = EigenSolves(self.module.solve, before)
        found = self.module._solve_graph(laplacian, solve, fill=False)
        self.module._before = solve.for_next_call()
        return laplacian, found, tuple(solve.pairs)


class _Fit:
    """What new points need of fitted ones, each rank having that of its own points."""

    def __init__(self, module: Any, points: ShardedPoints, laplacian: Laplacian, state: State) -> None:
        self.module, self.points, self.laplacian, self.state = module, points, laplacian, state
        rule: KNN | Radius = module.neighbors
        self.rule = rule
        cosine = rule.metric == "cosine"
        self.search = Search(points, points.x / points.x.norm(dim=1, keepdim=True) if cosine else None)
        if isinstance(rule, KNN):
            found = self.search.nearest(rule.k)
            self.reach = found.squared_distances[:, -1].sqrt()
        else:
            self.reach = points.x.new_full((len(points.x),), rule.radius)

    @classmethod
    def of(
        cls,
        module: Any,
        points: ShardedPoints,
        graph: ShardedGraph,
        laplacian: Laplacian,
        found: Embedding,
        pairs: Any,
    ) -> _Fit:
        """That of an embedding."""
        values = found.eigenvalues
        state = {
            "weighting": module.weights.state(points.x, graph),
            "vectors": found.columns,
            "eigenvalues": values.masked_fill(values.isinf(), 0),
            "connectivity": torch.where(laplacian.graph.weight > 0, graph.weight, 0),
        }
        if getattr(module, "variant", "") == "njw":
            state["vectors"] = pairs[-1].vectors
        if laplacian.normalization == "symmetric":
            state["degrees"] = laplacian.degrees
        return cls(module, points, laplacian, state)

    def rows_of(self, x: Tensor) -> Tensor:
        """The rows of new points, as `GraphEmbedding` extends its own."""
        asked, state, pattern = _checks.primal(x), self.state, self.laplacian.graph.pattern
        unit = asked / asked.norm(dim=1, keepdim=True) if self.rule.metric == "cosine" else asked
        edges = extension(self.search, self.rule, unit, self.reach)
        edges = with_own_edges(edges, pattern, state["connectivity"])  # type: ignore[arg-type]
        degrees = state.get("degrees")
        kept = (self.points.x, state["weighting"], state["vectors"], *(() if degrees is None else (degrees,)))
        number, points, weighting, vectors, *rest = fetched(self.search, edges.place, *kept)
        lengths = differentiable_pair_distances(x, edges.query, points, number)
        new = NewEdges(edges.query, number, lengths, edges.connectivity, len(x))
        warn_of_unreached(int((edges.query.bincount(minlength=len(x)) == 0).sum()), len(x))
        rows = nystrom(
            self.module.weights.extend(new, weighting),
            edges.query,
            number,
            len(x),
            vectors,
            state["eigenvalues"],
            normalized=self.module._normalization != "unnormalized",
            degrees=rest[0] if rest else None,
        )
        return self.module._rows(rows) if isinstance(self.module, SpectralClustering) else rows


def sum_gradients(module: nn.Module, ranks: Ranks) -> None:
    """Put the sum over ranks in the place of each parameter's gradient: call it between backward and the step.

    Parameters are on every rank, and the rows of each have made a part of the gradient. Where `DistributedDataParallel`
    has averaged them over the same ranks, multiply the loss by ``ranks.world`` in its place.
    """
    with ranks.guard():
        for parameter in module.parameters():
            if parameter.requires_grad:
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = ranks.sum(own)


def _check_new(x: Any, points: Tensor) -> dict[str, object]:
    _checks.check_floating(x, "x_new")
    if x.ndim != 2 or x.shape[1] != points.shape[1] or x.dtype != points.dtype:
        raise ValueError(
            f"x_new must be like the training points, (q, {points.shape[1]}) of {points.dtype}, got {tuple(x.shape)} "
            f"of {x.dtype}"
        )
    _checks.check_finite(x, "x_new")
    return {}


def _check_rows(y: Any, rows: int) -> dict[str, object]:
    _checks.check_floating(y, "y")
    if y.ndim != 2 or len(y) != rows:
        raise ValueError(f"y must have shape ({rows}, k) to go with the points, got {tuple(y.shape)}")
    return {"columns": y.shape[1], "dtype of y": y.dtype}
