"""L u = λ M u with a mass on the diagonal: dense references, gradients in both, and masses that are refused."""

import pytest
import torch

import problems
from problems import dense_values, edge_parameters, heat_of, random_affinity
from torch_lapeig import KNN, Graph, Laplacian, eigenpairs
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, FunctionOperator, Lobpcg, ShiftInvert


def masses(*shape, orders=1.0):
    return 10 ** (orders * torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))


def unnormalized(affinity):
    return Laplacian(Graph.from_dense(affinity), "unnormalized")


@problems.covering(
    2, n=[60, 700], solver=[None, Eigh(), ShiftInvert(), ChebyshevSubspace(), Lobpcg()], is_sparse=[True, False]
)
def test_pairs_are_those_of_dense_matrices(n, solver, is_sparse):
    graph, mass = KNN(8)(problems.surface(n)), masses(n)
    laplacian = Laplacian(graph if is_sparse else Graph.from_dense(graph.to_dense()), "unnormalized")
    if solver == ShiftInvert() and not is_sparse:
        solver = None
    pairs, matrix = eigenpairs(laplacian, 5, solver, mass=mass), laplacian.to_dense()
    problems.check_pairs(pairs, dense_values(matrix, torch.diag(mass)), atol=1e-12, rtol=1e-8, gap_atol=0)
    problems.check_vectors(pairs, matrix, torch.diag(mass), atol=1e-8 * min(1, float(pairs.values[-1])))
    u = pairs.vectors
    assert (u.gather(0, u.abs().argmax(0, keepdim=True)) > 0).all()


GRAPHS = {"equal eigenvalues": (problems.cycle(6), torch.full((6,), 1.7)), "any": (random_affinity(9), masses(9))}
GRAPHS |= {"two components": (problems.two_cliques(4, 3), torch.arange(1.0, 8))}


@problems.every(graph=GRAPHS, as_operator=[False, True], solver=[None, Eigh(), ChebyshevSubspace(), ShiftInvert()])
def test_derivatives(graph, as_operator, solver):
    affinity, mass = graph
    weight, graph_of = edge_parameters(affinity)
    mass = mass.double().requires_grad_()

    def function(weight, mass):
        laplacian = Laplacian(graph_of(weight), "unnormalized")
        pairs = eigenpairs(laplacian.symmetric if as_operator else laplacian, 3, solver, mass=mass)
        # The first vector is the whole graph's, whatever the number of components.
        return heat_of(pairs), pairs.vectors[:, 0]

    # A weight of 0 does not join components, and another weight does not separate them.
    inputs = (weight.detach() if affinity is GRAPHS["two components"][0] else weight, mass)
    assert torch.autograd.gradcheck(function, inputs, atol=1e-6, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, atol=1e-5, fast_mode=True)


@pytest.mark.filterwarnings("ignore:.*isolated")
def test_batches_have_the_pairs_of_their_graphs():
    affinity, mass = torch.stack([random_affinity(20, seed=s) for s in range(3)]), masses(3, 20)
    affinity[1, 15:] = affinity[1, :, 15:] = 0  # padding: its mass does not matter
    mass[1, 15:] = 0
    together = eigenpairs(unnormalized(affinity), 3, mass=mass.requires_grad_())
    heat_of(together).square().sum().backward()
    for b, n in enumerate((20, 15, 20)):
        own = mass.detach()[b, :n].clone().requires_grad_()
        alone = eigenpairs(unnormalized(affinity[b, :n, :n]), 3, mass=own)
        heat_of(alone).square().sum().backward()
        torch.testing.assert_close([together.values[b], together.vectors[b, :n]], [alone.values, alone.vectors])
        torch.testing.assert_close(mass.grad[b, :n], own.grad)
        assert not together.vectors[b, n:].any()
        assert not mass.grad[b, n:].any()


@problems.every(dtype=[torch.float32, torch.float64], unit=[1e-24, 1e24])
def test_units_of_the_mass(unit, dtype):
    laplacian, mass = unnormalized(random_affinity(30).to(dtype)), masses(30).to(dtype)
    expected, found = (eigenpairs(laplacian, 4, mass=m) for m in (mass, unit * mass))
    torch.testing.assert_close([found.values * unit, found.vectors * unit**0.5], [expected.values, expected.vectors])


@pytest.mark.parametrize("shift", [0.0, 3.0])  # positive semidefinite, and not
def test_a_function_has_gradients_to_matrix_and_mass_at_equal_eigenvalues(shift):
    n = 9
    ring = torch.eye(n, dtype=torch.float64).roll(1, 0)
    matrix = ((2 - shift) * torch.eye(n, dtype=torch.float64) - ring - ring.T).requires_grad_()
    mass = torch.full((n,), 2.0, dtype=torch.float64, requires_grad=True)

    def pairs(matrix, mass):
        return eigenpairs(FunctionOperator(lambda y, a: a @ y, n, [(matrix + matrix.T) / 2]), 3, mass=mass)

    expected = dense_values(matrix.detach(), torch.diag(mass.detach()))[:3]
    torch.testing.assert_close(pairs(matrix, mass).values.detach(), expected)
    assert torch.autograd.gradcheck(lambda *given: heat_of(pairs(*given)), (matrix, mass), fast_mode=True)
