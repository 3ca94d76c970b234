"""Locally linear embedding: weights, errors minimised, closed groups, factors."""

import pytest
import torch

from problems import points, subspace_angle, surface
from torch_lapeig import KNN, LLE, GraphWarning
from torch_lapeig.eigen import Eigh
from torch_lapeig.graph import nearest_neighbors
from torch_lapeig.methods.lle import reconstruction_weights


def test_lle_reconstructs_from_neighbours():
    """Weights sum to 1, do not change under rigid motions and scaling, and rebuild points inside a simplex."""
    x = points(50, 2)
    indices = torch.cdist(x, x).argsort(1)[:, 1:6]
    w = reconstruction_weights(x, x, indices, 1e-9)
    torch.testing.assert_close(w.sum(1), torch.ones(50, dtype=x.dtype))
    torch.testing.assert_close((w[..., None] * x[indices]).sum(1), x, atol=1e-6, rtol=0)
    moved = 7 * x @ torch.linalg.qr(points(2, 2, seed=5))[0] + 3
    once, again = (reconstruction_weights(given, given, indices, 1e-3) for given in (x, moved))
    torch.testing.assert_close(again, once)


@pytest.mark.parametrize("n", [150, 600])
def test_lle_embedding_minimises_the_reconstruction_error(n):
    """Both with `Eigh` and, above, with sparse factors: eigenvectors of the dense (I − W)ᵀ(I − W)."""
    x = surface(n)
    module = LLE(3, KNN(8)).fit(x)
    found = torch.cdist(x, x).fill_diagonal_(torch.inf).topk(8, largest=False).indices
    w = torch.zeros(n, n, dtype=x.dtype).scatter_(1, found, reconstruction_weights(x, x, found, 1e-3))
    residual = torch.eye(n, dtype=x.dtype) - w
    values, vectors = torch.linalg.eigh(residual.T @ residual)
    y = module.embedding_
    torch.testing.assert_close(y.T @ y, torch.eye(3, dtype=x.dtype), atol=1e-9, rtol=0)
    torch.testing.assert_close(y.sum(0), torch.zeros(3, dtype=x.dtype), atol=1e-9, rtol=0)
    torch.testing.assert_close(module.eigenvalues_, values[1:4], atol=1e-13, rtol=1e-5)
    assert subspace_angle(vectors[:, 1:4], y) < 1e-5


# Points, neighbours, and how many groups of points have all their neighbours among themselves.
CLOSED = {
    "far parts": (torch.cat([surface(20), surface(20, seed=1) + 100]), 5, 2),
    "copies": (torch.cat([points(60, 3), points(2, 3, seed=1).repeat_interleave(9, 0)]), 8, 2),
    "every point three times": (points(20, 3).repeat_interleave(3, 0), 8, None),
    "a point between two parts": (torch.tensor([0, 1, 2, 5, 8.5, 9.5, 10.5]).double()[:, None], 2, 2),
}


@pytest.mark.parametrize("case", CLOSED)
def test_closed_groups_of_neighbours_warn_everywhere(case):
    """Each makes one zero eigenvalue, counted here by a dense solve; of far parts the column tells them apart."""
    x, k, groups = CLOSED[case]
    found = nearest_neighbors(x, k).indices
    w = torch.zeros(len(x), len(x), dtype=x.dtype).scatter_(1, found, reconstruction_weights(x, x, found, 1e-3))
    values = torch.linalg.eigvalsh((torch.eye(len(x), dtype=x.dtype) - w).T @ (torch.eye(len(x), dtype=x.dtype) - w))
    zeros = int((values < 1e-13).sum()) - 1
    assert zeros > 0
    assert groups in (zeros + 1, None)
    module, message = LLE(1, KNN(k)), f"^{zeros} eigenvalues after"
    for call in (module.fit, module, lambda x: module(x[None]), lambda x: module.out_of_sample(x, x[:1])):
        with pytest.warns(GraphWarning, match=message):
            call(x)
    if case == "far parts":
        assert torch.equal(module.embedding_[:20, 0] > 0, (module.embedding_[0, 0] > 0).expand(20))


def test_zero_eigenvalues_of_a_plane_warn():
    """With next to no regularisation the coordinates of a plane are null vectors, without closed groups."""
    plane = torch.nn.functional.pad(points(80, 2), (0, 1))
    with pytest.warns(GraphWarning, match="^2 eigenvalues after"):
        LLE(3, KNN(8), reg=1e-10)(plane)
    LLE(3, KNN(8))(plane)


def test_factors_need_few_iterations_and_serve_the_gradient():
    x = surface(700).requires_grad_()
    module = LLE(2, KNN(8))
    module(x).square().sum(1)[:5].sum().backward()
    dense = surface(700).requires_grad_()
    LLE(2, KNN(8), solve=Eigh())(dense).square().sum(1)[:5].sum().backward()
    torch.testing.assert_close(x.grad, dense.grad, atol=1e-4 * float(dense.grad.abs().max()), rtol=0)
    (pairs,) = module.embed(dense.detach()).pairs
    assert pairs.iterations <= 25  # one space, of 20 solves in C and 21 in torch
    assert pairs.values[0] == 0


def test_neighbours_by_angle():
    """The points scaled to length 1 are rebuilt from each other; one of a training point's direction is that point."""
    x = surface(60) + torch.tensor([1.0, 2.0, 3.0])
    module = LLE(2, KNN(8, metric="cosine")).fit(x)
    assert subspace_angle(LLE(2, KNN(8))(x / x.norm(dim=1, keepdim=True)), module.embedding_) < 1e-5
    torch.testing.assert_close(module.transform(x), module.embedding_)
    torch.testing.assert_close(module.transform(2 * x), module.embedding_)
