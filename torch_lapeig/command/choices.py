"""Choices of the command, each with its reason, and the embedding."""

from __future__ import annotations

import math
import warnings
from argparse import Namespace
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from torch_lapeig.command.columns import ROUNDOFF, Array
from torch_lapeig.command.reading import InputError
from torch_lapeig.graph import (
    KNN,
    DensityCorrected,
    Graph,
    HeatKernel,
    ImprovedWeights,
    Precomputed,
    SelfTuning,
    SimpleWeights,
    Weighting,
    nearest_neighbors,
)
from torch_lapeig.graph.search.neighbors import Neighbors
from torch_lapeig.methods import LaplacianEigenmaps

NEIGHBORS = (10, 15, 20, 30)  # tried until the graph is connected
COMPONENTS = 10
# Warnings that the report says in other words.
REPORTED = ("the neighbourhood graph has", "nodes are isolated", "at least half of the edges join copies")
WEIGHTINGS: dict[str, type[Weighting]] = {
    "heat": HeatKernel,
    "simple": SimpleWeights,
    "self-tuning": SelfTuning,
    "density-corrected": DensityCorrected,
    "improved": ImprovedWeights,
}


class Choice(NamedTuple):
    """Choice of the user, or of the program with its reason."""

    name: str
    value: str
    why: str


class Answer(NamedTuple):
    """Fitted module on the CPU, weighted graph, choices, and warnings of the library."""

    module: LaplacianEigenmaps
    graph: Graph
    choices: list[Choice]
    notes: list[str]


@dataclass(frozen=True)
class Searched(KNN):
    """`KNN` of neighbours that were found before, of more neighbours than these."""

    nearest: Neighbors | None = None

    def with_state(self, x: Tensor) -> tuple[Graph, Tensor]:
        """Return the graph and each point's distance to its k-th neighbour."""
        assert self.nearest is not None
        first = Neighbors(self.nearest.indices[:, : self.k], self.nearest.squared_distances[:, : self.k])
        return self.with_neighbors(first, x)


def module_of(components: int, neighbors: int, weighting: str, bandwidth: float | None) -> LaplacianEigenmaps:
    """Return the module of points, not fitted."""
    weights = WEIGHTINGS[weighting](*([] if bandwidth is None else [bandwidth]))
    return LaplacianEigenmaps(components, KNN(neighbors), weights)


