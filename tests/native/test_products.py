"""The compiled loops do what torch does in their place, and are left out where C cannot read or is not there."""

import itertools
import os

import numpy as np
import pytest
import torch

from problems import cycle, points, random_affinity, setting, swiss_roll
from torch_lapeig import Graph, HeatKernel, Laplacian, eigenpairs, knn_graph
from torch_lapeig.eigen import ChebyshevSubspace, SymmetricOperator
from torch_lapeig.graph import algebra as storage
from torch_lapeig.graph.pattern import DensePattern
from torch_lapeig.native import calls as native

DTYPES = (torch.float64, torch.float32)
pytestmark = pytest.mark.skipif(native.library() is None, reason="nothing is compiled here")


@pytest.fixture
def in_torch(monkeypatch):
    """A function that does something without compiled loops."""

    def run(function):
        with monkeypatch.context() as patch:
            patch.setattr(native, "library", lambda: None)
            return function()

    return run


def random_rows(rows, cols, dtype=torch.float64, seed=0):
    """A sparse matrix with empty rows, and a row of all columns."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, cols, generator=generator, dtype=torch.float64)
    dense = dense * (torch.rand(rows, cols, generator=generator) < 0.2)
    if rows > 3:
        dense[1] = 0
        dense[3] = 1
    row, col = dense.nonzero(as_tuple=True)
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), (dense != 0).sum(1).cumsum(0)])
    return crow.int(), col.int(), dense[row, col].to(dtype), dense


def close(found, expected, dtype):
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e3 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_equal_the_dense_matrix(dtype):
    """Any number of columns is right: the loops handle them by fours, eights and sixteens."""
    for (rows, cols), m in itertools.product(((40, 30), (1, 1), (30, 40)), (*range(1, 36), 64, 67)):
        crow, col, values, dense = random_rows(rows, cols, dtype, seed=m)
        y = torch.randn(cols, m, dtype=dtype)
        other = torch.randn(rows, m, dtype=dtype)
        csr = storage.csr(crow, col, values, (rows, cols))
        close(storage.multiply(csr, y), dense @ y.double(), dtype)
        expected = -2 * (dense @ y.double()) + 0.5 * other.double()
        close(storage.multiply(csr, y, other, times=-2, plus=0.5), expected, dtype)
        assert storage.multiply(csr, y, other, times=-2, plus=0.5, out=other) is other
        close(other, expected, dtype)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_product_is_scaled_without_something_to_add_to(is_compiled, in_torch):
    dense = random_affinity(40)
    graph, y = Graph.from_dense(dense).to_sparse(), torch.randn(40, 3, dtype=torch.float64)
    sparse, values = graph.pattern, graph.weight
    crow, col = sparse.crow, sparse.col

    def products():
        matrices = (storage.csr(crow, col, values, (40, 40)), sparse.to_matrix(values), dense)
        patterns = (storage.multiply, sparse.multiply, DensePattern((40,)).multiply)
        return [multiply(matrix, y, times=-2) for multiply, matrix in zip(patterns, matrices, strict=True)]

    for found in products() if is_compiled else in_torch(products):
        close(found, -2 * dense @ y, torch.float64)


@pytest.mark.parametrize("m", [1, 5, 14])
def test_columns_of_wider_blocks_are_read_and_written_where_they_lie(m):
    crow, col, values, dense = random_rows(40, 40)
    wide, room = torch.randn(40, m + 7, dtype=torch.float64), torch.zeros(40, m + 3, dtype=torch.float64)
    csr = storage.csr(crow, col, values, (40, 40))
    storage.multiply(csr, wide[:, 2 : m + 2], wide[:, 5 : m + 5].clone(), out=room[:, 1 : m + 1])
    close(room[:, 1 : m + 1], dense @ wide[:, 2 : m + 2] + wide[:, 5 : m + 5], torch.float64)
    assert not room[:, 0].any()
    assert not room[:, m + 1 :].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_edges_and_pulls_equal_differences(dtype):
    crow, col, values, _ = random_rows(30, 30, dtype)
    row = torch.repeat_interleave(crow.diff())
    for m in (*range(1, 20), 33, 64):
        x, y = torch.randn(30, m, dtype=dtype), torch.randn(30, m, dtype=dtype)
        apart = x[col].double() - x[row].double()
        close(storage.edge_products(crow, row, col, x, None), apart.square().sum(1), dtype)
        close(storage.edge_products(crow, row, col, x, y), (x[row].double() * y[col].double()).sum(1), dtype)
        expected = torch.zeros(30, m, dtype=torch.float64).index_add_(0, row, values.double()[:, None] * apart)
        pull, energy = native.tension(crow, col, values, x)
        close(pull, expected, dtype)
        energies = torch.zeros(30, dtype=torch.float64).index_add_(0, row, values.double() * apart.square().sum(1))
        close(energy / m, energies / m, dtype)


def test_differences_far_from_the_origin_keep_their_digits():
    graph = knn_graph(points(200, 3), 5)
    x = torch.randn(200, 6)
    found = graph.pattern.direct_tension(graph.weight.float(), x + 2.0**20)
    expected = graph.pattern.direct_tension(graph.weight.float(), (x + 2.0**20) - 2.0**20)
    assert all(map(torch.equal, found, expected))


def test_nan_and_infinity_stay_in_the_rows_that_read_them():
    crow, col, values, dense = random_rows(40, 40)
    y = torch.ones(40, 9, dtype=torch.float64)
    y[7, 4], y[9, 2] = torch.nan, torch.inf
    found = storage.multiply(storage.csr(crow, col, values, (40, 40)), y)
    assert torch.equal(found[:, 4].isnan(), dense[:, 7] != 0)
    assert torch.equal(found[:, 2].isinf(), dense[:, 9] != 0)
    assert found[:, [0, 1, 3, 5, 6, 7, 8]].isfinite().all()


def test_the_processor_still_knows_the_smallest_numbers():
    assert np.float64(5e-324) * np.float64(1) != 0
    assert float(torch.full((1,), 1e-310, dtype=torch.float64) * 0.5) > 0


def test_threads_do_not_change_a_bit(monkeypatch):
    graph = knn_graph(points(3000, 3), 12)
    y = torch.randn(3000, 14, dtype=torch.float64)
    monkeypatch.setattr(native, "COMPILED_PART", 1)
    found = []
    for number in (1, 2, 3):
        with setting(torch.set_num_threads, number, torch.get_num_threads()):
            found.append((graph.pattern.direct_matmul(graph.weight, y), graph.pattern.direct_lengths(y)))
    for one in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(one, found[0], strict=True))


def ring(n):
    return Graph.from_dense(cycle(n)).to_sparse()


@pytest.mark.parametrize("k", [1, 3, 8, 11])
def test_the_complement_is_solved_as_in_torch(k, in_torch):
    def gradient():
        x = torch.stack([points(150, 4, seed=seed) for seed in range(3)]).requires_grad_()
        pairs = eigenpairs(Laplacian(HeatKernel()(x, knn_graph(x, 8))), k, ChebyshevSubspace())
        probe = torch.randn(pairs.vectors.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
        kernel = pairs.vectors @ torch.matrix_exp(-pairs.projected) @ pairs.vectors.mT
        return torch.autograd.grad((kernel @ probe).square().sum(), x)[0]

    found, expected = gradient(), in_torch(gradient)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8 * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenpairs_with_and_without(dtype, in_torch):
    for graph in (knn_graph(swiss_roll(400), 8), ring(30), knn_graph(points(600, 6), 10)):
        for solver in (None, ChebyshevSubspace()):
            values = eigenpairs(Laplacian(graph.to(dtype)), 6, solver).values
            expected = in_torch(lambda g=graph, s=solver: eigenpairs(Laplacian(g.to(dtype)), 6, s).values)
            torch.testing.assert_close(values, expected, rtol=0, atol=100 * torch.finfo(dtype).eps)


def test_negated_views_are_left_to_torch():
    """The imaginary part of a conjugate is one: torch takes its sign when it reads it."""
    graph = ring(4)
    laplacian = Laplacian(graph, "unnormalized")
    y = torch.complex(torch.zeros(4, 1), torch.eye(4)[:, :1]).to(torch.complex128).conj().imag
    assert y.is_neg()
    torch.testing.assert_close(laplacian.matmul(y), laplacian.to_dense() @ y)
    weight = graph.weight.clone().requires_grad_()

    def loss(w):
        product = graph.pattern.matmul(w, torch.arange(4.0, dtype=torch.float64)[:, None])
        return torch.complex(torch.ones_like(product), product).conj().abs().sum()

    assert torch.autograd.gradcheck(loss, weight)
    own = laplacian.symmetric
    other = SymmetricOperator(own.pattern, torch._neg_view(-graph.weight), torch._neg_view(-own.diagonal))
    torch.testing.assert_close(eigenpairs(other, 2, ChebyshevSubspace()).values, torch.tensor([0.0, 2.0]).double())


def test_batches_of_cotangents_are_left_to_torch():
    laplacian = Laplacian(ring(4))
    y = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    out = laplacian.matmul(y)
    cotangents = torch.stack([torch.ones_like(out), out.detach()])
    (found,) = torch.autograd.grad(out, y, cotangents, is_grads_batched=True, retain_graph=True)
    for g, one in zip(cotangents, found, strict=True):
        torch.testing.assert_close(one, torch.autograd.grad(out, y, g, retain_graph=True)[0])


def test_a_diagonal_of_another_dtype_is_converted():
    operator = Laplacian(ring(4)).symmetric
    mixed = SymmetricOperator(operator.pattern, operator.values, 2 * operator.diagonal.float())
    torch.testing.assert_close(mixed.compiled.diagonal, 2 * operator.diagonal)


def test_loops_of_another_version_or_that_cannot_be_loaded_are_left_out(tmp_path, monkeypatch):
    native.library.cache_clear()
    try:
        monkeypatch.delenv("TORCH_LAPEIG_COMPILED", raising=False)
        monkeypatch.setattr(native, "FOLDER", tmp_path)
        assert native.library() is None
        native.library.cache_clear()
        (tmp_path / "kernels.c").write_text("another source")
        (tmp_path / "kernels.so").symlink_to(native.Path(native.__file__).parent / "kernels.so")
        with pytest.warns(UserWarning, match="loops of .*kernels.so cannot be used, they belong to other C sources"):
            assert native.library() is None
        native.library.cache_clear()
        (tmp_path / "other").mkdir()  # a path that was loaded is not looked at again
        (tmp_path / "other" / "kernels.so").write_text("no library")
        monkeypatch.setattr(native, "FOLDER", tmp_path / "other")
        with pytest.warns(UserWarning, match="compiled loops of .*other.kernels.so cannot be used"):
            assert native.library() is None
        for numbers, name, other, says in (  # as if structures or loops were others
            (native.KINDS, "double", native.ctypes.c_byte, r"\w+ is \d+ in C and \d+ in Python"),
            (native.NUMBERS, "BLOCK", 5, "BLOCK is 4 in C and 5 in Python"),
            (vars(native), "TYPES", {torch.float64: "float"}, "their products are wrong"),
        ):
            monkeypatch.undo()
            native.library.cache_clear()
            monkeypatch.setitem(numbers, name, other)
            with pytest.warns(UserWarning, match=says):
                assert native.library() is None
    finally:
        monkeypatch.undo()
        native.library.cache_clear()
    assert torch.func.grad(lambda x: native.library() and x.sum())(torch.ones(1))  # whose tensors have no memory


def test_a_forked_process_is_single_threaded():
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    crow, col, values, _ = random_rows(40, 40)
    y = torch.randn(40, 9, dtype=torch.float64)
    matrix = storage.csr(crow, col, values, (40, 40))
    storage.multiply(matrix, y)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:  # whatever fails here must not go on with the tests of the parent
            is_right = not storage.multiply(matrix, y).isnan().any()
            os.write(write, b"1" if native.num_threads() == 1 and is_right else b"0")
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 1) == b"1"
    os.waitpid(child, 0)
