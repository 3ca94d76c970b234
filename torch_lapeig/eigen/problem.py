"""An eigenproblem in normal form, and the one check of what solvers find.

Solvers, check and rule see A' = f S A S + c for numbers f and c of each graph and a diagonal S: positive semidefinite,
of a norm near 1, with the wanted pairs at its lower end. `normalise` is the one place for mass, end, sign, shift, unit
and order, and `Normal.back` undoes them. `check_answer` makes the null space exact, and measures residuals, eigengap
and status.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator, allowed_residual
from torch_lapeig.eigen.solvers.dense import Eigh
from torch_lapeig.eigen.solvers.solver import RitzPairs, Solver
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.threads import together
from torch_lapeig.support.tuning import REORDER_NODES


class Problem(NamedTuple):
    """Request for the ``k`` smallest pairs of an operator, or those nearest to a number."""

    operator: Operator
    k: int
    tolerance: float  # maximum residual, relative to the gap after the k-th value: `allowed_residual`
    has_guards: bool = True  # whether the answer keeps the guard vectors, which only derivatives need
    origin: Tensor | None = None  # (B,), what 0 of the given matrix became
    target: float | None = None  # to which the wanted values are the nearest; None where the smallest are wanted

    def rank(self, values: Tensor) -> Tensor:
        """Return numbers by which the wanted values are the smallest."""
        return values if self.target is None else (values - self.target).abs()

    def part(self, graphs: slice) -> Problem:
        """Return the request for some graphs of the batch."""
        assert isinstance(self.operator, SymmetricOperator)
        origin = None if self.origin is None else self.origin[graphs]
        return self._replace(operator=self.operator.part(graphs), origin=origin)


class Measure(NamedTuple):
    """Inverse by which residuals of a pencil A u = λ M u, or of pairs inside a spectrum, become errors of values."""

    # The error of λ is the residual in the norm of M⁻¹, to first order. (λ + s) (A + s M)⁻¹ stands for M⁻¹.

    inverse: Callable[[Tensor], Tensor]  # (A + s M)⁻¹ of blocks ``(N, m)``, or M⁻¹ where s is infinite
    shift: float = math.inf  # s
    sigma: float | None = None  # see `Solution`

    def share(self, values: Tensor) -> Tensor:
        """Return λ + s, or 1 where s is infinite."""
        return torch.ones_like(values) if math.isinf(self.shift) else (values + self.shift).abs()

    def errors(self, operator: Operator, vectors: Tensor, values: Tensor, rest: Tensor) -> Tensor:
        """Return the errors ``(1, k)`` of values for residuals ``rest``: 0 for null vectors, which come first."""
        null = vectors[..., : operator.most_null]
        rest = self.inverse(rest[0])[None]
        rest = rest - null @ operator.nodes.inner(operator.weigh(null), rest)
        found = self.share(values) * operator.nodes.dots(rest, operator.weigh(rest)).clamp_min(0).sqrt()
        return found.index_fill(1, torch.arange(null.shape[2], device=found.device), 0)

    def round_off(self, operator: Operator, values: Tensor, scale: Tensor) -> Tensor:
        """Return the round-off ``(1,)`` of the errors of ascending values, which are known to eps times ``scale``."""
        share = self.share(values)  # the inverse enlarges the round-off of low frequencies
        first = min(operator.most_null, values.shape[1] - 1)
        return RESIDUAL_UNITS * torch.finfo(values.dtype).eps * scale * (share[:, -1] / share[:, first]).clamp_min(1)


class Flags(NamedTuple):
    """Facts of a batch: all pairs have converged, round-off hides nothing, a graph has ``faint`` values."""

    are_converged: bool
    are_resolved: bool
    has_faint: bool


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
        every = torch.ones_like(ritz.values[:, :k], dtype=torch.bool)
        pairs = (ritz.values[:, :k], ritz.vectors[..., :k], every, ritz.values[:, k:], ritz.vectors[..., k:])
        return cls(operator, solver, ritz, *pairs, **{"resolved": every[:, 0], "faint": ~every[:, 0]} | facts)

    def part(self, graphs: slice) -> Solution:
        """Return the pairs of some graphs of the batch, one after the other."""
        assert isinstance(self.operator, SymmetricOperator)
        fields = {name: getattr(self, name)[graphs] for name in FIELDS_OF_GRAPHS}
        return dataclasses.replace(self, operator=self.operator.part(graphs), ritz=self.ritz.part(graphs), **fields)

    @cached_property
    def flags(self) -> Flags:
        """Return what holds of the whole batch, by one synchronisation."""
        return Flags(*precision.synchronise(self.converged.all(), self.resolved.all(), self.faint.any()))

    @property
    def is_whole(self) -> bool:
        """Return whether vectors and guards span the whole space."""
        columns, operator = self.vectors.shape[2] + self.guard_vectors.shape[2], self.operator
        return columns >= operator.all_nodes or columns >= int(operator.active_count.max())


FIELDS_OF_GRAPHS = [field.name for field in dataclasses.fields(Solution) if field.type == "Tensor"]


def check_answer(problem: Problem, solver: Solver, ritz: RitzPairs, measure: Measure | None = None) -> Solution:
    """Check a solver's pairs: null space in closed form, float64 Rayleigh quotients, residuals, gap and status."""
    # Without a `measure` the matrix is positive semidefinite, and an error of a value is at most its residual.
    operator = problem.operator
    parts = operator.parts(problem.k)
    if len(parts) == 1:
        return _checked(problem, solver, ritz, measure)
    assert isinstance(operator, SymmetricOperator)
    problems = [problem.part(graphs) for graphs in parts]
    found = together([partial(_checked, one, solver, ritz.part(p)) for one, p in zip(problems, parts, strict=True)])
    fields: Any = {name: torch.cat([getattr(part, name) for part in found]) for name in FIELDS_OF_GRAPHS}
    return Solution(operator=operator, solver=solver, ritz=ritz, **fields)


