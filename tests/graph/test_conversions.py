"""Graphs from and to the forms users have: dense, SciPy, PyTorch Geometric's edges, batches, files, and their text."""

import numpy as np
import pytest
import scipy.sparse
import torch
from combined import padded

from problems import complete, cycle, path, points, random_affinity
from torch_lapeig import DirectedGraph, Graph, GraphWarning, ImprovedWeights, knn_graph, pad_batch


def test_scipy_round_trip():
    affinity = random_affinity(20)
    graph = Graph.from_scipy(scipy.sparse.coo_array(affinity.numpy()))
    torch.testing.assert_close(graph.to_dense(), affinity)
    np.testing.assert_allclose(graph.to_scipy().toarray(), affinity.numpy())
    np.testing.assert_allclose(Graph.from_dense(affinity).to_scipy().toarray(), affinity.numpy())
    assert Graph.from_scipy(scipy.sparse.csr_matrix(affinity.numpy()), torch.float32).weight.dtype == torch.float32


def test_from_scipy_does_not_change_the_matrix():
    """Copies of an entry are summed and zeros dropped in our copy, not in the caller's matrix."""
    parts = (np.array([1.0, 2.0, 0.0, 1.0, 2.0]), np.array([1, 1, 0, 0, 0]), np.array([0, 3, 5]))
    matrix = scipy.sparse.csr_array(parts, shape=(2, 2))
    graph = Graph.from_scipy(matrix)
    assert graph.to_dense().tolist() == [[0, 3], [3, 0]]
    assert graph.weight.numel() == 2
    assert matrix.nnz == 5
    assert matrix.data.tolist() == [1, 2, 0, 1, 2]


def test_improved_weights_go_to_scipy_unsymmetric():
    x = points(30, 2)
    graph = ImprovedWeights(1.0)(x, knn_graph(x, 4))
    np.testing.assert_allclose(graph.to_scipy().toarray(), graph.to_dense().numpy())
    assert not torch.equal(graph.to_dense(), graph.to_dense().T)


@pytest.mark.parametrize("kind", [Graph, DirectedGraph])
def test_copies_of_edges_are_summed_and_warned_of(kind):
    edges = torch.tensor([[0, 1, 0, 1, 2, 1], [1, 0, 1, 0, 1, 2]])
    with pytest.warns(GraphWarning, match="summed 2 copies"):
        graph = kind.from_edge_index(edges)
    assert graph.to_dense().tolist() == [[0, 2, 0], [2, 0, 1], [0, 1, 0]]


def test_a_batch_vector_gives_each_graph_its_nodes():
    """Graphs of 6, 9 and 4 nodes as one batch: padded inside, in order."""
    parts = [cycle(6), random_affinity(9), path(4)]
    whole = Graph.from_dense(torch.block_diag(*parts)).to_sparse()
    batch = torch.repeat_interleave(torch.arange(3), torch.tensor([6, 9, 4]))
    graph = Graph.from_edge_index(whole.edge_index, whole.weight, batch=batch)
    expected, mask = padded(*parts)
    assert torch.equal(graph.to_dense(), expected)
    assert torch.equal(graph.mask, mask)


def test_pad_batch_and_back():
    x = points(10, 3).requires_grad_()
    padded, mask = pad_batch(x, torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1]))
    assert padded.shape == (2, 6, 3)
    assert torch.equal(padded[mask], x)
    padded.square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_the_repr_of_a_graph_has_its_size():
    assert repr(Graph.from_dense(complete(3))) == "Graph(3 nodes, dense, torch.float64, cpu)"
    assert repr(Graph.from_dense(complete(3)).to_sparse()) == "Graph(3 nodes, 6 stored edges, torch.float64, cpu)"
    x = points(6, 2, batch=2, dtype=torch.float32)
    assert repr(knn_graph(x, 5)) == "Graph(2 graphs of 6 nodes each, 60 stored edges, torch.float32, cpu)"
    mask = torch.arange(6) < torch.tensor([[6], [3]])
    assert repr(knn_graph(x, 5, mask=mask)).startswith("Graph(2 graphs of up to 6 nodes, 36 stored edges")
