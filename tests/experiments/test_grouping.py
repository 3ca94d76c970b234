"""Grouping through eigenvectors: its losses against dense references, and what it learns."""

import numpy as np
import pytest
import torch

from experiments import grouping
from problems import five_points, short_form
from torch_lapeig import Graph, Laplacian, eigenpairs


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def test_it_learns_what_groups_tell_and_nothing_else(tmp_path):
    found = short_form("grouping", tmp_path)["moons"]
    means = {variant: values["agreement"]["mean"] for variant, values in found.items()}
    assert means["layer"] > 0.3
    assert abs(means["fixed"]) < 0.2
    assert found["fixed"]["layer_less_it"]["mean"] == pytest.approx(means["layer"] - means["fixed"])


def two_groups():
    group = torch.tensor([[0, 0, 1, 1]])
    return grouping.Sets(torch.zeros(1, 4, 1), torch.zeros(1, 4, 1), group, torch.tensor([[True, True, True, False]]))


def test_loss_vanishes_for_orthogonal_or_opposite_groups():
    for last in ([0.0, 1.0], [-1.0, 0.0]):
        rows = torch.tensor([[[1.0, 0.0], [2.0, 0.0], last, [3.0, 3.0]]])
        assert grouping.pair_loss(rows, two_groups()).tolist() == [0]
    assert grouping.pair_loss(torch.ones(1, 4, 2), two_groups()).item() == pytest.approx(1)


def test_diffusion_is_a_function_of_the_laplacian():
    """(I − L_sym / 2)^t without the null vector is Σ_{i > 0} (1 − λ_i / 2)^t v_i v_iᵀ."""
    weights = torch.rand(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = (weights + weights.mT).fill_diagonal_(0)
    pairs = eigenpairs(Laplacian(Graph.from_dense(weights)), 12)
    for steps in (4, 32):
        powers = (1 - pairs.values[1:] / 2) ** steps
        expected = pairs.vectors[:, 1:] * powers @ pairs.vectors[:, 1:].mT
        torch.testing.assert_close(grouping.diffused(weights[None], steps)[0], expected, rtol=1e-4, atol=1e-6)


def test_gradient_through_eigenvectors_is_that_of_finite_differences(generator):
    part = grouping.make_sets("moons", 2, 8, generator, new=False)
    matrix = torch.from_numpy(generator.normal(size=(6, 6))).requires_grad_()
    direction = torch.from_numpy(generator.normal(size=(6, 6)))

    def loss(at):
        return grouping.pair_loss(grouping.through_eigenvectors(part.x @ at, 8.0), part).sum()

    (gradient,) = torch.autograd.grad(loss(matrix), matrix)
    expected = five_points(loss, matrix, direction, 1e-6)
    assert (gradient * direction).sum().item() == pytest.approx(expected.item(), rel=1e-4)


def test_planted_channels_have_one_covariance_and_the_mixture_is_invertible(generator):
    part = grouping.make_sets("moons", 24, 8, generator, new=False)
    pooled = part.x.flatten(0, 1)
    torch.testing.assert_close(pooled.mT @ pooled / len(pooled), torch.eye(6, dtype=torch.float64), rtol=0, atol=0.1)
    for plane in part.x.split(2, -1):
        covariance = plane.mT @ plane / plane.shape[1]
        torch.testing.assert_close(covariance, torch.eye(2, dtype=torch.float64).expand(24, 2, 2))
    jacobians = torch.func.vmap(torch.func.jacrev(grouping.mixture(6, 0.6, generator)))(pooled)
    signs, logarithms = torch.linalg.slogdet(jacobians)
    assert (signs == signs[0]).all()
    assert logarithms.min() >= 6 * np.log(0.4)


def test_fourth_moments_find_independent_channels(generator):
    """Of a mixture of a uniform, a normal and a two-valued channel, each component is one of them."""
    source = np.stack([generator.uniform(-1, 1, 9000), generator.normal(size=9000), generator.choice([-1, 1], 9000)], 1)
    mixed = torch.from_numpy(source @ generator.normal(size=(3, 3)))[None]
    for fourth in (False, True):
        rows = mixed @ grouping.components(mixed, fourth)
        covariance = torch.cov(rows[0].mT)
        torch.testing.assert_close(covariance, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-3)
    correlation = np.abs(np.corrcoef(rows[0].T, source.T)[:3, 3:])
    np.testing.assert_allclose(correlation.max(0), 1, atol=0.02)


def test_start_is_a_linear_map(generator):
    part = grouping.Sets(*(field[None] for field in grouping.make_sets("moons", 4, 8, generator, new=False)))
    linear = torch.from_numpy(generator.normal(size=(1, 6, 2)))
    torch.testing.assert_close(part.mapped(grouping.start_from(linear)).x, (part.x @ linear[0])[0])


@pytest.mark.filterwarnings("ignore:.*connected components")
def test_pairs_choose_the_channels_that_matter(generator):
    """Unmixed channels of one plane each: the moons' are the first two."""
    part = grouping.Sets(*(field[None] for field in grouping.make_sets("moons", 24, 12, generator, new=False)))
    torch.testing.assert_close(grouping.chosen(torch.eye(6).double()[None], part)[0], torch.eye(6).double()[:, :2])
