"""The experiment with the layer inside a network: its clouds, what its signatures do not depend on, and gradients."""

import json
import warnings

import pytest
import torch

from experiments.clouds import SHAPES, farthest, make_clouds, normalized, rotations
from torch_lapeig import KNN, Graph, HeatKernel, Laplacian, eigenpairs

with warnings.catch_warnings():  # Lightning's imports warn of what is deprecated elsewhere
    warnings.simplefilter("ignore")
    pytest.importorskip("pytorch_lightning")
    from experiments.__main__ import main
    from experiments.spectral_layer import (
        FIRST_TIME,
        TIMES,
        TRAINER,
        Classifier,
        CloudsModule,
        HeatSignatures,
        heat,
        longer,
    )
    from experiments.training import train

NAMES = list(SHAPES)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def some_clouds(generator, sizes=(40, 60)):
    return make_clouds(NAMES, 2 * len(NAMES), sizes, 0.02, 0, 0.0, generator)


def test_layer_is_better_than_none_and_gradients_are_finite(tmp_path, capsys):
    arguments = ["spectral_layer", "--quick", "--trainer.accelerator", "cpu", "--out", str(tmp_path)]
    main(arguments)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    found = metrics["nuisance=0"]
    assert found["learned"]["accuracy"]["mean"] > max(0.7, found["none"]["accuracy"]["mean"] + 0.05)
    for variant in found.values():
        assert variant["not_finite"] == 0
        assert variant["steps"] == 45
        assert 0 < variant["gradient"]["max"] < 100
    assert 0 < found["learned"]["at_layer"]["median"] <= found["learned"]["at_layer"]["max"] < 100
    assert found["learned"]["bandwidth_factor"] != [1.0]
    assert found["learned"]["parameters"] < found["none"]["parameters"] < 1.1 * found["learned"]["parameters"]
    assert not [*tmp_path.rglob("*.ckpt")]
    assert {path.stem for path in tmp_path.glob("*.png")} == {"spectral_layer", "clouds"}
    main(arguments)
    assert "2 of 2 cells read" in capsys.readouterr().out


