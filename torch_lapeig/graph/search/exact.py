"""Distances by direct differences, and exact neighbours by all distances of sets of points.

A matrix product, ‖q‖² − 2 q·x + ‖x‖², loses the digits in which close points differ. All values here are sums of
squared differences instead. The weights and the formulas for new points share them.

**Exact neighbours**, without gradients. Small sets are searched by compiled loops over direct differences. For others,
squared distances of a block of queries come from one matrix product,

    d² ≈ ‖q‖² + [−2x, ‖x‖²] · [q, 1]        of centred points x and queries q.

The term ‖q‖² changes no order within a row, so a block holds only the product. The error of an entry is at most its
row's `slack`, from the rounding of a product of D terms. A product loses the digits in which distances of close points
far from the origin differ, so each row is decided in two steps:

1. A few more candidates than requested are measured again by direct differences. All other points are at least as far
   as the farthest candidate, up to the error. The row is done if its k-th neighbour is closer than that.
2. The other rows are searched, by direct differences, among all points whose entries could be among the k nearest.

Ties go to the smaller index.

**Images of points of many dimensions.** Let the columns of V ``(D, p)`` be orthonormal, z = Vᵀx and ρ = ‖x − V z‖. By
Pythagoras and the triangle inequality

    ‖z_q − z_x‖² + (ρ_q − ρ_x)²  ≤  ‖q − x‖².

So the images (z, ρ) of p + 1 dimensions are never farther apart than the points. A product of images costs (p + 1) / D
of a product of the points and bounds the distances from below. The two steps above then measure the points whose bounds
are small enough.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.native import calls as native
from torch_lapeig.support import checks, precision
from torch_lapeig.support.progress import reporting
from torch_lapeig.support.threads import together
from torch_lapeig.support.tuning import budget_of, rows_of_block

COORDINATES = ("euclidean", "cosine")  # metrics whose lengths are differences of coordinates, see `measured`
Metric = Any  # one of these, or what a rule's ``metric`` may be beside

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


def measured(x: Tensor, metric: Any, valid: Tensor | None = None) -> Tensor:
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


def least_reach(metric: Any, dtype: torch.dtype) -> float:
    """Return the distance up to which two points count as one: 0, or the rounding of unit vectors for ``"cosine"``."""
    return 0.0 if metric == "euclidean" else 16 * torch.finfo(dtype).eps  # scaling rounds unit vectors by less


def squared_distances(queries: Tensor, points: Tensor) -> Tensor:
    """Return ‖q − x‖² ``(..., Q, N)`` of ``(..., Q, D)`` and ``(..., N, D)``, without gradients."""
    return torch.cdist(queries.detach(), points.detach(), compute_mode="donot_use_mm_for_euclid_dist").square_()


def differentiable_squared_distances(queries: Tensor, points: Tensor) -> Tensor:
    """Return `squared_distances` ``(Q, N)``, with derivatives of any order and mode."""
    direct = squared_distances(checks.primal(queries), checks.primal(points))
    if not checks.needs_derivatives(queries, points):
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
    if not checks.needs_derivatives(queries, points):
        return pair_distances(checks.primal(queries), query, checks.primal(points), point)
    return (queries[query] - points[point]).square().sum(1)


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


# --- Exact neighbours -------------------------------------------------------------------------------------------------

T = TypeVar("T")

# Columns of a product whose minima are computed while they are in the cache, and queries multiplied at a time.
TILE, PRODUCT_ROWS = 2048, 256
# Columns in a group, of which one minimum is kept.
GROUP = 32
# Images: least dimensions of points, number of directions, and largest share of the points that bounds may leave to
# measure. Measuring a pair directly costs 24 times its part of a product.
IMAGED_DIMENSIONS, IMAGE_DIRECTIONS, IMAGE_SHARE = 128, 128, 0.01

# Images of points ``(1, N, p + 1)`` and queries ``(1, Q, p + 1)``, and the unit of slack of their products.
Images = tuple[Tensor, Tensor, float]


class Sets(NamedTuple):
    """Sets of points ``(B, N, D)``, queries ``(B, Q, D)``, and bool ``(B, N)``, True for valid points."""

    points: Tensor
    queries: Tensor
    valid: Tensor
    itself: bool  # the queries are the points, and none is its own neighbour

    def split(self, count: int) -> list[Sets]:
        """Return the items of the batch in parts of ``count`` items."""
        parts = zip(self.points.split(count), self.queries.split(count), self.valid.split(count), strict=True)
        return [Sets(*part, self.itself) for part in parts]


class NeighborPairs(NamedTuple):
    """Pairs of a query and a point within its reach.

    Attributes:
        item: int64 ``(E,)``, the item of the batch, 0 without a batch.
        query, point: int64 ``(E,)``, their numbers within the item.
        squared_distances: ``(E,)``, of the points' dtype.

    >>> from torch_lapeig.graph import radius_neighbors
    >>> pairs = radius_neighbors(torch.tensor([[0.0], [1.0], [3.0]]), 1.5)
    >>> pairs.query.tolist(), pairs.point.tolist(), pairs.squared_distances.tolist()
    ([0, 1], [1, 0], [1.0, 1.0])
    """

    item: Tensor
    query: Tensor
    point: Tensor
    squared_distances: Tensor

    def take(self, chosen: Tensor) -> NeighborPairs:
        """Return the pairs at some places, or where a mask is true."""
        return NeighborPairs(*(part[chosen] for part in self))

    @staticmethod
    def cat(parts: list[NeighborPairs]) -> NeighborPairs:
        """Return the pairs of several searches, one after the other."""
        return NeighborPairs(*(torch.cat(part) for part in zip(*parts, strict=True)))


class ProductBlock(NamedTuple):
    """Products ``(T, R, C)`` of R queries of all items with T tiles of C columns; squares and slack ``(R,)``."""

    tiles: Tensor
    minima: Tensor  # (R, T, C / GROUP), each over GROUP columns at steps of C / GROUP
    squares: Tensor
    slack: Tensor


class Table:
    """Centred points ``(B, N, D)`` of a product: rows [−2x, ‖x‖² − reach], whose last number is ∞ for padding."""

    def __init__(
        self, points: Tensor, valid: Tensor, reach: Tensor | float = 0.0, slack_unit: float | None = None
    ) -> None:
        b, n, d = points.shape
        self.slack_unit = unit_of_slack(points) if slack_unit is None else slack_unit
        count = -(-n // TILE) if points.device.type == "cpu" else 1
        vectors = 16  # minima of a large tile fill whole vectors of the processor
        unit = GROUP if n < vectors * GROUP else vectors * GROUP
        self.width = math.ceil(n / count / unit) * unit
        self.centre = points.sum(1, keepdim=True) / valid.sum(1).clamp_min(1)[:, None, None]
        # Compute in place: the table of millions of points is most of the memory of a search.
        columns = points.new_zeros(b, count * self.width, d + 1)
        centred = torch.sub(points, self.centre, out=columns[:, :n, :d])
        squares = torch.linalg.vector_norm(centred, dim=2).square_()
        self.largest = squares.masked_fill(~valid, 0).amax(1, keepdim=True)
        centred.mul_(-2)
        columns[..., d] = torch.inf
        columns[:, :n, d] = (squares - reach).masked_fill(~valid, torch.inf)
        self.tiles = columns.reshape(b, count, self.width, d + 1).movedim(1, 0).mT

    def rows(self, row_bytes: float, budget: int) -> int:
        """Return how many queries of each item fit the budget, at ``row_bytes`` a query beside their products."""
        on_cpu, row_bytes = self.tiles.device.type == "cpu", row_bytes + 1.5 * self.tiles[:, :, 0].nbytes
        left = (budget - self.tiles.nbytes) / (torch.get_num_threads() if on_cpu else 1)
        most = PRODUCT_ROWS if on_cpu else TILE**2
        return max(16, min(int(left / row_bytes), most))  # blocks of fewer rows take too long

    def each_block(self, queries: Tensor, itself: bool, rows: int, work: Callable[[ProductBlock, slice], T]) -> list[T]:
        """Return ``work`` of the products of queries ``(B, Q, D)``, for each block of ``rows`` queries of all items."""
        rooms: dict[int, Tensor] = {}  # one for each thread, which writes its blocks one after the other
        rows = min(rows, queries.shape[1])

        def task(first: int) -> T:
            part, thread = slice(first, first + rows), threading.get_ident()
            if thread not in rooms:
                rooms[thread] = self.tiles.new_empty(self.tiles[:, :, 0].numel() * rows * (GROUP + 1) // GROUP)
            return work(self._block(queries[:, part], rooms[thread], first if itself else None), part)

        tasks = [functools.partial(task, first) for first in range(0, queries.shape[1], rows)]
        return together(reporting(tasks), queries.device)

    def _block(self, queries: Tensor, room: Tensor, first: int | None) -> ProductBlock:
        """Compute products of queries ``(B, R, D)``; infinite between query r and point ``first + r``, unless None."""
        (b, r, _), (count, _, _, width) = queries.shape, self.tiles.shape
        centred = queries - self.centre
        squares = torch.linalg.vector_norm(centred, dim=2).square_()
        augmented = torch.cat([centred, torch.ones_like(centred[..., :1])], 2)
        size = count * b * r * width
        tiles = room[:size].view(count, b, r, width)
        minima = room[size : size + size // GROUP].view(b * r, count, width // GROUP)
        for t, columns in enumerate(self.tiles):
            torch.bmm(augmented, columns, out=tiles[t])
            low = 0 if first is None else max(first, t * self.width)
            if first is not None and low < min(first + r, (t + 1) * self.width):
                tiles[t, :, low - first :, low - t * self.width :].diagonal(dim1=1, dim2=2).fill_(torch.inf)
            torch.amin(tiles[t].reshape(b * r, GROUP, -1), 1, out=minima[:, t])
        slack = self.slack_unit * (squares + self.largest)
        return ProductBlock(tiles.flatten(1, 2), minima, squares.flatten(), slack.flatten())


def nearest_in_sets(sets: Sets, k: int, budget: int | None, images: Images | None = None) -> Nearest:
    """Return the nearest of at least k valid points, ``(B, Q, k)``, ascending, ties by number."""
    # It takes `budget` bytes, by default those of the device.
    (b, q, d), n = sets.queries.shape, sets.points.shape[1]
    # The loops insert neighbours one by one: of 300 and more this takes longer than a sort.
    if images is None and n * d * sets.points.element_size() <= DIRECT_BYTES and k <= 160:
        # Up to `SHORT_ROW` dimensions the distances equal `pair_distances` to the last bit.
        found = native.nearest(sets.points, sets.queries, sets.valid, k, sets.itself)
        if found is not None:
            return Nearest(*found)
    query_bytes = (1.5 * n + (k + SPARE) * d) * sets.points.element_size()
    budget = budget_of(sets.points.device).search if budget is None else budget
    items = max(1, int(budget / (q * query_bytes)))
    if items < b:
        tasks = [functools.partial(nearest_in_sets, part, k, budget) for part in sets.split(items)]
        return Nearest(*map(torch.cat, zip(*together(reporting(tasks), sets.points.device), strict=True)))
    # Products of images, of a single set, bound the distances.
    points, queries, slack_unit = (sets.points, sets.queries, None) if images is None else images
    table = Table(points, sets.valid, slack_unit=slack_unit)
    indices = torch.empty(b, q, k, dtype=torch.int64, device=sets.points.device)
    distances = sets.points.new_empty(b, q, k)

    def search(block: ProductBlock, part: slice) -> None:
        found = _nearest_of_block(block, sets.points, sets.queries[:, part], k)
        indices[:, part], distances[:, part] = (numbers.reshape(b, -1, k) for numbers in found)

    table.each_block(queries, sets.itself, table.rows(b * query_bytes, budget), search)
    return Nearest(indices, distances)


def pairs_in_sets(sets: Sets, reach: Tensor, budget: int) -> NeighborPairs:
    """Return all pairs with d² ≤ ``reach`` ``(B, N)`` of the point, by item, query and point, in blocks of a budget."""
    b, n, _ = sets.points.shape
    table = Table(sets.points, sets.valid, reach)
    rounding = 4 * torch.finfo(reach.dtype).eps * reach.amax(1, keepdim=True)

    def search(block: ProductBlock, part: slice) -> NeighborPairs:
        asked = sets.queries[:, part]
        limit = (block.slack - block.squares).view(b, -1) + rounding
        row, point = _true_places((block.tiles <= limit.reshape(-1, 1)).transpose(0, 1).flatten(1))
        item, query = row // asked.shape[1], row % asked.shape[1] + part.start
        if sets.itself:
            kept = sets.valid[item, query]
            item, query, point, row = item[kept], query[kept], point[kept], row[kept]
        distances = pair_distances(asked.flatten(0, 1), row, sets.points.flatten(0, 1), item * n + point)
        return NeighborPairs(item, query, point, distances).take(distances <= reach[item, point])

    rows = table.rows(3 * b * n * reach.element_size(), budget)
    blocks = table.each_block(sets.queries, sets.itself, rows, search)
    pairs = NeighborPairs.cat(blocks)
    if b == 1 or len(blocks) == 1:
        return pairs
    # Each block has some queries of all items.
    return pairs.take((pairs.item * sets.queries.shape[1] + pairs.query).argsort(stable=True))


def unit_of_slack(points: Tensor) -> float:
    """Return the largest error of a product of points ``(..., D)``, in units of the squared norms."""
    return torch.finfo(points.dtype).eps * (4 + math.sqrt(points.shape[-1]))


SPARE = 5  # candidates beyond k that are measured again: enough for ties and near ties of most rows


def _nearest_of_block(block: ProductBlock, points: Tensor, queries: Tensor, k: int) -> Nearest:
    """Return the points ``(B, N, D)`` nearest to the queries of all items in a block, ``(R, k)``."""
    n, count = points.shape[1], queries.shape[1]
    points, queries = points.flatten(0, 1), queries.flatten(0, 1)
    smallest, number = _smallest_products(block, min(k + SPARE, n))
    number = number.clamp_max(n - 1)  # columns of padding have infinite products and may stand for any point
    row = torch.arange(len(queries), device=queries.device)
    begin = row // count * n
    pairs = (row.repeat_interleave(number.shape[1]), points, (number + begin[:, None]).flatten())
    candidates = pair_distances(queries, *pairs).reshape(number.shape).masked_fill_(smallest.isinf(), torch.inf)
    found = nearest_of_measured(candidates, number, k)
    if number.shape[1] < n:
        kth = found.squared_distances[:, -1]
        others = smallest.amax(1) + block.squares - block.slack  # no other point is closer
        is_open = (kth >= others) & others.isfinite()
        if precision.synchronise(is_open.any())[0]:
            limit = (kth + block.slack - block.squares).masked_fill(~is_open, -torch.inf)
            _search_within(block.tiles, limit.to(block.tiles.dtype), queries, points, begin, found)
    return found


def _smallest_products(block: ProductBlock, m: int) -> tuple[Tensor, Tensor]:
    """Return the m smallest products of each query and their columns ``(R, m)``, from the m groups of least minima."""
    minima = block.minima.flatten(1)
    if minima.shape[1] <= 2 * m:
        return block.tiles.transpose(0, 1).flatten(1).topk(m, largest=False, sorted=False)
    row = torch.arange(len(minima), device=minima.device)[:, None]
    chosen = minima.topk(m, largest=False, sorted=False).indices
    _, r, width = block.tiles.shape
    groups = width // GROUP
    tile, group = (chosen // groups)[..., None], (chosen % groups)[..., None]
    member = group + torch.arange(GROUP, device=group.device) * groups
    place = ((tile * r + row[..., None]) * width + member).flatten(1)
    smallest, best = block.tiles.view(-1).take(place).topk(m, largest=False, sorted=False)
    return smallest, (tile * width + member).flatten(1).gather(1, best)


def _search_within(
    tiles: Tensor, limit: Tensor, queries: Tensor, points: Tensor, begin: Tensor, found: Nearest
) -> None:
    """Search rows among all points of a product ≤ limit ``(R,)``, by direct differences, and correct ``found``."""
    (count, r, width), (indices, distances) = tiles.shape, found
    # All points may be within the limit if they are copies: each needs six numbers of 8 bytes, beside the product.
    step = rows_of_block(64 * count * width, points.device)
    for first in range(0, r, step):
        near = tiles[:, first : first + step] <= limit[first : first + step, None]
        line, column = _true_places(near.flatten(0, 1))
        row, point = line % near.shape[1] + first, line // near.shape[1] * width + column
        squares = pair_distances(queries, row, points, point + begin[row])
        nearer = squares <= distances[row, -1]
        row, point, squares = row[nearer], point[nearer], squares[nearer]
        order = point.argsort()
        order = order[squares[order].argsort(stable=True)]
        order = order[row[order].argsort(stable=True)]
        hits = torch.bincount(row, minlength=r)
        rows = hits.nonzero().flatten()
        chosen = order[(hits.cumsum(0) - hits)[rows, None] + torch.arange(indices.shape[1], device=rows.device)]
        indices[rows], distances[rows] = point[chosen], squares[chosen]


def _true_places(near: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and columns of the true entries of a matrix, row by row."""
    if near.device.type != "cpu":
        row, column = near.nonzero(as_tuple=True)
        return row, column
    place = torch.from_numpy(np.flatnonzero(near.numpy()))  # an eighth of the time of `nonzero`
    return place // near.shape[1], place % near.shape[1]


