"""Classical scaling: distances of old and new points, distances that are not Euclidean, digits."""

import pytest
import torch

from problems import distances, points
from torch_lapeig import MDS, KernelPCA, Precomputed


def test_mds_reproduces_euclidean_distances_of_old_and_new_points():
    x, new = points(40, 3) + 5, points(9, 3, seed=1)
    module = MDS(3).fit(x)
    torch.testing.assert_close(distances(module.embedding_), distances(x))
    torch.testing.assert_close(torch.cdist(module.transform(new), module.embedding_), torch.cdist(new, x))
    torch.testing.assert_close(module.eigenvalues_, torch.linalg.svdvals(x - x.mean(0)).square())


def test_distances_that_are_not_euclidean():
    """On a cycle graph's distances: the largest eigenpairs are right though a third of the spectrum is negative."""
    steps = torch.arange(12)
    d = torch.minimum((steps[:, None] - steps) % 12, (steps - steps[:, None]) % 12).double()
    j = torch.eye(12, dtype=torch.float64) - 1 / 12
    exact = torch.linalg.eigvalsh(-0.5 * j @ d.square() @ j).flip(0)
    assert (exact < -1e-9).sum() >= 4
    module = MDS(2, metric=Precomputed("distance")).fit(d)
    torch.testing.assert_close(module.eigenvalues_, exact[:2])
    torch.testing.assert_close(module.transform(d), module.embedding_)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", [MDS(2), KernelPCA(2, "linear")], ids=["MDS", "KernelPCA"])
def test_digits_of_points_away_from_the_origin_and_of_far_new_ones(method, dtype):
    """A rigid map, which it is in the plane, keeps lengths, whatever their size and wherever the origin is."""
    x, eps = points(30, 2, dtype=dtype), torch.finfo(dtype).eps
    moved = (1e3 * x).round() / 1e3 + 2.0**9
    y = method(moved)
    torch.testing.assert_close(distances(y), distances(moved - moved.mean(0)), atol=2e3 * eps, rtol=2e3 * eps)
    method = method.fit(x)
    for size in (1e2, 1e5, 1e10, 1e15):
        far = size * points(5, 2, dtype=dtype, seed=1)
        length = (far - x.mean(0)).norm(dim=1)
        torch.testing.assert_close(method.transform(far).norm(dim=1), length, atol=0, rtol=100 * eps)
