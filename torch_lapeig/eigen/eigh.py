"""All eigenpairs of dense matrices."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_lapeig.eigen.blocks import eigh_of_batch
from torch_lapeig.eigen.operator import Operator, entries_of
from torch_lapeig.eigen.solver import Progress, RitzPairs, most_null


@dataclass(frozen=True)
class Eigh:
    """All eigenpairs by `torch.linalg.eigh` of the dense matrix: exact, O(N³) time and O(N²) memory a graph.

    On the processor the graphs of a batch are shared out among torch's threads, each graph to one.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
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
        start: RitzPairs | None = None,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """All N pairs; inactive nodes come last with values above the spectrum.

        Raises:
            TypeError: an operator that gives products only.
        """
        b, n = operator.batch_size, operator.num_nodes
        dense = entries_of(operator, self).to_dense().reshape(b, n, n)
        null = operator.null_vectors(most_null(operator))
        # Known null vectors below the spectrum, so that no small eigenvalue mixes with them; inactive nodes above it.
        dense = torch.baddbmm(dense, null * operator.bound[:, None, None], null.mT, alpha=-1)
        inactive = ~operator.active
        dense.diagonal(dim1=-2, dim2=-1).add_(inactive * (operator.bound[:, None] + 1))
        values, vectors = eigh_of_batch(dense)
        return RitzPairs(values.clamp_min(0), vectors, 1, torch.ones_like(operator.bound, dtype=torch.bool))
