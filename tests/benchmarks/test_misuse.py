"""Every misuse of the campaign ends in a clear error, or is rightly accepted."""

import pytest

from benchmarks.campaign.misuse import Accepted, Clear, misuse, outcome_of, run


@pytest.mark.filterwarnings("ignore")  # of torch's tracers, of Lightning's imports
def test_every_misuse_is_clear_or_rightly_accepted():
    found = run()
    assert not found["failures"], "\n".join(found["failures"])
    assert found["clear"] + found["accepted rightly"] >= 300
    names = [name for name, _, _ in misuse()]
    assert len(set(names)) == len(names)


def test_outcomes():
    def fail():
        raise ValueError("k must be at least 1, got 0")

    assert outcome_of(fail, Clear(("k", "got 0")))[0] == "clear"
    assert outcome_of(fail, Clear(("k", "got 1")))[0] == "unclear"
    assert outcome_of(fail, Clear(("k",), (KeyError,)))[0] == "unclear"
    assert outcome_of(fail, Accepted("it should be"))[0] == "unclear"
    assert outcome_of(int, Clear(("k",)))[0] == "accepted wrongly"
    assert outcome_of(int, Accepted("it should be"))[0] == "accepted rightly"
