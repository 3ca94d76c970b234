"""The Laplacian-smoothness loss against its two formulas."""

import pytest
import torch

from problems import in_every_dtype, on_every_device, points, random_affinity
from torch_lapeig import (
    KNN,
    Graph,
    HeatKernel,
    Laplacian,
    LaplacianEigenmaps,
    LaplacianSmoothness,
    laplacian_smoothness,
)


@on_every_device
@in_every_dtype
def test_both_formulas(dtype, device):
    affinity = random_affinity(12).to(device, dtype)
    y = points(12, 3, dtype=dtype).to(device)
    graph = Graph.from_dense(affinity)
    double_sum = 0.5 * (affinity * (y[:, None] - y).square().sum(-1)).sum()
    trace = torch.trace(y.T @ Laplacian(graph, "unnormalized").to_dense() @ y)
    loss = laplacian_smoothness(y, graph, "sum")
    torch.testing.assert_close(loss, double_sum)
    torch.testing.assert_close(loss, trace)


def test_reductions():
    x, y = points(20, 2, batch=2), points(20, 3, batch=2, seed=1)
    graph = KNN(4)(x)
    terms = laplacian_smoothness(y, graph, "none")
    assert terms.shape == graph.weight.shape
    torch.testing.assert_close(laplacian_smoothness(y, graph, "sum"), terms.sum())
    torch.testing.assert_close(laplacian_smoothness(y, graph), terms.mean())


def test_gradcheck():
    graph = Graph.from_dense(random_affinity(8))
    function = lambda y, w: laplacian_smoothness(y, graph.with_weight(w), "sum")  # noqa: E731
    arguments = (points(8, 2).requires_grad_(), graph.weight.clone().requires_grad_())
    assert torch.autograd.gradcheck(function, arguments)
    assert torch.autograd.gradgradcheck(function, arguments)


def test_eigenvectors_minimise_it():
    """tr(Yᵀ L Y) = Σ λ for Yᵀ D Y = I, and no other such Y has less."""
    x = points(60, 3)
    module = LaplacianEigenmaps(3, KNN(8)).fit(x)
    graph = HeatKernel()(x, KNN(8)(x))
    torch.testing.assert_close(laplacian_smoothness(module.embedding_, graph, "sum"), module.eigenvalues_.sum())
    half = Laplacian(graph).degrees.sqrt()[:, None]
    other = torch.linalg.qr(torch.cat([half, points(60, 3, seed=1)], 1))[0][:, 1:] / half
    assert laplacian_smoothness(other, graph, "sum") > module.eigenvalues_.sum()


def test_module_builds_or_takes_the_graph():
    x, y = points(30, 3), points(30, 2, seed=1)
    module = LaplacianSmoothness(KNN(5), HeatKernel(2.0), reduction="sum")
    graph = HeatKernel(2.0)(x, KNN(5)(x))
    expected = laplacian_smoothness(y, graph, "sum")
    torch.testing.assert_close(module(y, x), expected)
    torch.testing.assert_close(module(y, graph), expected)
    assert "reduction='sum'" in repr(module)


def test_it_trains_an_encoder_to_be_smooth():
    torch.manual_seed(0)
    x = points(60, 3, dtype=torch.float32)
    encoder, loss = torch.nn.Linear(3, 2), LaplacianSmoothness(KNN(6))
    optimiser = torch.optim.SGD(encoder.parameters(), lr=0.5)
    first = loss(encoder(x), x).item()
    for _ in range(20):
        optimiser.zero_grad()
        value = loss(encoder(x), x)
        value.backward()
        optimiser.step()
    assert value.item() < first / 2


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_constant_embeddings_cost_nothing(reduction):
    graph = Graph.from_dense(random_affinity(8))
    assert laplacian_smoothness(torch.ones(8, 2, dtype=torch.float64), graph, reduction) == 0
