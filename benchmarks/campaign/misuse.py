"""Misuse of the public interface: what must end in a clear error, and what is rightly accepted.

An error is clear where it is a TypeError or ValueError (or another kind, where a probe says so) whose message names the
argument and what arrived. `run` counts; `python -m benchmarks.campaign.misuse` prints the counts and every failure.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import types
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from torch import nn

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


def misuse() -> Iterator[tuple[str, Callable[[], object], Expectation]]:
    """Every probe: its name, a call without arguments, and what is expected of it."""
    for section in (options, arguments_of_points, masks, graphs_for_others, making_graphs, changing_graphs, objects):
        yield from section()
    for section in (assignments, kernels, solving, encodings, of_estimators, fitted, callbacks, recorded):
        yield from section()


def run() -> dict[str, Any]:
    """Counts of the outcomes, and the failures as lines of text."""
    counts: dict[str, Any] = {"clear": 0, "unclear": 0, "accepted wrongly": 0, "accepted rightly": 0}
    counts["failures"] = []
    for name, call, expectation in misuse():
        outcome, said = outcome_of(call, expectation)
        counts[outcome] += 1
        if outcome in ("unclear", "accepted wrongly"):
            counts["failures"].append(f"{name}: {outcome}: {said}")
    return counts


def outcome_of(call: Callable[[], object], expectation: Expectation) -> tuple[str, str]:
    """One of the four outcomes, and what was said. A refusal of what is to be accepted is unclear."""
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
    """What a message says of a value of the wrong kind: itself if it is short, else its type."""
    if isinstance(value, type):
        return value.__name__
    return repr(value) if isinstance(value, (str, int, float, complex, type(None))) else type(value).__name__


X = torch.rand(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
GRAPH = lapeig.knn_graph(X, 4)
DENSE = lapeig.Graph.from_dense(GRAPH.to_dense())
LAPLACIAN = lapeig.Laplacian(GRAPH)
MASK = torch.ones(12, dtype=torch.bool)
LABELS = torch.arange(12) % 2
SOFT = torch.nn.functional.one_hot(LABELS).double()
PAIR = torch.tensor([[0, 1], [1, 0]])
AFFINITY = GRAPH.to_dense()
KERNEL = X @ X.mT
STRONG = GRAPH.weight * torch.linspace(1, 2, len(GRAPH.weight), dtype=torch.float64)  # differs between directions


# Options -------------------------------------------------------------------------------------------------------------


def _made(name: str, argument: str) -> Callable[[Any], object]:
    """A class made with one option."""
    needed = (2,) if name == "SpectralClustering" and argument != "n_clusters" else ()
    needed = (3,) if name == "AddLaplacianPE" and argument != "k" else needed
    return lambda value: getattr(lapeig, name)(*needed, **{argument: value})


def _solved(argument: str) -> Callable[[Any], object]:
    """`eigenpairs` with one option."""
    return lambda value: lapeig.eigenpairs(LAPLACIAN, 2, **{argument: value})


def _encoded(argument: str) -> Callable[[Any], object]:
    """`laplacian_positional_encoding` with one option."""
    return lambda value: lapeig.laplacian_positional_encoding(PAIR, 2, **{"k": 1, argument: value})


def _estimated(name: str, argument: str, **others: Any) -> Callable[[Any], object]:
    """A scikit-learn estimator made with one option, and fitted: there they are checked."""
    return lambda value: getattr(estimators, name)(**others, **{argument: value}).fit(X.numpy())


NONE = torch.zeros(2, 0, dtype=torch.int64)  # no edges
# Counts: the argument, its least value, the call.
COUNTS: dict[str, tuple[str, int, Callable[[Any], object]]] = {
    f"{name}, {argument}": (argument, least, _made(name, argument))
    for name, argument, least in (
        ("KNN", "k", 1),
        ("SelfTuning", "m", 1),
        ("LaplacianEigenmaps", "n_components", 1),
        ("SpectralClustering", "n_clusters", 1),
        ("MDS", "n_components", 1),
        ("Isomap", "n_components", 1),
        ("Isomap", "landmarks", 2),
        ("LLE", "n_components", 1),
        ("LLE", "n_neighbors", 1),
        ("KernelPCA", "n_components", 1),
        ("KernelPCA", "degree", 1),
        ("Whitening", "n_components", 1),
        ("AddLaplacianPE", "k", 1),
        ("ChebyshevSubspace", "guards", 1),
        ("ChebyshevSubspace", "max_iterations", 0),
        ("ChebyshevSubspace", "max_degree", 1),
        ("Lobpcg", "guards", 1),
        ("Lobpcg", "max_iterations", 0),
        ("Lobpcg", "patience", 1),
        ("Lanczos", "basis", 3),
        ("Lanczos", "max_products", 0),
        ("TorchLobpcg", "max_iterations", 0),
        ("SmoothedAggregation", "coarsest", 1),
        ("SmoothedAggregation", "smoothing", 1),
    )
} | {
    "knn_graph": ("k", 1, partial(lapeig.knn_graph, X)),
    "nearest_neighbors": ("k", 1, partial(lapeig.nearest_neighbors, X)),
    "nearest_neighbors, budget": ("budget", 1, lambda v: lapeig.nearest_neighbors(X, 3, budget=v)),
    "radius_neighbors, budget": ("budget", 1, lambda v: lapeig.radius_neighbors(X, 1.0, budget=v)),
    "eigenpairs": ("k", 1, partial(lapeig.eigenpairs, LAPLACIAN)),
    "component_eigenpairs": ("k", 1, partial(lapeig.component_eigenpairs, GRAPH)),
    "laplacian_positional_encoding": ("k", 1, _encoded("k")),
    "laplacian_positional_encoding, nodes": (
        "nodes",
        0,
        lambda v: lapeig.laplacian_positional_encoding(NONE, v, 2),
    ),
    "from_edge_index, nodes": ("num_nodes", 0, lambda v: lapeig.Graph.from_edge_index(NONE, num_nodes=v)),
    "from_edge_index, graphs": (
        "num_graphs",
        1,
        lambda v: lapeig.Graph.from_edge_index(PAIR, batch=torch.tensor([0, 0]), num_graphs=v),
    ),
    "SpectralEmbedding": ("n_components", 1, _estimated("SpectralEmbedding", "n_components")),
    "SpectralEmbedding, neighbours": ("n_neighbors", 1, _estimated("SpectralEmbedding", "n_neighbors")),
    "ClassicalMDS": ("n_components", 1, _estimated("ClassicalMDS", "n_components")),
    "LocallyLinearEmbedding": ("n_neighbors", 1, _estimated("LocallyLinearEmbedding", "n_neighbors")),
    "KernelPCA estimator": ("degree", 1, _estimated("KernelPCA", "degree", kernel="poly")),
    "SpectralClustering estimator": ("n_clusters", 1, _estimated("SpectralClustering", "n_clusters")),
}
DEFAULT_NONE = (
    "guards",
    "basis",
    "landmarks",
    "n_neighbors",
    "num_nodes",
    "num_graphs",
    "budget",
)  # None is the default

SEEDED = (
    "SpectralClustering",
    "Isomap",
    "ChebyshevSubspace",
    "Lobpcg",
    "Lanczos",
    "TorchLobpcg",
    "SmoothedAggregation",
)

# Numbers: the argument, the call, its range and whether 0, its lower end, belongs to it.
OPEN, CLOSED, UNIT, REAL = (0, math.inf, False), (0, math.inf, True), (0, 1, True), (-math.inf, math.inf, True)
NUMBERS: dict[str, tuple[str, Callable[[Any], object], tuple[float, float, bool]]] = {
    "Radius": ("radius", _made("Radius", "radius"), OPEN),
    "radius_graph": ("radius", partial(lapeig.radius_graph, X), OPEN),
    "radius_neighbors": ("radius", partial(lapeig.radius_neighbors, X), OPEN),
    "HeatKernel": ("t", _made("HeatKernel", "t"), OPEN),
    "ImprovedWeights": ("t", _made("ImprovedWeights", "t"), OPEN),
    "DensityCorrected": ("alpha", _made("DensityCorrected", "alpha"), UNIT),
    "LaplacianEigenmaps": ("diffusion", _made("LaplacianEigenmaps", "diffusion"), CLOSED),
    "LLE": ("reg", _made("LLE", "reg"), OPEN),
    "KernelPCA, gamma": ("gamma", _made("KernelPCA", "gamma"), OPEN),
    "KernelPCA, coef0": ("coef0", _made("KernelPCA", "coef0"), REAL),
    "eigenpairs": ("tolerance", _solved("tolerance"), OPEN),
    "eigenpairs, backward": ("backward_tolerance", _solved("backward_tolerance"), OPEN),
    "eigenpairs, width": ("cluster_width", _solved("cluster_width"), OPEN),
    "Lanczos": ("crowded", _made("Lanczos", "crowded"), CLOSED),
    "SparseLU": ("shift", _made("SparseLU", "shift"), OPEN),
    "SmoothedAggregation": ("max_complexity", _made("SmoothedAggregation", "max_complexity"), OPEN),
    "SpectralClustering estimator": ("gamma", _estimated("SpectralClustering", "gamma", n_clusters=2), CLOSED),
    "LocallyLinearEmbedding": ("reg", _estimated("LocallyLinearEmbedding", "reg"), OPEN),
    "Isomap estimator": ("radius", _estimated("Isomap", "radius", n_components=1), OPEN),
}
NONE_OR_NUMBER = (
    "KernelPCA, gamma",
    "eigenpairs",
    "eigenpairs, backward",
    "eigenpairs, width",
    "SpectralClustering estimator",
    "Isomap estimator",
)

FLAGS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "LaplacianEigenmaps, trivial": ("drop_trivial", _made("LaplacianEigenmaps", "drop_trivial")),
    "LaplacianEigenmaps, signs": ("random_signs", _made("LaplacianEigenmaps", "random_signs")),
    "HeatKernel": ("learnable", _made("HeatKernel", "learnable")),
    "ImprovedWeights": ("learnable", _made("ImprovedWeights", "learnable")),
    "AddLaplacianPE": ("random_signs", _made("AddLaplacianPE", "random_signs")),
    "SmoothedAggregation": ("single", _made("SmoothedAggregation", "single")),
    "knn_graph": ("self_loops", lambda v: lapeig.knn_graph(X, 3, self_loops=v)),
    "radius_graph": ("self_loops", lambda v: lapeig.radius_graph(X, 1.0, self_loops=v)),
    "eigenpairs": ("fill", _solved("fill")),
    "laplacian_positional_encoding": ("random_signs", _encoded("random_signs")),
    "SymmetricOperator": (
        "constant_null",
        lambda v: lapeig.SymmetricOperator(GRAPH.pattern, GRAPH.weight, LAPLACIAN.degrees, constant_null=v),
    ),
}

CHOICES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "KNN, symmetrize": ("symmetrize", _made("KNN", "symmetrize")),
    "KNN, metric": ("metric", _made("KNN", "metric")),
    "KNN, backend": ("backend", _made("KNN", "backend")),
    "Radius": ("metric", lambda v: lapeig.Radius(1.0, v)),
    "knn_graph": ("symmetrize", lambda v: lapeig.knn_graph(X, 3, symmetrize=v)),
    "radius_graph": ("metric", lambda v: lapeig.radius_graph(X, 1.0, metric=v)),
    "nearest_neighbors": ("backend", lambda v: lapeig.nearest_neighbors(X, 3, backend=v)),
    "radius_neighbors": ("metric", lambda v: lapeig.radius_neighbors(X, 1.0, metric=v)),
    "LaplacianEigenmaps, normalization": ("normalization", _made("LaplacianEigenmaps", "normalization")),
    "LaplacianEigenmaps, scale": ("scale", _made("LaplacianEigenmaps", "scale")),
    "LaplacianEigenmaps, components": ("components", _made("LaplacianEigenmaps", "components")),
    "SpectralClustering": ("variant", _made("SpectralClustering", "variant")),
    "MDS": ("metric", _made("MDS", "metric")),
    "Laplacian": ("normalization", partial(lapeig.Laplacian, GRAPH)),
    "component_eigenpairs": ("normalization", partial(lapeig.component_eigenpairs, GRAPH, 2)),
    "eigenpairs, degeneracy": ("degeneracy", _solved("degeneracy")),
    "eigenpairs, failure": ("on_failure", _solved("on_failure")),
    "AddLaplacianPE": ("normalization", _made("AddLaplacianPE", "normalization")),
    "laplacian_positional_encoding": ("normalization", _encoded("normalization")),
    "laplacian_smoothness": ("reduction", partial(lapeig.laplacian_smoothness, X, GRAPH)),
    "LaplacianSmoothness": ("reduction", _made("LaplacianSmoothness", "reduction")),
    "SpectralEmbedding": ("affinity", _estimated("SpectralEmbedding", "affinity")),
    "ClassicalMDS": ("metric", _estimated("ClassicalMDS", "metric")),
}


def options() -> Iterator[Probe]:
    """Counts, seeds, numbers, flags and words of every constructor and function."""
    for name, (argument, least, make) in COUNTS.items():
        bad: list[Any] = [least - 1, -5, 2.5, math.nan, True, "3", [3], np.float64(3.0), np.bool_(True)]
        yield from _refused(name, make, argument, bad + [None] * (argument not in DEFAULT_NONE))
    for name in SEEDED:
        make = _made(name, "seed")
        yield from _refused(name, make, "seed", [-1, 2**32, 1.0, math.nan, True, "zero", None, [0]])
        yield f"{name}: seed=np.int64(3)", partial(make, np.int64(3)), Accepted("an integer of NumPy is one")
    for name, (argument, make, (low, high, closed)) in NUMBERS.items():
        bad = [math.nan, math.inf, -math.inf, "1", True, [1.0], 1j, np.float32("nan"), torch.ones(3, 3)]
        bad += [None] * (name not in NONE_OR_NUMBER) + [high + 0.5] * (high < math.inf)
        bad += [low - 1.0] * (low > -math.inf) + [low] * (not closed)
        yield from _refused(name, make, argument, bad)
        for value in (np.float32(0.75), np.float64(0.75), np.int64(1), 1):
            yield (
                f"{name}: {argument}={type(value).__name__}({value})",
                partial(make, value),
                Accepted("a number of NumPy, or an int, is one"),
            )
    for name, (argument, make) in FLAGS.items():
        yield from _refused(name, make, argument, ["no", "False", "", 0, 1, None, [], 0.0])
        yield f"{name}: {argument}=np.True_", partial(make, np.bool_(True)), Accepted("NumPy's bool is one")
    for name, (argument, make) in CHOICES.items():
        yield from _refused(name, make, argument, ["x", "", "Exact", None, 3, True, ["mean"], X])
    for integer in (np.int64(3), np.int32(3), np.uint8(3)):
        called = f"{type(integer).__name__}({integer})"
        yield f"KNN: k={called}", partial(_equal, lapeig.KNN(integer), lapeig.KNN(3)), Accepted("integers of NumPy")
        for name in ("LaplacianEigenmaps", "MDS", "LLE", "KernelPCA"):
            pair = getattr(lapeig, name)(integer), getattr(lapeig, name)(3)
            yield f"{name}: {called}", partial(_same_result, *pair), Accepted("integers of NumPy are counts")


def _refused(name: str, make: Callable[[Any], object], argument: str, values: list[Any]) -> Iterator[Probe]:
    for value in values:
        several = isinstance(value, (np.generic, torch.Tensor))
        called = type(value).__name__ if several else repr(value)
        yield f"{name}: {argument}={called}", partial(make, value), Clear((argument, "" if several else shown(value)))


def _equal(a: object, b: object) -> None:
    if a != b:
        raise AssertionError(f"{a} is not {b}")


def _same_result(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    _same(one(X), other(X))


def _same_dtype(layer: Callable[..., Any], dtype: torch.dtype) -> None:
    _equal(layer(X.to(dtype)).dtype, dtype)


def _same_affinity(graph: Any, method: str, argument: torch.Tensor, affinity: torch.Tensor) -> None:
    _same(getattr(graph, method)(argument).to_dense(), affinity)


def _called(make: Callable[[], Any], method: str, argument: Any) -> object:
    return getattr(make(), method)(argument)


def _same(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b)


# Points --------------------------------------------------------------------------------------------------------------

OF_POINTS: dict[str, Callable[[Any], object]] = {
    "knn_graph": lambda x: lapeig.knn_graph(x, 4),
    "radius_graph": lambda x: lapeig.radius_graph(x, 1.0),
    "KNN": lapeig.KNN(4),
    "Radius": lapeig.Radius(1.0),
    "nearest_neighbors": lambda x: lapeig.nearest_neighbors(x, 4),
    "radius_neighbors": lambda x: lapeig.radius_neighbors(x, 1.0),
    "HeatKernel": lambda x: lapeig.HeatKernel()(x, GRAPH),
    "SelfTuning": lambda x: lapeig.SelfTuning(2)(x, GRAPH),
    "KernelWeights": lambda x: lapeig.KernelWeights(torch.exp)(x, GRAPH),
    "DensityCorrected": lambda x: lapeig.DensityCorrected()(x, GRAPH),
    "ImprovedWeights": lambda x: lapeig.ImprovedWeights()(x, GRAPH),
    "LaplacianEigenmaps": lapeig.LaplacianEigenmaps(2, lapeig.KNN(4)),
    "LaplacianEigenmaps.fit": lambda x: lapeig.LaplacianEigenmaps(2, lapeig.KNN(4)).fit(x),
    "LaplacianEigenmaps.transform": lapeig.LaplacianEigenmaps(2, lapeig.KNN(4)).fit(X).transform,
    "LaplacianEigenmaps.out_of_sample": lambda x: lapeig.LaplacianEigenmaps(2, lapeig.KNN(4)).out_of_sample(X, x),
    "SpectralClustering": lapeig.SpectralClustering(2, lapeig.KNN(4)),
    "SpectralClustering.fit": lambda x: lapeig.SpectralClustering(2, lapeig.KNN(4)).fit(x),
    "SpectralClustering.predict": lapeig.SpectralClustering(2, lapeig.KNN(4)).fit(X).predict,
    "MDS": lapeig.MDS(2),
    "MDS.fit": lambda x: lapeig.MDS(2).fit(x),
    "MDS.transform": lapeig.MDS(2).fit(X).transform,
    "Isomap": lapeig.Isomap(2, lapeig.KNN(6)),
    "LLE": lapeig.LLE(2, 4),
    "LLE.transform": lapeig.LLE(2, 4).fit(X).transform,
    "KernelPCA": lapeig.KernelPCA(2),
    "LaplacianSmoothness": lambda x: lapeig.LaplacianSmoothness(lapeig.KNN(4))(X, x),
    "SpectralLoss": lambda x: lapeig.SpectralLoss(lapeig.KNN(4))(X, x),
}
OF_COLUMNS: dict[str, Callable[[Any], object]] = {
    "laplacian_smoothness": lambda y: lapeig.laplacian_smoothness(y, GRAPH),
    "spectral_loss": lambda y: lapeig.spectral_loss(y, GRAPH),
    "orthogonality": lapeig.orthogonality,
    "orthogonality on a graph": lambda y: lapeig.orthogonality(y, GRAPH),
    "whiten": lapeig.whiten,
    "Whitening": lapeig.Whitening(3),
    "Whitening.fit": lambda y: lapeig.Whitening(3).fit(y, GRAPH),
}
BAD_TENSORS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "list": (X.tolist(), ("list", "torch.as_tensor")),
    "array": (X.numpy(), ("ndarray", "torch.as_tensor")),
    "number": (1.0, ("float",)),
    "word": ("points", ("str",)),
    "None": (None, ("NoneType",)),
    "Laplacian": (LAPLACIAN, ("Laplacian",)),
    "complex": (X.to(torch.complex128), ("complex128", "abs()")),
    "integers": (X.long(), ("int64", ".float()")),
    "bool": (X > 0.5, ("torch.bool",)),
    "sparse": (X.to_sparse(), ("sparse_coo", "to_dense()")),
    "CSR": (csr_array(X.numpy()), ("csr_array",)),
    "meta": (X.to("meta"), ("meta",)),
}
BAD_VALUES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "NaN": (X.where(X < 0.9, math.nan), ("finite",)),
    "Inf": (X.where(X < 0.9, math.inf), ("finite",)),
    "rank 1": (X[:, 0], ("shape", "(12,)")),
    "rank 4": (X[None, None], ("shape", "(1, 1, 12, 3)")),
    "no points": (X[:0], ("(0, 3)",)),
    "no dimension": (X[:, :0], ("(12, 0)",)),
}
NO_SHAPE = ("HeatKernel", "SelfTuning", "KernelWeights", "DensityCorrected", "ImprovedWeights")


def arguments_of_points() -> Iterator[Probe]:
    """Whatever is no tensor of points, or of outputs, in their place."""
    for (name, call), (kind, (value, words)) in itertools.product(OF_POINTS.items(), BAD_TENSORS.items()):
        yield f"{name}: {kind}", partial(call, value), Clear(("x must", *words))
    for (name, call), (kind, (value, words)) in itertools.product(OF_POINTS.items(), BAD_VALUES.items()):
        if name in NO_SHAPE and kind == "no dimension":
            continue  # points without coordinates are one point, of lengths zero
        yield f"{name}: {kind}", partial(call, value), Clear(("x must", *words))
    for name, call in OF_POINTS.items():
        if name not in ("LaplacianSmoothness", "SpectralLoss"):
            yield f"{name}: a Graph", partial(call, GRAPH), Clear(("x must", "Graph"))
    for (name, call), (kind, (value, words)) in itertools.product(OF_COLUMNS.items(), BAD_TENSORS.items()):
        yield f"{name}: {kind}", partial(call, value), Clear(("y must", *words))
    for kind, (value, words) in BAD_TENSORS.items():
        call = partial(lapeig.nearest_neighbors, X, 3, value)
        if kind != "None":
            yield f"queries: {kind}", call, Clear(("queries must", *words))
        weigh = lapeig.SymmetricOperator.of_largest
        yield f"of_largest: {kind}", partial(weigh, value), Clear(("matrix must", *words))
        precomputed = lapeig.LaplacianEigenmaps(2, "precomputed")
        yield f"affinities: {kind}", partial(precomputed, value), Clear(("affinity must", *words[:1]))
    for name, call in OF_COLUMNS.items():
        rows = "(5, 3)" if "orthogonality" in name or name == "laplacian_smoothness" else "("
        if name not in ("orthogonality", "whiten", "Whitening"):
            yield f"{name}: too few rows", partial(call, X[:5]), Clear(("y must", rows))
    many = torch.nn.functional.pad(X, (0, 3))
    yield "Whitening: columns", partial(lapeig.Whitening(3), many), Clear(("y must have 3 columns", "(12, 6)"))
    yield (
        "laplacian_smoothness: NaN",
        lambda: _equal(bool(lapeig.laplacian_smoothness(X * math.nan, GRAPH).isnan()), True),
        Accepted("a loss of NaN is NaN, as of torch's own: that is loud, and gradient scalers need it"),
    )
    for half in (torch.float16, torch.bfloat16):
        yield (
            f"LaplacianEigenmaps: {half}",
            partial(_same_dtype, lapeig.LaplacianEigenmaps(2, lapeig.KNN(4)), half),
            Accepted("half precision is embedded in float32 and returned as it came"),
        )
        yield f"knn_graph: {half}", partial(lapeig.knn_graph, X.to(half), 3), Clear(("x must", str(half), ".float()"))


def masks() -> Iterator[Probe]:
    """Whatever is no mask of the points."""
    bad: dict[str, tuple[Any, tuple[str, ...]]] = {
        "list": ([True] * 12, ("list",)),
        "array": (MASK.numpy(), ("ndarray",)),
        "numbers": (MASK.float(), ("float32", ".bool()")),
        "length": (MASK[:5], ("(12,)", "(5,)")),
        "word": ("all", ("str",)),
        "flag": (True, ("bool",)),
        "meta": (MASK.to("meta"), ("meta",)),
        "sparse": (MASK.to_sparse(), ("sparse_coo",)),
    }
    calls: dict[str, Callable[[Any], object]] = {
        "knn_graph": lambda m: lapeig.knn_graph(X, 3, mask=m),
        "knn_graph of a batch": lambda m: lapeig.knn_graph(X[None], 3, mask=m[None] if hasattr(m, "ndim") else m),
        "radius_graph": lambda m: lapeig.radius_graph(X, 1.0, mask=m),
        "nearest_neighbors": lambda m: lapeig.nearest_neighbors(X, 3, mask=m),
        "radius_neighbors": lambda m: lapeig.radius_neighbors(X, 1.0, mask=m),
        "LaplacianEigenmaps": lambda m: lapeig.LaplacianEigenmaps(2, lapeig.KNN(3))(X, m),
        "precomputed": lambda m: lapeig.LaplacianEigenmaps(2, "precomputed")(AFFINITY, m),
        "SpectralClustering": lambda m: lapeig.SpectralClustering(2, lapeig.KNN(3))(X, m),
        "Graph.from_dense": lambda m: lapeig.Graph.from_dense(AFFINITY, m),
        "orthogonality": lambda m: lapeig.orthogonality(X, mask=m),
        "whiten": lambda m: lapeig.whiten(X, mask=m),
        "LaplacianSmoothness": lambda m: lapeig.LaplacianSmoothness(lapeig.KNN(3))(X, X, m),
    }
    for (name, call), (kind, (value, words)) in itertools.product(calls.items(), bad.items()):
        shapes = words if kind != "length" else ("shape",)
        yield f"{name}: mask of {kind}", partial(call, value), Clear(("mask must", *shapes))


# Graphs --------------------------------------------------------------------------------------------------------------

OF_GRAPHS: dict[str, Callable[[Any], object]] = {
    "Laplacian": lapeig.Laplacian,
    "component_eigenpairs": lambda g: lapeig.component_eigenpairs(g, 2),
    "laplacian_smoothness": lambda g: lapeig.laplacian_smoothness(X, g),
    "spectral_loss": lambda g: lapeig.spectral_loss(X, g),
    "orthogonality": lambda g: lapeig.orthogonality(X, g),
    "whiten": lambda g: lapeig.whiten(X, g),
    "Whitening.fit": lambda g: lapeig.Whitening(3).fit(X, g),
    "normalized_cut": lambda g: lapeig.normalized_cut(LABELS, g),
    "SimpleWeights": lambda g: lapeig.SimpleWeights()(X, g),
    "HeatKernel": lambda g: lapeig.HeatKernel()(X, g),
    "SelfTuning": lambda g: lapeig.SelfTuning()(X, g),
    "KernelWeights": lambda g: lapeig.KernelWeights(torch.exp)(X, g),
    "DensityCorrected": lambda g: lapeig.DensityCorrected()(X, g),
    "ImprovedWeights": lambda g: lapeig.ImprovedWeights()(X, g),
}


def graphs_for_others() -> Iterator[Probe]:
    """Something else where a graph is meant, or a graph where something else is."""
    bad: dict[str, tuple[Any, str]] = {
        "tensor": (AFFINITY, "Tensor"),
        "Laplacian": (LAPLACIAN, "graph.graph"),
        "word": ("graph", "'graph'"),
        "SciPy": (GRAPH.to_scipy(), "csr_array"),
        "rule": (lapeig.KNN(3), "KNN"),
        "class": (lapeig.Graph, "the class Graph"),
        "edges": (GRAPH.edge_index, "Tensor"),
        "None": (None, "None"),
    }
    for (name, call), (kind, (value, word)) in itertools.product(OF_GRAPHS.items(), bad.items()):
        if kind == "None" and name in ("orthogonality", "whiten"):
            yield f"{name}: no graph", partial(call, None), Accepted("without a graph every row has the same weight")
        else:
            yield f"{name}: {kind} for a graph", partial(call, value), Clear(("graph must be a Graph", word))
    for kind, value in {"graph": GRAPH, "tensor": AFFINITY, "class": lapeig.Laplacian, "None": None}.items():
        words = ("laplacian must be a Laplacian", "Laplacian(graph)", shown(value))
        yield f"eigenpairs: {kind}", partial(lapeig.eigenpairs, value, 2), Clear(words)
    for module in (lapeig.LaplacianEigenmaps(2, "precomputed"), lapeig.SpectralClustering(2, "precomputed")):
        name = type(module).__name__
        yield f"{name}: graph and mask", partial(module, GRAPH, MASK), Clear(("mask must be None", "carries its own"))
        yield f"{name}: points", partial(module, X), Clear(("affinity", "(N, N)", "(12, 3)"))
        yield f"{name}: operator", partial(module, LAPLACIAN), Clear(("affinity must be", "Laplacian"))
    short = lapeig.knn_graph(X[:6], 3)
    for name in ("HeatKernel", "SelfTuning", "DensityCorrected", "ImprovedWeights"):
        weighting = getattr(lapeig, name)()
        yield f"{name}: other points", partial(weighting, X, short), Clear(("x must have shape", "(12, 3)"))


def making_graphs() -> Iterator[Probe]:
    """Affinities, edges and matrices that are none."""
    graph = lapeig.Graph
    dense = {
        "asymmetric": (AFFINITY.triu(), ("symmetric", "(W + W.mT) / 2")),
        "negative": (-AFFINITY, ("non-negative", "-1")),
        "NaN": (AFFINITY * math.nan, ("finite", "NaN")),
        "rectangular": (AFFINITY[:5], ("(N, N)", "(5, 12)")),
        "vector": (AFFINITY[0], ("(N, N)", "(12,)")),
        "distances below zero": (X @ X.mT - 1, ("non-negative",)),
    }
    for kind, (affinity, words) in dense.items():
        yield f"from_dense: {kind}", partial(graph.from_dense, affinity), Clear(("affinity", *words))
    for kind, (value, word_list) in BAD_TENSORS.items():
        if kind != "Laplacian":
            yield f"from_dense: {kind}", partial(graph.from_dense, value), Clear(("affinity must", *word_list[:1]))
    yield from graphs_of_edges()
    yield from graphs_of_matrices()
    yield "Graph: a matrix", partial(graph, AFFINITY, AFFINITY), Clear(("pattern must be", "Tensor", "from_dense"))
    yield "Graph: shape", partial(graph, GRAPH.pattern, GRAPH.weight[:3]), Clear(("weight must have shape", "(3,)"))
    yield "Graph: integers", partial(graph, GRAPH.pattern, GRAPH.weight.long()), Clear(("weight must", "int64"))
    yield "Graph: list", partial(graph, GRAPH.pattern, GRAPH.weight.tolist()), Clear(("weight must", "list"))
    for kind, (value, word) in {"list": (X.tolist(), "list"), "vector": (X[:, 0], "(12,)")}.items():
        yield f"pad_batch: {kind}", partial(lapeig.pad_batch, value, LABELS.sort().values), Clear(("x must", word))
    batches: dict[str, tuple[Any, str]] = {
        "list": ([0] * 12, "list"),
        "order": (LABELS, "ascending"),
        "length": (LABELS[:3], "(3,)"),
        "floats": (LABELS.sort().values.float(), "float32"),
    }
    for kind, (value, word) in batches.items():
        yield f"pad_batch: batch of {kind}", partial(lapeig.pad_batch, X, value), Clear(("batch must", word))


def graphs_of_edges() -> Iterator[Probe]:
    """Edges, weights and batches that are none."""
    edges = lapeig.Graph.from_edge_index
    others: dict[str, Any] = {"list": PAIR.tolist(), "array": PAIR.numpy(), "floats": PAIR.float(), "int32": PAIR.int()}
    for kind, value in others.items():
        word = str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
        yield f"edge_index: {kind}", partial(edges, value), Clear(("edge_index must", word))
        yield f"edge_index of an encoding: {kind}", partial(_encode, value), Clear(("edge_index must", word))
        yield f"batch: {kind}", partial(edges, PAIR, batch=value[0]), Clear(("batch must",))
    yield "edge_index: meta", partial(edges, PAIR.to("meta")), Clear(("edge_index must", "meta"))
    yield "edge_index: sparse", partial(edges, PAIR.to_sparse()), Clear(("edge_index must", "sparse_coo"))
    yield "edge_index: negative", partial(edges, -PAIR), Clear(("edge_index must lie in", "-1"))
    yield "edge_index: one direction", partial(edges, PAIR[:, :1]), Clear(("edge_index", "both directions", "flip"))
    yield "edge_index: shape", partial(edges, PAIR.mT.reshape(-1)), Clear(("edge_index must have shape (2, E)", "(4,)"))
    yield "num_nodes: too few", partial(edges, PAIR, num_nodes=1), Clear(("edge_index must lie in [0, 1)", "0 to 1"))
    weights = {
        "list": ([1.0, 1.0], ("list", "as_tensor")),
        "number": (1.0, ("float",)),
        "integers": (torch.ones(2, dtype=torch.int64), ("int64", ".float()")),
        "complex": (torch.ones(2, dtype=torch.complex64), ("complex64",)),
        "length": (torch.ones(3), ("(2,)", "(3,)")),
        "asymmetric": (torch.tensor([1.0, 2.0]), ("symmetric",)),
        "negative": (-torch.ones(2), ("non-negative",)),
        "NaN": (torch.full((2,), math.nan), ("finite",)),
        "sparse": (torch.ones(2).to_sparse(), ("sparse_coo",)),
        "meta": (torch.ones(2, device="meta"), ("meta",)),
    }
    for kind, (weight, words) in weights.items():
        yield f"edge_weight: {kind}", partial(edges, PAIR, weight), Clear(("edge_weight", *words))
        yield f"edge_weight of an encoding: {kind}", partial(_encode, PAIR, weight), Clear(("edge_weight", *words))
    yield "num_graphs without batch", partial(edges, PAIR, num_graphs=2), Clear(("num_graphs needs batch", "=2"))
    batch = torch.tensor([0, 1])
    yield "num_graphs: too few", partial(edges, PAIR[:, :0], batch=batch, num_graphs=1), Clear(("num_graphs", "got 1"))
    yield "batch: between graphs", partial(edges, PAIR, batch=batch), Clear(("edge_index", "between graphs"))
    yield "batch: order", partial(edges, PAIR, batch=batch.flip(0)), Clear(("batch must be ascending",))
    yield (
        "batch: length",
        partial(edges, PAIR, num_nodes=2, batch=batch[:1]),
        Clear(("batch must have shape (2,)", "(1,)")),
    )
    yield "batch: number", partial(edges, PAIR, batch=0), Clear(("batch must", "int"))


def graphs_of_matrices() -> Iterator[Probe]:
    """SciPy's matrices that are no affinities, and dtypes that hold none."""
    graph, matrix = lapeig.Graph, csr_array(AFFINITY.numpy())
    for dtype in (torch.int64, torch.float16, torch.complex64, torch.bool, "float32", None, float, np.float32):
        call = partial(graph.from_scipy, matrix, dtype)
        yield f"from_scipy: dtype {dtype}", call, Clear(("dtype must be torch.float32 or torch.float64",))
    yield "from_scipy: complex", partial(graph.from_scipy, matrix.astype(complex)), Clear(("affinity", "complex128"))
    yield "from_scipy: array", partial(graph.from_scipy, AFFINITY.numpy()), Clear(("affinity", "SciPy", "ndarray"))
    yield "from_scipy: tensor", partial(graph.from_scipy, AFFINITY.to_sparse()), Clear(("affinity", "SciPy", "Tensor"))
    yield "from_scipy: asymmetric", partial(graph.from_scipy, coo_array(AFFINITY.triu().numpy())), Clear(("symmetric",))
    yield "from_scipy: NaN", partial(graph.from_scipy, matrix * math.nan), Clear(("affinity must be finite",))
    for kind in ("bool", "int32", "float32"):
        weight = graph.from_scipy(matrix.astype(kind)).weight
        yield f"from_scipy: {kind} matrix", partial(_same, weight, GRAPH.weight), Accepted("exact in float64")


