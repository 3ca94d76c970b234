"""Which eigenvalues count as equal in the differentiation rule, and its linear system outside the eigenvectors."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.gradient.cg import CHECK_EVERY, STALE_CHECKS, conjugate_gradients
from torch_lapeig.eigen.problem import Solution
from torch_lapeig.eigen.solvers.solver import Inverse
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.threads import together
from torch_lapeig.support.tuning import SINGLE_THREADED_NUMBERS

Degeneracy = Literal["mask", "lorentz", "exact"]
DEGENERACIES = ("mask", "lorentz", "exact")


@dataclass(frozen=True)
class GradientOptions:
    """Options of the differentiation rule; ``degeneracy`` and ``width`` are those of `torch_lapeig.Solve`."""

    tolerance: float  # relative residual of the linear solve
    degeneracy: Degeneracy
    width: float | None
    dtype: torch.dtype  # of the given problem
    loss_eps: float  # machine epsilon of the loss; cotangents have its round-off
    factor: Tensor | None = None  # ``(B, N)``, by which vectors are multiplied for the loss; None for 1

    @property
    def eps(self) -> float:
        """Return the machine epsilon of the given problem."""
        return torch.finfo(self.dtype).eps

    def loss_eps_of(self, x: Tensor, others: Tensor) -> float:
        """Return the machine epsilon of a loss with cotangents ``x`` of vectors and ``others`` of values."""
        single = torch.finfo(torch.float32).eps
        if self.loss_eps >= single:
            return self.loss_eps
        if self.factor is not None:
            factor = self.factor.to(x)[..., None]
            x = torch.where(factor > 0, x / torch.where(factor > 0, factor, 1), 0)
        # Float32 has all numbers of such a loss, and some need all its digits. 1 and 0 may be of a loss in any dtype.
        for part in (x.reshape(-1)[:1000], x, others):  # the first 1000 numbers mostly decide
            if not _is_of(part, torch.float32):
                return self.loss_eps
        return self.loss_eps if _is_of(x, torch.bfloat16) and _is_of(others, torch.bfloat16) else single


def _is_of(x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a coarser dtype holds all numbers, up to the round-off of a factor."""
    x = torch.view_as_real(x) if x.is_complex() else x
    return bool(((x.to(dtype).to(x.dtype) - x).abs() <= 2 * torch.finfo(x.dtype).eps * x.abs()).all())


class Differences(NamedTuple):
    """Differences Δ = λ_i − μ_j of eigenvalues ``(B, j, i)`` and their sizes."""

    values: Tensor
    sizes: Tensor
    width: Tensor  # ``(B, 1, 1)``; eigenvalues at this distance at most count as equal

    @property
    def are_equal(self) -> Tensor:
        """Return equal pairs, bool ``(B, j, i)``."""
        return self.sizes <= self.width


def differences(system: Complement, rows: Tensor, columns: Tensor) -> Differences:
    """Return the differences of ``columns``_i and ``rows``_j."""
    values, width = columns[:, None, :] - rows[:, :, None], system.options.width
    return Differences(values, values.abs(), system.noise if width is None else torch.full_like(system.noise, width))


class InverseDifferences(NamedTuple):
    """Inverses 1 / Δ ``(B, j, i)``, and a bool mask of eigenvalues that count as equal."""

    values: Tensor
    are_equal: Tensor


def inverse_differences(system: Complement, found: Differences, equal: Tensor | None = None) -> InverseDifferences:
    """Return 1 / Δ, as ``degeneracy`` says where Δ is small; 0 for those that are known to count as ``equal``."""
    difference, options = found.values, system.options
    if options.degeneracy == "lorentz" and equal is None:
        bound = system.s.scale
        width = math.sqrt(options.eps) * bound if options.width is None else bound.new_full((1,), options.width)
        square = width.to(difference).square().reshape(-1, 1, 1)
        # Differences within the noise count as equal: Δ / (Δ² + width²) would enlarge it. The default width
        # √eps · bound enlarges round-off by at most 1/√eps.
        broadened = torch.where(found.sizes <= system.noise, 0, difference / (difference.square() + square))
        return InverseDifferences(broadened, found.are_equal)
    if options.degeneracy == "exact" and equal is None:  # only each value equals itself
        equal = torch.eye(*found.sizes.shape[1:], dtype=torch.bool, device=found.sizes.device).expand_as(found.sizes)
    equal = found.are_equal if equal is None else equal
    return InverseDifferences(difference.masked_fill(equal, torch.inf).reciprocal(), equal)


