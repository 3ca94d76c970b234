"""Checks that every rank of a group runs: eigenpairs, gradients and methods are those of one process."""

import contextlib
import functools
import itertools
import math
import warnings
from unittest.mock import Mock

import pytest
import torch
from common import DTYPES, blobs, close, copies, cut, graph_of, rows_of, spread, subspaces, whole

import torch_lapeig as tl
from problems import ignoring, known_spectra, surface, swiss_roll
from torch_lapeig.distributed import Ranks, Sharded, sharded_graph, sum_gradients
from torch_lapeig.distributed import ranks as ranks_module
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lobpcg
from torch_lapeig.losses import SpectralLoss, orthogonality, spectral_loss, whiten
from torch_lapeig.support import checks

BOTH = (None, Lobpcg())  # graphs are gathered by default, and solved on all ranks if asked for


def check_known_spectra(ranks):
    for known in known_spectra():
        graph = rows_of(tl.Graph.from_dense(known.affinity).to_sparse(), ranks)
        n = len(known.affinity)
        for k, normalization, spectrum in ((4, "symmetric", known.normalized), (n, "unnormalized", known.unnormalized)):
            pairs = tl.eigenpairs(tl.Laplacian(graph, normalization), k)
            expected = torch.tensor(sorted(spectrum)[:k], dtype=torch.float64)
            torch.testing.assert_close(pairs.values, expected, atol=1e-12, rtol=0, msg=f"{known.name} {k}")
            assert pairs.converged
            assert pairs.is_sharded


def compare(pairs, exact, home):
    torch.testing.assert_close(pairs.values, exact.values, atol=1e-10, rtol=0)
    torch.testing.assert_close(pairs.gap, exact.gap, atol=1e-8, rtol=0.1)
    assert subspaces(exact.vectors, home(pairs.vectors)) < 1e-8


def check_eigenpairs_are_those_of_one_process(ranks):
    apart = torch.cat([swiss_roll(150), 100 + swiss_roll(100, seed=2), -100 + blobs(50, 3)])
    cases = (
        (swiss_roll(500), tl.KNN(8), "random_walk"),
        (blobs(), tl.KNN(10), "unnormalized"),
        (apart, tl.KNN(6), "symmetric"),
        (copies(), tl.KNN(7), "symmetric"),
    )
    for x, rule, normalization in cases if ranks.world < 3 else cases[2:]:
        points = spread(x, ranks)
        laplacian = tl.Laplacian(tl.HeatKernel(2.0)(points.x, sharded_graph(points, rule)), normalization)
        reference = tl.Laplacian(tl.HeatKernel(2.0)(x, rule(x)), normalization)
        exact = tl.eigenpairs(reference, 6, Eigh())
        assert int(laplacian.nullity) == int(reference.nullity)
        pairs = tl.eigenpairs(laplacian, 6)
        compare(pairs, exact, functools.partial(whole, points))
        assert float(pairs.residuals.max()) < 1e-10


def check_every_solver(ranks):
    x = surface(300)
    points = spread(x, ranks)
    graph = tl.HeatKernel()(points.x, sharded_graph(points, tl.KNN(10)))
    exact = tl.eigenpairs(tl.Laplacian(tl.HeatKernel()(x, tl.KNN(10)(x))), 5, Eigh())
    for solver in (ChebyshevSubspace(), Lobpcg(), Lobpcg(preconditioner=None, max_iterations=500)):
        pairs = tl.eigenpairs(tl.Laplacian(graph), 5, solver)
        assert pairs.converged
        compare(pairs, exact, functools.partial(whole, points))
        same = ranks.gather(pairs.values[None])
        assert bool((same == same[0]).all()), "ranks differ in bits"
    with pytest.raises(TypeError, match="several ranks"):
        tl.eigenpairs(tl.Laplacian(graph), 5, Eigh())


