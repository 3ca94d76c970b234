"""Spectral clustering, its differentiable embedding, and the normalised cut it relaxes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from torch_lapeig import _checks
from torch_lapeig.eigen import Eigenpairs, eigenpairs
from torch_lapeig.embedding import Rule, check_rule, warn_of_isolated, weighted_graph
from torch_lapeig.graph import KNN, Graph
from torch_lapeig.laplacian import Laplacian
from torch_lapeig.solvers import Solver
from torch_lapeig.weights import Weighting

Variant = Literal["njw", "shi_malik"]

FITTED = ("labels_", "embedding_", "eigenvalues_", "residuals_", "gap_")


@_checks.full_precision
def normalized_cut(labels: Tensor, graph: Graph) -> Tensor:
    """Σ_A cut(A, V∖A) / vol(A) over the clusters A (Shi & Malik 2000, section 2), in O(E·K).

    cut(A, V∖A) = Σ_{i∈A, j∉A} W_ij and vol(A) = Σ_{i∈A} d_i, so the value lies in [0, K] for K clusters. It is at least
    λ_1 + … + λ_K of L y = λ D y. A cluster of no volume (empty, or isolated nodes only) adds nothing.

    Args:
        labels: integers ``(N,)`` or ``(B, N)``, 0, 1, … and −1 for nodes of no cluster, whose edges to the others count
            as cut. Or soft assignments ``(N, K)`` or ``(B, N, K)``, float32 or float64, non-negative, with rows that
            sum to one: expected cut over expected volume, Σ_k h_kᵀ W (1 − h_k) / dᵀ h_k (Nazi et al., *GAP*, 2019).
        graph: of the same nodes. Gradients flow to its weights, and to soft assignments.

    Returns:
        ``()``, or ``(B,)`` for a batch.

    Raises:
        TypeError: labels neither integers nor float32 or float64. ValueError: shape that does not go with the graph,
            labels below −1, assignments that are negative or not finite, a graph that is not symmetric.

    >>> path = Graph.from_dense(torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))
    >>> normalized_cut(torch.tensor([0, 0, 1]), path)  # 1/3 + 1/1
    tensor(1.3333)
    """
    if graph.similarity is not None:
        raise ValueError("graph must be symmetric to be cut, got one of ImprovedWeights")
    assignment = _assignment(labels, graph)
    pattern = graph.pattern
    volume = (pattern.sum_rows(graph.weight)[..., None] * assignment).sum(-2)
    # Not vol − assoc, which cancels where the cut is small. A self loop is never cut.
    cut = (assignment * pattern.matmul(pattern.without_loops(graph.weight), 1 - assignment)).sum(-2)
    return torch.where(volume > 0, cut / torch.where(volume > 0, volume, 1), 0).sum(-1)


def _assignment(labels: Tensor, graph: Graph) -> Tensor:
    """Soft assignments as they are, labels as indicators of the clusters: ``(..., N, K)``."""
    if isinstance(labels, Tensor) and labels.dtype in (torch.int32, torch.int64):
        if tuple(labels.shape) != tuple(graph.shape):
            raise ValueError(f"labels must have shape {graph.shape} to go with the graph, got {tuple(labels.shape)}")
        if (labels < -1).any():
            raise ValueError(f"labels must be 0, 1, … or −1 for no cluster, got a minimum of {int(labels.min())}")
        clusters = torch.arange(int(labels.max()) + 1, device=labels.device)
        return (labels[..., None] == clusters).to(graph.weight.dtype)
    _checks.check_floating(labels, "labels")
    if tuple(labels.shape[:-1]) != tuple(graph.shape):
        raise ValueError(f"labels must have shape {(*graph.shape, 'K')} if they are soft, got {tuple(labels.shape)}")
    _checks.check_finite(labels, "labels")
    if (labels < 0).any():
        raise ValueError(f"labels must be non-negative if they are soft, got a minimum of {labels.min():.3g}")
    return labels.to(graph.weight.dtype)


class SpectralClustering(nn.Module):
    """Normalised spectral clustering: k-means on the rows of k eigenvectors of a neighbourhood graph.

    The k smallest eigenpairs of L y = λ D y are taken with the trivial one, as in the papers. A graph of k connected
    components has exactly k distinct rows, one for each component, which is the wanted answer: no warning is given.

    Args:
        n_clusters: k, at most the number of nodes of positive degree.
        neighbors: rule of the graph, ``KNN(k)`` or ``Radius(r)``, or ``"precomputed"``: the module is given affinities
            or a `Graph` in the place of points.
        weights: weighting of its edges; default ``HeatKernel("median")``. None with ``"precomputed"``.
        variant: ``"njw"``: rows of the eigenvectors of L_sym, scaled to length 1 (Ng, Jordan & Weiss, *On spectral
            clustering*, 2002). ``"shi_malik"``: rows of the generalised eigenvectors, Yᵀ D Y = I (Shi & Malik,
            *Normalized cuts and image segmentation*, 2000). Both as in von Luxburg, *A tutorial on spectral
            clustering*, 2007, section 4.
        solver: of the eigenproblem; see `eigenpairs`.
        seed: of k-means (scikit-learn, the extra ``sklearn``; the best of ten starts).

    Buffers after ``fit`` (not part of ``state_dict``):
        labels_: int64 ``(N,)``, 0 to k − 1, and −1 for isolated nodes. embedding_: ``(N, k)``, the rows that k-means
        sees. eigenvalues_, residuals_: ``(k,)``. gap_: ``()``, λ_{k+1} − λ_k, large where k suits the graph.

    >>> x = torch.cat([torch.rand(30, 2), torch.rand(30, 2) + 2])
    >>> labels = SpectralClustering(2, KNN(5)).fit_predict(x)
    >>> labels[:30].unique().tolist() == labels[30:].unique().tolist()
    False
    """

    labels_: Tensor
    embedding_: Tensor
    eigenvalues_: Tensor
    residuals_: Tensor
    gap_: Tensor

    def __init__(
        self,
        n_clusters: int,
        neighbors: Rule = KNN(10),  # noqa: B008 (frozen)
        weights: Weighting | None = None,
        *,
        variant: Variant = "njw",
        solver: Solver | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        _checks.check_count(n_clusters, "n_clusters")
        _checks.check_choice(variant, "variant", ("njw", "shi_malik"))
        _checks.check_count(seed, "seed", 0)
        if solver is not None and not callable(solver):
            raise TypeError(f"solver must be a solver such as Eigh(), got {solver!r}")
        self.n_clusters = n_clusters
        self.neighbors = neighbors
        self.weights = check_rule(neighbors, weights)
        self.variant: Variant = variant
        self.solver = solver
        self.seed = seed
        for name in FITTED:
            self.register_buffer(name, None, persistent=False)

    @_checks.full_precision
    def forward(self, x: Tensor | Graph, mask: Tensor | None = None) -> Tensor:
        """The rows that k-means sees, ``(N, n_clusters)`` or ``(B, N, n_clusters)``, with gradients.

        Args:
            x: ``(N, D)`` or ``(B, N, D)``, floating; the dtype and device are kept. Affinities ``(N, N)`` or
                ``(B, N, N)`` or a `Graph` with ``neighbors="precomputed"``.
            mask: bool ``(N,)`` or ``(B, N)``, False for padding; its rows are zero, and so are their gradients.

        Isolated nodes get a row of zeros and a `GraphWarning`. The eigenvectors of equal eigenvalues, such as the zeros
        of several components, are one basis of many: a loss on the rows should not depend on which (see `eigenpairs`).

        Raises:
            TypeError, ValueError: see `knn_graph`, `radius_graph` and `eigenpairs`; a single graph with fewer nodes of
                positive degree than clusters (in a batch the columns it lacks are zero).
        """
        rows = self._rows(weighted_graph(self.neighbors, self.weights, _checks.single(x), mask))[0]
        return rows.to(x.dtype) if isinstance(x, Tensor) else rows

    def _rows(self, graph: Graph) -> tuple[Tensor, Eigenpairs]:
        """The rows, and the eigenpairs they are made of."""
        laplacian, batched = Laplacian(graph, "random_walk"), len(graph.shape) > 1
        if self.n_clusters > (fewest := laplacian.fewest_active) and not batched:
            raise ValueError(
                "n_clusters must be at most the number of nodes of positive degree, got "
                f"n_clusters={self.n_clusters} with {fewest} of them"
            )
        warn_of_isolated(laplacian, " and their label is −1")
        pairs = eigenpairs(laplacian, self.n_clusters, self.solver, fill=batched)
        if self.variant == "shi_malik":
            return pairs.vectors, pairs
        # Rows of D^-½ V scaled to length 1 are those of V. The constant first column keeps them away from zero.
        active = laplacian.active[..., None]
        length = torch.linalg.vector_norm(torch.where(active, pairs.vectors, 1), dim=-1, keepdim=True)
        return pairs.vectors / length, pairs

    @torch.no_grad()
    @_checks.full_precision
    def fit(self, x: Tensor | Graph) -> SpectralClustering:
        """Cluster points ``(N, D)``, affinities ``(N, N)`` or one `Graph`. Returns the module.

        Raises:
            ValueError: a batch, whose graphs are to be fitted one by one, and what ``forward`` raises.
            ImportError: no scikit-learn.
        """
        if isinstance(x, Tensor):
            _checks.check_points(x, batched=False)
        graph = weighted_graph(self.neighbors, self.weights, x)
        if len(graph.shape) > 1:
            raise ValueError(f"fit takes one graph, got a batch of shape {graph.shape}; fit its graphs one by one")
        rows, pairs = self._rows(graph)
        active = pairs.vectors[:, 0] != 0
        labels = torch.full_like(active, -1, dtype=torch.int64)
        labels[active] = _k_means(rows[active], self.n_clusters, self.seed)
        self.labels_, self.embedding_ = labels, rows
        self.eigenvalues_, self.residuals_, self.gap_ = pairs.values, pairs.residuals, pairs.gap
        return self

    def fit_predict(self, x: Tensor | Graph) -> Tensor:
        """``labels_`` of ``fit(x)``, int64 ``(N,)``."""
        return self.fit(x).labels_

    def extra_repr(self) -> str:
        """The constructor's arguments, but for the weights, which are shown as a submodule."""
        return (
            f"{self.n_clusters}, {self.neighbors!r}, variant={self.variant!r}, solver={self.solver}, seed={self.seed}"
        )


def _k_means(rows: Tensor, k: int, seed: int) -> Tensor:
    """Labels int64 ``(N,)`` by scikit-learn, which works on the CPU."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise ImportError(
            'SpectralClustering.fit needs scikit-learn for k-means; pip install "torch-lapeig[sklearn]"'
        ) from error
    labels = KMeans(k, n_init=10, random_state=seed).fit_predict(rows.cpu().numpy())
    return torch.as_tensor(labels, dtype=torch.int64, device=rows.device)
