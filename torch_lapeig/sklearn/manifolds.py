"""Scaling, Isomap, locally linear embedding and kernel PCA as scikit-learn transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from torch import Tensor

from torch_lapeig import methods
from torch_lapeig.graph.rules import KNN, Precomputed, Radius
from torch_lapeig.sklearn.base import Embedding, check_below, refuse_others
from torch_lapeig.support import checks


@dataclass(eq=False, repr=False)
class ClassicalMDS(Embedding):
    """`MDS`, classical scaling, as a scikit-learn transformer. (`sklearn.manifold.MDS` is another method, SMACOF.)

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        metric: ``"euclidean"``, or ``"precomputed"``: X holds distances ``(N, N)``.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or just a solver.
        device: where it is computed, for example ``"cuda"``.

    Attributes:
        embedding_: ``(N, n_components)``, float32 or float64 as X is.
        eigenvalues_, residuals_: ``(n_components,)``, of the centred kernel, descending.
        module_: the fitted `MDS`. n_features_in_: columns of X.

    Raises (``fit``, ``transform``):
        TypeError, ValueError: samples that are not finite or too few, a parameter out of range, fewer positive
            eigenvalues than components, and the errors of `MDS`. NotFittedError: ``transform`` before ``fit``.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((60, 3))
    >>> model = ClassicalMDS(2).fit(x)
    >>> model.embedding_.shape, model.transform(x[:5]).shape
    ((60, 2), (5, 2))
    """

    n_components: int = 2
    _: KW_ONLY
    metric: Literal["euclidean", "precomputed"] = "euclidean"

    @property
    def _pairwise(self) -> bool:
        return self.metric == "precomputed"

    def _module(self, n_components: int, x: Any) -> methods.MDS:
        checks.check_choice(self.metric, "metric", ("euclidean", "precomputed"))
        metric: Any = Precomputed("distance") if self._pairwise else self.metric
        return methods.MDS(n_components, metric=metric, solve=self.solve)


@dataclass(eq=False, repr=False)
class Isomap(Embedding):
    """`torch_lapeig.Isomap` as a scikit-learn transformer.

    Args:
        n_neighbors: k of the nearest neighbours, smaller than the number of samples: samples are joined where one is
            among those of the other. None takes 10, or all of fewer, and twice as many, with a `GraphWarning`, until
            the graph is connected. (`sklearn.manifold.Isomap` takes 5 and joins components by their closest samples.)
        radius: samples at most as far apart are joined; n_neighbors must be None.
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        eigen_solver, tol, max_iter, path_method, neighbors_algorithm, n_jobs: without effect, so that calls of
            scikit-learn run as they are.
        metric, p, metric_params: ``"minkowski"`` with p = 2 or ``"euclidean"``; others are refused.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or just a solver.
        device: where it is computed, but for the shortest paths, for example ``"cuda"``.

    Attributes:
        embedding_, eigenvalues_, residuals_, n_features_in_: as of `ClassicalMDS`.
        module_: the fitted `torch_lapeig.Isomap`, with its rule ``module_.neighbors``.

    Raises (``fit``, ``transform``):
        ValueError: a graph that is not connected. Else as for `ClassicalMDS`.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((60, 3))
    >>> model = Isomap(n_components=2).fit(x)
    >>> model.embedding_.shape, model.transform(x[:5]).shape
    ((60, 2), (5, 2))
    """

    _: KW_ONLY
    n_neighbors: int | None = None
    radius: float | None = None
    eigen_solver: str = "auto"
    tol: float = 0
    max_iter: int | None = None
    path_method: str = "auto"
    neighbors_algorithm: str = "auto"
    n_jobs: int | None = None
    metric: str = "minkowski"
    p: float = 2
    metric_params: dict[str, Any] | None = None

    def _module(self, n_components: int, x: Any) -> methods.Isomap:
        if isinstance(self.metric, str) and self.metric == "precomputed":
            raise ValueError(
                'metric must be "minkowski" or "euclidean", got "precomputed"; for geodesic distances that are given '
                'use ClassicalMDS(metric="precomputed")'
            )
        refuse_others(self, metric=("minkowski", "euclidean"), p=(2, 2.0), metric_params=(None,))
        return methods.Isomap(n_components, self._rule(x), solve=self.solve)

    def _rule(self, x: Tensor) -> KNN | Radius:
        if self.radius is None:
            k = _neighbors(self.n_neighbors, len(x))
            return KNN(k) if self.n_neighbors is not None else _connecting(x, k)
        if self.n_neighbors is not None:
            raise ValueError(
                f"n_neighbors must be None with a radius, got n_neighbors={self.n_neighbors} with radius={self.radius}"
            )
        return Radius(self.radius)


@dataclass(eq=False, repr=False)
class LocallyLinearEmbedding(Embedding):
    """`LLE` as a scikit-learn transformer.

    Args:
        n_neighbors: of each sample, smaller than the number of samples; None takes 10, or all of fewer.
        n_components: dimension of the embedding, smaller than the number of samples.
        reg: share of the trace added to the diagonal of the local Gram matrices.
        eigen_solver, tol, max_iter, hessian_tol, modified_tol, neighbors_algorithm, random_state, n_jobs: without
            effect, so that calls of scikit-learn run as they are.
        method: ``"standard"``; others are refused.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or just a solver.
        device: where it is computed, for example ``"cuda"``.

    Attributes:
        embedding_: ``(N, n_components)``, orthonormal columns, float32 or float64 as X is.
        eigenvalues_, residuals_: ``(n_components,)``, ascending.
        module_: the fitted `LLE`. n_features_in_: columns of X.

    A `GraphWarning` tells where the neighbourhoods do not connect all samples.

    Raises (``fit``, ``transform``):
        TypeError, ValueError: samples that are not finite or too few, a parameter out of range. NotFittedError:
            ``transform`` before ``fit``.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((60, 3))
    >>> model = LocallyLinearEmbedding(n_components=2).fit(x)
    >>> model.embedding_.shape, model.transform(x[:5]).shape
    ((60, 2), (5, 2))
    """

    _: KW_ONLY
    n_neighbors: int | None = None
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
        refuse_others(self, method=("standard",))
        return methods.LLE(n_components, KNN(_neighbors(self.n_neighbors, len(x))), reg=self.reg, solve=self.solve)


@dataclass(eq=False, repr=False)
class KernelPCA(Embedding):
    """`torch_lapeig.KernelPCA` as a scikit-learn transformer.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues of the centred kernel.
        kernel: ``"linear"`` x·y, ``"rbf"`` exp(−γ ‖x − y‖²), ``"poly"`` (γ x·y + coef0)^degree, or a function of
            tensors ``(N, D)`` and ``(M, D)`` to a symmetric kernel ``(N, M)`` (scikit-learn's is of two samples).
            ``"precomputed"``: X holds the kernel ``(N, N)``.
        gamma: γ; None takes 1/D.
        degree, coef0: of the polynomial.
        alpha, eigen_solver, tol, max_iter, iterated_power, random_state, copy_X, n_jobs: without effect, so that calls
            of scikit-learn run as they are.
        kernel_params, fit_inverse_transform, remove_zero_eig: None and False; others are refused.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or just a solver.
        device: where it is computed, for example ``"cuda"``.

    Attributes:
        embedding_, eigenvalues_, residuals_, n_features_in_: as of `ClassicalMDS`. module_: the fitted
        `torch_lapeig.KernelPCA`.

    Raises (``fit``, ``transform``):
        TypeError, ValueError, NotFittedError: as for `ClassicalMDS`.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((60, 3))
    >>> model = KernelPCA(2, kernel="rbf").fit(x)
    >>> model.embedding_.shape, model.transform(x[:5]).shape
    ((60, 2), (5, 2))
    """

    n_components: int = 2
    _: KW_ONLY
    kernel: Literal["linear", "rbf", "poly", "precomputed"] | Callable[[Tensor, Tensor], Tensor] = "linear"
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
    def _pairwise(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _module(self, n_components: int, x: Any) -> methods.KernelPCA:
        refuse_others(self, kernel_params=(None,), fit_inverse_transform=(False,), remove_zero_eig=(False,))
        if isinstance(self.kernel, str):
            checks.check_choice(self.kernel, "kernel", ("linear", "rbf", "poly", "precomputed"))
        kernel: Any = Precomputed("kernel") if self._pairwise else self.kernel
        return methods.KernelPCA(
            n_components,
            kernel,
            gamma=self.gamma,
            degree=self.degree,
            coef0=self.coef0,
            solve=self.solve,
        )


def _neighbors(n_neighbors: int | None, n_samples: int) -> int:
    """Return the checked number of neighbours of a sample; 10, or all of fewer samples, for None."""
    return check_below(min(10, n_samples - 1) if n_neighbors is None else n_neighbors, "n_neighbors", n_samples)


def _connecting(x: Tensor, k: int) -> KNN:
    """Return the rule of k nearest neighbours, or, with a warning, of twice as many until the graph is connected."""
    first, parts = k, [_parts(x, k)]
    while parts[-1] > 1:
        k = min(2 * k, len(x) - 1)
        parts.append(_parts(x, k))
    if k > first:
        checks.warn(
            f"the graph of {first} nearest neighbours has {parts[0]} connected components, between which geodesics are "
            f"infinite: n_neighbors={k} is taken, which connects it; or embed each on its own",
            checks.GraphWarning,
        )
    return KNN(k)


def _parts(x: Tensor, k: int) -> int:
    """Return the connected components of the graph of k nearest neighbours."""
    return int(KNN(k)(x).connected_components().max()) + 1
