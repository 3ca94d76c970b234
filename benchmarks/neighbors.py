"""Exact 15-nearest neighbours in float32 against the bare matrix product, faiss and scikit-learn; memory; graph.

Claims: at most 1.25 × the time of the blocked matrix product X Xᵀ for 70,000 × 50 and 10,000 × 784; ahead of faiss
`IndexFlatL2` at 70,000 × 50 and of scikit-learn's brute force everywhere; at most 512 MiB above its input for 10⁶ × 50;
the rest of the graph (symmetrise, weights, degrees) at most 15 % of the search at 70,000. That 99.99 % of the
neighbours are those of a float64 brute force is said by tests/graph/search/test_neighbors.py.

``--rows`` times a slice of the queries in each round where the whole takes long (70,000: the product alone 4 s).
"""

import argparse
import importlib.util
import resource
import time
from collections.abc import Callable
from functools import partial

import torch
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from benchmarks.graphs import mnist_points
from benchmarks.record import Record
from benchmarks.timing import compared, in_turn
from experiments.tables import Table
from torch_lapeig import HeatKernel, Laplacian, knn_graph
from torch_lapeig.graph import nearest_neighbors

K = 15
BARE = "bare product"
RECALL = 0.99


def product(queries: Tensor, x: Tensor, rows: int = 1024) -> None:
    """Compute only the blocked matrix product."""
    buffer = x.new_empty(rows, len(x))
    for block in queries.split(rows):
        torch.mm(block, x.T, out=buffer[: len(block)])


def normal_points(n: int, d: int) -> Tensor:
    """Return points of equal spread in each direction: the worst case."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0))


def compare(x: Tensor, rounds: int, rows: int, kind: str = "normal points") -> Table:
    """Search of all points, or of ``rows`` of them as queries, among all."""
    n, d = x.shape
    queries = None if rows >= n else x[:rows]
    asked = x if queries is None else queries
    peer = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(x.numpy())
    theirs = None if queries is None else asked.numpy()
    candidates: dict[str, Callable[[], object]] = {
        BARE: lambda: product(asked, x),
        "torch_lapeig": lambda: nearest_neighbors(x, K, queries),
        "scikit-learn brute": lambda: peer.kneighbors(theirs, return_distance=False),
    }
    if importlib.util.find_spec("faiss"):
        index = importlib.import_module("faiss").IndexFlatL2(d)
        index.add(x.float().numpy())
        candidates["faiss IndexFlatL2"] = lambda: index.search(asked.float().numpy(), K + 1)
    title = f"{K}-NN of {len(asked):,} among {n:,} × {d}, {kind}, {str(x.dtype)[6:]}"
    return compared(title, candidates, BARE, rounds)[0]


def compare_tree(n: int, rounds: int) -> Table:
    """Compare in few dimensions with SciPy's tree on all cores, its building included."""
    x = normal_points(n, 3)

    def tree() -> object:
        points = x.double().numpy()
        return cKDTree(points).query(points, 11, workers=-1)

    candidates = {"SciPy cKDTree": tree, "torch_lapeig": lambda: nearest_neighbors(x, 10)}
    return compared(f"10-NN of {n:,} × 3", candidates, "SciPy cKDTree", rounds)[0]


def approximate(n: int) -> str:
    """Return seconds of one approximate search, and the share of true neighbours of a sample."""
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(100, 50, generator=generator)
    x = centres[torch.randint(0, 100, (n,), generator=generator)] + torch.randn(n, 50, generator=generator)
    chosen = torch.linspace(0, n - 1, 1000).long()
    true = nearest_neighbors(x, K + 1, x[chosen]).indices
    true = true[true != chosen[:, None]].reshape(len(chosen), -1)[:, :K]
    begin = time.perf_counter()
    found = nearest_neighbors(x, K, recall=RECALL).indices[chosen]
    seconds = time.perf_counter() - begin
    share = float((found[:, :, None] == true[:, None, :]).any(2).sum()) / true.numel()
    return f"{K}-NN of {n:,} × 50 in 100 clusters, recall={RECALL}: {seconds:.1f} s, {share:.4f} of the true neighbours"


def peak_memory(rows: int) -> float:
    """Return the MiB above the input for ``rows`` queries among 10⁶ × 50 points, by the highest so far."""
    x = torch.randn(10**6, 50, generator=torch.Generator().manual_seed(0))
    nearest_neighbors(x[:5000], K)  # what any search takes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    nearest_neighbors(x, K, x[:rows])
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def construction(n: int, rounds: int) -> tuple[float, float]:
    """Return seconds of the search, and of symmetrising, weighting and degrees together: the best of some rounds."""
    x = torch.randn(n, 50, generator=torch.Generator().manual_seed(0))
    graph = knn_graph(x, K)
    calls: dict[str, Callable[[], object]] = {"search": partial(nearest_neighbors, x, K)}
    calls |= {"graph": partial(knn_graph, x, K), "weights": lambda: Laplacian(HeatKernel()(x, graph))}
    search, built, weighted = (min(values) for values in in_turn(calls, rounds).values())
    return search, built - search + weighted


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=8192, help="queries of each round at 70,000 points")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--approximate", type=int, default=10**6, help="points of the approximate search; 0: none")


def run(record: Record, options: argparse.Namespace) -> None:
    rows, rounds, n = (1024, 2, 10_000) if options.quick else (options.rows, options.rounds, 70_000)
    record.show(f"10⁶ × 50: {peak_memory(2048):.0f} MiB above the input for 2048 queries, default budget")
    of_images = rows if options.quick else 10_000
    record.show(compare(normal_points(70_000, 50), rounds, rows))
    record.show(compare(normal_points(10_000, 784), rounds, of_images))
    try:
        images = torch.from_numpy(mnist_points())
    except FileNotFoundError as error:
        record.show(str(error))
    else:
        record.show(compare(images.float(), rounds, of_images, "MNIST"))
        if not options.quick:
            record.show(compare(images, rounds, of_images, "MNIST"))
    record.show(compare_tree(50_000 if options.quick else 10**6, rounds))
    if of_clusters := 20_000 if options.quick else options.approximate:
        record.show(approximate(of_clusters))
    search, rest = construction(n, rounds)
    record.show(f"graph of {n:,} × 50: search {search:.2f} s, the rest {rest:.2f} s: {rest / search:.1%}")
