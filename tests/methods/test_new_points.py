"""New points: which are refused, and where those go that are far from all training points."""

import warnings

import pytest
import torch

import torch_lapeig as tl
from problems import every, points

NEAR = points(40, 3)
K8 = tl.KNN(8)
QUERIES = [
    (NEAR[:, :2], ValueError, "torch.float64 of dimension 3, got torch.float64 of dimension 2"),
    (NEAR.float(), ValueError, "torch.float64 of dimension 3, got torch.float32 of dimension 3"),
    (NEAR.long(), TypeError, "x must be float32 or float64, got torch.int64"),
    (NEAR.numpy(), TypeError, "x must be a torch.Tensor, got ndarray"),
    (NEAR[0], ValueError, r"x must have shape \(N, D\), got \(3,\)"),
    (NEAR[None], ValueError, r"x must have shape \(N, D\), got \(1, 40, 3\)"),
    (NEAR[:0], ValueError, r"at least 1 points of dimension ≥ 1, got \(0, 3\)"),
    (torch.where(NEAR > 2, torch.nan, NEAR), ValueError, "x must be finite, got . NaN or Inf of 120 entries"),
    (torch.where(NEAR > 2, torch.inf, NEAR), ValueError, "x must be finite"),
]
FAR = torch.tensor([[1e8, 0.0, 0.0], [0.0, -2e8, 0.0], [2e8, 0.0, 0.0]], dtype=torch.float64)


def row_of_nearest(module):
    """Affinities underflow: Nyström's formula with the whole weight on the nearest training point."""
    row = torch.cdist(FAR, NEAR).argmin(1)
    njw = isinstance(module, tl.SpectralClustering) and module.variant == "njw"
    rows = ((module.train_vectors if njw else module.embedding_) / (1 - module.eigenvalues_))[row]
    return torch.nn.functional.normalize(rows, dim=1) if njw else rows


def distances_grow_alike(module):
    """D̃ = R + c_i with a large R: the row is (−R/λ_k) Σ_i c_i v_ik √λ_k, c the geodesics from where x is reached."""
    nearest = torch.cdist(FAR, NEAR).topk(8, largest=False)
    offset = (nearest.values[..., None] + module.geodesics_[nearest.indices]).amin(1)
    offset = offset - offset.mean(1, keepdim=True)
    return -FAR.norm(dim=1, keepdim=True) * offset @ module.embedding_ / module.eigenvalues_


# Methods, and what docs/theory.md says of new points far from all training points, as a limit.
LIMITS = [
    (tl.LaplacianEigenmaps(2, K8), row_of_nearest),
    (tl.SpectralClustering(2, K8), row_of_nearest),
    (tl.SpectralClustering(2, K8, variant="shi_malik"), row_of_nearest),
    (tl.MDS(2), lambda m: (FAR - NEAR.mean(0)) @ torch.linalg.lstsq(NEAR - NEAR.mean(0), m.embedding_).solution),
    (tl.Isomap(2, K8), distances_grow_alike),
    # The local Gram matrix is that of equal differences, whose regularised weights are equal.
    (tl.LLE(2, K8), lambda m: m.embedding_[torch.cdist(FAR, NEAR).topk(8, largest=False).indices].mean(1)),
    # All kernels vanish.
    (tl.KernelPCA(2), lambda m: ((m.train_means.mean() - m.train_means) @ m.embedding_ / m.eigenvalues_).expand(3, 2)),
]


