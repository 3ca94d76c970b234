"""Spectral embedding and clustering in the place of scikit-learn's: same graphs, same columns, same labels."""

import copy
import pickle
import warnings

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.sparse import coo_matrix, csc_array, csr_array, csr_matrix, issparse
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.cluster import SpectralClustering as TheirClustering
from sklearn.datasets import load_digits, make_blobs, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.manifold import SpectralEmbedding as TheirEmbedding
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from sklearn.neighbors import KNeighborsTransformer, kneighbors_graph

from problems import covering, points
from torch_lapeig import DensityCorrected, GraphWarning, HeatKernel, Solve
from torch_lapeig import sklearn as estimators
from torch_lapeig.eigen import Eigh
from torch_lapeig.sklearn import SpectralClustering, SpectralEmbedding

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])

X, NEW = points(160, 3).numpy(), points(15, 3, seed=1).numpy()
SPARSE = csr_array(np.where(abs(X) > 0.3, X, 0) + 2 * np.eye(160, 3))
MOONS = make_moons(200, noise=0.06, random_state=0)
BLOBS = make_blobs(150, centers=[[0, 0], [8, 0], [0, 8]], random_state=0)
DISTANCES = cdist(X, X)
KNN_DISTANCES = KNeighborsTransformer(n_neighbors=14).fit_transform(X)
KERNEL = rbf_kernel(X, gamma=0.7)


def of_two_samples(x, y, scale=1.0):
    return np.exp(-scale * abs(x - y).sum())


GIVEN = {"affinity": "precomputed_nearest_neighbors", "n_neighbors": 12}
# Parameters, what is fitted, and what stands for new samples.
EMBEDDINGS = {
    "a tenth": ({}, X, NEW),
    "neighbors": ({"n_neighbors": 11}, X, NEW),
    "rbf": ({"affinity": "rbf"}, X, NEW),
    "gamma": ({"affinity": "rbf", "gamma": 0.7}, X, NEW),
    "sparse rbf": ({"affinity": "rbf", "gamma": 0.7}, SPARSE, SPARSE[:9] * 0.9),
    "callable": ({"affinity": laplacian_kernel}, X, NEW),
    "precomputed": ({"affinity": "precomputed"}, KERNEL, rbf_kernel(NEW, X, gamma=0.7)),
    "sparse": ({"affinity": "precomputed"}, csr_array(np.where(KERNEL > 0.05, KERNEL, 0)), csr_array(KERNEL[:9] / 2)),
    "distances": (GIVEN, DISTANCES, cdist(NEW, X)),
    "sparse distances": (GIVEN, KNN_DISTANCES, KNeighborsTransformer(n_neighbors=14).fit(X).transform(NEW)),
    "distances without itself": (GIVEN | {"n_neighbors": 10}, kneighbors_graph(X, 14, mode="distance"), cdist(NEW, X)),
}
CLUSTERINGS = {
    "rbf": ({}, *BLOBS),
    "neighbors": ({"affinity": "nearest_neighbors"}, *BLOBS),
    "sparse neighbors": ({"affinity": "nearest_neighbors"}, csr_array(BLOBS[0]), BLOBS[1]),
    "moons": ({"affinity": "nearest_neighbors", "n_neighbors": 15}, MOONS[0], None),
    "laplacian": ({"affinity": "laplacian", "gamma": 0.5}, *BLOBS),
    "polynomial": ({"affinity": "poly", "degree": 4, "coef0": 2}, BLOBS[0] + 4, None),
    "cosine": ({"affinity": "cosine"}, BLOBS[0] + 4, None),
    "chi2": ({"affinity": "chi2", "gamma": 0.3}, BLOBS[0] + 4, None),
    "of two samples": ({"affinity": of_two_samples, "kernel_params": {"scale": 0.5}}, *BLOBS),
    "precomputed": ({"affinity": "precomputed"}, rbf_kernel(BLOBS[0]), BLOBS[1]),
    "distances": ({"affinity": "precomputed_nearest_neighbors"}, cdist(BLOBS[0], BLOBS[0]), BLOBS[1]),
}
every_embedding = pytest.mark.parametrize("name", EMBEDDINGS)
WAYS = ["kmeans", "cluster_qr", "discretize"]
every_way = pytest.mark.parametrize("how", WAYS)


def dense(matrix):
    return matrix.toarray() if issparse(matrix) else np.asarray(matrix)


