"""Methods on a weighted graph: their bases, the state that a fit keeps, and new points by Nyström's formula.

Eigenmaps, scaling, Isomap, LLE and kernel PCA share y_k(x) = (1/λ_k) Σ_i K̃(x, i) v_ik (Bengio et al., NIPS 2003), with
different kernels K̃. Here it is W(x, i) / D(x), with the eigenvalue 1 − λ, see `nystrom`.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_lapeig.eigen import Eigenpairs, Laplacian, Solve, Solver
from torch_lapeig.eigen.gradient.system import off_diagonal
from torch_lapeig.eigen.laplacian import Normalization
from torch_lapeig.eigen.problem import ROUNDOFF_UNITS
from torch_lapeig.graph import KNN, NME, Graph, Precomputed, Radius, SparsePattern, rules
from torch_lapeig.graph.algebra import segment_logsumexp, sum_of_groups
from torch_lapeig.graph.distances import distances, edge_lengths
from torch_lapeig.graph.graph import batches_of_components
from torch_lapeig.graph.search.exact import COORDINATES, differentiable_pair_distances, least_reach, measured
from torch_lapeig.graph.weights import NewEdges, Weighting, by_lengths
from torch_lapeig.methods import frozen
from torch_lapeig.methods.module import Embedding, EmbeddingModule, PointsModule
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State
from torch_lapeig.support.kinds import refuse

# State that `fitted_graph` keeps, as part of ``FITTED``; and what `nystrom` needs, with vectors if the rows are others.
GRAPH_STATE = ("train_rule", "train_weighting", "train_edges", "train_connectivity")
NYSTROM_STATE = ("train_eigenvalues", "train_degrees", "train_vectors", "train_noise")


class NewAffinities(NamedTuple):
    """Affinities between new points and fitted points: a list, or all pairs as in `NewEdges`."""

    log_affinity: Tensor  # (E,), with gradients
    query: Tensor  # int64 (E,), the new point of each
    point: Tensor  # int64 (E,), the fitted point of each
    same: Tensor  # int64 (Q,), the fitted point that a new point equals, or −1

    def combined(self, share: Tensor, rows: Tensor) -> Tensor:
        """Return Σ_i share_i rows_i ``(Q, k)`` of each new point."""
        if self.query.ndim == 2:
            return share @ rows
        return sum_of_groups(share[:, None] * rows.index_select(0, self.point), self.query, len(self.same))


def width_of_rows(neighbors: Any, n: int) -> int:
    """Return the numbers of a new point's distances to all n points, for metrics without coordinates."""
    return 0 if getattr(neighbors, "metric", "euclidean") in COORDINATES else 6 * n