class Seen(NamedTuple):
    """Facts that a backward pass shows to the passes that differentiate it."""

    takes_vectors: bool  # whether the loss takes V
    loss_eps: float
    error: float  # relative error of the cotangents that come from this pass
    terms: deque[Tensor]  # the last part of these that came through V itself, which may cancel with that of the loss

    def keep(self, term: Tensor | None) -> None:
        """Keep a term ``(B, N, k)``; a hook."""
        if term is not None:
            self.terms.append(term.detach())


def couplings(
    system: Complement, values: Tensor, inner: Tensor, whole: Tensor, to_vectors: Tensor, before: Seen | None
) -> tuple[InverseDifferences, Seen | None]:
    """Return F and which values count as equal in a backward pass, and what it has shown; warn of no gradient."""
    # In terms of `torch_lapeig.eigen.gradient.rule`, `inner` is C and `whole` the Hermitian part of Λ's cotangent.
    found, bound = differences(system, values, values), system.s.scale[:, None, None]
    close = max(system.options.loss_eps**0.5, torch.finfo(values.dtype).eps ** (1 / 3)) * bound
    apart = torch.cat([found.sizes.diagonal(1, dim1=1, dim2=2), system.s.gap[:, None]], 1)
    if bool((apart > torch.maximum(found.width, close)[..., 0]).all()):
        return inverse_differences(system, found), None
    is_recorded = torch.is_grad_enabled()
    with torch.no_grad():
        shown = _Pass(system, found, before, inner.detach(), whole.detach(), to_vectors.detach())
        shown.warn()
        equal = shown.with_same(is_recorded=is_recorded) if system.options.degeneracy == "mask" else None
        seen = shown.seen
    return inverse_differences(system, found, equal), seen