def _encode(edge_index: Any, edge_weight: Any = None) -> object:
    return lapeig.laplacian_positional_encoding(edge_index, 2, 1, edge_weight)


def changing_graphs() -> Iterator[Probe]:
    """Weights, dtypes, devices and nodes that a graph cannot have."""
    for name, graph in {"sparse": GRAPH, "dense": DENSE}.items():
        one = graph.weight.clone()
        one.view(-1)[int((graph.weight.reshape(-1) > 0).nonzero()[0])] = 3
        weights: dict[str, tuple[Any, tuple[str, ...]]] = {
            "asymmetric": (one, ("symmetric", "average the two directions")),
            "negative": (-graph.weight, ("non-negative", "-1")),
            "NaN": (graph.weight * math.nan, ("finite",)),
            "Inf": (graph.weight / 0, ("finite",)),
            "shape": (graph.weight[:3], ("shape",)),
            "one number": (torch.tensor(1.0), ("shape", "()")),
            "number": (2.0, ("float",)),
            "list": (graph.weight.tolist(), ("list",)),
            "integers": (graph.weight.long(), ("int64",)),
            "complex": (graph.weight.to(torch.complex64), ("complex64",)),
            "half": (graph.weight.half(), ("float16",)),
            "meta": (graph.weight.to("meta"), ("meta",)),
        }
        for kind, (weight, words) in weights.items():
            yield f"with_weight, {name}: {kind}", partial(graph.with_weight, weight), Clear(("weight must", *words))
        half = partial(_same_affinity, graph, "with_weight", graph.weight / 2, AFFINITY / 2)
        yield f"with_weight, {name}: symmetric", half, Accepted("equal in both directions")
        for dtype in (torch.int64, torch.int32, torch.bool, torch.float16, torch.bfloat16, torch.complex128):
            words = ("target must be torch.float32 or torch.float64", str(dtype))
            yield f"to, {name}: {dtype}", partial(graph.to, dtype), Clear(words)
        for target in ("float32", "gpu", None, 3.0, X):
            yield f"to, {name}: {target!r:.20}", partial(graph.to, target), Clear(("target must be a device",))
        nodes: dict[str, tuple[Any, tuple[str, ...]]] = {
            "twice": (torch.tensor([0, 1, 1]), ("distinct", "got 1 more than once")),
            "negative": (torch.tensor([0, -1]), ("lie in [0, 12)", "-1 to 0")),
            "out of range": (torch.tensor([0, 12]), ("lie in [0, 12)", "0 to 12")),
            "list": ([0, 1], ("list", "as_tensor")),
            "number": (0, ("int",)),
            "array": (np.arange(3), ("ndarray",)),
            "mask": (MASK, ("int64", "bool")),
            "int32": (torch.arange(3).int(), ("int64", "int32", ".long()")),
            "floats": (torch.arange(3.0), ("int64", "float32")),
            "matrix": (torch.arange(4).reshape(2, 2), ("(M,)", "(2, 2)")),
            "none": (torch.arange(0), ("at least one",)),
            "meta": (torch.arange(3, device="meta"), ("meta",)),
        }
        for kind, (value, words) in nodes.items():
            yield f"subgraph, {name}: {kind}", partial(graph.subgraph, value), Clear(("nodes", *words))
        few = torch.tensor([3, 1])
        part = partial(_same_affinity, graph, "subgraph", few, AFFINITY[few][:, few])
        yield f"subgraph, {name}: order", part, Accepted("nodes may come in any order")
    for view in ("edge_index",):
        yield f"{view} of a dense graph", partial(getattr, DENSE, view), Clear((view, "to_sparse"))
    batch = lapeig.knn_graph(X[None], 3)
    yield "to_scipy of a batch", batch.to_scipy, Clear(("one graph", "(1, 12)"))


