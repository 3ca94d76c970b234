"""Fitted modules keep their fit through copies, state dicts and conversions, and in each process its own.

A state dict says what its fit means, and is refused where it would mean something else.
"""

import copy
import functools
import os
import pickle
import sys
import warnings
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.nn.parallel import DistributedDataParallel

import torch_lapeig as tl
from problems import covering, ignoring, points, saved_and_loaded
from torch_lapeig.support.fitted import ENTRY

with ignoring():  # Lightning's imports warn of what is deprecated elsewhere
    lightning = pytest.importorskip("pytorch_lightning")
    from torch_lapeig.lightning import SmoothnessCallback

MODULES = {"eigenmaps": lambda: tl.LaplacianEigenmaps(2, tl.KNN(8), tl.HeatKernel(4.0))}
MODULES |= {"learnable eigenmaps": lambda: tl.LaplacianEigenmaps(2, tl.KNN(8), tl.HeatKernel(learnable=True))}
MODULES |= {"clustering": lambda: tl.SpectralClustering(2, tl.KNN(8)), "MDS": lambda: tl.MDS(2)}
MODULES |= {"Isomap": lambda: tl.Isomap(2, tl.KNN(8)), "LLE": lambda: tl.LLE(2, tl.KNN(8))}
MODULES |= {"KernelPCA": lambda: tl.KernelPCA(2, "rbf", gamma=0.3), "Whitening": lambda: tl.Whitening(3)}
every_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())


def fit(module, x):
    return module.fit(x, tl.knn_graph(x, 8)) if isinstance(module, tl.Whitening) else module.fit(x)


def new_points(module, x):
    return module(x) if isinstance(module, tl.Whitening) else module.transform(x)


def fitted_tensors(module):
    return {
        f"{prefix}.{name}": getattr(part, name)
        for prefix, part in module.named_modules()
        for name in getattr(part, "FITTED", ())
        if getattr(part, name) is not None
    }


def same(fit, other):
    return fit.keys() == other.keys() and all(torch.equal(fit[k].nan_to_num(), other[k].nan_to_num()) for k in fit)


@covering(2, make=MODULES, strict=[True, False], assign=[True, False])
def test_state_loads_into_a_nested_module(make, strict, assign):
    net = nn.ModuleDict({"first": nn.Linear(3, 3), "inner": nn.Sequential(nn.Identity(), fit(make(), points(40, 3)))})
    state = saved_and_loaded(net.state_dict())
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    for before in (make(), fit(make(), points(30, 3, seed=1))):
        other = nn.ModuleDict({"first": nn.Linear(3, 3), "inner": nn.Sequential(nn.Identity(), before)})
        found = other.load_state_dict(state, strict=strict, assign=assign)
        assert not found.missing_keys
        assert not found.unexpected_keys
        assert same(fitted_tensors(other), fitted_tensors(net))
        x = points(5, 3, seed=2)
        assert torch.equal(new_points(other["inner"][1], x), new_points(net["inner"][1], x))
        # Its own memory, unless it was to be assigned.
        shared = {value.data_ptr() for value in state.values()}
        assert assign == any(value.data_ptr() in shared for value in fitted_tensors(other).values())


@every_module
def test_a_fit_goes_through_distributed_checkpoints(make):
    net, other = nn.Sequential(nn.Linear(3, 3), fit(make(), points(40, 3))), nn.Sequential(nn.Linear(3, 3), make())
    set_model_state_dict(other, get_model_state_dict(net))
    assert same(fitted_tensors(other), fitted_tensors(net))


def test_a_fit_is_loaded_into_a_module_on_the_meta_device():
    module = fit(tl.Whitening(3), points(40, 3))
    with torch.device("meta"):
        other = tl.Whitening(3)
    other.load_state_dict(module.state_dict())
    assert same(fitted_tensors(other), fitted_tensors(module))


@every_module
def test_missing_and_unexpected_keys(make):
    module = fit(make(), points(40, 3))
    before = {name: value.clone() for name, value in fitted_tensors(module).items()}
    lacking = {key: value for key, value in module.state_dict().items() if key.endswith("log_factor")}
    with pytest.raises(RuntimeError, match=rf"Missing key.*{module.FITTED[0]}"):
        module.load_state_dict(lacking)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*other"):
        module.load_state_dict({**module.state_dict(), "other": torch.ones(1)})
    module.load_state_dict(lacking, strict=False)
    assert same(fitted_tensors(module), before)


@every_module
def test_copies_keep_a_fit(make):
    module = fit(make(), points(40, 3))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), copy.deepcopy(module).share_memory()):
        assert same(fitted_tensors(other), fitted_tensors(module))
        places, others = ({v.data_ptr() for v in fitted_tensors(one).values()} for one in (module, other))
        assert not places & others
    assert all(value.is_shared() for value in fitted_tensors(other).values())


