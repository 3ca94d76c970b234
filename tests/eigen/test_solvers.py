"""Every solver on every storage and dtype against SciPy, hard graphs, warm starts, multigrid."""

import itertools
import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import torch

from problems import (
    complete,
    complete_bipartite,
    cycle,
    in_every_dtype,
    on_every_device,
    path,
    points,
    preferential_attachment,
    random_affinity,
    sparse_path,
    spread_weights,
    subspace_angle,
    swiss_roll,
    torus,
    two_cliques,
)
from torch_lapeig import (
    ConvergenceError,
    ConvergenceWarning,
    Graph,
    GraphWarning,
    HeatKernel,
    Laplacian,
    eigenpairs,
    knn_graph,
)
from torch_lapeig.eigen import (
    ChebyshevSubspace,
    Eigh,
    Lanczos,
    Lobpcg,
    SmoothedAggregation,
    TorchLobpcg,
    component_eigenpairs,
)

SOLVERS = {
    "default": None,
    "eigh": Eigh(),
    "chebyshev": ChebyshevSubspace(),
    "lanczos": Lanczos(),
    "lobpcg": Lobpcg(),
    "lobpcg-plain": Lobpcg(preconditioner=None, max_iterations=2000),
    "torch.lobpcg": TorchLobpcg(),
}
EVERY_SOLVER = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
ITERATIVE = {name: s for name, s in SOLVERS.items() if name in ("chebyshev", "lanczos", "lobpcg", "lobpcg-plain")}
GRAPHS = {
    "random": random_affinity(120),
    "star": complete_bipartite(1, 99),
    "power law": preferential_attachment(150).toarray(),
    "12 orders": spread_weights(100),
    "cycle": cycle(99),
    "path": path(150),
    "complete": complete(60),
    "6 components": torch.block_diag(*[random_affinity(15, seed=i) for i in range(6)]),
}


@on_every_device
@in_every_dtype
@EVERY_SOLVER
@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("name", GRAPHS)
def test_agrees_with_scipy(name, storage, solver, dtype, device):
    affinity = torch.as_tensor(GRAPHS[name]).to(device, dtype)
    graph = Graph.from_dense(affinity)
    laplacian = Laplacian(graph if storage == "dense" else graph.to_sparse())
    w = affinity.double().cpu().numpy()
    d = w.sum(1)
    values, vectors = scipy.linalg.eigh(np.eye(len(w)) - w / np.sqrt(np.outer(d, d)))
    tight = dtype == torch.float64
    rounding = 4 * len(w) * torch.finfo(torch.float32).eps  # of products over all nodes: orthonormalised, then turned
    for k in (2, 5):
        if name == "cycle" and k == 2:
            continue  # the cut goes through a pair
        try:
            pairs = eigenpairs(laplacian, k, solver)
        except (ConvergenceError, ConvergenceWarning):
            assert isinstance(solver, TorchLobpcg)  # it breaks down or stalls, and says so
            continue
        assert pairs.converged
        np.testing.assert_allclose(pairs.values.cpu(), values[:k], atol=1e-12 if tight else 2e-6)
        v = pairs.vectors.double().cpu()
        torch.testing.assert_close(v.T @ v, torch.eye(k, dtype=v.dtype), atol=1e-11 if tight else rounding, rtol=0)
        if (gap := values[k] - values[k - 1]) > 1e-6:
            assert pairs.gap.item() == pytest.approx(gap, rel=0.1)
            if tight:
                assert subspace_angle(torch.from_numpy(vectors[:, :k]), v) < 1e-7


@pytest.mark.parametrize("solver", ITERATIVE.values(), ids=ITERATIVE.keys())
@pytest.mark.parametrize("k", [1, 2, 38, 39, 40])
def test_from_one_pair_to_all(solver, k):
    affinity = random_affinity(40)
    pairs = eigenpairs(Laplacian(Graph.from_dense(affinity)), k, solver)
    exact = torch.linalg.eigvalsh(Laplacian(Graph.from_dense(affinity)).to_dense())
    torch.testing.assert_close(pairs.values, exact[:k], atol=1e-11, rtol=0)
    assert pairs.converged
    assert (pairs.gap == torch.inf) == (k == 40)


