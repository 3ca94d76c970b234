"""Nodes held at 0: the pairs of the rows and columns of all other nodes."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch

from problems import every, random_affinity, square, stored, surface
from torch_lapeig import KNN, Graph, Laplacian, eigenpairs, mesh_laplacian
from torch_lapeig.eigen import ChebyshevSubspace, Krylov, Lobpcg, ShiftInvert


def reference(matrix, free, mass=None):
    at = np.ix_(free.nonzero().flatten().tolist(), free.nonzero().flatten().tolist())
    return scipy.linalg.eigh(matrix.numpy()[at], None if mass is None else mass.numpy()[at])


@every(normalization=["symmetric", "random_walk", "unnormalized"], is_sparse=[False, True], largest=[False, True])
def test_pairs_are_those_of_the_other_nodes(normalization, is_sparse, largest):
    for seed in range(6):
        affinity = random_affinity(24, seed=seed, keep=0.2)
        fixed = torch.rand(24, generator=torch.Generator().manual_seed(seed)) < 0.3
        laplacian = Laplacian(stored(affinity, is_sparse), normalization)
        degrees = affinity.sum(1)
        stiffness, free = torch.diag(degrees) - affinity, ~fixed & (degrees > 0)
        mass = torch.eye(24, dtype=torch.float64) if normalization == "unnormalized" else torch.diag(degrees)
        values = reference(stiffness, free, mass)[0]
        pairs = eigenpairs(laplacian, 3, fixed=fixed if seed % 2 else fixed.nonzero().flatten(), largest=largest)
        torch.testing.assert_close(pairs.values, torch.tensor(values[::-1][:3].copy() if largest else values[:3]))
        assert not pairs.vectors[fixed].any()
        u = pairs.vectors / (degrees.sqrt()[:, None] if normalization == "symmetric" else 1)
        left = (stiffness @ u - mass @ u * pairs.values)[free]
        torch.testing.assert_close(left, torch.zeros_like(left), atol=1e-9, rtol=0)
        assert pairs.converged


def test_a_drum_with_a_fixed_boundary():
    points, faces = square(40)
    boundary = (points % 1 == 0).any(1)
    for mass in ("lumped", "consistent"):
        mesh = mesh_laplacian(points, faces, mass=mass)
        pairs = eigenpairs(mesh.stiffness, 3, mass=mesh.mass, fixed=boundary)
        exact = math.pi**2 * torch.tensor([2.0, 5.0, 5.0], dtype=torch.float64)
        torch.testing.assert_close(pairs.values, exact, rtol=1e-2, atol=0)
    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    mesh = mesh_laplacian(points * scale, faces)
    value = eigenpairs(mesh.stiffness, 1, mass=mesh.mass, fixed=boundary).values[0]
    value.backward()
    torch.testing.assert_close(scale.grad, -2 * value.detach())  # values fall with the square of lengths


@pytest.mark.parametrize("solver", [None, Lobpcg(), ShiftInvert(), ChebyshevSubspace(), Krylov()])
def test_every_solver_on_a_larger_graph(solver):
    laplacian = Laplacian(KNN(8)(surface(600)))
    fixed = torch.arange(600) % 5 == 0
    values = torch.linalg.eigvalsh(laplacian.symmetric.to_dense()[~fixed][:, ~fixed])[:4]
    torch.testing.assert_close(eigenpairs(laplacian, 4, solver, fixed=fixed).values, values, rtol=0, atol=1e-10)


@every(dtype=[torch.float64, torch.complex128], has_mass=[False, True])
def test_batches_of_matrices_and_pencils(dtype, has_mass):
    generator = torch.Generator().manual_seed(0)
    a, m = torch.randn(2, 2, 10, 10, dtype=dtype, generator=generator)
    a, m = a + a.mH, m @ m.mH + torch.eye(10)
    fixed = torch.rand(2, 10, generator=generator) < 0.3
    pairs = eigenpairs(a, 2, fixed=fixed, mass=m if has_mass else None)
    for b in range(2):
        values = reference(a[b], ~fixed[b], m[b] if has_mass else None)[0][:2]
        torch.testing.assert_close(pairs.values[b], torch.tensor(values))
        assert not pairs.vectors[b][fixed[b]].any()


def test_a_component_without_fixed_nodes_keeps_its_null_vector():
    affinity = torch.block_diag(*(random_affinity(8, seed=seed) for seed in range(3)))
    pairs = eigenpairs(Laplacian(Graph.from_dense(affinity), "unnormalized"), 3, fixed=torch.tensor([0]))
    torch.testing.assert_close(pairs.values[:2], torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    assert pairs.values[2] > 1e-3
    assert pairs.converged
