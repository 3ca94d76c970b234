"""Faults on one rank, or between ranks: every rank gets a clear error, and none hangs."""

import os
import signal
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp
from keeping import folder, save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import torch_lapeig as tl
from problems import ignoring, swiss_roll
from torch_lapeig.distributed import DistributedError, Ranks, Sharded, ShardedPoints, sharded_graph, sum_gradients
from torch_lapeig.distributed.search import ShardedSearch
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lobpcg
from torch_lapeig.losses import whiten


def part(x, ranks):
    return x[ranks.rank :: ranks.world].clone()


def refused(ranks, action, own, others, kind=ValueError):
    """The first rank gets an error of its own, the others one that names it; and the group goes on."""
    with pytest.raises(kind if ranks.rank == 0 else DistributedError, match=own if ranks.rank == 0 else others):
        action()
    assert float(ranks.sum(torch.ones(()))) == ranks.world


def check_points_that_one_rank_should_not_give(ranks):
    x = part(swiss_roll(60), ranks)
    bad = x.clone()
    bad[0, 0] = torch.nan
    first = ranks.rank == 0
    given = bad if first else x
    refused(ranks, lambda: ShardedPoints.spread(given, ranks), "finite", "rank 0: ValueError: x must be f")
    points = ShardedPoints.spread(x, ranks)
    for move, rows in ((points.home, points.x), (points.here, x)):
        refused(ranks, lambda m=move, y=rows: m(y[first:]), r"y must have \d+ rows", "rank 0: ValueError: y must have")
    whole = x.int() if first else x
    refused(ranks, lambda: ShardedPoints.spread(whole, ranks), "float32", "rank 0: TypeError: x must be", TypeError)


def differ(ranks, action, match):
    with pytest.raises(DistributedError, match=match):
        action()
    assert float(ranks.sum(torch.ones(()))) == ranks.world


def check_ranks_that_ask_for_different_things(ranks):
    x, last = part(swiss_roll(60), ranks), ranks.rank == ranks.world - 1
    differ(ranks, lambda: ShardedPoints.spread(x[:, :2] if last else x, ranks), r"a row of x must .* \(3,\) of torch.f")
    differ(ranks, lambda: ShardedPoints.spread(x.float() if last else x, ranks), "a row of x must .* of torch.float64")
    graph = sharded_graph(ShardedPoints.spread(x, ranks), tl.KNN(5))
    with pytest.raises((TypeError, DistributedError), match="weight must be float32 or float64"):
        graph.with_weight(graph.weight.int() if last else graph.weight)
    weight = graph.weight.float() if last else graph.weight
    differ(ranks, lambda: tl.Laplacian(graph.with_weight(weight)), "a row of weights must .* torch.float64 on rank 0")
    points = ShardedPoints.spread(x, ranks)
    rule = tl.KNN(5 + last)
    differ(ranks, lambda: sharded_graph(points, rule), "neighbors.k must be the same on all ranks, got 5 on")
    laplacian = tl.Laplacian(sharded_graph(points, tl.KNN(5)))
    differ(ranks, lambda: tl.eigenpairs(laplacian, 3 + last), "k must be the same on all ranks, got 3 on rank 0")
    solver = ChebyshevSubspace() if last else Lobpcg()
    differ(ranks, lambda: tl.eigenpairs(laplacian, 3, solver), "solver must be the same on all ranks")