@pytest.mark.parametrize("solver", [None, *ITERATIVE.values()], ids=["default", *ITERATIVE])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_disconnected_graphs(solver, count):
    x = torch.cat([points(30, 2, seed=i) + 100 * i for i in range(count)])
    laplacian = Laplacian(knn_graph(x, 6))
    exact = torch.linalg.eigvalsh(laplacian.to_dense())
    for k in (count, count + 2):  # all null, and some beyond
        pairs = eigenpairs(laplacian, k, solver)
        assert (pairs.values[:count] == 0).all()
        torch.testing.assert_close(pairs.values, exact[:k], atol=1e-11, rtol=0)
        assert pairs.gap.item() == pytest.approx((exact[k] - exact[k - 1]).item(), rel=0.05)
        assert pairs.converged


@pytest.mark.parametrize("solver", ITERATIVE.values(), ids=ITERATIVE.keys())
def test_more_components_than_pairs(solver):
    laplacian = Laplacian(Graph.from_dense(torch.block_diag(*[two_cliques(6, 6)] * 5)))
    pairs = eigenpairs(laplacian, 3, solver)
    assert pairs.values.tolist() == [0, 0, 0]
    assert pairs.gap == 0
    assert pairs.converged


@pytest.mark.parametrize("solver", [*ITERATIVE.values(), TorchLobpcg()], ids=[*ITERATIVE, "torch.lobpcg"])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_batches_with_padding(solver, storage):
    affinity = torch.stack([random_affinity(50, seed=i) for i in range(3)])
    affinity[1, 40:] = affinity[1, :, 40:] = 0
    mask = torch.arange(50) < torch.tensor([50, 40, 50])[:, None]
    graph = Graph.from_dense(affinity, mask)
    pairs = eigenpairs(Laplacian(graph if storage == "dense" else graph.to_sparse()), 4, solver)
    exact = eigenpairs(Laplacian(graph), 4, Eigh())
    torch.testing.assert_close(pairs.values, exact.values, atol=1e-11, rtol=0)
    torch.testing.assert_close(pairs.vectors, exact.vectors, atol=1e-6, rtol=0)
    assert not pairs.vectors[1, 40:].any()


@pytest.mark.parametrize("normalization", ["random_walk", "unnormalized"])
@pytest.mark.parametrize("solver", [Lanczos(), Lobpcg()], ids=str)
def test_other_normalisations(normalization, solver):
    """Multigrid is of D − W whatever the operator; self loops are in the degrees only."""
    x = swiss_roll(700)
    graph = HeatKernel()(x, knn_graph(x, 10, self_loops=True))
    pairs = eigenpairs(Laplacian(graph, normalization), 5, solver)
    exact = eigenpairs(Laplacian(graph, normalization), 5, Eigh())
    torch.testing.assert_close(pairs.values, exact.values, atol=1e-11, rtol=0)
    torch.testing.assert_close(pairs.vectors, exact.vectors, atol=1e-6, rtol=0)


@pytest.mark.parametrize("solver", ITERATIVE.values(), ids=ITERATIVE.keys())
def test_zero_iterations_are_not_converged(solver):
    laplacian = Laplacian(knn_graph(swiss_roll(1500), 8))
    option = "max_products" if isinstance(solver, Lanczos) else "max_iterations"
    none = type(solver)(**{option: 0})
    with pytest.warns(ConvergenceWarning, match="has not converged"):
        pairs = eigenpairs(laplacian, 4, none)
    assert not pairs.converged
    assert pairs.vectors.isfinite().all()
    with pytest.raises(ConvergenceError, match="residual"):
        eigenpairs(laplacian, 4, none, on_failure="raise")


def test_edges_of_weight_zero_do_not_connect():
    affinity = torch.block_diag(random_affinity(300), random_affinity(300, seed=1))
    row, col = affinity.nonzero(as_tuple=True)
    bridge = torch.tensor([[0, 300], [300, 0]])
    weight = torch.cat([affinity[row, col], torch.zeros(2, dtype=torch.float64)])
    graph = Graph.from_edge_index(torch.cat([torch.stack([row, col]), bridge], 1), weight)
    for solver in (None, Lanczos(), Lobpcg()):
        pairs = eigenpairs(Laplacian(graph), 4, solver)
        assert (pairs.values[:2] == 0).all()
        assert pairs.values[2] > 0.1


