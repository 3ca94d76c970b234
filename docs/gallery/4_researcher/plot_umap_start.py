"""
A start for UMAP and t-SNE
==========================

UMAP and t-SNE start from spectral coordinates of the neighbour graph. If this graph is
nearly disconnected, or falls into parts, the usual solvers hang or give up; this
example has both cases.
"""

# %%
# Nearly disconnected: clusters in a chain
# ----------------------------------------
# Forty clusters of 100 nodes, each joined to the next by an edge of weight 1e-4. The
# eigenvalues are tiny and close together; the tolerance of the solve is relative to the
# gap between them.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import Graph, knn_graph, spectral_init
from torch_lapeig.plots import plot_embedding

torch.manual_seed(0)
clusters, size = 40, 100
cluster = torch.arange(clusters * size) // size
inner = torch.stack(
    [
        torch.arange(clusters * size).repeat(8),
        cluster.repeat(8) * size + torch.randint(size, (32000,)),
    ]
)
inner = inner[:, inner[0] != inner[1]]
links = torch.stack(
    [
        torch.arange(size - 1, clusters * size - 1, size),
        torch.arange(size, clusters * size, size),
    ]
)
edges = torch.cat([inner, inner.flip(0), links, links.flip(0)], 1).unique(dim=1)
weight = torch.where(cluster[edges[0]] == cluster[edges[1]], 1.0, 1e-4).double()
chain = Graph.from_edge_index(edges, weight)

start = spectral_init(chain, 2, seed=0)
print("eigenvalues", start.eigenvalues[0].tolist())
print(f"residuals up to {start.residuals.max():.0e}")

# %%
# In parts: each where its centroid is
# ------------------------------------
# Nine groups of points so far apart that no edge joins them. Each part gets its own
# eigenvectors, in a cube of half the distance to the nearest other part. Nine is more
# than twice the number of columns, so the centroids place the parts.

centres = 30 * torch.randn(9, 5, dtype=torch.float64)
group = torch.arange(900) % 9
x = centres[group] + torch.randn(900, 5, dtype=torch.float64)
apart = spectral_init(knn_graph(x, 10), 2, seed=0, points=x)
print(
    f"{len(apart.eigenvalues)} components, residuals up to {apart.residuals.max():.0e}"
)

# %%
# The picture
# -----------
# What UMAP gets: ``umap.UMAP(init=start.embedding.numpy())``.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
plot_embedding(start.embedding, cluster, axes=left, name="cluster in the chain")
plot_embedding(apart.embedding, group, axes=right, name="part")
plt.show()
