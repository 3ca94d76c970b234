"""Replacements of scikit-learn's Isomap, locally linear embedding and kernel PCA, and classical scaling."""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from scipy.sparse.csgraph import connected_components, shortest_path
from sklearn.metrics.pairwise import pairwise_distances, pairwise_kernels
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import KernelCenterer
from torch import Tensor

from torch_lapeig import methods
from torch_lapeig.graph import KNN, Precomputed
from torch_lapeig.methods.on_graph import warn_of_unreached
from torch_lapeig.sklearn.base import Embedding, check_below
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import check_dense

Array = NDArray[Any]

OWN_KERNELS = ("linear", "rbf", "poly")  # computed by the module from samples
KERNELS = (*OWN_KERNELS, "sigmoid", "cosine", "precomputed")


class OfPairs(Embedding):
    """Embedding by a matrix of pairs of samples; the estimator computes it if the module does not."""

    @abstractmethod
    def _matrix(self, X: Any, samples: Any = None) -> Array | None:
        """Return the pairs in ``X``, or of new ``X`` and training ``samples``; None if the module computes them."""

    def _training(self, X: Any) -> Tensor:
        X = self._samples(X)
        matrix = self._matrix(X)
        self._of_samples = None if matrix is None else X
        return torch.tensor(X if matrix is None else matrix.astype(X.dtype, copy=False), device=self.device)

    def _of_new(self, function: Callable[[Tensor], Tensor], X: Any, known: Array) -> Array:
        X = self._new_samples(X)
        if self._of_samples is None:
            return self._rows(function, X)
        matrix: Any = self._matrix(X, self._of_samples)
        return self._rows(function, matrix.astype(known.dtype, copy=False))


@dataclass(eq=False, repr=False)
class ClassicalMDS(OfPairs):
    """`MDS`, classical scaling, as a scikit-learn transformer. (`sklearn.manifold.MDS` is another method, SMACOF.)

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        metric: ``"euclidean"``, another metric of `sklearn.metrics.pairwise_distances`, or ``"precomputed"``: X holds
            distances ``(N, N)``.
        metric_params: further arguments of ``pairwise_distances``.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or just a solver.
        device: device of the computation, for example ``"cuda"``.

    Attributes:
        embedding_: ``(N, n_components)``, float32 or float64 as X is.
        eigenvalues_, residuals_: ``(n_components,)``, of the centred kernel, descending.
        module_: the fitted `MDS`. n_features_in_: columns of X.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((60, 3))
    >>> ClassicalMDS(2).fit(x).transform(x[:5]).shape
    (5, 2)
    """

    n_components: int = 2
    _: KW_ONLY
    metric: str | Callable[..., float] = "euclidean"
    metric_params: dict[str, Any] | None = None

    def _matrix(self, X: Any, samples: Any = None) -> Array | None:
        if self._pairwise:
            return X  # type: ignore[no-any-return]
        if samples is None and self.metric == "euclidean" and not self.metric_params:
            return None
        return pairwise_distances(X, samples, metric=self.metric, **(self.metric_params or {}))  # type: ignore[no-any-return]

    def _module(self, n_components: int, x: Any) -> methods.MDS:
        metric: Any = "euclidean" if self._of_samples is None else Precomputed("distance")
        return methods.MDS(n_components, metric=metric, solve=self.solve)