def check_faces_that_are_called_with_different_things(ranks):
    """Rows of another dtype, other columns of targets, modules of other options or parameters."""
    x, last = part(swiss_roll(60), ranks), ranks.rank == ranks.world - 1

    def module(k=2, **options):
        return Sharded(tl.LaplacianEigenmaps(k, tl.KNN(6), **options), ranks)

    differ(ranks, lambda: module()(x.float() if last else x), "a row of x must be the same")
    differ(ranks, lambda: module(2 + last)(x), "module.n_components must be the same on all ranks, got 2 on rank 0")
    differ(ranks, lambda: module().fit(x[:, :2] if last else x), "a row of x must be the same")
    solve = tl.Solve(tolerance=1e-6 if last else 1e-8)
    differ(ranks, lambda: module(solve=solve)(x), "module.solve.tolerance must be .* got 1e-08 on rank 0")
    differ(ranks, lambda: module().train(not last)(x), "module.training must be the same .* got True on rank 0")
    loss = Sharded(tl.LaplacianSmoothness(tl.KNN(6)), ranks)
    differ(ranks, lambda: loss(x[:, : 3 - last], x), r"a row of y must be the same on all ranks, got \(3,\)")
    differ(ranks, lambda: loss(x.float() if last else x, x), "a row of y must be the same")
    refused(ranks, lambda: loss(x[ranks.rank == 0 :], x), "y must have shape", "rank 0: ValueError: y must have shape")
    weights = tl.HeatKernel(learnable=True)
    with torch.no_grad():
        weights.log_factor += 1e-3 * last
    differ(ranks, lambda: module(weights=weights)(x), r"parameter weights.log_factor must be .*sum_gradients")
    seen = []
    shown = tl.Solve(progress=lambda *_: seen.append(1)) if last else tl.Solve()
    assert module(solve=shown)(x).shape == (len(x), 2)  # what one rank shows is its own business
    bad = x.clone()
    bad[0] = torch.nan
    refused(ranks, lambda: loss(bad if ranks.rank == 0 else x, x), "y must be f", "rank 0: ValueError: y must be f")
    for method, kind in (("fit", tl.LaplacianSmoothness(tl.KNN(4))), ("predict", tl.LaplacianEigenmaps(2, tl.KNN(4)))):
        with pytest.raises(TypeError, match=f"{method} needs a Sharded"):
            getattr(Sharded(kind, ranks), method)(x)


def check_ranks_that_call_different_things(ranks):
    """Functions, methods and gradients that the ranks do not all ask for are told by name before any work is done."""
    x, last = part(swiss_roll(60), ranks), ranks.rank == ranks.world - 1
    points = ShardedPoints.spread(x, ranks)
    graph, other = sharded_graph(points, tl.KNN(5)), torch.nn.Linear(2, 2 + last)
    module, clusters = (Sharded(kind(2, tl.KNN(6)), ranks) for kind in (tl.LaplacianEigenmaps, tl.SpectralClustering))
    clusters.fit(x)
    loss, calls = Sharded(tl.LaplacianSmoothness(tl.KNN(6)), ranks), "the call must be the same on all ranks, got"
    differ(ranks, lambda: (module.fit if last else module)(x), f"{calls} Sharded.embed on rank 0")
    differ(ranks, lambda: (clusters.predict if last else clusters.transform)(x), f"{calls} Sharded.transform on rank 0")
    differ(ranks, lambda: sharded_graph(points, tl.KNN(5)) if last else points.home(x), f"{calls} ShardedPoints.home")
    differ(ranks, lambda: module(x) if last else sum_gradients(other, ranks), f"{calls} sum_gradients on rank 0")
    differ(ranks, lambda: sum_gradients(other, ranks), r"parameter weight must be .* got \(2, 2\) of torch.float32")
    differ(ranks, lambda: whiten(points.x, graph) if last else tl.HeatKernel()(points.x, graph), f"{calls} a weighting")

    given, asked = x.clone().requires_grad_(not last), "derivatives must be the same on all ranks, got to"
    weights = tl.HeatKernel(learnable=True).double().requires_grad_(not last)
    differ(ranks, lambda: module(given), f"{asked} x on rank 0, .*to nothing on rank {ranks.world - 1}")
    differ(ranks, lambda: module.fit(x) and module.transform(given), f"{asked} x_new on rank 0")
    differ(ranks, lambda: loss(given, x), f"{asked} y on rank 0")
    learned = Sharded(tl.LaplacianEigenmaps(2, tl.KNN(6), weights), ranks)
    differ(ranks, lambda: learned(x), "module.weights.log_factor|log_fac")
    differ(ranks, lambda: ShardedPoints.spread(given, ranks), f"{asked} x on rank 0")
    differ(ranks, lambda: points.here(given), f"{asked} y on rank 0")
    laplacian = tl.Laplacian(graph)
    wanted = graph.weight.clone().requires_grad_(not last)
    differ(ranks, lambda: tl.Laplacian(graph.with_weight(wanted)), f"{asked} weights on rank 0")

    def without(action):
        with torch.set_grad_enabled(not last):
            return action()

    actions = (lambda: module(x), lambda: loss(x, x), lambda: module.transform(x), lambda: tl.eigenpairs(laplacian, 3))
    for action in actions:
        differ(ranks, lambda run=action: without(run), "gradient mode must be .* got enabled on rank 0")
    assert module(x.requires_grad_()).requires_grad


