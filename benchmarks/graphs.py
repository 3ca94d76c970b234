"""Graphs and data of the benchmarks."""

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from sklearn.datasets import load_digits, make_swiss_roll

from torch_lapeig import Graph, HeatKernel

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


def digits_points() -> np.ndarray:
    return np.asarray(load_digits().data, dtype=np.float64)
