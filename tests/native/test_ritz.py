"""Compiled looks at Ritz pairs against dense algebra."""

import pytest
import torch

from problems import points
from torch_lapeig import Laplacian, knn_graph, native
from torch_lapeig.native.ritz import ritz_pairs

DTYPES = (torch.float64,)
pytestmark = pytest.mark.skipif(native.library() is None, reason="nothing is compiled")


def batch_of(dtype):
    x = torch.stack([points(60, 3, seed=seed) for seed in range(4)]).to(dtype)
    return Laplacian(knn_graph(x, 6)).symmetric


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 2, 7, 8, 17, 33])
@pytest.mark.parametrize("is_dependent", [False, True])
def test_ritz_pairs_of_a_block_are_those_of_dense_algebra(m, dtype, is_dependent):
    operator, eps = batch_of(dtype), 300 * torch.finfo(dtype).eps
    x = torch.randn(4, 60, m, dtype=dtype)
    if is_dependent:  # as far as that goes in one pass
        x = x @ torch.ones(m, m, dtype=dtype).triu()
    x = x * torch.logspace(-6, 6, m, dtype=dtype)
    null = operator.null_vectors(m)[..., :1]
    values, vectors, residuals = ritz_pairs(operator.compiled, x, null, operator.bound)
    eye = torch.eye(m, dtype=dtype).expand(4, m, m)
    torch.testing.assert_close(vectors.mT @ vectors, eye, rtol=0, atol=eps)
    unit = x / x.norm(dim=1, keepdim=True)
    torch.testing.assert_close(vectors @ (vectors.mT @ unit), unit, rtol=0, atol=eps)  # the span is the same
    shifted = operator.to_dense() - operator.bound[:, None, None] * null @ null.mT
    expected, turn = torch.linalg.eigh(vectors.mT @ shifted @ vectors)
    values_of_a = expected.clamp_min(0)
    torch.testing.assert_close(values, values_of_a, rtol=0, atol=eps * float(operator.bound.max()))
    torch.testing.assert_close(turn.abs().diagonal(dim1=1, dim2=2), torch.ones(4, m, dtype=dtype), rtol=0, atol=0.1)
    rest = operator.matmul(vectors) - values[:, None, :] * vectors
    torch.testing.assert_close(residuals, rest.norm(dim=1), rtol=1e-3, atol=eps * float(operator.bound.max()))


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
def test_null_vectors_in_a_block_are_pairs_of_zero(dtype):
    operator = batch_of(dtype)
    null = operator.null_vectors(6)[..., :1]
    x = torch.cat([torch.randn(4, 60, 5, dtype=dtype), null], 2)
    values, vectors, residuals = ritz_pairs(operator.compiled, x, null, operator.bound)
    eps = 300 * torch.finfo(dtype).eps
    assert (values[:, 0] == 0).all()
    torch.testing.assert_close((vectors[..., :1] * null).sum(1).abs(), torch.ones(4, 1, dtype=dtype), rtol=0, atol=eps)
    assert float(residuals[:, 0].max()) < eps * float(operator.bound.max())
    assert (values[:, 1:] > 1e-3).all()


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
def test_dependent_columns_and_columns_of_nan_are_left_to_torch(dtype):
    operator = batch_of(dtype)
    null = operator.null_vectors(3)
    x = torch.randn(4, 60, 3, dtype=dtype)
    assert ritz_pairs(operator.compiled, x, null, operator.bound) is not None
    for column in (x[2, :, 0], x[2, :, 0] * 3 + 1e-9 * x[2, :, 1], torch.zeros(60), torch.full((60,), torch.nan)):
        y = x.clone()
        y[2, :, 2] = column
        assert ritz_pairs(operator.compiled, y, null, operator.bound) is None
