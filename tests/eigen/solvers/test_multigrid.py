"""Multigrid: its cycle, its rate on graphs of any size, and faint edges."""

import pytest
import torch

from problems import covering, points, swiss_roll
from torch_lapeig import Graph, HeatKernel, Laplacian, ResolutionWarning, eigenpairs, knn_graph
from torch_lapeig.eigen import Lobpcg, ShiftInvert, SmoothedAggregation


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


class TestFaintEdges:
    """Weights of all sizes: what lies apart stays apart on all levels, and what is next to apart can be told."""

    def clouds(self, seed, n=1500):
        """Clusters of sizes over two decades, with heat weights of a bandwidth that is small beside most of them."""
        generator = torch.Generator().manual_seed(seed)
        scale = 10 ** (2 * torch.rand(10, generator=generator, dtype=torch.float64) - 1.5)
        cluster = torch.randint(10, (n,), generator=generator)
        centre = 3 * torch.randn(10, 3, generator=generator, dtype=torch.float64)
        noise = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        x = centre[cluster] + scale[cluster, None] * noise
        return Laplacian(HeatKernel(0.5)(x, knn_graph(x, 10)))

    @covering(1, seed=[0, 1, 2, 33, 324, 390], tolerance=[0.1, 1e-3])
    def test_pairs_of_clusters_next_to_apart_are_found(self, seed, tolerance):
        laplacian = self.clouds(seed)
        exact = eigenpairs(laplacian, 12, ShiftInvert(), tolerance=1e-6).values
        k = int((exact[6:] / exact[5:-1]).argmax()) + 6
        pairs = eigenpairs(laplacian, k, Lobpcg(), tolerance=tolerance)
        assert pairs.converged
        gap = exact[k] - exact[k - 1]
        torch.testing.assert_close(pairs.values, exact[:k], rtol=1e-6, atol=tolerance * float(gap))
        torch.testing.assert_close(pairs.gap, gap, rtol=0.2, atol=0)

    @pytest.mark.parametrize("faintest", [1e-20, 1e-40, 1e-100])
    def test_clusters_that_are_all_but_apart_do_not_overflow(self, faintest):
        """In float32, in which the cycles are done, 10³⁸ is the largest number."""
        n, parts = 400, 5
        graph = knn_graph(torch.cat([points(n, 3, seed=part) + 100 * part for part in range(parts)]), 8)
        link = torch.tensor([[n * part, n * part + n] for part in range(parts - 1)]).mT
        edges = torch.cat([graph.edge_index, link, link.flip(0)], 1)
        weight = torch.cat([graph.weight, torch.full((2 * (parts - 1),), faintest, dtype=torch.float64)])
        operator = Laplacian(Graph.from_edge_index(edges, weight)).symmetric
        assert operator.most_null == 1
        cycle = SmoothedAggregation(coarsest=50)(operator)
        assert len(cycle.hierarchy.levels) > 1  # above the coarsest
        assert cycle(points(n * parts, 4)).isfinite().all()
        with pytest.warns(ResolutionWarning):  # of four values below round-off, and of nothing else
            pairs = eigenpairs(operator, 2 * parts, Lobpcg(), tolerance=1e-3)
        torch.testing.assert_close(pairs.values[:parts], torch.zeros(parts, dtype=torch.float64), rtol=0, atol=1e-12)
