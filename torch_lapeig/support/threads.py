"""Work on the processor in parts, each in a thread of its own that is single-threaded.

MKL and OpenMP split every single operation among all threads and wait for the slowest at its end. If another process
takes a core for a while, each of these waits costs a slice of the scheduler's time: 64 matrices of 128² took `eigh`
46 ms on one thread and 276 ms on two. Independent parts wait once, at the end of all. They run on a pool of threads of
this library.

Nothing here changes a setting of the caller's threads. With `torch.get_num_threads` of 1 the work is done where it is
asked for, as it would be without this module.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from torch_lapeig.support import checks
from torch_lapeig.support.tuning import PARTS_OF_THREAD, rows_of_block

T = TypeVar("T")
CPU = torch.device("cpu")
_pools: dict[int, ThreadPoolExecutor] = {}  # by process: a forked one lacks the threads, and may find a lock held


def together(tasks: Sequence[Callable[[], T]], device: torch.device = CPU) -> list[T]:
    """Return the results of tasks, run in order of start on as many threads as torch may use here, several on each.

    Tasks have the caller's grad mode, inference mode and autocast, and should release Python's lock most of the time.
    Tasks of an accelerator, and tasks inside a task, run one after the other. The first task's error is raised.
    """
    threads = _threads_here()
    if len(tasks) < 2 or device.type != "cpu" or threads == 1:  # a single task has all threads of torch
        return [task() for task in tasks]
    results: dict[int, T] = {}
    failures: dict[int, BaseException] = {}
    warnings: list[list[tuple[str, type[Warning]]]] = [[] for _ in tasks]
    waiting, grad, inference = enumerate(tasks), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def work() -> None:
        cast = torch.autocast("cpu", dtype, enabled=autocast)
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), cast:
            for number, task in waiting:
                if failures:
                    return
                try:
                    checks.kept_warnings.set(warnings[number])
                    results[number] = task()
                except BaseException as error:
                    failures[number] = error

    started: list[Future[None]] = []
    try:
        with contextlib.suppress(RuntimeError):  # no more threads available, as at the end of the interpreter
            for _ in range(min(threads, len(tasks))):
                started.append(_workers().submit(contextvars.copy_context().run, work))
        wait(started)
        contextvars.copy_context().run(work)  # what no thread has taken
    except BaseException as error:  # an interrupt
        failures[-1] = error
        raise
    for warning in itertools.chain(*warnings):
        checks.warn(*warning)
    if failures:
        raise failures[min(failures)]
    return [results[number] for number in range(len(tasks))]


def in_parts(function: Callable[[Tensor], tuple[Tensor, ...]], batch: Tensor, least: int) -> tuple[Tensor, ...]:
    """Return ``function(batch)`` of independent items, on the CPU in parts of at least ``least`` numbers a thread."""
    if batch.device.type != "cpu" or batch.numel() < least or _threads_here() == 1:
        return function(batch)
    parts = [batch[part] for part in slices(len(batch), least * len(batch) / batch.numel())]
    found = together([lambda part=part: function(part) for part in parts])  # type: ignore[misc]
    return found[0] if len(found) == 1 else tuple(map(torch.cat, zip(*found, strict=True)))


def slices(count: int, least: float) -> list[slice]:
    """Return slices of 0 to ``count`` of about equal length, at least ``least``: a few for each thread, or one."""
    threads = _threads_here()
    most = 1 if threads == 1 else PARTS_OF_THREAD * threads
    # More than one a thread, so that a thread whose core is busy elsewhere leaves slices to the others.
    number = max(1, min(count, int(count / max(least, 1)), most))
    ends = [count * i // number for i in range(number + 1)]
    return [slice(*part) for part in itertools.pairwise(ends)]


def by_rows(work: Callable[[slice], None], n: int, row_bytes: float, device: torch.device) -> None:
    """Run ``work`` on slices of n rows that fit the cache, in parallel on torch's threads."""
    # Several operations on a slice read and write memory once. New tensors of all rows would double the time, as the
    # system clears their memory.
    length = rows_of_block(row_bytes, device, "cache")
    # Torch's threads share an operation on all rows. An update of LOBPCG's basis of 10,000 rows (6 MB) took 0.4 ms as a
    # whole and 1.1 in slices; of 100,000 rows 22 and 8.
    if length >= n or (torch.get_num_threads() > 1 and n * row_bytes <= 2**24):
        return work(slice(0, n))

    def some(part: slice) -> None:
        for start in range(part.start, part.stop, length):
            work(slice(start, min(start + length, part.stop)))

    together([partial(some, part) for part in slices(n, length)], device)


_here = threading.local()  # inside: whether this thread is one of a team at work


def _threads_here() -> int:
    """Return the number of threads for tasks; 1 if a mode of torch watches this thread, but would not watch others."""
    threads = torch.get_num_threads()
    if threads == 1 or getattr(_here, "inside", False) or checks.is_watched():
        return 1
    return min(threads, os.cpu_count() or 1)


def _workers() -> ThreadPoolExecutor:
    if (process := os.getpid()) not in _pools:
        made = ThreadPoolExecutor(os.cpu_count() or 1, "torch_lapeig", _compute_alone, (threading.Lock(),))
        _pools.setdefault(process, made)  # another thread may be faster
    return _pools[process]


def _compute_alone(lock: threading.Lock) -> None:
    """Make this new thread of the team single-threaded."""
    _here.inside = True
    # `torch.set_num_threads` sets the number of its own thread, and the default of threads that start later: of those
    # that first ask for their number. A thread that has started with the former default restores the default.
    torch.get_num_threads()
    begun, changed = threading.Event(), threading.Event()

    def put_back() -> None:
        usual = torch.get_num_threads()
        begun.set()
        changed.wait()
        torch.set_num_threads(usual)

    with lock:
        other = threading.Thread(target=put_back)
        other.start()
        begun.wait()
        torch.set_num_threads(1)
        changed.set()
        other.join()


def solve_each(matrices: Tensor, rhs: Tensor, *, check: bool = True) -> Tensor:
    """Return X of A X = B; for singular A raise `torch.linalg.LinAlgError`, or without ``check`` hold ∞ or NaN."""
    # On the processor large matrices are solved one by one: torch's LU factors of batches fail there on several
    # threads, with an error or without end (pytorch #142815).
    solve = partial(torch.linalg.solve_ex, check_errors=check)
    # LU factors of batches are right up to 150 rows; 100 leaves a margin.
    is_sound = matrices.device.type != "cpu" or matrices.shape[-1] <= 100 or torch.get_num_threads() == 1
    if is_sound or matrices.ndim == 2:
        return solve(matrices, rhs).result  # type: ignore[no-any-return]
    each = zip(matrices.flatten(0, -3), rhs.flatten(0, -3), strict=True)
    return torch.stack([solve(a, b).result for a, b in each]).reshape(rhs.shape)
