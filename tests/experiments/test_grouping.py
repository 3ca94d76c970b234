"""Grouping through eigenvectors: its losses against dense references, and what it learns."""

import json

import numpy as np
import pytest
import torch

from experiments.__main__ import main
from experiments.grouping import Sets, diffused, make_sets, pair_loss, pairs_of_components, through_eigenvectors
from torch_lapeig import Graph, Laplacian, eigenpairs


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def test_it_learns_what_distances_of_pairs_do_not_tell(tmp_path):
    main(["grouping", "--quick", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "metrics.json").read_text())["moons"]
    means = {variant: values["agreement"]["mean"] for variant, values in found.items()}
    assert means["layer"] > means["contrastive"] + 0.2
    assert abs(means["fixed"]) < 0.1
    assert found["fixed"]["layer_less_it"]["mean"] == pytest.approx(means["layer"] - means["fixed"])


def two_groups():
    group = torch.tensor([[0, 0, 1, 1]])
    return Sets(torch.zeros(1, 4, 1), group, torch.tensor([[True, True, True, False]]))


def test_loss_vanishes_for_orthogonal_or_opposite_groups():
    for last in ([0.0, 1.0], [-1.0, 0.0]):
        rows = torch.tensor([[[1.0, 0.0], [2.0, 0.0], last, [3.0, 3.0]]])
        assert pair_loss(rows, two_groups()).tolist() == [0]
    assert pair_loss(torch.ones(1, 4, 2), two_groups()).item() == pytest.approx(1)


def test_diffusion_is_a_function_of_the_laplacian():
    """(I − L_sym / 2)^t without the null vector is Σ_{i > 0} (1 − λ_i / 2)^t v_i v_iᵀ."""
    weights = torch.rand(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = (weights + weights.mT).fill_diagonal_(0)
    pairs = eigenpairs(Laplacian(Graph.from_dense(weights)), 12)
    for steps in (4, 32):
        powers = (1 - pairs.values[1:] / 2) ** steps
        expected = pairs.vectors[:, 1:] * powers @ pairs.vectors[:, 1:].mT
        torch.testing.assert_close(diffused(weights[None], steps)[0], expected, rtol=1e-4, atol=1e-6)


def test_gradient_through_eigenvectors_is_that_of_finite_differences(generator):
    part = make_sets("moons", 2, 48, 8, generator, new=False)
    matrix = torch.from_numpy(generator.normal(size=(6, 6))).requires_grad_()
    direction, step = torch.from_numpy(generator.normal(size=(6, 6))), 1e-6

    def loss(at):
        return pair_loss(through_eigenvectors(part.x @ at, 8, 8.0), part).sum()

    (gradient,) = torch.autograd.grad(loss(matrix), matrix)
    with torch.no_grad():
        expected = (loss(matrix + step * direction) - loss(matrix - step * direction)) / (2 * step)
    assert (gradient * direction).sum().item() == pytest.approx(expected.item(), rel=1e-4)


def test_components_of_planted_sets_are_those_of_shape_and_distractors(generator):
    """Pairs of principal components are orthonormal; the first two and the next two have most of the variance."""
    part = make_sets("moons", 24, 48, 8, generator, new=False)
    pairs = pairs_of_components(Sets(*(field[None] for field in part)))
    assert len(pairs) == 15
    for pair in pairs:
        torch.testing.assert_close(pair[0].mT @ pair[0], torch.eye(2, dtype=torch.float64))
    spread = [(part.x @ pair[0]).square().mean().item() for pair in pairs]
    assert max(spread) == spread[0]
    assert min(spread) == spread[-1]
