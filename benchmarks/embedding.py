"""Embedding of the digits (N = 1797, k = 10) against scikit-learn's SpectralEmbedding on the same graph.

Claim: at most twice the time of ``eigen_solver="arpack"``, with residuals ≤ 1e-5 in float32 and ≤ 1e-10 in float64.
Both get the graph and return the embedding: scikit-learn as a SciPy CSR matrix, which suits it best.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.manifold import SpectralEmbedding

from benchmarks.record import Record, Table
from benchmarks.timing import in_turn, median, ratio
from torch_lapeig import Graph, HeatKernel, Laplacian, eigenpairs, knn_graph

K = 10
PEER = "scikit-learn arpack"


def digits_graph(dtype: torch.dtype) -> Graph:
    x = torch.tensor(load_digits().data, dtype=dtype)
    graph: Graph = HeatKernel()(x, knn_graph(x, 10))
    return graph


def quality(graph: Graph, y: NDArray[np.float64], exact: torch.Tensor) -> tuple[float, float]:
    """Largest residual ‖L_sym v − λ v‖ and sine of the largest angle to the exact eigenvectors, of v = D^½ y."""
    laplacian = Laplacian(graph.with_weight(graph.weight.double()))
    v = laplacian.degrees.sqrt()[:, None] * torch.as_tensor(y, dtype=torch.float64)
    v = v / v.norm(dim=0)
    image = laplacian.matmul(v)
    residual = (image - v * (v * image).sum(0)).norm(dim=0).max().item()
    q = torch.linalg.qr(v)[0]
    return residual, torch.linalg.matrix_norm(q - exact @ (exact.T @ q), 2).item()


def run(record: Record, options: argparse.Namespace) -> None:
    double = digits_graph(torch.float64)
    exact = torch.linalg.eigh(Laplacian(double).to_dense())[1][:, 1 : K + 1]
    matrix = double.to_scipy()

    def ours(graph: Graph) -> NDArray[np.float64]:
        y: NDArray[np.float64] = eigenpairs(Laplacian(graph, "random_walk"), K + 1).vectors[:, 1:].numpy()
        return y

    def theirs() -> NDArray[np.float64]:
        peer = SpectralEmbedding(K, affinity="precomputed", eigen_solver="arpack", random_state=0)
        y: NDArray[np.float64] = peer.fit_transform(matrix)
        return y

    single = digits_graph(torch.float32)
    candidates = {
        "torch_lapeig float32": (lambda: ours(single), single),
        "torch_lapeig float64": (lambda: ours(double), double),
        PEER: (theirs, double),
    }
    rounds = 5 if options.quick else 15
    seconds = in_turn({name: call for name, (call, _) in candidates.items()}, rounds)
    columns = {"": "", "ms": ".1f", f"time / {PEER}": ".2f", "largest residual": ".1e", "largest angle (sine)": ".1e"}
    title = f"Digits, N = {double.num_nodes}, k = {K}, {torch.get_num_threads()} threads, median of {rounds}"
    table = Table(title, columns, chart=f"time / {PEER}")
    for name, (call, graph) in candidates.items():
        times = seconds[name]
        table.add(name, median(times, 1e3), ratio(times, seconds[PEER]), *quality(graph, call(), exact))
    record.show(table)
