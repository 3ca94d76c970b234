"""Inner products of tall blocks are those of their columns, however they are stored."""

import pytest
import torch

from problems import covering, points
from torch_lapeig.eigen import operator
from torch_lapeig.eigen.operator import dots, inner
from torch_lapeig.eigen.solvers.blocks import basis


@covering(1, columns=[(1, 1), (8, 8), (12, 9), (20, 2)], lead=[(3,), (), (1,)], rows=[9001, 50])
def test_slices_of_rows_add_up(lead, columns, rows, monkeypatch):
    monkeypatch.setattr(operator, "TALL", 100)
    x, y = (torch.stack([points(rows, m, seed=s) for s in range(max(1, *lead, 1))]) for m in columns)
    x, y = (t.reshape(*lead, rows, t.shape[-1]) for t in (x, y))
    expected = torch.einsum("...nm,...nl->...ml", x, y)
    wide = torch.cat([x, x], -1)[..., : columns[0]]  # rows apart
    by_columns = x.mT.contiguous().mT
    with torch.no_grad():
        for block in (x, wide, by_columns):
            torch.testing.assert_close(inner(block, y), expected, rtol=1e-12, atol=1e-10)
    derivative = torch.autograd.grad(inner(x.requires_grad_(), y).sum(), x)[0]
    torch.testing.assert_close(derivative, y.sum(-1, keepdim=True).expand_as(x))


class Nodes:
    """A space whose inner products are those of the nodes."""

    inner = staticmethod(inner)
    dots = staticmethod(dots)


@pytest.mark.parametrize("by_columns", [False, True], ids=["by rows", "by columns"])
@torch.no_grad()
def test_a_basis_does_not_change_its_argument(by_columns):
    w, others = points(300, 6), torch.linalg.qr(points(300, 4, seed=1))[0]
    w[:, 3] = w[:, 0]  # a column to leave out
    w[:, :2] += 1e4 * others[:, :2]  # most of it cancels: a second step
    w = w.mT.contiguous().mT if by_columns else w
    before = w.clone()
    q = basis(Nodes(), w, others[:, :1], others[:, 1:])
    assert torch.equal(w, before)
    assert q.shape == (300, 5)
    torch.testing.assert_close(q.mT @ q, torch.eye(5, dtype=q.dtype), rtol=0, atol=1e-13)
    assert (others.mT @ q).abs().max() < 1e-13
    rest = w - others @ (others.mT @ w)
    assert (rest - q @ (q.mT @ rest)).norm() < 1e-11 * rest.norm()
