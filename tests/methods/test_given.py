"""Matrices in the place of points."""

import copy

import pytest
import torch
from combined import OwnExtendingRule

import torch_lapeig as tl
from problems import distances, grams, quiet, sheet


def gaussian(x, y):
    return (-distances(x, y).square()).exp()


# Of a matrix of pairs in the place of points: what it is made of, and its module.
GIVEN = {
    "LaplacianEigenmaps": (gaussian, tl.LaplacianEigenmaps(2, tl.Precomputed("affinity"))),
    "SpectralClustering": (gaussian, tl.SpectralClustering(2, tl.Precomputed("affinity"))),
    "DiffusionMap": (gaussian, tl.DiffusionMap(2, tl.Precomputed("affinity"), alpha=0.8, time=1.5)),
    "MDS": (distances, tl.MDS(2, metric=tl.Precomputed("distance"))),
    "KernelPCA": (gaussian, tl.KernelPCA(2, tl.Precomputed("kernel"))),
}
every_given = pytest.mark.parametrize(("pairs", "module"), GIVEN.values(), ids=GIVEN.keys())
NOT_NEAREST = [5, tl.Radius(1.0), tl.KNN(6, "mutual"), tl.KNN, tl.Precomputed("affinity"), OwnExtendingRule(), None]


@every_given
def test_given_pairs_in_batches(pairs, module):
    """A mask takes rows and columns; new pairs are with all points, padding included."""
    x, new = sheet(12, batch=2), sheet(4, batch=2, seed=1)
    mask = torch.arange(12) < torch.tensor([[12], [9]])
    matrix = pairs(x, x) * (mask[:, None] & mask[..., None])
    y, y_new = quiet(module.out_of_sample, matrix, pairs(new, x), mask=mask)
    torch.testing.assert_close(y, quiet(module, matrix, mask=mask))
    assert not y[~mask].any()
    for b, n in enumerate((12, 9)):
        fitted = copy.deepcopy(module).fit(matrix[b, :n, :n])
        torch.testing.assert_close(y[b, :n], fitted.embedding_)
        torch.testing.assert_close(y_new[b], fitted.transform(pairs(new[b], x[b, :n])))
        torch.testing.assert_close(fitted.transform(matrix[b, :n, :n]), fitted.embedding_)
    with pytest.raises(ValueError, match=r"must have shape \(N, N\) or \(B, N, N\), got \(12, 3\)"):
        module(x[0])
    with pytest.raises(ValueError, match=r"x_new must have shape \(2, Q, 12\) to go with the points, got \(2, 4, 11\)"):
        module.out_of_sample(matrix, pairs(new, x)[..., :11])
    with pytest.raises(ValueError, match=r"one set of points \(N, N\), got a batch"):
        module.fit(matrix)


@every_given
def test_gradients_to_given_pairs(pairs, module):
    x, new = sheet(10), sheet(3, seed=1)
    fixed, matrix, rows = pairs(x, x), pairs(x, x).requires_grad_(), pairs(new, x).requires_grad_()

    def gram(matrix, rows):
        # Next to the diagonal, which distances have no derivative at, nothing is moved.
        off = (matrix + matrix.mT) / 2 * (1 - torch.eye(10)) + fixed * torch.eye(10)
        return grams(torch.cat(module.out_of_sample(off, rows)))

    assert torch.autograd.gradcheck(gram, (matrix, rows), fast_mode=True)


@pytest.mark.parametrize("wrong", NOT_NEAREST)
def test_lle_takes_exactly_the_nearest(wrong):
    with pytest.raises(TypeError, match=r"neighbors must be KNN\(k\), not symmetrised"):
        tl.LLE(2, wrong)
