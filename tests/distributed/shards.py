"""Checks that every rank of a group runs: what it has of points, graphs and weights is that of one process."""

import torch
from common import ONE_PLACE, SETS, blobs, copies, cut, edges_of, spread, whole

from problems import surface, swiss_roll
from torch_lapeig import (
    KNN,
    DensityCorrected,
    HeatKernel,
    ImprovedWeights,
    Laplacian,
    Radius,
    SelfTuning,
    SimpleWeights,
    knn_graph,
)
from torch_lapeig.distributed import ShardedPoints, sharded_graph
from torch_lapeig.distributed.search import ShardedSearch
from torch_lapeig.graph import nearest_neighbors

# --- Points and neighbours --------------------------------------------------------------------------------------------


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
    rules += [
        (roll, Radius(3.0)),
        (blobs(), KNN(4, metric="cosine")),
        (copies(), Radius(1.0)),
        (roll[:7], KNN(6)),
        (roll[:7], KNN(40)),
    ]
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


# --- Patterns, weights, Laplacians ------------------------------------------------------------------------------------


def check_weights_and_their_gradients(ranks):
    x = torch.cat([surface(120), 5 + surface(60, seed=3)])
    rows = cut(180, ranks)
    weightings = [HeatKernel("median"), HeatKernel("component-median"), HeatKernel(0.7), SelfTuning(4), SimpleWeights()]
    weightings += [DensityCorrected(1.0), ImprovedWeights(), HeatKernel("steepest")]
    for weights in weightings:
        for dtype in (torch.float64, torch.float32):
            one = x.to(dtype, copy=True).requires_grad_()
            mine = x[rows].to(dtype, copy=True).requires_grad_()
            points = ShardedPoints.spread(mine, ranks)
            laplacian = Laplacian(weights(points.x, sharded_graph(points, KNN(8))), "random_walk")
            exact = Laplacian(weights(one, KNN(8)(one.detach())), "random_walk")
            tight = 1e-11 if dtype == torch.float64 else 2e-4
            torch.testing.assert_close(whole(points, laplacian.degrees), exact.degrees, rtol=tight, atol=tight)
            if isinstance(weights, SimpleWeights):
                continue
            factor = torch.linspace(-1, 2, 180, dtype=dtype)
            (points.home(laplacian.degrees.sin()) * factor[rows]).sum().backward()
            (exact.degrees.sin() * factor).sum().backward()
            torch.testing.assert_close(mine.grad, one.grad[rows], rtol=tight, atol=tight * float(one.grad.abs().max()))


def check_gradients_where_lengths_tie(ranks):
    """Equal lengths share the gradient of a median and of a k-th neighbour's distance, on whatever rank they are."""
    x, rows = copies()[:90], cut(90, ranks)
    factor = torch.linspace(-1, 2, 90, dtype=torch.float64)
    for weights in (HeatKernel("median"), HeatKernel("component-median"), SelfTuning(4)):
        one, mine = x.clone().requires_grad_(), x[rows].clone().requires_grad_()
        points = ShardedPoints.spread(mine, ranks)
        degrees = Laplacian(weights(points.x, sharded_graph(points, Radius(1.5)))).degrees
        (points.home(degrees.square()) * factor[rows]).sum().backward()
        exact = Laplacian(weights(one, Radius(1.5)(x)))
        (exact.degrees.square() * factor).sum().backward()
        torch.testing.assert_close(mine.grad, one.grad[rows], rtol=1e-11, atol=1e-12 * float(one.grad.abs().max()))
