"""Batches from a graph: who is in them, their share of an epoch, seeds, processes, and what they estimate."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from problems import points
from torch_lapeig import Graph, HeatKernel, knn_graph, laplacian_smoothness
from torch_lapeig.samplers import EdgeSampler, NeighborhoodSampler

X = points(100, 3)
GRAPH = HeatKernel(2.0)(X, knn_graph(X, 6))


def test_a_neighbourhood_is_a_node_with_neighbours_of_its_own():
    dense = GRAPH.to_dense() > 0
    sampler = NeighborhoodSampler(GRAPH, 5, neighbors=4)
    assert sampler.centres == 1
    batches = list(sampler)
    assert len(batches) == len(sampler) == 100
    for batch in batches:
        assert len(batch) == len(set(batch)) == 5
        assert max(int(dense[node][batch].sum()) for node in batch) == 4  # the centre is joined to all others


@pytest.mark.parametrize("size", [5, 30, 1000])
def test_every_node_is_a_centre_once(size):
    """If ``neighbors`` is the longest row, each batch is the neighbourhood of its centres."""
    most = int((GRAPH.to_dense() > 0).sum(1).max())
    sampler = NeighborhoodSampler(GRAPH, size + most, neighbors=most)
    batches = list(sampler)
    assert len(batches) == len(sampler) == -(-100 // sampler.centres)
    assert set().union(*batches) == set(range(100))
    assert max(map(len, batches)) <= size + most


def test_isolated_nodes_loops_and_padding():
    affinity = torch.zeros(4, 4).fill_diagonal_(1.0)
    affinity[0, 1] = affinity[1, 0] = 1
    assert sorted(NeighborhoodSampler(Graph.from_dense(affinity), 2, neighbors=1)) == [[0, 1], [0, 1], [2], [3]]
    affinity[3, 3] = 0
    graph = Graph.from_dense(affinity, torch.tensor([True, True, True, False]))
    assert sorted(NeighborhoodSampler(graph, 2, neighbors=1)) == [[0, 1], [0, 1], [2]]
    assert all(sorted(batch) == [0, 1] for batch in EdgeSampler(graph, 2))


@pytest.mark.parametrize("kind", [NeighborhoodSampler, EdgeSampler])
def test_epochs_differ_and_seeds_repeat_them(kind):
    sampler = kind(GRAPH, 20, seed=3)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert list(kind(GRAPH, 20, seed=3)) == first != list(kind(GRAPH, 20, seed=4))
    resumed = kind(GRAPH.to_sparse(), 20, seed=3)
    resumed.set_epoch(1)
    assert list(resumed) == second
    assert list(kind(Graph.from_dense(GRAPH.to_dense()), 20, seed=3)) == first
    assert sampler.sampler is sampler
    ahead = iter(sampler)
    next(ahead)
    sampler.set_epoch(5)  # too late for the batch that is drawn
    with pytest.warns(UserWarning, match=r"those of epoch 2 before set_epoch\(5\)"):
        list(ahead)
    one = iter(sampler)
    next(one), next(iter(sampler))
    assert len(list(one)) == len(sampler) - 1  # another iteration is no reason for the warning


@pytest.mark.parametrize("kind", [NeighborhoodSampler, EdgeSampler])
@pytest.mark.parametrize("replicas", [1, 3])
def test_processes_share_an_epoch_evenly(kind, replicas):
    samplers = [kind(GRAPH, 22, num_replicas=replicas, rank=rank) for rank in range(replicas)]
    epochs = [list(sampler) for sampler in samplers]
    assert {len(epoch) for epoch in epochs} == {len(samplers[0])}
    for one, other in itertools.combinations(epochs, 2):
        assert one != other
    if kind is NeighborhoodSampler:
        assert set().union(*itertools.chain(*epochs)) == set(range(100))
        assert -(-100 // (replicas * samplers[0].centres)) <= len(samplers[0]) <= 1 + 100 // replicas


def test_loaders_take_them():
    data = TensorDataset(X, torch.arange(100))
    for x, nodes in DataLoader(data, batch_sampler=NeighborhoodSampler(GRAPH, 33)):
        assert torch.equal(x, X[nodes])
        assert laplacian_smoothness(x, GRAPH.subgraph(nodes), "weighted_mean") > 0
    loader = DataLoader(data, batch_sampler=EdgeSampler(GRAPH, 16))
    assert len(loader) == -(-int((GRAPH.to_dense() > 0).sum()) // 16)
    joined = GRAPH.to_dense()
    for x, nodes in loader:
        assert len(x) == 16
        assert (joined[nodes[::2], nodes[1::2]] > 0).all()
        pairs = EdgeSampler.pairs(x)
        assert torch.equal(pairs.edge_index[0] ^ 1, pairs.edge_index[1])
        torch.testing.assert_close(laplacian_smoothness(x, pairs), (x[::2] - x[1::2]).square().sum(1).mean() / 2)


def test_edges_estimate_the_smoothness_of_the_whole_without_bias():
    """The mean of 200 epochs is within four of its standard errors; of the graph of random batches it is not."""
    y = points(100, 2, seed=1)
    whole = laplacian_smoothness(y, GRAPH, "weighted_mean")
    sampler = EdgeSampler(GRAPH, 40)
    found = torch.stack([laplacian_smoothness(y[b], EdgeSampler.pairs(y[b])) for _ in range(40) for b in sampler])
    assert abs(found.mean() - whole) < 4 * found.std() / len(found) ** 0.5
    assert found.std() / len(found) ** 0.5 < 0.05 * whole


def test_edges_are_drawn_in_proportion_to_their_weight():
    affinity = torch.tensor([[0.0, 3.0, 1.0], [3.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    drawn = torch.tensor(next(iter(EdgeSampler(Graph.from_dense(affinity), 20_000)))).reshape(-1, 2)
    assert abs((drawn == 1).any(1).double().mean() - 0.75) < 4 * (0.75 * 0.25 / 10_000) ** 0.5
