"""Smoothness loss on a sparse graph of a million edges and 32 columns, against one product; and in training.

Claims: forward and backward at most 2 × the time of torch's CSR product each; at most 20 % of a step of training on 256
digits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.record import Record
from benchmarks.timing import in_turn, median, ratio
from experiments.smoothing import network
from experiments.tables import Table
from torch_lapeig import Graph, HeatKernel, knn_graph, laplacian_smoothness
from torch_lapeig.losses import spectral_loss
from torch_lapeig.samplers import NeighborhoodSampler

PEER = "torch CSR product, int32"
BATCH, NEIGHBORS = 256, 10


def run(record: Record, options: argparse.Namespace) -> None:
    record.show(against_products(5 if options.quick else 15))
    record.show(in_training(5 if options.quick else 15))


def in_training(rounds: int) -> Table:
    """Return a step of a small convolutional network on 256 digits, with and without smoothness of its predictions."""
    digits = load_digits()
    x, target = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)
    whole = own_graph(x)
    torch.manual_seed(0)
    model = network(8)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    chance = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:BATCH]
    neighborhood = torch.tensor(next(iter(NeighborhoodSampler(whole, BATCH, neighbors=NEIGHBORS))))

    def step(nodes: Tensor, graph_of: Callable[[Tensor], Graph] | None = None) -> Callable[[], object]:
        def call() -> None:
            optimizer.zero_grad()
            logits = model(x[nodes])
            loss = cross_entropy(logits, target[nodes])
            if graph_of is not None:
                loss = loss + 0.3 * laplacian_smoothness(logits.softmax(1), graph_of(nodes), "weighted_mean")
            loss.backward()
            optimizer.step()

        return call

    candidates = {
        "random batch": (chance, None),
        "the same, smoothness on its part of a graph": (chance, whole.subgraph),
        "the same, smoothness on a graph of its own": (chance, lambda nodes: own_graph(x[nodes])),
        "batch of neighbourhoods": (neighborhood, None),
        "the same, smoothness on its part of the graph": (neighborhood, whole.subgraph),
    }
    seconds = in_turn({name: step(*given) for name, given in candidates.items()}, rounds, calls=20)
    title = f"A step of training on {BATCH} digits, {torch.get_num_threads()} threads, median of {rounds}"
    table = Table(title, {"": "", "nodes": "d", "ms": ".2f", "share of smoothness, %": ".0f"})
    for name, (nodes, graph_of) in candidates.items():
        plain = next(other for other, given in candidates.items() if given[0] is nodes)
        share = None if graph_of is None else 100 * (1 - ratio(seconds[plain], seconds[name]))
        table.add(name, len(nodes), median(seconds[name], 1e3), share)
    return table


def own_graph(x: Tensor) -> Graph:
    """Return the neighbourhood graph of the points of a batch."""
    return HeatKernel()(x, knn_graph(x, NEIGHBORS))


def against_products(rounds: int) -> Table:
    """Return the losses beside a bare product with the same graph."""
    nodes, columns = 50_000, 32
    generator = torch.Generator().manual_seed(0)
    graph = knn_graph(torch.rand(nodes, 3, generator=generator), 18)
    y = torch.randn(nodes, columns, generator=generator).requires_grad_()
    weight = graph.weight.clone().requires_grad_()
    matrix = graph.to_scipy()
    bare = torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr),
        torch.from_numpy(matrix.indices),
        graph.weight,
        matrix.shape,
        check_invariants=False,
    )

    def backward(given: Graph, *inputs: Tensor) -> Callable[[], object]:
        loss = laplacian_smoothness(y, given)
        return lambda: torch.autograd.grad(loss, inputs, retain_graph=True)

    values = y.detach()
    spectral = spectral_loss(y, graph)
    candidates = {
        PEER: lambda: bare @ values,
        "smoothness forward": lambda: laplacian_smoothness(y, graph),
        "smoothness backward": backward(graph, y),
        "smoothness backward, weights too": backward(graph.with_weight(weight), y, weight),
        "spectral loss forward": lambda: spectral_loss(y, graph),
        "spectral loss backward": lambda: torch.autograd.grad(spectral, y, retain_graph=True),
    }
    seconds = in_turn(candidates, rounds, calls=5)
    title = f"{nodes:,} nodes, {len(graph.weight):,} entries, {columns} columns, float32"
    threads = f"{torch.get_num_threads()} threads, median of {rounds}"
    table = Table(f"{title}, {threads}", {"": "", "ms": ".1f", "time / product": ".2f"}, chart="time / product")
    for name, times in seconds.items():
        table.add(name, median(times, 1e3), ratio(times, seconds[PEER]))
    return table
