"""Given distances and metrics without coordinates: edges, weights, new points and gradients."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors, kneighbors_graph, radius_neighbors_graph

import torch_lapeig as tl
from problems import check_derivatives, distances, every, grams, points, saved_and_loaded
from torch_lapeig.graph.search import exact

GIVEN = tl.Precomputed("distance")
N, NEW = 40, 6
METRICS = pytest.mark.parametrize("metric", ["hamming", "correlation", "rmsd"])
X, FRESH = points(N, 4), points(NEW, 4, seed=1)
BOTH = torch.cat([X, FRESH])
METHODS = {
    "eigenmaps": lambda rule: tl.LaplacianEigenmaps(2, rule, tl.SelfTuning(3)),
    "unnormalized": lambda rule: tl.LaplacianEigenmaps(2, rule, tl.DensityCorrected(), normalization="unnormalized"),
    "steepest": lambda rule: tl.LaplacianEigenmaps(2, rule, tl.HeatKernel("steepest")),
    "kernel": lambda rule: tl.SpectralClustering(2, rule, tl.KernelWeights(lambda squares: 1 / (1 + squares))),
    "Isomap": lambda rule: tl.Isomap(2, rule),
    "landmarks": lambda rule: tl.Isomap(2, rule, landmarks=20),
}


def rmsd(x, y):
    """Root mean square distances of clouds of 7 atoms in space, after the best translation and rotation (Kabsch)."""
    x, y = (clouds.reshape(-1, 7, 3) - clouds.reshape(-1, 7, 3).mean(1, keepdims=True) for clouds in (x, y))
    u, s, vt = np.linalg.svd(np.einsum("iac,jad->ijcd", x, y))
    s[..., 2] *= np.sign(np.linalg.det(u @ vt))
    squares = (x**2).sum((1, 2))[:, None] + (y**2).sum((1, 2)) - 2 * s.sum(-1)
    return np.sqrt(np.maximum(squares, 0) / 7)


def matrix_of(metric):
    """The distances of N + NEW points by a metric."""
    if metric == "hamming":
        x = (points(N + NEW, 23) > 0).double().numpy()
    else:
        x = points(N + NEW, 21).numpy()
    found = rmsd(x, x) if metric == "rmsd" else cdist(x, x, metric)
    np.fill_diagonal(found, 0)
    return torch.from_numpy((found + found.T) / 2)


@METRICS
def test_edges_are_those_of_scikit_learn(metric):
    d = matrix_of(metric)
    k, radius = 5, float(d[d > 0].quantile(0.2))
    within = radius_neighbors_graph(d.numpy(), radius, metric="precomputed", include_self=False).toarray()
    np.testing.assert_array_equal(tl.radius_graph(d, radius, metric=GIVEN).to_dense().numpy(), within)
    graph = tl.knn_graph(d, k, symmetrize="union", metric=GIVEN)
    lengths = NearestNeighbors(n_neighbors=k, metric="precomputed").fit(d.numpy()).kneighbors()[0]
    if metric == "hamming":  # equal distances: which of the points is taken is said below
        reach = torch.from_numpy(lengths[:, -1])
        joined = graph.to_dense() > 0
        assert (joined | ~((d < reach[:, None]).fill_diagonal_(False))).all()
        assert (~joined | (d <= reach[:, None]) | (d <= reach)).all()
    else:
        one = kneighbors_graph(d.numpy(), k, metric="precomputed", include_self=False).toarray()
        np.testing.assert_array_equal(graph.to_dense().numpy(), np.maximum(one, one.T))


def test_ties_go_to_the_smaller_number():
    d = torch.ones(7, 7, dtype=torch.float64).fill_diagonal_(0)
    chosen = tl.knn_graph(d, 2, metric=GIVEN).to_dense()
    one = torch.zeros(7, 7).double()
    for i in range(7):
        one[i, [j for j in range(7) if j != i][:2]] = 1
    torch.testing.assert_close(chosen, (one + one.T) / 2)


@METRICS
def test_diffusion_maps_are_those_of_the_definition(metric):
    """Coifman and Lafon 2006 of K = exp(−δ²/t) without self-affinity, α = 1, and Nyström's formula for new points."""
    d = matrix_of(metric)
    old, t = d[:N, :N], float(d.square().median())
    model = tl.DiffusionMap(2, tl.Radius(2 * float(d.max()), GIVEN), tl.HeatKernel(t), alpha=1.0, time=2.0).fit(old)
    kernel = (-old.square() / t).exp().fill_diagonal_(0)
    q = kernel.sum(1)
    kernel = kernel / (q[:, None] * q)
    degrees = kernel.sum(1)
    values, vectors = torch.linalg.eigh(kernel / (degrees[:, None] * degrees).sqrt())
    values, y = values.flip(0)[1:3], vectors.flip(1)[:, 1:3] / degrees.sqrt()[:, None]
    scale = (grams(model.embedding_).diagonal().sum() / grams(values**2 * y).diagonal().sum()).sqrt()
    torch.testing.assert_close(grams(model.embedding_), grams(scale * values**2 * y), rtol=1e-7, atol=1e-9)
    fresh = (-d[N:, :N].square() / t).exp()
    fresh = fresh / q
    share = fresh / fresh.sum(1, keepdim=True)
    torch.testing.assert_close(model.transform(d[N:, :N]), share @ model.embedding_ / values, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(model.transform(old[:4]), model.embedding_[:4])


def euclidean(x, y):
    return exact.differentiable_squared_distances(x, y).clamp_min(1e-300).sqrt()


@every(name=[*METHODS], dtype=[torch.float64, torch.float32])
def test_euclidean_distances_give_what_the_points_give(name, dtype):
    both, close = BOTH.to(dtype), {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {}
    d = exact.squared_distances(both, both).sqrt()
    for rule, options in ((tl.KNN, (7, "union")), (tl.Radius, (2.5,))):
        model = METHODS[name](rule(*options)).fit(both[:N])
        of_given = METHODS[name](rule(*options, metric=GIVEN)).fit(d[:N, :N])
        of_metric = METHODS[name](rule(*options, metric=lambda x, y: exact.squared_distances(x, y).sqrt()))
        of_metric.fit(both[:N])
        first = model.FITTED[0]
        for other, new in ((of_given, d[N:, :N]), (of_metric, both[N:])):
            torch.testing.assert_close(grams(getattr(other, first)), grams(getattr(model, first)), **close)
            rows = torch.cat([getattr(other, first), other.transform(new)])
            expected = torch.cat([getattr(model, first), model.transform(both[N:])])
            torch.testing.assert_close(grams(rows), grams(expected), **close)


def test_blocks_of_rows_change_nothing(monkeypatch):
    module, mask = METHODS["eigenmaps"](tl.KNN(5, metric=euclidean)), torch.ones(2, N, dtype=torch.bool)
    mask[1, 25:], mask[1, 3] = False, False
    x = torch.where(mask[..., None], torch.stack([X, X]), torch.nan)
    whole = module(x, mask)
    monkeypatch.setattr("torch_lapeig.graph.distances.rows_of_block", lambda *_: 7)
    torch.testing.assert_close(module(x, mask), whole)
    torch.testing.assert_close(grams(module(x, mask)[1][mask[1]]), grams(module(X[mask[1]])))


@pytest.mark.parametrize("weights", [tl.HeatKernel("component-median"), tl.SelfTuning(3), tl.DensityCorrected()])
def test_gradients_reach_distances_of_points_and_of_new_points(weights):
    d = distances(BOTH)
    row, col = torch.triu_indices(N, N, 1)
    module, loss = tl.LaplacianEigenmaps(2, tl.KNN(6, metric=GIVEN), weights), points(N + NEW, N + NEW, seed=3)

    def rows(upper, new):
        half = torch.zeros(N, N, dtype=upper.dtype).index_put((row, col), upper)
        return (grams(torch.cat(module.out_of_sample(half + half.T, new))) * loss).sum()

    check_derivatives(rows, d[:N, :N][row, col], d[N:, :N], fast_mode=True)


def test_gradients_of_a_metric_are_those_of_the_points():
    x, loss = X.clone().requires_grad_(), points(N, N, seed=3)
    found = []
    for rule in (tl.KNN(6), tl.KNN(6, metric=euclidean)):
        y = tl.LaplacianEigenmaps(2, rule, tl.SelfTuning(3))(x)
        found += torch.autograd.grad((grams(y) * loss).sum(), x)
    torch.testing.assert_close(*found)


def test_points_at_distance_zero_up_to_round_off_are_known():
    """A correlation distance of equal rows is a few units of round-off."""
    model = tl.LaplacianEigenmaps(2, tl.KNN(6, metric="correlation")).fit(X)
    torch.testing.assert_close(model.transform(X), model.embedding_)
    other = tl.LaplacianEigenmaps(2, tl.KNN(6, metric="correlation"))
    other.load_state_dict(saved_and_loaded(model.state_dict()))
    torch.testing.assert_close(other.transform(FRESH), model.transform(FRESH))


def test_losses_and_graphs_take_them():
    d = distances(X)
    graph = tl.HeatKernel(0.5)(d, tl.knn_graph(d, 5, metric=GIVEN, self_loops=True))
    assert graph.metric == saved_and_loaded(graph).metric == GIVEN
    torch.testing.assert_close(graph.to_dense(), tl.HeatKernel(0.5)(X, tl.knn_graph(X, 5, self_loops=True)).to_dense())
    for loss in (tl.SpectralLoss, tl.LaplacianSmoothness):
        torch.testing.assert_close(loss(tl.KNN(5, metric=GIVEN))(X[:, :2], d), loss(tl.KNN(5))(X[:, :2], X))


class Coordinates(tl.graph.Weighting):
    """Weighting that is no function of lengths."""

    def forward(self, x, graph):
        apart = graph.pattern.at_row(x[:, 0]) - graph.pattern.at_col(x[:, 0])
        return graph.with_weight(graph.weight * (1 + apart**2))

    def extend(self, edges, state):
        return -edges.squared_lengths


def test_coordinates_that_are_not_there_are_not_made_up():
    d = distances(X)
    with pytest.raises(ValueError, match=r"weight must be finite, got .* NaN"):
        Coordinates()(d, tl.knn_graph(d, 5, metric=GIVEN))
    assert math.isfinite(Coordinates()(X, tl.knn_graph(X, 5)).weight.sum())


@pytest.mark.parametrize("form", [torch.Tensor.to_sparse, lambda x: csr_array(x.numpy())])
def test_sparse_distances_lack_pairs_and_their_advice_gives_the_graph_of_stored_neighbours(form):
    """Dense copies of stored neighbours would put all other pairs at distance 0."""
    x = torch.rand(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    graph = tl.KNN(5)(x)
    row, col = graph.edge_index
    lengths = (x[row] - x[col]).norm(dim=1)
    stored = torch.zeros(30, 30, dtype=torch.float64).index_put((row, col), lengths)
    for take in (tl.MDS(2, metric=GIVEN), tl.KNN(5, metric=GIVEN)):
        with pytest.raises(TypeError, match=r"a sparse .* distance 0; of stored .* Graph.from_edge_index"):
            take(form(stored))
    given = tl.Graph.from_edge_index(graph.edge_index, torch.exp(-lengths.square() / 0.2))
    found = tl.LaplacianEigenmaps(2, tl.Precomputed("affinity"))(given)
    expected = tl.LaplacianEigenmaps(2, tl.KNN(5, "union"), tl.HeatKernel(0.2))(x)
    torch.testing.assert_close(found, expected)


@every(n=[30, 300, 1000], dtype=[torch.float32, torch.float64])
def test_a_function_may_round_its_two_directions_otherwise(n, dtype):
    """`torch.cdist` chooses its formula by size, and has the root of a difference of squares."""
    x = torch.randn(n, 20, dtype=dtype, generator=torch.Generator().manual_seed(n))
    found, expected = (tl.KNN(5, metric=metric)(x).to_dense() for metric in (torch.cdist, "euclidean"))
    assert (found != expected).double().mean() < 1e-3
