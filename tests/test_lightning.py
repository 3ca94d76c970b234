"""The Lightning callback adds its term to the training loss of any LightningModule, and nothing else."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from problems import ignoring, points
from torch_lapeig import KNN, Graph, GraphWarning, HeatKernel, LaplacianSmoothness, knn_graph, laplacian_smoothness
from torch_lapeig.samplers import EdgeSampler, NeighborhoodSampler

with ignoring():  # Lightning's imports warn of what is deprecated elsewhere
    lightning = pytest.importorskip("pytorch_lightning")
    from torch_lapeig.lightning import SmoothnessCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*training_step. returned .None"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),  # Lightning's own use of torch
]
LOSS = LaplacianSmoothness(KNN(3), HeatKernel(2.0))
X, TARGET = points(24, 3, dtype=torch.float32), points(24, 1, seed=1, dtype=torch.float32)
GRAPH = HeatKernel(2.0)(X, knn_graph(X, 3))


class Regression(lightning.LightningModule):
    """A small network that keeps the losses of its steps as it computes them, and those it is trained with."""

    def __init__(self, result=lambda loss: loss):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head, self.result = nn.Linear(3, 2), nn.Linear(2, 1), result
        self.own, self.trained, self.terms = [], [], []

    def training_step(self, batch, batch_idx):
        x, target = batch
        y = self.encoder(x)
        loss = (self.head(y.tanh()) - target).square().mean()
        self.own.append(loss.item())
        self.terms.append(laplacian_smoothness(y.detach(), LOSS.graph_of(x)).item())
        return self.result(loss)

    def on_before_backward(self, loss):
        self.trained.append(loss.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Numbered(Regression):
    """Trains on batches whose third part are the numbers of their points."""

    def training_step(self, batch, batch_idx):
        self.nodes = batch[2]
        return super().training_step(batch[:2], batch_idx)


def trainer(*callbacks, module=lightning, steps=2, **options):
    options = {"accelerator": "cpu", "max_steps": steps, "logger": False, **options}
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return module.Trainer(callbacks=list(callbacks), **quiet, **options)


def fitted(*callbacks, model=None, **options):
    model = Regression() if model is None else model
    loader = DataLoader(TensorDataset(X, TARGET), batch_size=12)
    runner = trainer(*callbacks, **options)
    runner.fit(model, loader)
    return model, runner


@pytest.mark.parametrize("result", [lambda loss: loss, lambda loss: {"loss": loss, "other": 1}], ids=["tensor", "dict"])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_it_trains_with_own_loss_plus_weighted_smoothness(result, accumulated):
    """Both are divided by the number of accumulated batches."""
    options = {"steps": 2 // accumulated, "accumulate_grad_batches": accumulated}
    model, runner = fitted(SmoothnessCallback(3.0, "encoder", LOSS), model=Regression(result), **options)
    expected = [(own + 3.0 * term) / accumulated for own, term in zip(model.own, model.terms, strict=True)]
    assert len(expected) == 2
    assert model.trained == pytest.approx(expected, rel=1e-5)
    assert runner.callback_metrics["smoothness"].item() == pytest.approx(model.terms[-1], rel=1e-5)


def test_gradients_reach_the_encoder():
    plain, _ = fitted(steps=1)
    smooth, _ = fitted(SmoothnessCallback(10.0, "encoder", LOSS), steps=1)
    encoder = Regression().encoder
    loss = laplacian_smoothness(encoder(X[:12]), LOSS.graph_of(X[:12]))
    (gradient,) = torch.autograd.grad(loss, encoder.weight)
    torch.testing.assert_close(plain.encoder.weight - smooth.encoder.weight, 0.1 * 10.0 * gradient)
    torch.testing.assert_close(plain.head.weight, smooth.head.weight)


@pytest.mark.parametrize("source", ["inputs", "features", "points of batch", "graph of batch"])
def test_the_graph_is_built_from(source):
    seen = []

    class Recorded(LaplacianSmoothness):
        def forward(self, y, x, mask=None):
            seen.append((y, x))
            return super().forward(y, x, mask)

    of_batch = {"points of batch": lambda batch: batch[0], "graph of batch": lambda batch: knn_graph(batch[0], 2)}
    fitted(SmoothnessCallback(1.0, "encoder", Recorded(KNN(3)), of_batch.get(source, source)), steps=1)
    [(y, x)] = seen
    assert y.requires_grad
    if source == "graph of batch":
        assert isinstance(x, Graph)
    else:
        assert not x.requires_grad
        torch.testing.assert_close(x, y.detach() if source == "features" else X[:12])


def test_the_global_graph_gives_each_batch_its_part():
    graph = HeatKernel(2.0)(X, knn_graph(X, 5))

    class Checked(Numbered):
        def on_before_backward(self, loss):
            term = laplacian_smoothness(self.encoder(X[self.nodes]), graph.subgraph(self.nodes))
            self.trained.append((loss.item(), self.own[-1] + 3.0 * term.item()))

    data = TensorDataset(X, TARGET, torch.arange(24))
    for nodes in ({}, {"nodes": lambda batch: batch[2]}):
        model = Checked()
        batches = NeighborhoodSampler(graph, 12, neighbors=3)
        loader = DataLoader(data, batch_sampler=batches)
        callback = SmoothnessCallback(3.0, "encoder", graph_from=graph, **nodes)
        trainer(callback, steps=-1, max_epochs=3).fit(model, loader)
        assert len(model.trained) == 3 * len(batches) == 24
        assert all(found == pytest.approx(expected, rel=1e-5) for found, expected in model.trained)
        assert batches.epoch == 3  # as Lightning sets it, and one more for each


@pytest.mark.parametrize("kind", [NeighborhoodSampler, EdgeSampler])
def test_a_resumed_training_has_the_batches_of_its_epochs(kind, tmp_path):
    class Noting(Numbered):
        def training_step(self, batch, batch_idx):
            seen.append((self.current_epoch, batch[2].tolist()))
            return super().training_step(batch, batch_idx)

    def train(epochs, path=None):
        loader = DataLoader(TensorDataset(X, TARGET, torch.arange(24)), batch_sampler=kind(GRAPH, 12, seed=3))
        runner = trainer(steps=-1, max_epochs=epochs)
        seen.clear()
        runner.fit(Noting(), loader, ckpt_path=path)
        return runner, list(seen)

    seen = []
    whole = train(4)[1]
    train(2)[0].save_checkpoint(tmp_path / "two.ckpt")
    assert train(4, tmp_path / "two.ckpt")[1] == [step for step in whole if step[0] >= 2]


class TwoLoaders(Regression):
    """Steps on a neighbourhood of the graph and on labelled points from a loader of their own."""

    def training_step(self, batch, batch_idx):
        x, numbers = batch["near"]
        near, labelled = self.encoder(x), self.encoder(batch["labelled"][0])
        self.terms.append(laplacian_smoothness(near.detach(), GRAPH.subgraph(numbers), "weighted_mean").item())
        loss = (self.head(labelled.tanh()) - batch["labelled"][1]).square().mean() + 0 * near.sum()
        self.own.append(loss.item())
        return loss


def two_loaders(nodes, labelled):
    """Train on batches of 12 points of the graph, and of some labelled points."""
    with ignoring():
        from pytorch_lightning.utilities import CombinedLoader
    loader, data = DataLoader, TensorDataset
    loaders = {
        "near": loader(data(X, torch.arange(24)), batch_size=12),
        "labelled": loader(data(X[:labelled], TARGET[:labelled]), batch_size=labelled),
    }
    callback = SmoothnessCallback(3.0, "encoder", LaplacianSmoothness(reduction="weighted_mean"), GRAPH, nodes=nodes)
    model = TwoLoaders()
    trainer(callback, steps=1).fit(model, CombinedLoader(loaders, "max_size_cycle"))
    return model


@pytest.mark.parametrize("labelled", [5, 12])
def test_labelled_batches_of_another_loader_are_not_smoothed(labelled):
    model = two_loaders(lambda batch: [batch["near"][-1], None], labelled)
    assert model.trained == pytest.approx([model.own[0] + 3.0 * model.terms[0]], rel=1e-5)


def test_everything_is_as_before_afterwards():
    callback = SmoothnessCallback(1.0, "encoder", LOSS)
    model, _ = fitted(callback)
    assert "training_step" not in vars(model)
    assert not any(module._forward_hooks for module in model.modules())
    fitted(copy.deepcopy(callback), model=copy.deepcopy(model))
    assert len(model.own) == 2  # the copy trained, not the model
    replaced = Regression()
    replaced.training_step = step = lambda batch, batch_idx: Regression.training_step(replaced, batch, batch_idx)
    fitted(callback, model=replaced)
    assert replaced.training_step is step
    assert replaced.trained[0] == pytest.approx(replaced.own[0] + replaced.terms[0], rel=1e-5)


def test_lightning_pytorch_takes_it_too():
    """The two packages have classes of their own; the callback is of both."""
    with ignoring():
        other = pytest.importorskip("lightning.pytorch")
    assert other.Callback is not lightning.Callback

    class Other(other.LightningModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.trained = nn.Linear(3, 2), []

        def training_step(self, batch, batch_idx):
            y = self.encoder(batch[0])
            self.term = laplacian_smoothness(y.detach(), LOSS.graph_of(batch[0])).item()
            return 0 * y.sum()

        on_before_backward, configure_optimizers = Regression.on_before_backward, Regression.configure_optimizers

    model = Other()
    callbacks = SmoothnessCallback(1.5, "encoder", LOSS), SmoothnessCallback(0.5, "encoder", LOSS)
    _, runner = fitted(*callbacks, model=model, module=other, steps=1)
    assert model.trained == pytest.approx([2 * model.term], rel=1e-5)
    assert runner.callback_metrics["smoothness"].item() == pytest.approx(model.term, rel=1e-5)
    assert "training_step" not in vars(model)


def test_warnings_name_the_line_that_trains_or_the_line_of_the_step():
    """Copies of points have no median distance: the term is of no line but that of `fit`."""

    class Layered(Regression):
        def training_step(self, batch, batch_idx):
            weights(*smoothed)
            return super().training_step(batch, batch_idx)

    def lines_of(model, callback):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted(callback, model=model, steps=1)
        return {w.lineno - start for w in caught if w.filename == __file__ and w.category is GraphWarning}

    copies = X[:1].expand(12, 3)
    weights, smoothed = HeatKernel(), (copies, knn_graph(copies, 2))
    start = Layered.training_step.__code__.co_firstlineno
    assert lines_of(Layered(), SmoothnessCallback(1.0, "encoder", LOSS)) == {1}
    loss = LaplacianSmoothness(KNN(2), HeatKernel())
    start = fitted.__code__.co_firstlineno
    assert lines_of(Regression(), SmoothnessCallback(1.0, "encoder", loss, lambda batch: copies)) == {4}


def broken(module, loss=LOSS, graph_from="inputs", **changes):
    model = Regression()
    for name, value in changes.items():
        setattr(model, name, value)
    callback = SmoothnessCallback(1.0, module, loss, graph_from)
    try:
        fitted(callback, model=model)
    finally:
        assert "training_step" not in vars(model)


def smoothed(*parts, model=Regression, batches={"batch_size": 12}, **options):  # noqa: B006
    """The loss that a model trains with in a first step, less its own, over the weight of the term."""
    trained, loader = model(), DataLoader(TensorDataset(X, TARGET, *parts), **batches)
    trainer(SmoothnessCallback(3.0, "encoder", **options), steps=1).fit(trained, loader)
    return (trained.trained[0] - trained.own[0]) / 3


FLAT = nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 2)), nn.Linear(2, 1))
NUMBERS, NAMED = torch.arange(24), {"graph_from": GRAPH, "model": Numbered}
EDGES = {"model": Numbered, "batches": {"batch_sampler": EdgeSampler(GRAPH, 12)}}
DRAWN = torch.tensor(next(iter(EdgeSampler(GRAPH, 12))))
# Each call, words of its error, what they advise, and the graph of the points that it smooths.
CASES = r"""
SmoothnessCallback(0.0) → weight must be positive
SmoothnessCallback(1.0, graph_from="batch") → 'inputs', 'features', got 'batch'
SmoothnessCallback(1.0, loss=LaplacianSmoothness(weights=HeatKernel(learnable=True))) → loss.requires_grad_\(False\)
    → smoothed(loss=LOSS.requires_grad_(False), graph_from=lambda batch: batch[0]) → LOSS.graph_of(X[:12])