@dataclass(eq=False, repr=False)
class Isomap(Embedding):
    """Isomap as a replacement of `sklearn.manifold.Isomap`: `MDS` of geodesic distances on scikit-learn's graph.

    Args:
        n_neighbors: k, smaller than the number of samples; two samples are joined if one is among the k nearest of the
            other. None without a radius means 5, or all other samples if there are fewer.
        radius: largest distance of joined samples, in units of X; n_neighbors must be None.
        n_components, solve, device: see `ClassicalMDS`.
        eigen_solver, tol, max_iter: without effect, so that calls of scikit-learn run as they are.
        path_method: algorithm of shortest paths, ``"auto"``, ``"FW"`` (Floyd and Warshall) or ``"D"`` (Dijkstra).
        neighbors_algorithm, n_jobs, metric, p, metric_params: arguments of `sklearn.neighbors.NearestNeighbors`. With
            ``metric="precomputed"`` X holds distances ``(N, N)``; a sparse X holds those to the nearest samples only.

    Samples may be sparse. Components of the graph are joined by their closest samples, with a `GraphWarning`; those of
    sparse distances are an error.

    Attributes:
        embedding_, eigenvalues_, residuals_, n_features_in_: see `ClassicalMDS`.
        dist_matrix_: geodesic distances ``(N, N)``. nbrs_: the fitted `sklearn.neighbors.NearestNeighbors`. module_:
            the fitted `MDS`.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((60, 3))
    >>> Isomap(n_components=2).fit(x).transform(x[:5]).shape
    (5, 2)
    """

    SPARSE: ClassVar[str | bool] = "csr"
    _: KW_ONLY
    n_neighbors: int | None = 5
    radius: float | None = None
    eigen_solver: str = "auto"
    tol: float = 0
    max_iter: int | None = None
    path_method: str = "auto"
    neighbors_algorithm: str = "auto"
    n_jobs: int | None = None
    metric: str | Callable[..., float] = "minkowski"
    p: float = 2
    metric_params: dict[str, Any] | None = None

    def reconstruction_error(self) -> float:
        """Return ‖K̃ − K̃ of the embedding‖ / N, of the centred kernel of geodesics, in the Frobenius norm."""
        kernel = KernelCenterer().fit_transform(-0.5 * self.dist_matrix_.astype(np.float64) ** 2)
        rest = (kernel**2).sum() - (self.eigenvalues_.astype(np.float64) ** 2).sum()
        return float(np.sqrt(max(rest, 0)) / len(kernel))

    def _training(self, X: Any) -> Tensor:
        X = self._samples(X)
        checks.check_choice(self.path_method, "path_method", ("auto", "FW", "D"))
        if self.radius is not None and self.n_neighbors is not None:
            given = f"n_neighbors={self.n_neighbors} with radius={self.radius}"
            raise ValueError(f"n_neighbors must be None with a radius, got {given}")
        self.nbrs_ = NearestNeighbors(
            n_neighbors=_neighbors(self.n_neighbors, X.shape[0]) if self.radius is None else None,
            radius=None if self.radius is None else checks.check_positive(self.radius, "radius"),
            algorithm=self.neighbors_algorithm,
            metric=self.metric,
            p=self.p,
            metric_params=self.metric_params,
            n_jobs=self.n_jobs,
        ).fit(X)
        search = self.nbrs_.kneighbors_graph if self.radius is None else self.nbrs_.radius_neighbors_graph
        graph = self._connected(search(mode="distance"), X)
        n, advice = X.shape[0], "use torch_lapeig.Isomap(landmarks=1000)"
        check_dense(n, n, 8, torch.device("cpu"), type(self).__name__, advice)
        self.dist_matrix_ = shortest_path(graph, method=self.path_method, directed=False).astype(X.dtype)
        return torch.tensor(self.dist_matrix_, device=self.device)

    def _connected(self, graph: Any, X: Any) -> Any:
        """Return the graph with an edge between the closest samples of each two components, as scikit-learn has it."""
        count, component = connected_components(graph)
        if count == 1:
            return graph
        finding = f"The number of connected components of the neighbors graph is {count} > 1"
        if self._pairwise and issparse(X):
            raise RuntimeError(f"{finding}: sparse distances do not join them; use more neighbours, or all distances")
        checks.warn(f"{finding}: their closest samples are joined; use more neighbours", checks.GraphWarning)
        edges = graph.tocoo()
        parts = [(edges.row, edges.col, edges.data)]
        options = {"metric": self.nbrs_.effective_metric_, **self.nbrs_.effective_metric_params_}
        distances = functools.partial(pairwise_distances, **options)
        places = [np.flatnonzero(component == number) for number in range(count)]
        for one, other in itertools.combinations(reversed(places), 2):
            between = X[np.ix_(one, other)] if self._pairwise else distances(X[one], X[other])
            i, j = np.unravel_index(between.argmin(), between.shape)
            parts.append((one[[i]], other[[j]], between[i, [j]]))
        row, column, length = map(np.concatenate, zip(*parts, strict=True))
        return csr_array((length, (row, column)), shape=graph.shape)

    def _of_new(self, function: Callable[[Tensor], Tensor], X: Any, known: Array) -> Array:
        """Return ``function`` of geodesics of new samples, by their neighbours among the training samples."""
        X = self._new_samples(X)
        search = self.nbrs_.kneighbors if self.radius is None else self.nbrs_.radius_neighbors
        reach = np.full((X.shape[0], len(known)), np.inf, known.dtype)
        for row, (lengths, near) in enumerate(zip(*search(X), strict=True)):
            reach[row] = (self.dist_matrix_[near] + lengths[:, None]).min(0, initial=np.inf)
        lost = np.isinf(reach[:, 0])
        warn_of_unreached(int(lost.sum()), len(lost))
        # The row of mean squared distances is the origin: centring maps it to zero.
        reach[lost] = np.sqrt((self.dist_matrix_**2).mean(0))
        return self._rows(function, reach)

    def _module(self, n_components: int, x: Any) -> methods.MDS:
        return methods.MDS(n_components, metric=Precomputed("distance"), solve=self.solve)


