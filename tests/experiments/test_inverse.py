"""The inverse eigenproblem: its matrices against closed spectra, gradients of all ways against differences."""

import math

import numpy as np
import pytest
import torch

from experiments.inverse import Equation, Misfit
from experiments.membrane import Membrane, Problem, Trial, solved
from problems import check_slope, short_form
from torch_lapeig import mesh_laplacian

TRIAL = Trial(64, 9, 0.02, 4)


def test_spectrum_of_the_uniform_membrane_is_that_of_the_square():
    """λ = π² (p² + q²), which linear elements exceed by O(h²); p ≠ q come in pairs, exactly."""
    squares = sorted(p**2 + q**2 for p in range(1, 6) for q in range(1, 6))[:8]
    membrane = Membrane.of(15)
    values, _ = solved(membrane, membrane.stiffness(torch.zeros(len(membrane.areas))))
    excess = values[:8] / math.pi**2 / squares - 1
    assert (excess > 0).all()
    assert (excess < 0.03).all()
    assert values[1] == pytest.approx(values[2], rel=1e-9)


def test_stiffness_and_mass_are_those_of_the_library():
    membrane = Membrane.of(6)
    ones = torch.ones(len(membrane.places), dtype=torch.float64)
    stiffness = membrane.sparse(membrane.stiffness(torch.zeros(len(membrane.areas)))).to_dense()
    mass = membrane.sparse(membrane.mass).to_dense()
    torch.testing.assert_close(stiffness, stiffness.mT, rtol=0, atol=0)
    # A ring of triangles about a node that has no fixed neighbour: rows of the whole mesh.
    inner = ((membrane.places > 0.3) & (membrane.places < 0.7)).all(1)
    assert (stiffness @ ones)[inner].abs().max() < 1e-12
    triangle = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    _, consistent = mesh_laplacian(triangle, torch.tensor([[0, 1, 2]]), mass="consistent")
    assert consistent.to_dense()[0, 0] / consistent.to_dense()[0, 1] == pytest.approx(2)
    assert mass.sum() < membrane.areas.sum()
    assert membrane.areas.sum() == pytest.approx(1)


def search_of(way):
    search = (Equation if way == "equation" else Misfit)(Problem.of(TRIAL, 0), way, math.inf)
    if way == "reduced":
        search.renew()
    return search


@pytest.mark.parametrize("way", ["layer", "eigh_jittered", "nelson", "reduced", "equation", "eigenvalues"])
def test_gradient_is_that_of_differences(way):
    generator = np.random.default_rng(0)
    check_slope(search_of(way), 0.3 * generator.normal(size=16), generator.normal(size=16), step=1e-5, rel=1e-5)


def test_gradient_at_equal_eigenvalues():
    """The first modes of the uniform membrane come in pairs, of which the loss depends on no basis."""
    direction = np.random.default_rng(0).normal(size=16)
    for way in ("layer", "equation"):
        check_slope(search_of(way), np.zeros(16), direction, step=1e-5, rel=1e-4)


def test_equation_error_is_the_least_sum_over_the_fields():
    """The sum that its docstring names, minimised as a dense problem of least squares."""
    search = search_of("equation")
    problem, coefficients = search.problem, torch.from_numpy(0.3 * np.random.default_rng(0).normal(size=16))
    membrane, dense, total = problem.membrane, problem.membrane.scipy, 0.0
    root = np.linalg.cholesky(dense(problem.entries(0 * coefficients)).toarray())
    for value, mode in zip(problem.values.numpy(), problem.modes.numpy().T, strict=True):
        shifted = dense(problem.entries(coefficients) - value * membrane.mass).toarray()
        sizes = problem.noise / 10 * value**0.5, problem.noise * np.sqrt((mode**2).mean())
        rows = np.eye(len(shifted))[problem.sensors.numpy()]
        system = np.concatenate([np.linalg.solve(root, shifted) / sizes[0], rows / sizes[1]])
        right = np.concatenate([np.zeros(len(shifted)), mode / sizes[1]])
        total += np.linalg.lstsq(system, right)[1][0] / 2
    assert search.fitted(coefficients).square().item() == pytest.approx(total, rel=1e-6)


def test_whole_basis_of_modes_gives_the_whole_problem():
    coefficients = torch.from_numpy(0.3 * np.random.default_rng(0).normal(size=16))
    torch.testing.assert_close(search_of("reduced").fitted(coefficients), search_of("layer").fitted(coefficients))


def test_eigenvectors_find_the_field_and_eigenvalues_do_not(tmp_path):
    found = short_form("inverse", tmp_path)["by_size"]["64"]
    assert found["layer"]["error"]["mean"] < 0.4
    assert found["eigenvalues"]["error"]["mean"] > 0.6
    assert found["eigh"]["end"] == ["NaN"]
    assert found["eigenvalues"]["it_less_layer"]["mean"] > 0
    assert found["equation"]["error"]["mean"] < 0.4
