"""Argument checks, warnings and errors shared by every module. Messages say what arrived and what to do."""

from __future__ import annotations

import cmath
import functools
import inspect
import itertools
import math
import re
import sys
import traceback
import warnings
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from torch_lapeig.support.precision import check_at_next_sync, keep_size, known_size

Class = TypeVar("Class", bound=type)

FLOATS = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
# How an object {0} becomes a tensor, and a `Graph`, by the package of its type, package and name, or method.
OF_DATA = "Graph.from_edge_index({0}.edge_index, {0}.edge_weight, {0}.num_nodes, {0}.batch)"
OF_IGRAPH = '{0}.get_adjacency_sparse("weight" if {0}.is_weighted() else None)'
TENSORS = {
    "toarray": "torch.as_tensor({0}.toarray())",
    "scipy.LinearOperator": "torch.as_tensor({0} @ numpy.eye({0}.shape[1]))",
    "networkx": "torch.from_numpy(networkx.to_numpy_array({0}))",
    "igraph": f"torch.as_tensor({OF_IGRAPH}.toarray())",
    "torch_geometric": "{0}.x",
    "torch_geometric.HeteroData": "{0}.to_homogeneous().x",
    "anndata": 'torch.as_tensor({0}.obsm["X_pca"])',
    "torch_lapeig.Embedding": "{0}.embedding",
    "torch_lapeig.Eigenpairs": "{0}.vectors",
    "torch_lapeig.EmbeddingModule": "{0}.embedding_",
}
GRAPHS = {
    "networkx": "Graph.from_scipy(networkx.to_scipy_sparse_array({0}))",
    "igraph": f"Graph.from_scipy({OF_IGRAPH})",
    "torch_geometric": OF_DATA,
    "torch_geometric.HeteroData": OF_DATA.replace("{0}", "{0}.to_homogeneous()"),
    "anndata": 'Graph.from_scipy({0}.obsp["connectivities"])',
}
CONVERSIONS = {
    "tensor": TENSORS,
    "graph": {**GRAPHS, "toarray": "Graph.from_scipy({0})", "torch_lapeig.Laplacian": "{0}.graph"},
    "operator": {key: way for key, way in TENSORS.items() if key in ("toarray", "scipy.LinearOperator")}
    | {key: f"Laplacian({way})" for key, way in GRAPHS.items()}
    | {"torch_lapeig.MeshLaplacian": "{0}.stiffness, with mass={0}.mass"},
}
NOT_NAMED = ("builtins", "torch", "torch_lapeig", "numpy", "__main__")  # packages that a message does not name
PLAIN = (int, float, complex, str, list, tuple, np.generic, Tensor, type(None))  # members of lists of numbers
# Arguments of other libraries, the arguments here, and how they say the same.
ELSEWHERE = {
    "n_neighbors": ({"neighbors", "k"}, "the number of neighbours is the k of a rule, as in neighbors=KNN(k)"),
    "sigma": ({"weights", "t"}, "the bandwidth is the t of exp(−d²/t), as in HeatKernel(2 * sigma**2)"),
    "gamma": ({"weights", "t"}, "the bandwidth is the t of exp(−d²/t), as in HeatKernel(1 / gamma)"),
    "bandwidth": ({"weights", "t"}, "the bandwidth is the t of exp(−d²/t), as in HeatKernel(bandwidth)"),
    "epsilon": ({"neighbors", "radius"}, "give it as in Radius(epsilon) for edges, HeatKernel(epsilon) for weights"),
    "eps": ({"neighbors", "radius"}, "give it as in Radius(eps) for edges, HeatKernel(eps) for weights"),
    "affinity": ({"neighbors"}, 'affinities are given by neighbors=Precomputed("affinity"), made of points by KNN(k)'),
}
LARGEST_WIDTH = 2**20  # maximum columns of an answer, classes, clusters, graphs without nodes


