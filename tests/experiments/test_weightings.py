"""The experiment weightings: methods on many splits at once, networks, batches, losses, and that it resumes."""

import json
import warnings

import pytest
import torch

from experiments.runs import Refusal
from torch_lapeig import KNN, HeatKernel, LabelSpreading, Precomputed, knn_graph, laplacian_smoothness

with warnings.catch_warnings():  # Lightning's imports warn of what is deprecated elsewhere
    warnings.simplefilter("ignore")
    pytest.importorskip("pytorch_lightning")
    from experiments.__main__ import main
    from experiments.data import Split, digits_points
    from experiments.fewlabels import (
        PLAIN,
        PRIOR,
        WEIGHTINGS,
        Method,
        Points,
        Transduction,
        known,
        labelled,
        nearest_label,
        new_points,
        predictions,
    )
    from experiments.smoothing import Classifier, FewLabels, Kind, SelfTraining, WithLabels, parts
    from experiments.training import QUIET, train
    from experiments.weightings import best_elsewhere, summaries, weightings
    from torch_lapeig.samplers import NeighborhoodSampler

FLAGS = {**QUIET, "accelerator": "cpu", "max_epochs": 2}


def quick(out, *more):
    main(["weightings", "--quick", "--trainer.accelerator", "cpu", "--out", str(out), *more])
    return json.loads((out / "metrics.json").read_text())


