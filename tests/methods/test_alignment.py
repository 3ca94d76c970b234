"""Alignment to a reference: orthogonal Procrustes, signs and order, against SciPy and by derivatives."""

import pytest
import scipy.linalg
import torch

from problems import check_derivatives, points
from torch_lapeig import KNN, DegeneracyWarning, LaplacianEigenmaps, align, eigenpairs

Y, REFERENCE = points(20, 4), points(20, 4, seed=1)
TURN = torch.linalg.qr(points(4, 4, seed=2))[0]
SIGNS, ORDER = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64), torch.tensor([2, 0, 3, 1])


def test_a_rotation_is_undone_and_is_that_of_scipy():
    found = align(Y @ TURN, Y)
    torch.testing.assert_close(found.embedding, Y)
    torch.testing.assert_close(found.transform, TURN.mT)
    expected, _ = scipy.linalg.orthogonal_procrustes(Y.numpy(), REFERENCE.numpy())
    torch.testing.assert_close(align(Y, REFERENCE).transform, torch.from_numpy(expected))
    batch = align((Y @ TURN).expand(2, 20, 4), torch.stack([Y, REFERENCE]))
    torch.testing.assert_close(batch.embedding[0], Y)
    assert batch.distance[0] < 1e-12 < 0.5 < batch.distance[1]


def test_common_rows_signs_and_order():
    rows = torch.tensor([3, 4, 7, 9, 11])
    torch.testing.assert_close(align(Y @ TURN, Y[rows], rows).embedding, Y)
    assert align(Y * SIGNS, Y, how="signs").distance == 0
    mixed = (Y * SIGNS)[:, ORDER]
    torch.testing.assert_close(align(mixed, Y, how="order").embedding, Y, rtol=0, atol=0)
    torch.testing.assert_close(align(mixed, Y[:, :2], how="order").embedding, Y[:, :2], rtol=0, atol=0)
    assert align(Y, torch.zeros_like(Y), how="signs").distance.isinf()


@pytest.mark.parametrize("pair", [(points(6, 4), REFERENCE[:6]), [torch.eye(6, 4).double()] * 2], ids=["any", "equal"])
def test_derivatives(pair):
    check_derivatives(lambda y, reference: align(y, reference).embedding, *pair)


def test_separated_columns_may_not_be_mixed():
    pairs = eigenpairs(torch.arange(9.0).double().diag(), 3)
    turned = pairs.vectors @ torch.linalg.qr(points(3, 3))[0]
    with pytest.warns(DegeneracyWarning, match="well separated"):
        align(pairs, turned)
    embedding = LaplacianEigenmaps(2, KNN(8)).embed(points(60, 2))
    assert align(embedding, -embedding.embedding).distance < 1e-12


def test_a_rotation_of_columns_of_unlike_size_has_all_digits():
    generator = torch.Generator().manual_seed(0)
    q, turn = (torch.linalg.qr(torch.randn(n, 2, generator=generator).double()).Q for n in (10, 2))
    y = q * torch.tensor([1, 2e-3])
    torch.testing.assert_close(align(y, y @ turn).transform, turn, rtol=0, atol=1e-12)
