"""Product with a sparse Laplacian pattern, forward and backward, against torch's own CSR product.

Claims: forward not slower than torch CSR with int32 indices alone; backward to operand and values at most 4 × forward.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.record import Record
from benchmarks.timing import in_turn, median, ratio
from experiments.tables import Table
from torch_lapeig import Graph, knn_graph

PEER = "torch CSR, int32"


def run(record: Record, options: argparse.Namespace) -> None:
    x = torch.rand(20_000 if options.quick else 100_000, 3, generator=torch.Generator().manual_seed(0))
    graph: Graph = knn_graph(x, 20)
    pattern = graph.pattern
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
        product = pattern.matmul(v, operand, is_symmetric=True)  # as `Laplacian.matmul`
        general = pattern.matmul(v, operand)
        cotangent = torch.randn_like(product)

        def backward(product: Tensor, v: Tensor, operand: Tensor, cotangent: Tensor) -> object:
            return torch.autograd.grad(product, (v, operand), cotangent, retain_graph=True)

        candidates: dict[str, Callable[[], object]] = {
            PEER: partial(torch.mm, bare, y),
            "torch_lapeig forward": partial(pattern.matmul, values, y),
            "torch_lapeig backward": partial(backward, product, v, operand, cotangent),
            "the same, of weights that may not be symmetric": partial(backward, general, v, operand, cotangent),
        }
        rounds = 5 if options.quick else 11
        seconds = in_turn(candidates, rounds, calls=20)
        title = f"{len(x):,} rows, {len(values):,} entries, {columns} columns, float32"
        threads = f"{torch.get_num_threads()} threads, median of {rounds}"
        table = Table(f"{title}, {threads}", {"": "", "ms": ".1f", "time / torch CSR": ".2f"}, chart="time / torch CSR")
        for name, times in seconds.items():
            table.add(name, median(times, 1e3), ratio(times, seconds[PEER]))
        record.show(table)
