"""The experiment weightings: its batches, its loss, that smoothness helps with few labels, and that it resumes."""

import json
import warnings

import pytest
import torch

from experiments.runs import Refusal
from torch_lapeig import KNN, Graph, HeatKernel, SimpleWeights, knn_graph

with warnings.catch_warnings():  # Lightning's imports warn of what is deprecated elsewhere
    warnings.simplefilter("ignore")
    pytest.importorskip("pytorch_lightning")
    from experiments.__main__ import main
    from experiments.data import Split
    from experiments.weightings import (
        WEIGHTINGS,
        Classifier,
        FewLabels,
        Neighborhoods,
        Problem,
        labelled,
        roughness,
        summary,
        weightings,
    )


def quick(out, *more):
    main(["weightings", "--quick", "--trainer.accelerator", "cpu", "--out", str(out), *more])
    return json.loads((out / "metrics.json").read_text())


def test_smoothness_helps_with_few_labels_and_the_run_resumes(tmp_path, capsys):
    metrics = quick(tmp_path)
    accuracy = metrics["accuracy"]["digits"]["labels=1"]
    assert accuracy["learnable"]["gain"]["mean"] > 0
    assert accuracy["none"]["accuracy"]["mean"] > 0.3
    assert all(factor != 1 for factor in accuracy["learnable"]["factors"])
    assert metrics["overhead"]["digits"]["none"]["overhead"] == 0
    assert (tmp_path / "weightings.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.rglob("*.ckpt"))
    assert len(list(tmp_path.rglob("metrics.csv"))) == 6
    cells = tmp_path / "cells.jsonl"
    lines = cells.read_text().splitlines(keepends=True)
    cells.write_text("".join(lines[:-2]))  # as after an interruption
    capsys.readouterr()
    resumed = quick(tmp_path)
    assert resumed["accuracy"] == metrics["accuracy"]
    assert "training: 5 of 6 cells read" in capsys.readouterr().out


def test_roughness_is_a_weighted_mean_over_edges():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(30, d, generator=generator, dtype=torch.float64) for d in (3, 2))
    graph = HeatKernel()(x, knn_graph(x, 4))
    w, d2 = graph.to_dense(), torch.cdist(y, y).square()
    torch.testing.assert_close(roughness(y, graph), (w * d2).sum() / w.sum())
    torch.testing.assert_close(roughness(y, graph.with_weight(1e-6 * graph.weight)), roughness(y, graph))
    pair = Graph.from_dense(torch.tensor([[0.0, 0.3], [0.3, 0.0]]))
    assert roughness(torch.tensor([[0.0], [2.0]]), pair).item() == pytest.approx(4)


def test_batches_are_the_labelled_and_whole_neighbourhoods():
    near = (torch.arange(200)[:, None] + torch.arange(5)) % 200
    known = torch.tensor([3, 50, 120])
    sampler = Neighborhoods(near, known, size=64, steps=4, seed=1)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
        assert len(epochs[-1]) == len(sampler) == 4
        for batch in epochs[-1]:
            assert len(set(batch)) == len(batch) == 64
            assert batch[:3] == known.tolist()
            beside = torch.tensor(batch)[:, None] + 1 == torch.tensor(batch)
            assert beside.any(1).sum() > 40  # of a random batch a third have their neighbour in it
    assert epochs[0] != epochs[1]
    sampler.set_epoch(0)
    assert list(sampler) == epochs[0]


def tiny(count=2):
    generator = torch.Generator().manual_seed(0)
    pixels, classes = torch.rand(60, 64, generator=generator), torch.arange(60) % 10
    return Problem.of(Split(pixels, classes, pixels[:10], classes[:10]), 4)


def test_labels_are_of_every_class_and_the_others_unknown():
    problem = tiny()
    chosen = labelled(problem.split.train_labels, 2, seed=0)
    assert problem.split.train_labels[chosen].tolist() == [c for c in range(10) for _ in range(2)]
    assert labelled(problem.split.train_labels, 2, seed=1).tolist() != chosen.tolist()
    for pixels, labels in FewLabels(problem, 2, 40, 3, 0).train_dataloader():
        assert pixels.shape == (40, 64)
        assert labels[:20].tolist() == [c for c in range(10) for _ in range(2)]
        assert (labels[20:] == -1).all()


def test_loss_takes_no_label_that_is_not_given_and_smoothness_of_all():
    problem = tiny()
    pixels, labels = next(iter(FewLabels(problem, 1, 40, 1, 0).train_dataloader()))
    torch.manual_seed(0)
    module = Classifier(8, SimpleWeights(), 4, 0.5, 1e-3)
    losses, logits = module.losses(pixels, labels), module(pixels)
    expected = -logits.log_softmax(1)[range(10), labels[:10]].mean()
    torch.testing.assert_close(losses["cross_entropy"], expected)
    torch.testing.assert_close(losses["roughness"], roughness(logits, KNN(4, "union")(pixels)))
    torch.testing.assert_close(losses["loss"], expected + 0.5 * losses["roughness"])
    module.weights = None
    torch.testing.assert_close(module.losses(pixels, labels)["loss"], expected)


@pytest.mark.parametrize("method", [name for name in WEIGHTINGS if name != "none"])
@pytest.mark.parametrize("side", [8, 28])
def test_every_weighting_gives_finite_gradients(method, side):
    torch.manual_seed(0)
    pixels, labels = torch.rand(30, side**2), torch.arange(30) % 10
    module = Classifier(side, WEIGHTINGS[method][1](float(side)), 5, 1.0, 1e-3)
    module.losses(pixels, labels)["loss"].backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())


def test_gains_are_paired():
    cells = {
        m: [{"accuracy": a + s / 10, "factor": None} for s in range(3)] for m, a in {"none": 0.1, "b": 0.3}.items()
    }
    assert summary(cells)["b"]["gain"]["mean"] == pytest.approx(0.2)
    assert summary(cells)["b"]["gain"]["interval"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sets": ["cifar"]}, "--sets must be of digits, mnist, got cifar"),
        ({"methods": ["heat"]}, "--methods must be of none, fixed.*got heat"),
        ({"methods": ["median"]}, "--methods must begin with none"),
        ({"seeds": 1}, "--seeds must be at least 2"),
        ({"labels": [30]}, "--labels must be positive"),
        ({"rounds": 0}, "--rounds must be at least 1"),
        ({"neighbors": 300}, "--neighbors must be positive and less than --batch 256"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, tmp_path):
    with pytest.raises(Refusal, match=message):
        weightings(tmp_path, **arguments)


def test_missing_mnist_is_refused(tmp_path):
    with pytest.raises(Refusal, match="t10k-images"):
        weightings(tmp_path / "run", sets=["mnist"], data_dir=tmp_path)
