"""The differentiation rule: against finite differences, other solvers, and the derivative through a solver."""

import pytest
import torch

import problems
import torch_lapeig as tl
from problems import every, points
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Krylov, Lobpcg


@problems.covering(2, batch=[None, 2], t=[0.8, "median"], device=problems.DEVICES)
def test_gradcheck_through_points_and_bandwidth(batch, t, device):
    x = points(10, 2, batch=batch).to(device).requires_grad_()
    kernel = tl.HeatKernel(t, learnable=True).double().to(device)
    loss = problems.projector_loss(10)

    def function(x, log_factor):
        graph = torch.func.functional_call(kernel, {"log_factor": log_factor}, (x, tl.knn_graph(x, 4)))
        pairs = tl.eigenpairs(tl.Laplacian(graph, "random_walk"), 3)
        if batch is None:
            return pairs.values, loss(pairs.vectors.cpu())
        return pairs.values, torch.stack([loss(v) for v in pairs.vectors.cpu()])

    assert torch.autograd.gradcheck(function, (x, kernel.log_factor), atol=1e-6, fast_mode=device != "cpu")


@pytest.mark.filterwarnings("ignore:.*isolated")
def test_gradient_with_an_isolated_node_is_finite_and_leaves_it_out():
    weight, graph_of = problems.edge_parameters(torch.nn.functional.pad(problems.random_affinity(8), (0, 1, 0, 1)))
    padded = tl.eigenpairs(tl.Laplacian(graph_of(weight), "random_walk"), 3)
    loss = problems.projector_loss(8)
    gradient = torch.autograd.grad(loss(padded.vectors[:8]) + padded.vectors[8].sum(), weight)[0]
    without, graph_without = problems.edge_parameters(problems.random_affinity(8))
    laplacian = tl.Laplacian(graph_without(without), "random_walk")
    (expected,) = torch.autograd.grad(loss(tl.eigenpairs(laplacian, 3).vectors), without)
    torch.testing.assert_close(gradient, expected)


def test_unequal_weights_of_the_two_directions_get_the_symmetric_gradient():
    graph = tl.Graph.from_dense(problems.random_affinity(9)).to_sparse()
    weight = graph.weight.clone().requires_grad_()
    pairs = tl.eigenpairs(tl.Laplacian(graph.with_weight(weight), "unnormalized"), 3)
    (gradient,) = torch.autograd.grad(pairs.values[1] + pairs.vectors[2, 2], weight)
    row, col = graph.edge_index
    free, graph_of = problems.edge_parameters(problems.random_affinity(9))
    tied = tl.eigenpairs(tl.Laplacian(graph_of(free), "unnormalized"), 3)
    (expected,) = torch.autograd.grad(tied.values[1] + tied.vectors[2, 2], free)
    torch.testing.assert_close((gradient + graph.pattern.transpose(gradient))[row < col], expected)


