"""Signed Laplacians: dense references, balanced components, gradients at equal eigenvalues and at zero weights."""

import numpy as np
import pytest
import torch

from problems import check_derivatives, covering, heat_of, random_affinity
from torch_lapeig import SignedGraph, SignedLaplacian, eigenpairs
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lobpcg, SymmetricOperator


def switched(affinity, seed=0):
    """Return a balanced signed matrix: the signs of pairs of nodes of two camps."""
    camp = torch.randint(0, 2, (len(affinity),), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return camp[:, None] * affinity * camp


def signed(n, seed=0):
    sign = torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).triu().sign()
    return random_affinity(n, seed=seed) * (sign + sign.mT - sign.diag().diag()).double()


def reference(weight, normalization):
    w = np.asarray(weight, dtype=np.float64)
    degrees = np.abs(w).sum(1)
    matrix = np.diag(degrees) - w
    s = np.divide(1, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    return matrix if normalization == "unnormalized" else s[:, None] * matrix * s


def laplacian_of(weight, normalization="symmetric", sparse=False):
    graph = SignedGraph.from_dense(weight)
    return SignedLaplacian(graph.to_sparse() if sparse else graph, normalization)


@covering(2, normalization=["symmetric", "unnormalized"], n=[1, 2, 30, 400], sparse=[False, True])
def test_dense_references(normalization, n, sparse):
    weight = signed(n)
    weight[0, 0] = -2.0  # a negative loop counts twice, a positive one cancels
    weight[-1, -1] += 4.0
    operator = laplacian_of(weight, normalization, sparse)
    assert isinstance(operator, SymmetricOperator)
    matrix = reference(weight, normalization)
    assert np.allclose(operator.to_dense(), matrix, atol=1e-12)
    k = min(n, 5)
    pairs = eigenpairs(operator, k)
    assert np.allclose(pairs.values, np.linalg.eigvalsh(matrix)[:k], atol=1e-10)
    assert np.abs(matrix @ pairs.vectors.numpy() - (pairs.vectors * pairs.values).numpy()).max() <= 1e-9
    assert pairs.converged
    assert (operator.bound >= np.linalg.eigvalsh(matrix)[-1] - 1e-12).all()


@pytest.mark.parametrize("solver", [None, Eigh(), ChebyshevSubspace(), Lobpcg(preconditioner=None)])
def test_every_solver_finds_the_null_vectors_of_balanced_components(solver):
    weight = torch.block_diag(switched(random_affinity(150, keep=0.05)), signed(100), switched(random_affinity(90)))
    pairs = eigenpairs(laplacian_of(weight, sparse=True), 4, solver)
    assert pairs.converged
    assert np.allclose(pairs.values, np.linalg.eigvalsh(reference(weight, "symmetric"))[:4], atol=1e-9)
    assert (pairs.values[:2] <= 1e-12).all()
    assert pairs.values[2] > 1e-3


class TestGradients:
    @covering(2, normalization=["symmetric", "unnormalized"], sparse=[False, True], negative=[0, 1])
    def test_cycles_whose_values_come_in_pairs(self, normalization, sparse, negative):
        n, k = 8, 2 if negative else 3
        sign = torch.ones(n, dtype=torch.float64)
        sign[0] -= 2 * negative
        node = torch.arange(n)
        h = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

        def function(w):
            matrix = torch.zeros(n, n, dtype=torch.float64).index_put((node, node.roll(-1)), w)
            graph = SignedGraph.from_dense(matrix + matrix.mT)
            pairs = eigenpairs(SignedLaplacian(graph.to_sparse() if sparse else graph, normalization), k)
            return pairs.values.sum(), (h * heat_of(pairs)).sum()

        check_derivatives(function, sign, second=1e-4, fast_mode=True)

    @pytest.mark.parametrize("normalization", ["symmetric", "unnormalized"])
    def test_at_a_weight_of_zero_it_is_the_mean_of_both_sides(self, normalization):
        weight = signed(8)
        weight[1, 4] = weight[4, 1] = 0.0
        weight.requires_grad_()

        def function(w):
            return eigenpairs(laplacian_of(w, normalization), 2).values.square().sum()

        (gradient,) = torch.autograd.grad(function(weight), weight)
        step = torch.zeros(8, 8, dtype=torch.float64)
        step[1, 4] = step[4, 1] = 1e-5
        with torch.no_grad():
            ahead, behind = function(weight + step), function(weight - step)
        assert float((gradient * step).sum()) == pytest.approx(float(ahead - behind) / 2, rel=1e-4)

    def test_loops_have_the_derivative_of_their_sign(self):
        weight = signed(6)
        weight[0, 0], weight[1, 1], weight[2, 2] = -1.5, 2.0, 0.0
        matrix = laplacian_of(weight.requires_grad_(), "unnormalized").to_dense()
        (gradient,) = torch.autograd.grad(matrix.diagonal().sum(), weight)
        assert torch.allclose(gradient.diagonal()[:3], torch.tensor([-2.0, 0.0, 0.0], dtype=torch.float64))
