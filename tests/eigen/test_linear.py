"""Linear systems on edges: dense solves, the excess of multigrid, what does not converge."""

import pytest
import torch

from problems import check_derivatives, grid, on_every_device, points, random_affinity, stored, swiss_roll
from torch_lapeig import ConvergenceWarning, Graph, HeatKernel, Laplacian, eigen, knn_graph


def roll(n, orders=0):
    """Neighbours of a swiss roll; ends of edges weighted over so many orders of magnitude, edges over twice as many."""
    x = swiss_roll(n)
    graph = HeatKernel()(x, knn_graph(x, 8))
    scale = 10 ** (-orders * torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    return graph.with_weight(graph.pattern.scaled(graph.weight, scale))


def with_excess(graph, share):
    """D^-½ (D − W + diag(e)) D^-½ of degrees D with the excess e, which is a share of them; of each node, ``(N,)``."""
    laplacian = Laplacian(graph, "symmetric")
    share = torch.as_tensor(share).to(graph.weight).expand(graph.shape)
    keep = (1 - share).sqrt()  # N A N of N = D^½, as of label spreading with α = 1 − share
    batch, pattern = graph.batch_size, graph.pattern
    degrees = laplacian.degrees.reshape(batch, -1)
    excess = pattern.sum_rows(graph.weight * (1 - pattern.at_row(keep) * pattern.at_col(keep)))
    part = torch.zeros_like(degrees, dtype=torch.int64)
    null, values = eigen.NullSpace(degrees.sqrt(), part, part[:, 0]), pattern.scaled(laplacian.values, keep)
    parts = {"null": null, "of_affinities": True, "excess": excess.reshape(batch, -1)}
    return eigen.SymmetricOperator(pattern, values, torch.ones_like(laplacian.degrees), **parts)


@pytest.fixture
def products(monkeypatch):
    """The number of products of each run of conjugate gradients."""
    counts = []

    def counted(image, precondition, *rest):
        counts.append(0)

        def counting(x):
            counts[-1] += 1
            return image(x)

        return original(counting, precondition, *rest)

    original = eigen.linear.conjugate_gradients
    monkeypatch.setattr(eigen.linear, "conjugate_gradients", counted)
    return counts


@pytest.mark.parametrize("share", [0.5, 1e-2, 1e-6, 1e-12])
def test_multigrid_takes_an_excess_however_small(share):
    """The spectrum is that of the Laplacian itself, whose null vector is held by nothing but the excess."""
    operator = with_excess(roll(600), share)
    values, vectors = torch.linalg.eigh(operator.to_dense())
    root = vectors * values.clamp_min(0).sqrt()
    cycle = root.T @ eigen.SmoothedAggregation(single=False, coarsest=50)(operator)(root)
    found = torch.linalg.eigvalsh((cycle + cycle.T) / 2)
    assert found.min() > (0.3 if share < 1e-10 else 0.4)  # a value of 1e-12 is known to 1e-4
    assert found.max() < 1.1


@pytest.mark.parametrize("kind", [lambda n: Graph.from_scipy(grid(n, n)), lambda n: roll(n * n)], ids=["grid", "roll"])
def test_iterations_do_not_grow_with_the_graph(kind, products):
    most = []
    for n in (36, 72):
        operator = with_excess(kind(n), 1e-7)
        z = eigen.solve_linear(operator, points(n * n, 2))
        assert (operator.matmul(z) - points(n * n, 2)).norm() < 1e-9 * z.norm()
        most.append(products[-1])
        assert len(products) == 2
        products.clear()
    assert max(most) < 35
    assert most[1] <= most[0] + 6


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_solutions_and_derivatives_equal_dense_solves(dense):
    graph = stored(torch.stack([random_affinity(9, seed=s) for s in range(2)]), not dense)
    values, rhs, pattern = graph.weight * 0.1, points(9, 2, batch=2), graph.pattern
    diagonal = 2 + points(9, 1, batch=2, seed=3)[..., 0].abs()

    def solve(values, diagonal, rhs):
        both = (values + pattern.transpose(values)) / 2
        return eigen.solve_linear(eigen.SymmetricOperator(pattern, both, diagonal), rhs)

    matrix = torch.diag_embed(diagonal) - pattern.to_dense(values)
    torch.testing.assert_close(solve(values, diagonal, rhs), torch.linalg.solve(matrix, rhs))
    check_derivatives(solve, values, diagonal, rhs, forward=False, fast_mode=True)


def test_batches_of_sparse_graphs_are_preconditioned_as_one(products):
    one, other = roll(1300), roll(1300, orders=2)
    edges = torch.cat([one.edge_index, other.edge_index + 1300], 1)
    batch = torch.arange(2).repeat_interleave(1300)
    graph = Graph.from_edge_index(edges, torch.cat([one.weight, other.weight]), batch=batch)
    rhs = torch.stack([points(1300, 2), 1e20 * points(1300, 2, seed=1)])
    z = eigen.solve_linear(with_excess(graph, 1e-6), rhs)
    assert len(products) == 2
    for alone, of_item, expected in zip((one, other), z, rhs, strict=True):
        residual = with_excess(alone, 1e-6).matmul(of_item) - expected
        assert residual.norm() < 1e-9 * of_item.norm()


@on_every_device
def test_solutions_are_the_same_on_every_device(device):
    """A system that needs multigrid, and one that is factorised."""
    for graph, share in ((roll(1200), 1e-7), (roll(60), 0.1)):
        n, moved = graph.num_nodes, graph.to(device)
        found = eigen.solve_linear(with_excess(moved, share), points(n, 2).to(device))
        expected = eigen.solve_linear(with_excess(graph, share), points(n, 2))
        torch.testing.assert_close(found.cpu(), expected, atol=1e-6 * expected.abs().max().item(), rtol=0)


@pytest.mark.parametrize("exponent", [-520, 520])
def test_solutions_in_any_unit(exponent):
    """Squares of solutions would overflow; gradients are compared, too."""
    operator, rhs = with_excess(roll(1200), 1e-3), points(1200, 1).requires_grad_()
    plain = eigen.solve_linear(operator, rhs)
    unit = 2.0**exponent
    numbers = {name: getattr(operator, name) * unit for name in ("values", "diagonal", "bound", "excess")}
    kinds = {"null": operator.null, "of_affinities": True, "trusted": True}
    scaled = eigen.SymmetricOperator(operator.pattern, **numbers, **kinds)
    found = eigen.solve_linear(scaled, rhs)
    torch.testing.assert_close(found.detach() * 2.0**exponent, plain.detach(), rtol=1e-9, atol=1e-9)
    (one,), (other,) = (torch.autograd.grad(z.sum(), rhs) for z in (plain, found))
    torch.testing.assert_close(other * 2.0**exponent, one, rtol=1e-9, atol=1e-9)


def test_unsolved_columns_are_warned_of(monkeypatch):
    monkeypatch.setattr(eigen.linear, "DENSE_SOLVE", 0)
    monkeypatch.setattr(eigen.linear, "EASY_PRODUCTS", 1)
    monkeypatch.setattr(eigen.linear, "MOST_PRODUCTS", 2)
    with pytest.warns(ConvergenceWarning, match="linear solve has not reached its tolerance for 2 of 2 columns"):
        eigen.solve_linear(with_excess(roll(2000, orders=12), 1e-9), points(2000, 2))


@pytest.mark.filterwarnings("ignore:.*isolated")
@pytest.mark.parametrize("is_sparse", [False, True])
def test_laplacians_have_the_pseudo_inverse(is_sparse):
    affinity = torch.block_diag(random_affinity(9), random_affinity(7, seed=1), torch.zeros(1, 1)).double()
    graph = stored(affinity, is_sparse)
    inverse = torch.linalg.pinv(torch.diag(affinity.sum(1)) - affinity, hermitian=True)
    rhs = inverse @ points(17, 3)  # sums to zero on each component
    torch.testing.assert_close(eigen.solve_linear(Laplacian(graph, "unnormalized"), rhs), inverse @ rhs)
    with pytest.raises(ValueError, match="rhs must sum to 0 on each component"):
        eigen.solve_linear(Laplacian(graph, "unnormalized"), points(17, 3))
    with pytest.raises(ValueError, match="null vectors that are constant"):
        eigen.solve_linear(Laplacian(graph), rhs)


def test_resistances_of_edges_obey_the_theorem_of_foster():
    graph = roll(300)
    resistance = eigen.resistance_distances(graph)
    assert (graph.weight * resistance).sum() / 2 == pytest.approx(300 - 1, rel=1e-8)  # nodes less components
    assert (eigen.resistance_distances(graph, torch.tensor([[5], [5]])) == 0).all()


def test_commute_times_are_those_of_a_walk():
    affinity = random_affinity(6, keep=1)
    walk = affinity / affinity.sum(1, keepdim=True)
    times = eigen.resistance_distances(Graph.from_dense(affinity), torch.tensor([[0], [4]]), commute_time=True)
    hits = []
    for start, end in ((0, 4), (4, 0)):
        others = [node for node in range(6) if node != end]
        steps = torch.linalg.solve(torch.eye(5) - walk[others][:, others], torch.ones(5, dtype=torch.float64))
        hits.append(steps[others.index(start)])
    assert times.item() == pytest.approx(float(sum(hits)))


def test_pairs_in_two_components_leave_the_others_their_derivatives():
    weight = torch.block_diag(torch.ones(3, 3) - torch.eye(3), torch.ones(2, 2) - torch.eye(2), torch.zeros(1, 1))
    weight = weight.double().requires_grad_()
    pairs = torch.tensor([[0, 0, 5], [1, 3, 0]])
    for commute_time in (False, True):
        found = eigen.resistance_distances(Graph.from_dense(weight), pairs, commute_time=commute_time)
        assert found[1:].isinf().all()
        (gradient,) = torch.autograd.grad(found[0], weight)
        assert gradient.isfinite().all()
        assert not gradient[:3, 3:].any()  # a bridge changes nothing


def test_weights_of_a_range_that_hides_resistances_are_reported():
    path = torch.diag(torch.tensor([1.0, 1e14, 1.0]).double(), 1)
    with pytest.warns(ConvergenceWarning, match="weights of this range"):
        eigen.resistance_distances(Graph.from_dense(path + path.T), torch.tensor([[0], [1]]))
