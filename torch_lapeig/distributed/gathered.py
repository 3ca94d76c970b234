"""Eigenpairs of a sharded graph that the first rank solves as a whole, with gradients to the weights on every rank.

One rank solves a graph that fits its memory in less time than all ranks together. Weights go to the first rank in one
exchange and rows of eigenvectors come back in another. Both exchanges are differentiable: the backward pass is the
backward of one process between two exchanges.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.distributed.ranks import Ranks
from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.eigen.solve import Eigenpairs, Solve, eigenpairs
from torch_lapeig.eigen.solvers.lobpcg import Lobpcg
from torch_lapeig.graph.graph import Graph
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.support.cached import make_usable

GATHERED_ROWS = 1_000_000  # maximum nodes of a graph for which the first rank has room


@dataclass(frozen=True, eq=False)
class GatheredGraph:
    """Sharded graph gathered on the first rank, with nodes in the order of their numbers; empty on other ranks."""

    ranks: Ranks
    nodes_of: list[int]  # of each rank
    edges_of: list[int]
    pattern: SparsePattern | None
    edge: Tensor  # int64, the position among gathered edges of each edge of the pattern
    node: Tensor  # int64, the position among gathered nodes of each node
    place: Tensor  # inverse permutation of node

    def __post_init__(self) -> None:
        make_usable(self)

    @classmethod
    def of(cls, pattern: Any) -> GatheredGraph:
        """Gather the edges of a `ShardedPattern`."""
        ranks, total, numbers = pattern.ranks, pattern.offsets[-1], pattern.halo.with_halo(pattern.numbers)
        keys = numbers[pattern.row.long()] * total + numbers[pattern.col.long()]
        edges_of, nodes_of = ranks.sizes(len(keys)), [end - start for start, end in pairwise(pattern.offsets)]
        keys, edge = ranks.to_first(keys, edges_of).sort()
        place = ranks.to_first(pattern.numbers, nodes_of)
        whole = SparsePattern.trusted(keys // total, keys % total, (total,)) if ranks.rank == 0 else None
        return cls(ranks, nodes_of, edges_of, whole, edge, place.argsort(), place)

    def gathered(self, graph: Graph) -> Tensor:
        """Return weights and node values of all ranks on the first rank; differentiable."""
        wide = graph.exact if graph.wide is None else graph.wide
        flat = torch.cat([wide, *(part.double() for part in (graph.exponent, graph.similarity) if part is not None)])
        return self.ranks.to_first(flat, [sum(sizes) for sizes in self._sizes(graph)])

    def graph(self, gathered: Tensor, like: Graph) -> Graph:
        """Return the whole graph from the gathered tensors, on the first rank."""
        assert self.pattern is not None
        sizes = self._sizes(like)
        pieces, count = gathered.split([size for of_rank in sizes for size in of_rank]), len(sizes[0])
        parts = [torch.cat(pieces[first::count]) for first in range(count)]
        dtype, wide = like.weight.dtype, parts[0][self.edge]
        similarity = None if like.similarity is None else parts[-1][self.node].to(dtype)
        exponent = None if like.exponent is None else parts[1][self.edge]
        return Graph.trusted(self.pattern, wide, similarity=similarity)._weighted(dtype, wide, exponent)

    def _sizes(self, graph: Graph) -> list[list[int]]:
        """Return for each rank the sizes of its tensors: weights, then exponents and similarity if there are any."""
        per_edge, per_node = 1 if graph.exponent is None else 2, 0 if graph.similarity is None else 1
        return [[e] * per_edge + [n] * per_node for e, n in zip(self.edges_of, self.nodes_of, strict=True)]

    def shared_out(self, pairs: Eigenpairs | None, given: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return own rows ``(n, k)`` of the first rank's vectors, Λ ``(k, k)`` and values ``(k,)``; differentiable."""
        if pairs is None:
            rows = given.square().reshape(0, k)  # connects derivatives of any order to all ranks
        else:
            every, with_all = pairs.vectors.index_select(0, self.place), [pairs.projected, pairs.values[None]]
            rows = torch.cat([part for own in every.split(self.nodes_of) for part in (own, *with_all)])
        sizes = [size + k + 1 for size in self.nodes_of]
        recv = [sizes[self.ranks.rank], *[0] * (self.ranks.world - 1)]
        own = self.ranks.moved(rows, sizes if self.ranks.rank == 0 else [0] * self.ranks.world, recv)
        vectors, projected, values = own.split([self.nodes_of[self.ranks.rank], k, 1])
        return vectors, projected, values[0]


def eigenpairs_on_ranks(pattern: Any, laplacian: Laplacian, k: int, solve: Solve, fill: bool) -> Eigenpairs:
    """Solve a sharded Laplacian by the default solver: on the first rank, or on all if it is large."""
    if pattern.offsets[-1] > GATHERED_ROWS:
        return eigenpairs(laplacian, k, dataclasses.replace(solve, solver=Lobpcg()), fill=fill)
    whole: GatheredGraph = pattern.gathered
    given = whole.gathered(laplacian.graph)
    found: Eigenpairs | None = None

    def solved() -> dict[str, Any]:
        nonlocal found
        graph = whole.graph(given, laplacian.graph)
        found = eigenpairs(Laplacian(graph, laplacian.normalization), k, solve, fill=fill)
        # All ranks have the user's solver, which may be impossible to send.
        names = ("residuals", "gap", "converged", "resolved", "iterations", "inner_product")
        facts = {name: getattr(found, name) for name in names}
        return facts if found.solver is solve.solver else {**facts, "solver": found.solver}

    facts = {"solver": solve.solver, **whole.ranks.of_first(solved)}
    vectors, projected, values = whole.shared_out(found, given.to(facts["residuals"].dtype), k)
    return Eigenpairs(values=values, vectors=vectors, projected=projected, is_sharded=True, **facts)
