"""A rehearsal of the command for a GPU, on the processor and on the pretended device."""

import json
import sys
from argparse import Namespace

import pytest
import torch

from benchmarks import gpu, pretended

HERE = [part.__name__ for part in gpu.PARTS if part.__name__ != "tests"]
THERE = [name for name in HERE if name != "library"]  # which takes minutes on the pretended device


def results(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(("device", "name"), [("cpu", n) for n in HERE] + [(pretended.NAME, n) for n in THERE])
def test_each_part_gives_results(device, name, tmp_path):
    file = tmp_path / "gpu.jsonl"
    gpu.run_here(name, gpu.Place(device, True, file, name))
    found = results(file)
    assert found
    assert all(entry["part"] == name for entry in found)
    assert not [entry for entry in found if str(entry["value"]).startswith(("raised", "WRONG"))]
    if name == "steps":
        assert found[0]["value"] == 0


def test_a_part_that_ends_badly_loses_nothing_of_the_others(tmp_path, monkeypatch, capsys):
    file = tmp_path / "gpu.jsonl"
    monkeypatch.setattr(gpu, "PARTS", {gpu.steps: 0.1, gpu.environment: 60})
    assert gpu.main(["--device", "cpu", "--quick", "--out", str(file), "--parts", "steps", "environment"]) == 0
    values = {(entry["part"], entry["name"]): entry["value"] for entry in results(file)}
    assert values["steps", "ended with"].startswith("time-out")
    assert torch.__version__ in values["environment", "versions"]
    assert torch.__version__ in capsys.readouterr().out


def test_what_a_part_has_started_ends_with_it(tmp_path, monkeypatch):
    """Its process would hold the pipe of the part, and the device."""
    program, file = tmp_path / "python", tmp_path / "gpu.jsonl"
    program.write_text("#!/bin/sh\nsleep 600 &\nwait\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    gpu.run_apart("steps", 2, Namespace(device="cpu", quick=True, out=file))
    ended, seconds = (entry["value"] for entry in results(file))
    assert ended.startswith("time-out")
    assert seconds < 300
