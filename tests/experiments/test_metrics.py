"""Scores and losses of the experiments by hand."""

import math

import numpy as np
import pytest
import sklearn.manifold
import torch
from scipy.stats import t as student

from experiments.cut import KNOWN, cheeger, cuts_of, known_graph, normalized_cuts, small_graph
from experiments.demo import neighbour_loss
from experiments.metrics import mean_and_interval, plus_minus, ranks, trustworthiness
from torch_lapeig import normalized_cut


def test_neighbour_loss_is_its_formula():
    """Four points on a line in two classes: p_ij by hand from Goldberger et al. 2004, equation 1."""
    y, labels = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 1])
    end = 1 / (1 + math.exp(-8) + math.exp(-15))  # exp(−1) among exp(−1), exp(−9), exp(−16)
    inner = 1 / (1 + math.exp(-3) + math.exp(-8))  # exp(−1) among exp(−1), exp(−4), exp(−9)
    assert neighbour_loss(y, labels).item() == pytest.approx(-(math.log(end) + math.log(inner)) / 2, rel=1e-4)
    assert neighbour_loss(y, torch.zeros(4)).item() == pytest.approx(0, abs=1e-6)


def test_trustworthiness_is_a_mean_over_points():
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((60, 5)), generator.standard_normal((60, 2))
    each = trustworthiness(ranks(x), y, 4)
    assert each.shape == (60,)
    assert each.mean() == pytest.approx(sklearn.manifold.trustworthiness(x, y, n_neighbors=4), rel=1e-12)
    assert (trustworthiness(ranks(x), 3 * x + 1) == 1).all()


def test_interval_is_students_and_intervals_that_hold_together_are_bonferronis():
    value = mean_and_interval([0.0, 1.0, 2.0])
    assert value["mean"] == pytest.approx(1)
    assert value["interval"] == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    assert plus_minus(value, 1, 100, "+") == "+100.0 ± 248.4"
    assert mean_and_interval([3.0]) == {"mean": 3.0, "interval": None, "seeds": [3.0]}
    assert plus_minus(mean_and_interval([3.0])) == "3.00"
    one, five = (mean_and_interval([0.0, 1.0, 2.0, 4.0], m) for m in (1, 5))  # each of m at the level 1 − 0.05 / m
    assert five["interval"] == pytest.approx(student.ppf(0.995, 3) / student.ppf(0.975, 3) * one["interval"])


def test_cut_is_the_normalised_cut_and_the_optimum_the_least():
    graph = small_graph("random", 8, 0)
    weights = graph.to_dense().numpy()
    parts = (np.arange(1, 2**7)[:, None] >> np.arange(8)) & 1
    values = normalized_cuts(weights, parts)
    expected = [normalized_cut(torch.tensor(part), graph).item() for part in parts]
    np.testing.assert_allclose(values, expected, rtol=1e-10)
    found = cuts_of(graph)
    assert found["optimum"] == pytest.approx(min(expected))
    assert found["second_eigenvalue"] <= found["optimum"]
    assert found["optimum"] <= found["sweep"] * (1 + 1e-12)
    assert found["sweep"] <= found["sign"] * (1 + 1e-12)


def test_cheegers_bounds_hold_and_the_hypercube_attains_the_lower_one():
    found = {name: cuts_of(known_graph(name)) for name in KNOWN}
    expected = {
        "hypercube": (0.5, 0.25),
        "path": (1 - math.cos(math.pi / 15), 1 / 15),
        "cycle": (1 - math.cos(math.pi / 8), 1 / 8),
        "complete": (16 / 15, 8 / 15),
    }
    for name, (second, h) in expected.items():
        assert found[name]["second_eigenvalue"] == pytest.approx(second)
        assert found[name]["conductance"] == pytest.approx(h)
    assert found["dumbbell"]["conductance"] == pytest.approx(1 / 57)  # one edge; 8 · 7 + 1
    for result in found.values():
        assert cheeger([result])["holds"] == 1
    assert cheeger([found["hypercube"]])["h_over_lower"]["mean"] == pytest.approx(1)