def _checked(problem: Problem, solver: Solver, ritz: RitzPairs, measure: Measure | None = None) -> Solution:
    """Return the checked pairs of a whole batch, or of a part of one."""
    operator, k, columns = problem.operator, problem.k, ritz.values.shape[1]
    known = operator.null_vectors(min(operator.most_null, columns))
    # Guards are handled separately, so that the wanted vectors are bitwise equal with guards and without.
    guard_vectors = ritz.vectors[..., :0]
    if problem.has_guards:
        guard_vectors = _with_exact_null_space(operator, ritz.vectors[..., k:], known, k)
    device = guard_vectors.device
    present = torch.arange(k, device=device) < operator.active_count[:, None]
    null = torch.arange(columns, device=device) < operator.nullity[:, None]
    start, guard_values = ritz.values.masked_fill(null, 0).tensor_split([k], 1)
    vectors = _with_exact_null_space(operator, ritz.vectors[..., :k], known[..., :k], 0)
    vectors, values, residuals, skewness = _measured(operator, vectors, start, present, measure)
    # Values must ascend, and round-off may exchange neighbours.
    quotients, (values, order) = values, values.sort(dim=1, stable=True)
    if vectors.device.type != "cpu" or not torch.equal(values, quotients):
        vectors, residuals = vectors.gather(2, order[:, None, :].expand_as(vectors)), residuals.gather(1, order)
    # λ_{k+1} − λ_k; infinite where there are only k pairs.
    every = torch.cat([values, guard_values], 1)
    rank = problem.rank(every)
    last = rank[:, :k].amax(1)
    following = rank[:, k] if columns > k else last
    gap = (following - last).clamp_min(0).masked_fill(operator.active_count <= k, torch.inf)
    scale, round_off = operator.scale.to(values), operator.round_off
    if measure is not None:  # an eigenvector of M-norm 1 may be long
        scale = (scale * vectors.square().sum(1) + 2 * values.abs()).amax(1)
        round_off = measure.round_off(operator, values, scale)
    allowed = allowed_residual(problem.tolerance, gap.masked_fill(gap.isinf(), 0), round_off)
    is_orthonormal = skewness <= math.sqrt(torch.finfo(values.dtype).eps)
    is_faint = every[:, 1:2] < torch.finfo(every.dtype).eps ** 0.5 * operator.bound[:, None]
    converged = ritz.finished & (residuals.amax(1) <= allowed) & is_orthonormal
    resolved = _resolved(problem, every[:, : k + 1], torch.where(converged, residuals.amax(1), 0), gap, scale)
    pairs = (values, vectors, present, guard_values, guard_vectors, residuals, gap)
    faint, sigma = is_faint.any(1) & (operator.nullity > 0), None if measure is None else measure.sigma
    return Solution(operator, solver, ritz, *pairs, converged, resolved, faint, scale, sigma)


