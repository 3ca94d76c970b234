"""
Few labels for many points
==========================

With thousands of points and a few labels, try this before any network: labels spread
along the neighbourhood graph, in seconds and without training.
"""

# %%
# Digits with one to five labels a class
# --------------------------------------
# The methods of the library against the nearest labelled picture: accuracy on the
# points without a label, mean over three draws of the labels. 27 digits are a component
# of the graph of their own; where none of them has a label they keep −1, with a warning
# that is switched off here.

import warnings

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from torch_lapeig import KNN, GraphWarning, HarmonicFunction, LabelSpreading

warnings.filterwarnings("ignore", category=GraphWarning)

pixels, truth = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
pixels = pixels.float()
truth = truth.long()


def few(per_class, seed):
    """Return the labels of a few points of each class, −1 for the others."""
    order = torch.randperm(len(truth), generator=torch.Generator().manual_seed(seed))
    labels = torch.full_like(truth, -1)
    for digit in range(10):
        chosen = order[truth[order] == digit][:per_class]
        labels[chosen] = digit
    return labels


def nearest(labels):
    """Return the label of the nearest labelled point."""
    known = (labels >= 0).nonzero()[:, 0]
    return labels[known[torch.cdist(pixels, pixels[known]).argmin(1)]]


def recipe():
    """Return the method to take first: classes get the shares of the labels."""
    return HarmonicFunction(KNN(5))


methods = {
    "nearest labelled picture": nearest,
    "harmonic, class prior": lambda labels: recipe().fit(pixels, labels).predict(),
    "harmonic": lambda labels: (
        HarmonicFunction(KNN(5), class_prior=None).fit(pixels, labels).predict()
    ),
    "label spreading": lambda labels: (
        LabelSpreading(KNN(5)).fit(pixels, labels).predict()
    ),
}
counts = (1, 2, 5)
accuracy = {name: [] for name in methods}
for per_class in counts:
    for name, method in methods.items():
        scores = []
        for seed in range(3):
            labels = few(per_class, seed)
            scores.append((method(labels) == truth)[labels < 0].double().mean())
        accuracy[name].append(float(torch.stack(scores).mean()))
for name, row in accuracy.items():
    print(f"{name:26s}", *(f"{value:.3f}" for value in row))

# %%
# Pictures that the graph gets wrong
# ----------------------------------
# Right: the most doubtful pictures of one draw with two labels a class, that is those
# whose two best scores are nearest to each other.

model = recipe().fit(pixels, few(2, 0))
best = model.scores_.topk(2, dim=1).values
doubtful = (best[:, 1] / best[:, 0]).topk(12).indices
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for name, row in accuracy.items():
    left.plot(counts, row, "o-", label=name)
left.set(xlabel="labels a class", ylabel="accuracy of the others", xscale="log")
left.set_xticks(counts, labels=[str(count) for count in counts])
left.minorticks_off()
left.legend()
tiles = torch.nn.functional.pad(pixels[doubtful].reshape(12, 8, 8), (1, 1, 1, 1))
tiles = tiles.reshape(3, 4, 10, 10).movedim(1, 2).reshape(30, 40)
right.imshow(tiles.numpy(), cmap="gray_r")
right.set_title("doubtful pictures")
right.axis("off")
plt.show()
