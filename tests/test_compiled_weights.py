"""What compiled loops find out about weights, and distances of pairs of points, against torch and SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components

from problems import points
from torch_lapeig import Graph, Laplacian, _compiled, eigenpairs, knn_graph
from torch_lapeig._compiled.weights import weighed
from torch_lapeig.graph.distances import nearest_of_candidates, pair_distances

DTYPES = (torch.float64, torch.float32)
pytestmark = pytest.mark.skipif(_compiled.library() is None, reason="nothing is compiled here")


def parts_and_hub(dtype, zeros=()):
    """Two cliques, a star, two nodes without edges; some of the weights zero."""
    n, generator = 40, torch.Generator().manual_seed(3)
    dense = torch.zeros(n, n, dtype=torch.float64)
    dense[3:10, 3:10] = dense[12:20, 12:20] = dense[20, 21:38] = dense[21:38, 20] = 1
    dense.fill_diagonal_(0)
    dense = dense * torch.rand(n, n, generator=generator, dtype=torch.float64)
    dense = (dense + dense.mT).to(dtype)
    for i, j in zeros:
        dense[i, j] = dense[j, i] = 0
    return dense


def rows_of(dense, pattern):
    """CSR rows of a pattern with the values of a matrix on it."""
    row, col = pattern.nonzero(as_tuple=True)
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), pattern.sum(1).cumsum(0)])
    return crow.int(), col.int(), dense[row, col].contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zeros", [(), ((20, 21), (20, 22)), tuple((20, j) for j in range(21, 30))])
def test_degrees_components_and_counts_are_those_of_the_dense_matrix(dtype, zeros):
    pattern, dense = parts_and_hub(dtype) > 0, parts_and_hub(dtype, zeros)
    found = weighed(*rows_of(dense, pattern))
    degrees = dense.double().sum(1)
    torch.testing.assert_close(found.degrees.double(), degrees, rtol=4 * torch.finfo(dtype).eps, atol=0)
    active = degrees > 0
    number, labels = connected_components((dense > 0).numpy(), directed=False)
    assert found.parts == len(set(labels[active.numpy()])) == number - int((~active).sum())
    assert (found.part[~active] == 0).all()
    same = torch.from_numpy(labels[:, None] == labels[None])
    both = active[:, None] & active[None]
    assert torch.equal((found.part[:, None] == found.part[None]) & both, same & both)
    firsts = [int((found.part[active] == p).nonzero()[0, 0]) for p in range(found.parts)]
    assert firsts == sorted(firsts)
    assert (found.active, found.longest) == (int(active.sum()), int(pattern.sum(1).max()))
    assert found.largest == float(found.degrees.max())
    assert found.least == float(found.degrees[active].min())
    assert found.is_sound
    assert not found.has_subnormal


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_are_no_affinities_are_said(dtype):
    dense = parts_and_hub(dtype)
    info = torch.finfo(dtype)
    for bad in (-1.0, math.nan, math.inf, -math.inf, info.max):
        wrong = dense.clone()
        wrong[3, 4] = wrong[4, 3] = bad
        assert not weighed(*rows_of(wrong, dense > 0)).is_sound
    small = torch.zeros_like(dense)
    small[0, 1] = small[1, 0] = info.tiny / 4
    small[2, 3] = small[3, 2] = 1
    found = weighed(*rows_of(small, small > 0))
    assert found.has_subnormal
    assert (found.active, found.parts, found.least) == (2, 1, 1.0)
    none = weighed(*rows_of(dense[:0, :0], dense[:0, :0] > 0))
    assert (none.active, none.parts, none.longest, none.largest, none.least) == (0, 0, 0, 0.0, math.inf)


def test_laplacians_are_the_same_with_and_without(monkeypatch):
    x = torch.cat([points(60, 2), points(50, 2) + 20])
    dense = parts_and_hub(torch.float64)
    edges = dense.nonzero().mT
    for graph in (knn_graph(x, 5), Graph.from_edge_index(edges, dense[edges[0], edges[1]], len(dense))):
        for normalization in ("symmetric", "random_walk", "unnormalized"):
            pairs, found = [], []
            for way in (weighed, lambda *_: None):
                monkeypatch.setattr("torch_lapeig.eigen.laplacian.weighed", way)
                laplacian = Laplacian(graph, normalization)
                operator = laplacian.symmetric
                found.append((laplacian.has, laplacian.fewest_active, operator._numbers, operator.nullity.tolist()))
                pairs.append(eigenpairs(laplacian, 6))
            assert found[0] == found[1]
            torch.testing.assert_close(pairs[0].values, pairs[1].values, rtol=0, atol=1e-13)


@pytest.mark.parametrize("normalization", ["symmetric", "random_walk", "unnormalized"])
def test_rows_of_padding_are_zero(normalization):
    mask = torch.arange(50) % 5 > 0
    laplacian = Laplacian(knn_graph(points(50, 2), 4, mask=mask), normalization)
    y = torch.randn(50, 3, dtype=torch.float64)
    for matmul in (laplacian.matmul, laplacian.symmetric.matmul):
        with torch.no_grad():
            found = matmul(y)
        assert not found[~mask].any()
        torch.testing.assert_close(found, matmul(y.requires_grad_()).detach(), rtol=0, atol=1e-14)
        y = y.detach()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dimensions", [17, 33, 64, 100, 784])
def test_distances_of_pairs_in_many_dimensions(dtype, dimensions):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, dimensions, generator=generator, dtype=torch.float64).to(dtype) for n in (30, 50))
    i, j = torch.randint(0, 30, (200,), generator=generator), torch.randint(0, 50, (200,), generator=generator)
    expected = (x[i].double() - y[j].double()).square().sum(1)
    found = pair_distances(x, i, y, j)
    torch.testing.assert_close(found.double(), expected, rtol=20 * torch.finfo(dtype).eps, atol=0)
    assert torch.equal(found, pair_distances(y, j, x, i))
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            assert torch.equal(pair_distances(x, i, y, j), found)
        finally:
            torch.set_num_threads(before)
    number = torch.arange(50).expand(30, -1).contiguous()
    nearest, squares = nearest_of_candidates(x, y[number], number, torch.zeros_like(number, dtype=torch.bool), 50)
    again = pair_distances(x, torch.arange(30).repeat_interleave(50), y, nearest.flatten()).reshape(30, 50)
    assert torch.equal(squares, again)  # to the last bit, or ties would end in another way
    every = x.new_tensor(np.asarray(y[:3]))
    assert torch.equal(pair_distances(every.t().contiguous().t(), i[:0], y, j[:0]), x.new_zeros(0))


@pytest.mark.parametrize("wrong", [([0, 1], [0, 50]), ([0, -1], [0, 1]), ([0, 30], [0, 1])])
def test_numbers_of_no_point_are_refused_as_by_torch(wrong):
    x, y = torch.ones(30, 20), torch.ones(50, 20)
    with pytest.raises(IndexError):
        pair_distances(x, torch.tensor(wrong[0]), y, torch.tensor(wrong[1]))