@dataclass(eq=False, repr=False)
class LocallyLinearEmbedding(Embedding):
    """`LLE` as a replacement of `sklearn.manifold.LocallyLinearEmbedding`.

    Args:
        n_neighbors: neighbours of each sample, smaller than the number of samples; None means 5, or all other samples
            if there are fewer.
        n_components: smaller than the number of samples. solve, device: see `ClassicalMDS`.
        reg: share of the trace added to the diagonal of the local Gram matrices.
        eigen_solver, tol, max_iter, hessian_tol, modified_tol, neighbors_algorithm, random_state, n_jobs: without
            effect, so that calls of scikit-learn run as they are.
        method: ``"standard"``; scikit-learn's other methods raise a ValueError.

    Attributes:
        embedding_: ``(N, n_components)``, orthonormal columns, float32 or float64 as X is.
        eigenvalues_, residuals_: ``(n_components,)``, ascending. reconstruction_error_: sum of the eigenvalues.
        module_: the fitted `LLE`. n_features_in_: columns of X.

    Neighbourhoods that do not connect all samples cause a `GraphWarning`.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((60, 3))
    >>> LocallyLinearEmbedding(n_components=2).fit(x).transform(x[:5]).shape
    (5, 2)
    """

    _: KW_ONLY
    n_neighbors: int | None = 5
    reg: float = 1e-3
    eigen_solver: str = "auto"
    tol: float = 1e-6
    max_iter: int = 100
    method: str = "standard"
    hessian_tol: float = 1e-4
    modified_tol: float = 1e-12
    neighbors_algorithm: str = "auto"
    random_state: Any = None
    n_jobs: int | None = None

    def _module(self, n_components: int, x: Any) -> methods.LLE:
        checks.check_choice(self.method, "method", ("standard",))
        return methods.LLE(n_components, KNN(_neighbors(self.n_neighbors, len(x))), reg=self.reg, solve=self.solve)

    @property
    def reconstruction_error_(self) -> float:
        """Return Σ_i ‖y_i − Σ_j w_ij y_j‖² of the embedding."""
        return float(self.eigenvalues_.sum())


