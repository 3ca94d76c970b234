"""The points and queries of a search, checked."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._tuning import rows_of_block
from torch_lapeig.graph.distances import Metric, measured


class Sets(NamedTuple):
    """Checked points ``(B, N, D)``, queries ``(B, Q, D)`` and which points are valid, bool ``(B, N)``.

    ``itself``: the queries are the points, and none is its own neighbour.
    """

    points: Tensor
    queries: Tensor
    valid: Tensor
    itself: bool

    def items(self) -> list[Sets]:
        """Each item of the batch, as a batch of one."""
        every = zip(self.points.split(1), self.queries.split(1), self.valid.split(1), strict=True)
        return [Sets(*item, self.itself) for item in every]


def prepare(x: Tensor, queries: Tensor | None, mask: Tensor | None, metric: Metric) -> Sets:
    """Check the arguments of a search; the points are those that the metric measures between, see `measured`."""
    _checks.check_floating(x, "x")
    _checks.check_outside_func(x, "x")
    _checks.check_choice(metric, "metric", ("euclidean", "cosine"))
    if mask is not None:
        _checks.check_mask(mask, x)
        x = torch.where(mask[..., None], x, 0)
    _checks.check_points(x, min_points=1 if x.ndim == 3 else 2)  # items of a batch may be of any size
    given = {"x": x} if queries is None else {"x": x, "queries": queries}
    x = _checks.primal(x)
    points = x.reshape(-1, *x.shape[-2:])
    valid = points.new_ones(points.shape[:2], dtype=torch.bool) if mask is None else mask.reshape(points.shape[:2])
    asked = points
    if queries is not None:
        _checks.check_points(queries, "queries", min_points=1)
        queries = _checks.primal(queries)
        if queries.dtype != x.dtype or queries.shape[-1] != x.shape[-1] or queries.shape[:-2] != x.shape[:-2]:
            raise ValueError(
                f"queries must go with x of shape {tuple(x.shape)} and {x.dtype}, got {tuple(queries.shape)} and "
                f"{queries.dtype}"
            )
        asked = queries.reshape(-1, *queries.shape[-2:])
    # Squared distances of such points, and what is added to them, stay finite.
    largest = math.sqrt(torch.finfo(x.dtype).max / (64 * x.shape[-1]))
    for name, values in given.items():
        size = _checks.largest(values)
        _checks.later(size > largest, functools.partial(_refuse_size, name, size, largest))
    points = measured(points, metric, valid)
    return Sets(points, points if queries is None else measured(asked, metric), valid, queries is None)


def _refuse_size(name: str, size: Tensor, largest: float) -> None:
    raise ValueError(
        f"{name} must be at most {largest:.1e} in size for squared distances in {size.dtype}, got {size:.1e}; "
        "rescale the points"
    )


def warn_of_underflow(sets: Sets, indices: Tensor, distances: Tensor) -> None:
    """Say so where neighbours are apart and their squared distance is no normal number."""
    close = distances < torch.finfo(distances.dtype).tiny
    if sets.itself:
        close &= sets.valid[..., None]
    _checks.later(close.any(), functools.partial(_say_underflow, sets, indices, distances, close))


def _say_underflow(sets: Sets, indices: Tensor, distances: Tensor, close: Tensor) -> None:
    item, query, place = close.nonzero(as_tuple=True)
    lost, d = 0, sets.points.shape[2]
    for part in torch.arange(len(item), device=item.device).split(rows_of_block(16 * d, item.device)):
        of_item, point = item[part], indices[item[part], query[part], place[part]]
        lost += int((sets.points[of_item, point] != sets.queries[of_item, query[part]]).any(1).sum())
    if lost:
        _checks.warn(
            f"squared distances of {lost} pairs of distinct points are below {torch.finfo(distances.dtype).tiny:.1e}, "
            f"the least normal {distances.dtype}, so that which are nearest is not known; rescale the points",
            _checks.GraphWarning,
        )
