"""Starts for UMAP of nearly disconnected graphs: umap-learn's own spectral call beside `spectral_init`.

Each solve runs in a process of its own that ends after the limit. The residual is that of L_sym; "λ too large" is how
much the Rayleigh quotient of the peer's last column exceeds the eigenvalue, in relation to it.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, csr_matrix

from benchmarks.child import Child, Ended, serve
from benchmarks.graphs import digits_points, mnist_points
from benchmarks.record import Record, clock_of
from benchmarks.timing import clock
from experiments.tables import Table
from torch_lapeig import HeatKernel, knn_graph, spectral_init

Ints = NDArray[np.int64]
LIMIT = 60.0  # seconds, after which a solve is cut off


def symmetric(i: Any, j: Any, weight: Any, n: int) -> csr_array:
    """The matrix of undirected edges, each given once."""
    one_way = coo_array((np.broadcast_to(weight, np.shape(i)).astype(float), (i, j)), shape=(n, n)).tocsr()
    return csr_array(one_way + one_way.T)


def blob(start: int, size: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """A ring with eight random chords a node."""
    i, j, ring = np.repeat(np.arange(size), 8), rng.integers(0, size, 8 * size), np.arange(size)
    keep = i != j
    return np.concatenate([i[keep], ring]) + start, np.concatenate([j[keep], (ring + 1) % size]) + start


def blobs(n: int, count: int, links: list[tuple[int, int, float]]) -> csr_array:
    """Random blobs of equal size, and links between the first nodes of two blobs."""
    rng, size = np.random.default_rng(0), n // count
    edges = [np.stack(blob(b * size, size, rng)) for b in range(count)]
    i, j = np.concatenate([*edges, size * np.array([link[:2] for link in links], int).reshape(-1, 2).T], 1)
    weight = np.ones(len(i))
    weight[len(i) - len(links) :] = [link[2] for link in links]
    return symmetric(i, j, weight, count * size)


def chained(count: int, weight: float) -> Callable[[int], csr_array]:
    return lambda n: blobs(n, count, [(b, b + 1, weight) for b in range(count - 1)])


def line(n: int, weight: Any = 1.0) -> csr_array:
    return symmetric(np.arange(n - 1), np.arange(1, n), weight, n)


def cycle(n: int) -> csr_array:
    return symmetric(np.arange(n), (np.arange(n) + 1) % n, 1.0, n)


def binary_tree(n: int) -> csr_array:
    return symmetric(np.arange(1, n), (np.arange(1, n) - 1) // 2, 1.0, n)


def spider(n: int, legs: int = 20) -> csr_array:
    """Paths that meet in a node."""
    length = (n - 1) // legs
    node = np.arange(1, length * legs + 1)
    return symmetric(node, np.where((node - 1) % length == 0, 0, node - 1), 1.0, length * legs + 1)


def strip(n: int, width: int = 20) -> csr_array:
    """A long narrow grid."""
    cell = np.arange(n // width * width).reshape(-1, width)
    edges = [(cell[1:], cell[:-1]), (cell[:, 1:], cell[:, :-1])]
    i, j = (np.concatenate([edge[side].ravel() for edge in edges]) for side in (0, 1))
    return symmetric(i, j, 1.0, cell.size)


def barbell(n: int) -> csr_array:
    """Two random blobs at the ends of a path of a third of the nodes."""
    third, rng = n // 3, np.random.default_rng(0)
    path = np.arange(third - 1, 2 * third)
    i, j = np.concatenate([blob(0, third, rng), blob(2 * third, third, rng), (path, path + 1)], 1)
    return symmetric(i, j, 1.0, 3 * third)


def decades(n: int) -> csr_array:
    """A line whose weights spread over six decades."""
    return line(n, 10 ** np.random.default_rng(0).uniform(-6, 0, n - 1))


def hierarchy(n: int, depth: int = 8) -> csr_array:
    """256 blobs, two of which are joined by 1e-8, two pairs by 1e-7, and so on."""
    steps = [2**level for level in range(depth)]
    links = [(b, b + s, 10.0 ** (at - depth)) for at, s in enumerate(steps) for b in range(0, 2**depth, 2 * s)]
    return blobs(n, 2**depth, links)


def cliques(n: int, size: int = 40) -> csr_array:
    """Cliques in a ring of edges of 1e-3."""
    first, (i, j) = np.arange(n // size) * size, np.triu_indices(size, 1)
    inner = [(first[:, None] + side).ravel() for side in (i, j)]
    weight = np.concatenate([np.ones(len(inner[0])), np.full(len(first), 1e-3)])
    ends = (first, np.roll(first, -1) + 1)
    i, j = (np.concatenate([a, b]) for a, b in zip(inner, ends, strict=True))
    return symmetric(i, j, weight, n // size * size)


def far_leaves(n: int) -> csr_array:
    """A random blob with leaves on edges of 1e-9, 1e-8, 1e-7."""
    i, j = blob(0, n - 3, np.random.default_rng(0))
    weight = np.concatenate([np.ones(len(i)), [1e-9, 1e-8, 1e-7]])
    return symmetric(np.concatenate([i, [0, 1, 2]]), np.concatenate([j, n - 3 + np.arange(3)]), weight, n)


def neighbors(x: NDArray[Any], k: int = 15) -> csr_array:
    points = torch.from_numpy(x)
    return HeatKernel()(points, knn_graph(points, k)).to_scipy()


def distant_blobs(n: int) -> NDArray[Any]:
    """Twelve Gaussian blobs that are far apart, so that their neighbourhood graph has several components."""
    rng = np.random.default_rng(0)
    return np.asarray(rng.normal(size=(n, 5)) + 50 * rng.normal(size=(12, 5))[np.arange(n) % 12])


FAMILIES: dict[str, Callable[[int], csr_array]] = {
    "line": line,
    "50 clusters in a chain, links 1e-4": chained(50, 1e-4),
    "two blobs, one edge of 1e-6": chained(2, 1e-6),
    "cycle": cycle,
    "binary tree": binary_tree,
    "20 paths that meet": spider,
    "strip 20 wide": strip,
    "two blobs, a path between": barbell,
    "line, weights over six decades": decades,
    "hierarchy of 256 blobs, 1e-8 to 0.1": hierarchy,
    "cliques of 40 in a ring": cliques,
    "blob with far leaves": far_leaves,
    "1000 blobs apart": lambda n: blobs(n, n // 20, []),
    "12 Gaussian blobs apart": lambda n: neighbors(distant_blobs(n)),
    "digits": lambda n: neighbors(digits_points()),
    "MNIST test set": lambda n: neighbors(mnist_points()),
}


def residuals(affinity: csr_array, v: NDArray[Any]) -> tuple[float, float]:
    """The largest residual of columns as eigenvectors of L_sym, and the largest Rayleigh quotient."""
    root = np.sqrt(affinity.sum(0))
    v = v / np.linalg.norm(v, axis=0)
    image = v - (affinity @ (v / root[:, None])) / root[:, None]
    quotient = (v * image).sum(0)
    return float(np.linalg.norm(image - quotient * v, axis=0).max()), float(quotient.max())


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Solve a family by one of the two."""
    torch.set_num_threads(1)
    affinity = FAMILIES[request["family"]](request["nodes"])
    now = clock()
    begin = now()
    if request["ours"]:
        start = spectral_init(affinity, 2, seed=0)
        seconds, worst = now() - begin, float(start.residuals.max())
        found = {"largest": float(start.eigenvalues[0].max()), "parts": len(start.eigenvalues)}
    else:
        from umap.spectral import spectral_layout

        begin = now()
        # Of sparse arrays it would take products entry by entry.
        v = spectral_layout(
            None,
            csr_matrix(affinity),
            2,
            np.random.RandomState(0),
        )
        seconds, (worst, largest) = now() - begin, residuals(affinity, v)
        found = {"largest": largest}
    return {"seconds": seconds, "residual": worst, "nodes": affinity.shape[0], **found}