@dataclass(eq=False, repr=False)
class KernelPCA(OfPairs):
    """`torch_lapeig.KernelPCA` as a replacement of `sklearn.decomposition.KernelPCA`.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues of the centred kernel;
            None means that number.
        kernel: ``"linear"`` x·y, ``"rbf"`` exp(−γ ‖x − y‖²), ``"poly"`` (γ x·y + coef0)^degree, ``"sigmoid"``,
            ``"cosine"``, or a function of tensors ``(N, D)`` and ``(M, D)`` to a symmetric kernel ``(N, M)``
            (scikit-learn calls it on two samples instead). ``"precomputed"``: X holds the kernel ``(N, N)``.
        gamma: γ; None means 1/D.
        degree, coef0: parameters of the polynomial.
        alpha, eigen_solver, tol, max_iter, iterated_power, random_state, copy_X, n_jobs: without effect, so that calls
            of scikit-learn run as they are.
        remove_zero_eig: drop the components without a positive eigenvalue, in place of an error.
        kernel_params, fit_inverse_transform: None and False; other values raise a ValueError.
        solve, device: see `ClassicalMDS`.

    Attributes:
        module_: the fitted `torch_lapeig.KernelPCA`; the others as of `ClassicalMDS`.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((60, 3))
    >>> KernelPCA(2, kernel="rbf").fit(x).transform(x[:5]).shape
    (5, 2)
    """

    SPARSE: ClassVar[str | bool] = "csr"
    n_components: int | None = None
    _: KW_ONLY
    kernel: str | Callable[[Tensor, Tensor], Tensor] = "linear"
    gamma: float | None = None
    degree: int = 3
    coef0: float = 1.0
    kernel_params: dict[str, Any] | None = None
    alpha: float = 1.0
    fit_inverse_transform: bool = False
    eigen_solver: str = "auto"
    tol: float = 0
    max_iter: int | None = None
    iterated_power: int | str = "auto"
    remove_zero_eig: bool = False
    random_state: Any = None
    copy_X: bool = True
    n_jobs: int | None = None

    @property
    def _parameters(self) -> dict[str, Any]:
        return {"gamma": self.gamma, "degree": self.degree, "coef0": self.coef0}

    def _matrix(self, X: Any, samples: Any = None) -> Array | None:
        if samples is None:
            for name, only in (("kernel_params", None), ("fit_inverse_transform", False)):
                if (value := getattr(self, name)) is not only:
                    raise ValueError(f"{name} must be {only} in this KernelPCA, got {checks.describe(value)}")
            if issparse(X) and (not isinstance(self.kernel, str) or self._pairwise):
                raise ValueError(f"X must be dense with kernel={self.kernel!r}, got a sparse matrix; use X.toarray()")
            if not isinstance(self.kernel, str):
                return None
            checks.check_choice(self.kernel, "kernel", KERNELS)
            if self.kernel in OWN_KERNELS and not issparse(X):
                return None
        return pairwise_kernels(X, samples, metric=self.kernel, filter_params=True, **self._parameters)  # type: ignore[no-any-return]

    def _columns(self, x: Tensor) -> int:
        k = len(x) - 1 if self.n_components is None else super()._columns(x)
        if self.n_components is None or self.remove_zero_eig:
            # In a batch columns without a positive eigenvalue are zero, not an error.
            k = int((self._module(k, x).embed(x[None]).eigenvalues > 0).sum())
        return max(k, 1)

    def _module(self, n_components: int, x: Any) -> methods.KernelPCA:
        kernel: Any = self.kernel if self._of_samples is None else Precomputed("kernel")
        return methods.KernelPCA(n_components, kernel, solve=self.solve, **self._parameters)


def _neighbors(n_neighbors: int | None, n_samples: int) -> int:
    """Return the checked number of neighbours; None means 5, or all other samples if there are fewer."""
    return check_below(min(5, n_samples - 1) if n_neighbors is None else n_neighbors, "n_neighbors", n_samples)
