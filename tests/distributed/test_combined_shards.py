"""The table of combinations on sharded rows, of one process: methods, rules and weightings; graphs; eigenpairs."""

import pytest
from combined import METHODS, OF_POINTS, RULES, K, Made, N, laplacian, sheet
from test_combinations import OF_GRAPHS, OF_PAIRS, close, first_words, quietly, with_weightings, wrong_cells

from problems import grams, saved_and_loaded
from torch_lapeig import KNN, HeatKernel, Laplacian, LaplacianSmoothness, SpectralLoss, eigenpairs
from torch_lapeig.distributed import Sharded


def columns(make):
    x = sheet(N)
    close(grams(Sharded(make())(x)), grams(make()(x)))


def transform(make):
    x, new = sheet(N), sheet(6, seed=1)
    close(grams(Sharded(make()).fit(x).transform(new)), grams(make().fit(x).transform(new)))


def state_dict(make):
    x, new = sheet(N), sheet(6, seed=1)
    other = Sharded(make())
    other.load_state_dict(saved_and_loaded(make().fit(x).state_dict()))
    close(other.transform(new), make().fit(x).transform(new))
    back = make()
    back.load_state_dict(Sharded(make()).fit(x).state_dict())
    close(grams(back.transform(new)), grams(make().fit(x).transform(new)))


OF_SHARDED = {"Sharded": columns, "Sharded, transform": transform, "Sharded, state_dict": state_dict}


@quietly
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", METHODS)
def test_methods_rules_and_weightings(method, rule):
    wrong = []
    for weighting, make, kinds in with_weightings(method, rule):
        found = wrong_cells(kinds, OF_SHARDED, lambda consume: consume(make))  # noqa: B023
        wrong += [f"{weighting}, {one}" for one in found]
    assert not wrong, "\n".join(wrong)


@quietly
@pytest.mark.parametrize("name", OF_POINTS)
def test_methods_of_points(name):
    assert not (wrong := wrong_cells(first_words(name), OF_SHARDED, lambda consume: consume(OF_POINTS[name]))), wrong


def test_losses():
    x, y = sheet(N), sheet(N, seed=1)[:, :2]
    for loss in (LaplacianSmoothness(KNN(6)), SpectralLoss(KNN(6))):
        close(Sharded(loss)(y, x), loss(y, x))


def graph():
    points, value = Sharded(LaplacianSmoothness(KNN(6), HeatKernel(0.5))).graph_of(sheet(N))
    matrix = HeatKernel(0.5)(sheet(N), KNN(6)(sheet(N))).to_dense()
    return Made(value, {"affinities", "sharded graph"}, matrix[points.numbers][:, points.numbers])


def pairs():
    made = graph()
    degrees = made.matrix[0].sum(1)
    value = eigenpairs(Laplacian(made.value, "random_walk"), K)
    assert value.is_sharded
    return Made(value, {"sharded pairs"}, laplacian(made.matrix[0]), degrees)


@quietly
@pytest.mark.parametrize(("make", "consumers"), [(graph, OF_GRAPHS), (pairs, OF_PAIRS)], ids=["graph", "pairs"])
def test_computations(make, consumers):
    of_rows = {name: consume for name, consume in consumers.items() if not name.startswith("plot")}
    wrong = wrong_cells(make().kinds, of_rows, lambda consume: consume(make()))
    assert not wrong, "\n".join(wrong)
