"""The graph Laplacian as an operator: degrees, products, dense form, null space, in three normalisations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.eigen.operator import SymmetricOperator
from torch_lapeig.graph.graph import Graph, check_graph
from torch_lapeig.graph.pattern import SparsePattern, finite_log, inverse_power, log_sums, with_log_derivative

Normalization = Literal["symmetric", "random_walk", "unnormalized"]
NORMALIZATIONS = ("symmetric", "random_walk", "unnormalized")


class Laplacian(SymmetricOperator):
    """L = D − W of a weighted graph, or one of its normalisations, as diag(c) − M on the graph's edges.

    | ``normalization`` | operator | spectrum |
    |---|---|---|
    | ``"symmetric"`` | L_sym = I − D^-½ W D^-½ | [0, 2] |
    | ``"random_walk"`` | L_rw = I − D^-1 W, similar to L_sym | [0, 2] |
    | ``"unnormalized"`` | L = D − W | [0, 2 max d] |

    A node of degree zero (isolated, or padding) has a zero row, as in Chung, *Spectral Graph Theory* (1997), 1.2. Where
    the graph's affinity is only similar to a symmetric one (`Graph.similarity`), ``"symmetric"`` is that of the latter.

    Args:
        graph: weighted graph or batch of graphs, sparse or dense; gradients flow to its weights. Where degrees are so
            small, or so far apart, that these might overflow, the normalised operators send them to
            ``graph.log_weight`` instead, if there is one, and none to ``graph.weight``.
        normalization: one of the above.

    Attributes:
        degrees: ``(N,)`` or ``(B, N)``, d_i = Σ_j W_ij.
        diagonal: c, ``(N,)`` or ``(B, N)``.
        values: M on the edges, of the shape of ``graph.weight``.

    >>> from torch_lapeig import knn_graph
    >>> Laplacian(knn_graph(torch.tensor([[0.0], [1.0], [3.0]]), k=1), "unnormalized").to_dense()
    tensor([[ 1., -1.,  0.],
            [-1.,  2., -1.],
            [ 0., -1.,  1.]])
    """

    _at_nodes: ClassVar[tuple[str, ...]] = ("degrees", "diagonal")
    _kept: ClassVar[tuple[str, ...]] = ("normalization",)

    def __init__(self, graph: Graph, normalization: Normalization = "symmetric") -> None:
        _checks.check_choice(normalization, "normalization", NORMALIZATIONS)
        check_graph(graph)
        self.graph = graph
        self.normalization = normalization
        pattern, w, r = graph.pattern, graph.weight, graph.similarity
        affinity = w if r is None else pattern.at_row(r) * w / pattern.at_col(r)
        self.degrees = pattern.sum_rows(affinity)
        if normalization == "unnormalized":
            self.diagonal, self.values = self.degrees, affinity
            return
        power = 0.5 if normalization == "symmetric" else 1.0
        s = inverse_power(self.degrees, power)
        values = pattern.scaled(w, s) if normalization == "symmetric" else pattern.at_row(s) * affinity
        if self._delicate and _differentiated(w, graph.log_weight):
            log_weight = finite_log(w) if graph.log_weight is None else graph.log_weight
            t = -power * log_sums(pattern, affinity, log_weight)
            s = with_log_derivative(s, t)
            t = pattern.at_row(t) + pattern.at_col(t) if normalization == "symmetric" else pattern.at_row(t)
            values = with_log_derivative(values, log_weight + t)
        self.diagonal, self.values, self._factor = self.active.to(w.dtype), values, s

    def check(self) -> None:
        """Raise ValueError unless weights are finite and non-negative."""
        for part in (self.values, self.degrees):
            _checks.check_finite(part, "laplacian")
        if min(float(part.detach().amin()) for part in (self.values, self.degrees) if part.numel()) < 0:
            raise ValueError("laplacian must be of non-negative weights, got negative ones")

    @cached_property
    def active(self) -> Tensor:
        """bool, shape of the graph: nodes of positive (normal) degree. The others take no part in the eigenproblem."""
        return self.degrees.detach() > torch.finfo(self.degrees.dtype).tiny

    @cached_property
    def slight(self) -> Tensor:
        """bool, shape of the graph: active nodes of a degree so far below the largest that D^-½ magnifies round-off.

        Below eps^¾ of it, where an error of eps in v is one of eps^⅝ in D^-½ v, or more.
        """
        degrees = _checks.primal(self.degrees)
        least = torch.finfo(degrees.dtype).eps ** 0.75 * degrees.amax(-1, keepdim=True)
        below: Tensor = self.active & (degrees < least)
        return below

    @property
    def _delicate(self) -> bool:
        """Whether derivatives in the weights may overflow where those in their logarithms do not: they are w times."""
        degrees = _checks.primal(self.degrees)
        tiny = self.active & (degrees < torch.finfo(degrees.dtype).tiny ** 0.25)
        return bool((self.slight | tiny).any())

    @cached_property
    def uneven(self) -> Tensor:
        """bool ``(B,)``: graphs that have such nodes."""
        return self.slight.reshape(self.graph.batch_size, -1).any(1)

    @cached_property
    def bound(self) -> Tensor:
        """Upper bound of the spectrum of each graph ``(B,)`` (Gershgorin)."""
        if self.normalization == "unnormalized":
            return 2 * self.degrees.detach().reshape(self.graph.batch_size, -1).amax(1)
        return self.degrees.new_full((self.graph.batch_size,), 2.0)

    @cached_property
    def ground(self) -> Tensor:
        """The null vector that is positive on all active nodes, of the graph's shape, of the symmetric operator.

        D^½·1, or 1 if unnormalised, divided by r; 0 on the other nodes. With N = diag(ground), N A N is the Laplacian
        of the affinities that ``edges_of_affinity`` lists, whatever the normalisation.
        """
        active = self.active.to(self.degrees.dtype)
        n = active if self.normalization == "unnormalized" else self.degrees.detach().sqrt() * active
        return n if self.graph.similarity is None else n / self.graph.similarity.detach()

    def edges_of_affinity(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row, column and positive affinity of each edge of one graph in CSR order, without loops: N A N = D − W."""
        pattern, n = self.graph.pattern, self.ground
        affinity = pattern.scaled(self.values.detach(), n)
        if isinstance(pattern, SparsePattern):
            keep = ((pattern.row != pattern.col) & (affinity > 0)).nonzero().flatten()
            if len(keep) == len(pattern):
                return pattern.row, pattern.col, affinity
            return pattern.row[keep], pattern.col[keep], affinity[keep]
        row, col = (pattern.without_loops(affinity) > 0).nonzero(as_tuple=True)
        return row.int(), col.int(), affinity[row, col]

    def items(self) -> Iterator[Laplacian]:
        """The symmetric Laplacian of each graph of a batch, without gradients."""
        if len(self.graph.shape) == 1:
            yield self
            return
        for b in range(self.graph.batch_size):
            pattern, edges = self.graph.pattern.item_of(b)
            mask, similarity = self.graph.mask, self.graph.similarity
            graph = dataclasses.replace(
                self.graph,
                pattern=pattern,
                weight=self.graph.weight.detach()[edges],
                log_weight=None,
                mask=None if mask is None else mask[b],
                similarity=None if similarity is None else similarity.detach()[b],
            )
            degrees, diagonal = self.degrees.detach()[b], self.diagonal.detach()[b]
            yield self._replaced(graph=graph, degrees=degrees, diagonal=diagonal, values=self.values.detach()[edges])

    def symmetrized(self) -> tuple[Laplacian, Tensor | None]:
        """A symmetric Laplacian A of the same spectrum, and the node factor that takes its eigenvectors to this one's.

        L_rw = D^-½ L_sym D^½ has y = D^-½ v. With affinities similar to symmetric ones by r there is a factor r more.
        None stands for 1.
        """
        r = self.graph.similarity
        if self.normalization == "random_walk":
            symmetric = Laplacian(self.graph, "symmetric")
            return symmetric, symmetric._factor if r is None else r * symmetric._factor
        if self.normalization == "unnormalized" and r is not None:
            return self._replaced(values=self.graph.weight), r
        return self, None

    def frozen(self) -> Laplacian:
        """This symmetric Laplacian without the tangents of forward mode, which ``detach`` keeps."""
        if not _checks.is_dual(self.values):
            return self
        r = self.graph.similarity
        similarity = None if r is None else _checks.primal(r)
        parts = {name: _checks.primal(self.__dict__[name]) for name in ("degrees", "diagonal", "values")}
        weight = _checks.primal(self.graph.weight)
        graph = dataclasses.replace(self.graph, weight=weight, similarity=similarity, log_weight=None)
        return self._replaced(graph=graph, **parts)

    def sensitivity(self, values: Tensor) -> Tensor:
        """Change ``(B,)`` of the eigenvalues ``(B, k)`` of each graph, over eps, when its weights change by eps.

        As quotients of sums of weights, they change in proportion to themselves.
        """
        return values[:, -1].minimum(self.bound.to(values))

    def double(self) -> Laplacian:
        """This symmetric Laplacian worked out of the weights in float64."""
        weight, r = self.graph.weight.double(), self.graph.similarity
        if ((self.degrees.detach() > 0) & ~self.active).any():  # what float32 leaves out stays out
            weight = self.graph.pattern.scaled(weight, self.active.double())
        log_weight = None if self.graph.log_weight is None else self.graph.log_weight.double()
        similarity = None if r is None else r.double()
        graph = dataclasses.replace(self.graph, weight=weight, similarity=similarity, log_weight=log_weight)
        return Laplacian(graph, self.normalization).symmetrized()[0]

    def null_vectors(self, m: int) -> tuple[Tensor, Tensor]:
        """The first ``m`` of an orthonormal basis of the null space in closed form, and its whole dimension.

        Of the symmetric operator (see ``symmetrized``): on each connected component the null vector is D^½·1, or 1 if
        unnormalised, divided by r. The basis is that of the components turned by a Householder reflection, so that its
        first vector is the one of the whole graph.

        Returns:
            Vectors ``(B, N, m)``, zero beyond the dimension, and dimensions int64 ``(B,)``: the number of components
            of positive degree.
        """
        active = self.active.reshape(self.graph.batch_size, -1)
        labels, counts = self.active_components
        size = self.ground.reshape(active.shape).square()
        volume = size.new_zeros(len(size), max(int(counts.max()), m, 1)).scatter_add(1, labels, size)
        # −H = 2 w wᵀ / wᵀw − I with w = e_1 + s takes e_1 to s, the root of each component's share of the volume.
        whole = volume.sum(1, keepdim=True)
        w = (volume / torch.where(whole > 0, whole, 1)).sqrt()
        w[:, 0] += 1
        at_node = (labels[..., None] == torch.arange(m, device=labels.device)).to(w.dtype)
        scale = 2 / w.square().sum(1)
        turn = scale[:, None, None] * w.gather(1, labels)[..., None] * w[:, None, :m] - at_node
        unit = (size / volume.gather(1, labels)).sqrt()
        beyond = torch.arange(m, device=labels.device) >= counts[:, None]
        basis = torch.where(active, unit, 0)[..., None] * turn
        return basis.masked_fill(beyond[:, None, :], 0), counts

    @cached_property
    def active_components(self) -> tuple[Tensor, Tensor]:
        """Component labels ``(B, N)`` counted over active nodes only (0 elsewhere), and their number ``(B,)``."""
        active = self.active.reshape(self.graph.batch_size, -1)
        labels = self.graph.connected_components().reshape(active.shape)
        present = torch.zeros(len(labels), labels.shape[1] + 1, dtype=torch.int64, device=labels.device)
        present.scatter_(1, torch.where(active, labels, labels.shape[1]), 1)
        present = present[:, :-1]
        number = present.cumsum(1) - 1
        return torch.where(active, number.gather(1, labels.clamp_min(0)), 0), present.sum(1)

    @cached_property
    def nullity(self) -> Tensor:
        """Dimension of the null space, int64 ``(B,)``: the number of components of positive degree."""
        return self.active_components[1]


def _differentiated(*tensors: Tensor | None) -> bool:
    """Whether derivatives of either mode are asked for in one of them."""
    given = [t for t in tensors if t is not None]
    return (torch.is_grad_enabled() and any(t.requires_grad for t in given)) or any(map(_checks.is_dual, given))
