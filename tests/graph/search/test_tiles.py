"""Tiles find what all distances find: ties by the smaller index, whatever the data."""

import math

import pytest
import torch

from problems import DTYPES, covering, points
from torch_lapeig.graph import nearest_neighbors, radius_neighbors
from torch_lapeig.graph.search import neighbors, tiles


@pytest.fixture
def by_tiles(monkeypatch):
    """A function that has all searches done by tiles of a few points, or none."""

    def switch(on):
        monkeypatch.setattr(neighbors, "TILED_SET", 2 if on else 10**9)
        monkeypatch.setattr(tiles, "TILE_SHARE", 10.0)
        monkeypatch.setattr(tiles, "TILE_POINTS", 16)

    return switch


def lattice(side, d, dtype):
    return torch.cartesian_prod(*[torch.arange(side, dtype=dtype)] * d).reshape(-1, d)


def few_values(dtype):
    return torch.randint(0, 3, (700, 3), generator=torch.Generator().manual_seed(0)).to(dtype)


def one_far(dtype):
    return torch.cat([points(400, 2, dtype=dtype), torch.full((1, 2), 1e6, dtype=dtype)])


CLOUDS = {
    "random": lambda dtype: points(900, 3, dtype=dtype),
    "eight dimensions": lambda dtype: points(700, 8, dtype=dtype),
    "a plane in twenty": lambda dtype: points(700, 2, dtype=dtype) @ points(2, 20, seed=1, dtype=dtype),
    "a line": lambda dtype: points(500, 1, dtype=dtype),
    "copies": lambda dtype: points(90, 3, dtype=dtype).repeat(9, 1),
    "many copies": few_values,
    "all equal": lambda dtype: torch.ones(300, 2, dtype=dtype),
    "lattice": lambda dtype: lattice(9, 3, dtype),
    "lattice far away": lambda dtype: lattice(20, 2, dtype) + 1e8,
    "random far away": lambda dtype: points(600, 3, dtype=dtype) + 1e8,
    "tiny": lambda dtype: points(500, 3, dtype=dtype) * (1e-15 if dtype == torch.float32 else 1e-140),
    "units that underflow": lambda dtype: points(300, 3, dtype=dtype) * (1e-30 if dtype == torch.float32 else 1e-300),
    "clusters": lambda dtype: 1e-3 * points(600, 3, dtype=dtype) + 1e3 * torch.arange(600)[:, None].remainder(4),
    "one far": one_far,
}


@pytest.mark.filterwarnings("ignore:squared distances of .* rescale:torch_lapeig.GraphWarning")
@covering(2, cloud=CLOUDS, k=[1, 10], dtype=DTYPES)
def test_equals_all_distances(cloud, k, dtype, by_tiles):
    x = cloud(dtype).to(dtype)
    queries = torch.cat([x[::7], x[:40] + 0.5])
    by_tiles(False)
    blocked = nearest_neighbors(x, k), nearest_neighbors(x, k, queries)
    by_tiles(True)
    for expected, found in zip(blocked, (nearest_neighbors(x, k), nearest_neighbors(x, k, queries)), strict=True):
        assert torch.equal(found.indices, expected.indices)
        torch.testing.assert_close(found.squared_distances, expected.squared_distances, rtol=2e-3, atol=0)


@pytest.mark.filterwarnings("ignore:squared distances of .* rescale:torch_lapeig.GraphWarning")
@covering(1, cloud=CLOUDS, dtype=DTYPES)
def test_radius_equals_all_distances(cloud, dtype, by_tiles):
    """Also with a lattice's distances for the radius, which half of the pairs have exactly."""
    x = cloud(dtype).to(dtype)
    scale = float(nearest_neighbors(x, 3).squared_distances[:, -1].median().sqrt()) or 1.0
    reach = scale * torch.rand(len(x), generator=torch.Generator().manual_seed(0), dtype=dtype)
    for radius, queries in ((scale, None), (math.sqrt(2), None), (reach, x[:50]), (2 * reach, x[::9] + scale / 3)):
        by_tiles(False)
        expected = radius_neighbors(x, radius, queries)
        by_tiles(True)
        found = radius_neighbors(x, radius, queries)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("k", [3, 9])
def test_batches_and_masks(k, by_tiles):
    by_tiles(True)
    x = points(60, 3, batch=3)
    x[1, 20:] = x[1, :40].clone()
    mask = torch.arange(60) < torch.tensor([60, 31, 12])[:, None]
    dirty = torch.where(mask[..., None], x, torch.nan)
    whole, found = nearest_neighbors(x, k), nearest_neighbors(dirty, k, mask=mask)
    pairs = radius_neighbors(dirty, 1.0, mask=mask)
    by_tiles(False)
    assert torch.equal(whole.indices, nearest_neighbors(x, k).indices)
    expected = radius_neighbors(dirty, 1.0, mask=mask)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(pairs, expected, strict=True))
    for b, length in enumerate(mask.sum(1).tolist()):
        assert torch.equal(found.indices[b, :length], nearest_neighbors(x[b, :length], k).indices)


def test_an_item_of_which_all_points_are_masked():
    x = points(1000, 2, batch=2)
    mask = torch.tensor([True, False])[:, None].expand(2, 1000)
    pairs = radius_neighbors(x, 0.2, mask=mask)
    alone = radius_neighbors(x[0], 0.2)
    assert not pairs.item.any()
    assert torch.equal(pairs.query, alone.query)
    assert torch.equal(pairs.point, alone.point)