class GraphWarning(UserWarning):
    """Warning of a graph with isolated nodes or more than one connected component.

    >>> from torch_lapeig import KNN, LaplacianEigenmaps
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     y = LaplacianEigenmaps(1, KNN(1))(torch.tensor([[0.0], [1.0], [8.0], [9.0]]))
    >>> said[0].category.__name__
    'GraphWarning'
    """


class ConvergenceWarning(UserWarning):
    """Warning of an iterative solve that stopped before it reached its tolerance.

    >>> from torch_lapeig.eigen import ChebyshevSubspace, eigenpairs
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     pairs = eigenpairs(
    ...         torch.arange(500.0).diag(), 4, ChebyshevSubspace(max_products=20)
    ...     )
    >>> said[0].category.__name__, bool(pairs.converged)
    ('ConvergenceWarning', False)
    """


class ResolutionWarning(ConvergenceWarning):
    """Warning of eigenvalues that differ by no more than the round-off of their matrix.

    >>> from torch_lapeig.eigen import FunctionOperator, eigenpairs
    >>> values = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 1e20], dtype=torch.float64)
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     pairs = eigenpairs(FunctionOperator(lambda y: values[:, None] * y, 9), 3)
    >>> said[0].category.__name__, bool(pairs.resolved)
    ('ResolutionWarning', False)
    """


class DegeneracyWarning(UserWarning):
    """Warning of an undefined gradient: the loss depends on the choice of eigenvectors of equal eigenvalues.

    >>> from torch_lapeig import Graph, Laplacian, eigenpairs
    >>> square = torch.eye(4, dtype=torch.float64).roll(1, 0)
    >>> affinity = (square + square.T).requires_grad_()  # its eigenvalues are 0, 1, 1, 2
    >>> pairs = eigenpairs(Laplacian(Graph.from_dense(affinity)), 3)
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     (torch.arange(4.0).square().double() @ pairs.vectors[:, 1]).backward()
    >>> said[0].category.__name__
    'DegeneracyWarning'
    """


class ConvergenceError(RuntimeError):
    """Error of an eigensolve that did not reach its tolerance under ``on_failure="raise"``.

    >>> from torch_lapeig.eigen import ChebyshevSubspace, eigenpairs
    >>> matrix, solver = torch.arange(500.0).diag(), ChebyshevSubspace(max_products=20)
    >>> eigenpairs(matrix, 4, solver, on_failure="raise")
    Traceback (most recent call last):
    torch_lapeig.support.checks.ConvergenceError: ...
    """


# Packages that call this library for the user; their lines are not the user's.
PASSED_THROUGH = {
    *("torch_lapeig", "torch", "torch_geometric", "pytorch_lightning", "lightning", "lightning_fabric"),
    *("sklearn", "joblib", "numpy", "scipy", "contextlib", "functools"),
}

# Warnings that a thread of this library collects for the thread that waits for it, which gives them.
kept_warnings: ContextVar[list[tuple[str, type[Warning]]] | None] = ContextVar("kept_warnings", default=None)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the user's line: the innermost frame outside this library and outside the packages that call it."""
    if (kept := kept_warnings.get()) is not None:
        return kept.append((message, category))
    # The backward of CUDA tensors runs on threads of autograd, without a line of the user: the line that waits for it
    # is named, and in a thread whose target is a module the outermost line.
    frames = list(traceback.walk_stack(sys._getframe(1)))
    tops = (top for top in sys._current_frames().values() if top.f_code.co_name == "_engine_run_backward")
    for frame, _ in itertools.chain(frames, *map(traceback.walk_stack, tops)):
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in PASSED_THROUGH:
            break
    else:
        frame = frames[-1][0]
    module = frame.f_globals.get("__name__") or "<string>"  # code that was executed without a name
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


