"""Cosine similarities by two thin factors equal their dense matrices, with gradients, in every storage."""

import numpy as np
import pytest
import scipy.sparse
import torch

from problems import check_derivatives, heat_of, points, subspace_angle
from torch_lapeig import eigenpairs
from torch_lapeig.eigen import FactoredCosine
from torch_lapeig.graph.algebra import product

KINDS = [(False, "cosine"), (True, "cosine"), (False, "shifted"), (True, "shifted")]


def counts(n=40, width=12):
    """Rows of non-negative entries, most of them zero."""
    x = points(n, width)
    x = torch.where(x > 0.4, x, 0)
    x[torch.arange(n), torch.arange(n) % width] += 0.5
    return x


def dense(x, loops=False, similarity="cosine"):
    """The Laplacian as a matrix, and the degrees."""
    unit = torch.nn.functional.normalize(x, dim=-1)
    w = unit @ unit.mT
    w = (1 + w) / 2 if similarity == "shifted" else w
    w = w if loops else w - torch.diag_embed(w.diagonal(dim1=-2, dim2=-1))
    d = w.sum(-1)
    return torch.eye(x.shape[-2]) - w * d.rsqrt()[..., None] * d.rsqrt()[..., None, :], d


def invariant(pairs):
    n = pairs.vectors.shape[-2]
    return (points(n, n) * heat_of(pairs)).sum()


