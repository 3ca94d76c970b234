"""Waits of the host for an accelerator stay within their budgets."""

from benchmarks import launches, pretended


def test_waits_are_within_their_budgets():
    found = [work for work in launches.counted(quick=True) if work.budget is not None]
    assert len(found) == 6
    assert [work for work in found if not work.is_within] == []


def test_a_layer_of_many_nodes_too():
    """Whose eigenpairs are of filters, each of which waits once."""
    with pretended.device() as seen:
        forward = next(launches.of_layer(seen, (32, 256, 16), (16, None)))
    assert forward.is_within
