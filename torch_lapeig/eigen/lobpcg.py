"""Locally optimal block conjugate gradients with a preconditioner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.eigen.amg import Hierarchy, Level, Multigrid, SmoothedAggregation
from torch_lapeig.eigen.blocks import (
    Space,
    basis,
    dots,
    eigh,
    inner,
    residual,
    rotate_,
    shared,
    small_basis,
    to_device,
    to_host,
    without,
)
from torch_lapeig.eigen.fused import Directions, fused_directions
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solver import (
    NEARER,
    Inverse,
    Preconditioner,
    Progress,
    Request,
    RitzPairs,
    check_options,
    check_preconditioner,
    fewest_active,
    one_by_one,
    with_guards,
)

# In the search for pairs that a first block has overlooked: random columns, minimum iterations, and the residual at
# which the smallest pair counts as known, relative to its distance from the wanted values.
FRESH, LEAST_ITERATIONS, SETTLED_OUTSIDE = 3, 4, 0.2
STAGNATION = 30  # iterations without a tenth less residual after which a preconditioned iteration gives up
NEAR = 5  # times the goal: larger residuals wait for the next message
LEVEL_ACCURACY, LEVEL_ITERATIONS = 0.1, 8  # on the levels below the finest
NOISE = 0.3  # of a column from the levels, relative to it: more noise leaves round-off in smooth vectors
# Iterations after which, and a tolerance below which, every pair that a first block lacked has appeared: it grows as
# fast as residuals fall. At a tolerance of 0.1, one in 3000 clouds of clusters lacked a pair after 21 iterations.
SURE, SURE_TOLERANCE = 12, 1e-5
FELL = 1e-3  # decrease of the sum of Ritz values that shows a new pair

# From iteration number, Ritz values and residuals: the worst residual over its maximum, and the maximum.
Shortfall = Callable[[int, Tensor, Tensor], tuple[float, float]]


@dataclass(frozen=True)
class Lobpcg:
    """Locally optimal block conjugate gradients with a multigrid preconditioner: for graphs of any size and hardness.

    Knyazev 2001, with the orthonormal basis of [X, P, W] and the choice of P of Duersch, Shao, Yang & Gu 2018. The
    known null vectors are exact constraints; converged columns stay in X but are not improved any more (soft locking);
    columns of W that are round-off of the others are dropped. With a hierarchy, the first block is solved for from
    level to level.

    Args:
        guards: Ritz vectors beyond the wanted ones; default max(4, k/4).
        max_iterations: at most.
        preconditioner: a `Preconditioner`, or None. Where multigrid stops coarsening there is none either. `SparseLU`
            for matrices that are no Laplacian.
        seed: of random columns.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> laplacian = Laplacian(KNN(8)(x))
    >>> values = torch.linalg.eigvalsh(laplacian.to_dense())[:4]
    >>> torch.allclose(eigenpairs(laplacian, 4, Lobpcg(guards=6)).values, values)
    True
    """

    guards: int | None = None
    max_iterations: int = 200
    preconditioner: Preconditioner | None = field(default_factory=SmoothedAggregation)
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, guards=1, max_iterations=0)
        check_preconditioner(self.preconditioner)

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """Return ``k`` pairs and the guards, or as many as there are nodes of positive degree."""
        m = with_guards(k, self.guards)
        return one_by_one(self._solve, operator, k, m, tolerance, progress)

    def _solve(self, request: Request) -> RitzPairs:
        x, inverse = None, None if self.preconditioner is None else self.preconditioner(request.operator)
        if isinstance(inverse, Multigrid):
            x = nested_iteration(inverse.hierarchy, request, self.seed).to(request.null)
        elif hasattr(inverse, "first_block"):  # of a hierarchy on several ranks
            x = inverse.first_block(request, self.seed).to(request.null)  # type: ignore[union-attr]
        if x is not None and inverse is not None:
            x = _stirred(x, inverse, request, self.seed)
        values, x, iterations, finished = self._iterate(request, inverse, x)
        return request.answer(values, x, iterations, finished, inverse)

    def _iterate(self, request: Request, inverse: Inverse | None, x: Tensor | None) -> tuple[Tensor, Tensor, int, bool]:
        """Return Ritz values and vectors, iterations, and whether they are the smallest; from ``x`` if given."""
        operator, iterations = request.operator, 0
        block = request.null[:, :0] if x is None else _new_directions(x, request)
        if (missing := request.columns - block.shape[1]) > 0:
            block = torch.cat([block, operator.random(missing, self.seed)[0]], 1)
        while True:
            values, block, more, finished = lobpcg(
                operator, block, request.null, inverse, request.shortfall, self.max_iterations - iterations
            )
            iterations += more
            is_sure = iterations >= SURE and request.tolerance <= SURE_TOLERANCE
            if not finished or x is None or is_sure:
                return values, block, iterations, finished
            # Coarse levels may lack some pairs.
            found, is_settled = self._search_outside(request, inverse, values, block)
            if found is None or iterations >= self.max_iterations:
                return values, block, iterations, is_settled and found is None
            block = torch.cat([found, block[:, : request.columns - found.shape[1]]], 1)

    def _search_outside(
        self, request: Request, inverse: Inverse | None, values: Tensor, x: Tensor
    ) -> tuple[Tensor | None, bool]:
        """Return vectors of smaller Rayleigh quotients outside a block of pairs, or None; and whether that is certain.

        The smallest pair of a random block in the complement has to settle beyond the wanted ones. A smaller one would
        have come out before it, because the preconditioner enlarges it more.
        """
        w = request.wanted  # with none, the gap still has to be certain
        top, round_off = float(values[min(w, len(values) - 1)]), float(request.operator.round_off)
        # Where the cut goes through a cluster, copies in it do not matter: copies of smaller values do.
        low = max((x for x in values[:w].tolist() if x < top - 10 * round_off), default=0.0)
        room = fewest_active(request.operator) - request.null.shape[1] - x.shape[1]
        fresh = request.operator.random(min(FRESH, room), self.seed + 1)[0]
        if fresh.shape[1] == 0:
            return None, True

        left, nearer = math.inf, top - NEARER * (top - low)

        def shortfall(iteration: int, ritz: Tensor, residuals: Tensor) -> tuple[float, float]:
            nonlocal left
            allowed = max(SETTLED_OUTSIDE * (float(ritz[0]) - low), round_off)
            if float(ritz[0]) < nearer:
                return 0.0, allowed
            left = float(residuals[0]) / allowed
            return (math.inf if iteration < LEAST_ITERATIONS else left), allowed

        known = torch.cat([request.null, x], 1)
        outside = Outside(request.operator, known)
        ritz, found, _, is_settled = lobpcg(outside, fresh, known, inverse, shortfall, self.max_iterations)
        smaller = ritz < nearer
        # It ends early where random columns span an invariant space already, as on stars.
        return (found[:, smaller] if smaller.any() else None), is_settled or left <= 1


def lobpcg(
    operator: Space, x: Tensor, null: Tensor, precondition: Inverse | None, shortfall: Shortfall, limit: int
) -> tuple[Tensor, Tensor, int, bool]:
    """Return Ritz values and vectors from the block ``x``, the iterations done, and whether all pairs have converged.

    The values and the arguments of ``shortfall`` are on the host: for these and small problems it waits four times
    an iteration, twice in `basis`. Where rows lie on several ranks all sums of an iteration travel together, those of
    the residuals too as long as these are far from their goal: they are known when the next directions are.
    """
    first = _whole_basis(operator, x, null)
    image, m = operator.matmul(first), first.shape[1]
    values, turn = shared(operator, *eigh(*to_host(operator.inner(first, image))))
    projected, turn = torch.diag(values), to_device(turn, x)
    is_sharded, missing, moving = getattr(operator, "is_sharded", False), math.inf, torch.ones(m, dtype=torch.bool)
    space, images = (x.new_empty(len(x), 2 * m) for _ in range(2))  # with room for the directions of the last step
    room = torch.empty_like(image)
    xp, axp = torch.mm(first, turn, out=space[:, :m]), torch.mm(image, turn, out=images[:, :m])
    patience = limit if precondition is None else STAGNATION
    best, left, total = math.inf, patience, math.inf
    for iteration in range(limit + 1):
        x = xp[:, :m]
        rides = is_sharded and missing > NEAR and iteration < limit
        if rides:
            r = torch.addcmul(axp[:, :m], x, values, value=-1)
        else:
            r, norms = _residual(operator, x, axp[:, :m], values, room)
            missing, allowed = shortfall(iteration, values, norms)
            if missing <= 1 and iteration > 0:
                # The image A X was updated from step to step: confirm it.
                axp[:, :m] = operator.matmul(x)
                r, norms = _residual(operator, x, axp[:, :m], values, room)
                missing, allowed = shortfall(iteration, values, norms)
            if missing <= 1:
                return values, x, iteration, True
            moving = norms > 0.3 * allowed
        best = math.inf if (sum_now := float(values.sum())) < (1 - FELL) * total else best
        total = min(total, sum_now)
        best, left = (missing, patience) if missing < 0.9 * best else (best, left - 1)
        if iteration == limit or left == 0 or not moving.any():
            break
        some = r if moving.all() else r.index_select(1, to_device(moving.nonzero().flatten(), r))
        w = some if precondition is None else precondition(some)
        w, aw, cross, own, squares = _directions(operator, w, null, xp, axp, projected, r[:, : m * rides])
        if w.shape[1] == 0:
            break
        q, now = xp.shape[1], moving
        if rides:
            missing, allowed = shortfall(iteration, values, norms := squares.sqrt())
            moving = norms > 0.3 * allowed
        whole = torch.cat([torch.cat([projected, cross], 1), torch.cat([cross.mT, own], 1)])
        ritz, c = shared(operator, *eigh(whole))
        values, cx = ritz[:m], c[:, :m]
        cp = cx[:, now]
        cp[:m] = 0
        c = torch.cat([cx, small_basis(operator, cp, cx)], 1)
        projected, c = c.mT @ whole @ c, to_device(c, x)
        xp, axp = rotate_(space, q, w, c), rotate_(images, q, aw, c)
    return values, xp[:, :m], iteration, False


def _residual(operator: Space, x: Tensor, ax: Tensor, values: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Return `residual` for values on the host, in ``room``, with the norms there."""
    r, norms = residual(operator, x, ax, to_device(values, x), room)
    return r, to_host(norms)[0]


