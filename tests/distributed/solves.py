"""Checks that every rank of a group runs: eigenpairs, gradients and methods are those of one process."""

import functools
import math
import warnings

import pytest
import torch
from common import blobs, copies, cut, rows_of, spread, subspaces, whole

from problems import known_spectra, surface, swiss_roll
from torch_lapeig import (
    KNN,
    ConvergenceError,
    Graph,
    HeatKernel,
    Laplacian,
    LaplacianEigenmaps,
    LaplacianSmoothness,
    Radius,
    SelfTuning,
    SpectralClustering,
    eigenpairs,
)
from torch_lapeig.distributed import Ranks, Sharded, ShardedPoints, sharded_graph, sum_gradients
from torch_lapeig.distributed import ranks as ranks_module
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lobpcg
from torch_lapeig.losses import SpectralLoss, orthogonality, spectral_loss, whiten

BOTH = (None, Lobpcg())  # graphs are gathered by default, and solved on all ranks if asked for


# --- Eigenpairs -------------------------------------------------------------------------------------------------------


def check_known_spectra(ranks):
    for known in known_spectra():
        graph = rows_of(Graph.from_dense(known.affinity).to_sparse(), ranks)
        n = len(known.affinity)
        for k, normalization, spectrum in ((4, "symmetric", known.normalized), (n, "unnormalized", known.unnormalized)):
            pairs = eigenpairs(Laplacian(graph, normalization), k)
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
        (swiss_roll(500), KNN(8), "random_walk"),
        (blobs(), KNN(10), "unnormalized"),
        (apart, KNN(6), "symmetric"),
        (copies(), KNN(7), "symmetric"),
    )
    for x, rule, normalization in cases if ranks.world < 3 else cases[2:]:
        points = spread(x, ranks)
        laplacian = Laplacian(HeatKernel(2.0)(points.x, sharded_graph(points, rule)), normalization)
        reference = Laplacian(HeatKernel(2.0)(x, rule(x)), normalization)
        exact = eigenpairs(reference, 6, Eigh())
        assert int(laplacian.nullity) == int(reference.nullity)
        pairs = eigenpairs(laplacian, 6)
        compare(pairs, exact, functools.partial(whole, points))
        assert float(pairs.residuals.max()) < 1e-10


def check_every_solver(ranks):
    x = surface(300)
    points = spread(x, ranks)
    graph = HeatKernel()(points.x, sharded_graph(points, KNN(10)))
    reference = Laplacian(HeatKernel()(x, KNN(10)(x)))
    exact = eigenpairs(reference, 5, Eigh())
    for solver in (ChebyshevSubspace(), Lobpcg(), Lobpcg(preconditioner=None, max_iterations=500)):
        pairs = eigenpairs(Laplacian(graph), 5, solver)
        assert pairs.converged
        compare(pairs, exact, functools.partial(whole, points))
        same = ranks.gather(pairs.values[None])
        assert bool((same == same[0]).all()), "ranks differ in bits"
    with pytest.raises(TypeError, match="several ranks"):
        eigenpairs(Laplacian(graph), 5, Eigh())


def check_ranks_without_nodes(ranks):
    """All nodes on the last rank; the others wait and answer at each step."""
    graph = HeatKernel()(surface(260), KNN(8)(surface(260)))
    exact, factor = eigenpairs(Laplacian(graph), 4, Eigh()), torch.linspace(-1, 1, 260, dtype=torch.float64)[:, None]
    sharded, part = rows_of(graph, ranks, "last"), cut(260, ranks, "last")
    for solver in (Lobpcg(), ChebyshevSubspace()):
        pairs = eigenpairs(Laplacian(sharded), 4, solver)
        assert pairs.converged
        compare(pairs, exact, ranks.gather)
    weight = sharded.weight.requires_grad_()
    pairs = eigenpairs(Laplacian(sharded), 4)
    (pairs.vectors[:, 1:].square() * factor[part]).sum().backward()
    assert weight.grad.isfinite().all()


