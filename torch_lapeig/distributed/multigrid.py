"""Smoothed aggregation on several ranks: fine levels lie on all of them, a small coarse one is on each as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.distributed.coarsening import (
    Prolongation,
    Rows,
    aggregated,
    coarser,
)
from torch_lapeig.distributed.halo import Halo, ShardedMatrix, csr_of
from torch_lapeig.distributed.noise import normal_numbers
from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.eigen.amg import FAINTEST, LOWER, Hierarchy, SmoothedAggregation
from torch_lapeig.eigen.blocks import inner
from torch_lapeig.eigen.lobpcg import LEVEL_ACCURACY, LEVEL_ITERATIONS, CoarseSpace, lobpcg, nested_iteration
from torch_lapeig.eigen.solver import Request
from torch_lapeig.eigen.symmetric import SymmetricOperator, in_one_message

GATHERED = 10_000  # rows of a coarse level from which down every rank has it as a whole; the finest never is


@dataclass(frozen=True, eq=False)
class Transfer:
    """P between a level and the next coarser one, in scaled coordinates.

    Attributes:
        up: CSR ``(n, c + h)`` to own rows from the coarse [own | halo], or from the whole coarse level if that is
            gathered. far: of the same columns, to the rows at the halo of the level. down: the transpose of ``up``.
        halo: of the coarse nodes; None where these are gathered.
    """

    up: Tensor
    far: Tensor
    down: Tensor
    halo: Halo | None
    ranks: Ranks
    own: int

    def prolonged(self, e: Tensor) -> tuple[Tensor, Tensor]:
        """P e in the own rows, and at the halo, which so need not be fetched."""
        e = e if self.halo is None else self.halo.with_halo(e)
        up, far = (p @ e if p.shape[0] else e.new_zeros(0, e.shape[1]) for p in (self.up, self.far))
        return up, far

    def restricted(self, r: Tensor) -> Tensor:
        """Pᵀ r."""
        part = self.down @ r if self.down.shape[0] and len(r) else r.new_zeros(self.down.shape[0], r.shape[1])
        return self.ranks.sum(part) if self.halo is None else self.halo.give_back(part, self.own)


@dataclass(frozen=True, eq=False)
class ShardedLevel:
    """A level of which each rank has its rows: see `torch_lapeig.eigen.amg.Level`."""

    matrix: ShardedMatrix
    ratio: Tensor
    radius: float
    transfer: Transfer
    numbers: Tensor


@dataclass(frozen=True, eq=False)
class ShardedMultigrid:
    """One V-cycle as an approximate A⁻¹ on blocks ``(n, m)``.

    With two products in each smoothing, a level on several ranks costs three exchanges of its halo, and those of its
    transfer to the next: one sum if that is gathered, else two exchanges.

    Attributes:
        levels: on several ranks, from the finest on. coarse: the rest, the same on every rank.
        scale: ``(n, 1)``, see `Hierarchy.scale`, over ``largest``, the largest of all. diagonal: ``(n,)`` of the finest
            Laplacian.
    """

    ranks: Ranks
    levels: tuple[ShardedLevel, ...]
    coarse: Hierarchy
    scale: Tensor
    largest: Tensor
    diagonal: Tensor
    smoothing: int

    def __call__(self, r: Tensor) -> Tensor:
        """A⁻¹ r, about. Columns of any length that the squares of float32 hold: 1e-18 to 1e18."""
        return self.inverse(self.scale, r, 0).mul_(self.largest).mul_(self.largest)

    def inverse(self, scale: Tensor, r: Tensor, depth: int) -> Tensor:
        """See `Hierarchy.inverse`."""
        x = self.cycle((scale * r).to(self.levels[depth].matrix.own.dtype), depth)
        return x.to(r.dtype).mul_(scale)

    def cycle(self, b: Tensor, depth: int) -> Tensor:
        """One V-cycle from x = 0 in the scaled coordinates of a level."""
        if depth == len(self.levels):
            (e,) = self.ranks.shared(self.coarse.cycle(b.to(self.coarse.levels[0].matrix.dtype)))
            return e.to(b.dtype)
        here = self.levels[depth]
        x = self._smooth(here, b, torch.zeros_like(b))
        residual = here.matrix.times(x, b, times=-1)
        up, far = here.transfer.prolonged(self.cycle(here.transfer.restricted(residual), depth + 1))
        return self._smooth(here, here.matrix.times(up, residual, times=-1, rows=far), x.add_(up))

    def _smooth(self, here: ShardedLevel, r: Tensor, x: Tensor) -> Tensor:
        """Chebyshev iteration over the upper part of the spectrum, as `Hierarchy` does it, from x of residual r."""
        centre, half = 0.5 * (1 + LOWER) * here.radius, 0.5 * (1 - LOWER) * here.radius
        ratio = half / centre
        d = r / centre
        x = x.add_(d)
        for _ in range(self.smoothing - 1):
            r = here.matrix.times(d, r, times=-1)
            following = 1 / (2 * centre / half - ratio)
            d = d.mul_(following * ratio).add_(r, alpha=2 * following / half)
            ratio, x = following, x.add_(d)
        return x

    def first_block(self, request: Request, seed: int) -> Tensor:
        """A first block for the finest level: solved on the coarsest, then taken from level to level and improved."""
        columns, wanted = request.null.shape[1] + request.columns, request.null.shape[1] + request.wanted
        space = CoarseSpace(self.coarse.levels[0])
        x = nested_iteration(self.coarse, request, seed)
        if len(self.coarse.levels) > 1:
            x = torch.cat([x, space.random(columns - x.shape[1], seed)], 1)
            x = _improved(space, x, wanted, lambda r: self.coarse.inverse(_inverse(self.coarse.levels[0].ratio), r))
        (x,), ratio = self.ranks.shared(x), self.coarse.levels[0].ratio
        for depth in reversed(range(len(self.levels))):
            level = self.levels[depth]
            up, _ = level.transfer.prolonged((ratio * x).to(level.matrix.own.dtype))
            x, ratio = _inverse(level.ratio) * up.double(), level.ratio
            if depth > 0:
                here = ShardedSpace(self.ranks, level)
                x = torch.cat([x, here.random(columns - x.shape[1], seed + depth)], 1)
                x = _improved(here, x, wanted, lambda r, d=depth: self.inverse(_inverse(self.levels[d].ratio), r, d))
        return x


class ShardedSpace:
    """The operator of a level on several ranks; products in the precision of the level."""

    is_sharded = True

    def __init__(self, ranks: Ranks, level: ShardedLevel) -> None:
        self.ranks, self.level = ranks, level

    def matmul(self, y: Tensor) -> Tensor:
        """A Y."""
        matrix, ratio = self.level.matrix, self.level.ratio
        return ratio * matrix.times((ratio * y).to(matrix.own.dtype)).to(y.dtype)

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Xᵀ Y."""
        return self.ranks.sum(inner(x, y))

    def sum(self, x: Tensor) -> Tensor:
        """Σ over ranks."""
        return self.ranks.sum(x)

    def shared(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See `Ranks.shared`."""
        return self.ranks.shared(*tensors)

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        """Inner products of columns."""
        return self.ranks.sum((x * y).sum(-2))

    def overlaps(self, w: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """See `SymmetricOperator.overlaps`."""
        return in_one_message(self.ranks.sum, (w * w).sum(-2), *(q.mT @ w for q in others))

    def random(self, m: int, seed: int) -> Tensor:
        """Random columns ``(n, m)``, zero on nodes without edges."""
        return normal_numbers(self.level.numbers, m, seed) * (self.level.ratio > 0)


def multigrid(operator: SymmetricOperator, options: SmoothedAggregation) -> ShardedMultigrid | None:
    """The preconditioner of a sharded Laplacian; None where coarsening stops early.

    Raises:
        TypeError: an operator that is not made of affinities.
    """
    rows = _rows_of(operator)
    ranks, dtype = rows.ranks, torch.float32 if options.single else torch.float64
    diagonal = rows.diagonal
    levels: list[ShardedLevel] = []
    total = first = rows.entries
    while not levels or rows.count > GATHERED:
        aggregate, offsets = aggregated(rows, options.seed + ranks.rank)
        if offsets[-1] == 0 or offsets[-1] > 0.8 * rows.count:
            break
        p, far, coarse = coarser(rows, aggregate, offsets, options.max_complexity * first - total)
        total += coarse.entries
        transfer = _transfer(rows, p, far, coarse, dtype)
        begin = rows.halo.offsets[ranks.rank]
        numbers = torch.arange(begin, begin + len(rows.mass), device=diagonal.device)
        levels.append(ShardedLevel(rows.unit.to(dtype), rows.ratio, rows.radius, transfer, numbers))
        rows = coarse
    if not levels or rows.count > GATHERED:
        return None
    rest = _gathered(rows, options)
    if ranks.any(rest is None):
        return None
    assert rest is not None
    scale, largest = scale_of(operator, diagonal)
    return ShardedMultigrid(ranks, tuple(levels), rest, scale, largest, diagonal, options.smoothing)


def scale_of(operator: SymmetricOperator, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """N D^-½ ``(n, 1)``, see `Hierarchy.scale`, over the largest of all, and that: beside it float32 holds the rest."""
    assert operator.null is not None
    ground, d = operator.null.ground.reshape(-1, 1), diagonal[:, None]
    scale = torch.where(d > 0, ground / d.sqrt(), 0)
    largest = operator.largest(scale).clamp_min(torch.finfo(scale.dtype).tiny)
    return (scale / largest).to(ground.dtype), largest.to(ground.dtype)


def _rows_of(operator: SymmetricOperator) -> Rows:
    """The Laplacian N A N = D − W of the affinities that an operator is made of."""
    pattern: Any = operator.pattern
    if not operator.of_affinities or operator.null is None:
        raise TypeError("multigrid needs a Laplacian, got another operator; use Lobpcg(preconditioner=None)")
    ground = operator.null.ground.reshape(-1)
    affinity = pattern.scaled(operator.values.detach(), ground).double()
    keep = ((pattern.row != pattern.col) & (affinity > 0)).nonzero().flatten()
    row, col = pattern.row[keep].long(), pattern.col[keep].long()
    least = FAINTEST * float(operator.bound)
    return Rows(pattern.halo, row, col, -affinity[keep], ground.double().square(), least)


def _transfer(rows: Rows, p: Prolongation, far: Prolongation, coarse: Rows, dtype: torch.dtype) -> Transfer:
    """P in scaled coordinates, D^½ P D_c^-½."""
    ranks, n, gathered = rows.ranks, len(rows.mass), coarse.count <= GATHERED
    begin, count, place = p.offsets[ranks.rank], len(coarse.mass), torch.cat([p.place, far.place])
    inside = (place >= begin) & (place < begin + count)
    needed, position = place[~inside].unique(return_inverse=True)
    halo, col = Halo(ranks, p.offsets, needed), place - begin
    col[~inside] = count + position
    row = torch.cat([p.row, far.row + n])
    root = torch.where(rows.roots > 0, 1 / rows.roots, 0)[row]
    value = (torch.cat([p.value, far.value]) * root * halo.with_halo(coarse.roots[:count])[col]).to(dtype)
    col, width = (place, p.offsets[-1]) if gathered else (col, count + len(needed))
    order = (row * max(width, 1) + col).argsort()
    own, rest = order[: len(p.row)], order[len(p.row) :]  # the rows of the halo come last
    up = csr_of(row[own], col[own], value[own], (n, width))
    at_halo = csr_of(row[rest] - n, col[rest], value[rest], (len(rows.halo), width))
    back = own[(col[own] * max(n, 1) + row[own]).argsort()]
    down = csr_of(col[back], row[back], value[back], (width, n))
    return Transfer(up, at_halo, down, None if gathered else halo, ranks, count)


def _gathered(rows: Rows, options: SmoothedAggregation) -> Hierarchy | None:
    """The hierarchy of a coarse Laplacian, which every rank builds as a whole."""
    ranks, begin = rows.ranks, rows.halo.offsets[rows.ranks.rank]
    node = torch.arange(begin, begin + len(rows.mass), device=rows.mass.device)
    place = torch.cat([node, rows.halo.needed])[rows.col]
    # Ascending on each rank, as `coarsened` has made them, and so among all.
    keys, value = ranks.gather((rows.row + begin) * rows.count + place), ranks.gather(rows.value)
    row, col = (keys // rows.count).int(), (keys % rows.count).int()
    return options.hierarchy(row, col, -value, ranks.gather(rows.mass))


def _inverse(ratio: Tensor) -> Tensor:
    return torch.where(ratio > 0, 1 / ratio, 0)


def _improved(space: Any, x: Tensor, wanted: int, precondition: Any) -> Tensor:
    """A few iterations on a level: no better than the level approximates the finest one."""

    def shortfall(iteration: int, values: Tensor, residuals: Tensor) -> tuple[float, float]:
        if len(values) == 0:
            return 0.0, 0.0
        tiny = torch.finfo(values.dtype).tiny
        allowed = LEVEL_ACCURACY * float(values[min(wanted, len(values) - 1)].clamp_min(tiny))
        return float(residuals[:wanted].max()) / allowed, allowed

    return lobpcg(space, x, x[:, :0], precondition, shortfall, LEVEL_ITERATIONS)[1]
