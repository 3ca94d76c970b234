"""The rows of two checkouts: both sides answer with the package they were asked for."""

from pathlib import Path

import pytest

import torch_lapeig
from benchmarks.compare import HERE, Side, compare


@pytest.mark.skipif(not list((HERE / "torch_lapeig").rglob("kernels.so")), reason="nothing is compiled")
def test_a_row_is_timed_by_both_sides_in_turn():
    assert Path(torch_lapeig.__file__).parents[1] == HERE
    sides = [Side(HERE, 1), Side(HERE, 1)]
    here, there, difference = compare("layer 500 × 3, forward and backward", *sides, rounds=3)
    for side in sides:
        side.end()
    assert len(here) == len(there) == 3
    assert min(here + there) > 0
    assert difference < 1e-6
    assert [side.process.returncode for side in sides] == [0, 0]
