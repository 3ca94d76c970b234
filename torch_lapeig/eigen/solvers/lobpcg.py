"""Locally optimal block conjugate gradients with a preconditioner."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers import blocks
from torch_lapeig.eigen.solvers.blocks import basis, to_device, to_host
from torch_lapeig.eigen.solvers.multigrid import SmoothedAggregation
from torch_lapeig.eigen.solvers.solver import Inverse, Preconditioner, Request, RitzPairs, check_options, one_by_one
from torch_lapeig.eigen.symmetric import entries_of
from torch_lapeig.support import checks
from torch_lapeig.support.progress import Progress

# Called with the number of an iteration, Ritz values and residuals; see ``Request.shortfall``.
Check = Callable[[int, Tensor, Tensor], tuple[float, float]]

WIDEST_BLOCK = 100  # columns for graphs with so many clusters that are hardly joined


@dataclass(frozen=True)
class Lobpcg:
    """Locally optimal block conjugate gradients with a multigrid preconditioner: for graphs of any size and condition.

    Knyazev 2001, with the orthonormal basis of [X, P, W] and the choice of P of Duersch, Shao, Yang & Gu 2018. The
    known null vectors are exact constraints; converged columns stay in X but are not improved any more (soft locking);
    columns of W that depend on the others to round-off are dropped.

    Args:
        guards: number of Ritz vectors beyond the wanted ones, at least 1; default max(4, k/4).
        max_iterations: maximum number of iterations.
        preconditioner: a `Preconditioner`, or None. `SparseFactors` suits other matrices. Multigrid that
            stops coarsening early counts as None.
        seed: of random columns.

    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> laplacian = Laplacian(KNN(8)(torch.rand(400, 2).double()))
    >>> bool(eigenpairs(laplacian, 4, Lobpcg(guards=6)).converged)
    True
    """

    guards: int | None = None
    max_iterations: int = 200
    preconditioner: Preconditioner | None = field(default_factory=SmoothedAggregation)
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, guards=1, max_iterations=0)
        if (value := self.preconditioner) is None:
            return
        expected = "None or a preconditioner such as SmoothedAggregation() or SparseFactors()"
        checks.check_function(value, "preconditioner", expected)
        try:
            inspect.signature(value).bind(None)
        except ValueError:  # a function of C without a signature
            return
        except TypeError as error:
            raise TypeError(
                f"preconditioner must be {expected}, called with an operator, got {checks.describe(value)} ({error})"
            ) from error

    def __call__(self, operator: Operator, k: int, tolerance: float, progress: Progress | None = None) -> RitzPairs:
        """Return ``k`` pairs and the guards, or as many as there are nodes of positive degree."""
        return one_by_one(self._solve, operator, k, tolerance, progress, self.guards)

    def _solve(self, request: Request) -> RitzPairs:
        inverse = None if self.preconditioner is None else self.preconditioner(request.operator)
        if inverse is not None:
            # A pair that the first block hardly contains grows as fast as residuals fall, and has appeared by a
            # residual of 1e-5. At a tolerance of 0.1, one in 3000 clouds of clusters lacked a pair.
            request = dataclasses.replace(request, tolerance=min(request.tolerance, 1e-5))
        if (near_null := getattr(inverse, "near_null", None)) is not None:
            # All vectors that a cycle enlarges alike must be in the block, which would converge to any of them.
            most = min(WIDEST_BLOCK, request.operator.fewest_active - request.null.shape[1])
            request = dataclasses.replace(request, columns=max(request.columns, min(near_null + 4, most)))
        x = request.operator.random(request.columns, self.seed)[0]
        found = lobpcg(request.operator, x, request.null, inverse, request.shortfall, self.max_iterations)
        return request.answer(*found, inverse)


@dataclass(frozen=True)
class TorchLobpcg:
    """`torch.lobpcg`, by its method "ortho", on the matrices of one graph after the other, in float64.

    Its iteration is that of Duersch, Shao, Yang & Gu 2018, here without a preconditioner, which torch ignores in this
    method. Null vectors are iterated with the others, and then replaced by the known ones.

    Args:
        max_iterations: maximum number of iterations, at least 1.
        seed: of random columns.

    >>> from torch_lapeig import eigenpairs
    >>> bool(eigenpairs(torch.arange(400.0).diag(), 4, TorchLobpcg()).converged)
    True
    """

    max_iterations: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, max_iterations=1)

    def __call__(self, operator: Operator, k: int, tolerance: float, progress: Progress | None = None) -> RitzPairs:
        """Return ``k`` pairs and guards of matrices of at least 3 (k + 1) nodes; raise ValueError for smaller ones."""
        return one_by_one(self._solve, operator, k, tolerance, progress)

    def _solve(self, request: Request) -> RitzPairs:
        operator, c, is_done = request.operator, request.null.shape[1], False
        n, least = operator.fewest_active, 3 * (c + request.wanted + 1)
        if n < least:
            raise ValueError(f"{self} must have at least {least} nodes for k={least // 3 - 1}, got {n}; use Eigh()")

        def check(worker: Any) -> None:
            nonlocal is_done
            values, norms = to_host(worker.E, torch.linalg.vector_norm(worker.R, dim=0))
            steps.append(worker.ivars["istep"])
            # torch computes no values in the first step. A tenth is left to the rounding of the last basis.
            is_done = request.shortfall(steps[-1], values[c:], norms[c:])[0] <= 0.9 and steps[-1] > 1
            worker.bvars["force_stop"] = is_done

        steps: list[int] = []
        matrix = entries_of(operator, self).to_matrix().double()
        x = operator.random(min(c + request.columns, n // 3), self.seed)[0].double()
        most, tracker = self.max_iterations, cast(Any, check)  # torch's types say None
        _, x = torch.lobpcg(matrix, X=x, niter=most, tol=1e-15, largest=False, tracker=tracker)
        # Columns stay as they were judged: another rotation would mix equal values of wanted columns and of guards.
        x = torch.linalg.qr(torch.cat([request.null, x[:, c:].to(request.null)], 1))[0][:, c:]
        return request.answer(operator.nodes.dots(x, operator.matmul(x)).cpu(), x, len(steps), is_done)


def lobpcg(
    operator: Operator, x: Tensor, null: Tensor, precondition: Inverse | None, shortfall: Check, limit: int
) -> tuple[Tensor, Tensor, int, bool]:
    """Return the Ritz pairs to which the block ``x`` converges, in at most ``limit`` iterations.

    The parts are the values ``(m,)`` on the host, the vectors ``(N, m)``, the iterations done, and whether all pairs
    have converged. It synchronises four times an iteration, twice of these in `basis`.
    """
    first = basis(operator.nodes, x, null)
    if (lost := x.shape[1] - first.shape[1]) > 0:  # random columns replace the dependent ones
        noise = operator.random(lost, lost).reshape(len(x), lost).to(x)
        first = torch.cat([first, basis(operator.nodes, noise, null, first)], 1)
    image, m = operator.matmul(first), first.shape[1]
    values, turn = operator.nodes.same_on_all_ranks(
        *blocks.symmetric_eigh(*to_host(operator.nodes.inner(first, image)))
    )
    projected, turn = torch.diag(values), to_device(turn, x)
    space, images = (x.new_empty(len(x), 2 * m) for _ in range(2))  # columns of X and directions of the last step
    room = torch.empty_like(image)
    xp, axp = torch.mm(first, turn, out=space[:, :m]), torch.mm(image, turn, out=images[:, :m])
    # Iterations without a decrease of the residual by a tenth after which a preconditioned iteration gives up.
    patience = limit if precondition is None else 30
    best, left, total = math.inf, patience, math.inf
    for iteration in range(limit + 1):
        x = xp[:, :m]
        for is_new in (iteration == 0, True):
            r, there = blocks.residual(operator, x, axp[:, :m], to_device(values, x), room)
            (norms,) = to_host(there)
            missing, allowed = shortfall(iteration, values, norms)
            if missing <= 1 and is_new:
                return values, x, iteration, True
            if missing > 1:
                break
            # The image A X was updated from step to step: compute it again to confirm convergence.
            axp[:, :m] = operator.matmul(x)
        moving = norms > 0.3 * allowed
        sum_now = float(values.sum())
        best = math.inf if sum_now < (1 - 1e-3) * total else best  # so large a decrease shows a new pair
        total = min(total, sum_now)
        best, left = (missing, patience) if missing < 0.9 * best else (best, left - 1)
        if iteration == limit or left == 0 or not moving.any():
            break
        some = r if moving.all() else r.index_select(1, to_device(moving.nonzero().flatten(), r))
        w = basis(operator.nodes, some if precondition is None else precondition(some), null, xp)
        if w.shape[1] == 0:
            break
        aw = operator.matmul(w)
        cross, own = to_host(operator.nodes.inner(xp, aw), operator.nodes.inner(w, aw))
        whole = torch.cat([torch.cat([projected, cross], 1), torch.cat([cross.mT, own], 1)])
        ritz, c = operator.nodes.same_on_all_ranks(*blocks.symmetric_eigh(whole))
        values, cx = ritz[:m], c[:, :m]
        cp = cx[:, moving]
        cp[:m] = 0
        c = torch.cat([cx, blocks.small_basis(operator, cp, cx)], 1)
        projected, c = c.mT @ whole @ c, to_device(c, x)
        q = xp.shape[1]
        xp, axp = blocks.matmul_into_(space, q, w, c), blocks.matmul_into_(images, q, aw, c)
    return values, xp[:, :m], iteration, False
