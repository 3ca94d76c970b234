"""Estimators on a graph; affinities that are given or computed as a matrix, and rows of them for new samples.

The modules search nearest neighbours of dense samples. A diagonal, the affinity of a sample to itself, stays in
``matrix`` and is left out of the graph, which has no self loops.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags, eye, issparse
from sklearn.metrics.pairwise import pairwise_distances, pairwise_kernels
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.validation import check_array
from torch import Tensor

from torch_lapeig.graph import KNN, DensePattern, Graph, Precomputed, SimpleWeights, Weighting
from torch_lapeig.graph.rules import GraphRule
from torch_lapeig.sklearn.base import Estimator, check_entries_of
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import check_dense, rows_of_block

Array = NDArray[Any]
Matrix = Any  # an array or a SciPy sparse array in CSR form
Kernel = Callable[..., Matrix]  # called as kernel(X), or kernel(X, Y=Y) for affinities with other samples

ROUNDOFF_UNITS = 10  # affinities below so many eps of the largest affinity are zero
ASYMMETRY = 1e-5  # maximum relative difference of two directions that counts as round-off, as in scikit-learn


class Affinities(ABC):
    """Affinities ``(N, N)`` of the training samples, symmetric and non-negative, and of new samples with them."""

    def __init__(self, samples: Matrix, matrix: Matrix) -> None:
        self.samples, self.matrix = samples, symmetric(matrix)  # a copy, because the caller may change its samples

    def graph(self, device: str | torch.device) -> Graph:
        """Return the graph of the matrix, without its diagonal."""
        if not issparse(self.matrix):
            weight = torch.tensor(self.matrix, device=device).fill_diagonal_(0)
            # The matrix is checked already; a second check would take as long as the kernel.
            return Graph.trusted(DensePattern((len(weight),)), weight)
        matrix = self.matrix - diags(self.matrix.diagonal())
        return Graph.from_scipy(matrix, torch.float32 if matrix.dtype == np.float32 else torch.float64).to(device)

    @abstractmethod
    def rows(self, X: Any) -> Matrix:
        """Return affinities ``(Q, N)`` of samples that are not among the training samples."""

    def same(self, X: Any) -> Array:
        """Return the first training sample that a sample equals, or −1, int64 ``(Q,)``."""
        return same_rows(X, self.samples)


class OfKernel(Affinities):
    """Affinities by a kernel of samples, or given (None); a new sample that equals a training sample is that one."""

    def __init__(self, X: Matrix, kernel: Kernel | None) -> None:
        self.kernel, n = kernel, X.shape[0]
        if not (issparse(X) or kernel is None):
            what, advice = f"the kernel of {n} samples", "use the graph of nearest neighbours"
            check_dense(n, n, X.itemsize, torch.device("cpu"), what, advice)
        found, name = (X, "X") if kernel is None else (kernel(X), "affinity(X)")
        super().__init__(X.copy(), checked(found, (n, n), X.dtype, name))

    def rows(self, X: Any) -> Matrix:
        """Return the kernel of samples with the training samples, or the rows that are given."""
        if self.kernel is None:
            return checked(X, X.shape, self.matrix.dtype, "X")
        found = self.kernel(X, Y=self.samples.copy())  # which it may change
        shape = (X.shape[0], self.samples.shape[0])
        return checked(found, shape, self.samples.dtype, "affinity(X, Y=training samples)")


class PairwiseKernel:
    """Kernel of scikit-learn, or a function of two samples, with its parameters."""

    def __init__(self, metric: str | Callable[..., float], parameters: Mapping[str, Any], X: Matrix) -> None:
        self.metric, self.parameters = metric, parameters
        # The RBF kernel depends on differences only, and about the mean its expanded square cancels fewer digits.
        self.centre = X.mean(0) if metric == "rbf" and not issparse(X) else 0

    def __call__(self, X: Matrix, Y: Matrix | None = None) -> Matrix:
        """Return affinities of samples, or of samples with others."""
        if not issparse(X):
            X, Y = X - self.centre, None if Y is None else Y - self.centre
        return pairwise_kernels(X, Y, metric=self.metric, filter_params=True, **self.parameters)


class MatrixFunction:
    """Function from samples to their affinities ``(N, N)``, and with ``Y=`` to the affinities with other samples."""

    def __init__(self, function: Callable[..., Matrix], takes_pair: bool = False) -> None:
        self.function, self.takes_pair = function, takes_pair  # function(X, X), as scikit-learn calls it

    def __call__(self, X: Matrix, Y: Matrix | None = None) -> Matrix:
        """Return affinities of samples, or of samples with others."""
        if self.takes_pair and self._takes(X, X):
            return self.function(X, X if Y is None else Y)
        if Y is None:
            return self.function(X)
        if not self._takes(X, Y=Y):
            raise TypeError(
                "affinity must be a function that takes Y, the training samples, to embed new samples: "
                "affinity(X_new, Y=X), got one that does not; add it, or embed all samples at once"
            )
        return self.function(X, Y=Y)

    def _takes(self, *samples: Matrix, **named: Matrix) -> bool:
        """Return whether the function accepts the call; True for a function without a signature."""
        try:
            inspect.signature(self.function).bind(*samples, **named)
        except (TypeError, ValueError) as error:
            return isinstance(error, ValueError)
        return True


class OfDistances(Affinities):
    """Affinities of nearest neighbours by given distances: 1 if each is among the nearest of the other, else ½."""

    def __init__(self, distances: Matrix, n_neighbors: int) -> None:
        n, distances = distances.shape[0], self._checked(distances)
        column, distance = nearest(distances, n_neighbors, np.arange(n))
        itself = bool((column == np.arange(n)[:, None]).any())
        # A new sample has as many other neighbours, and is one of samples whose last neighbour is not nearer.
        self.others, self.reach = n_neighbors - itself, distance[:, -1]
        ends = np.arange(n + 1) * n_neighbors
        chosen = csr_array((np.full(column.size, 1, distances.dtype), column.ravel(), ends), shape=(n, n))
        super().__init__(distances.copy(), 0.5 * (chosen + chosen.T))

    def _checked(self, distances: Matrix) -> Matrix:
        if (low := distances.min()) < 0:
            raise ValueError(f"X must hold distances, which are not negative, got a minimum of {low:.3g}")
        return one_entry_each(distances)

    def rows(self, X: Any) -> Array:
        """Return the two directions of each pair, ½ each."""
        return self._of_distances(self._checked(X))

    def _of_distances(self, distances: Matrix) -> Array:
        q = np.arange(distances.shape[0])[:, None]
        rows = np.zeros(distances.shape, self.matrix.dtype)
        rows[q, nearest(distances, self.others)[0]] = 0.5
        if issparse(distances):
            entries = distances.tocoo()
            reached = entries.data <= self.reach[entries.col]
            rows[entries.row[reached], entries.col[reached]] += 0.5
        else:
            rows[distances <= self.reach] += 0.5
        return rows

    def same(self, X: Any) -> Array:
        """Return the first training sample at distance zero, or with equal distances, or −1."""
        if issparse(X):  # zeros that are stored
            entries = X.tocoo()
            row, column = entries.row[entries.data == 0], entries.col[entries.data == 0]
        else:
            row, column = np.nonzero(X == 0)
        first = np.full(X.shape[0], X.shape[1])
        np.minimum.at(first, row, column)
        return np.where(first < X.shape[1], first, same_rows(X, self.samples))


class OfSparseSamples(OfDistances):
    """Nearest neighbours of sparse samples."""

    def __init__(self, X: Matrix, n_neighbors: int) -> None:
        search = NearestNeighbors(n_neighbors=n_neighbors).fit(X)
        super().__init__(csr_array(search.kneighbors_graph(mode="distance").astype(X.dtype)), n_neighbors)
        self.samples = X.copy()
        self.matrix = csr_array(self.matrix + eye(X.shape[0], dtype=X.dtype))  # each sample is its own neighbour

    def rows(self, X: Any) -> Array:
        """Return the two directions of each pair, ½ each."""
        return self._of_distances(pairwise_distances(X, self.samples))

    same = Affinities.same


class OnGraph(Estimator):
    """Estimator on the graph of nearest neighbours that its module makes, or on a matrix of affinities."""

    weights: Weighting | None
    _affinities: Affinities | None  # None if the module searches the neighbours

    def _from(self, affinities: Affinities | None, X: Any, n_neighbors: int = 0) -> Any:
        """Return the input of the module's fit: samples, or the graph of their affinities."""
        self._affinities, self._n_neighbors = affinities, n_neighbors
        return torch.tensor(X, device=self.device) if affinities is None else affinities.graph(self.device)

    def _rule(self) -> tuple[GraphRule, Weighting | None]:
        if self._affinities is not None:
            return Precomputed("affinity"), None
        return KNN(self._n_neighbors), SimpleWeights() if self.weights is None else copy.deepcopy(self.weights)

    def _check_unweighted(self, given: str, instead: str) -> None:
        if self.weights is not None:
            raise ValueError(f"weights must be None with {given}, which weights the edges itself; use {instead}")

    def _of_new(self, function: Callable[[Tensor], Tensor], X: Any, known: Array) -> Array:
        """Return ``function`` of new samples; the ``known`` values for training samples among them."""
        if self._affinities is None:
            return super()._of_new(function, X, known)
        X = self._new_samples(X)
        same = self._affinities.same(X)
        values, new = known[same], np.flatnonzero(same < 0)
        step = rows_of_block(8 * len(known), self._device)
        for block in np.split(new, range(step, len(new), step)):
            if len(block):
                values[block] = self._rows(function, self._affinities.rows(X[block]))
        return values