def check_instance(value: Any, name: str, kind: type | tuple[type, ...], expected: str) -> None:
    """Raise TypeError unless ``value`` is of a kind; ``expected`` names the kind and how to obtain one."""
    if not isinstance(value, kind):
        own, advice = getattr(kind, "__name__", ""), ""
        if own == "Tensor" or own.endswith("Graph"):
            advice = way_out(value, name, "tensor" if own == "Tensor" else "graph")
            advice = re.sub(r"\w*Graph\.from", f"{own}.from", advice)
        raise TypeError(f"{name} must be {expected}, got {describe(value)}{advice}")


def describe(value: Any) -> str:
    """Return how a message shows a value of the wrong kind: the value if it is short, else its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}; make an object of it, {value.__name__}(...)"
    if isinstance(value, int) and value.bit_length() > 128:  # too long for a message
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (str, int, float, complex, type(None))):
        return repr(value)
    package = type(value).__module__.partition(".")[0]
    return type(value).__name__ + (f" of {package}" if package not in NOT_NAMED else "")


def way_out(value: Any, name: str, wanted: Literal["tensor", "graph", "operator"] = "tensor") -> str:
    """Return how an object becomes what is wanted, by where its type comes from: ``; use …``, or nothing."""
    items = value.tolist() if getattr(getattr(value, "dtype", None), "kind", None) in ("O", "U", "S") else value
    items = items if type(items) in (list, tuple) else [*value.unbind()] if getattr(value, "is_nested", 0) else ()
    if wanted == "tensor" and any(isinstance(item, str) for item in items):
        return "; encode the words as integers, with −1 for none, as the classes of torch_lapeig.sklearn do"
    if items and all(isinstance(item, (Tensor, np.ndarray)) for item in items):
        parts, shapes = f"[torch.as_tensor(part) for part in {name}]", {tuple(item.shape) for item in items}
        if len(shapes) == 1:
            return f"; use torch.stack({parts})"
        are_sets = {len(shape) for shape in shapes} == {2} and len({shape[1] for shape in shapes}) == 1
        numbers = f"torch.repeat_interleave(torch.tensor([len(part) for part in {name}]))"
        sets = f"; pad sets of unequal size: pad_batch(torch.cat({parts}), {numbers}) are points and their mask"
        return sets if are_sets and name == "x" else ""
    keys = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(value).__mro__]
    own = [key for key in keys if key[0] == "torch_lapeig"]  # a named tuple of ours is no tuple
    keys = own or [*keys, *[("toarray", "")] * hasattr(value, "toarray")]
    known = [key for at, kind in keys for key in (f"{at}.{kind}", at) if key in CONVERSIONS[wanted]]
    at = max(known, key=lambda key: "." in key, default="")
    is_other = own or isinstance(value, (str, type(None))) or any(not isinstance(item, PLAIN) for item in items)
    found = CONVERSIONS[wanted][at] if at else "" if is_other else _of_numbers(value, wanted)
    if name == "x" and at in ("networkx", "igraph", "toarray"):  # rows of an adjacency matrix are no points
        graph = CONVERSIONS["graph"][at]
        found = f'{f"{found} of rows of points, or " if at == "toarray" else ""}{graph}, with Precomputed("affinity")'
    if at in GRAPHS and getattr(value, "is_directed", bool)():
        found = found.replace("Laplacian(", "MagneticLaplacian(").replace("Graph.", "DirectedGraph.")
    return f"; use {found.format(name)}" if found else ""


def _of_numbers(value: Any, wanted: str) -> str:
    """Return how numbers {0} become what is wanted, or nothing for objects that are no numbers."""
    numbers = value.to_numpy() if hasattr(value, "to_numpy") else value
    way = "torch.as_tensor({0})" if numbers is value else "torch.tensor({0}.to_numpy())"
    if np.ma.is_masked(value):
        way = "torch.as_tensor({0}.astype(float).filled(numpy.nan))"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of memory that is read only
            x = torch.as_tensor(numbers)
    except (TypeError, ValueError, RuntimeError):  # words, None, another order of bytes, negative strides
        way = "torch.tensor(numpy.array({0}, float))"
        try:
            x = torch.as_tensor(np.array(numbers, float))
        except (TypeError, ValueError):
            return ""
    if wanted != "graph":
        return way
    way = ("{0}" if x is value else way) + (".to_dense()" if x.layout != torch.strided else "")
    if x.ndim == 2 and len(x) == 2 and x.dtype in (torch.int32, torch.int64):
        return f"Graph.from_edge_index({way})"
    way += "" if x.is_floating_point() else ".float()"
    if x.ndim not in (2, 3) or x.shape[-2] < 2:
        return ""
    return f"Graph.from_dense({way})" if x.shape[-1] == x.shape[-2] else f"knn_graph({way}, k) of points"


def with_advice(kind: Class) -> Class:
    """Make the constructor of a class answer arguments of other libraries by the argument to use instead."""
    construct = kind.__init__  # type: ignore[misc]
    known = inspect.signature(construct).parameters

    @functools.wraps(construct)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            own, advice = ELSEWHERE.get(name, (set(), ""))
            if own & known.keys() and name not in known:
                raise TypeError(f"{kind.__name__} has no argument {name}=: {advice}")
        construct(self, *args, **kwargs)

    kind.__init__ = checked  # type: ignore[misc]
    return kind


def are_unlabelled(labels: Any, marks: Any = (), *, minus_one: bool = True) -> NDArray[np.bool_]:
    """Return which labels of an array stand for none: None, NaN, pandas' NA, −1 as number or word, and ``marks``."""
    words = {*map(str, [marks] if isinstance(marks, str) else marks), *(("-1", "-1.0") if minus_one else ())}
    missing = words | {"None", "nan", "NaN", "NaT", "<NA>"}  # as objects; words may be the names of classes
    is_none = np.vectorize(lambda one: str(one) in (words if isinstance(one, str) else missing), otypes=[bool])
    return is_none(np.asarray(labels, dtype=object))  # type: ignore[no-any-return]


