"""Out-of-sample maps of fits as plain modules of dense operations, for `torch.export` and ONNX.

`transform` searches for neighbours, checks its input and warns: a program, not an expression. Here the training points
are fixed, and each new point is compared to all of them, so that nothing depends on values but by `torch.where`.
Numbers are float64 inside. Distances are direct differences: a product would lose the near ones beside a far point.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torch_lapeig.graph import Landmarks, Radius
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
from torch_lapeig.support import checks
from torch_lapeig.support.fitted import State


class Frozen(nn.Module):
    """Rows of points in any precision by a map in float64, a copy that neither later training nor casts change."""

    def __init__(self, rows: nn.Module, width: int) -> None:
        super().__init__()
        self.map, self.width = copy.deepcopy(rows).requires_grad_(False), width

    def forward(self, x: Tensor) -> Tensor:
        """Return rows ``(Q, k)`` of new points ``(Q, D)``, or of given pairs ``(Q, N)``, in their dtype."""
        checks.check_floating(checks.half_to_float32(x), "x_new")
        if x.ndim != 2 or x.shape[1] != self.width:
            raise ValueError(f"x_new must have shape (Q, {self.width}), as the fit, got {tuple(x.shape)}")
        return self.map(x.double()).to(x.dtype)  # type: ignore[no-any-return]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def moved(value: Tensor) -> Tensor:
            found = fn(value)
            return found if found.dtype == value.dtype else value.to(found.device)

        return super()._apply(moved, recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key in [key for key in state_dict if key.startswith(prefix) and not key.startswith(f"{prefix}map.")]:
            state_dict[f"{prefix}map.{key.removeprefix(prefix)}"] = state_dict.pop(key)  # of version 0.3.0
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __prepare_scriptable__(self) -> None:
        raise TypeError("a frozen map does not pass torch.jit.script; use torch.export.export(frozen, (points,))")


class FixedPoints(nn.Module):
    """Points that do not change, and their distances and products with new ones, in float64."""

    def __init__(self, points: Tensor, metric: Metric = "euclidean", *, is_measured: bool = False) -> None:
        super().__init__()
        self.metric, self.dtype = metric, points.dtype
        self.least = least_reach(metric, points.dtype) ** 2
        points = points.double() if is_measured else self.measured(points.double())
        self.centre = nn.Buffer(points.mean(0))
        self.points = nn.Buffer(points - self.centre)

    def measured(self, x: Tensor) -> Tensor:
        """Return the points between which the metric measures lengths."""
        if self.metric == "euclidean":
            return x
        x = x / x.abs().amax(1, keepdim=True)
        return x / x.square().sum(1, keepdim=True).sqrt()

    def squared(self, x: Tensor) -> Tensor:
        """Return squared distances ``(Q, N)`` of new points ``(Q, D)``."""
        # Some coordinates at a time: ONNX has no `torch.cdist`, and all together take D times the memory of the result.
        parts = zip((self.measured(x) - self.centre).split(16, 1), self.points.split(16, 1), strict=True)
        return sum((some.unsqueeze(1) - fixed).square().sum(2) for some, fixed in parts)  # type: ignore[no-any-return]

    def products(self, x: Tensor) -> Tensor:
        """Return inner products about the mean of the fixed points, ``(Q, N)``."""
        return (self.measured(x) - self.centre) @ self.points.mT

    def plain_products(self, x: Tensor) -> Tensor:
        """Return inner products ``(Q, N)``."""
        return x @ (self.points + self.centre).mT

    def kernel(self, function: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
        """Return a kernel of the user's own, ``(Q, N)``, which takes points in the dtype of the fit."""
        fixed = self.points + self.centre
        return function(x.to(self.dtype, copy=True), fixed.to(self.dtype)).double()


