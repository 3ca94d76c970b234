"""Autocast changes nothing: forward, backward and double backward of every entry point, inside and outside of it."""

import pytest
import torch

import torch_lapeig as tl
from problems import covering, points
from torch_lapeig.losses import orthogonality, whiten
from torch_lapeig.methods import HeatResponse

X = points(40, 3, dtype=torch.float32)
GRAPH = tl.knn_graph(X, 6)
DTYPES = [torch.bfloat16, torch.float16]
WEIGHTINGS = [
    tl.HeatKernel(),
    tl.HeatKernel(1.0, learnable=True),
    tl.HeatKernel("component-median"),
    tl.SelfTuning(3),
    tl.DensityCorrected(),
    tl.ImprovedWeights(),
    tl.KernelWeights(lambda squared: 1 / (1 + squared)),
]


def dense(x):
    differences = x[:, None] - x
    return tl.Graph.from_dense((-differences.square().sum(-1)).exp())


def pairs_of(x):
    return tl.eigenpairs(tl.Laplacian(tl.HeatKernel()(x, GRAPH)), 3)


def fitted(module):
    """The embedding of new points by a module that is fitted beforehand."""
    module.fit(X)
    return lambda x: module.transform(x + 0.1)


FUNCTIONS = {
    **{f"weights {w}": lambda x, w=w: w(x, GRAPH).weight for w in WEIGHTINGS},
    **{f"product {w}": lambda x, w=w: tl.Laplacian(w(x, GRAPH)).matmul(x) for w in WEIGHTINGS},
    **{f"layer {w}": lambda x, w=w: tl.LaplacianEigenmaps(2, tl.KNN(6), w)(x) for w in WEIGHTINGS},
    **{f"smoothness {w}": lambda x, w=w: tl.LaplacianSmoothness(tl.KNN(6), w)(x.sin(), x) for w in WEIGHTINGS[:-1]},
    "product, dense": lambda x: tl.Laplacian(dense(x)).matmul(x),
    "smoothness, dense": lambda x: tl.laplacian_smoothness(x, dense(x)),
    "eigenpairs, dense": lambda x: tl.eigenpairs(tl.Laplacian(dense(x)), 3).vectors,
    "sampled product": lambda x: GRAPH.pattern.products(x, x.sin()),
    "sampled product, dense": lambda x: dense(x).pattern.products(x, x.sin()),
    "separate": lambda x: tl.LaplacianEigenmaps(2, tl.KNN(6), components="separate")(x),
    "diffusion": lambda x: tl.LaplacianEigenmaps(2, tl.KNN(6), diffusion=1.0)(x),
    "out of sample": lambda x: tl.LaplacianEigenmaps(2, tl.KNN(6)).out_of_sample(x[:30], x[30:])[1],
    "clustering": tl.SpectralClustering(2, tl.KNN(6)),
    "mds": tl.MDS(2),
    "isomap": tl.Isomap(2, tl.KNN(6)),
    "lle": tl.LLE(2, tl.KNN(6)),
    **{f"kernel pca, {kernel}": tl.KernelPCA(2, kernel) for kernel in ("rbf", "linear", "poly")},
    "spectral loss": lambda x: tl.SpectralLoss(tl.KNN(6))(x.sin(), x),
    "orthogonality": orthogonality,
    "whiten": whiten,
    "positions": lambda x: tl.laplacian_positional_encoding(GRAPH.edge_index, 40, 3, tl.HeatKernel()(x, GRAPH).weight)[
        0
    ],
    "filter": lambda x: tl.SpectralFilter(HeatResponse([1.0]))(pairs_of(x), x),
    "signature": lambda x: tl.spectral_signature(pairs_of(x), HeatResponse([1.0])),
    "cut": lambda x: tl.normalized_cut(x.softmax(-1), tl.HeatKernel()(x, GRAPH)),
    "transform Isomap": fitted(tl.Isomap(2, tl.KNN(6))),
    **{
        f"transform {type(module).__name__}": fitted(module)
        for module in (
            tl.LaplacianEigenmaps(2, tl.KNN(6)),
            tl.SpectralClustering(2, tl.KNN(6)),
            tl.MDS(2),
            tl.LLE(2, tl.KNN(6)),
            tl.KernelPCA(2),
        )
    },
}


def derivatives(function, dtype, inside_forward, inside_backward):
    """The value, its gradient, and the gradient of that, with autocast in some of it."""
    x = X.clone().requires_grad_()
    with torch.autocast("cpu", dtype, enabled=inside_forward):
        value = function(x)
    probe = torch.linspace(0.1, 1, value.numel()).reshape(value.shape)
    with torch.autocast("cpu", dtype, enabled=inside_backward):
        (first,) = torch.autograd.grad((value * probe).square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * X.cos()).sum(), x)
    return value.detach(), first.detach(), second


@covering(1, function=FUNCTIONS, dtype=DTYPES)
def test_autocast_changes_nothing(function, dtype):
    expected = derivatives(function, dtype, False, False)
    for forward, backward in ((True, False), (False, True), (True, True)):
        for result, value in zip(derivatives(function, dtype, forward, backward), expected, strict=True):
            assert result.dtype == torch.float32
            assert torch.dist(result, value) <= 1e-5 * value.norm()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward_method_inside(dtype):
    """The gradient of `.backward()`, which also reaches parameters, and autocast is on again after it."""
    gradients = []
    for enabled in (False, True):
        weights = tl.HeatKernel(learnable=True)
        x = X.clone().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=enabled):
            tl.LaplacianEigenmaps(2, tl.KNN(6), weights)(x).pow(4).sum().backward()
            assert torch.is_autocast_enabled("cpu") == enabled
            assert (x @ x.mT).dtype == (dtype if enabled else torch.float32)
        gradients.append((x.grad, weights.log_factor.grad))
    for off, on in zip(*gradients, strict=True):
        assert torch.dist(off, on) <= 1e-5 * off.norm()


def test_the_network_around_stays_in_half_precision():
    """Only what the library computes is kept from autocast, in backward as in forward."""
    seen = []
    linear = torch.nn.Linear(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = linear(X)
        hidden.grad_fn.register_prehook(lambda _: seen.append(torch.is_autocast_enabled("cpu")))
        tl.LaplacianEigenmaps(2, tl.KNN(6))(hidden).float().square()[:, 0].mul(torch.arange(40)).sum().backward()
    assert seen == [True]
