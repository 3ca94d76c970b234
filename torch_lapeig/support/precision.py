"""Full precision for solves, whatever the user has chosen for a network: no autocast, IEEE float32.

`torch_lapeig.eigen.solve` decides that eigenproblems of float32 weights are solved in float64.

Autocast belongs to a thread. How float32 is multiplied (`torch.set_float32_matmul_precision`, or ``fp32_precision`` of
`torch.backends`) belongs to the process: the first call that needs full precision sets it, and the last such call to
end restores it, under one lock.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from operator import attrgetter, is_not, itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

F = TypeVar("F", bound=Callable[..., Any])
OLDEST = (2, 6)  # version of torch on which the tests have passed
FULL_VERSION = str(torch.__version__)
VERSION = tuple(map(int, FULL_VERSION.split(".")[:2]))  # of the installed torch

if VERSION < OLDEST:
    raise ImportError(f"torch_lapeig needs torch 2.6 or newer, but found {FULL_VERSION}; pip install -U torch")

# Settings of torch for float32 products, on a GPU and on the processor; torch before 2.9 has the older interface only.
PRODUCTS: tuple[Any, ...] = (
    (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    if hasattr(torch.backends.cuda.matmul, "fp32_precision")
    else ()
)
IEEE = {"ieee", "highest"}
WHOLE = IEEE | {"none"}  # "none" everywhere is the default, IEEE
AUTOCAST = ("cpu", "cuda")
HOST, WIDE = torch.device("cpu"), (torch.float64, torch.complex128)
LACKS_FLOAT64 = {"mps"} if torch.backends.mps.is_available() else set[str]()  # kinds of devices of this machine


class _Float32:
    """State of float32 products of the process while some calls need full precision."""

    def __init__(self) -> None:
        # Torch has two interfaces to one state, and raises if they contradict each other, so both are set. A value that
        # was inherited from a more general setting inherits again after the last call.
        self.lock = threading.Lock()
        self.calls = 0
        self.name: str | None = "highest"  # value of the older interface; None if only the newer one was set
        self.kept: list[str] = []  # values of `PRODUCTS`, or of the older interface in torch before 2.9

    def begin(self) -> None:
        """Compute in IEEE arithmetic from now on."""
        with self.lock:
            self.calls += 1
            try:
                name = torch.get_float32_matmul_precision()  # read in less time than `PRODUCTS`
            except RuntimeError:
                name = None
            if name == "highest" or WHOLE.issuperset(found := _float32_products()):
                return
            # "ieee" may be set by this class; any other value is the user's.
            before = self.kept or found
            self.kept = [old if value in IEEE else value for old, value in zip(before, found, strict=True)]
            self.name = name
            if name is not None:
                torch.set_float32_matmul_precision("highest")
            for product in PRODUCTS:
                product.fp32_precision = "ieee"

    def end(self) -> None:
        """Restore the former setting, if no other call needs IEEE arithmetic and nobody has changed the setting."""
        with self.lock:
            self.calls -= 1
            if self.calls or not self.kept:
                return
            (kept, name), (self.kept, self.name) = (self.kept, self.name), ([], "highest")
            if not IEEE.issuperset(_float32_products()):
                return
            if name is not None:
                torch.set_float32_matmul_precision(name)
            for product, value in zip(PRODUCTS, kept, strict=False):
                if name is None:
                    product.fp32_precision = "none"
                if product.fp32_precision != value:
                    product.fp32_precision = value

    def begin_anew(self) -> None:
        """Forget the calls of other threads: a forked process lacks these threads, one of which may hold the lock."""
        self.lock = threading.Lock()
        if self.calls and not vars(_thread).get("inside", False):
            self.calls = 1
            self.end()


def _float32_products() -> list[str]:
    return [*map(attrgetter("fp32_precision"), PRODUCTS)] or [torch.get_float32_matmul_precision()]


_float32 = _Float32()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_float32.begin_anew)


class _WholePrecision:
    """Block of code without autocast in this thread, in which float32 is multiplied in IEEE arithmetic."""

    def __enter__(self) -> None:
        self.is_outermost, _thread.inside = not vars(_thread).get("inside", False), True
        self.enabled = [*filter(torch.is_autocast_enabled, AUTOCAST)]
        _float32.begin()
        for device in self.enabled:
            torch.set_autocast_enabled(device, False)

    def __exit__(self, *error: object) -> None:
        try:
            if self.is_outermost and "pending" in vars(_thread):
                # Flags of `check_at_next_sync` are checked at the end of the outermost block.
                synchronise()
        finally:
            for device in self.enabled:
                torch.set_autocast_enabled(device, True)
            _float32.end()
            if self.is_outermost:
                _thread.inside = False
                vars(_thread).pop("pending", None)
                vars(_thread).pop("known", None)


def full_precision(function: F, *, is_door: bool = True) -> F:
    """Run ``function`` with autocast off and float32 products in IEEE arithmetic; at a door outside of a recorder."""

    # Derivatives keep their precision too, wherever they are computed: they multiply by `Function` and by `matmul`.
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_door and (torch.compiler.is_compiling() or torch.jit.is_tracing()):  # type: ignore[attr-defined]
            if torch.compiler.is_dynamo_compiling():
                return torch.compiler.disable(wrapper)(*args, **kwargs)
            name = type(args[0]).__name__ if args and isinstance(args[0], torch.nn.Module) else function.__name__
            raise RuntimeError(
                f"{name} cannot be recorded by torch.export or torch.jit.trace, as its graph and its solver depend on "
                "the data at every step; use torch.compile, which works with one graph break, or export the parts of "
                "the network before and after it"
            )
        if vars(_thread).get("inside", False) and not any(map(torch.is_autocast_enabled, AUTOCAST)):
            return function(*args, **kwargs)
        with _WholePrecision():
            return _on_host(function, args, kwargs) if LACKS_FLOAT64 and is_door else function(*args, **kwargs)

    # Torch reads the signature at each call of a Function, and would compute it each time.
    wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


# For methods of a `torch.autograd.Function`, which torch calls in forward and backward.
without_autocast = functools.partial(full_precision, is_door=False)


def _on_host(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call ``function`` with copies on the host of what a device without float64 holds; its result is of the device."""
    given: dict[int, tuple[Any, Any]] = {}
    own_args, own_kwargs = _placed((args, kwargs), lambda x: HOST if x.type in LACKS_FLOAT64 else x, given)
    device = next((old.device for old, new in given.values() if isinstance(old, Tensor) and new is not old), None)
    if device is None:
        return function(*args, **kwargs)
    known = {id(new): (new, old) for old, new in given.values()}
    back = functools.partial(_placed, place=lambda x: device if x == HOST else x, known=known)
    try:
        return back(function(*own_args, **own_kwargs))
    finally:
        for old, new in given.values():  # modules may have been fitted
            if state := _state(new):
                vars(old).update(back(state))


