"""The scikit-learn estimators: scikit-learn's own checks, agreement with its estimators, new samples, dtypes."""

import importlib
import inspect
import pickle
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from sklearn import cluster, decomposition, manifold
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsTransformer
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from problems import DEVICES, covering, points, swiss_roll
from torch_lapeig import KNN, DensityCorrected, GraphWarning, HeatKernel, LaplacianEigenmaps, SimpleWeights
from torch_lapeig import sklearn as estimators
from torch_lapeig.sklearn import Isomap, KernelPCA, LabelSpreading, SpectralClustering, SpectralEmbedding

ROOT = Path(__file__).parents[1]
X = points(150, 4).numpy()
UNLABELLED = {"check_classifiers_classes": "−1 is no class, as of scikit-learn's two, which the check knows by name"}
AFFINITY = HeatKernel()(torch.from_numpy(X), KNN(10)(torch.from_numpy(X))).to_dense().numpy()
TABLE = re.findall(r"^\| `(\w+)` \| `(\w+)\.(\w+)` (\|.*)\|$", (ROOT / "docs" / "sklearn.md").read_text(), re.MULTILINE)
REFUSED = {"method": "hessian", "kernel_params": {"a": 1}, "fit_inverse_transform": True, "norm_laplacian": False}
CHECKED = [SpectralEmbedding(n_neighbors=6, components="separate"), SpectralEmbedding(affinity="rbf")]
CHECKED += [SpectralClustering(affinity="nearest_neighbors", n_neighbors=6), estimators.ClassicalMDS(), KernelPCA()]
CHECKED += [estimators.HarmonicFunction(), estimators.HarmonicRegressor()]
CHECKED += [LabelSpreading("knn", n_neighbors=4, alpha=0.5)]
WEIGHTS = [None, SimpleWeights(), HeatKernel(2.0), DensityCorrected()]


@pytest.mark.parametrize("estimator", CHECKED, ids=lambda estimator: type(estimator).__name__)
def test_estimator_checks(estimator):
    failing = UNLABELLED if isinstance(estimator, estimators.HarmonicFunction) else {}
    check_estimator(estimator, expected_failed_checks=failing, on_skip=None)


# Some of the checks embed three blobs far apart, of which the default warns, rightly.
@pytest.mark.filterwarnings(
    "ignore:the neighbourhood graph has . connected components:torch_lapeig.GraphWarning",
    "ignore:The number of connected components of the neighbors graph is:torch_lapeig.GraphWarning",
    "ignore:. eigenvalues after that of the constant:torch_lapeig.GraphWarning",
)
@pytest.mark.parametrize("estimator", [SpectralEmbedding(), Isomap(), estimators.LocallyLinearEmbedding()], ids=repr)
def test_estimator_checks_of_graphs(estimator):
    check_estimator(estimator, on_skip=None)


@pytest.mark.parametrize(("name", "room", "peer", "cells"), TABLE, ids=[row[0] for row in TABLE])
def test_the_table_of_parameters_is_scikit_learns_signature(name, room, peer, cells):
    """Shared parameters have equal defaults; accepted ones are parameters; refused ones raise by name."""
    theirs = getattr(importlib.import_module(f"sklearn.{room}"), peer, None)
    if theirs is None:
        pytest.skip(f"this scikit-learn has no {peer}")
    ours = getattr(estimators, name)
    same, differing, idle, refused = (re.findall(r"`(\w+)`", cell) for cell in cells.split("|")[1:])
    expected, here = (inspect.signature(kind).parameters for kind in (theirs, ours))
    assert sorted(same + differing + idle + refused) == sorted(expected)
    assert [here[key].default for key in same] == [expected[key].default for key in same]
    assert {*differing, *idle} <= here.keys()
    call = partial(ours, AFFINITY) if inspect.isfunction(ours) else lambda **options: ours(**options).fit(X)
    for key in refused:
        with pytest.raises(ValueError, match=f"^{key} must be .* got "):
            call(**{key: REFUSED[key]})


def test_the_table_has_every_public_name():
    assert sorted(row[0] for row in TABLE) == sorted(estimators.__all__)


IDLE = [(SpectralEmbedding(affinity="rbf"), "n_neighbors"), (SpectralClustering(2), "n_neighbors")]
IDLE += [(SpectralClustering(2, affinity="nearest_neighbors"), "gamma"), (SpectralClustering(2), "degree")]
IDLE += [(SpectralEmbedding(), "n_jobs"), (LabelSpreading(), "n_neighbors"), (LabelSpreading("knn"), "gamma")]
IDLE += [(estimators.HarmonicFunction(), "n_neighbors"), (LabelSpreading("knn"), "max_iter")]


