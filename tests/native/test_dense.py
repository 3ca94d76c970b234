"""Compiled loops over small dense matrices: eigenpairs, neighbours within small sets."""

import os
import subprocess
import sys

import pytest
import torch

from problems import every, points
from torch_lapeig import Graph, laplacian_smoothness
from torch_lapeig.eigen.solvers.blocks import eigh_of_batch
from torch_lapeig.graph import algebra as storage
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.search.exact import pair_distances
from torch_lapeig.native import calls as native

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
    found = {"zero": 0 * eye, "identity": eye, "all ones": ones, "complete": n * eye - ones, "path": path}
    found |= {"cycle": cycle, "star": star, "no diagonal": chain(n, torch.ones(n - 1))}
    found |= {"far couplings": chain(n, 10.0 ** (-25.0 * (torch.arange(n - 1) % 5))), "graded": graded}
    found |= {"graded upwards": graded.flip(0, 1)}
    found |= {"many decades": with_spectrum(10.0 ** torch.linspace(-30, 0, n, dtype=torch.float64))}
    found |= {"cluster": with_spectrum(1 + 1e-14 * steps), "two values": with_spectrum(steps % 2)}
    found |= {"rank one": with_spectrum((steps == 0).double()), "tiny": 1e-140 * path, "huge": 1e140 * path}
    found |= {"beyond": 1e-200 * path}
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


@every(count=[4, 5, 8, 9, 17], dtype=DTYPES)
def test_batches_of_any_length_and_few_vectors(count, dtype):
    a = torch.randn(count, 12, 12, dtype=dtype)
    a = a + a.mT
    values, vectors = eigh_of_batch(a, 3)
    assert values.dtype == vectors.dtype == dtype
    eps = 200 * torch.finfo(dtype).eps
    torch.testing.assert_close(values.double(), torch.linalg.eigvalsh(a.double()), rtol=0, atol=eps)
    assert vectors.shape == (count, 12, 3)
    assert (a @ vectors - vectors * values[:, None, :3]).abs().max() < eps


def test_a_matrix_does_not_depend_on_others_of_the_batch(monkeypatch):
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


def test_distances_in_few_dimensions_equal_pair_distances_to_the_last_bit():
    for dtype in DTYPES:
        for d in range(1, 9):
            x = points(150, d, dtype=dtype)
            found, squares = native.nearest(x[None], x[None], torch.ones(1, 150, dtype=torch.bool), 9, True)
            row = torch.arange(150).repeat_interleave(9)
            assert torch.equal(pair_distances(x, row, x, found.flatten()), squares.flatten())


@pytest.fixture
def path_of_three():
    return SparsePattern(torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 2, 1]), (3,))


def test_zeros_without_memory_are_left_to_torch(path_of_three):
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.ones(4, dtype=torch.float64))
    zeros = torch._efficientzerotensor((3, 2), dtype=torch.float64)
    assert laplacian_smoothness(zeros, graph) == 0
    assert not path_of_three.direct_matmul(torch.ones(4, dtype=torch.float64), zeros).any()


@pytest.mark.filterwarnings("ignore:.torch.jit.trace", "ignore::torch.jit.TracerWarning")
def test_a_trace_records_the_product(path_of_three):
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
from torch_lapeig.native import calls as native
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


def test_a_forked_process_that_loads_first_is_single_threaded():
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=60)


def test_edges_among_nodes_equal_the_submatrix():
    for seed, (n, share) in enumerate([(1, 1.0), (30, 0.3), (200, 0.02), (200, 0.6)]):
        generator = torch.Generator().manual_seed(seed)
        dense = torch.rand(n, n, generator=generator)
        dense = (dense + dense.mT) * (dense * dense.mT < share**2)
        graph = Graph.from_dense(dense).to_sparse()
        for count in {1, n // 3, n} - {0}:
            nodes = torch.randperm(n, generator=generator)[:count]
            for asked in (nodes, torch.stack([nodes, nodes], 1)[:, 0]):
                assert torch.equal(graph.subgraph(asked).to_dense(), dense[nodes][:, nodes])


def test_nodes_out_of_range_or_twice_are_refused(path_of_three):
    for nodes in ([0, 3], [-1, 1], [2, 0, 2], [-(2**40)]):
        with pytest.raises(ValueError, match="nodes must"):
            path_of_three.restrict(torch.tensor(nodes))
