"""Gradients of eigenpairs: time, memory and error; batches of dense graphs against `eigh`.

Claims: on the swiss roll of 100,000 points (15-NN, k = 10, residual ≤ 1e-6) the backward of vectors and values takes at
most the time of the forward with its setup; forward and backward together need at most 12 · (nnz + N·k) · 8 bytes; the
edge gradient is within 1e-5 of a solve at 1e-12. Dense batches 64 × 128 and 16 × 512, k = 8, float32, forward and
backward: 1.5 × faster than `torch.linalg.eigh` with its own backward at N = 512, not slower at N = 128.
"""

import argparse
import os
import statistics
import subprocess
import sys

import torch
from torch import Tensor

from benchmarks import graphs
from benchmarks.record import Record
from benchmarks.timing import clock, in_turn, median, ratio
from experiments.memory import growth
from experiments.tables import Table
from torch_lapeig import Graph, HeatKernel, Laplacian, eigenpairs, knn_graph

K = 10
# Blocks are given back to the system as soon as they are freed, so that what is in use can be read off.
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "500000", "MALLOC_TRIM_THRESHOLD_": "500000"}


def gradient(graph: Graph, tolerance: float, backward_tolerance: float) -> tuple[Tensor, float, float]:
    """Return edge gradient of a loss of vectors and values; seconds of forward and backward."""
    weight = graph.weight.clone().requires_grad_()
    to_vectors = torch.randn(graph.num_nodes, K, dtype=weight.dtype, generator=torch.Generator().manual_seed(0))
    now = clock()
    start = now()
    laplacian = Laplacian(graph.with_weight(weight))
    pairs = eigenpairs(laplacian, K, tolerance=tolerance, backward_tolerance=backward_tolerance)
    middle = now()
    (result,) = torch.autograd.grad([pairs.vectors, pairs.values], weight, [to_vectors, torch.ones_like(pairs.values)])
    return result, middle - start, now() - middle


def times_and_error(n: int, rounds: int) -> Table:
    graph = graphs.swiss_roll(n)
    exact = gradient(graph, 1e-12, 1e-12)[0]
    title = f"Swiss roll {n:,}, {len(graph.weight):,} entries, k = {K}, {torch.get_num_threads()} threads"
    part = "backward / forward"
    columns = {"tolerance / backward": "", "forward, s": ".2f", "backward, s": ".2f", part: ".2f"}
    table = Table(f"{title}, median of {rounds}", columns | {"gradient error": ".1e"})
    for tolerance, backward_tolerance in ((1e-2, 1e-6), (1e-6, 1e-6), (1e-10, 1e-10)):
        runs = [gradient(graph, tolerance, backward_tolerance) for _ in range(rounds)]
        seconds = [(forward, backward, backward / forward) for _, forward, backward in runs]
        times = map(statistics.median, zip(*seconds, strict=True))
        error = float((runs[0][0] - exact).norm() / exact.norm())
        table.add(f"{tolerance:.0e} / {backward_tolerance:.0e}", *times, error)
    return table


def memory(n: int) -> str:
    graph = graphs.swiss_roll(n)
    gradient(graphs.swiss_roll(20_000), 1e-2, 1e-6)  # libraries and their buffers
    used = growth(lambda: gradient(graph, 1e-2, 1e-6))
    limit = 12 * (len(graph.weight) + n * K) * 8 / 2**20
    return f"forward and backward, {n:,} nodes: {used:.0f} MiB; 12 (nnz + N k) 8 bytes are {limit:.0f} MiB"


def affinities(batch: int, n: int, kind: str) -> Tensor:
    """Return dense affinities of random points in 5 dimensions: of their 10 nearest neighbours, or of all pairs."""
    x = torch.randn(batch, n, 5, generator=torch.Generator().manual_seed(0))
    if kind == "10-NN":
        graph: Graph = HeatKernel()(x, knn_graph(x, 10))
        return graph.to_dense()
    squares = torch.cdist(x, x).square()
    affinity = torch.exp(-squares / squares.median())
    affinity.diagonal(dim1=-2, dim2=-1).zero_()
    return (affinity + affinity.mT) / 2


def batches(rounds: int, k: int = 8) -> Table:
    title = f"Dense batches, k = {k}, float32, forward and backward, {torch.get_num_threads()} threads"
    columns = {"graphs": "", "eigh with its backward, ms": ".0f", "torch_lapeig, ms": ".0f", "ours / eigh": ".2f"}
    table = Table(f"{title}, median of {rounds}", columns | {"residual": ".0e"})
    for batch, n, kind in ((64, 128, "10-NN"), (64, 128, "all pairs"), (16, 512, "10-NN"), (16, 512, "all pairs")):
        weight = affinities(batch, n, kind).requires_grad_()
        to_vectors = torch.randn(batch, n, k, generator=torch.Generator().manual_seed(1))

        def peer(weight: Tensor = weight, to_vectors: Tensor = to_vectors) -> object:
            scale = weight.sum(-1).rsqrt()
            laplacian = torch.eye(weight.shape[1]) - scale[:, :, None] * weight * scale[:, None, :]
            values, vectors = torch.linalg.eigh(laplacian)
            loss = (vectors[..., :k] * to_vectors).sum() + values[..., :k].sum()
            return torch.autograd.grad(loss, weight)

        def ours(weight: Tensor = weight, to_vectors: Tensor = to_vectors) -> object:
            pairs = eigenpairs(Laplacian(Graph.from_dense(weight)), k)
            return torch.autograd.grad((pairs.vectors * to_vectors).sum() + pairs.values.sum(), weight)

        seconds = in_turn({"eigh": peer, "ours": ours}, rounds, calls=3)
        residual = float(eigenpairs(Laplacian(Graph.from_dense(weight)), k).residuals.max())
        times = median(seconds["eigh"], 1e3), median(seconds["ours"], 1e3), ratio(seconds["ours"], seconds["eigh"])
        table.add(f"{batch} × {n}, {kind}", *times, residual)
    return table


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="measure memory only, in this process")


def run(record: Record, options: argparse.Namespace) -> None:
    nodes, rounds = (20_000, 2) if options.quick else (options.nodes, options.rounds)
    if options.memory:
        record.show(memory(nodes))
        return
    command = [sys.executable, "-m", "benchmarks", "backward", "--memory", "--nodes", str(nodes)]
    said = subprocess.run(command, check=True, env=os.environ | RETURNED, capture_output=True, text=True).stdout
    record.show(said.strip(), times_and_error(nodes, rounds), batches(rounds))
