"""Eigenpairs in any unit of the weights: bounds far from 1, graphs of a batch in units of their own."""

import math

import pytest
import scipy.linalg
import torch

from problems import DTYPES, every, ignoring, points, projector_loss, torus
from torch_lapeig import DegeneracyWarning, Graph, HeatKernel, Laplacian, eigenpairs, knn_graph
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, FunctionOperator, Lobpcg, ShiftInvert, SymmetricOperator
from torch_lapeig.graph.pattern import DensePattern
from torch_lapeig.graph.weights import inverse_power

FAR = [(torch.float32, -66), (torch.float32, 90), (torch.float64, -520), (torch.float64, 900)]
FARTHER = [(torch.float32, e) for e in (-100, -57, 57)] + [(torch.float64, e) for e in (-900, 520)]
SOLVERS = [Eigh(), ChebyshevSubspace(), ChebyshevSubspace(single=True), Lobpcg(), ShiftInvert()]
UNITS = [(solver, *unit) for solver in (None, *SOLVERS) for unit in FAR] + [(None, *unit) for unit in FARTHER]


@pytest.mark.parametrize(("solver", "dtype", "exponent"), UNITS, ids=str)
def test_eigenpairs_and_their_gradients_are_the_same_in_any_unit(solver, dtype, exponent):
    """Squares of residuals underflow long before those of weights do: a residual of 0 once told of convergence."""
    graph = HeatKernel()(x := points(300, 3, dtype=dtype), knn_graph(x, 8))
    loss, found = projector_loss(300), []
    for unit in (1.0, 2.0**exponent):
        weight = (graph.weight * unit).requires_grad_()
        pairs = eigenpairs(Laplacian(graph.with_weight(weight), "unnormalized"), 4, solver)
        assert pairs.converged
        loss(pairs.vectors.double()).backward()
        numbers = pairs.values, pairs.gap[None], pairs.residuals, pairs.projected.flatten()
        found.append([*(part.detach().double() / unit for part in numbers), weight.grad.double() * unit])
    (values, gap, _, _, grad), scaled = found
    assert 0 < scaled[2].max() <= 1e-3 * gap
    torch.testing.assert_close(torch.cat(scaled[:2]), torch.cat([values, gap]), rtol=1e-5, atol=1e-6 * float(gap))
    torch.testing.assert_close(scaled[3].reshape(4, 4).diagonal(), scaled[0])
    assert (scaled[4] - grad).norm() <= 1e-4 * grad.norm()


def test_a_batch_of_graphs_in_units_of_their_own():
    x = points(60, 2, batch=3)
    graph = HeatKernel()(x, knn_graph(x, 8))
    unit = torch.tensor([1.0, 2.0**-500, 2.0**300], dtype=torch.float64)
    scaled = graph.with_weight(graph.weight * graph.pattern.of_graph(unit))
    for one, other in ((graph, scaled), [Graph.from_dense(g.to_dense()) for g in (graph, scaled)]):
        plain, odd = (eigenpairs(Laplacian(g, "unnormalized"), 4) for g in (one, other))
        assert odd.converged.all()
        torch.testing.assert_close([odd.values / unit[:, None], odd.gap / unit], [plain.values, plain.gap])


@pytest.mark.parametrize("bound", [0.0, 0.5, torch.inf, torch.nan, -1.0])
def test_a_wrong_bound_is_refused(bound):
    matrix = torch.eye(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"bound must be finite and no less than .* up to \[1\.0\], got .* Gershgorin"):
        SymmetricOperator(DensePattern((3,)), 0 * matrix, matrix[0] + matrix[1], bound=matrix.new_tensor([bound]))


def test_gradients_at_the_least_weights_are_finite():
    """The gradient of the diagonal overflows float64, with a warning; the gradient of the weight does not."""
    weight = torch.tensor(3e-308, dtype=torch.float64, requires_grad=True)
    graph = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), weight.expand(2))
    probe = torch.tensor([[3.0, 500.0], [-2.0, 40.0]], dtype=torch.float64)
    loss = (eigenpairs(Laplacian(graph, "unnormalized"), 2).vectors * probe).sum()
    with ignoring(DegeneracyWarning):
        loss.backward()
    assert weight.grad.isfinite()


