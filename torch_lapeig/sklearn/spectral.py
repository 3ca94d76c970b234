"""Replacements of scikit-learn's spectral embedding and clustering, with its parameters and its graphs."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, identity, issparse
from sklearn.base import ClusterMixin
from sklearn.metrics.pairwise import KERNEL_PARAMS
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from torch_lapeig import methods
from torch_lapeig.eigen import Solve, Solver
from torch_lapeig.graph.weights import Weighting
from torch_lapeig.methods.assignment import Assignment
from torch_lapeig.methods.clustering import Variant
from torch_lapeig.sklearn import affinities
from torch_lapeig.sklearn.base import GIVEN, NEIGHBORS, Embedding, as_numpy, check_below
from torch_lapeig.support import checks

SOLVERS = ("arpack", "lobpcg", "amg")  # scikit-learn's names


@dataclass(eq=False, repr=False)
class Spectral(affinities.OnGraph):
    """Base of the spectral estimators: reads parameters as a rule and a weighting, or as a matrix of affinities."""

    WORDS: ClassVar[tuple[str, ...]]  # allowed strings for ``affinity``
    SPARSE: ClassVar[str | bool] = "csr"
    _: KW_ONLY
    affinity: str | Callable[..., Any] = "nearest_neighbors"
    gamma: float | None = None
    random_state: Any = None
    eigen_solver: str | None = None
    eigen_tol: float | str = "auto"
    n_neighbors: int | None = None
    n_jobs: int | None = None
    weights: Weighting | None = None
    solve: Solve | Solver | None = None
    device: str | torch.device = "cpu"

    @property
    def affinity_matrix_(self) -> Any:
        """Return affinities ``(N, N)`` of the training samples, an array or in CSR form."""
        check_is_fitted(self)
        if self._affinities is not None:
            return self._affinities.matrix
        if self.weights is not None:
            points = self.module_.train_points
            return self.module_.weights(points, self.module_.neighbors(points)).to_scipy()
        n, entries = len(self.embedding_), (self.module_.train_connectivity, self.module_.train_edges)
        edges = csr_array(tuple(map(as_numpy, entries)), shape=(n, n))
        return csr_array(edges + identity(n, dtype=edges.dtype, format="csr"))

    def _training(self, X: Any) -> Any:
        X = self._samples(X)
        if not callable(self.affinity):
            checks.check_choice(self.affinity, "affinity", self.WORDS)
        if self.affinity in NEIGHBORS:
            # It counts the sample itself; by default a tenth of the samples.
            k = max(X.shape[0] // 10, 2) if self.n_neighbors is None else self.n_neighbors
            self.n_neighbors_ = check_below(k, "n_neighbors", X.shape[0], 1)
        if self.affinity == "nearest_neighbors" and not issparse(X):
            return self._from(None, X, self.n_neighbors_ - 1)
        given = f"affinity={self.affinity!r}{' of sparse samples' * issparse(X)}"
        self._check_unweighted(given, 'affinity="nearest_neighbors" of dense samples')
        if self._pairwise and X.shape[0] != X.shape[1]:
            raise ValueError(f"X must be square with affinity={self.affinity!r}, got {X.shape}")
        if self.affinity == "precomputed_nearest_neighbors":
            return self._from(affinities.OfDistances(X, self.n_neighbors_), X)
        if self.affinity == "nearest_neighbors":
            return self._from(affinities.OfSparseSamples(X, self.n_neighbors_ - 1), X)
        kernel = None if self.affinity == "precomputed" else self._kernel(X)
        return self._from(affinities.OfKernel(X, kernel), X)

    @abstractmethod
    def _kernel(self, X: Any) -> Callable[..., Any]:
        """Return the kernel of the parameters."""

    def _solve(self) -> Solve | Solver | None:
        """Return ``solve`` with the tolerance of ``eigen_tol``."""
        if self.eigen_solver is not None:
            checks.check_choice(self.eigen_solver, "eigen_solver", SOLVERS)
        if isinstance(self.eigen_tol, str):
            checks.check_choice(self.eigen_tol, "eigen_tol", ("auto",))
            return self.solve
        tolerance = checks.check_number(self.eigen_tol, "eigen_tol", 0)
        methods.module.check_solve(self.solve)
        solve = Solve.of(self.solve)
        if solve.tolerance is not None:
            raise ValueError(f'eigen_tol must be "auto" with a solve that has a tolerance, got {tolerance:g}')
        return dataclasses.replace(solve, tolerance=tolerance) if tolerance > 0 else solve


@dataclass(eq=False, repr=False)
class SpectralEmbedding(Embedding, Spectral):
    """Laplacian eigenmaps as a replacement of `sklearn.manifold.SpectralEmbedding`, with ``transform`` for new samples.

    Parameters, graphs and scale are scikit-learn's, and so are the columns up to signs and the basis of an eigenspace.
    As features, try ten columns with ``n_neighbors=11`` and ``weights=SelfTuning()``.

    Args:
        n_components: dimension of the embedding, smaller than the number of samples.
        affinity: ``"nearest_neighbors"``: two samples have affinity 1 if each is among the nearest of the other, and ½
            if only one is. ``"rbf"``: exp(−γ ‖x_i − x_j‖²). ``"precomputed"``: X holds affinities ``(N, N)``.
            ``"precomputed_nearest_neighbors"``: X holds distances; a sparse X holds distances to the nearest samples
            only, as `sklearn.neighbors.KNeighborsTransformer` returns them. A function: returns affinities ``(N, N)``
            of X, and for new samples is called as ``affinity(X_new, Y=X)``, like scikit-learn's kernels.
        gamma: γ of ``"rbf"``; None takes 1/D.
        random_state, eigen_solver, n_jobs: without effect, so that calls of scikit-learn run as they are. The answer
            depends neither on chance nor on the solver, which ``solve`` chooses; `torch.set_num_threads` sets threads.
        eigen_tol: largest residual, relative to the eigengap; ``"auto"`` and 0 mean `torch_lapeig.Solve`'s default.
        n_neighbors: k, which counts the sample itself, 2 to the number of samples; None means a tenth of the samples.
        drop_first: leave out the constant column, which has λ = 0.
        weights: weighting of the edges to dense samples' nearest neighbours, such as `DensityCorrected()`, which
            measured best; None for 1 and ½.
        components: treatment of a disconnected graph, ``"joint"``, ``"separate"`` or ``"error"``, see
            `LaplacianEigenmaps`.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or just a solver.
        device: device of the computation, for example ``"cuda"``.

    A given parameter that this fit does not use causes a ``UserWarning``. Samples may be sparse. Affinities must be
    non-negative, and should be symmetric: unsymmetric ones are replaced by the mean of the two directions, with a
    `GraphWarning`. The affinity of a sample to itself is ignored.

    Attributes:
        embedding_: ``(N, n_components)``, generalised eigenvectors with Yᵀ D Y = I, float32 or float64 as X is; zeros
            for isolated samples, with a `GraphWarning`.
        affinity_matrix_: ``(N, N)``, an array or in CSR form; with ``weights`` it is computed on request.
        eigenvalues_, residuals_: ``(n_components,)``, or with ``"separate"`` one row for each component.
        n_neighbors_: k. n_features_in_, feature_names_in_: columns of X and their names. module_: the fitted
            `LaplacianEigenmaps`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((60, 3))
    >>> model = SpectralEmbedding(n_components=2, n_neighbors=6).fit(X[:50])
    >>> model.transform(X[50:]).shape
    (10, 2)
    """

    WORDS: ClassVar[tuple[str, ...]] = ("nearest_neighbors", "rbf", *GIVEN)

    n_components: int = 2
    _: KW_ONLY
    drop_first: bool = True
    components: Literal["joint", "separate", "error"] = "joint"

    def _kernel(self, X: Any) -> Callable[..., Any]:
        if callable(self.affinity):
            return affinities.MatrixFunction(self.affinity)
        return affinities.rbf(1 / X.shape[1] if self.gamma is None else self.gamma, X)

    def _module(self, n_components: int, x: Any) -> methods.LaplacianEigenmaps:
        check_random_state(self.random_state)
        options: Any = {"drop_trivial": self.drop_first, "components": self.components, "solve": self._solve()}
        return methods.LaplacianEigenmaps(n_components, *self._rule(), **options)


def spectral_embedding(
    adjacency: Any,
    *,
    n_components: int = 8,
    eigen_solver: str | None = None,
    random_state: Any = None,
    eigen_tol: float | str = "auto",
    norm_laplacian: bool = True,
    drop_first: bool = True,
) -> NDArray[Any]:
    """Return the embedding ``(N, n_components)`` of affinities ``(N, N)``, as `sklearn.manifold.spectral_embedding`.

    Args:
        adjacency: affinities ``(N, N)``, float32 or float64, an array or a sparse matrix.
        n_components, eigen_solver, random_state, eigen_tol, drop_first: see `SpectralEmbedding`.
        norm_laplacian: True; for the unnormalised Laplacian use `torch_lapeig.LaplacianEigenmaps`.

    >>> import numpy as np
    >>> path = np.eye(9, k=1) + np.eye(9, k=-1)
    >>> spectral_embedding(path, n_components=2).shape
    (9, 2)
    """
    if not norm_laplacian:
        way_out = 'LaplacianEigenmaps(k, Precomputed("affinity"), normalization="unnormalized") of torch_lapeig'
        raise ValueError(f"norm_laplacian must be True, got {norm_laplacian!r}; use {way_out}")
    options: dict[str, Any] = {"random_state": random_state, "eigen_solver": eigen_solver, "eigen_tol": eigen_tol}
    model = SpectralEmbedding(n_components, affinity="precomputed", drop_first=drop_first, **options)
    return model.fit(adjacency).embedding_


@dataclass(eq=False, repr=False)
class SpectralClustering(ClusterMixin, Spectral):  # type: ignore[misc]
    """Spectral clustering as a replacement of `sklearn.cluster.SpectralClustering`, with ``predict`` for new samples.

    Parameters, graphs, clustered rows and assignments of labels are scikit-learn's. With the default
    ``affinity="rbf"`` a given ``n_neighbors`` has no effect and causes a ``UserWarning``.

    Args:
        n_clusters: at most the number of samples.
        eigen_solver, n_jobs, eigen_tol, weights, solve, device: see `SpectralEmbedding`.
        n_components: number of eigenvectors, the constant one included; None means ``n_clusters``, which every
            ``assign_labels`` except ``"kmeans"`` requires.
        random_state: seed of the assignment of labels; an int makes the labels reproducible.
        n_init: number of starts of k-means; the best result is kept.
        gamma, degree, coef0, kernel_params: parameters of kernels, see `sklearn.metrics.pairwise.pairwise_kernels`.
        affinity: see `SpectralEmbedding`; also the name of any kernel of ``pairwise_kernels``. A function maps *two
            samples* to their affinity.
        n_neighbors: k, which counts the sample itself, 2 to the number of samples.
        assign_labels: ``"kmeans"``, ``"cluster_qr"`` or ``"discretize"``, see `torch_lapeig.SpectralClustering`.
        verbose: verbosity of k-means.
        variant: ``"shi_malik"`` clusters scikit-learn's rows, ``"njw"`` scales each row to length 1 first.

    Attributes:
        labels_: int64 ``(N,)``; samples without affinity to another sample have a label too, as in scikit-learn.
        embedding_: ``(N, n_components)``, the clustered rows, float32 or float64 as X is.
        eigenvalues_, residuals_: ``(n_components,)``, the trivial one included.
        affinity_matrix_, n_neighbors_, n_features_in_, feature_names_in_: see `SpectralEmbedding`.
        module_: the fitted `torch_lapeig.SpectralClustering`.

    >>> import numpy as np
    >>> X = np.repeat([[0.0], [9.0]], 10, 0) + np.linspace(0, 1, 20)[:, None]
    >>> labels = SpectralClustering(2, random_state=0).fit_predict(X)
    >>> len(set(labels[:10])), len(set(labels[10:])), bool(labels[0] == labels[-1])
    (1, 1, False)
    """

    ARRAYS: ClassVar[tuple[str, ...]] = (*Spectral.ARRAYS, "labels_")
    WORDS: ClassVar[tuple[str, ...]] = ("nearest_neighbors", *GIVEN, *KERNEL_PARAMS)

    n_clusters: int = 8
    _: KW_ONLY
    n_components: int | None = None
    n_init: int = 10
    gamma: float = 1.0
    affinity: str | Callable[..., Any] = "rbf"
    n_neighbors: int = 10
    assign_labels: Assignment = "kmeans"
    degree: float = 3
    coef0: float = 1
    kernel_params: dict[str, Any] | None = None
    verbose: bool | int = False
    variant: Variant = "shi_malik"

    def fit(self, X: Any, y: Any = None) -> SpectralClustering:
        """Cluster samples ``(N, D)``, or a precomputed matrix of their pairs ``(N, N)``; ``y`` is ignored."""
        x = self._training(X)
        random = check_random_state(self.random_state)
        # scikit-learn draws the start of ARPACK first. With the same seed, k-means begins with the same samples.
        random.uniform(-1, 1, x.shape[0])
        options: Any = {"n_components": self.n_components, "variant": self.variant, "solve": self._solve()}
        options |= {"assign_labels": self.assign_labels, "n_init": self.n_init, "label_isolated": True}
        module = methods.SpectralClustering(self.n_clusters, *self._rule(), **options)
        self._keep(module.fit_with(x, random, int(self.verbose)))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return labels ``(Q,)`` of new samples ``(Q, D)``, or of their pairs ``(Q, N)``: the nearest centre or axis.

        −1 for samples without any affinity to a training sample.
        """
        check_is_fitted(self)
        return self._of_new(self.module_.predict, X, self.labels_)

    def _kernel(self, X: Any) -> Callable[..., Any]:
        parameters = dict(self.kernel_params or {})
        if not callable(self.affinity):
            gamma = checks.check_number(self.gamma, "gamma", 0)
            parameters.update(gamma=gamma, degree=self.degree, coef0=self.coef0)
        return affinities.PairwiseKernel(self.affinity, parameters, X)


