"""
Label spreading as an estimator
===============================

This estimator replaces ``sklearn.semi_supervised.LabelSpreading``: it solves for the
limit of scikit-learn's iteration, and its k-nearest-neighbour graph may be weighted.
"""

# %%
# Two moons with six labels
# -------------------------
# −1 stands for no label. Both estimators get the same parameters.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.semi_supervised import LabelSpreading as Theirs

from torch_lapeig.sklearn import LabelSpreading

x, truth = make_moons(400, noise=0.08, random_state=0)
labels = np.full(400, -1)
for moon in (0, 1):
    labels[np.flatnonzero(truth == moon)[:3]] = moon
options = {"kernel": "rbf", "gamma": 30, "alpha": 0.9}
ours = LabelSpreading(**options).fit(x, labels)
unlabelled = labels < 0
theirs = Theirs(**options, max_iter=10_000, tol=1e-13).fit(x, labels)
difference = np.abs(theirs.label_distributions_ - ours.label_distributions_).max()
print(f"scikit-learn, {theirs.n_iter_} iterations, differs by {difference:.1e}")
print(
    "accuracy of the points without label: "
    f"{(ours.transduction_ == truth)[unlabelled].mean():.3f}"
)

# %%
# The picture
# -----------
# Left: the labels given, as crosses, and those found. Right: the share of the first
# class anywhere in the plane, by ``predict_proba`` of new samples.

grid = np.stack(np.meshgrid(np.linspace(-1.5, 2.5, 80), np.linspace(-1, 1.5, 60)), -1)
share = ours.predict_proba(grid.reshape(-1, 2))[:, 0].reshape(60, 80)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.scatter(*x.T, c=ours.transduction_, cmap="coolwarm", s=8)
left.scatter(*x[~unlabelled].T, c="k", marker="x", s=60)
left.set(title="labels found", aspect="equal")
shading = right.pcolormesh(
    *grid.transpose(2, 0, 1), share, cmap="coolwarm_r", shading="nearest"
)
figure.colorbar(shading, label="share of the first class")
right.set_aspect("equal")
plt.show()
