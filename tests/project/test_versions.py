"""Declared versions: every floor of pyproject.toml is the version that the job with the lowest versions installs."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from torch_lapeig.support import precision

ROOT = Path(__file__).parents[2]
# Tools of those who build, measure and edit; tests need none.
TOOLS = {"hatchling", "pyamg", "pygsp", "ruff", "mypy", "pre-commit", "coverage", "uv"}


def test_floors_are_the_versions_that_run():
    found = re.findall(r'"([\w-]+)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    floors = {name.lower(): Version(floor) for name, floor in found if name not in TOOLS}
    lines = (ROOT / "constraints-lowest.txt").read_text().lower().splitlines()
    lowest = dict(line.split("==") for line in lines if "==" in line and ";" not in line)  # those of every Python
    assert floors.keys() >= {"torch", "numpy", "scipy", "scikit-learn", "lightning", "pytorch-lightning", "pytest"}
    assert floors == {name: Version(lowest[name]) for name in floors}
    assert floors["torch"].release[:2] == precision.OLDEST


def test_an_older_torch_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(ImportError, match=r"needs torch 2.6 or newer, but found 2.5.1"):
        runpy.run_path(precision.__file__)