class FrozenGraphMap(nn.Module):
    """Rows of new points by the weights of their edges, or their shares in landmarks, as `nystrom` has them."""

    def __init__(
        self, rule: Any, weights: Weighting | None, state: State, *, normalized: bool = True, counts: Any = None
    ) -> None:
        super().__init__()
        rows = vectors = state.get("train_vectors", state["embedding_"]).double()
        none, self.points = vectors.new_zeros(1), None
        self.rule, self.weights, self.normalized = rule, weights, normalized
        if weights is not None:
            _check(weights)
            is_measured = isinstance(rule, Landmarks)  # means of points on the sphere lie within it
            self.points = FixedPoints(state["train_points"], rule.metric, is_measured=is_measured)
            # Rounded up, as fixed points lie at the reach of others.
            reach = state.get("train_rule", none).double() * (1 + 8 * torch.finfo(self.points.dtype).eps)
            self.reach = nn.Buffer((reach + self.points.least**0.5).square())
        values = state.get("train_eigenvalues", none).double()
        if not normalized and values.ndim == 2:
            raise TypeError('frozen needs components="joint" with normalization="unnormalized", got "separate"')
        degrees = state.get("train_degrees")
        if degrees is not None:
            vectors = vectors / torch.where(degrees > 0, degrees, torch.inf).double().sqrt()[:, None]
        self.takes_degrees = degrees is not None
        # The state of given affinities is their correction for density, log q^-α.
        self.state = nn.Buffer(state.get("train_weighting", state.get("train_density", none)))
        self.values, self.rows = nn.Buffer(values), nn.Buffer(rows)
        self.vectors = nn.Buffer(vectors * (growth_of(values.new_ones(()), values, none)[1] if normalized else 1))
        self.counts = None if counts is None else nn.Buffer(counts.double()[:, None])

    def forward(self, x: Tensor) -> Tensor:
        """Return rows ``(Q, k)`` of new points ``(Q, D)``, or of their affinities ``(Q, N)`` where these are given."""
        if self.points is None:
            return self._rows_of(_log(x) + self.state)
        squared = self.points.squared(x)
        if isinstance(self.rule, Landmarks):
            return self._rows_of(_log_affinity(self.weights, squared, _nearest(squared, self.rule.r), self.state))
        # A fixed point (the first of equal ones) has its own row, with the derivatives that its edges to others give.
        n = squared.shape[1]
        number = torch.arange(n, device=squared.device)
        first = torch.where(squared <= self.points.least, number, n).amin(1, keepdim=True)
        own = number == first
        there = torch.where(own, 0, self._connectivity(torch.where(own, torch.inf, squared)))
        y = self._rows_of(_log_affinity(self.weights, squared, there, self.state))
        return torch.where(first < n, self.rows[first.squeeze(1).clamp_max(n - 1)] + (y - y.detach()), y)

    def _rows_of(self, log_affinity: Tensor) -> Tensor:
        """Return rows by affinities over their sum; zero without any."""
        total = _log_sum(log_affinity)
        level = torch.where(total.isinf(), 0, total)
        share = (log_affinity - level).exp()
        y = (share * (level / 2).exp() if self.takes_degrees else share) @ self.vectors
        if self.counts is not None:
            y = y * torch.where(total.isinf(), 1, share @ self.counts).sqrt()
        return y if self.normalized else y * growth_of(total.exp(), self.values, total.new_zeros(()))[1]

    def _connectivity(self, squared: Tensor) -> Tensor:
        """Return the weights ``(Q, N)`` that the rule gives edges: 1, ½ or 0."""
        reached = (squared <= self.reach).to(squared)
        if isinstance(self.rule, Radius):
            return reached
        chosen = _nearest(squared, self.rule.k)
        if self.rule.symmetrize == "mean":
            return (chosen + reached) / 2
        return chosen.maximum(reached) if self.rule.symmetrize == "union" else chosen * reached


