"""Eigenpairs: known spectra, agreement with SciPy, residuals, status, laws."""

import pytest
import torch

import problems
import torch_lapeig as tl
from torch_lapeig import KNN, Graph, HeatKernel, Laplacian, LaplacianEigenmaps, eigenpairs, knn_graph
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Krylov, Lobpcg, ShiftInvert, component_eigenpairs

RESIDUAL = {torch.float32: 1e-5, torch.float64: 1e-10}
SPECTRA = {problem.name: problem for problem in problems.known_spectra()}
NORMALIZATIONS = ["symmetric", "random_walk", "unnormalized"]


@problems.covering(
    2,
    problem=SPECTRA,
    solver=[None, Eigh(), ChebyshevSubspace(), Krylov()],
    normalization=NORMALIZATIONS,
    dtype=problems.DTYPES,
    device=problems.DEVICES,
    is_sparse=[False, True],
)
def test_known_spectra(problem, solver, normalization, dtype, device, is_sparse):
    laplacian = Laplacian(problems.stored(problem.affinity.to(device, dtype), is_sparse), normalization)
    expected = sorted(problem.unnormalized if normalization == "unnormalized" else problem.normalized)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for k in (1, 2, 3, 5, 7, len(expected) - 1, len(expected)):
        pairs = eigenpairs(laplacian, k, solver)
        torch.testing.assert_close(pairs.values.cpu(), torch.tensor(expected[:k], dtype=dtype), atol=tolerance, rtol=0)
        assert pairs.converged
        assert (pairs.residuals <= RESIDUAL[dtype] * laplacian.symmetric.bound).all()
        assert pairs.vectors.dtype == dtype
        v = pairs.vectors * laplacian.degrees.sqrt()[:, None] if normalization == "random_walk" else pairs.vectors
        v = v.double()
        torch.testing.assert_close(v.mT @ v, torch.eye(k).to(v), atol=tolerance, rtol=0)
        rest = laplacian.symmetric.double().matmul(v) - v * pairs.values
        assert rest.norm(dim=0).max() <= 2 * RESIDUAL[dtype] * laplacian.symmetric.bound
        following = [*expected, torch.inf][k] - expected[k - 1]
        assert pairs.gap.item() == pytest.approx(following, abs=1e-6 * laplacian.symmetric.bound.item())


@problems.on_every_device
@problems.in_every_dtype
def test_residuals_are_norms_of_residual_vectors(dtype, device):
    laplacian = Laplacian(knn_graph(problems.points(600, 4, dtype=dtype).to(device), 10))
    pairs = eigenpairs(laplacian, 5, ChebyshevSubspace())
    residual = laplacian.to_dense().double() @ pairs.vectors.double() - pairs.vectors.double() * pairs.values.double()
    torch.testing.assert_close(pairs.residuals.double(), residual.norm(dim=0), atol=2e-7, rtol=0)
    assert pairs.residuals.max() <= RESIDUAL[dtype]
    everything = torch.linalg.eigvalsh(laplacian.to_dense().double())
    torch.testing.assert_close(pairs.gap.double(), everything[5] - everything[4], atol=1e-5, rtol=0)


def test_signs_are_deterministic():
    laplacian = Laplacian(knn_graph(problems.points(100, 3), 8), "random_walk")
    for solver in (Eigh(), ChebyshevSubspace(), ChebyshevSubspace(seed=5)):
        v = eigenpairs(laplacian, 5, solver).vectors
        assert (v.gather(0, v.abs().argmax(0, keepdim=True)) > 0).all()
    symmetric = eigenpairs(Laplacian(Graph.from_dense(problems.path(9)), "random_walk"), 4).vectors
    assert (symmetric[0, [1, 3]] > 0).all()  # both ends are as large: the first one counts


@pytest.mark.filterwarnings("ignore::torch_lapeig.ResolutionWarning")
@problems.covering(2, bridge=[1e-3, 1e-6, 1e-12, 1e-18], solver=[Eigh(), ChebyshevSubspace()], dtype=problems.DTYPES)
def test_nearly_disconnected_graphs(bridge, solver, dtype):
    """Three clusters with faint bridges: λ₂ and λ₃ may be below round-off, the vectors are orthonormal all the same."""
    affinity = torch.block_diag(*[problems.random_affinity(30, seed=i) for i in range(3)])
    for i in (29, 59):
        affinity[i, i + 1] = affinity[i + 1, i] = bridge
    pairs = eigenpairs(Laplacian(Graph.from_dense(affinity.to(dtype))), 3, solver)
    eps = torch.finfo(dtype).eps
    gram = pairs.vectors.T @ pairs.vectors
    torch.testing.assert_close(gram, torch.eye(3, dtype=dtype), atol=50 * eps, rtol=0)
    assert pairs.resolved == pairs.converged == (bridge > 1e-15)
    # All three are constant on each cluster, in D^½.
    flat = pairs.vectors / affinity.sum(1).sqrt()[:, None].to(dtype)
    assert flat[:30].std(0).max() < 1e-3 * flat.abs().max()


