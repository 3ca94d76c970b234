"""Processes that Python starts anew: warnings, the command and optional parts where nothing is imported before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import torch_lapeig

PAIR = """
import torch
from torch_lapeig import KNN, LaplacianEigenmaps
line = torch.arange(10, dtype=torch.float64)[:, None]
"""
SPLIT = "LaplacianEigenmaps(2, KNN(2))(line + line // 5 * 1000).shape"
DOCTEST = f'r"""\n>>> exec({PAIR!r}, globals())\n>>> {SPLIT}\ntorch.Size([10, 2])\n"""\n'


@pytest.mark.parametrize(
    ("command", "source", "expected"),
    [
        (["script.py"], PAIR + SPLIT, "script.py:5: GraphWarning"),
        (["-m", "script"], PAIR + SPLIT, "script.py:5: GraphWarning"),
        (["-m", "doctest", "script.py"], DOCTEST, "<doctest script[1]>:1: GraphWarning"),
    ],
    ids=["file", "module", "doctest"],
)
def test_however_python_is_started(command, source, expected, tmp_path):
    (tmp_path / "script.py").write_text(source)
    environment = os.environ | {"PYTHONPATH": str(Path(torch_lapeig.__file__).parents[1])}
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("GraphWarning") == done.stderr.count(expected) == 1


def test_lightning_is_optional():
    code = "import sys, torch_lapeig; print('lightning' in sys.modules, flush=True)\n"
    code += "sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\nimport torch_lapeig.lightning"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n"
    assert 'pip install "pytorch-lightning' in done.stderr.splitlines()[-1]


def test_installed_as_a_module_of_python(tmp_path):
    for option, says in (("--version", b"torch_lapeig 0"), ("--help", b"transform")):
        command = [sys.executable, "-m", "torch_lapeig", option]
        assert says in subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
