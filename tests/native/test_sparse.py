"""Compiled factors of sparse symmetric matrices against dense algebra, on patterns of all kinds."""

import math

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch

from problems import every, grid, of_networkx, points, preferential_attachment, sparse_path
from torch_lapeig.graph import SparsePattern
from torch_lapeig.native import calls as native
from torch_lapeig.native.sparse import BlockLimits, Limits, SymbolicFactor, SymmetricFactors, next_block

pytestmark = pytest.mark.skipif(native.library() is None, reason="nothing is compiled")


def random_pattern(n, degree, seed, parts=1):
    random = np.random.default_rng(seed)
    edges = int(n * degree / 2)
    row, col = random.integers(0, n, edges), random.integers(0, n, edges)
    keep = row * parts // n == col * parts // n
    half = scipy.sparse.coo_array((np.ones(keep.sum()), (row[keep], col[keep])), shape=(n, n)).tocsr()
    return ((half + half.T) > 0).astype(float).tocsr()


PATTERNS = {
    "one node": lambda: scipy.sparse.csr_array((1, 1)),
    "no edges": lambda: scipy.sparse.csr_array((7, 7)),
    "pair": lambda: sparse_path(2),
    "path": lambda: sparse_path(150),
    "star": lambda: of_networkx(nx.star_graph(299)),
    "two stars": lambda: of_networkx(nx.disjoint_union(nx.star_graph(39), nx.star_graph(49))),
    "complete": lambda: scipy.sparse.csr_array(np.ones((70, 70)) - np.eye(70)),
    "grid": lambda: grid(17, 13),
    "body": lambda: grid(6, 7, 8),
    "hubs": lambda: preferential_attachment(400, 3),
    "random, sparse": lambda: random_pattern(500, 1.5, 0),
    "random": lambda: random_pattern(300, 6, 1),
    "random, dense": lambda: random_pattern(120, 60, 2),
    "parts": lambda: random_pattern(400, 5, 3, parts=20),
    "loops": lambda: (random_pattern(100, 4, 4) + scipy.sparse.diags(np.arange(100) % 2.0)).tocsr(),
}


def of(pattern, seed=0, definite=True):
    """A matrix on a pattern, with entries of both signs, as SciPy's CSR and dense."""
    random = np.random.default_rng(seed)
    matrix = pattern.astype(float)
    upper = scipy.sparse.triu(matrix, 1).tocsr()
    upper.data = random.standard_normal(len(upper.data))
    matrix = (upper + upper.T).tolil()
    size = abs(matrix.tocsr()).sum(1) + 0.1
    matrix.setdiag(np.asarray(size).ravel() if definite else random.standard_normal(matrix.shape[0]))
    matrix = scipy.sparse.csr_array(matrix.tocsr())
    return matrix, matrix.toarray()


def rows_of(matrix):
    return matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32)


def factors(matrix):
    crow, col = rows_of(matrix)
    return SymmetricFactors.of(SymbolicFactor.of(crow, col), crow, col, matrix.data)


