"""Connected components by SciPy, and on other devices."""

import pytest
import torch

from problems import DEVICES, cycle, two_cliques
from torch_lapeig import Graph


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


@pytest.mark.parametrize("device", DEVICES)
def test_components_of_dense_graphs_near_and_far(device):
    """Few steps of a search reach all nodes of a cycle of 7, but not of 40."""
    for affinity in (torch.stack([cycle(7), cycle(7)]), cycle(40), two_cliques(3, 4), torch.zeros(3, 3)):
        graph = Graph.from_dense(affinity.to(device))
        assert torch.equal(graph.connected_components(), graph.to_sparse().connected_components())


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_other_devices_agree_with_the_processor(count, device):
    """Labels are propagated there: along paths so long that propagation alone would take many rounds."""
    sizes = torch.randint(1, 60, (count,), generator=torch.Generator().manual_seed(count)).tolist()
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(0))
    start, pairs = 0, []
    for size in sizes:
        nodes = order[start : start + size]
        pairs.append(torch.stack([nodes[:-1], nodes[1:]]))
        start += size
    edges = torch.cat(pairs, 1)
    edges = torch.cat([edges, edges.flip(0)], 1)
    graph = Graph.from_edge_index(edges, num_nodes=sum(sizes))
    assert torch.equal(graph.to(device).connected_components().cpu(), graph.connected_components())
