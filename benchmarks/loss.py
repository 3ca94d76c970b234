"""Smoothness loss on a sparse graph of a million edges and 32 columns, against one product with the graph.

Claim: forward and backward at most 2 × the time of torch's CSR product each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.record import Record, Table
from benchmarks.timing import in_turn, median, ratio
from torch_lapeig import Graph, knn_graph, laplacian_smoothness
from torch_lapeig.losses import spectral_loss

PEER = "torch CSR product, int32"


def run(record: Record, options: argparse.Namespace) -> None:
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
    rounds = 5 if options.quick else 15
    seconds = in_turn(candidates, rounds, calls=5)
    title = f"{nodes:,} nodes, {len(graph.weight):,} entries, {columns} columns, float32"
    threads = f"{torch.get_num_threads()} threads, median of {rounds}"
    table = Table(f"{title}, {threads}", {"": "", "ms": ".1f", "time / product": ".2f"}, chart="time / product")
    for name, times in seconds.items():
        table.add(name, median(times, 1e3), ratio(times, seconds[PEER]))
    record.show(table)
