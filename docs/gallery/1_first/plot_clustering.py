"""
Clusters that are not balls
===========================

K-means cuts clusters in two if they are bent or lie inside each other. Spectral
clustering does not: it asks which points are connected, not which are near a centre.
"""

# %%
# Two data sets, two methods
# --------------------------
# The adjusted Rand index is 1 where the clusters are the true ones and 0 where they are
# no better than chance.

import matplotlib.pyplot as plt
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import make_circles, make_moons
from sklearn.metrics import adjusted_rand_score

from torch_lapeig import KNN, SpectralClustering

sets = {
    "two moons": make_moons(500, noise=0.06, random_state=0),
    "two rings": make_circles(500, noise=0.04, factor=0.5, random_state=0),
}
figure, axes = plt.subplots(2, 2, figsize=(8, 7), layout="constrained")
for row, (name, (points, truth)) in zip(axes, sets.items(), strict=True):
    answers = {
        "k-means": KMeans(2, n_init=10, random_state=0).fit_predict(points),
        "spectral": SpectralClustering(2, KNN(12))
        .fit_predict(torch.from_numpy(points))
        .numpy(),
    }
    for panel, (method, labels) in zip(row, answers.items(), strict=True):
        score = adjusted_rand_score(truth, labels)
        print(f"{name}, {method}: adjusted Rand index {score:.3f}")
        panel.scatter(*points.T, c=labels, s=8, cmap="coolwarm")
        panel.set(title=f"{name}, {method}: {score:.2f}", aspect="equal")
plt.show()

# %%
# Labels of new points
# --------------------
# A fitted clustering labels points that it has not seen. Here they are a fresh draw of
# the moons.

points, _ = sets["two moons"]
model = SpectralClustering(2, KNN(12)).fit(torch.from_numpy(points))
fresh, truth = make_moons(300, noise=0.06, random_state=1)
score = adjusted_rand_score(truth, model.predict(torch.from_numpy(fresh)).numpy())
print(f"new points: adjusted Rand index {score:.3f}")

# sphinx_gallery_thumbnail_panel = 3
