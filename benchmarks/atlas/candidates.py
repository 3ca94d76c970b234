"""Who takes part: our solvers, peers as they are shipped, and peers as an expert calls them.

Each is a function of a `Problem` and a tolerance, its own, that returns vectors ``(N, k)`` of the smallest eigenvalues
of L_sym. What it makes of the affinity (normalisation, factors, multigrid) is part of its time.
"""

import copy
import dataclasses
import functools
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array, csr_matrix, dia_array
from scipy.sparse.linalg import LinearOperator, eigsh, lobpcg, splu

from torch_lapeig import Graph, Laplacian, eigen, eigenpairs
from torch_lapeig.graph import SparsePattern

Vectors = NDArray[np.float64]
DEFAULT = "default"
MOST_DENSE = 3_000  # nodes up to which all eigenpairs are computed
ITERATIONS = 5_000  # of peers whose own limit is lower than what it takes


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph, as everybody takes it, and the number of pairs."""

    graph: Graph
    k: int

    @functools.cached_property
    def affinity(self) -> csr_array:
        return csr_array(self.graph.to_scipy())

    @functools.cached_property
    def matrix(self) -> csr_matrix:
        """Return the affinity as scikit-learn takes it."""
        return csr_matrix(self.affinity)

    @functools.cached_property
    def half(self) -> Vectors:
        return np.asarray(np.sqrt(np.asarray(self.affinity.sum(1)).ravel()))

    @property
    def nodes(self) -> int:
        return int(self.affinity.shape[0])


Solve = Callable[[Problem, float], Vectors]


@dataclass(frozen=True)
class Candidate:
    """One way to eigenvectors: its column, and None or the most nodes it is asked for."""

    column: str
    solve: Solve
    most: int | None = None


def normalized(problem: Problem) -> csr_array:
    """Return S = D^-½ W D^-½."""
    n = problem.nodes
    scale = dia_array((np.asarray(problem.affinity.sum(1)).ravel() ** -0.5, 0), shape=(n, n))
    return csr_array(scale @ problem.affinity @ scale)


def laplacian(problem: Problem, shift: float = 0.0) -> csr_array:
    """Return L_sym = I − S, and a shift of its eigenvalues."""
    n = problem.nodes
    return csr_array(dia_array((np.full(n, 1 + shift), 0), shape=(n, n)) - normalized(problem))


def first_block(problem: Problem) -> Vectors:
    return np.random.default_rng(0).standard_normal((problem.nodes, problem.k))


def of_solver(solver: Any) -> Solve:
    def solve(problem: Problem, tolerance: float) -> Vectors:
        # A pattern keeps the order of its factors, which peers find anew each time. Where rows begin they are told.
        pattern = copy.copy(given := problem.graph.pattern)
        if isinstance(given, SparsePattern):
            vars(pattern)["crow"] = given.crow
        graph = dataclasses.replace(problem.graph, pattern=pattern)
        return np.asarray(eigenpairs(Laplacian(graph), problem.k, solver, tolerance=tolerance).vectors.numpy())

    return solve


def sklearn(solver: str) -> Solve:
    def solve(problem: Problem, tolerance: float) -> Vectors:
        from sklearn.manifold import spectral_embedding

        options = {"n_components": problem.k, "drop_first": False, "random_state": 0}
        vectors = spectral_embedding(problem.matrix, eigen_solver=solver, eigen_tol=tolerance, **options)
        return np.asarray(problem.half[:, None] * vectors)

    return solve


def eigsh_of_s(ncv: int | None = None) -> Solve:
    def solve(problem: Problem, tolerance: float) -> Vectors:
        start = np.random.default_rng(0).random(problem.nodes)
        found = eigsh(normalized(problem), problem.k, which="LA", tol=tolerance, v0=start, ncv=ncv, maxiter=ITERATIONS)
        return np.asarray(found[1])

    return solve


def scipy_lobpcg(problem: Problem, tolerance: float) -> Vectors:
    """Solve by LOBPCG without preconditioner: the diagonal of L_sym is 1, so Jacobi's is the identity."""
    found = lobpcg(laplacian(problem), first_block(problem), tol=tolerance, largest=False, maxiter=ITERATIONS)
    return np.asarray(found[1])


def pyamg_lobpcg(problem: Problem, tolerance: float) -> Vectors:
    """Solve L y = λ D y with default smoothed aggregation of L + D/10⁵, as scikit-learn does: L is singular."""
    import pyamg

    d = dia_array((np.asarray(problem.affinity.sum(1)).ravel(), 0), shape=problem.affinity.shape)
    lap = csr_matrix(d - problem.affinity)
    inverse = pyamg.smoothed_aggregation_solver(csr_matrix(lap + 1e-5 * d)).aspreconditioner()
    found = lobpcg(lap, first_block(problem), B=d.tocsr(), M=inverse, tol=tolerance, largest=False, maxiter=200)
    return np.asarray(problem.half[:, None] * found[1])