def fitted(model, theirs, x):
    """Both, fitted to the same; scikit-learn warns of parts where ours says nothing in clustering."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Graph is not fully connected")
        warnings.filterwarnings("ignore", "Precomputed sparse input was not sorted")
        return model.fit(x), theirs.fit(x)


@both_dtypes
@every_embedding
def test_embedding_equals_scikit_learn(name, dtype):
    """Graph entry by entry; columns up to their signs, of the same scale."""
    parameters, x, _ = EMBEDDINGS[name]
    ours, theirs = fitted(SpectralEmbedding(3, **parameters), TheirEmbedding(3, **parameters), x.astype(dtype))
    assert ours.embedding_.dtype == dtype
    single = dtype == np.float32
    matrix, expected = dense(ours.affinity_matrix_), dense(theirs.affinity_matrix_)
    np.testing.assert_allclose(matrix, expected, rtol=0, atol=1e-6 if single else 1e-12)
    signs = np.sign((ours.embedding_ * theirs.embedding_).sum(0))
    scale = abs(theirs.embedding_).max()
    tolerance = 1e-3 if single else 1e-9
    np.testing.assert_allclose(ours.embedding_ * signs, theirs.embedding_, rtol=0, atol=tolerance * scale)
    if hasattr(theirs, "n_neighbors_"):
        assert ours.n_neighbors_ == theirs.n_neighbors_


@both_dtypes
@every_embedding
def test_new_samples(name, dtype):
    """A training sample keeps its row, a new one gets the mean of its neighbours' over 1 − λ."""
    parameters, x, new = EMBEDDINGS[name]
    model = SpectralEmbedding(3, **parameters).fit(x.astype(dtype))
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(model.transform(x.astype(dtype)), model.embedding_, rtol=0, atol=tolerance)
    y = model.transform(new.astype(dtype))
    assert (y.dtype, y.shape) == (dtype, (new.shape[0], 3))
    assert abs(y).max() < 2 * abs(model.embedding_).max()
    again = pickle.loads(pickle.dumps(model)) if name != "callable" else copy.deepcopy(model)
    np.testing.assert_array_equal(again.transform(new.astype(dtype)), y)
    np.testing.assert_array_equal(clone(model).fit(x.astype(dtype)).embedding_, model.embedding_)
    with pytest.raises(NotFittedError):
        clone(model).transform(new)


def test_rows_of_new_samples_follow_the_formula():
    for affinity, kernel in (("rbf", rbf_kernel), (laplacian_kernel, laplacian_kernel)):
        model = SpectralEmbedding(3, affinity=affinity).fit(X)
        rows = kernel(NEW, X)
        expected = rows @ model.embedding_ / rows.sum(1)[:, None] / (1 - model.eigenvalues_)
        np.testing.assert_allclose(model.transform(NEW), expected, atol=1e-12)


def test_new_samples_by_distances_equal_those_by_samples():
    """Precomputed distances, whole or of the nearest only, and sparse samples join new samples as dense ones do."""
    expected = SpectralEmbedding(3, n_neighbors=9).fit(X).transform(NEW)
    whole = SpectralEmbedding(3, affinity="precomputed_nearest_neighbors", n_neighbors=9).fit(DISTANCES)
    np.testing.assert_allclose(whole.transform(cdist(NEW, X)), expected, atol=1e-10)
    everything = KNeighborsTransformer(n_neighbors=159).fit(X)
    np.testing.assert_allclose(whole.transform(everything.transform(NEW)), expected, atol=1e-10)
    sparse = SpectralEmbedding(3, n_neighbors=9).fit(csr_array(X))
    np.testing.assert_allclose(sparse.transform(csr_array(NEW)), expected, atol=1e-10)
    np.testing.assert_allclose(sparse.affinity_matrix_.toarray(), whole.affinity_matrix_.toarray())


@covering(1, name=CLUSTERINGS.keys(), how=WAYS)
def test_labels_equal_those_of_the_estimator(name, how):
    """Up to their numbers. Where the clusters are components the truth is known, of which ARPACK may overlook one."""
    parameters, x, y = CLUSTERINGS[name]
    options = {**copy.deepcopy(parameters), "assign_labels": how, "random_state": 0}
    clusters = 3 if y is not None else 2
    ours, theirs = fitted(SpectralClustering(clusters, **options), TheirClustering(clusters, **options), x)
    assert adjusted_rand_score(ours.labels_, theirs.labels_ if y is None else y) == 1
    if name != "sparse neighbors":  # theirs have themselves on the diagonal
        np.testing.assert_allclose(dense(ours.affinity_matrix_), dense(theirs.affinity_matrix_), atol=1e-12)
    np.testing.assert_array_equal(ours.predict(x), ours.labels_)
    assert ours.embedding_.shape == (x.shape[0], clusters)


