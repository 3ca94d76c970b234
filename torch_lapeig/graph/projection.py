"""Nearest neighbours of points of many dimensions that lie near fewer, by lower bounds of their distances.

Let the columns of V ``(D, p)`` be orthonormal, z = Vᵀx and ρ = ‖x − V z‖. By Pythagoras and the triangle inequality

    ‖z_q − z_x‖² + (ρ_q − ρ_x)²  ≤  ‖q − x‖².

So (z, ρ) are points of p + 1 dimensions that are never farther apart than those they stand for. A table of their
squared distances (`tables.Tiles`, in float32) costs (p + 1) / D of that of the points. The k + `SPARE` points of the
smallest bounds are measured by direct differences; the k-th of these says how far the nearest may be at most, and all
other points with a bound up to there are measured too. Rows with very many of them are left to the other search.

V is spanned by the principal directions of a sample. How many there are is decided by counting: the bounds of some
queries are compared with true distances, and the number is taken that leaves the least work, if that is less than the
work of the whole product (`_tuning`).

**Rounding.** Points are centred and scaled by a power of two to norms of at most 1, then cast to float32, u = 2⁻²⁴. A
number of z is a sum of D products and off by at most D u ‖x‖, commonly √D u ‖x‖; so is ρ, which comes from x − V z and
not from a difference of squares. V is orthonormal up to a few u. All this changes a bound by some multiple of
√D u (‖q‖² + ‖x‖²), as the product of the table and the direct differences do: `SLACK` times the slack of a table for D
terms covers all. It counts when directions are chosen, so that outliers do not lead to a search that leaves all rows.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig._tuning import (
    DIRECTIONS,
    FAN,
    LOOKED_AT,
    MEASURED_BYTE,
    PROJECTED_QUERIES,
    PROJECTED_SAMPLE,
    PROJECTED_SHARE,
    rows_of_block,
)
from torch_lapeig.graph.distances import nearest_of_measured, pair_distances
from torch_lapeig.graph.tables import Block, Tiles, nearest_by_blocks, unit_of_slack

SPARE = 5  # candidates beyond k: their k-th bounds the distance of the nearest
SLACK = 8  # times the slack of a table, see above
MOST_GROUPS = 1 / 32  # times the number of points: groups of values of a row that may lie within its limit
SCREENED = 96  # directions with which it is seen whether to look further
LARGEST_EXPONENT = 400  # of the size of points, beyond which its square is no number
ROUNDS = 2  # products with the sample that turn random directions into principal ones


class Projection(NamedTuple):
    """``points`` ``(N, p + 1)`` and ``queries`` ``(Q, p + 1)`` in float32; ``square``: of the scale, a power of two."""

    points: Tensor
    queries: Tensor
    square: float


def projection_that_pays(points: Tensor, queries: Tensor, valid: Tensor, itself: bool, k: int) -> Projection | None:
    """The projection that leaves the least work, of points ``(N, D)``; None where the whole product is less."""
    trial = Trial.of(points, queries, valid, itself, k)
    widths = [p for p in DIRECTIONS if 2 * p <= points.shape[1]]
    if trial.directions([p for p in widths if p <= SCREENED][-1:], _frame(trial.points, trial.queries), 1.0) is None:
        return None
    is_whole = bool(valid.all())
    frame = _frame(points if is_whole else points[valid], None if itself and is_whole else queries)
    directions = trial.directions(widths, frame, PROJECTED_SHARE)
    if directions is None:
        return None
    of_points = _projected(points, frame, directions)
    of_queries = of_points if itself else _projected(queries, frame, directions)
    return Projection(of_points, of_queries, frame.scale**2)


def nearest_by_projection(
    projection: Projection, points: Tensor, queries: Tensor, valid: Tensor, itself: bool, k: int, budget: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The k nearest points of each query ``(Q, D)`` by direct differences, ties by number.

    Returns:
        Numbers and squared distances ``(Q, k)``, and the rows, int64, that are left: theirs mean nothing.
    """
    nearest = functools.partial(_nearest_of_block, points=points, queries=queries, square=projection.square, k=k)
    table = Tiles(projection.points[None], valid[None], k + SPARE, budget)
    indices, distances = nearest_by_blocks(table, projection.queries[None], itself, k, points.dtype, nearest)
    return indices[0], distances[0], (indices[0, :, 0] < 0).nonzero().flatten()


