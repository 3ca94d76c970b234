"""Checks that every rank of a group runs: laws over sizes and splits, and what travels against what is said of it."""

from functools import partial

import torch
from common import edges_of, subspaces, whole
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from problems import swiss_roll
from torch_lapeig import KNN, HeatKernel, Laplacian, eigenpairs
from torch_lapeig.distributed import ShardedPoints, sharded_graph
from torch_lapeig.eigen import Eigh

# The same examples on every rank: none of them chosen by chance, time or what was found before.
few = partial(settings, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def sizes_and_splits(draw, world, least=8, most=70):
    """Points with copies and components, and the rows that each rank gives, some none."""
    n = draw(st.integers(least, most))
    seed, places, apart = draw(st.integers(0, 2**31)), draw(st.sampled_from([3, 50])), draw(st.integers(1, 3))
    g = torch.Generator().manual_seed(seed)
    x = (torch.randint(places, (n, 2), generator=g) / places).double()  # full of copies and ties, or hardly any
    x = x + 40.0 * torch.randint(apart, (n, 1), generator=g)
    ends = sorted(draw(st.lists(st.integers(0, n), min_size=world - 1, max_size=world - 1)))
    return x, [0, *ends, n]


def check_graphs_over_sizes_and_splits(ranks):
    @few(max_examples=6)
    @given(sizes_and_splits(ranks.world), st.integers(1, 6), st.sampled_from(["mean", "union", "mutual"]))
    def law(case, k, symmetrize):
        (x, ends), rule = case, KNN(k, symmetrize)
        points = ShardedPoints.spread(x[ends[ranks.rank] : ends[ranks.rank + 1]], ranks)
        graph, exact = sharded_graph(points, rule), rule(x)
        edges, weight = edges_of(graph, points)
        assert torch.equal(edges, exact.edge_index)
        assert torch.equal(weight, exact.weight)
        assert torch.equal(whole(points, graph.connected_components()), exact.connected_components())

    law()


def check_pairs_over_sizes_and_splits(ranks):
    """Values and, where the cut is no cluster, subspaces; gradients of a function of the subspace."""

    @few(max_examples=4)
    @given(sizes_and_splits(ranks.world, least=12), st.integers(1, 5))
    def law(case, k):
        x, rows = case[0], slice(*case[1][ranks.rank : ranks.rank + 2])
        points = ShardedPoints.spread(x[rows], ranks)
        laplacian = Laplacian(HeatKernel(2.0)(points.x, sharded_graph(points, KNN(4))))
        exact = eigenpairs(Laplacian(HeatKernel(2.0)(x, KNN(4)(x))), k, Eigh())
        pairs = eigenpairs(laplacian, k)
        torch.testing.assert_close(pairs.values, exact.values, atol=1e-10, rtol=0)
        if float(exact.gap) > 1e-4:
            assert subspaces(exact.vectors, whole(points, pairs.vectors)) < 1e-8

    law()


def check_a_product_sends_the_halo_and_no_more(ranks):
    """Bytes: halo rows × columns × 8. Messages: one to each rank that needs rows of this one."""
    x = swiss_roll(1500)
    points = ShardedPoints.spread(x[ranks.rank :: ranks.world], ranks)
    laplacian = Laplacian(HeatKernel()(points.x, sharded_graph(points, KNN(8))))
    halo, operator = laplacian.graph.pattern.halo, laplacian.symmetric
    operator.matmul(points.x)  # what is made once
    for columns in (1, 7):
        calls, sent, messages = ranks.calls, ranks.sent, ranks.messages
        operator.matmul(points.x.new_ones(len(points.x), columns))
        assert ranks.calls - calls == (ranks.world > 1)
        assert ranks.sent - sent == len(halo.sent) * columns * 8
        assert ranks.messages - messages == sum(count > 0 for count in halo.send)
        needed = ranks.sum(torch.tensor([ranks.sent - sent, len(halo) * columns * 8]))
        assert needed[0] == needed[1]
