"""Laplacian eigenmaps, and diffusion maps, whose distances are those of a random walk, with gradients."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from torch_lapeig.eigen import Auto, Eigenpairs, Laplacian, Solve, Solver, eigenpairs
from torch_lapeig.eigen.choose import is_small
from torch_lapeig.eigen.dense_sets import dense_from_normalized, small_eigenpairs
from torch_lapeig.eigen.gradient.matrix_functions import function_of_matrix
from torch_lapeig.eigen.laplacian import Normalization, warn_of_isolated
from torch_lapeig.graph import KNN, DensityCorrected, Graph, ImprovedWeights, Landmarks, Precomputed, SimpleWeights
from torch_lapeig.graph.dense_sets import small_graph
from torch_lapeig.graph.graph import batches_of_components
from torch_lapeig.graph.pattern import PatternBase
from torch_lapeig.graph.rules import GraphRule
from torch_lapeig.graph.weights import Bandwidth, Weighting, check_weighting
from torch_lapeig.methods.landmarks import OnLandmarks
from torch_lapeig.methods.module import Embedding, with_random_signs
from torch_lapeig.methods.on_graph import GraphEmbedding, check_size, up_to_gap
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State
from torch_lapeig.support.kinds import refuse

Scale = Literal["degree", "unit", "orthonormal"]
LEAST_DECAY = 1e-14  # eigenvalues up to here may be round-off of a matrix of norm 2
Own = TypeVar("Own", bound="LaplacianEigenmaps")


class LaplacianEigenmaps(GraphEmbedding):
    """Laplacian eigenmaps (Belkin & Niyogi, *Neural Computation* 15, 2003, section 2), differentiable.

    The columns are the generalised eigenvectors L y = λ D y of a neighbourhood graph with weighted edges, of the
    smallest eigenvalues after the constant one. ``forward`` builds a new graph for its points; gradients flow to them
    and to a learnable bandwidth. ``fit`` keeps the state for ``transform``.

    Args:
        n_components: dimension of the embedding, below the number of nodes of positive degree.
        neighbors: rule of the graph, ``KNN(k)``, ``Radius(r)`` or another `NeighborRule`; or
            ``Precomputed("affinity")``: the module takes affinities ``(N, N)`` or ``(B, N, N)``, or a `Graph`, in
            place of points; or ``Precomputed("distance")``: sparse distances ``(N, N)`` of stored neighbours, without
            new points; or ``Landmarks(m)``, for millions of points, see also ``fit_stream``.
        weights: weighting of the edges; default ``HeatKernel("median")``. None with affinities.
        normalization: ``"random_walk"`` for L y = λ D y, ``"unnormalized"`` for L y = λ y. Improved Laplacian eigenmaps
            (see ``improved``) are `ImprovedWeights` with ``"unnormalized"``; with ``"random_walk"`` these weights
            lead to the eigenvectors of I − D⁻¹W, another problem.
        scale: ``"degree"``: Yᵀ D Y = I as in the paper (Yᵀ Y = I if unnormalised); ``"unit"``: each column has mean
            square 1 over the nodes of positive degree, which does not change with N: for use inside networks;
            ``"orthonormal"``: the eigenvectors v = D^½ y of L_sym, Vᵀ V = I (Bengio et al. 2003), not constant in the
            trivial column, and not with `ImprovedWeights`.
        drop_trivial: leave out the first column, with λ = 0; ``n_components`` other columns are returned.
        diffusion: τ ≥ 0: multiply columns by |1 − λ|^τ. Euclidean distances are then the part of the diffusion
            distances at time τ (Coifman & Lafon 2006, section 2.2) that lies in the columns; 0 for no factor. Only with
            ``scale="degree"``, because distances at other scales are not diffusion distances, and not if unnormalised.
            ``math.inf`` for all times, see ``time`` of `DiffusionMap`; not with the trivial column.
        random_signs: in training mode, multiply each column of each graph by a random sign in ``forward`` and
            ``embed``, as in the training of networks with Laplacian positional encodings (Dwivedi et al., *Benchmarking
            graph neural networks*, 2020). Otherwise signs are deterministic: the largest entry is positive.
        components: treatment of a disconnected graph. ``"joint"`` solves the plain problem: its c zero eigenvalues
            have c − 1 columns that only distinguish the components, with a `GraphWarning`. ``"separate"`` embeds each
            component on its own, as in the paper; a component of m nodes has at most m − 1 columns, then zeros.
            ``"error"`` raises.
        solve: options of the eigensolve, a `Solve`, or just a solver.

    Isolated nodes get a row of zeros and a `GraphWarning`. A batch is solved together; `EmbeddingModule` describes the
    treatment of its items, of half precision and of new points.

    Tensors after ``fit``: see `EmbeddingModule`; with ``"separate"`` eigenvalues_, residuals_ and gap_ have one row for
    each component of two or more nodes (+∞ if it has no further column).

    New points are joined to training points by the rule of the graph, with the reach and the bandwidth of the training
    points. One that equals a training point gets its row (of the first of several copies), and one that no edge reaches
    gets zeros and a `GraphWarning`.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.rand(60, 3, requires_grad=True)
    >>> y = LaplacianEigenmaps(2, KNN(6))(x)
    >>> y.shape
    torch.Size([60, 2])
    >>> y[:, 0].square().mean().backward()
    >>> x.grad.isfinite().all()
    tensor(True)
    """

    FITTED = (*GraphEmbedding.FITTED, "train_count")
    OTHER_RULES = (Landmarks,)

    def __init__(
        self,
        n_components: int = 2,
        neighbors: GraphRule | Landmarks = KNN(10),
        weights: Weighting | None = None,
        *,
        normalization: Literal["random_walk", "unnormalized"] = "random_walk",
        scale: Scale = "degree",
        drop_trivial: bool = True,
        diffusion: float = 0.0,
        random_signs: bool = False,
        components: Literal["joint", "separate", "error"] = "joint",
        solve: Solve | Solver | None = None,
    ) -> None:
        super().__init__(n_components, neighbors, weights, solve)
        checks.check_choice(scale, "scale", ("degree", "unit", "orthonormal"))
        checks.check_choice(components, "components", ("joint", "separate", "error"))
        checks.check_choice(normalization, "normalization", ("random_walk", "unnormalized"))
        self.normalization: Normalization = normalization
        self.scale: Scale = scale
        is_symmetric = scale == "orthonormal" and normalization == "random_walk"
        self._normalization = "symmetric" if is_symmetric else normalization
        self.drop_trivial = checks.check_flag(drop_trivial, "drop_trivial")
        self.diffusion = check_time(diffusion, "diffusion")
        if self.diffusion > 0 and normalization == "unnormalized":
            why = '1 − λ does not decay there; use "random_walk"'
            raise ValueError(f'diffusion must be 0 with normalization="unnormalized", got {self.diffusion:g}: {why}')
        if self.diffusion > 0 and scale != "degree":
            why = 'only with scale="degree" are distances diffusion distances'
            raise ValueError(f'diffusion must be 0 with scale="{scale}", got {self.diffusion:g}: {why}')
        if self.diffusion == math.inf and not self.drop_trivial:
            raise ValueError("diffusion must be finite with drop_trivial=False, got inf: the constant column stays")
        self.random_signs = checks.check_flag(random_signs, "random_signs")
        self.components, self.least = components, self.width  # columns that a single graph must have
        if isinstance(neighbors, Landmarks):
            refuse("LaplacianEigenmaps", neighbors=neighbors, weights=weights)
            options = [f"LaplacianEigenmaps, {option}" for option in (components, scale, normalization)]
            refuse(*options, neighbors=neighbors, weights=weights)

    @classmethod
    def improved(
        cls, n_components: int, neighbors: GraphRule, t: Bandwidth = "median", *, learnable: bool = False, **more: Any
    ) -> LaplacianEigenmaps:
        """Build improved Laplacian eigenmaps of Baghani & Araabi: (D − W) y = λ y with `ImprovedWeights`.

        Args:
            n_components: as for the class. neighbors: ``Radius(ε)`` in the paper.
            t, learnable: as for `ImprovedWeights`; ``t`` is the paper's t times 4.
            more: other arguments of the class, except ``weights`` and ``normalization``, which this method sets.
        """
        weights = ImprovedWeights(t, learnable=learnable)
        return cls(n_components, neighbors, weights, normalization="unnormalized", **more)

    @precision.full_precision
    def embed(
        self, x: Tensor | Graph, mask: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Embedding:
        """Return the embedding of ``forward`` with eigenvalues, residuals and eigengap; the arguments are the same.

        ``generator`` draws random signs, on the device of ``x``; default: torch's own.
        """
        checks.check_generator(generator)
        found = super().embed(x, mask=mask)
        if self.random_signs and self.training:
            found = found._replace(embedding=with_random_signs(found.embedding, generator))
        return found

    @torch.no_grad()
    @precision.full_precision
    def fit_stream(self: Own, blocks: Any, *, resume: bool = False, progress: bool = False) -> Own:
        """Embed points that need not fit in memory, block by block, in memory of O(m r² + block). Returns the module.

        Needs `Landmarks`. The points are read twice: landmarks and the bandwidth are taken from a random sample of
        them, then all points are added to the landmark graph. `transform` embeds any of them.

        An error or an interrupt in the second reading loses no block that was read: the module is fitted to these
        before the error goes on. ``train_count`` tells how many points they are, and ``fit_stream(rest, resume=True)``
        adds others, also after ``state_dict`` was saved and loaded.

        Args:
            blocks: one array, memory map or tensor ``(N, D)``; or blocks ``(b, D)`` of it, or tuples that begin with
                one as a DataLoader gives them, in a list, a DataLoader or another iterable that starts anew each time.
            resume: add the points to the fit at hand, with its landmarks and bandwidth; they are read once.
            progress: show a bar for each reading (needs tqdm).

        ``embedding_`` holds the rows of the landmarks, ``train_points``, as the points are not kept.

        >>> x = torch.rand(500, 3, dtype=torch.float64)
        >>> model = LaplacianEigenmaps(2, Landmarks(50)).fit_stream([x[:250], x[250:]])
        >>> int(model.train_count), model.transform(x).shape
        (500, torch.Size([500, 2]))
        """
        refuse("fit_stream", neighbors=self.neighbors)
        checks.check_flag(resume, "resume")
        checks.check_flag(progress, "progress")
        self._steps.fit_stream(getattr(blocks, "to_numpy", lambda: blocks)(), resume=resume, progress=progress)
        return self

    @property
    def _steps(self) -> Any:
        rule = self.neighbors
        return OnLandmarks(self, rule, self.weights) if isinstance(rule, Landmarks) else self

    def _embed_small(self, x: Tensor, mask: Tensor | None, solved: list[Eigenpairs]) -> Embedding | None:
        sets, nodes = math.prod(x.shape[:-2]), x.shape[-2]
        is_plain = self.scale != "orthonormal" and self.normalization == "random_walk" and self.components != "separate"
        options = Solve.of(self.solve)
        is_default = type(options.solver) is Auto and not options.progress
        k = self.width + int(self.drop_trivial)
        if not (is_plain and is_default and k < nodes and is_small(sets, nodes, x.device)):
            return None
        if (made := small_graph(x, self.neighbors, self.weights, mask)) is None:
            return None
        active = x.new_ones((sets, nodes), dtype=torch.bool) if mask is None else mask.reshape(sets, nodes)
        if (found := small_eigenpairs(dense_from_normalized(*made, active), k, x.dtype, options)) is None:
            return None
        solved.append(found.reshaped(x.shape[:-2], x.dtype))
        return self._scaled(solved[-1], active.reshape(x.shape[:-1]), PatternBase())

    def _solve_graph(self, laplacian: Laplacian, solved: list[Eigenpairs], *, fill: bool) -> Embedding:
        if self.scale == "orthonormal":
            refuse("LaplacianEigenmaps, orthonormal", graph=laplacian.graph)
        if self.components == "separate":
            return self._solve_components(laplacian, solved, fill=fill)
        if (most := int(laplacian.nullity.max())) > 1:
            can_separate = not isinstance(self.neighbors, Landmarks) and not laplacian.graph.pattern.is_sharded
            way_out = 'components="separate" to ' if can_separate else ""
            message = (
                f"the neighbourhood graph has {most} connected components, so that the first {most - 1} columns only "
                f"distinguish them; use more neighbours or a larger bandwidth, or {way_out}embed each on its own"
            )
            if self.components == "error":
                raise ValueError(message)
            checks.warn(message, checks.GraphWarning)
        first = int(self.drop_trivial)
        if not fill:
            check_size(laplacian, self.least, "n_components", first)
        pairs = eigenpairs(laplacian, self.width + first, self.solve, fill=fill or self.least < self.width)
        solved.append(pairs)
        return self._scaled(pairs, laplacian.active, laplacian.graph.pattern)

    def _solve_components(self, laplacian: Laplacian, solved: list[Eigenpairs], *, fill: bool) -> Embedding:
        """Solve each component of two or more nodes on its own; columns that a component lacks are zero."""
        graph, k = laplacian.graph, self.width
        warn_of_isolated(laplacian.active, graph.mask)
        batches = batches_of_components(graph, k + 1)
        if not batches and not fill:
            raise ValueError("graph has no component of two or more nodes; use more neighbours or a larger bandwidth")
        # A sum of no weights: zeros are connected to the weights by autograd where no component is solved, too.
        y = graph.weight.flatten()[:0].sum().repeat(graph.batch_size * graph.num_nodes, k)
        lacking = torch.full_like(y, torch.inf)
        totals = [y, lacking, lacking, lacking[:, :1]]
        for nodes, part in batches:
            own = Laplacian(part, self._normalization)
            pairs = eigenpairs(own, k + int(self.drop_trivial), self.solve, fill=True)
            solved.append(pairs)
            found = self._scaled(pairs, own.active, PatternBase())
            residuals = found.residuals.masked_fill(found.eigenvalues.isinf(), torch.inf)
            there = torch.ones_like(own.active) if part.mask is None else part.mask
            for i, x in enumerate((found.embedding, found.eigenvalues, residuals, found.gap[..., None])):
                of_nodes = x if i == 0 else x[..., None, :].expand(*there.shape, -1)
                totals[i] = totals[i].index_copy(0, nodes, of_nodes[there])
        y, values, residuals, gap = (total.reshape(*graph.shape, total.shape[1]) for total in totals)
        return Embedding(y, values, residuals, gap[..., 0], ())

    def _scaled(self, pairs: Eigenpairs, active: Tensor, nodes: PatternBase) -> Embedding:
        """Return the embedding of the active nodes: columns, scaled, and their eigenvalues."""
        first = int(self.drop_trivial)
        y = self._steps._columns(pairs.vectors[..., first:], pairs, active, nodes)
        y = decayed(y, pairs, self.diffusion) if self.diffusion > 0 else y
        return Embedding(y, pairs.values[..., first:], pairs.residuals[..., first:], pairs.gap, ())

    def _columns(self, y: Tensor, pairs: Eigenpairs, active: Tensor, nodes: PatternBase) -> Tensor:
        """Return generalised eigenvectors, the last columns of ``pairs``, in the scale of the module."""
        if self.scale != "unit":
            return y
        y = y / checks.power_of_two(nodes.largest(y)[..., None, :], (-2,))  # so that no square overflows
        count, squares = nodes.sum(active.sum(-1))[..., None, None], nodes.sum(y.square().sum(-2, keepdim=True))
        # A column that a small graph lacks is zero and stays zero.
        y = y * (count / torch.where(squares > 0, squares, 1)).sqrt()
        if y.requires_grad and self.normalization == "random_walk":
            first = int(self.drop_trivial)
            _warn_of_lengths(y, pairs.values[..., first:].detach(), pairs.residuals[..., first:], nodes)
        return y


def _warn_of_lengths(y: Tensor, values: Tensor, residuals: Tensor, nodes: PatternBase) -> None:
    """Warn in a backward pass where columns of equal eigenvalues, scaled to length 1, have no gradient."""
    # Yᵀ D Y is equal in every basis of an eigenspace, but Yᵀ Y is not. A change of the graph selects a basis, whose
    # columns have other lengths, and so changes the scaled result in first order.
    eps = torch.finfo(y.dtype).eps
    noise = 10 * residuals.amax(-1) + 50 * eps * values.masked_fill(values.isinf(), 0).amax(-1)
    equal = ((values[..., :, None] - values[..., None, :]).abs() <= noise[..., None, None]).triu(1)
    if y.device.type == "cpu" and not equal.any():
        return
    columns = y.detach()

    def warn(cotangent: Tensor) -> None:
        cotangent = cotangent.detach()
        flow = nodes.sum(columns.mT @ cotangent)
        own = flow.diagonal(dim1=-2, dim2=-1)
        told = (flow + flow.mT).abs().maximum((own[..., :, None] - own[..., None, :]).abs())
        size, length = (nodes.sum(part.square().sum((-2, -1))).sqrt() for part in (cotangent, columns))
        if (equal & (told > math.sqrt(eps) * (size * length)[..., None, None])).any():
            finding = 'scale="unit" has no well-defined gradient at equal eigenvalues'
            reason = "column lengths depend on the basis, and this gradient is valid for the current basis only"
            checks.warn(f'{finding}: {reason}; use scale="degree"', checks.DegeneracyWarning)

    y.register_hook(warn)


def check_time(time: Any, name: str) -> float:
    """Return a number of at least 0, or +∞."""
    return time if isinstance(time, float) and time == math.inf else checks.check_number(time, name, 0)


def decayed(y: Tensor, pairs: Eigenpairs, time: float) -> Tensor:
    """Return columns of the last pairs times |1 − Λ|^time, up to signs; zero where all times do not decay."""
    first = pairs.values.shape[-1] - y.shape[-1]
    if time == math.inf and (lost := pairs.values.detach()[..., first:] <= LEAST_DECAY).any():
        finding = f"{int(lost.sum())} columns have eigenvalues of at most {LEAST_DECAY}, as of several components"
        advice = 'use a finite time, more neighbours, or components="separate"'
        checks.warn(f"{finding}, and do not decay: they are zero; {advice}", checks.GraphWarning)
    projected = pairs.projected[..., first:, first:]
    sign = torch.where(projected.detach().diagonal(dim1=-2, dim2=-1) > 1, -1.0, 1.0).to(projected)
    least = torch.finfo(projected.dtype).eps

    def power(value: Tensor) -> Tensor:
        if time == math.inf:
            decays = value > LEAST_DECAY
            return torch.where(decays, (1 - value) / torch.where(decays, value, 1), 0)
        # For an integer time it is a polynomial, which is smooth at λ = 1, too; signs do not change distances.
        return (1 - value) ** time if time == int(time) else (1 - value).abs().clamp_min(least) ** time

    grown, odd = function_of_matrix(projected, power), time == math.inf or time % 2 == 1
    return precision.matmul(y, grown * sign[..., None, :] if odd else grown)


class DiffusionMap(LaplacianEigenmaps):
    """Diffusion maps (Coifman & Lafon, *Applied and Computational Harmonic Analysis* 21, 2006), differentiable.

    The kernel K is corrected for the sampling density, W = K / (q_i q_j)^α with q = K 1, and gives a random walk with
    the transition matrix P = D⁻¹ W. The columns are |μ_l|^τ y_l, where P y_l = μ_l y_l, without the constant column, μ
    descending and Yᵀ D Y = I. Squared distances of rows are the diffusion distances Σ_u (P^τ_iu − P^τ_ju)² / d_u, up to
    the columns left out. The paper divides the degrees by their sum: its coordinates are ours times (Σ d)^½.

    It is `LaplacianEigenmaps` with `DensityCorrected` weights and ``diffusion=time``: batches, masks, gradients and new
    points by Nyström's formula follow the same contract.

    Args:
        n_components: dimension of the embedding, without the constant column. ``"eigengap"``: the number from 1 to
            ``max_components`` after which the gap of the eigenvalues is widest, for each graph of a batch, all from one
            solve. Rows then have ``max_components`` columns, and those after the gap are zero; ``n_components_`` is the
            number of a fit, and ``gap_`` the gap.
        neighbors: rule of the graph. With ``Precomputed("affinity")`` the given affinities are K; new points have
            affinities ``(Q, N)``. With `Landmarks`, whose degrees are 1, points count q^-α times in the graph: α = 1
            removes the density as elsewhere, and α = 0 is the plain landmark graph, whose walk has α = ½.
        weights: K, a weighting that is not corrected yet; default ``HeatKernel("median")``. ``HeatKernel("steepest")``
            has the bandwidth criterion of Coifman et al. 2008. None with ``Precomputed``.
        alpha: α in [0, 1]: 1 approaches the Laplace–Beltrami operator for any density, ½ the Fokker–Planck
            operator of diffusion in its potential, 0 the normalised graph Laplacian.
        time: diffusion time τ ≥ 0; 0 leaves the eigenvectors as they are. ``math.inf`` for all times together:
            columns times Σ_τ μ^τ = μ / (1 − μ), τ = 1, 2, …, up to signs, as in Palantir (Setty et al. 2019).
        max_components: largest dimension with ``n_components="eigengap"``, where there are as many nodes.
        components: treatment of a disconnected graph, see `LaplacianEigenmaps`.
        solve: options of the eigensolve, a `Solve`, or just a solver.

    Tensors after ``fit``: as of `LaplacianEigenmaps`; ``eigenvalues_`` are 1 − μ.

    >>> x = torch.rand(80, 3, requires_grad=True)
    >>> model = DiffusionMap(2, KNN(9), alpha=1.0, time=2.0)
    >>> model(x).square().sum().backward()
    >>> x.grad.isfinite().all(), model.fit(x.detach()).transform(torch.rand(5, 3)).shape
    (tensor(True), torch.Size([5, 2]))
    """

    FITTED = (*LaplacianEigenmaps.FITTED, "train_density")

    def __init__(
        self,
        n_components: int | Literal["eigengap"] = 2,
        neighbors: GraphRule = KNN(10),
        weights: Weighting | None = None,
        *,
        alpha: float = 1.0,
        time: float = 1.0,
        max_components: int = 10,
        components: Literal["joint", "separate", "error"] = "joint",
        solve: Solve | Solver | None = None,
    ) -> None:
        check_weighting(weights)
        refuse("DiffusionMap", weights=weights)
        corrected = weights if isinstance(neighbors, Precomputed) else DensityCorrected(alpha, weights)
        time, most = check_time(time, "time"), checks.check_width(max_components, "max_components")
        if is_chosen := isinstance(n_components, str):
            checks.check_choice(n_components, "n_components", ("eigengap",))
        width: Any = most if is_chosen else n_components
        super().__init__(width, neighbors, corrected, diffusion=time, components=components, solve=solve)
        self.max_components = most
        if is_chosen:
            self.n_components, self.least = n_components, 1
        self.alpha = checks.check_number(alpha, "alpha", 0, 1)

    @property
    def time(self) -> float:
        """Return the diffusion time τ."""
        return self.diffusion

    @property
    def n_components_(self) -> int:
        """Return the number of columns of the fit up to the last that is not zero; AttributeError before ``fit``."""
        if self.embedding_ is None:
            raise AttributeError  # nn.Module says that there is no such attribute
        return int((self.embedding_.any(0) * torch.arange(1, self.width + 1, device=self.embedding_.device)).max())

    def _checked(self, x: Any, mask: Tensor | None) -> tuple[Any, Tensor | None]:
        if isinstance(x, Graph) and self.alpha > 0:
            refuse("DiffusionMap", x=x)
        return super()._checked(x, mask)

    def _graph(self, x: Any, mask: Tensor | None) -> Graph:
        graph = super()._graph(x, mask)
        if isinstance(x, Graph):  # whose edges have no lengths, and need none
            return DensityCorrected(self.alpha, SimpleWeights())(graph.weight.new_ones(*graph.shape, 1), graph)
        return graph

    def _scaled(self, pairs: Eigenpairs, active: Tensor, nodes: PatternBase) -> Embedding:
        found = super()._scaled(pairs, active, nodes)
        if self.n_components != "eigengap":
            return found
        there, gap = up_to_gap(pairs, 2)
        return found._replace(embedding=found.embedding * there[..., None, 1:], gap=gap)

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        if not isinstance(x, Graph):
            return super()._fit_points(x, solved, fill=fill)
        state = super()._fit_points(self._graph(x, None), solved, fill=fill)
        nowhere = x.weight.new_ones(*x.shape, 1)
        return {**state, "train_density": DensityCorrected(self.alpha, SimpleWeights()).state(nowhere, x)[:, 0]}
