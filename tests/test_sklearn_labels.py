"""scikit-learn faces of semi-supervised methods: agreement with its own at the limit, classes, new samples."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn import semi_supervised

from problems import points
from torch_lapeig import KNN, GraphWarning, HeatKernel, Precomputed, SimpleWeights, methods
from torch_lapeig.sklearn import HarmonicFunction, HarmonicRegressor, LabelSpreading

X = points(90, 3).numpy()
Y = np.full(90, -1)
Y[:15] = np.arange(15) % 3
NEW = points(12, 3, seed=1).numpy()
LIMIT = {"max_iter": 100_000, "tol": 1e-13}


def exponential(x, Y=None):
    """A kernel of one set of samples or of two, which scikit-learn takes."""
    return np.exp(-np.abs(x[:, None] - (x if Y is None else Y)).sum(-1))


@pytest.mark.parametrize("options", [{"kernel": "rbf", "gamma": 0.7}, {"kernel": exponential}], ids=["rbf", "own"])
@pytest.mark.parametrize("alpha", [0.2, 0.9, 0.99, None])
def test_scores_are_the_limit_of_theirs(alpha, options):
    """Of label spreading, and without an alpha those of label propagation, which are harmonic functions."""
    if alpha is None:
        theirs, ours = semi_supervised.LabelPropagation(**options, **LIMIT), HarmonicFunction(**options)
    else:
        theirs = semi_supervised.LabelSpreading(**options, alpha=alpha, **LIMIT)
        ours = LabelSpreading(**options, alpha=alpha)
    theirs, ours = theirs.fit(X, Y), ours.fit(X, Y)
    np.testing.assert_allclose(ours.label_distributions_, theirs.label_distributions_, atol=1e-8)
    np.testing.assert_array_equal(ours.transduction_, theirs.transduction_)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)


@pytest.mark.parametrize("kind", [LabelSpreading, HarmonicFunction])
def test_kernels_of_one_set_of_samples_or_of_two(kind):
    model = kind(lambda a, b: exponential(a, b)).fit(X, Y)
    of_one = kind(lambda a: exponential(a)).fit(X, Y)
    np.testing.assert_array_equal(of_one.scores_, model.scores_)
    with pytest.raises(TypeError, match="must be a function that takes Y"):
        of_one.predict(NEW)
    by_name = kind(lambda a, *, Y=None: exponential(a, Y)).fit(X, Y)
    np.testing.assert_array_equal(by_name.predict(NEW), model.predict(NEW))


@pytest.mark.filterwarnings("ignore:max_iter=2000 was reached")
def test_every_sample_that_a_path_reaches_has_the_label_of_the_limit():
    """Among 300 points in a row, scores of the farthest are 1e-150 of the scores of the nearest."""
    x, y = np.arange(300.0)[:, None], np.full(300, -1)
    y[[0, 180]] = 0, 1
    theirs = semi_supervised.LabelSpreading(gamma=1.0, max_iter=2000, tol=0).fit(x, y)
    ours = LabelSpreading(gamma=1.0).fit(x, y)
    assert (ours.transduction_ >= 0).all()
    np.testing.assert_array_equal(ours.transduction_, theirs.transduction_)
    np.testing.assert_allclose(ours.label_distributions_, theirs.label_distributions_, atol=1e-6)


@pytest.mark.parametrize("prior", ["labels", "uniform", (0.2, 0.3, 0.5)], ids=str)
@pytest.mark.parametrize("kind", [LabelSpreading, HarmonicFunction])
def test_class_priors_reach_the_module(kind, prior):
    model = kind("knn", n_neighbors=6, weights=HeatKernel(), class_prior=prior).fit(X, Y)
    options, method = {"alpha": 0.2} if kind is LabelSpreading else {}, getattr(methods, kind.__name__)
    module = method(KNN(6), HeatKernel(), class_prior=prior, **options).fit(torch.from_numpy(X), torch.from_numpy(Y))
    np.testing.assert_array_equal(model.scores_, module.scores_.numpy())
    np.testing.assert_array_equal(model.predict(NEW), module.predict(torch.from_numpy(NEW)).numpy())
    plain = kind("knn", n_neighbors=6, weights=HeatKernel()).fit(X, Y).scores_
    assert not np.allclose(model.scores_, plain)


@pytest.mark.parametrize("kernel", ["rbf", "knn", exponential, lambda a, b: exponential(a, b)])
@pytest.mark.parametrize("kind", [LabelSpreading, HarmonicFunction])
def test_training_samples_keep_their_scores_and_new_ones_have_shares(kind, kernel):
    model = kind(kernel, **({"gamma": 0.7} if kernel == "rbf" else {})).fit(X, Y)
    np.testing.assert_allclose(model.predict_proba(X), model.label_distributions_, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), model.transduction_)
    shares = model.predict_proba(NEW)
    np.testing.assert_allclose(shares.sum(1), 1)
    np.testing.assert_array_equal(model.predict(NEW), model.classes_[shares.argmax(1)])


def test_classes_may_be_of_any_type_and_minus_one_is_no_label():
    names = np.array(["a", "b", "c"], dtype=object)
    y = np.where(Y < 0, -1, names[Y])
    model = LabelSpreading("knn").fit(X, y)
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert set(model.transduction_) <= {"a", "b", "c"}
    for mark in (None, np.nan, "-1"):
        other = LabelSpreading("knn").fit(X, np.where(Y < 0, np.array(mark, dtype=object), y))
        assert (other.transduction_ == model.transduction_).all()
    for marked in ([None if one < 0 else int(one) for one in Y], [names[one] if one >= 0 else "-1" for one in Y]):
        other = LabelSpreading("knn").fit(X, marked)  # lists of numbers and of words
        expected = np.asarray(other.classes_)[model.label_distributions_.argmax(1)]
        assert (other.transduction_.astype(str) == expected.astype(str)).all()
    flags = LabelSpreading("knn").fit(X, [bool(one > 0) if one >= 0 else None for one in Y])
    assert flags.classes_.dtype == flags.transduction_.dtype == bool
    other = LabelSpreading("knn").fit(X, np.where(Y < 0, np.nan, Y))
    assert (model.classes_[other.transduction_.astype(int)] == model.transduction_).all()
    far = np.concatenate([X, X + 1e3])
    with pytest.warns(GraphWarning, match="90 of 180 nodes lie in components"):
        model = LabelSpreading("knn").fit(far, np.concatenate([y, np.full(90, -1)]))
    assert (model.transduction_[90:] == -1).all()
    assert not model.predict_proba(far)[90:].any()


@pytest.mark.parametrize("kernel", ["rbf", "knn", exponential])
def test_the_regressor_is_the_module_with_numbers(kernel):
    """None and NaN are unknown; known samples keep their numbers; several columns are each as alone."""
    y = np.where(np.arange(90) % 5 == 0, X @ [1.0, -2.0, 0.5], np.nan)
    options = {"n_neighbors": 12} if kernel == "knn" else {"gamma": 0.7} if kernel == "rbf" else {}
    model = HarmonicRegressor(kernel, **options).fit(X, [None if np.isnan(one) else one for one in y])
    known = ~np.isnan(y)
    np.testing.assert_allclose(model.predict(X)[known], y[known], rtol=1e-12)
    graph = exponential(X) if kernel is exponential else np.exp(-0.7 * cdist(X, X, "sqeuclidean"))
    given = torch.from_numpy(graph - np.eye(90)), torch.from_numpy(y)
    module = methods.HarmonicFunction(Precomputed("affinity"))
    if kernel == "knn":
        given, module = (torch.from_numpy(X), given[1]), methods.HarmonicFunction(KNN(12), SimpleWeights())
    expected = module(given[0], targets=given[1])
    np.testing.assert_allclose(model.predict(X), expected, atol=1e-10)
    assert model.scores_.shape == (90, 1)
    both = HarmonicRegressor(kernel, **options).fit(X, np.stack([y, 3 - y], 1))
    np.testing.assert_allclose(both.predict(NEW), np.stack([model.predict(NEW), 3 - model.predict(NEW)], 1), atol=1e-9)
    assert model.score(X[known], y[known]) == 1
    with pytest.raises(ValueError, match="targets must hold at least one target"):
        HarmonicRegressor().fit(X, np.full(90, np.nan))
