"""Helpers of the checks of several processes: cut rows into shards, and compare the rows of all ranks."""

import torch

from problems import subspace_angle, swiss_roll
from torch_lapeig.distributed import ShardedGraph, ShardedPoints, sharded_graph

# Dtypes of points and features, with the accuracy of results relative to the largest of them.
DTYPES = {torch.float64: 1e-8, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def close(found, expected, rows=...):
    """Check that rows of a result have the dtype of one process's, and equal it to the accuracy of the dtype."""
    size = float(expected.detach().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected[rows], atol=DTYPES[expected.dtype] * size, rtol=0)


def graph_of(x, rule, weights, ranks=None):
    """The weighted graph of all rows, or of rows of this rank, and what takes rows to its nodes and back."""
    if ranks is None:
        return weights(x, rule(x.detach())), (lambda y: y), (lambda y: y)
    points = ShardedPoints.spread(x, ranks)
    return weights(points.x, sharded_graph(points, rule)), points.here, points.home


def cut(n, ranks, how="uneven"):
    """The rows of this rank: unequal parts, or all of them on the last rank, or all but four of each other rank."""
    w = ranks.world
    ends = {
        "uneven": [n * i * i // (w * w) for i in range(w + 1)],
        "equal": [n * i // w for i in range(w + 1)],
        "last": [0] * w + [n],
        "fours": [*range(0, 4 * w, 4), n],
    }[how]
    return slice(ends[ranks.rank], ends[ranks.rank + 1])


def spread(x, ranks, how="uneven"):
    return ShardedPoints.spread(x[cut(len(x), ranks, how)], ranks)


def whole(points, rows):
    return points.ranks.gather(points.home(rows))


def blobs(n=300, d=12):
    g = torch.Generator().manual_seed(1)
    centre = 20 * torch.randn(5, d, generator=g, dtype=torch.float64)
    return centre[torch.arange(n) % 5] + torch.randn(n, d, generator=g, dtype=torch.float64)


def copies(n=90):
    """A grid, full of ties, with each third point twice."""
    side = torch.cartesian_prod(torch.arange(9), torch.arange(n // 9)).double()
    return torch.cat([side, side[::3]])


ONE_PLACE = torch.ones(20, 2, dtype=torch.float64)
SETS = {"roll": swiss_roll(400), "blobs": blobs(), "copies": copies(), "one place": ONE_PLACE}


def edges_of(graph, points):
    """Edges of all ranks by number and their weights, sorted."""
    pattern, ranks = graph.pattern, points.ranks
    every = ranks.gather(points.numbers)
    begin = points.offsets[ranks.rank]
    place = torch.cat([torch.arange(begin, begin + len(points.numbers)), pattern.halo.needed])[pattern.col.long()]
    ends = ranks.gather(torch.stack([points.numbers[pattern.row.long()], every[place]], 1))
    order = (ends[:, 0] * len(every) + ends[:, 1]).argsort()
    return ends[order].T, ranks.gather(graph.weight.detach())[order]


def rows_of(graph, ranks, how="equal", weight=None):
    """The rows of this rank of a whole graph, or with other weights, as they are, without redistribution."""
    part = cut(graph.num_nodes, ranks, how)
    (row, col), weight = graph.edge_index, graph.weight if weight is None else weight
    mine = (row >= part.start) & (row < part.stop)
    return ShardedGraph.from_rows(ranks, row[mine] - part.start, col[mine], weight[mine], part.stop - part.start)


def subspaces(a, b):
    return subspace_angle(torch.linalg.qr(a.detach())[0], torch.linalg.qr(b.detach())[0])
