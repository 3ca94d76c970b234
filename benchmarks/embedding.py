"""Embedding into ten dimensions against scikit-learn: digits on the same graph, MNIST in whole.

Digits (N = 1797): at most twice the time of ``eigen_solver="arpack"``, with residuals ≤ 1e-5 in float32 and ≤ 1e-10 in
float64. Both get the graph and return the embedding: scikit-learn as a SciPy CSR matrix, which suits it best.

MNIST's test set (N = 10,000, where its file is): search, graph and solve in at most 0.4 times scikit-learn's best
solver, and with the settings of docs/sklearn.md a 5-NN accuracy of at least 0.944 (by halves; ten folds are kinder).
"""

import argparse
import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import subspace_angles
from scipy.sparse import csr_array, diags
from sklearn.manifold import SpectralEmbedding
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.atlas.judge import quality_of
from benchmarks.graphs import digits_points
from benchmarks.record import Record
from benchmarks.timing import in_turn, median, ratio
from experiments.data import mnist_test
from experiments.tables import Table
from torch_lapeig import DensityCorrected, Graph, HeatKernel, Laplacian, eigenpairs, knn_graph
from torch_lapeig import sklearn as estimators

K = 10
PEER = "scikit-learn arpack"


def digits_graph(dtype: torch.dtype) -> Graph:
    x = torch.from_numpy(digits_points()).to(dtype)
    graph: Graph = HeatKernel()(x, knn_graph(x, 10))
    return graph


def unit_vectors(affinity: Any, y: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """Return the largest residual ‖L_sym v − λ v‖ and the vectors v = D^½ y, of affinities without their diagonal."""
    affinity = csr_array(affinity, dtype=np.float64)
    affinity = csr_array(affinity - diags(affinity.diagonal()))
    root = np.sqrt(affinity.sum(1))
    scale = diags(1 / root)
    return quality_of(csr_array(scale @ affinity @ scale), root[:, None] * y).residual, root[:, None] * y


def ours(graph: Graph) -> NDArray[np.float64]:
    y: NDArray[np.float64] = eigenpairs(Laplacian(graph, "random_walk"), K + 1).vectors[:, 1:].numpy()
    return y


def digits(rounds: int) -> Table:
    """Return times, residuals and angles on one and the same graph."""
    single, double = digits_graph(torch.float32), digits_graph(torch.float64)
    exact = torch.linalg.eigh(Laplacian(double).to_dense())[1][:, 1 : K + 1].numpy()
    peer = SpectralEmbedding(K, affinity="precomputed", eigen_solver="arpack", random_state=0)
    candidates: dict[str, tuple[Any, Graph]] = {
        "torch_lapeig float32": (partial(ours, single), single),
        "torch_lapeig float64": (partial(ours, double), double),
        PEER: (partial(peer.fit_transform, double.to_scipy()), double),
    }
    seconds = in_turn({name: call for name, (call, _) in candidates.items()}, rounds)
    columns = {"": "", "ms": ".1f", f"time / {PEER}": ".2f", "largest residual": ".1e", "largest angle (sine)": ".1e"}
    title = f"Digits, N = {double.num_nodes}, k = {K}, {torch.get_num_threads()} threads, median of {rounds}"
    table = Table(title, columns)
    for name, (call, graph) in candidates.items():
        residual, vectors = unit_vectors(graph.to_scipy(), call())
        times, angle = seconds[name], np.sin(subspace_angles(vectors, exact)[0])
        table.add(name, median(times, 1e3), ratio(times, seconds[PEER]), residual, angle)
    return table


def mnist_candidates() -> dict[str, Any]:
    """Return estimators on the graph of ten neighbours, eleven with the sample itself."""
    own = partial(estimators.SpectralEmbedding, K, n_neighbors=11)
    theirs = partial(SpectralEmbedding, K, affinity="nearest_neighbors", n_neighbors=11, random_state=0)
    solvers = ("arpack", "lobpcg", "amg")
    return {
        "torch_lapeig": own(),
        "torch_lapeig, density-corrected": own(weights=DensityCorrected()),
        **{f"scikit-learn {solver}": theirs(eigen_solver=solver) for solver in solvers},
    }


def accuracy(y: NDArray[Any], labels: NDArray[Any], folds: int) -> float:
    """Return the accuracy of 5-NN in the embedding, cross-validated, the mean of four divisions into folds."""
    classifier = KNeighborsClassifier(5)
    divisions = (StratifiedKFold(folds, shuffle=True, random_state=seed) for seed in range(4))
    return float(np.mean([cross_val_score(classifier, y, labels, cv=division).mean() for division in divisions]))


def mnist(rounds: int) -> Table:
    """Return times over that of scikit-learn's best solver for the dtype, residuals and accuracies."""
    pixels, labels = (part.numpy() for part in mnist_test(None))
    columns = {"": "", "dtype": "", "processor s": ".2f", "elapsed s": ".2f", "/ best of scikit-learn": ".2f"}
    columns |= {"residual": ".1e", "5-NN, halves": ".4f", "5-NN, ten folds": ".4f"}
    title = f"MNIST test set, pixels to {K} columns, {torch.get_num_threads()} threads, median of {rounds}"
    table = Table(title, columns)
    for dtype in ("float32", "float64"):
        x, models = pixels.astype(dtype), mnist_candidates()
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
        for _ in range(rounds):
            for name, model in models.items():
                begin = time.process_time(), time.perf_counter()
                model.fit(x)
                seconds[name].append((time.process_time() - begin[0], time.perf_counter() - begin[1]))
        taken = {name: [statistics.median(part) for part in zip(*both, strict=True)] for name, both in seconds.items()}
        best = min(processor for name, (processor, _) in taken.items() if name.startswith("scikit-learn"))
        for name, model in models.items():
            y = model.embedding_
            quality = unit_vectors(model.affinity_matrix_, y)[0], accuracy(y, labels, 2), accuracy(y, labels, 10)
            table.add(name, dtype, *taken[name], taken[name][0] / best, *quality)
    return table


def run(record: Record, options: argparse.Namespace) -> None:
    record.show(digits(5 if options.quick else 15))
    if options.quick:
        return
    try:
        record.show(mnist(3))
    except FileNotFoundError as error:
        record.show(f"MNIST skipped: {error}")
