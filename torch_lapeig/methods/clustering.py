"""Spectral clustering and its differentiable embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen import Eigenpairs, Laplacian, Solve, Solver, eigenpairs
from torch_lapeig.graph import KNN, NME, Graph, Weighting
from torch_lapeig.graph.rules import GraphRule
from torch_lapeig.methods import assignment
from torch_lapeig.methods.cuts import normalized_cut
from torch_lapeig.methods.module import Embedding
from torch_lapeig.methods.on_graph import GraphEmbedding, check_size, gaps_of, up_to_gap
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State

Variant = Literal["njw", "shi_malik"]


class SpectralClustering(GraphEmbedding):
    """Normalised spectral clustering: labels from the rows of k eigenvectors of a neighbourhood graph.

    ``forward`` and ``embed`` return the rows that get labels: the k smallest eigenpairs of L y = λ D y with the trivial
    one, as in the papers. A graph of k connected components has k distinct rows, one for each, without a warning.

    Args:
        n_clusters: k, at most the number of nodes of positive degree. ``"eigengap"``: the number from ``min_clusters``
            to ``max_clusters`` whose gap λ_{k+1} − λ_k is largest (von Luxburg 2007, section 8.3), for each graph of a
            batch, all from one solve; `path` returns the evidence for each number. It is ``max_clusters``, with a
            `GraphWarning`, if the graph has more components. If ``gap_`` is at most three times λ_k, as within a
            single cluster of any shape, there is no evidence for more than one cluster.
        neighbors, weights: as for `LaplacianEigenmaps`.
        variant: ``"njw"``: rows of the eigenvectors of L_sym, scaled to length 1 (Ng, Jordan & Weiss 2002).
            ``"shi_malik"``: rows of the generalised eigenvectors, Yᵀ D Y = I (Shi & Malik, *Normalized cuts and image
            segmentation*, 2000). Both as in von Luxburg, *A tutorial on spectral clustering*, 2007, section 4.
        assign_labels: labels from rows. ``"kmeans"``: scikit-learn's k-means (the extra ``sklearn``).
            ``"cluster_qr"``: a QR decomposition with column pivoting, without iteration or randomness (Damle, Minden &
            Ying 2019). ``"discretize"``: the nearest partition up to a rotation (Yu & Shi 2003). See
            ``methods.labels``.
        n_components: number of eigenvectors; default: ``n_clusters``, which ways other than k-means require.
        n_init: number of starts of k-means; the best result is kept.
        max_clusters: largest number of clusters with ``n_clusters="eigengap"``, where there are as many nodes. Rows
            have as many columns, and the columns after k are zero.
        min_clusters: smallest number of clusters with ``n_clusters="eigengap"``, where there are as many nodes.
        label_isolated: also label isolated nodes, as scikit-learn does, each as a separate cluster where there is
            room; otherwise they get −1.
        solve: options of the eigensolve, a `Solve`, or just a solver.
        seed: seed of k-means and ``"discretize"``.

    Isolated nodes get a row of zeros, the label −1 and a `GraphWarning`. In I − S they have the eigenvalue 1. So they
    take the place of clusters that would be split from the other nodes by eigenvalues above 1. Eigenvectors of equal
    eigenvalues are one basis of many: a loss of the rows should not depend on the choice (see `eigenpairs`).

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        labels_: int64 ``(N,)``, 0 to k − 1, and −1 for isolated nodes. embedding_: ``(N, k)``, the rows that get
        labels; ``n_components`` or ``max_clusters`` columns where these are given. cluster_centers_: ``(k, k)``, the
        means of k-means, else None. cluster_axes_: ``(k, k)``, one column for each cluster of the other ways, else
        None. eigenvalues_, residuals_: of the columns. gap_: ``()``, λ_{k+1} − λ_k, large if k suits the graph.
        n_clusters_: int, the number of clusters of nodes that have edges.

    >>> x = torch.cat([torch.rand(30, 2), torch.rand(30, 2) + 2])
    >>> model = SpectralClustering(2, KNN(5)).fit(x)
    >>> model.labels_[:30].unique().tolist() == model.labels_[30:].unique().tolist()
    False
    >>> torch.equal(model.predict(x[:5]), model.labels_[:5])
    True
    """

    FITTED: ClassVar[tuple[str, ...]] = (*GraphEmbedding.FITTED, "labels_", "cluster_centers_", "cluster_axes_")
    cluster_centers_: Any
    cluster_axes_: Any

    def __init__(
        self,
        n_clusters: int | Literal["eigengap"],
        neighbors: GraphRule = KNN(10),
        weights: Weighting | None = None,
        *,
        variant: Variant = "njw",
        assign_labels: assignment.Assignment = "kmeans",
        n_components: int | None = None,
        n_init: int = 10,
        max_clusters: int = 10,
        min_clusters: int = 2,
        label_isolated: bool = False,
        solve: Solve | Solver | None = None,
        seed: int = 0,
    ) -> None:
        max_clusters = checks.check_count(max_clusters, "max_clusters", 2)
        if checks.check_count(min_clusters, "min_clusters") > max_clusters:
            raise ValueError(f"min_clusters must be at most max_clusters={max_clusters}, got {min_clusters}")
        if isinstance(n_clusters, str):
            checks.check_choice(n_clusters, "n_clusters", ("eigengap",))
            if n_components is not None:
                raise ValueError(f'n_components must be None with n_clusters="eigengap", got {n_components}')
            width = max_clusters
        else:
            n_clusters = checks.check_width(n_clusters, "n_clusters")
            width = n_clusters if n_components is None else n_components
        super().__init__(width, neighbors, weights, solve)
        checks.check_choice(variant, "variant", ("njw", "shi_malik"))
        checks.check_choice(assign_labels, "assign_labels", assignment.ASSIGNMENTS)
        if assign_labels != "kmeans" and not isinstance(n_clusters, str) and self.n_components != n_clusters:
            given = f"n_clusters={n_clusters} with assign_labels={assign_labels!r}"
            why = "which needs one column for each cluster"
            raise ValueError(f"n_components must be None or {given}, {why}, got {n_components}")
        self.n_clusters: int | Literal["eigengap"] = n_clusters
        self.max_clusters, self.min_clusters = max_clusters, int(min_clusters)
        self.variant: Variant = variant
        self.assign_labels: assignment.Assignment = assign_labels
        self.n_init = checks.check_count(n_init, "n_init")
        self.label_isolated = checks.check_flag(label_isolated, "label_isolated")
        self.seed = checks.check_seed(seed)

    def _solve_graph(self, laplacian: Laplacian, solved: list[Eigenpairs], *, fill: bool) -> Embedding:
        is_fixed = self.n_clusters != "eigengap"
        if not fill:
            least = self.min_clusters if isinstance(self.n_clusters, str) else self.n_clusters
            check_size(laplacian, least, "n_clusters")
            check_size(laplacian, self.n_components if is_fixed else least, "n_components")
        pairs = eigenpairs(laplacian, self.n_components, self.solve, fill=fill or not is_fixed)
        gap = pairs.gap
        if not is_fixed:
            has_more = _has_more_parts(laplacian, self.max_clusters)
            there, gap = up_to_gap(pairs, self.min_clusters)
            there, gap = there | has_more[..., None], torch.where(has_more, pairs.gap, gap)
            pairs = replace(pairs, vectors=pairs.vectors * there[..., None, :])
        solved.append(pairs)
        return Embedding(self._rows(pairs.vectors), pairs.values, pairs.residuals, gap, ())

    def _rows(self, y: Tensor, unit: float | None = None) -> Tensor:
        """Return the rows that get labels, given generalised eigenvectors, in a unit of each row or a given one."""
        if self.variant == "shi_malik":
            return y
        # Scaled to length 1, rows of D^-½ V equal rows of V. The first column is constant on all but isolated nodes,
        # so that other rows are not zero.
        active = y[..., :1].detach() != 0
        y = y / (checks.power_of_two(y, (-1,)) if unit is None else unit)  # so that no square overflows
        length: Tensor = torch.linalg.vector_norm(torch.where(active, y, 1), dim=-1, keepdim=True)
        return y / length

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        state = super()._fit_points(x, solved, fill=fill)
        return state if self.variant == "shi_malik" else {**state, "train_vectors": solved[-1].vectors}

    def _extend(self, x: Tensor, state: State) -> Tensor:
        return self._rows(super()._extend(x, state))

    def _of_all(self, x: Tensor, state: State, dtype: torch.dtype) -> Tensor:
        return self._rows(super()._of_all(x, state, dtype), 1.0)

    def fit(self, x: Tensor | Graph) -> SpectralClustering:
        """Cluster one set of points ``(N, D)``, affinities ``(N, N)`` or one `Graph`, and return the module.

        Half precision is kept as float32. Raise TypeError and ValueError for a batch, and as the class.
        """
        return self.fit_with(x, np.random.RandomState(self.seed))

    @torch.no_grad()
    @precision.full_precision
    def fit_with(self, x: Tensor | Graph, random: np.random.RandomState, verbose: int = 0) -> SpectralClustering:
        """Run ``fit`` with a generator of random numbers in place of ``seed``; ``verbose`` is passed to k-means."""
        if self.assign_labels == "kmeans":
            assignment.k_means(1, 1, random)  # so that a missing scikit-learn is reported before the solve
        super().fit(x)
        found = self._parted(random, verbose)
        self.cluster_centers_, self.cluster_axes_ = (found, None) if self.assign_labels == "kmeans" else (None, found)
        self.labels_ = self._labels_of(self.embedding_, found)  # not from k-means: `predict` must agree at ties
        return self

    def _parted(self, random: np.random.RandomState, verbose: int = 0) -> Tensor:
        """Return the centres or axes that part the fitted rows, among which isolated nodes may get rows."""
        active = self.embedding_[:, 0] != 0
        k = self.n_clusters if isinstance(self.n_clusters, int) else int(self.embedding_.any(0).sum())
        # Isolated nodes have the eigenvalue 1 of I − S, so they come before splits of the other nodes by larger
        # eigenvalues, and take the place of these clusters.
        fewer = min(int((~active).sum()), int((self.eigenvalues_[:k] > 1).sum()))
        if self.label_isolated:
            node = torch.arange(len(active), device=active.device)
            indicators = node[:, None] == node[~active][:fewer]  # of isolated nodes, in place of the last columns
            kept = self.embedding_[:, : self.n_components - fewer]
            self.embedding_, fewer = torch.cat([kept, indicators.to(kept.dtype)], 1), 0
        rows = self.embedding_ if self.label_isolated else self.embedding_[active]
        if fewer > 0 or self.n_clusters == "eigengap":
            rows = rows[:, : k - fewer]
        return self._partition(rows, k - fewer, random, verbose)

    @property
    def n_clusters_(self) -> int:
        """Return the number of clusters of the fitted nodes that have edges; AttributeError before ``fit``."""
        if self.labels_ is None:
            raise AttributeError  # nn.Module says that there is no such attribute
        return len(self.cluster_centers_) if self.assign_labels == "kmeans" else self.cluster_axes_.shape[1]

    @property
    def n_neighbors_(self) -> int:
        """Return the number of neighbours that ``KNN("nme")`` took; AttributeError before ``fit`` or by other rules."""
        if self.train_rule is None or not isinstance(self.neighbors, NME):
            raise AttributeError
        return self.neighbors.fixed(self.train_rule)[0].k

    def _partition(self, rows: Tensor, k: int, random: np.random.RandomState, verbose: int = 0) -> Tensor:
        """Return the centres ``(k, width)`` or axes ``(width, k)`` that part rows into k clusters."""
        if self.assign_labels == "cluster_qr":
            return assignment.cluster_qr(rows)[1]
        if self.assign_labels == "discretize":
            return assignment.discretize(rows[rows.any(1)], random)[1]
        unit = checks.power_of_two(rows, (0, 1))  # so that no square overflows
        means = assignment.k_means(k, self.n_init, random, verbose).fit((rows / unit).cpu().numpy())
        return torch.as_tensor(means.cluster_centers_).to(rows) * unit

    @torch.no_grad()
    @precision.full_precision
    def path(self, x: Tensor | Graph) -> ClusterPath:
        """Return the evidence for each number of clusters up to ``max_clusters``, from one solve; keep nothing.

        The numbers begin with ``min_clusters``. With n nodes of positive degree they end at n − 1 at most, as n
        clusters of one node have no gap after them. ``x`` is as of ``fit``.

        >>> random = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.rand(30, 2, generator=random) + 2 * i for i in range(3)])
        >>> path = SpectralClustering("eigengap", KNN(8), max_clusters=5).path(x)
        >>> path.n_clusters.tolist(), int(path.n_clusters[path.gaps.argmax()])
        ([2, 3, 4, 5], 3)
        """
        graph = self._graph(self._checked_one(x)[0], None)
        laplacian = Laplacian(graph, self._normalization)
        least = self.min_clusters
        check_size(laplacian, least, "n_clusters")
        most = min(self.max_clusters, max(least, laplacian.symmetric.fewest_active - 1))
        _has_more_parts(laplacian, most)
        pairs = eigenpairs(laplacian, most, self.solve)
        from sklearn.metrics import silhouette_score

        random = np.random.RandomState(self.seed)
        labels, cuts, widths = [], [], []
        for k in range(least, most + 1):
            rows = self._rows(pairs.vectors[:, :k])
            active = rows[:, 0] != 0
            found = self._partition(rows[active], k, random)
            labels.append(self._nearest(rows, found).masked_fill(~active, -1))
            cuts.append(normalized_cut(labels[-1], graph))
            width, known = torch.nan, labels[-1][active].cpu().numpy()
            if 1 < len(np.unique(known)) < len(known):
                size = 2000 if len(known) > 2000 else None
                width = silhouette_score(rows[active].cpu().numpy(), known, sample_size=size, random_state=self.seed)
            widths.append(float(width))
        count, gaps = torch.arange(least, most + 1), gaps_of(pairs)[least - 1 :]
        return ClusterPath(count, gaps, torch.stack(cuts), torch.tensor(widths), torch.stack(labels))

    def fit_predict(self, x: Tensor | Graph) -> Tensor:
        """Return ``labels_`` of ``fit(x)``, int64 ``(N,)``."""
        return self.fit(x).labels_

    @torch.no_grad()
    @precision.full_precision
    def predict(self, x_new: Tensor) -> Tensor:
        """Return labels of new points ``(Q, D)``, int64 ``(Q,)``: the nearest centre or axis; −1 for rows of zeros."""
        found = self.cluster_centers_ if self.assign_labels == "kmeans" else self.cluster_axes_
        return self._labels_of(self.transform(x_new), found)

    def _labels_of(self, rows: Tensor, found: Tensor) -> Tensor:
        """Return the nearest of centres or axes of each row, −1 for zeros."""
        labels = self._nearest(rows, found)
        return labels if self.label_isolated else labels.masked_fill(rows[:, 0] == 0, -1)

    def _nearest(self, rows: Tensor, found: Tensor) -> Tensor:
        if self.assign_labels == "kmeans":
            return assignment.nearest_centre(rows[:, : found.shape[1]], found)
        is_signed = self.assign_labels == "discretize"
        return assignment.nearest_axis(rows[:, : len(found)], found.to(rows.dtype), signed=is_signed)


class ClusterPath(NamedTuple):
    """Evidence for each number of clusters, from ``min_clusters`` on: see `SpectralClustering.path`.

    Attributes:
        n_clusters: int64 ``(K,)``, 2, 3, … by default.
        gaps: λ_{k+1} − λ_k ``(K,)``: large if k suits the graph.
        cuts: `normalized_cut` of the labels, ``(K,)``: it grows with k, and slowly up to a k that suits the graph.
        silhouettes: mean silhouette width of the rows, ``(K,)``, in [−1, 1] (Rousseeuw 1987), of at most 2000 rows at
            random; large if k suits the graph; NaN if all rows have one label.
        labels: int64 ``(K, N)``, −1 for isolated nodes.
    """

    n_clusters: Tensor
    gaps: Tensor
    cuts: Tensor
    silhouettes: Tensor
    labels: Tensor


def _has_more_parts(laplacian: Laplacian, most: int) -> Tensor:
    """Return whether each graph has more components than ``most``, bool ``()`` or ``(B,)``; warn of these."""
    counts = laplacian.symmetric.nullity
    if (counts > most).any():
        finding = f"the graph has {int(counts.max())} connected components, more than max_clusters={most}"
        advice = "some hold several; use a larger max_clusters or more neighbours"
        checks.warn(f"{finding}: {most} clusters are returned, {advice}", checks.GraphWarning)
    return (counts > most).reshape(laplacian.graph.shape[:-1])
