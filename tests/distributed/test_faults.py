"""Faults: each rank of each group gets a clear error in time. The checks are in `faults`."""

import faults
import launch
import pytest

NAMES = [f"faults.{name}" for name in vars(faults) if name.startswith("check_")]
DEADLY = "faults.check_a_rank_that_dies"


@pytest.mark.parametrize("world", [2, 3], ids="{} processes".format)
def test_on_every_rank(world):
    said = launch.run(NAMES, world)
    assert said[DEADLY].pop() == "never finished"  # the one that was killed
    assert launch.failures(said) == ""
