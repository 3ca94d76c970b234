"""Compiled loops over small dense things: eigenpairs of small matrices, neighbours within small sets."""

import os
import subprocess
import sys

import pytest
import torch

from problems import points
from torch_lapeig import Graph, laplacian_smoothness, native
from torch_lapeig.eigen.solvers.blocks import eigh_of_batch
from torch_lapeig.graph import products as storage
from torch_lapeig.graph.distances import pair_distances, squared_distances
from torch_lapeig.graph.pattern import SparsePattern

DTYPES = (torch.float64, torch.float32)
pytestmark = pytest.mark.skipif(native.library() is None, reason="nothing is compiled here")


def chain(n, couplings):
    beside = torch.zeros(n, n, dtype=torch.float64)
    beside.diagonal(1).copy_(couplings)
    return beside + beside.mT


def with_spectrum(values):
    n = len(values)
    turn = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    found = (turn * values) @ turn.mT
    return (found + found.mT) / 2


def matrices(n):
    """Symmetric ones that are hard for the algorithm, by name."""
    eye, ones = torch.eye(n, dtype=torch.float64), torch.ones(n, n, dtype=torch.float64)
    steps = torch.arange(n, dtype=torch.float64)
    path = 2 * eye - chain(n, torch.ones(n - 1))
    cycle, star = path.clone(), torch.zeros_like(eye)
    cycle[0, -1] = cycle[-1, 0] = -1
    star[0, 1:] = star[1:, 0] = 1
    size = 10.0 ** torch.linspace(-24, 24, n, dtype=torch.float64)
    graded = size.diag() + 1e-3 * (size[:, None] * size).sqrt()
    found = {
        "zero": 0 * eye,
        "identity": eye,
        "all ones": ones,
        "complete": n * eye - ones,
        "path": path,
        "cycle": cycle,
        "star": star,
        "no diagonal": chain(n, torch.ones(n - 1)),
        "far couplings": chain(n, 10.0 ** (-25.0 * (torch.arange(n - 1) % 5))),
        "graded": graded,
        "graded upwards": graded.flip(0, 1),
        "many decades": with_spectrum(10.0 ** torch.linspace(-30, 0, n, dtype=torch.float64)),
        "cluster": with_spectrum(1 + 1e-14 * steps),
        "two values": with_spectrum(steps % 2),
        "rank one": with_spectrum((steps == 0).double()),
        "tiny": 1e-140 * path,
        "huge": 1e140 * path,
        "beyond": 1e-200 * path,
    }
    return found | {f"off the diagonal {e}": steps.diag() + e * (ones - eye) for e in (1e-16, 1e-8, 1e-100, 1e-250)}


@pytest.mark.parametrize("n", [2, 3, 7, 21, 40, 64, 100])
def test_small_eigenproblems_of_all_kinds(n):
    random = torch.randn(n, n, dtype=torch.float64)
    for name, a in matrices(n).items():
        batch = torch.stack([random, a, a, random.mT, a])
        batch[2] = torch.where(torch.ones_like(a).tril() > 0, a, torch.nan)  # the lower triangle is what is read
        values, vectors = eigh_of_batch(batch)
        for v, x in ((values[2], vectors[2]), (values[4], vectors[4])):
            size = float(torch.linalg.eigvalsh(a).abs().max()) or 1.0
            v = v / size
            assert (v.diff() >= 0).all(), name
            assert (a / size @ x - x * v).abs().max() < 1e-15 * (n + 20), name
            assert (x.mT @ x - torch.eye(n)).abs().max() < 1e-15 * (n + 20), name
            assert (v - torch.linalg.eigvalsh(a) / size).abs().max() < 1e-15 * (n + 20), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [4, 5, 8, 9, 17])
def test_batches_of_any_length_and_few_vectors(count, dtype):
    a = torch.randn(count, 12, 12, dtype=dtype)
    a = a + a.mT
    values, vectors = eigh_of_batch(a, 3)
    assert values.dtype == vectors.dtype == dtype
    eps = 200 * torch.finfo(dtype).eps
    torch.testing.assert_close(values.double(), torch.linalg.eigvalsh(a.double()), rtol=0, atol=eps)
    assert vectors.shape == (count, 12, 3)
    assert (a @ vectors - vectors * values[:, None, :3]).abs().max() < eps