# Objects for options -------------------------------------------------------------------------------------------------


def objects() -> Iterator[Probe]:
    """Classes, words and functions where an object of a kind is meant."""
    yield from rules_and_weights()
    yield from solvers()
    value: Any
    for value in (0, "seed", np.random.default_rng(0), torch.Generator):
        words = ("generator must be a torch.Generator", shown(value))
        layer = lapeig.LaplacianEigenmaps(2, lapeig.KNN(3), random_signs=True)
        yield f"generator of a layer: {value!r:.20}", partial(layer, X, None, value), Clear(words)
        fixed = lapeig.LaplacianEigenmaps(2, lapeig.KNN(3))
        yield f"generator without signs: {value!r:.20}", partial(fixed, X, None, value), Clear(words)
        encode = partial(lapeig.laplacian_positional_encoding, PAIR, 2, 1, generator=value)
        yield f"generator of an encoding: {value!r:.20}", encode, Clear(words)
    for value in ("yes", 1, None, 0.5):
        words = ("progress must be", shown(value))
        yield f"progress={value!r}", partial(lapeig.eigenpairs, LAPLACIAN, 2, progress=value), Clear(words)
    for value in (X, "before", LAPLACIAN, 3):
        words = ("warm_start must be Eigenpairs", "got")
        yield f"warm_start={value!r:.20}", partial(lapeig.eigenpairs, LAPLACIAN, 2, warm_start=value), Clear(words)
    landmarks: dict[str, tuple[Any, str]] = {
        "list": ([0, 1], "list"),
        "mask": (MASK, "bool"),
        "floats": (torch.tensor([0.0, 1.0]), "float32"),
        "twice": (torch.tensor([1, 1]), "distinct"),
        "matrix": (torch.arange(4).reshape(2, 2), "(2, 2)"),
    }
    for kind, (value, word) in landmarks.items():
        yield f"landmarks: {kind}", partial(lapeig.Isomap, 1, landmarks=value), Clear(("landmarks must", word))
    for value in (torch.tensor([0, 3, 40]), torch.tensor([-1, 3, 5])):
        yield (
            f"landmarks: {value.tolist()}",
            partial(lapeig.Isomap(1, lapeig.KNN(5), landmarks=value), X),
            Clear(("landmarks must lie in [0, 12)",)),
        )
    yield (
        "weights of precomputed",
        lambda: lapeig.LaplacianEigenmaps(2, "precomputed", lapeig.HeatKernel()),
        Clear(("weights must be None",)),
    )
    yield "reach: word", partial(lapeig.radius_neighbors, X, "1"), Clear(("radius must", "'1'"))
    reaches = {"short": torch.ones(3), "negative": -torch.ones(12), "complex": torch.ones(12, dtype=torch.complex64)}
    for kind, value in {**reaches, "NaN": torch.full((12,), math.nan)}.items():
        yield f"reach: {kind}", partial(lapeig.radius_neighbors, X, value), Clear(("radius must",))


