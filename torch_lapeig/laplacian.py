"""The graph Laplacian as an operator: degrees, products, dense form, null space, in three normalisations."""

from __future__ import annotations

import functools
import warnings
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.graph import Graph

Normalization = Literal["symmetric", "random_walk", "unnormalized"]


class Laplacian:
    """L = D − W of a weighted graph, or one of its normalisations, as diag(c) − M on the graph's edges.

    | ``normalization`` | operator | spectrum |
    |---|---|---|
    | ``"symmetric"`` | L_sym = I − D^-½ W D^-½ | [0, 2] |
    | ``"random_walk"`` | L_rw = I − D^-1 W, similar to L_sym | [0, 2] |
    | ``"unnormalized"`` | L = D − W | [0, 2 max d] |

    A node of degree zero (isolated, or padding) has a zero row, as in Chung, *Spectral Graph Theory* (1997), 1.2.

    Args:
        graph: weighted graph or batch of graphs; gradients flow to its weights.
        normalization: one of the above.

    Attributes:
        degrees: ``(N,)`` or ``(B, N)``, d_i = Σ_j W_ij.
        diagonal: c, ``(N,)`` or ``(B, N)``.
        values: M on the edges, ``(E,)``.

    >>> from torch_lapeig import knn_graph
    >>> Laplacian(knn_graph(torch.tensor([[0.0], [1.0], [3.0]]), k=1), "unnormalized").to_dense()
    tensor([[ 1., -1.,  0.],
            [-1.,  2., -1.],
            [ 0., -1.,  1.]])
    """

    def __init__(self, graph: Graph, normalization: Normalization = "symmetric") -> None:
        _checks.check_choice(normalization, "normalization", ("symmetric", "random_walk", "unnormalized"))
        self.graph = graph
        self.normalization = normalization
        w = graph.weight
        d = w.new_zeros(graph.total_nodes).index_add(0, graph.row, w)
        self.degrees = d.reshape(graph.shape)
        if normalization == "unnormalized":
            self.diagonal, self.values = self.degrees, w
            return
        self.diagonal = self.active.to(w.dtype)
        if normalization == "symmetric":
            s = inverse_power(d, 0.5)
            self.values = s[graph.row] * w * s[graph.col]
        else:
            self.values = inverse_power(d, 1.0)[graph.row] * w

    @property
    def active(self) -> Tensor:
        """bool, shape of the graph: nodes of positive degree. The others take no part in the eigenproblem."""
        return self.degrees.detach() > 0

    @property
    def bound(self) -> Tensor:
        """Upper bound of the spectrum of each graph ``(B,)`` (Gershgorin)."""
        if self.normalization == "unnormalized":
            return 2 * self.degrees.detach().reshape(self.graph.batch_size, -1).amax(1)
        return self.degrees.new_full((self.graph.batch_size,), 2.0)

    def symmetrized(self) -> Laplacian:
        """A symmetric Laplacian with the same spectrum: L_sym for L_rw, otherwise this one."""
        return Laplacian(self.graph, "symmetric") if self.normalization == "random_walk" else self

    def matmul(self, y: Tensor) -> Tensor:
        """The product with ``y``, ``(N, m)`` or ``(B, N, m)``, in O(E·m); differentiable in both, at any order."""
        if tuple(y.shape[:-1]) != tuple(self.graph.shape):
            raise ValueError(f"y must have shape {(*self.graph.shape, 'm')}, got {tuple(y.shape)}")
        columns = y.reshape(self.graph.total_nodes, -1)
        if not torch.is_grad_enabled():
            return (self._matrix @ columns).reshape(y.shape)
        return self.diagonal[..., None] * y - edge_matmul(self.graph, self.values, columns).reshape(y.shape)

    def chebyshev(self, x: Tensor, degree: int, low: Tensor, high: Tensor) -> Tensor:
        """T_degree(Ã) X for a block ``(B, N, m)``: the Chebyshev polynomial that grows below ``low``. No gradients.

        Ã = (2A − high − low) / (high − low) takes [low, high] of each graph, ``(B,)``, to [−1, 1]. The recurrence
        T_{j+1} = 2 Ã T_j − T_{j−1} is one sparse product each.
        """
        half, centre = (high - low) / 2, (high + low) / 2
        diagonal = (self.diagonal.reshape(x.shape[:2]) - centre[:, None]) / half[:, None]
        values = self.values / half[self.graph.item]
        twice = _csr_with_diagonal(self.graph, 2 * diagonal.flatten(), -2 * values)
        previous = x.flatten(0, 1)
        current = (twice @ previous) / 2
        for _ in range(1, degree):
            previous, current = current, torch.addmm(previous, twice, current, beta=-1)
        return current.reshape(x.shape)

    @cached_property
    def _matrix(self) -> Tensor:
        return _csr_with_diagonal(self.graph, self.diagonal.detach().flatten(), -self.values.detach())

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """All inner products Xᵀ Y of columns, ``(B, m, l)``. Solvers reduce over nodes by this and ``dots`` only."""
        return x.mT @ y

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        """Inner products of each column of ``x`` with that of ``y``, ``(B, m)``."""
        return (x * y).sum(-2)

    def to_dense(self) -> Tensor:
        """The matrix ``(N, N)`` or ``(B, N, N)``, with gradients."""
        return torch.diag_embed(self.diagonal) - self.graph.with_weight(self.values).to_dense()

    def null_vectors(self, m: int) -> tuple[Tensor, Tensor]:
        """The first ``m`` of an orthonormal basis of the null space in closed form, and its whole dimension.

        On each connected component the null vector is D^½·1 (1 if unnormalised). The basis is that of the
        components turned by a Householder reflection, so that its first vector is the one of the whole graph.

        Returns:
            Vectors ``(B, N, m)``, zero beyond the dimension, and dimensions int64 ``(B,)``: the number of components
            of positive degree.
        """
        active = self.active.reshape(self.graph.batch_size, -1)
        labels, counts = self.active_components
        d = self.degrees.detach().reshape(active.shape)
        size = active.to(d.dtype) if self.normalization == "unnormalized" else d
        volume = size.new_zeros(len(size), max(int(counts.max()), m)).scatter_add(1, labels, size)
        # −H = 2 w wᵀ / wᵀw − I with w = e_1 + s takes e_1 to s, the root of each component's share of the volume.
        w = (volume / volume.sum(1, keepdim=True)).sqrt()
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


