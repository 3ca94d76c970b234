"""The differentiation rule: against finite differences, with equal eigenvalues, and where it is not defined."""

import warnings

import pytest
import torch

from problems import (
    complete,
    complete_bipartite,
    cycle,
    on_every_device,
    path,
    points,
    projector_loss,
    random_affinity,
    swiss_roll,
    torus,
    two_cliques,
)
from torch_lapeig import (
    KNN,
    DegeneracyWarning,
    Graph,
    GraphWarning,
    HeatKernel,
    Laplacian,
    LaplacianEigenmaps,
    eigenpairs,
    knn_graph,
)
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lanczos, Lobpcg

NORMALIZATIONS = ["symmetric", "random_walk", "unnormalized"]


def edge_parameters(affinity):
    """Free weights of the undirected edges, and the map from them to the symmetric weights of the graph."""
    graph = Graph.from_dense(affinity).to_sparse()
    row, col = graph.edge_index
    upper = row < col
    weight = graph.weight[upper].clone().requires_grad_()
    number = torch.zeros_like(row)
    number[upper] = torch.arange(len(weight))
    number[~upper] = number[graph.pattern.reverse.long()][~upper]
    return weight, lambda w: graph.with_weight(w[number])


def invariants(pairs, loss):
    """Values and a function of the eigenspace: the same whatever basis the solver returns."""
    return pairs.values, loss(pairs.vectors)


@pytest.mark.parametrize("solver", [Eigh(), ChebyshevSubspace(guards=4)], ids=str)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_gradcheck_of_edge_weights(normalization, solver):
    weight, graph_of = edge_parameters(random_affinity(14))
    loss = projector_loss(14)

    def function(w):
        pairs = eigenpairs(Laplacian(graph_of(w), normalization), 4, solver, tolerance=1e-13, backward_tolerance=1e-12)
        return invariants(pairs, loss)

    assert torch.autograd.gradcheck(function, (weight,), atol=1e-6)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_gradcheck_of_the_vectors_themselves(normalization):
    """With distinct eigenvalues and deterministic signs, each vector has a gradient of its own."""
    weight, graph_of = edge_parameters(random_affinity(9))
    function = lambda w: eigenpairs(Laplacian(graph_of(w), normalization), 4).vectors  # noqa: E731
    assert torch.autograd.gradcheck(function, (weight,))


@pytest.mark.parametrize("solver", [Eigh(), ChebyshevSubspace(guards=4)], ids=str)
@pytest.mark.parametrize("k", [3, 5])
def test_gradcheck_with_an_exactly_degenerate_pair(k, solver):
    """A cycle has double eigenvalues; the sum over a pair and the projector on it have gradients nevertheless."""
    weight, graph_of = edge_parameters(cycle(12))
    loss = projector_loss(12)

    def function(w):
        pairs = eigenpairs(Laplacian(graph_of(w)), k, solver, tolerance=1e-13, backward_tolerance=1e-12)
        sums = torch.stack([pairs.values[i : i + 2].sum() for i in range(1, k, 2)])
        return sums, loss(pairs.vectors)

    with warnings.catch_warnings():
        warnings.simplefilter("error", DegeneracyWarning)
        assert torch.autograd.gradcheck(function, (weight,), atol=1e-6)


@pytest.mark.parametrize(("affinity", "k"), [(cycle(12), 3), (complete(6), 6), (complete_bipartite(1, 7), 8)])
def test_eigh_gives_nan_where_the_rule_is_exact(affinity, k):
    """The same function through `torch.linalg.eigh` and its own backward has no finite gradient."""
    loss = projector_loss(len(affinity))
    weight, graph_of = edge_parameters(affinity)
    _, vectors = torch.linalg.eigh(Laplacian(graph_of(weight)).to_dense())
    (naive,) = torch.autograd.grad(loss(vectors[:, :k]), weight)
    (ours,) = torch.autograd.grad(loss(eigenpairs(Laplacian(graph_of(weight)), k).vectors), weight)
    assert naive.isnan().any()
    assert ours.isfinite().all()
    if k == len(affinity):
        assert ours.abs().max() < 1e-12  # the projector on the whole space is constant


