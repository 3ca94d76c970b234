"""Symmetric matrices as solvers and the differentiation rule see them: diag(c) − M with M on the edges of a pattern."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.graph.graph import Graph, check_edge_values
from torch_lapeig.graph.pattern import DensePattern, Pattern, SparsePattern

Own = TypeVar("Own", bound="SymmetricOperator")


class SymmetricOperator:
    """A = diag(c) − M, positive semidefinite, for a symmetric M on the edges of a graph: a kernel, (I − W)ᵀ(I − W), …

    `eigenpairs` takes one where it takes a `Laplacian`, which is one with null vectors in closed form. Its vectors are
    orthonormal and all nodes take part.

    Args:
        pattern: where M is, sparse or dense, for one matrix or a batch.
        values: M on the edges, of any sign; gradients flow to it.
        diagonal: c, of the pattern's shape.
        bound: upper bound of the spectrum of each graph, ``(B,)``; default Gershgorin's.
        constant_null: whether A 1 = 0, so that the constant vector need not be solved for.

    Raises:
        TypeError, ValueError: tensors that are not float32 or float64 or not of these shapes; values that are not
            symmetric.

    >>> matrix = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> operator = SymmetricOperator.of_largest(matrix)
    >>> operator.diagonal
    tensor([3., 3.])
    >>> from torch_lapeig import eigenpairs
    >>> operator.diagonal[0] - eigenpairs(operator, 1).values
    tensor([3.])
    """

    graph: Graph
    values: Tensor
    diagonal: Tensor
    _at_nodes: ClassVar[tuple[str, ...]] = ("diagonal",)
    _kept: ClassVar[tuple[str, ...]] = ("constant_null",)

    def __init__(
        self,
        pattern: Pattern,
        values: Tensor,
        diagonal: Tensor,
        *,
        bound: Tensor | None = None,
        constant_null: bool = False,
    ) -> None:
        check_edge_values(pattern, values, "values")
        _checks.check_floating(diagonal, "diagonal")
        self.graph = Graph(pattern, values)
        if tuple(diagonal.shape) != tuple(pattern.shape):
            raise ValueError(f"diagonal must have shape {tuple(pattern.shape)}, got {tuple(diagonal.shape)}")
        _checks.check_symmetric_matrix(values, pattern.transpose(values), "values")
        _checks.check_flag(constant_null, "constant_null")
        self.values, self.diagonal, self.constant_null = values, diagonal, constant_null
        if bound is not None:
            _checks.check_floating(bound, "bound")
            if tuple(bound.shape) != (self.graph.batch_size,):
                raise ValueError(f"bound must have shape {(self.graph.batch_size,)}, got {tuple(bound.shape)}")
            self.__dict__["bound"] = bound

    @classmethod
    def of_largest(cls, matrix: Tensor) -> SymmetricOperator:
        """s − K for a symmetric matrix K ``(N, N)`` and s = ‖K‖_∞ ≥ λ_max: its smallest pairs are K's largest.

        The eigenvalues of K are ``diagonal[0] − values``.
        """
        _checks.check_floating(matrix, "matrix")
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"matrix must have shape (N, N), got {tuple(matrix.shape)}")
        info = torch.finfo(matrix.dtype)
        bound = torch.linalg.vector_norm(matrix.detach(), 1, dim=1).amax().clamp_min(info.tiny / info.eps**2)
        diagonal = bound.expand(len(matrix)).clone()
        return cls(DensePattern((len(matrix),)), matrix, diagonal, bound=2 * bound[None])

    def check(self) -> None:
        """Raise ValueError unless all entries are finite."""
        for part in (self.values, self.diagonal):
            _checks.check_finite(part, "operator")

    @cached_property
    def active(self) -> Tensor:
        """bool, shape of the graph: nodes that take part in the eigenproblem."""
        return torch.ones(self.graph.shape, dtype=torch.bool, device=self.values.device)

    @cached_property
    def fewest_active(self) -> int:
        """The smallest number of active nodes of a graph of the batch."""
        return int(self.active.reshape(self.graph.batch_size, -1).sum(1).min())

    @cached_property
    def bound(self) -> Tensor:
        """Upper bound of the spectrum of each graph ``(B,)`` (Gershgorin)."""
        rows = self.diagonal.detach().abs() + self.graph.pattern.sum_rows(self.values.detach().abs())
        return rows.reshape(self.graph.batch_size, -1).amax(1)

    @cached_property
    def ground(self) -> Tensor:
        """A positive vector of the graph's shape, the null vector if there is one that is known."""
        return torch.ones_like(self.diagonal.detach())

    @cached_property
    def nullity(self) -> Tensor:
        """Number of known null vectors, int64 ``(B,)``."""
        count = self.graph.batch_size
        return torch.full((count,), int(self.constant_null), dtype=torch.int64, device=self.values.device)

    def null_vectors(self, m: int) -> tuple[Tensor, Tensor]:
        """The first ``m`` of an orthonormal basis of the known null vectors, and their number.

        Returns:
            Vectors ``(B, N, m)``, zero beyond the number, and ``nullity``, int64 ``(B,)``.
        """
        basis = self.values.new_zeros(self.graph.batch_size, self.graph.num_nodes, m)
        if self.constant_null and m:
            basis[..., 0] = self.graph.num_nodes**-0.5
        return basis, self.nullity

    def edges_of_affinity(self) -> tuple[Tensor, Tensor, Tensor]:
        """Only a `Laplacian` has affinities: multigrid cannot be built on any other matrix."""
        raise TypeError(
            f"multigrid needs a Laplacian, got a {type(self).__name__}; use Lobpcg(preconditioner=SparseLU())"
        )

    def items(self: Own) -> Iterator[Own]:
        """The operator of each graph of a batch, without gradients."""
        if len(self.graph.shape) == 1:
            yield self
            return
        for b in range(self.graph.batch_size):
            pattern, edges = self.graph.pattern.item_of(b)
            graph = Graph(pattern, self.values.detach()[edges])
            yield self._replaced(graph=graph, values=graph.weight, diagonal=self.diagonal.detach()[b])

    @cached_property
    def round_off(self) -> Tensor:
        """Residual ``(B,)`` of unit vectors that rounding alone leaves behind, in products and in Ritz vectors."""
        pattern = self.graph.pattern
        longest = pattern.longest_row if isinstance(pattern, SparsePattern) else 1  # dense products sum in blocks
        factor = max(40.0, 0.3 * self.graph.num_nodes**0.5, 4.0 * longest**0.5)
        scale: Tensor = factor * torch.finfo(self.values.dtype).eps * self.bound
        return scale

    def symmetrized(self) -> tuple[SymmetricOperator, Tensor | None]:
        """A symmetric operator of the same spectrum, and the node factor that takes its eigenvectors to this one's.

        None stands for 1.
        """
        return self, None

    def frozen(self: Own) -> Own:
        """This symmetric operator without the tangents of forward mode, which ``detach`` keeps."""
        if not _checks.is_dual(self.values):
            return self
        values = _checks.primal(self.values)
        graph = dataclasses.replace(self.graph, weight=values, log_weight=None)
        return self._replaced(graph=graph, values=values, diagonal=_checks.primal(self.diagonal))

    def sensitivity(self, values: Tensor) -> Tensor:
        """Change ``(B,)`` of the eigenvalues ``(B, k)`` of each graph, over eps, when its entries change by eps."""
        return self.bound.to(values)

    def double(self) -> SymmetricOperator:
        """This symmetric operator in float64."""
        values, diagonal = self.values.double(), self.diagonal.double()
        return self._replaced(graph=Graph(self.graph.pattern, values), values=values, diagonal=diagonal)

    def _replaced(self: Own, **changes: Any) -> Own:
        """A copy with other parts, and nothing worked out of them yet."""
        other: Own = object.__new__(type(self))
        parts = ("graph", "values", *self._at_nodes, *self._kept)
        other.__dict__.update({name: self.__dict__[name] for name in parts}, **changes)
        return other

    def reordered(self: Own, order: Tensor | None = None) -> tuple[Own, Tensor]:
        """One sparse operator with its nodes in an order, int64 ``(N,)``, and that: reverse Cuthill–McKee if None.

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
            log_weight=None,
            similarity=None if r is None else r[order],
            mask=None if self.graph.mask is None else self.graph.mask[order],
        )
        at_nodes = {name: self.__dict__[name][order] for name in self._at_nodes}
        return self._replaced(graph=graph, values=self.values[edges], **at_nodes), order

    @_checks.full_precision
    def matmul(self, y: Tensor) -> Tensor:
        """The product with ``y``, ``(N, m)`` or ``(B, N, m)``, in O(E·m); differentiable in both, at any order.

        Half precision is computed in the precision of the weights, and the result has the dtype of ``y``.
        """
        if tuple(y.shape[:-1]) != tuple(self.graph.shape):
            raise ValueError(f"y must have shape {(*self.graph.shape, 'm')}, got {tuple(y.shape)}")
        if y.dtype in _checks.HALVES:
            return self.matmul(y.to(self.values.dtype)).to(y.dtype)
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

    def chebyshev(
        self,
        x: Tensor,
        degree: Tensor,
        low: Tensor,
        high: Tensor,
        project: Callable[[Tensor], Tensor] | None = None,
        every: int = 1,
    ) -> Tensor:
        """T_degree(Ã) X for a block ``(B, N, m)``: the Chebyshev polynomial that grows below ``low``. No gradients.

        Ã = (2A − high − low) / (high − low) takes [low, high] of each graph, ``(B,)``, to [−1, 1]. The recurrence
        T_{j+1} = 2 Ã T_j − T_{j−1} is one product with the matrix each. Each graph has its own degree, int64 ``(B,)``:
        what one of them needs would overflow in another. ``project``, if given, is applied ``every`` so many products:
        it takes out a subspace that ``x`` has no part in, before round-off in it is enlarged.
        """
        pattern = self.graph.pattern
        half, centre = (high - low) / 2, (high + low) / 2
        diagonal = (self.diagonal.detach().reshape(x.shape[:2]) - centre[:, None]) / half[:, None]
        twice = pattern.assemble(2 * diagonal, self.values.detach() * pattern.of_graph(-2 / half))
        least, most = int(degree.min()), int(degree.max())
        previous, current = x, pattern.multiply(twice, x) / 2
        for step in range(1, most):
            following = pattern.multiply(twice, current, previous, plus=-1)
            if step >= least:
                following = torch.where((degree > step)[:, None, None], following, current)
            previous, current = current, following
            if project is not None and step % every == 0:
                previous, current = project(previous), project(current)
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