def test_the_seed_of_k_means_has_their_meaning():
    """One start of k-means from one seed ends in one of many local optima, equal to scikit-learn's."""
    x = load_digits().data[:500] / 16
    for seed in range(3):
        options = {"affinity": "rbf", "gamma": 0.1, "n_init": 1, "random_state": seed}
        ours, theirs = fitted(SpectralClustering(25, **options), TheirClustering(25, **options), x)
        assert adjusted_rand_score(ours.labels_, theirs.labels_) == 1


def test_first_column_and_tolerance():
    whole = SpectralEmbedding(3, n_neighbors=11, drop_first=False, eigen_tol=0).fit(X)
    expected = SpectralEmbedding(2, n_neighbors=11).fit(X)
    np.testing.assert_allclose(whole.embedding_[:, 1:], expected.embedding_, atol=1e-10)
    assert np.ptp(whole.embedding_[:, 0]) < 1e-12
    degrees = whole.affinity_matrix_.sum(1) - 1
    np.testing.assert_allclose(whole.embedding_.T @ (degrees[:, None] * whole.embedding_), np.eye(3), atol=1e-10)
    coarse = SpectralEmbedding(2, n_neighbors=11, eigen_tol=1e-3, solve=Solve(on_failure="raise")).fit(X)
    assert coarse.module_.solve == Solve(on_failure="raise", tolerance=1e-3)
    given = SpectralEmbedding(2, n_neighbors=11, eigen_solver="amg", n_jobs=2, random_state=3, solve=Eigh()).fit(X)
    np.testing.assert_allclose(given.embedding_, expected.embedding_, atol=1e-9)


@every_way
def test_isolated_samples(how):
    affinity = np.zeros((152, 152))
    affinity[:150, :150] = rbf_kernel(BLOBS[0])
    with pytest.warns(GraphWarning, match="2 of 152 nodes are isolated"):
        model = SpectralClustering(3, affinity="precomputed", assign_labels=how, random_state=0).fit(affinity)
    assert (model.labels_ >= 0).all()
    assert adjusted_rand_score(model.labels_[:150], BLOBS[1]) == 1
    np.testing.assert_array_equal(model.predict(affinity), model.labels_)


@every_way
def test_isolated_samples_are_clusters_where_the_others_have_no_more(how):
    """Isolated samples have the eigenvalue 1, as there: cliques are not split for it, a line of samples is."""

    def clustered(k, *parts):
        affinity = block_diag(*parts)
        with pytest.warns(GraphWarning, match="isolated"):
            model = SpectralClustering(k, affinity="precomputed", assign_labels=how, random_state=0).fit(affinity)
        np.testing.assert_array_equal(model.predict(affinity), model.labels_)
        return model.labels_

    clique, alone = np.array([[1, 0.8, 0.7], [0.8, 1, 0.9], [0.7, 0.9, 1]]), np.eye(1)
    assert adjusted_rand_score(clustered(2, clique, alone), [0, 0, 0, 1]) == 1
    assert adjusted_rand_score(clustered(3, alone, clique, np.ones((5, 5))), [-1, 0, 0, 0, 1, 1, 1, 1, 1]) == 1
    line = rbf_kernel(np.arange(20.0)[:, None])
    assert np.unique(clustered(2, line, alone)[:20]).tolist() == [0, 1]


def test_samples_far_from_zero():
    """The expanded square loses the distances there; the kernel is worked out about the mean."""
    x = np.ldexp(np.round(np.ldexp(X, 12)), -12)  # so that the shift rounds nothing
    expected = SpectralEmbedding(3, affinity="rbf").fit(x)
    model = SpectralEmbedding(3, affinity="rbf").fit(x + 2.0**30)
    np.testing.assert_allclose(model.affinity_matrix_, expected.affinity_matrix_, atol=1e-9)
    np.testing.assert_allclose(model.embedding_, expected.embedding_, atol=1e-7)


@pytest.mark.parametrize("form", [csr_array, csr_matrix, csc_array, coo_matrix, np.asarray])
@pytest.mark.parametrize("dtype", [np.int64, np.int8, bool, np.float32])
def test_precomputed_of_every_form(form, dtype):
    connected = (kneighbors_graph(X, 8, include_self=True).toarray() > 0).astype(dtype)
    given = form(connected | connected.T if dtype != np.float32 else np.maximum(connected, connected.T))
    expected = TheirEmbedding(3, affinity="precomputed").fit_transform(csr_array(given, dtype=np.float64))
    model = SpectralEmbedding(3, affinity="precomputed").fit(given)
    tolerance = 1e-3 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(abs(model.embedding_), abs(expected), atol=tolerance * abs(expected).max())
    np.testing.assert_allclose(model.transform(given), model.embedding_, atol=tolerance)


