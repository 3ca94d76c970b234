"""Label spreading as a replacement of scikit-learn's, and harmonic functions, the limit of its label propagation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from torch_lapeig import methods
from torch_lapeig.graph.rules import GraphRule
from torch_lapeig.graph.weights import Weighting
from torch_lapeig.methods.propagation import ClassPrior
from torch_lapeig.methods.semisupervised import UNLABELLED
from torch_lapeig.sklearn.affinities import MatrixFunction, OfKernel, OfSparseSamples, OnGraph, rbf
from torch_lapeig.sklearn.base import check_below, check_shared
from torch_lapeig.support import checks

Array = NDArray[Any]
Own = TypeVar("Own", bound="FromLabels")


@dataclass(eq=False, repr=False)
class FromLabels(ClassifierMixin, OnGraph):  # type: ignore[misc]
    """Classifier that carries the labels of some samples to all, and to new ones."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("scores_",)
    SPARSE: ClassVar[str | bool] = "csr"
    kernel: str | Callable[..., Any] = "rbf"
    _: KW_ONLY
    gamma: float = 20
    n_neighbors: int = 7
    weights: Weighting | None = None
    class_prior: ClassPrior = None
    device: str | torch.device = "cpu"

    def fit(self: Own, X: Any, y: Any) -> Own:
        """Carry the labels ``y`` ``(N,)``, −1 for samples without one, to all samples ``(N, D)``."""
        check_shared(self)
        options = {"order": "C", "accept_sparse": self.SPARSE, "ensure_min_samples": 2}
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], **options)
        unlabelled = np.array([value == UNLABELLED for value in y.tolist()])
        if unlabelled.all():
            raise ValueError("y must hold at least one class, got −1 for every sample")
        check_classification_targets(y[~unlabelled])
        self.classes_, number = np.unique(y[~unlabelled], return_inverse=True)
        labels = np.full(len(y), UNLABELLED)
        labels[~unlabelled] = number
        x = self._graph(X)
        self._keep(self._module(*self._rule(), len(self.classes_)).fit(x, self._on_device(labels)))
        self.label_distributions_ = shares(self.scores_)
        self.transduction_ = self._classes_of(self.scores_)
        self.n_iter_ = 1  # scikit-learn asks for it where there is a max_iter
        return self

    def predict(self, X: Any) -> Array:
        """Return classes ``(Q,)`` of samples: the class of the largest score, −1 for a sample that no label reaches."""
        return self._classes_of(self._scores_of(X))

    def predict_proba(self, X: Any) -> Array:
        """Return the share of each class ``(Q, C)`` in samples' scores, zeros for a sample that no label reaches."""
        return shares(self._scores_of(X))

    def _graph(self, X: Array) -> Any:
        """Return the input of the module's fit."""
        if isinstance(self.kernel, str) and self.kernel == "knn":
            k = check_below(self.n_neighbors, "n_neighbors", X.shape[0])
            if not issparse(X):
                return self._from(None, X, k)
            self._check_unweighted('kernel="knn" of sparse samples', "dense samples")
            return self._from(OfSparseSamples(X, k), X)
        self._check_unweighted(f"kernel={self.kernel!r}", 'kernel="knn"')
        if not callable(self.kernel):
            checks.check_choice(self.kernel, "kernel", ("rbf", "knn"))
        kernel = MatrixFunction(self.kernel, takes_pair=True) if callable(self.kernel) else rbf(self.gamma, X)
        return self._from(OfKernel(X, kernel), X)

    @torch.no_grad()
    def _scores_of(self, X: Any) -> Array:
        """Return the scores of new samples; the fitted scores of training samples."""
        check_is_fitted(self)
        return self._of_new(self.module_.transform, X, self.scores_)

    def _classes_of(self, scores: Array) -> Array:
        classes: Array = self.classes_[scores.argmax(1)]
        unreached = ~scores.any(1)
        if unreached.any():
            classes = classes if classes.dtype.kind in "if" else classes.astype(object)
            classes[unreached] = UNLABELLED
        return classes

    @abstractmethod
    def _module(self, neighbors: GraphRule, weights: Weighting | None, n_classes: int) -> Any:
        """Return the module of these samples."""


