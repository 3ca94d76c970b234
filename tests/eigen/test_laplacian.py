"""The Laplacian operator: dense form, products, null space, laws, and derivatives of any order."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csgraph

from problems import (
    DTYPES,
    covering,
    in_every_dtype,
    known_spectra,
    on_every_device,
    points,
    random_affinity,
    two_cliques,
)
from torch_lapeig import Graph, HeatKernel, Laplacian, eigenpairs, knn_graph, laplacian_smoothness

NORMALIZATIONS = ["symmetric", "random_walk", "unnormalized"]


@on_every_device
@in_every_dtype
def test_agrees_with_scipy(dtype, device):
    affinity = random_affinity(15).to(device, dtype)
    for normalization, normed in (("symmetric", True), ("unnormalized", False)):
        ours = Laplacian(Graph.from_dense(affinity), normalization)
        expected, diagonal = csgraph.laplacian(affinity.cpu().numpy(), normed=normed, return_diag=True)
        np.testing.assert_allclose(ours.to_dense().cpu(), expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(ours.degrees.sqrt().cpu() if normed else ours.degrees.cpu(), diagonal, rtol=1e-6)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_random_walk_rows_and_null_vector(normalization):
    laplacian = Laplacian(Graph.from_dense(random_affinity(15)), normalization)
    null = laplacian.degrees.sqrt() if normalization == "symmetric" else torch.ones(15, dtype=torch.float64)
    torch.testing.assert_close(laplacian.to_dense() @ null, torch.zeros(15, dtype=torch.float64))


@on_every_device
@in_every_dtype
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_matmul_equals_dense(normalization, dtype, device):
    x = points(20, 3, batch=3, dtype=dtype).to(device)
    laplacian = Laplacian(knn_graph(x, 4), normalization)
    y = points(20, 5, batch=3, seed=1, dtype=dtype).to(device)
    torch.testing.assert_close(laplacian.matmul(y), laplacian.to_dense() @ y)
    with torch.no_grad():
        torch.testing.assert_close(laplacian.matmul(y), laplacian.to_dense() @ y)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("sparse", [True, False])
def test_gradcheck_and_gradgradcheck_of_products(sparse, normalization):
    graph = Graph.from_dense(random_affinity(7))
    graph = graph.to_sparse() if sparse else graph

    def product(weight, y):
        return Laplacian(replace(graph, weight=weight), normalization).matmul(y)  # of each direction on its own

    arguments = (graph.weight.clone().requires_grad_(), points(7, 2).requires_grad_())
    assert torch.autograd.gradcheck(product, arguments)
    assert torch.autograd.gradgradcheck(product, arguments)


@pytest.mark.parametrize("normalization", ["symmetric", "unnormalized"])
@pytest.mark.parametrize("problem", known_spectra(), ids=lambda p: p.name)
def test_dense_form_has_the_known_spectrum(problem, normalization):
    laplacian = Laplacian(Graph.from_dense(problem.affinity), normalization)
    expected = problem.normalized if normalization == "symmetric" else problem.unnormalized
    values = torch.linalg.eigvalsh(laplacian.to_dense())
    torch.testing.assert_close(values, torch.tensor(sorted(expected), dtype=torch.float64))
    assert values.max() <= laplacian.symmetric.bound.item() + 1e-12


@covering(2, m=[1, 2, 3, 6], sparse=[True, False], normalization=["symmetric", "unnormalized"])
def test_null_vectors_are_a_basis_of_the_null_space(sparse, normalization, m):
    affinity = torch.stack([torch.block_diag(two_cliques(3, 2), two_cliques(4, 2)), random_affinity(11)])
    affinity[0, 0] = affinity[0, :, 0] = 0  # an isolated node takes no part
    graph = Graph.from_dense(affinity)
    laplacian = Laplacian(graph.to_sparse() if sparse else graph, normalization)
    vectors, dimension = laplacian.symmetric.null_vectors(m), laplacian.nullity
    assert dimension.tolist() == [4, 1]
    for b in range(2):
        v = vectors[b, :, : min(m, dimension[b])]
        torch.testing.assert_close(v.T @ v, torch.eye(v.shape[1], dtype=v.dtype))
        assert (laplacian.to_dense()[b] @ v).abs().max() < 1e-14
        assert not vectors[b, :, v.shape[1] :].any()
        whole = laplacian.degrees[b].sqrt() if normalization == "symmetric" else laplacian.active[b].double()
        torch.testing.assert_close(v[:, 0], whole / whole.norm())
    assert not vectors[0, 0].any()


def test_smoothness_is_the_quadratic_form():
    graph = Graph.from_dense(random_affinity(15))
    y = points(15, 3)
    trace = (y * Laplacian(graph, "unnormalized").matmul(y)).sum()
    torch.testing.assert_close(laplacian_smoothness(y, graph, "sum"), trace)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("sparse", [True, False])
def test_self_loops_count_in_degrees_only(sparse, normalization):
    affinity = random_affinity(8)
    loops = Graph.from_dense(affinity + torch.diag(torch.full((8,), 2.0, dtype=torch.float64)))
    with_loops = Laplacian(loops.to_sparse() if sparse else loops, normalization)
    y = points(8, 3)
    with torch.no_grad():
        torch.testing.assert_close(with_loops.matmul(y), with_loops.to_dense() @ y)
    torch.testing.assert_close(with_loops.degrees, affinity.sum(1) + 2)
    if normalization == "unnormalized":
        plain = Laplacian(Graph.from_dense(affinity), normalization)
        torch.testing.assert_close(with_loops.to_dense(), plain.to_dense())


@pytest.mark.parametrize("normalization", ["unnormalized", "symmetric", "random_walk"])
@pytest.mark.parametrize("sparse", [True, False])
def test_loops_do_not_drown_other_weights(sparse, normalization):
    """What float32 would cancel is left out: products, entries and their derivatives are those of float64."""
    weight, y = 1e-9 * random_affinity(20) + torch.diag(torch.linspace(0, 1e12, 20, dtype=torch.float64)), points(20, 3)
    found = []
    for dtype in (torch.float32, torch.float64):
        graph = Graph.from_dense(weight.to(dtype))
        graph = graph.to_sparse() if sparse else graph
        graph = graph.with_weight(graph.weight.clone().requires_grad_())
        laplacian = Laplacian(graph, normalization)
        product = laplacian.matmul(y.to(dtype))
        (grad,) = torch.autograd.grad(product.square().sum() / product.square().sum().detach(), graph.weight)
        found.append((product, laplacian.to_dense(), graph.pattern.to_dense(grad)))
    product, entries, grad = found[1]
    row, others = entries.abs().amax(1, keepdim=True), ~torch.eye(20, dtype=torch.bool)
    assert ((found[0][0] - product).abs() <= 1e-5 * row).all()
    assert ((found[0][1] - entries).abs() <= 1e-5 * row).all()
    assert (found[0][2] - grad)[others].abs().max() <= 1e-4 * grad[others].abs().max()


@covering(2, kind=["dense", "sparse", "batch"], normalization=NORMALIZATIONS, dtype=DTYPES)
@pytest.mark.filterwarnings("ignore:.*hidden in round-off")  # entries of D^-½ v at nodes without a loop
def test_eigenvalues_beside_large_loops(kind, dtype, normalization):
    """Of D^-½ (D − W) D^-½ with D − W of the other weights, to the precision of its own size; the loops count in D."""
    weight = (1e-6 * random_affinity(25)).to(dtype).double()
    loops = torch.cat([torch.zeros(5), torch.logspace(-6, 9, 20)]).to(dtype).double()
    others = torch.diag(weight.sum(1)) - weight
    root = (weight.sum(1) + loops).rsqrt() if normalization != "unnormalized" else torch.ones(25, dtype=torch.float64)
    expected = torch.linalg.eigvalsh(root[:, None] * others * root)[:6]
    graph = Graph.from_dense((weight + torch.diag(loops)).to(dtype))
    if kind == "batch":
        graph = Graph.from_dense(torch.stack([graph.weight, weight.to(dtype)]))
    values = eigenpairs(Laplacian(graph if kind == "dense" else graph.to_sparse(), normalization), 6).values
    error = (values.reshape(-1, 6)[0].double() - expected).abs().max()
    assert error < 500 * torch.finfo(dtype).eps * others.diagonal().mul(root**2).max()


def test_a_graph_with_loops_and_a_small_bandwidth():
    """Loops have weight 1, where the other weights are 1e-9: values as without them, as they count in degrees only."""
    angle = torch.arange(40) * torch.pi / 20
    x, found = 6.4 * torch.stack([angle.cos(), angle.sin()], 1), []
    for self_loops in (True, False):
        graph = HeatKernel(0.05)(x, knn_graph(x, 2, self_loops=self_loops))
        assert graph.pattern.has_loops(graph.weight) == self_loops
        found.append(eigenpairs(Laplacian(graph, "unnormalized"), 5).values)
    assert 0 < found[1].max() < 1e-8
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-14)


def test_reordered_is_the_same_operator():
    laplacian = Laplacian(knn_graph(points(60, 2), 5))
    other, order = laplacian.symmetric.reordered()
    torch.testing.assert_close(other.to_dense(), laplacian.to_dense()[order][:, order])
    torch.testing.assert_close(other.double().to_dense(), other.to_dense())
    torch.testing.assert_close(other.null_vectors(1)[0], laplacian.symmetric.null_vectors(1)[0, order])
    before = laplacian.graph.edge_index.diff(dim=0).abs().max()
    after = (other.pattern.row - other.pattern.col).abs().max()
    assert after < before
    with pytest.raises(ValueError, match="one sparse graph"):
        Laplacian(Graph.from_dense(random_affinity(5))).symmetric.reordered()


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_rows_of_padding_are_zero(normalization):
    mask = torch.arange(50) % 5 > 0
    laplacian = Laplacian(knn_graph(points(50, 2), 4, mask=mask), normalization)
    y = torch.randn(50, 3, dtype=torch.float64)
    for matmul in (laplacian.matmul, laplacian.symmetric.matmul):
        with torch.no_grad():
            found = matmul(y)
        assert not found[~mask].any()
        torch.testing.assert_close(found, matmul(y.requires_grad_()).detach(), rtol=0, atol=1e-14)
        y = y.detach()
