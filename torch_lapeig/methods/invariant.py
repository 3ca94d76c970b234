"""Encodings of nodes that do not depend on the signs of eigenvectors, or on the basis of an eigenspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_lapeig.eigen.gradient.matrix_functions import Expansion
from torch_lapeig.eigen.solve import Eigenpairs
from torch_lapeig.methods.filters import Response, check_pairs, expansion
from torch_lapeig.support import checks, precision
from torch_lapeig.support.kinds import refuse

Network = Callable[..., Tensor]


class SignInvariant(nn.Module):
    """Encoding φ(v) + φ(−v) of each eigenvector v on its own (SignNet, Lim et al. 2023): the same for either sign.

    It depends on the basis if eigenvalues are equal; `StableEncoding` does not.

    Args:
        phi: network on nodes: gets v and −v as ``(2, ..., k, N, 1)``, or with eigenvalues as ``(2, ..., k, N, 2)``, and
            returns ``(2, ..., k, N, w)``. It may mix nodes, and must not mix vectors or signs.

    >>> encode = SignInvariant(nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 4)))
    >>> vectors = torch.randn(10, 3)
    >>> torch.allclose(encode(vectors), encode(vectors * torch.tensor([1.0, -1.0, -1.0])))
    True
    """

    def __init__(self, phi: Network) -> None:
        super().__init__()
        checks.check_function(phi, "phi", "a network on (2, ..., k, N, 1)")
        self.phi = phi

    def forward(self, vectors: Tensor, values: Tensor | None = None, *context: Any) -> Tensor:
        """Return the encodings ``(..., N, k, w)`` of eigenvectors ``(..., N, k)``.

        Args:
            vectors: all eigenvectors, or some.
            values: their eigenvalues ``(..., k)``, for φ. Encodings of missing pairs (+∞) are zero.
            context: further arguments of φ, such as the edges.
        """
        if isinstance(vectors, Tensor):
            refuse(type(self), vectors=vectors)
        checks.check_floating(checks.half_to_float32(vectors), "vectors")
        if vectors.ndim < 2:
            raise ValueError(f"vectors must have shape (..., N, k), got {tuple(vectors.shape)}")
        signs = torch.stack([vectors.mT[..., None], -vectors.mT[..., None]])
        if values is None:
            return _encoded(self.phi, "phi", signs, context).sum(0).movedim(-3, -2)
        shape = (*vectors.shape[:-2], vectors.shape[-1])
        if values.shape != shape:
            raise ValueError(f"values must have shape {shape} to go with vectors, got {tuple(values.shape)}")
        present = values.isfinite()[..., None, None]
        level = torch.where(present, values[..., None, None], 0).to(signs).expand(signs.shape)
        found = _encoded(self.phi, "phi", torch.cat([signs, level], -1), context).sum(0)
        return torch.where(present, found, 0).movedim(-3, -2)


class StableEncoding(nn.Module):
    """Stable and expressive encoding Σ_j ρ(a_ij), a_ij = [V φ_l(Λ) Vᴴ]_ij for l = 1, …, m (SPE, Huang et al. 2024).

    It depends neither on signs (phases) nor on bases, and with smooth φ it changes little with the graph, however close
    eigenvalues are. Gradients to the graph are exact at equal eigenvalues.

    Args:
        phi: response with m channels to eigenvalues, see `spectral_function`.
        rho: network on nodes: gets columns j of the m matrices as ``(..., c, N, m)``, and returns ``(..., c, N, w)``.
            It may mix nodes (in the paper it passes messages along edges), and must not mix the c columns. Of complex
            pairs the entries are complex: ρ may take ``a.abs()``, or both parts, ``torch.view_as_real(a).flatten(-2)``.
        columns: number of columns at once: memory is O(N · columns · m), and the backward pass computes each part
            again. None: all.

    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> pairs = eigenpairs(Laplacian(KNN(5)(torch.rand(50, 3))), 8)
    >>> phi = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 4))
    >>> rho = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 6))
    >>> StableEncoding(phi, rho)(pairs).shape
    torch.Size([50, 6])
    """

    def __init__(self, phi: Response, rho: Network, *, columns: int | None = None) -> None:
        super().__init__()
        checks.check_function(phi, "phi", "a function of eigenvalues (n, 1), such as HeatResponse([1.0])")
        checks.check_function(rho, "rho", "a network on (..., c, N, m)")
        self.phi, self.rho = phi, rho
        self.columns = None if columns is None else checks.check_count(columns, "columns")

    def forward(self, pairs: Eigenpairs, *context: Any, mask: Tensor | None = None) -> Tensor:
        """Return the encodings ``(..., N, w)`` of the nodes.

        Args:
            pairs: of `eigenpairs`, with vectors ``(N, k)`` or ``(B, N, k)``.
            context: further arguments of ρ, such as the edges.
            mask: bool ``(N,)`` or ``(B, N)``, False for padding, whose rows are zero and whose columns do not count.
        """
        found, v, n = expansion(pairs, self.phi, type(self)), pairs.vectors, pairs.vectors.shape[-2]
        valid = torch.ones_like(v[..., 0], dtype=torch.bool) if mask is None else mask
        checks.check_mask(valid, v)

        def part(begin: int, end: int) -> Tensor:
            encoded = _encoded(self.rho, "rho", _entries(found, v, v[..., begin:end, :]), context)
            return torch.where(valid[..., begin:end, None, None], encoded, 0).sum(-3)

        if self.columns is None or self.columns >= n:
            total = part(0, n)
        else:
            from torch.utils.checkpoint import checkpoint  # slow to import: on torch 2.6 it loads SymPy

            begins = range(0, n, self.columns)
            total = sum(checkpoint(part, begin, begin + self.columns, use_reentrant=False) for begin in begins)
        return torch.where(valid[..., None], total, 0)


@precision.full_precision
def _entries(found: Expansion, rows: Tensor, columns: Tensor) -> Tensor:
    """Return entries of the matrices V φ_m(Λ) Vᴴ, ``(..., c, N, m)``, given rows of V."""
    z = found.bank(columns.mH)
    entries: Tensor = precision.matmul(rows, z.flatten(-2)).unflatten(-1, z.shape[-2:]).movedim(-2, -3)
    return entries


def _encoded(network: Network, name: str, columns: Tensor, context: tuple[Any, ...]) -> Tensor:
    """Return a network's result for columns ``(..., c, N, m)``, with its shape checked."""
    try:
        result = network(columns, *context)
    except RuntimeError as error:
        if not columns.is_complex():
            raise
        raise TypeError(
            f"{name} must take the complex entries of V φ(Λ) Vᴴ of a MagneticLaplacian; let it begin with a.abs(), or "
            "with torch.view_as_real(a).flatten(-2)"
        ) from error
    checks.check_instance(result, f"the result of {name}", Tensor, "a tensor")
    if result.shape[:-1] != columns.shape[:-1]:
        raise ValueError(f"{name} must return shape {(*columns.shape[:-1], 'w')}, got {tuple(result.shape)}")
    return result


