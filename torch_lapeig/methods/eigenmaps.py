"""Laplacian eigenmaps as a PyTorch module: points to embedding, with gradients, and new points by Nyström."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_lapeig import _checks
from torch_lapeig._fitted import FittedModule, State, check_like
from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.eigen.solve import Eigenpairs, component_eigenpairs, eigenpairs
from torch_lapeig.eigen.solver import Solver
from torch_lapeig.graph import rules
from torch_lapeig.graph.distances import differentiable_pair_distances
from torch_lapeig.graph.graph import Graph
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.rules import KNN, Radius
from torch_lapeig.graph.weights import HeatKernel, NewEdges, Weighting, check_weighting
from torch_lapeig.methods.nystrom import nystrom

QUERIES = 8192  # new points embedded at a time

Rule = KNN | Radius | Literal["precomputed"]


def check_rule(neighbors: Rule, weights: Weighting | None) -> Weighting | None:
    """Raise unless a rule of the graph and a weighting go together; the weighting, `HeatKernel` where it is None.

    With ``"precomputed"`` affinities there is none.
    """
    if not isinstance(neighbors, str):
        rules.check_rule(neighbors, ', "precomputed"')
    check_weighting(weights)
    if not isinstance(neighbors, str):
        return HeatKernel() if weights is None else weights
    _checks.check_choice(neighbors, "neighbors", ("precomputed",))
    if weights is not None:
        raise ValueError('weights must be None with neighbors="precomputed"; weight the graph beforehand')
    return None


def weighted_graph(neighbors: Rule, weights: Weighting | None, x: Tensor | Graph, mask: Tensor | None = None) -> Graph:
    """The weighted graph of points, or of precomputed affinities."""
    if isinstance(neighbors, str) or weights is None:
        if isinstance(x, Graph) and mask is not None:
            raise ValueError("mask must be None with a Graph, which carries its own")
        return x if isinstance(x, Graph) else Graph.from_dense(x, mask)
    if isinstance(x, Graph):
        raise TypeError('x must be points, got a Graph; use neighbors="precomputed"')
    weighted: Graph = weights(x, neighbors(x, mask))
    return weighted


def warn_of_isolated(laplacian: Laplacian, also: str = "") -> None:
    """Warn of valid nodes of degree zero, with what becomes of them beside zero rows."""
    isolated = ~laplacian.active
    if laplacian.graph.mask is not None:
        isolated = isolated & laplacian.graph.mask
    if isolated.any():
        _checks.warn(
            f"{int(isolated.sum())} of {isolated.numel()} nodes are isolated (no edge of positive weight): their "
            f"rows are zero{also}; use more neighbours, a larger radius or a larger bandwidth",
            _checks.GraphWarning,
        )


class Embedding(NamedTuple):
    """An embedding with its eigenvalues.

    Attributes:
        embedding: ``(N, n_components)`` or ``(B, N, n_components)``.
        eigenvalues: of its columns, ``(n_components,)`` or ``(B, n_components)``; with ``components="separate"`` of
            each node's component, of the shape of ``embedding``. +∞ where there is no such column. With gradients.
        pairs: what `eigenpairs` returned, with residuals, eigengap and status: one, or with ``"separate"`` one for each
            component of two or more nodes.
    """

    embedding: Tensor
    eigenvalues: Tensor
    pairs: tuple[Eigenpairs, ...]


class LaplacianEigenmaps(FittedModule):
    """Laplacian eigenmaps (Belkin & Niyogi, *Neural Computation* 15, 2003, section 2), differentiable.

    Builds a neighbourhood graph, weights its edges, and returns the generalised eigenvectors L y = λ D y of the
    smallest eigenvalues after the constant one. Used as a layer, ``forward`` builds a fresh graph for its points and
    gradients flow to them and to a learnable bandwidth. ``fit`` keeps what ``transform`` needs for new points.

    Args:
        n_components: dimension of the embedding.
        neighbors: rule of the graph, ``KNN(k)`` or ``Radius(r)``, or ``"precomputed"``: the module is given affinities
            ``(N, N)`` or ``(B, N, N)``, or a `Graph`, in the place of points.
        weights: weighting of its edges; default ``HeatKernel("median")``. None with ``"precomputed"``.
        normalization: ``"random_walk"`` for L y = λ D y, ``"unnormalized"`` for L y = λ y.
        scale: ``"degree"``: Yᵀ D Y = I as in the paper (Yᵀ Y = I if unnormalised); ``"unit"``: each column has mean
            square 1 over the nodes of positive degree, which does not change with N: for use inside networks.
        drop_trivial: leave out the first column, which is constant, so that ``n_components`` others are returned.
        diffusion: τ ≥ 0: columns times |1 − λ|^τ, after which Euclidean distances are diffusion distances at time τ
            (Coifman & Lafon 2006, section 2.2) as far as they lie in the columns; 0 for none. Not if unnormalised.
        random_signs: in training mode, turn each column of each graph by a random sign, as networks with Laplacian
            positional encodings are trained (Dwivedi et al., *Benchmarking graph neural networks*, 2020). Otherwise
            signs are deterministic: the largest entry is positive.
        components: of a disconnected graph: ``"joint"`` solves the plain problem, whose c zero eigenvalues give
            c − 1 columns that tell the components apart, with a `GraphWarning`; ``"separate"`` embeds each component
            on its own (the paper's rule), a component of m nodes giving at most m − 1 columns, the rest zero;
            ``"error"`` raises.
        solver: of the eigenproblem; see `eigenpairs`.

    Graphs of a batch may be of any size: where one has fewer than n_components + 1 nodes of positive degree, the
    columns it lacks are zero. What an item gives depends neither on the others of the batch nor on the padding (up to
    the basis of an eigenspace of equal eigenvalues, and round-off). Points in float16 or bfloat16 are embedded in
    float32, also under autocast, and the result has their dtype.

    Tensors after ``fit`` (part of ``state_dict``, which loads into a fresh module of the same configuration):
        embedding_: ``(N, n_components)``. eigenvalues_, residuals_: ``(n_components,)``, or with ``"separate"`` one
        row for each component of two or more nodes (+∞ where it has no further column). gap_: the eigengap after
        the last column, ``()`` or one for each such component.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.rand(60, 3, requires_grad=True)
    >>> y = LaplacianEigenmaps(2, KNN(6))(x)
    >>> y.shape
    torch.Size([60, 2])
    >>> y[:, 0].square().mean().backward()
    >>> x.grad.isfinite().all()
    tensor(True)
    """

    FITTED: ClassVar[tuple[str, ...]] = (
        "embedding_",
        "eigenvalues_",
        "residuals_",
        "gap_",
        "train_points",
        "train_radii",
        "train_state",
        "train_edges",
        "train_connectivity",
        "train_eigenvalues",
    )
    CONFIGURATION: ClassVar[tuple[str, ...]] = (
        "n_components",
        "neighbors",
        "weights",
        "normalization",
        "scale",
        "drop_trivial",
        "diffusion",
        "components",
    )
    embedding_: Tensor
    eigenvalues_: Tensor
    residuals_: Tensor
    gap_: Tensor
    train_points: Tensor
    train_radii: Tensor
    train_state: Tensor
    train_edges: Tensor
    train_connectivity: Tensor
    train_eigenvalues: Tensor

    def __init__(
        self,
        n_components: int = 2,
        neighbors: KNN | Radius | Literal["precomputed"] = KNN(10),  # noqa: B008 (frozen)
        weights: Weighting | None = None,
        *,
        normalization: Literal["random_walk", "unnormalized"] = "random_walk",
        scale: Literal["degree", "unit"] = "degree",
        drop_trivial: bool = True,
        diffusion: float = 0.0,
        random_signs: bool = False,
        components: Literal["joint", "separate", "error"] = "joint",
        solver: Solver | None = None,
    ) -> None:
        super().__init__()
        _checks.check_choice(scale, "scale", ("degree", "unit"))
        _checks.check_choice(components, "components", ("joint", "separate", "error"))
        _checks.check_choice(normalization, "normalization", ("random_walk", "unnormalized"))
        _checks.check_solver(solver)
        self.n_components = _checks.check_count(n_components, "n_components")
        self.neighbors = neighbors
        self.weights = check_rule(neighbors, weights)
        self.normalization: Literal["random_walk", "unnormalized"] = normalization
        self.scale = scale
        self.drop_trivial = _checks.check_flag(drop_trivial, "drop_trivial")
        self.diffusion = _checked_diffusion(diffusion, normalization)
        self.random_signs = _checks.check_flag(random_signs, "random_signs")
        self.components = components
        self.solver = solver

    def forward(
        self, x: Tensor | Graph, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """The embedding ``(N, n_components)`` or ``(B, N, n_components)`` of points, with gradients.

        Args:
            x: ``(N, D)`` or ``(B, N, D)``, floating; the dtype and device are kept. Affinities ``(N, N)`` or
                ``(B, N, N)`` or a `Graph` with ``neighbors="precomputed"``.
            mask: bool ``(N,)`` or ``(B, N)``, False for padding; its rows are zero, and so are their gradients.
            generator: of random signs, on the device of ``x``; default: torch's own.

        Isolated nodes get a row of zeros and a `GraphWarning`.

        Raises:
            TypeError, ValueError: see `knn_graph`, `radius_graph` and `eigenpairs`; a single graph with fewer than
                n_components + 1 nodes of positive degree.
        """
        return self.embed(x, mask, generator).embedding

    @_checks.full_precision
    def embed(
        self, x: Tensor | Graph, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Embedding:
        """What ``forward`` returns, with eigenvalues, residuals and eigengap; the arguments are the same."""
        _checks.check_generator(generator)
        found = self._embed(weighted_graph(self.neighbors, self.weights, _checks.single(x), mask))
        if self.random_signs and self.training:
            found = found._replace(embedding=with_random_signs(found.embedding, generator))
        if isinstance(x, Tensor) and x.dtype in _checks.HALVES:
            found = found._replace(embedding=found.embedding.to(x.dtype), eigenvalues=found.eigenvalues.to(x.dtype))
        return found

    def _embed(self, graph: Graph) -> Embedding:
        laplacian = Laplacian(graph, self.normalization)
        self._inspect(laplacian)
        if self.components == "separate":
            return self._embed_separately(graph)
        first = int(self.drop_trivial)
        pairs = eigenpairs(laplacian, self.n_components + first, self.solver, fill=len(graph.shape) > 1)
        return Embedding(self._columns(pairs, laplacian.active), pairs.values[..., first:], (pairs,))

    def _inspect(self, laplacian: Laplacian) -> None:
        """Warn of isolated nodes; warn or raise where a graph has several components."""
        warn_of_isolated(laplacian)
        most = int(laplacian.active_components[1].max())
        if self.components == "separate" or most <= 1:
            return
        message = (
            f"the neighbourhood graph has {most} connected components, so that the first {most - 1} columns only "
            'tell them apart; use more neighbours, or components="separate" to embed each on its own'
        )
        if self.components == "error":
            raise ValueError(message)
        _checks.warn(message, _checks.GraphWarning)

    def _embed_separately(self, graph: Graph) -> Embedding:
        """Each component of two or more nodes on its own; zeros where there are too few eigenvectors."""
        first, k = int(self.drop_trivial), self.n_components
        y = graph.weight.new_zeros(graph.batch_size * graph.num_nodes, k)
        values = torch.full_like(y, torch.inf)
        components = component_eigenpairs(graph, k + first, self.normalization, self.solver)
        for nodes, pairs in ((component.nodes, component.pairs) for component in components):
            more = k + first - pairs.values.shape[-1]
            columns = self._columns(pairs, pairs.vectors[:, 0].detach() != 0)
            of_component = nn.functional.pad(pairs.values[first:], (0, more), value=torch.inf)
            y = y.index_copy(0, nodes, nn.functional.pad(columns, (0, more)))
            values = values.index_copy(0, nodes, of_component.expand(len(nodes), k))
        shape = (*graph.shape, k)
        return Embedding(y.reshape(shape), values.reshape(shape), tuple(component.pairs for component in components))

    def _columns(self, pairs: Eigenpairs, active: Tensor) -> Tensor:
        """The columns of the embedding, scaled."""
        first = int(self.drop_trivial)
        y = pairs.vectors[..., first:]
        if self.scale == "unit":
            y = y / _checks.power_of_two(y, (-2,))  # so that no square overflows
            count, squares = active.sum(-1)[..., None, None], y.square().sum(-2, keepdim=True)
            # A column that a small graph lacks is zero and stays so.
            y = y * (count / torch.where(squares > 0, squares, 1)).sqrt()
        if self.diffusion > 0:
            y = y @ _power_of_decay(pairs.projected[..., first:, first:], self.diffusion)
        return y

    @torch.no_grad()
    @_checks.full_precision
    def fit(self, x: Tensor | Graph) -> LaplacianEigenmaps:
        """Embed ``x`` of shape ``(N, D)`` and keep what ``transform`` needs. Returns the module.

        Signs are the deterministic ones. Half precision is kept as float32.
        """
        state = self._state(_checks.single(x))
        self._keep(state, x)
        return self

    def _state(self, x: Tensor | Graph) -> State:
        """What is kept of a fit, with gradients."""
        if isinstance(x, Tensor):
            _checks.check_points(x, batched=False)
        kept: State = {}
        if isinstance(x, Tensor) and self.weights is not None and not isinstance(self.neighbors, str):
            graph, radii = rules.check_extends(self.neighbors).with_state(x.detach())
            weighted = self.weights(x, graph)
            kept = self._kept(x, radii, graph, weighted)
        else:
            weighted = weighted_graph(self.neighbors, self.weights, x)
            if len(weighted.shape) > 1:
                raise ValueError(
                    f"fit takes one graph, got a batch of shape {weighted.shape}; fit its graphs one by one"
                )
        embedding, _, pairs = self._embed(weighted)
        first = int(self.drop_trivial)
        if not pairs:
            raise ValueError("the graph has no component of two or more nodes to embed; use more neighbours")
        eigenvalues = self._stacked([pair.values[first:] for pair in pairs])
        return kept | {
            "embedding_": embedding,
            "eigenvalues_": eigenvalues,
            "residuals_": self._stacked([pair.residuals[first:] for pair in pairs]),
            "gap_": torch.stack([pair.gap for pair in pairs]).squeeze(0),
            "train_eigenvalues": self._at_nodes(eigenvalues, weighted),
        }

    def _kept(self, x: Tensor, radii: Tensor, graph: Graph, weighted: Graph) -> State:
        """The training points, and of them what the rule of the graph and the weighting need for new ones."""
        assert self.weights is not None
        # An edge whose weight underflows is none, and a node with no other edge has none.
        active = Laplacian(weighted, self.normalization).active
        kept = (weighted.weight > 0) & active[graph.edge_index[0]]
        return {
            "train_points": x,
            "train_radii": radii,
            "train_state": self.weights.state(x, graph),
            "train_edges": graph.edge_index[:, kept],
            "train_connectivity": graph.weight[kept],
        }

    def _stacked(self, rows: list[Tensor]) -> Tensor:
        """Rows padded with +∞ to n_components; a single row without the leading axis."""
        padded = [nn.functional.pad(row, (0, self.n_components - len(row)), value=torch.inf) for row in rows]
        return padded[0] if self.components != "separate" else torch.stack(padded)

    def _at_nodes(self, eigenvalues: Tensor, graph: Graph) -> Tensor:
        """The eigenvalue of each column, ``(k,)``, or that of each node's component, ``(N, k)``; 0 for no column."""
        values = eigenvalues.masked_fill(eigenvalues.isinf(), 0)
        if self.components != "separate":
            return values
        at_node = values.new_zeros(graph.num_nodes, self.n_components)
        for nodes, row in zip(graph.nodes_of_components(), values, strict=True):
            at_node[nodes] = row
        return at_node

    @_checks.full_precision
    def transform(self, x: Tensor) -> Tensor:
        """The embedding ``(Q, n_components)`` of new points ``(Q, D)`` by Nyström's formula, with gradients to them.

        The graph's rule is extended with the training radii, and the bandwidth is that of the training points. A query
        equal to a training point is that point and gets its row (the first one's, of several copies). A query that no
        edge reaches gets zeros and a `GraphWarning`. With ``neighbors="precomputed"`` ``x`` holds the affinities
        ``(Q, N)`` of new points to the training points. Works in blocks of queries.

        Raises:
            RuntimeError: not fitted. TypeError, ValueError: not of the dtype or dimension of the training points.
        """
        self.check_fitted()
        if isinstance(x, Tensor) and (x.dtype in _checks.HALVES or self.embedding_.dtype in _checks.HALVES):
            return copy.deepcopy(self).float().transform(x.float()).to(x.dtype)
        return self._extended(x, {name: getattr(self, name) for name in self.FITTED})

    @_checks.full_precision
    def out_of_sample(self, x: Tensor | Graph, x_new: Tensor) -> Tensor:
        """``transform(x_new)`` after ``fit(x)``, with gradients to both and to a learnable bandwidth; nothing is kept.

        Raises:
            TypeError, ValueError: as those two.
        """
        state = self._state(_checks.single(x))
        return self._extended(_checks.single(x_new), state).to(x_new.dtype)

    def _extended(self, x: Tensor, state: State) -> Tensor:
        precomputed = isinstance(self.neighbors, str)
        embedding = state["embedding_"]
        check_like(x, embedding.new_empty(1, len(embedding)) if precomputed else state["train_points"])
        extend = self._extend_affinities if precomputed else self._extend
        return torch.cat([extend(block, state) for block in x.split(QUERIES)])

    def _extend_affinities(self, x: Tensor, state: State) -> Tensor:
        if (x < 0).any():
            raise ValueError(f"affinities must be non-negative, got a minimum of {x.min():.3g}")
        query, point = x.detach().nonzero(as_tuple=True)
        return self._nystrom(x[query, point].log(), query, point, len(x), state)

    def _extend(self, x: Tensor, state: State) -> Tensor:
        assert self.weights is not None
        query, point, connectivity = self._new_edges(x.detach(), state)
        squared_lengths = differentiable_pair_distances(x, query, state["train_points"], point)
        edges = NewEdges(query, point, squared_lengths, connectivity, len(x))
        return self._nystrom(self.weights.extend(edges, state["train_state"]), query, point, len(x), state)

    def _nystrom(self, log_affinity: Tensor, query: Tensor, point: Tensor, queries: int, state: State) -> Tensor:
        if (alone := int((query.bincount(minlength=queries) == 0).sum())) > 0:
            _checks.warn(
                f"{alone} of {queries} new points have no neighbour in the graph: their rows are zero",
                _checks.GraphWarning,
            )
        normalized = self.normalization == "random_walk"
        embedding, eigenvalues = state["embedding_"], state["train_eigenvalues"]
        return nystrom(log_affinity, query, point, queries, embedding, eigenvalues, normalized=normalized)

    @torch.no_grad()
    def _new_edges(self, x: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Edges of queries to training points with their connectivity; those of a training point are its own."""
        assert not isinstance(self.neighbors, str)
        points = state["train_points"].detach()
        found = self.neighbors.extend(x, points, state["train_radii"])
        coincides = found.same >= 0
        if not coincides.any():
            return found.query, found.point, found.connectivity
        row, col = state["train_edges"]
        pattern = SparsePattern(row, col, (len(points),))
        position, edge = pattern.edges_of(found.same[coincides])
        other = ~coincides[found.query]
        return (
            torch.cat([found.query[other], coincides.nonzero().flatten()[position]]),
            torch.cat([found.point[other], pattern.col[edge].long()]),
            torch.cat([found.connectivity[other], state["train_connectivity"][edge]]),
        )

    def extra_repr(self) -> str:
        """The constructor's arguments, but for the weights, which are shown as a submodule."""
        return (
            f"{self.n_components}, {self.neighbors!r}, normalization={self.normalization!r}, scale={self.scale!r}, "
            f"drop_trivial={self.drop_trivial}, diffusion={self.diffusion}, random_signs={self.random_signs}, "
            f"components={self.components!r}, solver={self.solver}"
        )


def _checked_diffusion(diffusion: Any, normalization: str) -> float:
    time = _checks.check_number(diffusion, "diffusion", 0)
    if time > 0 and normalization == "unnormalized":
        raise ValueError('diffusion must be 0 with normalization="unnormalized": 1 − λ is no decay there')
    return time


def _power_of_decay(projected: Tensor, time: float) -> Tensor:
    """|1 − Λ|^time of the matrix Λ of eigenvalues, ``(..., k, k)``.

    The sign of (1 − λ)^time does not matter to distances. Λ is diagonal, but where eigenvalues are equal its other
    entries E have derivatives: those of the function of a matrix, f'(λ) E + ½ f''(λ) E² within an eigenspace.
    """
    values = projected.diagonal(dim1=-2, dim2=-1)

    def decay(value: Tensor) -> Tensor:
        return (1 - value).abs().clamp_min(torch.finfo(value.dtype).eps)

    middle = (values[..., :, None] + values[..., None, :]) / 2
    slope = -time * (1 - middle).sign() * decay(middle) ** (time - 1)
    curvature = time * (time - 1) * decay(middle) ** (time - 2)
    off = projected - torch.diag_embed(values)
    return torch.diag_embed(decay(values) ** time) + slope * off + curvature / 2 * (off @ off)


def with_random_signs(y: Tensor, generator: torch.Generator | None) -> Tensor:
    """Each column of each graph times −1 or 1."""
    heads = torch.randint(0, 2, (*y.shape[:-2], 1, y.shape[-1]), generator=generator, device=y.device)
    return y * (2 * heads - 1)
