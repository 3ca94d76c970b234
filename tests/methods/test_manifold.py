"""MDS, Isomap, LLE, KernelPCA: the literature's definitions, new points by one formula, gradients, saved state."""

import io
import warnings

import numpy as np
import pytest
import torch
from scipy.sparse import csgraph
from sklearn.decomposition import KernelPCA as PeerKernelPCA
from sklearn.manifold import Isomap as PeerIsomap
from sklearn.manifold import LocallyLinearEmbedding
from torch import nn

from problems import in_every_dtype, on_every_device, points, subspace_angle, swiss_roll
from torch_lapeig import KNN, LLE, MDS, GraphWarning, Isomap, KernelPCA, Precomputed, Radius, eigenpairs
from torch_lapeig import _fitted as fitted_module
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lanczos, Lobpcg, SparseLU, SymmetricOperator
from torch_lapeig.graph import geodesics as geodesics_module
from torch_lapeig.graph import nearest_neighbors
from torch_lapeig.graph.distances import differentiable_squared_distances
from torch_lapeig.graph.geodesics import geodesic_distances
from torch_lapeig.graph.pattern import DensePattern
from torch_lapeig.methods.lle import _residual_operator, reconstruction_weights


class Gaussian(nn.Module):
    """A kernel whose bandwidth is learned."""

    def __init__(self):
        super().__init__()
        self.log_gamma = nn.Parameter(torch.tensor(-1.0, dtype=torch.float64))

    def forward(self, x, y):
        return (-self.log_gamma.exp() * differentiable_squared_distances(x, y)).exp()


METHODS = {
    "MDS": lambda: MDS(2),
    "Isomap": lambda: Isomap(2, KNN(7)),
    "Isomap, radius": lambda: Isomap(2, Radius(2.5)),
    "Isomap, landmarks": lambda: Isomap(2, KNN(7), landmarks=20),
    "LLE": lambda: LLE(2, KNN(6)),
    "KernelPCA, rbf": lambda: KernelPCA(2, "rbf", gamma=0.3),
    "KernelPCA, linear": lambda: KernelPCA(2, "linear"),
    "KernelPCA, polynomial": lambda: KernelPCA(2, "poly", degree=2),
    "KernelPCA, module": lambda: KernelPCA(2, Gaussian()),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())


def surface(n, *, seed=0, dtype=torch.float64):
    """A curved sheet: connected, no two eigenvalues equal, not flat."""
    u = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=dtype) * torch.tensor([6.0, 3.0])
    return torch.stack([u[:, 0], u[:, 1], u[:, 0].sin()], 1).to(dtype)


def distances(y):
    return torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist")


@on_every_device
@in_every_dtype
@every_method
def test_training_points_get_their_training_rows(make, dtype, device):
    x = surface(60, dtype=dtype).to(device)
    module = make().to(device, dtype)
    y = module.fit(x).embedding_
    assert y.dtype == dtype
    assert y.device == x.device
    assert module.eigenvalues_.shape == module.residuals_.shape == (2,)
    scale = float(y.abs().max())
    torch.testing.assert_close(module.transform(x), y, atol=scale * (1e-10 if dtype == torch.float64 else 1e-3), rtol=0)
    torch.testing.assert_close(module(x), y)


@every_method
def test_queries_in_blocks_and_given_points(make, monkeypatch):
    x, new = surface(50), surface(23, seed=1)
    module = make().fit(x)
    whole = module.transform(new)
    torch.testing.assert_close(module.out_of_sample(x, new)[1], whole)
    monkeypatch.setattr(fitted_module, "PIECE", 1)
    torch.testing.assert_close(module.transform(new), whole)


def test_mds_reproduces_euclidean_distances_of_old_and_new_points():
    x, new = points(40, 3) + 5, points(9, 3, seed=1)
    module = MDS(3).fit(x)
    torch.testing.assert_close(distances(module.embedding_), distances(x))
    torch.testing.assert_close(torch.cdist(module.transform(new), module.embedding_), torch.cdist(new, x))
    torch.testing.assert_close(module.eigenvalues_, torch.linalg.svdvals(x - x.mean(0)).square())


