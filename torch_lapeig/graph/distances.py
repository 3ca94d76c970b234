"""Given distances, and metrics without coordinates: edges and their lengths from rows of the matrix of all distances.

Rows are computed in blocks and searched exactly, ties by the smaller number. Lengths of edges are differentiable in
given distances, and through a metric that is a function of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor

from torch_lapeig.graph.search.exact import Metric, differentiable_pair_distances, has_derivatives, measured
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import rows_of_block

# Metrics of `scipy.spatial.distance.cdist` whose value depends on two points only, and is 0 for equal ones.
SCIPY = "braycurtis canberra chebyshev cityblock correlation dice hamming jaccard jensenshannon rogerstanimoto"


@dataclass(frozen=True)
class Precomputed:
    """Declaration, in place of a rule, a metric or a kernel, that a method receives a matrix of pairs, not points.

    Args:
        kind: content of the matrix ``(N, N)`` or ``(B, N, N)``: ``"affinity"`` (a `Graph` is accepted, too),
            ``"distance"`` or ``"kernel"``. Each method documents the kinds that it accepts.

    Raises:
        ValueError: another ``kind``.

    >>> from torch_lapeig import MDS
    >>> distances = torch.tensor(
    ...     [[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]], dtype=torch.float64
    ... )
    >>> torch.cdist(y := MDS(1, metric=Precomputed("distance"))(distances), y).allclose(
    ...     distances
    ... )
    True
    """

    kind: Literal["affinity", "distance", "kernel"]

    def __post_init__(self) -> None:
        checks.check_choice(self.kind, "kind", ("affinity", "distance", "kernel"))


AnyMetric = str | Precomputed | Callable[[Tensor, Tensor], Tensor]


def has_coordinates(metric: AnyMetric) -> TypeGuard[Metric]:
    """Return whether the metric's lengths are differences of coordinates: `measured` has these."""
    return isinstance(metric, str) and metric in ("euclidean", "cosine")


def check_metric(metric: Any) -> None:
    """Raise unless ``metric`` is a known name, ``Precomputed("distance")`` or a function."""
    if isinstance(metric, str):
        checks.check_choice(metric, "metric", ("euclidean", "cosine", *SCIPY.split()))
    elif isinstance(metric, Precomputed):
        if metric.kind != "distance":
            raise ValueError(f'metric must be Precomputed("distance"), got {metric}')
    else:
        checks.check_function(metric, "metric", 'a name, Precomputed("distance"), or a function of two sets of points')


def check_distances(rows: Tensor, mirrored: Tensor, own: Tensor) -> None:
    """Raise ValueError unless distances equal their mirror images, and those ``own`` of points to themselves are 0."""
    rows, mirrored = rows.detach(), mirrored.detach()
    if not torch.allclose(rows, mirrored):
        raise ValueError(
            f"distances must be symmetric, got entries that differ by up to {(rows - mirrored).abs().max():.3g}; use "
            "(x + x.mT) / 2 of two measurements, x + x.mT of one triangle"
        )
    # Rounding between a point and itself is below a hundredth of the largest distance.
    if (most := own.detach().amax()) > 0.01 * rows.amax():
        raise ValueError(
            f"distances must be zero from each point to itself, got {most:.3g}; for affinities use another method, "
            'such as LaplacianEigenmaps(neighbors=Precomputed("affinity"))'
        )


def distances(metric: AnyMetric, queries: Tensor, points: Tensor) -> Tensor:
    """Return distances ``(Q, N)`` of queries and points, or the given ones, checked; with gradients, but of SciPy's."""
    if isinstance(metric, Precomputed):
        found = queries
    elif isinstance(metric, str):
        if has_derivatives(queries, points):
            raise ValueError(f'metric="{metric}" has no derivatives: use x.detach(), or a function of torch as metric')
        from scipy.spatial.distance import cdist  # slow to import

        found = torch.from_numpy(cdist(*(x.detach().cpu().numpy() for x in (queries, points)), metric)).to(queries)
    else:
        found = metric(queries, points)
        checks.check_floating(found, "metric(x, y)")
        found = found.to(queries.dtype)
    if found.shape != (len(queries), len(points)):
        raise ValueError(f"distances must have shape {(len(queries), len(points))}, got {tuple(found.shape)}")
    checks.check_finite(found.detach().square(), "squares of distances", "rescale them, or drop the points")
    checks.check_non_negative(found, "distances", 1e-5 * found.detach().amax() if found.numel() else 0.0)
    return found.clamp_min(0)


