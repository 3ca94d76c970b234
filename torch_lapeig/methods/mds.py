"""Classical multidimensional scaling of points or of distances."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torch_lapeig.eigen import Solve, Solver
from torch_lapeig.graph import Precomputed
from torch_lapeig.methods.frozen import DenseKernel
from torch_lapeig.methods.kernels import KernelEmbedding, inner_products
from torch_lapeig.support import checks


class MDS(KernelEmbedding):
    """Classical multidimensional scaling (Torgerson 1952), differentiable.

    The rows √λ_k v_ik of the largest eigenpairs of K̃ = −½ J d² J, J = I − 1 1ᵀ/N. On Euclidean distances of points
    these are their principal components, and new points keep their distances exactly if no component is left out.

    Distances that are not Euclidean make negative eigenvalues. Negative eigenvalues belong to no real coordinate and
    are left out, as usual; the largest positive ones give the best approximation of K̃ by inner products.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        metric: ``"euclidean"``: points are given; ``Precomputed("distance")``: the distances ``(N, N)`` themselves, or
            ``(Q, N)`` of new points to the training points, are given in their place.
        solve: options of the eigensolve, a `Solve`, or just a solver.

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        embedding_: ``(N, n_components)``. eigenvalues_: of K̃, descending, ``(n_components,)``. residuals_:
        ‖K̃ v − λ v‖, ``(n_components,)``. gap_: ``()``.

    Raises (``fit``, ``forward``):
        ValueError: fewer positive eigenvalues than components; distances that are negative, not symmetric, or not zero
            from a point to itself.

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
                f"{metric if isinstance(metric, Precomputed) else checks.arrived(metric)}"
            )
        self.metric = metric

    def _check_training(self, x: Tensor, kernel: Tensor) -> None:
        if self.pairs_given is None:
            return
        distances = x.detach()
        if not torch.allclose(distances, distances.mT):
            raise ValueError("distances must be symmetric; use (x + x.mT) / 2")
        # Rounding between a point and itself is below a hundredth of the largest distance.
        if (own := distances.diagonal().amax()) > 0.01 * distances.amax():
            raise ValueError(f"distances must be zero from each point to itself, got {own:.3g}; are these affinities?")

    def _kernel(self, x: Tensor, points: Tensor | None) -> Tensor:
        if points is not None:  # −½ ‖x − y‖², centred, is the product centred, which keeps the digits of far points
            return inner_products(x, points)
        checks.check_non_negative(x, "distances")
        return x.square() / -2

    def _dense_kernel(self) -> DenseKernel:
        return lambda x, points: x.square() / -2 if points is None else points.products(x)
