"""
Pictures of an embedding
========================

Whoever wants to look at an embedding draws it with three functions: points, spectrum, graph. They draw into axes of
matplotlib's and return them, so that titles and everything else are yours.
"""

# %%
# Points
# ------
# Labels of few kinds are colours with a legend, other numbers a colour bar. New points are rings below the others.
# Where points are images, some are drawn at their places, with an edge in the colour of their label.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from torch_lapeig import KNN, LaplacianEigenmaps
from torch_lapeig.plots import plot_embedding, plot_graph, plot_spectrum

digits = load_digits(n_class=4)
x = torch.from_numpy(digits.data)
known, new = torch.arange(len(x)).split([620, 100])
model = LaplacianEigenmaps(6, KNN(10)).fit(x[known])
y, labels, images = model.embedding_, digits.target[known], digits.images[known]

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
plot_embedding(y, labels, new=model.transform(x[new]), axes=left, name="digit")
plot_embedding(y, labels, images=images, axes=right, legend=False)
plt.show()

# %%
# Spectrum
# --------
# Four digits, three small eigenvalues after the constant one: then comes the gap. The hollow dot is the next eigenvalue,
# of which `Embedding.gap` tells.

found = LaplacianEigenmaps(6, KNN(10)).embed(x)
print("eigenvalues:", [f"{value:.4f}" for value in found.eigenvalues])
plot_spectrum(found, after=3).set_title("eigenvalues of four digits")
plt.show()

# %%
# Graph
# -----
# The edges that the method saw, in the plane of the first two columns: the darker the heavier.

graph = model.weights(x[known], KNN(10)(x[known]))
plot_graph(graph, y, labels, name="digit").set_title("neighbourhood graph")
plt.show()

# %%
# Components
# ----------
# Each component of a graph has a panel of its own.

apart = torch.cat([x[known][:100] / 16, x[known][100:160] / 16 + 9])
parts = KNN(10)(apart).nodes_of_components()
separate = LaplacianEigenmaps(2, KNN(10), components="separate")(apart)
for panel, nodes in zip(plot_embedding(separate, labels[:160], parts=parts, name="digit"), parts, strict=True):
    panel.set_title(f"{len(nodes)} points")
plt.show()
