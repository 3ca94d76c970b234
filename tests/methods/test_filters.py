"""Spectral filters, signatures and invariant encodings: equal eigenvalues, batches, transforms of data."""

import dataclasses
import pickle

import combined
import pytest
import torch
from torch import nn

import problems
import torch_lapeig as tl
from problems import complete, complete_bipartite, covering, cycle, path, points, random_affinity
from torch_lapeig import methods
from torch_lapeig.pyg import AddSpectralFeatures

NORMALIZATIONS = ["symmetric", "random_walk", "unnormalized"]
GRAPHS = {"cycle": cycle(8), "complete": complete(6), "random": random_affinity(9)}
GRAPHS |= {"two components": problems.two_cliques(3, 4)}
GRAPHS |= {"isolated node": torch.block_diag(torch.zeros(1, 1, dtype=torch.float64), path(5))}


def network(outputs, inputs=1, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, 8), nn.SiLU(), nn.Linear(8, outputs)).double()


def laplacian_of(affinity, normalization="symmetric"):
    return tl.Laplacian(tl.Graph.from_dense(affinity), normalization)


def turned(pairs, seed=0):
    """The same pairs in other bases of the eigenspaces."""
    values, vectors = pairs.values, pairs.vectors.clone()
    ends = [*((values.diff() > 1e-6).nonzero().flatten() + 1).tolist(), len(values)]
    for begin, end in zip([0, *ends], ends, strict=False):
        basis = torch.linalg.qr(points(end - begin, end - begin, seed=seed))[0]
        vectors[:, begin:end] = vectors[:, begin:end] @ basis
    return dataclasses.replace(pairs, vectors=vectors)


def test_polynomials_of_chebyshev():
    phi = methods.PolynomialResponse(5, 2, bound=3.0)
    with torch.no_grad():
        phi.coefficients.copy_(points(6, 2))
    at = torch.linspace(0, 3, 7, dtype=torch.float64)[:, None]
    chebyshev = torch.cat([(j * (2 * at / 3 - 1).clamp(-1, 1).acos()).cos() for j in range(6)], 1)
    torch.testing.assert_close(phi(at), chebyshev @ phi.coefficients.double())


def test_a_signature_with_a_trace_of_zero():
    pairs = tl.eigenpairs(laplacian_of(path(4)), 1)
    assert not tl.spectral_signature(pairs, methods.WaveResponse([0.0], 1.0), normalize=True).any()


RHO = network(2, 3, seed=1)
FUNCTIONS = {
    "filter": lambda pairs, phi: tl.SpectralFilter(phi)(pairs, points(8, 3)),
    "bank": lambda pairs, phi: tl.SpectralFilter(phi, bank=True)(pairs, points(8, 1)),
    "signature": lambda pairs, phi: tl.spectral_signature(pairs, phi),
    "shares": lambda pairs, phi: tl.spectral_signature(pairs, lambda v: phi(v).exp(), normalize=True),
    "kernel": lambda p, phi: (p.vectors @ methods.spectral_function(p, phi) @ p.vectors.mT).movedim(0, -1),
    "encoding": lambda pairs, phi: tl.StableEncoding(phi, RHO)(pairs),
    "encoding in parts": lambda pairs, phi: tl.StableEncoding(phi, RHO, columns=3)(pairs),
}


def loss_of(function, phi, affinity, k, normalization="symmetric"):
    weight, graph = problems.edge_parameters(affinity)

    def loss(weight):
        found = function(tl.eigenpairs(tl.Laplacian(graph(weight), normalization), k), phi)
        return (found * points(found.numel(), 1).reshape(found.shape)).sum()

    return weight, loss


def heat_or_wave(value):
    return torch.cat([methods.HeatResponse([0.5])(value), methods.WaveResponse([0.0, 1.0], 1.0)(value)], 1)


