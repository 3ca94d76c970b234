"""Out-of-sample maps of fits as plain modules of dense operations, for `torch.export` and ONNX.

`transform` searches for neighbours, checks its input and warns: a program, not an expression. Here the training points
are fixed, and each new point is compared to all of them, so that nothing depends on values but by `torch.where`.
Numbers are float64 inside. Distances are direct differences: a product would lose the near ones beside a far point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torch_lapeig.graph import Landmarks, Precomputed, Radius
from torch_lapeig.graph.distances import Metric, least_reach
from torch_lapeig.graph.weights import (
    DensityCorrected,
    HeatKernel,
    ImprovedWeights,
    KernelWeights,
    SelfTuning,
    SimpleWeights,
    Weighting,
)
from torch_lapeig.support.fitted import State

LogAffinity = Callable[[Tensor, Tensor, Tensor], Tensor]
DenseKernel = Callable[[Tensor, "FixedPoints | None"], Tensor]


class FixedPoints(nn.Module):
    """Squared distances of new points to points that do not change, ``(Q, D)`` to ``(Q, N)``, float64."""

    centre: Tensor
    points: Tensor

    def __init__(self, points: Tensor, metric: Metric = "euclidean") -> None:
        super().__init__()
        self.metric = metric
        self.least = least_reach(metric, points.dtype) ** 2
        points = self.measured(points.double())
        self.register_buffer("centre", points.mean(0))
        self.register_buffer("points", points - self.centre)

    def measured(self, x: Tensor) -> Tensor:
        """Return the points between which the metric measures lengths."""
        if self.metric == "euclidean":
            return x
        x = x / x.abs().amax(1, keepdim=True)
        return x / x.square().sum(1, keepdim=True).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        """Return the squared distances."""
        # Some coordinates at a time: ONNX has no `torch.cdist`, and all together take D times the memory of the result.
        parts = zip((self.measured(x) - self.centre).split(16, 1), self.points.split(16, 1), strict=True)
        squares: Tensor = sum((some.unsqueeze(1) - fixed).square().sum(2) for some, fixed in parts)
        return squares

    def products(self, x: Tensor) -> Tensor:
        """Return inner products about the mean of the fixed points, ``(Q, N)``."""
        return (self.measured(x) - self.centre) @ self.points.mT

    def equal(self, x: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
        """Return which new points are fixed points, bool ``(Q,)``, and the nearest fixed point of each."""
        nearest = squared.argmin(1)
        difference = self.measured(x) - self.centre - self.points[nearest]
        return difference.square().sum(1) <= self.least, nearest


class FrozenGraphMap(nn.Module):
    """Rows of new points by the weights of their edges to fixed points, as `torch_lapeig.methods.nystrom` has them."""

    state: Tensor
    values: Tensor
    vectors: Tensor
    reach: Tensor
    rows: Tensor | None

    def __init__(self, rule: Any, weights: Weighting | None, state: State, *, normalized: bool) -> None:
        super().__init__()
        vectors = state.get("train_vectors", state["embedding_"]).double()
        self.rule, self.normalized, self.dtype = rule, normalized, state["embedding_"].dtype
        self.points: FixedPoints | None = None
        self.log_affinity: LogAffinity = _given
        if not isinstance(rule, Precomputed):
            self.points = FixedPoints(state["train_points"], rule.metric)
            self.log_affinity = _log_affinity(weights)
        # The state of given affinities is their correction for density, log q^-α.
        correction = state.get("train_density", vectors.new_zeros(()))
        self.register_buffer("state", state.get("train_weighting", correction).double())
        values = state["train_eigenvalues"].double() if "train_eigenvalues" in state else vectors.new_zeros(1)
        if not normalized and values.ndim == 2:
            raise TypeError('frozen needs components="joint" with normalization="unnormalized", got "separate"')
        degrees = state.get("train_degrees")
        if degrees is not None:
            vectors = vectors / torch.where(degrees > 0, degrees, torch.inf).double().sqrt()[:, None]
        self.takes_degrees = degrees is not None
        self.register_buffer("values", values)
        self.register_buffer("vectors", vectors * _growth(values, values.new_ones(())) if normalized else vectors)
        self.register_buffer("reach", state["train_rule"].double().square() if "train_rule" in state else None)
        self.register_buffer("rows", self._own_rows(state))

    def _own_rows(self, state: State) -> Tensor | None:
        """Return the rows of new points that are fixed points: the rows of these, of the first of equal ones."""
        if isinstance(self.rule, Precomputed):
            return None
        first = state["train_points"].unique(dim=0, return_inverse=True)[1]
        number = torch.arange(len(first), device=first.device)
        first = first.new_full((len(first),), len(first)).scatter_reduce(0, first, number, "amin")[first]
        return state.get("train_vectors", state["embedding_"]).double()[first]

    def forward(self, x: Tensor) -> Tensor:
        """Return rows ``(Q, k)`` of new points ``(Q, D)``, or of their affinities ``(Q, N)`` where these are given."""
        x = x.double()
        squared = x if self.points is None else self.points(x)
        there = squared if self.points is None else self._connectivity(squared)
        log_affinity = self.log_affinity(squared, there, self.state)
        share, total = _shares(log_affinity)
        if self.takes_degrees:
            share = share * torch.where(total.isinf(), 0, total / 2).exp()
        y = share @ self.vectors
        y = y if self.normalized else y * _growth(self.values, total.exp())
        if self.points is not None and self.rows is not None:
            is_equal, nearest = self.points.equal(x, squared)
            y = torch.where(is_equal.unsqueeze(1), self.rows[nearest], y)
        return y.to(self.dtype)

    def _connectivity(self, squared: Tensor) -> Tensor:
        """Return the weights ``(Q, N)`` that the rule gives edges: 1, ½ or 0."""
        if isinstance(self.rule, Radius):
            return (squared <= self.reach).to(squared)
        chosen = _nearest(squared, self.rule.k)
        reached = (squared <= self.reach).to(squared)
        if self.rule.symmetrize == "mean":
            return (chosen + reached) / 2
        return chosen.maximum(reached) if self.rule.symmetrize == "union" else chosen * reached


class FrozenLandmarkMap(nn.Module):
    """Rows of new points by their shares in the nearest of fixed landmarks, see `torch_lapeig.methods.landmarks`."""

    state: Tensor
    vectors: Tensor
    counts: Tensor | None

    def __init__(self, rule: Landmarks, weights: Weighting, state: State, counts: Tensor | None) -> None:
        super().__init__()
        self.r, self.dtype = rule.r, state["embedding_"].dtype
        self.points, self.log_affinity = FixedPoints(state["train_points"], rule.metric), _log_affinity(weights)
        self.register_buffer("state", state["train_weighting"].double())
        self.register_buffer("vectors", state["train_vectors"].double())
        self.register_buffer("counts", None if counts is None else counts.double())

    def forward(self, x: Tensor) -> Tensor:
        """Return rows ``(Q, k)`` of new points ``(Q, D)``."""
        squared = self.points(x.double())
        share, _ = _shares(self.log_affinity(squared, _nearest(squared, self.r), self.state))
        y = share @ self.vectors
        y = y if self.counts is None else y * (share @ self.counts).sqrt().unsqueeze(1)
        return y.to(self.dtype)


def _nearest(squared: Tensor, k: int) -> Tensor:
    """Return 1 for the ``k`` smallest of each row, 0 elsewhere."""
    nearest = squared.topk(min(k, squared.shape[1]), largest=False).indices
    return torch.zeros_like(squared).scatter(1, nearest, 1.0)


def _shares(log_affinity: Tensor) -> tuple[Tensor, Tensor]:
    """Return affinities over their sum in each row, and the logarithm of the sum; a row without any is zero."""
    total = log_affinity.logsumexp(1, keepdim=True)
    return (log_affinity - torch.where(total.isinf(), 0, total)).exp(), total


def _growth(values: Tensor, degree: Tensor) -> Tensor:
    """Return D / (D − λ), zero where it divides by almost nothing, as in `torch_lapeig.methods.nystrom`."""
    rest = degree - values
    small = rest.abs() < 1e-3 * degree
    return torch.where(values == 0, 1, torch.where(small, 0, degree / torch.where(small, 1, rest)))


def _given(affinity: Tensor, _: Tensor, correction: Tensor) -> Tensor:
    return affinity.log() + correction


def _log_affinity(weights: Weighting | None) -> LogAffinity:
    """Return the weighting as a function of squared lengths, connectivity ``(Q, N)`` and state to log W, −∞ for none.

    The functions are those of `Weighting.extend`, of all pairs instead of edges.
    """
    if isinstance(weights, SimpleWeights):
        return lambda squared, there, state: there.log()
    if isinstance(weights, KernelWeights):
        return lambda squared, there, state: (there * weights.kernel(squared)).log()
    if isinstance(weights, HeatKernel):
        return lambda squared, there, state: there.log() - squared / state[:, 0]
    if isinstance(weights, ImprovedWeights):
        return lambda squared, there, state: there.log() - squared / state[:, 0] - state[:, 1]
    if isinstance(weights, DensityCorrected):
        return _corrected(_log_affinity(weights.weights), weights.alpha)
    if isinstance(weights, SelfTuning):
        return _self_tuning(weights.m)
    raise TypeError(f"frozen needs one of this library's weightings, got {type(weights).__name__}")


def _corrected(kernel: LogAffinity, alpha: float) -> LogAffinity:
    def log_affinity(squared: Tensor, there: Tensor, state: Tensor) -> Tensor:
        found = kernel(squared, there, state[:, 1:])
        mass = found.logsumexp(1, keepdim=True)
        return found - alpha * torch.where(mass.isinf(), 0, mass) + state[:, 0]

    return log_affinity


def _self_tuning(m: int) -> LogAffinity:
    def log_affinity(squared: Tensor, there: Tensor, state: Tensor) -> Tensor:
        lengths = torch.where(there > 0, squared, torch.inf)
        nearest = lengths.topk(min(m, lengths.shape[1]), largest=False).values
        own = torch.where(nearest.isinf(), 0, nearest).amax(1, keepdim=True)
        other = torch.where(lengths > 0, lengths, torch.inf).amin(1, keepdim=True)  # where the m-th is a copy
        own = torch.where(own > 0, own, torch.where(other.isinf(), 1, other)).sqrt()
        return there.log() - squared / (own * state[:, 0])

    return log_affinity


class FrozenKernelMap(nn.Module):
    """Rows of new points by a centred kernel with fixed points: √λ_k y_k(x) of Bengio et al. 2003."""

    means: Tensor
    vectors: Tensor

    def __init__(self, kernel: DenseKernel, points: FixedPoints | None, state: State) -> None:
        super().__init__()
        values, means = state["eigenvalues_"].double(), state["train_means"].double()
        self.kernel, self.points, self.dtype = kernel, points, state["embedding_"].dtype
        self.register_buffer("means", means - means.mean())
        self.register_buffer("vectors", state["embedding_"].double() / torch.where(values > 0, values, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return rows ``(Q, k)`` of new points ``(Q, D)``, or of given pairs ``(Q, N)``."""
        kernel = self.kernel(x.double(), self.points)
        return ((kernel - kernel.mean(1, keepdim=True) - self.means) @ self.vectors).to(self.dtype)
