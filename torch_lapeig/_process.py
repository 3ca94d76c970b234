"""Settings of the whole process that a solve makes for its time: memory that is kept, and one thread of SciPy's BLAS.

The first that asks for one makes it, and the last takes it back, whichever threads they are on.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch_lapeig._tuning import KEPT_BYTES

# Parameters of mallopt, and what glibc's own adaptation leaves after a block of 32 MiB was freed.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
WHILE = {MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1}
AFTERWARDS = {MMAP_MAX: 65536, MMAP_THRESHOLD: 32 * 2**20, TRIM_THRESHOLD: 64 * 2**20}
# Settings of the user's own, which are left alone.
OWN = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


class Setting:
    """One setting: ``make`` makes it and gives what takes it back; both are called under a lock."""

    _take_back: Callable[[], object]

    def __init__(self, make: Callable[[], Callable[[], object]]) -> None:
        self._make = make
        self._begin_anew()
        if hasattr(os, "register_at_fork"):  # a forked process has none of the threads, one of which may hold the lock
            os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self._lock, self._users, self._take_back = threading.Lock(), 0, lambda: None

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """The setting, while it lasts."""
        with self._lock:
            if self._users == 0:
                self._take_back = self._make()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._take_back()


@functools.cache
def c_library() -> Any | None:
    """The C library, if it is glibc and nobody has told it what to keep."""
    if sys.platform != "linux" or any(os.environ.get(name) for name in OWN):
        return None
    library = ctypes.CDLL(None)
    needed = ("gnu_get_libc_version", "mallopt", "malloc_trim")
    return library if all(hasattr(library, name) for name in needed) else None


def kept_memory(size: int) -> contextlib.AbstractContextManager[None]:
    """Keep freed memory while it lasts, where temporary tensors have so many bytes that it would go back each time.

    glibc takes every block of more than 32 MiB from the system and gives it back when it is freed. Each of its pages is
    then mapped and zeroed at its first touch, again and again for the temporaries of an iteration: a third of the time
    of a solve of 10⁶ nodes on a virtual machine. PyTorch keeps freed memory on accelerators only.
    """
    return _memory.made() if size >= KEPT_BYTES and c_library() is not None else contextlib.nullcontext()


def _keep_memory() -> Callable[[], object]:
    library = c_library()
    assert library is not None

    def put(options: dict[int, int]) -> None:
        for name, value in options.items():
            library.mallopt(ctypes.c_int(name), ctypes.c_int(value))

    def give_back() -> None:
        put(AFTERWARDS)
        library.malloc_trim(0)

    put(WHILE)
    return give_back


@functools.cache
def scipy_blas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How many threads OpenBLAS takes for SciPy's sparse factors, to look at and to set; None with another BLAS."""
    try:
        from scipy.sparse.linalg._dsolve import _superlu

        library = ctypes.CDLL(_superlu.__file__)  # which finds what it is linked with
    except (ImportError, OSError):
        return None
    for name in ("scipy_openblas_{}_num_threads", "openblas_{}_num_threads"):
        for end in ("", "64_", "_64"):
            look, put = (getattr(library, name.format(verb) + end, None) for verb in ("get", "set"))
            if look is not None and put is not None:
                return look, put
    return None


def one_blas_thread() -> contextlib.AbstractContextManager[None]:
    """Have SciPy's BLAS compute on one thread while it lasts.

    OpenBLAS gives sparse factors no more speed with more threads. But these wait for work at full speed, some 30 ms,
    and torch's own wait for a core meanwhile: on two cores `ShiftInvert` took up to three times as long.
    """
    return contextlib.nullcontext() if scipy_blas() is None else _blas.made()


def _take_one_thread() -> Callable[[], object]:
    found = scipy_blas()
    assert found is not None
    look, put = found
    before = look()
    put(1)
    return functools.partial(put, before)


_memory, _blas = Setting(_keep_memory), Setting(_take_one_thread)
