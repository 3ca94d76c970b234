"""The smallest of each row, whichever way they are found."""

import numpy as np
import pytest
import torch

from torch_lapeig import _threads
from torch_lapeig._tuning import PARTITION_COLUMNS
from torch_lapeig.graph import selection
from torch_lapeig.graph.selection import PART, smallest_of_rows, sorted_rows


def matrix(rows, columns, dtype=torch.float32, seed=0):
    return torch.randn(rows, columns, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def check(values, m, found):
    """The values are the m smallest, each at the column that is told, and no column twice."""
    smallest, columns = found
    torch.testing.assert_close(smallest.sort(1).values, values.sort(1).values[:, :m], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(values.gather(1, columns), smallest, rtol=0, atol=0, equal_nan=True)
    assert all(len(row.unique()) == m for row in columns[:200])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("columns", "m"), [(40, 1), (64, 14), (200, 64), (PARTITION_COLUMNS, 20), (2000, 7)])
def test_the_smallest_of_rows_of_all_lengths(columns, m, dtype):
    values = matrix(2 * PART // columns + 3, columns, dtype)
    check(values, m, smallest_of_rows(values, m))


def test_few_numbers_and_whole_rows():
    values = matrix(5, 9)
    check(values, 4, smallest_of_rows(values, 4))
    wide = matrix(PART // 9 + 1, 9)
    check(wide, 9, smallest_of_rows(wide, 9))


@pytest.mark.parametrize("fill", [0.0, torch.inf, -torch.inf])
def test_equal_values(fill):
    """Where more than m are no larger than the m-th, any of them may be told, but no other."""
    values = matrix(PART // 50, 100)
    values[::7, :60] = fill
    check(values, 14, smallest_of_rows(values, 14))
    values[:] = fill
    check(values, 14, smallest_of_rows(values, 14))


def test_rows_in_parts_that_are_no_rows_of_memory():
    """Transposed storage, a single long block, and rows that are counted right where ties make up for others."""
    values = matrix(100, PART // 50).mT
    check(values, 14, smallest_of_rows(values, 14))
    rows = torch.tensor([[1.0, 2.0, 2.0, 3.0], [torch.nan, torch.nan, torch.nan, 1.0]]).repeat(PART // 8, 1)
    # In a row of each kind three values and one are no larger than the second: four, as two rows with two have.
    block = selection._of_block(rows[:2], 2, np.empty((2, 4), dtype=np.float32))
    torch.testing.assert_close(block[0][0].sort().values, torch.tensor([1.0, 2.0]))
    assert block[0][1].isfinite().sum() == 1


def test_threads_do_not_matter(monkeypatch):
    values = matrix(PART // 20, 100)
    alone = smallest_of_rows(values, 10)
    monkeypatch.setattr(_threads, "_threads_here", lambda: 2)
    together = smallest_of_rows(values, 10)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_sorted_rows():
    values = matrix(300, 17)
    smallest, columns = sorted_rows(values, 6)
    expected = values.topk(6, largest=False)
    assert torch.equal(smallest, expected.values)
    assert torch.equal(columns, expected.indices)
    assert np.all(np.diff(smallest.numpy(), axis=1) >= 0)
