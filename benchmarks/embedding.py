"""Embedding into ten dimensions against scikit-learn: digits on the same graph, MNIST in whole.

Digits (N = 1797): at most twice the time of ``eigen_solver="arpack"``, with residuals ≤ 1e-5 in float32 and ≤ 1e-10 in
float64. Both get the graph and return the embedding: scikit-learn as a SciPy CSR matrix, which suits it best.

MNIST's test set (N = 10,000, where its file is): search, graph and solve in at most 0.4 times scikit-learn's best
solver, and with the settings of docs/sklearn.md a 5-NN accuracy of at least 0.944 (by halves; ten folds are kinder).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags
from sklearn.datasets import load_digits
from sklearn.manifold import SpectralEmbedding
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.record import Record
from benchmarks.timing import in_turn, median, ratio
from experiments.data import mnist_test
from experiments.tables import Table
from torch_lapeig import DensityCorrected, Graph, HeatKernel, Laplacian, eigenpairs, knn_graph
from torch_lapeig import sklearn as estimators

K = 10
PEER = "scikit-learn arpack"


def digits_graph(dtype: torch.dtype) -> Graph:
    x = torch.tensor(load_digits().data, dtype=dtype)
    graph: Graph = HeatKernel()(x, knn_graph(x, 10))
    return graph


def quality(graph: Graph, y: NDArray[np.float64], exact: torch.Tensor) -> tuple[float, float]:
    """Return largest residual ‖L_sym v − λ v‖ and sine of the largest angle to the exact eigenvectors, of v = D^½ y."""
    laplacian = Laplacian(graph.with_weight(graph.weight.double()))
    v = laplacian.degrees.sqrt()[:, None] * torch.as_tensor(y, dtype=torch.float64)
    v = v / v.norm(dim=0)
    image = laplacian.matmul(v)
    residual = (image - v * (v * image).sum(0)).norm(dim=0).max().item()
    q = torch.linalg.qr(v)[0]
    return residual, torch.linalg.matrix_norm(q - exact @ (exact.T @ q), 2).item()


def mnist_candidates() -> dict[str, Callable[[], Any]]:
    """Return estimators on the graph of ten neighbours, eleven with the sample itself."""
    theirs: Any = {"affinity": "nearest_neighbors", "n_neighbors": 11, "random_state": 0}
    return {
        "torch_lapeig": lambda: estimators.SpectralEmbedding(K, n_neighbors=11),
        "torch_lapeig, density-corrected": lambda: estimators.SpectralEmbedding(
            K, n_neighbors=11, weights=DensityCorrected()
        ),
        "scikit-learn arpack": lambda: SpectralEmbedding(K, eigen_solver="arpack", **theirs),
        "scikit-learn lobpcg": lambda: SpectralEmbedding(K, eigen_solver="lobpcg", **theirs),
        "scikit-learn amg": lambda: SpectralEmbedding(K, eigen_solver="amg", **theirs),
    }


def mnist(rounds: int) -> list[dict[str, Any]]:
    """Return one record for each candidate and dtype: seconds of the processor and elapsed, residual, accuracy."""
    pixels, labels = (part.numpy() for part in mnist_test(None))
    rows: list[dict[str, Any]] = []
    for dtype in ("float32", "float64"):
        x, make = pixels.astype(dtype), mnist_candidates()
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in make}
        fitted = {}
        for _ in range(rounds):
            for name in make:
                begin = time.process_time(), time.perf_counter()
                fitted[name] = make[name]().fit(x)
                seconds[name].append((time.process_time() - begin[0], time.perf_counter() - begin[1]))
        for name, model in fitted.items():
            processor, elapsed = (statistics.median(part) for part in zip(*seconds[name], strict=True))
            rows.append(
                {
                    "candidate": name,
                    "dtype": dtype,
                    "processor_seconds": processor,
                    "elapsed_seconds": elapsed,
                    "residual": largest_residual(model.affinity_matrix_, model.embedding_),
                    "accuracy_halves": accuracy(model.embedding_, labels, 2),
                    "accuracy_ten_folds": accuracy(model.embedding_, labels, 10),
                }
            )
    return rows


def largest_residual(affinity: Any, y: NDArray[Any]) -> float:
    """Return largest ‖L_sym v − λ v‖ of the columns v = D^½ y, of length 1, of affinities without their diagonal."""
    affinity = csr_array(affinity, dtype=np.float64)
    affinity = csr_array(affinity - diags(affinity.diagonal()))
    root = np.sqrt(affinity.sum(1))
    v = root[:, None] * y
    v = v / np.linalg.norm(v, axis=0)
    image = v - affinity @ (v / root[:, None]) / root[:, None]
    return float(np.linalg.norm(image - v * (v * image).sum(0), axis=0).max())


def accuracy(y: NDArray[Any], labels: NDArray[Any], folds: int) -> float:
    """Return the accuracy of 5-NN in the embedding, cross-validated, the mean of four divisions into folds."""
    classifier = KNeighborsClassifier(5)
    divisions = (StratifiedKFold(folds, shuffle=True, random_state=seed) for seed in range(4))
    return float(np.mean([cross_val_score(classifier, y, labels, cv=division).mean() for division in divisions]))


def mnist_table(rows: list[dict[str, Any]], rounds: int) -> Table:
    """Return the rows with their processor time over that of scikit-learn's best solver for the dtype."""
    columns = {"": "", "dtype": "", "processor s": ".2f", "elapsed s": ".2f", "/ best of scikit-learn": ".2f"}
    columns |= {"residual": ".1e", "5-NN, halves": ".4f", "5-NN, ten folds": ".4f"}
    title = f"MNIST test set, pixels to {K} columns, {torch.get_num_threads()} threads, median of {rounds}"
    table = Table(title, columns)
    for row in rows:
        peers = (r for r in rows if r["dtype"] == row["dtype"] and r["candidate"].startswith("scikit-learn"))
        best = min(peer["processor_seconds"] for peer in peers)
        seconds = row["processor_seconds"]
        cells = row["candidate"], row["dtype"], seconds, row["elapsed_seconds"], seconds / best
        table.add(*cells, row["residual"], row["accuracy_halves"], row["accuracy_ten_folds"])
    return table


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
    table = Table(title, columns)
    for name, (call, graph) in candidates.items():
        times = seconds[name]
        table.add(name, median(times, 1e3), ratio(times, seconds[PEER]), *quality(graph, call(), exact))
    record.show(table)
    if options.quick:
        return
    try:
        record.show(mnist_table(mnist(3), 3))
    except FileNotFoundError as error:
        record.show(f"MNIST skipped: {error}")
