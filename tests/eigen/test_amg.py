"""Multigrid: its cycle, its levels, and what it is good for."""

import itertools

import pytest
import torch

from problems import (
    points,
    preferential_attachment,
    swiss_roll,
)
from torch_lapeig import (
    Graph,
    HeatKernel,
    Laplacian,
    eigenpairs,
    knn_graph,
)
from torch_lapeig.eigen import (
    Lobpcg,
    SmoothedAggregation,
)


class TestMultigrid:
    def roll(self, n=6000):
        return Laplacian(knn_graph(swiss_roll(n), 10))

    @pytest.mark.parametrize("single", [True, False])
    def test_the_cycle_is_symmetric_and_positive(self, single):
        laplacian = self.roll(3000)
        cycle = SmoothedAggregation(single=single, coarsest=50)(laplacian.symmetric)
        assert len(cycle.hierarchy.levels) > 1
        x = points(3000, 4)
        null = laplacian.symmetric.null_vectors(1)[0]
        x = x - null @ (null.T @ x)
        gram = x.T @ cycle(x)
        torch.testing.assert_close(gram, gram.T, atol=(1e-4 if single else 1e-10) * gram.norm().item(), rtol=0)
        assert torch.linalg.eigvalsh((gram + gram.T) / 2).min() > 0

    def test_the_iteration_converges_at_a_rate_that_does_not_depend_on_size(self):
        rates = []
        for n in (1000, 8000):
            laplacian = self.roll(n)
            cycle, null = SmoothedAggregation()(laplacian.symmetric), laplacian.symmetric.null_vectors(1)[0]
            x = points(n, 1)
            with torch.no_grad():
                for _ in range(15):
                    x = x - null @ (null.T @ x)
                    before = x.norm()
                    x = x - cycle(laplacian.matmul(x))
            rates.append((x.norm() / before).item())
        assert max(rates) < 0.7

    @pytest.mark.parametrize("seed", range(3))
    def test_points_that_lie_close_together_do_not_spoil_the_smoother(self, seed):
        """A pair joined much more strongly than to others has an eigenvalue of D⁻¹ L far above the others."""
        x = swiss_roll(800, seed=seed)
        laplacian = Laplacian(HeatKernel()(x, knn_graph(x, 8)))
        multigrid = SmoothedAggregation(coarsest=150)(laplacian.symmetric)
        values, vectors = torch.linalg.eigh(laplacian.to_dense())
        assert values[-1] <= 1.001 * multigrid.hierarchy.levels[0].radius
        root = vectors[:, 1:] * values[1:].sqrt()
        cycle = root.T @ multigrid(root)
        spectrum = torch.linalg.eigvalsh((cycle + cycle.T) / 2)  # of the preconditioned operator
        assert spectrum.min() > 0.1
        assert spectrum.max() < 1.1
        assert eigenpairs(laplacian, 6, Lobpcg(), tolerance=1e-4).iterations <= 20

    def test_coarsening_goes_down_and_stays_within_its_complexity(self):
        laplacian = self.roll()
        hierarchy = SmoothedAggregation(coarsest=30)(laplacian.symmetric).hierarchy
        sizes = [level.matrix.shape[0] for level in hierarchy.levels]
        assert sizes[0] == 6000
        assert all(b < a / 4 for a, b in itertools.pairwise(sizes[:-1]))
        assert sizes[-1] <= 30
        assert hierarchy.complexity < 1.5

    def test_hubs_do_not_fill_the_coarse_matrices(self):
        laplacian = Laplacian(Graph.from_scipy(preferential_attachment(8000, 3)))
        hierarchy = SmoothedAggregation(max_complexity=1.5)(laplacian.symmetric).hierarchy
        entries = [len(level.matrix.values()) for level in hierarchy.levels]
        assert max(entries[1:]) <= entries[0]

    def test_iterations_hardly_grow(self):
        iterations = [eigenpairs(self.roll(n), 6, Lobpcg()).iterations for n in (1500, 12_000)]
        assert iterations[1] <= 1.5 * iterations[0]

    def test_multigrid_is_what_makes_it_fast(self):
        laplacian = self.roll(3000)
        with_it = eigenpairs(laplacian, 6, Lobpcg(), tolerance=1e-6)
        without = eigenpairs(laplacian, 6, Lobpcg(preconditioner=None, max_iterations=1000), tolerance=1e-6)
        torch.testing.assert_close(with_it.values, without.values, atol=1e-10, rtol=0)
        assert 4 * with_it.iterations < without.iterations
