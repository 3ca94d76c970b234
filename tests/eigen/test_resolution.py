"""Eigenvalues that lie within the round-off of their matrix: solved for, or said; never another answer in silence."""

import warnings

import numpy as np
import pytest
import scipy.linalg
import torch

import torch_lapeig as tl
from problems import complete, cycle, every, ignoring, known_spectra, path, points
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, FunctionOperator, Lobpcg, ShiftInvert

SOLVERS = [None, Eigh(), Lobpcg(), ShiftInvert(), ChebyshevSubspace()]


def answer(*args, **options):
    """The eigenpairs, whatever is said of them."""
    with ignoring(tl.ConvergenceWarning):
        return tl.eigenpairs(*args, **options)


def joined(parts, weight):
    """The union of dense graphs, with an edge of a weight from the first node of each to the last of the next."""
    whole, begin = torch.block_diag(*parts), np.cumsum([0, *map(len, parts)])
    for a, b in zip(begin[:-2], begin[2:], strict=True):
        whole[a, b - 1] = whole[b - 1, a] = weight
    return whole


def heavy_tails(seed, n=300):
    """A Laplacian of points with heavy tails under a bandwidth that suits few of them, and its spectrum."""
    generator = np.random.default_rng(seed)
    x = torch.from_numpy(2 * generator.standard_t(2, (n, 3)))
    laplacian = tl.Laplacian(tl.HeatKernel(float(10 ** generator.uniform(-1, 2)))(x, tl.knn_graph(x, 6)))
    inside = laplacian.active.nonzero().flatten()
    matrix = laplacian.symmetric.to_dense()[inside][:, inside]
    return laplacian, torch.from_numpy(scipy.linalg.eigh(matrix.numpy(), eigvals_only=True))


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_smallest_values_of_heavy_tails(solver):
    for seed in range(12):
        laplacian, values = heavy_tails(seed)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            pairs = tl.eigenpairs(laplacian, 6, solver)
        has_failed = any(warning.category is tl.ConvergenceWarning for warning in said)
        assert not has_failed or isinstance(solver, ChebyshevSubspace | ShiftInvert)
        if not has_failed:
            assert (pairs.values - values[:6]).abs().max() < 1e-11
            assert abs(pairs.gap - (values[6] - values[5])) <= 0.1 * pairs.gap + 1e-12
            assert pairs.converged == pairs.resolved


@every(bridge=[1e-8, 1e-11, 1e-14, 1e-20], m=[40, 200])
def test_value_after_the_null_vector_of_two_rings(m, bridge):
    laplacian = tl.Laplacian(tl.Graph.from_dense(joined([cycle(m), cycle(m)], bridge)), "unnormalized")
    values = torch.linalg.eigvalsh(laplacian.to_dense())
    for k in (1, 2):  # one value of round-off beside the null vector: its vector is determined
        pairs = tl.eigenpairs(laplacian, k, Lobpcg())
        assert pairs.converged
        assert pairs.resolved
        assert (pairs.values[-1] - values[k - 1]).abs() < 1e-12
        assert (pairs.gap - (values[k] - values[k - 1])).abs() < 1e-12 + 0.1 * pairs.gap


def test_vectors_of_faintly_joined_clusters():
    # Three clusters: the span of their indicators is known, its second and third vectors are round-off.
    laplacian = tl.Laplacian(tl.Graph.from_dense(joined([complete(n) for n in (8, 9, 10)], 1e-25)), "unnormalized")
    with pytest.warns(tl.ResolutionWarning, match="any mixture"):
        pairs = tl.eigenpairs(laplacian, 3)
    assert not pairs.resolved
    assert not pairs.converged
    indicators = torch.block_diag(*(torch.ones(n, 1, dtype=torch.float64) / n**0.5 for n in (8, 9, 10)))
    assert torch.allclose(pairs.vectors @ pairs.vectors.T, indicators @ indicators.T)
    with pytest.raises(tl.ConvergenceError, match="round-off"):
        tl.eigenpairs(laplacian, 3, on_failure="raise")


@every(units=[0.1, 1e2, 1e4], dtype=[torch.float64, torch.float32])
def test_function_with_one_huge_eigenvalue(dtype, units):
    values = torch.linspace(1, 3, 60, dtype=dtype)
    values[-1] = units / torch.finfo(dtype).eps
    with pytest.warns(tl.ConvergenceWarning):
        assert not tl.eigenpairs(FunctionOperator(lambda y: values[:, None] * y, 60, dtype=dtype), 4).converged


