"""Cases that single-line changes of the code once passed unnoticed: see ``benchmarks/mutants.py``."""

import math

import pytest
import torch

import torch_lapeig as tl
from problems import cycle, every, path, points, two_cliques
from torch_lapeig.eigen import Eigh, RitzPairs
from torch_lapeig.eigen.gradient.cg import conjugate_gradients
from torch_lapeig.graph import nearest_neighbors


def test_second_derivatives_in_float32_of_clusters_of_values_far_apart():
    """A triangle and one of weights a million times as large have the eigenvalues 0, 0, 3, 3, 3e6, 3e6."""
    triangle = torch.ones(3, 3, dtype=torch.float64) - torch.eye(3, dtype=torch.float64)
    affinity = torch.block_diag(triangle, 2.0**20 * triangle)
    probe = points(6, 2, seed=3)

    def second(dtype):
        weight = affinity.to(dtype).requires_grad_()
        pairs = tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(weight), "unnormalized"), 4, Eigh())
        part = pairs.vectors[:, 2:4].mT @ probe.to(dtype)
        (first,) = torch.autograd.grad(part.square().sum().square(), weight, create_graph=True)
        first = (first + first.mT)[:3, 3:]  # how the small triangle turns into the large one
        (found,) = torch.autograd.grad(first.square().sum(), weight)
        return found + found.mT

    exact, found = second(torch.float64), second(torch.float32).double()
    assert exact.norm() > 0
    assert (found - exact).norm() <= 1e-3 * exact.norm()


def test_a_residual_above_the_tolerance_has_not_converged():
    """By three times, and by a third less it has."""
    laplacian = tl.Laplacian(tl.Graph.from_dense(cycle(12) + torch.diag(torch.arange(12, dtype=torch.float64))))
    values, vectors = torch.linalg.eigh(laplacian.to_dense())
    tolerance, gap = 1e-3, float(values[3] - values[2])

    def off_by(residual):
        def solver(operator, k, tolerance, progress=None):
            angle = residual / float(values[5] - values[2])
            turned = vectors.clone()
            cosine, sine = math.cos(angle), math.sin(angle)
            turned[:, 2] = cosine * vectors[:, 2] + sine * vectors[:, 5]
            turned[:, 5] = cosine * vectors[:, 5] - sine * vectors[:, 2]
            return RitzPairs(values[None], turned[None], 1, torch.tensor([True]))

        return solver

    assert tl.eigenpairs(laplacian, 3, off_by(0.7 * tolerance * gap), tolerance=tolerance).converged
    with pytest.warns(tl.ConvergenceWarning):
        assert not tl.eigenpairs(laplacian, 3, off_by(3 * tolerance * gap), tolerance=tolerance).converged


def test_vectors_that_are_not_orthonormal_have_not_converged():
    """Residuals are 0 where a solver returns an eigenvector twice."""
    laplacian = tl.Laplacian(tl.Graph.from_dense(path(12)))
    values, vectors = torch.linalg.eigh(laplacian.to_dense())
    twice = torch.tensor([0, 1, 1, 2, 3])

    def solver(operator, k, tolerance, progress=None):
        return RitzPairs(values[twice][None], vectors[:, twice][None], 1, torch.tensor([True]))

    with pytest.warns(tl.ConvergenceWarning):
        assert not tl.eigenpairs(laplacian, 3, solver).converged


def test_conjugate_gradients_return_the_best_iterate():
    """The last iterate is far off where the right side of a singular system lies partly in the null space."""
    scale = torch.logspace(0, -9, 40, dtype=torch.float64)[:, None]
    scale[-1] = 0
    target = torch.ones(1, 40, 1, dtype=torch.float64)
    iterates = []

    def image(z):
        iterates.append(z)
        return scale * z

    best, left = conjugate_gradients(
        image, lambda r: r, target, lambda x, y: (x * y).sum(1), lambda z: torch.zeros(1, 1), 300
    )
    residual = (target - scale * best).norm()
    assert left.item() == pytest.approx(residual.item())
    assert residual <= target.norm()
    assert residual < (target - scale * iterates[-1]).norm()


def test_conjugate_gradients_end_after_as_many_steps_as_there_are_eigenvalues():
    """Directions are conjugate (Hestenes and Stiefel 1952); steepest descent would still be far off."""
    scale = torch.tensor([1.0, 3.0, 10.0, 30.0, 100.0], dtype=torch.float64).repeat(8)[:, None]
    target = points(40, 2, seed=1)[None]
    found, left = conjugate_gradients(
        lambda z: scale * z, lambda r: r, target, lambda x, y: (x * y).sum(1), lambda z: torch.zeros(1, 2), 5
    )
    torch.testing.assert_close(found, target / scale, rtol=1e-10, atol=1e-10)
    assert (left <= 1e-10 * target.norm(dim=1)).all()


@pytest.mark.parametrize("unit", [1e-300, 1e-150, 1e150])
def test_harmonic_scores_do_not_depend_on_the_unit_of_the_weights(unit):
    """Nor does the score of a node on one faint edge, which is the score of its neighbour."""
    affinity = two_cliques(6, 6)
    affinity[5, 6] = affinity[6, 5] = 0.1  # or no labels come from one clique to the other
    affinity[4] = affinity[:, 4] = 0
    affinity[3, 4] = affinity[4, 3] = 1e-6
    labels = torch.full((12,), -1)
    labels[0], labels[-1] = 0, 1
    model = tl.HarmonicFunction(tl.Precomputed("affinity"), class_prior=None)
    expected, found = model(affinity, labels), model(unit * affinity, labels)
    assert expected[1:-1].min() > 0
    torch.testing.assert_close(expected[4], expected[3])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_affinities_may_be_asymmetric_by_round_off_only(dtype):
    affinity = (two_cliques(4, 4) * 0.3).to(dtype)
    slack = 1e-5 if dtype == torch.float32 else 1e-12
    affinity[0, 1] = affinity[1, 0] * (1 + slack / 4)
    tl.Graph.from_dense(affinity)
    affinity[0, 1] = affinity[1, 0] * (1 + 10 * slack)
    with pytest.raises(ValueError, match="affinity must be symmetric"):
        tl.Graph.from_dense(affinity)


@every(d=[2, 8, 40], dtype=[torch.float32, torch.float64])
def test_equal_distances_go_to_the_smaller_number_far_from_the_origin(d, dtype):
    """Whole numbers around 1000, whose products lose the digits that tell neighbours apart."""
    x = torch.randint(0, 3, (400, d), generator=torch.Generator().manual_seed(d)).to(dtype) + 1000
    squares = (x[:, None] - x[None]).square().sum(-1).double()
    squares.fill_diagonal_(torch.inf)
    assert torch.equal(nearest_neighbors(x, 7).indices, squares.argsort(dim=1, stable=True)[:, :7])