def check_graphs_are_solved_on_one_rank(ranks):
    """A graph of copies, whose parts hang together by next to nothing: few messages, and the pairs of one process."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 3, generator=g, dtype=torch.float64)[torch.randint(500, (1000,), generator=g)]
    rows, factor = cut(1000, ranks), torch.linspace(-1, 2, 1000, dtype=torch.float64)[:, None]
    one = x.clone().requires_grad_()
    exact = LaplacianEigenmaps(2, KNN(10))(one)
    (exact.square() * factor).sum().backward()
    mine, before = x[rows].clone().requires_grad_(), ranks.calls
    y = Sharded(LaplacianEigenmaps(2, KNN(10)), ranks)(mine)
    (y.square() * factor[rows]).sum().backward()
    assert ranks.calls - before < 150
    torch.testing.assert_close(y, exact[rows], atol=1e-8, rtol=0)
    torch.testing.assert_close(mine.grad, one.grad[rows], atol=1e-7 * float(one.grad.abs().max()), rtol=0)


def breaks_down(*_, progress=None):
    raise ConvergenceError("as multigrid may")


def check_what_the_first_rank_raises_all_raise(ranks):
    """Check that all ranks raise the same error, and that the group can still be used."""
    graph = sharded_graph(spread(surface(120), ranks), KNN(6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Eigh, "__call__", breaks_down)
        with pytest.raises(ConvergenceError, match="as multigrid may"):
            eigenpairs(Laplacian(graph), 3)
    assert float(ranks.sum(torch.ones(()))) == ranks.world


def check_the_finest_level_is_never_gathered(ranks):
    x = swiss_roll(6000)
    points = spread(x, ranks, "equal")
    laplacian = Laplacian(HeatKernel()(points.x, sharded_graph(points, KNN(8))))
    ranks.most_rows = 0
    pairs = eigenpairs(laplacian, 4, Lobpcg())
    assert pairs.converged
    one = eigenpairs(Laplacian(HeatKernel()(x, KNN(8)(x))), 4, Lobpcg())
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

    exact = eigenpairs(Laplacian(HeatKernel()(x, KNN(10)(x))), 5, Eigh())
    factor = torch.linspace(-1, 1, 250, dtype=torch.float64)[:, None]
    one = x.clone().requires_grad_()
    LaplacianEigenmaps(2, KNN(10))(one).square().mul(factor).sum().backward()
    with pytest.MonkeyPatch.context() as patch:
        if ranks.rank == ranks.world - 1:
            patch.setattr(torch.linalg, "eigh", other_eigh)
            patch.setattr(torch.linalg, "svd", other_svd)
        ranks_module._arithmetic.cache_clear()
        other = Ranks(ranks.group, timeout=20)
        assert other.same_bits == (ranks.world == 1)
        points = spread(x, other)
        laplacian = Laplacian(HeatKernel()(points.x, sharded_graph(points, KNN(10))))
        for solver in (Lobpcg(), ChebyshevSubspace()):
            pairs = eigenpairs(laplacian, 5, solver)
            assert pairs.converged
            compare(pairs, exact, functools.partial(whole, points))
        rows = cut(250, ranks)
        mine = x[rows].clone().requires_grad_()
        Sharded(LaplacianEigenmaps(2, KNN(10)), other)(mine).square().mul(factor[rows]).sum().backward()
        torch.testing.assert_close(mine.grad, one.grad[rows], atol=1e-8 * float(one.grad.abs().max()), rtol=0)
    ranks_module._arithmetic.cache_clear()


# --- Gradients --------------------------------------------------------------------------------------------------------


def gradients(ranks, rows, x, loss, solver=None):
    """Gradients of a loss of rows of values and vectors, on ranks and on one process."""
    found = []
    for one in (False, True):
        weights = HeatKernel(learnable=True).double()
        mine = (x if one else x[rows]).clone().requires_grad_()
        if one:
            graph, home, part = weights(mine, KNN(8)(x)), (lambda y: y), slice(0, len(x))
        else:
            points = ShardedPoints.spread(mine, ranks)
            graph, home, part = weights(points.x, sharded_graph(points, KNN(8))), points.home, rows
        pairs = eigenpairs(Laplacian(graph, "random_walk"), 4, None if one else solver)
        value = loss(pairs, home(pairs.vectors), part, one)
        value.backward()
        bandwidth = weights.log_factor.grad
        found.append((mine.grad, bandwidth if one else ranks.sum(bandwidth)))
    (mine, bandwidth), (exact, whole_bandwidth) = found
    size = float(exact.abs().max())
    torch.testing.assert_close(mine, exact[rows], atol=1e-8 * size, rtol=0)
    torch.testing.assert_close(bandwidth, whole_bandwidth, atol=1e-8, rtol=1e-8)


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

    for loss in (on_values, on_projected, ignoring_a_rank):
        for solver in BOTH:
            gradients(ranks, cut(150, ranks), x, loss, solver)


def check_second_derivatives(ranks):
    x = surface(60)
    rows = cut(60, ranks)
    g = torch.Generator().manual_seed(3)
    factor, along = torch.randn(60, 3, generator=g, dtype=torch.float64), torch.randn(60, 3, generator=g).double()

    def second(one, solver=None, power=2):
        mine = (x if one else x[rows]).clone().requires_grad_()
        part = slice(0, 60) if one else rows
        if one:
            graph, home = HeatKernel(3.0)(mine, KNN(6)(x)), (lambda y: y)
        else:
            points = ShardedPoints.spread(mine, ranks)
            graph, home = HeatKernel(3.0)(points.x, sharded_graph(points, KNN(6))), points.home
        pairs = eigenpairs(Laplacian(graph), 3, solver)
        y = home(pairs.vectors) @ torch.matrix_exp(-pairs.projected)
        (grad,) = torch.autograd.grad((y.pow(power) * factor[part]).sum(), mine, create_graph=True)
        (hessian,) = torch.autograd.grad((grad * along[part]).sum(), mine)
        return hessian

    for power in (1, 2):  # a loss that is linear in the vectors has cotangents without derivatives
        exact = second(True, power=power)
        for solver in BOTH:
            mine = second(False, solver, power)
            torch.testing.assert_close(mine, exact[rows], atol=1e-8 * float(exact.abs().max()), rtol=0)


def check_sums_are_summed_in_the_same_order_everywhere(ranks):
    for shape in ((3,), (14, 14), (200, 50)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(ranks.rank), dtype=torch.float64)
        same = ranks.gather(ranks.sum(x)[None])
        assert bool((same == same[0]).all())
    assert math.isclose(float(ranks.total(torch.tensor(1.0))), ranks.world)


def check_warnings_are_errors_here(ranks):
    with pytest.raises(UserWarning):
        warnings.warn("so that no check overlooks one", UserWarning, stacklevel=1)


# --- Faces ------------------------------------------------------------------------------------------------------------


def check_eigenmaps_and_new_points(ranks):
    x, new = surface(150), torch.cat([surface(40, seed=8), surface(150)[:9]])
    rows, of_new = cut(150, ranks), cut(49, ranks, "last")
    cases = (
        (KNN(7, "union", "cosine"), {"scale": "orthonormal", "drop_trivial": False}),
        (Radius(0.9), {"normalization": "unnormalized"}),
        (KNN(8, "mutual"), {"scale": "unit"}),
    )
    for rule, options in cases if ranks.world == 1 else cases[:2]:
        one = LaplacianEigenmaps(3, rule, SelfTuning(4), **options)
        module = Sharded(LaplacianEigenmaps(3, rule, SelfTuning(4), **options), ranks)
        exact = one.fit(x)
        close = functools.partial(torch.testing.assert_close, atol=1e-7, rtol=1e-7)
        close(module(x[rows]), exact.embedding_[rows])
        close(module.fit(x[rows]).embedding_, exact.embedding_[rows])
        close(module.eigenvalues_, exact.eigenvalues_)
        mine, whole_new = new[of_new].clone().requires_grad_(), new.clone().requires_grad_()
        close(module.transform(mine), exact.transform(new)[of_new])
        module.transform(mine).sin().sum().backward()
        one.transform(whole_new).sin().sum().backward()
        close(mine.grad, whole_new.grad[of_new])


def check_clusters_are_those_of_one_process(ranks):
    x = blobs(250)
    rows = cut(250, ranks)
    for options in ({}, {"assign_labels": "cluster_qr"}, {"variant": "shi_malik"}):
        module = Sharded(SpectralClustering(5, KNN(8), HeatKernel(200.0), **options), ranks).fit(x[rows])
        labels = ranks.gather(module.labels_)
        expected = torch.arange(250) % 5
        pairs = torch.stack([labels, expected], 1).unique(dim=0)
        assert len(pairs) == 5
        assert torch.equal(module.predict(x[rows][:4]), module.labels_[:4])


def check_smoothness_and_its_parameters(ranks):
    """A training step of a network: the sum of the ranks' losses, and the sum of their gradients."""
    x = surface(120)
    rows = cut(120, ranks)
    for reduction in ("sum", "mean"):
        found = []
        for one in (True, False):
            torch.manual_seed(0)
            network = torch.nn.Linear(3, 2).double()
            loss = LaplacianSmoothness(KNN(6), HeatKernel(learnable=True).double(), reduction)
            everything = torch.nn.ModuleList([network, loss])
            mine = x if one else x[rows]
            value = (loss if one else Sharded(loss, ranks))(network(mine), mine)
            value.backward()
            if not one:
                sum_gradients(everything, ranks)
            found.append([value.detach(), *(p.grad for p in everything.parameters())])
        exact, mine = found
        for a, b in zip([ranks.sum(mine[0]), *mine[1:]], exact, strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def check_losses_of_all_rows(ranks):
    """Spectral loss and orthogonality: the shares sum to one process's, and so do gradients; rows are whitened."""
    x, rows = surface(100), cut(100, ranks)
    y = torch.randn(100, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    factor = torch.linspace(-1, 1, 300, dtype=torch.float64).reshape(100, 3)
    face, weights = Sharded(SpectralLoss(KNN(6)), ranks), HeatKernel(2.0)

    def found(one):
        mine, values = (
            (x if one else x[rows]).clone().requires_grad_(),
            (y if one else y[rows]).clone().requires_grad_(),
        )
        if one:
            graph, here, home, part = weights(mine, KNN(6)(x)), values, (lambda z: z), slice(None)
        else:
            points = ShardedPoints.spread(mine, ranks)
            graph, here = weights(points.x, sharded_graph(points, KNN(6))), points.here(values)
            home, part = points.home, rows
        losses = [spectral_loss(here, graph), orthogonality(here, graph)]
        losses.append((home(whiten(here, graph)) * factor[part]).sum())
        losses.append((SpectralLoss(KNN(6)) if one else face)(values, mine))
        return [(loss.detach(), *torch.autograd.grad(loss, (mine, values), retain_graph=True)) for loss in losses]

    for (share, to_x, to_y), (loss, exact_x, exact_y) in zip(found(False), found(True), strict=True):
        torch.testing.assert_close(ranks.sum(share), loss, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(to_x, exact_x[rows], atol=1e-9, rtol=1e-8)
        torch.testing.assert_close(to_y, exact_y[rows], atol=1e-9, rtol=1e-8)
