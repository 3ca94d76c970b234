"""How good an embedding is: neighbours' labels and neighbourhoods kept."""

from __future__ import annotations

from typing import Any

from sklearn.manifold import trustworthiness
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from experiments.data import Split
from torch_lapeig import LaplacianEigenmaps

NEIGHBORS = 5


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
