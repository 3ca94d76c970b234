"""Neighbour rules: graphs and their symmetrisation, extension to new points, rules of the user's own."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import kneighbors_graph, radius_neighbors_graph

from problems import DEVICES, DTYPES, distances, every, in_every_dtype, points
from torch_lapeig import KNN, Graph, HeatKernel, Isomap, Radius, knn_graph, radius_graph


@every(symmetrize=["union", "mutual", "mean"], dtype=DTYPES, device=DEVICES)
def test_knn_graph_agrees_with_scikit_learn(symmetrize, dtype, device):
    x = points(80, 5, dtype=dtype).to(device)
    directed = kneighbors_graph(x.cpu().numpy(), 6).toarray()
    expected = {
        "union": np.maximum(directed, directed.T),
        "mutual": np.minimum(directed, directed.T),
        "mean": (directed + directed.T) / 2,
    }[symmetrize]
    graph = knn_graph(x, 6, symmetrize=symmetrize)
    assert (graph.weight.dtype, graph.weight.device.type) == (dtype, device)
    np.testing.assert_array_equal(graph.to_dense().cpu().numpy(), expected)


@every(dtype=DTYPES, device=DEVICES)
def test_radius_graph_agrees_with_scikit_learn(dtype, device):
    x = points(80, 3, dtype=dtype).to(device)
    expected = radius_neighbors_graph(x.cpu().numpy(), 1.2).toarray()
    np.testing.assert_array_equal(radius_graph(x, 1.2).to_dense().cpu().numpy(), expected)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3).flatmap(lambda d: st.lists(st.tuples(*[st.integers(-3, 3)] * d), min_size=3, max_size=12)),
    st.integers(1, 2),
    st.sampled_from(["union", "mutual", "mean"]),
)
def test_graph_laws(rows, k, symmetrize):
    """Symmetric, no self loops however many copies and ties there are, degrees as the rule says, edges in order."""
    x = torch.tensor(rows, dtype=torch.float64)
    graph = knn_graph(x, k, symmetrize=symmetrize)
    dense = graph.to_dense()
    assert torch.equal(dense, dense.T)
    assert not dense.diagonal().any()
    degree = (dense > 0).sum(1)
    if symmetrize == "mutual":
        assert (degree <= k).all()
    else:
        assert (degree >= k).all()
    row, col = graph.edge_index
    reverse = graph.pattern.reverse.long()
    assert ((row * len(x) + col).diff() > 0).all()
    assert torch.equal(row[reverse], col)
    assert torch.equal(col[reverse], row)
    assert torch.equal(knn_graph(x, k, symmetrize=symmetrize).to_dense(), dense)


@pytest.mark.parametrize("rule", [lambda x, **o: knn_graph(x, 3, **o), lambda x, **o: radius_graph(x, 1.5, **o)])
def test_self_loops_on_and_off(rule):
    x, mask = points(12, 2, batch=2), torch.arange(12) < torch.tensor([12, 8])[:, None]
    plain, loops = rule(x, mask=mask), rule(x, mask=mask, self_loops=True)
    torch.testing.assert_close(loops.to_dense(), plain.to_dense() + torch.diag_embed(mask.double()))
    torch.testing.assert_close(HeatKernel(0.5)(x, loops).to_dense().diagonal(dim1=1, dim2=2), mask.double())
    beside = HeatKernel()(x, loops).to_dense() * (1 - torch.eye(12))
    torch.testing.assert_close(beside, HeatKernel()(x, plain).to_dense())


@pytest.mark.parametrize("rule", [KNN(6, "union"), KNN(6, "mutual"), KNN(6, "mean"), Radius(1.1)], ids=str)
def test_edges_of_new_points_are_those_of_the_graph_of_all_points(rule):
    """As if no point changed its radius, which is the state of the rule."""
    x, new = points(60, 3), points(25, 3, seed=1)
    state, d = rule.with_state(x)[1], distances(new, x)
    nearest = torch.zeros_like(d).scatter_(1, d.argsort(1)[:, :6], 1)
    within, reached = (d <= 1.1).double(), (d <= state).double()
    both = {"union": torch.maximum(nearest, reached), "mutual": nearest * reached, "mean": (nearest + reached) / 2}
    found = rule.extend(new, x, state)
    joined = torch.zeros_like(d).index_put((found.query, found.point), found.connectivity)
    assert torch.equal(joined, both[rule.symmetrize] if isinstance(rule, KNN) else within)
    assert (found.same == -1).all()


@pytest.mark.parametrize("rule", [KNN(4), KNN(4, metric="cosine"), Radius(0.8)], ids=str)
def test_a_new_point_that_is_a_training_point_is_told(rule):
    x = points(40, 3)
    x[7] = x[3]
    found = rule.extend(torch.cat([x[[5, 7, 3]], 2 * x[:1]]), x, rule.with_state(x)[1])
    of_twice = 0 if getattr(rule, "metric", "") == "cosine" else -1  # a point of the direction, or no point
    assert found.same.tolist() == [5, 3, 3, of_twice]


def test_a_function_may_be_a_rule():
    x = points(12, 3)
    torch.testing.assert_close(Isomap(2, lambda x, mask=None: knn_graph(x, 4))(x), Isomap(2, KNN(4))(x))


NO_RULES = [5, None, "knn", KNN, Graph, HeatKernel(), torch.relu, len, torch.nn.ReLU()]


@pytest.mark.parametrize("other", NO_RULES, ids=lambda other: getattr(other, "__name__", str(other)))
def test_objects_that_are_no_rules_are_refused(other):
    with pytest.raises(TypeError, match=r"neighbors must be KNN\(k\), Radius\(r\) or another NeighborRule, called as"):
        Isomap(2, other)


@in_every_dtype
def test_new_points_exactly_as_far_as_the_last_neighbour_are_reached(dtype):
    """Distances between integers are exact: a root, or a search with rounded values, would lose some points."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        x, q = torch.randint(0, 4, (2, 12, 2), generator=generator).to(dtype)
        k = int(torch.randint(1, 5, (), generator=generator))
        squares = (x[:, None] - x).square().sum(2).fill_diagonal_(torch.inf)
        within = (q[:, None] - x).square().sum(2) <= squares.sort(1).values[:, k - 1]
        found = KNN(k, "union").extend(q, x, KNN(k).with_state(x)[1])
        joined = torch.zeros_like(within).index_put((found.query, found.point), torch.tensor(True))
        assert not (within & ~joined).any()


