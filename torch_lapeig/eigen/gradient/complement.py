"""The linear system of the gradient outside the span of the eigenvectors; the rule has its derivation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torch_lapeig.eigen.check import Solution, norms
from torch_lapeig.eigen.gradient.cg import CHECK_EVERY, STALE_CHECKS, conjugate_gradients
from torch_lapeig.eigen.gradient.clusters import GradientOptions, InverseDifferences, differences, inverse_differences
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.solver import Inverse
from torch_lapeig.native.loops import System
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.threads import together
from torch_lapeig.support.tuning import SINGLE_THREADED_NUMBERS

MOST_ITERATIONS = 2000
ROUNDOFF_SHARE = 1e-2  # maximum round-off of a solution, as a part of the right-hand side


@dataclass(frozen=True, eq=False)
class Complement:
    """Operator P' (A − λ_i M) P on blocks of columns i outside V, and its preconditioner."""

    s: Solution
    options: GradientOptions

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
    def operator(self) -> Operator:
        """Return the operator that is differentiated."""
        return self.s.operator

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
        """Return one preconditioner for blocks ``(B, N, m)``, or ``(N, m)`` of one graph; None if a graph lacks one."""
        found = [inverse for inverse in self.s.ritz.inverses if inverse is not None]
        if not found or len(found) < len(self.s.ritz.inverses):
            return None

        def precondition(r: Tensor) -> Tensor:
            if r.ndim == 2:
                return found[0](r)
            return torch.stack([inverse(x) for inverse, x in zip(found, r, strict=True)])

        return precondition

    @cached_property
    def _known(self) -> Tensor:
        """Return V and the guards side by side."""
        return torch.cat([self.s.vectors, self.s.guard_vectors], 2)

    @cached_property
    def _rest(self) -> Tensor:
        """Return τ ``(B, 1, 1)``, 2 over the bound of the spectrum: of the size of A⁻¹ outside the guards."""
        bound = self.operator.bound[:, None, None]
        return torch.where(bound > 0, 2 / bound, 1)

    @cached_property
    def _scales(self) -> Tensor:
        """Return the coefficients of the columns of ``_known`` in the preconditioner: (A − λ_i)⁻¹ − τ, and −τ for V."""
        inverse, is_split = self._differences
        guard_scales = -self._rest - inverse.masked_fill(is_split, 0)
        return torch.cat([(-self._rest).expand(-1, self.s.values.shape[1], guard_scales.shape[2]), guard_scales], 1)

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
        inner = self.operator.inner
        x = torch.baddbmm(x, known[0], inner(duals[0], x), alpha=-1)
        return x - known[1] @ (self._differences.are_equal * inner(duals[1], x)) if self._splits else x

    def image(self, x: Tensor) -> Tensor:
        """Return P' (A − λ_i M) x_i of each column."""
        return self.project(
            torch.addcmul(self.operator.matmul(x), self.s.values[:, None, :], self.operator.weigh(x), value=-1)
        )

    def precondition(self, r: Tensor) -> Tensor:
        """Return (A − λ_i)⁻¹ on the guards, and the solver's preconditioner, or τ, on the rest."""
        inner, guards, inverse = self.s.operator.inner, self.s.guard_vectors, -self._differences.values
        if self._inverse is None:
            return torch.baddbmm(self._rest * r, self._known, self._scales * inner(self._known, r))
        # Project before the inverse: factors enlarge round-off most along null vectors.
        coefficients, weighted = inner(guards, r), self._weighted[1]
        rest = self._inverse(self.project(r - weighted @ coefficients))
        return self._outside(rest + guards @ (inverse * coefficients - inner(weighted, rest)))

    def solve(self, g: Tensor) -> Tensor:
        """Return Z of the rule, ``(B, N, k)``, part by part of a batch on torch's threads; warn of unsolved columns."""
        if self.s.is_whole:  # all vectors are known, to round-off
            guards = self.s.guard_vectors
            return guards @ (self._differences.values * self.operator.inner(guards, g))
        # Scale, because squares of the cotangents at nodes of tiny degree would overflow.
        scale = checks.power_of_two(self.operator.largest(g)[:, None, :], (1,))
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
        size = norms(operator, target)
        # The projection leaves the round-off of g, in the precision in which g arrived, and of its part in M V.
        terms = torch.maximum(norms(operator, g), norms(operator, g - once))
        enough = torch.maximum(self.options.tolerance * size, 8 * max(eps, self.options.eps) * terms)

        def allowed(z: Tensor) -> Tensor:
            # Products leave the round-off of A z. An iterate whose round-off is as large as the target is no solution.
            round_off = 8 * eps * self.operator.bound[:, None] * norms(operator, z)
            return torch.maximum(enough, round_off.minimum(ROUNDOFF_SHARE * size))

        found = self._inside(target, enough / size) if s.sigma is not None else self._compiled(target, enough, size)
        if found is None:
            found = conjugate_gradients(self.image, self.precondition, target, operator.dots, allowed, MOST_ITERATIONS)
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
            return self.operator.dots(x, weigh(y))

        start = self._outside(solve(target))
        allowed = share.nan_to_num(0) * dots(start, start).clamp_min(0).sqrt()
        z, _ = conjugate_gradients(
            lambda x: self._outside(x - far * solve(self.project(weigh(x)))),
            lambda x: x + guards @ (gains * self.operator.inner(weighted, x)),
            start,
            dots,
            lambda _: allowed,
            MOST_ITERATIONS,
        )
        return z, norms(self.operator, target - self.image(self._outside(z)))

    def _compiled(self, target: Tensor, enough: Tensor, size: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the conjugate gradients of compiled loops, graph by graph; None where none can be used."""
        matrix = self.s.operator.compiled
        if matrix is None or self._inverse is not None or not matrix.reads(target):
            return None
        # Large systems use several threads, and Python, in which an interrupt can act.
        if target[0].numel() > SINGLE_THREADED_NUMBERS:
            return None

        def plain(x: Tensor) -> Tensor:
            return x.detach().resolve_neg().contiguous()

        system = System(
            noise=ROUNDOFF_SHARE,
            limit=MOST_ITERATIONS,
            replaced=CHECK_EVERY,
            patience=STALE_CHECKS,
            vectors=plain(self.s.vectors),
            known=plain(self._known),
            values=plain(self.s.values),
            scales=plain(self._scales),
            rest=plain(self._rest[:, 0, 0]),
            split=plain(self._differences.are_equal.to(target.dtype)) if self._splits else None,
            enough=plain(enough),
            size=plain(size),
            round_off=plain(8 * torch.finfo(target.dtype).eps * self.s.operator.bound),
        )
        return matrix.complement(system, target)
