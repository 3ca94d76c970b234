"""The magnetic Laplacian of a directed graph, solved as a real symmetric matrix of twice the size.

H = P + iR is Hermitian. The real matrix A of 2 × 2 blocks [[P_jl, −R_jl], [R_jl, P_jl]] acts on (Re z_j, Im z_j) as H
on z. It has each eigenvalue of H twice: for the real forms of z and of iz. So 2k real pairs V, Λ are solved for, and k
complex pairs are combined of them. Let Z ``(N, 2k)`` be the complex form of V. Zᴴ Z has k eigenvalues 2 and k
eigenvalues 0. With the eigenvectors E of the former, Q = Z E / √2 is an orthonormal basis of the complex eigenspaces.
The eigenvectors S of Qᴴ H Q separate these: Y = Q S. Where k splits a multiple eigenvalue, 2k real pairs hold a part of
its eigenspace, and Zᴴ Z has eigenvalues between 0 and 2: the k largest are used.

Gradients. E and S are constants: Y = Z W / √2 and Yᴴ H Y = Wᴴ Λ W with W = E S. The rule of the real pairs leaves out
rotations within the eigenspaces of A. Such a rotation of Z turns Y, to first order, by a unitary matrix within the
eigenspace of H, so that losses which do not depend on the basis of an eigenspace have exact gradients. The phase that
makes an entry of each vector real is differentiated, so that vectors of simple eigenvalues may be used in any loss.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.gradient.rule import values_of
from torch_lapeig.eigen.laplacian import Laplacian, warn_of_isolated
from torch_lapeig.eigen.matrices import Hermitian, entries_of_matrix, operator_of_entries
from torch_lapeig.eigen.normal import in_unit
from torch_lapeig.eigen.solve import Eigenpairs, Solve, eigenpairs, pairs_of_complex
from torch_lapeig.eigen.solvers.solver import Solver
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.directed import DirectedGraph
from torch_lapeig.graph.pattern import DensePattern, Pattern, SparsePattern, first_of_largest
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import deep_copy, derived_property, own_state, usable


class MagneticLaplacian:
    """Magnetic Laplacian H = D_s − W_s ∘ exp(iΘ) of a directed graph, or I − D_s^-½ (W_s ∘ exp(iΘ)) D_s^-½.

    W_s = (W + Wᵀ) / 2 has the degrees D_s. Θ = 2πq (W − Wᵀ) / (W + Wᵀ) is the phase of each edge: 2πq from the start of
    an arc to its end, 0 where both directions have one weight (MagNet, Zhang et al. 2021, for weights of 0 and 1). H is
    Hermitian and positive semidefinite. With q = 0 it is the Laplacian of W_s. On a tree every q gives the spectrum of
    q = 0: the phases of a graph show in its cycles.

    Args:
        graph: directed graph or batch, sparse or dense; gradients flow to its weights. Where both directions have
            weight 0, the gradient is the derivative towards one positive weight.
        q: charge, a finite number, usually in [0, ¼]; or several, a sequence or tensor ``(Q,)``, which are solved
            together (Huang et al. 2024). Gradients flow to a tensor.
        normalization: ``"symmetric"``, with a spectrum in [0, 2], or ``"unnormalized"``.

    Attributes:
        graph, normalization: as given. q: tensor ``()`` or ``(Q,)`` in the dtype of the weights.
        shape: ``(N,)``, ``(B, N)``, ``(Q, N)`` or ``(B, Q, N)``.

    Raises:
        TypeError, ValueError: no `DirectedGraph`, no nodes, a ``q`` that is not finite, an unknown ``normalization``.

    >>> # a directed triangle
    >>> arcs = torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> laplacian = MagneticLaplacian(DirectedGraph.from_edge_index(arcs), q=1 / 3)
    >>> # 1 − cos(2π j / 3)
    >>> laplacian.eigenpairs(2).values.round(decimals=5)
    tensor([0.0000, 1.5000])
    """

    def __init__(
        self,
        graph: DirectedGraph,
        q: float | Sequence[float] | Tensor = 0.25,
        normalization: Literal["symmetric", "unnormalized"] = "symmetric",
    ) -> None:
        checks.check_choice(normalization, "normalization", ("symmetric", "unnormalized"))
        expected = "a DirectedGraph; see DirectedGraph.from_edge_index"
        checks.check_instance(graph, "graph", DirectedGraph, expected)
        self.graph, self.normalization, self.q = graph, normalization, _charges(q, graph.weight)
        self.shape = (*graph.shape[:-1], *self.q.shape, graph.num_nodes)
        self._sources = (graph.weight, self.q)

    __getstate__, __deepcopy__ = own_state, deep_copy

    @derived_property
    def _laplacian(self) -> Laplacian:
        return Laplacian(self.graph.affinities(), self.normalization)

    @derived_property
    def symmetric(self) -> SymmetricOperator:
        """Return the real form, of 2N nodes: real and imaginary part of each node side by side; ``(B · Q, 2N)``."""
        plain, count, batch = self._laplacian.symmetric, self.q.numel(), self.graph.batch_size
        lead = () if len(self.shape) == 1 else (batch * count,)
        pattern, values = _real_form(plain.pattern, *self._couplings(plain.values), lead)

        def at_parts(nodes: Tensor) -> Tensor:
            return nodes.reshape(batch, 1, -1, 1).expand(batch, count, -1, 2).reshape(batch * count, -1)

        return SymmetricOperator(
            pattern,
            values.to(self.q.dtype),
            at_parts(plain.diagonal).reshape(pattern.shape).to(self.q.dtype),
            bound=plain.bound.repeat_interleave(count).to(self.q.dtype),
            active=at_parts(plain.active),
            trusted=True,
        )

    def _couplings(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return real and imaginary part of M ∘ exp(iΘ) for M on the edges, with an axis of all q at the end."""
        pattern, s, q = self.graph.pattern, self._laplacian.scale, self.q.reshape(-1)
        forth, back = self.graph.weight, pattern.transpose(self.graph.weight)
        half, net = forth / 2 + back / 2, forth / 2 - back / 2
        is_edge = (half > 0) | (pattern.without_loops(torch.ones_like(half)) == 0)
        # The inverse of a subnormal number may be infinite.
        unit = torch.where(half < 1, half.new_tensor(torch.finfo(half.dtype).tiny ** -0.5), 1)
        angle = 2 * math.pi * (net * unit / torch.where(half > 0, half * unit, 1))[..., None] * q
        # A pair of weights 0 has the derivatives of one positive weight, in whose direction M ∘ exp(iΘ) is linear.
        full, is_edge = 2 * math.pi * q, is_edge[..., None]
        real = torch.where(is_edge, values[..., None] * angle.cos(), pattern.scaled(half, s)[..., None] * full.cos())
        turn = torch.where(is_edge, values[..., None] * angle.sin(), pattern.scaled(net, s)[..., None] * full.sin())
        return real, turn

    def to_dense(self) -> Tensor:
        """Return H, complex, of the shape ``(*shape, N)``, with gradients."""
        n = self.shape[-1]
        parts = self.symmetric.to_dense().reshape(-1, n, 2, n, 2)
        return torch.complex(parts[:, :, 0, :, 0], parts[:, :, 1, :, 0]).reshape(*self.shape, n)

    @precision.full_precision
    def eigenpairs(
        self, k: int, solve: Solve | Solver | None = None, *, fill: bool = False, **options: Any
    ) -> Eigenpairs:
        """Compute the ``k`` smallest eigenpairs of H, each once, differentiable in the weights and in q.

        Args:
            k, solve, fill, options: see `torch_lapeig.eigenpairs`. The solver has 2k real pairs of 2N nodes, and its
                warnings count these. ``degeneracy="exact"`` and ``cluster_width`` are refused, because each real pair
                comes twice.

        Returns:
            Real values ``(..., k)`` and complex, orthonormal vectors ``(*shape, k)``; ``(..., )`` is the shape without
            N. The entry of largest magnitude of each vector is real and positive (the first within 0.1 % of it).
            ``projected`` is Yᴴ H Y as a complex matrix ``(..., k, k)``. Gradients are exact for every function of
            vectors of simple eigenvalues, and at multiple eigenvalues for functions that do not depend on the basis of
            an eigenspace, as in `torch_lapeig.eigenpairs`: Y φ(projected) Yᴴ.

        Raises:
            TypeError, ValueError: k out of range, an option that is unknown or refused. ConvergenceError: with
                ``on_failure="raise"``, or where a solver has missed a copy of an eigenvalue.
        """
        solve = Solve.of(solve, **options)
        pairs = _pairs_of_real_form(self.symmetric, self.shape, k, solve, fill)
        warn_of_isolated(self._laplacian.active, self.graph.mask)
        return pairs


