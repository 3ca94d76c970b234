"""The experiment of parametric eigenmaps in a short form, its mini-batches and its angles."""

import numpy as np
import pytest
import torch

from problems import ignoring, points, short_form
from torch_lapeig import KNN, HeatKernel, Laplacian, eigenpairs

with ignoring():  # Lightning's imports warn of what is deprecated elsewhere
    pytest.importorskip("pytorch_lightning")
    from experiments.encoders import MiniBatches, neural_eigenfunctions
    from experiments.parametric import largest_angle, mean_angle


def test_encoder_comes_near_the_eigenfunctions_and_resumes(tmp_path, capsys):
    first = short_form("parametric", tmp_path, "--trainer.accelerator", "cpu")
    found = {key: value["mean"] for key, value in first["sphere"]["edges"].items()}
    assert found["train_encoder"] < 20
    assert found["heldout_encoder"] < 25
    assert found["heldout_nystrom"] < 15
    assert 1 <= found["energy"] < 2  # Ritz values are above the eigenvalues
    assert found["truth_encoder"] < 15
    assert all((tmp_path / f"angles.{end}").stat().st_size > 0 for end in ("png", "pdf"))
    capsys.readouterr()
    second = short_form("parametric", tmp_path, "--trainer.accelerator", "cpu")
    assert "1 of 1 cells read" in capsys.readouterr().out
    times = {"seconds": 0, "elapsed": 0}
    assert {**first, **times} == {**second, **times}


def test_sums_over_mini_batches_of_edges_equal_the_whole_graph():
    x, y = points(60, 3), points(60, 2, seed=1)
    graph = HeatKernel()(x, KNN(6)(x))
    edges = len(graph.weight) // 2
    size = next(d for d in range(9, edges) if edges % d == 0) if edges % 2 else edges // 2
    batches = MiniBatches(torch.cat([x, y], 1), graph, size, seed=0)
    batches.sampler.count = edges // size
    energy, mass = torch.zeros(2, 2, dtype=x.dtype), torch.zeros(2, 2, dtype=x.dtype)
    for rows, part in batches.train_dataloader():
        energy += rows[:, 3:].T @ Laplacian(part, "unnormalized").matmul(rows[:, 3:])
        mass += rows[:, 3:].T @ (part.pattern.sum_rows(part.weight)[:, None] * rows[:, 3:])
    torch.testing.assert_close(energy, y.T @ Laplacian(graph, "unnormalized").matmul(y))
    torch.testing.assert_close(mass, y.T @ (graph.pattern.sum_rows(graph.weight)[:, None] * y))


def test_neuralefs_loss_is_least_at_the_eigenvectors_in_order():
    """At the minimum R is diagonal, 1 − λ/2, and the loss is −Σ_j (1 − λ_j/2) for any scales and shifts."""
    graph = HeatKernel()(points(60, 3), KNN(6)(points(60, 3)))
    pairs = eigenpairs(Laplacian(graph, "random_walk"), 4)
    exact, values = pairs.vectors[:, 1:], pairs.values[1:]
    least = neural_eigenfunctions(exact * torch.tensor([1.0, -3.0, 0.2]) + 5, graph)
    assert least.item() == pytest.approx((values / 2 - 1).sum().item())
    for other in (exact + 0.1 * points(60, 3, seed=2), exact[:, [0, 0, 1]], points(60, 3, seed=3)):
        assert neural_eigenfunctions(other, graph) > least


def test_angles_do_not_depend_on_bases_and_shifts():
    generator = np.random.default_rng(0)
    basis = np.linalg.qr(generator.standard_normal((50, 4)))[0]
    basis = np.linalg.qr(basis - basis.mean(0))[0]
    turned = np.column_stack([np.cos(0.3) * basis[:, 0] + np.sin(0.3) * basis[:, 2], basis[:, 1]])
    mixed = turned @ generator.standard_normal((2, 2)) + 5
    assert mean_angle(basis[:, :2], mixed) == pytest.approx(np.degrees(0.15))
    assert mean_angle(basis[:, [0, 0]], basis[:, :2]) == pytest.approx(45)  # a direction that is missing is at 90°
    assert largest_angle(basis[:, :2], mixed) == pytest.approx(np.degrees(0.3))
