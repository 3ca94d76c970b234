"""
A first embedding
=================

Start here to see how points in many dimensions are connected. A sheet is rolled up in
space; Laplacian eigenmaps join each point to its neighbours and unroll it.
"""

# %%
# Points and their map
# --------------------
# 1500 points of a rolled-up sheet, each joined to its ten nearest neighbours. ``embed``
# returns the columns of the map with their eigenvalues, residuals and the gap to the
# next eigenvalue.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_swiss_roll

from torch_lapeig import KNN, LaplacianEigenmaps
from torch_lapeig.plots import plot_embedding

points, along = make_swiss_roll(1500, random_state=0)
x = torch.from_numpy(points)
found = LaplacianEigenmaps(2, KNN(10)).embed(x)

print("eigenvalues:", found.eigenvalues.tolist())
print(
    f"largest residual {found.residuals.max():.1e}, gap to the next eigenvalue "
    f"{found.gap:.1e}"
)

# %%
# The picture
# -----------
# Colour is the place along the sheet before it was rolled up, which the method never
# saw. The first column of the map follows it: the rank correlation is printed below the
# picture.

figure = plt.figure(figsize=(9, 4), layout="constrained")
space = figure.add_subplot(1, 2, 1, projection="3d")
space.scatter(*points.T, c=along, s=6)
space.set_title("points in space")
plane = figure.add_subplot(1, 2, 2)
plot_embedding(found, along, axes=plane, name="place along the sheet").set_title(
    "their map"
)
plt.show()

ranks = (
    torch.stack([found.embedding[:, 0], torch.from_numpy(along)])
    .argsort()
    .argsort()
    .double()
)
print(
    "rank correlation of first column and place on the sheet: "
    f"{ranks.corrcoef()[0, 1].abs():.4f}"
)
