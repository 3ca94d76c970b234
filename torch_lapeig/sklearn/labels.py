"""Replacement of scikit-learn's label spreading, and harmonic functions, the limit of its label propagation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted

from torch_lapeig import methods
from torch_lapeig.graph.weights import Weighting
from torch_lapeig.methods.semisupervised import UNLABELLED, ClassPrior, Unreached
from torch_lapeig.sklearn.affinities import MatrixFunction, OfKernel, OfSparseSamples, OnGraph, rbf
from torch_lapeig.sklearn.base import as_numpy, check_below, check_entries_of
from torch_lapeig.support import checks

Array = NDArray[Any]
Own = TypeVar("Own", bound="FewKnown")


@dataclass(eq=False, repr=False)
class FewKnown(OnGraph):
    """Base of estimators that carry what some samples have to all samples, and to new samples."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("scores_",)
    SPARSE: ClassVar[str | bool] = "csr"
    kernel: str | Callable[..., Any] = "rbf"
    _: KW_ONLY
    gamma: float = 20
    n_neighbors: int = 7
    max_iter: int = 1000
    tol: float = 1e-3
    n_jobs: int | None = None
    weights: Weighting | None = None
    unreached: Unreached = None
    device: str | torch.device = "cpu"
    n_iter_: ClassVar[int] = 1  # scikit-learn expects it of estimators with max_iter

    def _graph(self, X: Array) -> Any:
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


@dataclass(eq=False, repr=False)
class FromLabels(ClassifierMixin, FewKnown):  # type: ignore[misc]
    """Base of the classifiers, whose labels are any classes."""

    MODULE: ClassVar[Any]  # the class of the module, and its options with the names of parameters
    OPTIONS: ClassVar[tuple[str, ...]] = ("class_prior", "unreached")
    _: KW_ONLY
    class_prior: ClassPrior = None

    def fit(self: Own, X: Any, y: Any) -> Own:
        """Carry the labels ``y`` ``(N,)``, −1, None or NaN for samples without one, to all samples ``(N, D)``."""
        check_entries_of(y, "y")
        if np.asarray(y).dtype.kind in "fO" and y is not None:  # `validate_data` refuses None and NaN
            y = np.where(checks.are_unlabelled(y, minus_one=False), UNLABELLED, np.asarray(y))
        X, y = self._samples(X, y)
        unlabelled = checks.are_unlabelled(y)
        if unlabelled.all():
            raise ValueError("y must hold at least one class, got −1 for every sample")
        is_plain = y.dtype != object or any(isinstance(one, str) for one in y)
        given = y[~unlabelled] if is_plain else np.array(y[~unlabelled].tolist())
        check_classification_targets(given)
        labels = np.full(len(y), UNLABELLED)
        self.classes_, labels[~unlabelled] = np.unique(given, return_inverse=True)
        x = self._graph(X)
        options = {name: getattr(self, name) for name in self.OPTIONS}
        module = self.MODULE(*self._rule(), n_classes=len(self.classes_), **options)
        self._keep(module.fit(x, torch.tensor(labels, device=self.device)))
        self.label_distributions_ = as_numpy(self.module_.predict_proba())
        self.transduction_ = self._classes_of(self.scores_)
        return self

    @torch.no_grad()
    def predict(self, X: Any) -> Array:
        """Return the classes of largest score ``(Q,)`` of samples ``(Q, D)``; −1 for a sample that no label reaches."""
        check_is_fitted(self)
        return self._classes_of(self._of_new(self.module_.transform, X, self.scores_))

    @torch.no_grad()
    def predict_proba(self, X: Any) -> Array:
        """Return the share of each class ``(Q, C)`` in samples' scores; zeros for a sample that no label reaches."""
        check_is_fitted(self)
        return self._of_new(self.module_.predict_proba, X, self.label_distributions_)

    def _classes_of(self, scores: Array) -> Array:
        classes: Array = self.classes_[scores.argmax(1)]
        unreached = ~scores.any(1)
        if unreached.any():
            classes = classes if classes.dtype.kind in "if" else classes.astype(object)
            classes[unreached] = UNLABELLED
        return classes


