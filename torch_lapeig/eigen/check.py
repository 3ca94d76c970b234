"""Checks of a solver's answer: the null space in closed form, residuals, eigengap and status."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.solver import RitzPairs, Solver, fewest_active, most_null, parts_of_batch
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.threads import together


@dataclass(frozen=True, eq=False)
class Solution:
    """Checked eigenpairs of a symmetric operator, batched; guards are further, approximate pairs."""

    operator: Operator
    solver: Solver
    ritz: RitzPairs
    values: Tensor  # (B, k)
    vectors: Tensor  # (B, N, k)
    present: Tensor  # (B, k), False where a graph has no such pair: its vector is zero, its value above the spectrum
    guard_values: Tensor  # (B, g)
    guard_vectors: Tensor  # (B, N, g)
    residuals: Tensor  # (B, k)
    gap: Tensor  # (B,)
    converged: Tensor  # (B,)

    @property
    def symmetric(self) -> SymmetricOperator:
        """Return the operator of a solution that is differentiated: one with entries."""
        assert isinstance(self.operator, SymmetricOperator)
        return self.operator

    def part(self, graphs: slice) -> Solution:
        """Return the pairs of some graphs of the batch, one after the other."""
        of_graphs = {name: getattr(self, name)[graphs] for name in OF_GRAPHS}
        return dataclasses.replace(self, operator=self.symmetric.part(graphs), ritz=self.ritz.part(graphs), **of_graphs)

    @cached_property
    def is_converged(self) -> bool:
        """Return whether the pairs of all graphs have converged."""
        return checks.look(self.converged.all())[0]

    def times(self, unit: Tensor) -> Solution:
        """Return the pairs of the operator times a number for each graph ``(B,)``."""
        values, residuals = self.values * unit[:, None], self.residuals * unit[:, None]
        return dataclasses.replace(self, values=values, residuals=residuals, gap=self.gap * unit)

    @property
    def is_whole(self) -> bool:
        """Return whether vectors and guards span the whole space."""
        columns, operator = self.vectors.shape[2] + self.guard_vectors.shape[2], self.operator
        return columns >= operator.all_nodes or columns >= int(operator.active_count.max())


# Fields with a row for each graph.
OF_GRAPHS = [field.name for field in dataclasses.fields(Solution) if field.type == "Tensor"]


def check_answer(
    operator: Operator, k: int, solver: Solver, tolerance: float, ritz: RitzPairs, has_guards: bool = True
) -> Solution:
    """Check a solver's pairs: null space in closed form, float64 Rayleigh quotients, residuals, gap and status.

    On the processor a batch is checked part by part on torch's threads. The vectors of guards, which only derivatives
    need, may be left out.
    """
    parts = parts_of_batch(operator, k)
    if len(parts) == 1:
        return _checked(operator, k, solver, tolerance, ritz, has_guards)
    assert isinstance(operator, SymmetricOperator)
    tasks = [partial(_checked, operator.part(p), k, solver, tolerance, ritz.part(p), has_guards) for p in parts]
    found = together(tasks)
    fields = {name: torch.cat([getattr(part, name) for part in found]) for name in OF_GRAPHS}
    return Solution(operator=operator, solver=solver, ritz=ritz, **fields)


def _checked(
    operator: Operator, k: int, solver: Solver, tolerance: float, ritz: RitzPairs, has_guards: bool
) -> Solution:
    # The wanted vectors come first and alone, so that they are bitwise equal with guards and without.
    guard_vectors = ritz.vectors[..., :0]
    if has_guards:
        guard_vectors = _with_exact_null_space(operator, ritz.vectors[..., k:], k)
        if fewest_active(operator) < max(k, operator.all_nodes):  # no solve removes round-off there
            guard_vectors = guard_vectors * operator.active[..., None]
    is_whole = fewest_active(operator) >= k
    present = ritz.values.new_ones((len(ritz.values), k), dtype=torch.bool)
    if not is_whole:
        present = torch.arange(k, device=guard_vectors.device) < operator.active_count[:, None]
    vectors, quotients, residuals, skewness = _measured(operator, ritz, present)
    # Ascending is the contract, and round-off may exchange neighbours.
    if not is_whole:
        quotients = torch.where(present, quotients, operator.above[:, None].to(quotients))
    values, order = quotients.sort(dim=1, stable=True)
    if vectors.device.type != "cpu" or not torch.equal(values, quotients):
        vectors, residuals = vectors.gather(2, order[:, None, :].expand_as(vectors)), residuals.gather(1, order)
    guard_values = ritz.values[:, k:]
    if most_null(operator) > k:
        null = torch.arange(k, ritz.values.shape[1], device=vectors.device) < operator.nullity[:, None]
        guard_values = guard_values.masked_fill(null, 0)
    gap = _gap(operator, values, guard_values)
    allowed = torch.maximum(tolerance * gap.masked_fill(gap.isinf(), 0), operator.round_off)  # see `allowed_residual`
    is_sound = skewness <= math.sqrt(torch.finfo(values.dtype).eps)
    return Solution(
        operator=operator,
        solver=solver,
        ritz=ritz,
        values=values,
        vectors=vectors,
        present=present,
        guard_values=guard_values,
        guard_vectors=guard_vectors,
        residuals=residuals,
        gap=gap,
        converged=ritz.finished & (residuals.amax(1) <= allowed) & is_sound,
    )


def _measured(operator: Operator, ritz: RitzPairs, present: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the vectors of the pairs, their quotients and residuals ``(B, k)``, and their skewness ``(B,)``."""
    k = present.shape[1]
    vectors = _with_exact_null_space(operator, ritz.vectors[..., :k], 0)
    if fewest_active(operator) < max(k, operator.all_nodes):
        vectors = vectors * (operator.active[..., None] & present[:, None, :])
    vectors = vectors * operator.signs(vectors)
    gram = operator.inner(vectors, vectors)
    null = torch.arange(k, device=vectors.device) < operator.nullity[:, None]
    # The quotient is corrected from the solver's value: of large numbers that repeat, as in vectors of symmetric
    # graphs, the rounding of one long sum would add up.
    start = torch.where(present & ~null, ritz.values[:, :k], 0)
    rest = torch.addcmul(operator.matmul(vectors), vectors, start[:, None, :], value=-1)
    squares = torch.where(present, gram.diagonal(dim1=1, dim2=2).double(), 1)
    quotients = start + operator.dots(vectors.double(), rest.double()) / squares
    # A value that rounding of the entries has made negative stands for 0, and has the residual of what it is.
    quotients = (
        torch.where(quotients < -operator.rounding[:, None], 0, quotients).masked_fill(null, 0).to(vectors.dtype)
    )
    values = torch.where(present, quotients, operator.above[:, None].to(quotients))
    residuals = norms(operator, torch.addcmul(rest, vectors, (values - start)[:, None, :], value=-1))
    skewness = (gram - torch.diag_embed(present.to(gram.dtype))).abs().amax((1, 2))
    return vectors, quotients.clamp_min(0), residuals, skewness