broken("decoder") → submodule of Regression, got 'decoder' .*'encoder', 'head'
broken("spare", spare=nn.Linear(3, 2)) → 'spare' was not called
broken("head.0", head=FLAT) → \(N, k\) or \(B, N, k\), got \(24,\)
broken("encoder", graph_from=lambda batch: X) → y must have shape .24, 'k'.
broken("encoder", graph_from=GRAPH) → numbers in the graph, .* int64 .*, got torch.float32 .* pass nodes=lambda batch:
    → smoothed(graph_from=GRAPH, nodes=lambda batch: NUMBERS[:12].numpy()) → GRAPH.subgraph(NUMBERS[:12])
smoothed(NUMBERS // 2, **NAMED) → graph, distinct, .*, got torch.int64
    → smoothed(NUMBERS, **NAMED) → GRAPH.subgraph(NUMBERS[:12])
smoothed(NUMBERS, graph_from=GRAPH, **EDGES) → with EdgeSampler graph_from=lambda batch: EdgeSampler.pairs\(batch\[0\]\)
    → smoothed(NUMBERS, graph_from=lambda batch: EdgeSampler.pairs(batch[0]), **EDGES) → EdgeSampler.pairs(X[DRAWN])
two_loaders(lambda batch: batch["near"][-1], 5) → returned 5 rows for 12 points; .*\[numbers of the points, None\]
two_loaders(lambda batch: [None], 5) → one entry for each of the 2 calls of module 'encoder' in a step, got 1
SmoothnessCallback(1.0, nodes=lambda batch: batch[1]) → nodes needs graph_from to be a Graph of all points
broken("encoder", automatic_optimization=False) → automatic_optimization must be
broken("encoder", LaplacianSmoothness(KNN(3), reduction="none")) → loss must be a scalar
"""
ROWS = [row.split(" → ") for row in CASES.strip().replace("\n    →", " →").splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_errors(row):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=row[1]):
        eval(row[0])
    if row[2:]:
        x = X[DRAWN if "EDGES" in row[2] else NUMBERS[:12]]
        expected = laplacian_smoothness(Regression().encoder(x), eval(row[3])).item()
        assert eval(row[2]) == pytest.approx(expected, rel=1e-4)