@dataclass(eq=False, repr=False)
class LabelSpreading(FromLabels):
    """`torch_lapeig.LabelSpreading` as a replacement of `sklearn.semi_supervised.LabelSpreading`, with its parameters.

    The scores solve a linear system, whose solution is the limit of scikit-learn's iteration (Zhou et al. 2004).

    Args:
        kernel: ``"rbf"``: exp(−γ ‖x_i − x_j‖²) of all pairs. ``"knn"``: edges to the nearest neighbours. A function:
            returns the affinities of two sets of samples, ``kernel(X, X)``, and ``kernel(X_new, X)`` for new samples.
            For a fit a function of X only is enough.
        gamma: γ of ``"rbf"``.
        n_neighbors: neighbours of a sample in ``"knn"``. A pair has affinity 1 if each is among the nearest of the
            other, and ½ if only one is; scikit-learn's graph has edges in one direction.
        alpha: share of a sample's scores that comes from its neighbours, above 0 and below 1. 0.99 carries labels far.
        max_iter, tol, n_jobs: without effect, so that calls of scikit-learn run as they are.
        weights: weighting of the edges of ``"knn"``, such as `HeatKernel()`; None for 1 and ½.
        class_prior: None, ``"labels"``, ``"uniform"`` or one share for each of ``classes_``, see
            `torch_lapeig.LabelSpreading`.
        unreached: ``"nearest"``: with ``"knn"`` of dense samples, a sample that no label reaches gets the label of the
            nearest labelled sample; None: −1.
        device: device of the computation, for example ``"cuda"``.

    Attributes:
        classes_: ``(C,)``. scores_: ``(N, C)``. label_distributions_: scores divided by their sum, zeros for a sample
            that no label reaches. transduction_: ``(N,)``, the class of each sample; −1 for a sample that no label
            reaches, with a `GraphWarning`. module_: the fitted `torch_lapeig.LabelSpreading`. n_iter_: 1.

    The scores of a new sample solve its own row of the linear system, while scikit-learn averages label distributions.
    A training sample keeps its fitted scores.

    >>> import numpy as np
    >>> X = np.array([[0.0], [0.1], [0.2], [1.0], [1.1]])
    >>> LabelSpreading(alpha=0.9).fit(X, [0, -1, -1, 1, -1]).transduction_.tolist()
    [0, 0, 0, 1, 1]
    """

    MODULE: ClassVar[Any] = methods.LabelSpreading
    OPTIONS: ClassVar[tuple[str, ...]] = (*FromLabels.OPTIONS, "alpha")
    _: KW_ONLY
    alpha: float = 0.2
    max_iter: int = 30


@dataclass(eq=False, repr=False)
class HarmonicFunction(FromLabels):
    """`torch_lapeig.HarmonicFunction` as a classifier: the limit of `sklearn.semi_supervised.LabelPropagation`.

    Labelled samples keep their labels; the scores of every other sample are the weighted mean of its neighbours'
    scores (Zhu et al. 2003).

    Parameters, attributes and errors are those of `LabelSpreading`, without ``alpha``.

    >>> import numpy as np
    >>> X = np.array([[0.0], [0.1], [0.2], [1.0], [1.1]])
    >>> HarmonicFunction().fit(X, [0, -1, -1, 1, -1]).transduction_.tolist()
    [0, 0, 0, 1, 1]
    """

    MODULE: ClassVar[Any] = methods.HarmonicFunction


@dataclass(eq=False, repr=False)
class HarmonicRegressor(RegressorMixin, FewKnown):  # type: ignore[misc]
    """`torch_lapeig.HarmonicFunction` as a regressor: known numbers are kept, others are the means of their neighbours.

    Args:
        kernel, gamma, n_neighbors, max_iter, tol, n_jobs, weights, unreached, device: see `LabelSpreading`; a sample
            that no known number reaches is an error, or with ``unreached="nearest"`` has the nearest known number.

    Attributes:
        scores_: ``(N, m)``, the numbers of all samples. module_: the fitted `torch_lapeig.HarmonicFunction`.

    >>> import numpy as np
    >>> X = np.array([[0.0], [0.1], [0.2]])
    >>> HarmonicRegressor().fit(X, [1.0, None, 3.0]).predict(X).round(6).tolist()
    [1.0, 2.0, 3.0]
    """

    def fit(self: Own, X: Any, y: Any) -> Own:
        """Carry numbers ``y`` ``(N,)`` or ``(N, m)``, None or NaN for unknown ones, to all samples ``(N, D)``."""
        check_entries_of(y, "y")
        if y is not None:  # `validate_data` refuses NaN
            y = check_array(y, dtype=np.float64, ensure_2d=False, ensure_all_finite="allow-nan", input_name="y")
        X, _ = self._samples(X, None if y is None else np.nan_to_num(y), multi_output=True)
        x = self._graph(X)
        module = methods.HarmonicFunction(*self._rule(), unreached=self.unreached)
        self._keep(module.fit(x, targets=torch.tensor(y, device=self.device)))
        return self

    @torch.no_grad()
    def predict(self, X: Any) -> Array:
        """Return the numbers ``(Q,)`` or ``(Q, m)`` of samples ``(Q, D)``."""
        check_is_fitted(self)
        return self._of_new(self.module_.predict, X, as_numpy(self.module_.predict()))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