def rules_and_weights() -> Iterator[Probe]:
    """What is no rule of a graph, or no weighting."""
    bad_weights = {
        "class": lapeig.HeatKernel,
        "word": "heat",
        "number": 1.0,
        "function": torch.exp,
        "rule": lapeig.KNN(3),
    }
    takers: dict[str, Callable[[Any], object]] = {
        "DensityCorrected": lambda w: lapeig.DensityCorrected(1.0, w),
        "LaplacianEigenmaps": lambda w: lapeig.LaplacianEigenmaps(2, lapeig.KNN(3), w),
        "SpectralClustering": lambda w: lapeig.SpectralClustering(2, lapeig.KNN(3), w),
        "LaplacianSmoothness": lambda w: lapeig.LaplacianSmoothness(lapeig.KNN(3), w),
        "SpectralLoss": lambda w: lapeig.SpectralLoss(lapeig.KNN(3), w),
    }
    for (name, call), (kind, value) in itertools.product(takers.items(), bad_weights.items()):
        words = ("weights must be a Weighting such as HeatKernel()", shown(value))
        yield f"{name}: weights of {kind}", partial(call, value), Clear(words)
    takers = {
        "LaplacianEigenmaps": lambda r: lapeig.LaplacianEigenmaps(2, r),
        "SpectralClustering": lambda r: lapeig.SpectralClustering(2, r),
        "LaplacianSmoothness": lapeig.LaplacianSmoothness,
        "SpectralLoss": lapeig.SpectralLoss,
        "Isomap": lambda r: lapeig.Isomap(2, r),
    }
    for name, call in takers.items():
        for value in (5, lapeig.KNN, None, 0.5, GRAPH, lapeig.HeatKernel(), True):
            words = ("neighbors must be KNN(k)", shown(value))
            yield f"{name}: neighbors={value!r:.20}", partial(call, value), Clear(words)
        yield f"{name}: neighbors by name", partial(call, "knn"), Clear(("neighbors must be", "'knn'"))