def test_mds_of_given_distances():
    x, new = points(30, 3), points(5, 3, seed=1)
    given = MDS(3, metric=Precomputed("distance")).fit(distances(x))
    torch.testing.assert_close(given.embedding_, MDS(3)(x))
    torch.testing.assert_close(given.transform(torch.cdist(new, x)), MDS(3).out_of_sample(x, new)[1])


def test_distances_that_are_not_euclidean():
    """On a cycle graph's distances: the largest eigenpairs are right though a third of the spectrum is negative."""
    steps = torch.arange(12)
    d = torch.minimum((steps[:, None] - steps) % 12, (steps - steps[:, None]) % 12).double()
    j = torch.eye(12, dtype=torch.float64) - 1 / 12
    exact = torch.linalg.eigvalsh(-0.5 * j @ d.square() @ j).flip(0)
    assert (exact < -1e-9).sum() >= 4
    module = MDS(2, metric=Precomputed("distance")).fit(d)
    torch.testing.assert_close(module.eigenvalues_, exact[:2])
    torch.testing.assert_close(module.transform(d), module.embedding_)


@pytest.mark.parametrize("neighbors", [KNN(6), Radius(1.2)], ids=str)
def test_isomap_is_scaling_of_the_geodesics_of_scipy(neighbors):
    x = surface(70)
    graph = neighbors(x)
    lengths = graph.with_weight(graph.pattern.squared_lengths(x).sqrt()).to_scipy()
    geodesics = torch.from_numpy(csgraph.shortest_path(lengths))
    torch.testing.assert_close(Isomap(2, neighbors)(x), MDS(2, metric=Precomputed("distance"))(geodesics))


def test_new_points_of_isomap_are_those_of_landmark_isomap():
    """With the training set as landmarks: de Silva & Tenenbaum's ½ L# (mean δ − δ(x)), paths to x ending there."""
    x, new = surface(60), surface(8, seed=3)
    module = Isomap(2, KNN(6)).fit(x)
    query, point, *_ = KNN(6).extend(new, x, module.train_rule)
    reach = torch.full((8, 60), torch.inf, dtype=x.dtype)
    for q, p in zip(query.tolist(), point.tolist(), strict=True):
        reach[q] = torch.minimum(reach[q], (new[q] - x[p]).norm() + module.geodesics_[p])
    squares = module.geodesics_.square()
    values, vectors = torch.linalg.eigh(-0.5 * (squares - squares.mean(0) - squares.mean(0)[:, None] + squares.mean()))
    pseudo_inverse = (vectors[:, -2:] / values[-2:].sqrt()).flip(1)
    expected = 0.5 * (squares.mean(0) - reach.square()) @ pseudo_inverse
    torch.testing.assert_close(module.transform(new).abs(), expected.abs())
    everything = Isomap(2, KNN(6), landmarks=torch.arange(60)).fit(x)
    torch.testing.assert_close(everything.embedding_, module.embedding_)
    torch.testing.assert_close(everything.transform(new), module.transform(new))


