"""Reports of progress: bars, and functions of the caller's that long searches and solves call."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from torch_lapeig.support.extras import needed

T = TypeVar("T")
# Called once an iteration with its number, the largest residual of the wanted pairs, and its maximum.
Progress = Callable[[int, float, float], None]

_report: ContextVar[Callable[[int, int], None] | None] = ContextVar("report", default=None)


def bar(**options: Any) -> Any:
    """Return a bar of tqdm; raise ImportError without tqdm."""
    return needed("tqdm", "progress=True needs tqdm, or a function in place of True", "embed").tqdm(**options)


@contextlib.contextmanager
def searches_reported(progress: Progress | bool) -> Iterator[None]:
    """Report the searches for neighbours made within, by bars or to a function."""
    with contextlib.ExitStack() as open_bars:
        bars: dict[str, Any] = {}

        def report(done: int, count: int) -> None:
            if not isinstance(progress, bool):
                return progress(done, 1 - done / count, 0.0)  # finished blocks, share of blocks that are left
            if done == 1:
                bars["now"] = open_bars.enter_context(bar(desc="neighbours", unit=" blocks", total=count))
            bars["now"].update()
            if done == count:
                open_bars.close()

        token = _report.set(report if progress else None)
        try:
            yield
        finally:
            _report.reset(token)


def reporting(tasks: Sequence[Callable[[], T]]) -> Sequence[Callable[[], T]]:
    """Return tasks that report when they are done, if their caller wants reports and there are several."""
    report, lock, done = _report.get(), threading.Lock(), 0
    if report is None or len(tasks) < 2:
        return tasks

    def reported(task: Callable[[], T]) -> T:
        nonlocal done
        token = _report.set(None)  # a search within a task is a part of it
        try:
            result = task()
        finally:
            _report.reset(token)
        with lock:
            done += 1
            report(done, len(tasks))
        return result

    return [functools.partial(reported, task) for task in tasks]
