"""Graphs in files, their copies, and what they show."""

import io

import pytest
import torch

from problems import complete, points
from torch_lapeig import Graph, knn_graph


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