@pairs_of_complex.register
def _pairs_of_hermitian(
    matrix: Hermitian, k: int, solve: Solve, *, mass: Any = None, fill: bool = False, largest: bool = False
) -> Eigenpairs:
    """Compute eigenpairs of complex Hermitian matrices by their real form; see `torch_lapeig.eigenpairs`."""
    if mass is not None:
        raise ValueError("mass must be None for a complex matrix; scale it: M^-½ A M^-½")
    pattern, values = entries_of_matrix(matrix.given, "matrix")
    values = -values[..., None]
    operator = operator_of_entries(*_real_form(pattern, values.real, values.imag, pattern.shape[:-1]))
    return _pairs_of_real_form(operator, pattern.shape, k, solve, fill, largest=largest)


def _pairs_of_real_form(
    operator: SymmetricOperator, shape: tuple[int, ...], k: int, solve: Solve, fill: bool, *, largest: bool = False
) -> Eigenpairs:
    """Return k complex pairs of the shape ``(..., N)`` from 2k real pairs."""
    if solve.degeneracy == "exact" or solve.cluster_width is not None:
        raise ValueError(
            'degeneracy must be "mask" or "lorentz", and cluster_width None, got '
            f"{solve.degeneracy!r} and {solve.cluster_width}: the real form has each eigenvalue twice"
        )
    k = checks.check_width(k, "k")
    if not checks.check_flag(fill, "fill") and 2 * k > operator.fewest_active:
        raise ValueError(
            f"k must be at most the number of nodes of positive degree, got k={k} with "
            f"{operator.fewest_active // 2} of them"
        )
    pairs = eigenpairs(operator, 2 * k, solve, fill=fill, largest=largest)
    batch, lead = operator.batch_size, shape[:-1]
    real, vectors = pairs.projected.reshape(batch, 2 * k, -1), pairs.vectors.reshape(batch, -1, 2 * k)
    present = pairs.values.reshape(batch, -1).isfinite()
    turn, columns, residuals = _combined(operator, checks.primal(real), checks.primal(vectors), present, largest)
    allowed = 100 * pairs.residuals.reshape(batch, -1).amax(1) + operator.round_off
    if (pairs.converged.reshape(batch) & (residuals.amax(1) > allowed)).any():
        raise checks.ConvergenceError(
            f"{pairs.solver} has missed a copy of an eigenvalue: its pairs do not combine to complex ones, with "
            f"residuals of up to {residuals.max():.2e}; use Eigh() or the default solver"
        )
    z = _complex(vectors)
    turn = turn.to(z)
    y, phase = with_real_peaks(z @ columns.to(z))
    inner = turn.mH @ (real.to(z) @ turn)
    values = values_of(inner, inner.real.dtype)
    # Zero with a derivative: functions of Λ alone then have no gradient to vectors, not even round-off.
    off = inner - checks.primal(inner)
    off = off - torch.diag_embed(off.diagonal(dim1=-2, dim2=-1))
    projected = torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1).real).to(z) + phase.mH * off * phase
    values = torch.where(present[:, ::2], values, torch.inf)
    return dataclasses.replace(
        pairs,
        values=values.reshape(*lead, k),
        vectors=y.reshape(*shape, k),
        projected=projected.reshape(*lead, k, k),
        residuals=residuals.to(values).reshape(*lead, k),
        gap=pairs.gap.reshape(lead),
        converged=pairs.converged.reshape(lead),
        resolved=pairs.resolved.reshape(lead),
    )


