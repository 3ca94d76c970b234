"""Weighted graphs, one or a batch: their data, and conversions from and to dense, SciPy's and PyG's forms.

Rules (`torch_lapeig.graph.rules`) choose the edges between points; weightings (`torch_lapeig.graph.weights`) weight the
edges.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import scipy  # which loads scipy.sparse at its first use: that takes half as long as this package
import torch
from torch import Tensor

from torch_lapeig.graph.algebra import sum_of_groups
from torch_lapeig.graph.distances import Precomputed, check_metric
from torch_lapeig.graph.pattern import DensePattern, Pattern, SparsePattern, checked_shape, in_double
from torch_lapeig.graph.search.exact import Metric
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import cached_property, deep_copy, derived_property, make_usable
from torch_lapeig.support.kinds import refuse
from torch_lapeig.support.tuning import BATCHED_NODES

G = TypeVar("G", bound="Graph")
INDICES = (np.dtype(np.int32), np.dtype(np.int64))  # dtypes of SciPy's indices

WITHOUT_MASK = "leave it out, as the graph has its own, or take graph.subgraph(mask.flatten().nonzero().flatten())"


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """Undirected weighted graph, or a batch of graphs of N nodes each.

    Build one with `knn_graph`, `radius_graph` (sparse), ``from_dense`` (dense), ``from_edge_index`` or ``from_scipy``
    (sparse). Graphs of unequal size share a batch by a mask. ``torch.save`` stores a graph, and ``torch.load`` restores
    it, with ``weights_only=True`` too.

    Attributes:
        pattern: the positions of the edges. Sparse: both directions of every edge in CSR order; node i of graph b has
            the number ``b * N + i``, so that a batch is one block-diagonal graph. Dense: all pairs.
        weight: non-negative and symmetric, ``(E,)`` if sparse, ``(N, N)`` or ``(B, N, N)`` if dense; carries gradients.
        mask: bool of the graph's shape, False for padding, whose weights are 0; None where all nodes are valid.
        similarity: r > 0 of the graph's shape, or None for 1. The affinity is W_ij = r_i weight_ij / r_j: not
            symmetric, but similar to the symmetric ``weight`` (`ImprovedWeights`).
        recall: share of the true neighbours that an approximate search found, measured on a sample; 1 for every other
            graph.
        metric: the lengths of edges that weightings measure: ``"euclidean"`` between the points, ``"cosine"`` between
            the points scaled to length 1, so that only directions count. A rule sets the metric of its search, which
            may be another one of `KNN`; weightings then read lengths in place of points.
        density_correction: α if `DensityCorrected` has weighted the graph, else 0.

    Unlike `with_weight`, the constructor accepts errors of single weights up to 1e-4 of the largest one.

    >>> graph = Graph.from_dense(torch.tensor([[0.0, 2.0], [2.0, 0.0]]))
    >>> graph.to_sparse().weight, graph.to_sparse().edge_index.tolist()
    (tensor([2., 2.]), [[0, 1], [1, 0]])
    """

    pattern: Pattern
    weight: Tensor
    mask: Tensor | None = None
    similarity: Tensor | None = None
    recall: float = 1.0
    metric: Metric = "euclidean"
    density_correction: float = 0.0
    # Weights wide · exp(exponent) in float64, of which ``weight`` is the rounding; `dataclasses.replace` drops them.
    # The exponent is None for 0, unless derivatives in the weights might overflow: see `PatternBase.levels`.
    wide: Tensor | None = field(default=None, init=False)
    exponent: Tensor | None = field(default=None, init=False)
    _version: int = field(default=0, init=False)  # of ``weight`` when it was checked
    operator: ClassVar[str | None] = None  # name of the operator of a subclass whose weights are no affinities

    def __post_init__(self) -> None:
        self._check("weight", 1e-4)  # `torch.autograd.gradcheck` and others change single weights by less
        vars(self).update(vars(self.trusted(**self.__getstate__())))

    def check_again(self) -> None:
        """Check weights that have changed in place; those of which they were the rounding are gone."""
        if self.weight._version != self._version:
            vars(self).update(wide=None, exponent=None)
            self.__post_init__()

    @property
    def _sources(self) -> tuple[Tensor]:
        return (self.weight,)

    @classmethod
    def trusted(cls: type[G], pattern: Pattern, weight: Tensor, mask: Tensor | None = None, **more: Any) -> G:
        """Return the graph of fields that this library computed, without checks."""
        graph = cls.__new__(cls)
        vars(graph).update(pattern=pattern, weight=weight, mask=mask, **more)
        if torch.is_inference_mode_enabled() or weight.is_inference():
            make_usable(graph)
        vars(graph)["_version"] = graph.weight._version
        return graph

    def _with(self: G, **changes: Any) -> G:
        """Return the graph with other fields, without checks: the caller guarantees them."""
        wide = {"wide": None, "exponent": None} if "weight" in changes else {}
        return self.trusted(**self.__getstate__() | wide | changes)

    def _weighted(self: G, dtype: torch.dtype, wide: Tensor, exponent: Tensor | None, **changes: Any) -> G:
        """Return the graph with weights wide · exp(exponent) in float64, rounded to a dtype."""
        weight = (wide if exponent is None else _times_exp(wide, exponent)).to(dtype)
        return self._with(weight=weight, wide=wide, exponent=exponent, **changes)

    @property
    def exact(self) -> Tensor:
        """Return the weights in float64, with gradients: those of which ``weight`` is the rounding, if known."""
        self.check_again()
        if self.weight.dtype == torch.float64:
            return checks.finite_gradient(self.weight)
        return in_double(self.pattern, self.weight) if self.wide is None else self.wide

    def divided(self, exact: Tensor, one: Tensor, other: Tensor) -> Tensor:
        """Return the weights, `exact`, over two positive constants of each edge, with gradients by the exponent."""
        if self.wide is None or self.exponent is None:
            return checks.finite_gradient(exact) / one / other
        return _times_exp(self.wide, self.exponent - one.log() - other.log())

    def _check(self, name: str, slack: float = 0.0) -> None:
        """Raise unless the graph is valid, up to ``slack`` times the largest of the weights, ``name``."""
        check_edge_values(self.pattern, self.weight, name)
        checks.check_number(self.recall, "recall", 0, 1)
        check_metric(self.metric)
        if self.mask is not None:
            checks.check_mask(self.mask, self.weight.new_empty(*self.shape, 0))
            checks.check_same_device(self.mask, "mask", self.weight, "the weights")
        if (r := self.similarity) is not None:
            checks.check_floating(r, "similarity")
            if (given := (tuple(r.shape), r.dtype)) != (expected := (tuple(self.shape), self.weight.dtype)):
                raise ValueError("similarity must have shape {} and dtype {}, got {} and {}".format(*expected, *given))
            checks.check_same_device(r, "similarity", self.weight, "the weights")
        if self.pattern.is_sharded:  # reversed edges lie on other ranks: `ShardedGraph.from_rows` checks
            return
        checks.check_finite(self.weight, name)
        self._check_weights(name, slack * checks.largest(self.weight) if slack else 0.0)
        self._check_padding(name, slack)
        if r is not None and not (r > 0).all():
            raise ValueError(f"similarity must be positive, got a minimum of {r.min():.3g}")

    def _check_weights(self, name: str, allowed: float | Tensor) -> None:
        checks.check_non_negative(self.weight, name, allowed)
        checks.check_symmetric(self.weight, self.pattern.transpose(self.weight), name, allowed)

    def _check_padding(self, name: str, slack: float = 0.0) -> None:
        if self.mask is None:
            return
        size = self.weight.detach().abs()
        if (self.pattern.sum_rows(size)[~self.mask] > slack * checks.largest(size)).any():
            raise ValueError(f"{name} must be zero in the rows that mask marks as padding")

    def __repr__(self) -> str:
        n, nodes = self.num_nodes, f"{self.num_nodes} nodes"
        if len(self.shape) > 1:
            sizes = f"{n} nodes each" if self.mask is None else f"up to {n} nodes"
            nodes = f"{self.batch_size} graphs of {sizes}"
        edges = f"{len(self.weight)} stored edges" if self.is_sparse else "dense"
        return f"{type(self).__name__}({nodes}, {edges}, {self.weight.dtype}, {self.weight.device})"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "_version"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    __deepcopy__ = deep_copy

    @classmethod
    def from_dense(cls: type[G], affinity: Tensor, mask: Tensor | None = None) -> G:
        """Build the graph of a symmetric, non-negative affinity matrix, stored densely; see ``to_sparse``.

        Args:
            affinity: ``(N, N)`` or ``(B, N, N)``, float32 or float64; gradients flow to it.
            mask: bool ``(N,)`` or ``(B, N)``, True for valid nodes; rows of padding must be zero.
        """
        if isinstance(affinity, Tensor) and affinity.layout is not torch.strided:
            way = f"{cls.__name__}.from_edge_index(a.indices(), a.values(), len(a))"
            advice = f"use affinity.to_dense(), or of a = affinity.to_sparse_coo().coalesce() {way}"
            raise TypeError(f"affinity must be dense, got layout {affinity.layout}; {advice}")
        checks.check_floating(affinity, "affinity")
        if affinity.ndim not in (2, 3) or affinity.shape[-1] != affinity.shape[-2]:
            raise ValueError(f"affinity must have shape (N, N) or (B, N, N), got {tuple(affinity.shape)}")
        graph = cls.trusted(DensePattern(tuple(affinity.shape[:-1])), affinity, mask)
        graph._check("affinity")
        return graph

    @classmethod
    @precision.full_precision
    def from_edge_index(
        cls: type[G],
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        num_nodes: int | None = None,
        batch: Tensor | None = None,
        num_graphs: int | None = None,
    ) -> G:
        """Build the graph of edges in PyTorch Geometric's form.

        Args:
            edge_index: int64 ``(2, E)``, both directions of every edge. Copies of an edge are summed, and a
                `GraphWarning` reports their number; self loops stay.
            edge_weight: ``(E,)``, float32 or float64; default 1 in float32. Gradients flow to it.
            num_nodes: default: the length of ``batch``, or the largest index plus one.
            batch: int64 ``(num_nodes,)``, ascending: the graph of each node. The graphs are padded to the largest:
                the result has shape ``(B, N)`` and a mask; ``y[graph.mask]`` are the rows in the order of ``batch``.
            num_graphs: B, needed where the last graphs have no nodes; default: the largest of ``batch`` plus one. Only
                with ``batch``.
        """
        check_edge_index(edge_index)
        edges = edge_index.shape[1]
        weight = torch.ones(edges, device=edge_index.device) if edge_weight is None else edge_weight
        checks.check_floating(weight, "edge_weight")
        if weight.shape != (edges,):
            raise ValueError(f"edge_weight must have shape ({edges},) to go with edge_index, got {tuple(weight.shape)}")
        if num_nodes is None and batch is not None:
            checks.check_indices(batch, "batch")
            num_nodes = batch.numel()
        elif num_nodes is None:
            num_nodes = _nodes_of(edge_index)
        num_nodes = checks.check_count(num_nodes, "num_nodes", 0)
        check_edge_index(edge_index, num_nodes)
        checks.check_same_device(weight, "edge_weight", edge_index, "edge_index")
        place, mask = torch.arange(num_nodes, device=edge_index.device), None
        shape: tuple[int, ...] = (num_nodes,)
        if num_graphs is not None:
            num_graphs = checks.check_count(num_graphs, "num_graphs", maximum=num_nodes + checks.LARGEST_WIDTH)
        if batch is not None:
            shape, place, mask = _layout(batch, num_nodes, num_graphs)
            checks.check_same_device(batch, "batch", edge_index, "edge_index")
            if (batch[edge_index[0]] != batch[edge_index[1]]).any():
                raise ValueError("edge_index must join nodes of the same graph only, got edges between graphs of batch")
        elif num_graphs is not None:
            raise ValueError(f"num_graphs needs batch, the graph of each node, got num_graphs={num_graphs} without it")
        total = math.prod(shape)
        keys = place[edge_index[0]] * total + place[edge_index[1]]
        distinct, position = keys.unique(return_inverse=True)
        if (copies := edges - len(distinct)) > 0:
            checks.warn(f"summed {copies} copies of edges", checks.GraphWarning)
        summed = sum_of_groups(weight, position, len(distinct))
        way = "torch.cat([edge_index, edge_index.flip(0)], 1)" + (".unique(dim=1)" if edge_weight is None else "")
        if edge_weight is not None:
            way += " with edge_weight.repeat(2), but none of loops and of edges that have both"
        advice = f"edge_index must hold both directions of every edge; add the reversed edges, {way}"
        return cls._of_edges(distinct, summed, shape, mask, "edge_weight", advice)

    @classmethod
    def _of_edges(
        cls: type[G], keys: Tensor, weight: Tensor, shape: tuple[int, ...], mask: Tensor | None, name: str, advice: str
    ) -> G:
        """Return the graph of edges row * total + col, ascending; raise ValueError where an edge lacks its reverse."""
        total = math.prod(shape)
        row, col = keys // total, keys % total
        if not torch.equal((col * total + row).sort().values, keys):
            raise ValueError(advice)
        graph = cls.trusted(SparsePattern.trusted(row, col, shape), weight, mask)
        graph._check(name)
        return graph

    @classmethod
    def from_scipy(cls: type[G], affinity: Any, dtype: torch.dtype = torch.float64) -> G:
        """Build the graph of a symmetric, non-negative SciPy sparse matrix ``(N, N)``, on the CPU, without zeros."""
        if not scipy.sparse.issparse(affinity):
            advice = checks.way_out(affinity, "affinity", "graph")
            raise TypeError(f"affinity must be a SciPy sparse matrix, got {checks.describe(affinity)}{advice}")
        if affinity.dtype.kind not in "biuf":
            raise TypeError(f"affinity must hold real numbers, got {affinity.dtype}; use abs(affinity), for instance")
        checks.check_dtype(dtype, "dtype")
        if len(affinity.shape) != 2 or affinity.shape[0] != affinity.shape[1]:
            raise ValueError(f"affinity must be square, got {affinity.shape}; points: torch.tensor(affinity.toarray())")
        checked_shape(affinity.shape[:1], "affinity")
        matrix = canonical_csr(affinity, "affinity").copy()  # the caller's matrix stays as it is
        matrix.eliminate_zeros()
        n = matrix.shape[0]
        row = np.repeat(np.arange(n, dtype=np.int64), np.diff(matrix.indptr))
        weight = torch.from_numpy(matrix.data.astype(np.float64)).to(dtype)
        way = "affinity + affinity.T - scipy.sparse.diags_array(affinity.diagonal())"
        advice = f"affinity must be symmetric; take {way} if one direction is stored, the mean if both are"
        return cls._of_edges(torch.from_numpy(row * n + matrix.indices), weight, (n,), None, "affinity", advice)

    @classmethod
    @precision.full_precision
    def from_hyperedges(
        cls: type[G], hyperedge_index: Tensor, hyperedge_weight: Tensor | None = None, num_nodes: int | None = None
    ) -> G:
        """Build the graph whose ``Laplacian(graph)`` is that of a hypergraph (Zhou, Huang and Schölkopf 2006).

        Δ = I − D_v^-½ H diag(w / δ) Hᵀ D_v^-½ for memberships H, weights w and sizes δ of the hyperedges. The graph has
        the affinities H diag(w / δ) Hᵀ, with self loops, which count in the degrees: D_v = diag(H w). The clique
        expansion has no loops and another Laplacian. A hyperedge of δ nodes has δ² entries.

        Args:
            hyperedge_index: int64 ``(2, M)``, node and hyperedge of each membership, once, as in PyTorch Geometric.
            hyperedge_weight: ``(E,)``, non-negative, float32 or float64; default 1 in float32. Gradients flow to it.
            num_nodes: default: the largest node plus one.

        >>> # {0, 1, 2} of weight 3 and {2, 3} of weight 2
        >>> members = torch.tensor([[0, 1, 2, 2, 3], [0, 0, 0, 1, 1]])
        >>> Graph.from_hyperedges(members, torch.tensor([3.0, 2.0])).to_dense()
        tensor([[1., 1., 1., 0.],
                [1., 1., 1., 0.],
                [1., 1., 2., 1.],
                [0., 0., 1., 1.]])
        """
        check_edge_index(hyperedge_index, name="hyperedge_index")
        node, hyperedge = hyperedge_index
        if (weight := hyperedge_weight) is None:
            weight = torch.ones(_nodes_of(hyperedge_index[1:]), device=node.device)
        checks.check_floating(weight, "hyperedge_weight")
        if weight.ndim != 1:
            raise ValueError(f"hyperedge_weight must have shape (E,), got {tuple(weight.shape)}")
        checks.check_same_device(weight, "hyperedge_weight", node, "hyperedge_index")
        checks.check_finite(weight, "hyperedge_weight")
        checks.check_non_negative(weight, "hyperedge_weight")
        n = checks.check_count(_nodes_of(hyperedge_index[:1]) if num_nodes is None else num_nodes, "num_nodes", 0)
        checks.check_indices(node, "nodes of hyperedge_index", n)
        checks.check_indices(hyperedge, "hyperedges of hyperedge_index", len(weight))
        checks.check_distinct(hyperedge * n + node, "hyperedge * num_nodes + node", "hyperedge_index.unique(dim=1)")
        node, hyperedge = node[order := hyperedge.argsort(stable=True)], hyperedge[order]
        size = hyperedge.bincount(minlength=len(weight))
        # Each member meets all members of its hyperedge, one after the other.
        count = size[hyperedge]
        first = torch.repeat_interleave(count)
        turn = torch.arange(len(first), device=node.device) - (count.cumsum(0) - count)[first]
        hyperedge = hyperedge[first]
        second = (size.cumsum(0) - size)[hyperedge] + turn
        keys, position = (node[first] * n + node[second]).unique(return_inverse=True)
        affinity = sum_of_groups((weight / size.clamp_min(1)).index_select(0, hyperedge), position, len(keys))
        return cls._of_edges(keys, affinity, (n,), None, "hyperedge_weight", "")

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Return ``(N,)`` for one graph, ``(B, N)`` for a batch."""
        return self.pattern.shape

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes of one graph, padding included: N."""
        return self.shape[-1]

    @cached_property
    def batch_size(self) -> int:
        """Return the number of graphs; 1 without a batch axis."""
        return math.prod(self.shape[:-1])

    @property
    def is_sparse(self) -> bool:
        """Return whether the edges are stored as a list."""
        return isinstance(self.pattern, SparsePattern)

    @property
    def edge_index(self) -> Tensor:
        """Return a sparse graph's edges, int64 ``(2, E)``, in the order of ``weight``; nodes are ``b * N + i``."""
        if not isinstance(self.pattern, SparsePattern):
            raise ValueError("a dense graph has no edge_index; use graph.to_sparse().edge_index")
        return torch.stack([self.pattern.row.long(), self.pattern.col.long()])

    def with_weight(self: G, weight: Tensor) -> G:
        """Return the graph with other weights on its edges, of the shape of ``weight``, with gradients."""
        graph = self._with(weight=weight, density_correction=0.0)
        self.pattern.agree("Graph.with_weight", lambda: graph._check("weight"))
        return graph

    def to(self: G, target: torch.device | torch.dtype | str) -> G:
        """Return the graph on a device, or with weights of a dtype, float32 or float64."""
        if isinstance(target, torch.dtype):
            checks.check_dtype(target, "target")
        elif not isinstance(target, torch.device):
            checks.check_instance(target, "target", str, "a dtype, or a device such as 'cpu'")
            try:
                torch.device(target)
            except RuntimeError as error:
                raise ValueError(f"target must be a device such as 'cpu' or 'cuda', got {target!r}") from error
        weight = (self.exact if target == torch.float64 else self.weight).to(target)
        # Only a rounding of ``wide`` loses it.
        names = ("mask", "wide", "exponent") if weight.dtype == self.weight.dtype else ("mask",)
        parts = {name: part.to(weight.device) for name in names if (part := getattr(self, name)) is not None}
        if self.similarity is not None:
            parts["similarity"] = self.similarity.to(target)
        return self._with(pattern=self.pattern.to(weight.device), weight=weight, **parts)

    def to_dense(self) -> Tensor:
        """Return the affinity matrix ``(N, N)`` or ``(B, N, N)``, with gradients."""
        return self.pattern.to_dense(self._affinity)

    @property
    def _affinity(self) -> Tensor:
        r = self.similarity
        return self.weight if r is None else self.pattern.at_row(r) * self.weight / self.pattern.at_col(r)

    @property
    def mean_affinity(self) -> Tensor:
        """Return ½ (W_ij + W_ji) on the edges in float64: W itself, unless there is a similarity."""
        if self.similarity is None:
            return self.exact
        r = self.similarity.double()
        ratio = self.pattern.at_row(r) / self.pattern.at_col(r)
        return self.exact * (ratio + 1 / ratio) / 2

    def to_sparse(self: G) -> G:
        """Return the graph stored sparsely: the non-zero entries of a dense one, with gradients."""
        if self.is_sparse:
            return self
        present = self.weight.detach() != 0
        at = (present | present.mT).nonzero(as_tuple=True)  # weights of arcs may be zero in one direction
        start = at[0] * self.num_nodes if len(at) > 2 else 0
        pattern = SparsePattern.trusted(start + at[-2], start + at[-1], self.shape)
        wide, exponent = (None if x is None else x[at] for x in (self.wide, self.exponent))
        return self._with(pattern=pattern, weight=self.weight[at], wide=wide, exponent=exponent)

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Return the affinity of one graph as a SciPy CSR matrix, without gradients."""
        if len(self.shape) > 1:
            raise ValueError(f"to_scipy takes one graph, got a batch of shape {self.shape}")
        graph = self.to_sparse()
        pattern = graph.pattern
        assert isinstance(pattern, SparsePattern)
        parts = (graph._affinity.detach(), pattern.col, pattern.crow)
        # A copy: writing to its indices would let loops read memory that is not theirs.
        arrays = tuple(part.cpu().numpy() for part in parts)
        return scipy.sparse.csr_array(arrays, shape=(self.num_nodes, self.num_nodes), copy=True)

    def subgraph(self: G, nodes: Tensor) -> G:
        """Return the graph of some nodes and the edges among them, with gradients to the weights of these edges.

        In a training it is the graph of a mini-batch, whose rows are these nodes in this order: see
        `torch_lapeig.samplers`. The cost is proportional to the edges at these nodes, for any size of the graph.

        Args:
            nodes: int64 ``(M,)``, distinct, in any order, which the result keeps. Node i of graph b in a batch has the
                number ``b * N + i``; of a dense batch all nodes must belong to one graph. For a bool mask, pass
                ``mask.nonzero().flatten()``.

        >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
        >>> path.subgraph(torch.tensor([2, 1]))
        Graph(2 nodes, 2 stored edges, torch.float32, cpu)
        """
        checks.check_indices(nodes, "nodes")
        checks.check_same_device(nodes, "nodes", self.weight, "the weights")
        if nodes.numel() == 0:
            raise ValueError("nodes must hold at least one node, got none")
        pattern, edges = self.pattern.restrict(nodes)
        similarity = None if self.similarity is None else self.similarity.reshape(-1)[nodes]
        wide, exponent = (None if x is None else x[edges] for x in (self.wide, self.exponent))
        own = {"weight": self.weight[edges], "wide": wide, "exponent": exponent, "similarity": similarity}
        return self._with(pattern=pattern, mask=None, **own)

    def connected_components(self) -> Tensor:
        """Return labels int64, of the shape of the graph: 0, 1, … in each graph by first node; −1 for padding.

        Edges of weight zero do not connect; an isolated node is a separate component. SciPy computes the labels on
        the CPU, label propagation on other devices.
        """
        return self._components

    def nodes_of_components(self) -> list[Tensor]:
        """Return the nodes of each component of two nodes or more, int64 ``(M,)``, ascending; ``b * N + i`` in a batch.

        The components are ordered by graph and by their first node.
        """
        labels = self.connected_components().reshape(self.batch_size, self.num_nodes)
        item = torch.arange(self.batch_size, device=labels.device)[:, None]
        number = torch.where(labels < 0, -1, labels + self.num_nodes * item).flatten()
        order = number.argsort(stable=True)
        groups = order.split(number.unique(return_counts=True)[1].tolist())
        return [nodes for nodes in groups if len(nodes) > 1 and number[nodes[0]] >= 0]

    @derived_property
    def _components(self) -> Tensor:
        if math.prod(self.shape) == 0:
            return torch.zeros(self.shape, dtype=torch.int64, device=self.weight.device)
        labels = self.pattern.components(self.weight.detach()).reshape(self.batch_size, -1)
        valid = torch.ones_like(labels, dtype=torch.bool) if self.mask is None else self.mask.reshape(labels.shape)
        number, _ = self.pattern.numbered_parts(labels, valid)
        return torch.where(valid, number, -1).reshape(self.shape)


# Classes that `torch.load` may rebuild: their constructors check the tensors and numbers that a file holds.
torch.serialization.add_safe_globals([Graph, Precomputed, SparsePattern, DensePattern])


def batches_of_components(graph: G, k: int) -> list[tuple[Tensor, G]]:
    """Return components of two nodes or more as graphs or batches of similar sizes, with their nodes ``(M,)``."""
    # Components of fewer than k nodes are only together with others of as many; large ones are alone.
    groups: dict[Any, list[Tensor]] = {}
    for nodes in graph.nodes_of_components():
        n, is_alone = len(nodes), not graph.is_sparse or len(nodes) > BATCHED_NODES
        groups.setdefault((0, int(nodes[0])) if is_alone else (1, n if n < k else -n.bit_length()), []).append(nodes)
    found = []
    for parts in groups.values():
        nodes = torch.cat(parts)
        part = graph.subgraph(nodes)
        if len(parts) > 1 and isinstance(pattern := part.pattern, SparsePattern):
            sizes = torch.tensor([*map(len, parts)], device=nodes.device)
            mask = torch.arange(int(sizes.max()), device=nodes.device) < sizes[:, None]
            place = mask.flatten().nonzero().flatten()
            row, col = place[pattern.row], place[pattern.col]  # which ascend, as nodes do
            inside = row // mask.shape[1] == col // mask.shape[1]  # edges of weight 0 may join components
            pattern = SparsePattern.trusted(row[inside], col[inside], tuple(mask.shape), pattern.loops)
            own = {"weight": part.weight, "wide": part.wide, "exponent": part.exponent}
            changes: Any = {name: x if x is None else x[inside] for name, x in own.items()}
            if (r := part.similarity) is not None:
                changes["similarity"] = r.new_ones(mask.numel()).index_copy(0, place, r).reshape(mask.shape)
            part = part._with(pattern=pattern, mask=mask, **changes)
        found.append((nodes, part))
    return found


def _times_exp(wide: Tensor, exponent: Tensor) -> Tensor:
    """Return wide · exp(exponent), 0 for 0 where the exponential overflows."""
    return wide * torch.where(wide == 0, exponent.clamp_max(700), exponent).exp()


def check_graph(graph: Any, name: str = "graph", *consumers: str | type) -> None:
    """Raise TypeError unless ``graph`` is a `Graph` of affinities, or the error of a kind that consumers refuse."""
    if isinstance(graph, Graph) and graph.operator is not None:
        advice = f"use {graph.operator}({name}) for its eigenpairs, or {name}.affinities()"
        raise TypeError(f"{name} must be a Graph of affinities, got a {type(graph).__name__}; {advice}")
    if not isinstance(graph, Graph):
        advice = checks.way_out(graph, name, "graph") or "; see Graph.from_edge_index, Graph.from_dense, knn_graph"
        raise TypeError(f"{name} must be a Graph, got {checks.describe(graph)}{advice}")
    if graph.weight._version != graph._version:
        graph.check_again()
    if consumers:
        refuse(*consumers, **{name: graph})


def check_edge_values(pattern: Any, values: Any, name: str) -> None:
    """Raise unless ``values`` are float32 or float64 on the edges of a pattern."""
    expected = "a SparsePattern or DensePattern (see Graph.from_dense, Graph.from_edge_index, knn_graph)"
    checks.check_instance(pattern, "pattern", (SparsePattern, DensePattern), expected)
    checks.check_floating(values, name)
    if tuple(values.shape) != pattern.edge_shape:
        raise ValueError(f"{name} must have shape {pattern.edge_shape} to go with the edges, got {tuple(values.shape)}")
    if isinstance(pattern, SparsePattern):
        checks.check_same_device(values, name, pattern.row, "the edges")


def check_edge_index(edge_index: Any, num_nodes: int | None = None, name: str = "edge_index") -> None:
    """Raise unless edges are int64 ``(2, E)``, with indices of ``num_nodes`` nodes if that is given."""
    checks.check_indices(edge_index, name, num_nodes)
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"{name} must have shape (2, E), got {tuple(edge_index.shape)}")


def check_batch(batch: Any, num_nodes: int, name: str = "batch") -> None:
    """Raise unless ``batch`` gives the graph of each node, int64 ``(num_nodes,)``, ascending."""
    checks.check_indices(batch, name)
    if batch.shape != (num_nodes,):
        raise ValueError(f"{name} must have shape ({num_nodes},), one number for each node, got {tuple(batch.shape)}")
    if (batch.diff() < 0).any() or (num_nodes and batch[0] < 0):
        way = "; sort the nodes by graph" if (batch.diff() < 0).any() else f", got {int(batch[0])}"
        raise ValueError(f"{name} must be ascending from 0{way}")
    if num_nodes and (largest := int(batch[-1])) >= num_nodes + checks.LARGEST_WIDTH:
        advice = f"use {name}.unique(return_inverse=True)[1], which numbers them"
        raise ValueError(f"{name} must count the graphs from 0, got {largest} for {num_nodes} nodes; {advice}")


def canonical_csr(matrix: Any, name: str) -> Any:
    """Return a SciPy matrix in CSR, ascending in each row, each entry once; it may share memory with the given one."""
    # A conversion would write to entries outside, and a product would read there.
    check_entries(matrix, name)
    matrix = matrix.tocsr()
    # A new object: a matrix recalls that it was sorted, also where its indices were written to.
    matrix = scipy.sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def check_entries(matrix: Any, name: str) -> None:
    """Raise ValueError unless the entries of a SciPy matrix lie in its rows and columns."""
    try:
        is_right = _has_entries_inside(matrix)
    except (ValueError, OverflowError):  # of a conversion
        is_right = False
    if not is_right:
        rows, columns = matrix.shape
        raise ValueError(f"{name} must have its entries in {rows} rows and {columns} columns, by int32 or int64")


def _has_entries_inside(matrix: Any) -> bool:
    """Return whether a SciPy matrix has all indices in range; SciPy's own check leaves out some."""
    if matrix.format == "lil" and [*map(len, matrix.rows)] != [*map(len, matrix.data)]:
        return False
    if matrix.format not in ("csr", "csc", "bsr"):
        matrix = matrix.tocoo()
        ends = [(matrix.row, matrix.shape[0]), (matrix.col, matrix.shape[1])]
    else:
        offsets = matrix.indptr
        rows, columns = matrix.shape[:: -1 if matrix.format == "csc" else 1]
        if matrix.format == "bsr":
            rows, columns = rows // matrix.blocksize[0], columns // matrix.blocksize[1]
        is_right = offsets.shape == (rows + 1,) and offsets.dtype in INDICES and offsets[0] == 0
        if not (is_right and (offsets[1:] >= offsets[:-1]).all() and offsets[-1] <= len(matrix.data)):
            return False
        ends = [(matrix.indices, columns)]
    count = len(matrix.data)
    return all(
        end.shape == (count,) and end.dtype in INDICES and (not count or 0 <= end.min() <= end.max() < size)
        for end, size in ends
    )


