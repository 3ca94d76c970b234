"""
Diffusion maps
==============

Diffusion distances follow the data instead of cutting through empty space: two points
are near if random walks that start at them are soon in the same places.
"""

# %%
# Columns whose distances are diffusion distances
# -----------------------------------------------
# `DiffusionMap` multiplies each column by its eigenvalue of the walk, 1 − λ in size, to
# the power ``time``. ``alpha=1`` removes the influence of how densely the points were
# drawn (Coifman and Lafon 2006).

import matplotlib.pyplot as plt
import torch

from torch_lapeig import KNN, DensityCorrected, DiffusionMap, knn_graph

torch.manual_seed(0)
t = torch.rand(400, dtype=torch.float64).sqrt() * 3.5 * torch.pi
x = torch.stack([t * t.cos(), t * t.sin()], 1) / 4 + 0.04 * torch.randn(
    400, 2, dtype=torch.float64
)
start = int(t.argmax())

times = (16, 512, 16384)
maps = {time: DiffusionMap(60, KNN(8), alpha=1.0, time=time)(x) for time in times}
distances = {time: (y - y[start]).norm(dim=1) for time, y in maps.items()}

# %%
# Checked against the walk itself
# -------------------------------
# The diffusion distance is also the distance of two rows of the τ-th power of the
# walk's matrix, weighted by the inverse degrees. All columns give it exactly; the few
# columns of an embedding give it at long times.

graph = DensityCorrected()(x, knn_graph(x, 8))
affinity = graph.to_dense()
degree = affinity.sum(1)
for time in times:
    rows = torch.linalg.matrix_power(affinity / degree[:, None], time)
    exact = ((rows - rows[start]).square() / degree).sum(1).sqrt()
    error = (distances[time] - exact).abs().max() / exact.max()
    print(
        f"τ = {time}: 60 columns and the walk differ by {error:.1e} of the largest "
        "distance"
    )
left_out = 1 - DiffusionMap(60, KNN(8)).embed(x).eigenvalues[-1]
print(f"eigenvalues of the walk that are left out lie below {left_out:.3f}")

# %%
# The picture
# -----------
# Colour is the distance from the outer end of the spiral: in the plane, and by
# diffusion.

figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), layout="constrained")
shown = {
    "in the plane": (x - x[start]).norm(dim=1),
    **{f"diffusion, τ = {time}": distances[time] for time in times},
}
for panel, (name, distance) in zip(axes, shown.items(), strict=True):
    panel.scatter(*x.T, c=distance, s=8)
    panel.plot(*x[start].tolist(), "r*", markersize=12)
    panel.set(title=name, aspect="equal")
for name, distance in shown.items():
    ranks = torch.stack([distance, -t]).argsort().argsort().double()
    print(
        f"{name}: rank correlation with the length of the way along the spiral "
        f"{ranks.corrcoef()[0, 1]:.3f}"
    )
plt.show()

# sphinx_gallery_thumbnail_panel = 3