def _directions(
    operator: Space, w: Tensor, null: Tensor, xp: Tensor, axp: Tensor, projected: Tensor, rider: Tensor
) -> Directions:
    """Return a basis of ``w`` outside the null vectors and [X P], with its image and products, these on the host."""
    if getattr(operator, "is_sharded", False):
        return fused_directions(operator, w, null, xp, axp, projected, rider)
    w = basis(operator, w, null, xp)
    if w.shape[1] == 0:
        return Directions(w, w, w.new_zeros(0), w.new_zeros(0), w.new_zeros(0))
    aw = operator.matmul(w)
    cross, own = to_host(operator.inner(xp, aw), operator.inner(w, aw))
    return Directions(w, aw, cross, own, own.new_zeros(0))


def _whole_basis(operator: Space, x: Tensor, null: Tensor) -> Tensor:
    """Return an orthonormal basis of ``x`` beside the null vectors; random columns replace the dependent ones."""
    found = basis(operator, x, null)
    if (lost := x.shape[1] - found.shape[1]) > 0:
        noise = operator.random(lost, lost).reshape(len(x), lost).to(x)
        found = torch.cat([found, basis(operator, noise, null, found)], 1)
    return found


def _new_directions(x: Tensor, request: Request) -> Tensor:
    """Return directions of ``x`` outside the exact null vectors, at most as many as there are columns."""
    operator = request.operator
    x = x[:, : request.null.shape[1] + request.columns] * operator.active.reshape(-1, 1)
    x = torch.addmm(x, request.null, operator.inner(request.null, x), alpha=-1)
    values, turn = shared(operator, *eigh(operator.inner(x, x)))
    new = (values > 0.1 * values[-1]).nonzero().flatten()[-request.columns :]
    return x @ turn[:, new]


