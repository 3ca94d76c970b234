"""Storage of the edges of a graph, sparse (CSR) or dense, and the algebra of values on the edges.

Both patterns offer the same operations, so that weights, Laplacian and gradients are written once. Values on edges are
``(E,)`` for a `SparsePattern` and ``(..., N, N)`` for a `DensePattern`. Node values have the graph's shape, ``(N,)`` or
``(B, N)``, and blocks of vectors have one axis more.

The derivatives of products and lengths stand in `torch_lapeig.graph.algebra`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from torch_lapeig.graph import algebra
from torch_lapeig.graph.search.exact import squared_distances
from torch_lapeig.native import calls as native
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import cached_property, make_usable
from torch_lapeig.support.threads import by_rows
from torch_lapeig.support.tuning import TALL, check_dense

# Edges of a node from which on float32 products are summed in float64 on the processor, which adds one by one: in
# float32 a star of 1000 leaves of equal weights loses 1e-5 of a sum, a star of two million leaves 1e-2.
HUB_EDGES = 1000
# Products in which a nearly complete graph shows that it is connected; listing its edges takes the time of 20.
SEARCH_STEPS = 3

# Pattern of some nodes or graphs, and the index of the values on its edges among all values.
Part = tuple[Any, Any]


class PatternBase:
    """Operations on all nodes of a graph, whose reductions `torch_lapeig.distributed` replaces by those over ranks."""

    is_sharded = False
    num_ranks = 1  # number of ranks that hold nodes; a loss divides shared terms by it

    @property
    def flipped(self) -> Any:
        """Return the positions of the transpose: their own, because each edge has its reverse."""
        return self

    def sum(self, x: Tensor) -> Tensor:
        """Return Σ over the ranks where nodes lie; differentiable."""
        return x

    def number_of(self, n: int) -> int:
        """Return the number of nodes on all ranks, of which ``n`` lie here."""
        return n

    def maximum(self, x: Tensor) -> Tensor:
        """Return the maximum over the ranks where nodes lie, elementwise; without gradients."""
        return x

    def same_on_all_ranks(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return small tensors computed wherever nodes lie, identical everywhere, so that decisions agree."""
        return tensors

    def any(self, flag: Tensor) -> bool:
        """Return whether a flag ``()`` is true on one of the ranks."""
        return bool(flag)

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Return Xᴴ Y of ``(..., N, m)`` and ``(..., N, l)``; tall blocks by slices of rows, which threads share."""
        if x.ndim == 1:
            return x.dot(y)
        n, m = x.shape[-2:]
        is_single = x.device.type == "cpu" and x.ndim == y.ndim and x.numel() == n * m
        # With one column, slices are four times slower.
        is_by_rows = x.stride(-1) == y.stride(-1) == 1 and min(m, y.shape[-1]) >= 3
        if not (is_single and is_by_rows and n * min(m, y.shape[-1]) >= TALL) or torch.is_grad_enabled():
            return precision.matmul(x.mH, y)
        slices_of_rows = 16
        length = n // slices_of_rows
        a, b = x.reshape(n, m), y.reshape(n, y.shape[-1])
        sliced = (part[: length * slices_of_rows].unflatten(0, (slices_of_rows, length)) for part in (a, b))
        found = torch.bmm(next(sliced).mH, next(sliced)).sum(0)
        if (rest := length * slices_of_rows) < n:
            found.addmm_(a[rest:].mH, b[rest:])
        return found.reshape(*x.shape[:-2], *found.shape)

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        """Return inner products of columns, ``(..., N, m)`` to ``(..., m)``; large blocks are multiplied in slices."""
        n, m = x.shape[-2:]
        # 10,000 × 10 took 0.11 ms as a whole, in slices of the rows 0.25; at 400,000 × 10 slices take less than half.
        if x.numel() <= 2**17 or torch.is_grad_enabled() or x.numel() > n * m or x.shape != y.shape:
            return (x * y).sum(-2)
        a, b, parts = x.reshape(n, m), y.reshape(n, m), dict[int, Tensor]()

        def dot(rows: slice) -> None:
            parts[rows.start] = (a[rows] * b[rows]).sum(0)

        by_rows(dot, n, 3 * m * x.element_size(), x.device)
        found = torch.stack([parts[start] for start in sorted(parts)]).sum(0) if len(parts) > 1 else parts[0]
        return found.reshape(*x.shape[:-2], m)

    def overlaps(self, w: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """Return ``dots`` of a block with itself, and ``inner`` of others with it."""
        return self.dots(w, w), *(self.inner(q, w) for q in others)

    @property
    def has_plain_sums(self) -> bool:
        """Return whether ``inner`` and ``dots`` are those of this class, so that compiled loops may sum."""
        return type(self).inner is PatternBase.inner and type(self).dots is PatternBase.dots

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest magnitude in each column, ``(..., N, m)`` to ``(..., m)``, or NaN; without gradients."""
        size = checks.primal(x).abs()
        return size.amax(-2) if size.shape[-2] else size.sum(-2)

    def centre(self, x: Tensor) -> Tensor:
        """Return the mean ``(..., 1, D)`` of node values ``(..., N, D)``, a constant."""
        return self.sum(checks.primal(x).sum(-2, keepdim=True)) / self.number_of(x.shape[-2])

    @precision.full_precision
    def matmul(self: Any, values: Tensor, y: Tensor, **known: bool) -> Tensor:
        """Return M Y for ``y`` ``(..., N, m)``; differentiable in both at any order.

        With ``is_symmetric=True`` M is known to be symmetric, which makes its gradients cheaper, and with
        ``stays_symmetric=True`` only the symmetric part of its changes counts.
        """
        return algebra.product(values, self._points(y), self, **known).reshape(y.shape)

    @precision.full_precision
    def products(self: Any, x: Tensor, y: Tensor) -> Tensor:
        """Return (X Yᵀ)_ij on the edges for ``(..., N, m)``; differentiable in both at any order."""
        return algebra.sampled_product(self._points(x), self._points(y), self)

    def squared_lengths(self, x: Tensor) -> Tensor:
        """Return ‖x_i − x_j‖² on the edges for ``(..., N, D)``, by direct differences; differentiable."""
        return algebra.squared_lengths(x, self)

    def smoothness(self, values: Tensor, y: Tensor) -> Tensor:
        """Return ½ Σ m_ij ‖y_i − y_j‖² for symmetric values m on the edges, by direct differences; differentiable."""
        return algebra.smoothness(values, y, self)[0]

    def multiply(
        self: Any, matrix: Tensor, y: Tensor, other: Tensor | None = None, *, in_place: bool = False, **factors: float
    ) -> Tensor:
        """Return times · matrix · y + plus · other, ``(..., N, m)``, for factors, else 1; ``in_place`` of other."""
        others = None if other is None else self._points(other)
        out = others if in_place else None
        return algebra.multiply(matrix, self.at_columns(self._points(y)), others, out=out, **factors).reshape(y.shape)

    def at_columns(self, y: Tensor) -> Tensor:
        """Return the rows ``(total, m)`` by which columns are multiplied; differentiable."""
        return y

    def of_graph(self: Any, values: Tensor) -> Tensor:
        """Return values ``(B,)`` of each graph at the first node of each edge, as ``at_row`` does."""
        at_nodes = values.reshape(-1, 1).expand(math.prod(self.shape[:-1]), self.shape[-1])
        return self.at_row(at_nodes.reshape(self.shape))  # type: ignore[no-any-return]

    def scaled(self: Any, values: Tensor, nodes: Tensor) -> Tensor:
        """Return s_i m_ij s_j for values m on the edges and s at the nodes; differentiable in both at any order."""
        return self.at_row(nodes) * values * self.at_col(nodes)  # type: ignore[no-any-return]

    def direct_tension(self, values: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the pull on each node and the `smoothness`, without gradients; None where products are faster."""
        return None

    def levels(self: Any, weight: Tensor) -> Tensor | None:
        """Return l, powers of two about the roots of degrees, if derivatives in weights might overflow; else None."""
        if not (weight.requires_grad or checks.is_dual(weight)):
            return None
        degrees, tiny = self.sum_rows(checks.primal(weight)), torch.finfo(weight.dtype).tiny
        positive = degrees > tiny
        if not self.any((positive & (degrees.log().abs() > -math.log(tiny) / 4)).any()):
            return None
        # Float64 cannot hold derivatives of a root of 1e-250; those of the weights w_ij / (l_i l_j) are near 1.
        return checks.next_power(torch.where(positive, degrees, 1).sqrt()) / 2

    def medians(self, values: Tensor, group: Tensor, total: int) -> Tensor:
        """Return the lower median ``(total,)`` of the values on the edges of each group; 1 for an empty group."""
        if values.device.type != "cpu" or (group.diff() < 0).any():
            return algebra.kth_of_groups(values, group, total, None)
        counts = [*map(int, group.bincount(minlength=total))]  # tolist fails in torch.func before 2.11
        parts = checks.primal(values).split(counts)
        medians = [part.median() if len(part) else part.new_ones(()) for part in parts]  # faster than sorting
        return algebra.with_equal_parts(torch.stack(medians), values, group)

    def numbered_parts(self, labels: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Return labels 0, 1, … ``(B, N)`` of components of active nodes, 0 elsewhere, and their number ``(B,)``."""
        if labels.shape[1] == 0:
            return labels, labels.new_zeros(len(labels))
        labels = labels - labels.amin(1, keepdim=True)
        present = torch.zeros(len(labels), labels.shape[1] + 1, dtype=torch.int64, device=labels.device)
        present.scatter_(1, torch.where(active, labels, labels.shape[1]), 1)
        present = present[:, :-1]
        number = present.cumsum(1) - 1
        return torch.where(active, number.gather(1, labels), 0), present.sum(1)

    def noise(self, m: int, seed: int, dtype: torch.dtype) -> Tensor | None:
        """Return random columns ``(N, m)`` that belong to the nodes; None where a generator draws them."""
        return None

    def signs(self, x: Tensor) -> Tensor:
        """Return ±1 for each column of ``(B, N, m)``: see `signs`."""
        return signs(x)

    def agree(self, call: str, check: Callable[[], dict[str, Any] | None]) -> None:
        """Run a check; raise on all ranks unless it passes on all of them, with equal facts and ``call``."""
        check()

    def compare(self, call: str, check: Callable[[], dict[str, Any] | None]) -> None:
        """Raise on all ranks unless all make the ``call``, with equal facts of ``check``."""


class SparsePattern(PatternBase):
    """Edges in CSR order, both directions of each; node i of graph b in a batch has the number ``b * N + i``.

    Args:
        row, col: int32 or int64 ``(E,)``, first and second node of each edge, ascending by row, then by column; each
            edge once, and its reverse too.
        shape: ``(N,)`` or ``(B, N)``. No edge joins two graphs of a batch.
        loops: whether some edges are self loops; None: checked where it matters.

    Indices are copied, to int32 wherever it suffices, which is fastest in torch's sparse products.

    >>> path = SparsePattern(torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 2, 1]), (3,))
    >>> path.squared_lengths(torch.tensor([[0.0], [1.0], [3.0]]))
    tensor([1., 1., 4., 4.])
    """

    def __init__(self, row: Tensor, col: Tensor, shape: tuple[int, ...], loops: bool | None = None) -> None:
        shape = checked_shape(shape)
        check_ends(row, col, math.prod(shape))
        if loops is not None:
            loops = checks.check_flag(loops, "loops")
        # Compiled loops trust these indices: copy them, so that nobody writes to them afterwards.
        self._put(row.clone(), col.clone(), shape, loops)
        check_edges(self.row, self.col, self.shape, self.reverse)
        if loops is False and (self.row == self.col).any():
            raise ValueError("loops must be None or True where an edge joins a node to itself, got False")

    @classmethod
    def trusted(cls, row: Tensor, col: Tensor, shape: tuple[int, ...], loops: bool | None = None) -> SparsePattern:
        """Return the pattern of edges that this library computed, without a copy and without checks."""
        pattern = cls.__new__(cls)
        pattern._put(row, col, shape, loops)
        return pattern

    def _put(self, row: Tensor, col: Tensor, shape: tuple[int, ...], loops: bool | None) -> None:
        self.shape, self.loops = shape, loops
        self.total = self.columns = math.prod(shape)
        self.index = torch.int32 if len(row) + self.total < 2**31 else torch.int64
        self.row, self.col = row.to(self.index), col.to(self.index)
        if torch.is_inference_mode_enabled() or self.row.is_inference():
            make_usable(self)

    def __len__(self) -> int:
        return len(self.row)

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments, without results computed from them."""
        return {"row": self.row, "col": self.col, "shape": self.shape, "loops": self.loops}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the pattern from its arguments, with all checks: a file may hold wrong indices."""
        SparsePattern.__init__(self, state["row"], state["col"], state["shape"], state.get("loops"))

    def to(self, device: torch.device) -> SparsePattern:
        """Return the pattern on a device; itself if it is there."""
        if device == self.row.device:
            return self
        return SparsePattern.trusted(self.row.to(device), self.col.to(device), self.shape, self.loops)

    def keys(self) -> Tensor:
        """Return ``row * total + col``, int64, ascending."""
        return self.row.long() * self.total + self.col

    @property
    def edge_shape(self) -> tuple[int, ...]:
        """Return the shape of values on the edges, ``(E,)``."""
        return (len(self.row),)

    @cached_property
    def reverse(self) -> Tensor:
        """Return the position of edge (j, i) for every edge (i, j), ``(E,)``."""
        # A stable sort by column lists the edges (i, j) in the order of (j, i), and reversing twice is the identity.
        if not checks.is_plain_host(self.col):
            return self.col.argsort(stable=True).to(self.index)
        number, ends = np.arange(len(self.col), dtype=self.col.numpy().dtype), [0, len(self.col)]
        # SciPy counts the entries of a row into columns, up to ten times faster than a sort.
        counted = scipy.sparse.csr_array((number, self.col.numpy(), ends), shape=(1, self.total)).tocsc()
        return torch.from_numpy(counted.data)

    @cached_property
    def crow(self) -> Tensor:
        """Return the position where each row's edges begin, ``(total + 1,)``."""
        return algebra.offsets_of_groups(self.row, self.total)

    @cached_property
    def has_hubs(self) -> bool:
        """Return whether nodes have so many edges that the processor's sequential sums of products lose digits."""
        is_possible = self.row.device.type == "cpu" and min(len(self.row), self.shape[-1]) >= HUB_EDGES
        return is_possible and int(self.crow.diff().max()) >= HUB_EDGES

    @cached_property
    def item(self) -> Tensor:
        """Return the batch item of each edge, ``(E,)``."""
        return self.row // self.shape[-1]

    def at_row(self, nodes: Tensor) -> Tensor:
        """Return node values at the first node of each edge."""
        return algebra.gather(nodes.reshape(-1), self.row)

    def at_col(self, nodes: Tensor) -> Tensor:
        """Return node values at the second node of each edge."""
        return algebra.gather(self.at_columns(nodes.reshape(-1)), self.col)

    def sum_rows(self, values: Tensor) -> Tensor:
        """Return Σ_j of edge values, of the graph's shape."""
        return algebra.sum_of_groups(values, self.row, self.total).reshape(self.shape)

    def transpose(self, values: Tensor) -> Tensor:
        """Return the values of the reversed edges."""
        self._check_fit(values)
        return algebra.gather(values, self.reverse)

    def without_loops(self, values: Tensor) -> Tensor:
        """Return the values with self loops set to zero."""
        return values.masked_fill(self.row == self.col, 0) if self.has_loops(values) else values

    def sum_loops(self, values: Tensor) -> Tensor:
        """Return the values of the self loops, of the graph's shape."""
        return self.sum_rows(values - self.without_loops(values))

    def has_loops(self, values: Tensor) -> bool:
        """Return whether some of the edges are self loops."""
        if self.loops is None:
            self.loops = bool((self.row == self.col).any())
        return self.loops

    def direct_matmul(self, values: Tensor, y: Tensor) -> Tensor:
        """Return `matmul` without gradients, for ``(total, m)``: float32 in float64 where there are hubs."""
        self._check_fit(values, y)
        exact = torch.float64 if self.has_hubs else y.dtype
        return self.multiply(self.to_matrix(values.to(exact)), y.to(exact)).to(y.dtype)

    def direct_products(self, x: Tensor, y: Tensor) -> Tensor:
        """Return `products` without gradients, for ``(total, m)``."""
        self._check_fit(None, x, y)
        return algebra.edge_products(self.crow, self.row, self.col, x, self.at_columns(y))

    def direct_lengths(self, x: Tensor) -> Tensor:
        """Return `squared_lengths` without gradients."""
        return algebra.edge_products(self.crow, self.row, self.col, self.at_columns(self._points(x)), None)

    def direct_tension(self, values: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return ``PatternBase.direct_tension``; None if nothing is compiled."""
        self._check_fit(values)
        exact = torch.float64 if self.has_hubs else y.dtype
        found = native.tension(self.crow, self.col, values.to(exact), self._points(y).to(exact))
        if found is None:
            return None
        pull, energy = found
        return pull.to(y.dtype).reshape(y.shape), energy.to(y.dtype).sum() / 2

    def _check_fit(self, values: Tensor | None, *blocks: Tensor) -> None:
        """Raise ValueError unless values are ``(E,)`` and blocks ``(total, m)``: products read memory unchecked."""
        if values is not None and values.shape != self.row.shape:
            raise ValueError(
                f"values must have shape {self.edge_shape} to go with the edges, got {tuple(values.shape)}"
            )
        for block in blocks:
            if block.ndim != 2 or len(block) != self.total or block.shape != blocks[0].shape:
                raise ValueError(f"blocks must have shape ({self.total}, m), got {tuple(block.shape)}")

    def _points(self, x: Tensor) -> Tensor:
        """Return points ``(..., N, D)`` of all graphs of a batch one after the other, ``(total, D)``."""
        return x.reshape(self.total, x.shape[-1])

    def to_dense(self, values: Tensor) -> Tensor:
        """Return the matrix ``(..., N, N)``, with gradients."""
        n = self.shape[-1]
        advice = "keep it sparse: ask for fewer pairs, and leave out solvers of dense matrices, such as Eigh()"
        what = f"a sparse graph of {n} nodes as dense"
        check_dense(self.total, n, values.element_size(), values.device, what, advice)
        place = self.row.long() * n + self.col % n
        return values.new_zeros(self.total * n).index_copy(0, place, values).reshape(*self.shape, n)

    def assemble(self, diagonal: Tensor, values: Tensor) -> Tensor:
        """Return diag + M as a matrix for `multiply`, without gradients (self loops and diagonal are both entries)."""
        crow, col, edge, node = self._with_diagonal
        entries = values.new_empty(len(col)).index_copy_(0, edge, values.detach())
        entries.index_copy_(0, node, diagonal.detach().reshape(-1))
        return algebra.csr(crow, col, entries, (self.total, self.columns))

    def to_matrix(self, values: Tensor) -> Tensor:
        """Return M as a matrix for `multiply`, without gradients and without a copy."""
        self._check_fit(values)
        return algebra.csr(self.crow, self.col, values.detach(), (self.total, self.columns))

    def components(self, weight: Tensor) -> Tensor:
        """Return component labels by edges of positive weight, of the graph's shape; ascending by node."""
        checks.check_outside_func(weight, "weight")
        col = torch.where(weight > 0, self.col, self.row)  # edges of no weight become loops, which join nothing
        return algebra.label_components(self.row, col, self.total, self.crow).reshape(self.shape)

    def edges_of(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each edge from ``nodes``, int64 ``(M,)``, its first node's position there, and the edge's number.

        Both are int64 ``(E,)``.
        """
        begin = self.crow.index_select(0, nodes).long()
        count = self.crow.index_select(0, nodes + 1) - begin
        position = torch.repeat_interleave(count)
        before = begin - count.cumsum(0) + count
        edge = torch.arange(len(position), device=nodes.device).add_(before.index_select(0, position))
        return position, edge

    def restrict(self, nodes: Tensor) -> Part:
        """Return the edges among ``nodes`` (int64 ``(M,)``), numbered in their order."""
        count, loops = len(nodes), self.loops and None  # some nodes may have no loops
        if (found := native.edges_among(self.crow, self.col, nodes)) is not None:
            crow, row, col, edge = found
            pattern = SparsePattern.trusted(row, col, (count,), loops)
            pattern.crow = crow
            return pattern, edge
        checks.check_indices(nodes, "nodes", self.total)
        checks.check_distinct(nodes, "nodes", "nodes.unique()")
        row, edge = self.edges_of(nodes)
        place = nodes.new_full((self.total,), -1).scatter_(0, nodes, torch.arange(count, device=nodes.device))
        col = place.index_select(0, self.col.index_select(0, edge))
        inside = (col >= 0).nonzero().flatten()
        order = inside[(row[inside] * count + col[inside]).argsort()]
        return SparsePattern.trusted(row[order], col[order], (count,), loops), edge[order]

    def part_of(self, graphs: slice | int) -> Part:
        """Return some graphs of a batch, one after the other, or a single one."""
        n, is_one = self.shape[-1], isinstance(graphs, int)
        first, stop = (graphs, graphs + 1) if isinstance(graphs, int) else (graphs.start, graphs.stop)
        edges = slice(int(self.crow[first * n]), int(self.crow[stop * n]))
        row, col = self.row[edges] - first * n, self.col[edges] - first * n
        return SparsePattern.trusted(row, col, (n,) if is_one else (stop - first, n), self.loops and None), edges

    def bandwidth_reducing_order(self) -> Tensor:
        """Return the reverse Cuthill–McKee order of nodes, int64 ``(total,)``; it puts neighbours close in memory."""
        from scipy.sparse.csgraph import reverse_cuthill_mckee  # loads all of its linear algebra

        parts = (np.ones(len(self), dtype=np.int8), self.col.cpu().numpy(), self.crow.cpu().numpy())
        structure = scipy.sparse.csr_array(parts, shape=(self.total, self.total))
        order = reverse_cuthill_mckee(structure, symmetric_mode=True)
        return torch.from_numpy(order.astype(np.int64)).to(self.col.device)

    @cached_property
    def _with_diagonal(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return algebra.with_diagonal(self.row, self.col, self.crow)


class DensePattern(PatternBase):
    """Pattern with an edge between every pair of nodes, for nearly complete graphs; an affinity of 0 means no edge.

    Args:
        shape: ``(N,)`` or ``(B, N)``.

    >>> DensePattern((3,)).squared_lengths(torch.tensor([[0.0], [1.0], [3.0]]))
    tensor([[0., 1., 9.],
            [1., 0., 4.],
            [9., 4., 0.]])
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = checked_shape(shape)

    def __setstate__(self, state: dict[str, Any]) -> None:
        DensePattern.__init__(self, state["shape"])

    def to(self, device: torch.device) -> DensePattern:
        """Return the pattern itself: it holds no tensors."""
        return self

    @property
    def edge_shape(self) -> tuple[int, ...]:
        """Return the shape of values on the edges, ``(N, N)`` or ``(B, N, N)``."""
        return (*self.shape, self.shape[-1])

    def at_row(self, nodes: Tensor) -> Tensor:
        """Return node values at the first node of each edge, to broadcast."""
        return nodes[..., :, None]

    def at_col(self, nodes: Tensor) -> Tensor:
        """Return node values at the second node of each edge, to broadcast."""
        return nodes[..., None, :]

    def sum_rows(self, values: Tensor) -> Tensor:
        """Return Σ_j of edge values, of the graph's shape."""
        return values.sum(-1)

    def transpose(self, values: Tensor) -> Tensor:
        """Return the values of the reversed edges."""
        return values.mT

    def without_loops(self, values: Tensor) -> Tensor:
        """Return the values with self loops set to zero."""
        diagonal = values.diagonal(dim1=-2, dim2=-1)
        return torch.diagonal_scatter(values, torch.zeros_like(diagonal), dim1=-2, dim2=-1)

    def sum_loops(self, values: Tensor) -> Tensor:
        """Return the values of the self loops, of the graph's shape."""
        return values.diagonal(dim1=-2, dim2=-1)

    def has_loops(self, values: Tensor) -> bool:
        """Return whether some self loops are not zero; True on accelerators, where synchronising takes longer."""
        return values.device.type != "cpu" or bool(values.diagonal(dim1=-2, dim2=-1).any())

    def _points(self, x: Tensor) -> Tensor:
        """Return points as a block of the pattern's shape."""
        return x.reshape(*self.shape, x.shape[-1])

    def direct_matmul(self, values: Tensor, y: Tensor) -> Tensor:
        """Return `matmul` without gradients."""
        return values @ y

    def direct_products(self, x: Tensor, y: Tensor) -> Tensor:
        """Return `products` without gradients."""
        return x @ y.mT

    def direct_lengths(self, x: Tensor) -> Tensor:
        """Return `squared_lengths` without gradients."""
        return squared_distances(x, x)

    def to_dense(self, values: Tensor) -> Tensor:
        """Return the values themselves."""
        return values

    def assemble(self, diagonal: Tensor, values: Tensor) -> Tensor:
        """Return diag + M as a matrix for `multiply`, without gradients."""
        matrix = values.detach().clone()
        matrix.diagonal(dim1=-2, dim2=-1).add_(diagonal.detach().reshape(self.shape))
        return matrix

    def to_matrix(self, values: Tensor) -> Tensor:
        """Return M as a matrix for `multiply`, without gradients and without a copy."""
        return values.detach()

    def components(self, weight: Tensor) -> Tensor:
        """Return component labels by edges of positive weight, of the graph's shape; ascending by node."""
        checks.check_outside_func(weight, "weight")
        if self._are_connected(weight):
            graph = torch.arange(math.prod(self.shape[:-1]), device=weight.device)
            return graph.repeat_interleave(self.shape[-1]).reshape(self.shape)
        total, n = math.prod(self.shape), self.shape[-1]
        node, place = (weight.reshape(total, n) > 0).nonzero(as_tuple=True)
        return algebra.label_components(node, node - node % n + place, total).reshape(self.shape)

    def _are_connected(self, weight: Tensor) -> bool:
        """Return whether few products show that the first node of each graph reaches all others."""
        if not weight.numel() or not weight.amin() >= 0:
            return False
        reached = weight[..., 0, :, None] > 0
        for _ in range(SEARCH_STEPS):
            reached = reached | (weight @ reached.to(weight.dtype) > 0)
            if reached.all():
                return True
        return False

    def restrict(self, nodes: Tensor) -> Part:
        """Return all pairs of ``nodes``, int64 ``(M,)``, which are ``b * N + i`` for one graph b."""
        checks.check_indices(nodes, "nodes", math.prod(self.shape))
        checks.check_distinct(nodes, "nodes", "nodes.unique()")
        item, place = nodes // self.shape[-1], nodes % self.shape[-1]
        if (item != item[0]).any():
            raise ValueError("nodes of a dense batch must be of one graph, got nodes of several; use graph.to_sparse()")
        pairs = (place[:, None], place) if len(self.shape) == 1 else (item[:, None], place[:, None], place)
        return DensePattern((len(nodes),)), pairs

    def part_of(self, graphs: slice | int) -> Part:
        """Return some graphs of a batch, one after the other, or a single one."""
        count = () if isinstance(graphs, int) else (graphs.stop - graphs.start,)
        return DensePattern((*count, self.shape[-1])), graphs


Pattern = SparsePattern | DensePattern


def signs(vectors: Tensor) -> Tensor:
    """Return ±1 for each column of ``(B, N, k)``, ``(B, 1, k)``, with which `first_of_largest` is positive."""
    bare = vectors.detach()
    peaks = bare.gather(-2, first_of_largest(bare))
    return torch.copysign(torch.ones_like(peaks), peaks)


def first_of_largest(vectors: Tensor) -> Tensor:
    """Return the first row, int64 ``(B, 1, k)``, of an entry of nearly the largest magnitude in each column."""
    size = vectors.detach().abs()
    # Round-off must not choose between the two ends of a symmetric graph.
    return (size >= 0.999 * size.amax(-2, keepdim=True)).view(torch.int8).argmax(-2, keepdim=True)


def in_double(pattern: Pattern, values: Tensor) -> Tensor:
    """Return symmetric values on edges in float64: the mean of the two directions, which may differ by round-off."""
    double, exact = checks.finite_gradient(values).double(), checks.primal(values).double()
    return double if pattern.is_sharded else double + (pattern.transpose(exact) - exact) / 2


def checked_shape(shape: Any, name: str = "shape") -> tuple[int, ...]:
    """Return a shape ``(N,)`` or ``(B, N)`` in Python's integers; raise for anything else, or too many nodes."""
    checks.check_instance(shape, name, (tuple, list), "(N,) or (B, N)")
    if len(shape) not in (1, 2):
        raise ValueError(f"{name} must be (N,) or (B, N), got {tuple(shape)}")
    sizes = tuple(shape if isinstance(shape, torch.Size) else (checks.check_count(size, name, 0) for size in shape))
    most = math.isqrt(2**63 - 1)  # the number of an edge, row * total + col, fits int64
    if math.prod(sizes) > most:
        raise ValueError(f"{name} must be of at most {most} nodes, got {math.prod(sizes)}")
    return sizes


def check_ends(row: Any, col: Any, total: int) -> None:
    """Raise unless the ends of edges are integers ``(E,)`` from 0 to ``total`` − 1, on one device."""
    ends = {"row": row, "col": col}
    for name, end in ends.items():
        checks.check_tensor(end, name)
        if end.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} must be an int32 or int64 tensor, got {end.dtype}; use {name}.long()")
        if end.ndim != 1:
            raise ValueError(f"{name} must have shape (E,), got {tuple(end.shape)}")
    if len(row) != len(col):
        raise ValueError(f"row and col must have one length, got {len(row)} and {len(col)}")
    checks.check_same_device(col, "col", row, "row")
    for name, end in ends.items():
        if len(end):
            least, most = map(int, end.aminmax())
            if not 0 <= least <= most < total:
                raise IndexError(f"{name} must hold nodes from 0 to {total - 1}, got {least} to {most}")


def check_edges(row: Tensor, col: Tensor, shape: tuple[int, ...], back: Tensor) -> None:
    """Raise ValueError unless edges ascend, have their reverses and stay in their graphs, in O(E)."""
    n = shape[-1]
    follows = (row[1:] > row[:-1]) | ((row[1:] == row[:-1]) & (col[1:] > col[:-1]))
    if not follows.all():
        e = int(follows.int().argmin())
        first, second = ((int(row[at]), int(col[at])) for at in (e, e + 1))
        got = f"{first} before {second}; see Graph.from_edge_index, which takes edges in any order"
        raise ValueError(f"row and col must hold each edge once, ascending by row, then by col, got {got}")
    if len(shape) == 2 and len(row) and (row // n != col // n).any():
        e = int((row // n != col // n).int().argmax())
        edge = int(row[e]), int(col[e])
        raise ValueError(f"row and col must join nodes of one graph of the batch, got an edge {edge} with N = {n}")
    lacks = (row[back] != col) | (col[back] != row)  # back: edges by second node; the reverses if every edge has one
    if lacks.any():
        e = int(lacks.int().argmax())
        here, there = (int(row[e]), int(col[e])), (int(col[back[e]]), int(row[back[e]]))
        edge = here if here < there else there[::-1]
        raise ValueError(
            f"row and col must hold both directions of every edge, got {edge} without {edge[::-1]}; add it"
        )
