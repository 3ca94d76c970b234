"""Checks that every rank of a group runs: fits that are kept, and rows as `DTensor` at the border."""

import contextlib
import functools
import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import cut
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import torch_lapeig as tl
from problems import ignoring, points, surface
from torch_lapeig.distributed import DistributedError, Ranks, Sharded

close = functools.partial(torch.testing.assert_close, atol=1e-7, rtol=1e-7)


@contextlib.contextmanager
def folder(ranks):
    with tempfile.TemporaryDirectory() as own:
        yield ranks.said_by_all(own)[0]
        ranks.sum(torch.ones(()))  # nobody leaves it before all have read


def parts(ranks):
    """The first ranks by themselves, one, two and so on, each a group; None on ranks that are not of it."""
    for some in range(1, ranks.world + 1):
        group = dist.new_group(list(range(some)))
        yield (Ranks(group, timeout=20) if ranks.rank < some else None), group


def save(state, path, group):
    with ignoring():  # of torch's own
        dcp.save(state, checkpoint_id=path, process_group=group)


def load(state, path, group):
    with ignoring():
        dcp.load(state, checkpoint_id=path, process_group=group)


def check_a_fit_loads_on_other_numbers_of_ranks(ranks):
    """Saved on all of them, and loaded by each number of them: new points get the same rows."""
    sheet = surface(130)
    outlier = torch.cat([sheet[:-1], sheet[-1:] + torch.tensor([3.0, 0.0, 0.0])])  # of a degree below round-off
    plain = functools.partial(tl.LaplacianEigenmaps, 2, normalization="unnormalized")
    makers = [
        (sheet, lambda: tl.LaplacianEigenmaps(3, tl.KNN(7), tl.SelfTuning(4))),
        (sheet, lambda: plain(tl.Radius(0.9), tl.HeatKernel(learnable=True).double())),
        (outlier, lambda: plain(tl.KNN(7), tl.HeatKernel(0.3))),
    ]
    for x, make in makers:
        new = torch.cat([surface(20, seed=8), x[-9:]])
        module = Sharded(make(), ranks).fit(x[cut(130, ranks)])
        expected = make().fit(x)
        with folder(ranks) as path:
            save({"model": module.state_dict()}, path, ranks.group)
            for some, group in parts(ranks):
                if some is None:
                    continue
                fresh = Sharded(make(), some)
                state = {"model": fresh.room_for(path, "model.")}
                load(state, path, group)
                fresh.load_state_dict(state["model"])
                rows = cut(29, some, "last")
                close(fresh.transform(new[rows]), expected.transform(new)[rows])
                close(fresh.embedding_, expected.embedding_[equal(130, some)])
                close(fresh.eigenvalues_, expected.eigenvalues_)
                assert fresh.state_dict().keys() == module.state_dict().keys()


