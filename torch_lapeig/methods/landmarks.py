"""Eigenmaps of very many points by the graph that they make between landmarks, from memory or from a stream."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from torch_lapeig.eigen import Eigenpairs, Laplacian
from torch_lapeig.eigen.gradient.clusters import function_of_matrix
from torch_lapeig.graph.landmarks import Landmarks, LandmarkSums, Shares, shares_of
from torch_lapeig.graph.weights import DensityCorrected
from torch_lapeig.methods.frozen import FrozenGraphMap
from torch_lapeig.methods.module import warn_of_unreached
from torch_lapeig.methods.on_graph import GraphEmbedding
from torch_lapeig.support import checks
from torch_lapeig.support.fitted import State, check_like
from torch_lapeig.support.progress import bar
from torch_lapeig.support.tuning import rows_of_block

Own = TypeVar("Own", bound="OnLandmarks")


class OnLandmarks(GraphEmbedding):
    """Embedding of points by their shares in landmarks where the rule is `Landmarks`; other rules as before.

    With W = Z Λ⁻¹ Zᵀ the generalised eigenvectors of N points are Y = Z Y_m (1 − λ)^-½, where Y_m are the generalised
    eigenvectors of the landmark graph Zᵀ Z, scaled as Y_mᵀ Λ Y_m = I, and λ the eigenvalues of both. New points have
    the same formula, which is Nyström's.

    W has degrees of 1 whatever the density, so that W / (q_i q_j)^α with q = W 1 would change nothing. Therefore
    `DensityCorrected` acts on how much points count: c_i = q_i^-α, where q is the sum of the kernel at landmarks. Then
    C Z Λ⁻¹ Zᵀ C with Λ = diag(Zᵀ C 1) has the degrees c, and the formulas hold with the landmark graph Zᵀ C Z. The walk
    is reversible with respect to c times the density of the points, which is even for α = 1.
    """

    FITTED: ClassVar[tuple[str, ...]] = (*GraphEmbedding.FITTED, "train_count")
    takes_landmarks = True
    scale: str

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        if not isinstance(rule := self.neighbors, Landmarks):
            return super()._fit_points(x, solved, fill=fill)
        assert self.weights is not None
        landmarks = rule.of_points(x)
        edges = rule.edges(x, landmarks)
        state = {"train_points": landmarks, "train_weighting": rule.state(self.weights, x, landmarks, edges)}
        shares = shares_of(edges, self.weights.extend(edges, state["train_weighting"]))
        warn_of_unreached(int((shares.share.detach().sum(1) == 0).sum()), len(x))
        sums = LandmarkSums.of_none(len(landmarks), x.device).add(shares, self._counts(state))
        state |= self._fit_sums(sums, x.dtype, solved, fill=fill)
        state["embedding_"] = self._rows(shares, state)
        state["train_count"] = torch.tensor(len(x), device=x.device)
        return state

    def _fit_sums(self, sums: LandmarkSums, dtype: torch.dtype, solved: list[Eigenpairs], *, fill: bool) -> State:
        """Return the part of a fit that the landmark graph of points gives."""
        laplacian = Laplacian(sums.graph(dtype), self._normalization)
        found = self._solve_graph(laplacian, solved, fill=fill)
        graph = laplacian.graph
        return {
            "train_vectors": found.embedding,
            "train_edges": graph.edge_index,
            "train_connectivity": graph.weight,
            **self._of_graph(found, graph),
        }

    def _extend(self, x: Tensor, state: State) -> Tensor:
        if not isinstance(self.neighbors, Landmarks):
            return super()._extend(x, state)
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
        if self.scale != "orthonormal" or counts is None:
            return rows
        return rows * shares.rows(counts[:, None]).sqrt()

    def _shares(self, x: Tensor, state: State) -> Shares:
        """Return the shares of points in landmarks, given these and the state of the weighting."""
        assert isinstance(self.neighbors, Landmarks)
        assert self.weights is not None
        edges = self.neighbors.edges(x, state["train_points"])
        shares = shares_of(edges, self.weights.extend(edges, state["train_weighting"]))
        warn_of_unreached(int((shares.share.detach().sum(1) == 0).sum()), len(x))
        return shares

    def _frozen(self, state: State) -> nn.Module:
        if not isinstance(self.neighbors, Landmarks):
            return super()._frozen(state)
        if self.scale == "orthonormal" and (counts := self._counts(state)) is not None:
            state = {**state, "train_counts": counts}
        return FrozenGraphMap(self.neighbors, self.weights, state, normalized=True)

    def _width(self, state: State) -> int:
        if not isinstance(self.neighbors, Landmarks):
            return super()._width(state)
        return self.neighbors.r * (2 * state["train_points"].shape[1] + 16) + 2 * self.n_components

    def _of_points(self, y: Tensor, pairs: Eigenpairs, first: int) -> Tensor:
        """Return generalised eigenvectors of the landmark graph times (1 − Λ)^-½, so that rows of points are Z Y."""
        projected = pairs.projected[..., first:, first:]
        rest = 1 - projected.detach().diagonal(dim1=-2, dim2=-1)
        least = 1e-3  # as with Nyström's formula
        if (small := rest < least).any():
            checks.warn(
                f"{int(small.sum())} eigenvalues are within {least} of 1, so that points do not determine their "
                "columns: these are zero; use fewer components or more landmarks",
                checks.GraphWarning,
            )
        growth = function_of_matrix(
            projected,
            lambda value: (1 - value).clamp_min(least) ** -0.5,
            lambda value: 0.5 * (1 - value).clamp_min(least) ** -1.5,
            lambda value: 0.75 * (1 - value).clamp_min(least) ** -2.5,
        )
        return checks.matmul(y, growth).masked_fill(small[..., None, :], 0)

    @torch.no_grad()
    @checks.full_precision
    def fit_stream(self: Own, blocks: Any, *, resume: bool = False, progress: bool = False) -> Own:
        """Embed points that need not fit in memory, block by block, in memory of O(m r² + block). Returns the module.

        Needs `Landmarks`. The points are read twice: landmarks and the bandwidth are taken from a random sample of
        them, then all points are added to the landmark graph. `transform` embeds any of them.

        An error or an interrupt in the second reading loses no block that was read: the module is fitted to these
        before the error goes on. ``train_count`` tells how many points they are, and ``fit_stream(rest, resume=True)``
        adds others, also after ``state_dict`` was saved and loaded.

        Args:
            blocks: one array, memory map or tensor ``(N, D)``; or blocks ``(b, D)`` of it, or tuples that begin with
                one as a DataLoader gives them, in a list, a DataLoader or another iterable that starts anew each time.
            resume: add the points to the fit at hand, with its landmarks and bandwidth; they are read once.
            progress: show a bar for each reading (needs tqdm).

        ``embedding_`` holds the rows of the landmarks, ``train_points``, as the points are not kept.

        Raises:
            TypeError: blocks that can be read only once, unless resumed; other rules than `Landmarks`.
            ValueError: no block, blocks that differ in dtype or dimension, points that are not finite, fewer than two
                points; see ``fit``. RuntimeError: ``resume`` before a fit.

        >>> from torch_lapeig import LaplacianEigenmaps
        >>> x = torch.rand(
        ...     500, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        ... )
        >>> model = LaplacianEigenmaps(2, Landmarks(50)).fit_stream([x[:250], x[250:]])
        >>> int(model.train_count), model.transform(x).shape
        (500, torch.Size([500, 2]))
        """
        if not isinstance(rule := self.neighbors, Landmarks):
            raise TypeError(f"fit_stream needs neighbors=Landmarks(m), got {rule}")
        checks.check_flag(resume, "resume")
        checks.check_flag(progress, "progress")
        state, count = self._stream_state(blocks, rule, resume, progress)
        landmarks = state["train_points"]
        sums = LandmarkSums.of_none(len(landmarks), landmarks.device)
        if resume:
            sums = LandmarkSums.of_graph(self.train_edges, self.train_connectivity, len(landmarks))
        before = count
        try:
            for block in _blocks_of(blocks, progress, "landmark graph"):
                check_like(block, landmarks)
                shares = self._shares(block.to(landmarks.device), state)
                sums, count = sums.add(shares, self._counts(state)), count + len(block)
        except BaseException:
            if count > before:  # few points may not have as many columns
                self._keep_stream(state, sums, count, fill=True)
            raise
        if count == before:
            raise ValueError("blocks must hold at least one block of points, got none")
        self._keep_stream(state, sums, count, fill=False)
        return self

    def _keep_stream(self, state: State, sums: LandmarkSums, count: int, *, fill: bool) -> None:
        """Keep the fit of the points so far."""
        landmarks = state["train_points"]
        state = state | self._fit_sums(sums, landmarks.dtype, [], fill=fill)
        state["embedding_"] = self._extend(landmarks, state)
        self._keep(state | {"train_count": torch.tensor(count, device=landmarks.device)}, None)

    def _stream_state(self, blocks: Any, rule: Landmarks, resume: bool, progress: bool) -> tuple[State, int]:
        """Return landmarks and the state of the weighting, and the points that are known already."""
        if resume:
            self.check_fitted()
            return {name: self._fitted()[name] for name in ("train_points", "train_weighting")}, int(self.train_count)
        sample = _sample_of(blocks, rule, progress)
        checks.check_points(sample, batched=False)
        landmarks = rule.of_points(sample)
        edges = rule.edges(sample, landmarks)
        assert self.weights is not None
        return {"train_points": landmarks, "train_weighting": rule.state(self.weights, sample, landmarks, edges)}, 0


def _blocks_of(blocks: Any, progress: bool, name: str) -> Iterator[Tensor]:
    """Yield blocks of points ``(b, D)`` of an array or an iterable, each as a tensor in at least single precision."""
    parts: Iterable[Any]
    if hasattr(blocks, "shape"):
        rows = rows_of_block(64 * max(math.prod(blocks.shape[1:]), 1), torch.device("cpu"))
        starts: Iterable[Any] = range(0, len(blocks), rows)
        parts = (blocks[start : start + rows] for start in _with_bar(starts, progress, name))
    else:
        parts = _with_bar(blocks, progress, name)
    for part in parts:
        first = part[0] if isinstance(part, (tuple, list)) else part
        yield checks.single(torch.from_numpy(np.array(first)) if isinstance(first, np.ndarray) else first)


def _with_bar(items: Iterable[Any], progress: bool, name: str) -> Iterable[Any]:
    """Return the items, shown by a bar as they are taken if ``progress``."""
    return bar(iterable=items, desc=name, unit=" blocks") if progress else items


def _sample_of(blocks: Any, rule: Landmarks, progress: bool) -> Tensor:
    """Return points at random, as many as the rule chooses landmarks from; all points where there are fewer."""
    generator = torch.Generator().manual_seed(rule.seed)
    if hasattr(blocks, "shape"):
        if len(blocks.shape) != 2 or blocks.shape[0] < 2:
            raise ValueError(f"blocks must have shape (N, D) with N of at least 2, got {tuple(blocks.shape)}")
        chosen = torch.randperm(len(blocks), generator=generator)[: rule.sample_size].sort().values
        return next(_blocks_of([blocks[chosen.numpy() if isinstance(blocks, np.ndarray) else chosen]], False, ""))
    if isinstance(blocks, Iterator):
        raise TypeError(
            "blocks must start anew each time they are iterated, as they are read twice, got "
            f"{checks.arrived(blocks)}; give an array, a list, a DataLoader or an object with __iter__"
        )
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
