"""Search by projections: bounds hold, answers are those of direct differences, and it is left where it loses."""

import pytest
import torch

from problems import points
from torch_lapeig import _tuning
from torch_lapeig.graph import nearest_neighbors, neighbors, projection
from torch_lapeig.graph.distances import squared_distances
from torch_lapeig.graph.projection import SLACK, projection_that_pays
from torch_lapeig.graph.tables import unit_of_slack

N, D = 4400, 130


def near_few(n=N, d=D, noise=0.01):
    """Points near a space of six dimensions."""
    return points(n, 6) @ points(6, d, seed=1) + noise * points(n, d, seed=2)


def outliers(size):
    x = near_few()
    x[::500] *= size
    return x


# Points, and the most rows that may be left: 1 where the slack hides what is near.
SETS = {
    "near few": (near_few(), 0.0),
    "in few": (near_few(noise=0.0), 0.0),
    "decay": (points(N, D) / torch.arange(1, D + 1) ** 2, 0.0),
    "offset": (near_few() + 1e3, 0.0),
    "huge": (1e16 * near_few(), 0.0),
    "tiny": (1e-17 * near_few(), 0.0),
    "copies": (near_few(440).repeat(10, 1), 0.0),
    "lattice": (points(N, 4).round() @ torch.eye(4, D, dtype=torch.float64), 0.0),
    "outliers": (outliers(1e4), 1.0),
    "tight clusters": (100 * points(20, D)[torch.arange(N) % 20] + 1e-4 * points(N, D, seed=2), 1.0),
}


def at_any_cost(monkeypatch):
    """32 directions, whatever they leave."""
    monkeypatch.setattr(projection, "DIRECTIONS", (32,))
    monkeypatch.setattr(projection, "MEASURED_BYTE", 0)


@pytest.fixture
def left(monkeypatch):
    """Projections on every problem, of 32 directions; a list of the shares of rows that are left."""
    shares = []

    def counted(*arguments):
        found = search(*arguments)
        shares.append(len(found[2]) / len(found[0]))
        return found

    search = projection.nearest_by_projection
    monkeypatch.setattr(neighbors, "nearest_by_projection", counted)
    monkeypatch.setattr(neighbors, "projection_may_pay", lambda points, queries: True)
    at_any_cost(monkeypatch)
    return shares


