"""
Smoothness in mini-batches
==========================

A network with few labels can learn from neighbours, whose outputs should be similar.
The batch decides whether this helps: it must hold neighbours among *all* points, which
a random batch does not.
"""

# %%
# Digits with two labels a class
# ------------------------------
# One graph of all points is built once. `NeighborhoodSampler` draws batches of points
# together with their neighbours, and ``graph.subgraph`` cuts out the edges among them.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from torch_lapeig import HeatKernel, knn_graph, laplacian_smoothness
from torch_lapeig.samplers import NeighborhoodSampler

pixels, classes = load_digits(return_X_y=True)
x = torch.from_numpy(pixels).float() / 16
truth = torch.from_numpy(classes).long()
target = torch.full_like(truth, -100)  # no label: cross_entropy leaves it out
known = torch.cat([(truth == digit).nonzero()[:2, 0] for digit in range(10)])
target[known] = truth[known]

graph = HeatKernel()(x, knn_graph(x, 10))
data = TensorDataset(x, torch.arange(len(x)))


def neighbourhood_loss(logits, nodes):
    """Return the smoothness on the edges of the graph of all points."""
    return laplacian_smoothness(
        logits.softmax(1), graph.subgraph(nodes), "weighted_mean"
    )


def own_graph_loss(logits, nodes):
    """Return the smoothness on a graph of the batch alone, of no neighbours."""
    alone = HeatKernel()(x[nodes], knn_graph(x[nodes], 10))
    return laplacian_smoothness(logits.softmax(1), alone, "weighted_mean")


neighbourhoods = DataLoader(
    data, batch_sampler=NeighborhoodSampler(graph, 256, neighbors=10)
)
settings = {
    "labels only": (None, neighbourhoods),
    "random batches, own graphs": (own_graph_loss, None),
    "neighbourhoods of all points": (neighbourhood_loss, neighbourhoods),
}


# %%
# Three trainings
# ---------------
# The labelled points are seen in every step; the batch only smooths. Accuracy is that
# of the points without label.


def train(smooth, loader, seed):
    """Return the accuracy after every fifteenth step."""
    torch.manual_seed(seed)
    loader = loader or DataLoader(
        data, 256, sampler=RandomSampler(data), drop_last=True
    )
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    accuracy, batches = [], iter(())
    for step in range(1, 151):
        if (batch := next(batches, None)) is None:
            batches = iter(loader)
            batch = next(batches)
        points, nodes = batch
        loss = cross_entropy(network(x[known]), target[known])
        if smooth is not None:
            loss = loss + 3 * smooth(network(points), nodes)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 15 == 0:
            with torch.no_grad():
                right = network(x).argmax(1) == truth
            accuracy.append(right[target < 0].double().mean().item())
    return accuracy


figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
for name, (smooth, loader) in settings.items():
    accuracy = train(smooth, loader, seed=0)
    print(f"{name:30s} accuracy {accuracy[-1]:.3f}")
    axes.plot(range(15, 151, 15), accuracy, label=name)
axes.set(xlabel="step", ylabel="accuracy of points without label")
axes.legend()
plt.show()
