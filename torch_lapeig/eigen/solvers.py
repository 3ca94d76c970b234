"""Eigensolvers for the smallest eigenpairs of a symmetric operator. Forward only: gradients are `eigen`'s matter.

A solver is a frozen dataclass of its options, called with an operator and the number of pairs. Of the operator it
uses ``matmul``, ``chebyshev``, ``inner``, ``dots``, ``to_dense``, ``bound``, ``active``, ``null_vectors``, ``nullity``,
``ground``, ``edges_of_affinity`` and ``items``, as a `SymmetricOperator` has them. `Eigh` and `ChebyshevSubspace` work
on a whole batch at a time, the others on one graph after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.eigen.amg import Hierarchy, Level, SmoothedAggregation
from torch_lapeig.eigen.direct import Factors, SparseLU
from torch_lapeig.eigen.operator import SymmetricOperator

Inverse = Hierarchy | Factors  # what a preconditioner is built to

# Called once an iteration with its number, the largest residual of the wanted pairs, and what is allowed.
Progress = Callable[[int, float, float], None]


# What a solver may break down with; the next candidate is asked then.
BREAKDOWN = (torch.linalg.LinAlgError, _checks.ConvergenceError)  # type: ignore[attr-defined]
SETTLED = 0.05  # residual at which the pair after the wanted ones counts as known, relative to the gap before it
# In the search for what a start has overlooked: random columns, iterations at least, and the residual at which
# the smallest of them counts as known, relative to its distance from the wanted values.
FRESH, LEAST_ITERATIONS, SETTLED_OUTSIDE = 3, 4, 0.2
BEYOND = 0.05  # of the rest of the spectrum, from the end of a cluster on
# Columns in the search for copies, and the share of a copy in all of them with which it is overlooked.
FILTERED, SMALL_SHARE = 4, 0.05
SEARCH = 1000  # products that the search may take, or twice as many as the solve
OVERFLOW = 0.5  # of the logarithm of the largest number: what a filter may grow to
STAGNATION = 30  # iterations without a tenth less residual after which LOBPCG with multigrid gives up
SMALL_VALUE = 0.04  # of the bound: a spectrum that begins beyond is too narrow for a preconditioner to gain by it
LARGEST_LOSS = 30.0  # of orthogonality, against round-off, in Lanczos vectors
LEVEL_ACCURACY, LEVEL_ITERATIONS = 0.1, 8  # on the levels below the finest


class RitzPairs(NamedTuple):
    """Approximate eigenpairs, ascending; those beyond the ones asked for are guards.

    ``values (B, m)``, orthonormal ``vectors (B, N, m)``, number of ``iterations``, bool ``finished (B,)``: whether the
    solver reached its goal, residuals, eigengap and copies included, and the multigrid ``hierarchies``, or factors, of
    the graphs where it has built them.
    """

    values: Tensor
    vectors: Tensor
    iterations: int
    finished: Tensor
    hierarchies: tuple[Inverse | None, ...] = ()


class Solver(Protocol):
    """What `eigenpairs` asks of a solver."""

    def __call__(
        self,
        operator: SymmetricOperator,
        k: int,
        tolerance: float,
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """At least ``k`` smallest pairs of each graph, to residuals that `allowed_residual` allows.

        ``start`` are pairs of a similar operator, to begin with.
        """
        ...


def allowed_residual(values: Tensor, k: int, round_off: Tensor, tolerance: float) -> Tensor:
    """Residual ``(B,)`` that is small enough: ``tolerance`` times the gap after the k-th value, or round-off.

    By Davis and Kahan the sine of the angle between the computed and the true eigenspace is at most residual / gap,
    so an absolute tolerance would mean nothing where eigenvalues are close together.
    """
    gap = values[:, k] - values[:, k - 1] if values.shape[1] > k else torch.zeros_like(values[:, 0])
    return torch.maximum(tolerance * gap, round_off)


def multigrid(
    operator: SymmetricOperator, hierarchies: tuple[Inverse | None, ...]
) -> Callable[[Tensor], Tensor] | None:
    """One cycle of each graph's hierarchy on ``(B, N, m)``, or ``(N, m)`` of one graph; None without hierarchies."""
    found = [h for h in hierarchies if h is not None]
    if not found or len(found) < len(hierarchies):
        return None
    scales = [
        h.scale(ground[:, None]) for h, ground in zip(found, operator.ground.reshape(len(found), -1), strict=True)
    ]

    def inverse(r: Tensor) -> Tensor:
        if r.ndim == 2:
            return found[0].inverse(scales[0], r)
        return torch.stack([h.inverse(scale, x) for h, scale, x in zip(found, scales, r, strict=True)])

    return inverse


