"""Multiple eigenvalues: all copies are found, and a cut through a cluster has no gap."""

import numpy as np
import pytest
import torch

from benchmarks.atlas.families import graph_of
from problems import DTYPES, check_pairs, every, ignoring, torus
from torch_lapeig import ConvergenceWarning, Graph, HeatKernel, Laplacian, eigenpairs, knn_graph
from torch_lapeig.eigen import ChebyshevSubspace, Lobpcg

COPY_FINDERS = {"default": None, "chebyshev": ChebyshevSubspace(), "lobpcg": Lobpcg()}
COPY_FINDERS |= {"chebyshev in float32": ChebyshevSubspace(single=True)}


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-6, 1e-10])
def test_a_block_of_filters_within_one_eigenspace_converges(tolerance):
    """Eleven columns, and an eigenvalue of eleven copies: from its last Ritz value on nothing would grow."""
    solver = ChebyshevSubspace(max_products=600)
    pairs = eigenpairs(Laplacian(graph_of("hypercube", 2048)), 3, solver, tolerance=tolerance)
    assert pairs.converged
    torch.testing.assert_close(pairs.values, torch.tensor([0, 2 / 11, 2 / 11], dtype=torch.float64), rtol=0, atol=1e-12)
    assert float(pairs.gap) < 1e-12


@pytest.mark.parametrize("solver", COPY_FINDERS.values(), ids=COPY_FINDERS)
def test_symmetric_graphs_of_many_equal_eigenvalues(solver):
    """Multiplicities of 9 on the hypercube of 512 nodes, cut before, in and after them."""
    laplacian = Laplacian(graph_of("hypercube", 512))
    exact = torch.linalg.eigvalsh(laplacian.to_dense())
    for k in (3, 5, 6, 10, 11):
        check_pairs(eigenpairs(laplacian, k, solver), exact, atol=1e-10)


@pytest.mark.parametrize("solver", COPY_FINDERS.values(), ids=COPY_FINDERS)
@pytest.mark.parametrize(("a", "b"), [(24, 24), (30, 17)])
def test_the_gap_of_a_cut_through_a_cluster_is_none(a, b, solver):
    """A torus: the cut splits 1 − cos of its smallest frequency, of multiplicity 4 or 2, and later ones."""
    edges, weight = torus(a, b)
    of_cycle = lambda n: 1 - torch.cos(2 * torch.pi * torch.arange(n) / n)  # noqa: E731
    exact = ((of_cycle(a)[:, None] + of_cycle(b)) / 2).double().flatten().sort().values
    for k in (2, 4, 7, 8):
        pairs = eigenpairs(Laplacian(Graph.from_edge_index(edges, weight)), k, solver)
        check_pairs(pairs, exact, atol=1e-6)
        assert (pairs.gap < 1e-12) == (exact[k] - exact[k - 1] < 1e-6)


@every(n=[501, 690, 845], dtype=DTYPES)
def test_both_copies_of_a_cycle(n, dtype):
    i = torch.arange(n)
    edges = torch.stack([torch.cat([i, (i + 1) % n]), torch.cat([(i + 1) % n, i])])
    exact = 1 - torch.cos(2 * torch.pi * torch.tensor([0, 1, 1, 2, 2], dtype=torch.float64) / n)
    graph = Graph.from_edge_index(edges, torch.ones(2 * n, dtype=dtype))
    for solver in (None, ChebyshevSubspace()):
        pairs = eigenpairs(Laplacian(graph), 5, solver)
        assert pairs.converged
        atol = 5e-7 if dtype == torch.float32 else 1e-13  # the next value is 1e-4 away
        torch.testing.assert_close(pairs.values.double(), exact, atol=atol, rtol=0)


@pytest.mark.parametrize(("dimensions", "seed", "k"), [(3, 1, 8), (4, 0, 5), (4, 4, 8)])
def test_copies_of_many_values(dimensions, seed, k):
    """Three equal components: what lies between the values known and where the filter ends are copies as well."""
    x = torch.randn(400, dimensions, generator=torch.Generator().manual_seed(seed))
    x = torch.cat([x + 100 * i for i in range(3)])
    laplacian = Laplacian(HeatKernel()(x, knn_graph(x, 10)))
    with ignoring(ConvergenceWarning):
        pairs = eigenpairs(laplacian, k, ChebyshevSubspace(), tolerance=0.1)
    if not pairs.converged:  # some processors' float32 does not resolve the copies at the cut, and says so
        pairs = eigenpairs(laplacian, k, tolerance=0.1)
    exact = torch.linalg.eigvalsh(laplacian.to_dense().double())
    torch.testing.assert_close(pairs.values.double(), exact[:k], atol=1e-4, rtol=0)
    torch.testing.assert_close(pairs.gap.double(), exact[k] - exact[k - 1], atol=1e-4, rtol=0)


def test_a_smaller_value_close_to_the_next_one_is_not_overlooked():
    """A Krylov space once found 0 and 1.86e-4, and missed 1.61e-4 between them."""
    rng = np.random.default_rng(1)
    for _ in range(45):  # the last of these weights
        sides, is_body = int(rng.integers(5, 9)), rng.random() < 0.5
        edges = 3 * sides**3 if is_body else 2 * (3 * sides) ** 2
        weight = torch.from_numpy(10.0 ** (-rng.choice([6, 9, 12]) * rng.random(edges)))
    both, _ = torus(24, 24)
    once = both[:, both[0] < both[1]]
    once = once[:, (once[0] * 576 + once[1]).argsort()]
    graph = Graph.from_edge_index(torch.cat([once, once.flip(0)], 1), weight.repeat(2), 576)
    exact = torch.linalg.eigvalsh(Laplacian(graph).to_dense())
    pairs = eigenpairs(Laplacian(graph), 1, ChebyshevSubspace())
    assert pairs.converged
    torch.testing.assert_close(pairs.gap, exact[1] - exact[0], rtol=0.1, atol=0)
