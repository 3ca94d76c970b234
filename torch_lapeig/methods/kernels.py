"""Classical scaling and kernel PCA, and their base with Isomap: the largest eigenpairs of a centred kernel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_lapeig.eigen import Eigenpairs, Solve, Solver, eigenpairs
from torch_lapeig.eigen.gradient.matrix_functions import function_of_matrix
from torch_lapeig.graph import Precomputed
from torch_lapeig.graph.distances import check_distances
from torch_lapeig.graph.pattern import DensePattern
from torch_lapeig.graph.search.exact import differentiable_squared_distances
from torch_lapeig.methods.frozen import Frozen, fixed_points, squared_to_all
from torch_lapeig.methods.module import EmbeddingModule
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State
from torch_lapeig.support.tuning import check_dense

Kernel = Callable[[Tensor, Tensor], Tensor]


class CentredKernelEmbedding(EmbeddingModule):
    """Rows √λ_k v_ik of the largest eigenpairs of a centred kernel K̃, extended as √λ_k y_k(x)."""

    FITTED: ClassVar[tuple[str, ...]] = (*EmbeddingModule.FITTED, "train_means")
    LACKING: ClassVar[float] = 0.0

    def _embed_kernel(self, kernel: Tensor, solved: list[Eigenpairs], *, fill: bool) -> State:
        """Return the embedding from a symmetric kernel ``(N, N)`` that is not centred yet."""
        n, k = len(kernel), self.n_components
        if k >= n and not fill:
            raise ValueError(f"n_components must be smaller than the number of points, got n_components={k} with {n}")
        # Squares of the entries must not overflow, nor underflow.
        unit = checks.power_of_two(kernel.detach().abs().sqrt(), (0, 1))
        kernel = kernel / unit / unit
        means = kernel.mean(1)
        kernel = centred(kernel, means, means)
        pairs, positive = self._largest(kernel, min(k, n))
        if (count := int(positive.sum())) < k and not fill:
            advice = "use fewer components" if count else "points are equal, or their squares underflow; rescale them"
            raise ValueError(
                f"n_components must be at most the number of positive eigenvalues of the centred kernel, got "
                f"n_components={k} with {count}; {advice}"
            )
        if 0 < count < len(positive):
            # A cut through the eigenspace of zero has no derivative.
            pairs, positive = self._largest(kernel, count)
        solved.append(pairs)
        # No gradient flows from a missing column.
        matrix = torch.where(positive[:, None] & positive, pairs.projected, 0)
        values = matrix.diagonal()
        columns = precision.matmul(torch.where(positive, pairs.vectors, 0), _power(matrix, 0.5)) * unit
        more = (0, k - len(values))
        return {
            "embedding_": nn.functional.pad(columns, more),
            "eigenvalues_": nn.functional.pad(values * unit[0] * unit[0], more),
            "residuals_": nn.functional.pad(pairs.residuals * unit[0] * unit[0], more),
            "values_as_matrix": nn.functional.pad(matrix * unit * unit, more + more),  # for derivatives; not kept
            "gap_": pairs.gap * unit[0, 0] * unit[0, 0],
            "train_means": means * unit[0] * unit[0],
        }

    def _largest(self, kernel: Tensor, k: int) -> tuple[Eigenpairs, Tensor]:
        """Return the k largest eigenpairs of a kernel, and bool ``(k,)``: True for eigenvalues above round-off."""
        pairs, size = eigenpairs(kernel, k, self.solve, largest=True), torch.linalg.matrix_norm(kernel.detach(), 1)
        # Values below ten times the round-off of the largest count as zero.
        return pairs, pairs.values > 10.0 * len(kernel) ** 0.5 * torch.finfo(kernel.dtype).eps * size

    def _width(self, state: State) -> int:
        return 3 * len(state["train_means"])

    def _extension(self, kernel: Tensor, embedding: Tensor, state: State) -> Tensor:
        """Return rows of new points, given their uncentred kernel with training points, and the training rows."""
        matrix = state.get("values_as_matrix", torch.diag(state["eigenvalues_"]))
        # Terms of the sums must not overflow, nor underflow: its square is at most the largest eigenvalue.
        unit = checks.power_of_two(matrix.detach().diagonal().clamp(min=0).sqrt(), (0,)) / 2
        vectors = precision.matmul(embedding / unit, _power(matrix / unit / unit, -1.0))
        return extended_kernel(kernel / (unit * unit), state["train_means"] / unit / unit, vectors) * unit


def centred(kernel: Tensor, own_means: Tensor, means: Tensor) -> Tensor:
    """Return K(x, i) − E_x' K(x, x') − E_x' K(x', i) + E K over the training points x' (Bengio et al. 2003)."""
    return (kernel - own_means[:, None]).sub_(means - means.mean())


def extended_kernel(kernel: Tensor, means: Tensor, vectors: Tensor) -> Tensor:
    """Return rows of new points by their uncentred kernel ``(Q, N)``, given training vectors over the eigenvalues."""
    return precision.matmul(centred(kernel, kernel.mean(1), means), vectors)