def test_landmarks_of_a_flat_sheet():
    """A dense flat sheet has nearly Euclidean geodesics: a few landmarks give nearly the embedding of all."""
    u = torch.rand(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * torch.tensor([2.0, 1.0])
    whole, few = Isomap(2, KNN(12)).fit(u), Isomap(2, KNN(12), landmarks=40).fit(u)
    assert few.geodesics_.shape == (400, 40)
    turn = torch.linalg.lstsq(few.embedding_ - few.embedding_.mean(0), whole.embedding_).solution
    difference = (few.embedding_ - few.embedding_.mean(0)) @ turn - whole.embedding_
    assert difference.norm() < 0.03 * whole.embedding_.norm()


def test_copies_and_new_points_on_them():
    x = surface(40)
    x = torch.cat([x, x[:3]])
    for module in (Isomap(2, KNN(6)), LLE(2, KNN(6)), MDS(2), KernelPCA(2)):
        y = module.fit(x).embedding_
        assert y.isfinite().all()
        torch.testing.assert_close(module.transform(x)[:40], y[:40])


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
def test_kernel_pca_is_pca_in_feature_space(kernel):
    """Its squared distances with all components are those of the feature space, K(x, x) − 2 K(x, y) + K(y, y)."""
    x, new = points(8, 9), points(4, 9, seed=1)
    module = KernelPCA(7, kernel, gamma=0.1, degree=2)
    k = module._kernel(x, x)
    expected = k.diagonal()[:, None] + k.diagonal() - 2 * k
    y = module.fit(x).embedding_
    torch.testing.assert_close(distances(y).square(), expected, atol=1e-9, rtol=1e-7)
    # New points by inner products with the principal axes Σ_i α_i φ(x_i), φ centred (Schölkopf, Smola & Müller 1998).
    row = module._kernel(new, x)
    mean = k.mean(0)
    axes = y / module.eigenvalues_
    torch.testing.assert_close(module.transform(new), (row - mean - row.mean(1, keepdim=True) + mean.mean()) @ axes)


def test_linear_kernel_pca_is_mds():
    x, new = points(30, 4), points(6, 4, seed=1)
    torch.testing.assert_close(KernelPCA(3, "linear").out_of_sample(x, new)[1], MDS(3).out_of_sample(x, new)[1])


def test_lle_reconstructs_from_neighbours():
    """Weights sum to 1, do not change under rigid motions and scaling, and rebuild points inside a simplex."""
    x = points(50, 2)
    indices = torch.cdist(x, x).argsort(1)[:, 1:6]
    w = reconstruction_weights(x, x, indices, 1e-9)
    torch.testing.assert_close(w.sum(1), torch.ones(50, dtype=x.dtype))
    torch.testing.assert_close((w[..., None] * x[indices]).sum(1), x, atol=1e-6, rtol=0)
    moved = 7 * x @ torch.linalg.qr(points(2, 2, seed=5))[0] + 3
    torch.testing.assert_close(
        reconstruction_weights(moved, moved, indices, 1e-3), reconstruction_weights(x, x, indices, 1e-3)
    )


@pytest.mark.parametrize("n", [150, 600])
def test_lle_embedding_minimises_the_reconstruction_error(n):
    """Both with `Eigh` and, above, with sparse factors: eigenvectors of the dense (I − W)ᵀ(I − W)."""
    x = surface(n)
    module = LLE(3, KNN(8)).fit(x)
    found = torch.cdist(x, x).fill_diagonal_(torch.inf).topk(8, largest=False).indices
    w = torch.zeros(n, n, dtype=x.dtype).scatter_(1, found, reconstruction_weights(x, x, found, 1e-3))
    residual = torch.eye(n, dtype=x.dtype) - w
    values, vectors = torch.linalg.eigh(residual.T @ residual)
    y = module.embedding_
    torch.testing.assert_close(y.T @ y, torch.eye(3, dtype=x.dtype), atol=1e-9, rtol=0)
    torch.testing.assert_close(y.sum(0), torch.zeros(3, dtype=x.dtype), atol=1e-9, rtol=0)
    torch.testing.assert_close(module.eigenvalues_, values[1:4], atol=1e-13, rtol=1e-5)
    assert subspace_angle(vectors[:, 1:4], y) < 1e-5


PEERS = {
    "MDS": (lambda: MDS(2), lambda: PeerKernelPCA(2)),  # the same of Euclidean distances: both are PCA
    "Isomap": (lambda: Isomap(2, KNN(10)), lambda: PeerIsomap(n_neighbors=10, n_components=2)),
    "LLE": (lambda: LLE(2, KNN(12)), lambda: LocallyLinearEmbedding(n_neighbors=12, eigen_solver="dense")),
    "rbf": (lambda: KernelPCA(3, gamma=0.05), lambda: PeerKernelPCA(3, kernel="rbf", gamma=0.05)),
    "poly": (
        lambda: KernelPCA(3, "poly", gamma=0.1, degree=2, coef0=0.5),
        lambda: PeerKernelPCA(3, kernel="poly", gamma=0.1, degree=2, coef0=0.5),
    ),
}


@pytest.mark.parametrize("case", PEERS.values(), ids=PEERS.keys())
def test_agrees_with_scikit_learn(case):
    x = swiss_roll(600)
    ours, theirs = case[0]().fit(x), torch.from_numpy(case[1]().fit_transform(x.numpy()))
    assert subspace_angle(torch.linalg.qr(ours.embedding_)[0], torch.linalg.qr(theirs)[0]) < 1e-5
    if not isinstance(ours, LLE):  # of the same length too: √λ
        torch.testing.assert_close(ours.embedding_.norm(dim=0), theirs.norm(dim=0))


def test_new_points_of_kernel_pca_agree_with_scikit_learn():
    x, new = swiss_roll(200), swiss_roll(20, seed=1)
    theirs = PeerKernelPCA(3, kernel="rbf", gamma=0.05).fit(x.numpy())
    ours = KernelPCA(3, gamma=0.05).fit(x)
    np.testing.assert_allclose(ours.transform(new).abs(), np.abs(theirs.transform(new.numpy())), atol=1e-8)


@every_method
def test_gradients_of_new_points(make):
    module, new = make().fit(surface(24)), surface(4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(module.transform, new)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, on first use
@every_method
def test_gradients_to_points(make):
    """Of functions that do not depend on signs, through eigenvectors and formula."""
    module = make()
    x, new = surface(24).requires_grad_(), surface(3, seed=2).requires_grad_()
    options = {"fast_mode": True, "check_forward_ad": True}
    assert torch.autograd.gradcheck(lambda x: module(x) @ module(x).mT, x, **options)

    def gram(x, new):
        rows = torch.cat(module.out_of_sample(x, new))
        return rows @ rows.mT

    assert torch.autograd.gradcheck(gram, (x, new), **options)


def test_gradient_to_given_distances_and_second_derivatives():
    d = distances(points(10, 3)) + 1 - 0.99 * torch.eye(10)  # away from zero, next to which differences are negative
    module = MDS(2, metric=Precomputed("distance"))
    assert torch.autograd.gradcheck(lambda d: distances(module((d + d.mT) / 2))[:4], d.requires_grad_())
    x = points(8, 3).requires_grad_()
    for module in (MDS(2), KernelPCA(2), LLE(2, KNN(4)), Isomap(2, KNN(4))):
        assert torch.autograd.gradgradcheck(lambda x, m=module: m(x).square().sum(1)[:3], x), module


def test_gradient_to_kernel_parameters():
    kernel = Gaussian()
    module, x, new = KernelPCA(2, kernel), surface(20), surface(4, seed=1)

    def of(log_gamma):
        with torch.no_grad():
            kernel.log_gamma.copy_(log_gamma)
        return float(module.out_of_sample(x, new)[1].detach().square().sum())

    here, step = float(kernel.log_gamma.detach()), 1e-5
    slope = (of(here + step) - of(here - step)) / (2 * step)
    of(here)
    module.out_of_sample(x, new)[1].square().sum().backward()
    assert float(kernel.log_gamma.grad) == pytest.approx(slope, rel=1e-6)
    assert "Gaussian" in repr(module)


def test_gradient_of_geodesics_is_along_the_paths(monkeypatch):
    x = surface(40).requires_grad_()
    graph = KNN(5)(x)
    lengths = graph.pattern.squared_lengths(x).sqrt()
    sources = torch.tensor([3, 17])
    d = geodesic_distances(graph.pattern, lengths, sources)
    torch.testing.assert_close(d.detach(), geodesic_distances(graph.pattern, lengths.detach(), sources))
    assert torch.autograd.gradcheck(
        lambda w: geodesic_distances(graph.pattern, w, sources), lengths.detach().requires_grad_()
    )
    # Distances are homogeneous in the edges: Euler's identity.
    (slope,) = torch.autograd.grad(d.sum(), lengths)
    torch.testing.assert_close((slope * lengths).sum(), d.sum())
    torch.testing.assert_close(slope.unique(), slope.unique().round())
    monkeypatch.setattr(geodesics_module, "BLOCK", 1)
    assert torch.equal(geodesic_distances(graph.pattern, lengths, sources), d)


@every_method
def test_state_loads_into_a_fresh_module_of_any_size(make):
    module, new = make().fit(surface(45)), surface(6, seed=1)
    expected = module.transform(new)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    for other in (make(), make().fit(surface(30, seed=4))):
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other.transform(new), expected)
        assert torch.equal(other.embedding_, module.embedding_)
    unfitted = make().state_dict()
    make().load_state_dict(unfitted)
    with pytest.raises(RuntimeError, match="Missing key"):
        module.load_state_dict(unfitted)


def test_repr_is_the_constructor():
    for module in (
        MDS(3),
        Isomap(2, KNN(5), landmarks=9),
        LLE(1, KNN(7), reg=0.1),
        KernelPCA(2, "linear", solve=Eigh()),
    ):
        assert repr(eval(repr(module))) == repr(module)


def test_new_points_without_a_neighbour():
    module = Isomap(2, Radius(2.5)).fit(surface(50))
    new = torch.stack([torch.full((3,), 100.0, dtype=torch.float64), surface(50)[7]])
    with pytest.warns(GraphWarning, match="1 of 2 new points have no neighbour"):
        y = module.transform(new)
    assert not y[0].any()
    torch.testing.assert_close(y[1], module.embedding_[7])
    with pytest.warns(GraphWarning, match="1 of 1 new points"):
        assert not module.transform(new[:1]).any()


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"Isomap, radius"}))
def test_far_new_points_are_finite(name):
    make = METHODS[name]
    module = make().fit(surface(40))
    assert module.transform(torch.full((2, 3), 1e4, dtype=torch.float64)).isfinite().all()


