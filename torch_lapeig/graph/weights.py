"""Edge weightings: small modules from points and a graph to that graph with weights, with gradients.

For new points `Weighting.state` keeps numbers of each training point, and `Weighting.extend` weighs edges to these.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_lapeig.graph.distances import measured
from torch_lapeig.graph.graph import Graph, check_graph
from torch_lapeig.graph.groups import gather, kth_of_groups, segment_logsumexp
from torch_lapeig.graph.pattern import Pattern, SparsePattern
from torch_lapeig.support import checks
from torch_lapeig.support.fitted import Configured


class NewEdges(NamedTuple):
    """Edges between new points and training points, as `Weighting.extend` takes them.

    ``query`` and ``point`` int64 ``(E,)``, the number of the new and of the training point of each; ``squared_lengths``
    ``(E,)``, with gradients; ``connectivity`` ``(E,)``: 1, or ½ for one-sided edges of ``symmetrize="mean"``;
    ``num_queries``: how many new points there are.

    >>> edges = NewEdges(torch.tensor([0, 0]), torch.tensor([3, 7]), torch.tensor([1.0, 4.0]), torch.ones(2), 1)
    >>> SimpleWeights().extend(edges, torch.zeros(8, 1)).exp()
    tensor([1., 1.])
    """

    query: Tensor
    point: Tensor
    squared_lengths: Tensor
    connectivity: Tensor
    num_queries: int


Bandwidth = float | Literal["median", "component-median"]


def _by_metric(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``forward`` or ``state`` of a weighting to receive points whose distances are the graph's metric."""

    @functools.wraps(method)
    def measuring(self: Weighting, x: Tensor, graph: Graph) -> Any:
        if not isinstance(graph, Graph) or graph.metric == "euclidean":
            return method(self, x, graph)
        points = measured(_check_points(x, graph), graph.metric, graph.mask)
        found = method(self, points, graph._with(metric="euclidean"))  # scaled once, not by each method
        return found._with(metric=graph.metric) if isinstance(found, Graph) else found

    return measuring