@pytest.mark.parametrize(("method", "limit"), LIMITS, ids=[repr(method) for method, _ in LIMITS])
def test_bad_and_far_new_points(method, limit):
    module = method.fit(NEAR)
    for query, error, message in QUERIES:
        with pytest.raises(error, match=message):
            module.transform(query)
    expected = limit(module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = module.transform(FAR)
    assert bool(caught) == (limit is row_of_nearest)
    assert all("3 of 3 new points are so far away" in str(w.message) for w in caught)
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    if not hasattr(module, "neighbors"):  # a search reads numbers, which torch.func hides
        jacobian = torch.autograd.functional.jacobian(module.transform, NEAR[:2])
        torch.testing.assert_close(torch.func.jacrev(module.transform)(NEAR[:2]), jacobian)


@pytest.mark.filterwarnings("ignore::torch_lapeig.GraphWarning", "ignore::torch_lapeig.ResolutionWarning")
@pytest.mark.parametrize("weights", [tl.SelfTuning(3), tl.DensityCorrected(0.5, tl.SelfTuning(3))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_of_fitted_points_are_of_all_their_edges(dtype, weights):
    """Lengths of edges whose weights underflow, around a clump, still count in σ."""
    underflowing = 0
    for seed in (360, 363, 365, 389, *range(20)):
        generator = torch.Generator().manual_seed(seed)
        around = 3 * torch.randn(8, 2, generator=generator)
        x = torch.cat([0.01 * torch.randn(30, 2, generator=generator), around]).to(dtype)
        x = torch.cat([x, 1e-3 * x[30:31]])  # whose faint edges stay
        module = tl.LaplacianEigenmaps(2, tl.KNN(10), weights).fit(x)
        assert (module.transform(x) - module.embedding_).abs().amax() < 2e-5 * module.embedding_.abs().amax()
        underflowing += int((weights(x, tl.KNN(10)(x)).weight == 0).sum())
    assert underflowing > 0


@pytest.mark.parametrize("method", ["MDS", "MDS of other distances", "KernelPCA", "LaplacianEigenmaps"])
def test_new_points_fit_their_kernel_by_least_squares(method):
    """Bengio et al. 2003, Proposition 2: f(x) minimises Σ_i (K̃(x, x_i) − Σ_j λ_j f_j(x) v_ij)²."""
    x, new = points(30, 4), points(5, 4, seed=1)
    between, to_new = torch.cdist(x, x), torch.cdist(new, x)
    if method == "LaplacianEigenmaps":
        model = tl.LaplacianEigenmaps(3, tl.Radius(100.0), tl.HeatKernel(4.0), scale="orthonormal").fit(x)
        degrees = (-between.square() / 4).exp().sum(1) - 1  # without the point itself
        rows = (-to_new.square() / 4).exp()
        rows = rows / (rows.sum(1, keepdim=True) * degrees).sqrt()
        columns = model.embedding_ * (1 - model.eigenvalues_)  # λ_j v_ij
    else:
        if method == "MDS of other distances":
            x, new = between, to_new = between**1.5, to_new**1.5
        kernel, rows = -between.square() / 2, -to_new.square() / 2
        if method == "KernelPCA":
            kernel, rows = (kernel / 5).exp(), (rows / 5).exp()
        rows = rows - rows.mean(1, keepdim=True) - kernel.mean(0) + kernel.mean()
        kinds = {"MDS": tl.MDS(3), "KernelPCA": tl.KernelPCA(3, "rbf", gamma=0.1)}
        model = kinds.get(method, tl.MDS(3, metric=tl.Precomputed("distance"))).fit(x)
        columns = model.embedding_  # √λ_j v_ij: these methods return √λ_j f_j
    torch.testing.assert_close(model.transform(new), torch.linalg.lstsq(columns, rows.T).solution.T)


@pytest.mark.filterwarnings("ignore:.*2 connected components")
@every(distance=[3.5, 5.0, 9.0], components=["joint", "separate"])
def test_an_eigenvalue_of_round_off_extends_to_no_new_point(components, distance):
    """L y = λ y at an outlier, whose degree is below the round-off of λ: its row is known, that of others is not."""
    angle = torch.arange(12.0, dtype=torch.float64)
    x = torch.stack([(0.9 * angle).cos(), (1.7 * angle).sin(), 0.05 * angle], 1)
    x = torch.cat([x, torch.full((1, 3), distance, dtype=torch.float64)])
    options = {"normalization": "unnormalized", "components": components}
    model = tl.LaplacianEigenmaps(2, tl.KNN(2), tl.HeatKernel(1.0), **options).fit(x)
    torch.testing.assert_close(model.transform(x), model.embedding_, rtol=0, atol=1e-9)
    if 0 < model.eigenvalues_[..., 1].min() < 1e-15:
        with pytest.warns(tl.GraphWarning, match="too close to the degree of a new point"):
            assert model.transform(x[:1] - distance)[0, 1] == 0