def test_two_directions_are_averaged_aloud():
    given = kneighbors_graph(X, 9)
    with pytest.warns(GraphWarning, match="affinities are not symmetric: their mean"):
        model = SpectralEmbedding(3, affinity="precomputed").fit(given)
    with pytest.warns(UserWarning, match="not symmetric"):
        expected = TheirEmbedding(3, affinity="precomputed").fit_transform(given)
    np.testing.assert_allclose(abs(model.embedding_), abs(expected), atol=1e-10)
    np.testing.assert_array_equal(model.transform(given), model.embedding_)
    SpectralEmbedding(3, affinity="precomputed").fit(KERNEL * (1 + 1e-9 * points(160, 160).numpy()))


def test_a_function_without_others_embeds_no_new_samples():
    model = SpectralEmbedding(affinity=lambda x: rbf_kernel(x)).fit(X)
    np.testing.assert_array_equal(model.transform(X[:5]), model.embedding_[:5])
    with pytest.raises(TypeError, match=r"affinity must be a function that takes Y.*affinity\(X_new, Y=X\)"):
        model.transform(NEW)


@pytest.mark.parametrize(
    ("model", "name", "instead"),
    [
        (SpectralClustering(2, n_neighbors=15), "n_neighbors", 'affinity="nearest_neighbors"'),
        (SpectralClustering(2, kernel_params={"gamma": 2}), "kernel_params", "affinity=a function"),
        (SpectralClustering(2, affinity=of_two_samples, gamma=0.5), "gamma", 'affinity="rbf"'),
        (SpectralClustering(2, affinity="laplacian", degree=4), "degree", 'affinity="poly"'),
        (SpectralClustering(2, assign_labels="cluster_qr", n_init=3), "n_init", 'assign_labels="kmeans"'),
        (SpectralEmbedding(affinity="precomputed", n_neighbors=9), "n_neighbors", 'affinity="nearest_neighbors"'),
        (SpectralEmbedding(gamma=0.5), "gamma", 'affinity="rbf"'),
        (estimators.KernelPCA(2, kernel="rbf", coef0=0.5), "coef0", 'kernel="poly"'),
        (estimators.Isomap(metric="euclidean", p=3), "p", 'metric="minkowski"'),
        (estimators.ClassicalMDS(metric="precomputed", metric_params={"p": 3}), "metric_params", 'metric="euclidean"'),
        (estimators.LabelSpreading(n_neighbors=3), "n_neighbors", 'kernel="knn"'),
        (estimators.HarmonicFunction("knn", gamma=3), "gamma", 'kernel="rbf"'),
    ],
)
def test_a_parameter_without_effect_is_named(model, name, instead):
    given = [DISTANCES if "precomputed" in model.get_params().values() else X, np.arange(160) // 80]
    with pytest.warns(UserWarning, match=f"{name} has no effect in this fit, got {name}=.*; use {instead}, or leave"):
        model.fit(*given)
    plain = clone(model).set_params(**{name: type(model)().get_params()[name]}).fit(*given)
    np.testing.assert_array_equal(getattr(plain, plain.ARRAYS[0]), getattr(model, plain.ARRAYS[0]))


def test_nothing_of_the_users_is_changed():
    """scikit-learn writes gamma into the parameters of the kernel, and another affinity into the estimator."""
    parameters, weights = {"scale": 0.5}, DensityCorrected(1.0, HeatKernel(learnable=True))
    with pytest.warns(UserWarning, match="kernel_params has no effect"):
        model = SpectralClustering(2, affinity="rbf", kernel_params=parameters).fit(X)
    assert parameters == {"scale": 0.5}
    assert model.affinity_matrix_.shape == (160, 160)
    assert SpectralEmbedding(n_neighbors=11).fit(csr_array(X)).affinity == "nearest_neighbors"
    weighted = clone(SpectralEmbedding(n_neighbors=11)).set_params(weights=weights).fit(X)
    again = pickle.loads(pickle.dumps(clone(weighted).fit(X)))
    np.testing.assert_array_equal(again.transform(NEW), weighted.transform(NEW))
    assert weighted.weights is weights
    assert weighted.module_.weights is not weights
    given = KERNEL.copy()
    SpectralEmbedding(affinity="precomputed").fit(given).transform(given)
    np.testing.assert_array_equal(given, KERNEL)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("affinity", ["rbf", "nearest_neighbors"])
def test_a_fit_does_not_change_with_the_array_it_was_made_of(affinity, sparse):
    given = csr_array(X) if sparse else X.copy()
    new = csr_array(NEW) if sparse else NEW
    model = SpectralEmbedding(3, affinity=affinity).fit(given)
    before = model.transform(new)
    (given.data if sparse else given)[:] = 0
    np.testing.assert_array_equal(model.transform(new), before)
    np.testing.assert_allclose(model.transform(csr_array(X) if sparse else X), model.embedding_, atol=1e-9)