def check_tensor(value: Any, name: str) -> None:
    """Raise TypeError unless ``value`` is a dense tensor that holds data."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {describe(value)}{way_out(value, name)}")
    if value.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got a nested one{way_out(value, name)}")
    if value.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {value.layout}; use {name}.to_dense()")
    if value.is_quantized:
        raise TypeError(f"{name} must be a tensor of numbers, got {value.dtype}; use {name}.dequantize()")
    if value.is_meta:
        raise TypeError(f"{name} must hold data, got a tensor on the device meta; make it on 'cpu' or 'cuda'")
    if functorch.is_functorch_wrapped_tensor(value) and _is_of_vmap(value):
        raise TypeError(f"{name} must be a plain tensor, got one inside torch.vmap; pass a batch (B, N, ...) instead")


def _is_of_vmap(value: Tensor) -> bool:
    return functorch.is_functorch_wrapped_tensor(value) and (
        functorch.is_batchedtensor(value) or _is_of_vmap(functorch.get_unwrapped(value))
    )


def is_inside_func() -> bool:
    """Return whether a transform of `torch.func` runs."""
    return functorch.peek_interpreter_stack() is not None


def check_outside_func(value: Tensor, name: str) -> None:
    """Raise TypeError inside a transform of `torch.func`, which wraps each result: code outside torch reads numbers."""
    if functorch.peek_interpreter_stack() is not None:
        raise TypeError(
            f"{name} must be a plain tensor, got one inside a transform of torch.func, whose numbers code outside "
            "torch cannot read; use torch.autograd (grad, functional.hessian, forward_ad), or compute before the "
            "transform what does not depend on its argument"
        )


def is_watched() -> bool:
    """Return whether a mode of torch, or a transform of torch.func, watches the operations of this thread."""
    return is_in_torch_dispatch_mode() or functorch.peek_interpreter_stack() is not None


def check_floating(value: Any, name: str) -> None:
    """Raise TypeError unless ``value`` is a dense float32 or float64 tensor."""
    is_dense = isinstance(value, Tensor) and value.layout is torch.strided and not (value.is_meta or value.is_nested)
    if is_dense and value.dtype in FLOATS and not functorch.is_functorch_wrapped_tensor(value):
        return
    check_tensor(value, name)
    if value.dtype not in FLOATS:
        # Of rows, both parts as columns keep distances, norms and sums of squares.
        are_rows = value.ndim > 1 and value.shape[-1] != value.shape[-2]
        real = f"torch.view_as_real({name}).flatten(-2)" if are_rows else f"{name}.abs()"
        way_out = f"take real numbers, such as {real}" if value.is_complex() else f"use {name}.float()"
        raise TypeError(f"{name} must be float32 or float64, got {value.dtype}; {way_out}")


def check_indices(value: Any, name: str, below: int | None = None, least: int = 0) -> None:
    """Raise unless ``value`` is an int64 tensor; with ``below``, of numbers from ``least`` to ``below`` − 1."""
    check_tensor(value, name)
    if value.dtype != torch.int64:
        way_out = f"{name}.nonzero().flatten()" if value.dtype == torch.bool else f"{name}.long()"
        raise TypeError(f"{name} must be an int64 tensor, got {value.dtype}; use {way_out}")
    if below is not None and value.numel():
        low, high = map(int, value.aminmax())
        if low < least or high >= below:
            raise ValueError(f"{name} must lie in [{least}, {below}), got {low} to {high}")


def check_same_device(value: Tensor, name: str, other: Tensor, others: str) -> None:
    """Raise ValueError unless a tensor is on the device of another tensor; ``others`` is the name of the latter."""
    if (here := value.device) != (there := other.device):
        raise ValueError(f"{name} must be on {there} like {others}, got {here}; use {name}.to('{there}')")


def check_distinct(value: Tensor, name: str, way_out: str) -> None:
    """Raise ValueError if a number occurs twice in indices ``(M,)``."""
    if value.ndim != 1:
        raise ValueError(f"{name} must be of shape (M,), got {tuple(value.shape)}")
    ascending = value.sort().values
    if (twice := ascending[1:] == ascending[:-1]).any():
        raise ValueError(f"{name} must be distinct, got {int(ascending[1:][twice][0])} twice; use {way_out}")


def half_to_float32(value: Any) -> Any:
    """Return a tensor of half precision in float32, and any other ``value`` unchanged."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALVES else value


