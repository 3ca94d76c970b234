"""The compiled loop of subspace iteration, against its steps in torch and dense eigenpairs."""

import pytest
import torch

from problems import covering, points, sparse_path
from torch_lapeig import Graph, HeatKernel, Laplacian, eigenpairs, knn_graph
from torch_lapeig.eigen import ChebyshevSubspace
from torch_lapeig.eigen.solvers import chebyshev
from torch_lapeig.native import calls

pytestmark = pytest.mark.skipif(calls.library() is None, reason="nothing is compiled")
GRAPHS = {
    "points": lambda: knn_graph(points(700, 6), 8),
    "path": lambda: Graph.from_scipy(sparse_path(80)),
    "parts": lambda: Graph.from_dense(torch.block_diag(*[Graph.from_scipy(sparse_path(30)).to_dense()] * 4)),
    "complete": lambda: Graph.from_dense(1 - torch.eye(41, dtype=torch.float64)),
    "batch": lambda: HeatKernel()(points(300, 5, batch=3), knn_graph(points(300, 5, batch=3), 8)),
}


@covering(2, graph=GRAPHS, tolerance=[1e-2, 1e-6, 1e-10], normalization=["symmetric", "unnormalized"])
def test_the_same_filters_as_in_steps(graph, tolerance, normalization, monkeypatch):
    operator = Laplacian(graph(), normalization).symmetric
    whole = ChebyshevSubspace()(operator, 5, tolerance)
    monkeypatch.setattr(chebyshev, "subspace", lambda *args: None)
    steps = ChebyshevSubspace()(operator, 5, tolerance)
    assert whole.finished.all()
    assert steps.finished.all()
    if operator.batch_size == 1:  # in a batch the others have filters as long as those who need most
        assert whole.iterations == steps.iterations
    exact = torch.linalg.eigvalsh(operator.to_dense()).reshape(operator.batch_size, -1)[:, :5]
    bound = float(operator.bound.max())
    for pairs in (whole, steps):
        rest = operator.matmul(pairs.vectors) - pairs.values[:, None, :] * pairs.vectors
        error = 1e-12 * bound + rest.norm(dim=1)[:, :5].square().amax() / 1e-3
        assert (pairs.values[:, :5] - exact).abs().max() <= error
        gram = pairs.vectors.mT @ pairs.vectors
        torch.testing.assert_close(gram, torch.eye(gram.shape[1], dtype=gram.dtype).expand_as(gram), rtol=0, atol=1e-12)


@pytest.mark.parametrize("guards", [3, 8, 35])
def test_columns_are_filtered_on_threads_as_on_one(guards, monkeypatch):
    operator = Laplacian(knn_graph(points(3000, 3), 8)).symmetric
    monkeypatch.setattr(chebyshev, "is_for_one_thread", lambda numbers: True)
    monkeypatch.setattr(calls, "COMPILED_PART", 1)
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(calls, "num_threads", lambda threads=threads: threads)
        found.append(ChebyshevSubspace(guards=guards)(operator, 5, 1e-8).values[:, :5])
    for values in found[1:]:
        torch.testing.assert_close(values, found[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("spread", [1e-3, 1e-7])
def test_clusters_whose_values_are_tiny_beside_the_others(spread, monkeypatch):
    monkeypatch.setattr(ChebyshevSubspace, "_step_by_step", None)
    weights = torch.block_diag(*[1 - torch.eye(30, dtype=torch.float64)] * 6)
    weights[weights == 0] = spread / 180
    weights.fill_diagonal_(0)
    index = weights.nonzero().T
    laplacian = Laplacian(Graph.from_edge_index(index, weights[tuple(index)], num_nodes=180))
    pairs = eigenpairs(laplacian, 8, ChebyshevSubspace(), tolerance=1e-3)
    exact = torch.linalg.eigvalsh(laplacian.to_dense().double())[:8]
    assert pairs.converged
    torch.testing.assert_close(pairs.values.double(), exact, rtol=0, atol=1e-12)
