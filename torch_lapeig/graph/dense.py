"""Graphs whose edges are all pairs of nodes, behind the interface of `torch_lapeig.graph.pattern.SparsePattern`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.graph.components import label_components
from torch_lapeig.graph.distances import squared_distances
from torch_lapeig.graph.nodes import Nodes
from torch_lapeig.graph.sound import checked_shape
from torch_lapeig.support import checks


class DensePattern(Nodes):
    """Pattern with an edge between every pair of nodes; an affinity of zero means none. For nearly complete graphs.

    Args:
        shape: ``(N,)`` or ``(B, N)``.

    Raises:
        TypeError: a shape of other things than integers. ValueError: another number of them, or negative ones.

    >>> DensePattern((3,)).squared_lengths(torch.tensor([[0.0], [1.0], [3.0]]))
    tensor([[0., 1., 9.],
            [1., 0., 4.],
            [9., 4., 0.]])
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = checked_shape(shape)

    @classmethod
    def _trusted(cls, shape: tuple[int, ...]) -> DensePattern:
        """Return the pattern of a shape without checks."""
        pattern = cls.__new__(cls)
        pattern.shape = shape
        return pattern

    def __setstate__(self, state: dict[str, Any]) -> None:
        DensePattern.__init__(self, state["shape"])

    def to(self, device: torch.device) -> DensePattern:
        """Return the pattern itself: it holds no tensors."""
        return self

    @property
    def edge_shape(self) -> tuple[int, ...]:
        """Return the shape of values on the edges, ``(N, N)`` or ``(B, N, N)``."""
        return (*self.shape, self.shape[-1])

    def of_graph(self, values: Tensor) -> Tensor:
        """Return values ``(B,)`` of each graph, to broadcast with its edges."""
        return values.reshape(*values.shape[:1], 1, 1) if len(self.shape) == 2 else values.reshape(1, 1)

    def at_row(self, nodes: Tensor) -> Tensor:
        """Return node values at the first node of each edge, to broadcast."""
        return nodes[..., :, None]

    def at_col(self, nodes: Tensor) -> Tensor:
        """Return node values at the second node of each edge, to broadcast."""
        return nodes[..., None, :]

    def sum_rows(self, values: Tensor) -> Tensor:
        """Return Σ_j of edge values, of the graph's shape."""
        return values.sum(-1)

    def transpose(self, values: Tensor) -> Tensor:
        """Return the values of the reversed edges."""
        return values.mT

    def without_loops(self, values: Tensor) -> Tensor:
        """Return the values with self loops set to zero."""
        return values - torch.diag_embed(values.diagonal(dim1=-2, dim2=-1))

    def has_loops(self, values: Tensor) -> bool:
        """Return whether some self loops are not zero; True on accelerators, where synchronising takes longer."""
        return values.device.type != "cpu" or bool(values.diagonal(dim1=-2, dim2=-1).any())

    @checks.full_precision
    def matmul(self, values: Tensor, y: Tensor, *, is_symmetric: bool = False) -> Tensor:
        """Return M Y for ``y`` ``(..., N, m)``."""
        return checks.matmul(values, y.reshape(*self.shape, y.shape[-1])).reshape(y.shape)

    @checks.full_precision
    def products(self, x: Tensor, y: Tensor) -> Tensor:
        """Return X Yᵀ for ``(..., N, m)``."""
        return checks.matmul(x.reshape(*self.shape, x.shape[-1]), y.reshape(*self.shape, y.shape[-1]).mT)

    def direct_lengths(self, x: Tensor) -> Tensor:
        """Return `squared_lengths` without gradients."""
        return squared_distances(x, x)

    def to_dense(self, values: Tensor) -> Tensor:
        """Return the values themselves."""
        return values

    def scaled(self, values: Tensor, nodes: Tensor) -> Tensor:
        """Return s_i m_ij s_j for values m on the edges and s at the nodes."""
        return nodes[..., :, None] * values * nodes[..., None, :]

    def assemble(self, diagonal: Tensor, values: Tensor) -> Tensor:
        """Return diag + M as a matrix for `multiply`, without gradients."""
        matrix = values.detach().clone()
        matrix.diagonal(dim1=-2, dim2=-1).add_(diagonal.detach().reshape(self.shape))
        return matrix

    def to_matrix(self, values: Tensor) -> Tensor:
        """Return M as a matrix for `multiply`, without gradients and without a copy."""
        return values.detach()

    def multiply(
        self,
        matrix: Tensor,
        y: Tensor,
        other: Tensor | None = None,
        *,
        times: float = 1,
        plus: float = 1,
        in_place: bool = False,
    ) -> Tensor:
        """Return times · matrix · y + plus · other, ``(..., N, m)``, for this pattern; ``in_place`` of other."""
        product = times * (matrix @ y.reshape(*self.shape, y.shape[-1])).reshape(y.shape)
        if other is None:
            return product
        return torch.add(product, other, alpha=plus, out=other if in_place else None)

    def components(self, weight: Tensor) -> Tensor:
        """Return component labels by edges of positive weight, of the graph's shape; ascending by node."""
        item, row, col = (weight.reshape(-1, *self.edge_shape[-2:]) > 0).nonzero(as_tuple=True)
        start = item * self.shape[-1]
        return label_components(start + row, start + col, math.prod(self.shape)).reshape(self.shape)

    def restrict(self, nodes: Tensor) -> tuple[DensePattern, tuple[Tensor, ...]]:
        """Return all pairs of ``nodes`` (int64 ``(M,)``, numbered through, of one item), and their places."""
        checks.check_indices(nodes, "nodes", math.prod(self.shape))
        checks.check_distinct(nodes, "nodes")
        item, place = nodes // self.shape[-1], nodes % self.shape[-1]
        if (item != item[0]).any():
            raise ValueError("nodes of a dense graph must be of one item; use graph.to_sparse()")
        pairs = (place[:, None], place)
        return DensePattern((len(nodes),)), pairs if len(self.shape) == 1 else (item[:, None], *pairs)

    def part_of(self, graphs: slice) -> tuple[DensePattern, slice]:
        """Return some graphs of a batch, one after the other, and the places of their values among all."""
        return DensePattern((graphs.stop - graphs.start, self.shape[-1])), graphs

    def item_of(self, b: int) -> tuple[DensePattern, int]:
        """Return one graph of a batch, and the places of its values among all."""
        return DensePattern(self.shape[1:]), b
