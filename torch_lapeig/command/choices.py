"""Choices of the command, each with its reason, and its results."""

from __future__ import annotations

import math
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from torch_lapeig.command.points import Array
from torch_lapeig.command.tables import InputError
from torch_lapeig.eigen import Solve
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
from torch_lapeig.graph.distances import Nearest
from torch_lapeig.graph.search.neighbors import Neighbors
from torch_lapeig.graph.search.tiles import without_own
from torch_lapeig.methods import LaplacianEigenmaps

NEIGHBORS = (10, 15, 20, 30)  # tried until the graph is connected
COMPONENTS = 10
NEARLY_SEPARATE = 0.1  # an eigenvalue below this share of the next one tells a part that hardly any weight joins
LONG = 2e11  # products of a search that takes seconds
LARGE = 20_000  # nodes of a graph whose eigenpairs take seconds
REPORTED = (
    "the neighbourhood graph has",
    "nodes are isolated",
    "at least half of the edges join copies",
)  # warnings that the report says in other words
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


class Column(NamedTuple):
    """Column of an embedding: its number from 1, its eigenvalue, the gap over the next eigenvalue, its residual."""

    number: int
    value: float
    gap: float
    residual: float


@dataclass(frozen=True)
class Answer:
    """Embedding with the choices made for it.

    Attributes:
        module: fitted. graph: weighted, of the points. columns: ``(N, k)``. new: ``(Q, k)`` of new points, or None.
        choices: with their reasons. notes: warnings of the library and decisions while reading.
        code: lines of Python that make the module anew; ``model.pt`` is then loaded into it. Empty without points.
    """

    module: LaplacianEigenmaps
    graph: Graph
    columns: Tensor
    new: Tensor | None
    choices: list[Choice]
    notes: list[str]
    code: str

    def spectra(self) -> list[list[Column]]:
        """Return the columns of all points together, or of each part that is embedded on its own."""
        module, found = self.module, []
        for values, residuals, gap in zip(
            np.atleast_2d(module.eigenvalues_.cpu()),
            np.atleast_2d(module.residuals_.cpu()),
            np.atleast_1d(module.gap_.cpu()),
            strict=True,
        ):
            values = values[np.isfinite(values)]  # a small part lacks the others
            nexts = np.append(values[1:], values[-1:] + gap)
            has_gap = (nexts > 0) & np.isfinite(nexts)
            gaps = np.where(has_gap, 1 - values / np.where(has_gap, nexts, 1), 0)
            rows = zip(values.tolist(), gaps.tolist(), residuals.tolist(), strict=False)
            found.append([Column(i + 1, *row) for i, row in enumerate(rows)])
        return found


class Weighed(NamedTuple):
    """Graph to embed: the module for it and its input, the graph's weights, and how it was chosen."""

    module: LaplacianEigenmaps
    given: Any
    graph: Graph
    choices: list[Choice]
    code: str


@dataclass(frozen=True)
class Searched(KNN):
    """`KNN` of neighbours that were found before, of more neighbours than these."""

    nearest: Neighbors | None = None

    def with_state(self, x: Tensor) -> tuple[Graph, Tensor]:
        """Return the graph and each point's distance to its k-th neighbour."""
        assert self.nearest is not None
        first = Neighbors(self.nearest.indices[:, : self.k], self.nearest.squared_distances[:, : self.k])
        return self.with_neighbors(first, x)