def pyamg_expert(problem: Problem, tolerance: float) -> Vectors:
    """Return L_sym with its null vector as what aggregation has to keep, and two columns more than are asked for."""
    import pyamg

    lap, null = csr_matrix(laplacian(problem)), problem.half / np.linalg.norm(problem.half)
    inverse = pyamg.smoothed_aggregation_solver(lap, B=null[:, None], max_coarse=300).aspreconditioner()
    start = np.c_[null, np.random.default_rng(0).standard_normal((problem.nodes, problem.k + 1))]
    found = lobpcg(lap, start, M=inverse, tol=tolerance, largest=False, maxiter=200)
    return np.asarray(found[1][:, np.argsort(found[0])[: problem.k]])


def torch_lobpcg(problem: Problem, tolerance: float) -> Vectors:
    lap = laplacian(problem)
    row, col = (torch.from_numpy(part.astype(np.int64)) for part in (lap.indptr, lap.indices))
    matrix = torch.sparse_csr_tensor(row, col, torch.from_numpy(lap.data), lap.shape)
    torch.manual_seed(0)
    return np.asarray(torch.lobpcg(matrix, problem.k, largest=False, tol=tolerance, niter=ITERATIONS)[1].numpy())


def subset(problem: Problem, tolerance: float) -> Vectors:
    """Solve by LAPACK's subset driver, to round-off whatever the tolerance."""
    return np.asarray(eigh(laplacian(problem).toarray(), subset_by_index=[0, problem.k - 1])[1])


def shift_invert(problem: Problem, tolerance: float) -> Vectors:
    """Solve by Lanczos on sparse factors in the order that suits a symmetric pattern."""
    n = problem.nodes
    shifted = laplacian(problem, 1e-5).tocsc()
    factors = splu(shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    inverse = LinearOperator((n, n), factors.solve, dtype=np.float64)
    start = np.random.default_rng(0).random(n)
    return np.asarray(eigsh(shifted, problem.k, sigma=0, OPinv=inverse, tol=tolerance, v0=start)[1])


CANDIDATES: dict[str, Candidate] = {
    DEFAULT: Candidate("ours", of_solver(None)),
    "Eigh": Candidate("ours", of_solver(eigen.Eigh()), MOST_DENSE),
    "ChebyshevSubspace": Candidate("ours", of_solver(eigen.ChebyshevSubspace())),
    "Krylov": Candidate("ours", of_solver(eigen.Krylov())),
    "Lobpcg": Candidate("ours", of_solver(eigen.Lobpcg())),
    "Lobpcg, sparse factors": Candidate("ours", of_solver(eigen.Lobpcg(preconditioner=eigen.SparseFactors()))),
    "Lobpcg, no preconditioner": Candidate("ours", of_solver(eigen.Lobpcg(preconditioner=None))),
    "ShiftInvert": Candidate("ours", of_solver(eigen.ShiftInvert())),
    "scikit-learn arpack": Candidate("shipped", sklearn("arpack")),
    "scikit-learn amg": Candidate("shipped", sklearn("amg")),
    "scikit-learn lobpcg": Candidate("shipped", sklearn("lobpcg")),
    "SciPy eigsh": Candidate("shipped", eigsh_of_s()),
    "SciPy lobpcg": Candidate("shipped", scipy_lobpcg),
    "pyamg + lobpcg": Candidate("shipped", pyamg_lobpcg),
    "torch.lobpcg": Candidate("shipped", torch_lobpcg),
    "LAPACK, subset": Candidate("expert", subset, MOST_DENSE),
    "shift-invert": Candidate("expert", shift_invert),
    "eigsh, 40 vectors": Candidate("expert", eigsh_of_s(40)),
    "pyamg, its null vector": Candidate("expert", pyamg_expert),
}
NEEDS = {"pyamg + lobpcg": "pyamg", "scikit-learn amg": "pyamg", "pyamg, its null vector": "pyamg"}


def missing(name: str) -> str | None:
    """Return the package that a candidate lacks, or None."""
    package = NEEDS.get(name)
    return package if package and importlib.util.find_spec(package) is None else None


def solve_quietly(problem: Problem, name: str, tolerance: float) -> Vectors:
    """Return the vectors; warnings of peers and ours say nothing that is not measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CANDIDATES[name].solve(problem, tolerance)