def solvers() -> Iterator[Probe]:
    """What is no solver, or no preconditioner."""
    takers: dict[str, Callable[[Any], object]] = {
        "LaplacianEigenmaps": lambda s: lapeig.LaplacianEigenmaps(2, solver=s),
        "SpectralClustering": lambda s: lapeig.SpectralClustering(2, solver=s),
        "MDS": lambda s: lapeig.MDS(2, solver=s),
        "Isomap": lambda s: lapeig.Isomap(2, solver=s),
        "LLE": lambda s: lapeig.LLE(2, solver=s),
        "KernelPCA": lambda s: lapeig.KernelPCA(2, solver=s),
        "eigenpairs": lambda s: lapeig.eigenpairs(LAPLACIAN, 2, s),
        "component_eigenpairs": lambda s: lapeig.component_eigenpairs(GRAPH, 2, solver=s),
    }
    for name, call in takers.items():
        for value in ("eigh", lapeig.Eigh, 3, True, ["eigh"]):
            words = ("solver must be a solver such as Eigh()", shown(value))
            yield f"{name}: solver={value!r:.25}", partial(call, value), Clear(words)
    for value in ("amg", lapeig.SmoothedAggregation, 1, True, lapeig.Eigh()):
        words = ("preconditioner must be", shown(value))
        yield f"Lobpcg: {value!r:.25}", partial(lambda v: lapeig.Lobpcg(preconditioner=v), value), Clear(words)


