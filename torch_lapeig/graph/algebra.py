"""Sums and products over the edges of a graph, with all derivatives; stored matrices; connected components and paths.

The product M Y of a matrix on edges and the sampled product (X Yᵀ)_ij on edges are each other's derivatives:

    Z = M Y:         ∂M_ij = (Z̄ Yᵀ)_ij,    ∂Y = Mᵀ Z̄
    p = (X Yᵀ)_ij:   ∂X = P̄ Y,             ∂Y = P̄ᵀ X        with P̄ the matrix of p̄ on the edges,

so these two functions are closed under differentiation of any order. Mᵀ has the values of the reversed edges. Lengths
and smoothness are computed by direct differences; their derivatives are products of these two kinds.

The functions with derivatives take their values from the methods ``direct_...`` of a pattern, which have no gradients.

**Sums over groups**, such as the edges of a node, of a component or of a graph, are equal from run to run. Numbers in
float32 are added in float64: in float32 a sum of two million equal edges, one after the other, is wrong by 1 %. The
processor adds in the order of the values. On an accelerator ``index_add`` would add by atomic operations in any order.
There ``index_put`` with accumulation sorts the values by group, and one thread adds the values of a group one by one.
Large groups are therefore divided, and the sums of the parts added. Groups ``(total, 1)`` are the rows of a matrix of
values ``(total, n)``.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from torch_lapeig.native import calls as native
from torch_lapeig.support import checks, precision
from torch_lapeig.support.tuning import rows_of_block, steps_between_checks

Pattern = Any  # a `SparsePattern` or a `DensePattern`, which import this module


def product(
    values: Tensor, y: Tensor, pattern: Pattern, *, is_symmetric: bool = False, stays_symmetric: bool = False
) -> Tensor:
    """Return M Y ``(total, m)`` for values ``(E,)`` of M on the edges and ``(total, m)``."""
    # First derivatives of symmetric M need no values of reversed edges, which take longer to gather than the product.
    # Higher derivatives do: the tensors behind M may not be symmetric, unless only its symmetric part counts.
    return _Product.apply(values, y, pattern, is_symmetric, stays_symmetric)  # type: ignore[no-any-return]


def _symmetric(matrix: Tensor, y: Tensor) -> Tensor:
    """Return A Y for symmetric matrices ``(..., N, N)`` and ``(..., N, m)``, without gradients."""
    are_plain = checks.is_plain_host(matrix) and checks.is_plain_host(y) and not checks.is_dual(matrix, y)
    if matrix.ndim > 2 or y.shape[-1] != 1 or not are_plain:
        return matrix @ y
    # BLAS reads one triangle of A: one column takes 1.6 of 2.6 ms at 2000 nodes.
    from scipy.linalg import blas  # loads SciPy's linear algebra

    multiply = blas.dsymv if matrix.dtype == torch.float64 else blas.ssymv
    return torch.from_numpy(multiply(1.0, matrix.detach().numpy().T, y.detach().numpy()[:, 0]))[:, None]


class _OfTwo(precision.Function):
    """Function on a pattern that is linear in each of two tensors: a product, with options, or a sampled one."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (one, other), (pattern, *options), change = ctx.saved_tensors, ctx.rest, tangents[0]
        if change is not None and any(options[1:]):  # only the symmetric part of values counts
            change = (change + pattern.transpose(change)) / 2
        times, factors = product if options else sampled_product, ((change, other), (one, tangents[1]))
        terms = [times(a, b, pattern) for a, b in factors if a is not None and b is not None]
        return sum(terms[1:], terms[0])