class TestDerivativesAtEqualEigenvalues:
    """The cycle of 8 has 0, and two pairs of equal eigenvalues; the complete graph one of seven."""

    @covering(
        2,
        function=FUNCTIONS,
        phi={"network": network(3), "wavelets": methods.WaveletResponse(1, bound=16.0), "heat, wave": heat_or_wave},
        case={"cycle": (cycle(8), 5), "complete": (complete(8), 8)},
        normalization=NORMALIZATIONS,
    )
    def test_first_second_and_forward_mode(self, function, phi, case, normalization, request):
        weight, loss = loss_of(function, phi, *case, normalization)
        forward = "parts" not in request.node.name  # torch's checkpoints have no forward mode
        assert torch.autograd.gradcheck(loss, (weight,), fast_mode=True, atol=1e-6, check_forward_ad=forward)
        assert torch.autograd.gradgradcheck(loss, (weight,), fast_mode=True, atol=1e-5, rtol=1e-4)

    def test_complex_pairs_of_a_directed_ring(self):
        """Two planes of equal eigenvalues, with the charge of half a step."""
        node = torch.arange(6)

        def loss(weight):
            ring = tl.DirectedGraph.from_edge_index(torch.stack([node, node.roll(-1)]), weight)
            pairs = tl.MagneticLaplacian(ring, 1 / 12).eigenpairs(4)
            real = tl.SpectralFilter(methods.HeatResponse([1.0]))(pairs, points(6, 2)).abs().square().sum(1)
            signal = torch.complex(points(6, 1), points(6, 1, seed=1))
            parts = torch.view_as_real(tl.SpectralFilter(methods.HeatResponse([0.5]))(pairs, signal)[:, 0]).sum(1)
            encoded = tl.StableEncoding(methods.HeatResponse([1.0]), lambda a: a.abs().square())(pairs)[:, 0]
            kernel = methods.spectral_function(pairs, methods.HeatResponse([2.0]))[0]
            entries = (pairs.vectors @ kernel @ pairs.vectors.mH)[0]
            signature = tl.spectral_signature(pairs, methods.HeatResponse([1.0]))[:, 0]
            return torch.stack([real, parts, encoded, signature, entries.real])

        assert torch.autograd.gradcheck(loss, torch.ones(6, dtype=torch.float64, requires_grad=True))

    @pytest.mark.parametrize("difference", [1e-14, 1e-10, 1e-7])
    def test_nearly_equal(self, difference):
        affinity = cycle(8)
        affinity[0, 1] = affinity[1, 0] = 1 + difference
        weight, loss = loss_of(FUNCTIONS["filter"], network(3), affinity, 5)
        (gradient,), direction = torch.autograd.grad(loss(weight), weight), points(8, 1)[:, 0]
        expected = problems.five_points(loss, weight, direction)  # of so large a step that they see no pair
        torch.testing.assert_close(gradient @ direction, expected, rtol=1e-6, atol=1e-7)

    def test_parameters_of_phi_and_signals_beside_weights(self):
        phi, (weight, graph) = network(3), problems.edge_parameters(cycle(8))
        names, parameters = zip(*phi.named_parameters(), strict=True)

        def filtered(weight, x, *parameters):
            def changed(value):
                return torch.func.functional_call(phi, dict(zip(names, parameters, strict=True)), (value,))

            return tl.SpectralFilter(changed)(tl.eigenpairs(tl.Laplacian(graph(weight)), 5), x)

        inputs = (weight, points(8, 3).requires_grad_(), *parameters)
        assert torch.autograd.gradcheck(filtered, inputs, fast_mode=True, atol=1e-6)
        assert torch.autograd.gradgradcheck(filtered, inputs, fast_mode=True, atol=1e-5, rtol=1e-4)

    def test_a_phi_that_changes_its_argument(self):
        weight, loss = loss_of(FUNCTIONS["filter"], lambda value: value.mul_(3).exp_(), cycle(8), 5)
        assert torch.autograd.gradcheck(loss, (weight,), fast_mode=True, atol=1e-6)


