"""Entries of eigenvectors that round-off hides, at nodes whose degree is tiny beside the degrees of others.

For L y = λ D y a solver finds v = D^½ y, with an error of about eps in each entry. Where d_i is below eps times the
largest degree, D^-½ turns this error into an error of y_i that may exceed y_i itself, and the cotangent d_i^-½ ȳ_i of
v_i exceeds all others by far. But y_i follows from its neighbours by its own row of the problem,

    Y (1 − Λ) = P Y,    P = D^-1 W,

whose coefficients are of size 1. So where v_i is round-off, y_i is the solution of these rows, and its derivatives of
any order are the derivatives of this solution. Null vectors are known in closed form, but their derivatives have the
same error.

Some rows do not determine y_i: rows of nodes that are joined to all others by less than round-off, or for λ = 1 the row
of a node with one neighbour. There y_i stays d_i^-½ v_i, which has as many digits as v_i has above its noise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.graph.algebra import sum_of_groups
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.support import checks
from torch_lapeig.support.threads import solve_each

ACCURACY = 1e-2  # maximum error of an entry of y without a warning, relative to the largest entry of its column
# Shift of eigenvalues by round-off, so that undetermined rows do not spoil the others.
ROUNDOFF_SHIFT = torch.finfo(torch.float64).eps / 3


def tiny_degree_rows(
    laplacian: Laplacian, vectors: Tensor, y: Tensor, projected: Tensor, residuals: Tensor, gap: Tensor
) -> Tensor:
    """Return y = D^-½ v in which the rows that ``vectors`` v hide in round-off are solved for."""
    # Entries that are round-off stay so if there are too many of them, or if their rows do not determine them. A
    # `GraphWarning` counts them; derivatives treat them as constants.
    if laplacian.graph.pattern.is_sharded:
        checks.warn(
            "entries of eigenvectors at nodes of tiny degree are hidden in round-off, and are not solved for where the "
            "graph lies on several ranks: they are not accurate; use a larger bandwidth or more neighbours",
            checks.GraphWarning,
        )
        return y
    v, spectrum = checks.primal(vectors), checks.primal(projected).diagonal(dim1=-2, dim2=-1)
    root = checks.primal(laplacian.exact_degrees).reshape(v.shape[:2])[..., None].sqrt()
    top, eps = v.abs().amax(1, keepdim=True), torch.finfo(v.dtype).eps
    # At such sizes an error of eps is a relative error of eps^¾ of the entry.
    hidden = laplacian.tiny_degrees.reshape(v.shape[:2])[..., None] & (v.abs() < eps**0.25 * top)
    hidden = hidden & spectrum.isfinite()[:, None, :]
    null = torch.arange(v.shape[2], device=v.device) < laplacian.nullity[:, None]
    if not checks.needs_derivatives(vectors, y, projected):
        hidden = hidden & ~null[:, None, :]
    noise = (8 * eps + residuals[:, None, :]) * top  # error of an entry of v: rows of A have 1 on the diagonal
    # Angle by which the nearest other eigenvector may have mixed into each vector. A large one counts as zero: vectors
    # of such close values are a basis of a space, of no single eigenvectors.
    distance = (spectrum[:, :, None] - spectrum[:, None, :]).abs().nan_to_num(torch.inf)
    distance.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    beyond = spectrum[:, -1:] + gap[:, None] - spectrum  # distance of each value to the first unwanted one
    angle = (residuals + 8 * eps) / distance.amin(2).minimum(torch.where(spectrum.isfinite(), beyond, torch.inf))
    mixed = torch.where(angle <= 3 * eps**0.5, angle, 0)[:, None, :] * top
    differ = 10 * noise + mixed  # maximum difference of two answers
    size = checks.primal(y).abs()
    largest = torch.where(hidden, 0, size).amax(1, keepdim=True)
    lost = hidden & (noise + mixed > ACCURACY * root * size.maximum(largest))
    # Entries of Λ between null vectors are constant zeros; their derivatives would be products of large numbers.
    projected = torch.where(null[:, :, None] & null[:, None, :], checks.primal(projected), projected)
    for b in hidden.any(2).any(1).nonzero().flatten().tolist():
        nodes = hidden[b].any(1).nonzero().flatten()
        if hidden[b, nodes].numel() * len(nodes) > 2**24:  # numbers of k dense matrices of these rows
            continue
        inner, rhs, _ = rows = _rows(laplacian, b, nodes, torch.where(hidden[b], 0, y[b]), ~hidden[b])
        given, matrix = y[b, nodes], projected[b]

        def is_sound(trial: Tensor, ones: Tensor, b: int = b, nodes: Tensor = nodes) -> Tensor:
            # Rows of P sum to 1, so that constants are a solution. Where rows are nearly singular, the trial and the
            # constants are wrong by one factor.
            factor = torch.maximum((ones - 1).abs(), (1 / ones - 1).abs())
            agrees = (root[b, nodes] * trial - v[b, nodes]).abs() <= differ[b]
            return (trial.abs() * factor <= ACCURACY * largest[b]) & agrees

        unknown = _determined(rows, given, spectrum[b], hidden[b, nodes], is_sound)
        lost[b, nodes] &= ~unknown
        given = torch.where(lost[b, nodes], checks.primal(given), given)
        # Move known hidden entries to the right-hand side.
        rhs = rhs + inner @ torch.where(hidden[b, nodes] & ~unknown, given, 0)
        solved = _solved(inner, torch.where(unknown, rhs, given), matrix, unknown)
        solved = torch.where(null[b], checks.primal(given) + (solved - checks.primal(solved)), solved)
        y = y.index_put((torch.full_like(nodes, b), nodes), torch.where(unknown, solved, given))
    return _with_warnings(y, lost, null, "" if laplacian.graph.weight.dtype == y.dtype else ", or float64")


def _with_warnings(y: Tensor, lost: Tensor, null: Tensor, more: str) -> Tensor:
    """Warn of lost entries; null vectors are accurate, so warn of lost entries in them only in a derivative."""

    def warn(entries: Tensor, affected: str) -> None:
        if count := int(entries.sum()):
            checks.warn(
                f"{count} entries of eigenvectors at nodes of tiny degree are hidden in round-off: {affected} not "
                f"accurate; use a larger bandwidth or more neighbours{more}",
                checks.GraphWarning,
            )

    warn(lost & ~null[:, None, :], "they and their gradients are")
    delicate = lost & null[:, None, :]
    if delicate.any():
        if checks.is_dual(y):
            warn(delicate, "their derivatives are")
        if y.requires_grad:
            y = y.clone()  # clone, so that the hook is not on the caller's tensor
            y.register_hook(lambda cotangent: warn(delicate & (cotangent != 0), "their gradients are"))
    return y


def _rows(laplacian: Laplacian, b: int, nodes: Tensor, y: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of P = D⁻¹W at nodes of graph b, for ``y`` ``(N, k)`` that is zero but at ``known`` entries."""
    # The parts are P among the m nodes, `(m, m)`, and the sums `(m, k)` of P y and of P over known entries.
    pattern, n, values = laplacian.graph.pattern, laplacian.graph.num_nodes, laplacian.walk
    both = torch.cat([y, known.to(y.dtype)], 1)
    if not isinstance(pattern, SparsePattern):
        rows = values.reshape(-1, n, n)[b, nodes]
        rhs, leak = (rows @ both).chunk(2, 1)
        return rows[:, nodes], rhs, leak
    among, edges = pattern.restrict(nodes + b * n)
    position, edge = pattern.edges_of(nodes + b * n)
    terms = values[edge, None] * both[pattern.col[edge].long() - b * n]
    rhs, leak = sum_of_groups(terms, position, len(nodes)).chunk(2, 1)
    return among.to_dense(values[edges]), rhs, leak


