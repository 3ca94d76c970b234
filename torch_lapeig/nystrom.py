"""Nyström's formula: eigenvectors of a graph extended to points that are not in it."""

from __future__ import annotations

import torch
from torch import Tensor


def nystrom(log_affinity: Tensor, query: Tensor, train: Tensor, num_queries: int, basis: Tensor) -> Tensor:
    """Embedding of new points, y(x) = Σ_i P(x, i) basis_i with P(x, i) = W(x, i) / Σ_j W(x, j).

    With ``basis`` = Y / (1 − λ) for the generalised eigenvectors L y = λ D y this is Nyström's formula for the
    data-dependent kernel of Laplacian eigenmaps in random-walk form (Bengio et al. 2003, equations 6 and 9): for a
    training point P(x, ·) is its row of D^-1 W, and D^-1 W y = (1 − λ) y returns its own row of Y.

    Args:
        log_affinity: logarithms of the weights W between queries and training points, ``(E,)``; a logarithm because
            the weights of a far query may all underflow while their ratios do not. Gradients flow to it.
        query, train: int64 ``(E,)``, the query and the training point of each of them.
        num_queries: Q.
        basis: ``(N, k)``; gradients flow to it.

    Returns:
        ``(Q, k)``; the row of a query without any weight is zero.
    """
    top = log_affinity.new_full((num_queries,), -torch.inf)
    top = top.scatter_reduce(0, query, log_affinity.detach(), "amax")
    weight = (log_affinity - top[query]).exp()
    total = weight.new_zeros(num_queries).index_add(0, query, weight)
    share = weight / total[query]
    return basis.new_zeros(num_queries, basis.shape[1]).index_add(0, query, share[:, None] * basis[train])