@pytest.mark.parametrize(("loops", "similarity"), KINDS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_it_is_its_dense_matrix(loops, similarity, batch):
    x = counts(120).reshape(*batch, -1, 12) if similarity == "cosine" else points(120, 12).reshape(*batch, -1, 12)
    operator = FactoredCosine(x, loops=loops, similarity=similarity)
    matrix, degrees = dense(x, loops, similarity)
    n = x.shape[-2]
    torch.testing.assert_close(operator.matmul(torch.eye(n).double().expand(*batch, n, n)), matrix)
    torch.testing.assert_close(operator.degrees, degrees)
    exact = torch.linalg.eigvalsh(matrix)
    assert (operator.bound >= exact[..., -1] - 1e-13).all()
    pairs = eigenpairs(operator, 4)
    assert pairs.converged.all()
    torch.testing.assert_close(pairs.values, exact[..., :4], atol=1e-11, rtol=0)


def storages(x):
    csr = x.to_sparse_csr()
    scipy_csr = scipy.sparse.csr_array(x.numpy())
    doubled = scipy.sparse.coo_array(  # entries in two parts
        (np.repeat(scipy_csr.tocoo().data / 2, 2), [np.repeat(part, 2) for part in scipy_csr.nonzero()]), x.shape
    )
    return {"csr": csr, "coo": x.to_sparse_coo(), "scipy": scipy_csr, "csc": scipy_csr.tocsc(), "doubled": doubled}


@pytest.mark.parametrize("storage", ["csr", "coo", "scipy", "csc", "doubled"])
def test_every_storage_is_the_same_matrix(storage):
    x = counts()
    operator, y = FactoredCosine(storages(x)[storage]), points(40, 3)
    torch.testing.assert_close(operator.matmul(y), FactoredCosine(x).matmul(y))
    torch.testing.assert_close(eigenpairs(operator, 3).values, eigenpairs(FactoredCosine(x), 3).values)


@pytest.mark.parametrize("storage", ["strided", "csr"])
def test_rows_of_very_different_length_have_the_same_cosines(storage):
    """Powers of two change no digit: entries of float32 from 1e-38 to 1e38."""
    x, y = counts(60).float(), points(60, 3).float()
    far = x * 2.0 ** torch.randint(-120, 120, (60, 1), generator=torch.Generator().manual_seed(0))
    near, other = (FactoredCosine(given if storage == "strided" else given.to_sparse_csr()) for given in (x, far))
    assert torch.equal(other.degrees, near.degrees)
    assert torch.equal(other.matmul(y), near.matmul(y))
    assert torch.equal(eigenpairs(other, 3).values, eigenpairs(near, 3).values)


def broken():
    """SciPy matrices and torch's tensors with an entry outside, each of another kind."""
    csr = scipy.sparse.csr_array(counts().numpy())
    crow, col = torch.from_numpy(csr.indptr), torch.from_numpy(csr.indices)
    for at, value in ((0, 12), (3, -1), (5, 10**8)):
        wrong = csr.copy()
        _ = wrong.has_canonical_format  # which SciPy recalls
        wrong.indices[at] = value
        yield wrong
        indices = torch.from_numpy(wrong.indices)
        yield torch.sparse_csr_tensor(crow, indices, csr.data, csr.shape, check_invariants=False)
        coo = csr.tocoo()
        coo.row[at] = 40 if value > 0 else -1
        yield coo
    for at, value in ((-1, 0), (4, 10**6), (4, -1), (0, 2)):
        wrong = csr.copy()
        wrong.indptr[at] = value
        yield wrong
        if at:  # SciPy looks at the first one itself
            yield wrong.T
        yield torch.sparse_csr_tensor(torch.from_numpy(wrong.indptr), col, csr.data, csr.shape, check_invariants=False)
    lists = csr.tolil()
    lists.rows[0] = [1]
    yield lists


def test_entries_outside_are_refused():
    for x in broken():
        with pytest.raises(ValueError, match=r"x must have its entries in (40 rows and 12|12 rows and 40) columns"):
            FactoredCosine(x)


@pytest.mark.parametrize("storage", ["strided", "csr", "coo"])
def test_gradients_equal_those_of_the_dense_matrix(storage):
    x = counts()
    leaf = (x if storage == "strided" else storages(x)[storage]).clone().requires_grad_()
    invariant(eigenpairs(FactoredCosine(leaf), 3)).backward()
    given = x.clone().requires_grad_()
    values, vectors = torch.linalg.eigh(dense(given)[0])
    v = vectors[:, :3]
    exact = (points(40, 40) * (v @ torch.diag((-values[:3]).exp()) @ v.mT)).sum()
    (exact,) = torch.autograd.grad(exact, given)
    found = leaf.grad.to_dense()
    torch.testing.assert_close(found, exact if storage == "strided" else exact * (x > 0), atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize("loops", [False, True])
def test_derivatives_at_equal_eigenvalues(loops):
    """Twelve rows that a rotation permutes, so that all inner eigenvalues are double, with their entries moved."""
    eye = torch.eye(12, dtype=torch.float64)
    ring = 2 * eye + eye.roll(-1, 0) + eye.roll(-2, 0) / 2

    def pairs_of(bump):
        return eigenpairs(FactoredCosine(ring * (1 + bump[:, None] * points(12, 12)), loops=loops), 3)

    bump = torch.zeros(12, dtype=torch.float64)
    assert pairs_of(bump).values.diff()[1] < 1e-12
    check_derivatives(lambda bump: invariant(pairs_of(bump)), bump, fast_mode=True)


def test_products_with_a_sparse_matrix_have_all_derivatives():
    operator = FactoredCosine(counts(7, 5).to_sparse_csr())
    pattern, (values,) = operator._sparse, operator.parameters
    values, y, z = values.clone().requires_grad_(), points(5, 2).requires_grad_(), points(7, 2).requires_grad_()
    for positions, block in ((pattern, y), (pattern.flipped, z)):

        def multiply(values, block, positions=positions):
            return product(values, block, positions)

        assert torch.autograd.gradcheck(multiply, [values, block], check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(multiply, [values, block], check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_isolated_rows_take_no_part(is_sparse):
    """A row of zeros, and one that is orthogonal to all others."""
    x = torch.nn.functional.pad(counts(), (0, 1, 1, 1))
    x[0, 12] = 3.0
    operator, others = FactoredCosine(x.to_sparse_csr() if is_sparse else x), FactoredCosine(counts())
    assert operator.active.sum() == 40
    pairs, exact = eigenpairs(operator, 3), eigenpairs(others, 3)
    torch.testing.assert_close(pairs.values, exact.values)
    assert (pairs.vectors[[0, -1]] == 0).all()
    assert subspace_angle(pairs.vectors[1:-1], exact.vectors) < 1e-8
    assert eigenpairs(FactoredCosine(torch.ones(1, 2), loops=True), 1).values == 0
