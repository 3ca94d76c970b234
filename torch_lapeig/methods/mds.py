"""Classical multidimensional scaling of points or of distances."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torch_lapeig.eigen import Solve, Solver
from torch_lapeig.graph import Precomputed
from torch_lapeig.methods.frozen import DenseKernel, FixedPoints
from torch_lapeig.methods.kernels import KernelEmbedding, inner_products
from torch_lapeig.support import checks


class MDS(KernelEmbedding):
    """Classical multidimensional scaling (Torgerson 1952), differentiable.

    The columns are √λ_k v_ik of the largest eigenpairs of K̃ = −½ J d² J, J = I − 1 1ᵀ/N. For Euclidean distances they
    are the principal components of the points, and new points keep their distances exactly if no component is left out.

    Distances that are not Euclidean lead to negative eigenvalues, which have no real coordinate and are left out, as
    usual. The largest positive eigenvalues yield the best approximation of K̃ by inner products.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        metric: ``"euclidean"``: the module takes points; ``Precomputed("distance")``: it takes distances ``(N, N)``, or
            ``(Q, N)`` from new points to the training points, in place of points.
        solve: options of the eigensolve, a `Solve`, or just a solver.

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        embedding_: ``(N, n_components)``. eigenvalues_: of K̃, descending, ``(n_components,)``. residuals_:
        ‖K̃ v − λ v‖, ``(n_components,)``. gap_: ``()``.

    Raises (``fit``, ``forward``):
        ValueError: fewer positive eigenvalues than components; other numbers than distances.

    >>> x = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
    >>> y = MDS(2)(x)
    >>> torch.allclose(torch.cdist(y, y), torch.cdist(x, x), atol=1e-5)
    True
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        metric: Literal["euclidean"] | Precomputed = "euclidean",
        solve: Solve | Solver | None = None,
    ) -> None:
        super().__init__(n_components, solve)
        if not isinstance(metric, (str, Precomputed)) or metric not in ("euclidean", Precomputed("distance")):
            raise ValueError(
                f'metric must be "euclidean" or Precomputed("distance"), got '
                f"{metric if isinstance(metric, Precomputed) else checks.describe(metric)}"
            )
        self.metric = metric

    def _check_training(self, x: Tensor, kernel: Tensor) -> None:
        if self.pairs_given is None:
            return
        distances = x.detach()
        if not torch.allclose(distances, distances.mT):
            worst = (distances - distances.mT).abs().max()
            raise ValueError(
                f"distances must be symmetric, got entries that differ by up to {worst:.3g}; use (x + x.mT) / 2 of "
                "two measurements, x + x.mT of one triangle"
            )
        # Rounding between a point and itself is below a hundredth of the largest distance.
        if (own := distances.diagonal().amax()) > 0.01 * distances.amax():
            raise ValueError(
                f"distances must be zero from each point to itself, got {own:.3g}; for affinities use another method, "
                'such as LaplacianEigenmaps(neighbors=Precomputed("affinity"))'
            )

    def _kernel(self, x: Tensor, points: Tensor | None) -> Tensor:
        if points is not None:  # centred, −½ ‖x − y‖² equals x · y, which is more accurate for far points
            return inner_products(x, points)
        checks.check_non_negative(x, "distances")
        return x.square() / -2

    def _dense_kernel(self) -> DenseKernel:
        return _dense_kernel


def _dense_kernel(x: Tensor, points: FixedPoints | None) -> Tensor:
    return x.square() / -2 if points is None else points.products(x)
