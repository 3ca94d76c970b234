"""scikit-learn estimators: NumPy in and out, a thin face over `LaplacianEigenmaps` and `SpectralClustering`.

Needs scikit-learn ≥ 1.6, the extra ``sklearn``; ``import torch_lapeig`` alone does not.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lapeig import _checks, clustering
from torch_lapeig.embedding import LaplacianEigenmaps, Rule
from torch_lapeig.graph import KNN, Graph
from torch_lapeig.weights import HeatKernel, SimpleWeights, Weighting

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError('torch_lapeig.sklearn needs scikit-learn ≥ 1.6; pip install "torch-lapeig[sklearn]"') from error

Affinity = Literal["nearest_neighbors", "precomputed"]


class _GraphEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator on the graph of its samples: checked input, and its parameters as a rule and a weighting."""

    affinity: Affinity
    n_neighbors: int | None
    gamma: float | None
    device: str | torch.device

    @property
    def _precomputed(self) -> bool:
        return self.affinity == "precomputed"

    def _rule(self, n_samples: int) -> tuple[Rule, Weighting | None]:
        _checks.check_choice(self.affinity, "affinity", ("nearest_neighbors", "precomputed"))
        if self._precomputed:
            return "precomputed", None
        k, gamma = _number(self.n_neighbors), _number(self.gamma)
        k = min(10, n_samples - 1) if k is None else k
        _check_below(k, "n_neighbors", n_samples)
        if gamma is None:
            return KNN(k), HeatKernel("median")
        if gamma == 0:
            return KNN(k), SimpleWeights()
        _checks.check_positive(gamma, "gamma")
        return KNN(k), HeatKernel(1 / gamma)

    def _validated(self, X: Any) -> Tensor | Graph:
        """Training samples or their affinities, on the device."""
        sparse = "csr" if self._precomputed else False
        X = validate_data(
            self, X, dtype=[np.float64, np.float32], order="C", accept_sparse=sparse, ensure_min_samples=2
        )
        if isinstance(X, np.ndarray):
            # A copy: torch takes no read-only memory.
            return torch.tensor(X, device=self.device)
        return Graph.from_scipy(X, torch.float32 if X.dtype == np.float32 else torch.float64).to(self.device)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.pairwise = self._precomputed
        return tags


class SpectralEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _GraphEstimator):  # type: ignore[misc]
    """`LaplacianEigenmaps` as a scikit-learn transformer, with ``transform`` for new samples.

    Args:
        n_components: dimension of the embedding, smaller than the number of samples.
        affinity: ``"nearest_neighbors"``: samples are joined where one is among the k nearest of the other.
            ``"precomputed"``: X holds affinities ``(N, N)``, symmetric and non-negative, an array or a SciPy sparse
            matrix. Their diagonal counts as self loops (`sklearn.manifold.SpectralEmbedding` leaves it out).
        n_neighbors: k of the nearest neighbours, smaller than the number of samples; None takes 10, or all of fewer.
        gamma: of the weights exp(−γ ‖x_i − x_j‖²) on their edges; 0 gives every edge the weight 1, None takes the
            reciprocal of the median of the squared edge lengths.
        components: of a disconnected graph: ``"joint"``, ``"separate"`` or ``"error"``, see `LaplacianEigenmaps`.
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
        device: str | torch.device = "cpu",
    ) -> None:
        self.n_components = n_components
        self.affinity = affinity
        self.n_neighbors = n_neighbors
        self.gamma = gamma
        self.components = components
        self.device = device

    def fit(self, X: Any, y: Any = None) -> SpectralEmbedding:
        """Embed samples ``(N, D)`` or affinities ``(N, N)``; ``y`` is ignored."""
        x = self._validated(X)
        n, k = x.shape[0], _number(self.n_components)
        _check_below(k, "n_components", n)
        self.module_ = LaplacianEigenmaps(k, *self._rule(n), components=self.components).fit(x)
        self.embedding_ = _numpy(self.module_.embedding_)
        self.eigenvalues_ = _numpy(self.module_.eigenvalues_)
        self.residuals_ = _numpy(self.module_.residuals_)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> NDArray[Any]:
        """``embedding_`` of ``fit(X)``."""
        return self.fit(X).embedding_

    def transform(self, X: Any) -> NDArray[Any]:
        """The embedding ``(Q, n_components)`` of new samples ``(Q, D)``, or of their affinities ``(Q, N)``, by Nyström.

        A training sample gets its row of ``embedding_``. In the dtype of the training samples.
        """
        check_is_fitted(self)
        sparse = "csr" if self._precomputed else False
        X = validate_data(self, X, dtype=self.embedding_.dtype, order="C", accept_sparse=sparse, reset=False)
        x = torch.tensor(X if isinstance(X, np.ndarray) else X.toarray(), device=self.module_.embedding_.device)
        return _numpy(self.module_.transform(x))

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_.shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class SpectralClustering(ClusterMixin, _GraphEstimator):  # type: ignore[misc]
    """`torch_lapeig.SpectralClustering` as a scikit-learn clusterer.

    Args:
        n_clusters: at most the number of samples.
        variant: ``"njw"`` (Ng, Jordan & Weiss 2002) or ``"shi_malik"`` (Shi & Malik 2000).
        affinity, n_neighbors, gamma, device: as for `SpectralEmbedding`.
        random_state: of k-means; an int makes the labels the same every time.

    Attributes:
        labels_: int64 ``(N,)``, −1 for samples without any affinity to another.
        embedding_: ``(N, n_clusters)``, the rows that k-means sees, float32 or float64 as X is.
        eigenvalues_, residuals_: ``(n_clusters,)``, the trivial one included.
        module_: the fitted `torch_lapeig.SpectralClustering`. n_features_in_: columns of X.

    Raises (``fit``):
        TypeError, ValueError: as for `SpectralEmbedding`.

    >>> X = np.repeat([[0.0], [9.0]], 10, 0) + np.linspace(0, 1, 20)[:, None]
    >>> labels = SpectralClustering(2, n_neighbors=4, random_state=0).fit_predict(X)
    >>> len(set(labels[:10])), len(set(labels[10:])), labels[0] == labels[-1]
    (1, 1, np.False_)
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        variant: clustering.Variant = "njw",
        affinity: Affinity = "nearest_neighbors",
        n_neighbors: int | None = None,
        gamma: float | None = None,
        random_state: Any = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.n_clusters = n_clusters
        self.variant = variant
        self.affinity = affinity
        self.n_neighbors = n_neighbors
        self.gamma = gamma
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None) -> SpectralClustering:
        """Cluster samples ``(N, D)`` or affinities ``(N, N)``; ``y`` is ignored."""
        x = self._validated(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        k, rule = _number(self.n_clusters), self._rule(x.shape[0])
        self.module_ = clustering.SpectralClustering(k, *rule, variant=self.variant, seed=seed).fit(x)
        self.labels_ = _numpy(self.module_.labels_)
        self.embedding_ = _numpy(self.module_.embedding_)
        self.eigenvalues_ = _numpy(self.module_.eigenvalues_)
        self.residuals_ = _numpy(self.module_.residuals_)
        return self


def _number(value: Any) -> Any:
    """NumPy's numbers, as grid searches give them, as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _check_below(value: Any, name: str, n_samples: int) -> None:
    """Raise unless ``value`` is a positive integer smaller than the number of samples."""
    _checks.check_count(value, name)
    if value >= n_samples:
        raise ValueError(
            f"{name} must be smaller than the number of samples, got {name}={value} with n_samples={n_samples}"
        )


def _numpy(value: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = value.cpu().numpy()
    return array