def _layout(batch: Tensor, num_nodes: int, num_graphs: int | None = None) -> tuple[tuple[int, ...], Tensor, Tensor]:
    """Return the shape of a padded batch, each node's position ``(M,)``, and the mask of positions in use."""
    check_batch(batch, num_nodes)
    if num_nodes == 0:
        raise ValueError("batch must hold at least one node")
    counts = batch.bincount(minlength=0 if num_graphs is None else num_graphs)
    if num_graphs is not None and len(counts) > num_graphs:
        raise ValueError(f"num_graphs must be at least {len(counts)} to go with batch, got {num_graphs}")
    widest = int(counts.max())
    checked_shape((len(counts), widest), "batch")
    mask = torch.arange(widest, device=batch.device) < counts[:, None]
    return (len(counts), widest), mask.flatten().nonzero().flatten(), mask


def _nodes_of(edge_index: Tensor) -> int:
    """Return the largest index plus one; raise ValueError if it far exceeds the number of edges."""
    nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
    if nodes > max(2**27, edge_index.shape[1]):  # hash values or addresses, not numbers of nodes
        got = f"{nodes - 1} among {edge_index.shape[1]} edges"
        way = "edge_index.unique(return_inverse=True)[1], which numbers them, or give num_nodes"
        raise ValueError(f"edge_index must hold the numbers of nodes, counted from 0, got {got}; use {way}")
    return nodes


def pad_batch(x: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Return points of graphs one after the other as a padded batch ``(B, N, D)``, and its mask ``(B, N)``.

    ``y[mask]`` of a result ``(B, N, k)`` is in the order of ``x`` again.

    Args:
        x: points ``(M, D)``, of any dtype; gradients flow to it.
        batch: int64 ``(M,)``, ascending from 0: the graph of each point.

    >>> pad_batch(torch.ones(3, 1), torch.tensor([0, 0, 1]))[1]
    tensor([[ True,  True],
            [ True, False]])
    """
    checks.check_tensor(x, "x")
    if x.ndim != 2:
        raise ValueError(f"x must have shape (M, D), got {tuple(x.shape)}")
    shape, place, mask = _layout(batch, len(x))
    checks.check_same_device(batch, "batch", x, "x")
    padded = x.new_zeros(math.prod(shape), x.shape[1]).index_copy(0, place, x)
    return padded.reshape(*shape, x.shape[1]), mask
