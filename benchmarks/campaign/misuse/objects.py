"""Classes, words and functions where a rule, a weighting, a solver or another object is meant."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.campaign.misuse.probes import (
    GRAPH,
    LAPLACIAN,
    MASK,
    PAIR,
    Clear,
    Probe,
    X,
    lapeig,
    shown,
)


def probes() -> Iterator[Probe]:
    """Yield classes, words and functions where an object of a kind is meant."""
    yield from rules_and_weights()
    yield from solvers()
    value: Any
    for value in (0, "seed", np.random.default_rng(0), torch.Generator):
        words = ("generator must be a torch.Generator", shown(value))
        layer = lapeig.LaplacianEigenmaps(2, lapeig.KNN(3), random_signs=True)
        yield f"generator of a layer: {value!r:.20}", partial(layer, X, generator=value), Clear(words)
        fixed = lapeig.LaplacianEigenmaps(2, lapeig.KNN(3))
        yield f"generator without signs: {value!r:.20}", partial(fixed, X, generator=value), Clear(words)
        encode = partial(lapeig.laplacian_positional_encoding, PAIR, 2, 1, generator=value)
        yield f"generator of an encoding: {value!r:.20}", encode, Clear(words)
    for value in ("yes", 1, None, 0.5):
        words = ("progress must be", shown(value))
        yield f"progress={value!r}", partial(lapeig.eigenpairs, LAPLACIAN, 2, progress=value), Clear(words)
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
        lambda: lapeig.LaplacianEigenmaps(2, lapeig.Precomputed("affinity"), lapeig.HeatKernel()),
        Clear(("weights must be None",)),
    )
    yield "reach: word", partial(lapeig.radius_neighbors, X, "1"), Clear(("radius must", "'1'"))
    reaches = {"short": torch.ones(3), "negative": -torch.ones(12), "complex": torch.ones(12, dtype=torch.complex64)}
    for kind, value in {**reaches, "NaN": torch.full((12,), math.nan)}.items():
        yield f"reach: {kind}", partial(lapeig.radius_neighbors, X, value), Clear(("radius must",))


def rules_and_weights() -> Iterator[Probe]:
    """Yield objects that are no rule of a graph, or no weighting."""
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
    """Yield objects that are no solver, or no preconditioner."""
    takers: dict[str, Callable[[Any], object]] = {
        "LaplacianEigenmaps": lambda s: lapeig.LaplacianEigenmaps(2, solve=s),
        "SpectralClustering": lambda s: lapeig.SpectralClustering(2, solve=s),
        "MDS": lambda s: lapeig.MDS(2, solve=s),
        "Isomap": lambda s: lapeig.Isomap(2, solve=s),
        "LLE": lambda s: lapeig.LLE(2, solve=s),
        "KernelPCA": lambda s: lapeig.KernelPCA(2, solve=s),
        "eigenpairs": lambda s: lapeig.eigenpairs(LAPLACIAN, 2, s),
        "component_eigenpairs": lambda s: lapeig.component_eigenpairs(GRAPH, 2, solver=s),
    }
    for name, call in takers.items():
        for value in ("eigh", lapeig.Eigh, 3, True, ["eigh"]):
            words = ("solver such as Eigh()", shown(value))
            yield f"{name}: solver={value!r:.25}", partial(call, value), Clear(words)
    for value in ("amg", lapeig.SmoothedAggregation, 1, True, lapeig.Eigh()):
        words = ("preconditioner must be", shown(value))
        yield f"Lobpcg: {value!r:.25}", partial(lambda v: lapeig.Lobpcg(preconditioner=v), value), Clear(words)