def sets(metric: AnyMetric, x: Tensor, mask: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the numbers b · N + i of the valid points of each set, and these points or their given distances."""
    n = x.shape[-2]
    for b, item in enumerate(x.reshape(-1, *x.shape[-2:])):
        places = torch.arange(n, device=x.device)
        if mask is not None:
            places = mask.reshape(-1, n)[b].nonzero().flatten()
            item = item[places][:, places] if isinstance(metric, Precomputed) else item[places]
        yield b * n + places, item


def blocks(metric: AnyMetric, points: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield rows of the matrix of distances of points, and the number of the first."""
    step = rows_of_block(24 * max(len(points), 1), points.device)
    for number, rows in enumerate(points.split(step)):
        yield number * step, distances(metric, rows, points)


def nearest_of_rows(found: Tensor, k: int) -> Tensor:
    """Return True for the k smallest finite numbers of each row ``(Q, N)``, ties by column."""
    if not found.shape[1]:
        return found.isfinite()
    kth = found.topk(min(k, found.shape[1]), largest=False).values.amax(1, keepdim=True)
    below, equal = found < kth, (found == kth) & found.isfinite()
    return below | (equal & (equal.cumsum(1) <= k - below.sum(1, keepdim=True)))


def own_distances(metric: AnyMetric, points: Tensor) -> Tensor:
    """Return the distance of each point to itself, round-off of 0."""
    if isinstance(metric, Precomputed):
        return points.diagonal()
    return torch.cat([distances(metric, part, part).diagonal() for part in points.split(64)])


@torch.no_grad()
def edges_by_rows(
    metric: AnyMetric, x: Tensor, mask: Tensor | None, choose: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return first and second nodes b · N + i and lengths ``(E,)`` of the edges that ``choose`` takes of each row."""
    checks.check_floating(x, "x")
    checks.check_outside_func(x, "x")
    is_given = isinstance(metric, Precomputed)
    if is_given and (x.ndim not in (2, 3) or x.shape[-1] != x.shape[-2]):
        raise ValueError(f"x must have shape (N, N) or (B, N, N) of distances, got {tuple(x.shape)}")
    if mask is not None:
        checks.check_mask(mask, x)
        x = torch.where(mask[..., None] & mask[..., None, :] if is_given else mask[..., None], x, 0)
    checks.check_points(x, min_points=1 if x.ndim == 3 else 2)
    x = checks.primal(x)
    none = torch.zeros(0, dtype=torch.int64, device=x.device)
    parts = [(none, none, x.new_zeros(0))]
    for places, points in sets(metric, x, mask):
        if len(places) < 2:
            continue
        few = points if is_given else points[:8]  # whose rows are compared with their columns
        mirrored = points.mT if is_given else distances(metric, points, few).mT
        check_distances(distances(metric, few, points), mirrored, own_distances(metric, points))
        for begin, found in blocks(metric, points):
            row = torch.arange(len(found), device=x.device)
            row, col = choose(found.index_put((row, begin + row), found.new_tensor(torch.inf))).nonzero(as_tuple=True)
            parts.append((places[begin + row], places[col], found[row, col]))
    row, col, lengths = (torch.cat(part) for part in zip(*parts, strict=True))
    return row, col, lengths


def edge_lengths(x: Tensor, graph: Any) -> Tensor:
    """Return the length ``(E,)`` of each edge of a sparse graph of such a metric, with gradients; 0 of self loops."""
    pattern, found = graph.pattern, [x.new_zeros(0)]
    if not graph.is_sparse:
        raise TypeError("a graph whose metric has no coordinates must be sparse to be weighted; use graph.to_sparse()")
    for places, points in sets(graph.metric, x, graph.mask):
        for begin, rows in blocks(graph.metric, points) if len(places) else ():
            ends = places[[begin, begin + len(rows) - 1]].tolist()
            edges = slice(int(pattern.crow[ends[0]]), int(pattern.crow[ends[1] + 1]))
            row, col = (torch.searchsorted(places, end[edges].long()) for end in (pattern.row, pattern.col))
            found.append(rows[row - begin, col])
    lengths = torch.cat(found)
    mean: Tensor = pattern.without_loops(lengths + pattern.transpose(lengths)) / 2
    return mean


def squares_of_pairs(metric: AnyMetric, x: Tensor, query: Tensor, points: Tensor, point: Tensor) -> Tensor:
    """Return squared lengths ``(E,)`` of pairs of new points, or their given distances, and points; differentiable."""
    if has_coordinates(metric):
        return differentiable_pair_distances(measured(x, metric), query, measured(points, metric), point)
    return distances(metric, x, points)[query, point].square()