class TestBatches:
    SIZES = (cycle(6), path(2), random_affinity(9), torch.zeros(1, 1, dtype=torch.float64))

    @covering(1, function=list(range(4)), device=problems.DEVICES)
    @pytest.mark.filterwarnings("ignore::torch_lapeig.GraphWarning")
    def test_each_graph_as_alone(self, function, device):
        phi, rho = network(3).to(device), network(2, 3).to(device)
        functions = [
            lambda pairs, x, mask: tl.SpectralFilter(phi)(pairs, x, mask=mask),
            lambda pairs, x, mask: tl.SpectralFilter(phi, bank=True)(pairs, x, mask=mask),
            lambda pairs, x, mask: tl.spectral_signature(pairs, phi, normalize=False),
            lambda pairs, x, mask: tl.StableEncoding(phi, rho, columns=4)(pairs, mask=mask),
        ]
        affinity, mask = (part.to(device) for part in combined.padded(*self.SIZES))
        affinity.requires_grad_()
        x = points(9, 3, batch=4).to(device)
        padded = torch.where(mask[..., None], x, torch.nan)
        pairs = tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(affinity, mask=mask)), 5, fill=True)
        found = functions[function](pairs, padded, mask)
        assert not found[~mask].any()
        aim = points(9, found.shape[-1], batch=4).to(device)
        (gradient,) = torch.autograd.grad((found * aim).sum(), affinity)
        for b, one in enumerate(self.SIZES):
            n, alone = len(one), one.to(device).requires_grad_()
            pairs = tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(alone)), 5, fill=True)
            expected = functions[function](pairs, x[b, :n], mask[b, :n])
            torch.testing.assert_close(found[b, :n], expected)
            (own,) = torch.autograd.grad((expected * aim[b, :n]).sum(), alone)
            torch.testing.assert_close(gradient[b, :n, :n], own, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_units(unit):
    """Times in the unit of the weights give the same filter, and gradients in the inverse unit."""
    x = points(8, 1)
    for scale in (1.0, unit):
        affinity = (cycle(8) * scale).requires_grad_()
        pairs = tl.eigenpairs(laplacian_of(affinity, "unnormalized"), 5)
        found = tl.SpectralFilter(methods.HeatResponse([0.5 / scale]))(pairs, x)
        (gradient,) = torch.autograd.grad((found * points(8, 1, seed=1)).sum(), affinity)
        if scale == 1:
            expected = found, gradient
    torch.testing.assert_close(found, expected[0], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(gradient * unit, expected[1], rtol=1e-6, atol=1e-8)


def test_encodings_and_signatures_in_other_bases():
    """Stable encodings and signatures are the same in any basis of equal eigenvalues, sign-invariant encodings not."""
    pairs = tl.eigenpairs(laplacian_of(cycle(8)), 5)
    stable, signed = tl.StableEncoding(network(3), RHO), methods.SignInvariant(network(4))
    for found in (stable, lambda pairs: tl.spectral_signature(pairs, methods.HeatResponse([1.0]))):
        rows = found(pairs)
        torch.testing.assert_close(found(turned(pairs)), rows)
        torch.testing.assert_close(rows, rows[:1].expand_as(rows))  # of nodes that a rotation permutes
    assert (signed(turned(pairs).vectors) - signed(pairs.vectors)).abs().max() > 1e-3


TREE = torch.zeros(7, 7, dtype=torch.float64)
for i, j in ((0, 1), (1, 2), (2, 3), (3, 4), (2, 5), (5, 6)):  # nodes 1 and 0, and 5 and 6 or 3 and 4, change places
    TREE[i, j] = TREE[j, i] = 1
SYMMETRIC = {**GRAPHS, "star": complete_bipartite(1, 4), "tree": TREE, "torus": complete_bipartite(3, 3)}


class TestCanonicalVectors:
    @covering(2, affinity=SYMMETRIC, normalization=["symmetric", "unnormalized"])
    @pytest.mark.filterwarnings("ignore:.*isolated")
    def test_follow_the_order_of_nodes(self, affinity, normalization):
        n, order = len(affinity), torch.randperm(len(affinity), generator=torch.Generator().manual_seed(1))
        laplacian = laplacian_of(affinity, normalization)
        k = int(laplacian.active.sum())
        pairs = tl.eigenpairs(laplacian, k)
        one = methods.canonicalize(turned(pairs))
        other = methods.canonicalize(tl.eigenpairs(laplacian_of(affinity[order][:, order], normalization), k))
        assert torch.equal(one.unique, other.unique)
        torch.testing.assert_close(one.vectors[order][:, one.unique], other.vectors[:, one.unique], atol=1e-7, rtol=0)
        v = one.vectors
        torch.testing.assert_close(v.mT @ v, torch.eye(k).double(), atol=1e-9, rtol=0)
        torch.testing.assert_close(laplacian.to_dense() @ v, v * pairs.values, atol=1e-8, rtol=0)
        assert v.shape == (n, k)

    def test_what_automorphisms_turn_is_not_unique(self):
        assert methods.canonicalize(tl.eigenpairs(laplacian_of(cycle(8)), 8)).unique.tolist() == [True] + [False] * 7
        assert methods.canonicalize(tl.eigenpairs(laplacian_of(random_affinity(9)), 9)).unique.all()

    def test_a_cut_eigenspace_is_not_unique(self):
        star = torch.block_diag(path(3), path(4))
        assert methods.canonicalize(tl.eigenpairs(laplacian_of(star), 2)).unique.tolist() == [True, True]
        assert methods.canonicalize(tl.eigenpairs(laplacian_of(star), 1)).unique.tolist() == [False]
        leaves = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])  # values 0, 1, 1, 2
        inside = tl.eigenpairs(tl.Laplacian(tl.Graph.from_edge_index(leaves)), 2, nearest=1.6)
        assert methods.canonicalize(inside).unique.tolist() == [False, False]  # either end may be cut


