"""What one would try instead, each in one run beside ours: SciPy's drivers, scikit-learn, `torch.linalg`.

    python -m benchmarks alternatives

Goals, and why some are not reached, are in RESULTS.md. The error is that of the eigenvalues.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sparse
import scipy.sparse.linalg as linalg
import torch
from sklearn import manifold
from torch import Tensor

import torch_lapeig.sklearn
from benchmarks.record import Record
from benchmarks.timing import in_turn, median, ratio
from experiments.tables import Table
from torch_lapeig import Graph, Laplacian, MagneticLaplacian, eigenpairs, svd
from torch_lapeig.eigen import FactoredCosine, eigh
from torch_lapeig.graph import DirectedGraph

Call = Callable[[], Any]
Row = tuple[str, Call, Mapping[str, Call]]  # the work, by us, and by each peer; calls return eigenvalues, or nothing


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def affinities(*shape: int) -> tuple[Tensor, Any]:
    """Return affinities of random points, without loops, and D^-½ W D^-½ for SciPy."""
    x = random(*shape, 5)
    w = (-torch.cdist(x, x).square() / 4).exp()
    w.diagonal(dim1=-2, dim2=-1).zero_()
    root = w.sum(-1).rsqrt()
    return w, (root[..., None] * w * root[..., None, :]).numpy()


def of_graph(laplacian: Callable[..., Any], graph: Any, k: int) -> Tensor:
    """Return eigenvalues from a graph on."""
    return eigenpairs(laplacian(graph), k).values


def of_matrix(matrix: Any, k: int, **options: Any) -> Tensor:
    return eigenpairs(matrix, k, **options).values.sort().values


def by_subset_driver(matrices: Any, k: int) -> Any:
    """Return the smallest values by LAPACK's driver, of one matrix after the other."""
    return np.stack([scipy.linalg.eigh(np.eye(len(s)) - s, subset_by_index=[0, k - 1])[0] for s in matrices])


def by_largest(matrix: Any, k: int) -> Any:
    """Return 1 − the largest values by `eigsh`."""
    return np.sort(1 - linalg.eigsh(matrix, k, which="LA")[0])


def by_eigsh(matrix: Any, k: int, **options: Any) -> Any:
    return np.sort(linalg.eigsh(matrix, k, **options)[0])


def csr_of(rows: Any) -> Tensor:
    crow, col = (torch.from_numpy(part).long() for part in (rows.indptr, rows.indices))
    return torch.sparse_csr_tensor(crow, col, torch.from_numpy(rows.data), rows.shape, check_invariants=False)


def dense() -> Iterator[Row]:
    for n, k in ((600, 4), (600, 8), (1000, 4), (1000, 8)):
        w, s = affinities(1, n)
        peers = {"subset driver": partial(by_subset_driver, s, k), "eigsh": partial(by_largest, s[0], k)}
        yield f"dense affinities {n}, k = {k}", partial(of_graph, Laplacian, Graph.from_dense(w[0]), k), peers
    w, s = affinities(5, 576)
    peers = {"subset driver": partial(by_subset_driver, s, 4)}
    yield "five dense 576², k = 4", partial(of_graph, Laplacian, Graph.from_dense(w), 4), peers


def magnetic(n: int = 3000) -> Iterator[Row]:
    edges = torch.randint(n, (2, 5 * n), generator=torch.Generator().manual_seed(0))
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    graph = DirectedGraph.from_edge_index(edges, torch.ones(edges.shape[1], dtype=torch.float64), n)
    a = sparse.csr_array((np.ones(edges.shape[1]), edges.numpy()), shape=(n, n))
    w = ((a + a.T) / 2).tocoo()
    row, col = w.coords
    root = 1 / np.sqrt(w.sum(1).clip(1e-12))
    phase = np.exp(0.5j * np.pi * (a[row, col] - a.T.tocsr()[row, col]))
    hermitian = sparse.csr_array((w.data * phase * root[row] * root[col], (row, col)), shape=(n, n))
    peers = {"eigsh, complex": partial(by_largest, hermitian, 6)}
    yield f"magnetic Laplacian {n:,}, k = 6", lambda: MagneticLaplacian(graph).eigenpairs(6).values, peers


def cosine() -> Iterator[Row]:
    rows = sparse.random_array((5000, 2000), density=0.02, rng=0, format="csr")
    plain = random(3000, 50).abs()
    unit = sparse.csr_array(rows / linalg.norm(rows, axis=1)[:, None])
    dense_unit = (plain / plain.norm(dim=1, keepdim=True)).numpy()
    several = (("5,000 × 2,000, 2 % of entries", csr_of(rows), unit), ("3,000 × 50, dense", plain, dense_unit))
    for name, x, u in several:
        root = 1 / np.sqrt(u @ (u.T @ np.ones(len(x))) - 1)

        def product(v: Any, u: Any = u, root: Any = root) -> Any:
            return root * (u @ (u.T @ (root * v)) - root * v)

        other = linalg.LinearOperator((len(x), len(x)), product, dtype=float)
        ours = partial(of_graph, partial(FactoredCosine, loops=False), x, 8)
        yield f"cosines of {name}, k = 8", ours, {"eigsh": partial(by_largest, other, 8)}


