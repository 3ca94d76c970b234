"""Krylov spaces: how orthogonal they stay, and what their Ritz pairs are worth."""

import pytest
import torch

from problems import cycle, points, swiss_roll
from torch_lapeig import Graph, Laplacian, eigenpairs, knn_graph
from torch_lapeig.eigen import Lanczos, Operator
from torch_lapeig.eigen.block_krylov import BlockKrylov
from torch_lapeig.eigen.krylov import LOSS, KrylovSpace


class Diagonal(Operator):
    """A matrix whose eigenvalues are known."""

    def __init__(self, entries):
        self.entries, self.shape, self.dtype, self.device = entries, entries.shape, entries.dtype, entries.device
        self.bound = entries.max()[None]

    def matmul(self, y):
        return self.entries[:, None] * y


N = 600
SPECTRA = {
    "even": torch.linspace(0.01, 1, N, dtype=torch.float64),
    "few far below": torch.cat([torch.logspace(-9, -2, 6), torch.linspace(0.5, 1, N - 6)]).double(),
    "over decades": torch.logspace(-12, 0, N, dtype=torch.float64),
    "at both ends": torch.cat([torch.linspace(0, 1e-3, N // 2), torch.linspace(1.9, 2, N // 2)]).double() + 1e-4,
    "clusters": (torch.arange(N) // 60 + 1).double() + 1e-9 * torch.arange(N).double(),
}


def space_of(operator, size, dtype=torch.float64):
    null = torch.zeros(operator.num_nodes, 0, dtype=dtype)
    return KrylovSpace(operator, null, size, seed=0)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SPECTRA)
def test_vectors_stay_orthogonal_and_their_projection_right(name, dtype):
    operator = Diagonal(SPECTRA[name].to(dtype))
    space = space_of(operator, 200, dtype)
    space.fill(200)
    v = space.rows[:201].double()
    allowed = 10 * torch.finfo(dtype).eps ** LOSS
    torch.testing.assert_close(v @ v.mT, torch.eye(201, dtype=torch.float64), rtol=0, atol=allowed)
    basis = torch.linalg.qr(v[:200].mT)[0]
    basis = basis * (basis * v[:200].mT).sum(0).sign()
    projected = torch.from_numpy(space.small.matrix) + space.shift * torch.eye(200, dtype=torch.float64)
    round_off = 20 * torch.finfo(dtype).eps * float(operator.bound)
    torch.testing.assert_close(projected, basis.mT @ (operator.entries[:, None] * basis), rtol=0, atol=round_off)


@torch.no_grad()
def test_few_vectors_are_orthogonalised(monkeypatch):
    """The point of it: against all others only now and then."""
    seen, original = [], KrylovSpace._outside
    monkeypatch.setattr(KrylovSpace, "_outside", lambda self, *args: seen.append(1) or original(self, *args))
    space = space_of(Laplacian(knn_graph(points(2000, 8), 10)).symmetric, 150)
    space.fill(150)
    assert len(seen) < 150 / 3


@torch.no_grad()
@pytest.mark.parametrize("name", SPECTRA)
def test_residuals_are_those_of_the_vectors_after_many_restarts(name):
    operator = Diagonal(SPECTRA[name])
    space = space_of(operator, 20)
    for _ in range(30):
        space.fill(20)
        values, turn, residuals = space.ritz(8)
        x = space.ritz_vectors(turn)
        true = torch.linalg.vector_norm(x * operator.entries - values[:, None] * x, dim=1)
        torch.testing.assert_close(residuals, true, rtol=1e-6, atol=1e-12 * float(operator.bound))
        space.restart(values, x, space.following())
    assert float((x @ x.mT - torch.eye(8)).abs().max()) < 10 * torch.finfo(torch.float64).eps ** LOSS


@torch.no_grad()
def test_an_invariant_space_goes_on_at_random():
    """Three different values: after three steps there is nothing left, and copies come with the next random vector."""
    operator = Diagonal(torch.tensor([1.0] * 20 + [2.0] * 20 + [3.0] * 20, dtype=torch.float64))
    space = space_of(operator, 12)
    space.fill(12)
    v = space.rows[:12]
    torch.testing.assert_close(v @ v.mT, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-12)
    values, _, residuals = space.ritz(4)
    torch.testing.assert_close(values, torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-12)
    assert float(residuals.max()) < 1e-12


@torch.no_grad()
def test_what_is_forgotten_comes_in_again_and_is_taken_out():
    """Beside pairs with residuals that do not lie in the space, no recurrence knows what its vectors lose."""
    operator = Diagonal(SPECTRA["even"])
    space = space_of(operator, 60)
    space.fill(30)
    values, turn, residuals = space.ritz(8)
    assert float(residuals.max()) > 1e-3
    x = space.ritz_vectors(turn)
    fresh = torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fresh -= x.mT @ (x @ fresh)
    space.restart(values, x, fresh / fresh.norm(), forgets=True)
    space.fill(60)
    v = space.rows[:61]
    torch.testing.assert_close(v @ v.mT, torch.eye(61, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", [94, 98])
def test_copies_of_loosely_known_pairs(seed, dtype):
    """Eigenvalues of a torus are fourfold: Krylov spaces begin anew beside pairs of residuals of a tenth of a gap."""
    rings = torch.kron(cycle(25), torch.eye(16)) + torch.kron(torch.eye(25), cycle(16))
    laplacian = Laplacian(Graph.from_dense(rings.to(dtype)).to_sparse())
    exact = torch.linalg.eigvalsh(laplacian.to_dense().double())[:31]
    pairs = eigenpairs(laplacian, 31, Lanczos(seed=seed), tolerance=0.1)
    assert pairs.converged
    torch.testing.assert_close(pairs.values.double(), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_pair_after_the_wanted_ones_is_none_that_follows_it(k):
    """A Krylov space may settle on the value after the next one, where its first vector has little of that."""
    for seed in range(40):
        points_of_curve = torch.rand(300, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 30
        laplacian = Laplacian(knn_graph(torch.cat([points_of_curve.cos(), points_of_curve.sin()], 1), 5))
        if laplacian.nullity > 1:
            continue
        exact = torch.linalg.eigvalsh(laplacian.to_dense())
        pairs = eigenpairs(laplacian, k, Lanczos(seed=seed), tolerance=0.1)
        assert pairs.converged
        assert float(pairs.gap) == pytest.approx(float(exact[k] - exact[k - 1]), rel=0.15, abs=1e-10)


@torch.no_grad()
def test_a_matrix_that_is_not_finite_breaks_down():
    space = space_of(Diagonal(torch.full((30,), torch.nan, dtype=torch.float64)), 10)
    space.fill(10)
    with pytest.raises(torch.linalg.LinAlgError, match="not finite"):
        space.ritz(3)


@pytest.mark.parametrize("basis", [14, 20, 60, 300])
def test_bases_of_all_sizes_give_the_same(basis):
    laplacian = Laplacian(knn_graph(swiss_roll(300), 8))
    exact = torch.linalg.eigvalsh(laplacian.to_dense())[:5]
    pairs = eigenpairs(laplacian, 5, Lanczos(basis=basis))
    assert pairs.converged
    torch.testing.assert_close(pairs.values, exact, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("copies", [1, 40, 200, 300])
def test_blocks_stay_orthogonal_where_spaces_end_at_once(name, copies):
    """What is left of the last blocks of an invariant space lies in it all but a little, and goes on with the space."""
    operator = Diagonal(SPECTRA[name][::copies].repeat(copies))
    null = torch.zeros(N, 0, dtype=torch.float64)
    space = BlockKrylov(operator, operator.matmul, null, 200, 4, seed=0)
    while space.products < 600:
        space.fill(600)
        if space.is_full:
            values, turn = space.ritz()
            space.keep(values[:20], turn[:, :20])
    v = space.columns(space.filled)
    torch.testing.assert_close(v.mT @ v, torch.eye(space.filled, dtype=torch.float64), rtol=0, atol=2e-14)