@every(symmetrize=["mean", "union", "mutual"], dtype=DTYPES)
def test_extensions_do_not_depend_on_how_many_new_points_there_are(symmetrize, dtype):
    """Ties go to the smaller index, however many queries there are."""
    rule = KNN(7, symmetrize)
    x = torch.cartesian_prod(torch.arange(25), torch.arange(25)).to(dtype) * torch.tensor([1.0, 0.5], dtype=dtype)
    q = torch.cat([x + torch.tensor([0.5, 0.0], dtype=dtype), x[::7]])
    _, state = rule.with_state(x)

    def weights(some):
        found = rule.extend(some, x, state)
        return x.new_zeros(len(some), len(x)).index_put((found.query, found.point), found.connectivity)

    whole = weights(q)
    assert torch.equal(whole, torch.cat([weights(part) for part in q.split(100)]))
    nearest = (q[:, None] - x).square().sum(2).argsort(dim=1, stable=True)[:, :7]
    if symmetrize != "mutual":
        assert (whole.gather(1, nearest) > 0).all()


@every(radius=[2**0.5, 0.7, 1.0, 3**0.5, 1e-3, 5**0.5], dtype=DTYPES)
def test_a_radius_includes_points_exactly_at_it(radius, dtype):
    """Lattices: rounded to float32, the root of 2 has a square below 2; new points have the same reach."""
    unit = 1.0 if radius > 0.9 else radius
    x = unit * torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)).to(dtype)
    steps = torch.cdist(x.double(), x.double()) / unit
    expected = int((steps <= radius / unit + 1e-5).sum()) - len(x)
    assert radius_graph(x, radius).weight.numel() == expected
    _, state = Radius(radius).with_state(x)
    assert len(Radius(radius).extend(x + 0, x, state).query) == expected + len(x)
