"""Graphs, affinities, edges and matrices that are none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array

from benchmarks.campaign.misuse.points import BAD_TENSORS
from benchmarks.campaign.misuse.probes import (
    AFFINITY,
    DENSE,
    GRAPH,
    LABELS,
    LAPLACIAN,
    MASK,
    PAIR,
    Accepted,
    Clear,
    Probe,
    X,
    lapeig,
    same,
    same_affinity,
    shown,
)

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
    """Yield other objects in place of a graph, and graphs in place of other objects."""
    bad: dict[str, tuple[Any, str]] = {
        "tensor": (AFFINITY, "Tensor"),
        "Laplacian": (LAPLACIAN, "graph.graph"),
        "word": ("graph", "'graph'"),
        "SciPy": (GRAPH.to_scipy(), "csr_array"),
        "rule": (lapeig.KNN(3), "KNN"),
        "class": (lapeig.Graph, "the class Graph"),
        "signed graph": (lapeig.SignedGraph.from_dense(-AFFINITY), "SignedLaplacian"),
        "directed graph": (lapeig.DirectedGraph.from_dense(AFFINITY.triu()), "MagneticLaplacian"),
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
    for module in (
        lapeig.LaplacianEigenmaps(2, lapeig.Precomputed("affinity")),
        lapeig.SpectralClustering(2, lapeig.Precomputed("affinity")),
    ):
        name = type(module).__name__
        yield (
            f"{name}: graph and mask",
            partial(module, GRAPH, mask=MASK),
            Clear(("mask must be None", "has its own")),
        )
        yield f"{name}: points", partial(module, X), Clear(("affinity", "(N, N)", "(12, 3)"))
        yield f"{name}: operator", partial(module, LAPLACIAN), Clear(("affinity must be", "Laplacian"))
    short = lapeig.knn_graph(X[:6], 3)
    for name in ("HeatKernel", "SelfTuning", "DensityCorrected", "ImprovedWeights"):
        weighting = getattr(lapeig, name)()
        yield f"{name}: other points", partial(weighting, X, short), Clear(("x must have shape", "(12, 3)"))


def making_graphs() -> Iterator[Probe]:
    """Yield affinities, edges and matrices that are none."""
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
    """Yield edges, weights and batches that are none."""
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
    """Yield SciPy's matrices that are no affinities, and dtypes that hold none."""
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
        yield f"from_scipy: {kind} matrix", partial(same, weight, GRAPH.weight), Accepted("exact in float64")


def _encode(edge_index: Any, edge_weight: Any = None) -> object:
    return lapeig.laplacian_positional_encoding(edge_index, 2, 1, edge_weight)


def changing_graphs() -> Iterator[Probe]:
    """Yield weights, dtypes, devices and nodes that a graph cannot have."""
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
        half = partial(same_affinity, graph, "with_weight", graph.weight / 2, AFFINITY / 2)
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
        part = partial(same_affinity, graph, "subgraph", few, AFFINITY[few][:, few])
        yield f"subgraph, {name}: order", part, Accepted("nodes may come in any order")
    for view in ("edge_index",):
        yield f"{view} of a dense graph", partial(getattr, DENSE, view), Clear((view, "to_sparse"))
    batch = lapeig.knn_graph(X[None], 3)
    yield "to_scipy of a batch", batch.to_scipy, Clear(("one graph", "(1, 12)"))


def probes() -> Iterator[Probe]:
    """Yield every probe of this file."""
    for section in (
        graphs_for_others,
        making_graphs,
        changing_graphs,
    ):
        yield from section()
