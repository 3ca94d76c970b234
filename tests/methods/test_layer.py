"""LaplacianEigenmaps inside networks: batches of unequal graphs, options, and how it behaves as a torch.nn layer."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_lapeig as tl
from problems import DTYPES, complete, every, grams, ignoring, path, points, stored

# Two sets of points, of which the second one has padding.
X, MASK = points(24, 3, batch=2, dtype=torch.float32), torch.arange(24) < torch.tensor([[24], [13]])


def test_random_signs_only_in_training_and_by_the_generator():
    x = points(20, 3, batch=8)
    module = tl.LaplacianEigenmaps(4, tl.KNN(6), random_signs=True)
    plain = module.eval()(x)
    module.train()
    one = module(x, generator=torch.Generator().manual_seed(0))
    again = module(x, generator=torch.Generator().manual_seed(0))
    other = module(x, generator=torch.Generator().manual_seed(1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    signs = (one / plain)[:, 0]
    torch.testing.assert_close(signs.abs(), torch.ones_like(signs))
    torch.testing.assert_close(one, plain * signs[:, None])
    assert 4 < (signs > 0).sum() < 28
    assert torch.equal(module.fit(x[0]).embedding_, tl.LaplacianEigenmaps(4, tl.KNN(6))(x[0]))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(3, 4), nn.Linear(2, 2)
        self.layer = tl.LaplacianEigenmaps(2, tl.KNN(6), tl.HeatKernel(learnable=True), scale="unit")

    def forward(self, x, mask=None):
        return self.head(self.layer(self.encoder(x), mask=mask))


def gradients(module, *args):
    module.zero_grad()
    module(*args).pow(2).sum().backward()
    return [p.grad.clone() for p in module.parameters()]


# Torch's own, of a tensor that is not a leaf, and of Python 3.13.0.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")
def test_compiles_with_one_graph_break():
    torch.manual_seed(0)
    torch._dynamo.reset()
    network = Network()
    compiled = torch.compile(network, backend="aot_eager")
    torch.testing.assert_close(compiled(X, MASK), network(X, MASK))
    for ours, theirs in zip(gradients(compiled, X, MASK), gradients(network, X, MASK), strict=True):
        torch.testing.assert_close(ours, theirs)
    explained = torch._dynamo.explain(network)(X, MASK)
    assert explained.graph_break_count == 1  # what comes before the layer and what comes after are compiled


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    torch.manual_seed(0)
    network, x = Network(), X.clone().requires_grad_()
    expected = gradients(network, x)
    network.zero_grad()
    checkpoint(network, x, use_reentrant=reentrant).pow(2).sum().backward()
    for parameter, theirs in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, theirs)


@pytest.mark.filterwarnings("ignore:.*isolated")
@every(normalization=["symmetric", "random_walk", "unnormalized"], sparse=[False, True], dtype=DTYPES)
def test_pairs_that_a_graph_lacks(normalization, sparse, dtype):
    """k beyond the nodes: what is there is exact, the rest is zero with an infinite eigenvalue and no gradient."""
    sizes = [9, 4, 2, 1, 0]
    mask = torch.arange(9) < torch.tensor(sizes)[:, None]
    affinity = (complete(9) + path(9)).to(dtype) * (mask[:, :, None] & mask[:, None, :])
    leaf = affinity.clone().requires_grad_()
    graph = stored(leaf, sparse, mask)
    pairs = tl.eigenpairs(tl.Laplacian(graph, normalization), 11, fill=True)
    assert pairs.converged.all()
    assert pairs.gap.isinf().all()
    for b, size in enumerate(sizes):
        have = size if size > 1 else 0  # a node alone has degree zero
        assert pairs.values[b, have:].isinf().all()
        assert not pairs.vectors[b, :, have:].any()
        assert not pairs.projected[b, have:].any()
        if have:
            alone = tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(affinity[b, :have, :have]), normalization), have)
            torch.testing.assert_close(pairs.values[b, :have], alone.values, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(grams(pairs.vectors[b, :have]), grams(alone.vectors), atol=1e-5, rtol=1e-5)
    (grams(pairs.vectors).sum() + (-pairs.values).exp().sum()).backward()
    assert leaf.grad.isfinite().all()


def random_batch(generator):
    """Return up to 8 items of up to 20 points: some far away, copies, all equal, or symmetric."""
    count = int(torch.randint(1, 9, (), generator=generator))
    size = torch.randint(0, 21, (count,), generator=generator)
    x = torch.randn(count, max(1, int(size.max())), 3, generator=generator)
    kind = torch.randint(0, 6, (count,), generator=generator)
    angle = 2 * torch.pi * torch.arange(x.shape[1]) / size[:, None].clamp_min(1)
    polygon = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], -1)
    for b in range(count):
        if kind[b] == 1:
            x[b] = polygon[b]
        elif kind[b] == 2:
            x[b] = x[b].round()
        elif kind[b] == 3:
            x[b] = x[b, :1]
        elif kind[b] == 4:
            x[b, ::4] *= 100
    return x, torch.arange(x.shape[1]) < size[:, None]


def test_batches_of_small_graphs_with_idle_nodes_have_no_solve_that_stalls():
    """Round-off of guards at nodes without edges is what no solve of the gradient takes out."""
    generator = torch.Generator().manual_seed(0)
    rules = (tl.KNN(5), tl.Radius(1.0), tl.KNN(3, "mutual"), tl.KNN(8, "mean"))
    layers = [tl.LaplacianEigenmaps(4, rule, scale="unit") for rule in rules]
    with ignoring():
        warnings.simplefilter("error", tl.ConvergenceWarning)
        for step in range(200):
            x, mask = random_batch(generator)
            y = layers[step % 4](x.requires_grad_(), mask=mask)
            (y.square().sum() + y.tanh().sum()).backward()
            assert x.grad.isfinite().all()
