"""Every solver on every storage and dtype against SciPy, and hard graphs."""

import functools

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import torch

import problems
import torch_lapeig as tl
from problems import every, path, points, random_affinity
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lobpcg, ShiftInvert, TorchLobpcg

SOLVERS = {"default": None, "eigh": Eigh(), "chebyshev": ChebyshevSubspace(), "lobpcg": Lobpcg()}
SOLVERS |= {"lobpcg-plain": Lobpcg(preconditioner=None, max_iterations=2000), "shift-invert": ShiftInvert()}
SOLVERS |= {"chebyshev in float32": ChebyshevSubspace(single=True)}
ITERATIVE = {name: solver for name, solver in SOLVERS.items() if name not in ("default", "eigh")}
GRAPHS = {"random": random_affinity(120), "star": problems.complete_bipartite(1, 99)}
GRAPHS |= {"power law": problems.preferential_attachment(150).toarray(), "12 orders": problems.spread_weights(100)}
GRAPHS |= {"cycle": problems.cycle(99), "path": path(150), "complete": problems.complete(60)}
GRAPHS |= {"6 components": torch.block_diag(*[random_affinity(15, seed=i) for i in range(6)])}
SIZES = {"6, 4": (6, 4), "4, 6, 5": (4, 6, 5), "60, 12": (60, 12, 60), "equal": (12, 12), "many": (40,) * 40 + (14,)}


@functools.cache
def exact_pairs(name):
    """Return all values and vectors of the normalised Laplacian by dense `scipy.linalg.eigh`."""
    w = np.asarray(GRAPHS[name], np.float64)
    d = w.sum(1)
    return scipy.linalg.eigh(np.eye(len(w)) - w / np.sqrt(np.outer(d, d)))


def assert_agrees_with_scipy(name, graph, solver):
    """Compare values, orthonormal vectors, the gap and the span of the vectors with `exact_pairs`."""
    values, vectors = exact_pairs(name)
    tight = graph.weight.dtype == torch.float64
    # Products over all nodes are rounded: vectors are orthonormalised, then turned.
    rounding = 4 * len(values) * torch.finfo(torch.float32).eps
    for k in (5,) if name == "cycle" else (2, 5):  # on the cycle a cut between equal values has no answer to agree with
        pairs = tl.eigenpairs(tl.Laplacian(graph), k, solver)
        assert pairs.converged
        np.testing.assert_allclose(pairs.values.cpu(), values[:k], atol=1e-12 if tight else 2e-6)
        v = pairs.vectors.double().cpu()
        torch.testing.assert_close(v.T @ v, torch.eye(k, dtype=v.dtype), atol=1e-11 if tight else rounding, rtol=0)
        if (gap := values[k] - values[k - 1]) > 1e-6:
            assert pairs.gap.item() == pytest.approx(gap, rel=0.1)
            if tight:
                assert problems.subspace_angle(torch.from_numpy(vectors[:, :k]), v) < 1e-7


# Filters, which the default uses, on every graph; each other solver on every second one.
SOLVED = [
    (name, solver)
    for number, name in enumerate(GRAPHS)
    for other, solver in enumerate(SOLVERS)
    if solver in ("default", "chebyshev") or (number + other) % 2
]


@pytest.mark.parametrize(("name", "solver"), SOLVED)
def test_agrees_with_scipy(name, solver):
    affinity = torch.as_tensor(GRAPHS[name])
    for dtype in problems.DTYPES:
        assert_agrees_with_scipy(name, tl.Graph.from_dense(affinity.to(dtype)).to_sparse(), SOLVERS[solver])


