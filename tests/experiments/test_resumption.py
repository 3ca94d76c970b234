"""Experiments that train end alike whether their process is killed (SIGKILL) and resumed or not."""

import multiprocessing
import warnings

import pytest

with warnings.catch_warnings():  # Lightning's imports warn of what is deprecated elsewhere
    warnings.simplefilter("ignore")
    pytest.importorskip("pytorch_lightning")
    from benchmarks.kill_and_resume import TRAININGS, differing, ending, run

pytestmark = pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="processes are forked and killed"
)


@pytest.mark.parametrize("name", TRAININGS)
def test_killed_training_ends_like_any_other(name, tmp_path):
    """Killed in mid-epoch, then while a checkpoint is half written."""
    assert run(name, tmp_path / "whole")
    for moment in (("step", 7), ("writing", 2)):
        assert not run(name, tmp_path / "parts", moment)
    assert run(name, tmp_path / "parts")
    assert differing(ending(tmp_path / "parts"), ending(tmp_path / "whole")) == []