def _charges(q: Any, like: Tensor) -> Tensor:
    """Return charges as a tensor of the dtype and device of another; raise unless they are finite numbers."""
    if not isinstance(q, Tensor):
        is_one = not isinstance(q, (Sequence, np.ndarray)) or isinstance(q, str)
        numbers = checks.check_number(q, "q") if is_one else [checks.check_number(one, "q") for one in q]
        q = torch.tensor(numbers, dtype=torch.float64)
    if q.is_complex() or q.dtype == torch.bool or q.ndim > 1 or q.numel() == 0:
        raise ValueError(f"q must be real numbers of shape () or (Q,), got {q.dtype} of shape {tuple(q.shape)}")
    checks.check_finite(q, "q", "give finite charges")
    return usable(q.to(like))  # type: ignore[no-any-return]


def _complex(parts: Tensor) -> Tensor:
    """Return ``(B, 2N, m)``, real and imaginary part of each node side by side, as complex ``(B, N, m)``."""
    return torch.complex(parts[:, ::2], parts[:, 1::2])


def _real_form(pattern: Pattern, real: Tensor, imaginary: Tensor, lead: tuple[int, ...]) -> tuple[Pattern, Tensor]:
    """Return pattern and values of the 2 × 2 blocks of entries on the edges for each of Q charges, ``(..., Q)``."""
    rows = [torch.stack([real, -imaginary], -1), torch.stack([imaginary, real], -1)]
    n, count, blocks = pattern.shape[-1], real.shape[-1], torch.stack(rows, -2)
    shape = (*lead, 2 * n)
    if isinstance(pattern, DensePattern):
        values = blocks.reshape(-1, n, n, count, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return DensePattern(shape), values.reshape(*shape, 2 * n)
    # Node i of graph b, of number b · N + i, has the number (b · Q + j) · N + i for charge j.
    number, part = torch.arange(count, device=blocks.device), torch.arange(2, device=blocks.device)
    shift = (pattern.item.long()[:, None] * (count - 1) + number) * n
    row, col = (2 * (end.long()[:, None] + shift)[..., None, None] for end in (pattern.row, pattern.col))
    row, col = (one.flatten() for one in torch.broadcast_tensors(row + part[:, None], col + part))
    order = (row * (math.prod(lead) * 2 * n) + col).argsort()
    return SparsePattern.trusted(row[order], col[order], shape), blocks.flatten().index_select(0, order)


def with_real_peaks(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return vectors ``(B, N, k)`` turned so that their largest entries are positive, and the factors ``(B, 1, k)``."""
    place = first_of_largest(y)
    peak = y.gather(-2, place)
    is_missing = peak.detach() == 0
    peak = torch.where(is_missing, 1, peak)
    phase = peak.conj() / peak.abs()
    # Entries that are real by construction: a derivative of their imaginary part would be round-off.
    return (y * phase).scatter(-2, place, torch.where(is_missing, 0, peak.abs()).to(y)), phase


@torch.no_grad()
def _combined(
    operator: SymmetricOperator, projected: Tensor, vectors: Tensor, present: Tensor, largest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how 2k real pairs combine: W of Wᴴ Λ W and C of Y = Z C, ``(B, 2k, k)``, and residuals of Y ``(B, k)``."""
    k, vectors = vectors.shape[-1] // 2, vectors.double()
    exact, factor, _ = in_unit(operator.double().frozen())  # squares of residuals may leave the range of the dtype
    z, image, above = _complex(vectors), _complex(exact.matmul(vectors)), exact.above[:, None]
    # Every other missing column stands for a pair above the spectrum.
    lacking = 2.0 * ~present
    lacking[:, 1::2] = 0
    size, basis = torch.linalg.eigh(z.mH @ z + torch.diag_embed(lacking))
    basis = basis[..., k:]
    columns = basis * size[:, None, k:].rsqrt()
    action = z.mH @ image
    action = (action + action.mH) / 2 + torch.diag_embed(lacking * above)
    level, turn = torch.linalg.eigh(columns.mH @ action @ columns)
    columns, turn = columns @ turn, basis @ turn
    residuals = torch.linalg.vector_norm(image @ columns - (z @ columns) * level[:, None], dim=1)
    values = torch.where(present, projected.diagonal(dim1=1, dim2=2), operator.above[:, None])
    # Round-off may exchange equal values.
    order = (turn.abs().square() * values[..., None]).sum(1).argsort(stable=True, descending=largest)
    at, is_there = order[:, None, :].expand_as(turn), present[:, None, ::2]
    residuals = residuals.gather(1, order) * is_there[:, 0] / (1 if factor is None else factor[:, None])
    return turn.gather(2, at) * is_there, columns.gather(2, at) * is_there, residuals
