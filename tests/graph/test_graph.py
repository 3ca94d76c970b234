"""Graphs in files, their copies, and what they show."""

import copy
import io

import pytest
import torch

from problems import complete, points
from torch_lapeig import Graph, HeatKernel, ImprovedWeights, knn_graph


@pytest.mark.parametrize("kind", ["sparse", "dense", "batch", "improved"])
def test_a_graph_goes_through_a_file_and_copies(kind):
    x = points(20, 2, batch=2 if kind == "batch" else None)
    mask = torch.arange(20) < torch.tensor([[20], [13]]) if kind == "batch" else None
    weighting = ImprovedWeights(2.0) if kind == "improved" else HeatKernel(2.0)
    graph = weighting(x, knn_graph(x, 4, mask=mask))
    graph = Graph.from_dense(graph.to_dense()) if kind == "dense" else graph
    graph.connected_components()  # what is worked out is not saved
    file = io.BytesIO()
    torch.save(graph, file)
    file.seek(0)
    for found in (torch.load(file, weights_only=True), copy.deepcopy(graph)):
        assert torch.equal(found.to_dense(), graph.to_dense())
        assert torch.equal(found.connected_components(), graph.connected_components())
        assert found.shape == graph.shape
        assert repr(found) == repr(graph)
        assert (found.mask is None) == (graph.mask is None)


def test_a_file_without_a_sound_graph_is_refused():
    graph, file = knn_graph(points(20, 2), 4), io.BytesIO()
    vars(graph)["weight"] = graph.weight[1:]
    torch.save(graph, file)
    file.seek(0)
    with pytest.raises(Exception, match="weight must have shape"):
        torch.load(file, weights_only=True)


def test_the_repr_of_a_graph_has_its_size():
    assert repr(Graph.from_dense(complete(3))) == "Graph(3 nodes, dense, torch.float64, cpu)"
    assert repr(Graph.from_dense(complete(3)).to_sparse()) == "Graph(3 nodes, 6 stored edges, torch.float64, cpu)"
    x = points(6, 2, batch=2, dtype=torch.float32)
    assert repr(knn_graph(x, 5)) == "Graph(2 graphs of 6 nodes each, 60 stored edges, torch.float32, cpu)"
    mask = torch.arange(6) < torch.tensor([[6], [3]])
    assert repr(knn_graph(x, 5, mask=mask)).startswith("Graph(2 graphs of up to 6 nodes, 36 stored edges")