def spectral_clustering(
    affinity: Any,
    *,
    n_clusters: int = 8,
    n_components: int | None = None,
    eigen_solver: str | None = None,
    random_state: Any = None,
    n_init: int = 10,
    eigen_tol: float | str = "auto",
    assign_labels: Assignment = "kmeans",
    verbose: bool | int = False,
) -> NDArray[Any]:
    """Return labels ``(N,)`` of affinities ``(N, N)``, as `sklearn.cluster.spectral_clustering`.

    Args:
        affinity: affinities ``(N, N)``, float32 or float64, an array or a sparse matrix.
        n_clusters, n_components, eigen_solver, random_state, n_init, eigen_tol, assign_labels, verbose: see
            `SpectralClustering`.

    >>> import numpy as np
    >>> pairs = np.kron(np.eye(2), np.ones((4, 4)))
    >>> labels = spectral_clustering(pairs, n_clusters=2, random_state=0)
    >>> len(set(labels[:4])), len(set(labels[4:])), bool(labels[0] == labels[-1])
    (1, 1, False)
    """
    solving: dict[str, Any] = {"random_state": random_state, "eigen_solver": eigen_solver, "eigen_tol": eigen_tol}
    labels: dict[str, Any] = {"n_init": n_init, "assign_labels": assign_labels, "verbose": verbose}
    model = SpectralClustering(n_clusters, affinity="precomputed", n_components=n_components, **solving, **labels)
    return model.fit_predict(affinity)  # type: ignore[no-any-return]
