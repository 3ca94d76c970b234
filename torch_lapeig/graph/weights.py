"""Edge weightings: small modules that map points and a graph to the weighted graph, with gradients.

For new points, `Weighting.state` keeps numbers of each training point, and `Weighting.extend` weights the edges to
training points.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_lapeig.graph.algebra import gather, kth_of_groups, segment_logsumexp
from torch_lapeig.graph.distances import edge_lengths
from torch_lapeig.graph.graph import Graph, check_graph
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.search.exact import COORDINATES, measured
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import Configured
from torch_lapeig.support.kinds import refuse


class NewEdges(NamedTuple):
    """Edges between new points and training points, the argument of `Weighting.extend`.

    Attributes:
        query, point: int64 ``(E,)``, the number of the new point and of the training point of each edge; of all pairs,
            in frozen maps, ``(Q, 1)`` and ``(N,)``, with ``(Q, N)`` of the others, and a connectivity of 0 for no edge.
        squared_lengths: ``(E,)``, float32 or float64, with gradients.
        connectivity: ``(E,)``: 1, or ½ for one-sided edges of ``symmetrize="mean"``.
        num_queries: number of new points.

    >>> query, point = torch.tensor([[0, 0], [3, 7]])
    >>> edges = NewEdges(query, point, torch.tensor([1.0, 4.0]), torch.ones(2), 1)
    >>> SimpleWeights().extend(edges, torch.zeros(8, 1)).exp()
    tensor([1., 1.])
    """

    query: Tensor
    point: Tensor
    squared_lengths: Tensor
    connectivity: Tensor
    num_queries: int


Bandwidth = float | Literal["median", "component-median", "steepest"]


def by_lengths(lengths: Tensor, graph: Graph) -> tuple[Tensor, Graph]:
    """Return points that are NaN, and the graph with lengths ``(E,)`` in their place."""
    pattern = SparsePattern.__new__(SparsePattern)
    squares = {"lengths": lengths, "squared_lengths": lambda x: lengths.to(x.dtype).square()}
    vars(pattern).update(vars(graph.pattern), **squares)
    # Who asks for coordinates, and not for lengths, finds NaN.
    return lengths.new_full((*graph.shape, 1), torch.nan), graph._with(pattern=pattern)


def _by_metric(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``forward`` or ``state`` of a weighting: it receives points whose Euclidean distances are the metric's."""

    @functools.wraps(method)
    def measuring(self: Weighting, x: Tensor, graph: Graph) -> Any:
        if not isinstance(graph, Graph) or graph.metric == "euclidean" or "lengths" in vars(graph.pattern):
            return method(self, x, graph)
        x = _check_points(x, graph)
        if graph.metric in COORDINATES:
            points, measured_once = measured(x, graph.metric, graph.mask), graph._with(metric="euclidean")
        else:
            points, measured_once = by_lengths(edge_lengths(x, graph), graph)
        found = method(self, points, measured_once)
        return found._with(metric=graph.metric, pattern=graph.pattern) if isinstance(found, Graph) else found

    return measuring


