"""Magnetic Laplacians: closed forms, dense references, every value once, phases, exact gradients at equal values."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from problems import MissesOneCopy, check_derivatives, covering, every, quiet
from torch_lapeig import ConvergenceError, DegeneracyWarning, DirectedGraph, MagneticLaplacian, Solve


def directed_cycle(n, weight=None):
    node = torch.arange(n)
    weight = torch.ones(n, dtype=torch.float64) if weight is None else weight
    return DirectedGraph.from_edge_index(torch.stack([node, node.roll(-1)]), weight)


def random_arcs(n, *, seed=0, degree=4, dtype=torch.float64):
    """Return dense weights of arcs of a connected graph, some of them in both directions, with loops."""
    generator = torch.Generator().manual_seed(seed)
    weight = 0.5 + torch.rand(n, n, generator=generator, dtype=torch.float64)
    weight = weight * (torch.rand(n, n, generator=generator) < degree / n)
    return (weight + torch.eye(n, dtype=torch.float64).roll(1, 1)).to(dtype)


def reference(weight, q, normalization):
    """Return H by its definition, in NumPy."""
    w = np.asarray(weight, dtype=np.float64)
    both = w + w.T
    phase = 2 * np.pi * q * np.divide(w - w.T, both, out=np.zeros_like(w), where=both > 0)
    degrees = both.sum(1) / 2
    h = np.diag(degrees) - both / 2 * np.exp(1j * phase)
    s = np.divide(1, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    return h if normalization == "unnormalized" else s[:, None] * h * s


def invariants(pairs, seed=1):
    y = pairs.vectors
    heat = y @ torch.matrix_exp(-pairs.projected) @ y.mH
    n = heat.shape[-1]
    h = torch.randn(n, n, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))
    return pairs.values.sum(), (h.mH @ h * heat).sum().real, (h.real * heat.abs().square()).sum()


@every(q=[0.0, 0.1, 0.25, 1 / 3, 0.5], n=[3, 4, 9, 60])
def test_directed_cycles(n, q):
    """1 − cos(2πj/n + 2πq), for degrees of one: both normalisations are equal."""
    true = np.sort(1 - np.cos(2 * np.pi * np.arange(n) / n + 2 * np.pi * q))
    for normalization in ("unnormalized", "symmetric"):
        pairs = MagneticLaplacian(directed_cycle(n), q, normalization).eigenpairs(min(n, 7))
        assert np.allclose(pairs.values, true[:7], atol=1e-12)
        assert pairs.converged


@covering(2, normalization=["symmetric", "unnormalized"], n=[1, 2, 9, 40, 300], sparse=[False, True], k=[1, 4])
def test_dense_references(normalization, n, sparse, k):
    weight, charges = random_arcs(n), [0.0, -0.15, 0.25]
    graph = DirectedGraph.from_dense(weight)
    laplacian = MagneticLaplacian(graph.to_sparse() if sparse else graph, charges, normalization)
    h = np.stack([reference(weight, q, normalization) for q in charges])
    assert np.allclose(laplacian.to_dense(), h, atol=1e-14)
    k = min(k, n)
    pairs = laplacian.eigenpairs(k)
    y = pairs.vectors.numpy()
    assert np.allclose(pairs.values, np.linalg.eigvalsh(h)[:, :k], atol=1e-11)
    assert np.allclose(np.conj(y).transpose(0, 2, 1) @ y, np.eye(k), atol=1e-10)
    assert np.allclose(np.linalg.norm(h @ y - y * pairs.values.numpy()[:, None], axis=1), pairs.residuals, atol=1e-13)
    assert pairs.converged.all()
    assert (pairs.residuals <= 1e-9).all()
    assert torch.equal(pairs.projected, torch.diag_embed(pairs.values).to(torch.complex128))
    if n > k:
        spectra = np.linalg.eigvalsh(h)
        assert np.allclose(pairs.gap, spectra[:, k] - spectra[:, k - 1], rtol=0.1, atol=1e-12)
    else:
        assert pairs.gap.isinf().all()


class TestPhase:
    def test_the_first_of_the_largest_entries_is_real_and_positive(self):
        y = MagneticLaplacian(DirectedGraph.from_dense(random_arcs(30)), 0.2).eigenpairs(5).vectors
        size = y.abs()
        first = (size >= 0.999 * size.amax(0)).int().argmax(0)
        peaks = y[first, torch.arange(5)]
        assert torch.allclose(peaks, peaks.abs().to(y), atol=1e-15)

    def test_vectors_of_simple_values_are_differentiable_themselves(self):
        """The phase has a derivative of its own, so that no loss of these vectors is undefined."""
        weight = random_arcs(6).to_sparse()
        numbers = torch.randn(2, 6, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))

        def pairs(w, k=3):
            return MagneticLaplacian(DirectedGraph.from_edge_index(weight.indices(), w), 0.2).eigenpairs(k)

        assert (pairs(weight.values(), 4).values.diff() > 1e-3).all()
        loss = lambda w: (numbers * pairs(w).vectors).real.sum((1, 2))  # noqa: E731
        check_derivatives(loss, weight.values(), second=1e-4, fast_mode=True)


class TestGradients:
    @covering(2, q=[0.0, 0.25], k=[1, 3], normalization=["symmetric", "unnormalized"], degeneracy=["mask", "lorentz"])
    def test_directed_cycles_whose_values_come_in_pairs(self, q, k, normalization, degeneracy):
        node, solve = torch.arange(8), Solve(degeneracy=degeneracy)

        def function(w, q):
            graph = DirectedGraph.from_edge_index(torch.stack([node, node.roll(-1)]), w)
            return invariants(MagneticLaplacian(graph, q, normalization).eigenpairs(k, solve))

        values = MagneticLaplacian(directed_cycle(8), q).eigenpairs(5).values
        assert torch.allclose(values[1::2], values[2::2])
        w = torch.ones(8, dtype=torch.float64, requires_grad=True)
        charge = torch.tensor(q, dtype=torch.float64, requires_grad=True)
        assert gradcheck(function, (w, charge), check_forward_ad=True, fast_mode=True)
        if degeneracy == "mask":
            assert gradgradcheck(function, (w, charge), atol=1e-4, fast_mode=True)

    def test_dense_batches_and_several_charges(self):
        weight = torch.stack([random_arcs(6, seed=seed) for seed in (0, 1)])
        there = weight > 0
        values = weight[there].clone().requires_grad_()
        charges = torch.tensor([0.1, 0.2, 0.25], dtype=torch.float64, requires_grad=True)

        def function(w, q):
            graph = DirectedGraph.from_dense(torch.zeros_like(weight).masked_scatter(there, w))
            return invariants(MagneticLaplacian(graph, q).eigenpairs(2))

        assert gradcheck(function, (values, charges))

    @pytest.mark.parametrize("normalization", ["symmetric", "unnormalized"])
    def test_missing_arcs_have_the_one_sided_derivative(self, normalization):
        weight = random_arcs(6, degree=2).fill_diagonal_(0).requires_grad_()

        def function(w):
            return invariants(MagneticLaplacian(DirectedGraph.from_dense(w), 0.2, normalization).eigenpairs(2))[1]

        function(weight).backward()
        missing, step = ((weight + weight.mT) == 0).nonzero().tolist(), 1e-6
        assert any(i != j for i, j in missing)
        with torch.no_grad():
            for i, j in missing:
                changed = [weight.detach().clone() for _ in range(2)]
                for times, one in enumerate(changed, 1):
                    one[i, j] = times * step
                first, second = map(function, changed)
                ahead = (4 * first - second - 3 * function(weight)) / (2 * step)
                assert weight.grad[i, j] == pytest.approx(float(ahead), abs=1e-5)

    def test_a_cut_through_a_plane_is_reported(self):
        w = torch.ones(8, dtype=torch.float64, requires_grad=True)
        pairs = MagneticLaplacian(directed_cycle(8, w), 0.0).eigenpairs(2)
        assert pairs.converged
        assert torch.allclose(pairs.vectors.mH @ pairs.vectors, torch.eye(2, dtype=torch.complex128))
        assert (pairs.residuals <= 1e-12).all()
        with pytest.warns(DegeneracyWarning, match="splits a cluster"):
            pairs.vectors.abs().pow(3).sum().backward()
        assert w.grad.isfinite().all()

    def test_float32_gives_complex64_and_no_warning(self):
        weight = random_arcs(12, dtype=torch.float32)
        pairs = MagneticLaplacian(DirectedGraph.from_dense(weight), 0.2).eigenpairs(3)
        exact = MagneticLaplacian(DirectedGraph.from_dense(weight.double()), 0.2).eigenpairs(3)
        assert (pairs.values.dtype, pairs.vectors.dtype) == (torch.float32, torch.complex64)
        assert torch.allclose(pairs.vectors, exact.vectors.to(torch.complex64), atol=2e-6)


def test_a_missed_copy_is_reported():
    laplacian = MagneticLaplacian(DirectedGraph.from_dense(random_arcs(8)), 0.2)
    with pytest.raises(ConvergenceError, match="missed a copy of an eigenvalue"):
        laplacian.eigenpairs(2, MissesOneCopy())


def test_no_stray_warnings_of_nodes_without_arcs():
    graph = quiet(DirectedGraph.from_edge_index, torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), 3)
    with pytest.raises(ValueError, match="k=1 with 0 of them"):
        MagneticLaplacian(graph).eigenpairs(1)