# Clustering, kernels, solving ----------------------------------------------------------------------------------------


def assignments() -> Iterator[Probe]:
    """Rows that are no assignment to clusters."""
    bad: dict[str, tuple[Any, tuple[str, ...]]] = {
        "negative rows that sum to one": (torch.tensor([[2.0, -1.0]] * 12), ("non-negative", "-1")),
        "outputs": (X - 0.5, ("non-negative",)),
        "sums of 3": (3 * SOFT, ("sum to one", "got a sum of 3", "softmax")),
        "sums of 0": (0 * SOFT, ("sum to one", "got a sum of 0")),
        "one row": (SOFT.index_fill(0, torch.tensor(4), 0.7), ("sum to one", "1.4", "(4,)")),
        "points": (X, ("sum to one",)),
        "NaN": (SOFT * math.nan, ("finite",)),
        "labels below -1": (LABELS - 2, ("−1 for no cluster", "-2")),
        "float labels": (LABELS.double(), ("shape", "soft", "(12,)")),
        "few labels": (LABELS[:3], ("shape", "(3,)")),
        "rows of others": (SOFT[:3], ("shape", "(3, 2)")),
        "list": (LABELS.tolist(), ("list",)),
        "array": (LABELS.numpy(), ("ndarray",)),
        "bool": (LABELS == 1, ("torch.bool",)),
        "complex": (SOFT.to(torch.complex64), ("complex64",)),
        "sparse": (SOFT.to_sparse(), ("sparse_coo",)),
        "meta": (SOFT.to("meta"), ("meta",)),
        "word": ("njw", ("str",)),
    }
    for (kind, (value, words)), (name, graph) in itertools.product(bad.items(), {"s": GRAPH, "d": DENSE}.items()):
        call = partial(lapeig.normalized_cut, value, graph)
        yield f"normalized_cut, {name}: {kind}", call, Clear(("labels must", *words))
    expected = lapeig.normalized_cut(LABELS, GRAPH)
    soft = torch.rand(12, 3, generator=torch.Generator().manual_seed(1)).half().softmax(-1)
    yield (
        "cut: indicators",
        lambda: _same(lapeig.normalized_cut(SOFT, GRAPH), expected),
        Accepted("labels in soft form"),
    )
    yield (
        "cut: rounded rows",
        lambda: lapeig.normalized_cut(soft.float(), GRAPH),
        Accepted("sum to one but for rounding"),
    )
    masked = lapeig.knn_graph(X[None], 3, mask=(torch.arange(12) < 9)[None])
    rows = SOFT[None].clone()
    rows[0, 9:] = 0
    yield "cut: rows of padding", lambda: lapeig.normalized_cut(rows, masked), Accepted("padding belongs to no cluster")
    improved = lapeig.ImprovedWeights()(X, GRAPH)
    yield "cut: not symmetric", lambda: lapeig.normalized_cut(LABELS, improved), Clear(("graph must be symmetric",))
    more = lambda: lapeig.SpectralClustering(13, lapeig.KNN(3)).fit(X)  # noqa: E731
    yield "more clusters than points", more, Clear(("n_clusters must be at most", "13", "12"))


