"""Weighted graphs as arrays, and what the library makes of them: the campaign's inputs, which a file can hold."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lapeig import Graph

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SMALLEST = 1e-30  # weights below this do not survive float32 normalisation


@dataclass(frozen=True, eq=False)
class Edges:
    """One undirected graph: ``pairs`` int64 ``(E, 2)``, each edge once with i ≤ j, and ``weight`` ``(E,)`` float64."""

    nodes: int
    pairs: Ints
    weight: Floats

    def pack(self) -> dict[str, Any]:
        """Return plain values and tensors, which `torch.save` writes and reads back without running code."""
        pairs, weight = (torch.from_numpy(part.copy()) for part in (self.pairs, self.weight))
        return {"nodes": self.nodes, "pairs": pairs, "weight": weight}

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> "Edges":
        return cls(packed["nodes"], packed["pairs"].numpy(), packed["weight"].numpy())

    @property
    def narrow(self) -> bool:
        """Return whether the weights are exact in float32 and far from its limits."""
        same = bool((self.weight.astype(np.float32) == self.weight).all())
        return same and (len(self.weight) == 0 or float(self.weight.min()) >= SMALLEST)

    def narrowed(self) -> "Edges":
        """Return the graph with its weights rounded to float32, without the edges that are too light for it."""
        weight = np.clip(self.weight, 0, 1e30).astype(np.float32).astype(np.float64)
        keep = weight >= SMALLEST
        return Edges(self.nodes, self.pairs[keep], weight[keep])

    def dense(self) -> Floats:
        matrix = np.zeros((self.nodes, self.nodes))
        i, j = self.pairs.T
        matrix[i, j] = matrix[j, i] = self.weight
        return matrix

    def both_directions(self) -> tuple[Tensor, Tensor]:
        """Return ``edge_index`` ``(2, 2E − loops)`` and the number of the edge of each of its columns."""
        i, j = torch.from_numpy(self.pairs.T.copy())
        edge = torch.arange(len(i))
        proper = i != j
        index = torch.cat([torch.stack([i, j]), torch.stack([j, i])[:, proper]], 1)
        return index, torch.cat([edge, edge[proper]])


def simple(nodes: int, pairs: object, weight: object = 1.0) -> Edges:
    """Return a graph of any list of pairs, without loops and without further copies of an edge."""
    array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    weights = np.broadcast_to(np.asarray(weight, dtype=np.float64), (len(array),))
    array = np.sort(array, axis=1)
    proper = array[:, 0] != array[:, 1]
    array, weights = array[proper], weights[proper]
    _, first = np.unique(array[:, 0] * nodes + array[:, 1], return_index=True)
    return Edges(nodes, array[first], weights[first].copy())


def of_dense(matrix: NDArray[np.float64]) -> Edges:
    """Return the graph of the upper triangle of an affinity matrix."""
    i, j = np.nonzero(np.triu(matrix, 1))
    return Edges(len(matrix), np.stack([i, j], 1).astype(np.int64), matrix[i, j].astype(np.float64))


def union(parts: list[Edges]) -> Edges:
    start = np.cumsum([0] + [part.nodes for part in parts])
    pairs = np.concatenate([part.pairs + begin for part, begin in zip(parts, start[:-1], strict=True)])
    return Edges(int(start[-1]), pairs, np.concatenate([part.weight for part in parts]))


def product(a: Edges, b: Edges) -> Edges:
    """Return the Cartesian product: eigenvalues of its unnormalised Laplacian are all sums of two."""
    node = np.arange(a.nodes * b.nodes).reshape(a.nodes, b.nodes)
    of_a = np.stack([node[a.pairs[:, 0]], node[a.pairs[:, 1]]], -1).reshape(-1, 2)
    of_b = np.stack([node[:, b.pairs[:, 0]], node[:, b.pairs[:, 1]]], -1).reshape(-1, 2)
    weight = np.concatenate([np.repeat(a.weight, b.nodes), np.tile(b.weight, a.nodes)])
    return simple(len(node.ravel()), np.concatenate([of_a, of_b]), weight)


def shuffled(edges: Edges, rng: np.random.Generator) -> Edges:
    """Return the same graph with its nodes in random order."""
    pairs = np.sort(rng.permutation(edges.nodes)[edges.pairs], axis=1)
    return replace(edges, pairs=pairs)


def graph_of(parts: list[Edges], dtype: torch.dtype, *, dense: bool, weights: list[Tensor] | None = None) -> Graph:
    """Return the library's graph of one graph, or the batch of several, stored densely or sparsely."""
    # weights stand for those of the parts where gradients shall flow to them.
    if weights is None:
        weights = [torch.from_numpy(part.weight).to(dtype) for part in parts]
    single = len(parts) == 1
    directed = [part.both_directions() for part in parts]
    of_edge = torch.cat([w[edge] for w, (_, edge) in zip(weights, directed, strict=True)])
    if dense:
        most = max(part.nodes for part in parts)
        shape = (len(parts), most, most)
        places = torch.cat([index + most * b for b, (index, _) in enumerate(directed)], 1)
        flat = of_edge.new_zeros(len(parts) * most * most).index_add(0, places[0] * most + places[1] % most, of_edge)
        affinity = flat.reshape(shape)
        mask = torch.stack([torch.arange(most) < part.nodes for part in parts])
        return Graph.from_dense(affinity[0]) if single else Graph.from_dense(affinity, mask)
    start = np.cumsum([0] + [part.nodes for part in parts])
    index = torch.cat([index + int(begin) for (index, _), begin in zip(directed, start[:-1], strict=True)], 1)
    batch = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([part.nodes for part in parts]))
    return Graph.from_edge_index(index, of_edge, int(start[-1]), None if single else batch)
