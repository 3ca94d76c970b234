"""One step of smoothed aggregation for a graph Laplacian whose rows lie on several ranks.

As in `torch_lapeig.eigen.amg`, with aggregates that never leave their rank. The prolongation P = (I − ω D⁻¹ L) P₀ needs
of others only the aggregates of the halo's nodes; Pᵀ L P needs the halo's rows of P, and sends what it adds to coarse
rows of others to these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig._cached import cached_property
from torch_lapeig.distributed.halo import Halo, ShardedMatrix, counts_by_rank, csr_of, offsets_of
from torch_lapeig.distributed.noise import normal_numbers
from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.eigen.amg import MOST_PRODUCTS, aggregates, no_smaller, strong_edges

COUNTED = 64  # rows of a coarse matrix, on each rank, by whose entries those of all are estimated
RADIUS_STEPS = 15  # of Lanczos, for the largest eigenvalue


@dataclass(frozen=True, eq=False)
class Rows:
    """The own rows of a Laplacian L: entries off the diagonal, which is what makes the sums of the rows zero.

    Attributes:
        halo: of the columns. row, col: int64 ``(E,)``, ascending by row; columns in [own | halo]. value: ``(E,)``
        float64, L_ij. mass: ``(n,)`` float64. least: of a diagonal over its mass.
    """

    halo: Halo
    row: Tensor
    col: Tensor
    value: Tensor
    mass: Tensor
    least: float

    @property
    def ranks(self) -> Ranks:
        """The processes that share it."""
        return self.halo.ranks

    @property
    def count(self) -> int:
        """The number of rows of all ranks."""
        return self.halo.offsets[-1]

    @cached_property
    def entries(self) -> float:
        """Of the matrix, with its diagonal, on all ranks."""
        return float(self.ranks.sum(self.mass.new_tensor(float(len(self.row) + len(self.mass)))))

    @cached_property
    def diagonal(self) -> Tensor:
        """``(n,)``, the negative sums of the rows, or what they are at least."""
        sums = self.value.new_zeros(len(self.mass)).index_add_(0, self.row, self.value)
        return no_smaller(-sums, self.least * self.mass)

    @cached_property
    def roots(self) -> Tensor:
        """d^-½ ``(n + h,)`` of own nodes and the halo's, 0 where d is not positive."""
        return self.halo.with_halo(torch.where(self.diagonal > 0, self.diagonal, torch.inf).rsqrt())

    @cached_property
    def ratio(self) -> Tensor:
        """(d / mass)^½ ``(n, 1)``, see `torch_lapeig.eigen.amg.Level`."""
        some = (self.mass > 0) & (self.diagonal > 0)
        return torch.where(some, self.diagonal / self.mass, 0).sqrt()[:, None]

    @cached_property
    def unit(self) -> ShardedMatrix:
        """D^-½ L D^-½ in float64."""
        n, roots = len(self.mass), self.roots
        value = self.value * roots[self.row] * roots[self.col]
        inside = self.col < n
        node = torch.arange(n, device=value.device)
        row, col = torch.cat([self.row[inside], node]), torch.cat([self.col[inside], node])
        order = (row * n + col).argsort()
        entries = torch.cat([value[inside], (roots[:n] > 0).to(value.dtype)])
        own = csr_of(row[order], col[order], entries[order], (n, n))
        border, place = self.row[~inside].unique_consecutive(return_inverse=True)
        far = csr_of(place, self.col[~inside] - n, value[~inside], (len(border), len(self.halo)))
        return ShardedMatrix(own, far, border, self.halo)

    @cached_property
    def radius(self) -> float:
        """Estimate of the largest eigenvalue of ``unit`` from above: see `torch_lapeig.eigen.amg`."""
        begin = self.halo.offsets[self.ranks.rank]
        numbers = torch.arange(begin, begin + len(self.mass), device=self.mass.device)
        x = normal_numbers(numbers, 1, 0)

        def dot(a: Tensor, b: Tensor) -> Tensor:
            return self.ranks.sum((a * b).sum())

        x = x / dot(x, x).sqrt()
        before, beta = torch.zeros_like(x), x.new_zeros(())
        alphas, betas = [], []
        for _ in range(RADIUS_STEPS):
            image = self.unit.times(x) - beta * before
            alphas.append(dot(x, image))
            image = image - alphas[-1] * x
            betas.append(beta := dot(image, image).sqrt())
            x, before = image / beta.clamp_min(torch.finfo(x.dtype).tiny), x
        off = torch.diag(torch.stack(betas[:-1]), 1)
        values, vectors = self.ranks.shared(*torch.linalg.eigh(torch.diag(torch.stack(alphas)) + off + off.mT))
        return min(float(values[-1] + betas[-1] * vectors[-1, -1].abs()), 2.0)


