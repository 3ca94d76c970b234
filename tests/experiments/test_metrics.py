"""Scores and losses of the experiments by hand."""

import math

import numpy as np
import pytest
import torch

from experiments.cut import cuts_of, normalized_cuts, small_graph
from experiments.demo import neighbour_loss
from experiments.metrics import mean_and_interval, neighbour_agreement, plus_minus, two_means_accuracy
from torch_lapeig import normalized_cut


def test_neighbour_loss_is_its_formula():
    """Four points on a line in two classes: p_ij by hand from Goldberger et al. 2004, equation 1."""
    y, labels = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 1])
    end = 1 / (1 + math.exp(-8) + math.exp(-15))  # exp(−1) among exp(−1), exp(−9), exp(−16)
    inner = 1 / (1 + math.exp(-3) + math.exp(-8))  # exp(−1) among exp(−1), exp(−4), exp(−9)
    expected = -(math.log(end) + math.log(inner)) / 2
    assert neighbour_loss(y, labels).item() == pytest.approx(expected, rel=1e-4)
    assert neighbour_loss(y, torch.zeros(4)).item() == pytest.approx(0, abs=1e-6)


def test_two_means_accuracy_does_not_depend_on_names():
    y = np.array([[0.0], [0.1], [5.0], [5.1], [5.2]])
    second = np.array([False, False, True, True, False])
    assert two_means_accuracy(y, second) == two_means_accuracy(y, ~second) == pytest.approx(0.8)


def test_neighbour_agreement_by_hand():
    y = np.array([[0.0], [1.0], [2.1], [3.3], [10.0]])
    scores = neighbour_agreement(y, ["a", "a", "b", "b", "b"], neighbors=2)
    # neighbours: 0: 1, 2; 1: 0, 2; 2: 1, 3; 3: 2, 1; 4: 3, 2
    assert scores["share"] == pytest.approx((1 + 1 + 1 + 1 + 2) / 10)
    assert scores["majority"] == pytest.approx(4 / 5)  # the nearer one decides a tie: 2 goes to 1
    apart = neighbour_agreement(y, ["a", "a", "b", "b", "b"], neighbors=1, apart=1)
    assert apart["share"] == pytest.approx(1 / 5)  # 0: 2, 1: 3, 2: 0, 3: 1, 4: 2


def test_interval_is_students():
    value = mean_and_interval([0.0, 1.0, 2.0])
    assert value["mean"] == pytest.approx(1)
    assert value["interval"] == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    assert plus_minus(value, 1, 100, "+") == "+100.0 ± 248.4"
    assert mean_and_interval([3.0]) == {"mean": 3.0, "interval": None}
    assert plus_minus(mean_and_interval([3.0])) == "3.00"


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