@pytest.mark.parametrize("heavy", [1e4, 2.0**18])
def test_second_derivatives_of_a_vector_near_the_null_vector_where_the_first_is_zero_by_symmetry(heavy):
    """Two nodes with heavy loops, which exchanging them leaves as they are: λ₂ = 2 / heavy."""
    pattern = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]], dtype=torch.float64)
    direction = torch.tensor([[3, 1, 0, 2], [1, 5, 1, 0], [0, 1, 0, 3], [2, 0, 3, 0]], dtype=torch.float64) / 10
    weight = pattern + torch.diag(torch.tensor([heavy, heavy, 0, 0], dtype=torch.float64))

    def slope(t):
        x = (t * direction).requires_grad_()
        y = tl.LaplacianEigenmaps(1, tl.Precomputed("affinity"))(weight * x.exp())
        (gradient,) = torch.autograd.grad(y.pow(4).sum(), x, create_graph=True)
        return (gradient * direction).sum(), x

    first, x = slope(0.0)
    (second,) = torch.autograd.grad(first, x)
    expected = (slope(1e-4)[0] - slope(-1e-4)[0]) / 2e-4
    torch.testing.assert_close((second * direction).sum(), expected.detach(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("normalization", ["symmetric", "random_walk", "unnormalized"])
def test_forward_over_reverse(normalization):
    """Hessian-vector products, against reverse over reverse."""
    weight, graph_of = problems.edge_parameters(problems.random_affinity(9))
    loss = problems.projector_loss(9)
    direction = points(len(weight), 1)[:, 0]

    def function(w):
        pairs = tl.eigenpairs(tl.Laplacian(graph_of(w), normalization), 3)
        return loss(pairs.vectors) + pairs.values.sum()

    (gradient,) = torch.autograd.grad(function(weight), weight, create_graph=True)
    (expected,) = torch.autograd.grad(gradient @ direction, weight)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(weight.detach(), direction).requires_grad_()
        (gradient,) = torch.autograd.grad(function(dual), dual, create_graph=True)
        product = torch.autograd.forward_ad.unpack_dual(gradient).tangent
    torch.testing.assert_close(product, expected)


@every(storage=["dense", "sparse"], solver=[Lobpcg(), ChebyshevSubspace(), Krylov()])
def test_gradients_agree_between_solvers(solver, storage):
    """The linear solve with guards and multigrid, against the whole complement."""
    x = problems.swiss_roll(700)
    affinity = tl.HeatKernel()(x, tl.knn_graph(x, 10)).to_dense().detach()
    results = []
    for candidate in (Eigh(), solver):
        graph = tl.Graph.from_dense(affinity.clone().requires_grad_())
        used = graph if storage == "dense" else graph.to_sparse()
        pairs = tl.eigenpairs(tl.Laplacian(used, "random_walk"), 5, candidate)
        ((pairs.vectors * points(700, 5)).sum() + pairs.values.sum()).backward()
        results.append(torch.where(affinity > 0, graph.weight.grad, 0))
    exact, found = results
    assert (exact - found).norm() <= 1e-6 * exact.norm()


@pytest.mark.parametrize("normalization", ["symmetric", "random_walk", "unnormalized"])
def test_the_sign_of_projected_is_that_of_the_vectors(normalization):
    """V f(Λ) Vᵀ with the vectors D^-½ v, whose signs are settled after the scaling: exact at equal eigenvalues."""
    line, unit = problems.path(8), torch.eye(8, dtype=torch.float64)
    weight, graph_of = problems.edge_parameters(torch.kron(line, unit) + torch.kron(unit, line))

    def heat(w):
        return problems.heat_of(tl.eigenpairs(tl.Laplacian(graph_of(w), normalization), 13), 3)[:4, :4]

    assert torch.autograd.gradcheck(heat, (weight,), atol=1e-6, fast_mode=True)


@every(n=[40, 700], dtype=[torch.float64, torch.float32])
def test_pairs_are_the_same_with_gradients_and_without(n, dtype):
    """To the last bit: a network is not another one in evaluation, and a checkpoint is worked out again as it was."""
    graph = tl.knn_graph(points(n, 3, batch=2).to(dtype), 6)
    bare = tl.eigenpairs(tl.Laplacian(graph), 5)
    pairs = tl.eigenpairs(tl.Laplacian(graph.with_weight(graph.weight.clone().requires_grad_())), 5)
    assert pairs.vectors.requires_grad
    assert not bare.vectors.requires_grad
    assert torch.equal(bare.vectors, pairs.vectors.detach())
    assert torch.equal(bare.values, pairs.values.detach())


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, lambda f: lambda x: torch.func.vjp(f, x)])
def test_transforms_of_torch_func_are_refused(transform):
    x = points(20, 2)
    graph = tl.knn_graph(x, 4)
    dense = graph.to_dense()
    for name, call, value in (
        ("x", lambda x: tl.HeatKernel(1.0)(x, tl.knn_graph(x, 4)).weight.sum(), x),
        ("weight", lambda w: tl.eigenpairs(tl.Laplacian(graph.with_weight(w)), 3).values.sum(), graph.weight),
        ("weight", lambda w: tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(w)), 3).values.sum(), dense),
        ("matrix", lambda w: tl.eigenpairs(w, 3).values.sum(), dense),
        ("matrix", lambda w: tl.eigh(w).values.sum(), dense),
        ("x", lambda w: tl.MDS(2)(w).square().sum(), dense),
    ):
        with pytest.raises(TypeError, match=rf"{name} must be a plain tensor, .* inside a transform of torch.func"):
            transform(call)(value)
    labels = dense[:, :2] + 0.5
    with pytest.raises(TypeError, match=r"x must be a plain tensor, .* compute before the transform what does not"):
        transform(lambda labels: tl.LabelSpreading(tl.KNN(4))(x, labels).sum())(labels)
    few = labels * (torch.arange(20) < 4)[:, None]
    harmonic = tl.HarmonicFunction(tl.Precomputed("affinity"))
    with pytest.raises(TypeError, match=r"(x|weight) must be a plain tensor, got one inside a transform of torch.func"):
        torch.func.jvp(lambda labels: harmonic(tl.Graph.from_dense(dense), labels), (few,), (few,))