def embed(x: Any, x_new: Array | None, wishes: Namespace, notes: Sequence[str], device: torch.device) -> Answer:
    """Return the embedding of points ``(N, D)`` or given pairs ``(N, N)``, and of new points by Nyström's formula.

    ``wishes`` are options of the command line, None for the command to choose; `InputError` where one cannot be met.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            components = _components(x.shape[0], wishes)
            weighed = (_of_pairs if wishes.given else _of_points)(x, int(components.value), wishes, device)
            _check_weights(weighed.graph, int(components.value), wishes)
            module = weighed.module.to(device)
            module.solve = _solve(weighed.graph.num_nodes, int(components.value))
            module.fit(weighed.given)
            if isinstance(module.neighbors, Searched):
                module.neighbors = KNN(module.neighbors.k)  # as load.py makes it
            new = None if x_new is None else module.transform(torch.tensor(x_new, device=device))
        except (ValueError, TypeError, NotImplementedError) as error:
            raise error if isinstance(error, InputError) else InputError(str(error)) from error
    said = [str(warning.message) for warning in caught]
    said = [message for message in dict.fromkeys(said) if not any(words in message for words in REPORTED)]
    choices = [*weighed.choices, components, *_of_parts(weighed.graph, wishes)]
    return Answer(module, weighed.graph, module.embedding_, new, choices, [*notes, *said], weighed.code)


def _of_points(x: Array, count: int, wishes: Namespace, device: torch.device) -> Weighed:
    """Return the graph of points by their nearest neighbours."""
    points = torch.tensor(x, device=device)  # a copy: pandas gives read-only memory
    weights, code, weighting = _weighting(wishes)
    weights = weights.to(points)
    nearest = _search(points, _most_neighbors(len(points), wishes))
    neighbors = _neighbors(nearest.indices.cpu().numpy(), wishes)
    rule = Searched(int(neighbors.value), nearest=nearest)
    module = LaplacianEigenmaps(count, rule, weights, components="separate" if wishes.separate else "joint")
    graph = weights(points, rule.with_state(points)[0])
    choices = [neighbors, weighting, *_bandwidth(weights, graph.pattern.squared_lengths(points), graph)]
    code = code.format(
        components=count, rule=f"KNN({rule.k})", options=', components="separate"' if wishes.separate else ""
    )
    return Weighed(module, points, graph, choices, code)


def _of_pairs(pairs: Any, count: int, wishes: Namespace, device: torch.device) -> Weighed:
    """Return the graph of given affinities, or of given distances by the nearest neighbours."""
    module = LaplacianEigenmaps(count, Precomputed("affinity"), components="separate" if wishes.separate else "joint")
    if wishes.given == "distance":
        graph, choices = _of_distances(pairs.toarray() if issparse(pairs) else pairs, wishes)
    else:
        pairs = csr_array(pairs)
        pairs.setdiag(0)
        graph, choices = Graph.from_scipy(pairs), [Choice("weights", "given", "by --given affinity")]
    graph = graph.to(device)
    return Weighed(module, graph, graph, choices, "")


def _of_distances(distances: Array, wishes: Namespace) -> tuple[Graph, list[Choice]]:
    """Return the nearest neighbours by a matrix of distances, with the weights of the heat kernel, and the choices."""
    n, (weights, _, weighting) = len(distances), _weighting(wishes)
    others = distances + np.diag(np.full(n, np.inf))
    nearest = np.argsort(others, axis=1, kind="stable")[:, : _most_neighbors(n, wishes)]
    neighbors = _neighbors(nearest, wishes)
    k = int(neighbors.value)
    directed = csr_array((np.ones(n * k), nearest[:, :k].ravel(), np.arange(n + 1) * k), (n, n))
    graph = Graph.from_scipy((directed + directed.T) / 2)
    row, col = graph.edge_index
    squares = torch.from_numpy(distances).double()[row, col].square()
    assert isinstance(weights, HeatKernel)  # --weighting says nothing of pairs
    weight = graph.weight * torch.exp(-squares / weights.bandwidth(squares, graph)[row])
    return graph.with_weight(weight), [neighbors, weighting, *_bandwidth(weights, squares, graph)]


def _search(points: Tensor, k: int) -> Neighbors:
    """Return the k nearest neighbours of each point, with a bar in a terminal where that takes seconds."""
    n, d = points.shape
    if points.device.type != "cpu" or n * n * d < LONG:
        return nearest_neighbors(points, k)
    found = []
    blocks = torch.arange(n).tensor_split(20)
    for i, rows in enumerate(blocks):
        _show(f"{k} neighbours of {n:,} points", i / len(blocks))
        block = nearest_neighbors(points, k + 1, points[rows])
        found.append(without_own(Nearest(block.indices, block.squared_distances), rows))
    _show(f"{k} neighbours of {n:,} points", 1)
    indices, squares = (torch.cat(part) for part in zip(*found, strict=True))
    return Neighbors(indices, squares, 1.0)


def _solve(n: int, k: int) -> Solve | None:
    """Return how k pairs of a graph of n nodes are solved: with a bar in a terminal where that takes seconds."""
    if n < LARGE or not sys.stderr.isatty():
        return None
    residuals: list[float] = []

    def show(iteration: int, residual: float, allowed: float) -> None:
        residuals.append(max(residual, allowed))
        whole = math.log(residuals[0] / allowed)
        share = math.log(residuals[0] / residuals[-1]) / whole if whole > 0 else 1
        _show(f"{k} columns of {n:,} points, iteration {iteration}", min(max(share, 0), 1))

    return Solve(progress=show)


def _show(work: str, share: float) -> None:
    """Show in a terminal which share of some work is done."""
    if sys.stderr.isatty():
        end = "\n" if share == 1 else ""
        print(f"\r{work} [{'#' * int(20 * share):20}] {share:4.0%}", end=end, file=sys.stderr, flush=True)


def _check_weights(graph: Graph, count: int, wishes: Namespace) -> None:
    """Raise `InputError` where weights vanish for so many points that no embedding is left."""
    alone = _isolated(graph)
    if alone and graph.num_nodes - alone <= count:
        because = "take larger units, more --neighbors or --weighting self-tuning"
        if wishes.bandwidth:
            because = (
                f"under --bandwidth {wishes.bandwidth} weights vanish: take a larger one, or the default, a median"
            )
        raise InputError(f"{alone} of {graph.num_nodes} points have no edge of positive weight: {because}")


def _isolated(graph: Graph) -> int:
    """Return the number of points without an edge of positive weight."""
    return graph.num_nodes - sum(map(len, graph.nodes_of_components()))


def _given(name: str, option: str, value: int, most: int, limit: str) -> Choice:
    """Return the choice of a count that the user gives, from 1 to ``most``."""
    if not 1 <= value <= most:
        raise InputError(f"--{option} must be from 1 to {most} ({limit}), got {value}")
    return Choice(name, str(value), f"given by --{option}")


def _most_neighbors(n: int, wishes: Namespace) -> int:
    """Return how many neighbours of n points are searched; raise `InputError` for more than there are."""
    if wishes.neighbors is not None:
        _given("neighbours", "neighbors", wishes.neighbors, n - 1, "the points less one")
    return min(n - 1, wishes.neighbors or NEIGHBORS[-1])


def _neighbors(nearest: Array, wishes: Namespace) -> Choice:
    """Return the number of neighbours, of the nearest ``(N, k)``, ascending: the first k are those of ``KNN(k)``."""
    most = nearest.shape[1]
    if wishes.neighbors is not None:
        return Choice("neighbours", str(most), "given by --neighbors")
    tried = sorted({min(k, most) for k in NEIGHBORS})
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
    name, t = wishes.weighting or "heat", wishes.bandwidth
    if name not in WEIGHTINGS:
        return _imported(name)
    kind = WEIGHTINGS[name]
    if t is not None and name not in ("heat", "improved"):
        raise InputError(f"--bandwidth is the heat kernel's, and --weighting {name} has none of that kind")
    if t is not None and not 0 < t < math.inf:
        raise InputError(f"--bandwidth must be a positive number, got {t}")
    given = () if t is None else (t,)
    code = _code("torch_lapeig", kind.__name__, f"{kind.__name__}({', '.join(map(repr, given))})")
    why = "given by --weighting" if wishes.weighting else "the library's default"
    return kind(*given), code, Choice("weighting", name, why)


def _code(module: str, name: str, call: str) -> str:
    """Return the lines that make the module, with places for its other arguments."""
    lines = f"from torch_lapeig import KNN, LaplacianEigenmaps\nfrom {module} import {name}\n\n"
    return f"{lines}module = LaplacianEigenmaps({{components}}, {{rule}}, {call}{{options}})"


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
    return made, _code(module, name, call), Choice("weighting", path, "given by --weighting")


def _bandwidth(weights: Weighting, squared_lengths: Tensor, graph: Graph) -> list[Choice]:
    """Return the bandwidth that the heat kernel used."""
    if not isinstance(weights, HeatKernel):
        return []
    t = float(weights.bandwidth(squared_lengths, graph)[0])
    why = "given by --bandwidth"
    if weights.t == "median":
        why = "the median of the squared lengths of the edges"
        if 2 * int((squared_lengths > 0).sum()) <= len(squared_lengths):
            why += " that are not 0: half of them or more join copies of a point"
    return [Choice("bandwidth", f"{t:.6g}", why)]


def _of_parts(graph: Graph, wishes: Namespace) -> list[Choice]:
    """Return the parts of the graph and the isolated points, each with its consequence."""
    parts, alone = len(graph.nodes_of_components()), _isolated(graph)
    whole = "all points" if not alone else "all others"
    why = f"it joins {whole}, which are embedded together"
    if parts > 1:
        why = f"the first {parts - 1} columns only tell them apart; --separate embeds each, more --neighbors join"
    if parts > 1 and wishes.separate:
        why = "each embedded on its own by --separate: rows of different parts do not compare"
    found = [Choice("parts of the graph", str(parts), why)]
    if alone:
        cause = f"--bandwidth {wishes.bandwidth}" if wishes.bandwidth else "the bandwidth"
        why = f"too far from all for {cause}: their rows are zero; --weighting self-tuning gives them weights"
        found.append(Choice("isolated points", str(alone), why))
    return found