@on_every_device
@pytest.mark.parametrize("t", [0.8, "median"])
@pytest.mark.parametrize("batch", [None, 2])
def test_gradcheck_through_points_and_bandwidth(batch, t, device):
    x = points(10, 2, batch=batch).to(device).requires_grad_()
    kernel = HeatKernel(t, learnable=True).double().to(device)
    loss = projector_loss(10)

    def function(x, log_factor):
        graph = torch.func.functional_call(kernel, {"log_factor": log_factor}, (x, knn_graph(x, 4)))
        pairs = eigenpairs(Laplacian(graph, "random_walk"), 3)
        if batch is None:
            return pairs.values, loss(pairs.vectors.cpu())
        return pairs.values, torch.stack([loss(v) for v in pairs.vectors.cpu()])

    assert torch.autograd.gradcheck(function, (x, kernel.log_factor), atol=1e-6)


def test_conjugate_gradients_agree_with_the_whole_complement():
    """On 500 points the guards of the Chebyshev solver are a handful: the rest is the linear solve's."""
    x = points(500, 3, seed=2)
    results = []
    for solver in (Eigh(), ChebyshevSubspace()):
        y = x.clone().requires_grad_()
        pairs = eigenpairs(Laplacian(HeatKernel()(y, knn_graph(y, 8))), 4, solver)
        (projector_loss(500)(pairs.vectors) + pairs.values.sum()).backward()
        results.append(y.grad)
    exact, iterative = results
    assert (exact - iterative).norm() <= 1e-7 * exact.norm()


def test_float32_gradient_is_close_to_float64():
    x = points(200, 3, seed=2)
    grads = []
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype).requires_grad_()
        pairs = eigenpairs(Laplacian(HeatKernel()(y, knn_graph(y, 8))), 4)
        projector_loss(200)(pairs.vectors.double()).backward()
        grads.append(y.grad.double())
    assert (grads[0] - grads[1]).norm() <= 1e-3 * grads[1].norm()


def test_gradient_with_an_isolated_node_is_finite_and_leaves_it_out():
    weight, graph_of = edge_parameters(torch.nn.functional.pad(random_affinity(8), (0, 1, 0, 1)))
    padded = eigenpairs(Laplacian(graph_of(weight), "random_walk"), 3)
    loss = projector_loss(8)
    gradient = torch.autograd.grad(loss(padded.vectors[:8]) + padded.vectors[8].sum(), weight)[0]
    without, graph_without = edge_parameters(random_affinity(8))
    expected = torch.autograd.grad(
        loss(eigenpairs(Laplacian(graph_without(without), "random_walk"), 3).vectors), without
    )
    torch.testing.assert_close(gradient, expected[0])


def test_gradient_on_a_disconnected_graph():
    """The null space is degenerate; functions of the projector are exact."""
    weight, graph_of = edge_parameters(two_cliques(4, 3) * random_affinity(7, keep=1.0))
    loss = projector_loss(7)
    function = lambda w: loss(eigenpairs(Laplacian(graph_of(w)), 3).vectors)  # noqa: E731
    assert torch.autograd.gradcheck(function, (weight,))


def test_a_loss_that_tells_equal_eigenvalues_apart_is_warned_of():
    weight, graph_of = edge_parameters(cycle(12))
    pairs = eigenpairs(Laplacian(graph_of(weight)), 3)
    with pytest.warns(DegeneracyWarning, match="choice of basis"):
        gradient = torch.autograd.grad((pairs.vectors[:, 1] * points(12, 1)[:, 0]).sum(), weight)[0]
    assert gradient.isfinite().all()


def test_a_cut_through_a_cluster_is_warned_of_and_finite():
    weight, graph_of = edge_parameters(cycle(12))
    pairs = eigenpairs(Laplacian(graph_of(weight)), 4)
    with pytest.warns(DegeneracyWarning, match=r"k=4 splits a cluster.*nearest k that does not is [35]"):
        gradient = torch.autograd.grad(projector_loss(12)(pairs.vectors), weight)[0]
    assert gradient.isfinite().all()


@pytest.mark.parametrize("of_values", [lambda v: v[1], lambda v: (v * torch.arange(4)).sum(), lambda v: v.sum()])
def test_values_of_a_cluster_apart_are_warned_of(of_values):
    """One of two equal eigenvalues, their weighted sum, and a sum that takes one of them (k=4) have no gradient."""
    weight, graph_of = edge_parameters(cycle(12))
    pairs = eigenpairs(Laplacian(graph_of(weight)), 4)
    with pytest.warns(DegeneracyWarning):
        gradient = torch.autograd.grad(of_values(pairs.values), weight)[0]
    assert gradient.isfinite().all()


