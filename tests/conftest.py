"""The tests import `problems` by name whatever folder pytest is started from; fixtures for every room."""

import sys
from pathlib import Path

import pytest

from torch_lapeig import _tuning

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def small_blocks(monkeypatch):
    """A function that has all work done in blocks of a single row from then on."""

    def switch():
        for device in _tuning.BUDGETS:
            monkeypatch.setitem(
                _tuning.BUDGETS, device, _tuning.Budget(1, 1, 1, factors=_tuning.BUDGETS[device].factors)
            )

    return switch