def equal(n, ranks):
    size = -(-n // ranks.world)
    return slice(ranks.rank * size, (ranks.rank + 1) * size)


def check_states_of_the_module_itself(ranks):
    """Check that the state of a method or loss loads into its `Sharded`, and back, fitted or not."""
    new = surface(20, seed=8)
    learnable, clusters = functools.partial(tl.HeatKernel, learnable=True), functools.partial(tl.SpectralClustering, 3)
    makers = [
        lambda: tl.LaplacianEigenmaps(3, tl.KNN(7), learnable().double()),
        lambda: tl.LaplacianEigenmaps(2, tl.Radius(0.9), tl.SelfTuning(4), normalization="unnormalized"),
        lambda: clusters(tl.KNN(8)),
        lambda: clusters(tl.KNN(8), learnable().double(), assign_labels="cluster_qr", variant="shi_malik"),
    ]
    for make in makers:
        one, x = make().fit(surface(120)), surface(120)
        for parameter in one.parameters():
            parameter.data += 0.1
        there = Sharded(make(), ranks)
        assert not [*there.load_state_dict(one.state_dict()).missing_keys, *there.module._fitted()]
        back = make()
        assert not back.load_state_dict(there.state_dict()).missing_keys
        for module in (there, back):
            close(module.transform(new), one.transform(new))
            assert all(torch.equal(a, b) for a, b in zip(module.parameters(), one.parameters(), strict=True))
        close(there.embedding_, one.embedding_[equal(120, ranks)])
        close([back.embedding_, back.transform(x[:9])], [one.embedding_, one.embedding_[:9]])
        if isinstance(one, tl.SpectralClustering):
            assert torch.equal(there.predict(new), one.predict(new))
            assert torch.equal(back.predict(new), one.predict(new))
        low, there = one.half(), Sharded(make(), ranks)
        there.load_state_dict(low.state_dict())
        close(there.transform(new.half()), low.transform(new.half()), atol=2e-2, rtol=2e-2)
        fitted, fresh = Sharded(make(), ranks).fit(x[cut(120, ranks)]), make()
        fresh.load_state_dict(fitted.state_dict())
        close(fresh.transform(x[:9]), fitted.transform(x[:9]))
    for make in (makers[0], lambda: tl.LaplacianSmoothness(tl.KNN(7), learnable())):
        one, there, back = make(), Sharded(make(), ranks), make()
        one.weights.log_factor.data += 0.5
        there.load_state_dict(one.state_dict())
        back.load_state_dict(there.state_dict())
        assert back.weights.factor == there.module.weights.factor == one.weights.factor
        with pytest.raises(RuntimeError, match=r"Unexpected key.*foreign"):
            there.load_state_dict({**one.state_dict(), "foreign": torch.ones(1)})


def check_edges_without_weights_are_kept(ranks):
    """Weights that underflow are no edges of the fit, on any number of ranks; their lengths count in scales."""
    x = torch.cat([surface(40), 60 + surface(40, seed=2), torch.tensor([[30.0, 30.0, 30.0]]).double()])
    make = functools.partial(tl.LaplacianEigenmaps, 2, tl.KNN(5), tl.HeatKernel(0.5))
    with ignoring():
        module, expected = Sharded(make(), ranks).fit(x[cut(81, ranks)]), make().fit(x)
        fresh = Sharded(make(), Ranks.alone())
        state = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in module.state_dict().items()}
        fresh.load_state_dict(state)
        close(fresh.transform(x[:9]).abs(), expected.transform(x[:9]).abs())
        around = torch.cat([0.01 * points(60, 2), 20 * points(9, 2, seed=3), torch.tensor([[0.3, 0.0]]).double()])
        module = Sharded(tl.LaplacianEigenmaps(2, tl.KNN(10), tl.SelfTuning(3)), ranks).fit(around[cut(70, ranks)])
        close(module.transform(around), ranks.gather(module.embedding_))


def spread(value, mesh, placements):
    with warnings.catch_warnings():  # torch 2.6 warns here that random numbers on CPUs are not spread: none are drawn
        warnings.filterwarnings("ignore", "DTensor random operators")
        return distribute_tensor(value, mesh, placements)


def mesh_of(ranks):
    return DeviceMesh.from_group(ranks.group, "cpu")


def check_rows_as_dtensors(ranks):
    x, mesh = surface(101), mesh_of(ranks)
    module = Sharded(tl.LaplacianEigenmaps(2, tl.KNN(8)), mesh)
    given = spread(x, mesh, [Shard(0)]).requires_grad_()
    one, exact = x.clone().requires_grad_(), tl.LaplacianEigenmaps(2, tl.KNN(8))
    y = module(given)
    assert isinstance(y, DTensor)
    assert y.placements == (Shard(0),)
    close(y.full_tensor(), exact(one))
    factor = torch.linspace(-1, 2, 101, dtype=torch.float64)[:, None]
    (y.square() * spread(factor, mesh, [Shard(0)])).sum().full_tensor().backward()
    (exact(one).square() * factor).sum().backward()
    close(given.grad.full_tensor(), one.grad)
    module.fit(given)
    exact.fit(x)
    assert isinstance(module.embedding_, DTensor)
    close(module.transform(given.detach()).full_tensor(), exact.embedding_)
    loss = Sharded(tl.LaplacianSmoothness(tl.KNN(6)), mesh)(y.detach(), given.detach())
    close(ranks.sum(loss), tl.LaplacianSmoothness(tl.KNN(6))(y.detach().full_tensor(), x))


def check_other_dtensors_are_refused(ranks):
    x, mesh = surface(60), mesh_of(ranks)
    module = Sharded(tl.LaplacianEigenmaps(2, tl.KNN(8)), mesh)
    whole = spread(x, mesh, [Replicate()])
    with pytest.raises(ValueError, match=r"x must have the placement Shard\(0\).*x.to_local\(\)"):
        module(whole)
    if ranks.world > 1:
        rows = spread(x, mesh, [Shard(0)])
        with pytest.raises(DistributedError, match="a DTensor must be the same on all ranks"):
            module(rows if ranks.rank else rows.to_local())
    assert float(ranks.sum(torch.ones(()))) == ranks.world
