"""Squared distances by direct differences, of all and of given pairs, and their derivatives."""

import pytest
import torch

from problems import in_every_dtype, points
from torch_lapeig import Radius, radius_graph
from torch_lapeig.graph.distances import (
    differentiable_pair_distances,
    differentiable_squared_distances,
    nearest_of_candidates,
    pair_distances,
    squared_distances,
)


def pairs(queries, points, count=200):
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(0, size, (count,), generator=generator) for size in (len(queries), len(points)))


@in_every_dtype
@pytest.mark.parametrize("shift", [0, 1e4])
def test_close_points_far_from_the_origin(shift, dtype, small_blocks):
    """Differences of what is stored lose nothing; a product would lose all digits of the distances here."""
    x, y = ((1e-2 * points(30, 3, seed=seed, dtype=dtype) + shift) for seed in (0, 1))
    expected = (x.double()[:, None] - y.double()).square().sum(-1)
    tolerance = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 0}
    i, j = pairs(x, y)
    for blocks in ("as they are", "of one row"):
        torch.testing.assert_close(squared_distances(x, y).double(), expected, **tolerance)
        torch.testing.assert_close(pair_distances(x, i, y, j).double(), expected[i, j], **tolerance)
        if blocks == "as they are":
            small_blocks()


def test_no_pairs():
    none = torch.zeros(0, dtype=torch.int64)
    x = points(4, 2)
    assert pair_distances(x, none, x, none).shape == (0,)
    assert differentiable_pair_distances(x.requires_grad_(), none, x, none).shape == (0,)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, on first use
def test_derivatives_of_any_order_and_mode():
    x, y = points(5, 3).requires_grad_(), points(6, 3, seed=1).requires_grad_()
    i, j = pairs(x, y, 12)
    for function in (differentiable_squared_distances, lambda x, y: differentiable_pair_distances(x, i, y, j)):
        assert torch.autograd.gradcheck(function, (x, y), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, (x, y))


def test_values_with_and_without_derivatives_are_the_same():
    x, y = points(20, 3) + 1e3, points(9, 3, seed=1) + 1e3
    i, j = pairs(x, y)
    leaf = x.clone().requires_grad_()
    expected = squared_distances(x, y)
    expanded = differentiable_squared_distances(leaf, y).detach()
    torch.testing.assert_close(expanded, expected, rtol=1e-10, atol=0)
    assert torch.equal(differentiable_squared_distances(x, y), expected)
    of_pairs = differentiable_pair_distances(leaf, i, y, j).detach()
    torch.testing.assert_close(of_pairs, expected[i, j], rtol=1e-13, atol=0)
    with torch.no_grad():
        assert not differentiable_pair_distances(leaf, i, y, j).requires_grad


def test_the_nearest_of_candidates_by_distance_then_number():
    queries = torch.zeros(2, 1)
    candidates = torch.tensor([[[2.0], [1.0], [-1.0], [0.0]], [[3.0], [3.0], [1.0], [2.0]]])
    number = torch.tensor([[5, 9, 4, 7], [8, 2, 1, 6]])
    missing = torch.tensor([[False, False, False, True], [False] * 4])
    indices, distances = nearest_of_candidates(queries, candidates, number, missing, 3)
    assert indices.tolist() == [[4, 9, 5], [1, 6, 2]]
    assert distances.tolist() == [[1, 1, 4], [1, 4, 9]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("radius", [2**0.5, 0.7, 1.0, 3**0.5, 1e-3, 5**0.5])
def test_a_radius_includes_points_exactly_at_it(radius, dtype):
    """Lattices: rounded to float32, the root of 2 has a square below 2; new points have the same reach."""
    unit = 1.0 if radius > 0.9 else radius
    x = unit * torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)).to(dtype)
    steps = torch.cdist(x.double(), x.double()) / unit
    expected = int((steps <= radius / unit + 1e-5).sum()) - len(x)
    assert radius_graph(x, radius).weight.numel() == expected
    _, state = Radius(radius).with_state(x)
    found = Radius(radius).extend(x + 0, x, state)
    assert len(found.query) == expected + len(x)
