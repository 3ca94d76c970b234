"""The experiment with the layer inside a network: what it learns, and what its signatures do not depend on."""

import pytest
import torch

from experiments.clouds import SHAPES, make_clouds, rotations
from problems import ignoring, short_form
from torch_lapeig import KNN, HeatKernel, Laplacian, eigenpairs

with ignoring():  # Lightning's imports warn of what is deprecated elsewhere
    pytest.importorskip("pytorch_lightning")
    from experiments.pointnets import FIRST_TIME, NETWORKS, TIMES, HeatSignatures, heat
    from experiments.spectral_layer import Classifier, Maker

NAMES = list(SHAPES)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def some_clouds(generator, sizes=(40, 60)):
    return make_clouds(NAMES, 2 * len(NAMES), sizes, 0.02, 0, 0.0, generator)


def test_all_learn_and_gradients_are_finite(tmp_path, capsys):
    found = short_form("spectral_layer", tmp_path, "--trainer.accelerator", "cpu")["nuisance=0"]
    assert min(found[network]["accuracy"]["mean"] for network in ("layer", "frozen")) > 0.7
    assert min(found[forest]["accuracy"]["mean"] for forest in ("quantiles", "signatures")) > 0.7
    for variant in (found["layer"], found["frozen"]):
        assert variant["not_finite"] == 0
        assert variant["steps"] == 45
        assert 0 < variant["gradient"]["max"] < 100
    assert found["layer"]["failed"] == 0
    assert 0 < found["layer"]["at_layer"]["median"] <= found["layer"]["at_layer"]["max"] < 100
    assert found["layer"]["bandwidth_factor"] != [1.0]
    assert not [*tmp_path.rglob("*.ckpt")]
    assert {path.stem for path in tmp_path.glob("*.png")} == {"spectral_layer"}
    short_form("spectral_layer", tmp_path, "--trainer.accelerator", "cpu")
    assert capsys.readouterr().out.count("2 of 2 cells read") == 2  # forests and networks


def test_components_of_the_training_points_drop_channels_of_noise():
    """Coordinates vary with 1/√3, noise with 0.3: three components of PCA are turned coordinates."""
    makers = [Maker(NAMES, {"train": 80, "test": 8}, (40, 60), pca) for pca in (False, True)]
    given, reduced = (maker(3, 0)["test"] for maker in makers)
    assert reduced.points.shape[-1] == 3
    for before, after, mask in zip(given.points, reduced.points, given.mask, strict=True):
        expected = torch.pdist(before[mask][:, :3])
        assert (torch.pdist(after[mask]) - expected).abs().mean() < 0.1 * expected.mean()


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
        diagonal = kernel.diagonal(dim1=-2, dim2=-1) - torch.exp(-t * pairs.values[:, -1:])
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
    longer = torch.nn.functional.pad(of_points, (0, 0, 0, 5), value=-1)
    close = {"rtol": 1e-3, "atol": 1e-4}  # float32 points, turned and shifted
    for points, mask, expected in (
        (clouds.points[:, order], clouds.mask[:, order], of_points[:, order]),
        (turned, clouds.mask, of_points),
        (torch.cat([clouds.points, padding], 1), longer_mask, longer),
    ):
        again, traces = layer(points, mask)
        torch.testing.assert_close(again[mask], expected[mask], **close)
        torch.testing.assert_close(traces, of_clouds, **close)
    one, trace = layer(clouds.points[3:4], clouds.mask[3:4])
    torch.testing.assert_close(one[0], of_points[3], **close)
    torch.testing.assert_close(trace[0], of_clouds[3], **close)


@pytest.mark.parametrize("variant", NETWORKS)
def test_padding_and_order_do_not_change_the_answer(variant, generator):
    clouds = some_clouds(generator)
    torch.manual_seed(0)
    module = Classifier(NETWORKS[variant](3, 8, 12), len(NAMES), 0.01, 0)
    expected = module(clouds.points, clouds.mask)
    order = torch.randperm(60, generator=generator)
    torch.testing.assert_close(module(clouds.points[:, order], clouds.mask[:, order]), expected, rtol=1e-3, atol=1e-4)
    padded = torch.nn.functional.pad(clouds.points, (0, 0, 0, 7), value=5.0)
    mask = torch.nn.functional.pad(clouds.mask, (0, 7))
    torch.testing.assert_close(module(padded, mask=mask), expected, rtol=1e-3, atol=1e-4)
