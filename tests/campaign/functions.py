"""Functions of the smallest eigenpairs of a Laplacian: by the library, and densely in float64 with exact derivatives.

Each is F = V f(Λ) Vᵀ for the first k pairs. The loss is ⟨H, F⟩ + 0.3 ⟨H, F ∘ F⟩ of a random symmetric H, whose
cotangents are rough, or N Σ F_nn², whose cotangents are as smooth as the vectors: they are the harder ones for the
linear solve of the backward. Where f is a function of the eigenvalue ("projector", "heat", "filter", "diffusion") the
loss is blind to the basis of an eigenspace; "columns" weights each vector by a number of its own and is not.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.campaign.edges import Edges, graph_of
from tests.campaign.reference import dense_laplacian
from torch_lapeig import Laplacian, LaplacianEigenmaps, Precomputed, eigenpairs
from torch_lapeig.methods import spectral_function

KINDS = ["projector", "heat", "filter", "columns", "diffusion"]


@dataclass(frozen=True)
class Function:
    """One of the ``KINDS`` with its parameter (a time, or the seed of the numbers) and what else defines the loss."""

    kind: str
    parameter: float
    k: int
    normalization: str
    seed: int
    smooth: bool = False

    def at(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return F's eigenvalues f and their derivatives f' at the first k eigenvalues."""
        if self.kind == "heat":
            f = (-self.parameter * values).exp()
            return f, -self.parameter * f
        if self.kind == "filter":  # rises and falls
            t = self.parameter * values
            return t.sin() + 1 / (1 + t), self.parameter * (t.cos() - (1 + t) ** -2)
        if self.kind == "diffusion":  # squares of |1 − λ|^τ
            rest, power = 1 - values, 2 * self.parameter
            return rest.abs() ** power, -power * rest.sign() * rest.abs() ** (power - 1)
        if self.kind == "columns":
            return self.numbers(len(values)).to(values), torch.zeros_like(values)
        return torch.ones_like(values), torch.zeros_like(values)

    def numbers(self, count: int) -> Tensor:
        """Return distinct weights of the columns, in no order."""
        return torch.from_numpy(0.5 + np.random.default_rng(self.seed).permutation(count) / count)

    def loss(self, f: Tensor) -> Tensor:
        if self.smooth:
            return len(f) * f.diagonal().square().sum()
        matrix = _random_matrix(self.seed + 1, len(f)).to(f)
        return (matrix * f).sum() + 0.3 * (matrix * f.square()).sum()

    def by_library(self, edges: Edges, log_scale: Tensor, solver: Any, dense: bool) -> Tensor:
        """Return the loss where each weight is multiplied by the exponential of its ``log_scale``."""
        weight = torch.from_numpy(edges.weight).to(log_scale.dtype) * log_scale.exp()
        graph = graph_of([edges], log_scale.dtype, dense=dense, weights=[weight])
        if self.kind == "diffusion":
            options: Any = {"normalization": self.normalization, "diffusion": self.parameter, "solve": solver}
            y = LaplacianEigenmaps(self.k - 1, Precomputed("affinity"), scale="degree", **options)(graph)
            return self.loss(y @ y.mT)
        pairs = eigenpairs(Laplacian(graph, self.normalization), self.k, solver)  # type: ignore[arg-type]
        v = pairs.vectors
        if self.kind == "heat":
            return self.loss(v @ torch.matrix_exp(-self.parameter * pairs.projected) @ v.mT)
        if self.kind == "filter":
            return self.loss(v @ spectral_function(pairs, lambda values: self.at(values)[0])[0] @ v.mT)
        return self.loss((v * self.numbers(self.k).to(v)) @ v.mT if self.kind == "columns" else v @ v.mT)

    def by_reference(self, edges: Edges, log_scale: Tensor) -> Tensor:
        """Return the same densely in float64."""
        matrix, degrees, active = dense_laplacian(edges, log_scale, self.normalization)
        f: Tensor = Spectral.apply(matrix, active, self)
        if self.kind == "diffusion":
            whole = torch.where(active, torch.ones_like(degrees), 0)
            null = whole if self.normalization == "unnormalized" else torch.where(active, degrees, 1).sqrt() * whole
            f = f - null[:, None] * null / null.square().sum()
        if self.normalization == "random_walk":
            factor = torch.where(active, torch.where(active, degrees, 1).rsqrt(), 0)
            f = factor[:, None] * f * factor
        return self.loss(f)


@functools.lru_cache(maxsize=2)
def _random_matrix(seed: int, n: int) -> Tensor:
    h = np.random.default_rng(seed).standard_normal((n, n))
    return torch.from_numpy(h + h.T)


class Spectral(torch.autograd.Function):
    """A -> V f(Λ) Vᴴ of its k smallest pairs; the derivative by Daleckii and Krein's divided differences."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, active: Tensor, function: Function) -> Tensor:
        shift = torch.where(active, 0.0, 1 + 4 * matrix.diagonal().real.max())  # inactive nodes last
        values, vectors = torch.linalg.eigh(matrix + torch.diag(shift).to(matrix))
        k = min(function.k, int(active.sum()))
        f, slope = torch.zeros_like(values), torch.zeros_like(values)
        f[:k], slope[:k] = function.at(values[:k])
        ctx.save_for_backward(values, vectors, f, slope)
        ctx.k = k
        found: Tensor = (vectors * f) @ vectors.mH
        return found

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        values, vectors, f, slope = ctx.saved_tensors
        difference = values[:, None] - values
        inside = torch.arange(len(values)) < ctx.k
        # Of nearly equal values within the first k the quotient is the derivative in their middle, to second order.
        near = (difference.abs() <= 1e-7 * values.abs().max()) & (inside[:, None] == inside)
        quotient = (f[:, None] - f) / torch.where(near | (difference == 0), 1, difference)
        quotient = torch.where(near, (slope[:, None] + slope) / 2, quotient)
        middle = vectors.mH @ ((cotangents[0] + cotangents[0].mH) / 2) @ vectors
        gradient: Tensor = vectors @ (quotient * middle) @ vectors.mH
        return gradient, None, None
