"""Checks of arguments: options are kept as plain numbers, rounding is no fault."""

import numpy as np
import pytest
import torch

import torch_lapeig as tl
from problems import points
from torch_lapeig.eigen import ShiftInvert

X, NAMES, PAIR = points(10, 2), torch.arange(10) + 10**15, torch.tensor([[0, 1], [1, 0]])


def test_integers_beyond_int64_are_numbers():
    assert torch.equal(tl.HeatKernel(10**30)(X, tl.KNN(3)(X)).weight, tl.HeatKernel(1e30)(X, tl.KNN(3)(X)).weight)
    columns = tl.LaplacianEigenmaps(2, tl.KNN(9), tl.HeatKernel(1e9), diffusion=10**30)(X)
    assert torch.equal(columns, torch.zeros_like(columns))  # eigenvalues near 1.1, and |1 − λ| to such a power


def test_options_are_kept_as_plain_numbers():
    rule, solver = tl.KNN(np.int64(4)), ShiftInvert(basis=np.int32(30), max_products=np.int64(5), seed=np.uint8(1))
    assert repr(solver) == "ShiftInvert(basis=30, max_products=5, shift=1e-14, memory=None, seed=1)"
    assert repr(rule) == "KNN(k=4, symmetrize='mean', metric='euclidean', backend='exact', recall=None)"
    assert repr(tl.HeatKernel(np.float64(2.0))) == "HeatKernel(t=2.0, learnable=False)"
    assert type(tl.SpectralClustering(np.int64(2), seed=np.int64(3)).seed) is int
    assert type(tl.LaplacianEigenmaps(np.int64(2), diffusion=np.float32(1)).diffusion) is float


def test_weights_that_rounding_alone_makes_uneven_are_symmetric():
    graph = tl.KNN(4)(points(20, 3))
    for size in (1.0, 1e-300, 5e-324):  # the last is the smallest number there is
        weight = graph.weight * size
        weight[0] *= 1 + 1e-14
        assert torch.equal(graph.with_weight(weight).weight, weight)
    weight = graph.weight.clone()
    weight[0] *= 1 + 1e-9
    with pytest.raises(ValueError, match="weight must be symmetric"):
        graph.with_weight(weight)


def test_encoder_with_whitening_can_be_exported():
    linear, x = torch.nn.Linear(3, 2).double(), points(9, 3)
    encoder = torch.nn.Sequential(linear, tl.Whitening(2).fit(linear(x), tl.knn_graph(x, 3)))
    torch.testing.assert_close(torch.export.export(encoder, (x,)).module()(x), encoder(x))


def test_distances_may_have_a_diagonal_of_rounding():
    x = points(50, 3)
    distances = torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist")
    distances = (distances + distances.mT) / 2
    found = tl.MDS(3, metric=tl.Precomputed("distance"))(distances)
    torch.testing.assert_close(found.abs(), tl.MDS(3)(x).abs(), rtol=1e-5, atol=1e-5)


def test_padding_needs_no_assignment():
    x, mask = points(8, 2, batch=2), torch.tensor([[True] * 8, [True] * 5 + [False] * 3])
    graph, soft = tl.KNN(3)(x, mask), points(8, 3, batch=2).softmax(-1)
    anything = soft.masked_fill(~mask[..., None], 7.0)
    torch.testing.assert_close(tl.normalized_cut(anything, graph), tl.normalized_cut(soft, graph))
