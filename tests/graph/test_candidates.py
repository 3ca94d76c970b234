"""Search by products of bfloat16: its bounds hold, its answers are those of the plain path, its two kernels agree.

Without CUDA the products are emulated: bfloat16 has its products exactly in float32.
"""

import importlib.util

import pytest
import torch

from problems import DEVICES, points
from torch_lapeig.graph import candidates, distances, minima, nearest_neighbors, neighbors
from torch_lapeig.graph.candidates import Candidates
from torch_lapeig.graph.minima import GROUP, PADDING, group_minima, members, minima_by_torch

DEVICE = "cuda" if "cuda" in DEVICES else "cpu"


def clusters(spread):
    centres = 10 * points(30, 16, seed=1)
    return centres[torch.arange(2400) % 30] + spread * points(2400, 16, seed=2)


def outlier(size):
    x = points(2400, 16)
    x[7] *= size
    return x


def near_ties():
    """Points in pairs at both sides of the others, whose distances differ in the last bits."""
    x = points(1200, 16)
    return torch.cat([x, -x * (1 + 1e-7 * points(1200, 1, seed=3))])


# Points, and the share of the rows that have to be decided without products of float32.
SETS = {
    "normal": (points(2400, 16), 1.0),
    "many dimensions": (points(2400, 200) @ torch.diag(torch.linspace(1, 0, 200, dtype=torch.float64) ** 3), 1.0),
    "sorted": (points(2400, 16)[points(2400, 16)[:, 0].argsort()], 1.0),
    "offset": (points(2400, 16) + 1e3, 0.9),
    "large offset": (points(2400, 16) + 1e6, 0.0),
    "huge": (1e16 * points(2400, 16), 1.0),
    "tiny": (1e-17 * points(2400, 16), 1.0),
    "subnormal": (1e-22 * points(2400, 16), 0.0),
    "outlier": (outlier(100.0), 0.9),
    "far outlier": (outlier(1e12), 0.0),
    "copies": (points(45, 16).repeat(53, 1), 0.0),
    "pairs": (points(1200, 16).repeat(2, 1), 1.0),
    "grid": (points(2400, 16).round(), 0.5),
    "one place": (torch.ones(2400, 16, dtype=torch.float64), 0.0),
    "near ties": (near_ties(), 0.9),
    "clusters": (clusters(0.3), 0.9),
    "tight clusters": (clusters(1e-4), 0.0),
}


@pytest.fixture
def left(monkeypatch):
    """The path by candidates, on every device; a list of the numbers of rows that it leaves."""
    counts = []
    search = candidates.nearest_by_candidates

    def counted(*arguments):
        found = search(*arguments)
        counts.append(len(found.rows))
        return found

    monkeypatch.setattr(candidates, "halves_pay", lambda *_: True)
    monkeypatch.setattr(distances, "SMALL_SET", 0)
    monkeypatch.setattr(neighbors, "nearest_by_candidates", counted)
    return counts


def by_values(*arguments, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "halves_pay", lambda *_: False)
        patch.setattr(distances, "SMALL_SET", 0)
        return nearest_neighbors(*arguments, **options)


@pytest.mark.filterwarnings("ignore:squared distances")
@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.float32, name) for name in SETS]
    + [(torch.float64, name) for name in ("normal", "offset", "huge", "grid", "clusters", "tight clusters")],
)
def test_the_answer_is_that_of_the_plain_path(name, dtype, left):
    x, share = SETS[name]
    x = x.to(DEVICE, dtype)
    queries = None if share else x[:200]  # what is left takes its time
    found, plain = nearest_neighbors(x, 2, queries), by_values(x, 2, queries)
    assert torch.equal(found.indices, plain.indices)
    torch.testing.assert_close(found.squared_distances, plain.squared_distances, rtol=1e-3, atol=0)
    assert left[0] <= (1 - share) * len(x)


def test_queries_masks_and_blocks(left):
    x, queries = points(5000, 20), points(700, 20, seed=1)
    queries[:50] = x[100:150]
    mask = points(5000, 1, seed=2)[:, 0] > 0
    for options in ({"queries": queries}, {"mask": mask}, {"queries": queries, "mask": mask}, {"budget": 10**7}):
        options = {name: value.to(DEVICE) if name != "budget" else value for name, value in options.items()}
        found, plain = nearest_neighbors(x.to(DEVICE), 9, **options), by_values(x.to(DEVICE), 9, **options)
        counted = mask.to(DEVICE) if options.keys() == {"mask"} else slice(None)
        assert torch.equal(found.indices[counted], plain.indices[counted])
    assert max(left) < 5000 - int(mask.sum()) + 50


