"""Broken and borderline input at every public name that reaches compiled loops or indices.

A draw ends in an answer or in a clear error of Python; what it must not do, `benchmarks.sanitize` sees: read or write
memory that is not its own. Numbers of answers are judged elsewhere. Each draw has random numbers of its own, so that
one can be repeated alone.
"""

import traceback
import warnings
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

import torch_lapeig as lapeig
from torch_lapeig import Graph, Laplacian, eigen, eigenpairs
from torch_lapeig.eigen import FactoredCosine, FunctionOperator, NullSpace, SparseFactors, SymmetricOperator
from torch_lapeig.graph import DensePattern, SparsePattern, nearest_neighbors, radius_neighbors
from torch_lapeig.samplers import EdgeSampler, NeighborhoodSampler

Rng = np.random.Generator
CLEAR = (TypeError, ValueError, IndexError, NotImplementedError, lapeig.ConvergenceError)
FAR = (-1, -2, -(2**31), 2**31 - 1, 2**31, 2**40, 10**6)  # indices that no graph has, beside its size


def flip(rng: Rng, share: float = 0.15) -> bool:
    return bool(rng.random() < share)


def size(rng: Rng) -> int:
    return int(rng.choice([0, 1, 2, 3, 5, 8, 17, 40, 70], p=[0.04, 0.06, 0.05, 0.05, 0.1, 0.2, 0.2, 0.2, 0.1]))


def symmetric(rng: Rng, n: int) -> np.ndarray[Any, Any]:
    """Return affinities, about five for each node."""
    half = np.triu(rng.random((n, n)) < min(1.0, 5 / max(n, 1)), 1) * rng.random((n, n))
    whole: np.ndarray[Any, Any] = half + half.T
    if n and flip(rng):
        np.fill_diagonal(whole, rng.random(n))
    return whole


