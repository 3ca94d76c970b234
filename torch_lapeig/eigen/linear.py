"""Linear systems A Z = B of symmetric positive definite matrices on the edges of a graph, with gradients.

Their derivatives come from `torch_lapeig.eigen.gradient.rule.Outside` with no eigenvectors to project out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lapeig.eigen.gradient.cg import Map, conjugate_gradients
from torch_lapeig.eigen.gradient.rule import Outside
from torch_lapeig.eigen.problem import in_unit
from torch_lapeig.eigen.solvers.multigrid import Multigrid, SmoothedAggregation
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.tuning import DENSE_SOLVE

SOLVE_TOLERANCE = 1e-12  # residual relative to the right-hand side, near the limit of float64
EASY_PRODUCTS = 150  # products before a preconditioner is built: about the cost of building multigrid
MOST_PRODUCTS = 3000  # maximum products of the last candidate


def solve_linear(operator: SymmetricOperator, rhs: Tensor) -> Tensor:
    """Return Z of A Z = B by preconditioned conjugate gradients, differentiable in A's entries and in B, at any order.

    A small or dense matrix is factorised. Otherwise conjugate gradients with 150 products show whether the system is
    easy. If it is not, and A is made of affinities with an excess on the diagonal (`SymmetricOperator.excess`),
    multigrid preconditions it.

    Args:
        operator: A, positive definite, float64; gradients flow to its values and its diagonal, in forward mode, too.
        rhs: B, ``(N, m)`` or ``(B, N, m)``, float64; each column of each graph is a system of its own.

    Returns:
        Z of the shape of B; with a `ConvergenceWarning` where the residual of a column is above 1e-12 of its norm and
        above round-off.

    Raises:
        TypeError: no `SymmetricOperator`, not float64. ValueError: another shape, known null vectors.

    >>> from torch_lapeig.graph.pattern import DensePattern
    >>> matrix = torch.tensor([[0.0, 0.5], [0.5, 0.0]], dtype=torch.float64)
    >>> operator = SymmetricOperator(
    ...     DensePattern((2,)), matrix, torch.ones(2, dtype=torch.float64)
    ... )
    >>> solve_linear(operator, torch.tensor([[0.75], [0.0]], dtype=torch.float64))
    tensor([[1.0000],
            [0.5000]], dtype=torch.float64)
    """
    expected = "a positive definite SymmetricOperator; a Laplacian is singular: torch.linalg.pinv(L.to_dense()) @ rhs"
    checks.check_instance(operator, "operator", SymmetricOperator, expected)
    if operator.most_null:
        raise ValueError(f"operator must be {expected}, got {operator.most_null} null vectors")
    checks.check_tensor(rhs, "rhs")
    if operator.dtype != torch.float64 or rhs.dtype != torch.float64:
        raise TypeError(f"operator and rhs must be float64, got {operator.dtype} and {rhs.dtype}; use .double()")
    if rhs.ndim != len(operator.shape) + 1 or tuple(rhs.shape[:-1]) != tuple(operator.shape):
        raise ValueError(f"rhs must have shape {(*operator.shape, 'm')}, got {tuple(rhs.shape)}")
    system = _System(*in_unit(operator.frozen())[:2])
    b, n, m = operator.batch_size, operator.num_nodes, rhs.shape[-1]
    nothing = rhs.new_zeros(b, 0, 0), rhs.new_zeros(b, n, 0)  # Λ and V
    z: Tensor = Outside.apply(system, *nothing, -rhs.reshape(b, n, m), *operator.parameters)
    return z.reshape(rhs.shape)


@dataclass(frozen=True, eq=False)
class _System:
    """Matrix A times ``factor`` ``(B,)``, None for 1, and its preconditioners, which the backward pass reuses."""

    operator: SymmetricOperator
    factor: Tensor | None

    @torch.no_grad()
    def solve(self, g: Tensor) -> Tensor:
        """Return Z of A Z = −G: candidates continue from each other's best iterate until all columns are solved."""
        operator, target = self.operator, -g
        # Scale by powers of two, which is exact, so that columns of any size are solved alike.
        size = checks.power_of_two(target, (1,))
        target = target / size
        z, rest = torch.zeros_like(target), target
        enough = SOLVE_TOLERANCE * operator.dots(target, target).sqrt()
        round_off = 8 * torch.finfo(g.dtype).eps * operator.bound[:, None]  # of a solution of length 1

        def allowed(change: Tensor) -> Tensor:
            whole = z + change
            return torch.maximum(enough, round_off * operator.dots(whole, whole).sqrt())

        for number, (precondition, limit) in enumerate(self._candidates()):
            # In an easy system residuals stay above round-off, and testing for round-off takes a third of the time.
            goal = allowed if number else lambda _: enough
            change, left = conjugate_gradients(operator.matmul, precondition, rest, operator.dots, goal, limit)
            solved = (left <= allowed(change)) | ~left.isfinite()
            z = z + change
            if solved.all():
                break
            rest = target - operator.matmul(z)
        else:
            checks.warn(
                f"the linear solve has not reached its tolerance for {int((~solved).sum())} of {solved.numel()} "
                f"columns (largest residual {float(left[~solved].max()):.1e}): they are inexact; check "
                "that the matrix is positive definite, rescale it, or prune its weights",
                checks.ConvergenceWarning,
            )
        # A NaN of the loss is passed on; it is no failure of the solve.
        z = z * size if self.factor is None else z * size * self.factor[:, None, None]
        return torch.where(enough.isfinite()[:, None, :], z, torch.nan)

    def _candidates(self) -> Iterator[tuple[Map, int]]:
        """Yield preconditioners and the maximum iterations of each, the cheapest first."""
        shape, is_sparse = self.operator.shape, self.operator.is_sparse
        if self.operator.batch_size * shape[-1] ** 3 <= DENSE_SOLVE and self._cholesky is not None:
            yield self._cholesky, EASY_PRODUCTS
        yield self._scaling, EASY_PRODUCTS
        better = self._multigrid if is_sparse else self._cholesky
        if better is not None:
            yield better, 2 * EASY_PRODUCTS
        yield self._scaling, MOST_PRODUCTS

    @cached_property
    def _scaling(self) -> Map:
        diagonal = self.operator.diagonal.detach().reshape(self.operator.batch_size, -1, 1)
        return (lambda r: r) if (diagonal == 1).all() else lambda r: r / diagonal

    @cached_property
    def _cholesky(self) -> Map | None:
        """Return the preconditioner by Cholesky factors of dense matrices; None if round-off makes one indefinite."""
        operator = self.operator
        n = operator.num_nodes
        factors, failed = torch.linalg.cholesky_ex(operator.to_dense().detach().reshape(-1, n, n))
        return None if failed.any() else lambda r: torch.cholesky_solve(r, factors)

    @cached_property
    def _multigrid(self) -> Map | None:
        """Return multigrid of all graphs of a batch as one; the diagonal preconditions nodes that are on no level."""
        if not self.operator.of_affinities or self.operator.null is None:
            return None
        cycle = SmoothedAggregation(single=False)(self.operator)
        if not isinstance(cycle, Multigrid):
            return None
        on_no_level = cycle.scale == 0

        def precondition(r: Tensor) -> Tensor:
            flat = r.reshape(len(on_no_level), -1)
            return torch.where(on_no_level, self._scaling(r).reshape(flat.shape), cycle(flat)).reshape(r.shape)

        return precondition
