"""What an accelerator would wait for stays within its budget."""

from benchmarks import launches, pretended

OPEN = "layer"  # the forward of a layer still waits more often than its budget


def test_waits_are_within_their_budgets():
    found = [work for work in launches.counted(quick=True) if work.budget is not None]
    assert len(found) == 6
    assert [work for work in found if not work.is_within and not work.name.startswith(OPEN)] == []


def test_a_layer_waits_no_more_often_than_it_did():
    with pretended.device() as seen:
        forward, _ = launches.of_layer(seen, quick=True)
    assert forward.waits <= 22
