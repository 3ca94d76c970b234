"""The experiments in a short form: what they write, and what their figures say."""

import importlib.metadata

import pytest
import yaml

from experiments.manifolds import WITH_SCALE, constant, eigenvectors
from problems import polygon, short_form, touches_border


def test_demo_writes_metrics_and_figure(tmp_path, capsys):
    metrics = short_form("demo", tmp_path)
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
    assert metrics["over_seeds"]["after"]["10-D"]["knn_heldout"]["mean"] == after["knn_heldout"]
    assert metrics["pixels"] > 0.95  # which the embedding is not ahead of
    assert (tmp_path / "embedding.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "5-NN accuracy (%), 10-D, after learning" in printed


def quick(name, out, *more):
    """Metrics of the quick form, after a check of what every run leaves."""
    metrics = short_form(name, out, "--device", "cpu", *more)
    assert metrics["config"]["quick"] is True
    assert metrics["versions"]["torch"] == importlib.metadata.version("torch")
    assert yaml.safe_load((out / "config.yaml").read_text())["out"] == str(out)
    figures = sorted(path.stem for path in out.glob("*.png"))
    assert figures
    assert not any(touches_border(out / f"{figure}.png") for figure in figures)
    assert figures == sorted(path.stem for path in out.glob("*.pdf"))
    return metrics


def test_bars_fall_apart_under_eigenmaps_only(tmp_path):
    metrics = quick("bars", tmp_path)
    assert metrics["connected"] == metrics["sets"]  # no component alone tells them apart
    assert metrics["laplacian_eigenmaps"]["mean"] >= 0.99
    assert metrics["pca"]["mean"] < 0.7


@pytest.mark.filterwarnings("ignore:.*isolated")  # a point of the sphere may have no neighbour in the radius
def test_improved_eigenmaps_are_closer_to_the_eigenfunctions(tmp_path):
    metrics = quick("manifolds", tmp_path)
    for name in ("circle", "square", "sphere"):
        angles = metrics["tilted"][name]["N=500"]
        assert angles["improved"]["angle"]["mean"] <= angles["weighted"]["angle"]["mean"] / 2
        angles = metrics["uniform"][name]["N=500"]
        assert angles["improved"]["angle"]["mean"] < angles["weighted"]["angle"]["mean"]
    assert metrics["tilted"]["sphere"]["N=500"]["density_corrected"]["eigenvalue"]["mean"] < 10  # per cent
    assert set(metrics["sweeps"]) == {"degree", "fall", "noise"}


def test_eigenvalues_of_graphs_approach_those_of_the_laplacian_times_the_constant():
    """On a circle of equal steps eigenvalues are sums, but for the point itself, one of 95 that is no neighbour."""
    n, epsilon = 3000, 0.1
    x = polygon(n)
    for method, values, _ in eigenvectors(x, epsilon, 4.0, 4):
        if method in WITH_SCALE:
            found = values / constant(method, 1, epsilon, 4.0)
            assert found == pytest.approx([1, 1, 4, 4], rel=0.03), method


def test_second_eigenvector_cuts_nearly_as_well_as_any(tmp_path):
    metrics = quick("cut", tmp_path)
    for ratios in metrics["small_graphs"].values():
        assert ratios["eigenvalue_over_optimum"]["mean"] <= 1
        assert 1 - 1e-9 <= ratios["sweep"]["mean"] <= ratios["sign"]["mean"]
        assert ratios["sweep"]["mean"] < 1.1
    assert {bounds["holds"] for bounds in metrics["cheeger"].values()} == {1}
    digits_scores = metrics["clusterings"]["digits"]
    assert digits_scores["njw"]["nmi"] > digits_scores["scikit_learn"]["nmi"] - 0.02
