"""Choices of the command, each with its reason, and its results."""

from __future__ import annotations

import math
import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from torch_lapeig.command.reading import Array, InputError
from torch_lapeig.graph import (
    KNN,
    DensityCorrected,
    Graph,
    HeatKernel,
    ImprovedWeights,
    SelfTuning,
    SimpleWeights,
    Weighting,
    nearest_neighbors,
)
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.methods import LaplacianEigenmaps

NEIGHBORS = (10, 15, 20, 30)  # tried until the graph is connected
COMPONENTS = 10
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


@dataclass(frozen=True)
class Answer:
    """Embedding with the choices made for it.

    Attributes:
        module: fitted. graph: weighted, of the points. columns: ``(N, k)``. new: ``(Q, k)`` of new points, or None.
        choices: with their reasons. notes: warnings of the library and decisions while reading.
        code: lines of Python that make the module anew; ``model.pt`` is then loaded into it.
    """

    module: LaplacianEigenmaps
    graph: Graph
    columns: Tensor
    new: Tensor | None
    choices: list[Choice]
    notes: list[str]
    code: str

    def spectrum(self) -> list[tuple[int, float, float, float]]:
        """Return for each column its number from 1, eigenvalue, gap to the next eigenvalue, and residual."""
        values = self.module.eigenvalues_.tolist()
        gaps = [*np.diff(values).tolist(), float(self.module.gap_)]
        return list(zip(range(1, len(values) + 1), values, gaps, self.module.residuals_.tolist(), strict=True))


def embed(x: Array, x_new: Array | None, wishes: Namespace, notes: Sequence[str], device: torch.device) -> Answer:
    """Return the embedding of points ``(N, D)``, and of new points by Nyström's formula.

    ``wishes`` are options of the command line, None for the command to choose; `InputError` where one cannot be met.
    """
    points = torch.tensor(x, device=device)  # a copy: pandas gives read-only memory
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            weights, code, weighting = _weighting(wishes)
            neighbors = _neighbors(points, wishes)
            components = _components(len(points), wishes)
            rule, count = KNN(int(neighbors.value)), int(components.value)
            module = LaplacianEigenmaps(count, rule, weights.to(points.dtype)).to(device).fit(points)
            row, col = module.train_edges
            graph = weights(points, Graph(SparsePattern(row, col, (len(points),)), module.train_connectivity))
            new = None if x_new is None else module.transform(torch.tensor(x_new, device=device))
        except (ValueError, TypeError, NotImplementedError) as error:
            raise error if isinstance(error, InputError) else InputError(str(error)) from error
    said = list(dict.fromkeys(str(warning.message) for warning in caught))
    choices = [neighbors, weighting, *_bandwidth(weights, points, graph), components, _component_rule(graph)]
    code = code.format(rule=f"KNN({neighbors.value})", components=count)
    return Answer(module, graph, module.embedding_, new, choices, [*notes, *said], code)


def _given(name: str, option: str, value: int, most: int, limit: str) -> Choice:
    """Return the choice of a count that the user gives, from 1 to ``most``."""
    if not 1 <= value <= most:
        raise InputError(f"--{option} must be from 1 to {most} ({limit}), got {value}")
    return Choice(name, str(value), f"given by --{option}")


def _neighbors(points: Tensor, wishes: Namespace) -> Choice:
    most = len(points) - 1
    if wishes.neighbors is not None:
        return _given("neighbours", "neighbors", wishes.neighbors, most, "the points less one")
    tried = sorted({min(k, most) for k in NEIGHBORS})
    nearest = nearest_neighbors(points, tried[-1]).indices.cpu().numpy()  # ascending: the first k are those of KNN(k)
    why = "the usual number, and it joins all points"
    for k in tried:
        if _parts(nearest[:, :k]) == 1:
            return Choice("neighbours", str(k), why)
        why = f"with {k} the graph falls apart"
    why = f"the usual number; up to {tried[-1]} the graph falls apart all the same"
    return Choice("neighbours", str(tried[0]), why)


