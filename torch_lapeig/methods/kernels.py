"""Classical scaling, kernel PCA and Isomap: the largest eigenpairs of a centred kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from torch_lapeig.eigen import Eigenpairs, Solve, Solver, eigenpairs
from torch_lapeig.eigen.gradient.matrix_functions import function_of_matrix
from torch_lapeig.graph import KNN, DensePattern, NeighborRule, Precomputed, SparsePattern
from torch_lapeig.graph.algebra import geodesic_distances
from torch_lapeig.graph.distances import check_distances, distances, edge_lengths
from torch_lapeig.graph.rules import check_rule, graph_with_state
from torch_lapeig.graph.search.exact import COORDINATES, differentiable_squared_distances, measured
from torch_lapeig.methods.frozen import Frozen, fixed_points, squared_to_all
from torch_lapeig.methods.module import EmbeddingModule
from torch_lapeig.methods.on_graph import edges_of_new, warn_of_unreached, width_of_rows
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State
from torch_lapeig.support.kinds import refuse
from torch_lapeig.support.tuning import check_dense

Kernel = Callable[[Tensor, Tensor], Tensor]


class KernelEmbedding(EmbeddingModule):
    """Rows √λ_k v_ik of the largest eigenpairs of a centred kernel K̃ of points or pairs; new ones √λ_k y_k(x)."""

    # `_kernel` returns the kernel of new and training points, `(Q, N)`, or of pairs `x` where no points are given; a
    # frozen map has its points in float64, and gives the `dtype` of the fit.

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
            most = "the number of positive eigenvalues of the centred kernel"
            raise ValueError(f"n_components must be at most {most}, got n_components={k} with {count}; {advice}")
        if 0 < count < len(positive):
            # A cut through the eigenspace of zero has no derivative.
            pairs, positive = self._largest(kernel, count)
        solved.append(pairs)
        # No gradient flows from a missing column.
        matrix = torch.where(positive[:, None] & positive, pairs.projected, 0)
        values = matrix.diagonal()
        columns = precision.matmul(torch.where(positive, pairs.vectors, 0), _power(matrix, 0.5)) * unit
        unit, more = unit[0, 0], (0, k - len(values))
        return {
            "embedding_": nn.functional.pad(columns, more),
            "eigenvalues_": nn.functional.pad(values * unit * unit, more),
            "residuals_": nn.functional.pad(pairs.residuals * unit * unit, more),
            "values_as_matrix": nn.functional.pad(matrix * unit * unit, more + more),  # for derivatives; not kept
            "gap_": pairs.gap * unit * unit,
            "train_means": means * unit * unit,
        }

    def _largest(self, kernel: Tensor, k: int) -> tuple[Eigenpairs, Tensor]:
        """Return the k largest eigenpairs of a kernel, and bool ``(k,)``: True for eigenvalues above round-off."""
        pairs, size = eigenpairs(kernel, k, self.solve, largest=True), torch.linalg.matrix_norm(kernel.detach(), 1)
        # Values below ten times the round-off of the largest count as zero.
        return pairs, pairs.values > 10.0 * len(kernel) ** 0.5 * torch.finfo(kernel.dtype).eps * size

    def _extension(self, kernel: Tensor, embedding: Tensor, state: State) -> Tensor:
        """Return rows of new points, given their uncentred kernel with training points, and the training rows."""
        matrix = state.get("values_as_matrix", torch.diag(state["eigenvalues_"]))
        # Terms of the sums must not overflow, nor underflow: its square is at most the largest eigenvalue.
        unit = checks.power_of_two(matrix.detach().diagonal().clamp(min=0).sqrt(), (0,)) / 2
        vectors = precision.matmul(embedding / unit, _power(matrix / unit / unit, -1.0))
        return extended_kernel(kernel / (unit * unit), state["train_means"] / unit / unit, vectors) * unit

    def _kernel_of(self, x: Tensor, points: Tensor | None, name: str) -> Tensor:
        """Return the kernel of checked points ``x`` and training points, or of given pairs if ``points`` is None."""
        if self.pairs_given == "distance":
            checks.check_non_negative(x, "distances")
        kernel: Tensor = self._kernel(x, points)
        checks.check_finite(kernel, f"the kernel of {name}", "rescale the points, whose squares or products overflow")
        return kernel

    def _frozen(self, state: State) -> nn.Module:
        values, means = state["eigenvalues_"].double(), state["train_means"].double()
        vectors = state["embedding_"].double() / torch.where(values > 0, values, 1)
        points = fixed_points(state["train_points"]) if "train_points" in state else {}
        return Frozen(self, {"means": means, "vectors": vectors, **points}, state)

    def _of_all(self, x: Tensor, state: State, dtype: torch.dtype) -> Tensor:
        points = state["points"] + state["centre"] if "points" in state else None
        return extended_kernel(self._kernel(x, points, dtype), state["means"], state["vectors"])

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

    def _width(self, state: State) -> int:
        return 3 * len(state["train_means"])


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


def products_about_mean(x: Tensor, points: Tensor) -> Tensor:
    """Return x · y ``(Q, N)`` about the mean of the points: once centred the same kernel, and more accurate."""
    centre = checks.primal(points).mean(0)
    return precision.matmul(x - centre, (points - centre).mT)


class MDS(KernelEmbedding):
    """Classical multidimensional scaling (Torgerson 1952), differentiable.

    The columns are √λ_k v_ik of the largest eigenpairs of K̃ = −½ J d² J, J = I − 1 1ᵀ/N. For Euclidean distances they
    are the principal components of the points, and new points keep their distances exactly if no component is left out.
    Negative eigenvalues, of other distances, have no real coordinate and are left out.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        metric: ``"euclidean"``: the module takes points; ``Precomputed("distance")``: it takes distances ``(N, N)``, or
            ``(Q, N)`` from new points to the training points, in place of points.
        solve: options of the eigensolve, a `Solve`, or just a solver.

    Tensors after ``fit``: see `EmbeddingModule`; eigenvalues_ are those of K̃.

    >>> x = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
    >>> y = MDS(2)(x)
    >>> torch.allclose(torch.cdist(y, y), torch.cdist(x, x), atol=1e-5)
    True
    """

    def __init__(
        self, n_components: int = 2, *, metric: str | Precomputed = "euclidean", solve: Solve | Solver | None = None
    ) -> None:
        super().__init__(n_components, solve)
        if not isinstance(metric, (str, Precomputed)) or metric not in ("euclidean", Precomputed("distance")):
            got = metric if isinstance(metric, Precomputed) else checks.describe(metric)
            raise ValueError(f'metric must be "euclidean" or Precomputed("distance"), got {got}')
        self.metric = metric

    def _check_training(self, x: Tensor, kernel: Tensor) -> None:
        if self.pairs_given is not None:
            check_distances(x, x.mT, x.diagonal())

    def _kernel(self, x: Tensor, points: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
        # Inner products are −½ d² once centred, and more accurate for far points.
        return x.square() / -2 if points is None else products_about_mean(x, points)


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

    Tensors after ``fit``: see `EmbeddingModule`; eigenvalues_ are those of the centred kernel.

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

    def _kernel(self, x: Tensor, points: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
        if points is None:
            return x
        gamma = 1 / x.shape[1] if self.gamma is None else self.gamma
        if self.kernel == "rbf":
            squared = differentiable_squared_distances(x, points) if dtype is None else squared_to_all(x, points)
            return squared.mul_(-gamma).exp_()
        if self.kernel == "linear":
            return products_about_mean(x, points)
        if self.kernel == "poly":
            return (gamma * precision.matmul(x, points.mT) + self.coef0) ** self.degree
        assert callable(self.kernel)
        kernel = self.kernel(*(part.to(dtype, copy=True) for part in (x, points)))  # which it may change
        checks.check_floating(kernel, "kernel(x, y)")
        if kernel.shape != (len(x), len(points)):
            raise ValueError(f"kernel(x, y) must have shape {(len(x), len(points))}, got {tuple(kernel.shape)}")
        if dtype is None:
            checks.check_finite(kernel, "kernel", "check the function")
        return kernel.to(x.dtype)


class Isomap(KernelEmbedding):
    """Isomap (Tenenbaum, de Silva & Langford 2000): classical scaling of geodesic distances, differentiable.

    Geodesics are shortest paths on the neighbourhood graph, by Dijkstra's algorithm on the CPU. Gradients flow to the
    points along the edges of the paths; the paths are fixed. The kernel mostly has negative eigenvalues, too; see
    `MDS`. A new point x has the geodesics D̃(x, i) = min_j ‖x − x_j‖ + D(j, i) over its neighbours j by the rule of the
    graph, and one that equals a training point its row.

    With landmarks (de Silva & Tenenbaum 2003) the eigenproblem is solved on the landmarks only, to which alone
    distances are computed, and all other points are embedded as new points. Without, all points are landmarks.

    Args:
        n_components: dimension of the embedding, at most the number of positive eigenvalues.
        neighbors: rule of the graph, ``KNN(k)``, ``Radius(r)`` or another `NeighborRule`. For given geodesic distances
            use `MDS`.
        landmarks: None for all points; a number of points, drawn with ``seed``; or indices, int64 ``(L,)``, among the
            valid points of each set. In an item of a batch with fewer points than that number, all are landmarks.
        seed: seed of the drawn landmarks.
        solve: options of the eigensolve, a `Solve`, or just a solver.

    Tensors after ``fit``: see `EmbeddingModule`; eigenvalues_ are those of K̃ of the landmarks. geodesics_: of all
    points to the landmarks, ``(N, L)``. landmarks_: int64 ``(L,)``.

    Raises: ValueError: a graph of several components.

    >>> angle = torch.linspace(0, 3, 40, dtype=torch.float64)  # half a circle
    >>> x = torch.stack([angle.cos(), angle.sin()], 1)
    >>> y = Isomap(1, KNN(2)).fit(x).embedding_[:, 0]
    >>> torch.allclose((y - y[0]).abs(), angle, atol=0.01)  # rolled out, but for chords
    True
    """

    FITTED = (*KernelEmbedding.FITTED, "train_rule", "train_edges", "landmarks_", "geodesics_")
    _frozen = EmbeddingModule._frozen  # which refuses

    def __init__(
        self,
        n_components: int = 2,
        neighbors: NeighborRule = KNN(10),
        *,
        landmarks: int | Tensor | None = None,
        seed: int = 0,
        solve: Solve | Solver | None = None,
    ) -> None:
        super().__init__(n_components, solve)
        refuse("Isomap", neighbors=neighbors)
        check_rule(neighbors)
        if isinstance(landmarks, (int, float, str, np.generic)):
            landmarks = checks.check_count(landmarks, "landmarks", 2)
        elif landmarks is not None:
            checks.check_indices(landmarks, "landmarks")
            checks.check_distinct(landmarks, "landmarks", "landmarks.unique()")
        self.neighbors = neighbors
        self.landmarks = landmarks
        self.seed = checks.check_seed(seed)

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        chosen = self._chosen(x, fill)
        # Dijkstra's distances, in float64.
        check_dense(len(x), len(chosen), 8, torch.device("cpu"), type(self).__name__, "use landmarks=1000")
        graph, train_rule = graph_with_state(self.neighbors, x.detach())
        sizes = graph.connected_components().bincount().sort(descending=True).values.tolist()
        if len(sizes) > 1:
            shown = ", ".join(map(str, sizes[:10])) + (", …" if len(sizes) > 10 else "")
            raise ValueError(
                f"the neighbourhood graph has {len(sizes)} connected components, of {shown} points, and geodesics "
                "between them are infinite; use more neighbours or a larger radius, or embed each on its own"
            )
        graph = graph.to_sparse()
        assert isinstance(graph.pattern, SparsePattern)
        if graph.metric in COORDINATES:
            points = measured(x, graph.metric)
            unit = checks.power_of_two(points, (0, 1))
            lengths = _root(graph.pattern.squared_lengths(points / unit)) * unit[0]
        else:
            lengths = edge_lengths(x, graph)
        geodesics = geodesic_distances(graph.pattern, lengths, chosen)
        if self.landmarks is not None:
            geodesics = geodesics.mT.contiguous()
        among = geodesics if self.landmarks is None else geodesics[chosen]
        state = self._embed_kernel(among.square().mul_(-0.5), solved, fill=fill)
        state |= {"train_points": x, "train_rule": train_rule, "train_edges": graph.edge_index}
        state |= {"landmarks_": chosen, "geodesics_": geodesics}
        if self.landmarks is not None:
            state["embedding_"] = self._extension(geodesics.square() / -2, state["embedding_"], state)
        return state

    def _chosen(self, x: Tensor, fill: bool) -> Tensor:
        n = len(x)
        if self.landmarks is None:
            return torch.arange(n, device=x.device)
        if isinstance(self.landmarks, Tensor):
            checks.check_indices(self.landmarks, "landmarks", n)
            return self.landmarks.to(x.device)
        if self.landmarks > n and not fill:
            raise ValueError(f"landmarks must be at most the number of points, got {self.landmarks} with {n} points")
        drawn = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed))[: self.landmarks]
        return drawn.sort().values.to(x.device)

    def _width(self, state: State) -> int:
        points, landmarks = state["geodesics_"].shape
        width: int = 4 * (2 + state["train_edges"].shape[1] // points) * landmarks
        return width + width_of_rows(self.neighbors, points)

    def _extend(self, x: Tensor, state: State) -> Tensor:
        geodesics, connectivity = state["geodesics_"], x.new_ones(state["train_edges"].shape[1])
        query, point, _, same, metric = edges_of_new(self.neighbors, x, state, connectivity)
        points = state["train_points"]
        warn_of_unreached(len(x) - len(query.unique()), len(x))
        if metric in COORDINATES:
            points, places = measured(points, metric), measured(x, metric)
            unit = checks.power_of_two(points, (0, 1))
            lengths = _root((places[query] / unit - points[point] / unit).square().sum(1)) * unit[0]
        else:
            lengths = distances(metric, x, points)[query, point]
        with torch.no_grad():  # the first edge of a shortest path to each landmark; number E means no path
            reach, edge = lengths[:, None] + geodesics[point], torch.arange(len(query), device=x.device)[:, None]
            row, none = query[:, None].expand_as(reach), x.new_full((len(x), geodesics.shape[1]), torch.inf)
            is_shortest = reach == none.scatter_reduce(0, row, reach, "amin")[query]
            via = torch.full_like(none, len(query), dtype=torch.int64)
            via = via.scatter_reduce(0, row, torch.where(is_shortest, edge, len(query)), "amin")
        lengths, point = nn.functional.pad(lengths, (0, 1), value=torch.inf), nn.functional.pad(point, (0, 1))
        reach = lengths[via] + geodesics[point[via], torch.arange(geodesics.shape[1], device=x.device)]
        reach = torch.where(same[:, None] == state["landmarks_"], 0, reach)
        # Centring a kernel that is the mean gives zero.
        kernel = torch.where(reach.isinf(), state["train_means"], reach.square() / -2)
        return self._extension(kernel, state["embedding_"][state["landmarks_"]], state)


def _root(squares: Tensor) -> Tensor:
    """Return √, with a zero gradient at zero."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1).sqrt(), 0)
