"""
Smoothness by a Lightning callback
==================================

With Lightning the smoothness loss needs no change of the module: the callback watches a
submodule and adds the term to what ``training_step`` returns.
"""

# %%
# A module that knows nothing of graphs
# -------------------------------------

import logging
import warnings

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from torch_lapeig import HeatKernel, LaplacianSmoothness, knn_graph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Lightning's own imports
    import pytorch_lightning as pl

    from torch_lapeig.lightning import SmoothnessCallback
from torch_lapeig.samplers import NeighborhoodSampler

for name in ("pytorch_lightning", "lightning.pytorch"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Classifier(pl.LightningModule):
    """Train a small network by the cross-entropy of the labelled points."""

    def __init__(self):
        super().__init__()
        hidden = [
            torch.nn.Linear(2, 32),
            torch.nn.Tanh(),
            torch.nn.Linear(32, 32),
            torch.nn.Tanh(),
        ]
        self.network = torch.nn.Sequential(*hidden, torch.nn.Linear(32, 2))

    def training_step(self, batch, _):
        """Return the loss of a batch: points, labels, numbers of the points."""
        points, labels, _ = batch
        logits = self.network(points)
        return (
            cross_entropy(logits, labels) if (labels >= 0).any() else 0 * logits.sum()
        )

    def configure_optimizers(self):
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), 0.02)


# %%
# Two moons with three labels each
# --------------------------------
# The graph of all points is given to the callback; the batches are neighbourhoods in
# it, and the last part of a batch holds the numbers of its points.

points, truth = make_moons(400, noise=0.1, random_state=0)
x, truth = torch.from_numpy(points).float(), torch.from_numpy(truth)
target = torch.full_like(truth, -100)
for moon in (0, 1):
    chosen = (truth == moon).nonzero()[:3, 0]
    target[chosen] = truth[chosen]
graph = HeatKernel()(x, knn_graph(x, 10))
data = TensorDataset(x, target, torch.arange(len(x)))
models = {}
for name, weight in (("without", None), ("with smoothness", 3.0)):
    torch.manual_seed(0)
    callbacks = []
    if weight is not None:
        loss = LaplacianSmoothness(reduction="weighted_mean")
        callbacks.append(SmoothnessCallback(weight, "network", loss, graph_from=graph))
    with warnings.catch_warnings():
        # of workers and devices, which this example does not need
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=25,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(
            models.setdefault(name, Classifier()),
            DataLoader(data, batch_sampler=NeighborhoodSampler(graph, 200)),
        )
    with torch.no_grad():
        right = models[name].network(x).argmax(1) == truth
    print(
        f"{name}: accuracy of the points without label "
        f"{right[target < 0].double().mean():.3f}"
    )

# %%
# The picture
# -----------
# Where each network draws the line; the points with labels are crosses.

grid = torch.stack(
    torch.meshgrid(
        torch.linspace(-1.5, 2.5, 120), torch.linspace(-1, 1.5, 80), indexing="xy"
    ),
    -1,
)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
for panel, (name, model) in zip(axes, models.items(), strict=True):
    with torch.no_grad():
        share = model.network(grid.reshape(-1, 2)).softmax(1)[:, 1].reshape(80, 120)
    panel.pcolormesh(
        *grid.movedim(2, 0).numpy(),
        share.numpy(),
        cmap="coolwarm",
        alpha=0.5,
        shading="nearest",
    )
    panel.scatter(*x.T, c=truth, cmap="coolwarm", s=5)
    panel.scatter(*x[target >= 0].T, c="k", marker="x", s=60)
    panel.set(title=name, aspect="equal")
plt.show()

# sphinx_gallery_thumbnail_panel = 1
