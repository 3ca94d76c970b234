"""Experiments that train end alike whether their process is killed (SIGKILL) and resumed or not."""

import multiprocessing

import pytest

from problems import ignoring

with ignoring():  # Lightning's imports warn of what is deprecated elsewhere
    pytest.importorskip("pytorch_lightning")
    from benchmarks.kill_and_resume import TRAININGS, differing, ending, run

pytestmark = pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="no forks here")


@pytest.mark.parametrize("name", TRAININGS)
def test_killed_training_ends_like_any_other(name, tmp_path):
    """Killed in mid-epoch, then while a checkpoint is half written."""
    assert run(name, tmp_path / "whole")
    for moment in (("step", 7), ("writing", 2)):
        assert not run(name, tmp_path / "parts", moment)
    assert run(name, tmp_path / "parts")
    assert differing(ending(tmp_path / "parts"), ending(tmp_path / "whole")) == []
