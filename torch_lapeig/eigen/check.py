"""Checks of a solver's answer: the null space in closed form, residuals, eigengap and status."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.solver import RitzPairs, Solver, allowed_residual
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.threads import together


class Problem(NamedTuple):
    """Request for the ``k`` smallest pairs of an operator."""

    operator: Operator
    k: int
    tolerance: float  # maximum residual, relative to the gap after the k-th value: `allowed_residual`
    has_guards: bool = True  # whether the answer keeps the guard vectors, which only derivatives need
    origin: Tensor | None = None  # (B,), what 0 of the given matrix became

    def part(self, graphs: slice) -> Problem:
        """Return the request for some graphs of the batch."""
        assert isinstance(self.operator, SymmetricOperator)
        origin = None if self.origin is None else self.origin[graphs]
        return self._replace(operator=self.operator.part(graphs), origin=origin)


@dataclass(frozen=True, eq=False)
class Solution:
    """Checked eigenpairs of a symmetric operator, batched; guards are further, approximate pairs."""

    operator: Operator
    solver: Solver
    ritz: RitzPairs
    values: Tensor  # (B, k)
    vectors: Tensor  # (B, N, k)
    present: Tensor  # (B, k), False where a graph lacks a pair: the vector is zero, the value above the spectrum
    guard_values: Tensor  # (B, g)
    guard_vectors: Tensor  # (B, N, g)
    residuals: Tensor  # (B, k)
    gap: Tensor  # (B,)
    converged: Tensor  # (B,)
    resolved: Tensor  # (B,), see `_resolved`
    faint: Tensor  # (B,), whether a second value beside a known null vector is 0, or nearly so
    scale: Tensor  # (B,), the error of an eigenvalue over eps
    sigma: float | None = None  # of an inverse (A − σ M)⁻¹ inside the spectrum, to which the pairs are the nearest

    @classmethod
    def of(cls, operator: Operator, solver: Solver, ritz: RitzPairs, k: int, **facts: Any) -> Solution:
        """Return the first k pairs of a solver, beside guards, with facts; by default all are there and resolved."""
        values, guard_values = ritz.values.tensor_split([k], 1)
        vectors, guard_vectors = ritz.vectors.tensor_split([k], 2)
        every = torch.ones_like(values, dtype=torch.bool)
        parts: dict[str, Any] = {"values": values, "vectors": vectors, "guard_values": guard_values}
        parts |= {"guard_vectors": guard_vectors, "present": every, "resolved": every[:, 0], "faint": ~every[:, 0]}
        return cls(operator, solver, ritz, **parts | facts)

    def part(self, graphs: slice) -> Solution:
        """Return the pairs of some graphs of the batch, one after the other."""
        assert isinstance(self.operator, SymmetricOperator)
        fields = {name: getattr(self, name)[graphs] for name in FIELDS_OF_GRAPHS}
        return dataclasses.replace(self, operator=self.operator.part(graphs), ritz=self.ritz.part(graphs), **fields)

    @cached_property
    def is_converged(self) -> bool:
        """Return whether the pairs of all graphs have converged."""
        return self._flags[0]

    @property
    def is_resolved(self) -> bool:
        """Return whether round-off hides nothing in the pairs of all graphs."""
        return self._flags[1]

    @property
    def has_faint(self) -> bool:
        """Return whether a graph of the batch has ``faint`` values."""
        return self._flags[2]

    @cached_property
    def _flags(self) -> list[bool]:
        return precision.synchronise(self.converged.all(), self.resolved.all(), self.faint.any())

    def times(self, unit: Tensor) -> Solution:
        """Return the pairs of the operator times a number for each graph ``(B,)``."""
        values, residuals = self.values * unit[:, None], self.residuals * unit[:, None]
        return dataclasses.replace(
            self, values=values, residuals=residuals, gap=self.gap * unit, scale=self.scale * unit
        )

    @property
    def is_whole(self) -> bool:
        """Return whether vectors and guards span the whole space."""
        columns, operator = self.vectors.shape[2] + self.guard_vectors.shape[2], self.operator
        return columns >= operator.all_nodes or columns >= int(operator.active_count.max())


FIELDS_OF_GRAPHS = [field.name for field in dataclasses.fields(Solution) if field.type == "Tensor"]


def check_answer(problem: Problem, solver: Solver, ritz: RitzPairs) -> Solution:
    """Check a solver's pairs: null space in closed form, float64 Rayleigh quotients, residuals, gap and status."""
    operator = problem.operator
    parts = operator.parts(problem.k)
    if len(parts) == 1:
        return _checked(problem, solver, ritz)
    assert isinstance(operator, SymmetricOperator)
    problems = [problem.part(graphs) for graphs in parts]
    found = together([partial(_checked, one, solver, ritz.part(p)) for one, p in zip(problems, parts, strict=True)])
    fields: Any = {name: torch.cat([getattr(part, name) for part in found]) for name in FIELDS_OF_GRAPHS}
    return Solution(operator=operator, solver=solver, ritz=ritz, **fields)