class TestFactors:
    @pytest.mark.parametrize("name", PATTERNS)
    def test_they_solve(self, name):
        matrix, dense = of(PATTERNS[name]())
        solve = factors(matrix).solve
        for m in (1, 3, 4, 5, 8, 13):
            b = points(len(dense), m).numpy()
            x = solve(b)
            np.testing.assert_allclose(dense @ x, b, atol=1e-12 * np.abs(dense).max() * max(np.abs(x).max(), 1))
            np.testing.assert_allclose(solve(b[:, 0]), x[:, 0], rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("name", PATTERNS)
    def test_they_count_negative_eigenvalues(self, name):
        """Sylvester's law, where no pivot is small beside the matrix."""
        for seed in range(5):
            matrix, dense = of(PATTERNS[name](), seed, definite=False)
            shifted_by = 4 * (seed - 2.1) * np.eye(len(dense))
            values = np.linalg.eigvalsh(dense + shifted_by)
            found = factors(scipy.sparse.csr_array(matrix + scipy.sparse.csr_array(shifted_by)))
            assert found.negative == (values < 0).sum()

    @pytest.mark.parametrize("name", PATTERNS)
    def test_weights_over_many_decades(self, name):
        """Every digit of a diagonally dominant positive definite matrix counts: compare entry by entry."""
        matrix, _ = of(PATTERNS[name]())
        scale = 10 ** np.random.default_rng(5).uniform(-12, 12, matrix.shape[0])
        scaled = scipy.sparse.csr_array(scipy.sparse.diags(scale) @ matrix @ scipy.sparse.diags(scale))
        b = points(matrix.shape[0], 2).numpy()
        expected = factors(matrix).solve(b)
        np.testing.assert_allclose(factors(scaled).solve(scale[:, None] * b) * scale[:, None], expected, rtol=1e-9)

    def test_a_diagonal_beside_the_rows(self):
        pattern = grid(9, 8)
        crow, col = rows_of(pattern)
        diagonal, b = np.linspace(5, 6, 72), points(72, 2).numpy()
        found = SymmetricFactors.of(SymbolicFactor.of(crow, col), crow, col, pattern.data, -1.0, diagonal)
        np.testing.assert_allclose((np.diag(diagonal) - pattern.toarray()) @ found.solve(b), b, atol=1e-13)

    @pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
    def test_a_pivot_that_is_zero_or_not_finite(self, value):
        pattern = sparse_path(30)
        crow, col = rows_of(pattern)
        diagonal = np.full(30, 3.0)
        diagonal[17], pattern.data[crow[17] : crow[18]] = value, 0
        pattern.data[(col == 17)] = 0
        with pytest.raises(RuntimeError, match="a pivot is zero or not finite"):
            SymmetricFactors.of(SymbolicFactor.of(crow, col), crow, col, pattern.data, -1.0, diagonal)


class TestStructure:
    def test_limits(self):
        rows = rows_of(grid(30, 30))
        found = SymbolicFactor.of(*rows)
        assert SymbolicFactor.of(*rows, Limits(work=2 * found.work)) is not None
        assert SymbolicFactor.of(*rows, Limits(work=0.5 * found.work)) is None
        assert SymbolicFactor.of(*rows, Limits(entries=found.entries / 10)) is None
        assert SymbolicFactor.of(*rows, found.size) is not None

    def test_exactly_symmetric_rows_are_read(self):
        """Entries that lack their reverse, columns out of range or order, and offsets that are none are refused."""
        random = np.random.default_rng(0)
        for n in (5, 40, 300):
            for _ in range(20):
                rows = scipy.sparse.random(n, n, density=min(1.0, 3 / n), random_state=random, format="csr")
                rows.sort_indices()
                crow, col = rows_of(rows)
                if (rows != rows.T).nnz == 0:
                    assert SymbolicFactor.of(crow, col).entries >= n
                else:
                    with pytest.raises(ValueError, match="an entry \\(j, i\\)"):
                        SymbolicFactor.of(crow, col)
        crow, col = rows_of(grid(5, 4))
        for at, value in ((0, -1), (7, 20), (7, 2**30), (3, -(2**31)), (len(col) - 1, 0), (1, col[0])):
            broken = col.copy()
            broken[at] = value
            with pytest.raises(ValueError, match="columns from 0 to 19"):
                SymbolicFactor.of(crow, broken)
        for at, value in ((0, 1), (20, len(col) + 9), (7, 2**30), (7, -5), (20, len(col) - 1)):
            broken = crow.copy()
            broken[at] = value
            with pytest.raises(ValueError, match="columns from 0 to 19"):
                SymbolicFactor.of(broken, col)

    def test_arrays_of_other_lengths_and_dtypes(self):
        pattern = grid(5, 4)
        crow, col = rows_of(pattern)
        structure, diagonal = SymbolicFactor.of(crow, col), np.full(20, 9.0)
        found = SymmetricFactors.of(structure, crow, col, pattern.data, -1.0, diagonal)
        for b in (np.ones(19), np.ones((21, 2)), np.ones((20, 1, 1))):
            with pytest.raises(ValueError, match="right-hand sides must have shape"):
                found.solve(b)
        for rows in ((crow[:-1], col, pattern.data), (crow, col, pattern.data[1:])):
            with pytest.raises(ValueError, match="structure of 20 nodes"):
                SymmetricFactors.of(structure, *rows, -1.0, diagonal)
        for wrong in (diagonal.astype(np.float32), np.full(40, 9.0)[::2]):
            with pytest.raises(TypeError, match="contiguous and of float64"):
                SymmetricFactors.of(structure, crow, col, pattern.data, -1.0, wrong)


@every(n=[40, 513, 5000], count=[1, 2, 7, 30], width=[1, 2, 3, 4], has_mass=[False, True])
def test_a_block_becomes_the_next_one_of_a_space(n, count, width, has_mass):
    """Also in the inner product of a mass."""
    diagonal = points(n, 1)[:, 0].abs() + 1 if has_mass else torch.ones(n, dtype=torch.float64)
    row, col = torch.tensor([[0, 1, 3, n - 1], [1, 0, n - 1, 3]])
    mass = torch.diag(diagonal).index_put((row, col), torch.full((4,), 0.3 * has_mass, dtype=torch.float64)).to_sparse()
    rows = torch.linalg.qr(points(n, count))[0].mT
    rows = torch.linalg.solve_triangular(torch.linalg.cholesky(rows @ (mass @ rows.mT)), rows, upper=False).contiguous()
    given = points(n, width, seed=1).mT.contiguous() + 1e6 * rows[-1]
    csr = SparsePattern(*mass.indices(), (n,)).to_matrix(mass.values()) if has_mass else None
    found = next_block(rows, block := given.clone(), count - 1, BlockLimits(0.0, 1e-15), csr)
    assert found.is_made
    weighted = mass @ block.mT
    torch.testing.assert_close(block @ weighted, torch.eye(width, dtype=torch.float64), atol=1e-13, rtol=0)
    torch.testing.assert_close(rows @ weighted, torch.zeros(count, width, dtype=torch.float64), atol=1e-13, rtol=0)
    torch.testing.assert_close(found.products, rows @ (mass @ given.mT), atol=1e-8, rtol=0)
    torch.testing.assert_close(found.factor @ block + found.products.mT @ rows, given, atol=1e-8, rtol=0)
    assert float(found.factor.triu(1).abs().max()) == 0


def test_dependent_vectors_are_no_block():
    rows, block = torch.linalg.qr(points(200, 5))[0].mT.contiguous(), points(200, 2, seed=1).mT.contiguous()
    block[1] = block[0] + rows[2]
    assert not next_block(rows, block, 0, BlockLimits(0.0, 1e-15)).is_made