class Canonical(NamedTuple):
    """Eigenvectors ``(..., N, k)`` in canonical bases, and bool ``(..., k)``: whether a column is determined.

    >>> Canonical(torch.zeros(5, 2), torch.tensor([True, False])).unique
    tensor([ True, False])
    """

    vectors: Tensor
    unique: Tensor


@precision.full_precision
def canonicalize(pairs: Eigenpairs, *, tolerance: float | None = None) -> Canonical:
    """Return eigenvectors in bases that follow from the graph alone, where possible (MAP, Ma, Wang & Wang 2023).

    In each eigenspace with projector P the nodes are grouped by ‖P e_i‖, largest first. The first vector is the
    direction of P x for the indicator x of the first group, the next one that of the second group, orthogonal to the
    first, and so on; groups that add nothing are left out. Vectors that an automorphism turns, such as those of a ring,
    have no such basis, and are not ``unique``; nor are those of an eigenspace that k cuts. Gradients are those of P x
    for fixed groups. Complex pairs get canonical phases in this way.

    Args:
        pairs: of `eigenpairs`, orthonormal. Eigenvalues closer than ten residuals or 50 eps of the largest are equal.
        tolerance: tolerance of ‖P e_i‖ and ‖P x‖; default √eps.

    >>> from torch_lapeig import Graph, Laplacian, eigenpairs
    >>> tree = torch.tensor([[0, 0, 0, 1, 2, 3, 3, 4], [1, 2, 3, 0, 0, 0, 4, 3]])
    >>> canonicalize(eigenpairs(Laplacian(Graph.from_edge_index(tree)), 5)).unique
    tensor([ True,  True, False,  True,  True])
    """
    check_pairs(pairs, "canonicalize")
    eps = torch.finfo(pairs.vectors.dtype).eps
    tolerance = eps**0.5 if tolerance is None else checks.check_positive(tolerance, "tolerance")
    (n, k), values = pairs.vectors.shape[-2:], checks.primal(pairs.values).reshape(-1, pairs.vectors.shape[-1])
    vectors, residuals = pairs.vectors.reshape(-1, n, k), pairs.residuals.reshape(-1, k).amax(1)
    unique = torch.zeros_like(values, dtype=torch.bool)
    found = []
    for b, gap in enumerate(pairs.gap.reshape(-1)):
        known = values[b][values[b].isfinite()]
        width = torch.maximum(10 * residuals[b], 50 * eps * known.norm())
        ends = [*((known.diff().abs() > width).nonzero().flatten() + 1).tolist(), len(known)]
        for begin, end in zip([0, *ends], [*ends, k], strict=True):  # the last are the missing pairs
            basis, count = _axes(vectors[b, :, begin:end], tolerance)
            found.append(basis)
            # Pairs nearest a number are cut at one of both ends.
            is_cut = end == len(known) or (begin == 0 and pairs.which == "nearest")
            unique[b, begin : begin + count] = end <= len(known) and (not is_cut or bool(gap > width))
    whole = torch.cat(found, 1).reshape(n, -1, k).movedim(0, 1)
    return Canonical(whole.reshape(pairs.vectors.shape), unique.reshape(pairs.values.shape))


def _axes(u: Tensor, tolerance: float) -> tuple[Tensor, int]:
    """Return a basis ``(N, d)`` of the span of orthonormal columns, and how many of its vectors are determined."""
    lengths, order = torch.linalg.vector_norm(checks.primal(u), dim=1).sort(descending=True)
    turn: list[Tensor] = []  # coordinates of the basis
    for group in order.tensor_split(((lengths.diff() < -tolerance).nonzero().flatten() + 1).tolist()):
        c = u[group].sum(0).conj()
        for other in turn + turn:  # twice is enough
            c = c - torch.linalg.vecdot(other, c) * other
        if len(turn) < u.shape[1] and float(checks.primal(c).norm()) > tolerance * len(group) ** 0.5:
            turn.append(c / torch.linalg.vector_norm(c))
    known = torch.stack(turn, 1) if turn else u.new_zeros(u.shape[1], 0)
    every = torch.cat([checks.primal(known), torch.eye(len(known)).to(u)], 1)
    others = torch.linalg.qr(every).Q[:, len(turn) :]
    return precision.matmul(u, torch.cat([known, others], 1)), len(turn)
