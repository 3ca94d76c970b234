"""Laplacian positional encodings: eigenvectors of many small graphs as features of their nodes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen import Auto, Eigenpairs, Solve, Solver, eigenpairs
from torch_lapeig.eigen.choose import solves_all_pairs
from torch_lapeig.eigen.dense_sets import normalized_graphs, small_eigenpairs
from torch_lapeig.eigen.laplacian import NORMALIZATIONS, Laplacian, Normalization, warn_of_isolated
from torch_lapeig.graph.graph import Graph, check_batch, check_edge_index
from torch_lapeig.graph.pattern import DensePattern, signs
from torch_lapeig.methods.module import check_solve, with_random_signs
from torch_lapeig.support import checks, precision
from torch_lapeig.support.threads import slices, together
from torch_lapeig.support.tuning import PART_OF_EIGH

# Graphs are padded to the largest graph they are solved with. Up to this work, in graphs · nodes³, all are solved
# together; beyond, only with graphs of up to SPREAD times their size, and in parts.
TOGETHER, TOGETHER_ON_ACCELERATORS, SPREAD = 4e6, 5e8, 1.25


class NodeEncoding(NamedTuple):
    """Eigenvectors at the nodes of B graphs, and their eigenvalues.

    Columns that a graph of fewer than k + 1 nodes of positive degree lacks are zero, and their eigenvalues +∞.

    Attributes:
        vectors: ``(M, k)``, of the dtype of the weights, with gradients to the weights.
        values: ``(B, k)``, likewise.

    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> vectors, values = laplacian_positional_encoding(path, 3, 2)
    >>> vectors.shape, values.shape
    (torch.Size([3, 2]), torch.Size([1, 2]))
    """

    vectors: Tensor
    values: Tensor


def laplacian_positional_encoding(
    edge_index: Tensor,
    nodes: int | Tensor,
    k: int,
    edge_weight: Tensor | None = None,
    *,
    normalization: Normalization = "symmetric",
    random_signs: bool = False,
    generator: torch.Generator | None = None,
    solve: Solve | Solver | None = None,
) -> NodeEncoding:
    """Compute the k eigenvectors after the first of the Laplacian of each graph (Dwivedi et al. 2020, section 4.1).

    Args:
        edge_index: int64 ``(2, E)``, both directions of every edge; copies are summed, self loops are left out.
        nodes: the number of nodes M of one graph, or for many graphs the graph of each node, int64 ``(M,)``, ascending.
        k: number of columns, at least 1.
        edge_weight: ``(E,)``, non-negative, floating; default 1 in float32. Gradients flow to it.
        normalization: ``"symmetric"`` for orthonormal eigenvectors of I − D^-½ W D^-½, as in the paper;
            ``"random_walk"`` for L y = λ D y; ``"unnormalized"`` for D − W.
        random_signs: multiply each column of each graph by a random sign, as the paper does in training. Otherwise the
            largest entry is positive.
        generator: generator of the random signs; default: torch's own.
        solve: options of the eigensolves, a `Solve`, or just a solver.

    Isolated nodes have zero rows. A graph of c components has c − 1 columns of eigenvalue 0 that separate them.

    >>> square = torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])
    >>> laplacian_positional_encoding(square, 4, 3).values
    tensor([[1., 1., 2.]])
    """
    k = checks.check_width(k, "k")
    checks.check_flag(random_signs, "random_signs")
    checks.check_generator(generator)
    (vectors, values), batch = columns_of_nodes(edge_index, nodes, k, edge_weight, normalization, solve)
    if random_signs:
        vectors = vectors * with_random_signs(vectors.new_ones(len(values), 1, k), generator)[batch, 0]
    return NodeEncoding(vectors, values)


@precision.full_precision
def columns_of_nodes(
    edge_index: Tensor,
    nodes: int | Tensor,
    k: int,
    edge_weight: Tensor | None,
    normalization: Normalization,
    solve: Solve | Solver | None,
    columns: Callable[[Eigenpairs], Tensor] = lambda pairs: pairs.vectors[..., 1:],
    width: int | None = None,  # of other columns of all k + 1 pairs than the vectors after the first
) -> tuple[NodeEncoding, Tensor]:
    """Return an encoding, and the graph of each node; see `laplacian_positional_encoding`."""
    check_edge_index(edge_index)
    checks.check_choice(normalization, "normalization", NORMALIZATIONS)
    check_solve(solve)
    batch, sizes = batch_of(nodes, edge_index)
    weight = torch.ones(edge_index.shape[1], device=edge_index.device) if edge_weight is None else edge_weight
    checks.check_tensor(weight, "edge_weight")
    options = Solve.of(solve)
    is_one = width is None and len(sizes) == 1 and type(options.solver) is Auto
    if is_one and (found := _plain_encoding(edge_index, len(batch), k, weight, normalization)) is not None:
        return found, batch
    loss, weight = weight.dtype, checks.half_to_float32(weight)
    checks.check_floating(weight, "edge_weight")
    if weight.shape != edge_index.shape[1:]:
        expected = tuple(edge_index.shape[1:])
        raise ValueError(f"edge_weight must have shape {expected} to go with edge_index, got {tuple(weight.shape)}")
    if (loops := edge_index[0] == edge_index[1]).any():
        edge_index, weight = edge_index[:, ~loops], weight[~loops]
    # Solve in float64: among many graphs, float32 does not resolve at least one, and all would be solved twice.
    weight = weight.double()
    largest = weight.new_zeros(len(batch)).scatter_reduce(0, edge_index[0], weight.detach(), "amax")
    is_active = largest > torch.finfo(weight.dtype).tiny
    vectors, values = weight.new_zeros(len(batch), width or k), weight.new_full((len(sizes), k), torch.inf)
    options = dataclasses.replace(options, loss_dtype=options.loss_dtype or loss)

    def encode(graphs: Tensor) -> tuple[Tensor, Tensor, NodeEncoding]:
        """Solve graphs together; return the graphs and their nodes, int64, and their encoding."""
        chosen, edges, inside, at = part_of_batch(graphs, edge_index, batch)
        dense, pairs = _dense_graph(edges, at, sizes[graphs], weight[inside]), None
        graph = Graph.from_edge_index(edges, weight[inside], batch=at) if dense is None else dense
        assert graph.mask is not None
        active = graph.mask.masked_scatter(graph.mask, is_active[chosen])
        if dense is not None and type(options.solver) is Auto and k + 1 < dense.num_nodes:
            plain = normalized_graphs(dense.weight, active, normalization)
            pairs = small_eigenpairs(plain, k + 1, torch.float64, options)
        if pairs is None:
            pairs = eigenpairs(Laplacian(graph._with(mask=active), normalization), k + 1, options, fill=True)
        return graphs, chosen, NodeEncoding(columns(pairs)[graph.mask], pairs.values[:, 1:])

    tasks = [functools.partial(encode, graphs) for graphs in of_similar_size(sizes)]
    is_large = batch.device.type == "cpu" and len(batch) * int(sizes.amax() if len(sizes) else 0) >= PART_OF_EIGH
    for graphs, chosen, found in together(tasks) if is_large else (task() for task in tasks):
        vectors = vectors.index_copy(0, chosen, found.vectors)
        values = values.index_copy(0, graphs, found.values)
    warn_of_isolated(is_active, None)  # once for all graphs: they were left out of the solves
    return NodeEncoding(vectors.to(loss), values.to(loss)), batch


def batch_of(nodes: int | Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the graph of each node, and the number of nodes of each graph, checked to go with the edges."""
    if isinstance(nodes, (int, float, str, np.generic)):
        nodes = checks.check_count(nodes, "nodes", 0)
        batch = torch.zeros(nodes, dtype=torch.int64, device=edge_index.device)
        sizes = batch.new_tensor([nodes])
    else:
        check_batch(nodes, nodes.numel() if isinstance(nodes, Tensor) else 0, "nodes")
        batch, sizes = nodes, nodes.bincount()
    check_edge_index(edge_index, len(batch))
    return batch, sizes