class Weighting(Configured, nn.Module, abc.ABC):
    """Weighting, called as ``weighting(x, graph)``, that multiplies the weights of the graph by its own.

    After a search the weights of the graph are 1, or ½ for the one-sided edges of ``symmetrize="mean"``. Gradients flow
    to points, bandwidths and given weights, on the edges only.

    A subclass defines the weights of a graph (``forward``) and their extension to new points (``state``, ``extend``).
    It names in ``CONFIGURATION`` the attributes that its results depend on: a saved fit is not loaded into a module in
    which they differ. Parameters are learned and moved as in any module. Methods run the three in full precision under
    autocast. With a graph of ``metric="cosine"`` they receive the points scaled to length 1, and the squared lengths
    of edges between these. With metrics that have no coordinates, points are NaN: ``graph.pattern.squared_lengths``
    has the lengths.

    The example weights by the relative density of two points: 1 / (1 + ‖x_i − x_j‖² / (s_i + s_j)), where s_i is the
    mean squared length of the edges at i.

    >>> from torch_lapeig import KNN, LaplacianEigenmaps
    >>> class Cauchy(Weighting):
    ...     def forward(self, x, graph):
    ...         pattern, scale = graph.pattern, self.state(x, graph)[:, 0]
    ...         scale = pattern.at_row(scale) + pattern.at_col(scale)
    ...         return graph.with_weight(
    ...             graph.weight / (1 + pattern.squared_lengths(x) / scale)
    ...         )
    ...
    ...     def state(self, x, graph):
    ...         pattern, weight = graph.pattern, graph.weight
    ...         total = pattern.sum_rows(weight * pattern.squared_lengths(x))
    ...         return (total / pattern.sum_rows(weight))[:, None]
    ...
    ...     def extend(self, edges, state):
    ...         total, count = torch.zeros(2, edges.num_queries, dtype=state.dtype)
    ...         weight, squares = edges.connectivity, edges.squared_lengths
    ...         total = total.index_add(0, edges.query, weight * squares)
    ...         count = count.index_add(0, edges.query, weight)
    ...         scale = (total / count)[edges.query] + state[edges.point, 0]
    ...         return weight.log() - (squares / scale).log1p()
    >>> x = torch.rand(80, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> module = LaplacianEigenmaps(2, KNN(8), Cauchy()).fit(x)
    >>> torch.allclose(module.transform(x[:5]), module.embedding_[:5])
    True
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in {"forward", "state"} & vars(cls).keys():  # methods of embeddings call `extend` in full precision
            setattr(cls, name, precision.full_precision(_by_metric(vars(cls)[name])))

    def __call__(self, x: Tensor, graph: Graph) -> Graph:
        """Return `forward` of a graph; raise TypeError for anything else."""
        check_graph(graph)
        given = {"x": x, "weights": graph.weight, **dict(self.named_parameters())}
        graph.pattern.compare("a weighting", lambda: {"weighting": self, **checks.facts_of_rows(**given)})
        if graph.mask is not None and isinstance(x, Tensor) and x.shape[:-1] == graph.mask.shape:
            x = torch.where(graph.mask[..., None], x, 0)  # padding may hold anything
        return super().__call__(x, graph)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the constructor's arguments that are numbers or strings."""
        values = {name: getattr(self, name) for name in self.CONFIGURATION}
        return ", ".join(f"{name}={value!r}" for name, value in values.items() if isinstance(value, (str, int, float)))

    @abc.abstractmethod
    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """Return ``graph`` with its weights times the weights of this module; differentiable.

        ``x`` are the points of the graph, ``(N, D)`` or ``(B, N, D)``, zeros at padding. ``graph.pattern`` has
        functions of values on edges, see `SparsePattern` and `DensePattern`; `Graph.with_weight` makes the result.
        """

    def state(self, x: Tensor, graph: Graph) -> Tensor:
        """Return the numbers of each training point that `extend` needs: ``(N, s)``, s ≥ 1; zeros for no number.

        ``x`` is ``(N, D)``, and ``graph`` is the argument of ``forward``, not its result.
        """
        return x.new_zeros(len(x), 1)

    @abc.abstractmethod
    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return log W(x, i) of the edges between new and training points, ``(E,)``; differentiable.

        A new point that equals a training point has the edges of the training point, and must get their weights. The
        result is a logarithm, because the weights of a far point may all underflow while their ratios do not.
        ``state`` ``(N, s)`` is the result of `state` for the training points.
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

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return the logarithm of the connectivity."""
        return edges.connectivity.log()


class KernelWeights(Weighting):
    """Weights W_ij = f(‖x_i − x_j‖²) by your own function f.

    Args:
        kernel: f, elementwise from squared distances of any shape to finite, non-negative weights of the same shape. It
            may be a module with parameters, which are learned.

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

    def _values(self, squared_lengths: Tensor, is_read: bool = True) -> Tensor:
        """Return the kernel, checked; its numbers only if they may be read."""
        values = self.kernel(squared_lengths.clone())  # which it may change
        checks.check_floating(values, "kernel(squared_lengths)")
        if values.shape != squared_lengths.shape:
            expected = f"a weight for each squared distance, {tuple(squared_lengths.shape)}"
            raise ValueError(f"kernel must return {expected}, got shape {tuple(values.shape)}")
        if is_read and not (torch.isfinite(values) & (values >= 0)).all():
            got = f"values from {values.detach().min():.3g} to {values.detach().max():.3g}"
            raise ValueError(f"kernel must return finite, non-negative weights of squared distances, got {got}")
        return values

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return log f of the squared lengths."""
        # At lengths of no edge the kernel may have no value, or no derivative.
        lengths = torch.where(edges.connectivity > 0, edges.squared_lengths, 1).to(state.dtype)
        values = edges.connectivity * self._values(lengths, is_read=edges.query.ndim == 1)
        positive = values > 0
        values = torch.where(positive, checks.finite_gradient(values), 1)
        return torch.where(positive, values.log(), -torch.inf)


@checks.with_advice
class HeatKernel(Weighting):
    """Weights W_ij = exp(−‖x_i − x_j‖² / t) on every edge (Belkin & Niyogi 2003, section 2, step 2a).

    Half of the literature writes 4t for t: their bandwidth times 4 is the ``t`` here. A Gaussian of standard
    deviation σ has ``t`` = 2σ².

    Args:
        t: bandwidth in squared units of the points, positive; ``math.inf`` makes every weight 1, as `SimpleWeights`.
            ``"median"``: the median of the squared edge lengths of each graph (the lower of the two middle ones);
            ``"component-median"``: the median of each connected component. Gradients flow through medians, to equal
            lengths in equal parts. Where copies of points make a median 0, the median of the positive lengths takes its
            place (1 without any), with a `GraphWarning`.
            ``"steepest"``: the bandwidth at which the sum of the kernel over edges and diagonal grows fastest with t on
            logarithmic axes (Coifman et al. 2008, section IV), within 2^±16 of the median. The slope there is half the
            dimension of the points, less the part of the missing edges.
        learnable: learn a factor of the bandwidth, t · exp(``log_factor``), which keeps it positive. The parameter
            ``log_factor`` starts at 0, in float32; use ``.double()`` for points in float64.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> HeatKernel(2.0)(torch.tensor([[0.0], [1.0], [3.0]]), path).weight
    tensor([0.6065, 0.6065, 0.1353, 0.1353])
    """

    CONFIGURATION: ClassVar[tuple[str, ...]] = ("t", "learnable")
    log_factor: nn.Parameter | None

    def __init__(self, t: Bandwidth = "median", *, learnable: bool = False) -> None:
        super().__init__()
        if isinstance(t, str):
            checks.check_choice(t, "t", ("median", "component-median", "steepest"))
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
        """Return the factor of the bandwidth, exp(``log_factor``); 1 unless it is learnable."""
        return 1.0 if self.log_factor is None else math.exp(self.log_factor.item())

    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """Return ``graph`` with its weights times the kernel."""
        squared_lengths, unit = _lengths(x, graph)
        t = self.bandwidth(squared_lengths, graph)
        t = t if isinstance(self.t, str) else t / unit / unit
        return gaussian(graph, squared_lengths, graph.pattern.at_row(t), x.dtype)

    def bandwidth(self, squared_lengths: Tensor, graph: Graph) -> Tensor:
        """Return each node's bandwidth, of the graph's shape, from squared edge lengths: t · exp(``log_factor``)."""
        if self.t == "steepest":
            t = steepest_at_nodes(squared_lengths, graph)
        elif isinstance(self.t, str):
            t = _medians(squared_lengths, graph, by_component=self.t == "component-median")
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
        m: rank of the neighbour whose distance is σ_i, at least 1; the farthest at nodes with fewer neighbours. Where
            the m-th is a copy of the node, σ is the distance to its nearest neighbour that is no copy, with a
            `GraphWarning`.

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
        squared_lengths, _ = _lengths(x, graph)
        sigma = self._sigma(squared_lengths, graph)
        return gaussian(graph, squared_lengths, pattern.at_row(sigma) * pattern.at_col(sigma), x.dtype)

    def _sigma(self, squared_lengths: Tensor, graph: Graph) -> Tensor:
        """Return σ of each node, of the shape of the graph; 1 at nodes without edges."""
        lengths, node = lengths_by_node(squared_lengths, graph)
        return local_scales(lengths, node, math.prod(graph.shape), self.m).reshape(graph.shape)

    def state(self, x: Tensor, graph: Graph) -> Tensor:
        """Return σ of each point, ``(N, 1)``."""
        return self._sigma(graph.pattern.squared_lengths(x), graph)[:, None]

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return −‖x − x_i‖² / (σ_x σ_i), with σ_x from the edges of the new point."""
        if edges.query.ndim == 2:
            sigma = _scales_of_rows(torch.where(edges.connectivity > 0, edges.squared_lengths, torch.inf), self.m)
        else:
            sigma = local_scales(edges.squared_lengths, edges.query, edges.num_queries, self.m)
        return edges.connectivity.log() - edges.squared_lengths / (sigma[edges.query] * state[edges.point, 0])


