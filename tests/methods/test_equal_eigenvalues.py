"""Gradients through new points where eigenvalues are equal: losses that depend on no basis have them."""

import pytest
import torch

import torch_lapeig as tl
from problems import check_derivatives, covering, five_points, points, polygon

N = 12
ALL, HEAT = tl.KNN(N - 1), tl.HeatKernel(2.0)
METHODS = {
    "MDS": tl.MDS(2),
    "KernelPCA": tl.KernelPCA(2, gamma=0.5),
    "KernelPCA, linear": tl.KernelPCA(2, "linear"),
    "Isomap": tl.Isomap(2, ALL),
    "Isomap, landmarks": tl.Isomap(2, ALL, landmarks=torch.arange(0, N, 2)),
    "LaplacianEigenmaps": tl.LaplacianEigenmaps(2, ALL, HEAT),
    "LaplacianEigenmaps, all columns": tl.LaplacianEigenmaps(3, ALL, HEAT, drop_trivial=False),
    "LaplacianEigenmaps, diffusion": tl.LaplacianEigenmaps(2, ALL, HEAT, diffusion=0.5),
    "LaplacianEigenmaps, a step of diffusion": tl.LaplacianEigenmaps(2, ALL, HEAT, diffusion=1),
    "LaplacianEigenmaps, orthonormal": tl.LaplacianEigenmaps(2, ALL, HEAT, scale="orthonormal"),
    "LaplacianEigenmaps, unnormalized": tl.LaplacianEigenmaps(2, ALL, HEAT, normalization="unnormalized"),
    "LaplacianEigenmaps, improved": tl.LaplacianEigenmaps.improved(2, ALL, 2.0),
    "SpectralClustering": tl.SpectralClustering(3, ALL, HEAT),
    "SpectralClustering, Shi–Malik": tl.SpectralClustering(3, ALL, HEAT, variant="shi_malik"),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def loss_of(method, *, new=5, n=N):
    """Return a function of points and new points that is the same in any basis."""
    aim, own = points(new, n), points(n, n, seed=1)

    def loss(x, x_new):
        y, y_new = method.out_of_sample(x, x_new)
        return (y_new @ y.mT * aim).sum((-2, -1)) + (y @ y.mT * own).sum((-2, -1))

    return loss


@every_method
def test_gradients_to_points_and_new_points(method):
    check_derivatives(loss_of(method), polygon(N), 0.5 * points(5, 2), first=1e-6, fast_mode=True)


@covering(1, method=METHODS, stretch=[1e-14, 1e-9, 1e-6])
def test_nearly_equal_eigenvalues(method, stretch):
    x, x_new = polygon(N) * torch.tensor([1 + stretch, 1.0], dtype=torch.float64), 0.5 * points(5, 2)
    x = x.requires_grad_()
    (gradient,), direction = torch.autograd.grad(loss_of(method)(x, x_new), x), points(N, 2, seed=2)
    expected = five_points(lambda x: loss_of(method)(x, x_new), x, direction)  # of a step that sees no pair
    torch.testing.assert_close((gradient * direction).sum(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("normalization", ["random_walk", "unnormalized"])
def test_components_on_their_own(normalization):
    x = torch.cat([polygon(N), 100 + polygon(9)]).requires_grad_()
    x_new = torch.cat([0.5 * points(3, 2), 100 + 0.5 * points(3, 2, seed=3)])
    method = tl.LaplacianEigenmaps(2, tl.KNN(8), HEAT, normalization=normalization, components="separate")
    aim = torch.block_diag(points(3, 12), points(3, 9))  # each has a basis of its own

    def loss(x):
        y, y_new = method.out_of_sample(x, x_new)
        return (y_new @ y.mT * aim).sum()

    assert torch.autograd.gradcheck(loss, (x,), fast_mode=True, atol=1e-6)


def test_regression():
    labels = torch.full((N,), -1)
    labels[:3] = torch.tensor([0, 1, 1])
    x, x_new, aim = polygon(N).requires_grad_(), (0.5 * points(5, 2)).requires_grad_(), points(5, 2, seed=4)

    def loss(x, x_new):
        return (tl.EigenmapsRegression(3, ALL, HEAT).out_of_sample(x, labels, x_new)[1] * aim).sum()

    assert torch.autograd.gradcheck(loss, (x, x_new), fast_mode=True, atol=1e-6)