@every_module
def test_conversions_reach_a_fit(make):
    fresh = nn.Sequential(nn.Linear(2, 2), make()).double()
    fit(fresh[1], points(40, 3))
    before = fitted_tensors(fresh)
    for convert in (nn.Module.float, nn.Module.half, lambda m: m.to(torch.bfloat16), lambda m: m.to("meta")):
        module = convert(copy.deepcopy(fresh))
        expected = module[0].weight
        for name, value in fitted_tensors(module).items():
            assert value.dtype == (expected.dtype if before[name].is_floating_point() else before[name].dtype)
            assert value.device == expected.device


@every_module
def test_a_module_is_called_with_its_state(make):
    """`functional_call` puts the tensors of a state dict in the places of a module's."""
    x = points(40, 3)
    module = fit(make().double(), x)
    expected = module(x)
    torch.testing.assert_close(torch.func.functional_call(module, module.state_dict(), x), expected)
    assert torch.equal(module(x), expected)


maps, clusters, isomap = (functools.partial(of, 2) for of in (tl.LaplacianEigenmaps, tl.SpectralClustering, tl.Isomap))
K7, K8, eigenmaps = tl.KNN(7), tl.KNN(8), functools.partial(tl.LaplacianEigenmaps, 2, tl.KNN(8))
REFUSED = [
    (eigenmaps(), eigenmaps(normalization="unnormalized"), "normalization is 'ran"),
    (eigenmaps(), tl.LaplacianEigenmaps(3, K8), "n_components is 2 in the state and 3 here"),
    (eigenmaps(), maps(K7), r"neighbors.k is 8 in the state and 7 here"),
    (eigenmaps(), maps(tl.KNN(8, "mutual")), "neighbors.symmetrize is 'mean'"),
    (eigenmaps(), maps(tl.Radius(2.0)), "neighbors is KNN in the state and Radius here"),
    (eigenmaps(), maps(tl.Precomputed("affinity")), "neighbors is KNN .* and Precomputed here"),
    (maps(tl.Radius(3)), maps(tl.Radius(3.5)), "neighbors.radius is 3 .* and 3.5 here"),
    (eigenmaps(), eigenmaps(scale="unit"), "scale is 'degree'"),
    (eigenmaps(), eigenmaps(diffusion=1), "diffusion is 0.0 .* and 1 here"),
    (eigenmaps(), eigenmaps(drop_trivial=False), "drop_trivial is True"),
    (eigenmaps(), eigenmaps(components="separate"), "components is 'joint'"),
    (eigenmaps(), eigenmaps(tl.HeatKernel(2)), "weights.t is 'median' .* and 2 here"),
    (eigenmaps(), eigenmaps(tl.SelfTuning(7)), "weights is HeatKernel in the state and SelfTuning here"),
    (*(eigenmaps(tl.HeatKernel(t, learnable=True)) for t in (4.0, 1.0)), "weights.t is 4.0 in the state and 1.0 here"),
    (eigenmaps(tl.SelfTuning(6)), eigenmaps(tl.SelfTuning(7)), "weights.m is 6"),
    (
        *(eigenmaps(tl.DensityCorrected(alpha, tl.HeatKernel(t))) for alpha, t in ((1.0, 4.0), (0.5, 3.0))),
        "weights.alpha is 1.0 in the state and 0.5 here, weights.weights.t is 4.0 in the state and 3.0 here",
    ),
    (*(eigenmaps(tl.ImprovedWeights(t)) for t in (4.0, "median")), "weights.kernel.t is 4.0 in the state and 'median'"),
    (*map(eigenmaps, map(tl.KernelWeights, (torch.sigmoid, torch.exp))), "weights.kernel is sigmoid .* and exp here"),
    (tl.MDS(2), tl.KernelPCA(2, "linear"), "the class is MDS in the state and KernelPCA here"),
    (tl.MDS(2), tl.MDS(3), "n_components is 2"),
    (isomap(K8), isomap(tl.KNN(9)), "neighbors.k is 8"),
    (isomap(K8, landmarks=20), isomap(K8), "landmarks is 20 in the state and None here"),
    (*(isomap(K8, landmarks=torch.arange(20) + i) for i in (0, 1)), r"marks is \[0, 1, 2, 3, 4, 5, ...\] .* \[1, 2"),
    (tl.LLE(2, K8), tl.LLE(2, K8, reg=0.1), "reg is 0.001 in the state and 0.1 here"),
    (tl.LLE(2, K8), tl.LLE(2, K7), "neighbors.k is 8"),
    (tl.KernelPCA(2, "poly"), tl.KernelPCA(2, "rbf"), "kernel is 'poly' in the state and 'rbf' here"),
    (tl.KernelPCA(2, "poly"), tl.KernelPCA(2, "poly", degree=2), "degree is 3"),
    (tl.KernelPCA(2, "rbf", gamma=0.5), tl.KernelPCA(2, "rbf"), "gamma is 0.5 in the state and None here"),
    (clusters(K8), tl.SpectralClustering(3, K8), "n_clusters is 2 in the state and 3 here"),
    (clusters(K8), clusters(K8, variant="shi_malik"), "variant is 'njw'"),
    (clusters(K8), clusters(K7), "neighbors.k is 8"),
    (tl.Whitening(3), tl.Whitening(2), "n_components is 3 in the state and 2 here"),
]