class _Pass:
    """One backward pass of a solution with close eigenvalues."""

    def __init__(self, system: Complement, found: Differences, before: Seen | None, *cotangents: Tensor) -> None:
        (inner, whole, to_vectors), s, options = cotangents, system.s, system.options
        self.s, self.options, self.found, self.whole, self.before = s, options, found, whole, before
        self.eps, self.bound, self.resolution = torch.finfo(s.values.dtype).eps, s.scale, system.noise
        self.skew = (inner - inner.mH) / 2
        self.to_values = whole.diagonal(dim1=1, dim2=2).real
        self.is_plain = (whole == torch.diag_embed(self.to_values)).all(-1).all(-1)
        is_sharded = s.operator.nodes.is_sharded
        self.loss_eps = options.loss_eps if is_sharded else options.loss_eps_of(to_vectors, self.to_values)
        # Cotangents that come from a derivative of the rule have the errors of its linear solve, too.
        earlier = before or Seen(False, 0.0, 0.0, deque())
        self.loss_eps, self.error = max(self.loss_eps, earlier.loss_eps), earlier.error
        # So has their sum that of its terms, also where these cancel.
        terms = (to_vectors, *earlier.terms)
        self.sizes = torch.stack([s.operator.nodes.dots(x.conj(), x).real.sqrt() for x in terms]).amax(0)
        earlier.terms.clear()
        self.size = self.sizes.norm(dim=1)
        # A loss blind to the basis leaves the round-off of its own arithmetic, which 1/Δ would turn into a gradient.
        self.noise = (8 * self.loss_eps + self.error) * (self.sizes[:, :, None] + self.sizes[:, None, :])
        unknown = (self.skew.abs() <= self.noise) & (found.sizes < self.loss_eps**0.5 * self.bound[:, None, None])
        if options.width is not None:
            self.equal = found.are_equal
        elif before is None:
            self.equal = found.are_equal | unknown
        else:  # differences of cotangents are used as long as they are above their round-off
            self.equal = unknown & before.takes_vectors | (found.sizes == 0)

    @property
    def seen(self) -> Seen:
        """Return what passes need that differentiate this one."""
        takes_vectors = bool((self.sizes > 0).any())
        is_solved = takes_vectors and not self.s.is_whole
        error = max(self.error, self.options.tolerance if is_solved else 0.0)
        return Seen(takes_vectors, self.loss_eps, error, deque(maxlen=1))

    def with_same(self, *, is_recorded: bool) -> Tensor:
        """Return values that count as equal, and close ones whose matrix has the cotangents of their rotation."""
        equal, bound = self.equal, self.bound[:, None, None]
        near = ~equal & (self.found.sizes < max(self.eps ** (1 / 3), self.loss_eps**0.5) * bound)
        if not (is_recorded or self.before is not None) or not near.any():
            return equal
        # The derivative of 1/(λ_i − λ_j) contains its square, which cancels unless the loss depends on the basis. A
        # loss that takes Λ as a matrix does not need it: the cotangents of Λ and of the rotation are equal, up to the
        # error of the cotangents over Δ. A loss of only one of two vectors depends on the basis even where both
        # cotangents are zero by symmetry.
        sizes, rotation = self.found.sizes, (self.skew / self.found.values).masked_fill(~near, 0)
        accuracy = max(100 * self.eps, 8 * self.loss_eps, self.error)
        error = accuracy * self.size[:, None, None] / sizes.clamp_min(torch.finfo(sizes.dtype).tiny)
        same = (rotation - self.whole).abs() <= 1e-3 * (rotation.abs() + self.whole.abs()) + error
        is_seen = (self.sizes > 0) | (self.whole != 0).any(-1)
        same = near & same & (is_seen[:, :, None] == is_seen[:, None, :])
        # Where a loss depends on the basis, rotations are larger in terms of the cotangents over the bound.
        cancels = (rotation.abs() * bound <= 1e3 * self.size[:, None, None]) & (sizes < (100 * self.eps) ** 0.5 * bound)
        if is_recorded and self.before is None and (near & ~same & cancels).any():
            checks.warn(
                "second derivatives of a loss that depends on the basis among eigenvectors of close eigenvalues are "
                "not accurate; use functions of values and vectors together, through Eigenpairs.projected",
                checks.DegeneracyWarning,
            )
        return equal | same  # type: ignore[no-any-return]

    def warn(self) -> None:
        """Warn where the loss has no derivative, or none that can be known."""
        # Three cases: the skew part within a cluster is not zero, but left out; equal values have different cotangents;
        # the cut splits a cluster.
        noise, sizes = math.sqrt(self.loss_eps), (self.sizes[:, :, None] + self.sizes[:, None, :]) / 2
        left = {"mask": "left out", "lorentz": "damped", "exact": "noise"}[self.options.degeneracy]
        effect = f"terms that depend on that choice are {left}"
        masked = self.found.are_equal & self.equal
        lost = self.skew.abs() * masked
        undefined = (lost > noise * (sizes + 1e-2 * self.size[:, None, None])).any(2).any(1)
        # Eigenvalues too close to resolve: the omitted terms are small, but so are their divisors.
        near = lost * (self.found.sizes > 0.1 * self.resolution) * (self.options.degeneracy == "mask")
        unresolved = (near.amax((1, 2)) > max(8 * self.loss_eps, self.error) * self.size) & (self.options.width is None)
        # The value of the null vector of the whole graph is 0 for all parameters, whatever its cotangent.
        varies = torch.ones_like(self.to_values, dtype=torch.bool)
        varies[:, 0] = (self.s.operator.nullity == 0) | (self.s.values[:, 0] != 0)
        both, most = varies[:, :, None] & varies[:, None, :], self.to_values.abs().amax(1)
        # Cotangents of a smooth function of values differ within a cluster by the accuracy of the solve. At its minimum
        # they are round-off.
        accuracy = self.s.residuals.amax(1) / self.s.gap.clamp_min(torch.finfo(self.s.gap.dtype).tiny)
        is_minimum = most * self.s.scale <= 32 * self.loss_eps
        spread = (self.to_values[:, :, None] - self.to_values[:, None, :]).abs() * (masked & both)
        apart = (spread.amax((1, 2)) > accuracy.clamp(noise, max(noise, 1e-2)) * most) & self.is_plain & ~is_minimum
        if (unresolved & ~undefined).any():
            checks.warn(
                "eigenvalues are closer together than their residuals resolve: they count as equal, and terms of the "
                "gradient that depend on their difference are left out; use float64 or a smaller tolerance",
                checks.DegeneracyWarning,
            )
        if undefined.any():
            checks.warn(
                "the loss depends on the choice of basis among eigenvectors of equal eigenvalues: its gradient is not "
                f"defined, and {effect}; use a loss that is invariant to rotations within an "
                "eigenspace (functions of values and vectors together: through Eigenpairs.projected)",
                checks.DegeneracyWarning,
            )
        elif apart.any():
            checks.warn(
                "the loss distinguishes equal eigenvalues, where it has no derivative: "
                f"{effect}; use a symmetric function of them, or with their vectors a function of Eigenpairs.projected",
                checks.DegeneracyWarning,
            )
        width = self.found.width.flatten()
        # Nearest a number, values on either side of it may be as far away without being equal.
        apart = (self.s.guard_values[:, :, None] - self.s.values[:, None]).abs().flatten(1)
        is_split = (torch.nn.functional.pad(apart, (0, 1), value=torch.inf).amin(1) <= width) & (self.s.gap <= width)
        cut = is_split & ((self.size > 0) | ((varies * self.to_values)[:, -1] != 0))
        if cut.any():
            b, k = int(cut.nonzero()[0]), self.s.values.shape[1]
            steps = torch.cat([self.s.values[b], self.s.guard_values[b]]).diff()
            whole = (steps > width[b]).nonzero().flatten() + 1  # cuts outside clusters
            advice = f"no cut among the {len(steps) + 1} known eigenvalues is outside a cluster"
            if (steps < -width[b]).any():  # pairs nearest a number
                advice = "take another k"
            elif len(whole):
                advice = f"the nearest k that does not is {int(whole[(whole - k).abs().argmin()])}"
            checks.warn(
                f"k={k} splits a cluster of eigenvalues (gap {self.s.gap[b]:.1e}): the gradient of its part is not "
                f"defined; {advice}",
                checks.DegeneracyWarning,
            )


