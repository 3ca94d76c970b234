"""What goes wrong on one rank, or between ranks: every rank gets a clear error, and none hangs."""

import os
import signal
import time

import pytest
import torch

from problems import swiss_roll
from torch_lapeig import KNN, HeatKernel, Laplacian, LaplacianEigenmaps, Radius, SelfTuning, eigenpairs
from torch_lapeig.distributed import DistributedError, Ranks, Sharded, ShardedPoints, sharded_graph
from torch_lapeig.eigen import Lanczos, Lobpcg


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
    refused(
        ranks, lambda: ShardedPoints.spread(bad if first else x, ranks), "finite", "rank 0: ValueError: x must be f"
    )
    whole = x.int() if first else x
    refused(
        ranks, lambda: ShardedPoints.spread(whole, ranks), "float32", "rank 0: TypeError: x must be float", TypeError
    )


def differ(ranks, action, match):
    with pytest.raises(DistributedError, match=match):
        action()
    assert float(ranks.sum(torch.ones(()))) == ranks.world


def check_ranks_that_ask_for_different_things(ranks):
    x, last = part(swiss_roll(60), ranks), ranks.rank == ranks.world - 1
    differ(
        ranks, lambda: ShardedPoints.spread(x[:, :2] if last else x, ranks), "dimension must be the same .* 3 on rank 0"
    )
    differ(
        ranks, lambda: ShardedPoints.spread(x.float() if last else x, ranks), "dtype must be the same .* torch.float64"
    )
    points = ShardedPoints.spread(x, ranks)
    differ(ranks, lambda: sharded_graph(points, KNN(5 + last)), "neighbors must be the same .*k=5")
    laplacian = Laplacian(sharded_graph(points, KNN(5)))
    differ(ranks, lambda: eigenpairs(laplacian, 3 + last), "k must be the same on all ranks, got 3 on rank 0")
    solver = Lanczos() if last else Lobpcg()
    differ(ranks, lambda: eigenpairs(laplacian, 3, solver), "solver must be the same on all ranks")


def check_what_all_ranks_should_not_ask_for(ranks):
    x = part(swiss_roll(3 * ranks.world), ranks)
    points = ShardedPoints.spread(x, ranks)
    everyone = float(ranks.sum(torch.ones(())))
    with pytest.raises(
        ValueError, match=f"k must be smaller than the number of points, got k=50 with {3 * ranks.world}"
    ):
        sharded_graph(points, KNN(50))
    with pytest.raises(ValueError, match="at least one neighbour"):
        sharded_graph(points, Radius(1e-9))
    with pytest.raises(ValueError, match="exact search"):
        sharded_graph(points, KNN(2, recall=0.5))
    with pytest.raises(ValueError, match="at least 2 points on all ranks"):
        ShardedPoints.spread(x[:0], ranks)
    with pytest.raises(ValueError, match="k must be at most"):
        eigenpairs(Laplacian(sharded_graph(points, KNN(2))), 3 * ranks.world + 1)
    assert float(ranks.sum(torch.ones(()))) == everyone


def check_what_no_rank_can_do_leaves_the_group_sound(ranks):
    x = part(swiss_roll(30), ranks)
    for _ in range(2):
        ranks._depth = 0  # the check itself is run within a guard
        with pytest.raises(ValueError, match="n_components must be smaller than"):
            Sharded(LaplacianEigenmaps(40, KNN(4)), ranks)(x)
    assert Sharded(LaplacianEigenmaps(2, KNN(6)), ranks)(x).shape == (len(x), 2)


def check_an_error_in_the_middle_of_one_rank(ranks):
    """Copies of a point on one rank make the scale of self-tuning weights zero there; others wait for its halo."""
    x = torch.cat([swiss_roll(80), 1000 + torch.zeros(6, 3, dtype=torch.float64)])
    begin = time.monotonic()
    points = ShardedPoints.spread(part(x, ranks), ranks)
    graph = sharded_graph(points, KNN(5))
    ranks._depth = 0  # the check itself is run within a guard
    with pytest.raises((ValueError, DistributedError), match="copies of it"), ranks.guard():
        eigenpairs(Laplacian(SelfTuning(3)(points.x, graph)), 3)
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
    laplacian = Laplacian(HeatKernel()(points.x, sharded_graph(points, KNN(6))))

    def progress(iteration, residual, allowed):
        if ranks.rank == ranks.world - 1 and iteration > 60:
            os.kill(os.getpid(), signal.SIGKILL)

    begin = time.monotonic()
    with pytest.raises(DistributedError, match=r"lost another rank|rank . failed"), ranks.guard():
        eigenpairs(laplacian, 4, Lanczos(), progress=progress)
    assert time.monotonic() - begin < 15
