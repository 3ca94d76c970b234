"""Classical scaling, Isomap and kernel PCA by the largest eigenpairs of a centred kernel."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torch_lapeig.eigen import Eigenpairs, eigenpairs
from torch_lapeig.eigen.gradient.functions import function_of_matrix
from torch_lapeig.methods.frozen import DenseKernel, FixedPoints, FrozenKernelMap
from torch_lapeig.methods.module import EmbeddingModule
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State
from torch_lapeig.support.tuning import check_dense

RESCALE = "rescale the points, whose squares or products overflow"


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
        both = positive[:, None] & positive
        matrix = torch.where(both, pairs.projected, 0)
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
        kernel = centred(kernel / (unit * unit), state["train_means"] / unit / unit)
        vectors = precision.matmul(embedding / unit, _power(matrix / unit / unit, -1.0))
        return precision.matmul(kernel, vectors) * unit


def centred(kernel: Tensor, means: Tensor, own_means: Tensor | None = None) -> Tensor:
    """Return K(x, i) − E_x' K(x, x') − E_x' K(x', i) + E K over the training points x' (Bengio et al. 2003)."""
    own_means = kernel.mean(1) if own_means is None else own_means  # E_x' K(x, x'); means are E_x' K(x', i)
    return (kernel - own_means[:, None]).sub_(means - means.mean())


def inner_products(x: Tensor, points: Tensor) -> Tensor:
    """Return x · y ``(Q, N)`` about the mean of points ``(N, D)``: once centred the same kernel, and more accurate."""
    centre = checks.primal(points).mean(0)
    return precision.matmul(x - centre, (points - centre).mT)


def _power(matrix: Tensor, power: float) -> Tensor:
    """Return a power of a matrix of eigenvalues ``(k, k)``, exact at equal ones; 1 for missing columns."""
    there = matrix.diagonal() > 0
    matrix = torch.where(there[:, None] & there, matrix, torch.diag(torch.ones_like(matrix[0])))
    return function_of_matrix(matrix, lambda value: value**power)


class KernelEmbedding(CentredKernelEmbedding):
    """Embedding by a kernel of any two points, or by a given matrix."""

    @abstractmethod
    def _kernel(self, x: Tensor, points: Tensor | None) -> Tensor:
        """Return K of checked points ``x`` and training points; or of given pairs ``x``, if ``points`` is None."""

    def _check_training(self, x: Tensor, kernel: Tensor) -> None:
        """Raise ValueError unless the kernel ``(N, N)`` of training points, or the given matrix ``x``, is valid."""

    @abstractmethod
    def _dense_kernel(self) -> DenseKernel:
        """Return the kernel, as ``_kernel`` is but without checks, and in float64."""

    def _frozen(self, state: State) -> nn.Module:
        points = FixedPoints(state["train_points"]) if "train_points" in state else None
        return FrozenKernelMap(self._dense_kernel(), points, state)

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        points = None if self.pairs_given is not None else x
        if points is not None:
            advice = "use LaplacianEigenmaps, Isomap(landmarks=1000), or fewer points and transform"
            check_dense(len(x), len(x), x.element_size(), x.device, type(self).__name__, advice)
        kernel = self._kernel(x, points)
        checks.check_finite(kernel, "the kernel of x", RESCALE)
        self._check_training(x, kernel)
        state = self._embed_kernel(kernel, solved, fill=fill)
        return state if points is None else {**state, "train_points": points}

    def _extend(self, x: Tensor, state: State) -> Tensor:
        kernel = self._kernel(x, state.get("train_points"))
        checks.check_finite(kernel, "the kernel of x_new", RESCALE)
        return self._extension(kernel, state["embedding_"], state)
