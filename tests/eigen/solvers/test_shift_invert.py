"""Shift-and-invert on sparse factors, and what happens where there are none."""

import copy
import math
import pickle

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch

import problems
from benchmarks.atlas.families import graph_of
from problems import check_pairs, check_vectors, grid, ignoring
from torch_lapeig import ConvergenceError, ConvergenceWarning, DegeneracyWarning, Graph, Laplacian, eigenpairs
from torch_lapeig.eigen import Eigh, Lobpcg, ShiftInvert, SparseFactors, SymmetricOperator
from torch_lapeig.eigen.solvers import factors
from torch_lapeig.graph.pattern import DensePattern
from torch_lapeig.native import calls as native


def scipy_graph(matrix):
    return Graph.from_scipy(scipy.sparse.csr_array(matrix))


@pytest.fixture(params=["compiled", "SuperLU"])
def each_kind(request, monkeypatch):
    """Factors by compiled loops and by SuperLU."""
    if request.param == "SuperLU":
        monkeypatch.setattr(factors.Shifted, "is_readable", property(lambda self: False))


@pytest.mark.usefixtures("each_kind")
class TestPairs:
    @problems.covering(1, k=[1, 2, 9, 10, 11, 12, 20], tolerance=[None, 1e-3])
    def test_more_copies_than_a_block_has_columns(self, k, tolerance):
        """The eigenvalues 2j/10 of a cube in ten dimensions have the multiplicities 1, 10, 45, …."""
        pairs = eigenpairs(Laplacian(scipy_graph(grid(*[2] * 10))), k, ShiftInvert(), tolerance=tolerance)
        check_pairs(pairs, torch.tensor([0.0] + [0.2] * 10 + [0.4] * 45, dtype=torch.float64), atol=1e-9, gap_rtol=0.05)

    @pytest.mark.filterwarnings("ignore::torch_lapeig.ConvergenceWarning")
    @problems.covering(1, k=[12, 19, 27], tolerance=[None, 1e-4], solver=[None, ShiftInvert()])
    def test_copies_of_close_values(self, k, tolerance, solver):
        """Seven wheels: 14 copies of (3 − 2 cos 2πj/203) / 3 for each j, 0.3 % and more from each other."""
        matrix = scipy.sparse.block_diag([problems.of_networkx(nx.wheel_graph(204))] * 7)
        turn = 2 * math.pi / 203 * torch.tensor([0] * 7 + [1] * 14 + [2] * 14, dtype=torch.float64)
        exact = (3 - 2 * turn.cos()) / 3 * (turn > 0)
        pairs = eigenpairs(Laplacian(scipy_graph(matrix)), k, solver, tolerance=tolerance)
        torch.testing.assert_close(pairs.values, exact[:k], atol=1e-8, rtol=0)
        torch.testing.assert_close(pairs.gap, exact[k] - exact[k - 1], atol=1e-8, rtol=0.1)
        assert pairs.residuals.max() < 1e-8  # ShiftInvert alone may have missed its own tolerance, and says so
        if solver is None:
            assert pairs.converged

    @pytest.mark.parametrize("seed", [3, 6, 15])
    def test_near_copies_linked_by_others(self, seed):
        """Thirteen values within 10⁻¹¹ of 14/15: a pair of them may be farther apart than residuals tell."""
        rings = nx.cartesian_product(nx.complete_graph(14), nx.cycle_graph(11))
        half = scipy.sparse.triu(problems.of_networkx(rings)).tocsr()
        half.data *= 1 + 1e-10 * np.random.default_rng(0).standard_normal(len(half.data))
        laplacian, k = Laplacian(scipy_graph(half + half.T)), 23
        pairs = eigenpairs(laplacian, k, ShiftInvert(seed=seed), tolerance=1e-3)
        check_pairs(pairs, torch.linalg.eigvalsh(laplacian.to_dense()), atol=1e-12, gap_atol=1e-13)

    @pytest.mark.parametrize("k", [6, 8, 11, 15, 19])
    def test_a_copy_that_closes_the_gap(self, k):
        """On a sphere a value has five copies, of which a block holds four: a cut after these seems to have a gap."""
        laplacian = Laplacian(graph_of("sphere mesh", 700))
        pairs = eigenpairs(laplacian, k, ShiftInvert(), tolerance=1e-3)
        assert pairs.residuals.max() <= laplacian.symmetric.round_off
        check_pairs(pairs, torch.linalg.eigvalsh(laplacian.to_dense()), atol=1e-13)

    @pytest.mark.filterwarnings("ignore:.*isolated")
    @pytest.mark.parametrize("normalization", ["unnormalized", "symmetric"])
    @pytest.mark.parametrize("solver", [ShiftInvert(), Lobpcg(preconditioner=SparseFactors())], ids=str)
    def test_nodes_without_edges_do_not_come_into_the_inverse(self, normalization, solver):
        """An inverse enlarges round-off most where A is zero: it once returned such an eigenvector of value 0."""
        blocks = [problems.sparse_path(200), scipy.sparse.coo_array((40, 40)), 40 * grid(12, 14)]
        laplacian = Laplacian(scipy_graph(scipy.sparse.block_diag(blocks)), normalization)
        active = laplacian.active.nonzero().flatten()
        exact = torch.linalg.eigvalsh(laplacian.to_dense()[active[:, None], active])
        for k in (2, 3, 5):
            check_pairs(eigenpairs(laplacian, k, solver), exact, atol=1e-10)

    @pytest.mark.parametrize("k", [2, 9, 40])
    def test_graphs_of_few_eigenvalues_whose_krylov_spaces_end_at_once(self, k):
        """A star has the eigenvalue 1 for all leaves but one, a rook's graph of m × m has m / (2m − 2) for 2m − 2."""
        m = 20
        star, rook = nx.star_graph(300), nx.cartesian_product(nx.complete_graph(m), nx.complete_graph(m))
        ends = (
            np.array([0.0, *[1] * 299, 2]),
            np.array([0.0, *[m / (2 * m - 2)] * (2 * m - 2), *[m / (m - 1)] * (m - 1) ** 2]),
        )
        for graph, exact in zip((star, rook), ends, strict=True):
            laplacian = Laplacian(scipy_graph(problems.of_networkx(graph)))
            check_pairs(eigenpairs(laplacian, k, ShiftInvert()), torch.tensor(exact), atol=1e-12)

    @problems.in_every_dtype
    def test_a_cycle_of_many_nodes(self, dtype):
        n, k = 4000, 7
        graph = scipy_graph(scipy.sparse.diags([1.0, 1, 1, 1], [-1, 1, n - 1, 1 - n], shape=(n, n)))
        pairs = eigenpairs(Laplacian(graph.to(dtype)), k, ShiftInvert())
        exact = 1 - torch.cos(2 * math.pi * torch.tensor([0, 1, 1, 2, 2, 3, 3], dtype=torch.float64) / n)
        assert pairs.converged
        atol = 1e-15 if dtype == torch.float64 else 1e-9
        torch.testing.assert_close(pairs.values, exact.to(dtype), atol=atol, rtol=1e-6)

    def test_gradients_through_the_factors(self):
        """The factors that solved also precondition: the gradient is the one that all pairs give."""
        edges, mix, grads = Graph.from_scipy(grid(30, 21)), problems.points(630, 5), []
        start = 1 + 0.1 * torch.rand(len(edges.weight), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        for solver in (ShiftInvert(), Eigh()):
            weight = start.clone().requires_grad_()
            pairs = eigenpairs(Laplacian(edges.with_weight((weight + edges.pattern.transpose(weight)) / 2)), 5, solver)
            grads.append(torch.autograd.grad((problems.heat_of(pairs, 9) @ mix).square().sum(), weight)[0])
        torch.testing.assert_close(*grads, atol=1e-8 * float(grads[1].abs().max()), rtol=0)


@pytest.mark.usefixtures("each_kind")
@problems.covering(1, hidden=[1, 2, 4], k=[5, 9])
def test_eigenvectors_that_a_random_block_lacks_are_found(hidden, k, monkeypatch):
    """Eigenvalues below a cut are as many as A − cut has negative pivots (Sylvester)."""
    laplacian = Laplacian(scipy_graph(problems.of_networkx(nx.grid_graph((16, 15), periodic=True))))
    random = SymmetricOperator.random
    exact, vectors = torch.linalg.eigh(laplacian.to_dense())
    lacking = vectors[:, 1 : 1 + hidden]

    def blind(self, m, seed):
        noise = random(self, m, seed)
        return noise if seed else noise - lacking @ (lacking.mT @ noise)

    monkeypatch.setattr(SymmetricOperator, "random", blind)
    monkeypatch.setattr("torch_lapeig.eigen.solvers.krylov.CLOSE", math.inf)  # count always
    check_pairs(eigenpairs(laplacian, k, ShiftInvert(), tolerance=1e-6), exact, atol=1e-9)


class TestFactors:
    def test_factors_beyond_the_memory_are_refused(self, monkeypatch):
        if native.library() is not None:  # SuperLU tells no fill beforehand: what it has made is measured
            monkeypatch.setattr(factors, "factorize", None)
        laplacian = Laplacian(scipy_graph(problems.of_networkx(nx.random_regular_graph(6, 3000, seed=0))))
        with pytest.raises(ConvergenceError, match=r"3000 nodes would take more than memory=.* GiB .*Krylov\(\)"):
            eigenpairs(laplacian, 4, ShiftInvert(memory=2**20))

    def test_out_of_memory_goes_on_with_another_solver(self, monkeypatch):
        laplacian = Laplacian(scipy_graph(problems.sparse_path(3000)))
        expected = eigenpairs(laplacian, 4)
        assert isinstance(expected.solver, ShiftInvert)

        def full(_):
            raise MemoryError

        monkeypatch.setattr(factors, "factorize", full)
        pairs = eigenpairs(laplacian, 4)
        assert isinstance(pairs.solver, Lobpcg)
        torch.testing.assert_close(pairs.values, expected.values, atol=1e-12, rtol=0)
        with pytest.raises(ConvergenceError, match=r"ShiftInvert.* has no factors .* not enough memory.*use Krylov"):
            ShiftInvert()(laplacian.symmetric, 4, 1e-8)

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda pairs: pickle.loads(pickle.dumps(pairs))])
    def test_pairs_are_copied_and_pickled_with_their_factors(self, copied):
        """SuperLU's own object can be neither."""
        pairs = eigenpairs(Laplacian(scipy_graph(problems.sparse_path(2000))), 3, ShiftInvert())
        torch.testing.assert_close(copied(pairs).vectors, pairs.vectors, atol=0, rtol=0)


