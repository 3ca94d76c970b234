"""Out-of-sample maps of fits as plain modules of dense operations, for `torch.export` and ONNX.

`transform` searches for neighbours, checks its input and warns: a program, not an expression. Here the training points
are fixed, and each new point is compared to all of them, so that nothing depends on values but by `torch.where`. The
formulas are those of `transform`, of all pairs in place of a list of edges. Numbers are float64 inside. Distances are
direct differences: a product would lose the near ones beside a far point.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torch_lapeig.graph import NewEdges, Radius, Weighting
from torch_lapeig.graph.search.exact import Metric, measured
from torch_lapeig.support import checks
from torch_lapeig.support.fitted import State


class Frozen(nn.Module):
    """Rows of points in any precision by a map in float64, a copy that neither later training nor casts change."""

    def __init__(self, method: Any, state: State, fit: State) -> None:
        """Copy the options of a method beside what its ``_of_all`` needs of a fit, in float64, as ``state``."""
        super().__init__()
        bare = copy.copy(method)
        bare._keep({}, None)
        bare.solve = None
        rows = fit[method.FITTED[0]]
        self.width, self.dtype = fit.get("train_points", rows.mT).shape[1], rows.dtype
        self.map = copy.deepcopy(bare).requires_grad_(False)
        for name, value in state.items():
            self.map.register_buffer(name, value.clone())  # torch.jit.trace takes no tensor twice

    def forward(self, x: Tensor) -> Tensor:
        """Return rows ``(Q, k)`` of new points ``(Q, D)``, or of given pairs ``(Q, N)``, in their dtype."""
        checks.check_floating(checks.half_to_float32(x), "x_new")
        if x.ndim != 2 or x.shape[1] != self.width:
            raise ValueError(f"x_new must have shape (Q, {self.width}), as the fit, got {tuple(x.shape)}")
        state = dict(self.map.named_buffers(recurse=False))
        return self.map._steps._of_all(x.double(), state, self.dtype).to(x.dtype)  # type: ignore[no-any-return]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def moved(value: Tensor) -> Tensor:
            found = fn(value)
            return found if found.dtype == value.dtype else value.to(found.device)

        return super()._apply(moved, recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        own = {prefix + name for name in self.state_dict()}
        for key in [key for key in state_dict if key.startswith(prefix) and key not in own]:  # names of version 0.3.0
            name = key.removeprefix(prefix).removeprefix("map.").removeprefix("0.").removeprefix("points.")
            state_dict[f"{prefix}map.{name.replace('kernel.kernel.', 'kernel.')}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __prepare_scriptable__(self) -> None:
        raise TypeError("a frozen map does not pass torch.jit.script; use torch.export.export(frozen, (points,))")


def fixed_points(points: Tensor, metric: Any = "euclidean") -> State:
    """Return points as a frozen map keeps them: about their mean, in float64."""
    points = measured(points.double(), metric)
    centre = points.mean(0)
    return {"centre": centre, "points": points - centre}


def lengths_to_all(x: Tensor, state: State, metric: Metric) -> Tensor:
    """Return squared lengths ``(Q, N)`` from new points ``(Q, D)`` to `fixed_points`."""
    if metric == "cosine":  # as `measured`, without its check
        x = x / x.abs().amax(1, keepdim=True)
        x = x / x.square().sum(1, keepdim=True).sqrt()
    return squared_to_all(x - state["centre"], state["points"])


def squared_to_all(x: Tensor, points: Tensor) -> Tensor:
    """Return squared distances ``(Q, N)``, some coordinates at a time."""
    # ONNX has no `torch.cdist`, and all coordinates together take D times the memory of the result.
    parts = zip(x.split(16, 1), points.split(16, 1), strict=True)
    return sum((some.unsqueeze(1) - fixed).square().sum(2) for some, fixed in parts)  # type: ignore[no-any-return]


def edges_to_all(squared: Tensor, there: Tensor, point: Tensor | None = None) -> NewEdges:
    """Return edges to all points or some, by squared lengths and connectivity ``(Q, N)``, for `Weighting.extend`."""
    queries, n = squared.shape
    query = torch.arange(queries, device=squared.device).unsqueeze(1)
    return NewEdges(query, torch.arange(n, device=squared.device) if point is None else point, squared, there, queries)


def connectivity_to_all(rule: Any, squared: Tensor, reach: Tensor) -> Tensor:
    """Return the weights ``(Q, N)`` that `KNN` or `Radius` gives edges, 1, ½ or 0, given squared lengths and reach."""
    reached = (squared <= reach).to(squared)
    if isinstance(rule, Radius):
        return reached
    nearest = squared.topk(min(rule.k, squared.shape[1]), largest=False).indices
    chosen = torch.zeros_like(squared).scatter(1, nearest, 1.0)
    if rule.symmetrize == "mean":
        return (chosen + reached) / 2
    return chosen.maximum(reached) if rule.symmetrize == "union" else chosen * reached


def check_exported(weights: Weighting | None) -> None:
    """Raise TypeError for a weighting whose ``extend`` may need a list of edges."""
    for part in () if weights is None else weights.modules():
        owner = next((kind for kind in type(part).__mro__ if "extend" in vars(kind)), Weighting)
        if isinstance(part, Weighting) and owner.__module__ != Weighting.__module__:
            raise TypeError(f"frozen needs one of this library's weightings, got {type(part).__name__}")
