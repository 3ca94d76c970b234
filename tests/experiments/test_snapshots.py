"""A medium from snapshots: gradients of all ways against differences, and waves that are reconstructed."""

import math

import numpy as np
import pytest
import torch

from experiments.snapshots import INSIDE, Medium, Spanned
from problems import check_slope, short_form


@pytest.mark.parametrize("way", INSIDE)
def test_gradient_is_that_of_differences(way):
    generator = np.random.default_rng(0)
    search = Spanned(Medium(4, 0), way, math.inf)
    check_slope(search, generator.normal(size=16), generator.normal(size=16), step=1e-4, rel=1e-4)


def test_true_modes_hold_all_but_the_noise():
    """Noise of a tenth in 421 directions, of which 20 are the modes', leaves about 1 / 1.01 of the squares inside."""
    medium = Medium(16, 0)
    modes = medium.truth
    np.testing.assert_allclose(modes.T @ (medium.mass @ modes), np.eye(modes.shape[1]), atol=1e-8)
    inside = (modes.T @ (medium.mass @ medium.snapshots)) ** 2
    assert inside.sum(0).min() > 0.95
    assert medium.without_field("truth", modes) < medium.without_field(
        "pca", medium.modes(torch.zeros(256).double())[1]
    )


def test_differences_of_eigenvalues_measure_the_span():
    search = Spanned(Medium(4, 0), "layer", math.inf)
    entries = search.medium.membrane.stiffness(search.medium.basis @ torch.from_numpy(np.linspace(-1, 1, 16)))
    expected, found = (INSIDE[way](search, entries).item() for way in ("layer", "forces"))
    assert found == pytest.approx(expected, rel=1e-4)


def test_waves_are_reconstructed(tmp_path):
    found = short_form("snapshots", tmp_path)["16 unknowns"]
    assert found["layer"]["error"]["mean"] < found["pca"]["error"]["mean"]
