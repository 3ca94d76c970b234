"""Memory of this process (Linux)."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path


def status(field: str) -> float:
    """Return MiB of a field of the process's status, ``VmRSS`` now or ``VmHWM`` at the highest."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found.group(1)) / 1024 if found else float("nan")


def growth(call: Callable[[], object]) -> float:
    """Return MiB by which a call exceeds, at its highest, what the process has before it."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    call()
    return status("VmHWM") - before