@pytest.mark.filterwarnings("ignore:.*isolated")
@pytest.mark.parametrize("is_sparse", [True, False])
def test_torch_lobpcg(is_sparse):
    """Two paths and isolated nodes beside a cycle, both with known values; and too few nodes for a block."""
    affinity = torch.stack([torch.block_diag(path(60), path(60), torch.zeros(3, 3)), problems.cycle(123)]).double()
    laplacian = tl.Laplacian(problems.stored(affinity, is_sparse))
    pairs = tl.eigenpairs(laplacian, 5, TorchLobpcg())
    assert pairs.converged.all()
    angles = np.pi * np.array([[0, 0, 1 / 59, 1 / 59, 2 / 59], [0, 2 / 123, 2 / 123, 4 / 123, 4 / 123]])
    np.testing.assert_allclose(pairs.values, 1 - np.cos(angles), atol=1e-12)
    rest = laplacian.matmul(pairs.vectors) - pairs.values[:, None] * pairs.vectors
    assert rest.norm(dim=1).max() <= 1e-5
    gap = tl.eigenpairs(laplacian, 1, TorchLobpcg()).gap  # null vectors only, and the next value
    np.testing.assert_allclose(gap, [0, 1 - np.cos(angles[1, 1])], rtol=0.1)
    with pytest.raises(ValueError, match=r"TorchLobpcg.* must have at least 123 nodes for k=40, got 120; use Eigh"):
        tl.eigenpairs(laplacian, 40, TorchLobpcg())


@problems.covering(1, name=GRAPHS.keys(), solver=[None, ChebyshevSubspace(), Lobpcg()])
def test_dense_graphs_agree_with_scipy(name, solver):
    assert_agrees_with_scipy(name, tl.Graph.from_dense(torch.as_tensor(GRAPHS[name])), solver)


@every(k=[1, 2, 38, 39, 40], solver=ITERATIVE)
def test_from_one_pair_to_all(solver, k):
    affinity = random_affinity(40)
    pairs = tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(affinity)), k, solver)
    exact = torch.linalg.eigvalsh(tl.Laplacian(tl.Graph.from_dense(affinity)).to_dense())
    torch.testing.assert_close(pairs.values, exact[:k], atol=1e-11, rtol=0)
    assert pairs.converged
    assert (pairs.gap == torch.inf) == (k == 40)


@pytest.mark.parametrize("solver", [None, *ITERATIVE.values()], ids=["default", *ITERATIVE])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_disconnected_graphs(solver, count):
    laplacian = tl.Laplacian(tl.knn_graph(torch.cat([points(30, 2, seed=i) + 100 * i for i in range(count)]), 6))
    exact = torch.linalg.eigvalsh(laplacian.to_dense())
    for k in (count, count + 2):  # all null, and some beyond
        pairs = tl.eigenpairs(laplacian, k, solver)
        assert (pairs.values[:count] == 0).all()
        problems.check_pairs(pairs, exact, atol=1e-11, gap_rtol=0.05)


@pytest.mark.filterwarnings("ignore:.*isolated")
@problems.covering(2, solver={"default": None, **ITERATIVE}, sizes=SIZES, storage=["dense", "sparse"])
def test_the_gap_of_graphs_beside_one_without_a_next_value(sizes, storage, solver):
    """All pairs of the smallest graph, and so no guard: the others still have a gap, and gradients."""
    n, k = max(sizes), min(sizes)
    affinity = torch.zeros(len(sizes), n, n, dtype=torch.float64)
    for b, size in enumerate(sizes):
        affinity[b, :size, :size] = random_affinity(size, seed=b)
    dense = tl.Graph.from_dense(affinity)
    graph = dense if storage == "dense" else dense.to_sparse()
    weight = graph.weight.clone().requires_grad_()
    pairs = tl.eigenpairs(tl.Laplacian(graph.with_weight(weight)), k, solver)
    exact = tl.eigenpairs(tl.Laplacian(dense), k, Eigh())
    assert pairs.converged.all()
    assert (exact.gap.isinf() == torch.tensor([size == k for size in sizes])).all()
    torch.testing.assert_close(pairs.values, exact.values, atol=1e-10, rtol=0)
    torch.testing.assert_close(pairs.gap, exact.gap, atol=1e-10, rtol=0.1)
    other = dense.weight.clone().requires_grad_()
    exact = tl.eigenpairs(tl.Laplacian(dense.with_weight(other)), k, Eigh())
    gradient, expected = (
        torch.autograd.grad(of.values.square().sum() + of.vectors.square().sum(2).square().sum(), at)[0]
        for of, at in ((pairs, weight), (exact, other))
    )
    found, present = graph.pattern.to_dense(gradient), affinity > 0
    torch.testing.assert_close((found + found.mT)[present], (expected + expected.mT)[present], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("solver", ITERATIVE.values(), ids=ITERATIVE.keys())
def test_zero_iterations_are_not_converged(solver):
    laplacian = tl.Laplacian(tl.knn_graph(problems.swiss_roll(1500), 8))
    option = "max_products" if isinstance(solver, ShiftInvert) else "max_iterations"
    none = type(solver)(**{option: 0})
    with pytest.warns(tl.ConvergenceWarning, match="has not converged"):
        pairs = tl.eigenpairs(laplacian, 4, none)
    assert not pairs.converged
    assert pairs.vectors.isfinite().all()
    with pytest.raises(tl.ConvergenceError, match="residual"):
        tl.eigenpairs(laplacian, 4, none, on_failure="raise")


@pytest.mark.filterwarnings("ignore:.*isolated")
@problems.in_every_dtype
@pytest.mark.parametrize("unit", [2.0**-40, 1.0, 2.0**40])
def test_nodes_without_edges_do_not_touch_the_accuracy_of_others(unit, dtype):
    """Residuals are round-off of the weights, not of what stands for nodes without edges; all pairs asked for."""
    inside = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:30].sort().values
    affinity = torch.zeros(40, 40, dtype=dtype)
    affinity[inside[:, None], inside] = random_affinity(30).to(dtype) * unit
    laplacian = tl.Laplacian(tl.Graph.from_dense(affinity), "unnormalized")
    exact = torch.linalg.eigvalsh(laplacian.to_dense()[inside[:, None], inside].double())
    for k in (3, 30):
        pairs = tl.eigenpairs(laplacian, k, Eigh())
        assert pairs.converged
        allowed = 40 * torch.finfo(dtype).eps * laplacian.symmetric.bound.item()
        assert pairs.residuals.max() <= allowed
        torch.testing.assert_close(pairs.values.double(), exact[:k], atol=allowed, rtol=0)


