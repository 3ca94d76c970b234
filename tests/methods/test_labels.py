"""From rows to labels: the definitions, scikit-learn's own functions, and what new rows get."""

import numpy as np
import pytest
import torch
from sklearn.cluster import _spectral as theirs

from problems import every, points, polygon
from torch_lapeig import KNN, HeatKernel, SpectralClustering
from torch_lapeig.methods.assignment import cluster_qr, discretize

both = pytest.mark.parametrize("k", [1, 2, 5, 12])


def rows_of_clusters(k, *, noise=0.3, n=40, dtype=torch.float64, spread=3.0):
    """Rows about k orthogonal directions, of any length, in any basis."""
    basis = torch.linalg.qr(points(k, k, seed=k))[0]
    lengths = points(n * k, 1, seed=1).exp().clamp(1 / spread, spread)
    label = torch.arange(k).repeat(n)
    return (lengths * (basis[label] + noise / k**0.5 * points(n * k, k, seed=2))).to(dtype), label


@both
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_labels_equal_scikit_learn(k, noise):
    rows, _ = rows_of_clusters(k, noise=noise)
    np.testing.assert_array_equal(cluster_qr(rows)[0], theirs.cluster_qr(rows.numpy()))
    if k == 12 and noise > 0.3:  # some axes begin without any row: the rotation next to the partition is one of many
        return
    for seed in range(3):
        ours = discretize(rows, np.random.RandomState(seed))[0]
        np.testing.assert_array_equal(ours, theirs.discretize(rows.numpy(), random_state=seed))


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@every(assign_labels=["kmeans", "cluster_qr", "discretize"], dtype=[torch.float32, torch.float64])
def test_points_between_two_clusters_get_their_labels_again(assign_labels, dtype):
    """Points of regular polygons lie exactly between clusters: round-off of new rows does not decide their labels."""
    for n in (8, 12, 16, 22, 30, 36):
        x = polygon(n).to(dtype)
        for variant in ("njw", "shi_malik"):
            options = {"assign_labels": assign_labels, "variant": variant, "n_init": 2}
            module = SpectralClustering(3, KNN(4), HeatKernel(0.5), **options).fit(x)
            assert torch.equal(module.predict(x), module.labels_)
            assert torch.equal(torch.cat([module.predict(part) for part in x.split(3)]), module.labels_)