def _state(x: Any) -> dict[str, Any]:
    is_ours = isinstance(x, torch.nn.Module) or type(x).__module__.startswith("torch_lapeig")
    return {k: v for k, v in getattr(x, "__dict__", {}).items() if k != "_kept"} if is_ours else {}


def _placed(value: Any, place: Callable[[torch.device], torch.device], known: dict[int, tuple[Any, Any]]) -> Any:
    """Return a value with its tensors, but for float64, elsewhere; modules and our objects that hold any are copied."""

    def placed(x: Any) -> Any:
        if id(x) not in known:
            known[id(x)] = x, x
            leaves, form = tree_flatten(_state(x))
            if isinstance(x, torch.device):
                known[id(x)] = x, place(x)
            elif isinstance(x, Tensor) and x.dtype not in WIDE and place(x.device) != x.device:
                known[id(x)] = x, (copy := x.to(place(x.device)))
                if not (x.is_inference() or copy.is_inference()):  # what is derived from x now holds for the copy
                    torch._C._autograd._unsafe_set_version_counter((copy,), (x._version,))
            elif any(map(is_not, own := [*map(placed, leaves)], leaves)):
                known[id(x)] = x, object.__new__(type(x))
                vars(known[id(x)][1]).update(tree_unflatten(own, form))
        return known[id(x)][1]

    return tree_map(placed, value)


