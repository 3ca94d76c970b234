"""New points: time and error of `transform`; MDS, Isomap, LLE and kernel PCA against scikit-learn.

Claims: `LaplacianEigenmaps.transform` of 100,000 queries takes at most 1.5 times as long as the bare search for their
neighbours, in bounded memory; its error against exact eigenfunctions is at most twice that of the training points; the
fit of the other methods on the swiss roll takes no longer than scikit-learn's, and the subspaces agree to 1e-5.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from sklearn import manifold
from sklearn.datasets import make_swiss_roll
from sklearn.decomposition import KernelPCA as PeerKernelPCA
from sklearn.manifold import Isomap as PeerIsomap
from sklearn.manifold import LocallyLinearEmbedding

from benchmarks.memory import growth
from benchmarks.record import Record
from benchmarks.timing import in_turn, median, ratio
from experiments.tables import Table
from torch_lapeig import KNN, LLE, MDS, Isomap, KernelPCA, LaplacianEigenmaps
from torch_lapeig.graph import nearest_neighbors

N = 3000
ClassicalMDS: Any = getattr(manifold, "ClassicalMDS", None)  # from scikit-learn 1.8 on
METHODS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "MDS": (lambda: MDS(2), lambda: ClassicalMDS(2)),
    "Isomap, 10 neighbours": (lambda: Isomap(2, KNN(10)), lambda: PeerIsomap(n_neighbors=10)),
    "LLE, 12 neighbours": (lambda: LLE(2, KNN(12)), lambda: LocallyLinearEmbedding(n_neighbors=12)),
    "kernel PCA, RBF γ = 0.01": (
        lambda: KernelPCA(2, "rbf", gamma=0.01),
        lambda: PeerKernelPCA(2, kernel="rbf", gamma=0.01),
    ),
}
if ClassicalMDS is None:
    del METHODS["MDS"]


def embedding(peer: Any) -> torch.Tensor:
    """Return a fitted peer's embedding of its training points."""
    if isinstance(peer, PeerKernelPCA):
        return torch.from_numpy(peer.eigenvectors_)
    return torch.from_numpy(peer.embedding_)


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return sine of the largest angle between two column spaces."""
    a, b = torch.linalg.qr(a)[0], torch.linalg.qr(b)[0]
    return float(torch.linalg.matrix_norm(b - a @ (a.mT @ b), 2))


def new_points(queries: int, rounds: int) -> Table:
    generator = torch.Generator().manual_seed(0)
    train, new = torch.randn(10_000, 50, generator=generator), torch.randn(queries, 50, generator=generator)
    module = LaplacianEigenmaps(10, KNN(15)).fit(train)
    used = growth(lambda: module.transform(new))
    calls = {"search": lambda: nearest_neighbors(train, 15, new), "transform": lambda: module.transform(new)}
    seconds = in_turn(calls, rounds)
    title = f"{queries:,} queries, 10,000 training points, D = 50, 15 neighbours, float32, median of {rounds}"
    columns = {"": "", "s": ".2f", "time / search": ".2f", "memory above the input, MiB": ".0f"}
    table = Table(f"{title}, {torch.get_num_threads()} threads", columns, chart="time / search")
    table.add("bare search", median(seconds["search"]), 1.0, None)
    table.add("transform", median(seconds["transform"]), ratio(seconds["transform"], seconds["search"]), used)
    return table


def on_a_sphere(n: int, dimension: int, seed: int) -> torch.Tensor:
    """Return uniform points on the unit sphere: their coordinates are its first eigenfunctions."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(n, dimension, generator=generator, dtype=torch.float64), dim=1)


def eigenfunction_errors(n: int, seeds: int) -> Table:
    """Return relative errors after the linear map that fits the embedding of the training points best."""
    columns = {"": "", "training points": ".3f", "new points": ".3f", "new / training": ".2f"}
    table = Table(f"Error against exact eigenfunctions, N = {n}, mean of {seeds} samples", columns)
    for name, dimension, neighbors in (("circle", 2, 30), ("sphere", 3, 30)):
        errors = []
        for seed in range(seeds):
            train, new = on_a_sphere(n, dimension, seed), on_a_sphere(n, dimension, 1000 + seed)
            module = LaplacianEigenmaps(dimension, KNN(neighbors), scale="unit").fit(train)
            fitted = torch.linalg.lstsq(train, module.embedding_).solution
            pairs = ((train, module.embedding_), (new, module.transform(new)))
            errors.append([float((y - x @ fitted).norm() / (x @ fitted).norm()) for x, y in pairs])
        of_train, of_new = torch.tensor(errors).mean(0).tolist()
        table.add(name, of_train, of_new, of_new / of_train)
    return table


def fits(n: int, rounds: int) -> Table:
    x, _ = make_swiss_roll(n, random_state=0)
    points = torch.from_numpy(x)
    title = f"Fit, swiss roll, N = {n}, float64, {torch.get_num_threads()} threads, median of {rounds}"
    part = "time / scikit-learn"
    columns = {"": "", "s": ".2f", "scikit-learn, s": ".2f", part: ".2f", "largest angle (sine)": ".1e"}
    table = Table(title, columns, chart=part)
    for name, (ours, theirs) in METHODS.items():
        seconds = in_turn({"ours": lambda: ours().fit(points), "theirs": lambda: theirs().fit(x)}, rounds)  # noqa: B023
        times = median(seconds["ours"]), median(seconds["theirs"]), ratio(seconds["ours"], seconds["theirs"])
        table.add(name, *times, angle(ours().fit(points).embedding_, embedding(theirs().fit(x))))
    return table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)


def run(record: Record, options: argparse.Namespace) -> None:
    """Measure and show."""
    queries, rounds = (10_000, 2) if options.quick else (options.queries, options.rounds)
    record.show(new_points(queries, rounds))
    record.show(eigenfunction_errors(*((1000, 2) if options.quick else (2000, 5))))
    record.show(fits(800 if options.quick else N, rounds))
