"""Argument checks, warnings and errors shared by every module. Messages say what arrived and what to do."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

F = TypeVar("F", bound=Callable[..., Any])

FLOATS = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)


class GraphWarning(UserWarning):
    """The graph has isolated nodes or more than one connected component."""


class ConvergenceWarning(UserWarning):
    """An iterative solve stopped before it reached its tolerance."""


class DegeneracyWarning(UserWarning):
    """A gradient of eigenvectors is not defined: equal eigenvalues and a loss that tells them apart."""


class ConvergenceError(RuntimeError):
    """An eigensolve did not reach its tolerance and ``on_failure="raise"`` was asked for."""


def check_floating(value: Any, name: str) -> None:
    """Raise TypeError unless ``value`` is a float32 or float64 tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}; use torch.as_tensor({name})")
    if value.dtype not in FLOATS:
        raise TypeError(f"{name} must be float32 or float64, got {value.dtype}; use {name}.float()")


def single(value: Any) -> Any:
    """``value`` in float32 if it is a tensor of half precision, else itself."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALVES else value


def check_finite(value: Tensor, name: str) -> None:
    """Raise ValueError if ``value`` has a NaN or an infinity."""
    # The sum is finite only if all entries are, and needs no memory.
    if not torch.isfinite(value.detach().sum()) and not torch.isfinite(value).all():
        bad = (~torch.isfinite(value)).nonzero()
        raise ValueError(
            f"{name} must be finite, got {len(bad)} NaN or Inf of {value.numel()} entries "
            f"(first at {tuple(bad[0].tolist())}); drop or impute them"
        )


def check_points(x: Any, name: str = "x", *, batched: bool = True, min_points: int = 2) -> None:
    """Raise unless ``x`` is a finite float tensor ``(N, D)``, or ``(B, N, D)`` where ``batched``."""
    check_floating(x, name)
    ranks = (2, 3) if batched else (2,)
    if x.ndim not in ranks:
        expected = "(N, D) or (B, N, D)" if batched else "(N, D)"
        raise ValueError(f"{name} must have shape {expected}, got {tuple(x.shape)}")
    if x.shape[-2] < min_points or x.shape[-1] < 1 or x.shape[0] < 1:
        raise ValueError(f"{name} must hold at least {min_points} points of dimension ≥ 1, got {tuple(x.shape)}")
    check_finite(x, name)


def check_mask(mask: Any, x: Tensor) -> None:
    """Raise unless ``mask`` is a boolean tensor of the shape of ``x`` without its last axis."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(f"mask must be a boolean tensor, got {getattr(mask, 'dtype', type(mask).__name__)}")
    if mask.shape != x.shape[:-1]:
        raise ValueError(f"mask must have shape {tuple(x.shape[:-1])} to go with the points, got {tuple(mask.shape)}")


def check_count(value: Any, name: str, minimum: int = 1) -> None:
    """Raise unless ``value`` is an integer of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")


def check_positive(value: Any, name: str) -> None:
    """Raise unless ``value`` is a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value}")


def check_choice(value: Any, name: str, choices: Iterable[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in (known := tuple(choices)):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")


def is_dual(value: Tensor) -> bool:
    """Whether the tensor carries a tangent of forward-mode derivatives."""
    return forward_ad.unpack_dual(value).tangent is not None


def primal(value: Tensor) -> Tensor:
    """The tensor without gradients of either mode: ``detach`` keeps the tangent of forward-mode derivatives."""
    bare: Tensor = forward_ad.unpack_dual(value).primal.detach()
    return bare


def power_of_two(value: Tensor, dim: tuple[int, ...]) -> Tensor:
    """The power of two next to the largest size along some axes, which stay as 1; a constant, 1 for zeros.

    What is divided by it keeps all its bits, and its squares do not overflow.
    """
    largest = primal(value).abs().amax(dim, keepdim=True)
    return torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent)


class _FiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gradient,) = grads
        if torch.isfinite(gradient.detach().sum()) or not gradient.isinf().any():
            return finite_gradient(gradient)
        largest = torch.finfo(gradient.dtype).max
        warnings.warn(
            f"{int(gradient.isinf().sum())} of {gradient.numel()} entries of a gradient are too large for "
            f"{gradient.dtype}: the largest number is returned for them; use float64, a larger bandwidth, larger "
            'weights, or smaller outputs (scale="unit")',
            DegeneracyWarning,
            stacklevel=2,
        )
        return gradient.clamp(-largest, largest)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return tangents[0].view_as(tangents[0])


def finite_gradient(value: Tensor) -> Tensor:
    """``value`` itself; a gradient to it that overflows is made finite, with a `DegeneracyWarning`.

    NaN, which only a loss that is NaN itself should bring, is not hidden.
    """
    same: Tensor = _FiniteGradient.apply(value) if torch.is_grad_enabled() and value.requires_grad else value
    return same


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
    """`full_precision` for the methods of a `torch.autograd.Function`, which run by themselves in forward and backward.

    Their derivatives are Functions and native operations: see `full_precision` for the latter.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _autocast_off():
            return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def full_precision(function: F) -> F:
    """Run ``function`` with autocast off, so that distances and eigenvectors keep their input's precision.

    So do all derivatives of what it returns, wherever ``backward()`` is called: autocast would round the products in
    them as well. Under `torch.compile` it is a graph break and runs as it is: what it does depends on the data at every
    step.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(wrapper)(*args, **kwargs)
        inside = vars(_thread).get("inside", False)
        _thread.inside = True
        try:
            with _autocast_off():
                result = function(*args, **kwargs)
        finally:
            _thread.inside = inside
        if torch.is_grad_enabled() and not inside:  # the outermost call sees to the whole graph
            _differentiate_without_autocast(result, (args, kwargs))
        return result

    return wrapper  # type: ignore[return-value]


GUARDED = "torch_lapeig runs this node without autocast"
# Whether a function in full precision runs, and what autocast was on for before each node that does (one can call
# another backward).
_thread = threading.local()


def _differentiate_without_autocast(results: Any, arguments: Any) -> None:
    """Have the nodes of the autograd graph between arguments and results run with autocast off."""
    nodes = list(_nodes_of(results))
    ends = set(_nodes_of(arguments))
    while nodes:
        node = nodes.pop()
        # Leaves outlive the graph and compute nothing.
        if node in ends or hasattr(node, "variable") or GUARDED in node.metadata:
            continue
        node.metadata[GUARDED] = True
        node.register_prehook(_before)
        node.register_hook(_after)
        nodes.extend(above for above, _ in node.next_functions if above is not None)


def _before(cotangents: tuple[Tensor, ...]) -> None:
    vars(_thread).setdefault("enabled", []).append(_switch_off())


def _after(results: tuple[Tensor, ...], cotangents: tuple[Tensor, ...]) -> None:
    _switch_on(_thread.enabled.pop())
    if torch.is_grad_enabled():  # the backward is itself differentiated
        _differentiate_without_autocast(results, cotangents)


def _nodes_of(value: Any) -> Iterator[Any]:
    """Nodes of the autograd graph that made the tensors in a value of this library, however deep."""
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            yield value.grad_fn
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _nodes_of(part)
    elif isinstance(value, dict):
        yield from _nodes_of(list(value.values()))
    elif type(value).__module__.startswith(__package__) and not isinstance(value, torch.nn.Module):
        yield from _nodes_of(vars(value) if hasattr(value, "__dict__") else None)
