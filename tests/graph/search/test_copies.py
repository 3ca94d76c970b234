"""Points of which there are many copies: the same neighbours as by brute force, ties by the smaller index."""

import pytest
import torch

from problems import points
from torch_lapeig.graph import nearest_neighbors
from torch_lapeig.graph.distances import squared_distances
from torch_lapeig.graph.search import neighbors


def brute(x, k, queries=None, valid=None):
    distances = squared_distances(x if queries is None else queries, x)
    if queries is None:
        distances.fill_diagonal_(torch.inf)
    if valid is not None:
        distances[:, ~valid] = torch.inf
    return distances.sort(dim=1, stable=True).indices[:, :k]


def clumps(n, dimensions, dtype, *, share=0.5, seed=0):
    """Points, a share of which are copies of three of them, in random order; zeros of both signs."""
    x = points(n, dimensions, dtype=dtype, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    x[: int(share * n)] = x[-3:][torch.randint(3, (int(share * n),), generator=generator)]
    x[x.abs() < 0.05] = 0
    return x[torch.randperm(n, generator=generator)] * torch.where(x[:, :1] > 0, 1.0, -1.0)[0]


@pytest.fixture
def small(monkeypatch):
    """Copies are looked for among few points, too."""
    monkeypatch.setattr(neighbors, "TILED_SET", 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("k", [1, 7])
def test_neighbours_among_copies(small, dtype, share, k):
    for seed in range(5):
        x, queries = clumps(300, 12, dtype, share=share, seed=seed), points(40, 12, dtype=dtype, seed=9)
        queries[:20] = x[:20]
        assert torch.equal(nearest_neighbors(x, k).indices, brute(x, k))
        assert torch.equal(nearest_neighbors(x, k, queries).indices, brute(x, k, queries))


def test_batches_with_padding_some_of_which_have_copies(small):
    x = torch.stack([points(200, 10), clumps(200, 10, torch.float64), torch.ones(200, 10, dtype=torch.float64)])
    mask = torch.arange(200) < torch.tensor([[200], [150], [120]])
    x = torch.where(mask[..., None], x, torch.nan)
    found = nearest_neighbors(x, 5, mask=mask).indices
    for b in range(3):
        m = int(mask[b].sum())
        assert torch.equal(found[b, :m], brute(x[b, :m], 5))


def test_thousands_of_copies_are_not_measured_against_each_other():
    """By default, too: of 6000 equal points the few that can be found are candidates."""
    x = torch.ones(6000, 20)
    x[::2] = 2
    found = nearest_neighbors(x, 3).indices
    assert found[:4].tolist() == [[2, 4, 6], [3, 5, 7], [0, 4, 6], [1, 5, 7]]
    assert found[-1].tolist() == [1, 3, 5]