def test_a_graph_helps_with_few_labels_and_the_run_resumes(tmp_path, capsys):
    metrics = quick(tmp_path)
    on_graph, new = metrics["graph"]["digits"], metrics["new"]["digits"]
    recipe = metrics["recipe"]["name"]
    assert on_graph[recipe]["1"]["accuracy"]["mean"] > 0.8
    assert on_graph["pixels, 1-NN"]["1"]["difference"]["mean"] < -0.1
    assert new["recipe"]["1"]["accuracy"]["mean"] > new["alone"]["1"]["accuracy"]["mean"] > 0.3
    assert new["taught"]["1"]["difference"]["mean"] > -0.1
    assert (tmp_path / "weightings.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.rglob("*.ckpt"))
    cells = tmp_path / "cells.jsonl"
    lines = cells.read_text().splitlines(keepends=True)
    cells.write_text("".join(lines[:-2]))  # as after an interruption
    capsys.readouterr()
    resumed = quick(tmp_path)
    assert resumed["new"] == metrics["new"]
    assert "networks: 8 of 10 cells read" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------- methods on a graph


def some(n=300):
    return Points(*(part[:n] for part in digits_points()))


@pytest.mark.parametrize("kind", [("spreading", 0.9), ("harmonic", 0.0), ("regression", 12.0)], ids=str)
def test_many_splits_at_once_are_those_of_the_library_one_by_one(kind):
    x, labels = some()
    chosen = [labelled(labels, 2, seed) for seed in range(3)]
    way = Method("self_tuning", 7, "union", *kind)
    graph = way.weights()(x, way.rule()(x))
    found = predictions(way, graph, x, labels, chosen)
    for variant, of in found.items():
        for places, predicted in zip(chosen, of, strict=True):
            alone = way._replace(variant=variant).module().fit(x, known(labels, places)).predict()
            assert (predicted == alone).double().mean() > 0.99  # float32 scores may tie
    assert set(found) == ({PLAIN} if kind[0] == "regression" else {PLAIN, PRIOR})


def test_accuracy_leaves_labelled_points_out():
    x, labels = some()
    carry = Transduction(lambda name: Points(x, labels), lambda name, k, rule: KNN(k, rule)(x), [1, 3])
    found = carry("digits", 5, 2, *Method(kind="pixels").case)
    places = labelled(labels, 3, 6)
    rest = torch.ones(len(x), dtype=torch.bool).index_fill_(0, places, False)
    expected = (nearest_label(x[rest], x[places], labels[places]) == labels[rest]).double().mean()
    assert found["3"][PLAIN][1] == pytest.approx(float(expected))


def test_labels_are_of_every_class_and_the_others_unknown():
    labels = torch.arange(60) % 10
    chosen = labelled(labels, 2, 0)
    assert labels[chosen].tolist() == [c for c in range(10) for _ in range(2)]
    assert labelled(labels, 2, 1).tolist() != chosen.tolist()
    assert (known(labels, chosen) >= 0).sum() == 20


def test_new_points_are_seen_by_no_method():
    x, labels = some(200)
    split = Split(x[:150], labels[:150], x[150:], labels[150:])
    found = new_points(split, [2], 0, Method(variant=PRIOR))
    assert set(found) == {"pixels", "eigenmaps", "recipe"}
    fitted = LabelSpreading(class_prior="labels").fit(x[:150], known(labels[:150], labelled(labels[:150], 2, 0)))
    assert found["recipe"]["2"] == pytest.approx(float((fitted.predict(x[150:]) == labels[150:]).double().mean()))


def test_every_weighting_is_one_of_the_library():
    x = some(50).x
    for _, weighting in WEIGHTINGS.values():
        assert (weighting()(x, KNN(5)(x)).weight > 0).all()


# --------------------------------------------------------------------------------------------------------- networks


def tiny():
    generator = torch.Generator().manual_seed(0)
    pixels, classes = torch.rand(80, 64, generator=generator), torch.arange(80) % 10
    split = Split(pixels, classes, pixels[:10], classes[:10])
    return split, HeatKernel()(pixels, knn_graph(pixels, 10))


@pytest.mark.parametrize("batches", ["alone", "self", "own", "near"])
def test_batches_hold_labelled_images_and_what_their_kind_says(batches):
    split, graph = tiny()
    chosen = labelled(split.train_labels, 2, 0)
    few = FewLabels(split, graph, chosen, Kind(batches), 33, 4, 0)
    sampler = few.train_dataloader().sampler
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
        assert len(epochs[-1]) == len(sampler) == 4
        for batch in epochs[-1]:
            assert len(set(batch)) == len(batch)
            assert set(chosen.tolist()) <= set(batch)  # 20 are fewer than a batch has
            assert (batch == sorted(chosen.tolist())) == (batches == "alone")
            assert len(batch) <= 20 + 33
    assert (epochs[0] != epochs[1]) == (batches != "alone")
    sampler.set_epoch(0)
    assert list(sampler) == epochs[0]


def test_neighbourhoods_hold_neighbours():
    _, graph = tiny()
    sampler = WithLabels(torch.arange(3), NeighborhoodSampler(graph, 22, neighbors=10), 5, 0)
    edges = [len(graph.subgraph(torch.tensor(batch)).weight) / len(batch) for batch in sampler]
    random = [len(graph.subgraph(torch.randperm(80)[:22]).weight) / 22 for _ in range(5)]
    assert sum(edges) > 1.2 * sum(random)


@pytest.mark.parametrize("layer", ["softmax", "logits"])
@pytest.mark.parametrize("batches", ["own", "near"])
def test_the_loss_is_cross_entropy_and_smoothness_of_the_layer(batches, layer, tmp_path):
    split, graph = tiny()
    kind = Kind(batches, layer, 0.5)
    module, few, callbacks = parts(split, graph, 2, kind, 0, (33, 1), 1e-12, lambda known: known)
    losses = []
    module.on_before_backward = lambda loss: losses.append(float(loss))
    train(tmp_path, module, few, {**FLAGS, "max_epochs": 1}, 0, callbacks)
    sampler = few.train_dataloader().sampler
    sampler.set_epoch(0)
    nodes = torch.tensor(next(iter(sampler)))
    pixels, logits = split.train[nodes], module(split.train[nodes])
    y = logits.softmax(1) if layer == "softmax" else logits
    own = HeatKernel()(pixels, KNN(10)(pixels)) if batches == "own" else graph.subgraph(nodes)
    given = module.targets[nodes]
    entropy = -logits.log_softmax(1)[given >= 0, given[given >= 0]].mean()
    assert losses[0] == pytest.approx(float(entropy + 0.5 * laplacian_smoothness(y, own, "weighted_mean")), rel=1e-4)
    assert (given >= 0).sum() == 20


def test_self_training_takes_sure_predictions_and_keeps_what_is_given(tmp_path):
    split, graph = tiny()
    module, few, callbacks = parts(split, graph, 1, Kind("self"), 0, (33, 4), 1e-3, lambda known: known)
    given = module.targets.clone()
    with torch.no_grad():
        module.logits[-1].bias[3] = 50.0  # sure of class 3, whatever comes
    train(tmp_path, module, few, {**FLAGS, "max_epochs": 2}, 0, callbacks)
    assert isinstance(callbacks[0], SelfTraining)
    assert (module.targets[given >= 0] == given[given >= 0]).all()
    assert (module.targets[given < 0] == 3).all()


def test_a_taught_network_has_the_teachers_labels_but_for_those_that_are_given():
    split, graph = tiny()
    module, _, callbacks = parts(
        split, graph, 1, Kind("taught"), 0, (33, 1), 1e-3, lambda known: torch.full_like(known, 7)
    )
    chosen = labelled(split.train_labels, 1, 0)
    assert (module.targets[chosen] == split.train_labels[chosen]).all()
    assert (module.targets == 7).sum() == 80 - 9
    assert not callbacks
    again = parts(split, graph, 1, Kind("alone"), 0, (33, 1), 1e-3, lambda known: known)[0]
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("side", [8, 28])
def test_every_parameter_has_a_gradient(side):
    module = Classifier(side, torch.arange(10), 1e-3)
    module.softmax(module(torch.rand(10, side**2)))[:, 0].sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())


