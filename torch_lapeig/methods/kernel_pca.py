"""Kernel principal component analysis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from torch_lapeig.eigen import Solve, Solver
from torch_lapeig.graph import Precomputed
from torch_lapeig.graph.distances import differentiable_squared_distances
from torch_lapeig.graph.pattern import DensePattern
from torch_lapeig.methods.frozen import DenseKernel, FixedPoints
from torch_lapeig.methods.kernels import KernelEmbedding, inner_products
from torch_lapeig.support import checks, precision

Kernel = Callable[[Tensor, Tensor], Tensor]


class KernelPCA(KernelEmbedding):
    """Kernel principal components (Schölkopf, Smola & Müller 1998), differentiable.

    The columns are the projections √λ_k v_ik on the principal components of the centred points in the feature space of
    K. Far from all training points an RBF kernel vanishes, and all new points get one row.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues of the centred kernel.
        kernel: ``"rbf"`` exp(−γ ‖x − y‖²), ``"linear"`` x·y, ``"poly"`` (γ x·y + coef0)^degree, or a function of
            ``(N, D)`` and ``(M, D)`` to a symmetric kernel ``(N, M)``. A function that is an ``nn.Module`` becomes a
            submodule, and its parameters are learned through ``forward``. With ``Precomputed("kernel")`` the module
            takes the kernel ``(N, N)``, or ``(Q, N)`` of new and training points, instead of points.
        gamma: γ, positive; default 1/D.
        degree, coef0: of ``"poly"``, an integer ≥ 1 and any number.
        solve: options of the eigensolve, a `Solve`, or just a solver.

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        embedding_: ``(N, n_components)``. eigenvalues_: of the centred kernel, descending, and residuals_,
        ``(n_components,)``.

    Raises (``fit``, ``forward``):
        ValueError: fewer positive eigenvalues than components; a kernel of another shape, not finite, or not symmetric.

    >>> import torch
    >>> x = torch.rand(20, 3, requires_grad=True)
    >>> KernelPCA(2, "rbf", gamma=0.5)(x).shape
    torch.Size([20, 2])
    """

    def __init__(
        self,
        n_components: int = 2,
        kernel: Literal["rbf", "linear", "poly"] | Kernel | Precomputed = "rbf",
        *,
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1.0,
        solve: Solve | Solver | None = None,
    ) -> None:
        super().__init__(n_components, solve)
        if isinstance(kernel, str):
            checks.check_choice(kernel, "kernel", ("rbf", "linear", "poly"))
        elif isinstance(kernel, Precomputed):
            if kernel.kind != "kernel":
                raise ValueError(f'kernel must be "rbf", a function or Precomputed("kernel"), got {kernel}')
        else:
            checks.check_function(kernel, "kernel", 'a name such as "rbf", or a function of two sets of points')
        self.kernel = kernel
        self.gamma = None if gamma is None else checks.check_positive(gamma, "gamma")
        self.degree = checks.check_count(degree, "degree")
        self.coef0 = checks.check_number(coef0, "coef0")

    def _check_training(self, x: Tensor, kernel: Tensor) -> None:
        if not isinstance(self.kernel, str):
            name = "kernel" if isinstance(self.kernel, Precomputed) else "kernel(x, x)"
            checks.check_symmetric_matrix(kernel, kernel.mT, name, DensePattern(kernel.shape[:-1]))

    def _kernel(self, x: Tensor, points: Tensor | None) -> Tensor:
        if points is None:
            return x
        gamma = 1 / x.shape[1] if self.gamma is None else self.gamma
        if self.kernel == "rbf":
            return differentiable_squared_distances(x, points).mul_(-gamma).exp_()
        if self.kernel == "linear":
            return inner_products(x, points)
        if self.kernel == "poly":
            return (gamma * precision.matmul(x, points.mT) + self.coef0) ** self.degree
        assert callable(self.kernel)
        kernel: Tensor = self.kernel(x.clone(), points.clone())  # which it may change
        checks.check_floating(kernel, "kernel(x, y)")
        if kernel.shape != (len(x), len(points)):
            raise ValueError(f"kernel(x, y) must have shape {(len(x), len(points))}, got {tuple(kernel.shape)}")
        checks.check_finite(kernel, "kernel", "check the function")
        return kernel

    def _dense_kernel(self) -> DenseKernel:
        return _DenseKernel(self)


class _DenseKernel(nn.Module):
    """Kernel of any points and fixed ones, in float64; a function of the user's has the dtype of the fit."""

    def __init__(self, of: KernelPCA) -> None:
        super().__init__()
        self.kernel, self.gamma, self.degree, self.coef0 = of.kernel, of.gamma, of.degree, of.coef0

    def forward(self, x: Tensor, points: FixedPoints | None) -> Tensor:
        """Return the kernel ``(Q, N)``, or the one given as ``x``."""
        if points is None:
            return x
        gamma = 1 / x.shape[1] if self.gamma is None else self.gamma
        if self.kernel == "rbf":
            return (-gamma * points.squared(x)).exp()
        if self.kernel == "linear":
            return points.products(x)
        fixed = points.points + points.centre
        if self.kernel == "poly":
            return (gamma * (x @ fixed.mT) + self.coef0).pow(self.degree)
        assert callable(self.kernel)
        return self.kernel(x.to(points.dtype, copy=True), fixed.to(points.dtype)).double()
