"""Entries of eigenvectors that round-off hides: those at nodes whose degree is tiny beside that of others.

Of L y = λ D y a solver finds v = D^½ y, with an error of about eps in each entry. Where d_i is below eps times the
largest degree, D^-½ makes of it an error of y_i that may exceed y_i itself, and the cotangent d_i^-½ ȳ_i of v_i drowns
all others. But y_i follows from its neighbours by its own row of the problem,

    Y (1 − Λ) = P Y,    P = D^-1 W,

whose coefficients are of size 1. So where v_i is round-off, y_i is the solution of these rows, and its derivatives, of
any order, are theirs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.graph.groups import sum_of_groups
from torch_lapeig.graph.pattern import SparsePattern

MOST = 2**24  # entries of the dense matrices of one graph: k matrices of all its hidden rows


def with_tails(laplacian: Laplacian, vectors: Tensor, y: Tensor, projected: Tensor) -> Tensor:
    """Generalised eigenvectors with the rows that ``vectors`` hide in their round-off solved for.

    Args:
        laplacian: with ``normalization="random_walk"``: its values are P.
        vectors: v of the symmetric operator, ``(B, N, k)``.
        y: D^-½ v, ``(B, N, k)``.
        projected: Λ, ``(B, k, k)``, with gradients; see `Eigenpairs`.

    A `GraphWarning` says where there are too many of them, or where they are no better determined: such ``y`` stay.
    """
    if laplacian.graph.pattern.is_sharded:
        _checks.warn(
            "entries of eigenvectors at nodes of tiny degree are hidden in round-off, and are not solved for where the "
            "graph lies on several ranks: they are not accurate; use a larger bandwidth or more neighbours",
            _checks.GraphWarning,
        )
        return y
    size, spectrum = _checks.primal(vectors).abs(), _checks.primal(projected).diagonal(dim1=-2, dim2=-1)
    # At such sizes an error of eps is one of eps^¾ of the entry.
    small = torch.finfo(size.dtype).eps ** 0.25 * size.amax(1, keepdim=True)
    # Null vectors are in closed form.
    number = torch.arange(size.shape[2], device=size.device)
    proper = ((number >= laplacian.nullity[:, None]) & spectrum.isfinite())[:, None, :]
    hidden = laplacian.slight.reshape(size.shape[:2])[..., None] & (size < small) & proper
    lost = 0
    for b in hidden.any(2).any(1).nonzero().flatten().tolist():
        nodes = hidden[b].any(1).nonzero().flatten()
        unknown, given = hidden[b, nodes], y[b, nodes]
        solvable = unknown.new_zeros(unknown.shape[1])
        if unknown.numel() * len(nodes) <= MOST:
            inner, rhs = _rows(laplacian, b, nodes, torch.where(hidden[b], 0, y[b]))
            rows = (inner, torch.where(unknown, rhs, given), projected[b])
            inner, rhs, values = (_checks.primal(part) for part in rows)
            trial = _solve_rows(inner, rhs, values, unknown)
            root = _checks.primal(laplacian.degrees).reshape(size.shape[:2])[b, nodes, None].sqrt()
            # A solution that would not be small in v contradicts the solver: the rows nearly allow any.
            solvable = (~unknown | (root * trial.abs() <= 10 * small[b])).all(0)
            # Cotangents times solutions overflow float32 where their product with the rest does not.
            inner, rhs, values = (_checks.finite_gradient(part).double() for part in rows)
            solved = _solve_rows(inner, rhs, values, unknown & solvable).to(y.dtype)
            y = y.index_put((torch.full_like(nodes, b), nodes), torch.where(unknown & solvable, solved, given))
        lost += int((unknown & ~solvable).sum())
    if lost:
        _checks.warn(
            f"{lost} entries of eigenvectors at nodes of tiny degree are hidden in round-off: they and their gradients "
            "are not accurate; use a larger bandwidth, more neighbours, or float64",
            _checks.GraphWarning,
        )
    return y


def _rows(laplacian: Laplacian, b: int, nodes: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """P among some nodes of a graph ``(m, m)``, and the product of their rows of P with vectors ``(N, k)``."""
    pattern, m, n = laplacian.graph.pattern, len(nodes), laplacian.graph.num_nodes
    if not isinstance(pattern, SparsePattern):
        rows = laplacian.values.reshape(-1, n, n)[b, nodes]
        return rows[:, nodes], rows @ known
    position, edge = pattern.edges_of(nodes + b * n)
    share, col = laplacian.values[edge], pattern.col[edge].long() - b * n
    product = sum_of_groups(share[:, None] * known[col], position, m)
    number = torch.full((n,), -1, device=nodes.device).index_put((nodes,), torch.arange(m, device=nodes.device))[col]
    among = (number >= 0).nonzero().flatten()
    place = position[among] * m + number[among]
    return sum_of_groups(share[among], place, m * m).reshape(m, m), product


def _solve_rows(inner: Tensor, rhs: Tensor, projected: Tensor, unknown: Tensor) -> Tensor:
    """Rows ``(m, k)`` of Y (1 − Λ) − P Y = RHS where they are unknown, and RHS where not; ∞ or NaN if undetermined."""
    which = unknown.mT[..., None]
    eye = torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
    values = projected.diagonal()
    matrix = torch.where(which, (1 - values)[:, None, None] * eye - inner * which.mT, eye)

    def solve(right: Tensor) -> Tensor:
        solution: Tensor = torch.linalg.solve_ex(matrix, right.mT[..., None])[0][..., 0].mT
        return solution

    y = solve(rhs)
    # Zero, but for its derivatives, the first and the second: the entries of Λ off its diagonal.
    off = projected - torch.diag_embed(values)
    if torch.is_grad_enabled() or _checks.is_dual(off):
        for _ in range(2):
            y = solve(rhs + torch.where(unknown, y @ off, 0))
    return y