def rbf() -> Iterator[Row]:
    for n in (1000, 3000):
        x = random(n, 8).numpy()
        ours = torch_lapeig.sklearn.SpectralEmbedding(2, affinity="rbf")
        theirs = manifold.SpectralEmbedding(2, affinity="rbf", random_state=0)
        yield f"SpectralEmbedding, rbf, {n:,} points", partial(ours.fit, x), {"scikit-learn": partial(theirs.fit, x)}


def tridiagonal(n: int, beside: float, own: float) -> Any:
    return sparse.diags_array([np.full(n - 1, beside), np.full(n, own), np.full(n - 1, beside)], offsets=[-1, 0, 1])


def pencil() -> Iterator[Row]:
    for side in (32, 141, 224):  # square elements, bilinear
        k1, m1 = tridiagonal(side, -1.0, 2.0), tridiagonal(side, 1 / 6, 2 / 3)
        k, m = sparse.csr_array(sparse.kron(k1, m1) + sparse.kron(m1, k1)), sparse.csr_array(sparse.kron(m1, m1))
        peers = {"eigsh, σ = 0": partial(by_eigsh, k.tocsc(), 8, M=m.tocsc(), sigma=0)}
        yield f"pencil with consistent mass {side**2:,}, k = 8", partial(of_matrix, k, 8, mass=m), peers
        peers = {"eigsh, σ = 0.05": partial(by_eigsh, k.tocsc(), 8, sigma=0.05)}
        yield f"the 8 nearest 0.05, {side**2:,}", partial(of_matrix, k, 8, nearest=0.05), peers
    n = 5000
    filled = sparse.random_array((n, n), density=8 / n, rng=0, format="csr")
    filled = filled + filled.T
    filled = sparse.csr_array(filled + sparse.diags_array(filled.sum(1) + 0.1))
    line = sparse.csr_array(tridiagonal(n, 1 / 6, 2 / 3))
    peers = {"eigsh, from below": partial(by_eigsh, filled, 8, M=line, which="SA")}
    yield f"pencil whose factors fill in {n:,}, k = 8", partial(of_matrix, filled, 8, mass=line), peers


def triplets() -> Iterator[Row]:
    x, rows = random(5000, 500), sparse.random_array((100_000, 10_000), density=2e-4, rng=0, format="csr")
    for name, a, other in (("5,000 × 500, dense", x, x.numpy()), ("100,000 × 10,000, sparse", csr_of(rows), rows)):
        peers = {"svds": partial(lambda other: np.sort(linalg.svds(other, 10)[1])[::-1], other)}
        yield f"svd {name}, k = 10", partial(lambda a: svd(a, 10).S, a), peers


def both(function: Callable[[Tensor], Any], x: Tensor, calls: int) -> Call:
    """Return a call of a function and its backward, for a loss that depends on no sign."""

    def step() -> None:
        for _ in range(calls):
            found = function(given := x.clone().requires_grad_())
            parts = found[:2] if isinstance(found, tuple) else (found,)
            sum((part.square() * part.detach()).sum() for part in parts).backward()
            assert given.grad is not None

    return step


def small() -> Iterator[Row]:
    for count, n, calls in ((1, 3, 200), (100_000, 3, 1), (1024, 30, 1), (64, 128, 1)):
        a = random(count, n, n)
        a = (a + a.mT)[0] if count == 1 else a + a.mT
        peers = {"torch.linalg.eigh": both(torch.linalg.eigh, a, calls)}
        yield f"eigh {count:,} of {n} × {n}, both ways", both(eigh, a, calls), peers


PARTS = {f.__name__: f for f in (dense, magnetic, cosine, rbf, pencil, triplets, small)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS], help="what to measure")
    parser.add_argument("--rounds", type=int, default=7)


def run(record: Record, options: argparse.Namespace) -> None:
    rounds = 1 if options.quick else options.rounds
    columns = {"work": "", "ms": ",.2f", "peer": "", "its ms": ",.2f", "time / peer": ".2f", "error": ".0e"}
    table = Table(f"Alternatives, {torch.get_num_threads()} threads, median of {rounds}", columns)
    for part in options.parts:
        for work, ours, peers in PARTS[part]():
            seconds = in_turn({"": ours, **peers}, rounds)
            for peer, call in peers.items():
                own, other = ours(), call()
                error = float(abs(own.numpy() - other).max()) if isinstance(own, Tensor) else "–"
                times = median(seconds[peer], 1e3), ratio(seconds[""], seconds[peer])
                table.add(work, median(seconds[""], 1e3), peer, *times, error)
    record.show(table)
