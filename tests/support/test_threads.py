"""Work in parts on threads: the same results and errors, the caller's modes, and nobody's settings changed."""

import multiprocessing
import threading

import pytest
import torch

from problems import setting
from torch_lapeig import KNN, Graph, HeatKernel, Laplacian, eigen, eigenpairs
from torch_lapeig.eigen import ChebyshevSubspace
from torch_lapeig.eigen.solvers.blocks import eigh_of_batch
from torch_lapeig.support import threads
from torch_lapeig.support.threads import together

LIMIT = 60  # seconds until a wait counts as one for ever


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """Two threads at least, also on a machine of one core."""
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    with setting(torch.set_num_threads, 2, torch.get_num_threads()):
        yield


def on_thread(function):
    """Return the result of a function on a thread of its own, in bounded time."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert found, "no answer"
    return found[0]


def symmetric(b, n, dtype=torch.float64, seed=0):
    a = torch.randn(b, n, n, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return (a + a.mT) / 2


def test_threads_have_the_modes_of_the_caller():
    def modes():
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")

    assert together([modes] * 4) == [modes()] * 4
    with torch.no_grad():
        assert together([modes] * 4) == [modes()] * 4
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert together([modes] * 4) == [modes()] * 4
        one = torch.ones(8, 8)
        assert [found.dtype for found in together([lambda: one @ one] * 3)] == [torch.bfloat16] * 3
    assert together([modes] * 4) == [modes()] * 4
    with setting(torch.set_default_dtype, torch.float64, torch.float32):
        assert [found.dtype for found in together([lambda: torch.zeros(1)] * 3)] == [torch.float64] * 3


def test_threads_of_the_user_at_work_at_the_same_time():
    """Results are those of one after the other, and every thread keeps its own number of threads, even odd ones."""
    batches = [symmetric(9, 70, seed=seed) for seed in range(6)]
    expected = [torch.linalg.eigvalsh(a) for a in batches]
    start, found = threading.Barrier(len(batches)), {}

    def user(number):
        own = 1 + number % 3
        torch.get_num_threads()  # or torch would set the usual number at the first operation
        torch.set_num_threads(own)
        start.wait(LIMIT)
        values = [eigh_of_batch(batches[number])[0] for _ in range(5)]
        found[number] = values, own, torch.get_num_threads()

    threads = [threading.Thread(target=user, args=(i,), daemon=True) for i in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(found) == list(range(len(batches)))
    for number, (values, own, after) in found.items():
        assert own == after
        for value in values:
            torch.testing.assert_close(value, expected[number], rtol=1e-11, atol=1e-11)
    assert torch.get_num_threads() == 2


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_makes_its_own_threads():
    a = symmetric(16, 64)  # made here: OpenMP itself may wait for ever in a forked process
    expected = eigh_of_batch(a)[0]  # the threads of this process are there
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    solve = lambda: queue.put((eigh_of_batch(a)[0].tolist(), torch.get_num_threads()))  # noqa: E731
    child = context.Process(target=solve, daemon=True)
    child.start()
    values, number = on_thread(queue.get)
    child.join(LIMIT)
    assert child.exitcode == 0
    assert number == 2
    torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_of_a_batch_are_solved_and_differentiated_as_the_whole(dense, dtype, monkeypatch):
    """Odd numbers of graphs of unequal parts, by an iterative solver, with the linear solve of the gradient."""
    monkeypatch.setattr(eigen.symmetric, "PART_OF_BLOCK", 900)
    x = torch.randn(7, 60, 3, dtype=dtype, generator=torch.Generator().manual_seed(1))
    graph = HeatKernel()(x, KNN(6)(x))
    if dense:
        graph = Graph.from_dense(graph.to_dense())
    found = []
    for number in (1, 2):
        torch.set_num_threads(number)
        weight = graph.weight.clone().requires_grad_()
        laplacian = Laplacian(graph.with_weight((weight + graph.pattern.transpose(weight)) / 2), "symmetric")
        pairs = eigenpairs(laplacian, 3, ChebyshevSubspace())
        assert pairs.converged.all()
        assert len(laplacian.symmetric.parts(3)) == (1 if number == 1 else 1 + (7 * 60 * 3 > 1800))
        loss = (pairs.vectors.square() * torch.arange(60, dtype=dtype)[:, None]).sum() + pairs.values.sum()
        found.append((pairs.values.detach(), *torch.autograd.grad(loss, weight)))
    accuracy = 1e-7 if dtype == torch.float64 else 2e-3
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(two, one, rtol=accuracy, atol=accuracy * float(one.abs().max()))
