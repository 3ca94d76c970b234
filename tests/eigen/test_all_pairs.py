"""All pairs of dense matrices, against `torch.linalg.eigh`, finite differences and closed forms."""

import pytest
import torch

from problems import check_derivatives
from torch_lapeig import DegeneracyWarning, eigh

DTYPES = [torch.float64, torch.complex128]


def matrix_of(values, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=dtype, generator=generator))
    a = q @ torch.diag(torch.tensor(values, dtype=torch.float64)).to(dtype) @ q.mH
    return (a + a.mH) / 2


def hermitian(x):
    return (x + x.mH) / 2


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES])
def test_pairs_of_a_batch_are_those_of_torch(dtype):
    x = hermitian(torch.randn(2, 3, 7, 7, dtype=dtype, generator=torch.Generator().manual_seed(1)))
    values, vectors, projected = eigh(x)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(x))
    torch.testing.assert_close(vectors @ projected @ vectors.mH, x)
    torch.testing.assert_close(vectors.mH @ vectors, torch.eye(7, dtype=dtype).expand(2, 3, 7, 7))
    peak = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
    torch.testing.assert_close(peak, peak.abs().to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_distinct_pairs_in_any_loss(dtype):
    check_derivatives(lambda x: eigh(hermitian(x))[:2], matrix_of([0.5, 1.0, 2.0, 4.0], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_eigenspaces_and_of_products_through_the_matrix(dtype):
    a = matrix_of([1.0, 1.0, 2.0, 3.0, 3.0], dtype).requires_grad_()

    def projector(x):
        v = eigh(hermitian(x)).vectors[:, :2]
        return v @ v.mH

    def through_matrix(x):
        pairs = eigh(hermitian(x))
        return pairs.vectors @ pairs.projected @ pairs.projected @ pairs.vectors.mH

    for function in (projector, through_matrix):
        check_derivatives(function, a)
    assert torch.autograd.gradcheck(lambda x: eigh(hermitian(x)).values.exp().sum(), a)
    torch.testing.assert_close(through_matrix(a), a @ a)


def test_a_loss_without_a_gradient_is_finite_and_warned_of():
    for loss in (lambda p: p.vectors[0, 1], lambda p: p.values[0]):
        a = torch.eye(3, dtype=torch.float64, requires_grad=True)
        with pytest.warns(DegeneracyWarning, match="choice of basis|distinguishes equal"):
            loss(eigh(a)).backward()
        assert a.grad.isfinite().all()


@pytest.mark.parametrize("a", [torch.zeros(3, 3), 1e-30 * torch.eye(3), torch.zeros(0, 3, 3), torch.zeros(1, 1)])
def test_extremes(a):
    a = a.clone().requires_grad_()
    eigh(a).matrix_function(torch.exp).sum().backward()
    torch.testing.assert_close(a.grad, torch.ones_like(a))
