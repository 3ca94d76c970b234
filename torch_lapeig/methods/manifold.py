"""Classical scaling, Isomap, locally linear embedding and kernel PCA as PyTorch modules, with gradients and new points.

All four are eigenvectors of a data-dependent kernel, and new points are embedded by the one formula for such kernels
(Bengio et al., NIPS 2003; `torch_lapeig.methods.nystrom`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from torch_lapeig import _checks
from torch_lapeig._fitted import FittedModule, State, check_like, in_blocks
from torch_lapeig.eigen.solve import eigenpairs
from torch_lapeig.eigen.solver import Solver
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.distances import differentiable_squared_distances
from torch_lapeig.graph.geodesics import geodesic_distances
from torch_lapeig.graph.graph import Graph
from torch_lapeig.graph.neighbors import nearest_neighbors
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.rules import KNN, Radius
from torch_lapeig.methods.nystrom import SparseKernel, centred, extension

Own = TypeVar("Own", bound="ManifoldModule")

ITSELF = 0.01  # of the largest distance: rounding leaves less between a point and itself
POSITIVE = 10.0  # times the round-off of the largest eigenvalue: smaller ones count as zero


class ManifoldModule(FittedModule):
    """What the methods share: a state worked out of points, kept or used at once, and the formula for new points."""

    FITTED: ClassVar[tuple[str, ...]] = ("embedding_", "eigenvalues_", "residuals_", "train_points")
    CONFIGURATION: ClassVar[tuple[str, ...]] = ("n_components",)
    embedding_: Tensor
    eigenvalues_: Tensor
    residuals_: Tensor
    train_points: Tensor

    def __init__(self, n_components: int, solver: Solver | None) -> None:
        super().__init__()
        _checks.check_solver(solver)
        self.n_components = _checks.check_count(n_components, "n_components")
        self.solver = solver

    @_checks.full_precision
    def forward(self, x: Tensor, x_new: Tensor | None = None) -> Tensor:
        """The embedding ``(N, n_components)`` of points ``(N, D)``, or that of new points ``(Q, D)`` given these.

        Gradients flow to both, through the eigenvectors and through the formula. Nothing is kept. Half precision is
        computed in float32, also under autocast, and returned as it came.

        Raises:
            TypeError, ValueError: not finite floating points of such a shape; see also the class.
        """
        state = self._state(_checks.single(x))
        y = state["embedding_"] if x_new is None else self._extended(_checks.single(x_new), state)
        return y.to(x.dtype if x_new is None else x_new.dtype)

    @torch.no_grad()
    @_checks.full_precision
    def fit(self: Own, x: Tensor) -> Own:
        """Embed ``x`` of shape ``(N, D)`` and keep what ``transform`` needs. Returns the module.

        Half precision is kept as float32.
        """
        x = _checks.single(x)
        self._keep(self._state(x), x)
        return self

    @_checks.full_precision
    def transform(self, x: Tensor) -> Tensor:
        """The embedding ``(Q, n_components)`` of new points ``(Q, D)`` given the fitted ones, with gradients to them.

        Works in blocks of queries, in bounded memory. A training point gets its training row.

        Raises:
            RuntimeError: not fitted. TypeError, ValueError: not finite, or not of the dtype or dimension of the
                training points.
        """
        self.check_fitted()
        state = {name: getattr(self, name) for name in self.FITTED}
        return self._extended(_checks.single(x), state).to(x.dtype)

    def _extended(self, x: Tensor, state: State) -> Tensor:
        check_like(x, state["train_points"])
        return in_blocks(lambda block: self._extend(block, state), x, self._width(state))

    def _check_size(self, points: int) -> None:
        if self.n_components >= points:
            raise ValueError(
                f"n_components must be smaller than the number of points, got n_components={self.n_components} with "
                f"{points} points"
            )

    @abstractmethod
    def _state(self, x: Tensor) -> State:
        """Checked points to the embedding and all that new points need, with gradients."""

    @abstractmethod
    def _width(self, state: State) -> int:
        """Numbers of memory a query needs."""

    @abstractmethod
    def _extend(self, x: Tensor, state: State) -> Tensor:
        """The embedding of a block of new points."""


class _CentredKernel(ManifoldModule):
    """Methods of a centred kernel K̃: rows √λ_k v_ik of its largest eigenpairs, extended as √λ_k y_k(x)."""

    FITTED: ClassVar[tuple[str, ...]] = (*ManifoldModule.FITTED, "train_means")
    train_means: Tensor

    def _scaled(self, kernel: Tensor) -> State:
        """The embedding from a symmetric kernel ``(N, N)`` that is not centred yet."""
        self._check_size(len(kernel))
        # Squares of the entries must not overflow, nor underflow.
        unit = _checks.power_of_two(kernel.detach().abs().sqrt(), (0, 1))
        kernel = kernel / unit / unit
        means = kernel.mean(1)
        operator = SymmetricOperator.of_largest(centred(kernel, means, means))
        pairs = eigenpairs(operator, self.n_components, self.solver)
        values = operator.diagonal[0] - pairs.values
        smallest = POSITIVE * len(kernel) ** 0.5 * torch.finfo(values.dtype).eps * operator.diagonal[0]
        if (positive := int((values > smallest).sum())) < self.n_components:
            raise ValueError(
                f"n_components must be at most the number of positive eigenvalues of the centred kernel, got "
                f"n_components={self.n_components} with {positive}; use fewer components"
            )
        return {
            "embedding_": pairs.vectors * values.sqrt() * unit,
            "eigenvalues_": values * unit[0] * unit[0],
            "residuals_": pairs.residuals * unit[0] * unit[0],
            "train_means": means * unit[0] * unit[0],
        }

    def _width(self, state: State) -> int:
        return 3 * len(state["train_means"])


class MDS(_CentredKernel):
    """Classical multidimensional scaling (Torgerson 1952), differentiable.

    The rows √λ_k v_ik of the largest eigenpairs of K̃ = −½ J d² J, J = I − 1 1ᵀ/N. On Euclidean distances of points
    these are their principal components, and new points keep their distances exactly if no component is left out.

    Distances that are not Euclidean make negative eigenvalues. Those belong to no real coordinate and are left out, as
    usual; the largest positive ones give the best approximation of K̃ by inner products.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        metric: ``"euclidean"``: points are given; ``"precomputed"``: the distances ``(N, N)`` themselves, or ``(Q, N)``
            of new points to the training points, are given in their place.
        solver: of the eigenproblem; see `eigenpairs`.

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        embedding_: ``(N, n_components)``. eigenvalues_: of K̃, descending, ``(n_components,)``. residuals_:
        ‖K̃ v − λ v‖, ``(n_components,)``.

    Raises (``fit``, ``forward``):
        ValueError: fewer positive eigenvalues than components; distances that are negative, not symmetric, or not zero
            from a point to itself.

    >>> x = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
    >>> y = MDS(2)(x)
    >>> torch.allclose(torch.cdist(y, y), torch.cdist(x, x), atol=1e-5)
    True
    """

    CONFIGURATION: ClassVar[tuple[str, ...]] = (*ManifoldModule.CONFIGURATION, "metric")

    def __init__(
        self,
        n_components: int = 2,
        *,
        metric: Literal["euclidean", "precomputed"] = "euclidean",
        solver: Solver | None = None,
    ) -> None:
        super().__init__(n_components, solver)
        _checks.check_choice(metric, "metric", ("euclidean", "precomputed"))
        self.metric = metric

    def _state(self, x: Tensor) -> State:
        _checks.check_points(x, batched=False)
        if self.metric == "precomputed":
            if x.shape[0] != x.shape[1]:
                raise ValueError(f"distances must have shape (N, N), got {tuple(x.shape)}")
            if not torch.allclose(x.detach(), x.detach().mT):
                raise ValueError("distances must be symmetric; use (x + x.mT) / 2")
            if (own := x.detach().diagonal().amax()) > ITSELF * x.detach().amax():
                raise ValueError(
                    f"distances must be zero from each point to itself, got {own:.3g}; are these affinities?"
                )
        return {**self._scaled(self._kernel(x, x)), "train_points": x}

    def _extend(self, x: Tensor, state: State) -> Tensor:
        kernel = centred(self._kernel(x, state["train_points"]), state["train_means"])
        return extension(kernel, state["embedding_"], state["eigenvalues_"])

    def _kernel(self, x: Tensor, points: Tensor) -> Tensor:
        if self.metric == "euclidean":
            return differentiable_squared_distances(x, points).mul_(-0.5)
        if (x.detach() < 0).any():
            raise ValueError(f"distances must be non-negative, got a minimum of {x.detach().min():.3g}")
        return x.square() / -2

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"{self.n_components}, metric={self.metric!r}, solver={self.solver}"


class Isomap(_CentredKernel):
    """Isomap (Tenenbaum, de Silva & Langford 2000): classical scaling of geodesic distances, differentiable.

    Geodesics are shortest paths on the neighbourhood graph, by Dijkstra's algorithm on the CPU. Gradients flow to the
    points along the edges of the paths, which themselves are fixed. Its kernel mostly has negative eigenvalues, too;
    see `MDS`. For a new point D̃(x, i) = min_j ‖x − x_j‖ + D(j, i) over its neighbours j in the graph's rule, extended
    with the training radii: it is no intermediate node of other paths.

    With landmarks (de Silva & Tenenbaum 2003) the eigenproblem is that of the landmarks alone, and all other points are
    embedded as new ones are; only distances to landmarks are computed and kept. The formula for new points is that of
    landmark Isomap with the training set as landmarks.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        neighbors: rule of the graph, ``KNN(k)`` or ``Radius(r)``.
        landmarks: None for all points; a number of points, drawn with ``seed``; or their indices, int64 ``(L,)``.
        seed: of that draw.
        solver: of the eigenproblem; see `eigenpairs`.

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        embedding_: ``(N, n_components)``. eigenvalues_: of K̃ of the landmarks, descending, and residuals_,
        ``(n_components,)``. geodesics_: of all points to the landmarks, ``(N, L)``. landmarks_: int64 ``(L,)``.

    Raises (``fit``, ``forward``):
        ValueError: the graph has several connected components, between which geodesics are infinite; fewer positive
            eigenvalues than components; landmarks out of range.
    """

    FITTED: ClassVar[tuple[str, ...]] = (*_CentredKernel.FITTED, "train_radii", "landmarks_", "geodesics_")
    CONFIGURATION: ClassVar[tuple[str, ...]] = (*ManifoldModule.CONFIGURATION, "neighbors", "landmarks")
    train_radii: Tensor
    landmarks_: Tensor
    geodesics_: Tensor

    def __init__(
        self,
        n_components: int = 2,
        neighbors: KNN | Radius = KNN(10),  # noqa: B008 (frozen)
        *,
        landmarks: int | Tensor | None = None,
        seed: int = 0,
        solver: Solver | None = None,
    ) -> None:
        super().__init__(n_components, solver)
        _checks.check_instance(neighbors, "neighbors", (KNN, Radius), "KNN(k) or Radius(r)")
        if isinstance(landmarks, (int, float, str, np.generic)):
            landmarks = _checks.check_count(landmarks, "landmarks", 2)
        elif landmarks is not None:
            _checks.check_indices(landmarks, "landmarks")
            _checks.check_distinct(landmarks, "landmarks")
        self.neighbors = neighbors
        self.landmarks = landmarks
        self.seed = _checks.check_seed(seed)

    def _state(self, x: Tensor) -> State:
        _checks.check_points(x, batched=False)
        chosen = self._chosen(x)
        self._check_size(len(chosen))
        graph, radii = self.neighbors.with_state(x.detach())
        _check_connected(graph)
        assert isinstance(graph.pattern, SparsePattern)
        unit = _checks.power_of_two(x, (0, 1))
        lengths = _root(graph.pattern.squared_lengths(x / unit)) * unit[0]
        geodesics = geodesic_distances(graph.pattern, lengths, chosen)
        if self.landmarks is not None:
            geodesics = geodesics.mT.contiguous()
        among = geodesics if self.landmarks is None else geodesics[chosen]
        state = self._scaled(among.square().mul_(-0.5))
        state |= {"train_points": x, "train_radii": radii, "landmarks_": chosen, "geodesics_": geodesics}
        if self.landmarks is not None:
            of_landmarks = state["embedding_"]
            kernel = centred(geodesics.square() / -2, state["train_means"])
            state["embedding_"] = extension(kernel, of_landmarks, state["eigenvalues_"])
        return state

    def _chosen(self, x: Tensor) -> Tensor:
        """Indices of the landmarks."""
        n = len(x)
        if self.landmarks is None:
            return torch.arange(n, device=x.device)
        if isinstance(self.landmarks, Tensor):
            _checks.check_indices(self.landmarks, "landmarks", n)
            return self.landmarks.to(x.device)
        if self.landmarks > n:
            raise ValueError(f"landmarks must be at most the number of points, got {self.landmarks} with {n} points")
        drawn = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed))[: self.landmarks]
        return drawn.sort().values.to(x.device)

    def _width(self, state: State) -> int:
        return 6 * state["geodesics_"].shape[1]

    def _extend(self, x: Tensor, state: State) -> Tensor:
        found = self.neighbors.extend(x.detach(), state["train_points"].detach(), state["train_radii"])
        query, order = found.query.sort(stable=True)
        point = found.point[order]
        if (alone := len(x) - len(query.unique())) > 0:
            _checks.warn(
                f"{alone} of {len(x)} new points have no neighbour in the graph: their rows are zero",
                _checks.GraphWarning,
            )
        lengths = _root((x[query] - state["train_points"][point]).square().sum(1))
        reach = _shortest(lengths, query, point, state["geodesics_"], len(x))
        # A kernel that is the mean is zero when centred.
        kernel = torch.where(reach.isinf(), state["train_means"], reach.square() / -2)
        anchors = state["embedding_"][state["landmarks_"]]
        return extension(centred(kernel, state["train_means"]), anchors, state["eigenvalues_"])

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return (
            f"{self.n_components}, {self.neighbors!r}, landmarks={self.landmarks}, seed={self.seed}, "
            f"solver={self.solver}"
        )


class LLE(ManifoldModule):
    """Locally linear embedding (Roweis & Saul 2000), differentiable.

    Each point is reconstructed from its neighbours by weights of sum 1, the solution of C w = 1 with the local Gram
    matrix C_jl = (x_j − x)·(x_l − x), to whose diagonal reg · tr C is added; the embedding is made of the eigenvectors
    of (I − W)ᵀ(I − W) of the smallest eigenvalues after the constant one, with Yᵀ Y = I. A new point gets
    y(x) = Σ_i w(x, i) y_i with weights of its own; one that coincides with a training point is that point (of several
    copies, the first), so that its gradient is zero. Worked out in float64, because the eigenvalues are tiny (10⁻¹⁰ of
    the largest is usual).

    Args:
        n_components: dimension of the embedding.
        n_neighbors: of each point.
        reg: of the local Gram matrices, relative to their trace.
        solver: of the eigenproblem; see `eigenpairs`. By default `Lobpcg` with `SparseLU`.

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        embedding_: ``(N, n_components)``. eigenvalues_: ascending, and residuals_, ``(n_components,)``.

    A `GraphWarning` says where the neighbourhoods do not connect all points: the first columns then tell parts apart.

    Raises (``fit``, ``forward``):
        ValueError: not more points than neighbours or components.
    """

    CONFIGURATION: ClassVar[tuple[str, ...]] = (*ManifoldModule.CONFIGURATION, "n_neighbors", "reg")

    def __init__(
        self, n_components: int = 2, n_neighbors: int = 10, *, reg: float = 1e-3, solver: Solver | None = None
    ) -> None:
        super().__init__(n_components, solver)
        self.n_neighbors = _checks.check_count(n_neighbors, "n_neighbors")
        self.reg = _checks.check_positive(reg, "reg")

    def _state(self, x: Tensor) -> State:
        _checks.check_points(x, batched=False)
        self._check_size(len(x))
        if self.n_neighbors >= len(x):
            raise ValueError(
                f"n_neighbors must be smaller than the number of points, got {self.n_neighbors} with {len(x)} points"
            )
        indices = nearest_neighbors(x, self.n_neighbors).indices
        weights = reconstruction_weights(x.double(), x.double(), indices, self.reg)
        operator = _residual_operator(indices, weights)
        parts = int(operator.pattern.components(torch.ones_like(operator.values)).max()) + 1
        if parts > 1:
            _checks.warn(
                f"the neighbourhoods fall into {parts} parts, which the first {parts - 1} columns only tell apart; use "
                "more neighbours, or embed each on its own",
                _checks.GraphWarning,
            )
        pairs = eigenpairs(operator, self.n_components + 1, self.solver)
        return {
            "embedding_": pairs.vectors[:, 1:].to(x.dtype),
            "eigenvalues_": pairs.values[1:].to(x.dtype),
            "residuals_": pairs.residuals[1:].to(x.dtype),
            "train_points": x,
        }

    def _width(self, state: State) -> int:
        return self.n_neighbors * (self.n_neighbors + 2 * state["train_points"].shape[1])

    def _extend(self, x: Tensor, state: State) -> Tensor:
        points = state["train_points"]
        found = nearest_neighbors(points, self.n_neighbors, x)
        weights = reconstruction_weights(x.double(), points.double(), found.indices, self.reg).to(x.dtype)
        itself = torch.zeros_like(weights)
        itself[:, 0] = 1
        weights = torch.where(found.squared_distances[:, :1] == 0, itself, weights)
        query = torch.arange(len(x), device=x.device).repeat_interleave(self.n_neighbors)
        kernel = SparseKernel(query, found.indices.flatten(), weights.flatten(), len(x))
        return extension(kernel, state["embedding_"], weights.new_ones(self.n_components))

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"{self.n_components}, {self.n_neighbors}, reg={self.reg}, solver={self.solver}"


Kernel = Callable[[Tensor, Tensor], Tensor]


class KernelPCA(_CentredKernel):
    """Kernel principal components (Schölkopf, Smola & Müller 1998), differentiable.

    Projections √λ_k v_ik on the principal components in the feature space of K, centred there. Far from all training
    points an RBF kernel vanishes and all new points come to lie in the same place.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues of the centred kernel.
        kernel: ``"rbf"`` exp(−γ ‖x − y‖²), ``"linear"`` x·y, ``"polynomial"`` (γ x·y + coef0)^degree, or a function of
            ``(N, D)`` and ``(M, D)`` to a symmetric kernel ``(N, M)``. If that is an ``nn.Module`` it becomes a
            submodule, and its parameters are learned through ``forward``.
        gamma: γ; default 1/D.
        degree, coef0: of the polynomial.
        solver: of the eigenproblem; see `eigenpairs`.

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        embedding_: ``(N, n_components)``. eigenvalues_: of the centred kernel, descending, and residuals_,
        ``(n_components,)``.

    Raises (``fit``, ``forward``):
        ValueError: fewer positive eigenvalues than components; a kernel of another shape, not finite, or not symmetric.

    >>> x = torch.rand(20, 3, requires_grad=True)
    >>> KernelPCA(2, "rbf", gamma=0.5)(x).shape
    torch.Size([20, 2])
    """

    CONFIGURATION: ClassVar[tuple[str, ...]] = (*ManifoldModule.CONFIGURATION, "kernel", "gamma", "degree", "coef0")

    def __init__(
        self,
        n_components: int = 2,
        kernel: Literal["rbf", "linear", "polynomial"] | Kernel = "rbf",
        *,
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1.0,
        solver: Solver | None = None,
    ) -> None:
        super().__init__(n_components, solver)
        if isinstance(kernel, str):
            _checks.check_choice(kernel, "kernel", ("rbf", "linear", "polynomial"))
        else:
            _checks.check_function(kernel, "kernel", "a name or a function")
        self.kernel = kernel
        self.gamma = None if gamma is None else _checks.check_positive(gamma, "gamma")
        self.degree = _checks.check_count(degree, "degree")
        self.coef0 = _checks.check_number(coef0, "coef0")

    def _state(self, x: Tensor) -> State:
        _checks.check_points(x, batched=False)
        kernel = self._kernel(x, x)
        if not isinstance(self.kernel, str):
            _checks.check_symmetric_matrix(kernel, kernel.mT, "kernel(x, x)")
        return {**self._scaled(kernel), "train_points": x}

    def _extend(self, x: Tensor, state: State) -> Tensor:
        kernel = centred(self._kernel(x, state["train_points"]), state["train_means"])
        return extension(kernel, state["embedding_"], state["eigenvalues_"])

    def _kernel(self, x: Tensor, points: Tensor) -> Tensor:
        gamma = 1 / x.shape[1] if self.gamma is None else self.gamma
        if self.kernel == "rbf":
            return differentiable_squared_distances(x, points).mul_(-gamma).exp_()
        if self.kernel == "linear":
            return x @ points.mT
        if self.kernel == "polynomial":
            return (gamma * (x @ points.mT) + self.coef0) ** self.degree
        assert not isinstance(self.kernel, str)
        kernel: Tensor = self.kernel(x, points)
        _checks.check_floating(kernel, "kernel(x, y)")
        if kernel.shape != (len(x), len(points)):
            raise ValueError(f"kernel must give shape {(len(x), len(points))}, got {tuple(kernel.shape)}")
        _checks.check_finite(kernel, "kernel")
        return kernel

    def extra_repr(self) -> str:
        """The constructor's arguments; a kernel that is a module is shown as a submodule."""
        kernel = "" if isinstance(self.kernel, nn.Module) else f"{self.kernel!r}, "
        return (
            f"{self.n_components}, {kernel}gamma={self.gamma}, degree={self.degree}, coef0={self.coef0}, "
            f"solver={self.solver}"
        )


