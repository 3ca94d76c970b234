"""Spectral clustering, its differentiable embedding, and the normalised cut that it relaxes."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen import Eigenpairs, Laplacian, Solve, Solver, eigenpairs
from torch_lapeig.eigen.laplacian import Normalization
from torch_lapeig.graph import KNN, Graph
from torch_lapeig.graph.graph import check_graph, check_whole
from torch_lapeig.graph.rules import GraphRule
from torch_lapeig.graph.weights import Weighting
from torch_lapeig.methods.labels import (
    ASSIGNMENTS,
    Assignment,
    cluster_qr,
    discretize,
    k_means,
    nearest_axis,
    nearest_centre,
)
from torch_lapeig.methods.module import Embedding
from torch_lapeig.methods.on_graph import GraphEmbedding, check_size, warn_of_isolated
from torch_lapeig.support import checks
from torch_lapeig.support.fitted import State

Variant = Literal["njw", "shi_malik"]

SUM_TOLERANCE = 1e-3  # error of the sums of a soft assignment, or two roundings of half precision


@checks.full_precision
def normalized_cut(labels: Tensor, graph: Graph) -> Tensor:
    """Compute Σ_A cut(A, V∖A) / vol(A) over the clusters A (Shi & Malik 2000, section 2), in O(E·K).

    cut(A, V∖A) = Σ_{i∈A, j∉A} W_ij and vol(A) = Σ_{i∈A} d_i, so the value lies in [0, K] for K clusters. It is at least
    λ_1 + … + λ_K of L y = λ D y. A cluster without volume (empty, or isolated nodes only) contributes 0.

    Args:
        labels: integers ``(N,)`` or ``(B, N)``, 0, 1, … and −1 for nodes of no cluster, whose edges to other nodes
            count as cut. Or soft assignments ``(N, K)`` or ``(B, N, K)``, floating, non-negative, with rows that sum
            to 1 (within 1e-3, in half precision within twice its eps; rows of padding are not checked). Their value is
            expected cut over expected volume, Σ_k h_kᵀ W (1 − h_k) / dᵀ h_k (Nazi et al., *GAP*, 2019).
        graph: graph of the same nodes. Gradients flow to its weights, and to soft assignments.

    Returns:
        ``()``, or ``(B,)`` for a batch, of the dtype of the weights.

    Raises:
        TypeError: labels neither integers nor floating. ValueError: labels of another shape than the graph's or below
            −1, assignments that are negative, not finite or do not sum to 1, a graph that is not symmetric.

    >>> path = Graph.from_dense(
    ...     torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    ... )
    >>> normalized_cut(torch.tensor([0, 0, 1]), path)  # 1/3 + 1/1
    tensor(1.3333)
    """
    check_graph(graph)
    if graph.similarity is not None:
        raise ValueError("graph must be symmetric to be cut, got ImprovedWeights; use HeatKernel()")
    check_whole(graph)
    assignment = _assignment(labels, graph)
    pattern = graph.pattern
    volume = (pattern.sum_rows(graph.weight)[..., None] * assignment).sum(-2)
    # Sum the cut itself: the difference of volume and inner weight cancels for small cuts. A self loop is never cut.
    between = pattern.without_loops(graph.weight)
    cut = (assignment * pattern.matmul(between, 1 - assignment, is_symmetric=True)).sum(-2)
    return torch.where(volume > 0, cut / torch.where(volume > 0, volume, 1), 0).sum(-1)


def _assignment(labels: Tensor, graph: Graph) -> Tensor:
    """Return soft assignments ``(..., N, K)`` unchanged, and labels as indicators of the clusters."""
    checks.check_tensor(labels, "labels")
    if labels.dtype in (torch.int32, torch.int64):
        if tuple(labels.shape) != tuple(graph.shape):
            raise ValueError(f"labels must have shape {graph.shape} to go with the graph, got {tuple(labels.shape)}")
        if (labels < -1).any():
            raise ValueError(f"labels must be 0, 1, … or −1 for no cluster, got a minimum of {int(labels.min())}")
        clusters = torch.arange(checks.check_classes(labels), device=labels.device)
        return (labels[..., None] == clusters).to(graph.weight.dtype)
    half = labels.dtype in checks.HALVES
    tolerance = max(SUM_TOLERANCE, 2 * torch.finfo(labels.dtype).eps) if half else SUM_TOLERANCE
    labels = checks.single(labels)
    checks.check_floating(labels, "labels")
    if tuple(labels.shape[:-1]) != tuple(graph.shape):
        raise ValueError(f"labels must have shape {(*graph.shape, 'K')} if they are soft, got {tuple(labels.shape)}")
    checks.check_finite(labels, "labels")
    if (labels < 0).any():
        raise ValueError(f"labels must be non-negative if they are soft, got a minimum of {labels.min():.3g}")
    sums = labels.detach().sum(-1)
    wrong = (sums - 1).abs() > tolerance
    wrong = wrong if graph.mask is None else wrong & graph.mask
    if wrong.any():
        first = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"labels must have rows that sum to one if they are soft, got a sum of {sums[first]:.4g} in row {first}; "
            "use labels.softmax(-1), or labels.argmax(-1) for one cluster each"
        )
    return labels.to(graph.weight.dtype)


class SpectralClustering(GraphEmbedding):
    """Normalised spectral clustering: labels from the rows of k eigenvectors of a neighbourhood graph.

    The columns of ``forward`` and ``embed`` hold the rows that get labels: the k smallest eigenpairs of L y = λ D y
    with the trivial one, as in the papers. A graph of k connected components has exactly k distinct rows, one for each
    component, which is the wanted clustering, so there is no warning.

    Args:
        n_clusters: k, at most the number of nodes of positive degree.
        neighbors, weights: as for `LaplacianEigenmaps`.
        variant: ``"njw"``: rows of the eigenvectors of L_sym, scaled to length 1 (Ng, Jordan & Weiss, *On spectral
            clustering*, 2002). ``"shi_malik"``: rows of the generalised eigenvectors, Yᵀ D Y = I (Shi & Malik,
            *Normalized cuts and image segmentation*, 2000). Both as in von Luxburg, *A tutorial on spectral
            clustering*, 2007, section 4.
        assign_labels: labels from rows. ``"kmeans"``: scikit-learn's k-means (the extra ``sklearn``).
            ``"cluster_qr"``: a QR decomposition with column pivoting, without iteration or randomness (Damle, Minden &
            Ying 2019). ``"discretize"``: the nearest partition up to a rotation (Yu & Shi 2003). See
            ``methods.labels``.
        n_components: number of eigenvectors; default: ``n_clusters``, which ways other than k-means require.
        n_init: number of starts of k-means, of which the best is kept.
        solve: options of the eigensolve, a `Solve`, or just a solver.
        seed: of k-means and ``"discretize"``.

    Isolated nodes get a row of zeros, the label −1 and a `GraphWarning`. In I − S they have the eigenvalue 1. So they
    take the place of clusters that would be split from the other nodes by eigenvalues above 1.

    The eigenvectors of equal eigenvalues, such as the zeros of several components, are one basis of many. A loss of the
    rows should not depend on the choice of basis (see `eigenpairs`).

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        labels_: int64 ``(N,)``, 0 to k − 1, and −1 for isolated nodes. embedding_: ``(N, k)``, the rows that get
        labels. cluster_centers_: ``(k, k)``, the means of k-means, else None. cluster_axes_: ``(k, k)``, one column for
        each cluster of the other ways, else None. eigenvalues_, residuals_: ``(k,)``. gap_: ``()``, λ_{k+1} − λ_k,
        large if k suits the graph. (With ``n_components`` rows have as many columns.)

    Raises (``fit``, ``forward``):
        TypeError, ValueError: see `knn_graph`, `radius_graph` and `eigenpairs`; a single graph with fewer nodes of
            positive degree than clusters (in a batch the columns it lacks are zero).
        ImportError: ``fit`` by k-means without scikit-learn.

    >>> x = torch.cat([torch.rand(30, 2), torch.rand(30, 2) + 2])
    >>> model = SpectralClustering(2, KNN(5)).fit(x)
    >>> model.labels_[:30].unique().tolist() == model.labels_[30:].unique().tolist()
    False
    >>> torch.equal(model.predict(x[:5]), model.labels_[:5])
    True
    """

    FITTED: ClassVar[tuple[str, ...]] = (*GraphEmbedding.FITTED, "labels_", "cluster_centers_", "cluster_axes_")
    _isolated_get_labels = False  # as in scikit-learn; set by the estimator

    def __init__(
        self,
        n_clusters: int,
        neighbors: GraphRule = KNN(10),  # noqa: B008 (frozen)
        weights: Weighting | None = None,
        *,
        variant: Variant = "njw",
        assign_labels: Assignment = "kmeans",
        n_components: int | None = None,
        n_init: int = 10,
        solve: Solve | Solver | None = None,
        seed: int = 0,
    ) -> None:
        n_clusters = checks.check_width(n_clusters, "n_clusters")
        super().__init__(n_clusters if n_components is None else n_components, neighbors, weights, solve)
        checks.check_choice(variant, "variant", ("njw", "shi_malik"))
        checks.check_choice(assign_labels, "assign_labels", ASSIGNMENTS)
        if assign_labels != "kmeans" and self.n_components != n_clusters:
            raise ValueError(
                f"n_components must be None or n_clusters={n_clusters} with assign_labels={assign_labels!r}, which "
                f"needs one column for each cluster, got {n_components}"
            )
        self.n_clusters = n_clusters
        self.variant: Variant = variant
        self.assign_labels: Assignment = assign_labels
        self.n_init = checks.check_count(n_init, "n_init")
        self.seed = checks.check_seed(seed)

    @property
    def _normalization(self) -> Normalization:
        return "random_walk"

    def _solve_graph(self, laplacian: Laplacian, solved: list[Eigenpairs], *, fill: bool) -> Embedding:
        if not fill:
            for name in ("n_clusters", "n_components"):
                check_size(laplacian, getattr(self, name), name)
        warn_of_isolated(laplacian, "" if self._isolated_get_labels else " and their label is −1")
        pairs = eigenpairs(laplacian, self.n_components, self.solve, fill=fill)
        solved.append(pairs)
        return Embedding(self._rows(pairs.vectors), pairs.values, pairs.residuals, pairs.gap, ())

    def _rows(self, y: Tensor) -> Tensor:
        """Return the rows that get labels, given generalised eigenvectors."""
        if self.variant == "shi_malik":
            return y
        # Scaled to length 1, rows of D^-½ V equal rows of V. The first column is constant on all but isolated nodes,
        # so that other rows are not zero.
        active = y[..., :1].detach() != 0
        y = y / checks.power_of_two(y, (-1,))  # so that no square overflows
        length: Tensor = torch.linalg.vector_norm(torch.where(active, y, 1), dim=-1, keepdim=True)
        return y / length

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        state = super()._fit_points(x, solved, fill=fill)
        return state if self.variant == "shi_malik" else {**state, "train_vectors": solved[-1].vectors}

    def _extend(self, x: Tensor, state: State) -> Tensor:
        return self._rows(super()._extend(x, state))

    def fit(self, x: Tensor | Graph) -> SpectralClustering:
        """Cluster one set of points ``(N, D)``, affinities ``(N, N)`` or one `Graph`, and return the module.

        Half precision is kept as float32.

        Raises:
            TypeError, ValueError: a batch (fit its graphs one by one); see also the class.
        """
        return self.fit_with(x, np.random.RandomState(self.seed))

    @torch.no_grad()
    @checks.full_precision
    def fit_with(self, x: Tensor | Graph, random: np.random.RandomState, verbose: int = 0) -> SpectralClustering:
        """Run ``fit`` with a generator of random numbers in place of ``seed``; ``verbose`` is passed to k-means."""
        # Made first, so that a missing scikit-learn is reported before the solve.
        by_means = k_means(self.n_clusters, self.n_init, random, verbose) if self.assign_labels == "kmeans" else None
        super().fit(x)
        active = self.embedding_[:, 0] != 0
        fewer = self._taken_by_isolated(int((~active).sum()))
        rows = self.embedding_[active]
        if self._isolated_get_labels:
            self.embedding_, fewer = _with_indicators(self.embedding_, active, fewer), 0
            rows = self.embedding_
        elif fewer > 0:
            rows = rows[:, : self.n_clusters - fewer]
        if by_means is not None:
            unit = checks.power_of_two(rows, (0, 1))  # so that no square overflows
            by_means.set_params(n_clusters=self.n_clusters - fewer).fit((rows / unit).cpu().numpy())
            self.cluster_centers_ = torch.as_tensor(by_means.cluster_centers_).to(rows) * unit
        elif self.assign_labels == "cluster_qr":
            self.cluster_axes_ = cluster_qr(rows)[1]
        else:
            self.cluster_axes_ = discretize(rows[rows.any(1)], random)[1]
        self.labels_ = self._labels_of(self.embedding_)  # not from k-means: at equal distances `predict` must agree
        return self

    def fit_predict(self, x: Tensor | Graph) -> Tensor:
        """Return ``labels_`` of ``fit(x)``, int64 ``(N,)``."""
        return self.fit(x).labels_

    @torch.no_grad()
    @checks.full_precision
    def predict(self, x_new: Tensor) -> Tensor:
        """Return labels of new points ``(Q, D)``, int64 ``(Q,)``: the nearest centre or axis; −1 for rows of zeros.

        Raises:
            RuntimeError, TypeError, ValueError: see ``transform``.
        """
        return self._labels_of(self.transform(x_new))

    def _taken_by_isolated(self, isolated: int) -> int:
        """Return the number of clusters that isolated nodes take from the other nodes.

        Isolated nodes have the eigenvalue 1 of I − S, so they come before splits of the other nodes by larger
        eigenvalues.
        """
        return min(isolated, int((self.eigenvalues_[: self.n_clusters] > 1).sum()))

    def _labels_of(self, rows: Tensor) -> Tensor:
        """Return the nearest centre or axis of each row, −1 for zeros."""
        if self.assign_labels == "kmeans":
            labels = nearest_centre(rows[:, : self.cluster_centers_.shape[1]], self.cluster_centers_)
        else:
            axes = self.cluster_axes_.to(rows.dtype)
            labels = nearest_axis(rows[:, : len(axes)], axes, signed=self.assign_labels == "discretize")
        return labels if self._isolated_get_labels else labels.masked_fill(rows[:, 0] == 0, -1)


def _with_indicators(rows: Tensor, active: Tensor, count: int) -> Tensor:
    """Return rows whose last ``count`` columns are replaced by indicators of the first isolated nodes."""
    rows, isolated = rows.clone(), (~active).nonzero().flatten()[:count]
    rows[:, rows.shape[1] - count :] = 0
    rows[isolated, torch.arange(rows.shape[1] - count, rows.shape[1], device=rows.device)] = 1
    return rows