class TestHardGraphs:
    """The right answer, or a loud one: never a silently wrong vector."""

    @problems.in_every_dtype
    def test_path_of_100_000_nodes(self, dtype):
        n = 10**5
        laplacian = tl.Laplacian(tl.Graph.from_scipy(problems.sparse_path(n), dtype))
        pairs = tl.eigenpairs(laplacian, 4)
        i = torch.arange(4, dtype=torch.float64)
        exact = 2 * torch.sin(torch.pi * i / (2 * (n - 1))).square()
        assert pairs.converged
        torch.testing.assert_close(pairs.values.double(), exact, rtol=1e-5, atol=0)
        node = torch.arange(n, dtype=torch.float64)[:, None]
        wave = torch.cos(torch.pi * i * node / (n - 1)) * laplacian.degrees.double().sqrt()[:, None]
        assert problems.subspace_angle(wave / wave.norm(dim=0), pairs.vectors.double()) < 1e-4

    def test_faint_bridges(self):
        graph = tl.knn_graph(torch.cat([problems.swiss_roll(600, seed=i) + 200 * i for i in range(3)]), 8)
        affinity = graph.to_scipy().tolil()
        for i in (0, 600):
            affinity[i, i + 600] = affinity[i + 600, i] = 1e-9
        laplacian = tl.Laplacian(tl.Graph.from_scipy(affinity.tocsr()))
        exact = tl.eigenpairs(laplacian, 5, Eigh())
        pairs = tl.eigenpairs(laplacian, 5, Lobpcg())
        torch.testing.assert_close(pairs.values, exact.values, atol=1e-13, rtol=1e-6)
        assert problems.subspace_angle(exact.vectors, pairs.vectors) < 1e-6


def test_progress_bar(capsys):
    pytest.importorskip("tqdm")
    tl.LaplacianEigenmaps(2, tl.KNN(8), solve=tl.Solve(progress=True)).fit(points(9000, 3))
    shown = capsys.readouterr().err
    assert "neighbours: 100%" in shown
    assert "residual" in shown


def test_reports_of_a_search_count_its_blocks_down():
    reports = []
    solve = tl.Solve(progress=lambda *report: reports.append(report))
    tl.LaplacianEigenmaps(2, tl.KNN(5), solve=solve).fit(points(30_000, 3))
    search = [report for report in reports if report[2] == 0]
    assert len(search) > 20
    assert search == reports[: len(search)]
    assert [done for done, _, _ in search] == list(range(1, len(search) + 1))
    assert [left for _, left, _ in search] == pytest.approx([1 - done / len(search) for done, _, _ in search])