def growth_of(degree: Tensor, eigenvalues: Tensor, error: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where divisors are tiny, and D / (D − λ) and 1 / (D − λ), zero there."""
    # 1 / (1 − λ / D) as D / (D − λ), which is 1 for λ = 0 and does not overflow where D is tiny.
    degree = torch.where(eigenvalues == 0, 1, degree)
    # Where 1 − λ / D is smaller, the formula divides by almost nothing, or by the error of λ.
    small = (degree - eigenvalues).abs() < torch.where(eigenvalues == 0, 0, 1e3 * error).maximum(1e-3 * degree)
    rest, info = torch.where(small, 1, degree - eigenvalues), torch.finfo(degree.dtype)
    overflows = rest.abs() < info.tiny / info.eps
    inverse = torch.where(small | overflows, 0, 1 / torch.where(overflows, 1, rest))
    return small, torch.where(small, 0, degree / rest), inverse


def _nearest(squared: Tensor, k: int) -> Tensor:
    """Return 1 for the ``k`` smallest of each row, 0 elsewhere."""
    nearest = squared.topk(min(k, squared.shape[1]), largest=False).indices
    return torch.zeros_like(squared).scatter(1, nearest, 1.0)


def _log(values: Tensor) -> Tensor:
    """Return the logarithm; −∞ of 0, without derivatives there."""
    none = values == 0
    return torch.where(none, -torch.inf, torch.where(none, 1, values).log())


def _log_sum(logs: Tensor) -> Tensor:
    """Return log Σ exp of each row ``(Q, 1)``, written out, as the operator that ONNX has for it underflows."""
    top = logs.detach().amax(1, keepdim=True)
    top = torch.where(top.isinf(), 0, top)
    return _log((logs - top).exp().sum(1, keepdim=True)) + top


# --- `Weighting.extend` of all pairs: log W ``(Q, N)`` by squared lengths, connectivity and state, −∞ for no edge -----


def _heat(weights: Any, squared: Tensor, there: Tensor, state: Tensor) -> Tensor:
    return there.log() - squared / state[:, 0]


def _of_kernel(weights: KernelWeights, squared: Tensor, there: Tensor, state: Tensor) -> Tensor:
    lengths = torch.where(there > 0, squared, 1)  # at other lengths the kernel may have no value, or no derivative
    values = weights.kernel(lengths.to(state.dtype))
    values = torch.where(values < torch.finfo(values.dtype).tiny, values.detach(), values)  # 1 / W would overflow
    return _log(torch.where(there > 0, there * values, 0))


def _corrected(weights: DensityCorrected, squared: Tensor, there: Tensor, state: Tensor) -> Tensor:
    found = _log_affinity(weights.weights, squared, there, state[:, 1:])
    mass = _log_sum(found)
    return found - weights.alpha * torch.where(mass.isinf(), 0, mass) + state[:, 0]


def _self_tuning(weights: SelfTuning, squared: Tensor, there: Tensor, state: Tensor) -> Tensor:
    lengths = torch.where(there > 0, squared, torch.inf)
    nearest = lengths.topk(min(weights.m, lengths.shape[1]), largest=False).values
    own = torch.where(nearest.isinf(), 0, nearest).amax(1, keepdim=True)
    other = torch.where(lengths > 0, lengths, torch.inf).amin(1, keepdim=True)  # where the m-th is a copy
    own = torch.where(own > 0, own, torch.where(other.isinf(), 1, other)).sqrt()
    return there.log() - squared / (own * state[:, 0])


FORMS: dict[Any, Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    SimpleWeights.extend: lambda weights, squared, there, state: there.log(),
    KernelWeights.extend: _of_kernel,
    HeatKernel.extend: _heat,
    ImprovedWeights.extend: lambda weights, squared, there, state: _heat(None, squared, there, state) - state[:, 1],
    DensityCorrected.extend: _corrected,
    SelfTuning.extend: _self_tuning,
}


def _log_affinity(weights: Any, squared: Tensor, there: Tensor, state: Tensor) -> Tensor:
    return FORMS[type(weights).extend](weights, squared, there, state)


def _check(weights: Weighting) -> None:
    """Raise TypeError for a weighting whose ``extend`` has no form here."""
    if type(weights).extend not in FORMS:
        raise TypeError(f"frozen needs one of this library's weightings, got {type(weights).__name__}")
    if isinstance(weights, DensityCorrected):
        _check(weights.weights)


class FrozenKernelMap(nn.Module):
    """Rows of new points by a centred kernel with fixed points: √λ_k y_k(x) of Bengio et al. 2003."""

    def __init__(self, kernel: Callable[[Tensor, Any], Tensor], points: FixedPoints | None, state: State) -> None:
        super().__init__()
        values, means = state["eigenvalues_"].double(), state["train_means"].double()
        self.kernel, self.points = kernel, points
        self.means = nn.Buffer(means - means.mean())
        self.vectors = nn.Buffer(state["embedding_"].double() / torch.where(values > 0, values, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return rows ``(Q, k)`` of new points ``(Q, D)``, or of given pairs ``(Q, N)``."""
        kernel = self.kernel(x, self.points)
        return (kernel - kernel.mean(1, keepdim=True) - self.means) @ self.vectors