def check_ranks_of_few_nodes(ranks):
    """The other ranks have no nodes, and wait and answer at each step, or as many nodes as there are pairs."""
    graph = tl.HeatKernel()(surface(260), tl.KNN(8)(surface(260)))
    given, factor = graph.weight.clone().requires_grad_(), torch.linspace(-1, 1, 260, dtype=torch.float64)[:, None]
    exact = tl.eigenpairs(tl.Laplacian(graph.with_weight(given)), 4, Eigh())
    (exact.vectors[:, 1:].square() * factor).sum().backward()
    for how, solver in itertools.product(("last", "fours"), (None, Lobpcg(), ChebyshevSubspace())):
        sharded, part = rows_of(graph, ranks, how), cut(260, ranks, how)
        weight = sharded.weight.requires_grad_()
        pairs = tl.eigenpairs(tl.Laplacian(sharded), 4, solver)
        assert pairs.converged
        compare(pairs, exact, ranks.gather)
        (pairs.vectors[:, 1:].square() * factor[part]).sum().backward()
        # Ranks have their edges in other orders: changes of the weights in proportion to their powers.
        powers = torch.arange(1.0, 6)
        found, known = (w.grad @ w.detach()[:, None] ** powers for w in (weight, given))
        torch.testing.assert_close(ranks.sum(found), known, atol=1e-9, rtol=1e-7)


