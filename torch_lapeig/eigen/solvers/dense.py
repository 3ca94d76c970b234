"""All eigenpairs of dense matrices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator, entries_of
from torch_lapeig.eigen.solvers.blocks import eigh_of_batch
from torch_lapeig.eigen.solvers.solver import Progress, RitzPairs, with_guards


@dataclass(frozen=True)
class Eigh:
    """Solver by `torch.linalg.eigh` of the dense matrix: all pairs to round-off, O(N³) time and O(N²) memory a graph.

    On the processor each graph of a batch is solved by one of torch's threads.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(
    ...     400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ... )
    >>> laplacian = Laplacian(KNN(8)(x))
    >>> values = torch.linalg.eigvalsh(laplacian.to_dense())[:4]
    >>> torch.allclose(eigenpairs(laplacian, 4, Eigh()).values, values)
    True
    """

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """Return all N pairs; inactive nodes come last with values above the spectrum.

        Raises:
            TypeError: an operator that gives products only.
        """
        dense = dense_of(operator)
        values, vectors = eigh_of_batch(dense)
        # The error of LAPACK's reduction grows with the number of nodes, at a rate that depends on the library. On a
        # path of 2500 nodes it was 140 units of round-off, where `Operator.round_off` allows 40.
        if (n := operator.num_nodes) > 200:
            _improve_(dense, values, vectors, min(2 * with_guards(k), n))
        return RitzPairs(values.clamp_min(0), vectors, 1, torch.ones_like(operator.bound, dtype=torch.bool))


def dense_of(operator: Operator) -> Tensor:
    """Return the matrices ``(B, N, N)`` with null vectors moved below the spectrum and inactive nodes above it.

    Then no vector of a small eigenvalue mixes with a null vector.
    """
    b, n = operator.batch_size, operator.num_nodes
    dense = entries_of(operator, Eigh()).to_dense().reshape(b, n, n)
    null = operator.null_vectors(operator.most_null)
    dense = torch.baddbmm(dense, null * operator.bound[:, None, None], null.mT, alpha=-1)
    inactive = ~operator.active
    dense.diagonal(dim1=-2, dim2=-1).add_(inactive * operator.above[:, None])
    return dense


def _improve_(dense: Tensor, values: Tensor, vectors: Tensor, m: int) -> Tensor:
    """Improve the first ``m`` pairs in place by a step of first order, to the round-off of a product.

    Each of the m vectors is turned against each vector outside by an angle: the component of its residual along that
    vector over the distance of their values. The vector outside is turned back by the same angle. A Rayleigh–Ritz step
    turns the m vectors among themselves.

    Returns:
        The angles ``(B, N − m, m)``.
    """
    x, rest = vectors[..., :m], vectors[..., m:]
    image = dense @ x
    quotients = (x * image).sum(-2, keepdim=True)
    turn = rest.mT @ (image - quotients * x) / (quotients - values[..., m:, None])
    # The square of an angle is the loss of orthogonality. A larger angle means values too close to resolve.
    most = torch.finfo(dense.dtype).eps ** 0.4
    turn = turn.masked_fill(~(turn.abs() < most), 0)
    better = x + rest @ turn
    rest -= x @ turn.mT
    better = 1.5 * better - 0.5 * better @ (better.mT @ better)
    image = better.mT @ (dense @ better)
    first, inner = torch.linalg.eigh((image + image.mT) / 2)
    values[..., :m], vectors[..., :m] = first, better @ inner
    return turn