def _plain_encoding(
    edge_index: Tensor, nodes: int, k: int, weight: Tensor, normalization: Normalization
) -> NodeEncoding | None:
    """Return the encoding of one graph of few nodes, by NumPy; None where it is not plain or needs derivatives."""
    # A call of NumPy takes a fifth of the time of a call of torch, and calls are most of the time here.
    is_host = weight.device.type == "cpu" and edge_index.device.type == "cpu"
    is_number = weight.dtype in checks.FLOATS and weight.shape == edge_index.shape[1:]
    is_free = not (checks.needs_derivatives(weight) or checks.is_watched())
    if not (is_host and is_number and is_free and k + 1 < nodes and solves_all_pairs(1, nodes, weight.device)):
        return None
    row, col = edge_index.numpy()
    affinity = np.zeros((nodes, nodes))
    affinity[row, col] = weight.detach().numpy()
    degrees = affinity.sum(1)
    least, most = degrees.min(), degrees.max()
    is_simple = np.count_nonzero(affinity > 0) == len(row) and not affinity.diagonal().any()  # neither copies nor loops
    if not (is_simple and most < 1e8 and least > max(1e-8, 1e-4 * most) and (affinity == affinity.T).all()):
        return None
    one = normalization == "unnormalized"
    root = np.sqrt(degrees)
    null = np.full(nodes, nodes**-0.5) if one else root / np.linalg.norm(root)
    matrix = np.diag(degrees) - affinity if one else np.eye(nodes) - affinity / np.outer(root, root)
    bound = 2 * most if one else 2.0
    # Beyond the spectrum, the null vector mixes with no vector of a small eigenvalue.
    values, vectors = np.linalg.eigh(matrix + 2 * bound * np.outer(null, null))
    values, vectors = values[:k], vectors[:, :k]
    if values[0] <= 1e-9 * bound:  # not connected
        return None
    found = torch.from_numpy(vectors / root[:, None] if normalization == "random_walk" else vectors)
    return NodeEncoding((found * signs(found)).to(weight.dtype), torch.from_numpy(values)[None].to(weight.dtype))


