"""How good an embedding is: neighbours' labels and neighbourhoods kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform
from scipy.stats import t
from sklearn.cluster import KMeans
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from experiments.data import Split
from torch_lapeig import LaplacianEigenmaps

NEIGHBORS = 5
Numbers = NDArray[Any]


def scores(split: Split, inputs: Split, module: LaplacianEigenmaps) -> dict[str, Any]:
    """Return scores of a fitted module.

    Args:
        split: the data as given: neighbourhoods are compared with these.
        inputs: what the module was fitted on, the data or a map of it.
        module: fitted on ``inputs.train``.

    Returns:
        ``knn_train``: 10-fold cross-validated 5-NN accuracy in the embedding of the training part; ``knn_heldout``:
        accuracy of its 5-NN classifier on the held-out part embedded by Nyström; trustworthiness (Venna & Kaski 2001)
        of both; eigenvalues, the gap after the last, and the largest residual.
    """
    train, heldout = module.embedding_.numpy(), module.transform(inputs.heldout).detach().numpy()
    classifier = KNeighborsClassifier(NEIGHBORS)
    return {
        "knn_train": float(cross_val_score(classifier, train, split.train_labels.numpy(), cv=10).mean()),
        "knn_heldout": float(
            classifier.fit(train, split.train_labels.numpy()).score(heldout, split.heldout_labels.numpy())
        ),
        "trustworthiness_train": float(trustworthiness(ranks(split.train.numpy()), train).mean()),
        "trustworthiness_heldout": float(trustworthiness(ranks(split.heldout.numpy()), heldout).mean()),
        "eigenvalues": module.eigenvalues_.tolist(),
        "eigengap": float(module.gap_),
        "largest_residual": float(module.residuals_.max()),
    }


def two_means_accuracy(y: Numbers, second: NDArray[np.bool_]) -> float:
    """Return share of points ``(N, d)`` that 2-means puts with their class, under the better naming of the clusters."""
    clusters = KMeans(2, n_init=10, random_state=0).fit_predict(y) == 1
    agreement = float((clusters == second).mean())
    return max(agreement, 1 - agreement)


def ranks(x: Numbers) -> NDArray[np.int64]:
    """Return ``(N, N)``: which number j is among the neighbours of i, 1 for the nearest; 0 for i itself."""
    distances = squareform(pdist(x))
    np.fill_diagonal(distances, -1)
    place = np.empty(distances.shape, np.int64)
    np.put_along_axis(place, distances.argsort(1), np.arange(len(x))[None], 1)
    return place


def trustworthiness(rank: NDArray[np.int64], y: Numbers, neighbors: int = NEIGHBORS) -> Numbers:
    """Return the contribution of each point ``(N,)`` to the trustworthiness of a map ``y`` ``(N, d)``.

    Venna & Kaski, *Neighborhood preservation in nonlinear projection methods* (2001): neighbours in the map that are
    none in the data cost the places that they are too far down there.

    Args:
        rank: `ranks` of the data.
        y: the map.
        neighbors: k.
    """
    n, k = len(y), neighbors
    found = NearestNeighbors(n_neighbors=k).fit(y).kneighbors(return_distance=False)
    excess = np.maximum(np.take_along_axis(rank, found, 1) - k, 0).sum(1)
    return np.asarray(1 - 2 * excess / (k * (2 * n - 3 * k - 1)))


def mean_and_interval(values: Numbers | list[float], among: int = 1) -> dict[str, Any]:
    """Return ``mean``, half the width of its 95 % ``interval`` by Student's t (None for one), and all ``seeds``.

    Args:
        values: one for each seed.
        among: number of intervals of which all shall hold at once in 95 % (Bonferroni).
    """
    n = len(values)
    half = float(t.ppf(1 - 0.025 / among, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else None
    return {"mean": float(np.mean(values)), "interval": half, "seeds": [float(value) for value in values]}


def plus_minus(value: dict[str, Any], digits: int = 2, factor: float = 1, sign: str = "") -> str:
    """Return mean ± half the width of its interval, if there is one."""
    mean = f"{factor * value['mean']:{sign}.{digits}f}"
    return mean if value["interval"] is None else f"{mean} ± {factor * value['interval']:.{digits}f}"