def test_a_matrix_alone_does_not_depend_on_those_beside_it(monkeypatch):
    a = points(40, 81).reshape(40, 9, 9)
    a = a + a.mT
    values, vectors = eigh_of_batch(a)
    for other in (a.flip(0), a[:7], torch.cat([1e6 * a[20:], a[:20]])):
        again = eigh_of_batch(other)
        for mine in (0, 5):
            where = next(i for i in range(len(other)) if torch.equal(other[i], a[mine]))
            assert torch.equal(again[0][where], values[mine])
            assert torch.equal(again[1][where], vectors[mine])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(eigh_of_batch(a)[1], vectors)


def test_matrices_that_are_not_finite_are_left_to_lapack():
    for bad in (torch.nan, torch.inf, 1e200):
        a = torch.eye(5, dtype=torch.float64).repeat(6, 1, 1)
        a[3, 2, 2] = bad
        assert native.eigh(a, 5) is None
    assert native.eigh(torch.eye(101, dtype=torch.float64).repeat(6, 1, 1), 5) is None
    assert native.eigh(torch.eye(5, dtype=torch.float64).repeat(2, 1, 1), 5) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sets", "n", "d", "k"), [(1, 2, 1, 1), (3, 17, 3, 16), (5, 64, 2, 7), (2, 130, 20, 64)])
def test_neighbours_are_those_of_all_distances(sets, n, d, k, dtype):
    x = points(sets * n, d, dtype=dtype).reshape(sets, n, d)
    x[:, n // 2 :] = x[:, : n - n // 2]  # copies
    found, squares = native.nearest(x, x, torch.ones(sets, n, dtype=torch.bool), k, True)
    for s in range(sets):
        direct = squared_distances(x[s], x[s])
        direct.diagonal().fill_(torch.inf)
        by_pair = direct.gather(1, found[s])
        torch.testing.assert_close(squares[s], by_pair, rtol=8 * torch.finfo(dtype).eps, atol=0)
        torch.testing.assert_close(squares[s], direct.sort(dim=1)[0][:, :k], rtol=8 * torch.finfo(dtype).eps, atol=0)
        assert (squares[s].diff() >= 0).all()
        ties = squares[s].diff() == 0
        assert (found[s].diff()[ties] > 0).all()


def test_distances_in_few_dimensions_are_those_of_pairs_to_the_last_bit():
    for dtype in DTYPES:
        for d in range(1, 9):
            x = points(150, d, dtype=dtype)
            found, squares = native.nearest(x[None], x[None], torch.ones(1, 150, dtype=torch.bool), 9, True)
            row = torch.arange(150).repeat_interleave(9)
            assert torch.equal(pair_distances(x, row, x, found.flatten()), squares.flatten())


def test_padding_is_nobodys_neighbour_and_far_points_have_neighbours():
    x = points(3 * 50, 4).reshape(3, 50, 4)
    x[:, 10] = 1e30
    valid = torch.rand(3, 50, generator=torch.Generator().manual_seed(0)) < 0.5
    valid[:, :12] = True
    queries = torch.cat([x[:, :20], 1e12 * x[:, 20:23], x[:, :1]], 1)
    found, squares = native.nearest(x, queries, valid, 12, False)
    for s in range(3):
        among = valid[s].nonzero().flatten()
        expected, order = squared_distances(queries[s], x[s, among]).sort(dim=1, stable=True)
        torch.testing.assert_close(squares[s], expected[:, :12], rtol=1e-14, atol=0)
        assert torch.equal(found[s][:20], among[order[:20, :12]])


def test_points_of_a_lattice_end_ties_by_number():
    x = torch.cartesian_prod(*[torch.arange(7.0)] * 3)
    found, squares = native.nearest(x[None], x[None], torch.ones(1, 343, dtype=torch.bool), 10, True)
    direct = squared_distances(x, x).round()
    direct.fill_diagonal_(torch.inf)
    values, order = direct.sort(dim=1, stable=True)
    assert torch.equal(found[0], order[:, :10])
    assert torch.equal(squares[0], values[:, :10])


def test_threads_do_not_change_neighbours(monkeypatch):
    x, valid = points(4 * 300, 5).reshape(4, 300, 5), torch.ones(4, 300, dtype=torch.bool)
    alone = native.nearest(x, x, valid, 8, True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for part, other in zip(alone, native.nearest(x, x, valid, 8, True), strict=True):
        assert torch.equal(part, other)


@pytest.fixture
def path_of_three():
    return SparsePattern(torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 2, 1]), (3,))