def _checked(problem: Problem, solver: Solver, ritz: RitzPairs) -> Solution:
    """Return the checked pairs of a whole batch, or of a part of one."""
    operator, k = problem.operator, problem.k
    # Guards are handled separately, so that the wanted vectors are bitwise equal with guards and without.
    guard_vectors = ritz.vectors[..., :0]
    if problem.has_guards:
        guard_vectors = _with_exact_null_space(operator, ritz.vectors[..., k:], k)
        if operator.fewest_active < max(k, operator.all_nodes):  # solvers leave round-off at inactive nodes
            guard_vectors = guard_vectors * operator.active[..., None]
    is_whole = operator.fewest_active >= k
    present = ritz.values.new_ones((len(ritz.values), k), dtype=torch.bool)
    if not is_whole:
        present = torch.arange(k, device=guard_vectors.device) < operator.active_count[:, None]
    vectors, values, residuals, skewness = _measured(operator, ritz, present)
    if not is_whole:
        values = torch.where(present, values, operator.above[:, None].to(values))
    # Values must ascend, and round-off may exchange neighbours.
    quotients, (values, order) = values, values.sort(dim=1, stable=True)
    if vectors.device.type != "cpu" or not torch.equal(values, quotients):
        vectors, residuals = vectors.gather(2, order[:, None, :].expand_as(vectors)), residuals.gather(1, order)
    guard_values = ritz.values[:, k:]
    if operator.most_null > k:
        null = torch.arange(k, ritz.values.shape[1], device=vectors.device) < operator.nullity[:, None]
        guard_values = guard_values.masked_fill(null, 0)
    # λ_{k+1} − λ_k; infinite where there are only k pairs.
    following = guard_values[:, 0] if guard_values.shape[1] else values[:, -1]
    gap = (following - values[:, -1]).clamp_min(0).masked_fill(operator.active_count <= k, torch.inf)
    allowed = allowed_residual(problem.tolerance, gap.masked_fill(gap.isinf(), 0), operator.round_off)
    is_orthonormal = skewness <= math.sqrt(torch.finfo(values.dtype).eps)
    every = torch.cat([values, guard_values], 1)
    is_faint = every[:, 1:2] < torch.finfo(every.dtype).eps ** 0.5 * operator.bound[:, None]
    converged = ritz.finished & (residuals.amax(1) <= allowed) & is_orthonormal
    return Solution.of(
        operator,
        solver,
        ritz,
        k,
        values=values,
        vectors=vectors,
        present=present,
        guard_values=guard_values,
        guard_vectors=guard_vectors,
        residuals=residuals,
        gap=gap,
        converged=converged,
        resolved=_resolved(problem, every[:, : k + 1], torch.where(converged, residuals.amax(1), 0), gap),
        faint=is_faint.any(1) & (operator.nullity > 0),
        scale=operator.scale.to(values),
    )


def _resolved(problem: Problem, values: Tensor, residual: Tensor, gap: Tensor) -> Tensor:
    """Return where round-off is far below the range of the first k + 1 ``values``, or of all, bool ``(B,)``."""
    # A solve knows eigenvalues to some eps ‖A‖: below, mixtures of eigenvectors have small residuals, too.
    operator, k = problem.operator, problem.k
    every = torch.nn.functional.pad(values, (0, k + 1 - values.shape[1]), value=torch.inf)
    eps = torch.finfo(operator.dtype).eps
    # A residual that the tolerance allows is small beside the gap.
    allowed = problem.tolerance * gap.masked_fill(gap.isinf(), 0)
    floor = torch.where(residual <= allowed, 0, 10 * residual).maximum(ROUNDOFF_UNITS * eps * operator.scale)
    # One value of round-off beside known null vectors has a determined vector; with a second one, either may be any
    # mixture. Only of affinities is the whole null space known. Of other matrices equal values are resolved where
    # round-off is small beside them.
    known = operator.nullity
    if operator.of_affinities:
        second = every.gather(1, (known + 1).clamp_max(k)[:, None])[:, 0]
        return (second > floor) | (known >= k)
    following = every[:, k] if problem.origin is None else every[:, k] - problem.origin
    are_equal = (floor <= math.sqrt(eps) * following.abs()) | (residual == 0)  # without a residual pairs are exact
    return (every[:, k] - every[:, 0] > floor) | are_equal | (known >= k)


ROUNDOFF_UNITS = 8  # error of an eigenvalue over eps ‖A‖, at most


