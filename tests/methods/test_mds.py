"""Classical scaling: distances of old and new points, distances that are given, peers."""

import torch
from sklearn.decomposition import KernelPCA as PeerKernelPCA

from problems import distances, points, subspace_angle, swiss_roll
from torch_lapeig import KNN, LLE, MDS, Isomap, KernelPCA, Precomputed


def test_mds_reproduces_euclidean_distances_of_old_and_new_points():
    x, new = points(40, 3) + 5, points(9, 3, seed=1)
    module = MDS(3).fit(x)
    torch.testing.assert_close(distances(module.embedding_), distances(x))
    torch.testing.assert_close(torch.cdist(module.transform(new), module.embedding_), torch.cdist(new, x))
    torch.testing.assert_close(module.eigenvalues_, torch.linalg.svdvals(x - x.mean(0)).square())


def test_mds_of_given_distances():
    x, new = points(30, 3), points(5, 3, seed=1)
    given = MDS(3, metric=Precomputed("distance")).fit(distances(x))
    torch.testing.assert_close(given.embedding_, MDS(3)(x))
    torch.testing.assert_close(given.transform(torch.cdist(new, x)), MDS(3).out_of_sample(x, new)[1])


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


def test_gradient_to_given_distances_and_second_derivatives():
    d = distances(points(10, 3)) + 1 - 0.99 * torch.eye(10)  # away from zero, next to which differences are negative
    module = MDS(2, metric=Precomputed("distance"))
    assert torch.autograd.gradcheck(lambda d: distances(module((d + d.mT) / 2))[:4], d.requires_grad_())
    x = points(8, 3).requires_grad_()
    for module in (MDS(2), KernelPCA(2), LLE(2, KNN(4)), Isomap(2, KNN(4))):
        assert torch.autograd.gradgradcheck(lambda x, m=module: m(x).square().sum(1)[:3], x), module


def test_agrees_with_scikit_learn():
    """Scaling of Euclidean distances is linear kernel PCA: both are PCA."""
    x = swiss_roll(600)
    ours, theirs = MDS(2)(x), torch.from_numpy(PeerKernelPCA(2).fit_transform(x.numpy()))
    assert subspace_angle(torch.linalg.qr(ours)[0], torch.linalg.qr(theirs)[0]) < 1e-5
    torch.testing.assert_close(ours.norm(dim=0), theirs.norm(dim=0))