@pytest.mark.parametrize("negative", [0.0, 1e-13, 1e-10, 1e-7, 1e-3])
def test_a_negative_eigenvalue_is_not_overlooked(negative):
    """The value returned is 0, with a residual that shows whether the negative value is round-off."""
    turn = torch.linalg.qr(problems.points(80, 80))[0]
    values = torch.linspace(0.1, 1, 80, dtype=torch.float64)
    values[0] = -negative
    matrix = turn @ torch.diag(values) @ turn.T
    others = matrix.diagonal().diag() - (matrix + matrix.T) / 2
    operator = SymmetricOperator(DensePattern((80,)), others, matrix.diagonal().clone())
    if negative > 1e-5:
        with pytest.raises(ConvergenceError, match=r"positive semidefinite, got an eigenvalue of about -1\.0e-03"):
            eigenpairs(operator, 3, ShiftInvert())
        return
    with ignoring(ConvergenceWarning):
        pairs = eigenpairs(operator, 3, ShiftInvert())
    assert pairs.converged == (negative < 1e-12)
    torch.testing.assert_close(pairs.values, values[:3].clamp_min(0), atol=1e-12, rtol=1e-9)


def test_zeros_on_one_side_only():
    """Entries that are zero to round-off on one side: the structure of the factors is symmetric all the same."""
    n = 60
    for seed in range(12):
        random = np.random.default_rng(seed)
        half = np.triu(random.random((n, n)) < 0.06, 1).astype(float)
        half[np.arange(n - 1), np.arange(1, n)] = 1
        w = half + half.T
        i, j = np.argwhere((w == 0) & ~np.eye(n, dtype=bool))[random.integers(0, 3000, 3)].T
        w[i, j] = 1e-9
        operator = SymmetricOperator(DensePattern((n,)), torch.tensor(w), torch.tensor(w.sum(1)))
        exact = torch.linalg.eigvalsh((operator.to_dense() + operator.to_dense().mT) / 2)[:4]
        for solver in (ShiftInvert(), Lobpcg(preconditioner=SparseFactors())):
            torch.testing.assert_close(eigenpairs(operator, 4, solver).values, exact, atol=2e-9, rtol=0)