def _stirred(x: Tensor, inverse: Inverse, request: Request, seed: int) -> Tensor:
    """Return columns with noise: coarse levels may lack an eigenvector, which a loose tolerance would not show.

    The preconditioner removes rough parts, and enlarges the wanted ones.
    """
    noise = inverse(request.operator.random(x.shape[1], seed + 1)[0])
    size, of_noise = (request.operator.dots(y, y).sqrt() for y in (x, noise))
    return torch.addcmul(x, noise, NOISE * size / of_noise.clamp_min(torch.finfo(x.dtype).tiny))


def nested_iteration(hierarchy: Hierarchy, request: Request, seed: int) -> Tensor:
    """Return a first block for the finest level: solved on the coarsest, taken from level to level and improved."""
    columns, wanted = request.null.shape[1] + request.columns, request.null.shape[1] + request.wanted
    level = hierarchy.levels[-1]
    dense = level.ratio * level.matrix.to_dense() * level.ratio.mT
    x = eigh(dense)[1][:, :columns]
    for depth in reversed(range(len(hierarchy.levels) - 1)):
        coarser, level = level, hierarchy.levels[depth]
        assert level.prolongation is not None
        inverse_ratio = torch.where(level.ratio > 0, 1 / level.ratio, 0)
        x = inverse_ratio * (level.prolongation @ (coarser.ratio * x).to(level.prolongation.dtype)).double()
        if depth > 0:
            noise = CoarseSpace(level).random(columns - x.shape[1], seed + depth)
            x = _improve(hierarchy, depth, torch.cat([x, noise], 1), wanted)
    return x


