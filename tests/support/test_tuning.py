"""One policy for block sizes, and work that gives the same whatever the blocks."""

import pytest
import torch

from problems import points
from torch_lapeig import KNN, Isomap, LaplacianEigenmaps
from torch_lapeig.graph import nearest_neighbors


@pytest.mark.parametrize("shape", [(300, 3), (4500, 2)], ids=str)
def test_a_search_of_ties_in_blocks_of_one_row(shape, small_blocks):
    """A lattice, on which most rows are searched among all points within their k-th distance."""
    x = (2 * points(*shape, dtype=torch.float32)).round()
    queries = x[:60]
    whole = nearest_neighbors(x, 6, queries)
    small_blocks()
    found = nearest_neighbors(x, 6, queries)
    assert torch.equal(found.indices, whole.indices)
    assert torch.equal(found.squared_distances, whole.squared_distances)


@pytest.mark.parametrize("module", [LaplacianEigenmaps(2, KNN(6)), Isomap(2, KNN(6))], ids=lambda m: type(m).__name__)
def test_modules_in_blocks_of_one_row(module, small_blocks):
    x, new = points(50, 3).requires_grad_(), points(7, 3, seed=1)
    results = []
    for _ in range(2):
        y = module.fit(x.detach())(x)
        (gradient,) = torch.autograd.grad(y[:, 0].pow(4).sum(), x)
        results.append((y, gradient, module.transform(new)))
        small_blocks()
    for whole, found in zip(*results, strict=True):
        torch.testing.assert_close(found, whole)
