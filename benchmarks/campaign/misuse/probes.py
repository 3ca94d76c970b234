"""What every probe is made of: the public names, the two expectations, the data, and a few comparisons."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import torch_lapeig
import torch_lapeig.eigen
import torch_lapeig.graph
import torch_lapeig.losses
import torch_lapeig.methods
from torch_lapeig import pyg, sklearn

# Every public name, without types: what is probed here is what they would forbid.
ROOMS = (torch_lapeig, torch_lapeig.graph, torch_lapeig.eigen, torch_lapeig.methods, torch_lapeig.losses, pyg)
lapeig: Any = types.SimpleNamespace(**{name: getattr(room, name) for room in ROOMS for name in room.__all__})
estimators: Any = sklearn

WRONG: tuple[type[BaseException], ...] = (TypeError, ValueError)


class Clear(NamedTuple):
    """The call raises one of ``errors``, and its message holds all ``words``."""

    words: tuple[str, ...]
    errors: tuple[type[BaseException], ...] = WRONG


class Accepted(NamedTuple):
    """The call returns, which is right because of ``why``."""

    why: str


Expectation = Clear | Accepted
Probe = tuple[str, Callable[[], object], Expectation]


def outcome_of(call: Callable[[], object], expectation: Expectation) -> tuple[str, str]:
    """Return one of the four outcomes, and the message; refusing an accepted call is unclear."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        if isinstance(expectation, Accepted):
            return "unclear", said
        clear = isinstance(error, expectation.errors) and all(word in str(error) for word in expectation.words)
        return ("clear" if clear else "unclear"), f"{said} (wanted {expectation.words})"
    return ("accepted rightly" if isinstance(expectation, Accepted) else "accepted wrongly"), "no error"


def shown(value: Any) -> str:
    """Return a value of the wrong kind as messages show it: itself if it is short, else its type."""
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, int) and value.bit_length() > 128:
        return f"{value.bit_length()} bits"
    return repr(value) if isinstance(value, (str, int, float, complex, type(None))) else type(value).__name__


X = torch.rand(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
GRAPH = lapeig.knn_graph(X, 4, symmetrize="union")
DENSE = lapeig.Graph.from_dense(GRAPH.to_dense())
LAPLACIAN = lapeig.Laplacian(GRAPH)
MASK = torch.ones(12, dtype=torch.bool)
LABELS = torch.arange(12) % 2
SOFT = torch.nn.functional.one_hot(LABELS).double()
PAIR = torch.tensor([[0, 1], [1, 0]])
AFFINITY = GRAPH.to_dense()
KERNEL = X @ X.mT
STRONG = GRAPH.weight * torch.linspace(1, 2, len(GRAPH.weight), dtype=torch.float64)  # differs between directions


def estimated(name: str, argument: str, **others: Any) -> Callable[[Any], object]:
    """Return a scikit-learn estimator made with one option, and fitted: there they are checked."""
    return lambda value: getattr(estimators, name)(**others, **{argument: value}).fit(X.numpy())


def equal(a: object, b: object) -> None:
    if a != b:
        raise AssertionError(f"{a} is not {b}")


def same_result(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    same(one(X), other(X))


def same_dtype(layer: Callable[..., Any], dtype: torch.dtype) -> None:
    equal(layer(X.to(dtype)).dtype, dtype)


def same_affinity(graph: Any, method: str, argument: torch.Tensor, affinity: torch.Tensor) -> None:
    same(getattr(graph, method)(argument).to_dense(), affinity)


def called_with(make: Callable[[], Any], method: str, argument: Any) -> object:
    return getattr(make(), method)(argument)


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b)
