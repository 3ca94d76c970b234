"""The graph Laplacian in three normalisations, and the symmetric operator by which each is solved."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.symmetric import NullSpace, SymmetricOperator, in_double
from torch_lapeig.graph.graph import Graph, check_graph
from torch_lapeig.graph.weights import finite_log, inverse_power, log_sums, only_zeros, with_log_derivative
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property

Normalization = Literal["symmetric", "random_walk", "unnormalized"]
NORMALIZATIONS = ("symmetric", "random_walk", "unnormalized")


class Has(NamedTuple):
    """Properties of a Laplacian.

    Attributes:
        unsound: some weights are negative or not finite.
        isolated: some valid nodes have no edges.
        slight: some nodes are `Laplacian.slight`.
        delicate: derivatives in the weights may overflow at some nodes.
    """

    unsound: bool
    isolated: bool
    slight: bool
    delicate: bool


class Laplacian:
    """Laplacian L = D − W of a weighted graph, or one of its normalisations, as diag(c) − M on the graph's edges.

    | ``normalization`` | operator | spectrum |
    |---|---|---|
    | ``"symmetric"`` | L_sym = I − D^-½ W D^-½ | [0, 2] |
    | ``"random_walk"`` | L_rw = I − D^-1 W, similar to L_sym | [0, 2] |
    | ``"unnormalized"`` | L = D − W | [0, 2 max d] |

    A node of degree zero (isolated, or padding) has a zero row, as in Chung, *Spectral Graph Theory* (1997), 1.2. Where
    the graph's affinity is only similar to a symmetric one (`Graph.similarity`), ``"symmetric"`` is the Laplacian of
    the symmetric one. Self loops count in the degrees; products, entries and eigenpairs leave loops out, because they
    cancel there. Where a degree is a subnormal number of the weights' dtype (below 1.2e-38 in float32), subnormal
    weights count as zero: they have few digits, and none on processors that flush them.

    Args:
        graph: weighted graph or batch of graphs, sparse or dense; gradients flow to its weights. Where degrees are so
            small, or so far apart, that gradients to weights might overflow, gradients of the normalised operators flow
            to ``graph.log_weight`` instead, if it is not None, and none to ``graph.weight``.
        normalization: one of the above.

    Attributes:
        degrees: ``(N,)`` or ``(B, N)``, d_i = Σ_j W_ij.
        diagonal: c, ``(N,)`` or ``(B, N)``.
        values: M on the edges, of the shape of ``graph.weight``.
        symmetric: the `SymmetricOperator` of the same spectrum.
        factor: factor at each node from the eigenvectors of ``symmetric`` to those of this operator; None stands for 1.

    Raises:
        TypeError, ValueError: no `Graph`, an unknown ``normalization``.

    >>> from torch_lapeig import knn_graph
    >>> Laplacian(
    ...     knn_graph(torch.tensor([[0.0], [1.0], [3.0]]), k=1), "unnormalized"
    ... ).to_dense()
    tensor([[ 1.0000, -1.0000,  0.0000],
            [-1.0000,  1.5000, -0.5000],
            [ 0.0000, -0.5000,  0.5000]])
    """

    def __init__(self, graph: Graph, normalization: Normalization = "symmetric") -> None:
        checks.check_choice(normalization, "normalization", NORMALIZATIONS)
        check_graph(graph)
        if graph.pattern.is_sharded:
            asked = checks.derivatives_asked(weights=graph.weight)
            graph.pattern.agree("Laplacian", lambda: {"normalization": normalization, **asked})
        self._set(graph, normalization, graph.weight.dtype)

    def _set(self, graph: Graph, normalization: Normalization, given: torch.dtype) -> None:
        """Set the attributes; ``given`` is the dtype of the user's weights, in which derivatives may overflow."""
        self.normalization: Normalization = normalization
        self._given = given
        self._take(graph)
        if self._has_subnormal_degrees:
            self._take(_without_subnormal(graph, self._affinity))
        w, r = self.graph.weight, self.graph.similarity
        if normalization == "unnormalized":
            self.diagonal, self._symmetric_values, self.factor, self._inverse_root = self.degrees, w, r, None
            return
        s, self._symmetric_values = self._normalize("symmetric")
        self._inverse_root = s
        self.diagonal = self.active.to(w.dtype)
        # L_rw = D^-½ L_sym D^½, with a further factor r where W is only similar to a symmetric affinity.
        walk_factor = s if r is None else r * s
        self.factor = walk_factor if normalization == "random_walk" else None

    def _take(self, graph: Graph) -> None:
        pattern, w, r = graph.pattern, graph.weight, graph.similarity
        self.graph = graph
        self._affinity = w if r is None else pattern.at_row(r) * w / pattern.at_col(r)
        self.degrees = pattern.sum_rows(self._affinity)

    @property
    def _has_subnormal_degrees(self) -> bool:
        """Return whether positive degrees may be subnormal numbers; True where reading them would take longer."""
        pattern, degrees = self.graph.pattern, self.degrees.detach()
        if degrees.device.type != "cpu" and not pattern.is_sharded:
            return True
        return pattern.any(((degrees > 0) & (degrees <= torch.finfo(degrees.dtype).tiny)).any())

    @property
    def shape(self) -> tuple[int, ...]:
        """Return ``(N,)`` for one graph, ``(B, N)`` for a batch."""
        return self.graph.shape

    def _normalize(self, normalization: Normalization) -> tuple[Tensor, Tensor]:
        """Return D^-½ and D^-½ W D^-½ on the edges, or D^-1 and D^-1 W; by logarithms if derivatives may overflow."""
        graph, pattern, w = self.graph, self.graph.pattern, self.graph.weight
        symmetric = normalization == "symmetric"
        s = inverse_power(self.degrees, 0.5 if symmetric else 1.0)
        values = pattern.scaled(w, s) if symmetric else pattern.at_row(s) * self._affinity
        if needs_derivatives(w, graph.log_weight, graph.similarity) and self._is_delicate:
            return self._through_logarithms(s, values, symmetric)
        return s, values

    def _through_logarithms(self, s: Tensor, values: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
        """Return `_normalize` with derivatives by logarithms; weights of 0 keep their own derivatives."""
        pattern, w, log_weight, r = self.graph.pattern, self.graph.weight, self.graph.log_weight, self.graph.similarity
        zeros = only_zeros(w) if log_weight is None else None
        log_weight = finite_log(w) if log_weight is None else log_weight
        ratio = torch.ones_like(w) if r is None else pattern.at_row(r) / pattern.at_col(r)
        log_affinity = log_weight if r is None else log_weight + ratio.log()
        t = log_sums(pattern, self._affinity, log_affinity, None if zeros is None else zeros * ratio)
        t = (-0.5 if symmetric else -1.0) * t
        s = with_log_derivative(s, t)
        logarithm = log_weight + pattern.at_col(t) if symmetric else log_affinity
        values = with_log_derivative(values, logarithm + pattern.at_row(t))
        if zeros is not None:
            factor = pattern.at_row(s) * (pattern.at_col(s) if symmetric else ratio)
            values = values + checks.finite_gradient(zeros) * factor
        return s, values

    @property
    def values(self) -> Tensor:
        """Return M on the edges, with gradients."""
        if self.normalization == "unnormalized":
            return self._affinity
        # L_rw is computed on request: eigenpairs seldom need it.
        return self._normalize("random_walk")[1] if self.normalization == "random_walk" else self._symmetric_values

    @cached_property
    def symmetric(self) -> SymmetricOperator:
        """Return the symmetric operator with the Laplacian's spectrum: L_sym, or L, of the affinity ``graph.weight``.

        Raises:
            ValueError: no nodes; weights that are negative or not finite.
        """
        if math.prod(self.shape) == 0 and not self.graph.pattern.is_sharded:
            raise ValueError(f"laplacian must be of at least one graph with a node, got shape {self.shape}")
        self._check_weights()
        batch = self.graph.batch_size
        degrees, r = checks.primal(self.degrees).reshape(batch, -1), self.graph.similarity
        active = self.active.reshape(batch, -1)
        diagonal, values = self._without_loops(self._symmetric_values)
        unnormalized = self.normalization == "unnormalized"
        ground = active.to(degrees.dtype) if unnormalized else degrees.sqrt() * active
        largest = self.graph.pattern.largest(checks.primal(diagonal).reshape(batch, -1, 1))[:, 0]
        bound = 2 * (largest if unnormalized else torch.where(largest > 0, largest, 1))
        if self.has.unsound:  # the sum of the squares of the null vector may overflow
            ground = ground / checks.power_of_two(self.graph.pattern.largest(ground[..., None]), (-2,))[..., 0]
        if r is not None:
            ground = ground / checks.primal(r).reshape(batch, -1)
        return SymmetricOperator(
            self.graph.pattern,
            values,
            diagonal,
            bound=bound,
            null=NullSpace(ground, *self.active_components),
            active=active,
            of_affinities=True,
            trusted=True,
        )

    @property
    def scale(self) -> Tensor:
        """Return s of the graph's shape, with which ``symmetric`` has s_i W_ij s_j: D^-½ 1; 1 for L itself."""
        return torch.ones_like(self.degrees) if self._inverse_root is None else self._inverse_root

    @property
    def ground(self) -> Tensor:
        """Return each whole graph's null vector of ``symmetric``, ``(B, N)``: D^½ 1 up to a factor, with gradients."""
        null, s, r = self.symmetric.null, self._inverse_root, self.graph.similarity
        assert null is not None
        logarithm = torch.zeros_like(self.degrees) if s is None else -torch.where(s > 0, s, 1).log()
        logarithm = logarithm if r is None else logarithm - r.log()
        return with_log_derivative(null.ground, logarithm.reshape(null.ground.shape))

    def _check_weights(self) -> None:
        parts = [part.detach() for part in (self._symmetric_values, self.degrees) if part.numel()]
        if not self.has.unsound:
            return
        for part in parts:
            checks.check_finite(part, "laplacian")  # passes if only a sum of weights overflows
            if float(part.amin()) < 0:
                raise ValueError("laplacian must be of non-negative weights, got negative ones")

    def double(self) -> Laplacian:
        """Return the Laplacian of the same weights in float64; itself if it is in float64."""
        if self.graph.weight.dtype == torch.float64 or math.prod(self.shape) == 0:
            return self
        log_weight, r = self.graph.log_weight, self.graph.similarity
        weight = in_double(self.graph.pattern, self.graph.weight)
        log_weight = None if log_weight is None else checks.finite_gradient(log_weight).double()
        similarity = None if r is None else r.double()
        graph = self.graph._with(weight=weight, similarity=similarity, log_weight=log_weight)
        double = Laplacian.__new__(Laplacian)
        double._set(graph, self.normalization, self._given)
        # Positive weights stay positive in float64.
        vars(double)["active_components"] = self.active_components
        return double

    @cached_property
    def active(self) -> Tensor:
        """Return the nodes of positive degree, which take part in the eigenproblem, bool, of the graph's shape."""
        return self.degrees.detach() > torch.finfo(self.degrees.dtype).tiny

    @cached_property
    def _largest_degree(self) -> Tensor:
        """Return each graph's largest degree, ``(B,)``."""
        degrees = checks.primal(self.degrees).reshape(self.graph.batch_size, -1, 1)
        return self.graph.pattern.largest(degrees)[:, 0]

    @cached_property
    def fewest_active(self) -> int:
        """Return the smallest number of active nodes of a graph of the batch."""
        return int(self.graph.pattern.sum(self.active.reshape(self.graph.batch_size, -1).sum(1)).min())

    @cached_property
    def slight(self) -> Tensor:
        """Return the active nodes, bool, whose degrees are so far below the largest that D^-½ magnifies round-off.

        Below eps^¾ of the largest degree, an error of eps in v becomes an error of at least eps^⅝ in D^-½ v.
        """
        degrees = checks.primal(self.degrees)
        least = torch.finfo(degrees.dtype).eps ** 0.75 * self._largest_degree.reshape(*self.shape[:-1], 1)
        below: Tensor = self.active & (degrees < least)
        return below

    @property
    def _is_delicate(self) -> bool:
        """Return whether derivatives in the weights may overflow, and derivatives in their logarithms may not."""
        delicate = self.has.delicate
        return self.graph.pattern.any(self.degrees.new_tensor(delicate)) if self.graph.pattern.is_sharded else delicate

    @cached_property
    def has(self) -> Has:
        """Return the properties of this process's nodes and weights, found by one synchronisation."""
        degrees, weight = checks.primal(self.degrees), checks.primal(self._affinity)
        isolated = ~self.active if self.graph.mask is None else ~self.active & self.graph.mask
        tiny = self.active & (degrees < torch.finfo(self._given).tiny ** 0.25)
        unsound = ~degrees.sum().isfinite()
        if weight.numel():
            unsound = unsound | ~(weight.detach().amin() >= 0)
        slight = self.slight.any()
        return Has(*checks.synchronise(unsound, isolated.any(), slight, slight | tiny.any()))

    @cached_property
    def active_components(self) -> tuple[Tensor, Tensor]:
        """Return component labels ``(B, N)`` counted over active nodes (0 elsewhere), and their number ``(B,)``."""
        active = self.active.reshape(self.graph.batch_size, -1)
        labels = self.graph.pattern.components(self.graph.weight.detach()).reshape(active.shape)
        return self.graph.pattern.numbered_parts(labels, active)

    @cached_property
    def nullity(self) -> Tensor:
        """Return the dimension of the null space, int64 ``(B,)``: the number of components of positive degree."""
        return self.active_components[1]

    @checks.full_precision
    def matmul(self, y: Tensor) -> Tensor:
        """Return the product with ``y``, ``(N, m)`` or ``(B, N, m)``, in O(E·m); differentiable in both, at any order.

        Half precision is computed in the precision of the weights, and the result has the dtype of ``y``.
        """
        if tuple(y.shape[:-1]) != tuple(self.graph.shape):
            raise ValueError(f"y must have shape {(*self.graph.shape, 'm')}, got {tuple(y.shape)}")
        if y.dtype in checks.HALVES:
            return self.matmul(y.to(self.graph.weight.dtype)).to(y.dtype)
        is_symmetric = self.normalization != "random_walk" and self.graph.similarity is None
        diagonal, values = self._without_loops(self.values)
        return diagonal[..., None] * y - self.graph.pattern.matmul(values, y, is_symmetric=is_symmetric)

    def to_dense(self) -> Tensor:
        """Return the matrix ``(N, N)`` or ``(B, N, N)``, with gradients."""
        diagonal, values = self._without_loops(self.values)
        return self.graph.pattern.to_dense(-values) + torch.diag_embed(diagonal)

    def _without_loops(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return diagonal and M without loops: a large loop would cancel in the matrix and leave only round-off."""
        pattern = self.graph.pattern
        if not pattern.has_loops(values):
            return self.diagonal, values
        proper, other_affinity = pattern.without_loops(values), pattern.without_loops(self._affinity)
        others = pattern.sum_rows(other_affinity)
        if self.normalization == "unnormalized":
            return others, proper
        # One number in two forms: take the form whose derivatives do not cancel.
        loop, degree = pattern.sum_rows(self._affinity - other_affinity), torch.where(self.active, self.degrees, 1)
        share = torch.where(loop > others, others / degree, 1 - loop / degree)
        return torch.where(self.active, share, 0), proper


def _without_subnormal(graph: Graph, affinity: Tensor) -> Graph:
    """Return the graph with weights of zero where an affinity, in either direction, is subnormal."""
    affinity, tiny = checks.primal(affinity), torch.finfo(affinity.dtype).tiny
    is_normal = affinity > tiny
    if graph.similarity is not None:
        is_normal = is_normal & (graph.pattern.transpose(affinity) > tiny)
    return graph._with(weight=torch.where(is_normal | ~(affinity >= 0), graph.weight, 0))


def needs_derivatives(*tensors: Tensor | None) -> bool:
    """Return whether derivatives of either mode are asked for in one of the tensors."""
    is_recorded = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is not None and ((is_recorded and tensor.requires_grad) or checks.is_dual(tensor)):
            return True
    return False
