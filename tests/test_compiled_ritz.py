"""Compiled looks at Ritz pairs against dense algebra."""

import math

import pytest
import torch

from problems import points, sparse_path
from torch_lapeig import Graph, Laplacian, _compiled, eigenpairs, knn_graph
from torch_lapeig._compiled.ritz import ritz_pairs, ritz_values
from torch_lapeig.eigen import ShiftInvert

DTYPES = (torch.float64, torch.float32)
pytestmark = pytest.mark.skipif(_compiled.library() is None, reason="nothing is compiled")


def arrow(kept, m):
    """What a restart leaves: Ritz values, their products with the vector that follows, and a tridiagonal rest."""
    a = torch.zeros(m, m, dtype=torch.float64)
    a[:kept, :kept] = torch.diag(torch.linspace(0, 1e-3, kept, dtype=torch.float64))
    a[kept, :kept] = a[:kept, kept] = 1e-7 * points(kept, 1)[:, 0]
    rest = points(m, m, seed=1)
    rest = (rest + rest.mT).tril(1).triu(-1)
    a[kept:, kept:] = rest[kept:, kept:]
    return a


PROJECTIONS = {
    "dense": lambda m: points(m, m) + points(m, m).mT,
    "tridiagonal": lambda m: (points(m, m) + points(m, m).mT).tril(1).triu(-1),
    "blocks": lambda m: (points(m, m) + points(m, m).mT).tril(4).triu(-4),
    "arrow": lambda m: arrow(m // 3, m),
    "inverse": lambda m: torch.diag(10.0 ** -torch.arange(m, dtype=torch.float64) * 1e12) + 1e-3 * torch.eye(m),
    "copies": lambda m: torch.diag(torch.arange(m, dtype=torch.float64) // 3),
    "zero": lambda m: torch.zeros(m, m, dtype=torch.float64),
    "path": lambda m: torch.as_tensor(sparse_path(m).toarray()).double(),
}


@pytest.mark.parametrize("name", PROJECTIONS)
@pytest.mark.parametrize("m", [1, 2, 3, 5, 12, 33, 60])
@pytest.mark.parametrize("scale", [1.0, 1e-120, 1e120])
def test_ritz_values_and_residuals_are_those_of_dense_eigenpairs(name, m, scale):
    matrix = PROJECTIONS[name](m) * scale
    room = torch.full((m + 3, m + 3), math.nan, dtype=torch.float64)  # of which the lower triangle of a part counts
    room[:m, :m] = matrix.tril() + torch.full_like(matrix, math.nan).triu(1)
    for ends in range(1, min(m, 4) + 1):
        root = points(ends, ends, seed=2)
        values, residuals = ritz_values(room, m, root @ root.mT)
        expected, turn = torch.linalg.eigh(matrix)
        size = float(matrix.abs().max()) or 1.0
        torch.testing.assert_close(values / size, expected / size, rtol=0, atol=1e-14 * m)
        # Vectors of close values may be others, but the sum of squares over such is the same: so is that over all.
        squares = (root.mT @ turn[m - ends :]).square().sum(0)
        torch.testing.assert_close(residuals.square().sum(), squares.sum(), rtol=1e-12, atol=0)
        gaps = expected.diff()
        apart = torch.cat([gaps.new_tensor([math.inf]), gaps]).minimum(torch.cat([gaps, gaps.new_tensor([math.inf])]))
        clear = apart > 1e-3 * size
        torch.testing.assert_close(residuals[clear], squares[clear].sqrt(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e160])
def test_projections_out_of_range_are_left_to_others(bad):
    matrix = torch.eye(5, dtype=torch.float64)
    matrix[3, 2] = bad
    assert ritz_values(matrix, 5, torch.eye(1, dtype=torch.float64)) is None
    assert ritz_values(torch.eye(6, dtype=torch.float64), 6, torch.eye(5, dtype=torch.float64)) is None


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
@pytest.mark.parametrize("count", [1, 3, 4, 9])
@pytest.mark.parametrize("m", [1, 3, 4, 8, 11])
def test_ritz_pairs_outside_rows(count, m, dtype):
    """Also of columns that next to nothing is left of."""
    operator = next(batch_of(dtype).items())
    rows = torch.linalg.qr(torch.randn(60, count, dtype=torch.float64))[0].mT.to(dtype).contiguous()
    noise = torch.randn(60, m, dtype=dtype)
    inside = rows.mT @ torch.randn(count, m, dtype=dtype)
    eps = torch.finfo(dtype).eps
    for x in (noise, inside + 1e4 * eps * noise, noise.mT.contiguous().mT):
        values, vectors, _ = (part[0] for part in ritz_pairs(operator.compiled, x[None], outside=rows))
        assert float((rows @ vectors).abs().max()) < 100 * eps
        assert float((vectors.mT @ vectors - torch.eye(m)).abs().max()) < 300 * eps
        projected = vectors.mT @ operator.matmul(vectors)
        torch.testing.assert_close(values, torch.linalg.eigvalsh(projected), rtol=0, atol=300 * eps * 8)
    assert ritz_pairs(operator.compiled, inside[None], outside=rows) is None


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


def test_the_same_pairs_without_compiled_looks(monkeypatch):
    """Each way in turn; no way is the other's reference: both are checked against dense pairs."""
    torch.manual_seed(1)
    x = torch.rand(400, 2, dtype=torch.float64)
    weight = torch.exp(-torch.cdist(x, x).square() * 200) * (torch.cdist(x, x) < 0.12)
    row, col = weight.fill_diagonal_(0).nonzero(as_tuple=True)
    laplacian = Laplacian(Graph.from_edge_index(torch.stack([row, col]), weight[row, col], 400))
    values, vectors = torch.linalg.eigh(laplacian.to_dense())
    calls = []

    def counted(*args):
        calls.append(args)
        return ritz_values(*args)

    def without(*args):
        return None

    for look in (counted, without):
        monkeypatch.setattr("torch_lapeig.eigen.block_krylov.ritz_values", look)
        pairs = eigenpairs(laplacian, 6, ShiftInvert())
        assert pairs.converged
        torch.testing.assert_close(pairs.values, values[:6], rtol=0, atol=1e-13)
        overlap = (vectors[:, :6].mT @ pairs.vectors).abs()
        torch.testing.assert_close(overlap, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-6)
    assert calls