def test_zeros_without_memory_are_left_to_torch(path_of_three):
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.ones(4, dtype=torch.float64))
    zeros = torch._efficientzerotensor((3, 2), dtype=torch.float64)
    assert laplacian_smoothness(zeros, graph) == 0
    assert not path_of_three.direct_matmul(torch.ones(4, dtype=torch.float64), zeros).any()


@pytest.mark.filterwarnings("ignore:.torch.jit.trace", "ignore::torch.jit.TracerWarning")
def test_a_trace_records_what_is_computed(path_of_three):
    weight, y = torch.ones(4, dtype=torch.float64), points(3, 2)
    function = path_of_three.direct_matmul
    traced = torch.jit.trace(lambda y: function(weight, y), (torch.zeros_like(y),), check_trace=False)
    torch.testing.assert_close(traced(y), function(weight, y))


def test_blocks_of_other_lengths_are_refused(path_of_three):
    matrix = storage.csr(path_of_three.crow, path_of_three.col.int(), torch.ones(4, dtype=torch.float64), (3, 3))
    for rows in (2, 7):
        with pytest.raises(RuntimeError):
            storage.multiply(matrix, torch.ones(rows, 2, dtype=torch.float64))


FORK = """
import os, torch
from torch_lapeig import native
torch.set_num_threads(2)
torch.rand(10**6).exp()
assert native.library.cache_info().currsize == 0
child = os.fork()
if child == 0:
    x = torch.rand(4, 900, 16)
    native.nearest(x, x, torch.ones(4, 900, dtype=torch.bool), 8, True)
    os._exit(0)
raise SystemExit(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_that_loads_them_first_computes_alone():
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=60)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [0, 1, 3, 8, 17, 33])
def test_pull_and_energy_of_differences(m, dtype):
    dense = torch.rand(40, 40, dtype=dtype, generator=torch.Generator().manual_seed(m))
    dense = (dense * (dense < 0.1)) + (dense * (dense < 0.1)).mT
    dense[3] = dense[:, 3] = 0.5
    dense[5] = dense[:, 5] = 0
    row, col = dense.nonzero(as_tuple=True)
    pattern = SparsePattern(row, col, (40,))
    y = (1000 + points(40, m + 2, dtype=dtype))[:, 1 : m + 1]  # rows that lie apart, far from the origin
    pull, energy = storage.sparse_tension(pattern.crow, pattern.col, dense[row, col], y)
    apart = y[col].double() - y[row].double()
    weight = dense[row, col, None].double()
    eps = 50 * torch.finfo(dtype).eps
    expected = torch.zeros(40, m, dtype=torch.float64).index_add(0, row, weight * apart)
    torch.testing.assert_close(pull.double(), expected, rtol=0, atol=eps)
    whole = torch.zeros(40, dtype=torch.float64).index_add(0, row, (weight * apart.square()).sum(1))
    torch.testing.assert_close(energy.double(), whole, rtol=eps, atol=0)
    still = storage.sparse_tension(pattern.crow, pattern.col, dense[row, col], torch.full_like(y, 1e4).contiguous())
    assert not any(part.any() for part in still)


def test_edges_among_nodes_are_those_of_the_matrix():
    for seed, (n, share) in enumerate([(1, 1.0), (30, 0.3), (200, 0.02), (200, 0.6)]):
        generator = torch.Generator().manual_seed(seed)
        dense = torch.rand(n, n, generator=generator) < share
        dense = dense | dense.mT
        pattern = SparsePattern(*dense.nonzero(as_tuple=True), (n,))
        for count in {1, n // 3, n} - {0}:
            nodes = torch.randperm(n, generator=generator)[:count]
            part, edge = pattern.restrict(nodes)
            row, col = dense[nodes][:, nodes].nonzero(as_tuple=True)
            assert torch.equal(part.row.long(), row)
            assert torch.equal(part.col.long(), col)
            assert torch.equal(part.crow.long(), torch.searchsorted(row, torch.arange(count + 1)))
            assert torch.equal(pattern.row[edge].long(), nodes[row])
            assert torch.equal(pattern.col[edge].long(), nodes[col])
            strided, same = pattern.restrict(torch.stack([nodes, nodes], 1)[:, 0])
            assert torch.equal(strided.col, part.col)
            assert torch.equal(same, edge)


def test_nodes_that_are_none_or_come_twice_are_refused(path_of_three):
    for nodes in ([0, 3], [-1, 1], [2, 0, 2], [-(2**40)]):
        with pytest.raises(ValueError, match="nodes must"):
            path_of_three.restrict(torch.tensor(nodes))
