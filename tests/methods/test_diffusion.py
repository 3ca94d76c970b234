"""Diffusion maps against the dense formula, the walk's own distances, and an ordinary circle."""

import pytest
import torch

from problems import points
from torch_lapeig import KNN, DiffusionMap, HeatKernel, Precomputed, Radius, knn_graph


def dense(kernel, alpha, time, k):
    """Columns, eigenvalues and the transition matrix by the paper's formulas."""
    q = kernel.sum(1)
    w = kernel / (q[:, None] * q) ** alpha
    d = w.sum(1)
    mu, v = torch.linalg.eigh(w / (d[:, None] * d).sqrt())
    mu, v = mu.flip(0), v.flip(1)
    return (v / d.sqrt()[:, None])[:, 1 : k + 1] * mu[1 : k + 1].abs() ** time, mu, w / d[:, None], d


@pytest.mark.parametrize(("alpha", "time"), [(1.0, 1.0), (0.5, 3.0), (0.0, 0.7), (1.0, 0.0)])
def test_columns_are_the_formula_from_points_and_from_affinities(alpha, time):
    x = points(60, 3)
    graph = HeatKernel("steepest")(x, knn_graph(x, 9))
    kernel = graph.to_dense()
    expected, mu, _, _ = dense(kernel, alpha, time, 4)
    model = DiffusionMap(4, KNN(9), HeatKernel("steepest"), alpha=alpha, time=time)
    given = DiffusionMap(4, Precomputed("affinity"), alpha=alpha, time=time)
    for found in (model.embed(x), given.embed(kernel), given.embed(graph)):
        torch.testing.assert_close(found.embedding.abs(), expected.abs(), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(1 - found.eigenvalues, mu[1:5])
    torch.testing.assert_close(given.fit(kernel).transform(2 * kernel[:7]), given.embedding_[:7])


def test_distances_of_all_columns_are_diffusion_distances():
    x = points(30, 2)
    _, _, walk, degrees = dense(HeatKernel()(x, knn_graph(x, 7)).to_dense(), 1.0, 3, 1)
    y = DiffusionMap(29, KNN(7), time=3)(x)
    rows = torch.linalg.matrix_power(walk, 3) / degrees.sqrt()
    torch.testing.assert_close(torch.cdist(y, y).square(), torch.cdist(rows, rows).square(), rtol=1e-6, atol=1e-12)


def test_the_density_of_a_circle_goes_with_alpha_one():
    share = torch.linspace(0, 1, 600, dtype=torch.float64)[1:]
    turn = 2 * torch.pi * (share + 0.12 * (2 * torch.pi * share).sin())  # four times as dense at one side
    x = torch.stack([turn.cos(), turn.sin()], 1)
    spread = {}
    for alpha in (0.0, 1.0):
        radius = DiffusionMap(2, Radius(0.25), HeatKernel(0.01), alpha=alpha)(x).norm(dim=1)
        spread[alpha] = float(radius.std() / radius.mean())
    assert spread[1.0] < 0.05 < 0.5 < spread[0.0]
