"""
Embeddings of three subsets, aligned
====================================

Eigenvectors are determined up to signs, and those of close eigenvalues up to a
rotation. To compare embeddings of two subsets, or of two days, align them to a
reference with `align`, on the rows that they share.
"""

# %%
# Three subsets of a ring
# -----------------------
# The points lie on a noisy ring in space. Each subset has two of three points, so that
# its embedding shares rows with that of all points.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import KNN, LaplacianEigenmaps, align

torch.manual_seed(0)
angle = 2 * torch.pi * torch.arange(600, dtype=torch.float64) / 600
x = torch.stack([angle.cos(), angle.sin(), (2 * angle).cos() / 3], 1)
x = x + 0.02 * torch.randn(600, 3, dtype=torch.float64)
layer = LaplacianEigenmaps(2, KNN(10), scale="unit")
reference = layer.embed(x)
subsets = [(torch.arange(600) % 3 != left).nonzero().flatten() for left in range(3)]
embeddings = [layer.embed(x[rows]) for rows in subsets]

# %%
# Before and after
# ----------------
# The first two eigenvalues of a ring are nearly equal: each subset has its own rotation
# in their plane. ``distance`` is what is left after it, relative to the reference. It
# warns where it has to rotate columns whose eigenvalues are well separated.

aligned = [
    align(y, reference.embedding[rows])
    for y, rows in zip(embeddings, subsets, strict=True)
]
print("left:", [round(float(found.distance), 3) for found in aligned])

figure, (before, after) = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
for y, found, rows, mark in zip(embeddings, aligned, subsets, "o+x", strict=True):
    for axes, points in ((before, y.embedding), (after, found.embedding)):
        axes.scatter(*points.T, c=angle[rows], marker=mark, s=14, cmap="twilight")
before.set(title="three embeddings", aspect="equal")
after.set(title="laid over each other", aspect="equal")
plt.show()