def test_lle_of_parts_warns():
    x = torch.cat([surface(20), surface(20, seed=1) + 100])
    with pytest.warns(GraphWarning, match="fall into 2 parts"):
        y = LLE(1, KNN(5)).fit(x).embedding_
    assert torch.equal(y[:20, 0] > 0, (y[0, 0] > 0).expand(20))


@pytest.mark.parametrize("solver", [Eigh(), Lanczos(), ChebyshevSubspace(), Lobpcg(preconditioner=None), None], ids=str)
def test_largest_pairs_of_a_matrix(solver):
    """By any solver those of `eigvalsh`, also of multiple eigenvalues, with gradients."""
    basis = torch.linalg.qr(points(450, 450))[0]
    spectrum = torch.cat([torch.tensor([9.0, 9.0, 5.0, 4.0], dtype=torch.float64), torch.linspace(3, -6, 446).double()])
    matrix = ((basis * spectrum) @ basis.T).requires_grad_()
    operator = SymmetricOperator.of_largest(matrix)
    pairs = eigenpairs(operator, 4, solver)
    assert pairs.converged
    torch.testing.assert_close(operator.diagonal[0] - pairs.values, spectrum[:4], atol=1e-7, rtol=0)
    assert subspace_angle(basis[:, :4], pairs.vectors.detach()) < 1e-6
    pairs.values.sum().backward()
    torch.testing.assert_close(matrix.grad, -basis[:, :4] @ basis[:, :4].T, atol=1e-6, rtol=0)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_symmetric_operators_like_their_matrices(batch):
    a = points(12 * max(1, len(batch) * 3), 12).reshape(*batch, 12, 12)
    a = a @ a.mT
    operator = SymmetricOperator(DensePattern((*batch, 12)), -a, a.new_zeros(*batch, 12))
    y = points(12, 2, batch=batch[0] if batch else None)
    torch.testing.assert_close(operator.matmul(y), a @ y)
    torch.testing.assert_close(operator.to_dense(), a)
    exact = torch.linalg.eigvalsh(a)
    assert (operator.bound >= exact.reshape(-1, 12)[:, -1]).all()
    for solver in (Eigh(), Lanczos(), None):
        torch.testing.assert_close(eigenpairs(operator, 3, solver).values, exact[..., :3], atol=1e-10, rtol=1e-8)
    assert operator.double().values.dtype == torch.float64
    if not batch:
        single = SymmetricOperator(DensePattern((12,)), -a.float(), a.new_zeros(12).float())
        torch.testing.assert_close(eigenpairs(single, 3).values.double(), exact[:3], atol=1e-4, rtol=1e-3)


def test_direct_preconditioner_needs_few_iterations_and_serves_the_gradient():
    x = surface(700).requires_grad_()
    module = LLE(2, KNN(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = module(x)
        y.square().sum(1)[:5].sum().backward()
    dense = surface(700).requires_grad_()
    LLE(2, KNN(8), solve=Eigh())(dense).square().sum(1)[:5].sum().backward()
    torch.testing.assert_close(x.grad, dense.grad, atol=1e-4 * float(dense.grad.abs().max()), rtol=0)
    indices = nearest_neighbors(dense.detach(), 8).indices
    operator = _residual_operator(indices, reconstruction_weights(dense.detach(), dense.detach(), indices, 1e-3))
    pairs = eigenpairs(operator, 3)
    assert pairs.solver == Lobpcg(preconditioner=SparseLU())
    assert pairs.iterations <= 20
    assert pairs.values[0] == 0