def _power(matrix: Tensor, power: float) -> Tensor:
    """Return a power of a matrix of eigenvalues ``(k, k)``, exact at equal ones; 1 for missing columns."""
    there = matrix.diagonal() > 0
    matrix = torch.where(there[:, None] & there, matrix, torch.diag(torch.ones_like(matrix[0])))
    return function_of_matrix(matrix, lambda value: value**power)


class KernelPoints(NamedTuple):
    """Training points, and their kernels with new ones, differentiable in all points."""

    points: Tensor  # (N, D)
    dtype: torch.dtype | None = None  # of the fit, where a frozen map keeps the points in float64

    def squared(self, x: Tensor) -> Tensor:
        """Return squared distances ``(Q, N)`` of new points ``(Q, D)``."""
        return (
            differentiable_squared_distances(x, self.points) if self.dtype is None else squared_to_all(x, self.points)
        )

    def products(self, x: Tensor) -> Tensor:
        """Return x · y ``(Q, N)`` about the mean of the points: once centred the same kernel, and more accurate."""
        centre = checks.primal(self.points).mean(0)
        return precision.matmul(x - centre, (self.points - centre).mT)

    def plain_products(self, x: Tensor) -> Tensor:
        """Return x · y ``(Q, N)``."""
        return precision.matmul(x, self.points.mT)

    def kernel(self, function: Kernel, x: Tensor) -> Tensor:
        """Return a kernel of the user's own, ``(Q, N)``."""
        kernel = function(*(part.to(self.dtype, copy=True) for part in (x, self.points)))  # which it may change
        checks.check_floating(kernel, "kernel(x, y)")
        if kernel.shape != (len(x), len(self.points)):
            raise ValueError(f"kernel(x, y) must have shape {(len(x), len(self.points))}, got {tuple(kernel.shape)}")
        if self.dtype is None:
            checks.check_finite(kernel, "kernel", "check the function")
        return kernel.to(x.dtype)


class KernelEmbedding(CentredKernelEmbedding):
    """Embedding by a kernel of any two points, or by a given matrix."""

    @abstractmethod
    def _kernel(self, x: Tensor, points: KernelPoints | None) -> Tensor:
        """Return the kernel of new and training points, ``(Q, N)``; of pairs ``x`` where no points are given."""

    def _check_training(self, x: Tensor, kernel: Tensor) -> None:
        """Raise ValueError unless the kernel ``(N, N)`` of training points, or the given matrix ``x``, is valid."""

    def _kernel_of(self, x: Tensor, points: Tensor | None, name: str) -> Tensor:
        """Return the kernel of checked points ``x`` and training points, or of given pairs if ``points`` is None."""
        kernel = self._kernel(x, None if points is None else KernelPoints(points))
        checks.check_finite(kernel, f"the kernel of {name}", "rescale the points, whose squares or products overflow")
        return kernel

    def _frozen(self, state: State) -> nn.Module:
        values, means = state["eigenvalues_"].double(), state["train_means"].double()
        vectors = state["embedding_"].double() / torch.where(values > 0, values, 1)
        points = fixed_points(state["train_points"]) if "train_points" in state else {}
        return Frozen(self, {"means": means - means.mean(), "vectors": vectors, **points}, state)

    def _of_all(self, x: Tensor, state: State, dtype: torch.dtype) -> Tensor:
        points = KernelPoints(state["points"] + state["centre"], dtype) if "points" in state else None
        return extended_kernel(self._kernel(x, points), state["means"], state["vectors"])

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        points = None if self.pairs_given is not None else x
        if points is not None:
            advice = "use LaplacianEigenmaps, Isomap(landmarks=1000), or fewer points and transform"
            check_dense(len(x), len(x), x.element_size(), x.device, type(self).__name__, advice)
        kernel = self._kernel_of(x, points, "x")
        self._check_training(x, kernel)
        state = self._embed_kernel(kernel, solved, fill=fill)
        return state if points is None else {**state, "train_points": points}

    def _extend(self, x: Tensor, state: State) -> Tensor:
        return self._extension(self._kernel_of(x, state.get("train_points"), "x_new"), state["embedding_"], state)


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
        if self.pairs_given is not None:
            check_distances(x, x.mT, x.diagonal())

    def _kernel_of(self, x: Tensor, points: Tensor | None, name: str) -> Tensor:
        if points is None:
            checks.check_non_negative(x, "distances")
        return super()._kernel_of(x, points, name)

    def _kernel(self, x: Tensor, points: KernelPoints | None) -> Tensor:
        # Inner products are −½ d² once centred, and more accurate for far points.
        return x.square() / -2 if points is None else points.products(x)


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

    def _kernel(self, x: Tensor, points: KernelPoints | None) -> Tensor:
        if points is None:
            return x
        gamma = 1 / x.shape[1] if self.gamma is None else self.gamma
        if self.kernel == "rbf":
            return points.squared(x).mul_(-gamma).exp_()
        if self.kernel == "linear":
            return points.products(x)
        if self.kernel == "poly":
            return (gamma * points.plain_products(x) + self.coef0) ** self.degree
        assert callable(self.kernel)
        return points.kernel(self.kernel, x)
