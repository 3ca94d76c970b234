"""Where the loops cannot be compiled, one sentence says why and what to install."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("compiler", "reason"), [("absent-cc", "there is no absent-cc"), ("false", "false failed")])
def test_what_to_install_is_said(compiler, reason, tmp_path):
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    shutil.copytree(ROOT / "torch_lapeig" / "native", tmp_path / "torch_lapeig" / "native")
    command, environment = [sys.executable, tmp_path / "hatch_build.py"], {**os.environ, "CC": compiler}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("Compiling")
    (sentence,) = done.stderr.splitlines()
    assert reason in sentence
    assert "install a C compiler" in sentence