def check_finite(value: Tensor, name: str, advice: str = "drop or impute them") -> None:
    """Raise ValueError if ``value`` has a NaN or an infinity; on an accelerator at the next synchronisation."""
    if known_size(value) is not None:
        return
    total = value.detach().sum()
    if total.device.type != "cpu":
        check_at_next_sync(~total.isfinite(), functools.partial(_refuse_infinite, value, name, advice))
    elif not cmath.isfinite(total.item()):
        _refuse_infinite(value, name, advice)


def _refuse_infinite(value: Tensor, name: str, advice: str = "drop or impute them") -> None:
    if len(bad := (~torch.isfinite(value)).nonzero()):  # the sum of finite entries may overflow
        got = f"{len(bad)} NaN or Inf of {value.numel()} entries (first at {tuple(bad[0].tolist())}); {advice}"
        raise ValueError(f"{name} must be finite, got {got}")


def largest(value: Tensor) -> Tensor:
    """Return the largest absolute value ``()`` of an entry, 0 for an empty tensor and NaN if an entry is NaN."""
    low, high = value.detach().aminmax() if value.numel() else (value.new_zeros(()),) * 2
    return torch.maximum(-low, high)


def check_non_negative(value: Tensor, name: str, slack: float | Tensor = 0.0) -> None:
    """Raise ValueError if ``value`` has an entry below zero by more than ``slack``."""
    if (value < -slack).any():
        raise ValueError(f"{name} must be non-negative, got a minimum of {value.detach().min():.3g}")


