"""Given distances and metrics without coordinates: edges, weights, new points and gradients."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse import csc_array, csr_array
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
    x = (points(N + NEW, 23) > 0).double().numpy() if metric == "hamming" else points(N + NEW, 21).numpy()
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


def stored(matrix):
    matrix = matrix.tocoo()
    index = torch.from_numpy(np.stack([matrix.row, matrix.col]))
    return torch.sparse_coo_tensor(index, torch.from_numpy(matrix.data), matrix.shape, check_invariants=False)


@pytest.mark.parametrize("form", [stored, csr_array, csc_array, lambda d: stored(d).coalesce().to_sparse_csr()])
@pytest.mark.parametrize("weights", [None, tl.SelfTuning(4), tl.ImprovedWeights(0.1), tl.DensityCorrected(1.0)])
def test_stored_neighbours_are_the_graph_of_their_points(form, weights):
    """A copy of a point is at distance 0, which a sparse matrix stores; one-sided edges weigh ½, as by `KNN`."""
    x = torch.rand(80, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[5] = x[4]
    found = tl.graph.nearest_neighbors(x, 9)
    parts = found.squared_distances.sqrt().flatten().numpy(), found.indices.flatten().numpy(), np.arange(81) * 9
    matrix = form(csr_array(parts, shape=(80, 80)))
    model, expected = (tl.LaplacianEigenmaps(2, rule, weights) for rule in (GIVEN, tl.KNN(9)))
    torch.testing.assert_close(model(matrix), expected(x))
    assert torch.equal(model.fit(matrix).embedding_, model(matrix))
    with pytest.raises(ValueError, match=r'must be a rule such as KNN\(10, metric=Precomputed\("distance"\)\) for new'):
        model.transform(torch.cdist(x[:3], x))


def test_gradients_to_stored_distances_in_both_orders():
    x = torch.rand(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    index = stored(kneighbors_graph(x.numpy(), 5, mode="distance")).coalesce().indices()

    def smoothness(values):
        near = torch.sparse_coo_tensor(index, values, (30, 30), check_invariants=False)
        y = tl.LaplacianEigenmaps(2, GIVEN, tl.HeatKernel(0.1))(near)
        return (y.square() * torch.linspace(1, 2, 30)[:, None]).sum()

    # Both directions of a pair move together: distances differ by no more than round-off.
    pair, place = torch.stack([index.amin(0), index.amax(0)]).unique(dim=1, return_inverse=True)
    values = (x[pair[0]] - x[pair[1]]).norm(dim=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: smoothness(v[place]), values)
    assert torch.autograd.gradgradcheck(lambda v: smoothness(v[place]), values)


NEAR = csr_array(kneighbors_graph(X.numpy(), 5, mode="distance"))
TWICE = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 1.0], (3, 3), check_invariants=False)
UNEVEN = NEAR * csr_array(np.linspace(1, 2, X.shape[0])[:, None] * np.ones(NEAR.shape) * (NEAR.toarray() > 0))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (NEAR.toarray(), r"x must be a sparse matrix .* got ndarray; of all distances take neighbors=KNN\(10, metric"),
        (NEAR.tobsr(), "got bsr_array"),  # whose blocks store zeros
        (torch.stack([stored(NEAR)] * 2), r"shape \(N, N\), got \(2,"),
        (-NEAR, "distances must be non-negative"),
        (NEAR * 1j, r"must hold distances .* got torch.complex128; use abs\(x\)"),
        (csr_array(np.exp(-distances(X).numpy())), "zero from each point to itself, got 1; for affinities"),
        (TWICE, "must be distinct, got 1 twice"),
        (UNEVEN, r"equal in both directions, got some that differ by up to .*; use x.maximum\(x.T\)"),
        (UNEVEN * 1e-12, "equal in both directions"),
        (NEAR * 1e-160, "so large that squares do not underflow"),
        (tl.KNN(4)(X), "got a Graph"),
    ],
)
def test_stored_distances_that_are_none(matrix, message):
    with pytest.raises((TypeError, ValueError), match=message):
        tl.LaplacianEigenmaps(2, GIVEN)(matrix)


def test_advice_for_stored_distances():
    symmetric = UNEVEN.maximum(UNEVEN.T)
    dense = torch.from_numpy(symmetric.toarray())
    weight = torch.where(dense > 0, torch.exp(-dense.square() / 0.2), 0)
    expected = tl.LaplacianEigenmaps(2, tl.Precomputed("affinity"))(weight)
    torch.testing.assert_close(tl.LaplacianEigenmaps(2, GIVEN, tl.HeatKernel(0.2))(symmetric), expected)
    for take in (tl.MDS(2, metric=GIVEN), tl.KNN(5, metric=GIVEN)):
        with pytest.raises(TypeError, match=r"a sparse .* distance 0; of stored .* neighbors=Precomputed\("):
            take(symmetric)


@every(n=[30, 300, 1000], dtype=[torch.float32, torch.float64])
def test_a_function_may_round_its_two_directions_otherwise(n, dtype):
    """`torch.cdist` chooses its formula by size, and has the root of a difference of squares."""
    x = torch.randn(n, 20, dtype=dtype, generator=torch.Generator().manual_seed(n))
    found, expected = (tl.KNN(5, metric=metric)(x).to_dense() for metric in (torch.cdist, "euclidean"))
    assert (found != expected).double().mean() < 1e-3
