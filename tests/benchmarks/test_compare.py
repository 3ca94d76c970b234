"""The rows of two checkouts: both sides answer with the package they were asked for."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import torch_lapeig
from benchmarks import compare as guard


@pytest.mark.skipif(not list((guard.HERE / "torch_lapeig").rglob("kernels.so")), reason="nothing is compiled")
def test_a_row_is_timed_by_both_sides_in_turn():
    assert Path(torch_lapeig.__file__).parents[1] == guard.HERE
    sides = [guard.Side(guard.HERE, 1), guard.Side(guard.HERE, 1)]
    here, there, difference = guard.compare("layer 500 × 3, forward and backward", *sides, rounds=3)
    for side in sides:
        side.end()
    assert len(here) == len(there) == 3
    assert min(here + there) > 0
    assert difference < 1e-6
    assert [side.process.returncode for side in sides] == [0, 0]


@pytest.mark.parametrize(
    ("seconds", "fails", "said"),
    [
        ([(1.0, 1.0), (0.9, 0.9)], 0, "geometric mean 0.95, of rounds 0.95 (goal ≤ 1.0); above 1.1: none"),
        ([(1.11, 1.12), (0.5, 0.5)], 1, "above 1.1: row 0"),
        ([(1.09, 1.2), (0.5, 0.5)], 0, "above 1.1: none"),
        ([(1.02, 1.02), (1.0, 1.0)], 1, "geometric mean 1.01, of rounds 1.01"),
        ([(1.02, 0.99), (1.02, 1.0)], 0, "geometric mean 1.02, of rounds 0.99"),
        ([(1.004, 1.004)], 0, "geometric mean 1.00"),
    ],
)
def test_the_guard_fails_where_a_row_or_the_mean_is_slower_by_both_medians(seconds, fails, said, monkeypatch, capsys):
    """Made-up records: what each row takes here by the median of seconds, and by that of the rounds' ratios."""
    made = {
        f"row {i}": ([medians, 3.0, 0.1], [1.0, 3.0 / rounds, 0.1 / rounds], 0.0)
        for i, (medians, rounds) in enumerate(seconds)
    }
    monkeypatch.setattr(guard, "ROWS", made)
    monkeypatch.setattr(guard, "Side", lambda *_: SimpleNamespace(end=lambda: None))
    monkeypatch.setattr(guard, "compare", lambda row, *_: made[row])
    monkeypatch.setattr("sys.argv", ["compare", "elsewhere"])
    assert guard.main() == fails
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[str(guard.HERE)], ["--rows", "no such row"]], ids=["itself", "nothing"])
def test_the_guard_compares_something_with_something_else(arguments, monkeypatch):
    monkeypatch.setattr("sys.argv", ["compare", *arguments])
    with pytest.raises(SystemExit, match="2"):
        guard.main()