GRAPH = tl.HeatKernel()(points(12, 3), tl.knn_graph(points(12, 3), 4))
DENSE, EDGES = tl.Graph.from_dense(GRAPH.to_dense()), GRAPH.edge_index
PAIRS = tl.eigenpairs(tl.Laplacian(GRAPH), 4)
MAPS = [tl.LaplacianEigenmaps(2, tl.KNN(4)).fit(points(12, 3)).frozen(), tl.MDS(2).fit(points(12, 3)).frozen()]
OF_ROWS = {
    "smoothness": lambda y: tl.laplacian_smoothness(y, GRAPH),
    "smoothness, dense": lambda y: tl.laplacian_smoothness(y, DENSE),
    "spectral loss": lambda y: tl.losses.spectral_loss(y, DENSE),
    "filter": lambda y: (tl.SpectralFilter(torch.exp)(PAIRS, y) * torch.arange(12)[:, None]).sum(),
    "cut": lambda y: tl.normalized_cut(y.softmax(1), GRAPH),
    "labels": lambda y: tl.LabelSpreading(tl.Precomputed("affinity"))(GRAPH, y).square().sum(),
    "encoding": lambda y: tl.laplacian_positional_encoding(EDGES, 12, 2, GRAPH.weight * y.mean()).values.sum(),
    "frozen": lambda y: sum(of(torch.cat([y, y[:, :1]], 1)).square().sum() for of in MAPS),
}


@pytest.mark.parametrize("function", OF_ROWS.values(), ids=OF_ROWS)
def test_transforms_of_torch_func_reach_what_reads_no_numbers(function):
    y = points(12, 2, seed=1).square() + 0.5
    given = y.clone().requires_grad_()
    function(given).backward()
    torch.testing.assert_close(torch.func.grad(function)(y), given.grad)
    turn = points(12, 2, seed=2)
    torch.testing.assert_close(torch.func.jvp(function, (y,), (turn,))[1], (given.grad * turn).sum())
    torch.testing.assert_close(torch.func.jacfwd(function)(y), given.grad)
    if function is not OF_ROWS["encoding"]:  # the rule of eigenpairs reads numbers of its cotangents
        expected = torch.autograd.functional.hessian(function, y)
        torch.testing.assert_close(torch.func.hessian(function)(y), expected, atol=1e-9, rtol=1e-7)
    for inside in (function, torch.func.grad(function)):
        with pytest.raises(TypeError, match=r"inside torch\.vmap; pass a batch"):
            torch.vmap(inside)(torch.stack([y, y]))
