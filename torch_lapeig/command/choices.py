"""Choices of the command, each with its reason, and the embedding."""

from __future__ import annotations

import math
import sys
import warnings
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from torch_lapeig.command.columns import Array
from torch_lapeig.command.reading import InputError
from torch_lapeig.graph import KNN, Graph, HeatKernel, Neighbors, Precomputed, Weighting, nearest_neighbors, weights
from torch_lapeig.graph.rules import weighted_graph
from torch_lapeig.methods import LaplacianEigenmaps, SpectralClustering
from torch_lapeig.support.progress import searches_reported

NEIGHBORS = (10, 15, 20, 30)  # tried until the graph is connected
COMPONENTS = 10
MEDIAN = "the median of the squared lengths of the edges"
WEIGHTINGS: dict[str, type[Weighting]] = {"heat": HeatKernel, "simple": weights.SimpleWeights}
WEIGHTINGS |= {"self-tuning": weights.SelfTuning, "density-corrected": weights.DensityCorrected}
WEIGHTINGS |= {"improved": weights.ImprovedWeights}

Choices = dict[str, tuple[Any, str]]  # values by their names, each with the reason


class Answer(NamedTuple):
    """Fitted module on the CPU, choices, warnings of the library, and clusters if asked for."""

    module: LaplacianEigenmaps
    choices: Choices
    notes: list[str]
    clusters: Array | None  # names of the cluster of each point, None of isolated ones


@dataclass(frozen=True)
class Searched(KNN):
    """`KNN` of neighbours that were found before, of more neighbours than these."""

    nearest: Any = None  # `Neighbors`

    def with_state(self, x: Tensor) -> tuple[Graph, Tensor]:
        """Return the graph, and each point's distance to its k-th neighbour."""
        first = Neighbors(self.nearest.indices[:, : self.k], self.nearest.squared_distances[:, : self.k])
        return self.with_neighbors(first, x)


def module_of(components: int, neighbors: int, weighting: str, bandwidth: float | None) -> LaplacianEigenmaps:
    """Return the module of points, not fitted."""
    given = [] if bandwidth is None else [bandwidth]
    return LaplacianEigenmaps(components, KNN(neighbors), WEIGHTINGS[weighting](*given))


def embed(x: Any, options: Namespace) -> Answer:
    """Return the embedding of points ``(N, D)`` or given pairs ``(N, N)``, by the options of the command line."""
    t, name, has_bars = options.bandwidth, options.weighting or "heat", sys.stderr.isatty() and bool(find_spec("tqdm"))
    why = "more than a picture's two, to see where gaps are"
    components = _count(options, "components", x.shape[0] - 2, COMPONENTS, why)
    if t is not None and (name not in ("heat", "improved") or not 0 < t < math.inf):
        raise InputError(f"--bandwidth is a positive number, for --weighting heat or improved, got {t}")
    with warnings.catch_warnings(record=True) as caught, searches_reported(has_bars):
        warnings.simplefilter("always")
        try:
            if options.given in ("affinity", "edges") or issparse(x):
                graph, chosen = _of_pairs(x, options)
                bandwidth = str(t or "median") if options.given == "distance" else ""
                chosen |= _parts(graph, components[0], options)
                module = LaplacianEigenmaps(components[0], Precomputed("affinity")).fit(graph.to(options.device))
            else:
                x = torch.tensor(x, device=options.device)  # a copy: pandas gives read-only memory
                x = ((x + x.T) / 2).fill_diagonal_(0) if options.given else x
                rule, why = _neighbors(x, options)
                chosen = {"neighbors": (rule.k, why)}
                chosen["weighting"] = name, "given by --weighting" if options.weighting else "the usual one"
                module = module_of(components[0], rule.k, name, t).to(x)
                module.neighbors, graph = rule, weighted_graph(rule, module.weights, x)
                chosen |= _parts(graph, components[0], options)
                module.fit(x).neighbors = KNN(rule.k)
                bandwidth = f"{float(module.state_dict()['train_weighting'][0, 0]):.6g}" if name == "heat" else ""
            chosen |= {"bandwidth": (bandwidth, "given by --bandwidth" if t else MEDIAN)} if bandwidth else {}
            clusters = _clusters(graph, chosen, options)
        except (ValueError, TypeError, NotImplementedError, RuntimeError, AssertionError) as error:
            raise error if isinstance(error, InputError) else InputError(str(error)) from error
    notes = list(dict.fromkeys(str(warning.message) for warning in caught))
    return Answer(module.cpu(), chosen | {"components": components}, notes, clusters)


