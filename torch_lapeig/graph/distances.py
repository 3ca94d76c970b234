"""Squared distances by direct differences: between all points of two sets, or of given pairs.

A matrix product, ‖q‖² − 2 q·x + ‖x‖², loses the digits in which close points differ. All values here are sums of
squared differences instead. The search, the weights and the formulas for new points share them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.native import calls as native
from torch_lapeig.support import checks, precision
from torch_lapeig.support.tuning import rows_of_block

Metric = Literal["euclidean", "cosine"]

# Bytes of a set up to which compiled loops over all pairs take less time than products, as the set stays in the second
# cache: 0.66 with 2000 × 128 in float32, 0.87 with 3000 × 100, 0.9 with 30,000 × 10, 1.4 with 10,000 × 50.
DIRECT_BYTES = 1_500_000
# Dimensions up to which squares are added one after the other: torch's sums are slow on such short rows.
SHORT_ROW = 8


class Nearest(NamedTuple):
    """Numbers and squared distances of the points nearest to each query, ascending, ties by number: ``(..., Q, k)``."""

    indices: Tensor
    squared_distances: Tensor

    def first(self) -> Nearest:
        """Return the neighbours ``(Q, k)`` of the first item of a batch."""
        return Nearest(self.indices[0], self.squared_distances[0])


def measured(x: Tensor, metric: Metric, valid: Tensor | None = None) -> Tensor:
    """Return points ``(..., D)`` whose Euclidean distances are the lengths of a metric, with gradients."""
    if metric == "euclidean":
        return x
    largest = checks.primal(x).abs().amax(-1, keepdim=True)  # so that no square overflows or underflows
    zero = largest[..., 0] == 0
    lacking = zero if valid is None else zero & valid  # padding may hold zeros

    def refuse() -> None:
        raise ValueError(f'metric="cosine" needs vectors of positive length, got {int(lacking.sum())} zero vectors')

    precision.check_at_next_sync(lacking.any(), refuse)
    x = x / torch.where(largest > 0, largest, 1)
    squares = x.square().sum(-1, keepdim=True)
    return x / torch.where(squares > 0, squares, 1).sqrt()


def least_reach(metric: Metric, dtype: torch.dtype) -> float:
    """Return the distance up to which two points count as one: 0, or the rounding of unit vectors for ``"cosine"``."""
    return 0.0 if metric == "euclidean" else 16 * torch.finfo(dtype).eps  # scaling rounds unit vectors by less


def squared_distances(queries: Tensor, points: Tensor) -> Tensor:
    """Return ‖q − x‖² ``(..., Q, N)`` of ``(..., Q, D)`` and ``(..., N, D)``, without gradients."""
    return torch.cdist(queries.detach(), points.detach(), compute_mode="donot_use_mm_for_euclid_dist").square_()


def differentiable_squared_distances(queries: Tensor, points: Tensor) -> Tensor:
    """Return `squared_distances` ``(Q, N)``, with derivatives of any order and mode."""
    direct = squared_distances(checks.primal(queries), checks.primal(points))
    if not _has_derivatives(queries, points):
        return direct
    centre = checks.primal(points).mean(0)  # the terms of the square that cancel get smaller
    queries, points = queries - centre, points - centre
    # Derivatives of the expanded square need no memory of Q × N × D.
    expanded = queries.square().sum(1)[:, None] + points.square().sum(1) - 2 * precision.matmul(queries, points.mT)
    return expanded + (direct - checks.primal(expanded))


def pair_distances(queries: Tensor, query: Tensor, points: Tensor, point: Tensor) -> Tensor:
    """Return ‖q − x‖² ``(E,)`` of pairs of rows, without gradients, in blocks that stay in the cache."""
    is_wide = points.shape[1] > SHORT_ROW
    if is_wide and (found := native.pair_squares(queries, query, points, point)) is not None:
        return found
    step = rows_of_block(2 * points.shape[1] * points.element_size(), points.device, "cache")
    pairs = zip(query.split(step), point.split(step), strict=True)
    differences = (queries.index_select(0, i).sub_(points.index_select(0, j)) for i, j in pairs)
    return torch.cat([_sums_of_squares(d) for d in differences])


def roots_no_less(squares: Tensor) -> Tensor:
    """Return roots of squared distances, rounded upwards, so that points at such a distance stay in reach."""
    roots = squares.sqrt()
    return torch.where(roots.square() < squares, roots.nextafter(torch.full_like(roots, torch.inf)), roots)


def radii_no_less(radius: float, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a radius in the dtype of points, rounded upwards: rounded downwards, the root of 2 would not reach 2."""
    radii = x.new_full((), min(radius, torch.finfo(x.dtype).max))
    radii = radii if float(radii) >= radius else radii.nextafter(torch.full_like(radii, torch.inf))
    return radii.clamp_max(torch.finfo(x.dtype).max).expand(shape)


def differentiable_pair_distances(queries: Tensor, query: Tensor, points: Tensor, point: Tensor) -> Tensor:
    """Return `pair_distances` with derivatives of any order and mode; in O(E·D) memory where there are any."""
    if not _has_derivatives(queries, points):
        return pair_distances(checks.primal(queries), query, checks.primal(points), point)
    return (queries[query] - points[point]).square().sum(1)


def nearest_directly(points: Tensor, queries: Tensor, valid: Tensor, itself: bool, k: int) -> Nearest | None:
    """Return the points of small `Sets` nearest to queries, ``(B, Q, k)``; None where products take less time."""
    set_bytes = points.shape[1] * points.shape[2] * points.element_size()
    # The loops insert neighbours one by one: of 300 and more this takes longer than a sort.
    if set_bytes > DIRECT_BYTES or k > 160:
        return None
    # Up to `SHORT_ROW` dimensions the distances equal `pair_distances` to the last bit.
    found = native.nearest(points, queries, valid, k, itself)
    return None if found is None else Nearest(*found)


def nearest_of_candidates(queries: Tensor, candidates: Tensor, number: Tensor, missing: Tensor, k: int) -> Nearest:
    """Return the nearest of each query's own candidates ``(Q, m, D)``, overwritten, as `pair_distances` measures."""
    distances = _sums_of_squares(candidates.sub_(queries[:, None, :])).masked_fill_(missing, torch.inf)
    return nearest_of_measured(distances, number, k)


def nearest_of_measured(distances: Tensor, number: Tensor, k: int) -> Nearest:
    """Return the k nearest ``(Q, k)`` of points with known numbers and squared distances ``(Q, m)``."""
    by_number = number.argsort(1)
    by_distance = distances.gather(1, by_number).argsort(dim=1, stable=True)[:, :k]
    order = by_number.gather(1, by_distance)
    return Nearest(number.gather(1, order), distances.gather(1, order))


def _sums_of_squares(x: Tensor) -> Tensor:
    """Return Σ x² over the last axis; ``x`` is overwritten."""
    if x.shape[-1] > SHORT_ROW:
        rows = x.reshape(-1, x.shape[-1])
        found = native.pair_squares(rows, None, rows.new_zeros(1, x.shape[-1]), None)
        return x.square_().sum(-1) if found is None else found.reshape(x.shape[:-1])
    # One after the other: the order of torch's sum depends on the machine, and its loop is slow on short rows.
    first, *others = x.square_().unbind(-1)
    return sum(others, first.clone())


def _has_derivatives(*tensors: Tensor) -> bool:
    """Return whether derivatives of some of the tensors are asked for, in reverse or in forward mode."""
    return any((torch.is_grad_enabled() and t.requires_grad) or checks.is_dual(t) for t in tensors)
