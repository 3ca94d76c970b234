"""Smoothness and the spectral loss: gradients, padding, precision, eigenvalues, and outputs that collapse."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch

import problems
import torch_lapeig as tl
from torch_lapeig.losses import orthogonality, spectral_loss, whiten

HALVES = [torch.float16, torch.bfloat16]
REDUCTIONS = ["sum", "mean", "weighted_mean", "none"]
SMOOTHNESS = {f"smoothness, {of}": partial(tl.laplacian_smoothness, reduction=of) for of in REDUCTIONS}
LOSSES = {**SMOOTHNESS, "orthogonality": orthogonality, "spectral loss": spectral_loss, "whiten": whiten}
COLLAPSED = {
    "zero": lambda y: 0 * y,
    "constant": lambda y: 0 * y + 3.7,
    "noise of rounding": lambda y: 3.7 * (1 + torch.finfo(y.dtype).eps * y.sign()),
    "one column zero": lambda y: y * torch.tensor([1.0, 0.0, 1.0]).to(y),
    "copies": lambda y: y[:, [0, 0, 1]],
    "nearly copies": lambda y: y[:, [0, 0, 1]] + 10 * torch.finfo(y.dtype).eps * y,
}


def both_kinds(affinity):
    graph = tl.Graph.from_dense(affinity)
    return [graph, graph.to_sparse()]


def eigenvectors(affinity, k):
    """The k smallest pairs of L y = λ D y after the constant, Yᵀ D Y = I."""
    root = affinity.sum(1).sqrt()
    symmetric = torch.eye(len(affinity), dtype=affinity.dtype) - affinity / root[:, None] / root
    values, vectors = torch.linalg.eigh(symmetric)
    return values[1 : k + 1], vectors[:, 1 : k + 1] / root[:, None]


@problems.covering(1, loss=LOSSES, sparse=[False, True])
def test_gradcheck(loss, sparse):
    graph = both_kinds(problems.random_affinity(6, keep=0.3))[sparse]
    symmetric = lambda w: replace(graph, weight=(w + graph.pattern.transpose(w)) / 2)  # noqa: E731
    problems.check_derivatives(lambda y, w: loss(y, symmetric(w)), problems.points(6, 2), graph.weight)


def test_sum_and_its_terms_agree_in_value_and_gradients():
    x, y = problems.points(40, 3, batch=2), problems.points(40, 2, batch=2, seed=1).requires_grad_()
    graph = tl.KNN(5)(x)
    weight = tl.HeatKernel(2.0)(x, graph).weight.requires_grad_()
    sums = [tl.laplacian_smoothness(y, graph.with_weight(weight), way).sum() for way in ("sum", "none")]
    torch.testing.assert_close(*sums)
    torch.testing.assert_close(*[torch.autograd.grad(loss, (y, weight)) for loss in sums])


@problems.on_every_device
@problems.in_every_dtype
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_constant_embeddings_cost_nothing(reduction, dtype, device):
    for graph in both_kinds(problems.random_affinity(8).to(device, dtype)):
        y = torch.full((8, 2), 1234.567, dtype=dtype, device=device, requires_grad=True)
        loss = tl.laplacian_smoothness(y, graph, reduction)
        loss.backward()
        assert loss == 0
        # How a mean of equal numbers is rounded differs between processors, so y less its mean may be round-off, too.
        rounding = len(y) * torch.finfo(dtype).eps
        assert y.grad.abs().max() <= 4 * graph.to_dense().sum(1).max() * rounding**2 * y.detach().max()


def test_accurate_in_float32_far_from_the_origin():
    """A smooth embedding with a large offset; its float32 values in float64 are the reference."""
    n = 40_000
    angle = torch.arange(n) * (2 * torch.pi / n)
    y = (torch.stack([angle.cos(), angle.sin()], 1) + torch.tensor([100.0, -300.0])).requires_grad_()
    node = torch.arange(n)
    edges = torch.stack([torch.cat([node, (node + 1) % n]), torch.cat([(node + 1) % n, node])])
    loss = tl.laplacian_smoothness(y, tl.Graph.from_edge_index(edges), "sum")
    wide = y.detach().double()
    torch.testing.assert_close(loss.double(), (wide - wide.roll(1, 0)).square().sum(), rtol=1e-5, atol=0)
    exact = 2 * (2 * wide - wide.roll(1, 0) - wide.roll(-1, 0))
    assert (torch.autograd.grad(loss, y)[0] - exact).abs().max() < 1e-6  # of |y| of 300


def losses(y, graph):
    return [tl.laplacian_smoothness(y, graph), spectral_loss(y, graph), orthogonality(y, graph), whiten(y, graph)]


@problems.on_every_device
@pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])
def test_half_precision_computes_in_float32(dtype, device):
    graph = tl.Graph.from_dense(problems.random_affinity(12).float().to(device))
    y = problems.points(12, 2).to(device, dtype)
    for half, single in zip(losses(y, graph), losses(y.float(), graph), strict=True):
        assert half.dtype == dtype
        assert torch.equal(half, single.to(dtype))
    x = problems.points(12, 3).to(device, dtype)
    assert tl.SpectralLoss(tl.KNN(3))(y, x).dtype == dtype
    loss = tl.LaplacianSmoothness(tl.KNN(3))
    assert torch.equal(loss(y, x), loss(y.float(), x.float()).to(dtype))


@problems.every(fill=[0.0, 1e30, torch.nan], sparse=[False, True])
def test_padding_has_no_part(fill, sparse):
    """Three graphs of unequal size as one batch, and values for its rows."""
    parts = [problems.random_affinity(n, seed=n) for n in (5, 9, 7)]
    y, mask = tl.pad_batch(problems.points(21, 2), torch.arange(3).repeat_interleave(torch.tensor([5, 9, 7])))
    affinity = torch.stack([torch.nn.functional.pad(a, (0, 9 - len(a), 0, 9 - len(a))) for a in parts])
    graph, y = problems.stored(affinity, sparse, mask), y.masked_fill(~mask[..., None], fill).requires_grad_()
    singles = [(y[b, : len(a)], tl.Graph.from_dense(a)) for b, a in enumerate(parts)]
    expected = [
        sum(tl.laplacian_smoothness(*single, "sum") for single in singles),
        sum(spectral_loss(*single) for single in singles) / 3,
        sum(orthogonality(*single) for single in singles) / 3,
        torch.cat([whiten(*single) for single in singles]).sin().sum(),
    ]
    together = [
        tl.laplacian_smoothness(y, graph, "sum"),
        spectral_loss(y, graph),
        orthogonality(y, graph),
        whiten(y, graph)[graph.mask].sin().sum(),
    ]
    for one, other in zip(together, expected, strict=True):
        torch.testing.assert_close(one, other)
        gradient = torch.autograd.grad(one, y)[0]
        torch.testing.assert_close(gradient, torch.autograd.grad(other, y)[0])
        assert (gradient[~graph.mask] == 0).all()
    assert (whiten(y, graph)[~graph.mask] == 0).all()


@problems.on_every_device
@problems.in_every_dtype
def test_orthogonality(dtype, device):
    y = problems.points(30, 3, dtype=dtype).to(device)
    torch.testing.assert_close(orthogonality(y), (y.T @ y / 30 - torch.eye(3).to(y)).square().sum())
    for graph in both_kinds(problems.random_affinity(30).to(y)):
        assert orthogonality(whiten(y, graph) * graph.to_dense().sum().sqrt(), graph) < 1e-9
    assert orthogonality(whiten(y) * 30**0.5) < 1e-9
    twice = torch.cat([y, y])  # does not grow with N
    torch.testing.assert_close(orthogonality(twice), orthogonality(y))


@pytest.mark.parametrize("spectrum", problems.known_spectra(), ids=lambda s: s.name)
def test_spectral_loss_of_eigenvectors_is_the_sum_of_eigenvalues(spectrum):
    for k in (1, 2, 4):
        _, y = eigenvectors(spectrum.affinity, k)
        for graph in both_kinds(spectrum.affinity):
            expected = torch.tensor(sum(sorted(spectrum.normalized)[1 : k + 1]), dtype=y.dtype)
            torch.testing.assert_close(spectral_loss(y, graph), expected, atol=1e-10, rtol=1e-10)


def test_no_output_has_less_than_the_sum_of_eigenvalues():
    """Ky Fan, for outputs of every rank: a ridge on what is missing does not pay."""
    affinity = problems.random_affinity(12, keep=0.3)
    graph = tl.Graph.from_dense(affinity)
    bound = eigenvectors(affinity, 3)[0].sum()
    y = problems.points(12, 3, batch=200)
    collapsed = y @ torch.diag(torch.tensor([1, 1e-6, 0.0])).to(y) @ problems.points(3, 3, seed=1)
    _, best = eigenvectors(affinity, 3)
    near = best + 1e-3 * y
    for outputs in (y, collapsed, near, best[:, [0, 0, 1]].expand(1, 12, 3)):
        assert min(spectral_loss(one, graph) for one in outputs) >= bound


@problems.on_every_device
@problems.in_every_dtype
def test_spectral_loss_is_invariant(dtype, device):
    """To shifts, invertible maps of the columns, permutations of the nodes and the scale of the weights."""
    affinity, y = problems.random_affinity(25).to(device, dtype), problems.points(25, 3, dtype=dtype).to(device)
    loss = spectral_loss(y, tl.Graph.from_dense(affinity))
    mix = problems.points(3, 3, seed=5, dtype=dtype).to(device)
    assert torch.linalg.cond(mix) < 20
    order = torch.randperm(25, generator=torch.Generator().manual_seed(0))
    cases = [(y @ mix + 10, affinity), (y * torch.tensor([1e-6, 1, 1e6]).to(y), affinity), (y, 1e-6 * affinity)]
    for other, weights in (*cases, (y[order], affinity[order][:, order])):
        torch.testing.assert_close(spectral_loss(other, tl.Graph.from_dense(weights)), loss, rtol=2e-5, atol=0)


@problems.covering(2, collapse=COLLAPSED, dtype=problems.DTYPES, device=problems.DEVICES)
def test_collapsed_outputs_are_the_worst_and_have_finite_gradients(collapse, dtype, device):
    affinity = problems.random_affinity(20).to(device, dtype)
    y = collapse(problems.points(20, 3, dtype=dtype).to(device)).requires_grad_()
    for graph in both_kinds(affinity):
        loss = spectral_loss(y, graph)
        loss.backward()
        assert y.grad.isfinite().all()
        missing = 3 - int(torch.linalg.matrix_rank(y.detach() - y.detach().mean(0), rtol=1e-4, atol=1e-4))
        assert missing > 0
        assert loss.item() >= 2 * missing * (1 - 1e-3)
        assert whiten(y, graph).isfinite().all()


def test_nan_gives_nan():
    y = problems.points(12, 2)
    y[3, 1] = torch.nan
    assert spectral_loss(y, tl.Graph.from_dense(problems.random_affinity(12))).isnan()
    assert tl.laplacian_smoothness(y, tl.Graph.from_dense(problems.random_affinity(12))).isnan()


def test_whitening_is_a_map_that_can_be_stored():
    graph, y = tl.Graph.from_dense(problems.cycle(30)), problems.points(30, 3).float()
    fresh = tl.Whitening(3)
    with pytest.raises(RuntimeError, match=r"Whitening must be fitted before it takes new points; call fit"):
        fresh(y)
    fitted = copy.deepcopy(fresh).fit(y, graph)
    fresh.load_state_dict(fitted.state_dict())
    assert torch.equal(fresh(y[:4]), fitted(y)[:4])
    z = fitted(y)
    torch.testing.assert_close(z.T @ z * 2, torch.eye(3), atol=1e-5, rtol=0)
    quotients = (tl.laplacian_smoothness(z[:, [i]], graph, "sum") for i in range(3))
    torch.testing.assert_close(fitted.eigenvalues_, torch.stack(list(quotients)), rtol=1e-4, atol=0)
    assert (fitted.eigenvalues_.diff() > 0).all()
    assert (z.gather(0, z.abs().argmax(0, keepdim=True)) > 0).all()
    turned = tl.Whitening(3).fit(y @ problems.points(3, 3, seed=1).float() + 1, graph)
    torch.testing.assert_close(turned(y @ problems.points(3, 3, seed=1).float() + 1), z, atol=1e-3, rtol=0)
    assert repr(fitted) == "Whitening(3)"


def test_graph_of_features_or_given():
    x, y = problems.points(30, 3), problems.points(30, 2, seed=1)
    loss = tl.SpectralLoss(tl.KNN(5), tl.HeatKernel(2.0))
    graph = tl.HeatKernel(2.0)(x, tl.KNN(5)(x))
    torch.testing.assert_close(loss(y, x), spectral_loss(y, graph))
    torch.testing.assert_close(loss(y, graph), spectral_loss(y, graph))
    assert "KNN(k=5" in repr(loss)
    torch.testing.assert_close(loss(y, x, torch.arange(30) < 20), spectral_loss(y[:20], loss.graph_of(x[:20])))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_batch_without_edges_costs_nothing_and_has_gradients_of_zero(reduction):
    for graph in (*both_kinds(0 * problems.path(4)), tl.KNN(2)(problems.points(30, 2)).subgraph(torch.tensor([3]))):
        y = problems.points(graph.num_nodes, 2).requires_grad_()
        loss = tl.laplacian_smoothness(y, graph, reduction).sum()
        assert loss == 0
        loss.backward()
        assert torch.equal(y.grad, torch.zeros_like(y))


def test_the_weighted_mean_does_not_change_with_the_unit_of_the_weights():
    affinity, y = problems.random_affinity(12), problems.points(12, 3)
    expected = 0.5 * (affinity * (y[:, None] - y).square().sum(-1)).sum() / affinity.sum()
    for graph in both_kinds(affinity):
        found = tl.laplacian_smoothness(y, graph, "weighted_mean")
        torch.testing.assert_close(found, expected)
        heavier = graph.with_weight(7 * graph.weight)
        torch.testing.assert_close(tl.laplacian_smoothness(y, heavier, "weighted_mean"), found)
        torch.testing.assert_close(tl.LaplacianSmoothness(reduction="weighted_mean")(y, graph), found)


@pytest.mark.parametrize(("weight", "output"), [(1e37, 1.0), (1e-30, 1e33)])
@pytest.mark.parametrize("loss", [tl.laplacian_smoothness, spectral_loss])
def test_losses_of_huge_float32_numbers_are_those_of_float64(loss, weight, output):
    """Sums leave the range of float32, where the loss and its gradients do not."""
    values, y = problems.random_affinity(40).float() * weight, problems.points(40, 3).float() * output
    found = []
    for dtype in (torch.float32, torch.float64):
        z = y.to(dtype).requires_grad_()
        value = loss(z, tl.Graph.from_dense(values.to(dtype)))
        found.append([value.double().detach(), torch.autograd.grad(value, z)[0].double()])
    for single, double in zip(*found, strict=True):
        assert torch.dist(single, double) <= 1e-5 * double.norm()
