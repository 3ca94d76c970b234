"""
A disconnected graph
====================

A ``GraphWarning`` about connected components means that the graph is disconnected. This
example shows what the embedding then looks like, and three things to do: take it as it
is, embed each component on its own, or raise an error.
"""

# %%
# Three curves that do not touch
# ------------------------------
# Each point is joined to its eight nearest neighbours; no edge leads from one curve to
# another.

import textwrap
import warnings

import matplotlib.pyplot as plt
import torch

from torch_lapeig import KNN, GraphWarning, LaplacianEigenmaps, knn_graph

torch.manual_seed(0)
t = torch.linspace(0, 1, 120, dtype=torch.float64)
curves = [
    torch.stack([3 * t, (3 * t + phase).sin() + 2.5 * phase], 1)
    for phase in (0.0, 1.0, 2.0)
]
x = torch.cat(curves) + 0.02 * torch.randn(360, 2, dtype=torch.float64)
pieces = knn_graph(x, 8).nodes_of_components()
print("points of each component:", [len(nodes) for nodes in pieces])

# %%
# Three answers
# -------------
# ``"joint"``, the default, solves the plain problem. A graph of c components has c
# eigenvalues zero, so the first c − 1 columns only tell the pieces apart, and a warning
# says so. ``"separate"`` embeds each piece on its own, as Belkin and Niyogi do.
# ``"error"`` raises.

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", GraphWarning)
    joint = LaplacianEigenmaps(2, KNN(8), scale="unit").embed(x)
print(textwrap.fill(str(caught[0].message), 88))
print("eigenvalues, joint:", [f"{value:.1e}" for value in joint.eigenvalues])

separate = LaplacianEigenmaps(2, KNN(8), scale="unit", components="separate")(x)
try:
    LaplacianEigenmaps(2, KNN(8), components="error")(x)
except ValueError as error:
    print("refused:", str(error)[:60], "...")

# %%
# The picture
# -----------
# Joint: each curve is one dot. The printed spread of the points of one curve is
# round-off. Separate: each curve is unrolled by its own first column.

figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
for nodes in pieces:
    axes[0].plot(*x[nodes].T, ".")
    axes[1].plot(*joint.embedding[nodes].T, "o")
    axes[2].plot(x[nodes, 0], separate[nodes, 0], ".")
axes[0].set_title("points")
axes[1].set_title("joint: two columns")
axes[2].set(title="separate: first column", xlabel="place along the curve")
plt.show()
rows = [joint.embedding[nodes] for nodes in pieces]
spread = max(float((y.amax(0) - y.amin(0)).max()) for y in rows)
print(f"joint: a curve spreads over {spread:.1e}")
