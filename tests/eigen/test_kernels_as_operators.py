"""Symmetric matrices that are no Laplacians, by any solver."""

import pytest
import torch

from problems import points, subspace_angle
from torch_lapeig import eigenpairs
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lobpcg, SymmetricOperator
from torch_lapeig.graph import DensePattern


@pytest.mark.parametrize("solver", [Eigh(), ChebyshevSubspace(), Lobpcg(preconditioner=None), None], ids=str)
def test_largest_pairs_of_a_matrix(solver):
    """By any solver those of `eigvalsh`, also of multiple eigenvalues, with gradients."""
    basis = torch.linalg.qr(points(450, 450))[0]
    spectrum = torch.cat([torch.tensor([9.0, 9.0, 5.0, 4.0], dtype=torch.float64), torch.linspace(3, -6, 446).double()])
    matrix = ((basis * spectrum) @ basis.T).requires_grad_()
    operator = SymmetricOperator.of_largest(matrix)
    pairs = eigenpairs(operator, 4, solver)
    assert pairs.converged
    torch.testing.assert_close(operator.diagonal[0] - pairs.values, spectrum[:4], atol=1e-7, rtol=0)
    assert subspace_angle(basis[:, :4], pairs.vectors.detach()) < 1e-6
    pairs.values.sum().backward()
    torch.testing.assert_close(matrix.grad, -basis[:, :4] @ basis[:, :4].T, atol=1e-6, rtol=0)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_symmetric_operators_like_their_matrices(batch):
    a = points(12 * max(1, len(batch) * 3), 12).reshape(*batch, 12, 12)
    a = a @ a.mT
    operator = SymmetricOperator(DensePattern((*batch, 12)), -a, a.new_zeros(*batch, 12))
    y = points(12, 2, batch=batch[0] if batch else None)
    torch.testing.assert_close(operator.matmul(y), a @ y)
    torch.testing.assert_close(operator.to_dense(), a)
    exact = torch.linalg.eigvalsh(a)
    assert (operator.bound >= exact.reshape(-1, 12)[:, -1]).all()
    for solver in (Eigh(), ChebyshevSubspace(), None):
        torch.testing.assert_close(eigenpairs(operator, 3, solver).values, exact[..., :3], atol=1e-10, rtol=1e-8)
    assert operator.double().values.dtype == torch.float64
    if not batch:
        single = SymmetricOperator(DensePattern((12,)), -a.float(), a.new_zeros(12).float())
        torch.testing.assert_close(eigenpairs(single, 3).values.double(), exact[:3], atol=1e-4, rtol=1e-3)
