"""Edges by angle: with ``metric="cosine"`` only directions count, in weights, new points and gradients."""

from functools import partial

import pytest
import torch

import torch_lapeig as tl
from problems import covering, points
from torch_lapeig.distributed import Ranks, Sharded

X, NEW = points(60, 4), points(9, 4, seed=1)
UNIT = X / X.norm(dim=1, keepdim=True)
SCALE = 10 ** torch.linspace(-2, 2, 60, dtype=torch.float64)[:, None].flip(0)
COSINE = tl.KNN(7, metric="cosine")

WEIGHTINGS = [tl.HeatKernel(), tl.HeatKernel("component-median"), tl.HeatKernel(0.3), tl.HeatKernel(learnable=True)]
WEIGHTINGS += [tl.SelfTuning(3), tl.DensityCorrected(), tl.DensityCorrected(0.5, tl.SelfTuning(2))]
WEIGHTINGS += [tl.KernelWeights(lambda squares: 1 / (1 + squares)), tl.ImprovedWeights(0.5)]
METHODS = {
    "eigenmaps": tl.LaplacianEigenmaps(2, COSINE),
    "radius": tl.LaplacianEigenmaps(2, tl.Radius(0.9, metric="cosine"), tl.SelfTuning(4)),
    "unnormalized": tl.LaplacianEigenmaps(2, COSINE, tl.DensityCorrected(), normalization="unnormalized"),
    "clusters": tl.SpectralClustering(3, COSINE),
    "Isomap": tl.Isomap(2, COSINE),
    "landmarks": tl.Isomap(2, COSINE, landmarks=20),
    "LLE": tl.LLE(2, tl.KNN(12, metric="cosine")),
}


@covering(1, weighting=WEIGHTINGS, rule={"knn": COSINE, "radius": tl.Radius(0.9, metric="cosine")})
def test_weights_equal_those_of_points_of_length_1(weighting, rule):
    euclidean = type(rule)(*list(vars(rule).values())[:1])
    for x in (X * SCALE, torch.stack([X, X * 1e-170]), X * 1e150):
        weighted = weighting(x, rule(x))
        expected = weighting(UNIT, euclidean(UNIT)).to_dense()
        torch.testing.assert_close(weighted.to_dense(), expected.expand_as(weighted.to_dense()))
        assert weighted.metric == weighted.to(torch.float32).metric == weighted.subgraph(torch.arange(5)).metric


@pytest.mark.parametrize("name", METHODS)
def test_methods_do_not_depend_on_the_lengths_of_vectors(name):
    module, x = METHODS[name], X * SCALE
    y, y_new = module.out_of_sample(X, NEW)
    torch.testing.assert_close(module(x), y)
    torch.testing.assert_close(module.out_of_sample(x, 3 * NEW)[1], y_new)
    mask = torch.arange(64) < 60
    padded = torch.nn.functional.pad(torch.stack([x, X]), (0, 0, 0, 4))
    torch.testing.assert_close(module(padded, mask=mask.expand(2, -1))[:, :60], torch.stack([y, y]))
    module.fit(x)
    torch.testing.assert_close(module.transform(NEW / 7), y_new)
    torch.testing.assert_close(module.transform(X / 3), module.embedding_)  # a point of a direction is that point


def test_gradients_go_through_the_scaling():
    """They are at right angles to each vector, along which nothing changes, and those of differences."""
    x = (X[:20] * SCALE[:20]).requires_grad_()
    module = tl.LaplacianEigenmaps(2, tl.KNN(6, metric="cosine"), tl.HeatKernel(learnable=True).double())
    factor = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]

    def energy(x, new):
        y, y_new = module.out_of_sample(x, new)
        return (factor * y).square().sum() + y_new.square().sum()

    new = NEW[:3].clone().requires_grad_()
    for part, gradient in zip((x, new), torch.autograd.grad(energy(x, new), (x, new)), strict=True):
        assert gradient.abs().max() > 1e-6
        across = gradient.norm(dim=1) * part.detach().norm(dim=1)
        assert ((gradient * part.detach()).sum(1).abs() < 1e-9 * across.max()).all()
    assert torch.autograd.gradcheck(energy, (x / x.detach().norm(dim=1, keepdim=True), new), atol=1e-6)


@pytest.mark.parametrize("zeros", ["a zero vector", "padding"])
def test_a_zero_vector_has_no_direction(zeros):
    x, mask = X.clone(), torch.ones(60, dtype=torch.bool)
    x[3], mask[3] = 0, zeros == "a zero vector"
    graph, sharded = COSINE(X, mask), Sharded(tl.LaplacianEigenmaps(2, COSINE), Ranks()).fit(X)
    of_rows = partial(sharded.transform, x if mask.all() else X)
    for call in (partial(COSINE, x, mask), partial(tl.HeatKernel(), x, graph), of_rows):
        if zeros == "padding":
            call()
            continue
        with pytest.raises(ValueError, match="positive length, got 1 zero vectors"):
            call()
