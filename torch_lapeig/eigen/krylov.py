"""Krylov spaces of one vector, with as little orthogonalising as keeps their Ritz pairs right.

Lanczos vectors q_j obey A q_j = β_{j−1} q_{j−1} + α_j q_j + β_j q_{j+1}. They are orthogonal but for round-off, which
grows along the Ritz vectors that converge. How far it has grown obeys the same recurrence (Simon 1984): with T = Qᵀ A Q
and ω_j = Qᵀ q_j,

    β_j ω_{j+1} = (T − α_j) ω_j − β_{j−1} ω_{j−1} + round-off,

for a few numbers in the place of whole vectors. So it is known without a look at these when the next two have to be
orthogonalised against all others: every ten steps or so, where doing so each time would be most of the work.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lapeig._compiled import Krylov, Rows
from torch_lapeig._compiled.ritz import ritz_values
from torch_lapeig._tuning import ALIGNMENT
from torch_lapeig.eigen.blocks import first_pairs, shared, to_device, to_host
from torch_lapeig.eigen.operator import Operator

# Inner products of Lanczos vectors that are let stand, as a power of round-off. T stays the projection on their span,
# but for round-off, up to its root (Simon 1984, theorem 4); what is kept over many restarts needs some room.
LOSS = 0.7
NOISE = 10  # units of round-off that a step, or orthogonalising, leaves


class KrylovSpace:
    """Orthonormal vectors as rows, the null vectors before them, with the projection T = Vᵀ A V of the operator.

    Args:
        size: number of the vectors at most. seed: of the first one.

    Attributes:
        rows: ``(c + size + 1, N)``: null vectors, basis, and the direction that follows. ``columns``: their transpose.
        first: c, the row of the first vector of the basis.
        filled: vectors whose products are known. kept: of these, Ritz vectors that the space began anew with.
        products: with the operator so far.
    """

    def __init__(self, operator: Operator, null: Tensor, size: int, seed: int) -> None:
        self.operator, self.seed, self.size, self.first = operator, seed, size, null.shape[1]
        step = ALIGNMENT // null.element_size()
        self.rows = null.new_empty(self.first + size + 1, -(-len(null) // step) * step)[:, : len(null)]
        self.columns = self.rows.mT
        self.rows[: self.first] = null.mT
        self.rows[self.first] = self._random(self.columns[:, : self.first], seed)
        self.filled = self.kept = self.products = 0
        self.forgets = False
        self.shift = 0.5 * float(operator.bound)  # as much of A v as possible is not parallel to v: less cancels
        eps = torch.finfo(null.dtype).eps
        self.round_off = NOISE * eps * float(operator.bound)
        self.small = Projection(self.first, size, self.shift, NOISE * eps, eps**LOSS)
        self._sweep = partial(_sweep, operator, self.rows, null.new_zeros(size, size), self.first, self.shift)
        matrix = operator.compiled
        self.compiled = matrix if matrix is not None and matrix.reads(self.rows) else None

    @property
    def is_ahead(self) -> bool:
        """Whether the host asks for a whole basis at a time, and does not look at each vector."""
        return self.rows.device.type != "cpu"

    def ritz_vectors(self, turn: Tensor) -> Tensor:
        """Vectors of these coordinates ``(filled, m)``, as rows ``(m, N)``."""
        basis = self.rows[self.first : self.first + len(turn)]
        return to_device(turn, basis).mT @ basis

    def following(self) -> Tensor:
        """The direction of what A leaves of the last vector outside the space."""
        end = self.first + self.filled
        if self.is_ahead:  # orthogonalised twice
            return self.rows[end]
        w, _, size = self._outside(self.columns[:, :end], self.rows[end])
        return w / size

    def restart(self, values: Tensor, vectors: Tensor, following: Tensor, *, forgets: bool = False) -> None:
        """Begin anew with Ritz vectors, rows, of these values, and a vector orthogonal to them.

        It ``forgets`` what A leaves of them outside the space unless `following` goes on with that. No recurrence then
        knows how much of it comes in with the vectors that follow: these are orthogonalised against all from then on.
        """
        self.forgets |= forgets
        self.filled = self.kept = kept = len(values)
        self.rows[self.first : self.first + kept] = vectors
        self.rows[self.first + kept] = following
        self.small.restart(values)

    def fill(self, upto: int) -> None:
        """Take in vectors until there are so many; where the host cannot look at each, as many as there is room for."""
        start = self.filled
        if self.is_ahead:
            self._fill_ahead()
            upto = self.size
        while self.filled < upto:
            if self.compiled is None:
                self._step(self.filled)
            else:
                self._compiled_steps(self.compiled, upto)
        self.products += self.filled - start

    def look(self, most: int) -> tuple[Tensor, Tensor]:
        """The smallest Ritz values, at most so many, and norms of their residuals, on the host. Raises: see `ritz`."""
        if self.compiled is None or (found := self.small.residuals(self.filled)) is None:
            values, _, residuals = self.ritz(most)
            return values, residuals
        values, residuals = (part[: min(most, self.filled)].to(self.rows.dtype) for part in found)
        return values, residuals

    def ritz(self, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """The smallest Ritz values, at most so many, the coordinates of their vectors, and residuals, on the host.

        Raises:
            torch.linalg.LinAlgError: the projection has no eigenvalues.
        """
        found = self.small.smallest(self.filled, min(most, self.filled))
        values, turn = shared(self.operator, *(part.to(self.rows.dtype) for part in found))
        return values, turn, self.small.beta * turn[-1].abs()

    def _step(self, j: int) -> None:
        """Take in the product of vector j, and make the next one."""
        small, end = self.small, self.first + j
        v, known = self.rows[end], self.columns[:, : end + 1]
        w = self.operator.matvec(v, self.shift)
        if j == self.kept or self.is_ahead or self.forgets:
            w, h, beta = self._outside_twice(known, w)
            small.take(end, h.double().cpu().numpy(), beta)
        else:
            w = w.sub_(self.rows[end - 1], alpha=small.beta)
            alpha = float(self.operator.inner(v, w))
            w = w.sub_(v, alpha=alpha)
            beta = math.sqrt(self.operator.inner(w, w))
            if self._is_lost(small.step(end, alpha, beta)):
                w, beta = self._mended(known, w, beta)
                small.mend(end)
        self.filled, small.beta = j + 1, beta if beta > self.round_off else 0.0
        if small.beta:
            torch.div(w, beta, out=self.rows[end + 1])
        elif j + 1 < self.size:
            self.rows[end + 1] = self._random(known, self.seed + j + 1)

    def _compiled_steps(self, matrix: Rows, upto: int) -> None:
        """What `_step` does, until there are so many vectors or the space is invariant."""
        with self.small.state(self.round_off, self.forgets) as state:
            self.filled = matrix.lanczos(self.rows, state, self.filled, upto, self.kept)
        if not self.small.beta and self.filled < self.size:
            end = self.first + self.filled
            self.rows[end] = self._random(self.columns[:, :end], self.seed + self.filled)

    def _is_lost(self, loss: float) -> bool:
        """Whether a vector has to be orthogonalised, for what it has lost beside what it may: the same on all ranks."""
        if self.operator.is_sharded:
            (all_loss,) = shared(self.operator, self.rows.new_tensor(loss))
            loss = float(all_loss)
        return not loss <= 1

    def _fill_ahead(self) -> None:
        """Fill the basis without a look at it, orthogonalising each vector twice; then the host waits, once.

        Where nothing of a product was left outside, what follows means nothing, and is done again.
        """
        projected, betas = self._sweep(self.filled)
        projected, betas = to_host(projected, betas)
        lost = (~(betas[self.filled : self.size - 1] > self.round_off)).nonzero()
        end, last = self.filled + int(lost[0]) if len(lost) else self.size, float(betas[-1])
        for j in range(self.filled, end):
            self.small.take(self.first + j, projected[: j + 1, j].double().numpy(), 0.0)
        self.filled, self.small.beta = end, last if last > self.round_off else 0.0

    def _mended(self, known: Tensor, w: Tensor, before: float) -> tuple[Tensor, float]:
        """A product of this norm after orthogonalising, and its norm: once more where most of it was lost."""
        w, _, beta = self._outside(known, w)
        if beta >= 0.5 * before:
            return w, beta
        w, _, beta = self._outside_twice(known, w)
        return w, beta

    def _outside_twice(self, known: Tensor, w: Tensor) -> tuple[Tensor, Tensor, float]:
        w, h, once = self._outside(known, w)
        w, again, beta = self._outside(known, w)
        # What was left was round-off: the basis is invariant.
        return w, h + again, beta if beta >= 0.5 * once else 0.0

    def _outside(self, known: Tensor, w: Tensor) -> tuple[Tensor, Tensor, float]:
        """The part of ``w`` outside orthonormal columns, its coordinates in them, and the norm of that part."""
        h = self.operator.inner(known, w)
        w = torch.addmv(w, known, h, alpha=-1)
        return w, h, math.sqrt(self.operator.inner(w, w))

    def _random(self, known: Tensor, seed: int) -> Tensor:
        """A random unit vector orthogonal to orthonormal columns."""
        w = self.operator.random(1, seed)[0, :, 0]
        for _ in range(2):
            w, _, size = self._outside(known, w)
            w = w / size
        return w


class Projection:
    """T, of A − shift, and how much of their orthogonality the last vectors have lost; in float64, on the host.

    Args:
        first: null vectors before the basis: of A − shift they are eigenvectors, too. size: of the basis at most.
        noise: round-off in an inner product of unit vectors. loss: what is let stand.

    Attributes:
        beta: norm of what the last product left outside the space; 0 where nothing was.
    """

    def __init__(self, first: int, size: int, shift: float, noise: float, loss: float) -> None:
        self.first, self.shift, self.noise, self.loss = first, shift, noise, loss
        self.matrix = np.zeros((first + size, first + size))
        self.losses, self.now = np.zeros((2, first + size + 1)), 0  # of the last vector and the one before, in turn
        self.is_mended, self.beta = False, 0.0
        self.restart(torch.zeros(0))

    def restart(self, values: Tensor) -> None:
        """That of null vectors and Ritz vectors of these values."""
        c = self.first
        self.matrix.fill(0)
        self.matrix.flat[:: len(self.matrix) + 1] = -self.shift
        self.matrix[range(c, c + len(values)), range(c, c + len(values))] += values.double().numpy()
        self.beta = 0.0

    @property
    def lost(self) -> np.ndarray:
        """Inner products of the last vector with those up to it, by the recurrence."""
        row: np.ndarray = self.losses[self.now]
        return row

    @property
    def before(self) -> np.ndarray:
        """Those of the vector before."""
        row: np.ndarray = self.losses[1 - self.now]
        return row

    @contextlib.contextmanager
    def state(self, round_off: float, twice: bool) -> Iterator[Any]:
        """For compiled steps, which change it. ``twice``: whether they orthogonalise all vectors against all others."""
        numbers = (self.beta, self.shift, self.noise, self.loss, round_off, len(self.matrix), self.first, self.now)
        state = Krylov(self.matrix.ctypes.data, self.losses.ctypes.data, *numbers, self.is_mended, twice)
        yield state
        self.beta, self.now, self.is_mended = state.beta, state.now, bool(state.is_mended)

    def take(self, end: int, h: np.ndarray, beta: float) -> None:
        """A product, of the vector in row ``end``, by its inner products with those up to it."""
        self.matrix[end - len(h) + 1 : end + 1, end] = h
        self.matrix[end, end - len(h) + 1 : end + 1] = h
        self._begin(self.before, end)
        self._begin(self.lost, end + 1)
        self.beta = beta

    def step(self, end: int, alpha: float, beta: float) -> float:
        """A product by the recurrence; and the largest loss of the vector it leads to, beside what is let stand."""
        matrix, now = self.matrix, self.lost
        matrix[end - 1, end] = matrix[end, end - 1] = self.beta
        matrix[end, end] = alpha
        loss = matrix[:end, : end + 1] @ now[: end + 1]
        loss -= alpha * now[:end]
        loss -= self.beta * self.before[:end]
        loss += np.copysign(self.noise * self.shift, loss)
        loss /= beta if beta > self.noise * self.shift else math.nan
        self.now = 1 - self.now
        self.lost[:end] = loss
        self.lost[end], self.lost[end + 1] = self.noise, 1
        if self.is_mended:  # the vector before was not orthogonal to all others, and hands that on
            self.is_mended = False
            return math.inf
        return float(np.abs(loss).max()) / self.loss

    def mend(self, end: int) -> None:
        """The last vector has been orthogonalised."""
        was_last = self.before[:end].max() if end else 0.0
        self._begin(self.lost, end + 1)
        self.is_mended = was_last > self.noise

    def _begin(self, lost: np.ndarray, end: int) -> None:
        lost[:end], lost[end] = self.noise, 1

    def residuals(self, m: int) -> tuple[Tensor, Tensor] | None:
        """Eigenvalues of T for the first ``m`` vectors and norms of residuals; None where that needs vectors."""
        whole = torch.from_numpy(self.matrix)[self.first :, self.first :]
        found = ritz_values(whole, m, whole.new_full((1, 1), self.beta**2))
        return None if found is None else (found[0] + self.shift, found[1])

    def smallest(self, m: int, most: int) -> tuple[Tensor, Tensor]:
        """The smallest eigenvalues of T for the first ``m`` vectors, and its eigenvectors."""
        part = self.matrix[self.first : self.first + m, self.first : self.first + m]
        if not np.isfinite(part).all():
            raise torch.linalg.LinAlgError("entries are not finite")  # type: ignore[attr-defined]
        values, turn = first_pairs(torch.from_numpy(part), most)
        return values[:most] + self.shift, turn


def _sweep(
    operator: Operator, rows: Tensor, projected: Tensor, first: int, shift: float, kept: int
) -> tuple[Tensor, Tensor]:
    """Write the vectors after the kept ones; their projection, and norms ``(size,)`` of what products left outside."""
    betas, tiny = rows.new_zeros(len(projected)), torch.finfo(rows.dtype).tiny
    for j in range(kept, len(projected)):
        known = rows[: first + j + 1].mT
        w = operator.matvec(rows[first + j], shift)
        h = operator.inner(known, w)
        w = torch.addmv(w, known, h, alpha=-1)
        again = operator.inner(known, w)
        w = torch.addmv(w, known, again, alpha=-1)
        projected[: j + 1, j] = (h + again)[first:]
        betas[j] = operator.inner(w, w).sqrt()
        torch.div(w, betas[j].clamp_min(tiny), out=rows[first + j + 1])
    return projected.clone(), betas