def _dense_graph(edge_index: Tensor, batch: Tensor, sizes: Tensor, weight: Tensor) -> Graph | None:
    """Return the graphs as matrices, the fastest form to build and to solve when all pairs are wanted."""
    # None if the graphs are too large, or may be invalid: `Graph.from_edge_index` then raises the error.
    count, widest = len(sizes), int(sizes.amax())
    if not solves_all_pairs(count, widest, weight.device):
        return None
    row, col = edge_index
    within = torch.arange(len(batch), device=batch.device) - (sizes.cumsum(0) - sizes)[batch]
    place, graph = within.index_select(0, col), batch.index_select(0, row)
    line = (graph * widest).add_(within.index_select(0, row))
    affinity = weight.new_zeros(count * widest * widest).index_copy(0, line * widest + place, weight)
    affinity = affinity.reshape(count, widest, widest)
    bare = affinity.detach()
    is_sound = (
        torch.equal(graph, batch.index_select(0, col))
        and int((bare > 0).sum()) == len(weight)  # no copies
        and torch.equal(bare, bare.mT)
        and bool(bare.sum() < torch.inf)
    )
    mask = torch.arange(widest, device=batch.device) < sizes[:, None]
    return Graph.trusted(DensePattern((count, widest)), affinity, mask) if is_sound else None


def part_of_batch(graphs: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the nodes, edges by place among these nodes, numbers of edges, and nodes' graphs of some graphs."""
    number = torch.full((int(batch[-1]) + 1,), -1, device=batch.device)
    at_node = number.index_copy_(0, graphs, torch.arange(len(graphs), device=graphs.device))[batch]
    chosen = (at_node >= 0).nonzero().flatten()
    place = torch.full_like(batch, -1).index_copy_(0, chosen, torch.arange(len(chosen), device=chosen.device))
    inside = (at_node[edge_index[0]] >= 0).nonzero().flatten()
    return chosen, place[edge_index[:, inside]], inside, at_node[chosen]


def of_similar_size(sizes: Tensor) -> Iterator[Tensor]:
    """Yield the numbers of graphs to solve together, int64, ascending; the largest graphs first, without empty ones."""
    graphs = sizes.nonzero().flatten()
    kind = torch.zeros_like(graphs)
    most = TOGETHER if sizes.device.type == "cpu" else TOGETHER_ON_ACCELERATORS
    if len(graphs) and len(graphs) * int(sizes.max()) ** 3 > most:
        kind = (sizes[graphs].double().log() / math.log(SPREAD)).long()
    for one in kind.unique().flip(0):
        group = graphs[kind == one]
        for part in slices(len(group), most / int(sizes[group].amax()) ** 3):
            yield group[part]
