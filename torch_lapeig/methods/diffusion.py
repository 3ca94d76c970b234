"""Diffusion maps: eigenmaps whose distances are those of a random walk that does not see the sampling density."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor

from torch_lapeig.eigen import Eigenpairs, Solve, Solver
from torch_lapeig.graph import KNN, DensityCorrected, Graph, Precomputed, SimpleWeights
from torch_lapeig.graph.rules import GraphRule
from torch_lapeig.graph.weights import Weighting, check_weighting
from torch_lapeig.methods.eigenmaps import LaplacianEigenmaps
from torch_lapeig.support import checks
from torch_lapeig.support.fitted import State
from torch_lapeig.support.kinds import refuse


class DiffusionMap(LaplacianEigenmaps):
    """Diffusion maps (Coifman & Lafon, *Applied and Computational Harmonic Analysis* 21, 2006), differentiable.

    The kernel K is corrected for the sampling density, W = K / (q_i q_j)^α with q = K 1, and gives a random walk with
    the transition matrix P = D⁻¹ W. The columns are |μ_l|^τ y_l, where P y_l = μ_l y_l, without the constant column, μ
    descending and Yᵀ D Y = I. Squared distances of rows are the diffusion distances Σ_u (P^τ_iu − P^τ_ju)² / d_u, up to
    the columns left out. The paper divides the degrees by their sum: its coordinates are ours times (Σ d)^½.

    It is `LaplacianEigenmaps` with `DensityCorrected` weights and ``diffusion=time``: batches, masks, gradients and new
    points by Nyström's formula follow the same contract.

    Args:
        n_components: dimension of the embedding, without the constant column.
        neighbors: rule of the graph. With ``Precomputed("affinity")`` the affinities given are K; those of new points
            ``(Q, N)``, too. With `Landmarks`, whose degrees are 1, points count q^-α in the graph (docs/landmarks.md):
            α = 1 removes the density as elsewhere, and 0 is the landmark graph as it is, whose walk has α = ½.
        weights: K, a weighting that is not corrected yet; default ``HeatKernel("median")``. ``HeatKernel("steepest")``
            has the bandwidth criterion of Coifman et al. 2008. None with ``Precomputed``.
        alpha: α in [0, 1]: 1 approaches the Laplace–Beltrami operator whatever the density, ½ the Fokker–Planck
            operator of diffusion in its potential, 0 the normalised graph Laplacian.
        time: diffusion time τ ≥ 0; 0 leaves the eigenvectors as they are.
        components: treatment of a disconnected graph, see `LaplacianEigenmaps`.
        solve: options of the eigensolve, a `Solve`, or just a solver.

    Tensors after ``fit``: as of `LaplacianEigenmaps`; ``eigenvalues_`` are 1 − μ.

    Raises: as `LaplacianEigenmaps`; ValueError for ``weights`` that are `DensityCorrected` or `ImprovedWeights`, and a
    `Graph` that is corrected already, unless ``alpha`` is 0.

    >>> import torch
    >>> x = torch.rand(
    ...     80, 3, generator=torch.Generator().manual_seed(0), requires_grad=True
    ... )
    >>> model = DiffusionMap(2, KNN(8), alpha=1.0, time=2.0)
    >>> model(x).square().sum().backward()
    >>> x.grad.isfinite().all(), model.fit(x.detach()).transform(torch.rand(5, 3)).shape
    (tensor(True), torch.Size([5, 2]))
    """

    FITTED: ClassVar[tuple[str, ...]] = (*LaplacianEigenmaps.FITTED, "train_density")

    def __init__(
        self,
        n_components: int = 2,
        neighbors: GraphRule = KNN(10),  # noqa: B008 (frozen)
        weights: Weighting | None = None,
        *,
        alpha: float = 1.0,
        time: float = 1.0,
        components: Literal["joint", "separate", "error"] = "joint",
        solve: Solve | Solver | None = None,
    ) -> None:
        check_weighting(weights)
        refuse("DiffusionMap", weights=weights)
        corrected = weights if isinstance(neighbors, Precomputed) else DensityCorrected(alpha, weights)
        time = checks.check_number(time, "time", 0)
        super().__init__(n_components, neighbors, corrected, diffusion=time, components=components, solve=solve)
        self.alpha = checks.check_number(alpha, "alpha", 0, 1)

    @property
    def time(self) -> float:
        """Return the diffusion time τ."""
        return self.diffusion

    def _checked(self, x: Any, mask: Tensor | None) -> tuple[Any, Tensor | None]:
        if isinstance(x, Graph) and self.alpha > 0:
            refuse("DiffusionMap", x=x)
        return super()._checked(x, mask)

    def _graph(self, x: Any, mask: Tensor | None) -> Graph:
        graph = super()._graph(x, mask)
        return self._correction(_nowhere(graph), graph) if isinstance(x, Graph) else graph

    @property
    def _correction(self) -> DensityCorrected:
        """Return the correction of affinities that are given, whose edges need no lengths."""
        return DensityCorrected(self.alpha, SimpleWeights())

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        if not isinstance(x, Graph):
            return super()._fit_points(x, solved, fill=fill)
        state = super()._fit_points(self._graph(x, None), solved, fill=fill)
        return {**state, "train_density": self._correction.state(_nowhere(x), x)[:, 0]}


def _nowhere(graph: Graph) -> Tensor:
    """Return points of a graph whose edges have no lengths, in any metric."""
    return graph.weight.new_ones(*graph.shape, 1)
