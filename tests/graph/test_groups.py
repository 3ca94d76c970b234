"""Reductions over groups against loops over them, in any order, with empty groups."""

import pytest
import torch

from torch_lapeig.graph.groups import kth_of_groups, median_of_groups, segment_logsumexp


@pytest.fixture(params=["in order", "shuffled"])
def groups(request):
    """Values of seven groups, of which the third and the last are empty."""
    generator = torch.Generator().manual_seed(0)
    group = torch.tensor([0, 1, 3, 4, 5]).repeat_interleave(torch.tensor([1, 2, 7, 4, 5]))
    values = torch.rand(len(group), generator=generator, dtype=torch.float64)
    order = torch.arange(len(group)) if request.param == "in order" else torch.randperm(len(group), generator=generator)
    return values[order].requires_grad_(), group[order]


def looped(function, values, group, empty):
    one = torch.as_tensor(empty, dtype=values.dtype)
    return torch.stack([function(values[group == g]) if (group == g).any() else one for g in range(7)])


@pytest.mark.parametrize("k", [1, 3, 20])
def test_kth(groups, k):
    expected = looped(lambda part: part.sort().values[min(k, len(part)) - 1], *groups, 1)
    assert torch.equal(kth_of_groups(*groups, 7, k), expected)


def test_median(groups):
    """The lower one of two, as torch's own."""
    found, expected = median_of_groups(*groups, 7), looped(torch.median, *groups, 1)
    assert torch.equal(found, expected)
    weights = torch.arange(7.0, dtype=torch.float64)
    slopes = [torch.autograd.grad(value @ weights, groups[0])[0] for value in (found, expected)]
    assert torch.equal(*slopes)


def test_equal_values_share_the_gradient(groups):
    """In equal parts within their group, whatever their order; infinite ones have none, and stay infinite."""
    group = groups[1]
    values = torch.where(group == 5, torch.inf, torch.ones_like(groups[0])).detach().requires_grad_()
    weights = torch.arange(7.0, dtype=torch.float64)
    expected = torch.where(group == 5, 0, weights[group] / group.bincount()[group])
    for found in (kth_of_groups(values, group, 7, 2), median_of_groups(values, group, 7)):
        assert found.tolist() == [1, 1, 1, 1, 1, torch.inf, 1]
        torch.testing.assert_close(torch.autograd.grad(found[:5] @ weights[:5], values)[0], expected)


def test_the_median_of_a_group_with_nan_is_nan():
    values = torch.tensor([torch.nan, 1.0, 2.0, 4.0, 5.0, 3.0])
    found = median_of_groups(values, torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    assert found[0].isnan()
    assert found[1] == 4


def test_logsumexp(groups):
    values, group = groups
    for shift in (0, 1e4, -1e4):
        expected = looped(lambda part: part.logsumexp(0), values + shift, group, -torch.inf)
        torch.testing.assert_close(segment_logsumexp(values + shift, group, 7), expected)


def test_no_values():
    none, group = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    assert kth_of_groups(none, group, 2, 3).tolist() == [1, 1]
    assert median_of_groups(none, group, 2).tolist() == [1, 1]
    assert segment_logsumexp(none, group, 2).tolist() == [-torch.inf, -torch.inf]