def _improve(hierarchy: Hierarchy, depth: int, x: Tensor, wanted: int) -> Tensor:
    """Return the result of a few iterations on a level, no more accurate than the level approximates the finest one."""
    level = hierarchy.levels[depth]
    inverse_ratio = torch.where(level.ratio > 0, 1 / level.ratio, 0)

    def shortfall(iteration: int, values: Tensor, residuals: Tensor) -> tuple[float, float]:
        if len(values) == 0:
            return 0.0, 0.0
        allowed = LEVEL_ACCURACY * float(values[min(wanted, len(values) - 1)].clamp_min(torch.finfo(values.dtype).tiny))
        return float(residuals[:wanted].max()) / allowed, allowed

    def precondition(r: Tensor) -> Tensor:
        return hierarchy.inverse(inverse_ratio, r, depth)

    return lobpcg(CoarseSpace(level), x, x[:, :0], precondition, shortfall, LEVEL_ITERATIONS)[1]


class Outside:
    """Operator P A P for the projection P outside orthonormal columns, which need not be eigenvectors of A.

    The rest of their residuals is in A x for each x outside, and no iteration there would remove it.
    """

    def __init__(self, operator: Operator, known: Tensor) -> None:
        self.operator, self.known = operator, known

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operator, name)

    def matmul(self, y: Tensor) -> Tensor:
        """Return P A Y of a block that lies outside."""
        image = self.operator.matmul(y)
        return without(image, self.known, self.operator.inner(self.known, image))


class CoarseSpace:
    """Operator of a level of a hierarchy; products in the precision of the level."""

    def __init__(self, level: Level) -> None:
        self.level = level

    def matmul(self, y: Tensor) -> Tensor:
        """Return A Y."""
        matrix, ratio = self.level.matrix, self.level.ratio
        return ratio * (matrix @ (ratio * y).to(matrix.dtype)).to(y.dtype)

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Return Xᵀ Y."""
        return inner(x, y)

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        """Return inner products of columns."""
        return dots(x, y)

    def random(self, m: int, seed: int) -> Tensor:
        """Return random columns ``(n, m)``, zero on nodes without edges."""
        ratio = self.level.ratio
        generator = torch.Generator(ratio.device).manual_seed(seed)
        shape = (len(ratio), m)
        return torch.randn(shape, dtype=ratio.dtype, device=ratio.device, generator=generator) * (ratio > 0)
