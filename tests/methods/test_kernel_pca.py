"""Kernel principal components: feature space, kernels of your own, peers."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import KernelPCA as PeerKernelPCA

from problems import Gaussian, distances, points, subspace_angle, surface, swiss_roll
from torch_lapeig import MDS, KernelPCA

KERNELS = {
    "rbf": lambda x, y: (-0.1 * torch.cdist(x, y).square()).exp(),
    "linear": lambda x, y: x @ y.mT,
    "poly": lambda x, y: (0.1 * x @ y.mT + 1).square(),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_pca_is_pca_in_feature_space(kernel):
    """With all components squared distances are K(x, x) − 2 K(x, y) + K(y, y), those of the feature space."""
    x, new = points(8, 9), points(4, 9, seed=1)
    module = KernelPCA(7, kernel, gamma=0.1, degree=2)
    k = KERNELS[kernel](x, x)
    expected = k.diagonal()[:, None] + k.diagonal() - 2 * k
    y = module.fit(x).embedding_
    torch.testing.assert_close(distances(y).square(), expected, atol=1e-9, rtol=1e-7)
    # New points by inner products with the principal axes Σ_i α_i φ(x_i), φ centred (Schölkopf, Smola & Müller 1998).
    row = KERNELS[kernel](new, x)
    mean = k.mean(0)
    axes = y / module.eigenvalues_
    torch.testing.assert_close(module.transform(new), (row - mean - row.mean(1, keepdim=True) + mean.mean()) @ axes)


def test_linear_kernel_pca_is_mds():
    x, new = points(30, 4), points(6, 4, seed=1)
    torch.testing.assert_close(KernelPCA(3, "linear").out_of_sample(x, new)[1], MDS(3).out_of_sample(x, new)[1])


def test_new_points_of_kernel_pca_agree_with_scikit_learn():
    x, new = swiss_roll(200), swiss_roll(20, seed=1)
    theirs = PeerKernelPCA(3, kernel="rbf", gamma=0.05).fit(x.numpy())
    ours = KernelPCA(3, gamma=0.05).fit(x)
    np.testing.assert_allclose(ours.transform(new).abs(), np.abs(theirs.transform(new.numpy())), atol=1e-8)


def test_gradient_to_kernel_parameters():
    kernel = Gaussian()
    module, x, new = KernelPCA(2, kernel), surface(20), surface(4, seed=1)

    def of(log_gamma):
        with torch.no_grad():
            kernel.log_gamma.copy_(log_gamma)
        return float(module.out_of_sample(x, new)[1].detach().square().sum())

    here, step = float(kernel.log_gamma.detach()), 1e-5
    slope = (of(here + step) - of(here - step)) / (2 * step)
    of(here)
    module.out_of_sample(x, new)[1].square().sum().backward()
    assert float(kernel.log_gamma.grad) == pytest.approx(slope, rel=1e-6)
    assert "Gaussian" in repr(module)


PEERS = {"rbf": {"gamma": 0.05}, "poly": {"gamma": 0.1, "degree": 2, "coef0": 0.5}, "linear": {}}


@pytest.mark.parametrize(("kernel", "options"), PEERS.items(), ids=PEERS.keys())
def test_agrees_with_scikit_learn(kernel, options):
    """Kernels have their names, too."""
    x = swiss_roll(600)
    ours = KernelPCA(3, kernel, **options)(x)
    theirs = torch.from_numpy(PeerKernelPCA(3, kernel=kernel, **options).fit_transform(x.numpy()))
    assert subspace_angle(torch.linalg.qr(ours)[0], torch.linalg.qr(theirs)[0]) < 1e-5
    torch.testing.assert_close(ours.norm(dim=0), theirs.norm(dim=0))


@pytest.mark.parametrize("method", [MDS(2), KernelPCA(2), KernelPCA(2, "linear")], ids=["MDS", "rbf", "linear"])
def test_gradients_at_equal_eigenvalues(method):
    """On a circle both columns have one eigenvalue: Y Yᵀ = V Λ Vᵀ and its gradient depend on no basis."""
    angle = torch.arange(8, dtype=torch.float64) * torch.pi / 4
    circle = torch.stack([angle.cos(), angle.sin()], 1).requires_grad_()

    def products(x):
        y = method(x)
        return y @ y.mT

    assert torch.autograd.gradcheck(products, circle, atol=1e-7)
    y = method(circle).detach()
    torch.testing.assert_close(y.mT @ y, torch.diag((y.mT @ y).diagonal()), atol=1e-12, rtol=0)