@pytest.mark.parametrize(("module", "other", "says"), REFUSED)
def test_another_configuration_is_refused(module, other, says):
    state = saved_and_loaded(fit(module, points(40, 3)).state_dict())
    before = fitted_tensors(other)
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=says):
            other.load_state_dict(state, strict=strict)
        assert same(fitted_tensors(other), before)


@every_module
def test_a_fit_without_its_configuration_is_refused(make):
    state = {key: value for key, value in fit(make(), points(40, 3)).state_dict().items() if not key.endswith(ENTRY)}
    with pytest.raises(RuntimeError, match=f"lacks its '{ENTRY}'"):
        make().load_state_dict(state, strict=False)


def test_a_state_without_a_fit_has_no_configuration():
    assert not tl.LaplacianEigenmaps(2, tl.KNN(8)).state_dict()
    tl.LaplacianEigenmaps(2, tl.KNN(8)).load_state_dict(tl.LaplacianEigenmaps(3, tl.KNN(4)).state_dict())


class Network(lightning.LightningModule):
    """An encoder, a layer whose bandwidth is learned, and fitted modules that have no part in the loss."""

    def __init__(self, rank, same_size=False):
        super().__init__()
        torch.manual_seed(0)
        x = data(rank, same_size)
        self.encoder = nn.Linear(3, 3).double()
        self.layer = tl.LaplacianEigenmaps(2, tl.KNN(6), tl.HeatKernel(learnable=True)).double().fit(x)
        self.aside = nn.ModuleDict({name: fit(make(), x) for name, make in MODULES.items()})
        self.aside.requires_grad_(False)  # so that none waits for its gradient

    def forward(self, x):
        features = self.encoder(x)
        return self.layer(features).square().square().sum() + (features - x).square().mean()

    def training_step(self, batch, _):
        return self(*batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data(rank, same_size=False):
    return points(40 if same_size else 40 + 10 * rank, 3, seed=rank)


def slopes(network, rank):
    return torch.autograd.grad(network(data(rank)), [p for p in network.parameters() if p.requires_grad])


def plain(rank):
    """Fits stay as they are, and gradients, those of bandwidths among them, are the means over the processes."""
    for same_size in (True, False):
        network = Network(rank, same_size)
        before = copy.deepcopy(fitted_tensors(network))
        expected = [(first + second) / 2 for first, second in zip(slopes(network, 0), slopes(network, 1), strict=True)]
        wrapped = DistributedDataParallel(network)
        for _ in range(2):
            network.zero_grad()
            wrapped(data(rank)).backward()
            torch.testing.assert_close([p.grad for p in network.parameters() if p.requires_grad], expected)
            assert same(fitted_tensors(network), before)


def state_of_the_first(rank):
    """Return the state of the first process, which all processes can load to have one fit."""
    wrapped = DistributedDataParallel(Network(rank))
    state = [wrapped.state_dict()]
    torch.distributed.broadcast_object_list(state)
    wrapped.load_state_dict(state[0])
    assert same(fitted_tensors(wrapped.module), fitted_tensors(Network(0)))


def through_lightning(rank):
    """Two epochs of Lightning's own strategy, with a loss by callback, validation and a checkpoint of the first."""
    network, smoothness = Network(rank), SmoothnessCallback(1.0, "encoder", tl.LaplacianSmoothness(tl.KNN(4)))
    before, start = copy.deepcopy(fitted_tensors(network)), network.encoder.weight.detach().clone()
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(points(40, 3)), batch_size=10)
    options = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
    options |= {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "max_epochs": 2}
    runner = lightning.Trainer(callbacks=[smoothness], **options)
    with ignoring():  # Lightning's own
        runner.fit(network, batches)
    assert runner.world_size == 2
    assert runner.global_step == 4
    assert same(fitted_tensors(network), before)
    assert not torch.equal(network.encoder.weight, start)
    trained = [torch.zeros_like(start) for _ in range(2)]
    torch.distributed.all_gather(trained, network.encoder.weight.detach())
    assert torch.equal(*trained)


def under_ddp(rank, file):
    """Do the work of one of two processes, which have a group by a file and the loopback device."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    os.environ.update(GLOO_SOCKET_IFNAME=loopback, LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    patience = timedelta(seconds=60)  # of a process that waits for the other
    torch.distributed.init_process_group("gloo", f"file://{file}", patience, world_size=2, rank=rank)
    for check in (plain, state_of_the_first, through_lightning):
        check(rank)
    torch.distributed.destroy_process_group()


def test_under_ddp(tmp_path):
    torch.multiprocessing.spawn(under_ddp, (tmp_path / "group",), nprocs=2)
