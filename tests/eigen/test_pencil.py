"""K u = λ M u with a mass matrix: dense references, masses of very different sizes, derivatives in K and M."""

import mpmath
import numpy as np
import pytest
import scipy.sparse
import torch
from torch.autograd import gradcheck, gradgradcheck

from problems import check_pairs, check_vectors, cycle, dense_values, every, heat_of, random_affinity, surface
from torch_lapeig import KNN, DegeneracyWarning, Graph, Laplacian, eigenpairs
from torch_lapeig.eigen import Eigh


def noise(*shape, seed=1):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unnormalized(graph):
    return Laplacian(graph if isinstance(graph, Graph) else Graph.from_dense(graph), "unnormalized")


def mass_of(laplacian, seed=1):
    """A positive definite matrix on the edges of a graph, as finite elements have it."""
    matrix = laplacian.to_dense()
    weights = (matrix != 0) * noise(*matrix.shape, seed=seed)
    weights = (weights + weights.mT).fill_diagonal_(0)
    return weights + torch.diag(weights.sum(1) + 0.1)


LAYOUTS = [torch.Tensor.clone, torch.Tensor.to_sparse_coo, torch.Tensor.to_sparse_csr]
LAYOUTS += [lambda matrix: scipy.sparse.csr_array(matrix.numpy())]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [60, 700])
def test_pairs_are_those_of_dense_matrices(n, layout):
    laplacian = unnormalized(KNN(8)(surface(n)))
    mass = mass_of(laplacian)
    pairs, matrix = eigenpairs(laplacian, 5, mass=layout(mass)), laplacian.to_dense()
    check_pairs(pairs, dense_values(matrix, mass), atol=1e-9 * float(pairs.gap), gap_atol=1e-7, gap_rtol=1e-7)
    check_vectors(pairs, matrix, mass, atol=1e-10)
    torch.testing.assert_close(pairs.vectors[:, 0], (1 / mass.sum().sqrt()).expand(n))
    assert pairs.resolved
    assert pairs.inner_product == "mass"


@pytest.mark.parametrize("n", [50, 800])
def test_masses_of_very_different_sizes(n):
    laplacian = unnormalized(KNN(8)(surface(n)))
    matrix = laplacian.to_dense()
    mass = 10 ** (16 * noise(n) - 8)
    pairs = eigenpairs(laplacian, 4, mass=mass)
    u = pairs.vectors
    assert pairs.converged
    force = matrix @ u - mass[:, None] * u * pairs.values
    assert (force.abs() <= 1e-10 * (matrix.abs() @ u.abs() + mass[:, None] * u.abs() * pairs.values)).all()
    torch.testing.assert_close(u.mT @ (mass[:, None] * u), torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-9)
    sparse = torch.diag(mass).to_sparse_coo()
    torch.testing.assert_close(eigenpairs(laplacian, 4, mass=sparse).values, pairs.values, rtol=1e-9, atol=0)


@pytest.mark.filterwarnings("ignore:.*isolated")
@pytest.mark.parametrize("n", [30, 700])
def test_several_components_and_nodes_without_edges(n):
    affinity = torch.block_diag(*(KNN(6)(surface(n, seed=s)).to_dense() for s in (0, 1)), torch.zeros(3, 3)).double()
    laplacian = unnormalized(affinity if n < 100 else Graph.from_dense(affinity))
    mass = mass_of(laplacian)
    pairs = eigenpairs(laplacian, 5, mass=mass.to_sparse_coo())
    live = slice(0, 2 * n)
    check_pairs(pairs, dense_values(laplacian.to_dense()[live, live], mass[live, live]), rtol=1e-8, atol=1e-12)
    assert (pairs.values[:2] == 0).all()
    assert (pairs.vectors[2 * n :] == 0).all()
    torch.testing.assert_close(pairs.vectors[live, 0], pairs.vectors[0, 0].expand(2 * n))
    assert eigenpairs(laplacian, 1, mass=mass.to_sparse_coo()).resolved  # one of two known null vectors


@pytest.mark.parametrize("n", [40, 640])
def test_copies_of_multiple_values_are_found(n):
    laplacian = unnormalized(cycle(n))
    mass = torch.eye(n, dtype=torch.float64) * 2 / 3 + (laplacian.to_dense() == -1).double() / 6
    angle = 2 * np.pi * torch.tensor([0, 1, 1, 2, 2, 3, 3], dtype=torch.float64) / n
    expected = (2 - 2 * angle.cos()) / ((2 + angle.cos()) / 3)
    pairs = eigenpairs(laplacian, 7, mass=mass.to_sparse_coo())
    torch.testing.assert_close(pairs.values, expected, rtol=1e-9, atol=1e-13)
    assert pairs.converged


