"""Waits of the host for an accelerator stay within their budgets."""

from benchmarks import launches


def test_waits_are_within_their_budgets():
    found = [work for work in launches.counted(quick=True) if work.budget is not None]
    assert len(found) == 7
    assert [work for work in found if not work.is_within] == []
