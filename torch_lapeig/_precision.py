"""The precision of floats that solves need, whatever the user has chosen for a network: no autocast, IEEE float32.

Autocast belongs to a thread. How float32 is multiplied (`torch.set_float32_matmul_precision`, or ``fp32_precision`` of
`torch.backends`) belongs to the process: it is set where the first call begins that needs it, and put back where the
last one ends, under one lock.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def exporting() -> bool:
    """Whether `torch.export` is recording."""
    return torch.compiler.is_exporting() if hasattr(torch.compiler, "is_exporting") else False


class _Float32:
    """How the process multiplies float32 while some calls need the whole of it.

    Torch has two interfaces to one state, and raises where they contradict each other: both are set to agree. A value
    that is inherited from a more general setting is put back as one that inherits.
    """

    PRODUCTS = (("cuda", "matmul"), ("mkldnn", "matmul"))
    WHOLE = ("ieee", "none")  # "none" throughout: the default, which is IEEE

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = 0
        self.name: str | None = "highest"  # by the older interface; None where only the newer one can say
        self.kept: dict[tuple[str, str], str] = {}

    def begin(self) -> None:
        """From now on in IEEE arithmetic."""
        with self.lock:
            self.calls += 1
            found = self._settings()
            if all(value in self.WHOLE for value in found.values()):
                return
            # What is "ieee" here may be our doing; what is not was chosen by the user, before this or since.
            older = self._older()
            self.kept = {p: value if value != "ieee" else self.kept.get(p, value) for p, value in found.items()}
            self.name = older if older != "highest" else self.name
            if older not in (None, "highest"):
                torch.set_float32_matmul_precision("highest")
            for product in self.PRODUCTS:
                torch._C._set_fp32_precision_setter(*product, "ieee")

    def end(self) -> None:
        """As before, where nobody else needs it and nobody has changed it."""
        with self.lock:
            self.calls -= 1
            if self.calls or not self.kept:
                return
            (kept, name), (self.kept, self.name) = (self.kept, self.name), ({}, "highest")
            if any(value != "ieee" for value in self._settings().values()):
                return
            if name is not None:
                torch.set_float32_matmul_precision(name)
            for product, value in kept.items():
                if name is None:
                    torch._C._set_fp32_precision_setter(*product, "none")
                if torch._C._get_fp32_precision_getter(*product) != value:
                    torch._C._set_fp32_precision_setter(*product, value)

    def begin_anew(self) -> None:
        """End what other threads have begun: a forked process has none of them, one of which may hold the lock."""
        self.lock = threading.Lock()
        if self.calls and not vars(_thread).get("inside", False):
            self.calls = 1
            self.end()

    def _settings(self) -> dict[tuple[str, str], str]:
        return {product: torch._C._get_fp32_precision_getter(*product) for product in self.PRODUCTS}

    @staticmethod
    def _older() -> str | None:
        """What the older interface says; None where only the newer one can."""
        try:
            return torch.get_float32_matmul_precision()
        except RuntimeError:
            return None


_float32 = _Float32()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_float32.begin_anew)
AUTOCAST = ("cpu", "cuda")


@contextlib.contextmanager
def _autocast_off() -> Iterator[None]:
    enabled = _switch_off()
    try:
        yield
    finally:
        _switch_on(enabled)


def _switch_off() -> list[str]:
    """Turn autocast off in this thread; the devices it was on for."""
    enabled = [device for device in AUTOCAST if torch.is_autocast_enabled(device)]
    for device in enabled:
        torch.set_autocast_enabled(device, False)
    return enabled


def _switch_on(devices: list[str]) -> None:
    for device in devices:
        torch.set_autocast_enabled(device, True)


def without_autocast(function: F) -> F:
    """`full_precision` for the methods of a `torch.autograd.Function`, which torch calls in forward and backward."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _float32.begin()
        try:
            with _autocast_off():
                return function(*args, **kwargs)
        finally:
            _float32.end()

    # Torch asks for it at each call of a Function, and would work it out each time.
    wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


