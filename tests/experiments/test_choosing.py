"""The experiment choosing: its scores, what it compares with what, and its short form."""

import numpy as np
import pytest
import torch

from experiments.choosing import ALL, QUESTIONS, Sample, contrasts, measured, told
from problems import short_form


def test_the_nearest_tell_labels_and_numbers():
    """Points on a line, whose neighbours have their label, or numbers that the mean of the neighbours gives."""
    y = torch.arange(12.0)[:, None]
    everyone = ~torch.eye(12, dtype=torch.bool)
    halves = np.repeat([0, 1], 6)
    assert told(y**2, halves, everyone, 1) == pytest.approx(100 * 11 / 12)  # nearest is the one before: 6's is 5
    inner = told(y, np.column_stack([np.arange(12.0), 3 * np.arange(12.0)]), everyone, 2)
    expected = 1 - 2 * 1.5**2 / np.square(np.arange(12) - 5.5).sum()  # the ends have both neighbours on one side
    assert inner == pytest.approx(100 * expected)
    assert told(torch.zeros(12, 1), np.random.default_rng(0).permutation(halves), everyone, 11) < 60


def test_every_option_is_measured_and_differences_are_paired():
    generator = np.random.default_rng(0)
    of = measured(Sample(generator.standard_normal((90, 3)), np.arange(90) % 3), 0)
    assert set(of["scores"]) == set(ALL)
    assert all(set(options) <= set(of["scores"][question]) for question, options in QUESTIONS.items())
    assert 2 <= of["gap"] <= 50
    cells = [{"scores": {"k": {"10": 50.0 + s, "5": 52.0 + s}}, "kind": "labels"} for s in range(3)]
    found = contrasts({"a": cells, "b": cells}, "k")
    assert found["10"]["all"] == {"mean": 0, "interval": 0, "seeds": [0, 0]}
    assert (found["5"]["all"]["mean"], found["5"]["better"], found["5"]["worse"]) == (2, 2, 0)


def test_the_short_form(tmp_path):
    metrics = short_form("choosing", tmp_path)
    assert set(metrics["sets"]) == {"iris", "wine", "blobs"}
    assert metrics["sets"]["iris"]["default"]["mean"] > 85
    assert metrics["difference"]["points"]["PCA"]["all"]["mean"] > -5
    assert metrics["difference"]["symmetrisation"]["mutual"]["all"]["mean"] < 0
    assert metrics["components"]["wine"]["symmetrisation mutual"] > metrics["components"]["wine"]["symmetrisation mean"]
    assert (tmp_path / "choosing.png").read_bytes().startswith(b"\x89PNG")