@every(share=[0.01, 1e-4, math.inf], dtype=DTYPES)
def test_a_normalised_problem_does_not_notice_the_unit_of_the_weights(dtype, share):
    """From the root of the smallest number on down, and up to where the sum of all degrees overflows."""
    info, n = torch.finfo(dtype), 600
    edge_index, _ = torus(n // 3, 3)
    unit = info.max / 8 if share > 1 else info.tiny / share  # of four edges each degree is a number, but not their sum
    weight = torch.ones(edge_index.shape[1], dtype=dtype)
    exact = torch.linalg.eigvalsh(Laplacian(Graph.from_edge_index(edge_index, weight.double())).to_dense())[:4]
    for solver in (None, Eigh(), Lobpcg(), ShiftInvert()):
        pairs = eigenpairs(Laplacian(Graph.from_edge_index(edge_index, unit * weight)), 3, solver)
        assert pairs.converged
        torch.testing.assert_close(pairs.values.double(), exact[:3], rtol=0, atol=100 * info.eps)


def test_powers_of_degrees_are_right_to_round_off():
    """Through the logarithm alone they had an error of eps times the logarithm."""
    degrees = torch.logspace(-300, 300, 601, dtype=torch.float64)
    scaled = inverse_power(degrees, 0.5).square() * degrees
    torch.testing.assert_close(scaled, torch.ones_like(scaled), rtol=0, atol=1e-15)
    torch.autograd.gradcheck(lambda d: inverse_power(d, 0.5), torch.linspace(0.5, 2, 5).double().requires_grad_())


@every(n=[100, 500], kind=["diagonal", "graded", "matrix"], form=["products", "dense", "sparse"])
def test_a_mass_under_which_eigenvalues_overflow_is_refused(n, kind, form):
    d = 1e200 * torch.linspace(1, 2, n, dtype=torch.float64)
    mass = 1e-200 * (torch.logspace(-6, 0, n) if kind == "graded" else torch.linspace(1, 2, n)).double()
    forms = {"dense": torch.diag(d), "sparse": torch.diag(d).to_sparse_coo()}
    given = forms.get(form, FunctionOperator(lambda y, d: d[:, None] * y, n, [d]))
    for largest in (False, True):
        with pytest.raises(ValueError, match="mass must leave the eigenvalues below"):
            eigenpairs(given, 2, mass=torch.diag(mass) if kind == "matrix" else mass, largest=largest)


@every(n=[30, 400, 640], largest=[False, True])
@pytest.mark.parametrize(
    ("kind", "unit", "of_mass"),
    [
        *((kind, unit, 1.0) for kind in ("matrix", "products", "mass", "mass matrix") for unit in (1e-200, 1e200)),
        *(("mass", unit, 1e-60) for unit in (1e-200, 1e200)),
        ("mass matrix", 1e150, 1e-100),
    ],
)
def test_matrices_and_masses_in_any_unit(kind, unit, of_mass, n, largest):
    x, d = points(n, n), torch.linspace(1, 2, n, dtype=torch.float64)
    matrix = torch.diag(d) if kind in ("products", "mass") else (x + x.mT) / 2
    mass = {"mass": d.flip(0), "mass matrix": x @ x.mT / n + torch.eye(n)}.get(kind)
    values, vectors = scipy.linalg.eigh(matrix, mass if mass is None or mass.ndim == 2 else torch.diag(mass))
    order = [-1, -2, -3, -4] if largest else [0, 1, 2, 3]
    values, vectors = torch.from_numpy(values[order]), torch.from_numpy(vectors[:, order[:3]])
    products = FunctionOperator(lambda y, d: d[:, None] * y, n, [unit * d])
    given = products if kind in ("products", "mass") else unit * matrix
    found = eigenpairs(given, 3, mass=None if mass is None else of_mass * mass, largest=largest)
    assert found.converged
    size, scale = float(values.abs().max()), of_mass / unit
    torch.testing.assert_close(found.values * scale, values[:3], rtol=0, atol=1e-8 * size)
    assert float(found.gap * scale) == pytest.approx(float((values[3] - values[2]).abs()), rel=1e-5)
    torch.testing.assert_close((found.vectors * of_mass**0.5).abs(), vectors.abs(), rtol=0, atol=1e-6)
