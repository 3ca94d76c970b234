"""LaplacianEigenmaps: the paper's normalisation, laws, new points, disconnected graphs."""

import pytest
import torch

import torch_lapeig as tl
from problems import distances, points, polygon, quiet, subspace_angle, swiss_roll


@pytest.mark.parametrize("rule", [tl.KNN(8), tl.Radius(2.0)], ids=str)
def test_equivariance(rule):
    """Permutations permute the rows; translations, rotations and reflections do nothing; scaling with "median" too."""
    x = points(90, 3)
    module = tl.LaplacianEigenmaps(3, rule)
    y = module(x)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1))
    turn = torch.linalg.qr(points(3, 3, seed=7))[0]
    torch.testing.assert_close(distances(module(x[order])), distances(y[order]), atol=1e-8, rtol=0)
    torch.testing.assert_close(distances(module(x + 10)), distances(y), atol=1e-8, rtol=0)
    torch.testing.assert_close(distances(module(x @ turn)), distances(y), atol=1e-8, rtol=0)
    scaled = tl.LaplacianEigenmaps(3, rule if isinstance(rule, tl.KNN) else tl.Radius(14.0))
    torch.testing.assert_close(distances(scaled(7 * x)), distances(y), atol=1e-8, rtol=0)


def test_transform_lies_between_neighbours_and_converges():
    """New points of a curve are embedded on the curve: the error falls with the number of training points."""

    def error(n):
        angle = torch.linspace(0, 2 * torch.pi, n + 1, dtype=torch.float64)[:-1]
        circle = lambda a: torch.stack([a.cos(), a.sin()], 1)  # noqa: E731
        module = tl.LaplacianEigenmaps(2, tl.KNN(6), scale="unit").fit(circle(angle))
        new = module.transform(circle(angle + torch.pi / n))
        # Exact eigenfunctions √2 (cos, sin) up to a rotation, which the training points determine.
        rotation = torch.linalg.lstsq(circle(angle), module.embedding_).solution
        return float((new - circle(angle + torch.pi / n) @ rotation).norm() / new.norm())

    assert error(40) < 0.05
    assert error(160) < error(40) / 8


def test_eigenvalues_of_one_are_not_extended():
    """A complete graph has λ = n / (n − 1); a complete bipartite one λ = 1, which Nyström cannot divide by."""
    x = torch.cat([torch.zeros(6, 1), torch.ones(6, 1)]).double() + 1e-6 * points(12, 1)
    far = tl.LaplacianEigenmaps(2, tl.KNN(11), tl.HeatKernel(1e6)).fit(x)
    torch.testing.assert_close(far.transform(x), far.embedding_)
    star = torch.cat([torch.zeros(1, 2), torch.eye(2), -torch.eye(2)]).double()
    module = tl.LaplacianEigenmaps(1, tl.Radius(1.2), tl.SimpleWeights()).fit(star)
    torch.testing.assert_close(module.transform(star), module.embedding_)
    with pytest.warns(tl.GraphWarning, match="cannot be extended"):
        assert not module.transform(star + 0.01).any()


def test_disconnected_graph_separately():
    """Each component is what it is on its own; three nodes have two eigenvectors, the third column is zero."""
    triangle = torch.tensor([[90.0, 0.0], [91.0, 0.0], [90.0, 1.0]], dtype=torch.float64)
    parts = [swiss_roll(30)[:, :2] / 10, points(20, 2, seed=1) + 30, triangle]
    rule, weights = tl.KNN(2), tl.HeatKernel(1.0)
    module = tl.LaplacianEigenmaps(3, rule, weights, components="separate").fit(torch.cat(parts))
    alone = [tl.LaplacianEigenmaps(3, rule, weights, components="separate").fit(part) for part in parts]
    torch.testing.assert_close(module.embedding_, torch.cat([other.embedding_ for other in alone]))
    torch.testing.assert_close(module.eigenvalues_, torch.cat([other.eigenvalues_ for other in alone]))
    torch.testing.assert_close(module.transform(torch.cat(parts)), module.embedding_)
    torch.testing.assert_close(module.embedding_[-3:, :2], tl.LaplacianEigenmaps(2, rule, weights)(triangle))
    assert not module.embedding_[-3:, 2].any()
    assert module.eigenvalues_[-1, 2].isinf()
    assert len(module.eigenvalues_) > len(parts)  # two nearest neighbours do not connect the random parts


@pytest.mark.parametrize("components", ["joint", "separate"])
def test_a_batch_without_an_edge_has_zero_gradients(components):
    weights = tl.HeatKernel(1.0, learnable=True)
    module = tl.LaplacianEigenmaps(1, tl.Radius(1e-3), weights, components=components)
    x = points(5, 2)[None].requires_grad_()
    affinity = torch.zeros(2, 4, 4, dtype=torch.float64, requires_grad=True)
    given = tl.LaplacianEigenmaps(1, tl.Precomputed("affinity"), components=components)
    (quiet(module, x).sum() + quiet(given, affinity).sum()).backward()
    assert not any(leaf.grad.any() for leaf in (x, affinity, *weights.parameters()))


