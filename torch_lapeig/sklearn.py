"""scikit-learn estimators: NumPy in and out, thin faces over the modules with ``fit`` and ``transform``.

Estimators have the names of scikit-learn's for the same method, and so have parameters that mean the same.

Needs scikit-learn ≥ 1.6, the extra ``sklearn``; ``import torch_lapeig`` alone does not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lapeig import _checks, methods
from torch_lapeig._fitted import FittedModule
from torch_lapeig.eigen import Solve, Solver
from torch_lapeig.graph.graph import Graph
from torch_lapeig.graph.rules import KNN, Precomputed, Radius
from torch_lapeig.graph.weighted import Rule
from torch_lapeig.graph.weights import HeatKernel, SimpleWeights, Weighting

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError('torch_lapeig.sklearn needs scikit-learn ≥ 1.6; pip install "torch-lapeig[sklearn]"') from error

Own = TypeVar("Own", bound="_Embedding")
Variant = Literal["njw", "shi_malik"]
Affinity = Literal["nearest_neighbors", "precomputed"]


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """A module behind checked input, its state as NumPy arrays."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("embedding_", "eigenvalues_", "residuals_")
    device: str | torch.device
    module_: Any
    embedding_: NDArray[Any]

    @property
    def _pairwise(self) -> bool:
        """Whether X is ``(N, N)``, of pairs of samples."""
        return False

    @property
    def _sparse(self) -> bool:
        """Whether X may be a SciPy sparse matrix."""
        return False

    def _training(self, X: Any) -> Tensor | Graph:
        """Samples, or what is given of their pairs, on the device."""
        sparse = "csr" if self._sparse else False
        X = validate_data(
            self, X, dtype=[np.float64, np.float32], order="C", accept_sparse=sparse, ensure_min_samples=2
        )
        if isinstance(X, np.ndarray):
            # A copy: torch takes no read-only memory.
            return torch.tensor(X, device=self.device)
        return Graph.from_scipy(X, torch.float32 if X.dtype == np.float32 else torch.float64).to(self.device)

    def _new(self, X: Any) -> Tensor:
        """New samples, in the dtype and on the device of the training samples."""
        check_is_fitted(self)
        sparse = "csr" if self._sparse else False
        X = validate_data(self, X, dtype=self.embedding_.dtype, order="C", accept_sparse=sparse, reset=False)
        return torch.tensor(X if isinstance(X, np.ndarray) else X.toarray(), device=self.module_.embedding_.device)

    def _keep(self, module: FittedModule) -> None:
        self.module_ = module
        for name in self.ARRAYS:
            setattr(self, name, _numpy(getattr(module, name)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.input_tags.pairwise = self._sparse, self._pairwise
        return tags


class _Embedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Estimator):  # type: ignore[misc]
    """A transformer that embeds, with ``transform`` for new samples."""

    n_components: int

    def fit(self: Own, X: Any, y: Any = None) -> Own:
        """Embed samples ``(N, D)``, or what is precomputed of their pairs ``(N, N)``; ``y`` is ignored."""
        x = self._training(X)
        k = _check_below(self.n_components, "n_components", x.shape[0])
        self._keep(self._module(k, x).fit(x))
        return self

    def fit_transform(self, X: Any, y: Any = None) -> NDArray[Any]:
        """``embedding_`` of ``fit(X)``."""
        return self.fit(X).embedding_

    @torch.no_grad()  # a kernel may have parameters
    def transform(self, X: Any) -> NDArray[Any]:
        """The embedding ``(Q, n_components)`` of new samples ``(Q, D)``, or of their pairs with the training samples.

        A training sample gets its row of ``embedding_``. In the dtype of the training samples.
        """
        x = self._new(X)
        return _numpy(self.module_.transform(x))

    @abstractmethod
    def _module(self, n_components: int, x: Any) -> Any:
        """The module for these training samples."""

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_.shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class _OnGraph(_Estimator):
    """An estimator on the weighted graph of its samples: its parameters as a rule and a weighting."""

    affinity: Affinity
    n_neighbors: int | None
    gamma: float | None

    @property
    def _pairwise(self) -> bool:
        return self.affinity == "precomputed"

    @property
    def _sparse(self) -> bool:
        return self._pairwise

    def _rule(self, n_samples: int) -> tuple[Rule, Weighting | None]:
        _checks.check_choice(self.affinity, "affinity", ("nearest_neighbors", "precomputed"))
        if self._pairwise:
            return Precomputed("affinity"), None
        rule = KNN(_neighbors(self.n_neighbors, n_samples, itself=1), "mean")
        if self.gamma is None:
            return rule, HeatKernel("median")
        gamma = _checks.check_number(self.gamma, "gamma", 0)
        return rule, SimpleWeights() if gamma == 0 else HeatKernel(1 / gamma)


class SpectralEmbedding(_Embedding, _OnGraph):
    """`LaplacianEigenmaps` as a scikit-learn transformer, with ``transform`` for new samples.

    Args:
        n_components: dimension of the embedding, smaller than the number of samples.
        affinity: ``"nearest_neighbors"``: samples are joined where one is among the k nearest of the other, with half
            the weight where only one is.
            ``"precomputed"``: X holds affinities ``(N, N)``, symmetric and non-negative, an array or a SciPy sparse
            matrix. Their diagonal counts as self loops (`sklearn.manifold.SpectralEmbedding` leaves it out).
        n_neighbors: k, the sample itself counted as in scikit-learn, 2 to the number of samples; None takes 11, or all.
        gamma: of the weights exp(−γ ‖x_i − x_j‖²) on their edges; 0 gives every edge the weight 1, None takes the
            reciprocal of the median of the squared edge lengths.
        components: of a disconnected graph: ``"joint"``, ``"separate"`` or ``"error"``, see `LaplacianEigenmaps`.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or a solver alone.
        device: where it is computed, for example ``"cuda"``.

    Attributes:
        embedding_: ``(N, n_components)``, generalised eigenvectors with Yᵀ D Y = I, float32 or float64 as X is.
        eigenvalues_, residuals_: ``(n_components,)``, or with ``"separate"`` one row for each component.
        module_: the fitted `LaplacianEigenmaps`. n_features_in_: columns of X.

    The answer does not depend on chance, so there is no ``random_state``.

    Raises (``fit``, ``transform``):
        TypeError, ValueError: samples that are not finite or too few, a parameter out of range, affinities that are
            negative or not symmetric. NotFittedError: ``transform`` before ``fit``.

    >>> X = np.random.default_rng(0).random((60, 3))
    >>> model = SpectralEmbedding(n_components=2, n_neighbors=6).fit(X[:50])
    >>> model.transform(X[50:]).shape
    (10, 2)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        affinity: Affinity = "nearest_neighbors",
        n_neighbors: int | None = None,
        gamma: float | None = None,
        components: Literal["joint", "separate", "error"] = "joint",
        solve: Solve | Solver | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.n_components = n_components
        self.affinity = affinity
        self.n_neighbors = n_neighbors
        self.gamma = gamma
        self.components = components
        self.solve = solve
        self.device = device

    def _module(self, n_components: int, x: Any) -> methods.LaplacianEigenmaps:
        rule = self._rule(x.shape[0])
        return methods.LaplacianEigenmaps(n_components, *rule, components=self.components, solve=self.solve)


class ClassicalMDS(_Embedding):
    """`MDS`, classical scaling, as a scikit-learn transformer. (`sklearn.manifold.MDS` is another method, SMACOF.)

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        metric: ``"euclidean"``, or ``"precomputed"``: X holds distances ``(N, N)``.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or a solver alone.
        device: where it is computed, for example ``"cuda"``.

    Attributes:
        embedding_: ``(N, n_components)``, float32 or float64 as X is.
        eigenvalues_, residuals_: ``(n_components,)``, of the centred kernel, descending.
        module_: the fitted `MDS`. n_features_in_: columns of X.

    Raises (``fit``, ``transform``):
        TypeError, ValueError: samples that are not finite or too few, a parameter out of range, fewer positive
            eigenvalues than components, and what `MDS` raises. NotFittedError: ``transform`` before ``fit``.
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        metric: Literal["euclidean", "precomputed"] = "euclidean",
        solve: Solve | Solver | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.n_components = n_components
        self.metric = metric
        self.solve = solve
        self.device = device

    @property
    def _pairwise(self) -> bool:
        return self.metric == "precomputed"

    def _module(self, n_components: int, x: Any) -> methods.MDS:
        _checks.check_choice(self.metric, "metric", ("euclidean", "precomputed"))
        metric: Any = Precomputed("distance") if self._pairwise else self.metric
        return methods.MDS(n_components, metric=metric, solve=self.solve)


class Isomap(_Embedding):
    """`torch_lapeig.Isomap` as a scikit-learn transformer.

    Args:
        n_neighbors: k of the nearest neighbours, smaller than the number of samples: samples are joined where one is
            among those of the other. None takes 10, or all of fewer, and twice as many, with a `GraphWarning`, until
            the graph is connected. (`sklearn.manifold.Isomap` takes 5 and joins components by their closest samples.)
        radius: samples at most as far apart are joined; n_neighbors must be None.
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or a solver alone.
        device: where it is computed, but for the shortest paths, for example ``"cuda"``.

    Attributes:
        embedding_, eigenvalues_, residuals_, n_features_in_: as of `ClassicalMDS`.
        module_: the fitted `torch_lapeig.Isomap`, with its rule ``module_.neighbors``.

    Raises (``fit``, ``transform``):
        ValueError: a graph that is not connected. Else as for `ClassicalMDS`.
    """

    def __init__(
        self,
        *,
        n_neighbors: int | None = None,
        radius: float | None = None,
        n_components: int = 2,
        solve: Solve | Solver | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.n_neighbors = n_neighbors
        self.radius = radius
        self.n_components = n_components
        self.solve = solve
        self.device = device

    def _module(self, n_components: int, x: Any) -> methods.Isomap:
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


class LocallyLinearEmbedding(_Embedding):
    """`LLE` as a scikit-learn transformer.

    Args:
        n_neighbors: of each sample, smaller than the number of samples; None takes 10, or all of fewer.
        n_components: dimension of the embedding, smaller than the number of samples.
        reg: share of the trace added to the diagonal of the local Gram matrices.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or a solver alone.
        device: where it is computed, for example ``"cuda"``.

    Attributes:
        embedding_: ``(N, n_components)``, orthonormal columns, float32 or float64 as X is.
        eigenvalues_, residuals_: ``(n_components,)``, ascending.
        module_: the fitted `LLE`. n_features_in_: columns of X.

    A `GraphWarning` says where the neighbourhoods do not connect all samples.

    Raises (``fit``, ``transform``):
        TypeError, ValueError: samples that are not finite or too few, a parameter out of range. NotFittedError:
            ``transform`` before ``fit``.
    """

    def __init__(
        self,
        *,
        n_neighbors: int | None = None,
        n_components: int = 2,
        reg: float = 1e-3,
        solve: Solve | Solver | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.n_neighbors = n_neighbors
        self.n_components = n_components
        self.reg = reg
        self.solve = solve
        self.device = device

    def _module(self, n_components: int, x: Any) -> methods.LLE:
        return methods.LLE(n_components, KNN(_neighbors(self.n_neighbors, len(x))), reg=self.reg, solve=self.solve)


class KernelPCA(_Embedding):
    """`torch_lapeig.KernelPCA` as a scikit-learn transformer.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues of the centred kernel.
        kernel: ``"linear"`` x·y, ``"rbf"`` exp(−γ ‖x − y‖²), ``"poly"`` (γ x·y + coef0)^degree, or a function of
            tensors ``(N, D)`` and ``(M, D)`` to a symmetric kernel ``(N, M)`` (scikit-learn's is of two samples).
            ``"precomputed"``: X holds the kernel ``(N, N)``.
        gamma: γ; None takes 1/D.
        degree, coef0: of the polynomial.
        solve: options of the eigensolve, a `torch_lapeig.Solve`, or a solver alone.
        device: where it is computed, for example ``"cuda"``.

    Attributes:
        embedding_, eigenvalues_, residuals_, n_features_in_: as of `ClassicalMDS`. module_: the fitted
        `torch_lapeig.KernelPCA`.

    Raises (``fit``, ``transform``):
        TypeError, ValueError, NotFittedError: as for `ClassicalMDS`.
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        kernel: Literal["linear", "rbf", "poly", "precomputed"] | Callable[[Tensor, Tensor], Tensor] = "linear",
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1.0,
        solve: Solve | Solver | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.solve = solve
        self.device = device

    @property
    def _pairwise(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _module(self, n_components: int, x: Any) -> methods.KernelPCA:
        if isinstance(self.kernel, str):
            _checks.check_choice(self.kernel, "kernel", ("linear", "rbf", "poly", "precomputed"))
        kernel: Any = Precomputed("kernel") if self._pairwise else self.kernel
        return methods.KernelPCA(
            n_components,
            kernel,
            gamma=self.gamma,
            degree=self.degree,
            coef0=self.coef0,
            solve=self.solve,
        )


class SpectralClustering(ClusterMixin, _OnGraph):  # type: ignore[misc]
    """`torch_lapeig.SpectralClustering` as a scikit-learn clusterer, with ``predict`` for new samples.

    Args:
        n_clusters: at most the number of samples.
        variant: ``"njw"`` (Ng, Jordan & Weiss 2002) or ``"shi_malik"`` (Shi & Malik 2000).
        affinity, n_neighbors, gamma, solve, device: as for `SpectralEmbedding`.
        random_state: of k-means; an int makes the labels the same every time.

    Attributes:
        labels_: int64 ``(N,)``, −1 for samples without any affinity to another.
        embedding_: ``(N, n_clusters)``, the rows that k-means sees, float32 or float64 as X is.
        eigenvalues_, residuals_: ``(n_clusters,)``, the trivial one included.
        module_: the fitted `torch_lapeig.SpectralClustering`. n_features_in_: columns of X.

    Raises (``fit``, ``predict``):
        TypeError, ValueError, NotFittedError: as for `SpectralEmbedding`.

    >>> X = np.repeat([[0.0], [9.0]], 10, 0) + np.linspace(0, 1, 20)[:, None]
    >>> labels = SpectralClustering(2, n_neighbors=4, random_state=0).fit_predict(X)
    >>> len(set(labels[:10])), len(set(labels[10:])), bool(labels[0] == labels[-1])
    (1, 1, False)
    """

    ARRAYS: ClassVar[tuple[str, ...]] = ("labels_", *_Estimator.ARRAYS)

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        variant: Variant = "njw",
        affinity: Affinity = "nearest_neighbors",
        n_neighbors: int | None = None,
        gamma: float | None = None,
        random_state: Any = None,
        solve: Solve | Solver | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.n_clusters = n_clusters
        self.variant = variant
        self.affinity = affinity
        self.n_neighbors = n_neighbors
        self.gamma = gamma
        self.random_state = random_state
        self.solve = solve
        self.device = device

    def fit(self, X: Any, y: Any = None) -> SpectralClustering:
        """Cluster samples ``(N, D)`` or affinities ``(N, N)``; ``y`` is ignored."""
        x = self._training(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        k, rule = self.n_clusters, self._rule(x.shape[0])
        self._keep(methods.SpectralClustering(k, *rule, variant=self.variant, solve=self.solve, seed=seed).fit(x))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels ``(Q,)`` of new samples ``(Q, D)``, or of their affinities ``(Q, N)``: the nearest centre in k-means.

        −1 for samples without any affinity to a training sample.
        """
        x = self._new(X)
        return _numpy(self.module_.predict(x))


def _neighbors(n_neighbors: int | None, n_samples: int, itself: int = 0) -> int:
    """Neighbours of a sample beside itself, which may count (1), checked; 10, or all of fewer samples, for None."""
    k = min(10, n_samples - 1) + itself if n_neighbors is None else n_neighbors
    return _check_below(k, "n_neighbors", n_samples, itself) - itself


def _connecting(x: Tensor, k: int) -> KNN:
    """The rule of k nearest neighbours, or, with a warning, of twice as many until the graph is connected."""
    first, parts = k, [_parts(x, k)]
    while parts[-1] > 1:
        k = min(2 * k, len(x) - 1)
        parts.append(_parts(x, k))
    if k > first:
        _checks.warn(
            f"the graph of {first} nearest neighbours has {parts[0]} connected components, between which geodesics are "
            f"infinite: n_neighbors={k} is taken, which connects it; or embed each on its own",
            _checks.GraphWarning,
        )
    return KNN(k)


def _parts(x: Tensor, k: int) -> int:
    """Connected components of the graph of k nearest neighbours."""
    return int(KNN(k)(x).connected_components().max()) + 1


def _check_below(value: Any, name: str, n_samples: int, more: int = 0) -> int:
    """The integer above ``more`` and smaller than the number of samples and that; raise for anything else."""
    count = _checks.check_count(value, name, 1 + more)
    if count >= n_samples + more:
        limit = "at most" if more else "smaller than"
        raise ValueError(f"{name} must be {limit} the number of samples, got {name}={count} with n_samples={n_samples}")
    return count


def _numpy(value: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = value.cpu().numpy()
    return array