def residual_norms(operator: Operator, values: Tensor, vectors: Tensor) -> Tensor:
    """Return ‖A v − λ v‖ ``(B, k)``."""
    return norms(operator, operator.matmul(vectors) - values[:, None, :] * vectors)


def norms(operator: Operator, x: Tensor) -> Tensor:
    """Return the norms ``(B, m)`` of the columns of ``(B, N, m)``."""
    return operator.dots(x, x).sqrt()


def report_failure(solution: Solution, on_failure: str) -> None:
    """Warn or raise, with the largest residual and advice."""
    failed = ~solution.converged
    residuals = torch.where(failed, solution.residuals.amax(1).nan_to_num(torch.inf), -1)
    worst = int(residuals.argmax())
    if isinstance(solution.solver, Eigh):
        advice = "the entries may be beyond what dense arithmetic resolves: rescale or prune the weights"
    else:
        advice = "use Eigh() or the default solver, more iterations, or a larger tolerance"
    message = (
        f"{solution.solver} has not converged after {solution.ritz.iterations} iterations: "
        f"{int(failed.sum())} of {len(failed)} graphs, largest residual "
        f"{solution.residuals[worst].max():.2e} with a gap of {solution.gap[worst]:.2e}; {advice}"
    )
    if on_failure == "raise":
        raise checks.ConvergenceError(message)
    checks.warn(message, checks.ConvergenceWarning)


def _gap(operator: Operator, values: Tensor, guard_values: Tensor) -> Tensor:
    """Return λ_{k+1} − λ_k ``(B,)``; infinite where there are only k pairs."""
    k = values.shape[1]
    following = guard_values[:, 0] if guard_values.shape[1] else values[:, -1]
    gap = (following - values[:, -1]).clamp_min(0)
    return gap if fewest_active(operator) > k else gap.masked_fill(operator.active_count <= k, torch.inf)


def _with_exact_null_space(operator: Operator, vectors: Tensor, first: int) -> Tensor:
    """Return the vectors ``(B, N, m)`` of pairs from ``first`` on: exact null vectors, and others outside them."""
    c = min(most_null(operator), first + vectors.shape[2])
    null, own = operator.null_vectors(c), max(c - first, 0)
    rest = vectors - null @ operator.inner(null, vectors)
    rest = rest / norms(operator, rest)[:, None, :].clamp_min(torch.finfo(rest.dtype).tiny)
    is_known = torch.arange(first, first + own, device=vectors.device) < operator.nullity[:, None]
    return torch.cat([torch.where(is_known[:, None, :], null[..., first:], rest[..., :own]), rest[..., own:]], 2)
