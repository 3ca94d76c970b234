"""Images in fewer dimensions: answers are those of direct differences."""

import pytest
import torch

from problems import DTYPES, covering, points
from torch_lapeig.graph import nearest_neighbors
from torch_lapeig.graph.distances import squared_distances
from torch_lapeig.graph.search import exact, neighbors, tiles
from torch_lapeig.graph.search.exact import images_that_pay

N, D, BUDGET = 4400, 130, 2**28


def near_few(n=N, d=D, noise=0.01):
    """Points near a space of six dimensions."""
    return points(n, 6) @ points(6, d, seed=1) + noise * points(n, d, seed=2)


def outliers(size):
    x = near_few()
    x[::500] *= size
    return x


SETS = {
    "near few": near_few(),
    "in few": near_few(noise=0.0),
    "decay": points(N, D) / torch.arange(1, D + 1) ** 2,
    "offset": near_few() + 1e3,
    "huge": 1e16 * near_few(),
    "tiny": 1e-17 * near_few(),
    "copies": near_few(440).repeat(10, 1),
    "lattice": points(N, 4).round() @ torch.eye(4, D, dtype=torch.float64),
    "outliers": outliers(1e4),
}


@pytest.fixture
def used(monkeypatch):
    """Images of 32 directions on every problem, none by tiles; a list of the images."""
    found = []

    def seen(*arguments):
        found.append(images_that_pay(*arguments))
        return found[-1]

    monkeypatch.setattr(neighbors, "images_that_pay", seen)
    monkeypatch.setattr(neighbors, "TILED_SET", 100)
    monkeypatch.setattr(tiles, "TILE_SHARE", -1)
    monkeypatch.setattr(exact, "IMAGE_DIRECTIONS", 32)
    monkeypatch.setattr(exact, "IMAGE_SHARE", 1.0)
    return found


def by_direct_differences(queries, x, k, *, itself, mask=None):
    """Numbers and squared distances, ties by number."""
    distances = squared_distances(queries, x)
    if itself:
        distances.fill_diagonal_(torch.inf)
    if mask is not None:
        distances[:, ~mask] = torch.inf
    return (part[:, :k] for part in reversed(distances.sort(dim=1, stable=True)))


@covering(1, x=SETS, dtype=DTYPES)
def test_answers_equal_direct_differences(used, x, dtype):
    x = x.to(dtype)
    found = nearest_neighbors(x, 7)
    points, _, _ = used[0]
    assert points.shape[2] == 33
    chosen = torch.arange(0, N, 5)
    distances = squared_distances(x[chosen], x)
    distances[torch.arange(len(chosen)), chosen] = torch.inf
    nearest, order = distances.sort(dim=1, stable=True)
    torch.testing.assert_close(found.squared_distances[chosen], nearest[:, :7], rtol=1e-3, atol=0)
    # Two sums of the same squares may order what differs in the last bits in another way.
    apart = ((nearest[:, 1:8] - nearest[:, :7]) > 1e-5 * nearest[:, 1:8]).all(1)
    assert torch.equal(found.indices[chosen][apart], order[:, :7][apart])


def test_ties_go_to_the_smaller_number(used):
    x = SETS["lattice"].float()  # whole numbers: all sums are exact
    indices, distances = by_direct_differences(x, x, 9, itself=True)
    found = nearest_neighbors(x, 9)
    assert len(used) == 1
    assert torch.equal(found.indices, indices)
    assert torch.equal(found.squared_distances, distances.round())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_padding_is_nobodys_neighbour_and_queries_may_be_others(used, dtype):
    x, mask = near_few(6500).to(dtype), torch.rand(6500, generator=torch.Generator().manual_seed(0)) > 0.3
    queries = x[:500] + 0.1 * points(500, D, seed=4).to(dtype)
    indices, _ = by_direct_differences(queries, x, 4, itself=False, mask=mask)
    found = nearest_neighbors(x, 4, queries, mask=mask)
    assert len(used) == 1
    assert torch.equal(found.indices, indices)
    alone = nearest_neighbors(x, 4, mask=mask).indices
    assert mask[alone[mask]].all()
    assert (alone[mask] != mask.nonzero()).all()
