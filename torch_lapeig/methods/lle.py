"""Locally linear embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from torch_lapeig.eigen import Eigenpairs, Solve, Solver, SymmetricOperator, eigenpairs
from torch_lapeig.graph import KNN, Neighbors, SparsePattern, nearest_neighbors
from torch_lapeig.graph.algebra import sum_of_groups
from torch_lapeig.graph.search.exact import least_reach, measured
from torch_lapeig.methods.module import EmbeddingModule
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State, in_blocks
from torch_lapeig.support.kinds import refuse
from torch_lapeig.support.threads import solve_each


class LLE(EmbeddingModule):
    """Locally linear embedding (Roweis & Saul 2000), differentiable.

    Each point is reconstructed from its neighbours by weights of sum 1. They solve C w = 1 with the local Gram matrix
    C_jl = (x_j − x)·(x_l − x), to whose diagonal reg · tr C is added. The columns are the eigenvectors of
    (I − W)ᵀ(I − W) of the smallest eigenvalues after the constant one, with Yᵀ Y = I. A new point has the row
    y(x) = Σ_i w(x, i) y_i with weights of its own; one that equals a training point gets its row (the first of several
    copies), and a gradient of zero. The computation is in float64: the eigenvalues are often 10⁻¹⁰ of the largest.

    Args:
        n_components: dimension of the embedding, below the number of points.
        neighbors: ``KNN(k)`` for the k nearest points of each point, with the default ``symmetrize``, which is not
            applied. No other rule is possible. With ``metric="cosine"`` the points scaled to length 1 are embedded.
        reg: regularisation of the local Gram matrices, relative to their trace, positive.
        solve: options of the eigensolve, a `Solve`, or just a solver. By default `Lobpcg` with `SparseFactors`.

    Tensors after ``fit``: see `EmbeddingModule`.

    A `GraphWarning` reports further eigenvalues that are zero, as where groups of points (far parts, many copies) have
    all their neighbours within the group: the first columns then only separate the groups.

    >>> y = LLE(2, KNN(8))(torch.rand(60, 3, dtype=torch.float64))
    >>> torch.allclose(y.T @ y, torch.eye(2, dtype=torch.float64))
    True
    """

    def __init__(
        self, n_components: int = 2, neighbors: KNN = KNN(10), *, reg: float = 1e-3, solve: Solve | Solver | None = None
    ) -> None:
        super().__init__(n_components, solve)
        if not isinstance(neighbors, KNN) or neighbors.symmetrize != KNN.symmetrize:
            got = neighbors if isinstance(neighbors, KNN) else checks.describe(neighbors)
            raise TypeError(f"neighbors must be KNN(k), not symmetrised, as a point has its own k nearest, got {got}")
        refuse("LLE", neighbors=neighbors)
        self.neighbors = neighbors
        self.reg = checks.check_positive(reg, "reg")

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        n, k = len(x), self.n_components
        if k >= n and not fill:
            raise ValueError(f"n_components must be smaller than the number of points, got n_components={k} with {n}")
        indices = self._nearest(x, None).indices
        points = measured(x.double(), self.neighbors.metric)
        weights = reconstruction_weights(points, points, indices, self.reg)
        operator = _residual_operator(indices, weights)
        if (points == points[0]).all():
            copies = f"x holds {n} copies of one point: its embedding is arbitrary; remove copies"
            checks.warn(copies, checks.GraphWarning)
        pairs = eigenpairs(operator, k + 1, self.solve, fill=fill)
        solved.append(pairs)
        _warn_of_zeros(pairs.values[1:].detach(), operator, indices)
        columns = pairs.vectors[:, 1:], pairs.values[1:], pairs.residuals[1:], pairs.gap, x
        return {name: value.to(x.dtype) for name, value in zip(self.FITTED, columns, strict=True)}

    def _nearest(self, points: Tensor, queries: Tensor | None) -> Neighbors:
        rule: Any = self.neighbors
        k = min(rule.k, len(points) - (queries is None))
        return nearest_neighbors(points, k, queries, metric=rule.metric, backend=rule.backend, recall=rule.recall)

    def _width(self, state: State) -> int:
        return self.neighbors.k * (self.neighbors.k + 2 * state["train_points"].shape[1])

    def _extend(self, x: Tensor, state: State) -> Tensor:
        metric, dtype = self.neighbors.metric, x.dtype
        indices = self._nearest(state["train_points"], x).indices
        x, points = measured(x.double(), metric), measured(state["train_points"].double(), metric)
        equal = (points[indices] - x[:, None]).abs().amax(2) <= least_reach(metric, dtype)
        weights = reconstruction_weights(x, points, indices, self.reg).to(dtype)
        first = equal & (equal.cumsum(1) == 1)  # of several copies
        weights = torch.where(equal.any(1, keepdim=True), first.to(dtype), weights)
        return precision.matmul(weights[:, None], state["embedding_"][indices])[:, 0]


def reconstruction_weights(x: Tensor, points: Tensor, indices: Tensor, reg: float) -> Tensor:
    """Return weights ``(Q, m)`` of sum 1 that reconstruct each ``x`` best from its neighbours (Saul & Roweis 2003)."""
    m = indices.shape[1]
    eye = torch.eye(m, dtype=x.dtype, device=x.device)

    def solved(rows: Tensor) -> Tensor:
        difference = points[indices[rows]] - x[rows, None]  # (Q, m, D)
        gram = precision.matmul(difference, difference.mT)
        trace = gram.diagonal(dim1=1, dim2=2).sum(1)
        ridge = reg * torch.where(trace > 0, trace, 1)  # to be added to the diagonal
        weights = solve_each(gram + ridge[:, None, None] * eye, gram.new_ones(len(rows), m, 1))[..., 0]
        return weights / weights.sum(1, keepdim=True)

    return in_blocks(solved, torch.arange(len(x), device=x.device), m * (m + x.shape[1]))


def _warn_of_zeros(values: Tensor, operator: SymmetricOperator, indices: Tensor) -> None:
    """Warn of zero eigenvalues beside the constant vector: more than one closed group, or zero to round-off."""
    # The neighbours ``(N, m)`` of a closed group are all in the group. Each strongly connected one makes one eigenvalue
    # of (I − W)ᵀ(I − W) zero: a left null vector of its block of I − W, padded with zeros, is one of the whole matrix.
    from scipy.sparse.csgraph import connected_components  # loads all of its linear algebra

    n, m = indices.shape
    ends = np.arange(n + 1) * m
    directed = scipy.sparse.csr_array((np.ones(n * m, dtype=bool), indices.cpu().numpy().ravel(), ends), shape=(n, n))
    count, label = connected_components(directed, connection="strong")
    row_label, neighbor_label = np.repeat(label, m), label[directed.indices]
    groups = count - len(np.unique(row_label[row_label != neighbor_label]))
    # Smaller eigenvalues than ten times eps and the norm of the operator are zero.
    norm = operator.pattern.sum_rows(operator.values.detach().abs()).max()
    zeros = max(groups - 1, int((values <= 10.0 * torch.finfo(values.dtype).eps * norm).sum()))
    if zeros:
        checks.warn(
            f"{zeros} eigenvalues after that of the constant column are zero to round-off: their columns are an "
            "arbitrary basis of functions that the weights reproduce exactly, such as indicators of groups with all "
            f"their neighbours within the group (here {groups} groups: far parts, copies of points); "
            "use more neighbours or a larger reg, remove copies, or embed each group on its own",
            checks.GraphWarning,
        )


def _residual_operator(indices: Tensor, weights: Tensor) -> SymmetricOperator:
    """Return (I − W)ᵀ(I − W) for the weights ``(N, m)`` of each point's neighbours, differentiable in these."""
    n = len(indices)
    place = torch.cat([torch.arange(n, device=indices.device)[:, None], indices], 1)
    row = torch.cat([torch.ones_like(weights[:, :1]), -weights], 1)  # of I − W
    keys = (place[:, :, None] * n + place[:, None, :]).flatten()
    keys, order = keys.sort()
    entries, position = keys.unique_consecutive(return_inverse=True)
    products = (row[:, :, None] * row[:, None, :]).flatten()[order]
    values = sum_of_groups(products, position, len(entries))
    pattern = SparsePattern.trusted(entries // n, entries % n, (n,))
    return SymmetricOperator(pattern, -values, values.new_zeros(n), constant_null=True)
