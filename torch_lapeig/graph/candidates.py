"""Nearest neighbours by products of bfloat16, which tensor cores do at many times the speed of float32.

A product of split operands says which few points can be among the nearest; these are measured again by direct
differences. Rows for which it cannot say that are left to the search by products of the points' own precision.

**Lower bounds.** Let q̂ and x̂ be query and point less the centre of the points, scaled by a power of two so that no
norm exceeds 1, in float32; ρ = 2⁻⁸ and u = 2⁻²⁴ the units of rounding of bfloat16 and float32. With x̂ = h + l + e,
h = bf16(x̂), l = bf16(x̂ − h), one product of K = 3D + 3 terms,

    key = s − 2 (h_q·h_x + l_q·h_x + h_q·l_x),        s = (1 − c) ‖x̂‖² in three parts,

is off its value s − 2 q̂·x̂ by what follows, where A = ‖q̂‖² + ‖x̂‖² ≥ 2 ‖q̂‖ ‖x̂‖:

- the split leaves out l·l and e: |l| ≤ ρ (1 + ρ) |x̂| and |e| ≤ ρ² |x̂|: ≤ 2 · 3.02 ρ² ‖q̂‖ ‖x̂‖ ≤ 3.02 ρ² A;
- products of bfloat16 are exact in float32. Their sum, in any order, adds at most 4u for each term, of the sum of
  all sizes, which is ≤ 1.02 (A + ‖x̂‖²): ≤ 8.4 K u A. (Tensor cores cut off where IEEE rounds, and some align several
  terms before they add: 4u instead of u.)
- five bits of a key hold a number: ≤ 32 · 2u |key| ≤ 0.55 ρ² A;
- ‖x̂‖² as a sum of squares, times 1 − c, in three parts: ≤ (D + 4) u A.

What counts in the end is the squared distance as it would be measured. It is off ‖q̂ − x̂‖² (scaled)

- by the rounding of the centred points, 2u of each number: ≤ 8.1 u A;
- by its own sum of squares: ≤ (D + 3) u ‖q − x‖² ≤ 2.01 (D + 3) u A.

All together ≤ c A with c = 4 ρ² + 30 (D + 2) u. As s and the ‖q̂‖² that is added hold (1 − c) of their squares,

    measured ≥ key + (1 − c) ‖q̂‖² − floor

for every point: a bound with a margin of each point's own, so that no outlier widens that of others. ``floor`` is what
underflow can hide: 2⁻¹⁰⁰ for operands and products (numbers ≤ 1 lose ≤ 2⁻¹²⁶ each, fewer than 2²⁰ of them), and D
least normal numbers of the measured squares. Nothing overflows.

**Search.** The points of the k + `SPARE` smallest keys, of a group of columns each, are measured. Where the k-th of
them is smaller than the bounds of all other points, the row is done. Where only a second key of a group lies below it,
all members of these groups are measured. Where further groups do, the row is left.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig._tuning import halves_pay, rows_of_block
from torch_lapeig.graph.distances import nearest_of_candidates
from torch_lapeig.graph.minima import COLUMNS, GROUP, INNER, PADDING, group_minima, kernel_is_chosen, members

SPARE = 16  # candidates beyond k: the bounds are coarser than those of a product in float32
LARGEST_SHARE = 0.5  # of the rows of a block that are left, above which all others are left too
LARGEST_EXPONENT = 400  # of the size of points, beyond which their squares are no numbers
FLOOR = 2.0**-100  # of what underflow hides in a product of numbers of at most 1
UNIT = 2.0**-24


Pair = tuple[Tensor, Tensor]


class Left(NamedTuple):
    """Numbers and squared distances ``(Q, k)`` of the nearest; ``rows`` int64 ``(R,)``, queries that have none yet."""

    indices: Tensor
    distances: Tensor
    rows: Tensor


def candidates_pay(points: Tensor, k: int) -> bool:
    """Whether to search among ``points`` ``(..., N, D)`` by `nearest_by_candidates`."""
    n, d = points.shape[-2:]
    return halves_pay(n, d, points.device) and 4 * (k + SPARE) <= n // GROUP


def relative_margin(dimension: int) -> float:
    """c of the bound above: what of ‖q̂‖² + ‖x̂‖² a key and the distance that would be measured may differ by."""
    return 4 * 2.0**-16 + 30 * (dimension + 2) * UNIT


class Candidates:
    """The points of a search as an operand of products; see the top of the file.

    Args:
        points: ``(N, D)``, float32 or float64. queries: ``(Q, D)``. valid: bool ``(N,)``, points that count.

    Attributes:
        columns: bfloat16 ``(C, K)``; the point of column c is c % 32 · C / 32 + c // 32, so that points that follow
            each other, which are often alike, lie in different groups. ``is_point`` says whether it counts.
        square: of the scale, which is a power of two. floor: the absolute part of the margin.
        is_usable: False where points are so large or small that their squares are no numbers; nothing else is set.
    """

    def __init__(self, points: Tensor, queries: Tensor, valid: Tensor) -> None:
        n, d = points.shape
        self.points, self.valid, self.margin = points, valid, relative_margin(d)
        self.centre = torch.where(valid[:, None], points, 0).sum(0) / valid.sum().clamp_min(1)
        centred = torch.where(valid[:, None], points - self.centre, 0)
        sizes = [torch.linalg.vector_norm(x, dim=1).amax() for x in (centred, queries - self.centre)]
        exponent = math.frexp(float(torch.stack(sizes).amax()))[1] + 1  # norms have round-off: a factor of 2 to spare
        self.is_usable = abs(exponent) <= LARGEST_EXPONENT
        if not self.is_usable:
            return
        self.halves = math.ldexp(1.0, -(exponent // 2)), math.ldexp(1.0, exponent // 2 - exponent)
        self.square = math.ldexp(1.0, -2 * exponent)
        self.floor = FLOOR + d * torch.finfo(points.dtype).tiny * self.square
        self.groups = -(-n // COLUMNS) * (COLUMNS // GROUP)
        padding = self.groups * GROUP - n
        padded = torch.nn.functional.pad(self.scaled(centred), (0, 0, 0, padding))
        self.is_point = torch.nn.functional.pad(valid, (0, padding))
        squares = (1 - self.margin) * torch.linalg.vecdot(padded, padded)
        high, low = _split(padded.mul_(-2))
        columns = _operand(high, high, low, _in_three(torch.where(self.is_point, squares, PADDING)))
        self.columns = columns.view(GROUP, self.groups, -1).transpose(0, 1).reshape(len(padded), -1)

    def scaled(self, centred: Tensor) -> Tensor:
        """Times the power of two, in float32; in two steps, as the power alone may be no number."""
        return (centred * self.halves[0] * self.halves[1]).float()

    def minima(self, queries: Tensor, own: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """The two smallest keys of each group, ``(R, C / 32)``, and what makes lower bounds of them, ``(R,)`` float64.

        ``own``: the number of the first query among the points; None where they are no points.
        """
        q = self.scaled(queries - self.centre)
        high, low = _split(q)
        first, second = group_minima(_operand(high, low, high, high.new_ones(len(q), 3)), self.columns, own)
        return first, second, (1 - self.margin) * torch.linalg.vecdot(q, q).double() - self.floor

    def largest_key(self, distances: Tensor, lower: Tensor) -> Tensor:
        """The largest key, float32, with which a point may be at one of these squared distances ``(R,)`` or nearer."""
        limit = (distances.double() * self.square - lower).float()
        return torch.nextafter(limit, torch.full_like(limit, torch.inf))

    def measured(
        self, queries: Tensor, group: Tensor, member: Tensor, missing: Tensor, own: Tensor | None, k: int
    ) -> Pair:
        """The k nearest among columns ``(R, m)``, measured; ``own``: the points that queries are themselves."""
        point = member * self.groups + group
        missing = missing | ~self.is_point[point]
        if own is not None:
            missing |= point == own[:, None]
        point = point.clamp_max(len(self.points) - 1)
        return nearest_of_candidates(queries, self.points[point], point, missing, k)


def nearest_by_candidates(points: Tensor, queries: Tensor, valid: Tensor, itself: bool, k: int, budget: int) -> Left:
    """The k nearest points of each query ``(Q, D)`` by direct differences, ties by number, as far as products say.

    Args:
        points: ``(N, D)``, float32 or float64. valid: bool ``(N,)``, points that count.
        itself: the queries are the points, and none is its own neighbour.
        k: `candidates_pay` has to allow it.
        budget: bytes of memory for a block of queries.
    """
    every = torch.arange(len(queries), device=points.device)
    indices, distances = every.new_zeros(len(every), k), points.new_zeros(len(every), k)
    is_left = torch.ones_like(every, dtype=torch.bool)
    table = Candidates(points, queries, valid)
    step = _rows_of_block(table, k, budget) if table.is_usable else len(every)
    for first in range(0, len(every) if table.is_usable else 0, step):
        rows = every[first : first + step]
        block = _nearest_of_block(table, queries[first : first + step], rows if itself else None, first, k)
        indices[rows], distances[rows], is_left[rows] = block[:3]
        if block[3] > LARGEST_SHARE * len(rows):
            break
    return Left(indices, distances, is_left.nonzero().flatten())


def _nearest_of_block(
    table: Candidates, queries: Tensor, own: Tensor | None, first: int, k: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Numbers and distances of a block of queries, bool ``(R,)`` for the rows that are left, and how many these are."""
    smallest, second, lower = table.minima(queries, None if own is None else first)
    keys, group = smallest.topk(k + SPARE, dim=1, largest=False, sorted=False)
    indices, distances = table.measured(queries, group, members(keys), keys >= PADDING / 2, own, k)
    limit = table.largest_key(distances[:, -1], lower)
    is_left = keys.amax(1) <= limit
    is_open = (second.amin(1) <= limit) & ~is_left
    left, opened = torch.stack([is_left.sum(), is_open.sum()]).tolist()
    rows = is_open.long().argsort(descending=True, stable=True)[:opened]
    member = torch.arange(GROUP, device=queries.device)
    step = rows_of_block(2 * group.shape[1] * GROUP * table.points.shape[1] * queries.element_size(), queries.device)
    for part in rows.split(step) if opened else ():
        of_groups = group[part][:, :, None].expand(-1, -1, GROUP)
        farther = (keys[part] > limit[part, None])[:, :, None].expand_as(of_groups)
        mine = None if own is None else own[part]
        found = table.measured(
            queries[part], of_groups.flatten(1), member.expand_as(of_groups).flatten(1), farther.flatten(1), mine, k
        )
        indices[part], distances[part] = found
    return indices, distances, is_left, left


def _rows_of_block(table: Candidates, k: int, budget: int) -> int:
    """Queries of a block: for each the minima and what `topk` keeps beside them, its candidates, and maybe products."""
    of_group = 16 if kernel_is_chosen(table.points.device) else 16 + 6 * GROUP
    row = table.groups * of_group + 2 * (k + SPARE) * table.points.shape[1] * table.points.element_size()
    left = budget - table.columns.numel() * table.columns.element_size()
    return max(16, int(left / row))


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """bfloat16 h and l with h + l ≈ x, a float32 tensor."""
    high = x.bfloat16()
    return high, (x - high.float()).bfloat16()


def _in_three(x: Tensor) -> Tensor:
    """Three bfloat16 ``(N, 3)`` whose sum is x ``(N,)``, up to a unit of its rounding."""
    high, middle = _split(x)
    return torch.stack([high, middle, (x - high.float() - middle.float()).bfloat16()], 1)


def _operand(*parts: Tensor) -> Tensor:
    """The parts ``(R, ·)`` side by side, and zeros up to a multiple of `INNER`."""
    return torch.nn.functional.pad(together := torch.cat(parts, 1), (0, -together.shape[1] % INNER))