def by_direct_differences(queries, x, k, *, itself, mask=None):
    """Numbers and squared distances, ties by number."""
    distances = squared_distances(queries, x)
    if itself:
        distances.fill_diagonal_(torch.inf)
    if mask is not None:
        distances[:, ~mask] = torch.inf
    return (part[:, :k] for part in reversed(distances.sort(dim=1, stable=True)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", SETS)
def test_answers_are_those_of_direct_differences(left, kind, dtype):
    x, most = SETS[kind][0].to(dtype), SETS[kind][1]
    found = nearest_neighbors(x, 7)
    assert len(left) == 1
    assert left[0] <= most
    chosen = torch.arange(0, N, 5)
    distances = squared_distances(x[chosen], x)
    distances[torch.arange(len(chosen)), chosen] = torch.inf
    nearest, order = distances.sort(dim=1, stable=True)
    torch.testing.assert_close(found.squared_distances[chosen], nearest[:, :7], rtol=1e-3, atol=0)
    # Two sums of the same squares may order what differs in the last bits in another way.
    apart = ((nearest[:, 1:8] - nearest[:, :7]) > 1e-5 * nearest[:, 1:8]).all(1)
    assert torch.equal(found.indices[chosen][apart], order[:, :7][apart])


def test_ties_go_to_the_smaller_number(left):
    x = SETS["lattice"][0].float()  # whole numbers: all sums are exact
    indices, distances = by_direct_differences(x, x, 9, itself=True)
    found = nearest_neighbors(x, 9)
    assert left == [0.0]
    assert torch.equal(found.indices, indices)
    assert torch.equal(found.squared_distances, distances.round())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_padding_is_nobodys_neighbour_and_queries_may_be_others(left, dtype):
    x, mask = near_few().to(dtype), torch.rand(N, generator=torch.Generator().manual_seed(0)) > 0.3
    queries = x[:500] + 0.1 * points(500, D, seed=4).to(dtype)
    indices, _ = by_direct_differences(queries, x, 4, itself=False, mask=mask)
    found = nearest_neighbors(x, 4, queries, mask=mask)
    assert left == [0.0]
    assert torch.equal(found.indices, indices)
    alone = nearest_neighbors(x, 4, mask=mask).indices
    assert mask[alone[mask]].all()
    assert (alone[mask] != mask.nonzero()).all()


def test_rows_with_too_many_candidates_are_left_to_the_other_search(left, monkeypatch):
    x = torch.cat([near_few(4300), 50 * points(100, D, seed=3)])  # what lies apart is near nothing
    monkeypatch.setattr(projection, "MOST_GROUPS", 0.01)
    found = nearest_neighbors(x, 5)
    assert 0 < left[0] < 0.1
    assert torch.equal(found.indices, next(by_direct_differences(x, x, 5, itself=True)))


def test_a_block_of_many_candidates_keeps_to_its_memory(left, monkeypatch):
    x = near_few()
    monkeypatch.setattr(projection, "rows_of_block", lambda *_: 2000)  # groups of a block
    found = nearest_neighbors(x, 5)
    assert 0 < left[0] < 1
    assert torch.equal(found.indices, next(by_direct_differences(x, x, 5, itself=True)))


@pytest.mark.parametrize("kind", SETS)
def test_bounds_are_below_the_distances(kind, monkeypatch):
    at_any_cost(monkeypatch)
    x = SETS[kind][0].double()
    found = projection_that_pays(x, x, torch.ones(N, dtype=torch.bool), True, 5)
    low = squared_distances(found.points[:300].double(), found.points.double())
    exact = found.square * squared_distances(x[:300], x)
    squares = (found.square * (x - x.mean(0)).square().sum(1)).float()
    slack = SLACK * unit_of_slack(x[:0].float()) * (squares[:300, None] + squares.max())
    assert (low <= exact + slack).all()
    assert exact.max() <= 4


def test_directions_are_chosen_by_the_work_they_leave():
    valid = torch.ones(N, dtype=torch.bool)

    def width(x):
        found = projection_that_pays(x, x, valid, True, 7)
        return None if found is None else found.points.shape[1] - 1

    assert width(near_few(d=400)) == 32
    assert width(points(N, 400)) is None  # as far in each direction
    assert width(torch.ones(N, 400)) is None  # nothing to tell apart


def test_only_large_searches_on_the_processor_look_for_directions():
    x = torch.empty(20_000, 784)
    assert _tuning.projection_may_pay(x, 20_000)
    assert not _tuning.projection_may_pay(x, 1000)
    assert not _tuning.projection_may_pay(x[:4000], 20_000)
    assert not _tuning.projection_may_pay(x[:, :100], 20_000)
    assert not _tuning.projection_may_pay(x.to("meta"), 20_000)


def test_the_default_dtype_changes_nothing(left):
    x = near_few()
    expected = nearest_neighbors(x, 5)
    torch.set_default_dtype(torch.float64)
    try:
        found = nearest_neighbors(x, 5)
    finally:
        torch.set_default_dtype(torch.float32)
    assert left == [0.0, 0.0]
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.squared_distances, expected.squared_distances)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_small_budgets_change_nothing(left, threads, monkeypatch):
    before = torch.get_num_threads()
    x = near_few()
    expected = nearest_neighbors(x, 5)
    torch.set_num_threads(threads)
    try:
        found = nearest_neighbors(x, 5, budget=10_000_000)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.squared_distances, expected.squared_distances)