def check_graphs_are_solved_on_one_rank(ranks):
    """A graph of copies, whose parts hang together by next to nothing: few messages, and the pairs of one process."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 3, generator=g, dtype=torch.float64)[torch.randint(500, (1000,), generator=g)]
    rows, factor = cut(1000, ranks), torch.linspace(-1, 2, 1000, dtype=torch.float64)[:, None]
    one = x.clone().requires_grad_()
    exact = tl.LaplacianEigenmaps(2, tl.KNN(10))(one)
    (exact.square() * factor).sum().backward()
    mine, before = x[rows].clone().requires_grad_(), ranks.calls
    y = Sharded(tl.LaplacianEigenmaps(2, tl.KNN(10)), ranks)(mine)
    (y.square() * factor[rows]).sum().backward()
    assert ranks.calls - before < 150
    torch.testing.assert_close(y, exact[rows], atol=1e-8, rtol=0)
    torch.testing.assert_close(mine.grad, one.grad[rows], atol=1e-7 * float(one.grad.abs().max()), rtol=0)


def check_what_the_first_rank_raises_all_raise(ranks):
    """Check that all ranks raise the same error, and that the group can still be used."""
    graph = sharded_graph(spread(surface(120), ranks), tl.KNN(6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Eigh, "__call__", Mock(side_effect=tl.ConvergenceError("as multigrid may")))
        with pytest.raises(tl.ConvergenceError, match="as multigrid may"):
            tl.eigenpairs(tl.Laplacian(graph), 3)
    assert float(ranks.sum(torch.ones(()))) == ranks.world


def check_the_finest_level_is_never_gathered(ranks):
    x = swiss_roll(6000)
    points = spread(x, ranks, "equal")
    laplacian = tl.Laplacian(tl.HeatKernel()(points.x, sharded_graph(points, tl.KNN(8))))
    ranks.most_rows = 0
    pairs = tl.eigenpairs(laplacian, 4, Lobpcg())
    assert pairs.converged
    one = tl.eigenpairs(tl.Laplacian(tl.HeatKernel()(x, tl.KNN(8)(x))), 4, Lobpcg())
    torch.testing.assert_close(pairs.values, one.values, atol=1e-10, rtol=0)
    assert pairs.iterations <= 2 * one.iterations
    assert ranks.most_rows < 0.5 * 6000 * (8 + 8) / ranks.world  # entries of coarse matrices are rows too
    halo = len(laplacian.graph.pattern.halo)
    before, y = ranks.sent, points.x.new_ones(len(points.x), 5)
    laplacian.symmetric.matmul(y)
    assert ranks.sum(torch.tensor(ranks.sent - before)) == ranks.sum(torch.tensor(halo)) * 5 * 8


def check_ranks_whose_round_off_differs(ranks):
    """On the last rank dense problems have other signs and other last bits, as on other hardware."""
    x, eigh, svd = surface(250), torch.linalg.eigh, torch.linalg.svd
    g = torch.Generator().manual_seed(ranks.rank)

    def noisy(y):
        return y * (1 + 1e-14 * torch.randn(y.shape, generator=g, dtype=y.dtype))

    def other_eigh(a, UPLO="L"):
        values, vectors = eigh(a, UPLO=UPLO)
        return noisy(values), -noisy(vectors)

    def other_svd(a, full_matrices=True):
        u, s, v = svd(a, full_matrices=full_matrices)
        return -noisy(u), noisy(s), -noisy(v)

    exact = tl.eigenpairs(tl.Laplacian(tl.HeatKernel()(x, tl.KNN(10)(x))), 5, Eigh())
    factor = torch.linspace(-1, 1, 250, dtype=torch.float64)[:, None]
    one = x.clone().requires_grad_()
    tl.LaplacianEigenmaps(2, tl.KNN(10))(one).square().mul(factor).sum().backward()
    with pytest.MonkeyPatch.context() as patch:
        if ranks.rank == ranks.world - 1:
            patch.setattr(torch.linalg, "eigh", other_eigh)
            patch.setattr(torch.linalg, "svd", other_svd)
        ranks_module._arithmetic.cache_clear()
        other = Ranks(ranks.group, timeout=20)
        assert other.same_bits == (ranks.world == 1)
        points = spread(x, other)
        laplacian = tl.Laplacian(tl.HeatKernel()(points.x, sharded_graph(points, tl.KNN(10))))
        for solver in (Lobpcg(), ChebyshevSubspace()):
            pairs = tl.eigenpairs(laplacian, 5, solver)
            assert pairs.converged
            compare(pairs, exact, functools.partial(whole, points))
        rows = cut(250, ranks)
        mine = x[rows].clone().requires_grad_()
        Sharded(tl.LaplacianEigenmaps(2, tl.KNN(10)), other)(mine).square().mul(factor[rows]).sum().backward()
        torch.testing.assert_close(mine.grad, one.grad[rows], atol=1e-8 * float(one.grad.abs().max()), rtol=0)
    ranks_module._arithmetic.cache_clear()


def gradients(ranks, rows, x, loss, solver=None):
    """Gradients of a loss of rows of values and vectors, on ranks and on one process."""
    found = []
    for one in (False, True):
        weights = tl.HeatKernel(learnable=True).to(x.dtype)
        mine = (x if one else x[rows]).clone().requires_grad_()
        graph, _, home = graph_of(mine, tl.KNN(8), weights, None if one else ranks)
        part = slice(0, len(x)) if one else rows
        pairs = tl.eigenpairs(tl.Laplacian(graph, "random_walk"), 4, None if one else solver)
        loss(pairs, home(pairs.vectors), part, one).backward()
        bandwidth = weights.log_factor.grad
        found.append((mine.grad, bandwidth if one else ranks.sum(bandwidth)))
    (mine, bandwidth), (exact, whole_bandwidth) = found
    close(mine, exact, rows)
    close(bandwidth, whole_bandwidth)


def check_gradients_are_those_of_one_process(ranks):
    x = surface(150)
    factor = torch.randn(150, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def on_values(pairs, y, part, one):
        share = 1.0 if one else (ranks.rank + 1) / (ranks.world * (ranks.world + 1) / 2)  # of a replicated quantity
        return share * pairs.values.exp().sum() + (y[:, 1] * factor[part, 0]).sum()

    def on_projected(pairs, y, part, one):
        # each rank has its rows of V exp(−Λ), whose sum of squares is that of one process
        return ((y @ torch.matrix_exp(-pairs.projected)).square() * factor[part]).sum()

    def ignoring_a_rank(pairs, y, part, one):
        wanted = torch.arange(len(x))[part] < 70  # rows of the last ranks are ignored
        return (y[wanted, 2] * factor[part][wanted, 1]).sum()

    for loss, solver in itertools.product((on_values, on_projected, ignoring_a_rank), BOTH):
        gradients(ranks, cut(150, ranks), x, loss, solver)
        gradients(ranks, cut(150, ranks), x.float(), loss, solver)


def check_second_derivatives(ranks):
    x = surface(60)
    rows = cut(60, ranks)
    g = torch.Generator().manual_seed(3)
    factor, along = torch.randn(60, 3, generator=g, dtype=torch.float64), torch.randn(60, 3, generator=g).double()

    def second(one, solver=None, power=2):
        mine = (x if one else x[rows]).clone().requires_grad_()
        part = slice(0, 60) if one else rows
        graph, _, home = graph_of(mine, tl.KNN(6), tl.HeatKernel(3.0), None if one else ranks)
        pairs = tl.eigenpairs(tl.Laplacian(graph), 3, solver)
        y = home(pairs.vectors) @ torch.matrix_exp(-pairs.projected)
        (grad,) = torch.autograd.grad((y.pow(power) * factor[part]).sum(), mine, create_graph=True)
        (hessian,) = torch.autograd.grad((grad * along[part]).sum(), mine)
        return hessian

    for power in (1, 2):  # a loss that is linear in the vectors has cotangents without derivatives
        exact = second(True, power=power)
        for solver in BOTH:
            mine = second(False, solver, power)
            torch.testing.assert_close(mine, exact[rows], atol=1e-8 * float(exact.abs().max()), rtol=0)


def check_derivatives_depend_on_no_mode(ranks):
    x, rows = surface(60), cut(60, ranks)
    factor = torch.randn(60, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    nothing = contextlib.nullcontext

    def slope(solver, dtype=torch.float64, one=False, before=nothing, around=nothing, change=1.0):
        mine = (x if one else x[rows]).to(dtype).clone().requires_grad_()
        graph, _, home = graph_of(mine, tl.KNN(6), tl.HeatKernel(3.0), None if one else ranks)
        laplacian = tl.Laplacian(graph, "unnormalized")

        def loss():
            pairs = tl.eigenpairs(laplacian, 3, solver)
            z = home(pairs.vectors) @ (2 * torch.eye(3, dtype=dtype) - pairs.projected)
            return (z.square() * factor[slice(0, 60) if one else rows].to(dtype)).sum()

        with before():
            loss()
        with torch.no_grad():
            graph.weight.mul_(change)
        with around():
            value = loss()
        return torch.autograd.grad(value, mine)[0] if change == 1 else value.detach()

    modes = ({"before": torch.no_grad}, {"before": torch.inference_mode}, {"dtype": torch.float32})
    autocast = functools.partial(torch.autocast, "cpu", torch.bfloat16)
    exact = slope(None, one=True)
    for options, solver in itertools.product((*modes, {"around": autocast}), BOTH):
        mine = slope(solver, **options)
        accuracy = 1e-8 if mine.dtype == torch.float64 else 1e-4
        torch.testing.assert_close(mine.double(), exact[rows], atol=accuracy * float(exact.abs().max()), rtol=0)
    moved = ranks.total(slope(None, before=torch.no_grad, change=1.1))
    torch.testing.assert_close(moved, slope(None, one=True, before=torch.no_grad, change=1.1), atol=1e-10, rtol=0)


def check_sums_are_summed_in_the_same_order_everywhere(ranks):
    for shape in ((3,), (14, 14), (200, 50)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(ranks.rank), dtype=torch.float64)
        same = ranks.gather(ranks.sum(x)[None])
        assert bool((same == same[0]).all())
    assert math.isclose(float(ranks.total(torch.tensor(1.0))), ranks.world)


def check_warnings_are_errors_here(ranks):
    with pytest.raises(UserWarning):
        warnings.warn("so that no check overlooks one", UserWarning, stacklevel=1)


def answers(module, ranks, x, new, part=slice(None), of_new=slice(None)):
    """Rows and gradients of some points, those of some new points, and values, by a method or by its `Sharded`."""
    mine, fresh = x[part].clone().requires_grad_(), new[of_new].clone().requires_grad_()
    found = module.embed(mine)
    (found.embedding[:, 1].square() * torch.linspace(-1, 2, len(x))[part]).sum().backward()
    sum_gradients(module, ranks)
    parameters = [p.grad for p in module.parameters()]
    module.fit(x[part])
    rows = module.transform(fresh)
    rows[:, 1].sin().sum().backward()
    values = [found.eigenvalues, found.residuals[:0], found.gap, module.eigenvalues_, *parameters]
    return [found.embedding, mine.grad, module.embedding_], [rows, fresh.grad], values


def check_methods_and_new_points_in_every_dtype(ranks):
    x, new = surface(150), torch.cat([surface(40, seed=8), surface(150)[:9]])
    rows, of_new = cut(150, ranks), cut(49, ranks, "last")
    makers = (
        lambda: tl.LaplacianEigenmaps(3, tl.KNN(7, "union", "cosine"), tl.SelfTuning(4), scale="orthonormal"),
        lambda: tl.LaplacianEigenmaps(3, tl.Radius(0.9), tl.HeatKernel(learnable=True), normalization="unnormalized"),
        lambda: tl.LaplacianEigenmaps(2, tl.KNN(8, "mutual"), scale="unit", solve=Lobpcg()),
        lambda: tl.SpectralClustering("eigengap", tl.KNN(8), max_clusters=6),
    )
    for make, dtype in itertools.product(makers, DTYPES):
        given = x.to(dtype), new.to(dtype)
        exact = answers(make(), Ranks.alone(), *given)
        mine = answers(Sharded(make(), ranks), ranks, *given, rows, of_new)
        for part, found, expected in zip((rows, of_new, ...), mine, exact, strict=True):
            for a, b in zip(found, expected, strict=True):
                close(a, b, part)


def check_clusters_are_those_of_one_process(ranks):
    """Also their number, where the eigengap chooses it, and where isolated nodes take the place of some of them."""
    five = (blobs(250), tl.KNN(8), tl.HeatKernel(200.0))
    far = torch.tensor([[500.0, 0], [0, 500]]).double()
    lonely = torch.cat([blobs(12, 2)[[0, 5, 10, 1, 6, 11]], far]), tl.Radius(9)
    cases = [(5, *five, options) for options in ({}, {"assign_labels": "discretize"}, {"variant": "shi_malik"})]
    cases += [("eigengap", *five, {"assign_labels": "cluster_qr"}), ("eigengap", *five, {})]
    cases += [(4, *lonely, None, {}), (4, *lonely, None, {"assign_labels": "cluster_qr"})]
    for (clusters, x, rule, weights, options), dtype in itertools.product(cases, DTYPES):
        rows, given = cut(len(x), ranks), x.to(dtype)
        with ignoring(checks.GraphWarning):  # of isolated nodes
            one = tl.SpectralClustering(clusters, rule, weights, **options).fit(given)
            module = Sharded(tl.SpectralClustering(clusters, rule, weights, **options), ranks).fit(given[rows])
            assert torch.equal(module.predict(given[rows]), module.labels_)
        pairs = torch.stack([ranks.gather(module.labels_), one.labels_], 1).unique(dim=0)
        assert len(pairs) == len(one.labels_.unique()) == len(pairs[:, 0].unique()), (clusters, options, pairs)


def check_smoothness_and_its_parameters(ranks):
    """A training step of a network: the sum of the ranks' losses, and the sum of their gradients."""
    x = surface(120)
    for reduction, dtype in itertools.product(("sum", "mean", "weighted_mean"), DTYPES):
        found = []
        for one in (True, False):
            torch.manual_seed(0)
            network = torch.nn.Linear(3, 2, bias=False)
            loss = tl.LaplacianSmoothness(tl.KNN(6), tl.HeatKernel(learnable=True))
            loss.reduction, everything = reduction, torch.nn.ModuleList([network, loss]).to(dtype)
            mine = x if one else x[cut(120, ranks)]
            value = (loss if one else Sharded(loss, ranks))(network(mine.to(dtype)), mine)
            value.backward()
            sum_gradients(everything, Ranks.alone() if one else ranks)
            found.append([value.detach(), *(p.grad for p in everything.parameters())])
        exact, mine = found
        for a, b in zip([ranks.sum(mine[0]), *mine[1:]], exact, strict=True):
            close(a, b)