def _resolved(problem: Problem, values: Tensor, residual: Tensor, gap: Tensor, scale: Tensor) -> Tensor:
    """Return where round-off is far below the range of the first k + 1 ``values``, or of all, bool ``(B,)``."""
    # A solve knows eigenvalues to some eps ‖A‖: below, mixtures of eigenvectors have small residuals, too.
    operator, k = problem.operator, problem.k
    every = torch.nn.functional.pad(values, (0, k + 1 - values.shape[1]), value=torch.inf)
    eps = torch.finfo(operator.dtype).eps
    # A residual that the tolerance allows is small beside the gap.
    allowed = problem.tolerance * gap.masked_fill(gap.isinf(), 0)
    floor = torch.where(residual <= allowed, 0, 10 * residual).maximum(ROUNDOFF_UNITS * eps * scale)
    # One value of round-off beside known null vectors has a determined vector; with a second one, either may be any
    # mixture. Only of affinities is the whole null space known. Of other matrices equal values are resolved where
    # round-off is small beside them.
    known = operator.nullity
    if operator.of_affinities and problem.target is None:
        second = every.gather(1, (known + 1).clamp_max(k)[:, None])[:, 0]
        return (second > floor) | (known >= k)
    following = every[:, k] if problem.origin is None else every[:, k] - problem.origin
    are_equal = (floor <= math.sqrt(eps) * following.abs()) | (residual == 0)  # without a residual pairs are exact
    return (every.amax(1) - every.amin(1) > floor) | are_equal | (known >= k)


CONGRUENT = "take D K D and D M D of the same eigenvalues, D = diag(M)^-½"  # way out of a pencil
ROUNDOFF_UNITS = 8  # error of an eigenvalue over eps ‖A‖, at most
RESIDUAL_UNITS = 40  # residual of exact eigenvectors over eps ‖A‖, at most