def layouts(record: Record, quick: bool) -> None:
    """Trustworthiness of UMAP from its own start and from ours."""
    import umap
    from sklearn.datasets import make_swiss_roll
    from sklearn.manifold import trustworthiness

    data = {
        "digits": digits_points(),
        "swiss roll": make_swiss_roll(2000, random_state=0)[0],
        "12 Gaussian blobs apart": distant_blobs(2000),
    }
    if not quick and os.environ.get("TORCH_LAPEIG_DATA"):
        data["MNIST test set"] = mnist_points()
    table = Table(
        "Trustworthiness of UMAP's layout, 15 neighbours", {"": "", "seed": "d", "umap's": ".4f", "ours": ".4f"}
    )
    for name, x in data.items():
        for seed in range(1 if len(x) > 5000 else 2):
            graph = umap.UMAP(transform_mode="graph", random_state=seed).fit(x).graph_
            start = spectral_init(graph, 2, seed, points=x).coordinates.numpy()
            some = slice(0, 4000)
            scores = [
                trustworthiness(x[some], umap.UMAP(init=init, random_state=seed).fit_transform(x)[some], n_neighbors=15)
                for init in ("spectral", start)
            ]
            table.add(name, seed, *scores)
    record.show(table)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--families", nargs="*", metavar="NAME", default=list(FAMILIES), help="default all; none for none"
    )
    parser.add_argument("--nodes", type=int, default=None, help="default 20,000; quick: 2000")
    parser.add_argument("--no-layouts", action="store_true", help="without UMAP's layouts")


def run(record: Record, options: argparse.Namespace) -> None:
    if options.families:
        solves(record, options.families, options.nodes or (2000 if options.quick else 20_000))
    if not options.no_layouts:
        layouts(record, options.quick)


def solves(record: Record, families: list[str], nodes: int) -> None:
    """Times and residuals of both on each family."""
    columns = {"": "", "nodes": ",", "parts": ",", "ours s": ".2f", "ours residual": ".0e"}
    columns |= {"umap-learn s": ".2f", "umap-learn residual": ".0e", "λ too large": ".0e"}
    table = Table(f"Two columns, {nodes:,} nodes; umap-learn is cut off after {LIMIT:.0f} s", columns)
    child = Child([sys.executable, "-m", "benchmarks.initial"], record.threads)
    for family in families:
        if family.startswith("MNIST") and not os.environ.get("TORCH_LAPEIG_DATA"):
            continue
        request = {"family": family, "nodes": nodes, "limit": {clock_of(record.threads): LIMIT}}
        row = [child.ask({**request, "ours": True})]
        try:
            row.append(child.ask({**request, "ours": False}))
        except Ended as error:
            if not error.stopped:
                raise
            row.append({})
        ours, theirs = row
        one = ours["parts"] == 1 and "residual" in theirs  # of several parts, a layout has no residual
        residual = theirs["residual"] if one else None
        excess = theirs["largest"] / ours["largest"] - 1 if one else None
        shown = (ours["nodes"], ours["parts"], ours["seconds"], ours["residual"])
        table.add(family, *shown, theirs.get("seconds"), residual, excess)
        record.say(f"{family}: {ours['seconds']:.2f} s, umap-learn {theirs.get('seconds', 'stopped')}")
    child.end()
    record.show(table)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    import umap.spectral  # noqa: F401 (before the fork: its import is not part of a limit)

    serve(answer)
