"""Entries of eigenvectors that round-off hides: those at nodes whose degree is tiny beside that of others.

Of L y = λ D y a solver finds v = D^½ y, with an error of about eps in each entry. Where d_i is below eps times the
largest degree, D^-½ makes of it an error of y_i that may exceed y_i itself, and the cotangent d_i^-½ ȳ_i of v_i drowns
all others. But y_i follows from its neighbours by its own row of the problem,

    Y (1 − Λ) = P Y,    P = D^-1 W,

whose coefficients are of size 1. So where v_i is round-off, y_i is the solution of these rows, and its derivatives, of
any order, are theirs. Null vectors are known in closed form, but their derivatives drown alike.

Rows may leave y_i open: those of nodes that hang on all others by less than round-off in a row, or for λ = 1 those of a
node with one neighbour. There y_i stays d_i^-½ v_i, which has as many digits as v_i has above its noise.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._threads import solve_each
from torch_lapeig.eigen.laplacian import Laplacian, needs_derivatives
from torch_lapeig.graph.groups import sum_of_groups
from torch_lapeig.graph.pattern import SparsePattern

MOST = 2**24  # entries of the dense matrices of one graph: k matrices of all its hidden rows
NOISE = 8  # machine epsilons of the largest entry of v, which each entry may be off
ERROR = 1e-2  # of an entry of y, against the largest of its column, that is none to warn of
ROUNDS = 20  # of leaving entries out that their rows do not determine


def with_tails(
    laplacian: Laplacian, vectors: Tensor, y: Tensor, projected: Tensor, residuals: Tensor, gap: Tensor
) -> Tensor:
    """Generalised eigenvectors with the rows that ``vectors`` hide in their round-off solved for.

    Args:
        laplacian: with ``normalization="random_walk"``: its values are P.
        vectors: v of the symmetric operator, ``(B, N, k)``.
        y: D^-½ v, ``(B, N, k)``.
        projected: Λ, ``(B, k, k)``, with gradients; see `Eigenpairs`.
        residuals: of v, ``(B, k)``.
        gap: λ_{k+1} − λ_k, ``(B,)``.

    A `GraphWarning` says where entries are round-off and there are too many of them, or their rows leave them open:
    these are constants, to derivatives.
    """
    if laplacian.graph.pattern.is_sharded:
        _checks.warn(
            "entries of eigenvectors at nodes of tiny degree are hidden in round-off, and are not solved for where the "
            "graph lies on several ranks: they are not accurate; use a larger bandwidth or more neighbours",
            _checks.GraphWarning,
        )
        return y
    v, spectrum = _checks.primal(vectors), _checks.primal(projected).diagonal(dim1=-2, dim2=-1)
    root = _checks.primal(laplacian.degrees).reshape(v.shape[:2])[..., None].sqrt()
    top, eps = v.abs().amax(1, keepdim=True), torch.finfo(v.dtype).eps
    # At such sizes an error of eps is one of eps^¾ of the entry.
    hidden = laplacian.slight.reshape(v.shape[:2])[..., None] & (v.abs() < eps**0.25 * top)
    hidden = hidden & spectrum.isfinite()[:, None, :]
    null = torch.arange(v.shape[2], device=v.device) < laplacian.nullity[:, None]
    if not needs_derivatives(vectors, y, projected):
        hidden = hidden & ~null[:, None, :]
    noise = (NOISE * eps + residuals[:, None, :].to(v.dtype)) * top  # rows of A have 1 on the diagonal
    mixed = _mixed(spectrum, residuals.to(v.dtype), gap.to(v.dtype))[:, None, :]
    size = _checks.primal(y).abs()
    largest = torch.where(hidden, 0, size).amax(1, keepdim=True)
    lost = hidden & (noise > ERROR * root * size.maximum(largest))
    # Zeros among null vectors are constants, whose derivatives are products of large numbers.
    projected = torch.where(null[:, :, None] & null[:, None, :], _checks.primal(projected), projected)
    for b in hidden.any(2).any(1).nonzero().flatten().tolist():
        nodes = hidden[b].any(1).nonzero().flatten()
        if hidden[b, nodes].numel() * len(nodes) > MOST:
            continue
        rows = _Rows.of(laplacian, b, nodes, hidden[b], y[b], projected[b])
        differ = 10 * noise[b] + mixed[b] * top[b]  # by no more two answers agree
        unknown, trial = rows.determined(largest[b], root[b, nodes], v[b, nodes], differ)
        lost[b, nodes] &= ~unknown
        rows = rows.with_constants(lost[b, nodes], trial, ~null[b] & (v[b, nodes].abs() <= 10 * noise[b]))
        solved = rows.solve(unknown).to(y.dtype)
        solved = torch.where(null[b], _checks.primal(rows.given) + (solved - _checks.primal(solved)), solved)
        y = y.index_put((torch.full_like(nodes, b), nodes), torch.where(unknown, solved, rows.given))
    return _with_warnings(y, lost, null)


def _mixed(spectrum: Tensor, residuals: Tensor, gap: Tensor) -> Tensor:
    """Angle by which the nearest other eigenvector may have come into each, ``(B, k)``, which rows would take out.

    Zero where it is large: vectors of values that are so close are a basis of a space, no eigenvectors, and rows of one
    column alone do not hold.
    """
    distance = (spectrum[:, :, None] - spectrum[:, None, :]).abs().nan_to_num(torch.inf)
    distance = distance.masked_fill(torch.eye(distance.shape[-1], dtype=torch.bool, device=distance.device), torch.inf)
    angle = residuals / distance.amin(2).minimum(gap[:, None])
    return torch.where(angle <= 3 * torch.finfo(angle.dtype).eps ** 0.5, angle, 0)


def _with_warnings(y: Tensor, lost: Tensor, null: Tensor) -> Tensor:
    """Warn of lost entries: of null vectors, which themselves are accurate, where a derivative asks for them."""

    def warn(entries: Tensor, what: str) -> None:
        if count := int(entries.sum()):
            _checks.warn(
                f"{count} entries of eigenvectors at nodes of tiny degree are hidden in round-off: {what} not "
                "accurate; use a larger bandwidth, more neighbours, or float64",
                _checks.GraphWarning,
            )

    warn(lost & ~null[:, None, :], "they and their gradients are")
    delicate = lost & null[:, None, :]
    if delicate.any():
        if _checks.is_dual(y):
            warn(delicate, "their derivatives are")
        if y.requires_grad:
            y = y.clone()  # of whose own a hook is
            y.register_hook(lambda cotangent: warn(delicate & (cotangent != 0), "their gradients are"))
    return y


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of Y (1 − Λ) = P Y at m nodes of a graph, of which some entries are unknown."""

    inner: Tensor  # (m, m): P among the nodes
    rhs: Tensor  # (m, k): the sums over entries elsewhere that are known
    leak: Tensor  # (m, k): the sums of P itself over these
    given: Tensor  # (m, k): what stands for entries that are left out
    projected: Tensor  # (k, k)
    hidden: Tensor  # bool (m, k)

    @classmethod
    def of(cls, laplacian: Laplacian, b: int, nodes: Tensor, hidden: Tensor, y: Tensor, projected: Tensor) -> _Rows:
        """Those of graph ``b``, ``y`` and ``hidden`` of all its nodes."""
        known = torch.where(hidden, 0, torch.stack([y, torch.ones_like(y)]))
        inner, (rhs, leak) = _sums(laplacian, b, nodes, known)
        return cls(inner, rhs, leak, y[nodes], projected, hidden[nodes])

    @property
    def shift(self) -> float:
        """Of eigenvalues: round-off, by which rows that leave entries open do not spoil those of others."""
        return torch.finfo(self.inner.dtype).eps / 3

    def solve(self, unknown: Tensor) -> Tensor:
        """The rows solved for unknown entries, in float64 and with derivatives; the others as they are given."""
        rhs = self.rhs + self.inner @ torch.where(self.hidden & ~unknown, self.given, 0)
        sides = torch.where(unknown, rhs, self.given)
        # Cotangents times solutions overflow float32 where their product with the rest does not.
        inner, sides, projected = (_checks.finite_gradient(x).double() for x in (self.inner, sides, self.projected))
        values = projected.diagonal()

        def solved(right: Tensor) -> Tensor:
            return _solve_rows(inner, values + self.shift, unknown, right[None])[0]

        y = solved(sides)
        # Zero, but for its derivatives, the first and the second: the entries of Λ off its diagonal.
        off = projected - torch.diag_embed(values)
        if torch.is_grad_enabled() or _checks.is_dual(off):
            for _ in range(2):
                y = solved(sides + torch.where(unknown, y @ off, 0))
        return y

    @torch.no_grad()
    def determined(self, largest: Tensor, root: Tensor, v: Tensor, differ: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the hidden entries that their rows determine, bool ``(m, k)``; and what rows say of all of them.

        Well enough against entries as large as ``largest``, and not otherwise than the solver has: ``root`` y is v
        within ``differ``. What round-off in the rows does to a solution is what it does to constants, as rows of P sum
        to 1. Where they are nearly singular, both are off by one factor.
        """
        inner, rhs, leak, given = (_checks.primal(x) for x in (self.inner, self.rhs, self.leak, self.given))
        values, unknown, first = _checks.primal(self.projected).diagonal(), self.hidden, None
        both = torch.stack([given, torch.ones_like(given)])
        for _ in range(ROUNDS):
            rest = torch.stack([rhs, leak - values]) + inner @ torch.where(self.hidden & ~unknown, both, 0)
            trial, ones = _solve_rows(inner, values + self.shift, unknown, torch.where(unknown, rest, both))
            first = trial if first is None else first
            factor = torch.maximum((ones - 1).abs(), (1 / ones - 1).abs())
            is_sound = (trial.abs() * factor <= ERROR * largest) & ((root * trial - v).abs() <= differ)
            if (is_sound | ~unknown).all():
                return unknown, first
            unknown = unknown & is_sound
        assert first is not None
        return torch.zeros_like(unknown), first

    def with_constants(self, lost: Tensor, trial: Tensor, is_noise: Tensor) -> _Rows:
        """These with lost entries as constants: those that are noise as small as rows would have them."""
        given = _checks.primal(self.given)
        is_smaller = is_noise & (trial.abs() < given.abs())
        return dataclasses.replace(self, given=torch.where(lost, torch.where(is_smaller, trial, given), self.given))


def _sums(laplacian: Laplacian, b: int, nodes: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """P among some nodes of a graph ``(m, m)``, and the product of their rows of P with vectors ``(..., N, k)``."""
    pattern, m, n = laplacian.graph.pattern, len(nodes), laplacian.graph.num_nodes
    if not isinstance(pattern, SparsePattern):
        rows = laplacian.values.reshape(-1, n, n)[b, nodes]
        return rows[:, nodes], rows @ known
    position, edge = pattern.edges_of(nodes + b * n)
    share, col = laplacian.values[edge], pattern.col[edge].long() - b * n
    terms = (share[:, None] * known[..., col, :]).movedim(-2, 0)
    product = sum_of_groups(terms, position, m).movedim(0, -2)
    number = torch.full((n,), -1, device=nodes.device).index_put((nodes,), torch.arange(m, device=nodes.device))[col]
    among = (number >= 0).nonzero().flatten()
    place = position[among] * m + number[among]
    return sum_of_groups(share[among], place, m * m).reshape(m, m), product


def _solve_rows(inner: Tensor, values: Tensor, unknown: Tensor, sides: Tensor) -> Tensor:
    """Y ``(s, m, k)`` of (1 − λ) Y − P Y = SIDES where entries are unknown, and SIDES elsewhere; see `solve_each`."""
    which = unknown.mT[..., None]
    eye = torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
    matrix = torch.where(which, (1 - values)[:, None, None] * eye - inner * which.mT, eye)
    return solve_each(matrix, sides.permute(2, 1, 0), check=False).permute(2, 1, 0)