class DensityCorrected(Weighting):
    """Weights W_ij = K_ij / (q_i q_j)^α with q_i = Σ_j K_ij of another weighting K (Coifman & Lafon 2006, section 3.4).

    α = 1 removes the influence of the sampling density: eigenvectors approach those of the Laplace–Beltrami operator.

    Args:
        alpha: α in [0, 1]; 0 changes nothing.
        weights: K, not `ImprovedWeights`; default ``HeatKernel("median")``.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> # degrees are 1, 2, 1
    >>> DensityCorrected(1.0, SimpleWeights())(torch.zeros(3, 1), path).weight
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    CONFIGURATION: ClassVar[tuple[str, ...]] = ("alpha", "weights")

    def __init__(self, alpha: float = 1.0, weights: Weighting | None = None) -> None:
        super().__init__()
        check_weighting(weights)
        refuse("weighting, density", weights=weights)
        self.alpha = checks.check_number(alpha, "alpha", 0, 1)
        self.weights = HeatKernel() if weights is None else weights

    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """Return ``graph`` with the corrected weights."""
        graph = self.weights(x, graph)
        refuse("weighting, density", weights=graph)
        pattern, exact, dtype = graph.pattern, graph.exact, graph.weight.dtype
        graph = graph._with(density_correction=self.alpha)
        log_scale, level = self._log_scale(graph)
        if level is None:
            scale = inverse_power(pattern.sum_rows(exact), self.alpha)
            return graph._weighted(dtype, pattern.scaled(exact, scale), None)
        wide, exponent = graph.wide, graph.exponent
        if wide is None or exponent is None:
            wide, exponent = graph.divided(exact, pattern.at_row(level), pattern.at_col(level)), torch.zeros_like(exact)
            log_scale = log_scale + level.log()
        return graph._weighted(dtype, wide, exponent + pattern.at_row(log_scale) + pattern.at_col(log_scale))

    def _log_scale(self, graph: Graph) -> tuple[Tensor, Tensor | None]:
        """Return −α log q of each node in float64, 0 without edges, and the levels of tiny weights."""
        pattern, exact = graph.pattern, graph.exact
        level = pattern.levels(exact) if graph.weight.dtype == torch.float64 else None
        row = None if level is None else pattern.at_row(level)
        density = pattern.sum_rows(exact if row is None else graph.divided(exact, row, row))
        log_density = torch.where(density > 0, density, 1).log()
        return -self.alpha * (log_density if level is None else log_density + 2 * level.log()), level

    def state(self, x: Tensor, graph: Graph) -> Tensor:
        """Return the logarithm of q^-α of each point (0 without edges), then the state of K."""
        (log_scale, _), state = self._log_scale(self.weights(x, graph)), self.weights.state(x, graph)
        return torch.cat([log_scale[:, None].to(state.dtype), state], 1)

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        """Return log K(x, x_i) − α log q(x) − α log q_i."""
        affinity = self.weights.extend(edges, state[:, 1:])
        mass = segment_logsumexp(affinity, edges.query, edges.num_queries)
        return affinity - self.alpha * torch.where(mass.isinf(), 0, mass)[edges.query] + state[edges.point, 0]


class ImprovedWeights(Weighting):
    """Weights W_ij = K_ij / κ_j, K a heat kernel and κ_j the number of neighbours of j (Baghani & Araabi).

    *Improved Laplacian eigenmaps*: the paper's problem is (D − W) y = λ y, ``normalization="unnormalized"`` of
    `LaplacianEigenmaps`, on an ε-neighbourhood graph (`Radius`), with K_ij = exp(−‖x_i − x_j‖² / 4t): the paper's t
    times 4 is the ``t`` here. W is not symmetric. The result holds the symmetric Q^½ K Q^½, Q = diag(1/κ), and
    ``similarity`` r = κ^½ with W_ij = r_i (Q^½ K Q^½)_ij / r_j; for eigenvectors u of the symmetric problem, y = Q^-½ u
    solves the paper's.

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
        """Return ``graph`` with the weights in symmetric form; raise ValueError if it has a similarity already."""
        refuse("weighting, ImprovedWeights", graph=graph)
        root = self._counts(graph).sqrt()
        weighted = self.kernel(x, graph)
        dtype, wide = weighted.weight.dtype, weighted.wide
        assert wide is not None
        wide = graph.pattern.scaled(wide, 1 / root.double())
        return weighted._weighted(dtype, wide, weighted.exponent, similarity=root.to(dtype))

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
    x = checks.half_to_float32(x)
    checks.check_floating(x, "x")
    if tuple(x.shape[:-1]) != tuple(graph.shape):
        raise ValueError(f"x must have shape {(*graph.shape, 'D')} to go with the graph, got {tuple(x.shape)}")
    if graph.metric in COORDINATES:  # `edge_lengths` checks distances, but of padding
        checks.check_finite(x, "x")
    return checks.finite_gradient(x)