def kernels() -> Iterator[Probe]:
    """Functions whose values are no weights, or no kernel."""
    bad: dict[str, tuple[Any, tuple[str, ...]]] = {
        "one number": (lambda d: 1.0, ("torch.Tensor", "float")),
        "one tensor": (lambda d: d.mean(), ("shape", "()")),
        "a column": (lambda d: d[..., None], ("shape",)),
        "fewer": (lambda d: d[:-1], ("shape",)),
        "None": (lambda d: None, ("NoneType",)),
        "array": (lambda d: d.numpy(), ("ndarray",)),
        "integers": (lambda d: (1 + d).long(), ("int64",)),
        "bool": (lambda d: d < 1, ("torch.bool", ".float()")),
        "complex": (lambda d: (d * 1j).exp(), ("complex",)),
        "negative": (lambda d: -d - 1, ("non-negative",)),
        "NaN": (lambda d: d * math.nan, ("finite", "nan")),
        "Inf": (lambda d: (1 + d) / 0, ("finite", "inf")),
    }
    for (kind, (kernel, words)), (name, graph) in itertools.product(bad.items(), {"s": GRAPH, "d": DENSE}.items()):
        call = partial(lapeig.KernelWeights(kernel), X, graph)
        yield f"KernelWeights, {name}: {kind}", call, Clear(("kernel", *words))
    uneven = lambda d: torch.linspace(0, 1, d.numel(), dtype=d.dtype).reshape(d.shape)  # noqa: E731
    for name, graph in {"s": GRAPH, "d": DENSE}.items():
        call = partial(lapeig.KernelWeights(uneven), X, graph)
        yield f"KernelWeights, {name}: not elementwise", call, Clear(("weight must be symmetric",))
    for value in ("exp", None, 1.0, torch.nn.ReLU):
        words = ("kernel must be a function", shown(value))
        yield f"KernelWeights({value!r:.20})", partial(lapeig.KernelWeights, value), Clear(words)
    good = lapeig.LaplacianEigenmaps(2, lapeig.KNN(4), lapeig.KernelWeights(lambda d: 1 / (1 + d))).fit(X)
    good.weights.kernel = lambda d: -d - 1
    yield "KernelWeights: negative for new points", partial(good.transform, X + 0.1), Clear(("kernel", "non-negative"))
    gram: dict[str, tuple[Any, tuple[str, ...]]] = {
        "one number": (lambda x, y: 1.0, ("torch.Tensor", "float")),
        "shape": (lambda x, y: x, ("shape", "(12, 3)")),
        "NaN": (lambda x, y: x @ y.mT * math.nan, ("finite",)),
        "asymmetric": (lambda x, y: x @ y.mT + x[:, :1], ("symmetric",)),
        "integers": (lambda x, y: (x @ y.mT).long(), ("int64",)),
        "array": (lambda x, y: (x @ y.mT).numpy(), ("ndarray",)),
    }
    for kind, (kernel, words) in gram.items():
        yield f"KernelPCA's kernel: {kind}", partial(lapeig.KernelPCA(1, kernel), X), Clear(("kernel", *words))
    for other in ("sigmoid", 3, None, torch.nn.Linear):
        yield f"KernelPCA({other!r:.25})", partial(lapeig.KernelPCA, 2, other), Clear(("kernel must be", shown(other)))
    distances = torch.cdist(X, X)
    given: dict[str, tuple[Any, tuple[str, ...]]] = {
        "points": (X, ("(N, N)", "(12, 3)")),
        "asymmetric": (distances.triu(), ("symmetric",)),
        "negative": (-distances, ("non-negative",)),
        "affinities": ((-distances).exp(), ("zero from each point to itself", "1")),
        "graph": (GRAPH, ("Graph",)),
    }
    for kind, (value, words) in given.items():
        word = "x must" if kind == "graph" else "distances must"
        yield f"MDS of distances: {kind}", partial(lapeig.MDS(2, metric="precomputed"), value), Clear((word, *words))


def solving() -> Iterator[Probe]:
    """What no operator is made of, and eigenpairs that do not exist."""
    operator = lapeig.SymmetricOperator
    pattern, values, diagonal = GRAPH.pattern, GRAPH.weight, LAPLACIAN.degrees
    parts: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
        "matrix for a pattern": ((AFFINITY, values, diagonal), ("pattern must be", "Tensor")),
        "graph for a pattern": ((GRAPH, values, diagonal), ("pattern must be", "Graph")),
        "list of values": ((pattern, values.tolist(), diagonal), ("values must", "list")),
        "complex values": ((pattern, values * 1j, diagonal), ("values must", "complex128")),
        "shape of values": ((pattern, values[:3], diagonal), ("values", "shape", "(3,)")),
        "asymmetric values": ((pattern, STRONG, diagonal), ("values must be symmetric",)),
        "shape of the diagonal": ((pattern, values, diagonal[:3]), ("diagonal must have shape (12,)", "(3,)")),
        "number for the diagonal": ((pattern, values, 1.0), ("diagonal must", "float")),
    }
    for kind, (arguments, words) in parts.items():
        call = partial(_with_shape_named, operator, arguments)
        yield f"SymmetricOperator: {kind}", call, Clear(words)
    for value in (1.0, torch.ones(3), [2.0]):
        call = partial(operator, pattern, values, diagonal, bound=value)
        yield f"SymmetricOperator: bound {value}", call, Clear(("bound must",))
    matrices: dict[str, tuple[Any, tuple[str, ...]]] = {
        "asymmetric": (KERNEL.triu(), ("symmetric",)),
        "rectangular": (X, ("(N, N)", "(12, 3)")),
        "batch": (KERNEL[None], ("(N, N)", "(1, 12, 12)")),
    }
    for kind, (value, words) in matrices.items():
        yield f"of_largest: {kind}", partial(operator.of_largest, value), Clear(("must", *words))
    yield "of_largest: NaN", lambda: lapeig.eigenpairs(operator.of_largest(KERNEL * math.nan), 2), Clear(("finite",))
    yield "eigenpairs: too many", partial(lapeig.eigenpairs, LAPLACIAN, 13), Clear(("k must be at most", "k=13", "12"))
    other = lapeig.eigenpairs(lapeig.Laplacian(lapeig.knn_graph(X[:8], 3)), 2)
    smaller = partial(lapeig.eigenpairs, LAPLACIAN, 2, warm_start=other)
    yield "warm_start: of another size", smaller, Clear(("warm_start must be of 1 graphs of 12 nodes", "8"))
    short = partial(LAPLACIAN.matmul, X[:4])
    yield "matmul: too few rows", short, Clear(("y must have shape", "(4, 3)"))
    yield "k = N of points", partial(lapeig.knn_graph, X, 12), Clear(("k must be smaller", "k=12", "12 points"))
    yield "zero vectors", partial(lapeig.knn_graph, 0 * X, 3, metric="cosine"), Clear(("positive length", "12 zero"))
    yield "too large", partial(lapeig.knn_graph, 1e200 * X, 3), Clear(("x must be at most", "rescale"))
    yield "no edge", partial(lapeig.radius_graph, X, 1e-9), Clear(("radius must reach", "1e-09", "larger radius"))
    yield "columns > N", partial(lapeig.LaplacianEigenmaps(12, lapeig.KNN(3)), X), Clear(("k=13", "12"))
    unnormalized = partial(lapeig.LaplacianEigenmaps, 2, normalization="unnormalized", diffusion=1.0)
    yield "diffusion of L", unnormalized, Clear(("diffusion must be 0", "unnormalized"))


def _with_shape_named(operator: Any, arguments: tuple[Any, ...]) -> object:
    return operator(*arguments)


# Encodings, estimators, callbacks ------------------------------------------------------------------------------------


