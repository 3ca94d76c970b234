"""Graphs of signed weights, of arcs and of hyperedges: how they are built, and who refuses them."""

import numpy as np
import torch
from scipy.sparse import coo_array
from torch.autograd import gradcheck

from torch_lapeig import DirectedGraph, Graph, Laplacian, SignedGraph, eigenpairs


class TestDirectedGraph:
    arcs, weight = torch.tensor([[0, 1, 2, 2, 3], [1, 2, 1, 2, 0]]), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])

    def dense(self):
        return torch.zeros(4, 4).index_put((self.arcs[0], self.arcs[1]), self.weight)

    def test_all_forms_are_one_graph(self):
        matrix = self.dense()
        sparse = coo_array((self.weight.numpy(), self.arcs.numpy()), shape=(4, 4))
        graphs = [
            DirectedGraph.from_edge_index(self.arcs, self.weight),
            DirectedGraph.from_edge_index(self.arcs.flip(1), self.weight.flip(0), 4),
            DirectedGraph.from_scipy(sparse, torch.float32),
            DirectedGraph.from_dense(matrix),
            DirectedGraph.from_dense(matrix).to_sparse(),
        ]
        for graph in graphs:
            assert isinstance(graph, DirectedGraph)
            assert torch.equal(graph.to_dense(), matrix)
            assert torch.equal(graph.affinities().to_dense(), (matrix + matrix.mT) / 2)
        assert np.array_equal(graphs[0].to_scipy().todense(), matrix)

    def test_gradients_go_to_the_arcs_given(self):
        weight = self.weight.clone().requires_grad_()
        DirectedGraph.from_edge_index(self.arcs, weight).weight.square().sum().backward()
        assert torch.equal(weight.grad, 2 * self.weight)


def test_signed_graphs_take_weights_of_either_sign():
    weight = torch.tensor([[0.0, -1.0], [-1.0, 2.0]])
    for graph in (SignedGraph.from_dense(weight), SignedGraph.from_dense(weight).to_sparse()):
        assert torch.equal(graph.to_dense(), weight)
        assert torch.equal(graph.affinities().to_dense(), weight.abs())
        assert graph.connected_components().tolist() == [0, 0]


class TestHyperedges:
    members = torch.tensor([[0, 1, 2, 2, 3, 3, 4, 5, 1, 6], [0, 0, 0, 1, 1, 2, 2, 2, 2, 4]])
    weight = torch.tensor([1.0, 2.0, 0.5, 7.0, 3.0], dtype=torch.float64)

    def zhou(self, weight):
        """Return I − D_v^-½ H W D_e^-1 Hᵀ D_v^-½ as the paper has it."""
        incidence = torch.zeros(7, 5, dtype=torch.float64).index_put(tuple(self.members), torch.ones(10).double())
        sizes, degrees = incidence.sum(0), incidence @ weight
        theta = incidence @ torch.diag(weight / sizes.clamp_min(1)) @ incidence.mT
        return torch.eye(7, dtype=torch.float64) - theta / (degrees[:, None] * degrees).sqrt(), degrees

    def test_the_laplacian_is_zhous(self):
        laplacian = Laplacian(Graph.from_hyperedges(self.members, self.weight))
        matrix, degrees = self.zhou(self.weight)
        assert torch.allclose(laplacian.degrees, degrees)
        assert torch.allclose(laplacian.to_dense(), matrix, atol=1e-14)
        assert np.allclose(eigenpairs(laplacian, 7).values, np.linalg.eigvalsh(matrix), atol=1e-12)
        assert laplacian.nullity.tolist() == [2]  # node 6 is in a hyperedge of its own

    def test_gradients_to_the_weights(self):
        def values(weight):
            pairs = eigenpairs(Laplacian(Graph.from_hyperedges(self.members, weight)), 4)
            return pairs.values.sum(), (pairs.vectors @ pairs.vectors.mT).square().sum()

        assert gradcheck(values, (self.weight.clone().requires_grad_(),), check_forward_ad=False)
