"""Lanczos with restarts: copies of multiple values, spaces that end early, operators of every kind."""

import numpy as np
import pytest
import torch

from problems import check_pairs, check_vectors, quiet, random_affinity, subspace_angle
from torch_lapeig import ConvergenceWarning, Graph, Laplacian, ResolutionWarning, eigenpairs
from torch_lapeig.eigen import Eigh, FunctionOperator, Krylov


def diagonal(values):
    """Return an operator that is known by its products only."""
    values = torch.as_tensor(values, dtype=torch.float64)
    return FunctionOperator(lambda y, w: w[:, None] * y, len(values), [values])


@pytest.mark.parametrize("k", [3, 5, 6, 12])
def test_copies_inside_and_at_the_end_of_the_wanted_values(k):
    spectrum = torch.cat([torch.tensor([0.0, 0, 0, 1, 1, 1, 1, 1, 1.5, 2, 2]), torch.linspace(3, 9, 300)]).double()
    spectrum = spectrum[torch.randperm(len(spectrum), generator=torch.Generator().manual_seed(1))]
    for operator in (diagonal(spectrum), torch.diag(spectrum)):
        pairs = eigenpairs(operator, k, Krylov())
        check_pairs(pairs, spectrum.sort().values, atol=1e-10, gap_atol=1e-6, gap_rtol=0)
        check_vectors(pairs, torch.diag(spectrum), atol=1e-7)


def test_one_vector_spaces_of_equal_values():
    for value in (0.0, 2.0):
        pairs = eigenpairs(diagonal(torch.full((50,), value)), 4, Krylov())
        torch.testing.assert_close(pairs.values, torch.full((4,), value).double(), atol=1e-12, rtol=0)
        check_vectors(pairs, value * torch.eye(50).double(), atol=1e-10)


def test_a_batch_with_components_faint_edges_and_isolated_nodes():
    affinity = torch.stack([random_affinity(40, seed=s) for s in (0, 1, 2, 0)])
    affinity[0, :10, 10:] = affinity[0, 10:, :10] = 0  # two components
    affinity[1, 7] = affinity[1, :, 7] = 0
    affinity[3, :20, 20:] *= 1e-7
    affinity[3, 20:, :20] *= 1e-7
    laplacian = Laplacian(Graph.from_dense(affinity))
    exact, pairs = (quiet(eigenpairs, laplacian, 5, solver) for solver in (Eigh(), Krylov()))
    torch.testing.assert_close(pairs.values, exact.values, atol=1e-12, rtol=0)
    torch.testing.assert_close(pairs.gap, exact.gap, atol=1e-8, rtol=0)
    for b in range(4):
        assert subspace_angle(exact.vectors[b], pairs.vectors[b]) < 1e-8


def test_a_large_value_far_from_the_wanted_ones():
    for size in (1e2, 1e4):
        values = torch.cat([torch.linspace(-1, 1, 399), torch.tensor([size])]).double()
        pairs = eigenpairs(diagonal(values), 4, Krylov())
        torch.testing.assert_close(pairs.values, values[:4], atol=1e-11 * size, rtol=0)
        assert pairs.converged


def test_copies_beside_a_value_that_hides_the_gap():
    """The first space lacks copies, so that its last value, and with it its gap, is the huge one."""
    values = torch.tensor([-1.0] * 5 + [-0.9] * 5 + [0.0] * 5 + [1e7]).double()
    for k in (9, 12):
        pairs = eigenpairs(diagonal(values), k, Krylov(), tolerance=1e-7)
        torch.testing.assert_close(pairs.values, values[:k], atol=1e-6, rtol=0)


def test_few_products_end_with_a_warning():
    with pytest.warns(ConvergenceWarning, match="Krylov"):
        pairs = eigenpairs(diagonal(torch.linspace(0, 1, 3000)), 4, Krylov(max_products=40))
    assert not pairs.converged


@pytest.mark.parametrize("seed", [28, 30])
def test_a_copy_beside_a_heavy_eigenspace_is_no_gap(seed):
    """Two zeros, 3000 copies of 0.01 just above: a random start holds next to nothing of the second zero."""
    values = np.concatenate([[0, 0], np.full(3000, 0.01), np.linspace(1, 1.05, 998)])
    with pytest.warns(ResolutionWarning, match="ask for more pairs"):
        pairs = eigenpairs(diagonal(np.random.default_rng(seed).permutation(values)), 1)
    assert abs(pairs.values) < 1e-9
    assert abs(pairs.gap) < 1e-9
