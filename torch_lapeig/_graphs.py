"""Work that is launched over and over on CUDA, recorded once as a CUDA graph and replayed: one launch instead of many.

    step = captured(step, device)      # the function itself, but on CUDA
    x, y = step(x, y)                  # the same numbers

A function that is captured has to
- compute on one device, with no look at a result, no copy from or to the host, and no work on other threads;
- do the same operations on the same memory each time: what it uses beside its inputs stays where it is;
- give the same if it is run twice: what it writes beside its results follows from what it does not write;
- give new tensors.

The first call with inputs of some shapes runs as it is, so that what is worked out once is worked out; the second one
is recorded; from then on inputs are copied to where they were when it was recorded, and results from there. Where a
recording fails the function runs as it is, in this process from then on: that is slower and no less right. A look at a
result fails so: CUDA refuses it in a recording. Whoever owns the function owns its graphs and their memory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from torch_lapeig import _tuning
from torch_lapeig._threads import is_recorded

F = TypeVar("F", bound=Callable[..., Any])
Replay = Callable[..., Any]

MOST = 4  # graphs of one function: blocks of so many widths
KNOWN = 64  # shapes that are remembered as seen
failures: dict[str, str] = {}  # functions that could not be recorded in this process, and why
_recording = threading.Lock()  # one at a time: the memory of a process is one
_thread = threading.local()  # whether it records: what it calls meanwhile becomes part of that


def _begin_anew() -> None:
    """Forget the thread that recorded: a forked process has no other threads."""
    global _recording
    _recording = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def captured(function: F, device: torch.device) -> F:
    """The function, recorded and replayed on CUDA; see the top of the file for what it has to keep to."""
    return Captured(function, device) if _tuning.graphs_pay(device) else function  # type: ignore[return-value]


class Captured:
    """A function of tensors of one device, and of constants, whose recordings are replayed."""

    def __init__(self, function: Callable[..., Any], device: torch.device) -> None:
        self.function, self.device, self.lock = function, device, threading.Lock()
        self.seen: set[Any] = set()
        self.replays: dict[Any, Replay] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy records for itself."""
        return Captured, (self.function, self.device)

    def __call__(self, *inputs: Any) -> Any:
        """What the function gives."""
        name = _name(self.function)
        if name in failures or not _may_record(inputs):
            return self.function(*inputs)
        key = _state(self.device), tuple(_signature(value) for value in inputs)
        with self.lock:  # inputs are copied to one place, and results from one
            replay = self.replays.get(key)
            if replay is None and key in self.seen:
                replay = self._record(name, key, inputs)
            if replay is not None:
                return replay(*inputs)
            if len(self.seen) >= KNOWN:
                self.seen.clear()
            self.seen.add(key)
        return self.function(*inputs)

    def _record(self, name: str, key: Any, inputs: tuple[Any, ...]) -> Replay | None:
        try:
            with _recording:
                _thread.records = True
                replay = record(self.function, inputs, self.device)
        except torch.OutOfMemoryError:
            return None
        except RuntimeError as error:
            failures[name] = (str(error).splitlines() or [""])[0]
            return None
        finally:
            _thread.records = False
        if len(self.replays) >= MOST:
            del self.replays[next(iter(self.replays))]
        self.replays[key] = replay
        return replay


def record(function: Callable[..., Any], inputs: tuple[Any, ...], device: torch.device) -> Replay:
    """A graph of what the function does, as a function of inputs like these.

    Raises:
        RuntimeError: the function does what cannot be recorded, or memory is short.
    """
    places = tuple(value.clone() if isinstance(value, Tensor) else value for value in inputs)
    current = torch.cuda.current_stream(device)
    side = _side_stream(current.device_index)
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):  # and its device
            graph = torch.cuda.CUDAGraph()
            function(*places)  # libraries take the memory that they keep for this stream
            graph.capture_begin(capture_error_mode="thread_local")  # others may allocate and wait meanwhile
            try:
                results = function(*places)
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
    finally:
        current.wait_stream(side)
    return functools.partial(replayed, functools.partial(_launch, graph, current.device_index), places, results)


def _launch(graph: Any, device: int) -> None:
    with torch.cuda.device(device):
        graph.replay()


def replayed(launch: Callable[[], None], places: tuple[Any, ...], results: Any, *inputs: Any) -> Any:
    """Copy the inputs to their places, run the graph, and copy its results: the next run overwrites them."""
    for place, value in zip(places, inputs, strict=True):
        if isinstance(place, Tensor):
            place.copy_(value)
    launch()
    return results.clone() if isinstance(results, Tensor) else tuple(result.clone() for result in results)


@functools.cache
def _side_stream(device: int) -> Any:
    """The stream of a device on which graphs are recorded: it must not be the default one."""
    return torch.cuda.Stream(device)


def _may_record(inputs: tuple[Any, ...]) -> bool:
    """Whether inputs are small enough that launches take longer than work, and nothing else is being recorded."""
    if torch.is_grad_enabled() or getattr(_thread, "records", False) or is_recorded():
        return False
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    return all(t.numel() * t.element_size() <= _tuning.GRAPH_BYTES for t in tensors)


def _state(device: torch.device) -> tuple[Any, ...]:
    """What a recording depends on beside its inputs: the stream, and torch's settings."""
    precision = torch._C._get_fp32_precision_getter("cuda", "matmul")
    settings = torch.are_deterministic_algorithms_enabled(), torch.is_inference_mode_enabled()
    return _stream(device), "ieee" if precision == "none" else precision, *settings


def _stream(device: torch.device) -> Any:
    """Device and stream: a stream does one thing after the other, so that places are not overwritten too soon."""
    stream = torch.cuda.current_stream(device)
    return stream.device_index, stream.stream_id


def _signature(value: Any) -> Any:
    return (value.shape, value.stride(), value.dtype, value.device) if isinstance(value, Tensor) else value


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return f"{function.__module__}.{function.__qualname__}"