def check_what_is_no_group_and_no_module_for_shards(ranks):
    for group, error, match in (
        ("all", TypeError, "group must be a process group, a DeviceMesh or None"),
        (init_device_mesh("cpu", (1, ranks.world)), ValueError, "mesh of one dimension, got 2"),
    ):
        with pytest.raises(error, match=match):
            Ranks(group)
    for module, error, match in (
        (torch.nn.Linear(2, 2), TypeError, "module must be one of LaplacianEigenmaps"),
        (tl.LaplacianEigenmaps(2, tl.Precomputed("affinity")), TypeError, "neighbors must be KNN"),
        (tl.LaplacianSmoothness(tl.KNN(4), reduction="none"), ValueError, "reduction must be"),
        (tl.LaplacianEigenmaps(2, tl.KNN(4), random_signs=True), ValueError, "random_signs must be False"),
    ):
        with pytest.raises(error, match=match):
            Sharded(module, ranks)
    assert float(ranks.sum(torch.ones(()))) == ranks.world


def check_what_errors_advise_gives_the_answer_of_one_process(ranks):
    whole, rule, hasty = swiss_roll(60), tl.KNN(6), Lobpcg(max_iterations=0)
    x = part(whole, ranks)
    sharded = tl.Laplacian(sharded_graph(ShardedPoints.spread(x, ranks), rule), "unnormalized")
    one, ones = tl.Laplacian(rule(ranks.gather(x)), "unnormalized"), torch.ones(60, dtype=torch.float64)
    expected = tl.eigenpairs(one, 3).values
    for action, words, way in (
        (lambda: tl.eigenpairs(sharded, 3, Eigh()), "use Lobpcg", lambda: tl.eigenpairs(sharded, 3, Lobpcg())),
        (lambda: tl.eigenpairs(sharded, 3, Eigh()), "or Cheb", lambda: tl.eigenpairs(sharded, 3, ChebyshevSubspace())),
        (lambda: tl.eigenpairs(sharded, 3, hasty), "more iterations, or", lambda: tl.eigenpairs(sharded, 3, Lobpcg())),
        (lambda: tl.eigenpairs(sharded, 3, mass=ones), r"ranks.gather\(x\)", lambda: tl.eigenpairs(one, 3, mass=ones)),
    ):
        with pytest.raises((TypeError, ValueError, tl.ConvergenceWarning), match=words):
            action()
        torch.testing.assert_close(way().values, expected, atol=1e-6, rtol=0)
    module = Sharded(tl.LaplacianEigenmaps(2, rule, tl.HeatKernel(learnable=True).double()), ranks)
    with torch.no_grad():
        module.module.weights.log_factor += ranks.rank
    differ(ranks, lambda: module(x), r"load ranks.of_first\(module.state_dict\)")
    module.load_state_dict(ranks.of_first(module.state_dict))
    copies = distribute_tensor(whole, DeviceMesh.from_group(ranks.group, "cpu"), [Replicate()])
    with pytest.raises(ValueError, match=r"use x.redistribute\(placements=\[Shard\(0\)\]\)"):
        module(copies)
    y = module(copies.redistribute(placements=[Shard(0)])).full_tensor()
    torch.testing.assert_close(y, module.module(whole), atol=1e-6, rtol=0)


