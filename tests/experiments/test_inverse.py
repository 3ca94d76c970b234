"""The inverse eigenproblem: its matrices against closed spectra, gradients of all ways against differences."""

import math

import numpy as np
import pytest
import torch

from experiments.inverse import Equation, Misfit
from experiments.membrane import Membrane, Problem, Trial, solved
from problems import check_slope, short_form

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


def search_of(way):
    return (Equation if way == "equation" else Misfit)(Problem.of(TRIAL, 0), way, math.inf)


@pytest.mark.parametrize("way", ["layer", "eigh_jittered", "nelson", "equation", "eigenvalues"])
def test_gradient_is_that_of_differences(way):
    at, direction = np.random.default_rng(0).normal(size=(2, 16))
    check_slope(search_of(way), 0.3 * at, direction, step=1e-5, rel=1e-5)


def test_gradient_at_equal_eigenvalues():
    """The first modes of the uniform membrane come in pairs, of which the loss depends on no basis."""
    check_slope(search_of("layer"), np.zeros(16), np.random.default_rng(0).normal(size=16), step=1e-5, rel=1e-4)


def test_equation_error_is_the_least_sum_over_the_fields():
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


def test_eigenvectors_find_the_field_and_eigenvalues_do_not(tmp_path):
    found = short_form("inverse", tmp_path)["by_size"]["64"]
    assert max(found[way]["error"]["mean"] for way in ("layer", "reduced", "equation")) < 0.4
    assert found["eigenvalues"]["error"]["mean"] > 0.6
    assert found["eigh"]["end"] == ["NaN"]
