"""The Laplacian-smoothness loss: embeddings that vary little along the edges of a graph."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from torch_lapeig import _checks
from torch_lapeig.graph import KNN, Graph, Radius
from torch_lapeig.weights import HeatKernel, Weighting

Reduction = Literal["mean", "sum", "none"]


@_checks.full_precision
def laplacian_smoothness(y: Tensor, graph: Graph, reduction: Reduction = "mean") -> Tensor:
    """½ Σ_ij W_ij ‖y_i − y_j‖² = tr(Yᵀ L Y) (Belkin & Niyogi 2003, section 3), in O(E·k).

    Args:
        y: ``(N, k)`` or ``(B, N, k)``, float32 or float64; gradients flow to it and to the graph's weights.
        graph: of the same nodes. Every edge is stored in both directions.
        reduction: ``"none"``: ½ W_ij ‖y_i − y_j‖² of every stored edge, of the shape of
            ``graph.weight``; ``"sum"``: their sum, the formula;
            ``"mean"``: their mean over the edges of positive weight.

    Raises:
        TypeError: wrong dtype. ValueError: shape that does not go with the graph, no edges, unknown reduction.

    >>> import torch
    >>> path = Graph.from_dense(torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))
    >>> laplacian_smoothness(torch.tensor([[0.0], [1.0], [3.0]]), path, "sum")
    tensor(5.)
    """
    _checks.check_floating(y, "y")
    _checks.check_choice(reduction, "reduction", ("mean", "sum", "none"))
    if tuple(y.shape[:-1]) != tuple(graph.shape):
        raise ValueError(f"y must have shape {(*graph.shape, 'k')} to go with the graph, got {tuple(y.shape)}")
    terms = graph.weight * graph.pattern.squared_lengths(y) / 2
    if reduction == "none":
        return terms
    if reduction == "sum":
        return terms.sum()
    if (edges := int(graph.weight.count_nonzero())) == 0:
        raise ValueError('graph has no edges to take the mean of; use reduction="sum"')
    return terms.sum() / edges


class LaplacianSmoothness(nn.Module):
    """`laplacian_smoothness` as a module, with the graph built from points or given.

    Args:
        neighbors: rule of the graph that points are turned into.
        weights: weighting of its edges; default ``HeatKernel("median")``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    >>> import torch
    >>> x = torch.arange(5.0)[:, None]
    >>> LaplacianSmoothness(KNN(1), reduction="sum")(torch.ones(5, 2), x)
    tensor(0.)
    """

    def __init__(
        self,
        neighbors: KNN | Radius = KNN(10),  # noqa: B008 (frozen)
        weights: Weighting | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        _checks.check_choice(reduction, "reduction", ("mean", "sum", "none"))
        self.neighbors = neighbors
        self.weights = HeatKernel() if weights is None else weights
        self.reduction: Reduction = reduction

    @_checks.full_precision
    def forward(self, y: Tensor, x: Tensor | Graph, mask: Tensor | None = None) -> Tensor:
        """The loss of ``y`` of shape ``(N, k)`` or ``(B, N, k)`` on a graph, or on that of points ``x`` with a mask.

        Gradients flow to ``y``, and to ``x`` through the weights; use ``x.detach()`` where that is not wanted.
        """
        graph = x if isinstance(x, Graph) else self.weights(x, self.neighbors(x, mask))
        return laplacian_smoothness(y, graph, self.reduction)

    def extra_repr(self) -> str:
        """The constructor's arguments, but for the weights, which are shown as a submodule."""
        return f"{self.neighbors}, reduction={self.reduction!r}"
