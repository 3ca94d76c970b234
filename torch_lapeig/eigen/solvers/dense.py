"""All eigenpairs of dense matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.blocks import eigh_of_batch
from torch_lapeig.eigen.solvers.solver import Progress, RitzPairs, with_guards
from torch_lapeig.eigen.symmetric import entries_of
from torch_lapeig.support.threads import together

SUBSET_LEAST = 200  # nodes from which on LAPACK's subset driver takes less than half the time of all pairs


@dataclass(frozen=True)
class Eigh:
    """Solver by `torch.linalg.eigh` of the dense matrix: all pairs to round-off, O(N³) time and O(N²) memory a graph.

    On the processor each graph of a batch is solved by one of torch's threads.

    >>> from torch_lapeig import eigenpairs
    >>> bool(eigenpairs(torch.arange(400.0).diag(), 4, Eigh()).converged)
    True
    """

    def __call__(self, operator: Operator, k: int, tolerance: float, progress: Progress | None = None) -> RitzPairs:
        """Return all N pairs, or fewer without derivatives; inactive nodes come last, above the spectrum."""
        # Inactive nodes lie above the spectrum, and null vectors below, where they do not mix with others.
        dense = entries_of(operator, self).to_dense().reshape(operator.batch_size, operator.num_nodes, -1)
        null = operator.null_vectors(operator.most_null)
        dense = torch.baddbmm(dense, null * operator.bound[:, None, None], null.mT, alpha=-1)
        dense.diagonal(dim1=-2, dim2=-1).add_(~operator.active * operator.above[:, None])
        # Where gradients flow to the operator, all pairs leave the backward nothing to solve.
        has_gradients = any(parameter.requires_grad for parameter in operator.parameters)
        if not has_gradients and (found := _first_pairs(dense, k, operator.round_off)) is not None:
            return found
        values, vectors = eigh_of_batch(dense)
        # The error of LAPACK's reduction grows with the number of nodes, at a rate that depends on the library. On a
        # path of 2500 nodes it was 140 units of round-off, where `Operator.round_off` allows 40.
        if (n := operator.num_nodes) > 200:
            _improve_(dense, values, vectors, min(2 * with_guards(k), n))
        return RitzPairs(values.clamp_min(0), vectors, 1, torch.ones_like(operator.bound, dtype=torch.bool))


def _first_pairs(dense: Tensor, k: int, round_off: Tensor) -> RitzPairs | None:
    """Return ``k`` pairs and guards by LAPACK's subset driver; None where all pairs are better."""
    n, m = dense.shape[-1], with_guards(k)
    if dense.device.type != "cpu" or n < SUBSET_LEAST or 4 * m > n:
        return None
    from scipy.linalg import eigh  # loads SciPy's linear algebra

    def first(matrix: Tensor) -> tuple[Tensor, Tensor]:
        found = eigh(matrix.numpy(), subset_by_index=[0, m - 1], driver="evr", check_finite=False)
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])

    found = together([partial(first, matrix) for matrix in dense])
    values, vectors = (torch.stack(part) for part in zip(*found, strict=True))
    rest = torch.baddbmm(vectors * values[:, None], dense, vectors, beta=-1)
    if (torch.linalg.vector_norm(rest, dim=1).amax(1) > round_off).any():  # see `Eigh`: the reduction rounds
        return None
    return RitzPairs(values.clamp_min(0), vectors, 1, torch.ones_like(round_off, dtype=torch.bool))


def _improve_(dense: Tensor, values: Tensor, vectors: Tensor, m: int) -> None:
    """Improve the first ``m`` pairs in place by a step of first order."""
    x, rest = vectors[..., :m], vectors[..., m:]
    image = dense @ x
    quotients = (x * image).sum(-2, keepdim=True)
    # The component of a residual along a vector outside, over the distance of their values, is the angle by which the
    # two are turned against each other. A Rayleigh–Ritz step turns the m vectors among themselves.
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
