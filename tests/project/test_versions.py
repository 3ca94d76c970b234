"""Declared versions: every floor of pyproject.toml is the version that the job with the lowest versions installs."""

import re
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
TOOLS = {
    "hatchling",
    "pyamg",
    "ruff",
    "mypy",
    "pre-commit",
    "coverage",
}  # of those who build, measure and edit; tests need none


def pins(name):
    """Versions by library, those for another Python left out."""
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.lower().split("==") for line in lines if "==" in line and ";" not in line)


def test_floors_are_the_versions_that_run():
    found = re.findall(r'"([\w-]+)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    floors = {name.lower(): Version(floor) for name, floor in found if name not in TOOLS}
    lowest = pins("constraints-lowest.txt")
    assert floors.keys() >= {"torch", "numpy", "scipy", "scikit-learn", "lightning", "pytorch-lightning", "pytest"}
    assert floors == {name: Version(lowest[name]) for name in floors}