@pytest.mark.parametrize(("face", "name"), IDLE, ids=str)
def test_parameters_without_a_part_are_checked(face, name):
    y = np.where(np.arange(len(X)) < 6, np.arange(len(X)) % 2, -1)
    for value in ("x", 2.5 if name in ("n_neighbors", "n_jobs", "max_iter") else np.nan, -(2**40)):
        with pytest.raises((TypeError, ValueError), match=f"^{name} must be"):
            clone(face).set_params(**{name: value}).fit(X, y)


@pytest.mark.parametrize("weights", WEIGHTS, ids=repr)
def test_parameters_reach_the_module(weights):
    module = LaplacianEigenmaps(3, KNN(7), weights or SimpleWeights()).fit(torch.from_numpy(X))
    model = SpectralEmbedding(3, n_neighbors=8, weights=weights).fit(X)  # of which it is one
    np.testing.assert_array_equal(model.embedding_, module.embedding_)
    np.testing.assert_array_equal(model.eigenvalues_, module.eigenvalues_)
    np.testing.assert_array_equal(model.residuals_, module.residuals_)
    assert model.n_features_in_ == 4
    expected = module.weights(module.train_points, KNN(7)(module.train_points)).to_dense().numpy()
    diagonal = np.eye(150) if weights is None else 0
    np.testing.assert_array_equal(model.affinity_matrix_.toarray(), expected + diagonal)


ROLL, NEW = swiss_roll(300).numpy(), swiss_roll(20, seed=1).numpy()
CLASSICAL_MDS, LLE = getattr(manifold, "ClassicalMDS", None), {"n_neighbors": 12, "reg": 1e-2}
PEERS = {
    "ClassicalMDS": (estimators.ClassicalMDS(3), CLASSICAL_MDS(3) if CLASSICAL_MDS else None),
    "Isomap": (Isomap(n_neighbors=8), manifold.Isomap(n_neighbors=8)),
    "Isomap, radius": (Isomap(n_neighbors=None, radius=8.0), manifold.Isomap(n_neighbors=None, radius=8.0)),
    "LLE": (estimators.LocallyLinearEmbedding(**LLE), manifold.LocallyLinearEmbedding(**LLE, eigen_solver="dense")),
    "linear": (KernelPCA(2), decomposition.KernelPCA(2)),
    "all": (KernelPCA(remove_zero_eig=True), decomposition.KernelPCA()),
    "cosine": (KernelPCA(2, kernel="cosine"), decomposition.KernelPCA(2, kernel="cosine")),
    "rbf": (KernelPCA(3, kernel="rbf", gamma=0.02), decomposition.KernelPCA(3, kernel="rbf", gamma=0.02)),
    "poly": (KernelPCA(2, kernel="poly", degree=2), decomposition.KernelPCA(2, kernel="poly", degree=2)),
}
every_peer = pytest.mark.parametrize("name", PEERS)


@every_peer
def test_agrees_with_their_estimator_of_the_same_name(name):
    ours, theirs = PEERS[name]
    if theirs is None:
        pytest.skip(f"scikit-learn before 1.8 has no {name}")
    assert type(ours).__name__ == type(theirs).__name__
    y, expected = ours.fit_transform(ROLL), theirs.fit_transform(ROLL)
    signs = np.sign((y * expected).sum(0))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(y, signs * expected, atol=1e-5 * scale)
    if name != "ClassicalMDS":  # which has none
        np.testing.assert_allclose(ours.transform(NEW), signs * theirs.transform(NEW), atol=1e-5 * scale)


@covering(2, name=PEERS.keys(), dtype=[np.float32, np.float64], device=DEVICES)
def test_embeddings_of_training_and_new_samples(name, dtype, device):
    model = clone(PEERS[name][0]).set_params(device=device).fit(ROLL.astype(dtype))
    y = model.transform(ROLL.astype(dtype))
    assert y.dtype == model.embedding_.dtype == model.eigenvalues_.dtype == model.residuals_.dtype == dtype
    tolerance = np.abs(model.embedding_).max() * (1e-9 if dtype == np.float64 else 1e-3)
    np.testing.assert_allclose(y, model.embedding_, atol=tolerance)
    k = model.n_components or 3
    assert model.embedding_.shape == (300, k)
    assert model.eigenvalues_.shape == model.residuals_.shape == (k,)
    assert model.n_features_in_ == 3
    assert list(model.get_feature_names_out()) == [f"{type(model).__name__.lower()}{i}" for i in range(k)]
    assert model.transform(NEW).dtype == dtype
    with pytest.raises(NotFittedError):
        clone(model).transform(NEW)


