"""Neighbour search, graphs and their symmetrisation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csgraph
from sklearn.neighbors import kneighbors_graph, radius_neighbors_graph

from problems import DEVICES, complete, cycle, in_every_dtype, on_every_device, points, two_cliques
from torch_lapeig import KNN, Graph, Radius, knn_graph, radius_graph


@on_every_device
@in_every_dtype
@pytest.mark.parametrize("symmetrize", ["union", "mutual", "mean"])
def test_knn_graph_agrees_with_scikit_learn(symmetrize, dtype, device):
    x = points(80, 5, dtype=dtype).to(device)
    directed = kneighbors_graph(x.cpu().numpy(), 6).toarray()
    expected = {
        "union": np.maximum(directed, directed.T),
        "mutual": np.minimum(directed, directed.T),
        "mean": (directed + directed.T) / 2,
    }[symmetrize]
    graph = knn_graph(x, 6, symmetrize=symmetrize)
    assert graph.weight.dtype == dtype
    assert graph.weight.device.type == device
    np.testing.assert_array_equal(graph.to_dense().cpu().numpy(), expected)


@on_every_device
@in_every_dtype
def test_radius_graph_agrees_with_scikit_learn(dtype, device):
    x = points(80, 3, dtype=dtype).to(device)
    expected = radius_neighbors_graph(x.cpu().numpy(), 1.2).toarray()
    np.testing.assert_array_equal(radius_graph(x, 1.2).to_dense().cpu().numpy(), expected)


@pytest.mark.parametrize("rule", [KNN(4), KNN(4, "mutual"), Radius(1.5)], ids=str)
def test_batched_equals_looped(rule):
    x = points(30, 3, batch=4)
    torch.testing.assert_close(rule(x).to_dense(), torch.stack([rule(item).to_dense() for item in x]))


@pytest.mark.parametrize("rule", [KNN(4), Radius(1.5)], ids=str)
def test_padding_changes_nothing(rule):
    x, mask = points(30, 3, batch=3), torch.arange(30) < torch.tensor([30, 11, 20])[:, None]
    dirty = torch.where(mask[..., None], x, torch.nan)
    dense = rule(dirty, mask).to_dense()
    for item, (row, length) in enumerate(zip(x, mask.sum(1), strict=True)):
        torch.testing.assert_close(dense[item, :length, :length], rule(row[:length]).to_dense())
    assert dense.sum() == sum(rule(row[:n]).weight.sum() for row, n in zip(x, mask.sum(1), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda d: st.lists(st.lists(st.integers(-3, 3), min_size=d, max_size=d), min_size=3, max_size=12)
    ),
    st.integers(1, 2),
    st.sampled_from(["union", "mutual", "mean"]),
)
def test_graph_laws(rows, k, symmetrize):
    """Symmetric, no self loops however many copies and ties there are, degrees as the rule says, edges in order."""
    x = torch.tensor(rows, dtype=torch.float64)
    graph = knn_graph(x, k, symmetrize=symmetrize)
    dense = graph.to_dense()
    assert torch.equal(dense, dense.T)
    assert not dense.diagonal().any()
    degree = (dense > 0).sum(1)
    if symmetrize == "mutual":
        assert (degree <= k).all()
    else:
        assert (degree >= k).all()
    row, col = graph.edge_index
    reverse = graph.pattern.reverse.long()
    assert ((row * len(x) + col).diff() > 0).all()
    assert torch.equal(row[reverse], col)
    assert torch.equal(col[reverse], row)
    assert torch.equal(knn_graph(x, k, symmetrize=symmetrize).to_dense(), dense)


def test_far_from_the_origin():
    """Direct differences: a shift by 10⁴ in float32 keeps every neighbour whose distance it can represent."""
    x = torch.arange(40, dtype=torch.float32)[:, None] ** 1.5 + 1e4
    near = torch.cdist(x.double(), x.double()).fill_diagonal_(torch.inf).argmin(1)
    assert torch.equal(knn_graph(x, 1).to_dense()[torch.arange(40), near], torch.ones(40))


@pytest.mark.parametrize("n", [2, 3])
def test_smallest_point_sets(n):
    assert torch.equal(knn_graph(points(n, 1), n - 1).to_dense(), complete(n))


@pytest.mark.parametrize("device", DEVICES)
def test_components_count_as_in_scipy(device):
    for seed in range(5):
        graph = knn_graph(points(60, 2, seed=seed).to(device), 2)
        expected = csgraph.connected_components(graph.to_dense().cpu().numpy())
        labels = graph.connected_components().cpu().numpy()
        assert labels.max() + 1 == expected[0]
        np.testing.assert_array_equal(labels, expected[1])


def test_components_of_a_batch_with_padding_and_zero_weights():
    affinity = torch.stack([two_cliques(3, 4), cycle(7)])
    affinity[1, 0, 1] = affinity[1, 1, 0] = 0
    affinity[1, 6] = affinity[1, :, 6] = 0
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 6] = False
    graph = Graph.from_dense(affinity, mask)
    assert graph.connected_components().tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, -1]]
    for cut in (graph, graph.to_sparse()):
        weight = cut.weight.clone()
        if cut.is_sparse:
            weight[(cut.edge_index == 9).any(0)] = 0
        else:
            weight[1, 2] = weight[1, :, 2] = 0
        assert cut.with_weight(weight).connected_components()[1].tolist() == [0, 1, 2, 3, 3, 3, -1]


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


def test_edges_of_nodes():
    pattern = Graph.from_dense(torch.stack([cycle(5), complete(5)])).to_sparse().pattern
    nodes = torch.tensor([1, 2, 3, 6, 9])
    position, edge = pattern.edges_of(nodes)
    assert torch.equal(pattern.row[edge].long(), nodes[position])
    assert len(edge) == 3 * 2 + 2 * 4