def embed(x: Any, options: Namespace) -> Answer:
    """Return the embedding of points ``(N, D)`` or given pairs ``(N, N)``.

    ``options`` are those of the command line, None for the command to choose; `InputError` where one cannot be met.
    """
    n = x.shape[0]
    components = _count(options, "components", n - 2, COMPONENTS, "more than a picture's two, to see where gaps are")
    k, t = int(components.value), options.bandwidth
    if t is not None and (options.weighting not in (None, "heat", "improved") or not 0 < t < math.inf):
        raise InputError(f"--bandwidth is a positive number, for --weighting heat or improved, got {t}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            module, given, graph, choices = (_of_pairs if options.given else _of_points)(x, k, options)
            alone = graph.num_nodes - sum(map(len, graph.nodes_of_components()))
            if alone and n - alone <= k:
                way = "larger --bandwidth or its default, more --neighbors, or --weighting self-tuning"
                raise InputError(f"{alone} of {n} points have no edge of positive weight: take a {way}")
            module.to(options.device).fit(given)
        except (ValueError, TypeError, NotImplementedError, RuntimeError, AssertionError) as error:
            raise error if isinstance(error, InputError) else InputError(" ".join(str(error).split())) from error
    said = dict.fromkeys(str(warning.message) for warning in caught)
    notes = [message for message in said if not any(words in message for words in REPORTED)]
    return Answer(module.cpu(), graph.to("cpu"), [*choices, components, *_parts(graph, alone)], notes)


def _of_points(x: Array, k: int, options: Namespace) -> tuple[LaplacianEigenmaps, Any, Graph, list[Choice]]:
    """Return the module of points, its input, the graph of their nearest neighbours, and the choices."""
    points = torch.tensor(x, device=options.device)  # a copy: pandas gives read-only memory
    nearest = nearest_neighbors(points, _most(options, len(x)))
    neighbors = _neighbors(nearest.indices.cpu().numpy(), options)
    name = options.weighting or "heat"
    module = module_of(k, int(neighbors.value), name, options.bandwidth).to(points)
    assert module.weights is not None
    rule = Searched(int(neighbors.value), nearest=nearest)
    graph = module.weights(points, rule.with_state(points)[0])
    module.neighbors = rule
    choices = [neighbors, Choice("weighting", name, "given" if options.weighting else "the library's default")]
    return module, points, graph, choices + _bandwidth(module.weights, graph.pattern.squared_lengths(points), graph)


def _of_pairs(pairs: Any, k: int, options: Namespace) -> tuple[LaplacianEigenmaps, Any, Graph, list[Choice]]:
    """Return the module of given pairs, its input twice, and the choices: affinities are the weights."""
    if options.given == "distance":
        graph, choices = _of_distances(pairs, options)
    else:
        pairs = csr_array((pairs + pairs.T) / 2, dtype=float)
        pairs.setdiag(0)
        graph, choices = Graph.from_scipy(pairs), [Choice("weights", "given", f"by --given {options.given}")]
    graph = graph.to(options.device)
    return LaplacianEigenmaps(k, Precomputed("affinity")), graph, graph, choices


def _of_distances(distances: Any, options: Namespace) -> tuple[Graph, list[Choice]]:
    """Return the graph of given distances with the weights of the heat kernel, and the choices.

    The neighbours are the nearest of a dense matrix, or the stored pairs of a sparse one.
    """
    n = distances.shape[0]
    if issparse(distances):
        pairs = distances.tocoo()
        row, col, length = (part[pairs.row != pairs.col] for part in (pairs.row, pairs.col, pairs.data))
        neighbors = Choice("neighbors", f"{len(row) / n:.3g} each", "the pairs that the file stores")
    else:
        others = distances + np.diag(np.full(n, np.inf))
        nearest = np.argsort(others, axis=1, kind="stable")[:, : _most(options, n)]
        neighbors = _neighbors(nearest, options)
        nearest = nearest[:, : int(neighbors.value)]
        row, col = np.repeat(np.arange(n), nearest.shape[1]), nearest.ravel()
        length = distances[row, col]
    # Both directions of each pair, of which the file or the search may have one: the mean, as `KNN` takes it.
    keys = np.concatenate([row.astype(np.int64) * n + col, col.astype(np.int64) * n + row])
    keys, place, directions = np.unique(keys, return_inverse=True, return_counts=True)
    lengths = np.bincount(place, np.tile(length.astype(float), 2)) / directions
    if (abs(lengths[place] - np.tile(length, 2)) > ROUNDOFF * lengths.max(initial=0)).any():
        raise InputError(
            "a pair has another stored distance in each direction: take their mean, or one of them for both"
        )
    graph = Graph.from_scipy(csr_array((directions / 2, (keys // n, keys % n)), (n, n)))
    one_sided = f"{int((directions == 1).sum()) // 2:,} are stored or near from one side: half the weight, as in KNN"
    weights, squares = HeatKernel(options.bandwidth or "median"), torch.from_numpy(lengths).square()
    weight = graph.weight * torch.exp(-squares / weights.bandwidth(squares, graph)[graph.edge_index[0]])
    choices = [neighbors, Choice("pairs", f"{len(keys) // 2:,}", one_sided), *_bandwidth(weights, squares, graph)]
    return graph.with_weight(weight), choices


def _count(options: Namespace, option: str, most: int, usual: int, why: str) -> Choice:
    """Return the choice of a count from 1 to ``most``."""
    value = getattr(options, option)
    if value is not None and not 1 <= value <= most:
        raise InputError(f"--{option} must be from 1 to {most} for so many points, got {value}")
    return Choice(option, str(value or min(usual, most)), f"given by --{option}" if value else why)


def _most(options: Namespace, n: int) -> int:
    """Return how many neighbours of n points are searched."""
    return int(_count(options, "neighbors", n - 1, NEIGHBORS[-1], "").value)


def _neighbors(nearest: Array, options: Namespace) -> Choice:
    """Return the number of neighbours, of the nearest ``(N, k)``, ascending: the first k are those of ``KNN(k)``."""
    n, most = nearest.shape
    tried = sorted({min(k, most) for k in NEIGHBORS})
    why = "the usual number, and it joins all points"
    for k in tried if options.neighbors is None else []:
        joined = csr_array((np.ones(n * k, dtype=bool), nearest[:, :k].ravel(), np.arange(n + 1) * k), shape=(n, n))
        if connected_components(joined, directed=False, return_labels=False) == 1:
            return Choice("neighbors", str(k), why)
        why = f"with {k} the graph falls apart"
    why = f"the usual number; up to {most} the graph falls apart all the same"
    return _count(options, "neighbors", most, tried[0], why)


def _bandwidth(weights: Weighting, squared_lengths: Tensor, graph: Graph) -> list[Choice]:
    """Return the bandwidth that the heat kernel used."""
    if not isinstance(weights, HeatKernel):
        return []
    why = "given by --bandwidth"
    if weights.t == "median":
        why = "the median of the squared lengths of the edges"
        if 2 * int((squared_lengths > 0).sum()) <= len(squared_lengths):
            why += " that are not 0: half of them or more join copies of a point"
    return [Choice("bandwidth", f"{float(weights.bandwidth(squared_lengths, graph)[0]):.6g}", why)]


def _parts(graph: Graph, alone: int) -> list[Choice]:
    """Return the parts of the graph and the isolated points, each with its consequence."""
    sizes = sorted(map(len, graph.nodes_of_components()), reverse=True)
    why = f"it joins all {'others' if alone else 'points'}, by {graph.edge_index.shape[1] // 2:,} edges"
    if len(sizes) > 1:
        shown = ", ".join(f"{size:,}" for size in sizes[:8]) + (", …" if len(sizes) > 8 else "")
        why = f"{shown} points: the first {len(sizes) - 1} columns only tell them apart; more --neighbors may join them"
    found = [Choice("parts of the graph", str(len(sizes)), why)]
    why = "too far from all for the bandwidth: their rows are zero; --weighting self-tuning gives them weights"
    return [*found, Choice("isolated points", str(alone), why)] if alone else found