def check_symmetric(value: Tensor, reverse: Tensor, name: str, slack: float | Tensor = 0.0) -> None:
    """Raise ValueError if entries differ from their mirror images by more than their own round-off and ``slack``."""
    if torch.equal(primal(value), primal(reverse)):  # a third of the time of a difference
        return
    numbers, difference = torch.finfo(value.dtype), torch.sub(primal(value), primal(reverse)).abs()
    if not (difference > slack).any():
        return
    if (difference > (1e-5 if numbers.bits == 32 else 1e-12) * value.detach().abs() + numbers.tiny + slack).any():
        kind, way = ("Hermitian", ".mH") if value.is_complex() else ("symmetric", ".mT")
        mean = f"(A + A{way}) / 2"
        if value.ndim == 1:  # of a sparse matrix, or of edges
            mean = "(A + A.T.conj()) / 2 of a SciPy or COO matrix"
        if name == "edge_weight":
            mean = "DirectedGraph.from_edge_index(edge_index, edge_weight).affinities()"
        raise ValueError(
            f"{name} must be {kind}, got entries that differ from their mirror images by up to {difference.max():.3g}; "
            f"average two measurements of a number, {mean}; add the other triangle, less the diagonal, if "
            'one is stored; for a Markov matrix D⁻¹ W take Laplacian(Graph.from_dense(W), "random_walk")'
        )


def check_symmetric_matrix(value: Tensor, reverse: Tensor, name: str, pattern: Any = None) -> None:
    """Raise ValueError if values on a pattern differ from their mirror images by more than round-off explains."""
    size, eps = primal(value).abs(), torch.finfo(value.dtype).eps
    if torch.equal(primal(value), primal(reverse)):
        return

    def peaks(x: Tensor) -> Tensor:
        if x.ndim > 1:
            return x.amax(-1)
        return x.new_zeros(pattern.total).scatter_reduce(0, pattern.row.long(), x, "amax").reshape(pattern.shape)

    own, most = peaks(pattern.without_loops(size)), peaks(size).amax(-1, keepdim=True)
    # Cancellation leaves the larger part beside the largest entry of the two rows off the diagonal.
    scale = 10 * eps**0.5 * own + 10 * eps * most
    check_symmetric(value, reverse, name, torch.maximum(pattern.at_row(scale), pattern.at_col(scale)))


def check_points(
    x: Any, name: str = "x", *, mask: Any = None, batched: bool = True, min_points: int = 2, is_squared: bool = False
) -> Tensor:
    """Return finite points ``(N, D)``, or ``(B, N, D)`` if ``batched``, with 0 at padding, which may hold anything."""
    # Items of a batch may hold one point. With `is_squared`, squared distances, and sums of several of them, must be
    # finite too.
    check_floating(x, name)
    if mask is not None:
        check_mask(mask, x)
        x = torch.where(mask[..., None], x, 0)
    min_points = min(min_points, 1) if x.ndim == 3 else min_points
    if x.ndim not in ((2, 3) if batched else (2,)):
        raise ValueError(f"{name} must have shape (N, D){' or (B, N, D)' * batched}, got {tuple(x.shape)}")
    if x.shape[-2] < min_points or x.shape[-1] < 1 or x.shape[0] < min(1, min_points):
        raise ValueError(f"{name} must hold at least {min_points} points of dimension ≥ 1, got {tuple(x.shape)}")
    points: Tensor = x
    known, most = known_size(x), torch.finfo(x.dtype).max
    size = keep_size(x, largest(x)) if known is None else known
    most = math.sqrt(most / (64 * x.shape[-1])) if is_squared else most

    def refuse() -> None:
        _refuse_infinite(x, name)
        raise ValueError(f"{name} must be at most {most:.1e} for squares in {x.dtype}, got {size:.1e}; rescale it")

    check_at_next_sync(~(size <= most), refuse)
    return points


