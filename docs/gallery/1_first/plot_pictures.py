"""
Pictures of an embedding
========================

Three functions draw an embedding: its points, its spectrum and its graph. They draw
into matplotlib's axes and return them, so you can add titles and everything else.
"""

# %%
# Points
# ------
# Images of a spot that lies anywhere in a square: the embedding finds the square.
# Labels of few kinds are colours with a legend, other numbers a colour bar. New points
# are rings below the others. Where points are images, some are drawn at their places,
# with an edge in the colour of their label.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import KNN, LaplacianEigenmaps
from torch_lapeig.plots import plot_embedding, plot_graph, plot_spectrum

torch.manual_seed(0)
spot = torch.rand(900, 2, dtype=torch.float64)
pixel = torch.linspace(-0.2, 1.2, 16, dtype=torch.float64)
row, column = ((pixel - place[:, None]).square() / 0.03 for place in spot.T)
images = torch.exp(-row[:, :, None] - column[:, None, :])
x = images.flatten(1)
labels = [
    f"{'lower' if a > 0.5 else 'upper'} {'right' if b > 0.5 else 'left'}"
    for a, b in spot[:800]
]

model = LaplacianEigenmaps(6, KNN(10)).fit(x[:800])
y = model.embedding_
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
plot_embedding(
    y, labels, new=model.transform(x[800:]), axes=left, name="place of the spot"
)
plot_embedding(y, labels, images=images[:800], axes=right, legend=False)
plt.show()

# %%
# Spectrum
# --------
# The two sides of a square are equal, and so are nearly the first two eigenvalues; then
# comes a gap. The hollow dot is the next eigenvalue, which is known by the gap.

found = LaplacianEigenmaps(6, KNN(10)).embed(x)
print("eigenvalues:", [f"{value:.4f}" for value in found.eigenvalues])
plot_spectrum(found, after=2).set_title("eigenvalues of a square")
plt.show()

# %%
# Graph
# -----
# The edges that the method saw, in the plane of the first two columns: the darker the
# heavier. Colour is how far the spot lies from the top of the image.

graph = model.weights(x[:800], KNN(10)(x[:800]))
plot_graph(graph, y, spot[:800, 0], name="distance from the top").set_title(
    "neighbourhood graph"
)
plt.show()

# %%
# Components
# ----------
# Each component of a graph has a panel of its own.

is_side = (spot[:800, 1] - 0.5).abs() > 0.15  # without the spots in the middle
sides = x[:800][is_side]
parts = KNN(10)(sides).nodes_of_components()
separate = LaplacianEigenmaps(2, KNN(10), components="separate")(sides)
shown = [label for label, is_there in zip(labels, is_side, strict=True) if is_there]
for panel, nodes in zip(
    plot_embedding(separate, shown, parts=parts), parts, strict=True
):
    panel.set_title(f"{len(nodes)} points")
    print(f"a component of {len(nodes)} points")
plt.show()