def test_layer_and_strength_are_those_of_the_other_set():
    kinds = [Kind(b, layer, s) for b in ("own", "near") for layer in ("softmax", "logits") for s in (0.1, 1.0)]
    best = {"digits": Kind("near", "logits", 0.1), "mnist": Kind("near", "softmax", 1.0)}
    swept = {(name, 10, kind, seed): float(best[name] == kind) for name in best for kind in kinds for seed in (0, 1)}
    sets = list(best)
    assert best_elsewhere(swept, "digits", sets, [0.1, 1.0], 10)[1] == best["mnist"]
    assert best_elsewhere(swept, "mnist", sets, [0.1, 1.0], 10)[1] == best["digits"]
    assert best_elsewhere(swept, "mnist", ["mnist"], [0.1, 1.0, 2.0], 10)[1] == Kind("near", "softmax", 1.0)


def test_differences_are_paired():
    of = {m: {"1": [a + s / 10 for s in range(3)]} for m, a in {"recipe": 0.1, "b": 0.3}.items()}
    assert summaries(of, "recipe")["b"]["1"]["difference"]["mean"] == pytest.approx(0.2)
    assert summaries(of, "recipe")["b"]["1"]["difference"]["interval"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sets": ["cifar"]}, "--sets must be of digits, mnist, got cifar"),
        ({"splits": 1}, "--splits must be at least 2"),
        ({"trainings": 1}, "--trainings must be at least 2"),
        ({"labels": [0, 10]}, "--labels must be at least 1"),
        ({"labels": [10, 130]}, "--labels must be at most 100"),
        ({"tuned_at": 7}, "--tuned_at must be one of --labels"),
        ({"strengths": [0.0]}, "--strengths must be at least"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, tmp_path):
    with pytest.raises(Refusal, match=message):
        weightings(tmp_path, **arguments)


def test_missing_mnist_is_refused(tmp_path):
    with pytest.raises(Refusal, match="t10k-images"):
        weightings(tmp_path / "run", sets=["mnist"], data_dir=tmp_path)


def test_given_affinities_are_the_graphs():
    x, labels = some(100)
    graph = HeatKernel()(x, KNN(10)(x))
    scores = LabelSpreading(Precomputed("affinity"))(graph, known(labels, labelled(labels, 1, 0)))
    torch.testing.assert_close(scores, LabelSpreading()(x, known(labels, labelled(labels, 1, 0))))
