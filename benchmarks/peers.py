"""The calls of the pages for people who come from another library, side by side, in one run.

Times are of the processor with one thread. Peers that are not installed are named and left out. Published figures of
those that need a GPU are on the pages, marked as such.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.record import Record
from benchmarks.timing import in_turn, median, ratio
from experiments.tables import Table
from torch_lapeig import (
    KNN,
    Graph,
    HeatKernel,
    Laplacian,
    LaplacianEigenmaps,
    SpectralClustering,
    eigenpairs,
    knn_graph,
)

ROUNDS = 3
OURS = "torch_lapeig"
Calls = dict[str, Callable[[], object]]


def roll(points: int, seed: int = 0) -> Tensor:
    """Return a swiss roll with noise, float64 ``(N, 3)``."""
    random = torch.Generator().manual_seed(seed)
    t = 1.5 * torch.pi * (1 + 2 * torch.rand(points, dtype=torch.float64, generator=random))
    height = 21 * torch.rand(points, dtype=torch.float64, generator=random)
    noise = 0.1 * torch.randn(points, 3, dtype=torch.float64, generator=random)
    return torch.stack([t * t.cos(), height, t * t.sin()], 1) + noise


def there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def scikit_learn(points: int) -> tuple[str, Calls]:
    from sklearn.manifold import SpectralEmbedding as Theirs

    from torch_lapeig.sklearn import SpectralEmbedding

    x = roll(points).numpy()
    calls: Calls = {
        "torch_lapeig.sklearn.SpectralEmbedding": lambda: SpectralEmbedding(4, n_neighbors=11).fit_transform(x),
        "sklearn SpectralEmbedding, arpack": lambda: Theirs(4, n_neighbors=11, random_state=0).fit_transform(x),
        "sklearn SpectralEmbedding, lobpcg": lambda: Theirs(
            4, n_neighbors=11, eigen_solver="lobpcg", random_state=0
        ).fit_transform(x),
    }
    return f"scikit-learn: swiss roll, {points:,} points, 10 neighbours, 4 columns", calls


def umap(points: int) -> tuple[str, Calls]:
    """Return the spectral layout of a graph that is given."""
    from umap.spectral import spectral_layout

    x = roll(points)
    graph = HeatKernel()(x, knn_graph(x, 15))
    matrix, data, random = graph.to_scipy().tocsr(), x.numpy(), np.random.RandomState(0)
    calls: Calls = {
        f"{OURS}: LaplacianEigenmaps of the graph": lambda: eigenpairs(Laplacian(graph, "random_walk"), 3),
        "umap.spectral.spectral_layout": lambda: spectral_layout(data, matrix, 2, random),
    }
    return f"UMAP: two columns of a given graph, swiss roll, {points:,} points, 15 neighbours", calls


def pyg(count: int) -> tuple[str, Calls]:
    from torch_geometric.transforms import AddLaplacianEigenvectorPE

    from benchmarks.positional_encoding import molecule
    from torch_lapeig.pyg import AddLaplacianPE

    random = torch.Generator().manual_seed(0)
    graphs = [molecule(int(n), random) for n in torch.randint(12, 38, (count,), generator=random)]
    ours, theirs = AddLaplacianPE(8), AddLaplacianEigenvectorPE(8, is_undirected=True)
    calls: Calls = {
        "torch_lapeig.pyg.AddLaplacianPE, the list": lambda: ours(graphs),
        "AddLaplacianEigenvectorPE, one by one": lambda: [theirs(graph) for graph in graphs],
    }
    return f"PyTorch Geometric: {count} graphs of 12 to 37 nodes, 8 columns", calls


def torch_linalg(points: int) -> tuple[str, Calls]:
    """Return forward and backward of ten eigenvectors of one graph, sparse here and dense there."""
    x = roll(points)
    graph = HeatKernel()(x, knn_graph(x, 10))
    edges, weight = graph.edge_index, graph.weight
    target = torch.randn(points, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def ours() -> Tensor:
        leaf = weight.clone().requires_grad_()
        vectors = eigenpairs(Laplacian(Graph.from_edge_index(edges, leaf, points)), 5).vectors
        return torch.autograd.grad((target * (vectors @ (vectors.mT @ target))).sum(), leaf)[0]

    def matrix(leaf: Tensor) -> Tensor:
        dense = torch.zeros(points, points, dtype=torch.float64).index_put((edges[0], edges[1]), leaf)
        scale = dense.sum(1).rsqrt()
        return torch.eye(points, dtype=torch.float64) - scale[:, None] * dense * scale

    def eigh() -> Tensor:
        leaf = weight.clone().requires_grad_()
        vectors = torch.linalg.eigh(matrix(leaf)).eigenvectors[:, :5]
        return torch.autograd.grad((target * (vectors @ (vectors.mT @ target))).sum(), leaf)[0]

    def lobpcg() -> Tensor:
        torch.manual_seed(0)
        return torch.lobpcg(matrix(weight), 5, largest=False, niter=300)[1]

    calls: Calls = {
        f"{OURS}, forward and backward": ours,
        "torch.linalg.eigh, dense, forward and backward": eigh,
        "torch.lobpcg, dense, forward only": lobpcg,
    }
    return f"torch.linalg: five eigenvectors of one graph of {points:,} nodes", calls


def ncut(points: int) -> tuple[str, Calls]:
    """Return twenty eigenvectors of points; theirs is Nyström of a complete Gaussian graph above 8192 points."""
    from ncut_pytorch import ncut_fn

    random = torch.Generator().manual_seed(0)
    x = torch.randn(points, 16, generator=random) + 4 * torch.randn(8, 16, generator=random).repeat(points // 8, 1)
    model = LaplacianEigenmaps(20, KNN(10), components="separate")
    clusters = SpectralClustering(8, KNN(10))
    calls: Calls = {
        f"{OURS}: LaplacianEigenmaps(20)": lambda: model(x),
        f"{OURS}: SpectralClustering(8), labels": lambda: clusters.fit(x).labels_,
        "ncut_pytorch.ncut_fn(n_eig=20)": lambda: ncut_fn(x, n_eig=20, device="cpu"),
    }
    return f"ncut_pytorch: {points:,} points of 8 clusters in 16 dimensions", calls


COMPARISONS: dict[str, tuple[str, Callable[[int], tuple[str, Calls]], int]] = {
    "scikit-learn": ("sklearn", scikit_learn, 5000),
    "umap-learn": ("umap", umap, 5000),
    "torch-geometric": ("torch_geometric", pyg, 200),
    "torch": ("torch", torch_linalg, 800),
    "ncut_pytorch": ("ncut_pytorch", ncut, 4000),
}


def run(record: Record, options: argparse.Namespace) -> None:
    """Measure and show."""
    missing: list[Any] = []
    for name, (package, make, size) in COMPARISONS.items():
        if not there(package):
            missing.append(name)
            continue
        title, calls = make(size // 4 if options.quick else size)
        seconds = in_turn(calls, ROUNDS)
        table = Table(f"{title}, median of {ROUNDS}", {"": "", "seconds": ".3f", "times ours": ".2f"})
        first = next(iter(calls))
        for call, taken in seconds.items():
            table.add(call, median(taken), ratio(taken, seconds[first]))
        record.show(table)
    if missing:
        record.show(f"Not installed, and so not run: {', '.join(missing)}.")
