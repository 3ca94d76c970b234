"""Weightings: bandwidths, the paper's problem, gradients, ties, copies; test_combinations.py has their formulas."""

import math

import pytest
import torch

import torch_lapeig as tl
from problems import check_derivatives, every, ignoring, path, points


def test_median_bandwidth_is_that_of_each_graph():
    x = points(31, 3, batch=3)
    graph = tl.knn_graph(x, 5)
    squared = graph.pattern.squared_lengths(x)
    bandwidth = tl.HeatKernel("median").bandwidth(squared, graph)
    expected = torch.stack([squared[graph.pattern.item == b].median() for b in range(3)])
    assert torch.equal(bandwidth, expected[:, None].expand(3, 31))


@pytest.mark.parametrize("t", [0.3, "median", "component-median", "steepest"])
def test_a_learnable_factor_multiplies_every_bandwidth(t):
    """The factor starts at 1, and the bandwidth is t · exp(log_factor) for every t."""
    x = points(30, 3)
    graph = tl.knn_graph(x, 5, symmetrize="union")
    fixed, learnable = tl.HeatKernel(t), tl.HeatKernel(t, learnable=True).double()
    assert torch.equal(learnable(x, graph).weight, fixed(x, graph).weight)
    assert [name for name, _ in learnable.named_parameters()] == ["log_factor"]
    assert not list(fixed.parameters())
    assert (fixed.factor, learnable.factor) == (1, 1)
    with torch.no_grad():
        learnable.log_factor += math.log(2)
    squared = graph.pattern.squared_lengths(x)
    torch.testing.assert_close(learnable.bandwidth(squared, graph), 2 * fixed.bandwidth(squared, graph))
    torch.testing.assert_close(learnable(x, graph).weight.square(), fixed(x, graph).weight)
    assert math.isclose(learnable.factor, 2)


@every(weighting=[tl.HeatKernel(), tl.HeatKernel("component-median"), tl.SelfTuning(2), tl.DensityCorrected(1.0)])
def test_gradients_where_lengths_tie_go_with_the_points(weighting):
    """Points in another order have the same gradients in that order; a grid has many equal lengths."""
    grid = torch.cartesian_prod(torch.arange(5.0), torch.arange(4.0)).double()
    x = torch.cat([grid, grid + torch.tensor([50.0, 0.5])])
    factor = torch.linspace(-1, 2, len(x), dtype=torch.float64)

    def gradient(order):
        given = x[order].requires_grad_()
        degrees = weighting(given, tl.radius_graph(given.detach(), 1.5)).to_dense().square().sum(1)
        (degrees @ factor[order]).backward()
        return given.grad

    there = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gradient(there), gradient(torch.arange(len(x)))[there], atol=1e-13, rtol=1e-12)


def test_self_tuning_scales_of_copies_are_distances_to_the_nearest_other_point():
    """Four copies at 0, and points at 3 and 7: of m = 2 the scales are 3, 3 and 7."""
    x = torch.tensor([0.0, 0.0, 0.0, 0.0, 3.0, 7.0], dtype=torch.float64)[:, None].requires_grad_()
    weighting, graph = tl.SelfTuning(2), tl.radius_graph(x.detach(), 7.0)
    with pytest.warns(tl.GraphWarning, match="m=2 neighbours of 4 of 6 nodes are copies"):
        weight = weighting(x, graph).to_dense()
    sigma = torch.tensor([3.0, 3, 3, 3, 3, 7], dtype=torch.float64)
    expected = torch.exp(-(x - x.mT).square() / (sigma[:, None] * sigma)) * graph.to_dense()
    torch.testing.assert_close(weight, expected)
    with ignoring(tl.GraphWarning):
        state = weighting.state(x, graph)
        torch.testing.assert_close(state[:, 0], sigma)
        (gradient,) = torch.autograd.grad(weight.square().sum(), x)
        assert gradient.isfinite().all()
        assert gradient[4:].abs().min() > 0
        same = torch.ones(8, 2)
        assert (weighting(same, tl.knn_graph(same, 3)).weight > 0).all()
        module = tl.LaplacianEigenmaps(2, tl.KNN(3), tl.SelfTuning(2)).fit(x.detach())
        assert module.transform(torch.tensor([[0.0], [1.0]]).double()).isfinite().all()


