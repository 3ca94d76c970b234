"""A model of what a run on several processes costs, fitted to measured runs and extrapolated."""

from __future__ import annotations

from typing import Any

from benchmarks.record import Table


def fitted(found: list[dict[str, Any]]) -> dict[str, float] | None:
    """To be fitted."""
    return None


def predictions(model: dict[str, float], found: list[dict[str, Any]]) -> list[Table]:
    """Times for more points and ranks."""
    return []