class Weighting(Configured, nn.Module, abc.ABC):
    """Weighting, called as ``weighting(x, graph)``, that multiplies the weights of the graph by its own.

    Weights are 1 after a search, ½ for the one-sided edges of ``symmetrize="mean"``, or given. Gradients flow to
    points, bandwidths and given weights, on the edges only.

    A subclass gives the weights of a graph (``forward``) and their extension to new points (``state``, ``extend``). It
    names in ``CONFIGURATION`` the attributes by which it computes: a saved fit is not loaded into a module where they
    differ. Parameters are learned and moved as in any module. The three methods run in full precision under
    autocast. Of a graph whose ``metric`` is ``"cosine"`` they are given the points scaled to length 1, and the squared
    lengths of edges between such points.

    A weighting by the relative density of two points, 1 / (1 + ‖x_i − x_j‖² / (s_i + s_j)), s_i the mean squared length
    of the edges at i:

    >>> from torch_lapeig import KNN, LaplacianEigenmaps
    >>> class Cauchy(Weighting):
    ...     def __init__(self, power=1.0):
    ...         super().__init__()
    ...         self.power = power
    ...     CONFIGURATION = ("power",)
    ...     def forward(self, x, graph):
    ...         pattern, scale = graph.pattern, self.state(x, graph)[:, 0]
    ...         ratio = pattern.squared_lengths(x) / (pattern.at_row(scale) + pattern.at_col(scale))
    ...         return graph.with_weight(graph.weight * (1 + ratio) ** -self.power)
    ...     def state(self, x, graph):
    ...         total = graph.pattern.sum_rows(graph.weight * graph.pattern.squared_lengths(x))
    ...         return (total / graph.pattern.sum_rows(graph.weight))[:, None]
    ...     def extend(self, edges, state):
    ...         total, count = torch.zeros(2, edges.num_queries, dtype=state.dtype)
    ...         total = total.index_add(0, edges.query, edges.connectivity * edges.squared_lengths)
    ...         count = count.index_add(0, edges.query, edges.connectivity)
    ...         scale = (total / count)[edges.query] + state[edges.point, 0]
    ...         return edges.connectivity.log() - self.power * (edges.squared_lengths / scale).log1p()
    >>> x = torch.rand(80, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> module = LaplacianEigenmaps(2, KNN(8), Cauchy()).fit(x)
    >>> torch.allclose(module.transform(x[:5]), module.embedding_[:5])
    True
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in {"forward", "state", "extend"} & vars(cls).keys():
            method = vars(cls)[name]
            setattr(cls, name, checks.full_precision(method if name == "extend" else _by_metric(method)))

    def __call__(self, x: Tensor, graph: Graph) -> Graph:
        """Return `forward` of a graph; raise TypeError for anything else."""
        check_graph(graph)
        if graph.pattern.is_sharded:
            given = {"x": x, "weights": graph.weight, **dict(self.named_parameters())}
            graph.pattern.agree("a weighting", lambda: {"weighting": self, **checks.derivatives_asked(**given)})
        weighted: Graph = super().__call__(x, graph)
        return weighted

    def extra_repr(self) -> str:
        """Return the constructor's arguments that are numbers and words."""
        values = {name: getattr(self, name) for name in self.CONFIGURATION}
        return ", ".join(f"{name}={value!r}" for name, value in values.items() if isinstance(value, (str, int, float)))

    @abc.abstractmethod
    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """Return ``graph`` with its weights times those of this weighting, see `Graph.with_weight`; differentiable.

        Args:
            x: points ``(N, D)`` or ``(B, N, D)``, of the graph.
            graph: the edges to weight. Its pattern has the algebra: `SparsePattern`, `DensePattern`.
        """

    @abc.abstractmethod
    def state(self, x: Tensor, graph: Graph) -> Tensor:
        """Return what `extend` needs of each training point: ``(N, s)``, with s ≥ 1 of the weighting's choice.

        ``x`` ``(N, D)`` and the graph as for ``forward``, before it was weighted.
        """

    @abc.abstractmethod
    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return log W(x, i) of the edges between new and training points, ``(E,)``; differentiable.

        For a new point equal to a training point the edges are that one's own, and so must be the weights. The
        logarithm, because the weights of a far point may all underflow while their ratios do not.

        Args:
            edges: between new and training points.
            state: of the training points, ``(N, s)``.
        """


class SimpleWeights(Weighting):
    """Weights W_ij = 1 on every edge, the limit t → ∞ of the heat kernel (Belkin & Niyogi 2003, section 2, step 2b).

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> SimpleWeights()(torch.tensor([[0.0], [1.0], [3.0]]), path).weight
    tensor([1., 1., 1., 1.])
    """

    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """Return the graph as it is."""
        return graph

    def state(self, x: Tensor, graph: Graph) -> Tensor:
        """Return zeros ``(N, 1)``: `extend` needs no state."""
        return x.new_zeros(len(x), 1)

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return the logarithm of the connectivity."""
        return edges.connectivity.log()