class TestTransform:
    @pytest.fixture
    def data(self):
        pyg = pytest.importorskip("torch_geometric", reason="transforms data of PyTorch Geometric")
        graphs = [cycle(20), complete(7), random_affinity(12), problems.two_cliques(3, 4), path(2)]
        edges = [affinity.nonzero().T.contiguous() for affinity in graphs]
        return [
            pyg.data.Data(x=torch.randn(len(a), 2), edge_index=e, edge_weight=a[tuple(e)], num_nodes=len(a))
            for a, e in zip(graphs, edges, strict=True)
        ]

    @pytest.mark.parametrize("normalization", NORMALIZATIONS)
    def test_signatures_of_each_graph(self, data, normalization):
        phi = methods.HeatResponse([0.5, 2.0])
        transform = AddSpectralFeatures(phi, 6, "heat", normalization=normalization, eigenvalues="values")
        for item, found in zip(data, transform(data), strict=True):
            graph = tl.Graph.from_edge_index(item.edge_index, item.edge_weight, num_nodes=item.num_nodes)
            pairs = tl.eigenpairs(tl.Laplacian(graph, normalization), 7, fill=True)
            torch.testing.assert_close(found.heat, tl.spectral_signature(pairs, phi), rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(found["values"][0], pairs.values[1:])
            assert "heat" not in item

    def test_appended_pickled_and_shown(self, data):
        transform = AddSpectralFeatures(methods.WaveResponse([-1.0, 0.0, 1.0], 0.5), 6, normalize=True)
        assert AddSpectralFeatures(methods.HeatResponse([1.0]), 6, None)(data[0]).x.shape == (20, 3)
        again = pickle.loads(pickle.dumps(transform))(data[0])
        torch.testing.assert_close(again.spectral_features, transform(data[0]).spectral_features)
        assert "AddSpectralFeatures(phi=WaveResponse(energies=(-1.0, 0.0, 1.0), sigma=0.5), k=6" in repr(transform)


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


def test_second_derivatives_of_phi_are_checked():
    with pytest.raises(ValueError, match="phi must be twice differentiable"):
        tl.spectral_signature(tl.eigenpairs(laplacian_of(path(4).requires_grad_()), 3), OnceDifferentiable.apply)


def test_errors_of_phi_are_its_own():
    def broken(value):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        tl.spectral_signature(tl.eigenpairs(laplacian_of(path(4)), 3), broken)


def test_state_dict_and_learning():
    x, pairs = points(30, 2), tl.eigenpairs(laplacian_of(random_affinity(30, keep=0.1)), 20)
    aim = tl.SpectralFilter(methods.HeatResponse([0.5, 3.0]))(pairs, x)
    learned = tl.SpectralFilter(methods.HeatResponse([1.0, 1.0], learnable=True)).double()
    optimizer = torch.optim.LBFGS(learned.parameters(), max_iter=50)

    def loss():
        optimizer.zero_grad()
        value = (learned(pairs, x) - aim).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    again = tl.SpectralFilter(methods.HeatResponse([1.0, 1.0], learnable=True)).double()
    again.load_state_dict(learned.state_dict())
    torch.testing.assert_close(again.phi.log_times.exp(), torch.tensor([0.5, 3.0]).double(), rtol=1e-3, atol=1e-3)