# --- Images in fewer dimensions ---------------------------------------------------------------------------------------


def images_that_pay(points: Tensor, queries: Tensor, itself: bool, k: int, budget: int | None) -> Images | None:
    """Return images of points ``(N, D)`` and queries; None where the product of the points takes less time."""
    (n, d), middle = points.shape, points.mean(0)
    largest = max(float((x - middle).abs().amax()) for x in (points, *([] if itself else [queries])))
    # Where float32 holds the squares, bounds in float32 are good enough, and products take half the time.
    dtype = torch.float32 if 1e-10 <= largest <= 1e15 else points.dtype
    sample = (points[spread_rows(n, 2048)] - middle).to(dtype)
    directions = principal_directions(sample, min(IMAGE_DIRECTIONS, d // 2))
    point_images = _images(points, middle, directions)
    query_images = point_images if itself else _images(queries, middle, directions)
    rows = spread_rows(len(queries), 128)
    some = Sets(points[None], queries[None, rows], points.new_ones(1, n, dtype=torch.bool), False)
    kth = nearest_in_sets(some, k + itself, budget).squared_distances[0, :, -1:]
    # A sample decides, by the share of images as near as the k-th neighbour.
    if (squared_distances(query_images[rows], point_images) <= kth).double().mean() > IMAGE_SHARE:
        return None
    # A number of z is a sum of D products with an error of at most D u ‖x‖, commonly √D u ‖x‖, for centred points. The
    # error of ρ is as large, because ρ comes from x − V z and not from a difference of squares. V is orthonormal up to
    # a few u. Together this changes a bound by some multiple of √D u (‖q‖² + ‖x‖²), as the product and the direct
    # differences do: 8 times the slack of a product of D terms covers all.
    return point_images[None], query_images[None], 8 * unit_of_slack(sample)


def spread_rows(n: int, count: int) -> Tensor:
    """Return at most ``count`` of the numbers 0 to n − 1, at equal steps."""
    return torch.linspace(0, n - 1, min(count, n), dtype=torch.float64).long()


def principal_directions(sample: Tensor, p: int) -> Tensor:
    """Return orthonormal columns ``(D, p)`` near the principal directions of a centred sample ``(S, D)``, in order."""
    start = torch.randn(len(sample), p, dtype=sample.dtype, generator=torch.Generator().manual_seed(0))
    directions = torch.linalg.qr(sample.mT @ start.to(sample.device))[0]
    for _ in range(2):
        directions = torch.linalg.qr(sample.mT @ (sample @ directions))[0]
    images = sample @ directions
    turned: Tensor = torch.linalg.qr(directions @ torch.linalg.eigh(images.mT @ images)[1].flip(1))[0]
    return turned


def _images(x: Tensor, middle: Tensor, directions: Tensor) -> Tensor:
    """Return (z, ρ) of points, in blocks, in the dtype of the directions."""
    d, p = directions.shape
    found = directions.new_empty(len(x), p + 1)
    step = rows_of_block(16 * d, x.device)
    for part, into in zip(x.split(step), found.split(step), strict=True):
        centred = (part - middle).to(directions.dtype)
        torch.mm(centred, directions, out=into[:, :p])
        centred.addmm_(into[:, :p], directions.mT, alpha=-1)
        torch.linalg.vector_norm(centred, dim=1, out=into[:, p])
    return found