def test_values_of_whole_clusters_are_not():
    weight, graph_of = edge_parameters(cycle(12))
    function = lambda w: eigenpairs(Laplacian(graph_of(w)), 5).values.sum()  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(function, (weight,))


@pytest.mark.parametrize("normalization", ["symmetric", "unnormalized"])
def test_spectral_functions_through_the_matrix(normalization):
    """exp(−A) on an eigenspace with equal eigenvalues: exact through `projected`, warned of through the values."""
    weight, graph_of = edge_parameters(cycle(8))

    def heat(w):
        pairs = eigenpairs(Laplacian(graph_of(w), normalization), 3)
        return (pairs.vectors @ torch.matrix_exp(-pairs.projected) @ pairs.vectors.mT)[0, :3]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(heat, (weight,))
    pairs = eigenpairs(Laplacian(graph_of(weight), normalization), 3)
    with pytest.warns(DegeneracyWarning, match="projected"):
        torch.autograd.grad((pairs.values.neg().exp() * pairs.vectors[0] ** 2).sum(), weight)


def test_unequal_weights_of_the_two_directions_get_the_symmetric_gradient():
    graph = Graph.from_dense(random_affinity(9)).to_sparse()
    weight = graph.weight.clone().requires_grad_()
    pairs = eigenpairs(Laplacian(graph.with_weight(weight), "unnormalized"), 3)
    (gradient,) = torch.autograd.grad(pairs.values[1] + pairs.vectors[2, 2], weight)
    row, col = graph.edge_index
    free, graph_of = edge_parameters(random_affinity(9))
    tied = eigenpairs(Laplacian(graph_of(free), "unnormalized"), 3)
    (expected,) = torch.autograd.grad(tied.values[1] + tied.vectors[2, 2], free)
    torch.testing.assert_close((gradient + graph.pattern.transpose(gradient))[row < col], expected)


def test_close_eigenvalues_in_float32_are_told_apart():
    """Differences of 3e-4 are well resolved: gradients agree with float64, and nobody warns."""
    x = swiss_roll(600)
    grads = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (torch.float32, torch.float64):
            y = x.to(dtype).requires_grad_()
            pairs = eigenpairs(Laplacian(HeatKernel()(y, knn_graph(y, 10)), "random_walk"), 5)
            (pairs.vectors * points(600, 5, seed=3).to(dtype)).sum().backward()
            grads.append(y.grad.double())
    assert (grads[0] - grads[1]).norm() <= 1e-2 * grads[1].norm()


def test_tiny_degrees_in_float32_have_finite_gradients():
    """One outlier: its degree is 1e-20 or less, and d^-3/2 would overflow; at last it is no normal number."""
    warnings.simplefilter("ignore", GraphWarning)
    for distance in (5.0, 6.0, 6.5, 7.0, 7.5):
        x = points(60, 2, dtype=torch.float32)
        x[0] = torch.tensor([distance, 0.0])
        x.requires_grad_()
        y = LaplacianEigenmaps(2, KNN(6))(x)
        y.square().sum().backward()
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("solver", [Eigh(), ChebyshevSubspace(guards=3)], ids=str)
def test_gradgradcheck_of_edge_weights(solver):
    weight, graph_of = edge_parameters(random_affinity(9))
    loss = projector_loss(9)

    def function(w):
        laplacian = Laplacian(graph_of(w), "random_walk")
        return invariants(eigenpairs(laplacian, 3, solver, tolerance=1e-13, backward_tolerance=1e-12), loss)

    assert torch.autograd.gradgradcheck(function, (weight,), atol=1e-5)


@pytest.mark.parametrize("k", [3, 5])
def test_gradgradcheck_with_an_exactly_degenerate_pair(k):
    weight, graph_of = edge_parameters(cycle(8))
    loss = projector_loss(8)
    function = lambda w: loss(eigenpairs(Laplacian(graph_of(w)), k).vectors)  # noqa: E731
    # A larger step than usual: next to a degeneracy the finite difference itself loses eps / step².
    assert torch.autograd.gradgradcheck(function, (weight,), eps=1e-4, atol=1e-5)


