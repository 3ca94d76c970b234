"""Encodings, scikit-learn's estimators, fitted modules, the Lightning callback, and recording of modules."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import nn

from benchmarks.campaign.misuse.probes import (
    AFFINITY,
    GRAPH,
    PAIR,
    WRONG,
    Accepted,
    Clear,
    Probe,
    X,
    called_with,
    equal,
    estimated,
    estimators,
    lapeig,
    shown,
)


class _Data:
    """Stand-in for PyTorch Geometric's data, with what a transform needs."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update({"x": None, "num_nodes": 2, **values})

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)


def encodings() -> Iterator[Probe]:
    """Yield edges, nodes and names that no encoding is made of."""
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
    yield "AddLaplacianPE: no data", lambda: equal(add([]), []), Accepted("a list of no data has no encodings")
    whole = _Data(edge_index=PAIR, edge_weight=torch.ones(2, dtype=torch.int64))
    yield (
        "AddLaplacianPE: integer weights",
        partial(add, whole),
        Accepted("PyTorch Geometric's counts, exact as floats"),
    )


def of_estimators() -> Iterator[Probe]:
    """Yield probes of estimators beyond scikit-learn's own checks."""
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
        dense = ("ClassicalMDS", "LocallyLinearEmbedding")
        takes_sparse = kind == "sparse" and name not in dense
        expected = Accepted("as scikit-learn's do") if takes_sparse else Clear(words)
        yield f"{name} estimator: {kind}", partial(called_with, make, "fit", value), expected
    for name, make in makes.items():
        new = "predict" if name == "SpectralClustering" else "transform"
        yield f"{name} estimator: not fitted", partial(called_with, make, new, array), Clear(("not fitted",))
        fit = make().fit(array)
        yield f"{name} estimator: width", partial(getattr(fit, new), array[:, :2]), Clear(("2 features", "3 features"))
        yield (
            f"{name} estimator: a list",
            partial(called_with, make, "fit", array.tolist()),
            Accepted("scikit-learn's convention"),
        )
    for value, word in {"zero": "'zero'", -1: "between 0 and 2**32", 1.5: "1.5"}.items():
        make = estimated("SpectralClustering", "random_state", n_clusters=2, n_neighbors=4)
        yield f"random_state={value!r}", partial(make, value), Clear((word,))
    for value in ("gpu", "cuda:x"):
        yield (
            f"device={value!r}",
            partial(estimated("ClassicalMDS", "device"), value),
            Clear((value,), (RuntimeError, *WRONG)),
        )
    affinity = AFFINITY.numpy()
    averaged = Accepted("averaged, with a warning, as scikit-learn's do")
    matrices: dict[str, tuple[Any, Accepted | Clear]] = {
        "asymmetric": (np.triu(affinity), averaged),
        "negative": (-affinity, Clear(("affinities", "non-negative"))),
        "rectangular": (affinity[:5], Clear(("affinity", "(5, 12)"))),
        "sparse and asymmetric": (csr_array(np.triu(affinity)), averaged),
    }
    for kind, (value, expectation) in matrices.items():
        precomputed = estimators.SpectralEmbedding(affinity="precomputed")
        yield f"precomputed of an estimator: {kind}", partial(precomputed.fit, value), expectation
    yield "kernel of an estimator", partial(estimated("KernelPCA", "kernel"), 3), Clear(("kernel must be", "3"))


def embeddings() -> dict[str, Any]:
    """Return a module of each method, by its name."""
    return {
        "LaplacianEigenmaps": lapeig.LaplacianEigenmaps(2, lapeig.KNN(4)),
        "SpectralClustering": lapeig.SpectralClustering(2, lapeig.KNN(4)),
        "MDS": lapeig.MDS(2),
        "Isomap": lapeig.Isomap(2, lapeig.KNN(6)),
        "LLE": lapeig.LLE(2, lapeig.KNN(4)),
        "KernelPCA": lapeig.KernelPCA(2),
    }


def fitted() -> Iterator[Probe]:
    """Yield new points before a fit, or unlike those of the fit."""
    makes = embeddings()
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
        module = getattr(lapeig, name)(2, lapeig.Precomputed("affinity"))
        yield f"{name}: fit of graphs", partial(module.fit, batch), Clear(("(1, 12)", "one by one"))


def callbacks() -> Iterator[Probe]:
    """Yield options of the Lightning callback, where Lightning is installed."""
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")
        from torch_lapeig import lightning

        callback: Any = lightning.SmoothnessCallback
        for value in (0.0, -1.0, math.nan, math.inf, "1", True, None, [1.0]):
            yield f"callback: weight={value!r}", partial(callback, value), Clear(("weight must be", shown(value)))
        others: dict[str, tuple[Any, ...]] = {
            "module": (3, None, nn.Linear(2, 2)),
            "loss": ("smoothness", lapeig.LaplacianSmoothness, lapeig.laplacian_smoothness, 1.0),
            "graph_from": ("x", None, 3),
            "name": (3, None),
        }
        for name, values in others.items():
            for other in values:
                call = partial(callback, 1.0, **{name: other})
                yield f"callback: {name}={other!r:.20}", call, Clear((f"{name} must", shown(other)))
        learnable = lapeig.LaplacianSmoothness(weights=lapeig.HeatKernel(learnable=True))
        yield "callback: learnable loss", partial(callback, 1.0, loss=learnable), Clear(("loss must", "no learnable"))
        yield "callback: np.float32", lambda: callback(np.float32(0.5)), Accepted("a number of NumPy is one")


class _Network(nn.Module):
    """A layer inside a network."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(3, 3, dtype=torch.float64), layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(self.first(x))


def recorded() -> Iterator[Probe]:
    """Yield `torch.export`, `torch.jit.trace` and `torch.vmap` of what depends on the data at every step."""
    layers = embeddings()
    for name, layer in layers.items():
        network, words = _Network(layer), (name, "torch.export or torch.jit.trace", "use torch.compile")
        words = (words[0] if name in ("LaplacianEigenmaps", "SpectralClustering") else "", *words[1:])
        yield f"export of {name}", partial(torch.export.export, network, (X,)), Clear(words, (RuntimeError,))
        yield f"trace of {name}", partial(torch.jit.trace, network, X), Clear(words, (RuntimeError,))
        yield f"vmap of {name}", partial(torch.vmap(layer), X[None]), Clear(("x must", "torch.vmap", "batch"))
    whitening = _Network(lapeig.Whitening(3).fit(X, GRAPH))
    yield "export of Whitening", partial(torch.export.export, whitening, (X,)), Accepted("an affine map: no data in it")
    yield "trace of Whitening", partial(torch.jit.trace, whitening, X), Accepted("an affine map: no data in it")


def probes() -> Iterator[Probe]:
    """Yield every probe of this file."""
    for section in (
        encodings,
        of_estimators,
        fitted,
        callbacks,
        recorded,
    ):
        yield from section()
