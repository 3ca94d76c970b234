"""Checks that every rank of a group runs: training beside data parallelism, and gradients to weights given by rows."""

import pytest
import torch
from common import cut, rows_of
from torch.distributed.device_mesh import init_device_mesh

from problems import surface
from torch_lapeig import KNN, Graph, HeatKernel, Laplacian, LaplacianEigenmaps, LaplacianSmoothness, eigenpairs
from torch_lapeig.distributed import DistributedError, Ranks, Sharded, ShardedGraph, sum_gradients

# Data parallel × shards, by the number of processes.
MESHES = {1: [(1, 1)], 2: [(2, 1), (1, 2)], 3: [(1, 3)], 4: [(2, 2)]}


class Trained(torch.nn.Module):
    """Features by a network, their embedding and their smoothness: shares of a loss that ignores some rows."""

    def __init__(self, group):
        super().__init__()
        torch.manual_seed(1)
        self.network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).double()
        self.embed = Sharded(LaplacianEigenmaps(2, KNN(8), HeatKernel(learnable=True).double()), group)
        self.smoothness = Sharded(LaplacianSmoothness(KNN(6)), group)

    def forward(self, x, ignored):
        features = self.network(x)
        y = self.embed(features)
        share = (y[ignored:, 0].square() * x[ignored:, 0]).sum() + 0 * y.sum()
        return share + 0.1 * self.smoothness(features, x)


def data(which):
    return surface(90 + 10 * which, seed=which)


def of_rank(which, shard):
    """The rows of a data set that a rank has, and how many of them the loss ignores: the first 30 of the set."""
    rows = cut(90 + 10 * which, shard)
    return data(which)[rows], min(max(30 - rows.start, 0), rows.stop - rows.start)


def check_shards_beside_data_parallel_training(ranks):
    """Each row of the mesh has a data set of its own: mean over these of the sum over shards, as on one process."""
    for shape in MESHES[ranks.world]:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "shard"))
        exact = Trained(Ranks.alone())
        for which in range(shape[0]):
            (exact(data(which), 30) / shape[0]).backward()
        trained = Trained(mesh["shard"])
        shard = trained.embed.ranks
        assert shard.world == shape[1]
        wrapped = torch.nn.parallel.DistributedDataParallel(trained, process_group=ranks.group)
        (shard.world * wrapped(*of_rank(mesh.get_local_rank("data"), shard))).backward()
        compare(trained, exact, f"{shape}")


def compare(trained, exact, cut):
    for (name, a), b in zip(trained.named_parameters(), exact.parameters(), strict=True):
        size = max(float(p.grad.abs().max()) for p in exact.parameters())
        torch.testing.assert_close(a.grad, b.grad, atol=1e-8 * size, rtol=0, msg=lambda m, n=name: f"{cut} {n}: {m}")


def check_sums_of_gradients_without_data_parallelism(ranks):
    exact, trained = Trained(Ranks.alone()), Trained(ranks)
    exact(data(0), 30).backward()
    trained(*of_rank(0, ranks)).backward()
    sum_gradients(trained, ranks)
    compare(trained, exact, "summed")


def check_a_rank_that_gives_the_loss_nothing(ranks):
    """Its rows are in the graph, so the other ranks need its part of the backward."""
    x, rows = data(0), cut(90, ranks, "equal")
    mine, one = x[rows].clone().requires_grad_(), x.clone().requires_grad_()
    y = Sharded(LaplacianEigenmaps(2, KNN(8)), ranks)(mine)
    (0 * y.sum() if ranks.rank == 0 else y.square()[:, 0] @ x[rows, 1]).backward()
    y = LaplacianEigenmaps(2, KNN(8))(one)
    first = 90 // ranks.world
    (y.square()[first:, 0] @ x[first:, 1]).backward()
    torch.testing.assert_close(mine.grad, one.grad[rows], atol=1e-8 * float(one.grad.abs().max()), rtol=0)


def check_gradients_to_weights_of_rows(ranks):
    """By `torch.autograd.gradcheck` along a few directions, and as a whole against one process."""
    x, n = surface(24), 24
    graph = HeatKernel(3.0)(x, KNN(4)(x))
    (row, col), part = graph.edge_index, cut(n, ranks)
    mine = (row >= part.start) & (row < part.stop)
    g = torch.Generator().manual_seed(5)
    factor, along = torch.randn(n, 3, generator=g).double(), torch.rand(n, n, 3, generator=g).double()
    along = (along + along.transpose(0, 1))[row, col]

    def loss(graph, rows):
        pairs = eigenpairs(Laplacian(graph, "random_walk"), 3)
        return ((pairs.vectors @ torch.matrix_exp(-pairs.projected)).square() * factor[rows]).sum()

    def sharded(weight):
        own = row[mine] - part.start
        return loss(ShardedGraph.from_rows(ranks, own, col[mine], weight, part.stop - part.start), part)

    def replicated(p):
        # One program on all ranks: each sees the sum, and has its part of the gradient to what all have.
        p = ranks.total(p) / ranks.world
        return ranks.total(sharded(graph.weight[mine] * (1 + along[mine] @ p))) / ranks.world

    p = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p: ranks.world * replicated(p), p, atol=1e-7, rtol=1e-5, nondet_tol=1e-12)
    own, one = (weight.detach().clone().requires_grad_() for weight in (graph.weight[mine], graph.weight))
    sharded(own).backward()
    loss(Graph(graph.pattern, one), slice(None)).backward()
    torch.testing.assert_close(own.grad, one.grad[mine], atol=1e-9, rtol=1e-9)


def check_weights_by_rows_are_checked(ranks):
    part = cut(20, ranks, "equal")
    graph = KNN(3)(surface(20))
    assert rows_of(graph, ranks).num_nodes == part.stop - part.start
    (row, col), one_way = graph.edge_index, graph.weight.clone()
    one_way[(row < col).nonzero()[0]] *= 2
    with pytest.raises((ValueError, DistributedError), match="weight"):
        rows_of(graph, ranks, weight=one_way)
    assert float(ranks.sum(torch.ones(()))) == ranks.world
