"""The model of the cost gives back what it is made of."""

import pytest

from benchmarks.distributed import PHASES
from benchmarks.model import fitted, predictions


def run(nodes, ranks):
    own = nodes / ranks
    halo = 0 if ranks == 1 else 3 * own**0.5
    return {
        "data": "roll", "nodes": nodes, "ranks": ranks, "own": own, "halo": halo, "iterations": 10,
        "busy": dict.fromkeys(PHASES, 2e-5 * own), "seconds": dict.fromkeys(PHASES, 2e-5 * own), "calls": 120,
        "sent": 10 * halo * 500, "latency": 1e-3, "bandwidth": 1e9,
    }  # fmt: skip


def test_what_it_was_fitted_to_and_beyond():
    found = [run(10_000, 1), run(10_000, 2), run(40_000, 2)]
    model = fitted(found)
    assert model.seconds(10_000, 1) == pytest.approx(1.0)
    assert model.seconds(10_000, 2) == pytest.approx(0.5 + 10 * 12 * 1e-3 + 10 * 3 * 5000**0.5 * 500 / 1e9)
    assert model.seconds(10**9, 1024) < model.seconds(10**9, 8) / 64
    assert [len(table.rows) for table in predictions(model, found)] == [1, 3, 3]
    assert fitted(found[:1]) is None
