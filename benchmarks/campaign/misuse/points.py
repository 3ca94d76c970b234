"""Tensors that are no points, outputs or masks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from scipy.sparse import csr_array

from benchmarks.campaign.misuse.probes import (
    AFFINITY,
    GRAPH,
    LAPLACIAN,
    MASK,
    Accepted,
    Clear,
    Probe,
    X,
    equal,
    lapeig,
    same_dtype,
)

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
    "LaplacianEigenmaps.out_of_sample": lambda x: lapeig.LaplacianEigenmaps(2, lapeig.KNN(4)).out_of_sample(x, X),
    "SpectralClustering": lapeig.SpectralClustering(2, lapeig.KNN(4)),
    "SpectralClustering.fit": lambda x: lapeig.SpectralClustering(2, lapeig.KNN(4)).fit(x),
    "SpectralClustering.predict": lapeig.SpectralClustering(2, lapeig.KNN(4)).fit(X).predict,
    "MDS": lapeig.MDS(2),
    "MDS.fit": lambda x: lapeig.MDS(2).fit(x),
    "MDS.transform": lapeig.MDS(2).fit(X).transform,
    "Isomap": lapeig.Isomap(2, lapeig.KNN(6)),
    "LLE": lapeig.LLE(2, lapeig.KNN(4)),
    "LLE.transform": lapeig.LLE(2, lapeig.KNN(4)).fit(X).transform,
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
    "Whitening": lapeig.Whitening(3).fit(X, GRAPH),
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
    """Yield values that are no tensor of points, or of outputs."""
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
        precomputed = lapeig.LaplacianEigenmaps(2, lapeig.Precomputed("affinity"))
        yield f"affinities: {kind}", partial(precomputed, value), Clear(("affinity must", *words[:1]))
    for name, call in OF_COLUMNS.items():
        rows = "(5, 3)" if "orthogonality" in name or name == "laplacian_smoothness" else "("
        if name not in ("orthogonality", "whiten", "Whitening"):
            yield f"{name}: too few rows", partial(call, X[:5]), Clear(("y must", rows))
    many = torch.nn.functional.pad(X, (0, 3))
    yield (
        "Whitening: columns",
        partial(lapeig.Whitening(3).fit(X, GRAPH), many),
        Clear(("y must have 3 columns", "(12, 6)")),
    )
    yield (
        "laplacian_smoothness: NaN",
        lambda: equal(bool(lapeig.laplacian_smoothness(X * math.nan, GRAPH).isnan()), True),
        Accepted("a loss of NaN is NaN, as of torch's own: that is loud, and gradient scalers need it"),
    )
    for half in (torch.float16, torch.bfloat16):
        yield (
            f"LaplacianEigenmaps: {half}",
            partial(same_dtype, lapeig.LaplacianEigenmaps(2, lapeig.KNN(4)), half),
            Accepted("half precision is embedded in float32 and returned as it came"),
        )
        yield f"knn_graph: {half}", partial(lapeig.knn_graph, X.to(half), 3), Clear(("x must", str(half), ".float()"))


def masks() -> Iterator[Probe]:
    """Yield values that are no mask of the points."""
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
        "LaplacianEigenmaps": lambda m: lapeig.LaplacianEigenmaps(2, lapeig.KNN(3))(X, mask=m),
        "precomputed": lambda m: lapeig.LaplacianEigenmaps(2, lapeig.Precomputed("affinity"))(AFFINITY, mask=m),
        "SpectralClustering": lambda m: lapeig.SpectralClustering(2, lapeig.KNN(3))(X, mask=m),
        "Graph.from_dense": lambda m: lapeig.Graph.from_dense(AFFINITY, mask=m),
        "orthogonality": lambda m: lapeig.orthogonality(X, mask=m),
        "whiten": lambda m: lapeig.whiten(X, mask=m),
        "LaplacianSmoothness": lambda m: lapeig.LaplacianSmoothness(lapeig.KNN(3))(X, X, m),
    }
    for (name, call), (kind, (value, words)) in itertools.product(calls.items(), bad.items()):
        shapes = words if kind != "length" else ("shape",)
        yield f"{name}: mask of {kind}", partial(call, value), Clear(("mask must", *shapes))


def probes() -> Iterator[Probe]:
    """Yield every probe of this file."""
    for section in (
        arguments_of_points,
        masks,
    ):
        yield from section()