@every(tiny=[1e-14, 1e-16, 1e-20], solver=[None, Eigh()])
def test_tiny_mass(solver, tiny):
    laplacian = tl.Laplacian(tl.Graph.from_dense(path(30)), "unnormalized")
    mass = torch.ones(30, dtype=torch.float64).index_fill(0, torch.tensor([7]), tiny)
    # A node without mass follows its neighbours: the Schur complement.
    matrix, rest = laplacian.to_dense(), torch.arange(30) != 7
    lost = matrix[rest][:, ~rest]
    right = torch.linalg.eigvalsh(matrix[rest][:, rest] - lost @ lost.T / matrix[7, 7])[:3]
    pairs = answer(laplacian, 3, solver, mass=mass)
    assert not pairs.resolved or torch.allclose(pairs.values, right, rtol=1e-3, atol=1e-9)


def test_equal_values_are_no_reason():
    assert tl.eigenpairs(FunctionOperator(lambda y: 3 * y, 40), 5).resolved
    for spectrum in known_spectra():
        k = min(4, len(spectrum.affinity) - 1)
        assert tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(spectrum.affinity)), k).resolved


@every(bridge=[0.0, 1e-20, 1e-13], normalization=["symmetric", "random_walk"])
def test_gradient_beside_a_faint_second_value(normalization, bridge):
    """The first vector is the whole graph's, so that the second is determined: as with two components."""
    affinity = joined([torch.rand(n, n, generator=torch.Generator().manual_seed(n)).double() for n in (5, 9)], bridge)
    affinity = ((affinity + affinity.T) / 2).fill_diagonal_(0)
    cotangent = points(14, 14) + points(14, 14).T

    def two_parts(w):
        degrees = ((w + w.T) / 2).sum(1)
        a, b = degrees[:5].sum(), degrees[5:].sum()
        y = torch.cat([(b / (a * (a + b))).sqrt().expand(5), -(a / (b * (a + b))).sqrt().expand(9)])
        y = y * degrees.sqrt() if normalization == "symmetric" else y
        return (cotangent * torch.outer(y, y)).sum()

    def solved(w):
        pairs = answer(tl.Laplacian(tl.Graph.from_dense((w + w.T) / 2), normalization), 2)
        return (cotangent * torch.outer(pairs.vectors[:, 1], pairs.vectors[:, 1])).sum()

    inside = affinity > 1e-3
    for order in (1, 2):
        found = []
        for function in (solved, two_parts):
            w = affinity.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(function(w), w, create_graph=True)
            if order == 2:
                (gradient,) = torch.autograd.grad((gradient * cotangent * inside).sum(), w)
            found.append(((gradient + gradient.T) / 2)[inside].detach())
        assert torch.allclose(*found, rtol=1e-5, atol=1e-8)


def test_first_column_is_constant_on_tiny_components():
    parts = [1e-290 * complete(3), complete(9), 1e-250 * path(4)]
    pairs = tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(torch.block_diag(*parts)), "random_walk"), 3)
    column = pairs.vectors[:, 0]
    assert (column.max() - column.min()) < 1e-12 * column.max()


@pytest.mark.parametrize("largest", [False, True])
def test_warning_gives_the_values_that_are_returned(largest):
    matrix = torch.diag(torch.tensor([0.0] * 10 + [1.0] * 190, dtype=torch.float64))
    with pytest.warns(tl.ResolutionWarning, match="begin with") as caught:
        tl.eigenpairs(-matrix if largest else matrix, 5, ChebyshevSubspace(), largest=largest)
    values = str(caught[0].message).split("begin with ")[1].split(", and")[0]
    assert max(abs(float(value)) for value in values.split(", ")) < 1e-12


def test_round_off_of_many_equal_entries_is_no_failure():
    """Entries of two values on 2000 nodes: their sums round alike, and the null vector has a residual of 50 eps ‖A‖."""
    label = (torch.arange(2000) % 5).sort().values
    affinity = torch.where(label[:, None] == label, 1.0, 1e-5).double()
    assert tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(affinity)), 2, Eigh(), tolerance=1e-14).converged