class TestDegeneracyRules:
    """`mask`, `lorentz` and `exact` for eigenvalues that are equal, close, or apart."""

    def gradient(self, affinity, loss, k=3, **options):
        weight, graph_of = edge_parameters(affinity)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegeneracyWarning)
            vectors = eigenpairs(Laplacian(graph_of(weight)), k, **options).vectors
            return torch.autograd.grad(loss(vectors), weight)[0]

    def test_far_apart_all_agree(self):
        loss = lambda v: (v[:, 1] * points(14, 1)[:, 0]).sum()  # noqa: E731
        mask, lorentz, exact = (
            self.gradient(random_affinity(14), loss, degeneracy=rule) for rule in ("mask", "lorentz", "exact")
        )
        torch.testing.assert_close(exact, mask)
        torch.testing.assert_close(lorentz, mask)

    @pytest.mark.parametrize("rule", ["mask", "lorentz"])
    def test_finite_with_equal_eigenvalues(self, rule):
        loss = lambda v: (v[:, 1] * points(12, 1)[:, 0]).sum()  # noqa: E731
        assert self.gradient(cycle(12), loss, degeneracy=rule).isfinite().all()

    def test_invariant_losses_do_not_care(self):
        loss = projector_loss(12)
        mask, lorentz = (self.gradient(cycle(12), loss, degeneracy=rule) for rule in ("mask", "lorentz"))
        torch.testing.assert_close(mask, lorentz)

    def test_lorentz_is_biased_by_its_width_and_mask_cuts_at_it(self):
        """Two eigenvalues δ apart: the rotation is 1/δ, δ/(δ² + w²), or nothing."""
        affinity = cycle(12)
        affinity[0, 1] = affinity[1, 0] = 1.2
        values = eigenpairs(Laplacian(Graph.from_dense(affinity)), 3).values
        delta = float(values[2] - values[1])
        u = eigenpairs(Laplacian(Graph.from_dense(affinity)), 3).vectors
        h = u[:, 1:2] @ u[:, 2:3].T
        loss = lambda v: v[:, 1] @ (h + h.T) @ v[:, 1]  # noqa: E731  (only sees the rotation of the pair)
        exact = self.gradient(affinity, loss, degeneracy="exact")
        for width in (0.5 * delta, 2 * delta):
            lorentz = self.gradient(affinity, loss, degeneracy="lorentz", cluster_width=width)
            torch.testing.assert_close(lorentz, exact * delta**2 / (delta**2 + width**2), atol=1e-9, rtol=0)
        torch.testing.assert_close(self.gradient(affinity, loss, cluster_width=0.5 * delta), exact)
        assert self.gradient(affinity, loss, cluster_width=2 * delta).abs().max() < 1e-9 * exact.abs().max()

    def test_exact_tells_close_eigenvalues_apart_where_mask_does_not(self):
        affinity = cycle(12)
        affinity[0, 1] = affinity[1, 0] = 1 + 1e-3
        weight, graph_of = edge_parameters(affinity)
        direction = torch.zeros(len(weight), dtype=torch.float64)
        direction[0] = 1

        def loss(w):
            pairs = eigenpairs(Laplacian(graph_of(w)), 3, degeneracy="exact", cluster_width=1e-2)
            return (pairs.vectors[:, 1] * points(12, 1)[:, 0]).sum()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegeneracyWarning)
            (gradient,) = torch.autograd.grad(loss(weight), weight)
            step = 1e-6
            slope = (loss(weight.detach() + step * direction) - loss(weight.detach() - step * direction)) / (2 * step)
        assert (gradient @ direction).item() == pytest.approx(slope.item(), rel=1e-3)

    @pytest.mark.parametrize("rule", ["mask", "lorentz", "exact"])
    def test_each_rule_warns_in_its_words(self, rule):
        weight, graph_of = edge_parameters(cycle(12))
        words = {"mask": "left out", "lorentz": "damped", "exact": "noise"}[rule]
        vectors = eigenpairs(Laplacian(graph_of(weight)), 3, degeneracy=rule).vectors
        with pytest.warns(DegeneracyWarning, match=words):
            torch.autograd.grad((vectors[:, 1] * points(12, 1)[:, 0]).sum(), weight)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, on first use