def rbf(gamma: Any, X: Matrix) -> PairwiseKernel:
    """Return the kernel exp(−γ ‖x − y‖²), γ checked."""
    return PairwiseKernel("rbf", {"gamma": checks.check_number(gamma, "gamma", 0)}, X)


def checked(matrix: Matrix, shape: tuple[int, int], dtype: Any, name: str) -> Matrix:
    """Return finite affinities, at least 0 but for round-off, of a shape, in CSR form if sparse; refuse others."""
    check_entries_of(matrix, name)
    matrix = check_array(matrix, accept_sparse="csr", dtype=dtype, ensure_min_features=0, input_name=name)
    if matrix.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {matrix.shape}")
    matrix = one_entry_each(matrix)
    low = matrix.min() if min(shape) else 0
    if low < -ROUNDOFF_UNITS * np.finfo(dtype).eps * abs(matrix).max():
        way_out = 'use a kernel that is, such as "rbf", or shift them'
        raise ValueError(f"affinities must be non-negative, got a minimum of {low:.3g} in {name}; {way_out}")
    return matrix.maximum(0) if issparse(matrix) and low < 0 else matrix if low >= 0 else np.maximum(matrix, 0)


def symmetric(matrix: Matrix) -> Matrix:
    """Return the mean of affinities and their transpose; warn if they differ by more than round-off."""
    other = matrix.T.tocsr() if issparse(matrix) else matrix.T
    difference, round_off = abs(matrix - other), ROUNDOFF_UNITS * np.finfo(matrix.dtype).eps * matrix.max()
    if difference.max() > round_off and (difference - ASYMMETRY * (matrix + other)).max() > round_off:
        way = f"(A + A.T) / 2, or of one triangle {'A.maximum(A.T)' if issparse(matrix) else 'numpy.maximum(A, A.T)'}"
        checks.warn(
            f"the affinities are not symmetric: their mean with the transpose is used; give {way}", checks.GraphWarning
        )
    return 0.5 * matrix + 0.5 * other


