"""Geodesic distances against SciPy and closed forms, and their derivatives along fixed paths."""

import pytest
import torch
from scipy.sparse import csgraph

from problems import DTYPES, cycle, path, points, surface, two_cliques
from torch_lapeig import KNN, Graph, knn_graph
from torch_lapeig.graph.geodesics import geodesic_distances


def all_distances(graph, lengths=None):
    lengths = graph.weight if lengths is None else lengths
    return geodesic_distances(graph.pattern, lengths, torch.arange(graph.num_nodes))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_scipy_with_and_without_gradients(dtype):
    x = points(60, 3, dtype=dtype)
    graph = knn_graph(x, 6)
    lengths = graph.pattern.squared_lengths(x).sqrt()
    found = all_distances(graph, lengths)
    expected = csgraph.shortest_path(graph.with_weight(lengths).to_scipy(), directed=False)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), rtol=1e-6, atol=0)
    torch.testing.assert_close(all_distances(graph, lengths.requires_grad_()).detach(), found)


def test_steps_on_a_path_and_a_cycle():
    node = torch.arange(9)
    apart = (node[:, None] - node).abs().double()
    assert torch.equal(all_distances(Graph.from_dense(path(9)).to_sparse()), apart)
    assert torch.equal(all_distances(Graph.from_dense(cycle(9)).to_sparse()), torch.minimum(apart, 9 - apart))


def test_infinite_between_components_with_finite_gradients():
    graph = Graph.from_dense(two_cliques(3, 4)).to_sparse()
    lengths = graph.weight.requires_grad_()
    distances = all_distances(graph, lengths)
    other = torch.block_diag(torch.ones(3, 3), torch.ones(4, 4)) == 0
    assert torch.equal(distances.isinf(), other)
    distances[~other].sum().backward()
    # Each edge is the path between its ends, and no other's.
    assert torch.equal(lengths.grad, torch.ones_like(lengths))


def test_gradient_of_geodesics_is_along_the_paths(small_blocks):
    x = surface(40).requires_grad_()
    graph = KNN(5)(x)
    lengths = graph.pattern.squared_lengths(x).sqrt()
    sources = torch.tensor([3, 17])
    d = geodesic_distances(graph.pattern, lengths, sources)
    torch.testing.assert_close(d.detach(), geodesic_distances(graph.pattern, lengths.detach(), sources))
    assert torch.autograd.gradcheck(
        lambda w: geodesic_distances(graph.pattern, w, sources), lengths.detach().requires_grad_()
    )
    # Distances are homogeneous in the edges: Euler's identity.
    (slope,) = torch.autograd.grad(d.sum(), lengths)
    torch.testing.assert_close((slope * lengths).sum(), d.sum())
    torch.testing.assert_close(slope.unique(), slope.unique().round())
    small_blocks()
    assert torch.equal(geodesic_distances(graph.pattern, lengths, sources), d)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, on first use
def test_derivatives_in_forward_mode():
    x = points(12, 2)
    graph = knn_graph(x, 3)
    lengths = graph.pattern.squared_lengths(x).sqrt().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: all_distances(graph, w), (lengths,), check_forward_ad=True)