def _nearest_of_block(
    table: Tiles, block: Block, points: Tensor, queries: Tensor, square: float, k: int
) -> tuple[Tensor, Tensor]:
    """Numbers and squared distances ``(R, k)``; numbers of −1 in rows with too many candidates."""
    queries = queries[block.first : block.first + block.per_item]
    values, number = table.smallest(k + SPARE)
    row = torch.arange(len(queries)).repeat_interleave(number.shape[1])
    distances = pair_distances(queries, row, points, number.flatten()).reshape(number.shape)
    indices, distances = nearest_of_measured(distances.masked_fill_(values.isinf(), torch.inf), number, k)

    slack = block.slack * (SLACK * unit_of_slack(queries[:0].float()) / unit_of_slack(block.queries))
    limit = (distances[:, -1] * square).float() + slack - block.squares
    table.forget(number)
    is_left = _too_many(table.groups_within(limit), len(points)) | limit.isinf()
    limit = limit.masked_fill(is_left, -torch.inf)
    row, point = table.within(limit.new_zeros(len(points)), limit)
    of_pairs = pair_distances(queries, row, points, point)
    nearer = of_pairs <= distances[row, -1]
    _merge(indices, distances, row[nearer], point[nearer], of_pairs[nearer])
    indices[is_left, 0] = -1
    return indices, distances


def _too_many(groups: Tensor, n: int) -> Tensor:
    """The rows ``(R,)`` with so many groups to look into that all n points cost less; or that need too much memory."""
    fewest = groups.argsort()
    is_left = groups > MOST_GROUPS * n
    is_left[fewest[groups[fewest].cumsum(0) > rows_of_block(32 * FAN, groups.device)]] = True
    return is_left


def _merge(indices: Tensor, distances: Tensor, row: Tensor, point: Tensor, of_pairs: Tensor) -> None:
    """Put pairs of a row and a point among the k nearest ``(R, k)`` of their rows, in place."""
    k, rows = indices.shape[1], row.unique()
    row = torch.cat([rows.repeat_interleave(k), row])
    point = torch.cat([indices[rows].flatten(), point])
    of_pairs = torch.cat([distances[rows].flatten(), of_pairs])
    order = point.argsort()
    order = order[of_pairs[order].argsort(stable=True)]
    order = order[row[order].argsort(stable=True)]
    count = torch.bincount(row, minlength=len(indices))[rows]
    chosen = order[(count.cumsum(0) - count)[:, None] + torch.arange(k)]
    indices[rows], distances[rows] = point[chosen], of_pairs[chosen]


class Frame(NamedTuple):
    """Where points are put: around ``centre`` ``(D,)``, times ``scale``, a power of two, in float32.

    ``largest``: of the squared norms there, in (1/16, 1/4]; NaN where the scale or its square is no number.
    """

    centre: Tensor
    scale: float
    largest: float

    def __call__(self, x: Tensor) -> Tensor:
        """A framed copy."""
        return (x - self.centre).mul_(self.scale).float()


def _frame(points: Tensor, queries: Tensor | None) -> Frame:
    """The frame of all that counts; ``queries``: None where they are the points."""
    centre = points.mean(0)
    step = rows_of_block(points[:1].nbytes, points.device)
    parts = (part - centre for x in (points, queries) if x is not None for part in x.split(step))
    largest = max(float(torch.linalg.vector_norm(part, dim=1).amax()) for part in parts)
    exponent = math.frexp(largest)[1] + 1
    if largest == 0 or abs(exponent) > LARGEST_EXPONENT:
        return Frame(centre, 1.0, math.nan)
    return Frame(centre, math.ldexp(1.0, -exponent), math.ldexp(largest, -exponent) ** 2)