@pytest.mark.parametrize("rule", [tl.KNN(9), tl.KNN(79)], ids=["neighbours", "all pairs"])
def test_the_steepest_bandwidth_is_the_best_of_a_fine_grid(rule):
    """In a batch with padding each item has its own; it scales with squared lengths."""
    x = torch.stack([points(80, 2), 3 * points(80, 3)[:, :2]])
    mask = torch.ones(2, 80, dtype=torch.bool).index_fill_(1, torch.arange(70, 80), False)
    graph = rule(x, mask)
    squared = graph.pattern.squared_lengths(x)
    found = tl.HeatKernel("steepest").bandwidth(squared, graph)
    torch.testing.assert_close(tl.HeatKernel("steepest").bandwidth(25 * squared, graph), 25 * found)
    for item, t in zip(x, found[:, 0], strict=True):
        edges = rule(item[:70]).pattern.squared_lengths(item[:70])
        grid = t * torch.linspace(-2, 2, 4001, dtype=torch.float64).exp()
        total = (70 + torch.exp(-edges.flatten() / grid[:, None]).sum(1)).log()
        middle = (total.diff() / grid.log().diff()).argmax()
        assert 1 - 2e-3 < t / grid[middle] < 1 + 2e-3


def test_a_steepest_bandwidth_far_from_the_median_is_refused_and_nothing_has_median_one():
    graph = tl.Graph.from_dense(path(101)).to_sparse()
    lengths = torch.cat([torch.logspace(-12, 0, 52), torch.full((48,), 2.0**17)]).double()
    with pytest.raises(ValueError, match=r'"steepest" found no bandwidth within 2\^±16 of the median'):
        tl.HeatKernel("steepest").bandwidth(lengths[torch.minimum(*graph.edge_index)], graph)
    alone = tl.Graph.from_dense(torch.zeros(3, 3, dtype=torch.float64))
    assert torch.equal(tl.HeatKernel("steepest").bandwidth(torch.ones(3, 3).double(), alone), torch.ones(3).double())


WEIGHTINGS = [tl.HeatKernel(0.7), tl.HeatKernel("component-median"), tl.HeatKernel("steepest"), tl.SelfTuning(3)]
WEIGHTINGS += [tl.DensityCorrected(1.0), tl.DensityCorrected(0.5, tl.SelfTuning(2)), tl.ImprovedWeights(0.7)]
WEIGHTINGS += [tl.KernelWeights(lambda d2: (1 + d2).reciprocal()), tl.SimpleWeights()]


@pytest.mark.parametrize("weights", WEIGHTINGS[:-1], ids=repr)
@pytest.mark.parametrize("sparse", [True, False])
def test_gradcheck_of_every_weighting(weights, sparse):
    x = points(10, 2)
    graph = tl.knn_graph(x, 4)
    graph = graph if sparse else tl.Graph.from_dense(graph.to_dense())
    there = graph.weight > 0
    check_derivatives(lambda x: weights(x, graph).weight[there], x)


@pytest.mark.parametrize("weights", WEIGHTINGS, ids=repr)
def test_stored_zeros_are_no_edges(weights):
    """A graph that stores its zeros, one that does not, and a dense one are the same to every weighting."""
    x = points(20, 2)
    affinity = (tl.knn_graph(x, 5).to_dense() > 0).double()
    pairs = torch.cartesian_prod(torch.arange(20), torch.arange(20)).T
    stored = tl.Graph.from_edge_index(pairs, affinity[pairs[0], pairs[1]])
    dense = tl.Graph.from_dense(affinity)
    expected = weights(x, dense.to_sparse()).to_dense()
    torch.testing.assert_close(weights(x, stored).to_dense(), expected)
    torch.testing.assert_close(weights(x, dense).to_dense(), expected)
