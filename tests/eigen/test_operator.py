"""Solvers ask an operator for every reduction over nodes and for no entries, or refuse it clearly."""

import pytest
import torch

from problems import points, swiss_roll, torus
from torch_lapeig import KNN, Graph, HeatKernel, Laplacian, Solve, eigenpairs
from torch_lapeig.eigen import Auto, ChebyshevSubspace, Eigh, Lobpcg, Operator, SmoothedAggregation, SparseFactors
from torch_lapeig.graph.pattern import PatternBase


def once(x):
    first, second = x.chunk(2, -2)
    assert (first - second).abs().max() <= 1e-6 * first.abs().max(), "rows of one node differ"
    # Products of blocks round the two otherwise on some processors; sums of the first alone would let that grow.
    second.copy_(first)
    return first


class Twice(PatternBase):
    """Nodes of which each is held twice, in rows i and n + i, which a shard would hold once."""

    def __init__(self):
        self.reductions = 0

    def inner(self, x, y):
        self.reductions += 1
        if x.ndim == 1:
            return super().inner(once(x[:, None])[:, 0], once(y[:, None])[:, 0])
        return super().inner(once(x), once(y[:, None])[:, 0] if y.ndim == 1 else once(y))

    def dots(self, x, y):
        self.reductions += 1
        return (once(x) * once(y)).sum(-2)

    def largest(self, x):
        self.reductions += 1
        return once(x).abs().amax(-2)

    def signs(self, x):
        self.reductions += 1
        return super().signs(once(x))


class Twofold(Operator):
    """A Laplacian that hides its data, on nodes that are held twice: a direct sum over rows counts each twice."""

    def __init__(self, laplacian):
        self._inside, self.nodes = laplacian.symmetric, Twice()
        self.shape = (*self._inside.shape[:-1], 2 * self._inside.shape[-1])
        self.dtype, self.device, self.bound = self._inside.dtype, self._inside.device, self._inside.bound
        self.products = 0

    def matmul(self, y):
        self.products += 1
        return self._inside.matmul(once(y)).repeat(*[1] * (y.ndim - 2), 2, 1)

    active_count = property(lambda self: self._inside.active_count)
    nullity = property(lambda self: self._inside.nullity)

    def null_vectors(self, m):
        return self._inside.null_vectors(m).repeat(1, 2, 1)

    def random(self, m, seed):
        return self._inside.random(m, seed).repeat(1, 2, 1)


NEED_PRODUCTS_ONLY = {
    "auto": Auto(),
    "chebyshev": ChebyshevSubspace(),
    "lobpcg": Lobpcg(preconditioner=None, max_iterations=2000),
}
NEED_ENTRIES = {"eigh": Eigh(), "multigrid": Lobpcg(), "factors": Lobpcg(preconditioner=SparseFactors())}


def roll(n=900):
    x = swiss_roll(n)
    return Laplacian(HeatKernel()(x, KNN(10)(x)))


def rings():
    """Multiple eigenvalues, so that the search for copies is on its way."""
    return Laplacian(Graph.from_edge_index(*torus(24, 24)))


@pytest.mark.parametrize("solver", NEED_PRODUCTS_ONLY.values(), ids=NEED_PRODUCTS_ONLY)
@pytest.mark.parametrize("problem", [roll, rings])
def test_every_reduction_goes_through_the_nodes(problem, solver):
    laplacian = problem()
    operator = Twofold(laplacian)
    pairs, exact = eigenpairs(operator, 5, solver), eigenpairs(laplacian, 5, Eigh())
    assert pairs.converged
    torch.testing.assert_close(pairs.values, exact.values, atol=1e-11, rtol=0)
    assert pairs.gap.item() == pytest.approx(exact.gap.item(), abs=1e-10, rel=0.1)
    v, _ = pairs.vectors.chunk(2)
    torch.testing.assert_close(v.T @ v, torch.eye(5, dtype=v.dtype), atol=1e-12, rtol=0)
    torch.testing.assert_close(laplacian.matmul(v), v * pairs.values, atol=1e-10, rtol=0)
    assert operator.products > 5
    assert operator.nodes.reductions > 5


def test_sums_of_an_operator_itself_are_refused():
    class Own(Twofold):
        def inner(self, x, y):
            raise AssertionError

    with pytest.raises(TypeError, match="no method inner, which nothing calls; give Own `nodes`, a torch"):
        eigenpairs(Own(roll(100)), 3)


@pytest.mark.parametrize("solver", NEED_ENTRIES.values(), ids=NEED_ENTRIES)
def test_solvers_that_need_entries_refuse_clearly(solver):
    with pytest.raises(TypeError, match=r"needs the entries of the matrix, got a Twofold.*; use Krylov\(\)"):
        eigenpairs(Twofold(roll(100)), 3, solver)


def test_a_batch_without_items_is_refused_by_solvers_of_one_graph():
    x = points(60, 3, batch=2)
    operator = Twofold(Laplacian(KNN(8)(x)))
    with pytest.raises(TypeError, match=r"must yield its graphs one by one .* Twofold; use .* define items\(\)"):
        eigenpairs(operator, 3, Lobpcg(preconditioner=None))
    exact = eigenpairs(Laplacian(KNN(8)(x)), 3, Eigh())
    torch.testing.assert_close(eigenpairs(operator, 3, ChebyshevSubspace()).values, exact.values, atol=1e-11, rtol=0)


def test_preconditioners_are_called_alike():
    """A preconditioner maps an operator to A⁻¹, and one of a user's own speeds the iteration up as multigrid does."""
    laplacian = roll()
    exact = eigenpairs(laplacian, 4, Eigh())

    def dense_inverse(operator):
        shifted = operator.to_dense() + 1e-6 * torch.eye(operator.num_nodes, dtype=operator.dtype)
        factor = torch.linalg.cholesky(shifted)
        return lambda r: torch.cholesky_solve(r, factor)

    plain = eigenpairs(laplacian, 4, Lobpcg(preconditioner=None, max_iterations=2000)).iterations
    for preconditioner in (SmoothedAggregation(), SparseFactors(shift=1e-6), dense_inverse):
        inverse = preconditioner(laplacian.symmetric)
        assert inverse(points(900, 3)).shape == (900, 3)
        solve = Solve(Lobpcg(preconditioner=preconditioner))
        weight = laplacian.graph.weight.clone().requires_grad_()
        pairs = eigenpairs(Laplacian(laplacian.graph.with_weight(weight)), 4, solve)
        assert pairs.converged
        assert 3 * pairs.iterations < plain
        torch.testing.assert_close(pairs.values.detach(), exact.values, atol=1e-11, rtol=0)
        pairs.vectors.square().square().sum().backward()  # the gradient's solve takes the same inverse
        assert weight.grad.isfinite().all()
