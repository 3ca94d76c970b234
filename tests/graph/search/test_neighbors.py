"""Exact search against brute force in float64 and scikit-learn; padding, ties, copies, points far from the origin."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import radius_neighbors_graph

from problems import DEVICES, DTYPES, covering, every, in_every_dtype, on_every_device, points, setting
from torch_lapeig import GraphWarning
from torch_lapeig.graph import nearest_neighbors, radius_neighbors
from torch_lapeig.graph.search import exact
from torch_lapeig.native import calls as native


@pytest.fixture(autouse=True, params=["small sets directly", "by products"])
def path(request, monkeypatch):
    """Sets of any size as small ones are searched, where there are compiled loops for that, and as large ones are."""
    if request.param == "by products":
        monkeypatch.setattr(exact, "DIRECT_BYTES", 0)
    elif native.library() is None:
        pytest.skip("nothing is compiled here")


def brute_force(x, k, asked, itself):
    """Return the indices of the nearest of ``x`` and squared distances in float64, ties by index."""
    # itself holds the indices of the asked points among x, if they are some of them.
    d2 = torch.cdist(asked.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    if itself is not None:
        d2[torch.arange(len(asked)), itself] = torch.inf
    values, indices = d2.sort(dim=-1, stable=True)
    return indices[:, :k], values[:, :k]


def check_exact(x, k, queries=None, **options):
    """Return the share of neighbours with the indices of brute force, of some 600 rows."""
    # Distances equal those of brute force up to round-off: indices differ between equal ones only.
    found = nearest_neighbors(x, k, queries, **options)
    asked = x if queries is None else queries
    rows = torch.arange(0, len(asked), max(1, len(asked) // 600), device=x.device)
    indices, d2 = brute_force(x, k, asked[rows], rows if queries is None else None)
    scale = torch.finfo(x.dtype).eps * 8
    torch.testing.assert_close(found.squared_distances[rows].double(), d2, rtol=1e-3, atol=0)
    differences = asked[rows].double()[:, None] - x.double()[found.indices[rows]]
    torch.testing.assert_close(differences.square().sum(-1), d2, rtol=scale, atol=0)
    if queries is None:
        assert (found.indices != torch.arange(x.shape[-2], device=x.device)[:, None]).all()
    return (found.indices[rows] == indices).double().mean()


SIZES = [(2, 1, 1), (7, 3, 6), (300, 5, 10), (4200, 4, 7), (4500, 24, 15), (1200, 784, 15)]  # points, dims, neighbours


@covering(2, size=SIZES, shift=[1e4, 0], dtype=DTYPES, device=DEVICES)
def test_equals_brute_force(size, shift, dtype, device):
    """Both paths (whole rows, tiles); points far from the origin are centred before the product."""
    n, d, k = size
    assert check_exact((points(n, d, dtype=dtype) + shift).to(device), k) > 0.9999


@every(n=[200, 5000], dtype=DTYPES)
def test_separate_queries(n, dtype):
    x, queries = points(n, 3, dtype=dtype), points(50, 3, seed=1, dtype=dtype)
    check_exact(x, 9, queries)
    same = nearest_neighbors(x, 1, x[:20])  # a query that is one of the points finds it
    assert torch.equal(same.indices[:, 0], torch.arange(20))
    assert not same.squared_distances.any()


@in_every_dtype
def test_clusters_far_apart(dtype):
    """The product cancels: distances of 1e-3 beside norms of 1e3. Rows it cannot decide are searched directly."""
    x = 1e-3 * points(400, 3, dtype=dtype)
    x = torch.cat([x + 1e3, x.flip(0) - 1e3])
    check_exact(x, 10)
    check_exact(x.repeat(8, 1)[:5000] + 1e-2 * points(5000, 3, seed=2, dtype=dtype), 10)


@pytest.mark.parametrize("n", [60, 4200])
def test_copies_and_ties_go_by_index(n):
    x = torch.arange(n // 6, dtype=torch.float32).repeat_interleave(6)[:, None]
    assert check_exact(x, 8) == 1  # five copies, then the tied neighbours on both sides
    found = nearest_neighbors(torch.ones(n, 2), 3)
    assert not found.squared_distances.any()
    assert found.indices[0].tolist() == [1, 2, 3]
    assert found.indices[2].tolist() == [0, 1, 3]
    assert found.indices[-1].tolist() == [0, 1, 2]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3).flatmap(lambda d: st.lists(st.tuples(*[st.integers(-2, 2)] * d), min_size=3, max_size=14)),
    st.integers(1, 2),
    st.floats(0.5, 3),
)
def test_small_point_sets_with_ties(rows, k, radius):
    x = torch.tensor(rows, dtype=torch.float64)
    assert check_exact(x, k) == 1
    d2 = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square().fill_diagonal_(torch.inf)
    found = radius_neighbors(x, radius)
    torch.testing.assert_close(torch.stack([found.query, found.point], 1), (d2 <= radius**2).nonzero())


@on_every_device
def test_batches_and_masks(device):
    x = points(30, 3, batch=4).to(device)
    whole = nearest_neighbors(x, 5)
    assert torch.equal(whole.indices, torch.stack([nearest_neighbors(item, 5).indices for item in x]))
    mask = torch.arange(30, device=device) < torch.tensor([30, 7, 12, 25], device=device)[:, None]
    dirty = torch.where(mask[..., None], x, torch.nan)
    found = nearest_neighbors(dirty, 5, mask=mask)
    reach = radius_neighbors(dirty, 1.5, mask=mask)
    for b, length in enumerate(mask.sum(1).tolist()):
        assert torch.equal(found.indices[b, :length], nearest_neighbors(x[b, :length], 5).indices)
        inside = radius_neighbors(x[b, :length], 1.5)
        assert torch.equal(reach.query[reach.item == b], inside.query)
        assert torch.equal(reach.point[reach.item == b], inside.point)


@pytest.mark.parametrize("budget", [1, 20_000, 620_000, 10**6])  # 620,000: several sets, of which each takes two blocks
def test_the_budget_changes_nothing_but_memory(budget):
    x, large = points(80, 3, batch=3), points(4500, 3)
    assert torch.equal(nearest_neighbors(x, 5, budget=budget).indices, nearest_neighbors(x, 5).indices)
    queries = points(9, 3, seed=1)
    found = nearest_neighbors(large, 5, queries, budget=budget)
    assert torch.equal(found.indices, nearest_neighbors(large, 5, queries).indices)
    assert torch.equal(radius_neighbors(x, 1.0, budget=budget).point, radius_neighbors(x, 1.0).point)


@every(shift=[0, 1e3], dtype=DTYPES)
def test_radius_agrees_with_scikit_learn(dtype, shift):
    x = points(300, 3, dtype=dtype) + shift
    found = radius_neighbors(x, 0.8)
    expected = radius_neighbors_graph(x.double().numpy(), 0.8).tocoo()
    pairs = torch.zeros(300, 300).index_put((found.query, found.point), torch.ones(len(found.query)))
    assert (pairs.numpy() != expected.toarray()).sum() <= (0 if dtype == torch.float64 else 2)
    reach = torch.rand(300, generator=torch.Generator().manual_seed(0), dtype=dtype)
    own = radius_neighbors(x, reach, x[:40])
    d = torch.cdist(x[:40].double(), x.double())
    close = ((d <= reach) != torch.zeros(40, 300).index_put((own.query, own.point), torch.tensor(1.0)).bool()).sum()
    assert close <= (0 if dtype == torch.float64 and not shift else 2)


def test_a_coarse_product_is_allowed_for():
    """If the user lets torch round products coarsely, more rows are measured again, with equal answers."""
    x = points(5000, 8, dtype=torch.float32)
    exact = nearest_neighbors(x, 10)
    for precision in ("high", "medium"):
        with setting(torch.set_float32_matmul_precision, precision, torch.get_float32_matmul_precision()):
            assert torch.equal(nearest_neighbors(x, 10).indices, exact.indices)
            assert torch.equal(radius_neighbors(x, 1.0).point, radius_neighbors(x.double(), 1.0).point)


@pytest.mark.parametrize("rows", [64, 10**6])
def test_threads_with_blocks_of_their_own_change_nothing(rows, monkeypatch):
    x = torch.cat([points(4000, 9, dtype=torch.float32), torch.ones(200, 9)])
    queries = points(700, 9, seed=1, dtype=torch.float32)
    alone = nearest_neighbors(x, 7), nearest_neighbors(x, 7, queries)
    monkeypatch.setattr(exact, "PRODUCT_ROWS", rows)
    with setting(torch.set_num_threads, 3, torch.get_num_threads()):
        together = nearest_neighbors(x, 7), nearest_neighbors(x, 7, queries)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.indices, other.indices)
        torch.testing.assert_close(one.squared_distances, other.squared_distances, rtol=1e-3, atol=0)


@in_every_dtype
def test_units_in_which_squares_underflow_are_warned_of(dtype):
    x, unit = points(60, 3).to(dtype), 1e-25 if dtype == torch.float32 else 1e-200
    with pytest.warns(GraphWarning, match=r"squared distances of \d+ pairs of distinct points .* rescale"):
        nearest_neighbors(unit * x, 4)
    batch = torch.stack([x, torch.cat([x[:-1], unit * x[-1:]])])
    with pytest.warns(GraphWarning, match="of 1 pairs of distinct points"):  # in a batch beside others, by queries
        nearest_neighbors(batch, 1, torch.zeros(2, 1, 3, dtype=dtype))
    nearest_neighbors(torch.cat([x, x]), 4)  # copies are at distance 0


@pytest.mark.parametrize("shape", [(300, 3), (4500, 2)], ids=str)
def test_ties_in_blocks_of_one_row(shape, small_blocks):
    """A lattice, on which most rows are searched among all points within their k-th distance."""
    x = (2 * points(*shape, dtype=torch.float32)).round()
    queries = x[:60]
    whole = nearest_neighbors(x, 6, queries)
    small_blocks()
    found = nearest_neighbors(x, 6, queries)
    assert torch.equal(found.indices, whole.indices)
    assert torch.equal(found.squared_distances, whole.squared_distances)