def test_isolated_nodes_are_zero_with_a_warning():
    x = torch.cat([points(30, 2), torch.tensor([[100.0, 100.0]]).double()])
    for components in ("joint", "separate"):
        module = tl.LaplacianEigenmaps(2, tl.Radius(1.5), components=components)
        with pytest.warns(tl.GraphWarning) as record:
            y = module(x)
        assert any("isolated" in str(warning.message) for warning in record)
        assert not y[-1].any()


def test_a_failed_fit_changes_nothing():
    x = points(50, 3)
    module = tl.LaplacianEigenmaps(2, tl.KNN(8), components="error").fit(x)
    before = module.transform(x[:5] + 0.1)
    with pytest.raises(ValueError, match="connected components"):
        module.fit(torch.cat([x, x + 100]))
    assert torch.equal(module.transform(x[:5] + 0.1), before)


def test_orthonormal_columns_are_eigenvectors_of_the_symmetric_laplacian():
    """Bengio et al.; test_new_points.py has their formula for new points."""
    x = points(60, 3)
    module = tl.LaplacianEigenmaps(3, tl.KNN(8), tl.HeatKernel(2.0), scale="orthonormal", drop_trivial=False).fit(x)
    graph = tl.HeatKernel(2.0)(x, tl.knn_graph(x, 8))
    degrees = tl.Laplacian(graph).degrees
    values, vectors = torch.linalg.eigh(tl.Laplacian(graph).to_dense())
    v = module.embedding_
    torch.testing.assert_close(v.T @ v, torch.eye(3, dtype=v.dtype))
    torch.testing.assert_close(module.eigenvalues_, values[:3], atol=1e-12, rtol=1e-9)
    assert subspace_angle(vectors[:, :3], v) < 1e-6
    y = tl.LaplacianEigenmaps(3, tl.KNN(8), tl.HeatKernel(2.0), drop_trivial=False).fit(x)
    torch.testing.assert_close(v.abs(), degrees.sqrt()[:, None] * y.embedding_.abs())  # signs are by their own largest
    unnormalized = tl.LaplacianEigenmaps(3, tl.KNN(8), scale="orthonormal", normalization="unnormalized")(x)
    assert torch.equal(unnormalized, tl.LaplacianEigenmaps(3, tl.KNN(8), normalization="unnormalized")(x))


def test_the_preset_of_the_paper_is_its_problem():
    """Baghani & Araabi: (D − W) y = λ y with W = K diag(1/κ), not symmetric."""
    x = points(40, 2)
    module = tl.LaplacianEigenmaps.improved(3, tl.Radius(2.0), 4 * 0.7, components="joint").fit(x)
    d = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    near = (d <= 2.0) & (d > 0)
    w = torch.where(near, (-d.square() / (4 * 0.7)).exp(), 0) / near.sum(0)
    residual = torch.diag(w.sum(1)) - w
    y = module.embedding_
    torch.testing.assert_close(residual @ y, y * module.eigenvalues_, atol=1e-10, rtol=0)
    other = tl.LaplacianEigenmaps(3, tl.Radius(2.0), tl.ImprovedWeights(4 * 0.7)).fit(x)  # of I − D⁻¹W
    y = other.embedding_
    torch.testing.assert_close(residual @ y, w.sum(1, keepdim=True) * y * other.eigenvalues_, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["alone", "batch", "float32"])
def test_lengths_of_columns_of_equal_eigenvalues_have_no_gradient(kind):
    """Y Yᵀ does not depend on the basis, and yet lengths of its columns, once scaled, do in the first order."""
    x, aim = polygon(15), torch.randn(15, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.stack([points(15, 2), x]) if kind == "batch" else x.float() if kind == "float32" else x
    module = tl.LaplacianEigenmaps(2, tl.KNN(4), tl.HeatKernel(0.3), scale="unit")

    def backward(x, module):
        y = module(x.requires_grad_())
        (y @ y.mT * aim.to(y)).sum().backward()

    with pytest.warns(tl.DegeneracyWarning, match='scale="unit" has no well-defined gradient'):
        backward(x, module)
    for other in (  # no warning
        tl.LaplacianEigenmaps(2, tl.KNN(4), tl.HeatKernel(0.3)),
        tl.LaplacianEigenmaps(2, tl.KNN(4), tl.HeatKernel(0.3), scale="unit", normalization="unnormalized"),
    ):
        backward(x.detach(), other)
    generator = torch.Generator().manual_seed(1)
    backward(x.detach() + 0.1 * torch.randn(x.shape, dtype=x.dtype, generator=generator), module)