def test_float32_where_it_does_not_resolve_the_gap():
    """A path of 3000 nodes: gaps of 1e-6. The answer is worked out in float64, and correct."""
    pairs = eigenpairs(Laplacian(Graph.from_dense(problems.path(3000).float()).to_sparse()), 4)
    exact = eigenpairs(Laplacian(Graph.from_dense(problems.path(3000)).to_sparse()), 4)
    assert pairs.vectors.dtype == torch.float32
    assert pairs.converged
    torch.testing.assert_close(pairs.values.double(), exact.values, rtol=1e-4, atol=0)
    assert problems.subspace_angle(exact.vectors, pairs.vectors.double()) < 1e-3
    assert ((exact.vectors.T @ pairs.vectors.double()).diagonal() > 1 - 1e-6).all()
    # The residuals are those of the rounded vectors.
    v = pairs.vectors.double()
    residual = Laplacian(Graph.from_dense(problems.path(3000)).to_sparse()).matmul(v) - v * pairs.values.double()
    torch.testing.assert_close(pairs.residuals.double(), residual.norm(dim=0), atol=3e-7, rtol=0)
    assert pairs.residuals[1:].min() > 1e-9


def test_reordering_is_invisible(monkeypatch):
    x = problems.swiss_roll(800).requires_grad_()
    results = []
    for limit in (10**5, 100):
        monkeypatch.setattr("torch_lapeig.eigen.problem.REORDER_NODES", limit)
        pairs = eigenpairs(Laplacian(HeatKernel()(x, knn_graph(x, 10)), "random_walk"), 4)
        (gradient,) = torch.autograd.grad((pairs.vectors * problems.points(800, 4)).sum() + pairs.values.sum(), x)
        results.append((pairs.values.detach(), pairs.vectors.detach(), gradient))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7 * float(one.abs().max()), rtol=0)


@pytest.mark.filterwarnings("ignore:.*isolated")
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_a_degree_too_small_for_float32_stays_out_in_float64(storage):
    """Cut through a pair, float32 does not resolve the gap; in float64 the node of degree 5e-41 would have λ = 1."""
    affinity = torch.block_diag(problems.cycle(12), torch.zeros(1, 1, dtype=torch.float64)).float()
    affinity[0, 12] = affinity[12, 0] = 5e-41
    graph = Graph.from_dense(affinity)
    pairs = eigenpairs(Laplacian(graph if storage == "dense" else graph.to_sparse()), 8)
    torch.testing.assert_close(pairs.values, 1 - torch.cos(2 * torch.pi * torch.tensor([0, 1, 1, 2, 2, 3, 3, 4]) / 12))
    assert pairs.converged
    assert pairs.residuals.max() < 1e-6
    assert not pairs.vectors[12].any()


@pytest.mark.parametrize("solver", [None, Eigh(), ChebyshevSubspace(), Lobpcg(), ShiftInvert()], ids=str)
def test_float32_where_the_default_is_float64(solver):
    """Numbers made on the way have the dtype of the problem, not torch's default one."""
    x = problems.points(150, 3).float()
    expected = eigenpairs(Laplacian(KNN(8)(x)), 4, solver)
    with problems.setting(torch.set_default_dtype, torch.float64, torch.float32):
        found = eigenpairs(Laplacian(KNN(8)(x)), 4, solver)
        many = LaplacianEigenmaps(3, KNN(8), solve=solver)(torch.stack([x, x.flip(0)]))
    assert found.values.dtype == many.dtype == torch.float32
    torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_improved", [False, True])
def test_components_of_similar_sizes_are_solved_together(is_improved):
    """Each component has the pairs of its own graph, however many others share the batch, and their gradients."""
    sizes = [2, 3, 3, 2, 4, 30, 17, 1, 31, 5, 16, 3]
    sets = [problems.points(n, 2, seed=i) + 1000 * i for i, n in enumerate(sizes)]
    x = torch.cat(sets)[torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(0))].requires_grad_()
    # Neighbours in other sets are edges of weight 0.
    graph = tl.radius_graph(x.detach(), 1.2) if is_improved else knn_graph(x.detach(), 5)
    graph = tl.ImprovedWeights(1.44)(x, graph) if is_improved else HeatKernel(0.5)(x, graph)
    normalization = "unnormalized" if is_improved else "symmetric"
    found = component_eigenpairs(graph, 4, normalization)
    expected = [(nodes, graph.subgraph(nodes)) for nodes in graph.nodes_of_components()]
    assert len(found) == len(expected) >= len(sizes) - 1
    for part, (nodes, own) in zip(found, expected, strict=True):
        alone = eigenpairs(Laplacian(own, normalization), min(4, len(nodes)))
        assert torch.equal(part.nodes, nodes)
        torch.testing.assert_close(part.pairs.values, alone.values, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(part.pairs.projected, torch.diag(alone.values), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(part.pairs.gap, alone.gap, rtol=1e-6, atol=1e-10)
        grads = [torch.autograd.grad(p.values.square().sum(), x, retain_graph=True)[0] for p in (part.pairs, alone)]
        torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-10)
        if not is_improved:
            image = Laplacian(own, normalization).to_dense() @ part.pairs.vectors
            torch.testing.assert_close(image, part.pairs.vectors * part.pairs.values, rtol=0, atol=1e-10)
