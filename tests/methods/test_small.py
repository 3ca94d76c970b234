"""Small sets of points go a short way, as one dense batch: what they give is what the way of all sizes gives."""

import math

import pytest
import torch

from problems import ignoring, points, polygon
from torch_lapeig import KNN, DegeneracyWarning, GraphWarning, HeatKernel, LaplacianEigenmaps
from torch_lapeig.eigen import Eigh

RULES = [KNN(6), KNN(6, "union"), KNN(16, "mutual")]
WEIGHTS = [HeatKernel(), HeatKernel(1.0), HeatKernel("median", learnable=True), HeatKernel(math.inf)]


def both_ways(x, rule, weights, mask=None, **options):
    """The embedding, its gradient and a second derivative: a solver by name takes the way of all sizes."""
    answers = []
    for solve in (None, Eigh()):
        module = LaplacianEigenmaps(3, rule, weights, solve=solve, **options)
        leaf = x.clone().requires_grad_()
        found = module.embed(leaf, mask=mask)
        side = points(x.shape[-2], x.shape[-2], seed=5).to(x.dtype)
        loss = (found.embedding @ found.embedding.mT * (side + side.T)).sum() + found.eigenvalues.sum()
        first = torch.autograd.grad(loss, [leaf, *module.parameters()], create_graph=True)
        probe = torch.linspace(0.1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)
        second = torch.autograd.grad((first[0] * probe).sum(), leaf)[0]
        answers.append((found, first, second))
    return answers


def assert_same(answers, tolerance):
    (short, first, second), (other, others, expected) = answers
    assert short.pairs[0].iterations == 1
    for name in ("embedding", "eigenvalues", "gap"):
        torch.testing.assert_close(getattr(short, name), getattr(other, name), atol=tolerance, rtol=tolerance)
    for mine, theirs in (*zip(first, others, strict=True), (second, expected)):
        assert torch.dist(mine, theirs) <= 100 * tolerance * (theirs.norm() + tolerance)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_single_sets_and_batches(rule, weights):
    for x in (points(50, 3), torch.stack([points(40, 4, seed=seed) for seed in range(3)])):
        assert_same(both_ways(x, rule, weights), 1e-9)


def test_padding_may_hold_anything():
    x = torch.stack([points(40, 3, seed=seed) for seed in range(3)])
    mask = torch.arange(40) < torch.tensor([[40], [31], [25]])
    assert_same(both_ways(torch.where(mask[..., None], x, 1e30), KNN(7), HeatKernel(), mask), 1e-9)
    alone = LaplacianEigenmaps(3, KNN(7))(x[1, :31])
    torch.testing.assert_close(LaplacianEigenmaps(3, KNN(7))(x, mask=mask)[1, :31], alone, atol=1e-9, rtol=0)


def test_equal_eigenvalues_have_exact_gradients_and_warnings():
    """Points on a circle: each eigenvalue is double. The projector's gradient is that of the way of all sizes."""
    x, gradients = polygon(24), []
    for solve in (None, Eigh()):
        leaf = x.clone().requires_grad_()
        y = LaplacianEigenmaps(4, KNN(4), HeatKernel(0.5), solve=solve)(leaf)
        (y @ y.T * points(24, 24)).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)
    leaf = x.clone().requires_grad_()
    with pytest.warns(DegeneracyWarning, match="choice of basis"):
        (LaplacianEigenmaps(4, KNN(4), HeatKernel(0.5))(leaf)[:, 0].square() @ points(24, 1)).backward()
    y = LaplacianEigenmaps(3, KNN(4), HeatKernel(0.5))(leaf)
    loss = (y @ y.T * points(24, 24)).sum()
    with pytest.warns(DegeneracyWarning, match="splits a cluster"):
        loss.backward()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.cat([points(20, 2), points(20, 2, seed=1) + 100]), "2 connected components"),
        (torch.cat([points(30, 2), torch.full((1, 2), 1e3, dtype=torch.float64)]), "1 of 31 nodes are isolated"),
    ],
    ids=["parts", "isolated"],
)
def test_unusual_sets_have_the_warnings_of_all_sizes(x, message):
    with pytest.warns(GraphWarning, match=message):
        short = LaplacianEigenmaps(2, KNN(4), HeatKernel(1.0))(x)
    with ignoring(GraphWarning):
        expected = LaplacianEigenmaps(2, KNN(4), HeatKernel(1.0), solve=Eigh())(x)
    torch.testing.assert_close(short @ short.T, expected @ expected.T, atol=1e-9, rtol=0)


def test_a_ring_has_its_known_values():
    """Neighbours to both sides on a circle, all weights 1: 1 − (cos θ + cos 2θ) / 2 of the multiples θ of 2π/N."""
    x = polygon(30)
    found = LaplacianEigenmaps(4, KNN(4), HeatKernel(math.inf)).embed(x)
    exact = (1.5 - x[:, 0] / 2 - x[:, 0].square()).sort().values  # cos 2θ = 2 cos² θ − 1
    torch.testing.assert_close(found.eigenvalues, exact[1:5], atol=1e-13, rtol=0)