def spoilt(rng: Rng, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return numbers of which some may be zero, negative, tiny, huge or not finite, or of another dtype."""
    values = values.copy()
    if values.size and flip(rng, 0.3):
        at = rng.integers(0, values.size, 1 + values.size // 9)
        values.flat[at] = rng.choice([0.0, -0.0, -1.0, 1e-300, 1e-9, 1e300, np.nan, np.inf, -np.inf])
    if flip(rng):
        values = values.astype(rng.choice(["f4", "i8", "i1", "?", "f2", "c16"]))
    return values


def tensor(rng: Rng, values: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor, in float64 or float32, of rows in one piece or not, with gradients or not."""
    found = torch.from_numpy(values)
    if flip(rng, 0.4) and found.is_floating_point():
        found = found.float()
    if flip(rng) and found.ndim:
        found = torch.stack([found, found], -1)[..., 0]
    return found.requires_grad_() if found.is_floating_point() and flip(rng) else found


def broken_indices(rng: Rng, index: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
    """Return indices of which some may be out of range, unsorted or repeated, or of another dtype."""
    index = index.copy()
    if index.size and flip(rng):
        index.flat[rng.integers(0, index.size, 1 + index.size // 20)] = rng.choice([n, n + 1, -n - 1, *FAR])
    if index.size and flip(rng):
        index = rng.permuted(index, axis=-1)
    if index.size and flip(rng):
        index[..., -1] = index[..., 0]
    return index.astype(rng.choice(["i4", "f8", "i2", "u1"])) if flip(rng) else index


def edges(rng: Rng, n: int) -> tuple[Tensor, Tensor | None]:
    """Return edges and weights, both directions of each unless one is lost."""
    dense = symmetric(rng, n)
    index = broken_indices(rng, np.stack(dense.nonzero()).astype(np.int64), n)
    weight = spoilt(rng, dense[dense.nonzero()])
    if flip(rng) and index.shape[1]:
        keep = rng.random(index.shape[1]) < 0.9
        index, weight = index[:, keep], weight[keep]
    if flip(rng, 0.05):
        index = index.T if flip(rng, 0.5) else index[:1]
    return tensor(rng, index), tensor(rng, weight) if flip(rng, 0.6) else None


def scipy_matrix(rng: Rng, dense: np.ndarray[Any, Any]) -> Any:
    """Return a SciPy matrix of any format, whose arrays may have been written to."""
    kind = rng.choice(["csr", "csc", "coo", "bsr", "lil", "dok", "dia"], p=[0.4, 0.15, 0.2, 0.1, 0.05, 0.05, 0.05])
    matrix = scipy.sparse.csr_array(dense).asformat(kind)
    if kind in ("csr", "csc", "bsr"):
        if flip(rng, 0.3):
            _ = matrix.has_canonical_format  # which SciPy recalls
        matrix.indices = broken_indices(rng, matrix.indices, matrix.shape[1])
        if flip(rng):
            matrix.indptr = matrix.indptr.copy()
            matrix.indptr[rng.integers(0, len(matrix.indptr))] = rng.choice([-1, -(2**31), 2**31 - 1, 3, 10**6])
        if flip(rng, 0.05):
            matrix.indptr = matrix.indptr[:-1]
        if flip(rng, 0.05):
            matrix.indptr[-1] = 0
    elif kind == "coo":
        matrix.row = broken_indices(rng, matrix.row, matrix.shape[0])
        matrix.col = broken_indices(rng, matrix.col, matrix.shape[1])
    elif kind == "lil" and matrix.shape[0] and flip(rng, 0.3):
        matrix.rows[0] = [int(rng.choice([*FAR, matrix.shape[1]]))]
    if kind in ("csr", "csc", "coo") and matrix.data.ndim == 1:
        data = spoilt(rng, matrix.data)
        matrix.data = data.astype(np.float32) if data.dtype == np.float16 else data  # which SciPy does not know
        matrix.data = matrix.data[:-1] if flip(rng, 0.05) else matrix.data
    return matrix


def torch_sparse(rng: Rng, dense: np.ndarray[Any, Any]) -> Tensor:
    """Return a sparse tensor whose indices nobody has checked."""
    if flip(rng, 0.4):
        index = broken_indices(rng, np.stack(dense.nonzero()).astype(np.int64), dense.shape[1])
        values = torch.from_numpy(dense[dense.nonzero()])
        return torch.sparse_coo_tensor(torch.from_numpy(index), values, dense.shape, check_invariants=False)
    matrix = scipy.sparse.csr_array(dense)
    crow, col = matrix.indptr.copy(), broken_indices(rng, matrix.indices, dense.shape[1])
    if flip(rng):
        crow[rng.integers(0, len(crow))] = rng.choice([-1, 2**31 - 1, 3])
    rows, columns, values = (torch.from_numpy(part) for part in (crow, col.astype(crow.dtype), matrix.data))
    return torch.sparse_csr_tensor(rows, columns, values, dense.shape, check_invariants=False)


def solver(rng: Rng) -> Any:
    lobpcg = eigen.Lobpcg(), eigen.Lobpcg(preconditioner=SparseFactors())
    options = [None, eigen.ShiftInvert(), eigen.ChebyshevSubspace(), *lobpcg, eigen.Eigh()]
    return options[int(rng.integers(len(options)))]


def solved(rng: Rng, operator: Any) -> None:
    pairs = eigenpairs(operator, int(rng.integers(1, 6)), solver(rng))
    if pairs.values.requires_grad:
        (pairs.values.sum() + pairs.vectors.square().sum()).backward()


def used(rng: Rng, graph: Graph) -> None:
    kinds: Any = ("symmetric", "random_walk", "unnormalized")
    solved(rng, Laplacian(graph, kinds[rng.integers(3)]))
    nodes = broken_indices(rng, rng.permutation(max(graph.num_nodes, 1))[:5], graph.num_nodes)
    if flip(rng, 0.4):
        graph.subgraph(torch.from_numpy(nodes))
    if flip(rng, 0.3) and graph.is_sparse and len(graph.shape) == 1:
        copy = graph.to_scipy()
        copy.indices[:] = 2**30
        lapeig.laplacian_smoothness(torch.rand(graph.num_nodes, 3, dtype=graph.weight.dtype), graph)


def graph_of_edges(rng: Rng) -> None:
    n = size(rng)
    index, weight = edges(rng, n)
    batch = torch.from_numpy(broken_indices(rng, np.sort(rng.integers(0, 3, n)), 3)) if flip(rng, 0.3) else None
    nodes = None if flip(rng, 0.5) else int(rng.choice([n, n + 1, max(n - 1, 0), 0]))
    used(rng, Graph.from_edge_index(index, weight, nodes, batch))


def graph_of_scipy(rng: Rng) -> None:
    used(rng, Graph.from_scipy(scipy_matrix(rng, symmetric(rng, size(rng)))))


def graph_of_dense(rng: Rng) -> None:
    """Build a graph of a dense matrix, which may have zeros on one side only."""
    n = size(rng)
    dense = symmetric(rng, n)
    if n and flip(rng, 0.4):
        dense[rng.integers(0, n, 3), rng.integers(0, n, 3)] += 10.0 ** -rng.integers(5, 20)
    dense = spoilt(rng, dense)
    given = tensor(rng, np.stack([dense, dense]) if flip(rng, 0.2) else dense)
    mask = torch.from_numpy(rng.random(n) < 0.8) if flip(rng) else None
    graph = Graph.from_dense(given, mask) if flip(rng, 0.6) else Graph(DensePattern(given.shape[:-1]), given, mask)
    used(rng, graph.to_sparse() if flip(rng, 0.5) else graph)


def signed_or_directed(rng: Rng) -> None:
    n, is_signed = size(rng), flip(rng, 0.5)
    kind: Any = lapeig.SignedGraph if is_signed else lapeig.DirectedGraph
    dense = symmetric(rng, n) * rng.choice([-1, 1], (n, n))
    dense = (dense + dense.T if is_signed else np.triu(np.abs(dense))) * (rng.random((n, n)) < 0.98)
    how = int(rng.integers(3))
    if how == 0:
        graph = kind.from_edge_index(*edges(rng, n))
    elif how == 1:
        graph = kind.from_scipy(scipy_matrix(rng, dense))
    else:
        graph = kind.from_dense(tensor(rng, spoilt(rng, dense)))
    solved(rng, lapeig.SignedLaplacian(graph) if is_signed else lapeig.MagneticLaplacian(graph))


def hyperedges(rng: Rng) -> None:
    members = rng.integers(0, 9, (2, int(rng.integers(0, 30))))
    members = np.unique(members, axis=1) if flip(rng, 0.8) else members
    weight = tensor(rng, spoilt(rng, rng.random(int(rng.choice([9, 8, 0]))))) if flip(rng, 0.5) else None
    used(rng, Graph.from_hyperedges(torch.from_numpy(broken_indices(rng, members, 9)), weight))


def sparse_operator(rng: Rng) -> None:
    """Solve a symmetric matrix on a sparse pattern, with parts of other shapes and dtypes."""
    n = size(rng)
    dense = symmetric(rng, n)
    row, col = (torch.from_numpy(broken_indices(rng, part.astype(np.int64), n)) for part in dense.nonzero())
    shape: Any = (n,) if flip(rng, 0.8) else (2, max(n // 2, 1))
    pattern = SparsePattern(row, col, shape)
    if flip(rng):
        pattern.__setstate__({**pattern.__getstate__(), "row": torch.from_numpy(broken_indices(rng, row.numpy(), n))})
    solved(rng, SymmetricOperator(pattern, tensor(rng, spoilt(rng, dense[dense.nonzero()])), **parts(rng, n)))


def dense_operator(rng: Rng) -> None:
    """Solve a dense symmetric matrix with zeros on one side only."""
    n = size(rng)
    dense = symmetric(rng, n)
    if n and flip(rng, 0.7):
        i, j = rng.integers(0, n, (2, 3))
        dense[i, j] = np.where(dense[i, j] == 0, 1e-9, 0 if flip(rng) else dense[i, j])
    solved(rng, SymmetricOperator(DensePattern((n,)), tensor(rng, spoilt(rng, dense)), **parts(rng, n)))


def parts(rng: Rng, n: int) -> dict[str, Any]:
    """Return the diagonal and further parts of an operator, of which some do not fit."""
    found: dict[str, Any] = {"diagonal": tensor(rng, 9 + rng.random(n if flip(rng, 0.95) else n + 1))}
    if flip(rng):
        found["bound"] = tensor(rng, np.full(int(rng.choice([1, 1, 2])), 99.0))
    if flip(rng):
        found["active"] = torch.from_numpy(rng.random((1, n if flip(rng, 0.8) else n + 3)) < 0.8)
    if flip(rng):
        m = n if flip(rng, 0.7) else n + 1
        part = torch.from_numpy(broken_indices(rng, rng.integers(0, 2, (1, m)), 2))
        found["null"] = NullSpace(torch.rand(1, m, dtype=torch.float64), part, torch.tensor([int(rng.integers(4))]))
    return found


def cosine(rng: Rng) -> None:
    """Solve the cosines of rows in all storages."""
    dense = rng.random((size(rng), int(rng.choice([1, 3, 7])))) * (rng.random() < 0.9)
    dense = dense * (rng.random(dense.shape) < 0.5)
    how = int(rng.integers(3))
    makers: tuple[Callable[..., Any], ...] = scipy_matrix, torch_sparse, lambda *_: tensor(rng, spoilt(rng, dense))
    x = makers[how](rng, dense)
    operator = FactoredCosine(x, loops=flip(rng, 0.5), similarity="cosine" if flip(rng, 0.5) else "shifted")
    if how == 0 and hasattr(x, "indices") and flip(rng, 0.3):  # the caller writes to its own matrix
        x.indices[:] = np.iinfo(x.indices.dtype).max
    operator.matmul(torch.rand(len(dense), 3, dtype=operator.dtype))
    if flip(rng, 0.5):
        solved(rng, operator)


def function(rng: Rng) -> None:
    """Solve a matrix that is known by a function which changes its argument, and returns whatever it likes."""
    n = size(rng)
    scale = torch.from_numpy(1 + rng.random(n))
    results: list[Callable[[Tensor], Any]] = [
        lambda y: y.mul_(scale[:, None]),
        lambda y: y,
        lambda y: (y * scale[:, None])[:-1],
        lambda y: y.mT,
        lambda y: (y * scale[:, None]).mT.contiguous().mT,
        lambda y: y.resize_(max(len(y) // 2, 1), y.shape[1]),
    ]
    solved(rng, FunctionOperator(results[int(rng.integers(len(results)))], n, bound=9.0 if flip(rng) else None))


def factors(rng: Rng) -> None:
    """Solve with factors of right-hand sides of any shape and dtype."""
    n = size(rng)
    operator = SymmetricOperator(DensePattern((n,)), torch.from_numpy(symmetric(rng, n)), 9 * torch.ones(n).double())
    shape = [(n,), (n, 3), (n + 1,), (n - 1, 2), (1, n, 2), (0,), ()][int(rng.integers(7))]
    b = torch.rand(tuple(max(part, 0) for part in shape), dtype=torch.float64)
    SparseFactors()(operator)(b.mT if flip(rng) and b.ndim == 2 else b)


def methods(rng: Rng) -> None:
    """Embed matrices of pairs that are given."""
    n, kinds = size(rng), ("affinity", "distance", "kernel")
    kind: Any = kinds[rng.integers(3)]
    given = tensor(rng, spoilt(rng, symmetric(rng, n)))
    makers: list[Callable[[Any], Any]] = [
        lambda rule: lapeig.LaplacianEigenmaps(2, rule),
        lambda rule: lapeig.SpectralClustering(2, rule),
        lambda rule: lapeig.MDS(2, metric=rule),
        lambda rule: lapeig.KernelPCA(2, rule),
    ]
    makers[int(rng.integers(len(makers)))](lapeig.Precomputed(kind)).fit(given)


def mesh(rng: Rng) -> None:
    n = size(rng)
    vertices = rng.random((n, int(rng.choice([2, 3]))))
    faces = rng.integers(0, max(n, 1), (int(rng.integers(0, 3 * n + 1)), 3))
    faces = faces[(np.diff(np.sort(faces, 1), axis=1) > 0).all(1)] if flip(rng, 0.9) else faces
    faces = np.unique(np.sort(faces, 1), axis=0) if flip(rng, 0.9) else faces
    vertices = vertices * [1e-8, *[1] * (vertices.shape[1] - 1)] if flip(rng) else vertices
    given = torch.from_numpy(broken_indices(rng, faces, n))
    stiffness, mass = lapeig.mesh_laplacian(tensor(rng, spoilt(rng, vertices)), given, intrinsic=flip(rng, 0.5))
    eigenpairs(stiffness, 2, solver(rng), mass=mass.clamp_min(1e-3))


def encoding(rng: Rng) -> None:
    n = size(rng)
    index, weight = edges(rng, n)
    nodes: Any = n if flip(rng, 0.4) else torch.from_numpy(broken_indices(rng, np.sort(rng.integers(0, 4, n)), 4))
    lapeig.laplacian_positional_encoding(index, nodes, int(rng.integers(1, 5)), weight, solve=solver(rng))
    lapeig.pad_batch(torch.rand(n, 2), nodes)


def samplers(rng: Rng) -> None:
    graph = Graph.from_edge_index(*edges(rng, size(rng)))
    sampler: Any = EdgeSampler(graph, 2 * int(rng.integers(1, 5)))
    if flip(rng, 0.5):
        sampler = NeighborhoodSampler(graph, int(rng.integers(2, 9)), neighbors=int(rng.integers(1, 6)))
    for nodes in sampler:
        graph.subgraph(torch.tensor(nodes).unique())


def start(rng: Rng) -> None:
    n = size(rng)
    given: Any = scipy_matrix(rng, symmetric(rng, n)) if flip(rng, 0.5) else edges(rng, n)
    lapeig.spectral_init(given, int(rng.integers(1, 4)), 0)


def neighbors(rng: Rng) -> None:
    """Search points that may be equal, far away or masked."""
    n, dims = size(rng), int(rng.choice([0, 1, 2, 5, 16]))
    x = tensor(rng, spoilt(rng, rng.integers(0, 4, (n, dims)) + 1e-3 * rng.random((n, dims))))
    mask = torch.from_numpy(rng.random(n) < 0.5) if flip(rng, 0.3) else None
    queries = tensor(rng, rng.random((int(rng.integers(0, 6)), dims))) if flip(rng, 0.3) else None
    k = int(rng.choice([1, 2, 5, max(n - 1, 1), n + 1]))
    if flip(rng, 0.5):
        nearest_neighbors(x, k, queries, mask=mask)
    else:
        radius_neighbors(x, float(rng.choice([0, 1e-3, 1, 1e9])), queries, mask=mask)
    module = lapeig.LaplacianEigenmaps(1, lapeig.Landmarks(4) if flip(rng, 0.3) else lapeig.KNN(k)).fit(x)
    module.transform(tensor(rng, rng.random((3, dims))))


def estimators(rng: Rng) -> None:
    """Fit scikit-learn's estimators to sparse matrices."""
    from torch_lapeig import sklearn

    given = scipy_matrix(rng, symmetric(rng, size(rng)))
    kinds: list[Callable[[], Any]] = [
        lambda: sklearn.SpectralClustering(2, affinity="precomputed"),
        lambda: sklearn.SpectralEmbedding(affinity="precomputed"),
        lambda: sklearn.SpectralClustering(2, affinity="precomputed_nearest_neighbors", n_neighbors=3),
        lambda: sklearn.SpectralClustering(2, affinity="rbf"),
        lambda: sklearn.Isomap(metric="precomputed"),
    ]
    kinds[int(rng.integers(len(kinds)))]().fit(given)


class Drawn(NamedTuple):
    """Kind and end of a draw, "answered", "refused" or "unclear", and what an error said."""

    kind: str
    end: str
    said: str = ""


KINDS: tuple[Callable[[Rng], None], ...] = (
    graph_of_edges, graph_of_scipy, graph_of_dense, signed_or_directed, hyperedges, sparse_operator, dense_operator,
    cosine, function, factors, methods, mesh, encoding, samplers, start, neighbors, estimators,
)  # fmt: skip


def draw(index: int, seed: int = 0) -> Drawn:
    kind = KINDS[index % len(KINDS)]
    rng = np.random.default_rng([seed, zlib.crc32(kind.__name__.encode()), index])
    torch.manual_seed(index)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind(rng)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {str(error)[:160]} ({at.filename}, line {at.lineno})"
        is_said = any(word in str(error) for word in (" must ", " needs ")) or "sklearn" in at.filename
        return Drawn(kind.__name__, "refused" if isinstance(error, CLEAR) and is_said else "unclear", said)
    return Drawn(kind.__name__, "answered")