def test_batches_and_too_many_neighbours(left):
    x = points(2400, 16, batch=2).to(DEVICE)
    assert torch.equal(nearest_neighbors(x, 2).indices, by_values(x, 2).indices)
    assert len(left) == 2
    assert torch.equal(nearest_neighbors(x[0], 40).indices, by_values(x[0], 40).indices)
    assert len(left) == 2  # as many groups as that would be most of them


def test_few_rows_decided_ends_the_attempt(left):
    """A table of 2400 points in blocks: once a block has left most of its rows, the others are left as well."""
    x = SETS["tight clusters"][0].to(DEVICE)
    rows = []
    with pytest.MonkeyPatch.context() as patch:
        compute = Candidates.minima
        patch.setattr(Candidates, "minima", lambda self, q, own: rows.append(len(q)) or compute(self, q, own))
        nearest_neighbors(x, 2, budget=10**6)
    assert len(rows) == 1
    assert left == [2400]


@pytest.mark.parametrize("name", [n for n in SETS if n != "one place"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_hold(name, dtype):
    """Of every pair: the key is below the distance as measured in float64, and as it is measured in the search."""
    x = SETS[name][0].to(DEVICE, dtype)
    queries = torch.cat([x[:40], x[:1] * 0])
    table = Candidates(x, queries, x.new_ones(len(x), dtype=torch.bool))
    q = table.scaled(queries - table.centre)
    high, low = candidates._split(q)
    rows = candidates._operand(high, low, high, high.new_ones(len(q), 3))
    keys = rows.double() @ table.columns.double().mT  # without the rounding of sums, which only has to be small
    own = torch.arange(len(x), device=x.device)
    column = own % table.groups * GROUP + own // table.groups
    lower = (1 - table.margin) * q.double().square().sum(1) - table.floor
    for precision in (torch.float64, dtype):
        d2 = (queries.to(precision)[:, None] - x.to(precision)).square().sum(2).double() * table.square
        assert (keys[:, column] + lower[:, None] <= d2).all()


def test_bound_of_a_sum_that_cuts_off():
    """Truncation after each term, as tensor cores may do, where all terms push one way."""
    d = 300
    x = torch.cat([torch.ones(1, d), -torch.ones(1, d), torch.full((4094, d), 0.999)]).float()
    table = Candidates(x, x, torch.ones(len(x), dtype=torch.bool))
    q = table.scaled(x[:2] - table.centre)
    high, low = candidates._split(q)
    rows = candidates._operand(high, low, high, high.new_ones(2, 3)).double()
    total = torch.zeros(2, len(table.columns), dtype=torch.float64)
    for term in range(rows.shape[1]):
        total += rows[:, term, None] * table.columns[:, term].double()
        size = torch.exp2(torch.floor(torch.log2(total.abs().clamp_min(1e-300))) - 22)
        total = torch.trunc(total / size) * size  # 23 bits, rounded to zero
    own = torch.arange(len(x))
    column = own % table.groups * GROUP + own // table.groups
    lower = (1 - table.margin) * q.double().square().sum(1) - table.floor
    d2 = (x[:2].double()[:, None] - x.double()).square().sum(2) * table.square
    assert (total[:, column] + lower[:, None] <= d2).all()


def test_the_margin_is_needed():
    """Without it keys lie above distances: the test above would see a bound that is too small."""
    x = points(5000, 16, dtype=torch.float32)
    table = Candidates(x, x[:200], torch.ones(5000, dtype=torch.bool))
    q = table.scaled(x[:200] - table.centre)
    padded = table.scaled(x - table.centre)
    high, low = candidates._split(q)
    xh, xl = candidates._split(-2 * padded)
    values = high.double() @ (xh.double() + xl.double()).mT + low.double() @ xh.double().mT
    values += padded.double().square().sum(1) + q.double().square().sum(1)[:, None]
    d2 = (x[:200].double()[:, None] - x.double()).square().sum(2) * table.square
    assert (values > d2).any()


def operands(rows, columns, terms, seed=0):
    return (points(n, terms, seed=seed + i).to(DEVICE, torch.bfloat16) for i, n in enumerate((rows, columns)))


def by_triton(*arguments):
    pytest.importorskip("triton")
    return importlib.import_module("torch_lapeig.graph.triton_minima").minima_by_triton(*arguments, GROUP, PADDING)


@pytest.mark.parametrize("function", [minima_by_torch, by_triton])
class TestGroupMinima:
    @pytest.mark.parametrize("shape", [(1, 128, 32), (130, 256, 64), (128, 384, 96), (257, 128, 192)])
    @pytest.mark.parametrize("own", [None, 0, 3])
    def test_contract(self, function, shape, own):
        rows, columns = operands(*shape)
        groups = shape[1] // GROUP
        rows = rows if own is None else rows[: shape[1] - own]
        first, second = function(rows, columns, own)
        values = rows.double() @ columns.double().mT
        if own is not None:
            point = torch.arange(own, own + len(rows), device=DEVICE)
            values[point - own, point % groups * GROUP + point // groups] = PADDING
        two = values.view(len(rows), groups, GROUP).sort(2)
        for found, expected in zip((first, second), two.values.unbind(2)[:2], strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
        chosen = values.view(len(rows), groups, GROUP).gather(2, members(first)[:, :, None])[:, :, 0]
        torch.testing.assert_close(chosen, two.values[:, :, 0], rtol=1e-5, atol=1e-4)

    def test_ties_have_places_of_their_own(self, function):
        """Equal values: the two smallest keys are of two members, both of the tie, the same by either function."""
        rows = torch.ones(3, 32, device=DEVICE, dtype=torch.bfloat16)
        columns = torch.ones(128, 32, device=DEVICE, dtype=torch.bfloat16)
        columns[40:43] = -1
        first, second = function(rows, columns, None)
        for keys, expected in ((first, [0, 10, 0, 0]), (second, [1, 9, 1, 1])):
            assert members(keys).tolist() == [expected] * 3

    def test_padding_is_last_and_zero_has_places_too(self, function):
        rows = torch.zeros(2, 32, device=DEVICE, dtype=torch.bfloat16)
        rows[:, 0] = 1
        columns = torch.zeros(128, 32, device=DEVICE, dtype=torch.bfloat16)
        columns[5:, 0] = PADDING
        first, second = function(rows, columns, None)
        assert members(first)[:, 0].tolist() == [0, 0]
        assert members(second)[:, 0].tolist() == [1, 1]
        assert (first[:, 1:] >= PADDING / 2).all()
        assert (second[:, 0] < 1e-30).all()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_whole_search_by_the_kernel(monkeypatch, left):
    monkeypatch.setattr(minima, "kernel_is_chosen", lambda device: True)
    monkeypatch.setattr(minima, "minima_by_torch", None)
    x = points(4200, 16).to(DEVICE)
    queries = x[:150] + 1e-3
    assert torch.equal(nearest_neighbors(x, 5, queries).indices, by_values(x, 5, queries).indices)
    assert left == [0]


def test_a_kernel_that_does_not_run_is_said_and_done_without(monkeypatch, left):
    def fail(*_):
        raise OSError("no compiler\nat all")

    monkeypatch.setattr(minima, "_is_installed", lambda: True)
    monkeypatch.setattr(minima, "kernel_is_chosen", lambda device: not minima._failed)
    monkeypatch.setattr(minima, "_kernel", fail)
    monkeypatch.setattr(minima, "_failed", [])
    x = points(4200, 16).to(DEVICE)
    with pytest.warns(RuntimeWarning, match=r"does not run here \(OSError: no compiler\)"):
        found = nearest_neighbors(x, 5)
    assert torch.equal(found.indices, nearest_neighbors(x, 5).indices)  # once said, not again


def test_the_kernel_is_for_cuda_and_memory_errors_are_no_failures(monkeypatch):
    assert not minima.kernel_is_chosen(torch.device("cpu"))
    assert not candidates.candidates_pay(points(5000, 16), 5)

    def fail(*_):
        raise torch.OutOfMemoryError("of the device")

    monkeypatch.setattr(minima, "kernel_is_chosen", lambda device: True)
    monkeypatch.setattr(minima, "_kernel", fail)
    with pytest.raises(torch.OutOfMemoryError):
        group_minima(*operands(1, 128, 32))