@pytest.mark.usefixtures("each_kind")
@pytest.mark.parametrize(("target", "k"), [(0.31, 6), (0.0, 30), (-2.2, 6)])
@pytest.mark.parametrize("has_mass", [False, True])
def test_pairs_nearest_a_number_inside_the_spectrum(target, k, has_mass):
    """The adjacency of a grid has a zero diagonal, where pivots vanish, and the eigenvalue 0 thirty times."""
    matrix = torch.tensor(scipy.sparse.csr_array(grid(30, 30)).astype(float).toarray())
    n = len(matrix)
    mass = torch.eye(n).double() * 2 / 3 + torch.diag(torch.full((n - 1,), 1 / 6).double(), 1)
    mass = mass + mass.triu(1).mT if has_mass else None
    exact = np.sort(abs(scipy.linalg.eigh(matrix, mass, eigvals_only=True) - target))
    gradients = []
    for forms in (torch.Tensor.to_sparse_coo, torch.Tensor.clone):
        a = matrix.clone().requires_grad_()
        pairs = eigenpairs(forms(a), k, nearest=target, mass=None if mass is None else forms(mass))
        values = pairs.values.detach()
        assert pairs.converged
        assert pairs.which == "nearest"
        assert (values.diff() >= -1e-12).all()
        np.testing.assert_allclose(np.sort(abs(values - target)), exact[:k], atol=1e-12)
        assert float(pairs.gap) == pytest.approx(exact[k] - exact[k - 1], abs=1e-12)
        check_vectors(pairs, matrix, mass, atol=1e-10)
        (gradient,) = torch.autograd.grad(problems.heat_of(pairs)[:9, :9].sum() + pairs.values.square().sum(), a)
        gradients.append((gradient + gradient.mT) * (matrix != 0))
    torch.testing.assert_close(*gradients, atol=1e-8 * float(gradients[-1].abs().max()), rtol=0)


