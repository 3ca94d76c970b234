"""The experiment with the layer inside a network: its clouds, what its signatures do not depend on, and gradients."""

import json
import warnings

import numpy as np
import pytest
import torch

from experiments.clouds import SHAPES, farthest, make_clouds, normalized, rotations
from torch_lapeig import KNN, Graph, HeatKernel, Laplacian, eigenpairs

with warnings.catch_warnings():  # Lightning's imports warn of what is deprecated elsewhere
    warnings.simplefilter("ignore")
    pytest.importorskip("pytorch_lightning")
    from experiments.__main__ import main
    from experiments.pointnets import FIRST_TIME, NETWORKS, TIMES, HeatSignatures, heat, nearest
    from experiments.spectral_layer import (
        TRAINER,
        Classifier,
        CloudsModule,
        Forest,
        Maker,
        failed,
        longer,
        restarted,
        summary,
    )
    from experiments.training import train

NAMES = list(SHAPES)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def some_clouds(generator, sizes=(40, 60)):
    return make_clouds(NAMES, 2 * len(NAMES), sizes, 0.02, 0, 0.0, generator)


def test_all_learn_and_gradients_are_finite(tmp_path, capsys):
    arguments = ["spectral_layer", "--quick", "--trainer.accelerator", "cpu", "--out", str(tmp_path)]
    main(arguments)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    found = metrics["nuisance=0"]
    assert found["layer"]["accuracy"]["mean"] > max(0.7, found["pointnet"]["accuracy"]["mean"] + 0.05)
    assert min(found[forest]["accuracy"]["mean"] for forest in ("quantiles", "signatures")) > 0.7
    for variant in (found["layer"], found["pointnet"]):
        assert variant["not_finite"] == 0
        assert variant["steps"] == 45
        assert 0 < variant["gradient"]["max"] < 100
    assert found["layer"]["failed"] == 0
    assert 0 < found["layer"]["at_layer"]["median"] <= found["layer"]["at_layer"]["max"] < 100
    assert found["layer"]["bandwidth_factor"] != [1.0]
    assert not [*tmp_path.rglob("*.ckpt")]
    assert {path.stem for path in tmp_path.glob("*.png")} == {"spectral_layer", "clouds"}
    main(arguments)
    said = capsys.readouterr().out
    assert said.count("2 of 2 cells read") == 2  # forests and networks


def test_networks_are_of_one_size():
    sizes = [sum(p.numel() for p in Classifier(NETWORKS[name](6, 8, 12), 8, 0.01, 0).parameters()) for name in NETWORKS]
    assert max(sizes) < 1.1 * min(sizes)


def cell(accuracy, losses):
    history = {"loss": losses, "gradient": [1.0] * len(losses), "at_layer": [1.0] * len(losses)}
    history |= {"seconds": [0.1] * len(losses), "step": [], "accuracy": []}
    known = {"by_class": [accuracy] * 8, "bandwidth_factor": None, "parameters": 1, "seconds": 1.0, "trainings": 1}
    return {"accuracy": accuracy, "history": history, **known}


def test_failed_trainings_are_counted():
    """Half of the loss of guessing, ln 8 / 2 = 1.04, is asked of the end; learning by heart is no failure."""
    learned, stuck, broken = [2.0] * 9 + [0.1], [2.0] * 9 + [1.1], [2.0, float("nan")] + [0.1] * 8
    assert summary([cell(0.9, learned), cell(0.2, learned)])["failed"] == 0
    found = summary([cell(0.9, learned), cell(0.1, stuck), cell(0.1, broken)])
    assert found["failed"] == 2
    assert found["not_finite"] == 1


def test_failed_trainings_begin_anew_until_one_learns():
    losses = {0: [2.0] * 10, 1: [0.1] * 10}
    asked = []

    class Known:
        def cells(self, part, compute, cases):
            asked.extend(cases)
            return {case: cell(0.5, losses[min(case[-1], 1) if case[0] == "dgcnn" else 0]) for case in cases}

    found = restarted(Known(), None, [("dgcnn", 3, 0), ("layer", 3, 0)], 2)
    assert asked == [(*case, 0) for case in found] + [(*case, 1) for case in found] + [("layer", 3, 0, 2)]
    assert [found[case]["trainings"] for case in found] == [2, 3]
    assert found["dgcnn", 3, 0]["seconds"] == 2
    assert [failed(of) for of in found.values()] == [False, True]


