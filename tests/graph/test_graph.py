"""Neighbour search, graphs and their symmetrisation."""

import pytest
import torch

from problems import complete, cycle, two_cliques
from torch_lapeig import Graph


@pytest.mark.parametrize("sparse", [True, False])
def test_dense_round_trip_and_gradient(sparse):
    affinity = two_cliques(3, 4).requires_grad_()
    graph = Graph.from_dense(affinity)
    dense = (graph.to_sparse() if sparse else graph).to_dense()
    assert torch.equal(dense, affinity)
    dense.square().sum().backward()
    torch.testing.assert_close(affinity.grad, 2 * affinity.detach())


@pytest.mark.parametrize("sparse", [True, False])
def test_subgraph(sparse):
    graph = Graph.from_dense(torch.stack([cycle(5), complete(5)]))
    expected = graph.to_dense()
    graph = graph.to_sparse() if sparse else graph
    assert torch.equal(graph.subgraph(torch.tensor([1, 2, 3])).to_dense(), expected[0][1:4, 1:4])
    assert torch.equal(graph.subgraph(torch.tensor([6, 9])).to_dense(), complete(2))
