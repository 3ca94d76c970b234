"""Graphs of the benchmarks: hard ones (a swiss roll), well separated ones (bridged blobs) and real data."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from sklearn.datasets import load_digits, make_blobs, make_swiss_roll

from torch_lapeig import Graph, HeatKernel, knn_graph

MNIST = "t10k-images-idx3-ubyte.gz"


def neighbors_of(x: np.ndarray, k: int) -> Graph:
    """Return unweighted k-NN graph (union) of points in few dimensions, by a k-d tree."""
    n = len(x)
    _, index = cKDTree(x).query(x, k + 1, workers=-1)
    # A point is its own first neighbour, but for copies of it.
    own = index == np.arange(n)[:, None]
    own[~own.any(1), -1] = True
    one_way = csr_array((np.ones(n * k), (np.repeat(np.arange(n), k), index[~own])), shape=(n, n))
    return Graph.from_scipy(one_way.maximum(one_way.T))


def swiss_roll(n: int, k: int = 15, *, heat: bool = False) -> Graph:
    """Return k-NN graph of a swiss roll, unweighted or with a heat kernel of median bandwidth."""
    x = make_swiss_roll(n, random_state=0)[0]
    graph = neighbors_of(x, k)
    return HeatKernel()(torch.from_numpy(x), graph) if heat else graph


def mnist_points() -> np.ndarray:
    """Return MNIST's test images from TORCH_LAPEIG_DATA; FileNotFoundError without them."""
    file = Path(os.environ.get("TORCH_LAPEIG_DATA", ".")) / MNIST
    if not file.exists():
        raise FileNotFoundError(f"there is no {file}; get it from the MNIST database, and set TORCH_LAPEIG_DATA")
    return np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=16).reshape(-1, 784) / 255


def mnist(k: int = 10) -> Graph:
    """Return k-NN graph of the MNIST test images."""
    return knn_graph(torch.from_numpy(mnist_points()), k)


def digits_points() -> np.ndarray:
    """Return scikit-learn's digits."""
    return np.asarray(load_digits().data, dtype=np.float64)


def digits(k: int = 10) -> Graph:
    """Return k-NN graph of scikit-learn's digits."""
    return knn_graph(torch.from_numpy(digits_points()), k)


def bridged_blobs(n: int = 20_000, clusters: int = 10, k: int = 10) -> Graph:
    """Return k-NN graph of Gaussian clusters in 10 dimensions, each joined to the next by three edges."""
    x, label = make_blobs(n, 10, centers=clusters, center_box=(-12, 12), random_state=0)
    affinity = knn_graph(torch.tensor(x), k).to_scipy().tolil()
    for one in range(clusters - 1):
        for i, j in zip(*(np.flatnonzero(label == c)[:3] for c in (one, one + 1)), strict=True):
            affinity[i, j] = affinity[j, i] = 1
    return Graph.from_scipy(affinity.tocsr())
