"""Counts, seeds, numbers, flags and words of every constructor and function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.campaign.misuse.probes import (
    GRAPH,
    LAPLACIAN,
    PAIR,
    Accepted,
    Clear,
    Probe,
    X,
    equal,
    estimated,
    lapeig,
    same_result,
    shown,
)


def _made(name: str, argument: str) -> Callable[[Any], object]:
    """Return a class made with one option."""
    needed = (2,) if name == "SpectralClustering" and argument != "n_clusters" else ()
    needed = (3,) if name == "AddLaplacianPE" and argument != "k" else needed
    return lambda value: getattr(lapeig, name)(*needed, **{argument: value})


def _solved(argument: str) -> Callable[[Any], object]:
    """Return `eigenpairs` with one option."""
    return lambda value: lapeig.eigenpairs(LAPLACIAN, 2, **{argument: value})


def _encoded(argument: str) -> Callable[[Any], object]:
    """Return `laplacian_positional_encoding` with one option."""
    return lambda value: lapeig.laplacian_positional_encoding(PAIR, 2, **{"k": 1, argument: value})


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
        ("KernelPCA", "n_components", 1),
        ("KernelPCA", "degree", 1),
        ("Whitening", "n_components", 1),
        ("AddLaplacianPE", "k", 1),
        ("ChebyshevSubspace", "guards", 1),
        ("ChebyshevSubspace", "max_iterations", 0),
        ("ChebyshevSubspace", "max_degree", 1),
        ("Lobpcg", "guards", 1),
        ("Lobpcg", "max_iterations", 0),
        ("ShiftInvert", "basis", 3),
        ("ShiftInvert", "max_products", 0),
        ("SpectralClustering", "n_init", 1),
        ("HarmonicFunction", "n_classes", 1),
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
    "SpectralEmbedding": ("n_components", 1, estimated("SpectralEmbedding", "n_components")),
    "SpectralEmbedding, neighbours": ("n_neighbors", 1, estimated("SpectralEmbedding", "n_neighbors")),
    "ClassicalMDS": ("n_components", 1, estimated("ClassicalMDS", "n_components")),
    "LocallyLinearEmbedding": ("n_neighbors", 1, estimated("LocallyLinearEmbedding", "n_neighbors")),
    "KernelPCA estimator": ("degree", 1, estimated("KernelPCA", "degree", kernel="poly")),
    "SpectralClustering estimator": ("n_clusters", 1, estimated("SpectralClustering", "n_clusters")),
}
DEFAULT_NONE = (
    "guards",
    "basis",
    "landmarks",
    "n_neighbors",
    "num_nodes",
    "num_graphs",
    "budget",
    "n_classes",
)  # None is the default

SEEDED = (
    "SpectralClustering",
    "Isomap",
    "ChebyshevSubspace",
    "Lobpcg",
    "ShiftInvert",
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
    "SparseLU": ("shift", _made("SparseLU", "shift"), OPEN),
    "ShiftInvert": ("memory", _made("ShiftInvert", "memory"), CLOSED),
    "SmoothedAggregation": ("max_complexity", _made("SmoothedAggregation", "max_complexity"), OPEN),
    "SpectralClustering estimator": ("gamma", estimated("SpectralClustering", "gamma", n_clusters=2), CLOSED),
    "LocallyLinearEmbedding": ("reg", estimated("LocallyLinearEmbedding", "reg"), OPEN),
    "Isomap estimator": ("radius", estimated("Isomap", "radius", n_components=1, n_neighbors=None), OPEN),
}
INFINITE = {"t": "the limit of the heat kernel, simple weights", "memory": "no limit"}
NONE_OR_NUMBER = (
    "ShiftInvert",
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
    "SpectralEmbedding": ("affinity", estimated("SpectralEmbedding", "affinity")),
}


def probes() -> Iterator[Probe]:
    """Yield counts, seeds, numbers, flags and words of every constructor and function."""
    for name, (argument, least, make) in COUNTS.items():
        bad: list[Any] = [least - 1, -5, 10**400, 2.5, math.nan, True, "3", [3], np.float64(3.0), np.bool_(True)]
        yield from _refused(name, make, argument, bad + [None] * (argument not in DEFAULT_NONE))
    for name in SEEDED:
        make = _made(name, "seed")
        yield from _refused(name, make, "seed", [-1, 2**32, 1.0, math.nan, True, "zero", None, [0]])
        yield f"{name}: seed=np.int64(3)", partial(make, np.int64(3)), Accepted("an integer of NumPy is one")
    for name, (argument, make, (low, high, closed)) in NUMBERS.items():
        bad = [math.nan, math.inf, -math.inf, 10**400, "1", True, [1.0], 1j, np.float32("nan"), torch.ones(3, 3)]
        bad += [None] * (name not in NONE_OR_NUMBER) + [high + 0.5] * (high < math.inf)
        bad += [low - 1.0] * (low > -math.inf) + [low] * (not closed)
        if argument in INFINITE:
            bad.remove(math.inf)
            yield f"{name}: {argument}=inf", partial(make, math.inf), Accepted(INFINITE[argument])
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
        yield f"KNN: k={called}", partial(equal, lapeig.KNN(integer), lapeig.KNN(3)), Accepted("integers of NumPy")
        for name in ("LaplacianEigenmaps", "MDS", "LLE", "KernelPCA"):
            pair = getattr(lapeig, name)(integer), getattr(lapeig, name)(3)
            yield f"{name}: {called}", partial(same_result, *pair), Accepted("integers of NumPy are counts")


def _refused(name: str, make: Callable[[Any], object], argument: str, values: list[Any]) -> Iterator[Probe]:
    for value in values:
        several = isinstance(value, (np.generic, torch.Tensor))
        called = type(value).__name__ if several else repr(value)
        yield f"{name}: {argument}={called}", partial(make, value), Clear((argument, "" if several else shown(value)))