@dataclass(eq=False, repr=False)
class LabelSpreading(FromLabels):
    """`torch_lapeig.LabelSpreading` as a replacement of `sklearn.semi_supervised.LabelSpreading`, with its parameters.

    Solved for the limit of the iteration, which scikit-learn's comes to by more steps and a smaller ``tol``.

    Args:
        kernel: ``"rbf"``: exp(−γ ‖x_i − x_j‖²) of all pairs; ``"knn"``: the nearest neighbours; or a function that
            scikit-learn takes, of two sets of samples to their affinities: ``kernel(X, X)``, and of new samples
            ``kernel(X_new, X)``. A function of X only is enough for a fit.
        gamma: γ of ``"rbf"``.
        n_neighbors: of ``"knn"``. A pair has affinity 1 where each is among the nearest of the other, ½ for one only;
            scikit-learn's graph has edges in one direction.
        alpha: the share that a sample takes from its neighbours, above 0 and below 1. 0.99 carries labels far.
        max_iter, tol, n_jobs: without effect, so that calls of scikit-learn run as they are.
        weights: of the edges of ``"knn"``, a weighting such as `HeatKernel()`; None for 1 and ½.
        class_prior: None, ``"labels"``, ``"uniform"`` or the shares of ``classes_``, to which the sums of the classes'
            scores are brought (class mass normalisation, Zhu et al. 2003): as of `torch_lapeig.LabelSpreading`.
        device: where it is computed, for example ``"cuda"``.

    Attributes:
        classes_: ``(C,)``. scores_: ``(N, C)``. label_distributions_: scores over their sum, zeros where no label
            reaches. transduction_: ``(N,)``, the class of each sample, −1 where no label reaches, with a
            `GraphWarning`. module_: the fitted `torch_lapeig.LabelSpreading`. n_iter_: 1.

    New samples get the row of the system that they would have, where scikit-learn gives the mean of the label
    distributions, and a training sample gets its own scores.

    >>> import numpy as np
    >>> X = np.array([[0.0], [0.1], [0.2], [1.0], [1.1]])
    >>> LabelSpreading(alpha=0.9).fit(X, [0, -1, -1, 1, -1]).transduction_.tolist()
    [0, 0, 0, 1, 1]
    """

    _: KW_ONLY
    alpha: float = 0.2
    max_iter: int = 30
    tol: float = 1e-3
    n_jobs: int | None = None

    def _module(self, neighbors: GraphRule, weights: Weighting | None, n_classes: int) -> Any:
        prior = self.class_prior
        return methods.LabelSpreading(neighbors, weights, alpha=self.alpha, class_prior=prior, n_classes=n_classes)


@dataclass(eq=False, repr=False)
class HarmonicFunction(FromLabels):
    """`torch_lapeig.HarmonicFunction` as a classifier: the limit of `sklearn.semi_supervised.LabelPropagation`.

    Labels are kept as they are given; every other sample has the mean of its neighbours.

    Args:
        kernel, gamma, n_neighbors, max_iter, tol, n_jobs, weights, class_prior, device: as of `LabelSpreading`.

    Attributes:
        classes_, scores_, label_distributions_, transduction_, module_, n_iter_: as of `LabelSpreading`.

    >>> import numpy as np
    >>> X = np.array([[0.0], [0.1], [0.2], [1.0], [1.1]])
    >>> HarmonicFunction().fit(X, [0, -1, -1, 1, -1]).transduction_.tolist()
    [0, 0, 0, 1, 1]
    """

    _: KW_ONLY
    max_iter: int = 1000
    tol: float = 1e-3
    n_jobs: int | None = None

    def _module(self, neighbors: GraphRule, weights: Weighting | None, n_classes: int) -> Any:
        return methods.HarmonicFunction(neighbors, weights, class_prior=self.class_prior, n_classes=n_classes)


def shares(scores: Array) -> Array:
    """Return scores over the sum of their row; rows of zeros stay."""
    total = scores.sum(1, keepdims=True)
    return scores / np.where(total > 0, total, 1)
