"""The experiment choosing: its scores, what it compares with what, and its short form."""

import json

import numpy as np
import pytest
import torch

from experiments.__main__ import main
from experiments.choosing import (
    ALL,
    BASE,
    DEFAULT,
    QUESTIONS,
    Sample,
    Setting,
    choosing,
    contrasts,
    measured,
    told,
)
from experiments.runs import Refusal


def test_the_nearest_tell_labels_and_numbers():
    """Points on a line, whose neighbours have their label, or numbers that the mean of the neighbours gives."""
    y = torch.arange(12.0)[:, None]
    everyone = ~torch.eye(12, dtype=torch.bool)
    halves = np.repeat([0, 1], 6)
    assert told(y**2, halves, everyone, 1) == pytest.approx(100 * 11 / 12)  # nearest is the one before: 6's is 5
    truth = np.column_stack([np.arange(12.0), 3 * np.arange(12.0)])
    inner = told(y, truth, everyone, 2)
    expected = 1 - 2 * 1.5**2 / np.square(np.arange(12) - 5.5).sum()  # the ends have both neighbours on one side
    assert inner == pytest.approx(100 * expected)
    assert told(torch.zeros(12, 1), np.random.default_rng(0).permutation(halves), everyone, 11) < 60


def test_frames_that_share_samples_are_left_out():
    time = np.array([0, 1, 2, 9])
    sample = Sample(np.zeros((4, 1)), np.zeros(4), abs(time[:, None] - time) <= 1)
    assert sample.allowed.int().tolist() == [[0, 0, 1, 1], [0, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 0]]
    assert sample.part(0.5, np.random.default_rng(0)).bound.shape == (2, 2)
    assert len(sample.part(2, np.random.default_rng(0)).x) == 2


def test_options_differ_in_one_thing_and_the_default_is_the_librarys():
    for question, options in QUESTIONS.items():
        assert options[BASE[question]] == DEFAULT
        for setting in options.values():
            assert sum(a != b for a, b in zip(setting, DEFAULT, strict=True)) <= 1
    from torch_lapeig import KNN, LaplacianEigenmaps

    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
    assert KNN(10).symmetrize == DEFAULT.symmetrize
    torch.testing.assert_close(DEFAULT.embed(x, 4)[0], LaplacianEigenmaps(4)(x))
    torch.testing.assert_close(Setting(factor=1.0 + 1e-12).embed(x, 4)[0], LaplacianEigenmaps(4)(x), atol=1e-3, rtol=0)


def test_every_option_is_measured_and_differences_are_paired():
    generator = np.random.default_rng(0)
    sample = Sample(generator.standard_normal((90, 3)), np.arange(90) % 3)
    of = measured(sample, 0)
    assert set(of["scores"]) == set(ALL)
    assert all(set(options) <= set(of["scores"][question]) for question, options in QUESTIONS.items())
    assert 2 <= of["gap"] <= 50
    cells = {
        name: [{"scores": {"k": {"10": 50.0 + s, "5": 52.0 + s}}, "kind": "labels"} for s in range(3)] for name in "ab"
    }
    found = contrasts(cells, "k")
    assert found["10"]["all"] == {"mean": 0, "interval": 0}
    assert (found["5"]["all"]["mean"], found["5"]["better"], found["5"]["worse"]) == (2, 2, 0)


def test_the_short_form(tmp_path):
    main(["choosing", "--quick", "--out", str(tmp_path)])
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert set(metrics["sets"]) == {"iris", "wine", "blobs"}
    assert metrics["sets"]["iris"]["default"]["mean"] > 85
    assert metrics["difference"]["points"]["PCA"]["all"]["mean"] > -5
    assert metrics["difference"]["symmetrisation"]["mutual"]["all"]["mean"] < 0
    assert metrics["components"]["wine"]["symmetrisation mutual"] > metrics["components"]["wine"]["symmetrisation mean"]
    assert (tmp_path / "choosing.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sets": ["cifar", "iris"]}, "--sets must be of iris, wine.*got cifar"),
        ({"sets": ["iris"]}, "--sets must be at least 2"),
        ({"draws": 0}, "--draws must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, tmp_path):
    with pytest.raises(Refusal, match=message):
        choosing(tmp_path, **arguments)
