"""
Isomap, MDS, LLE and kernel PCA
===============================

Six methods have the same calls, batches, masks, gradients, and the same formula for new
points. Here they embed the same sheet.
"""

# %%
# One sheet, five methods
# -----------------------
# A sheet rolled up in space, with its two true coordinates. How good a map is: the
# share of each point's ten nearest neighbours on the true sheet that are among its ten
# nearest in the map.

import time

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_swiss_roll

from torch_lapeig import KNN, LLE, MDS, Isomap, KernelPCA, LaplacianEigenmaps
from torch_lapeig.plots import plot_embedding

points, along = make_swiss_roll(900, random_state=1)
x = torch.from_numpy(points)
sheet = torch.stack([torch.from_numpy(along) * 8, x[:, 1]], 1)


def neighbours(y):
    """Return whether j is among the ten nearest of i."""
    nearest = (
        torch.cdist(y, y).fill_diagonal_(torch.inf).topk(10, largest=False).indices
    )
    return torch.zeros(len(y), len(y), dtype=torch.bool).scatter_(1, nearest, True)


methods = {
    "MDS": MDS(2),
    "kernel PCA": KernelPCA(2, "rbf", gamma=0.01),
    "LLE": LLE(2, KNN(10)),
    "Laplacian eigenmaps": LaplacianEigenmaps(2, KNN(10), scale="unit"),
    "Isomap": Isomap(2, KNN(10)),
    "Isomap, 100 landmarks": Isomap(2, KNN(10), landmarks=100),
}
true = neighbours(sheet)
figure, axes = plt.subplots(2, 3, figsize=(10, 6.4), layout="constrained")
for panel, (name, method) in zip(axes.flat, methods.items(), strict=True):
    began = time.perf_counter()
    y = method.fit(x).embedding_
    seconds = time.perf_counter() - began
    kept = (neighbours(y) & true).sum() / true.sum()
    print(f"{name:24s} neighbours kept {kept:.2f}, {seconds:.2f} s")
    plot_embedding(y, along, axes=panel, legend=False).set_title(f"{name}: {kept:.2f}")
plt.show()

# %%
# New points and gradients, all the same way
# ------------------------------------------
# ``out_of_sample`` embeds points and places others, with gradients to both.

small, new = x[:150].clone().requires_grad_(), x[150:160]
for name, method in methods.items():
    if "landmarks" in name:
        continue
    y, y_new = method.out_of_sample(small, new)
    (gradient,) = torch.autograd.grad(y_new.square().sum(), small)
    print(
        f"{name:24s} {tuple(y_new.shape)} new rows, gradient finite: "
        f"{bool(gradient.isfinite().all())}"
    )

# sphinx_gallery_thumbnail_panel = 4
