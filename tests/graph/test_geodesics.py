"""Shortest paths, and gradients along them."""

import torch

from problems import surface
from torch_lapeig import KNN
from torch_lapeig.graph.geodesics import geodesic_distances


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
