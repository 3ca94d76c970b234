"""Kernel principal components: feature space, kernels of your own."""

import pytest
import torch

from problems import Gaussian, distances, points, surface
from torch_lapeig import KernelPCA

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
