"""The algebra of values on edges: products and lengths with their derivatives, in blocks, sparse and dense."""

import pytest
import torch

from problems import check_derivatives, every, points, random_affinity
from torch_lapeig import Graph, Laplacian, knn_graph, laplacian_smoothness, normalized_cut
from torch_lapeig.graph.pattern import HUB_EDGES


@every(sparse=[True, False], batch=[None, 3])
def test_squared_lengths(sparse, batch, small_blocks):
    """Direct differences, in blocks; the gradient is a Laplacian's, and differentiable again."""
    x = points(12, 3, batch=batch)
    graph = knn_graph(x, 4)
    graph = graph if sparse else Graph.from_dense(graph.to_dense())
    expected = (x[..., :, None, :] - x[..., None, :, :]).square().sum(-1)
    mask = graph.to_dense() > 0
    lengths = graph.pattern.squared_lengths(x)
    torch.testing.assert_close(graph.pattern.to_dense(lengths) * mask, expected * mask)
    check_derivatives(graph.pattern.squared_lengths, x)
    small_blocks()
    torch.testing.assert_close(graph.pattern.squared_lengths(x), lengths)


@every(columns=[1, 9, 10, 33], dtype=[torch.float32, torch.float64])
def test_products_of_blocks_in_any_storage(columns, dtype):
    """Blocks of few and many columns; rows without edges, and graphs without any."""
    affinity = torch.block_diag(torch.zeros(2, 2), random_affinity(20), torch.zeros(1, 1)).to(dtype)
    graph = Graph.from_dense(affinity).to_sparse()
    y = points(23, 2 * columns).to(dtype)
    for block in (y[:, :columns], y[:, ::2], y.T.contiguous().T[:, :columns], y[:1, :columns].expand(23, columns)):
        torch.testing.assert_close(graph.pattern.matmul(graph.weight, block), affinity @ block)
    torch.testing.assert_close(graph.pattern.matmul(graph.weight.repeat_interleave(2)[::2], y), affinity @ y)
    nothing = Graph.from_dense(torch.zeros(23, 23, dtype=dtype)).to_sparse()
    assert not nothing.pattern.matmul(nothing.weight, y).any()


@every(batch=[None, 2], dtype=[torch.float32, torch.float64])
def test_gradients_of_lengths_by_differences_and_by_products(batch, dtype, small_blocks):
    """A few edges are pulled by differences, many by a product, as in gradients that are differentiated again."""
    x = points(15, 12, batch=batch).to(dtype).requires_grad_()
    graph = knn_graph(x.detach(), 4)
    weight = graph.weight * torch.linspace(1, 2, len(graph.weight), dtype=dtype)
    graph = graph.with_weight((weight + graph.pattern.transpose(weight)) / 2)

    def gradients(**keywords):
        energy = laplacian_smoothness(x, graph, "sum")
        lengths = (graph.weight * graph.pattern.squared_lengths(x).sqrt()).sum()
        return *torch.autograd.grad(energy, x, **keywords), *torch.autograd.grad(lengths, x, **keywords)

    few, twice = gradients(), gradients(create_graph=True)
    small_blocks()
    for one, other, another in zip(few, twice, gradients(), strict=True):
        torch.testing.assert_close(one, other.detach())
        torch.testing.assert_close(one, another)


@every(many=[True, False], sparse=[True, False])
def test_loops_do_not_drown_the_gradients_of_other_edges(many, sparse, small_blocks):
    """A dense affinity of a small bandwidth has ones on its diagonal, and next to nothing beside it."""
    weight = 1e-9 * random_affinity(30)
    graph = Graph.from_dense(weight + torch.eye(30, dtype=weight.dtype))
    graph = graph.to_sparse() if sparse else graph
    if many:
        small_blocks()
    grads = []
    for dtype in (torch.float32, torch.float64):
        x = points(30, 4).to(dtype).requires_grad_()
        by_lengths = (graph.weight.to(dtype) * graph.pattern.squared_lengths(x)).sum()
        losses = laplacian_smoothness(x, graph.to(dtype)), by_lengths
        grads.append([torch.autograd.grad(loss, x)[0].double() for loss in losses])
    for single, double in zip(*grads, strict=True):
        torch.testing.assert_close(single, double, rtol=1e-4, atol=1e-5 * double.abs().max().item())


@pytest.mark.parametrize("leaves", [900, 5000, 100_000])
def test_sums_at_hubs_keep_the_digits_of_float32(leaves):
    """Equal numbers added up one by one are rounded in one direction: 1e-4 at a hub of 100,000 edges."""
    leaf = torch.arange(1, leaves + 1)
    hub = torch.zeros_like(leaf)
    edges = torch.stack([torch.cat([hub, leaf]), torch.cat([leaf, hub])])
    graph = Graph.from_edge_index(edges, torch.full((2 * leaves,), 0.1), leaves + 1)
    degree = leaves * float(torch.tensor(0.1))
    laplacian = Laplacian(graph, "unnormalized")
    assert laplacian.degrees[0].item() == pytest.approx(degree, rel=2e-7)
    y = torch.full((leaves + 1, 2), 0.3)
    y[0] = 0
    some = 2e-5 if leaves < HUB_EDGES else 5e-7
    assert laplacian.matmul(y)[0].tolist() == pytest.approx([-0.3 * degree] * 2, rel=some)
    assert normalized_cut((torch.arange(leaves + 1) > 0).long(), graph).item() == pytest.approx(2, rel=some)
    y.requires_grad_()
    loss = laplacian_smoothness(y, graph, "sum")
    assert loss.item() == pytest.approx(0.09 * 2 * degree, rel=5e-7)
    assert torch.autograd.grad(loss, y)[0][0].tolist() == pytest.approx([-0.6 * degree] * 2, rel=some)


@pytest.mark.parametrize("columns", [1, 3])
def test_smoothness_of_many_equal_edges_keeps_the_digits_of_float32(columns):
    """In pieces and in one, the squares are not added up one by one (1e-3 off with 200,000 edges)."""
    for nodes in (20_000, 100_000):
        y = (0.3 * (torch.arange(nodes) % 2))[:, None].expand(nodes, columns)
        i = torch.arange(nodes - 1)
        edges = torch.stack([torch.cat([i, i + 1]), torch.cat([i + 1, i])])
        graph = Graph.from_edge_index(edges, torch.full((2 * (nodes - 1),), 0.7), nodes)
        expected = columns * float(torch.tensor(0.3)) ** 2 / 2
        assert laplacian_smoothness(y, graph, "weighted_mean").item() == pytest.approx(expected, rel=2e-6)


def test_a_product_with_one_vector_has_its_tangent_where_no_gradients_are_recorded():
    operator = Laplacian(Graph.from_dense(random_affinity(9))).symmetric
    y, tangent = points(9, 1), points(9, 1, seed=1)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        product = operator.matmul(torch.autograd.forward_ad.make_dual(y, tangent))
        change = torch.autograd.forward_ad.unpack_dual(product).tangent
        torch.testing.assert_close(change, operator.to_dense() @ tangent)
    torch.testing.assert_close(operator.matmul(y), operator.to_dense() @ y)
