"""The Laplacian operator: dense form, products, null space, laws, and derivatives of any order."""

from dataclasses import replace

import pytest
import torch

from problems import DTYPES, check_derivatives, covering, every, points, random_affinity, two_cliques
from torch_lapeig import Graph, Laplacian, eigenpairs

NORMALIZATIONS = ["symmetric", "random_walk", "unnormalized"]


@every(sparse=[True, False], normalization=NORMALIZATIONS)
def test_gradcheck_and_gradgradcheck_of_products(sparse, normalization):
    graph = Graph.from_dense(random_affinity(7))
    graph = graph.to_sparse() if sparse else graph
    laplacian = lambda weight: Laplacian(replace(graph, weight=weight), normalization)  # noqa: E731
    check_derivatives(lambda weight, y: laplacian(weight).matmul(y), graph.weight, points(7, 2))  # of each direction


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


@every(sparse=[True, False], normalization=["unnormalized", "symmetric", "random_walk"])
def test_loops_do_not_drown_other_weights(sparse, normalization):
    """Loops cancel analytically: products, entries and their derivatives equal those in float64."""
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
    """Compare with D^-½ (D − W) D^-½ without loops in D − W, to the precision of its own size; loops count in D."""
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