def _clusters(graph: Graph, chosen: Choices, options: Namespace) -> Array | None:
    if options.clusters is None:
        return None
    count: Any = "eigengap"
    asked, why = options.clusters, "from 2 to 10, the largest gap of eigenvalues"
    if asked != "auto":
        if not asked.isdecimal() or not 0 < int(asked) < graph.num_nodes:
            raise InputError(f"--clusters is auto, or a number below that of the points, got {asked}")
        count, why = int(asked), "given by --clusters"
    model = SpectralClustering(count, Precomputed("affinity"), assign_labels="cluster_qr").fit(graph)  # not random
    labels, k = model.labels_.tolist(), model.n_clusters_
    if asked == "auto" and float(model.gap_) <= 3 * float(model.eigenvalues_[k - 1]):
        why += ", which is no evidence of more than one cluster"
    chosen["clusters"] = k, f"{why}: {', '.join(str(labels.count(i)) for i in range(k))} points"
    return np.array([None if label < 0 else str(label) for label in labels], dtype=object)


def _of_pairs(pairs: Any, options: Namespace) -> tuple[Graph, Choices]:
    if options.given != "distance":
        pairs = csr_array((pairs + pairs.T) / 2, dtype=float)
        pairs.setdiag(0)
        return Graph.from_scipy(pairs), {"weights": ("given", f"by --given {options.given}")}
    if options.neighbors is not None:
        raise InputError("--neighbors does not go with sparse distances, whose stored pairs are the neighbours")
    graph = weighted_graph(Precomputed("distance"), HeatKernel(options.bandwidth or "median"), pairs)
    why = "the pairs that the file stores; those stored one way have half the weight, as in KNN"
    return graph, {"neighbors": (f"{graph.edge_index.shape[1] / graph.num_nodes:.3g} each", why)}


def _count(options: Namespace, option: str, most: int, usual: int, why: str) -> tuple[int, str]:
    value = getattr(options, option)
    if value is not None and not 1 <= value <= most:
        raise InputError(f"--{option} must be from 1 to {most} for so many points, got {value}")
    return value or min(usual, most), f"given by --{option}" if value else why


def _neighbors(x: Tensor, options: Namespace) -> tuple[KNN, str]:
    """Return the rule of the graph, and the reason for its number of neighbours."""
    most, why = _count(options, "neighbors", len(x) - 1, NEIGHBORS[-1], "")
    rule: Any = partial(KNN, metric=Precomputed("distance"))
    if not options.given:
        rule = partial(Searched, nearest=nearest_neighbors(x, most))
    if options.neighbors is not None:
        return rule(most), why
    tried, why = sorted({min(k, most) for k in NEIGHBORS}), "the usual number, and it joins all points"
    for k in tried:
        if len(rule(k).with_state(x)[0].nodes_of_components()) == 1:
            return rule(k), why
        why = f"with {k} the graph falls apart"
    return rule(tried[0]), f"the usual number; up to {most} the graph falls apart all the same"


def _parts(graph: Graph, components: int, options: Namespace) -> Choices:
    sizes = sorted(map(len, graph.nodes_of_components()), reverse=True)
    alone = graph.num_nodes - sum(sizes)
    if alone and sum(sizes) <= components:
        way = "take a larger --bandwidth or its default" if options.given in (None, "distance") else "give more pairs"
        raise InputError(f"{alone} of {graph.num_nodes} points have no edge of positive weight: {way}")
    why = f"it joins all {'others' if alone else 'points'}, by {graph.edge_index.shape[1] // 2:,} edges"
    if len(sizes) > 1:
        shown = ", ".join(f"{size:,}" for size in sizes[:8]) + (", …" if len(sizes) > 8 else "")
        why = f"{shown} points: the first {len(sizes) - 1} columns only tell them apart; more --neighbors may join them"
    lost = "too far from all for the bandwidth: their rows are zero; --weighting self-tuning gives them weights"
    return {"parts": (len(sizes), why)} | ({"isolated": (alone, lost)} if alone else {})