def off_diagonal(matrix: Tensor, m: int) -> Tensor:
    """Return the entries off the diagonal of the last ``m`` rows and columns of a matrix ``(..., k, k)``."""
    matrix = matrix[..., matrix.shape[-1] - m :, matrix.shape[-1] - m :]
    return matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))


MOST_ITERATIONS = 2000
ROUNDOFF_SHARE = 1e-2  # maximum round-off of a solution, as a part of the right-hand side


class Complement:
    """Operator P' (A − λ_i M) P on blocks of columns i outside V, and its preconditioner."""

    def __init__(self, s: Solution, options: GradientOptions) -> None:
        self.s, self.options, self.operator = s, options, s.operator

    @cached_property
    def noise(self) -> Tensor:
        """Return the difference ``(B, 1, 1)`` below which entries, solve or residuals do not resolve eigenvalues."""
        # At a distance δ the gradient of a pair's rotation has a relative error of eps / δ: 2 % at 50 eps of the scale.
        s = self.s
        solve = 50 * torch.finfo(s.values.dtype).eps * s.scale
        # Entries of a Laplacian are quotients of sums of weights: its eigenvalues change in proportion to themselves.
        most = s.values[:, -1].minimum(s.scale) if s.operator.of_affinities else s.scale
        known = torch.add(solve, most, alpha=50 * self.options.eps)
        return torch.maximum(10 * s.residuals.amax(1).to(known), known)[:, None, None]

    @cached_property
    def _differences(self) -> InverseDifferences:
        # Guards of a cluster that the cut splits are not resolved from V: mask them, whatever ``degeneracy`` is.
        found = differences(self, self.s.guard_values, self.s.values)
        return inverse_differences(self, found, found.are_equal)

    @cached_property
    def _splits(self) -> bool:
        return bool(self._differences.are_equal.any())

    @cached_property
    def _inverse(self) -> Inverse | None:
        """Return one preconditioner for blocks ``(B, N, m)``; None if a graph lacks one."""
        found = [inverse for inverse in self.s.ritz.inverses if inverse is not None]
        if not found or len(found) < len(self.s.ritz.inverses):
            return None
        return lambda r: torch.stack([inverse(x) for inverse, x in zip(found, r, strict=True)])

    @cached_property
    def _by_guards(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return V and the guards U side by side, their coefficients −τ and (A − λ_i)⁻¹ − τ, and τ ``(B, 1, 1)``."""
        bound, (inverse, is_split) = self.operator.bound[:, None, None], self._differences
        rest = torch.where(bound > 0, 2 / bound, 1)  # of the size of A⁻¹ outside the guards
        scales = -rest - inverse.masked_fill(is_split, 0)
        scales = torch.cat([(-rest).expand(-1, self.s.values.shape[1], scales.shape[2]), scales], 1)
        return torch.cat([self.s.vectors, self.s.guard_vectors], 2), scales, rest

    @cached_property
    def _weighted(self) -> tuple[Tensor, Tensor]:
        """Return M V, and M times the guards."""
        return self.operator.weigh(self.s.vectors), self.operator.weigh(self.s.guard_vectors)

    def project(self, x: Tensor) -> Tensor:
        """Return P' x: a right-hand side without M V, and without M times guards of a cluster that the cut splits."""
        return self._removed(x, (self.s.vectors, self.s.guard_vectors), self._weighted)

    def _outside(self, x: Tensor) -> Tensor:
        """Return P x: a solution without V, and without guards of a cluster that the cut splits."""
        return self._removed(x, self._weighted, (self.s.vectors, self.s.guard_vectors))

    def _removed(self, x: Tensor, duals: tuple[Tensor, Tensor], known: tuple[Tensor, Tensor]) -> Tensor:
        inner = self.operator.nodes.inner
        x = torch.baddbmm(x, known[0], inner(duals[0], x), alpha=-1)
        return x - known[1] @ (self._differences.are_equal * inner(duals[1], x)) if self._splits else x

    def image(self, x: Tensor) -> Tensor:
        """Return P' (A − λ_i M) x_i of each column."""
        image, values = self.operator.matmul(x), self.s.values[:, None, :]
        return self.project(torch.addcmul(image, values, self.operator.weigh(x), value=-1))

    def precondition(self, r: Tensor) -> Tensor:
        """Return (A − λ_i)⁻¹ on the guards, and the solver's preconditioner, or τ, on the rest."""
        inner, guards, inverse = self.s.operator.nodes.inner, self.s.guard_vectors, -self._differences.values
        if self._inverse is None:
            known, scales, rest = self._by_guards
            return torch.baddbmm(rest * r, known, scales * inner(known, r))
        # Project before the inverse: factors enlarge round-off most along null vectors.
        coefficients, weighted = inner(guards, r), self._weighted[1]
        rest = self._inverse(self.project(r - weighted @ coefficients))
        return self._outside(rest + guards @ (inverse * coefficients - inner(weighted, rest)))

    def solve(self, g: Tensor) -> Tensor:
        """Return Z of the rule, ``(B, N, k)``, part by part of a batch on torch's threads; warn of unsolved columns."""
        if self.s.is_whole:  # all vectors are known, to round-off
            guards = self.s.guard_vectors
            return guards @ (self._differences.values * self.operator.nodes.inner(guards, g))
        # Scale, because squares of the cotangents at nodes of tiny degree would overflow.
        scale = checks.power_of_two(self.operator.nodes.largest(g)[:, None, :], (1,))
        g, parts = g / scale, self.operator.parts(g.shape[2])
        if len(parts) == 1:
            z, is_solved = self.columns(g)
        else:
            systems = [Complement(self.s.part(graphs), self.options) for graphs in parts]
            tasks = [partial(system.columns, g[graphs]) for system, graphs in zip(systems, parts, strict=True)]
            z, is_solved = (torch.cat(found) for found in zip(*together(tasks), strict=True))
        if not is_solved.all():
            checks.warn(
                f"the linear solve of the gradient has not reached its tolerance for {int((~is_solved).sum())} of "
                f"{is_solved.numel()} eigenvectors: their gradients are inexact; use a cut with a wider eigengap",
                checks.ConvergenceWarning,
            )
        return z * scale

    def columns(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return Z of the rule for cotangents ``(B, N, k)``, and which columns ``(B, k)`` are solved."""
        s, operator, eps = self.s, self.s.operator, torch.finfo(g.dtype).eps
        # Project twice: columns of V have norm 1 only up to round-off, and a remainder inside V has no solution.
        g = g * operator.active[..., None]
        target = -self.project(once := self.project(g))
        size = operator.nodes.dots(target, target).sqrt()
        # The projection leaves the round-off of g, in the precision in which g arrived, and of its part in M V.
        gone = g - once
        terms = torch.maximum(operator.nodes.dots(g, g), operator.nodes.dots(gone, gone)).sqrt()
        enough = torch.maximum(self.options.tolerance * size, 8 * max(eps, self.options.eps) * terms)

        def allowed(z: Tensor) -> Tensor:
            # Products leave the round-off of A z. An iterate whose round-off is as large as the target is no solution.
            round_off = 8 * eps * self.operator.bound[:, None] * operator.nodes.dots(z, z).sqrt()
            return torch.maximum(enough, round_off.minimum(ROUNDOFF_SHARE * size))

        found = self._inside(target, enough / size) if s.sigma is not None else self._compiled(target, enough, size)
        if found is None:
            found = conjugate_gradients(
                self.image, self.precondition, target, operator.nodes.dots, allowed, MOST_ITERATIONS
            )
        z, left = found
        # A NaN of the loss is passed on; it is no failure of the solve.
        is_unknown = ~size.isfinite()
        z = torch.where(is_unknown[:, None, :], torch.nan, self._outside(z))
        width = self.noise[:, 0] if self.options.width is None else self.options.width
        # Columns of a cluster that the cut splits have no solution: another warning reports them.
        is_undefined = (s.gap[:, None] <= width) & ((s.values[:, -1:] - s.values) <= width)
        return z, (left <= allowed(z)) | is_undefined | is_unknown

    def _inside(self, target: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Return Z of pairs inside the spectrum, by their inverse at σ, where A − λ_i M is indefinite."""
        # Times (A − σ M)⁻¹ it is 1 − (λ_i − σ) (A − σ M)⁻¹ M: self-adjoint in M, with eigenvalues in (0, 2), because no
        # value outside is nearer to σ than the wanted ones.
        solve, (guards, weighted) = self._inverse, (self.s.guard_vectors, self._weighted[1])
        assert solve is not None
        sigma, weigh, found = self.s.sigma or 0.0, self.operator.weigh, self._differences
        far, others = self.s.values[:, None] - sigma, self.s.guard_values[:, :, None] - sigma
        gains = torch.where(found.are_equal, 0, -others * found.values) - 1

        def dots(x: Tensor, y: Tensor) -> Tensor:
            return self.operator.nodes.dots(x, weigh(y))

        def image(x: Tensor) -> Tensor:
            return self._outside(x - far * solve(self.project(weigh(x))))

        def precondition(x: Tensor) -> Tensor:
            return x + guards @ (gains * self.operator.nodes.inner(weighted, x))

        start = self._outside(solve(target))
        allowed = share.nan_to_num(0) * dots(start, start).clamp_min(0).sqrt()
        z, _ = conjugate_gradients(image, precondition, start, dots, lambda _: allowed, MOST_ITERATIONS)
        rest = target - self.image(self._outside(z))
        return z, self.operator.nodes.dots(rest, rest).sqrt()

    def _compiled(self, target: Tensor, enough: Tensor, size: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the conjugate gradients of compiled loops, graph by graph; None where none can be used."""
        matrix = self.s.operator.compiled
        if matrix is None or self._inverse is not None or not matrix.reads(target):
            return None
        # Large systems use several threads, and Python, in which an interrupt can act.
        if target[0].numel() > SINGLE_THREADED_NUMBERS:
            return None

        s, eps, (known, scales, rest) = self.s, torch.finfo(target.dtype).eps, self._by_guards
        system = {"vectors": s.vectors, "known": known, "values": s.values, "scales": scales}
        system |= {"rest": rest[:, 0, 0], "enough": enough, "size": size, "round_off": 8 * eps * s.operator.bound}
        if self._splits:
            system["split"] = self._differences.are_equal.to(target.dtype)
        system = {name: x.detach().resolve_neg().contiguous() for name, x in system.items()}
        limits = {"limit": MOST_ITERATIONS, "replaced": CHECK_EVERY, "patience": STALE_CHECKS, "noise": ROUNDOFF_SHARE}
        return matrix.complement(target, **{"split": None, **system}, **limits)
