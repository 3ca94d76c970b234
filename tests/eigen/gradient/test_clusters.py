"""Gradients where eigenvalues are equal or nearly so: exact where they are defined, with a warning where not."""

import pytest
import torch

import problems
from problems import cycle, edge_parameters, every, ignoring, points, projector_loss, random_affinity
from torch_lapeig import KNN, DegeneracyWarning, Graph, HeatKernel, Laplacian, LaplacianEigenmaps, eigenpairs
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lobpcg, ShiftInvert


@every(k=[3, 5], solver=[Eigh(), ChebyshevSubspace(guards=4)])
def test_derivatives_with_an_exactly_degenerate_pair(k, solver):
    """A cycle has double eigenvalues; the sum over a pair and the projector on it have derivatives nevertheless."""
    weight, graph_of = edge_parameters(cycle(8))
    loss = projector_loss(8)

    def function(w):
        pairs = eigenpairs(Laplacian(graph_of(w)), k, solver, tolerance=1e-13, backward_tolerance=1e-12)
        sums = torch.stack([pairs.values[i : i + 2].sum() for i in range(1, k, 2)])
        return sums, loss(pairs.vectors)

    assert torch.autograd.gradcheck(function, (weight,), atol=1e-6)
    # A larger step than usual: next to a degeneracy the finite difference itself loses eps / step².
    assert torch.autograd.gradgradcheck(lambda w: function(w)[1], (weight,), eps=1e-4, atol=1e-5)


@every(k=[3, 5], change=[1e-5, 1e-7, 1e-9, 1e-11])
def test_second_derivatives_at_nearly_equal_eigenvalues(k, change):
    """1/(λ_i − λ_j)² is not needed where the loss takes Λ as a matrix, and said where it does not."""
    affinity = cycle(12)
    affinity[0, 1] = affinity[1, 0] = 1 + change
    weight, graph_of = edge_parameters(affinity)
    aim, direction = points(12, 12), points(len(weight), 1)[:, 0]

    def gradient(w, as_matrix=True, create_graph=False):
        pairs = eigenpairs(Laplacian(graph_of(w)), k)
        heat = torch.matrix_exp(-pairs.projected) if as_matrix else torch.diag(pairs.values.neg().exp())
        loss = (pairs.vectors @ heat @ pairs.vectors.mT * aim).sum()
        return torch.autograd.grad(loss, w, create_graph=create_graph)[0]

    along = torch.autograd.grad((gradient(weight, create_graph=True) * direction).sum(), weight)[0] @ direction
    h, w = 1e-4, weight.detach()
    ahead, behind = (gradient((w + sign * h * direction).requires_grad_()) for sign in (1, -1))
    # A rotation of the pair by round-off over its distance is in every gradient.
    torch.testing.assert_close(along, (ahead - behind) @ direction / (2 * h), rtol=1e-5 + 1e-14 / change, atol=1e-6)
    if change in (1e-9, 1e-11):
        with pytest.warns(DegeneracyWarning, match="second derivatives"):
            gradient(weight, as_matrix=False, create_graph=True)


OF_FOUR_PAIRS = {
    "projector": (lambda p: projector_loss(12)(p.vectors), r"k=4 splits a cluster.*nearest k that does not is [35]"),
    "one of two": (lambda p: p.values[1], ""),
    "weighted sum": (lambda p: (p.values * torch.arange(4)).sum(), ""),
    "a sum that takes one of two": (lambda p: p.values.sum(), ""),
}
SPLIT = {"default": None, "eigh": Eigh(), "lobpcg": Lobpcg(), "chebyshev": ChebyshevSubspace()}


@pytest.mark.parametrize(("function", "says"), OF_FOUR_PAIRS.values(), ids=OF_FOUR_PAIRS)
def test_what_tells_copies_apart_is_warned_of_and_finite(function, says):
    """The fourth pair of a cycle is one of two copies, and so is the second."""
    weight, graph_of = edge_parameters(cycle(12))
    value = function(eigenpairs(Laplacian(graph_of(weight)), 4))
    with pytest.warns(DegeneracyWarning, match=says):
        (gradient,) = torch.autograd.grad(value, weight)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("normalization", ["symmetric", "random_walk", "unnormalized"])
