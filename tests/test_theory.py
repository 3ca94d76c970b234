"""Statements of docs/theory.md that no other test checks."""

import pytest
import torch

from problems import polygon, surface
from torch_lapeig import KNN, LLE, Graph, Laplacian, SimpleWeights
from torch_lapeig.graph import nearest_neighbors
from torch_lapeig.methods.lle import reconstruction_weights


def rebuilding(x, k, reg=1e-3):
    indices = nearest_neighbors(x, k).indices
    return torch.zeros(len(x), len(x), dtype=x.dtype).scatter_(1, indices, reconstruction_weights(x, x, indices, reg))


@pytest.mark.parametrize("mu", [3.0, 10.0, 1e4])
def test_the_kernel_of_lle_at_finite_mu(mu):
    x, new = surface(60), surface(7, seed=1)
    w, eye = rebuilding(x, 6), torch.eye(60, dtype=torch.float64)
    kernel = (mu - 1) * eye + (w + w.T - w.T @ w)
    torch.testing.assert_close(kernel, mu * eye - (eye - w).T @ (eye - w))
    model = LLE(2, KNN(6)).fit(x)
    values, vectors = torch.linalg.eigh(kernel)
    at_end = vectors[:, [-2, -3]]
    torch.testing.assert_close(at_end @ at_end.T, model.embedding_ @ model.embedding_.T, atol=1e-6, rtol=0)
    torch.testing.assert_close(mu - values[[-2, -3]], model.eigenvalues_, atol=1e-14 * 60 * mu, rtol=0)
    torch.testing.assert_close(kernel @ at_end / values[[-2, -3]], at_end)  # Nyström's formula at the points
    indices = nearest_neighbors(x, 6, new).indices
    of_new = (mu - 1) * reconstruction_weights(new, x, indices, 1e-3)
    eigenvalue = mu - model.eigenvalues_
    extended = (of_new[..., None] * model.embedding_[indices]).sum(1) / eigenvalue
    factor = 1 + (model.eigenvalues_ - 1) / eigenvalue
    torch.testing.assert_close(extended, factor * model.transform(new))


def test_lle_of_a_line_is_a_quarter_of_the_squared_laplacian():
    x = torch.arange(30, dtype=torch.float64)[:, None]
    residual = torch.eye(30) - rebuilding(x, 2, reg=1e-12)
    laplacian = Laplacian(SimpleWeights()(x, KNN(2, "mutual")(x)), "unnormalized").to_dense()
    inside = slice(4, 26)
    torch.testing.assert_close((residual.T @ residual)[inside], (laplacian @ laplacian / 4)[inside], atol=1e-9, rtol=0)


def test_the_random_walk_laplacian_approaches_that_of_the_circle():
    """(1/t)(I − D⁻¹W) f with exp(−‖x − y‖²/4t): cos has the eigenvalue 1, with a bias of the order of t."""
    x = polygon(2000)
    errors = []
    for t in (0.04, 0.02, 0.01):
        weight = (-torch.cdist(x, x).square() / (4 * t)).exp()
        walk = Laplacian(Graph.from_dense((weight + weight.T) / 2), "random_walk")
        errors.append(float((walk.matmul(x[:, :1])[0, 0] / t - 1).abs()))
    assert errors[0] < 0.1
    assert errors[1] < 0.7 * errors[0]
    assert errors[2] < 0.7 * errors[1]
