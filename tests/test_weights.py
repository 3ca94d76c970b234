"""Weightings against the papers' formulas, and their gradients."""

import math

import pytest
import torch

from problems import in_every_dtype, on_every_device, points
from torch_lapeig import HeatKernel, SimpleWeights, knn_graph, radius_graph


@on_every_device
@in_every_dtype
def test_heat_kernel_is_its_formula_on_the_edges(dtype, device):
    x = points(40, 3, dtype=dtype).to(device)
    graph = knn_graph(x, 5)
    expected = torch.exp(-(x[:, None] - x).square().sum(-1) / 0.7) * (graph.to_dense() > 0)
    torch.testing.assert_close(HeatKernel(0.7)(x, graph).to_dense(), expected)


def test_median_bandwidth_is_that_of_each_graph():
    x = points(31, 3, batch=3)
    graph = knn_graph(x, 5)
    squared = graph.pattern.squared_lengths(x)
    bandwidth = HeatKernel("median").bandwidth(squared, graph)
    expected = torch.stack([squared[graph.pattern.item == b].median() for b in range(3)])
    assert torch.equal(bandwidth, expected[:, None].expand(3, 31))


def test_median_bandwidth_follows_the_scale_of_the_points():
    x = points(30, 3)
    graph = knn_graph(x, 5)
    torch.testing.assert_close(HeatKernel()(x, graph).weight, HeatKernel()(100 * x, graph).weight)


def test_learnable_bandwidth_starts_where_it_was_told():
    x = points(30, 3)
    graph = knn_graph(x, 5)
    for t in (0.3, "median"):
        learnable = HeatKernel(t, learnable=True)
        torch.testing.assert_close(learnable(x, graph).weight, HeatKernel(t)(x, graph).weight, rtol=0, atol=1e-6)
        assert [name for name, _ in learnable.named_parameters()] == ["log_t"]
        assert not list(HeatKernel(t).parameters())
    assert math.isclose(HeatKernel(0.3, learnable=True).log_t.item(), math.log(0.3), rel_tol=1e-6)


def test_simple_weights_keep_the_connectivity():
    x = points(30, 3)
    graph = knn_graph(x, 5, symmetrize="mean")
    assert torch.equal(SimpleWeights()(x, graph).weight, graph.weight)
    assert set(graph.weight.tolist()) == {0.5, 1.0}


@pytest.mark.parametrize("t", [0.7, "median"])
def test_gradcheck_of_points_and_bandwidth(t):
    x = points(12, 2).requires_grad_()
    graph = knn_graph(x, 3)
    kernel = HeatKernel(t, learnable=True).double()

    def weights(x, log_t):
        return torch.func.functional_call(kernel, {"log_t": log_t}, (x, graph)).weight

    assert torch.autograd.gradcheck(weights, (x, kernel.log_t))


def test_a_graph_without_edges_in_a_batch_is_left_alone():
    x = torch.stack([points(6, 2), points(6, 2) * 100])
    mask = torch.ones(2, 6, dtype=torch.bool)
    graph = radius_graph(x, 2.0, mask=mask)
    assert graph.pattern.item.max() == 0
    weighted = HeatKernel()(x, graph)
    torch.testing.assert_close(weighted.weight, HeatKernel()(x[0], radius_graph(x[0], 2.0)).weight)