def _parts(nearest: Array) -> int:
    """Return the number of connected components of the graph that joins each point to its nearest ``(N, k)``."""
    n, k = nearest.shape
    joined = csr_array((np.ones(n * k, dtype=bool), nearest.ravel(), np.arange(n + 1) * k), shape=(n, n))
    return int(connected_components(joined, directed=False, return_labels=False))


def _components(n: int, wishes: Namespace) -> Choice:
    most = n - 2  # the constant eigenvector is left out, and the gap needs one more
    if wishes.components is not None:
        return _given("components", "components", wishes.components, most, "the points less two")
    if most < COMPONENTS:
        return Choice("components", str(most), "all but the last: there are few points")
    return Choice("components", str(COMPONENTS), "more than the picture's two, to see where the eigenvalues have gaps")


def _weighting(wishes: Namespace) -> tuple[Weighting, str, Choice]:
    """Return the weighting, the code that makes the module, and the choice."""
    name = wishes.weighting or "heat"
    why = "given by --weighting" if wishes.weighting else "the library's default"
    if wishes.bandwidth is not None:
        if name not in ("heat", "improved"):
            raise InputError(f"--bandwidth is the heat kernel's, and --weighting {name} has none of that kind")
        if not 0 < wishes.bandwidth < math.inf:
            raise InputError(f"--bandwidth must be a positive number, got {wishes.bandwidth}")
        made, call = WEIGHTINGS[name](wishes.bandwidth), f"{WEIGHTINGS[name].__name__}({wishes.bandwidth!r})"
    elif name in WEIGHTINGS:
        made, call = WEIGHTINGS[name](), f"{WEIGHTINGS[name].__name__}()"
    else:
        return _imported(name)
    line = f"from torch_lapeig import KNN, LaplacianEigenmaps, {WEIGHTINGS[name].__name__}\n\n"
    return made, f"{line}module = LaplacianEigenmaps({{components}}, {{rule}}, {call})", Choice("weighting", name, why)


def _imported(path: str) -> tuple[Weighting, str, Choice]:
    """Return a weighting of the user's own, ``module:name``: an instance, or the result of calling a factory."""
    module, colon, name = path.partition(":")
    if not colon:
        raise InputError(f"--weighting must be of {', '.join(WEIGHTINGS)}, or module:name of your own, got {path!r}")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"--weighting {path}: {error}; a module in this folder is found by python -m torch_lapeig embed, or with "
            "PYTHONPATH=."
        ) from error
    call = name if isinstance(found, Weighting) else f"{name}()"
    made = found if isinstance(found, Weighting) or not callable(found) else found()
    if not isinstance(made, Weighting):
        raise InputError(
            f"--weighting {path} must be or make a torch_lapeig.graph.Weighting, got {type(made).__name__}"
        )
    line = f"from torch_lapeig import KNN, LaplacianEigenmaps\n\nfrom {module} import {name}\n\n"
    code = f"{line}module = LaplacianEigenmaps({{components}}, {{rule}}, {call})"
    return made, code, Choice("weighting", path, "given by --weighting")


def _bandwidth(weights: Weighting, points: Tensor, graph: Graph) -> list[Choice]:
    """Return the bandwidth that the heat kernel used."""
    if not isinstance(weights, HeatKernel):
        return []
    t = float(weights.state(points, graph)[0, 0])
    why = "the median of the squared lengths of the edges" if weights.t == "median" else "given by --bandwidth"
    return [Choice("bandwidth", f"{t:.6g}", why)]


def _component_rule(graph: Graph) -> Choice:
    sizes = sizes_of_parts(graph)
    alone, parts = sizes.count(1), len(sizes) - sizes.count(1)
    why = "it is connected, and all points are embedded together"
    if parts > 1:
        why = f"the first {parts - 1} columns only tell them apart; more --neighbors may join them"
    if alone:
        why = why if parts > 1 else "the others are connected"
        why = f"{why}; {alone} points are too far from all for the bandwidth: their rows are zero"
    return Choice("parts of the graph", f"{parts}, and {alone} alone" if alone else str(parts), why)


def sizes_of_parts(graph: Graph) -> list[int]:
    """Return the number of points of each component of a graph, the largest first; 1 for an isolated point."""
    counts: list[int] = graph.connected_components().unique(return_counts=True)[1].tolist()
    return sorted(counts, reverse=True)