class TestForwardMode:
    @pytest.mark.parametrize("normalization", NORMALIZATIONS)
    def test_edge_weights(self, normalization):
        weight, graph_of = edge_parameters(random_affinity(9))
        loss = projector_loss(9)
        function = lambda w: invariants(eigenpairs(Laplacian(graph_of(w), normalization), 3), loss)  # noqa: E731
        assert torch.autograd.gradcheck(function, (weight,), check_forward_ad=True, check_backward_ad=False)

    @pytest.mark.parametrize("batch", [None, 2])
    def test_points(self, batch):
        x = points(10, 2, batch=batch).requires_grad_()

        def function(x):
            pairs = eigenpairs(Laplacian(HeatKernel(0.7)(x, knn_graph(x, 4)), "random_walk"), 3)
            return pairs.values, pairs.vectors

        assert torch.autograd.gradcheck(function, (x,), check_forward_ad=True, check_backward_ad=False)

    def test_forward_over_reverse(self):
        """Hessian-vector products, against reverse over reverse."""
        weight, graph_of = edge_parameters(random_affinity(9))
        loss = projector_loss(9)
        direction = points(len(weight), 1)[:, 0]

        def function(w):
            pairs = eigenpairs(Laplacian(graph_of(w)), 3)
            return loss(pairs.vectors) + pairs.values.sum()

        (gradient,) = torch.autograd.grad(function(weight), weight, create_graph=True)
        (expected,) = torch.autograd.grad(gradient @ direction, weight)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(weight.detach(), direction).requires_grad_()
            (gradient,) = torch.autograd.grad(function(dual), dual, create_graph=True)
            product = torch.autograd.forward_ad.unpack_dual(gradient).tangent
        torch.testing.assert_close(product, expected)


@pytest.mark.parametrize("solver", [Lanczos(), Lobpcg(), ChebyshevSubspace()], ids=str)
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_gradients_agree_between_solvers(solver, storage):
    """The linear solve with guards and multigrid, against the whole complement."""
    x = swiss_roll(700)
    affinity = HeatKernel()(x, knn_graph(x, 10)).to_dense().detach()
    results = []
    for candidate in (Eigh(), solver):
        graph = Graph.from_dense(affinity.clone().requires_grad_())
        used = graph if storage == "dense" else graph.to_sparse()
        pairs = eigenpairs(Laplacian(used, "random_walk"), 5, candidate)
        ((pairs.vectors * points(700, 5)).sum() + pairs.values.sum()).backward()
        results.append(torch.where(affinity > 0, graph.weight.grad, 0))
    exact, found = results
    assert (exact - found).norm() <= 1e-6 * exact.norm()


@pytest.mark.parametrize("solver", [Lanczos(), Lobpcg()], ids=str)
def test_gradgradcheck_of_iterative_solvers(solver):
    weight, graph_of = edge_parameters(random_affinity(12))
    loss = projector_loss(12)

    def function(w):
        laplacian = Laplacian(graph_of(w), "random_walk")
        return invariants(eigenpairs(laplacian, 3, solver, tolerance=1e-13, backward_tolerance=1e-12), loss)

    assert torch.autograd.gradcheck(function, (weight,), atol=1e-6)
    assert torch.autograd.gradgradcheck(function, (weight,), atol=1e-5)


def test_batched_gradients_with_hierarchies_of_each_graph():
    x = torch.stack([swiss_roll(600, seed=i) for i in range(2)])
    graph = knn_graph(x, 10)
    results = []
    for solver in (Eigh(), Lobpcg()):
        weight = graph.weight.clone().requires_grad_()
        pairs = eigenpairs(Laplacian(graph.with_weight(weight)), 4, solver)
        (pairs.vectors * points(600, 4)).sum().backward()
        results.append(weight.grad)
    assert (results[0] - results[1]).norm() <= 1e-6 * results[0].norm()


def test_differentiate_through_the_solver_as_oracle():
    """Autograd through a plain subspace iteration that has converged, without any rule of ours."""
    weight, graph_of = edge_parameters(random_affinity(14))
    loss = projector_loss(14)
    (ours,) = torch.autograd.grad(loss(eigenpairs(Laplacian(graph_of(weight)), 3).vectors), weight)
    x = torch.linalg.qr(points(14, 3))[0]
    shifted = 2 * torch.eye(14, dtype=torch.float64) - Laplacian(graph_of(weight)).to_dense()
    for _ in range(400):
        x = torch.linalg.qr(shifted @ x)[0]
    (oracle,) = torch.autograd.grad(loss(x), weight)
    torch.testing.assert_close(ours, oracle, atol=1e-8, rtol=1e-6)


SPLIT = {"default": None, "eigh": Eigh(), "lanczos": Lanczos(), "lobpcg": Lobpcg(), "chebyshev": ChebyshevSubspace()}


