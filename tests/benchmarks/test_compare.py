"""The rows of two checkouts: both sides answer with the package they were asked for."""

from pathlib import Path

import pytest

import torch_lapeig
from benchmarks.compare import HERE, Side, compare
from benchmarks.compare_worker import ROWS, named


def test_a_row_is_timed_by_both_sides_in_turn():
    assert Path(torch_lapeig.__file__).parents[1] == HERE
    sides = [Side(HERE, 1), Side(HERE, 1)]
    here, there, difference = compare("layer 1 × 200 × 3, forward", *sides, rounds=3)
    for side in sides:
        side.end()
    assert len(here) == len(there) == 3
    assert min(here + there) > 0
    assert difference < 1e-6
    assert [side.process.returncode for side in sides] == [0, 0]


def test_another_package_than_the_checkouts_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="holds no torch_lapeig"):
        Side(tmp_path, 1)


def test_names_are_found_in_every_room():
    assert named("KNN") is torch_lapeig.KNN
    assert named("nearest_neighbors").__module__.startswith("torch_lapeig.graph")
    with pytest.raises(AttributeError, match="torch_lapeig has no Nothing"):
        named("Nothing")
    assert len(ROWS) >= 20
