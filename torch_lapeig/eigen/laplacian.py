"""The graph Laplacian in three normalisations, and the symmetric operator by which each is solved."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.symmetric import NullSpace, SymmetricOperator
from torch_lapeig.graph.graph import Graph, check_graph
from torch_lapeig.graph.weights import inverse_power
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import deep_copy, derived_property, own_state

Normalization = Literal["symmetric", "random_walk", "unnormalized"]
NORMALIZATIONS = ("symmetric", "random_walk", "unnormalized")


class LaplacianFlags(NamedTuple):
    """Properties of a Laplacian."""

    invalid_weights: bool  # some weights are negative or not finite
    isolated: bool  # some valid nodes have no edges
    tiny_degrees: bool  # some nodes are `Laplacian.tiny_degrees`


class LaplacianParts(NamedTuple):
    """Weights of a Laplacian in float64, relative to levels l of nodes."""

    weight: Tensor  # over l_i l_j
    affinity: Tensor  # over l_i²
    relative: Tensor  # degrees over l_i²
    degrees: Tensor
    level: Tensor | None  # l; None stands for 1
    active: Tensor  # of positive degree
    scale: Tensor  # s, with which ``symmetric`` has s_i W_ij s_j: D^-½ 1; 1 for L itself


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
        graph: weighted graph or batch of graphs, sparse or dense. Gradients flow to its weights; after a weighting they
            flow past ``graph.weight``, in float64, to the points.
        normalization: one of the above.

    Everything is computed in float64. Results have the dtype of the weights, but for ``symmetric`` and ``factor``.

    Attributes:
        shape: ``(N,)`` for one graph, ``(B, N)`` for a batch.

    >>> pair = Graph.from_dense(torch.tensor([[0.0, 2.0], [2.0, 0.0]]))
    >>> Laplacian(pair, "unnormalized").to_dense()
    tensor([[ 2., -2.],
            [-2.,  2.]])
    """

    def __init__(self, graph: Graph, normalization: Normalization = "symmetric") -> None:
        checks.check_choice(normalization, "normalization", NORMALIZATIONS)
        check_graph(graph)
        facts = {"normalization": normalization}
        graph.pattern.compare("Laplacian", lambda: facts | checks.facts_of_rows(weights=graph.weight))
        self.graph, self.normalization, self.dtype, self.shape = graph, normalization, graph.weight.dtype, graph.shape
        self._sources = (graph.weight,) if graph.similarity is None else (graph.weight, graph.similarity)

    __getstate__, __deepcopy__ = own_state, deep_copy

    @property
    def factor(self) -> Tensor | None:
        """Return the factor at each node from eigenvectors of ``symmetric`` to those of this operator; None for 1."""
        if self.normalization == "symmetric":
            return None
        # L_rw = D^-½ L_sym D^½, with a further factor r where W is only similar to a symmetric affinity.
        r, parts, factor = self.graph.similarity, self._parts, None
        if self.normalization == "random_walk":
            factor = parts.scale if parts.level is None else parts.scale / parts.level
        return factor if r is None else r.double() if factor is None else r * factor

    @derived_property
    def _parts(self) -> LaplacianParts:
        """Return the weights; subnormal ones are zero where a degree is subnormal."""
        parts, pattern = self._taken(None), self.graph.pattern
        degrees, tiny = parts.degrees.detach(), torch.finfo(self.dtype).tiny
        takes_long = degrees.device.type != "cpu"  # reading degrees from a device
        if not (takes_long or pattern.any(((degrees > 0) & (degrees <= tiny)).any())):
            return parts
        r, affinity = self.graph.similarity, checks.primal(self.graph.exact)
        if r is not None:
            affinity = affinity * checks.primal(pattern.at_row(r) / pattern.at_col(r))
            affinity = affinity.minimum(pattern.transpose(affinity))
        return self._taken((affinity > tiny) | ~(affinity >= 0))  # no subnormal number in either direction

    def _taken(self, present: Tensor | None) -> LaplacianParts:
        """Return the weights in float64, zero unless they are ``present``."""
        graph, pattern, r = self.graph, self.graph.pattern, self.graph.similarity
        weight = affinity = graph.exact
        is_delicate = self.normalization != "unnormalized" and self.dtype == torch.float64
        level = pattern.levels(weight) if is_delicate else None
        if level is not None:
            row = pattern.at_row(level)
            weight, affinity = graph.divided(weight, row, pattern.at_col(level)), graph.divided(weight, row, row)
        if present is not None:
            weight, affinity = (torch.where(present, x, 0) for x in (weight, affinity))
        affinity = affinity if r is None else pattern.at_row(r) * affinity / pattern.at_col(r)
        relative = pattern.sum_rows(affinity)
        degrees = relative if level is None else relative * level.square()
        active = degrees.detach() > torch.finfo(self.dtype).tiny
        is_scaled = self.normalization != "unnormalized"
        scale = active * inverse_power(relative, 0.5) if is_scaled else torch.ones_like(degrees)
        return LaplacianParts(weight, affinity, relative, degrees, level, active, scale)

    @property
    def exact_degrees(self) -> Tensor:
        """Return the degrees in float64, with gradients."""
        return self._parts.degrees

    @property
    @precision.full_precision
    def degrees(self) -> Tensor:
        """Return the degrees d_i = Σ_j W_ij, ``(N,)`` or ``(B, N)``, with gradients."""
        return self.exact_degrees.to(self.dtype)

    @property
    @precision.full_precision
    def diagonal(self) -> Tensor:
        """Return c, ``(N,)`` or ``(B, N)``, with gradients."""
        return self.degrees if self.normalization == "unnormalized" else self.active.to(self.dtype)

    @property
    @precision.full_precision
    def values(self) -> Tensor:
        """Return M on the edges, of the shape of ``graph.weight``, with gradients."""
        return self._values.to(self.dtype)

    @property
    def _values(self) -> Tensor:
        """Return M on the edges in float64."""
        if self.normalization == "unnormalized":
            return self._parts.affinity
        return self.walk if self.normalization == "random_walk" else self._symmetric_values

    @property
    def walk(self) -> Tensor:
        """Return D⁻¹ W on the edges in float64."""
        return self.graph.pattern.at_row(self._inverse) * self._parts.affinity

    @derived_property
    def _symmetric_values(self) -> Tensor:
        parts, unscaled = self._parts, self.normalization == "unnormalized"
        return parts.weight if unscaled else self.graph.pattern.scaled(parts.weight, parts.scale)

    @property
    def scale(self) -> Tensor:
        """Return s of the graph's shape, with which ``symmetric`` has s_i W_ij s_j: D^-½ 1; 1 for L itself."""
        return self._parts.scale

    @property
    def _inverse(self) -> Tensor:
        """Return D⁻¹ 1 in float64, relative to levels; 0 at nodes that take no part."""
        return self._parts.active * inverse_power(self._parts.relative, 1.0)

    @derived_property
    def symmetric(self) -> SymmetricOperator:
        """Return L_sym or L in float64; raise ValueError for no nodes, or weights negative or not finite."""
        if self.graph.pattern.number_of(math.prod(self.graph.shape)) == 0:
            raise ValueError(f"laplacian must be of at least one graph with a node, got shape {self.graph.shape}")
        if is_invalid := self.has.invalid_weights:
            for part in (part.detach() for part in (self._symmetric_values, self.exact_degrees) if part.numel()):
                checks.check_finite(part, "laplacian", "divide the weights by a number")  # passes if a sum overflows
                if float(part.amin()) < 0:
                    raise ValueError("laplacian must be of non-negative weights, got negative ones")
        batch = self.graph.batch_size
        diagonal, values = self._without_loops(self._symmetric_values)
        ground = checks.primal(self.ground)
        largest = self.graph.pattern.largest(checks.primal(diagonal).reshape(batch, -1, 1))[:, 0]
        bound = 2 * (largest if self.normalization == "unnormalized" else torch.where(largest > 0, largest, 1))
        if is_invalid:  # the sum of the squares of the null vector may overflow
            ground = ground / checks.power_of_two(self.graph.pattern.largest(ground[..., None]), (-2,))[..., 0]
        null, parts = NullSpace(ground, *self.active_components), (self.graph.pattern, values, diagonal, bound)
        active = self._parts.active.reshape(batch, -1)
        return SymmetricOperator(*parts, null, active, of_affinities=True, trusted=True)

    @property
    def ground(self) -> Tensor:
        """Return each whole graph's null vector of ``symmetric``, ``(B, N)``: D^½ 1 up to a factor, with gradients."""
        r, parts, unscaled = self.graph.similarity, self._parts, self.normalization == "unnormalized"
        ground = parts.active.double() if unscaled else parts.active * inverse_power(parts.relative, -0.5)
        ground = ground if parts.level is None else ground * parts.level
        return (ground if r is None else ground / r).reshape(self.graph.batch_size, -1)

    @property
    def active(self) -> Tensor:
        """Return the nodes of positive degree, which take part in the eigenproblem, bool, of the graph's shape."""
        return self._parts.active

    @property
    def largest_degree(self) -> Tensor:
        """Return each graph's largest degree, ``(B,)``."""
        degrees = checks.primal(self._parts.degrees).reshape(self.graph.batch_size, -1, 1)
        return self.graph.pattern.largest(degrees)[:, 0]

    @property
    def tiny_degrees(self) -> Tensor:
        """Return the active nodes, bool, whose degrees are so far below the largest that D^-½ magnifies round-off.

        Below eps^¾ of the largest degree, an error of eps in v becomes an error of at least eps^⅝ in D^-½ v.
        """
        parts = self._parts
        degrees = checks.primal(parts.degrees)
        least = torch.finfo(degrees.dtype).eps ** 0.75 * self.largest_degree.reshape(*self.graph.shape[:-1], 1)
        return parts.active & (degrees < least)  # type: ignore[no-any-return]

    @derived_property
    def has(self) -> LaplacianFlags:
        """Return the properties of this process's nodes and weights, found by one synchronisation."""
        parts = self._parts
        degrees, weight = checks.primal(parts.degrees), checks.primal(parts.affinity)
        isolated = ~parts.active if self.graph.mask is None else ~parts.active & self.graph.mask
        invalid_weights = ~degrees.sum().isfinite()
        if weight.numel():
            invalid_weights = invalid_weights | ~(weight.detach().amin() >= 0)
        return LaplacianFlags(*precision.synchronise(invalid_weights, isolated.any(), self.tiny_degrees.any()))

    @derived_property
    def active_components(self) -> tuple[Tensor, Tensor]:
        """Return component labels ``(B, N)`` counted over active nodes (0 elsewhere), and their number ``(B,)``."""
        parts = self._parts
        active = parts.active.reshape(self.graph.batch_size, -1)
        labels = self.graph.pattern.components(parts.weight.detach()).reshape(active.shape)
        return self.graph.pattern.numbered_parts(labels, active)

    @property
    def nullity(self) -> Tensor:
        """Return the dimension of the null space, int64 ``(B,)``: the number of components of positive degree."""
        return self.active_components[1]

    @precision.full_precision
    def matmul(self, y: Tensor) -> Tensor:
        """Return the product with ``y``, ``(N, m)`` or ``(B, N, m)``, in O(E·m); differentiable in both, at any order.

        Half precision is computed in the precision of the weights, and the result has the dtype of ``y``.
        """
        if tuple(y.shape[:-1]) != tuple(self.graph.shape):
            raise ValueError(f"y must have shape {(*self.graph.shape, 'm')}, got {tuple(y.shape)}")
        if y.dtype in checks.HALVES:
            return self.matmul(y.to(self.dtype)).to(y.dtype)
        is_symmetric = self.normalization != "random_walk" and self.graph.similarity is None
        diagonal, values = (part.to(y.dtype) for part in self._without_loops(self._values))
        return diagonal[..., None] * y - self.graph.pattern.matmul(values, y, is_symmetric=is_symmetric)

    @precision.full_precision
    def to_dense(self) -> Tensor:
        """Return the matrix ``(N, N)`` or ``(B, N, N)``, with gradients."""
        diagonal, values = self._without_loops(self._values)
        return (self.graph.pattern.to_dense(-values) + torch.diag_embed(diagonal)).to(self.dtype)

    def _without_loops(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return diagonal and M without loops: a large loop would cancel in the matrix and leave only round-off."""
        parts, pattern, unscaled = self._parts, self.graph.pattern, self.normalization == "unnormalized"
        if not pattern.has_loops(values):
            return parts.degrees if unscaled else parts.active.double(), values
        proper, loop = pattern.without_loops(values), pattern.sum_loops(parts.affinity)
        inverse = None if unscaled else self._inverse
        if inverse is not None and values.device.type == "cpu" and not pattern.any((2 * loop > parts.relative).any()):
            return parts.active.double() - loop * inverse, proper
        others = pattern.sum_rows(pattern.without_loops(parts.affinity))
        if inverse is None:
            return others, proper
        # One number in two forms: take the form whose derivatives do not cancel.
        return torch.where(loop > others, others * inverse, parts.active.double() - loop * inverse), proper


def warn_of_isolated(active: Tensor, mask: Tensor | None) -> None:
    """Warn of nodes, padding apart, that take no part."""
    isolated = ~active if mask is None else ~active & mask
    if count := int(isolated.sum()):
        checks.warn(
            f"{count} of {active.numel() if mask is None else int(mask.sum())} nodes are isolated (no edge of positive "
            "weight, or all underflow): their rows are zero; use more neighbours, a larger radius or bandwidth",
            checks.GraphWarning,
        )
