"""Several processes give what one gives. The checks are in `shards`, and run on every rank of each group."""

import launch
import pytest
import shards

NAMES = [name for name in vars(shards) if name.startswith("check_")]


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="{} processes".format)
def said(request):
    return launch.run("shards", NAMES, request.param)


@pytest.mark.parametrize("name", NAMES)
def test_on_every_rank(said, name):
    failed = {rank: text for rank, text in enumerate(said[name]) if text}
    assert not failed, "\n".join(f"rank {rank}:\n{text}" for rank, text in failed.items())
