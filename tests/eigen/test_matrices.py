"""Eigenpairs of matrices as they come, at either end, against dense references and finite differences."""

import pytest
import scipy.sparse as sp
import torch

from problems import check_derivatives, check_pairs, check_vectors, dense_values, every
from torch_lapeig import eigenpairs, eigh
from torch_lapeig.eigen import ChebyshevSubspace, FunctionOperator, Lobpcg, ShiftInvert


def symmetric(n, dtype=torch.float64, seed=0, lead=()):
    x = torch.randn(*lead, n, n, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return (x + x.mH) / 2


def banded(n):
    main = torch.linspace(-3, 2, n, dtype=torch.float64)
    off = torch.linspace(0.5, 1, n - 1, dtype=torch.float64)
    return torch.diag(main) + torch.diag(off, 1) + torch.diag(off, -1)


FORMS = {"dense": lambda a: a, "coo": lambda a: a.to_sparse_coo(), "csr": lambda a: a.to_sparse_csr()}
FORMS |= {"scipy": lambda a: sp.csr_matrix(a.numpy())}
FORMS |= {"operator": lambda a: FunctionOperator(lambda y, m: m @ y, len(a), [a])}
either_end = pytest.mark.parametrize("largest", [False, True])
ROW, COL = torch.tensor([0, 0, 1, 1, 2, 2, 2, 0, 1]), torch.tensor([0, 1, 0, 1, 2, 0, 1, 2, 2])
ORDER, PAIRS = (3 * ROW + COL).argsort(), torch.stack([ROW, COL])
ROUNDED = {
    "gram": lambda x: torch.cat([x[:60] @ x.mT, x[60:] @ x.mT]),
    "orthogonal": lambda x: torch.linalg.qr(x)[0] @ torch.linalg.qr(x)[0].mT,
    "indefinite": lambda x: (x * torch.linspace(-9, 9, len(x)).to(x)) @ x.mT,
    "graded": lambda x: (lambda y: y @ y.mT)(torch.logspace(-4, 4, len(x)).to(x)[:, None] * x),
    "inverse": lambda x: torch.linalg.inv(x @ x.mT + torch.eye(len(x)).to(x)),
    "scaled": lambda x: torch.diag(x.abs().sum(1).rsqrt()) @ (x @ x.mT).exp() @ torch.diag(x.abs().sum(1).rsqrt()),
    "centred": lambda x: (lambda h: h @ x[:, :2] @ x[:, :2].mT @ h)(torch.eye(len(x)).to(x) - 1 / len(x)),
}


def from_its_end(values, largest):
    return values.flip(-1) if largest else values


HERMITIAN = banded(20) + 1j * (torch.diag(torch.ones(19), 1) - torch.diag(torch.ones(19), -1))
PROBLEMS = [(form, banded(40), None) for form in FORMS]
PROBLEMS += [("coo", banded(300), way) for way in (ChebyshevSubspace(), ShiftInvert(), Lobpcg(preconditioner=None))]
PROBLEMS += [(form, HERMITIAN, None) for form in ("dense", "coo", "scipy")]


@either_end
@pytest.mark.parametrize(("form", "a", "solver"), PROBLEMS)
def test_pairs_of_indefinite_matrices(form, a, solver, largest):
    pairs = eigenpairs(FORMS[form](a), 4, solver, largest=largest)
    check_pairs(pairs, from_its_end(dense_values(a), largest), atol=1e-7, rtol=1e-7, gap_atol=0)
    check_vectors(pairs, a, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex128])
@either_end
def test_batches_and_hermitian_matrices(dtype, largest):
    a = symmetric(9, dtype, lead=(3,))
    pairs = eigenpairs(a, 3, largest=largest)
    check_pairs(pairs, from_its_end(torch.linalg.eigvalsh(a), largest), atol=1e-5, rtol=1e-5)
    check_vectors(pairs, a, atol=2e-5)
    assert pairs.vectors.dtype == dtype


@either_end
@pytest.mark.parametrize("equal", [False, True])
def test_gradients_to_dense_entries(equal, largest):
    a = symmetric(5)
    if equal:
        q = torch.linalg.eigh(a).eigenvectors
        a = q @ torch.diag(torch.tensor([-2.0, -2, 1, 3, 3], dtype=torch.float64)) @ q.mT

    def loss(x):
        pairs = eigenpairs((x + x.mT) / 2, 2, largest=largest)
        return pairs.vectors @ pairs.projected @ pairs.vectors.mT

    check_derivatives(loss, a, second=1e-4)


def test_mass_beside_an_indefinite_matrix():
    a, mass = symmetric(8), torch.linspace(1, 3, 8, dtype=torch.float64)
    for largest in (False, True):
        pairs = eigenpairs(a, 3, mass=mass, largest=largest)
        check_pairs(pairs, from_its_end(dense_values(a, torch.diag(mass)), largest), atol=1e-10)
        check_vectors(pairs, a, torch.diag(mass), atol=1e-10)


