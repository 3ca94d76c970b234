"""The magnetic Laplacian of a directed graph, solved by the real form of `torch_lapeig.eigen.matrices`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.laplacian import Laplacian, warn_of_isolated
from torch_lapeig.eigen.matrices import real_form
from torch_lapeig.eigen.solve import Eigenpairs, Solve, pairs_of_real_form
from torch_lapeig.eigen.solvers.solver import Solver
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.directed import DirectedGraph
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
        if not isinstance(q, Tensor):
            is_many = isinstance(q, (Sequence, np.ndarray)) and not isinstance(q, str)
            each: Any = q if is_many else [q]
            q = torch.tensor([checks.check_number(one, "q") for one in each], dtype=torch.float64)
            q = q if is_many else q[0]
        if q.is_complex() or q.dtype == torch.bool or q.ndim > 1 or q.numel() == 0:
            raise ValueError(f"q must be real numbers of shape () or (Q,), got {q.dtype} of shape {tuple(q.shape)}")
        checks.check_finite(q, "q", "give finite charges")
        self.graph, self.normalization, self.q = graph, normalization, usable(q.to(graph.weight))
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
        pattern, values = real_form(plain.pattern, *self._couplings(plain.values), lead)

        def at_parts(nodes: Tensor) -> Tensor:
            return nodes.reshape(batch, 1, -1, 1).expand(batch, count, -1, 2).reshape(batch * count, -1)

        diagonal, bound = at_parts(plain.diagonal).reshape(pattern.shape), plain.bound.repeat_interleave(count)
        values, diagonal, bound = (part.to(self.q.dtype) for part in (values, diagonal, bound))
        return SymmetricOperator(pattern, values, diagonal, bound, active=at_parts(plain.active), trusted=True)

    def _couplings(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return real and imaginary part of M ∘ exp(iΘ) for M on the edges, with an axis of all q at the end."""
        pattern, s, q = self.graph.pattern, self._laplacian.scale, self.q.reshape(-1)
        forth, back = self.graph.weight, pattern.transpose(self.graph.weight)
        half, net = forth / 2 + back / 2, forth / 2 - back / 2
        is_edge = (half > 0) | (pattern.without_loops(torch.ones_like(half)) == 0)
        # The inverse of a subnormal number may be infinite.
        unit = torch.where(half < 1, half.new_tensor(torch.finfo(half.dtype).tiny ** -0.5), 1)
        angle = 2 * math.pi * (net * unit / torch.where(half > 0, half * unit, 1))[..., None] * q
        cos = angle.cos()  # 0 for a quarter turn, instead of round-off, with its derivative: solvers leave zeros out
        cos = cos - checks.primal(cos.masked_fill(cos.abs() > torch.finfo(cos.dtype).eps, 0))
        # A pair of weights 0 has the derivatives of one positive weight, in whose direction M ∘ exp(iΘ) is linear.
        full, is_edge = 2 * math.pi * q, is_edge[..., None]
        real = torch.where(is_edge, values[..., None] * cos, pattern.scaled(half, s)[..., None] * full.cos())
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

        Raises: ConvergenceError: with ``on_failure="raise"``, or where a solver has missed a copy of an eigenvalue.
        """
        solve = Solve.of(solve, **options)
        pairs = pairs_of_real_form(self.symmetric, self.shape, k, solve, fill)
        warn_of_isolated(self._laplacian.active, self.graph.mask)
        return pairs
