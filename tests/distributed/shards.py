"""Checks that every rank of a group runs: what it has of points, graphs and weights is that of one process."""

import itertools

import torch
from common import ONE_PLACE, SETS, blobs, close, copies, cut, edges_of, graph_of, spread, whole

from problems import surface, swiss_roll
from torch_lapeig import KNN, DensityCorrected, HeatKernel, ImprovedWeights, Laplacian, Radius, SelfTuning, knn_graph
from torch_lapeig.distributed import ShardedPoints, sharded_graph
from torch_lapeig.distributed.search import ShardedSearch
from torch_lapeig.graph import nearest_neighbors


def check_points_go_and_come_home(ranks):
    for how in ("uneven", "last"):
        x = swiss_roll(301)
        mine = x[cut(301, ranks, how)].requires_grad_()
        points = ShardedPoints.spread(mine, ranks)
        assert torch.equal(points.home(points.x), mine)
        assert torch.equal(points.here(mine), points.x)
        assert torch.equal(points.x, x[points.numbers])
        assert points.offsets[-1] == 301
        sizes = torch.tensor(points.offsets).diff()
        assert sizes.max() - sizes.min() <= 0.1 * 301
        factor = torch.arange(301.0, dtype=torch.float64)[cut(301, ranks, how), None]
        (points.home(points.x.square()) * factor).sum().backward()
        torch.testing.assert_close(mine.grad, 2 * factor * mine.detach(), atol=0, rtol=1e-15)


def check_neighbours_are_those_of_one_process(ranks):
    for name, x in SETS.items():
        for how in ("uneven", "last"):
            points = spread(x, ranks, how)
            found, exact = ShardedSearch(points).nearest(6), nearest_neighbors(x, 6)
            assert torch.equal(whole(points, found.numbers), exact.indices), (name, how)
            torch.testing.assert_close(whole(points, found.squared_distances), exact.squared_distances)


def check_graphs_are_those_of_one_process(ranks):
    roll = swiss_roll(300)
    rules = [(roll, KNN(7, how)) for how in ("mean", "union", "mutual")] + [(copies(), KNN(5)), (roll.float(), KNN(9))]
    rules += [(roll, Radius(3.0)), (blobs(), KNN(4, metric="cosine")), (copies(), Radius(1.0)), (roll[:7], KNN(6))]
    rules += [(roll[:7], KNN(40)), (blobs(), Radius(0.4, metric="cosine"))]
    for x, rule in rules:
        points, exact = spread(x, ranks), rule(x)
        graph = sharded_graph(points, rule)
        edges, weight = edges_of(graph, points)
        assert torch.equal(edges, exact.edge_index), rule
        assert torch.equal(weight, exact.weight), rule
        assert torch.equal(whole(points, graph.connected_components()), exact.connected_components())


def check_queries_of_any_rank(ranks):
    x, new = blobs(), blobs(101)[:, :] * 0.9
    points, rows = spread(x, ranks), cut(101, ranks, "last")
    found, exact = ShardedSearch(points).nearest(5, new[rows]), nearest_neighbors(x, 5, new)
    assert torch.equal(found.numbers, exact.indices[rows])
    torch.testing.assert_close(found.squared_distances, exact.squared_distances[rows])


def check_fewer_points_than_ranks(ranks):
    x = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    for how in ("equal", "last"):
        points = spread(x, ranks, how)
        edges, weight = edges_of(sharded_graph(points, KNN(1)), points)
        exact = knn_graph(x, 1)
        assert torch.equal(edges, exact.edge_index)
        assert torch.equal(weight, exact.weight)
    for place, rule in ((x, Radius(1.5)), (ONE_PLACE, Radius(0.5)), (ONE_PLACE, KNN(3))):  # others are empty
        points = spread(place, ranks, "last")
        assert torch.equal(edges_of(sharded_graph(points, rule), points)[0], rule(place).edge_index)


def check_weights_and_their_gradients(ranks):
    """Also where lengths tie, which share the gradient of a median and of a k-th neighbour's distance on any rank."""
    apart, ties = torch.cat([surface(120), 5 + surface(60, seed=3)]), copies()[:90]
    weightings = [HeatKernel("median"), HeatKernel("component-median"), HeatKernel(0.7), SelfTuning(4)]
    weightings += [DensityCorrected(1.0), ImprovedWeights(), HeatKernel("steepest")]
    cases = [(apart, KNN(8), weights) for weights in weightings]
    cases += [(ties, Radius(1.5), weights) for weights in (*weightings[:2], weightings[3])]
    for (x, rule, weights), dtype in itertools.product(cases, (torch.float64, torch.float32)):
        rows, factor = cut(len(x), ranks), torch.linspace(-1, 2, len(x), dtype=dtype)
        found = []
        for part, group in ((rows, ranks), (slice(None), None)):
            mine = x[part].to(dtype, copy=True).requires_grad_()
            graph, _, home = graph_of(mine, rule, weights, group)
            degrees = home(Laplacian(graph, "random_walk").degrees)
            (degrees.sin() * factor[part]).sum().backward()
            found += [degrees.detach(), mine.grad]
        close(found[0], found[2], rows)
        close(found[1], found[3], rows)
