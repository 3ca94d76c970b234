"""
Segments of a photograph
========================

A picture is a graph: each pixel is joined to its neighbours, with small weights where
colours differ. Its clusters are segments.
"""

# %%
# The graph of a grid
# -------------------
# Edges go to the right, down, and along both diagonals. The bandwidth is a tenth of the
# mean squared difference of colours, so that contours are cut. A small weight is added,
# so that no spot becomes a segment of its own.

import time

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image

from torch_lapeig import Graph, Laplacian, Solve, eigenpairs, normalized_cut
from torch_lapeig.methods import refine_cut
from torch_lapeig.methods.assignment import cluster_qr

image = torch.from_numpy(load_sample_image("china.jpg").copy()).double() / 255
image = torch.nn.functional.avg_pool2d(image.permute(2, 0, 1), 2).permute(1, 2, 0)
height, width = image.shape[:2]
number = torch.arange(height * width).reshape(height, width)
pairs = [
    (number[:, :-1], number[:, 1:]),
    (number[:-1], number[1:]),
    (number[:-1, :-1], number[1:, 1:]),
    (number[:-1, 1:], number[1:, :-1]),
]
edges = torch.cat([torch.stack([a.flatten(), b.flatten()]) for a, b in pairs], 1)
colour = image.reshape(-1, 3)
squares = (colour[edges[0]] - colour[edges[1]]).square().sum(1)
weight = torch.exp(-squares / (0.1 * squares.mean())) + 1e-4
graph = Graph.from_edge_index(
    torch.cat([edges, edges.flip(0)], 1), weight.repeat(2), number.numel()
)

# %%
# Eigenvectors, segments, and a smaller cut
# -----------------------------------------
# Labels need no more than two digits of the gap between eigenvalues. Rows of the
# eigenvectors get labels by pivoted QR, which needs no start. Then single pixels move
# where that makes the normalised cut smaller, in ten rounds.

begin = time.perf_counter()
found = eigenpairs(Laplacian(graph), 12, Solve(tolerance=1e-2))
seconds = time.perf_counter() - begin
solver = type(found.solver).__name__
print(f"{number.numel():,} pixels: eigenvectors in {seconds:.1f} s by {solver}")
print(f"largest residual {found.residuals.max():.1e}")
rows = torch.nn.functional.normalize(found.vectors)
labels, _ = cluster_qr(rows)
refined = refine_cut(labels, graph, rounds=10)
print(f"normalised cut {normalized_cut(labels, graph):.4f}")
print(f"after moves of single pixels {normalized_cut(refined, graph):.4f}")

segments = refined.reshape(height, width)
border = torch.zeros(height, width, dtype=torch.bool)
border[:, 1:] |= segments[:, 1:] != segments[:, :-1]
border[1:] |= segments[1:] != segments[:-1]
shown = image.clone()
shown[border] = torch.tensor([1.0, 1.0, 0.0], dtype=image.dtype)
figure, axes = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
axes[0].imshow(image)
axes[1].imshow(found.vectors[:, 2].reshape(height, width), cmap="coolwarm")
axes[2].imshow(shown)
titles = ("photograph", "third eigenvector", "borders of 12 segments")
for panel, title in zip(axes, titles, strict=True):
    panel.set_title(title)
    panel.axis("off")
plt.show()

# sphinx_gallery_thumbnail_panel = 2