class TestHardGraphs:
    """The right answer, or a loud one: never a silently wrong vector."""

    @in_every_dtype
    def test_path_of_100_000_nodes(self, dtype):
        n = 10**5
        laplacian = Laplacian(Graph.from_scipy(sparse_path(n), dtype))
        pairs = eigenpairs(laplacian, 4)
        i = torch.arange(4, dtype=torch.float64)
        exact = 2 * torch.sin(torch.pi * i / (2 * (n - 1))).square()
        assert pairs.converged
        torch.testing.assert_close(pairs.values.double(), exact, rtol=1e-5, atol=0)
        node = torch.arange(n, dtype=torch.float64)[:, None]
        wave = torch.cos(torch.pi * i * node / (n - 1)) * laplacian.degrees.double().sqrt()[:, None]
        assert subspace_angle(wave / wave.norm(dim=0), pairs.vectors.double()) < 1e-4

    @pytest.mark.parametrize("solver", [Lanczos(max_products=100), ChebyshevSubspace(max_iterations=3)], ids=str)
    def test_what_cannot_be_solved_is_said(self, solver):
        with pytest.warns(ConvergenceWarning):
            pairs = eigenpairs(Laplacian(Graph.from_scipy(sparse_path(20_000))), 4, solver)
        assert not pairs.converged

    def test_star(self):
        n = 5000
        leaves = np.arange(1, n)
        star = scipy.sparse.coo_array((np.ones(n - 1), (np.zeros(n - 1, dtype=int), leaves)), shape=(n, n))
        for solver in (None, Lobpcg()):
            pairs = eigenpairs(Laplacian(Graph.from_scipy(star + star.T)), 5, solver)
            torch.testing.assert_close(pairs.values, torch.tensor([0, 1, 1, 1, 1.0], dtype=torch.float64))
            assert pairs.converged

    @pytest.mark.parametrize("edges", [1, 2, 5])
    def test_power_law(self, edges):
        graph = preferential_attachment(4000, edges)
        pairs = eigenpairs(Laplacian(Graph.from_scipy(graph)), 5)
        d = np.asarray(graph.sum(1)).ravel() ** -0.5
        s = graph.multiply(d[:, None]).multiply(d).tocsr()
        start = np.random.default_rng(0).random(len(d))
        values = 1 - scipy.sparse.linalg.eigsh(s, 5, which="LA", v0=start, return_eigenvectors=False)
        assert pairs.converged
        np.testing.assert_allclose(pairs.values, np.sort(values), atol=1e-11)

    def test_weights_over_12_orders(self):
        x = swiss_roll(1500)
        graph = knn_graph(x, 10)
        strength = 10 ** (-6 * torch.rand(1500, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
        row, col = graph.edge_index
        graph = graph.with_weight(strength[row] * strength[col])
        exact = eigenpairs(Laplacian(graph), 5, Eigh())
        for solver in (None, Lobpcg()):
            pairs = eigenpairs(Laplacian(graph), 5, solver)
            torch.testing.assert_close(pairs.values, exact.values, atol=1e-12, rtol=0)
            assert subspace_angle(exact.vectors, pairs.vectors) < 1e-6

    def test_faint_bridges(self):
        x = torch.cat([swiss_roll(600, seed=i) + 200 * i for i in range(3)])
        graph = knn_graph(x, 8)
        affinity = graph.to_scipy().tolil()
        for i in (0, 600):
            affinity[i, i + 600] = affinity[i + 600, i] = 1e-9
        laplacian = Laplacian(Graph.from_scipy(affinity.tocsr()))
        exact = eigenpairs(laplacian, 5, Eigh())
        pairs = eigenpairs(laplacian, 5, Lobpcg())
        torch.testing.assert_close(pairs.values, exact.values, atol=1e-13, rtol=1e-6)
        assert subspace_angle(exact.vectors, pairs.vectors) < 1e-6


class TestMultigrid:
    def roll(self, n=6000):
        return Laplacian(knn_graph(swiss_roll(n), 10))

    @pytest.mark.parametrize("single", [True, False])
    def test_the_cycle_is_symmetric_and_positive(self, single):
        laplacian = self.roll(3000)
        hierarchy = SmoothedAggregation(single=single, coarsest=50)(
            *laplacian.edges_of_affinity(), laplacian.ground.square()
        )
        assert len(hierarchy.levels) > 1
        scale = hierarchy.scale(laplacian.ground[:, None])
        x = points(3000, 4)
        null = laplacian.null_vectors(1)[0][0]
        x = x - null @ (null.T @ x)
        gram = x.T @ hierarchy.inverse(scale, x)
        torch.testing.assert_close(gram, gram.T, atol=(1e-4 if single else 1e-10) * gram.norm().item(), rtol=0)
        assert torch.linalg.eigvalsh((gram + gram.T) / 2).min() > 0

    def test_the_iteration_converges_at_a_rate_that_does_not_depend_on_size(self):
        rates = []
        for n in (1000, 8000):
            laplacian = self.roll(n)
            hierarchy = SmoothedAggregation()(*laplacian.edges_of_affinity(), laplacian.ground.square())
            scale, null = hierarchy.scale(laplacian.ground[:, None]), laplacian.null_vectors(1)[0][0]
            x = points(n, 1)
            with torch.no_grad():
                for _ in range(15):
                    x = x - null @ (null.T @ x)
                    before = x.norm()
                    x = x - hierarchy.inverse(scale, laplacian.matmul(x))
            rates.append((x.norm() / before).item())
        assert max(rates) < 0.7

    @pytest.mark.parametrize("seed", range(3))
    def test_points_that_lie_close_together_do_not_spoil_the_smoother(self, seed):
        """A pair joined much more strongly than to others has an eigenvalue of D⁻¹ L far above the others."""
        x = swiss_roll(800, seed=seed)
        laplacian = Laplacian(HeatKernel()(x, knn_graph(x, 8)))
        hierarchy = SmoothedAggregation(coarsest=150)(*laplacian.edges_of_affinity(), laplacian.ground.square())
        values, vectors = torch.linalg.eigh(laplacian.to_dense())
        assert values[-1] <= 1.001 * hierarchy.levels[0].radius
        root = vectors[:, 1:] * values[1:].sqrt()
        cycle = root.T @ hierarchy.inverse(hierarchy.scale(laplacian.ground[:, None]), root)
        spectrum = torch.linalg.eigvalsh((cycle + cycle.T) / 2)  # of the preconditioned operator
        assert spectrum.min() > 0.1
        assert spectrum.max() < 1.1
        assert eigenpairs(laplacian, 6, Lobpcg(), tolerance=1e-4).iterations <= 20

    def test_coarsening_goes_down_and_stays_within_its_complexity(self):
        laplacian = self.roll()
        hierarchy = SmoothedAggregation(coarsest=30)(*laplacian.edges_of_affinity(), laplacian.ground.square())
        sizes = [level.matrix.shape[0] for level in hierarchy.levels]
        assert sizes[0] == 6000
        assert all(b < a / 4 for a, b in itertools.pairwise(sizes[:-1]))
        assert sizes[-1] <= 30
        assert hierarchy.complexity < 1.5

    def test_hubs_do_not_fill_the_coarse_matrices(self):
        laplacian = Laplacian(Graph.from_scipy(preferential_attachment(8000, 3)))
        hierarchy = SmoothedAggregation(max_complexity=1.5)(*laplacian.edges_of_affinity(), laplacian.ground.square())
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


class TestDefault:
    def test_crowded_spectra_go_to_multigrid_and_the_others_to_lanczos(self):
        assert isinstance(eigenpairs(Laplacian(knn_graph(swiss_roll(5000), 10)), 6).solver, Lobpcg)
        assert isinstance(eigenpairs(Laplacian(knn_graph(points(5000, 10), 10)), 6).solver, Lanczos)
        assert isinstance(eigenpairs(Laplacian(knn_graph(points(300, 3), 10)), 6).solver, Eigh)
        assert isinstance(eigenpairs(Laplacian(knn_graph(points(500, 5, batch=2), 10)), 6).solver, ChebyshevSubspace)

    def test_large_batches_are_solved_one_by_one(self):
        x = torch.stack([swiss_roll(2500, seed=i) for i in range(2)])
        pairs = eigenpairs(Laplacian(knn_graph(x, 10)), 4)
        assert isinstance(pairs.solver, Lobpcg)
        for b in range(2):
            single = eigenpairs(Laplacian(knn_graph(x[b], 10)), 4)
            torch.testing.assert_close(pairs.values[b], single.values, atol=1e-12, rtol=0)
            torch.testing.assert_close(pairs.vectors[b], single.vectors, atol=1e-7, rtol=0)

    def test_float32_on_a_hard_graph_is_solved_in_float64(self):
        x = swiss_roll(5000)
        pairs = eigenpairs(Laplacian(knn_graph(x.float(), 10)), 5)
        exact = eigenpairs(Laplacian(knn_graph(x.float(), 10).to(torch.float64)), 5)
        assert pairs.vectors.dtype == torch.float32
        assert subspace_angle(exact.vectors, pairs.vectors.double()) < 1e-4

    def test_the_choice_says_who_answered(self):
        lines = []
        eigenpairs(Laplacian(knn_graph(swiss_roll(5000), 10)), 4, progress=lambda *line: lines.append(line))
        iterations, residuals, allowed = zip(*lines, strict=True)
        assert iterations[-1] > 0
        assert residuals[-1] <= allowed[-1]
        assert max(residuals) > 1e3 * residuals[-1]


def test_progress_bar(capsys):
    pytest.importorskip("tqdm")
    eigenpairs(Laplacian(knn_graph(points(600, 5), 8)), 4, progress=True)
    assert "residual" in capsys.readouterr().err


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
        first = eigenpairs(Laplacian(before), 6, tolerance=1e-3)
        cold = eigenpairs(Laplacian(after), 6, tolerance=1e-3)
        warm = eigenpairs(Laplacian(after), 6, tolerance=1e-3, warm_start=first)
        assert warm.iterations <= min(5, cold.iterations - 2)
        assert warm.restart.ritz.hierarchies[0] is first.restart.ritz.hierarchies[0]
        torch.testing.assert_close(warm.values, cold.values, atol=1e-8, rtol=0)
        assert subspace_angle(cold.vectors, warm.vectors) < 2e-3
        again = eigenpairs(Laplacian(after), 6, tolerance=1e-3, warm_start=warm)
        assert again.iterations <= 1

    def test_a_hierarchy_that_is_too_old_is_built_anew(self):
        before, _ = self.graphs(3000)
        first = eigenpairs(Laplacian(before), 4)
        other = Laplacian(knn_graph(swiss_roll(3000, seed=5), 10))
        warm = eigenpairs(other, 4, warm_start=first)
        assert warm.restart.ritz.hierarchies[0] is not first.restart.ritz.hierarchies[0]
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


def test_components_on_their_own():
    x = torch.cat([points(30, 2), points(3, 2) + 100, torch.full((1, 2), 500.0, dtype=torch.float64)])
    graph = knn_graph(x[:33], 2)
    row, col = graph.edge_index
    graph = Graph.from_edge_index(torch.stack([row, col]), graph.weight.clone().requires_grad_(), 34)
    found = component_eigenpairs(graph, 4)
    whole = eigenpairs(Laplacian(graph), 1)
    assert whole.values.tolist() == [0]
    assert sum(len(c.nodes) for c in found) == 33
    for component in found:
        k = min(4, len(component.nodes))
        affinity = graph.to_dense()[component.nodes][:, component.nodes].detach()
        exact = torch.linalg.eigvalsh(Laplacian(Graph.from_dense(affinity)).to_dense())
        torch.testing.assert_close(component.pairs.values.detach(), exact[:k], atol=1e-12, rtol=0)
        assert component.pairs.values.requires_grad


def test_lanczos_finds_multiple_eigenvalues():
    """A Krylov space of one vector has one vector of each; the others come in by fresh ones."""
    pairs = eigenpairs(Laplacian(Graph.from_dense(complete_bipartite(30, 40))), 12, Lanczos())
    assert pairs.converged
    torch.testing.assert_close(pairs.values[1:], torch.ones(11, dtype=torch.float64))
    ring = eigenpairs(Laplacian(Graph.from_dense(cycle(60))), 7, Lanczos())
    exact = torch.linalg.eigvalsh(Laplacian(Graph.from_dense(cycle(60))).to_dense())
    torch.testing.assert_close(ring.values, exact[:7], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "solver", [None, Lanczos(), Lobpcg(), ChebyshevSubspace()], ids=["default", "lanczos", "lobpcg", "chebyshev"]
)
@pytest.mark.parametrize("name", ["torus", "hypercube"])
def test_symmetric_graphs_of_many_equal_eigenvalues(name, solver):
    """Multiplicities of 4 on a torus of 900 nodes and of 9 on the hypercube of 512, cut before, in and after them."""
    if name == "torus":
        ring = cycle(30)
        affinity = torch.kron(ring, torch.eye(30)) + torch.kron(torch.eye(30), ring)
    else:
        node = torch.arange(512)
        affinity = ((node[:, None] ^ node)[..., None] == 2 ** torch.arange(9)).any(-1).double()
    laplacian = Laplacian(Graph.from_dense(affinity.double()).to_sparse())
    exact = torch.linalg.eigvalsh(laplacian.to_dense())
    for k in (3, 5, 6, 10, 11):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            pairs = eigenpairs(laplacian, k, solver)
        # A cut within equal ones asks for all that round-off allows: one solver alone may miss that, and says so.
        assert pairs.converged or (solver is not None and exact[k] - exact[k - 1] < 1e-10)
        if pairs.converged:
            torch.testing.assert_close(pairs.values, exact[:k], atol=1e-10, rtol=0)


def test_torch_lobpcg_says_when_it_cannot():
    laplacian = Laplacian(Graph.from_dense(random_affinity(20)))
    with pytest.raises(ValueError, match=r"torch.lobpcg needs at least 24 nodes for 8 vectors, got 20"):
        eigenpairs(laplacian, 7, TorchLobpcg())
    with pytest.warns(ConvergenceWarning):
        eigenpairs(Laplacian(knn_graph(swiss_roll(2000), 10)), 6, TorchLobpcg(max_iterations=3))


def test_copies_of_points_and_a_cloud_of_clusters():
    x = torch.cat([points(40, 2).repeat(12, 1), points(60, 2, seed=1) + 30])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        laplacian = Laplacian(knn_graph(x, 15))
    exact = eigenpairs(laplacian, 6, Eigh())
    for solver in (None, Lanczos(), Lobpcg()):
        pairs = eigenpairs(laplacian, 6, solver)
        torch.testing.assert_close(pairs.values, exact.values, atol=1e-11, rtol=0)


COPY_FINDERS = {"default": None, "chebyshev": ChebyshevSubspace(), "lanczos": Lanczos(), "lobpcg": Lobpcg()}


@pytest.mark.parametrize("solver", COPY_FINDERS.values(), ids=COPY_FINDERS)
@pytest.mark.parametrize(("a", "b"), [(24, 24), (30, 17)])
def test_the_gap_of_a_cut_through_a_cluster_is_none(a, b, solver):
    """A torus: the cut splits 1 − cos of its smallest frequency, of multiplicity 4 or 2, and later ones."""
    edges, weight = torus(a, b)
    of_cycle = lambda n: 1 - torch.cos(2 * torch.pi * torch.arange(n) / n)  # noqa: E731
    exact = ((of_cycle(a)[:, None] + of_cycle(b)) / 2).double().flatten().sort().values
    for k in (2, 4, 7, 8):
        pairs = eigenpairs(Laplacian(Graph.from_edge_index(edges, weight)), k, solver)
        gap = float(exact[k] - exact[k - 1])
        assert pairs.converged
        torch.testing.assert_close(pairs.values, exact[:k], atol=1e-6, rtol=0)
        assert abs(float(pairs.gap) - gap) <= max(1e-6, 0.1 * gap)
        assert (float(pairs.gap) < 1e-12) == (gap < 1e-6)


@in_every_dtype
@pytest.mark.parametrize("n", [501, 690, 845])
def test_both_copies_of_a_cycle(n, dtype):
    i = torch.arange(n)
    edges = torch.stack([torch.cat([i, (i + 1) % n]), torch.cat([(i + 1) % n, i])])
    exact = 1 - torch.cos(2 * torch.pi * torch.tensor([0, 1, 1, 2, 2], dtype=torch.float64) / n)
    graph = Graph.from_edge_index(edges, torch.ones(2 * n, dtype=dtype))
    for solver in (None, Lanczos()):
        pairs = eigenpairs(Laplacian(graph), 5, solver)
        assert pairs.converged
        atol = 5e-7 if dtype == torch.float32 else 1e-13  # the next value is 1e-4 away
        torch.testing.assert_close(pairs.values.double(), exact, atol=atol, rtol=0)


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


@pytest.mark.filterwarnings("ignore::torch_lapeig.GraphWarning")
@in_every_dtype
@pytest.mark.parametrize("seed", range(3))
def test_heavy_tails_break_no_solver_down(seed, dtype):
    """Weights down to the smallest normal number: multigrid divides by none of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(600, 3, generator=generator) * torch.exp(1.5 * torch.randn(600, 1, generator=generator))
    laplacian = Laplacian(HeatKernel()(x.to(dtype), knn_graph(x.to(dtype), 8)))
    pairs, exact = eigenpairs(laplacian, 3), eigenpairs(laplacian, 3, Eigh())
    assert pairs.converged
    torch.testing.assert_close(pairs.values, exact.values, atol=1e-12 if dtype == torch.float64 else 1e-6, rtol=0)


def test_a_solver_that_breaks_down_is_passed_over(monkeypatch):
    """Of the default's candidates; a solver that was asked for says so itself."""

    def broken(*_):
        raise torch.linalg.LinAlgError("no convergence")

    laplacian = Laplacian(knn_graph(swiss_roll(1200), 8))
    exact = eigenpairs(laplacian, 4, Eigh())
    monkeypatch.setattr(Lanczos, "__call__", broken)
    monkeypatch.setattr(Lobpcg, "__call__", broken)
    pairs = eigenpairs(laplacian, 4)
    assert isinstance(pairs.solver, Eigh)
    torch.testing.assert_close(pairs.values, exact.values, atol=1e-12, rtol=0)
    with pytest.raises(ConvergenceError, match=r"Lanczos.* broke down \(no convergence\)"):
        eigenpairs(laplacian, 4, Lanczos())


def test_an_item_of_a_batch_does_not_depend_on_the_others():
    """A curve needs filters of a degree at which those of a cloud would overflow float32."""
    curve = torch.zeros(200, 20)
    curve[:, 0] = torch.linspace(0, 1, 200)
    cloud = points(200, 20, dtype=torch.float32)
    graph = knn_graph(torch.stack([curve] + [cloud] * 39), 5)
    for solver in (None, ChebyshevSubspace()):
        pairs = eigenpairs(Laplacian(graph), 3, solver)
        assert pairs.converged.all()
        for item, b in ((curve, 0), (cloud, 1)):
            alone = eigenpairs(Laplacian(knn_graph(item, 5)), 3, Eigh())
            torch.testing.assert_close(pairs.values[b], alone.values, atol=2e-6, rtol=0)


def test_all_pairs_of_a_star_without_a_preconditioner():
    n = 40
    edges = torch.stack([torch.zeros(n - 1, dtype=torch.int64), torch.arange(1, n)])
    laplacian = Laplacian(Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1)))
    for k in (n - 2, n - 1, n):
        pairs = eigenpairs(laplacian, k, Lobpcg(preconditioner=None))
        assert pairs.converged
        exact = torch.tensor([0, *[1] * (n - 2), 2], dtype=torch.float64)[:k]
        torch.testing.assert_close(pairs.values.double(), exact, atol=1e-5, rtol=0)


def test_a_curve_stored_densely_is_left_to_eigh_in_time(monkeypatch):
    """Filters are given about the work of `Eigh`, not a hundred times as much."""
    work = []
    chebyshev = Laplacian.chebyshev

    def counted(self, x, degree, *rest):
        work.append(int(degree.max()) * x.shape[2])
        return chebyshev(self, x, degree, *rest)

    monkeypatch.setattr(Laplacian, "chebyshev", counted)
    n = 900
    pairs = eigenpairs(Laplacian(Graph.from_dense(path(n))), 8)
    assert pairs.converged
    assert sum(work) <= 5 * n


def test_a_narrow_spectrum_is_left_to_lanczos():
    """Where the wanted values are a part of the bound multigrid has nothing to gain."""
    random = np.random.default_rng(0)
    i, j = random.integers(0, 6000, (2, 30_000))
    apart = i != j
    matrix = scipy.sparse.coo_array((np.ones(apart.sum()), (i[apart], j[apart])), shape=(6000, 6000)).tocsr()
    matrix = matrix + matrix.T
    pairs = eigenpairs(Laplacian(Graph.from_scipy(matrix.tocsr())), 8)
    assert pairs.converged
    assert isinstance(pairs.solver, Lanczos)