def inverse_power(degrees: Tensor, power: float) -> Tensor:
    """degrees^−power, and 0 with a zero gradient where the degree is 0."""
    positive = degrees > 0
    return torch.where(positive, torch.where(positive, degrees, 1).pow(-power), 0)


def edge_matmul(graph: Graph, values: Tensor, y: Tensor) -> Tensor:
    """M Y of the matrix with ``values`` on the edges of ``graph``, with y ``(B·N, m)``; differentiable at any order."""
    result: Tensor = _SpMM.apply(values, y, graph)
    return result


def edge_products(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    """(X Yᵀ)_ij on the edges of ``graph`` only, ``(E,)``, of x and y ``(B·N, m)``; differentiable at any order."""
    result: Tensor = _EdgeProducts.apply(x, y, graph)
    return result


# The product M Y of a matrix on edges and the sampled product (X Yᵀ)_ij on edges are each other's derivatives:
#     Z = M Y:         ∂M_ij = (Z̄ Yᵀ)_ij,    ∂Y = Mᵀ Z̄
#     p = (X Yᵀ)_ij:   ∂X = P̄ Y,             ∂Y = P̄ᵀ X        with P̄ the matrix of p̄ on the edges.
# So two functions are closed under differentiation of any order. Mᵀ has the values of the reversed edges.


class _SpMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, y: Tensor, graph: Graph) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(values, y)
        return _csr(graph, values) @ y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (values, y) = grads, ctx.saved_tensors
        to_values = edge_products(ctx.graph, g, y) if ctx.needs_input_grad[0] else None
        to_y = _SpMM.apply(values[ctx.graph.reverse], g, ctx.graph) if ctx.needs_input_grad[1] else None
        return to_values, to_y, None


class _EdgeProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, graph: Graph) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(x, y)
        return (x[graph.row] * y[graph.col]).sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (p,), (x, y) = grads, ctx.saved_tensors
        to_x = _SpMM.apply(p, y, ctx.graph) if ctx.needs_input_grad[0] else None
        to_y = _SpMM.apply(p[ctx.graph.reverse], x, ctx.graph) if ctx.needs_input_grad[1] else None
        return to_x, to_y, None


def _csr(graph: Graph, values: Tensor) -> Tensor:
    """The matrix with ``values`` on the edges."""
    size = (graph.total_nodes, graph.total_nodes)
    _hear_beta_notice()
    return torch.sparse_csr_tensor(*graph.csr_index, values.detach(), size, check_invariants=False)


def _csr_with_diagonal(graph: Graph, diagonal: Tensor, values: Tensor) -> Tensor:
    """The matrix with ``values`` on the edges and ``diagonal`` (added to self loops, if there are any)."""
    crow, col, edge, node = graph.csr_index_with_diagonal
    merged = values.new_empty(len(col)).index_copy_(0, edge, values).index_copy_(0, node, diagonal)
    size = (graph.total_nodes, graph.total_nodes)
    _hear_beta_notice()
    return torch.sparse_csr_tensor(crow, col, merged, size, check_invariants=False)


@functools.cache
def _hear_beta_notice() -> None:
    """Torch warns once a process that its CSR storage is beta; have it said where nobody is bothered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = torch.zeros(2, dtype=torch.int32)
        torch.sparse_csr_tensor(index, index[:0], torch.zeros(0), (1, 1), check_invariants=False)
