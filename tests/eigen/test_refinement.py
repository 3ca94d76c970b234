"""All pairs in float32, refined in float64: as good as those of a dense solve in float64, or left to it."""

import pytest
import torch

from problems import path, points, random_affinity
from torch_lapeig import Graph, Laplacian, eigenpairs
from torch_lapeig.eigen import Auto, ChebyshevSubspace, Eigh, eigh
from torch_lapeig.eigen import solve as solving
from torch_lapeig.eigen.check import RESOLVED
from torch_lapeig.eigen.eigh import refined


def affinities(batch, n, seed=0):
    """Gaussian affinities of all pairs, whose eigenvalues lie close together beyond the first."""
    x = points(n, 5, batch=batch, seed=seed)
    weight = torch.exp(-torch.cdist(x, x).square() / 60)
    weight.diagonal(dim1=-2, dim2=-1).zero_()
    return ((weight + weight.mT) / 2).float()


@pytest.fixture
def solved(monkeypatch):
    """The dtypes and numbers of matrices that LAPACK is asked for all pairs of, and the numbers that are refined."""
    asked, whole, refine = [], eigh.eigh_of_batch, solving.refined

    def watched(a):
        asked.append((a.dtype, len(a)))
        return whole(a)

    def watched_refinement(operator, *arguments):
        asked.append(("refined", operator.batch_size))
        return refine(operator, *arguments)

    monkeypatch.setattr(eigh, "eigh_of_batch", watched)
    monkeypatch.setattr(solving, "refined", watched_refinement)
    return asked


@pytest.mark.parametrize("n", [60, 150, 300])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("normalization", ["symmetric", "random_walk", "unnormalized"])
def test_it_is_the_answer_of_float64(batch, n, normalization, solved):
    weight = affinities(batch, n)
    weight = weight[0] if batch == 1 else weight
    k = 8

    def solve(weight):
        weight = weight.clone().requires_grad_()
        pairs = eigenpairs(Laplacian(Graph.from_dense(weight), normalization), k, Eigh(), tolerance=1e-6)
        probe = points(n, 1)[:, 0].to(weight)
        loss = (pairs.vectors.mT @ probe).pow(4).sum() + pairs.values.sum()
        gradient = torch.autograd.grad(loss, weight)[0]
        return pairs.values.detach(), pairs.residuals, pairs.converged, gradient

    values, residuals, converged, gradient = solve(weight)
    kinds = [kind for kind, _ in solved]
    exact, _, _, expected = solve(weight.double())
    assert kinds[0] == torch.float32
    assert torch.float64 not in kinds  # nothing was solved twice
    assert "refined" in kinds or normalization == "unnormalized"
    assert converged.all()
    torch.testing.assert_close(values.double(), exact, rtol=0, atol=1e-6 * float(exact.max()))
    assert residuals.max() <= 1e-5 * exact.max()
    assert (gradient.double() - expected).norm() <= 20 * RESOLVED * expected.norm()


def test_pairs_are_right_to_round_off_of_float64():
    weight = affinities(2, 200)
    single = Laplacian(Graph.from_dense(weight)).symmetric
    exact = single.double()
    found = refined(exact, 8, Eigh()(single, 8, 1e-4))
    true = Eigh()(exact, 8, 1e-10)
    assert found.finished.all()
    torch.testing.assert_close(found.values[:, :9], true.values[:, :9], rtol=0, atol=1e-13)
    v = found.vectors[..., :8]
    residual = exact.matmul(v) - v * found.values[:, None, :8]
    assert residual.norm(dim=1).max() < 1e-13
    assert (v.mT @ v - torch.eye(8, dtype=v.dtype)).abs().max() < 1e-13


def test_what_float32_cannot_order_is_not_finished():
    """Forty equal values: any of them may be one of the wanted."""
    n = 42
    weight = torch.ones(1, n, n) - torch.eye(n)
    single = Laplacian(Graph.from_dense(weight)).symmetric
    found = refined(single.double(), 3, Eigh()(single, 3, 1e-4))
    assert not found.finished.any()


def test_pairs_of_another_matrix_are_no_answer():
    first, other = (
        Laplacian(Graph.from_dense(random_affinity(40, seed=seed).float()[None])).symmetric for seed in (0, 1)
    )
    found = refined(first.double(), 4, Eigh()(other, 4, 1e-4))
    v = found.vectors[..., :4]
    residual = first.double().matmul(v) - v * found.values[:, None, :4]
    assert residual.norm(dim=1).max() > 1e-6 or not found.finished.any()


def test_graphs_that_float32_does_not_resolve_are_refined_beside_others(solved):
    """One of four."""
    n = 60
    easy = random_affinity(n).float()
    weight = torch.stack([easy, affinities(1, n)[0], easy, easy])
    found = eigenpairs(Laplacian(Graph.from_dense(weight)), 8, Eigh())
    assert solved == [(torch.float32, 4), ("refined", 4)]
    exact = torch.linalg.eigvalsh(Laplacian(Graph.from_dense(weight.double())).to_dense())[:, :8]
    torch.testing.assert_close(found.values.double(), exact, rtol=0, atol=1e-6)


def test_only_all_pairs_are_refined(monkeypatch, solved):
    """What comes to its limit in float32 is followed by `Eigh`, and there is nothing of all pairs to refine."""
    graph = Graph.from_dense(path(200).float()).to_sparse()
    choice = Auto().choose(Laplacian(graph).symmetric, 8)
    solvers = (ChebyshevSubspace(max_products=20), Eigh())
    monkeypatch.setattr(Auto, "choose", lambda *_: choice._replace(solvers=solvers))
    found = eigenpairs(Laplacian(graph), 8)
    assert solved == [(torch.float64, 1)]
    exact = torch.linalg.eigvalsh(Laplacian(graph.to(torch.float64)).to_dense())[:8]
    torch.testing.assert_close(found.values.double(), exact, rtol=0, atol=1e-6)