def test_the_null_vector_of_the_whole_graph_takes_no_part_in_a_sum(normalization):
    """Its eigenvalue stays 0 whatever the weights, also of edges that are not there yet; the others' does not."""
    affinity = torch.block_diag(cycle(5), problems.complete(4), random_affinity(7))
    gradients = []
    for of_values in (lambda v: v.sum(), lambda v: v[1:].sum(), lambda v: v[0] + 2 * v[1:].sum() - v.sum()):
        w = affinity.clone().requires_grad_()
        of_values(eigenpairs(Laplacian(Graph.from_dense(w), normalization), 3).values).backward()
        gradients.append(w.grad)
    assert gradients[0].abs().max() > 0.01
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], atol=1e-12, rtol=0)
    w = affinity.clone().requires_grad_()
    eigenpairs(Laplacian(Graph.from_dense(w), normalization), 1).values.sum().backward()
    assert w.grad.abs().max() < 1e-14
    with pytest.warns(DegeneracyWarning, match="distinguishes equal"):
        eigenpairs(Laplacian(Graph.from_dense(w), normalization), 3).values[2].backward()


class TestDegeneracyRules:
    """`mask`, `lorentz` and `exact` for eigenvalues that are equal, close, or apart."""

    def gradient(self, affinity, loss, k=3, **options):
        weight, graph_of = edge_parameters(affinity)
        with ignoring(DegeneracyWarning):
            vectors = eigenpairs(Laplacian(graph_of(weight)), k, **options).vectors
            return torch.autograd.grad(loss(vectors), weight)[0]

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

        with ignoring(DegeneracyWarning):
            (gradient,) = torch.autograd.grad(loss(weight), weight)
            slope = problems.five_points(loss, weight, direction, 1e-6)
        assert (gradient @ direction).item() == pytest.approx(slope.item(), rel=1e-3)

    @pytest.mark.parametrize("degeneracy", ["mask", "lorentz", "exact"])
    def test_each_degeneracy_warns_in_its_words(self, degeneracy):
        weight, graph_of = edge_parameters(cycle(12))
        words = {"mask": "left out", "lorentz": "damped", "exact": "noise"}[degeneracy]
        vectors = eigenpairs(Laplacian(graph_of(weight)), 3, degeneracy=degeneracy).vectors
        with pytest.warns(DegeneracyWarning, match=words):
            torch.autograd.grad((vectors[:, 1] * points(12, 1)[:, 0]).sum(), weight)


@every(graph=["torus", "cliques"], solver=SPLIT)
def test_a_cut_through_more_copies_than_guards(graph, solver):
    """Check that copies beyond the guards are warned of, and that nothing is divided by their round-off."""
    if graph == "torus":
        affinity = Graph.from_edge_index(*problems.torus(22, 22)).to_dense()
    else:
        affinity = torch.block_diag(*[problems.complete(3)] * 150)
    weight, graph_of = edge_parameters(affinity)
    loss = projector_loss(len(affinity))(eigenpairs(Laplacian(graph_of(weight)), 3, solver).vectors)
    with pytest.warns(DegeneracyWarning, match="splits a cluster"):
        (gradient,) = torch.autograd.grad(loss, weight)
    assert gradient.abs().max() < 1e3


@pytest.mark.parametrize("solver", [None, Lobpcg(), ChebyshevSubspace()], ids=str)
@pytest.mark.parametrize(("a", "b"), [(40, 30), (34, 21)])
def test_gradients_of_grids_in_float32(a, b, solver):
    """The condition of the backward's system is bound / gap, 10³ here; float32 alone loses all of it."""
    graph, grads = Graph.from_scipy(problems.grid(a, b)), []
    for dtype in (torch.float32, torch.float64):
        weight = graph.weight.to(dtype).requires_grad_()
        found = eigenpairs(Laplacian(graph.with_weight(weight)), 3, solver)
        (gradient,) = torch.autograd.grad(a * b * found.vectors.pow(4).sum(), weight)
        grads.append(gradient.double())
    # Residual over gap is the angle of the vectors; it may be 1 % before the solve itself is done in float64.
    assert (grads[0] - grads[1]).norm() <= 2e-2 * grads[1].norm()