def test_a_stiffness_that_fills_in_beside_a_mass_that_does_not():
    """Factors of K + s M would take longer than products with M⁻¹ K, which find the pairs and their gradients."""
    n, random = 2000, np.random.default_rng(0)
    matrix = scipy.sparse.random(n, n, 4 / n, random_state=0)
    matrix = (matrix + matrix.T) / 2 + scipy.sparse.diags(random.normal(0, 3, n))
    mass = scipy.sparse.diags([np.full(n - 1, 1 / 6), np.full(n, 2 / 3), np.full(n - 1, 1 / 6)], [-1, 0, 1])
    weights = torch.tensor(mass.toarray()).to_sparse_coo().requires_grad_()
    pairs = eigenpairs(matrix.tocsr(), 5, mass=weights)
    check_pairs(pairs, dense_values(matrix.toarray(), mass.toarray()), atol=1e-10)
    pairs.projected.trace().backward()  # d tr Λ = −Σ λ uᵀ dM u
    u, (row, col) = pairs.vectors.detach(), weights.detach().coalesce().indices()
    known = -((u * pairs.values.detach())[row] * u[col]).sum(1)
    torch.testing.assert_close(weights.grad.coalesce().values(), known, rtol=0, atol=1e-8)


@pytest.mark.parametrize("n", [40, 640])
def test_largest_pairs(n):
    laplacian = unnormalized(KNN(8)(surface(n // 2)))
    matrix, mass = laplacian.to_dense(), mass_of(laplacian)
    matrix, mass = torch.block_diag(matrix, matrix), torch.block_diag(mass, mass).requires_grad_()  # each value twice
    pairs = eigenpairs(matrix.to_sparse(), 4, mass=mass, largest=True)
    expected = dense_values(matrix, mass.detach()).flip(0)
    check_pairs(pairs, expected, rtol=1e-11, atol=0, gap_rtol=1e-5)  # five digits are promised
    check_vectors(pairs, matrix, mass, atol=1e-9)
    u = pairs.vectors  # d tr Λ = −Σ λ uᵀ dM u
    pairs.projected.trace().backward()
    torch.testing.assert_close(mass.grad, -(u * pairs.values) @ u.mT, rtol=0, atol=1e-9)


def test_batches_of_pencils_are_those_of_each():
    matrices, masses = noise(3, 7, 7), noise(3, 7, 7, seed=2)
    matrices, masses = matrices + matrices.mT, masses @ masses.mT + torch.eye(7)
    pairs = eigenpairs(matrices, 2, mass=masses)
    check_pairs(pairs, torch.stack(list(map(dense_values, matrices, masses))), atol=1e-10)
    check_vectors(pairs, matrices, masses, atol=1e-10)


def problem(is_equal, is_sparse, n=9, k=3):
    """Functions of edge weights and mass entries that do not depend on the basis; with equal values on a cycle."""
    affinity = cycle(n) if is_equal else random_affinity(n)
    rows, cols = torch.triu_indices(n, n, 1)
    seen = affinity[rows, cols] != 0
    rows, cols = rows[seen], cols[seen]
    weights = affinity[rows, cols].clone().requires_grad_()
    beside = torch.full_like(weights, 1 / 6) if is_equal else noise(len(weights)) / 6
    own = torch.full((n,), 2 / 3, dtype=torch.float64) if is_equal else n * (0.2 + noise(n, seed=2))
    entries = torch.cat([own, beside.detach()]).requires_grad_()
    diagonal = torch.arange(n)
    index = torch.stack([torch.cat([diagonal, rows, cols]), torch.cat([diagonal, cols, rows])])
    w = noise(n, n, seed=3)

    def loss(weights, entries):
        full = torch.zeros(n, n, dtype=torch.float64).index_put((rows, cols), weights)
        values = torch.cat([entries, entries[n:]])
        if is_sparse:
            mass = torch.sparse_coo_tensor(index, values, (n, n), check_invariants=False)
        else:
            mass = torch.zeros(n, n, dtype=torch.float64).index_put(tuple(index), values)
        pairs = eigenpairs(unnormalized(full + full.mT), k, mass=mass)
        return (heat_of(pairs) * w).sum(), pairs.projected.square().sum()

    return loss, (weights, entries)


@every(is_equal=[False, True], is_sparse=[True, False])
def test_derivatives(is_equal, is_sparse):
    loss, inputs = problem(is_equal, is_sparse)
    assert gradcheck(loss, inputs, check_forward_ad=not is_sparse)
    assert gradgradcheck(loss, inputs)


def test_large_indefinite_masses_are_refused():
    mass = mass_of(laplacian := unnormalized(KNN(8)(surface(700))))
    mass = (mass - 1.5 * torch.diag(mass.diagonal() - 0.01)).to_sparse_coo()
    with pytest.raises(ValueError, match="mass must be positive definite"):
        eigenpairs(laplacian, 2, mass=-mass)


def test_elements_of_very_different_sizes_take_few_solves():
    ends, h = torch.eye(400).double().diff(dim=0), torch.logspace(0, -6, 399).double()
    mass = torch.diag(ends.abs().mT @ h / 2).to_sparse_coo()
    pairs = eigenpairs((ends.mT @ (ends / h[:, None])).to_sparse_coo(), 4, mass=mass)
    check_pairs(pairs, (torch.arange(5).double() * torch.pi / h.sum()) ** 2, rtol=1e-2, atol=1e-6)
    assert pairs.iterations <= 100


def graded(n, orders=16.0):
    """A mass matrix whose diagonal spans so many orders of magnitude, on the edges of a graph."""
    laplacian = unnormalized(KNN(6)(surface(n)))
    root = 10 ** (orders / 2 * (noise(n) - 0.5))
    return laplacian.to_dense(), root[:, None] * mass_of(laplacian) * root


def gradients(matrix, mass, k, w, scale, solver=None):
    """Gradients of wᵀ U exp(−Λ / s) Uᵀ w to the entries of sparse matrices."""
    inputs = [x.detach().to_sparse_coo().coalesce().requires_grad_() for x in (matrix, mass)]
    pairs = eigenpairs(inputs[0], k, solver, mass=inputs[1])
    z = w @ pairs.vectors
    found = torch.autograd.grad(z @ torch.matrix_exp(-pairs.projected / scale) @ z, inputs)
    return pairs, [x.to_dense() for x in found]


def exact_gradients(matrix, mass, k, w, scale):
    """The same in 60 digits by the whole spectrum, as matrices."""
    with mpmath.workdps(60):
        stiffness, weights = (mpmath.matrix(x.tolist()) for x in (matrix, mass))
        inverse = mpmath.cholesky(weights) ** -1
        values, q = mpmath.eigsy(inverse * stiffness * inverse.T)
        u, values = np.array((inverse.T * q).tolist()), np.array(list(values))
        c = u.T @ np.vectorize(mpmath.mpf, otypes=[object])(w.numpy())
        f = np.array([mpmath.exp(-x / scale) * (i < k) for i, x in enumerate(values)])
        apart = values[:, None] - values + np.diag([mpmath.mpf(1)] * len(values))
        found = []
        for g, slopes in ((f, -f / scale), (-values * f, -f + values * f / scale)):
            quotients = (g[:, None] - g) / apart + np.diag(slopes)
            found.append(torch.from_numpy((u @ (quotients * c[:, None] * c) @ u.T).astype(float)))
        return found


@pytest.mark.parametrize("n", [14, 640])
def test_gradients_at_masses_of_very_different_sizes(n):
    """Of a few nodes against 60 digits, of many against all pairs."""
    matrix, mass = graded(n)
    w, scale = noise(n, seed=5) - 0.5, float(eigenpairs(matrix, 3, mass=mass).values[-1])
    pairs, found = gradients(matrix, mass, 3, w, scale)
    exact = exact_gradients(matrix, mass, 3, w, scale) if n < 100 else gradients(matrix, mass, 3, w, scale, Eigh())[1]
    assert pairs.converged
    for ours, theirs, entries in zip(found, exact, (matrix, mass), strict=True):
        allowed = 0 if n < 100 else 1e-10 * float(theirs.abs().max())
        torch.testing.assert_close(ours, torch.where(entries != 0, theirs, 0), rtol=1e-6, atol=allowed)


def ring(n, faint=0.0):
    """Stiffness and consistent mass of a ring, whose values come in pairs that a ``faint`` spring parts."""
    own = torch.eye(n, dtype=torch.float64)
    own[0, 0] += faint
    return own * 2 - cycle(n), torch.eye(n, dtype=torch.float64) * 2 / 3 + cycle(n) / 6


def test_gradients_where_the_next_value_is_near_or_equal():
    """Right at a gap of 1e-8 of the norm, and a warning where the cut splits a pair."""
    w = noise(640, seed=5) - 0.5
    matrix, mass = ring(640, faint=1e-5)
    both = [gradients(matrix, mass, 2, w, 1e-4, solver)[1] for solver in (None, Eigh())]
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))
    with pytest.warns(DegeneracyWarning, match="splits a cluster"):
        gradients(*ring(640), 2, w, 1e-4)


@pytest.mark.parametrize("n", [20, 640])
def test_a_loss_that_is_no_number_has_no_gradient(n):
    matrix, mass = ring(n)
    sparse = mass.to_sparse_coo().requires_grad_()
    (eigenpairs(matrix, 3, mass=sparse).vectors[:, 1:].square() * torch.nan).sum().backward()
    assert sparse.grad.coalesce().values().isnan().any()


@pytest.mark.parametrize("decades", [5, 8])
def test_values_near_a_number_beside_masses_of_very_different_sizes(decades):
    matrix, mass = graded(40, decades)
    values = torch.from_numpy(scipy.linalg.eigh(matrix, mass, eigvals_only=True))
    for target in (float(values[20]), 1.01 * float(values[20])):
        pairs = eigenpairs(matrix, 4, mass=mass, nearest=target)
        far = (values - target).abs().sort().values[:4]
        torch.testing.assert_close((pairs.values - target).abs().sort().values, far, rtol=1e-6, atol=1e-6 * target)
        assert pairs.converged


def test_an_eigenvalue_far_below_the_others_is_found():
    stiffness, mass = torch.tensor([[0, 1e30, 0], [1e30, 0, 1], [0, 1, 2]]).double(), torch.tensor([1e-30, 1, 1e30])
    value = eigenpairs(stiffness, 1, mass=mass.diag().double()).values
    torch.testing.assert_close(value, torch.full_like(value, -1e45), rtol=1e-6, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [40, 400])
def test_hermitian_pencils(n, layout):
    a, b = (torch.complex(noise(n, n, seed=s) - 0.5, noise(n, n, seed=s + 1) - 0.5) for s in (1, 3))
    matrix, mass = a + a.mH, b @ b.mH / n + torch.eye(n)
    exact = scipy.linalg.eigh(matrix.numpy(), mass.numpy(), eigvals_only=True)
    nearest = np.sort(exact[np.argsort(abs(exact - 0.1))[:4]])
    for ends, values in (({}, exact[:4]), ({"largest": True}, exact[::-1][:4]), ({"nearest": 0.1}, nearest)):
        pairs = eigenpairs(layout(matrix), 4, mass=layout(mass), **ends)
        torch.testing.assert_close(pairs.values, torch.tensor(values.copy()), rtol=1e-9, atol=1e-9)
        check_vectors(pairs, matrix, mass, atol=1e-9)
        assert pairs.converged
        assert pairs.residuals.max() < 1e-8


def test_hermitian_pencils_with_copies_and_derivatives():
    a, b = (torch.complex(noise(9, 9, seed=s) - 0.5, noise(9, 9, seed=s + 1) - 0.5) for s in (1, 3))
    mass, turn = b @ b.mH + torch.eye(9), torch.linalg.qr(a)[0]
    low = torch.linalg.cholesky(mass)
    values = torch.tensor([1.0, 1.0, 1.0, *range(2, 8)], dtype=torch.float64)
    matrix = low @ (turn * values) @ turn.mH @ low.mH
    pairs = eigenpairs((matrix + matrix.mH) / 2, 4, mass=mass)
    torch.testing.assert_close(pairs.values, values[:4])
    diagonal = noise(9) + 0.5
    expected = scipy.linalg.eigh((a + a.mH).numpy(), np.diag(diagonal.numpy()), eigvals_only=True)[:3]
    torch.testing.assert_close(eigenpairs(a + a.mH, 3, mass=diagonal).values, torch.tensor(expected))

    def loss(x, y):
        found = eigenpairs(x + x.mH, 3, mass=y @ y.mH + torch.eye(5))
        return (found.vectors @ torch.matrix_exp(-found.projected) @ found.vectors.mH).abs().square().sum()

    assert gradcheck(loss, (a[:5, :5].clone().requires_grad_(), b[:5, :5].clone().requires_grad_()), atol=1e-6)