def check_losses_of_all_rows(ranks):
    """Spectral loss and orthogonality: the shares sum to one process's, and so do gradients; rows are whitened."""
    x, rows = surface(100), cut(100, ranks)
    y = torch.randn(100, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    factor = torch.linspace(-1, 1, 300, dtype=torch.float64).reshape(100, 3)
    face = Sharded(SpectralLoss(tl.KNN(6)), ranks)

    def found(one, dtype):
        part = slice(None) if one else rows
        mine, values = x[part].clone().requires_grad_(), y[part].to(dtype).clone().requires_grad_()
        graph, to_nodes, home = graph_of(mine, tl.KNN(6), tl.HeatKernel(2.0), None if one else ranks)
        here = to_nodes(values)
        losses = [spectral_loss(here, graph), orthogonality(here, graph)]
        losses.append((home(whiten(here, graph)) * factor[part]).sum().to(dtype))
        losses.append((SpectralLoss(tl.KNN(6)) if one else face)(values, mine))
        return [(loss.detach(), *torch.autograd.grad(loss, (mine, values), retain_graph=True)) for loss in losses]

    for dtype in DTYPES:
        for (share, to_x, to_y), (loss, exact_x, exact_y) in zip(found(False, dtype), found(True, dtype), strict=True):
            close(ranks.sum(share), loss)
            close(to_x.to(dtype), exact_x.to(dtype), rows)
            close(to_y, exact_y, rows)