NEIGHBOURS_OF_PARTS = KNeighborsTransformer(n_neighbors=6).fit_transform(np.concatenate([X[:40], X[:40] + 50]))
DISTANCES, TO_NEW = cdist(ROLL, ROLL), cdist(NEW, ROLL)
FAR = np.concatenate([ROLL[:100], ROLL[100:200] + 90, ROLL[200:] - 80])
METRICS = [
    (ROLL, NEW, {"metric": "manhattan", "path_method": "FW"}),
    (ROLL, NEW, {"p": 3, "neighbors_algorithm": "brute"}),
    (ROLL, NEW, {"metric": "seuclidean", "metric_params": {"V": ROLL.var(0)}}),
    (csr_array(ROLL), csr_array(NEW), {}),
    (DISTANCES, TO_NEW, {"metric": "precomputed"}),
    (FAR, NEW, {}),
]


@pytest.mark.filterwarnings("ignore:The number of connected components", "ignore:Changing the sparsity structure")
@pytest.mark.parametrize(("x", "new", "options"), METRICS, ids=lambda value: str(value)[:20])
def test_isomap_of_any_metric_of_sparse_samples_and_of_several_components(x, new, options):
    ours, theirs = Isomap(**options).fit(x), manifold.Isomap(**options).fit(x)
    np.testing.assert_allclose(ours.dist_matrix_, theirs.dist_matrix_, rtol=1e-12)
    signs = np.sign((ours.embedding_ * theirs.embedding_).sum(0))
    np.testing.assert_allclose(ours.embedding_, signs * theirs.embedding_, atol=1e-8)
    np.testing.assert_allclose(ours.transform(new), signs * theirs.transform(new), atol=1e-8)
    np.testing.assert_allclose(ours.reconstruction_error(), theirs.reconstruction_error())


def test_isomap_says_that_it_joins_components():
    with pytest.warns(GraphWarning, match="number of connected components of the neighbors graph is 3 > 1"):
        Isomap().fit(FAR)
    with pytest.raises(RuntimeError, match="sparse distances do not join them"):
        Isomap(metric="precomputed").fit(NEIGHBOURS_OF_PARTS)


def test_functions_are_those_of_scikit_learn():
    ours, theirs = (abs(of.spectral_embedding(AFFINITY, n_components=3)) for of in (estimators, manifold))
    np.testing.assert_allclose(ours, theirs, atol=1e-8)
    ours = estimators.spectral_clustering(AFFINITY, n_clusters=4, random_state=0)
    assert adjusted_rand_score(ours, cluster.spectral_clustering(AFFINITY, n_clusters=4, random_state=0)) == 1


def test_in_a_pipeline_and_a_grid_search():
    """Held-out samples are embedded by transform, and parameters may be NumPy's numbers."""
    x, y = make_moons(200, noise=0.15, random_state=0)
    grid = {"spectralembedding__n_components": np.array([2, 4]), "spectralembedding__n_neighbors": np.array([8, 11])}
    search = GridSearchCV(make_pipeline(SpectralEmbedding(), KNeighborsClassifier(5)), grid, cv=3).fit(x, y)
    assert search.best_score_ > 0.95
    assert list(search.best_estimator_[0].get_feature_names_out())[:2] == ["spectralembedding0", "spectralembedding1"]
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict(x), search.best_estimator_.predict(x))


def test_disconnected_samples():
    x = np.concatenate([X[:40], X[40:90] + 50])
    with pytest.warns(GraphWarning, match='2 connected components.*components="separate"'):
        joint = SpectralEmbedding(n_neighbors=11).fit(x)
    assert joint.embedding_[:40, 0].std() < 1e-12
    separate = SpectralEmbedding(n_neighbors=11, components="separate").fit(x)
    assert separate.eigenvalues_.shape == separate.residuals_.shape == (2, 2)
    np.testing.assert_allclose(separate.transform(x), separate.embedding_, atol=1e-9)
    with pytest.raises(ValueError, match="2 connected components"):
        SpectralEmbedding(n_neighbors=11, components="error").fit(x)
    labels = SpectralClustering(2, affinity="nearest_neighbors").fit_predict(x)
    assert adjusted_rand_score(labels, np.arange(90) < 40) == 1


def test_importing_without_scikit_learn(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch_lapeig.sklearn")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ImportError, match=r"pip install .scikit-learn"):
        importlib.import_module("torch_lapeig.sklearn")


def test_masked_entries_are_refused():
    """NumPy's masked arrays lose their mask in scikit-learn's checks: what was hidden would count."""
    x = np.ma.masked_greater(np.random.default_rng(0).normal(size=(30, 3)), 1.5)
    for estimator in (SpectralEmbedding, estimators.ClassicalMDS, Isomap, KernelPCA):
        with pytest.raises(ValueError, match="X must have no masked entries, got"):
            estimator().fit(x)
    with pytest.raises(ValueError, match="y must have no masked entries, got 1"):
        estimators.HarmonicFunction().fit(x.data, np.ma.masked_equal(np.arange(30), 7))