def nearest(distances: Matrix, k: int, itself: Array | None = None) -> tuple[Array, Array]:
    """Return columns and distances ``(Q, k)`` of the k nearest in each row, ``itself`` first, then ties by column."""
    count = np.diff(distances.indptr) if issparse(distances) else np.full(*distances.shape)
    if len(count) and count.min() < k:
        raise ValueError(
            f"X must hold a distance to n_neighbors={k} samples in every row, got {count.min()} in row {count.argmin()}"
        )
    if not issparse(distances):
        keys = np.array(distances)
        if itself is not None:
            keys[np.arange(len(keys)), itself] = -1
        column = np.argsort(keys, axis=1, kind="stable")[:, :k]
        return column, np.take_along_axis(distances, column, 1)
    row = np.repeat(np.arange(len(count)), count)
    others = np.ones(len(row), bool) if itself is None else distances.indices != itself[row]
    order = np.lexsort((distances.indices, distances.data, others, row))
    chosen = order[distances.indptr[:-1, None] + np.arange(k)]
    return distances.indices[chosen], distances.data[chosen]


def same_rows(X: Matrix, samples: Matrix) -> Array:
    """Return the first of the samples that each row equals, or −1."""
    if issparse(X) != issparse(samples):
        X = csr_array(X) if issparse(samples) else X.toarray()
    first: dict[bytes, int] = {}
    for place, digest in enumerate(_digests(samples)):
        first.setdefault(digest, place)
    return np.array([first.get(digest, -1) for digest in _digests(X)], dtype=np.int64)


def _digests(X: Matrix) -> Iterator[bytes]:
    if issparse(X):
        X = one_entry_each(X)
        X.eliminate_zeros()
        parts = (X.indices.astype(np.int64), X.data)
        rows = (b"".join(part[i:j].tobytes() for part in parts) for i, j in itertools.pairwise(X.indptr))
    else:
        rows = ((row + 0.0).tobytes() for row in X)  # −0 becomes 0
    return (hashlib.sha256(row).digest() for row in rows)


def one_entry_each(matrix: Matrix) -> Matrix:
    """Return a sparse matrix as a copy in CSR form, sorted, copies of an entry summed; an array as it is."""
    if issparse(matrix):
        matrix = csr_array(matrix, copy=True)
        matrix.sum_duplicates()
    return matrix