class KernelWeights(Weighting):
    """Weights W_ij = f(‖x_i − x_j‖²) of a function of squared distances that is symmetric by nature.

    Args:
        kernel: from squared distances to as many finite, non-negative weights, elementwise; a module's parameters are
            learnable.

    Raises:
        TypeError: ``kernel`` is no function, or gives no tensor of float32 or float64.
        ValueError: when called, where it gives another shape, or weights that are negative, not finite, or different on
            both directions of an edge.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> from torch_lapeig import knn_graph
    >>> KernelWeights(lambda d2: 1 / (1 + d2))(x, knn_graph(x, 1)).weight
    tensor([0.5000, 0.5000, 0.1000, 0.1000])
    """

    CONFIGURATION: ClassVar[tuple[str, ...]] = ("kernel",)

    def __init__(self, kernel: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        checks.check_function(kernel, "kernel", "a function of squared distances")
        self.kernel = kernel

    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """Return ``graph`` with its weights times the kernel."""
        return graph.with_weight(graph.weight * self._values(graph.pattern.squared_lengths(_check_points(x, graph))))

    def _values(self, squared_lengths: Tensor) -> Tensor:
        """Return the kernel, checked."""
        values = self.kernel(squared_lengths)
        checks.check_floating(values, "kernel(squared_lengths)")
        if values.shape != squared_lengths.shape:
            raise ValueError(
                f"kernel must give a weight for each squared distance, of shape {tuple(squared_lengths.shape)}, got "
                f"{tuple(values.shape)}"
            )
        if not (torch.isfinite(values) & (values >= 0)).all():
            raise ValueError(
                "kernel must give finite, non-negative weights of squared distances, got values from "
                f"{values.detach().min():.3g} to {values.detach().max():.3g}"
            )
        return values

    def state(self, x: Tensor, graph: Graph) -> Tensor:
        """Return zeros ``(N, 1)``: `extend` needs no state."""
        return x.new_zeros(len(x), 1)

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return log f of the squared lengths."""
        values = edges.connectivity * self._values(edges.squared_lengths)
        return torch.where(values > 0, finite_log(values), -torch.inf)


class HeatKernel(Weighting):
    """Weights W_ij = exp(−‖x_i − x_j‖² / t) on every edge (Belkin & Niyogi 2003, section 2, step 2a).

    Half of the literature writes 4t for t: their bandwidth times 4 is the ``t`` here. A Gaussian of standard
    deviation σ has ``t`` = 2σ².

    Args:
        t: bandwidth in squared units of the points, positive; ``math.inf`` gives 1 on every edge, as `SimpleWeights`.
            ``"median"``: the median of the squared edge lengths of each graph (the lower one of two);
            ``"component-median"``: the median of each connected component. Gradients flow through medians, to equal
            lengths in equal parts. Where copies of points make it 0, it is the median of the positive lengths (1
            without any), with a `GraphWarning`.
        learnable: learn a factor on the bandwidth, t · exp(``log_factor``), which keeps it positive. ``log_factor`` is
            0 at first. It is float32 as any parameter: ``.double()`` for points in float64.

    Raises:
        TypeError, ValueError: ``t`` is not a positive number or one of the words; an infinite one with ``learnable``,
            as no factor changes it.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> HeatKernel(2.0)(torch.tensor([[0.0], [1.0], [3.0]]), path).weight
    tensor([0.6065, 0.6065, 0.1353, 0.1353])
    """

    CONFIGURATION: ClassVar[tuple[str, ...]] = ("t", "learnable")
    log_factor: nn.Parameter | None

    def __init__(self, t: Bandwidth = "median", *, learnable: bool = False) -> None:
        super().__init__()
        if isinstance(t, str):
            checks.check_choice(t, "t", ("median", "component-median"))
        elif not (isinstance(t, float) and t == math.inf):
            t = checks.check_positive(t, "t")
        elif learnable:
            raise ValueError("t must be finite to be learnable, got inf, which no factor changes")
        checks.check_flag(learnable, "learnable")
        self.t: Bandwidth = t
        self.register_parameter("log_factor", nn.Parameter(torch.zeros(())) if learnable else None)

    @property
    def learnable(self) -> bool:
        """Return whether there is a parameter ``log_factor``."""
        return self.log_factor is not None

    @property
    def factor(self) -> float:
        """Return the number that multiplies the bandwidth: exp(``log_factor``), 1 unless it is learnable."""
        return 1.0 if self.log_factor is None else math.exp(self.log_factor.item())

    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """Return ``graph`` with its weights times the kernel."""
        points, unit = rescale(_check_points(x, graph), graph)
        squared_lengths = graph.pattern.squared_lengths(points)
        t = self.bandwidth(squared_lengths, graph)
        t = t if isinstance(self.t, str) else t / unit / unit
        return gaussian(graph, squared_lengths, graph.pattern.at_row(t))

    def bandwidth(self, squared_lengths: Tensor, graph: Graph) -> Tensor:
        """Return each node's bandwidth, of the graph's shape, from squared edge lengths: t · exp(``log_factor``)."""
        if isinstance(self.t, str):
            n, b = graph.num_nodes, graph.batch_size
            group, total = torch.arange(b, device=squared_lengths.device)[:, None].expand(b, n), b
            if self.t == "component-median":
                group = group * n + graph.connected_components().reshape(b, n).clamp_min(0)
                total = int(graph.pattern.largest(group.reshape(-1, 1))) + 1
            t = median_at_nodes(squared_lengths, graph, group.reshape(graph.shape), total)
        else:
            t = squared_lengths.new_full(graph.shape, self.t)
        return t if self.log_factor is None else t * self.log_factor.to(t.dtype).exp()

    def state(self, x: Tensor, graph: Graph) -> Tensor:
        """Return the bandwidth of each point, ``(N, 1)``."""
        return self.bandwidth(graph.pattern.squared_lengths(x), graph)[:, None]

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return −‖x − x_i‖² / t_i."""
        return edges.connectivity.log() - edges.squared_lengths / state[edges.point, 0]


class SelfTuning(Weighting):
    """Weights W_ij = exp(−‖x_i − x_j‖² / (σ_i σ_j)), σ_i the distance of x_i to its m-th neighbour in the graph.

    Zelnik-Manor & Perona, *Self-tuning spectral clustering* (2004), section 2 (there m = 7).

    Args:
        m: which neighbour; of nodes with fewer, the farthest counts. Where the m-th is a copy of the node, σ is the
            distance to its nearest neighbour that is none, with a `GraphWarning`.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> SelfTuning(1)(torch.tensor([[0.0], [1.0], [3.0]]), path).weight  # σ is 1, 1, 2
    tensor([0.3679, 0.3679, 0.1353, 0.1353])
    """

    CONFIGURATION: ClassVar[tuple[str, ...]] = ("m",)

    def __init__(self, m: int = 7) -> None:
        super().__init__()
        self.m = checks.check_count(m, "m")

    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """Return ``graph`` with its weights times the kernel; gradients flow through σ too."""
        pattern = graph.pattern
        squared_lengths = pattern.squared_lengths(rescale(_check_points(x, graph), graph)[0])
        sigma = self._sigma(squared_lengths, graph)
        return gaussian(graph, squared_lengths, pattern.at_row(sigma) * pattern.at_col(sigma))

    def _sigma(self, squared_lengths: Tensor, graph: Graph) -> Tensor:
        """Return σ of each node, of the shape of the graph; 1 at nodes without edges."""
        lengths, node = lengths_by_node(squared_lengths, graph)
        return local_scales(lengths, node, math.prod(graph.shape), self.m).reshape(graph.shape)

    def state(self, x: Tensor, graph: Graph) -> Tensor:
        """Return σ of each point, ``(N, 1)``."""
        return self._sigma(graph.pattern.squared_lengths(x), graph)[:, None]

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return −‖x − x_i‖² / (σ_x σ_i), with σ_x from the edges of the new point."""
        sigma = local_scales(edges.squared_lengths, edges.query, edges.num_queries, self.m)
        scale = sigma[edges.query] * state[edges.point, 0]
        return edges.connectivity.log() - edges.squared_lengths / scale


class DensityCorrected(Weighting):
    """Weights W_ij = K_ij / (q_i q_j)^α with q_i = Σ_j K_ij of another weighting K (Coifman & Lafon 2006, section 3.4).

    α = 1 removes the influence of the sampling density: eigenvectors approach the Laplace–Beltrami operator's.

    Args:
        alpha: in [0, 1]; 0 changes nothing.
        weights: K; default ``HeatKernel("median")``.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> DensityCorrected(1.0, SimpleWeights())(torch.zeros(3, 1), path).weight  # degrees are 1, 2, 1
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    CONFIGURATION: ClassVar[tuple[str, ...]] = ("alpha", "weights")

    def __init__(self, alpha: float = 1.0, weights: Weighting | None = None) -> None:
        super().__init__()
        check_weighting(weights)
        self.alpha = checks.check_number(alpha, "alpha", 0, 1)
        self.weights = HeatKernel() if weights is None else weights

    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """Return ``graph`` with the corrected weights."""
        graph = self.weights(x, graph)
        if graph.similarity is not None:
            raise ValueError("weights must be symmetric to be corrected for density, got ImprovedWeights")
        pattern, scale = graph.pattern, checks.primal(self._scale(graph))
        weight = pattern.at_row(scale) * checks.primal(graph.weight) * pattern.at_col(scale)
        log_weight = finite_log(graph.weight) if graph.log_weight is None else graph.log_weight
        zeros = only_zeros(graph.weight) if has_differentiable_zeros(graph) else None
        log_scale = -self.alpha * log_sums(pattern, graph.weight, log_weight, zeros)
        log_weight = log_weight + pattern.at_row(log_scale) + pattern.at_col(log_scale)
        weight = with_log_derivative(weight, log_weight)
        if zeros is None:
            return graph._with(weight=weight, log_weight=log_weight)
        scale = with_log_derivative(scale, log_scale)
        zeros = checks.finite_gradient(zeros) * (pattern.at_row(scale) * pattern.at_col(scale))
        return graph._with(weight=weight + zeros, log_weight=None)

    def _scale(self, graph: Graph) -> Tensor:
        """Return q^-α of each node, 0 without edges."""
        return inverse_power(graph.pattern.sum_rows(graph.weight), self.alpha)

    def state(self, x: Tensor, graph: Graph) -> Tensor:
        """Return the logarithm of q^-α of each point (0 without edges), then the state of K."""
        scale = self._scale(self.weights(x, graph))
        return torch.cat([torch.where(scale > 0, scale, 1).log()[:, None], self.weights.state(x, graph)], 1)

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return log K(x, x_i) − α log q(x) − α log q_i."""
        affinity = self.weights.extend(edges, state[:, 1:])
        mass = segment_logsumexp(affinity, edges.query, edges.num_queries)
        return affinity - self.alpha * mass[edges.query] + state[edges.point, 0]


class ImprovedWeights(Weighting):
    """Weights W_ij = K_ij / κ_j, K a heat kernel and κ_j the number of neighbours of j (Baghani & Araabi).

    *Improved Laplacian eigenmaps*: the paper's problem is (D − W) y = λ y, ``normalization="unnormalized"`` of
    `LaplacianEigenmaps`, on an ε-neighbourhood graph (`Radius`), with K_ij = exp(−‖x_i − x_j‖² / 4t): its t times 4 is
    the ``t`` here. W is not symmetric. The graph returned holds the symmetric Q^½ K Q^½, Q = diag(1/κ), and
    ``similarity`` r = κ^½ with W_ij = r_i (Q^½ K Q^½)_ij / r_j; solutions are y = Q^-½ u of the symmetric ones.

    Args:
        t, learnable: as for `HeatKernel`.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> ImprovedWeights(math.inf)(torch.zeros(3, 1), path).to_dense()  # 1/κ_j, κ is 1, 2, 1
    tensor([[0.0000, 0.5000, 0.0000],
            [1.0000, 0.0000, 1.0000],
            [0.0000, 0.5000, 0.0000]])
    """

    CONFIGURATION: ClassVar[tuple[str, ...]] = ("kernel",)

    def __init__(self, t: Bandwidth = "median", *, learnable: bool = False) -> None:
        super().__init__()
        self.kernel = HeatKernel(t, learnable=learnable)

    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """Return ``graph`` with the weights in symmetric form; raise ValueError if it has such a form already."""
        if graph.similarity is not None:
            raise ValueError("graph has been weighted by ImprovedWeights already; weight the graph of the search")
        root = self._counts(graph).sqrt()
        inverse = 1 / root
        weighted = self.kernel(x, graph)
        weight = graph.pattern.at_row(inverse) * weighted.weight * graph.pattern.at_col(inverse)
        return weighted._with(weight=weight, similarity=root)

    def _counts(self, graph: Graph) -> Tensor:
        """Return κ, of the graph's shape, without self loops; 1 without neighbours. Constant, so without gradients."""
        present = (graph.weight.detach() > 0).to(graph.weight.dtype)
        return graph.pattern.sum_rows(graph.pattern.without_loops(present)).clamp_min(1)

    def state(self, x: Tensor, graph: Graph) -> Tensor:
        """Return bandwidth and log κ of each point."""
        return torch.cat([self.kernel.state(x, graph), self._counts(graph).log()[:, None]], 1)

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return log K(x, x_i) − log κ_i."""
        return self.kernel.extend(edges, state) - state[edges.point, 1]


def check_weighting(weights: Any) -> None:
    """Raise TypeError unless ``weights`` is None or a `Weighting`."""
    if weights is not None:
        checks.check_instance(weights, "weights", Weighting, "a Weighting such as HeatKernel()")


def _check_points(x: Tensor, graph: Graph) -> Tensor:
    """Return the points of a graph, checked; padding, whatever it holds, as zeros."""
    x = checks.single(x)
    checks.check_floating(x, "x")
    if tuple(x.shape[:-1]) != tuple(graph.shape):
        raise ValueError(f"x must have shape {(*graph.shape, 'D')} to go with the graph, got {tuple(x.shape)}")
    x = x if graph.mask is None else torch.where(graph.mask[..., None], x, 0)
    checks.check_finite(x, "x")
    return checks.finite_gradient(x)


# --- Lengths of edges and their scales --------------------------------------------------------------------------------


def rescale(x: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """Return points over a power of two near each graph's largest coordinate, and the power, ``(1,)`` or ``(B, 1)``.

    A kernel that does not depend on the unit has the same values to the last bit, and neither its lengths nor their
    derivatives overflow or underflow with the unit of the points.
    """
    unit = checks.power_of_two(graph.pattern.largest(x)[..., None, :], (-2, -1))
    return x / unit, unit[..., 0]


def gaussian(graph: Graph, squared_lengths: Tensor, scale: Tensor) -> Graph:
    """Return ``graph`` with its weights times exp(−d²/scale). Edges on which the factor is zero are constant."""
    negligible = 1e3  # exp(−1000) is 0 in every dtype
    near = checks.primal(squared_lengths) <= negligible * checks.primal(scale)
    # Far edges have a zero derivative, since the quotient's may be ∞.
    exponent = -torch.where(near, squared_lengths, negligible) / torch.where(near, scale, 1)
    exponent = checks.finite_gradient(exponent)
    log_weight: Tensor | None = exponent
    if has_differentiable_zeros(graph):
        log_weight = None
    elif graph.weight.requires_grad or checks.is_dual(graph.weight):
        log_weight = exponent + (finite_log(graph.weight) if graph.log_weight is None else graph.log_weight)
    return graph._with(weight=graph.weight * exponent.exp(), log_weight=log_weight)


def has_differentiable_zeros(graph: Graph) -> bool:
    """Return whether derivatives may be asked for in weights of 0, which cannot pass through a logarithm."""
    w = graph.weight
    return graph.log_weight is None and (w.requires_grad or checks.is_dual(w)) and bool((w.detach() == 0).any())


def lengths_by_node(squared_lengths: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """Return squared lengths of the edges of positive weight between distinct nodes, and the first node of each."""
    pattern = graph.pattern
    if isinstance(pattern, SparsePattern):
        proper = pattern.without_loops(graph.weight.detach()).nonzero().flatten()
        return squared_lengths[proper], pattern.row[proper].long()
    n = graph.num_nodes
    item, i, j = pattern.without_loops(graph.weight.detach()).reshape(-1, n, n).nonzero(as_tuple=True)
    return squared_lengths.reshape(-1, n, n)[item, i, j], item * n + i


def local_scales(squared_lengths: Tensor, node: Tensor, total: int, m: int) -> Tensor:
    """Return σ ``(total,)`` of each node: the length of its m-th shortest edge, or of its longest; 1 without edges.

    Where that length is 0 it is the shortest positive one, or 1 where all are 0: weights between copies are 1 anyway.
    """
    squared = kth_of_groups(squared_lengths, node, total, m)
    none = squared.detach() <= 0

    def warn() -> None:
        checks.warn(
            f"m={m} neighbours of {int(none.sum())} of {total} nodes are copies of them: their scale is the distance "
            "to their nearest other neighbour; use a larger m, or remove duplicates",
            checks.GraphWarning,
        )

    checks.later(none.any(), warn)
    if none.any():
        positive = (squared_lengths.detach() > 0).nonzero().flatten()
        squared = torch.where(none, kth_of_groups(squared_lengths[positive], node[positive], total, 1), squared)
    return squared.sqrt()


def median_at_nodes(squared_lengths: Tensor, graph: Graph, group: Tensor, total: int) -> Tensor:
    """Return the lower median of the squared edge lengths of each of ``total`` groups of nodes, at its nodes."""
    pattern = graph.pattern
    lengths, node = lengths_by_node(squared_lengths, graph)
    of_edge = group.flatten()[node]
    medians = pattern.medians(lengths, of_edge, total)
    none = medians <= 0

    def warn() -> None:
        checks.warn(
            f"at least half of the edges join copies of the same point in {int(none.sum())} of {total} "
            "graphs or components: their bandwidth is the median of the positive lengths; set t, or remove duplicates",
            checks.GraphWarning,
        )

    checks.later(none.any(), warn)
    if none.any():
        positive = (lengths.detach() > 0).nonzero().flatten()
        medians = torch.where(none, pattern.medians(lengths[positive], of_edge[positive], total), medians)
    # Gradients are made finite twice: infinite sums, over nodes and over edges, would cancel to NaN.
    return checks.finite_gradient(gather(checks.finite_gradient(medians), group.flatten()).reshape(group.shape))


# --- Powers and logarithms whose derivatives neither overflow nor divide by zero --------------------------------------


def inverse_power(degrees: Tensor, power: float) -> Tensor:
    """Return degrees^−power, and 0 with a zero gradient where the degree is 0 or below the smallest normal number.

    The derivatives go through the logarithm: the derivative of a power, d^−(power + 1), overflows for tiny degrees
    where its product with the cotangent does not. The value is the power itself, as exp(log) has an error of eps times
    the logarithm.
    """
    positive = degrees > torch.finfo(degrees.dtype).tiny
    degrees = torch.where(positive, degrees, 1)
    return with_log_derivative(positive * checks.primal(degrees).pow(-power), -power * degrees.log())


def with_log_derivative(values: Tensor, logarithm: Tensor) -> Tensor:
    """Return ``values`` ≥ 0 as they are, with the derivatives, of any order and mode, of exp(``logarithm``).

    The logarithm may differ from that of the values by a constant. Zeros are constant. The derivative of the smallest
    value is as small as the value, where a chain of quotients would overflow.
    """
    values = checks.primal(values)
    change = torch.where(values > 0, logarithm - checks.primal(logarithm), 0)
    return values * change.exp()


def log_sums(pattern: Pattern, values: Tensor, logarithm: Tensor, zeros: Tensor | None = None) -> Tensor:
    """Return a tensor of the graph's shape with the derivatives of log Σ_j of edge values, given their logarithm.

    Values that are 0 take the derivatives of ``zeros``, see `only_zeros`.
    """
    inverse = pattern.at_row(inverse_power(checks.primal(pattern.sum_rows(values)), 1.0))
    share = with_log_derivative(values * inverse, logarithm)
    if zeros is not None:
        share = share + checks.finite_gradient(zeros) * inverse
    whole = pattern.sum_rows(share)
    return torch.where(whole > 0, torch.where(whole > 0, whole, 1).log(), 0)


def only_zeros(values: Tensor) -> Tensor:
    """Return zeros with the derivatives of ``values`` where these are 0 and have no logarithm."""
    return torch.where(values > 0, 0, checks.finite_gradient(values))


def finite_log(values: Tensor) -> Tensor:
    """Return log of positive values, 0 for others. Its gradient is made finite, with a warning where it is not."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, checks.finite_gradient(values), 1).log(), 0)