def _measured(
    operator: Operator, vectors: Tensor, start: Tensor, present: Tensor, measure: Measure | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return vectors with their signs, Rayleigh quotients, residuals, and the largest entry of VᵀM V − I."""
    k = present.shape[1]
    vectors = vectors * (operator.nodes.signs(vectors) * present[:, None, :])
    weighted = operator.weigh(vectors)
    gram = operator.nodes.inner(vectors, weighted)
    null = torch.arange(k, device=vectors.device) < operator.nullity[:, None]
    # The quotient is computed as a correction of the solver's value. In one long sum the rounding of equal numbers,
    # which vectors of symmetric graphs have, would add up.
    start = torch.where(present, start, 0)
    rest = torch.addcmul(operator.matmul(vectors), weighted, start[:, None, :], value=-1)
    squares = torch.where(present, gram.diagonal(dim1=1, dim2=2).double(), 1)
    quotients = start + operator.nodes.dots(vectors.double(), rest.double()) / squares
    if measure is None:
        # Rounding of the entries may make a quotient slightly negative: 0 is returned, with the residual of the
        # quotient. A more negative quotient is returned as 0 with the residual of 0, which shows the error.
        coarser = torch.finfo(operator.given or operator.dtype).eps / torch.finfo(operator.dtype).eps
        quotients = torch.where(quotients < -(operator.round_off * coarser)[:, None], 0, quotients)
    quotients = quotients.masked_fill(null, 0).to(vectors.dtype)
    values = torch.where(present, quotients, operator.above[:, None].to(quotients))
    rest = torch.addcmul(rest, weighted, (values - start)[:, None, :], value=-1)
    skewness = (gram - torch.diag_embed(present.to(gram.dtype))).abs().amax((1, 2))
    if measure is not None:
        return vectors, values, measure.errors(operator, vectors, values, rest), skewness
    return vectors, values.clamp_min(0), operator.nodes.dots(rest, rest).sqrt(), skewness


def report(solution: Solution, values: Tensor, on_failure: str) -> None:
    """Warn or raise where pairs have not converged, or round-off hides differences of ``values`` ``(B, k)``."""
    if not all(solution.flags[:2]):
        is_hidden = solution.flags.are_converged
        message = _unresolved(solution, values) if is_hidden else _failure(solution)
        if on_failure == "raise":
            raise checks.ConvergenceError(message)
        checks.warn(message, checks.ResolutionWarning if is_hidden else checks.ConvergenceWarning)


def _failure(solution: Solution) -> str:
    failed = ~solution.converged
    worst = int(torch.where(failed, solution.residuals.amax(1).nan_to_num(torch.inf), -1).argmax())
    operator, x = solution.operator, solution.vectors
    if operator.mass is not None:
        advice = f"{CONGRUENT}, or a larger tolerance"
    elif bool((operator.nodes.dots(x, operator.matmul(x)) < -operator.round_off[:, None]).any()):
        advice = "an operator with negative eigenvalues goes in as a matrix, or a FunctionOperator without a bound"
    elif isinstance(solution.solver, Eigh):
        advice = "dense arithmetic may not resolve the entries: prune the smallest weights"
    elif not isinstance(operator, SymmetricOperator) or operator.nodes.is_sharded:
        advice = "use Lobpcg(preconditioner=...) with an approximate inverse, more iterations, or a larger tolerance"
    else:
        advice = "use Eigh() or the default solver, more iterations, or a larger tolerance"
    return (
        f"{solution.solver} has not converged after {solution.ritz.iterations} iterations: "
        f"{int(failed.sum())} of {len(failed)} graphs, largest residual "
        f"{solution.residuals[worst].max():.2e} with a gap of {solution.gap[worst]:.2e}; {advice}"
    )


def _unresolved(solution: Solution, values: Tensor) -> str:
    hidden, bound = ~solution.resolved, solution.scale
    b = int(hidden.int().argmax())
    round_off = ROUNDOFF_UNITS * torch.finfo(solution.operator.dtype).eps * float(bound[b])
    first = ", ".join(f"{value:.1e}" for value in values[b, :4])
    return (
        f"round-off hides the differences of the wanted eigenvalues in {int(hidden.sum())} of {len(hidden)} graphs: "
        f"they begin with {first}, and the round-off of a matrix of norm {bound[b]:.1e} is up to {round_off:.0e}. "
        "Their vectors may be any mixture of each other; for a graph use a larger bandwidth or more neighbours, for a "
        "mass raise its smallest entries, for a matrix with k or more equal values ask for more pairs"
    )


def _with_exact_null_space(operator: Operator, vectors: Tensor, null: Tensor, first: int) -> Tensor:
    """Return vectors ``(B, N, m)`` of the pairs from ``first`` on, with exact null vectors and the others outside."""
    if operator.mass is None:
        own = max(null.shape[2] - first, 0)
        rest = vectors - null @ operator.nodes.inner(null, vectors)
        rest = rest / operator.nodes.dots(rest, rest).sqrt()[:, None, :].clamp_min(torch.finfo(rest.dtype).tiny)
        is_known = torch.arange(first, first + own, device=vectors.device) < operator.nullity[:, None]
        null = torch.where(is_known[:, None, :], null[..., first:], rest[..., :own])
        vectors = torch.cat([null, rest[..., own:]], 2)
    # Else the solver has done so: beside masses of many sizes each digit of small entries matters.
    is_active = operator.fewest_active == operator.all_nodes  # solvers leave round-off at other nodes
    return vectors if is_active else vectors * operator.active[..., None]


class Differentiated(NamedTuple):
    """Pairs with gradients: V ``(B, N, k)`` and Λ ``(B, k, k)``."""

    vectors: Tensor
    projected: Tensor


class Products(Operator):
    """A' = f S A S + c, S = diag(``root``), of an A that gives products only and whose null space is searched for."""

    active = torch.empty(0)  # set for each object

    def __init__(
        self, inside: Operator, root: Tensor | None, factor: Tensor, shift: Tensor, bound: Tensor, size: Tensor
    ) -> None:
        self.shape, self.dtype, self.device, self.inside = inside.shape, inside.dtype, inside.device, inside
        self.root, self.factor, self.shift, self.bound, self.size = root, factor, shift, bound, size
        self.parameters = inside.parameters if root is None else (*inside.parameters, root)
        self.active = inside.active

    def ends(self, *, close: bool = True) -> tuple[Tensor, Tensor]:
        """Return bounds of the spectrum of S A S."""
        lower, upper = self.inside.ends(close=close)
        most = self.bound / self.inside.bound  # of the squares of S
        return lower * most, upper * most

    def matmul_at(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return the product; see `Operator.matmul_at`."""
        s = None if self.root is None else parameters[-1].reshape(*y.shape[:-1], 1)
        own, block = parameters if s is None else parameters[:-1], y if s is None else s * y
        found = self.inside.matmul_at(own, block) if own else self.inside.matmul(block)
        factor, shift = (x[:, None, None] if self.batch_size > 1 else x for x in (self.factor, self.shift))
        return factor * (found if s is None else s * found) + shift * y


def in_unit(
    operator: Any, *, largest: bool = False, is_pencil: bool = False
) -> tuple[Any, Tensor | None, Tensor | None]:
    """Return f A + c, with gradients, and f, c ``(B,)``; A and None for 1 and 0. A pencil has c = 0, A any sign."""
    if not (largest or is_pencil) and operator.is_near_one:
        return operator, None, None
    with torch.no_grad():
        lower, upper = operator.ends(close=not is_pencil)
        size = torch.maximum(lower.abs(), upper.abs())
        shift = 0 * size if is_pencil else upper if largest else -lower.clamp_max(0)
        reach = size if is_pencil else upper - lower if largest else upper + shift  # of the shifted spectrum
        reach = torch.where(reach > 0, reach, torch.where(size > 0, size, 1))
        # Residuals are a small part of the bound: far from 1 their squares leave the range of the dtype. The inverse of
        # the unit is exact, too.
        unit, least = checks.next_power(reach), torch.finfo(reach.dtype).tiny
        unit = torch.where(checks.are_near_one(unit), 1, unit.clamp(least, 1 / least))
        factor, shift = (-1 if largest else 1) / unit, shift / unit
        bound, size = reach / unit, torch.maximum(size, reach) / unit
    if not isinstance(operator, SymmetricOperator):
        inside, root = (operator.inside, operator.root) if isinstance(operator, Products) else (operator, None)
        return Products(inside, root, factor, shift, bound, size), factor, shift
    is_same = not bool((factor < 0).any() | (shift != 0).any())
    at_nodes = factor if len(operator.shape) == 1 else factor[:, None]
    values, diagonal = checks.finite_gradient(operator.values), checks.finite_gradient(operator.diagonal)
    values = (values * operator.pattern.of_graph(factor)).reshape(values.shape)
    diagonal = diagonal * at_nodes + (shift[:, None] * operator.active).reshape(operator.shape)
    excess = None if operator.excess is None else operator.excess * factor[:, None]
    null, of_affinities = operator.null if is_same else None, operator.of_affinities and is_same
    kind = {"bound": bound, "size": size, "definite": True, "null": null, "of_affinities": of_affinities}
    return operator._with(values=values, diagonal=diagonal, excess=excess, **kind), factor, shift


@dataclass(frozen=True, eq=False)
class Normal:
    """A problem in normal form, and what undoes it."""

    operator: Operator  # A', with M' if M is no diagonal that scales A
    factor: Tensor | None  # f ``(B,)``; None for 1
    shift: Tensor | None  # c ``(B,)``; None for 0
    order: Tensor | None = None  # the nodes in the order of A', int64 ``(N,)``; None for their own
    stretch: Tensor | None = None  # u over u' ``(B,)``; None for 1

    def back(self, solution: Solution, found: Differentiated) -> tuple[Solution, Differentiated]:
        """Return a solution, and its differentiated pairs, as those of the given problem, or of S A S."""
        vectors, projected = found
        if self.order is not None:
            vectors = torch.empty_like(vectors).index_copy(1, self.order, vectors)
        if self.stretch is not None:
            vectors = vectors * self.stretch[:, None, None]
        if self.factor is not None and self.shift is not None:
            moved = torch.diag_embed(self.shift[:, None].expand(projected.shape[:2]))
            projected, unit = (projected - moved) / self.factor[:, None, None], 1 / self.factor.abs()
            parts = {name: getattr(solution, name) for name in ("values", "residuals", "gap", "scale")}
            parts = {name: x * (unit[:, None] if x.ndim > 1 else unit) for name, x in parts.items()}
            solution = dataclasses.replace(solution, **parts)
        return solution, Differentiated(vectors, projected)


def normalise(
    operator: Operator, root: Tensor | None, mass: SymmetricOperator | None, *, largest: bool, is_inside: bool
) -> Normal:
    """Return A u = λ M u, M a matrix ``mass`` or M^-½ = diag(``root``), in normal form, for the wanted values."""
    square = None
    if root is not None:  # in a unit in which no square overflows
        most = checks.next_power(checks.primal(root).reshape(operator.batch_size, -1).amax(1))
        root, square = root / (most if len(operator.shape) == 1 else most[:, None]), most.square()
        if isinstance(operator, SymmetricOperator):
            operator = operator.scaled(root)
        else:
            one = torch.ones_like(most)
            bound = operator.bound * checks.primal(root).square().reshape(operator.batch_size, -1).amax(1)
            operator = Products(operator, root, one, 0 * one, bound, bound)
        square = None if bool((most == 1).all()) else square
    operator, factor, shift = in_unit(operator, largest=largest, is_pencil=mass is not None or is_inside)
    if square is not None:
        factor, shift = (1 / square, 0 * square) if factor is None else (factor / square, shift)
    if is_inside and isinstance(operator, SymmetricOperator):
        operator = operator._with(null=None)  # null vectors are pairs as others
    if mass is not None:
        mass, of_mass, _ = in_unit(mass)
        operator = operator._with(mass=mass)
        factor = factor if of_mass is None or factor is None else factor / of_mass
        return Normal(operator, factor, shift, stretch=None if of_mass is None else of_mass.sqrt())
    is_large = operator.device.type == "cpu" and len(operator.shape) == 1 and operator.num_nodes > REORDER_NODES
    if is_large and isinstance(operator, SymmetricOperator) and type(operator.pattern) is SparsePattern:
        operator, order = operator.reordered()
        return Normal(operator, factor, shift, order)
    return Normal(operator, factor, shift)
