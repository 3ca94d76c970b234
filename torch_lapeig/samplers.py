"""Mini-batches from a graph of all points: edges, and neighbourhoods.

A graph built from a random batch joins points that are not neighbours, and lowers the accuracy of a classifier. Each
sampler is the ``batch_sampler`` of a `torch.utils.data.DataLoader`: usually take `NeighborhoodSampler`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, distributed
from torch.utils.data import Sampler

from torch_lapeig.graph.graph import Graph, check_graph
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.support import checks

__all__ = ["EdgeSampler", "NeighborhoodSampler"]


class _GraphSampler(Sampler[list[int]]):
    """Batches of node numbers of one graph, determined by seed and epoch; each process has its own batches."""

    def __init__(self, graph: Graph, batch_size: int, seed: int, num_replicas: int | None, rank: int | None) -> None:
        check_graph(graph, "graph", type(self))
        self.batch_size = checks.check_count(batch_size, "batch_size", 2)
        self.seed = checks.check_seed(seed)
        self.epoch, self._set = 0, -1  # the next epoch, and what `set_epoch` set since an iteration began
        num_replicas = None if num_replicas is None else checks.check_count(num_replicas, "num_replicas")
        if (rank is None) != (num_replicas is None):
            raise ValueError(f"rank and num_replicas must be given together, got {rank} and {num_replicas}")
        if rank is not None and checks.check_count(rank, "rank", 0) >= (num_replicas or 1):
            raise ValueError(f"rank must be below num_replicas={num_replicas}, got {rank}")
        self._given = None if rank is None or num_replicas is None else (num_replicas, rank)
        sparse: Any = graph.to("cpu").to_sparse()
        self._pattern, self._weight = sparse.pattern, sparse.mean_affinity.detach()
        self._edges = ((self._weight > 0) & (self._pattern.row != self._pattern.col)).nonzero().flatten()

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, from 0 on, on every process."""
        self.epoch = self._set = checks.check_count(epoch, "epoch", 0)

    @property
    def sampler(self) -> _GraphSampler:
        """Return the sampler itself, on which Lightning calls `set_epoch`."""
        return self

    @property
    def num_replicas(self) -> int:
        """Return the number of processes that share an epoch: those of `torch.distributed`, or as given."""
        return self._place[0]

    @property
    def rank(self) -> int:
        """Return the number of this process among them."""
        return self._place[1]

    @property
    def _place(self) -> tuple[int, int]:
        # Read at each call: samplers are made before `torch.distributed` is initialised.
        if self._given is not None:
            return self._given
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_world_size(), distributed.get_rank()
        return 1, 0

    def __iter__(self) -> Iterator[list[int]]:
        # As this is a generator, the epoch is read at the first batch: Lightning sets it after `iter(loader)`.
        epoch, self.epoch, self._set = self.epoch, self.epoch + 1, -1
        for batch in self._batches(torch.Generator().manual_seed((self.seed << 31) + epoch)):
            yield batch
            if self._set not in (-1, epoch):
                finding = f"batches were drawn as those of epoch {epoch} before set_epoch({self._set}), as workers do"
                checks.warn(f"{finding}; call it before the training is resumed", UserWarning)
                self._set = -1

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of an epoch of this process."""

    @abstractmethod
    def _batches(self, generator: torch.Generator) -> Iterator[list[int]]:
        """Return the batches of an epoch; the generator is identical on every process."""


class NeighborhoodSampler(_GraphSampler):
    """Batches of random nodes with neighbours of each in a graph of all points.

    Every node is the centre of one neighbourhood in an epoch, and may also occur in neighbourhoods of other nodes. The
    graph of a batch is ``graph.subgraph(nodes)``, so the data set must return the number of each point::

        data = TensorDataset(x, target, torch.arange(len(x)))
        for x, target, nodes in DataLoader(data, batch_sampler=NeighborhoodSampler(graph)):
            y, part = network(x), graph.subgraph(nodes)
            loss = cross_entropy(y, target) + 0.3 * laplacian_smoothness(y, part)

    Several processes have equal shares of the centres. Lightning must not replace this sampler by its own:
    ``Trainer(use_distributed_sampler=False)``.

    Args:
        graph: one graph of all points, such as the result of `knn_graph`. Padding of its mask is left out.
        batch_size: maximum number of nodes of a batch, above ``neighbors``.
        neighbors: number of neighbours of each centre, chosen at random if it has more.
        seed: seed of the order of centres and the choice of neighbours.
        num_replicas, rank: number of processes, and number of this process; default: those of `torch.distributed` if it
            is initialised, else 1 and 0.

    >>> from torch_lapeig import knn_graph
    >>> graph = knn_graph(torch.rand(100, 2, generator=torch.Generator().manual_seed(0)), 5)
    >>> batches = list(NeighborhoodSampler(graph, 24, neighbors=5))
    >>> len(batches), max(map(len, batches)) <= 24, len(set().union(*batches))
    (25, True, 100)
    """

    def __init__(
        self,
        graph: Graph,
        batch_size: int = 256,
        *,
        neighbors: int = 10,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(graph, batch_size, seed, num_replicas, rank)
        self.neighbors = checks.check_count(neighbors, "neighbors")
        if self.batch_size <= self.neighbors:
            least = f"above neighbors={neighbors} to hold them and a node"
            raise ValueError(f"batch_size must be {least}, got {batch_size}")
        self._nodes = torch.arange(graph.num_nodes)[... if graph.mask is None else graph.mask.cpu()]
        if len(self._nodes) == 0:
            raise ValueError("graph must have at least one node, got none")

    @property
    def centres(self) -> int:
        """Return the number of centres of a batch."""
        return self.batch_size // (1 + self.neighbors)

    def __len__(self) -> int:
        return -(-self._share // self.centres)

    @property
    def _share(self) -> int:
        return -(-len(self._nodes) // self.num_replicas)

    def _batches(self, generator: torch.Generator) -> Iterator[list[int]]:
        replicas, rank = self._place
        order = self._nodes[torch.randperm(len(self._nodes), generator=generator)]
        order = order.repeat(-(-self._share * replicas // len(order)))[: self._share * replicas][rank::replicas]
        # A random number for each edge: the smallest of a node are its neighbours in this epoch.
        key = torch.rand(len(self._pattern), generator=generator)
        proper = torch.zeros(len(self._pattern), dtype=torch.bool).index_fill_(0, self._edges, True)
        for centres in order.split(self.centres):
            position, edge = self._pattern.edges_of(centres)
            position, edge = position[proper[edge]], edge[proper[edge]]
            by_key = key[edge].argsort()
            by_key = by_key[position[by_key].argsort(stable=True)]
            position, edge = position[by_key], edge[by_key]
            first = torch.searchsorted(position, position)
            near = edge[torch.arange(len(edge)) - first < self.neighbors]
            yield torch.cat([centres, self._pattern.col[near].long()]).unique().tolist()


class EdgeSampler(_GraphSampler):
    """Batches of edges of a graph of all points, drawn in proportion to their weight.

    A batch holds the two ends of each edge in turn, i₁, j₁, i₂, j₂, …, so a node occurs as often as it is drawn.
    ``EdgeSampler.pairs(y)`` is the graph of the rows of a batch::

        for x, *_ in DataLoader(dataset, batch_sampler=EdgeSampler(graph, 512)):
            y = network(x)
            loss = laplacian_smoothness(y, EdgeSampler.pairs(y))

    This loss is an unbiased estimate of ``laplacian_smoothness(y, graph, "weighted_mean")`` of all points, for every
    batch size. An epoch draws as many edges as the graph has; several processes have equal shares.

    Args:
        graph: one weighted graph of all points.
        batch_size: number of nodes of a batch, even: two for each edge.
        seed, num_replicas, rank: as for `NeighborhoodSampler`.

    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> [sorted(batch) in ([0, 1], [1, 2]) for batch in EdgeSampler(path, 2)]
    [True, True]
    """

    def __init__(
        self,
        graph: Graph,
        batch_size: int = 512,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(graph, batch_size, seed, num_replicas, rank)
        if self.batch_size % 2:
            raise ValueError(f"batch_size must be even, two nodes for each edge, got {batch_size}")
        pattern = self._pattern
        self._edges = self._edges[pattern.row[self._edges] < pattern.col[self._edges]]
        if len(self._edges) == 0:
            raise ValueError("graph must have an edge of positive weight between two nodes, got none")
        self._share = self._weight[self._edges].double().cumsum(0)

    @staticmethod
    def pairs(rows: Tensor) -> Graph:
        """Return the graph of a batch of rows ``(2m, k)``: m edges of weight 1, each between two successive rows."""
        checks.check_tensor(rows, "rows")
        if rows.ndim == 0 or len(rows) == 0 or len(rows) % 2:
            raise ValueError(f"rows must be even in number, two for each edge, got shape {tuple(rows.shape)}")
        row = torch.arange(len(rows), device=rows.device)
        dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
        weight = torch.ones(len(rows), dtype=dtype, device=rows.device)
        return Graph.trusted(SparsePattern.trusted(row, row ^ 1, (len(rows),)), weight)

    def __len__(self) -> int:
        return -(-len(self._edges) // (self.batch_size // 2 * self.num_replicas))

    def _batches(self, generator: torch.Generator) -> Iterator[list[int]]:
        replicas, rank = self._place
        size = self.batch_size // 2
        for _ in range(len(self)):
            draws = torch.rand(replicas, size, dtype=torch.float64, generator=generator)[rank] * self._share[-1]
            drawn = torch.searchsorted(self._share, draws, right=True).clamp_max(len(self._edges) - 1)
            edge = self._edges[drawn]
            yield torch.stack([self._pattern.row[edge], self._pattern.col[edge]], 1).flatten().tolist()
