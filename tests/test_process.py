"""Settings of the whole process: made while work lasts, taken back with the last, and the user's own left alone."""

import multiprocessing
import resource
import subprocess
import sys
import threading

import pytest
import torch

from torch_lapeig import Graph, Laplacian, _compiled, _process, eigenpairs
from torch_lapeig._process import Setting, one_blas_thread
from torch_lapeig._tuning import KEPT_BYTES
from torch_lapeig.eigen import ShiftInvert
from torch_lapeig.eigen.direct import Factors

# Any setting
# -----------


@pytest.fixture
def calls():
    """What a setting has done."""
    return []


@pytest.fixture
def setting(calls):
    def make():
        calls.append("made")
        return lambda: calls.append("taken back")

    return Setting(make)


def test_it_ends_with_the_last_that_asked(setting, calls):
    with setting.made():
        with setting.made():
            pass
        assert calls == ["made"]
    assert calls == ["made", "taken back"]
    with pytest.raises(KeyError), setting.made():
        raise KeyError
    assert calls == ["made", "taken back"] * 2


def test_threads_share_it(setting, calls):
    both, seen = threading.Barrier(2), []

    def work():
        with setting.made():
            both.wait(10)
            seen.append(list(calls))
            both.wait(10)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == [["made"]] * 2
    assert calls == ["made", "taken back"]


def test_a_setting_that_fails_is_not_made(calls):
    def make():
        calls.append("asked")
        raise OSError("no such setting")

    setting = Setting(make)
    for _ in range(2):
        with pytest.raises(OSError, match="no such setting"), setting.made():
            pass
    assert calls == ["asked"] * 2


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12 warns of forks beside threads
def test_a_forked_process_begins_anew(setting, calls):
    """Though another thread held the lock, or had asked for the setting."""

    def work(sender):
        before = len(calls)
        with setting.made():
            sender.send(calls[before:])

    receiver, sender = multiprocessing.Pipe(duplex=False)
    with setting.made(), setting._lock:
        process = multiprocessing.get_context("fork").Process(target=work, args=(sender,))
        process.start()
    try:
        assert receiver.poll(30)
        assert receiver.recv() == ["made"]
    finally:
        process.join(10)
        process.kill()


# Kept memory
# -----------

with_glibc = pytest.mark.skipif(_process.c_library() is None, reason="not glibc, or tuned by the user")

FAULTS = """
import resource, torch
from torch_lapeig._process import kept_memory
from torch_lapeig._tuning import KEPT_BYTES

def faults(size, times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.zeros(size // 8, dtype=torch.float64)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

outside, start = faults(2 * KEPT_BYTES, 20), resident()
with kept_memory(2 * KEPT_BYTES):
    inside = faults(2 * KEPT_BYTES, 20)
    held = torch.ones(8, KEPT_BYTES // 8, dtype=torch.float64)
    del held
    kept = resident() - start
left = resident() - start
print(outside, inside, kept, left, faults(16 * KEPT_BYTES, 3))
"""


@with_glibc
def test_pages_are_touched_once_and_given_back():
    """In a process of its own: what the C library keeps depends on what it was asked for before."""
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=120, check=True)
    outside, inside, kept, left, after = map(int, run.stdout.split())
    pages = 20 * 2 * KEPT_BYTES / resource.getpagesize()
    if outside < 0.5 * pages:
        pytest.skip("pages are larger here, or kept anyway")
    assert inside < 0.2 * outside
    assert kept > 4 * KEPT_BYTES
    assert left < 2 * KEPT_BYTES
    assert after > 48 / 40 * 0.5 * outside  # as before, of blocks that no hole left in the heap can hold


@with_glibc
def test_only_large_solves_keep_memory(monkeypatch):
    asked = []

    class Library:
        def mallopt(self, name, value):
            asked.append((name.value, value.value))

        def malloc_trim(self, pad):
            asked.append("trim")

    monkeypatch.setattr(_process, "c_library", Library)
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
    eigenpairs(Laplacian(Graph.from_edge_index(path, weight)), 2).values.sum().backward()
    assert asked == []
    monkeypatch.setattr(_process, "KEPT_BYTES", 1)
    once = [*_process.WHILE.items(), *_process.AFTERWARDS.items(), "trim"]
    pairs = eigenpairs(Laplacian(Graph.from_edge_index(path, weight)), 2)
    assert asked == once
    pairs.vectors[0].square().sum().backward()
    assert asked == 2 * once


@with_glibc
@pytest.mark.parametrize("name", _process.OWN)
def test_settings_of_the_user_are_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    _process.c_library.cache_clear()
    assert _process.c_library() is None
    monkeypatch.undo()
    _process.c_library.cache_clear()
    assert _process.c_library() is not None


# SciPy's BLAS
# ------------


@pytest.fixture
def blas():
    """How many threads it has, with three outside."""
    if (found := _process.scipy_blas()) is None:
        pytest.skip("SciPy's factors have another BLAS than OpenBLAS")
    look, put = found
    before = look()
    put(3)
    if look() != 3:
        put(before)
        pytest.skip("OpenBLAS takes no three threads here")
    yield look
    put(before)


def test_factors_have_one_thread_of_blas(blas, monkeypatch):
    """SuperLU gains nothing by more, which wait at full speed for what torch's own threads need."""
    monkeypatch.setattr(_compiled, "library", lambda: None)
    seen, solve = [], Factors.__call__
    monkeypatch.setattr(Factors, "__call__", lambda self, r: (seen.append(blas()), solve(self, r))[1])
    w = torch.diag_embed(torch.ones(99, dtype=torch.float64), 1)
    graph = Graph.from_dense(w + w.mT).to_sparse()
    pairs = eigenpairs(Laplacian(graph.with_weight(graph.weight.clone().requires_grad_())), 4, ShiftInvert())
    assert set(seen) == {1}
    assert blas() == 3
    pairs.vectors[3].square().sum().backward()
    assert blas() == 3


def test_another_blas_is_left_alone(blas, monkeypatch):
    with one_blas_thread():
        assert blas() == 1
    monkeypatch.setattr(_process, "scipy_blas", lambda: None)
    with one_blas_thread():
        assert blas() == 3