def check_mask(mask: Any, x: Tensor, name: str = "mask") -> None:
    """Raise unless ``mask`` is a boolean tensor of the shape of ``x`` without its last axis."""
    check_tensor(mask, name)
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} must be a boolean tensor, got {mask.dtype}; use {name}.bool()")
    if mask.shape != x.shape[:-1]:
        raise ValueError(f"{name} must have shape {tuple(x.shape[:-1])} to go with the points, got {tuple(mask.shape)}")


def check_flag(value: Any, name: str) -> bool:
    """Return the flag as Python's bool; raise TypeError for anything else, such as the string "no"."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {describe(value)}")
    return bool(value)


def check_count(value: Any, name: str, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
    """Return the integer from ``minimum`` to ``maximum`` as Python's int; raise for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {describe(value)}")
    if not minimum <= value <= maximum:
        bound = f"at least {minimum}" if value < minimum else f"at most {maximum}"
        raise ValueError(f"{name} must be {bound}, got {describe(int(value))}")
    return int(value)


def check_classes(labels: Tensor, name: str = "labels") -> int:
    """Return the number of classes or clusters of labels 0, 1, …; raise ValueError for other numbers."""
    if (largest := int(labels.max()) if labels.numel() else -1) >= LARGEST_WIDTH:
        advice = f"{name}[{name} >= 0] = {name}[{name} >= 0].unique(return_inverse=True)[1] numbers those in use"
        raise ValueError(f"{name} must be counted from 0 and smaller than {LARGEST_WIDTH}, got {largest}; {advice}")
    return largest + 1


# Columns of an answer, classes or clusters; seeds that every random generator takes.
check_width = functools.partial(check_count, maximum=LARGEST_WIDTH)
check_seed = functools.partial(check_count, name="seed", minimum=0, maximum=2**32 - 1)


def check_number(
    value: Any, name: str, low: float = -math.inf, high: float = math.inf, *, is_positive: bool = False
) -> float:
    """Return the finite number from ``low`` to ``high`` as Python's number; raise for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number, got {describe(value)}")
    number = value.item() if isinstance(value, np.generic) else value
    if not (abs(number) <= sys.float_info.max and low <= number <= high) or (is_positive and number <= 0):
        least = f"a finite number of at least {low:g}" if low > -math.inf else "a finite number"
        expected = f"a number in [{low:g}, {high:g}]" if high < math.inf else least
        raise ValueError(f"{name} must be {'positive and finite' if is_positive else expected}, got {describe(number)}")
    is_beyond_int64 = isinstance(number, int) and number.bit_length() > 63  # which torch does not take
    return float(number) if is_beyond_int64 else number


check_positive = functools.partial(check_number, is_positive=True)


def check_choice(value: Any, name: str, choices: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of the strings ``choices``."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {describe(value)}")


def check_function(value: Any, name: str, expected: str) -> None:
    """Raise TypeError unless ``value`` is callable and not a class; ``expected`` says which function is meant."""
    if isinstance(value, type) or not callable(value):
        raise TypeError(f"{name} must be {expected}, got {describe(value)}")


def check_dtype(dtype: Any, name: str) -> None:
    """Raise TypeError unless ``dtype`` is float32 or float64."""
    if dtype not in FLOATS:
        raise TypeError(f"{name} must be torch.float32 or torch.float64, got {dtype!r}")


def check_generator(generator: Any) -> None:
    """Raise TypeError unless ``generator`` is None or a generator of random numbers."""
    expected = "a torch.Generator or None, such as torch.Generator().manual_seed(0)"
    check_instance(generator, "generator", (torch.Generator, type(None)), expected)


def set_frozen(options: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass to the values that their checks returned."""
    for name, value in values.items():
        object.__setattr__(options, name, value)


