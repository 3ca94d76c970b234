"""Frozen maps: equal to ``transform``, as dense modules that `torch.export` and ONNX take."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian

import torch_lapeig as tl
from problems import Gaussian, covering, quiet
from problems import of_cube as points
from torch_lapeig import KNN, KernelPCA, KernelWeights, Landmarks, LaplacianEigenmaps, Precomputed, Radius, SelfTuning


class Cone(nn.Module):  # 0 far away, and without derivative at 0
    def __init__(self):
        super().__init__()
        self.reach = nn.Parameter(torch.tensor(0.6))

    def forward(self, squared):
        return (self.reach - squared.sqrt()).relu()


RULES = [KNN(6), KNN(9, "mutual"), KNN(6, metric="cosine"), Radius(0.4), Landmarks(30), Landmarks(30, metric="cosine")]
WEIGHTS = [tl.HeatKernel(), tl.HeatKernel(0.1, learnable=True), tl.SimpleWeights(), KernelWeights(Cone())]
CORRECTED = tl.DensityCorrected(0.7, KernelWeights(nn.Sequential(Cone())))
WEIGHTS += [tl.ImprovedWeights(), SelfTuning(4), SelfTuning(12), CORRECTED]
OPTIONS = [{}, {"scale": "unit"}, {"scale": "orthonormal"}, {"diffusion": 1.5}, {"components": "separate"}]
OPTIONS += [{"normalization": "unnormalized", "drop_trivial": False}]
MAPS = {
    "heat kernel": lambda: LaplacianEigenmaps(3, KNN(6)),
    "mutual, self-tuning": lambda: LaplacianEigenmaps(3, KNN(9, "mutual"), SelfTuning(4)),
    "radius, kernel": lambda: LaplacianEigenmaps(2, Radius(0.4), KernelWeights(Cone()), **OPTIONS[-1]),
    "landmarks": lambda: tl.DiffusionMap(3, Landmarks(30, 4, metric="cosine")),
    "affinities": lambda: tl.DiffusionMap(3, Precomputed("affinity")),
    "clusters": lambda: tl.SpectralClustering(3, KNN(6), tl.SimpleWeights()),
    "Shi–Malik": lambda: tl.SpectralClustering(3, KNN(6, "union"), variant="shi_malik", assign_labels="cluster_qr"),
    "distances": lambda: tl.MDS(2, metric=Precomputed("distance")),
    "MDS": lambda: tl.MDS(2),
    "rbf": lambda: KernelPCA(3),
    "poly": lambda: KernelPCA(3, "poly", degree=2),
    "function": lambda: KernelPCA(3, Gaussian()),
}


def fit(make, x=None):
    """Return a model of points, and 17 new points or pairs: known, near, between, and 1.5, 8 and 50 widths away."""
    x = points(60) if x is None else x
    far = [x[:2] + width * x.new_tensor([1.0, 0.3, -0.2]) for width in (1.5, 8, 50)]
    new = torch.cat([x[:2], x[-2:], x[4:8] + 0.01, points(3, seed=1).to(x.dtype), *far])
    try:
        model = make().to(x.dtype)
        if model.pairs_given is not None:
            x, new = ((some[:, None] - x).square().sum(2).sqrt() for some in (x, new))
            x, new = (x, new) if model.pairs_given == "distance" else ((0.6 - x).relu(), (0.6 - new).relu())
        return quiet(model.fit, x), new
    except ValueError as refused:
        pytest.skip(str(refused))


def assert_same(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, expected, atol=tolerance * float(expected.detach().abs().max()), rtol=0)


def check(model, new):
    """Return the frozen map, once values and gradients are those of ``transform``."""
    frozen = model.frozen()
    for rows in (17, 4, 1):
        assert_same(frozen(new[-rows:]), quiet(model.transform, new[-rows:]))
    found, expected = (jacobian(lambda x: quiet(call, x).sum(0), new) for call in (frozen, model.transform))  # noqa: B023
    there = expected.isfinite().all(2).all(0)  # `Cone` has no derivative where a landmark is a point
    assert there[4:].all()
    assert_same(found[:, there], expected[:, there])
    return frozen


@covering(2, rule=RULES, weights=WEIGHTS, options=OPTIONS)
def test_values_and_gradients(rule, weights, options):
    check(*fit(lambda: LaplacianEigenmaps(3, rule, weights, **options)))


@covering(2, make=MAPS, dtype=[torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_casts_leave_the_numbers_and_rows_have_the_dtype_of_points(make, dtype):
    model, new = fit(make, torch.cat([points(60), points(3)]).float())  # the last three are copies
    new = new[:13]  # far away `transform` has the rounding of float32
    expected = quiet(model.transform, new.to(dtype).float())
    frozen = nn.Sequential(nn.Identity(), model.frozen()).to(torch.float16).to(dtype)
    assert_same(frozen(new.to(dtype)), expected.to(dtype), {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(dtype, 2e-3))
    with pytest.raises(TypeError, match="x_new must be float32 or float64"):
        frozen(new.int())
    with pytest.raises(ValueError, match="x_new must have shape"):
        frozen(new[:, :1].to(dtype))  # which would be broadcast


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # torch's own
@covering(1, make=MAPS)
def test_export(make, tmp_path):
    model, new = fit(make)
    frozen, file = check(model, new), tmp_path / "map.onnx"
    if isinstance(getattr(model, "kernel", None), Gaussian):
        return  # torch.cdist, which ONNX lacks
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    rows = ({0: torch.export.Dim("rows", min=2)},)
    program = torch.export.export(frozen, (new[:4],), dynamic_shapes=rows)
    torch.onnx.export(program, (new[:4],), file, dynamo=True, dynamic_shapes=rows, input_names=["x"])
    session = runtime.InferenceSession(file)
    expected = quiet(model.transform, new)
    assert_same(program.module()(new), expected)
    for count in (17, 4, 1):  # torch 2.6 falls back to fixed rows in silence
        (found,) = session.run(None, {"x": new[-count:].numpy()})
        assert_same(torch.from_numpy(found), expected[-count:], 1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@covering(1, make=MAPS)
def test_a_copy_that_stays_as_it_is(make):
    model, new = fit(make)
    frozen = model.frozen()
    before = frozen(new)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    other = fit(lambda: model, points(60, seed=4))[0].frozen()
    other.load_state_dict(frozen.state_dict())
    early = fit(lambda: model, points(60, seed=4))[0].frozen()  # of version 0.3.0, which had no `map.`
    early.load_state_dict({name.removeprefix("map."): value for name, value in frozen.state_dict().items()})
    for same in (frozen, other, early, copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        assert torch.equal(same(new), before)
    assert_same(torch.jit.trace(frozen, (new[:4],))(new), before, 1e-6)
    with pytest.raises(TypeError, match=r"torch\.export"):
        torch.jit.script(nn.Sequential(frozen))


def test_separate_components_and_points_that_no_edge_reaches():
    x = torch.cat([points(40), points(40, seed=2) + 10])
    model = LaplacianEigenmaps(2, Radius(0.6), components="separate").fit(x)
    new = torch.cat([points(5, seed=1), points(5, seed=3) + 10, points(2) + 100])
    assert not check(model, new)(new)[-2:].any()


def test_near_points_keep_their_distances_beside_a_far_one():
    x = torch.cat([points(60), torch.full((1, 3), 1e9, dtype=torch.float64)])
    model = quiet(LaplacianEigenmaps(2, KNN(6)).fit, x)  # the far point is isolated
    for new in (points(9, seed=1), x):
        assert_same(model.frozen()(new), quiet(model.transform, new), 1e-5)