def _measured(operator: Operator, ritz: RitzPairs, present: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return vectors with exact null vectors, Rayleigh quotients, residuals, and the largest entry of VᵀV − I."""
    k = present.shape[1]
    vectors = _with_exact_null_space(operator, ritz.vectors[..., :k], 0)
    if operator.fewest_active < max(k, operator.all_nodes):
        vectors = vectors * (operator.active[..., None] & present[:, None, :])
    vectors = vectors * operator.signs(vectors)
    gram = operator.inner(vectors, vectors)
    null = torch.arange(k, device=vectors.device) < operator.nullity[:, None]
    # The quotient is computed as a correction of the solver's value. In one long sum the rounding of equal numbers,
    # which vectors of symmetric graphs have, would add up.
    start = torch.where(present & ~null, ritz.values[:, :k], 0)
    rest = torch.addcmul(operator.matmul(vectors), vectors, start[:, None, :], value=-1)
    squares = torch.where(present, gram.diagonal(dim1=1, dim2=2).double(), 1)
    quotients = start + operator.dots(vectors.double(), rest.double()) / squares
    # Rounding of the entries may make a quotient slightly negative: 0 is returned, with the residual of the quotient.
    # A more negative quotient is returned as 0 with the residual of 0, which shows the error.
    is_negative = quotients < -operator.rounding_of_entries[:, None]
    quotients = torch.where(is_negative, 0, quotients).masked_fill(null, 0).to(vectors.dtype)
    values = torch.where(present, quotients, operator.above[:, None].to(quotients))
    residuals = norms(operator, torch.addcmul(rest, vectors, (values - start)[:, None, :], value=-1))
    skewness = (gram - torch.diag_embed(present.to(gram.dtype))).abs().amax((1, 2))
    return vectors, quotients.clamp_min(0), residuals, skewness


def norms(operator: Operator, x: Tensor) -> Tensor:
    """Return the norms ``(B, m)`` of the columns of ``(B, N, m)``."""
    return operator.dots(x, x).sqrt()


def report_failure(solution: Solution, on_failure: str) -> None:
    """Warn or raise, with the largest residual and advice."""
    failed = ~solution.converged
    residuals = torch.where(failed, solution.residuals.amax(1).nan_to_num(torch.inf), -1)
    worst = int(residuals.argmax())
    operator, x = solution.operator, solution.vectors
    if bool((operator.dots(x, operator.matmul(x)) < -operator.round_off[:, None]).any()):
        advice = "an operator with negative eigenvalues goes in as a matrix, or a FunctionOperator without a bound"
    elif isinstance(solution.solver, Eigh):
        advice = "dense arithmetic may not resolve the entries: rescale or prune the weights"
    elif not isinstance(operator, SymmetricOperator):
        advice = "use Lobpcg(preconditioner=...) with an approximate inverse, more iterations, or a larger tolerance"
    else:
        advice = "use Eigh() or the default solver, more iterations, or a larger tolerance"
    message = (
        f"{solution.solver} has not converged after {solution.ritz.iterations} iterations: "
        f"{int(failed.sum())} of {len(failed)} graphs, largest residual "
        f"{solution.residuals[worst].max():.2e} with a gap of {solution.gap[worst]:.2e}; {advice}"
    )
    _say(message, checks.ConvergenceWarning, on_failure)


def report_unresolved(solution: Solution, values: Tensor, on_failure: str) -> None:
    """Warn or raise where round-off hides differences of ``values`` ``(B, k)``."""
    hidden, bound = ~solution.resolved, solution.scale
    b = int(hidden.int().argmax())
    round_off = ROUNDOFF_UNITS * torch.finfo(solution.operator.dtype).eps * float(bound[b])
    first = ", ".join(f"{value:.1e}" for value in values[b, :4])
    message = (
        f"round-off hides the differences of the wanted eigenvalues in {int(hidden.sum())} of {len(hidden)} graphs: "
        f"they begin with {first}, and the round-off of a matrix of norm {bound[b]:.1e} is up to {round_off:.0e}. "
        "Their vectors may be any mixture of each other; for a graph use a larger bandwidth or more neighbours, for a "
        "mass raise its smallest entries, for a matrix with k or more equal values ask for more pairs"
    )
    _say(message, checks.ResolutionWarning, on_failure)


def _say(message: str, category: type[Warning], on_failure: str) -> None:
    if on_failure == "raise":
        raise checks.ConvergenceError(message)
    checks.warn(message, category)


def _with_exact_null_space(operator: Operator, vectors: Tensor, first: int) -> Tensor:
    """Return vectors ``(B, N, m)`` of the pairs from ``first`` on, with exact null vectors and the others outside."""
    c = min(operator.most_null, first + vectors.shape[2])
    null, own = operator.null_vectors(c), max(c - first, 0)
    rest = vectors - null @ operator.inner(null, vectors)
    rest = rest / norms(operator, rest)[:, None, :].clamp_min(torch.finfo(rest.dtype).tiny)
    is_known = torch.arange(first, first + own, device=vectors.device) < operator.nullity[:, None]
    return torch.cat([torch.where(is_known[:, None, :], null[..., first:], rest[..., :own]), rest[..., own:]], 2)