class Trial(NamedTuple):
    """A sample ``(S, D)`` of the points, some of the queries ``(R, D)``, and which are one, bool ``(R, S)``.

    ``k`` in the sample is as far as the k-th in all of the ``n`` points, about; ``asked`` is that k.
    """

    points: Tensor
    queries: Tensor
    same: Tensor
    n: int
    asked: int
    k: int

    @classmethod
    def of(cls, points: Tensor, queries: Tensor, valid: Tensor, itself: bool, k: int) -> Trial:
        """Rows at equal steps."""
        known, (n, d) = valid.nonzero().flatten(), points.shape
        size = max(PROJECTED_SAMPLE, min(n // 8, rows_of_block(8 * d, points.device)))
        sample = known[_spread(len(known), size)]
        rows = known[_spread(len(known), PROJECTED_QUERIES)] if itself else _spread(len(queries), PROJECTED_QUERIES)
        same = (sample == rows[:, None]) & itself
        return cls(points[sample], queries[rows], same, n, k, math.ceil(k * len(sample) / n))

    def directions(self, widths: list[int], frame: Frame, share: float) -> Tensor | None:
        """The directions ``(D, p)`` that leave the least work, p among ``widths``; None where it is no ``share``."""
        if not frame.largest > 0:
            return None
        x, q, size = frame(self.points), frame(self.queries), self.points.element_size()
        directions = _principal_directions(x[_spread(len(x), PROJECTED_SAMPLE)], widths[-1])
        d, z, y = x.shape[1], q @ directions, x @ directions
        squares, of_points = q.square().sum(1, keepdim=True), x.square().sum(1, keepdim=True)
        apart = (squares + of_points.mT - 2 * q @ x.mT).masked_fill_(self.same, torch.inf)
        limit = apart.kthvalue(self.k, dim=1, keepdim=True).values
        limit += SLACK * unit_of_slack(q) * (squares + frame.largest)
        work = {}
        for p in widths:
            (first, rest), (mine, own) = _cut(y, of_points, p), _cut(z, squares, p)
            bounds = first.square().sum(1) + mine.square().sum(1, keepdim=True) - 2 * mine @ first.mT
            near = float((bounds + (rest.mT - own).square() <= limit).sum()) * self.n / self.same.numel()
            work[p] = self.n * (p + LOOKED_AT) + (near + self.asked + SPARE) * d * size * MEASURED_BYTE
        best, whole = min(work, key=work.__getitem__), self.n * (d * size / 4 + LOOKED_AT)
        return directions[:, :best].contiguous() if work[best] < share * whole else None


def _spread(n: int, count: int) -> Tensor:
    """At most so many of n numbers, at equal steps."""
    return torch.linspace(0, n - 1, min(count, n), dtype=torch.float64).long()


def _principal_directions(sample: Tensor, p: int) -> Tensor:
    """Orthonormal columns ``(D, p)``, about the principal directions, by subspace iteration from random ones."""
    start = torch.randn(len(sample), p, dtype=sample.dtype, generator=torch.Generator().manual_seed(0))
    directions = torch.linalg.qr(sample.mT @ start)[0]
    for _ in range(ROUNDS):
        directions = torch.linalg.qr(sample.mT @ (sample @ directions))[0]
    images = sample @ directions
    turned: Tensor = torch.linalg.qr(directions @ torch.linalg.eigh(images.mT @ images)[1].flip(1))[0]
    return turned


def _cut(z: Tensor, squares: Tensor, p: int) -> tuple[Tensor, Tensor]:
    """The first p numbers of z, and ρ ``(·, 1)`` for these, about."""
    first = z[:, :p]
    return first, (squares - first.square().sum(1, keepdim=True)).clamp_min(0).sqrt()


def _projected(x: Tensor, frame: Frame, directions: Tensor) -> Tensor:
    """(z, ρ) of points, in blocks."""
    d, p = directions.shape
    found = directions.new_empty(len(x), p + 1)
    step = rows_of_block(16 * d, x.device)
    for part, into in zip(x.split(step), found.split(step), strict=True):
        centred = frame(part)
        torch.mm(centred, directions, out=into[:, :p])
        centred.addmm_(into[:, :p], directions.mT, alpha=-1)
        torch.linalg.vector_norm(centred, dim=1, out=into[:, p])
    return found
