"""MDS, Isomap, LLE and kernel PCA against scikit-learn: time to fit and agreement, on the swiss roll.

Claim: the fit takes no longer than scikit-learn's, and the subspaces agree to 1e-5.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import make_swiss_roll
from sklearn.decomposition import KernelPCA as PeerKernelPCA
from sklearn.manifold import ClassicalMDS, LocallyLinearEmbedding
from sklearn.manifold import Isomap as PeerIsomap

from benchmarks.timing import in_turn, ratio
from torch_lapeig import KNN, LLE, MDS, Isomap, KernelPCA

N, ROUNDS = 3000, 5
METHODS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "MDS": (lambda: MDS(2), lambda: ClassicalMDS(2)),
    "Isomap, 10 neighbours": (lambda: Isomap(2, KNN(10)), lambda: PeerIsomap(n_neighbors=10)),
    "LLE, 12 neighbours": (lambda: LLE(2, 12), lambda: LocallyLinearEmbedding(n_neighbors=12)),
    "kernel PCA, RBF γ = 0.01": (
        lambda: KernelPCA(2, "rbf", gamma=0.01),
        lambda: PeerKernelPCA(2, kernel="rbf", gamma=0.01),
    ),
}


def embedding(peer: Any) -> torch.Tensor:
    """A fitted peer's embedding of its training points."""
    if isinstance(peer, PeerKernelPCA):
        return torch.from_numpy(peer.eigenvectors_)
    return torch.from_numpy(peer.embedding_)


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    """Sine of the largest angle between two column spaces."""
    a, b = torch.linalg.qr(a)[0], torch.linalg.qr(b)[0]
    return float(torch.linalg.matrix_norm(b - a @ (a.mT @ b), 2))


def main() -> None:
    x, _ = make_swiss_roll(N, random_state=0)
    points = torch.from_numpy(x)
    title = f"fit, swiss roll, N = {N}, float64, {torch.get_num_threads()} threads, median of {ROUNDS}"
    table = Table(title=title)
    for heading in ("", "s", "scikit-learn, s", "time / scikit-learn", "largest angle (sine)"):
        table.add_column(heading, justify="right")
    for name, (ours, theirs) in METHODS.items():
        seconds = in_turn({"ours": lambda: ours().fit(points), "theirs": lambda: theirs().fit(x)}, ROUNDS)  # noqa: B023
        table.add_row(
            name,
            f"{statistics.median(seconds['ours']):.2f}",
            f"{statistics.median(seconds['theirs']):.2f}",
            f"{ratio(seconds['ours'], seconds['theirs']):.2f}",
            f"{angle(ours().fit(points).embedding_, embedding(theirs().fit(x))):.1e}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
