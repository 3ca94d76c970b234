"""Design of a quiet spot: what its ways measure, and gradients of all of them against differences."""

import math

import numpy as np
import pytest
import torch

from experiments.design import MEASURES, MODES, Quiet, Spot, by_eigh
from problems import check_slope, short_form

EXACT = ("layer", "nelson", "eigh", "masses")


@pytest.mark.parametrize("way", ["layer", "nelson", "eigh", "masses", "compliance"])
def test_gradient_is_that_of_differences(way):
    spot = Spot(64, False, 0)
    direction = np.random.default_rng(1).normal(size=len(spot.start))
    check_slope(Quiet(spot, way, math.inf, 10), 10 * spot.start, direction, step=1e-5, rel=1e-5)


def test_gradient_at_equal_eigenvalues():
    """Modes of symmetric designs come in pairs, of which the energy depends on no basis."""
    spot = Spot(64, True, 0)
    assert spot.measured(torch.from_numpy(spot.start))[2] < 1e-9
    direction = np.random.default_rng(1).normal(size=len(spot.start))
    for way in ("layer", "masses"):
        check_slope(Quiet(spot, way, math.inf, 10), spot.start, direction, step=1e-5, rel=1e-4)


def test_ways_measure_the_same():
    spot = Spot(64, False, 0)
    entries = spot.entries(torch.from_numpy(10 * spot.start))
    values, modes = spot.solved(entries)
    expected = spot.energy(torch.from_numpy(modes)).item()
    for way in EXACT:
        first, energy = MEASURES.get(way, by_eigh)(Quiet(spot, way, math.inf, 10), entries)
        assert first.item() == pytest.approx(values[0], rel=1e-5)
        assert energy.item() == pytest.approx(expected, rel=1e-4)
    search = Quiet(spot, "basis", math.inf, 10)
    search.frame = torch.from_numpy(spot.solved(entries, 3 * MODES)[1])
    assert by_eigh(search, entries)[1].item() == pytest.approx(expected, rel=1e-8)


def test_symmetric_designs_are_symmetric():
    spot = Spot(64, True, 0)
    centres, c = spot.membrane.centres, spot.mean @ torch.from_numpy(spot.start)
    for image in (centres.flip(1), 1 - centres):
        nearest = torch.cdist(image, centres).argmin(1)
        torch.testing.assert_close(c[nearest], c)


def test_the_patch_becomes_quiet(tmp_path):
    found = short_form("design", tmp_path)
    assert found["64 nodes"]["layer"]["energy"]["mean"] < 0.5
    assert found["64 nodes"]["masses"]["over_layer"]["mean"] < 2
    assert found["64 nodes, symmetric"]["layer"]["equal"] == 1
    assert found["64 nodes, symmetric"]["eigh"]["NaN"] == 1