def full_precision(function: F) -> F:
    """Run ``function`` with autocast off and float32 products in IEEE arithmetic.

    So distances and eigenvectors keep their input's precision. So do all derivatives, wherever ``backward()`` is
    called: what is differentiated here multiplies by Functions of this library and by `matmul`. What it does depends on
    the data at every step: under `torch.compile` it is a graph break and runs as it is, and it cannot be recorded once
    and for all, as `torch.export` and `torch.jit.trace` would: RuntimeError.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if exporting() or torch._C._is_tracing():
            name = type(args[0]).__name__ if args and isinstance(args[0], torch.nn.Module) else function.__name__
            raise RuntimeError(
                f"{name} cannot be recorded by torch.export or torch.jit.trace, as its graph and its solver depend on "
                "the data at every step; use torch.compile, which works with one graph break, or export the parts of "
                "the network before and after it"
            )
        if torch.compiler.is_compiling():
            return torch.compiler.disable(wrapper)(*args, **kwargs)
        if vars(_thread).get("inside", False):
            with _autocast_off():
                return function(*args, **kwargs)
        _thread.inside = True
        _float32.begin()
        try:
            with _autocast_off():
                try:
                    return function(*args, **kwargs)
                finally:
                    look()
        finally:
            _float32.end()
            _thread.inside = False
            for kept in ("finite", "pending"):
                vars(_thread).pop(kept, None)

    return wrapper  # type: ignore[return-value]


def know_size(value: Tensor, size: Tensor) -> None:
    """Remember until the outermost call ends how large the entries of a tensor are: its rooms each check them."""
    if vars(_thread).get("inside", False) and not value.is_inference():
        vars(_thread).setdefault("finite", {})[id(value)] = value, value._version, size


def known_size(value: Tensor) -> Tensor | None:
    """The largest size of an entry of this very tensor, if it was found in this call and not written to since."""
    known, version, size = vars(_thread).get("finite", {}).get(id(value), (None, 0, None))
    return size if known is value and version == value._version else None


def look(*flags: Tensor) -> list[bool]:
    """Whether flags ``()`` are true: all of them, and those of `later`, in one copy that the host waits for."""
    pending: list[tuple[Tensor, Callable[[], None]]] = vars(_thread).pop("pending", [])
    every = [*flags, *(flag for flag, _ in pending)]
    if len({flag.device for flag in every}) == 1 and every[0].device.type != "cpu":
        found = torch.stack(every).tolist()
    else:
        found = [bool(flag) for flag in every]
    for is_true, (_, say) in zip(found[len(flags) :], pending, strict=True):
        if is_true:
            say()
    return found[: len(flags)]


def later(flag: Tensor, say: Callable[[], None]) -> None:
    """Call ``say`` if a flag ``()`` is true, when the host next looks at the device, or when the outermost call ends.

    For warnings, and for errors that nothing before would hide: where something else fails, what is left is looked at
    first. On the processor, where a look costs nothing, at once.
    """
    if flag.device.type != "cpu" and vars(_thread).get("inside", False):
        vars(_thread).setdefault("pending", []).append((flag, say))
    elif flag:
        say()


class _Matmul(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        return a @ b

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (g,), (a, b) = grads, ctx.saved_tensors
        to_a = matmul(g, b.mT).sum_to_size(a.shape) if ctx.needs_input_grad[0] else None
        to_b = matmul(a.mT, g).sum_to_size(b.shape) if ctx.needs_input_grad[1] else None
        return to_a, to_b

    @staticmethod
    @without_autocast
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        a, b = ctx.saved_tensors
        parts = [] if tangents[0] is None else [matmul(tangents[0], b)]
        return sum(parts if tangents[1] is None else [*parts, matmul(a, tangents[1])])  # type: ignore[return-value]


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return A B ``(..., n, m)`` of matrices, whose derivatives of any order keep the precision of A and B.

    Under autocast the backward of torch's own product is rounded to half precision. Of what is differentiated here
    only products would be, so that this one function sees to all of it.
    """
    if not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)) or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return a @ b
    product: Tensor = _Matmul.apply(a, b)
    return product


_thread = threading.local()  # whether a function in full precision runs
