"""Diffusion maps against the dense formula, the walk's own distances, and an ordinary circle."""

import math

import numpy as np
import pytest
import torch

from problems import points
from torch_lapeig import KNN, DiffusionMap, GraphWarning, HeatKernel, LaplacianEigenmaps, Precomputed, Radius, knn_graph


def dense(kernel, alpha, time, k):
    """Columns, eigenvalues and the transition matrix by the paper's formulas."""
    q = kernel.sum(1)
    w = kernel / (q[:, None] * q) ** alpha
    d = w.sum(1)
    mu, v = torch.linalg.eigh(w / (d[:, None] * d).sqrt())
    mu, v = mu.flip(0), v.flip(1)
    return (v / d.sqrt()[:, None])[:, 1 : k + 1] * mu[1 : k + 1].abs() ** time, mu, w / d[:, None], d


@pytest.mark.parametrize(("alpha", "time"), [(1.0, 1.0), (0.5, 3.0), (0.0, 0.7), (1.0, 0.0)])
def test_columns_are_the_formula_from_points_and_from_affinities(alpha, time):
    x = points(60, 3)
    graph = HeatKernel("steepest")(x, knn_graph(x, 9))
    kernel = graph.to_dense()
    expected, mu, _, _ = dense(kernel, alpha, time, 4)
    model = DiffusionMap(4, KNN(9), HeatKernel("steepest"), alpha=alpha, time=time)
    given = DiffusionMap(4, Precomputed("affinity"), alpha=alpha, time=time)
    for found in (model.embed(x), given.embed(kernel), given.embed(graph)):
        torch.testing.assert_close(found.embedding.abs(), expected.abs(), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(1 - found.eigenvalues, mu[1:5])
    torch.testing.assert_close(given.fit(kernel).transform(2 * kernel[:7]), given.embedding_[:7])


def test_distances_of_all_columns_are_diffusion_distances():
    x = points(30, 2)
    _, _, walk, degrees = dense(HeatKernel()(x, knn_graph(x, 7)).to_dense(), 1.0, 3, 1)
    y = DiffusionMap(29, KNN(7), time=3)(x)
    rows = torch.linalg.matrix_power(walk, 3) / degrees.sqrt()
    torch.testing.assert_close(torch.cdist(y, y).square(), torch.cdist(rows, rows).square(), rtol=1e-6, atol=1e-12)


def test_all_times_are_the_formula_of_palantir_and_the_sum_of_powers():
    x = points(60, 3)
    kernel = HeatKernel()(x, knn_graph(x, 9)).to_dense()
    model = DiffusionMap(6, KNN(9), HeatKernel(), alpha=0, time=math.inf)
    y = model(x)
    values, v = np.linalg.eig((kernel / kernel.sum(1, keepdim=True)).numpy())
    # palantir.utils: eigenvectors of T of norm 1, times their eigenvalue over the rest
    order = np.argsort(-values.real)[1:7]
    factor = torch.from_numpy(values[order].real / (1 - values[order].real))
    own, theirs = factor.abs() * y / y.norm(dim=0), torch.from_numpy(v[:, order].real) * factor
    torch.testing.assert_close(own.abs(), theirs.abs(), rtol=1e-7, atol=1e-9)
    powers = torch.stack([DiffusionMap(6, KNN(9), HeatKernel(), alpha=0, time=t)(x) for t in range(1, 400)])
    torch.testing.assert_close(y.abs(), powers.sum(0).abs(), rtol=1e-6, atol=1e-9)
    near = x[:5] + 0.01
    factor = y.norm(dim=0) / powers[0].norm(dim=0)
    once = DiffusionMap(6, KNN(9), HeatKernel(), alpha=0).fit(x).transform(near)
    torch.testing.assert_close(model.fit(x).transform(near), once * factor)
    torch.testing.assert_close(model.frozen()(near), once * factor)
    assert torch.autograd.gradcheck(lambda part: model(part) @ model(part).mT, (x[:20].clone().requires_grad_(),))
    assert model(x.half()).dtype == torch.float16


def test_columns_that_do_not_decay_have_no_sum_over_all_times():
    x = torch.cat([points(30, 2), points(40, 2) + 9])
    with pytest.warns(GraphWarning) as said:
        y = DiffusionMap(3, KNN(5), time=math.inf)(x)
    words = [("do not decay" in str(w.message), "components" in str(w.message)) for w in said]
    assert words == [(False, True), (True, True)]
    assert y.isfinite().all()
    assert y.any(0).tolist() == [False, True, True]
    apart = DiffusionMap(3, KNN(5), time=math.inf, components="separate")(x)
    alone = DiffusionMap(3, KNN(5), HeatKernel("median"), time=math.inf)
    assert apart.isfinite().all()
    assert apart.any(0).all()
    torch.testing.assert_close(alone.out_of_sample(x[:30], x[:3])[1], alone(x[:30])[:3])


@pytest.mark.parametrize("time", [1.0, math.inf])
def test_the_eigengap_chooses_columns_of_each_item(time):
    centres = 4 * torch.eye(5, dtype=torch.float64)
    sets = [torch.cat([0.3 * points(20, 5, seed=i) + centres[i] for i in range(groups)]) for groups in (2, 4)]
    kernels = [torch.exp(-torch.cdist(part, part).square() / 8) for part in sets]
    model = DiffusionMap("eigengap", Precomputed("affinity"), time=time, max_components=6)
    found = []
    for groups, kernel in zip((2, 4), kernels, strict=True):
        values = dense(kernel, 1.0, 1, 1)[1]
        gaps = (values[1:7] - values[2:8]).tolist()
        y = model.fit(kernel).embedding_
        assert model.n_components_ == groups - 1 == 1 + max(range(6), key=gaps.__getitem__)
        torch.testing.assert_close(model.gap_, torch.tensor(gaps[groups - 2], dtype=torch.float64))
        whole = DiffusionMap(6, Precomputed("affinity"), time=time)(kernel)
        torch.testing.assert_close(y, torch.where(torch.arange(6) < groups - 1, whole, 0))
        torch.testing.assert_close(model.transform(kernel[:4]), y[:4])
        found.append(y)
    batch = torch.zeros(2, 80, 80, dtype=torch.float64)
    batch[0, :40, :40], batch[1] = kernels
    mask = torch.arange(80) < torch.tensor([[40], [80]])
    rows = model(batch, mask=mask)
    torch.testing.assert_close(rows, torch.stack([torch.cat([found[0], torch.zeros(40, 6)]), found[1]]))
    few = DiffusionMap("eigengap", KNN(3), max_components=10).fit(points(4, 2))  # three columns, the last without a gap
    assert few.embedding_.shape == (4, 10)
    assert 1 <= few.n_components_ <= 2
    fresh = DiffusionMap("eigengap", KNN(3), max_components=10)
    fresh.load_state_dict(few.state_dict())
    assert fresh.n_components_ == few.n_components_
    with pytest.raises(RuntimeError, match=r"max_components is .* in the state and 9 here"):
        DiffusionMap("eigengap", KNN(3), max_components=9).load_state_dict(few.state_dict())


def test_fits_of_before_the_eigengap_load():
    x = points(20, 2)
    model = DiffusionMap(2, KNN(4)).fit(x)
    assert "max_components" not in model.configuration()
    assert LaplacianEigenmaps(2, KNN(4), diffusion=math.inf).fit(x).embedding_.isfinite().all()


def test_the_density_of_a_circle_goes_with_alpha_one():
    share = torch.linspace(0, 1, 600, dtype=torch.float64)[1:]
    turn = 2 * torch.pi * (share + 0.12 * (2 * torch.pi * share).sin())  # four times as dense at one side
    x = torch.stack([turn.cos(), turn.sin()], 1)
    spread = {}
    for alpha in (0.0, 1.0):
        radius = DiffusionMap(2, Radius(0.25), HeatKernel(0.01), alpha=alpha)(x).norm(dim=1)
        spread[alpha] = float(radius.std() / radius.mean())
    assert spread[1.0] < 0.05 < 0.5 < spread[0.0]
