"""Solves that begin with the pairs of a similar problem."""

import pytest
import torch

from problems import (
    in_every_dtype,
    points,
    subspace_angle,
    swiss_roll,
    torus,
)
from torch_lapeig import (
    Graph,
    Laplacian,
    eigenpairs,
    knn_graph,
)
from torch_lapeig.eigen import (
    ChebyshevSubspace,
    Eigh,
    Lanczos,
    Lobpcg,
    ShiftInvert,
)

ITERATIVE = {
    "chebyshev": ChebyshevSubspace(),
    "lanczos": Lanczos(),
    "lobpcg": Lobpcg(),
    "lobpcg-plain": Lobpcg(preconditioner=None, max_iterations=2000),
    "shift-invert": ShiftInvert(),
}


COPY_FINDERS = {
    "default": None,
    "chebyshev": ChebyshevSubspace(),
    "lanczos": Lanczos(),
    "lobpcg": Lobpcg(),
    "shift": ShiftInvert(),
}


class TestWarmStart:
    def graphs(self, n=6000, change=0.01):
        graph = knn_graph(swiss_roll(n), 10)
        noise = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        factor = 1 + change * (graph.pattern.at_row(noise) + graph.pattern.at_col(noise))
        return graph, graph.with_weight(graph.weight * factor)

    @pytest.mark.parametrize("limit", [10**5, 1000])
    def test_fewer_iterations_and_the_same_answer(self, monkeypatch, limit):
        monkeypatch.setattr("torch_lapeig.eigen.solve.REORDER_NODES", limit)
        before, after = self.graphs()
        first = eigenpairs(Laplacian(before), 6, Lobpcg(), tolerance=1e-3)
        cold = eigenpairs(Laplacian(after), 6, Lobpcg(), tolerance=1e-3)
        warm = eigenpairs(Laplacian(after), 6, tolerance=1e-3, warm_start=first)
        assert warm.iterations <= min(5, cold.iterations - 2)
        assert warm.restart.ritz.inverses[0].hierarchy is first.restart.ritz.inverses[0].hierarchy
        torch.testing.assert_close(warm.values, cold.values, atol=1e-8, rtol=0)
        assert subspace_angle(cold.vectors, warm.vectors) < 2e-3
        again = eigenpairs(Laplacian(after), 6, tolerance=1e-3, warm_start=warm)
        assert again.iterations <= 1

    @pytest.mark.parametrize("solver", [Lobpcg(), Lobpcg(preconditioner=None), ChebyshevSubspace()], ids=str)
    def test_the_smallest_of_more_pairs(self, solver):
        graph = knn_graph(points(600, 3), 8)
        first = eigenpairs(Laplacian(graph), 12, solver)
        warm = eigenpairs(Laplacian(graph), 4, solver, warm_start=first)
        assert warm.iterations <= int(isinstance(solver, ChebyshevSubspace))  # which tries random columns first
        assert warm.converged
        torch.testing.assert_close(warm.values, first.values[:4], atol=1e-12, rtol=0)
        torch.testing.assert_close(warm.gap, first.values[4] - first.values[3], atol=0, rtol=1e-6)

    def test_a_hierarchy_that_is_too_old_is_built_anew(self):
        before, _ = self.graphs(3000)
        first = eigenpairs(Laplacian(before), 4, Lobpcg())
        other = Laplacian(knn_graph(swiss_roll(3000, seed=5), 10))
        warm = eigenpairs(other, 4, warm_start=first)
        assert warm.restart.ritz.inverses[0].hierarchy is not first.restart.ritz.inverses[0].hierarchy
        torch.testing.assert_close(warm.values, eigenpairs(other, 4).values, atol=1e-12, rtol=0)

    @in_every_dtype
    @pytest.mark.parametrize("solver", [*ITERATIVE.values(), Eigh()], ids=[*ITERATIVE, "eigh"])
    def test_with_every_solver(self, solver, dtype):
        laplacian = Laplacian(knn_graph(points(500, 3), 8).to(dtype))
        first = eigenpairs(laplacian, 4, solver)
        warm = eigenpairs(laplacian, 4, solver, warm_start=first)
        torch.testing.assert_close(warm.values, first.values, atol=1e-12 if dtype == torch.float64 else 1e-5, rtol=0)
        assert warm.iterations <= first.iterations

    def test_of_another_size(self):
        first = eigenpairs(Laplacian(knn_graph(points(30, 2), 5)), 3)
        with pytest.raises(ValueError, match=r"warm_start must be of 1 graphs of 40 nodes, got \(1, 30\)"):
            eigenpairs(Laplacian(knn_graph(points(40, 2), 5)), 3, warm_start=first)


@pytest.mark.parametrize("solver", COPY_FINDERS.values(), ids=COPY_FINDERS)
def test_a_start_of_eigenvectors_that_are_no_longer_the_smallest(solver):
    """A torus whose two weights are exchanged has the same eigenvectors with other eigenvalues."""
    before, after = (Laplacian(Graph.from_edge_index(*torus(32, 24, *w))) for w in ((1.0, 50.0), (50.0, 1.0)))
    for k in (3, 5):
        warm = eigenpairs(after, k, solver, warm_start=eigenpairs(before, k, solver))
        exact = eigenpairs(after, k, Eigh())
        assert warm.converged
        torch.testing.assert_close(warm.values, exact.values, atol=1e-10, rtol=0)
        assert warm.gap.item() == pytest.approx(exact.gap.item(), abs=1e-10, rel=0.1)