def check_new_points_that_one_rank_should_not_give(ranks):
    x, first = part(swiss_roll(60), ranks), ranks.rank == 0
    module = Sharded(tl.SpectralClustering(3, tl.KNN(6)), ranks).fit(x)
    bad = x[:5].clone()
    bad[2, 1] = torch.nan
    for method in (module.transform, module.predict):
        refused(ranks, lambda m=method: m(bad if first else x[:4]), "finite", "rank 0: ValueError: x_new must be f")
        refused(ranks, lambda m=method: m(x[:5, : 3 - first]), "x_new must be like", "rank 0: ValueError: x_new must b")
        given = x[:5].float() if first else x[:4]
        refused(ranks, lambda m=method, x=given: m(x), "points, torch.float64 of", "rank 0: ValueError")
    fresh = Sharded(tl.SpectralClustering(3, tl.KNN(6)), ranks)
    other = fresh if first else module
    refused(ranks, lambda: other.transform(x[:4]), "call fit first", "rank 0: RuntimeError: .*call fit", RuntimeError)


def check_states_that_are_not_those_of_the_other_ranks(ranks):
    """Each rank has read a file of its own: another fit, one that lacks a key, or one of another configuration."""
    x, last = swiss_roll(60), ranks.rank == ranks.world - 1

    def state(x, neighbors=6):
        return Sharded(tl.LaplacianEigenmaps(2, tl.KNN(neighbors)), Ranks.alone()).fit(x).state_dict()

    def load(state, ranks=ranks):
        return Sharded(tl.LaplacianEigenmaps(2, tl.KNN(6)), ranks).load_state_dict(state)

    good = state(x)
    differ(ranks, lambda: load(state(x[:50]) if last else good), r"train_points of the state must be .*\(60, 3\)")
    differ(ranks, lambda: load(state(x + 1) if last else good), "contents of train_points in the state must be")
    lacking = {name: value for name, value in good.items() if name != "train_weighting"}
    differ(ranks, lambda: load(lacking if last else good), f"train_weighting of .* nothing on rank {ranks.world - 1}")
    differ(ranks, lambda: load({} if last else good), "must be the same on all ranks")
    other = {**good, "_extra_state": state(x, 5)["_extra_state"]}
    with pytest.raises(RuntimeError, match=r"was not loaded: (rank \d: )?neighbors.k is 5 in the state and 6 here"):
        load(other if last else good)
    assert float(ranks.sum(torch.ones(()))) == ranks.world
    assert not load(good).missing_keys


def check_checkpoints_that_one_rank_lacks(ranks):
    x, last = part(swiss_roll(60), ranks), ranks.rank == ranks.world - 1
    module = Sharded(tl.LaplacianEigenmaps(2, tl.KNN(6)), ranks).fit(x)
    with folder(ranks) as path, folder(ranks) as other:
        save({"model": module.state_dict()}, path, ranks.group)
        smaller = Sharded(tl.LaplacianEigenmaps(2, tl.KNN(6)), ranks).fit(x[:-1])
        save({"model": smaller.state_dict()}, other, ranks.group)
        error = FileNotFoundError if last else DistributedError
        with pytest.raises(error, match="No such file"):
            module.room_for(f"{path}/elsewhere" if last else path, "model.")
        differ(ranks, lambda: module.room_for(other if last else path, "model."), "train_points of the checkpoint must")
        room = module.room_for(path, "model.")
        with ignoring(), pytest.raises(dcp.api.CheckpointException):
            dcp.load({"model": room}, checkpoint_id=other if last else path, process_group=ranks.group)
    assert float(ranks.sum(torch.ones(()))) == ranks.world


