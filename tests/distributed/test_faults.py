"""Faults: each rank of each group gets a clear error in time. The checks are in `faults`."""

import faults
import launch
import pytest

NAMES = [f"faults.{name}" for name in vars(faults) if name.startswith("check_")]
DEADLY = "faults.check_a_rank_that_dies"


@pytest.fixture(scope="module", params=[2, 3], ids="{} processes".format)
def said(request):
    return launch.run(NAMES, request.param)


@pytest.mark.parametrize("name", NAMES)
def test_on_every_rank(said, name):
    survivors = said[name][:-1] if name == DEADLY else said[name]
    failed = {rank: text for rank, text in enumerate(survivors) if text}
    assert not failed, "\n".join(f"rank {rank}:\n{text}" for rank, text in failed.items())
    if name == DEADLY:
        assert said[name][-1] == "never finished"