def is_dual(*tensors: Tensor | None) -> bool:
    """Return whether one of the tensors carries a tangent of forward-mode derivatives."""
    if forward_ad._current_level < 0:  # torch asks for it in each of its functions
        return False
    for x in tensors:  # noqa: SIM110  a generator takes three times as long
        if x is not None and forward_ad.unpack_dual(x).tangent is not None:
            return True
    return False


def needs_derivatives(*tensors: Tensor | None) -> bool:
    """Return whether derivatives of either mode are asked for in one of the tensors."""
    is_recorded = torch.is_grad_enabled()
    for x in tensors:
        if is_recorded and x is not None and x.requires_grad:
            return True
    return is_dual(*tensors)


def primal(value: Tensor) -> Tensor:
    """Return the tensor without gradients of either mode: ``detach`` keeps the tangent of forward mode."""
    bare: Tensor = value if forward_ad._current_level < 0 else forward_ad.unpack_dual(value).primal
    return bare.detach()


def facts_of_rows(**tensors: Any) -> dict[str, Any]:
    """Return on what ranks must agree: dtypes and sizes of rows, the gradient mode, tensors with derivatives."""
    on, given = torch.is_grad_enabled(), {name: x for name, x in tensors.items() if isinstance(x, Tensor)}
    asked = [name for name, x in given.items() if needs_derivatives(x)]
    facts = {"gradient mode": "enabled" if on else "disabled", "derivatives": f"to {', '.join(asked) or 'nothing'}"}
    return facts | {f"a row of {name}": f"{tuple(x.shape[1:])} of {x.dtype}" for name, x in given.items()}


def is_plain_host(x: Tensor) -> bool:
    """Return whether NumPy may read the memory of a tensor and no mode of torch watches it."""
    is_own = type(x) is Tensor and x.device.type == "cpu" and not x.is_neg()
    return is_own and functorch.peek_interpreter_stack() is None


def power_of_two(value: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Return the power of two next to the largest magnitude along the axes, which stay with length 1; 1 for zeros."""
    # A quotient by it keeps all bits, and its squares do not overflow.
    return next_power(primal(value).abs().amax(dim, keepdim=True))


def next_power(magnitude: Tensor) -> Tensor:
    """Return the powers of two above magnitudes, without gradients; 1 for zeros."""
    magnitude = magnitude.detach()
    power = magnitude / torch.frexp(magnitude).mantissa  # exact; `torch.ldexp` overflows in float64 before torch 2.5
    return torch.where(power.isnan(), 1, power)


def are_near_one(powers: Tensor) -> Tensor:
    """Return which powers of two are so near 1 that squares of what they measure stay in the range of the dtype."""
    return (powers >= 2.0**-20) & (powers <= 2.0**20)


def finite_gradient(value: Tensor) -> Tensor:
    """Return ``value``; a gradient to it that overflows is made finite, with a `DegeneracyWarning`; NaN stays NaN."""
    if not (torch.is_grad_enabled() and value.requires_grad):
        return value
    same = value.view_as(value)
    same.register_hook(_made_finite)
    return same


def _made_finite(gradient: Tensor | None) -> Tensor | None:
    # Nothing flows back; or many gradients at once, whose numbers no branch can read.
    if gradient is None or (functorch.is_functorch_wrapped_tensor(gradient) and _is_of_vmap(gradient)):
        return gradient
    if torch.isfinite(gradient.detach().sum()) or not gradient.isinf().any():
        return finite_gradient(gradient) if gradient.requires_grad else gradient
    largest, count = torch.finfo(gradient.dtype).max, int(gradient.isinf().sum())
    finding = f"{count} of {gradient.numel()} entries of a gradient are too large for {gradient.dtype}"
    way = "" if largest > 1e300 else "float64, "
    way += 'a larger bandwidth, larger weights, or smaller outputs (scale="unit")'
    warn(f"{finding} and replaced by its largest number; use {way}", DegeneracyWarning)
    return gradient.clamp(-largest, largest)
