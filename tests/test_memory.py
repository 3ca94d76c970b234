"""Dense matrices that fit into no memory are refused before they are asked for."""

import pytest
import torch

from torch_lapeig import MDS, Graph, Isomap, KernelPCA, Laplacian, eigenpairs
from torch_lapeig.eigen import Eigh
from torch_lapeig.sklearn import LabelSpreading, SpectralEmbedding

N = 10**6
X = torch.zeros(N, 1).uniform_()
REQUESTS = {
    "MDS": lambda: MDS(2)(X),
    "KernelPCA": lambda: KernelPCA(2, "poly").fit(X),
    "Isomap": lambda: Isomap(2).fit(X),
    "landmarks": lambda: Isomap(2, landmarks=10**5).fit(X),
    "LabelSpreading": lambda: LabelSpreading().fit(X.numpy(), torch.arange(N).clamp_max(2) - 1),
    "SpectralEmbedding": lambda: SpectralEmbedding(2, affinity="rbf").fit(X.numpy()),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())
def test_points(request_):
    with pytest.raises(MemoryError, match=r"needs a dense matrix of 1000000 × \d+ numbers, \d+ GB .* free .*; use "):
        request_()


def test_graphs():
    row = torch.arange(N - 1)
    edges = torch.stack([torch.cat([row, row + 1]), torch.cat([row + 1, row])])
    graph = Graph.from_edge_index(edges, torch.ones(2 * N - 2), num_nodes=N)
    for call in (graph.to_dense, Laplacian(graph).to_dense, lambda: eigenpairs(Laplacian(graph), 2, Eigh())):
        with pytest.raises(MemoryError, match=r"1000000 nodes .* GB .* sparse: ask for fewer pairs, .* such as Eigh"):
            call()
