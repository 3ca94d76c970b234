"""Bases of methods on a weighted graph, and of those by its eigenvectors, with new points by Nyström."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torch_lapeig.eigen import Eigenpairs, Laplacian, Solve, Solver
from torch_lapeig.eigen.check import ROUNDOFF_UNITS
from torch_lapeig.eigen.gradient.clusters import off_diagonal
from torch_lapeig.eigen.laplacian import Normalization, needs_derivatives
from torch_lapeig.graph import KNN, Graph, Precomputed, Radius
from torch_lapeig.graph.rules import GraphRule, check_rule_and_weights, graph_with_state, weighted_graph
from torch_lapeig.graph.weights import Weighting
from torch_lapeig.methods.frozen import FrozenGraphMap
from torch_lapeig.methods.module import Embedding, EmbeddingModule, PointsModule
from torch_lapeig.methods.newpoints import GRAPH_STATE, NewAffinities, affinities_of_new, fitted_graph, nystrom
from torch_lapeig.support.fitted import State


class OnGraph(PointsModule):
    """Steps of all methods on the weighted graph of points, or on affinities or a `Graph` in place of points."""

    neighbors: GraphRule
    weights: Weighting | None

    def _checked(self, x: Any, mask: Tensor | None) -> tuple[Any, Tensor | None]:
        if self.pairs_given is not None:
            graph = weighted_graph(self.neighbors, None, x, mask)
            return graph, graph.mask
        if isinstance(x, Graph):
            raise TypeError('x must be points, got a Graph; use neighbors=Precomputed("affinity")')
        return super()._checked(x, mask)

    def _graph(self, x: Any, mask: Tensor | None) -> Graph:
        """Weight the graph of checked points, or return the one given."""
        return x if isinstance(x, Graph) else weighted_graph(self.neighbors, self.weights, x, mask)

    def _extend(self, x: Tensor, state: State) -> Tensor:
        return self._extended(affinities_of_new(self.neighbors, self.weights, x, state), state)

    @abstractmethod
    def _extended(self, new: NewAffinities, state: State) -> Tensor:
        """Return the rows of a block of new points."""

    def _width(self, state: State) -> int:
        n, k = state[self.FITTED[0]].shape
        if "train_edges" not in state:
            return int(n * (k + 4))
        return int((1 + state["train_edges"].shape[1] // n) * (k + 2 * state["train_points"].shape[1] + 8))


class GraphEmbedding(OnGraph, EmbeddingModule):
    """Embeddings by the eigenvectors of the Laplacian of a weighted graph, built from points or given."""

    FITTED: ClassVar[tuple[str, ...]] = (
        *EmbeddingModule.FITTED,
        *GRAPH_STATE,
        "train_eigenvalues",
        "train_degrees",
        "train_vectors",  # which Nyström's formula extends, if the rows are others
        "train_noise",
    )

    def __init__(
        self, n_components: int, neighbors: Any, weights: Weighting | None, solve: Solve | Solver | None
    ) -> None:
        super().__init__(n_components, solve)
        self.neighbors = neighbors
        self.weights = self._check_weights(weights)

    def _check_weights(self, weights: Any) -> Weighting | None:
        """Return the weighting, checked to go with the rule."""
        return check_rule_and_weights(self.neighbors, weights)

    @property
    def _normalization(self) -> Normalization:
        """Return the normalization of the Laplacian."""
        return "random_walk"

    @abstractmethod
    def _solve_graph(self, laplacian: Laplacian, solved: list[Eigenpairs], *, fill: bool) -> Embedding:
        """Return the embedding of the nodes of a graph or a batch; append the pairs to ``solved``."""

    def _embed_small(self, x: Tensor, mask: Tensor | None, solved: list[Eigenpairs]) -> Embedding | None:
        """Embed small sets of points as one dense batch; return None where this is not accurate or not faster."""
        return None

    def _embed(self, x: Any, mask: Tensor | None, solved: list[Eigenpairs]) -> Embedding:
        if not isinstance(x, Graph) and (found := self._embed_small(x, mask, solved)) is not None:
            return found
        graph = self._graph(x, mask)
        return self._solve_graph(Laplacian(graph, self._normalization), solved, fill=len(graph.shape) > 1)

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        graph, state = fitted_graph(self.neighbors, self.weights, x)
        laplacian = Laplacian(graph, self._normalization)
        found = None if isinstance(x, Graph) else self._embed_small(x, None, solved)
        if found is None:
            found = self._solve_graph(laplacian, solved, fill=fill)
        if laplacian.normalization == "symmetric":
            state["train_degrees"] = laplacian.degrees
        if laplacian.normalization == "unnormalized":
            state["train_noise"] = self._error_of_values(laplacian)
        if needs_derivatives(found.embedding):
            state["off"] = self._off(graph, solved)
        return state | {
            "embedding_": found.embedding,
            "train_eigenvalues": found.eigenvalues.masked_fill(found.eigenvalues.isinf(), 0),
            **self._of_graph(found, graph),
        }

    def _error_of_values(self, laplacian: Laplacian) -> Tensor:
        """Return the error ``(N,)`` that round-off leaves in the eigenvalues at each node, for L y = λ y."""
        return error_of_values(laplacian.largest_degree.expand_as(laplacian.active))

    def _off(self, graph: Graph, solved: list[Eigenpairs]) -> Tensor:
        """Return the matrix that `nystrom` needs for derivatives at equal eigenvalues; no fit keeps it."""
        return off_diagonal(solved[-1].projected, self.n_components)

    def _of_graph(self, found: Embedding, graph: Graph) -> State:
        """Return eigenvalues, residuals and gap in the form that a fit keeps."""
        return {"eigenvalues_": found.eigenvalues, "residuals_": found.residuals, "gap_": found.gap}

    def _frozen(self, state: State) -> nn.Module:
        if not isinstance(self.neighbors, (KNN, Radius, Precomputed)):
            raise TypeError(f"frozen needs neighbors=KNN(k), Radius(r) or Landmarks(m), got {self.neighbors}")
        return FrozenGraphMap(self.neighbors, self.weights, state, normalized=self._normalization != "unnormalized")

    @torch.no_grad()
    def _completed(self, saved: State) -> State:
        """Return a saved fit with its edges, which are searched again where it was saved without them."""
        if "train_points" not in saved or "train_edges" in saved:
            return saved
        points, values = saved["train_points"], saved["eigenvalues_"]
        graph, train_rule = graph_with_state(self.neighbors, points)
        found = {"train_rule": train_rule, "train_edges": graph.edge_index, "train_connectivity": graph.weight}
        return {**found, "train_eigenvalues": values.masked_fill(values.isinf(), 0), **saved}

    def _extended(self, new: NewAffinities, state: State) -> Tensor:
        return nystrom(
            new,
            state.get("train_vectors", state["embedding_"]),
            state["train_eigenvalues"],
            normalized=self._normalization != "unnormalized",
            degrees=state.get("train_degrees"),
            off=state.get("off"),
            noise=state.get("train_noise"),
        )


def error_of_values(degree: Tensor) -> Tensor:
    """Return the round-off in eigenvalues of D − W, whose norm is at most twice the largest degree."""
    return ROUNDOFF_UNITS * torch.finfo(torch.float64).eps * 2 * degree


def check_size(laplacian: Laplacian, k: int, name: str, trivial: int = 0) -> None:
    """Raise ValueError where a single graph has too few nodes of positive degree for ``k`` columns and the trivial."""
    if k + trivial > (fewest := laplacian.symmetric.fewest_active):
        at_most = "smaller than" if trivial else "at most"
        raise ValueError(
            f"{name} must be {at_most} the number of nodes of positive degree, got {name}={k} with {fewest} of them"
        )