class _Product(_OfTwo):
    @staticmethod
    def forward(values: Tensor, y: Tensor, pattern: Pattern, is_symmetric: bool, stays_symmetric: bool) -> Any:
        return pattern.direct_matmul(values, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (values, y), (pattern, is_symmetric, stays_symmetric) = grads, ctx.saved_tensors, ctx.rest
        to_values = to_y = None
        if ctx.needs_input_grad[0]:
            # Two sampled products at once are cheaper than finding the reversed edges.
            both = (torch.cat([g, y], -1), torch.cat([y, g], -1)) if stays_symmetric else (g, y)
            to_values = sampled_product(both[0], both[1], pattern)
            to_values = to_values / 2 if stays_symmetric else to_values
        if ctx.needs_input_grad[1]:
            is_own = stays_symmetric or (is_symmetric and not torch.is_grad_enabled())
            to_y = product(values if is_own else pattern.transpose(values), g, pattern.flipped)
        return to_values, to_y, None, None, None


class _SampledProduct(_OfTwo):
    @staticmethod
    def forward(x: Tensor, y: Tensor, pattern: Pattern) -> Any:
        return pattern.direct_products(x, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (p,), (x, y), (pattern,) = grads, ctx.saved_tensors, ctx.rest
        to_x = product(p, y, pattern) if ctx.needs_input_grad[0] else None
        to_y = product(pattern.transpose(p), x, pattern.flipped) if ctx.needs_input_grad[1] else None
        return to_x, to_y, None


class _SquaredLengths(precision.Function):
    """Squared lengths ‖x_i − x_j‖² on edges; C = c̄ + c̄ᵀ of the cotangent gives the gradient 2 (diag(C 1) − C) X."""

    @staticmethod
    def forward(x: Tensor, pattern: Pattern) -> Any:
        return pattern.direct_lengths(x.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        (c,), (x,), (pattern,) = grads, ctx.saved_tensors, ctx.rest
        return -2 * _pull(c + pattern.transpose(c), x, pattern), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        (x,), (pattern,) = ctx.saved_tensors, ctx.rest
        # 2 (x_i − x_j)·(u_i − u_j)
        u, x = tangents[0].double(), x.double()  # terms that cancel are as large as the points, not as the edges
        u, x = u - pattern.centre(u), x - pattern.centre(x)
        inner = (x * u).sum(-1)
        crossed = pattern.products(x, u) + pattern.products(u, x)
        change: Tensor = 2 * (pattern.at_row(inner) + pattern.at_col(inner) - crossed)
        return change.to(tangents[0].dtype)


def _pull(values: Tensor, x: Tensor, pattern: Pattern) -> Tensor:
    """Return Σ_j m_ij (x_j − x_i) ``(..., N, D)`` for symmetric values m on the edges, differentiable in both."""
    values = pattern.without_loops(values)  # loops cancel, and may be larger than all other values
    if not (torch.is_grad_enabled() or checks.is_dual(values, x)):
        found: tuple[Tensor, Tensor] | None = pattern.direct_tension(values, x)
        if found is not None:
            return found[0]
    # In float64, as the terms that cancel are as large as the points, not as their differences.
    wide = x.double()
    values, centred = values.double(), wide - pattern.centre(wide)
    result: Tensor = pattern.matmul(values, centred, is_symmetric=True) - pattern.sum_rows(values)[..., None] * centred
    return result.to(x.dtype)


class _Smoothness(precision.Function):
    """Smoothness ½ Σ m_ij ‖y_i − y_j‖², m symmetric: ∂Y = 2 (diag(M 1) − M) Y, one product, ∂m_ij = ½ ‖y_i − y_j‖²."""

    @staticmethod
    def forward(values: Tensor, y: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor | None]:
        values, y = values.detach(), y.detach()
        found = pattern.direct_tension(values, y)  # 0 for constant Y, where tr(Yᵀ L Y) leaves round-off
        if found is None:
            return (values * pattern.direct_lengths(y)).sum() / 2, None
        pull, energy = found
        return energy, pull

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Pattern], output: tuple[Tensor, Tensor | None]) -> None:
        (values, y, ctx.pattern), (_, pull) = inputs, output
        if pull is not None:
            ctx.mark_non_differentiable(pull)
        ctx.save_for_backward(values, y, pull)
        ctx.save_for_forward(values, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (values, y, pull), pattern = grads[0], ctx.saved_tensors, ctx.pattern
        to_values = g / 2 * pattern.squared_lengths(y) if ctx.needs_input_grad[0] else None
        to_y = None
        if ctx.needs_input_grad[1]:
            if pull is None or torch.is_grad_enabled() or checks.is_dual(g):
                pull = _pull(values, y, pattern)
            to_y = -2 * g * pull
        return to_values, to_y, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, None]:
        (values, y), pattern = ctx.saved_tensors, ctx.pattern
        result: Tensor = values.new_zeros(())
        if tangents[0] is not None:
            result = result + (tangents[0] * pattern.squared_lengths(y)).sum() / 2
        if tangents[1] is not None:
            result = result - 2 * (tangents[1] * _pull(values, y, pattern)).sum()
        return result, None


# On a pattern: (X Yᵀ)_ij ``(E,)`` for X and Y ``(total, m)``, ‖x_i − x_j‖², and ½ Σ m_ij ‖y_i − y_j‖² with pulls.
sampled_product: Callable[..., Tensor] = _SampledProduct.apply
squared_lengths: Callable[..., Tensor] = _SquaredLengths.apply
smoothness: Callable[..., tuple[Tensor, Tensor | None]] = _Smoothness.apply

# --- Entries of sparse tensors, with all derivatives ------------------------------------------------------------------
#
# Torch's own constructors and ``values()`` of sparse tensors are not differentiable twice, and do not say so.


def entries(matrix: Tensor) -> Tensor:
    """Return the values ``(E,)`` of a coalesced COO or a CSR tensor; differentiable at any order, unlike torch's."""
    if torch.is_grad_enabled() and matrix.requires_grad:
        _mend(matrix.grad_fn)
    return _Entries.apply(matrix, matrix.detach())  # type: ignore[no-any-return]


def assembled(index: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the COO tensor of values ``(E,)`` at an index ``(d, E)``, summed where it repeats; differentiable."""
    like = torch.sparse_coo_tensor(index, checks.primal(values), shape, check_invariants=False)
    return _WithEntries.apply(values, like).coalesce()  # type: ignore[no-any-return]


def _mend(node: Any) -> None:
    """Give the nodes in the history of a sparse tensor that cut second derivatives the derivatives of this module."""
    nodes, seen = [node], set()
    while nodes:
        if (node := nodes.pop()) is None or node in seen:
            continue
        seen.add(node)
        nodes.extend(before for before, _ in node.next_functions)
        is_constructor = node.name().startswith(("SparseCooTensor", "SparseCompressedTensor"))
        if (is_constructor or node.name().startswith("ValuesBackward")) and not node.metadata.get("mended"):
            with contextlib.suppress(RuntimeError):  # a graph that is freed has no derivatives
                like = (node._saved_result if is_constructor else node._saved_self).detach()
                node.register_hook(functools.partial(_with_history, like, _Entries if is_constructor else _WithEntries))
                node.metadata["mended"] = True


def _with_history(like: Tensor, kind: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> Any:
    # Gradients are the same numbers; where derivatives of them are asked for, they have a history.
    return tuple(x if x is None else kind.apply(outputs[0], like) for x in inputs) if torch.is_grad_enabled() else None


class _Entries(precision.Function):
    """Entries of a tensor, sparse or dense, at the indices of ``like``."""

    @staticmethod
    def forward(matrix: Tensor, like: Tensor) -> Tensor:
        at = index_of(like)
        if matrix.layout == torch.strided:
            return matrix[tuple(at)]
        matrix = matrix.to_sparse_coo().coalesce()
        if torch.equal(matrix.indices(), at):
            return matrix.values()
        # New tensors are not known to ascend, and are sorted: torch trusts CSR tensors to ascend in each row.
        values = matrix.values()
        parts = (matrix.indices(), values), (at, values.new_zeros(at.shape[1], *values.shape[1:]))
        own, mask = (torch.sparse_coo_tensor(*part, like.shape, check_invariants=False) for part in parts)
        return own.sparse_mask(mask)._values()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.like = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _WithEntries.apply(grads[0], ctx.like), None


class _WithEntries(precision.Function):
    @staticmethod
    def forward(values: Tensor, like: Tensor) -> Tensor:
        if like.layout == torch.sparse_csr:
            return csr(like.crow_indices(), like.col_indices(), values, like.shape)
        known = like.is_coalesced()
        return torch.sparse_coo_tensor(like._indices(), values, like.shape, is_coalesced=known, check_invariants=False)

    setup_context = _Entries.setup_context

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Entries.apply(grads[0], ctx.like), None


def index_of(like: Tensor) -> Tensor:
    """Return the index of each value of a sparse tensor, ``(d, E)``."""
    if like.layout == torch.sparse_coo:
        return like._indices()
    if like.layout != torch.sparse_csr or like.ndim != 2:
        raise TypeError(f"sparse tensors with second derivatives must be COO or CSR, got {like.layout} in the history")
    count = like.crow_indices().diff()
    return torch.stack([torch.arange(len(count)).to(count).repeat_interleave(count), like.col_indices()])


# --- Stored matrices, without gradients -------------------------------------------------------------------------------


def csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return an unchecked CSR tensor."""
    _hear_beta_notice()
    parts = crow.contiguous(), col.contiguous(), values.contiguous()
    if values.device.type != "cpu":
        parts = aligned(parts[0]), aligned(parts[1]), aligned(parts[2])
    return torch.sparse_csr_tensor(*parts, shape, check_invariants=False)


def multiply(
    matrix: Tensor, y: Tensor, other: Tensor | None = None, times: float = 1, plus: float = 1, out: Tensor | None = None
) -> Tensor:
    """Return times · M Y + plus · other of CSR or symmetric dense M, without gradients; ``out`` may be ``other``."""
    if matrix.layout != torch.sparse_csr:
        product = times * _symmetric(matrix, y)
        return product if other is None else torch.add(product, other, alpha=plus, out=out)
    if y.device.type == "cpu" and matrix.shape[1] == len(y):
        parts = (matrix.crow_indices(), matrix.col_indices(), matrix.values())
        shape = (matrix.shape[0], y.shape[1])
        fits = (other is None or other.shape == shape) and (out is None or out.shape == shape)
        if fits and native.csr_supported(*parts, *filter(torch.is_tensor, (y, other, out))):
            out = y.new_empty(shape) if out is None else out
            native.product(*parts, y, out, other, times, plus)
            return out
    y = aligned(y)
    if other is None:
        product = matrix @ y if out is None else torch.mm(matrix, y, out=out)
        return product if times == 1 else product.mul_(times)
    return torch.addmm(aligned(other) if out is None else other, matrix, y, beta=plus, alpha=times, out=out)


def with_diagonal(row: Tensor, col: Tensor, crow: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return CSR rows with the diagonal: offsets, columns, places of the old entries and of the diagonal's."""
    # Each row has one more entry, after all entries up to the diagonal; a row may have both.
    node = torch.arange(len(crow), dtype=crow.dtype, device=crow.device)
    after = (col > row).to(crow.dtype)
    entry = torch.arange(len(col), device=col.device).add_(row).add_(after)
    count = torch.nn.functional.pad(after.cumsum(0, dtype=crow.dtype), (1, 0)).index_select(0, crow)  # before each row
    crow = crow + node
    diagonal = (crow[1:] - 1 - count.diff()).long()
    columns = col.new_empty(len(col) + len(diagonal)).index_copy_(0, entry, col)
    columns.index_copy_(0, diagonal, node[:-1].to(col.dtype))
    return crow, columns, entry, diagonal


def edge_products(crow: Tensor, row: Tensor, col: Tensor, x: Tensor, y: Tensor | None) -> Tensor:
    """Return x_i · y_j on the edges ``(E,)`` of CSR order, or ‖x_i − x_j‖² without Y; no gradients."""
    other = x if y is None else y
    if x.shape[1] == other.shape[1] and native.csr_supported(crow, col, x, other):
        return native.edge_dot_or_sqdist(crow, col, x, y)
    step = rows_of_block(3 * x.shape[1] * x.element_size(), x.device, "cache")
    edges = zip(row.split(step), col.split(step), strict=True)
    ends = ((x.index_select(0, i), other.index_select(0, j)) for i, j in edges)
    return torch.cat([(a - b).square_().sum(1) if y is None else (a * b).sum(1) for a, b in ends])


def aligned(x: Tensor) -> Tensor:
    """Return ``x``, as a copy where its memory lacks the alignment for sparse products of accelerators."""
    # Kernels of cuSPARSE read 16 bytes at a time; a part of a batch or a row of odd length may begin anywhere.
    return x.clone() if x.device.type != "cpu" and x.data_ptr() % 16 else x


@functools.cache
def _hear_beta_notice() -> None:
    """Trigger and suppress torch's notice, given once a process, that its CSR storage is beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = torch.zeros(2, dtype=torch.int32)
        torch.sparse_csr_tensor(index, index[:0], torch.zeros(0), (1, 1), check_invariants=False)


# --- Sums over groups of numbers --------------------------------------------------------------------------------------


def sum_of_groups(values: Tensor, group: Tensor, total: int) -> Tensor:
    """Return Σ of the values ``(E, ...)`` of each of ``total`` groups; differentiable at any order and in any mode."""
    if group.ndim == 2:
        return values.sum(1)
    wide = values.double() if values.dtype == torch.float32 else values
    if values.device.type == "cpu":
        return wide.new_zeros(total, *values.shape[1:]).index_add(0, group, wide).to(values.dtype)
    group, parts = _divided(group, total)
    sums = wide.new_zeros(parts * total, *values.shape[1:]).index_put((group,), wide, accumulate=True)
    return (sums if parts == 1 else sums.unflatten(0, (parts, total)).sum(0)).to(values.dtype)


def gather(values: Tensor, index: Tensor) -> Tensor:
    """Return the values at ``index``; the derivative sums as `sum_of_groups` does."""
    if values.device.type == "cpu":
        return values.index_select(0, index)
    index, parts = _divided(index, len(values))
    return (values if parts == 1 else values.expand(parts, *values.shape).flatten(0, 1))[index]


def _divided(group: Tensor, total: int) -> tuple[Tensor, int]:
    """Return the part of a group for each value, and the number of parts; part p of group g is p · total + g."""
    # Parts of about 64 values: one thread takes 75 ns a value, so that the median length of 15 million edges took 4.7 s
    # without parts (H200).
    group, parts = group.long(), max(1, len(group) // (64 * max(total, 1)))
    # Neighbouring values, which often belong to one group, go to different parts.
    if parts > 1:
        group = group + total * (torch.arange(len(group), device=group.device) % parts)
    return group, parts


def offsets_of_groups(group: Tensor, total: int) -> Tensor:
    """Return the position ``(total + 1,)`` where each group begins in an ascending ``group``; last, its length."""
    groups = torch.arange(total + 1, device=group.device, dtype=group.dtype)
    return torch.searchsorted(group, groups, out_int32=group.dtype == torch.int32)


def segment_logsumexp(values: Tensor, group: Tensor, total: int) -> Tensor:
    """Return log Σ exp of the values of each of ``total`` groups; −∞ where a group is empty."""
    bare, none = values.detach(), values.new_full((total,), -torch.inf)
    top = bare.amax(1) if group.ndim == 2 else none.scatter_reduce(0, group, bare, "amax")
    shift = torch.where(top.isinf(), 0, top)
    summed = sum_of_groups((values - shift[group]).exp(), group, total)
    return torch.where(summed > 0, torch.where(summed > 0, summed, 1).log() + shift, -torch.inf)


def kth_of_groups(values: Tensor, group: Tensor, total: int, k: int | None) -> Tensor:
    """Return each group's k-th smallest value (None: lower median), its largest if it has fewer, 1 if it is empty."""
    if len(values) == 0:
        return values.new_ones(total)
    bare = checks.primal(values)
    order = bare.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    begin = offsets_of_groups(group[order], total)
    count = begin.diff()
    rank = (count + 1) // 2 if k is None else count.clamp_max(k)
    place = (begin[:-1] + rank - 1).clamp(0, len(order) - 1)
    return with_equal_parts(torch.where(count > 0, bare[order[place]], 1.0), values, group)


def with_equal_parts(
    chosen: Tensor, values: Tensor, group: Tensor, add: Callable[[Tensor], Tensor] = lambda part: part
) -> Tensor:
    """Return each group's ``chosen`` value ``(total,)``; its gradient is shared equally by all values equal to it."""
    # A gradient to one of the equal values would be a subgradient, too, but depend on the order of the nodes.
    equal = checks.primal(values) == chosen.index_select(0, group)
    if values.device.type == "cpu":  # elsewhere the host would have to synchronise
        values, group, equal = values[equal], group[equal], equal[equal]
    copies = add(sum_of_groups(equal.to(chosen.dtype), group, len(chosen))).clamp_min(1)
    change = torch.where(equal, values - checks.primal(values), 0)
    change = add(sum_of_groups(change, group, len(chosen))) / copies
    return chosen + torch.where(chosen.isfinite(), change, 0)  # the value of the change is 0; its derivatives are not


def both_ways(row: Tensor, col: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, columns and directions (1 or 2) of edges and their reverses, ascending by row, then column."""
    if row.device.type != "cpu":
        keys = torch.cat([row * total + col, col * total + row]).sort().values
        keys, directions = keys.unique_consecutive(return_counts=True)
        return keys // total, keys % total, directions
    # SciPy counts entries into rows: a sort takes four times as long, NumPy's on AMD's Zen 4 ten times.
    ones = np.ones(len(row), dtype=np.int8)
    directed = scipy.sparse.coo_array((ones, (row.numpy(), col.numpy())), shape=(total, total)).tocsr()
    both = directed + directed.T.tocsr()
    rows = np.repeat(np.arange(total, dtype=both.indices.dtype), np.diff(both.indptr))
    return torch.from_numpy(rows), torch.from_numpy(both.indices), torch.from_numpy(both.data)


# --- Connected components and shortest paths --------------------------------------------------------------------------


def label_components(row: Tensor, col: Tensor, total: int, crow: Tensor | None = None) -> Tensor:
    """Return labels int64 ``(total,)`` of the connected components of sorted edges, ascending by their first nodes."""
    if row.device.type != "cpu":
        roots = propagate_labels(row.long(), col.long(), total)
        return ((roots == torch.arange(total, device=row.device)).cumsum(0) - 1)[roots]
    # Imported here, as it loads all of SciPy's linear algebra.
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    crow = offsets_of_groups(row, total) if crow is None else crow
    structure = scipy.sparse.csr_array((np.ones(len(col)), col.numpy(), crow.numpy()), shape=(total, total))
    # Most graphs are connected, which a search from one node shows in a quarter of the time.
    if total and len(breadth_first_order(structure, 0, return_predecessors=False)) == total:
        return torch.zeros(total, dtype=torch.int64)
    return torch.from_numpy(connected_components(structure, directed=False)[1].astype(np.int64))


def propagate_labels(row: Tensor, col: Tensor, total: int) -> Tensor:
    """Return the smallest node number of each connected component, by propagation and pointer jumping on the device."""
    labels = torch.arange(total, device=row.device)
    while True:
        reached = labels
        for _ in range(steps_between_checks(row.device)):
            labels = reached
            lowest = labels.scatter_reduce(0, row, labels[col], "amin")
            lowest = lowest.scatter_reduce(0, labels, lowest, "amin")  # update the node that labels the component, too
            reached = lowest[lowest]
        if torch.equal(reached, labels):
            return labels
        labels = reached


def geodesic_distances(pattern: Any, lengths: Tensor, sources: Tensor) -> Tensor:
    """Return lengths ``(S, N)`` of the shortest paths from nodes of one sparse graph to all, infinite for none."""
    # Differentiable in the lengths, with the paths fixed: a distance is the sum of the lengths on its path. Where
    # several are equally short, the gradient is one of the subgradients. Gradients need S·N integers of memory for each
    # doubling of the number of edges on the longest path.
    from scipy.sparse.csgraph import dijkstra  # slow to import, as above

    n = pattern.shape[-1]
    data = checks.primal(lengths).cpu().double().numpy()
    structure = scipy.sparse.csr_array((data, pattern.col.cpu().numpy(), pattern.crow.cpu().numpy()), shape=(n, n))
    graded = checks.needs_derivatives(lengths)
    found = dijkstra(structure, indices=sources.cpu().numpy(), return_predecessors=graded)
    distances = torch.from_numpy(found[0] if graded else found).to(lengths)
    if not graded:
        return distances
    before = torch.from_numpy(found[1]).to(lengths.device)
    # An entry needs about four integers: its parent in each step.
    blocks = before.split(rows_of_block(32 * n, lengths.device))
    followed = torch.cat([_along_paths(pattern, lengths, block) for block in blocks])
    return torch.where(distances.isinf(), torch.inf, followed)


def _along_paths(pattern: Any, lengths: Tensor, before: Tensor) -> Tensor:
    """Return distances ``(S, N)`` as sums along trees of the nodes ``before`` each, negative where there is none."""
    s, n = before.shape
    place = torch.arange(s * n, device=before.device)
    parent = torch.where(before >= 0, before + n * torch.arange(s, device=before.device)[:, None], -1).flatten()
    child = (parent >= 0).nonzero().flatten()
    parent = torch.where(parent >= 0, parent, place)
    edge = torch.searchsorted(pattern.keys(), parent[child] % n * n + child % n)
    far = lengths.new_zeros(s * n).index_copy(0, child, gather(lengths, edge))
    # Pointer jumping: each step doubles the edges summed.
    while not torch.equal(further := parent.index_select(0, parent), parent):
        far, parent = far + gather(far, parent), further
    return far.reshape(s, n)
