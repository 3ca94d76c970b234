"""The experiment weightings: methods on many splits at once, networks, batches."""

from itertools import islice

import pytest
import torch

from experiments.data import Split, digits_points
from experiments.fewlabels import PLAIN, PRIOR, Method, Points, known, labelled, predictions
from experiments.smoothing import Kind, Problem, Schedule, accuracy, batches_of, trained
from problems import short_form


def test_a_graph_helps_with_few_labels(tmp_path):
    metrics = short_form("weightings", tmp_path)
    on_graph, new = metrics["graph"]["digits"], metrics["new"]["digits"]
    recipe = metrics["recipe"]["name"]
    assert on_graph[recipe]["1"]["accuracy"]["mean"] > 0.8
    assert on_graph["pixels, 1-NN"]["1"]["difference"]["mean"] < -0.1
    assert new["recipe"]["1"]["accuracy"]["mean"] > new["alone"]["1"]["accuracy"]["mean"] > 0.3
    assert new["taught"]["1"]["difference"]["mean"] > -0.1
    assert (tmp_path / "weightings.png").read_bytes().startswith(b"\x89PNG")


def some(n=300):
    return Points(*(part[:n] for part in digits_points()))


@pytest.mark.parametrize("kind", [("spreading", 0.9), ("harmonic", 0.0), ("regression", 12.0)], ids=str)
def test_many_splits_at_once_equal_the_library_one_by_one(kind):
    x, labels = some()
    chosen = [labelled(labels, 2, seed) for seed in range(3)]
    way = Method("self_tuning", 7, "union", *kind)
    found = predictions(way, way.weights()(x, way.rule()(x)), x, labels, chosen)
    for variant, of in found.items():
        for places, predicted in zip(chosen, of, strict=True):
            alone = way._replace(variant=variant).module().fit(x, known(labels, places)).predict()
            assert (predicted == alone).double().mean() > 0.99  # float32 scores may tie
    assert set(found) == ({PLAIN} if kind[0] == "regression" else {PLAIN, PRIOR})


@pytest.mark.parametrize("batches", ["alone", "self", "own", "near"])
def test_batches_hold_labelled_images_and_those_of_their_kind(batches):
    pixels, classes = torch.rand(80, 64, generator=torch.Generator().manual_seed(0)), torch.arange(80) % 10
    problem = Problem.of(Split(pixels, classes, pixels[:10], classes[:10]))
    chosen = labelled(problem.split.train_labels, 2, 0)

    def first(seed, count=6):
        return list(islice(batches_of(problem, chosen, Kind(batches), Schedule(6, 33, 1e-3), seed), count))

    for batch in first(0):
        assert len(batch.unique()) == len(batch) <= 20 + 33
        assert set(chosen.tolist()) <= set(batch.tolist())  # 20 are fewer than a batch may have
        assert (len(batch) == 20) == (batches == "alone")
    assert all(map(torch.equal, first(0), first(0)))
    assert all(map(torch.equal, first(0), first(1))) == (batches == "alone")
    if batches == "near":
        edges, random = (
            sum(len(problem.graph.subgraph(nodes).weight) / len(nodes) ** 2 for nodes in of)
            for of in (first(0), [torch.randperm(80)[: len(batch)] for batch in first(0)])
        )
        assert edges > 1.1 * random


@pytest.mark.parametrize("kind", ["alone", "self", "taught", "own", "near"])
def test_trainings_learn_and_are_the_same_again(kind):
    problem = Problem.of(Split(*(part for half in (some(400), some(400)) for part in half)))
    kind, schedule = Kind(kind, "softmax", 0.1), Schedule(40, 64, 3e-3)
    models = [trained(problem, 5, kind, 0, schedule, lambda known: problem.split.train_labels) for _ in range(2)]
    assert accuracy(models[0], problem.split) == accuracy(models[1], problem.split) > 0.5
    asked = []
    trained(problem, 5, kind, 0, Schedule(2, 64, 3e-3), lambda known: asked.append(known) or known.clamp_min(0))
    assert [int((known >= 0).sum()) for known in asked] == ([50] if kind.batches == "taught" else [])
