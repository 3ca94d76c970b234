"""The tests import `problems` by name whatever folder pytest is started from; fixtures for every room."""

import os
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():  # kernels are interpreted then; Triton has to know when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

from benchmarks import pretended
from torch_lapeig.support import tuning

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore_glob = ["campaign/[!t]*"]  # a program


def pytest_configure(config):
    """Warnings of torch itself are no errors: of its forward mode and of its sparse tensors, on first use."""
    for message in (".torch.jit.script. is deprecated", ".*[Ss]parse CSR tensor support"):
        config.addinivalue_line("filterwarnings", f"ignore:{message}")


@pytest.fixture
def small_blocks(monkeypatch):
    """A function that has all work done in blocks of a single row from then on."""

    def switch():
        for device in tuning.BUDGETS:
            monkeypatch.setitem(tuning.BUDGETS, device, tuning.Budget(1, 1, 1, factors=tuning.BUDGETS[device].factors))

    return switch


@pytest.fixture(autouse=True)
def _pretended_device(request):
    """Tests that are given the pretended device as ``device`` run on it."""
    given = getattr(getattr(request.node, "callspec", None), "params", {})
    if given.get("device") != pretended.NAME:
        yield
        return
    with pretended.device() as seen:
        yield
    assert not seen.shaky
    assert not seen.unstable
    assert not seen.rounded