class OnGraph(PointsModule):
    """Steps of all methods on the weighted graph of points, or on affinities or a `Graph` in place of points."""

    neighbors: rules.GraphRule
    weights: Weighting | None

    def _checked(self, x: Any, mask: Tensor | None) -> tuple[Any, Tensor | None]:
        if isinstance(self.neighbors, Precomputed):
            graph = rules.weighted_graph(self.neighbors, self.weights, x, mask)
            return graph, graph.mask
        if isinstance(x, Graph):
            raise TypeError('x must be points, got a Graph; use neighbors=Precomputed("affinity")')
        return super()._checked(x, mask)

    def _graph(self, x: Any, mask: Tensor | None) -> Graph:
        """Weight the graph of checked points, or return the one given."""
        return x if isinstance(x, Graph) else rules.weighted_graph(self.neighbors, self.weights, x, mask)

    def _extend(self, x: Tensor, state: State) -> Tensor:
        return self._extended(affinities_of_new(self.neighbors, self.weights, x, state), state)

    @abstractmethod
    def _extended(self, new: NewAffinities, state: State) -> Tensor:
        """Return the rows of a block of new points."""

    def _width(self, state: State) -> int:
        n, k = state[self.FITTED[0]].shape
        if "train_edges" not in state:
            return int(n * (k + 4))
        width = (1 + state["train_edges"].shape[1] // n) * (k + 2 * state["train_points"].shape[1] + 8)
        return int(width) + width_of_rows(self.neighbors, n)


class GraphEmbedding(OnGraph, EmbeddingModule):
    """Embeddings by the eigenvectors of the Laplacian of a weighted graph, built from points or given."""

    FITTED = (*EmbeddingModule.FITTED, *GRAPH_STATE, *NYSTROM_STATE)
    OTHER_RULES: ClassVar[tuple[type, ...]] = ()  # rules of which a class makes the graph itself
    components: Literal["joint", "separate", "error"] = "joint"
    _normalization: Normalization = "random_walk"  # of the Laplacian

    def __init__(
        self, n_components: int, neighbors: Any, weights: Weighting | None, solve: Solve | Solver | None
    ) -> None:
        super().__init__(n_components, solve)
        self.neighbors = neighbors
        # Edges between points and landmarks are weighted as those between points are.
        rule = KNN() if isinstance(neighbors, self.OTHER_RULES) else neighbors
        self.weights = rules.check_rule_and_weights(rule, weights)

    @abstractmethod
    def _solve_graph(self, laplacian: Laplacian, solved: list[Eigenpairs], *, fill: bool) -> Embedding:
        """Return the embedding of the nodes of a graph or a batch; append the pairs to ``solved``."""

    def _embed_small(self, x: Tensor, mask: Tensor | None, solved: list[Eigenpairs]) -> Embedding | None:
        """Embed small sets of points as one dense batch; return None where this is not accurate or not faster."""
        return None

    def _embed(self, x: Any, mask: Tensor | None, solved: list[Eigenpairs]) -> Embedding:
        if not isinstance(x, Graph) and (found := self._embed_small(x, mask, solved)) is not None:
            return found
        graph = self._graph(x, mask)
        return self._solve_graph(Laplacian(graph, self._normalization), solved, fill=len(graph.shape) > 1)

    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:
        graph, state = fitted_graph(self.neighbors, self.weights, x)
        laplacian = Laplacian(graph, self._normalization)
        found = None if isinstance(x, Graph) else self._embed_small(x, None, solved)
        if found is None:
            found = self._solve_graph(laplacian, solved, fill=fill)
        state |= self._of_laplacian(laplacian)
        if checks.needs_derivatives(found.embedding):
            state["off"] = self._off(graph, solved)
        is_zero = ~found.embedding.detach().any(0)  # a column that is missing, or after the eigengap
        return state | {
            "embedding_": found.embedding,
            "train_eigenvalues": found.eigenvalues.masked_fill(found.eigenvalues.isinf() | is_zero, 0),
            **self._of_graph(found, graph),
        }

    def _of_laplacian(self, laplacian: Laplacian) -> State:
        """Return degrees, or the round-off ``(N,)`` in eigenvalues of D − W, at most twice the largest degree."""
        if laplacian.normalization != "unnormalized":
            return {"train_degrees": laplacian.degrees} if laplacian.normalization == "symmetric" else {}
        largest = laplacian.largest_degree.expand_as(laplacian.active)
        if self.components == "separate":
            degrees, part = laplacian.exact_degrees.detach(), laplacian.graph.connected_components() + 1
            largest = torch.zeros_like(degrees).scatter_reduce(0, part, degrees, "amax")[part]
        return {"train_noise": ROUNDOFF_UNITS * torch.finfo(torch.float64).eps * 2 * largest}

    def _off(self, graph: Graph, solved: list[Eigenpairs]) -> Tensor:
        """Return the matrix that `nystrom` needs for derivatives at equal eigenvalues; no fit keeps it."""
        k = self.width
        if self.components != "separate":
            return off_diagonal(solved[-1].projected, k)
        off, batches = graph.weight.new_zeros(graph.num_nodes, k, k), batches_of_components(graph, k + 1)
        for (nodes, part), pairs in zip(batches, solved[len(solved) - len(batches) :], strict=True):
            of_nodes = off_diagonal(pairs.projected, k)[..., None, :, :].expand(*part.shape, k, k)
            off = off.index_copy(0, nodes, of_nodes.reshape(-1, k, k) if part.mask is None else of_nodes[part.mask])
        return off

    def _of_graph(self, found: Embedding, graph: Graph) -> State:
        """Return eigenvalues, residuals and gap as a fit keeps them: with a row for each separate component."""
        values, residuals, gap = found.eigenvalues, found.residuals, found.gap
        if self.components == "separate":
            firsts = [int(nodes[0]) for nodes in graph.nodes_of_components()]
            values, residuals, gap = values[firsts], residuals[firsts], gap[firsts].squeeze(0)
        return {"eigenvalues_": values, "residuals_": residuals, "gap_": gap}

    def _frozen(self, state: State) -> nn.Module:
        if isinstance(self.neighbors, NME):
            fixed = copy.copy(self)
            fixed.neighbors, state["train_rule"] = self.neighbors.fixed(state["train_rule"])
            return fixed._frozen(state)
        if not isinstance(self.neighbors, (KNN, Radius, Precomputed)):
            raise TypeError(f"frozen needs neighbors=KNN(k), Radius(r) or Landmarks(m), got {self.neighbors}")
        refuse("frozen", neighbors=self.neighbors)
        frozen.check_exported(self.weights)
        if self._normalization == "unnormalized" and self.components == "separate":
            raise TypeError('frozen needs components="joint" with normalization="unnormalized", got "separate"')
        wide = {name: value.double() for name, value in state.items() if value.is_floating_point()}
        kept = prepared(wide, self._normalization)
        kept.pop("small", None)
        kept["state"] = state.get("train_weighting", state.get("train_density", kept["values"].new_zeros(1)))
        if "train_points" in state:
            metric, points = self.neighbors.metric, state["train_points"]  # type: ignore[union-attr]
            # Rounded up, as fixed points lie at the reach of others.
            reach = state["train_rule"].double() * (1 + 8 * torch.finfo(points.dtype).eps)
            kept["reach"] = (reach + least_reach(metric, points.dtype)).square()
            kept |= frozen.fixed_points(points, metric)
        return frozen.Frozen(self, kept, state)

    def _of_all(self, x: Tensor, state: State, dtype: torch.dtype) -> Tensor:
        rule: Any = self.neighbors
        if self.weights is None:
            none, edges = x == 0, frozen.edges_to_all(x, x)
            logs = torch.where(none, -torch.inf, torch.where(none, 1, x).log()) + state["state"]
            same = torch.full_like(edges.query[:, 0], -1)
        else:
            squared, n = frozen.lengths_to_all(x, state, rule.metric), len(state["points"])
            # A point that equals a fixed point (the first of equal ones) has no edge to it.
            number = torch.arange(n, device=x.device)
            same = torch.where(squared <= least_reach(rule.metric, dtype) ** 2, number, n).amin(1)
            own = number == same.unsqueeze(1)
            there = frozen.connectivity_to_all(rule, torch.where(own, torch.inf, squared), state["reach"])
            edges = frozen.edges_to_all(squared, torch.where(own, 0, there))
            logs, same = self.weights.extend(edges, state["state"]), torch.where(same < n, same, -1)
        return nystrom(NewAffinities(logs, edges.query, edges.point, same), state, self._normalization)

    @torch.no_grad()
    def _completed(self, saved: State) -> State:
        """Return a saved fit with its edges, which are searched again where it was saved without them."""
        if "train_points" not in saved or "train_edges" in saved:
            return saved
        points, values = saved["train_points"], saved["eigenvalues_"]
        graph, train_rule = rules.graph_with_state(self.neighbors, points)
        found = {"train_rule": train_rule, "train_edges": graph.edge_index, "train_connectivity": graph.weight}
        return {**found, "train_eigenvalues": values.masked_fill(values.isinf(), 0), **saved}

    def _extended(self, new: NewAffinities, state: State) -> Tensor:
        return nystrom(new, state, self._normalization)


def check_size(laplacian: Laplacian, k: int, name: str, trivial: int = 0) -> None:
    """Raise ValueError where a single graph has too few nodes of positive degree for ``k`` columns and the trivial."""
    if k + trivial > (fewest := laplacian.symmetric.fewest_active):
        limit = f"{'smaller than' if trivial else 'at most'} the number of nodes of positive degree"
        raise ValueError(f"{name} must be {limit}, got {name}={k} with {fewest} of them")


def gaps_of(pairs: Eigenpairs) -> Tensor:
    """Return λ_{k+1} − λ_k ``(..., K)`` for k = 1, 2, …, K; +∞ if λ_{k+1} does not exist."""
    values = pairs.values.detach()
    between = torch.where(values[..., 1:].isinf(), torch.inf, values.diff())
    return torch.cat([between, pairs.gap.detach()[..., None]], -1)


def up_to_gap(pairs: Eigenpairs, least: int) -> tuple[Tensor, Tensor]:
    """Return the pairs before the widest gap, bool ``(..., K)``, at least the first ``least`` ones, and the gap."""
    gaps = gaps_of(pairs)
    count = torch.where(gaps.isinf(), -1, gaps)[..., least - 1 :].argmax(-1, keepdim=True) + least
    return torch.arange(1, gaps.shape[-1] + 1, device=gaps.device) <= count, gaps.gather(-1, count - 1)[..., 0]


def fitted_graph(neighbors: rules.GraphRule, weights: Weighting | None, x: Tensor | Graph) -> tuple[Graph, State]:
    """Return the weighted graph of points ``(N, D)``, or the graph given, and the state that new points need of it."""
    if isinstance(x, Graph):
        return x, {}
    assert weights is not None
    graph, train_rule = rules.graph_with_state(neighbors, x.detach())
    graph = graph.to_sparse()  # of a rule of the user's own
    given = (x, graph) if graph.metric in COORDINATES else by_lengths(edge_lengths(x, graph), graph)
    weighted = weights(*given)
    weighted = weighted if given[1] is graph else weighted._with(pattern=graph.pattern)
    counts = weighted.weight.detach() > 0  # a fitted point as a new one has no edge that underflows here
    return weighted, {
        "train_points": x,
        "train_rule": train_rule,
        "train_weighting": weights.state(*given),
        "train_edges": graph.edge_index,
        "train_connectivity": torch.where(counts, graph.weight, 0),
    }


def affinities_of_new(neighbors: Any, weights: Weighting | None, x: Tensor, state: State) -> NewAffinities:
    """Return affinities of new points ``(Q, D)``, or given ones ``(Q, N)``; warn of points without affinities."""
    if isinstance(neighbors, Precomputed) or weights is None:
        checks.check_non_negative(x, "affinities")
        query, point = x.detach().nonzero(as_tuple=True)
        # Given affinities do not show which new points equal fitted ones.
        log_affinity, same = x[query, point].log(), query.new_full((len(x),), -1)
        if "train_density" in state:
            log_affinity = log_affinity + state["train_density"][point]
    else:
        query, point, connectivity, same, metric = edges_of_new(neighbors, x, state, state["train_connectivity"])
        points = state["train_points"]
        if metric in COORDINATES:
            lengths = differentiable_pair_distances(measured(x, metric), query, measured(points, metric), point)
        else:
            lengths = distances(metric, x, points)[query, point].square()
        edges = NewEdges(query, point, lengths, connectivity, len(x))
        log_affinity = weights.extend(edges, state["train_weighting"])
        # In a fit an edge whose weight underflows does not exist, and a node with no other edge is isolated. A fitted
        # point lacks these edges only now: the scale of a point, as in `SelfTuning`, depends on all its edges.
        weight = log_affinity.detach().exp()
        active = sum_of_groups(weight, query, len(same)) > torch.finfo(weight.dtype).tiny
        there = (same < 0)[query] | ((weight > 0) & active[query])
        log_affinity, query, point = log_affinity[there], query[there], point[there]
    warn_of_unreached(int((query.bincount(minlength=len(x)) == 0).sum()), len(x))
    return NewAffinities(log_affinity, query, point, same)


@torch.no_grad()
def edges_of_new(neighbors: Any, x: Tensor, state: State, connectivity: Tensor) -> rules.Extension:
    """Return the edges of queries to training points; a query that equals a fitted point gets its edges."""
    points = state["train_points"].detach()
    found = extended(neighbors, x.detach(), points, state["train_rule"])
    coincides = found.same >= 0  # searches for these would find the point itself, and may resolve ties otherwise
    if not coincides.any():
        return found
    row, col = state["train_edges"]
    pattern = SparsePattern.trusted(row, col, (len(points),))
    position, edge = pattern.edges_of(found.same[coincides])
    other = ~coincides[found.query]
    return found._replace(
        query=torch.cat([found.query[other], coincides.nonzero().flatten()[position]]),
        point=torch.cat([found.point[other], pattern.col[edge].long()]),
        connectivity=torch.cat([found.connectivity[other], connectivity[edge]]),
    )


def extended(neighbors: Any, queries: Tensor, x: Tensor, state: Tensor) -> rules.Extension:
    """Return a rule's edges of new points ``(Q, D)`` to graph points ``(N, D)``; raise unless they are an Extension."""
    if not isinstance(neighbors, rules.ExtendingRule):
        got = f"{getattr(neighbors, '__name__', type(neighbors).__name__)} without them"
        advice = "use KNN(k), Radius(r), or give it these methods: see torch_lapeig.graph.ExtendingRule"
        raise TypeError(f"neighbors must have the methods with_state and extend for new points, got {got}; {advice}")
    found = neighbors.extend(queries, x, state)
    if isinstance(neighbors, (KNN, Radius)):
        return found
    checks.check_instance(found, "extend of neighbors", tuple, "an Extension(query, point, connectivity, same)")
    found = rules.Extension(*found)
    checks.check_indices(found.query, "query of the Extension", len(queries))
    checks.check_indices(found.point, "point of the Extension", len(x))
    checks.check_indices(found.same, "same of the Extension", len(x), least=-1)
    if found.same.shape != (len(queries),):
        raise ValueError(f"same of the Extension must have shape ({len(queries)},), got {tuple(found.same.shape)}")
    checks.check_floating(found.connectivity, "connectivity of the Extension")
    if not found.query.shape == found.point.shape == found.connectivity.shape:
        shapes = ", ".join(str(tuple(part.shape)) for part in found[:3])
        raise ValueError(f"query, point and connectivity of the Extension must have one shape (E,), got {shapes}")
    checks.check_distinct(found.query * len(x) + found.point, "query * N + point of the Extension", "each edge once")
    return found


def warn_of_unreached(unreached: int, queries: int) -> None:
    """Warn of new points that no edge of the graph reaches."""
    if unreached > 0:
        message = f"{unreached} of {queries} new points have no neighbour in the graph: their rows are zero"
        checks.warn(f"{message}; use more neighbours or a larger radius", checks.GraphWarning)


def shares_at(log_affinity: Tensor, query: Tensor, queries: int) -> tuple[Tensor, Tensor]:
    """Return affinities over their sum D(x) at each new point, zero without any, and log D(x) ``(Q,)``."""
    total = segment_logsumexp(log_affinity, query, queries)
    return (log_affinity - torch.where(total.isinf(), 0, total)[query]).exp(), total


def prepared(state: State, normalization: Normalization) -> State:
    """Return what `nystrom` needs of a fit: Y with the factors that are the same at all new points, and λ."""
    rows, values = state.get("train_vectors"), state["train_eigenvalues"]
    rows = vectors = state["embedding_"] if rows is None else rows
    if normalization == "symmetric":  # 0 for a training point without edges, whose row is zero
        degrees = state["train_degrees"]
        vectors = vectors / torch.where(degrees > 0, degrees, torch.inf).sqrt()[:, None]
    made = {"rows": rows, "values": values} | ({"off": state["off"]} if "off" in state else {})
    if normalization == "unnormalized":
        made["noise"] = state.get("train_noise", values.new_zeros(1))
    else:
        vectors, made["small"] = _grown(vectors, values.new_ones(()), values, values.new_zeros(()), made.get("off"))
    return made | {"vectors": vectors}


def nystrom(new: NewAffinities, state: State, normalization: Normalization = "random_walk") -> Tensor:
    """Return Laplacian eigenmaps of new points: solve the row of the eigenproblem at x for y(x).

    For L y = λ D y it is y(x) = Σ_i P(x, i) y_i / (1 − λ) with P(x, i) = W(x, i) / D(x), D(x) = Σ_i W(x, i) (Bengio et
    al. 2003, equations 6 and 9); in the form of that paper, for v = D^½ y, W(x, i) / (D(x) d_i)^½ instead of P
    (``"symmetric"``). For L y = λ y it is y(x) = Σ_i W(x, i) y_i / (D(x) − λ). At a training point each formula is the
    point's own row of the problem and returns its row of Y.

    Rows are zero without any weight. If the formula divides by less than 1e-3 of D(x), or by the error of λ, they are
    the training row of a training point, and zero, with a `GraphWarning`, for another query.

    The state has Y ``(N, k)`` as ``train_vectors``, or else ``embedding_``, and λ as ``train_eigenvalues``, ``(k,)``,
    or ``(N, k)`` if training points belong to separate problems. It may have ``train_degrees``, d ``(N,)``;
    ``train_noise``, the error ``(N,)`` of λ at each training point, for L y = λ y; ``off``, Λ off its diagonal,
    ``(k, k)`` or ``(N, k, k)``: 0, with derivatives at equal eigenvalues. Or it is `prepared`.
    """
    state = state if "vectors" in state else prepared(state, normalization)
    log_affinity, query, point, same = new
    values, vectors, off = state["values"], state["vectors"], state.get("off")
    noise, small = state.get("noise", values.new_zeros(1)), state.get("small")
    share, total = shares_at(log_affinity, query, same.shape[0])  # `len` would fix the number in an exported map
    reached = total.isfinite()[:, None]
    if normalization != "unnormalized":
        y = new.combined(share, vectors)
    elif values.ndim == 1:
        y, small = _grown(new.combined(share, vectors), total.exp()[:, None], values, noise[:1], off)
    else:
        near = (vectors[point], total.exp()[query, None], values[point], noise[point, None])
        parts, small = _grown(*near, None if off is None else off[point])
        y = sum_of_groups(share[:, None] * parts, query, len(same))
        small = sum_of_groups((small & (share > 0)[:, None]).to(y), query, len(same)) > 0
    if normalization == "symmetric":
        root = (torch.where(reached, total[:, None], 0).double() / 2).exp()
        y = (y.double() * root).to(y.dtype)
    if query.ndim == 2:  # a fixed point has its own row, with the derivatives that its edges to others give
        row = state["rows"][same.clamp_min(0)]
        return torch.where(same[:, None] >= 0, row + (y - y.detach()), y)
    far = total.isfinite() & (total < math.log(torch.finfo(total.dtype).tiny))
    if far.any():
        finding = f"{int(far.sum())} of {len(total)} new points are so far away that all affinities underflow"
        checks.warn(f"{finding}: their rows are those of the nearest training points (over 1 − λ)", checks.GraphWarning)
    is_known = (same >= 0)[:, None]
    # An eigenvalue of 0 may be one of round-off, at a training point of so small a degree.
    faint = is_known[:, 0] & (total.exp() < 1e3 * noise.expand(len(vectors))[same.clamp_min(0)])
    assert small is not None
    if not (small.any() or faint.any()):
        return y
    if normalization != "unnormalized" and values.ndim == 2:
        small = new.combined((share > 0).to(y), small.to(y)) > 0
    lost = (small & reached) | faint[:, None]
    if (lost & ~is_known).any():
        checks.warn(
            "an eigenvalue too close to the degree of a new point cannot be extended to it (Nyström divides by "
            "1 − λ / D): zero is returned there; use fewer components or fewer neighbours",
            checks.GraphWarning,
        )
    return torch.where(lost & is_known, state["rows"][same.clamp_min(0)], y)


def _grown(rows: Tensor, degree: Tensor, values: Tensor, error: Tensor, off: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return rows y D (D − Λ)⁻¹, and where divisors are tiny; zero there."""
    # 1 / (1 − λ / D) as D / (D − λ), which is 1 for λ = 0 and does not overflow where D is tiny.
    degree = torch.where(values == 0, 1, degree)
    # Where 1 − λ / D is smaller, the formula divides by almost nothing, or by the error of λ.
    small = (degree - values).abs() < torch.where(values == 0, 0, 1e3 * error).maximum(1e-3 * degree)
    rest, info = torch.where(small, 1, degree - values), torch.finfo(degree.dtype)
    grown = rows * torch.where(small, 0, degree / rest)
    if off is None:
        return grown, small
    # y D (F + F E F + F E F E F + …) with F = (D − λ)⁻¹; later terms vanish to second order.
    overflows = rest.abs() < info.tiny / info.eps
    inverse = torch.where(small | overflows, 0, 1 / torch.where(overflows, 1, rest))
    once = precision.matmul(grown.unsqueeze(-2), off).squeeze(-2) * inverse
    return grown + once + precision.matmul(once.unsqueeze(-2), off).squeeze(-2) * inverse, small
