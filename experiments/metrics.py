"""How good an embedding is: neighbours' labels and neighbourhoods kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t
from sklearn.cluster import KMeans
from sklearn.manifold import trustworthiness
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from experiments.data import Split
from torch_lapeig import LaplacianEigenmaps

NEIGHBORS = 5
Numbers = NDArray[Any]


def scores(split: Split, inputs: Split, module: LaplacianEigenmaps) -> dict[str, Any]:
    """Scores of a fitted module.

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
        "trustworthiness_train": float(trustworthiness(split.train.numpy(), train, n_neighbors=NEIGHBORS)),
        "trustworthiness_heldout": float(trustworthiness(split.heldout.numpy(), heldout, n_neighbors=NEIGHBORS)),
        "eigenvalues": module.eigenvalues_.tolist(),
        "eigengap": float(module.gap_),
        "largest_residual": float(module.residuals_.max()),
    }


def two_means_accuracy(y: Numbers, second: NDArray[np.bool_]) -> float:
    """Share of points ``(N, d)`` that 2-means puts with their class, under the better naming of the clusters."""
    clusters = KMeans(2, n_init=10, random_state=0).fit_predict(y) == 1
    agreement = float((clusters == second).mean())
    return max(agreement, 1 - agreement)


def neighbour_agreement(y: Numbers, classes: list[str], neighbors: int = NEIGHBORS, apart: int = 0) -> dict[str, float]:
    """How often points and their nearest neighbours in ``y`` ``(N, d)`` are of one class.

    Args:
        y: an embedding. classes: of its rows.
        neighbors: k.
        apart: rows of index i − apart to i + apart are not counted as neighbours of row i (frames that overlap).

    Returns:
        ``share``: of the k nearest that have the point's class, averaged over points; ``majority``: of points whose
        class is that of most of the k nearest (leave-one-out k-NN accuracy, the nearer class where there is a tie).
    """
    numbers = np.unique(classes, return_inverse=True)[1]
    found = NearestNeighbors(n_neighbors=neighbors + 2 * apart).fit(y).kneighbors(return_distance=False)
    allowed = np.abs(found - np.arange(len(y))[:, None]) > apart
    nearest = np.stack([row[keep][:neighbors] for row, keep in zip(found, allowed, strict=True)])
    labels = numbers[nearest]
    votes = (labels[:, :, None] == labels[:, None, :]).sum(2)
    winner = labels[np.arange(len(y)), votes.argmax(1)]
    return {"share": float((labels == numbers[:, None]).mean()), "majority": float((winner == numbers).mean())}


def mean_and_interval(values: Numbers | list[float]) -> dict[str, float | None]:
    """``mean``, and half the width of its 95 % ``interval`` by Student's t: None for one value."""
    n = len(values)
    half = float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else None
    return {"mean": float(np.mean(values)), "interval": half}


def plus_minus(value: dict[str, Any], digits: int = 2, factor: float = 1, sign: str = "") -> str:
    """Mean ± half the width of its interval, if there is one."""
    mean = f"{factor * value['mean']:{sign}.{digits}f}"
    return mean if value["interval"] is None else f"{mean} ± {factor * value['interval']:.{digits}f}"