@pytest.mark.parametrize("epoch", [1, 2, 3])  # before and after a validation
def test_interrupted_training_ends_like_any_other(epoch, tmp_path):
    class Interrupted(Classifier):
        def on_train_epoch_start(self):
            if self.current_epoch == epoch:
                raise InterruptedError

    flags = {**TRAINER, "max_epochs": 4, "check_val_every_n_epoch": 2, "log_every_n_steps": 2}

    def training(kind, folder):
        torch.manual_seed(0)
        module = kind("learned", 4, 3, 5, 8, 0.01, 0)
        parts = {"train": 16, "validation": 8}
        data = CloudsModule(["sphere", "torus", "rings"], parts, (30, 36), 0.05, 1, 0.3, 8, 0)
        train(tmp_path / folder, module, data, {**flags, "accelerator": "cpu"}, 0)
        return module

    whole = training(Classifier, "whole")
    with pytest.raises(InterruptedError):
        training(Interrupted, "parts")
    assert (tmp_path / "parts" / "last.ckpt").exists()
    resumed = training(Classifier, "parts")
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)
    for name in ("loss", "gradient", "at_layer"):
        assert len(whole.history[name]) == 8
        assert resumed.history[name] == whole.history[name]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shapes", "[cube]"], "--shapes must be of sphere.*got cube"),
        (["--variants", "[]"], "--variants must be of learned.*got none"),
        (["--eigenvectors", "10"], "--eigenvectors more than"),
        (["--points", "[8, 90]"], "--points must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments, says, tmp_path):
    with pytest.raises(SystemExit, match=says):
        main(["spectral_layer", *arguments, "--out", str(tmp_path)])


# Signatures


def test_signatures_are_those_of_the_heat_kernel():
    """diag and trace of exp(−tL) with all pairs, minus exp(−tλ_n) of the identity, by the dense matrix exponential."""
    points = torch.rand(2, 12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    laplacian = Laplacian(HeatKernel()(points, KNN(4)(points)), "symmetric")
    pairs = eigenpairs(laplacian, 12)
    signatures, traces = heat(pairs.vectors, pairs.projected)
    dense = laplacian.to_dense()
    for j in range(TIMES):
        t = FIRST_TIME * 2**j
        kernel = torch.matrix_exp(-t * dense)
        last = torch.exp(-t * pairs.values[:, -1:])
        diagonal = kernel.diagonal(dim1=-2, dim2=-1) - last
        torch.testing.assert_close(signatures[..., j], diagonal, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(traces[:, j], diagonal.sum(-1), rtol=1e-7, atol=1e-9)


def test_signatures_depend_on_the_cloud_alone(generator):
    """Not on the order of its points, its rotation, place and size, the padding, or the rest of the batch."""
    clouds = some_clouds(generator)
    layer = HeatSignatures(8, 12)
    of_points, of_clouds = layer(clouds.points, clouds.mask)
    assert of_points.isfinite().all()
    assert of_points[clouds.mask].std(0).min() > 1e-3
    order = torch.randperm(60, generator=generator)
    turned = 3 * clouds.points @ rotations(len(clouds.points), generator) + 1
    padding = torch.full((16, 5, 3), torch.nan)
    longer_mask = torch.cat([clouds.mask, torch.zeros(16, 5, dtype=torch.bool)], 1)
    close = {"rtol": 1e-3, "atol": 1e-4}  # float32 points, turned and shifted
    for points, mask, expected in (
        (clouds.points[:, order], clouds.mask[:, order], of_points[:, order]),
        (turned, clouds.mask, of_points),
        (
            torch.cat([clouds.points, padding], 1),
            longer_mask,
            torch.nn.functional.pad(of_points, (0, 0, 0, 5), value=-1),
        ),
    ):
        again, traces = layer(points, mask)
        torch.testing.assert_close(again[mask], expected[mask], **close)
        torch.testing.assert_close(traces, of_clouds, **close)
    one, trace = layer(clouds.points[3:4], clouds.mask[3:4])
    torch.testing.assert_close(one[0], of_points[3], **close)
    torch.testing.assert_close(trace[0], of_clouds[3], **close)


def test_signatures_depend_neither_on_signs_nor_on_bases(generator):
    clouds = some_clouds(generator)
    points = clouds.points.double()
    pairs = eigenpairs(Laplacian(HeatKernel()(points, KNN(8)(points, clouds.mask)), "random_walk"), 12)
    turn = torch.linalg.qr(torch.randn(16, 11, 11, dtype=torch.float64, generator=generator))[0]
    whole = torch.eye(12, dtype=torch.float64).repeat(16, 1, 1)
    whole[:, :-1, :-1] = turn  # the last value is the one that is subtracted
    turned = heat(pairs.vectors @ whole, whole.mT @ pairs.projected @ whole)
    for found, expected in zip(turned, heat(pairs.vectors, pairs.projected), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def cycle(n):
    weights = torch.eye(n, dtype=torch.float64).roll(1, 0)
    return weights + weights.mT


def changes(weights, seed):
    """A symmetric change of the edges that there are."""
    change = torch.randn(weights.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (change + change.mT) * weights


def signatures_of(weights, k):
    pairs = eigenpairs(Laplacian(Graph.from_dense(weights), "random_walk"), k)
    return pairs, torch.cat([part.flatten() for part in heat(pairs.vectors[None], pairs.projected[None])])


def test_gradient_is_exact_at_equal_eigenvalues():
    """Those of a cycle of 6 are 0, ½, ½, 3/2, 3/2, 2: no warning, and the same as by finite differences."""
    weights = cycle(6).requires_grad_()
    cotangent = torch.randn(7 * TIMES, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (gradient,) = torch.autograd.grad(signatures_of(weights, 6)[1] @ cotangent, weights)
    direction, step = changes(cycle(6), 3), 1e-5
    ahead, behind = (signatures_of(cycle(6) + s * direction, 6)[1] @ cotangent for s in (step, -step))
    expected = (ahead - behind) / (2 * step)
    assert (gradient * direction).sum().item() == pytest.approx(expected.item(), rel=1e-6)


def test_gradient_is_bounded_where_the_last_eigenvalue_is_nearly_the_next():
    """A cycle of 9, slightly changed, has λ_4 ≈ λ_5. Without the subtraction the gradient is about 1 / (λ_5 − λ_4)."""
    norms, bare = [], []
    for size in (1e-4, 1e-6, 1e-8):
        weights = (cycle(9) + size * changes(cycle(9), 3)).requires_grad_()
        pairs, signatures = signatures_of(weights, 4)
        assert 0.01 * size < pairs.gap < 10 * size
        cotangent = torch.randn(len(signatures), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        norms.append(torch.autograd.grad(signatures @ cotangent, weights, retain_graph=True)[0].norm().item())
        kernel = torch.matrix_exp(-FIRST_TIME * pairs.projected)
        diagonal = ((pairs.vectors @ kernel) * pairs.vectors).sum(-1)
        bare.append(torch.autograd.grad(diagonal @ cotangent[:9], weights)[0].norm().item())
    assert max(norms) < 1.1 * min(norms)
    assert bare[-1] > 1e3 * bare[0]


# The network


@pytest.mark.parametrize("variant", ["learned", "fixed", "none"])
def test_padding_and_order_do_not_change_the_answer(variant, generator):
    clouds = some_clouds(generator)
    torch.manual_seed(0)
    module = Classifier(variant, 3, len(NAMES), 8, 12, 0.01, 0)
    expected = module(clouds.points, clouds.mask)
    order = torch.randperm(60, generator=generator)
    torch.testing.assert_close(module(clouds.points[:, order], clouds.mask[:, order]), expected, rtol=1e-3, atol=1e-4)
    padded = torch.nn.functional.pad(clouds.points, (0, 0, 0, 7), value=5.0)
    mask = torch.nn.functional.pad(clouds.mask, (0, 7))
    torch.testing.assert_close(module(padded, mask=mask), expected, rtol=1e-3, atol=1e-4)


def test_gradient_reaches_the_features_through_the_layer_alone(generator):
    clouds = some_clouds(generator)
    module = Classifier("learned", 3, len(NAMES), 8, 12, 0.01, 0)
    features = module.features(clouds.points)
    of_points, of_clouds = module.signatures(features, clouds.mask)
    (of_points[clouds.mask].square().mean() + of_clouds.mean()).backward()
    for parameter in (module.lift.weight, module.signatures.kernel.log_factor):
        assert parameter.grad.isfinite().all()
        assert parameter.grad.norm() > 0


# Clouds


def test_clouds_are_turned_normalised_and_padded(generator):
    clouds = make_clouds(NAMES, 64, (20, 30), 0.0, 2, 0.5, generator)
    assert clouds.points.shape == (64, 30, 5)
    assert torch.bincount(clouds.labels).tolist() == [8] * 8
    assert clouds.mask.sum(1).min() >= 20
    assert len(clouds.mask.sum(1).unique()) > 5
    assert (clouds.points[~clouds.mask] == 0).all()
    size = clouds.mask.sum(1)
    torch.testing.assert_close(clouds.points[..., :3].sum(1) / size[:, None], torch.zeros(64, 3), rtol=0, atol=1e-5)
    radius = clouds.points[..., :3].square().sum((1, 2)) / size
    torch.testing.assert_close(radius, torch.ones(64))
    assert clouds.points[clouds.mask][:, 3:].std().item() == pytest.approx(0.5, rel=0.1)


def test_rotations_are_rotations(generator):
    turn = rotations(500, generator)
    torch.testing.assert_close(turn @ turn.mT, torch.eye(3).expand(500, 3, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(turn.det(), torch.ones(500))
    assert turn.mean(0).abs().max() < 0.1


def test_farthest_points_of_a_line():
    line = torch.tensor([[0.0, 1.0, 4.0, 5.0, 10.0]])[..., None]
    assert farthest(line, 4)[0, :, 0].tolist() == [0.0, 10.0, 5.0, 1.0]


def test_normalized_leaves_padding_out():
    points = torch.tensor([[[1.0, 0.0, 0.0], [3.0, 0.0, 0.0], [100.0, 0.0, 0.0]]])
    found = normalized(points, torch.tensor([[True, True, False]]))
    assert found[0, :2, 0].tolist() == [-1.0, 1.0]


def test_longer_training_has_as_many_validations():
    flags = {"max_epochs": 4, "max_steps": -1, "check_val_every_n_epoch": 2, "precision": None}
    assert longer(flags) == {"max_epochs": 40, "max_steps": -1, "check_val_every_n_epoch": 20, "precision": None}