# --- Lengths of edges and their scales --------------------------------------------------------------------------------


def _lengths(x: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """Return squared lengths in float64 and in a unit, a power of two near each graph's largest coordinate, and it."""
    points = _check_points(x, graph).double()
    # Values of kernels without a unit stay the same to the last bit, and no lengths or derivatives leave the range.
    unit = checks.power_of_two(graph.pattern.largest(points)[..., None, :], (-2, -1))
    return graph.pattern.squared_lengths(points / unit), unit[..., 0]


def gaussian(graph: Graph, squared_lengths: Tensor, scale: Tensor, dtype: torch.dtype) -> Graph:
    """Return ``graph`` with its weights times exp(−d²/scale), computed in float64."""
    negligible = -math.log(torch.finfo(dtype).tiny)
    # A factor below the smallest normal number is zero, and no gradient flows through it.
    near = checks.primal(squared_lengths) <= negligible * checks.primal(scale)
    # Give far edges a zero derivative: the derivative of the quotient may be ∞.
    quotient = torch.where(near, squared_lengths, 0) / torch.where(near, scale, 1)
    exponent, wide = torch.where(near, -checks.finite_gradient(quotient), -torch.inf), graph.exact
    weight, to = wide * exponent.exp(), torch.promote_types(dtype, graph.weight.dtype)
    if dtype == torch.float64 and graph.pattern.levels(weight) is not None:  # derivatives might overflow
        return graph._weighted(to, wide, exponent)
    return graph._weighted(to, weight, None)


def lengths_by_node(squared_lengths: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """Return squared lengths of the edges of positive weight between distinct nodes, and the first node of each."""
    pattern = graph.pattern
    proper = pattern.without_loops(graph.weight.detach()).nonzero(as_tuple=True)
    if isinstance(pattern, SparsePattern):
        return squared_lengths[proper], pattern.row[proper].long()
    first = proper[0] * graph.num_nodes if len(graph.shape) > 1 else 0  # node of the graph
    return squared_lengths[proper], proper[-2] + first


def local_scales(squared_lengths: Tensor, node: Tensor, total: int, m: int) -> Tensor:
    """Return σ ``(total,)`` of each node: the length of its m-th shortest edge, or of its longest; 1 without edges."""
    squared = kth_of_groups(squared_lengths, node, total, m)
    message = (
        f"m={m} neighbours of {{}} of {total} nodes are copies of them: their scale is the distance to their nearest "
        "other neighbour; use a larger m, of more neighbours than copies, or remove duplicates"
    )
    # For 0, the shortest positive length, or 1 where all are 0: weights between copies are 1 anyway.
    shortest = functools.partial(kth_of_groups, total=total, k=1)
    return _above_zero(squared, squared_lengths, node, shortest, message).sqrt()


def _scales_of_rows(lengths: Tensor, m: int) -> Tensor:
    """Return `local_scales` of rows of squared lengths ``(Q, N)``, ∞ for no edge, in operations that are exported."""
    nearest = lengths.topk(min(m, lengths.shape[1]), largest=False).values
    own = torch.where(nearest.isinf(), 0, nearest).amax(1)
    other = torch.where(lengths > 0, lengths, torch.inf).amin(1)
    return torch.where(own > 0, own, torch.where(other.isinf(), 1, other)).sqrt()


def _above_zero(
    found: Tensor, lengths: Tensor, group: Tensor, reduce: Callable[[Tensor, Tensor], Tensor], message: str
) -> Tensor:
    """Return ``found`` of each group; where it is 0, with a warning, what ``reduce`` finds of the positive lengths."""
    none = found <= 0
    precision.check_at_next_sync(none.any(), lambda: checks.warn(message.format(int(none.sum())), checks.GraphWarning))
    if none.any():
        positive = (lengths.detach() > 0).nonzero().flatten()
        found = torch.where(none, reduce(lengths[positive], group[positive]), found)
    return found


def _medians(squared_lengths: Tensor, graph: Graph, by_component: bool = False) -> Tensor:
    """Return the lower median of the squared edge lengths of each graph or component, at its nodes."""
    pattern, n, b = graph.pattern, graph.num_nodes, graph.batch_size
    group, total = torch.arange(b, device=squared_lengths.device)[:, None].expand(b, n), b
    if by_component:
        group = group * n + graph.connected_components().reshape(b, n).clamp_min(0)
        total = int(pattern.largest(group.reshape(-1, 1))) + 1
    group = group.flatten()
    lengths, node = lengths_by_node(squared_lengths, graph)
    edge_group, medians = group[node], functools.partial(pattern.medians, total=total)
    message = (
        f"at least half of the edges join copies of the same point in {{}} of {total} graphs or components: their "
        "bandwidth is the median of the positive lengths; set t, or remove duplicates"
    )
    found = _above_zero(medians(lengths, edge_group), lengths, edge_group, medians, message)
    # Make gradients finite twice: infinite sums, over nodes and over edges, would cancel to NaN.
    return checks.finite_gradient(gather(checks.finite_gradient(found), group).reshape(graph.shape))


def steepest_at_nodes(squared_lengths: Tensor, graph: Graph) -> Tensor:
    """Return the bandwidth at which each graph's sum of kernel values grows fastest on logarithmic axes, at its nodes.

    With z = d²/t, s = n + Σ exp(−z) over the edges and a_p = Σ z^p exp(−z), the slope d log s / d log t is a_1 / s. Its
    derivative f is (a_2 − a_1) / s − (a_1 / s)², whose root is bracketed by halving an octave. Two steps of Newton's
    method settle its digits and have its derivatives in the lengths, the second step those of second order.
    """
    pattern, start, octaves = graph.pattern, _medians(squared_lengths.detach(), graph), 16
    proper = pattern.without_loops((graph.weight.detach() > 0).to(squared_lengths.dtype))
    count = pattern.sum((pattern.sum_rows(proper) > 0).sum(-1))
    scaled = squared_lengths / pattern.at_row(start)

    def slopes(log_t: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the slope and its first two derivatives in log t, of each graph."""
        z = lengths * pattern.at_row((-log_t).exp()[..., None].expand(graph.shape))
        z = torch.where(z < 1e3, z, 1e3)  # exp(−1000) is 0 in every dtype
        terms = [proper * (-z).exp()]
        terms += [terms[0] * factor for factor in (z, z * (z - 1), z * (z * (z - 3) + 1))]
        total, first, second, third = (pattern.sum(pattern.sum_rows(term).sum(-1)) for term in terms)
        total = (total + count).clamp_min(1)
        m = first / total
        return m, second / total - m**2, third / total - 3 * m * second / total + 2 * m**3

    with torch.no_grad():
        grid = math.log(2) * torch.arange(-octaves, octaves + 1, device=count.device, dtype=scaled.dtype)
        found = torch.stack([slopes(log_t.expand(count.shape), scaled)[0] for log_t in grid])
        best = found.argmax(0)
        some = found.amax(0) > 0  # a graph without edges has no slope
        if pattern.any((some & (best % (2 * octaves) == 0)).any()):
            raise ValueError('t="steepest" found no bandwidth within 2^±16 of the median squared length; give a number')
        low, high = grid[(best - 1).clamp_min(0)], grid[(best + 1).clamp_max(2 * octaves)]
        for _ in range(12):
            log_t = (low + high) / 2
            rises = slopes(log_t, scaled)[1] > 0
            low, high = torch.where(rises, log_t, low), torch.where(rises, high, log_t)
    for _ in range(2):
        _, f, change = slopes(log_t, scaled)
        log_t = log_t - torch.where(some, f, 0) / torch.where(some & (change < 0), change, -1)
    return start * torch.where(some, log_t, 0).exp()[..., None].expand(graph.shape)


def inverse_power(degrees: Tensor, power: float) -> Tensor:
    """Return degrees^−power, and 0 with a zero gradient where the degree is 0 or below the smallest normal number."""
    positive = degrees.detach() > torch.finfo(degrees.dtype).tiny
    return positive * torch.where(positive, degrees, 1).pow(-power)
