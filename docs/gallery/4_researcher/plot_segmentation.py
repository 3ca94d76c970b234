"""
Segmentation of a picture
=========================

Regions of a picture are found without training by cutting the graph of its pixels (Shi
and Malik 2000): the eigenvectors of the smallest eigenvalues are smooth within regions
and jump between them.
"""

# %%
# A graph of pixels
# -----------------
# Pixels are nodes. Edges join pixels that are at most three apart; an edge is strong
# where the colours at its ends are alike. The program prints how few entries of the
# matrix are stored.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image

from torch_lapeig import (
    Graph,
    Laplacian,
    Precomputed,
    SpectralClustering,
    eigenpairs,
    normalized_cut,
    radius_graph,
)

picture = (
    torch.from_numpy(load_sample_image("flower.jpg").copy())[:424, 80:560].double()
    / 255
)
# means of 8 × 8 pixels
picture = picture.unfold(0, 8, 8).unfold(1, 8, 8).mean((-1, -2))
height, width, _ = picture.shape
place = torch.cartesian_prod(torch.arange(height), torch.arange(width)).double()
colour = picture.reshape(-1, 3)

edges = radius_graph(place, 3.0).edge_index
nearness = (place[edges[0]] - place[edges[1]]).square().sum(1) / 8
likeness = (colour[edges[0]] - colour[edges[1]]).square().sum(1) / 0.02
graph = Graph.from_edge_index(
    edges, torch.exp(-nearness - likeness), num_nodes=len(place)
)
print(
    f"{height} × {width} pixels: {edges.shape[1]:,} stored weights of "
    f"{len(place) ** 2:,}"
)

# %%
# Eigenvectors and regions
# ------------------------
# ``Precomputed("affinity")`` says that the graph is given. The normalised cut of k
# regions is at least the sum of the k smallest eigenvalues; both are printed.

pairs = eigenpairs(Laplacian(graph, "random_walk"), 5)
regions = 4
labels = SpectralClustering(
    regions, Precomputed("affinity"), assign_labels="cluster_qr"
).fit_predict(graph)
print("eigenvalues:", [f"{value:.4f}" for value in pairs.values])
print(
    f"normalised cut {normalized_cut(labels, graph):.4f}, bound from below "
    f"{pairs.values[:regions].sum():.4f}"
)

# %%
# The picture
# -----------
# In the last panel each region has its mean colour.

means = torch.stack([colour[labels == region].mean(0) for region in range(regions)])
figure, axes = plt.subplots(1, 5, figsize=(13, 2.8), layout="constrained")
axes[0].imshow(picture.numpy())
axes[0].set_title("picture")
for number, panel in zip((1, 2, 3), axes[1:4], strict=True):
    panel.imshow(
        pairs.vectors[:, number].reshape(height, width).numpy(), cmap="viridis"
    )
    panel.set_title(f"eigenvector {number + 1}")
axes[4].imshow(means[labels].reshape(height, width, 3).numpy())
axes[4].set_title(f"{regions} regions")
for panel in axes:
    panel.axis("off")
plt.show()

# sphinx_gallery_thumbnail_panel = 4