def reconstruction_weights(x: Tensor, points: Tensor, indices: Tensor, reg: float) -> Tensor:
    """Weights ``(Q, m)`` of sum 1 that reconstruct each ``x`` ``(Q, D)`` best from its neighbours (Saul & Roweis 2003).

    Args:
        indices: of the neighbours among ``points``, int64 ``(Q, m)``.
        reg: share of the trace added to the diagonal of the local Gram matrix; itself where that trace is 0.
    """
    m = indices.shape[1]
    eye = torch.eye(m, dtype=x.dtype, device=x.device)

    def solved(rows: Tensor) -> Tensor:
        difference = points[indices[rows]] - x[rows, None]  # (Q, m, D)
        gram = difference @ difference.mT
        trace = gram.diagonal(dim1=1, dim2=2).sum(1)
        ridge = reg * torch.where(trace > 0, trace, 1)
        weights: Tensor = torch.linalg.solve(gram + ridge[:, None, None] * eye, gram.new_ones(len(rows), m))
        return weights / weights.sum(1, keepdim=True)

    return in_blocks(solved, torch.arange(len(x), device=x.device), m * (m + x.shape[1]))


def _residual_operator(indices: Tensor, weights: Tensor) -> SymmetricOperator:
    """(I − W)ᵀ(I − W) for the weights ``(N, m)`` of each point's neighbours, differentiable in these."""
    n = len(indices)
    node = torch.arange(n, device=indices.device)[:, None]
    place = torch.cat([node, indices], 1)
    row = torch.cat([torch.ones_like(weights[:, :1]), -weights], 1)  # of I − W
    keys = (place[:, :, None] * n + place[:, None, :]).flatten()
    keys, order = keys.sort()
    entries, position = keys.unique_consecutive(return_inverse=True)
    products = (row[:, :, None] * row[:, None, :]).flatten()[order]
    values = products.new_zeros(len(entries)).index_add(0, position, products)
    pattern = SparsePattern.from_keys(entries, (n,))
    return SymmetricOperator(pattern, -values, values.new_zeros(n), constant_null=True)