def test_lorentz_does_not_enlarge_round_off():
    """An invariant loss on equal eigenvalues: the rotation is round-off, and is enlarged by 1/√eps at most."""
    for affinity in (cycle(12), problems.complete(9), problems.complete_bipartite(3, 6)):
        n = len(affinity)
        weight, graph_of = edge_parameters(affinity)
        grads = []
        for degeneracy in ("mask", "lorentz"):
            pairs = eigenpairs(Laplacian(graph_of(weight)), n, degeneracy=degeneracy)
            grads.append(torch.autograd.grad((problems.heat_of(pairs) * points(n, n)).sum(), weight)[0])
        assert (grads[0] - grads[1]).norm() <= 1e-6 * grads[0].norm()


def test_round_off_of_the_loss_is_no_gradient():
    """Nodes that hang on the others by faint edges have eigenvalues 1e-9 of the spectrum apart."""
    # Edges are known to a part of themselves, and so are these values: they are distinct. But a loss in float32 tells
    # their vectors apart by round-off, although it does not depend on the basis.
    generator = torch.Generator().manual_seed(0)
    affinities = []
    for has_copy in (False, True):  # which is solved in float64, and the other with it
        x = points(36, 3)
        w = torch.block_diag(torch.zeros(4, 4, dtype=x.dtype), torch.exp(-torch.cdist(x, x).square()))
        if has_copy:
            w[:20, 20:], w[20:, :20] = 0, 0
        noise = torch.rand(40, 40, generator=generator, dtype=x.dtype)
        w = w + 1e-6 * (1 + 0.01 * (noise + noise.T))
        affinities.append(w.fill_diagonal_(0))
    affinity, probe = torch.stack(affinities).float(), torch.randn(40, generator=generator)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        w = affinity.to(dtype).requires_grad_()
        pairs = eigenpairs(Laplacian(Graph.from_dense(w), "unnormalized"), 5)
        loss = (pairs.vectors.mT @ probe.to(dtype)).square().sum(-1).square()
        gradients.append(torch.autograd.grad(loss[0], w)[0][0].double())
    assert pairs.values[0].detach().diff()[1:].min() < 1e-8 * float(affinity[0].detach().sum(-1).max())
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4 * float(gradients[1].abs().max()))


@pytest.mark.filterwarnings("ignore:the neighbourhood graph has:torch_lapeig.GraphWarning")
@problems.covering(2, parts=[2, 3], scale=["degree", "orthonormal"], normalization=["random_walk", "unnormalized"])
def test_null_vectors_beside_the_trivial_one(normalization, scale, parts):
    """The first null vector of several components is that of the whole graph, and moves as the degrees do."""
    x = points(9 * parts, 2) + 100 * torch.arange(parts, dtype=torch.float64).repeat_interleave(9)[:, None]
    module = LaplacianEigenmaps(parts + 1, KNN(3), HeatKernel(2.0), normalization=normalization, scale=scale)
    aim = points(len(x), len(x))

    def loss(x):
        y = module(x)
        return (y @ y.mT * aim).sum() + (y[:, 0].square() * aim[0]).sum() * (parts == 2)

    problems.check_derivatives(loss, x, first=1e-6, fast_mode=True)


@pytest.mark.filterwarnings("ignore:.*isolated")
def test_null_vectors_beside_the_trivial_one_in_batches():
    """Graphs of one, two and no components beside each other, in float32 of which one is solved in float64."""
    affinity = torch.zeros(3, 12, 12)
    affinity[0] = random_affinity(12)
    affinity[1] = torch.block_diag(random_affinity(7), 1e-6 * random_affinity(5))
    weight, aim = affinity.clone().requires_grad_(), points(12, 12).float()
    vectors = eigenpairs(Laplacian(Graph.from_dense(weight), "random_walk"), 2, fill=True).vectors
    (vectors[..., 1:] @ vectors[..., 1:].mT * aim).sum().backward()
    for b in range(2):
        one = affinity[b].double().requires_grad_()
        vectors = eigenpairs(Laplacian(Graph.from_dense(one), "random_walk"), 2).vectors
        (vectors[..., 1:] @ vectors[..., 1:].mT * aim).sum().backward()
        torch.testing.assert_close(weight.grad[b].double(), one.grad, rtol=1e-3, atol=1e-4 * float(abs(one.grad).max()))
    assert (weight.grad[2] == 0).all()


