"""Frozen maps: equal to ``transform``, as dense modules that `torch.export` and ONNX take."""

import warnings

import pytest
import torch

from problems import covering
from torch_lapeig import (
    KNN,
    DensityCorrected,
    GraphWarning,
    KernelPCA,
    Landmarks,
    LaplacianEigenmaps,
    Radius,
    SelfTuning,
    SimpleWeights,
    SpectralClustering,
)

# test_combinations.py has all methods, rules and weightings in float64, on points that are no copies.
MAPS = {
    "heat kernel": lambda: LaplacianEigenmaps(3, KNN(6)),
    "mutual, self-tuning": lambda: LaplacianEigenmaps(3, KNN(9, "mutual"), SelfTuning(4)),
    "self-tuning of few edges": lambda: LaplacianEigenmaps(2, KNN(6), SelfTuning(12)),
    "radius, simple": lambda: LaplacianEigenmaps(3, Radius(0.4), SimpleWeights(), scale="unit"),
    "density of self-tuning": lambda: LaplacianEigenmaps(3, KNN(6), DensityCorrected(1.0, SelfTuning(4))),
    "landmarks": lambda: LaplacianEigenmaps(3, Landmarks(30, 4)),
    "clusters": lambda: SpectralClustering(3, KNN(6)),
    "rbf": lambda: KernelPCA(3),
    "linear": lambda: KernelPCA(3, "linear"),
    "poly": lambda: KernelPCA(3, "poly", degree=2),
    "kernel PCA, function": lambda: KernelPCA(3, lambda x, y: (x @ y.mT).exp()),
}


def points(n, seed=0, dtype=torch.float64):
    return torch.rand(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def assert_same(found, expected):
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


@covering(1, make=MAPS, dtype=[torch.float64, torch.float32])
def test_equal_to_transform_on_new_and_known_points(make, dtype):
    x = torch.cat([points(120), points(3)]).to(dtype)  # the last three are copies
    model = make().to(dtype).fit(x)
    new = points(40, seed=1, dtype=dtype)
    frozen = model.frozen()
    assert_same(frozen(new), model.transform(new))
    assert_same(frozen(x), model.transform(x))
    assert_same(frozen(new[:1]), model.transform(new[:1]))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("name", ["heat kernel", "mutual, self-tuning", "landmarks", "clusters", "rbf"])
def test_onnx(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = MAPS[name]().fit(points(60))
    new = points(9, seed=1)
    file = tmp_path / "map.onnx"
    rows = {0: torch.export.Dim("rows", min=2)}
    torch.onnx.export(model.frozen(), (new[:4],), file, dynamo=True, dynamic_shapes=(rows,), input_names=["x"])
    session = runtime.InferenceSession(file)
    assert isinstance(session.get_inputs()[0].shape[0], str)  # a name: torch 2.6 falls back to fixed rows in silence
    (found,) = session.run(None, {"x": new.numpy()})
    assert_same(torch.from_numpy(found), model.transform(new))


def test_separate_components_and_points_that_no_edge_reaches():
    x = torch.cat([points(40), points(40, seed=2) + 10])
    model = LaplacianEigenmaps(2, Radius(0.6), components="separate").fit(x)
    new = torch.cat([points(5, seed=1), points(5, seed=3) + 10, points(2) + 100])
    with pytest.warns(GraphWarning, match="2 of 12 new points have no neighbour"):
        expected = model.transform(new)
    assert_same(model.frozen()(new), expected)
    assert not model.frozen()(new)[-2:].any()


def test_near_points_keep_their_distances_beside_a_far_one():
    x = torch.cat([points(60), torch.full((1, 3), 1e9, dtype=torch.float64)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)  # the far point is isolated
        model = LaplacianEigenmaps(2, KNN(6)).fit(x)
        for new in (points(9, seed=1), x):
            assert_same(model.frozen()(new), model.transform(new))


def test_a_copy_that_later_fits_do_not_change():
    model = LaplacianEigenmaps(2, KNN(6)).fit(points(60))
    frozen, new = model.frozen(), points(5, seed=1)
    before = frozen(new)
    model.fit(points(60, seed=4))
    assert torch.equal(frozen(new), before)
    other = LaplacianEigenmaps(2, KNN(6)).fit(points(60, seed=4)).frozen()
    other.load_state_dict(frozen.state_dict())
    assert torch.equal(other(new), before)


def test_gradients_of_frozen_maps_are_those_of_transform():
    model = LaplacianEigenmaps(2, KNN(6)).fit(points(60))
    new = points(5, seed=1).requires_grad_()
    gradients = [torch.autograd.grad(call(new).square().sum(), new)[0] for call in (model.frozen(), model.transform)]
    torch.testing.assert_close(*gradients)
