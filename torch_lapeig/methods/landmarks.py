"""Eigenmaps of very many points by the graph that they make between landmarks, from memory or from a stream."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torch_lapeig.eigen import Eigenpairs, Laplacian
from torch_lapeig.eigen.gradient.matrix_functions import function_of_matrix
from torch_lapeig.graph.landmarks import Landmarks, LandmarkSums, Shares
from torch_lapeig.graph.pattern import PatternBase
from torch_lapeig.graph.weights import DensityCorrected, NewEdges
from torch_lapeig.methods import frozen
from torch_lapeig.methods.module import Embedding, EmbeddingModule
from torch_lapeig.methods.on_graph import GraphEmbedding, shares_at, warn_of_unreached
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State, check_like
from torch_lapeig.support.progress import bar
from torch_lapeig.support.tuning import rows_of_block


@dataclass(frozen=True, eq=False)
class OnLandmarks:
    """Steps of a layer on the shares of points in landmarks, in place of the steps on a graph of the points."""

    # With W = Z Λ⁻¹ Zᵀ the generalised eigenvectors of N points are Y = Z Y_m (1 − λ)^-½, where Y_m are those of the
    # landmark graph Zᵀ Z, with Y_mᵀ Λ Y_m = I, and λ the eigenvalues of both. For new points this is Nyström's formula.
    # W has degrees of 1 whatever the density. Therefore `DensityCorrected` acts on how much points count: c_i = q_i^-α,
    # where q is the sum of the kernel at landmarks. Then C Z Λ⁻¹ Zᵀ C with Λ = diag(Zᵀ C 1) has the degrees c, and the
    # formulas hold with the landmark graph Zᵀ C Z. The walk is reversible with respect to c times the density.

    layer: GraphEmbedding
    rule: Landmarks
    weights: Any  # of edges between points and landmarks

    def _embed(self, x: Any, mask: Tensor | None, solved: list[Eigenpairs]) -> Embedding:
        return EmbeddingModule._embed(self.layer, x, mask, solved)

    def _fit_points(self, x: Tensor, solved: list[Eigenpairs], *, fill: bool) -> State:
        state, sums = self._begun(x)
        shares = self._shares(x, state)
        return self._fit_sums(state, sums.add(shares, self._counts(state)), len(x), shares, solved, fill=fill)

    def _begun(self, x: Tensor) -> tuple[State, LandmarkSums]:
        """Return landmarks of points with the state of the weighting, and their graph before any point."""
        landmarks = self.rule.of_points(x)
        weighting = self.rule.state(self.weights, x, landmarks, self.rule.edges(x, landmarks))
        none = torch.zeros(2, 0, dtype=torch.int64, device=landmarks.device)
        sums = LandmarkSums.of_graph(none, landmarks.new_zeros(0), len(landmarks))
        return {"train_points": landmarks, "train_weighting": weighting}, sums

    def _fit_sums(
        self, state: State, sums: LandmarkSums, count: int, shares: Shares, solved: list[Eigenpairs], *, fill: bool
    ) -> State:
        """Return the fit of ``count`` points, given their sums and the shares of those whose rows it keeps."""
        graph = sums.graph(state["train_points"].dtype)
        # The degrees of points are 1, so that the problems of all normalisations are one.
        found = self.layer._solve_graph(Laplacian(graph, "random_walk"), solved, fill=fill)
        state = state | self.layer._of_graph(found, graph) | {"train_vectors": found.embedding}
        state |= {"train_edges": graph.edge_index, "train_connectivity": graph.weight}
        state["train_count"] = torch.tensor(count, device=graph.weight.device)
        return state | {"embedding_": self._rows(shares, state)}

    def _extend(self, x: Tensor, state: State) -> Tensor:
        return self._rows(self._shares(x, state), state)

    def _counts(self, state: State) -> Tensor | None:
        """Return how much a point at each landmark counts, ``(m,)``, about 1; None where all points count 1."""
        if not isinstance(self.weights, DensityCorrected):
            return None
        logarithm = state["train_weighting"][:, 0]
        return (logarithm - logarithm.mean()).exp()  # the sums of a sample are smaller

    def _rows(self, shares: Shares, state: State) -> Tensor:
        """Return the rows of points, given their shares: Z Y, for orthonormal columns C^½ Z Y."""
        rows, counts = shares.rows(state["train_vectors"]), self._counts(state)
        if counts is None or self.layer.scale != "orthonormal":
            return rows
        count = shares.rows(counts[:, None])
        return rows * torch.where(count > 0, count, 1).sqrt()

    def _shares(self, x: Tensor, state: State) -> Shares:
        """Return the shares of points in landmarks, given these and the state of the weighting."""
        shares = self._shares_at(self.rule.edges(x, state["train_points"]), state)
        warn_of_unreached(int((shares.share.detach().sum(1) == 0).sum()), len(x))
        return shares

    def _shares_at(self, edges: NewEdges, state: State) -> Shares:
        """Return the weights of edges over their sum at each point."""
        share = shares_at(self.weights.extend(edges, state["train_weighting"]), edges.query, edges.num_queries)[0]
        return Shares(edges.point.reshape(edges.num_queries, -1), share.reshape(edges.num_queries, -1))

    def _frozen(self, state: State) -> nn.Module:
        frozen.check_exported(self.weights)
        kept = {"vectors": state["train_vectors"].double(), "state": state["train_weighting"]}
        # As they are: means of points on the sphere lie within it.
        return frozen.Frozen(self.layer, kept | frozen.fixed_points(state["train_points"]), state)

    def _of_all(self, x: Tensor, state: State, dtype: torch.dtype) -> Tensor:
        squared = frozen.lengths_to_all(x, state, self.rule.metric)
        near = squared.topk(min(self.rule.r, squared.shape[1]), largest=False)
        edges = frozen.edges_to_all(near.values, torch.ones_like(near.values), near.indices)
        state = {"train_vectors": state["vectors"], "train_weighting": state["state"]}
        return self._rows(self._shares_at(edges, state), state)

    def _width(self, state: State) -> int:
        return self.rule.r * (2 * state["train_points"].shape[1] + 16) + 2 * self.layer.width

    def _columns(self, y: Tensor, pairs: Eigenpairs, active: Tensor, nodes: PatternBase) -> Tensor:
        """Return generalised eigenvectors of the landmark graph times (1 − Λ)^-½, so that rows of points are Z Y."""
        first = pairs.vectors.shape[-1] - y.shape[-1]
        projected = pairs.projected[..., first:, first:]
        rest = 1 - projected.detach().diagonal(dim1=-2, dim2=-1)
        least = 1e-3  # as with Nyström's formula
        if (small := rest < least).any():
            those = f"{int(small.sum())} eigenvalues are within {least} of 1, and points do not determine their columns"
            checks.warn(f"{those}: these are zero; use fewer components or more landmarks", checks.GraphWarning)
        growth = function_of_matrix(projected, lambda value: (1 - value).clamp_min(least) ** -0.5)
        y = precision.matmul(y, growth).masked_fill(small[..., None, :], 0)
        if self.layer.scale == "unit":  # the constant column of N points is N^-½
            y = y / pairs.vectors.detach()[..., 0].abs().amax(-1)[..., None, None]
        return y

    def fit_stream(self, blocks: Any, *, resume: bool, progress: bool) -> None:
        """Fit the layer to points block by block, see `LaplacianEigenmaps.fit_stream`."""
        if resume:
            self.layer.check_fitted()
            fit = self.layer._fitted()
            state = {name: fit[name] for name in ("train_points", "train_weighting")}
            sums = LandmarkSums.of_graph(fit["train_edges"], fit["train_connectivity"], len(fit["train_points"]))
        else:
            sample = _sample_of(blocks, self.rule, progress)
            checks.check_points(sample, batched=False)
            state, sums = self._begun(sample)
        landmarks, before = state["train_points"], int(self.layer.train_count) if resume else 0
        count, is_whole = before, False
        try:
            for block in _blocks_of(blocks, progress, "landmark graph"):
                check_like(block, landmarks)
                shares = self._shares(block.to(landmarks.device), state)
                sums, count = sums.add(shares, self._counts(state)), count + len(block)
            is_whole = True
        finally:
            if count > before:  # few points of a stream that broke off may not have as many columns
                shares = self._shares(landmarks, state)
                self.layer._keep(self._fit_sums(state, sums, count, shares, [], fill=not is_whole), None)
        if count == before:
            raise ValueError("blocks must hold at least one block of points, got none")


def _blocks_of(blocks: Any, progress: bool, name: str) -> Iterator[Tensor]:
    """Yield blocks of points ``(b, D)`` of an array or an iterable, each as a tensor in at least single precision."""
    is_array = hasattr(blocks, "shape")
    rows = rows_of_block(64 * max(math.prod(blocks.shape[1:]), 1), torch.device("cpu")) if is_array else 1
    items: Iterable[Any] = range(0, blocks.shape[0], rows) if is_array else blocks
    for item in bar(iterable=items, desc=name, unit=" blocks") if progress else items:
        part = blocks[item : item + rows] if is_array else item
        first = part[0] if isinstance(part, (tuple, list)) else part
        if isinstance(first, np.ndarray):  # a masked number is missing, and integers are exact
            is_other = first.dtype.kind in "biuf" and first.dtype not in (np.float16, np.float32, np.float64)
            first = torch.from_numpy(np.array(np.ma.filled(first.astype(float) if is_other else first, np.nan)))
        yield checks.half_to_float32(first)


def _sample_of(blocks: Any, rule: Landmarks, progress: bool) -> Tensor:
    """Return points at random, as many as the rule chooses landmarks from; all points where there are fewer."""
    generator = torch.Generator().manual_seed(rule.seed)
    if hasattr(blocks, "shape"):
        if len(blocks.shape) != 2 or blocks.shape[0] < 2:
            raise ValueError(f"blocks must have shape (N, D) with N of at least 2, got {tuple(blocks.shape)}")
        chosen = torch.randperm(blocks.shape[0], generator=generator)[: rule.sample_size].sort().values
        return next(_blocks_of([blocks[chosen.numpy() if isinstance(blocks, np.ndarray) else chosen]], False, ""))
    if isinstance(blocks, Iterator):
        got = f"{checks.describe(blocks)}; give an array, a list, a DataLoader or an object with __iter__"
        raise TypeError(f"blocks must start again each time they are iterated, because they are read twice, got {got}")
    # Each point draws a number, and those with the largest are the sample, however many points there are.
    sample, drawn = None, torch.empty(0)
    for block in _blocks_of(blocks, progress, "sample"):
        checks.check_points(block, batched=False, min_points=1)
        numbers = torch.cat([drawn, torch.rand(len(block), generator=generator, dtype=torch.float64)])
        rows = block if sample is None else torch.cat([sample, block])
        drawn, kept = numbers.topk(min(rule.sample_size, len(numbers)))
        sample = rows[kept.to(rows.device)]
    if sample is None:
        raise ValueError("blocks must hold at least one block of points, got none")
    return sample
