"""Product with a sparse Laplacian pattern, forward and backward, against torch's own CSR product.

Claims: forward not slower than torch CSR with int32 indices alone; backward to operand and values at most 4 × forward.
"""

from __future__ import annotations

import statistics

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import in_turn, ratio
from torch_lapeig import Graph, knn_graph

PEER = "torch CSR, int32"


def main() -> None:
    x = torch.rand(100_000, 3, generator=torch.Generator().manual_seed(0))
    graph: Graph = knn_graph(x, 20)
    pattern = graph.pattern
    console = Console()
    for columns in (8, 32):
        y = torch.randn(len(x), columns)
        values = graph.weight
        matrix = graph.to_scipy()
        bare = torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr),
            torch.from_numpy(matrix.indices),
            values,
            (len(x), len(x)),
            check_invariants=False,
        )
        v, operand = values.clone().requires_grad_(), y.clone().requires_grad_()
        product = pattern.matmul(v, operand)
        cotangent = torch.randn_like(product)

        def backward(product=product, inputs=(v, operand), cotangent=cotangent) -> object:  # type: ignore[no-untyped-def]
            return torch.autograd.grad(product, inputs, cotangent, retain_graph=True)

        candidates = {
            PEER: lambda bare=bare, y=y: bare @ y,
            "torch_lapeig forward": lambda values=values, y=y: pattern.matmul(values, y),
            "torch_lapeig backward": backward,
        }
        seconds = in_turn(candidates, 11, calls=20)
        title = f"{len(x):,} rows, {len(values):,} entries, {columns} columns, float32"
        table = Table(title=f"{title}, {torch.get_num_threads()} threads, median of 11")
        for heading in ("", "ms", "time / torch CSR"):
            table.add_column(heading, justify="right")
        for name, times in seconds.items():
            table.add_row(name, f"{1e3 * statistics.median(times):.1f}", f"{ratio(times, seconds[PEER]):.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
