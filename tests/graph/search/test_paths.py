"""Tiles, images in fewer dimensions and sets without copies find what all distances find, ties by the smaller index."""

import math

import pytest
import torch

from problems import DTYPES, covering, every, points
from torch_lapeig.graph import nearest_neighbors, radius_neighbors
from torch_lapeig.graph.search import exact, neighbors, tiles

# What is set so that sets of few points are searched in a way for many.
PATHS = {
    "tiles": {(neighbors, "TILED_SET"): 2, (tiles, "TILE_SHARE"): 10.0, (tiles, "TILE_POINTS"): 16},
    "images": {
        **{(neighbors, "TILED_SET"): 100, (tiles, "TILE_SHARE"): -1, (exact, "IMAGED_DIMENSIONS"): 4},
        **{(exact, "IMAGE_DIRECTIONS"): 32, (exact, "IMAGE_SHARE"): 1.0},
    },
    "without copies": {(neighbors, "TILED_SET"): 10},
}


@pytest.fixture
def take(monkeypatch):
    """A function that has all searches go a path from then on."""

    def switch(path):
        for (module, name), value in PATHS[path].items():
            monkeypatch.setattr(module, name, value)

    return switch


def lattice(side, d, dtype):
    return torch.cartesian_prod(*[torch.arange(side, dtype=dtype)] * d).reshape(-1, d)


def near_few(dtype, d=130):
    x = points(900, 6, dtype=dtype) @ points(6, d, seed=1, dtype=dtype)
    return x + 0.01 * points(900, d, seed=2, dtype=dtype)


def clumps(dtype):
    """Half of the points are copies of three, with zeros of both signs."""
    x = points(600, 12, dtype=dtype)
    x[::2] = x[1:7:2][torch.arange(300) % 3]
    return torch.where(x.abs() < 0.05, x.sign() * 0, x)


CLOUDS = {
    "random": lambda dtype: points(900, 3, dtype=dtype),
    "eight dimensions": lambda dtype: points(700, 8, dtype=dtype),
    "a plane in twenty": lambda dtype: points(700, 2, dtype=dtype) @ points(2, 20, seed=1, dtype=dtype),
    "a line": lambda dtype: points(500, 1, dtype=dtype),
    "copies": lambda dtype: points(90, 3, dtype=dtype).repeat(9, 1),
    "many copies": lambda dtype: torch.randint(0, 3, (700, 3), generator=torch.Generator().manual_seed(0)).to(dtype),
    "all equal": lambda dtype: torch.ones(300, 2, dtype=dtype),
    "lattice": lambda dtype: lattice(9, 3, dtype),
    "lattice far away": lambda dtype: lattice(20, 2, dtype) + 1e8,
    "random far away": lambda dtype: points(600, 3, dtype=dtype) + 1e8,
    "tiny": lambda dtype: points(500, 3, dtype=dtype) * (1e-15 if dtype == torch.float32 else 1e-140),
    "units that underflow": lambda dtype: points(300, 3, dtype=dtype) * (1e-30 if dtype == torch.float32 else 1e-300),
    "clusters": lambda dtype: 1e-3 * points(600, 3, dtype=dtype) + 1e3 * torch.arange(600)[:, None].remainder(4),
    "one far": lambda dtype: torch.cat([points(400, 2, dtype=dtype), torch.full((1, 2), 1e6, dtype=dtype)]),
    "clumps": clumps,
    "near few": near_few,
    "near few far away": lambda dtype: near_few(dtype) + 1e3,
    "near few, huge": lambda dtype: 1e16 * near_few(dtype),
    "outliers": lambda dtype: near_few(dtype) * torch.where(torch.arange(900) % 90 == 0, 1e4, 1.0).to(dtype)[:, None],
    "decay": lambda dtype: points(700, 130, dtype=dtype) / torch.arange(1, 131).to(dtype) ** 2,
}


@pytest.mark.filterwarnings("ignore:squared distances of .* rescale:torch_lapeig.GraphWarning")
@covering(2, cloud=CLOUDS, k=[1, 10], dtype=DTYPES, path=PATHS.keys())
def test_equals_all_distances(cloud, k, dtype, path, take):
    x = cloud(dtype).to(dtype)
    queries = torch.cat([x[::7], x[:40] + 0.5])
    blocked = nearest_neighbors(x, k), nearest_neighbors(x, k, queries)
    take(path)
    for expected, found in zip(blocked, (nearest_neighbors(x, k), nearest_neighbors(x, k, queries)), strict=True):
        assert torch.equal(found.indices, expected.indices)
        torch.testing.assert_close(found.squared_distances, expected.squared_distances, rtol=2e-3, atol=0)


@pytest.mark.filterwarnings("ignore:squared distances of .* rescale:torch_lapeig.GraphWarning")
@covering(1, cloud=CLOUDS, dtype=DTYPES)
def test_radius_equals_all_distances(cloud, dtype, take):
    """Also with a lattice's distances for the radius, which half of the pairs have exactly."""
    x = cloud(dtype).to(dtype)
    scale = float(nearest_neighbors(x, 3).squared_distances[:, -1].median().sqrt()) or 1.0
    reach = scale * torch.rand(len(x), generator=torch.Generator().manual_seed(0), dtype=dtype)
    asked = ((scale, None), (math.sqrt(2), None), (reach, x[:50]), (2 * reach, x[::9] + scale / 3))
    whole = [radius_neighbors(x, *one) for one in asked]
    take("tiles")
    for one, expected in zip(asked, whole, strict=True):
        assert all(map(torch.equal, radius_neighbors(x, *one), expected))


@every(path=[*PATHS], k=[3, 9])
def test_batches_and_masks(k, path, take):
    x = points(160, 5, batch=3)
    x[1, 20:] = x[1, :140].clone()
    mask = torch.arange(160) < torch.tensor([160, 131, 12])[:, None]
    dirty = torch.where(mask[..., None], x, torch.nan)
    whole, masked = nearest_neighbors(x, k).indices, nearest_neighbors(dirty, k, mask=mask).indices
    pairs = radius_neighbors(dirty, 1.0, mask=mask)
    take(path)
    assert torch.equal(nearest_neighbors(x, k).indices, whole)
    assert torch.equal(nearest_neighbors(dirty, k, mask=mask).indices[mask], masked[mask])
    assert all(map(torch.equal, radius_neighbors(dirty, 1.0, mask=mask), pairs))


def test_an_item_of_which_all_points_are_masked():
    x = points(1000, 2, batch=2)
    mask = torch.tensor([True, False])[:, None].expand(2, 1000)
    pairs = radius_neighbors(x, 0.2, mask=mask)
    alone = radius_neighbors(x[0], 0.2)
    assert not pairs.item.any()
    assert torch.equal(pairs.query, alone.query)
    assert torch.equal(pairs.point, alone.point)


def test_thousands_of_copies_are_not_measured_against_each_other():
    """Of 6000 equal points the few that can be found are candidates."""
    x = torch.ones(6000, 20)
    x[::2] = 2
    found = nearest_neighbors(x, 3).indices
    assert found[:4].tolist() == [[2, 4, 6], [3, 5, 7], [0, 4, 6], [1, 5, 7]]
    assert found[-1].tolist() == [1, 3, 5]