@torch.no_grad()
def _determined(
    rows: tuple[Tensor, ...], given: Tensor, values: Tensor, hidden: Tensor, is_sound: Callable[..., Tensor]
) -> Tensor:
    """Return the hidden entries, bool ``(m, k)``, for which the rows have a sound solution."""
    inner, rhs, leak, given = map(checks.primal, (*rows, given))
    both, unknown = torch.stack([given, torch.ones_like(given)]), hidden
    for _ in range(20):  # rounds of leaving out undetermined entries
        rest = torch.stack([rhs, leak - values]) + inner @ torch.where(hidden & ~unknown, both, 0)
        sound = is_sound(*_solve_rows(inner, values + ROUNDOFF_SHIFT, unknown, torch.where(unknown, rest, both)))
        if (sound | ~unknown).all():
            return unknown
        unknown = unknown & sound
    return torch.zeros_like(unknown)


def _solved(inner: Tensor, sides: Tensor, projected: Tensor, unknown: Tensor) -> Tensor:
    """Solve the rows Y (1 − Λ) = P Y for unknown entries, with derivatives; the others are the entries of ``sides``."""
    values = projected.diagonal()
    y = _solve_rows(inner, values + ROUNDOFF_SHIFT, unknown, sides[None])[0]
    # Zero with first and second derivatives: the entries of Λ off its diagonal.
    off = projected - torch.diag_embed(values)
    if torch.is_grad_enabled() or checks.is_dual(off):
        for _ in range(2):
            again = sides + torch.where(unknown, y @ off, 0)
            y = _solve_rows(inner, values + ROUNDOFF_SHIFT, unknown, again[None])[0]
    return y


def _solve_rows(inner: Tensor, values: Tensor, unknown: Tensor, sides: Tensor) -> Tensor:
    """Solve (1 − λ) Y − P Y = SIDES for unknown entries, ``(s, m, k)``; the others are those of SIDES."""
    which = unknown.mT[..., None]
    eye = torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
    matrix = torch.where(which, (1 - values)[:, None, None] * eye - inner * which.mT, eye)
    return solve_each(matrix, sides.permute(2, 1, 0), check=False).permute(2, 1, 0)
