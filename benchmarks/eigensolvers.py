"""Smallest eigenpairs of graph Laplacians against scikit-learn's three solvers and SciPy's `eigsh`.

k = 10, float64, largest residual ‖L_sym v − λ v‖ at most 1e-6, setup included. Each candidate has the loosest of its
tolerances (half decades) that reaches this residual. Claims: swiss roll, 15-NN, at least 2.5 × faster than the best
peer at N = 100,000 and 1.5 × at 20,000; MNIST test set, bridged blobs and digits within 1.3 × of the best peer, and
10 × faster than scikit-learn's default on MNIST. With ``--large``: iterations from 10⁴ to 10⁶ grow at most 2 ×, 10⁶
nodes in 90 s and 6 GiB.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.sparse import csr_array, csr_matrix, dia_array
from scipy.sparse.linalg import eigsh
from sklearn.manifold import spectral_embedding

from benchmarks import graphs
from benchmarks.memory import status
from benchmarks.timing import in_turn, ratio
from torch_lapeig import Graph, Laplacian, eigenpairs

K, RESIDUAL = 10, 1e-6
TOLERANCES = [10 ** (-p / 2) for p in range(2, 21)]
OURS = "torch_lapeig"
Solve = Callable[[float], "np.ndarray"]


def normalized(affinity: csr_array) -> csr_array:
    scale = dia_array((np.asarray(affinity.sum(1)).ravel() ** -0.5, 0), shape=affinity.shape)
    return csr_array(scale @ affinity @ scale)


def residual(s: csr_array, v: np.ndarray) -> float:
    """Largest ‖v − S v − λ v‖ of unit vectors with their Rayleigh quotients λ."""
    v = v / np.linalg.norm(v, axis=0)
    image = v - s @ v
    return float(np.linalg.norm(image - v * (v * image).sum(0), axis=0).max())


def largest_angle(v: np.ndarray, exact: np.ndarray) -> float:
    """Sine of the largest angle between the spans."""
    q, basis = np.linalg.qr(v)[0], np.linalg.qr(exact)[0]
    return float(np.linalg.norm(q - basis @ (basis.T @ q), 2))


def candidates(graph: Graph) -> dict[str, Solve]:
    affinity = csr_array(graph.to_scipy())
    matrix = csr_matrix(affinity)  # what scikit-learn takes
    half = np.sqrt(np.asarray(affinity.sum(1)).ravel())[:, None]
    start = np.random.default_rng(0).random(len(half))

    def sklearn(solver: str) -> Solve:
        def call(tolerance: float) -> np.ndarray:
            options = {"n_components": K, "drop_first": False, "random_state": 0}
            vectors = spectral_embedding(matrix, eigen_solver=solver, eigen_tol=tolerance, **options)
            return np.asarray(half * vectors)

        return call

    def ours(tolerance: float) -> np.ndarray:
        return eigenpairs(Laplacian(graph), K, tolerance=tolerance).vectors.numpy()

    return {
        OURS: ours,
        "SciPy eigsh on S": lambda tolerance: eigsh(normalized(affinity), K, which="LA", tol=tolerance, v0=start)[1],
        "scikit-learn arpack": sklearn("arpack"),
        "scikit-learn amg": sklearn("amg"),
        "scikit-learn lobpcg": sklearn("lobpcg"),
    }


def loosest(solve: Solve, s: csr_array, limit: float) -> tuple[float, float, float] | None:
    """Loosest tolerance that reaches the residual, that residual, and the seconds; None where none does in time."""
    begin = time.perf_counter()
    for tolerance in TOLERANCES:
        start = time.perf_counter()
        try:
            found = residual(s, solve(tolerance))
        except (RuntimeError, ValueError, np.linalg.LinAlgError):
            return None
        seconds = time.perf_counter() - start
        if found <= RESIDUAL:
            return tolerance, found, seconds
        if time.perf_counter() - begin > limit:
            return None
    return None


def compare(title: str, graph: Graph, rounds: int, limit: float = 120.0) -> Table:
    s = normalized(csr_array(graph.to_scipy()))
    table = Table(title=f"{title}: {graph.num_nodes:,} nodes, {len(graph.weight):,} entries, {rounds} rounds")
    for heading in ("", "s", "time / best peer", "residual", "largest angle", "tolerance"):
        table.add_column(heading, justify="right")
    exact = eigenpairs(Laplacian(graph), K).vectors.numpy()
    chosen: dict[str, tuple[float, float]] = {}
    timed: dict[str, Callable[[], object]] = {}
    angles: dict[str, float] = {}
    for name, solve in candidates(graph).items():
        found = loosest(solve, s, limit)
        if found is None:
            table.add_row(name, "–", "–", f"not ≤ {RESIDUAL:.0e} in {limit:.0f} s", "", "")
            continue
        chosen[name] = found[:2]
        angles[name] = largest_angle(solve(found[0]), exact)
        timed[name] = functools.partial(solve, found[0])
    seconds = in_turn(timed, rounds)
    best = min((name for name in timed if name != OURS), key=lambda name: statistics.median(seconds[name]))
    for name, times in seconds.items():
        tolerance, found_residual = chosen[name]
        table.add_row(
            name,
            f"{statistics.median(times):.3f}",
            f"{ratio(times, seconds[best]):.2f}",
            f"{found_residual:.1e}",
            f"{angles[name]:.1e}",
            f"{tolerance:.1e}",
        )
    return table


def growth() -> Table:
    table = Table(title="Swiss roll, residual ≤ 1e-6 and ≤ 0.1 of the gap")
    for heading in ("nodes", "iterations", "s", "residual", "gap", "peak memory of the process, GiB"):
        table.add_column(heading, justify="right")
    for n in (10**4, 10**5, 10**6):
        graph = graphs.swiss_roll(n)
        gap = eigenpairs(Laplacian(graph), K, tolerance=0.1).gap.item() if n < 10**6 else 1e-5
        start = time.perf_counter()
        pairs = eigenpairs(Laplacian(graph), K, tolerance=min(0.1, RESIDUAL / gap))
        seconds = time.perf_counter() - start
        table.add_row(
            f"{n:,}",
            str(pairs.iterations),
            f"{seconds:.2f}",
            f"{pairs.residuals.max():.1e}",
            f"{pairs.gap:.1e}",
            f"{status('VmHWM') / 1024:.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=None, help="folder with the MNIST test images")
    parser.add_argument("--large", action="store_true", help="only the growth up to 10⁶ nodes")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    console = Console(width=120)
    console.print(f"{torch.get_num_threads()} threads")
    if options.large:
        console.print(growth())
        return
    console.print(compare("Digits, 10-NN", graphs.digits(), 3 * options.rounds))
    try:
        console.print(compare("MNIST test set, 10-NN", graphs.mnist(options.data), options.rounds))
    except FileNotFoundError as error:
        console.print(f"skipped: {error}")
    console.print(compare("10 bridged blobs, 10-NN", graphs.bridged_blobs(), options.rounds))
    for n in (20_000, 100_000):
        console.print(compare("Swiss roll, 15-NN", graphs.swiss_roll(n), options.rounds))
    heat = graphs.swiss_roll(20_000, 10, heat=True)
    console.print(compare("Swiss roll, 10-NN, heat kernel", heat, options.rounds))


if __name__ == "__main__":
    main()
