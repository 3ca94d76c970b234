"""Gradients of weights that are zero: edges that are not there yet, self loops, and tiny degrees beside them."""

import dataclasses

import pytest
import torch

from problems import DTYPES, covering, every, points
from torch_lapeig import DensityCorrected, Graph, Laplacian, SimpleWeights, eigenpairs

N = 14


def affinity_with_zeros():
    """A Gaussian one, without self loops and without two of its edges."""
    x = points(N, 2)
    w = torch.exp(-torch.cdist(x, x).square())
    w.fill_diagonal_(0)
    w[3, 5] = w[5, 3] = w[1, 2] = w[2, 1] = 0
    return w


def graph_of(weight, is_sparse):
    """All pairs of nodes, of weights that may be zero."""
    dense = Graph.from_dense(torch.ones(N, N, dtype=weight.dtype))
    if not is_sparse:
        return dense.with_weight(weight)
    i, j = torch.meshgrid(torch.arange(N), torch.arange(N), indexing="ij")
    return Graph.from_edge_index(torch.stack([i.flatten(), j.flatten()])).to(weight.dtype).with_weight(weight.flatten())


def loss_of(graph, normalization):
    pairs = eigenpairs(Laplacian(graph, normalization), 4)
    probe = torch.linspace(-1, 1, N, dtype=pairs.vectors.dtype).exp()
    vectors = pairs.vectors if normalization == "symmetric" else pairs.vectors / pairs.vectors[0, 0].detach()
    return (vectors.mT @ probe).square().sum().square() + pairs.values.square().sum()


@covering(2, similar=[False, True], normalization=["symmetric", "random_walk"], is_sparse=[False, True], dtype=DTYPES)
def test_gradients_of_faint_graphs_equal_those_of_their_multiples(similar, normalization, is_sparse, dtype):
    """L_sym and L_rw are of c·W what they are of W, so that the gradient in c·W is that in W over c."""
    tiny, results = torch.finfo(dtype).tiny ** 0.27, []
    for scale in (1.0, tiny):
        w = (scale * affinity_with_zeros()).to(dtype).requires_grad_()
        graph, r = graph_of(w, is_sparse), torch.linspace(0.5, 2, N, dtype=dtype).requires_grad_()
        graph = dataclasses.replace(graph, similarity=r) if similar else graph
        gradients = torch.autograd.grad(loss_of(graph, normalization), (w, r), allow_unused=True)
        results.append((scale * (gradients[0] + gradients[0].mT), *gradients[1:]))
    assert (results[0][0][w == 0].abs() > 1e-4 * results[0][0].abs().max()).sum() > N
    allowed = 1e-3 if dtype == torch.float32 else 1e-9
    for expected, got in zip(*results, strict=True):
        assert (got is not None) == (expected is not None)
        if got is not None:
            torch.testing.assert_close(got, expected, rtol=allowed, atol=allowed * float(expected.abs().max()))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_second_derivatives_of_faint_graphs(is_sparse):
    results, direction = [], torch.linspace(-1, 1, N * N, dtype=torch.float64).reshape(N, N).cos()
    for scale in (1.0, torch.finfo(torch.float64).tiny ** 0.27):
        w = (scale * affinity_with_zeros()).requires_grad_()
        (first,) = torch.autograd.grad(loss_of(graph_of(w, is_sparse), "symmetric"), w, create_graph=True)
        (second,) = torch.autograd.grad((first * direction).sum(), w)
        results.append(scale**2 * (second + second.mT))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_density_corrected_weights_of_zero_have_gradients(is_sparse):
    alpha, results = 0.7, []
    for is_ours in (True, False):
        w = affinity_with_zeros().requires_grad_()
        graph = graph_of(w, is_sparse)
        if is_ours:
            graph = DensityCorrected(alpha, SimpleWeights())(torch.zeros(N, 1, dtype=w.dtype), graph)
        else:
            density = w.sum(1) ** -alpha
            graph = graph_of(w * density[:, None] * density, is_sparse)
        (gradient,) = torch.autograd.grad(loss_of(graph, "symmetric"), w)
        results.append(gradient + gradient.mT)
    assert (results[1][w == 0].abs() > 1e-3).sum() > N
    torch.testing.assert_close(results[0], results[1])


@every(size=[1.0, 1e-160, 1e-300], normalization=["symmetric", "random_walk"])
def test_second_derivatives_of_self_loops_of_tiny_degrees(size, normalization):
    """A pair with loops of b and c times its edge a has the eigenvalue a / (a + b) + a / (a + c)."""
    logs = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    results = []
    for is_ours in (True, False):
        a, b, c = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64) * logs.exp()
        value = a / (a + b) + a / (a + c)
        if is_ours:
            graph = Graph.from_dense(size * torch.stack([b, a, a, c]).reshape(2, 2))
            value = eigenpairs(Laplacian(graph, normalization), 2).values[1]
        (first,) = torch.autograd.grad(value, logs, create_graph=True)
        (second,) = torch.autograd.grad(first @ torch.arange(1.0, 4, dtype=torch.float64), logs)
        results.append(torch.stack([first.detach(), second]))
    torch.testing.assert_close(*results)
