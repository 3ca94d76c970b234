"""Smoothness loss on a sparse graph of a million edges and 32 columns, against one product with the graph.

Claim: forward and backward at most 2 × the time of torch's CSR product each.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.timing import in_turn, ratio
from torch_lapeig import Graph, knn_graph, laplacian_smoothness
from torch_lapeig.losses import spectral_loss

PEER = "torch CSR product, int32"


def main(nodes: int = 50_000, columns: int = 32) -> None:
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
    seconds = in_turn(candidates, 15, calls=5)
    title = f"{nodes:,} nodes, {len(graph.weight):,} entries, {columns} columns, float32"
    table = Table(title=f"{title}, {torch.get_num_threads()} threads, median of 15")
    for heading in ("", "ms", "time / product"):
        table.add_column(heading, justify="right")
    for name, times in seconds.items():
        table.add_row(name, f"{1e3 * statistics.median(times):.1f}", f"{ratio(times, seconds[PEER]):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