@problems.every(seed=[0, 1], n=[700, 1500])
def test_pairs_nearest_a_number_of_matrices_without_stable_pivots(n, seed):
    """Factors whose pivots are not exchanged are those of another matrix, and a target may be an eigenvalue."""
    random = np.random.default_rng(seed)
    a = scipy.sparse.random(n, n, 6 / n, random_state=random, data_rvs=random.standard_normal).toarray()
    a = (a + a.T) / 2
    exact = np.linalg.eigvalsh(a)
    for target in (0.4, -0.8, exact[n // 3], exact[n // 3] + 1e-10):
        pairs = eigenpairs(torch.tensor(a).to_sparse_csr(), 5, nearest=float(target))
        assert pairs.converged
        np.testing.assert_allclose(np.sort(abs(pairs.values - target)), np.sort(abs(exact - target))[:5], 0, 1e-13)


@pytest.mark.parametrize(("sides", "target"), [((20, 20), 4.0), ((20, 20), 3.999), ((2,) * 8, 4.0), ((2,) * 8, 1.0)])
@pytest.mark.parametrize("k", [1, 5, 12, 20])
def test_a_cut_through_copies_nearest_a_number(sides, target, k):
    """Multiple values at the target, or as far from it on either side: those that k leaves out are counted."""
    laplacian = Laplacian(scipy_graph(grid(*sides)), "unnormalized")
    far = (torch.linalg.eigvalsh(laplacian.to_dense()) - target).abs().sort().values
    pairs = eigenpairs(laplacian, k, nearest=target)
    assert pairs.converged
    np.testing.assert_allclose((pairs.values - target).abs().sort().values, far[:k], atol=1e-12, rtol=0)
    assert float(pairs.gap) == pytest.approx(float(far[k] - far[k - 1]), abs=1e-9)


def test_values_on_both_sides_of_a_number_are_not_equal():
    path = torch.ones(5, dtype=torch.float64).diag(1)
    pairs = eigenpairs((path + path.mT).requires_grad_(), 5, nearest=0.0)
    assert pairs.gap.abs() < 1e-12
    (pairs.vectors @ pairs.vectors.mT)[0, 1].backward()  # without a warning of a cluster that is cut


def test_gradients_of_equal_values_nearest_a_number():
    """The first pair is no null vector, whose value has no derivative whatever its cotangent is."""
    weight = problems.cycle(12).triu().requires_grad_()
    values = eigenpairs(Laplacian(Graph.from_dense(weight + weight.mT)), 2, nearest=0.45).values
    torch.testing.assert_close(values, torch.full_like(values, 0.5))
    (smooth,) = torch.autograd.grad(values.sum(), weight, retain_graph=True)
    assert smooth.abs().max() > 0
    with pytest.warns(DegeneracyWarning, match="distinguishes equal eigenvalues"):
        values[0].backward()