def synchronise(*numbers: Tensor) -> list[Any]:
    """Return Python's numbers of tensors ``()``, and handle `check_at_next_sync`: the host waits for one copy."""
    pending: list[tuple[Tensor, Callable[[], None]]] = vars(_thread).pop("pending", [])
    every = [*numbers, *map(itemgetter(0), pending)]
    if len({*map(attrgetter("device"), every)}) == 1 and every[0].device.type != "cpu":
        found = torch.stack(every).tolist()
    else:
        found = [*map(Tensor.item, every)]
    for is_true, (_, say) in zip(found[len(numbers) :], pending, strict=True):
        if is_true:
            say()
    return found[: len(numbers)]


def check_at_next_sync(flag: Tensor, say: Callable[[], None]) -> None:
    """Call ``say`` if a flag ``()`` is true, on the CPU at once, else at the next synchronisation or the call's end."""
    if flag.device.type != "cpu" and vars(_thread).get("inside", False):
        vars(_thread).setdefault("pending", []).append((flag, say))  # checked first if another error is raised
    elif flag:
        say()


def known_size(x: Tensor) -> Tensor | None:
    """Return the size of points that a function in full precision has read, unless they have changed since."""
    known = vars(_thread).get("known")
    return known[2] if known is not None and known[0] is x and known[1] == x._version else None


def keep_size(x: Tensor, size: Tensor) -> Tensor:
    """Return the size of points, which a function in full precision then reads once."""
    if vars(_thread).get("inside", False) and not x.is_inference():
        _thread.known = x, x._version, size
    return size


class Function(torch.autograd.Function):
    """Function in full precision, computed once for each item of `torch.vmap`, and so of Jacobians of `torch.func`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in {"forward", "backward", "jvp"} & vars(cls).keys():
            setattr(cls, name, staticmethod(without_autocast(getattr(cls, name))))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the tensors among the inputs for either mode of derivatives, and the others as ``ctx.rest``."""
        tensors: list[Tensor] = []
        ctx.rest = []
        for x in inputs:
            (tensors if isinstance(x, Tensor) else ctx.rest).append(x)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *args: Any) -> tuple[Any, Any]:  # noqa: D102
        each = [[a] * info.batch_size if d is None else a.unbind(d) for a, d in zip(args, in_dims, strict=True)]
        found = [cls.apply(*item) for item in zip(*each, strict=True)]
        whole = tree_map(lambda *parts: None if parts[0] is None else torch.stack(parts), *found)
        return whole, tree_map(lambda part: None if part is None else 0, found[0])


class _Matmul(Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (g,), (a, b) = grads, ctx.saved_tensors
        to_a = matmul(g, b.mH).sum_to_size(a.shape) if ctx.needs_input_grad[0] else None
        return to_a, matmul(a.mH, g).sum_to_size(b.shape) if ctx.needs_input_grad[1] else None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        a, b = ctx.saved_tensors
        parts = [] if tangents[0] is None else [matmul(tangents[0], b)]
        return sum(parts if tangents[1] is None else [*parts, matmul(a, tangents[1])])  # type: ignore[return-value]


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return A B ``(..., n, m)`` of matrices, whose derivatives of any order keep the precision of A and B."""
    # Under autocast torch rounds the backward of its own product, and of nothing else that is differentiated here; but
    # not of doubles.
    if a.dtype in (torch.float64, torch.complex128) or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return a @ b
    is_recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return _Matmul.apply(a, b) if is_recorded else a @ b


_thread = threading.local()  # whether a function in full precision runs
