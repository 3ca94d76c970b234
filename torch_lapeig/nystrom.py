"""Nyström's formula: eigenvectors of a graph extended to points that are not in it."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig.weights import segment_logsumexp

SMALLEST = 1e-3  # of 1 − λ / D: below, a column is not extended


def nystrom(
    log_affinity: Tensor,
    query: Tensor,
    point: Tensor,
    num_queries: int,
    embedding: Tensor,
    eigenvalues: Tensor,
    *,
    normalized: bool = True,
) -> Tensor:
    """Embedding of new points: the row of the eigenproblem at x, solved for y(x).

    For the generalised problem L y = λ D y (``normalized``) that is

        y(x) = Σ_i P(x, i) y_i / (1 − λ),   P(x, i) = W(x, i) / D(x),   D(x) = Σ_i W(x, i),

    Nyström's formula for the data-dependent kernel of Laplacian eigenmaps in random-walk form (Bengio et al. 2003,
    equations 6 and 9); for L y = λ y it is y(x) = Σ_i W(x, i) y_i / (D(x) − λ). For a training point both are its own
    row of the problem and return its row of Y.

    Args:
        log_affinity: log W between queries and training points, ``(E,)``. Gradients flow to it.
        query, point: int64 ``(E,)``, the query and the training point of each.
        num_queries: Q.
        embedding: Y ``(N, k)``.
        eigenvalues: λ ``(k,)``, or ``(N, k)`` where training points belong to separate problems.
        normalized: which of the two problems.

    Returns:
        ``(Q, k)``; zero in the row of a query without any weight, and, with a `GraphWarning`, where the formula divides
        by less than 1e-3 of D(x).
    """
    total = segment_logsumexp(log_affinity, query, num_queries)
    share = torch.where(log_affinity.isinf(), 0, (log_affinity - torch.where(total.isinf(), 0, total)[query]).exp())
    at_point = eigenvalues.expand(embedding.shape)
    scale = torch.ones_like(total) if normalized else total.exp()
    decay = 1 - at_point[point] / scale[query][:, None]
    small = decay.abs() < SMALLEST
    if (small & (share > 0)[:, None]).any():
        warnings.warn(
            "an eigenvalue too close to the degree of a new point cannot be extended to it (Nyström divides by "
            "1 − λ / D): zero is returned there; use fewer components or fewer neighbours",
            _checks.GraphWarning,
            stacklevel=4,
        )
    terms = share[:, None] * embedding[point] / torch.where(small, torch.inf, decay)
    return terms.new_zeros(num_queries, embedding.shape[1]).index_add(0, query, terms)