class Prolongation(NamedTuple):
    """Rows of P, the own ones or those at the halo, of entries with the coarse nodes of all ranks.

    Attributes:
        row: int64 ``(F,)``, ascending; place: int64 ``(F,)``, coarse node among all; value: ``(F,)``.
        offsets: of the coarse nodes.
    """

    row: Tensor
    place: Tensor
    value: Tensor
    offsets: list[int]


def aggregated(rows: Rows, seed: int) -> tuple[Tensor, list[int]]:
    """The aggregate among all of each own node, −1 for nodes without edges, and where those of each rank begin."""
    n, size = len(rows.mass), rows.value.abs()
    largest = size.new_zeros(n).scatter_reduce_(0, rows.row, size, "amax")
    inside = rows.col < n
    row, col, nearest = strong_edges(rows.row[inside], rows.col[inside], size[inside], largest)
    generator = torch.Generator(row.device).manual_seed(seed)
    aggregate, count = aggregates(row, col, nearest, rows.diagonal > 0, generator)
    offsets = offsets_of(rows.ranks.sizes(count))
    return torch.where(aggregate >= 0, aggregate + offsets[rows.ranks.rank], -1), offsets


def prolongation(rows: Rows, aggregate: Tensor, offsets: list[int], smooth: bool) -> Prolongation:
    """P = (I − ω D⁻¹ L) P₀ with ω = 4 / (3 radius), or the indicators P₀ of the aggregates themselves."""
    node = (aggregate >= 0).nonzero().flatten()
    one = rows.value.new_ones(len(node))
    if not smooth:
        return Prolongation(node, aggregate[node], one, offsets)
    omega = 4 / (3 * rows.radius)
    near = rows.halo.with_halo(aggregate)[rows.col]
    some = (near >= 0) & (aggregate[rows.row] >= 0)
    row = rows.row[some]
    step = -omega * (rows.value[some] / rows.diagonal[row])
    keys = torch.cat([node * offsets[-1] + aggregate[node], row * offsets[-1] + near[some]])
    keys, position = keys.unique(return_inverse=True)
    value = one.new_zeros(len(keys)).index_add_(0, position, torch.cat([(1 - omega) * one, step]))
    return Prolongation(keys // offsets[-1], keys % offsets[-1], value, offsets)


def products_of(rows: Rows, p: Prolongation) -> float:
    """Multiplications of L P over the entries of L, on all ranks."""
    heights = torch.bincount(p.row, minlength=len(rows.mass))
    own = torch.stack([rows.halo.with_halo(heights)[rows.col].sum() + heights.sum(), heights.new_tensor(len(rows.row))])
    products, entries = rows.ranks.sum(own.double()).tolist()
    return float(products / max(entries, 1))


class Factors(NamedTuple):
    """What Pᵀ L P is made of on a rank.

    Attributes:
        matrix: CSR ``(n, n + h)``, own rows of L.
        prolongation: CSR ``(n + h, c)``, rows of P at own nodes and the halo's.
        columns: int64 ``(c,)``, ascending: the coarse nodes among all that these reach.
        row, col, value: of the entries of P at own nodes.
    """

    matrix: Tensor
    prolongation: Tensor
    columns: Tensor
    row: Tensor
    col: Tensor
    value: Tensor


def factors_of(rows: Rows, p: Prolongation, far: Prolongation) -> Factors:
    """The factors of Pᵀ L P; ``far``: the rows of P at the halo."""
    n = len(rows.mass)
    row, place, value = (torch.cat(both) for both in zip(p[:3], (far.row + n, *far[1:3]), strict=True))
    columns, col = place.unique(return_inverse=True)
    node = torch.arange(n, device=row.device)
    every = torch.cat([rows.row, node]), torch.cat([rows.col, node]), torch.cat([rows.value, rows.diagonal])
    order = every[0].argsort(stable=True)
    width = n + len(rows.halo)
    matrix = csr_of(every[0][order], every[1][order], every[2][order], (n, width))
    return Factors(matrix, csr_of(row, col, value, (width, len(columns))), columns, p.row, col[: len(p.row)], p.value)


def coarse_entries(rows: Rows, p: Prolongation, factors: Factors) -> float:
    """Entries of Pᵀ L P on all ranks, about and from below, by counting those of a few rows of each rank."""
    begin, end = (int(torch.searchsorted(factors.columns, place)) for place in _ends(rows.ranks, p.offsets))
    share = max(1, (end - begin) // COUNTED)
    some = ((factors.col >= begin) & (factors.col < end) & ((factors.col - begin) % share == 0)).nonzero().flatten()
    counted = 0
    if len(some):
        number = (factors.col[some] - begin) // share
        order = number.argsort(stable=True)
        chosen = some[order]
        shape = (int(number.max()) + 1, len(rows.mass))
        restriction = csr_of(number[order], factors.row[chosen], factors.value[chosen], shape)
        counted = share * len(((restriction @ factors.matrix) @ factors.prolongation).values())
    return float(rows.ranks.sum(factors.value.new_tensor(float(counted))))


def coarsened(rows: Rows, p: Prolongation, factors: Factors) -> Rows:
    """Pᵀ L P on the ranks of the aggregates, with their mass."""
    n, ranks, columns, total = len(rows.mass), rows.ranks, factors.columns, p.offsets[-1]
    begin, end = _ends(ranks, p.offsets)
    keys, v = columns[:0], factors.value[:0]
    send = [0] * ranks.world
    if n and len(columns):
        back = csr_of(factors.row, factors.col, factors.value, (n, len(columns))).t().to_sparse_csr()
        part = back @ (factors.matrix @ factors.prolongation)
        i = columns.repeat_interleave(part.crow_indices().diff())  # ascending, so that those of each rank are together
        send = counts_by_rank(i, p.offsets)
        keys, v = i.mul_(total).add_(columns[part.col_indices().long()]), part.values()
        del part
    recv = ranks.counts(send)
    keys, v = ranks.exchange(keys, send, recv), ranks.exchange(v, send, recv)
    apart = keys // total != keys % total
    keys, position = keys[apart].unique(return_inverse=True)
    v = v.new_zeros(len(keys)).index_add_(0, position, v[apart])
    i, j = keys // total - begin, keys % total
    inside = (j >= begin) & (j < end)
    needed, outside = j[~inside].unique(return_inverse=True)
    j = j - begin
    j[~inside] = end - begin + outside
    mass = v.new_zeros(len(columns)).index_add_(0, factors.col, factors.value * rows.mass[factors.row])
    send = counts_by_rank(columns, p.offsets)
    recv = ranks.counts(send)
    whose = ranks.exchange(columns, send, recv) - begin
    mass = v.new_zeros(end - begin).index_add_(0, whose, ranks.exchange(mass, send, recv))
    return Rows(Halo(ranks, p.offsets, needed), i, j, v, mass, rows.least)


def _ends(ranks: Ranks, offsets: list[int]) -> tuple[int, int]:
    return offsets[ranks.rank], offsets[ranks.rank + 1]


def coarser(rows: Rows, aggregate: Tensor, offsets: list[int], room: float) -> tuple[Prolongation, Prolongation, Rows]:
    """P, its rows at the halo, and the next level; aggregates are not smoothed where it had more entries than ``room``.

    Hubs and many dimensions fill a smoothed coarse matrix, and the memory of a rank with it.
    """
    for smooth in (True, False):
        p = prolongation(rows, aggregate, offsets, smooth)
        if smooth and is_too_full(rows, p):
            continue
        far = rows_at_halo(rows, p)
        factors = factors_of(rows, p, far)
        if smooth and coarse_entries(rows, p, factors) > room:
            continue
        coarse = coarsened(rows, p, factors)
        if not smooth or coarse.entries <= room:
            break
    return p, far, coarse


def is_too_full(rows: Rows, p: Prolongation) -> bool:
    """Whether hubs would fill the coarse matrix."""
    return products_of(rows, p) > MOST_PRODUCTS


def rows_at_halo(rows: Rows, p: Prolongation) -> Prolongation:
    """The rows of P at the nodes of the halo."""
    halo, n = rows.halo, len(rows.mass)
    heights = torch.bincount(p.row, minlength=n)
    first = heights.cumsum(0) - heights
    asked = heights[halo.sent]
    position = torch.arange(int(asked.sum()), device=asked.device)
    within = position - (asked.cumsum(0) - asked).repeat_interleave(asked)
    entry = first[halo.sent].repeat_interleave(asked) + within
    send = [int(part.sum()) for part in asked.split(halo.send)]
    of_halo = rows.ranks.exchange(heights[halo.sent], halo.send, halo.recv)
    recv = [int(part.sum()) for part in of_halo.split(halo.recv)]
    places = rows.ranks.exchange(p.place[entry], send, recv)
    values = rows.ranks.exchange(p.value[entry], send, recv)
    far = torch.arange(len(halo), device=places.device).repeat_interleave(of_halo)
    return Prolongation(far, places, values, p.offsets)