def check_what_all_ranks_should_not_ask_for(ranks):
    x = part(swiss_roll(3 * ranks.world), ranks)
    points = ShardedPoints.spread(x, ranks)
    with pytest.raises(ValueError, match=f"must be smaller than the number of points, got k=50 with {3 * ranks.world}"):
        ShardedSearch(points).nearest(50)
    with pytest.raises(ValueError, match="at least one neighbour"):
        sharded_graph(points, tl.Radius(1e-9))
    with pytest.raises(ValueError, match="exact search"):
        sharded_graph(points, tl.KNN(2, recall=0.5))
    with pytest.raises(ValueError, match="at least 2 points on all ranks"):
        ShardedPoints.spread(x[:0], ranks)
    with pytest.raises(ValueError, match="k must be at most"):
        tl.eigenpairs(tl.Laplacian(sharded_graph(points, tl.KNN(2))), 3 * ranks.world + 1)
    assert float(ranks.sum(torch.ones(()))) == ranks.world


def check_what_no_rank_can_do_leaves_the_group_sound(ranks):
    x = part(swiss_roll(30), ranks)
    for _ in range(2):
        ranks._depth = 0  # the check itself is run within a guard
        with pytest.raises(ValueError, match="n_components must be smaller than"):
            Sharded(tl.LaplacianEigenmaps(40, tl.KNN(4)), ranks)(x)
    assert Sharded(tl.LaplacianEigenmaps(2, tl.KNN(6)), ranks)(x).shape == (len(x), 2)


def check_an_error_in_the_middle_of_one_rank(ranks):
    """Copies of a point on one rank get negative weights by a wrong kernel there; others wait for its halo."""
    x = torch.cat([swiss_roll(80), 1000 + torch.zeros(6, 3, dtype=torch.float64)])
    begin = time.monotonic()
    points = ShardedPoints.spread(part(x, ranks), ranks)
    graph = sharded_graph(points, tl.KNN(5))
    ranks._depth = 0  # the check itself is run within a guard
    with pytest.raises((ValueError, DistributedError), match="kernel must return"), ranks.guard():
        tl.eigenpairs(tl.Laplacian(tl.KernelWeights(lambda d2: d2.sign() - 0.5)(points.x, graph)), 3)
    assert time.monotonic() - begin < 10
    with pytest.raises(DistributedError, match="has failed before"), ranks.guard():
        pass


def check_a_rank_that_does_not_come(ranks):
    patient = Ranks(ranks.group, timeout=0.7)
    if ranks.rank == 0:
        time.sleep(2)
        return
    begin = time.monotonic()
    with pytest.raises(DistributedError, match=r"waited longer than 0\.7 s for the others"):
        patient.sum(torch.ones(3))
    assert time.monotonic() - begin < 1.9


def check_a_rank_that_dies(ranks):
    """The last check of a group: one process is killed in the middle of a solve."""
    points = ShardedPoints.spread(part(swiss_roll(400), ranks), ranks)
    laplacian = tl.Laplacian(tl.HeatKernel()(points.x, sharded_graph(points, tl.KNN(6))))

    def progress(iteration, residual, allowed):
        if ranks.rank == ranks.world - 1 and iteration > 1:
            os.kill(os.getpid(), signal.SIGKILL)

    begin = time.monotonic()
    with pytest.raises(DistributedError, match=r"lost another rank|rank . failed"), ranks.guard():
        tl.eigenpairs(laplacian, 4, ChebyshevSubspace(), progress=progress)
    assert time.monotonic() - begin < 15


def kill_in_a_backward(ranks):
    """One process is killed in the middle of the linear solve of a backward; the others stop with an error."""
    x = part(swiss_roll(400), ranks).requires_grad_()
    y = Sharded(tl.LaplacianEigenmaps(2, tl.KNN(6), solve=Lobpcg()), ranks)(x)
    before, call = ranks.calls, ranks._call

    def dying(*arguments):
        if ranks.rank == ranks.world - 1 and ranks.calls > before + 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)

    ranks._call, begin = dying, time.monotonic()
    with pytest.raises(DistributedError, match=r"lost another rank|rank . failed"):
        y.square()[:, 0].sum().backward()
    assert time.monotonic() - begin < 15
    with pytest.raises(DistributedError, match="has failed before"), ranks.guard():
        pass