@dataclass(frozen=True)
class Eigh:
    """All eigenpairs by `torch.linalg.eigh` of the dense matrix: exact, O(N³) time and O(N²) memory a graph."""

    def __call__(
        self,
        operator: SymmetricOperator,
        k: int,
        tolerance: float,
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """All N pairs; inactive nodes come last with values above the spectrum."""
        b, n = operator.graph.batch_size, operator.graph.num_nodes
        null = operator.null_vectors(int(operator.nullity.max()))[0]
        dense = operator.to_dense().reshape(b, n, n)
        # Known null vectors below the spectrum, so that no small eigenvalue mixes with them; inactive nodes above it.
        dense = torch.baddbmm(dense, null * operator.bound[:, None, None], null.mT, alpha=-1)
        inactive = (~operator.active).reshape(b, n)
        dense.diagonal(dim1=-2, dim2=-1).add_(inactive * (operator.bound[:, None] + 1))
        values, vectors = torch.linalg.eigh(dense)
        return RitzPairs(values.clamp_min(0), vectors, 1, torch.ones_like(operator.bound, dtype=torch.bool))


@dataclass(frozen=True)
class ChebyshevSubspace:
    """Subspace iteration on a Chebyshev filter: products and small dense problems only, batched.

    The filter is the Chebyshev polynomial that stays in [−1, 1] between the largest Ritz value of the block and the
    bound of the spectrum and grows fastest below (Zhou, Saad, Tiago & Chelikowsky 2006, section 2). Being a block
    method, it finds multiple eigenvalues up to the size of its block. It is at its best where the wanted
    values are not tiny compared with the spectrum; otherwise it needs many products.

    Args:
        guards: Ritz vectors beyond the wanted ones; default max(8, k/2).
        max_iterations: filters applied at most.
        max_degree: highest degree of a filter.
        max_products: of the block with the matrix, at most; None for no limit beside the others.
        seed: of the random start, from a generator of its own.
    """

    guards: int | None = None
    max_iterations: int = 60
    max_degree: int = 120
    max_products: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_options(self, guards=1, max_iterations=0, max_degree=1, max_products=0)

    def block_size(self, k: int) -> int:
        """Columns of the block for ``k`` wanted pairs."""
        return k + (max(8, k // 2) if self.guards is None else self.guards)

    def __call__(
        self,
        operator: SymmetricOperator,
        k: int,
        tolerance: float,
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """The block of ``block_size(k)`` Ritz pairs, or as many as there are nodes of positive degree."""
        m = min(self.block_size(k), operator.fewest_active)
        null, dimension = operator.null_vectors(m)
        known = torch.arange(m, device=null.device) < dimension[:, None]
        first = torch.where(known[:, None, :], null, _noise(operator, m, self.seed))
        products, grown = 0, torch.zeros_like(operator.bound)
        if start is not None:
            # Old pairs may all be eigenpairs still, but no longer the smallest: random columns have to show it first.
            given = start.vectors[..., : min(m, k + (m - k) // 2)]
            first = torch.cat([given, first[..., given.shape[2] :]], 2)
        values, vectors, residuals = _rayleigh_ritz(operator, first, null)
        iteration = 0
        while iteration < self.max_iterations:
            allowed = allowed_residual(values, k, operator.round_off, tolerance)
            worst = residuals[:, :k].amax(1)
            # The next value has to have settled too: the gap is part of the answer. Ritz values are upper bounds: where
            # the gap between them is round-off, so is the gap.
            gap = values[:, k - 1 : k + 1].diff()
            settled = residuals[:, k : k + 1] <= torch.maximum(SETTLED * gap, allowed[:, None])
            finished = (worst <= allowed) & (settled | (gap <= operator.round_off[:, None])).all(1)
            if progress is not None:
                b = (worst / allowed).argmax()
                progress(iteration, worst[b].item(), allowed[b].item())
            if start is not None:
                finished &= grown >= _needed_growth(operator, gap)
            if finished.all():
                return RitzPairs(values, vectors, iteration, finished)
            # Where the whole block lies in one cluster, what grows begins beyond it.
            within = values[:, -1] - values[:, k - 1] <= operator.round_off
            low = values[:, -1] + BEYOND * within * (operator.bound - values[:, -1])
            low = torch.minimum(low, 0.9 * operator.bound)
            degree = self._degree(values, low, k, operator.bound)
            products += int(degree.max()) + 1
            grown += degree * _growth(values[:, k - 1], low, operator.bound) - math.log(2)
            if self.max_products is not None and products > self.max_products:
                break
            filtered = operator.chebyshev(vectors, degree, low, operator.bound)
            if not filtered.isfinite().all():
                break
            values, vectors, residuals = _rayleigh_ritz(operator, filtered, null)
            iteration += 1
        return RitzPairs(values, vectors, iteration, torch.zeros_like(operator.bound, dtype=torch.bool))

    def _degree(self, values: Tensor, low: Tensor, k: int, bound: Tensor) -> Tensor:
        """Degrees, int64 ``(B,)``: the unwanted damped by e^−12 against the k-th, the wanted spread by 1/√eps at most.

        The cap is that of each graph of a batch: a polynomial that another one needs would overflow.
        """
        kth, first = (_growth(values[:, i], low, bound) for i in (k - 1, 0))
        spread = -0.5 * math.log(torch.finfo(values.dtype).eps)
        degree = torch.minimum(12 / kth, spread / (first - kth).clamp_min(1e-7))
        most = (OVERFLOW * math.log(torch.finfo(values.dtype).max) / first).clamp_min(1)
        return torch.minimum(degree.clamp(8, self.max_degree), most).ceil().long()


@dataclass(frozen=True)
class Lobpcg:
    """Locally optimal block conjugate gradients with a multigrid preconditioner: for graphs of any size and hardness.

    Knyazev 2001, with the orthonormal basis of [X, P, W] and the choice of P of Duersch, Shao, Yang & Gu 2018. The
    known null vectors are exact constraints; converged columns stay in X but are not improved any more (soft locking);
    columns of W that are round-off of the others are dropped. Without a start, the first block is solved for from
    level to level of the hierarchy. With the pairs of a similar problem as a start, their hierarchy is used as it is,
    and built anew where it does not lead to the answer in ``patience`` iterations.

    Args:
        guards: Ritz vectors beyond the wanted ones; default max(4, k/4).
        max_iterations: at most.
        preconditioner: how the hierarchy is built, or None for no preconditioner. Where coarsening stalls there is none
            either. `SparseLU` for matrices that are no Laplacian.
        patience: iterations with a hierarchy from before.
        seed: of random columns.
    """

    guards: int | None = None
    max_iterations: int = 200
    preconditioner: SmoothedAggregation | SparseLU | None = field(default_factory=SmoothedAggregation)
    patience: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        _check_options(self, guards=1, max_iterations=0, patience=1)
        if self.preconditioner is not None:
            expected = "None, SmoothedAggregation() or SparseLU()"
            _checks.check_instance(self.preconditioner, "preconditioner", (SmoothedAggregation, SparseLU), expected)

    def __call__(
        self,
        operator: SymmetricOperator,
        k: int,
        tolerance: float,
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """``k`` and the guards, or as many as there are nodes of positive degree."""
        m = k + (max(4, k // 4) if self.guards is None else self.guards)
        return _one_by_one(self._solve, operator, k, min(m, operator.fewest_active), tolerance, start, progress)

    def _solve(self, request: _Request) -> RitzPairs:
        hierarchy, x, iterations = request.hierarchy, request.start, 0
        if hierarchy is not None:
            limit = min(self.patience, self.max_iterations)
            values, x, iterations, finished = self._iterate(request, hierarchy, x, limit)
            if finished or limit == self.max_iterations:
                return request.answer(values, x, iterations, finished, hierarchy)
        hierarchy = self._hierarchy(request.operator)
        if x is None and isinstance(hierarchy, Hierarchy):
            x = _nested_iteration(hierarchy, request, self.seed).to(request.null)
        values, x, more, finished = self._iterate(request, hierarchy, x, self.max_iterations - iterations)
        return request.answer(values, x, iterations + more, finished, hierarchy)

    def _hierarchy(self, operator: SymmetricOperator) -> Inverse | None:
        if self.preconditioner is None:
            return None
        if isinstance(self.preconditioner, SparseLU):
            return self.preconditioner(operator)
        return self.preconditioner(*operator.edges_of_affinity(), operator.ground.square())

    def _iterate(
        self, request: _Request, hierarchy: Inverse | None, x: Tensor | None, limit: int
    ) -> tuple[Tensor, Tensor, int, bool]:
        operator, iterations = request.operator, 0
        inverse = None if hierarchy is None else multigrid(operator, (hierarchy,))
        block = request.null[:, :0] if x is None else _without_null_vectors(operator, x, request)
        if (missing := request.columns - block.shape[1]) > 0:
            block = torch.cat([block, _noise(operator, missing, self.seed)[0]], 1)
        while True:
            values, block, more, finished = _lobpcg(
                operator, block, request.null, inverse, request.shortfall, limit - iterations
            )
            iterations += more
            if request.start is None or not finished:
                return values, block, iterations, finished
            # Old pairs may all be eigenpairs still, but no longer the smallest.
            found, settled = self._overlooked(request, inverse, values, block)
            if found is None or iterations >= limit:
                return values, block, iterations, settled and found is None
            block = torch.cat([found, block[:, : request.columns - found.shape[1]]], 1)

    def _overlooked(
        self, request: _Request, inverse: Callable[[Tensor], Tensor] | None, values: Tensor, x: Tensor
    ) -> tuple[Tensor | None, bool]:
        """Vectors of a smaller Rayleigh quotient outside a block of pairs, or None; and whether that is settled.

        The smallest pair of a random block in the complement has to settle beyond the wanted ones. A smaller one would
        have come out before it, because the preconditioner enlarges it more.
        """
        w = request.wanted
        if w == 0:
            return None, True
        top, round_off = float(values[min(w, len(values) - 1)]), float(request.operator.round_off)
        # Where the cut goes through a cluster, its own copies make no difference: what lies before it does.
        low = max((x for x in values[:w].tolist() if x < top - 10 * round_off), default=0.0)
        room = request.operator.fewest_active - request.null.shape[1] - x.shape[1]
        fresh = _noise(request.operator, min(FRESH, room), self.seed + 1)[0]
        if fresh.shape[1] == 0:
            return None, True

        def below(value: float) -> bool:
            return value < 0.5 * (low + top)

        def shortfall(iteration: int, ritz: Tensor, residuals: Tensor) -> tuple[float, float]:
            allowed = max(SETTLED_OUTSIDE * (float(ritz[0]) - low), round_off)
            if below(float(ritz[0])):
                return 0.0, allowed
            return (math.inf if iteration < LEAST_ITERATIONS else float(residuals[0]) / allowed), allowed

        known = torch.cat([request.null, x], 1)
        ritz, found, _, settled = _lobpcg(request.operator, fresh, known, inverse, shortfall, self.max_iterations)
        smaller = ritz < 0.5 * (low + top)
        return (found[:, smaller] if smaller.any() else None), settled


@dataclass(frozen=True)
class Lanczos:
    """Thick-restart Lanczos (Wu & Simon 2000) with full reorthogonalisation: least work for well separated values.

    The null vectors are constraints. A Krylov space of one vector holds one vector of a multiple eigenvalue; the others
    are searched for with a filtered random block once the pairs have converged, and solved for. A copy is overlooked
    with a probability of 1 in 10⁵.

    Args:
        basis: vectors kept at most; default max(20, 2k + 2).
        max_products: with the matrix, at most.
        crowded: give up as soon as the basis is full, if the third Ritz value · basis² / bound of the spectrum is below
            this: the spectrum begins with many close values then, and `Lobpcg` is faster. 0 to go on.
        patience: products after which to give up, if the wanted values are small against the bound of the spectrum:
            multigrid is of use for these only. None to go on.
        seed: of the random start.
    """

    basis: int | None = None
    max_products: int = 10_000
    crowded: float = 0.0
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_options(self, basis=3, max_products=0, patience=1)
        _checks.keep(self, crowded=_checks.check_number(self.crowded, "crowded", 0))

    def __call__(
        self,
        operator: SymmetricOperator,
        k: int,
        tolerance: float,
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """``k`` pairs and the guards that are left of the basis."""
        m = min(k + max(4, k // 4), operator.fewest_active)
        return _one_by_one(self._solve, operator, k, m, tolerance, start, progress)

    def _solve(self, request: _Request) -> RitzPairs:
        operator, c, columns, w = request.operator, request.null.shape[1], request.columns, request.wanted
        free = operator.fewest_active - c
        size = min(free, max(20, 2 * columns + 2 if self.basis is None else self.basis, columns + 2))
        columns = min(columns, size)
        rows = request.null.new_empty(c + size + 1, len(request.null))  # null vectors, then the basis
        rows[:c] = request.null.mT
        rows[c] = _fresh(operator, rows[:c], self.seed)
        projected, begin, products = rows.new_zeros(size, size), 0, 0
        while True:
            beta = self._sweep(operator, rows, c, begin, projected)
            products += size - begin
            values, turn = torch.linalg.eigh(projected, UPLO="U")
            residuals = beta * turn[-1].abs()
            missing, _ = request.shortfall(products, values, residuals)
            solved, following = missing <= 1, rows[c + size]
            if solved and size < free:
                rows[c : c + columns] = turn[:, :columns].mT @ rows[c : c + size]
                most, seed = max(SEARCH, 2 * products), self.seed + products
                found, work = _overlooked(request, rows[: c + columns], values, residuals, seed, most)
                products += min(work, most)
                if found is None or products >= self.max_products:
                    complete = found is None and work <= most
                    return self._verified(request, values[:columns], rows[c : c + columns].mT, products, complete)
                # The wanted pairs stay, and what was overlooked begins a Krylov space beside them.
                begin, following = w, found
            else:
                if solved or products >= self.max_products or self._hopeless(values / operator.bound, w, products):
                    x = rows[c : c + size].mT @ turn[:, :columns]
                    return request.answer(values[:columns], x, products, solved)
                begin = min(columns, size - 1)
                rows[c : c + begin] = turn[:, :begin].mT @ rows[c : c + size]
            rows[c + begin] = following
            projected.zero_().diagonal()[:begin] = values[:begin]

    def _verified(self, request: _Request, values: Tensor, x: Tensor, products: int, finished: bool) -> RitzPairs:
        """The pairs if their true residuals are small enough, else polished by filters.

        The recurrence forgets what was left of the residuals when a copy began a Krylov space of its own.
        """
        answer = request.answer(values, x, products, finished)
        _, residuals = _residual(request.operator, x, request.operator.matmul(x), values)
        if not finished or request.shortfall(products, values, residuals)[0] <= 1:
            return answer
        k = request.null.shape[1] + request.wanted
        polished = ChebyshevSubspace(max_products=max(1000, products), seed=self.seed)(
            request.operator, k, request.tolerance, answer
        )
        done = polished if polished.finished.all() else answer._replace(finished=polished.finished)
        return done._replace(iterations=products + polished.iterations, hierarchies=answer.hierarchies)

    def _hopeless(self, values: Tensor, wanted: int, products: int) -> bool:
        """Whether Ritz values, over the bound of the spectrum, belong to a problem for multigrid."""
        if products == len(values) > 2 and float(values[2]) * len(values) ** 2 < self.crowded:
            return True
        small = float(values[max(wanted, 1) - 1]) < SMALL_VALUE
        return self.patience is not None and products >= self.patience and small

    def _sweep(self, operator: SymmetricOperator, rows: Tensor, c: int, begin: int, projected: Tensor) -> float:
        """Fill the basis from the vector ``begin`` on, and the upper triangle of Vᵀ A V; the norm of what is left."""
        shift = 0.5 * float(operator.bound)  # as much of A v as possible is not parallel to v: less cancels
        round_off = 10 * torch.finfo(rows.dtype).eps * float(operator.bound)
        beta, loss = 0.0, 1.0
        for j in range(begin, len(projected)):
            known = rows[: c + j + 1]
            w = operator.matvec(known[-1], shift)
            h = known @ w
            w = torch.addmv(w, known.mT, h, alpha=-1)
            beta = math.sqrt(w.dot(w))
            # The loss of orthogonality grows by ‖h‖ / β from vector to vector: orthogonalise again now and then, and
            # where a sweep begins and ends, so that nothing is handed on.
            loss *= max(1.0, math.sqrt(h.dot(h)) / max(beta, round_off))
            if loss > LARGEST_LOSS or j in (begin, len(projected) - 1):
                again, once = known @ w, beta
                w, h, loss = torch.addmv(w, known.mT, again, alpha=-1), h + again, 1.0
                beta = math.sqrt(w.dot(w))
                if beta < 0.5 * once:  # what was left was round-off: the basis is invariant
                    beta = 0.0
            projected[: j + 1, j] = h[c:]
            if beta > round_off:
                torch.div(w, beta, out=rows[c + j + 1])
            elif j + 1 < len(projected):
                rows[c + j + 1] = _fresh(operator, known, self.seed + j + 1)
        projected.diagonal()[begin:] += shift
        return beta


@dataclass(frozen=True)
class TorchLobpcg:
    """`torch.lobpcg` as it is: one graph or dense batches, no preconditioner, no constraints, no restart.

    Its limits: at least 3 times as many nodes as vectors; it may stop early or fail with singular small matrices
    (pytorch #101075, #109497), which raises `ConvergenceError`; equal and tiny eigenvalues are its weak side. Its
    answer is checked like any other, and its own backward is never used.

    Args:
        max_iterations: at most.
        seed: of the random start.
    """

    max_iterations: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        _check_options(self, max_iterations=0)

    def __call__(
        self,
        operator: SymmetricOperator,
        k: int,
        tolerance: float,
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """``k`` pairs and one guard."""
        return _one_by_one(self._solve, operator, k, k + 1, tolerance, start, progress)

    def _solve(self, request: _Request) -> RitzPairs:
        operator, m = request.operator, request.null.shape[1] + request.columns
        if 3 * m > len(request.null):
            raise ValueError(f"torch.lobpcg needs at least {3 * m} nodes for {m} vectors, got {len(request.null)}")
        x = torch.cat([request.null, _noise(operator, request.columns, self.seed)[0]], 1)
        iterations, goal, missing = 0, 1e-4, math.inf

        def count(worker: object) -> None:
            nonlocal iterations
            iterations += 1

        for _ in range(2):  # twice: what residual is small enough is known once the gap is
            options: Any = {"niter": self.max_iterations, "tol": goal, "largest": False, "tracker": count}
            try:
                values, x = torch.lobpcg(operator.matrix, X=x, **options)
            except (RuntimeError, ValueError) as error:
                raise _checks.ConvergenceError(f"torch.lobpcg failed ({error}); use another solver") from error
            r = operator.matmul(x) - x * values
            c = request.null.shape[1]
            missing, allowed = request.shortfall(iterations, values[c:], operator.dots(r, r).sqrt()[c:])
            goal = allowed / float(operator.bound) / 4
        return RitzPairs(values[None], x[None], iterations, torch.tensor([missing <= 1], device=x.device))


@dataclass(frozen=True)
class _Request:
    """What is asked of a solver for one graph, beside its null vectors, which need no solving."""

    operator: SymmetricOperator
    null: Tensor  # (N, c)
    wanted: int  # k − c
    columns: int  # with guards, in all
    tolerance: float
    start: Tensor | None  # (N, ·)
    hierarchy: Inverse | None
    progress: Progress | None

    def shortfall(self, iteration: int, values: Tensor, residuals: Tensor) -> tuple[float, float]:
        """Worst residual over what is allowed, of the wanted pairs and the next one; and what is allowed."""
        w = self.wanted
        ritz, r = [0.0, *values.tolist()], residuals.tolist()
        gap = ritz[w + 1] - ritz[w] if len(r) > w else 0.0
        allowed = max(self.tolerance * gap, float(self.operator.round_off))
        worst = max(r[:w], default=0.0)
        if self.progress is not None:
            self.progress(iteration, worst, allowed)
        # Ritz values are upper bounds: where the gap between them is round-off, so is the gap.
        settled = r[w] / max(SETTLED * gap, allowed) if len(r) > w and gap > float(self.operator.round_off) else 0.0
        return max(worst / allowed, settled), allowed

    def answer(
        self, values: Tensor, x: Tensor, iterations: int, finished: bool, hierarchy: Inverse | None = None
    ) -> RitzPairs:
        """The null pairs and the solver's, with a batch axis."""
        values = torch.cat([values.new_zeros(self.null.shape[1]), values.clamp_min(0)])
        done = torch.tensor([finished], device=x.device)
        return RitzPairs(values[None], torch.cat([self.null, x], 1)[None], iterations, done, (hierarchy,))


def _check_options(solver: Any, **least: int) -> None:
    """Check a seed and counts, which have a least value; None where it is the default."""
    for name, minimum in least.items():
        value = getattr(solver, name)
        if value is not None or type(solver).__dataclass_fields__[name].default is not None:
            _checks.keep(solver, **{name: _checks.check_count(value, name, minimum)})
    _checks.keep(solver, seed=_checks.check_seed(solver.seed))


def _noise(operator: SymmetricOperator, m: int, seed: int) -> Tensor:
    """Random columns ``(B, N, m)``, zero on inactive nodes: those are never mixed in again. The same in every graph."""
    active = operator.active.reshape(operator.graph.batch_size, -1, 1)
    generator = torch.Generator(active.device).manual_seed(seed)
    shape = (active.shape[1], m)
    return active * torch.randn(shape, dtype=operator.values.dtype, device=active.device, generator=generator)


def _fresh(operator: SymmetricOperator, rows: Tensor, seed: int) -> Tensor:
    """A random unit vector orthogonal to orthonormal rows."""
    w = _noise(operator, 1, seed)[0, :, 0]
    for _ in range(2):
        w = torch.addmv(w, rows.mT, rows @ w, alpha=-1)
        w = w / torch.linalg.vector_norm(w)
    return w


def _growth(value: Tensor, low: Tensor, bound: Tensor) -> Tensor:
    """Logarithm, for each degree, of the Chebyshev polynomial on [low, bound] at a value below, all ``(B,)``."""
    return torch.acosh(1 + (2 / (bound - low) * (low - value)).clamp_min(1e-7))


def _needed_growth(operator: SymmetricOperator, gap: Tensor) -> Tensor:
    """Growth after which an eigenvector rules a random block: by √n, for its share in a random vector, over the root of
    the distance that its Rayleigh quotient shall come to, and the share that is overlooked.

    Both ``(B,)``, and gaps ``(B, ·)``.
    """
    distance = gap.amin(1) if gap.shape[1] else operator.bound
    distance = torch.maximum(distance, operator.round_off)
    return 0.5 * (operator.graph.num_nodes * operator.bound / distance).log() - math.log(SMALL_SHARE)


def _overlooked(
    request: _Request, rows: Tensor, values: Tensor, residuals: Tensor, seed: int, most: int
) -> tuple[Tensor | None, int]:
    """A unit vector of a smaller Rayleigh quotient that Ritz pairs have missed, or None; and products with the matrix.

    Where the values known are too close together to tell within ``most`` products, these are more.

    A Krylov space of one vector holds one vector of each eigenspace: what it can miss are copies. In the complement of
    the pairs that have settled, a random block is filtered by a Chebyshev polynomial that stays in [−1, 1] from a later
    Ritz value on and grows below, until a copy that is left rules the block. A vector in the complement that lies below
    the pair after the wanted ones proves that one is missing. That none does proves nothing only if the share of the
    copy happened to be small in all columns: `SMALL_SHARE`, 1 in 10⁵.

    Args:
        rows: ``(c + m, N)``, the null vectors and those of the ``m`` smallest Ritz values.
        values, residuals: Ritz values and residuals of these and more.
    """
    operator, w, c = request.operator, request.wanted, request.null.shape[1]
    ritz, bound, round_off = values.tolist(), float(operator.bound), float(operator.round_off)
    top = ritz[min(w, len(ritz) - 1)]
    # Where the cut goes through a cluster, its own copies make no difference: those of the values before it do.
    low = max((x for x in ritz[:w] if x < top - 10 * round_off), default=None)
    if low is None:
        return None, 0
    settled = residuals[w : len(rows) - c] <= torch.maximum(
        SETTLED * (values[w : len(rows) - c] - low), values.new_tensor(round_off)
    )
    known = w + int(settled.long().cumprod(0).sum())
    # What lies between is enlarged too, but less: the block has room for a few.
    high = min(max(ritz[min(known + 1, len(rows) - c - 1)], top), 0.9 * bound)
    if high <= low:
        return None, 0
    needed = float(_needed_growth(operator, values.new_tensor([[top - low]])))
    degree = math.ceil((needed + math.log(2)) / math.acosh(1 + 2 * (high - low) / (bound - high)))
    if degree > most:
        return None, degree
    x = _filtered(operator, rows[: c + known], degree, high, seed)
    found, turn = _small_eigh(operator.inner(x, operator.matmul(x)))
    return (x @ turn[:, 0] if float(found[0]) < 0.5 * (low + top) else None), degree


def _filtered(operator: SymmetricOperator, rows: Tensor, degree: int, high: float, seed: int) -> Tensor:
    """A random block orthogonal to ``rows`` after a polynomial of a degree that stays in [−1, 1] from ``high`` on.

    What round-off leaves of the rows, which lie below, is taken out now and then.
    """
    bound, edge = float(operator.bound), torch.full_like(operator.bound, high)
    fastest = math.acosh(1 + 2 * high / (bound - high))  # growth at zero
    every = max(1, int(-0.4 * math.log(torch.finfo(rows.dtype).eps) / fastest))

    def project(x: Tensor) -> Tensor:
        return torch.addmm(x[0], rows.mT, rows @ x[0], alpha=-1)[None]

    x = _orthogonal(_noise(operator, FILTERED, seed)[0], rows)[None]
    degrees = torch.full_like(operator.bound, degree, dtype=torch.int64)
    return _orthogonal(operator.chebyshev(x, degrees, edge, operator.bound, project, every)[0], rows)


def _orthogonal(x: Tensor, rows: Tensor) -> Tensor:
    """Orthonormal columns that span ``x`` in the complement of orthonormal rows."""
    for _ in range(2):
        x = torch.addmm(x, rows.mT, rows @ x, alpha=-1)
        x = torch.linalg.qr(x)[0]
    return x


def _one_by_one(
    solve: Callable[[_Request], RitzPairs],
    operator: SymmetricOperator,
    k: int,
    columns: int,
    tolerance: float,
    start: RitzPairs | None,
    progress: Progress | None,
) -> RitzPairs:
    """A solver of one graph on each of a batch: at least min(columns, nodes of positive degree) pairs."""
    answers = []
    columns = min(columns, operator.fewest_active)
    for b, item in enumerate(operator.items()):
        basis, dimension = item.null_vectors(columns)
        c = min(int(dimension), columns)
        null = basis[0, :, :c]
        hierarchy = start.hierarchies[b] if start is not None and start.hierarchies else None
        first = None if start is None else start.vectors[b]
        request = _Request(item, null, k - c, columns - c, tolerance, first, hierarchy, progress)
        # With more components than wanted pairs the next value is 0 too, and nothing is left to solve.
        answers.append(
            request.answer(null.new_empty(0), null[:, :0], 0, True) if c == columns or c > k else solve(request)
        )
    width = min(len(pairs.values[0]) for pairs in answers)
    return RitzPairs(
        torch.cat([pairs.values[:, :width] for pairs in answers]),
        torch.cat([pairs.vectors[..., :width] for pairs in answers]),
        max(pairs.iterations for pairs in answers),
        torch.cat([pairs.finished for pairs in answers]),
        tuple(hierarchy for pairs in answers for hierarchy in pairs.hierarchies),
    )


class _Coarse:
    """The operator of a level of a hierarchy; products in the precision of the level."""

    def __init__(self, level: Level) -> None:
        self.level = level

    def matmul(self, y: Tensor) -> Tensor:
        matrix, ratio = self.level.matrix, self.level.ratio
        return ratio * (matrix @ (ratio * y).to(matrix.dtype)).to(y.dtype)

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        return x.mT @ y

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum(-2)


def _nested_iteration(hierarchy: Hierarchy, request: _Request, seed: int) -> Tensor:
    """A first block for the finest level: solved on the coarsest, then taken from level to level and improved."""
    columns, wanted = request.null.shape[1] + request.columns, request.null.shape[1] + request.wanted
    generator = torch.Generator(request.null.device).manual_seed(seed)
    level = hierarchy.levels[-1]
    dense = level.ratio * level.matrix.to_dense() * level.ratio.mT
    x = _small_eigh(dense)[1][:, :columns]
    for depth in reversed(range(len(hierarchy.levels) - 1)):
        coarser, level = level, hierarchy.levels[depth]
        assert level.prolongation is not None
        inverse_ratio = torch.where(level.ratio > 0, 1 / level.ratio, 0)
        x = inverse_ratio * (level.prolongation @ (coarser.ratio * x).to(level.prolongation.dtype)).double()
        if depth > 0:
            shape = (len(x), columns - x.shape[1])
            noise = torch.randn(shape, dtype=x.dtype, device=x.device, generator=generator)
            x = _improved(hierarchy, depth, torch.cat([x, noise * (level.ratio > 0)], 1), wanted)
    return x


def _without_null_vectors(operator: SymmetricOperator, x: Tensor, request: _Request) -> Tensor:
    """Directions of ``x`` that the exact null vectors do not have already, at most as many as there are columns."""
    x = x * operator.active[:, None]
    x = torch.addmm(x, request.null, operator.inner(request.null, x), alpha=-1)
    values, turn = _small_eigh(operator.inner(x, x))
    new = (values > 0.1 * values[-1]).nonzero().flatten()[-request.columns :]
    return x @ turn[:, new]


def _improved(hierarchy: Hierarchy, depth: int, x: Tensor, wanted: int) -> Tensor:
    """A few iterations on a level: no better than the level approximates the finest one."""
    level = hierarchy.levels[depth]
    inverse_ratio = torch.where(level.ratio > 0, 1 / level.ratio, 0)

    def shortfall(iteration: int, values: Tensor, residuals: Tensor) -> tuple[float, float]:
        if len(values) == 0:
            return 0.0, 0.0
        allowed = LEVEL_ACCURACY * float(values[min(wanted, len(values) - 1)].clamp_min(torch.finfo(values.dtype).tiny))
        return float(residuals[:wanted].max()) / allowed, allowed

    def precondition(r: Tensor) -> Tensor:
        return hierarchy.inverse(inverse_ratio, r, depth)

    return _lobpcg(_Coarse(level), x, x[:, :0], precondition, shortfall, LEVEL_ITERATIONS)[1]


class _Operator(Protocol):
    """What the iterations themselves need of an operator."""

    def matmul(self, y: Tensor) -> Tensor: ...

    def inner(self, x: Tensor, y: Tensor) -> Tensor: ...

    def dots(self, x: Tensor, y: Tensor) -> Tensor: ...


def _lobpcg(
    operator: _Operator,
    x: Tensor,
    null: Tensor,
    precondition: Callable[[Tensor], Tensor] | None,
    shortfall: Callable[[int, Tensor, Tensor], tuple[float, float]],
    limit: int,
) -> tuple[Tensor, Tensor, int, bool]:
    """Ritz values and vectors from the block ``x``, iterations done, and whether there is no shortfall left."""
    xp = _basis(operator, x, null)
    if (lost := x.shape[1] - xp.shape[1]) > 0:  # dependent columns are replaced: the answer is to have them all
        generator = torch.Generator(x.device).manual_seed(lost)
        noise = torch.randn(len(x), lost, dtype=x.dtype, device=x.device, generator=generator)
        xp = torch.cat([xp, _basis(operator, noise * (x != 0).any(1, keepdim=True), null, xp)], 1)
    axp, m = operator.matmul(xp), xp.shape[1]
    values, turn = _small_eigh(operator.inner(xp, axp))
    xp, axp, projected = xp @ turn, axp @ turn, torch.diag(values)
    patience = limit if precondition is None else STAGNATION
    best, left = math.inf, patience
    for iteration in range(limit + 1):
        x = xp[:, :m]
        r, norms = _residual(operator, x, axp[:, :m], values)
        missing, allowed = shortfall(iteration, values, norms)
        if missing <= 1:
            # The image A X was updated from step to step: see whether it is still true.
            axp[:, :m] = operator.matmul(x)
            r, norms = _residual(operator, x, axp[:, :m], values)
            missing, allowed = shortfall(iteration, values, norms)
            if missing <= 1:
                return values, x, iteration, True
        best, left = (missing, patience) if missing < 0.9 * best else (best, left - 1)
        if iteration == limit or left == 0:
            break
        moving = norms > 0.3 * allowed
        r = _columns(r, moving)
        w = _basis(operator, r if precondition is None else precondition(r), null, xp)
        if w.shape[1] == 0:
            break
        aw, q = operator.matmul(w), xp.shape[1]
        cross = operator.inner(xp, aw)
        whole = torch.cat([torch.cat([projected, cross], 1), torch.cat([cross.mT, operator.inner(w, aw)], 1)])
        ritz, c = _small_eigh(whole)
        values, cx = ritz[:m], c[:, :m]
        cp = cx[:, moving]
        cp[:m] = 0
        c = torch.cat([cx, _small_basis(cp, cx)], 1)
        xp, axp, projected = (xp @ c[:q]).addmm_(w, c[q:]), (axp @ c[:q]).addmm_(aw, c[q:]), c.mT @ whole @ c
    return values, xp[:, :m], iteration, False


def _columns(x: Tensor, chosen: Tensor) -> Tensor:
    return x if chosen.all() else x[:, chosen]


def _residual(operator: _Operator, x: Tensor, ax: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """A x − x λ and its norms."""
    r = torch.addcmul(ax, x, values, value=-1)
    return r, operator.dots(r, r).sqrt()


def _small_eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh((a + a.mT) / 2)
    return values, vectors


def _basis(operator: _Operator, w: Tensor, *others: Tensor) -> Tensor:
    """An orthonormal basis of the span of ``w`` orthogonal to ``others``, without the directions that are round-off."""
    eps = torch.finfo(w.dtype).eps
    for drop in (50 * eps, eps ** (2 / 3)):
        before = operator.dots(w, w)
        for q in others:
            w = torch.addmm(w, q, operator.inner(q, w), alpha=-1)
        gram = operator.inner(w, w)
        size = gram.diagonal()
        some = size > torch.finfo(w.dtype).tiny
        if not some.any():
            return w[:, some]
        scale = torch.where(some, size, torch.inf).rsqrt()
        values, turn = _small_eigh(scale[:, None] * gram * scale)
        keep = values > drop * values[-1]
        w = w @ (scale[:, None] * turn[:, keep] * values[keep].rsqrt())
        # Where next to nothing cancelled, once is enough.
        if values[0] > 0.1 * values[-1] and (size > 0.1 * before).all():
            break
    return w


def _small_basis(c: Tensor, against: Tensor) -> Tensor:
    """Orthonormal columns that span ``c`` orthogonally to the orthonormal ``against``."""
    for _ in range(2):
        c = c - against @ (against.mT @ c)
        u, size, _ = torch.linalg.svd(c, full_matrices=False)
        c = u[:, size > 1e3 * torch.finfo(c.dtype).eps * max(float(size[0]), 1e-3)] if len(size) else c
    return c


def _orthonormalized(operator: SymmetricOperator, x: Tensor) -> Tensor:
    """An orthonormal basis of the span of ``x`` from its Gram matrix, twice for full accuracy.

    By Cholesky, or where columns are dependent to working precision by eigenvectors (SVQB, Stathopoulos & Wu 2002).
    """
    info = torch.finfo(x.dtype)
    for _ in range(2):
        gram = operator.inner(x, x)
        size = gram.diagonal(dim1=-2, dim2=-1).clamp_min(info.tiny).rsqrt()
        gram = size[:, :, None] * gram * size[:, None, :]
        factor, failed = torch.linalg.cholesky_ex(gram)
        if failed.any() or factor.diagonal(dim1=-2, dim2=-1).amin() < 10 * info.eps**0.5:
            weight, turn = torch.linalg.eigh(gram)
            x = x @ (size[:, :, None] * turn * weight.clamp_min(info.eps).rsqrt()[:, None, :])
        else:
            eye = torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
            inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
            x = x @ (size[:, :, None] * inverse.mT)
    return x


def _rayleigh_ritz(operator: SymmetricOperator, x: Tensor, null: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values ``(B, m)``, vectors ``(B, N, m)`` and residual norms ``(B, m)`` of the span of ``x``.

    The known null vectors count as below the spectrum, so that no small eigenvalue mixes with them.
    """
    x = _orthonormalized(operator, x)
    ax = operator.matmul(x.reshape(*operator.graph.shape, -1)).reshape(x.shape)
    projected, overlap = operator.inner(x, ax), operator.inner(null, x)
    projected = (projected + projected.mT) / 2 - operator.bound[:, None, None] * (overlap.mT @ overlap)
    values, turn = torch.linalg.eigh(projected)
    values = values.clamp_min(0)
    x, ax = x @ turn, ax @ turn
    residual = ax - values[:, None, :] * x
    return values, x, operator.dots(residual, residual).sqrt()