def test_an_item_of_a_batch_does_not_depend_on_the_others():
    """A curve needs filters of a degree at which those of a cloud would overflow float32."""
    curve = torch.zeros(200, 20)
    curve[:, 0] = torch.linspace(0, 1, 200)
    cloud = points(200, 20, dtype=torch.float32)
    graph = tl.knn_graph(torch.stack([curve] + [cloud] * 39), 5)
    for solver in (None, ChebyshevSubspace()):
        pairs = tl.eigenpairs(tl.Laplacian(graph), 3, solver)
        assert pairs.converged.all()
        for item, b in ((curve, 0), (cloud, 1)):
            alone = tl.eigenpairs(tl.Laplacian(tl.knn_graph(item, 5)), 3, Eigh())
            torch.testing.assert_close(pairs.values[b], alone.values, atol=2e-6, rtol=0)


@problems.in_every_dtype
def test_residuals_of_eigh_equal_those_of_a_product(dtype):
    """LAPACK's reduction alone leaves ten to thirty units of round-off here, by the library, and more with nodes."""
    two = torch.block_diag(problems.complete(200), path(200))
    affinity = torch.stack([path(400), problems.cycle(400), problems.complete_bipartite(1, 399), two])
    weight = affinity.to(dtype).requires_grad_()  # a gradient needs all pairs
    laplacian = tl.Laplacian(tl.Graph.from_dense(weight))
    pairs = tl.eigenpairs(laplacian, 8, Eigh())
    assert pairs.converged.all()
    assert pairs.residuals[:, 2:].max() <= 4 * torch.finfo(dtype).eps * laplacian.symmetric.bound.max()
    basis = Eigh()(laplacian.symmetric, 8, 1e-10).vectors.double()
    eye = torch.eye(400, dtype=torch.float64).expand(4, 400, 400)
    torch.testing.assert_close(basis.mT @ basis, eye, rtol=0, atol=100 * torch.finfo(dtype).eps ** 0.8)
    some = tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(affinity.to(dtype))), 8, Eigh())  # by LAPACK's subset driver
    assert some.converged.all()
    assert some.residuals.max() <= 40 * torch.finfo(dtype).eps * laplacian.symmetric.bound.max()
    torch.testing.assert_close(some.values, pairs.values.detach(), rtol=0, atol=100 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("solver", [None, Lobpcg(), ChebyshevSubspace()], ids=str)
def test_a_gap_that_float32_does_not_resolve_is_right(solver):
    """Null vectors have a residual of 0, which told nothing of the pair after them, which the gap is measured to."""
    halves = [tl.knn_graph(points(1000, 2, seed=seed), 6).to_dense() for seed in (0, 1)]
    affinity = torch.block_diag(*halves, torch.zeros(1, 1, dtype=torch.float64))
    affinity[0, 1000] = affinity[1000, 0] = 2.0**-10  # a weak bridge
    affinity[-1, :1000] = affinity[:1000, -1] = 1  # a hub of one half
    exact = torch.linalg.eigvalsh(tl.Laplacian(tl.Graph.from_dense(affinity), "unnormalized").to_dense())
    pairs = tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(affinity.float()).to_sparse(), "unnormalized"), 1, solver)
    assert pairs.converged
    assert pairs.gap.item() == pytest.approx(exact[1].item(), rel=0.1)


@pytest.mark.parametrize(("branches", "decades"), [(4, 2.65), (2, 1.5)])
def test_trees_of_weights_over_decades_are_left_to_factors(branches, decades):
    """Vectors of symmetric trees repeat numbers: the rounding of one long sum has a sign, and is no residual."""
    n = 2500
    parent = (torch.arange(1, n) - 1) // branches
    depth = torch.zeros(n)
    for node in range(1, n):
        depth[node] = depth[parent[node - 1]] + 1
    weight = 10.0 ** (-decades * depth[1:].double())
    edges = torch.stack([torch.arange(1, n), parent])
    graph = tl.Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), weight.repeat(2))
    pairs = tl.eigenpairs(tl.Laplacian(graph), 5)
    assert isinstance(pairs.solver, ShiftInvert)
    assert pairs.residuals.max() <= 1e-13
    exact = torch.linalg.eigvalsh(tl.Laplacian(graph).to_dense())[:5]
    torch.testing.assert_close(pairs.values, exact, rtol=0, atol=1e-13)
