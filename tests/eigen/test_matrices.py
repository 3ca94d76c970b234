"""Eigenpairs of matrices as they come, at either end, against dense references and finite differences."""

import pytest
import scipy.sparse as sp
import torch

from torch_lapeig import eigenpairs
from torch_lapeig.eigen import ChebyshevSubspace, FunctionOperator, Lobpcg, ShiftInvert


def symmetric(n, dtype=torch.float64, seed=0, lead=()):
    x = torch.randn(*lead, n, n, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return (x + x.mH) / 2


def banded(n):
    """An indefinite sparse matrix."""
    main = torch.linspace(-3, 2, n, dtype=torch.float64)
    off = torch.linspace(0.5, 1, n - 1, dtype=torch.float64)
    return torch.diag(main) + torch.diag(off, 1) + torch.diag(off, -1)


FORMS = {
    "dense": lambda a: a,
    "coo": lambda a: a.to_sparse_coo(),
    "csr": lambda a: a.to_sparse_csr(),
    "scipy": lambda a: sp.csr_matrix(a.numpy()),
    "operator": lambda a: FunctionOperator(lambda y, m: m @ y, len(a), [a]),
}


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_pairs_of_indefinite_matrices(form, largest):
    a = banded(40)
    pairs = eigenpairs(FORMS[form](a), 4, largest=largest)
    expected = torch.linalg.eigvalsh(a)
    expected = expected.flip(0) if largest else expected
    assert pairs.converged
    torch.testing.assert_close(pairs.values, expected[:4])
    torch.testing.assert_close(pairs.gap, (expected[4] - expected[3]).abs(), rtol=0.1, atol=0)
    torch.testing.assert_close(a @ pairs.vectors, pairs.vectors @ pairs.projected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex128])
@pytest.mark.parametrize("largest", [False, True])
def test_batches_and_hermitian_matrices(dtype, largest):
    a = symmetric(9, dtype, lead=(3,))
    pairs = eigenpairs(a, 3, largest=largest)
    expected = torch.linalg.eigvalsh(a)
    torch.testing.assert_close(pairs.values, (expected.flip(1) if largest else expected)[:, :3], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(a @ pairs.vectors, pairs.vectors @ pairs.projected, atol=1e-5, rtol=1e-5)
    assert pairs.vectors.dtype == dtype


@pytest.mark.parametrize("largest", [False, True])
def test_sparse_hermitian_matrices_are_those_of_dense(largest):
    a = banded(20) + 0j
    a = a + 1j * (torch.diag(torch.ones(19), 1) - torch.diag(torch.ones(19), -1))
    for form in (a, a.to_sparse_coo(), sp.coo_array(a.numpy())):
        values = eigenpairs(form, 3, largest=largest).values
        expected = torch.linalg.eigvalsh(a)
        torch.testing.assert_close(values, (expected.flip(0) if largest else expected)[:3])


@pytest.mark.parametrize("solver", [ChebyshevSubspace(), ShiftInvert(), Lobpcg(preconditioner=None)])
@pytest.mark.parametrize("largest", [False, True])
def test_solvers_at_either_end(solver, largest):
    a = banded(300)
    pairs = eigenpairs(a.to_sparse_coo(), 3, solver, largest=largest)
    expected = torch.linalg.eigvalsh(a)
    torch.testing.assert_close(pairs.values, (expected.flip(0) if largest else expected)[:3])


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("equal", [False, True])
def test_gradients_to_dense_entries(equal, largest):
    a = symmetric(5)
    if equal:
        q = torch.linalg.eigh(a).eigenvectors
        a = q @ torch.diag(torch.tensor([-2.0, -2, 1, 3, 3], dtype=torch.float64)) @ q.mT
    a = a.requires_grad_()

    def loss(x):
        pairs = eigenpairs((x + x.mT) / 2, 2, largest=largest)
        return pairs.vectors @ pairs.projected @ pairs.vectors.mT

    assert torch.autograd.gradcheck(loss, a, atol=1e-5)
    assert torch.autograd.gradgradcheck(loss, a, atol=1e-4)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_gradients_of_sparse_tensors_are_sparse(layout):
    a = banded(30)
    given = FORMS[layout](a).requires_grad_()
    eigenpairs(given, 3).values.sum().backward()
    assert given.grad.layout == given.layout
    dense = a.clone().requires_grad_()
    eigenpairs(dense, 3).values.sum().backward()
    torch.testing.assert_close(given.grad.to_dense(), dense.grad * (a != 0))


def test_mass_beside_an_indefinite_matrix():
    a, mass = symmetric(8), torch.linspace(1, 3, 8, dtype=torch.float64)
    for largest in (False, True):
        pairs = eigenpairs(a, 3, mass=mass, largest=largest)
        torch.testing.assert_close(a @ pairs.vectors, mass[:, None] * pairs.vectors * pairs.values)
        expected = torch.linalg.eigvalsh(a / (mass[:, None] * mass).sqrt())
        torch.testing.assert_close(pairs.values, (expected.flip(0) if largest else expected)[:3])


@pytest.mark.parametrize("n", [20, 300])
@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_units_do_not_matter(n, unit):
    matrix = symmetric(n)
    for largest in (False, True):
        expected = eigenpairs(matrix, 3, largest=largest)
        found = eigenpairs(unit * matrix, 3, largest=largest)
        torch.testing.assert_close(found.values / unit, expected.values)
        assert found.converged
