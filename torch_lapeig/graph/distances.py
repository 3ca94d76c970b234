"""Given distances, and metrics without coordinates: edges and lengths by rows of all distances, in blocks.

Lengths are differentiable in given distances, and through a metric that is a function of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from torch_lapeig.graph.search.exact import COORDINATES, Metric
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import rows_of_block

# Metrics of `scipy.spatial.distance.cdist` whose value depends on two points only, and is 0 for equal ones.
SCIPY = "braycurtis canberra chebyshev cityblock correlation dice hamming jaccard jensenshannon rogerstanimoto"
BOOLEAN = ("dice", "jaccard", "rogerstanimoto")  # those that see only which numbers are 0
LEAST_SCALE = 1e-146  # whose square is tiny / eps of float64


@dataclass(frozen=True)
class Precomputed:
    """Declaration, in place of a rule, a metric or a kernel, that a method receives a matrix of pairs, not points.

    Args:
        kind: content of the matrix ``(N, N)`` or ``(B, N, N)``: ``"affinity"`` (a `Graph` is accepted, too),
            ``"distance"`` or ``"kernel"``. Each method documents the kinds that it accepts.

    >>> from torch_lapeig import MDS
    >>> x = torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]])
    >>> y = MDS(1, metric=Precomputed("distance"))(x.double())
    >>> torch.allclose(torch.cdist(y, y), x.double())
    True
    """

    kind: Literal["affinity", "distance", "kernel"]

    def __post_init__(self) -> None:
        checks.check_choice(self.kind, "kind", ("affinity", "distance", "kernel"))


def check_metric(metric: Any) -> None:
    """Raise unless ``metric`` is a known name, ``Precomputed("distance")`` or a function."""
    if isinstance(metric, str):
        checks.check_choice(metric, "metric", (*COORDINATES, *SCIPY.split()))
    elif isinstance(metric, Precomputed) and metric.kind != "distance":
        raise ValueError(f'metric must be Precomputed("distance"), got {metric}')
    elif not isinstance(metric, Precomputed):
        checks.check_function(metric, "metric", 'a name, Precomputed("distance"), or a function of two sets of points')


def check_all_stored(x: Any) -> None:
    """Raise TypeError for a sparse matrix of distances: pairs that it does not store would have the distance 0."""
    if getattr(x, "layout", torch.strided) is not torch.strided or hasattr(x, "tocoo"):
        raise TypeError(
            f"x must be a dense tensor of all distances, got a sparse {checks.describe(x)}, whose missing pairs would "
            'be at distance 0; of stored neighbours take neighbors=Precomputed("distance"), for methods on a graph'
        )


def check_distances(rows: Tensor, mirrored: Tensor, own: Tensor, round_off: float = 1e-8) -> None:
    """Raise ValueError unless distances equal their mirror images, and those ``own`` of points to themselves are 0."""
    rows, mirrored = rows.detach(), mirrored.detach()
    if not torch.allclose(rows, mirrored, atol=round_off * float(rows.abs().amax())):
        most, way = (rows - mirrored).abs().max(), "(x + x.mT) / 2 of two measurements, x + x.mT of one triangle"
        raise ValueError(f"distances must be symmetric, got entries that differ by up to {most:.3g}; use {way}")
    check_zero(own, rows)


def check_zero(own: Tensor, rows: Tensor) -> None:
    """Raise ValueError unless distances ``own`` of points to themselves are 0, up to rounding, beside others."""
    # Rounding between a point and itself is below a hundredth of the largest distance.
    if own.numel() and (most := own.detach().amax()) > 0.01 * rows.detach().amax():
        advice = 'for affinities use another method, such as LaplacianEigenmaps(neighbors=Precomputed("affinity"))'
        raise ValueError(f"distances must be zero from each point to itself, got {most:.3g}; {advice}")


def check_given(found: Tensor) -> None:
    """Raise ValueError unless distances are not negative, and have squares."""
    checks.check_finite(found.detach().square(), "squares of distances", "rescale them, or drop the points")
    largest = checks.largest(found).double()
    checks.check_non_negative(found, "distances", 1e-5 * largest)
    if 0 < largest < LEAST_SCALE:
        raise ValueError(f"distances must be so large that squares do not underflow, got up to {largest:.3g}; rescale")


def distances(metric: Metric, queries: Tensor, points: Tensor) -> Tensor:
    """Return distances ``(Q, N)`` of queries and points, or the given ones, checked; with gradients, but of SciPy's."""
    found = queries
    if isinstance(metric, str):
        if checks.needs_derivatives(queries, points):
            raise ValueError(f'metric="{metric}" has no derivatives: use x.detach(), or a function of torch as metric')
        if metric in BOOLEAN and not all(bool(((x == 0) | (x == 1)).all()) for x in (queries, points)):
            raise ValueError(f'x must hold 0 and 1 only with metric="{metric}", got other numbers; use (x > 0).float()')
        from scipy.spatial.distance import cdist  # slow to import

        found = torch.from_numpy(cdist(*(x.detach().cpu().numpy() for x in (queries, points)), metric)).to(queries)
    elif not isinstance(metric, Precomputed):
        found = metric(queries, points)
        checks.check_floating(found, "metric(x, y)")
    if found.shape != (len(queries), len(points)):
        raise ValueError(f"distances must have shape {(len(queries), len(points))}, got {tuple(found.shape)}")
    check_given(found)
    return found.to(queries.dtype).clamp_min(0)


def blocks_of_rows(metric: Metric, x: Tensor, mask: Tensor | None) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the first node of each set, the number there of a block's first row, and its rows, infinite at padding."""
    n, is_given = x.shape[-2], isinstance(metric, Precomputed)
    valid = x.new_ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask
    for b, (item, here) in enumerate(zip(x.reshape(-1, *x.shape[-2:]), valid.reshape(-1, n), strict=True)):
        if not here.any():
            continue
        if mask is not None:  # 0, or a point that is there, in the place of padding
            known = here[:, None] & here if is_given else here[:, None]
            item = torch.where(known, item, 0 if is_given else item[here][0])
        step = rows_of_block(24 * n, x.device)
        for begin, part in zip(range(0, n, step), item.split(step), strict=True):
            rows = distances(metric, part, item)
            mirrored = item[:, begin : begin + step] if is_given else distances(metric, item, part[:8])
            # A function may take the root of a difference of squares, which differ by their round-off.
            round_off = 1e-8 if is_given else (32 * torch.finfo(rows.dtype).eps) ** 0.5
            check_distances(rows[: mirrored.shape[1]], mirrored.mT, rows.diagonal(begin), round_off)
            yield b * n, begin, torch.where(here & here[begin : begin + step, None], rows, torch.inf)


def edge_lengths(x: Tensor, graph: Any) -> Tensor:
    """Return the length ``(E,)`` of each edge of a sparse graph of such a metric, with gradients; 0 of self loops."""
    pattern, found = graph.pattern, [x.new_zeros(0)]
    if not graph.is_sparse:
        raise TypeError("a graph whose metric has no coordinates must be sparse to be weighted; use graph.to_sparse()")
    for first, begin, rows in blocks_of_rows(graph.metric, x, graph.mask):
        start, stop = pattern.crow[[first + begin, first + begin + len(rows)]].tolist()
        row, col = pattern.row[start:stop].long() - first - begin, pattern.col[start:stop].long() - first
        found.append(rows[row, col])
    lengths = torch.cat(found)
    return pattern.without_loops(lengths + pattern.transpose(lengths)) / 2  # type: ignore[no-any-return]