class _Data:
    """What a transform needs of PyTorch Geometric's data."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update({"x": None, "num_nodes": 2, **values})

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)


def encodings() -> Iterator[Probe]:
    """Edges, nodes and names that no encoding is made of."""
    encode = lapeig.laplacian_positional_encoding
    nodes: dict[str, tuple[Any, str]] = {
        "list": ([0, 0], "list"),
        "array": (np.zeros(2, dtype=np.int64), "ndarray"),
        "floats": (torch.zeros(2), "float32"),
        "order": (torch.tensor([1, 0]), "ascending"),
        "matrix": (torch.zeros(2, 1, dtype=torch.int64), "(2, 1)"),
        "graph": (GRAPH, "Graph"),
    }
    for kind, (value, word) in nodes.items():
        yield f"nodes: {kind}", partial(encode, PAIR, value, 1), Clear(("nodes must", word))
    yield "nodes: too few", partial(encode, PAIR, 1, 1), Clear(("edge_index must lie in [0, 1)",))
    yield "a Graph for edges", partial(encode, GRAPH, 12, 2), Clear(("edge_index must", "Graph"))
    for name, value in itertools.product(("attr_name", "eigenvalues"), (3, True, ["pe"], b"pe")):
        call = partial(lapeig.AddLaplacianPE, 3, **{name: value})
        yield f"AddLaplacianPE: {name}={value!r}", call, Clear((name, "must be the name", shown(value)))
    add = lapeig.AddLaplacianPE(1)
    for kind, (data, words) in {
        "no edges": (_Data(), ("edge_index",)),
        "list of edges": (_Data(edge_index=PAIR.tolist()), ("edge_index must", "list")),
        "edges out of range": (_Data(edge_index=PAIR + 1), ("edge_index must lie in",)),
        "list of weights": (_Data(edge_index=PAIR, edge_weight=[1.0, 1.0]), ("edge_weight must", "list")),
        "list of graphs": (_Data(edge_index=PAIR, batch=[0, 0], num_graphs=1), ("batch must", "list")),
        "complex weights": (_Data(edge_index=PAIR, edge_weight=torch.ones(2) * 1j), ("edge_weight must", "complex")),
        "tensor": (PAIR, ("edge_index",)),
        "None": (None, ("edge_index", "None")),
    }.items():
        yield f"AddLaplacianPE: {kind}", partial(add, data), Clear(words)
    yield "AddLaplacianPE: no data", lambda: _equal(add([]), []), Accepted("a list of no data has no encodings")
    whole = _Data(edge_index=PAIR, edge_weight=torch.ones(2, dtype=torch.int64))
    yield (
        "AddLaplacianPE: integer weights",
        partial(add, whole),
        Accepted("PyTorch Geometric's counts, exact as floats"),
    )


def of_estimators() -> Iterator[Probe]:
    """What scikit-learn's own checks leave to us, and what they say."""
    array = X.numpy()
    makes: dict[str, Callable[[], Any]] = {
        "SpectralEmbedding": lambda: estimators.SpectralEmbedding(n_neighbors=4),
        "ClassicalMDS": estimators.ClassicalMDS,
        "Isomap": lambda: estimators.Isomap(n_neighbors=6),
        "LocallyLinearEmbedding": lambda: estimators.LocallyLinearEmbedding(n_neighbors=4),
        "KernelPCA": estimators.KernelPCA,
        "SpectralClustering": lambda: estimators.SpectralClustering(2, n_neighbors=4),
    }
    data: dict[str, tuple[Any, tuple[str, ...]]] = {
        "NaN": (np.where(array > 0.9, np.nan, array), ("NaN",)),
        "Inf": (np.where(array > 0.9, np.inf, array), ("infinity",)),
        "vector": (array[:, 0], ("2D array", "1D array")),
        "words": ([["a", "b"], ["c", "d"]], ("could not convert",)),
        "complex": (array * 1j, ("Complex data",)),
        "sparse": (csr_array(array), ("Sparse data", "dense")),
        "one sample": (array[:1], ("1 sample",)),
        "None": (None, ("2D array",)),
    }
    for (name, make), (kind, (value, words)) in itertools.product(makes.items(), data.items()):
        yield f"{name} estimator: {kind}", partial(_called, make, "fit", value), Clear(words)
    for name, make in makes.items():
        new = "predict" if name == "SpectralClustering" else "transform"
        yield f"{name} estimator: not fitted", partial(_called, make, new, array), Clear(("not fitted",))
        fit = make().fit(array)
        yield f"{name} estimator: width", partial(getattr(fit, new), array[:, :2]), Clear(("2 features", "3 features"))
        yield (
            f"{name} estimator: a list",
            partial(_called, make, "fit", array.tolist()),
            Accepted("scikit-learn's convention"),
        )
    for value, word in {"zero": "'zero'", -1: "between 0 and 2**32", 1.5: "1.5"}.items():
        make = _estimated("SpectralClustering", "random_state", n_clusters=2, n_neighbors=4)
        yield f"random_state={value!r}", partial(make, value), Clear((word,))
    for value in ("gpu", "cuda:x"):
        yield (
            f"device={value!r}",
            partial(_estimated("ClassicalMDS", "device"), value),
            Clear((value,), (RuntimeError, *WRONG)),
        )
    affinity = AFFINITY.numpy()
    matrices: dict[str, tuple[Any, str]] = {
        "asymmetric": (np.triu(affinity), "symmetric"),
        "negative": (-affinity, "non-negative"),
        "rectangular": (affinity[:5], "(5, 12)"),
        "sparse and asymmetric": (csr_array(np.triu(affinity)), "symmetric"),
    }
    for kind, (value, word) in matrices.items():
        precomputed = estimators.SpectralEmbedding(affinity="precomputed")
        yield f"precomputed of an estimator: {kind}", partial(precomputed.fit, value), Clear(("affinity", word))
    yield "kernel of an estimator", partial(_estimated("KernelPCA", "kernel"), 3), Clear(("kernel must be", "3"))


def fitted() -> Iterator[Probe]:
    """New points before a fit, or unlike those of the fit."""
    makes = {
        "LaplacianEigenmaps": lapeig.LaplacianEigenmaps(2, lapeig.KNN(4)),
        "SpectralClustering": lapeig.SpectralClustering(2, lapeig.KNN(4)),
        "MDS": lapeig.MDS(2),
        "Isomap": lapeig.Isomap(2, lapeig.KNN(6)),
        "LLE": lapeig.LLE(2, 4),
        "KernelPCA": lapeig.KernelPCA(2),
    }
    for name, module in makes.items():
        yield f"{name}: not fitted", partial(module.transform, X), Clear(("must be fitted", name), (RuntimeError,))
    for name, module in makes.items():
        later = copy.deepcopy(module).fit(X)
        wide, single = partial(later.transform, X[:, :2]), partial(later.transform, X.float())
        yield f"{name}: fewer dimensions", wide, Clear(("x must be like the training points", "dimension 2"))
        yield f"{name}: another dtype", single, Clear(("x must be like the training points", "float32"))
        yield f"{name}: fit of a batch", partial(module.fit, X[None]), Clear(("(N, D)", "(1, 12, 3)"))
    batch = lapeig.Graph.from_dense(AFFINITY[None])
    for name in ("LaplacianEigenmaps", "SpectralClustering"):
        module = getattr(lapeig, name)(2, "precomputed")
        yield f"{name}: fit of graphs", partial(module.fit, batch), Clear(("(1, 12)", "one by one"))


def callbacks() -> Iterator[Probe]:
    """Options of the Lightning callback, where Lightning is installed."""
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")
        from torch_lapeig import lightning

        callback: Any = lightning.SmoothnessCallback
        for value in (0.0, -1.0, math.nan, math.inf, "1", True, None, [1.0]):
            yield f"callback: weight={value!r}", partial(callback, value), Clear(("weight must be", shown(value)))
        others: dict[str, tuple[Any, ...]] = {
            "module": (3, None, nn.Linear(2, 2)),
            "loss": ("smoothness", lapeig.LaplacianSmoothness, lapeig.laplacian_smoothness, 1.0),
            "graph_from": ("x", None, 3, GRAPH),
            "name": (3, None),
        }
        for name, values in others.items():
            for other in values:
                call = partial(callback, 1.0, **{name: other})
                yield f"callback: {name}={other!r:.20}", call, Clear((f"{name} must", shown(other)))
        learnable = lapeig.LaplacianSmoothness(weights=lapeig.HeatKernel(learnable=True))
        yield "callback: learnable loss", partial(callback, 1.0, loss=learnable), Clear(("loss must", "no learnable"))
        yield "callback: np.float32", lambda: callback(np.float32(0.5)), Accepted("a number of NumPy is one")


# Recording and mapping -----------------------------------------------------------------------------------------------


class _Network(nn.Module):
    """A layer inside a network."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(3, 3, dtype=torch.float64), layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(self.first(x))


def recorded() -> Iterator[Probe]:
    """`torch.export`, `torch.jit.trace` and `torch.vmap` of what depends on the data at every step."""
    layers: dict[str, nn.Module] = {
        "LaplacianEigenmaps": lapeig.LaplacianEigenmaps(2, lapeig.KNN(4)),
        "SpectralClustering": lapeig.SpectralClustering(2, lapeig.KNN(4)),
        "MDS": lapeig.MDS(2),
        "Isomap": lapeig.Isomap(2, lapeig.KNN(6)),
        "LLE": lapeig.LLE(2, 4),
        "KernelPCA": lapeig.KernelPCA(2),
    }
    for name, layer in layers.items():
        network, words = _Network(layer), (name, "torch.export or torch.jit.trace", "use torch.compile")
        words = (words[0] if name in ("LaplacianEigenmaps", "SpectralClustering") else "", *words[1:])
        yield f"export of {name}", partial(torch.export.export, network, (X,)), Clear(words, (RuntimeError,))
        yield f"trace of {name}", partial(torch.jit.trace, network, X), Clear(words, (RuntimeError,))
        yield f"vmap of {name}", partial(torch.vmap(layer), X[None]), Clear(("x must", "torch.vmap", "batch"))
    whitening = _Network(lapeig.Whitening(3))
    yield "export of Whitening", partial(torch.export.export, whitening, (X,)), Accepted("an affine map: no data in it")
    yield "trace of Whitening", partial(torch.jit.trace, whitening, X), Accepted("an affine map: no data in it")


if __name__ == "__main__":
    found = run()
    print(*found.pop("failures"), sep="\n")
    print(*(f"{count} {outcome}" for outcome, count in found.items()), sep=", ")