def test_a_frozen_graph_is_that_of_the_points_and_gets_no_gradient(generator):
    clouds = some_clouds(generator)
    layer, frozen = (NETWORKS[name](3, 6, 12) for name in ("layer", "frozen"))
    frozen.load_state_dict(layer.state_dict())
    torch.testing.assert_close(
        frozen(clouds.points, clouds.mask), layer(clouds.points, clouds.mask), atol=1e-3, rtol=1e-3
    )
    frozen(clouds.points, clouds.mask).square().sum().backward()
    assert frozen.signatures.kernel.log_factor.grad is None
    assert frozen.lift.weight.grad.abs().max() > 0


def test_forests_see_features_that_rotations_do_not_change(generator):
    maker = Maker(NAMES, {"train": 16, "test": 8}, (40, 60), 0.02, 0.3)
    clouds = maker(2, 0)["train"]
    turned = torch.cat([clouds.points[..., :3] @ rotations(16, generator), clouds.points[..., 3:]], -1)
    for variant in ("quantiles", "signatures"):
        found, expected = (Forest(maker, 8, 12)._features(variant, c) for c in (clouds._replace(points=turned), clouds))
        assert np.allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_padding_is_nobody_s_neighbour():
    x = torch.tensor([[[0.0], [1.0], [5.0], [0.1]]])
    assert nearest(x, x, torch.tensor([[True, True, True, False]]), 2)[0, 0].tolist() == [0, 1]


@pytest.mark.parametrize("epoch", [1, 2, 3])  # before and after a validation
def test_interrupted_training_ends_like_any_other(epoch, tmp_path):
    class Interrupted(Classifier):
        def on_train_epoch_start(self):
            if self.current_epoch == epoch:
                raise InterruptedError

    flags = {**TRAINER, "max_epochs": 4, "check_val_every_n_epoch": 2, "log_every_n_steps": 2}

    def training(kind, folder):
        torch.manual_seed(0)
        module = kind(NETWORKS["layer"](4, 5, 8), 3, 0.01, 0)
        maker = Maker(["sphere", "torus", "rings"], {"train": 16, "validation": 8}, (30, 36), 0.05, 0.3)
        data = CloudsModule(maker(1, 0), 8, 0)
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
        (["--variants", "[]"], "--variants must be of layer.*got none"),
        (["--rates", "{dgcnn: 0.1}"], "--rates must have a number for each network, got none for layer, frozen"),
        (["--eigenvectors", "9"], "--eigenvectors more than"),
        (["--points", "[6, 90]"], "--points must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments, says, tmp_path):
    with pytest.raises(SystemExit, match=says):
        main(["spectral_layer", *arguments, "--out", str(tmp_path)])


# Signatures


def test_signatures_equal_the_heat_kernel():
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


def test_signatures_depend_on_the_cloud_only(generator):
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
    """A cycle of 6 has the eigenvalues 0, ½, ½, 3/2, 3/2, 2: no warning, and the gradient of finite differences."""
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


@pytest.mark.parametrize("variant", NETWORKS)
def test_padding_and_order_do_not_change_the_answer(variant, generator):
    clouds = some_clouds(generator)
    torch.manual_seed(0)
    module = Classifier(NETWORKS[variant](3, 8, 12), len(NAMES), 0.01, 0)
    expected = module(clouds.points, clouds.mask)
    order = torch.randperm(60, generator=generator)
    if variant != "pointnet2":  # its centres are the first points
        torch.testing.assert_close(
            module(clouds.points[:, order], clouds.mask[:, order]), expected, rtol=1e-3, atol=1e-4
        )
    padded = torch.nn.functional.pad(clouds.points, (0, 0, 0, 7), value=5.0)
    mask = torch.nn.functional.pad(clouds.mask, (0, 7))
    torch.testing.assert_close(module(padded, mask=mask), expected, rtol=1e-3, atol=1e-4)


def test_gradient_reaches_the_features_through_the_layer_only(generator):
    clouds = some_clouds(generator)
    module = NETWORKS["layer"](3, 8, 12)
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
    assert longer(flags, 10) == {"max_epochs": 40, "max_steps": -1, "check_val_every_n_epoch": 20, "precision": None}
