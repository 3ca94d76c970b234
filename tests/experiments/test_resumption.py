"""Experiments that train end alike whether their process is killed (SIGKILL) and resumed or not."""

import json
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


def test_differences_are_found(tmp_path):
    """The comparison is no formality: another number of steps, batch, weight or random state is a difference."""
    order = [["a", 0, 0, "batch", "random"], ["a", 0, 1, "other batch", "random"]]
    training = ["a", 2, 1, "weights", "random"]
    cell = {"part": "training", "case": ["a"], "result": {"accuracy": 0.5, "training_seconds": 1.0}, "seconds": 1}

    def written(name, order, training, cell):
        folder = tmp_path / name
        folder.mkdir()
        for file, lines in (("order", order), ("endings", [training]), ("cells", [{}, cell])):
            (folder / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return ending(folder)

    expected = written("expected", order, training, cell)
    timed = {**cell, "result": {"accuracy": 0.5, "training_seconds": 2.0}}
    assert differing(written("repeated", [*order, order[0]], training, timed), expected) == []
    for number, more in enumerate(([["a", 0, 2, "batch", "random"]], [["a", 0, 0, "batch", "other state"]])):
        assert differing(written(f"order{number}", [*order, *more], training, cell), expected) == ["order"]
    for i in range(1, 5):
        other = [*training[:i], "other", *training[i + 1 :]]
        assert differing(written(f"training{i}", order, other, cell), expected) == ["trainings"]
    assert differing(written("cells", order, training, {**cell, "result": {"accuracy": 0.6}}), expected) == ["cells"]
