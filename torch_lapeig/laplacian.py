"""The graph Laplacian as an operator: degrees, products, dense form, null space, in three normalisations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.graph import Graph
from torch_lapeig.pattern import SparsePattern, inverse_power

Normalization = Literal["symmetric", "random_walk", "unnormalized"]


class Laplacian:
    """L = D − W of a weighted graph, or one of its normalisations, as diag(c) − M on the graph's edges.

    | ``normalization`` | operator | spectrum |
    |---|---|---|
    | ``"symmetric"`` | L_sym = I − D^-½ W D^-½ | [0, 2] |
    | ``"random_walk"`` | L_rw = I − D^-1 W, similar to L_sym | [0, 2] |
    | ``"unnormalized"`` | L = D − W | [0, 2 max d] |

    A node of degree zero (isolated, or padding) has a zero row, as in Chung, *Spectral Graph Theory* (1997), 1.2. Where
    the graph's affinity is only similar to a symmetric one (`Graph.similarity`), ``"symmetric"`` is that of the latter.

    Args:
        graph: weighted graph or batch of graphs, sparse or dense; gradients flow to its weights.
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

    def __init__(self, graph: Graph, normalization: Normalization = "symmetric") -> None:
        _checks.check_choice(normalization, "normalization", ("symmetric", "random_walk", "unnormalized"))
        if not isinstance(graph, Graph):
            raise TypeError(f"graph must be a Graph, got {type(graph).__name__}; see Graph.from_dense, knn_graph")
        self.graph = graph
        self.normalization = normalization
        pattern, w, r = graph.pattern, graph.weight, graph.similarity
        affinity = w if r is None else pattern.at_row(r) * w / pattern.at_col(r)
        self.degrees = pattern.sum_rows(affinity)
        if normalization == "unnormalized":
            self.diagonal, self.values = self.degrees, affinity
        elif normalization == "symmetric":
            s = inverse_power(self.degrees, 0.5)
            self.diagonal, self.values = self.active.to(w.dtype), pattern.scaled(w, s)
        else:
            inverse = inverse_power(self.degrees, 1.0)
            self.diagonal, self.values = self.active.to(w.dtype), pattern.at_row(inverse) * affinity

    @cached_property
    def active(self) -> Tensor:
        """bool, shape of the graph: nodes of positive (normal) degree. The others take no part in the eigenproblem."""
        return self.degrees.detach() > torch.finfo(self.degrees.dtype).tiny

    @cached_property
    def fewest_active(self) -> int:
        """The smallest number of active nodes of a graph of the batch."""
        return int(self.active.reshape(self.graph.batch_size, -1).sum(1).min())

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
                mask=None if mask is None else mask[b],
                similarity=None if similarity is None else similarity.detach()[b],
            )
            degrees, diagonal = self.degrees.detach()[b], self.diagonal.detach()[b]
            yield self._replaced(graph=graph, degrees=degrees, diagonal=diagonal, values=self.values.detach()[edges])

    @cached_property
    def round_off(self) -> Tensor:
        """Residual ``(B,)`` of unit vectors that rounding alone leaves behind, in products and in Ritz vectors."""
        pattern = self.graph.pattern
        longest = pattern.longest_row if isinstance(pattern, SparsePattern) else 1  # dense products sum in blocks
        factor = max(40.0, 0.3 * self.graph.num_nodes**0.5, 4.0 * longest**0.5)
        scale: Tensor = factor * torch.finfo(self.degrees.dtype).eps * self.bound
        return scale

    def symmetrized(self) -> tuple[Laplacian, Tensor | None]:
        """A symmetric Laplacian A of the same spectrum, and the node factor that takes its eigenvectors to this one's.

        L_rw = D^-½ L_sym D^½ has y = D^-½ v. With affinities similar to symmetric ones by r there is a factor r more.
        None stands for 1.
        """
        r = self.graph.similarity
        if self.normalization == "random_walk":
            factor = inverse_power(self.degrees, 0.5)
            return Laplacian(self.graph, "symmetric"), factor if r is None else r * factor
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
        return self._replaced(graph=dataclasses.replace(self.graph, weight=weight, similarity=similarity), **parts)

    def double(self) -> Laplacian:
        """This symmetric Laplacian worked out of the weights in float64, without gradients."""
        weight, r = self.graph.weight.detach().double(), self.graph.similarity
        if ((self.degrees.detach() > 0) & ~self.active).any():  # what float32 leaves out stays out
            weight = self.graph.pattern.scaled(weight, self.active.double())
        similarity = None if r is None else r.detach().double()
        graph = dataclasses.replace(self.graph, weight=weight, similarity=similarity)
        return Laplacian(graph, self.normalization).symmetrized()[0]

    def _replaced(self, **changes: object) -> Laplacian:
        """A copy with other parts, and nothing worked out of them yet."""
        other = object.__new__(Laplacian)
        parts = ("graph", "normalization", "degrees", "diagonal", "values")
        other.__dict__.update({name: self.__dict__[name] for name in parts}, **changes)
        return other

    def reordered(self, order: Tensor | None = None) -> tuple[Laplacian, Tensor]:
        """One sparse Laplacian with its nodes in an order, int64 ``(N,)``, and that: reverse Cuthill–McKee if None.

        Products of large graphs are faster when neighbours are close in memory. Gradients flow through.
        """
        pattern = self.graph.pattern
        if not isinstance(pattern, SparsePattern) or len(self.graph.shape) > 1:
            raise ValueError(f"only one sparse graph can be reordered, got shape {self.graph.shape}")
        order = pattern.bandwidth_reducing_order() if order is None else order
        number = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        keys, edges = (number[pattern.row.long()] * len(order) + number[pattern.col.long()]).sort()
        r = self.graph.similarity
        graph = dataclasses.replace(
            self.graph,
            pattern=SparsePattern.from_keys(keys, pattern.shape),
            weight=self.graph.weight[edges],
            similarity=None if r is None else r[order],
            mask=None if self.graph.mask is None else self.graph.mask[order],
        )
        degrees, diagonal = self.degrees[order], self.diagonal[order]
        return self._replaced(graph=graph, degrees=degrees, diagonal=diagonal, values=self.values[edges]), order

    def matmul(self, y: Tensor) -> Tensor:
        """The product with ``y``, ``(N, m)`` or ``(B, N, m)``, in O(E·m); differentiable in both, at any order."""
        if tuple(y.shape[:-1]) != tuple(self.graph.shape):
            raise ValueError(f"y must have shape {(*self.graph.shape, 'm')}, got {tuple(y.shape)}")
        if torch.is_grad_enabled():
            return self.diagonal[..., None] * y - self.graph.pattern.matmul(self.values, y)
        return self.graph.pattern.multiply(self.couplings, y, self._times_diagonal(y, 1), times=-1)

    def _times_diagonal(self, y: Tensor, axes: int) -> Tensor:
        """diag(c) Y, without a copy where c is 1 everywhere."""
        diagonal = self.diagonal.detach()
        return y if self._unit_diagonal else diagonal.reshape(*diagonal.shape, *[1] * axes) * y

    @cached_property
    def _unit_diagonal(self) -> bool:
        return bool((self.diagonal == 1).all())

    def matvec(self, v: Tensor, shift: float = 0.0) -> Tensor:
        """(A − shift) v for one vector ``(N,)`` of one graph, without gradients: `matmul` for many small products."""
        if self._unit_diagonal:
            return torch.addmv(v, self.couplings, v, beta=1 - shift, alpha=-1)
        return torch.addmv((self.diagonal.detach() - shift) * v, self.couplings, v, alpha=-1)

    def chebyshev(self, x: Tensor, degree: int, low: Tensor, high: Tensor) -> Tensor:
        """T_degree(Ã) X for a block ``(B, N, m)``: the Chebyshev polynomial that grows below ``low``. No gradients.

        Ã = (2A − high − low) / (high − low) takes [low, high] of each graph, ``(B,)``, to [−1, 1]. The recurrence
        T_{j+1} = 2 Ã T_j − T_{j−1} is one product with the matrix each.
        """
        pattern = self.graph.pattern
        half, centre = (high - low) / 2, (high + low) / 2
        diagonal = (self.diagonal.detach().reshape(x.shape[:2]) - centre[:, None]) / half[:, None]
        twice = pattern.assemble(2 * diagonal, self.values.detach() * pattern.of_graph(-2 / half))
        previous, current = x, pattern.multiply(twice, x) / 2
        for _ in range(1, degree):
            previous, current = current, pattern.multiply(twice, current, previous, plus=-1)
        return current

    @cached_property
    def couplings(self) -> Tensor:
        """M as a matrix without gradients: CSR over all nodes of a batch if the graph is sparse, else dense."""
        return self.graph.pattern.to_matrix(self.values)

    @cached_property
    def matrix(self) -> Tensor:
        """diag(c) − M as a matrix without gradients, like ``couplings``."""
        return self.graph.pattern.assemble(self.diagonal, -self.values.detach())

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """All inner products Xᵀ Y of columns, ``(B, m, l)``. Solvers reduce over nodes by this and ``dots`` only."""
        return x.mT @ y

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        """Inner products of each column of ``x`` with that of ``y``, ``(B, m)``."""
        return (x * y).sum(-2)

    def to_dense(self) -> Tensor:
        """The matrix ``(N, N)`` or ``(B, N, N)``, with gradients."""
        return torch.diag_embed(self.diagonal) - self.graph.pattern.to_dense(self.values)

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