def _shortest(lengths: Tensor, query: Tensor, point: Tensor, geodesics: Tensor, queries: int) -> Tensor:
    """min over the neighbours j of a query of its distance to j and the geodesics ``(N, L)`` from there, ``(Q, L)``.

    One neighbour of each query at a time, so that memory does not depend on their number.
    """
    # Edge number E stands for no way.
    lengths = torch.cat([lengths, lengths.new_full((1,), torch.inf)])
    point = torch.cat([point, point.new_zeros(1)])
    with torch.no_grad():
        best = geodesics.new_full((queries, geodesics.shape[1]), torch.inf)
        via = torch.full_like(best, len(query), dtype=torch.int64)
        count = query.bincount(minlength=queries)
        first = count.cumsum(0) - count
        for rank in range(int(count.max())):
            here = (count > rank).nonzero().flatten()
            edge = first[here] + rank
            reach = lengths[edge, None] + geodesics[point[edge]]
            closer = reach < best[here]
            best[here] = torch.where(closer, reach, best[here])
            via[here] = torch.where(closer, edge[:, None], via[here])
    landmark = torch.arange(geodesics.shape[1], device=geodesics.device)
    return lengths[via] + geodesics[point[via], landmark]


def _root(squares: Tensor) -> Tensor:
    """√, with a zero gradient at zero."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1).sqrt(), 0)


def _check_connected(graph: Graph) -> None:
    """Raise ValueError unless one graph is connected."""
    sizes = graph.connected_components().bincount().sort(descending=True).values.tolist()
    if len(sizes) > 1:
        shown = ", ".join(map(str, sizes[:10])) + (", …" if len(sizes) > 10 else "")
        raise ValueError(
            f"the neighbourhood graph has {len(sizes)} connected components, of {shown} points, and geodesics between "
            "them are infinite; use more neighbours or a larger radius, or embed each on its own"
        )
