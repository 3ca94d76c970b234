"""Clusters, kernels, distances and operators whose values make no sense."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.campaign.misuse.probes import (
    AFFINITY,
    DENSE,
    GRAPH,
    KERNEL,
    LABELS,
    LAPLACIAN,
    SOFT,
    STRONG,
    Accepted,
    Clear,
    Probe,
    X,
    lapeig,
    same,
    shown,
)


def assignments() -> Iterator[Probe]:
    """Yield rows that are no assignment to clusters."""
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
        lambda: same(lapeig.normalized_cut(SOFT, GRAPH), expected),
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
    """Yield functions whose values are no weights, or no kernel."""
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
        word = "x must" if kind in ("graph", "points") else "distances must"
        yield (
            f"MDS of distances: {kind}",
            partial(lapeig.MDS(2, metric=lapeig.Precomputed("distance")), value),
            Clear((word, *words)),
        )


def solving() -> Iterator[Probe]:
    """Yield matrices that are no operator, and eigenpairs that do not exist."""
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
    short = partial(LAPLACIAN.matmul, X[:4])
    yield "matmul: too few rows", short, Clear(("y must have shape", "(4, 3)"))
    yield "zero vectors", partial(lapeig.knn_graph, 0 * X, 3, metric="cosine"), Clear(("positive length", "12 zero"))
    yield "too large", partial(lapeig.knn_graph, 1e200 * X, 3), Clear(("x must be at most", "rescale"))
    yield "no edge", partial(lapeig.radius_graph, X, 1e-9), Clear(("radius must reach", "1e-09", "larger radius"))
    yield "columns > N", partial(lapeig.LaplacianEigenmaps(12, lapeig.KNN(3)), X), Clear(("n_components=12", "12"))
    unnormalized = partial(lapeig.LaplacianEigenmaps, 2, normalization="unnormalized", diffusion=1.0)
    yield "diffusion of L", unnormalized, Clear(("diffusion must be 0", "unnormalized"))


def _with_shape_named(operator: Any, arguments: tuple[Any, ...]) -> object:
    return operator(*arguments)


def probes() -> Iterator[Probe]:
    """Yield every probe of this file."""
    for section in (
        assignments,
        kernels,
        solving,
    ):
        yield from section()
