"""Losses on a graph: smoothness along its edges, orthogonality, and the spectral loss of parametric eigenmaps.

An encoder trained with `SpectralLoss` spans the smallest eigenfunctions of the graph Laplacian; `Whitening` then turns
its outputs into the eigenfunctions themselves, at new points as well. All results have the dtype of ``y``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.graph.graph import WITHOUT_MASK, Graph, check_graph
from torch_lapeig.graph.pattern import PatternBase
from torch_lapeig.graph.rules import KNN, GraphRule, Precomputed, check_rule_and_weights, weighted_graph
from torch_lapeig.graph.weights import Weighting
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import FittedModule

__all__ = ["LaplacianSmoothness", "SpectralLoss", "Whitening", "laplacian_smoothness"]
__all__ += ["orthogonality", "spectral_loss", "whiten"]

Reduction = Literal["mean", "weighted_mean", "sum", "none"]
REDUCTIONS = ("mean", "weighted_mean", "sum", "none")


@precision.full_precision
def laplacian_smoothness(y: Tensor, graph: Graph, reduction: Reduction = "mean") -> Tensor:
    """Compute ½ Σ_ij W_ij ‖y_i − y_j‖² = tr(Yᵀ L Y) (Belkin & Niyogi 2003, section 3): O(E·k) time, O(E + N·k) memory.

    The sum is over differences: never negative, and accurate for smooth ``y`` far from the origin. In mini-batches use
    a part of a graph of all points, ``graph.subgraph(nodes)``, with the batches of `torch_lapeig.samplers`; a graph
    built from a random batch trains a classifier to blur its classes.

    Args:
        y: ``(N, k)`` or ``(B, N, k)``, of any float dtype; half precision is computed in float32. Gradients flow to it
            and to the graph's weights, but not to rows of padding, which may hold any numbers.
        graph: graph of the same nodes. Every edge is stored in both directions, with equal weights; of
            `ImprovedWeights` with the mean of W_ij and W_ji, which leaves the sum as it is.
        reduction: ``"none"``: ½ W_ij ‖y_i − y_j‖² of every stored edge, of the shape of ``graph.weight``; ``"sum"``:
            the sum of these terms, the formula; ``"mean"``: their mean over the edges of positive weight;
            ``"weighted_mean"``: their sum over the sum of the weights, the weighted mean of ½ ‖y_i − y_j‖², which does
            not change with the unit of the weights. Self loops contribute to no reduction. Without edges the loss and
            its gradients are zero.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> laplacian_smoothness(torch.tensor([[0.0], [1.0], [3.0]]), path, "sum")
    tensor(5.)
    """
    checks.check_choice(reduction, "reduction", REDUCTIONS)
    columns = _columns(y, graph, "laplacian_smoothness")
    weight = graph.mean_affinity
    if reduction == "none":
        return (weight * graph.pattern.squared_lengths(columns) / 2).to(y.dtype)
    weight = graph.pattern.without_loops(weight)
    if reduction == "weighted_mean":
        total = graph.pattern.sum(weight.sum())
        weight = weight / torch.where(total > 0, total + (total - total), 1)  # NaN where the sum overflows
    edges = int(graph.pattern.sum(weight.count_nonzero())) if reduction == "mean" else 1
    return (graph.pattern.smoothness(weight, columns) / max(1, edges)).to(y.dtype)


@precision.full_precision
def orthogonality(y: Tensor, graph: Graph | None = None, mask: Tensor | None = None) -> Tensor:
    """Compute ‖Yᵀ D Y / vol − I‖², vol = Σ d_i: zero for orthogonal columns of mean square 1, weighted by degree.

    Without a graph all rows have equal weight: ‖Yᵀ Y / N − I‖². The penalty does not grow with N, so that mini-batches
    estimate it; for a batch of graphs it is the mean over graphs with edges. To keep the columns orthogonal to the
    constant, too, whose smoothness is 0, append a column of ones to ``y``.

    Args:
        y: ``(N, k)`` or ``(B, N, k)``, of any float dtype; half precision is computed in float32.
        graph: graph of the same nodes; its degrees are the weights.
        mask: bool ``(N,)`` or ``(B, N)``, True for valid rows; None with a graph, which has its own mask.

    >>> orthogonality(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    tensor(0.)
    """
    columns, degrees, _, nodes = _with_row_weights(y, graph, mask, "orthogonality")
    volume = nodes.sum(degrees.sum(-1))
    share = (degrees / torch.where(volume > 0, volume, 1)[..., None])[..., None]
    moments = nodes.sum(precision.matmul(columns.mT, share * columns))
    excess = moments - torch.eye(y.shape[-1], dtype=columns.dtype, device=y.device)
    return _mean_over_graphs(excess.square().sum((-2, -1)) / nodes.num_ranks, volume).to(y.dtype)


@precision.full_precision
def whiten(y: Tensor, graph: Graph | None = None, mask: Tensor | None = None) -> Tensor:
    """Compute Z = (Y − mean) C⁻ᵀ, with Zᵀ D Z = I, C the Cholesky factor of the centred Yᵀ D Y; differentiable.

    The mean is weighted by degree, so that the columns are D-orthogonal to the constant, too, like the eigenvectors of
    L y = λ D y. Without a graph D = I. A direction in which ``y`` does not vary gets a column of nearly zeros, by a
    ridge on the diagonal: 1.2e-7 (float64: 1e-12) of the column's variance, plus the square of 64 machine epsilons of
    its mean. The computation is in float64.

    Args:
        y: ``(N, k)`` or ``(B, N, k)``, of any float dtype; gradients flow to it.
        graph: graph of the same nodes; gradients flow to its weights, too.
        mask: bool ``(N,)`` or ``(B, N)``, True for valid rows; None with a graph, which has its own mask.

    >>> z = whiten(torch.randn(20, 3, dtype=torch.float64))
    >>> torch.dist(z.mT @ z, torch.eye(3)) < 1e-10
    tensor(True)
    """
    columns, degrees, valid, nodes = _with_row_weights(y, graph, mask, "whiten")
    mean, matrix, _ = _whitening(columns, degrees, nodes, checks.half_to_float32(y).dtype)
    z = precision.matmul(columns - mean, matrix).to(y.dtype)
    return z if valid is None else z.masked_fill(~valid[..., None], 0)


@precision.full_precision
def spectral_loss(y: Tensor, graph: Graph) -> Tensor:
    """Compute tr((Yᵀ D Y)⁻¹ Yᵀ L Y) of the centred ``y``, the smoothness of `whiten`: at least λ_2 + … + λ_{k+1}.

    The lower bound, the sum of the k smallest eigenvalues of L y = λ D y after the zero of the constant (Ky Fan 1949),
    is reached if and only if the columns span the eigenvectors of these eigenvalues. The loss is invariant to
    invertible linear maps of ``y`` and to shifts, so that a network needs no constraint on its last layer (SpectralNet,
    Shaham et al. 2018, orthonormalises there instead).

    A direction in which ``y`` does not vary (see `whiten`) costs 2, the bound of every λ: collapsed outputs are never
    rewarded, and their gradients are finite. A NaN or Inf outside padding makes the loss NaN.

    Args:
        y: as for `laplacian_smoothness`.
        graph: graph of the same nodes with symmetric affinities, of all points or of a mini-batch.

    Returns: The loss ``()`` in the dtype of ``y``, between 0 and 2 k; for a batch the mean over the graphs with edges.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> round(spectral_loss(torch.tensor([[0.0], [1.0], [2.0]]), path).item(), 5)  # λ_2
    1.0
    """
    check_graph(graph, "graph", "spectral_loss")
    columns, degrees, _, nodes = _with_row_weights(y, graph, None, "spectral_loss")
    mean, matrix, missing = _whitening(columns, degrees, nodes, checks.half_to_float32(y).dtype)
    smoothness = graph.pattern.smoothness(graph.exact, precision.matmul(columns - mean, matrix))
    volume = nodes.sum(degrees.sum(-1))
    # Graphs without edges do not count in the smoothness or the mean.
    return (smoothness / (volume > 0).sum() + 2 * _mean_over_graphs(missing / nodes.num_ranks, volume)).to(y.dtype)


class _GraphLoss(FittedModule):
    """Loss of ``y`` on a graph that is given or built from points; it keeps no fit."""

    FITTED: ClassVar[tuple[str, ...]] = ()

    def __init__(self, neighbors: GraphRule = KNN(10), weights: Weighting | None = None) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.weights = check_rule_and_weights(neighbors, weights)

    def forward(self, y: Tensor, x: Tensor | Graph, mask: Tensor | None = None) -> Tensor:
        """Return the loss of ``y`` ``(N, k)`` or ``(B, N, k)`` on a graph, or on the graph of points ``x`` with a mask.

        Gradients flow to ``y``, and to ``x`` through the weights; use ``x.detach()`` to prevent it.
        """
        return self._of_graph(y, self.graph_of(x, mask))

    @abstractmethod
    def _of_graph(self, y: Tensor, graph: Graph) -> Tensor:
        """Return the loss on a graph."""

    @precision.full_precision
    def graph_of(self, x: Tensor | Graph, mask: Tensor | None = None) -> Graph:
        """Return the weighted graph of points ``(N, D)`` or ``(B, N, D)``; a `Graph` is returned unchanged.

        With ``Precomputed("affinity")`` ``x`` is a matrix of affinities. Half precision becomes float32.
        """
        if isinstance(x, Graph):
            return weighted_graph(Precomputed("affinity"), None, x, mask)
        return weighted_graph(self.neighbors, self.weights, checks.half_to_float32(x), mask)


class LaplacianSmoothness(_GraphLoss):
    """`laplacian_smoothness` as a module, with the graph built from points or given.

    Args:
        neighbors: rule of the graph of points.
        weights: weighting of the edges; default ``HeatKernel("median")``.
        reduction: ``"mean"``, ``"weighted_mean"``, ``"sum"`` or ``"none"``; see `laplacian_smoothness`.

    The graph may be built from the network's inputs, ``loss(y, x)``, or from features, ``loss(y, features.detach())``,
    or be given, ``loss(y, graph)``; in mini-batches ``graph.subgraph(nodes)``, see `laplacian_smoothness`.

    >>> x = torch.arange(5.0)[:, None]
    >>> LaplacianSmoothness(KNN(1), reduction="sum")(torch.ones(5, 2), x)
    tensor(0.)
    """

    def __init__(
        self, neighbors: GraphRule = KNN(10), weights: Weighting | None = None, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(neighbors, weights)
        checks.check_choice(reduction, "reduction", REDUCTIONS)
        self.reduction: Reduction = reduction

    def _of_graph(self, y: Tensor, graph: Graph) -> Tensor:
        return laplacian_smoothness(y, graph, self.reduction)


class SpectralLoss(_GraphLoss):
    """`spectral_loss` as a module, with the graph built from points or given, as for `LaplacianSmoothness`.

    Args:
        neighbors, weights: as for `LaplacianSmoothness`.

    >>> _ = torch.manual_seed(0)
    >>> x, encoder, loss = torch.rand(50, 2), torch.nn.Linear(2, 1), SpectralLoss(KNN(6))
    >>> loss(encoder(x), x).backward()
    >>> # an eigenfunction
    >>> Whitening(1).fit(encoder(x), loss.graph_of(x))(encoder(torch.rand(3, 2))).shape
    torch.Size([3, 1])
    """

    def _of_graph(self, y: Tensor, graph: Graph) -> Tensor:
        return spectral_loss(y, graph)


class Whitening(FittedModule):
    """Affine map from an encoder's outputs to eigenfunctions, which ``fit`` determines.

    ``fit`` whitens the outputs at the points of a graph (`whiten`) and rotates them by the eigenvectors of Zᵀ L Z
    (Rayleigh–Ritz). The result is the best approximation within their span to the eigenvectors of L y = λ D y, by
    ascending λ. Applied to the encoder's outputs at new points, the map returns values of the eigenfunctions there:
    ``nn.Sequential(encoder, Whitening(k).fit(encoder(x), graph))``.

    Args:
        n_components: k, the number of outputs of the encoder.

    Tensors (part of ``state_dict``, which loads into a fresh module of as many columns):
        mean: ``(k,)``. matrix: ``(k, k)``. eigenvalues_: ``(k,)`` in [0, 2].

    >>> z = torch.randn(40, 2, dtype=torch.float64)
    >>> graph = KNN(9)(z)
    >>> y, d = Whitening(2).fit(z, graph)(z), graph.pattern.sum_rows(graph.weight)
    >>> torch.allclose(y.T @ (d[:, None] * y), torch.eye(2, dtype=torch.float64))
    True
    """

    FITTED: ClassVar[tuple[str, ...]] = ("mean", "matrix", "eigenvalues_")
    CONFIGURATION: ClassVar[tuple[str, ...]] = ("n_components",)
    mean: Tensor
    matrix: Tensor
    eigenvalues_: Tensor

    def __init__(self, n_components: int) -> None:
        super().__init__()
        self.n_components = checks.check_width(n_components, "n_components")

    @torch.no_grad()
    @precision.full_precision
    def fit(self, y: Tensor, graph: Graph) -> Whitening:
        """Set the map from linearly independent outputs ``(N, k)`` at the nodes of one graph, and return the module.

        The largest entry of each eigenvector is made positive.
        """
        check_graph(graph, "graph", "Whitening")
        columns, degrees, valid, nodes = _with_row_weights(y, graph, None, "Whitening.fit")
        self._check(y)
        if y.ndim != 2:
            raise ValueError(f"fit takes one graph, got y of shape {tuple(y.shape)}")
        checks.check_finite(columns, "y")
        dtype = checks.half_to_float32(y).dtype
        mean, matrix, missing = _whitening(columns, degrees, nodes, dtype)
        if missing > 0.5:
            raise ValueError(
                f"y must have {len(matrix)} linearly independent columns that vary over the graph, got about "
                f"{len(matrix) - missing:.0f}; train further, or with fewer outputs"
            )
        z = (columns - mean) @ matrix
        values, turn = torch.linalg.eigh(z.mT @ Laplacian(graph, "unnormalized").matmul(z))
        turned = z @ turn if valid is None else (z @ turn)[valid]
        sign = turned.gather(0, turned.abs().argmax(0, keepdim=True)).sign()
        state = {"mean": mean[0], "matrix": matrix @ (turn * sign), "eigenvalues_": values}
        self._keep({name: value.to(dtype) for name, value in state.items()}, y)
        return self

    @precision.without_autocast
    def forward(self, y: Tensor) -> Tensor:
        """Return eigenfunctions ``(..., k)`` at outputs ``(..., k)``, differentiable, in the dtype of ``y``."""
        self._check(y)
        self.check_fitted()
        columns = checks.half_to_float32(y)
        return precision.matmul(columns - self.mean.to(columns), self.matrix.to(columns)).to(y.dtype)

    def _check(self, y: Tensor) -> None:
        checks.check_floating(checks.half_to_float32(y), "y")
        if y.ndim == 0 or y.shape[-1] != self.n_components:
            raise ValueError(f"y must have {self.n_components} columns, got shape {tuple(y.shape)}")


def _columns(y: Tensor, graph: Graph, call: str) -> Tensor:
    check_graph(graph)
    columns = checks.half_to_float32(y)

    def check() -> dict[str, Any]:
        checks.check_floating(columns, "y")
        if tuple(y.shape[:-1]) != tuple(graph.shape) or y.shape[-1] == 0:
            raise ValueError(f"y must have shape {(*graph.shape, 'k')} to go with the graph, got {tuple(y.shape)}")
        return checks.facts_of_rows(y=y, weights=graph.weight)

    graph.pattern.agree(call, check)
    columns = columns.double()
    return columns if graph.mask is None else columns.masked_fill(~graph.mask[..., None], 0)  # type: ignore[no-any-return]


def _with_row_weights(
    y: Tensor, graph: Graph | None, mask: Tensor | None, call: str
) -> tuple[Tensor, Tensor, Tensor | None, PatternBase]:
    """Return ``y`` in float64, zero at padding, with the degrees and mask of a graph, or equal weights and a mask."""
    # Last the operations on all rows, which may lie on several ranks.
    if graph is not None:
        if mask is not None:
            raise ValueError(f"mask must be None with a Graph, got a mask too; {WITHOUT_MASK}")
        columns = _columns(y, graph, call)
        return columns, Laplacian(graph, "unnormalized").exact_degrees, graph.mask, graph.pattern
    columns = checks.half_to_float32(y)
    checks.check_floating(columns, "y")
    if y.ndim not in (2, 3) or y.shape[-1] == 0:
        raise ValueError(f"y must have shape (N, k) or (B, N, k), got {tuple(y.shape)}")
    columns = columns.double()
    if mask is None:
        return columns, columns.new_ones(y.shape[:-1]), None, PatternBase()
    checks.check_mask(mask, y)
    return columns.masked_fill(~mask[..., None], 0), mask.to(columns.dtype), mask, PatternBase()


def _mean_over_graphs(values: Tensor, volume: Tensor) -> Tensor:
    """Return the mean of values ``(B,)`` or ``()`` over the graphs of positive volume."""
    present = volume > 0
    if not present.any():
        raise ValueError("y must have rows of positive weight, got a graph without edges or a mask without valid rows")
    return torch.where(present, values, 0).sum() / present.sum()


def _whitening(columns: Tensor, degrees: Tensor, nodes: PatternBase, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return the map Z = (Y − μ) T with Zᵀ D Z = I, up to the ridge: μ, T and the missing k − tr(Zᵀ D Z)."""
    # T = C⁻ᵀ of C Cᵀ = G + R, the covariance G = (Y − μ)ᵀ D (Y − μ) and the ridge R = diag(r), so that
    # Zᵀ D Z = I − T R Tᵀ. With a cost of 2 for the missing trace, the spectral loss is tr((G + R)⁻¹ (A + 2 R)),
    # A = Yᵀ L Y ≤ 2 G. A larger ridge never makes it smaller: with M = (G + R)⁻¹ its derivative along R is
    # tr(M R M (2 G − A)) ≥ 0.
    eps, share = torch.finfo(dtype).eps, degrees[..., None]
    volume = nodes.sum(share.sum(-2, keepdim=True))
    volume = torch.where(volume > 0, volume, 1)
    share = share / volume
    mean = nodes.sum((share * columns).sum(-2, keepdim=True))
    centred = columns - mean
    covariance = nodes.sum(precision.matmul(centred.mT, share * centred))
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    # A standard deviation below 64 machine epsilons of the mean counts as zero, and so does a variance of 1e-38, whose
    # root divides float32 without overflow.
    ridge = max(eps, 1e-12) * variance + (64 * eps * mean.squeeze(-2)).square() + 1e-38
    # Without an error check, so that NaN in the outputs becomes NaN in the loss.
    factor = torch.linalg.cholesky_ex(covariance + torch.diag_embed(ridge))[0]
    identity = torch.eye(columns.shape[-1], dtype=factor.dtype, device=columns.device)
    inverse = torch.linalg.solve_triangular(factor, identity.expand(factor.shape), upper=False)
    missing = (inverse.square() * ridge[..., None, :]).sum((-2, -1))
    return mean, inverse.mT / volume.sqrt(), missing
