"""Misuse of the public interface: what must end in a clear error, and what is rightly accepted.

An error is clear where it is a TypeError or ValueError (or another kind, where a probe says so) whose message names the
argument and what arrived. `run` counts; `python -m benchmarks.campaign.misuse` prints the counts and every failure.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from torch import nn

import torch_lapeig
from torch_lapeig import sklearn

lapeig: Any = torch_lapeig  # without types: what is probed here is what they would forbid
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

COUNTS: dict[str, tuple[Callable[[Any], object], str, int]] = {
    "KNN": (lapeig.KNN, "k", 1),
    "knn_graph": (partial(lapeig.knn_graph, X), "k", 1),
    "nearest_neighbors": (partial(lapeig.nearest_neighbors, X), "k", 1),
    "nearest_neighbors, budget": (lambda v: lapeig.nearest_neighbors(X, 3, budget=v), "budget", 1),
    "radius_neighbors, budget": (lambda v: lapeig.radius_neighbors(X, 1.0, budget=v), "budget", 1),
    "SelfTuning": (lapeig.SelfTuning, "m", 1),
    "LaplacianEigenmaps": (lapeig.LaplacianEigenmaps, "n_components", 1),
    "SpectralClustering": (lapeig.SpectralClustering, "n_clusters", 1),
    "MDS": (lapeig.MDS, "n_components", 1),
    "Isomap": (lapeig.Isomap, "n_components", 1),
    "Isomap, landmarks": (lambda v: lapeig.Isomap(1, landmarks=v), "landmarks", 2),
    "LLE": (lapeig.LLE, "n_components", 1),
    "LLE, neighbours": (lambda v: lapeig.LLE(2, v), "n_neighbors", 1),
    "KernelPCA": (lapeig.KernelPCA, "n_components", 1),
    "KernelPCA, degree": (lambda v: lapeig.KernelPCA(2, "polynomial", degree=v), "degree", 1),
    "Whitening": (lapeig.Whitening, "n_components", 1),
    "eigenpairs": (lambda v: lapeig.eigenpairs(LAPLACIAN, v), "k", 1),
    "component_eigenpairs": (lambda v: lapeig.component_eigenpairs(GRAPH, v), "k", 1),
    "AddLaplacianPE": (lapeig.AddLaplacianPE, "k", 1),
    "laplacian_positional_encoding": (lambda v: lapeig.laplacian_positional_encoding(PAIR, 2, v), "k", 1),
    "laplacian_positional_encoding, nodes": (
        lambda v: lapeig.laplacian_positional_encoding(torch.zeros(2, 0, dtype=torch.int64), v, 2),
        "nodes",
        0,
    ),
    "Graph.from_edge_index, nodes": (
        lambda v: lapeig.Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), num_nodes=v),
        "num_nodes",
        0,
    ),
    "Graph.from_edge_index, graphs": (
        lambda v: lapeig.Graph.from_edge_index(PAIR, batch=torch.tensor([0, 0]), num_graphs=v),
        "num_graphs",
        1,
    ),
    "ChebyshevSubspace, guards": (lambda v: lapeig.ChebyshevSubspace(guards=v), "guards", 1),
    "ChebyshevSubspace, iterations": (lambda v: lapeig.ChebyshevSubspace(max_iterations=v), "max_iterations", 0),
    "ChebyshevSubspace, degree": (lambda v: lapeig.ChebyshevSubspace(max_degree=v), "max_degree", 1),
    "Lobpcg, guards": (lambda v: lapeig.Lobpcg(guards=v), "guards", 1),
    "Lobpcg, iterations": (lambda v: lapeig.Lobpcg(max_iterations=v), "max_iterations", 0),
    "Lobpcg, patience": (lambda v: lapeig.Lobpcg(patience=v), "patience", 1),
    "Lanczos, basis": (lambda v: lapeig.Lanczos(basis=v), "basis", 3),
    "Lanczos, products": (lambda v: lapeig.Lanczos(max_products=v), "max_products", 0),
    "TorchLobpcg, iterations": (lambda v: lapeig.TorchLobpcg(max_iterations=v), "max_iterations", 0),
    "SmoothedAggregation, coarsest": (lambda v: lapeig.SmoothedAggregation(coarsest=v), "coarsest", 1),
    "SmoothedAggregation, smoothing": (lambda v: lapeig.SmoothedAggregation(smoothing=v), "smoothing", 1),
    "SpectralEmbedding": (lambda v: estimators.SpectralEmbedding(v).fit(X.numpy()), "n_components", 1),
    "SpectralEmbedding, neighbours": (
        lambda v: estimators.SpectralEmbedding(n_neighbors=v).fit(X.numpy()),
        "n_neighbors",
        1,
    ),
    "ClassicalMDS": (lambda v: estimators.ClassicalMDS(v).fit(X.numpy()), "n_components", 1),
    "LocallyLinearEmbedding": (
        lambda v: estimators.LocallyLinearEmbedding(n_neighbors=v).fit(X.numpy()),
        "n_neighbors",
        1,
    ),
    "KernelPCA estimator": (lambda v: estimators.KernelPCA(kernel="poly", degree=v).fit(X.numpy()), "degree", 1),
    "SpectralClustering estimator": (lambda v: estimators.SpectralClustering(v).fit(X.numpy()), "n_clusters", 1),
}
DEFAULT_NONE = ("guards", "basis", "landmarks", "n_neighbors", "num_nodes", "num_graphs")  # None is the default

SEEDS: dict[str, Callable[[Any], object]] = {
    "SpectralClustering": lambda v: lapeig.SpectralClustering(2, seed=v),
    "Isomap": lambda v: lapeig.Isomap(2, landmarks=5, seed=v),
    "ChebyshevSubspace": lambda v: lapeig.ChebyshevSubspace(seed=v),
    "Lobpcg": lambda v: lapeig.Lobpcg(seed=v),
    "Lanczos": lambda v: lapeig.Lanczos(seed=v),
    "TorchLobpcg": lambda v: lapeig.TorchLobpcg(seed=v),
    "SmoothedAggregation": lambda v: lapeig.SmoothedAggregation(seed=v),
}

# Numbers: the call, the argument, the range, whether its lower end belongs to it, and whether None is the default.
NUMBERS: dict[str, tuple[Callable[[Any], object], str, float, float, bool, bool]] = {
    "Radius": (lapeig.Radius, "radius", 0, math.inf, False, False),
    "radius_graph": (partial(lapeig.radius_graph, X), "radius", 0, math.inf, False, False),
    "radius_neighbors": (partial(lapeig.radius_neighbors, X), "radius", 0, math.inf, False, False),
    "HeatKernel": (lapeig.HeatKernel, "t", 0, math.inf, False, False),
    "ImprovedWeights": (lapeig.ImprovedWeights, "t", 0, math.inf, False, False),
    "DensityCorrected": (lapeig.DensityCorrected, "alpha", 0, 1, True, False),
    "LaplacianEigenmaps": (lambda v: lapeig.LaplacianEigenmaps(diffusion=v), "diffusion", 0, math.inf, True, False),
    "LLE": (lambda v: lapeig.LLE(2, reg=v), "reg", 0, math.inf, False, False),
    "KernelPCA, gamma": (lambda v: lapeig.KernelPCA(2, gamma=v), "gamma", 0, math.inf, False, True),
    "KernelPCA, coef0": (lambda v: lapeig.KernelPCA(2, coef0=v), "coef0", -math.inf, math.inf, True, False),
    "eigenpairs": (lambda v: lapeig.eigenpairs(LAPLACIAN, 2, tolerance=v), "tolerance", 0, math.inf, False, True),
    "eigenpairs, backward": (
        lambda v: lapeig.eigenpairs(LAPLACIAN, 2, backward_tolerance=v),
        "backward_tolerance",
        0,
        math.inf,
        False,
        True,
    ),
    "eigenpairs, width": (
        lambda v: lapeig.eigenpairs(LAPLACIAN, 2, cluster_width=v),
        "cluster_width",
        0,
        math.inf,
        False,
        True,
    ),
    "Lanczos": (lambda v: lapeig.Lanczos(crowded=v), "crowded", 0, math.inf, True, False),
    "SparseLU": (lapeig.SparseLU, "shift", 0, math.inf, False, False),
    "SmoothedAggregation": (
        lambda v: lapeig.SmoothedAggregation(max_complexity=v),
        "max_complexity",
        0,
        math.inf,
        False,
        False,
    ),
    "SpectralClustering estimator": (
        lambda v: estimators.SpectralClustering(2, gamma=v).fit(X.numpy()),
        "gamma",
        0,
        math.inf,
        True,
        True,
    ),
    "LocallyLinearEmbedding": (
        lambda v: estimators.LocallyLinearEmbedding(reg=v).fit(X.numpy()),
        "reg",
        0,
        math.inf,
        False,
        False,
    ),
    "Isomap estimator": (
        lambda v: estimators.Isomap(radius=v, n_components=1).fit(X.numpy()),
        "radius",
        0,
        math.inf,
        False,
        True,
    ),
}

FLAGS: dict[str, tuple[Callable[[Any], object], str]] = {
    "LaplacianEigenmaps, trivial": (lambda v: lapeig.LaplacianEigenmaps(2, drop_trivial=v), "drop_trivial"),
    "LaplacianEigenmaps, signs": (lambda v: lapeig.LaplacianEigenmaps(2, random_signs=v), "random_signs"),
    "HeatKernel": (lambda v: lapeig.HeatKernel(learnable=v), "learnable"),
    "ImprovedWeights": (lambda v: lapeig.ImprovedWeights(learnable=v), "learnable"),
    "knn_graph": (lambda v: lapeig.knn_graph(X, 3, self_loops=v), "self_loops"),
    "radius_graph": (lambda v: lapeig.radius_graph(X, 1.0, self_loops=v), "self_loops"),
    "eigenpairs": (lambda v: lapeig.eigenpairs(LAPLACIAN, 2, fill=v), "fill"),
    "AddLaplacianPE": (lambda v: lapeig.AddLaplacianPE(3, random_signs=v), "random_signs"),
    "laplacian_positional_encoding": (
        lambda v: lapeig.laplacian_positional_encoding(PAIR, 2, 1, random_signs=v),
        "random_signs",
    ),
    "SmoothedAggregation": (lambda v: lapeig.SmoothedAggregation(single=v), "single"),
    "SymmetricOperator": (
        lambda v: lapeig.SymmetricOperator(GRAPH.pattern, GRAPH.weight, LAPLACIAN.degrees, constant_null=v),
        "constant_null",
    ),
}

CHOICES: dict[str, tuple[Callable[[Any], object], str]] = {
    "KNN, symmetrize": (lambda v: lapeig.KNN(3, v), "symmetrize"),
    "KNN, metric": (lambda v: lapeig.KNN(3, metric=v), "metric"),
    "KNN, backend": (lambda v: lapeig.KNN(3, backend=v), "backend"),
    "Radius": (lambda v: lapeig.Radius(1.0, v), "metric"),
    "knn_graph": (lambda v: lapeig.knn_graph(X, 3, symmetrize=v), "symmetrize"),
    "radius_graph": (lambda v: lapeig.radius_graph(X, 1.0, metric=v), "metric"),
    "nearest_neighbors": (lambda v: lapeig.nearest_neighbors(X, 3, backend=v), "backend"),
    "radius_neighbors": (lambda v: lapeig.radius_neighbors(X, 1.0, metric=v), "metric"),
    "LaplacianEigenmaps, normalization": (lambda v: lapeig.LaplacianEigenmaps(normalization=v), "normalization"),
    "LaplacianEigenmaps, scale": (lambda v: lapeig.LaplacianEigenmaps(scale=v), "scale"),
    "LaplacianEigenmaps, components": (lambda v: lapeig.LaplacianEigenmaps(components=v), "components"),
    "SpectralClustering": (lambda v: lapeig.SpectralClustering(2, variant=v), "variant"),
    "MDS": (lambda v: lapeig.MDS(2, metric=v), "metric"),
    "Laplacian": (lambda v: lapeig.Laplacian(GRAPH, v), "normalization"),
    "component_eigenpairs": (lambda v: lapeig.component_eigenpairs(GRAPH, 2, v), "normalization"),
    "eigenpairs, degeneracy": (lambda v: lapeig.eigenpairs(LAPLACIAN, 2, degeneracy=v), "degeneracy"),
    "eigenpairs, failure": (lambda v: lapeig.eigenpairs(LAPLACIAN, 2, on_failure=v), "on_failure"),
    "AddLaplacianPE": (lambda v: lapeig.AddLaplacianPE(3, normalization=v), "normalization"),
    "laplacian_positional_encoding": (
        lambda v: lapeig.laplacian_positional_encoding(PAIR, 2, 1, normalization=v),
        "normalization",
    ),
    "laplacian_smoothness": (lambda v: lapeig.laplacian_smoothness(X, GRAPH, v), "reduction"),
    "LaplacianSmoothness": (lambda v: lapeig.LaplacianSmoothness(reduction=v), "reduction"),
    "SpectralEmbedding": (lambda v: estimators.SpectralEmbedding(affinity=v).fit(X.numpy()), "affinity"),
    "ClassicalMDS": (lambda v: estimators.ClassicalMDS(metric=v).fit(X.numpy()), "metric"),
}


def options() -> Iterator[Probe]:
    """Counts, seeds, numbers, flags and words of every constructor and function."""
    for name, (make, argument, least) in COUNTS.items():
        bad: list[Any] = [least - 1, -5, 2.5, math.nan, True, "3", [3], np.float64(3.0), np.bool_(True)]
        bad += [] if argument in DEFAULT_NONE else [None]
        yield from _refused(name, make, argument, bad)
    for name, make in SEEDS.items():
        yield from _refused(name, make, "seed", [-1, 2**32, 1.0, math.nan, True, "zero", None, [0]])
        yield f"{name}: seed=np.int64(3)", partial(make, np.int64(3)), Accepted("an integer of NumPy is one")
    for name, (make, argument, low, high, closed, default) in NUMBERS.items():
        bad = [math.nan, math.inf, -math.inf, "1", True, [1.0], 1j, np.float32("nan"), torch.ones(3, 3)]
        bad += [] if default else [None]
        bad += [] if math.isinf(low) else [low - 1.0] if closed else [low - 1.0, low]
        bad += [] if math.isinf(high) else [high + 0.5]
        yield from _refused(name, make, argument, bad)
        for value in (np.float32(0.75), np.float64(0.75), np.int64(1), 1):
            yield (
                f"{name}: {argument}={value!r}",
                partial(make, value),
                Accepted("a number of NumPy, or an int, is one"),
            )
    for name, (make, argument) in FLAGS.items():
        yield from _refused(name, make, argument, ["no", "False", "", 0, 1, None, [], 0.0])
        yield f"{name}: {argument}=np.True_", partial(make, np.bool_(True)), Accepted("NumPy's bool is one")
    for name, (make, argument) in CHOICES.items():
        yield from _refused(name, make, argument, ["x", "", "Exact", None, 3, True, ["mean"], X])
    for value in (np.int64(3), np.int32(3), np.uint8(3)):
        yield f"KNN: k={value!r}", partial(_equal, lapeig.KNN(value), lapeig.KNN(3)), Accepted("integers of NumPy")
        for name in ("LaplacianEigenmaps", "MDS", "LLE", "KernelPCA"):
            pair = getattr(lapeig, name)(value), getattr(lapeig, name)(3)
            yield f"{name}: {value!r}", partial(_same_result, *pair), Accepted("integers of NumPy are counts")


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
            lambda h=half: _equal(lapeig.LaplacianEigenmaps(2, lapeig.KNN(4))(X.to(h)).dtype, h),
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
    edges = graph.from_edge_index
    for kind, value in {
        "list": PAIR.tolist(),
        "array": PAIR.numpy(),
        "floats": PAIR.float(),
        "int32": PAIR.int(),
    }.items():
        word = str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
        yield f"edge_index: {kind}", partial(edges, value), Clear(("edge_index must", word))
        yield f"edge_index of an encoding: {kind}", partial(_encode, value), Clear(("edge_index must", word))
        yield f"batch: {kind}", lambda v=value: edges(PAIR, batch=v[0]), Clear(("batch must",))
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
    matrix = csr_array(AFFINITY.numpy())
    for dtype in (torch.int64, torch.float16, torch.complex64, torch.bool, "float32", None, float, np.float32):
        call = partial(graph.from_scipy, matrix, dtype)
        yield f"from_scipy: dtype {dtype}", call, Clear(("dtype must be torch.float32 or torch.float64",))
    yield "from_scipy: complex", partial(graph.from_scipy, matrix.astype(complex)), Clear(("affinity", "complex128"))
    yield "from_scipy: array", partial(graph.from_scipy, AFFINITY.numpy()), Clear(("affinity", "SciPy", "ndarray"))
    yield "from_scipy: tensor", partial(graph.from_scipy, AFFINITY.to_sparse()), Clear(("affinity", "SciPy", "Tensor"))
    yield "from_scipy: asymmetric", partial(graph.from_scipy, coo_array(AFFINITY.triu().numpy())), Clear(("symmetric",))
    yield "from_scipy: NaN", partial(graph.from_scipy, matrix * math.nan), Clear(("affinity must be finite",))
    for dtype in (bool, int, np.float32):
        call = lambda d=dtype: _same(graph.from_scipy(matrix.astype(d)).weight, GRAPH.weight)  # noqa: E731
        yield f"from_scipy: {dtype.__name__} matrix", call, Accepted("exact in float64")
    yield "Graph: a matrix", partial(graph, AFFINITY, AFFINITY), Clear(("pattern must be", "Tensor", "from_dense"))
    yield "Graph: shape", partial(graph, GRAPH.pattern, GRAPH.weight[:3]), Clear(("weight must have shape", "(3,)"))
    yield "Graph: integers", partial(graph, GRAPH.pattern, GRAPH.weight.long()), Clear(("weight must", "int64"))
    yield "Graph: list", partial(graph, GRAPH.pattern, GRAPH.weight.tolist()), Clear(("weight must", "list"))
    for kind, (value, word) in {"list": (X.tolist(), "list"), "vector": (X[:, 0], "(12,)")}.items():
        yield f"pad_batch: {kind}", partial(lapeig.pad_batch, value, LABELS.sort().values), Clear(("x must", word))
    for kind, (value, word) in {
        "list": ([0] * 12, "list"),
        "order": (LABELS, "ascending"),
        "length": (LABELS[:3], "(3,)"),
        "floats": (LABELS.sort().values.float(), "float32"),
    }.items():
        yield f"pad_batch: batch of {kind}", partial(lapeig.pad_batch, X, value), Clear(("batch must", word))


def _encode(edge_index: Any, edge_weight: Any = None) -> object:
    return lapeig.laplacian_positional_encoding(edge_index, 2, 1, edge_weight)


def changing_graphs() -> Iterator[Probe]:
    """Weights, dtypes, devices and nodes that a graph cannot have."""
    lone = GRAPH.weight.clone()
    lone[0] = 2
    for name, graph in {"sparse": GRAPH, "dense": DENSE}.items():
        triangle, one = graph.weight * 0.5, graph.weight.clone()
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
        call = lambda g=graph, w=triangle: _same(g.with_weight(w).to_dense(), AFFINITY / 2)  # noqa: E731
        yield f"with_weight, {name}: symmetric", call, Accepted("equal in both directions")
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
        call = lambda g=graph: _same(g.subgraph(torch.tensor([3, 1])).to_dense(), AFFINITY[[3, 1]][:, [3, 1]])  # noqa: E731
        yield f"subgraph, {name}: order", call, Accepted("nodes may come in any order")
    for view in ("edge_index",):
        yield f"{view} of a dense graph", partial(getattr, DENSE, view), Clear((view, "to_sparse"))
    batch = lapeig.knn_graph(X[None], 3)
    yield "to_scipy of a batch", batch.to_scipy, Clear(("one graph", "(1, 12)"))


# Objects for options -------------------------------------------------------------------------------------------------


def objects() -> Iterator[Probe]:
    """Classes, words and functions where an object of a kind is meant."""
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
    takers = {
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
        words = ("warm_start must be Eigenpairs", type(value).__name__)
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
        call = lambda v=value: lapeig.Isomap(1, lapeig.KNN(5), landmarks=v)(X)  # noqa: E731
        yield f"landmarks: {value.tolist()}", call, Clear(("landmarks must lie in [0, 12)",))
    yield (
        "weights of precomputed",
        lambda: lapeig.LaplacianEigenmaps(2, "precomputed", lapeig.HeatKernel()),
        Clear(("weights must be None",)),
    )
    yield "reach: word", partial(lapeig.radius_neighbors, X, "1"), Clear(("radius must", "'1'"))
    reaches = {"short": torch.ones(3), "negative": -torch.ones(12), "complex": torch.ones(12, dtype=torch.complex64)}
    for kind, value in {**reaches, "NaN": torch.full((12,), math.nan)}.items():
        yield f"reach: {kind}", partial(lapeig.radius_neighbors, X, value), Clear(("radius must",))


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
        "half": (SOFT.half(), ("float16", ".float()")),
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
        yield f"KernelPCA: {kind}", partial(lapeig.KernelPCA(1, kernel), X), Clear(("kernel", *words))
    for value in ("sigmoid", 3, None, torch.nn.Linear):
        yield f"KernelPCA({value!r:.25})", partial(lapeig.KernelPCA, 2, value), Clear(("kernel must be", shown(value)))
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
        yield f"{name} estimator: {kind}", lambda m=make, v=value: m().fit(v), Clear(words)
    for name, make in makes.items():
        new = "predict" if name == "SpectralClustering" else "transform"
        yield f"{name} estimator: not fitted", lambda m=make, n=new: getattr(m(), n)(array), Clear(("not fitted",))
        fit = make().fit(array)
        yield f"{name} estimator: width", partial(getattr(fit, new), array[:, :2]), Clear(("2 features", "3 features"))
        yield f"{name} estimator: a list", lambda m=make: m().fit(array.tolist()), Accepted("scikit-learn's convention")
    for value, word in {"zero": "'zero'", -1: "between 0 and 2**32", 1.5: "1.5"}.items():
        call = lambda v=value: estimators.SpectralClustering(2, n_neighbors=4, random_state=v).fit(array)  # noqa: E731
        yield f"random_state={value!r}", call, Clear((word,))
    for value in ("gpu", "cuda:x"):
        call = lambda v=value: estimators.ClassicalMDS(device=v).fit(array)  # noqa: E731
        yield f"device={value!r}", call, Clear((value,), (RuntimeError, *WRONG))
    affinity = AFFINITY.numpy()
    matrices: dict[str, tuple[Any, str]] = {
        "asymmetric": (np.triu(affinity), "symmetric"),
        "negative": (-affinity, "non-negative"),
        "rectangular": (affinity[:5], "(5, 12)"),
        "sparse and asymmetric": (csr_array(np.triu(affinity)), "symmetric"),
    }
    for kind, (value, word) in matrices.items():
        call = lambda v=value: estimators.SpectralEmbedding(affinity="precomputed").fit(v)  # noqa: E731
        yield f"precomputed of an estimator: {kind}", call, Clear(("affinity", word))
    call = lambda: estimators.KernelPCA(kernel=3).fit(array)  # noqa: E731
    yield "kernel of an estimator", call, Clear(("kernel must be", "3"))


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
        ready = type(module)(2) if name in ("MDS", "KernelPCA") else module
        later = lambda m=ready, **_: m.fit(X)  # noqa: E731
        wide = lambda f=later: f().transform(X[:, :2])  # noqa: E731
        single = lambda f=later: f().transform(X.float())  # noqa: E731
        yield f"{name}: fewer dimensions", wide, Clear(("x must be like the training points", "dimension 2"))
        yield f"{name}: another dtype", single, Clear(("x must be like the training points", "float32"))
        yield f"{name}: fit of a batch", lambda m=ready: m.fit(X[None]), Clear(("(N, D)", "(1, 12, 3)"))
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
        for name, values in {
            "module": (3, None, nn.Linear(2, 2)),
            "loss": ("smoothness", lapeig.LaplacianSmoothness, lapeig.laplacian_smoothness, 1.0),
            "graph_from": ("x", None, 3, GRAPH),
            "name": (3, None),
        }.items():
            for value in values:
                if name == "loss" and value is None:
                    continue
                call = partial(callback, 1.0, **{name: value})
                yield f"callback: {name}={value!r:.20}", call, Clear((f"{name} must", shown(value)))
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
