"""The choice of a solver, and what happens when the chosen one fails."""

from unittest.mock import Mock

import pytest
import torch

from problems import DTYPES, covering, every, points, preferential_attachment, sparse_path, swiss_roll
from torch_lapeig import ConvergenceError, Graph, HeatKernel, Laplacian, eigenpairs, knn_graph
from torch_lapeig.eigen import Auto, ChebyshevSubspace, Eigh, Lobpcg, ShiftInvert, SparseFactors, SymmetricOperator
from torch_lapeig.eigen.choose import Choice
from torch_lapeig.eigen.solvers.solver import RitzPairs


def signed(graph):
    """The signed Laplacian D̄ − W of a graph whose edges have random signs."""
    pattern = graph.pattern
    number = torch.rand(pattern.total, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sign = torch.where((pattern.at_row(number) + pattern.at_col(number)) % 1 < 0.3, -1.0, 1.0)
    return SymmetricOperator(pattern, sign * graph.weight, pattern.sum_rows(graph.weight))


# Of each kind of graph: the graph and the number of pairs.
KINDS = {
    "path": (lambda: Graph.from_scipy(sparse_path(20_000)), 6),
    "surface": (lambda: knn_graph(swiss_roll(4000), 10), 6),
    "small surface": (lambda: knn_graph(swiss_roll(600), 10), 6),
    "body": (lambda: knn_graph(points(4000, 3), 10), 6),
    "many dimensions": (lambda: knn_graph(points(3000, 10), 10), 20),
    "hubs": (lambda: Graph.from_scipy(preferential_attachment(3000, 4)), 6),
    "signed surface": (lambda: signed(knn_graph(swiss_roll(4000), 10)), 6),
    "signed body": (lambda: signed(knn_graph(points(4000, 3), 10)), 6),
    "small": (lambda: knn_graph(points(200, 3), 10), 6),
    "batch": (lambda: knn_graph(points(500, 5, batch=2), 10), 6),
}


class TestDefault:
    @pytest.mark.parametrize(("make", "k"), KINDS.values(), ids=KINDS)
    def test_each_kind_of_graph_has_the_pairs_of_another_solver(self, make, k):
        made = make()
        operator = made if isinstance(made, SymmetricOperator) else Laplacian(made)
        pairs = eigenpairs(operator, k)
        assert pairs.converged.all()
        exact = eigenpairs(operator, k, Lobpcg() if operator is not made else Lobpcg(preconditioner=SparseFactors()))
        torch.testing.assert_close(pairs.values, exact.values, rtol=1e-6, atol=1e-12)

    def test_progress_is_told_of_every_iteration_until_the_goal(self):
        lines = []
        eigenpairs(Laplacian(knn_graph(swiss_roll(5000), 10)), 4, progress=lambda *line: lines.append(line))
        iterations, residuals, allowed = zip(*lines, strict=True)
        assert iterations[-1] > 0
        assert residuals[-1] <= allowed[-1]
        assert max(residuals) > 1e3 * residuals[-1]


def test_a_solver_that_breaks_down_is_passed_over(monkeypatch):
    """The default goes on to its next candidate; a solver that was asked for raises."""
    broken = Mock(side_effect=torch.linalg.LinAlgError("no convergence"))
    laplacian = Laplacian(knn_graph(swiss_roll(1200), 8))
    exact = eigenpairs(laplacian, 4, Eigh())
    for solver in (Lobpcg, ShiftInvert, ChebyshevSubspace):
        monkeypatch.setattr(solver, "__call__", broken)
    pairs = eigenpairs(laplacian, 4)
    assert isinstance(pairs.solver, Eigh)
    torch.testing.assert_close(pairs.values, exact.values, atol=1e-12, rtol=0)
    with pytest.raises(ConvergenceError, match=r"ChebyshevSubspace.* broke down \(no convergence\)"):
        eigenpairs(laplacian, 4, ChebyshevSubspace())


def test_weights_over_many_decades_are_left_to_multigrid_or_factors():
    """Products and multigrid fail; factors are tried before dense solves."""
    generator = torch.Generator().manual_seed(0)
    graph = knn_graph(torch.randn(4500, 4, generator=generator, dtype=torch.float64), 5)
    random = torch.rand(len(graph.weight), generator=generator, dtype=torch.float64)
    decades = torch.minimum(random, graph.pattern.transpose(random))
    laplacian = Laplacian(graph.with_weight(10 ** (-24 * decades)))
    pairs, exact = eigenpairs(laplacian, 8), eigenpairs(laplacian, 8, ShiftInvert())
    assert pairs.converged
    assert not isinstance(pairs.solver, Eigh)
    torch.testing.assert_close(pairs.values, exact.values, rtol=1e-6, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*isolated")
@covering(2, failing=[[2], [0, 5], [0, 1, 2, 3]], dtype=DTYPES, idle=[0, 20])
def test_few_hard_graphs_of_a_batch_are_solved_as_if_all_had_been(dtype, failing, idle, monkeypatch):
    """Graphs of a batch that the first choice does not solve are solved once more, not those beside them."""
    eigh = Eigh()

    def first(operator, k, tolerance, progress=None):
        ritz = eigh(operator, k, tolerance)
        m = k + 4
        values, vectors, finished = ritz.values[:, :m], ritz.vectors[..., :m].clone(), ritz.finished.clone()
        vectors[failing] = operator.random(m, 0)[0]
        finished[failing] = False
        return RitzPairs(values, vectors, 3, finished)

    monkeypatch.setattr(Auto, "choose", lambda *args: Choice((first, eigh), "a test"))
    graph = knn_graph(points(60, 3, batch=6).to(dtype), 8)
    there = (torch.arange(60) < 60 - idle * (torch.arange(6) % 2)[:, None]).to(dtype)  # no edges at the other nodes
    graph = graph.with_weight(graph.weight * (graph.pattern.at_row(there) * graph.pattern.at_col(there)))
    weight = graph.weight.clone().requires_grad_()
    pairs = eigenpairs(Laplacian(graph.with_weight(weight)), 5)
    assert pairs.converged.all()
    double = weight.detach().double().requires_grad_()
    exact = eigenpairs(Laplacian(graph.to(torch.float64).with_weight(double)), 5, Eigh())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(pairs.values.double(), exact.values, rtol=0, atol=50 * eps)
    torch.testing.assert_close(pairs.gap.double(), exact.gap, rtol=0, atol=50 * eps)

    def loss(vectors):
        return ((vectors @ vectors.mT) @ points(60, 6, seed=1).to(vectors)).pow(2).sum()

    (ours,) = torch.autograd.grad(loss(pairs.vectors), weight)
    (theirs,) = torch.autograd.grad(loss(exact.vectors), double)
    assert (ours.double() - theirs).norm() < 1e5 * eps * theirs.norm()


def test_a_small_graph_in_a_batch_of_large_ones():
    """A few nodes beside 2000 and their padding are solved with them."""
    x, mask = torch.stack([points(2000, 2), points(2000, 2, seed=1)]), torch.ones(2, 2000, dtype=torch.bool)
    mask[1, 12:] = False
    graph = HeatKernel()(x, knn_graph(x, 6, mask=mask))
    pairs = eigenpairs(Laplacian(graph), 4)
    assert pairs.converged.all()
    for b, size in enumerate((2000, 12)):
        alone = Laplacian(graph.subgraph(torch.arange(size) + 2000 * b))
        torch.testing.assert_close(pairs.values[b], torch.linalg.eigvalsh(alone.to_dense())[:4], rtol=0, atol=1e-9)


def test_weights_that_are_zero_join_no_components_and_take_no_part_in_the_choice():
    """Sums of sparse matrices leave zeros out."""
    x = torch.cat([points(2300, 4), points(2300, 4) + 100])
    graph, left = knn_graph(x, 10), x[:, 0] < 0.5
    crossing = left[graph.pattern.row.long()] != left[graph.pattern.col.long()]
    for solver in (None, Lobpcg(), ChebyshevSubspace()):
        pairs = eigenpairs(Laplacian(graph.with_weight(graph.weight.masked_fill(crossing, 0))), 6, solver)
        assert pairs.converged
        assert pairs.values[2] == 0 < pairs.values[3]


@pytest.mark.filterwarnings("ignore::torch_lapeig.GraphWarning", "ignore::torch_lapeig.ResolutionWarning")
@every(seed=range(3), dtype=DTYPES)
def test_heavy_tails_break_no_solver_down(seed, dtype):
    """Weights down to the smallest normal number: multigrid divides by none of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(600, 3, generator=generator) * torch.exp(1.5 * torch.randn(600, 1, generator=generator))
    laplacian = Laplacian(HeatKernel()(x.to(dtype), knn_graph(x.to(dtype), 8)))
    pairs, exact = eigenpairs(laplacian, 3), eigenpairs(laplacian, 3, Eigh())
    assert pairs.converged | ~pairs.resolved
    torch.testing.assert_close(pairs.values, exact.values, atol=1e-12 if dtype == torch.float64 else 1e-6, rtol=0)