def coo(w):
    return torch.sparse_coo_tensor(PAIRS, w, (3, 3), check_invariants=True)


def csr(w):
    return torch.sparse_csr_tensor(torch.arange(0, 10, 3), COL[ORDER], w[ORDER], (3, 3), check_invariants=True)


def full(w):
    return torch.zeros(3, 3, dtype=w.dtype).index_put((ROW, COL), w)


@pytest.mark.parametrize(
    "build",
    [
        *(coo, csr, lambda w: coo(w).coalesce(), lambda w: coo(w).to_sparse_csr(), lambda w: csr(w).to_sparse_coo()),
        *(lambda w: full(w).to_sparse(), lambda w: full(w).to_sparse_csr(), lambda w: -csr(-w)),
        lambda w: 2 * coo(w / 2),
        *(lambda w: coo(w / 3) + coo(2 * w / 3), lambda w: (coo(w) + coo(w).t()) / 2, lambda w: w[0] * coo(w / w[0])),
        *(lambda w: csr(w / 3) + csr(2 * w / 3), lambda w: coo(coo(w).coalesce().values()[ORDER.argsort()])),
        lambda w: torch.sparse_coo_tensor(PAIRS.repeat(1, 2), torch.cat([w, 2 * w]) / 3, (3, 3), check_invariants=True),
    ],
)
def test_second_derivatives_of_sparse_tensors_are_those_of_dense_ones(build):
    start = torch.tensor([4.0, 1.0, 1.0, 5.0, 7.0, 0.5, 0.2, 0.5, 0.2], dtype=torch.float64)

    def hessians(form):
        def loss(t, *, as_mass):
            w = start + t[0] * start.square() + t[1] * start.sin() * t.sum()
            pairs = eigenpairs(full(start), 2, mass=form(w)) if as_mass else eigenpairs(form(w), 2)
            return pairs.values.square().sum() + pairs.vectors.pow(4).sum()

        t = torch.tensor([0.1, 0.2], dtype=torch.float64)
        return [torch.autograd.functional.hessian(lambda t, m=m: loss(t, as_mass=m), t) for m in (False, True)]

    torch.testing.assert_close(hessians(build), hessians(full))


@every(name=[*ROUNDED], dtype=[torch.float32, torch.float64])
def test_matrices_that_are_symmetric_up_to_their_arithmetic(name, dtype):
    a = ROUNDED[name](torch.randn(100, 100, dtype=dtype, generator=torch.Generator().manual_seed(0)) / 10)
    a[3, 5] += torch.finfo(dtype).eps * a[3].abs().max()
    expected = torch.linalg.eigvalsh((a + a.mT).double() / 2)[-3:].flip(0).to(dtype)
    for form in (a, a.to_sparse_coo(), a.to_sparse_csr(), a + 0j):
        torch.testing.assert_close(eigenpairs(form, 3, largest=True).values, expected)
    torch.testing.assert_close(eigh(a).values[-3:].flip(0), expected, rtol=0, atol=1e-5 * expected[0].item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_symmetry_is_judged_beside_the_entries_of_a_row(dtype):
    a = torch.diag(torch.tensor([1e5, 1e5, 3, 4, 5], dtype=dtype))
    a[0, 1] = a[1, 0] = 1e4
    a[2, 3] = a[3, 2] = a[3, 4] = 1  # and no a[4, 3]
    for form in (a, a.to_sparse_coo(), a.to_sparse_csr(), sp.csr_array(a.numpy()), torch.stack([a, a])):
        with pytest.raises(ValueError, match=r"must be (symmetric|Hermitian), got .* up to 1;"):
            eigenpairs(form, 2)
    with pytest.raises(ValueError, match=r"must be (symmetric|Hermitian)"):
        eigh(a)


@pytest.mark.parametrize("alone", [0.0, 1e-5])
def test_entries_without_a_mirror_image_are_averaged_and_gradients_have_the_layout_of_the_matrix(alone):
    a = banded(10).float()
    a[0, 7] = alone
    given = [form.requires_grad_() for form in (a.clone(), a.to_sparse_coo(), a.to_sparse_csr())]
    values = [eigenpairs(form, 3).values for form in given]
    for form, found in zip(given, values, strict=True):
        torch.testing.assert_close(found, eigenpairs((a + a.mT) / 2, 3).values, rtol=0, atol=0)
        found.sum().backward()
        assert form.grad.layout == form.layout
        torch.testing.assert_close(form.grad.to_dense() * (a != 0), given[0].grad * (a != 0))


@pytest.mark.parametrize("form", ["dense", "coo", "csr"])
def test_entries_near_the_largest_number(form):
    a = torch.tensor([[2.0, 1.0], [1.0, 2.0]]) * 1.5e38
    torch.testing.assert_close(eigenpairs(FORMS[form](a), 1).values, torch.tensor([1.5e38]))
