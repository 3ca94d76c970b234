"""Base of all estimators: checked input, the fitted module, its state as NumPy arrays."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics.pairwise import KERNEL_PARAMS
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from torch_lapeig.eigen import Solve, Solver
from torch_lapeig.graph.graph import check_entries
from torch_lapeig.support import checks
from torch_lapeig.support.fitted import FittedModule

Own = TypeVar("Own", bound="Embedding")

# Least values of parameters, checked even if a fit does not use them: counts, and other numbers.
COUNTS = {"n_neighbors": 1, "max_iter": 0, "n_jobs": -(2**31)}
NUMBERS = {"gamma": 0.0, "degree": 0.0, "coef0": -math.inf, "tol": 0.0}
GIVEN = ("precomputed", "precomputed_nearest_neighbors")
NEIGHBORS = ("nearest_neighbors", "precomputed_nearest_neighbors")
# A parameter on which it depends whether another one has an effect, whether it has with a value, and such a value.
EFFECTS: list[tuple[str, str, Callable[[Any], bool], str]] = [
    ("affinity", "n_neighbors", NEIGHBORS.__contains__, '"nearest_neighbors"'),
    ("kernel", "n_neighbors", ("knn",).__contains__, '"knn"'),
    ("affinity", "kernel_params", callable, "a function"),
    ("assign_labels", "n_init", ("kmeans",).__contains__, '"kmeans"'),
    ("metric", "p", ("minkowski",).__contains__, '"minkowski"'),
    ("metric", "metric_params", lambda metric: metric != "precomputed", '"euclidean"'),
    *(
        (mode, name, [kernel for kernel, taken in KERNEL_PARAMS.items() if name in taken].__contains__, kernel)
        for mode in ("affinity", "kernel")
        for name, kernel in (("gamma", '"rbf"'), ("degree", '"poly"'), ("coef0", '"poly"'))
    ),
]


class Estimator(BaseEstimator):  # type: ignore[misc]
    """Estimator that checks its input, calls a module, and has the module's state as NumPy arrays."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("embedding_", "eigenvalues_", "residuals_")  # the first by samples
    SPARSE: ClassVar[str | bool] = False  # accepted format of SciPy for X
    device: str | torch.device
    module_: Any
    embedding_: NDArray[Any]

    @property
    def _pairwise(self) -> bool:
        """Return whether X is ``(N, N)``, of pairs of samples."""
        return any(getattr(self, mode, None) in GIVEN for mode in ("affinity", "kernel", "metric"))

    def _samples(self, X: Any, *y: Any, **more: Any) -> Any:
        """Return training samples, or a matrix of their pairs, checked; with labels ``y`` if they are given."""
        check_shared(self)
        check_entries_of(X)
        more |= {"dtype": [np.float64, np.float32], "order": "C", "accept_sparse": self.SPARSE}
        return validate_data(self, X, *y, ensure_min_samples=2, **more)

    def _training(self, X: Any) -> Any:
        return torch.tensor(self._samples(X), device=self.device)  # a copy: torch does not accept read-only memory

    def _new_samples(self, X: Any) -> Any:
        check_entries_of(X)
        return validate_data(
            self, X, dtype=getattr(self, self.ARRAYS[0]).dtype, order="C", accept_sparse=self.SPARSE, reset=False
        )

    def _of_new(self, function: Callable[[Tensor], Tensor], X: Any, fitted: NDArray[Any]) -> NDArray[Any]:
        """Return ``function`` of new samples, on the module's device; the ``fitted`` values for training samples."""
        return self._rows(function, self._new_samples(X))

    def _rows(self, function: Callable[[Tensor], Tensor], X: Any) -> NDArray[Any]:
        return as_numpy(function(torch.tensor(X.toarray() if issparse(X) else X, device=self._device)))

    @property
    def _device(self) -> torch.device:
        return getattr(self.module_, self.ARRAYS[0]).device  # type: ignore[no-any-return]

    def _keep(self, module: FittedModule) -> None:
        self.module_ = module
        for name in self.ARRAYS:
            setattr(self, name, as_numpy(getattr(module, name)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.input_tags.pairwise = bool(self.SPARSE), self._pairwise
        return tags


def check_entries_of(X: Any, name: str = "X") -> None:
    """Raise ValueError for what scikit-learn would take unchecked: masked entries, sparse entries out of the matrix."""
    if np.ma.is_masked(X):
        raise ValueError(f"{name} must have no masked entries, got {np.ma.count_masked(X)}; fill them or drop rows")
    if issparse(X) and len(X.shape) == 2:
        check_entries(X, name)


@dataclass(eq=False, repr=False)
class Embedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):  # type: ignore[misc]
    """Transformer that embeds, with ``transform`` for new samples."""

    _: KW_ONLY
    n_components: Any = 2
    solve: Solve | Solver | None = None
    device: str | torch.device = "cpu"

    def fit(self: Own, X: Any, y: Any = None) -> Own:
        """Embed samples ``(N, D)``, or a precomputed matrix of their pairs ``(N, N)``; ``y`` is ignored."""
        x = self._training(X)
        self._keep(self._module(self._columns(x), x).fit(x))
        return self

    def fit_transform(self, X: Any, y: Any = None) -> NDArray[Any]:
        """Return ``embedding_`` of ``fit(X)``."""
        return self.fit(X).embedding_

    @torch.no_grad()  # a kernel may have parameters
    def transform(self, X: Any) -> NDArray[Any]:
        """Return the embedding ``(Q, n_components)`` of new samples ``(Q, D)``, or of their pairs with fitted samples.

        A training sample gets its row of ``embedding_``. The result has the dtype of the training samples.
        """
        check_is_fitted(self)
        return self._of_new(self.module_.transform, X, self.embedding_)

    def _columns(self, x: Any) -> int:
        return check_below(self.n_components, "n_components", x.shape[0])

    @abstractmethod
    def _module(self, n_components: int, x: Any) -> Any:
        """Return the module for these training samples."""

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_.shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def check_below(value: Any, name: str, n_samples: int, more: int = 0) -> int:
    """Return the integer above ``more`` and below the number of samples plus ``more``; raise for anything else."""
    count = checks.check_count(value, name, 1 + more)
    if count >= n_samples + more:
        limit = "at most" if more else "smaller than"
        raise ValueError(f"{name} must be {limit} the number of samples, got {name}={count} with n_samples={n_samples}")
    return count


def check_shared(estimator: Any) -> None:
    """Check the parameters that estimators share, including those that this fit does not use; warn of those given."""
    # These are no error, because grid searches, and calls written for scikit-learn's estimators, have them.
    for name, least in COUNTS.items():
        if (value := getattr(estimator, name, None)) is not None:
            checks.check_count(value, name, least)
    for name, lowest in NUMBERS.items():
        if (number := getattr(estimator, name, None)) is not None:
            checks.check_number(number, name, lowest)
    defaults = {field.name: field.default for field in fields(estimator)}
    for mode, name, has_effect, instead in EFFECTS:
        if {mode, name} <= defaults.keys() and not has_effect(chosen := getattr(estimator, mode)):
            given, other = getattr(estimator, name), f"use {mode}={instead}, or leave {name} out"
            if given is not defaults[name] and given != defaults[name]:
                got = f"{name}={checks.describe(given)} with {mode}={checks.describe(chosen)}"
                checks.warn(f"{name} has no effect in this fit, got {got}; {other}", UserWarning)


def as_numpy(value: Tensor) -> NDArray[Any]:
    """Return a tensor as an array."""
    return value.cpu().numpy()