@pytest.mark.parametrize("solver", SPLIT.values(), ids=SPLIT)
@pytest.mark.parametrize("graph", ["torus", "cliques"])
def test_a_cut_through_more_copies_than_guards(graph, solver):
    """What lies in copies that no guard stands for has no gradient: warned of, and no division by their round-off."""
    if graph == "torus":
        affinity = Graph.from_edge_index(*torus(22, 22)).to_dense()
    else:
        affinity = torch.block_diag(*[complete(3)] * 150)
    weight, graph_of = edge_parameters(affinity)
    loss = projector_loss(len(affinity))(eigenpairs(Laplacian(graph_of(weight)), 3, solver).vectors)
    with pytest.warns(DegeneracyWarning, match="splits a cluster"):
        (gradient,) = torch.autograd.grad(loss, weight)
    assert gradient.abs().max() < 1e3


@pytest.mark.parametrize("solver", [None, Lanczos(), Lobpcg(), ChebyshevSubspace()], ids=str)
@pytest.mark.parametrize(("a", "b"), [(40, 30), (34, 21)])
def test_gradients_of_grids_in_float32(a, b, solver):
    """The condition of the backward's system is bound / gap, 10³ here; float32 alone loses all of it."""
    node = torch.arange(a * b).reshape(a, b)
    pairs = [(node[:-1], node[1:]), (node[:, :-1], node[:, 1:])]
    edges = torch.cat([torch.stack([one.flatten(), other.flatten()]) for one, other in pairs], 1)
    edges = torch.cat([edges, edges.flip(0)], 1)
    grads = []
    for dtype in (torch.float32, torch.float64):
        weight = torch.ones(edges.shape[1], dtype=dtype, requires_grad=True)
        found = eigenpairs(Laplacian(Graph.from_edge_index(edges, weight)), 3, solver)
        (gradient,) = torch.autograd.grad(a * b * found.vectors.pow(4).sum(), weight)
        grads.append(gradient.double())
    # Residual over gap is the angle of the vectors; it may be 1 % before the solve itself is done in float64.
    assert (grads[0] - grads[1]).norm() <= 2e-2 * grads[1].norm()


def test_a_loss_that_stays_within_the_space_has_no_complement():
    """A cotangent in the span of V leaves round-off as the right-hand side: zero is the answer, not NaN."""
    x = points(500, 3, seed=2)
    for dtype in (torch.float32, torch.float64):
        graph = knn_graph(x.to(dtype), 8)
        weight = graph.weight.clone().requires_grad_()
        pairs = eigenpairs(Laplacian(graph.with_weight(weight)), 4, Lanczos())
        (gradient,) = torch.autograd.grad(pairs.vectors.square().sum(), weight)
        assert gradient.isfinite().all()
        assert gradient.abs().max() < 1e2 * torch.finfo(dtype).eps / float(pairs.gap)


def test_lorentz_does_not_enlarge_round_off():
    """An invariant loss on equal eigenvalues: the rotation is round-off, and is enlarged by 1/√eps at most."""
    for affinity in (cycle(12), complete(9), complete_bipartite(3, 6)):
        n = len(affinity)
        weight, graph_of = edge_parameters(affinity)
        grads = []
        for rule in ("mask", "lorentz"):
            pairs = eigenpairs(Laplacian(graph_of(weight)), n, degeneracy=rule)
            filtered = pairs.vectors @ torch.matrix_exp(-pairs.projected) @ pairs.vectors.mT
            grads.append(torch.autograd.grad((filtered * points(n, n)).sum(), weight)[0])
        assert (grads[0] - grads[1]).norm() <= 1e-6 * grads[0].norm()


def test_the_sign_of_projected_is_that_of_the_vectors():
    """V f(Λ) Vᵀ with the vectors D^-½ v, whose signs are settled after the scaling: exact at equal eigenvalues."""
    line, unit = path(8), torch.eye(8, dtype=torch.float64)
    weight, graph_of = edge_parameters(torch.kron(line, unit) + torch.kron(unit, line))

    def heat(w):
        pairs = eigenpairs(Laplacian(graph_of(w), "random_walk"), 13)
        return (pairs.vectors @ torch.matrix_exp(-3 * pairs.projected) @ pairs.vectors.mT)[:4, :4]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(heat, (weight,), atol=1e-6, fast_mode=True)
