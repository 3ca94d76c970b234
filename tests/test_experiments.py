"""The main job in a short form: what it writes, and that learning through the layer helps."""

import json
import math

import pytest
import torch
import yaml

from experiments.__main__ import main
from experiments.data import digits
from experiments.demo import neighbour_loss


def test_demo_writes_metrics_and_figure(tmp_path, capsys):
    main(["demo", "--out", str(tmp_path), "--steps", "40", "--batch", "200"])
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    before, after = metrics["before"]["10"], metrics["after"]["10"]
    assert before["knn_train"] > 0.95
    assert before["knn_heldout"] > 0.95
    assert before["trustworthiness_heldout"] > 0.9
    assert before["largest_residual"] < 1e-5
    assert before["eigenvalues"] == sorted(before["eigenvalues"])
    assert before["eigengap"] > 0
    assert after["knn_heldout"] >= before["knn_heldout"] - 0.02
    assert metrics["learning"]["loss_last_20"] < metrics["learning"]["loss_first_20"]
    assert metrics["learning"]["bandwidth_over_median"] != 1
    assert (tmp_path / "embedding.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "5-NN accuracy, held out" in printed
    assert "eigenvalue 10" in printed


def test_configuration_gives_the_defaults(capsys):
    printed = []
    for arguments in (["demo", "--print_config"], ["demo", "--config", "configs/demo.yaml", "--print_config"]):
        with pytest.raises(SystemExit):
            main(arguments)
        printed.append(yaml.safe_load(capsys.readouterr().out))
    assert printed[0] == printed[1]
    assert printed[0]["steps"] == 300


def test_digits_are_split_by_class():
    split = digits()
    assert len(split.train) + len(split.heldout) == 1797
    assert split.train.shape[1] == 64
    counts = torch.bincount(split.heldout_labels)
    assert counts.min() >= 34


def test_neighbour_loss_is_its_formula():
    """Four points on a line in two classes: p_ij by hand from Goldberger et al. 2004, equation 1."""
    y, labels = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 1])
    end = 1 / (1 + math.exp(-8) + math.exp(-15))  # exp(−1) among exp(−1), exp(−9), exp(−16)
    inner = 1 / (1 + math.exp(-3) + math.exp(-8))  # exp(−1) among exp(−1), exp(−4), exp(−9)
    expected = -(math.log(end) + math.log(inner)) / 2
    assert neighbour_loss(y, labels).item() == pytest.approx(expected, rel=1e-4)
    assert neighbour_loss(y, torch.zeros(4)).item() == pytest.approx(0, abs=1e-6)