@pytest.mark.parametrize(
    ("n", "k", "change", "solver"),
    [(800, 5, 1e-8, None), (500, 5, 3e-9, None), (24, 9, 1e-11, ShiftInvert()), (24, 9, 1e-9, Eigh())],
    ids=str,
)
def test_second_derivatives_have_no_errors_of_the_first_over_differences(n, k, change, solver):
    """Errors of the linear solve return in cotangents, 10⁴ times larger than the differences of the values."""
    node, aim, direction = torch.arange(n), points(n, 2), points(n, 1)[:, 0]
    edges = torch.stack([torch.cat([node, (node + 1) % n]), torch.cat([(node + 1) % n, node])])
    weight = 1 + change * torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def gradient(w, **options):
        vectors = eigenpairs(Laplacian(Graph.from_edge_index(edges, torch.cat([w, w]))), k, solver).vectors
        loss = ((vectors @ (vectors.mT @ aim)).square() * aim.flip(1)).sum()
        return torch.autograd.grad(loss, w, **options)[0]

    w = weight.requires_grad_()
    (found,) = torch.autograd.grad((gradient(w, create_graph=True) * direction).sum(), w)
    expected = problems.five_points(torch.enable_grad()(lambda x: gradient(x.requires_grad_())), weight, direction)
    assert (found - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("normalization", ["symmetric", "random_walk", "unnormalized"])
def test_the_first_of_several_null_vectors(normalization):
    """D^½ 1 of the whole graph over its length, whatever solver: a cut through the null space that has a gradient."""
    weight, graph_of = edge_parameters(torch.block_diag(random_affinity(6), random_affinity(5), random_affinity(4)))
    aim = points(15, 1)[:, 0]

    def expected(w):
        d = graph_of(w).to_dense().sum(1)
        degrees = d if normalization == "symmetric" else torch.ones(15, dtype=w.dtype)
        length = d.sum() if normalization != "unnormalized" else degrees.sum()
        return (aim * degrees.sqrt()).sum() / length.sqrt()

    for solver in (None, Lobpcg(), ChebyshevSubspace()):
        found = (aim * eigenpairs(Laplacian(graph_of(weight), normalization), 1, solver).vectors[:, 0]).sum()
        torch.testing.assert_close(found, expected(weight))
        gradients = [
            torch.autograd.grad(f, weight, allow_unused=True, materialize_grads=True)[0]
            for f in (found, expected(weight) + 0 * weight.sum())
        ]
        torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-9)


@problems.covering(
    2,
    change=[0.0, 1e-9, 1e-7, 1e-5, 1e-2],
    normalization=["symmetric", "random_walk"],
    solver=[Eigh(), ChebyshevSubspace()],
)
def test_losses_in_float32_of_pairs_in_float64(solver, change, normalization):
    """Their round-off is not taken for a dependence on the basis, nor enlarged by 1/(λ_i − λ_j)."""
    affinity = cycle(24)
    affinity[0, 1] = affinity[1, 0] = 1 + change
    weight, graph_of = edge_parameters(affinity)
    aim = points(24, 24)

    def gradient(dtype):
        w = weight.detach().clone().requires_grad_()
        vectors = eigenpairs(Laplacian(graph_of(w), normalization), 5, solver).vectors.to(dtype)
        ((vectors @ vectors.mT) * aim.to(dtype)).sum().backward()
        return w.grad

    exact, rounded = gradient(torch.float64), gradient(torch.float32)
    assert (rounded - exact).norm() < 1e-4 * exact.norm()


@pytest.mark.parametrize("solver", [None, Lobpcg(), ChebyshevSubspace()], ids=str)
def test_values_that_float32_does_not_resolve(solver):
    """Circles with noise: pairs differ by less than residuals of float32, and the loss tells their vectors apart."""
    for seed in (6, 31, 35):
        noise = torch.randn(200, 2, generator=torch.Generator().manual_seed(seed))
        x = problems.polygon(200).float() + 1e-3 * noise
        gradients = []
        for dtype in (torch.float32, torch.float64):
            points_of = x.to(dtype, copy=True).requires_grad_()
            LaplacianEigenmaps(2, KNN(10), scale="unit", solve=solver)(points_of).pow(4).mean().backward()
            gradients.append(points_of.grad.double())
        assert (gradients[0] - gradients[1]).norm() < 1e-2 * gradients[1].norm()
